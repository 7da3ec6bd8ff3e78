//! The state of the previous process, and the state that this one saves.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use weir_ingest::{CheckpointLink, KnownClient, SavedBucket};
use weir_output::delivery::{OutputState, SavedStates};
use weir_state::{AgentId, SERIES_BYTES};

use super::fixes::{self, Rule};
use crate::state::checkpoints::{self, CheckpointProgress, CheckpointWriter, SaveFailures};
use crate::state::tally::Head;
use crate::state::{
    Content, Encoded, KilledTally, Meta, NumberNotes, PendingState, PreviousState, PutSums, SavedPayloads,
    StateDir, StateError, Tally, newest, recover,
};
use weir_status::status::{KillStatus, StateStatus, Status};
use weir_system::disk::Source;

mod transfer;

/// Room for the books, and for more contexts that arrive meanwhile.
const BOOKS_BYTES: u64 = 64 << 10;

/// The settings that decide what is continued.
#[derive(Clone, Debug)]
pub struct LifeSettings {
    pub workers: usize,
    /// Seconds.
    pub bucket_width: u32,
    /// State that is older has nothing to continue.
    pub expiry: Duration,
    /// Maximum size of the file with the state.
    pub memory: u64,
    /// The meaning of the bits of a context's suffixes, and the bits that are set by default.
    pub histogram_points: String,
    pub suffixes: u32,
    /// Clients may number their requests.
    pub takes_columns: bool,
}

/// The state directory, if there is one, and the state found in it.
#[derive(Default)]
pub struct Resumed {
    directory: Option<StateDir>,
    content: Option<Box<Content>>,
    /// Books of a killed process of which nothing else is continued.
    killed: Option<Box<Status>>,
    status: StateStatus,
    away: Duration,
    /// The epoch of `state`, 0 without one.
    base: u64,
    /// Another process has sent the state.
    is_passed: bool,
    /// Says what counts; `None`: it cannot be written.
    tally: Option<Arc<Tally>>,
    progress: CheckpointProgress,
}

/// Data saved while the process runs.
#[derive(Default)]
pub struct StateSaver {
    directory: Option<StateDir>,
    histogram_points: String,
    tally: Option<Arc<Tally>>,
    progress: CheckpointProgress,
    /// `state` still has the state that the process began with.
    has_base: AtomicBool,
    /// Books and sums have been saved.
    has_kept: AtomicBool,
    /// The last attempt to save books or sums failed.
    is_failing: AtomicBool,
    /// Set when nothing more is saved.
    ended: Mutex<bool>,
}

/// The loss when the state cannot be saved at the end: what the last checkpoint does not have.
#[derive(Debug, thiserror::Error)]
#[error(
    "{samples} samples of the open bucket, because the state could not be written to {}: {error}; the next start continues from the last \
     checkpoint there, and reports them",
    directory.display()
)]
pub struct StateNotSaved {
    samples: u64,
    /// The last books were written, with what outputs dropped at the end.
    pub has_books: bool,
    directory: PathBuf,
    #[source]
    error: io::Error,
}

impl Resumed {
    /// Reads the state in the directory. `now`: Unix milliseconds, as everywhere here.
    pub fn look(directory: StateDir, settings: &LifeSettings, now: i64) -> Resumed {
        let oldest = now - settings.expiry.as_millis() as i64;
        let mut resumed = Resumed {
            status: status_of(&directory),
            ..Resumed::default()
        };
        let (mut base, mut after) = (None, 0);
        match directory.left(oldest, now, settings.memory) {
            PreviousState::Nothing => {}
            PreviousState::SetAside(refusal, epoch) => {
                after = epoch;
                resumed.status.set_aside = 1;
                resumed.status.killed.samples_lost = refusal.samples();
                resumed.status.set_aside_because = Some(refusal.to_string());
            }
            PreviousState::State(content) => {
                after = content.meta.epoch;
                base = Some(content);
            }
        }
        directory.forget_foreign_tallies();
        let killed = KilledTally::of(directory.disk(), directory.agent(), after);
        let killed = killed.or_else(|| directory.killed_without_tally().filter(|_| after == 0));
        match (killed, base) {
            (Some(tally), base) => {
                resumed.after_a_kill(&directory, &tally, base, settings.memory, oldest, now)
            }
            (None, base) => {
                resumed.base = base.as_ref().map_or(0, |_| after);
                resumed.content = base;
            }
        }
        // Before anything is dropped that does not fit this configuration: a start that fails must not cost it.
        resumed.write_base(&directory, now);
        if let Some(content) = resumed.content.take() {
            resumed.take(content, settings.bucket_width, now);
        }
        resumed.directory = Some(directory);
        resumed
    }

