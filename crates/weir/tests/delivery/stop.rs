//! A stop is bounded in time whatever the receivers do: with nobody at their addresses, or with somebody who takes a connection
//! and never says a word, the agent ends after its grace period, in order, with books that balance and an exit code that reports
//! what was lost. What a disk queue holds is not waited for.

use std::net::{TcpListener, UdpSocket};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::delivery::receiver::{HANG, Receiver};
use crate::support::ports::{Refusing, free_address};
use crate::support::{Agent, PATIENCE, PointBooks, until};

/// Every output that talks to somebody, each with a timeout beyond any patience.
fn config(tcp: &str, udp: &str, unix: &Path) -> String {
    let delivery = "delivery: {timeout: 1h, backoff_max: 320ms}";
    format!(
        "bucket_width: 1s\ngrace_period: 500ms\noutputs:\n  prometheus: {{enabled: false}}\n  \
         datadog: {{api_key: 0123456789abcdef0123456789abcdef, url: 'http://{tcp}', {delivery}}}\n  \
         rw1: {{type: remote_write, url: 'http://{tcp}/api/v1/write', {delivery}}}\n  \
         rw2: {{type: remote_write, version: '2.0', url: 'http://{tcp}/api/v1/write', {delivery}}}\n  \
         otlp: {{url: 'http://{tcp}', {delivery}}}\n  \
         cumulative: {{type: otlp, temporality: cumulative, url: 'http://{tcp}', {delivery}}}\n  \
         grpc: {{type: otlp, protocol: grpc, url: 'http://{tcp}', {delivery}}}\n  \
         graphite: {{address: 'tcp://{tcp}', {delivery}}}\n  \
         graphite_udp: {{type: graphite, address: 'udp://{udp}', {delivery}}}\n  \
         relay: {{targets: ['tcp://{tcp}', 'udp://{udp}', 'unixgram://{}'], timeout: 1h}}\n  \
         lines: {{type: relay, targets: ['tcp://{tcp}'], tcp_framing: newline, timeout: 1h}}\n",
        unix.display()
    )
}

/// `end` waits for the agent to end, in the way it should.
fn stop(config: &str, all_try: impl Fn(&serde_json::Value) -> bool, end: impl Fn(Agent)) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("weir.yaml");
    std::fs::write(&path, config).unwrap();
    let agent = Agent::start(&["--config", path.to_str().unwrap()], &[]);
    let lines: String = (0..100)
        .map(|i| format!("page.views:1|c|#i:{i}\nsize:{i}|d|#i:{i}\n"))
        .collect();
    until("every output tries", || {
        // Over UDP a refusal is noticed with what comes after it.
        agent.send(&lines);
        let status = agent.status();
        let waiting: Vec<String> = status["outputs"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|output| !all_try(output))
            .map(|output| output["name"].to_string())
            .collect();
        waiting.is_empty().then_some(()).ok_or(format!("{waiting:?}"))
    });
    let begun = Instant::now();
    end(agent);
    let took = begun.elapsed();
    println!("ended after {took:?}");
    // Half a second is the grace, where there is no disk queue; the hour that a receiver has to answer is what must not be waited for.
    assert!(took < PATIENCE, "{took:?}");
}

#[test]
fn refused_connections() {
    let (tcp, udp) = (Refusing::new(), free_address());
    let directory = tempfile::tempdir().unwrap();
    let config = config(&tcp.address.to_string(), &udp, &directory.path().join("none"));
    stop(&config, is_failing, |agent| drop(agent.finish_with_a_loss()));
}

fn is_failing(output: &serde_json::Value) -> bool {
    output["healthy"] == false
}

fn has_something(output: &serde_json::Value) -> bool {
    let of = |part: &str| output[part]["produced"].as_u64().unwrap();
    of("points") + of("messages") > 0
}

/// Every output with a disk queue, and a grace period beyond any patience.
fn on_disk(tcp: &str, disk: &Path) -> String {
    let delivery = |name: &str| {
        format!(
            "delivery: {{timeout: 1h, backoff_max: 320ms, disk_path: '{}/{name}'}}",
            disk.display()
        )
    };
    format!(
        "bucket_width: 1s\ngrace_period: 10m\noutputs:\n  prometheus: {{enabled: false}}\n  \
         datadog: {{api_key: 0123456789abcdef0123456789abcdef, url: 'http://{tcp}', {}}}\n  \
         remote_write: {{url: 'http://{tcp}/api/v1/write', {}}}\n  \
         otlp: {{url: 'http://{tcp}', {}}}\n  \
         grpc: {{type: otlp, protocol: grpc, url: 'http://{tcp}', {}}}\n  \
         graphite: {{address: 'tcp://{tcp}', {}}}\n",
        delivery("datadog"),
        delivery("remote_write"),
        delivery("otlp"),
        delivery("grpc"),
        delivery("graphite")
    )
}

#[test]
fn refused_connections_with_everything_on_disk() {
    let tcp = Refusing::new();
    let disk = tempfile::tempdir().unwrap();
    stop(
        &on_disk(&tcp.address.to_string(), disk.path()),
        is_failing,
        Agent::finish,
    );
}

