//! The configurations on the pages of outputs, run by the real agent.

mod support;

use std::path::Path;

use support::{Agent, configurations, names_every_setting, until};

fn json_lines(text: &str) -> Vec<serde_json::Value> {
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// What one message of each kind becomes, sorted: metric and type, or `event` or `check`.
fn shapes(lines: &[serde_json::Value]) -> Vec<String> {
    let mut shapes: Vec<String> = lines
        .iter()
        .map(|line| match line["metric"].as_str() {
            Some(metric) => format!("{metric} {}", line["type"].as_str().unwrap()),
            None => line.as_object().unwrap().keys().next().unwrap().clone(),
        })
        .collect();
    shapes.sort();
    shapes
}

const MESSAGES: &str = "page.views:1|c|#env:prod\nqueue:7|g\nusers:ada|s\nload.time:5|ms\npage.bytes:10|d\n_sc|page|0\n_e{1,1}:a|b\n";

const SHAPES: [&str; 11] = [
    "check",
    "event",
    "load.time.95percentile gauge",
    "load.time.avg gauge",
    "load.time.count rate",
    "load.time.max gauge",
    "load.time.median gauge",
    "page.bytes sketch",
    "page.views rate",
    "queue gauge",
    "users gauge",
];

#[test]
fn stdout() {
    let page = include_str!("../../../docs/outputs/stdout.md");
    let agent = Agent::start(configurations(page)[0], &[]);
    agent.send(MESSAGES);
    let (stdout, _) = agent.stop();
    assert_eq!(shapes(&json_lines(&stdout)), SHAPES);
}

#[test]
fn file() {
    let page = include_str!("../../../docs/outputs/file.md");
    let configurations = configurations(page);
    names_every_setting(configurations[1], "file");
    for text in configurations {
        let directory = tempfile::tempdir().unwrap();
        let agent = Agent::start(
            &text.replace("/var/log/weir", &directory.path().display().to_string()),
            &[],
        );
        agent.send(MESSAGES);
        agent.stop();
        let written = std::fs::read_to_string(directory.path().join("metrics.jsonl")).unwrap();
        assert_eq!(shapes(&json_lines(&written)), SHAPES);
    }
}

/// As `logrotate` does it: rename, then SIGHUP.
#[test]
fn a_file_is_opened_anew_at_sighup() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("metrics.jsonl");
    let agent = Agent::start(&format!("outputs: {{file: {{path: {}}}}}\n", path.display()), &[]);
    agent.send("_sc|first|0\n");
    let has = |path: &Path, text: &str| std::fs::read_to_string(path).is_ok_and(|found| found.contains(text));
    until("the first check", || has(&path, "first"));
    let moved = directory.path().join("metrics.jsonl.1");
    std::fs::rename(&path, &moved).unwrap();
    agent.signal("-HUP");
    until("the new file", || path.exists());
    agent.send("_sc|second|0\n");
    agent.stop();
    assert!(has(&moved, "first") && !has(&moved, "second"));
    assert!(has(&path, "second") && !has(&path, "first"));
}
