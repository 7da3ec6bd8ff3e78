//! The state directory: one process saves its state for the next, so that a restart goes unnoticed.
//!
//! The process that uses the directory holds `lock`. `agent` has the agent's identity, and `state` the saved state. `books`, `sums` and the
//! files of [`checkpoints`] exist while a process runs, and afterwards only if it was killed. Unusable state is renamed to
//! `state.set-aside`, the log has the reason, and the agent starts without it.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use weir_output::delivery::OutputState;
use weir_state::AgentId;

use crate::admin::status::Status;
use crate::failure::Failure;

mod agent;
pub mod checkpoints;
mod content;
mod file;

pub use content::{Content, Encoded, Meta, merged, newest};
pub use file::{StateError, StateWriter, VERSION, read_from};

pub use agent::{StoredAgent, random};

/// Takes what one output has summed up, with its name.
pub type PutSums<'a> = &'a mut dyn FnMut(&str, &OutputState) -> io::Result<()>;

/// The names of files in the directory.
const LOCK: &str = "lock";
const STATE: &str = "state";
const SET_ASIDE: &str = "state.set-aside";
const BOOKS: &str = "books";
const SUMS: &str = "sums";
const PASSING: &str = "passing";

/// Directory and files are private.
const DIRECTORY_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;

/// The state directory of this process.
pub struct StateDir {
    path: PathBuf,
    agent: StoredAgent,
    lock: File,
}

/// The books of a process, at most a second old when it was killed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LastBooks {
    pub agent: String,
    /// Unix milliseconds.
    pub at_ms: i64,
    pub books: Status,
}

/// The state of the previous process.
pub enum PreviousState {
    /// No state: there was none, or the process was killed.
    Nothing,
    State(Box<Content>),
    /// Unusable state that was set aside.
    SetAside(StateError),
}

impl StateDir {
    /// Creates the directory if missing, and locks it for this process.
    pub fn open(path: &Path) -> Result<StateDir, Failure> {
        let failed = |what: &str, error: &dyn std::fmt::Display| {
            Failure::runtime(format!("state_path: {}: {what}: {error}", path.display()))
        };
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(DIRECTORY_MODE)
            .create(path)
            .map_err(|error| failed("the directory cannot be made", &error))?;
        let lock = private()
            .create(true)
            .open(path.join(LOCK))
            .map_err(|error| failed("its files cannot be written", &error))?;
        if let Err(error) = lock.try_lock() {
            return Err(match error {
                std::fs::TryLockError::WouldBlock => Failure::runtime(format!(
                    "state_path: {}: another weir uses it; each needs its own directory, and --take-over replaces the running one",
                    path.display()
                )),
                std::fs::TryLockError::Error(error) => failed("it cannot be locked", &error),
            });
        }
        let agent = Self::next_agent(path)?;
        Ok(StateDir {
            path: path.to_owned(),
            agent,
            lock,
        })
    }

    /// The agent of the directory at its next start.
    pub fn next_agent(path: &Path) -> Result<StoredAgent, Failure> {
        StoredAgent::of(path).map_err(|error| {
            let path = path.display();
            Failure::runtime(format!(
                "state_path: {path}: its files cannot be written: {error}"
            ))
        })
    }

    /// Continues in the directory of a process that has handed over its lock.
    pub fn taken_over(path: &Path, agent: StoredAgent, lock: File) -> StateDir {
        StateDir {
            path: path.to_owned(),
            agent,
            lock,
        }
    }

    pub fn lock(&self) -> BorrowedFd<'_> {
        self.lock.as_fd()
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn agent(&self) -> AgentId {
        self.agent.id
    }

    /// Grows with every start.
    pub fn epoch(&self) -> u64 {
        self.agent.epoch
    }

    /// The state of the previous process, which stays until [`StateDir::taken`]. `oldest`: Unix milliseconds before which it is too old;
    /// `bytes_max`: maximum size of the file.
    pub fn left(&self, oldest: i64, now: i64, bytes_max: u64) -> PreviousState {
        let path = self.path.join(STATE);
        let content = match file::read(&path, bytes_max) {
            Ok(None) => return PreviousState::Nothing,
            Ok(Some(content)) => content,
            Err(refusal) => return self.set_aside(refusal),
        };
        match refusal(&content.meta, self.agent.id, oldest, now) {
            None => PreviousState::State(Box::new(content)),
            Some(refusal) => self.set_aside(refusal),
        }
    }

    /// The books of a killed process; `None` if there was none.
    pub fn books(&self) -> Option<LastBooks> {
        let bytes = std::fs::read(self.path.join(BOOKS)).ok()?;
        let read = serde_json::from_slice::<LastBooks>(&bytes);
        if let Err(error) = &read {
            tracing::warn!("the previous process was killed, and its books cannot be read: {error}");
        }
        read.ok().filter(|books| books.agent == self.agent.id.to_string())
    }

