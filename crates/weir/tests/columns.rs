//! Columns over HTTP, from a client to the outputs of a running agent.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::Value;
use weir_columns::{Encoder, MetricType, Row, SketchPoint, TagSet};
use weir_sketch::Sketch;

use crate::support::hand_over::{BEGIN, END, PROTOCOL, Peer, SOCKETS_END};
use crate::support::place::{Place, replace_by_a_file};
use crate::support::senders::total;
use crate::support::{Agent, PATIENCE, long_bucket, until};

pub fn now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() as i64
}

/// An agent whose only bucket ends with it.
fn agent(more: &[&str]) -> Agent {
    let arguments = [
        "--http",
        "127.0.0.1:0",
        "--bucket-width",
        "LONG",
        "--output",
        "stdout",
    ];
    Agent::start(&[&arguments[..], more].concat()[..], &[])
}

/// Where it takes columns.
pub fn address(agent: &Agent) -> String {
    listener(agent, "http://")["address"].as_str().unwrap()["http://".len()..].to_owned()
}

fn listener(agent: &Agent, scheme: &str) -> Value {
    let status = agent.status();
    let mut listeners = status["listeners"].as_array().unwrap().iter();
    let found = listeners.find(|of| of["address"].as_str().unwrap().starts_with(scheme));
    found.unwrap_or_else(|| panic!("{scheme}: {status}")).clone()
}

pub fn row(encoder: &mut Encoder, metric: MetricType, name: &str) -> Row {
    Row {
        name: encoder.name(&[name]),
        tags: encoder.tag_set(TagSet::default(), ["a:1"].into_iter()),
        interval: 10,
        ..Row::new(metric)
    }
}

/// A count, a rate and a gauge.
fn series() -> Vec<u8> {
    let mut encoder = Encoder::new(1);
    for (metric, name, value) in [
        (MetricType::Count, "count", 5.0),
        (MetricType::Rate, "count", 0.5),
        (MetricType::Gauge, "gauge", 7.0),
    ] {
        let row = row(&mut encoder, metric, name);
        encoder.row(&row, &[(now(), value)]);
    }
    encoder.sort();
    encoder.to_payload()
}

/// Samples 1 to 100.
fn sketches() -> Vec<u8> {
    let mut sketch = Sketch::new();
    (1..=100).for_each(|value| sketch.insert(f64::from(value), 1));
    let mut encoder = Encoder::new(1);
    let row = row(&mut encoder, MetricType::Sketch, "dist");
    let point = SketchPoint {
        timestamp: now(),
        sum: sketch.sum(),
        min: sketch.min(),
        max: sketch.max(),
        count: sketch.cnt(),
    };
    let bins = sketch.bins().into_owned().into_iter();
    let bins = bins.map(|bin| (i32::from(bin.k), u64::from(bin.n)));
    encoder.sketches(&row, std::iter::once((point, bins)));
    encoder.sort();
    encoder.to_payload()
}

fn request(path: &str, headers: &[&str], body: &[u8]) -> Vec<u8> {
    let mut request = format!("POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n");
    for header in headers {
        request += header;
        request += "\r\n";
    }
    request += &format!("Content-Length: {}\r\n\r\n", body.len());
    [request.as_bytes(), body].concat()
}

/// Status and body of the answer to a request.
fn exchange(mut stream: impl Read + Write, request: &[u8]) -> (u16, String) {
    stream.write_all(request).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let answer = String::from_utf8(answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let code = head.split_whitespace().nth(1).unwrap().parse().unwrap();
    (code, format!("{head}\r\n\r\n{body}"))
}

pub fn post(address: &str, path: &str, headers: &[&str], body: &[u8]) -> (u16, String) {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    exchange(stream, &request(path, headers, body))
}

/// The points of an agent that has ended.
pub fn points(stdout: &str, metric: &str) -> Vec<Value> {
    let lines = stdout
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap());
    lines.filter(|point| point["metric"] == metric).collect()
}

/// The whole number that a rate is made of. The reader of JSON is wrong in the last bit of some fractions.
fn samples(point: &Value) -> f64 {
    let count = point["value"].as_f64().unwrap() * long_bucket();
    assert!((count - count.round()).abs() < 1e-9, "{point}");
    count.round()
}

