//! Captures of the real binary: other readers read them, other writers' are replayed, and replaying one gives the same points.

use crate::support;
use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{TcpStream, UdpSocket};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use support::{Agent, get, signal, status, until, weir};

/// One bucket that does not end before the agent does.
const CONFIG: &str = "bucket_width: LONG\nworkers: 1\noutputs: {stdout: {enabled: true}}\n";

/// `weir capture` under way.
pub struct Capturing(Child);

impl Capturing {
    /// Begins, and waits until packets are seen.
    pub fn start(admin: &str, file: &Path, arguments: &[&str]) -> Capturing {
        let mut child = Command::new(env!("CARGO_BIN_EXE_weir"))
            .args(["capture", "--admin", admin, "--out"])
            .arg(file)
            .args(arguments)
            .env_clear()
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = Vec::new();
        let mut byte = [0];
        let stderr = child.stderr.as_mut().unwrap();
        while !said.ends_with(b"\n") {
            assert_eq!(
                stderr.read(&mut byte).unwrap(),
                1,
                "{}",
                String::from_utf8_lossy(&said)
            );
            said.push(byte[0]);
        }
        assert!(
            said.starts_with(b"capturing for "),
            "{}",
            String::from_utf8_lossy(&said)
        );
        Capturing(child)
    }

    /// As Ctrl-C does it.
    fn interrupt(self) -> String {
        signal(self.0.id(), "-INT");
        self.end()
    }

    pub fn end(mut self) -> String {
        let mut said = String::new();
        self.0.stdout.take().unwrap().read_to_string(&mut said).unwrap();
        assert!(self.0.wait().unwrap().success(), "{said}");
        said
    }
}

/// Values by metric and tags, whatever the time.
fn points(stdout: &str) -> BTreeMap<String, Value> {
    let lines = stdout
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap());
    lines
        .filter(|line| line["metric"].is_string())
        .map(|mut line| {
            line["ts"] = Value::Null;
            (
                format!("{} {} {}", line["metric"], line["type"], line["tags"]),
                line,
            )
        })
        .collect()
}

fn packets_captured(admin: &str) -> u64 {
    status(admin)["taps"]["packets"].as_u64().unwrap()
}

/// Traffic of all kinds; returns the number of packets.
fn send_traffic(agent: &Agent) -> u64 {
    let rounds = 200;
    for round in 0..rounds {
        agent.send(&format!(
            "page.views:{}|c|#user:u{}\nlatency:{}.5|d|#user:u{}\ntime:{round}|ms|@0.5\nwho:m{}|s\nqueue:{round}|g\nbroken",
            round % 7,
            round % 3,
            round * 3 % 50,
            round % 4,
            round % 11
        ));
    }
    rounds
}

/// Captures that are interrupted, full, or end with the agent. Their metrics are `part` or the traffic.
#[test]
fn captures_are_whole_whatever_ends_them_and_a_replayed_one_gives_the_same_points() {
    let directory = tempfile::tempdir().unwrap();
    let (part, file) = (
        directory.path().join("part.dog"),
        directory.path().join("all.dog"),
    );
    let first = Agent::start(CONFIG, &[]);
    let admin = first.admin.clone();
    let capturing = Capturing::start(&admin, &part, &["--for", "10m", "--plain"]);
    let mut parts = 0;
    let mut send = |lines: usize| {
        first.send("part:1|c\n".repeat(lines));
        parts += 1;
    };
    // An interrupt comes before what is on its way.
    until("some of it is in the file", || {
        send(100);
        std::fs::metadata(&part).is_ok_and(|file| file.len() > 0)
    });
    let said = capturing.interrupt();
    assert!(said.contains("interrupted"), "{said}");
    assert!(weir_load::recorded::read(&part, None).is_ok());
    let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
    let to = format!("udp://{}", receiver.local_addr().unwrap());
    let (good, said) = weir(&["replay", part.to_str().unwrap(), "--to", &to, "--speed", "max"]);
    assert!(good, "{said}");

    until("it has ended", || status(&admin)["taps"]["streams"] == 0);
    let capturing = Capturing::start(&admin, &part, &["--for", "10m", "--bytes", "4KiB"]);
    until("it is full", || {
        send(200);
        status(&admin)["taps"]["streams"] == 0
    });
    let said = capturing.end();
    assert!(said.contains("it has 4096 bytes"), "{said}");
    until("the next one begins behind them", || {
        status(&admin)["total"]["packets"]["parsed"] == parts
    });

    let before = packets_captured(&admin);
    let capturing = Capturing::start(&admin, &file, &["--for", "10m"]);
    let sent = send_traffic(&first);
    until("all are captured", || packets_captured(&admin) == before + sent);
    let (code, body) = get(&admin, "/api/v1/capture");
    assert!(
        code == 409 && body.contains("one runs at a time"),
        "{code} {body}"
    );
    let (stdout, _) = first.stop();
    // Its end ends the capture, whole.
    let said = capturing.end();
    assert!(
        said.contains("200 packets") && said.contains("the agent ended"),
        "{said}"
    );
    let mut before = points(&stdout);
    before.retain(|key, _| !key.starts_with("\"part\""));
    assert!(before.len() > 10, "{before:?}");

    let mut second = Agent::start(CONFIG, &[]);
    let admin = second.wait_for("admin on http://");
    let to = format!("udp://{}", second.address());
    let (good, said) = weir(&["replay", file.to_str().unwrap(), "--to", &to, "--speed", "10x"]);
    assert!(good && said.contains("200 packets"), "{said}");
    until("all have come", || {
        status(&admin)["total"]["packets"]["parsed"] == sent
    });
    let (stdout, _) = second.stop();
    assert_eq!(points(&stdout), before);

    // The rig reads it as well.
    let recorded = weir_load::recorded::read(&file, None).unwrap();
    assert_eq!(recorded.len(), 200);
}

