//! The file log keeps acknowledged records after any end of a process, and all others completely or not at all.

use std::fs::OpenOptions;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicI64, Ordering};

use crate::support::{START, Writer, decoded, names, sum};
use tempfile::TempDir;
use weir_log::{Error, FileLog};
use weir_merge::{Assignment, Commit, Log, Owner, Settings};
use weir_state::Bounds;

static NOW: AtomicI64 = AtomicI64::new(START * 1000);

fn clock() -> i64 {
    NOW.load(Ordering::Relaxed)
}

fn open(directory: &TempDir) -> FileLog {
    FileLog::with_files_of(directory.path(), 1, clock, 200).unwrap()
}

fn records(log: &mut FileLog) -> Vec<Vec<u8>> {
    let fetched = log.fetch(0, 0, usize::MAX).unwrap();
    assert_eq!((fetched.start, fetched.next), (0, fetched.end));
    let offsets: Vec<u64> = fetched.messages.iter().map(|message| message.offset).collect();
    assert!(offsets.iter().copied().eq(0..fetched.end));
    fetched
        .messages
        .into_iter()
        .map(|message| message.bytes)
        .collect()
}

fn files(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).unwrap();
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

fn last_file(directory: &TempDir, of: &str) -> PathBuf {
    let files = files(&directory.path().join("0").join(of));
    let mut logs = files
        .into_iter()
        .filter(|path| path.extension().is_some_and(|ending| ending == "log"));
    logs.next_back().unwrap()
}

#[test]
fn several_processes_append_and_each_reads_all() {
    let directory = TempDir::new().unwrap();
    let (mut one, mut other) = (open(&directory), open(&directory));
    let mut expected = Vec::new();
    for at in 0..40u8 {
        let log = if at % 3 == 0 { &mut one } else { &mut other };
        let bytes = vec![at; 1 + usize::from(at)];
        assert_eq!(log.append(0, 1, &bytes).unwrap(), u64::from(at));
        expected.push(bytes);
        assert_eq!(records(&mut one), expected);
    }
    assert_eq!(records(&mut other), expected);
    assert!(
        files(&directory.path().join("0/records")).len() > 3,
        "several files"
    );
    // A few at a time, from any number.
    for from in 0..40 {
        let fetched = other.fetch(0, from, 1).unwrap();
        assert_eq!(fetched.messages[0].bytes, expected[from as usize]);
        assert_eq!((fetched.messages.len(), fetched.next), (1, from + 1));
    }
    assert!(matches!(
        one.append(7, 1, &[1]),
        Err(Error::NoPartition {
            partition: 7,
            partitions: 1
        })
    ));
}

/// A process that is killed while writing leaves any prefix of a frame, or invalid bytes.
#[test]
fn a_torn_write_is_moved_aside() {
    let directory = TempDir::new().unwrap();
    open(&directory).append(0, 1, b"first").unwrap();
    let path = last_file(&directory, "records");
    let before = std::fs::read(&path).unwrap();
    open(&directory).append(0, 1, b"second").unwrap();
    let whole = std::fs::read(&path).unwrap();
    let mut torn: Vec<Vec<u8>> = (before.len() + 1..whole.len())
        .map(|len| whole[..len].to_vec())
        .collect();
    torn.push([&before[..], &[0; 64]].concat());
    for bytes in torn {
        std::fs::write(&path, &bytes).unwrap();
        let mut log = open(&directory);
        let read = |log: &mut FileLog| -> Vec<Vec<u8>> {
            let messages = log.fetch(0, 0, usize::MAX).unwrap().messages;
            messages.into_iter().map(|message| message.bytes).collect()
        };
        assert_eq!(read(&mut log), [b"first"]);
        assert!(
            log.append(0, 1, b"third").unwrap() > 1,
            "the torn record's number is not used again"
        );
        assert_eq!(read(&mut log), [&b"first"[..], b"third"]);
        assert_eq!(read(&mut open(&directory)), [&b"first"[..], b"third"]);
        assert_eq!(log.torn_bytes().unwrap(), (bytes.len() - before.len()) as u64);
        let aside = path.with_extension(format!("torn-{}", before.len()));
        assert_eq!(std::fs::read(&aside).unwrap(), bytes[before.len()..]);
        std::fs::remove_file(aside).unwrap();
        std::fs::write(&path, &before).unwrap();
    }
}

/// A stopped process that holds the lock delays others, for a bounded time.
#[test]
fn a_lock_that_another_process_keeps_is_an_error() {
    let directory = TempDir::new().unwrap();
    let mut log = open(&directory);
    let path = directory.path().join("0/append.lock");
    let held = std::fs::File::create(&path).unwrap();
    held.lock().unwrap();
    log.wait_for_locks(std::time::Duration::from_millis(20));
    let error = log.append(0, 1, b"record").unwrap_err().to_string();
    assert!(
        error.contains("append.lock") && error.contains("another process"),
        "{error}"
    );
    drop(held);
    assert_eq!(log.append(0, 1, b"record").unwrap(), 0);
}

