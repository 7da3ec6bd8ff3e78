//! The cost of each output per series and flush: `rig/scripts/bench-outputs.sh`, or `cargo run --release -p weir-output --example output_speed`.
//!
//! CPU time of this thread, from a flush's batches to compressed payloads, and the bytes of those; no network. All outputs get the
//! same 100,000 contexts, rounds are interleaved, and the median of them is printed with the smallest and largest. The round before
//! the first begins the series, so that cumulative outputs know all of them.

// The clock of a thread is only there as a system call.
#![allow(unsafe_code)]

#[path = "../tests/support/mod.rs"]
mod support;

use std::collections::BTreeMap;
use std::hint::black_box;
use std::path::Path;
use std::sync::{Arc, Mutex};

use weir_aggregate::{AggregatorSettings, Batch, Expansion, Weights};
use weir_context::{ContextLimits, HashSecret, Rules};
use weir_ingest::{
    BLOCK_BYTES, Ingest, IngestSettings, Received, Relay, RelayBlock, RelayQueue, RelaySettings, RelayTarget,
};
use weir_merge::Plan;
use weir_output::datadog::DatadogEncoder;
use weir_output::delivery::{Clock, Encode, Encoded};
use weir_output::graphite::{GraphiteEncoder, Tags};
use weir_output::influx::InfluxEncoder;
use weir_output::json_lines::LinesEncoder;
use weir_output::otlp::{OtlpEncoder, Temporality};
use weir_output::prometheus::{Format, Scrape};
use weir_output::remote_write::{RemoteWriteEncoder, RemoteWriteVersion};
use weir_protocol::{ParseOptions, Routes, SharedRoutes};

const CONTEXTS: usize = 100_000;
const ROUNDS: usize = 9;

fn main() {
    let tags = |i: usize| {
        format!(
            "env:production,service:checkout-{},region:eu-west-{},version:1.{}.0,pod:checkout-{i:08x},team:payments,endpoint:/api/v1/items/{}",
            i % 50,
            i % 3,
            i % 20,
            i % 400
        )
    };
    let number = |i: usize| {
        let kind = if i.is_multiple_of(2) { "c" } else { "g" };
        let value = i * 7 % 10_007;
        format!("application.requests.{}:{value}|{kind}|#{}\n", i % 200, tags(i))
    };
    let distribution = |i: usize| {
        let values: Vec<String> = (0..20)
            .map(|j| ((i * 31 + j * j * 17) % 1000 + 1).to_string())
            .collect();
        format!(
            "application.latency.{}:{}|d|#{}\n",
            i % 200,
            values.join(":"),
            tags(i)
        )
    };
    let (numbers, number_bytes) = measure(number);
    let (distributions, distribution_bytes) = measure(distribution);
    println!(
        "{CONTEXTS} contexts of 7 tags, {number_bytes:.0} bytes each as received for counters and gauges, {distribution_bytes:.0} for distributions of 20 samples;"
    );
    println!(
        "CPU time of the encoding thread, median of {ROUNDS} interleaved rounds with the least and the most.\n"
    );
    println!(
        "| output | counters and gauges: ns | bytes | distributions: ns | bytes |\n| --- | --- | --- | --- | --- |"
    );
    for (number, distribution) in numbers.iter().zip(&distributions) {
        println!("| {} | {number} | {distribution} |", number.name);
    }
}

/// The cost of one output.
struct Cost {
    name: &'static str,
    /// Nanoseconds per series, in ascending order.
    times: Vec<f64>,
    bytes: usize,
}

impl std::fmt::Display for Cost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (times, bytes) = (&self.times, self.bytes as f64 / CONTEXTS as f64);
        let (median, least, most) = (times[ROUNDS / 2], times[0], times[ROUNDS - 1]);
        write!(f, "{median:.0} ({least:.0} to {most:.0}) | {bytes:.1}")
    }
}

