//! The promise of `memory`, kept by the real binary over real sockets: whatever grows is driven to the limit of its share, and
//! resident memory stays within the budget, every valve that opens and every refusal is counted, the books balance, and series
//! that were there first stay whole.

use crate::support;
use std::fmt::Write as _;
use std::io::{ErrorKind, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use rcgen::{CertificateParams, KeyPair};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, ClientConnection, RootCertStore};
use serde_json::Value;
use support::{Agent, Starter, get, status, until, weir};

use crate::dead_outputs::new_names_beside_dead_outputs;

/// Mebibytes.
const BUDGETS: [u64; 2] = [64, 256];

/// Beyond the budget, in KiB: code, stacks, the receive ring, the allocator's own, and whatever a moment needs.
fn most_resident(budget: u64) -> u64 {
    (budget * 5 / 4 + 24) * 1024
}

/// Series that are there from the start and get a sample in every round.
const HOT: u64 = 10;

fn configured(budget: u64, socket: &Path, config: &str) -> String {
    format!(
        "memory: {budget}MiB\nworkers: 1\nuds: [{}]\n{config}",
        socket.display()
    )
}

struct Rig {
    agent: Agent,
    admin: String,
    budget: u64,
    socket: UnixDatagram,
    path: PathBuf,
    packet: String,
    rounds: u64,
    /// Whether its outputs lose nothing at the end.
    delivers: bool,
    began: Instant,
}

impl Rig {
    fn start(budget: u64, config: &str) -> Rig {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("dsd.socket");
        // The directory goes with the agent's own.
        let directory = directory.keep();
        let config = configured(budget, &path, config);
        let mut agent = Agent::start(&config, &[]);
        agent.wait_for("listening on unixgram://");
        let admin = agent.wait_for("admin on http://");
        let socket = UnixDatagram::unbound().unwrap();
        socket.connect(&path).unwrap();
        let mut rig = Rig {
            agent,
            admin,
            budget,
            socket,
            path: directory,
            packet: String::new(),
            rounds: 0,
            delivers: !config.contains("url:"),
            began: Instant::now(),
        };
        rig.hot();
        // Before anything else, so that the scrape has room for them.
        rig.sums("hot_total");
        rig.began = Instant::now();
        rig
    }

    /// Number of items of this size that take `times` the budget.
    fn times(&self, times: u64, each: u64) -> u64 {
        times * (self.budget << 20) / each
    }

