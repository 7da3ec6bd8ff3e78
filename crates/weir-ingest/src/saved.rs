//! The open bucket, on its way from one process to the next.

use weir_aggregate::Bucket;
use weir_state::{Facts, Identity, State};

/// One worker's open bucket.
#[derive(Clone, Debug, Default)]
pub struct SavedBucket {
    /// `None`: nothing was open, as nothing is aggregated.
    pub bucket: Option<Bucket>,
    /// Samples in it.
    pub samples: u64,
    pub series: Vec<SavedSeries>,
    /// More series, as [`weir_state::StreamWriter`] writes them.
    pub encoded: Vec<u8>,
    /// For its UDP sockets: the number in the kernel's tables, and the last drop counter.
    pub drops: Vec<(u64, u32)>,
}

pub type SavedSeries = (Identity, Facts, State);

/// The result for the bucket that a worker should continue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Restored {
    pub contexts: u64,
    /// Contexts without room: their samples in the bucket are lost.
    pub refused: u64,
}
