//! Usage by metric, tag key and origin, for `/api/v1/contexts` and `weir top`.

use serde::{Deserialize, Serialize};

use super::counters::PipelineCounter;
use super::status::Status;

/// As of the last flush. Lists are sorted by the quantity in their name, descending, and have at most the requested number of rows.
///
/// A context counts once for each worker that sees its messages.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ContextReport {
    /// Unix seconds.
    pub as_of: u64,
    pub contexts_live: u64,
    /// Age of the counts that `growth` compares with: an hour, or less in the first hour; 0 if there are none yet.
    pub growth_seconds: u64,
    /// Metric names, tag keys and origins with live contexts, at least.
    pub metrics_live: u64,
    pub tag_keys_live: u64,
    pub origins_live: u64,
    /// Distinct tags of keys that are not distinguished, because there are too many keys or they are too long.
    pub tag_values_untracked: u64,
    pub metrics_by_samples: Vec<MetricRow>,
    pub metrics_by_contexts: Vec<MetricRow>,
    pub tag_keys: Vec<TagKeyRow>,
    pub origins: Vec<OriginRow>,
    pub limited: Vec<LimitedRow>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct MetricRow {
    /// The name after rules.
    pub metric: String,
    /// Live contexts.
    pub contexts: u64,
    /// Increase within `growth_seconds`. A lower bound if the metric was not in the list then.
    pub growth: i64,
    /// In the last bucket. Counted up to 256 messages a second, and estimated from a sample above that.
    pub samples_per_second: f64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TagKeyRow {
    /// The text before the first colon; empty for tags without one.
    pub key: String,
    /// Distinct values in live contexts.
    pub values: u64,
    /// Increase of the values within `growth_seconds`, as for metrics.
    pub growth: i64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct OriginRow {
    /// The container of the sending process, or the origin fields of its messages; `unknown` without both.
    pub origin: String,
    /// Distinct combinations of kind, name and tags as sent.
    pub contexts: u64,
    /// As for metrics.
    pub samples_per_second: f64,
}

/// A metric with refused contexts in the last bucket.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LimitedRow {
    pub metric: String,
    /// `memory`, `contexts_max`, `metric_share`, `origin_share` or `tag_key_share`.
    pub reason: String,
    /// Samples without a context in the last bucket.
    pub samples: u64,
    /// The tag key with the most values among them (empty without tags), and the estimated number of its values.
    pub tag_key: String,
    pub tag_values: u64,
    /// As in `OriginRow`.
    pub origin: String,
}

/// The reason why there is no report yet: contexts are counted at each flush.
pub fn before_first_flush(status: &Status) -> String {
    let width = status.of(PipelineCounter::BucketSeconds).max(1);
    let left = width - status.process.as_of % width;
    let messages = weir_units::counted(status.total("messages").good, "messages");
    format!("there was no flush yet: {messages} arrived, and the first bucket ends in {left} s")
}
