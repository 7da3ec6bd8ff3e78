//! The state directory: one process saves its state for the next, so that a restart goes unnoticed.
//!
//! The process that uses the directory holds `lock`. `agent` has the agent's identity, and `state` what all processes before this one have
//! left. `books`, `sums`, the files of [`checkpoints`], the [`tally`] and the [`numbers`] exist while a process runs, and afterwards only if it was killed;
//! the tally says what of all this counts. Unusable state is renamed to `state.set-aside`, the log has the reason, and the agent starts
//! without it.

use std::io::{self, BufWriter, Write};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Deserialize;
use weir_output::delivery::OutputState;
use weir_state::AgentId;

use weir_status::status::Status;
use weir_system::disk::{Disk, Sink};

mod agent;
#[cfg(test)]
mod before_epochs;
pub mod checkpoints;
mod content;
mod file;
pub mod numbers;
mod recovery;
pub mod tally;

pub use content::{Content, Encoded, Meta, newest, numbers_of};
pub use file::{StateError, StateWriter, VERSION, read_from};

pub use agent::StoredAgent;
pub use numbers::{NumberNotes, SavedPayloads};
pub use recovery::recover;
pub use tally::{KilledTally, Tally};

/// Takes the state of one output, with its name, and for sums the samples in them.
pub type PutSums<'a> = &'a mut dyn FnMut(&str, &OutputState, Option<u64>) -> io::Result<()>;

/// The names of files in the directory.
const STATE: &str = "state";
const SET_ASIDE: &str = "state.set-aside";
const BOOKS: &str = "books";
const SUMS: &str = "sums";
/// The state for another process, which reads it once it is complete.
pub const PASSING: &str = "passing";

/// The state directory of this process.
pub struct StateDir {
    path: PathBuf,
    disk: Arc<dyn Disk>,
    agent: StoredAgent,
    /// `None`: nobody else can use the disk.
    lock: Option<OwnedFd>,
}

/// The books as older versions wrote them.
#[derive(Deserialize)]
struct OldBooks {
    agent: String,
    /// Unix milliseconds.
    at_ms: i64,
    books: Status,
}

/// The state of the previous process.
pub enum PreviousState {
    /// There is no state.
    Nothing,
    State(Box<Content>),
    /// Unusable state that was set aside, and its epoch if it is this agent's.
    SetAside(StateError, u64),
}

/// Files of weir, by the beginnings of their names.
const NAMES: [&str; 10] = [
    "agent",
    "books",
    "hand-over",
    "lock",
    "numbers-",
    "open-",
    "passing",
    "state",
    "sums",
    "tally",
];

/// Whether weir has files with this name, so that it would trust one.
pub fn is_of_weir(name: &str) -> bool {
    NAMES.iter().any(|known| name.starts_with(known))
}

impl StateDir {
    /// `lock`: `None` if nobody else can use the disk.
    pub fn new(path: &Path, disk: Arc<dyn Disk>, agent: StoredAgent, lock: Option<OwnedFd>) -> StateDir {
        StateDir {
            path: path.to_owned(),
            disk,
            agent,
            lock,
        }
    }

