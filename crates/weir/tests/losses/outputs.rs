//! Losses at outputs, and for lack of memory.

use std::io::{BufReader, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use rustix::net::{AddressFamily, SocketType, connect, socket, sockopt};

use crate::delivery::intake::request;
use crate::support::{Agent, Starter, until};

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
    let log = match cfg!(feature = "kafka") {
        true => "  kafka: {brokers: ['127.0.0.1:1'], topic: weir}\n",
        false => "",
    };
    let config = format!(
        "bucket_width: 1s\nworkers: 1\noutputs:\n  prometheus: {{}}\n  influx: {{url: 'http://{receiver}/write', compression: none}}\n  \
         graphite: {{address: 'udp://127.0.0.1:9', datagram_bytes_max: 512}}\n  otlp: {{url: 'http://127.0.0.1:1', delivery: {{backoff_max: 1h}}}}\n  \
         relay: {{targets: ['udp://127.0.0.1:9'], udp_bytes_max: 512}}\n{log}"
    );
    let agent = Starter::from(&config).socket().start();
    let long = "x".repeat(600);
    // One datagram is in one bucket.
    agent.send("much:1e308|c\nmuch:1e308|c\nnegative:-5|c\nrefused:1|c\ntaken:1|c\n");
    agent.send("same.name:1|g\nsame-name:1|d\nmerged:1|g|#a.b:1\nmerged:1|g|#a-b:1\n");
    agent.send(format!("long:1|c|#tag:{long}\n"));
    Provoked::new(agent, ())
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
    let values: Vec<String> = (0..500).map(|value| value.to_string()).collect();
    let histogram = format!("known.histogram:{}|h\n", values.join(":"));
    agent.send(&histogram);
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
            let line = |n: usize| format!("flood.of.names{n}:1|{}|#long:{long}{n}\n", kinds[n % 3]);
            send_all(&agent, (from..from + 200).map(line).collect());
        }
        (0..4).for_each(|_| agent.send(&histogram));
        sent += 200;
        let status = agent.status();
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
