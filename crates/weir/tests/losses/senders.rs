//! Losses that senders cause.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::process::Command;
use std::time::Duration;

use rustix::net::{AddressFamily, SocketType, bind, connect, socket, sockopt};
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use weir_columns::{Encoder, MetricType, Row, SketchPoint, TagSet};
use weir_sketch::Sketch;

use crate::columns::{address as columns_of, now, post, row};
use crate::support::place::replace_by_a_file;
use crate::support::tls::Authority;
use crate::support::{Agent, PATIENCE, Starter, until};

use super::Provoked;

/// One line for each class of invalid ones, and for each kind of valid one that loses something. Every line has to end.
const LINES: &[&str] = &[
    "a:1\n",
    "a|c\n",
    ":1|c\n",
    "a:1|q\n",
    "a:x|c\n",
    "a:nan|c\n",
    "a:1|c|@x\n",
    "a:1|c|Tx\n",
    "_e{x,1}:a|b\n",
    "_e{0,1}:|b\n",
    "_e{5,5}:a|b\n",
    "_sc|a\n",
    "_sc||0\n",
    "_sc|a|9\n",
    "unterminated:1|c",
    "rate:1|c|@0\n",
    "section:1|c|zz\n",
    "delta:+4|g\n",
    "finite:nan:1|h\n",
    "late:1|g|T99999999999\n",
    "typed:1|h|T1700000000\n",
    "_e{1,1}:a|b|d:99999999999\n",
    "datadog.dogstatsd.client.packets_dropped_queue:2|c|#client:go\n",
    "datadog.dogstatsd.client.packets_dropped_writer:1|c|#client:go\n",
    "datadog.dogstatsd.client.packets_dropped:3|c|#client:go\n",
    "datadog.dogstatsd.client.packets_dropped:7|c|#client:other\n",
    "datadog.dogstatsd.client.metric_dropped_on_receive:3|c|#client:go\n",
    "shop.statsd_instrument.batched_uds_sink.synchronous_sends:6|c\n",
];

/// A stream to this address from another one of this machine.
fn from(own: &str, to: &str) -> TcpStream {
    let (own, to): (SocketAddr, SocketAddr) = (format!("{own}:0").parse().unwrap(), to.parse().unwrap());
    let stream: OwnedFd = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&stream, &own).unwrap();
    connect(&stream, &to).unwrap();
    stream.into()
}

/// The status, once the server has ended the connection.
fn answered(mut stream: TcpStream, request: &[u8]) -> String {
    stream.write_all(request).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    String::from_utf8_lossy(&answer).into_owned()
}

/// Series of which each has another fault.
fn faulty_series() -> Vec<u8> {
    let mut encoder = Encoder::new(1);
    let plain = row(&mut encoder, MetricType::Count, "page:bad");
    encoder.row(&plain, &[(now(), 1.0)]);
    let many: Vec<String> = (0..1100).map(|tag| format!("tag:{tag}")).collect();
    let tagged = Row {
        name: encoder.name(&["tagged"]),
        tags: encoder.tag_set(TagSet::default(), many.iter().map(String::as_str)),
        ..plain
    };
    encoder.row(&tagged, &[(now(), 1.0)]);
    let rate = row(&mut encoder, MetricType::Rate, "rate");
    encoder.row(&Row { interval: 0, ..rate }, &[(now(), 1.0)]);
    let timeless = row(&mut encoder, MetricType::Gauge, "timeless");
    encoder.row(&timeless, &[(0, 1.0)]);
    encoder.sort();
    encoder.to_payload()
}

/// A sketch with more samples than its bins have.
fn faulty_sketch() -> Vec<u8> {
    let mut sketch = Sketch::new();
    sketch.insert(1.0, 1);
    let mut encoder = Encoder::new(1);
    let row = row(&mut encoder, MetricType::Sketch, "sketch");
    let point = SketchPoint {
        timestamp: now(),
        sum: sketch.sum(),
        min: sketch.min(),
        max: sketch.max(),
        count: sketch.cnt() + 1,
    };
    let bins = sketch.bins().into_owned().into_iter();
    let bins = bins.map(|bin| (i32::from(bin.k), u64::from(bin.n)));
    encoder.sketches(&row, std::iter::once((point, bins)));
    encoder.sort();
    encoder.to_payload()
}

/// The number of a client's request, the oldest that it may send again.
fn numbered(number: u64) -> [String; 3] {
    [
        "x-weir-client: 0123456789abcdef0123456789abcdef".to_owned(),
        format!("x-weir-sequence: {number}"),
        format!("x-weir-oldest: {number}"),
    ]
}

