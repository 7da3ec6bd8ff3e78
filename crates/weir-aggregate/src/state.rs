//! Aggregation state of contexts, in arrays indexed by context id. There are two halves: samples go into the open one while the closed one
//! is handed over.

use weir_context::{Chunked, ContextId, ContextRef, LiveContext, prefetch, prefetch_value};
use weir_protocol::Kind;
use weir_sketch::{Bin, Sketch};

use crate::addresses::StateAddresses;
use crate::bodies::{BodyBytes, Boxed, Halves};
use crate::flush::{Batch, RowWriter};
use crate::histogram::Histogram;
use crate::member_set::MemberSet;
use crate::timeline::{Closed, Seconds};

mod saved;

pub(crate) use saved::{Saved, Stamps};

#[derive(Clone, Copy, Default)]
struct Counter {
    sum: f64,
    seen: Seconds,
    /// Last sample before the bucket of `seen`, as far as this half knows.
    seen_before: Seconds,
}

#[derive(Clone, Copy, Default)]
struct Gauge {
    value: f64,
    received: u64,
    seen: Seconds,
}

/// The closed bucket during its hand-over.
#[derive(Clone, Copy)]
pub(crate) struct ClosedBucket {
    pub closed: Closed,
    pub open_start: Seconds,
    pub counter_expiry: Seconds,
}

impl ClosedBucket {
    /// Whether the closed half has samples of this bucket, not of an earlier one.
    fn contains(&self, seen: Seconds) -> bool {
        !self.closed.zeros_only && seen >= self.closed.start && seen > 0
    }
}

/// A sketch that its sender has made: ascending bins that add up to the count, none of them empty.
#[derive(Clone, Copy, Debug)]
pub struct SketchParts<'a> {
    pub count: u64,
    pub sum: f64,
    pub min: f64,
    pub max: f64,
    pub bins: &'a [Bin],
}

impl SketchParts<'_> {
    /// The same as a sketch of its own.
    pub fn to_sketch(self) -> Sketch {
        let mut sketch = Sketch::new();
        sketch.merge_parts(self.count, (self.sum, self.min, self.max), self.bins);
        sketch
    }
}

/// Side effects of adding a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AddResult {
    Exact,
    /// This sample ended the exactness of its histogram or set.
    Estimated,
}

impl From<bool> for AddResult {
    fn from(estimated: bool) -> Self {
        if estimated {
            AddResult::Estimated
        } else {
            AddResult::Exact
        }
    }
}

/// State by kind.
pub(crate) struct State {
    /// The open half.
    open: usize,
    counters: Halves<Counter>,
    gauges: Halves<Gauge>,
    sets: Halves<Boxed<MemberSet>>,
    histograms: Halves<Boxed<Histogram>>,
    timings: Halves<Boxed<Histogram>>,
    distributions: Halves<Boxed<Sketch>>,
    /// Fraction of weight that a distribution carries from one sample to the next.
    rests: Chunked<f64>,
    bytes: BodyBytes,
    addresses: StateAddresses,
}

/// The time of an addition: the second of receipt, and the start of the open bucket.
#[derive(Clone, Copy)]
pub(crate) struct SampleTime {
    pub now: Seconds,
    pub open_start: Seconds,
}

impl State {
    pub fn new() -> Self {
        State {
            open: 0,
            counters: Halves::new(),
            gauges: Halves::new(),
            sets: Halves::new(),
            histograms: Halves::new(),
            timings: Halves::new(),
            distributions: Halves::new(),
            rests: Chunked::new(),
            bytes: BodyBytes::new(usize::MAX),
            addresses: StateAddresses::default(),
        }
    }

    /// Swaps the halves.
    pub fn swap_halves(&mut self) {
        self.bytes.close_bucket();
        self.open ^= 1;
    }

    /// Prefetches the state that a sample of this context will touch. Returns whether the state has a body, whose memory takes two more
    /// steps: [`State::prefetch_bodies`], then [`State::prefetch_samples`], each of which reads what the one before it prefetched.
    #[inline(always)]
    pub fn prefetch_state(&self, kind: Kind, id: ContextId) -> bool {
        prefetch(self.addresses.address(kind, id.0 as usize));
        !matches!(kind, Kind::Counter | Kind::Gauge)
    }

    #[inline(always)]
    pub fn prefetch_bodies(&self, contexts: &[(Kind, ContextId)]) {
        for &(kind, id) in contexts {
            self.prefetch_body(kind, id);
        }
    }

    /// Prefetches the position of the next sample in the body.
    #[inline(always)]
    pub fn prefetch_samples(&self, contexts: &[(Kind, ContextId)]) {
        for &(kind, id) in contexts {
            self.prefetch_sample(kind, id);
        }
    }

