//! The open bucket, on its way from one process to the next.

use std::fmt;
use std::io;

use weir_aggregate::Bucket;
use weir_state::{AgentId, Entry, Facts, Identity, State, StreamWriter};

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
    /// Points with their own timestamp that leave with the bucket, as [`timestamped_pieces`] has them.
    pub timestamped: Vec<Vec<u8>>,
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

/// About how large a piece of points is.
const TIMESTAMPED_BYTES: usize = 64 << 10;

/// Points with their own timestamp as [`weir_state::StreamWriter`] writes them: the time of a series is its timestamp.
pub fn timestamped_pieces<'a>(agent: AgentId, points: impl Iterator<Item = Entry<'a>>) -> Vec<Vec<u8>> {
    let mut writer = StreamWriter::new(agent);
    let mut pieces = Vec::new();
    for point in points {
        writer.add(&point);
        if writer.written().len() >= TIMESTAMPED_BYTES {
            pieces.push(std::mem::replace(&mut writer, StreamWriter::new(agent)).finish());
        }
    }
    match writer.written() {
        [] => {}
        rest => pieces.push(rest.to_vec()),
    }
    pieces
}

pub type SavedSeries = (Identity, Facts, State);

/// The result for the bucket that a worker should continue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Restored {
    pub contexts: u64,
    /// Contexts without room: their samples in the bucket are lost.
    pub refused: u64,
}
