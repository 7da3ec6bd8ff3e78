//! Stores an output's position in the results together with its sums at that position.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use weir_output::delivery::OutputState;

use super::rounds::Position;

/// The version: first byte of a file.
const VERSION: u8 = 1;

/// The file of one output.
#[derive(Clone, Debug)]
pub struct PositionFile {
    path: PathBuf,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct StoredPosition {
    /// Unix milliseconds.
    pub at_ms: i64,
    pub position: Position,
    /// Buckets given to the output since the beginning.
    pub buckets: u64,
    pub sums: Option<OutputState>,
}

impl StoredPosition {
    /// The position at which to continue with these partitions; the log says how far they were sent. The sums hold only for these
    /// partitions and this position.
    pub fn at(mut self, noted: &BTreeMap<u32, u64>) -> StoredPosition {
        let next = &mut self.position.next;
        // A partition without sent results changes no sum.
        let holds = |(partition, before): (&u32, &u64)| {
            next.get(partition).map_or(*before == 0, |next| next >= before)
        };
        let is_same = noted.iter().all(holds) && next.keys().all(|partition| noted.contains_key(partition));
        if !is_same {
            self.sums = None;
        }
        let at = |(partition, before): (&u32, &u64)| {
            let known = next.get(partition).copied().unwrap_or(0);
            (*partition, known.max(*before))
        };
        *next = noted.iter().map(at).collect();
        self
    }
}

impl PositionFile {
    pub fn new(directory: &Path, output: &str) -> Self {
        PositionFile {
            path: directory.join(output),
        }
    }

    /// `None`: the output is new.
    pub fn read(&self) -> io::Result<Option<StoredPosition>> {
        let bytes = match std::fs::read(&self.path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let rest = bytes.strip_prefix(&[VERSION]);
        let written = rest.and_then(|rest| postcard::from_bytes(rest).ok());
        let unreadable = || {
            io::Error::new(
                io::ErrorKind::InvalidData,
                "another version wrote it, or it is damaged",
            )
        };
        written.ok_or_else(unreadable).map(Some)
    }

    /// Writes the file atomically.
    pub fn write(&self, written: &StoredPosition) -> io::Result<()> {
        let bytes = postcard::to_extend(written, vec![VERSION]).map_err(io::Error::other)?;
        let new = self.path.with_extension("new");
        let mut file = File::create(&new)?;
        file.write_all(&bytes)?;
        file.sync_data()?;
        std::fs::rename(&new, &self.path)
    }
}

/// A mark that exists while a bucket is being given: after a kill it shows the next process that this bucket is repeated.
impl PositionFile {
    pub fn begin(&self) -> io::Result<()> {
        File::create(self.mark()).map(drop)
    }

    pub fn end(&self) {
        // If the mark stays, a bucket is counted as repeated that was not.
        let _ = std::fs::remove_file(self.mark());
    }

    pub fn was_begun(&self) -> bool {
        self.mark().exists()
    }

    fn mark(&self) -> PathBuf {
        self.path.with_extension("begun")
    }
}

/// The directory of all files, created if it is missing.
pub fn directory(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt as _;
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
}
