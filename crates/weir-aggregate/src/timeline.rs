//! The open bucket, and the closed ones that wait for hand-over. Handles time only, not samples.

use std::collections::VecDeque;

use crate::flush::Bucket;

/// Maximum zero buckets of one flush for idle counters after a forward step of the clock.
pub const IDLE_BUCKETS_MAX: u32 = 60;

/// Batches that a consumer may be behind, if it has room for their bytes: the zero buckets of a forward step, which come at once, displace
/// no bucket with samples.
pub const BATCHES_BEHIND_MAX: usize = 16 + IDLE_BUCKETS_MAX as usize;

/// Seconds since the timeline's epoch, which lies a little before its start. Zero means never.
pub(crate) type Seconds = u32;

/// A closed bucket whose hand-over is not complete.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Closed {
    pub start: Seconds,
    /// A bucket for a period without any turn. Only idle counters have rows in it.
    pub zeros_only: bool,
}

pub(crate) struct Timeline {
    width: u32,
    /// Unix seconds of second zero. Seconds never decrease; when the clock is set back, the epoch moves.
    epoch: i64,
    /// The epoch of the buckets in `closed`.
    closed_epoch: i64,
    /// Timestamp, in Unix seconds, of the first bucket since the start or since the clock was set back.
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
        // A whole number of buckets before the start, so that no valid time is zero.
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

    /// Continues a bucket that another process started. `remember`: how many seconds before it samples may still count. `now`: Unix
    /// seconds; the bucket stays open until the time is next advanced.
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

    /// The second of a Unix time. Earlier times give the first second.
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

    /// Advances to a time in Unix seconds; a time before the last one counts as the last one. Returns the start of the next open bucket if
    /// it differs. The caller must close the open one, or hold the time.
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

    /// Start of the bucket after the open one.
    pub fn following_start(&self) -> Seconds {
        self.open_start + self.width
    }

    /// Closes the open bucket and opens the one that starts at `next_start`. With `make_up`, zero buckets stand for the skipped ones, at
    /// most [`IDLE_BUCKETS_MAX`].
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

    /// Handles a clock that was set back to `now`, in Unix seconds: the open bucket, which has just begun, becomes the one that contains
    /// `now`. Its timestamp is `now`, as for the first bucket after a start, so that it cannot overwrite an earlier part of that bucket.
    pub fn set_back(&mut self, now: i64) {
        let within = now.rem_euclid(i64::from(self.width));
        self.epoch = now - within - i64::from(self.open_start);
        self.now = self.open_start + within as Seconds;
        (self.first_start, self.first_timestamp) = (self.open_start, now);
    }

    /// The next closed bucket to hand over.
    pub fn closed(&self) -> Option<Closed> {
        self.closed.front().copied()
    }

    /// Number of closed buckets that wait for hand-over.
    pub fn waiting(&self) -> usize {
        self.closed.len()
    }

    /// Removes the first closed bucket after its hand-over.
    pub fn pop_closed(&mut self) {
        self.closed.pop_front();
    }

    /// The open bucket, in the form for a batch.
    pub fn open_bucket(&self) -> Bucket {
        self.bucket(self.epoch, self.open_start)
    }

    /// A closed bucket, in the form for a batch.
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