    /// One line; a Unix socket pushes back, so nothing is lost on the way.
    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        if self.packet.len() > 7000 {
            self.flush();
        }
        let _ = self.packet.write_fmt(line);
        self.packet.push('\n');
    }

    fn flush(&mut self) {
        if !self.packet.is_empty() {
            self.socket.send(self.packet.as_bytes()).unwrap();
            self.packet.clear();
        }
    }

    /// Returns when the output is there and two more buckets have been flushed.
    fn reload(&self, config: &str, output: &str) {
        self.agent.rewrite(&self.configured(config));
        self.agent.signal("-HUP");
        let mut flushes = None;
        until("the output is there", || {
            let status = status(&self.admin);
            let outputs = status["outputs"].as_array().unwrap();
            if !outputs.iter().any(|of| of["name"] == output) {
                return false;
            }
            let now = status["flush"]["count"].as_u64().unwrap();
            now >= *flushes.get_or_insert(now) + 2
        });
    }

    fn configured(&self, config: &str) -> String {
        configured(self.budget, &self.path.join("dsd.socket"), config)
    }

    fn hot(&mut self) {
        for at in 0..HOT {
            self.line(format_args!("hot:1|c|#at:{at}"));
        }
        self.flush();
        self.rounds += 1;
    }

    fn kilobytes(&self, name: &str) -> u64 {
        kilobytes(self.agent.id(), name).unwrap()
    }

    fn share(&self, name: &str) -> Value {
        share(&status(&self.admin), name)
    }

    /// Sends a round, and the hot series, until the limit of a share was met.
    fn until(&mut self, share: &str, event: &str, mut round: impl FnMut(&mut Rig, u64)) {
        let mut number = 0;
        until(event, || {
            round(self, number);
            number += 1;
            self.hot();
            self.events(share, event) > 0
        });
    }

    fn events(&self, share: &str, event: &str) -> u64 {
        self.share(share)["events"][event].as_u64().unwrap_or(0)
    }

    /// Everything sent has been flushed and is in the sums: what series of this name add up to, and the hot ones are whole.
    fn sums(&self, name: &str) -> f64 {
        let mut sum = 0.0;
        until("hot series are whole", || {
            let (_, text) = get(&self.admin, "/metrics");
            let value = |line: &str| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap();
            let of = |name: &'static str| move |line: &&str| line.starts_with(name);
            let mut hot = text.lines().filter(of("hot_total{"));
            let whole = hot
                .by_ref()
                .filter(|line| value(line) == self.rounds as f64)
                .count();
            let wanted = |line: &&str| line.split(['{', ' ']).next() == Some(name);
            sum = text.lines().filter(wanted).map(value).sum();
            whole as u64 == HOT
        });
        sum
    }

    /// Whatever was driven where, all this holds. `events` of `share` tell that its limit was met.
    fn check(self, what: &str, share_name: &str, events: &[&str]) {
        self.sums("hot_total");
        let (most, now, peak) = (
            most_resident(self.budget),
            self.kilobytes("VmRSS"),
            self.kilobytes("VmHWM"),
        );
        let status = status(&self.admin);
        println!(
            "{what} with {} MiB, {:.1?}: {} MiB resident, {} at most: {}",
            self.budget,
            self.began.elapsed(),
            now / 1024,
            peak / 1024,
            status["memory"]
        );
        assert!(now <= most, "{what}: {now} KiB of {most}: {}", status["memory"]);
        assert!(
            peak <= most,
            "{what}: {peak} KiB at most, of {most}: {}",
            status["memory"]
        );
        let found = share(&status, share_name);
        for event in events {
            assert!(
                found["events"][event].as_u64() > Some(0),
                "{what}: no {event} in {found}"
            );
        }
        let shares = status["memory"]["shares"].as_array().unwrap();
        let sum: u64 = shares.iter().map(|share| share["bytes"].as_u64().unwrap()).sum();
        assert_eq!(sum, self.budget << 20);
        let (_, page) = weir(&["status", "--admin", &self.admin]);
        assert!(page.contains("The books balance"), "{page}");
        assert!(page.contains(&format!("\n  {share_name} ")), "{page}");
        let (_, metrics) = get(&self.admin, "/metrics");
        for event in events {
            let series =
                format!("weir_memory_share_events_total{{event=\"{event}\",share=\"{share_name}\"}}");
            assert!(metrics.contains(&series), "no {series}");
        }
        if self.delivers {
            self.agent.stop();
        }
        std::fs::remove_dir_all(self.path).unwrap();
    }
}

/// `None`: the process has ended.
fn kilobytes(process: u32, name: &str) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = text.lines().find(|line| line.starts_with(name))?;
    line.split_ascii_whitespace().nth(1)?.parse().ok()
}

fn share(status: &Value, name: &str) -> Value {
    let shares = status["memory"]["shares"].as_array().unwrap();
    let found = shares.iter().find(|share| share["name"] == name);
    found.unwrap_or_else(|| panic!("no {name} in {shares:?}")).clone()
}

/// One bucket for all of it, nearly always: what does not fit into it comes again.
const LONG: &str = "bucket_width: 5s\ncontext_expiry: 1h\n";

/// Without zeros of idle counters, which would be most of the work.
const SHORT: &str = "bucket_width: 1s\ncounter_expiry: 0s\n";

