//! The disk queue: payloads that outlive the process. `docs/disk-queue.md` is the format's description.
//!
//! A directory holds segments, `<number>.q`, to which records are appended, and beside each a log of the records that
//! are done with, `<number>.ack`. Nothing is ever changed in place, so whatever instant the process dies at, a segment is
//! a run of whole records and possibly one torn one, which was never promised to anybody and is cut off.
//! Every record has a checksum over its head and one over its body: a damaged body costs that record, a damaged head the
//! rest of its segment, and neither is ever delivered.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use bytes::Bytes;

use super::books::{Class, Items};
use super::payload::Payload;

const MAGIC: &[u8; 8] = b"weirq\0\x01\n";
const SEGMENT_HEAD: u64 = 16;
const RECORD_HEAD: usize = 36;
const ACK: usize = 8;
/// Segments are cut at this size; the queue's bound is kept by dropping whole segments.
const SEGMENT_BYTES: u64 = 8 << 20;
/// A record's length is checked against this before anything is allocated.
const BODY_MAX: u32 = 64 << 20;

/// Where a payload lies on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordId {
    segment: u64,
    index: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Only on disk.
    Cold,
    /// Also in memory, where it is counted.
    Hot,
    Done,
}

#[derive(Clone, Copy, Debug)]
struct Record {
    /// Of the head.
    offset: u32,
    length: u32,
    created: u32,
    count: u32,
    route: u16,
    class: Class,
    state: State,
}

impl Record {
    fn items(&self) -> Items {
        Items::of(self.class, u64::from(self.count))
    }
}

#[derive(Debug)]
struct Segment {
    /// Of the file with the records.
    length: u64,
    /// Of the file with the acknowledgements.
    ack_bytes: u64,
    newest: i64,
    records: Vec<Record>,
    cold: usize,
    not_done: usize,
    acks: Option<File>,
}

/// What opening found.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Undelivered records of earlier processes.
    pub restored: Items,
    /// Bytes cut off or skipped because no whole record could be read there.
    pub unreadable_bytes: u64,
}

/// What had to go, for whom it concerns to count: records that were only on disk.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Evicted {
    pub full: Items,
    pub old: Items,
}

/// A read of the next waiting record.
#[derive(Debug)]
pub enum Next {
    Payload(RecordId, Payload),
    /// The record cannot be read whole; it is dropped.
    Corrupt(Items),
    TooOld(Items),
    Empty,
}

/// The queue of one endpoint. Every operation may touch the disk: not for async tasks.
#[derive(Debug)]
pub struct DiskQueue {
    directory: PathBuf,
    bytes_max: u64,
    /// Seconds; 0 for no limit.
    age_max: i64,
    segment_bytes: u64,
    segments: BTreeMap<u64, Segment>,
    writer: Option<(u64, File)>,
    next_segment: u64,
    bytes: u64,
    cold: Items,
    _lock: File,
}

fn segment_bytes(bytes_max: u64) -> u64 {
    SEGMENT_BYTES.min(bytes_max / 8).max(4096)
}