/// The decoder that is made of the Agent's own messages. `None`, with a word about it, where there is no Go.
fn decoder(directory: &Path) -> Option<std::path::PathBuf> {
    if Command::new("go").arg("version").output().is_err() {
        eprintln!("skipped: there is no Go here, with which the Datadog Agent's own messages would be read");
        return None;
    }
    let program = directory.join("decoder");
    let built = Command::new("go")
        .args(["build", "-o"])
        .arg(&program)
        .arg(".")
        .current_dir(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../weir-output/tests/decoders/capture"
        ))
        .output()
        .unwrap();
    assert!(
        built.status.success(),
        "{}",
        String::from_utf8_lossy(&built.stderr)
    );
    Some(program)
}

#[test]
fn the_datadog_agents_own_messages_read_a_capture() {
    let directory = tempfile::tempdir().unwrap();
    let Some(decoder) = decoder(directory.path()) else {
        return;
    };
    let (file, socket) = (
        directory.path().join("part.dog"),
        directory.path().join("dsd.socket"),
    );
    let config = format!("{CONFIG}uds: {}\norigin_detection: true\n", socket.display());
    let mut agent = Agent::start(&config, &[]);
    let admin = agent.wait_for("admin on http://");
    let capturing = Capturing::start(&admin, &file, &["--for", "10m", "--match", "page.*"]);
    agent.send("other:1|c");
    agent.send("other:1|c\npage.views:1|c");
    let unix = std::os::unix::net::UnixDatagram::unbound().unwrap();
    unix.send_to(b"page.local:1|c", &socket).unwrap();
    until("all are seen", || packets_captured(&admin) == 3);
    // Captured packets are written during the capture.
    until("all are written", || std::fs::metadata(&file).is_ok());
    agent.stop();
    let said = capturing.end();
    assert!(said.contains("2 packets"), "{said}");

    let output = Command::new(decoder).arg(&file).output().unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(lines.len(), 3, "{text}");
    assert_eq!(lines[0]["payload"], "other:1|c\npage.views:1|c");
    assert_eq!(
        (&lines[0]["pid"], &lines[0]["ancillarySize"]),
        (&Value::from(0), &Value::from(0))
    );
    assert_eq!(lines[1]["payload"], "page.local:1|c");
    assert_eq!(lines[1]["pid"], std::process::id());
    assert_eq!(
        (&lines[1]["ancillarySize"], &lines[1]["ancillary"]),
        (&Value::from(32), &Value::from(32))
    );
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap();
    let age = now.as_nanos() as i64 - lines[0]["timestamp"].as_i64().unwrap();
    assert!((0..60_000_000_000).contains(&age), "{age} ns");
    assert!(lines[2]["pids"].is_number(), "{text}");
}

/// A file as the Agent writes it, byte by byte: packets with their nanoseconds.
fn agents_file(packets: &[(u64, &[u8])]) -> Vec<u8> {
    fn varint(out: &mut Vec<u8>, mut value: u64) {
        while value >= 0x80 {
            out.push(value as u8 | 0x80);
            value >>= 7;
        }
        out.push(value as u8);
    }
    let mut file = vec![0xd4, 0x74, 0xd0, 0x60, 0xf3, 0xff, 0, 0];
    for (time, payload) in packets {
        let mut message = vec![0x08];
        varint(&mut message, *time);
        message.push(0x10);
        varint(&mut message, payload.len() as u64);
        message.push(0x1a);
        // The Agent writes whole buffers: what is behind the payload is not of it.
        varint(&mut message, payload.len() as u64 + 3);
        message.extend_from_slice(payload);
        message.extend_from_slice(b"old");
        message.extend_from_slice(&[0x20, 42, 0x28, 0, 0x32, 0]);
        file.extend_from_slice(&(message.len() as u32).to_le_bytes());
        file.extend_from_slice(&message);
    }
    file.extend_from_slice(&[0; 4]);
    let state = b"\x12\x0a\x08\x2a\x12\x06docker";
    file.extend_from_slice(state);
    file.extend_from_slice(&(state.len() as u32).to_le_bytes());
    file
}

