//! `weir-bench sink`: receivers that decode what agents send, record it, and compare it with a load.
//!
//! The decoders share no code with any agent's encoders.

mod datadog;
mod fault;
mod http;
mod lines;
mod oracle;
mod otlp;
mod prometheus;
mod protobuf;
mod record;
mod scrape;
mod socket;

use crate::common::print_line;
use crate::failure::Failure;
use fault::{Fault, Faults};
use oracle::{Comparison, Observed, ObservedWindows, Rules};
use record::Record;
use serde_json::{Value, json};
use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use weir_load::manifest::Manifest;
use weir_rig_base::address::{Address, ResolveError, parse_resolved};
use weir_rig_base::{clock, signal};
use weir_units::parse_duration;

/// Receives an agent's output, decodes and records it, and compares it with the manifest of a load.
///
/// Prints one JSON line per listener ({"listening": KIND, "address": ...}), then {"ready": true}, and one with the
/// result when it ends: after SIGTERM, SIGINT, --duration, --until-idle or --scrape-count. While it runs, its HTTP
/// listeners answer under /_sink/ (see rig/docs/sink.md).
#[derive(clap::Args, Debug)]
pub struct Args {
    /// KIND=ADDRESS, repeatable. HTTP kinds (datadog, remote-write, otlp-http, otlp-grpc, http) take host:port; the
    /// others (graphite, statsd, lines, null) udp://, tcp://, unixgram:// or unix:// addresses. Port 0 picks a free one.
    #[arg(long, value_name = "KIND=ADDRESS")]
    listen: Vec<Listen>,
    /// Scrape this Prometheus endpoint (http://host:port/path), repeatedly.
    #[arg(long, value_name = "URL")]
    scrape: Option<scrape::Target>,
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "1s")]
    scrape_interval: Duration,
    /// End after this many successful scrapes.
    #[arg(long, value_name = "N", requires = "scrape")]
    scrape_count: Option<u64>,
    /// Exposition format to request.
    #[arg(long, value_enum, default_value = "text")]
    scrape_format: scrape::Format,
    /// Decode this capture instead of listening, to compare it with --oracle.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["listen", "scrape"])]
    from_capture: Option<PathBuf>,
    /// Write one JSON line per point, event and check to this file.
    #[arg(long, value_name = "FILE")]
    capture: Option<PathBuf>,
    /// Write one JSON line per request to this file (keys shortened to their last four characters).
    #[arg(long, value_name = "FILE")]
    requests: Option<PathBuf>,
    /// Number of records and requests kept in memory for /_sink/points and /_sink/requests.
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    keep: usize,
    /// Compare with this manifest of a load, read at the end; exit 1 after a difference. Repeatable: what several loads have sent is
    /// compared as one.
    #[arg(long, value_name = "MANIFEST")]
    oracle: Vec<PathBuf>,
    /// Compare each window of a load of columns with the points that have its time, for an agent that keeps timestamps.
    #[arg(long, requires = "oracle")]
    oracle_windows: bool,
    /// Leave out metrics and checks whose name starts with this, repeatable: the agent's own metrics.
    #[arg(long, value_name = "PREFIX")]
    ignore_prefix: Vec<String>,
    /// Leave out tags with this key, repeatable: tags added by the agent.
    #[arg(long, value_name = "KEY")]
    ignore_tag: Vec<String>,
    /// Allowed relative error of sums.
    #[arg(long, value_name = "SHARE", default_value_t = 1e-9)]
    tolerance: f64,
    /// Number of differences to list.
    #[arg(long, value_name = "N", default_value_t = 20)]
    differences: usize,
    /// Exit 1 if a payload arrived that a real receiver would refuse.
    #[arg(long)]
    strict: bool,
    /// Accept only this API key, repeatable [default: any non-empty key].
    #[arg(long, value_name = "KEY")]
    api_key: Vec<String>,
    /// A fault to inject in HTTP listeners, repeatable, such as status=503,times=3 (rig/docs/sink.md lists the keys).
    #[arg(long, value_name = "RULE")]
    fault: Vec<Fault>,
    /// End after this time.
    #[arg(long, value_parser = parse_duration, value_name = "TIME")]
    duration: Option<Duration>,
    /// End after this much silence after the first data.
    #[arg(long, value_parser = parse_duration, value_name = "TIME")]
    until_idle: Option<Duration>,
}

/// One `KIND=ADDRESS`.
#[derive(Clone, Debug)]
struct Listen {
    kind: &'static str,
    at: At,
}

