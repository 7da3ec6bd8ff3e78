//! Which bucket is open, and which are closed and not handed over yet. Knows seconds, and nothing of samples.

use std::collections::VecDeque;

use crate::flush::Bucket;

/// Zero buckets that one flush may make up for idle counters after a forward step of the clock.
pub const IDLE_BUCKETS_MAX: u32 = 60;

/// Seconds since the timeline's epoch, which lies a little before its start: zero means never.
pub(crate) type Seconds = u32;

/// A bucket that is closed and not yet handed over completely.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Closed {
    pub start: Seconds,
    /// Made up for a stretch of time without any turn: only idle counters have something to say about it.
    pub zeros_only: bool,
}

pub(crate) struct Timeline {
    width: u32,
    /// Unix seconds of second zero. Seconds never run backwards; when the clock is set back it is this that moves.
    epoch: i64,
    /// The same, for the buckets in `closed`.
    closed_epoch: i64,
    /// Unix seconds that the first bucket is stamped with, since the start or since the clock was set back.
    first_timestamp: i64,
    first_start: Seconds,
    now: Seconds,
    open_start: Seconds,
    closed: VecDeque<Closed>,
}

impl Timeline {
    /// `now`: Unix seconds.
    pub fn new(width: u32, now: i64) -> Self {
        assert!(width > 0, "a bucket has a width");
        // A whole number of buckets before the start, and far enough that no time of ours is ever zero.
        let epoch = now - now.rem_euclid(i64::from(width)) - i64::from(width);
        let start = (now - epoch) as Seconds;
        let open_start = start - start % width;
        Timeline {
            width,
            epoch,
            closed_epoch: epoch,
            first_timestamp: now,
            first_start: open_start,
            now: start,
            open_start,
            closed: VecDeque::new(),
        }
    }

    /// Continues a bucket that another process started. `remember`: how long before it there may have been samples that
    /// still count, seconds. `now`: Unix seconds; the bucket stays open until the time is taken the next time.
    pub fn resume(open: Bucket, remember: u32, now: i64) -> Self {
        let width = open.width.max(1);
        let before = remember.div_ceil(width).saturating_add(1).saturating_mul(width);
        let epoch = open.start - i64::from(before);
        Timeline {
            width,
            epoch,
            closed_epoch: epoch,
            first_timestamp: open.timestamp,
            first_start: before,
            now: before + (now - open.start).clamp(0, i64::from(width) - 1) as Seconds,
            open_start: before,
            closed: VecDeque::new(),
        }
    }

    /// Unix seconds.
    pub fn unix(&self, second: Seconds) -> i64 {
        self.epoch + i64::from(second)
    }

    /// The second of a Unix time; those too long ago are the first one.
    pub fn second(&self, unix: i64) -> Seconds {
        unix.saturating_sub(self.epoch).clamp(1, i64::from(self.now)) as Seconds
    }

    #[inline(always)]
    pub fn now(&self) -> Seconds {
        self.now
    }

    /// Start of the open bucket.
    #[inline(always)]
    pub fn open_start(&self) -> Seconds {
        self.open_start
    }

    /// Unix seconds at which the open bucket ends.
    pub fn open_end(&self) -> i64 {
        self.epoch + i64::from(self.open_start + self.width)
    }

    /// Takes the time, in Unix seconds; one before the last counts as the last. Returns the start of the bucket that ought to
    /// be open from now on, where that is another one. The caller closes the open one, or keeps the time from passing.
    pub fn next_start(&self, now: i64) -> (Seconds, Option<Seconds>) {
        let since =
            Seconds::try_from(now - self.epoch).unwrap_or(if now < self.epoch { 0 } else { Seconds::MAX });
        let now = since.max(self.now);
        let start = now - now % self.width;
        (now, (start > self.open_start).then_some(start))
    }

    pub fn set_now(&mut self, now: Seconds) {
        self.now = now;
    }

    /// Start of the bucket behind the open one.
    pub fn following_start(&self) -> Seconds {
        self.open_start + self.width
    }

    /// Closes the open bucket and opens the one that starts at `next_start`. `make_up` buckets of zeros stand for those
    /// skipped in between, at most [`IDLE_BUCKETS_MAX`].
    pub fn close(&mut self, next_start: Seconds, make_up: bool) {
        self.closed.push_back(Closed {
            start: self.open_start,
            zeros_only: false,
        });
        let skipped = (next_start - self.open_start) / self.width - 1;
        let made_up = if make_up { skipped.min(IDLE_BUCKETS_MAX) } else { 0 };
        self.closed.extend((1..=made_up).rev().map(|at| Closed {
            start: next_start - at * self.width,
            zeros_only: true,
        }));
        self.closed_epoch = self.epoch;
        self.open_start = next_start;
        self.now = self.now.max(next_start);
    }

    /// The clock was set back to `now`, in Unix seconds: the open bucket, which has just begun, is the one that `now` lies in.
    /// It is stamped with `now` as the first one after a start is, so that it overwrites no part of that bucket that may have
    /// been handed over before.
    pub fn set_back(&mut self, now: i64) {
        let within = now.rem_euclid(i64::from(self.width));
        self.epoch = now - within - i64::from(self.open_start);
        self.now = self.open_start + within as Seconds;
        (self.first_start, self.first_timestamp) = (self.open_start, now);
    }

    /// The closed bucket that is to be handed over next.
    pub fn closed(&self) -> Option<Closed> {
        self.closed.front().copied()
    }

    /// Closed buckets that are not handed over yet.
    pub fn waiting(&self) -> usize {
        self.closed.len()
    }

    /// The first closed bucket has been handed over.
    pub fn pop_closed(&mut self) {
        self.closed.pop_front();
    }

    /// The open bucket, as a batch names it.
    pub fn open_bucket(&self) -> Bucket {
        self.bucket(self.epoch, self.open_start)
    }

    /// A closed bucket, as a batch names it.
    pub fn closed_bucket(&self, closed: Closed) -> Bucket {
        self.bucket(self.closed_epoch, closed.start)
    }

    fn bucket(&self, epoch: i64, start: Seconds) -> Bucket {
        let unix = epoch + i64::from(start);
        let timestamp = if start == self.first_start {
            self.first_timestamp
        } else {
            unix
        };
        Bucket {
            start: unix,
            timestamp,
            width: self.width,
        }
    }
}
