//! The state that a process saves.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use weir_aggregate::Bucket;
use weir_ingest::{KnownClient, Pieces, SavedBucket, worker_of};
use weir_output::delivery::{OutputState, SavedQueue};
use weir_state::{AgentId, Bounds, Facts, Header, StreamReader, Table};

use weir_status::status::Status;
use weir_system::disk::Source;

/// The cumulative state of an output, by its name.
pub type SavedOutput = (String, OutputState);

/// The queued payloads of an output's endpoints, by its name.
pub type SavedQueues = (String, Vec<SavedQueue>);

#[derive(Clone, Debug)]
pub struct Content {
    pub meta: Meta,
    /// The bucket of each worker.
    pub encoded: Encoded,
    /// The same after a kill or once it is decoded, by worker. A file without [`Meta::records_of`] has all in the first.
    pub tables: BTreeMap<u16, Table>,
    /// Points with their own timestamp that leave with the bucket of a worker, as [`weir_ingest::timestamped_pieces`] has them.
    pub timestamped: BTreeMap<u16, Vec<Vec<u8>>>,
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
    /// Whose buckets are there, each for itself.
    #[serde(default)]
    pub workers: usize,
    /// Of `samples`, those in the bucket of each worker: workers end it at different times.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub samples_of: BTreeMap<u16, u64>,
    /// The number of records of each worker, in this order.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub records_of: BTreeMap<u16, usize>,
    /// The number of pieces of each worker with points that have their own timestamp, in this order.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub timestamped_of: BTreeMap<u16, usize>,
    /// The start of a worker's open bucket, if it is an older one than `bucket`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub older: BTreeMap<u16, i64>,
    /// In the sums of a running process: by output, the samples of its ended buckets that are in them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub summed: BTreeMap<String, u64>,
}

/// The number of sections of each worker.
pub fn numbers_of(sections: &BTreeMap<u16, Vec<Vec<u8>>>) -> BTreeMap<u16, usize> {
    let numbers = sections
        .iter()
        .map(|(worker, sections)| (*worker, sections.len()));
    numbers.collect()
}