fn one(value: f64) -> Vec<u8> {
    let mut encoder = Encoder::new(1);
    let row = row(&mut encoder, MetricType::Count, "column");
    encoder.row(&row, &[(now(), value)]);
    encoder.sort();
    encoder.to_payload()
}

fn of_columns(agent: &Agent, state: &std::path::Path) {
    let http = columns_of(agent);
    let send = |path: &str, headers: &[&str], body: &[u8]| post(&http, path, headers, body).0;
    assert_eq!(send("/series", &[], b"\x1a\x09x"), 400);
    assert_eq!(send("/series", &["Content-Encoding: br"], b"x"), 415);
    assert_eq!(send("/series", &["Origin: http://page.example"], b"x"), 403);
    let head = "POST /series HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length";
    let large = format!("{head}: 4000000000\r\n\r\n");
    assert!(answered(TcpStream::connect(&http).unwrap(), large.as_bytes()).contains(" 413 "));
    assert_eq!(send("/series", &[], &faulty_series()), 200);
    assert_eq!(send("/sketches", &[], &faulty_sketch()), 200);
    // Its rate lets the first pass, whatever its size (it is no valid payload), and then nothing for a while.
    let body = one(1.0);
    let slow = format!("{head}: 30000\r\n\r\n");
    let padded = [slow.as_bytes(), &body, &vec![0; 30_000 - body.len()]].concat();
    let _ = answered(from("127.0.0.2", &http), &padded);
    let again = [format!("{head}: {}\r\n\r\n", body.len()).as_bytes(), &body].concat();
    assert!(answered(from("127.0.0.2", &http), &again).contains(" 503 "));
    for number in [5, 10] {
        let headers = numbered(number);
        let headers: Vec<&str> = headers.iter().map(String::as_str).collect();
        // As a client: a machine that is busy may answer that it is to be sent again.
        until("a numbered request is taken", || {
            send("/series", &headers, &body) == 200
        });
    }
    // From now on nothing can be saved there.
    replace_by_a_file(state);
    let mut number = 11;
    until("a request is answered that is not saved", || {
        let headers = numbered(number);
        let headers: Vec<&str> = headers.iter().map(String::as_str).collect();
        number += u64::from(send("/series", &headers, &body) == 200);
        agent.status()["listeners"].to_string().contains("\"unsaved\":1")
    });
}

pub fn senders() -> Provoked {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let config = format!(
        "bucket_width: 1s\nworkers: 1\nsandbox: off\nreceive_buffer: 8KiB\nuds: [{}]\nuds_stream: [{}]\ntcp: ['127.0.0.1:0']\ntcp_framing: length\n\
         http: 127.0.0.1:0\nstate_path: {}\nallowed_networks: [127.0.0.2/32]\nrate_limit_per_address: 1000\norigin_client: true\norigin_docker: []\n\
         origin_containerd: []\neol_required: [uds]\nper_listener:\n- listener: uds\n  gauge_deltas: true\n",
        at("datagrams").display(),
        at("stream").display(),
        at("state").display(),
    );
    let mut agent = Agent::start(&config, &[]);
    let status = agent.status();
    let of = |scheme: &str| {
        let listeners = status["listeners"].as_array().unwrap();
        let addresses = listeners.iter().filter_map(|of| of["address"].as_str());
        addresses
            .filter_map(|of| of.strip_prefix(scheme))
            .next()
            .unwrap()
            .to_owned()
    };
    let tcp = of("tcp://");
    let socket = UnixDatagram::unbound().unwrap();
    socket.connect(at("datagrams")).unwrap();
    let send = |bytes: &[u8]| assert_eq!(socket.send(bytes).unwrap(), bytes.len());
    LINES.iter().for_each(|line| send(line.as_bytes()));
    send(b"a\xff:1|c\n");
    send(format!("origin:1|c|c:ci-{}\n", "x".repeat(2000)).as_bytes());
    // Above what a packet may have.
    send("cut:1|c\n".repeat(9000).as_bytes());

    let stranger = UdpSocket::bind("127.0.0.3:0").unwrap();
    for _ in 0..5 {
        stranger.send_to(b"stranger:1|c", agent.address()).unwrap();
    }
    let mut refused = from("127.0.0.3", &tcp);
    let _ = refused.read_to_end(&mut Vec::new());
    let mut long = TcpStream::connect(&tcp).unwrap();
    long.write_all(&u32::MAX.to_le_bytes()).unwrap();
    let _ = long.read_to_end(&mut Vec::new());
    let mut cut = TcpStream::connect(&tcp).unwrap();
    cut.write_all(b"\x0a\0\0\0a:1").unwrap();
    drop(cut);
    let reset = TcpStream::connect(&tcp).unwrap();
    sockopt::set_socket_linger(&reset, Some(Duration::ZERO)).unwrap();
    drop(reset);
    std::fs::remove_file(at("stream")).unwrap();
    agent.wait_for("is missing: weir created it again");

    of_columns(&agent, &at("state"));
    let limited = UdpSocket::bind("127.0.0.2:0").unwrap();
    for _ in 0..200 {
        limited.send_to(b"limited:1|c", agent.address()).unwrap();
    }
    // While it does not run, the kernel drops what its buffer does not hold.
    agent.signal("-STOP");
    let own = UdpSocket::bind("127.0.0.1:0").unwrap();
    for _ in 0..1000 {
        own.send_to(b"dropped:1|c", agent.address()).unwrap();
    }
    agent.signal("-CONT");
    Provoked::new(agent, directory)
}

