//! The mergeable state of a bucket as versioned bytes: for a hand-over, for saving at the end, or for the merge of a fleet.
//!
//! Merging in any order and in any grouping gives the same bytes ([`Table`]). Any bytes decode to a [`Record`] or to a specific [`Error`],
//! in memory bounded by [`BODY_BYTES_MAX`].
//!
//! This crate never does I/O and never reads a clock.

mod bins;
mod catalogue;
mod distribution;
mod division;
mod error;
mod extremes;
mod gauge;
mod header;
mod interned;
mod members;
mod packer;
mod record;
mod rows;
mod samples;
mod series;
mod state;
mod stream;
mod sum;
mod table;
mod threads;
mod unite;
mod wire;

pub use bins::Bins;
pub use catalogue::{Catalogue, Packed, Packing};
pub use distribution::Distribution;
pub use error::Error;
pub use extremes::Extremes;
pub use gauge::Gauge;
pub use header::{AgentId, Header, OLDEST_VERSION, Publication, VERSION};
pub use members::{Distinct, Members};
pub use packer::Packer;
pub use record::{BODY_BYTES_MAX, Numbered, Record, RecordSeries, decode_body};
pub use rows::{ROW_BYTES, Rows, TEXT_BYTES, THREAD_BYTES, encode_rows};
pub use samples::{Folded, Listed, Samples};
pub use series::{Facts, Identity, SeriesRef};
pub use state::{Bounds, State};
pub use stream::{Entry, SERIES_BYTES, SeriesName, StreamReader, StreamWriter};
pub use sum::ExactSum;
pub use table::{Table, TooLarge};
