//! Who uses how much, as `/api/v1/contexts` and `weir top` show it.

use serde::{Deserialize, Serialize};

/// As of the last flush. Lists are ordered by what their name says, most first, and hold at most as many rows as asked for.
///
/// With several workers a context counts once for each that sees its messages.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ContextReport {
    /// Unix seconds.
    pub as_of: u64,
    pub contexts_live: u64,
    /// How long ago the counts were taken that `growth` compares with: an hour, or less in the first hour; 0 when there are
    /// none yet.
    pub growth_seconds: u64,
    /// Metric names, tag keys and origins with live contexts, at least.
    pub metrics_live: u64,
    pub tag_keys_live: u64,
    pub origins_live: u64,
    /// Distinct tags whose keys are not distinguished, because there are too many keys or they are too long.
    pub tag_values_untracked: u64,
    pub metrics_by_samples: Vec<MetricRow>,
    pub metrics_by_contexts: Vec<MetricRow>,
    pub tag_keys: Vec<TagKeyRow>,
    pub origins: Vec<OriginRow>,
    pub limited: Vec<LimitedRow>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MetricRow {
    /// The name after rules.
    pub metric: String,
    /// Live contexts.
    pub contexts: u64,
    /// Contexts more than `growth_seconds` ago; at least so many when the metric was not among the first then.
    pub growth: i64,
    /// Over the last bucket. Counted up to 256 messages a second, estimated from as many where there are more.
    pub samples_per_second: f64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TagKeyRow {
    /// The text before the first colon; empty for tags without one.
    pub key: String,
    /// Different values in live contexts.
    pub values: u64,
    /// Values more than `growth_seconds` ago, as for metrics.
    pub growth: i64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OriginRow {
    /// The container of the sending process, or what its messages say about themselves; `unknown` where neither is known.
    pub origin: String,
    /// Different combinations of kind, name and tags as sent.
    pub contexts: u64,
    /// As for metrics.
    pub samples_per_second: f64,
}

/// A metric whose new contexts met a limit in the last bucket.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LimitedRow {
    pub metric: String,
    /// `memory`, `contexts_max`, `metric_share`, `origin_share` or `tag_key_share`.
    pub reason: String,
    /// Samples without a context in the last bucket.
    pub samples: u64,
    /// The tag key with most different values among them, empty when they have no tags; and about how many values.
    pub tag_key: String,
    pub tag_values: u64,
    /// As in `OriginRow`.
    pub origin: String,
}
