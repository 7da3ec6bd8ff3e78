//! Samples into buckets, buckets into a flush, flushes of several workers into one.
//!
//! This crate never reads a clock. Time is an argument.

mod addresses;
mod aggregator;
mod bodies;
mod clock;
mod expand;
mod flush;
mod histogram;
mod member_set;
mod merge;
mod state;
mod timeline;

pub use aggregator::{AggregateCounter, Aggregator, AggregatorSettings, ProcessStamp};
pub use clock::{AgentClock, ClockReading};
pub use expand::{AGGREGATES_MAX, Aggregate, Expansion, PointType};
pub use flush::{
    BATCH_BYTES, BATCH_ROWS, Batch, BatchSource, Bucket, CheckRecord, EventRecord, Series, TimestampedRows,
    TimestampedSample, TimestampedValue, Value,
};
pub use histogram::{HISTOGRAM_SAMPLES_MAX, Histogram, Ordered, Totals, Weights};
pub use member_set::{MemberSet, SET_MEMBERS_MAX};
pub use merge::Merger;
pub use state::SketchParts;
pub use timeline::{BATCHES_BEHIND_MAX, IDLE_BUCKETS_MAX};
