//! The open bucket in the form of records.

use weir_context::ContextId;
use weir_protocol::Kind;
use weir_state::{AgentId, Distribution, ExactSum, Gauge as SavedGauge, State as Record};

use super::{Counter, Gauge, State};
use crate::histogram::Histogram;
use crate::member_set::MemberSet;
use crate::timeline::Seconds;

/// A context's state in the open bucket.
pub(crate) struct Saved {
    /// Time of the last sample, in any bucket.
    pub seen: Seconds,
    pub state: Record,
}

/// Converts times of receipt: the next process may have another monotonic clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stamps {
    /// Unix nanoseconds at which the monotonic clock was zero.
    pub zero: i64,
    pub agent: AgentId,
}

impl State {
    /// `None`: the context never got a sample. The closed half is empty.
    pub fn save(&self, kind: Kind, id: ContextId, open_start: Seconds, stamps: Stamps) -> Option<Saved> {
        let (at, open) = (id.0 as usize, self.open);
        let (seen, state) = match kind {
            Kind::Counter => self.save_counter(at, open_start)?,
            Kind::Gauge => self.save_gauge(at, stamps)?,
            Kind::Set => {
                let members = self.sets.body(open, at).map(MemberSet::saved);
                (self.sets.seen(at), Record::Set(members.unwrap_or_default()))
            }
            Kind::Histogram | Kind::Timing => {
                let states = match kind {
                    Kind::Timing => &self.timings,
                    _ => &self.histograms,
                };
                let samples = states.body(open, at).map(Histogram::saved);
                (states.seen(at), Record::Samples(samples.unwrap_or_default()))
            }
            Kind::Distribution => {
                let rest = if at < self.rests.len() {
                    self.rests[at]
                } else {
                    0.0
                };
                let none = Distribution {
                    rest: ExactSum::from(rest),
                    ..Distribution::default()
                };
                let body = self.distributions.body(open, at);
                let distribution = body.map_or(none, |sketch| Distribution::new(sketch, rest));
                (self.distributions.seen(at), distribution.into())
            }
        };
        (seen > 0).then_some(Saved { seen, state })
    }

    /// Time of a context's last sample, in any bucket; 0 if it has none.
    pub fn seen(&self, kind: Kind, id: ContextId) -> Seconds {
        let at = id.0 as usize;
        match kind {
            Kind::Counter => {
                let [one, other] = &self.counters.halves;
                if at < one.len() {
                    one[at].seen.max(other[at].seen)
                } else {
                    0
                }
            }
            Kind::Gauge => {
                let [one, other] = &self.gauges.halves;
                if at < one.len() {
                    one[at].seen.max(other[at].seen)
                } else {
                    0
                }
            }
            Kind::Set => self.sets.seen(at),
            Kind::Histogram => self.histograms.seen(at),
            Kind::Timing => self.timings.seen(at),
            Kind::Distribution => self.distributions.seen(at),
        }
    }

    fn save_counter(&self, at: usize, open_start: Seconds) -> Option<(Seconds, Record)> {
        let halves = &self.counters.halves;
        if at >= halves[0].len() {
            return None;
        }
        let state = halves[self.open][at];
        let sum = if state.seen >= open_start { state.sum } else { 0.0 };
        let seen = halves[0][at].seen.max(halves[1][at].seen);
        Some((seen, Record::Counter(ExactSum::from(sum))))
    }

    fn save_gauge(&self, at: usize, stamps: Stamps) -> Option<(Seconds, Record)> {
        let halves = &self.gauges.halves;
        if at >= halves[0].len() {
            return None;
        }
        let [one, other] = [halves[0][at], halves[1][at]];
        let newest = if one.seen >= other.seen { one } else { other };
        let received = stamps.zero.saturating_add_unsigned(newest.received);
        let gauge = SavedGauge::new(newest.value, received, stamps.agent);
        Some((newest.seen, Record::Gauge(gauge)))
    }

    /// Adds a context's record to the open bucket.
    pub fn restore(&mut self, kind: Kind, id: ContextId, saved: Saved, open_start: Seconds, stamps: Stamps) {
        let Saved { seen, state } = saved;
        let place = (self.open, id, seen);
        // A context whose last sample was before the bucket is remembered without a value.
        let is_in_bucket = seen >= open_start;
        match state {
            Record::Counter(sum) => self.restore_counter(id, seen, sum.to_f64()),
            Record::Gauge(gauge) => self.restore_gauge(id, seen, &gauge, stamps),
            Record::Set(members) => {
                let body = is_in_bucket.then(|| MemberSet::restored(members));
                self.sets.put(place, &mut self.bytes, body);
            }
            Record::Samples(samples) => {
                let states = match kind {
                    Kind::Timing => &mut self.timings,
                    _ => &mut self.histograms,
                };
                let body = is_in_bucket.then(|| Histogram::restored(&samples));
                states.put(place, &mut self.bytes, body);
            }
            Record::Distribution(distribution) => {
                self.restore_rest(id, distribution.rest.to_f64());
                let body = is_in_bucket.then(|| distribution.sketch());
                self.distributions.put(place, &mut self.bytes, body);
            }
        }
    }

    fn restore_counter(&mut self, id: ContextId, seen: Seconds, sum: f64) {
        let at = id.0 as usize;
        if at >= self.counters.halves[0].len() {
            self.counters.grow_to(at + 1);
        }
        self.counters.halves[self.open][at] = Counter {
            sum,
            seen,
            seen_before: 0,
        };
    }

    fn restore_gauge(&mut self, id: ContextId, seen: Seconds, gauge: &SavedGauge, stamps: Stamps) {
        let at = id.0 as usize;
        if at >= self.gauges.halves[0].len() {
            self.gauges.grow_to(at + 1);
        }
        self.gauges.halves[self.open][at] = Gauge {
            value: gauge.value,
            // Values that this process receives are newer.
            received: gauge.received.saturating_sub(stamps.zero).max(0) as u64,
            seen,
        };
    }

    /// Remainders of several workers may sum to one or more. The excess counts with the next sample.
    fn restore_rest(&mut self, id: ContextId, rest: f64) {
        if rest == 0.0 || !rest.is_finite() {
            return;
        }
        let at = id.0 as usize;
        if at >= self.rests.len() {
            self.rests.grow_to(at + 1);
        }
        self.rests[at] = rest;
    }
}
