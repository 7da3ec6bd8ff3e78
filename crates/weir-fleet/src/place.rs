//! Stores the sums of an output together with its position in the results. The log has the positions of all outputs; this file only says for
//! which of them the sums hold.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use weir_output::delivery::OutputState;

/// The version: first byte of a file.
const VERSION: u8 = 2;

/// Version and checksum.
const HEAD_BYTES: usize = 5;

/// The file of one output.
#[derive(Clone, Debug)]
pub struct PositionFile {
    path: PathBuf,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct StoredSums {
    /// Unix milliseconds.
    pub at_ms: i64,
    /// By partition, the number behind the last result in the sums.
    pub next: BTreeMap<u32, u64>,
    pub sums: Option<OutputState>,
}

impl StoredSums {
    /// Whether they are the sums of these partitions, at the log's positions or behind them.
    pub fn hold_at(&self, positions: &BTreeMap<u32, u64>) -> bool {
        let is_behind =
            |(partition, before): (&u32, &u64)| self.next.get(partition).is_some_and(|next| next >= before);
        self.next.len() == positions.len() && positions.iter().all(is_behind)
    }
}

impl PositionFile {
    pub fn new(directory: &Path, output: &str) -> Self {
        PositionFile {
            path: directory.join(output),
        }
    }

    /// `None`: the output is new.
    pub fn read(&self) -> io::Result<Option<StoredSums>> {
        let bytes = match std::fs::read(&self.path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let parts = bytes.split_at_checked(HEAD_BYTES);
        let contents = parts.filter(|(found, contents)| **found == head(contents));
        let written = contents.and_then(|(_, contents)| postcard::from_bytes(contents).ok());
        let unreadable = || {
            io::Error::new(
                io::ErrorKind::InvalidData,
                "another version wrote it, or it is damaged",
            )
        };
        written.ok_or_else(unreadable).map(Some)
    }

    /// Writes the file atomically.
    pub fn write(&self, written: &StoredSums) -> io::Result<()> {
        let contents = postcard::to_extend(written, Vec::new()).map_err(io::Error::other)?;
        let new = self.path.with_extension("new");
        let mut file = File::create(&new)?;
        file.write_all(&head(&contents))?;
        file.write_all(&contents)?;
        file.sync_data()?;
        std::fs::rename(&new, &self.path)?;
        let directory = self.path.parent();
        directory.map_or(Ok(()), |directory| File::open(directory)?.sync_all())
    }
}

fn head(contents: &[u8]) -> [u8; HEAD_BYTES] {
    let mut head = [VERSION; HEAD_BYTES];
    head[1..].copy_from_slice(&crc32fast::hash(contents).to_le_bytes());
    head
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
