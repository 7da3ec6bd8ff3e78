use std::collections::VecDeque;
use std::sync::Arc;

use weir_context::{Chunked, ContextId, Contexts, PARTITIONS, prefetch};
use weir_protocol::Kind;
use weir_sketch::Sketch;

use crate::flush::{BATCH_ROWS, Batch, Bucket, RowWriter, Source};
use crate::histogram::Histogram;
use crate::member_set::MemberSet;
use crate::places::Places;

/// Zero buckets that one flush may make up for idle counters after a forward step of the clock.
pub const IDLE_BUCKETS_MAX: u32 = 60;

/// What the operator chose.
#[derive(Clone, Debug)]
pub struct AggregatorSettings {
    /// Seconds, at least 1.
    pub bucket_width: u32,
    /// Idle counters report zero for this long after their last sample; zero turns that off. Seconds.
    pub counter_expiry: u32,
    /// Contexts are forgotten this long after their last sample, counters after this and `counter_expiry`. Seconds.
    pub context_expiry: u32,
    pub hostname: Arc<str>,
}

impl Default for AggregatorSettings {
    fn default() -> Self {
        AggregatorSettings {
            bucket_width: 10,
            counter_expiry: 300,
            context_expiry: 20,
            hostname: "".into(),
        }
    }
}

/// Seconds since the aggregator's epoch, which lies a little before its start: zero means never.
type Seconds = u32;

#[derive(Clone, Copy, Default)]
struct Counter {
    sum: f64,
    seen: Seconds,
    /// Last sample before the bucket that `seen` lies in, as far as this half knows.
    seen_before: Seconds,
}

#[derive(Clone, Copy, Default)]
struct Gauge {
    value: f64,
    received: u64,
    seen: Seconds,
}

/// State that does not fit in a few words is allocated when a bucket gets its first sample and moves out with the flush.
#[derive(Default)]
struct Boxed<T> {
    body: Option<Box<T>>,
    seen: Seconds,
}

/// Two copies of a state array: samples go into the open half while the closed one is handed over.
struct Halves<T> {
    halves: [Chunked<T>; 2],
}

impl<T: Default> Halves<T> {
    fn new() -> Self {
        Halves {
            halves: [Chunked::new(), Chunked::new()],
        }
    }

    fn grow_to(&mut self, len: usize) {
        for half in &mut self.halves {
            half.grow_to(len);
        }
    }

    fn truncate(&mut self, len: usize) {
        for half in &mut self.halves {
            half.truncate(len);
        }
    }

    fn heap_bytes(&self) -> usize {
        self.halves.iter().map(Chunked::heap_bytes).sum()
    }
}

impl<T> Halves<Boxed<T>>
where
    Boxed<T>: Default,
{
    /// Bytes of the bodies from `from` on, at most `max` of them; how many that were, and how many there are in all.
    fn body_bytes(&self, from: usize, max: usize, bytes: impl Fn(&T) -> usize) -> (usize, usize, usize) {
        let len = self.halves[0].len();
        let to = from.saturating_add(max).min(len);
        let mut total = 0;
        for half in &self.halves {
            for at in from..to {
                total += body(half, at).map_or(0, |body| size_of::<T>() + bytes(body));
            }
        }
        (total, to.saturating_sub(from), len)
    }
}

/// A count of the bytes in bodies, taken in slices.
#[derive(Clone, Copy, Debug, Default)]
struct Census {
    /// Of the last one that reached the end.
    complete: usize,
    running: usize,
    kind: usize,
    position: usize,
}

/// A bucket that is closed and not yet handed over completely.
#[derive(Clone, Copy, Debug)]
struct Closed {
    start: Seconds,
    /// Made up for a stretch of time without any turn: only idle counters have something to say about it.
    zeros_only: bool,
}

/// How far the hand-over of the first closed bucket has come.
#[derive(Clone, Copy, Debug, Default)]
struct Cursor {
    partition: usize,
    position: usize,
    rows: u64,
}

