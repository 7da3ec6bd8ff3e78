//! Native histograms, summed up over flushes.

use serde::{Deserialize, Serialize};
use weir_aggregate::Histogram;
use weir_context::prefetch_value;
use weir_sketch::{Bin, BinBuckets, ExponentialHistogram, Sketch, ZERO_THRESHOLD};

use super::forms::Unit;
use crate::protobuf;

/// Bounds grow by 2^(1/32), about 2.2 %, from one bucket to the next.
pub const SCHEMA: i32 = 5;

/// The coarsest schema that Prometheus knows: bounds grow by 2^16.
const SCHEMA_MIN: i32 = -4;

/// Occupied buckets of one sign; with more, pairs are merged until they fit. At schema 5 these span 32 powers of two
/// without a gap.
const BUCKETS_MAX: usize = 1024;

/// One bucket in 8 bytes: a scrape state may hold tens of millions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Bucket {
    /// Prometheus's numbering: bucket i covers (base^(i-1), base^i].
    index: i16,
    high: u16,
    low: u32,
}

impl Bucket {
    const COUNT_MAX: u64 = (1 << 48) - 1;

    fn new(index: i16, count: u64) -> Self {
        let count = count.min(Self::COUNT_MAX);
        Bucket {
            index,
            high: (count >> 32) as u16,
            low: count as u32,
        }
    }

    fn count(self) -> u64 {
        u64::from(self.high) << 32 | u64::from(self.low)
    }
}

/// Cumulative; counts only grow.
#[derive(Clone, Debug, Default)]
pub struct Native {
    /// Merges of pairs since [`SCHEMA`].
    coarser: u8,
    zero: u64,
    sum: f64,
    positive: Vec<Bucket>,
    negative: Vec<Bucket>,
}

impl Native {
    pub fn add_sketch(&mut self, sketch: &Sketch, unit: Unit) {
        if unit == Unit::ONE {
            self.add_bins(&sketch.bins());
            self.sum += sketch.sum();
            return self.keep_buckets_max();
        }
        self.add_samples(of_sketch(sketch), unit, Some(sketch.sum()));
    }

    fn add_bins(&mut self, bins: &[Bin]) {
        let buckets = BinBuckets::at(SCHEMA);
        let coarser = self.coarser;
        let bucket = |bin: &Bin| (buckets.of(bin.k) >> coarser, u64::from(bin.n));
        let negative = bins.partition_point(|bin| bin.k < 0);
        let zero = bins[negative..].partition_point(|bin| bin.k == 0);
        let (negative, rest) = bins.split_at(negative);
        let (zero, positive) = rest.split_at(zero);
        for bin in zero {
            self.zero = self.zero.saturating_add(u64::from(bin.n));
        }
        merge(&mut self.positive, positive.iter().map(bucket));
        // Their keys ascend from the largest magnitude down.
        merge(&mut self.negative, negative.iter().rev().map(bucket));
    }

    pub fn add_histogram(&mut self, histogram: &Histogram, unit: Unit) {
        match histogram.sketch() {
            None => self.add_samples(histogram.samples(), unit, None),
            Some(sketch) => self.add_samples(of_sketch(sketch), unit, Some(histogram.totals().sum)),
        }
    }

    fn add_samples(&mut self, samples: impl Iterator<Item = (f64, f64)>, unit: Unit, sum: Option<f64>) {
        let mut samples: Vec<(f64, f64)> = samples.map(|(value, weight)| (unit.of(value), weight)).collect();
        let mut exponential = ExponentialHistogram::from_samples(&mut samples, usize::MAX >> 1);
        if let Some(sum) = sum {
            exponential.sum = unit.of(sum);
        }
        self.add(exponential);
    }

    fn add(&mut self, mut other: ExponentialHistogram) {
        while other.scale > self.schema() {
            other.downscale();
        }
        self.zero = self.zero.saturating_add(other.zero_count);
        self.sum += other.sum;
        merge(&mut self.positive, other.positive.iter().copied());
        merge(&mut self.negative, other.negative.iter().copied());
        self.keep_buckets_max();
    }

    fn keep_buckets_max(&mut self) {
        while self.positive.len().max(self.negative.len()) > BUCKETS_MAX {
            self.coarsen();
        }
    }

    /// Reduces resolution until the buckets take at most this many bytes, or the minimum of the coarsest schema.
    pub fn shrink(&mut self, bytes: usize) {
        while self.heap_bytes() > bytes && self.schema() > SCHEMA_MIN {
            self.coarsen();
        }
    }

    /// Prefetches the buckets.
    pub fn prefetch(&self) {
        for side in [&self.positive, &self.negative] {
            if let (Some(first), Some(middle)) = (side.first(), side.get(side.len() / 2)) {
                prefetch_value(first);
                prefetch_value(middle);
            }
        }
    }