/// In the gate: `weir-ingest` memory::histograms_are_folded_early_and_keep_their_totals, known_histograms_that_grow_are_squeezed.
fn samples_of_histograms(budget: u64) {
    let mut rig = Rig::start(budget, LONG);
    // 16 KiB for each series if all samples were kept, and there are as many series as fill the budget twice.
    let series = rig.times(2, 16 * 1024);
    rig.until("contexts", "histograms_folded", |rig, _| {
        for pack in 0..20 {
            let values: String = (0..100).map(|value| format!(":{}", pack * 100 + value)).collect();
            for at in 0..series {
                rig.line(format_args!(
                    "flood{values}|h|#id:{at},env:production,region:somewhere"
                ));
            }
            rig.hot();
        }
    });
    rig.check("samples of histograms", "contexts", &["histograms_folded"]);
}

/// In the gate: `weir-ingest` memory::sets_become_estimates_early, known_sets_that_grow_are_squeezed.
fn members_of_sets(budget: u64) {
    let mut rig = Rig::start(budget, LONG);
    let series = rig.times(1, 64 * 1024);
    rig.until("contexts", "sets_estimated", |rig, round| {
        for member in 1000 * round..1000 * (round + 1) {
            for at in 0..series {
                rig.line(format_args!(
                    "flood:member-{member}-of-a-common-length|s|#id:{at}"
                ));
            }
            if member % 100 == 0 {
                rig.hot();
            }
        }
    });
    rig.check("members of sets", "contexts", &["sets_estimated"]);
}

/// Values far from each other: every sample is a bin of its own.
fn far(number: u64) -> String {
    format!("{}e{}", number % 9 + 1, number / 9)
}

/// In the gate: `weir-ingest` memory::sketches_reduce_the_memory_for_contexts, known_sketches_that_grow_are_squeezed.
fn bins_of_sketches(budget: u64) {
    let mut rig = Rig::start(budget, LONG);
    // First the series, each with one sample: there is room for them. Then all grow at once.
    let series = rig.times(1, 16 * 1024);
    for at in 0..series {
        rig.line(format_args!("flood:1|d|#id:{at}"));
    }
    rig.hot();
    rig.until("contexts", "bodies_squeezed", |rig, _| {
        for round in 0..10 {
            let values: String = (0..100)
                .map(|value| format!(":{}", far(round * 100 + value)))
                .collect();
            for at in 0..series {
                rig.line(format_args!("flood{values}|d|#id:{at}"));
            }
            rig.hot();
        }
    });
    rig.check("bins of sketches", "contexts", &["bodies_squeezed"]);
}

/// In the gate: `weir-ingest` memory::contexts_and_aliases_share_the_rest; `weir-ingest` usage::one_metric_is_limited_to_its_share_and_others_fit.
fn contexts(budget: u64) {
    let mut rig = Rig::start(budget, &format!("{LONG}counter_expiry: 0s\n"));
    rig.until("contexts", "samples_overflowed", |rig, round| {
        for at in 50_000 * round..50_000 * (round + 1) {
            rig.line(format_args!(
                "flood:1|c|#id:{at},env:production,region:somewhere,service:checkout,version:1.2.3"
            ));
        }
    });
    rig.check("contexts", "contexts", &["samples_overflowed"]);
}

/// In the gate: `weir-ingest` memory::contexts_and_aliases_share_the_rest; flush_memory::an_alias_too_many_is_evicted_and_counted.
fn aliases(budget: u64) {
    let mut rig = Rig::start(budget, LONG);
    rig.until("contexts", "aliases_evicted", |rig, round| {
        for form in 20_000 * round..20_000 * (round + 1) {
            // Few contexts, each message with its tags in another order; twice, as an alias is kept on the second sight.
            let line = permuted(form);
            rig.line(format_args!("{line}"));
            rig.line(format_args!("{line}"));
        }
    });
    rig.check("aliases", "contexts", &["aliases_evicted"]);
}

/// A message in the form of this number.
pub fn permuted(form: u64) -> String {
    let mut tags: Vec<String> = (0..10).map(|tag| format!("key-{tag}:value-of-{tag}")).collect();
    let mut left = form;
    for at in (1..tags.len()).rev() {
        tags.swap(at, (left % (at as u64 + 1)) as usize);
        left /= at as u64 + 1;
    }
    format!("flood:1|c|#{},filler:{}", tags.join(","), "x".repeat(200))
}