impl DiskQueue {
    /// Opens or creates the queue. Fails with a sentence that names the path.
    pub fn open(directory: &Path, bytes_max: u64, age_max: i64) -> io::Result<(Self, Found)> {
        let named = |error: io::Error, path: &Path| {
            io::Error::new(error.kind(), format!("disk queue {}: {error}", path.display()))
        };
        std::fs::create_dir_all(directory).map_err(|e| named(e, directory))?;
        let lock_path = directory.join("lock");
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&lock_path)
            .map_err(|e| named(e, &lock_path))?;
        lock.try_lock().map_err(|e| {
            named(
                io::Error::new(
                    io::ErrorKind::WouldBlock,
                    format!("in use by another process ({e})"),
                ),
                directory,
            )
        })?;
        let mut queue = Self {
            directory: directory.to_owned(),
            bytes_max,
            age_max,
            segment_bytes: segment_bytes(bytes_max),
            segments: BTreeMap::new(),
            writer: None,
            next_segment: 1,
            bytes: 0,
            cold: Items::default(),
            _lock: lock,
        };
        let mut found = Found::default();
        let mut numbers = Vec::new();
        for entry in std::fs::read_dir(directory).map_err(|e| named(e, directory))? {
            let name = entry?.file_name();
            let Some((stem, extension)) = name.to_str().and_then(|name| name.split_once('.')) else {
                continue;
            };
            let Ok(number) = stem.parse::<u64>() else { continue };
            match extension {
                "q" => numbers.push(number),
                // Left over when the process died between removing the two files.
                "ack" if !queue.path(number, "q").exists() => {
                    drop(std::fs::remove_file(queue.path(number, "ack")))
                }
                _ => {}
            }
        }
        numbers.sort_unstable();
        for number in numbers {
            queue.next_segment = number + 1;
            queue
                .load(number, &mut found)
                .map_err(|e| named(e, &queue.path(number, "q")))?;
        }
        found.restored = queue.cold;
        Ok((queue, found))
    }

    /// Other limits from now on; what is beyond them goes with the next append.
    pub fn set_limits(&mut self, bytes_max: u64, age_max: i64) {
        self.bytes_max = bytes_max;
        self.age_max = age_max;
        self.segment_bytes = segment_bytes(bytes_max);
    }

    /// Bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// What lies on disk alone.
    pub fn cold(&self) -> Items {
        self.cold
    }

    /// When the oldest record that is only on disk was created, Unix seconds.
    pub fn oldest_cold(&self) -> Option<i64> {
        let waiting = |segment: &Segment| {
            segment
                .records
                .iter()
                .filter(|r| r.state == State::Cold)
                .map(|r| i64::from(r.created))
                .min()
        };
        self.segments.values().filter(|s| s.cold > 0).find_map(waiting)
    }

    /// Bytes of memory for the index.
    pub fn heap_bytes(&self) -> usize {
        self.segments
            .values()
            .map(|s| size_of::<Segment>() + s.records.capacity() * size_of::<Record>())
            .sum()
    }

    /// Appends a payload that is also in memory. After an error nothing was added, and the caller keeps it in memory.
    /// Segments that made room are in `evicted` even then.
    pub fn append(&mut self, payload: &Payload, evicted: &mut Evicted) -> io::Result<RecordId> {
        let size = RECORD_HEAD as u64 + payload.body.len() as u64;
        if size + SEGMENT_HEAD > self.bytes_max || payload.body.len() as u64 > u64::from(BODY_MAX) {
            return Err(io::Error::new(
                io::ErrorKind::FileTooLarge,
                "the payload alone is larger than the disk queue",
            ));
        }
        self.expire(payload.created, evicted);
        let current = self.writer.as_ref().map(|(number, _)| *number);
        if let Some(number) = current
            && self.segments[&number].length + size > self.segment_bytes.max(SEGMENT_HEAD + size)
        {
            self.close_writer();
        }
        while self.bytes + size + SEGMENT_HEAD > self.bytes_max {
            let Some(oldest) = self.segments.keys().next().copied() else {
                break;
            };
            evicted.full += self.remove_segment(oldest);
        }
        let mut result = self.write_record(payload, size);
        if result.is_err() {
            // What a failed write left behind is cut off, or else abandoned with its segment.
            self.undo_write();
            // On a full disk, room may be taken by records that are done with.
            if self.writer_is_done() {
                self.close_writer();
                result = self.write_record(payload, size);
                if result.is_err() {
                    self.undo_write();
                }
            }
        }
        result
    }

    fn write_record(&mut self, payload: &Payload, size: u64) -> io::Result<RecordId> {
        if self.writer.is_none() {
            self.start_segment()?;
        }
        let (number, file) = self.writer.as_mut().expect("just started");
        let number = *number;
        let segment = self
            .segments
            .get_mut(&number)
            .expect("the writer's segment exists");
        let record = Record {
            offset: segment.length as u32,
            length: payload.body.len() as u32,
            created: payload.created.clamp(0, i64::from(u32::MAX)) as u32,
            count: payload.count,
            route: payload.route,
            class: payload.class,
            state: State::Hot,
        };
        // One write call: a process killed in between leaves a torn record, never two halves of different ones.
        let mut bytes = Vec::with_capacity(size as usize);
        bytes.extend_from_slice(&head(number, &record, &payload.body));
        bytes.extend_from_slice(&payload.body);
        file.write_all(&bytes)?;
        segment.length += size;
        self.bytes += size;
        segment.newest = segment.newest.max(payload.created);
        segment.not_done += 1;
        segment.records.push(record);
        Ok(RecordId {
            segment: number,
            index: segment.records.len() as u32 - 1,
        })
    }

    fn writer_is_done(&self) -> bool {
        let writer = self.writer.as_ref();
        writer.is_some_and(|(number, _)| self.segments[number].not_done == 0)
    }

    fn undo_write(&mut self) {
        let Some((number, file)) = &mut self.writer else {
            return;
        };
        let whole = self.segments[number].length;
        let cut = file
            .set_len(whole)
            .and_then(|()| file.seek(SeekFrom::Start(whole)));
        if cut.is_err() {
            self.close_writer();
        }
    }

    /// Asks the system to put what was appended on the medium.
    pub fn sync(&mut self) -> io::Result<()> {
        self.writer.as_ref().map_or(Ok(()), |(_, file)| file.sync_data())
    }

    /// The payload's memory is about to go; from now on it waits on disk alone. False when it is no longer there.
    pub fn chill(&mut self, id: RecordId) -> bool {
        let Some((segment, record)) = self.record(id) else {
            return false;
        };
        if record.state != State::Hot {
            return false;
        }
        let items = record.items();
        segment.records[id.index as usize].state = State::Cold;
        segment.cold += 1;
        self.cold += items;
        true
    }

    /// Done with, delivered or dropped: it will not be read again, by this process or a later one.
    pub fn acknowledge(&mut self, id: RecordId) -> io::Result<()> {
        let path = self.path(id.segment, "ack");
        let Some((segment, record)) = self.record(id) else {
            return Ok(());
        };
        if record.state == State::Done {
            return Ok(());
        }
        let (items, cold) = (record.items(), record.state == State::Cold);
        segment.records[id.index as usize].state = State::Done;
        segment.not_done -= 1;
        segment.cold -= usize::from(cold);
        let finished = segment.not_done == 0;
        let mut result = Ok(());
        if !finished
            || self
                .writer
                .as_ref()
                .is_some_and(|(number, _)| *number == id.segment)
        {
            let segment = self.segments.get_mut(&id.segment).expect("looked up above");
            result = append_ack(segment, &path, id);
            if result.is_ok() {
                segment.ack_bytes += ACK as u64;
                self.bytes += ACK as u64;
            }
        }
        if cold {
            self.cold -= items;
        }
        if finished && self.writer_is_done() && self.segments[&id.segment].length >= self.segment_bytes / 8 {
            // While everything is delivered at once, the queue stays small.
            self.close_writer();
        }
        if finished
            && self
                .writer
                .as_ref()
                .is_none_or(|(number, _)| *number != id.segment)
        {
            self.remove_segment(id.segment);
        }
        result
    }

    /// Reads the newest or oldest record that waits on disk alone; it is hot from then on.
    pub fn next(&mut self, newest_first: bool, now: i64) -> Next {
        let waiting = |(_, segment): &(&u64, &Segment)| segment.cold > 0;
        let found = if newest_first {
            self.segments.iter().rev().find(waiting)
        } else {
            self.segments.iter().find(waiting)
        };
        let Some((&number, segment)) = found else {
            return Next::Empty;
        };
        let is_cold = |record: &Record| record.state == State::Cold;
        let index = if newest_first {
            segment.records.iter().rposition(is_cold)
        } else {
            segment.records.iter().position(is_cold)
        };
        let Some(index) = index else { return Next::Empty };
        let record = segment.records[index];
        let id = RecordId {
            segment: number,
            index: index as u32,
        };
        if self.age_max > 0 && i64::from(record.created) + self.age_max < now {
            // A failed acknowledgement only means that a later process looks at the record again.
            drop(self.acknowledge(id));
            return Next::TooOld(record.items());
        }
        match self.read(number, &record) {
            Ok(body) => {
                let segment = self.segments.get_mut(&number).expect("found above");
                segment.records[index].state = State::Hot;
                segment.cold -= 1;
                self.cold -= record.items();
                let Record {
                    route,
                    class,
                    count,
                    created,
                    ..
                } = record;
                Next::Payload(
                    id,
                    Payload {
                        id: 0,
                        route,
                        class,
                        count,
                        created: i64::from(created),
                        body,
                    },
                )
            }
            Err(_) => {
                drop(self.acknowledge(id));
                Next::Corrupt(record.items())
            }
        }
    }

    /// Drops segments whose newest record is over the age limit.
    pub fn expire(&mut self, now: i64, evicted: &mut Evicted) {
        while self.age_max > 0
            && let Some((&number, segment)) = self.segments.first_key_value()
            && segment.newest + self.age_max < now
        {
            evicted.old += self.remove_segment(number);
        }
    }

    fn record(&mut self, id: RecordId) -> Option<(&mut Segment, Record)> {
        let segment = self.segments.get_mut(&id.segment)?;
        let record = *segment.records.get(id.index as usize)?;
        Some((segment, record))
    }

    fn read(&self, number: u64, record: &Record) -> io::Result<Bytes> {
        let file = File::open(self.path(number, "q"))?;
        let mut bytes = vec![0; RECORD_HEAD + record.length as usize];
        file.read_exact_at(&mut bytes, u64::from(record.offset))?;
        let bytes = Bytes::from(bytes);
        let body = bytes.slice(RECORD_HEAD..);
        // The head is compared as a whole with what it was when written or scanned, both checksums included.
        let body_checksum = &bytes[RECORD_HEAD - 8..RECORD_HEAD - 4];
        if crc32fast::hash(&body).to_le_bytes() != body_checksum
            || head(number, record, &body)[..] != bytes[..RECORD_HEAD]
        {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(body)
    }

    fn start_segment(&mut self) -> io::Result<()> {
        let number = self.next_segment;
        let path = self.path(number, "q");
        let mut file = OpenOptions::new().create_new(true).write(true).open(&path)?;
        self.next_segment += 1;
        let mut start = [0; SEGMENT_HEAD as usize];
        start[..8].copy_from_slice(MAGIC);
        start[8..].copy_from_slice(&number.to_le_bytes());
        if let Err(error) = file.write_all(&start) {
            drop(std::fs::remove_file(path));
            return Err(error);
        }
        let segment = Segment {
            length: SEGMENT_HEAD,
            ack_bytes: 0,
            newest: i64::MIN,
            records: Vec::new(),
            cold: 0,
            not_done: 0,
            acks: None,
        };
        self.bytes += SEGMENT_HEAD;
        self.segments.insert(number, segment);
        self.writer = Some((number, file));
        Ok(())
    }

    fn close_writer(&mut self) {
        let Some((number, file)) = self.writer.take() else {
            return;
        };
        if self.segments[&number].not_done == 0 {
            self.remove_segment(number);
        } else {
            // Best effort: a closed segment is only read from now on.
            drop(file.sync_data());
        }
    }

    /// Removes a segment's files; returns what was waiting in it on disk alone.
    fn remove_segment(&mut self, number: u64) -> Items {
        if self
            .writer
            .as_ref()
            .is_some_and(|(current, _)| *current == number)
        {
            self.writer = None;
        }
        let Some(segment) = self.segments.remove(&number) else {
            return Items::default();
        };
        self.bytes -= segment.length + segment.ack_bytes;
        drop(std::fs::remove_file(self.path(number, "q")));
        drop(std::fs::remove_file(self.path(number, "ack")));
        let waiting: Items = segment
            .records
            .iter()
            .filter(|r| r.state == State::Cold)
            .map(Record::items)
            .sum();
        self.cold -= waiting;
        waiting
    }

    fn path(&self, number: u64, extension: &str) -> PathBuf {
        self.directory.join(format!("{number:020}.{extension}"))
    }

    /// Reads the heads of a segment left by an earlier process.
    fn load(&mut self, number: u64, found: &mut Found) -> io::Result<()> {
        let path = self.path(number, "q");
        let mut file = OpenOptions::new().read(true).write(true).open(&path)?;
        let length = file.metadata()?.len();
        let mut start = [0; SEGMENT_HEAD as usize];
        let whole = file.read_exact(&mut start).is_ok();
        if !whole || start[..8] != *MAGIC || start[8..] != number.to_le_bytes() {
            // Not ours, of another version, or torn at birth; a file that holds data is moved aside rather than deleted.
            found.unreadable_bytes += length;
            if length <= SEGMENT_HEAD {
                return std::fs::remove_file(path);
            }
            return std::fs::rename(&path, path.with_extension("unreadable"));
        }
        let mut segment = Segment {
            length: SEGMENT_HEAD,
            ack_bytes: 0,
            newest: i64::MIN,
            records: Vec::new(),
            cold: 0,
            not_done: 0,
            acks: None,
        };
        let mut bytes = [0; RECORD_HEAD];
        while segment.length < length {
            let read = file
                .seek(SeekFrom::Start(segment.length))
                .and_then(|_| file.read_exact(&mut bytes));
            let record = read
                .ok()
                .and_then(|()| parse_head(number, segment.length, &bytes));
            let Some(record) =
                record.filter(|r| segment.length + RECORD_HEAD as u64 + u64::from(r.length) <= length)
            else {
                found.unreadable_bytes += length - segment.length;
                // Torn by the death of a process, or damaged: nothing after it can be told apart.
                file.set_len(segment.length)?;
                break;
            };
            segment.length += RECORD_HEAD as u64 + u64::from(record.length);
            segment.newest = segment.newest.max(i64::from(record.created));
            segment.records.push(record);
        }
        let acks = std::fs::read(self.path(number, "ack")).unwrap_or_default();
        for ack in acks.chunks_exact(ACK) {
            let index = u32::from_le_bytes(ack[..4].try_into().expect("four bytes"));
            if ack == ack_bytes(number, index)
                && let Some(record) = segment.records.get_mut(index as usize)
            {
                record.state = State::Done;
            }
        }
        if !acks.len().is_multiple_of(ACK) {
            // A torn acknowledgement would misalign the ones appended later.
            let file = OpenOptions::new().write(true).open(self.path(number, "ack"))?;
            file.set_len((acks.len() / ACK * ACK) as u64)?;
        }
        segment.ack_bytes = (acks.len() / ACK * ACK) as u64;
        let waiting = segment.records.iter().filter(|r| r.state == State::Cold);
        segment.cold = waiting.clone().count();
        segment.not_done = segment.cold;
        self.cold += waiting.map(Record::items).sum();
        self.bytes += segment.length + segment.ack_bytes;
        let finished = segment.not_done == 0;
        self.segments.insert(number, segment);
        if finished {
            self.remove_segment(number);
        }
        Ok(())
    }
}

