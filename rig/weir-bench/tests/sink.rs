//! `weir-bench sink`, the real binary on real sockets: what each kind takes and refuses, faults on request, and the
//! comparison with a load's manifest.

use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

const BIN: &str = env!("CARGO_BIN_EXE_weir-bench");

struct Sink {
    child: Child,
    out: BufReader<ChildStdout>,
    addresses: Vec<String>,
}

impl Sink {
    fn start(flags: &[&str]) -> Sink {
        let mut child = Command::new(BIN)
            .arg("sink")
            .args(flags)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut addresses = Vec::new();
        loop {
            let line = json_line(&mut out);
            if line["ready"] == true {
                break;
            }
            addresses.push(
                line["address"]
                    .as_str()
                    .unwrap()
                    .split_once("://")
                    .unwrap()
                    .1
                    .to_owned(),
            );
        }
        Sink {
            child,
            out,
            addresses,
        }
    }

    /// Ends it; exit code and result.
    fn stop(mut self) -> (i32, Value) {
        let status = Command::new("kill")
            .arg(self.child.id().to_string())
            .status()
            .unwrap();
        assert!(status.success());
        self.wait()
    }

    fn wait(&mut self) -> (i32, Value) {
        let line = json_line(&mut self.out);
        (self.child.wait().unwrap().code().unwrap(), line["result"].clone())
    }