    /// Continues the state that another process has sent. `Err`: why this is impossible.
    pub fn passed(
        directory: StateDir,
        state: Arc<dyn Source>,
        settings: &LifeSettings,
        now: i64,
    ) -> Result<Resumed, StateError> {
        let content = crate::state::read_from(state, settings.memory)?;
        if content.meta.agent != directory.agent().0 {
            return Err(StateError::Invalid("it belongs to another agent".into()));
        }
        let mut resumed = Resumed {
            status: status_of(&directory),
            base: content.meta.epoch,
            is_passed: true,
            ..Resumed::default()
        };
        resumed.take(Box::new(content), settings.bucket_width, now);
        resumed.directory = Some(directory);
        Ok(resumed)
    }

    /// Continues the state of a killed process, and reports the losses.
    fn after_a_kill(
        &mut self,
        directory: &StateDir,
        tally: &KilledTally,
        base: Option<Box<Content>>,
        memory: u64,
        oldest: i64,
        now: i64,
    ) {
        let killed = recover(directory, tally, base, memory);
        for damage in &killed.damaged {
            tracing::warn!("after the kill of the previous process: {damage}");
        }
        let (kept, lost) = (killed.content.meta.samples, killed.lost.samples);
        let of_ended = match killed.lost.of_ended {
            0 => String::new(),
            samples => format!("; {samples} of them in buckets that had ended, on their way to the outputs"),
        };
        tracing::warn!(
            "the previous process was killed: {lost} samples are lost, received in its last {:.2} s{of_ended}; its open bucket continues \
             with {kept} samples",
            killed.lost.seconds
        );
        for (output, samples) in &killed.lost.undelivered {
            tracing::warn!(
                "after the kill of the previous process: output {output} lacks {samples} samples more"
            );
        }
        self.status.killed.kills = 1;
        self.status.killed.samples_lost += lost;
        self.status.killed.kill_seconds = killed.lost.seconds;
        self.status.killed.files_damaged += killed.damaged.len() as u64;
        for (output, samples) in &killed.lost.uncertain {
            tracing::warn!(
                "after the kill of the previous process: output {output} may have delivered up to {samples} of them, because a request \
                 was under way"
            );
        }
        self.status.killed.samples_undelivered = killed.lost.undelivered;
        self.status.killed.samples_uncertain = killed.lost.uncertain;
        let content = killed.content;
        match crate::state::refusal(&content.meta, directory.agent(), oldest, now) {
            None => self.content = Some(Box::new(content)),
            Some(refusal) => {
                tracing::warn!("its files are not used: {refusal}");
                self.status.set_aside += 1;
                self.status.set_aside_because = Some(refusal.to_string());
                self.status.killed.samples_lost += kept;
                self.killed = Some(content.books);
            }
        }
    }

    /// Where this start has something to report, as after a kill, `state` becomes what it continues, with the report in its books. From that
    /// instant what an earlier process left counts no more: the next start neither delivers nor reports it again.
    fn write_base(&mut self, directory: &StateDir, now: i64) {
        let reported = [
            self.status.killed.kills,
            self.status.set_aside,
            self.status.killed.samples_lost,
            self.status.killed.files_damaged,
        ];
        if reported.iter().all(|number| *number == 0) {
            return;
        }
        let meta = Meta {
            version: weir_admin::version::VERSION.into(),
            agent: directory.agent().0,
            epoch: directory.epoch() - 1,
            saved_at_ms: now,
            ..Meta::default()
        };
        let mut nothing = Content::empty(meta);
        let content = self.content.as_deref_mut().unwrap_or(&mut nothing);
        content.decode();
        // The report is this process's own, and comes to the books of the earlier ones.
        let mut books = Status {
            state: self.status.clone(),
            ..Status::default()
        };
        books.add_earlier(self.killed.as_deref().unwrap_or(&content.books));
        let books = std::mem::replace(&mut content.books, Box::new(books));
        let epoch = content.meta.epoch;
        // The epochs since have left nothing.
        content.meta.epoch = directory.epoch() - 1;
        let written = directory.begin(0).and_then(|mut pending| pending.finish(content));
        (content.books, content.meta.epoch) = (books, epoch);
        self.base = match written {
            Ok(_) => directory.epoch() - 1,
            Err(error) => {
                let path = directory.path().display();
                tracing::error!(
                    "state_path: {path}: what the previous process left cannot be written: {error}; a kill would lose it"
                );
                // It must not count again.
                let _ = directory.taken();
                0
            }
        };
        directory.forget_until(directory.epoch() - 1);
    }

