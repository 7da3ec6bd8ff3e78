//! The disk queue: payloads that survive the process. `docs/disk-queue.md` describes the format.
//!
//! A directory holds segments, `<number>.q`, to which records are appended, and beside each a log of its finished records, `<number>.ack`.
//! Nothing is changed in place. So at whatever instant the process dies, a segment is a run of complete records and possibly an incomplete
//! one, which was never acknowledged and is truncated. Every record has a checksum over its head and one over its body: damage costs only
//! the records that contain it, and is never delivered.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use bytes::Bytes;

use super::books::Items;
use super::record::{self, ACK, Ack, BODY_MAX, RECORD_HEAD, Record, RecordState, SEGMENT_HEAD, head};
use super::transport::Payload;

/// Segments are cut at this size; the queue's bound is kept by dropping whole segments.
const SEGMENT_BYTES: u64 = 8 << 20;
/// Position of a payload on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordId {
    segment: u64,
    index: u32,
}

#[derive(Debug)]
struct Segment {
    /// Length of the file with the records.
    length: u64,
    /// Length of the file with the acknowledgements.
    ack_bytes: u64,
    newest: i64,
    records: Vec<Record>,
    cold: usize,
    not_done: usize,
    acks: Option<File>,
    /// A damaged record was logged already.
    is_reported: bool,
}

impl Segment {
    fn new(length: u64) -> Self {
        Segment {
            length,
            ack_bytes: 0,
            newest: i64::MIN,
            records: Vec::new(),
            cold: 0,
            not_done: 0,
            acks: None,
            is_reported: false,
        }
    }
}

/// The result of opening.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct OpenedQueue {
    /// Undelivered records of earlier processes.
    pub restored: Items,
    /// Bytes truncated from the ends of files: a record that was being written when the process died, and was never acknowledged.
    pub torn_bytes: u64,
    /// Bytes that could not be read as records. Their records are lost, unless they had been delivered.
    pub damaged_bytes: u64,
}

