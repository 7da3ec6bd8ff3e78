//! Sending over real sockets, and the attribution of shortfalls to their causes.

use std::io::Read;
use std::net::{TcpListener, UdpSocket};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};
use weir_load::calibrate;
use weir_load::null::{Null, NullOptions, Pace};
use weir_load::profile::{Mode, Profile, Transport};
use weir_load::profiles;
use weir_load::recorded::Recorded;
use weir_load::replay;
use weir_load::run::{self, Backpressure, Framing, LoadVerdict, Options, Report, RunError};
use weir_load::search::{self, Plan};
use weir_load::source::Load;
use weir_load::target::Target;
use weir_load::truth::{self, Detail};
use weir_load::units::{Bytes, Rate, RateUnit};

fn named(name: &str, transport: Transport) -> Load {
    let profile = profiles::named(name).unwrap();
    Load::prepare(name, &profile, transport, 11).unwrap()
}

fn yaml(text: &str, transport: Transport) -> Load {
    let profile = Profile::from_yaml(text).unwrap();
    Load::prepare("test", &profile, transport, 11).unwrap()
}

/// A receiver with this many packets per second.
fn paced(packets_per_second: f64) -> NullOptions {
    NullOptions {
        pace: Some(Pace { packets_per_second }),
        ..NullOptions::default()
    }
}

fn send(load: &Load, options: &Options) -> Report {
    let (report, error) = run::run(load, options).unwrap();
    assert!(error.is_none(), "{error:?}");
    report
}

/// A timeout that even a slow machine keeps.
const PATIENCE: Duration = Duration::from_secs(60);

/// Polls until a condition holds; panics on timeout.
fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn everything_sent_arrives_and_is_in_the_manifest() {
    let folder = tempfile::tempdir().unwrap();
    for transport in [Transport::Unixgram, Transport::Unix, Transport::Tcp] {
        for connections in [1, 3] {
            let load = yaml(
                &format!("{{contexts: 100, throttle: all_out, connections: {connections}}}"),
                transport,
            );
            let null = Null::open(transport, folder.path(), NullOptions::default()).unwrap();
            let mut options = Options::new(null.target());
            options.count = Some(20_000);
            options.threads = connections;
            let report = send(&load, &options);
            assert!(report.messages >= 20_000, "{transport:?}");
            assert_eq!(report.refused_packets, 0);
            let framing = match transport {
                Transport::Unixgram => 0,
                _ => 4 * report.packets,
            };
            until("all bytes arrive", || null.bytes() >= report.bytes + framing);
            assert_eq!(null.bytes(), report.bytes + framing, "{transport:?}");
            let manifest = truth::manifest(&load, "x", &report, &Detail::default());
            assert_eq!(manifest.totals.packets, report.packets);
            assert_eq!(manifest.totals.messages, report.messages);
            assert_eq!(manifest.totals.bytes, report.bytes);
        }
    }
}

#[test]
fn rate_and_duration_begin_after_a_first_pass_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let load = yaml(
        "{contexts: 20000, rate: 200 msg/s, first_pass_at_once: true, multivalue_p: 0}",
        Transport::Unixgram,
    );
    let null = Null::open(Transport::Unixgram, folder.path(), NullOptions::default()).unwrap();
    let mut options = Options::new(null.target());
    options.duration = Some(Duration::from_millis(500));
    let report = send(&load, &options);
    // At its rate the first pass alone would take 100 s.
    assert_eq!(report.scheduled, 100.0);
    assert!(report.achieved < 300.0, "{}", report.achieved);
    assert!(report.messages as f64 >= 20_000.0 + report.achieved);
    assert!(report.elapsed >= report.first_pass + Duration::from_millis(500));
    let manifest = truth::manifest(&load, "x", &report, &Detail::default());
    assert_eq!(manifest.totals.messages, report.messages);
    assert!(manifest.sending.first_pass_s > 0.0);
}

