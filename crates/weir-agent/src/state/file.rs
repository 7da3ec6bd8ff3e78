//! The file format: a magic number, a version, sections with lengths, and a checksum of everything at the end.

use std::io::{self, BufReader, Read, Write};
use std::sync::Arc;

use crc32fast::Hasher;
use postcard::ser_flavors::Size;
use serde::de::DeserializeOwned;
use weir_ingest::KnownClient;
use weir_output::delivery::{OutputState, SavedQueue};
use weir_state::Record;

use super::content::{Content, EncodedPiece, Meta, SavedOutput, SavedQueues, numbers_of, owner_of};
use weir_status::status::Status;
use weir_system::disk::{Disk, Reading, Source};

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
/// 6 was one of a version that hand-overs do not speak any more.
const PIECE: u8 = 7;
/// Numbers of clients' requests. Versions that do not know it skip it.
const CLIENTS: u8 = 8;
/// Points with their own timestamp. Versions that do not know it skip it.
const TIMESTAMPED: u8 = 9;

/// The header of a piece.
const WORKER_BYTES: usize = 2;

/// Bytes per read of skipped data.
const SKIP_BYTES: u64 = 64 << 10;

/// Why state is unusable. `samples`: the samples in its open bucket, which are lost.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StateError {
    #[error("it cannot be read: {0}")]
    Unreadable(String),
    #[error("it is not a state file of weir")]
    NotState,
    #[error("it is truncated")]
    Truncated,
    #[error("it is damaged: its checksum does not match")]
    Damaged,
    #[error("it has {bytes} bytes; `memory` allows {bytes_max}")]
    TooLarge { bytes: u64, bytes_max: u64 },
    #[error("it has version {found}; this weir reads {OLDEST_VERSION} to {VERSION}")]
    Version { found: u8 },
    #[error("{0}")]
    Invalid(String),
    #[error("it belongs to another agent or machine")]
    Foreign { samples: u64 },
    #[error("it is {seconds} s old, and every context in it would have expired")]
    Stale { seconds: i64, samples: u64 },
    #[error("it was written {seconds} s in the future")]
    Future { seconds: i64, samples: u64 },
}

impl StateError {
    /// Number of samples known to be lost.
    pub fn samples(&self) -> u64 {
        match self {
            StateError::Foreign { samples }
            | StateError::Stale { samples, .. }
            | StateError::Future { samples, .. } => *samples,
            _ => 0,
        }
    }
}

/// Writes state section by section, so that no more than one of them is in memory.
pub struct StateWriter<W> {
    to: W,
    checksum: Hasher,
    bytes: u64,
}

impl<W: Write> StateWriter<W> {
    pub fn new(to: W) -> io::Result<Self> {
        let mut writer = StateWriter {
            to,
            checksum: Hasher::new(),
            bytes: 0,
        };
        writer.put(MARK)?;
        writer.put(&[VERSION])?;
        Ok(writer)
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.checksum.update(bytes);
        self.bytes += bytes.len() as u64;
        self.to.write_all(bytes)
    }

    fn section(&mut self, tag: u8, body: &[u8]) -> io::Result<()> {
        self.head(tag, body.len())?;
        self.put(body)
    }

    fn head(&mut self, tag: u8, bytes: usize) -> io::Result<()> {
        self.put(&[tag])?;
        self.put(&(bytes as u64).to_le_bytes())
    }

    pub fn meta(&mut self, meta: &Meta) -> io::Result<()> {
        self.section(META, &serde_json::to_vec(meta)?)
    }

    /// The header, and the decoded series.
    pub fn meta_and_series(&mut self, content: &Content) -> io::Result<()> {
        let records = content.records();
        self.meta(&Meta {
            records_of: numbers_of(&records),
            timestamped_of: numbers_of(&content.timestamped),
            ..content.meta.clone()
        })?;
        let mut records = records.values().flatten();
        records.try_for_each(|record| self.section(RECORD, record))
    }

    /// A part of the bucket of this worker.
    pub fn piece(&mut self, worker: u16, piece: &[u8]) -> io::Result<()> {
        self.head(PIECE, WORKER_BYTES + piece.len())?;
        self.put(&worker.to_le_bytes())?;
        self.put(piece)
    }

    pub fn output(&mut self, name: &str, saved: &OutputState) -> io::Result<()> {
        // As `postcard_of(&(name, saved))` would write it, without a copy of all sums.
        let (lineage, bytes) = saved.parts();
        let before = postcard_of(&(name, lineage, bytes.len() as u64))?;
        self.head(OUTPUT, before.len() + bytes.len())?;
        self.put(&before)?;
        self.put(bytes)
    }