impl Drop for DiskQueue {
    fn drop(&mut self) {
        self.close_writer();
    }
}

fn append_ack(segment: &mut Segment, path: &Path, id: RecordId) -> io::Result<()> {
    if segment.acks.is_none() {
        segment.acks = Some(OpenOptions::new().create(true).append(true).open(path)?);
    }
    let file = segment.acks.as_mut().expect("just opened");
    file.write_all(&ack_bytes(id.segment, id.index))
}

fn ack_bytes(segment: u64, index: u32) -> [u8; ACK] {
    let mut bytes = [0; ACK];
    bytes[..4].copy_from_slice(&index.to_le_bytes());
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&segment.to_le_bytes());
    hasher.update(&index.to_le_bytes());
    bytes[4..].copy_from_slice(&hasher.finalize().to_le_bytes());
    bytes
}

/// length, created (8), count, class, route, two zero bytes, body checksum, head checksum: little-endian.
fn head(segment: u64, record: &Record, body: &[u8]) -> [u8; RECORD_HEAD] {
    let mut bytes = [0; RECORD_HEAD];
    bytes[..4].copy_from_slice(&record.length.to_le_bytes());
    bytes[4..12].copy_from_slice(&u64::from(record.created).to_le_bytes());
    bytes[12..16].copy_from_slice(&record.count.to_le_bytes());
    bytes[16..18].copy_from_slice(&class_number(record.class).to_le_bytes());
    bytes[18..20].copy_from_slice(&record.route.to_le_bytes());
    // Position and segment are covered too: a record that a damaged file system put elsewhere is not one of ours.
    bytes[20..28].copy_from_slice(&(segment.rotate_left(32) ^ u64::from(record.offset)).to_le_bytes());
    bytes[28..32].copy_from_slice(&crc32fast::hash(body).to_le_bytes());
    let checksum = crc32fast::hash(&bytes[..32]);
    bytes[32..].copy_from_slice(&checksum.to_le_bytes());
    bytes
}