/// The digest is of the bytes on the wire.
#[test]
fn the_digest_is_that_of_the_bytes_received() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let socket = UnixDatagram::bind(&path).unwrap();
    let reader = std::thread::spawn(move || {
        let mut digest = 0;
        let mut buffer = vec![0u8; 65_536];
        for _ in 0..100 {
            let read = socket.recv(&mut buffer).unwrap();
            digest = truth::digest_packet(digest, &buffer[..read]);
        }
        digest
    });
    let load = named("budget-1k", Transport::Unixgram);
    let mut options = Options::new(Target::Unixgram(path));
    options.count = Some(54 * 100);
    let report = send(&load, &options);
    let composed = truth::replay(&load, &report.sent, &Detail::default());
    if report.packets == 100 {
        assert_eq!(composed.digest, format!("xxh3:{:016x}", reader.join().unwrap()));
    } else {
        // The count is in messages, so a hundred packets give only an approximate bound.
        assert!(report.packets >= 95, "{}", report.packets);
        assert_eq!(truth::digest(&load, 100), truth::digest(&load, 100));
    }
}

#[test]
#[ignore = "nightly: real rates; in the gate: weir-bench floor::a_batch_is_one_system_call"]
fn udp_arrives_in_batches_of_few_system_calls() {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let target = Target::Udp(socket.local_addr().unwrap());
    let load = named("small-packets", Transport::Udp);
    let mut options = Options::new(target);
    options.count = Some(6400);
    let report = send(&load, &options);
    assert_eq!(report.packets, 6400);
    // Counted, not timed: 64 packets per call.
    assert!(
        report.system_calls <= report.packets / 64 + 1,
        "{}",
        report.system_calls
    );
    // Nobody reads: packets beyond the receive buffer are lost, and the kernel's count of them is visible.
    assert!(report.kernel_drops.unwrap() > 0);
    assert_eq!(report.verdict(), LoadVerdict::TargetLimited);
}

#[test]
#[ignore = "nightly: real rates; in the gate: run::report::tests"]
fn a_throttled_target_is_the_limit_and_its_rate_is_reported_within_one_percent() {
    let folder = tempfile::tempdir().unwrap();
    let load = named("budget-1k", Transport::Unixgram);
    let pace = 1000.0;
    let null = Null::open(Transport::Unixgram, folder.path(), paced(pace)).unwrap();
    let mut options = Options::new(null.target());
    options.duration = Some(Duration::from_secs(4));
    let report = send(&load, &options);
    // At most a socket's queue was sent and not received. On a machine with pauses the receiver misses its pace too, so the packets it
    // received in the same time are the reference.
    let taken = null.packets() as f64 / report.elapsed.as_secs_f64();
    assert_eq!(report.verdict(), LoadVerdict::TargetLimited, "{report:?}");
    let rate = report.packets as f64 / report.elapsed.as_secs_f64();
    println!("reported {rate:.2} packets/s of a receiver that takes {pace}, and took {taken:.2}");
    assert!((rate / taken - 1.0).abs() < 0.01, "{rate} of {taken}");
    assert!((0.5 * pace..1.01 * pace).contains(&rate), "{rate}");
    assert_eq!(report.refused_packets, 0, "all-out waits, it does not skip");
}

#[test]
#[ignore = "nightly: real rates; in the gate: model::the_oracle_follows_churn_and_origin_and_omits_refused_packets"]
fn a_paced_load_on_a_slow_target_skips_and_counts_or_waits() {
    let folder = tempfile::tempdir().unwrap();
    for backpressure in [Backpressure::Auto, Backpressure::Wait] {
        let load = yaml("{contexts: 100, rate: 4000 packets/s}", Transport::Unixgram);
        let null = Null::open(Transport::Unixgram, folder.path(), paced(1000.0)).unwrap();
        let mut options = Options::new(null.target());
        options.duration = Some(Duration::from_millis(1500));
        options.backpressure = backpressure;
        let report = send(&load, &options);
        assert_eq!(report.verdict(), LoadVerdict::TargetLimited, "{report:?}");
        assert_eq!(report.refused_packets > 0, backpressure == Backpressure::Auto);
        until("all arrive", || null.packets() >= report.packets);
        assert_eq!(null.packets(), report.packets);
        let manifest = truth::manifest(&load, "x", &report, &Detail::default());
        assert_eq!(manifest.totals.packets, report.packets);
        assert_eq!(manifest.totals.messages, report.messages);
    }
}

