//! `weir-bench load`, the real binary: its report equals the sent packets, bad input gives exit code 2, a target that is
//! missing or dies with 3, and nothing stays behind.

use serde_json::Value;
use std::collections::HashSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, UdpSocket};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

const BIN: &str = env!("CARGO_BIN_EXE_weir-bench");

fn bench(args: &[&str]) -> Output {
    Command::new(BIN).args(args).output().unwrap()
}

/// Runs it, expects success, and returns standard output.
fn good(args: &[&str]) -> Vec<u8> {
    let output = bench(args);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {errors}");
    output.stdout
}

fn terminate(child: &Child) {
    let status = Command::new("kill").arg(child.id().to_string()).status().unwrap();
    assert!(status.success());
}

/// However slow the machine: what takes longer is broken.
const PATIENCE: Duration = Duration::from_secs(60);

/// Polls until a condition holds; panics when that takes too long.
fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A sink in the background: its first address, and its result when it ends.
struct Sink {
    child: Child,
    out: BufReader<std::process::ChildStdout>,
    address: String,
}

impl Sink {
    fn start(args: &[&str]) -> Sink {
        let mut child = Command::new(BIN)
            .arg("sink")
            .args(args)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let address = json_line(&mut out)["address"].as_str().unwrap().to_owned();
        assert_eq!(json_line(&mut out)["ready"], true);
        Sink { child, out, address }
    }

