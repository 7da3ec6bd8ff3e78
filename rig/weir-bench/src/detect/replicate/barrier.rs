//! Synchronises two concurrent arms: before their load, and before their stop.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

#[derive(Debug, Default)]
pub struct ArmBarrier {
    state: Mutex<BarrierState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct BarrierState {
    arrivals: usize,
    /// One of the two has ended, successfully or not; the other continues alone.
    left: bool,
}

impl ArmBarrier {
    fn lock(&self) -> MutexGuard<'_, BarrierState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the other arm has arrived too; `time`: first or second meeting.
    pub(super) fn wait(&self, time: usize) {
        let mut state = self.lock();
        state.arrivals += 1;
        self.changed.notify_all();
        while state.arrivals < 2 * time && !state.left {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// When an arm ends in any way, the other must not wait for it.
pub(super) struct BarrierGuard<'a>(pub &'a ArmBarrier);

impl Drop for BarrierGuard<'_> {
    fn drop(&mut self) {
        self.0.lock().left = true;
        self.0.changed.notify_all();
    }
}
