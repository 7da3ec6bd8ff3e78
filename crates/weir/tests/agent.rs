//! The real binary on real sockets: what goes in comes out, to the last sample.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::{TcpStream, UdpSocket};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::Value;

use crate::support::{Agent, Starter, until, with_long_buckets};

/// Starts with these arguments: the agent, and the addresses that it listens on.
fn start(arguments: &[&str], listeners: usize) -> (Agent, Vec<String>) {
    let starter = Starter::new().arguments(["--output", "stdout"]);
    let mut agent = starter.arguments(arguments).start();
    let addresses = (0..listeners).map(|_| agent.wait_for("listening on ")).collect();
    (agent, addresses)
}

/// Ends it by SIGTERM and returns what it printed.
fn finish(agent: Agent) -> Vec<Value> {
    parsed(&agent.stop().0)
}

fn parsed(stdout: &str) -> Vec<Value> {
    let lines = stdout.lines();
    lines
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{line:?}: {error}")))
        .collect()
}

/// Sums of counters and counts of distributions over all buckets, by name and tags.
fn totals(lines: &[Value]) -> BTreeMap<String, f64> {
    let mut totals = BTreeMap::new();
    for line in lines {
        let key = format!("{} {}", line["metric"].as_str().unwrap_or_default(), line["tags"]);
        let amount = match line["type"].as_str() {
            Some("rate") => line["value"].as_f64().unwrap() * line["interval"].as_f64().unwrap(),
            Some("sketch") => line["cnt"].as_f64().unwrap(),
            _ => continue,
        };
        *totals.entry(key).or_insert(0.0) += amount;
    }
    totals
}

/// The rows of several workers were merged.
fn assert_once_per_bucket(lines: &[Value]) {
    let mut rows = BTreeSet::new();
    for line in lines.iter().filter(|line| line["metric"].is_string()) {
        let row = ["ts", "type", "metric", "host", "tags"].map(|field| line[field].to_string());
        assert!(rows.insert(row), "twice in one bucket: {line}");
    }
}

fn frame(packet: &str) -> Vec<u8> {
    [&(packet.len() as u32).to_le_bytes(), packet.as_bytes()].concat()
}

/// A function that sends one packet, or fails.
type Send = Box<dyn FnMut(&str) -> std::io::Result<()> + std::marker::Send>;

fn sender(address: &str) -> Send {
    let (scheme, rest) = address.split_once("://").unwrap();
    match scheme {
        "udp" => {
            let socket = UdpSocket::bind(if rest.starts_with('[') {
                "[::1]:0"
            } else {
                "127.0.0.1:0"
            })
            .unwrap();
            socket.connect(rest).unwrap();
            Box::new(move |packet| socket.send(packet.as_bytes()).map(drop))
        }
        "unixgram" => {
            let socket = UnixDatagram::unbound().unwrap();
            socket.connect(rest).unwrap();
            Box::new(move |packet| socket.send(packet.as_bytes()).map(drop))
        }
        "unix" => {
            let mut stream = UnixStream::connect(rest).unwrap();
            Box::new(move |packet| stream.write_all(&frame(packet)))
        }
        "tcp" => {
            let mut stream = TcpStream::connect(rest).unwrap();
            Box::new(move |packet| stream.write_all(&frame(packet)))
        }
        other => panic!("{other}"),
    }
}

fn close(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-9 * a.abs().max(b.abs())
}

#[test]
fn every_transport_delivers_to_the_last_sample() {
    senders_on_every_transport(2, 20);
}

/// In the gate: [`every_transport_delivers_to_the_last_sample`], [`sigterm_delivers_what_waits_in_the_sockets_and_resets_connections`].
#[test]
#[ignore = "nightly: full load"]
fn full_load_on_every_transport_is_delivered_and_sigterm_loses_nothing_that_the_kernel_took() {
    senders_on_every_transport(8, 300);
    sigterm_under_full_load();
}

