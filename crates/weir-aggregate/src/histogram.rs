use std::borrow::Cow;

use weir_sketch::Sketch;
use weir_state::{Extremes, Folded as SavedFolded, Samples};

/// Samples kept exactly in one context and bucket. With more, the values are folded into a sketch.
pub const HISTOGRAM_SAMPLES_MAX: usize = 4096;

/// The samples of one histogram or timing in one bucket. Minimum, maximum, sum and total weight are always exact. Quantiles are exact up to
/// [`HISTOGRAM_SAMPLES_MAX`] samples; beyond, they have the relative error of the sketch (0.78 %).
#[derive(Clone, Debug, Default)]
pub struct Histogram {
    values: Vec<f64>,
    /// Weight of each value, `1 / rate`. Empty while all are one.
    weights: Vec<f64>,
    folded: Option<Box<Folded>>,
}

#[derive(Clone, Debug)]
struct Folded {
    sketch: Sketch,
    totals: Totals,
    /// Weight that the integer counts of the sketch do not contain yet.
    rest: f64,
}

/// Values that stay exact for any number of samples.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Totals {
    pub min: f64,
    pub max: f64,
    /// Sum of value times weight.
    pub sum: f64,
    /// Sum of the weights.
    pub weight: f64,
    /// Sum of the integer parts of the weights, for the Datadog Agent's rule.
    pub whole_weight: f64,
}

impl Totals {
    const EMPTY: Totals = Totals {
        min: f64::INFINITY,
        max: f64::NEG_INFINITY,
        sum: 0.0,
        weight: 0.0,
        whole_weight: 0.0,
    };

    fn add(&mut self, value: f64, weight: f64) {
        self.min = self.min.min(value);
        self.max = self.max.max(value);
        self.sum += value * weight;
        self.weight += weight;
        self.whole_weight += weight.trunc();
    }

    fn merge(&mut self, other: &Totals) {
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
        self.sum += other.sum;
        self.weight += other.weight;
        self.whole_weight += other.whole_weight;
    }
}

/// Treatment of sample rates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Weights {
    /// `1 / rate`; the count is rounded once, at the end.
    #[default]
    Exact,
    /// The Datadog Agent's rule: `1 / rate` without its fraction, except in the sum.
    Agent,
}

impl Histogram {
    /// Adds one sample. Returns true if this one ended the exactness.
    #[inline]
    pub fn insert(&mut self, value: f64, weight: f64) -> bool {
        self.insert_within(value, weight, HISTOGRAM_SAMPLES_MAX)
    }

    /// [`Histogram::insert`] with another limit on exact samples.
    #[inline]
    pub fn insert_within(&mut self, value: f64, weight: f64, samples_max: usize) -> bool {
        if let Some(folded) = &mut self.folded {
            folded.insert(value, weight);
            return false;
        }
        if self.values.len() >= samples_max {
            self.fold().insert(value, weight);
            return true;
        }
        if weight != 1.0 && self.weights.is_empty() {
            self.weights.resize(self.values.len(), 1.0);
        }
        self.values.push(value);
        if weight != 1.0 || !self.weights.is_empty() {
            self.weights.push(weight);
        }
        false
    }

    /// Address of the next sample, for a prefetch.
    #[inline]
    pub(crate) fn next_sample(&self) -> *const u8 {
        self.values.as_ptr().wrapping_add(self.values.len()).cast()
    }

    /// The exact samples and their weights. Empty once they are folded.
    pub fn samples(&self) -> impl Iterator<Item = (f64, f64)> {
        self.values
            .iter()
            .enumerate()
            .map(|(at, &value)| (value, self.weights.get(at).copied().unwrap_or(1.0)))
    }