    /// Ends it once everything has been sent; what waits in its sockets counts. Exit code and result.
    fn finish(mut self) -> (i32, Value) {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").arg(&id).status().unwrap().success());
        let line = json_line(&mut self.out);
        (self.child.wait().unwrap().code().unwrap(), line["result"].clone())
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn json_line(out: &mut impl BufRead) -> Value {
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    serde_json::from_str(&line).unwrap_or_else(|error| panic!("{line:?}: {error}"))
}

fn entries(folder: &Path) -> Vec<String> {
    std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect()
}

#[test]
fn bad_input_is_refused_with_the_allowed_values() {
    let dir = tempfile::tempdir().unwrap();
    let file = |text: &str| {
        let path = dir.path().join(format!("{}.yaml", entries(dir.path()).len()));
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    let to = format!("udp://{}", udp.local_addr().unwrap());
    let refused = |args: &[&str], hint: &str| {
        let output = bench(args);
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {text}");
        assert!(text.contains(hint), "{args:?}: {text}");
        assert!(!text.contains("panicked"), "{args:?}: {text}");
    };
    let run = |profile: &str, more: &[&str], hint: &str| {
        let mut args = vec!["load", "run", profile, "--to", &to, "--duration", "1s"];
        args.extend(more);
        refused(&args, hint);
    };
    run("real-wep", &[], "did you mean \"real-web\"");
    run(
        "interner-18446744073709551615MiB-1k",
        &[],
        "neither a named profile",
    );
    run("real-web", &["--rate", "8 Kb/s"], "ambiguous");
    run("real-web", &["--rate", "100"], "does not end in /s");
    run("real-web", &["--cpu", "4095"], "may use");
    run("real-web", &["--framing", "length"], "junk");
    run("real-web", &["--gso"], "exactly");
    run("real-web", &["--seed", "minus one"], "64 hexadecimal digits");
    run("big-messages", &[], "65507");
    run("otlp-logs", &[], "allowed: http or grpc");
    run("real-web", &["--quantum", "0ms"], "10us");
    run("real-web", &["--markers", "0s"], "10us");
    run("real-web", &["--count", "0"], "nothing");
    run("real-web", &["--manifest", "/nonexistent/m"], "/nonexistent");
    run("real-web", &["--capture", "/nonexistent/c"], "/nonexistent");
    run(&file("packet_size: 1000 GB"), &[], "64 MiB");
    run(&file("{prebuilt: 1000 GB, mode: prebuilt}"), &[], "16384 MiB");
    run(
        &file("{value: {pool: 65536}, multivalue_n: 2..4096}"),
        &[],
        "268435456",
    );
    for (profile, to, hint) in [
        ("real-web", "grpc://127.0.0.1:1", "takes otlp-logs"),
        (
            "real-web",
            "http://127.0.0.1:1",
            "set types.set, types.histogram to nothing",
        ),
        ("dd-logs", "grpc://127.0.0.1:1", "takes otlp-logs"),
        ("otlp-logs", "grpc://127.0.0.1", "host:port"),
    ] {
        refused(&["load", "run", profile, "--to", to, "--duration", "1s"], hint);
    }
    for flags in [["--precision", "0"], ["--loss", "2"], ["--probe", "0s"]] {
        refused(
            &[&["load", "search", "real-web", "--to", &to][..], &flags[..]].concat(),
            flags[0],
        );
    }
    run(&file("contextz: 5"), &[], "contextz");
    run(&file("rate: 8 Mb/s"), &[], "ambiguous");
    run(&file("packet_size: 8 Kb\nrate: 1 msg/s"), &[], "ambiguous");
    run(&file("tags_per_msg: 9..3"), &[], "9 is above 3");
    run(&file("name_len: 0..5"), &[], "outside 1..4096");
    run(&file("contexts: 10"), &[], "give --rate or --all-out");
    run(&file("throttle: {trace: /nonexistent}"), &[], "/nonexistent");
    run(
        &file("{contexts: 5000000, distinct_names: 2, distinct_tag_lists: 2, rate: 1 msg/s}"),
        &[],
        "are 4",
    );
    let prebuilt = file("{mode: prebuilt, prebuilt: 100 kB, rate: 10 MB/s}");
    run(&prebuilt, &["--no-repeat"], "do not fit the prebuilt");
    for duration in ["1", "99999999999999999999h"] {
        refused(
            &["load", "run", "real-web", "--to", &to, "--duration", duration],
            "duration",
        );
    }
    refused(&["load", "run", "real-web", "--to", &to], "--duration");
    refused(
        &[
            "load",
            "run",
            "real-web",
            "--to",
            "localhost:8125",
            "--count",
            "1",
        ],
        "udp://host:port",
    );
    refused(
        &[
            "load",
            "run",
            "real-web",
            "--to",
            "unix://relative",
            "--count",
            "1",
        ],
        "absolute",
    );
    refused(&["load", "run"], "PROFILE");
    refused(
        &["load", "inspect", "/nonexistent.yaml"],
        "neither a named profile nor a file",
    );
    refused(&["load", "calibrate", "real-web", "--cpu", "0"], "two processors");
    refused(&["load", "learn", "/nonexistent"], "/nonexistent");
    refused(&["load", "learn", BIN], "known formats");
    refused(&["load", "replay", "/nonexistent", "--to", &to], "/nonexistent");
    refused(
        &["load", "search", "real-web", "--to", &to, "--up-to", "5 MB/s"],
        "same unit",
    );
    refused(
        &[
            "load",
            "files",
            "budget-1k",
            "--folder",
            "/tmp",
            "--duration",
            "1s",
            "--rate",
            "5 msg/s",
        ],
        "bytes",
    );
    refused(
        &[
            "load",
            "tree",
            "--folder",
            "/tmp/x",
            "--duration",
            "1s",
            "--depth",
            "20",
        ],
        "a million",
    );
}

/// The packets that a load of a file with this content sent to a Unix datagram socket, and its manifest.
fn sent_of_file(content: &[u8], flags: &[&str]) -> (Vec<Vec<u8>>, Value) {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    std::fs::write(path("payload"), content).unwrap();
    let socket = UnixDatagram::bind(path("in.sock")).unwrap();
    let (to, payload, manifest) = (
        format!("unixgram://{}", path("in.sock")),
        path("payload"),
        path("manifest"),
    );
    let mut args = vec![
        "load",
        "run",
        "--file",
        &payload,
        "--to",
        &to,
        "--manifest",
        &manifest,
    ];
    args.extend(flags);
    let reader = std::thread::spawn(move || {
        let mut packets = Vec::new();
        let mut buffer = [0; 65536];
        loop {
            match socket.recv(&mut buffer).unwrap() {
                0 => return packets,
                length => packets.push(buffer[..length].to_vec()),
            }
        }
    });
    good(&args);
    let end = UnixDatagram::unbound().unwrap();
    end.send_to(b"", path("in.sock")).unwrap();
    let manifest = std::fs::read_to_string(path("manifest")).unwrap();
    (reader.join().unwrap(), serde_json::from_str(&manifest).unwrap())
}

#[test]
fn a_file_of_lines_or_recorded_packets_is_sent_in_its_order_and_again() {
    let (packets, manifest) = sent_of_file(b"a:1|c\nb:2|c\n\nc:3|c\n", &["--all-out", "--count", "7"]);
    assert_eq!(packets, vec![b"a:1|c\nb:2|c\nc:3|c".to_vec(); 3]);
    assert_eq!(manifest["totals"]["messages"], 9);
    let recorded = b"\x05\0\0\0a:1|c\x0b\0\0\0b:1|c\nc:2|g";
    let (packets, manifest) = sent_of_file(recorded, &["--rate", "1k msg/s", "--count", "4"]);
    assert_eq!(packets, [&b"a:1|c"[..], b"b:1|c\nc:2|g", b"a:1|c"]);
    assert_eq!(
        (&manifest["totals"]["messages"], &manifest["totals"]["bytes"]),
        (&4.into(), &21.into())
    );
}

#[test]
fn requests_of_a_file_are_answered_and_counted() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let (requests, manifest, record) = (path("r.http"), path("manifest"), path("requests.jsonl"));
    let text = "POST /in?x=1\nX-Own: yes\n\n{\"a\":1}\n###\nGET /health\n";
    std::fs::write(&requests, text).unwrap();
    let sink = Sink::start(&["--listen", "http=127.0.0.1:0", "--requests", &record]);
    let to = format!("{}/", sink.address);
    good(&[
        "load",
        "run",
        "--file",
        &requests,
        "--to",
        &to,
        "--all-out",
        "--count",
        "5",
        "--manifest",
        &manifest,
    ]);
    let manifest: Value = serde_json::from_str(&std::fs::read_to_string(manifest).unwrap()).unwrap();
    let totals = &manifest["totals"];
    assert_eq!(
        (&totals["messages"], &totals["acknowledged"]),
        (&5.into(), &5.into())
    );
    assert_eq!(sink.finish().0, 0);
    let record = std::fs::read_to_string(record).unwrap();
    let paths: Vec<Value> = record
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["path"].clone())
        .collect();
    assert_eq!(paths, ["/in", "/health", "/in", "/health", "/in"]);
    // Text that is no requests, and none at all, are refused before anything is sent.
    for (content, hint) in [("hello\n", "line 1"), ("", "nothing to send")] {
        std::fs::write(&requests, content).unwrap();
        let output = bench(&[
            "load",
            "run",
            "--file",
            &requests,
            "--to",
            "http://127.0.0.1:9/",
            "--all-out",
        ]);
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && text.contains(hint), "{text}");
    }
}

