//! Hand-overs in the middle of something: a flush, an outage, sessions, a relay, a capture, another number of workers.

use crate::support;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use support::place::{Place, received, saved, wait_for_bucket};
use support::ports::Refusing;
use support::senders::{Senders, in_halves, over_udp, over_unixgram, total};
use support::tls::{Authority, connect, expect_end};
use support::{get, status, until};

const STDOUT: &str = "bucket_width: 1s\noutputs:\n  stdout: {enabled: true}\n";

#[test]
fn the_number_of_workers_may_change() {
    let place = Place::new();
    let config = |workers: usize| place.configuration(&format!("workers: {workers}\n{STDOUT}"));
    let mut agent = place.start(&config(4));
    let senders = Senders::start(
        vec![
            over_udp(agent.address()),
            over_udp(agent.address()),
            over_unixgram(&place.path("datagrams")),
            in_halves(UnixStream::connect(place.path("stream")).unwrap()),
            in_halves(UnixStream::connect(place.path("stream")).unwrap()),
        ],
        Duration::from_millis(2),
    );
    let (mut stdout, mut logs) = (String::new(), String::new());
    for workers in [4, 2, 3] {
        senders.wait_for_more();
        let next = place.take_over(&config(workers));
        let (_, written, log) = agent.end();
        stdout += &written;
        logs += &(log + &written);
        agent = next;
    }
    senders.wait_for_more();
    let sent = senders.end();
    until("everything is received", || received(&agent.admin) >= sent);
    let (written, log) = agent.stop();
    stdout += &written;
    // The last bucket may be open: it is in the state for the next process.
    let open = saved(&log);
    assert_eq!(
        total(&stdout, "c") as u64 + open,
        sent,
        "{open} samples are in the open bucket\n{logs}{log}{written}"
    );
}

/// The kernel would give datagrams to further sockets of an address at once, and nobody would read them.
#[test]
fn a_process_with_more_workers_that_fails_loses_nothing() {
    // A request without an answer delays the hand-over: meanwhile the new process has its sockets.
    let deaf = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/v1/metrics", deaf.local_addr().unwrap());
    let place = Place::new();
    let config = |workers: usize| {
        let deaf = format!("  deaf: {{type: otlp, url: '{url}'}}\n");
        place.configuration(&format!("workers: {workers}\n{STDOUT}{deaf}"))
    };
    let mut agent = place.start(&config(2));
    let admin = agent.wait_for("admin on http://");
    let senders = (0..8).map(|_| over_udp(agent.address())).collect();
    let senders = Senders::start(senders, Duration::from_millis(2));
    let _request = deaf.accept().unwrap();
    let mut next = place.begin_to_take_over(&config(4));
    next.wait_for("2 of 4 workers receive");
    senders.wait_for_more();
    next.signal("-KILL");
    next.end();
    agent.wait_for("hand-over failed; this process continues");
    let sent = senders.end();
    until("everything is received", || received(&admin) >= sent);
    assert_eq!(received(&admin), sent);
    agent.signal("-KILL");
}

/// Buckets of so many series that one is being closed most of the time.
#[test]
fn a_flush_under_way_ends_first() {
    const SERIES: usize = 4000;
    let place = Place::new();
    let config = place.configuration("bucket_width: 1s\noutputs:\n  prometheus: {enabled: true}\n");
    let mut agent = place.start(&config);
    let mut text = String::new();
    for series in 0..SERIES {
        text += &format!("m:1|c|#n:{series}\n");
    }
    let frame = [&(text.len() as u32).to_le_bytes()[..], text.as_bytes()].concat();
    let frames = Arc::new(AtomicU64::new(0));
    let mut stream = UnixStream::connect(place.path("stream")).unwrap();
    let counted = frames.clone();
    let senders = Senders::start(
        vec![Box::new(move || {
            stream.write_all(&frame).unwrap();
            counted.fetch_add(1, Ordering::Relaxed);
        })],
        Duration::from_millis(50),
    );
    for _ in 0..4 {
        let before = frames.load(Ordering::Relaxed);
        until("more is sent", || frames.load(Ordering::Relaxed) > before + 3);
        let next = place.take_over(&config);
        agent.end();
        agent = next;
    }
    senders.end();
    let sent = frames.load(Ordering::Relaxed);
    let admin = agent.wait_for("admin on http://");
    until("everything is received", || {
        received(&admin) == sent * SERIES as u64
    });
    wait_for_bucket(&admin);
    let page = get(&admin, "/metrics").1;
    let values: Vec<f64> = page
        .lines()
        .filter_map(|line| {
            line.strip_prefix("m_total{")?
                .split("} ")
                .nth(1)?
                .split(' ')
                .next()?
                .parse()
                .ok()
        })
        .collect();
    assert_eq!(values.len(), SERIES);
    assert!(
        values.iter().all(|value| *value == sent as f64),
        "{sent}: {values:?}"
    );
    agent.stop();
}