fn commit(number: u8) -> Commit {
    Commit {
        results: vec![vec![number; 9], vec![number]],
        quarantined: Vec::new(),
        snapshot: vec![number; 30],
        offset: u64::from(number),
    }
}

/// The process that [`acknowledged_records_survive_a_kill`] kills. In a run of all tests it does nothing.
#[test]
#[ignore = "a process of another test"]
fn child_appends() {
    let Some(directory) = std::env::var_os("WEIR_LOG_TEST_DIRECTORY") else {
        return;
    };
    let mut log = FileLog::with_files_of(Path::new(&directory), 1, clock, 5000).unwrap();
    for number in 0u64.. {
        let bytes = [number.to_le_bytes().to_vec(), vec![7; 300]].concat();
        let offset = log.append(0, 1, &bytes).unwrap();
        println!("\nappended {offset}");
    }
}

#[test]
fn acknowledged_records_survive_a_kill() {
    let directory = TempDir::new().unwrap();
    let mut acknowledged = 0;
    for round in 0..8 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["file::child_appends", "--ignored", "--exact", "--nocapture"])
            .env("WEIR_LOG_TEST_DIRECTORY", directory.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap())
            .lines()
            .map_while(Result::ok);
        let mut offsets = lines.filter_map(|line| line.strip_prefix("appended ")?.parse::<u64>().ok());
        let last = offsets.nth(round * 7).expect("it appends until it is killed");
        child.kill().unwrap();
        child.wait().unwrap();
        let last = offsets.last().unwrap_or(last);
        assert!(last >= acknowledged, "an offset was given twice");
        acknowledged = last + 1;
        let records = records(&mut FileLog::with_files_of(directory.path(), 1, clock, 5000).unwrap());
        assert!(records.len() as u64 >= acknowledged, "round {round}");
        assert!(
            records
                .iter()
                .all(|bytes| bytes.len() == 308 && bytes[8..] == [7; 300])
        );
    }
}

/// Results, snapshot and offset are stored together or not at all, wherever the write ended.
#[test]
fn a_commit_is_whole_or_not_at_all() {
    let directory = TempDir::new().unwrap();
    let mut log = open(&directory);
    assert_eq!(
        log.assignments().unwrap(),
        [Assignment::Assigned {
            partition: 0,
            generation: 0
        }]
    );
    assert_eq!(log.committed(0).unwrap(), None);
    log.commit(0, 0, &commit(1)).unwrap();
    let path = last_file(&directory, "commits");
    let before = std::fs::read(&path).unwrap().len();
    log.commit(0, 0, &commit(2)).unwrap();
    drop(log);
    let whole = std::fs::read(&path).unwrap();
    for len in before..whole.len() {
        OpenOptions::new()
            .write(true)
            .open(&path)
            .unwrap()
            .set_len(len as u64)
            .unwrap();
        let mut log = open(&directory);
        assert_eq!(log.committed(0).unwrap(), Some((vec![1; 30], 1)));
        let results: Vec<Vec<u8>> = log
            .results(0, 0, usize::MAX)
            .unwrap()
            .into_iter()
            .map(|(_, result)| result)
            .collect();
        assert_eq!(results, commit(1).results);
        log.assignments().unwrap();
        log.commit(0, 0, &commit(2)).unwrap();
        assert_eq!(log.committed(0).unwrap(), Some((vec![2; 30], 2)));
        let results = log.results(0, 0, usize::MAX).unwrap();
        assert_eq!(results.len(), 4);
        // Reading from the number after each result returns the rest.
        for (at, (number, _)) in results.iter().enumerate() {
            assert_eq!(log.results(0, number + 1, usize::MAX).unwrap(), results[at + 1..]);
        }
        assert_eq!(std::fs::read(&path).unwrap(), whole);
    }
}

/// Renews the checksums of the first frame of a file, which is alone in it.
fn seal(bytes: &mut [u8]) {
    let contents = crc32fast::hash(&bytes[20..]);
    bytes[12..16].copy_from_slice(&contents.to_le_bytes());
    // Number of the file, and position.
    let head = [&bytes[..16], &[0; 16]].concat();
    bytes[16..20].copy_from_slice(&crc32fast::hash(&head).to_le_bytes());
}

