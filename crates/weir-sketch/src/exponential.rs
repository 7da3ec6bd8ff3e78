//! Exponential histograms: what Prometheus calls native histograms and OTLP calls exponential histograms.
//!
//! At scale `s` the base is `b = 2^(2^-s)` and bucket `i` covers `(b^i, b^(i+1)]`, OTLP's numbering; Prometheus
//! numbers the same bucket `i + 1`.

use crate::key::{BIAS, GAMMA};
use crate::sketch::Sketch;

/// Magnitudes up to this count as zero.
pub const ZERO_THRESHOLD: f64 = 1e-9;
/// The coarsest scale: one bucket spans a factor of 2^1024, all of f64 above or below 1.
pub const MIN_SCALE: i32 = -10;
/// The finest scale.
pub const MAX_SCALE: i32 = 20;

/// Sparse exponential histogram of both signs. Buckets are (index, count), ascending by index, counts not zero.
#[derive(Clone, Debug, PartialEq)]
pub struct ExponentialHistogram {
    pub scale: i32,
    /// Samples whose magnitude is at most [`ZERO_THRESHOLD`].
    pub zero_count: u64,
    pub positive: Vec<(i32, u64)>,
    /// Buckets of the negated negative samples.
    pub negative: Vec<(i32, u64)>,
    pub sum: f64,
    /// 0 when empty.
    pub min: f64,
    /// 0 when empty.
    pub max: f64,
}

impl ExponentialHistogram {
    /// Converts a sketch at the given scale, clamped to [`MIN_SCALE`]`..=`[`MAX_SCALE`]. The bin of key k stands for
    /// the value gamma^(k - bias), so a sample is off by at most half a sketch bin (0.78 %) plus its bucket's width.
    pub fn from_sketch(sketch: &Sketch, scale: i32) -> Self {
        let scale = scale.clamp(MIN_SCALE, MAX_SCALE);
        let mut out = Self::empty(scale, sketch.sum(), sketch.min(), sketch.max());
        let buckets = BinBuckets::at(scale);
        let bins = sketch.bins();
        out.positive.reserve_exact(bins.len());
        for bin in bins.iter() {
            let n = u64::from(bin.n);
            if bin.k == 0 {
                out.zero_count += n;
                continue;
            }
            let index = buckets.of(bin.k);
            let side = if bin.k > 0 {
                &mut out.positive
            } else {
                &mut out.negative
            };
            add(side, index, n);
        }
        // Negative keys ascend from the largest magnitude down.
        out.negative.reverse();
        out
    }

    /// Converts exact samples with their weights (1 / sample rate), at the finest scale at which neither side needs more than `buckets_max`
    /// buckets. The count is the sum of the weights, rounded to nearest; every bucket is within one of its own sum. Sorts the samples.
    /// Skips samples with a non-finite value or weight, or without weight.
    pub fn from_samples(samples: &mut [(f64, f64)], buckets_max: usize) -> Self {
        // Moves skipped samples to the end, so that the others are one ascending slice.
        let invalid = |(v, w): &(f64, f64)| !(v.is_finite() && w.is_finite() && *w > 0.0);
        samples.sort_unstable_by(|a, b| invalid(a).cmp(&invalid(b)).then(a.0.total_cmp(&b.0)));
        let samples = &samples[..samples.partition_point(|s| !invalid(s))];
        let sum = samples.iter().map(|(v, w)| v * w).sum();
        let min = samples.first().map_or(0.0, |s| s.0);
        let max = samples.last().map_or(0.0, |s| s.0);
        let mut out = Self::empty(scale_for(samples, buckets_max), sum, min, max);
        let mut weight = 0.0;
        let mut counted = 0u64;
        for (v, w) in samples {
            // Rounding the running total instead of each weight is what keeps the count exact.
            weight += w;
            let n = (weight.round() as u64).saturating_sub(counted);
            counted += n;
            if n == 0 {
                continue;
            }
            if v.abs() <= ZERO_THRESHOLD {
                out.zero_count += n;
            } else if *v > 0.0 {
                add(&mut out.positive, bucket(*v, out.scale), n);
            } else {
                add(&mut out.negative, bucket(-v, out.scale), n);
            }
        }
        out.negative.reverse();
        out.limit(buckets_max);
        out
    }

    fn empty(scale: i32, sum: f64, min: f64, max: f64) -> Self {
        Self {
            scale,
            zero_count: 0,
            positive: Vec::new(),
            negative: Vec::new(),
            sum,
            min,
            max,
        }
    }

