//! The state that a process saves.

#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use weir_aggregate::Bucket;
use weir_ingest::{KnownClient, Pieces, SavedBucket, worker_of};
use weir_output::delivery::{OutputState, SavedQueue};
use weir_state::{AgentId, Bounds, Facts, Header, Record, StreamReader, Table};

use super::disk::Source;
use weir_status::status::Status;

/// The cumulative state of an output, by its name.
pub type SavedOutput = (String, OutputState);

/// The queued payloads of an output's endpoints, by its name.
pub type SavedQueues = (String, Vec<SavedQueue>);

#[derive(Clone, Debug)]
pub struct Content {
    pub meta: Meta,
    /// The bucket of each worker.
    pub encoded: Encoded,
    /// Or, after a kill, the bucket of all workers; and series that are in no piece.
    pub table: Table,
    /// Points with their own timestamp that leave with the bucket, as [`weir_ingest::timestamped_pieces`] has them.
    pub timestamped: Vec<Vec<u8>>,
    pub outputs: BTreeMap<String, OutputState>,
    /// Payloads of outputs that are only in memory, by name.
    pub queues: BTreeMap<String, Vec<SavedQueue>>,
    /// The numbers of requests whose points are in the bucket or were in one before.
    pub clients: Vec<KnownClient>,
    /// Books, including those of earlier processes.
    pub books: Box<Status>,
}

/// The part that is read before the rest.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Meta {
    /// The program that wrote it.
    pub version: String,
    pub agent: [u8; 16],
    pub epoch: u64,
    /// Unix milliseconds.
    pub saved_at_ms: i64,
    /// The open bucket; absent if nothing is aggregated.
    pub bucket: Option<OpenBucket>,
    /// Samples in it.
    pub samples: u64,
    /// The points of histograms, in the numbering of `suffixes`.
    pub histogram_points: String,
    /// The last drop counter of each UDP socket, by its number in the kernel's tables.
    #[serde(default)]
    pub drops: Vec<(u64, u32)>,
    /// Whose buckets are there in pieces.
    #[serde(default)]
    pub workers: usize,
    /// The start of a worker's open bucket, if it is an older one than `bucket`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub older: BTreeMap<u16, i64>,
    /// In the sums of a running process: by output, the samples of its ended buckets that are in them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub summed: BTreeMap<String, u64>,
}

/// Series as [`weir_state::StreamWriter`] writes them. They are in a file, and read piece by piece.
#[derive(Clone, Default)]
pub struct Encoded {
    pub file: Option<Arc<dyn Source>>,
    pub pieces: Vec<EncodedPiece>,
}

impl fmt::Debug for Encoded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.pieces).finish()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EncodedPiece {
    pub worker: u16,
    /// In the file.
    pub at: u64,
    pub bytes: u64,
    /// See [`Meta::older`].
    pub older: Option<i64>,
}