#[test]
#[ignore = "nightly: real rates; in the gate: run::report::tests"]
fn a_slow_generator_is_the_limit() {
    let folder = tempfile::tempdir().unwrap();
    let load = yaml("{contexts: 100, rate: 500 packets/s}", Transport::Unixgram);
    let null = Null::open(Transport::Unixgram, folder.path(), NullOptions::default()).unwrap();
    let mut options = Options::new(null.target());
    options.duration = Some(Duration::from_secs(2));
    options.handicap = Some(Duration::from_millis(20));
    // It sends due packets in bursts, for which a receiver that shares its processor may have no room.
    options.backpressure = Backpressure::Wait;
    let report = send(&load, &options);
    assert_eq!(report.verdict(), LoadVerdict::GeneratorLimited, "{report:?}");
    assert!(report.late_packets > report.packets / 2);
    assert!(report.lateness_p99_s > 0.5, "{}", report.lateness_p99_s);
}

#[test]
#[ignore = "nightly: real rates; in the gate: schedule::tests::due_and_scheduled_agree, run::report::tests"]
fn a_load_is_never_ahead_of_its_schedule_and_behind_only_with_a_cause() {
    let folder = tempfile::tempdir().unwrap();
    for text in [
        "{contexts: 100, rate: 2000 packets/s}",
        "{contexts: 100, rate: 2 MB/s}",
        "{contexts: 100, rate: 5k msg/s, throttle: poisson}",
        "{contexts: 100, rate: 5k msg/s, throttle: lading_burst}",
        "{contexts: 100, throttle: {linear: {from: 1k msg/s, to: 40k msg/s, over: 1s}}}",
    ] {
        let load = yaml(text, Transport::Unixgram);
        let null = Null::open(Transport::Unixgram, folder.path(), NullOptions::default()).unwrap();
        let mut options = Options::new(null.target());
        options.duration = Some(Duration::from_millis(1200));
        options.backpressure = Backpressure::Wait;
        let report = send(&load, &options);
        // Ahead of the schedule by at most the packet that crosses it; behind it only with a named cause.
        let packet = report.achieved / report.packets as f64;
        assert!(
            report.achieved <= report.scheduled + 3.0 * packet,
            "{text}: {report:?}"
        );
        let share = report.achieved / report.scheduled;
        assert!(
            share > 0.9 || report.verdict() != LoadVerdict::OnSchedule,
            "{text}: {report:?}"
        );
    }
}

#[test]
#[ignore = "nightly: real rates; in the gate: run::report::tests"]
fn calibration_knows_both_sides_and_its_rule_overrides() {
    let folder = tempfile::tempdir().unwrap();
    let load = named("budget-1k", Transport::Unixgram);
    let (calibration, report) =
        calibrate::calibrate(&load, folder.path(), Duration::from_millis(500), None, false).unwrap();
    assert_eq!(calibration.received_share, 1.0);
    assert!(calibration.packets_per_s > 0.0 && calibration.compose_ns_per_message > 0.0);
    let file = calibrate::store(folder.path(), "budget-1k@x/y", Transport::Unixgram);
    assert!(file.starts_with(folder.path()) && !file.to_str().unwrap().contains("x/y"));
    let mut paced = load.clone();
    paced.profile.rate = Some(Rate {
        per_second: calibration.messages_per_s / 1.2,
        unit: RateUnit::Messages,
    });
    paced.profile.throttle = weir_load::profile::Throttle::Smooth;
    let headroom = calibrate::headroom(&paced, &calibration);
    assert!((headroom.unwrap() - 1.2).abs() < 1e-9);
    assert_eq!(calibrate::judge(&report, headroom), LoadVerdict::GeneratorLimited);
    assert_eq!(calibrate::judge(&report, Some(2.0)), report.verdict());
}

#[test]
#[ignore = "nightly: real rates; in the gate: search::tests"]
fn a_search_finds_the_rate_of_a_throttled_receiver() {
    let folder = tempfile::tempdir().unwrap();
    let load = yaml(
        "{contexts: 100, rate: 1 packets/s, messages_per_packet: 1}",
        Transport::Unixgram,
    );
    let null = Null::open(Transport::Unixgram, folder.path(), paced(1000.0)).unwrap();
    let plan = Plan {
        from: "300 packets/s".parse().unwrap(),
        to: 10_000.0,
        settle: Duration::ZERO,
        probe: Duration::from_millis(500),
        confirm: Duration::from_millis(700),
        loss: 0.001,
        lateness: Duration::from_millis(200),
        precision: 0.2,
        time: Duration::from_secs(600),
    };
    // A pause of the machine during a probe makes the receiver look slower, or the generator late.
    let good = (0..5).any(|_| {
        let mut seen = 0;
        let found = search::search(&load, &Options::new(null.target()), &plan, |_| seen += 1).unwrap();
        assert_eq!(seen, found.probes.len());
        println!("{found:?}");
        let in_range = found.rate.is_some_and(|rate| (140.0..1200.0).contains(&rate));
        in_range && found.limited_by != "generator-limited"
    });
    assert!(good, "none of five searches found about 1000 packets per second");
}

