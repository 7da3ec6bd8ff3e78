//! Damaged and cut files: what is whole is read, and what is lost is counted. With any byte changed, and with a file cut at any byte.

use std::path::{Path, PathBuf};

use crate::support::{START, Writer};
use tempfile::TempDir;
use weir_log::{Damage, FileLog};
use weir_merge::{Commit, Log, Owner, Settings};
use weir_state::Bounds;

fn clock() -> i64 {
    START * 1000
}

/// A log whose files hold two frames or so, or one with all of them in one file.
fn open(directory: &Path, file_bytes_max: u64) -> FileLog {
    FileLog::with_files_of(directory, 1, clock, file_bytes_max).unwrap()
}

const FILES: [u64; 2] = [60, 1 << 20];
const RECORDS: usize = 5;

fn record(number: usize) -> Vec<u8> {
    vec![number as u8 + 65; 10 + number]
}

fn commit(number: usize) -> Commit {
    Commit {
        results: vec![record(number), vec![number as u8]],
        quarantined: Vec::new(),
        snapshot: vec![number as u8; 9],
        offset: number as u64,
    }
}

/// A log with records and commits.
fn filled(file_bytes_max: u64) -> TempDir {
    let directory = TempDir::new().unwrap();
    let mut log = open(directory.path(), file_bytes_max);
    log.assignments().unwrap();
    for number in 0..RECORDS {
        log.append(0, 1, &record(number)).unwrap();
        log.commit(0, 0, &commit(number)).unwrap();
    }
    directory
}

/// The files with frames, oldest first.
fn files(directory: &Path, of: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory.join("0").join(of)).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    let mut paths: Vec<PathBuf> = paths
        .filter(|path| path.extension().is_some_and(|ending| ending == "log"))
        .collect();
    paths.sort();
    paths
}

/// Ends of the frames of a file.
fn ends(bytes: &[u8]) -> Vec<usize> {
    let (mut ends, mut at) = (Vec::new(), 0);
    while at < bytes.len() {
        at += 20 + u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
        ends.push(at);
    }
    ends
}

fn found(log: &FileLog) -> (u64, u64) {
    let damage = log.damage();
    let sum = |of: fn(&Damage) -> u64| damage.iter().map(of).sum();
    (sum(|damage| damage.bytes), sum(|damage| damage.frames))
}

/// The numbers and bytes of all records.
fn records(log: &mut FileLog) -> Vec<(u64, Vec<u8>)> {
    let fetched = log.fetch(0, 0, usize::MAX).unwrap();
    assert_eq!(fetched.next, fetched.end);
    let messages = fetched.messages.into_iter();
    messages.map(|message| (message.offset, message.bytes)).collect()
}

fn written(without: Option<usize>) -> Vec<(u64, Vec<u8>)> {
    let all = (0..RECORDS).filter(|number| Some(*number) != without);
    all.map(|number| (number as u64, record(number))).collect()
}

/// The file and the number of the frame in it, for each byte of the log.
fn each_byte(directory: &Path, of: &str) -> Vec<(PathBuf, usize, usize)> {
    let (mut all, mut first) = (Vec::new(), 0);
    for path in files(directory, of) {
        let ends = ends(&std::fs::read(&path).unwrap());
        let whole = *ends.last().unwrap();
        for at in 0..whole {
            let frame = ends.partition_point(|end| *end <= at);
            all.push((path.clone(), at, first + frame));
        }
        first += ends.len();
    }
    assert_eq!(first, RECORDS);
    all
}

#[test]
fn a_changed_byte_costs_its_record_and_is_counted() {
    for file_bytes_max in FILES {
        let directory = filled(file_bytes_max);
        for (path, at, frame) in each_byte(directory.path(), "records") {
            let whole = std::fs::read(&path).unwrap();
            let mut changed = whole.clone();
            changed[at] ^= 0x20;
            std::fs::write(&path, &changed).unwrap();
            let mut log = open(directory.path(), file_bytes_max);
            assert_eq!(records(&mut log), written(Some(frame)), "byte {at} of {path:?}");
            let is_last = frame == RECORDS - 1;
            let bytes = record(frame).len() as u64 + 20;
            let (damaged, frames) = found(&log);
            match is_last {
                // Nothing whole follows: a process may have been writing it.
                true => assert_eq!((damaged, frames), (0, 0)),
                false => assert!(damaged > bytes && frames == 1, "byte {at}: {damaged} {frames}"),
            }
            assert_eq!(log.torn_bytes().unwrap(), 0);
            // Each place is counted once.
            records(&mut log);
            log.fetch(0, 1, 1).unwrap();
            assert_eq!(found(&log), (damaged, frames));
            std::fs::write(&path, whole).unwrap();
        }
    }
}