    /// Samples in all buckets.
    pub fn count(&self) -> u64 {
        let side = |buckets: &[(i32, u64)]| buckets.iter().map(|(_, n)| n).sum::<u64>();
        self.zero_count + side(&self.positive) + side(&self.negative)
    }

    /// Halves the resolution: merges pairs of buckets.
    pub fn downscale(&mut self) {
        self.scale -= 1;
        for side in [&mut self.positive, &mut self.negative] {
            let mut merged: Vec<(i32, u64)> = Vec::with_capacity(side.len());
            side.iter().for_each(|(i, n)| add(&mut merged, i >> 1, *n));
            *side = merged;
        }
    }

    /// Lowers the scale until each side spans at most `buckets_max` consecutive buckets, empty ones counted (OTLP: 160).
    pub fn limit(&mut self, buckets_max: usize) {
        while self.scale > MIN_SCALE && span(&self.positive).max(span(&self.negative)) > buckets_max {
            self.downscale();
        }
    }

    /// One side as OTLP wants it: index of the first bucket and the counts of all buckets from there on.
    pub fn dense(side: &[(i32, u64)]) -> (i32, Vec<u64>) {
        let Some((first, _)) = side.first() else {
            return (0, Vec::new());
        };
        let mut counts = vec![0; span(side)];
        side.iter().for_each(|(i, n)| counts[(i - first) as usize] += n);
        (*first, counts)
    }
}

/// The buckets of a sketch's bins at one scale.
#[derive(Clone, Copy, Debug)]
pub struct BinBuckets {
    per_bin: f64,
}

impl BinBuckets {
    pub fn at(scale: i32) -> Self {
        BinBuckets {
            per_bin: GAMMA.log2() * 2f64.powi(scale),
        }
    }

    /// The bucket of the magnitude that a bin stands for. The key is not zero.
    #[inline]
    pub fn of(self, key: i16) -> i32 {
        // The nudge keeps a representative that is a bucket's upper bound (1, for one) inside that bucket.
        let position = f64::from(i32::from(key.unsigned_abs()) - BIAS) * self.per_bin - 1e-9;
        // As `ceil`, which is a call on processors of the first x86-64 level.
        let whole = position as i32;
        whole + i32::from(position > f64::from(whole)) - 1
    }
}

fn span(side: &[(i32, u64)]) -> usize {
    match (side.first(), side.last()) {
        (Some(first), Some(last)) => (last.0 - first.0) as usize + 1,
        _ => 0,
    }
}

/// Adds to the last bucket if it is the same one, in whichever direction the indexes run.
fn add(side: &mut Vec<(i32, u64)>, index: i32, n: u64) {
    match side.last_mut() {
        Some(last) if last.0 == index => last.1 += n,
        _ => side.push((index, n)),
    }
}

/// The finest scale at which each sign's samples fit, give or take the one step that the caller's limit corrects.
fn scale_for(samples: &[(f64, f64)], buckets_max: usize) -> i32 {
    let mut octaves = 0.0f64;
    for sign in [1.0, -1.0] {
        let magnitudes = samples
            .iter()
            .map(|(v, _)| v * sign)
            .filter(|v| *v > ZERO_THRESHOLD);
        let (low, high) = magnitudes.fold((f64::INFINITY, 0.0f64), |(low, high), v| {
            (low.min(v), high.max(v))
        });
        if high > low {
            octaves = octaves.max(high.log2() - low.log2());
        }
    }
    if octaves <= 0.0 {
        return MAX_SCALE;
    }
    ((buckets_max.max(1) as f64 / octaves).log2().ceil() as i32).clamp(MIN_SCALE, MAX_SCALE)
}

