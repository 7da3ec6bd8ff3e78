//! The sums of an output as the log keeps them with its positions, and a mark of what is being given.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use weir_output::delivery::OutputState;

/// The version: first byte of the sums of a partition.
const VERSION: u8 = 1;

/// Fast: they are written after each bucket.
const COMPRESSION: i32 = 1;

/// The sums of one partition.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct PartitionSums {
    /// Unix milliseconds.
    pub at_ms: i64,
    /// `None`: it has no series.
    pub sums: Option<OutputState>,
}

impl PartitionSums {
    pub fn encode(&self) -> io::Result<Vec<u8>> {
        let plain = postcard::to_extend(self, Vec::new()).map_err(io::Error::other)?;
        let mut bytes = zstd::bulk::compress(&plain, COMPRESSION)?;
        bytes.insert(0, VERSION);
        Ok(bytes)
    }

    /// Whether a newer program wrote them.
    pub fn are_newer(bytes: &[u8]) -> bool {
        bytes.first().is_some_and(|version| *version > VERSION)
    }

    pub fn decode(bytes: &[u8]) -> io::Result<Self> {
        let Some(compressed) = bytes.strip_prefix(&[VERSION]) else {
            return Err(io::Error::other("another version wrote them"));
        };
        let plain = zstd::stream::decode_all(compressed)?;
        postcard::from_bytes(&plain).map_err(io::Error::other)
    }
}

/// A mark that exists while a bucket is being given: after a kill it shows the next process that this bucket is repeated.
#[derive(Clone, Debug)]
pub struct Mark(PathBuf);

impl Mark {
    pub fn new(directory: &Path, output: &str) -> Self {
        Mark(directory.join(output).with_extension("begun"))
    }

    pub fn begin(&self) -> io::Result<()> {
        File::create(&self.0).map(drop)
    }

    pub fn end(&self) {
        // If the mark stays, a bucket is counted as repeated that was not.
        let _ = std::fs::remove_file(&self.0);
    }

    pub fn was_begun(&self) -> bool {
        self.0.exists()
    }
}

/// The directory of all marks, created if it is missing.
pub fn directory(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt as _;
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
}