/// Counts of what a worker's samples became. They only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AggregateCounts {
    /// Samples added to the state of their context.
    pub samples: [u64; Kind::COUNT],
    /// Copies of histogram samples in distributions.
    pub copied: u64,
    /// Histograms and sets that became too large for a bucket to stay exact.
    pub histograms_folded: u64,
    pub sets_estimated: u64,
    pub rows: u64,
    pub buckets: u64,
    pub contexts_expired: u64,
}

/// Samples of one worker into buckets, buckets into batches. Time is an argument everywhere.
pub struct Aggregator {
    settings: AggregatorSettings,
    worker: u16,
    sequence: u64,
    /// Unix seconds of the aggregator's second zero. The aggregator's seconds never run backwards; when the clock is set back it
    /// is this that moves.
    epoch: i64,
    /// The same, for the buckets in `closed`.
    closed_epoch: i64,
    /// Unix seconds that the first bucket is stamped with, since the start or since the clock was set back.
    first_timestamp: i64,
    first_start: Seconds,
    now: Seconds,
    open_start: Seconds,
    open: usize,
    counters: Halves<Counter>,
    gauges: Halves<Gauge>,
    sets: Halves<Boxed<MemberSet>>,
    histograms: Halves<Boxed<Histogram>>,
    timings: Halves<Boxed<Histogram>>,
    distributions: Halves<Boxed<Sketch>>,
    /// Fraction of weight that a distribution carries from one sampled sample to the next.
    rests: Chunked<f64>,
    closed: VecDeque<Closed>,
    cursor: Cursor,
    batch: Option<Batch>,
    writer: RowWriter,
    counts: AggregateCounts,
    census: Census,
    places: Places,
}

impl Aggregator {
    /// `now`: Unix seconds.
    pub fn new(settings: AggregatorSettings, worker: u16, now: i64) -> Self {
        assert!(settings.bucket_width > 0, "a bucket has a width");
        let width = i64::from(settings.bucket_width);
        // A whole number of buckets before the start, and far enough that no time of ours is ever zero.
        let epoch = now - now.rem_euclid(width) - width;
        let start = (now - epoch) as Seconds;
        let open_start = start - start % settings.bucket_width;
        Aggregator {
            worker,
            sequence: 0,
            epoch,
            closed_epoch: epoch,
            first_timestamp: now,
            first_start: open_start,
            now: start,
            open_start,
            open: 0,
            counters: Halves::new(),
            gauges: Halves::new(),
            sets: Halves::new(),
            histograms: Halves::new(),
            timings: Halves::new(),
            distributions: Halves::new(),
            rests: Chunked::new(),
            closed: VecDeque::new(),
            cursor: Cursor::default(),
            batch: None,
            writer: RowWriter::default(),
            counts: AggregateCounts::default(),
            census: Census::default(),
            places: Places::default(),
            settings,
        }
    }

    pub fn settings(&self) -> &AggregatorSettings {
        &self.settings
    }

    pub fn counts(&self) -> AggregateCounts {
        self.counts
    }

    /// The second of this aggregator's clock, for [`Contexts::resolve`].
    pub fn now(&self) -> u32 {
        self.now
    }

    /// Unix seconds at which the open bucket ends.
    pub fn open_bucket_end(&self) -> i64 {
        self.epoch + i64::from(self.open_start + self.settings.bucket_width)
    }

    /// Takes the time, in Unix seconds, and closes the open bucket when it has ended. A time before the last one counts as
    /// the last one. Before a bucket is closed, [`Aggregator::drain`] must have handed over the one before; otherwise this
    /// returns false and the bucket stays open.
    #[must_use = "false: drain, then advance again"]
    pub fn advance(&mut self, now: i64) -> bool {
        let now =
            Seconds::try_from(now - self.epoch).unwrap_or(if now < self.epoch { 0 } else { Seconds::MAX });
        let now = now.max(self.now);
        let width = self.settings.bucket_width;
        let start = now - now % width;
        if start > self.open_start {
            if !self.closed.is_empty() {
                return false;
            }
            self.close(start);
        }
        self.now = now;
        true
    }