#[derive(Clone, Debug)]
enum At {
    /// Host and port.
    Http(http::Service, (String, u16)),
    Socket(socket::Content, Address),
}

/// Why a text is not `KIND=ADDRESS`.
#[derive(Debug, thiserror::Error)]
enum ListenError {
    #[error("KIND=ADDRESS was expected")]
    NoKind,
    #[error(
        "unknown kind {0:?}; known are datadog, remote-write, otlp-http, otlp-grpc, http, graphite, statsd, lines, null"
    )]
    UnknownKind(String),
    #[error("{kind}: {address:?} is not host:port")]
    NoPort { kind: &'static str, address: String },
    #[error(transparent)]
    Address(#[from] ResolveError),
}

impl FromStr for Listen {
    type Err = ListenError;

    fn from_str(text: &str) -> Result<Listen, ListenError> {
        let (kind, address) = text.split_once('=').ok_or(ListenError::NoKind)?;
        let http = |kind, service| {
            let bare = address
                .strip_prefix("http://")
                .unwrap_or(address)
                .trim_end_matches('/');
            match parse_resolved(&format!("tcp://{bare}")) {
                Ok(Address::Tcp { host, port }) => Ok((kind, At::Http(service, (host, port)))),
                _ => Err(ListenError::NoPort {
                    kind,
                    address: address.to_owned(),
                }),
            }
        };
        let socket = |kind, content| Ok((kind, At::Socket(content, parse_resolved(address)?)));
        let (kind, at) = match kind {
            "datadog" => http("datadog", http::Service::Datadog),
            "remote-write" => http("remote-write", http::Service::RemoteWrite),
            "otlp-http" => http("otlp-http", http::Service::OtlpHttp),
            "otlp-grpc" => http("otlp-grpc", http::Service::OtlpGrpc),
            "http" => http("http", http::Service::Http),
            "graphite" => socket("graphite", socket::Content::Graphite),
            "statsd" => socket("statsd", socket::Content::Statsd),
            "lines" => socket("lines", socket::Content::Lines),
            "null" => socket("null", socket::Content::Null),
            _ => Err(ListenError::UnknownKind(kind.to_owned())),
        }?;
        Ok(Listen { kind, at })
    }
}

/// Why received data is refused.
#[derive(Clone, Debug)]
pub struct Reject {
    /// The corresponding HTTP status.
    pub status: u16,
    pub reason: String,
}

impl Reject {
    pub fn new(status: u16, reason: impl Into<String>) -> Reject {
        Reject {
            status,
            reason: reason.into(),
        }
    }
}

/// Decodes a protobuf message, or refuses it.
fn body_of<M: prost::Message + Default>(body: &[u8]) -> Result<M, Reject> {
    M::decode(body).map_err(|error| Reject::new(400, format!("not the protobuf expected here: {error}")))
}

struct Options {
    api_keys: Vec<String>,
    keep: usize,
    rules: Rules,
    /// Whether received data is aggregated for a comparison.
    compare: bool,
    /// The same for each window.
    compare_windows: bool,
}

/// State shared by all listeners.
pub struct Shared {
    options: Options,
    faults: Mutex<Faults>,
    inner: Mutex<Inner>,
}

struct Inner {
    capture: Option<BufWriter<File>>,
    requests: Option<BufWriter<File>>,
    kept_records: VecDeque<String>,
    kept_requests: VecDeque<String>,
    sinks: BTreeMap<&'static str, Stats>,
    observed: BTreeMap<String, Observed>,
    windows: BTreeMap<String, ObservedWindows>,
    /// The first write that failed; nothing is written after it.
    write_error: Option<String>,
    last_traffic: Option<Instant>,
}

impl Inner {
    /// Aggregates a record for the comparison.
    fn observe(&mut self, options: &Options, sink: &str, record: &Record) {
        if options.compare {
            let observed = self.observed.entry(sink.to_owned());
            observed
                .or_insert_with(|| Observed::new(sink))
                .add(&options.rules, record);
        }
        if options.compare_windows {
            let windows = self.windows.entry(sink.to_owned());
            windows.or_default().add(sink, &options.rules, record);
        }
    }
}

#[derive(Clone, Default)]
struct Stats {
    requests: u64,
    packets: u64,
    bytes: u64,
    uncompressed: u64,
    points: u64,
    events: u64,
    checks: u64,
    logs: u64,
    spans: u64,
    /// Data that a real receiver would refuse, by status.
    rejected: BTreeMap<u16, u64>,
    /// The first such reasons.
    reasons: Vec<String>,
}

impl Stats {
    fn reject(&mut self, reject: &Reject) {
        const REASONS_MAX: usize = 10;
        *self.rejected.entry(reject.status).or_default() += 1;
        if self.reasons.len() < REASONS_MAX {
            self.reasons.push(reject.reason.clone());
        }
    }

    fn json(&self) -> Value {
        json!({
            "requests": self.requests, "packets": self.packets, "bytes": self.bytes, "uncompressed": self.uncompressed,
            "points": self.points, "events": self.events, "checks": self.checks, "logs": self.logs,
            "spans": self.spans,
            "rejected": self.rejected, "reasons": self.reasons,
        })
    }
}

fn keep(kept: &mut VecDeque<String>, most: usize, line: &str) {
    if most > 0 {
        if kept.len() == most {
            kept.pop_front();
        }
        kept.push_back(line.to_owned());
    }
}

fn write_line(file: &mut Option<BufWriter<File>>, error: &mut Option<String>, line: &str) {
    if let Some(writer) = file
        && let Err(failed) = writeln!(writer, "{line}")
    {
        error.get_or_insert_with(|| failed.to_string());
        *file = None;
    }
}

impl Shared {
    fn inner(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.inner.lock().expect("no holder panics")
    }

    /// Takes decoded records: counts, writes, stores and aggregates them.
    fn accept(&self, sink: &'static str, records: Vec<Record>) {
        let received_ns = clock::unix_ns();
        let mut inner = self.inner();
        let inner = &mut *inner;
        inner.last_traffic = Some(Instant::now());
        for mut record in records {
            let stats = inner.sinks.entry(sink).or_default();
            match &mut record {
                Record::Point(point) => {
                    stats.points += 1;
                    point.sink = sink.to_owned();
                    point.received_ns = received_ns;
                }
                Record::Event(_) => stats.events += 1,
                Record::Check(_) => stats.checks += 1,
                Record::Log(_) => stats.logs += 1,
                Record::Span(_) => stats.spans += 1,
            }
            if inner.capture.is_some() || self.options.keep > 0 {
                let line = serde_json::to_string(&record).expect("records have string keys");
                write_line(&mut inner.capture, &mut inner.write_error, &line);
                keep(&mut inner.kept_records, self.options.keep, &line);
            }
            inner.observe(&self.options, sink, &record);
        }
    }

    fn record_request(
        &self,
        sink: &'static str,
        note: Value,
        bytes: usize,
        uncompressed: usize,
        reject: Option<&Reject>,
    ) {
        let mut inner = self.inner();
        let inner = &mut *inner;
        inner.last_traffic = Some(Instant::now());
        let stats = inner.sinks.entry(sink).or_default();
        stats.requests += 1;
        stats.bytes += bytes as u64;
        stats.uncompressed += uncompressed as u64;
        if let Some(reject) = reject {
            stats.reject(reject);
        }
        let line = note.to_string();
        write_line(&mut inner.requests, &mut inner.write_error, &line);
        keep(&mut inner.kept_requests, self.options.keep, &line);
    }

    fn record_packet(&self, sink: &'static str, bytes: usize) {
        let mut inner = self.inner();
        inner.last_traffic = Some(Instant::now());
        let stats = inner.sinks.entry(sink).or_default();
        stats.packets += 1;
        stats.bytes += bytes as u64;
        stats.uncompressed += bytes as u64;
    }

    fn record_bad(&self, sink: &'static str, reject: &Reject) {
        self.inner().sinks.entry(sink).or_default().reject(reject);
    }

    fn stats(&self) -> Value {
        let inner = self.inner();
        Value::Object(
            inner
                .sinks
                .iter()
                .map(|(sink, stats)| ((*sink).to_owned(), stats.json()))
                .collect(),
        )
    }

    fn kept(&self, which: fn(&Inner) -> &VecDeque<String>) -> String {
        let inner = self.inner();
        which(&inner)
            .iter()
            .flat_map(|line| [line.as_str(), "\n"])
            .collect()
    }

    /// Forgets received data, except for files.
    fn reset(&self) {
        let mut inner = self.inner();
        inner.kept_records.clear();
        inner.kept_requests.clear();
        inner.observed.clear();
        inner.windows.clear();
        inner
            .sinks
            .values_mut()
            .for_each(|stats| *stats = Stats::default());
    }
}

fn create(path: &Option<PathBuf>, flag: &str) -> Result<Option<BufWriter<File>>, Failure> {
    path.as_ref()
        .map(|path| {
            File::create(path)
                .map(BufWriter::new)
                .map_err(|error| Failure::Usage(format!("{flag} {}: {error}", path.display())))
        })
        .transpose()
}

fn read_manifest(path: &Path) -> Result<Manifest, Failure> {
    let wrong = |error: String| Failure::Usage(format!("--oracle {}: {error}", path.display()));
    let text = std::fs::read(path).map_err(|error| wrong(error.to_string()))?;
    let manifest: Manifest = serde_json::from_slice(&text).map_err(|error| wrong(error.to_string()))?;
    if manifest.version != weir_load::manifest::VERSION {
        return Err(wrong(format!(
            "manifest version {}, this program reads {}",
            manifest.version,
            weir_load::manifest::VERSION
        )));
    }
    Ok(manifest)
}

pub fn run(args: Args) -> Result<(), Failure> {
    if args.listen.is_empty() && args.scrape.is_none() && args.from_capture.is_none() {
        return Err(Failure::Usage(
            "sink needs --listen KIND=ADDRESS, --scrape URL or --from-capture FILE".into(),
        ));
    }
    if !args.oracle.is_empty() {
        let unfit = args
            .listen
            .iter()
            .find(|listen| !Observed::understands(listen.kind));
        if let Some(listen) = unfit {
            return Err(Failure::Usage(format!(
                "--oracle cannot compare what a {} sink receives; it can for datadog, statsd, otlp-http, otlp-grpc, \
                 remote-write and --scrape",
                listen.kind
            )));
        }
    }
    let shared = Arc::new(Shared {
        options: Options {
            api_keys: args.api_key.clone(),
            keep: args.keep,
            rules: Rules {
                ignore_prefixes: args.ignore_prefix.clone(),
                ignore_tags: args.ignore_tag.clone(),
                tolerance: args.tolerance,
            },
            compare: !args.oracle.is_empty(),
            compare_windows: args.oracle_windows,
        },
        faults: Mutex::new(Faults::new(args.fault.clone())),
        inner: Mutex::new(Inner {
            capture: create(&args.capture, "--capture")?,
            requests: create(&args.requests, "--requests")?,
            kept_records: VecDeque::new(),
            kept_requests: VecDeque::new(),
            sinks: BTreeMap::new(),
            observed: BTreeMap::new(),
            windows: BTreeMap::new(),
            write_error: None,
            last_traffic: None,
        }),
    });
    match &args.from_capture {
        Some(path) => load_capture(&shared, path)?,
        None => receive(&shared, &args)?,
    }
    finish(&shared, &args)
}

fn receive(shared: &Arc<Shared>, args: &Args) -> Result<(), Failure> {
    // Before the runtime starts its threads, so that they inherit it.
    signal::block_termination()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let mut of_sockets = Vec::new();
    for listen in &args.listen {
        let cannot =
            |error: io::Error| Failure::Runtime(format!("sink: {}: cannot listen: {error}", listen.kind));
        let address = match &listen.at {
            At::Http(service, wanted) => {
                let listener = runtime
                    .block_on(tokio::net::TcpListener::bind((wanted.0.as_str(), wanted.1)))
                    .map_err(cannot)?;
                let address = format!("http://{}", listener.local_addr()?);
                runtime.spawn(http::serve(Arc::clone(shared), listen.kind, *service, listener));
                address
            }
            At::Socket(content, wanted) => {
                let (socket, address) = runtime.block_on(socket::bind(wanted)).map_err(cannot)?;
                let served =
                    socket::serve(Arc::clone(shared), listen.kind, *content, socket, stopped.clone());
                of_sockets.push(runtime.spawn(served));
                address.to_string()
            }
        };
        print_line(&json!({"listening": listen.kind, "address": address, "pid": std::process::id()}))?;
    }
    print_line(&json!({"ready": true}))?;
    let scraping = args.scrape.clone().map(|target| {
        runtime.spawn(scrape::run(
            Arc::clone(shared),
            target,
            args.scrape_interval,
            args.scrape_format,
            args.scrape_count,
        ))
    });
    const TICK: Duration = Duration::from_millis(20);
    let start = Instant::now();
    let mut seen = None;
    let mut silence = Duration::ZERO;
    loop {
        if signal::wait_termination(TICK) {
            break;
        }
        let over = args.duration.is_some_and(|duration| start.elapsed() >= duration);
        // In our own ticks, because a stopped machine is not a silent sender.
        let last = shared.inner().last_traffic;
        if last == seen {
            silence += TICK;
        } else {
            silence = Duration::ZERO;
            seen = last;
        }
        let idle = last.is_some() && args.until_idle.is_some_and(|idle| silence >= idle);
        let scraped = scraping.as_ref().is_some_and(|task| task.is_finished());
        if over || idle || scraped {
            break;
        }
    }
    // The bytes that wait in a socket were sent before the end.
    let _ = stop.send(true);
    for task in of_sockets {
        let _ = runtime.block_on(task);
    }
    // Connections end with the runtime; answered requests are recorded already.
    runtime.shutdown_timeout(Duration::from_millis(200));
    Ok(())
}

/// Reads the points of an earlier run.
fn load_capture(shared: &Shared, path: &Path) -> Result<(), Failure> {
    let wrong = |what: String| Failure::Usage(format!("--from-capture {}: {what}", path.display()));
    let file = File::open(path).map_err(|error| wrong(error.to_string()))?;
    let mut inner = shared.inner();
    // Records without a sink belong to the surrounding points.
    let mut sink = "datadog".to_owned();
    for (index, line) in BufReader::new(file).lines().enumerate() {
        let line = line.map_err(|error| wrong(error.to_string()))?;
        let record: Record =
            serde_json::from_str(&line).map_err(|error| wrong(format!("line {}: {error}", index + 1)))?;
        if let Record::Point(point) = &record {
            sink = point.sink.clone();
        }
        if !Observed::understands(&sink) {
            return Err(wrong(format!(
                "line {}: points of a {sink} sink cannot be compared",
                index + 1
            )));
        }
        inner.observe(&shared.options, &sink, &record);
    }
    Ok(())
}

/// Compares what each sink received with the truth of all loads.
fn compare(
    options: &Options,
    inner: &mut Inner,
    args: &Args,
) -> Result<BTreeMap<String, Comparison>, Failure> {
    let manifests = args.oracle.iter().map(|path| read_manifest(path));
    let manifest = oracle::joined(manifests.collect::<Result<_, _>>()?);
    // A sink that received nothing is compared too: it misses everything.
    let mut sinks: Vec<&str> = args.listen.iter().map(|listen| listen.kind).collect();
    sinks.extend(args.scrape.is_some().then_some("scrape"));
    for sink in sinks {
        let observed = inner.observed.entry(sink.to_owned());
        observed.or_insert_with(|| Observed::new(sink));
    }
    if inner.observed.is_empty() {
        inner.observed.insert("datadog".into(), Observed::new("datadog"));
    }
    let mut comparisons = BTreeMap::new();
    for (sink, observed) in &inner.observed {
        let wrong = |error| Failure::Usage(format!("--oracle: {error}"));
        let mut comparison = observed
            .compare(&options.rules, &manifest, args.differences)
            .map_err(wrong)?;
        if args.oracle_windows {
            let windows = inner.windows.entry(sink.clone()).or_default();
            windows
                .compare(sink, &options.rules, &manifest, args.differences, &mut comparison)
                .map_err(wrong)?;
        }
        comparisons.insert(sink.clone(), comparison);
    }
    Ok(comparisons)
}

/// Flushes buffers, compares, and prints the result.
fn finish(shared: &Shared, args: &Args) -> Result<(), Failure> {
    let stats = shared.stats();
    let mut inner = shared.inner();
    let inner = &mut *inner;
    for file in [&mut inner.capture, &mut inner.requests].into_iter().flatten() {
        if let Err(error) = file.flush() {
            inner.write_error.get_or_insert_with(|| error.to_string());
        }
    }
    let comparisons = match args.oracle.is_empty() {
        true => None,
        false => Some(compare(&shared.options, inner, args)?),
    };
    let all = comparisons.iter().flat_map(BTreeMap::values);
    let different: usize = all.map(|comparison| comparison.differences_total).sum();
    let refused: u64 = inner
        .sinks
        .values()
        .flat_map(|stats| stats.rejected.values())
        .sum();
    print_line(&json!({
        "result": {
            "sinks": stats,
            "oracle": comparisons,
            "refused": refused,
        }
    }))?;
    if let Some(error) = &inner.write_error {
        return Err(Failure::Runtime(format!(
            "sink: the capture is incomplete: {error}"
        )));
    }
    if different > 0 {
        return Err(Failure::Runtime(format!(
            "sink: {different} differences from the oracle"
        )));
    }
    if args.strict && refused > 0 {
        return Err(Failure::Runtime(format!(
            "sink: {refused} arrivals a real receiver would refuse"
        )));
    }
    Ok(())
}
