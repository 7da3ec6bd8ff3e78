//! Writes the open bucket to a file every second, in case the process is killed: in slices between receive turns, and only changed series.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use weir_aggregate::{Bucket, ProcessStamp};
use weir_context::PARTITIONS;
use weir_protocol::Kind;
use weir_state::StreamWriter;

use crate::ingest::Ingest;
use crate::numbers::NumberLink;

/// Contexts looked at between two receive turns, and a partition more: less than a millisecond's worth.
const SLICE_CONTEXTS: usize = 256;

/// Wait before the next slice when too many bytes are on their way to the disk.
const PAUSE: Duration = Duration::from_millis(10);

/// A part of a checkpoint, in the order in which they are made.
#[derive(Debug)]
pub enum CheckpointPart {
    /// A bucket has begun: the previous ones have been handed over, with so many samples since the worker's start.
    Begin { worker: u16, bucket: Bucket, ended: u64 },
    /// As [`weir_state::StreamWriter`] writes it.
    Series { worker: u16, bytes: Vec<u8> },
    /// Points that leave with the bucket and have their own timestamp, as [`weir_state::StreamWriter`] writes them: the time of a series is
    /// its timestamp, and its number that of a row.
    Timestamped { worker: u16, bytes: Vec<u8> },
    /// Clients whose numbers have changed, as [`KnownClient::encode`](crate::KnownClient::encode) writes them.
    Clients { worker: u16, bytes: Vec<u8> },
    /// All changes are written: this many samples, and this many payloads with a number since the start, at this Unix millisecond.
    Mark {
        worker: u16,
        samples: u64,
        payloads: u64,
        at_ms: i64,
    },
}

/// Destination of a worker's checkpoints.
pub struct CheckpointLink {
    pub pieces: SyncSender<CheckpointPart>,
    /// Bytes of series on their way, which their receiver takes off again; and when the next piece waits.
    pub bytes_in_transit: Arc<AtomicUsize>,
    pub bytes_max: usize,
    /// Called after each turn and at the end of each bucket, so it must be cheap.
    pub tally: Box<dyn Fn(WorkerTally) + Send>,
    /// Set when the receiver has lost what came so far: the next checkpoint begins from the start.
    pub starts_over: Arc<AtomicBool>,
    /// Place of the numbers of clients' requests; `None`: requests have none.
    pub numbers: Option<NumberLink>,
}

/// The samples that a worker has received, as of its last turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerTally {
    /// Start of the open bucket.
    pub bucket: i64,
    /// Samples in it.
    pub open: u64,
    /// Samples in all buckets that have ended since the start, whether they have been handed over or not.
    pub ended: u64,
    /// Unix milliseconds.
    pub at_ms: i64,
}

/// The open bucket, and the samples in those that have ended since the start.
fn open_bucket(ingest: &Ingest) -> (Bucket, u64) {
    let aggregator = ingest.aggregator();
    (aggregator.open_bucket(), aggregator.ended_samples())
}

pub(super) struct Checkpoints {
    worker: u16,
    link: CheckpointLink,
    /// The bucket in the file, and the samples in those that had ended before it: a clock that is set back brings a bucket again.
    bucket: Option<(Bucket, u64)>,
    /// By kind, a bit for each context whose name is in the file.
    named: [Vec<u64>; Kind::ALL.len()],
    /// The file contains all changes before this second.
    since: i64,
    /// The file has the numbers of all payloads up to this one.
    payloads: u64,
    round: Option<Round>,
    waits: u64,
    is_waiting: bool,
    /// The next one begins once no payload of columns is half added.
    is_due: bool,
}

/// One walk over all contexts.
struct Round {
    /// Rows of points with their own timestamp that were looked at, before the first partition.
    rows: usize,
    partition: usize,
    began: i64,
    /// In the bucket when it began.
    samples: u64,
    /// All that there are: none is added meanwhile.
    payloads: u64,
}

impl Checkpoints {
    pub(super) fn new(worker: u16, link: CheckpointLink) -> Self {
        Checkpoints {
            worker,
            link,
            bucket: None,
            named: Default::default(),
            since: i64::MIN,
            payloads: 0,
            round: None,
            waits: 0,
            is_waiting: false,
            is_due: false,
        }
    }

    /// Time until the next slice is due; `None`: no checkpoint is in progress.
    pub(super) fn pause(&self) -> Option<Duration> {
        let pause = if self.is_waiting { PAUSE } else { Duration::ZERO };
        self.round.as_ref().map(|_| pause)
    }

    /// Bytes that wait for the disk.
    pub(super) fn bytes(&self) -> usize {
        self.link.bytes_in_transit.load(Ordering::Relaxed)
    }

    /// Times that the next piece had to wait for the disk.
    pub(super) fn waits(&self) -> u64 {
        self.waits
    }

    /// Counts what was received, and that a bucket has ended, before a part of that is handed over.
    pub(super) fn count(&self, ingest: &Ingest, now_ms: i64) {
        let aggregator = ingest.aggregator();
        (self.link.tally)(WorkerTally {
            bucket: aggregator.open_bucket().start,
            open: aggregator.open_samples(),
            ended: aggregator.ended_samples(),
            at_ms: now_ms,
        });
    }

    /// Asks for the next checkpoint.
    pub(super) fn request(&mut self) {
        self.is_due = true;
    }

