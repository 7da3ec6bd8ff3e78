//! Native histograms: spans of buckets whose bounds follow from a schema.

use super::MetricError;
use crate::sink::protobuf::prometheus as pb;
use crate::sink::record::Bucket;

/// One side of a native histogram.
pub struct Side<'a> {
    pub spans: &'a [pb::Span],
    pub deltas: &'a [i64],
    pub counts: &'a [f64],
}

impl Side<'_> {
    /// Bucket indexes and their counts, ascending.
    fn buckets(&self) -> Result<Vec<(i64, f64)>, MetricError> {
        let spanned: usize = self.spans.iter().map(|span| span.length as usize).sum();
        let given = self.deltas.len().max(self.counts.len());
        if spanned != given {
            return Err(MetricError::Spans { spanned, given });
        }
        let mut buckets = Vec::with_capacity(spanned);
        let mut index = 0i64;
        let mut count = 0i64;
        for span in self.spans {
            // The first offset is an index; the others are gaps.
            index += i64::from(span.offset);
            for _ in 0..span.length {
                let at = buckets.len();
                let held = match self.counts.get(at) {
                    Some(&held) => held,
                    None => {
                        count += self.deltas[at];
                        count as f64
                    }
                };
                if held < 0.0 {
                    return Err(MetricError::NegativeBucket(held));
                }
                buckets.push((index, held));
                index += 1;
            }
        }
        Ok(buckets)
    }
}

pub struct NativeHistogram<'a> {
    pub schema: i32,
    pub zero_threshold: f64,
    pub zero: f64,
    pub negative: Side<'a>,
    pub positive: Side<'a>,
    /// Upper bounds of a histogram with custom buckets (schema -53).
    pub custom_bounds: &'a [f64],
    pub count: f64,
}

/// Bucket `i` of schema `s` holds values above `2^((i-1)/2^s)` up to `2^(i/2^s)`.
pub fn buckets(native: &NativeHistogram) -> Result<Vec<Bucket>, MetricError> {
    const CUSTOM: i32 = -53;
    if native.schema != CUSTOM && !(-4..=8).contains(&native.schema) {
        return Err(MetricError::Schema(native.schema));
    }
    let exponent = (-f64::from(native.schema)).exp2();
    let bound = |index: i64| match native.schema {
        CUSTOM => match usize::try_from(index) {
            Err(_) => f64::NEG_INFINITY,
            Ok(at) => native.custom_bounds.get(at).copied().unwrap_or(f64::INFINITY),
        },
        _ => (index as f64 * exponent).exp2(),
    };
    let mut buckets = Vec::new();
    for (index, count) in native.negative.buckets()?.into_iter().rev() {
        buckets.push(Bucket {
            above: -bound(index),
            upto: -bound(index - 1),
            count,
        });
    }
    if native.zero > 0.0 {
        buckets.push(Bucket {
            above: -native.zero_threshold,
            upto: native.zero_threshold,
            count: native.zero,
        });
    }
    for (index, count) in native.positive.buckets()? {
        buckets.push(Bucket {
            above: bound(index - 1),
            upto: bound(index),
            count,
        });
    }
    let held: f64 = buckets.iter().map(|bucket| bucket.count).sum();
    let count = native.count;
    if held != count {
        return Err(MetricError::Count { count, held });
    }
    Ok(buckets)
}
