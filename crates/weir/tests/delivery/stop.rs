//! A stop is bounded in time whatever the receivers do: with nobody at their addresses, or with somebody who takes a connection
//! and never says a word, the agent ends after its grace period, in order, with books that balance and an exit code that reports
//! what was lost. What a disk queue holds is not waited for.

use std::net::{TcpListener, UdpSocket};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::delivery::receiver::{HANG, Receiver};
use crate::support::ports::{Refusing, free_address};
use crate::support::{Agent, PATIENCE, Starter, until};

/// With these outputs alone.
fn config(grace: &str, outputs: &str) -> String {
    format!("bucket_width: 1s\ngrace_period: {grace}\noutputs:\n  prometheus: {{enabled: false}}\n{outputs}")
}

/// Every output that talks to somebody, each with a timeout beyond any patience. Their names begin with `of`.
fn all_outputs(of: &str, tcp: &str, udp: &str, unix: &Path) -> String {
    let delivery = "delivery: {timeout: 1h, backoff_max: 320ms}";
    format!(
        "  {of}datadog: {{type: datadog, api_key: {KEY}, url: 'http://{tcp}', {delivery}}}\n  \
         {of}rw1: {{type: remote_write, url: 'http://{tcp}/api/v1/write', {delivery}}}\n  \
         {of}rw2: {{type: remote_write, version: '2.0', url: 'http://{tcp}/api/v1/write', {delivery}}}\n  \
         {of}otlp: {{type: otlp, url: 'http://{tcp}', {delivery}}}\n  \
         {of}cumulative: {{type: otlp, temporality: cumulative, url: 'http://{tcp}', {delivery}}}\n  \
         {of}grpc: {{type: otlp, protocol: grpc, url: 'http://{tcp}', {delivery}}}\n  \
         {of}graphite: {{type: graphite, address: 'tcp://{tcp}', {delivery}}}\n  \
         {of}graphite_udp: {{type: graphite, address: 'udp://{udp}', {delivery}}}\n  \
         {of}relay: {{type: relay, targets: ['tcp://{tcp}', 'udp://{udp}', 'unixgram://{}'], timeout: 1h}}\n  \
         {of}lines: {{type: relay, targets: ['tcp://{tcp}'], tcp_framing: newline, timeout: 1h}}\n",
        unix.display()
    )
}

/// Every output that can have one, with a disk queue.
fn on_disk(of: &str, tcp: &str, disk: &Path) -> String {
    let at = disk.display();
    let types = [
        ("datadog", format!("api_key: {KEY}, url: 'http://{tcp}'")),
        ("remote_write", format!("url: 'http://{tcp}/api/v1/write'")),
        ("otlp", format!("url: 'http://{tcp}'")),
        ("otlp", format!("protocol: grpc, url: 'http://{tcp}'")),
        ("graphite", format!("address: 'tcp://{tcp}'")),
    ];
    let output = |(number, (kind, settings)): (usize, &(&str, String))| {
        let name = format!("{of}{number}");
        format!(
            "  {name}: {{type: {kind}, {settings}, delivery: {{timeout: 1h, backoff_max: 320ms, disk_path: '{at}/{name}'}}}}\n"
        )
    };
    types.iter().enumerate().map(output).collect()
}

/// An intake whose series can be read.
fn intake(name: &str, url: &str, delivery: &str) -> String {
    format!(
        "  {name}: {{type: datadog, api_key: {KEY}, url: '{url}', series_format: v2_json, compression: none, delivery: {{{delivery}timeout: 1h}}}}\n"
    )
}

const KEY: &str = "0123456789abcdef0123456789abcdef";

/// Sends until each output does as it should.
fn until_all(agent: &Agent, lines: &str, tries: impl Fn(&Value, &str) -> bool) {
    until("every output tries", || {
        // Over UDP a refusal is noticed with what comes after it.
        agent.send(lines);
        let status = agent.status();
        let outputs = status["outputs"].as_array().unwrap().iter();
        let waiting = outputs.filter(|output| !tries(output, output["name"].as_str().unwrap()));
        let waiting: Vec<String> = waiting.map(ToString::to_string).collect();
        waiting.is_empty().then_some(()).ok_or(format!("{waiting:?}"))
    });
}

fn has_something(output: &Value) -> bool {
    let of = |part: &str| output[part]["produced"].as_u64().unwrap();
    of("points") + of("messages") > 0
}

