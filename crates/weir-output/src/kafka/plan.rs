//! Shared by encoder and producer: the number of partitions, as far as the log has reported it to this process or to an earlier one, and the
//! width of buckets.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use weir_merge::Plan;

/// Longest wait of the first bucket for the log's answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// The last known plan of the log. Delivery writes it, the encoder reads it.
#[derive(Debug, Default)]
pub(super) struct Planned {
    plan: Mutex<PlanState>,
    answered: Condvar,
    /// Keeps the plan for a start without an answer of the log.
    file: Option<PathBuf>,
    /// Seconds; zero: there was no bucket yet.
    width: AtomicU32,
}

#[derive(Debug, Default)]
struct PlanState {
    plan: Option<Plan>,
    /// Waiting for it has timed out before.
    is_late: bool,
}

impl Planned {
    /// The plan that an earlier process has kept in this file.
    pub fn kept_in(file: PathBuf) -> Self {
        let plan = weir_log::plan::load(&file).unwrap_or_else(|error| {
            tracing::warn!("{error}: the number of partitions is unknown until the log answers");
            None
        });
        Planned {
            plan: Mutex::new(PlanState { plan, is_late: false }),
            file: Some(file),
            ..Planned::default()
        }
    }

    /// May write a file.
    pub fn set(&self, plan: Plan) {
        let is_new = self.lock().plan.replace(plan.clone()).as_ref() != Some(&plan);
        self.answered.notify_all();
        if let Some(file) = self.file.as_ref().filter(|_| is_new)
            && let Err(error) = weir_log::plan::save(file, &plan)
        {
            tracing::warn!(
                "state_path: {error}: a start without an answer of the log would not know the number of partitions"
            );
        }
    }

    pub fn width(&self) -> u32 {
        self.width.load(Ordering::Relaxed)
    }

    pub fn set_width(&self, seconds: u32) {
        self.width.store(seconds, Ordering::Relaxed);
    }

    pub fn known(&self) -> Option<Plan> {
        self.lock().plan.clone()
    }

    /// The plan. Waits for it a moment, once.
    pub fn get(&self) -> Option<Plan> {
        let is_awaited = |answer: &mut PlanState| answer.plan.is_none() && !answer.is_late;
        let waited = self
            .answered
            .wait_timeout_while(self.lock(), PATIENCE, is_awaited);
        let (mut answer, _) = waited.unwrap_or_else(PoisonError::into_inner);
        answer.is_late = answer.plan.is_none();
        answer.plan.clone()
    }

    fn lock(&self) -> MutexGuard<'_, PlanState> {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