#[test]
fn captures_of_the_datadog_agent_are_replayed_at_their_times_or_refused_with_the_reason() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("agent.dog");
    let start = 1_700_000_000_000_000_000;
    let packets: [(u64, &[u8]); 3] = [
        (start, b"a:1|c"),
        (start + 100_000_000, b"b:1|c\nc:2|g"),
        (start + 400_000_000, b"d:1|c"),
    ];
    let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
    receiver.set_read_timeout(Some(support::PATIENCE)).unwrap();
    let to = format!("udp://{}", receiver.local_addr().unwrap());
    let plain = agents_file(&packets);
    let compressed = zstd::encode_all(&plain[..], 1).unwrap();
    for contents in [plain, compressed] {
        std::fs::write(&file, contents).unwrap();
        let begun = Instant::now();
        let (good, said) = weir(&["replay", file.to_str().unwrap(), "--to", &to, "--speed", "2x"]);
        assert!(good && said.contains("3 packets, 21 bytes"), "{said}");
        // Twice as fast, never faster.
        assert!(begun.elapsed() >= Duration::from_millis(200), "{said}");
        for (_, payload) in packets {
            let mut buffer = [0; 100];
            let length = receiver.recv(&mut buffer).unwrap();
            assert_eq!(&buffer[..length], payload);
        }
    }
    // Begins again until it is stopped.
    let mut looping = Command::new(env!("CARGO_BIN_EXE_weir"))
        .args([
            "replay",
            file.to_str().unwrap(),
            "--to",
            &to,
            "--speed",
            "max",
            "--loop",
        ])
        .env_clear()
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    for _ in 0..10 {
        receiver.recv(&mut [0; 100]).unwrap();
    }
    looping.kill().unwrap();
    looping.wait().unwrap();

    let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
    receiver.set_nonblocking(true).unwrap();
    let to = format!("udp://{}", receiver.local_addr().unwrap());
    let whole = agents_file(&[(1, b"a:1|c"), (2, b"b:1|c")]);
    let mut newer = whole.clone();
    newer[4] = 0xf9;
    let mut packed = zstd::encode_all(&agents_file(&[(1, &b"a:1|c"[..]); 500])[..], 1).unwrap();
    packed.truncate(packed.len() - 6);
    let cases: [(&[u8], &str); 8] = [
        (
            b"a:1|c\n",
            "not a DogStatsD capture: it begins with 61 3a 31 7c 63 0a",
        ),
        (b"", "begins with nothing at all"),
        (&newer, "version 9; known are the versions up to 3"),
        (&whole[..20], "truncated: it ends within packet 1"),
        (&whole[..whole.len() - 25], "packet"),
        (&whole[..whole.len() - 2], "without the state"),
        (&packed, "truncated: it ends"),
        (&agents_file(&[]), "it has no packets"),
    ];
    for (contents, part) in cases {
        std::fs::write(&file, contents).unwrap();
        let (good, said) = weir(&["replay", file.to_str().unwrap(), "--to", &to]);
        assert!(!good && said.contains(part), "{part}: {said}");
        assert!(receiver.recv(&mut [0; 10]).is_err(), "{part}");
    }
    let (good, said) = weir(&["replay", "/does/not/exist.dog", "--to", &to]);
    assert!(!good && said.contains("No such file"), "{said}");
    // Of a file that is cut, what is whole can be had.
    std::fs::write(&file, &whole[..whole.len() - 20]).unwrap();
    let (good, said) = weir(&[
        "replay",
        file.to_str().unwrap(),
        "--to",
        &to,
        "--partial",
        "--speed",
        "max",
    ]);
    assert!(good && said.contains("2 packets"), "{said}");
}

/// In the gate: `weir` tap::memory_is_reserved_until_a_block_is_dropped_and_losses_are_counted_once.
#[test]
#[ignore = "nightly: real rates"]
fn a_slow_reader_loses_captured_packets_and_ingest_loses_none() {
    let mut agent = Agent::start("bucket_width: 1s\nmemory: 64MiB\n", &[]);
    let admin = agent.wait_for("admin on http://");
    let mut reader = TcpStream::connect(&admin).unwrap();
    write!(
        reader,
        "GET /api/v1/capture?for=10m HTTP/1.1\r\nHost: localhost\r\n\r\n"
    )
    .unwrap();
    let mut head = [0; 400];
    assert!(reader.read(&mut head).unwrap() > 0);
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let packet = "page.views:1|c|#some:tag,other:tag\n".repeat(200);
    let mut sent = 0;
    until("packets are lost to the capture", || {
        for _ in 0..100 {
            socket.send_to(packet.as_bytes(), agent.address()).unwrap();
            sent += 1;
            // One that the kernel drops would not be the capture's.
            until("it is taken", || {
                sent % 20 != 0 || status(&admin)["total"]["packets"]["parsed"] == sent
            });
        }
        status(&admin)["taps"]["packets_lost"].as_u64() > Some(0)
    });
    let status = status(&admin);
    assert_eq!(
        status["total"]["messages"]["received"].as_u64(),
        Some(sent * 200),
        "{}",
        status["total"]
    );
    assert_eq!(
        status["total"]["messages"]["accepted"],
        status["total"]["messages"]["received"]
    );
    let (_, text) = weir(&["status", "--admin", &admin]);
    assert!(
        text.contains("Packets that a capture lost because its queue was full"),
        "{text}"
    );
    drop(reader);
    agent.stop();
}