#[test]
fn requests_are_posted_and_response_statuses_counted() {
    let folder = tempfile::tempdir().unwrap();
    for name in [
        "dd-logs",
        "dd-traces-json",
        "dd-traces-msgpack",
        "otlp-logs",
        "otlp-metrics",
        "otlp-traces",
    ] {
        let mut load = named(name, Transport::Http);
        load.profile.throttle = weir_load::profile::Throttle::AllOut;
        let null = Null::open(Transport::Http, folder.path(), NullOptions::default()).unwrap();
        let mut options = Options::new(null.target());
        options.count = Some(1000);
        let report = send(&load, &options);
        assert_eq!(null.packets(), report.packets, "{name}");
        assert_eq!(null.bytes(), report.bytes, "{name}");
        let manifest = truth::manifest(&load, "x", &report, &Detail::default());
        assert_eq!(manifest.totals.records, report.messages, "{name}");
    }
}

/// Answers every request with one status, after reading all of it.
fn answering(status: &'static str) -> Target {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        use std::io::Write;
        let (mut stream, _) = listener.accept().unwrap();
        let mut seen = Vec::new();
        let mut buffer = [0u8; 4096];
        loop {
            let Ok(read @ 1..) = stream.read(&mut buffer) else {
                return;
            };
            seen.extend_from_slice(&buffer[..read]);
            let text = String::from_utf8_lossy(&seen).into_owned();
            let Some((head, body)) = text.split_once("\r\n\r\n") else {
                continue;
            };
            let length: usize = head
                .lines()
                .find_map(|l| l.strip_prefix("Content-Length: "))
                .unwrap()
                .parse()
                .unwrap();
            if body.len() >= length {
                seen.clear();
                write!(stream, "HTTP/1.1 {status}\r\nContent-Length: 2\r\n\r\nno").unwrap();
            }
        }
    });
    Target::Http {
        address,
        host: address.to_string(),
        path: "/".into(),
    }
}

#[test]
fn rejected_requests_end_the_run_and_overload_is_counted() {
    let mut load = named("dd-logs", Transport::Http);
    load.profile.throttle = weir_load::profile::Throttle::AllOut;
    let mut options = Options::new(answering("400 Bad Request"));
    options.count = Some(1000);
    let (report, error) = run::run(&load, &options).unwrap();
    assert!(
        matches!(&error, Some(RunError::Target(text)) if text.contains("400")),
        "{error:?}"
    );
    assert_eq!((report.packets, report.messages), (0, 0));
    let mut options = Options::new(answering("429 Too Many Requests"));
    options.count = Some(1000);
    let report = send(&load, &options);
    assert!(report.refused_packets > 0 && report.packets == 0);
}

#[test]
fn a_missing_target_and_one_that_dies_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let load = yaml("{contexts: 10, rate: 1000 packets/s}", Transport::Unixgram);
    let mut options = Options::new(Target::Unixgram(folder.path().join("nobody")));
    options.duration = Some(Duration::from_secs(5));
    let error = run::run(&load, &options).unwrap_err();
    assert!(matches!(error, RunError::Target(_)), "{error}");

    let path = folder.path().join("dies");
    let socket = UnixDatagram::bind(&path).unwrap();
    options.target = Target::Unixgram(path);
    let killer = std::thread::spawn(move || {
        let mut buffer = [0u8; 65_536];
        socket.recv(&mut buffer).unwrap();
        drop(socket);
    });
    let (report, error) = run::run(&load, &options).unwrap();
    killer.join().unwrap();
    assert!(
        matches!(&error, Some(RunError::Target(text)) if text.contains("nothing listens")),
        "{error:?}"
    );
    assert!(report.packets >= 1 && report.elapsed < Duration::from_secs(5));

    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let load = yaml("{contexts: 10, throttle: all_out}", Transport::Tcp);
    options.target = Target::Tcp(listener.local_addr().unwrap());
    let killer = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut buffer = [0u8; 1000];
        stream.read_exact(&mut buffer).unwrap();
    });
    let (_, error) = run::run(&load, &options).unwrap();
    killer.join().unwrap();
    assert!(matches!(&error, Some(RunError::Target(_))), "{error:?}");
}

