use std::num::NonZeroU32;
use std::sync::Arc;

use weir_context::{ContextId, Contexts, LiveContext, Partitioning};
use weir_counters::{Counts, SeriesSpec, Significance, counters};
use weir_protocol::Kind;

use crate::flush::{
    BATCH_BYTES, BATCH_ROWS, Batch, BatchSource, KeptPoints, Room, RowWriter, TimestampedSample,
    TimestampedValue,
};
use crate::member_set::MemberSet;
use crate::state::{AddResult, ClosedBucket, SampleTime, SketchParts, State};
use crate::timeline::{Seconds, Timeline};

mod saved;

pub use saved::ProcessStamp;

/// The operator's settings.
#[derive(Clone, Debug)]
pub struct AggregatorSettings {
    /// Seconds, at least 1.
    pub bucket_width: u32,
    /// Idle counters report zero for this many seconds after their last sample. Zero disables this.
    pub counter_expiry: u32,
    /// Contexts expire this many seconds after their last sample; counters after this plus `counter_expiry`.
    pub context_expiry: u32,
    pub hostname: Arc<str>,
    /// By hash where [`crate::Merger`] merges the batches with those of other workers.
    pub partitioning: Partitioning,
    /// Size at which a batch of a flush is handed over.
    pub batch_bytes: usize,
}

impl Default for AggregatorSettings {
    fn default() -> Self {
        AggregatorSettings {
            bucket_width: 10,
            counter_expiry: 300,
            context_expiry: 20,
            hostname: "".into(),
            partitioning: Partitioning::Hash,
            batch_bytes: BATCH_BYTES,
        }
    }
}

/// Samples in the state of contexts, by kind, counted a second time where they are added.
const SAMPLES: SeriesSpec = SeriesSpec::counter("weir_state_samples_total", "rows.samples", "samples")
    .help("Samples in the state of contexts, by kind, counted where they are added.");

const SAMPLES_MOVE: Significance =
    Significance::Normal("It rises with the samples; the books compare the two.");

counters! {
    /// The fate of a worker's samples. The first of these are the kinds, in their order.
    pub enum AggregateCounter {
        /// Counters.
        Counter = SAMPLES.by("kind", "counter"), SAMPLES_MOVE;
        /// Gauges.
        Gauge = SAMPLES.by("kind", "gauge"), SAMPLES_MOVE;
        /// Sets.
        Set = SAMPLES.by("kind", "set"), SAMPLES_MOVE;
        /// Histograms.
        Histogram = SAMPLES.by("kind", "histogram"), SAMPLES_MOVE;
        /// Timings.
        Timing = SAMPLES.by("kind", "timing"), SAMPLES_MOVE;
        /// Distributions, without copies of histograms.
        Distribution = SAMPLES.by("kind", "distribution"), SAMPLES_MOVE;
        /// Copies of histogram samples in distributions.
        Copied = SeriesSpec::counter("weir_samples_copied_total", "rows.samples_copied", "samples"),
            Significance::Normal("Rules copy histograms to distributions.");
        /// Histograms that became a sketch, because they had too many samples in a bucket, or memory was short.
        HistogramsFolded = SeriesSpec::counter("weir_histograms_folded_total", "rows.histograms_folded", "histograms"),
            Significance::Normal("Percentiles of these are within 1 %; minimum, maximum, sum and count stay exact. If `weir_bodies_squeezed_total` rises too, raise `memory`.");
        /// Sets that became an estimate, because they had too many members in a bucket, or memory was short.
        SetsEstimated = SeriesSpec::counter("weir_sets_estimated_total", "rows.sets_estimated", "sets"),
            Significance::Normal("Their counts are estimates. If `weir_bodies_squeezed_total` rises too, raise `memory`.");
        /// Times a histogram, set or sketch lost resolution, because memory was very short.
        BodiesSqueezed = SeriesSpec::counter("weir_bodies_squeezed_total", "rows.bodies_squeezed", "times"),
            Significance::Problem("Percentiles of these are coarser than 1 %, and counts of members are estimates: raise `memory`.");
        /// Rows that workers handed over, before the merge.
        Rows = SeriesSpec::counter("weir_rows_handed_over_total", "rows.handed_over", "rows"),
            Significance::Normal("It rises with each flush by the live contexts of the workers.");
        /// Buckets closed.
        Buckets = SeriesSpec::counter("weir_flushes_total", "flush.count", "flushes").highest(),
            Significance::Normal("It rises by one per bucket; if it does not, a worker is stuck.");
        /// Ends of buckets at which the bucket before was not handed over yet: the open bucket goes on, with its timestamp, and has the
        /// samples of the next one too.
        BucketsJoined = SeriesSpec::counter("weir_buckets_joined_total", "flush.buckets_joined", "buckets"),
            Significance::Problem("Merging and encoding take longer than a bucket: give weir more CPU (`cpu`), or disable `outputs`. Sums are right, at a coarser resolution.");
    }
}

