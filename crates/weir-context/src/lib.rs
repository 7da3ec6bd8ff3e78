//! Context identity: which series a message belongs to.
//!
//! This crate never decides from a hash alone that two contexts are equal, and never exceeds its byte budget.

mod active_rules;
mod alias;
mod by_context;
mod bytes_equal;
mod chunked;
mod context_table;
mod contexts;
mod counters;
mod hash;
mod interner;
mod level;
mod origins;
mod prefetch;
mod raw_table;
mod rules;
mod sharded;
mod slab;
mod strings;
mod tag_lists;
mod trials;
mod usage;
#[cfg(target_arch = "x86_64")]
mod wide;

pub use active_rules::RuleCounts;
pub use alias::{ALIAS_KEY_BYTES_MAX, AliasKey};
pub use by_context::{ByContext, ContextKey};
pub use chunked::{CHUNK, Chunked};
pub use context_table::{ContextId, LiveContext, PARTITIONS, Partitioning};
pub use contexts::{ContextLimits, ContextRef, Contexts, KnownContext, Lookup, OVERFLOW_TAG, RawMatch};
pub use counters::{AliasCounter, ContextCounter, OriginCounter};
pub use hash::HashSecret;
pub use level::Level;
pub use origins::{
    Admission, KnownTags, NameReading, OriginId, OriginKey, OriginQuestion, OriginTags, OriginTicket,
};
pub use prefetch::{prefetch, prefetch_value};
pub use raw_table::RawId;
pub use rules::{NAMESPACE_EXCEPTIONS, NameFilter, Resolved, RuleSettings, Rules, RulesOutcome, Trial};
pub use trials::TrialReport;
pub use usage::{
    LimitReason, LimitedMetric, MetricUsage, OriginUsage, SUMMARY_ROWS, TagKeyUsage, UsageSummary,
};
/// Of a [`LiveContext`].
pub use weir_protocol::Kind;
pub use weir_rules::{Recorder, RuleId, RuleSet, Step, Subject, Trace, Untraced};
