//! Hand-overs in the middle of something: a flush, an outage, sessions, a relay, a capture, another number of workers.

use crate::support;
use std::io::Write as _;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use support::hand_over::{BEGIN, Between};
use support::place::{Place, received, replace_by_a_file, saved, wait_for_bucket};
use support::senders::{Senders, in_halves, over_udp, over_unixgram, total};
use support::tls::{Authority, connect, expect_end};
use support::{get, status, until};

use crate::capture::Capturing;

const STDOUT: &str = "bucket_width: 1s\noutputs:\n  stdout: {enabled: true}\n";

#[test]
fn the_number_of_workers_may_change_and_a_relay_passes_every_line_on() {
    let place = Place::new();
    let receiver = UnixDatagram::bind(place.path("relayed")).unwrap();
    receiver.set_read_timeout(Some(support::PATIENCE)).unwrap();
    let relay = format!(
        "relay: {{targets: ['unixgram://{}'], linger: 10ms}}\n",
        place.path("relayed").display()
    );
    let config = |workers: usize| place.configuration(&format!("workers: {workers}\n{STDOUT}  {relay}"));
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
    let mut agent = place.start(&config(4));
    let senders = Senders::start(
        vec![
            over_udp(agent.address()),
            over_udp(agent.address()),
            over_unixgram(&place.path("datagrams")),
            in_halves(UnixStream::connect(place.path("stream")).unwrap()),
            in_halves(UnixStream::connect(place.path("stream")).unwrap()),
        ],
        Duration::from_millis(5),
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
    // A relay has a second to send its lines before a hand-over: the books name what it could not send.
    let dropped = || {
        let relay = agent.output("relay");
        relay["messages"]["dropped"]["shutdown"].as_u64().unwrap_or(0)
    };
    until("everything is received, and relayed or counted", || {
        let (relayed, dropped) = (relayed.load(Ordering::Relaxed), dropped());
        let is_so = received(&agent.admin) >= sent && relayed + dropped >= sent;
        is_so
            .then_some(())
            .ok_or_else(|| format!("{relayed} relayed and {dropped} dropped of {sent}"))
    });
    let dropped = dropped();
    let (written, log) = agent.stop();
    // Lines that were under way at that second's end may arrive too.
    let relayed = relayed.load(Ordering::Relaxed);
    assert!(
        relayed <= sent && relayed + dropped >= sent,
        "{relayed} relayed and {dropped} dropped of {sent}\n{logs}{log}"
    );
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
    let place = Place::new();
    let config = |workers: usize| place.configuration(&format!("workers: {workers}\n{STDOUT}"));
    let mut agent = place.start(&config(2));
    let admin = agent.wait_for("admin on http://");
    let senders = (0..8).map(|_| over_udp(agent.address())).collect();
    let senders = Senders::start(senders, Duration::from_millis(2));
    let between = Between::processes(&place.state());
    let mut next = place.ask_to_take_over(&config(4));
    let mut link = between.accept();
    // It has its sockets, and the other one still receives.
    link.pass_until(BEGIN);
    next.wait_for("2 of 4 workers receive");
    senders.wait_for_more();
    next.signal("-KILL");
    next.end();
    drop(link);
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

/// The client of a session learns it at once and connects again. What a capture has is whole and can be replayed.
#[test]
fn encrypted_connections_and_captures_end_with_their_process() {
    let place = Place::new();
    let authority = Authority::new();
    let (certificate, key) = authority.issue("localhost");
    std::fs::write(place.path("server.pem"), certificate).unwrap();
    std::fs::write(place.path("server.key"), key).unwrap();
    let config = format!(
        "counter_expiry: 0\ntcp: 127.0.0.1:0\ntcp_framing: newline\ntcp_tls_certificate: {}\ntcp_tls_key: {}\nuds: {}\n{STDOUT}",
        place.path("server.pem").display(),
        place.path("server.key").display(),
        place.path("datagrams").display(),
    );
    let mut agent = place.start(&config);
    let admin = agent.admin.clone();
    let listening = |agent: &mut support::Agent| {
        let rest = agent.wait_for("listening on tcp://");
        rest.split(',').next().unwrap().to_owned()
    };
    let address = listening(&mut agent);
    let mut first = connect(&address, &authority, None);
    first.write_all(b"c:1|c\nc:2|c\n").unwrap();
    until("it is received", || received(&admin) == 2);
    let file = place.path("captured");
    let capturing = Capturing::start(&admin, &file, &["--for", "10m"]);
    agent.send("c:8|c\nc:16|c");
    until("it is received", || received(&admin) == 4);
    let mut next = place.take_over(&config);
    let (_, mut stdout, log) = agent.end();
    assert!(
        log.contains("1 TLS connections end, and their clients reconnect"),
        "{log}"
    );
    expect_end(&mut first);
    capturing.end();
    let mut second = connect(&address, &authority, None);
    second.write_all(b"c:4|c\n").unwrap();
    let admin = next.wait_for("admin on http://");
    until("it is received", || received(&admin) == 5);
    let hand_over = &status(&admin)["state"]["hand_over"];
    assert_eq!(hand_over["connections_ended"], 1, "{hand_over}");
    assert!(
        get(&admin, "/metrics")
            .1
            .contains("\nweir_hand_over_connections_ended_total 1")
    );
    let to = format!("unixgram://{}", place.path("datagrams").display());
    support::said(&["replay", file.to_str().unwrap(), "--to", &to]);
    until("it is received again", || received(&admin) == 7);
    // Nothing can be kept, so the bucket is flushed.
    replace_by_a_file(&place.path("state"));
    stdout += &next.stop().0;
    assert_eq!(total(&stdout, "c"), 55.0, "{stdout}");
}
