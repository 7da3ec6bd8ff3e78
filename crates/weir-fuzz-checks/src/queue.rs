//! The records of a disk queue after its files were damaged.

use std::path::{Path, PathBuf};

use weir_output::delivery::{Class, DiskQueue, Evicted, Items, Next, Payload};

const NOW: i64 = 1_700_000_000;
const BYTES_MAX: u64 = 1 << 20;

/// Writes payloads, damages the files according to `bytes`, and opens the queue again. It opens with any files, delivers only written
/// records, in order and once, and accepts new ones.
///
/// The first byte selects the number of payloads and of acknowledged ones; then come damages of four bytes each: file and kind, a position
/// of two bytes, and a value.
pub fn queue(bytes: &[u8]) {
    let Some((&shape, damages)) = bytes.split_first() else {
        return;
    };
    let directory = in_memory();
    let number = u32::from(shape % 16) + 1;
    let acknowledged = usize::from(shape / 16) % (number as usize + 1);
    fill(directory.path(), number, acknowledged);
    for damage in damages.chunks_exact(4).take(16) {
        apply(directory.path(), damage);
    }
    let (mut queue, found) = open(directory.path());
    assert_eq!(found.restored, queue.cold());
    let mut restored = found.restored.points;
    assert!(restored <= (1..=number).map(u64::from).sum::<u64>());
    let mut last = 0;
    loop {
        match queue.next(false, NOW) {
            Next::Payload(id, found) => {
                assert!(found.count > last, "{} after {last}", found.count);
                assert_eq!(found.body, payload(found.count).body);
                last = found.count;
                restored -= u64::from(found.count);
                queue.acknowledge(id).expect("acknowledged");
            }
            Next::Corrupt(items) => restored -= items.points,
            Next::TooOld(_) => panic!("no age limit"),
            Next::Empty => break,
        }
    }
    assert_eq!(restored, 0, "all that was found is delivered or counted");
    // An empty queue stays empty over a restart, and payloads added then are read back whole.
    queue.append(&payload(77), &mut Evicted::default()).expect("room");
    drop(queue);
    let (mut queue, found) = open(directory.path());
    assert_eq!(found.restored, Items::of(Class::Points, 77));
    let Next::Payload(_, found) = queue.next(false, NOW) else {
        panic!("what was added is gone");
    };
    assert_eq!(found.body, payload(77).body);
}

/// A directory in memory, where there is such a thing: the queue waits for the disk several times in every execution.
pub(crate) fn in_memory() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm")
        .or_else(|_| tempfile::tempdir())
        .expect("a directory for the queue")
}

fn open(directory: &Path) -> (DiskQueue, weir_output::delivery::OpenedQueue) {
    DiskQueue::open(directory, BYTES_MAX, 0).expect("damage is no reason not to open")
}

fn payload(count: u32) -> Payload {
    let body: Vec<u8> = (0..count * 3).map(|at| (at * count) as u8).collect();
    Payload {
        id: 0,
        route: 3,
        class: Class::Points,
        count,
        created: NOW,
        body: body.into(),
    }
}

fn fill(directory: &Path, number: u32, acknowledged: usize) {
    let (mut queue, _) = open(directory);
    let mut evicted = Evicted::default();
    let ids: Vec<_> = (1..=number)
        .map(|count| queue.append(&payload(count), &mut evicted).expect("room"))
        .collect();
    for id in &ids[..acknowledged] {
        queue.acknowledge(*id).expect("acknowledged");
    }
}

fn apply(directory: &Path, damage: &[u8]) {
    let [what, low, high, value] = *damage else { return };
    let mut files: Vec<PathBuf> = std::fs::read_dir(directory)
        .expect("the directory")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| {
            path.extension()
                .is_some_and(|extension| extension != "unreadable")
        })
        .collect();
    files.sort();
    let Some(path) = files.get(usize::from(what & 3) % files.len().max(1)) else {
        return;
    };
    let mut bytes = std::fs::read(path).expect("the file");
    let at = usize::from(u16::from_le_bytes([low, high])) % bytes.len().max(1);
    match what >> 2 & 3 {
        0 if !bytes.is_empty() => bytes[at] ^= value,
        1 => bytes.truncate(at),
        2 => bytes.extend(std::iter::repeat_n(value, at % 64)),
        _ => drop(bytes.splice(at..at, [value])),
    }
    std::fs::write(path, bytes).expect("the file");
}