    /// The clock was set back to `now`, by more than can be waited for: closes the open bucket with the timestamp it has, and
    /// opens the one that `now` lies in, stamped with `now` as the first one after a start is, so that it overwrites no part
    /// of that bucket that may have been handed over before. Nothing may wait to be handed over; otherwise this returns false.
    #[must_use = "false: drain, then set back again"]
    pub fn set_back(&mut self, now: i64) -> bool {
        if !self.close_now() {
            return false;
        }
        let within = now.rem_euclid(i64::from(self.settings.bucket_width));
        self.epoch = now - within - i64::from(self.open_start);
        self.now = self.open_start + within as Seconds;
        (self.first_start, self.first_timestamp) = (self.open_start, now);
        true
    }

    /// Closes the open bucket although its time has not ended, for shutdown. The same rule as in `advance` holds.
    #[must_use = "false: drain, then close again"]
    pub fn close_now(&mut self) -> bool {
        if !self.closed.is_empty() {
            return false;
        }
        self.close(self.open_start + self.settings.bucket_width);
        true
    }

    fn close(&mut self, next_start: Seconds) {
        let width = self.settings.bucket_width;
        self.closed.push_back(Closed {
            start: self.open_start,
            zeros_only: false,
        });
        if self.settings.counter_expiry > 0 {
            let skipped = (next_start - self.open_start) / width - 1;
            for at in (1..=skipped.min(IDLE_BUCKETS_MAX)).rev() {
                self.closed.push_back(Closed {
                    start: next_start - at * width,
                    zeros_only: true,
                });
            }
        }
        self.cursor = Cursor::default();
        self.closed_epoch = self.epoch;
        self.open_start = next_start;
        self.now = self.now.max(next_start);
        self.open ^= 1;
        self.counts.buckets += 1;
    }

    /// Gets ready for [`Aggregator::prefetch_state`]: once for a packet.
    #[inline]
    pub fn find_places(&mut self) {
        let (open, places) = (self.open, &mut self.places);
        places.turn_to(open);
        places.learn(Kind::Counter, &self.counters.halves[open]);
        places.learn(Kind::Gauge, &self.gauges.halves[open]);
        places.learn(Kind::Set, &self.sets.halves[open]);
        places.learn(Kind::Histogram, &self.histograms.halves[open]);
        places.learn(Kind::Timing, &self.timings.halves[open]);
        places.learn(Kind::Distribution, &self.distributions.halves[open]);
    }

    /// Asks for the memory of a context's state. First of three steps, each of which reads what the one before asked for.
    #[inline(always)]
    pub fn prefetch_state(&self, kind: Kind, id: ContextId) {
        prefetch(self.places.address(kind, id.0 as usize));
    }

    /// Second step: the body, for kinds that have one.
    #[inline(always)]
    pub fn prefetch_body(&self, kind: Kind, id: ContextId) {
        match kind {
            Kind::Counter | Kind::Gauge => {}
            Kind::Distribution => {
                prefetch_body(body(&self.distributions.halves[self.open], id.0 as usize));
            }
            _ => self.prefetch_rare_body(kind, id),
        }
    }

    #[inline(never)]
    fn prefetch_rare_body(&self, kind: Kind, id: ContextId) {
        let (at, open) = (id.0 as usize, self.open);
        match kind {
            Kind::Set => {
                if let Some(body) = body(&self.sets.halves[open], at) {
                    let address = std::ptr::from_ref(body).cast::<u8>();
                    prefetch(address);
                    prefetch(address.wrapping_add(64));
                }
            }
            Kind::Histogram => prefetch_body(body(&self.histograms.halves[open], at)),
            Kind::Timing => prefetch_body(body(&self.timings.halves[open], at)),
            Kind::Counter | Kind::Gauge | Kind::Distribution => {}
        }
    }