fn senders_on_every_transport(senders_max: u64, packets: u64) {
    // Some machines have no IPv6.
    let second = if UdpSocket::bind("[::1]:0").is_ok() {
        "[::1]:0"
    } else {
        "127.0.0.1:0"
    };
    let arguments = [
        "--udp",
        "127.0.0.1:0",
        "--udp",
        second,
        "--uds",
        "gram.sock",
        "--uds-stream",
        "stream.sock",
        "--tcp",
        "127.0.0.1:0",
        "--bucket-width",
        "1s",
        "--workers",
        "2",
        // Every datagram of this test fits the buffer, however late the agent gets to it.
        "--receive-buffer",
        "16MiB",
    ];
    let directory = tempfile::tempdir().unwrap();
    let absolute = |name: &str| directory.path().join(name).display().to_string();
    let (gram, stream) = (absolute("gram.sock"), absolute("stream.sock"));
    let arguments = arguments.map(|argument| match argument {
        "gram.sock" => gram.as_str(),
        "stream.sock" => stream.as_str(),
        other => other,
    });
    let (agent, addresses) = start(&arguments, 5);
    let senders: Vec<_> = addresses
        .iter()
        .flat_map(|address| (0..senders_max).map(move |number| (address.clone(), number)))
        .map(|(address, number)| {
            thread::spawn(move || {
                let mut send = sender(&address);
                for packet in 0..packets {
                    // Tags in two orders, two kinds, packed values, a sample rate: 4 counted, 3 distributed, 1 shared.
                    let order = if packet % 2 == 0 { "a:1,b:2" } else { "b:2,a:1" };
                    // And many that the workers see in different orders.
                    let many = packet * (7 + 2 * number) % 300;
                    let lines = format!(
                        "own.{number}:2|c|@0.5|#{order}\ndist.{number}:1:2.5:{packet}|d|#{order}\nshared:1|c\nmember:{packet}|s\nmany.{many}:1|c"
                    );
                    send(&lines).unwrap_or_else(|error| panic!("{address}: {error}"));
                }
            })
        })
        .collect();
    for sender in senders {
        sender.join().unwrap();
    }
    let lines = finish(agent);
    assert_once_per_bucket(&lines);
    let totals = totals(&lines);
    let transports = addresses.len() as u64;
    for number in 0..senders_max {
        let own = totals[&format!("own.{number} [\"a:1\",\"b:2\"]")];
        assert!(
            close(own, (4 * packets * transports) as f64),
            "own.{number}: {own}"
        );
        let dist = totals[&format!("dist.{number} [\"a:1\",\"b:2\"]")];
        assert_eq!(dist, (3 * packets * transports) as f64);
    }
    assert!(
        close(totals["shared []"], (senders_max * packets * transports) as f64),
        "{totals:?}"
    );
}

/// Everything that the kernel took before SIGTERM: the process is stopped, so that all of it waits for the signal's handler. Clients over TCP once
/// kept writing into a connection for about 110 s after the agent had ended.
#[test]
fn sigterm_delivers_what_waits_in_the_sockets_and_resets_connections() {
    let directory = tempfile::tempdir().unwrap();
    let gram = directory.path().join("gram.sock").display().to_string();
    let stream = directory.path().join("stream.sock").display().to_string();
    let arguments = ["--udp", "127.0.0.1:0", "--uds", &gram, "--uds-stream", &stream];
    let (agent, addresses) = start(
        &[
            &arguments[..],
            &["--tcp", "127.0.0.1:0", "--bucket-width", "LONG"],
        ]
        .concat(),
        4,
    );
    let mut senders: Vec<Send> = addresses.iter().map(|address| sender(address)).collect();
    // Connections are accepted before.
    senders.iter_mut().for_each(|send| send("load:1|c").unwrap());
    let tcp = addresses
        .iter()
        .find_map(|address| address.strip_prefix("tcp://"));
    let mut client = TcpStream::connect(tcp.unwrap()).unwrap();
    client.write_all(&frame("load:1|c")).unwrap();
    until("all are connected", || {
        agent.status()["total"]["samples"]["received"] == 5
    });
    agent.signal("-STOP");
    for send in &mut senders {
        // As many as the queue of a Unix datagram socket holds on any machine.
        for _ in 0..10 {
            send("load:1|c").unwrap();
        }
    }
    agent.signal("-TERM");
    agent.signal("-CONT");
    let (status, stdout, log) = agent.end();
    assert!(status.success(), "{log}");
    assert!(close(totals(&parsed(&stdout))["load []"], 45.0), "{stdout}");
    client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let error = client.read(&mut [0]).expect_err("reset");
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    assert!(client.write(&frame("after:1|c")).is_err());
}

fn sigterm_under_full_load() {
    let directory = tempfile::tempdir().unwrap();
    let gram = directory.path().join("gram.sock").display().to_string();
    let stream = directory.path().join("stream.sock").display().to_string();
    let arguments = [
        "--udp",
        "0",
        "--uds",
        &gram,
        "--uds-stream",
        &stream,
        "--bucket-width",
        "1s",
    ];
    let (mut agent, addresses) = start(&arguments, 2);
    let accepted = Arc::new(AtomicU64::new(0));
    let ended = Arc::new(AtomicBool::new(false));
    let senders: Vec<_> = (0..8)
        .map(|number| {
            let (address, accepted, ended) = (addresses[number % 2].clone(), accepted.clone(), ended.clone());
            thread::spawn(move || {
                let mut send = sender(&address);
                // Until the agent refuses: that it does is part of the test.
                while send(&format!("load:1|c\nfrom.{number}:1|c|#t:x\n")).is_ok() {
                    accepted.fetch_add(1, Ordering::Relaxed);
                }
                ended.store(true, Ordering::Release);
            })
        })
        .collect();
    // In full load: a bucket has closed with something in it.
    agent.wait_for("flushed 9 series");
    assert!(!ended.load(Ordering::Acquire));
    let lines = finish(agent);
    for sender in senders {
        sender.join().unwrap();
    }
    let totals = totals(&lines);
    let load = totals["load []"];
    assert!(
        close(load, accepted.load(Ordering::Relaxed) as f64),
        "{load} of {accepted:?}"
    );
    let by_sender: f64 = (0..8)
        .map(|number| totals[&format!("from.{number} [\"t:x\"]")])
        .sum();
    assert!(close(by_sender, load), "{by_sender} of {load}");
}

