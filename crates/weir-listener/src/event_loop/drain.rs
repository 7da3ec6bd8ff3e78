//! The end of an event loop.

use crate::sys;

/// Time a drain waits for packets on their way if the kernel cannot be asked to wait for them.
const SETTLE_NANOS: u64 = 20_000_000;
/// Time a drain reads TCP connections, whether their peers are silent or not.
const CONNECTIONS_NANOS: u64 = 1_000_000_000;
/// Time a drain reads a kept socket under load: the rest is for the next process.
const KEPT_NANOS: u64 = 100_000_000;
/// Bytes that a TCP peer has written may still lie in its own kernel, waiting for room in ours: the writer believes that they were sent. A drain therefore reads a connection until its peer has closed it or has been silent for this long.
const SILENCE_NANOS: u64 = 100_000_000;

/// Whether and since when a loop takes nothing new.
#[derive(Default)]
pub(super) struct Drain {
    on: bool,
    settled_at: u64,
    /// When TCP connections are read no longer, whether their peers are silent or not.
    connections_until: u64,
    /// When kept sockets are read no longer, empty or not.
    kept_until: u64,
}

impl Drain {
    pub(super) fn begin(&mut self, now: u64) {
        self.on = true;
        self.connections_until = now + CONNECTIONS_NANOS;
        self.kept_until = now + KEPT_NANOS;
    }

    pub(super) fn is_on(&self) -> bool {
        self.on
    }

    /// Waits until packets that the kernel was receiving when a filter was set are where they can be read. One system call.
    pub(super) fn settle(&mut self) {
        if sys::wait_for_running_receivers().is_err() {
            self.settled_at = sys::monotonic_nanos() + SETTLE_NANOS;
        }
    }

    /// Empty sockets stay empty.
    pub(super) fn has_settled(&self) -> bool {
        sys::monotonic_nanos() >= self.settled_at
    }

    /// Until when a peer that has just sent data may be silent.
    pub(super) fn silence_after(now: u64) -> u64 {
        now + SILENCE_NANOS
    }

    pub(super) fn is_over(&self) -> bool {
        sys::monotonic_nanos() >= self.kept_until
    }

    pub(super) fn connections_until(&self) -> u64 {
        self.connections_until
    }
}