    /// Third step: where the next sample will be written.
    #[inline(always)]
    pub fn prefetch_sample(&self, kind: Kind, id: ContextId) {
        if kind == Kind::Distribution
            && let Some(body) = body(&self.distributions.halves[self.open], id.0 as usize)
        {
            prefetch(body.next_key());
        }
    }

    /// Adds to a counter. `value` has its sample rate applied.
    #[inline]
    pub fn counter(&mut self, id: ContextId, value: f64) {
        let at = id.0 as usize;
        if at >= self.counters.halves[0].len() {
            self.counters.grow_to(at + 1);
        }
        let (now, start) = (self.now, self.open_start);
        let counter = &mut self.counters.halves[self.open][at];
        if counter.seen < start {
            *counter = Counter {
                sum: 0.0,
                seen: now,
                seen_before: counter.seen,
            };
        }
        counter.sum += value;
        counter.seen = now;
        self.counts.samples[Kind::Counter as usize] += 1;
    }

    /// Sets a gauge. `received`: monotonic nanoseconds of the batch it came in.
    #[inline]
    pub fn gauge(&mut self, id: ContextId, value: f64, received: u64) {
        let at = id.0 as usize;
        if at >= self.gauges.halves[0].len() {
            self.gauges.grow_to(at + 1);
        }
        self.gauges.halves[self.open][at] = Gauge {
            value,
            received,
            seen: self.now,
        };
        self.counts.samples[Kind::Gauge as usize] += 1;
    }

    /// The value a gauge had last, in the open bucket or the one before it.
    pub fn last_gauge(&self, id: ContextId) -> Option<f64> {
        let at = id.0 as usize;
        if at >= self.gauges.halves[0].len() {
            return None;
        }
        let [a, b] = &self.gauges.halves;
        let newest = if a[at].seen >= b[at].seen { &a[at] } else { &b[at] };
        (newest.seen > 0).then_some(newest.value)
    }

    /// Adds a member to a set.
    pub fn set(&mut self, id: ContextId, member: &[u8]) {
        let body = boxed(&mut self.sets, self.open, id, self.now);
        self.counts.sets_estimated += u64::from(body.insert(member));
        self.counts.samples[Kind::Set as usize] += 1;
    }

    /// Adds a sample to a histogram or timing, with weight `1 / rate`.
    #[inline]
    pub fn histogram(&mut self, kind: Kind, id: ContextId, value: f64, weight: f64) {
        let states = if kind == Kind::Timing {
            &mut self.timings
        } else {
            &mut self.histograms
        };
        let body = boxed(states, self.open, id, self.now);
        self.counts.histograms_folded += u64::from(body.insert(value, weight));
        self.counts.samples[kind as usize] += 1;
    }

    /// Adds a sample to a distribution, with weight `1 / rate`. Counts are integers: what a weight has beyond them is carried to
    /// the context's next sample, so that a bucket's count is right to less than one.
    #[inline]
    pub fn distribution(&mut self, id: ContextId, value: f64, weight: f64) {
        let body = boxed(&mut self.distributions, self.open, id, self.now);
        if weight == 1.0 {
            body.insert_one(value);
        } else {
            let at = id.0 as usize;
            if at >= self.rests.len() {
                self.rests.grow_to(at + 1);
            }
            let due = weight + self.rests[at];
            let whole = due.floor();
            self.rests[at] = due - whole;
            if whole > 0.0 {
                body.insert(value, whole as u64);
            }
        }
        self.counts.samples[Kind::Distribution as usize] += 1;
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
        boxed(&mut self.distributions, self.open, id, self.now).insert_each(values);
        self.counts.samples[Kind::Distribution as usize] += values.len() as u64;
    }