/// A log written by a later version is neither taken for an empty one nor skipped.
#[test]
fn another_form_is_an_error() {
    let directory = TempDir::new().unwrap();
    let mut log = open(&directory);
    log.assignments().unwrap();
    log.commit(0, 0, &commit(1)).unwrap();
    log.append(0, 1, b"record").unwrap();
    for of in ["commits", "records"] {
        let path = last_file(&directory, of);
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[20] = 2;
        seal(&mut bytes);
        std::fs::write(&path, &bytes).unwrap();
    }
    let check = |error: Error, what| assert!(error.to_string().contains(what), "{error}");
    check(log.committed(0).unwrap_err(), "commit 0");
    check(log.results(0, 0, 1).unwrap_err(), "commit 0");
    check(log.quarantined(0).unwrap_err(), "commit 0");
    check(log.fetch(0, 0, 1).unwrap_err(), "record 0");
}

/// A plan of a later program divides in a way that this one does not know. It stays as it is.
#[test]
fn a_plan_of_a_newer_program_is_an_error() {
    let directory = TempDir::new().unwrap();
    let mut log = open(&directory);
    log.append(0, 1, b"record").unwrap();
    let path = directory.path().join("plan");
    let known = std::fs::read(&path).unwrap();
    let text = "partitions 2\nhash xxh4\n";
    let newer = format!("checksum {:08x}\n{text}", crc32fast::hash(text.as_bytes()));
    std::fs::write(&path, &newer).unwrap();
    let failed = [
        FileLog::open(directory.path(), 2, clock).err(),
        log.plan().err(),
        log.append(0, 1, b"record").err(),
        log.assignments().err(),
        log.announce(1000, 3).err(),
    ];
    for error in failed {
        let error = error.expect("an error").to_string();
        assert!(error.contains("line 2: not understood; a newer weir"), "{error}");
    }
    assert_eq!(std::fs::read_to_string(&path).unwrap(), newer);
    std::fs::write(&path, known).unwrap();
    assert_eq!(log.append(0, 1, b"record").unwrap(), 1);
}

/// Each output has positions of its own, and results stay until all outputs have them.
#[test]
fn results_stay_until_every_output_has_them() {
    let directory = TempDir::new().unwrap();
    let mut log = open(&directory);
    log.assignments().unwrap();
    (1..20).for_each(|number| log.commit(0, 0, &commit(number)).unwrap());
    let outputs = ["fast", "slow"].map(str::to_owned);
    let all = log.results(0, 0, usize::MAX).unwrap();
    let last = all.last().unwrap().0 + 1;
    for (output, before) in [("fast", last), ("slow", all[3].0 + 1)] {
        let mut of_output = open(&directory).of_output(output);
        assert_eq!(of_output.results_sent(0).unwrap(), 0);
        assert!(
            of_output.record_results_sent(0, 0, before).is_err(),
            "it has no partition yet"
        );
        assert_eq!(of_output.assignments().unwrap().len(), 1);
        of_output.record_results_sent(0, 0, before).unwrap();
        assert_eq!(
            open(&directory).of_output(output).results_sent(0).unwrap(),
            before
        );
        log.prune(0, &outputs).unwrap();
        assert!(log.results_start(0).unwrap() <= before);
    }
    let left = open(&directory)
        .of_output("slow")
        .results(0, all[3].0 + 1, usize::MAX)
        .unwrap();
    assert_eq!(left, all[4..]);
    open(&directory).of_output("slow").assignments().unwrap();
    let mut slow = open(&directory).of_output("slow");
    slow.assignments().unwrap();
    slow.record_results_sent(0, 0, last).unwrap();
    log.prune(0, &outputs).unwrap();
    assert!(log.results_start(0).unwrap() > all[4].0);
}

/// An output that adds up continues behind its sums, also if a kill has left them ahead of the position.
#[test]
fn sums_of_an_output_are_kept_with_its_position() {
    let directory = TempDir::new().unwrap();
    let sums = |number: u8, offset| Commit {
        snapshot: vec![number; 3000],
        offset,
        ..Commit::default()
    };
    let mut scrape = open(&directory).of_output("scrape");
    assert!(
        scrape.commit(0, 0, &sums(1, 5)).is_err(),
        "it has no partition yet"
    );
    scrape.assignments().unwrap();
    assert_eq!(scrape.committed(0).unwrap(), None);
    for number in 1..4 {
        scrape.commit(0, 0, &sums(number, number.into())).unwrap();
        assert_eq!(scrape.results_sent(0).unwrap(), u64::from(number));
    }
    let position = directory.path().join("0/sent-scrape");
    let before = std::fs::read(&position).unwrap();
    scrape.commit(0, 0, &sums(4, 4)).unwrap();
    std::fs::write(&position, before).unwrap();
    drop(scrape);
    let mut next = open(&directory).of_output("scrape");
    assert_eq!(next.committed(0).unwrap(), Some((vec![4; 3000], 4)));
    assert_eq!(next.results_sent(0).unwrap(), 3);
    let mut other = open(&directory).of_output("other");
    assert_eq!(other.committed(0).unwrap(), None);
}

