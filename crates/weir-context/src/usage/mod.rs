//! Usage: contexts per metric name and per origin, live values per tag key. Counted when a context is made or removed, never per sample,
//! and summarised in slices.

mod keys;
mod names;
mod offenders;

use std::cmp::Reverse;
use std::collections::BinaryHeap;

pub(crate) use keys::{NO_KEY, TagKeys};
pub(crate) use names::Names;
pub(crate) use offenders::Offenders;

use weir_counters::{Counts, SeriesSpec, Significance, counters};

/// One worker's usage.
pub(crate) struct Usage {
    pub names: Names,
    pub offenders: Offenders,
    /// Samples whose context was not made, by reason.
    pub limited_samples: Counts<LimitReason>,
}

impl Usage {
    pub fn new() -> Self {
        Usage {
            names: Names::new(),
            offenders: Offenders::default(),
            limited_samples: Counts::default(),
        }
    }

    pub fn heap_bytes(&self) -> usize {
        self.names.heap_bytes() + self.offenders.heap_bytes()
    }
}

/// Maximum rows of each list in a summary.
pub const SUMMARY_ROWS: usize = 256;

const LIMIT_SAMPLES: SeriesSpec =
    SeriesSpec::counter("weir_context_limit_samples_total", "limits.samples", "samples")
        .help("Samples of refused contexts, by limit.");

counters! {
    /// Why a new context was not made.
    pub enum LimitReason {
        /// The memory budget is used up.
        Memory = LIMIT_SAMPLES.because("memory"),
            Significance::Problem("Raise `memory`, or drop the tag with the most values by a rule.");
        /// The limit `contexts_max` is reached.
        Contexts = LIMIT_SAMPLES.because("contexts_max"),
            Significance::Problem("Raise `contexts_max`, or drop the tag with the most values by a rule.");
        /// The metric has used up its share.
        Metric = LIMIT_SAMPLES.because("metric_share"),
            Significance::Problem("Raise `contexts_per_metric_max` or `memory`, or drop the tag with the most values by a rule.");
        /// The origin has used up its share.
        Origin = LIMIT_SAMPLES.because("origin_share"),
            Significance::Problem("Raise `contexts_per_origin_max` or `memory`, or drop the tag with the most values by a rule.");
        /// The context would add a value to a tag key that has used up its share.
        TagKey = LIMIT_SAMPLES.because("tag_key_share"),
            Significance::Problem("Drop the tag by a rule, or raise `memory`.");
    }
}

/// A bounded summary of one worker's usage at a flush.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UsageSummary {
    pub contexts: u64,
    /// The names with the most contexts, and those with the most samples since the last summary.
    pub metrics: Vec<MetricUsage>,
    /// Number of names with contexts. `metrics` is complete if it has as many entries.
    pub metrics_live: u64,
    pub tag_keys: Vec<TagKeyUsage>,
    pub tag_keys_live: u64,
    /// Values of the keys that are not distinguished.
    pub tag_values_untracked: u64,
    pub origins: Vec<OriginUsage>,
    pub origins_live: u64,
    /// Names whose new contexts were refused since the last summary.
    pub limited: Vec<LimitedMetric>,
    /// Refused samples of names that are not in `limited`.
    pub limited_others: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MetricUsage {
    pub name: Box<str>,
    pub contexts: u64,
    /// Estimated from some of the messages, since the last summary.
    pub samples: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TagKeyUsage {
    /// The text before the first colon; empty for tags without one.
    pub key: Box<str>,
    /// Distinct values of this key in live contexts.
    pub values: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OriginUsage {
    /// In the form of [`crate::OriginKey::from_text`]. Empty for messages of unknown origin.
    pub origin: Box<str>,
    /// Raw contexts: kind, name and tags as sent.
    pub contexts: u64,
    /// Estimated, since the last summary.
    pub samples: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitedMetric {
    pub name: Box<str>,
    /// The limit that refused the last context.
    pub reason: LimitReason,
    /// Samples since the last summary that went into the overflow series or were dropped.
    pub samples: u64,
    /// The tag key with the most values among the refused contexts, and their estimated number.
    pub tag_key: Option<(Box<str>, u64)>,
    /// The origin of the last message, as in [`OriginUsage`].
    pub origin: Box<str>,
}

/// The largest few of many amounts.
#[derive(Default)]
pub(crate) struct Top {
    heap: BinaryHeap<Reverse<(u64, u32)>>,
}

impl Top {
    /// Offers slot `at` with its amount.
    pub fn offer(&mut self, amount: u64, at: u32, max: usize) {
        if amount == 0 {
            return;
        }
        if self.heap.len() < max {
            self.heap.push(Reverse((amount, at)));
        } else if let Some(mut least) = self.heap.peek_mut()
            && least.0.0 < amount
        {
            *least = Reverse((amount, at));
        }
    }

    /// The slots kept, unordered.
    pub fn take(&mut self) -> impl Iterator<Item = (u64, u32)> + use<> {
        std::mem::take(&mut self.heap)
            .into_iter()
            .map(|Reverse(entry)| entry)
    }

    pub fn heap_bytes(&self) -> usize {
        self.heap.capacity() * size_of::<(u64, u32)>()
    }
}