#[test]
fn missing_and_dying_targets_end_with_code_3() {
    let dir = tempfile::tempdir().unwrap();
    let ends = |args: &[&str], hint: &str| {
        let output = bench(args);
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(3), "{args:?}: {text}");
        assert!(text.contains(hint), "{args:?}: {text}");
        output.stdout
    };
    // The kernel hands out no port below 1024.
    let (closed, refusing) = ("127.0.0.1:1", "127.0.0.1:1");
    let nobody = format!("unixgram://{}/nobody", dir.path().display());
    for (to, hint) in [
        (format!("udp://{closed}"), "nothing listens there"),
        (format!("tcp://{refusing}"), "cannot connect"),
        (nobody, "cannot connect"),
    ] {
        ends(
            &["load", "run", "real-web", "--to", &to, "--duration", "20s"],
            hint,
        );
        let hint = if to.starts_with("udp") { "" } else { hint };
        ends(&["load", "search", "real-web", "--to", &to], hint);
    }
    // Requests: nobody there, something that is no gRPC server, one that rejects, and one that dies.
    let otlp = |to: &str, hint: &str| {
        ends(
            &["load", "run", "otlp-logs", "--to", to, "--duration", "20s"],
            hint,
        );
    };
    otlp(&format!("grpc://{refusing}"), "cannot connect");
    for (kind, fault, hint) in [
        ("http", "status=200", "HTTP status 200 and no gRPC status"),
        ("otlp-grpc", "grpc-status=16", "answered gRPC status 16"),
        ("otlp-grpc", "close=before", "grpc://"),
    ] {
        let listen = format!("{kind}=127.0.0.1:0");
        let sink = Sink::start(&["--listen", &listen, "--fault", fault]);
        otlp(&sink.address.replace("http://", "grpc://"), hint);
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let old = format!("grpc://{}", listener.local_addr().unwrap());
    // However often it is tried: the thread ends with the process.
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let _ = stream.unwrap().write_all(
                b"HTTP/1.1 400 Bad Request

",
            );
        }
    });
    otlp(&old, "grpc://");

    let path = dir.path().join("dies");
    let manifest = dir.path().join("manifest");
    let socket = UnixDatagram::bind(&path).unwrap();
    let killer = std::thread::spawn(move || {
        let mut buffer = [0u8; 65_536];
        for _ in 0..10 {
            socket.recv(&mut buffer).unwrap();
        }
    });
    let to = format!("unixgram://{}", path.display());
    let args = [
        "load",
        "run",
        "real-web",
        "--to",
        &to,
        "--duration",
        "60s",
        "--manifest",
    ];
    let out = ends(
        &[&args[..], &[manifest.to_str().unwrap()]].concat(),
        "nothing listens there",
    );
    killer.join().unwrap();
    let line: Value = serde_json::from_slice(&out).unwrap();
    assert_eq!(line["verdict"], "aborted");
    // The amount sent until then is known anyway.
    let truth: Value = serde_json::from_slice(&std::fs::read(&manifest).unwrap()).unwrap();
    assert_eq!(truth["totals"]["packets"], line["packets"]);
    assert!(line["packets"].as_u64().unwrap() >= 10);
    assert_eq!(truth["sending"]["verdict"], "aborted");
}

