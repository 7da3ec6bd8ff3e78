//! Periodic work of a worker, in slices between two receive turns.

use weir_context::Contexts;
use weir_listener::{EventLoop, ListenerId};

use super::TICK;

/// Raw contexts looked at between two receive turns after new rules came: well below a millisecond's worth.
const SWEEP_CONTEXTS: usize = 4096;

/// Number of removed contexts from which freeing memory is worth its cost.
const RELEASE_CONTEXTS: u64 = 1024;

/// Ticks between two comparisons of the drops counted with the kernel's tables, which means reading them whole.
const CROSS_CHECK_TICKS: u64 = 60;

/// Examples of bad input are kept at most this often.
const EXAMPLE_INTERVAL_NS: u64 = 10_000_000_000;

/// Work that has slices left.
#[derive(Default)]
pub(super) struct MaintenanceTasks {
    /// Contexts are being marked after a change of rules or tags.
    sweeping: bool,
    /// A summary is being made.
    summarising: bool,
}

impl MaintenanceTasks {
    pub(super) fn any(&self) -> bool {
        self.sweeping || self.summarising
    }

    pub(super) fn is_sweeping(&self) -> bool {
        self.sweeping
    }

    pub(super) fn sweep(&mut self) {
        self.sweeping = true;
    }

    /// The next slice of a sweep.
    pub(super) fn proceed(&mut self, contexts: &mut Contexts, now: u32) {
        if self.sweeping {
            self.sweeping = contexts.sweep_stale(SWEEP_CONTEXTS, now);
        }
    }

    pub(super) fn summarise(&mut self) {
        self.summarising = true;
    }

    pub(super) fn is_summarising(&self) -> bool {
        self.summarising
    }

    pub(super) fn summarised(&mut self) {
        self.summarising = false;
    }
}

/// Compares the counted drops with those in the kernel's tables.
#[derive(Default)]
pub(super) struct DropWatch {
    ticks: u64,
    disagreements: u64,
}

impl DropWatch {
    pub(super) fn tick(&mut self, event_loop: &mut EventLoop) {
        self.ticks += 1;
        if !self.ticks.is_multiple_of(CROSS_CHECK_TICKS) {
            return;
        }
        let listeners: Vec<ListenerId> = event_loop.listeners().map(|(id, _)| id).collect();
        for id in listeners {
            if let Ok(Some(check)) = event_loop.cross_check_drops(id) {
                self.disagreements += u64::from(!check.agrees());
            }
        }
    }

    /// Times they were others.
    pub(super) fn disagreements(&self) -> u64 {
        self.disagreements
    }
}

/// Decides when a worker's thread returns its allocator cache.
pub(super) struct MemoryRelease {
    release_memory: fn(),
    /// Contexts expired when it last did.
    expired: u64,
}

impl MemoryRelease {
    pub(super) fn new(release_memory: fn()) -> Self {
        MemoryRelease {
            release_memory,
            expired: 0,
        }
    }

    /// Called at the end of a bucket, with the number of contexts expired since the start.
    pub(super) fn bucket_ended(&mut self, expired: u64) {
        if expired - self.expired >= RELEASE_CONTEXTS {
            self.expired = expired;
            (self.release_memory)();
        }
    }
}

/// When counts are published next, and when the next example of bad input is wanted.
pub(super) struct Ticks {
    next_ns: u64,
    next_example_ns: u64,
}

impl Ticks {
    pub(super) fn new(now: u64) -> Self {
        Ticks {
            next_ns: now + TICK.as_nanos() as u64,
            next_example_ns: 0,
        }
    }

    pub(super) fn next_ns(&self) -> u64 {
        self.next_ns
    }

    /// Whether it is time for a tick; the next one is a whole tick later.
    pub(super) fn is_time(&mut self, now: u64) -> bool {
        let is_time = now >= self.next_ns;
        if is_time {
            self.next_ns = now + TICK.as_nanos() as u64;
        }
        is_time
    }

    pub(super) fn example_taken(&mut self, now: u64) {
        self.next_example_ns = now + EXAMPLE_INTERVAL_NS;
    }

    pub(super) fn wants_example(&self, now: u64) -> bool {
        now >= self.next_example_ns
    }
}
