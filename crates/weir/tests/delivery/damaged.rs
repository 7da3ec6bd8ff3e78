//! A disk queue with a flipped bit in the head of a record: that record is lost and counted, the others arrive.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::delivery::intake::{Answer, Intake};
use crate::support::{Agent, PointBooks, said, until};

/// Gauges, one payload each.
const SERIES: u64 = 24;
const SEGMENT_HEAD: usize = 16;
const RECORD_HEAD: usize = 36;

fn agent(directory: &Path, intake: &Intake) -> Agent {
    let config = directory.join("weir.yaml");
    let text = format!(
        "bucket_width: 1s\noutputs:\n  prometheus: {{enabled: false}}\n  datadog:\n    api_key: 0123456789abcdef0123456789abcdef\n    \
         url: http://{}\n    heartbeat: false\n    host_metadata: false\n    points_per_payload_max: 1\n    delivery: {{disk_path: {}, backoff_max: 80ms}}\n",
        intake.address,
        directory.join("queue").display()
    );
    std::fs::write(&config, text).unwrap();
    Agent::start(&["--config", config.to_str().unwrap()], &[])
}

fn segment(directory: &Path) -> PathBuf {
    let entries = |path: &Path| -> Vec<PathBuf> {
        let entries = std::fs::read_dir(path).unwrap();
        entries.map(|entry| entry.unwrap().path()).collect()
    };
    let queues = entries(&directory.join("queue"));
    let mut files = entries(&queues[0]);
    files.retain(|file| file.extension().is_some_and(|extension| extension == "q"));
    assert_eq!((queues.len(), files.len()), (1, 1), "{files:?}");
    files.remove(0)
}

#[test]
fn one_record_is_lost_and_named() {
    let directory = tempfile::tempdir().unwrap();
    let is_away = Arc::new(AtomicBool::new(true));
    let script = is_away.clone();
    let intake = Intake::start(true, move |_| match script.load(Ordering::SeqCst) {
        true => Answer::Fail,
        false => Answer::Accept,
    });
    let first = agent(directory.path(), &intake);
    let lines: String = (0..SERIES).map(|i| format!("level:{i}|g|#i:{i}\n")).collect();
    first.send(lines);
    until("all is queued", || {
        let books = first.points("datadog");
        let is_there = books.produced == SERIES && books.to_write == 0;
        is_there.then_some(()).ok_or(format!("{books:?}"))
    });
    // Payloads on disk are not lost.
    first.finish();

    // One bit of the length of the twelfth.
    let path = segment(directory.path());
    let mut bytes = std::fs::read(&path).unwrap();
    let mut at = SEGMENT_HEAD;
    let length = |bytes: &[u8], at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
    for _ in 0..11 {
        at += RECORD_HEAD + length(&bytes, at);
    }
    let damaged = RECORD_HEAD + length(&bytes, at);
    bytes[at] ^= 1;
    std::fs::write(&path, bytes).unwrap();

    is_away.store(false, Ordering::SeqCst);
    intake.series.lock().unwrap().clear();
    let mut second = agent(directory.path(), &intake);
    let warning = second.wait_for("a disk queue's file is damaged");
    assert!(warning.contains(path.to_str().unwrap()), "{warning}");
    let books: PointBooks = until("the others are delivered", || {
        let books = second.points("datadog");
        if books.delivered == SERIES - 1 {
            return Ok(books);
        }
        Err(format!("{books:?}"))
    });
    assert_eq!((books.produced, books.pending, books.dropped), (SERIES - 1, 0, 0));
    assert_eq!(intake.series.lock().unwrap().len() as u64, SERIES - 1);
    assert_eq!(second.output("datadog")["disk_damaged_bytes"], damaged);
    let page = said(&["status", "--admin", &second.admin]);
    let line = format!(
        "datadog: Bytes of the disk queue that were damaged at the start and are lost: {damaged} bytes\n"
    );
    assert!(page.contains(&line), "{page}");
    second.finish();
}