#[test]
fn crafted_tags_and_bad_input_harm_no_neighbour() {
    let directory = tempfile::tempdir().unwrap();
    let gram = directory.path().join("gram.sock").display().to_string();
    let (agent, addresses) = start(&["--udp", "0", "--uds", &gram], 1);
    let mut send = sender(&addresses[0]);
    // Name and tag swapped.
    send("crafted.a:1|c|#crafted.b\ncrafted.b:2|c|#crafted.a").unwrap();
    // Pairs of tag lists whose unseeded 64-bit hashes are equal under exclusive or: an agent that identifies a context by
    // combining such hashes adds the second sample of each pair to the first.
    for number in 0..20 {
        let (one, other) = weir_load::collide::xor_twins(number);
        assert_ne!(one, other);
        send(&format!(
            "crafted.c:1|c|#{}\ncrafted.c:1000|c|#{}",
            one.join(","),
            other.join(",")
        ))
        .unwrap();
    }
    // Order and repetition do not matter.
    let orders = ["x,y,z", "z,y,x", "y,x,z,y,y", "x,,y,z,"].map(|tags| format!("crafted.p:1|c|#{tags}"));
    send(&orders.join("\n")).unwrap();
    let vectors = std::fs::read_to_string(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../tests/vectors/protocol.jsonl"
    ))
    .unwrap();
    let mut sent = 0.0;
    for line in vectors.lines() {
        let vector: Value = serde_json::from_str(line).unwrap();
        let input = vector["input"].as_str().unwrap_or_default();
        for end in (0..input.len()).filter(|end| input.is_char_boundary(*end) && end % 7 == 0) {
            send(&format!("neighbour:1|c\n{}\nneighbour:1|c", &input[..end])).unwrap();
            sent += 2.0;
        }
    }
    let totals = totals(&finish(agent));
    assert!(
        close(totals["neighbour []"], sent),
        "{} of {sent}",
        totals["neighbour []"]
    );
    assert_eq!(totals["crafted.a [\"crafted.b\"]"], 1.0);
    assert_eq!(totals["crafted.b [\"crafted.a\"]"], 2.0);
    assert_eq!(totals["crafted.p [\"x\",\"y\",\"z\"]"], 4.0);
    let twins: Vec<f64> = totals
        .iter()
        .filter(|(key, _)| key.starts_with("crafted.c "))
        .map(|(_, sum)| *sum)
        .collect();
    assert_eq!(twins.len(), 40, "{twins:?}");
    assert!(
        twins.iter().all(|sum| close(*sum, 1.0) || close(*sum, 1000.0)),
        "{twins:?}"
    );
}

fn wait_for_another_second(second: i64) {
    let now = || {
        std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .unwrap()
            .as_secs() as i64
    };
    while now() <= second {
        thread::yield_now();
    }
}

#[test]
fn a_reload_renames_and_keeps_what_is_open_and_a_restart_inside_a_bucket_overwrites_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("weir.yaml");
    std::fs::write(
        &file,
        with_long_buckets("namespace: before\nbucket_width: LONG\n"),
    )
    .unwrap();
    let config = file.display().to_string();
    let (mut agent, addresses) = start(&["--config", &config], 1);
    let mut send = sender(&addresses[0]);
    send("m:1|c").unwrap();
    send("broken").unwrap();
    // Samples before this log line were counted under the old name.
    agent.wait_for("no_separator");
    std::fs::write(&file, "namespace: [\n").unwrap();
    agent.signal("-HUP");
    agent.wait_for("stays active");
    std::fs::write(&file, with_long_buckets("namespace: after\nbucket_width: LONG\n")).unwrap();
    agent.signal("-HUP");
    agent.wait_for("namespace is now");
    // The worker takes the new rules at the end of a turn. The figures are those of an earlier turn than the second one's.
    send("m:1|c").unwrap();
    until("it is counted, under either name", || {
        agent.status()["total"]["messages"]["accepted"] == 2
    });
    send("m:1|c").unwrap();
    let lines = finish(agent);
    let found = totals(&lines);
    let (before, after) = (found["before.m []"], found["after.m []"]);
    assert!(close(before + after, 3.0), "{found:?}");
    assert!(before >= 1.0 && after >= 1.0, "{found:?}");

    // The next start is in another second, which is what stamps its first bucket.
    let second = |lines: &[Value]| {
        let point = lines.iter().find(|line| line["metric"] == "after.m");
        point.expect("flushed at the end")["ts"].as_i64().unwrap()
    };
    wait_for_another_second(second(&lines));
    let (agent, addresses) = start(&["--config", &config], 1);
    sender(&addresses[0])("m:2|c").unwrap();
    let next = finish(agent);
    assert!(second(&lines) < second(&next), "{lines:?} {next:?}");
    assert!(close(totals(&next)["after.m []"], 2.0), "{next:?}");
}
