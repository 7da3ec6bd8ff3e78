//! What the samples of each context have come to, in arrays indexed by context id. Two halves: samples go into the open one
//! while the closed one is handed over.

use weir_context::{Chunked, ContextId, ContextRef, prefetch};
use weir_protocol::Kind;
use weir_sketch::Sketch;

use crate::flush::{Batch, RowWriter};
use crate::histogram::Histogram;
use crate::member_set::MemberSet;
use crate::places::Places;
use crate::timeline::{Closed, Seconds};

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

impl<T: Default> Halves<Boxed<T>> {
    /// The body of the open bucket, made when this is its first sample.
    #[inline(always)]
    fn body(&mut self, open: usize, id: ContextId, now: Seconds) -> &mut T {
        let at = id.0 as usize;
        if at >= self.halves[0].len() {
            self.grow_to(at + 1);
        }
        let state = &mut self.halves[open][at];
        state.seen = now;
        state.body.get_or_insert_default()
    }

    /// Takes the body out of the closed half; also returns when the context was last seen. `None`: it never had state.
    fn take(&mut self, half: usize, at: usize, has_state: bool) -> Option<(Option<Box<T>>, Seconds)> {
        if at >= self.halves[0].len() {
            return None;
        }
        let last_seen = self.halves[0][at].seen.max(self.halves[1][at].seen);
        let body = has_state.then(|| self.halves[half][at].body.take()).flatten();
        Some((body, last_seen))
    }

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

/// The closed bucket that is handed over, as its rows need it.
#[derive(Clone, Copy)]
pub(crate) struct Closing {
    pub closed: Closed,
    pub open_start: Seconds,
    pub counter_expiry: Seconds,
}

impl Closing {
    /// Whether the half that was just closed holds samples of this bucket rather than of one long ago.
    fn has(&self, seen: Seconds) -> bool {
        !self.closed.zeros_only && seen >= self.closed.start && seen > 0
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

/// What a sample did besides being added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Added {
    Exactly,
    /// It was one too many for its histogram or set to stay exact.
    Estimated,
}

impl From<bool> for Added {
    fn from(estimated: bool) -> Self {
        if estimated {
            Added::Estimated
        } else {
            Added::Exactly
        }
    }
}

/// State by kind.
pub(crate) struct State {
    /// Which half is open.
    open: usize,
    counters: Halves<Counter>,
    gauges: Halves<Gauge>,
    sets: Halves<Boxed<MemberSet>>,
    histograms: Halves<Boxed<Histogram>>,
    timings: Halves<Boxed<Histogram>>,
    distributions: Halves<Boxed<Sketch>>,
    /// Fraction of weight that a distribution carries from one sampled sample to the next.
    rests: Chunked<f64>,
    census: Census,
    places: Places,
}

/// When a sample is added: the second of its receipt, and the start of the open bucket.
#[derive(Clone, Copy)]
pub(crate) struct Moment {
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
            census: Census::default(),
            places: Places::default(),
        }
    }

    /// The halves change roles.
    pub fn turn(&mut self) {
        self.open ^= 1;
    }

    /// Asks for the memory that samples of these contexts will touch, in three steps, each of which reads what the one before
    /// asked for: the state, its body for kinds that have one, and the place in the body where the next sample is written.
    #[inline(always)]
    pub fn look_ahead<const MAX: usize>(&mut self, contexts: impl Iterator<Item = (Kind, ContextId)>) {
        self.find_places();
        // Counters and gauges are done with the first step; of the others there are few.
        let mut deep = [(Kind::Counter, ContextId(0)); MAX];
        let mut deep_count = 0;
        for (kind, id) in contexts {
            prefetch(self.places.address(kind, id.0 as usize));
            deep[deep_count] = (kind, id);
            deep_count += usize::from(!matches!(kind, Kind::Counter | Kind::Gauge));
        }
        for &(kind, id) in &deep[..deep_count] {
            self.prefetch_body(kind, id);
        }
        for &(kind, id) in &deep[..deep_count] {
            self.prefetch_sample(kind, id);
        }
    }

    #[inline]
    fn find_places(&mut self) {
        let (open, places) = (self.open, &mut self.places);
        places.turn_to(open);
        places.learn(Kind::Counter, &self.counters.halves[open]);
        places.learn(Kind::Gauge, &self.gauges.halves[open]);
        places.learn(Kind::Set, &self.sets.halves[open]);
        places.learn(Kind::Histogram, &self.histograms.halves[open]);
        places.learn(Kind::Timing, &self.timings.halves[open]);
        places.learn(Kind::Distribution, &self.distributions.halves[open]);
    }

