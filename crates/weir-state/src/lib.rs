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
mod extremes;
mod gauge;
mod header;
mod interned;
mod members;
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
pub use extremes::Extremes;
pub use gauge::Gauge;
pub use header::{AgentId, Header, OLDEST_VERSION, Publication, VERSION};
pub use members::{Distinct, Members};
pub use record::{BODY_BYTES_MAX, Numbered, Packer, Record, RecordSeries, decode_body};
pub use rows::{ROW_BYTES, Rows, TEXT_BYTES, THREAD_BYTES, encode_rows};
pub use samples::{Folded, Listed, Samples};
pub use series::{Facts, Identity, SeriesRef};
pub use state::{Bounds, State};
pub use stream::{Entry, SERIES_BYTES, SeriesName, StreamReader, StreamWriter};
pub use sum::ExactSum;
pub use table::{Table, TooLarge};

/// Why bytes are no record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// They end before the record does.
    Truncated,
    /// Another version wrote them.
    Version { found: u8 },
    /// They were changed after they were written.
    Checksum,
    /// The body is larger than a record's may be.
    TooLarge { bytes: u64 },
    /// The body is no zstd frame, or one of another length than announced.
    Compression,
    /// Something follows the record.
    Trailing,
    /// A text is not UTF-8.
    NotText,
    /// No metric has this kind.
    Kind { found: u8 },
    /// A number is outside of the named part's range.
    OutOfRange(&'static str),
    /// The named part is not written in the one way that it may be written in.
    NotCanonical(&'static str),
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (oldest, newest) = (OLDEST_VERSION, VERSION);
        match self {
            Error::Truncated => f.write_str("truncated: it ends before the record does"),
            Error::Version { found } => {
                write!(f, "version {found}; this program reads {oldest} to {newest}")
            }
            Error::Checksum => f.write_str("damaged: the checksum does not match"),
            Error::TooLarge { bytes } => write!(
                f,
                "a body of {bytes} bytes; at most {} are allowed",
                BODY_BYTES_MAX
            ),
            Error::Compression => f.write_str("the body cannot be decompressed"),
            Error::Trailing => f.write_str("bytes follow the record"),
            Error::NotText => f.write_str("a text is not UTF-8"),
            Error::Kind { found } => write!(f, "no metric has kind {found}"),
            Error::OutOfRange(part) => write!(f, "{part} is out of range"),
            Error::NotCanonical(part) => write!(f, "{part} is not in canonical form"),
        }
    }
}

impl std::error::Error for Error {}
