//! A scripted intake, and batches as the agent makes them.

// Each test file uses a part of it.
#![allow(dead_code)]

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value as Json;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::watch;
use weir_aggregate::{AggregatorSettings, Batch};
use weir_context::{HashSecret, Limits, RuleSettings, Rules};
use weir_ingest::{Ingest, IngestSettings, Received};
use weir_output::delivery::{Clock, Surroundings};
use weir_output::otlp::{OtlpCompression, OtlpHistograms, OtlpSettings, Protocol, Temporality};
use weir_output::remote_write::{RemoteWriteSettings, RemoteWriteVersion};
use weir_output::settings::{
    Compression, DatadogSettings, DeliverySettings, HistogramStyle, Secret, SeriesFormat,
};
use weir_protocol::ParseOptions;

pub const KEY: &str = "0123456789abcdef0123456789abcdef";
/// The bucket of every batch, unless a test says otherwise.
pub const BUCKET: i64 = 1_700_000_000;
/// Long enough for a loaded machine; reached only by a failure.
pub const DEADLINE: Duration = Duration::from_secs(60);

#[derive(Clone, Debug)]
pub struct Request {
    pub method: String,
    pub path: String,
    /// Names in lower case.
    pub headers: BTreeMap<String, String>,
    pub body: Vec<u8>,
}

impl Request {
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", String::as_str)
    }

    /// The body without its compression.
    pub fn plain(&self) -> Vec<u8> {
        let mut out = Vec::new();
        match self.header("content-encoding") {
            "zstd" => out = zstd::decode_all(&self.body[..]).expect("a zstd body"),
            "deflate" => drop(
                flate2::read::ZlibDecoder::new(&self.body[..])
                    .read_to_end(&mut out)
                    .expect("a zlib body"),
            ),
            "gzip" => drop(
                flate2::read::GzDecoder::new(&self.body[..])
                    .read_to_end(&mut out)
                    .expect("a gzip body"),
            ),
            "snappy" => {
                out = snap::raw::Decoder::new()
                    .decompress_vec(&self.body)
                    .expect("a snappy body")
            }
            "" => out.clone_from(&self.body),
            other => panic!("content encoding {other}"),
        }
        out
    }

    pub fn json(&self) -> Json {
        serde_json::from_slice(&self.plain()).expect("a JSON body")
    }
}

