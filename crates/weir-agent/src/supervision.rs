//! Supervision: workers make progress, the pipeline runs, the process gets CPU time.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use weir_counters::Counts;
use weir_ingest::{Progress, WorkerCounter};
use weir_listener::Monotonic;
use weir_status::counters::SocketCounter;
use weir_status::status::Status;

/// Interval of checking that the process gets CPU time.
pub const PULSE: Duration = Duration::from_millis(100);

/// A pulse later than this means that the process or the machine was stopped.
const PAUSE: Duration = Duration::from_millis(100);

/// Pulses between two looks at workers and files.
const PULSES_PER_LOOK: u32 = 10;

/// A worker ends a turn every second, even without input. One that has not for this long is stuck.
const STALL: Duration = Duration::from_secs(5);

/// Read by the admin server, and updated by what watches: a stuck thread cannot report itself.
#[derive(Default)]
pub struct Health {
    /// Current problems, one sentence each.
    errors: Mutex<Vec<String>>,
    longest_pause_ns: AtomicU64,
    /// Number of times each listener's socket file was created again, by listener number.
    remade: Vec<AtomicU64>,
    ended: AtomicBool,
}

impl Health {
    pub fn new(listeners: usize) -> Health {
        Health {
            remade: (0..listeners).map(|_| AtomicU64::new(0)).collect(),
            ..Health::default()
        }
    }

    /// The first problem.
    pub fn error(&self) -> Option<String> {
        self.lock().first().cloned()
    }

    pub fn fill(&self, status: &mut Status) {
        let mut counts = Counts::default();
        counts[WorkerCounter::LongestGapNs] = self.longest_pause_ns.load(Ordering::Relaxed);
        status.add(None, &counts);
        for (listener, remade) in self.remade.iter().enumerate() {
            let mut socket = Counts::default();
            socket[SocketCounter::FilesRemade] = remade.load(Ordering::Relaxed);
            status.add(Some(listener), &socket);
        }
    }

    /// Workers and socket files end from here on, and that is no problem.
    pub fn end(&self) {
        self.ended.store(true, Ordering::Release);
    }

    pub fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// The socket file of this listener was created again.
    pub fn remade(&self, listener: usize) {
        self.remade[listener].fetch_add(1, Ordering::Relaxed);
    }

    /// Sets the current problems, and logs changes.
    pub fn report(&self, found: Vec<String>) {
        let mut errors = self.lock();
        for error in found.iter().filter(|error| !errors.contains(error)) {
            tracing::error!("not ready: {error}");
        }
        if found.is_empty() && !errors.is_empty() {
            tracing::info!("ready again");
        }
        *errors = found;
    }

    /// Records that the process was stopped.
    fn paused(&self, pause: Duration) {
        if pause >= PAUSE {
            self.longest_pause_ns
                .fetch_max(pause.as_nanos() as u64, Ordering::Relaxed);
        }
        if pause >= Duration::from_secs(1) {
            let seconds = pause.as_secs_f64();
            tracing::warn!(
                "the process did not run for {seconds:.1} s: it was stopped, or the machine was busy or suspended"
            );
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<String>> {
        self.errors.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Watches workers and pipeline.
pub struct Supervisor {
    health: Arc<Health>,
    workers: Vec<Arc<Progress>>,
    /// Held by the pipeline while it runs.
    pipeline: Weak<()>,
    before: Monotonic,
    pulses: u32,
}

impl Supervisor {
    /// `now`: when it begins, which may be long before the first pulse.
    pub fn new(
        health: Arc<Health>,
        workers: Vec<Arc<Progress>>,
        pipeline: Weak<()>,
        now: Monotonic,
    ) -> Supervisor {
        Supervisor {
            health,
            workers,
            pipeline,
            before: now,
            pulses: 0,
        }
    }

    /// Call at each [`PULSE`]. Once a second it returns the problems found, for [`Health::report`].
    pub fn pulse(&mut self, now: Monotonic) -> Option<Vec<String>> {
        let since = Duration::from_nanos(now.0.saturating_sub(self.before.0));
        self.health.paused(since.saturating_sub(PULSE));
        self.before = now;
        self.pulses += 1;
        let looks = self.pulses.is_multiple_of(PULSES_PER_LOOK) && !self.health.has_ended();
        looks.then(|| self.look(now))
    }

    fn look(&self, now: Monotonic) -> Vec<String> {
        let workers = self.workers.iter().enumerate();
        let mut errors: Vec<String> = workers
            .filter_map(|(number, worker)| worker_error(number, worker, now))
            .collect();
        if self.pipeline.strong_count() == 0 {
            errors.push("the thread that merges buckets has ended: outputs get no data; restart weir".into());
        }
        errors
    }
}

fn worker_error(number: usize, worker: &Progress, now: Monotonic) -> Option<String> {
    if worker.has_ended() {
        return Some(format!(
            "ingest worker {number} has ended: its sockets are not read; restart weir"
        ));
    }
    (worker.since_turn(now) >= STALL).then(|| {
        let seconds = STALL.as_secs();
        format!("ingest worker {number} is stuck: it has not received for {seconds} s")
    })
}