    fn post(&self, listener: usize, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Response {
        request(&self.addresses[listener], "POST", path, headers, body).unwrap()
    }

    fn get(&self, path: &str) -> Response {
        request(&self.addresses[0], "GET", path, &[("dd-api-key", "k")], b"").unwrap()
    }

    fn points(&self) -> Vec<Value> {
        let text = self.get("/_sink/points").body;
        text.lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    /// Waits until the statistics of a kind of sink say so.
    fn wait_for(&self, sink: &str, key: &str, value: u64) {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let stats: Value = serde_json::from_str(&self.get("/_sink/stats").body).unwrap();
            if stats[sink][key] == value {
                return;
            }
            assert!(Instant::now() < deadline, "{sink}.{key} is not {value}: {stats}");
            std::thread::yield_now();
        }
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

#[derive(Debug)]
struct Response {
    status: u16,
    head: String,
    body: String,
}

/// One request on a connection of its own; none when the connection ends without an answer.
fn request(
    address: &str,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> Option<Response> {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut head = format!(
        "{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {}\r\n",
        body.len()
    );
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str("\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(body).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let (head, body) = answer.split_once("\r\n\r\n")?;
    Some(Response {
        status: head.split(' ').nth(1)?.parse().ok()?,
        head: head.to_ascii_lowercase(),
        body: body.to_owned(),
    })
}

const KEY: (&str, &str) = ("DD-API-KEY", "0123456789abcdef");
const JSON: (&str, &str) = ("Content-Type", "application/json");
const PROTOBUF: (&str, &str) = ("Content-Type", "application/x-protobuf");

fn series(value: f64) -> Vec<u8> {
    json!({"series": [{"metric": "a", "points": [[1_700_000_000, value]], "tags": ["k:v"], "host": "h",
        "type": "rate", "interval": 10}]})
    .to_string()
    .into_bytes()
}

fn zlib(body: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(body).unwrap();
    encoder.finish().unwrap()
}

fn gzip(body: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(body).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn datadog_intake_takes_every_compression_and_refuses_what_the_real_one_does() {
    let dir = tempfile::tempdir().unwrap();
    let capture = dir.path().join("capture");
    let requests = dir.path().join("requests");
    let sink = Sink::start(&[
        "--listen",
        "datadog=127.0.0.1:0",
        "--capture",
        capture.to_str().unwrap(),
        "--requests",
        requests.to_str().unwrap(),
        "--strict",
    ]);
    let send = |path: &str, headers: &[(&str, &str)], body: &[u8]| sink.post(0, path, headers, body).status;
    let body = series(0.5);
    let v1 = "/api/v1/series";
    assert_eq!(send(v1, &[KEY, JSON], &body), 202);
    assert_eq!(
        send(v1, &[KEY, JSON, ("Content-Encoding", "deflate")], &zlib(&body)),
        202
    );
    assert_eq!(
        send(v1, &[KEY, JSON, ("Content-Encoding", "gzip")], &gzip(&body)),
        202
    );
    let zstd = zstd::encode_all(&body[..], 1).unwrap();
    assert_eq!(send(v1, &[KEY, JSON, ("Content-Encoding", "zstd")], &zstd), 202);
    let check = br#"[{"check":"c","host_name":"h","timestamp":1,"status":2,"message":"m","tags":[]}]"#;
    assert_eq!(send("/api/v1/check_run", &[KEY, JSON], check), 202);
    let event = br#"{"apiKey":"","events":{"api":[{"msg_title":"t","msg_text":"x","timestamp":1}]},"internalHostname":"h"}"#;
    assert_eq!(send("/intake/", &[KEY, JSON], event), 202);
    // One sketch named d, of one value in the bin 1338.
    let bins = field(7, &[b"\x08\x01\x10\x01\x3a\x02\xf4\x14\x42\x01\x01"]);
    let sketch = field(1, &[&field(1, &[b"d"]), &bins]);
    assert_eq!(send("/api/beta/sketches", &[KEY, PROTOBUF], &sketch), 202);
    assert_eq!(sink.get("/api/v1/validate").body, r#"{"valid":true}"#);
    let key_in_query = request(&sink.addresses[0], "GET", "/api/v1/validate?api_key=k", &[], b"").unwrap();
    assert_eq!(key_in_query.body, r#"{"valid":true}"#);

    let points = sink.points();
    assert_eq!(points.len(), 7);
    assert!(points[..4].iter().all(|point| {
        point["metric"] == "a"
            && point["type"] == "rate"
            && point["value"] == 0.5
            && point["host"] == "h"
            && point["tags"] == json!(["k:v"])
            && point["interval"] == 10
    }));
    assert_eq!(points[6]["k"], json!([1338]));

    assert_eq!(send(v1, &[JSON], &body), 403);
    assert_eq!(send("/api/v9/series", &[KEY, JSON], &body), 404);
    assert_eq!(send(v1, &[KEY, PROTOBUF], &body), 415);
    assert_eq!(send(v1, &[KEY, JSON, ("Content-Encoding", "br")], &body), 415);
    // Raw deflate is not what Content-Encoding: deflate means.
    assert_eq!(
        send(
            v1,
            &[KEY, JSON, ("Content-Encoding", "deflate")],
            &zlib(&body)[2..]
        ),
        400
    );
    assert_eq!(send("/api/v2/series", &[KEY, PROTOBUF], &vec![0; 512_001]), 413);
    let bomb = zstd::encode_all(&vec![b' '; 6 << 20][..], 1).unwrap();
    assert_eq!(
        send(
            "/api/v2/series",
            &[KEY, PROTOBUF, ("Content-Encoding", "zstd")],
            &bomb
        ),
        413
    );

    let (code, result) = sink.stop();
    assert_eq!(code, 1, "--strict must fail: {result}");
    let stats = &result["sinks"]["datadog"];
    assert_eq!(
        (&stats["points"], &stats["events"], &stats["checks"]),
        (&json!(5), &json!(1), &json!(1))
    );
    assert_eq!(
        stats["rejected"],
        json!({"400": 1, "403": 1, "404": 1, "413": 2, "415": 2})
    );
    assert_eq!(result["refused"], 7);
    let captured = std::fs::read_to_string(&capture).unwrap();
    assert_eq!(captured.lines().count(), 7);
    let requests = std::fs::read_to_string(&requests).unwrap();
    assert_eq!(requests.lines().count(), 16);
    assert!(!requests.contains(KEY.1), "the key is written down");
    assert!(requests.contains("***cdef"));
}

#[test]
fn faults_are_applied_in_order_and_scriptable_while_running() {
    let sink = Sink::start(&[
        "--listen",
        "datadog=127.0.0.1:0",
        "--fault",
        "status=503,times=2,retry-after=7",
    ]);
    let send = || sink.post(0, "/api/v1/series", &[KEY, JSON], &series(1.0));
    let first = send();
    assert_eq!((first.status, first.head.contains("retry-after: 7")), (503, true));
    assert_eq!(send().status, 503);
    assert_eq!(send().status, 202);
    // Only what was answered with success was taken.
    assert_eq!(sink.points().len(), 1);

    let bad = sink.post(0, "/_sink/faults", &[], b"status=1000");
    assert_eq!(bad.status, 400);
    assert!(bad.body.contains("allowed"), "{bad:?}");
    sink.post(
        0,
        "/_sink/faults",
        &[],
        b"close=before,times=1\npath=/api,delay=80ms,slow-write=100,times=1",
    );
    let body = series(1.0);
    assert!(request(&sink.addresses[0], "POST", "/api/v1/series", &[KEY, JSON], &body).is_none());
    // Taken although never acknowledged: what a retry then sends is a repetition.
    assert_eq!(sink.points().len(), 2);
    let start = Instant::now();
    let slow = send();
    // 80 ms of delay, and 12 intervals of 10 ms between the 13 bytes of the answer.
    assert!(start.elapsed() >= Duration::from_millis(200));
    assert_eq!((slow.status, slow.body.as_str()), (202, r#"{"errors":[]}"#));

    // Stays until taken away; a client that gives up finds the next request answered.
    sink.post(0, "/_sink/faults", &[], b"hang");
    let mut hanging = TcpStream::connect(&sink.addresses[0]).unwrap();
    hanging
        .write_all(b"POST /api/v1/series HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
        .unwrap();
    sink.wait_for("datadog", "requests", 6);
    hanging.set_nonblocking(true).unwrap();
    assert_eq!(
        hanging.read(&mut [0; 1]).unwrap_err().kind(),
        std::io::ErrorKind::WouldBlock
    );
    assert_eq!(
        request(&sink.addresses[0], "DELETE", "/_sink/faults", &[], b"")
            .unwrap()
            .status,
        200
    );
    assert_eq!(send().status, 202);
    sink.post(0, "/_sink/reset", &[], b"");
    assert_eq!(sink.points().len(), 0);
    let (code, _) = sink.stop();
    assert_eq!(code, 0);
}

fn varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// A length-delimited protobuf field.
fn field(number: u8, parts: &[&[u8]]) -> Vec<u8> {
    let body = parts.concat();
    let mut out = vec![number << 3 | 2];
    varint(body.len() as u64, &mut out);
    out.extend_from_slice(&body);
    out
}

fn label(name: &str, value: &str) -> Vec<u8> {
    field(
        1,
        &[&field(1, &[name.as_bytes()]), &field(2, &[value.as_bytes()])],
    )
}

#[test]
fn remote_write_takes_snappy_of_the_right_version() {
    let sink = Sink::start(&["--listen", "remote-write=127.0.0.1:0"]);
    // value 2.0 at 1500 ms.
    let sample = field(2, &[b"\x09\0\0\0\0\0\0\0\x40\x10\xdc\x0b"]);
    let request = field(1, &[&label("__name__", "a_total"), &label("k", "v"), &sample]);
    let snappy = snap::raw::Encoder::new().compress_vec(&request).unwrap();
    let headers = |version: &'static str| {
        [
            PROTOBUF,
            ("Content-Encoding", "snappy"),
            ("X-Prometheus-Remote-Write-Version", version),
        ]
    };
    assert_eq!(
        sink.post(0, "/api/v1/write", &headers("0.1.0"), &snappy).status,
        204
    );
    assert_eq!(
        sink.post(0, "/api/v1/write", &headers("2.0.0"), &snappy).status,
        400
    );
    assert_eq!(
        sink.post(0, "/api/v1/write", &headers("0.1.0"), &request).status,
        400
    );
    assert_eq!(sink.post(0, "/api/v1/write", &[PROTOBUF], &request).status, 415);
    // The same in version 2: labels by reference.
    let symbols = ["", "__name__", "a_total", "k", "v"]
        .map(|symbol| field(4, &[symbol.as_bytes()]))
        .concat();
    let request = [symbols, field(5, &[&field(1, &[b"\x01\x02\x03\x04"]), &sample])].concat();
    let snappy = snap::raw::Encoder::new().compress_vec(&request).unwrap();
    let headers = [
        (
            "Content-Type",
            "application/x-protobuf;proto=io.prometheus.write.v2.Request",
        ),
        ("Content-Encoding", "snappy"),
        ("X-Prometheus-Remote-Write-Version", "2.0.0"),
    ];
    let answer = sink.post(0, "/api/v1/write", &headers, &snappy);
    assert_eq!(answer.status, 204);
    assert!(
        answer
            .head
            .contains("x-prometheus-remote-write-samples-written: 1"),
        "{answer:?}"
    );
    let points = sink.points();
    assert_eq!(points.len(), 2);
    for point in points {
        assert_eq!(
            (
                &point["metric"],
                &point["type"],
                &point["value"],
                &point["ts"],
                &point["tags"]
            ),
            (
                &json!("a_total"),
                &json!("cumulative"),
                &json!(2.0),
                &json!(1.5),
                &json!(["k:v"])
            )
        );
    }
}

/// An OTLP request with one delta sum of 7.
fn otlp_sum() -> Vec<u8> {
    let attribute = field(7, &[&field(1, &[b"k"]), &field(2, &[&field(1, &[b"v"])])]);
    let mut point = b"\x11\0\0\0\0\0\0\0\0\x19\0\xe4\x0b\x54\x02\0\0\0\x31\x07\0\0\0\0\0\0\0".to_vec();
    point.extend_from_slice(&attribute);
    let sum = field(7, &[&field(1, &[&point]), b"\x10\x01\x18\x01"]);
    let metric = field(2, &[&field(1, &[b"m"]), &sum]);
    field(1, &[&field(2, &[&metric])])
}

#[test]
fn otlp_over_http_and_grpc() {
    let sink = Sink::start(&[
        "--listen",
        "otlp-http=127.0.0.1:0",
        "--listen",
        "otlp-grpc=127.0.0.1:0",
    ]);
    let body = otlp_sum();
    assert_eq!(sink.post(0, "/v1/metrics", &[PROTOBUF], &body).status, 200);
    let headers = [PROTOBUF, ("Content-Encoding", "gzip")];
    assert_eq!(sink.post(0, "/v1/metrics", &headers, &gzip(&body)).status, 200);
    assert_eq!(sink.post(0, "/v1/profiles", &[PROTOBUF], &body).status, 404);

    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let codes: Vec<(String, usize)> = runtime.block_on(async {
        let stream = tokio::net::TcpStream::connect(&sink.addresses[1]).await.unwrap();
        let (mut sender, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
                .await
                .unwrap();
        tokio::spawn(connection);
        let mut codes = Vec::new();
        let zipped = gzip(&body);
        for (method, flag, message) in [
            (
                "opentelemetry.proto.collector.metrics.v1.MetricsService/Export",
                0,
                &body,
            ),
            (
                "opentelemetry.proto.collector.metrics.v1.MetricsService/Export",
                1,
                &zipped,
            ),
            ("no.such.Service/Export", 0, &body),
        ] {
            let mut framed = vec![flag];
            framed.extend_from_slice(&(message.len() as u32).to_be_bytes());
            framed.extend_from_slice(message);
            let request = hyper::Request::post(format!("http://sink/{method}"))
                .header("content-type", "application/grpc")
                .header("grpc-encoding", "gzip")
                .body(Full::new(Bytes::from(framed)))
                .unwrap();
            let body = sender
                .send_request(request)
                .await
                .unwrap()
                .into_body()
                .collect()
                .await
                .unwrap();
            let code = body.trailers().unwrap()["grpc-status"]
                .to_str()
                .unwrap()
                .to_owned();
            codes.push((code, body.to_bytes().len()));
        }
        codes
    });
    assert_eq!(codes, [("0".into(), 5), ("0".into(), 5), ("12".into(), 0)]);
    let points = sink.points();
    assert_eq!(points.len(), 4);
    for point in points {
        assert_eq!(
            (
                &point["metric"],
                &point["type"],
                &point["value"],
                &point["ts"],
                &point["tags"]
            ),
            (
                &json!("m"),
                &json!("count"),
                &json!(7.0),
                &json!(10.0),
                &json!(["k:v"])
            )
        );
    }
}

#[test]
fn lines_arrive_over_every_socket() {
    let dir = tempfile::tempdir().unwrap();
    let gram = dir.path().join("gram");
    let stream = dir.path().join("stream");
    let sink = Sink::start(&[
        "--listen",
        "http=127.0.0.1:0",
        "--listen",
        "graphite=tcp://127.0.0.1:0",
        "--listen",
        "statsd=udp://127.0.0.1:0",
        "--listen",
        &format!("lines=unixgram://{}", gram.display()),
        "--listen",
        &format!("null=unix://{}", stream.display()),
    ]);
    let anything = request(&sink.addresses[0], "PUT", "/any/path?x=y", &[], b"anything").unwrap();
    assert_eq!(anything.status, 200);
    let mut graphite = TcpStream::connect(&sink.addresses[1]).unwrap();
    graphite.write_all(b"a.b 1 1700000000\nc.d;k=v 2.5 1700").unwrap();
    graphite.write_all(b"000001\nbroken\n").unwrap();
    let statsd = UdpSocket::bind("127.0.0.1:0").unwrap();
    statsd.send_to(b"a:1|c|#k:v\nb:2|g", &sink.addresses[2]).unwrap();
    let lines = std::os::unix::net::UnixDatagram::unbound().unwrap();
    lines.send_to(b"some text", &gram).unwrap();
    let mut frames = std::os::unix::net::UnixStream::connect(&stream).unwrap();
    frames.write_all(b"\x03\0\0\0abc\x01\0\0\0d").unwrap();
    sink.wait_for("graphite", "points", 2);
    sink.wait_for("statsd", "points", 2);
    sink.wait_for("lines", "logs", 1);
    sink.wait_for("null", "packets", 2);
    let (code, result) = sink.stop();
    assert_eq!(code, 0);
    assert_eq!(result["sinks"]["graphite"]["rejected"], json!({"400": 1}));
    assert_eq!(result["sinks"]["null"]["bytes"], 4);
    assert!(!gram.exists() && !stream.exists(), "socket files stay behind");
}

/// Sends it a signal.
fn signal(sink: &Sink, name: &str) {
    let id = sink.child.id().to_string();
    let status = Command::new("kill").args([name, &id]).status().unwrap();
    assert!(status.success());
}

/// Fills a stream whose reader does not read. Returns the bytes that are in it.
fn fill(stream: &mut impl Write, unit: &[u8]) -> usize {
    let chunk = unit.repeat(4096 / unit.len());
    let mut written = 0;
    loop {
        match stream.write(&chunk[written % chunk.len()..]) {
            Ok(bytes) => written += bytes,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return written,
            Err(error) => panic!("{error}"),
        }
    }
}

/// Bytes that the kernel had taken from a sender before the stop count, in connections that nobody had accepted too.
#[test]
fn streams_are_read_to_their_end_at_the_stop() {
    let line = [&[b'a'; 4095][..], b"\n"].concat();
    let frame = [&1020u32.to_le_bytes()[..], &[b'a'; 1020]].concat();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("stream");
    let mut sink = Sink::start(&[
        "--listen",
        "http=127.0.0.1:0",
        "--listen",
        "lines=tcp://127.0.0.1:0",
        "--listen",
        &format!("null=unix://{}", path.display()),
        "--keep",
        "0",
    ]);
    let mut known = TcpStream::connect(&sink.addresses[1]).unwrap();
    known.write_all(&line).unwrap();
    let mut known_frames = std::os::unix::net::UnixStream::connect(&path).unwrap();
    known_frames.write_all(&frame).unwrap();
    sink.wait_for("lines", "logs", 1);
    sink.wait_for("null", "packets", 1);
    // It does not run, so it reads nothing of this before the signal.
    signal(&sink, "-STOP");
    let mut new = TcpStream::connect(&sink.addresses[1]).unwrap();
    let mut new_frames = std::os::unix::net::UnixStream::connect(&path).unwrap();
    for stream in [&known, &new] {
        stream.set_nonblocking(true).unwrap();
    }
    for stream in [&known_frames, &new_frames] {
        stream.set_nonblocking(true).unwrap();
    }
    let lines = [&mut known, &mut new].map(|stream| fill(stream, &line) / line.len());
    let frames = [&mut known_frames, &mut new_frames].map(|stream| fill(stream, &frame) / frame.len());
    assert!(lines.iter().chain(&frames).all(|units| *units > 20));
    signal(&sink, "-TERM");
    signal(&sink, "-CONT");
    let (code, result) = sink.wait();
    assert_eq!(code, 0);
    assert_eq!(
        result["sinks"]["lines"]["logs"],
        1 + lines[0] + lines[1],
        "{result}"
    );
    assert_eq!(
        result["sinks"]["null"]["packets"],
        1 + frames[0] + frames[1],
        "{result}"
    );
    assert_eq!(result["refused"], 0, "{result}");
}

#[test]
fn silence_ends_a_sink_only_after_the_first_data() {
    let flags = ["--listen", "statsd=udp://127.0.0.1:0", "--until-idle", "50ms"];
    let mut sink = Sink::start(&flags);
    // Nothing can show that it would wait without limit; it has outlived the time of its silence.
    let started = std::time::Instant::now();
    while started.elapsed() < std::time::Duration::from_millis(200) {
        assert!(sink.child.try_wait().unwrap().is_none());
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
    sender.send_to(b"a:1|c", &sink.addresses[0]).unwrap();
    let (code, result) = sink.wait();
    assert_eq!(code, 0);
    assert_eq!(result["sinks"]["statsd"]["points"], 1, "{result}");
}

#[test]
fn scrape_reads_the_exposition_of_an_exporter() {
    let exporter = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = exporter.local_addr().unwrap();
    let serving = std::thread::spawn(move || {
        let mut accepts = Vec::new();
        // The first scrape fails, two succeed.
        for status in ["503 Busy", "200 OK", "200 OK"] {
            let (mut stream, _) = exporter.accept().unwrap();
            let mut head = Vec::new();
            let mut byte = [0];
            while !head.ends_with(b"\r\n\r\n") {
                stream.read_exact(&mut byte).unwrap();
                head.push(byte[0]);
            }
            accepts.push(String::from_utf8(head).unwrap().to_ascii_lowercase());
            let body = "# TYPE a_total counter\na_total{k=\"v\"} 3\n";
            let head = format!("HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4\r\n");
            stream
                .write_all(
                    format!(
                        "{head}Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
                        body.len()
                    )
                    .as_bytes(),
                )
                .unwrap();
        }
        accepts
    });
    let url = format!("http://{address}/metrics");
    let mut sink = Sink::start(&[
        "--scrape",
        &url,
        "--scrape-interval",
        "10ms",
        "--scrape-count",
        "2",
    ]);
    let (code, result) = sink.wait();
    assert_eq!(code, 0);
    assert_eq!(result["sinks"]["scrape"]["points"], 2);
    assert_eq!(result["sinks"]["scrape"]["rejected"], json!({"503": 1}));
    assert!(serving.join().unwrap()[0].contains("accept: text/plain"));
}

fn manifest(total: &str) -> Value {
    json!({
        "version": 1, "profile": "test", "seed": 1, "payload": "dogstatsd", "target": null,
        "totals": {"packets": 1, "bytes": 1, "messages": 1, "metrics": 1, "events": 0, "service_checks": 0, "types": {}},
        "distinct": {"names": 1, "tags": 1, "tag_lists": 1, "contexts": 1},
        "digest": "",
        "sending": {"elapsed_s": 0.0, "unit": "", "scheduled": 0.0, "achieved": 0.0, "late_fraction": 0.0,
            "lateness_p99_s": 0.0, "blocked_s": 0.0, "refused_packets": 0, "refused_messages": 0, "cpu_user_s": 0.0,
            "cpu_system_s": 0.0, "run_delay_s": 0.0, "verdict": ""},
        "contexts": [{"name": "a", "type": "c", "tags": ["k:v"], "messages": 1, "samples": 1, "weight": 1,
            "sum": total, "weighted_sum": total}],
    })
}

#[test]
fn oracle_decides_the_exit_code_now_and_from_a_capture() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    std::fs::write(path("right"), manifest("5").to_string()).unwrap();
    std::fs::write(path("wrong"), manifest("6").to_string()).unwrap();
    for (oracle, expected) in [("right", 0), ("wrong", 1)] {
        let sink = Sink::start(&[
            "--listen",
            "datadog=127.0.0.1:0",
            "--oracle",
            &path(oracle),
            "--capture",
            &path("capture"),
        ]);
        // A rate of 0.5 over 10 s is a sum of 5.
        assert_eq!(
            sink.post(0, "/api/v1/series", &[KEY, JSON], &series(0.5)).status,
            202
        );
        let (code, result) = sink.stop();
        assert_eq!(code, expected, "{result}");
        let verdict = &result["oracle"]["datadog"];
        assert_eq!(verdict["equal"], expected == 0);
        if expected == 1 {
            let difference = &verdict["differences"][0];
            assert_eq!(
                (&difference["expected"], &difference["got"]),
                (&json!(6.0), &json!(5.0))
            );
        }
        let again = Command::new(BIN)
            .args([
                "sink",
                "--from-capture",
                &path("capture"),
                "--oracle",
                &path(oracle),
            ])
            .output()
            .unwrap();
        assert_eq!(again.status.code(), Some(expected), "{again:?}");
    }
    // Nothing received is not equal.
    let (code, _) = Sink::start(&["--listen", "datadog=127.0.0.1:0", "--oracle", &path("right")]).stop();
    assert_eq!(code, 1);
}

#[test]
fn usage_errors_are_reported() {
    let fails = |flags: &[&str], code: i32, hint: &str| {
        let output = Command::new(BIN).arg("sink").args(flags).output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{flags:?}: {text}");
        assert!(text.contains(hint), "{flags:?}: {text}");
    };
    fails(&[], 2, "--listen KIND=ADDRESS");
    fails(&["--listen", "kafka=127.0.0.1:0"], 2, "known are datadog");
    fails(&["--listen", "datadog=nowhere"], 2, "host:port");
    fails(&["--listen", "statsd=127.0.0.1:1"], 2, "no scheme");
    fails(
        &["--listen", "http=127.0.0.1:0", "--fault", "x=1"],
        2,
        "allowed: path=PREFIX",
    );
    fails(
        &["--listen", "null=udp://127.0.0.1:0", "--oracle", "x"],
        2,
        "cannot compare",
    );
    fails(&["--from-capture", "/nonexistent"], 2, "/nonexistent");
    let busy = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("datadog={}", busy.local_addr().unwrap());
    fails(&["--listen", &address], 1, "cannot listen");
}
