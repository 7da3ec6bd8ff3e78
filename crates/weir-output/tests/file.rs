//! The file output on a real file system: rotation, compression, what is kept, other people's rotation, a full disk.

use crate::support;

use std::collections::BTreeSet;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use support::*;
use weir_aggregate::Expansion;
use weir_output::StartError;
use weir_output::delivery::{Clock, Delivery, OutputEnvironment, Reason};
use weir_output::file::{Compression, FileSettings, Fsync};
use weir_output::settings::Start;

fn settings(path: &Path) -> FileSettings {
    FileSettings {
        path: path.display().to_string(),
        rotate_bytes: 0,
        rotate_age: Duration::ZERO,
        compression: Compression::None,
        kept_files_max: 0,
        kept_bytes_max: 0,
        fsync: Fsync::Rotation,
    }
}

fn start(settings: &FileSettings, around: &OutputEnvironment) -> Result<Delivery, StartError> {
    settings.start("file", &Arc::new(Expansion::default()), around)
}

/// Submits `count` gauges named after the round, and waits until they are delivered.
async fn write(output: &Delivery, round: i64, count: usize) {
    let messages: String = (0..count)
        .map(|i| format!("m{i}:{round}|g|#some:tag,i:{i}\n"))
        .collect();
    let before = output.status().received.points;
    for batch in batches_at(BUCKET + round * 10, &messages) {
        output.submit(&batch);
    }
    wait(output, "written", |status| {
        status.endpoints[0].delivered.points == before + count as u64
    })
    .await;
}

/// Every file of the output, rotated ones first and in order.
fn files(path: &Path) -> Vec<PathBuf> {
    let name = path.file_name().unwrap().to_str().unwrap();
    let entries = std::fs::read_dir(path.parent().unwrap()).unwrap();
    let mut found: Vec<PathBuf> = entries
        .map(|entry| entry.unwrap().path())
        .filter(|other| {
            let other = other.file_name().unwrap().to_str().unwrap();
            other.starts_with(&format!("{name}.")) && !other.ends_with(".tmp")
        })
        .collect();
    found.sort();
    found.extend(path.exists().then(|| path.to_owned()));
    found
}

