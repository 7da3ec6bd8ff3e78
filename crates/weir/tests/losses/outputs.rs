//! Losses at outputs, for lack of memory, and at the ends of processes.

use std::io::{BufReader, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::net::{AddressFamily, SocketType, connect, socket, sockopt};

use crate::delivery::intake::request;
use crate::support::hand_over::{PROTOCOL, Peer, SOCKETS_END};
use crate::support::{Agent, Starter, get, until};

use super::Provoked;

/// The address of a receiver that refuses each request with this text in it for good.
fn refusing(text: &'static str) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let mut reader = BufReader::new(stream);
                while let Some((_, body)) = request(&mut reader) {
                    let status = match String::from_utf8_lossy(&body).contains(text) {
                        true => "400 Bad Request",
                        false => "204 No Content",
                    };
                    let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n");
                    if reader.get_mut().write_all(answer.as_bytes()).is_err() {
                        return;
                    }
                }
            });
        }
    });
    address
}

pub fn outputs() -> Provoked {
    let receiver = refusing("refused");
    let directory = tempfile::tempdir().unwrap();
    let queue = directory.path().join("queue");
    let log = match cfg!(feature = "kafka") {
        true => "  kafka: {brokers: ['127.0.0.1:1'], topic: weir}\n",
        false => "",
    };
    // The renamed metrics are there until every surface has been asked.
    let config = format!(
        "bucket_width: 1s\nworkers: 1\noutputs:\n  prometheus: {{expiry: 1h}}\n  influx: {{url: 'http://{receiver}/write', compression: none}}\n  \
         graphite: {{address: 'udp://127.0.0.1:9', datagram_bytes_max: 512}}\n  otlp: {{url: 'http://127.0.0.1:1', delivery: {{backoff_max: 1h, disk_path: {}}}}}\n  \
         relay: {{targets: ['udp://127.0.0.1:9'], udp_bytes_max: 512}}\n{log}",
        queue.display()
    );
    let agent = Starter::from(&config).socket().start();
    // Before the first payload is written.
    std::fs::rename(&queue, directory.path().join("gone")).unwrap();
    let long = "x".repeat(600);
    // One datagram is in one bucket.
    agent.send("much:1e308|c\nmuch:1e308|c\nnegative:-5|c\nrefused:1|c\ntaken:1|c\n");
    agent.send("same.name:1|g\nup:1|g\nsame-name:1|d\nmerged:1|g|#a.b:1\nmerged:1|g|#a-b:1\n");
    agent.send(format!("long:1|c|#tag:{long}\n"));
    // Metrics get their names when somebody reads them.
    until("names are distinct", || {
        get(&agent.admin, "/metrics");
        agent.status()["scrape"]["renamed_metrics"].as_u64() > Some(1)
    });
    until("a payload could not be written", || {
        agent.output("otlp")["disk_failures"].as_u64() > Some(0)
    });
    Provoked::new(agent, directory)
}

/// A capture whose reader takes nothing.
fn deaf_capture(admin: &str) -> TcpStream {
    let to: SocketAddr = admin.parse().unwrap();
    let stream: OwnedFd = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    sockopt::set_socket_recv_buffer_size(&stream, 4096).unwrap();
    connect(&stream, &to).unwrap();
    let mut stream = TcpStream::from(stream);
    write!(
        stream,
        "GET /api/v1/capture?for=10m HTTP/1.1\r\nHost: localhost\r\n\r\n"
    )
    .unwrap();
    stream
}

fn send_all(agent: &Agent, lines: Vec<String>) {
    let mut packet = String::new();
    for line in lines {
        if packet.len() + line.len() > 8000 {
            agent.send(&packet);
            packet.clear();
        }
        packet += &line;
    }
    agent.send(&packet);
}

