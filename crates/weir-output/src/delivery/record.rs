//! The bytes of the disk queue's files, and how whole records are found among damaged ones. `docs/disk-queue.md` is the
//! format's description.

use std::collections::HashSet;
use std::fs::File;
use std::os::unix::fs::FileExt;

use super::books::{Class, Items};

pub const SEGMENT_HEAD: u64 = 16;
pub const RECORD_HEAD: usize = 36;
pub const ACK: usize = 8;
const MAGIC: &[u8; 8] = b"weirq\0\x01\n";
/// A record's length is checked against this before anything is allocated.
pub const BODY_MAX: u32 = 64 << 20;
/// Bytes that are looked through at once for the next record.
const WINDOW: usize = 64 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordState {
    /// Only on disk.
    Cold,
    /// Also in memory, where it is counted.
    Hot,
    Done,
}

#[derive(Clone, Copy, Debug)]
pub struct Record {
    /// Position of the head.
    pub offset: u32,
    pub length: u32,
    pub created: u32,
    pub count: u32,
    pub route: u16,
    pub class: Class,
    pub state: RecordState,
}

impl Record {
    pub fn items(&self) -> Items {
        Items::of(self.class, u64::from(self.count))
    }

    fn end(&self) -> u64 {
        u64::from(self.offset) + RECORD_HEAD as u64 + u64::from(self.length)
    }
}

pub fn segment_head(number: u64) -> [u8; SEGMENT_HEAD as usize] {
    let mut head = [0; SEGMENT_HEAD as usize];
    head[..8].copy_from_slice(MAGIC);
    head[8..].copy_from_slice(&number.to_le_bytes());
    head
}

/// length, created (8), count, class, route, two zero bytes, body checksum, head checksum: little-endian.
pub fn head(segment: u64, record: &Record, body: &[u8]) -> [u8; RECORD_HEAD] {
    let mut bytes = [0; RECORD_HEAD];
    bytes[..4].copy_from_slice(&record.length.to_le_bytes());
    bytes[4..12].copy_from_slice(&u64::from(record.created).to_le_bytes());
    bytes[12..16].copy_from_slice(&record.count.to_le_bytes());
    bytes[16..18].copy_from_slice(&class_number(record.class).to_le_bytes());
    bytes[18..20].copy_from_slice(&record.route.to_le_bytes());
    // Position and segment are covered too: a record that a damaged file system put elsewhere is not one of ours.
    bytes[20..28].copy_from_slice(&position(segment, u64::from(record.offset)).to_le_bytes());
    bytes[28..32].copy_from_slice(&crc32fast::hash(body).to_le_bytes());
    let checksum = crc32fast::hash(&bytes[..32]);
    bytes[32..].copy_from_slice(&checksum.to_le_bytes());
    bytes
}

fn position(segment: u64, offset: u64) -> u64 {
    segment.rotate_left(32) ^ offset
}

fn parse_head(segment: u64, offset: u64, bytes: &[u8]) -> Option<Record> {
    let u16_at = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
    let u32_at = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
    let u64_at = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
    if u64_at(20) != position(segment, offset)
        || crc32fast::hash(&bytes[..32]) != u32_at(32)
        || u32_at(0) > BODY_MAX
    {
        return None;
    }
    Some(Record {
        offset: u32::try_from(offset).ok()?,
        length: u32_at(0),
        created: u32::try_from(u64_at(4)).ok()?,
        count: u32_at(12),
        class: class_of(u16_at(16))?,
        route: u16_at(18),
        state: RecordState::Cold,
    })
}

fn class_number(class: Class) -> u16 {
    match class {
        Class::Points => 0,
        Class::Events => 1,
        Class::Checks => 2,
    }
}

fn class_of(number: u16) -> Option<Class> {
    match number {
        0 => Some(Class::Points),
        1 => Some(Class::Events),
        2 => Some(Class::Checks),
        _ => None,
    }
}

/// The contents of a segment.
#[derive(Debug, Default)]
pub struct Scan {
    pub records: Vec<Record>,
    /// Positions and numbers of bytes that are no valid records. The segment's head is the one at 0.
    pub gaps: Vec<(u32, u64)>,
    /// End of the last whole record.
    pub end: u64,
    /// Whether the bytes behind the end were being written when the process died.
    pub is_torn: bool,
}

