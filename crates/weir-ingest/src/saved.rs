//! The open bucket, on its way from one process to the next.

use std::fmt;
use std::io;

use weir_aggregate::Bucket;
use weir_state::{Facts, Identity, State};

use crate::numbers::KnownClient;

/// One worker's open bucket.
#[derive(Debug, Default)]
pub struct SavedBucket {
    pub worker: u16,
    /// Contexts that the worker remembers.
    pub contexts: u64,
    /// `None`: nothing was open, as nothing is aggregated.
    pub bucket: Option<Bucket>,
    /// Samples in it.
    pub samples: u64,
    pub series: Vec<SavedSeries>,
    /// More series.
    pub encoded: Pieces,
    /// For its UDP sockets: the number in the kernel's tables, and the last drop counter.
    pub drops: Vec<(u64, u32)>,
    /// The numbers of requests whose points are in this bucket or were in one before.
    pub clients: Vec<KnownClient>,
}

/// Series as [`weir_state::StreamWriter`] writes them, in pieces: only one of them is in memory at a time.
#[derive(Default)]
pub struct Pieces {
    pub bytes: usize,
    /// `None`: there are none.
    pub each: Option<Box<dyn Iterator<Item = io::Result<Vec<u8>>> + Send>>,
}

impl fmt::Debug for Pieces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pieces")
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}

impl From<Vec<Vec<u8>>> for Pieces {
    fn from(pieces: Vec<Vec<u8>>) -> Self {
        Pieces {
            bytes: pieces.iter().map(Vec::len).sum(),
            each: Some(Box::new(pieces.into_iter().map(Ok))),
        }
    }
}

/// Takes pieces of series as they are written.
pub type PutPiece<'a> = &'a (dyn Fn(&[u8]) -> io::Result<()> + Sync);

pub type SavedSeries = (Identity, Facts, State);

/// The result for the bucket that a worker should continue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Restored {
    pub contexts: u64,
    /// Contexts without room: their samples in the bucket are lost.
    pub refused: u64,
}