    /// A sketch of all samples, which can be merged with others.
    pub fn as_sketch(&self) -> Cow<'_, Sketch> {
        match &self.folded {
            Some(folded) => Cow::Borrowed(&folded.sketch),
            None => {
                let mut folded = Folded::empty();
                for (value, weight) in self.samples() {
                    folded.insert(value, weight);
                }
                Cow::Owned(folded.sketch)
            }
        }
    }

    /// The sketch, once there are too many samples.
    pub fn sketch(&self) -> Option<&Sketch> {
        self.folded.as_ref().map(|folded| &folded.sketch)
    }

    pub fn is_exact(&self) -> bool {
        self.folded.is_none()
    }

    pub fn totals(&self) -> Totals {
        match &self.folded {
            Some(folded) => folded.totals,
            None => {
                let mut totals = Totals::EMPTY;
                for (value, weight) in self.samples() {
                    totals.add(value, weight);
                }
                totals
            }
        }
    }

    /// Number of samples that the weights represent.
    pub fn count(&self, weights: Weights) -> f64 {
        let totals = self.totals();
        match weights {
            Weights::Exact => totals.weight.round(),
            Weights::Agent => totals.whole_weight,
        }
    }

    pub fn average(&self, weights: Weights) -> f64 {
        let totals = self.totals();
        totals.sum
            / match weights {
                Weights::Exact => totals.weight,
                Weights::Agent => totals.whole_weight,
            }
    }

    /// The samples in order, for quantiles.
    pub fn ordered(&self) -> Ordered<'_> {
        let mut samples: Vec<(f64, f64)> = self.samples().collect();
        samples.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
        Ordered {
            samples,
            totals: self.totals(),
            sketch: self.sketch(),
        }
    }

    /// In the form of records.
    pub(crate) fn saved(&self) -> Samples {
        let Some(folded) = &self.folded else {
            return Samples::exact(self.samples());
        };
        let Totals { min, max, .. } = folded.totals;
        Samples::Folded(Box::new(SavedFolded::new(
            &folded.sketch,
            Extremes { min, max },
            folded.totals.sum,
            folded.totals.weight,
            folded.totals.whole_weight,
        )))
    }

    /// From the form of records.
    pub(crate) fn restored(samples: &Samples) -> Self {
        match samples {
            Samples::Exact(samples) => {
                let mut histogram = Histogram::default();
                for &(value, weight, times) in samples.iter() {
                    // A record may come from an agent with another limit.
                    for _ in 0..times.min(HISTOGRAM_SAMPLES_MAX as u64 * 16) {
                        histogram.insert(value, weight);
                    }
                }
                histogram
            }
            Samples::Folded(saved) => Histogram {
                folded: Some(Box::new(Folded::restored(saved))),
                ..Histogram::default()
            },
        }
    }

    pub fn merge(&mut self, other: &Histogram) {
        if let Some(theirs) = &other.folded {
            let mine = self.fold();
            mine.sketch.merge(&theirs.sketch);
            mine.totals.merge(&theirs.totals);
            return;
        }
        for (value, weight) in other.samples() {
            self.insert(value, weight);
        }
    }

    fn fold(&mut self) -> &mut Folded {
        if self.folded.is_none() {
            let mut folded = Folded::empty();
            for (value, weight) in self.samples() {
                folded.insert(value, weight);
            }
            *self = Histogram {
                folded: Some(Box::new(folded)),
                ..Histogram::default()
            };
        }
        self.folded.as_mut().expect("set above")
    }

    /// Reduces memory: folds the samples into a sketch of at most `bins_max` bins. Returns true if they were exact.
    pub fn squeeze(&mut self, bins_max: usize) -> bool {
        let was_exact = self.is_exact();
        self.fold().sketch.coarsen(bins_max);
        was_exact
    }

    pub fn heap_bytes(&self) -> usize {
        (self.values.capacity() + self.weights.capacity()) * size_of::<f64>()
            + self
                .folded
                .as_ref()
                .map_or(0, |folded| size_of::<Folded>() + folded.sketch.heap_bytes())
    }
}

impl Folded {
    fn empty() -> Self {
        Folded {
            sketch: Sketch::default(),
            totals: Totals::EMPTY,
            rest: 0.0,
        }
    }

    fn restored(saved: &SavedFolded) -> Self {
        let sketch = saved.sketch();
        let weight = saved.weight.to_f64();
        let extremes = saved.extremes.unwrap_or(Extremes::of(0.0));
        Folded {
            rest: (weight - sketch.cnt() as f64).clamp(0.0, 1.0 - f64::EPSILON),
            totals: Totals {
                min: extremes.min,
                max: extremes.max,
                sum: saved.sum.to_f64(),
                weight,
                whole_weight: saved.whole_weight.to_f64(),
            },
            sketch,
        }
    }

    fn insert(&mut self, value: f64, weight: f64) {
        self.totals.add(value, weight);
        let due = weight + self.rest;
        let whole = due.floor();
        self.rest = due - whole;
        if whole > 0.0 {
            self.sketch.insert(value, whole as u64);
        }
    }
}

/// Samples sorted by value.
#[derive(Debug)]
pub struct Ordered<'a> {
    samples: Vec<(f64, f64)>,
    totals: Totals,
    sketch: Option<&'a Sketch>,
}

/// Cumulative weights are sums of rounded reciprocals, so a quantile counts as reached within this tolerance.
const RELATIVE_TOLERANCE: f64 = 1e-9;