fn parse_head(segment: u64, offset: u64, bytes: &[u8; RECORD_HEAD]) -> Option<Record> {
    let u16_at = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
    let u32_at = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
    let u64_at = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
    if crc32fast::hash(&bytes[..32]) != u32_at(32)
        || u64_at(20) != (segment.rotate_left(32) ^ offset)
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
        state: State::Cold,
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

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_700_000_000;

    fn payload(n: u32, size: usize) -> Payload {
        let body: Vec<u8> = (0..size)
            .map(|i| (i as u32).wrapping_mul(n + 7).to_le_bytes()[1])
            .collect();
        Payload {
            id: 0,
            route: 3,
            class: Class::Points,
            count: n,
            created: NOW + i64::from(n),
            body: body.into(),
        }
    }

    fn open(directory: &Path, bytes_max: u64, age_max: i64) -> (DiskQueue, Found) {
        DiskQueue::open(directory, bytes_max, age_max).unwrap()
    }

    fn append(queue: &mut DiskQueue, payload: &Payload) -> RecordId {
        queue.append(payload, &mut Evicted::default()).unwrap()
    }

    fn drain(queue: &mut DiskQueue, newest_first: bool) -> Vec<u32> {
        let mut counts = Vec::new();
        loop {
            match queue.next(newest_first, NOW) {
                Next::Payload(id, read) => {
                    assert_eq!(read, payload(read.count, read.body.len()));
                    counts.push(read.count);
                    queue.acknowledge(id).unwrap();
                }
                Next::Empty => return counts,
                other => panic!("{other:?}"),
            }
        }
    }

    fn segments(directory: &Path) -> Vec<PathBuf> {
        let mut paths: Vec<PathBuf> = std::fs::read_dir(directory)
            .unwrap()
            .map(|e| e.unwrap().path())
            .filter(|p| p.extension().is_some_and(|e| e == "q"))
            .collect();
        paths.sort();
        paths
    }

    #[test]
    fn what_was_appended_is_there_after_a_restart_until_acknowledged() {
        let directory = tempfile::tempdir().unwrap();
        let (mut queue, found) = open(directory.path(), 1 << 20, 0);
        assert_eq!(found, Found::default());
        let ids: Vec<RecordId> = (0..10).map(|n| append(&mut queue, &payload(n, 100))).collect();
        queue.acknowledge(ids[3]).unwrap();
        queue.acknowledge(ids[3]).unwrap();
        assert!(
            matches!(queue.next(true, NOW), Next::Empty),
            "hot records are not read"
        );
        drop(queue);
        let (mut queue, found) = open(directory.path(), 1 << 20, 0);
        assert_eq!(
            found,
            Found {
                restored: Items {
                    points: 42,
                    ..Items::default()
                },
                unreadable_bytes: 0
            }
        );
        assert_eq!(queue.oldest_cold(), Some(NOW));
        assert_eq!(drain(&mut queue, true), [9, 8, 7, 6, 5, 4, 2, 1, 0]);
        assert_eq!((queue.cold(), queue.bytes()), (Items::default(), 0));
        drop(queue);
        assert!(
            segments(directory.path()).is_empty(),
            "what is done with leaves no file"
        );
    }

    /// Acknowledgements between appends once moved the offsets that the records' heads carry, so that a restart took every
    /// later record for a torn one. Found by killing processes in a loop.
    #[test]
    fn appends_after_acknowledgements_survive() {
        let directory = tempfile::tempdir().unwrap();
        let (mut queue, _) = open(directory.path(), 1 << 20, 0);
        for n in 0..10 {
            let id = append(&mut queue, &payload(n, 50));
            if n % 2 == 0 {
                queue.acknowledge(id).unwrap();
            }
        }
        drop(queue);
        let (mut queue, found) = open(directory.path(), 1 << 20, 0);
        assert_eq!(found.unreadable_bytes, 0);
        assert_eq!(drain(&mut queue, false), [1, 3, 5, 7, 9]);
    }

    #[test]
    fn oldest_first_and_chilling() {
        let directory = tempfile::tempdir().unwrap();
        let (mut queue, _) = open(directory.path(), 1 << 20, 0);
        let ids: Vec<RecordId> = (0..5).map(|n| append(&mut queue, &payload(n, 10))).collect();
        assert!(queue.chill(ids[0]) && queue.chill(ids[2]) && !queue.chill(ids[2]));
        assert_eq!(queue.cold().points, 2);
        assert_eq!(drain(&mut queue, false), [0, 2]);
        assert!(!queue.chill(ids[0]), "done with");
    }

    #[test]
    fn bounded_in_bytes_with_the_oldest_dropped() {
        let directory = tempfile::tempdir().unwrap();
        let (mut queue, _) = open(directory.path(), 64 << 10, 0);
        let mut evicted = Evicted::default();
        for n in 0..200 {
            let id = queue.append(&payload(n, 1000), &mut evicted).unwrap();
            assert!(queue.chill(id));
            let on_disk: u64 = segments(directory.path())
                .iter()
                .map(|p| p.metadata().unwrap().len())
                .sum();
            assert!(queue.bytes() <= 64 << 10 && on_disk <= 64 << 10);
        }
        let kept = drain(&mut queue, false);
        assert!(kept.len() > 40, "{} records kept", kept.len());
        assert_eq!(kept, (200 - kept.len() as u32..200).collect::<Vec<_>>());
        let produced: u64 = (0..200).sum();
        assert_eq!(
            evicted.full.points + kept.iter().map(|n| u64::from(*n)).sum::<u64>(),
            produced
        );
        let error = queue.append(&payload(1, 70 << 10), &mut evicted).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
    }

    #[test]
    fn bounded_in_age() {
        let directory = tempfile::tempdir().unwrap();
        let (mut queue, _) = open(directory.path(), 64 << 10, 100);
        for n in [1, 2, 90] {
            let id = append(&mut queue, &payload(n, 10));
            queue.chill(id);
        }
        assert!(matches!(queue.next(false, NOW + 150), Next::TooOld(items) if items.points == 1));
        assert!(matches!(queue.next(false, NOW + 150), Next::TooOld(items) if items.points == 2));
        assert!(matches!(queue.next(false, NOW + 150), Next::Payload(..)));
        let (again, mut evicted) = (append(&mut queue, &payload(91, 10)), Evicted::default());
        queue.chill(again);
        queue.expire(NOW + 1000, &mut evicted);
        assert_eq!((evicted.old.points, queue.cold().points), (91, 0));
    }

    /// Whatever byte the file ends at, every record that was written before is there and nothing else is.
    #[test]
    fn cut_at_every_byte() {
        let directory = tempfile::tempdir().unwrap();
        let (mut queue, _) = open(directory.path(), 1 << 20, 0);
        let mut ends = Vec::new();
        for n in 1..5 {
            append(&mut queue, &payload(n, 30 + n as usize));
            ends.push(segments(directory.path())[0].metadata().unwrap().len());
        }
        drop(queue);
        let path = segments(directory.path())[0].clone();
        let whole = std::fs::read(&path).unwrap();
        for length in 0..=whole.len() {
            std::fs::write(&path, &whole[..length]).unwrap();
            let (mut queue, found) = open(directory.path(), 1 << 20, 0);
            let expected = ends.iter().filter(|end| **end <= length as u64).count() as u32;
            let last_end = if expected == 0 {
                SEGMENT_HEAD.min(length as u64)
            } else {
                ends[expected as usize - 1]
            };
            let torn = if (length as u64) < SEGMENT_HEAD {
                length as u64
            } else {
                length as u64 - last_end
            };
            assert_eq!(found.unreadable_bytes, torn, "cut at {length}");
            // Appending after a torn tail must not bring it back.
            append(&mut queue, &payload(77, 5));
            assert_eq!(
                drain(&mut queue, false),
                (1..=expected).collect::<Vec<_>>(),
                "cut at {length}"
            );
            drop(queue);
            for rest in std::fs::read_dir(directory.path()).unwrap() {
                drop(std::fs::remove_file(rest.unwrap().path()));
            }
        }
    }

    /// Whatever single byte is damaged, no altered payload ever comes out.
    #[test]
    fn damaged_at_every_byte() {
        let directory = tempfile::tempdir().unwrap();
        let (mut queue, _) = open(directory.path(), 1 << 20, 0);
        for n in 1..4 {
            append(&mut queue, &payload(n, 20));
        }
        drop(queue);
        let path = segments(directory.path())[0].clone();
        let whole = std::fs::read(&path).unwrap();
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 0x41;
            std::fs::write(&path, &damaged).unwrap();
            let (mut queue, found) = open(directory.path(), 1 << 20, 0);
            let (mut delivered, mut corrupt) = (0, 0);
            loop {
                match queue.next(false, NOW) {
                    Next::Payload(id, read) => {
                        assert_eq!(read, payload(read.count, 20), "byte {at}");
                        delivered += read.count;
                        queue.acknowledge(id).unwrap();
                    }
                    Next::Corrupt(items) => corrupt += items.points as u32,
                    Next::Empty => break,
                    Next::TooOld(_) => unreachable!(),
                }
            }
            assert!(delivered < 6, "byte {at}");
            assert!(
                corrupt > 0 || found.unreadable_bytes > 0,
                "byte {at}: the damage is reported"
            );
            drop(queue);
            for rest in std::fs::read_dir(directory.path()).unwrap() {
                drop(std::fs::remove_file(rest.unwrap().path()));
            }
        }
    }

    #[test]
    fn torn_and_foreign_acknowledgements_are_ignored() {
        let directory = tempfile::tempdir().unwrap();
        let (mut queue, _) = open(directory.path(), 1 << 20, 0);
        let ids: Vec<RecordId> = (0..4).map(|n| append(&mut queue, &payload(n, 10))).collect();
        queue.acknowledge(ids[1]).unwrap();
        drop(queue);
        let acks = segments(directory.path())[0].with_extension("ack");
        let mut bytes = std::fs::read(&acks).unwrap();
        bytes.extend_from_slice(&ack_bytes(999, 0));
        bytes.extend_from_slice(&ack_bytes(1, 2)[..5]);
        std::fs::write(&acks, bytes).unwrap();
        let (mut queue, _) = open(directory.path(), 1 << 20, 0);
        let Next::Payload(id, first) = queue.next(false, NOW) else {
            panic!("three are left")
        };
        assert_eq!(first.count, 0);
        queue.acknowledge(id).unwrap();
        drop(queue);
        let (mut queue, _) = open(directory.path(), 1 << 20, 0);
        assert_eq!(drain(&mut queue, false), [2, 3]);
    }

    #[test]
    fn one_process_at_a_time() {
        let directory = tempfile::tempdir().unwrap();
        let _first = open(directory.path(), 1 << 20, 0);
        let error = DiskQueue::open(directory.path(), 1 << 20, 0)
            .unwrap_err()
            .to_string();
        assert!(error.contains("in use by another process"), "{error}");
        let file = tempfile::NamedTempFile::new().unwrap();
        let error = DiskQueue::open(file.path(), 1 << 20, 0).unwrap_err().to_string();
        assert!(error.contains(&file.path().display().to_string()), "{error}");
    }
}
