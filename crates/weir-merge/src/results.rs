//! The encoding of a closed bucket or of a correction.

use serde::{Deserialize, Serialize};
use weir_state::{Header, Record, RecordSeries};

/// The first byte of a result.
const VERSION: u8 = 1;

/// The most that a result takes beside its record and its tenant.
const HEAD_BYTES: usize = 80;

/// The reason for a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Occasion {
    /// The bucket closed. `expected`: live agents; `seen`: agents whose records it contains.
    Closed { expected: u32, seen: u32 },
    /// Records arrived after it had closed. Contains those up to this offset of the log.
    Late { through: u64 },
}

/// A result: series of one bucket in one partition. If they do not fit in one record, there are several parts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BucketResult {
    pub tenant: String,
    pub bucket_start: i64,
    pub bucket_width: u32,
    pub occasion: Occasion,
    /// Number of merged series states, in all parts.
    pub states: u64,
    pub part: u32,
    pub parts: u32,
    /// A record of `weir-state`.
    record: Vec<u8>,
}

/// Why a result is invalid.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ResultError {
    #[error("a result of version {found}; this program reads {VERSION}")]
    Version { found: u8 },
    #[error("a result that cannot be read: {0}")]
    Form(#[from] postcard::Error),
    #[error("the record of a result: {0}")]
    Record(weir_state::Error),
}

impl BucketResult {
    /// The header of the records in the results of a bucket.
    pub(crate) fn header(tenant: &str, (bucket_start, bucket_width): (i64, u32)) -> Header {
        Header {
            tenant: tenant.to_owned(),
            bucket_start,
            bucket_width,
            ..Header::default()
        }
    }

    /// Encodes the records of a bucket. Equal contents give equal bytes.
    pub(crate) fn encode(
        tenant: &str,
        (bucket_start, bucket_width): (i64, u32),
        occasion: Occasion,
        states: u64,
        records: Vec<Vec<u8>>,
    ) -> impl Iterator<Item = Vec<u8>> {
        let parts = records.len() as u32;
        (0..).zip(records).map(move |(part, record)| {
            let closed = BucketResult {
                tenant: tenant.to_owned(),
                bucket_start,
                bucket_width,
                occasion,
                states,
                part,
                parts,
                record,
            };
            let mut bytes = Vec::with_capacity(closed.tenant.len() + closed.record.len() + HEAD_BYTES);
            bytes.push(VERSION);
            postcard::to_extend(&closed, bytes).expect("all lengths are known")
        })
    }

    pub fn decode(bytes: &[u8]) -> Result<(BucketResult, Record), ResultError> {
        let result = BucketResult::read(bytes)?;
        let record = result.record()?;
        Ok((result, record))
    }

    /// A result whose series are not decoded yet.
    pub fn read(bytes: &[u8]) -> Result<BucketResult, ResultError> {
        let Some((&VERSION, rest)) = bytes.split_first() else {
            let found = bytes.first().copied().unwrap_or_default();
            return Err(ResultError::Version { found });
        };
        Ok(postcard::from_bytes(rest)?)
    }

    /// Whether a newer program wrote it: a log keeps what was written, so damage does not look like this.
    pub(crate) fn is_newer(result: &Result<BucketResult, ResultError>) -> bool {
        match result {
            Ok(result) => result
                .record
                .first()
                .is_some_and(|found| *found > weir_state::VERSION),
            Err(ResultError::Version { found }) => *found > VERSION,
            Err(_) => false,
        }
    }

    /// Its series, read one at a time.
    pub fn series(&self) -> Result<RecordSeries, ResultError> {
        RecordSeries::decode(&self.record).map_err(ResultError::Record)
    }

    /// Its series.
    pub fn record(&self) -> Result<Record, ResultError> {
        Record::decode(&self.record).map_err(ResultError::Record)
    }
}
