//! Merges state of many agents into buckets of a fleet, each record exactly once.
//!
//! Agents append records of `weir-state` to a partitioned log. A [`Merge`] takes the records of one partition in the order of the log,
//! closes buckets, and returns commits: results, marks of merged records, and the offset to continue with. Every owner that reads the same
//! log from there produces the same bytes. An [`Owner`] does this for the partitions that a [`Log`] assigns to it.
//!
//! This crate never does I/O, reads a clock, or infers from its arrival that a record is new.

mod agent;
mod bucket;
mod closed;
mod delivery;
mod follower;
mod ledger;
mod log;
mod merge;
mod owner;
mod plan;
mod publisher;
mod quarantine;
mod results;
mod sequence;
mod snapshot;
mod stream;
mod texts;
mod time;

pub use delivery::{Correction, CorrectionPolicy, Delivery, Flush, FlushSeries, Series, SeriesCounts};
pub use follower::{Follower, FollowerCounts, StoredSums};
pub use ledger::{Interval, Ledger, Missing};
pub use log::{Append, Assignment, Commit, CommitError, Fetched, Log, Message, Quarantined};
pub use merge::{Counts, Merge, MergeOutcome, Settings};
pub use owner::{Owner, OwnerTurn};
pub use plan::{Plan, partition_of};
pub use publisher::{Closing, Published, Publisher, SeriesPlace, delay_ms};
pub use quarantine::{NotPutBack, QuarantineReason, QuarantinedRecord, put_back};
pub use results::{BucketResult, Occasion, ResultError};
pub use snapshot::SnapshotError;
pub use stream::{LastClosed, StreamStatus};
