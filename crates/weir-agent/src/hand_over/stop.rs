//! The stop of this process, which ends its waits for another process.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use rustix::event::EventfdFlags;
use tokio::sync::watch;

/// Set once, when the process is asked to stop.
#[derive(Clone, Debug)]
pub struct StopSignal(Arc<StopState>);

#[derive(Debug)]
struct StopState {
    since: watch::Sender<Option<Instant>>,
    /// Readable from then on.
    event: OwnedFd,
}

impl StopSignal {
    pub fn new() -> io::Result<StopSignal> {
        Ok(StopSignal(Arc::new(StopState {
            since: watch::Sender::new(None),
            event: rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        })))
    }

    pub fn set(&self) {
        self.0.since.send_modify(|since| {
            since.get_or_insert_with(Instant::now);
        });
        // It fails only if the counter is full, and then it is readable too.
        let _ = rustix::io::write(&self.0.event, &1u64.to_ne_bytes());
    }

    pub fn since(&self) -> Option<Instant> {
        *self.0.since.borrow()
    }

    pub fn is_set(&self) -> bool {
        self.since().is_some()
    }

    /// Completes when `work` does, or this is set.
    pub async fn limit<F: Future>(&self, work: F) {
        let mut since = self.0.since.subscribe();
        tokio::select! {
            _ = work => {}
            _ = since.wait_for(Option::is_some) => {}
        }
    }
}

/// Readable when it is set.
impl AsFd for StopSignal {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.event.as_fd()
    }
}