/// The counter of the samples of a kind.
const fn of_kind(kind: Kind) -> AggregateCounter {
    AggregateCounter::ALL[kind as usize]
}

/// The batch under construction, and the progress of the first closed bucket's hand-over.
#[derive(Default)]
struct HandOver {
    sequence: u64,
    batch: Option<Batch>,
    writer: RowWriter,
    /// Rows of the bucket in completed batches.
    rows: u64,
    /// Of the bucket that was closed last.
    timestamped: Option<Batch>,
    /// Of this bucket, so far.
    largest: Room,
    /// For each batch: the largest lengths of the last bucket.
    room: Room,
}

/// Aggregates one worker's samples into buckets and buckets into batches. Time is always an argument.
///
/// It does not own the contexts: the owner of both calls [`Aggregator::write`] for the contexts of a closed bucket and reports those that
/// it removes.
pub struct Aggregator {
    settings: AggregatorSettings,
    worker: u16,
    timeline: Timeline,
    state: State,
    /// Of the open bucket.
    kept: KeptPoints,
    hand_over: HandOver,
    counts: Counts<AggregateCounter>,
    /// Samples in points that are kept or were.
    kept_samples: u64,
    /// Start of the bucket that would be open, if the open one did not wait for the one before it.
    due_start: Seconds,
    /// Samples counted before the open bucket began.
    counted_before: u64,
    /// Samples in the open bucket from another process.
    resumed_samples: u64,
    /// The same of buckets that have ended.
    resumed_before: u64,
}

impl Aggregator {
    /// `now`: Unix seconds.
    pub fn new(settings: AggregatorSettings, worker: u16, now: i64) -> Self {
        Aggregator {
            worker,
            timeline: Timeline::new(settings.bucket_width, now),
            state: State::new(),
            kept: KeptPoints::default(),
            hand_over: HandOver::default(),
            counts: Counts::default(),
            kept_samples: 0,
            due_start: 0,
            counted_before: 0,
            resumed_samples: 0,
            resumed_before: 0,
            settings,
        }
    }

    pub fn settings(&self) -> &AggregatorSettings {
        &self.settings
    }

    pub fn counts(&self) -> Counts<AggregateCounter> {
        let mut counts = self.counts;
        counts[AggregateCounter::BodiesSqueezed] = self.state.squeezed();
        counts
    }

    /// The second of this aggregator's clock, for [`Contexts::resolve`].
    #[inline(always)]
    pub fn now(&self) -> u32 {
        self.timeline.now()
    }

    /// Unix seconds at which the open bucket ends.
    pub fn open_bucket_end(&self) -> i64 {
        self.timeline.open_end()
    }

    /// Advances to a time in Unix seconds, and closes the open bucket if it has ended. A time before the last one counts as the last one.
    /// If the previous bucket is not handed over completely, this returns false: the bucket stays open, and so does its last second.
    #[must_use = "false: hand over, then advance again"]
    pub fn advance(&mut self, now: i64) -> bool {
        let (now, next_start) = self.timeline.next_start(now);
        if let Some(start) = next_start {
            if self.is_draining() {
                self.hold(start);
                return false;
            }
            self.close(start);
        }
        self.timeline.set_now(now);
        true
    }

    /// The open bucket stays open although another one begins at `start`.
    fn hold(&mut self, start: Seconds) {
        let counted = self.due_start.max(self.timeline.open_start());
        let more = start.saturating_sub(counted) / self.settings.bucket_width;
        self.counts[AggregateCounter::BucketsJoined] += u64::from(more);
        self.due_start = self.due_start.max(start);
    }

    /// Handles a clock that was set back to `now`, beyond the tolerance: closes the open bucket with its timestamp, and opens the one that
    /// contains `now`. If a bucket waits for hand-over, this returns false and does nothing.
    #[must_use = "false: hand over, then set back again"]
    pub fn set_back(&mut self, now: i64) -> bool {
        let closed = self.close_now();
        if closed {
            self.timeline.set_back(now);
        }
        closed
    }