    pub fn lock(&self) -> Option<BorrowedFd<'_>> {
        self.lock.as_ref().map(OwnedFd::as_fd)
    }

    pub fn disk(&self) -> &dyn Disk {
        &*self.disk
    }

    pub fn shared_disk(&self) -> &Arc<dyn Disk> {
        &self.disk
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn agent(&self) -> AgentId {
        self.agent.id
    }

    /// The file that says so was damaged.
    pub fn is_agent_recovered(&self) -> bool {
        self.agent.is_recovered
    }

    /// Grows with every start.
    pub fn epoch(&self) -> u64 {
        self.agent.epoch
    }

    /// The state of the previous process, which stays until [`StateDir::taken`]. `oldest`: Unix milliseconds before which it is too old;
    /// `bytes_max`: maximum size of the file.
    pub fn left(&self, oldest: i64, now: i64, bytes_max: u64) -> PreviousState {
        let content = match file::read(self.disk(), STATE, bytes_max) {
            Ok(None) => return PreviousState::Nothing,
            Ok(Some(content)) => content,
            Err(refusal) => return self.set_aside(refusal, 0),
        };
        let is_own = content.meta.agent == self.agent.id.0;
        let epoch = if is_own { content.meta.epoch } else { 0 };
        // Where a process has continued it and was killed, the time of that process's end decides.
        let is_continued = || is_own && KilledTally::of(self.disk(), self.agent.id, epoch).is_some();
        match refusal(&content.meta, self.agent.id, oldest, now) {
            Some(refusal) if !is_continued() => self.set_aside(refusal, epoch),
            _ => PreviousState::State(Box::new(content)),
        }
    }

    /// Saves the books in case this process is killed. They are not synced: they survive the process, not the machine.
    pub fn keep_books(&self, meta: &Meta, books: &Status) -> io::Result<()> {
        let written = self.keep(BOOKS, |kept| {
            kept.meta(meta)?;
            kept.books(books)
        })?;
        self.disk.rename(&written, BOOKS)
    }

    /// Saves the cumulative state of outputs, as [`StateDir::keep_books`] saves books. `begins` is called before they count.
    pub fn keep_sums(
        &self,
        mut meta: Meta,
        outputs: impl FnOnce(PutSums<'_>) -> io::Result<()>,
        begins: impl FnOnce(),
    ) -> io::Result<()> {
        let written = self.keep(SUMS, |kept| {
            outputs(&mut |name, saved, samples| {
                meta.summed
                    .extend(samples.map(|samples| (name.to_owned(), samples)));
                kept.output(name, saved)
            })?;
            kept.meta(&meta)
        })?;
        begins();
        self.disk.rename(&written, SUMS)
    }

    fn keep(
        &self,
        name: &str,
        write: impl FnOnce(&mut StateWriter<BufWriter<Box<dyn Sink>>>) -> io::Result<()>,
    ) -> io::Result<String> {
        let name = unfinished(name);
        let mut kept = StateWriter::new(BufWriter::new(self.disk.create(&name)?))?;
        write(&mut kept)?;
        kept.finish()?;
        Ok(name)
    }

    /// Stands for the tally of a killed process that could not write one.
    pub fn killed_without_tally(&self) -> Option<KilledTally> {
        let (epoch, is_old) = match file::read(self.disk(), BOOKS, u64::MAX) {
            Ok(None) => return None,
            Ok(Some(books)) => (books.meta.epoch, false),
            Err(_) => (0, true),
        };
        Some(KilledTally::missing(epoch, is_old))
    }

    /// Bytes that the files for the case of a kill have: about what the state at a stop needs.
    pub fn kept_bytes(&self) -> u64 {
        let names = self.disk.names().unwrap_or_default();
        let is_kept =
            |name: &&String| *name == BOOKS || *name == SUMS || name.starts_with(checkpoints::BEGINNING);
        let bytes = |name: &String| self.disk.open(name).and_then(|file| file.bytes());
        names
            .iter()
            .filter(is_kept)
            .filter_map(|name| bytes(name).ok())
            .sum()
    }

    /// Before anything is read: removes tallies that no process of this agent can have written, since every start has a greater epoch than
    /// those before it. They would count permanently.
    pub fn forget_foreign_tallies(&self) {
        self.forget_epochs(|other| other >= self.agent.epoch);
    }

    /// First the tallies: without its numbers a tally would count, and the points of a request that had left would be added again.
    fn forget_epochs(&self, is_over: impl Fn(u64) -> bool) {
        tally::forget(self.disk(), &is_over);
        numbers::forget(self.disk(), &is_over);
    }

    /// This process has started: those before it cannot continue.
    pub fn forget_tallies_before(&self) {
        self.forget_epochs(|other| other < self.agent.epoch);
        checkpoints::forget(self.disk(), |other| other < self.agent.epoch);
    }

    /// Removes what the processes up to this epoch left for the case of a kill: `state` has it, or nothing counts any more.
    pub fn forget_until(&self, epoch: u64) {
        // Before the tallies: without one, checkpoints would count as those of an old version.
        checkpoints::forget(self.disk(), |other| other <= epoch);
        self.forget_epochs(|other| other <= epoch);
        for name in [BOOKS, SUMS, PASSING] {
            let _ = self.disk.remove(name);
        }
    }

    /// This process continues, because the one that was to take over has failed: what that one wrote counts no more.
    pub fn reclaim(&self) {
        self.forget_epochs(|other| other > self.agent.epoch);
        // Not what this process itself began with.
        if let Ok(Some(state)) = file::read(self.disk(), STATE, u64::MAX)
            && state.meta.epoch == self.agent.epoch
        {
            let _ = self.disk.remove(STATE);
        }
        let _ = self.disk.remove(PASSING);
        checkpoints::forget(self.disk(), |other| other > self.agent.epoch);
    }

    /// A file for state on its way to another process. Once that has read it, it is its [`StateDir::accept`]ed base.
    pub fn transfer(&self) -> io::Result<Box<dyn Sink>> {
        // An earlier attempt may have it open still.
        let _ = self.disk.remove(PASSING);
        self.disk.create(PASSING)
    }

    /// The transferred file, for a process on the same disk.
    #[cfg(test)]
    pub fn passing(&self) -> io::Result<Arc<dyn weir_system::disk::Source>> {
        self.disk.open(PASSING)
    }

    /// The state that another process has sent is what all processes before this one have left. False: it has no name, because the other
    /// is of an older version.
    pub fn accept(&self) -> io::Result<bool> {
        match self.disk.rename(PASSING, STATE) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            renamed => Ok(renamed.is_ok()),
        }
    }

    /// Keeps the file under another name, replacing an earlier one. Until the report of this start replaces it, or [`StateDir::taken`], it has
    /// its own too: a kill in between would lose the report.
    fn set_aside(&self, refusal: StateError, epoch: u64) -> PreviousState {
        let kept = self.disk.link(STATE, SET_ASIDE);
        // Not every file system has links.
        match kept.or_else(|_| self.disk.rename(STATE, SET_ASIDE)) {
            Ok(()) => {
                let to = self.path.join(SET_ASIDE);
                let to = to.display();
                tracing::warn!("the state of the previous process is set aside as {to}: {refusal}");
            }
            Err(error) => {
                let from = self.path.join(STATE);
                let from = from.display();
                tracing::warn!(
                    "the state of the previous process is not used: {refusal}; {from} stays: {error}"
                );
            }
        }
        PreviousState::SetAside(refusal, epoch)
    }

    /// Removes the state: nothing of it counts any more.
    pub fn taken(&self) -> io::Result<()> {
        match self.disk.remove(STATE) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Starts to save state for the next process. Existing state stays until the new one is complete.
    /// `bytes`: room that it gets before.
    pub fn begin(&self, bytes: u64) -> io::Result<PendingState> {
        let (pending, mut file) = PendingFile::new(&self.disk, STATE)?;
        let begun = file.reserve(bytes);
        let writer = begun.and_then(|()| StateWriter::new(BufWriter::new(file)));
        let writer = writer.inspect_err(|_| {
            let _ = self.disk.remove(&pending.from);
        })?;
        Ok(PendingState {
            pending,
            writer,
            failure: None,
        })
    }
}

/// Agent and epoch as the other files know them.
fn known_elsewhere(disk: &dyn Disk) -> Option<(AgentId, u64)> {
    let heads = tally::heads(disk).map(|head| (head.agent, head.epoch));
    let files = [STATE, BOOKS, SUMS].into_iter().filter_map(|name| {
        let meta = file::read(disk, name, u64::MAX).ok()??.meta;
        Some((AgentId(meta.agent), meta.epoch))
    });
    heads.chain(files).max_by_key(|(_, epoch)| *epoch)
}

pub fn refusal(meta: &Meta, agent: AgentId, oldest: i64, now: i64) -> Option<StateError> {
    let samples = meta.samples;
    if meta.agent != agent.0 {
        return Some(StateError::Foreign { samples });
    }
    if meta.saved_at_ms < oldest {
        let seconds = (now - meta.saved_at_ms) / 1000;
        return Some(StateError::Stale { seconds, samples });
    }
    // A clock that was corrected may have been slightly ahead.
    (meta.saved_at_ms > now + FUTURE_MS_MAX).then(|| {
        let seconds = (meta.saved_at_ms - now) / 1000;
        StateError::Future { seconds, samples }
    })
}

/// State from further in the future was written with another clock.
const FUTURE_MS_MAX: i64 = 30_000;

fn unfinished(name: &str) -> String {
    format!("{name}.new")
}

/// State on its way to another process.
pub type TransferWriter = StateWriter<BufWriter<Box<dyn Sink>>>;

/// A file that replaces another one once it is complete and synced.
pub struct PendingFile {
    disk: Arc<dyn Disk>,
    from: String,
    to: String,
}

impl PendingFile {
    fn new(disk: &Arc<dyn Disk>, name: &str) -> io::Result<(PendingFile, Box<dyn Sink>)> {
        let from = unfinished(name);
        let file = disk.create(&from)?;
        let pending = PendingFile {
            disk: disk.clone(),
            from,
            to: name.to_owned(),
        };
        Ok((pending, file))
    }

    /// Lets it take its place, if it was written.
    fn complete<T>(&self, file: &mut dyn Sink, written: io::Result<T>) -> io::Result<T> {
        let written = written.and_then(|written| {
            file.sync()?;
            Ok(written)
        });
        if written.is_err() {
            // Removes an incomplete file.
            let _ = self.disk.remove(&self.from);
            return written;
        }
        self.disk.rename(&self.from, &self.to)?;
        self.disk.sync()?;
        written
    }
}

/// The state for the next process, which is written section by section.
pub struct PendingState {
    pending: PendingFile,
    writer: StateWriter<BufWriter<Box<dyn Sink>>>,
    /// Why a piece is missing in it.
    failure: Option<io::Error>,
}

impl PendingState {
    /// A part of the bucket of this worker. A failure is that of [`PendingState::finish`].
    pub fn piece(&mut self, worker: u16, piece: &[u8]) {
        if self.failure.is_none() {
            self.failure = self.writer.piece(worker, piece).err();
        }
    }

    /// Writes the rest: all of it but pieces and queued payloads. Returns how many bytes it has.
    pub fn finish(&mut self, content: &Content) -> io::Result<u64> {
        let written = match self.failure.take() {
            Some(failure) => Err(failure),
            None => write(content, &mut self.writer),
        };
        self.pending
            .complete(&mut **self.writer.to_mut().get_mut(), written)
    }
}

fn write(content: &Content, writer: &mut StateWriter<impl Write>) -> io::Result<u64> {
    writer.meta_and_series(content)?;
    for (name, saved) in &content.outputs {
        writer.output(name, saved)?;
    }
    writer.timestamped(content.timestamped.values().flatten())?;
    writer.clients(&content.clients)?;
    writer.books(&content.books)?;
    writer.finish()
}