#[test]
fn a_signal_ends_a_run_early_and_the_books_are_whole() {
    let dir = tempfile::tempdir().unwrap();
    let manifest = dir.path().join("manifest");
    let socket = UnixDatagram::bind(dir.path().join("s")).unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    let child = Command::new(BIN)
        .args([
            "load",
            "run",
            "real-web",
            "--rate",
            "200 packets/s",
            "--duration",
            "10m",
            "--to",
        ])
        .arg(format!("unixgram://{}/s", dir.path().display()))
        .arg("--manifest")
        .arg(&manifest)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut buffer = [0u8; 65_536];
    let mut bytes = 0;
    let mut packets = 0u64;
    until("packets arrive", || {
        if let Ok(read) = socket.recv(&mut buffer) {
            bytes += read as u64;
            packets += 1;
        }
        packets >= 20
    });
    terminate(&child);
    let output = child.wait_with_output().unwrap();
    while let Ok(read) = socket.recv(&mut buffer) {
        bytes += read as u64;
        packets += 1;
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && errors.contains("stopped by a signal"),
        "{errors}"
    );
    let truth: Value = serde_json::from_slice(&std::fs::read(&manifest).unwrap()).unwrap();
    assert_eq!(truth["totals"]["packets"], packets);
    assert_eq!(truth["totals"]["bytes"], bytes);
}