/// In the gate: `weir-listener` streams::the_largest_partial_frame_is_dropped_when_the_budget_is_used_up.
fn frames_that_do_not_end(budget: u64) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("stream.socket");
    let mut rig = Rig::start(budget, &format!("{SHORT}uds_stream: [{}]\n", path.display()));
    // A frame of 60,000 bytes of which one is missing.
    let mut frame = 60_000u32.to_le_bytes().to_vec();
    frame.resize(60_003, b'x');
    let mut open = Vec::new();
    for _ in 0..rig.times(1, 8 * 60_000) {
        let mut stream = UnixStream::connect(&path).unwrap();
        // It may be closed for what it holds.
        let _ = stream.write_all(&frame);
        open.push(stream);
        rig.hot();
    }
    until("connections were closed for their frames", || {
        rig.events("partial_frames", "connections_closed") > 0
    });
    rig.check(
        "frames that do not end",
        "partial_frames",
        &["connections_closed"],
    );
}

/// In the gate: access::encrypted_connections_beyond_their_share_are_closed_and_counted.
fn encrypted_connections(budget: u64) {
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    let pem = params.self_signed(&key).unwrap().pem();
    let directory = tempfile::tempdir().unwrap();
    let (certificate, private) = (
        directory.path().join("cert.pem"),
        directory.path().join("key.pem"),
    );
    std::fs::write(&certificate, &pem).unwrap();
    std::fs::write(&private, key.serialize_pem()).unwrap();
    let mut roots = RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_slice(pem.as_bytes()).unwrap())
        .unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let client = Arc::new(
        builder
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth(),
    );
    let config = format!(
        "{SHORT}tcp: ['127.0.0.1:0']\ntcp_framing: newline\ntcp_tls_certificate: {}\ntcp_tls_key: {}\n",
        certificate.display(),
        private.display()
    );
    let mut rig = Rig::start(budget, &config);
    let rest = rig.agent.wait_for("listening on tcp://");
    let address = rest.split(',').next().unwrap().to_owned();
    let mut open = Vec::new();
    for _ in 0..rig.times(1, 512 * 1024) {
        open.extend(half_a_record(&address, &client));
        rig.hot();
    }
    until("connections were refused", || {
        rig.events("tls_sessions", "connections_refused") > 0
    });
    rig.check("encrypted connections", "tls_sessions", &["connections_refused"]);
}

/// A connection of which the agent holds a record that it cannot decrypt yet. `None`: there was no place for it.
fn half_a_record(address: &str, client: &Arc<ClientConfig>) -> Option<TcpStream> {
    let mut session = ClientConnection::new(client.clone(), "localhost".try_into().unwrap()).unwrap();
    let mut stream = TcpStream::connect(address).unwrap();
    while session.is_handshaking() {
        if let Err(error) = session.complete_io(&mut stream) {
            let closed = [
                ErrorKind::UnexpectedEof,
                ErrorKind::ConnectionReset,
                ErrorKind::BrokenPipe,
            ];
            assert!(closed.contains(&error.kind()), "{error}");
            return None;
        }
    }
    session.writer().write_all(&[b'x'; 16 * 1024]).unwrap();
    let mut record = Vec::new();
    session.write_tls(&mut record).unwrap();
    stream.write_all(&record[..16 * 1024]).ok()?;
    Some(stream)
}

/// Lines of 1.5 KiB that pass without aggregation, so that an output has much to deliver soon.
fn pass_on(rig: &mut Rig, number: u64) {
    let tag = "x".repeat(1400);
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap()
        .as_secs();
    // Each of another second: counts of one series and second are one point.
    let before = now - (rig.rounds % 1000 + 1) * number;
    for at in 0..number {
        rig.line(format_args!("passed.on:{at}|c|T{}|#{tag}", before + at));
    }
}

