//! Waiting for descriptors and for other threads.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::sys::{self, Epoll};

/// While some descriptors are busy, the others are looked at after this many bytes or receive calls.
const POLL_BYTES: usize = 256 * 1024;
const POLL_SERVICES: u32 = 16;
pub(super) const EVENTS_PER_POLL: usize = 128;
const WAKER_TOKEN: u64 = u64::MAX;

/// Makes a waiting (or the next) [`crate::EventLoop::turn`] return with `woken` set. For other threads.
#[derive(Clone)]
pub struct Waker(Arc<Wake>);

struct Wake {
    /// Set before the descriptor is written, so that a busy loop sees it without a system call.
    requested: AtomicBool,
    counter: File,
}

impl Waker {
    /// Wakes the loop. Several calls before it looks count as one.
    pub fn wake(&self) {
        if !self.0.requested.swap(true, Ordering::AcqRel) {
            // The counter cannot overflow, since it is written at most once per reading.
            let _ = (&self.0.counter).write(&1u64.to_ne_bytes());
        }
    }
}

/// The events of epoll.
pub(super) enum Event {
    Woken,
    Ready(u64),
}

/// Epoll, the wake-ups of other threads, and the work since the last epoll call.
pub(super) struct Poller {
    epoll: Epoll,
    wake: Arc<Wake>,
    bytes: usize,
    services: u32,
}

impl Poller {
    pub(super) fn new() -> io::Result<Self> {
        let epoll = Epoll::new(EVENTS_PER_POLL)?;
        let counter = sys::event_counter()?;
        epoll.add(counter.as_fd(), WAKER_TOKEN)?;
        let wake = Wake {
            requested: AtomicBool::new(false),
            counter: File::from(counter),
        };
        Ok(Self {
            epoll,
            wake: Arc::new(wake),
            bytes: 0,
            services: 0,
        })
    }

    pub(super) fn waker(&self) -> Waker {
        Waker(Arc::clone(&self.wake))
    }

    /// Another thread asks for attention.
    pub(super) fn is_woken(&self) -> bool {
        self.wake.requested.load(Ordering::Relaxed)
    }

    #[cold]
    pub(super) fn take_wake_up(&self) {
        // Nothing to read if the other thread has set the flag and not yet written: then the next wait ends at once,
        // which is harmless.
        let _ = (&self.wake.counter).read(&mut [0; 8]);
        // Swapped rather than stored, so that writes of the other thread before its wake-up are visible after this.
        self.wake.requested.swap(false, Ordering::AcqRel);
    }

    pub(super) fn watch(&self, fd: BorrowedFd<'_>, token: u64) -> io::Result<()> {
        self.epoll.add(fd, token)
    }

    pub(super) fn forget(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        self.epoll.remove(fd)
    }

    /// Returns how many events there are; 0 also when a signal ended the waiting.
    pub(super) fn wait(&mut self, timeout_ms: i32) -> io::Result<usize> {
        (self.bytes, self.services) = (0, 0);
        match self.epoll.wait(timeout_ms) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(0),
            result => result,
        }
    }

    pub(super) fn event(&self, number: usize) -> Event {
        match self.epoll.token(number) {
            WAKER_TOKEN => Event::Woken,
            token => Event::Ready(token),
        }
    }

    /// A descriptor had its turn.
    #[inline]
    pub(super) fn record_service(&mut self, bytes: u64) {
        self.services += 1;
        self.bytes += bytes as usize;
    }

    /// The descriptors that are not busy have waited long enough.
    pub(super) fn is_due(&self) -> bool {
        self.bytes >= POLL_BYTES || self.services >= POLL_SERVICES
    }
}