#[test]
fn no_answer_with_everything_on_disk() {
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let disk = tempfile::tempdir().unwrap();
    let config = on_disk(&tcp.local_addr().unwrap().to_string(), disk.path());
    stop(&config, has_something, Agent::finish);
}

#[test]
fn no_answer() {
    // Connections wait to be accepted, which nobody does; datagrams wait to be read.
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    let directory = tempfile::tempdir().unwrap();
    let unix = directory.path().join("datagrams");
    let _unread = UnixDatagram::bind(&unix).unwrap();
    let (tcp_address, udp_address) = (tcp.local_addr().unwrap(), udp.local_addr().unwrap());
    let config = config(&tcp_address.to_string(), &udp_address.to_string(), &unix);
    stop(&config, has_something, |agent| drop(agent.finish_with_a_loss()));
}

// While one output is down, a stop does not make the agent deaf for the others: it receives until nearly the end of the grace
// period, and what it took is in the output that works.

const KEY: &str = "0123456789abcdef0123456789abcdef";

struct Setup {
    directory: tempfile::TempDir,
    healthy: Receiver,
}

impl Setup {
    fn new() -> Setup {
        Setup {
            directory: tempfile::tempdir().unwrap(),
            healthy: Receiver::start(202),
        }
    }

    /// One output to `dead` and one that works.
    fn start(&self, grace: &str, dead: &str, disk: bool) -> Agent {
        let path = self.directory.path().join("weir.yaml");
        let queue = match disk {
            true => format!("disk_path: {}/queue, ", self.directory.path().display()),
            false => String::new(),
        };
        let intake = |url: &str, delivery: &str| {
            format!(
                "{{type: datadog, api_key: {KEY}, url: '{url}', series_format: v2_json, compression: none, delivery: {{{delivery}timeout: 1h}}}}"
            )
        };
        let text = format!(
            "bucket_width: 1s\ngrace_period: {grace}\noutputs:\n  dead: {}\n  healthy: {}\n",
            intake(dead, &queue),
            intake(&self.healthy.url, "")
        );
        std::fs::write(&path, text).unwrap();
        Agent::start(&["--config", path.to_str().unwrap()], &[])
    }
}

/// Sends after SIGTERM until nobody listens any more.
fn check(dead: &str) {
    let setup = Setup::new();
    let mut agent = setup.start("4s", dead, false);
    agent.send("before:1|c");
    until("the dead output holds a point", || {
        let books = PointBooks::read(&agent.output("dead")["points"]);
        let tried = agent.output("dead")["points"]["pending_where"]["under_way"].as_u64() > Some(0)
            || agent.output("dead")["healthy"] == false;
        (books.pending > 0 && tried)
            .then_some(())
            .ok_or(format!("{books:?}"))
    });
    agent.signal("-TERM");
    agent.wait_for("SIGTERM: ");
    let begun = Instant::now();
    let mut sent = 0;
    while agent.try_send("during:1|c").is_ok() {
        sent += 1;
        assert!(begun.elapsed() < PATIENCE, "it does not end");
        std::thread::sleep(Duration::from_millis(20));
    }
    let received_for = begun.elapsed();
    let ended = agent.ended_with_a_loss();
    println!(
        "received for {received_for:?} after SIGTERM, {sent} datagrams; ended after {:?}",
        begun.elapsed()
    );
    assert!(ended.contains("not everything was delivered"), "{ended}");
    // The output has three of the four seconds to get rid of what it holds.
    assert!(
        received_for >= Duration::from_secs(2),
        "deaf after {received_for:?}"
    );
    assert_eq!(setup.healthy.sum("before"), 1.0);
    assert_eq!(setup.healthy.sum("during"), f64::from(sent));
}

#[test]
fn an_output_that_answers_503() {
    check(&Receiver::start(503).url);
}

#[test]
fn an_output_that_hangs() {
    check(&Receiver::start(HANG).url);
}

#[test]
fn an_output_that_refuses_connections() {
    check(&format!("http://{}", free_address()));
}

/// There is nothing to wait for, so the grace period does not matter: this test would take an hour.
#[test]
fn healthy_outputs_and_disk_queues_are_not_waited_for() {
    let setup = Setup::new();
    let agent = setup.start("1h", &Receiver::start(202).url, false);
    agent.send("last:1|c");
    agent.finish();
    assert_eq!(setup.healthy.sum("last"), 1.0);

    let dead = Receiver::start(HANG);
    let agent = setup.start("1h", &dead.url, true);
    agent.send("last:1|c");
    until("it is on disk", || {
        let output = agent.output("dead");
        (output["disk_bytes"].as_u64() > Some(0))
            .then_some(())
            .ok_or(output.to_string())
    });
    agent.send("last:1|c");
    agent.finish();
    assert_eq!(setup.healthy.sum("last"), 3.0);
    dead.answer_with(202);
    let agent = setup.start("1h", &dead.url, true);
    until("what was on disk arrives", || {
        let found = dead.sum("last");
        (found == 2.0).then_some(()).ok_or(format!("{found}"))
    });
    agent.finish();
}