/// Dropped records that were only on disk, for the caller to count.
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
    pub fn open(directory: &Path, bytes_max: u64, age_max: i64) -> io::Result<(Self, OpenedQueue)> {
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
        let mut found = OpenedQueue::default();
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

    /// New limits; the next append drops records beyond them.
    pub fn set_limits(&mut self, bytes_max: u64, age_max: i64) {
        self.bytes_max = bytes_max;
        self.age_max = age_max;
        self.segment_bytes = segment_bytes(bytes_max);
    }

    /// Bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The records only on disk.
    pub fn cold(&self) -> Items {
        self.cold
    }

    /// When the oldest record that is only on disk was created, Unix seconds.
    pub fn oldest_cold(&self) -> Option<i64> {
        let waiting = |segment: &Segment| {
            segment
                .records
                .iter()
                .filter(|r| r.state == RecordState::Cold)
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
            // The rest of a failed write is truncated, or abandoned with its segment.
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
            state: RecordState::Hot,
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

    /// Asks the system to synchronise the appended bytes.
    pub fn sync(&mut self) -> io::Result<()> {
        self.writer.as_ref().map_or(Ok(()), |(_, file)| file.sync_data())
    }

    /// The payload's memory is freed; from now on it waits only on disk. False when it is no longer on disk.
    pub fn chill(&mut self, id: RecordId) -> bool {
        let Some((segment, record)) = self.record(id) else {
            return false;
        };
        if record.state != RecordState::Hot {
            return false;
        }
        let items = record.items();
        segment.records[id.index as usize].state = RecordState::Cold;
        segment.cold += 1;
        self.cold += items;
        true
    }

    /// The payload is in memory too, so that it is not read again.
    pub fn warm(&mut self, id: RecordId) {
        let Some((segment, record)) = self.record(id) else {
            return;
        };
        if record.state == RecordState::Cold {
            let items = record.items();
            segment.records[id.index as usize].state = RecordState::Hot;
            segment.cold -= 1;
            self.cold -= items;
        }
    }

    /// Done with, delivered or dropped: it will not be read again, by this process or a later one.
    pub fn acknowledge(&mut self, id: RecordId) -> io::Result<()> {
        let path = self.path(id.segment, "ack");
        let Some((segment, record)) = self.record(id) else {
            return Ok(());
        };
        if record.state == RecordState::Done {
            return Ok(());
        }
        let (items, cold) = (record.items(), record.state == RecordState::Cold);
        segment.records[id.index as usize].state = RecordState::Done;
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
            result = append_ack(segment, &path, &Ack::Record(record.offset).bytes(id.segment));
            if result.is_ok() {
                self.bytes += ACK as u64;
            }
        }
        if cold {
            self.cold -= items;
        }
        let is_long = self.segments[&id.segment].length >= self.segment_bytes / 8;
        if finished && self.writer_is_done() && (is_long || result.is_err()) {
            // While everything is delivered at once, the queue stays small, and a full disk gets its room back.
            self.close_writer();
            result = Ok(());
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
        let is_cold = |record: &Record| record.state == RecordState::Cold;
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
                segment.records[index].state = RecordState::Hot;
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
            Err(error) => {
                self.report(number, &record, &error);
                drop(self.acknowledge(id));
                Next::Corrupt(record.items())
            }
        }
    }

    /// Says that a record is damaged: once for each file, as all of it may be.
    fn report(&mut self, number: u64, record: &Record, error: &io::Error) {
        let path = self.path(number, "q");
        let Some(segment) = self.segments.get_mut(&number) else {
            return;
        };
        if !std::mem::replace(&mut segment.is_reported, true) {
            tracing::warn!(file = %path.display(), offset = record.offset, lost = ?record.items(), %error, "a record of the disk queue is damaged and dropped; further ones of this file are only counted");
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
        // The whole head is compared with the written or scanned one, both checksums included.
        let body_checksum = &bytes[RECORD_HEAD - 8..RECORD_HEAD - 4];
        if crc32fast::hash(&body).to_le_bytes() != body_checksum
            || head(number, record, &body)[..] != bytes[..RECORD_HEAD]
        {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "its checksum is wrong",
            ));
        }
        Ok(body)
    }

    fn start_segment(&mut self) -> io::Result<()> {
        let number = self.next_segment;
        let path = self.path(number, "q");
        let mut file = OpenOptions::new().create_new(true).write(true).open(&path)?;
        self.next_segment += 1;
        if let Err(error) = file.write_all(&record::segment_head(number)) {
            drop(std::fs::remove_file(path));
            return Err(error);
        }
        self.bytes += SEGMENT_HEAD;
        self.segments.insert(number, Segment::new(SEGMENT_HEAD));
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

    /// Removes a segment's files; returns the items that waited in it on disk alone.
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
            .filter(|r| r.state == RecordState::Cold)
            .map(Record::items)
            .sum();
        self.cold -= waiting;
        waiting
    }

    fn path(&self, number: u64, extension: &str) -> PathBuf {
        self.directory.join(format!("{number:020}.{extension}"))
    }

    /// Takes up a segment that an earlier process left.
    fn load(&mut self, number: u64, found: &mut OpenedQueue) -> io::Result<()> {
        let path = self.path(number, "q");
        let file = OpenOptions::new().read(true).write(true).open(&path)?;
        let length = file.metadata()?.len();
        let mut scan = record::scan(&file, number, length);
        let has_head = scan.end > 0 && scan.gaps.first().is_none_or(|(at, _)| *at > 0);
        if !has_head && scan.records.is_empty() {
            return set_aside(&path, length, found);
        }
        let behind = length - scan.end;
        if behind > 0 {
            file.set_len(scan.end)?;
            *(if scan.is_torn {
                &mut found.torn_bytes
            } else {
                &mut found.damaged_bytes
            }) += behind;
        }
        let acks = self.read_acks(number)?;
        let counted = record::apply_acks(&mut scan, number, &acks);
        scan.gaps.retain(|(at, _)| !counted.contains(at));
        let mut segment = Segment::new(scan.end);
        segment.ack_bytes = acks.len() as u64;
        segment.records = scan.records;
        let created = segment.records.iter().map(|record| i64::from(record.created));
        segment.newest = created.max().unwrap_or(i64::MIN);
        let waiting = segment.records.iter().filter(|r| r.state == RecordState::Cold);
        segment.cold = waiting.clone().count();
        segment.not_done = segment.cold;
        self.cold += waiting.map(Record::items).sum();
        self.bytes += segment.length + segment.ack_bytes;
        let finished = segment.not_done == 0;
        self.segments.insert(number, segment);
        self.count_gaps(number, &scan.gaps, found);
        if behind > 0 && !scan.is_torn {
            tracing::warn!(file = %path.display(), bytes = behind, "the end of a disk queue's file is damaged and lost");
        }
        if finished {
            self.remove_segment(number);
        }
        Ok(())
    }

    /// Counts what could not be read, once: the next start finds a note of it.
    fn count_gaps(&mut self, number: u64, gaps: &[(u32, u64)], found: &mut OpenedQueue) {
        let bytes: u64 = gaps.iter().map(|(_, bytes)| bytes).sum();
        if bytes == 0 {
            return;
        }
        found.damaged_bytes += bytes;
        let (path, acks) = (self.path(number, "q"), self.path(number, "ack"));
        let segment = self.segments.get_mut(&number).expect("just loaded");
        let records = segment.records.len();
        tracing::warn!(file = %path.display(), bytes, places = gaps.len(), records, "a disk queue's file is damaged; the damaged bytes are lost, the other records are kept");
        for (at, _) in gaps {
            if append_ack(segment, &acks, &Ack::Gap(*at).bytes(number)).is_ok() {
                self.bytes += ACK as u64;
            }
        }
    }

    /// A segment's acknowledgements. An incomplete one at the end is truncated, because it would misalign later ones.
    fn read_acks(&self, number: u64) -> io::Result<Vec<u8>> {
        let path = self.path(number, "ack");
        let mut acks = std::fs::read(&path).unwrap_or_default();
        let whole = acks.len() / ACK * ACK;
        if whole < acks.len() {
            let file = OpenOptions::new().write(true).open(path)?;
            file.set_len(whole as u64)?;
            acks.truncate(whole);
        }
        Ok(acks)
    }
}