/// Over TCP, with both versions of HTTP, and over a Unix socket.
#[test]
fn columns_and_messages_of_one_series_are_one_point_and_answers_say_what_is_wrong() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("http.socket");
    let agent = agent(&["--http-uds", path.to_str().unwrap()]);
    let address = address(&agent);
    agent.send("count:2|c|#a:1\ndist:50|d|#a:1");
    let compressed = zstd::encode_all(&series()[..], 3).unwrap();
    let (code, answer) = post(&address, "/series", &["Content-Encoding: zstd"], &compressed);
    assert_eq!(code, 200, "{answer}");
    let mut stream = connect(&address);
    stream.write_all(&second_version("/series", &series())).unwrap();
    assert_eq!(
        status_of_frames(&mut stream),
        0x88,
        "the status 200 in the static table"
    );
    let (code, answer) = exchange(connect_to_file(&path), &request("/series", &[], &series()));
    assert_eq!(code, 200, "{answer}");
    let (code, answer) = post(
        &address,
        "/sketches",
        &["Content-Type: application/x-protobuf"],
        &sketches(),
    );
    assert_eq!(code, 200, "{answer}");
    let mut listener = Value::Null;
    until("the worker reports", || {
        listener = self::listener(&agent, "http://");
        listener["columns"]["points_merged"] == 7
    });
    assert_eq!(listener["http"]["requests"]["added"], 3, "{listener}");
    assert_eq!(listener["books"]["packets"]["received"], 3, "{listener}");
    assert_eq!(listener["books"]["samples"]["aggregated"], 106, "{listener}");
    assert_eq!(
        self::listener(&agent, "http+unix://")["http"]["requests"]["added"],
        1
    );
    answers_say_what_is_wrong(&agent);
    let (stdout, _) = agent.stop();
    assert!(!path.exists(), "the socket file goes with the agent");
    let all = |metric| points(&stdout, metric);
    let [count] = &all("count")[..] else {
        panic!("{stdout}")
    };
    assert_eq!(samples(count), f64::from(2 + 4 * (5 + 5)), "{count}");
    let [gauge] = &all("gauge")[..] else {
        panic!("{stdout}")
    };
    assert_eq!(gauge["value"], 7.0);
    let [dist] = &all("dist")[..] else {
        panic!("{stdout}")
    };
    assert_eq!(
        (&dist["cnt"], &dist["min"], &dist["max"]),
        (&101.into(), &1.into(), &100.into()),
        "{dist}"
    );
}

fn answers_say_what_is_wrong(agent: &Agent) {
    let address = address(agent);
    let refused = |path, headers: &[&str], body: &[u8], code, reason| {
        let (found, answer) = post(&address, path, headers, body);
        assert!(
            found == code && answer.contains(reason),
            "{code} {reason}: {answer}"
        );
    };
    let good = series();
    refused("/series", &[], b"\xff\xff", 400, "byte 0 begins no field");
    refused(
        "/sketches",
        &[],
        &good,
        400,
        "series 1 is no sketch; /series takes it",
    );
    refused(
        "/series",
        &["Content-Encoding: gzip"],
        &good,
        400,
        "cannot be decompressed",
    );
    refused("/series", &["x-dsd-ld: a|b"], &good, 400, "x-dsd-ld");
    refused(
        "/series",
        &["Content-Encoding: br"],
        &good,
        415,
        "accept-encoding: zstd, gzip, deflate",
    );
    refused(
        "/series",
        &["Content-Type: text/plain"],
        &good,
        415,
        "application/x-protobuf",
    );
    refused("/other", &[], &good, 404, "docs/columns.md");
    refused(
        "/series",
        &["Origin: http://localhost"],
        &good,
        403,
        "web pages may not send",
    );
    refused(
        "/series",
        &["Sec-Fetch-Site: none"],
        &good,
        403,
        "web pages may not send",
    );
    let mut large = TcpStream::connect(&address).unwrap();
    large.set_read_timeout(Some(PATIENCE)).unwrap();
    let head = "POST /series HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 99999999999\r\n\r\n";
    let (code, answer) = exchange(&mut large, head.as_bytes());
    assert_eq!(code, 413, "{answer}");
    let bomb = zstd::encode_all(std::io::repeat(0).take(1 << 30), 1).unwrap();
    refused(
        "/series",
        &["Content-Encoding: zstd"],
        &bomb,
        413,
        "send fewer series at once",
    );
    let get = "GET /series HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    let (code, answer) = exchange(TcpStream::connect(&address).unwrap(), get.as_bytes());
    assert!(code == 405 && answer.contains("allow: POST"), "{answer}");
    let foreign =
        "POST /series HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
    let (code, answer) = exchange(TcpStream::connect(&address).unwrap(), foreign.as_bytes());
    assert!(code == 403 && answer.contains("evil.example"), "{answer}");
    let (code, _) = post(&address, "/series", &[], &good);
    assert_eq!(code, 200, "it still works");
    let requests = listener(agent, "http://")["http"]["requests"].clone();
    let counted = |result: &str| requests[result].as_u64().unwrap();
    assert_eq!(
        (counted("invalid"), counted("unsupported"), counted("refused")),
        (4, 2, 3),
        "{requests}"
    );
    assert_eq!(
        (counted("too_large"), counted("other"), counted("added")),
        (2, 2, 4),
        "{requests}"
    );
}

