//! The state of the previous process, and the state that this one saves.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufWriter, Seek as _};
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use weir_ingest::{CheckpointLink, SavedBucket};
use weir_listener::Monotonic;
use weir_output::delivery::{AgentIdentity, OutputState, SavedStates};
use weir_state::{AgentId, Table};

use super::outputs::Outputs;
use super::rules::Fixed;
use crate::admin::status::{StateStatus, Status};
use crate::budget::{Budget, Share};
use crate::config::Config;
use crate::failure::Failure;
use crate::state::{
    Content, Encoded, LastBooks, Meta, PendingFile, PreviousState, StateDir, StateError, StateWriter,
    TransferWriter, checkpoints, merged, newest,
};

/// The state directory, if there is one, and the state found in it.
#[derive(Default)]
pub struct Resumed {
    directory: Option<StateDir>,
    content: Option<Box<Content>>,
    /// Books of a killed process.
    killed: Option<Box<Status>>,
    status: StateStatus,
    away: Duration,
}

/// Data saved while the process runs.
#[derive(Default)]
pub struct StateSaver {
    directory: Option<StateDir>,
    histogram_points: String,
    /// Set when nothing more is saved.
    ended: Mutex<bool>,
}

/// The loss when the next process finds no state.
#[derive(Debug, thiserror::Error)]
#[error(
    "{samples} samples of the open bucket and the sums of outputs, because the state could not be written to {}: {error}",
    directory.display()
)]
pub struct StateNotSaved {
    samples: u64,
    directory: PathBuf,
    #[source]
    error: io::Error,
}

impl Resumed {
    /// Opens the directory and reads the state.
    pub fn look(config: &Config) -> Result<Resumed, Failure> {
        let Some(path) = &config.running.state_path else {
            return Ok(Resumed::default());
        };
        let directory = StateDir::open(path)?;
        let aggregation = &config.aggregation;
        let expiry = aggregation.context_expiry + aggregation.counter_expiry;
        let now = now_ms();
        let oldest = now - expiry.as_millis() as i64;
        let mut resumed = Resumed {
            status: StateStatus::of(&directory),
            ..Resumed::default()
        };
        match directory.left(oldest, now, config.resources.memory) {
            PreviousState::Nothing => resumed.after_a_kill(&directory, config, oldest, now),
            PreviousState::SetAside(refusal) => {
                resumed.status.set_aside = 1;
                resumed.status.samples_lost = refusal.samples();
                resumed.status.set_aside_because = Some(refusal.to_string());
            }
            PreviousState::State(content) => resumed.take(content, config, now),
        }
        resumed.directory = Some(directory);
        Ok(resumed)
    }

    /// Continues the state that another process has sent. `Err`: why this is impossible.
    pub fn passed(config: &Config, directory: StateDir, mut state: File) -> Result<Resumed, StateError> {
        // The other process wrote up to its end.
        state
            .rewind()
            .map_err(|error| StateError::Unreadable(error.to_string()))?;
        let content = crate::state::read_from(state, config.resources.memory)?;
        if content.meta.agent != directory.agent().0 {
            return Err(StateError::Invalid("it belongs to another agent".into()));
        }
        let mut resumed = Resumed {
            status: StateStatus::of(&directory),
            ..Resumed::default()
        };
        resumed.take(Box::new(content), config, now_ms());
        resumed.directory = Some(directory);
        Ok(resumed)
    }

    /// Continues the state of a killed process, and reports the losses.
    fn after_a_kill(&mut self, directory: &StateDir, config: &Config, oldest: i64, now: i64) {
        let Some(last) = directory.books() else {
            return;
        };
        let mut books = Box::new(last.books);
        for output in &mut books.outputs {
            *output = output.killed();
        }
        self.status.kills = 1;
        let bytes_max = config.resources.memory;
        let Some(rest) = checkpoints::rest(directory.path(), directory.agent(), bytes_max) else {
            let (lost, rate) = (books.state.samples_open, books.rates.samples);
            tracing::warn!(
                "the previous process was killed, and nothing of its open bucket is left: {lost} samples are lost that it had {:.1} s ago, and about {rate:.0} samples of the second after that",
                (now - last.at_ms) as f64 / 1e3
            );
            self.status.samples_lost = lost;
            self.killed = Some(books);
            return;
        };
        let (kept, lost) = (rest.samples, rest.lost);
        tracing::warn!(
            "the previous process was killed: {lost} samples are lost, received in its last {:.2} s; its open bucket continues with {kept} samples",
            rest.lost_seconds
        );
        self.status.samples_lost = lost;
        self.status.kill_seconds = rest.lost_seconds;
        let content = Content {
            meta: Meta {
                version: books.version.clone(),
                agent: directory.agent().0,
                epoch: directory.epoch() - 1,
                saved_at_ms: rest.at_ms,
                bucket: rest.bucket,
                samples: rest.samples,
                histogram_points: rest.histogram_points,
                drops: Vec::new(),
                workers: 0,
            },
            table: rest.table,
            encoded: Encoded::default(),
            outputs: directory.sums(bytes_max),
            queues: BTreeMap::new(),
            books,
        };
        match crate::state::refusal(&content.meta, directory.agent(), oldest, now) {
            None => self.take(Box::new(content), config, now),
            Some(refusal) => {
                tracing::warn!("its files are not used: {refusal}");
                self.status.samples_lost += kept;
                self.killed = Some(content.books);
            }
        }
    }

