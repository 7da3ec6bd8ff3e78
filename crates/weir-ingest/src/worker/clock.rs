//! The time of a worker, and for how long it did not receive.

use std::time::{SystemTime, UNIX_EPOCH};

use weir_aggregate::{AgentClock, ClockReading, ProcessStamp};
use weir_listener::Monotonic;
use weir_state::AgentId;

/// Buckets by which the agent's time may be ahead of a wall clock that was set back. A clock that is put right goes back by
/// less; one that is set back by more was wrong before, and points with its timestamps would be wrong until a restart.
const AHEAD_BUCKETS_MAX: i64 = 3;

/// A turn that exceeds its wait by this much was not receiving meanwhile: a turn's own work is a mebibyte at most.
const LATE_NS: u64 = 100_000_000;

/// Both clocks at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Readings {
    /// Unix milliseconds.
    pub wall_ms: i64,
    /// Nanoseconds since any moment.
    pub monotonic: u64,
}

impl Readings {
    pub(super) fn now() -> Readings {
        Readings::at(Monotonic::now().0)
    }

    /// With the monotonic clock as it was just read.
    pub(super) fn at(monotonic: u64) -> Readings {
        Readings {
            wall_ms: wall_ms(),
            monotonic,
        }
    }
}

/// The agent's time, as of the last look at the clocks.
pub(super) struct Clock {
    clock: AgentClock,
    last: Readings,
    now_ms: i64,
    set_back: u64,
    /// The agent's time was set back, and the open bucket has not ended for that yet.
    pub(super) ends_bucket: bool,
}

impl Clock {
    pub(super) fn new(bucket_seconds: u32, first: Readings) -> Self {
        let ahead_max_ms = AHEAD_BUCKETS_MAX * 1000 * i64::from(bucket_seconds);
        Clock {
            clock: AgentClock::new(first.wall_ms, first.monotonic, ahead_max_ms),
            last: first,
            now_ms: first.wall_ms,
            set_back: 0,
            ends_bucket: false,
        }
    }

    /// Takes what the clocks say. The agent's time may be set back, because it was too far ahead.
    pub(super) fn read(&mut self, now: Readings) {
        self.last = now;
        let (now_ms, set_back) = match self.clock.advance(now.wall_ms, now.monotonic) {
            ClockReading::Forward(now_ms) => (now_ms, false),
            ClockReading::SetBack(now_ms) => (now_ms, true),
        };
        self.now_ms = now_ms;
        self.set_back += u64::from(set_back);
        self.ends_bucket |= set_back;
    }

    /// Unix milliseconds.
    pub(super) fn milliseconds(&self) -> i64 {
        self.now_ms
    }

    /// Unix seconds.
    pub(super) fn seconds(&self) -> i64 {
        self.now_ms.div_euclid(1000)
    }

    /// Milliseconds by which the agent's time is ahead of a wall clock that was set back.
    pub(super) fn ahead_ms(&self) -> i64 {
        self.clock.ahead_ms(self.last.wall_ms)
    }

    /// The facts about this process's clocks for another process.
    pub(super) fn stamp(&self, agent: AgentId) -> ProcessStamp {
        let monotonic_ms = (self.last.monotonic / 1_000_000) as i64;
        ProcessStamp {
            monotonic_zero: (self.last.wall_ms - monotonic_ms).saturating_mul(1_000_000),
            agent,
        }
    }

    pub(super) fn times_set_back(&self) -> u64 {
        self.set_back
    }
}

fn wall_ms() -> i64 {
    match SystemTime::now().duration_since(UNIX_EPOCH) {
        Ok(since) => since.as_millis() as i64,
        Err(before) => -(before.duration().as_millis() as i64),
    }
}

/// The longest time between two receive turns while packets were waiting or a flush was running, or by which a turn lasted
/// longer than it should.
#[derive(Default)]
pub(super) struct Gaps {
    busy_since_ns: Option<u64>,
    longest_ns: u64,
}

impl Gaps {
    pub(super) fn turn_begins(&mut self, now: u64) {
        if let Some(since) = self.busy_since_ns.take() {
            self.longest_ns = self.longest_ns.max(now - since);
        }
    }

    /// Called at the end of a turn with the wait `timeout_ns`.
    pub(super) fn turn_ended(&mut self, began: u64, now: u64, timeout_ns: u64) {
        let late_ns = (now - began).saturating_sub(timeout_ns);
        if late_ns >= LATE_NS {
            self.longest_ns = self.longest_ns.max(late_ns);
        }
    }

    /// Until the next turn begins, something waits.
    pub(super) fn busy(&mut self, now: u64) {
        self.busy_since_ns = Some(now);
    }

    pub(super) fn longest_ns(&self) -> u64 {
        self.longest_ns
    }
}
