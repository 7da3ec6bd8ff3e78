//! The last minutes of every series, for users: bounded memory, exact values, queries.
//!
//! ```text
//! batch of a flush -> open buckets (one column of ids and values each)
//!                       | every 32 buckets, or when they take an eighth of the memory
//!                       v
//!                     closed segments (one compressed chunk per series)   -> oldest goes first when memory is full
//! ```
//!
//! Nothing here delays an output: the agent feeds a history from a thread of its own. Memory is what
//! [`History::figures`] counts and never exceeds the bound; where even one bucket does not fit, series that are new are
//! refused and counted.

/// Encodings of points: columns of numbers ([`scalar`]) and sketches ([`sketch`]), both exact.
mod codec {
    mod bits;
    mod decimal;
    pub mod scalar;
    pub mod sketch;
}
mod dictionary;
mod group;
mod names;
mod query;
mod query_result;
mod segment;
mod store;

pub use dictionary::{AdoptError, Labels, SeriesKey, SeriesKind};
pub use names::{Metric, MetricSort, MetricsFound, MetricsRequest, TagKey, TagValue, matches};
pub use query::{Function, GROUPS_MAX, Query, QueryError, STEPS_MAX};
pub use query_result::{Group, Heatmap, QueryResult, SeriesColumn, SeriesColumns};
pub use store::{Figures, History, Part};