/// A reader that has read the last record continues with the next one, although that record was moved aside.
#[test]
fn a_changed_byte_in_the_last_record_hides_no_later_one() {
    for file_bytes_max in FILES {
        let scratch = filled(file_bytes_max);
        let last = files(scratch.path(), "records").pop().unwrap();
        let bytes = std::fs::read(&last).unwrap();
        let ends = ends(&bytes);
        let begins = ends[..ends.len() - 1].last().copied().unwrap_or(0);
        for at in begins..bytes.len() {
            let directory = filled(file_bytes_max);
            let path = files(directory.path(), "records").pop().unwrap();
            let mut reader = open(directory.path(), file_bytes_max);
            let next = reader.fetch(0, 0, usize::MAX).unwrap().next;
            let mut changed = bytes.clone();
            changed[at] ^= 0x20;
            std::fs::write(&path, changed).unwrap();
            let mut agent = open(directory.path(), file_bytes_max);
            let number = agent.append(0, 1, b"later").unwrap();
            assert!(number >= next, "byte {at}: {number} was read before");
            for log in [&mut reader, &mut open(directory.path(), file_bytes_max)] {
                let fetched = log.fetch(0, next, usize::MAX).unwrap();
                assert_eq!(fetched.messages.len(), 1, "byte {at}");
                assert_eq!(
                    (fetched.messages[0].offset, &fetched.messages[0].bytes[..]),
                    (number, &b"later"[..])
                );
            }
            let torn = (bytes.len() - begins) as u64;
            assert_eq!(
                agent.torn_bytes().unwrap(),
                torn,
                "it is kept, and its size is visible"
            );
            assert_eq!(reader.torn_bytes().unwrap(), torn, "to each process");
        }
    }
}

#[test]
fn a_file_cut_at_any_byte_keeps_its_whole_records() {
    for file_bytes_max in FILES {
        let directory = filled(file_bytes_max);
        let all = files(directory.path(), "records");
        let mut first = 0;
        for path in &all {
            let whole = std::fs::read(path).unwrap();
            let ends = ends(&whole);
            for len in 0..whole.len() {
                std::fs::write(path, &whole[..len]).unwrap();
                let kept = ends.partition_point(|end| *end <= len);
                let lost = first + kept..first + ends.len();
                let mut log = open(directory.path(), file_bytes_max);
                let expected: Vec<(u64, Vec<u8>)> = written(None)
                    .into_iter()
                    .filter(|(number, _)| !lost.contains(&(*number as usize)))
                    .collect();
                assert_eq!(records(&mut log), expected, "{path:?} cut at {len}");
                let torn = len - kept.checked_sub(1).map_or(0, |last| ends[last]);
                let expected = match path == all.last().unwrap() {
                    true => (0, 0),
                    false => (torn as u64, lost.len() as u64),
                };
                assert_eq!(found(&log), expected, "{path:?} cut at {len}");
            }
            std::fs::write(path, &whole).unwrap();
            first += ends.len();
        }
    }
}

/// A process is killed while it moves torn bytes aside, or right after.
#[test]
fn a_repair_that_was_begun_is_finished() {
    let scratch = filled(1 << 20);
    let path = files(scratch.path(), "records").pop().unwrap();
    let whole = std::fs::read(&path).unwrap();
    std::fs::write(&path, &whole[..whole.len() - 3]).unwrap();
    let torn = *ends(&whole).iter().rev().nth(1).unwrap();
    open(scratch.path(), 1 << 20).append(0, 1, b"later").unwrap();
    let repaired = std::fs::read(&path).unwrap();
    // The head that skips numbers is written over the torn bytes, which are cut off afterwards.
    for len in 0..=20 {
        let mut begun = whole[..whole.len() - 3].to_vec();
        begun[torn..torn + len].copy_from_slice(&repaired[torn..torn + len]);
        std::fs::write(&path, begun).unwrap();
        let mut log = open(scratch.path(), 1 << 20);
        assert_eq!(records(&mut log), written(Some(RECORDS - 1)));
        let number = log.append(0, 1, b"last").unwrap();
        assert!(number >= RECORDS as u64);
        let mut expected = written(Some(RECORDS - 1));
        expected.push((number, b"last".to_vec()));
        assert_eq!(records(&mut log), expected);
        assert_eq!(found(&log), (0, 0));
    }
}

#[test]
fn a_changed_byte_costs_its_commit_and_no_other() {
    for file_bytes_max in FILES {
        let directory = filled(file_bytes_max);
        for (path, at, frame) in each_byte(directory.path(), "commits") {
            let whole = std::fs::read(&path).unwrap();
            let mut changed = whole.clone();
            changed[at] ^= 0x20;
            std::fs::write(&path, &changed).unwrap();
            let mut log = open(directory.path(), file_bytes_max);
            let is_last = frame == RECORDS - 1;
            let newest = if is_last { frame - 1 } else { RECORDS - 1 };
            let expected = (vec![newest as u8; 9], newest as u64);
            assert_eq!(log.committed(0).unwrap(), Some(expected), "byte {at} of {path:?}");
            let results = log.results(0, 0, usize::MAX).unwrap();
            let results: Vec<Vec<u8>> = results.into_iter().map(|(_, result)| result).collect();
            let others = (0..RECORDS).filter(|number| *number != frame);
            let expected: Vec<Vec<u8>> = others.flat_map(|number| commit(number).results).collect();
            assert_eq!(results, expected, "byte {at} of {path:?}");
            assert_eq!(found(&log).1, u64::from(!is_last));
            std::fs::write(&path, whole).unwrap();
        }
    }
}

