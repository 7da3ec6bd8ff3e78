//! The times that cumulative samples carry. They only move forward, however buckets are closed, and what the next process writes
//! is later than what this one wrote. Only when the agent's time is set back, because it was wrong, they go back with it.

use weir_aggregate::Bucket;

use crate::delivery::Clock;
use crate::prometheus::NoState;

/// Unix milliseconds of one bucket's samples, ascending, all later than those of the previous bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampleTimes {
    /// For series that end before the bucket.
    pub before: i64,
    /// When new series began.
    pub begin: i64,
    pub at: i64,
}

/// A bucket that ends at least this many buckets before the newest time was written after a clock was set back. The agent's time may be up
/// to three buckets ahead, and a bucket that was closed early ends up to one bucket before its end.
const SET_BACK_BUCKETS: i64 = 2;

pub struct Timeline {
    clock: Clock,
    started: i64,
    newest: i64,
}

impl Timeline {
    pub fn new(clock: Clock) -> Self {
        Timeline {
            started: clock.unix_ms(),
            clock,
            newest: 0,
        }
    }

    /// For the next process, whose times are later: what stands before a saved state of so many bytes.
    pub fn head(&self) -> impl Fn(usize) -> Vec<u8> + use<> {
        let newest = self.newest;
        move |bytes| {
            postcard::to_extend(&(newest, bytes as u64), Vec::new()).expect("two numbers are writable")
        }
    }

    /// Continues after the newest time of another process, or of several, and returns the state behind it.
    pub fn resume_behind(&mut self, saved: &[u8]) -> Result<Vec<u8>, NoState> {
        let (newest, state): (i64, Vec<u8>) = postcard::from_bytes(saved).map_err(|_| NoState)?;
        self.newest = self.newest.max(newest);
        Ok(state)
    }

    /// A bucket that is complete: its samples carry its end, or the present if it was closed early.
    pub fn bucket(&mut self, bucket: Bucket) -> SampleTimes {
        let start = bucket.start * 1000;
        let end = start + i64::from(bucket.width) * 1000;
        let now = self.clock.unix_ms();
        let end = if start <= now && now < end { now } else { end };
        if self.newest.saturating_sub(end) > SET_BACK_BUCKETS * i64::from(bucket.width) * 1000 {
            // The receivers keep the later times that were already written, and may refuse these points until then.
            self.newest = start - 1;
            self.started = self.started.min(start);
        }
        self.advance(bucket.timestamp * 1000, end)
    }

    /// Between buckets, at the end of the process.
    pub fn now(&mut self) -> SampleTimes {
        let now = self.clock.unix_ms();
        self.advance(now, now)
    }

    fn advance(&mut self, begin: i64, end: i64) -> SampleTimes {
        let before = self.newest + 1;
        let mut begin = begin.max(self.newest + 2);
        // The bucket may have begun before this process, when there was another one.
        if self.started < end {
            begin = begin.max(self.started);
        }
        self.newest = end.max(begin + 1);
        SampleTimes {
            before,
            begin,
            at: self.newest,
        }
    }

    /// Right after everything there is: for series that end.
    pub fn after(&mut self) -> i64 {
        self.newest += 1;
        self.newest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_go_back_with_an_agent_whose_clock_was_set_back() {
        let bucket = |start: i64| Bucket {
            start,
            timestamp: start,
            width: 10,
        };
        let (clock, driver) = Clock::driven(1000);
        let mut timeline = Timeline::new(clock);
        let years = 315_360_000;
        assert_eq!(timeline.bucket(bucket(1000 + years)).at, (1010 + years) * 1000);
        driver.advance(std::time::Duration::from_secs(20));
        let back = timeline.bucket(bucket(1010));
        assert_eq!((back.begin, back.at), (1_010_001, 1_020_000));
        driver.advance(std::time::Duration::from_secs(10));
        assert_eq!(timeline.bucket(bucket(1020)).at, 1_030_000);
    }

    #[test]
    fn times_ascend_through_early_ends_and_clocks_that_are_set_back() {
        let bucket = |start: i64, timestamp: i64| Bucket {
            start,
            timestamp,
            width: 10,
        };
        let (clock, driver) = Clock::driven(1003);
        let mut timeline = Timeline::new(clock);
        driver.advance(std::time::Duration::from_secs(8));
        let first = timeline.bucket(bucket(1000, 1003));
        assert_eq!((first.begin, first.at), (1_003_000, 1_010_000));
        assert_eq!(timeline.after(), 1_010_001);
        let early = timeline.bucket(bucket(1010, 1010));
        assert_eq!(
            (early.before, early.begin, early.at),
            (1_010_002, 1_010_003, 1_011_000)
        );
        let again = timeline.bucket(bucket(1000, 1000));
        assert!(early.at < again.before && again.before < again.begin && again.begin < again.at);
        let end = timeline.now();
        assert!(again.at < end.before && end.begin < end.at);
    }
}