/// What the scripted server does with a request.
#[derive(Clone, Debug)]
pub enum Reply {
    Status(u16),
    /// Status, headers, body.
    Full(u16, Vec<(&'static str, String)>, &'static str),
    /// These bytes, then the end of the connection.
    Raw(&'static [u8]),
    /// These bytes one by one, slowly, then the first again.
    Trickle(&'static [u8]),
    /// Nothing, for as long as the client waits.
    Hang,
}

type Script = Box<dyn FnMut(&Request) -> Reply + Send>;

/// A server that remembers what it was sent.
#[derive(Clone)]
pub struct Intake {
    pub address: std::net::SocketAddr,
    requests: Arc<Mutex<Vec<Request>>>,
    count: Arc<watch::Sender<usize>>,
}

impl Intake {
    pub async fn start(script: impl FnMut(&Request) -> Reply + Send + 'static) -> Self {
        Self::start_at(TcpListener::bind("127.0.0.1:0").await.unwrap(), None, script)
    }

    pub async fn start_tls(
        tls: tokio_rustls::TlsAcceptor,
        script: impl FnMut(&Request) -> Reply + Send + 'static,
    ) -> Self {
        Self::start_at(TcpListener::bind("127.0.0.1:0").await.unwrap(), Some(tls), script)
    }

    pub fn start_at(
        listener: TcpListener,
        tls: Option<tokio_rustls::TlsAcceptor>,
        script: impl FnMut(&Request) -> Reply + Send + 'static,
    ) -> Self {
        let intake = Self {
            address: listener.local_addr().unwrap(),
            requests: Arc::default(),
            count: Arc::new(watch::Sender::new(0)),
        };
        let script: Arc<Mutex<Script>> = Arc::new(Mutex::new(Box::new(script)));
        let server = intake.clone();
        tokio::spawn(async move {
            loop {
                let Ok((socket, _)) = listener.accept().await else {
                    return;
                };
                let (server, script, tls) = (server.clone(), script.clone(), tls.clone());
                tokio::spawn(async move {
                    match tls {
                        Some(tls) => {
                            if let Ok(socket) = tls.accept(socket).await {
                                server.serve(socket, script).await;
                            }
                        }
                        None => server.serve(socket, script).await,
                    }
                });
            }
        });
        intake
    }

    async fn serve(self, mut socket: impl AsyncRead + AsyncWrite + Unpin, script: Arc<Mutex<Script>>) {
        while let Some(request) = read_request(&mut socket).await {
            let validation = request.path.ends_with("/api/v1/validate");
            let reply = script.lock().unwrap()(&request);
            if !validation {
                self.requests.lock().unwrap().push(request);
                self.count.send_modify(|count| *count += 1);
            }
            let written = match reply {
                Reply::Status(status) => respond(&mut socket, status, &[], "{}").await,
                Reply::Full(status, headers, body) => respond(&mut socket, status, &headers, body).await,
                Reply::Raw(bytes) => {
                    drop(socket.write_all(bytes).await);
                    drop(socket.shutdown().await);
                    return;
                }
                Reply::Trickle(bytes) => {
                    for byte in bytes.iter().cycle() {
                        if socket.write_all(&[*byte]).await.is_err() {
                            return;
                        }
                        tokio::time::sleep(Duration::from_millis(20)).await;
                    }
                    return;
                }
                Reply::Hang => {
                    drop(socket.read(&mut [0; 1]).await);
                    return;
                }
            };
            if written.is_err() {
                return;
            }
        }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn requests(&self) -> Vec<Request> {
        self.requests.lock().unwrap().clone()
    }

    /// Waits until this many requests have arrived, those about keys apart.
    pub async fn wait(&self, count: usize) -> Vec<Request> {
        let mut seen = self.count.subscribe();
        let waited = tokio::time::timeout(DEADLINE, seen.wait_for(|seen| *seen >= count)).await;
        assert!(
            waited.is_ok(),
            "{} of {count} requests arrived",
            self.requests().len()
        );
        drop(waited);
        self.requests()
    }
}

async fn respond(
    socket: &mut (impl AsyncWrite + Unpin),
    status: u16,
    headers: &[(&'static str, String)],
    body: &str,
) -> std::io::Result<()> {
    let mut head = format!("HTTP/1.1 {status} Scripted\r\ncontent-length: {}\r\n", body.len());
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    socket.write_all(format!("{head}\r\n{body}").as_bytes()).await
}

async fn read_request(socket: &mut (impl AsyncRead + Unpin)) -> Option<Request> {
    let mut bytes = Vec::new();
    let head_end = loop {
        if let Some(at) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            break at;
        }
        // A TLS greeting, to a server that speaks none.
        if bytes.first() == Some(&0x16) {
            return None;
        }
        if socket.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    };
    let head = String::from_utf8(bytes[..head_end].to_vec()).ok()?;
    let mut lines = head.split("\r\n");
    let mut first = lines.next()?.split(' ');
    let (method, path) = (first.next()?.to_owned(), first.next()?.to_owned());
    let header = |line: &str| {
        line.split_once(':')
            .map(|(name, value)| (name.to_lowercase(), value.trim().to_owned()))
    };
    let headers: BTreeMap<String, String> = lines.filter_map(header).collect();
    let length: usize = headers
        .get("content-length")
        .map_or(0, |length| length.parse().unwrap());
    let mut body = bytes[head_end + 4..].to_vec();
    while body.len() < length {
        if socket.read_buf(&mut body).await.ok()? == 0 {
            return None;
        }
    }
    assert_eq!(body.len(), length, "requests are not pipelined");
    Some(Request {
        method,
        path,
        headers,
        body,
    })
}

/// A local address at which nothing listens.
pub fn dead_address() -> std::net::SocketAddr {
    std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
}

/// Quick to time out and to retry.
pub fn delivery() -> DeliverySettings {
    DeliverySettings {
        timeout: Duration::from_secs(20),
        concurrency: 4,
        backoff_base: Duration::from_millis(5),
        backoff_factor: 2.0,
        backoff_max: Duration::from_millis(40),
        recovery_interval: 2,
        recovery_reset: false,
        disk_path: String::new(),
        disk_bytes_max: 0,
        disk_age_max: Duration::ZERO,
        ca_file: String::new(),
        proxy: "none".into(),
    }
}

pub fn datadog(url: &str) -> DatadogSettings {
    DatadogSettings {
        api_key: Secret::new(KEY),
        site: "datadoghq.com".into(),
        url: url.into(),
        additional_endpoints: BTreeMap::new(),
        compression: Compression::Zstd,
        compression_level: 0,
        series_format: SeriesFormat::V2,
        points_per_payload_max: 10_000,
        arbitrary_tag_values: false,
        device_resource: true,
        delivery: delivery(),
    }
}

pub fn remote_write(url: &str) -> RemoteWriteSettings {
    RemoteWriteSettings {
        url: url.into(),
        version: RemoteWriteVersion::V1,
        headers: BTreeMap::new(),
        labels: BTreeMap::new(),
        instance_label: true,
        expiry: Duration::from_secs(300),
        repeat_idle: true,
        zero_samples: true,
        histograms: HistogramStyle::Summary,
        distributions: HistogramStyle::Native,
        quantiles: vec![0.5],
        timings_in_seconds: false,
        host_label: true,
        samples_per_payload_max: 10_000,
        delivery: delivery(),
    }
}

pub fn otlp(url: &str) -> OtlpSettings {
    OtlpSettings {
        url: url.into(),
        protocol: Protocol::Http,
        compression: OtlpCompression::Gzip,
        headers: BTreeMap::new(),
        resource_attributes: BTreeMap::from([("service.name".into(), "shop".into())]),
        temporality: Temporality::Delta,
        expiry: Duration::from_secs(300),
        histograms: OtlpHistograms::Exponential,
        quantiles: vec![0.5, 0.99],
        buckets_max: 160,
        points_per_payload_max: 8192,
        delivery: delivery(),
    }
}

pub fn surroundings(clock: Clock) -> Surroundings {
    Surroundings {
        clock,
        memory_bytes_max: 16 << 20,
        state_bytes_max: 256 << 20,
    }
}

/// What the agent makes of these messages in the bucket that starts at `bucket`, on the host `agent-host`.
pub fn batches_at(bucket: i64, messages: &str) -> Vec<Arc<Batch>> {
    let rules = Rules::new(RuleSettings {
        set: Default::default(),
        suffix_mask: None,
        namespace: String::new(),
        namespace_exceptions: None,
        filter: Default::default(),
        extra_tags: Vec::new(),
        hostname: "agent-host".into(),
        histogram_suffixes: weir_aggregate::Expansion::default()
            .suffixes()
            .map(str::to_owned)
            .collect(),
        copy_to_distribution: None,
        max_tag_bytes: None,
    });
    let settings = IngestSettings {
        worker: 0,
        aggregator: AggregatorSettings {
            bucket_width: 10,
            counter_expiry: 300,
            context_expiry: 20,
            hostname: "agent-host".into(),
        },
        rules,
        limits: Limits::default(),
        secret: HashSecret::from_random(1, 2),
        gauge_deltas: false,
        listeners: vec![ParseOptions {
            origin_client: true,
            timestamps: true,
            eol_required: false,
        }],
    };
    let mut ingest = Ingest::new(settings, bucket);
    ingest.packet(Received {
        bytes: messages.as_bytes(),
        listener: 0,
        truncated: false,
        received: 0,
    });
    let mut batches = Vec::new();
    batches.extend(std::iter::from_fn(|| ingest.take_passed_on()));
    assert!(ingest.advance(bucket + 10));
    while ingest.is_draining() {
        batches.extend(ingest.drain(usize::MAX));
    }
    assert_eq!(ingest.counts()[0].rejected_total(), 0, "every message is valid");
    batches.into_iter().map(Arc::new).collect()
}

pub fn batches(messages: &str) -> Vec<Arc<Batch>> {
    batches_at(BUCKET, messages)
}

/// Decodes payloads with agent-payload, the definitions that the intake's owner publishes.
pub fn decode(requests: &[Request]) -> Vec<Json> {
    let kind = |request: &Request| {
        if request.path.ends_with("sketches") {
            "sketches"
        } else {
            "series"
        }
    };
    let lines: String = requests
        .iter()
        .map(|r| {
            format!(
                "{} {}\n",
                kind(r),
                r.plain().iter().map(|b| format!("{b:02x}")).collect::<String>()
            )
        })
        .collect();
    run_decoder(&mut Command::new(build("datadog")), lines)
}

/// Decodes remote write requests of version 1 or 2 with Prometheus's own definitions.
pub fn decode_remote_write(version: u8, bodies: impl IntoIterator<Item = Vec<u8>>) -> Vec<Json> {
    let hex = |body: Vec<u8>| body.iter().map(|b| format!("{b:02x}")).collect::<String>();
    let lines: String = bodies
        .into_iter()
        .map(|body| format!("{version} {}\n", hex(body)))
        .collect();
    run_decoder(&mut Command::new(build("remote_write")), lines)
}

fn run_decoder(command: &mut Command, lines: String) -> Vec<Json> {
    let mut decoder = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the decoder starts");
    let mut input = decoder.stdin.take().unwrap();
    let writer = std::thread::spawn(move || input.write_all(lines.as_bytes()));
    let output = decoder.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    assert!(output.status.success(), "the decoder refuses a payload");
    let lines = output.stdout.split(|b| *b == b'\n').filter(|l| !l.is_empty());
    lines.map(|line| serde_json::from_slice(line).unwrap()).collect()
}

/// Builds a decoder once per test run.
fn build(name: &'static str) -> PathBuf {
    static BUILT: Mutex<BTreeMap<&str, PathBuf>> = Mutex::new(BTreeMap::new());
    let build = || {
        let source = format!("{}/tests/decoders/{name}", env!("CARGO_MANIFEST_DIR"));
        let directory = option_env!("CARGO_TARGET_TMPDIR").map_or_else(std::env::temp_dir, PathBuf::from);
        let own = directory.join(format!("decode-{name}-{}", std::process::id()));
        let built = Command::new("go")
            .args(["build", "-o"])
            .arg(&own)
            .arg(".")
            .current_dir(source)
            .status();
        assert!(
            built
                .expect("the Go toolchain is needed for the decoders")
                .success(),
            "the decoder does not build"
        );
        let binary = directory.join(format!("decode-{name}"));
        // Test binaries that run at once each build it; the last to arrive replaces equals by equals.
        std::fs::rename(&own, &binary).expect("the decoder can be put in place");
        binary
    };
    BUILT.lock().unwrap().entry(name).or_insert_with(build).clone()
}

/// Decodes OTLP requests with opentelemetry-proto, the definitions that their owners publish.
pub fn decode_otlp(bodies: impl IntoIterator<Item = Vec<u8>>) -> Vec<Json> {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/decoders/otlp");
    let hex = |body: Vec<u8>| body.iter().map(|b| format!("{b:02x}")).collect::<String>() + "\n";
    let lines: String = bodies.into_iter().map(hex).collect();
    run_decoder(Command::new(python()).arg(format!("{source}/decode.py")), lines)
}

/// A Python with what the decoder needs, made once.
fn python() -> PathBuf {
    static MADE: std::sync::OnceLock<PathBuf> = std::sync::OnceLock::new();
    MADE.get_or_init(|| {
        let requirements = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/tests/decoders/otlp/requirements.txt"
        );
        let directory = option_env!("CARGO_TARGET_TMPDIR").map_or_else(std::env::temp_dir, PathBuf::from);
        let made = directory.join("decode-otlp");
        // Named for what is in it: a newer requirement makes another.
        let wanted = std::fs::read_to_string(requirements).unwrap();
        let is_there =
            std::fs::read_to_string(made.join("requirements.txt")).is_ok_and(|found| found == wanted);
        if !is_there {
            let own = directory.join(format!("decode-otlp-{}", std::process::id()));
            let run = |command: &mut Command| {
                assert!(
                    command.status().expect("python3 is needed").success(),
                    "{command:?} failed"
                );
            };
            run(Command::new("python3").args(["-m", "venv"]).arg(&own));
            run(Command::new(own.join("bin/python")).args([
                "-m",
                "pip",
                "install",
                "-q",
                "--disable-pip-version-check",
                "-r",
                requirements,
            ]));
            std::fs::copy(requirements, own.join("requirements.txt")).unwrap();
            // Test binaries that run at once each make one; the first to arrive stays.
            let _ = std::fs::remove_dir_all(&made);
            if std::fs::rename(&own, &made).is_err() {
                return own.join("bin/python");
            }
        }
        made.join("bin/python")
    })
    .clone()
}