    /// The copy of a histogram's sample in its distribution. Counted apart: it is no sample that anyone sent.
    pub fn copied_distribution(&mut self, id: ContextId, value: f64, weight: f64) {
        self.distribution(id, value, weight);
        self.counts.samples[Kind::Distribution as usize] -= 1;
        self.counts.copied += 1;
    }

    /// An empty batch for what is passed on without aggregation. Its sequence is one of its own.
    pub fn passing_batch(&self, sequence: u64) -> Batch {
        let source = Source {
            worker: self.worker,
            sequence,
        };
        Batch::new(
            source,
            self.bucket(self.epoch, self.open_start),
            self.settings.hostname.clone(),
        )
    }

    /// Whether a closed bucket waits to be handed over.
    pub fn is_draining(&self) -> bool {
        !self.closed.is_empty()
    }

    /// Hands over the next part of the closed bucket: looks at up to `contexts_max` contexts, removes those that have
    /// expired, and returns a batch when one is complete.
    pub fn drain(&mut self, contexts: &mut Contexts, contexts_max: usize) -> Option<Batch> {
        let closed = *self.closed.front()?;
        let mut budget = contexts_max;
        loop {
            if self.cursor.partition == PARTITIONS {
                return Some(self.finish_bucket(contexts, closed));
            }
            if self.cursor.position == 0 {
                self.begin_partition(closed);
            }
            while let Some(&live) = contexts.live(self.cursor.partition).get(self.cursor.position) {
                if budget == 0 {
                    return None;
                }
                budget -= 1;
                let expired = self.emit(contexts, live.kind(), live.id(), closed);
                if expired {
                    self.forget(live.kind(), live.id());
                    contexts.remove(self.cursor.partition, self.cursor.position);
                    self.counts.contexts_expired += 1;
                } else {
                    self.cursor.position += 1;
                }
            }
            // As many shards of aliases as partitions of contexts: one round a flush.
            if !closed.zeros_only {
                contexts.sweep_aliases();
            }
            self.cursor.partition += 1;
            self.cursor.position = 0;
            let rows = self.batch.as_ref().map_or(0, Batch::len);
            if rows >= BATCH_ROWS && self.cursor.partition < PARTITIONS {
                return self.take_batch(false);
            }
            // An empty partition must not make the loop endless work either.
            budget = budget.saturating_sub(1);
            if budget == 0 && self.cursor.partition < PARTITIONS {
                return None;
            }
        }
    }

    fn begin_partition(&mut self, closed: Closed) {
        if self.batch.is_none() {
            self.sequence += 1;
            let source = Source {
                worker: self.worker,
                sequence: self.sequence,
            };
            self.batch = Some(Batch::new(
                source,
                self.bucket(self.closed_epoch, closed.start),
                self.settings.hostname.clone(),
            ));
            self.writer.begin();
        }
        let batch = self.batch.as_mut().expect("made above");
        if batch.partitions.is_empty() || batch.partitions.end == self.cursor.partition {
            batch.begin_partition(self.cursor.partition);
        }
    }

    fn take_batch(&mut self, last: bool) -> Option<Batch> {
        let mut batch = self.batch.take()?;
        batch.last = last;
        self.cursor.rows += batch.len() as u64;
        self.counts.rows += batch.len() as u64;
        batch.rows_of_bucket = self.cursor.rows;
        Some(batch)
    }

    fn finish_bucket(&mut self, contexts: &mut Contexts, closed: Closed) -> Batch {
        let batch = self.take_batch(true).expect("the last partition began one");
        self.closed.pop_front();
        self.cursor = Cursor::default();
        if !closed.zeros_only {
            contexts.expire_loose(self.now.saturating_sub(self.settings.context_expiry));
        }
        if self.closed.is_empty() {
            self.give_back(contexts.compact());
        }
        batch
    }

