//! A record: version, flags and checksum, a header, and a body of texts and of series that refer to them by number.

use std::cell::RefCell;
use std::collections::HashMap;

use weir_protocol::Kind;
use zstd::bulk::{Compressor, Decompressor};

use crate::series::{Facts, Identity, SeriesRef};
use crate::wire::{Reader, Writer};
use crate::{Error, Header, OLDEST_VERSION, State, VERSION};

/// Largest body of a record, uncompressed: with its header it is below a megabyte, Kafka's limit.
pub const BODY_BYTES_MAX: usize = 1_000_000;

/// Flags.
const COMPRESSED: u8 = 1;
const OPEN: u8 = 2;
const PUBLISHED: u8 = 4;

/// Version, flags and checksum.
const PREFIX_BYTES: usize = 6;

/// The most that a header takes beside its texts.
const HEADER_BYTES: usize = 120;

/// A body that is not longer has no shorter form: magic number, header of the frame and header of a block.
const FRAME_BYTES: usize = 9;

/// Bytes that a series takes at least: kind, name, form, number of tags, time, state.
const SERIES_BYTES_MIN: usize = 6;

/// Series that memory is set aside for before they are read: a record may claim many.
const ROWS_RESERVED: usize = 4096;

/// Flags for the parts of a series besides name and tags.
pub(crate) const HAS_HOST: u8 = 1;
pub(crate) const HAS_INTEGRATION: u8 = 2;
pub(crate) const HAS_SUFFIXES: u8 = 4;

/// A record that was read.
#[derive(Clone, Debug)]
pub struct Record {
    pub header: Header,
    /// The series refer to texts in here.
    body: Vec<u8>,
    /// Start and end of each text in `body`.
    texts: Vec<(u32, u32)>,
    /// Numbers of texts; each series has a range of them.
    tags: Vec<u32>,
    rows: Vec<Row>,
}

/// One series of a record, with the numbers of its texts.
#[derive(Clone, Copy, Debug)]
pub struct Numbered<'a> {
    pub kind: Kind,
    pub name: u32,
    pub host: Option<u32>,
    pub integration: Option<u32>,
    pub tags: &'a [u32],
    pub facts: Facts,
    pub state: &'a State,
}

#[derive(Clone, Debug)]
struct Row {
    kind: Kind,
    name: u32,
    host: Option<u32>,
    integration: Option<u32>,
    tags: (u32, u32),
    facts: Facts,
    state: State,
}

impl Record {
    /// Reads one record, all of it. Any bytes give a record or an error.
    pub fn decode(bytes: &[u8]) -> Result<Record, Error> {
        let (header, body) = Record::unpacked(bytes)?;
        decode_body(header, body)
    }

    /// Its header and its body as it is before compression.
    fn unpacked(bytes: &[u8]) -> Result<(Header, Vec<u8>), Error> {
        let mut reader = Reader::new(bytes);
        let (version, flags) = (reader.byte()?, reader.byte()?);
        if !(OLDEST_VERSION..=VERSION).contains(&version) {
            return Err(Error::Version { found: version });
        }
        let checksum = u32::from_le_bytes(reader.array()?);
        if checksum != checksum_of(version, flags, reader.rest()) {
            return Err(Error::Checksum);
        }
        if flags & !(COMPRESSED | OPEN | PUBLISHED) != 0 {
            return Err(Error::NotCanonical("the flags"));
        }
        let header = Header::read(version, &mut reader, flags & OPEN != 0, flags & PUBLISHED != 0)?;
        let len = reader.number()?;
        let len = usize::try_from(len)
            .ok()
            .filter(|len| *len <= BODY_BYTES_MAX)
            .ok_or(Error::TooLarge { bytes: len })?;
        let body = match flags & COMPRESSED {
            0 => reader.rest().to_vec(),
            _ => decompressed(reader.rest(), len)?,
        };
        match body.len() == len {
            true => Ok((header, body)),
            false => Err(Error::Compression),
        }
    }