    /// Begins the checkpoint that was asked for.
    pub(super) fn begin_if_due(&mut self, ingest: &Ingest, now: i64) {
        if self.is_due {
            self.is_due = false;
            self.begin(ingest, now);
        }
    }

    /// Whether a payload of columns has to wait, because it would be in a checkpoint in part.
    pub(super) fn holds_payloads(&self) -> bool {
        self.is_due || self.round.is_some()
    }

    /// Starts to write the changes, unless it is still writing.
    pub(super) fn begin(&mut self, ingest: &Ingest, now: i64) {
        if self.link.starts_over.swap(false, Ordering::AcqRel) {
            self.abandon();
        }
        if self.round.is_some() || ingest.is_draining() {
            return;
        }
        let (bucket, ended) = open_bucket(ingest);
        if self.bucket != Some((bucket, ended)) {
            let worker = self.worker;
            if self
                .link
                .pieces
                .try_send(CheckpointPart::Begin {
                    worker,
                    bucket,
                    ended,
                })
                .is_err()
            {
                return;
            }
            self.bucket = Some((bucket, ended));
            self.named.iter_mut().for_each(Vec::clear);
            self.since = i64::MIN;
        }
        self.round = Some(Round {
            rows: 0,
            partition: 0,
            began: now,
            samples: 0,
            payloads: 0,
        });
    }

    /// The next slice.
    pub(super) fn proceed(&mut self, ingest: &Ingest, stamp: ProcessStamp, now_ms: i64) {
        let aggregator = ingest.aggregator();
        if ingest.is_draining() || self.bucket != Some(open_bucket(ingest)) {
            self.round = None;
        }
        let waits = self.round.is_some() && self.bytes() >= self.link.bytes_max;
        self.waits += u64::from(waits && !self.is_waiting);
        self.is_waiting = waits;
        if waits {
            return;
        }
        let mut looked = 0;
        while looked < SLICE_CONTEXTS
            && let Some(round) = &mut self.round
        {
            if (round.rows, round.partition) == (0, 0) {
                round.samples = aggregator.open_samples();
                round.payloads = ingest.numbers().payloads();
                if !self.send_clients(ingest) {
                    self.abandon();
                    return;
                }
            }
            let Some(round) = &mut self.round else { return };
            let rows = round.rows..aggregator.kept_rows().min(round.rows + SLICE_CONTEXTS);
            if !rows.is_empty() {
                round.rows = rows.end;
                looked += rows.len();
                if !self.send_timestamped(ingest, rows, stamp) {
                    self.abandon();
                }
                continue;
            }
            let partition = round.partition;
            round.partition += 1;
            looked += ingest.contexts_in(partition);
            let bytes = ingest.changes(partition, self.since, stamp, &mut self.named);
            if !bytes.is_empty() && !self.send(bytes) {
                self.abandon();
            } else if partition + 1 == PARTITIONS {
                self.end(aggregator.open_samples(), now_ms);
            }
        }
    }

    /// The payload after which the changes are wanted. `None`: in a file that begins, all are.
    fn after(&self) -> Option<u64> {
        (self.since != i64::MIN).then_some(self.payloads)
    }

    /// The clients whose numbers have changed.
    fn send_clients(&self, ingest: &Ingest) -> bool {
        let (worker, bytes) = (self.worker, ingest.numbers().changes(self.after()));
        bytes.is_empty() || self.send_part(bytes.len(), CheckpointPart::Clients { worker, bytes })
    }

    /// The points with their own timestamp that have changed.
    fn send_timestamped(&self, ingest: &Ingest, rows: Range<usize>, stamp: ProcessStamp) -> bool {
        let mut writer = StreamWriter::new(stamp.agent);
        let changes = ingest.aggregator().kept_changes(rows, self.after(), stamp);
        changes.for_each(|entry| writer.add(&entry));
        let (worker, bytes) = (self.worker, writer.finish());
        bytes.is_empty() || self.send_part(bytes.len(), CheckpointPart::Timestamped { worker, bytes })
    }

    fn send(&self, bytes: Vec<u8>) -> bool {
        let worker = self.worker;
        self.send_part(bytes.len(), CheckpointPart::Series { worker, bytes })
    }

    fn send_part(&self, length: usize, part: CheckpointPart) -> bool {
        self.link.bytes_in_transit.fetch_add(length, Ordering::Relaxed);
        let sent = self.link.pieces.try_send(part);
        if sent.is_err() {
            self.link.bytes_in_transit.fetch_sub(length, Ordering::Relaxed);
        }
        sent.is_ok()
    }

    /// All changes are on their way.
    fn end(&mut self, samples_now: u64, at_ms: i64) {
        let Some(round) = self.round.take() else { return };
        let mark = CheckpointPart::Mark {
            worker: self.worker,
            // The walk took a moment, in which some proceeded.
            samples: round.samples.midpoint(samples_now),
            payloads: round.payloads,
            at_ms,
        };
        match self.link.pieces.try_send(mark) {
            Ok(()) => (self.since, self.payloads) = (round.began, round.payloads),
            Err(_) => self.abandon(),
        }
    }

    /// The writer is behind: the next one begins from the start.
    fn abandon(&mut self) {
        (self.round, self.bucket) = (None, None);
    }
}
