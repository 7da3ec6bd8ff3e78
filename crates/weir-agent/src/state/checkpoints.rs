//! Checkpoints: the open bucket as it survives a kill.
//!
//! Each worker has a file `open-EPOCH-N`, which starts empty with each bucket and gets the changes of every second. It carries the epoch of
//! its process, also in its name: during a hand-over two processes have files. [`super::tally`] says when it counts. Nothing is synced: this covers the death of the process, not of the machine.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use weir_ingest::{CheckpointLink, CheckpointPart, KnownClient, SavedSeries, timestamped_pieces};
use weir_protocol::Kind;
use weir_state::{AgentId, Entry, Facts, Identity, State, StreamReader};
use weir_status::status::SaveStatus;

use super::content::OpenBucket;
use super::numbers::{NumberNotes, SavedPayloads};
use super::tally::{Tally, WORKERS_MAX};
use crate::life::fixes::{self, Rule};
use weir_system::disk::{self, Disk, Sink};

/// Parts of one worker that may wait for the disk: a complete checkpoint.
const PIECES_MAX: usize = 72;

const BEGIN: u8 = b'B';
const SERIES: u8 = b'S';
/// Versions that do not know it skip it.
const CLIENTS: u8 = b'C';
/// So is this.
const TIMESTAMPED: u8 = b'T';
const MARK: u8 = b'M';

/// Tag, length and checksum.
const FRAME_HEAD: usize = 9;

#[derive(Serialize, Deserialize)]
pub struct Begin {
    agent: [u8; 16],
    /// Of the process that wrote it; 0 in files of versions without it.
    #[serde(default)]
    epoch: u64,
    pub histogram_points: String,
    pub bucket: OpenBucket,
    /// Samples of the worker in buckets that had ended before; absent in files of versions without it.
    #[serde(default)]
    pub ended: Option<u64>,
}

#[derive(Serialize, Deserialize)]
pub struct Mark {
    pub samples: u64,
    /// Requests with a number that the worker had added since its start.
    #[serde(default)]
    pub payloads: u64,
    pub at_ms: i64,
}

/// The beginning of the names of all checkpoints.
pub const BEGINNING: &str = "open-";

/// Versions without epochs, whose epoch is 0, had no number in it.
fn name(epoch: u64, worker: usize) -> String {
    match epoch {
        0 => format!("{BEGINNING}{worker}"),
        epoch => format!("{BEGINNING}{epoch}-{worker}"),
    }
}

/// Removes those of processes that `is_over` says it of.
pub fn forget(disk: &dyn Disk, is_over: impl Fn(u64) -> bool) {
    for name in disk.names().unwrap_or_default() {
        let Some(rest) = name.strip_prefix(BEGINNING) else {
            continue;
        };
        let epoch = rest
            .split_once('-')
            .map_or(Some(0), |(epoch, _)| epoch.parse().ok());
        if epoch.is_some_and(&is_over) {
            let _ = disk.remove(&name);
        }
    }
}

/// Temporary name; the file replaces the previous one with its first complete checkpoint.
fn unfinished(epoch: u64, worker: usize) -> String {
    format!("{}.new", name(epoch, worker))
}

/// Attempts to write the state that failed, for the status.
#[derive(Debug, Default)]
pub struct SaveFailures {
    count: AtomicU64,
    last: Mutex<Option<String>>,
}

impl SaveFailures {
    pub fn add(&self, error: &io::Error) {
        self.count.fetch_add(1, Ordering::Relaxed);
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.to_string());
    }

    pub fn report(&self, status: &mut SaveStatus) {
        status.saves_failed += self.count.load(Ordering::Relaxed);
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        status.save_error.clone_from(&last);
    }
}

/// The progress of the thread that writes.
#[derive(Clone, Default)]
pub struct CheckpointProgress {
    /// The last write failed.
    pub is_failing: Arc<AtomicBool>,
    /// Every worker has a complete checkpoint, so the bucket that the process continued counts no more.
    pub is_complete: Arc<AtomicBool>,
    starts_over: Vec<Arc<AtomicBool>>,
    /// Of this thread and of what writes books and sums.
    pub failures: Arc<SaveFailures>,
    /// The payloads in complete checkpoints.
    pub saved: SavedPayloads,
}

