//! Whether a worker is alive, for threads that cannot ask it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use weir_listener::Monotonic;

/// The state of a worker that other threads can read without its help. The worker only stores.
#[derive(Debug)]
pub struct Progress {
    /// The end of its last turn, monotonic nanoseconds.
    turned_ns: AtomicU64,
    ended: AtomicBool,
}

impl Progress {
    /// Time since its last turn ended. A healthy worker ends a turn every second, even without input.
    pub fn since_turn(&self, now: Monotonic) -> Duration {
        Duration::from_nanos(now.0.saturating_sub(self.turned_ns.load(Ordering::Relaxed)))
    }

    /// Whether its thread has ended, normally or by a panic.
    pub fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }
}

/// Says when a worker's thread ends, also by a panic.
pub struct ProgressGuard(Arc<Progress>);

impl ProgressGuard {
    pub fn new() -> Self {
        ProgressGuard(Arc::new(Progress {
            turned_ns: AtomicU64::new(Monotonic::now().0),
            ended: AtomicBool::new(false),
        }))
    }

    pub fn progress(&self) -> Arc<Progress> {
        self.0.clone()
    }

    /// A turn has ended.
    pub fn end_turn(&self, monotonic_ns: u64) {
        self.0.turned_ns.store(monotonic_ns, Ordering::Relaxed);
    }
}

impl Drop for ProgressGuard {
    fn drop(&mut self) {
        self.0.ended.store(true, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_that_panics_has_ended() {
        let progress_guard = ProgressGuard::new();
        let progress = progress_guard.progress();
        assert!(!progress.has_ended());
        let thread = std::thread::spawn(move || {
            let _alive = progress_guard;
            panic!("as intended");
        });
        assert!(thread.join().is_err() && progress.has_ended());
    }
}