/// In the gate: `weir-output` delivery::queue::without_disk_the_oldest_is_dropped_and_counted.
fn the_queue_of_a_dead_output(budget: u64) {
    // It takes connections and no bytes.
    let deaf = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = deaf.local_addr().unwrap();
    let config = format!(
        "{SHORT}outputs:\n  prometheus: {{}}\n  otlp: {{url: 'http://{address}/v1/metrics', compression: none}}\n  second: {{type: otlp, url: 'http://{address}/second', compression: none}}\n"
    );
    let mut rig = Rig::start(budget, &config);
    rig.until("queues", "queue_full", |rig, _| pass_on(rig, 500));
    rig.check("the queue of a dead output", "queues", &["queue_full"]);
}

/// An output that queues nothing does not keep its part from one whose receiver is down; the part that is full is shown as full.
#[test]
fn a_dead_output_beside_one_that_delivers_uses_the_share() {
    let deaf = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = deaf.local_addr().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let config = format!(
        "{SHORT}outputs:\n  prometheus: {{}}\n  file: {{path: {}}}\n  otlp: {{url: 'http://{address}/v1/metrics', compression: none, points_per_payload_max: 100}}\n",
        directory.path().join("points").display()
    );
    let mut rig = Rig::start(64, &config);
    rig.until("queues", "queue_full", |rig, _| pass_on(rig, 300));
    let queues = rig.share("queues");
    let (used, bytes) = (
        queues["used"].as_f64().unwrap(),
        queues["bytes"].as_f64().unwrap(),
    );
    // The other output has room to begin: 2 of 8 MiB.
    assert!((0.7..=1.0).contains(&(used / bytes)), "{queues}");
    assert!(queues["fullest"].as_f64().unwrap() > 0.9, "{queues}");
    std::fs::remove_dir_all(rig.path).unwrap();
}

/// In the gate: `weir-output` prometheus::a_full_budget_refuses_new_series_and_keeps_the_others_exact,
/// memory_is_accounted_to_the_byte_and_released.
fn cumulative_series(budget: u64) {
    let deaf = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = deaf.local_addr().unwrap();
    // They are forgotten by the aggregation at once and by the sums never.
    let config = format!(
        "{SHORT}context_expiry: 1s\noutputs:\n  prometheus: {{}}\n  remote_write: {{url: 'http://{address}/api/v1/write'}}\n"
    );
    let mut rig = Rig::start(budget, &config);
    rig.until("cumulative", "points_refused", |rig, round| {
        for at in 5000 * round..5000 * (round + 1) {
            rig.line(format_args!("flood:1|c|#id:{at},env:production,region:somewhere"));
        }
    });
    rig.check("series that stay", "cumulative", &["points_refused"]);
}

/// The open bucket goes to another process in pieces: neither process needs memory for a copy of it.
/// In the gate: `weir-ingest` resumed::another_process_changes_nothing; hand_over::queues_and_sums_continue.
fn the_open_bucket_in_transit_to_another_process(budget: u64) {
    let state = tempfile::tempdir().unwrap();
    let config = format!("bucket_width: LONG\nstate_path: {}\n", state.path().display());
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("dsd.socket");
    let config = configured(budget, &socket, &config);
    let mut agent = Agent::start(&config, &[]);
    let admin = agent.wait_for("admin on http://");
    let of = |id, name| kilobytes(id, name).unwrap();
    // Pages of the program at the start, most of which it gives back then.
    let program = of(agent.id(), "VmHWM") - of(agent.id(), "RssAnon");
    // A quarter of what contexts and their state have: nothing is folded or squeezed.
    let contexts = share(&status(&admin), "contexts")["bytes"].as_u64().unwrap();
    let series = contexts / 4 / (9 * 200);
    let sender = UnixDatagram::unbound().unwrap();
    sender.connect(&socket).unwrap();
    for pack in 0..2 {
        let values: String = (0..100).map(|value| format!(":{}", pack * 100 + value)).collect();
        for at in 0..series {
            let line = format!("flood{values}|h|#id:{at},env:production,region:somewhere");
            sender.send(line.as_bytes()).unwrap();
        }
    }
    let samples = |admin: &str| status(admin)["total"]["samples"]["received"].as_u64().unwrap();
    until("everything is received", || samples(&admin) == 200 * series);
    let before = of(agent.id(), "VmHWM");
    let mut next = Starter::from(&config)
        .arguments(["--take-over"])
        .before_it_serves()
        .start();
    let mut most = before;
    while let Some(now) = kilobytes(agent.id(), "VmHWM") {
        most = now;
    }
    next.wait_for("hand-over: took over from weir ");
    let admin = next.wait_for("admin on http://");
    until("the next process has everything", || {
        samples(&admin) == 200 * series
    });
    let (settled, most_of_next) = (of(next.id(), "RssAnon") + program, of(next.id(), "VmHWM"));
    println!(
        "{budget} MiB, {series} series: {before} KiB, {most} KiB at most while handing over; then {settled} KiB, {most_of_next} KiB at most"
    );
    // Pieces, the books, what a moment needs. The bucket is a quarter of the budget's larger part.
    let margin = (budget / 16 + 4) * 1024;
    assert!(most <= before + margin, "{before} KiB, then {most} KiB");
    assert!(
        most_of_next <= settled + margin,
        "{settled} KiB, before that {most_of_next} KiB"
    );
    assert!(most.max(most_of_next) <= most_resident(budget));
    let (_, page) = weir(&["status", "--admin", &admin]);
    assert!(page.contains("\n  open_bucket "), "{page}");
    assert!(page.contains("The books balance"), "{page}");
    drop(agent);
    next.stop();
}

