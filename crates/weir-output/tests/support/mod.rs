//! A scripted intake, and batches as the agent makes them.

// Each test file uses a part of it.
#![allow(dead_code)]

pub mod wire;

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value as Json;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use weir_aggregate::{AggregatorSettings, Batch, Expansion};
use weir_config::{LogConnection, LogSasl, LogTls, Mechanism};
use weir_context::{ContextLimits, HashSecret, Partitioning, RuleSettings, Rules};
use weir_ingest::{Ingest, IngestSettings, Received};
use weir_output::delivery::{AgentIdentity, Clock, Delivery, Driver, OutputEnvironment, OutputStatus};
use weir_output::graphite::{Aggregate, Characters, CounterForm, GraphiteSettings, Host, Tags};
use weir_output::influx::{InfluxCompression, InfluxSettings, LineSettings, Precision};
use weir_output::kafka::{Format, KafkaSettings};
use weir_output::otlp::{OtlpCompression, OtlpHistograms, OtlpSettings, Protocol, Temporality};
use weir_output::remote_write::{RemoteWriteSettings, RemoteWriteVersion};
use weir_output::settings::{
    Authorization, Compression, DatadogSettings, DeliverySettings, HistogramStyle, PayloadForm,
    QueueSettings, Secret, SeriesFormat, SketchesFormat, Start,
};
use weir_protocol::ParseOptions;
use weir_state::AgentId;

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
                flate2::read::MultiGzDecoder::new(&self.body[..])
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

/// The scripted server's reaction to a request.
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
    /// Connections that were accepted and have not ended.
    open: Arc<watch::Sender<usize>>,
}

/// Counted until it is dropped.
struct OpenConnection(Arc<watch::Sender<usize>>);

impl OpenConnection {
    fn new(open: &Arc<watch::Sender<usize>>) -> Self {
        open.send_modify(|open| *open += 1);
        Self(open.clone())
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.send_modify(|open| *open -= 1);
    }
}

impl Intake {
    pub async fn start(script: impl FnMut(&Request) -> Reply + Send + 'static) -> Self {
        Self::start_at(TcpListener::bind("127.0.0.1:0").await.unwrap(), None, script)
    }

