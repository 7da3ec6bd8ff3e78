use weir_sketch::{Bin, Sketch, key};

use crate::extremes::{self, Extremes};
use crate::unite::unite;
use crate::wire::{Reader, Writer};
use crate::{Bins, Bounds, Error, ExactSum};

/// Weights of folded samples are counted in units of two to the power of minus this: each is rounded on its own, so that
/// their sum does not depend on their order.
const WEIGHT_BITS: u32 = 20;

/// Bits of the byte before a sample.
const WEIGHTED: u8 = 1;
const REPEATED: u8 = 2;

/// A value, its weight (1 / rate), and how often both came.
type Sample = (f64, f64, u64);

/// The samples of a histogram or timing: all of them, or a sketch once they are too many.
#[derive(Clone, Debug, PartialEq)]
pub enum Samples {
    Exact(Listed),
    Folded(Box<Folded>),
}

/// Samples by ascending value and weight, each pair once, and how many they are.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Listed {
    samples: Vec<Sample>,
    count: u64,
}

impl Listed {
    fn of(samples: Vec<Sample>) -> Self {
        let counts = samples.iter().map(|(.., times)| *times);
        let count = counts.fold(0, u64::saturating_add);
        Listed { samples, count }
    }

    fn merge(&mut self, other: &Listed) {
        unite(&mut self.samples, &other.samples, order, |mine, theirs| {
            mine.2 = mine.2.saturating_add(theirs.2);
        });
        self.count = self.count.saturating_add(other.count);
    }
}

impl std::ops::Deref for Listed {
    type Target = [Sample];

    fn deref(&self) -> &[Sample] {
        &self.samples
    }
}

/// The summary of too many samples.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Folded {
    /// Weights in units of 2^-20.
    pub bins: Bins,
    pub extremes: Option<Extremes>,
    /// Sum of value times weight.
    pub sum: ExactSum,
    pub weight: ExactSum,
    /// Sum of the weights' integer parts.
    pub whole_weight: ExactSum,
}

impl Default for Samples {
    fn default() -> Self {
        Samples::Exact(Listed::default())
    }
}

impl Samples {
    /// Values with their weights, in any order.
    pub fn exact(samples: impl IntoIterator<Item = (f64, f64)>) -> Self {
        let samples = samples.into_iter().map(|(value, weight)| (value, weight, 1));
        Samples::Exact(Listed::of(ordered(samples.collect())))
    }

    pub fn count(&self) -> u64 {
        match self {
            Samples::Exact(samples) => samples.count,
            Samples::Folded(folded) => (folded.bins.count() >> WEIGHT_BITS) as u64,
        }
    }

    pub fn merge(&mut self, other: &Samples, bounds: &Bounds) {
        match (&mut *self, other) {
            (Samples::Exact(mine), Samples::Exact(theirs)) => {
                mine.merge(theirs);
                self.keep_within(bounds);
            }
            (mine, theirs) => {
                let mut folded = std::mem::take(mine).fold();
                folded.merge(&theirs.clone().fold());
                *mine = Samples::Folded(folded);
            }
        }
    }

    /// Too many samples become a sketch.
    pub(crate) fn keep_within(&mut self, bounds: &Bounds) {
        if let Samples::Exact(samples) = self
            && samples.count > bounds.samples
        {
            *self = Samples::Folded(std::mem::take(self).fold());
        }
    }

    pub(crate) fn heap_bytes(&self) -> usize {
        match self {
            Samples::Exact(samples) => samples.samples.capacity() * size_of::<Sample>(),
            Samples::Folded(folded) => size_of::<Folded>() + folded.heap_bytes(),
        }
    }

    fn fold(self) -> Box<Folded> {
        match self {
            Samples::Exact(samples) => Box::new(Folded::of(&samples)),
            Samples::Folded(folded) => folded,
        }
    }