/// The lines of one file, whatever it is compressed with, with decoders of their own.
fn lines(path: &Path) -> Vec<serde_json::Value> {
    let bytes = std::fs::read(path).unwrap();
    let mut text = String::new();
    match path.extension().unwrap().to_str().unwrap() {
        "gz" => drop(
            flate2::read::GzDecoder::new(&bytes[..])
                .read_to_string(&mut text)
                .unwrap(),
        ),
        "zst" => text = String::from_utf8(zstd::decode_all(&bytes[..]).unwrap()).unwrap(),
        _ => text = String::from_utf8(bytes).unwrap(),
    }
    assert!(
        text.is_empty() || text.ends_with('\n'),
        "{}: whole lines",
        path.display()
    );
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

fn values(lines: &[serde_json::Value]) -> BTreeSet<(i64, String)> {
    let key = |line: &serde_json::Value| {
        (
            line["value"].as_i64().unwrap(),
            line["metric"].as_str().unwrap().into(),
        )
    };
    let set: BTreeSet<_> = lines.iter().map(key).collect();
    assert_eq!(set.len(), lines.len(), "no line comes twice");
    set
}

/// Polls, because nothing signals that a file has been compressed.
async fn until(what: &str, mut done: impl FnMut() -> bool) {
    let polled = async {
        while !done() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    assert!(tokio::time::timeout(DEADLINE, polled).await.is_ok(), "{what}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_line_is_in_exactly_one_file_and_no_file_is_over_its_bound() {
    for (compression, extension) in [
        (Compression::None, ""),
        (Compression::Gzip, "gz"),
        (Compression::Zstd, "zst"),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("metrics.jsonl");
        let settings = FileSettings {
            rotate_bytes: 16 << 10,
            compression,
            ..settings(&path)
        };
        let (clock, _driver) = Clock::driven(BUCKET);
        let output = start(&settings, &environment(clock)).unwrap();
        for round in 0..20 {
            write(&output, round, 40).await;
        }
        // 20 rounds of about 5 kB.
        let rotated = |files: &[PathBuf]| {
            files.len() >= 5
                && files.iter().all(|file| {
                    *file == path || file.extension().unwrap().to_str().unwrap().contains(extension)
                })
        };
        until("all are compressed", || rotated(&files(&path))).await;
        output.shutdown(DEADLINE).await;
        assert!(output.status().balances());
        let mut all = Vec::new();
        for file in files(&path) {
            let of_file = lines(&file);
            let plain: usize = of_file.iter().map(|line| line.to_string().len() + 1).sum();
            assert!(plain <= 16 << 10, "{}: {plain}", file.display());
            all.extend(of_file);
        }
        let rounds: Vec<i64> = all.iter().map(|line| line["value"].as_i64().unwrap()).collect();
        assert!(
            rounds.is_sorted(),
            "names are in the order of writing: {rounds:?}"
        );
        assert_eq!(values(&all).len(), 800, "{compression:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kept_files_are_bounded_by_number_and_by_bytes() {
    for (files_max, bytes_max) in [(3, 0), (0, 20 << 10)] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("metrics.jsonl");
        let settings = FileSettings {
            rotate_bytes: 8 << 10,
            kept_files_max: files_max,
            kept_bytes_max: bytes_max,
            ..settings(&path)
        };
        let (clock, _driver) = Clock::driven(BUCKET);
        let output = start(&settings, &environment(clock)).unwrap();
        for round in 0..30 {
            write(&output, round, 40).await;
            let kept = files(&path);
            let rotated = &kept[..kept.len() - 1];
            let bytes: u64 = rotated.iter().map(|file| file.metadata().unwrap().len()).sum();
            assert!(files_max == 0 || rotated.len() <= files_max, "{rotated:?}");
            assert!(bytes_max == 0 || bytes <= bytes_max, "{bytes}");
        }
        assert!(files(&path).len() >= 3);
        output.shutdown(DEADLINE).await;
        let newest = lines(&path);
        assert_eq!(newest.last().unwrap()["value"], 29);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_is_old_and_not_empty_is_rotated_without_a_write() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("metrics.jsonl");
    let settings = FileSettings {
        rotate_age: Duration::from_secs(3600),
        compression: Compression::Zstd,
        ..settings(&path)
    };
    let (clock, driver) = Clock::driven(BUCKET);
    let output = start(&settings, &environment(clock)).unwrap();
    write(&output, 0, 5).await;
    driver.advance(Duration::from_secs(3599));
    write(&output, 1, 5).await;
    assert_eq!(files(&path).len(), 1);
    driver.advance(Duration::from_secs(3600));
    until("rotated and compressed", || {
        files(&path).len() == 2 && files(&path)[0].extension().unwrap() == "zst"
    })
    .await;
    assert_eq!(lines(&files(&path)[0]).len(), 10);
    assert_eq!(path.metadata().unwrap().len(), 0);
    // An empty file does not become many. The lines may be in one that is rotated already: it was old before they came.
    driver.advance(Duration::from_secs(7200));
    write(&output, 2, 5).await;
    output.shutdown(DEADLINE).await;
    let rotated = files(&path).into_iter().filter(|file| *file != path);
    let sizes: Vec<usize> = rotated.map(|file| lines(&file).len()).collect();
    let here = lines(&path).len();
    assert!(
        (&sizes[..], here) == (&[10], 5) || (&sizes[..], here) == (&[10, 5], 0),
        "{sizes:?} and {here}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_programs_may_rotate_delete_and_truncate_the_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("metrics.jsonl");
    let output = start(&settings(&path), &environment(Clock::system())).unwrap();
    write(&output, 0, 3).await;
    let moved = directory.path().join("moved");
    std::fs::rename(&path, &moved).unwrap();
    output.reopen();
    until("the file is there again, without a write", || path.exists()).await;
    write(&output, 1, 3).await;
    let renamed = directory.path().join("old.jsonl");
    std::fs::rename(&moved, &renamed).unwrap();
    assert_eq!((lines(&renamed).len(), lines(&path).len()), (3, 3));
    // Without a word: the next write goes where it should.
    std::fs::remove_file(&path).unwrap();
    write(&output, 2, 3).await;
    assert_eq!(lines(&path).len(), 3);
    std::fs::File::options()
        .write(true)
        .open(&path)
        .unwrap()
        .set_len(0)
        .unwrap();
    write(&output, 3, 3).await;
    assert_eq!(lines(&path).len(), 3);
    output.shutdown(DEADLINE).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_a_line_of_an_earlier_process_is_ended_and_its_files_are_compressed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("metrics.jsonl");
    std::fs::write(&path, "{\"ts\":1,\"metr").unwrap();
    let rotated = directory.path().join("metrics.jsonl.20231114T221320Z-0000");
    std::fs::write(&rotated, "{}\n").unwrap();
    let unfinished = directory
        .path()
        .join("metrics.jsonl.20231114T221319Z-0000.gz.tmp");
    std::fs::write(&unfinished, "half").unwrap();
    let settings = FileSettings {
        compression: Compression::Gzip,
        ..settings(&path)
    };
    let output = start(&settings, &environment(Clock::system())).unwrap();
    write(&output, 0, 1).await;
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(
        text.starts_with("{\"ts\":1,\"metr\n{\"ts\":1700000000,") && text.ends_with("}\n"),
        "{text}"
    );
    let complete = directory.path().join("metrics.jsonl.20231114T221320Z-0000.gz");
    until("compressed", || {
        complete.exists() && !rotated.exists() && !unfinished.exists()
    })
    .await;
    output.shutdown(DEADLINE).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn paths_that_cannot_be_written_are_refused_with_a_reason() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("metrics.jsonl");
    let around = environment(Clock::system());
    let output = start(&settings(&path), &around).unwrap();
    let refused = |path: &Path| start(&settings(path), &around).err().unwrap().to_string();
    let message = refused(&path);
    assert!(
        message.contains("another output or process") && message.contains("metrics.jsonl"),
        "{message}"
    );
    let message = refused(&directory.path().join("no/such/file"));
    assert!(
        message.contains("No such file") && message.contains("no/such/file"),
        "{message}"
    );
    let message = refused(Path::new("/dev/null"));
    assert!(message.contains("not a regular file"), "{message}");
    output.shutdown(DEADLINE).await;
}

/// Runs in a mount namespace of its own, in which the directory is a file system of 256 KiB.
#[test]
#[ignore = "a process of another test"]
fn child() {
    let Ok(directory) = std::env::var("WEIR_TEST_FILE_FULL_CHILD") else {
        return;
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let ballast = Path::new(&directory).join("ballast");
        std::fs::write(&ballast, vec![0; 128 << 10]).unwrap();
        let path = Path::new(&directory).join("metrics.jsonl");
        let mut around = environment(Clock::system());
        around.memory_bytes_max = 64 << 10;
        let output = start(&settings(&path), &around).unwrap();
        let submit = |round: i64| {
            let messages: String = (0..100).map(|i| format!("m{i}:{round}|g\n")).collect();
            batches_at(BUCKET + round * 10, &messages)
                .iter()
                .for_each(|batch| output.submit(batch));
        };
        let mut rounds = 0;
        while output.status().healthy {
            submit(rounds);
            rounds += 1;
            wait(&output, "settled", |status| {
                !status.healthy || status.endpoints[0].pending.total().is_zero()
            })
            .await;
        }
        let error = output.status().endpoints[0].last_error.clone().unwrap().message;
        assert!(
            error.contains("metrics.jsonl cannot be written") && error.contains("No space left"),
            "{error}"
        );
        // Degraded: what memory cannot hold goes, the oldest first, and is counted.
        for _ in 0..20 {
            submit(rounds);
            rounds += 1;
        }
        let status = wait(&output, "encoded", |status| {
            status.received.points == rounds as u64 * 100 && status.endpoints[0].pending.inbox.is_zero()
        })
        .await;
        assert!(
            status.balances() && status.endpoints[0].dropped[&Reason::QueueFull].points > 0,
            "{status:#?}"
        );
        // Some of its part is left, and not enough for the next payload.
        assert!(output.queued_bytes() < output.queue_limit());
        assert_eq!(output.queue_fullness(), 1.0);
        std::fs::remove_file(&ballast).unwrap();
        let status = wait(&output, "there is room again", |status| {
            status.healthy && status.endpoints[0].pending.total().is_zero()
        })
        .await;
        assert!(status.balances(), "{status:#?}");
        assert_eq!(output.queue_fullness(), 0.0);
        let endpoint = &status.endpoints[0];
        let written = values(&lines(&path));
        assert_eq!(written.len() as u64, endpoint.delivered.points);
        let dropped = endpoint.dropped[&Reason::QueueFull].points;
        assert_eq!(endpoint.delivered.points + dropped, rounds as u64 * 100);
        assert!(
            written.iter().any(|(round, _)| *round == rounds - 1),
            "the newest was kept"
        );
        output.shutdown(DEADLINE).await;
    });
}

#[test]
fn a_full_disk_degrades_and_heals() {
    child_on_a_small_disk("file::child", "WEIR_TEST_FILE_FULL_CHILD");
}