impl Ordered<'_> {
    /// With exact weights: the smallest value whose cumulative weight reaches `percent` of the total. With the agent's rule: the first
    /// whose cumulative integer weight exceeds `floor((percent * count - 1) / 100)`.
    pub fn percentile(&self, percent: u8, weights: Weights) -> f64 {
        match weights {
            Weights::Exact => self.quantile(f64::from(percent) / 100.0),
            Weights::Agent if self.sketch.is_some() => self.quantile(f64::from(percent) / 100.0),
            Weights::Agent => {
                let rank = ((f64::from(percent) * self.totals.whole_weight - 1.0) / 100.0)
                    .floor()
                    .max(0.0);
                self.first(|cumulative| cumulative > rank, f64::trunc)
            }
        }
    }

    /// The smallest value whose cumulative weight reaches `fraction` (0 to 1) of the total.
    pub fn quantile(&self, fraction: f64) -> f64 {
        if let Some(sketch) = self.sketch {
            return sketch.quantile(fraction).clamp(self.totals.min, self.totals.max);
        }
        let target = self.totals.weight * fraction * (1.0 - RELATIVE_TOLERANCE);
        self.first(|cumulative| cumulative >= target, |weight| weight)
    }

    pub fn median(&self, weights: Weights) -> f64 {
        if self.sketch.is_none() && weights == Weights::Agent {
            let rank = ((self.totals.whole_weight - 1.0) / 2.0).floor().max(0.0);
            return self.first(|cumulative| cumulative > rank, f64::trunc);
        }
        self.percentile(50, weights)
    }

    fn first(&self, reached: impl Fn(f64) -> bool, count: impl Fn(f64) -> f64) -> f64 {
        let mut cumulative = 0.0;
        for &(value, weight) in &self.samples {
            cumulative += count(weight);
            if reached(cumulative) {
                return value;
            }
        }
        self.totals.max
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn histogram(samples: impl IntoIterator<Item = (f64, f64)>) -> Histogram {
        let mut histogram = Histogram::default();
        for (value, weight) in samples {
            histogram.insert(value, weight);
        }
        histogram
    }

    #[test]
    fn one_to_twenty() {
        let histogram = histogram((1..=20).map(|value| (f64::from(value), 1.0)));
        for weights in [Weights::Exact, Weights::Agent] {
            let ordered = histogram.ordered();
            assert_eq!(ordered.median(weights), 10.0);
            assert_eq!(ordered.percentile(95, weights), 19.0);
            assert_eq!(histogram.average(weights), 10.5);
            assert_eq!(histogram.count(weights), 20.0);
        }
    }

    #[test]
    fn weights_of_a_third() {
        let histogram = histogram([(9.0, 1.0 / 0.3)]);
        assert_eq!(
            (histogram.count(Weights::Exact), histogram.count(Weights::Agent)),
            (3.0, 3.0)
        );
        assert_eq!(histogram.average(Weights::Exact), 9.0);
        assert_eq!(histogram.average(Weights::Agent), 10.0);
        assert_eq!(histogram.totals().sum, 30.0);
    }

    #[test]
    fn folding_keeps_the_totals() {
        let mut histogram = Histogram::default();
        let mut turned = 0;
        for i in 0..10_000 {
            turned += u32::from(histogram.insert(f64::from(i), 1.0));
        }
        assert_eq!(turned, 1);
        let totals = histogram.totals();
        assert_eq!((totals.min, totals.max, totals.weight), (0.0, 9999.0, 10_000.0));
        assert_eq!(totals.sum, 49_995_000.0);
        let p95 = histogram.ordered().percentile(95, Weights::Exact);
        assert!((p95 / 9500.0 - 1.0).abs() < 0.02, "{p95}");
    }

    proptest! {
        /// The naive twin repeats every sample by its weight.
        #[test]
        fn integer_weights_equal_repetition(samples in prop::collection::vec((-50i32..50, 1u32..5), 1..60), percent in 1u8..=100) {
            let weighted = histogram(samples.iter().map(|&(value, weight)| (f64::from(value), f64::from(weight))));
            let mut repeated: Vec<f64> =
                samples.iter().flat_map(|&(value, weight)| vec![f64::from(value); weight as usize]).collect();
            repeated.sort_by(f64::total_cmp);
            let rank = (usize::from(percent) * repeated.len() - 1) / 100;
            for weights in [Weights::Exact, Weights::Agent] {
                prop_assert_eq!(weighted.ordered().percentile(percent, weights), repeated[rank]);
                prop_assert_eq!(weighted.ordered().median(weights), repeated[(repeated.len() - 1) / 2]);
                prop_assert_eq!(weighted.count(weights), repeated.len() as f64);
            }
        }
    }
}