    pub(crate) fn write(&self, writer: &mut Writer) {
        match self {
            Samples::Exact(samples) => {
                writer.byte(0);
                writer.number(samples.len() as u64);
                samples.iter().for_each(|sample| write_sample(*sample, writer));
            }
            Samples::Folded(folded) => {
                writer.byte(1);
                folded.write(writer);
            }
        }
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Self, Error> {
        match reader.byte()? {
            0 => read_samples(reader).map(|samples| Samples::Exact(Listed::of(samples))),
            1 => Folded::read(reader).map(|folded| Samples::Folded(Box::new(folded))),
            _ => Err(Error::NotCanonical("a histogram")),
        }
    }
}

fn order(one: &Sample, other: &Sample) -> std::cmp::Ordering {
    one.0.total_cmp(&other.0).then_with(|| one.1.total_cmp(&other.1))
}

fn ordered(mut samples: Vec<Sample>) -> Vec<Sample> {
    samples.sort_unstable_by(order);
    samples.dedup_by(|again, first| {
        let is_same = order(first, again).is_eq();
        if is_same {
            first.2 = first.2.saturating_add(again.2);
        }
        is_same
    });
    samples
}

fn write_sample((value, weight, times): Sample, writer: &mut Writer) {
    let is_weighted = weight != 1.0;
    let is_repeated = times != 1;
    writer.byte((u8::from(is_weighted) * WEIGHTED) | (u8::from(is_repeated) * REPEATED));
    writer.float(value);
    if is_weighted {
        writer.float(weight);
    }
    if is_repeated {
        writer.number(times);
    }
}

fn read_samples(reader: &mut Reader<'_>) -> Result<Vec<Sample>, Error> {
    const WHAT: &str = "the samples of a histogram";
    let len = reader.count(9)?;
    let mut samples: Vec<Sample> = Vec::with_capacity(len);
    for _ in 0..len {
        let form = reader.byte()?;
        let value = reader.float(WHAT)?;
        let weight = match form & WEIGHTED {
            0 => 1.0,
            _ => reader.float(WHAT)?,
        };
        let times = match form & REPEATED {
            0 => 1,
            _ => reader.number()?,
        };
        if weight <= 0.0 {
            return Err(Error::OutOfRange(WHAT));
        }
        let sample = (value, weight, times);
        let ascends = samples.last().is_none_or(|last| order(last, &sample).is_lt());
        let other_form = form & WEIGHTED != 0 && weight == 1.0 || form & REPEATED != 0 && times < 2;
        if form & !(WEIGHTED | REPEATED) != 0 || !ascends || other_form {
            return Err(Error::NotCanonical(WHAT));
        }
        samples.push(sample);
    }
    Ok(samples)
}

impl Folded {
    fn of(samples: &[Sample]) -> Self {
        let mut folded = Folded {
            bins: Bins::new(samples.iter().map(|&(value, weight, times)| {
                (key(value), u128::from(times).saturating_mul(units(weight)))
            })),
            ..Folded::default()
        };
        for &(value, weight, times) in samples {
            extremes::merge(&mut folded.extremes, Some(Extremes::of(value)));
            folded.sum.add_times(value * weight, times);
            folded.weight.add_times(weight, times);
            folded.whole_weight.add_times(weight.trunc(), times);
        }
        folded
    }

    /// From a sketch whose bins count integers. `weight`: of all its samples, including weight that no bin contains yet.
    pub fn new(sketch: &Sketch, extremes: Extremes, sum: f64, weight: f64, whole_weight: f64) -> Self {
        Folded {
            bins: Bins::of(&sketch.bins(), WEIGHT_BITS),
            extremes: (!sketch.is_empty()).then_some(extremes),
            sum: ExactSum::from(sum),
            weight: ExactSum::from(weight),
            whole_weight: ExactSum::from(whole_weight),
        }
    }

    /// As a sketch with integer bins: fractions of lower bins are carried upwards.
    pub fn sketch(&self) -> Sketch {
        let Some(Extremes { min, max }) = self.extremes else {
            return Sketch::new();
        };
        let mut below = 0u128;
        let whole = Bins::new(self.bins.iter().map(|(key, count)| {
            let due = count.saturating_add(below);
            below = due % (1 << WEIGHT_BITS);
            (key, due >> WEIGHT_BITS)
        }));
        let bins: Vec<Bin> = crate::distribution::split(&whole);
        let count = bins.iter().map(|bin| u64::from(bin.n)).sum();
        let sum = self.sum.to_f64();
        let sum = if sum.is_nan() { 0.0 } else { sum };
        Sketch::from_parts(count, sum, min, max, bins).unwrap_or_default()
    }

    fn merge(&mut self, other: &Folded) {
        self.bins.merge(&other.bins);
        extremes::merge(&mut self.extremes, other.extremes);
        self.sum.merge(&other.sum);
        self.weight.merge(&other.weight);
        self.whole_weight.merge(&other.whole_weight);
    }

    fn heap_bytes(&self) -> usize {
        self.bins.heap_bytes()
            + self.sum.heap_bytes()
            + self.weight.heap_bytes()
            + self.whole_weight.heap_bytes()
    }

    fn write(&self, writer: &mut Writer) {
        self.bins.write(writer);
        if let Some(extremes) = self.extremes {
            extremes.write(writer);
        }
        self.sum.write(writer);
        self.weight.write(writer);
        self.whole_weight.write(writer);
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, Error> {
        let bins = Bins::read(reader)?;
        let extremes = match bins.is_empty() {
            true => None,
            false => Some(Extremes::read(reader)?),
        };
        Ok(Folded {
            bins,
            extremes,
            sum: ExactSum::read(reader)?,
            weight: ExactSum::read(reader)?,
            whole_weight: ExactSum::read(reader)?,
        })
    }
}

/// A weight in units of the bins, at least one: no sample is in none.
fn units(weight: f64) -> u128 {
    ((weight * f64::from(1u32 << WEIGHT_BITS)).round() as u128).max(1)
}