    /// Prefetches the memory for writing the rows of these contexts.
    pub fn prefetch_rows(&self, live: &[LiveContext]) {
        self.prefetch_half(live, self.open ^ 1);
    }

    /// Prefetches the memory that [`State::save`] reads.
    pub fn prefetch_saved(&self, live: &[LiveContext]) {
        self.prefetch_half(live, self.open);
        for live in live {
            self.prefetch_rare_body(live.kind(), live.id());
        }
    }

    /// Prefetches the state in both halves, then the bodies of one half, then the memory that those point to.
    fn prefetch_half(&self, live: &[LiveContext], half: usize) {
        for live in live {
            let (kind, at) = (live.kind(), live.id().0 as usize);
            match kind {
                Kind::Counter => self.counters.prefetch(at),
                Kind::Gauge => self.gauges.prefetch(at),
                Kind::Set => self.sets.prefetch(at),
                Kind::Histogram => self.histograms.prefetch(at),
                Kind::Timing => self.timings.prefetch(at),
                Kind::Distribution => self.distributions.prefetch(at),
            }
        }
        let deep = || {
            let sketches = live.iter().filter(|live| live.kind() == Kind::Distribution);
            sketches.filter_map(|live| self.distributions.body(half, live.id().0 as usize))
        };
        deep().for_each(prefetch_value);
        deep().for_each(|body| prefetch(body.next_key()));
    }

    /// Updates what [`State::prefetch_state`] knows of the open half.
    #[inline]
    pub fn find_addresses(&mut self) {
        let (open, addresses) = (self.open, &mut self.addresses);
        addresses.select_half(open);
        addresses.update(Kind::Counter, &self.counters.halves[open]);
        addresses.update(Kind::Gauge, &self.gauges.halves[open]);
        addresses.update(Kind::Set, &self.sets.halves[open]);
        addresses.update(Kind::Histogram, &self.histograms.halves[open]);
        addresses.update(Kind::Timing, &self.timings.halves[open]);
        addresses.update(Kind::Distribution, &self.distributions.halves[open]);
    }

    #[inline(always)]
    fn prefetch_body(&self, kind: Kind, id: ContextId) {
        match kind {
            Kind::Counter | Kind::Gauge => {}
            Kind::Distribution => {
                let at = id.0 as usize;
                prefetch_body(self.distributions.body(self.open, at));
                prefetch(self.rests.address(at));
            }
            _ => self.prefetch_rare_body(kind, id),
        }
    }

    #[inline(never)]
    fn prefetch_rare_body(&self, kind: Kind, id: ContextId) {
        let (at, open) = (id.0 as usize, self.open);
        match kind {
            Kind::Set => prefetch_body(self.sets.body(open, at)),
            Kind::Histogram => prefetch_body(self.histograms.body(open, at)),
            Kind::Timing => prefetch_body(self.timings.body(open, at)),
            Kind::Counter | Kind::Gauge | Kind::Distribution => {}
        }
    }

    #[inline(always)]
    fn prefetch_sample(&self, kind: Kind, id: ContextId) {
        if kind == Kind::Distribution {
            if let Some(body) = self.distributions.body(self.open, id.0 as usize) {
                prefetch(body.next_key());
            }
        } else {
            self.prefetch_rare_sample(kind, id);
        }
    }

    #[inline(never)]
    fn prefetch_rare_sample(&self, kind: Kind, id: ContextId) {
        let (at, open) = (id.0 as usize, self.open);
        let histogram = match kind {
            Kind::Histogram => self.histograms.body(open, at),
            Kind::Timing => self.timings.body(open, at),
            // For sets see `State::prefetch_member`.
            Kind::Set | Kind::Counter | Kind::Gauge | Kind::Distribution => None,
        };
        if let Some(histogram) = histogram {
            prefetch(histogram.next_sample());
        }
    }

    #[inline(always)]
    pub fn counter(&mut self, id: ContextId, value: f64, sample_time: SampleTime) {
        let at = id.0 as usize;
        if at >= self.counters.halves[0].len() {
            self.counters.grow_to(at + 1);
        }
        let counter = &mut self.counters.halves[self.open][at];
        if counter.seen < sample_time.open_start {
            *counter = Counter {
                sum: 0.0,
                seen: sample_time.now,
                seen_before: counter.seen,
            };
        }
        counter.sum += value;
        counter.seen = sample_time.now;
    }

    #[inline(always)]
    pub fn gauge(&mut self, id: ContextId, value: f64, received: u64, now: Seconds) {
        let at = id.0 as usize;
        if at >= self.gauges.halves[0].len() {
            self.gauges.grow_to(at + 1);
        }
        self.gauges.halves[self.open][at] = Gauge {
            value,
            received,
            seen: now,
        };
    }