#[test]
fn calibration_cleans_up_even_when_it_is_terminated() {
    let dir = tempfile::tempdir().unwrap();
    let start = |duration: &str| {
        Command::new(BIN)
            .args([
                "load",
                "calibrate",
                "budget-1k",
                "--no-store",
                "--duration",
                duration,
            ])
            .env("TMPDIR", dir.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    };
    let output = start("200ms").wait_with_output().unwrap();
    let line: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(line["received_share"], 1.0);
    assert!(entries(dir.path()).is_empty());
    // Composing alone takes a tenth of it; then the socket is there.
    let child = start("20s");
    until("the null receiver's socket", || {
        entries(dir.path())
            .first()
            .is_some_and(|folder| !entries(&dir.path().join(folder)).is_empty())
    });
    terminate(&child);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(entries(dir.path()).is_empty());
}

/// From the generator's tables through a socket and the sink's own parser, compared context by context.
#[test]
fn what_the_sink_receives_equals_the_oracle() {
    let dir = tempfile::tempdir().unwrap();
    for profile in [
        "oracle-small",
        "collide",
        "type-conflict",
        "events-and-checks",
        "tag-permute",
        "tag-dup",
        "small-packets",
        "interner-8MiB-100@tags-unique",
        "smp-adp-low",
        "flood-plus-hot",
        "churn-slow",
    ] {
        let manifest = dir.path().join(format!("{profile}.json"));
        let socket = format!("unixgram://{}/{profile}", dir.path().display());
        let manifest = manifest.to_str().unwrap();
        let listen = format!("statsd={socket}");
        let sink = Sink::start(&["--listen", &listen, "--oracle", manifest]);
        assert_eq!(sink.address, socket);
        let args = [
            "load",
            "run",
            profile,
            "--count",
            "10000",
            "--to",
            &socket,
            "--manifest",
            manifest,
        ];
        good(&[&args[..], &["--contexts", "--all-out"]].concat());
        let (code, result) = sink.finish();
        assert_eq!(code, 0, "{profile}: {result}");
        assert_eq!(result["oracle"]["statsd"]["equal"], true, "{profile}");
    }
}

#[test]
fn records_are_decoded_as_their_declared_kind() {
    let dir = tempfile::tempdir().unwrap();
    for (profile, kind, path, key) in [
        ("dd-logs", "datadog", "/", "logs"),
        ("otlp-logs", "otlp-http", "/", "logs"),
        ("otlp-metrics", "otlp-http", "/", "points"),
        ("otlp-traces", "otlp-http", "/", "spans"),
        ("otlp-logs", "otlp-grpc", "", "logs"),
        ("otlp-metrics", "otlp-grpc", "", "points"),
        ("otlp-traces", "otlp-grpc", "", "spans"),
        ("dd-traces-json", "http", "/v0.3/traces", ""),
    ] {
        let manifest = dir.path().join("manifest");
        let capture = dir.path().join("capture");
        let listen = format!("{kind}=127.0.0.1:0");
        let sink = Sink::start(&[
            "--listen",
            &listen,
            "--strict",
            "--capture",
            capture.to_str().unwrap(),
        ]);
        let mut to = format!("{}{path}", sink.address);
        if kind == "otlp-grpc" {
            to = to.replace("http://", "grpc://");
        }
        let header = if kind == "datadog" {
            "DD-API-KEY: k"
        } else {
            "X-Nothing: k"
        };
        good(&[
            "load",
            "run",
            profile,
            "--count",
            "3000",
            "--all-out",
            "--to",
            &to,
            "--header",
            header,
            "--manifest",
            manifest.to_str().unwrap(),
        ]);
        let (code, result) = sink.finish();
        assert_eq!(code, 0, "{profile}: {result}");
        let truth: Value = serde_json::from_slice(&std::fs::read(&manifest).unwrap()).unwrap();
        let stats = &result["sinks"][kind];
        assert_eq!(
            stats["requests"], truth["totals"]["packets"],
            "{profile}: {stats}"
        );
        // gRPC's framing of a message is not part of it.
        let bytes = if kind == "otlp-grpc" {
            "uncompressed"
        } else {
            "bytes"
        };
        assert_eq!(stats[bytes], truth["totals"]["bytes"], "{profile}: {stats}");
        if key == "spans" {
            // A record is a trace of several spans.
            let captured = std::fs::read_to_string(&capture).unwrap();
            let traces: HashSet<String> = captured
                .lines()
                .map(|line| serde_json::from_str::<Value>(line).unwrap()["span"]["trace_id"].to_string())
                .collect();
            assert_eq!(stats[key], captured.lines().count(), "{profile}: {stats}");
            assert_eq!(traces.len() as u64, truth["totals"]["records"], "{profile}");
        } else if !key.is_empty() {
            assert_eq!(stats[key], truth["totals"]["records"], "{profile}: {stats}");
        }
    }
}

#[test]
fn dumps_repeat_and_feed_learn_and_replay() {
    let dir = tempfile::tempdir().unwrap();
    let dump = |more: &[&str]| good(&[&["load", "dump", "budget-1k", "--count", "5000"], more].concat());
    let digest = dump(&["--digest"]);
    assert_eq!(digest, dump(&["--digest"]));
    assert_ne!(digest, dump(&["--digest", "--seed", "2"]));
    let text = String::from_utf8(dump(&[])).unwrap();
    assert!(text.lines().count() >= 5000);
    let inspected: Value = serde_json::from_slice(&good(&[
        "load",
        "inspect",
        "budget-1k",
        "--packets",
        "500",
        "--json",
    ]))
    .unwrap();
    assert_eq!(inspected["contexts"], 1000);
    assert_eq!(inspected["totals"]["repeated_packets"], 0);

    let raw = dir.path().join("packets");
    std::fs::write(&raw, dump(&["--raw"])).unwrap();
    let learned = dir.path().join("learned.yaml");
    std::fs::write(&learned, good(&["load", "learn", raw.to_str().unwrap()])).unwrap();
    let shown = good(&[
        "load",
        "inspect",
        learned.to_str().unwrap(),
        "--packets",
        "100",
        "--json",
    ]);
    let shown: Value = serde_json::from_slice(&shown).unwrap();
    assert_eq!(shown["contexts"], 1000);

    let socket = UnixDatagram::bind(dir.path().join("s")).unwrap();
    let reader = std::thread::spawn(move || {
        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let mut buffer = [0u8; 65_536];
        let mut lines = Vec::new();
        loop {
            let read = socket.recv(&mut buffer).unwrap();
            if &buffer[..read] == b"end" {
                return lines;
            }
            lines.extend_from_slice(&buffer[..read]);
            lines.push(b'\n');
        }
    });
    let to = format!("unixgram://{}/s", dir.path().display());
    good(&["load", "replay", raw.to_str().unwrap(), "--to", &to]);
    UnixDatagram::unbound()
        .unwrap()
        .send_to(b"end", dir.path().join("s"))
        .unwrap();
    assert_eq!(reader.join().unwrap(), text.as_bytes());
}

#[test]
fn no_repeat_compares_all_packets() {
    let dir = tempfile::tempdir().unwrap();
    let socket = UnixDatagram::bind(dir.path().join("s")).unwrap();
    let reader = std::thread::spawn(move || {
        let mut buffer = [0u8; 65_536];
        while socket.recv(&mut buffer).unwrap() > 3 {}
    });
    let to = format!("unixgram://{}/s", dir.path().display());
    let run = |profile: &str| {
        bench(&[
            "load",
            "run",
            profile,
            "--to",
            &to,
            "--count",
            "20000",
            "--all-out",
            "--no-repeat",
        ])
    };
    let output = run("small-packets");
    let line: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(output.status.success());
    assert_eq!(
        (&line["repeated_packets"], &line["packets"]),
        (&0.into(), &20_000.into())
    );
    let constant = dir.path().join("constant.yaml");
    std::fs::write(
        &constant,
        "{contexts: 5, messages_per_packet: 1, value: {kind: {constant: 1}}}",
    )
    .unwrap();
    let output = run(constant.to_str().unwrap());
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("equal an earlier one"), "{text}");
    UnixDatagram::unbound()
        .unwrap()
        .send_to(b"end", dir.path().join("s"))
        .unwrap();
    reader.join().unwrap();
}