    /// Saves the books in case this process is killed. They are not synced: they survive the process, not the machine.
    pub fn keep_books(&self, books: &LastBooks) -> io::Result<()> {
        self.put_beside(BOOKS, &serde_json::to_vec(books).map_err(io::Error::other)?)
    }

    /// Removes the traces of a kill, because this process ends normally.
    pub fn forget_books(&self) {
        let _ = std::fs::remove_file(self.path.join(BOOKS));
        let _ = std::fs::remove_file(self.path.join(SUMS));
        checkpoints::forget(&self.path);
    }

    /// Saves the cumulative state of outputs, as [`StateDir::keep_books`] saves books.
    pub fn keep_sums(
        &self,
        meta: &Meta,
        outputs: impl FnOnce(PutSums<'_>) -> io::Result<()>,
    ) -> io::Result<()> {
        let from = self.unfinished(SUMS);
        let mut sums = StateWriter::new(BufWriter::new(new_file(&from)?))?;
        sums.meta(meta)?;
        outputs(&mut |name, saved| sums.output(name, saved))?;
        sums.finish()?;
        std::fs::rename(from, self.path.join(SUMS))
    }

    /// A file without a name, for state on its way to another process.
    pub fn transfer(&self) -> io::Result<File> {
        let path = self.unfinished(PASSING);
        let file = new_file(&path)?;
        std::fs::remove_file(path)?;
        Ok(file)
    }

    fn unfinished(&self, name: &str) -> PathBuf {
        self.path.join(format!("{name}.new"))
    }

    /// The cumulative state of a killed process's outputs.
    pub fn sums(&self, bytes_max: u64) -> BTreeMap<String, OutputState> {
        match file::read(&self.path.join(SUMS), bytes_max) {
            Ok(Some(content)) if content.meta.agent == self.agent.id.0 => content.outputs,
            Ok(_) => BTreeMap::new(),
            Err(refusal) => {
                tracing::warn!("the sums of outputs are not used: {refusal}");
                BTreeMap::new()
            }
        }
    }

    fn put_beside(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let from = self.unfinished(name);
        new_file(&from)?.write_all(bytes)?;
        std::fs::rename(&from, self.path.join(name))
    }

    /// Renames the file, replacing an earlier one.
    fn set_aside(&self, refusal: StateError) -> PreviousState {
        let (from, to) = (self.path.join(STATE), self.path.join(SET_ASIDE));
        match std::fs::rename(&from, &to) {
            Ok(()) => {
                let to = to.display();
                tracing::warn!("the state of the previous process is set aside as {to}: {refusal}");
            }
            Err(error) => {
                let from = from.display();
                tracing::warn!(
                    "the state of the previous process is not used: {refusal}; {from} stays: {error}"
                );
            }
        }
        PreviousState::SetAside(refusal)
    }

    /// Removes the state, because this process has continued it.
    pub fn taken(&self) -> io::Result<()> {
        match std::fs::remove_file(self.path.join(STATE)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Starts to save state for the next process. Existing state stays until the new one is complete.
    pub fn begin(&self) -> io::Result<PendingFile> {
        PendingFile::new(&self.path, STATE)
    }
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

fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(FILE_MODE);
    options
}

fn new_file(path: &Path) -> io::Result<File> {
    private().create(true).truncate(true).open(path)
}

/// State on its way to another process.
pub type TransferWriter = StateWriter<BufWriter<File>>;

/// A file that replaces another one once it is complete and synced.
pub struct PendingFile {
    file: File,
    from: PathBuf,
    to: PathBuf,
}

impl PendingFile {
    fn new(directory: &Path, name: &str) -> io::Result<PendingFile> {
        let from = directory.join(format!("{name}.new"));
        Ok(PendingFile {
            file: new_file(&from)?,
            from,
            to: directory.join(name),
        })
    }

    /// Lets it be written, and lets it take its place then.
    fn put<T>(self, write: impl FnOnce(BufWriter<&File>) -> io::Result<T>) -> io::Result<T> {
        let written = write(BufWriter::new(&self.file)).and_then(|written| {
            self.file.sync_all()?;
            Ok(written)
        });
        if written.is_err() {
            // Removes an incomplete file.
            let _ = std::fs::remove_file(&self.from);
            return written;
        }
        std::fs::rename(&self.from, &self.to)?;
        let directory = self.to.parent().unwrap_or(Path::new("."));
        File::open(directory)?.sync_all()?;
        written
    }

    /// Writes state. Returns how many bytes it has.
    pub fn finish(self, content: &Content) -> io::Result<u64> {
        self.put(|to| write(content, to))
    }
}

/// All of it but pieces and queued payloads.
pub fn write(content: &Content, to: impl Write) -> io::Result<u64> {
    let mut writer = StateWriter::new(to)?;
    writer.meta(&content.meta)?;
    writer.table(content)?;
    for (name, saved) in &content.outputs {
        writer.output(name, saved)?;
    }
    writer.books(&content.books)?;
    writer.finish()
}