    fn take(&mut self, mut content: Box<Content>, config: &Config, now: i64) {
        let meta = &mut content.meta;
        self.away = Duration::from_millis((now - meta.saved_at_ms).max(0) as u64);
        self.status.restored_from = Some(meta.saved_at_ms.max(0) as u64 / 1000);
        self.status.away_seconds = self.away.as_secs_f64();
        let width = config.aggregation.bucket_seconds() as u32;
        if let Some(bucket) = meta.bucket.filter(|bucket| bucket.width != width) {
            let lost = std::mem::take(&mut meta.samples);
            tracing::warn!(
                "the open bucket is lost, with {lost} samples: its width was {} s, and bucket_width is now {width} s",
                bucket.width
            );
            self.status.samples_lost += lost;
            meta.bucket = None;
            content.table = Table::default();
            content.encoded = Encoded::default();
        }
        self.status.samples_restored = content.meta.samples;
        self.content = Some(content);
    }

    /// The cumulative state of the outputs.
    pub fn outputs(&mut self) -> Arc<SavedStates> {
        let (mut saved, mut queues) = (BTreeMap::new(), BTreeMap::new());
        if let Some(content) = &mut self.content {
            (saved, queues) = (
                std::mem::take(&mut content.outputs),
                std::mem::take(&mut content.queues),
            );
        }
        Arc::new(SavedStates::new(saved, self.away).with_queues(queues))
    }

    /// The state for each worker.
    pub fn buckets(&mut self, fixed: &Fixed, config: &Config) -> Vec<SavedBucket> {
        let workers = config.resources.workers;
        match &mut self.content {
            None => (0..workers).map(|_| SavedBucket::default()).collect(),
            Some(content) => {
                if content.meta.histogram_points != fixed.histogram_points() {
                    // The bits have another meaning now.
                    content.set_suffixes(fixed.default_mask(config));
                }
                content.buckets(workers)
            }
        }
    }

    /// The last drop counter of each socket, by its number, as seen by the previous process.
    pub fn drops(&self) -> &[(u64, u32)] {
        self.content.as_ref().map_or(&[], |content| &content.meta.drops)
    }

    /// The files in which workers save their buckets in case of a kill. Removes files of a previous process.
    pub fn checkpoints(&self, fixed: &Fixed, workers: usize, budget: &Budget) -> Vec<CheckpointLink> {
        let Some(directory) = &self.directory else {
            return Vec::new();
        };
        let points = fixed.histogram_points();
        let bytes_max = budget.of_worker(Share::OpenBucket);
        let started = checkpoints::start(directory.path(), directory.agent(), points, workers, bytes_max);
        started.unwrap_or_else(|error| {
            tracing::warn!("state_path: the open bucket cannot be saved, and a kill would lose it: {error}");
            Vec::new()
        })
    }

    pub fn agent(&self) -> AgentId {
        self.directory.as_ref().map(StateDir::agent).unwrap_or_default()
    }

    /// The process's identity as a publisher. Without a state directory each start has a new one.
    pub fn publisher(&self) -> Result<AgentIdentity, Failure> {
        let monotonic_zero = || {
            let now = now_ms() as i128 * 1_000_000;
            (now - i128::from(Monotonic::now().0)) as i64
        };
        Ok(match &self.directory {
            Some(directory) => AgentIdentity {
                id: directory.agent(),
                epoch: directory.epoch(),
                is_kept: true,
                monotonic_zero,
            },
            None => AgentIdentity {
                id: crate::state::random().map_err(|error| Failure::runtime(error.to_string()))?,
                epoch: now_ms().max(0) as u64 / 1000,
                is_kept: false,
                monotonic_zero,
            },
        })
    }

    /// The agent has started: from now on it alone owns the saved state.
    pub fn started(
        mut self,
        fixed: &Fixed,
        outputs: &SavedStates,
    ) -> (StateSaver, StateStatus, Option<Box<Status>>) {
        for error in outputs.finish() {
            tracing::warn!(
                "output {} starts its sums from zero: {}",
                error.output,
                error.reason
            );
            self.status.outputs_reset += 1;
        }
        if let Some(directory) = &self.directory
            && let Err(error) = directory.taken()
        {
            let path = directory.path().display();
            tracing::error!(
                "state_path: {path}: the state was read but cannot be removed: {error}; another start would use it again"
            );
        }
        if let Some(content) = &self.content {
            tracing::info!(
                "continues from the state of epoch {}, saved {:.1} s ago: {} samples in the open bucket",
                content.meta.epoch,
                self.status.away_seconds,
                content.meta.samples
            );
        }
        let state_saver = StateSaver {
            directory: self.directory,
            histogram_points: fixed.histogram_points(),
            ended: Mutex::default(),
        };
        let earlier = self.content.map(|content| content.books);
        (state_saver, self.status, earlier.or(self.killed))
    }
}

