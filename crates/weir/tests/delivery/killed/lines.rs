//! File and standard output: delivered lines are there once, and a line that the kill cut is not taken for a whole one.

use std::collections::BTreeSet;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::mpsc;

use serde_json::Value;

use super::Kills;
use crate::support::{Agent, PATIENCE, Starter, until};

const CONTEXTS: u64 = 3000;

/// Sends a gauge for each context, and waits until the output has got them all.
fn send(agent: &Agent, output: &str, round: u64) {
    let padding = "x".repeat(100);
    for first in (0..CONTEXTS).step_by(50) {
        let message = |i: u64| format!("level:{}|g|#i:{i},padding:{padding}\n", round * CONTEXTS + i);
        agent.send((first..first + 50).map(message).collect::<String>());
    }
    until("flushed", || match agent.points(output) {
        books if books.produced == CONTEXTS => Ok(()),
        books => Err(format!("{books:?}")),
    });
}

/// The value of a line of [`send`], if it is one: a cut object is no JSON.
fn value(line: &str) -> Option<u64> {
    let line: Value = serde_json::from_str(line).ok()?;
    let value = line["value"].as_u64().unwrap();
    assert_eq!(line["metric"], "level");
    assert_eq!(line["tags"][0], format!("i:{}", value % CONTEXTS));
    Some(value)
}

/// The output's file and those it was rotated to, those that are complete, in the order of writing.
fn files(path: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(path.parent().unwrap()).unwrap();
    let mut found: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    found.retain(|file| file != path);
    found.sort();
    found.push(path.to_owned());
    found
}

fn text(file: &Path) -> String {
    let bytes = std::fs::read(file).unwrap();
    let mut text = String::new();
    if file.extension().unwrap() != "gz" {
        return String::from_utf8(bytes).unwrap();
    }
    flate2::read::GzDecoder::new(&bytes[..])
        .read_to_string(&mut text)
        .unwrap();
    text
}

/// At most one line per kill is cut.
pub(super) fn killed_with_a_file(mut kills: Kills) {
    let directory = tempfile::tempdir().unwrap();
    let logs = tempfile::tempdir().unwrap();
    let path = logs.path().join("metrics.jsonl");
    let config = directory.path().join("weir.yaml");
    // Small files, so that rotation and compression are killed too.
    let text_of_config = format!(
        "bucket_width: 1s\noutputs:\n  prometheus: {{enabled: false}}\n  file: {{path: {}, rotate_bytes: 64KiB, kept_files_max: 0, kept_bytes_max: 0}}\n",
        path.display()
    );
    std::fs::write(&config, text_of_config).unwrap();
    let start = || Agent::start(&["--config", config.to_str().unwrap()], &[]);
    let mut delivered = Vec::new();
    for round in 0..kills.rounds {
        let agent = start();
        assert_eq!(agent.points("file").produced, 0, "books begin at zero");
        send(&agent, "file", round);
        delivered.push(agent.points("file").delivered);
        kills.kill(agent);
    }
    let agent = start();
    // Every file that was due is compressed, and every incomplete one was removed.
    until("compressed", || {
        let left: Vec<PathBuf> = files(&path)
            .into_iter()
            .filter(|file| *file != path && file.extension().unwrap() != "gz")
            .collect();
        left.is_empty().then_some(()).ok_or(format!("{left:?}"))
    });
    agent.finish();

    let (mut values, mut cut) = (Vec::new(), Vec::new());
    for file in files(&path) {
        let text = text(&file);
        assert!(text.is_empty() || text.ends_with('\n'), "{}", file.display());
        for line in text.lines() {
            match value(line) {
                Some(value) => values.push(value),
                None => cut.push(line.to_owned()),
            }
        }
    }
    assert!(
        values.is_sorted_by(|a, b| a / CONTEXTS <= b / CONTEXTS),
        "in order"
    );
    let distinct: BTreeSet<u64> = values.iter().copied().collect();
    assert_eq!(distinct.len(), values.len(), "no line comes twice");
    for (round, delivered) in delivered.iter().enumerate() {
        let round = round as u64;
        let there = distinct.range(round * CONTEXTS..(round + 1) * CONTEXTS).count() as u64;
        assert!(there >= *delivered, "{there} of {delivered} in round {round}");
    }
    assert!(cut.len() as u64 <= kills.rounds, "{cut:?}");
    println!(
        "{} lines of {}, {} delivered for certain, cut: {cut:?}",
        values.len(),
        kills.rounds * CONTEXTS,
        delivered.iter().sum::<u64>()
    );
}

pub(super) fn killed_with_standard_output(mut kills: Kills) {
    let mut cut = 0;
    for round in 0..kills.rounds {
        let starter = Starter::from(&["--output", "stdout", "--bucket-width", "1s"]);
        let mut agent = starter.stdout(Stdio::piped()).start();
        assert_eq!(agent.points("stdout").produced, 0, "books begin at zero");
        let mut stdout = agent.child.0.stdout.take().unwrap();
        // It stops within the bucket, so that the kill finds a write that waits for room.
        let bytes_before = kills
            .random
            .as_mut()
            .map_or(1000, |random| random.below(CONTEXTS * 100)) as usize;
        let (stops, has_stopped) = mpsc::channel();
        let (killed, is_killed) = mpsc::channel();
        let reader = std::thread::spawn(move || {
            let mut text = vec![0; bytes_before];
            stdout.read_exact(&mut text).unwrap();
            stops.send(()).unwrap();
            is_killed.recv().unwrap();
            stdout.read_to_end(&mut text).unwrap();
            String::from_utf8(text).unwrap()
        });
        send(&agent, "stdout", round);
        has_stopped.recv_timeout(PATIENCE).unwrap();
        let delivered = agent.points("stdout").delivered;
        kills.kill(agent);
        killed.send(()).unwrap();
        let text = reader.join().unwrap();
        let (whole, rest) = text.split_at(text.rfind('\n').map_or(0, |at| at + 1));
        let values: Vec<u64> = whole.lines().map(|line| value(line).expect(line)).collect();
        let distinct: BTreeSet<u64> = values.iter().copied().collect();
        assert_eq!(distinct.len(), values.len(), "no line comes twice");
        assert!(
            values.len() as u64 >= delivered,
            "{} of {delivered}",
            values.len()
        );
        if !rest.is_empty() {
            cut += 1;
            // All of an object but its line feed may be there; less than that is no JSON.
            assert!(rest.ends_with("}") || value(rest).is_none(), "{rest}");
        }
    }
    println!("{cut} of {} ended within a line", kills.rounds);
    assert!(!kills.are_random() || cut > 0, "no kill fell into a line");
}