/// The session ends with the old process, and the client learns it at once and connects again.
#[test]
fn connections_over_tls_end_and_are_counted() {
    let place = Place::new();
    let authority = Authority::new();
    let (certificate, key) = authority.issue("localhost");
    std::fs::write(place.path("server.pem"), certificate).unwrap();
    std::fs::write(place.path("server.key"), key).unwrap();
    let config = format!(
        "counter_expiry: 0\ntcp: 127.0.0.1:0\ntcp_framing: newline\ntcp_tls_certificate: {}\ntcp_tls_key: {}\n{STDOUT}",
        place.path("server.pem").display(),
        place.path("server.key").display(),
    );
    let mut agent = place.start(&config);
    let admin = agent.wait_for("admin on http://");
    let listening = |agent: &mut support::Agent| {
        let rest = agent.wait_for("listening on tcp://");
        rest.split(',').next().unwrap().to_owned()
    };
    let address = listening(&mut agent);
    let mut first = connect(&address, &authority, None);
    first.write_all(b"c:1|c\nc:2|c\n").unwrap();
    until("it is received", || received(&admin) == 2);
    let mut next = place.take_over(&config);
    let (_, mut stdout, log) = agent.end();
    assert!(
        log.contains("1 TLS connections end, and their clients reconnect"),
        "{log}"
    );
    expect_end(&mut first);
    let mut second = connect(&address, &authority, None);
    second.write_all(b"c:4|c\n").unwrap();
    let admin = next.wait_for("admin on http://");
    until("it is received", || received(&admin) == 3);
    let hand_over = &status(&admin)["state"]["hand_over"];
    assert_eq!(hand_over["connections_ended"], 1, "{hand_over}");
    assert!(
        get(&admin, "/metrics")
            .1
            .contains("\nweir_hand_over_connections_ended_total 1")
    );
    let (last, log) = next.stop();
    stdout += &last;
    // Samples are 1, 2 and 4. The bucket of the last one may be open.
    assert!(
        matches!((total(&stdout, "c"), saved(&log)), (7.0, 0) | (3.0, 1)),
        "{log}"
    );
}

/// The next process delivers payloads that waited on disk for a dead backend, once.
#[test]
fn a_disk_queue_changes_hands() {
    let place = Place::new();
    let backend = Refusing::new();
    let address = backend.address;
    let config = place.configuration(&format!(
        "bucket_width: 1s\noutputs:\n  graphite: {{enabled: true, address: \"tcp://{address}\", counters: [count], confirm: false, \
         delivery: {{disk_path: {}, backoff_max: 80ms}}}}\n",
        place.path("queue").display()
    ));
    let mut agent = place.start(&config);
    let waiting = |admin: &str| {
        let output = &status(admin)["outputs"][0];
        let notes = output["notes"].to_string();
        assert!(
            notes.contains("tcp://") && !notes.contains("disk queue fails"),
            "{output}"
        );
        assert!(!notes.contains("in memory only"), "{output}");
        (
            output["points"]["pending"].as_u64().unwrap(),
            output["disk_bytes"].as_u64().unwrap(),
        )
    };
    for (number, message) in ["c:1|c", "c:2|c", "c:4|c"].iter().enumerate() {
        let admin = agent.wait_for("admin on http://");
        agent.send(message);
        until("it waits on disk", || {
            let (pending, bytes) = waiting(&admin);
            pending > number as u64 && bytes > 0
        });
        let next = place.take_over(&config);
        agent.end();
        agent = next;
    }
    let admin = agent.wait_for("admin on http://");
    let backend = backend.listen();
    let (line, lines) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for stream in backend.incoming().map_while(Result::ok) {
            let lines = BufReader::new(stream).lines().map_while(Result::ok);
            lines.for_each(|text| drop(line.send(text)));
        }
    });
    until("everything is delivered", || waiting(&admin).0 == 0);
    let (_, log) = agent.stop();
    assert!(!log.contains("lost"), "{log}");
    let values = lines.try_iter().filter(|text| text.starts_with('c'));
    let values = values.map(|text| text.split(' ').nth(1).unwrap().parse::<f64>().unwrap());
    assert_eq!(values.sum::<f64>(), 7.0);
}