    /// Without series yet.
    fn new(header: Header) -> Self {
        Record {
            header,
            body: Vec::new(),
            texts: Vec::new(),
            tags: Vec::new(),
            rows: Vec::new(),
        }
    }

    pub fn len(&self) -> usize {
        self.rows.len()
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The bytes before compression. Equal contents have equal ones.
    pub fn body(&self) -> &[u8] {
        &self.body
    }

    /// By ascending name, kind, host, integration and tags.
    pub fn series(&self) -> impl ExactSizeIterator<Item = SeriesRef<'_, impl Iterator<Item = &str>>> {
        self.rows.iter().map(|row| self.series_of(row))
    }

    fn series_of<'a>(&'a self, row: &'a Row) -> SeriesRef<'a, impl Iterator<Item = &'a str>> {
        SeriesRef {
            kind: row.kind,
            name: self.text(row.name),
            host: row.host.map(|host| self.text(host)),
            integration: row.integration.map(|integration| self.text(integration)),
            tags: self.tags[row.tags.0 as usize..row.tags.1 as usize]
                .iter()
                .map(|tag| self.text(*tag)),
            facts: row.facts,
            state: &row.state,
        }
    }

    /// Its texts by ascending bytes. [`Numbered`] refers to them by their place.
    pub fn texts(&self) -> impl ExactSizeIterator<Item = &str> {
        (0..self.texts.len() as u32).map(|number| self.text(number))
    }

    /// Its series with the numbers of texts instead of the texts, in the order of [`Record::series`].
    pub fn numbered(&self) -> impl ExactSizeIterator<Item = Numbered<'_>> {
        self.rows.iter().map(|row| Numbered {
            kind: row.kind,
            name: row.name,
            host: row.host,
            integration: row.integration,
            tags: &self.tags[row.tags.0 as usize..row.tags.1 as usize],
            facts: row.facts,
            state: &row.state,
        })
    }

    fn text(&self, number: u32) -> &str {
        let (start, end) = self.texts[number as usize];
        // Checked when it was read.
        std::str::from_utf8(&self.body[start as usize..end as usize]).unwrap_or_default()
    }

    fn read_texts(&mut self, body_len: usize, reader: &mut Reader<'_>) -> Result<(), Error> {
        let count = reader.count(1)?;
        let mut last: Option<&[u8]> = None;
        for _ in 0..count {
            let text = reader.block()?;
            std::str::from_utf8(text).map_err(|_| Error::NotText)?;
            if last.is_some_and(|last| last >= text) {
                return Err(Error::NotCanonical("the texts"));
            }
            let end = body_len - reader.left();
            self.texts.push(((end - text.len()) as u32, end as u32));
            last = Some(text);
        }
        Ok(())
    }

    fn read_series(&mut self, reader: &mut Reader<'_>, used: &mut [bool]) -> Result<(), Error> {
        let count = reader.count(SERIES_BYTES_MIN)?;
        for at in 0..count {
            if at == self.rows.capacity() {
                // Doubled, but never for more than there are.
                self.rows.reserve_exact((count - at).min(at.max(ROWS_RESERVED)));
            }
            let row = self.read_row(reader, used)?;
            self.check_order(&row)?;
            self.rows.push(row);
        }
        Ok(())
    }

    /// Texts ascend, so their numbers compare as they do.
    fn check_order(&self, row: &Row) -> Result<(), Error> {
        let last = self.rows.last();
        match last.is_some_and(|last| self.order(last) >= self.order(row)) {
            true => Err(Error::NotCanonical("the order of series")),
            false => Ok(()),
        }
    }

    /// Forgets all series before this one, which is the last.
    fn keep_only(&mut self, row: Row) {
        self.tags.drain(..row.tags.0 as usize);
        let tags = (0, self.tags.len() as u32);
        self.rows.clear();
        self.rows.push(Row { tags, ..row });
    }

    fn order<'a>(&'a self, row: &Row) -> (u32, Kind, Option<u32>, Option<u32>, &'a [u32]) {
        let tags = &self.tags[row.tags.0 as usize..row.tags.1 as usize];
        (row.name, row.kind, row.host, row.integration, tags)
    }

    fn read_row(&mut self, reader: &mut Reader<'_>, used: &mut [bool]) -> Result<Row, Error> {
        let mut text = |reader: &mut Reader<'_>| {
            let number = reader.number()?;
            let seen = usize::try_from(number)
                .ok()
                .and_then(|number| used.get_mut(number));
            *seen.ok_or(Error::OutOfRange("the number of a text"))? = true;
            Ok(number as u32)
        };
        let found = reader.byte()?;
        let kind = Kind::ALL.get(usize::from(found)).ok_or(Error::Kind { found })?;
        let name = text(reader)?;
        let form = reader.byte()?;
        if form & !(HAS_HOST | HAS_INTEGRATION | HAS_SUFFIXES) != 0 {
            return Err(Error::NotCanonical("a series"));
        }
        let mut optional = |flag: u8| (form & flag != 0).then(|| text(reader)).transpose();
        let (host, integration) = (optional(HAS_HOST)?, optional(HAS_INTEGRATION)?);
        let first = self.tags.len();
        for _ in 0..reader.count(1)? {
            let tag = text(reader)?;
            if self.tags[first..].last().is_some_and(|last| *last >= tag) {
                return Err(Error::NotCanonical("the tags"));
            }
            self.tags.push(tag);
        }
        let facts = Facts {
            seen: self.header.bucket_start.wrapping_add(reader.signed()?),
            suffixes: match form & HAS_SUFFIXES {
                0 => ALL_SUFFIXES,
                _ => read_suffixes(reader)?,
            },
        };
        Ok(Row {
            kind: *kind,
            name,
            host,
            integration,
            tags: (first as u32, self.tags.len() as u32),
            facts,
            state: State::read(*kind, self.header.agent, reader)?,
        })
    }
}