    fn coarsen(&mut self) {
        self.coarser += 1;
        halve(&mut self.positive);
        halve(&mut self.negative);
    }

    fn schema(&self) -> i32 {
        SCHEMA - i32::from(self.coarser)
    }

    pub fn count(&self) -> u64 {
        let side = |buckets: &[Bucket]| buckets.iter().map(|bucket| bucket.count()).sum::<u64>();
        self.zero
            .saturating_add(side(&self.positive) + side(&self.negative))
    }

    pub fn sum(&self) -> f64 {
        self.sum
    }

    pub fn heap_bytes(&self) -> usize {
        (self.positive.capacity() + self.negative.capacity()) * size_of::<Bucket>()
    }

    /// The same as an OTLP histogram. The smallest and the largest sample are unknown.
    pub fn exponential(&self) -> ExponentialHistogram {
        let side = |buckets: &[Bucket]| {
            let one = |bucket: &Bucket| (i32::from(bucket.index) - 1, bucket.count());
            buckets.iter().map(one).collect()
        };
        ExponentialHistogram {
            scale: self.schema(),
            zero_count: self.zero,
            positive: side(&self.positive),
            negative: side(&self.negative),
            sum: self.sum,
            min: f64::NAN,
            max: f64::NAN,
        }
    }

    /// The body of a remote write histogram, the same in both versions, without its times.
    pub fn write_remote(&self, out: &mut Vec<u8>) {
        // Both counts choose between integers and floats by being there, zero or not.
        protobuf::present(out, 1, self.count());
        protobuf::double(out, 3, self.sum);
        protobuf::integer(out, 4, protobuf::zigzag(i64::from(self.schema())) as i64);
        protobuf::double(out, 5, ZERO_THRESHOLD);
        protobuf::present(out, 6, self.zero);
        write_side(out, &self.negative, 8, 9);
        write_side(out, &self.positive, 11, 12);
    }

    /// The native part of an `io.prometheus.client.Histogram`: all but its count and its sum.
    pub fn write(&self, out: &mut Vec<u8>) {
        protobuf::integer(out, 5, protobuf::zigzag(i64::from(self.schema())) as i64);
        // Always written: it distinguishes an empty native histogram from a classic one.
        protobuf::double(out, 6, ZERO_THRESHOLD);
        protobuf::integer(out, 7, self.zero as i64);
        write_side(out, &self.negative, 9, 10);
        write_side(out, &self.positive, 12, 13);
    }
}

/// A sketch's view of samples: each bin stands for its representative.
pub fn of_sketch(sketch: &Sketch) -> impl Iterator<Item = (f64, f64)> {
    let bins = sketch.bins().into_owned().into_iter();
    bins.map(|bin| (weir_sketch::lower(bin.k), f64::from(bin.n)))
}

/// Adds buckets in OTLP's numbering, which is one below ours.
fn merge(into: &mut Vec<Bucket>, more: impl Iterator<Item = (i32, u64)> + Clone) {
    if into.is_empty() {
        let mut before = None;
        let is_new = |(index, _): &(i32, u64)| before.replace(*index) != Some(*index);
        into.reserve_exact(more.clone().filter(is_new).count());
    }
    let mut at = 0;
    for (index, count) in more {
        let index = (index + 1).clamp(i32::from(i16::MIN), i32::from(i16::MAX)) as i16;
        at += into[at..].partition_point(|bucket| bucket.index < index);
        match into.get_mut(at) {
            Some(bucket) if bucket.index == index => {
                *bucket = Bucket::new(index, bucket.count().saturating_add(count))
            }
            _ => {
                if into.len() == into.capacity() {
                    into.reserve_exact(into.len() / 4 + 1);
                }
                into.insert(at, Bucket::new(index, count));
            }
        }
    }
}

fn halve(buckets: &mut Vec<Bucket>) {
    let mut halved: Vec<Bucket> = Vec::with_capacity(buckets.len());
    for bucket in buckets.iter() {
        let index = ((i32::from(bucket.index) + 1) >> 1) as i16;
        match halved.last_mut() {
            Some(last) if last.index == index => *last = Bucket::new(index, last.count() + bucket.count()),
            _ => halved.push(Bucket::new(index, bucket.count())),
        }
    }
    halved.shrink_to_fit();
    *buckets = halved;
}

fn write_side(out: &mut Vec<u8>, buckets: &[Bucket], spans: u32, deltas: u32) {
    // The first span's offset is an index, that of the others the gap to the span before.
    let mut expected = 0i32;
    for span in buckets.chunk_by(|a, b| i32::from(a.index) + 1 == i32::from(b.index)) {
        let first = i32::from(span[0].index);
        protobuf::message(out, spans, |out| {
            protobuf::integer(out, 1, protobuf::zigzag(i64::from(first - expected)) as i64);
            protobuf::integer(out, 2, span.len() as i64);
        });
        expected = first + span.len() as i32;
    }
    let mut before = 0i64;
    let differences = buckets.iter().map(move |bucket| {
        let count = bucket.count() as i64;
        protobuf::zigzag(count - std::mem::replace(&mut before, count))
    });
    protobuf::packed(out, deltas, differences);
}