    /// Closes the open bucket before its end, for shutdown. Returns false as `advance` does.
    #[must_use = "false: hand over, then close again"]
    pub fn close_now(&mut self) -> bool {
        if self.is_draining() {
            return false;
        }
        self.close(self.timeline.following_start());
        true
    }

    fn close(&mut self, next_start: Seconds) {
        self.timeline.close(next_start, self.settings.counter_expiry > 0);
        self.hand_over.timestamped = self.kept.take();
        self.state.swap_halves();
        self.counted_before = self.samples();
        self.resumed_before += std::mem::take(&mut self.resumed_samples);
        self.counts[AggregateCounter::Buckets] += 1;
    }

    /// See [`State::find_addresses`].
    #[inline(always)]
    pub fn find_addresses(&mut self) {
        self.state.find_addresses();
    }

    /// See [`State::prefetch_state`].
    #[inline(always)]
    pub fn prefetch_state(&self, kind: Kind, id: ContextId) -> bool {
        self.state.prefetch_state(kind, id)
    }

    /// See [`State::prefetch_state`].
    #[inline(always)]
    pub fn prefetch_bodies(&self, contexts: &[(Kind, ContextId)]) {
        self.state.prefetch_bodies(contexts);
    }

    /// See [`State::prefetch_state`].
    #[inline(always)]
    pub fn prefetch_samples(&self, contexts: &[(Kind, ContextId)]) {
        self.state.prefetch_samples(contexts);
    }

    #[inline(always)]
    fn sample_time(&self) -> SampleTime {
        SampleTime {
            now: self.timeline.now(),
            open_start: self.timeline.open_start(),
        }
    }

    /// Adds to a counter. `value` includes its sample rate.
    #[inline]
    pub fn counter(&mut self, id: ContextId, value: f64) {
        self.state.counter(id, value, self.sample_time());
        self.counts[of_kind(Kind::Counter)] += 1;
    }

    /// Sets a gauge. `received`: monotonic nanoseconds of its batch's receipt.
    #[inline]
    pub fn gauge(&mut self, id: ContextId, value: f64, received: u64) {
        self.state.gauge(id, value, received, self.timeline.now());
        self.counts[of_kind(Kind::Gauge)] += 1;
    }

    /// The last value of a gauge, which is forgotten after this many seconds without a sample. `None`: as long as its context lives.
    pub fn last_gauge(&self, id: ContextId, expiry: Option<NonZeroU32>) -> Option<f64> {
        let oldest = expiry.map_or(0, |expiry| self.now().saturating_sub(expiry.get()));
        self.state.last_gauge(id, oldest)
    }

    /// Adds a member to a set.
    pub fn set(&mut self, id: ContextId, member: &[u8]) {
        self.set_hashed(id, MemberSet::hash(member), member);
    }

    /// Prefetches the memory for [`Aggregator::set_hashed`]. Returns the member's hash.
    #[inline]
    pub fn prefetch_member(&self, id: ContextId, member: &[u8]) -> u64 {
        let hash = MemberSet::hash(member);
        self.state.prefetch_member(id, hash);
        hash
    }

    /// [`Aggregator::set`] with the hash of [`Aggregator::prefetch_member`].
    pub fn set_hashed(&mut self, id: ContextId, hash: u64, member: &[u8]) {
        let added = self.state.set(id, hash, member, self.timeline.now());
        self.counts[AggregateCounter::SetsEstimated] += u64::from(added == AddResult::Estimated);
        self.counts[of_kind(Kind::Set)] += 1;
    }

    /// Adds a sample to a histogram or timing, with weight `1 / rate`.
    #[inline]
    pub fn histogram(&mut self, kind: Kind, id: ContextId, value: f64, weight: f64) {
        let added = self.state.histogram(kind, id, value, weight, self.timeline.now());
        self.counts[AggregateCounter::HistogramsFolded] += u64::from(added == AddResult::Estimated);
        self.counts[of_kind(kind)] += 1;
    }

    /// Adds a sample to a distribution, with weight `1 / rate`. Counts are integers. The remainder of a weight is carried to the context's
    /// next sample, so a bucket's count is right to less than one.
    #[inline]
    pub fn distribution(&mut self, id: ContextId, value: f64, weight: f64) {
        self.state.distribution(id, value, weight, self.timeline.now());
        self.counts[of_kind(Kind::Distribution)] += 1;
    }