pub(crate) const ALL_SUFFIXES: u32 = u32::MAX;

fn read_suffixes(reader: &mut Reader<'_>) -> Result<u32, Error> {
    match u32::try_from(reader.number()?) {
        Ok(ALL_SUFFIXES) => Err(Error::NotCanonical("a series")),
        Ok(some) => Ok(some),
        Err(_) => Err(Error::OutOfRange("a series")),
    }
}

/// Reads the body of a record as it is before compression.
pub fn decode_body(header: Header, body: Vec<u8>) -> Result<Record, Error> {
    if body.len() > BODY_BYTES_MAX {
        let bytes = body.len() as u64;
        return Err(Error::TooLarge { bytes });
    }
    let mut record = Record::new(header);
    let mut reader = Reader::new(&body);
    record.read_texts(body.len(), &mut reader)?;
    let mut used = vec![false; record.texts.len()];
    record.read_series(&mut reader, &mut used)?;
    end(reader, &used)?;
    record.body = body;
    Ok(record)
}

/// Nothing follows the last series, and no text is there in vain.
fn end(reader: Reader<'_>, used: &[bool]) -> Result<(), Error> {
    reader.end()?;
    match used.iter().all(|used| *used) {
        true => Ok(()),
        false => Err(Error::NotCanonical("the texts")),
    }
}

/// The series of a record, read one at a time: beside its body they take the memory of one of them. Any bytes give the series of
/// [`Record::decode`], or an error at the place where it would find one.
#[derive(Debug)]
pub struct RecordSeries {
    /// With the last series that was read.
    record: Record,
    /// Texts that a series has used.
    used: Vec<bool>,
    /// The place of the next series in the body, and the number of those left.
    at: usize,
    left: usize,
}

impl RecordSeries {
    pub fn decode(bytes: &[u8]) -> Result<Self, Error> {
        let (header, body) = Record::unpacked(bytes)?;
        let mut record = Record::new(header);
        let mut reader = Reader::new(&body);
        record.read_texts(body.len(), &mut reader)?;
        let left = reader.count(SERIES_BYTES_MIN)?;
        let at = body.len() - reader.left();
        let used = vec![false; record.texts.len()];
        record.body = body;
        Ok(RecordSeries {
            record,
            used,
            at,
            left,
        })
    }