impl Encoded {
    /// The wanted sections; none is left in the end.
    fn take(&mut self, is_wanted: impl Fn(&EncodedPiece) -> bool) -> Pieces {
        let taken: Vec<EncodedPiece> = self.pieces.extract_if(.., |piece| is_wanted(piece)).collect();
        let bytes = taken.iter().map(|piece| piece.bytes as usize).sum();
        let each = self.file.clone().map(|file| {
            let read = taken.into_iter().map(move |piece| {
                let mut bytes = vec![0; piece.bytes as usize];
                file.read_exact_at(&mut bytes, piece.at).map(|()| bytes)
            });
            Box::new(read) as Box<dyn Iterator<Item = io::Result<Vec<u8>>> + Send>
        });
        Pieces { bytes, each }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct OpenBucket {
    pub start: i64,
    pub timestamp: i64,
    pub width: u32,
}

impl OpenBucket {
    /// Unix milliseconds.
    pub fn end_ms(&self) -> i64 {
        (self.start + i64::from(self.width)) * 1000
    }
}

impl From<Bucket> for OpenBucket {
    fn from(bucket: Bucket) -> Self {
        let Bucket {
            start,
            timestamp,
            width,
        } = bucket;
        OpenBucket {
            start,
            timestamp,
            width,
        }
    }
}

impl From<OpenBucket> for Bucket {
    fn from(open: OpenBucket) -> Self {
        let OpenBucket {
            start,
            timestamp,
            width,
        } = open;
        Bucket {
            start,
            timestamp,
            width,
        }
    }
}

/// The newest bucket that is open. Workers see the clock at different moments: if one is in the next bucket already, the samples of the
/// others count in that one.
pub fn newest(saved: &[SavedBucket]) -> Option<Bucket> {
    saved.iter().filter_map(|saved| saved.bucket).max()
}

impl Content {
    /// Nothing but its head.
    pub fn empty(meta: Meta) -> Content {
        Content {
            meta,
            table: Table::new(Bounds::NONE),
            encoded: Encoded::default(),
            timestamped: Vec::new(),
            outputs: BTreeMap::new(),
            queues: BTreeMap::new(),
            clients: Vec::new(),
            books: Box::default(),
        }
    }

    /// Divides the series among `workers`.
    pub fn buckets(&mut self, workers: usize) -> Vec<SavedBucket> {
        let is_older = |piece: &EncodedPiece| piece.older.is_some();
        if self.meta.workers != workers || self.encoded.pieces.iter().any(is_older) {
            self.decode();
        }
        let bucket = self.meta.bucket.map(Bucket::from);
        let one = |worker| SavedBucket {
            bucket,
            encoded: self.encoded.take(|piece| usize::from(piece.worker) == worker),
            ..SavedBucket::default()
        };
        let mut buckets: Vec<SavedBucket> = (0..workers).map(one).collect();
        if let Some(first) = buckets.first_mut() {
            first.samples = self.meta.samples;
            first.timestamped = std::mem::take(&mut self.timestamped);
        }
        let table = std::mem::take(&mut self.table);
        for (number, series) in table.into_series().enumerate() {
            buckets[number % workers].series.push(series);
        }
        for client in std::mem::take(&mut self.clients) {
            buckets[worker_of(client.client, workers)].clients.push(client);
        }
        buckets
    }

    /// Merges the encoded buckets of workers.
    pub fn decode(&mut self) {
        while let Some(EncodedPiece { worker, older, .. }) = self.encoded.pieces.first().copied() {
            let pieces = self.encoded.take(|piece| piece.worker == worker);
            for piece in pieces.each.into_iter().flatten() {
                match piece {
                    Ok(piece) => self.add_piece(&piece, older),
                    Err(error) => {
                        tracing::error!("a part of the previous process's bucket cannot be read: {error}");
                    }
                }
            }
        }
    }

    fn add_piece(&mut self, piece: &[u8], older: Option<i64>) {
        let start = self.meta.bucket.map(|bucket| bucket.start);
        let mut reader = StreamReader::new(AgentId(self.meta.agent), piece);
        // The checksum was compared before.
        while let Ok(Some(entry)) = reader.next_entry() {
            let mut facts = entry.facts;
            if older.is_some_and(|older| facts.seen >= older) {
                facts.seen = start.unwrap_or(facts.seen);
            }
            if let Some(named) = &entry.named {
                self.table.add(named.identity(entry.kind), facts, entry.state);
            }
        }
    }

    /// Sets the default points for every histogram.
    pub fn set_suffixes(&mut self, suffixes: u32) {
        self.decode();
        let mut table = Table::new(Bounds::NONE);
        for (identity, facts, state) in std::mem::take(&mut self.table).into_series() {
            table.add(identity, Facts { suffixes, ..facts }, state);
        }
        self.table = table;
    }

    pub(super) fn records(&self) -> Vec<Vec<u8>> {
        let bucket = self.meta.bucket;
        let header = Header {
            agent: AgentId(self.meta.agent),
            epoch: self.meta.epoch,
            bucket_start: bucket.map_or(0, |bucket| bucket.start),
            bucket_width: bucket.map_or(1, |bucket| bucket.width),
            is_open: true,
            ..Header::default()
        };
        let (records, too_large) = self.table.encode(&header);
        if too_large.series > 0 {
            tracing::warn!(
                "{} series are too large to be kept for the next process",
                too_large.series
            );
        }
        records
    }

    pub(super) fn add_record(&mut self, record: &Record) {
        self.table.add_record(record);
    }
}