    pub fn queues(&mut self, name: &str, queues: &[SavedQueue]) -> io::Result<()> {
        self.section(QUEUES, &postcard_of(&(name, queues))?)
    }

    pub fn clients(&mut self, clients: &[KnownClient]) -> io::Result<()> {
        match clients {
            [] => Ok(()),
            clients => self.section(CLIENTS, &KnownClient::encode(clients)),
        }
    }

    /// Points with their own timestamp that leave with the bucket.
    pub fn timestamped<'a>(&mut self, pieces: impl IntoIterator<Item = &'a Vec<u8>>) -> io::Result<()> {
        let mut pieces = pieces.into_iter();
        pieces.try_for_each(|piece| self.section(TIMESTAMPED, piece))
    }

    pub fn books(&mut self, books: &Status) -> io::Result<()> {
        self.section(BOOKS, &serde_json::to_vec(books)?)
    }

    /// Returns how many bytes it has become.
    pub fn finish(&mut self) -> io::Result<u64> {
        self.section(END, &[])?;
        let checksum = self.checksum.clone().finalize();
        self.to.write_all(&checksum.to_le_bytes())?;
        self.to.flush()?;
        Ok(self.bytes + 4)
    }

    pub fn to_mut(&mut self) -> &mut W {
        &mut self.to
    }
}

fn postcard_of(value: &impl serde::Serialize) -> io::Result<Vec<u8>> {
    let size = postcard::serialize_with_flavor(value, Size::default());
    let bytes = size.and_then(|size| postcard::to_extend(value, Vec::with_capacity(size)));
    bytes.map_err(io::Error::other)
}

/// `None`: the file is missing.
pub fn read(disk: &dyn Disk, name: &str, bytes_max: u64) -> Result<Option<Content>, StateError> {
    match disk.open(name) {
        Ok(file) => read_from(file, bytes_max).map(Some),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(unreadable(error)),
    }
}

/// Pieces of buckets stay in the file.
pub fn read_from(file: Arc<dyn Source>, bytes_max: u64) -> Result<Content, StateError> {
    let bytes = file.bytes().map_err(unreadable)?;
    if bytes > bytes_max {
        return Err(StateError::TooLarge { bytes, bytes_max });
    }
    let mut content = parse(BufReader::new(Reading::of(&*file).take(bytes_max)))?;
    content.encoded.file = Some(file);
    Ok(content)
}

fn unreadable(error: io::Error) -> StateError {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => StateError::Truncated,
        _ => StateError::Unreadable(error.to_string()),
    }
}

pub fn parse(from: impl Read) -> Result<Content, StateError> {
    let mut sections = Sections {
        from,
        checksum: Hasher::new(),
        at: 0,
    };
    sections.begin()?;
    let mut meta: Option<Meta> = None;
    let mut content = Content::empty(Meta::default());
    let mut records = 0;
    loop {
        let (tag, bytes) = sections.head()?;
        match tag {
            END => break,
            META => meta = Some(json(&sections.body(bytes)?, "its header")?),
            RECORD => {
                let record = Record::decode(&sections.body(bytes)?);
                let record = record.map_err(|error| StateError::Invalid(error.to_string()))?;
                let worker = meta
                    .as_ref()
                    .map_or(0, |meta| owner_of(&meta.records_of, records));
                content.table_of(worker).add_record(&record);
                records += 1;
            }
            OUTPUT => {
                let output = postcard::from_bytes::<SavedOutput>(&sections.body(bytes)?);
                let (name, saved) = output.map_err(|_| invalid("the sums of an output"))?;
                content.outputs.insert(name, saved);
            }
            PIECE => content.encoded.pieces.push(sections.piece(bytes)?),
            QUEUES => {
                let queues = postcard::from_bytes::<SavedQueues>(&sections.body(bytes)?);
                let (name, queues) = queues.map_err(|_| invalid("the payloads of an output"))?;
                content.queues.insert(name, queues);
            }
            CLIENTS => {
                let clients = KnownClient::decode(&sections.body(bytes)?);
                content.clients = clients.ok_or_else(|| invalid("the numbers of clients' requests"))?;
            }
            TIMESTAMPED => {
                let number = content.timestamped.values().map(Vec::len).sum();
                let worker = meta
                    .as_ref()
                    .map_or(0, |meta| owner_of(&meta.timestamped_of, number));
                let of_worker = content.timestamped.entry(worker).or_default();
                of_worker.push(sections.body(bytes)?);
            }
            BOOKS => content.books = Box::new(json(&sections.body(bytes)?, "the books")?),
            _ => sections.skip(bytes)?,
        }
    }
    sections.end()?;
    content.meta = meta.ok_or_else(|| invalid("its header"))?;
    if records > 0 && content.meta.records_of.is_empty() {
        // An earlier version wrote the series of all workers together.
        content.meta.workers = 0;
    }
    for piece in &mut content.encoded.pieces {
        piece.older = content.meta.older.get(&piece.worker).copied();
    }
    Ok(content)
}