/// Every output's cost, and how many bytes a message had.
fn measure(line: impl Fn(usize) -> String) -> (Vec<Cost>, f64) {
    let messages: String = (0..CONTEXTS).map(line).collect();
    let batches = support::batches(&messages);
    assert_eq!(batches.iter().map(|batch| batch.len()).sum::<usize>(), CONTEXTS);
    let mut outputs = outputs(&messages);
    let cost = |(name, _): &(&'static str, Output)| Cost {
        name,
        times: Vec::new(),
        bytes: 0,
    };
    let mut costs: Vec<Cost> = outputs.iter().map(cost).collect();
    for round in 0..=ROUNDS {
        for ((_, encode), cost) in outputs.iter_mut().zip(&mut costs) {
            let start = cpu_ns();
            cost.bytes = encode(&batches);
            if round > 0 {
                cost.times.push((cpu_ns() - start) as f64 / CONTEXTS as f64);
            }
        }
    }
    costs
        .iter_mut()
        .for_each(|cost| cost.times.sort_by(f64::total_cmp));
    (costs, messages.len() as f64 / CONTEXTS as f64)
}

/// Takes batches and returns the bytes that leave.
type Output = Box<dyn FnMut(&[Arc<Batch>]) -> usize>;

fn outputs(messages: &str) -> Vec<(&'static str, Output)> {
    let expansion = Arc::new(Expansion::default());
    let remote_write = |version| {
        let mut settings = support::remote_write("");
        settings.version = version;
        let facts = Arc::default();
        RemoteWriteEncoder::new(&settings, Weights::Exact, u64::MAX, Clock::system(), facts)
    };
    let otlp = |temporality| {
        let mut settings = support::otlp("");
        settings.temporality = temporality;
        OtlpEncoder::new(
            &settings,
            Weights::Exact,
            u64::MAX,
            Clock::system(),
            Arc::default(),
        )
    };
    let graphite = |tags| {
        let mut settings = support::graphite("tcp://127.0.0.1:1");
        settings.tags = tags;
        GraphiteEncoder::new(&settings, u64::MAX, Arc::default())
    };
    vec![
        (
            "Datadog (v2, zstd)",
            encoder(DatadogEncoder::new(&support::datadog(""), expansion.clone())),
        ),
        (
            "remote write 1.0 (snappy)",
            encoder(remote_write(RemoteWriteVersion::V1)),
        ),
        (
            "remote write 2.0 (snappy)",
            encoder(remote_write(RemoteWriteVersion::V2)),
        ),
        ("OTLP, delta (gzip)", encoder(otlp(Temporality::Delta))),
        ("OTLP, cumulative (gzip)", encoder(otlp(Temporality::Cumulative))),
        (
            "Graphite, tagged (7 lines for a distribution)",
            encoder(graphite(Tags::Tagged)),
        ),
        ("Graphite, tags in the path", encoder(graphite(Tags::Path))),
        (
            "InfluxDB line protocol (gzip)",
            encoder(InfluxEncoder::new(
                &support::influx("http://127.0.0.1:1"),
                u64::MAX,
                Arc::default(),
            )),
        ),
        (
            "file, standard output (JSON lines, before compression)",
            encoder(LinesEncoder::new(expansion, 256 << 10)),
        ),
        (
            "Kafka, state for a merge (zstd), 4 partitions",
            encoder(support::kafka(Path::new("log")).encoder(support::agent(1), Plan::new(4), u64::MAX)),
        ),
        ("scrape, state alone (nobody scrapes)", scrape_state()),
        ("scrape, protobuf (gzip)", scrape(Format::Protobuf)),
        ("scrape, text (gzip)", scrape(Format::Text)),
        (
            "relay alone, one message per series, received bytes to buffers",
            relay(messages),
        ),
    ]
}