    #[inline(always)]
    fn prefetch_body(&self, kind: Kind, id: ContextId) {
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

    #[inline(always)]
    fn prefetch_sample(&self, kind: Kind, id: ContextId) {
        if kind == Kind::Distribution
            && let Some(body) = body(&self.distributions.halves[self.open], id.0 as usize)
        {
            prefetch(body.next_key());
        }
    }

    #[inline(always)]
    pub fn counter(&mut self, id: ContextId, value: f64, moment: Moment) {
        let at = id.0 as usize;
        if at >= self.counters.halves[0].len() {
            self.counters.grow_to(at + 1);
        }
        let counter = &mut self.counters.halves[self.open][at];
        if counter.seen < moment.open_start {
            *counter = Counter {
                sum: 0.0,
                seen: moment.now,
                seen_before: counter.seen,
            };
        }
        counter.sum += value;
        counter.seen = moment.now;
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

    #[inline(always)]
    pub fn set(&mut self, id: ContextId, member: &[u8], now: Seconds) -> Added {
        self.sets.body(self.open, id, now).insert(member).into()
    }

    #[inline(always)]
    pub fn histogram(&mut self, kind: Kind, id: ContextId, value: f64, weight: f64, now: Seconds) -> Added {
        let states = if kind == Kind::Timing {
            &mut self.timings
        } else {
            &mut self.histograms
        };
        states.body(self.open, id, now).insert(value, weight).into()
    }

    #[inline(always)]
    pub fn distribution(&mut self, id: ContextId, value: f64, weight: f64, now: Seconds) {
        let body = self.distributions.body(self.open, id, now);
        if weight == 1.0 {
            body.insert_one(value);
            return;
        }
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

    /// [`State::distribution`] for several values that stand for one sample each.
    #[inline(always)]
    pub fn distribution_values(&mut self, id: ContextId, values: &[f64], now: Seconds) {
        self.distributions.body(self.open, id, now).insert_each(values);
    }

    /// Writes the row of one context, if it has one in the closed bucket. Returns when the context was last seen; `None`: it
    /// never got a sample.
    pub fn write(
        &mut self,
        context: ContextRef<'_>,
        kind: Kind,
        id: ContextId,
        bucket: &Closing,
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
                if bucket.has(state.seen) {
                    writer.gauge(batch, context, state.value, state.received);
                }
                Some(state.seen.max(newer.seen))
            }
            Kind::Set => {
                let (body, last_seen) = self.sets.take(half, at, has_state)?;
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
                let (body, last_seen) = states.take(half, at, has_state)?;
                if let Some(body) = body {
                    writer.histogram(batch, context, kind, body);
                }
                Some(last_seen)
            }
            Kind::Distribution => {
                let (body, last_seen) = self.distributions.take(half, at, has_state)?;
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
        bucket: &Closing,
        (writer, batch): (&mut RowWriter, &mut Batch),
    ) -> Option<Seconds> {
        let states = &self.counters.halves;
        if at >= states[0].len() {
            return None;
        }
        let (state, newer) = (states[self.open ^ 1][at], states[self.open][at]);
        // What this counter had seen by the end of the bucket.
        let seen_by_then = if newer.seen >= bucket.open_start {
            newer.seen_before
        } else {
            newer.seen
        };
        let seen_by_then = seen_by_then.max(state.seen);
        let start = bucket.closed.start;
        if bucket.has(state.seen) {
            writer.counter(batch, context, state.sum);
        } else if seen_by_then > 0
            && seen_by_then < start
            && seen_by_then.saturating_add(bucket.counter_expiry) > start
        {
            writer.idle_counter(batch, context);
        }
        Some(state.seen.max(newer.seen))
    }

    /// Clears what a context that takes the same id later must not find.
    pub fn forget(&mut self, kind: Kind, id: ContextId) {
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

    /// Forgets state beyond the ids in use.
    pub fn truncate(&mut self, ids: [usize; Kind::COUNT]) {
        self.counters.truncate(ids[Kind::Counter as usize]);
        self.gauges.truncate(ids[Kind::Gauge as usize]);
        self.sets.truncate(ids[Kind::Set as usize]);
        self.histograms.truncate(ids[Kind::Histogram as usize]);
        self.timings.truncate(ids[Kind::Timing as usize]);
        self.distributions.truncate(ids[Kind::Distribution as usize]);
        self.rests.truncate(ids[Kind::Distribution as usize]);
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
