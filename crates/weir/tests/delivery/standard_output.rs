//! A reader of standard output that misbehaves is its own problem.

use std::path::Path;
use std::process::Stdio;

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
    for i in 0..CONTEXTS {
        agent.send(format!("hits:{i}|c|#i:{i},a:{padding},b:{padding},c:{padding}"));
    }
    until("the file has every context", || {
        let text = std::fs::read_to_string(&file).map_err(|error| error.to_string())?;
        let sum: f64 = text
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok())
            .map(|line| line["value"].as_f64().unwrap())
            .sum();
        let expected = (CONTEXTS * (CONTEXTS - 1) / 2) as f64;
        (sum == expected)
            .then_some(())
            .ok_or(format!("{sum} of {expected}"))
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
fn a_closed_reader_is_reported() {
    told_of(Reader::Gone);
}

#[test]
fn nothing_is_delivered_to_a_closed_standard_output() {
    told_of(Reader::NotThere);
}

fn told_of(reader: Reader) {
    let directory = tempfile::tempdir().unwrap();
    let agent = start(directory.path(), reader);
    let stdout = until("refused and counted", || {
        let stdout = agent.output("stdout");
        let rejected = stdout["points"]["dropped"]["rejected"].as_u64().unwrap_or(0);
        (rejected >= CONTEXTS as u64)
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