fn encoder(mut encoder: impl Encode) -> Output {
    Box::new(move |batches| {
        let mut out = Encoded::default();
        batches.iter().for_each(|batch| encoder.encode(batch, &mut out));
        encoder.finish(&mut out);
        let points: u64 = out.payloads.iter().map(|payload| u64::from(payload.count)).sum();
        assert!(points >= CONTEXTS as u64 && out.dropped == BTreeMap::new());
        black_box(&out)
            .payloads
            .iter()
            .map(|payload| payload.body.len())
            .sum()
    })
}

/// A flush. The bytes are those of the state.
fn scrape_state() -> Output {
    let settings = support::remote_write("").as_scrape();
    let scrape = Arc::new(Scrape::new(settings, Weights::Exact, usize::MAX));
    Box::new(move |batches| {
        batches.iter().for_each(|batch| scrape.take(batch, 0));
        black_box(scrape.status()).heap_bytes
    })
}

/// A flush and a scrape.
fn scrape(format: Format) -> Output {
    let settings = support::remote_write("").as_scrape();
    let scrape = Arc::new(Scrape::new(settings, Weights::Exact, usize::MAX));
    Box::new(move |batches| {
        batches.iter().for_each(|batch| scrape.take(batch, 0));
        let mut rendering = scrape.render(format, true, &[], 0);
        std::iter::from_fn(|| rendering.next_piece())
            .map(|piece| black_box(piece).len())
            .sum()
    })
}

/// A worker that relays and does nothing else, to four targets.
fn relay(messages: &str) -> Output {
    let queue = Instant::default();
    let names: Vec<String> = (0..4).map(|i| format!("udp://{i}:1")).collect();
    let targets = names.iter().map(|_| RelayTarget {
        queue: Box::new(queue.clone()),
        line_bytes_max: 8192,
    });
    let relay = Relay::new(RelaySettings {
        prefixes: Vec::new(),
        targets: targets.collect(),
        routes: Arc::new(SharedRoutes::new(Routes::new(&names, &[true; 4]))),
        linger_ns: u64::MAX,
    });
    let mut ingest = Ingest::new(
        IngestSettings {
            worker: 0,
            aggregator: AggregatorSettings::default(),
            rules: Rules::default(),
            limits: ContextLimits::default(),
            secret: HashSecret::from_random(1, 2),
            listeners: vec![ParseOptions::default().into()],
        },
        support::BUCKET,
    );
    ingest.enable_relays(vec![relay], true);
    // Packets as clients make them.
    let mut packets = vec![String::new()];
    for line in messages.lines() {
        if packets
            .last()
            .is_some_and(|packet| packet.len() + line.len() >= 8192)
        {
            packets.push(String::new());
        }
        let packet = packets.last_mut().expect("not empty");
        packet.push_str(line);
        packet.push('\n');
    }
    Box::new(move |_| {
        for packet in &packets {
            ingest.packet(Received {
                bytes: packet.as_bytes(),
                listener: 0,
                truncated: false,
                received: 1,
            });
        }
        std::mem::take(&mut queue.0.lock().expect("one thread").bytes)
    })
}

/// A sender that is always done at once.
#[derive(Clone, Default)]
struct Instant(Arc<Mutex<Sent>>);

#[derive(Default)]
struct Sent {
    buffers: Vec<Vec<u8>>,
    bytes: usize,
}

impl RelayQueue for Instant {
    fn push(&mut self, mut block: RelayBlock) -> Result<(), RelayBlock> {
        assert_eq!(block.no_buffer + block.too_long + block.unmatched, 0);
        let mut sent = self.0.lock().expect("one thread");
        sent.bytes += block.lines.len();
        block.lines.clear();
        sent.buffers.push(block.lines);
        Ok(())
    }

    fn buffer(&mut self) -> Option<Vec<u8>> {
        let free = self.0.lock().expect("one thread").buffers.pop();
        Some(free.unwrap_or_else(|| Vec::with_capacity(BLOCK_BYTES)))
    }
}

/// Nanoseconds of processor time of this thread.
fn cpu_ns() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the call writes one timespec, which lives here.
    let done = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    assert_eq!(done, 0, "the clock of this thread is there on every Linux");
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