    /// [`State::gauge`] for a value that was measured earlier: a newer one of this bucket stays.
    pub fn gauge_measured(&mut self, id: ContextId, value: f64, measured: u64, sample_time: SampleTime) {
        let at = id.0 as usize;
        if at >= self.gauges.halves[0].len() {
            self.gauges.grow_to(at + 1);
        }
        let gauge = &mut self.gauges.halves[self.open][at];
        if gauge.seen < sample_time.open_start || gauge.received <= measured {
            (gauge.value, gauge.received) = (value, measured);
        }
        gauge.seen = sample_time.now;
    }

    /// The last value of a gauge, unless its last sample was before `oldest`.
    pub fn last_gauge(&self, id: ContextId, oldest: Seconds) -> Option<f64> {
        let at = id.0 as usize;
        if at >= self.gauges.halves[0].len() {
            return None;
        }
        let [a, b] = &self.gauges.halves;
        let newest = if a[at].seen >= b[at].seen { &a[at] } else { &b[at] };
        (newest.seen > 0 && newest.seen >= oldest).then_some(newest.value)
    }

    /// Prefetches the place of a member with this hash.
    #[inline(always)]
    pub fn prefetch_member(&self, id: ContextId, hash: u64) {
        if let Some(body) = self.sets.body(self.open, id.0 as usize) {
            prefetch(body.address(hash));
        }
    }

    /// `hash`: of [`MemberSet::hash`].
    #[inline(always)]
    pub fn set(&mut self, id: ContextId, hash: u64, member: &[u8], now: Seconds) -> AddResult {
        let bound = self.bytes.set_bound();
        self.sets
            .add((self.open, id, now), &mut self.bytes, |set| {
                set.insert_hashed(hash, member, bound)
            })
            .into()
    }

    #[inline(always)]
    pub fn histogram(
        &mut self,
        kind: Kind,
        id: ContextId,
        value: f64,
        weight: f64,
        now: Seconds,
    ) -> AddResult {
        let states = if kind == Kind::Timing {
            &mut self.timings
        } else {
            &mut self.histograms
        };
        let samples_max = self.bytes.samples_max();
        states
            .add((self.open, id, now), &mut self.bytes, |histogram| {
                histogram.insert_within(value, weight, samples_max)
            })
            .into()
    }

    #[inline(always)]
    pub fn distribution(&mut self, id: ContextId, value: f64, weight: f64, now: Seconds) {
        let whole = if weight == 1.0 { 1 } else { self.whole(id, weight) };
        self.distributions
            .add((self.open, id, now), &mut self.bytes, |sketch| {
                sketch.insert(value, whole);
                false
            });
    }

    /// The integer part of a weight plus the remainder of the context's previous sample.
    fn whole(&mut self, id: ContextId, weight: f64) -> u64 {
        let at = id.0 as usize;
        if at >= self.rests.len() {
            self.rests.grow_to(at + 1);
        }
        let due = weight + self.rests[at];
        let whole = due.floor();
        self.rests[at] = due - whole;
        whole as u64
    }

    /// [`State::distribution`] for several values with weight one.
    #[inline(always)]
    pub fn distribution_values(&mut self, id: ContextId, values: &[f64], now: Seconds) {
        self.distributions
            .add((self.open, id, now), &mut self.bytes, |sketch| {
                sketch.insert_each(values);
                false
            });
    }

    /// Adds a sketch that its sender has made.
    pub fn sketch(&mut self, id: ContextId, parts: SketchParts<'_>, now: Seconds) {
        let SketchParts {
            count,
            sum,
            min,
            max,
            bins,
        } = parts;
        self.distributions
            .add((self.open, id, now), &mut self.bytes, |sketch| {
                sketch.merge_parts(count, (sum, min, max), bins);
                false
            });
    }

    /// Writes the row of one context, if it has one in the closed bucket. Returns when the context was last seen. `None`: never.
    pub fn write(
        &mut self,
        context: ContextRef<'_>,
        kind: Kind,
        id: ContextId,
        bucket: &ClosedBucket,
        (writer, batch): (&mut RowWriter, &mut Batch),
    ) -> Option<Seconds> {
        let (at, half, has_state) = (id.0 as usize, self.open ^ 1, !bucket.closed.zeros_only);
        match kind {
            Kind::Counter => self.write_counter(context, at, bucket, (writer, batch)),
            Kind::Gauge => {
                let states = &self.gauges.halves;
                if at >= states[0].len() {
                    return None;
                }
                let (state, newer) = (states[half][at], states[self.open][at]);
                if bucket.contains(state.seen) {
                    writer.gauge(batch, context, state.value, state.received);
                }
                Some(state.seen.max(newer.seen))
            }
            Kind::Set => {
                let (body, last_seen) = self.sets.take(half, at, has_state, &mut self.bytes)?;
                if let Some(body) = body {
                    writer.set(batch, context, body);
                }
                Some(last_seen)
            }
            Kind::Histogram | Kind::Timing => {
                let states = match kind {
                    Kind::Timing => &mut self.timings,
                    _ => &mut self.histograms,
                };
                let (body, last_seen) = states.take(half, at, has_state, &mut self.bytes)?;
                if let Some(body) = body {
                    writer.histogram(batch, context, kind, body);
                }
                Some(last_seen)
            }
            Kind::Distribution => {
                let (body, last_seen) = self.distributions.take(half, at, has_state, &mut self.bytes)?;
                if let Some(mut body) = body
                    && !body.is_empty()
                {
                    body.seal();
                    writer.distribution(batch, context, body);
                }
                Some(last_seen)
            }
        }
    }

