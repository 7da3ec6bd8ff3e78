//! The file format: a magic number, a version, sections with lengths, and a checksum of everything at the end.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

use serde::de::DeserializeOwned;
use weir_state::{Bounds, Record, Table};

use super::content::{Content, Meta, SavedOutput, SavedQueues};

const MARK: &[u8] = b"weir state\n";

/// The version that is written. The two versions before it can be read, as far as they exist.
pub const VERSION: u8 = 1;
const OLDEST_VERSION: u8 = if VERSION > 2 { VERSION - 2 } else { 1 };

/// Types of sections. Unknown ones are skipped.
const END: u8 = 0;
const META: u8 = 1;
const RECORD: u8 = 2;
const OUTPUT: u8 = 3;
const BOOKS: u8 = 4;
const QUEUES: u8 = 5;
const ENCODED: u8 = 6;

/// Why state is unusable. `samples`: the samples in its open bucket, which are lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    Unreadable(String),
    NotState,
    Truncated,
    Damaged,
    TooLarge { bytes: u64, bytes_max: u64 },
    Version { found: u8 },
    Invalid(String),
    Foreign { samples: u64 },
    Stale { seconds: i64, samples: u64 },
    Future { seconds: i64, samples: u64 },
}

impl Refusal {
    /// Number of samples known to be lost.
    pub fn samples(&self) -> u64 {
        match self {
            Refusal::Foreign { samples }
            | Refusal::Stale { samples, .. }
            | Refusal::Future { samples, .. } => *samples,
            _ => 0,
        }
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Refusal::Unreadable(error) => write!(f, "it cannot be read: {error}"),
            Refusal::NotState => f.write_str("it is not a state file of weir"),
            Refusal::Truncated => f.write_str("it is truncated"),
            Refusal::Damaged => f.write_str("it is damaged: its checksum does not match"),
            Refusal::TooLarge { bytes, bytes_max } => {
                write!(f, "it has {bytes} bytes; `memory` allows {bytes_max}")
            }
            Refusal::Version { found } => write!(
                f,
                "it has version {found}; this weir reads {OLDEST_VERSION} to {VERSION}"
            ),
            Refusal::Invalid(what) => f.write_str(what),
            Refusal::Foreign { .. } => f.write_str("it belongs to another agent or machine"),
            Refusal::Stale { seconds, .. } => write!(
                f,
                "it is {seconds} s old, and every context in it would have expired"
            ),
            Refusal::Future { seconds, .. } => write!(f, "it was written {seconds} s in the future"),
        }
    }
}

pub fn write(content: &Content) -> Vec<u8> {
    let mut bytes = [MARK, &[VERSION]].concat();
    let mut section = |tag: u8, body: &[u8]| {
        bytes.push(tag);
        bytes.extend((body.len() as u64).to_le_bytes());
        bytes.extend(body);
    };
    // Writing into memory does not fail.
    section(META, &serde_json::to_vec(&content.meta).unwrap_or_default());
    content
        .records()
        .iter()
        .for_each(|record| section(RECORD, record));
    content
        .encoded
        .iter()
        .for_each(|encoded| section(ENCODED, encoded));
    for output in &content.outputs {
        section(
            OUTPUT,
            &postcard::to_extend(&output, Vec::new()).unwrap_or_default(),
        );
    }
    for queues in &content.queues {
        section(
            QUEUES,
            &postcard::to_extend(&queues, Vec::new()).unwrap_or_default(),
        );
    }
    section(BOOKS, &serde_json::to_vec(&content.books).unwrap_or_default());
    section(END, &[]);
    let checksum = crc32fast::hash(&bytes);
    bytes.extend(checksum.to_le_bytes());
    bytes
}

