//! `weir-bench floor`, the real binary on real sockets: every variant counts what was sent and ends when it should.

use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpStream, UdpSocket};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::process::{Child, ChildStdout, Command, Stdio};

const BIN: &str = env!("CARGO_BIN_EXE_weir-bench");

struct Floor {
    child: Child,
    out: BufReader<ChildStdout>,
    address: String,
}

impl Floor {
    fn start(address: &str, flags: &[&str]) -> Floor {
        let mut child = Command::new(BIN)
            .args(["floor", "--listen", address])
            .args(flags)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let line = json_line(&mut out);
        let address = line["listening"].as_str().unwrap().to_owned();
        assert_eq!(line["pid"], child.id());
        Floor { child, out, address }
    }

    /// The host and port of an address that has them.
    fn port(&self) -> &str {
        self.address.split_once("://").unwrap().1
    }

    fn result(mut self) -> Value {
        let line = json_line(&mut self.out);
        assert!(self.child.wait().unwrap().success());
        line
    }

    fn terminate(&self) {
        let status = Command::new("kill")
            .arg(self.child.id().to_string())
            .status()
            .unwrap();
        assert!(status.success());
    }
}

impl Drop for Floor {
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

/// Three messages in 33 bytes, the last without its newline.
const PACKET: &[u8] = b"aa:1|c|#x:y\nbb:2.5|g\nc:3|ms|@0.1z";

fn check(result: &Value, variant: &str, packets: u64) {
    assert_eq!(result["variant"], variant);
    assert_eq!(result["packets"], packets, "{result}");
    assert_eq!(result["messages"], packets * 3, "{result}");
    assert_eq!(result["bytes"], packets * PACKET.len() as u64, "{result}");
    assert!(result["cpu_ns_per_message"].as_f64().unwrap() > 0.0);
}

#[test]
fn every_datagram_variant_counts_everything() {
    let dir = tempfile::tempdir().unwrap();
    for receive in ["r1", "r2", "r3"] {
        let variant = format!("{receive}+l0").to_uppercase();
        let flags = ["--receive", receive, "--until-idle", "0s"];

        let path = dir.path().join("floor.sock");
        let floor = Floor::start(&format!("unixgram://{}", path.display()), &flags);
        let sender = UnixDatagram::unbound().unwrap();
        for _ in 0..500 {
            sender.send_to(PACKET, &path).unwrap();
        }
        floor.terminate();
        let result = floor.result();
        check(&result, &variant, 500);
        assert!(!path.exists(), "the socket file stays behind");

        let floor = Floor::start("udp://127.0.0.1:0", &flags);
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        for _ in 0..500 {
            sender.send_to(PACKET, floor.port()).unwrap();
        }
        floor.terminate();
        check(&floor.result(), &variant, 500);
    }
}

#[test]
fn streams_count_frames_and_lines_cut_anywhere() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("floor.sock");
    let floor = Floor::start(&format!("unix://{}", path.display()), &["--receive", "r1"]);
    let mut frames = Vec::new();
    for _ in 0..200 {
        frames.extend_from_slice(&(PACKET.len() as u32).to_le_bytes());
        frames.extend_from_slice(PACKET);
    }
    let mut connections = [
        UnixStream::connect(&path).unwrap(),
        UnixStream::connect(&path).unwrap(),
    ];
    for piece in frames.chunks(7) {
        for connection in &mut connections {
            connection.write_all(piece).unwrap();
        }
    }
    drop(connections);
    floor.terminate();
    check(&floor.result(), "read+L0", 400);

    let floor = Floor::start("tcp://127.0.0.1:0", &["--receive", "r1"]);
    let mut connection = TcpStream::connect(floor.port()).unwrap();
    for piece in b"a:1|c\nbb:2|c\n".repeat(100).chunks(5) {
        connection.write_all(piece).unwrap();
    }
    connection.write_all(b"last:1|c").unwrap();
    drop(connection);
    floor.terminate();
    let result = floor.result();
    assert_eq!(result["messages"], 201);
    assert_eq!(result["bytes"], 1308);
}

#[test]
fn sigterm_ends_every_variant_and_what_was_queued_is_counted() {
    let dir = tempfile::tempdir().unwrap();
    for receive in ["r1", "r2", "r3"] {
        let path = dir.path().join("floor.sock");
        let floor = Floor::start(
            &format!("unixgram://{}", path.display()),
            &["--receive", receive, "--until-idle", "0s"],
        );
        let sender = UnixDatagram::unbound().unwrap();
        for _ in 0..50 {
            sender.send_to(PACKET, &path).unwrap();
        }
        floor.terminate();
        assert_eq!(floor.result()["packets"], 50, "{receive}");
    }
    // Never any traffic at all.
    for address in ["udp://127.0.0.1:0", "tcp://127.0.0.1:0"] {
        let floor = Floor::start(address, &["--receive", "r1"]);
        floor.terminate();
        let result = floor.result();
        assert_eq!(result["packets"], 0);
        assert_eq!(result["cpu_ns_per_message"], Value::Null);
    }
}

#[test]
fn a_batch_is_one_system_call() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("floor.sock");
    let floor = Floor::start(&format!("unixgram://{}", path.display()), &["--until-idle", "1s"]);
    // Stopped, the floor finds all that was queued meanwhile with its next call.
    let signal = |name: &str| {
        let id = floor.child.id().to_string();
        assert!(Command::new("kill").args([name, &id]).status().unwrap().success());
    };
    signal("-STOP");
    let state = format!("/proc/{}/stat", floor.child.id());
    while !std::fs::read_to_string(&state).unwrap().contains(") T ") {
        std::thread::yield_now();
    }
    let sender = UnixDatagram::unbound().unwrap();
    sender.set_nonblocking(true).unwrap();
    let mut sent = 0;
    while sender.send_to(PACKET, &path).is_ok() {
        sent += 1;
    }
    signal("-CONT");
    let result = floor.result();
    check(&result, "R2+L0", sent);
    // One call for what was queued; the waiting one may have taken a single datagram; one ends the run.
    assert!(sent >= 4, "the kernel queued {sent} datagrams");
    assert!(result["syscalls"].as_u64().unwrap() <= 3, "{result}");
}

#[test]
fn usage_errors_exit_with_code_two_and_a_busy_address_with_one() {
    let fails = |flags: &[&str], code: i32, hint: &str| {
        let output = Command::new(BIN).arg("floor").args(flags).output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{flags:?}: {text}");
        assert!(text.contains(hint), "{flags:?}: {text}");
    };
    fails(&[], 2, "--listen");
    fails(&["--listen", "http://x"], 2, "unknown scheme");
    fails(&["--listen", "udp://127.0.0.1:0", "--cpu", "4000"], 2, "may use");
    fails(
        &["--listen", "udp://127.0.0.1:0", "--duration", "10"],
        2,
        "no unit",
    );
    fails(
        &["--listen", "tcp://127.0.0.1:0", "--receive", "r3"],
        2,
        "one way of receiving",
    );
    let busy = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = format!("udp://{}", busy.local_addr().unwrap());
    fails(&["--listen", &address], 1, &address);
}