/// A connection to an admin server that stays open.
struct KeptAdmin(BufReader<TcpStream>);

impl KeptAdmin {
    fn connect(admin: &str) -> KeptAdmin {
        let stream = TcpStream::connect(admin).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        KeptAdmin(BufReader::new(stream))
    }

    fn losses(&mut self) -> String {
        let request = b"GET /api/v1/losses HTTP/1.1\r\nHost: localhost\r\n\r\n";
        self.0.get_mut().write_all(request).unwrap();
        let mut length = 0;
        loop {
            let mut line = String::new();
            self.0.read_line(&mut line).unwrap();
            if line.trim().is_empty() {
                break;
            }
            let lower = line.to_ascii_lowercase();
            length = lower
                .strip_prefix("content-length:")
                .map_or(length, |of| of.trim().parse().unwrap());
        }
        let mut body = vec![0; length];
        self.0.read_exact(&mut body).unwrap();
        String::from_utf8(body).unwrap()
    }
}

/// An agent with few descriptors that takes TLS.
pub fn connections() -> Provoked {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let (certificate, key) = Authority::new().issue("localhost");
    std::fs::write(at("pem"), certificate).unwrap();
    std::fs::write(at("key"), key).unwrap();
    let config = format!(
        "bucket_width: 1s\nworkers: 1\nuds_stream: [{}]\ntcp: ['127.0.0.1:0']\ntcp_framing: newline\nallowed_networks: [127.0.0.2/32]\n\
         tcp_tls_certificate: {}\ntcp_tls_key: {}\n",
        at("stream").display(),
        at("pem").display(),
        at("key").display(),
    );
    let mut agent = Agent::start_after("ulimit -n 160", &config);
    let tcp = agent.wait_for("listening on tcp://");
    let tcp = tcp.split(',').next().unwrap().to_owned();
    let listener = |number: usize, of: &str| agent.status()["listeners"][number][of].as_u64().unwrap_or(0);
    let number = |scheme: &str| {
        let status = agent.status();
        let listeners = status["listeners"].as_array().unwrap();
        let is_it = |of: &serde_json::Value| of["address"].as_str().unwrap().starts_with(scheme);
        listeners.iter().position(is_it).unwrap()
    };
    let (of_tcp, of_stream) = (number("tcp://"), number("unix://"));

    let mut plain = TcpStream::connect(&tcp).unwrap();
    plain.write_all(b"plain:1|c\n").unwrap();
    let _ = plain.read_to_end(&mut Vec::new());
    // All connections are of one peer, until another comes.
    let held: Vec<TcpStream> = (0..50).map(|_| TcpStream::connect(&tcp).unwrap()).collect();
    until("all are taken", || {
        listener(of_tcp, "connections_refused_limit") > 0
    });
    let other = from("127.0.0.2", &tcp);
    until("one makes room", || {
        listener(of_tcp, "connections_closed_crowded") == 1
    });
    let streams: Vec<UnixStream> = (0..60)
        .map(|_| UnixStream::connect(at("stream")).unwrap())
        .collect();
    until("all are taken", || {
        listener(of_stream, "connections_refused_limit") > 0
    });
    drop((held, other, streams));
    until("they have ended", || {
        listener(of_tcp, "connections") + listener(of_stream, "connections") == 0
    });
    // A connection that was accepted before is answered after the process may open no more.
    let mut admin = KeptAdmin::connect(&agent.admin);
    assert!(admin.losses().contains("weir_"));
    // By this process: until another one has started, the admin server may have ended its connection.
    let limit = |soft: u64| {
        let limits = Rlimit {
            current: Some(soft),
            maximum: Some(160),
        };
        prlimit(Pid::from_raw(agent.id() as i32), Resource::Nofile, limits).unwrap();
    };
    limit(3);
    let waits = UnixStream::connect(at("stream")).unwrap();
    until("it cannot be accepted", || {
        admin.losses().contains("weir_accept_pauses_total")
    });
    limit(160);
    Provoked::new(agent, (directory, waits))
}

