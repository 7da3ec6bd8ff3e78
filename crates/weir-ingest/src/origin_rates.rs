//! Rate limits per origin: a token bucket for each container that the kernel identifies.

use std::collections::HashMap;

use weir_context::OriginId;
use weir_listener::{Monotonic, TokenBucket};

/// Origins that are named as having sent more than they may.
const NAMED_MAX: usize = 16;

/// An origin that has sent more than it may.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitedOrigin {
    /// As `weir_context::OriginKey::from_text` reads it.
    pub origin: String,
    /// Packets dropped since it was last quiet for as long as its bucket takes to fill.
    pub packets: u64,
}

/// There are never more buckets than distinguished processes, which are bounded.
pub struct OriginRates {
    bytes_per_second: u64,
    buckets: HashMap<OriginId, TokenBucket>,
}

impl OriginRates {
    pub fn new(bytes_per_second: u64) -> Self {
        Self {
            bytes_per_second,
            buckets: HashMap::new(),
        }
    }

    /// Whether a packet of this origin may pass.
    pub fn admits(&mut self, origin: OriginId, bytes: usize, received: u64) -> bool {
        let (rate, now) = (self.bytes_per_second, Monotonic(received));
        let fresh = || TokenBucket::new(rate, now);
        self.buckets
            .entry(origin)
            .or_insert_with(fresh)
            .admits(bytes, rate, now)
    }

    /// Called periodically: a full bucket equals a missing one.
    pub fn forget_quiet(&mut self, now: u64) {
        let rate = self.bytes_per_second;
        self.buckets
            .retain(|_, bucket| !bucket.is_full(rate, Monotonic(now)));
    }

    /// Origins over the limit, most losses first.
    pub fn limited(&self, mut name: impl FnMut(OriginId) -> String) -> Vec<LimitedOrigin> {
        let over = self.buckets.iter().filter(|(_, bucket)| bucket.dropped() > 0);
        let mut over: Vec<(u64, OriginId)> =
            over.map(|(origin, bucket)| (bucket.dropped(), *origin)).collect();
        over.sort_unstable_by_key(|(packets, _)| std::cmp::Reverse(*packets));
        over.truncate(NAMED_MAX);
        over.into_iter()
            .map(|(packets, origin)| LimitedOrigin {
                origin: name(origin),
                packets,
            })
            .collect()
    }

    pub fn heap_bytes(&self) -> usize {
        self.buckets.capacity() * (size_of::<(OriginId, TokenBucket)>() + 1)
    }
}