/// Reads what [`StateWriter`] writes.
struct Sections<R> {
    from: R,
    checksum: Hasher,
    at: u64,
}

impl<R: Read> Sections<R> {
    fn begin(&mut self) -> Result<(), StateError> {
        let found = self.up_to(MARK.len() as u64)?;
        if found != MARK {
            return Err(match MARK.starts_with(&found) {
                true => StateError::Truncated,
                false => StateError::NotState,
            });
        }
        let [version] = self.array()?;
        match (OLDEST_VERSION..=VERSION).contains(&version) {
            true => Ok(()),
            false => Err(StateError::Version { found: version }),
        }
    }

    /// As many bytes as there are, up to a number.
    fn up_to(&mut self, bytes: u64) -> Result<Vec<u8>, StateError> {
        let mut found = Vec::new();
        let mut from = (&mut self.from).take(bytes);
        from.read_to_end(&mut found).map_err(unreadable)?;
        self.checksum.update(&found);
        self.at += found.len() as u64;
        Ok(found)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], StateError> {
        let mut bytes = [0; N];
        self.from.read_exact(&mut bytes).map_err(unreadable)?;
        self.checksum.update(&bytes);
        self.at += N as u64;
        Ok(bytes)
    }

    /// Kind and length of the next section.
    fn head(&mut self) -> Result<(u8, u64), StateError> {
        let [tag] = self.array()?;
        Ok((tag, u64::from_le_bytes(self.array()?)))
    }

    fn body(&mut self, bytes: u64) -> Result<Vec<u8>, StateError> {
        let body = self.up_to(bytes)?;
        match body.len() as u64 == bytes {
            true => Ok(body),
            false => Err(StateError::Truncated),
        }
    }

    fn skip(&mut self, bytes: u64) -> Result<(), StateError> {
        let mut left = bytes;
        while left > 0 {
            left -= self.body(left.min(SKIP_BYTES))?.len() as u64;
        }
        Ok(())
    }

    /// Its position, for later.
    fn piece(&mut self, bytes: u64) -> Result<EncodedPiece, StateError> {
        let worker = u16::from_le_bytes(self.array()?);
        let bytes = bytes
            .checked_sub(WORKER_BYTES as u64)
            .ok_or(StateError::Truncated)?;
        let at = self.at;
        self.skip(bytes)?;
        Ok(EncodedPiece {
            worker,
            at,
            bytes,
            older: None,
        })
    }

    fn end(&mut self) -> Result<(), StateError> {
        let found = self.checksum.clone().finalize();
        let expected = u32::from_le_bytes(self.array()?);
        if !self.up_to(1)?.is_empty() {
            return Err(StateError::Truncated);
        }
        match found == expected {
            true => Ok(()),
            false => Err(StateError::Damaged),
        }
    }
}

fn json<T: DeserializeOwned>(bytes: &[u8], what: &str) -> Result<T, StateError> {
    serde_json::from_slice(bytes).map_err(|_| invalid(what))
}

fn invalid(what: &str) -> StateError {
    StateError::Invalid(format!("{what} cannot be read"))
}

#[cfg(test)]
mod tests {
    use std::io::BufWriter;
    use std::path::Path;

    use weir_ingest::SavedBucket;
    use weir_protocol::Kind;
    use weir_state::{AgentId, Entry, ExactSum, Facts, SeriesName, State, StreamWriter};

    use super::*;
    use crate::state::content::OpenBucket;
    use weir_system::disk::SystemDisk;

    /// `tests/state/version-N` was written by a weir that wrote version N. A change after which it cannot be read needs a
    /// version of its own.
    #[test]
    fn every_version_that_is_read_has_a_file_of_its_time() {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/state");
        for version in OLDEST_VERSION..=VERSION {
            let name = format!("version-{version}");
            let content = read(&SystemDisk::of(&directory), &name, 1 << 20)
                .unwrap()
                .expect("the file of this version");
            assert_eq!((content.meta.samples, content.meta.epoch), (12, 1));
            let mut names: Vec<_> = content.tables[&0]
                .iter()
                .map(|(series, ..)| &*series.name)
                .collect();
            names.sort_unstable();
            assert_eq!(
                names,
                ["duration", "latency", "requests", "size", "temperature", "users"]
            );
            assert_eq!(content.outputs.keys().collect::<Vec<_>>(), ["prometheus"]);
            assert_eq!(content.books.process.hostname, "fixture");
        }
    }

