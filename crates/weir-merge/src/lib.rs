//! State of many agents to the buckets of a fleet, each record exactly once.
//!
//! Agents append records of `weir-state` to a partitioned log. A [`Merge`] takes the records of one partition in the order of the
//! log, closes buckets, and says what to commit: results, marks of what was merged, and the offset to go on from. Any owner that
//! reads the same log from there comes to the same bytes. An [`Owner`] does that for the partitions that a [`Log`] assigns to it.
//!
//! What this crate never does: I/O, read a clock, or infer from its arrival that a record is new.

mod agent;
mod bucket;
mod ledger;
mod log;
mod merge;
mod owner;
mod plan;
mod publisher;
mod results;
mod sequence;
mod snapshot;
mod stream;
mod texts;

pub use ledger::{Interval, Ledger, Missing};
pub use log::{Append, Assignment, Commit, CommitError, Fetched, Log, Message, Quarantined};
pub use merge::{Counts, Merge, Outcome, Reason, Refused, Settings};
pub use owner::{Owner, Turn};
pub use plan::{Plan, partition_of};
pub use publisher::{Closing, Published, Publisher, SeriesPlace, delay_ms};
pub use results::{Closed, Occasion, ResultError};
pub use snapshot::SnapshotError;
pub use stream::{LastClosed, StreamStatus};