/// The owner makes the lost commit again: with the same number, so that outputs do not get its results twice.
#[test]
fn a_lost_last_commit_is_made_again() {
    let directory = filled(1 << 20);
    let path = files(directory.path(), "commits").pop().unwrap();
    let whole = std::fs::read(&path).unwrap();
    let last = open(directory.path(), 1 << 20).results(0, 0, usize::MAX).unwrap();
    let mut changed = whole.clone();
    *changed.last_mut().unwrap() ^= 1;
    std::fs::write(&path, changed).unwrap();
    let mut log = open(directory.path(), 1 << 20);
    log.assignments().unwrap();
    log.commit(0, 0, &commit(RECORDS - 1)).unwrap();
    assert_eq!(log.results(0, 0, usize::MAX).unwrap(), last);
    assert_eq!(std::fs::read(&path).unwrap(), whole);
}

/// Changed in any byte, or cut anywhere, the small files are refused: another number of partitions would split series.
#[test]
fn a_changed_or_cut_plan_is_refused() {
    let directory = filled(1 << 20);
    open(directory.path(), 1 << 20).announce(START, 4).unwrap();
    let path = directory.path().join("plan");
    let whole = std::fs::read(&path).unwrap();
    let mut versions: Vec<Vec<u8>> = (0..whole.len()).map(|len| whole[..len].to_vec()).collect();
    versions.extend((0..whole.len()).map(|at| {
        let mut changed = whole.clone();
        changed[at] ^= 1;
        changed
    }));
    for version in versions {
        std::fs::write(&path, &version).unwrap();
        let opened = FileLog::open(directory.path(), 1, clock);
        let error = opened.expect_err("it is refused").to_string();
        assert!(error.contains(path.to_str().unwrap()), "{error}");
    }
    std::fs::remove_file(&path).unwrap();
    let opened = FileLog::open(directory.path(), 1, clock);
    assert!(opened.unwrap_err().to_string().contains("it is missing"));
}

#[test]
fn changed_or_cut_positions_and_sums_are_refused() {
    let directory = filled(1 << 20);
    let mut log = open(directory.path(), 1 << 20).of_output("file");
    log.assignments().unwrap();
    log.record_results_sent(0, 0, 1234567).unwrap();
    assert_eq!(log.results_sent(0).unwrap(), 1234567);
    let sums = Commit {
        snapshot: b"sums".to_vec(),
        offset: 1234567,
        ..Commit::default()
    };
    log.commit(0, 0, &sums).unwrap();
    assert_eq!(log.committed(0).unwrap(), Some((b"sums".to_vec(), 1234567)));
    let is_refused = |log: &mut FileLog, file: &str| match file {
        "sent-file" => log.results_sent(0).is_err(),
        _ => log.committed(0).is_err(),
    };
    for file in ["sent-file", "sums-file"] {
        let path = directory.path().join("0").join(file);
        let whole = std::fs::read(&path).unwrap();
        for at in 0..whole.len() {
            let mut changed = whole.clone();
            changed[at] ^= 1;
            for version in [&changed[..], &whole[..at]] {
                std::fs::write(&path, version).unwrap();
                assert!(is_refused(&mut log, file), "{file}: byte {at}");
            }
        }
    }
}

/// A file whose newest records are gone, as after a restored backup: what agents write then is merged, and nothing twice.
#[test]
fn records_after_a_lost_end_are_merged() {
    let directory = TempDir::new().unwrap();
    let settings = Settings {
        bounds: Bounds::NONE,
        ..Settings::default()
    };
    let mut agent = Writer::new(1, 1);
    let mut log = open(directory.path(), 1 << 20);
    let mut appended = Vec::new();
    for bucket in 0..4 {
        let bytes = agent.one(START + bucket * 10);
        log.append(0, clock(), &bytes).unwrap();
        appended.push(bytes);
    }
    let mut owner = Owner::new(open(directory.path(), 1 << 20), settings);
    owner.turn().unwrap();
    assert_eq!(owner.merges().next().unwrap().1.next(), 4);
    let path = files(directory.path(), "records").pop().unwrap();
    let whole = std::fs::read(&path).unwrap();
    std::fs::write(&path, &whole[..ends(&whole)[1]]).unwrap();
    let bytes = agent.one(START + 40);
    assert_eq!(log.append(0, clock(), &bytes).unwrap(), 2);
    for _ in 0..3 {
        owner.turn().unwrap();
    }
    let merge = owner.merges().next().unwrap().1;
    assert_eq!(merge.ledger().open, 10, "five records of two states");
    assert_eq!(merge.counts().repeats, 2);
    assert_eq!(
        found(owner.log()),
        (0, 1),
        "the record that was read from the place behind the end"
    );
}