impl StateSaver {
    pub fn keeps(&self) -> bool {
        self.directory.is_some()
    }

    /// Saves the books in case the process is killed.
    pub fn keep_books(&self, mut books: Status) -> io::Result<()> {
        let Some(directory) = &self.directory else {
            return Ok(());
        };
        // The next process starts its own list.
        books.clients.seen.clear();
        // Held while writing: nothing may be written after the end.
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        if *ended {
            return Ok(());
        }
        directory.keep_books(&LastBooks {
            agent: directory.agent().to_string(),
            at_ms: now_ms(),
            books,
        })
    }

    /// Saves the cumulative state of outputs in case the process is killed.
    pub fn keep_sums(&self, outputs: &Outputs) -> io::Result<()> {
        let Some(directory) = &self.directory else {
            return Ok(());
        };
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        if *ended {
            return Ok(());
        }
        directory.keep_sums(&self.meta(directory, &[]), |put| outputs.each_sum(put))
    }

    /// The process ends normally.
    pub fn end(&self) {
        *self.ended.lock().unwrap_or_else(PoisonError::into_inner) = true;
        if let Some(directory) = &self.directory {
            directory.forget_books();
        }
    }

    /// Opens the file for the next process. `None`: there is no state directory or it cannot be written, so the open bucket must be
    /// flushed.
    pub fn begin(&self) -> Option<PendingFile> {
        let directory = self.directory.as_ref()?;
        directory
            .begin()
            .inspect_err(|error| {
                let path = directory.path().display();
                tracing::error!("state_path: {path}: the state cannot be saved for the next process, so the open bucket is flushed: {error}");
            })
            .ok()
    }

    /// The directory's lock.
    pub fn lock(&self) -> Option<BorrowedFd<'_>> {
        self.directory.as_ref().map(StateDir::lock)
    }

    /// Another process takes over in this directory.
    pub fn keep_for_next(&self) {
        *self.ended.lock().unwrap_or_else(PoisonError::into_inner) = true;
    }

    /// Destination of the state that another process continues.
    pub fn transfer(&self) -> io::Result<TransferWriter> {
        let directory = self.directory.as_ref().ok_or(io::ErrorKind::NotFound)?;
        StateWriter::new(BufWriter::new(directory.transfer()?))
    }

    /// Adds to it what there is besides pieces of the workers' buckets, and outputs.
    pub fn finish_transfer(
        &self,
        transfer: &mut TransferWriter,
        workers: &[SavedBucket],
        books: &Status,
    ) -> io::Result<()> {
        if let Some(directory) = &self.directory {
            transfer.meta(&self.meta(directory, workers))?;
        }
        transfer.books(books)?;
        transfer.finish().map(drop)
    }

    /// Facts about the open bucket of these workers.
    fn meta(&self, directory: &StateDir, workers: &[SavedBucket]) -> Meta {
        Meta {
            version: crate::version::VERSION.into(),
            agent: directory.agent().0,
            epoch: directory.epoch(),
            saved_at_ms: now_ms(),
            bucket: newest(workers).map(Into::into),
            samples: workers.iter().map(|worker| worker.samples).sum(),
            histogram_points: self.histogram_points.clone(),
            drops: workers
                .iter()
                .flat_map(|worker| worker.drops.iter().copied())
                .collect(),
            workers: workers.len(),
        }
    }

    /// Saves the workers' state. `Err`: the loss.
    pub fn save(
        &self,
        pending_file: PendingFile,
        workers: Vec<SavedBucket>,
        outputs: BTreeMap<String, OutputState>,
        books: Status,
    ) -> Result<(), StateNotSaved> {
        let Some(directory) = &self.directory else {
            return Ok(());
        };
        let content = Content {
            meta: self.meta(directory, &workers),
            table: merged(workers),
            encoded: Encoded::default(),
            outputs,
            queues: BTreeMap::new(),
            books: Box::new(books),
        };
        let (series, samples) = (content.table.len(), content.meta.samples);
        match pending_file.finish(&content) {
            Ok(bytes) => {
                tracing::info!(
                    "state saved for the next process: {series} contexts, {samples} samples in the open bucket, {bytes} bytes"
                );
                Ok(())
            }
            Err(error) => Err(StateNotSaved {
                samples,
                directory: directory.path().to_owned(),
                error,
            }),
        }
    }
}

impl StateStatus {
    fn of(directory: &StateDir) -> StateStatus {
        StateStatus {
            path: Some(directory.path().display().to_string()),
            agent: directory.agent().to_string(),
            epoch: directory.epoch(),
            ..StateStatus::default()
        }
    }
}

fn now_ms() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis() as i64)
}