    /// The next one, in the order of [`Record::series`]; `None` at the end.
    pub fn next_series(&mut self) -> Result<Option<SeriesRef<'_, impl Iterator<Item = &str>>>, Error> {
        let body = std::mem::take(&mut self.record.body);
        let mut reader = Reader::new(&body[self.at..]);
        let read = match self.left {
            0 => end(reader, &self.used).map(|()| None),
            _ => self.record.read_row(&mut reader, &mut self.used).map(Some),
        };
        self.at = body.len() - reader.left();
        self.record.body = body;
        let Some(row) = read? else { return Ok(None) };
        self.left -= 1;
        self.record.check_order(&row)?;
        self.record.keep_only(row);
        let mut series = self.record.rows.iter().map(|row| self.record.series_of(row));
        Ok(series.next())
    }
}

thread_local! {
    /// Making one for each record costs more than using it.
    static DECOMPRESSOR: RefCell<Option<Decompressor<'static>>> = const { RefCell::new(None) };
}

fn decompressed(bytes: &[u8], len: usize) -> Result<Vec<u8>, Error> {
    DECOMPRESSOR.with_borrow_mut(|decompressor| {
        let made = match decompressor.take() {
            Some(made) => made,
            None => Decompressor::new().map_err(|_| Error::Compression)?,
        };
        let decompressed = decompressor.insert(made).decompress(bytes, len);
        decompressed.map_err(|_| Error::Compression)
    })
}

/// Packs records in sequence, with one compressor for all.
#[derive(Default)]
pub struct Packer {
    compressor: Option<Compressor<'static>>,
}

impl std::fmt::Debug for Packer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Packer")
    }
}

impl Packer {
    /// A record of a header and a body, which is compressed where that makes it smaller. The body may be that of another record.
    pub fn pack(&mut self, header: &Header, body: &[u8]) -> Vec<u8> {
        let compressed = self
            .compressed(body)
            .filter(|compressed| compressed.len() < body.len());
        let flag = |is_set: bool, flag| if is_set { flag } else { 0 };
        let flags = flag(compressed.is_some(), COMPRESSED)
            | flag(header.is_open, OPEN)
            | flag(header.publication.is_some(), PUBLISHED);
        let len = compressed.as_ref().map_or(body.len(), Vec::len);
        let texts = header.tenant.len() + header.host.len();
        let mut writer = Writer::default();
        writer
            .bytes
            .reserve_exact(PREFIX_BYTES + HEADER_BYTES + texts + len);
        let version = header.version();
        writer.raw(&[version, flags, 0, 0, 0, 0]);
        header.write(&mut writer);
        writer.number(body.len() as u64);
        writer.raw(compressed.as_deref().unwrap_or(body));
        let mut bytes = writer.bytes;
        let checksum = checksum_of(version, flags, &bytes[PREFIX_BYTES..]);
        bytes[2..PREFIX_BYTES].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    fn compressed(&mut self, body: &[u8]) -> Option<Vec<u8>> {
        if body.len() <= FRAME_BYTES {
            return None;
        }
        if self.compressor.is_none() {
            self.compressor = Compressor::new(zstd::DEFAULT_COMPRESSION_LEVEL).ok();
        }
        self.compressor.as_mut()?.compress(body).ok()
    }
}

fn checksum_of(version: u8, flags: u8, rest: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&[version, flags]);
    hasher.update(rest);
    hasher.finalize()
}

/// The header of a series in a record.
pub(crate) struct SeriesHead {
    pub kind: Kind,
    /// Flags.
    pub form: u8,
    pub tags: usize,
    /// Seconds after the start of the bucket.
    pub seen: i64,
    pub suffixes: u32,
}

impl SeriesHead {
    /// `references`: the numbers of its texts, first the name, then host and integration where there are such, then the tags.
    #[inline]
    pub fn write(&self, references: impl Iterator<Item = u64>, writer: &mut Writer) {
        let mut references = references;
        let mut reference = || references.next().expect("one for each text");
        writer.byte(self.kind as u8);
        writer.number(reference());
        writer.byte(self.form);
        for _ in 0..(self.form & (HAS_HOST | HAS_INTEGRATION)).count_ones() {
            writer.number(reference());
        }
        writer.number(self.tags as u64);
        for _ in 0..self.tags {
            writer.number(reference());
        }
        writer.signed(self.seen);
        if self.form & HAS_SUFFIXES != 0 {
            writer.number(u64::from(self.suffixes));
        }
    }
}