/// A native histogram as the next process reads it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct SavedNative {
    coarser: u8,
    zero: u64,
    sum: f64,
    positive: Vec<(i16, u64)>,
    negative: Vec<(i16, u64)>,
}

impl From<&Native> for SavedNative {
    fn from(native: &Native) -> Self {
        let side = |buckets: &[Bucket]| {
            let buckets = buckets.iter().map(|bucket| (bucket.index, bucket.count()));
            buckets.collect()
        };
        SavedNative {
            coarser: native.coarser,
            zero: native.zero,
            sum: native.sum,
            positive: side(&native.positive),
            negative: side(&native.negative),
        }
    }
}

impl SavedNative {
    /// `None`: no histogram is like this.
    pub fn restored(self) -> Option<Native> {
        let coarsest = (SCHEMA - SCHEMA_MIN) as u8;
        let is_known = self.coarser <= coarsest && self.sum.is_finite();
        is_known.then_some(())?;
        Some(Native {
            coarser: self.coarser,
            zero: self.zero,
            sum: self.sum,
            positive: side(&self.positive)?,
            negative: side(&self.negative)?,
        })
    }
}

fn side(saved: &[(i16, u64)]) -> Option<Vec<Bucket>> {
    let ascends = saved.windows(2).all(|pair| pair[0].0 < pair[1].0);
    let fits = saved.len() <= BUCKETS_MAX && saved.iter().all(|(_, count)| *count <= Bucket::COUNT_MAX);
    (ascends && fits).then(|| {
        saved
            .iter()
            .map(|&(index, count)| Bucket::new(index, count))
            .collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn buckets(native: &Native) -> Vec<(i16, u64)> {
        native
            .positive
            .iter()
            .map(|bucket| (bucket.index, bucket.count()))
            .collect()
    }

    #[test]
    fn sums_up_in_prometheus_numbering() {
        let mut native = Native::default();
        let mut sketch = Sketch::new();
        for value in [1.0, 1.0, 0.0, -1.0, 2f64.powi(10) * 0.999] {
            sketch.insert_one(value);
        }
        native.add_sketch(&sketch, Unit::ONE);
        native.add_sketch(&sketch, Unit::ONE);
        // 1 is the upper bound of bucket 0, 1024 that of bucket 320.
        assert_eq!(buckets(&native), [(0, 4), (320, 2)]);
        assert_eq!((native.count(), native.zero), (10, 2));
        assert_eq!(native.negative, [Bucket::new(0, 2)]);
        let mut bytes = Vec::new();
        native.write(&mut bytes);
        // Two positive spans, offsets 0 and 319, deltas 4 and -2.
        let tail = [
            0x62, 2, 0x10, 1, 0x62, 5, 0x08, 0xfe, 0x04, 0x10, 1, 0x6a, 2, 8, 3,
        ];
        assert!(bytes.ends_with(&tail), "{bytes:x?}");
    }

    #[test]
    fn exact_samples_and_units() {
        let mut native = Native::default();
        let mut histogram = Histogram::default();
        histogram.insert(1000.0, 2.0);
        histogram.insert(64_000.0, 1.0);
        native.add_histogram(&histogram, Unit::THOUSANDTH);
        assert_eq!(buckets(&native), [(0, 2), (192, 1)]);
        assert_eq!((native.sum, native.count()), (66.0, 3));
    }

    #[test]
    fn never_more_buckets_than_the_bound() {
        let mut native = Native::default();
        let mut sketch = Sketch::new();
        for exponent in 0..2000 {
            sketch.insert_one(1.02f64.powi(exponent));
        }
        native.add_sketch(&sketch, Unit::ONE);
        assert!(native.positive.len() <= BUCKETS_MAX && native.schema() < SCHEMA);
        assert_eq!(native.count(), 2000);
        // Later samples fit into the coarser buckets.
        native.add_sketch(&sketch, Unit::ONE);
        assert_eq!(native.count(), 4000);
        assert!(native.positive.is_sorted_by(|a, b| a.index < b.index));
    }

    #[test]
    fn counts_beyond_32_bits() {
        assert_eq!(Bucket::new(-7, 1 << 40 | 3).count(), 1 << 40 | 3);
        assert_eq!(Bucket::new(0, u64::MAX).count(), Bucket::COUNT_MAX);
        assert_eq!(size_of::<Bucket>(), 8);
    }
}
