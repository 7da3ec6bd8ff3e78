//! The log of a fleet in files, and the snapshots in it, after they were damaged.

use std::path::{Path, PathBuf};

use weir_log::FileLog;
use weir_merge::{Commit, Log, Merge, Message, Plan, Publisher, Settings};
use weir_protocol::Kind;
use weir_state::{AgentId, ExactSum, Facts, Identity, State};

use crate::queue::in_memory;

const START: i64 = 1_700_000_000;

/// Unix milliseconds at which all is read.
const NOW: i64 = (START + 100) * 1000;

/// The first byte selects the damaged object, a log or a snapshot, and its size; then come damages of four bytes each: place and kind, a
/// position of two bytes, and a value. After a first byte of zero, the rest is read as a snapshot.
pub fn log(bytes: &[u8]) {
    let Some((&shape, damages)) = bytes.split_first() else {
        return;
    };
    match shape {
        0 => snapshot(damages),
        _ if shape % 2 == 0 => {
            let mut bytes = snapshot_of(usize::from(shape / 2));
            damages
                .chunks_exact(4)
                .take(16)
                .for_each(|damage| apply(&mut bytes, damage));
            snapshot(&bytes);
        }
        _ => files(usize::from(shape / 2), damages),
    }
}

/// The records of an agent for this many buckets, as the messages of a log.
fn messages(agents: u8, buckets: usize) -> Vec<Message> {
    let mut messages = Vec::new();
    for number in 0..agents {
        let mut publisher = Publisher::new("tenant", AgentId([number; 16]), 1);
        for bucket in 0..buckets as i64 {
            publisher.begin(START + bucket, 1, &Plan::new(1));
            let facts = Facts {
                seen: START,
                suffixes: u32::MAX,
            };
            let identity = Identity::new(Kind::Counter, "name", Some(""), None, ["tag"]);
            publisher.add(&identity, facts, &State::Counter(ExactSum::from(1.0)));
            for published in publisher.close(false).records {
                messages.push(Message {
                    offset: messages.len() as u64,
                    appended: NOW,
                    sent: NOW,
                    bytes: published.bytes,
                });
            }
        }
    }
    messages
}

fn snapshot_of(shape: usize) -> Vec<u8> {
    let mut merge = Merge::new(Settings::default(), 0);
    let all = messages(1 + shape as u8 % 3, 1 + shape / 3 % 8);
    // Some are missing.
    let some = all.iter().filter(|message| message.offset % 5 != 3);
    for message in some {
        merge.add(message);
    }
    merge.tick(NOW);
    merge.commit().map(|commit| commit.snapshot).unwrap_or_default()
}

/// A snapshot, or an error that says why it is invalid. A restored merge works: it merges, closes, counts, and has a snapshot that
/// can be read.
fn snapshot(bytes: &[u8]) {
    let mut merge = match Merge::restore(Settings::default(), bytes, 0) {
        Ok(merge) => merge,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    for message in messages(3, 4) {
        merge.add(&message);
    }
    merge.tick(NOW + 1_000_000);
    for agent in merge.ledgers().into_keys() {
        let _ = merge.missing(agent);
    }
    let _ = (merge.ledger(), merge.streams(), merge.shared_ids().count());
    if let Some(commit) = merge.commit() {
        let again = Merge::restore(Settings::default(), &commit.snapshot, commit.offset);
        assert!(again.is_ok(), "its own snapshot is invalid: {again:?}");
    }
}

/// A log opens with any files. It returns records that were written, in order and once, or an error; and it accepts new ones.
fn files(shape: usize, damages: &[u8]) {
    let directory = in_memory();
    let records = 1 + shape % 16;
    fill(directory.path(), records, shape / 16);
    for damage in damages.chunks_exact(4).take(16) {
        damage_a_file(directory.path(), damage);
    }
    let Ok(mut log) = open(directory.path()) else {
        return;
    };
    if let Ok(fetched) = log.fetch(0, 0, usize::MAX) {
        let mut last = 0;
        for message in &fetched.messages {
            let number = message.bytes.len();
            assert!(number > last && number <= records, "{number} after {last}");
            assert_eq!(message.bytes, record(number));
            last = number;
        }
    }
    if let Ok(Some((snapshot, offset))) = log.committed(0) {
        assert_eq!(snapshot.len() as u64, offset + 1);
    }
    let _ = (
        log.results(0, 0, usize::MAX),
        log.quarantined(0),
        log.results_sent(0),
    );
    if let Ok(offset) = log.append(0, 1, b"added") {
        let fetched = log.fetch(0, offset, 1).expect("what was added can be read");
        assert_eq!(fetched.messages[0].bytes, b"added");
    }
}

fn open(directory: &Path) -> Result<FileLog, weir_log::Error> {
    FileLog::with_files_of(directory, 1, || NOW, 100)
}

fn record(number: usize) -> Vec<u8> {
    (0..number).map(|at| (at * number) as u8).collect()
}

fn fill(directory: &Path, records: usize, commits: usize) {
    let mut log = open(directory).expect("a log");
    for number in 1..=records {
        log.append(0, 1, &record(number)).expect("room");
    }
    log.assignments().expect("the owner");
    for number in 0..commits {
        let commit = Commit {
            snapshot: vec![7; number + 1],
            offset: number as u64,
            results: vec![vec![number as u8; 5]],
            ..Commit::default()
        };
        log.commit(0, 0, &commit).expect("room");
    }
}

fn damage_a_file(directory: &Path, damage: &[u8]) {
    let mut paths: Vec<PathBuf> = Vec::new();
    for folder in ["", "0/records", "0/commits"] {
        let entries = std::fs::read_dir(directory.join(folder)).expect("a folder");
        let entries = entries.map(|entry| entry.expect("an entry").path());
        paths.extend(entries.filter(|path| path.is_file()));
    }
    paths.sort();
    let Some(path) = paths.get(usize::from(damage[0] >> 2) % paths.len().max(1)) else {
        return;
    };
    let mut bytes = std::fs::read(path).expect("the file");
    apply(&mut bytes, damage);
    std::fs::write(path, bytes).expect("the file");
}

fn apply(bytes: &mut Vec<u8>, damage: &[u8]) {
    let [what, low, high, value] = *damage else { return };
    let at = usize::from(u16::from_le_bytes([low, high])) % bytes.len().max(1);
    match what & 3 {
        0 if !bytes.is_empty() => bytes[at] ^= value,
        1 => bytes.truncate(at),
        2 => bytes.extend(std::iter::repeat_n(value, at % 64)),
        _ => drop(bytes.splice(at..at, [value])),
    }
}