impl CheckpointProgress {
    /// The next checkpoint of each worker begins a new file.
    pub fn start_over(&self) {
        self.starts_over
            .iter()
            .for_each(|worker| worker.store(true, Ordering::Release));
    }
}

/// The writer, and for each worker its way to it, with `bytes_max` of memory each.
pub fn prepare(
    disk: &Arc<dyn Disk>,
    agent: AgentId,
    tally: &Arc<Tally>,
    notes: Option<&Arc<NumberNotes>>,
    histogram_points: String,
    workers: usize,
    bytes_max: usize,
) -> (CheckpointWriter, Vec<CheckpointLink>) {
    let (pieces, inbox) = sync_channel(PIECES_MAX * workers);
    let is_failing = Arc::<AtomicBool>::default();
    let progress = CheckpointProgress {
        starts_over: (0..workers).map(|_| Arc::default()).collect(),
        saved: SavedPayloads::new(workers.min(WORKERS_MAX), is_failing.clone()),
        is_failing,
        ..CheckpointProgress::default()
    };
    let writer = CheckpointWriter {
        inbox,
        disk: disk.clone(),
        agent,
        tally: tally.clone(),
        histogram_points,
        files: BTreeMap::new(),
        begun: BTreeSet::new(),
        awaited: (0..workers as u16).collect(),
        finished: BTreeSet::new(),
        marked: vec![0; workers],
        progress: progress.clone(),
        is_warned: false,
        bytes_in_transit: (0..workers).map(|_| Arc::default()).collect(),
    };
    let bytes_in_transit = writer.bytes_in_transit.clone();
    let link = |worker: usize| CheckpointLink {
        pieces: pieces.clone(),
        bytes_in_transit: bytes_in_transit[worker].clone(),
        bytes_max,
        tally: tally.of_worker(worker),
        starts_over: progress.starts_over[worker].clone(),
        numbers: notes.map(|notes| notes.link(worker, &progress.saved)),
    };
    let links = (0..workers.min(WORKERS_MAX)).map(link).collect();
    (writer, links)
}

/// Writes the parts of checkpoints to their files.
pub struct CheckpointWriter {
    inbox: Receiver<CheckpointPart>,
    disk: Arc<dyn Disk>,
    agent: AgentId,
    tally: Arc<Tally>,
    histogram_points: String,
    files: BTreeMap<u16, Box<dyn Sink>>,
    /// Workers whose file has no complete checkpoint yet.
    begun: BTreeSet<u16>,
    /// Workers without a complete checkpoint: until none is left for the first time, the bucket that the process began with counts.
    awaited: BTreeSet<u16>,
    /// Workers with a complete checkpoint that waits for those, or could not be renamed.
    finished: BTreeSet<u16>,
    /// The payloads in the last complete checkpoint of each worker.
    marked: Vec<u64>,
    progress: CheckpointProgress,
    is_warned: bool,
    /// Bytes of each worker that are not written yet.
    bytes_in_transit: Vec<Arc<AtomicUsize>>,
}

impl CheckpointWriter {
    pub fn progress(&self) -> CheckpointProgress {
        self.progress.clone()
    }

    /// Writes what arrives, until all workers have ended.
    pub fn run(&mut self) {
        while let Ok(part) = self.inbox.recv() {
            self.take(&part);
        }
    }

    /// Writes the next part that has arrived. False: none has.
    #[cfg(test)]
    pub fn step(&mut self) -> bool {
        let part = self.inbox.try_recv();
        part.is_ok_and(|part| {
            self.take(&part);
            true
        })
    }

    fn take(&mut self, part: &CheckpointPart) {
        match self.write(part) {
            Ok(true) => self.progress.is_failing.store(false, Ordering::Release),
            Ok(false) => {}
            Err(error) => self.failed(part, &error),
        }
        if let CheckpointPart::Series { worker, bytes }
        | CheckpointPart::Timestamped { worker, bytes }
        | CheckpointPart::Clients { worker, bytes } = part
        {
            self.bytes_in_transit[usize::from(*worker)].fetch_sub(bytes.len(), Ordering::Relaxed);
        }
    }