/// Index of the bucket of a positive, finite, normal value.
fn bucket(v: f64, scale: i32) -> i32 {
    let bits = v.to_bits();
    let exponent = (bits >> 52) as i32 - 1023;
    let mantissa = f64::from_bits((bits & ((1 << 52) - 1)) | (1023 << 52));
    if scale <= 0 {
        // Upper bounds are inclusive, so an exact power of two belongs one below.
        return (exponent - i32::from(mantissa == 1.0)) >> -scale;
    }
    let per_octave = f64::from(1 << scale);
    let mut i = (mantissa.log2() * per_octave).ceil() as i32 - 1;
    // The logarithm may land on the wrong side of a bound by its last place; the bounds themselves decide.
    if mantissa <= (f64::from(i) / per_octave).exp2() {
        i -= 1;
    } else if mantissa > (f64::from(i + 1) / per_octave).exp2() {
        i += 1;
    }
    (exponent << scale) + i
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bound(i: i32, scale: i32) -> f64 {
        (f64::from(i) * 2f64.powi(-scale)).exp2()
    }

    fn of(values: &[f64]) -> Sketch {
        let mut sketch = Sketch::new();
        values.iter().for_each(|v| sketch.insert_one(*v));
        sketch
    }

    #[test]
    fn powers_of_two_are_the_inclusive_upper_bound() {
        for scale in MIN_SCALE..=MAX_SCALE {
            let below = |e: i32| {
                if scale >= 0 {
                    (e << scale) - 1
                } else {
                    (e - 1) >> -scale
                }
            };
            for e in [-20, -1, 0, 1, 10] {
                assert_eq!(bucket(2f64.powi(e), scale), below(e), "2^{e} at scale {scale}");
            }
        }
        let one = ExponentialHistogram::from_sketch(&of(&[1.0, 2.0, -1.0, 0.0]), 5);
        // The sketch's bin of 2 stands for 2.009, just above the bound that an exact 2 would be under.
        assert_eq!(
            (one.positive.as_slice(), one.negative.as_slice()),
            (&[(-1, 1), (32, 1)][..], &[(-1, 1)][..])
        );
        assert_eq!(
            (one.zero_count, one.count(), one.min, one.max, one.sum),
            (1, 4, -1.0, 2.0, 2.0)
        );
    }

    #[test]
    fn weights_add_up_to_their_rounded_sum() {
        let mut samples: Vec<(f64, f64)> = (0..100).map(|i| (f64::from(i % 7) - 2.0, 1.0 / 0.653)).collect();
        let h = ExponentialHistogram::from_samples(&mut samples, 160);
        assert_eq!(h.count(), 153);
        let mut odd = [
            (f64::NAN, 1.0),
            (1.0, f64::INFINITY),
            (3.0, 0.0),
            (5.0, 2.0),
            (5.0, -1.0),
        ];
        let h = ExponentialHistogram::from_samples(&mut odd, 160);
        assert_eq!(
            (h.count(), h.sum, h.min, h.max, h.scale),
            (2, 10.0, 5.0, 5.0, MAX_SCALE)
        );
        let empty = ExponentialHistogram::from_samples(&mut [], 160);
        assert_eq!((empty.count(), empty.min, empty.max), (0, 0.0, 0.0));
    }

    #[test]
    fn the_whole_range_fits_any_limit() {
        let values = [1e-308, 1e-5, 3.0, 1e300, f64::MAX, f64::MIN, -1.0];
        for limit in [2, 20, 160] {
            let mut h = ExponentialHistogram::from_sketch(&of(&values), 5);
            h.limit(limit);
            assert!(
                span(&h.positive) <= limit && span(&h.negative) <= limit,
                "{limit}: {h:?}"
            );
            assert_eq!(h.count(), 7);
            let mut samples: Vec<(f64, f64)> = values.iter().map(|v| (*v, 1.0)).collect();
            let h = ExponentialHistogram::from_samples(&mut samples, limit);
            assert!(
                span(&h.positive) <= limit && span(&h.negative) <= limit,
                "{limit}: {h:?}"
            );
            assert_eq!(h.count(), 7);
        }
    }

    /// Upper and lower bound of the bucket that holds the sample of this rank.
    fn bucket_of_rank(h: &ExponentialHistogram, rank: u64) -> (f64, f64) {
        let negative = h
            .negative
            .iter()
            .rev()
            .map(|(i, n)| (-bound(i + 1, h.scale), -bound(*i, h.scale), *n));
        let zero = std::iter::once((-ZERO_THRESHOLD, ZERO_THRESHOLD, h.zero_count));
        let positive = h
            .positive
            .iter()
            .map(|(i, n)| (bound(*i, h.scale), bound(i + 1, h.scale), *n));
        let mut seen = 0;
        for (low, high, n) in negative.chain(zero).chain(positive) {
            seen += n;
            if seen > rank {
                return (low, high);
            }
        }
        panic!("rank {rank} of {seen}");
    }

    fn value() -> impl Strategy<Value = f64> {
        prop_oneof![
            5 => (-6f64..9.0).prop_map(|e| 10f64.powf(e)),
            2 => (-6f64..9.0).prop_map(|e| -(10f64.powf(e))),
            1 => Just(0.0),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]

        #[test]
        fn a_converted_sketch_keeps_the_stated_error(mut values in proptest::collection::vec(value(), 1..300), scale in -2i32..8, limited in any::<bool>()) {
            let mut h = ExponentialHistogram::from_sketch(&of(&values), scale);
            if limited {
                h.limit(160);
            }
            values.sort_by(f64::total_cmp);
            prop_assert_eq!(h.count(), values.len() as u64);
            // Half a sketch bin; the bucket's own width is checked by the bounds.
            let tolerance = GAMMA.sqrt() * (1.0 + 1e-7);
            for (rank, v) in values.iter().enumerate() {
                let (low, high) = bucket_of_rank(&h, rank as u64);
                let (low, high, m) = if low < 0.0 && high < 0.0 { (-high, -low, -v) } else { (low, high, *v) };
                prop_assert!(m <= high * tolerance && (low < 0.0 || m * tolerance >= low), "{} not in {}..{}", m, low, high);
            }
        }

        #[test]
        fn schema_5_midpoints_are_within_two_percent(mut values in proptest::collection::vec((-6f64..9.0).prop_map(|e| 10f64.powf(e)), 1..300)) {
            let h = ExponentialHistogram::from_sketch(&of(&values), 5);
            values.sort_by(f64::total_cmp);
            for (rank, v) in values.iter().enumerate() {
                let (low, high) = bucket_of_rank(&h, rank as u64);
                let midpoint = (low * high).sqrt();
                prop_assert!((midpoint / v).ln().abs() <= (GAMMA.sqrt() * 2f64.powf(1.0 / 64.0)).ln() * (1.0 + 1e-7));
            }
        }

        /// However wide the values are spread: the middle of a sample's bucket is off by at most half a sketch bin and half a bucket.
        #[test]
        fn midpoints_within_160_buckets_keep_the_error_of_their_scale(mut values in proptest::collection::vec((-9f64..15.0).prop_map(|e| 10f64.powf(e)), 1..300)) {
            let mut h = ExponentialHistogram::from_sketch(&of(&values), 5);
            h.limit(160);
            let spread = values.iter().copied().fold(0.0, f64::max) / values.iter().copied().fold(f64::MAX, f64::min);
            // One bucket more at each end than the values span, from the sketch's error.
            let scale = (158.0 / spread.log2().max(1.0)).log2().floor() as i32;
            prop_assert!(h.scale >= scale.min(5), "scale {} for a factor of {spread}", h.scale);
            values.sort_by(f64::total_cmp);
            let tolerance = (GAMMA.sqrt() * 2f64.powf(2f64.powi(-h.scale - 1))).ln() * (1.0 + 1e-7);
            for (rank, v) in values.iter().enumerate() {
                let (low, high) = bucket_of_rank(&h, rank as u64);
                prop_assert!(((low * high).sqrt() / v).ln().abs() <= tolerance, "{v} in {low}..{high}");
            }
        }

        #[test]
        fn exact_samples_lie_inside_their_bucket(values in proptest::collection::vec(value(), 1..300), limit in 2usize..200) {
            let mut samples: Vec<(f64, f64)> = values.iter().map(|v| (*v, 1.0)).collect();
            let h = ExponentialHistogram::from_samples(&mut samples, limit);
            prop_assert_eq!(h.count(), values.len() as u64);
            prop_assert!(span(&h.positive) <= limit && span(&h.negative) <= limit);
            for (rank, (v, _)) in samples.iter().enumerate() {
                let (low, high) = bucket_of_rank(&h, rank as u64);
                let slack = 1e-12 * v.abs();
                prop_assert!(low - slack <= *v && *v <= high + slack, "{} not in {}..{}", v, low, high);
            }
            // As fine as the limit allows: one scale up would not fit.
            if h.scale < MAX_SCALE && limit >= 2 {
                let sides = [1.0, -1.0].map(|sign| {
                    let mut side: Vec<i32> = values.iter().map(|v| v * sign).filter(|v| *v > 0.0).map(|v| bucket(v, h.scale + 1)).collect();
                    side.sort();
                    side.last().map_or(0, |last| last - side[0] + 1)
                });
                prop_assert!(sides[0].max(sides[1]) as usize > limit);
            }
        }

        #[test]
        fn bucket_bounds_hold_at_every_scale(e in -300f64..300.0, scale in MIN_SCALE..=MAX_SCALE) {
            let v = 10f64.powf(e);
            let i = bucket(v, scale);
            let slack = 1e-9;
            let position = v.log2() * 2f64.powi(scale);
            prop_assert!(f64::from(i) - slack * position.abs() <= position && position <= f64::from(i + 1) + slack * position.abs().max(1.0));
        }
    }
}