/// `None`: the file is missing.
pub fn read(path: &Path, bytes_max: u64) -> Result<Option<Content>, Refusal> {
    let unreadable = |error: io::Error| Refusal::Unreadable(error.to_string());
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(unreadable(error)),
    };
    let mut bytes = Vec::new();
    // One byte more than allowed shows that the file is too large.
    file.take(bytes_max.saturating_add(1))
        .read_to_end(&mut bytes)
        .map_err(unreadable)?;
    if bytes.len() as u64 > bytes_max {
        let bytes = std::fs::metadata(path).map_or(bytes.len() as u64, |metadata| metadata.len());
        return Err(Refusal::TooLarge { bytes, bytes_max });
    }
    parse(&bytes).map(Some)
}

pub fn parse(bytes: &[u8]) -> Result<Content, Refusal> {
    let rest = bytes.strip_prefix(MARK).ok_or(match MARK.starts_with(bytes) {
        true => Refusal::Truncated,
        false => Refusal::NotState,
    })?;
    let (&version, mut rest) = rest.split_first().ok_or(Refusal::Truncated)?;
    if !(OLDEST_VERSION..=VERSION).contains(&version) {
        return Err(Refusal::Version { found: version });
    }
    let mut meta: Option<Meta> = None;
    let mut content = Content {
        meta: Meta::default(),
        table: Table::new(Bounds::NONE),
        encoded: Vec::new(),
        outputs: BTreeMap::new(),
        queues: BTreeMap::new(),
        books: Box::default(),
    };
    loop {
        let (tag, body, behind) = section(rest).ok_or(Refusal::Truncated)?;
        rest = behind;
        match tag {
            END => break,
            META => meta = Some(json(body, "its header")?),
            RECORD => {
                let record = Record::decode(body).map_err(|error| Refusal::Invalid(error.to_string()))?;
                content.add_record(&record);
            }
            OUTPUT => {
                let output = postcard::from_bytes::<SavedOutput>(body);
                let (name, saved) = output.map_err(|_| invalid("the sums of an output"))?;
                content.outputs.insert(name, saved);
            }
            ENCODED => content.encoded.push(body.to_vec()),
            QUEUES => {
                let queues = postcard::from_bytes::<SavedQueues>(body);
                let (name, queues) = queues.map_err(|_| invalid("the payloads of an output"))?;
                content.queues.insert(name, queues);
            }
            BOOKS => content.books = Box::new(json(body, "the books")?),
            _ => {}
        }
    }
    let checksum: [u8; 4] = rest.try_into().map_err(|_| Refusal::Truncated)?;
    if crc32fast::hash(&bytes[..bytes.len() - 4]) != u32::from_le_bytes(checksum) {
        return Err(Refusal::Damaged);
    }
    content.meta = meta.ok_or_else(|| invalid("its header"))?;
    Ok(content)
}

fn section(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, rest) = bytes.split_first()?;
    let (len, rest) = rest.split_first_chunk::<8>()?;
    let (body, rest) = rest.split_at_checked(usize::try_from(u64::from_le_bytes(*len)).ok()?)?;
    Some((tag, body, rest))
}

fn json<T: DeserializeOwned>(bytes: &[u8], what: &str) -> Result<T, Refusal> {
    serde_json::from_slice(bytes).map_err(|_| invalid(what))
}

fn invalid(what: &str) -> Refusal {
    Refusal::Invalid(format!("{what} cannot be read"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `testdata/state/version-N` was written by a weir that wrote version N. A change after which it cannot be read needs a
    /// version of its own.
    #[test]
    fn every_version_that_is_read_has_a_file_of_its_time() {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/state");
        for version in OLDEST_VERSION..=VERSION {
            let path = directory.join(format!("version-{version}"));
            let content = read(&path, 1 << 20).unwrap().expect("the file of this version");
            assert_eq!((content.meta.samples, content.meta.epoch), (12, 1));
            let mut names: Vec<_> = content.table.iter().map(|(series, ..)| &*series.name).collect();
            names.sort_unstable();
            assert_eq!(
                names,
                ["duration", "latency", "requests", "size", "temperature", "users"]
            );
            assert_eq!(content.outputs.keys().collect::<Vec<_>>(), ["prometheus"]);
            assert_eq!(content.books.hostname, "fixture");
        }
    }
}
