//! The file that is being written.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use super::{FileSettings, Fsync, rotated};

/// An open file and its rotation. Every operation touches the disk.
pub struct LogFile {
    settings: FileSettings,
    path: PathBuf,
    current: Option<Current>,
    /// The id of the last payload. An abandoned write is not repeated.
    last_id: u64,
    /// Another output writes to it now.
    is_released: bool,
}

struct Current {
    file: File,
    length: u64,
    /// Unix seconds.
    begun: i64,
}

impl LogFile {
    /// Opens or creates the file. Fails with a sentence that names the path. `now` in Unix seconds.
    pub fn open(settings: &FileSettings, now: i64) -> io::Result<Self> {
        let mut log = Self::closed(settings);
        log.current(now)?;
        Ok(log)
    }

    /// Opens the file when there is something to write.
    pub fn closed(settings: &FileSettings) -> Self {
        Self {
            settings: settings.clone(),
            path: PathBuf::from(&settings.path),
            current: None,
            last_id: 0,
            is_released: false,
        }
    }

    /// Closes the file for good, so that another output can open it.
    pub fn release(&mut self) {
        self.is_released = true;
        self.close();
    }

    /// Appends whole lines, all or none of them. Returns whether a file was rotated on the way.
    pub fn append(&mut self, id: u64, lines: &[u8], now: i64) -> io::Result<bool> {
        if id == self.last_id {
            return Ok(false);
        }
        self.follow();
        let length = self.current(now)?.length;
        let bytes_max = self.settings.rotate_bytes;
        let full = bytes_max > 0 && length > 0 && length + lines.len() as u64 > bytes_max;
        let rotated = if full {
            self.rotate(now).map(|()| true)?
        } else {
            self.rotate_if_old(now)?
        };
        let always = self.settings.fsync == Fsync::Always;
        let current = self.current(now)?;
        let mut written = current.file.write_all(lines);
        if always {
            written = written.and_then(|()| current.file.sync_data());
        }
        if let Err(error) = written {
            // The part on a full disk would be half a line. If it cannot be truncated, reopening terminates it.
            if current.file.set_len(current.length).is_err() {
                self.current = None;
            }
            return Err(self.named("cannot be written", error));
        }
        current.length += lines.len() as u64;
        self.last_id = id;
        Ok(rotated)
    }

    /// Begins a new file when this one is old enough and not empty.
    pub fn rotate_if_old(&mut self, now: i64) -> io::Result<bool> {
        let age_max = self.settings.rotate_age.as_secs() as i64;
        let is_old = |current: &Current| current.length > 0 && now - current.begun >= age_max;
        if age_max == 0 || !self.current.as_ref().is_some_and(is_old) {
            return Ok(false);
        }
        self.rotate(now)?;
        Ok(true)
    }

    /// Closes the file, even if it was renamed, and opens the file with its name.
    pub fn reopen(&mut self, now: i64) -> io::Result<()> {
        self.close();
        if self.is_released {
            return Ok(());
        }
        self.current(now).map(drop)
    }

    /// The name belongs to another file, or none: it was rotated or deleted, and further writes would be lost.
    fn follow(&mut self) {
        let Some(current) = &mut self.current else {
            return;
        };
        match (current.file.metadata(), std::fs::metadata(&self.path)) {
            (Ok(here), Ok(there)) if here.dev() == there.dev() && here.ino() == there.ino() => {
                // It may have been copied and truncated.
                current.length = here.len();
            }
            _ => self.close(),
        }
    }

    pub fn close(&mut self) {
        if let Some(current) = self.current.take()
            && self.settings.fsync != Fsync::None
            && let Err(error) = current.file.sync_all()
        {
            tracing::warn!("{}", self.named("cannot be synchronised", error));
        }
    }

    /// The name changes in one step: at every instant the file is under its old name or its new one, whole.
    fn rotate(&mut self, now: i64) -> io::Result<()> {
        self.close();
        let to = rotated::next_name(&self.path, now)?;
        std::fs::rename(&self.path, &to).map_err(|error| self.named("cannot be renamed", error))?;
        if self.settings.fsync != Fsync::None
            && let Some(directory) = self.path.parent()
            && let Ok(directory) = File::open(if directory.as_os_str().is_empty() {
                Path::new(".")
            } else {
                directory
            })
        {
            // Some file systems cannot synchronise a directory; nothing more can be done there.
            let _ = directory.sync_all();
        }
        // Compression may lag behind; the limit on kept files applies at once.
        rotated::prune(&self.settings)?;
        self.current(now).map(drop)
    }

    /// The open file, opened if it is not.
    fn current(&mut self, now: i64) -> io::Result<&mut Current> {
        if self.current.is_none() {
            let opened = self.open_current(now)?;
            self.current = Some(opened);
        }
        Ok(self.current.as_mut().expect("opened above"))
    }

    fn open_current(&self, now: i64) -> io::Result<Current> {
        // Opening a pipe would wait for its other end, so look first.
        if let Ok(found) = std::fs::metadata(&self.path)
            && !found.is_file()
        {
            let error = io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file");
            return Err(self.named("cannot be opened", error));
        }
        let opened = OpenOptions::new()
            .create(true)
            .append(true)
            .read(true)
            .open(&self.path);
        let mut file = opened.map_err(|error| self.named("cannot be opened", error))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let error = io::Error::new(
                    io::ErrorKind::WouldBlock,
                    "another output or process is writing to it",
                );
                return Err(self.named("cannot be opened", error));
            }
            // A file system without locks: other writers are not kept out.
            Err(TryLockError::Error(_)) => {}
        }
        let metadata = file.metadata()?;
        let mut length = metadata.len();
        if length > 0 {
            let mut last = [0];
            file.seek(SeekFrom::End(-1))?;
            file.read_exact(&mut last)?;
            if last != *b"\n" {
                // A process died, or a disk was full, in the middle of a line: it stands alone, the next one is whole.
                let ended = file.write_all(b"\n");
                ended.map_err(|error| self.named("cannot be written", error))?;
                length += 1;
            }
        }
        let created = metadata.created().or_else(|_| metadata.modified());
        let created = created.ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok());
        let begun = match created {
            Some(since) if length > 0 => now.min(since.as_secs() as i64),
            _ => now,
        };
        Ok(Current { file, length, begun })
    }

    fn named(&self, what: &str, error: io::Error) -> io::Error {
        io::Error::new(error.kind(), format!("{} {what}: {error}", self.path.display()))
    }
}

impl Drop for LogFile {
    fn drop(&mut self) {
        self.close();
    }
}