    /// Whatever follows what was not written is of no use: the worker begins again.
    fn failed(&mut self, piece: &CheckpointPart, error: &io::Error) {
        let (CheckpointPart::Begin { worker, .. }
        | CheckpointPart::Series { worker, .. }
        | CheckpointPart::Timestamped { worker, .. }
        | CheckpointPart::Clients { worker, .. }
        | CheckpointPart::Mark { worker, .. }) = piece;
        self.files.remove(worker);
        self.begun.remove(worker);
        self.progress.starts_over[usize::from(*worker)].store(true, Ordering::Release);
        self.progress.is_failing.store(true, Ordering::Release);
        self.progress.failures.add(error);
        self.progress.saved.changed();
        if !std::mem::replace(&mut self.is_warned, true) {
            tracing::warn!("state_path: the open bucket cannot be saved, and a kill would lose it: {error}");
        }
    }

    /// False: it belongs to something that was not written.
    fn write(&mut self, piece: &CheckpointPart) -> io::Result<bool> {
        let (worker, tag, body) = match piece {
            CheckpointPart::Begin {
                worker,
                bucket,
                ended,
            } => {
                let file = self
                    .disk
                    .create(&unfinished(self.tally.epoch(), usize::from(*worker)))?;
                self.files.insert(*worker, file);
                self.begun.insert(*worker);
                // The new file takes the place of its complete checkpoint, so the bucket that the process began with still counts.
                if self.finished.remove(worker) && !self.progress.is_complete.load(Ordering::Acquire) {
                    self.awaited.insert(*worker);
                }
                let begin = Begin {
                    agent: self.agent.0,
                    epoch: self.tally.epoch(),
                    histogram_points: self.histogram_points.clone(),
                    bucket: (*bucket).into(),
                    ended: Some(*ended),
                };
                (worker, BEGIN, Cow::Owned(serde_json::to_vec(&begin)?))
            }
            CheckpointPart::Series { worker, bytes } => (worker, SERIES, Cow::Borrowed(bytes)),
            CheckpointPart::Timestamped { worker, bytes } => (worker, TIMESTAMPED, Cow::Borrowed(bytes)),
            CheckpointPart::Clients { worker, bytes } => (worker, CLIENTS, Cow::Borrowed(bytes)),
            CheckpointPart::Mark {
                worker,
                samples,
                payloads,
                at_ms,
            } => {
                let mark = Mark {
                    samples: *samples,
                    payloads: *payloads,
                    at_ms: *at_ms,
                };
                (worker, MARK, Cow::Owned(serde_json::to_vec(&mark)?))
            }
        };
        let Some(file) = self.files.get_mut(worker) else {
            return Ok(false);
        };
        let mut head = [tag; FRAME_HEAD];
        head[1..5].copy_from_slice(&(body.len() as u32).to_le_bytes());
        head[5..].copy_from_slice(&crc32fast::hash(&body).to_le_bytes());
        // A kill between the two leaves a frame that is not whole, which is not read.
        file.write_all(&head)?;
        file.write_all(&body)?;
        if let CheckpointPart::Mark { payloads, .. } = piece {
            if self.begun.remove(worker) {
                self.finish(*worker)?;
            }
            self.marked(*worker, *payloads);
        }
        Ok(true)
    }

    /// Says which payloads are safe: not before checkpoints count instead of what the process began with.
    fn marked(&mut self, worker: u16, payloads: u64) {
        self.marked[usize::from(worker)] = payloads;
        if self.progress.is_complete.load(Ordering::Acquire) {
            for (worker, payloads) in self.marked.iter().enumerate() {
                self.progress.saved.set(worker, *payloads);
            }
        }
    }

    /// Renames a file after its first complete checkpoint, but not before every worker has one: until then the bucket that the process
    /// began with is a whole, and afterwards that of its workers is.
    fn finish(&mut self, worker: u16) -> io::Result<()> {
        self.finished.insert(worker);
        self.awaited.remove(&worker);
        if !self.awaited.is_empty() {
            return Ok(());
        }
        let epoch = self.tally.epoch();
        while let Some(&worker) = self.finished.first() {
            let number = usize::from(worker);
            self.disk
                .rename(&unfinished(epoch, number), &name(epoch, number))?;
            self.finished.remove(&worker);
        }
        self.tally.complete();
        self.progress.is_complete.store(true, Ordering::Release);
        Ok(())
    }
}

/// Why a checkpoint is not used.
pub enum Unusable {
    /// There is none of this process.
    Missing,
    /// With the reason.
    Damaged(String),
}