    /// Forgets state beyond the ids in use.
    fn give_back(&mut self, ids: [usize; Kind::COUNT]) {
        self.counters.truncate(ids[Kind::Counter as usize]);
        self.gauges.truncate(ids[Kind::Gauge as usize]);
        self.sets.truncate(ids[Kind::Set as usize]);
        self.histograms.truncate(ids[Kind::Histogram as usize]);
        self.timings.truncate(ids[Kind::Timing as usize]);
        self.distributions.truncate(ids[Kind::Distribution as usize]);
        self.rests.truncate(ids[Kind::Distribution as usize]);
    }

    /// Clears what a context that takes the same id later must not find.
    fn forget(&mut self, kind: Kind, id: ContextId) {
        let at = id.0 as usize;
        for half in 0..2 {
            match kind {
                Kind::Counter => reset(&mut self.counters.halves[half], at),
                Kind::Gauge => reset(&mut self.gauges.halves[half], at),
                Kind::Set => reset(&mut self.sets.halves[half], at),
                Kind::Histogram => reset(&mut self.histograms.halves[half], at),
                Kind::Timing => reset(&mut self.timings.halves[half], at),
                Kind::Distribution => reset(&mut self.distributions.halves[half], at),
            }
        }
        if kind == Kind::Distribution {
            reset(&mut self.rests, at);
        }
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
            width: self.settings.bucket_width,
        }
    }

    /// Writes the row of one context, if it has one in this bucket. Returns whether the context has expired; one that never
    /// got a sample has.
    fn emit(&mut self, contexts: &Contexts, kind: Kind, id: ContextId, closed: Closed) -> bool {
        let at = id.0 as usize;
        let half = self.open ^ 1;
        let start = closed.start;
        let has_state = !closed.zeros_only;
        let batch = self.batch.as_mut().expect("a partition has begun");
        let writer = &mut self.writer;
        let context = || contexts.get(kind, id);
        // Whether the half that was just closed holds samples of this bucket rather than of one long ago.
        let current = |seen: Seconds| has_state && seen >= start && seen > 0;
        let last_seen = match kind {
            Kind::Counter => {
                let states = &self.counters.halves;
                if at >= states[0].len() {
                    return true;
                }
                let (state, newer) = (states[half][at], states[self.open][at]);
                // What this counter had seen by the end of the bucket.
                let seen_by_then = if newer.seen >= self.open_start {
                    newer.seen_before
                } else {
                    newer.seen
                };
                let seen_by_then = seen_by_then.max(state.seen);
                if current(state.seen) {
                    writer.counter(batch, context(), state.sum);
                } else if seen_by_then > 0
                    && seen_by_then < start
                    && seen_by_then.saturating_add(self.settings.counter_expiry) > start
                {
                    writer.idle_counter(batch, context());
                }
                state.seen.max(newer.seen)
            }
            Kind::Gauge => {
                let states = &self.gauges.halves;
                if at >= states[0].len() {
                    return true;
                }
                let state = states[half][at];
                if current(state.seen) {
                    writer.gauge(batch, context(), state.value, state.received);
                }
                state.seen.max(states[self.open][at].seen)
            }
            Kind::Set => match take_body(&mut self.sets, half, at, has_state) {
                None => return true,
                Some((body, last_seen)) => {
                    if let Some(body) = body {
                        writer.set(batch, context(), body);
                    }
                    last_seen
                }
            },
            Kind::Histogram | Kind::Timing => {
                let states = if kind == Kind::Timing {
                    &mut self.timings
                } else {
                    &mut self.histograms
                };
                match take_body(states, half, at, has_state) {
                    None => return true,
                    Some((body, last_seen)) => {
                        if let Some(body) = body {
                            writer.histogram(batch, context(), kind, body);
                        }
                        last_seen
                    }
                }
            }
            Kind::Distribution => match take_body(&mut self.distributions, half, at, has_state) {
                None => return true,
                Some((body, last_seen)) => {
                    if let Some(mut body) = body
                        && !body.is_empty()
                    {
                        body.seal();
                        writer.distribution(batch, context(), body);
                    }
                    last_seen
                }
            },
        };
        self.is_expired(contexts, kind, id, last_seen)
    }

    fn is_expired(&self, contexts: &Contexts, kind: Kind, id: ContextId, last_seen: Seconds) -> bool {
        // Buckets made up for a gap in time still need the counters that were alive in it.
        if last_seen >= self.open_start || self.closed.len() > 1 {
            return false;
        }
        let mut expiry = self.settings.context_expiry;
        if kind == Kind::Counter {
            expiry = expiry.saturating_add(self.settings.counter_expiry);
        } else if kind == Kind::Distribution && contexts.get(kind, id).is_copy() {
            // The histogram refers to its copy; it is looked at at the latest two buckets later.
            expiry = expiry.saturating_add(2 * self.settings.bucket_width);
        }
        last_seen.saturating_add(expiry) < self.now
    }

    /// Bytes of state, slack included, without the batch in the making. What the bodies hold is known from the last complete
    /// census.
    pub fn heap_bytes(&self) -> usize {
        self.counters.heap_bytes()
            + self.gauges.heap_bytes()
            + self.sets.heap_bytes()
            + self.histograms.heap_bytes()
            + self.timings.heap_bytes()
            + self.distributions.heap_bytes()
            + self.rests.heap_bytes()
            + self.census.complete
    }

    /// Goes on counting what the bodies hold, looking at up to `states_max` of them: reading all would stop a worker with a
    /// million contexts for many milliseconds.
    pub fn take_census(&mut self, mut states_max: usize) {
        while states_max > 0 {
            let at = self.census.position;
            let (bytes, seen, len) = match self.census.kind {
                0 => self.sets.body_bytes(at, states_max, MemberSet::heap_bytes),
                1 => self.histograms.body_bytes(at, states_max, Histogram::heap_bytes),
                2 => self.timings.body_bytes(at, states_max, Histogram::heap_bytes),
                _ => self.distributions.body_bytes(at, states_max, Sketch::heap_bytes),
            };
            states_max -= seen;
            self.census.running += bytes;
            self.census.position += seen;
            if self.census.position < len {
                continue;
            }
            self.census.position = 0;
            self.census.kind += 1;
            if self.census.kind == 4 {
                self.census = Census {
                    complete: self.census.running,
                    ..Census::default()
                };
                return;
            }
        }
    }
}