/// Little memory, beside outputs that take nothing.
pub fn memory() -> Provoked {
    let directory = tempfile::tempdir().unwrap();
    let deaf = TcpListener::bind("127.0.0.1:0").unwrap();
    let path = directory.path().join("stream");
    let config = format!(
        "bucket_width: 1s\nworkers: 1\nmemory: 8MiB\nuds_stream: [{}]\noutputs:\n  prometheus: {{}}\n  graphite: {{address: 'tcp://127.0.0.1:1'}}\n  \
         relay: {{targets: ['tcp://{}']}}\n",
        path.display(),
        deaf.local_addr().unwrap()
    );
    let agent = Starter::from(&config).socket().start();
    // Distributions that are known before there is no memory, and grow then: each value has a bin of its own.
    let values: Vec<String> = (0..500)
        .map(|value| format!("{}e{}", value % 9 + 1, value / 9))
        .collect();
    let growing: Vec<String> = (0..400)
        .map(|number| format!("known{number}:{}|d\n", values.join(":")))
        .collect();
    send_all(
        &agent,
        (0..400).map(|number| format!("known{number}:1|d\n")).collect(),
    );
    let capture = deaf_capture(&agent.admin);
    // Frames that are begun and never end.
    let frame = [&60_000_u32.to_le_bytes()[..], &[b'x'; 50_000]].concat();
    let frames: Vec<UnixStream> = (0..12)
        .map(|_| {
            let mut stream = UnixStream::connect(&path).unwrap();
            let _ = stream.write_all(&frame);
            stream
        })
        .collect();
    let mut sent = 0;
    until("all of it is counted", || {
        let long = "x".repeat(300);
        let kinds = ["c", "g", "c"];
        // Of a name that comes again an alias is made, for which there is no room; where new names found none, older ones do.
        for from in [sent, sent, sent / 3, sent / 2] {
            let line = |n: usize| format!("flood.of.names{n}.{long}:1|{}\n", kinds[n % 3]);
            send_all(&agent, (from..from + 200).map(line).collect());
        }
        sent += 200;
        let status = agent.status();
        if status["rows"]["bodies_squeezed"].as_u64() == Some(0) {
            growing.iter().for_each(|line| agent.send(line));
        }
        let number = |path: &str| {
            let at = path.split('/').fold(&status, |value, name| &value[name]);
            at.as_u64().unwrap_or(0)
        };
        let dropped = |kind: &str, reason: &str| {
            let outputs = status["outputs"].as_array().unwrap();
            outputs
                .iter()
                .any(|of| of[kind]["dropped"][reason].as_u64() > Some(0))
        };
        let missing = [
            ("contexts", number("limits/samples/memory") > 0),
            ("aliases", number("contexts/aliases_refused") > 0),
            ("squeezed", number("rows/bodies_squeezed") > 0),
            ("history", number("history/refused") > 0),
            ("capture", number("taps/packets_lost") > 0),
            ("gauges", number("total/samples/dropped/no_memory") > 0),
            ("queue", dropped("points", "queue_full")),
            ("relay", dropped("messages", "queue_full")),
            ("sums", dropped("points", "memory")),
        ];
        let missing: Vec<&str> = missing
            .iter()
            .filter(|(_, is_there)| !is_there)
            .map(|(what, _)| *what)
            .collect();
        missing.is_empty().then_some(()).ok_or(missing.join(", "))
    });
    Provoked::new(agent, (directory, deaf, capture, frames))
}

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

/// Stops an agent while a client sends: whether it cut the client off, as it does with one that is never silent for a tenth of a second.
/// On a busy machine a client may be, however often it wants to send.
fn cuts_off(agent: Agent) -> bool {
    let status = agent.status();
    let listeners = status["listeners"].as_array().unwrap();
    let mut addresses = listeners
        .iter()
        .filter_map(|of| of["address"].as_str()?.strip_prefix("tcp://"));
    let stream = TcpStream::connect(addresses.next().unwrap()).unwrap();
    let send = |mut stream: TcpStream| {
        while stream.write_all(b"busy:1|c\n").is_ok() {
            std::thread::sleep(Duration::from_millis(3));
        }
    };
    let senders = [(); 3].map(|()| stream.try_clone().unwrap());
    let senders = senders.map(|stream| std::thread::spawn(move || send(stream)));
    let accepted = || agent.status()["total"]["messages"]["accepted"].as_u64();
    let before = accepted();
    until("the client is read", || accepted() > before);
    agent.signal("-TERM");
    let (_, _, log) = agent.end();
    senders.into_iter().for_each(|sender| sender.join().unwrap());
    log.contains("although their peers were still sending")
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
        let on_disk = ["datadog", "influx"].map(|output| first.points(output));
        let in_memory = first.output("graphite")["points"]["pending"].as_u64() > Some(0);
        let is_written = on_disk
            .iter()
            .all(|books| books.to_write == 0 && books.pending >= 10);
        let is_there = relayed && in_memory && is_written;
        is_there
            .then_some(())
            .ok_or(format!("{on_disk:?}, {relayed}, {in_memory}"))
    });
    let books = place.path("state/books");
    let written = || std::fs::metadata(&books).and_then(|of| of.modified()).ok();
    let before = written();
    until("its books are written again", || written() > before);
    kill(first);

    // The second process leaves a damaged checkpoint.
    let long = place.config("bucket_width: LONG\n", "10d", SUMS);
    let second = place.start(&long);
    place.send("open:1:2:3|c\n");
    // Checkpoints of the first process may still be there.
    let checkpoints = || {
        let mut found = files(&place.path("state"), "open-");
        found.retain(|path| path.extension().is_none());
        found
    };
    until("a checkpoint has it", || {
        let mut kept = checkpoints()
            .into_iter()
            .filter_map(|path| std::fs::read(path).ok());
        kept.any(|kept| String::from_utf8_lossy(&kept).contains("\"samples\":3,"))
    });
    kill(second);
    for path in checkpoints() {
        std::fs::write(path, "").unwrap();
    }

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
    let mut running = Some(third);
    until("a stop has cut a client off", || {
        cuts_off(running.take().unwrap_or_else(|| place.start(&long)))
    });

    // The first record of one queue has a damaged head; of the other the last one, which is read first, a damaged body.
    flip(&segment(&place.path("datadog")), SEGMENT_HEAD);
    let path = segment(&place.path("influx"));
    let last = std::fs::metadata(&path).unwrap().len() as usize - 1;
    flip(&path, last);
    let fourth = place.start(&place.config("bucket_width: LONG\ncontexts_max: 20\n", "1s", ""));
    std::fs::rename(place.path("state"), place.path("gone")).unwrap();
    until("the state could not be written", || {
        fourth.status()["state"]["saves_failed"].as_u64() > Some(0)
    });
    Provoked::new(fourth, place.directory)
}