    fn piece(name: &str, seen: i64, value: f64) -> Vec<u8> {
        let mut writer = StreamWriter::new(AgentId([1; 16]));
        writer.add(&Entry {
            number: 1,
            kind: Kind::Counter,
            named: Some(SeriesName {
                name,
                host: None,
                integration: None,
                tags: Vec::new(),
            }),
            facts: Facts { seen, suffixes: 0 },
            state: State::Counter(ExactSum::from(value)),
        });
        writer.finish()
    }

    /// Workers see the clock at different moments. What one of them has in a bucket that has ended for another one counts in the newest.
    #[test]
    fn a_worker_may_have_stopped_in_an_older_bucket() {
        let mut writer = StateWriter::new(BufWriter::new(tempfile::tempfile().unwrap())).unwrap();
        writer.piece(0, &piece("a", 1011, 1.0)).unwrap();
        writer.piece(1, &piece("a", 1009, 2.0)).unwrap();
        writer.piece(1, &piece("silent", 990, 0.0)).unwrap();
        let meta = Meta {
            agent: [1; 16],
            bucket: Some(OpenBucket {
                start: 1010,
                timestamp: 1010,
                width: 10,
            }),
            samples: 3,
            workers: 2,
            samples_of: [(0, 1), (1, 2)].into(),
            older: [(1, 1000)].into(),
            ..Meta::default()
        };
        writer.meta(&meta).unwrap();
        writer.books(&Status::default()).unwrap();
        writer.finish().unwrap();
        let file = writer.to_mut().get_mut().try_clone().unwrap();
        let mut content = read_from(Arc::new(file), 1 << 20).unwrap();
        let buckets = content.buckets(2);
        assert!(buckets.iter().all(|bucket| bucket.encoded.bytes == 0));
        let of = |bucket: SavedBucket| {
            let series = bucket.series.into_iter();
            let mut series: Vec<_> = series
                .map(|(identity, facts, state)| (identity.name.to_string(), facts.seen, state))
                .collect();
            series.sort_by(|one, other| one.0.cmp(&other.0));
            (bucket.samples, series)
        };
        let counter = |value: f64| State::Counter(ExactSum::from(value));
        // Each worker continues what it had: it may end the bucket before the other.
        let expected = [
            (1, vec![("a".to_owned(), 1011, counter(1.0))]),
            (
                2,
                vec![
                    ("a".to_owned(), 1010, counter(2.0)),
                    ("silent".to_owned(), 990, counter(0.0)),
                ],
            ),
        ];
        assert_eq!(buckets.into_iter().map(of).collect::<Vec<_>>(), expected);
        // The same from a file with decoded series.
        let mut content =
            read_from(Arc::new(writer.to_mut().get_mut().try_clone().unwrap()), 1 << 20).unwrap();
        content.decode();
        let mut writer = StateWriter::new(Vec::new()).unwrap();
        writer.meta_and_series(&content).unwrap();
        writer.finish().unwrap();
        let mut content = parse(writer.to_mut().as_slice()).unwrap();
        assert_eq!(
            content.buckets(2).into_iter().map(of).collect::<Vec<_>>(),
            expected
        );
        // Three workers divide it among them, and no count says how many samples each has.
        let parsed = parse(writer.to_mut().as_slice()).unwrap();
        let buckets = parsed.clone().buckets(3);
        let samples: Vec<u64> = buckets.iter().map(|bucket| bucket.samples).collect();
        let series: usize = buckets.iter().map(|bucket| bucket.series.len()).sum();
        assert_eq!((samples, series), (vec![3, 0, 0], 2));
        // So do two, of a file whose records say nothing of workers.
        let mut writer = StateWriter::new(Vec::new()).unwrap();
        writer.meta(&meta).unwrap();
        for record in parsed.records().values().flatten() {
            writer.section(RECORD, record).unwrap();
        }
        writer.finish().unwrap();
        let buckets = parse(writer.to_mut().as_slice()).unwrap().buckets(2);
        let each: Vec<_> = buckets
            .iter()
            .map(|bucket| (bucket.samples, bucket.series.len()))
            .collect();
        assert_eq!(each, [(3, 1), (0, 1)]);
    }
}
