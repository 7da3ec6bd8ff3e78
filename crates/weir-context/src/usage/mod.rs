//! Who uses how much: contexts per metric name and per origin, live values per tag key. Counted when a context is made or
//! goes, never per sample, and walked in slices.

mod keys;
mod names;
mod offenders;
mod top;

pub(crate) use keys::{NO_KEY, TagKeys};
pub(crate) use names::Names;
pub(crate) use offenders::Offenders;
pub(crate) use top::Top;

use weir_counters::{Counts, Moves, Series, counters};

/// What a worker notes of its users.
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

/// Entries of each list of a summary.
pub const SUMMARY_ROWS: usize = 256;

const LIMIT_SAMPLES: Series =
    Series::counter("weir_context_limit_samples_total", "limits.samples", "samples")
        .help("Samples of contexts that were refused, by limit.");

counters! {
    /// Why a new context was not made.
    pub enum LimitReason {
        /// The memory budget is used up.
        Memory = LIMIT_SAMPLES.because("memory"),
            Moves::Sign("Give weir more `memory`, or fewer contexts: `weir top` names the metrics with the most contexts.");
        /// The operator's number of contexts is reached.
        Contexts = LIMIT_SAMPLES.because("contexts_max"),
            Moves::Sign("Raise `contexts_max`, or drop tags with a rule: `weir top` names the metrics with the most contexts.");
        /// The metric has its share of what there is.
        Metric = LIMIT_SAMPLES.because("metric_share"),
            Moves::Sign("`weir status` names the metric and its tag with the most values: drop that tag by a rule.");
        /// The origin has its share of what there is.
        Origin = LIMIT_SAMPLES.because("origin_share"),
            Moves::Sign("`weir status` names the origin: find out why it sends so many contexts.");
        /// It would bring a new value of a tag key that has its share of what there is.
        TagKey = LIMIT_SAMPLES.because("tag_key_share"),
            Moves::Sign("`weir status` names the tag key: drop it by a rule.");
    }
}

/// A bounded view of what a worker holds, as of a flush.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UsageSummary {
    pub contexts: u64,
    /// The names with most contexts, and those with most samples since the last summary.
    pub metrics: Vec<MetricUsage>,
    /// Names with contexts; `metrics` holds all of them when it is as long.
    pub metrics_live: u64,
    pub tag_keys: Vec<TagKeyUsage>,
    pub tag_keys_live: u64,
    /// Values of keys beyond those that are distinguished.
    pub tag_values_untracked: u64,
    pub origins: Vec<OriginUsage>,
    pub origins_live: u64,
    /// Names whose new contexts found no room since the last summary.
    pub limited: Vec<LimitedMetric>,
    /// Samples whose metric is not in `limited` although its new contexts found no room.
    pub limited_others: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MetricUsage {
    pub name: Box<str>,
    pub contexts: u64,
    /// Estimated from a part of the messages, since the last summary.
    pub samples: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TagKeyUsage {
    /// The text before the first colon; empty for tags without one.
    pub key: Box<str>,
    /// Different tags with this key that live contexts have.
    pub values: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OriginUsage {
    /// As [`crate::OriginKey::from_text`] reads it; empty for messages of which nothing is known.
    pub origin: Box<str>,
    /// Ways of writing a context: kind, name and tags as sent.
    pub contexts: u64,
    /// Estimated, since the last summary.
    pub samples: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitedMetric {
    pub name: Box<str>,
    /// The limit that was met last.
    pub reason: LimitReason,
    /// Samples that went into the overflow series or were dropped since the last summary.
    pub samples: u64,
    /// The tag key with most different values among the contexts refused, with the estimate of their number.
    pub tag_key: Option<(Box<str>, u64)>,
    /// The origin of the last message, as in [`OriginUsage`].
    pub origin: Box<str>,
}