    fn take(&mut self, mut content: Box<Content>, width: u32, now: i64) {
        let meta = &mut content.meta;
        self.away = Duration::from_millis((now - meta.saved_at_ms).max(0) as u64);
        self.status.restored_from = Some(meta.saved_at_ms.max(0) as u64 / 1000);
        self.status.away_seconds = self.away.as_secs_f64();
        if let Some(bucket) = meta.bucket.filter(|bucket| bucket.width != width) {
            let lost = std::mem::take(&mut meta.samples);
            tracing::warn!(
                "the open bucket is lost, with {lost} samples: its width was {} s, and bucket_width is now {width} s",
                bucket.width
            );
            self.status.killed.samples_lost += lost;
            meta.bucket = None;
            meta.samples_of = BTreeMap::new();
            content.tables = BTreeMap::new();
            content.encoded = Encoded::default();
            content.timestamped = BTreeMap::new();
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
    pub fn buckets(&mut self, settings: &LifeSettings) -> Vec<SavedBucket> {
        match &mut self.content {
            None => (0..settings.workers).map(|_| SavedBucket::default()).collect(),
            Some(content) => {
                if content.meta.histogram_points != settings.histogram_points {
                    // The bits have another meaning now.
                    content.set_suffixes(settings.suffixes);
                }
                content.buckets(settings.workers)
            }
        }
    }

    /// The last drop counter of each socket, by its number, as seen by the previous process.
    pub fn drops(&self) -> &[(u64, u32)] {
        self.content.as_ref().map_or(&[], |content| &content.meta.drops)
    }

    /// Makes the tally of this process, which counts once [`Resumed::checkpoints`] begins.
    pub fn tally(&mut self, workers: usize, now: i64) -> Option<Arc<Tally>> {
        let directory = self.directory.as_ref()?;
        let meta = self.content.as_ref().map(|content| &content.meta);
        let head = Head {
            agent: directory.agent(),
            epoch: directory.epoch(),
            base: self.base,
            continued: meta.and_then(|meta| meta.bucket).map(|bucket| bucket.start),
            workers,
            started_ms: now,
        };
        let continued = self.content.as_ref().map(|content| content.samples_of(workers));
        let made = Tally::new(directory.shared_disk(), head, &continued.unwrap_or_default());
        self.tally = made.inspect_err(cannot_save).ok().map(Arc::new);
        self.tally.clone()
    }

    pub fn made_tally(&self) -> Option<Arc<Tally>> {
        self.tally.clone()
    }

    /// Takes over the directory, and gives the ways in which workers save their buckets in case of a kill. What was there counts only as
    /// this process's tally says, before a worker has received or handed over anything.
    /// `bytes_max`: memory of each worker for what waits for the disk; `start` lets the writer write what arrives.
    pub fn checkpoints(
        &mut self,
        settings: &LifeSettings,
        bytes_max: usize,
        start: impl FnOnce(CheckpointWriter) -> io::Result<()>,
    ) -> Vec<CheckpointLink> {
        let Some(directory) = &self.directory else {
            return Vec::new();
        };
        let begin = |tally: &Arc<Tally>| {
            if self.is_passed {
                directory.accept()?;
            }
            let notes = settings.takes_columns.then(|| {
                let notes = NumberNotes::new(directory.disk(), directory.epoch(), settings.workers);
                notes.map(Arc::new)
            });
            let notes = notes.transpose()?;
            tally.publish()?;
            let points = settings.histogram_points.clone();
            let (disk, agent) = (directory.shared_disk(), directory.agent());
            let (writer, links) = checkpoints::prepare(
                disk,
                agent,
                tally,
                notes.as_ref(),
                points,
                settings.workers,
                bytes_max,
            );
            let progress = writer.progress();
            start(writer)?;
            Ok((links, progress))
        };
        let begun: Option<io::Result<_>> = self.tally.as_ref().map(begin);
        match begun.map(|begun| begun.inspect_err(cannot_save)) {
            Some(Ok((links, progress))) => {
                self.progress = progress;
                links
            }
            _ => {
                self.tally = None;
                // One that passes its state continues if this process fails before it has started: until then its files count.
                if !self.is_passed {
                    nothing_counts(directory);
                }
                Vec::new()
            }
        }
    }

    /// Says which requests a kill does not lose any more. After [`Resumed::checkpoints`].
    pub fn saved_payloads(&self) -> SavedPayloads {
        self.progress.saved.clone()
    }

    pub fn agent(&self) -> AgentId {
        self.directory.as_ref().map(StateDir::agent).unwrap_or_default()
    }

    /// Agent and epoch. `None`: without a state directory each start is another agent.
    pub fn identity(&self) -> Option<(AgentId, u64)> {
        let directory = self.directory.as_ref()?;
        Some((directory.agent(), directory.epoch()))
    }

    /// The agent has started: from now on it alone owns the saved state.
    pub fn started(
        mut self,
        settings: &LifeSettings,
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
        if let Some(directory) = &self.directory {
            match self.is_passed && self.tally.is_none() {
                true => nothing_counts(directory),
                false => directory.forget_tallies_before(),
            }
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
            histogram_points: settings.histogram_points.clone(),
            has_base: AtomicBool::new(self.tally.is_some()),
            tally: self.tally,
            progress: self.progress,
            has_kept: AtomicBool::default(),
            is_failing: AtomicBool::default(),
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

    pub fn failures(&self) -> Arc<SaveFailures> {
        self.progress.failures.clone()
    }

    /// Saves the sums, if they are given, and the books, in case the process is killed.
    pub fn keep(
        &self,
        sums: Option<impl FnOnce(PutSums<'_>) -> io::Result<()>>,
        books: impl FnOnce() -> Status,
        now: i64,
    ) -> io::Result<()> {
        let kept = (|| {
            if let Some(sums) = sums {
                self.keep_sums(sums, now)?;
            }
            self.keep_books(books(), now)
        })();
        self.is_failing.store(kept.is_err(), Ordering::Release);
        match &kept {
            Ok(()) => {
                self.has_kept.store(true, Ordering::Release);
                self.remove_base();
            }
            Err(error) => self.progress.failures.add(error),
        }
        kept
    }

    fn keep_books(&self, mut books: Status, now: i64) -> io::Result<()> {
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
        directory.keep_books(&self.meta(directory, &[], now), &books)
    }

    fn keep_sums(&self, sums: impl FnOnce(PutSums<'_>) -> io::Result<()>, now: i64) -> io::Result<()> {
        let Some(directory) = &self.directory else {
            return Ok(());
        };
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        if *ended {
            return Ok(());
        }
        let begins = || self.tally.iter().for_each(|tally| tally.begins());
        directory.keep_sums(self.meta(directory, &[], now), sums, begins)
    }

    /// Removes what the process began with, once all of it is in files of its own.
    fn remove_base(&self) {
        // Held meanwhile: what is there afterwards is for the next process.
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        if !*ended
            && self.progress.is_complete.load(Ordering::Acquire)
            && self.has_base.swap(false, Ordering::AcqRel)
            && let Some(directory) = &self.directory
        {
            let _ = directory.taken();
        }
    }

    /// The process ends normally; `is_saved`: with `state` for the next one.
    pub fn end(&self, is_saved: bool) {
        self.keep_for_next();
        if let Some(directory) = &self.directory {
            if !is_saved {
                // Before the tally, without which it would count.
                let _ = directory.taken();
            }
            directory.forget_until(u64::MAX);
        }
    }

    /// Opens the file for the next process, with room for so many contexts. `None`: there is no state directory, or it cannot be written or
    /// has no room, so the open bucket must be flushed.
    pub fn begin(&self, contexts: u64) -> Option<PendingState> {
        let directory = self.directory.as_ref()?;
        let is_failing =
            self.is_failing.load(Ordering::Acquire) || self.progress.is_failing.load(Ordering::Acquire);
        let begun = match is_failing {
            true => Err(io::Error::other(
                "files there could not be written in the last second",
            )),
            false if fixes::lacks(Rule::RoomIsTakenFirst) => directory.begin(0),
            false => directory.begin(room(directory.kept_bytes(), contexts)),
        };
        begun
            .inspect_err(|error| {
                let path = directory.path().display();
                tracing::error!("state_path: {path}: the state cannot be saved for the next process, so the open bucket is flushed: {error}");
            })
            .ok()
    }

    /// `None`: nothing is saved.
    pub fn directory(&self) -> Option<&StateDir> {
        self.directory.as_ref()
    }

    /// The files are left for the next process: nothing more is written there.
    pub fn keep_for_next(&self) {
        self.set_ended(true);
    }

    fn set_ended(&self, is_ended: bool) {
        *self.ended.lock().unwrap_or_else(PoisonError::into_inner) = is_ended;
    }

    /// Facts about the open bucket of these workers.
    fn meta(&self, directory: &StateDir, workers: &[SavedBucket], now: i64) -> Meta {
        let newest = newest(workers);
        let older = workers.iter().filter(|worker| worker.bucket < newest);
        let older = older.filter_map(|worker| Some((worker.worker, worker.bucket?.start)));
        Meta {
            version: weir_admin::version::VERSION.into(),
            agent: directory.agent().0,
            epoch: directory.epoch(),
            saved_at_ms: now,
            bucket: newest.map(Into::into),
            older: older.collect(),
            samples: workers.iter().map(|worker| worker.samples).sum(),
            samples_of: workers
                .iter()
                .map(|worker| (worker.worker, worker.samples))
                .collect(),
            histogram_points: self.histogram_points.clone(),
            drops: workers
                .iter()
                .flat_map(|worker| worker.drops.iter().copied())
                .collect(),
            workers: workers.len(),
            ..Meta::default()
        }
    }

    /// Saves what the next process continues besides the pieces of the workers' buckets. `Err`: the loss.
    pub fn save(
        &self,
        pending_state: &mut PendingState,
        workers: &[SavedBucket],
        outputs: BTreeMap<String, OutputState>,
        books: Status,
        now: i64,
    ) -> Result<(), StateNotSaved> {
        let Some(directory) = &self.directory else {
            return Ok(());
        };
        let content = Content {
            outputs,
            timestamped: timestamped(workers),
            clients: clients(workers),
            books: Box::new(books),
            ..Content::empty(self.meta(directory, workers, now))
        };
        let series: u64 = workers.iter().map(|worker| worker.contexts).sum();
        let samples = content.meta.samples;
        self.keep_for_next();
        match pending_state.finish(&content) {
            Ok(bytes) => {
                tracing::info!(
                    "state saved for the next process: {series} contexts, {samples} samples in the open bucket, {bytes} bytes"
                );
                self.end(true);
                Ok(())
            }
            Err(error) => {
                // The files for the case of a kill stay. The last books may find room.
                let has_books = directory.keep_books(&content.meta, &content.books).is_ok();
                if has_books && let Some(tally) = &self.tally {
                    tally.told();
                }
                let tally = KilledTally::of(directory.disk(), directory.agent(), directory.epoch() - 1);
                Err(StateNotSaved {
                    samples: tally.map_or(samples, |tally| {
                        recover(directory, &tally, None, u64::MAX).lost.samples
                    }),
                    directory: directory.path().to_owned(),
                    has_books,
                    error,
                })
            }
        }
    }
}

/// By worker.
fn timestamped(workers: &[SavedBucket]) -> BTreeMap<u16, Vec<Vec<u8>>> {
    let of = |worker: &SavedBucket| (worker.worker, worker.timestamped.clone());
    workers.iter().map(of).collect()
}

fn clients(workers: &[SavedBucket]) -> Vec<KnownClient> {
    if fixes::lacks(Rule::StopsKeepNumbers) {
        return Vec::new();
    }
    workers
        .iter()
        .flat_map(|worker| worker.clients.iter().copied())
        .collect()
}

/// Bytes that a state needs. In its first second a process has saved nothing, and has contexts all the same.
fn room(kept_bytes: u64, contexts: u64) -> u64 {
    kept_bytes.max(contexts * SERIES_BYTES as u64) + BOOKS_BYTES
}

/// Nothing says what counts of the files there, so nothing does.
fn nothing_counts(directory: &StateDir) {
    if let Err(error) = directory.taken() {
        let path = directory.path().display();
        tracing::error!(
            "state_path: {path}: the state was read but cannot be removed: {error}; another start would use it again"
        );
    }
    directory.forget_until(u64::MAX);
}

fn cannot_save(error: &io::Error) {
    tracing::warn!(
        "state_path: the open bucket cannot be saved, and a kill would lose it without a report: {error}"
    );
}

fn status_of(directory: &StateDir) -> StateStatus {
    StateStatus {
        path: Some(directory.path().display().to_string()),
        agent: directory.agent().to_string(),
        epoch: directory.epoch(),
        killed: KillStatus {
            files_damaged: u64::from(directory.is_agent_recovered()),
            ..KillStatus::default()
        },
        ..StateStatus::default()
    }
}
