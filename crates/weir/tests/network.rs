//! What the network, its clients and the machine do to a running agent, with the real binary on real sockets: stops,
//! connections, descriptors, socket files, clocks.

mod support;

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::thread::JoinHandle;

use serde_json::Value;
use support::{Agent, PATIENCE, until};

/// The number in front of `unit` in a line of the log.
fn number_before(line: &str, unit: &str) -> u64 {
    let (before, _) = line
        .split_once(unit)
        .unwrap_or_else(|| panic!("no {unit:?} in {line:?}"));
    before.trim_end().rsplit(' ').next().unwrap().parse().unwrap()
}

/// The sum of a counter over all buckets.
fn sum_of(stdout: &str, metric: &str) -> f64 {
    stdout
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .filter(|row| row["metric"] == metric)
        .map(|row| row["value"].as_f64().unwrap() * row["interval"].as_f64().unwrap())
        .sum()
}

/// Writes lines over TCP until the connection ends, so that a drain takes its whole second.
fn busy_client(address: &str, line: &'static [u8]) -> JoinHandle<()> {
    let mut stream = TcpStream::connect(address).unwrap();
    std::thread::spawn(move || while stream.write_all(line).is_ok() {})
}

/// GNU `timeout` sends SIGTERM twice at once, to the process and to its group. The second once meant "stop at once", which
/// lost the open bucket. And what came after the last tick, the drain included, was once in no line of the log.
#[test]
fn a_second_signal_right_after_the_first_loses_nothing_and_the_log_has_the_final_books() {
    let config = "bucket_width: 1s\nworkers: 1\ntcp: ['127.0.0.1:0']\ntcp_framing: newline\noutputs:\n  stdout: {}\n";
    let mut agent = Agent::start(config, &[]);
    let tcp = agent.wait_for("listening on tcp://");
    let busy = busy_client(&tcp, b"busy:1|c\n");
    agent.wait_for("flushed 1 series");
    agent.signal("-TERM");
    agent.wait_for("SIGTERM: no new packets");
    // The client is read for a second more, so this one comes in the middle of the drain.
    let (stdout, log) = agent.stop();
    busy.join().unwrap();
    assert!(log.contains("SIGTERM again within a second"), "{log}");
    let delivered = sum_of(&stdout, "busy").round() as u64;
    let flushes = log.lines().filter(|line| line.contains("since the last: "));
    let flushed: u64 = flushes.map(|line| number_before(line, " messages in ")).sum();
    let end = log.lines().find(|line| line.contains("since the start: ")).unwrap();
    let points = log.lines().find(|line| line.contains("since the start, stdout: ")).unwrap();
    assert_eq!(
        (flushed, number_before(end, " messages received"), number_before(end, " samples received")),
        (delivered, delivered, delivered),
        "{log}"
    );
    assert_eq!(
        number_before(points, " points produced"),
        number_before(points, " delivered"),
        "{log}"
    );
    assert!(log.contains("1 connections were reset although their peers were still sending"), "{log}");
}

/// Whoever asks again after a second still means it.
#[test]
fn a_signal_a_second_later_stops_at_once() {
    let receiver = TcpListener::bind("127.0.0.1:0").unwrap();
    let config = format!(
        "bucket_width: 1s\ngrace_period: 1h\noutputs:\n  otlp: {{url: 'http://{}', delivery: {{timeout: 1h}}}}\n",
        receiver.local_addr().unwrap()
    );
    let mut agent = Agent::start(&config, &[]);
    agent.send("waits:1|c");
    agent.signal("-TERM");
    agent.wait_for("SIGTERM: no new packets");
    let begun = std::time::Instant::now();
    let mut code = None;
    until("it stops", || {
        agent.signal("-TERM");
        code = agent.ended();
        code.is_some()
    });
    assert!(begun.elapsed().as_secs() >= 1);
    assert_eq!(code.unwrap().code(), Some(1));
    agent.wait_for("again: stopped at once");
}
