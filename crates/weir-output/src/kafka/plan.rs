//! Shared by encoder and producer: the number of partitions, as far as the log has reported it, and the width of buckets.

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
    pub fn set(&self, plan: Plan) {
        self.lock().plan = Some(plan);
        self.answered.notify_all();
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