#[test]
fn framing_that_the_target_cannot_parse_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let load = yaml("{contexts: 10, throttle: all_out}", Transport::Unixgram);
    let mut options = Options::new(Target::Unixgram(folder.path().join("x")));
    options.count = Some(1);
    options.framing = Some(Framing::Length);
    let error = run::run(&load, &options).unwrap_err();
    assert!(
        matches!(&error, RunError::Usage(text) if text.contains("junk")),
        "{error}"
    );
    let mut endless = options.clone();
    endless.count = None;
    let error = run::run(&load, &endless).unwrap_err();
    assert!(error.to_string().contains("--duration"), "{error}");
}

#[test]
fn a_prebuilt_load_that_would_repeat_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let null = Null::open(Transport::Unixgram, folder.path(), NullOptions::default()).unwrap();
    let mut load = yaml(
        "{contexts: 10, rate: 1 MB/s, prebuilt: 500 kB}",
        Transport::Unixgram,
    );
    load.profile.mode = Mode::Prebuilt;
    let mut options = Options::new(null.target());
    options.duration = Some(Duration::from_secs(1));
    options.no_repeat = true;
    let error = run::run(&load, &options).unwrap_err();
    assert!(error.to_string().contains("no-repeat"), "{error}");
    load.profile.prebuilt = Bytes(2_000_000);
    let report = send(&load, &options);
    assert!(report.sent[0].composed <= report.sent[0].cycle.unwrap());
}

#[test]
fn markers_are_sent_in_band_and_kept_out_of_the_counts() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let load = yaml("{contexts: 10, rate: 100 packets/s}", Transport::Unixgram);
    let mut options = Options::new(Target::Unixgram(path));
    // The test stops it once it has its markers: a pause of the machine, or markers without room, only make it longer.
    options.duration = Some(PATIENCE);
    options.markers = Some(Duration::from_millis(100));
    let running = run::start(&load, &options).unwrap();
    let mut markers = Vec::new();
    let mut others = 0u64;
    let mut buffer = vec![0u8; 65_536];
    while markers.len() < 3 {
        let read = socket.recv(&mut buffer).unwrap();
        match std::str::from_utf8(&buffer[..read])
            .unwrap()
            .strip_prefix("weir.load.marker:")
        {
            Some(rest) => markers.push(rest.trim_end_matches("|g").parse::<u64>().unwrap()),
            None => others += 1,
        }
    }
    running.stop.store(true, Relaxed);
    socket.set_nonblocking(true).unwrap();
    while !running.is_finished() {
        match socket.recv(&mut buffer) {
            Ok(read) if buffer[..read].starts_with(b"weir.load.marker") => {}
            Ok(_) => others += 1,
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
    let (report, error) = running.finish();
    assert!(error.is_none());
    while let Ok(read) = socket.recv(&mut buffer) {
        if !buffer[..read].starts_with(b"weir.load.marker") {
            others += 1;
        }
    }
    assert_eq!(markers, [1, 2, 3]);
    assert_eq!(report.packets, others);
    assert!(report.markers.len() >= 3 && report.markers[0].sent_unix_ns > 0);
}

#[test]
fn recorded_packets_are_replayed_byte_for_byte_at_their_pace() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let socket = UnixDatagram::bind(&path).unwrap();
    let packets: Vec<Recorded> = (0..5u8)
        .map(|index| Recorded {
            at: Duration::from_millis(40 * u64::from(index)),
            bytes: format!("a{index}:1|c").into_bytes(),
        })
        .collect();
    let options = replay::Options {
        target: Target::Unixgram(path),
        speed: Some(2.0),
        rounds: 1,
        framing: None,
    };
    let done = replay::replay(&packets, &options).unwrap();
    assert_eq!(done.packets, 5);
    assert!(done.elapsed >= Duration::from_millis(80), "{:?}", done.elapsed);
    let mut buffer = [0u8; 100];
    for packet in &packets {
        let read = socket.recv(&mut buffer).unwrap();
        assert_eq!(&buffer[..read], packet.bytes);
    }
}