/// A record under construction. Series are added in ascending order.
pub(crate) struct Part<'a> {
    series: Vec<PartSeries<'a>>,
    /// Each text with its place in the order in which they came.
    texts: HashMap<&'a str, u32>,
    /// The places of the texts of all series, in order.
    references: Vec<u32>,
    /// And their states.
    states: Vec<u8>,
    bytes: usize,
}

struct PartSeries<'a> {
    identity: &'a Identity,
    facts: Facts,
    state_bytes: usize,
}

/// The most that a number of a text or a count can take in a body of this size.
const NUMBER_BYTES: usize = 3;

impl<'a> Part<'a> {
    pub fn new() -> Self {
        Part {
            series: Vec::new(),
            texts: HashMap::new(),
            references: Vec::new(),
            states: Vec::new(),
            bytes: 2 * NUMBER_BYTES,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.series.is_empty()
    }

    pub fn len(&self) -> usize {
        self.series.len()
    }

    /// Adds a series, unless the record would become too large or has it already.
    #[must_use = "false: it belongs into the next part"]
    pub fn add(&mut self, identity: &'a Identity, facts: Facts, state: &[u8]) -> bool {
        if self.series.last().is_some_and(|last| last.identity == identity) {
            return false;
        }
        let (texts, references) = (self.texts.len(), self.references.len());
        let mut bytes = self.bytes + state.len() + 2 + NUMBER_BYTES + 10 + 5;
        for text in identity.texts() {
            let next = self.texts.len() as u32;
            let place = *self.texts.entry(text).or_insert(next);
            bytes += NUMBER_BYTES;
            if place == next {
                bytes += text.len() + NUMBER_BYTES;
            }
            self.references.push(place);
        }
        if bytes > BODY_BYTES_MAX {
            self.texts.retain(|_, place| (*place as usize) < texts);
            self.references.truncate(references);
            return false;
        }
        self.bytes = bytes;
        self.states.extend_from_slice(state);
        self.series.push(PartSeries {
            identity,
            facts,
            state_bytes: state.len(),
        });
        true
    }

    pub fn body(&self, bucket_start: i64) -> Vec<u8> {
        let mut writer = Writer::default();
        let numbers = self.write_texts(&mut writer);
        writer.number(self.series.len() as u64);
        let mut references = self.references.iter().map(|place| numbers[*place as usize]);
        let mut states = &self.states[..];
        for PartSeries {
            identity,
            facts,
            state_bytes,
        } in &self.series
        {
            let flag = |is_set: bool, flag| if is_set { flag } else { 0 };
            let head = SeriesHead {
                kind: identity.kind,
                form: flag(identity.host.is_some(), HAS_HOST)
                    | flag(identity.integration.is_some(), HAS_INTEGRATION)
                    | flag(facts.suffixes != ALL_SUFFIXES, HAS_SUFFIXES),
                tags: identity.tags.len(),
                seen: facts.seen.wrapping_sub(bucket_start),
                suffixes: facts.suffixes,
            };
            head.write(&mut references, &mut writer);
            let (state, rest) = states.split_at(*state_bytes);
            writer.raw(state);
            states = rest;
        }
        writer.bytes
    }

    /// Writes the texts in their order, and returns the number of each by its place.
    fn write_texts(&self, writer: &mut Writer) -> Vec<u64> {
        let mut texts: Vec<(&str, u32)> = self.texts.iter().map(|(text, place)| (*text, *place)).collect();
        texts.sort_unstable();
        writer.number(texts.len() as u64);
        let mut numbers = vec![0; texts.len()];
        for (number, (text, place)) in (0..).zip(texts) {
            writer.block(text.as_bytes());
            numbers[place as usize] = number;
        }
        numbers
    }
}
