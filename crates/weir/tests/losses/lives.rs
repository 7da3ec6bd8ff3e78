//! Losses at the end of processes and between them.

use std::io::Write as _;
use std::net::TcpStream;
use std::path::{Path, PathBuf};

use crate::support::hand_over::{PROTOCOL, Peer, SOCKETS_END};
use crate::support::{Agent, Starter, until};

use super::Provoked;

const SEGMENT_HEAD: usize = 16;

/// Where all processes live, and the settings that they have in common.
struct Place {
    directory: tempfile::TempDir,
}

impl Place {
    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn config(&self, more: &str, age: &str, outputs: &str) -> String {
        let at = |name: &str| self.path(name).display().to_string();
        format!(
            "workers: 1\nstate_path: {}\nuds: [{}]\ntcp: ['127.0.0.1:0']\ntcp_framing: newline\ngrace_period: 1s\n{more}outputs:\n  prometheus: {{}}\n  \
             graphite: {{address: 'tcp://127.0.0.1:1'}}\n  relay: {{targets: ['tcp://127.0.0.1:1']}}\n  \
             datadog: {{api_key: 0123456789abcdef0123456789abcdef, url: 'http://127.0.0.1:1', heartbeat: false, host_metadata: false, \
             points_per_payload_max: 1, delivery: {{disk_path: {}, disk_age_max: {age}}}}}\n  \
             influx: {{url: 'http://127.0.0.1:1/write', points_per_payload_max: 1, delivery: {{disk_path: {}}}}}\n{outputs}",
            at("state"),
            at("datagrams"),
            at("datadog"),
            at("influx"),
        )
    }

    fn start(&self, config: &str) -> Agent {
        Starter::from(&config.to_owned()).start()
    }

    fn send(&self, line: &str) {
        let socket = std::os::unix::net::UnixDatagram::unbound().unwrap();
        socket.send_to(line.as_bytes(), self.path("datagrams")).unwrap();
    }
}

fn pending(agent: &Agent, output: &str, place: &str) -> u64 {
    agent.output(output)["points"]["pending_where"][place]
        .as_u64()
        .unwrap_or(0)
}

/// Files whose name begins like this, in a directory and in those below it.
fn files(directory: &Path, beginning: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(files(&path, beginning));
        } else if entry.file_name().to_string_lossy().starts_with(beginning) {
            found.push(path);
        }
    }
    found
}

fn flip(path: &Path, at: usize) {
    let mut bytes = std::fs::read(path).unwrap();
    bytes[at] ^= 1;
    std::fs::write(path, bytes).unwrap();
}

fn kill(mut agent: Agent) {
    agent.signal("-KILL");
    until("it has ended", || agent.ended().is_some());
}

/// The queue's only segment.
fn segment(queue: &Path) -> PathBuf {
    let mut found = files(queue, "");
    found.retain(|path| path.extension().is_some_and(|extension| extension == "q"));
    assert_eq!(found.len(), 1, "{found:?}");
    found.remove(0)
}

const SUMS: &str = "  otlp: {url: 'http://127.0.0.1:1', temporality: cumulative}\n";

pub fn lives() -> Provoked {
    let place = Place {
        directory: tempfile::tempdir().unwrap(),
    };
    // A state of no agent: it is set aside.
    std::fs::create_dir(place.path("state")).unwrap();
    std::fs::write(place.path("state/state"), "no state").unwrap();
    let short = place.config("bucket_width: 1s\n", "10d", SUMS);
    let first = place.start(&short);
    for number in 0..10 {
        place.send(&format!("flushed{number}:1|c\n"));
    }
    until("an output has it in memory, and two on disk", || {
        let relayed = first.output("relay")["messages"]["pending"].as_u64() > Some(0);
        let on_disk = ["datadog", "influx"].map(|output| pending(&first, output, "disk"));
        let in_memory = first.output("graphite")["points"]["pending"].as_u64() > Some(0);
        let is_there = relayed && in_memory && on_disk.iter().all(|points| *points >= 10);
        is_there
            .then_some(())
            .ok_or(format!("{on_disk:?}, {relayed}, {in_memory}"))
    });
    let books = place.path("state/books");
    let written = || std::fs::metadata(&books).and_then(|of| of.modified()).ok();
    let before = written();
    until("its books are written again", || written() > before);
    kill(first);

    // What the checkpoint of the second has is damaged.
    let long = place.config("bucket_width: LONG\n", "10d", SUMS);
    let second = place.start(&long);
    place.send("open:1:2:3|c\n");
    let checkpoint = || {
        files(&place.path("state"), "open-")
            .into_iter()
            .find(|path| path.extension().is_none())
    };
    until("a checkpoint has it", || {
        let kept = checkpoint().and_then(|path| std::fs::read(path).ok());
        kept.is_some_and(|kept| String::from_utf8_lossy(&kept).contains("\"samples\":3,"))
    });
    kill(second);
    let path = checkpoint().unwrap();
    std::fs::write(path, "").unwrap();

    // The third cannot hand over, and its stop cuts a client off.
    let third = place.start(&long);
    let mut other = Peer::connect(place.path("state").to_str().unwrap());
    other.hello(PROTOCOL, 1);
    other.until(SOCKETS_END);
    drop(other);
    until("the hand-over has failed", || {
        third.status()["state"]["hand_over"]["failed"] == 1
    });
    for number in 0..100 {
        place.send(&format!("kept{number}:1|c\n"));
    }
    let status = third.status();
    let listeners = status["listeners"].as_array().unwrap();
    let mut addresses = listeners
        .iter()
        .filter_map(|of| of["address"].as_str()?.strip_prefix("tcp://"));
    let mut busy = TcpStream::connect(addresses.next().unwrap()).unwrap();
    let busy = std::thread::spawn(move || while busy.write_all(b"busy:1|c\n").is_ok() {});
    until("the client is read", || {
        third.status()["total"]["messages"]["accepted"].as_u64() > Some(200)
    });
    third.signal("-TERM");
    third.end();
    busy.join().unwrap();

    // One queue has a damaged head of a record, the other a damaged record.
    flip(&segment(&place.path("datadog")), SEGMENT_HEAD);
    let path = segment(&place.path("influx"));
    let last = std::fs::metadata(&path).unwrap().len() as usize - 1;
    flip(&path, last);
    let fourth = place.start(&place.config("bucket_width: LONG\ncontexts_max: 20\n", "1s", ""));
    Provoked::new(fourth, place.directory)
}