    /// While it is down it ends connections without an answer.
    pub async fn that_can_be_away(reachable: bool) -> (Self, Arc<AtomicBool>) {
        let reachable = Arc::new(AtomicBool::new(reachable));
        let script = reachable.clone();
        let intake = Self::start(move |_| {
            if script.load(Ordering::SeqCst) {
                taken()
            } else {
                Reply::Raw(b"")
            }
        });
        (intake.await, reachable)
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
            open: Arc::new(watch::Sender::new(0)),
        };
        let script: Arc<Mutex<Script>> = Arc::new(Mutex::new(Box::new(script)));
        let server = intake.clone();
        tokio::spawn(async move {
            loop {
                let Ok((socket, _)) = listener.accept().await else {
                    return;
                };
                let (server, script, tls) = (server.clone(), script.clone(), tls.clone());
                let counted = OpenConnection::new(&server.open);
                tokio::spawn(async move {
                    let _counted = counted;
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

    /// Waits until no connection is open, so that all that ended clients have sent is read. A request of theirs could
    /// otherwise come after those of the next client.
    pub async fn wait_for_ended_clients(&self) {
        let ended = async {
            // Connections are accepted in their order: when this one has come to its end, all before it are counted.
            let mut last = TcpStream::connect(self.address).await.unwrap();
            last.shutdown().await.unwrap();
            drop(last.read(&mut [0; 1]).await);
            let mut open = self.open.subscribe();
            drop(open.wait_for(|open| *open == 0).await.unwrap());
        };
        let waited = tokio::time::timeout(DEADLINE, ended).await;
        assert!(waited.is_ok(), "{} connections are open", *self.open.borrow());
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

/// Waits until the output's status is as it should be.
pub async fn wait(output: &Delivery, what: &str, done: impl FnMut(&OutputStatus) -> bool) -> OutputStatus {
    let waited = tokio::time::timeout(DEADLINE, output.wait_for(done)).await;
    assert!(waited.is_ok(), "{what}: {:#?}", output.status());
    output.status()
}

/// A stop without time drops what is not encoded yet.
pub async fn all_is_encoded(output: &Delivery) {
    wait(output, "all is encoded", |status| {
        let encoded = status
            .endpoints
            .iter()
            .all(|endpoint| endpoint.pending.inbox.is_zero());
        status.received.points > 0 && encoded
    })
    .await;
}

/// Waits until one of the errors (`a|b`) was met, and looks that nothing was delivered or lost by it: so many points wait.
pub async fn wait_for_fault(output: &Delivery, name: &str, error: &str, waiting: u64) -> OutputStatus {
    // One attempt or another may run out of time before it meets its fault.
    let status = wait(output, &format!("{name}: {error}"), |status| {
        let endpoint = &status.endpoints[0];
        let told = endpoint
            .last_error
            .as_ref()
            .is_some_and(|last| error.split('|').any(|part| last.message.contains(part)));
        told && endpoint.pending.inbox.is_zero()
    })
    .await;
    let endpoint = &status.endpoints[0];
    assert!(!endpoint.healthy && status.balances(), "{name}: {status:#?}");
    let points = (endpoint.delivered.points, endpoint.pending.total().points);
    assert_eq!(points, (0, waiting), "{name}");
    status
}

/// Nothing waits, and nothing is under way.
pub fn idle(status: &OutputStatus) -> bool {
    status
        .endpoints
        .iter()
        .all(|endpoint| endpoint.pending.total().is_zero())
}

/// Lets ten seconds of driven time go by, second by second, and at each waits for everything that it started to come to an end.
pub async fn settle(output: &Delivery, driver: &Driver, received: u64) {
    for _ in 0..10 {
        driver.advance(Duration::from_secs(1));
        let quiet = |status: &OutputStatus| {
            let endpoint = &status.endpoints[0];
            let waits = endpoint.retry_in_seconds.is_some_and(|seconds| seconds > 0);
            status.received.points == received
                && endpoint.pending.inbox.is_zero()
                && endpoint.pending.in_flight.is_zero()
                && (idle(status) || waits)
        };
        wait(output, "quiet", quiet).await;
    }
}

/// Runs an ignored test of this program in a mount namespace of its own, in which the directory that `variable` names is a file
/// system of 256 KiB.
pub fn child_on_a_small_disk(test: &str, variable: &str) {
    if std::env::var_os(variable).is_some() {
        return;
    }
    let unshare = ["--user", "--map-root-user", "--mount"];
    let can = Command::new("unshare").args(unshare).arg("true").status();
    if !can.is_ok_and(|status| status.success()) {
        println!("skipped: this system gives no mount namespace to mount a small file system in");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let script = format!(
        r#"mount -t tmpfs -o size=256k none "${variable}" && exec "$0" --ignored --exact {test} --nocapture"#
    );
    let status = Command::new("timeout")
        .args(["120", "unshare"])
        .args(unshare)
        .args(["sh", "-c", &script])
        .arg(std::env::current_exe().unwrap())
        .env(variable, directory.path())
        .status()
        .unwrap();
    assert!(status.success(), "{status}");
}

/// An answer that every kind of backend accepts as success.
pub fn taken() -> Reply {
    let header = "x-prometheus-remote-write-samples-written";
    Reply::Full(202, vec![(header, "1000000".into())], "")
}

/// TLS for `localhost` with a certificate that nobody has signed, and that certificate in PEM.
pub fn tls() -> (tokio_rustls::TlsAcceptor, String) {
    tls_speaking(&[])
}

/// The same, for these protocols in the order of preference; none: it does not say.
pub fn tls_speaking(protocols: &[&[u8]]) -> (tokio_rustls::TlsAcceptor, String) {
    let certified = rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap();
    let key = rustls::pki_types::PrivateKeyDer::try_from(certified.signing_key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certified.cert.der().clone()], key)
        .unwrap();
    config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
    (Arc::new(config).into(), certified.cert.pem())
}

/// A proxy that connects whom it is asked to connect, and sees nothing of what they say. The requests it got.
pub async fn tunnelling_proxy() -> (String, Arc<Mutex<Vec<String>>>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let asked: Arc<Mutex<Vec<String>>> = Arc::default();
    let requests = asked.clone();
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let requests = requests.clone();
            tokio::spawn(async move {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    match client.read_u8().await {
                        Ok(byte) => head.push(byte),
                        Err(_) => return,
                    }
                }
                let head = String::from_utf8(head).unwrap();
                let target = head.split(' ').nth(1).unwrap().to_owned();
                requests.lock().unwrap().push(head);
                let mut server = tokio::net::TcpStream::connect(target).await.unwrap();
                client
                    .write_all(b"HTTP/1.1 200 Connection established\r\n\r\n")
                    .await
                    .unwrap();
                drop(tokio::io::copy_bidirectional(&mut client, &mut server).await);
            });
        }
    });
    (url, asked)
}

/// A local address at which nothing listens: the kernel hands out no port below 1024.
pub fn dead_address() -> std::net::SocketAddr {
    ([127, 0, 0, 1], 1).into()
}

/// Quick to time out and to retry.
pub fn delivery() -> DeliverySettings {
    DeliverySettings {
        queue: QueueSettings {
            timeout: Duration::from_secs(20),
            backoff_max: Duration::from_millis(40),
            disk_path: String::new(),
            disk_bytes_max: 0,
            disk_age_max: Duration::ZERO,
        },
        concurrency: 4,
        ca_file: String::new(),
        proxy: "none".into(),
        no_proxy: Vec::new(),
    }
}

/// Headers of every request.
pub fn authorization(headers: &[(&str, &str)]) -> Authorization {
    let header = |(name, value): &(&str, &str)| ((*name).to_owned(), Secret::new(*value));
    Authorization {
        headers: headers.iter().map(header).collect(),
        headers_file: BTreeMap::new(),
        bearer_token: Secret::default(),
        bearer_token_file: String::new(),
    }
}

pub fn datadog(url: &str) -> DatadogSettings {
    DatadogSettings {
        api_key: Secret::new(KEY),
        api_key_file: String::new(),
        site: "datadoghq.com".into(),
        url: url.into(),
        additional_endpoints: BTreeMap::new(),
        additional_endpoints_file: BTreeMap::new(),
        form: PayloadForm {
            compression: Compression::Zstd,
            compression_level: 0,
            series_format: SeriesFormat::Auto,
            series_format_of: BTreeMap::new(),
            sketches_format: SketchesFormat::V2,
            points_per_payload_max: 10_000,
        },
        arbitrary_tag_values: false,
        device_resource: true,
        heartbeat: false,
        host_metadata: false,
        delivery: delivery(),
    }
}

pub fn remote_write(url: &str) -> RemoteWriteSettings {
    RemoteWriteSettings {
        url: url.into(),
        version: RemoteWriteVersion::V1,
        authorization: authorization(&[]),
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
        authorization: authorization(&[]),
        resource_attributes: BTreeMap::from([("service.name".into(), "shop".into())]),
        temporality: Temporality::Delta,
        monotonic_counters: true,
        expiry: Duration::from_secs(300),
        histograms: OtlpHistograms::Exponential,
        quantiles: vec![0.5, 0.99],
        buckets_max: 160,
        points_per_payload_max: 8192,
        delivery: delivery(),
    }
}

pub fn graphite(address: &str) -> GraphiteSettings {
    GraphiteSettings {
        address: address.into(),
        tags: Tags::Tagged,
        prefix: String::new(),
        kind_prefixes: BTreeMap::new(),
        characters: Characters::Replace,
        host: Host::All,
        counters: vec![CounterForm::Count],
        aggregates: vec![
            Aggregate::Count,
            Aggregate::Min,
            Aggregate::Max,
            Aggregate::Avg,
            Aggregate::Sum,
        ],
        percentiles: vec![0.5, 0.95],
        timers: Vec::new(),
        confirm: true,
        datagram_bytes_max: 1432,
        delivery: delivery().queue,
    }
}

pub fn influx(url: &str) -> InfluxSettings {
    InfluxSettings {
        url: url.into(),
        database: String::new(),
        retention_policy: String::new(),
        bucket: String::new(),
        organization: String::new(),
        token: Secret::default(),
        token_file: String::new(),
        authorization: authorization(&[]),
        form: influx_lines(),
        compression: InfluxCompression::Gzip,
        points_per_payload_max: 5000,
        datagram_bytes_max: 1432,
        delivery: delivery(),
    }
}

pub fn influx_lines() -> LineSettings {
    LineSettings {
        host: Host::All,
        metric_type: true,
        integers: false,
        aggregates: graphite("").aggregates,
        percentiles: vec![0.5, 0.95],
        precision: Precision::Nanoseconds,
    }
}

/// Every output over HTTP, in each of its forms.
pub const OVER_HTTP: [&str; 6] = [
    "datadog",
    "remote_write 1.0",
    "remote_write 2.0",
    "otlp delta",
    "otlp cumulative",
    "influx",
];

/// The settings of one of [`OVER_HTTP`], or of `otlp grpc`.
fn settings_of(name: &str, url: &str, delivery: DeliverySettings) -> Box<dyn Start> {
    match name {
        "datadog" => {
            let mut settings = datadog(url);
            settings.delivery = delivery;
            Box::new(settings)
        }
        "otlp delta" | "otlp cumulative" | "otlp grpc" => {
            let mut settings = otlp(url);
            settings.delivery = delivery;
            if name == "otlp cumulative" {
                settings.temporality = Temporality::Cumulative;
            }
            if name == "otlp grpc" {
                settings.protocol = Protocol::Grpc;
            }
            Box::new(settings)
        }
        "influx" => {
            let mut settings = influx(url);
            settings.delivery = delivery;
            Box::new(settings)
        }
        _ => {
            let mut settings = remote_write(url);
            settings.delivery = delivery;
            if name == "remote_write 2.0" {
                settings.version = RemoteWriteVersion::V2;
            }
            Box::new(settings)
        }
    }
}

/// Starts one of [`OVER_HTTP`], or `otlp grpc`.
pub fn start_output(
    name: &str,
    url: &str,
    delivery: DeliverySettings,
    around: &OutputEnvironment,
) -> Delivery {
    settings_of(name, url, delivery)
        .start(name, &Arc::new(Expansion::default()), around)
        .unwrap()
}

pub fn environment(clock: Clock) -> OutputEnvironment {
    OutputEnvironment {
        clock,
        memory_bytes_max: 16 << 20,
        state_bytes_max: 256 << 20,
        host_tags: Arc::from(["env:test".to_owned(), "team:a".to_owned()]),
        saved: Arc::default(),
        safe: Default::default(),
        state_path: None,
        agent: agent(1),
        hostname: "agent-host".into(),
        replaces: None,
    }
}

/// A log in a directory, of one partition.
pub fn kafka(directory: &std::path::Path) -> KafkaSettings {
    KafkaSettings {
        log: LogConnection {
            directory: Some(directory.to_owned()),
            partitions: 1,
            brokers: Vec::new(),
            topic: "weir".into(),
            tenant: String::new(),
            sasl: LogSasl {
                mechanism: Mechanism::None,
                username: String::new(),
                password: Secret::default(),
                password_file: String::new(),
                token_file: None,
            },
            properties: Default::default(),
            tls: LogTls {
                enabled: false,
                ca_file: None,
                certificate_file: None,
                key_file: None,
            },
        },
        format: Format::Merge,
        keep_host: false,
        rules: Vec::new(),
        delivery: QueueSettings {
            timeout: Duration::from_secs(20),
            backoff_max: Duration::from_millis(32),
            disk_path: String::new(),
            disk_bytes_max: 64 << 20,
            disk_age_max: Duration::ZERO,
        },
    }
}

pub fn agent(epoch: u64) -> AgentIdentity {
    AgentIdentity {
        id: AgentId([7; 16]),
        epoch,
        is_kept: true,
        monotonic_zero: || 0,
    }
}

/// The agent's result for these messages in the bucket that starts at `bucket`, on the host `agent-host`.
pub fn batches_at(bucket: i64, messages: &str) -> Vec<Arc<Batch>> {
    let rules = Rules::new(RuleSettings {
        set: Default::default(),
        suffix_mask: None,
        delta_expiry: None,
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
            partitioning: Partitioning::Id,
            ..AggregatorSettings::default()
        },
        rules,
        limits: ContextLimits::default(),
        secret: HashSecret::from_random(1, 2),
        listeners: vec![
            ParseOptions {
                origin_client: true,
                timestamps: true,
                eol_required: false,
            }
            .into(),
        ],
    };
    let mut ingest = Ingest::new(settings, bucket);
    ingest.packet(Received {
        bytes: messages.as_bytes(),
        listener: 0,
        truncated: false,
        received: 0,
    });
    let mut batches = Vec::new();
    batches.extend(std::iter::from_fn(|| ingest.take_pass_through()));
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
    let kind = |request: &Request| match (request.path.ends_with("sketches"), request.path.contains("/v3/")) {
        (true, true) => "sketches3",
        (true, false) => "sketches",
        (false, true) => "series3",
        (false, false) => "series",
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

/// Decodes lines with the parsers of InfluxDB 1 and of its line protocol's owners, which have to agree.
pub fn decode_influx(bodies: impl IntoIterator<Item = Vec<u8>>) -> Vec<Json> {
    let hex = |body: Vec<u8>| body.iter().map(|b| format!("{b:02x}")).collect::<String>() + "\n";
    let lines: String = bodies.into_iter().map(hex).collect();
    run_decoder(&mut Command::new(build("influx")), lines)
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

/// Runs what may have to fetch something, from a server that may be out of reach for a moment: a few times, until it succeeds.
fn succeeds(command: &mut Command) -> std::io::Result<bool> {
    for pause in [1, 5, 10, 20] {
        if command.status()?.success() {
            return Ok(true);
        }
        std::thread::sleep(Duration::from_secs(pause));
    }
    Ok(command.status()?.success())
}

/// Builds a decoder once per test run.
fn build(name: &'static str) -> PathBuf {
    static BUILT: Mutex<BTreeMap<&str, PathBuf>> = Mutex::new(BTreeMap::new());
    let build = || {
        let source = format!("{}/tests/decoders/{name}", env!("CARGO_MANIFEST_DIR"));
        let directory = option_env!("CARGO_TARGET_TMPDIR").map_or_else(std::env::temp_dir, PathBuf::from);
        let own = directory.join(format!("decode-{name}-{}", std::process::id()));
        let built = succeeds(
            Command::new("go")
                .args(["build", "-o"])
                .arg(&own)
                .arg(".")
                .current_dir(source),
        );
        assert!(
            built.expect("the Go toolchain is needed for the decoders"),
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
        // Each test is a process: the first one makes it, and the others wait.
        let lock = std::fs::File::create(directory.join("decode-otlp.lock")).unwrap();
        lock.lock().unwrap();
        // Named for what is in it: a newer requirement makes another.
        let wanted = std::fs::read_to_string(requirements).unwrap();
        let is_there =
            std::fs::read_to_string(made.join("requirements.txt")).is_ok_and(|found| found == wanted);
        if !is_there {
            let own = directory.join(format!("decode-otlp-{}", std::process::id()));
            let run = |command: &mut Command| {
                assert!(
                    succeeds(command).expect("python3 is needed"),
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
            let _ = std::fs::remove_dir_all(&made);
            std::fs::rename(&own, &made).unwrap();
        }
        made.join("bin/python")
    })
    .clone()
}