#[test]
fn equal_datagrams_are_handed_over_glued_and_arrive_apart() {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let target = Target::Udp(socket.local_addr().unwrap());
    let load = yaml(
        "{contexts: 100, throttle: all_out, packet_size: {exactly: 1432}}",
        Transport::Udp,
    );
    let mut options = Options::new(target);
    options.count = Some(300);
    options.gso = true;
    let report = send(&load, &options);
    // 45 datagrams of this size make 64 kB. A kernel without segmentation offload gets them one by one.
    assert!(!report.gso || report.system_calls < report.packets, "{report:?}");
    let mut digest = 0;
    let mut buffer = vec![0u8; 65_536];
    for _ in 0..report.packets {
        let read = socket.recv(&mut buffer).unwrap();
        assert_eq!(read, 1432);
        digest = truth::digest_packet(digest, &buffer[..read]);
    }
    let sent = truth::replay(&load, &report.sent, &Detail::default());
    assert_eq!(sent.digest, format!("xxh3:{digest:016x}"));
    for (load, text) in [
        (
            yaml("{contexts: 10, throttle: all_out}", Transport::Udp),
            "exactly",
        ),
        (
            yaml(
                "{contexts: 10, throttle: all_out, packet_size: {exactly: 1432}}",
                Transport::Tcp,
            ),
            "udp",
        ),
    ] {
        let error = run::run(&load, &options).unwrap_err();
        assert!(error.to_string().contains(text), "{error}");
    }
}

#[test]
fn a_profile_may_say_how_a_stream_is_framed() {
    let folder = tempfile::tempdir().unwrap();
    for (framing, extra) in [("length", 4), ("newline", 1)] {
        let load = yaml(
            &format!("{{contexts: 100, throttle: all_out, framing: {framing}}}"),
            Transport::Tcp,
        );
        let null = Null::open(Transport::Tcp, folder.path(), NullOptions::default()).unwrap();
        let mut options = Options::new(null.target());
        options.count = Some(500);
        let report = send(&load, &options);
        let bytes = report.bytes + extra * report.packets;
        until("all bytes arrive", || null.bytes() >= bytes);
        assert_eq!(null.bytes(), bytes, "{framing}");
    }
}

#[test]
fn payloads_that_a_transport_cannot_carry_are_refused_before_sending() {
    for (name, transport) in [
        ("dd-logs", Transport::Udp),
        ("otlp-metrics", Transport::Tcp),
        ("dd-traces-msgpack", Transport::Unixgram),
        ("statsd-plain", Transport::Http),
    ] {
        let profile = profiles::named(name).unwrap();
        let error = Load::prepare(name, &profile, transport, 1).err().unwrap();
        assert!(error.0.contains("is not carried over"), "{name}: {error}");
    }
}

#[test]
fn what_columns_cannot_say_is_refused_with_its_keys() {
    let error = |text: &str| {
        let profile = Profile::from_yaml(text).unwrap();
        Load::prepare("test", &profile, Transport::Http, 1)
            .err()
            .unwrap()
            .0
    };
    let metrics = "types: {count: 1, gauge: 1, distribution: 1}";
    for (text, part) in [
        ("{contexts: 10}", "set types.set, types.histogram to nothing"),
        (
            &format!("{{{metrics}, malformed_p: 0.1}}"),
            "set malformed_p to nothing",
        ),
        (
            &format!("{{{metrics}, container_id: {{pool: 3}}}}"),
            "set container_id to nothing",
        ),
        (
            &format!("{{{metrics}, packet_size: {{exactly: 1432}}}}"),
            "fillers",
        ),
        (&format!("{{{metrics}, mode: prebuilt}}"), "mode composed"),
    ] {
        assert!(error(text).contains(part), "{text}: {}", error(text));
    }
    for window in ["1500ms", "0s", "2h"] {
        let error = Profile::from_yaml(&format!("window: {window}")).unwrap_err();
        assert!(error.0.contains("window"), "{error}");
    }
}

/// For example, the null receiver must not leave a stale socket file.
#[test]
fn the_null_receiver_cleans_up() {
    let folder = tempfile::tempdir().unwrap();
    for transport in [Transport::Unixgram, Transport::Unix] {
        let null = Null::open(transport, folder.path(), NullOptions::default()).unwrap();
        let (Target::Unixgram(path) | Target::Unix(path)) = null.target() else {
            panic!("a path");
        };
        assert!(Path::new(&path).exists());
        drop(null);
        assert!(!Path::new(&path).exists());
    }
}
