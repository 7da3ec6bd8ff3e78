//! Checkpoints: the open bucket as it survives a kill.
//!
//! Each worker has a file `open-N`, which starts empty with each bucket and gets the changes of every second. `tally` is a page of memory
//! that the kernel preserves after a kill: after each turn a worker stores the size of its bucket there. Nothing is synced: this covers the
//! death of the process, not of the machine.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};

use serde::{Deserialize, Serialize};
use weir_ingest::{CheckpointLink, CheckpointPart};
use weir_protocol::Kind;
use weir_state::{AgentId, Bounds, Facts, Identity, State, StreamReader, Table};

use super::content::OpenBucket;
use crate::sys::shared::SharedWords;

const TALLY: &str = "tally";

/// More than the maximum number of workers.
const WORKERS_MAX: usize = 64;

/// Words per worker: start of the bucket, samples in it, Unix milliseconds, and start time of the worker.
const WORDS: usize = 4;

/// Parts of one worker that may wait for the disk: a complete checkpoint.
const PIECES_MAX: usize = 72;

const BEGIN: u8 = b'B';
const SERIES: u8 = b'S';
const MARK: u8 = b'M';

/// Tag, length and checksum.
const FRAME_HEAD: usize = 9;

#[derive(Serialize, Deserialize)]
struct Begin {
    agent: [u8; 16],
    histogram_points: String,
    bucket: OpenBucket,
}

#[derive(Serialize, Deserialize)]
struct Mark {
    samples: u64,
    at_ms: i64,
}

fn path(directory: &Path, worker: usize) -> PathBuf {
    directory.join(format!("open-{worker}"))
}

/// Removes all checkpoints.
pub fn forget(directory: &Path) {
    for worker in 0..WORKERS_MAX {
        let _ = std::fs::remove_file(path(directory, worker));
        let _ = std::fs::remove_file(unfinished(&path(directory, worker)));
    }
    let tally = directory.join(TALLY);
    let _ = std::fs::remove_file(unfinished(&tally));
    let _ = std::fs::remove_file(tally);
}

/// Temporary name; the file replaces the previous one with its first complete checkpoint.
fn unfinished(path: &Path) -> PathBuf {
    path.with_extension("new")
}

/// Starts the thread that writes, and gives each worker its way to it, with `bytes_max` of memory each.
pub fn start(
    directory: &Path,
    agent: AgentId,
    histogram_points: String,
    workers: usize,
    bytes_max: usize,
) -> io::Result<Vec<CheckpointLink>> {
    let tally = unfinished(&directory.join(TALLY));
    let mut file = super::private().create(true).truncate(true).open(tally)?;
    // Allocates the page on the disk.
    file.write_all(&[0; WORKERS_MAX * WORDS * 8])?;
    let words = Arc::new(SharedWords::of(&file, WORKERS_MAX * WORDS)?);
    let (pieces, inbox) = sync_channel(PIECES_MAX * workers);
    let mut writer = Writer {
        directory: directory.to_owned(),
        agent,
        histogram_points,
        files: HashMap::new(),
        begun: HashSet::new(),
        awaited: (0..workers as u16).collect(),
        failed: false,
        bytes_in_transit: (0..workers).map(|_| Arc::default()).collect(),
    };
    let bytes_in_transit = writer.bytes_in_transit.clone();
    std::thread::Builder::new()
        .name("checkpoints".into())
        .spawn(move || {
            crate::sys::let_workers_go_first();
            writer.run(&inbox);
        })?;
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let started_ms = since.map_or(0, |since| since.as_millis() as u64);
    let link = |worker: usize| CheckpointLink {
        pieces: pieces.clone(),
        bytes_in_transit: bytes_in_transit[worker].clone(),
        bytes_max,
        tally: {
            let words = words.clone();
            words.store(worker * WORDS + 3, started_ms);
            Box::new(move |bucket, samples, at_ms| {
                for (at, value) in [bucket as u64, samples, at_ms as u64].into_iter().enumerate() {
                    words.store(worker * WORDS + at, value);
                }
            })
        },
    };
    Ok((0..workers.min(WORKERS_MAX)).map(link).collect())
}

struct Writer {
    directory: PathBuf,
    agent: AgentId,
    histogram_points: String,
    files: HashMap<u16, File>,
    /// Workers whose file has no complete checkpoint yet.
    begun: HashSet<u16>,
    /// Workers without a complete checkpoint since the start: until then the files of the previous process count.
    awaited: HashSet<u16>,
    failed: bool,
    /// Bytes of each worker that are not written yet.
    bytes_in_transit: Vec<Arc<AtomicUsize>>,
}

impl Writer {
    fn run(&mut self, inbox: &Receiver<CheckpointPart>) {
        while let Ok(piece) = inbox.recv() {
            if let Err(error) = self.write(&piece)
                && !std::mem::replace(&mut self.failed, true)
            {
                tracing::warn!(
                    "state_path: the open bucket cannot be saved, and a kill would lose it: {error}"
                );
            }
            if let CheckpointPart::Series { worker, bytes } = &piece {
                self.bytes_in_transit[usize::from(*worker)].fetch_sub(bytes.len(), Ordering::Relaxed);
            }
        }
    }