/// The file of one worker.
pub struct WorkerCheckpoint {
    pub begin: Begin,
    pub mark: Mark,
    pub series: BTreeMap<(Kind, u32), (Identity, Facts, State)>,
    /// Points with their own timestamp, by row.
    timestamped: BTreeMap<u32, SavedSeries>,
    pub clients: BTreeMap<u128, KnownClient>,
}

impl WorkerCheckpoint {
    /// The checkpoint of a worker of the process with this epoch.
    pub fn read(
        disk: &dyn Disk,
        worker: usize,
        agent: AgentId,
        epoch: u64,
        bytes_max: u64,
    ) -> Result<WorkerCheckpoint, Unusable> {
        let damaged = |error: io::Error| Unusable::Damaged(error.to_string());
        let file = disk.open(&name(epoch, worker)).map_err(|_| Unusable::Missing)?;
        if file.bytes().map_err(damaged)? > bytes_max {
            return Err(Unusable::Damaged("it is larger than `memory` allows".into()));
        }
        let bytes = disk::whole(&*file).map_err(damaged)?;
        let read = Self::parse(&bytes, agent);
        let read = read.ok_or_else(|| Unusable::Damaged("its beginning cannot be read".into()))?;
        match (read.begin.agent, read.begin.epoch) == (agent.0, epoch) {
            true => Ok(read),
            false => Err(Unusable::Missing),
        }
    }

    fn parse(bytes: &[u8], agent: AgentId) -> Option<WorkerCheckpoint> {
        let mut frames = Frames(bytes);
        let (BEGIN, body) = frames.next()? else {
            return None;
        };
        let begin: Begin = serde_json::from_slice(body).ok()?;
        let mut open = WorkerCheckpoint {
            begin,
            mark: Mark {
                samples: 0,
                payloads: 0,
                at_ms: 0,
            },
            series: BTreeMap::new(),
            timestamped: BTreeMap::new(),
            clients: BTreeMap::new(),
        };
        open.mark.at_ms = open.begin.bucket.start * 1000;
        let mut waiting = Vec::new();
        // Ignores everything after the last mark, and an incomplete end.
        for (tag, body) in frames {
            match tag {
                SERIES | TIMESTAMPED | CLIENTS => waiting.push((tag, body)),
                MARK => {
                    let Ok(mark) = serde_json::from_slice(body) else {
                        break;
                    };
                    open.mark = mark;
                    for (tag, body) in waiting.drain(..) {
                        match tag {
                            CLIENTS => open.know(body),
                            TIMESTAMPED => open.apply_timestamped(agent, body),
                            _ => open.apply(agent, body),
                        }
                    }
                }
                _ => {}
            }
        }
        Some(open)
    }

    fn know(&mut self, body: &[u8]) {
        if fixes::lacks(Rule::CheckpointsHaveNumbers) {
            return;
        }
        let clients = KnownClient::decode(body).unwrap_or_default();
        self.clients
            .extend(clients.into_iter().map(|known| (known.client, known)));
    }

    /// The points with their own timestamp, for a state.
    pub fn timestamped(&self) -> Vec<Vec<u8>> {
        let points = self
            .timestamped
            .iter()
            .map(|(&number, point)| entry(number, point));
        timestamped_pieces(AgentId(self.begin.agent), points)
    }

    fn apply_timestamped(&mut self, agent: AgentId, body: &[u8]) {
        if fixes::lacks(Rule::CheckpointsHaveTimestampedPoints) {
            return;
        }
        let mut reader = StreamReader::new(agent, body);
        while let Ok(Some(entry)) = reader.next_entry() {
            if let Some(named) = entry.named {
                let point = (named.identity(entry.kind), entry.facts, entry.state);
                self.timestamped.insert(entry.number, point);
            }
        }
    }

    fn apply(&mut self, agent: AgentId, body: &[u8]) {
        let mut reader = StreamReader::new(agent, body);
        while let Ok(Some(entry)) = reader.next_entry() {
            let key = (entry.kind, entry.number);
            match (entry.named, self.series.get_mut(&key)) {
                (Some(named), _) => {
                    let series = (named.identity(entry.kind), entry.facts, entry.state);
                    self.series.insert(key, series);
                }
                (None, Some(known)) => (known.1, known.2) = (entry.facts, entry.state),
                (None, None) => {}
            }
        }
    }
}