const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u32).to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// A request of HTTP/2 by a client that knows that the server speaks it.
fn second_version(path: &str, body: &[u8]) -> Vec<u8> {
    let mut fields = vec![0x83, 0x86];
    for (name, value) in [(4, path), (1, "localhost")] {
        fields.extend([name, value.len() as u8]);
        fields.extend_from_slice(value.as_bytes());
    }
    [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
        frame(SETTINGS, 0, 0, &[]),
        frame(HEADERS, 4, 1, &fields),
        frame(0, 1, 1, body),
    ]
    .concat()
}

/// The first byte of the first frame with fields.
fn status_of_frames(stream: &mut TcpStream) -> u8 {
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head).unwrap();
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; length as usize];
        stream.read_exact(&mut payload).unwrap();
        if head[3] == HEADERS {
            return payload[0];
        }
    }
}

/// The sum that one request with [`series`] adds to `count`.
const ADDED: u64 = 10;

fn with_both_sockets(place: &Place) -> String {
    place.configuration(&format!(
        "http: 127.0.0.1:0\nhttp_uds: {}\nbucket_width: LONG\noutputs:\n  stdout: {{enabled: true}}\n",
        place.path("http").display()
    ))
}

fn connect(address: &str) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

fn connect_to_file(path: &Path) -> UnixStream {
    let stream = UnixStream::connect(path).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// A request after which the connection stays open.
fn kept_request() -> Vec<u8> {
    let body = series();
    let head = format!(
        "POST /series HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), &body].concat()
}

/// Status and head of the next answer on a connection; `None` if it ends before.
pub fn next_answer(stream: &mut impl Read) -> Option<(u16, String)> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).ok()?;
        head.extend(byte);
    }
    let head = String::from_utf8(head).unwrap();
    let length = head.split("content-length: ").nth(1)?.split("\r\n").next()?;
    stream.read_exact(&mut vec![0; length.parse().unwrap()]).ok()?;
    Some((head.split(' ').nth(1)?.parse().unwrap(), head))
}

fn sent(stream: &mut (impl Read + Write), request: &[u8]) -> Option<(u16, String)> {
    stream.write_all(request).ok()?;
    next_answer(stream)
}

/// A client that sends again what was not answered with 200.
struct Client {
    added: Arc<AtomicU64>,
    thread: JoinHandle<()>,
}