/// A source of tags that never answers, one that is missing, and a list of allowed origins without this process.
pub fn origins() -> Provoked {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let docker = UnixListener::bind(at("docker")).unwrap();
    let config = format!(
        "bucket_width: 1s\nworkers: 1\norigin_detection: true\norigin_client: true\norigin_docker: ['{}']\norigin_containerd: ['{}']\n\
         rate_limit_per_origin: 1000000\n",
        at("docker").display(),
        at("none").display(),
    );
    let agent = Starter::from(&config).socket().start();
    // It takes the connection and says nothing.
    let (held, _) = docker.accept().unwrap();
    // Each round brings a container of its own, and more than may wait.
    let mut container = 0;
    let long = "x".repeat(6000);
    until(
        "messages wait at the end of a bucket, and more than there is room for",
        || {
            container += 1;
            for _ in 0..200 {
                agent.send(format!("waits:1|c|c:ci-{container}|#long:{long}\n"));
            }
            let status = agent.status();
            let of = |name: &str| status["origin"][name].as_u64().unwrap_or(0);
            let found = (of("waited_in_vain"), of("no_room_to_wait"));
            (found.0 > 0 && found.1 > 0)
                .then_some(())
                .ok_or(format!("{found:?}"))
        },
    );
    until("this process is above its rate", || {
        (0..200).for_each(|_| agent.send(&long));
        let dropped = &agent.status()["total"]["packets"]["dropped"];
        dropped["origin_rate_limited"].as_u64() > Some(0)
    });
    // Another list admits nobody.
    agent.rewrite(&format!("{config}allowed_origins: ['container_id:none*']\n"));
    agent.signal("-HUP");
    until("this process is refused", || {
        agent.send("refused:1|c");
        let dropped = &agent.status()["total"]["packets"]["dropped"];
        dropped["origin_not_allowed"].as_u64() > Some(0)
    });
    Provoked::new(agent, (directory, docker, held))
}

/// In a process namespace of its own, in which this process has no number.
pub fn namespace() -> Option<Provoked> {
    let isolated = ["--pid", "--fork", "--kill-child"];
    let can = Command::new("unshare").args(isolated).arg("true").status();
    if !can.is_ok_and(|status| status.success()) {
        println!("skipped: process namespaces cannot be made here");
        return None;
    }
    let script = format!("exec unshare {} \"$0\" \"$@\"", isolated.join(" "));
    let config =
        "bucket_width: 1s\nworkers: 1\norigin_detection: true\nallowed_origins: ['container_id:none*']\n";
    let agent = Starter::by_shell(&script).config(config).socket().start();
    agent.send("unnamed:1|c\n");
    Some(Provoked::new(agent, ()))
}

/// Contexts beyond each limit: of a metric, of an origin, of a tag's values, and of all.
pub fn contexts() -> Provoked {
    // The overflow series are there until every surface has been asked.
    let config = "bucket_width: 1s\nworkers: 1\ncounter_expiry: 1h\ncontexts_max: 2000\ncontexts_per_metric_max: 50\ncontexts_per_origin_max: 300\n\
                  origin_client: true\norigin_docker: []\norigin_containerd: []\n";
    let agent = Starter::from(config).socket().start();
    let send = |lines: Vec<String>| lines.chunks(50).for_each(|lines| agent.send(lines.concat()));
    send((0..100).map(|n| format!("metric:1|c|#n{n}|c:ci-a\n")).collect());
    send((0..400).map(|n| format!("of.origin{n}:1|c|c:ci-b\n")).collect());
    // A seventh of them from each of seven origins.
    let of_tag = |n: usize| format!("of.tag{n}:1|c|#key:{n}|c:ci-t{}\n", n % 7);
    send((0..1700).map(of_tag).collect());
    let of_all = |n: usize| format!("of.all{n}:1|{}|c:ci-u{}\n", ["c", "g"][n % 2], n % 9);
    send((0..1500).map(of_all).collect());
    Provoked::new(agent, ())
}