/// Reads the heads of a segment. A damaged head costs its record: the next one is recognised by its own position and checksum, which only a
/// record of this segment at this place can have.
pub fn scan(file: &File, segment: u64, length: u64) -> Scan {
    let mut start = [0; SEGMENT_HEAD as usize];
    let mut found = Scan {
        end: SEGMENT_HEAD.min(length),
        ..Scan::default()
    };
    if file.read_exact_at(&mut start, 0).is_err() {
        found.end = 0;
        found.is_torn = true;
        return found;
    }
    if start != segment_head(segment) {
        found.gaps.push((0, SEGMENT_HEAD));
    }
    let mut at = SEGMENT_HEAD;
    while let Some(record) = next_record(file, segment, at, length) {
        let offset = u64::from(record.offset);
        if offset > at {
            found.gaps.push((at as u32, offset - at));
        }
        at = record.end();
        found.records.push(record);
    }
    found.end = at;
    let mut bytes = [0; RECORD_HEAD];
    found.is_torn = length - at < RECORD_HEAD as u64
        || (file.read_exact_at(&mut bytes, at).is_ok() && parse_head(segment, at, &bytes).is_some());
    found
}

/// The first whole record at `from` or behind it.
fn next_record(file: &File, segment: u64, from: u64, length: u64) -> Option<Record> {
    let mut window = Vec::new();
    let mut at = from;
    while at + RECORD_HEAD as u64 <= length {
        // Nearly always the record starts where the previous one ends.
        let wanted = if at == from { RECORD_HEAD } else { WINDOW };
        window.resize(wanted.min((length - at) as usize), 0);
        file.read_exact_at(&mut window, at).ok()?;
        let found = window.windows(RECORD_HEAD).zip(at..).find_map(|(bytes, offset)| {
            parse_head(segment, offset, bytes).filter(|record| record.end() <= length)
        });
        if found.is_some() {
            return found;
        }
        at += (window.len() - RECORD_HEAD + 1) as u64;
    }
    None
}

/// The subject of an acknowledgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ack {
    /// The record at this offset is done with.
    Record(u32),
    /// The gap at this offset has been counted.
    Gap(u32),
    /// The record with this number, from 0, is done with: as earlier versions wrote it.
    Index(u32),
}

impl Ack {
    pub fn bytes(self, segment: u64) -> [u8; ACK] {
        let (number, kind): (u32, &[u8]) = match self {
            Ack::Record(offset) => (offset, b"r"),
            Ack::Gap(offset) => (offset, b"g"),
            Ack::Index(index) => (index, b""),
        };
        let mut bytes = [0; ACK];
        bytes[..4].copy_from_slice(&number.to_le_bytes());
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(&segment.to_le_bytes());
        hasher.update(&number.to_le_bytes());
        hasher.update(kind);
        bytes[4..].copy_from_slice(&hasher.finalize().to_le_bytes());
        bytes
    }

    /// `None` if it is damaged.
    fn parse(segment: u64, bytes: &[u8]) -> Option<Ack> {
        let number = u32::from_le_bytes(bytes.get(..4)?.try_into().ok()?);
        let kinds = [Ack::Record(number), Ack::Gap(number), Ack::Index(number)];
        kinds.into_iter().find(|ack| ack.bytes(segment) == bytes)
    }
}

/// Marks the records that are done with. Returns the gaps that have been counted before.
pub fn apply_acks(scan: &mut Scan, segment: u64, acks: &[u8]) -> HashSet<u32> {
    let mut counted = HashSet::new();
    // Behind a gap, numbers are not known any more: such a record is delivered again rather than lost.
    let first_gap = scan.gaps.iter().map(|(at, _)| *at).find(|at| *at > 0);
    for ack in acks.chunks_exact(ACK).filter_map(|ack| Ack::parse(segment, ack)) {
        let record = match ack {
            Ack::Gap(offset) => {
                counted.insert(offset);
                None
            }
            Ack::Record(offset) => {
                let found = scan.records.binary_search_by_key(&offset, |record| record.offset);
                found.ok().map(|index| &mut scan.records[index])
            }
            Ack::Index(index) => {
                let record = scan.records.get_mut(index as usize);
                record.filter(|record| first_gap.is_none_or(|gap| record.offset < gap))
            }
        };
        if let Some(record) = record {
            record.state = RecordState::Done;
        }
    }
    counted
}