fn entry(number: u32, (identity, facts, state): &SavedSeries) -> Entry<'_> {
    Entry {
        number,
        kind: identity.kind,
        named: Some(identity.into()),
        facts: *facts,
        state: state.clone(),
    }
}

/// Complete frames, up to the first incomplete one.
struct Frames<'a>(&'a [u8]);

impl<'a> Iterator for Frames<'a> {
    type Item = (u8, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let (head, rest) = self.0.split_first_chunk::<FRAME_HEAD>()?;
        let [tag, length @ .., _, _, _, _] = head;
        let [.., a, b, c, d] = head;
        let (body, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        if crc32fast::hash(body) != u32::from_le_bytes([*a, *b, *c, *d]) {
            return None;
        }
        self.0 = rest;
        Some((*tag, body))
    }
}

#[cfg(test)]
mod tests {
    use weir_aggregate::Bucket;

    use super::super::tally::Head;
    use super::*;
    use weir_system::disk::SystemDisk;

    /// The checkpoints of a process with two workers.
    struct Case {
        _directory: tempfile::TempDir,
        disk: Arc<dyn Disk>,
        tally: Arc<Tally>,
        writer: CheckpointWriter,
    }

    impl Case {
        fn new() -> Case {
            let directory = tempfile::tempdir().unwrap();
            let disk: Arc<dyn Disk> = Arc::new(SystemDisk::of(directory.path()));
            let head = Head {
                agent: AgentId::default(),
                epoch: 7,
                base: 6,
                continued: None,
                workers: 2,
                started_ms: 0,
            };
            let tally = Arc::new(Tally::new(&disk, head, &[]).unwrap());
            let (writer, _) = prepare(&disk, AgentId::default(), &tally, None, String::new(), 2, 1 << 20);
            Case {
                _directory: directory,
                disk,
                tally,
                writer,
            }
        }

        fn begins(&mut self, worker: u16, start: i64) {
            let bucket = Bucket {
                start,
                timestamp: start,
                width: 10,
            };
            self.writer.take(&CheckpointPart::Begin {
                worker,
                bucket,
                ended: 0,
            });
        }

        fn is_complete_after(&mut self, worker: u16) -> bool {
            self.writer.take(&CheckpointPart::Mark {
                worker,
                samples: 1,
                payloads: 0,
                at_ms: 0,
            });
            self.writer.progress.is_complete.load(Ordering::Acquire)
        }

        /// The bucket in the file of each worker.
        fn buckets(&self) -> [Option<i64>; 2] {
            [0, 1].map(|worker| {
                let read = WorkerCheckpoint::read(
                    &*self.disk,
                    worker,
                    AgentId::default(),
                    self.tally.epoch(),
                    u64::MAX,
                );
                read.ok().map(|file| file.begin.bucket.start)
            })
        }
    }

    #[test]
    fn the_bucket_at_the_start_counts_until_all_have_a_complete_checkpoint_at_once() {
        let mut case = Case::new();
        case.begins(1, 10);
        assert!(!case.is_complete_after(1));
        // Its next bucket takes the place of the checkpoint that waited for the other worker's.
        case.begins(1, 20);
        case.begins(0, 20);
        assert!(!case.is_complete_after(0));
        assert_eq!(case.buckets(), [None, None]);
        assert!(case.is_complete_after(1));
        assert_eq!(case.buckets(), [Some(20), Some(20)]);
        // From then on the files of the bucket before count until the new ones are whole.
        case.begins(1, 30);
        assert!(case.is_complete_after(0));
        assert_eq!(case.buckets(), [Some(20), Some(20)]);
        assert!(case.is_complete_after(1));
        assert_eq!(case.buckets(), [Some(20), Some(30)]);
    }

    #[test]
    fn a_checkpoint_that_cannot_be_renamed_is_awaited_further() {
        let mut case = Case::new();
        case.begins(0, 10);
        case.begins(1, 10);
        assert!(!case.is_complete_after(1));
        case.disk.remove(&unfinished(7, 1)).unwrap();
        assert!(!case.is_complete_after(0));
        assert_eq!(case.buckets(), [Some(10), None]);
        assert!(case.writer.progress.starts_over[0].load(Ordering::Acquire));
        case.begins(0, 10);
        assert!(!case.is_complete_after(0));
        case.begins(1, 20);
        assert!(case.is_complete_after(1));
        assert_eq!(case.buckets(), [Some(10), Some(20)]);
    }
}