/// Not ours, of another version, or torn at birth; a file that holds data is moved aside rather than deleted.
fn set_aside(path: &Path, length: u64, found: &mut OpenedQueue) -> io::Result<()> {
    if length <= SEGMENT_HEAD {
        found.torn_bytes += length;
        return std::fs::remove_file(path);
    }
    found.damaged_bytes += length;
    let aside = path.with_extension("unreadable");
    tracing::warn!(file = %aside.display(), bytes = length, "a file of the disk queue cannot be read; it is kept under this name");
    std::fs::rename(path, aside)
}

impl Drop for DiskQueue {
    fn drop(&mut self) {
        self.close_writer();
    }
}

fn append_ack(segment: &mut Segment, path: &Path, ack: &[u8; ACK]) -> io::Result<()> {
    if segment.acks.is_none() {
        segment.acks = Some(OpenOptions::new().create(true).append(true).open(path)?);
    }
    segment.acks.as_mut().expect("just opened").write_all(ack)?;
    segment.ack_bytes += ACK as u64;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::delivery::books::Class;

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

    fn open(directory: &Path, bytes_max: u64, age_max: i64) -> (DiskQueue, OpenedQueue) {
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
    fn appended_payloads_survive_a_restart_until_acknowledged() {
        let directory = tempfile::tempdir().unwrap();
        let (mut queue, found) = open(directory.path(), 1 << 20, 0);
        assert_eq!(found, OpenedQueue::default());
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
            OpenedQueue {
                restored: Items {
                    points: 42,
                    ..Items::default()
                },
                ..OpenedQueue::default()
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
        assert_eq!((found.torn_bytes, found.damaged_bytes), (0, 0));
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

    /// A file that ends at any byte has every record that was complete before that byte, and nothing else.
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
            assert_eq!(
                (found.torn_bytes, found.damaged_bytes),
                (torn, 0),
                "cut at {length}"
            );
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

    /// With any single byte damaged, no altered payload is delivered.
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
            // The damage costs the record it is in, none where it is in the segment's head, and is reported.
            let hit = (at as u64).checked_sub(SEGMENT_HEAD).map_or(0, |at| at / 56 + 1) as u32;
            assert_eq!(delivered, 6 - hit, "byte {at}");
            let in_head = hit == 0 || (at as u64 - SEGMENT_HEAD) % 56 < RECORD_HEAD as u64;
            let expected = match hit {
                0 => (0, SEGMENT_HEAD),
                _ if in_head => (0, 56),
                _ => (hit, 0),
            };
            assert_eq!((corrupt, found.damaged_bytes), expected, "byte {at}");
            drop(queue);
            for rest in std::fs::read_dir(directory.path()).unwrap() {
                drop(std::fs::remove_file(rest.unwrap().path()));
            }
        }
    }

    /// The log lines of this thread during `work`.
    fn logged<T>(work: impl FnOnce() -> T) -> (T, String) {
        use std::sync::{Arc, Mutex};
        let text: Arc<Mutex<Vec<u8>>> = Arc::default();
        struct Writer(Arc<Mutex<Vec<u8>>>);
        impl Write for Writer {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.0.lock().unwrap().extend_from_slice(bytes);
                Ok(bytes.len())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let writer = text.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_ansi(false)
            .with_writer(move || Writer(writer.clone()))
            .finish();
        let result = tracing::subscriber::with_default(subscriber, work);
        let text = String::from_utf8(text.lock().unwrap().clone()).unwrap();
        (result, text)
    }

    fn flip(path: &Path, at: u64) {
        let mut bytes = std::fs::read(path).unwrap();
        bytes[at as usize] ^= 1;
        std::fs::write(path, bytes).unwrap();
    }

    /// Twenty-four records of 100 bytes in one file, these numbers of them acknowledged.
    fn twenty_four(directory: &Path, acknowledged: &[usize]) -> PathBuf {
        let (mut queue, _) = open(directory, 1 << 20, 0);
        let ids: Vec<RecordId> = (0..24).map(|n| append(&mut queue, &payload(n, 100))).collect();
        acknowledged
            .iter()
            .for_each(|at| queue.acknowledge(ids[*at]).unwrap());
        drop(queue);
        segments(directory)[0].clone()
    }

    #[test]
    fn a_damaged_head_costs_its_record_and_is_reported_once() {
        let directory = tempfile::tempdir().unwrap();
        let path = twenty_four(directory.path(), &[0, 15]);
        let record = RECORD_HEAD as u64 + 100;
        // The length of the twelfth.
        flip(&path, SEGMENT_HEAD + 11 * record);
        let ((mut queue, found), log) = logged(|| open(directory.path(), 1 << 20, 0));
        let points = (1..24).filter(|n| ![11, 15].contains(n)).sum();
        assert_eq!(
            found,
            OpenedQueue {
                restored: Items {
                    points,
                    ..Items::default()
                },
                torn_bytes: 0,
                damaged_bytes: record
            }
        );
        let name = path.display().to_string();
        assert!(
            log.contains("WARN") && log.contains(&name) && log.contains(&format!("bytes={record}")),
            "{log}"
        );
        // Records completed after the damage stay completed, over restarts.
        let Next::Payload(id, last) = queue.next(true, NOW) else {
            panic!("the last is whole")
        };
        assert_eq!(last.count, 23);
        queue.acknowledge(id).unwrap();
        drop(queue);
        let ((mut queue, found), log) = logged(|| open(directory.path(), 1 << 20, 0));
        assert_eq!((found.damaged_bytes, log.as_str()), (0, ""));
        let rest: Vec<u32> = (1..23).filter(|n| ![11, 15].contains(n)).collect();
        assert_eq!(drain(&mut queue, false), rest);
        assert_eq!(queue.bytes(), 0);
    }

    /// Damage of any length, anywhere in heads and bodies: the records that it does not touch are all there.
    #[test]
    fn damage_over_several_records_costs_just_those() {
        let record = RECORD_HEAD as u64 + 100;
        let mut state = 7u64;
        for round in 0..60 {
            let mut draw = |below: u64| {
                state = state
                    .wrapping_mul(6364136223846793005)
                    .wrapping_add(1442695040888963407);
                (state >> 33) % below
            };
            let directory = tempfile::tempdir().unwrap();
            let path = twenty_four(directory.path(), &[]);
            let start = SEGMENT_HEAD + draw(20 * record);
            let length = 1 + draw(3 * record);
            let mut bytes = std::fs::read(&path).unwrap();
            bytes[start as usize..(start + length) as usize].fill(0xa5);
            std::fs::write(&path, bytes).unwrap();
            let hit = |n: u64| {
                let at = SEGMENT_HEAD + n * record;
                at < start + length && start < at + record
            };
            let (mut queue, _) = open(directory.path(), 1 << 20, 0);
            let mut whole = Vec::new();
            loop {
                match queue.next(false, NOW) {
                    Next::Payload(id, read) => {
                        whole.push(u64::from(read.count));
                        queue.acknowledge(id).unwrap();
                    }
                    Next::Corrupt(_) => {}
                    Next::Empty => break,
                    Next::TooOld(_) => unreachable!(),
                }
            }
            let expected: Vec<u64> = (0..24).filter(|n| !hit(*n)).collect();
            assert_eq!(whole, expected, "round {round}: {length} bytes from {start}");
        }
    }

    #[test]
    fn a_damaged_body_is_logged_once_for_its_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = twenty_four(directory.path(), &[]);
        let body = |n: u64| SEGMENT_HEAD + n * (RECORD_HEAD as u64 + 100) + 50;
        flip(&path, body(3));
        flip(&path, body(5));
        let (mut queue, _) = open(directory.path(), 1 << 20, 0);
        let (corrupt, log) = logged(|| {
            let mut corrupt = 0;
            loop {
                match queue.next(false, NOW) {
                    Next::Payload(id, _) => queue.acknowledge(id).unwrap(),
                    Next::Corrupt(items) => corrupt += items.points,
                    _ => return corrupt,
                }
            }
        });
        assert_eq!(corrupt, 8);
        let name = path.display().to_string();
        assert!(
            log.contains("WARN") && log.contains(&name) && log.contains("checksum"),
            "{log}"
        );
        assert_eq!(log.lines().count(), 1, "{log}");
    }

    /// Versions before this one noted the numbers of records: good up to the first gap.
    #[test]
    fn acknowledgements_of_earlier_versions() {
        let directory = tempfile::tempdir().unwrap();
        let path = twenty_four(directory.path(), &[]);
        let acks: Vec<u8> = [2, 3, 20].iter().flat_map(|n| Ack::Index(*n).bytes(1)).collect();
        std::fs::write(path.with_extension("ack"), acks).unwrap();
        let copy = std::fs::read(&path).unwrap();
        let (mut queue, _) = open(directory.path(), 1 << 20, 0);
        let expected: Vec<u32> = (0..24).filter(|n| ![2, 3, 20].contains(n)).collect();
        let Next::Payload(..) = queue.next(false, NOW) else {
            panic!("there are some")
        };
        drop(queue);
        let (mut queue, _) = open(directory.path(), 1 << 20, 0);
        assert_eq!(drain(&mut queue, false), expected);
        drop(queue);
        // With a gap at the eleventh, the twenty-first may be another by number: it comes again.
        std::fs::write(&path, copy).unwrap();
        let acks: Vec<u8> = [2, 3, 20].iter().flat_map(|n| Ack::Index(*n).bytes(1)).collect();
        std::fs::write(path.with_extension("ack"), acks).unwrap();
        flip(&path, SEGMENT_HEAD + 10 * (RECORD_HEAD as u64 + 100));
        let (mut queue, _) = open(directory.path(), 1 << 20, 0);
        let expected: Vec<u32> = (0..24).filter(|n| ![2, 3, 10].contains(n)).collect();
        assert_eq!(drain(&mut queue, false), expected);
    }

    /// A file without any record of this queue belongs to another program, however it begins.
    #[test]
    fn foreign_files_are_set_aside() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(format!("{:020}.q", 3));
        std::fs::write(&path, vec![7; 1000]).unwrap();
        let ((mut queue, found), log) = logged(|| open(directory.path(), 1 << 20, 0));
        assert_eq!((found.damaged_bytes, drain(&mut queue, false)), (1000, vec![]));
        assert!(
            log.contains("WARN") && path.with_extension("unreadable").exists(),
            "{log}"
        );
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
        bytes.extend_from_slice(&Ack::Record(16).bytes(999));
        bytes.extend_from_slice(&Ack::Record(16).bytes(1)[..5]);
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