/// The worker that has the section with this number, if each worker has so many of them.
pub fn owner_of(numbers: &BTreeMap<u16, usize>, section: usize) -> u16 {
    let mut end = 0;
    let found = numbers.iter().find(|(_, number)| {
        end += **number;
        section < end
    });
    found.map_or(0, |(worker, _)| *worker)
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
            tables: BTreeMap::new(),
            encoded: Encoded::default(),
            timestamped: BTreeMap::new(),
            outputs: BTreeMap::new(),
            queues: BTreeMap::new(),
            clients: Vec::new(),
            books: Box::default(),
        }
    }

    /// Whether each of `workers` continues what one worker had.
    fn has_workers(&self, workers: usize) -> bool {
        self.meta.workers == workers
    }

    /// The samples that each of `workers` continues. Where nothing says whose they are, the first one has all of them.
    pub fn samples_of(&self, workers: usize) -> Vec<u64> {
        let of = &self.meta.samples_of;
        let mut each = vec![0; workers];
        if self.has_workers(workers) && of.values().sum::<u64>() == self.meta.samples {
            for (each, worker) in each.iter_mut().zip(0..) {
                *each = of.get(&worker).copied().unwrap_or(0);
            }
        } else if let Some(first) = each.first_mut() {
            *first = self.meta.samples;
        }
        each
    }

    /// Divides the series among `workers`.
    pub fn buckets(&mut self, workers: usize) -> Vec<SavedBucket> {
        let is_older = |piece: &EncodedPiece| piece.older.is_some();
        let has_workers = self.has_workers(workers);
        if !has_workers || self.encoded.pieces.iter().any(is_older) {
            self.decode();
        }
        let bucket = self.meta.bucket.map(Bucket::from);
        let samples = self.samples_of(workers);
        let one = |(worker, samples)| SavedBucket {
            bucket,
            samples,
            encoded: self.encoded.take(|piece| usize::from(piece.worker) == worker),
            ..SavedBucket::default()
        };
        let mut buckets: Vec<SavedBucket> = samples.into_iter().enumerate().map(one).collect();
        for (worker, points) in std::mem::take(&mut self.timestamped) {
            let worker = if has_workers { usize::from(worker) } else { 0 };
            if let Some(bucket) = buckets.get_mut(worker) {
                bucket.timestamped.extend(points);
            }
        }
        let tables = std::mem::take(&mut self.tables);
        if has_workers {
            for (worker, table) in tables {
                if let Some(bucket) = buckets.get_mut(usize::from(worker)) {
                    bucket.series = table.into_series().collect();
                }
            }
        } else {
            let mut all = Table::new(Bounds::NONE);
            for (identity, facts, state) in tables.into_values().flat_map(Table::into_series) {
                all.add(identity, facts, state);
            }
            for (number, series) in all.into_series().enumerate() {
                buckets[number % workers].series.push(series);
            }
        }
        for client in std::mem::take(&mut self.clients) {
            buckets[worker_of(client.client, workers)].clients.push(client);
        }
        buckets
    }

    /// Decodes the encoded buckets of workers.
    pub fn decode(&mut self) {
        while let Some(EncodedPiece { worker, older, .. }) = self.encoded.pieces.first().copied() {
            let pieces = self.encoded.take(|piece| piece.worker == worker);
            for piece in pieces.each.into_iter().flatten() {
                match piece {
                    Ok(piece) => self.add_piece(worker, &piece, older),
                    Err(error) => {
                        tracing::error!("a part of the previous process's bucket cannot be read: {error}");
                    }
                }
            }
        }
    }

    /// The decoded series of a worker.
    pub fn table_of(&mut self, worker: u16) -> &mut Table {
        self.tables
            .entry(worker)
            .or_insert_with(|| Table::new(Bounds::NONE))
    }

    fn add_piece(&mut self, worker: u16, piece: &[u8], older: Option<i64>) {
        let start = self.meta.bucket.map(|bucket| bucket.start);
        let mut reader = StreamReader::new(AgentId(self.meta.agent), piece);
        let table = self.table_of(worker);
        // The checksum was compared before.
        while let Ok(Some(entry)) = reader.next_entry() {
            let mut facts = entry.facts;
            if older.is_some_and(|older| facts.seen >= older) {
                facts.seen = start.unwrap_or(facts.seen);
            }
            if let Some(named) = &entry.named {
                table.add(named.identity(entry.kind), facts, entry.state);
            }
        }
    }

    /// Sets the default points for every histogram.
    pub fn set_suffixes(&mut self, suffixes: u32) {
        self.decode();
        for table in self.tables.values_mut() {
            let before = std::mem::replace(table, Table::new(Bounds::NONE));
            for (identity, facts, state) in before.into_series() {
                table.add(identity, Facts { suffixes, ..facts }, state);
            }
        }
    }

    /// The decoded series, by worker.
    pub(super) fn records(&self) -> BTreeMap<u16, Vec<Vec<u8>>> {
        let bucket = self.meta.bucket;
        let header = Header {
            agent: AgentId(self.meta.agent),
            epoch: self.meta.epoch,
            bucket_start: bucket.map_or(0, |bucket| bucket.start),
            bucket_width: bucket.map_or(1, |bucket| bucket.width),
            is_open: true,
            ..Header::default()
        };
        let mut too_large = 0;
        let encoded = self.tables.iter().map(|(worker, table)| {
            let (records, left_out) = table.encode(&header);
            too_large += left_out.series;
            (*worker, records)
        });
        let records = encoded.collect();
        if too_large > 0 {
            tracing::warn!("{too_large} series are too large to be kept for the next process");
        }
        records
    }
}