    fn write(&mut self, piece: &CheckpointPart) -> io::Result<()> {
        let (worker, tag, body) = match piece {
            CheckpointPart::Begin { worker, bucket } => {
                let path = unfinished(&path(&self.directory, usize::from(*worker)));
                let file = super::private().create(true).truncate(true).open(path)?;
                self.files.insert(*worker, file);
                self.begun.insert(*worker);
                let begin = Begin {
                    agent: self.agent.0,
                    histogram_points: self.histogram_points.clone(),
                    bucket: (*bucket).into(),
                };
                (worker, BEGIN, Cow::Owned(serde_json::to_vec(&begin)?))
            }
            CheckpointPart::Series { worker, bytes } => (worker, SERIES, Cow::Borrowed(bytes)),
            CheckpointPart::Mark {
                worker,
                samples,
                at_ms,
            } => {
                let (samples, at_ms) = (*samples, *at_ms);
                (
                    worker,
                    MARK,
                    Cow::Owned(serde_json::to_vec(&Mark { samples, at_ms })?),
                )
            }
        };
        let Some(file) = self.files.get_mut(worker) else {
            return Ok(());
        };
        let mut head = [tag; FRAME_HEAD];
        head[1..5].copy_from_slice(&(body.len() as u32).to_le_bytes());
        head[5..].copy_from_slice(&crc32fast::hash(&body).to_le_bytes());
        // A kill between the two leaves a frame that is not whole, which is not read.
        file.write_all(&head)?;
        file.write_all(&body)?;
        if tag == MARK && self.begun.remove(worker) {
            self.finish(*worker)?;
        }
        Ok(())
    }

    /// Renames a file after its first complete checkpoint.
    fn finish(&mut self, worker: u16) -> io::Result<()> {
        let path = path(&self.directory, usize::from(worker));
        std::fs::rename(unfinished(&path), path)?;
        if self.awaited.remove(&worker) && self.awaited.is_empty() {
            let tally = self.directory.join(TALLY);
            std::fs::rename(unfinished(&tally), tally)?;
        }
        Ok(())
    }
}

/// The recovered open bucket of a killed process.
#[derive(Debug, Default)]
pub struct RecoveredBucket {
    pub bucket: Option<OpenBucket>,
    pub histogram_points: String,
    pub table: Table,
    /// Samples in it.
    pub samples: u64,
    /// Samples after the last checkpoint.
    pub lost: u64,
    /// Seconds since then, for the slowest worker.
    pub lost_seconds: f64,
    /// Unix milliseconds of the last turn.
    pub at_ms: i64,
}

/// Reads the checkpoints of a killed process of this agent; `None` if there are none.
pub fn rest(directory: &Path, agent: AgentId, bytes_max: u64) -> Option<RecoveredBucket> {
    let tally = std::fs::read(directory.join(TALLY)).ok()?;
    let words: Vec<u64> = tally
        .chunks_exact(8)
        .map(|word| u64::from_le_bytes(word.try_into().unwrap_or_default()))
        .collect();
    let newest = words.chunks_exact(WORDS).map(|of| of[0] as i64).max()?;
    let mut rest = RecoveredBucket {
        table: Table::new(Bounds::NONE),
        ..RecoveredBucket::default()
    };
    for (worker, of) in words.chunks_exact(WORDS).enumerate() {
        let (bucket, samples, at_ms) = (of[0] as i64, of[1], of[2] as i64);
        if at_ms == 0 {
            continue;
        }
        rest.at_ms = rest.at_ms.max(at_ms);
        let open = WorkerCheckpoint::read(&path(directory, worker), agent, bytes_max);
        // Earlier buckets have been handed over.
        let open = open.filter(|open| open.begin.bucket.start == newest && bucket == newest);
        let (kept, since_ms) = match open {
            Some(open) => rest.add(open),
            None => (0, (newest * 1000).max(of[3] as i64)),
        };
        if bucket == newest {
            rest.lost += samples.saturating_sub(kept);
            rest.lost_seconds = rest.lost_seconds.max((at_ms - since_ms).max(0) as f64 / 1e3);
        }
    }
    (rest.at_ms > 0).then_some(rest)
}

impl RecoveredBucket {
    /// Returns the number of samples, and the Unix milliseconds of the last mark.
    fn add(&mut self, open: WorkerCheckpoint) -> (u64, i64) {
        self.bucket = self.bucket.max(Some(open.begin.bucket));
        self.histogram_points = open.begin.histogram_points;
        self.samples += open.mark.samples;
        for (identity, facts, state) in open.series.into_values() {
            self.table.add(identity, facts, state);
        }
        (open.mark.samples, open.mark.at_ms)
    }
}

/// The file of one worker.
struct WorkerCheckpoint {
    begin: Begin,
    mark: Mark,
    series: HashMap<(Kind, u32), (Identity, Facts, State)>,
}

impl WorkerCheckpoint {
    fn read(path: &Path, agent: AgentId, bytes_max: u64) -> Option<WorkerCheckpoint> {
        if std::fs::metadata(path).ok()?.len() > bytes_max {
            tracing::warn!(
                "{} is larger than `memory` allows and is not read",
                path.display()
            );
            return None;
        }
        let bytes = std::fs::read(path).ok()?;
        let mut frames = Frames(&bytes);
        let (BEGIN, body) = frames.next()? else {
            return None;
        };
        let begin: Begin = serde_json::from_slice(body).ok()?;
        if begin.agent != agent.0 {
            return None;
        }
        let mut open = WorkerCheckpoint {
            begin,
            mark: Mark { samples: 0, at_ms: 0 },
            series: HashMap::new(),
        };
        open.mark.at_ms = open.begin.bucket.start * 1000;
        let mut waiting = Vec::new();
        // Ignores everything after the last mark, and an incomplete end.
        for (tag, body) in frames {
            match tag {
                SERIES => waiting.push(body),
                MARK => {
                    open.mark = serde_json::from_slice(body).ok()?;
                    waiting.drain(..).for_each(|body| open.apply(agent, body));
                }
                _ => {}
            }
        }
        Some(open)
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
