//! A reader of standard output that misbehaves is its own problem.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::{Agent, Starter, until};

const CONTEXTS: usize = 2000;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Reader {
    StandsStill,
    Gone,
    /// Standard output is closed before the agent starts.
    NotThere,
}

/// Starts an agent whose standard output is a pipe, sends it more than pipe and queue hold, and waits until all of it is in a file.
fn start(directory: &Path, reader: Reader) -> Agent {
    let file = directory.join("metrics.jsonl");
    // Idle counters send zeros, a megabyte per bucket, until the queue of the stuck reader is full; the others need none.
    let (grace, expiry) = match reader {
        Reader::StandsStill => ("500ms", "1h"),
        _ => ("60s", "0"),
    };
    let text = format!(
        "bucket_width: 1s\nmemory: 16MiB\ngrace_period: {grace}\ncounter_expiry: {expiry}\noutputs:\n  prometheus: {{enabled: false}}\n  stdout: {{enabled: true}}\n  file: {{path: {}}}\n",
        file.display()
    );
    let starter = match reader {
        Reader::NotThere => Starter::by_shell(r#"exec "$0" "$@" >&-"#),
        _ => Starter::new(),
    };
    let mut agent = starter.config(&text).socket().stdout(Stdio::piped()).start();
    if reader == Reader::Gone {
        drop(agent.child.0.stdout.take());
    }
    let padding = "x".repeat(150);
    let send = |i: usize| agent.send(format!("hits:{i}|c|#i:{i},a:{padding},b:{padding},c:{padding}"));
    (0..CONTEXTS).for_each(send);
    let mut sent = Instant::now();
    until("the file has every context", || {
        let text = std::fs::read_to_string(&file).map_err(|error| error.to_string())?;
        let has = |line: &str| {
            let point = serde_json::from_str::<Value>(line).ok()?;
            let mut tags = point["tags"].as_array()?.iter().filter_map(Value::as_str);
            tags.find_map(|tag| tag.strip_prefix("i:")?.parse::<usize>().ok())
        };
        let there: BTreeSet<usize> = text.lines().filter_map(has).collect();
        // An output that gets no core for a second drops a batch, and counts it.
        if sent.elapsed() > Duration::from_secs(5) {
            (0..CONTEXTS).filter(|i| !there.contains(i)).for_each(send);
            sent = Instant::now();
        }
        let count = there.len();
        (count == CONTEXTS)
            .then_some(())
            .ok_or(format!("{count} of {CONTEXTS}"))
    });
    agent
}

#[test]
fn a_stuck_reader_delays_nothing_else() {
    let directory = tempfile::tempdir().unwrap();
    let agent = start(directory.path(), Reader::StandsStill);
    // The oldest lines are dropped.
    until("the queue is full", || {
        let stdout = agent.output("stdout");
        let dropped = stdout["points"]["dropped"]["queue_full"].as_u64().unwrap_or(0);
        let waits = stdout["points"]["pending"].as_u64().unwrap();
        (dropped > 0 && waits > 0).then_some(()).ok_or(stdout.to_string())
    });
    assert_eq!(agent.output("file")["healthy"], true);
    let file = directory.path().join("metrics.jsonl");
    until("the file gets more", || {
        agent.send("after.it.is.full:1|c");
        std::fs::read_to_string(&file).is_ok_and(|text| text.contains("after.it.is.full"))
    });
    // And it does not delay the end. The books balance, and the exit code reports the loss.
    let log = agent.finish_with_a_loss();
    assert!(log.contains("points of stdout"), "{log}");
}

#[test]
fn a_reader_that_has_gone_or_was_never_there_is_reported_and_gets_nothing() {
    for reader in [Reader::Gone, Reader::NotThere] {
        told_of(reader);
    }
}

fn told_of(reader: Reader) {
    let directory = tempfile::tempdir().unwrap();
    let agent = start(directory.path(), reader);
    let stdout = until("refused and counted", || {
        let stdout = agent.output("stdout");
        let dropped = |reason: &str| stdout["points"]["dropped"][reason].as_u64().unwrap_or(0);
        // As in `start`: a batch may find no room.
        let (rejected, no_room) = (dropped("rejected"), dropped("inbox_full"));
        (rejected > 0 && rejected + no_room >= CONTEXTS as u64)
            .then_some(stdout.clone())
            .ok_or(stdout.to_string())
    });
    assert_eq!(
        (&stdout["healthy"], &stdout["points"]["delivered"]),
        (&false.into(), &0.into())
    );
    let error = stdout["last_error"].as_str().unwrap();
    assert!(error.contains("standard output cannot be written"), "{error}");
    agent.finish();
}