impl Client {
    /// `keeps`: one connection for as long as it lasts.
    fn start<S: Read + Write>(
        connect: impl Fn() -> S + Send + 'static,
        keeps: bool,
        ended: &Arc<AtomicBool>,
    ) -> Client {
        let added = Arc::new(AtomicU64::new(0));
        let (counted, ended) = (added.clone(), ended.clone());
        let thread = std::thread::spawn(move || {
            let mut open = None;
            while !ended.load(Ordering::Acquire) {
                let mut stream = open.take().unwrap_or_else(&connect);
                let asked = match keeps {
                    true => kept_request(),
                    false => request("/series", &[], &series()),
                };
                match sent(&mut stream, &asked) {
                    Some((200, _)) => drop(counted.fetch_add(1, Ordering::Relaxed)),
                    Some((503, head)) => assert!(head.contains("retry-after: 1"), "{head}"),
                    Some((_, head)) => panic!("{head}"),
                    None => continue,
                }
                open = keeps.then_some(stream);
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        Client { added, thread }
    }

    fn added(&self) -> u64 {
        self.added.load(Ordering::Relaxed)
    }
}

/// The listening sockets did not pass, so the next process could not start.
#[test]
fn hand_overs_add_each_request_that_was_answered_with_200_and_no_other() {
    let place = Place::new();
    let config = with_both_sockets(&place);
    let path = place.path("http");
    let mut agent = place.start(&config);
    let address = agent.wait_for("listening on http://");
    let ended = Arc::new(AtomicBool::new(false));
    let mut clients = Vec::new();
    for keeps in [true, false] {
        let (address, path) = (address.clone(), path.clone());
        clients.push(Client::start(move || connect(&address), keeps, &ended));
        clients.push(Client::start(move || connect_to_file(&path), keeps, &ended));
    }
    let wait_for_more = || {
        let before: Vec<u64> = clients.iter().map(Client::added).collect();
        until("each client adds more", || {
            clients
                .iter()
                .zip(&before)
                .all(|(client, before)| client.added() >= before + 10)
        });
    };
    let mut stdout = String::new();
    for _ in 0..3 {
        wait_for_more();
        let next = place.take_over(&config);
        let (status, out, log) = agent.end();
        assert!(status.success(), "{log}");
        assert!(path.exists(), "the next process has the file");
        stdout += &out;
        agent = next;
    }
    wait_for_more();
    ended.store(true, Ordering::Release);
    let added = clients.into_iter().map(|client| {
        client.thread.join().unwrap();
        client.added.load(Ordering::Relaxed)
    });
    let added: u64 = added.sum();
    // Nothing can be kept, so the bucket is flushed.
    replace_by_a_file(&place.path("state"));
    stdout += &agent.stop().0;
    assert_eq!(
        (total(&stdout, "count") * long_bucket()).round() as u64,
        ADDED * added,
        "{stdout}"
    );
    assert!(!path.exists(), "the last one ends in the ordinary way");
}

#[test]
fn requests_during_a_hand_over_are_refused_and_those_after_a_failed_one_are_added() {
    let place = Place::new();
    let config = with_both_sockets(&place);
    let mut agent = place.start(&config);
    let address = agent.wait_for("listening on http://");
    let ask = kept_request();
    let mut kept = connect(&address);
    let code = |answer: Option<(u16, String)>| answer.map(|(code, _)| code);
    assert_eq!(code(sent(&mut kept, &ask)), Some(200));
    let mut new = Peer::connect(&place.state());
    new.hello(PROTOCOL, 1);
    new.until(SOCKETS_END);
    new.say(BEGIN, "");
    new.until(END);
    let (refused, head) = sent(&mut kept, &ask).unwrap();
    assert!(refused == 503 && head.contains("retry-after: 1"), "{head}");
    let mut waiting = connect(&address);
    waiting.write_all(&ask).unwrap();
    drop(new);
    agent.wait_for("hand-over failed; this process continues");
    assert_eq!(code(next_answer(&mut waiting)), Some(200));
    assert_eq!(code(sent(&mut kept, &ask)), Some(200));
    let mut half = connect(&address);
    half.write_all(&ask[..ask.len() - 1]).unwrap();
    until("the request is under way", || {
        listener(&agent, "http://")["http"]["under_way"] == 1
    });
    let next = place.take_over(&config);
    let (refused, head) = next_answer(&mut half).unwrap();
    assert!(refused == 503 && head.contains("retry-after: 1"), "{head}");
    assert_eq!(next_answer(&mut kept), None, "an idle connection ends");
    let (status, out, log) = agent.end();
    assert!(status.success(), "{log}");
    replace_by_a_file(&place.path("state"));
    let stdout = out + &next.stop().0;
    assert_eq!(
        (total(&stdout, "count") * long_bucket()).round() as u64,
        3 * ADDED,
        "{stdout}"
    );
}