/// One output is nearly full when a reload brings another: what is held stays, the new one gets what is left, and together they keep
/// within the share.
/// In the gate: `weir` budget::division_is_fair_and_reduces_no_claim; delivery::reload.
fn a_reload_divides_again_and_loses_nothing() {
    let deaf = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = deaf.local_addr().unwrap();
    let first = format!(
        "{SHORT}outputs:\n  prometheus: {{}}\n  first: {{type: otlp, url: 'http://{address}/v1/metrics', compression: none, points_per_payload_max: 100}}\n"
    );
    let mut rig = Rig::start(64, &first);
    let part = |rig: &Rig| {
        let queues = rig.share("queues");
        queues["used"].as_f64().unwrap() / queues["bytes"].as_f64().unwrap()
    };
    while part(&rig) < 0.75 {
        // Little at a time, and only when it is there the next, so that it is not overshot.
        let before = part(&rig);
        pass_on(&mut rig, 300);
        rig.hot();
        until("it lies in the queue", || part(&rig) > before + 0.02);
    }
    assert_eq!(rig.events("queues", "queue_full"), 0);
    let second = format!(
        "{first}  second: {{type: otlp, url: 'http://{address}/second', compression: none, points_per_payload_max: 100}}\n"
    );
    rig.reload(&second, "second");
    assert_eq!(rig.events("queues", "queue_full"), 0, "{}", rig.share("queues"));
    assert!(part(&rig) > 0.7, "{}", part(&rig));
    // Both are fed until both are full, little at a time and in small payloads, so that it is not overshot: one is under way beside the queue.
    rig.until("queues", "queue_full", |rig, _| pass_on(rig, 300));
    assert!(part(&rig) < 1.2, "{}", part(&rig));
    rig.check("a reload", "queues", &["queue_full"]);
}

/// Each of them says which test of the gate protects the same.
fn grow(growths: &[fn(u64)]) {
    for grow in growths {
        BUDGETS.into_iter().for_each(grow);
    }
}

#[test]
#[ignore = "nightly: resident memory of a debug build"]
fn what_senders_make_grow_stays_within_the_memory() {
    grow(&[
        samples_of_histograms,
        members_of_sets,
        bins_of_sketches,
        contexts,
        aliases,
        frames_that_do_not_end,
        encrypted_connections,
    ]);
}

#[test]
#[ignore = "nightly: resident memory of a debug build"]
fn what_outputs_and_a_hand_over_make_grow_stays_within_the_memory() {
    grow(&[
        the_queue_of_a_dead_output,
        new_names_beside_dead_outputs,
        cumulative_series,
        the_open_bucket_in_transit_to_another_process,
    ]);
    a_reload_divides_again_and_loses_nothing();
}