/// The next owner waits for the end of the previous one: two never commit.
#[test]
fn one_process_at_a_time_owns_the_log() {
    let directory = TempDir::new().unwrap();
    let (mut one, mut other) = (open(&directory), open(&directory));
    assert_eq!(one.assignments().unwrap().len(), 1);
    assert_eq!(one.assignments().unwrap(), []);
    assert_eq!(other.assignments().unwrap(), []);
    assert!(other.commit(0, 0, &commit(1)).is_err());
    drop(one);
    assert_eq!(other.assignments().unwrap().len(), 1);
    other.commit(0, 0, &commit(1)).unwrap();
}

#[test]
fn partitions_are_announced_to_all_agents() {
    let directory = TempDir::new().unwrap();
    let (mut one, mut other) = (open(&directory), open(&directory));
    other.assignments().unwrap();
    one.announce(START + 100, 3).unwrap();
    for log in [&mut one, &mut other] {
        let plan = log.plan().unwrap();
        assert_eq!((plan.at(START + 99), plan.at(START + 100)), (1, 3));
        log.append(2, 1, b"x").unwrap();
    }
    assert_eq!(other.assignments().unwrap().len(), 2);
    let text = "partitions 2\nfrom soon partitions 3\n";
    let checked = format!("checksum {:08x}\n{text}", crc32fast::hash(text.as_bytes()));
    std::fs::write(directory.path().join("plan"), checked).unwrap();
    let error = one.plan().unwrap_err().to_string();
    assert!(error.contains("line 2: no Unix seconds"), "{error}");
}

fn settings() -> Settings {
    Settings {
        bounds: Bounds::NONE,
        ..Settings::default()
    }
}

/// From end to end, with an owner that ends after every few turns: results are exact, and files without use are removed.
#[test]
fn a_fleet_on_files_is_exact_at_any_end_of_an_owner() {
    let directory = TempDir::new().unwrap();
    let mut agents: Vec<Writer> = (0..3).map(|number| Writer::new(number, 1)).collect();
    let mut log = open(&directory);
    let mut owner = Owner::new(open(&directory), settings());
    let mut output = open(&directory).of_output("file");
    output.assignments().unwrap();
    let mut read = 0;
    let mut found = Vec::new();
    for bucket in 0..40 {
        for agent in &mut agents {
            let bytes = agent.one(START + bucket * 10);
            let seconds = START + bucket * 10 + 12;
            NOW.fetch_max(seconds * 1000, Ordering::Relaxed);
            log.append(0, seconds * 1000, &bytes).unwrap();
        }
        if bucket % 3 == 0 {
            drop(owner);
            owner = Owner::new(open(&directory), settings());
        }
        owner.turn().unwrap();
        for (number, result) in owner.log().results(0, read, usize::MAX).unwrap() {
            read = number + 1;
            found.push(result);
        }
        output.record_results_sent(0, 0, read).unwrap();
        owner.log().prune(0, &["file".to_owned()]).unwrap();
    }
    // For an owner that was there, that would be a step of the clock.
    drop(owner);
    NOW.fetch_add(1_000_000, Ordering::Relaxed);
    let mut owner = Owner::new(open(&directory), settings());
    owner.turn().unwrap();
    found.extend(
        owner
            .log()
            .results(0, read, usize::MAX)
            .unwrap()
            .into_iter()
            .map(|(_, result)| result),
    );
    let results = decoded(&found);
    assert_eq!(results.len(), 40);
    let records = || results.iter().map(|(_, record)| record);
    assert_eq!((sum("count", records()), names(records()).len()), (120.0, 120));
    let merge = owner.merges().next().unwrap().1;
    assert_eq!((merge.ledger().difference(), merge.ledger().merged), (0, 240));
    let kept =
        files(&directory.path().join("0/records")).len() + files(&directory.path().join("0/commits")).len();
    assert!(kept < 30, "{kept} files");
}

/// The test moves its clock, so it needs a directory of its own.
#[test]
fn quarantined_records_are_kept() {
    let directory = TempDir::new().unwrap();
    let mut log = open(&directory);
    log.append(0, clock(), b"poison").unwrap();
    let mut owner = Owner::new(log, settings());
    owner.turn().unwrap();
    let kept = owner.log().quarantined(0).unwrap();
    assert_eq!(kept.len(), 1);
    assert_eq!((kept[0].offset, &kept[0].bytes[..]), (0, &b"poison"[..]));
    assert!(kept[0].reason.contains("version 112"), "{}", kept[0].reason);
}