    fn write_counter(
        &mut self,
        context: ContextRef<'_>,
        at: usize,
        bucket: &ClosedBucket,
        (writer, batch): (&mut RowWriter, &mut Batch),
    ) -> Option<Seconds> {
        let states = &self.counters.halves;
        if at >= states[0].len() {
            return None;
        }
        let (state, newer) = (states[self.open ^ 1][at], states[self.open][at]);
        // The last sample of this counter by the end of the bucket.
        let seen_by_then = if newer.seen >= bucket.open_start {
            newer.seen_before
        } else {
            newer.seen
        };
        let seen_by_then = seen_by_then.max(state.seen);
        let start = bucket.closed.start;
        if bucket.contains(state.seen) {
            writer.counter(batch, context, state.sum);
        } else if seen_by_then > 0
            && seen_by_then < start
            && seen_by_then.saturating_add(bucket.counter_expiry) > start
        {
            writer.idle_counter(batch, context);
        }
        Some(state.seen.max(newer.seen))
    }

    /// Clears the state, because another context may get this id.
    pub fn forget(&mut self, kind: Kind, id: ContextId) {
        let at = id.0 as usize;
        match kind {
            Kind::Counter => self.counters.reset(at),
            Kind::Gauge => self.gauges.reset(at),
            Kind::Set => self.sets.reset_body(at, &mut self.bytes),
            Kind::Histogram => self.histograms.reset_body(at, &mut self.bytes),
            Kind::Timing => self.timings.reset_body(at, &mut self.bytes),
            Kind::Distribution => {
                self.distributions.reset_body(at, &mut self.bytes);
                if at < self.rests.len() {
                    self.rests[at] = 0.0;
                }
            }
        }
    }

    /// Frees state beyond the ids in use.
    pub fn truncate(&mut self, ids: [usize; Kind::COUNT]) {
        self.counters.truncate(ids[Kind::Counter as usize]);
        self.gauges.truncate(ids[Kind::Gauge as usize]);
        self.sets.truncate(ids[Kind::Set as usize]);
        self.histograms.truncate(ids[Kind::Histogram as usize]);
        self.timings.truncate(ids[Kind::Timing as usize]);
        self.distributions.truncate(ids[Kind::Distribution as usize]);
        self.rests.truncate(ids[Kind::Distribution as usize]);
    }

    /// Sets the byte limit of bodies. Above it histograms are folded and sets estimated earlier. Above `squeeze_from` every body is kept
    /// small.
    pub fn set_bytes_max(&mut self, bytes: usize, squeeze_from: usize) {
        self.bytes.set_max(bytes, squeeze_from);
    }

    pub fn squeezed(&self) -> u64 {
        self.bytes.squeezed()
    }

    /// Bytes of bodies alone.
    #[inline(always)]
    pub fn body_bytes(&self) -> usize {
        self.bytes.live()
    }

    /// Bytes of state, slack included, without the batch under construction.
    pub fn heap_bytes(&self) -> usize {
        self.array_bytes() + self.bytes.live()
    }

    /// Bytes of state now, or expected by the end of the bucket if it fills up like the last one.
    pub fn expected_bytes(&self) -> usize {
        self.array_bytes() + self.bytes.expected(self.bodies())
    }

    /// Contexts that may have a body.
    fn bodies(&self) -> usize {
        self.sets.len() + self.histograms.len() + self.timings.len() + self.distributions.len()
    }

    fn array_bytes(&self) -> usize {
        self.counters.heap_bytes()
            + self.gauges.heap_bytes()
            + self.sets.heap_bytes()
            + self.histograms.heap_bytes()
            + self.timings.heap_bytes()
            + self.distributions.heap_bytes()
            + self.rests.heap_bytes()
    }
}

#[inline]
fn prefetch_body<T>(body: Option<&T>) {
    if let Some(body) = body {
        prefetch_value(body);
    }
}