#[test]
fn a_relay_passes_every_line_on() {
    let place = Place::new();
    let receiver = UnixDatagram::bind(place.path("relayed")).unwrap();
    receiver.set_read_timeout(Some(support::PATIENCE)).unwrap();
    let config = place.configuration(&format!(
        "bucket_width: 1s\noutputs:\n  relay: {{targets: ['unixgram://{}'], linger: 10ms}}\n",
        place.path("relayed").display()
    ));
    let relayed = Arc::new(AtomicU64::new(0));
    let counted = relayed.clone();
    std::thread::spawn(move || {
        let mut packet = vec![0; 65536];
        while let Ok(length) = receiver.recv(&mut packet) {
            let lines = packet[..length].split(|byte| *byte == b'\n');
            let lines = lines.filter(|line| line.starts_with(b"c:1|c")).count();
            counted.fetch_add(lines as u64, Ordering::Relaxed);
        }
    });
    let mut agent = place.start(&config);
    let senders = Senders::start(
        vec![
            over_unixgram(&place.path("datagrams")),
            in_halves(UnixStream::connect(place.path("stream")).unwrap()),
        ],
        Duration::from_millis(2),
    );
    for _ in 0..2 {
        senders.wait_for_more();
        let next = place.take_over(&config);
        agent.end();
        agent = next;
    }
    senders.wait_for_more();
    let sent = senders.end();
    until("every line is relayed", || {
        relayed.load(Ordering::Relaxed) >= sent
    });
    agent.stop();
    assert_eq!(relayed.load(Ordering::Relaxed), sent);
}

/// The capture ends with the old process; what it has is whole and can be replayed.
#[test]
fn a_capture_ends_whole() {
    let place = Place::new();
    let config = place.configuration("bucket_width: LONG\noutputs: {stdout: {enabled: true}}\n");
    let mut agent = place.start(&config);
    let admin = agent.wait_for("admin on http://");
    let file = place.path("captured");
    let mut capture = Command::new(env!("CARGO_BIN_EXE_weir"))
        .args(["capture", "--admin", &admin, "--for", "10m", "--out"])
        .arg(&file)
        .env_clear()
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut errors = BufReader::new(capture.stderr.take().unwrap());
    let mut said = String::new();
    errors.read_line(&mut said).unwrap();
    assert!(said.starts_with("capturing for "), "{said}");
    agent.send("c:1|c\nc:2|c");
    until("it is received", || received(&admin) == 2);
    let mut next = place.take_over(&config);
    agent.end();
    errors.read_to_string(&mut said).unwrap();
    let mut printed = String::new();
    capture
        .stdout
        .take()
        .unwrap()
        .read_to_string(&mut printed)
        .unwrap();
    let status = capture.wait().unwrap();
    assert!(status.success(), "{said}{printed}");
    let (succeeded, replayed) = support::weir(&[
        "replay",
        &file.display().to_string(),
        "--to",
        &format!("unixgram://{}", place.path("datagrams").display()),
    ]);
    assert!(succeeded, "{replayed}");
    let admin = next.wait_for("admin on http://");
    until("it is received again", || received(&admin) == 4);
    next.stop();
}
