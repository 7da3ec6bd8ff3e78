use serde::{Deserialize, Serialize};

use super::{BUCKETS_MAX, Bucket, Native, SCHEMA, SCHEMA_MIN};

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