/// At some addresses nobody listens. At the others connections wait to be accepted, which nobody does, and datagrams wait to be read.
#[test]
fn receivers_that_refuse_or_say_nothing_delay_the_end_by_the_grace_period_alone() {
    let (refusing, free) = (Refusing::new(), free_address());
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    let directory = tempfile::tempdir().unwrap();
    let unix = directory.path().join("datagrams");
    let _unread = UnixDatagram::bind(&unix).unwrap();
    let address = |address: std::io::Result<std::net::SocketAddr>| address.unwrap().to_string();
    let outputs = all_outputs(
        "refused_",
        &refusing.address.to_string(),
        &free,
        &directory.path().join("none"),
    ) + &all_outputs(
        "silent_",
        &address(tcp.local_addr()),
        &address(udp.local_addr()),
        &unix,
    );
    let agent = Agent::start(&config("500ms", &outputs), &[]);
    let lines: String = (0..100)
        .map(|i| format!("page.views:1|c|#i:{i}\nsize:{i}|d|#i:{i}\n"))
        .collect();
    until_all(&agent, &lines, |output, name| {
        match name.starts_with("refused_") {
            true => output["healthy"] == false,
            false => has_something(output),
        }
    });
    let begun = Instant::now();
    agent.finish_with_a_loss();
    let took = begun.elapsed();
    println!("ended after {took:?}");
    // The hour that a receiver has to answer is what must not be waited for.
    assert!(took < PATIENCE, "{took:?}");
}

/// There is nothing to wait for, so the grace period does not matter: this test would take an hour.
#[test]
fn healthy_outputs_and_disk_queues_are_not_waited_for() {
    let (refusing, silent) = (Refusing::new(), TcpListener::bind("127.0.0.1:0").unwrap());
    let (healthy, dead) = (Receiver::start(202), Receiver::start(HANG));
    let disk = tempfile::tempdir().unwrap();
    let at = disk.path();
    let outputs = [
        on_disk("refused_", &refusing.address.to_string(), at),
        on_disk("silent_", &silent.local_addr().unwrap().to_string(), at),
        intake("healthy", &healthy.url, ""),
        intake("dead", &dead.url, &format!("disk_path: {}/queue, ", at.display())),
    ];
    let config = config("1h", &outputs.concat());
    let agent = Agent::start(&config, &[]);
    agent.send("last:1|c");
    until_all(&agent, "page.views:1|c\nsize:1|d\n", |output, name| match name {
        "dead" => output["disk_bytes"].as_u64() > Some(0),
        name if name.starts_with("refused_") => output["healthy"] == false,
        _ => has_something(output),
    });
    agent.send("last:1|c");
    agent.finish();
    assert_eq!(healthy.sum("last"), 2.0);
    dead.answer_with(202);
    let agent = Agent::start(&config, &[]);
    until("what was on disk arrives", || {
        let found = dead.sum("last");
        (found == 2.0).then_some(()).ok_or(format!("{found}"))
    });
    agent.finish();
}

/// Three outputs that deliver nothing, each in a way of its own, and one that works: what is sent after SIGTERM, until nobody listens any
/// more, arrives there.
#[test]
fn messages_are_received_and_delivered_while_dead_outputs_have_their_time() {
    const GRACE: Duration = Duration::from_secs(8);
    let refusing = Refusing::new();
    let (healthy, unavailable, silent) = (Receiver::start(202), Receiver::start(503), Receiver::start(HANG));
    let outputs = [
        intake("healthy", &healthy.url, ""),
        intake("unavailable", &unavailable.url, ""),
        intake("silent", &silent.url, ""),
        intake("refused", &format!("http://{}", refusing.address), ""),
    ];
    let config = config(&format!("{}s", GRACE.as_secs()), &outputs.concat());
    let mut agent = Starter::from(&config).socket().start();
    agent.send("before:1|c");
    until_all(&agent, "more:1|c", |output, name| {
        let points = &output["points"];
        let is_tried = points["pending_where"]["under_way"].as_u64() > Some(0) || output["healthy"] == false;
        name == "healthy" || is_tried && points["pending"].as_u64() > Some(0)
    });
    let begun = Instant::now();
    agent.signal("-TERM");
    agent.wait_for("SIGTERM: ");
    let mut sent = 0;
    while agent.try_send("during:1|c").is_ok() {
        sent += 1;
        assert!(begun.elapsed() < PATIENCE, "it does not end");
        std::thread::sleep(Duration::from_millis(20));
    }
    let received_for = begun.elapsed();
    let ended = agent.ended_with_a_loss();
    let ended_after = begun.elapsed();
    println!("received for {received_for:?} after SIGTERM, {sent} datagrams; ended after {ended_after:?}");
    assert!(ended.contains("not everything was delivered"), "{ended}");
    // The outputs have six of the eight seconds to get rid of what they hold.
    assert!(
        received_for >= Duration::from_secs(5),
        "deaf after {received_for:?}"
    );
    assert_eq!(healthy.sum("before"), 1.0);
    let during = healthy.sum("during");
    // The last flush has two seconds. On a machine that gives it none, the process ends behind its grace period, and
    // names the loss.
    let had_no_time = ended_after >= GRACE && ended.contains(" points of healthy");
    assert!(
        during == f64::from(sent) || had_no_time,
        "{during} of {sent}, ended after {ended_after:?}:\n{ended}"
    );
}