    /// [`Aggregator::distribution`] for all values of one message.
    #[inline]
    pub fn distribution_values(&mut self, id: ContextId, values: &[f64], weight: f64) {
        if weight != 1.0 {
            for &value in values {
                self.distribution(id, value, weight);
            }
            return;
        }
        self.state.distribution_values(id, values, self.timeline.now());
        self.counts[of_kind(Kind::Distribution)] += values.len() as u64;
    }

    /// Adds a sketch that its sender has made. Its samples count one by one.
    pub fn sketch(&mut self, id: ContextId, parts: SketchParts<'_>) {
        self.state.sketch(id, parts, self.timeline.now());
        self.counts[of_kind(Kind::Distribution)] += parts.count;
    }

    /// [`Aggregator::gauge`] for a value that was measured at this monotonic time: a newer one of this bucket stays.
    pub fn gauge_measured(&mut self, id: ContextId, value: f64, measured: u64) {
        self.state.gauge_measured(id, value, measured, self.sample_time());
        self.counts[of_kind(Kind::Gauge)] += 1;
    }

    /// Copies a histogram's sample to its distribution. Counted separately, because nobody sent this sample.
    pub fn copied_distribution(&mut self, id: ContextId, value: f64, weight: f64) {
        self.state.distribution(id, value, weight, self.timeline.now());
        self.counts[AggregateCounter::Copied] += 1;
    }

    /// An empty batch for data that is passed on without aggregation. It has its own sequence.
    pub fn pass_through_batch(&self, sequence: u64) -> Batch {
        let source = BatchSource {
            worker: self.worker,
            sequence,
        };
        let bucket = self.timeline.open_bucket();
        Batch::new(source, bucket, self.settings.hostname.clone())
    }

    /// The samples that leave with the open bucket, and have their own timestamp.
    fn kept(&mut self) -> &mut KeptPoints {
        if self.kept.is_empty() {
            self.kept = KeptPoints::new(self.pass_through_batch(0));
        }
        &mut self.kept
    }

    /// Adds a sample that keeps its timestamp, and leaves with the open bucket. `identity`: that of the sample. `change`: a number for
    /// [`Aggregator::kept_changes`], not less than those before it.
    pub fn keep_timestamped(
        &mut self,
        identity: &str,
        sample: &TimestampedSample<'_>,
        value: TimestampedValue,
        change: u64,
    ) {
        self.kept_samples += value.samples();
        self.kept().add(identity, sample, value, change);
    }

    /// Such samples leave now, because the open bucket never ends.
    pub fn take_kept(&mut self) -> Option<Batch> {
        self.kept.take()
    }

    /// Bytes of such samples.
    pub fn kept_bytes(&self) -> usize {
        self.kept.bytes()
    }

    /// Whether a closed bucket waits for hand-over.
    pub fn is_draining(&self) -> bool {
        self.timeline.waiting() > 0
    }

    /// Whether the current hand-over is of a zero bucket.
    pub fn hands_over_zeros(&self) -> bool {
        self.timeline.closed().is_some_and(|closed| closed.zeros_only)
    }

    /// Raw contexts without a context may be removed if they were not seen since this second.
    pub fn oldest_remembered(&self) -> u32 {
        self.now().saturating_sub(self.settings.context_expiry)
    }

    /// Begins the next partition of the closed bucket unless it has begun. Partitions are ascending, without gaps.
    pub fn begin_partition(&mut self, partition: usize) {
        let closed = self.timeline.closed().expect("a bucket is closed");
        let hand_over = &mut self.hand_over;
        let batch = hand_over.batch.get_or_insert_with(|| {
            hand_over.sequence += 1;
            hand_over.writer.begin();
            let source = BatchSource {
                worker: self.worker,
                sequence: hand_over.sequence,
            };
            let bucket = self.timeline.closed_bucket(closed);
            let mut batch = Batch::new(source, bucket, self.settings.hostname.clone());
            batch.reserve(hand_over.room);
            batch
        });
        if batch.partitions.is_empty() || batch.partitions.end == partition {
            batch.begin_partition(partition);
        }
    }

    /// Prefetches the state of contexts whose rows are written next.
    pub fn prefetch_rows(&self, live: &[LiveContext]) {
        self.state.prefetch_rows(live);
    }