#[inline]
fn prefetch_body<T>(body: Option<&T>) {
    if let Some(body) = body {
        prefetch(std::ptr::from_ref(body).cast());
    }
}

#[inline]
fn body<T>(states: &Chunked<Boxed<T>>, at: usize) -> Option<&T>
where
    Boxed<T>: Default,
{
    (at < states.len()).then(|| states[at].body.as_deref()).flatten()
}

fn reset<T: Default>(states: &mut Chunked<T>, at: usize) {
    if at < states.len() {
        states[at] = T::default();
    }
}

/// The body of the open bucket, made when this is its first sample.
#[inline]
fn boxed<T: Default>(states: &mut Halves<Boxed<T>>, open: usize, id: ContextId, now: Seconds) -> &mut T
where
    Boxed<T>: Default,
{
    let at = id.0 as usize;
    if at >= states.halves[0].len() {
        states.grow_to(at + 1);
    }
    let state = &mut states.halves[open][at];
    state.seen = now;
    state.body.get_or_insert_default()
}

/// Takes the body out of the closed half; also returns when the context was last seen. `None`: it never had state.
#[allow(clippy::type_complexity)]
fn take_body<T>(
    states: &mut Halves<Boxed<T>>,
    half: usize,
    at: usize,
    has_state: bool,
) -> Option<(Option<Box<T>>, Seconds)>
where
    Boxed<T>: Default,
{
    if at >= states.halves[0].len() {
        return None;
    }
    let last_seen = states.halves[0][at].seen.max(states.halves[1][at].seen);
    let body = if has_state {
        states.halves[half][at].body.take()
    } else {
        None
    };
    Some((body, last_seen))
}
