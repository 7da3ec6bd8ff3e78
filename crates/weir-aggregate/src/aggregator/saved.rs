//! Saving the open bucket, and continuing that of another process.

use std::ops::Range;

use weir_context::LiveContext;
use weir_protocol::Kind;
use weir_state::{AgentId, Entry, State as Record};

use super::{AggregateCounter, Aggregator, of_kind};
use crate::flush::Bucket;
use crate::state::{Saved, Stamps};
use crate::timeline::Timeline;

/// The agent and its clock, for exchanging state with another process.
#[derive(Clone, Copy, Debug)]
pub struct ProcessStamp {
    /// Unix nanoseconds at which this process's monotonic clock was zero.
    pub monotonic_zero: i64,
    pub agent: AgentId,
}

impl From<ProcessStamp> for Stamps {
    fn from(stamp: ProcessStamp) -> Self {
        Stamps {
            zero: stamp.monotonic_zero,
            agent: stamp.agent,
        }
    }
}

impl Aggregator {
    /// The bucket that is open.
    pub fn open_bucket(&self) -> Bucket {
        self.timeline.open_bucket()
    }

    /// Samples in the open bucket, including those of another process.
    pub fn open_samples(&self) -> u64 {
        self.samples() - self.counted_before + self.resumed_samples
    }

    /// Samples in all buckets that have ended, whether they have been handed over or not, including those of another process.
    pub fn ended_samples(&self) -> u64 {
        self.counted_before + self.resumed_before
    }

    pub(super) fn samples(&self) -> u64 {
        let of_kinds: u64 = Kind::ALL.iter().map(|&kind| self.counts[of_kind(kind)]).sum();
        of_kinds + self.counts[AggregateCounter::Copied] + self.kept_samples
    }

    /// Rows of timestamped samples that leave with the open bucket.
    pub fn kept_rows(&self) -> usize {
        self.kept.len()
    }

    /// The entries of a range of such rows that have changed after a change, or all of them. The time of each is its timestamp.
    pub fn kept_changes(
        &self,
        rows: Range<usize>,
        after: Option<u64>,
        stamp: ProcessStamp,
    ) -> impl Iterator<Item = Entry<'_>> {
        self.kept.saved(rows, after, stamp)
    }

    /// Adds such a row of another process, whose samples are those of [`Aggregator::resume`]. False: it is of a kind that has none.
    pub fn restore_timestamped(&mut self, point: &Entry<'_>) -> bool {
        self.kept().restore(point)
    }

    /// Prefetches the state of contexts that are saved next.
    pub fn prefetch_saved(&self, live: &[LiveContext]) {
        self.state.prefetch_saved(live);
    }

    /// A context's record in the open bucket, with the Unix second of its last sample. `None`: it never got one. No bucket may wait for
    /// hand-over.
    pub fn save(&self, live: LiveContext, stamp: ProcessStamp) -> Option<(i64, Record)> {
        debug_assert!(!self.is_draining());
        let open_start = self.timeline.open_start();
        let saved = self
            .state
            .save(live.kind(), live.id(), open_start, stamp.into())?;
        Some((self.timeline.unix(saved.seen), saved.state))
    }

    /// Unix second of a context's last sample.
    pub fn seen(&self, live: LiveContext) -> i64 {
        self.timeline.unix(self.state.seen(live.kind(), live.id()))
    }

    /// Continues a bucket that another process began, of the same width. Must precede the first sample. `now`: Unix seconds.
    pub fn resume(&mut self, open: Bucket, samples: u64, now: i64) {
        assert!(open.width == self.settings.bucket_width && self.samples() == 0);
        let remember = self
            .settings
            .context_expiry
            .saturating_add(self.settings.counter_expiry);
        self.timeline = Timeline::resume(open, remember, now);
        self.resumed_samples = samples;
    }

    /// Adds the record of a new context to the open bucket. `seen`: Unix second of its last sample.
    pub fn restore(
        &mut self,
        kind: Kind,
        id: weir_context::ContextId,
        seen: i64,
        state: Record,
        stamp: ProcessStamp,
    ) {
        let saved = Saved {
            seen: self.timeline.second(seen),
            state,
        };
        let open_start = self.timeline.open_start();
        self.state.restore(kind, id, saved, open_start, stamp.into());
    }
}