#[test]
fn files_rotate_and_trees_grow() {
    let dir = tempfile::tempdir().unwrap();
    let folder = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let out = good(&[
        "load",
        "files",
        "json-logs",
        "--folder",
        &folder("logs"),
        "--files",
        "2",
        "--rotate-at",
        "10 kB",
        "--rate",
        "200 kB/s",
        "--duration",
        "500ms",
    ]);
    let line: Value = serde_json::from_slice(&out).unwrap();
    assert!(line["rotations"].as_u64().unwrap() > 0, "{line}");
    let mut written = 0;
    for name in entries(&dir.path().join("logs")) {
        std::fs::File::open(dir.path().join("logs").join(name))
            .unwrap()
            .read_to_end(&mut Vec::new())
            .map(|bytes| written += bytes as u64)
            .unwrap();
    }
    assert!(written > 0 && written <= line["bytes"].as_u64().unwrap());
    let out = good(&[
        "load",
        "tree",
        "--folder",
        &folder("tree"),
        "--depth",
        "2",
        "--width",
        "3",
        "--files",
        "2",
        "--renames",
        "100",
        "--duration",
        "200ms",
    ]);
    let line: Value = serde_json::from_slice(&out).unwrap();
    assert_eq!((&line["folders"], &line["files"]), (&4.into(), &8.into()));
    assert!(line["renames"].as_u64().unwrap() > 0);
}