    /// Writes the row of a context in the current partition, if it has one in the closed bucket. Returns true if the context has expired or
    /// never got a sample.
    #[must_use = "true: the context is to be removed and forgotten"]
    pub fn write(&mut self, contexts: &Contexts, live: LiveContext) -> bool {
        let closed_bucket = ClosedBucket {
            closed: self.timeline.closed().expect("a bucket is closed"),
            open_start: self.timeline.open_start(),
            counter_expiry: self.settings.counter_expiry,
        };
        let (kind, id) = (live.kind(), live.id());
        let HandOver { batch, writer, .. } = &mut self.hand_over;
        let batch = batch.as_mut().expect("a partition has begun");
        let context = contexts.get(kind, id);
        let last_seen = self
            .state
            .write(context, kind, id, &closed_bucket, (writer, batch));
        last_seen.is_none_or(|last_seen| self.is_expired(kind, context.is_copy(), last_seen))
    }

    fn is_expired(&self, kind: Kind, is_copy: bool, last_seen: Seconds) -> bool {
        // Zero buckets for a gap in time still need the counters that were alive in it.
        if last_seen >= self.timeline.open_start() || self.timeline.waiting() > 1 {
            return false;
        }
        let mut expiry = self.settings.context_expiry;
        if kind == Kind::Counter {
            expiry = expiry.saturating_add(self.settings.counter_expiry);
        } else if kind == Kind::Distribution && is_copy {
            // The histogram refers to its copy and is checked at most two buckets later.
            expiry = expiry.saturating_add(2 * self.settings.bucket_width);
        }
        last_seen.saturating_add(expiry) < self.now()
    }

    /// The batch, if it is long enough. With [`Partitioning::Hash`] for the end of a partition; never for the end of the last one.
    pub fn take_full_batch(&mut self) -> Option<Batch> {
        let batch = self.hand_over.batch.as_ref()?;
        if batch.len() < BATCH_ROWS && batch.bytes() < self.settings.batch_bytes {
            return None;
        }
        self.take_batch(false)
    }

    /// The last batch of the closed bucket, after its last partition. True with it: no other bucket waits.
    pub fn finish_bucket(&mut self) -> (Batch, bool) {
        let batch = self.take_batch(true).expect("the last partition began one");
        self.timeline.pop_closed();
        self.hand_over.rows = 0;
        (batch, !self.is_draining())
    }

    fn take_batch(&mut self, last: bool) -> Option<Batch> {
        let mut batch = self.hand_over.batch.take()?;
        batch.last = last;
        let largest = self.hand_over.largest.max(batch.room());
        if last {
            self.hand_over.room = largest;
        }
        self.hand_over.largest = if last { Room::default() } else { largest };
        self.hand_over.rows += batch.len() as u64;
        self.counts[AggregateCounter::Rows] += batch.len() as u64;
        batch.rows_of_bucket = self.hand_over.rows;
        if last {
            batch.samples_until = self.ended_samples();
            batch.timestamped.extend(self.hand_over.timestamped.take());
        }
        Some(batch)
    }

    /// Clears the state, because another context may get this id.
    pub fn forget(&mut self, live: LiveContext) {
        self.state.forget(live.kind(), live.id());
    }

    /// Frees state beyond the ids in use, by kind.
    pub fn truncate(&mut self, ids: [usize; Kind::COUNT]) {
        self.state.truncate(ids);
    }

    /// Sets the byte limit of the state. Above it histograms are folded and sets estimated earlier. Above `squeeze_from` each of them, and
    /// each sketch, is kept small. Counters report all of it.
    pub fn set_bytes_max(&mut self, bytes: usize, squeeze_from: usize) {
        self.state.set_bytes_max(bytes, squeeze_from);
    }

    /// Bytes of histograms, sets and sketches.
    #[inline(always)]
    pub fn body_bytes(&self) -> usize {
        self.state.body_bytes()
    }

    /// Bytes of state, slack included, without the batch under construction.
    pub fn heap_bytes(&self) -> usize {
        self.state.heap_bytes() + self.kept.bytes()
    }

    /// Bytes of state now, or expected by the end of the bucket if it fills up like the last one.
    pub fn expected_bytes(&self) -> usize {
        self.state.expected_bytes() + self.kept.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_has_its_counter() {
        for kind in Kind::ALL {
            assert_eq!(of_kind(kind).as_str(), kind.as_str());
        }
    }
}
