//! The open bucket, on its way from one process to the next.

use weir_aggregate::Bucket;
use weir_state::{Facts, Identity, State};

/// What one worker had in the bucket that was open.
#[derive(Clone, Debug, Default)]
pub struct SavedBucket {
    /// `None`: nothing was open, as nothing is aggregated.
    pub bucket: Option<Bucket>,
    /// Samples in it.
    pub samples: u64,
    pub series: Vec<SavedSeries>,
    /// More series, as [`weir_state::StreamWriter`] writes them.
    pub encoded: Vec<u8>,
    /// Of its UDP sockets: the number in the kernel's tables, and what the counter of drops said last.
    pub drops: Vec<(u64, u32)>,
}

pub type SavedSeries = (Identity, Facts, State);

/// The result for the bucket that a worker should continue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Restored {
    pub contexts: u64,
    /// Contexts for which there was no room: what they had in the bucket is lost.
    pub refused: u64,
}
