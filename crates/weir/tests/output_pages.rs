//! The configurations on the pages of outputs, run by the real agent.

use crate::support;
use std::net::UdpSocket;
use std::os::unix::net::UnixDatagram;
use std::path::Path;

use support::{Agent, Starter, configurations, names_every_setting, until};

fn json_lines(text: &str) -> Vec<serde_json::Value> {
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// Results of one message of each kind, sorted: metric and type, or `event` or `check`.
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

/// That ends with the agent.
const ONE_BUCKET: [&str; 2] = ["--bucket-width", "LONG"];

#[test]
fn stdout() {
    let page = include_str!("../../../docs/outputs/stdout.md");
    let configurations = configurations(page);
    assert_eq!(configurations.len(), 2);
    let mut full: Vec<&str> = SHAPES.to_vec();
    full.extend(["load.time.99percentile gauge", "load.time.sum gauge"]);
    full.sort();
    for (text, expected) in configurations.iter().zip([SHAPES.to_vec(), full]) {
        let agent = Starter::from(text).arguments(ONE_BUCKET).start();
        agent.send(MESSAGES);
        let (stdout, _) = agent.stop();
        assert_eq!(shapes(&json_lines(&stdout)), expected);
    }
}

#[test]
fn file() {
    let page = include_str!("../../../docs/outputs/file.md");
    let configurations = configurations(page);
    names_every_setting(configurations[1], "file");
    for text in configurations {
        let directory = tempfile::tempdir().unwrap();
        let text = text.replace("/var/log/weir", &directory.path().display().to_string());
        let agent = Starter::from(&text).arguments(ONE_BUCKET).start();
        agent.send(MESSAGES);
        agent.stop();
        let written = std::fs::read_to_string(directory.path().join("metrics.jsonl")).unwrap();
        assert_eq!(shapes(&json_lines(&written)), SHAPES);
    }
}

/// As `logrotate` does it: rename, then SIGHUP.
#[test]
fn a_file_is_opened_again_at_sighup() {
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

/// Lines of packets that arrive until `count` have.
fn received(mut packet: impl FnMut(&mut [u8]) -> usize, count: usize) -> Vec<String> {
    let mut lines = Vec::new();
    while lines.len() < count {
        let mut buffer = [0; 65536];
        let length = packet(&mut buffer);
        lines.extend(
            String::from_utf8_lossy(&buffer[..length])
                .lines()
                .map(str::to_owned),
        );
    }
    lines
}

#[test]
fn relay_beside_aggregation() {
    let page = include_str!("../../../docs/outputs/relay.md");
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let text = configurations(page)[0].replace("127.0.0.1:9125", &socket.local_addr().unwrap().to_string());
    let agent = Starter::from(&format!("{text}  stdout:\n    enabled: true\n"))
        .arguments(ONE_BUCKET)
        .start();
    agent.send(MESSAGES);
    let lines = received(|buffer| socket.recv(buffer).unwrap(), MESSAGES.lines().count());
    assert_eq!(lines, MESSAGES.lines().collect::<Vec<_>>());
    let (stdout, _) = agent.stop();
    assert_eq!(shapes(&json_lines(&stdout)), SHAPES);
}

#[test]
fn relay_alone_to_two_targets() {
    let page = include_str!("../../../docs/outputs/relay.md");
    let text = configurations(page)[1];
    names_every_setting(text, "relay");
    let directory = tempfile::tempdir().unwrap();
    let first = UdpSocket::bind("127.0.0.1:0").unwrap();
    let second = UnixDatagram::bind(directory.path().join("dsd.socket")).unwrap();
    let text = text
        .replace("127.0.0.1:9125", &first.local_addr().unwrap().to_string())
        .replace("/run/statsd", &directory.path().display().to_string());
    let agent = Starter::from(&format!("{text}  stdout:\n    enabled: true\n"))
        .arguments(ONE_BUCKET)
        .start();
    let sent: Vec<String> = (0..100).map(|i| format!("page.{i}:1|c|#i:{i}")).collect();
    agent.send(&(sent.join("\n") + "\nother:1|c\nbroken\n"));
    let (stdout, log) = agent.stop();
    assert_eq!(stdout, "", "nothing is aggregated");
    assert!(log.contains("nothing is aggregated"), "{log}");
    first.set_nonblocking(true).unwrap();
    second.set_nonblocking(true).unwrap();
    let drain = |packet: &dyn Fn(&mut [u8]) -> std::io::Result<usize>| {
        let mut lines = Vec::new();
        let mut buffer = [0; 65536];
        while let Ok(length) = packet(&mut buffer) {
            lines.extend(
                String::from_utf8_lossy(&buffer[..length])
                    .lines()
                    .map(str::to_owned),
            );
        }
        lines
    };
    let (first, second) = (
        drain(&|buffer| first.recv(buffer)),
        drain(&|buffer| second.recv(buffer)),
    );
    assert!(
        first.len() > 10 && second.len() > 10,
        "{} and {}",
        first.len(),
        second.len()
    );
    let mut all = [first, second].concat();
    let mut sent = sent;
    all.sort();
    sent.sort();
    assert_eq!(all, sent);
}

/// As the Datadog Agent does it with these variables: what arrives is passed on, and aggregated all the same.
#[test]
fn forwarding_as_the_datadog_agent_does_it() {
    let other = UdpSocket::bind("127.0.0.1:0").unwrap();
    other.set_read_timeout(Some(support::PATIENCE)).unwrap();
    let port = other.local_addr().unwrap().port().to_string();
    let environment = [
        ("DD_STATSD_FORWARD_HOST", "127.0.0.1"),
        ("DD_STATSD_FORWARD_PORT", port.as_str()),
    ];
    let agent = Agent::start("outputs:\n  stdout: {}\n", &environment);
    agent.send("page.views:1|c|#env:prod\n");
    let mut buffer = [0; 2048];
    let length = other.recv(&mut buffer).unwrap();
    assert_eq!(
        std::str::from_utf8(&buffer[..length]).unwrap().trim_end(),
        "page.views:1|c|#env:prod"
    );
    let (stdout, _) = agent.stop();
    // Where a bucket ends in between, the next one has the counter's zero.
    let mut lines = json_lines(&stdout);
    lines.retain(|line| line["value"] != 0.0);
    assert_eq!(shapes(&lines), ["page.views rate"]);
}
