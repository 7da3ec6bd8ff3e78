//! Random traffic against a naive twin: the simple parser, a tree of contexts and vectors of samples. Whatever the fast path, the
//! alias cache, the tables and the double-buffered state do, every bucket must come out the same.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use weir_aggregate::{AggregatorSettings, Batch, Histogram, IDLE_BUCKETS_MAX, Value};
use weir_context::{ContextLimits, HashSecret, Level, Partitioning, RuleSettings, Rules};
use weir_ingest::{Ingest, IngestSettings, Received};
use weir_protocol::{Kind, Message, ParseOptions, SpecialTag, Values, parse_packet, special_tag};
use weir_sketch::Sketch;

const WIDTH: i64 = 10;
const COUNTER_EXPIRY: i64 = 45;
const START: i64 = 1_700_000_003;

type Key = (Kind, String, Option<String>, BTreeSet<String>);

/// State of one context in one bucket, everything kept.
#[derive(Clone, Debug, Default)]
struct Samples {
    values: Vec<(f64, f64)>,
    members: BTreeSet<Vec<u8>>,
}

/// A row as both sides can print it.
type Rows = BTreeMap<(i64, String), String>;

fn print_key((kind, name, host, tags): &Key) -> String {
    format!("{kind:?} {name:?} {host:?} {tags:?}")
}

struct Naive {
    now: i64,
    open: i64,
    bucket: BTreeMap<Key, Samples>,
    last_seen: BTreeMap<Key, i64>,
    rests: BTreeMap<Key, f64>,
    rows: Rows,
    extra_tag: Option<String>,
}

impl Naive {
    fn packet(&mut self, packet: &[u8]) {
        for message in parse_packet(packet, &ParseOptions::default()).flatten() {
            let Message::Metric(metric) = message else {
                continue;
            };
            if metric.timestamp.is_some() {
                continue;
            }
            let mut host = None;
            let mut tags = BTreeSet::new();
            for tag in metric.tags.iter() {
                match special_tag(tag) {
                    Some(SpecialTag::Host(name)) => host = Some(name.to_string()),
                    Some(_) => {}
                    None => {
                        tags.insert(tag.to_string());
                    }
                }
            }
            tags.extend(self.extra_tag.clone());
            let key = (metric.kind, metric.name.to_string(), host, tags);
            let samples = self.bucket.entry(key.clone()).or_default();
            match metric.values {
                Values::Member(member) => {
                    samples.members.insert(member.as_bytes().to_vec());
                }
                Values::Numbers(numbers) => {
                    samples
                        .values
                        .extend(numbers.iter().map(|value| (value, 1.0 / metric.rate)));
                }
            }
            self.last_seen.insert(key, self.now);
        }
    }

    fn advance(&mut self, now: i64) {
        self.now = self.now.max(now);
        let start = self.now - self.now.rem_euclid(WIDTH);
        if start > self.open {
            self.close(start);
        }
    }

    fn close(&mut self, next: i64) {
        let bucket = std::mem::take(&mut self.bucket);
        let mut closed = vec![self.open];
        let skipped = (next - self.open) / WIDTH - 1;
        closed.extend(
            (1..=skipped.min(i64::from(IDLE_BUCKETS_MAX)))
                .rev()
                .map(|at| next - at * WIDTH),
        );
        for start in closed {
            let timestamp = if start == START - START.rem_euclid(WIDTH) {
                START
            } else {
                start
            };
            for (key, &seen) in &self.last_seen {
                let sampled = start == self.open && bucket.contains_key(key);
                if key.0 == Kind::Counter && !sampled && seen < start && seen + COUNTER_EXPIRY > start {
                    self.rows.insert((timestamp, print_key(key)), "counter 0".into());
                }
            }
            if start != self.open {
                continue;
            }
            for (key, samples) in &bucket {
                let value = match key.0 {
                    Kind::Counter => {
                        format!(
                            "counter {}",
                            samples
                                .values
                                .iter()
                                .fold(0.0, |sum, (value, weight)| sum + value * weight)
                        )
                    }
                    Kind::Gauge => format!("gauge {}", samples.values.last().unwrap().0),
                    Kind::Set => format!("set {}", samples.members.len()),
                    Kind::Histogram | Kind::Timing => {
                        let mut histogram = Histogram::default();
                        for &(value, weight) in &samples.values {
                            histogram.insert(value, weight);
                        }
                        format!("histogram {:?}", histogram.samples().collect::<Vec<_>>())
                    }
                    Kind::Distribution => {
                        let mut sketch = Sketch::default();
                        let rest = self.rests.entry(key.clone()).or_default();
                        for &(value, weight) in &samples.values {
                            let count = if weight == 1.0 {
                                1.0
                            } else {
                                let due = weight + *rest;
                                *rest = due - due.floor();
                                due.floor()
                            };
                            if count > 0.0 {
                                sketch.insert(value, count as u64);
                            }
                        }
                        if sketch.is_empty() {
                            continue;
                        }
                        print_sketch(&sketch)
                    }
                };
                self.rows.insert((timestamp, print_key(key)), value);
            }
        }
        self.open = next;
    }
}

fn print_sketch(sketch: &Sketch) -> String {
    format!(
        "sketch {} {} {} {:?}",
        sketch.cnt(),
        sketch.min(),
        sketch.max(),
        sketch.bins()
    )
}

fn take(batch: &Batch, rows: &mut Rows) {
    for series in batch.series() {
        if series.is_timestamped() {
            continue;
        }
        let tags = series.tags().map(str::to_string).collect();
        let host = series.explicit_host().map(str::to_string);
        let key = print_key(&(series.kind(), series.name().to_string(), host, tags));
        let value = match series.value() {
            Value::Counter(sum) => format!("counter {sum}"),
            Value::Gauge(value) => format!("gauge {value}"),
            Value::Set(set) => format!("set {}", set.cardinality()),
            Value::Histogram(histogram) => format!("histogram {:?}", histogram.samples().collect::<Vec<_>>()),
            Value::Distribution(sketch) => print_sketch(sketch),
        };
        let before = rows.insert((series.timestamp(), key.clone()), value);
        assert!(before.is_none(), "{key} twice in one bucket");
    }
}

/// Inputs of a run besides its steps.
#[derive(Clone, Debug)]
struct Setup {
    alias_bytes: usize,
    context_expiry: u32,
    extra_tag: Option<String>,
    /// Which form of the hot path runs.
    level: Level,
    grouped_from: usize,
    partitioning: Partitioning,
}

fn ingest(setup: &Setup) -> Ingest {
    let rules = RuleSettings {
        hostname: "agent".into(),
        extra_tags: setup.extra_tag.iter().cloned().collect(),
        ..RuleSettings::default()
    };
    let settings = IngestSettings {
        worker: 0,
        aggregator: AggregatorSettings {
            bucket_width: WIDTH as u32,
            counter_expiry: COUNTER_EXPIRY as u32,
            context_expiry: setup.context_expiry,
            hostname: "agent".into(),
            partitioning: setup.partitioning,
            ..AggregatorSettings::default()
        },
        rules: Rules::new(rules),
        limits: ContextLimits {
            alias_bytes_max: setup.alias_bytes,
            ..ContextLimits::default()
        },
        secret: HashSecret::from_random(5, 6).at_level(setup.level),
        listeners: vec![ParseOptions::default().into()],
    };
    let mut ingest = Ingest::new(settings, START);
    ingest.group_from(setup.grouped_from);
    ingest
}

#[derive(Clone, Debug)]
enum Step {
    Packets(Vec<Vec<u8>>),
    /// Seconds forwards, or a little backwards.
    Advance(i64),
    /// Hands over a part of the closed bucket.
    Drain(usize),
}

/// `rates`: a fraction of weight is carried as long as a context lives, and when exactly an idle one is forgotten depends on
/// when the flush gets to it; so rates whose reciprocal is no integer are for runs in which nothing expires.
fn message(rates: &[&'static str]) -> impl Strategy<Value = String> {
    let name = prop::sample::select(vec!["a", "a.b", "ab", "b", "é"]);
    let kind = prop::sample::select(vec!["c", "c", "g", "s", "h", "ms", "d", "x"]);
    let value = prop::sample::select(vec![
        "1",
        "2.5",
        "-3",
        "1:2:3",
        "0",
        "1e2",
        "nan",
        "7:nan",
        "x",
        "12345678901234567890123",
    ]);
    let rate = prop::sample::select(rates.to_vec());
    let tag = prop::sample::select(vec!["t:1", "t:2", "u", "host:h", "host:", "", "a", "b"]);
    let tags = prop::collection::vec(tag, 0..5);
    let order = prop::sample::select(vec!["rate first", "tags first"]);
    let end = prop::sample::select(vec!["", "", "", "|", "|zz", "|T1700000000", "\r"]);
    (name, kind, value, rate, tags, order, end).prop_map(|(name, kind, value, rate, tags, order, end)| {
        let tags = if tags.is_empty() {
            String::new()
        } else {
            format!("|#{}", tags.join(","))
        };
        match order {
            "rate first" => format!("{name}:{value}|{kind}{rate}{tags}{end}"),
            _ => format!("{name}:{value}|{kind}{tags}{rate}{end}"),
        }
    })
}

fn steps(rates: &[&'static str]) -> impl Strategy<Value = Vec<Step>> {
    let packet = prop::collection::vec(message(rates), 1..6).prop_map(|lines| lines.join("\n").into_bytes());
    let step = prop_oneof![
        6 => prop::collection::vec(packet, 1..12).prop_map(Step::Packets),
        2 => (-3i64..15).prop_map(Step::Advance),
        1 => prop::sample::select(vec![30i64, 70, 700]).prop_map(Step::Advance),
        2 => (1usize..20).prop_map(Step::Drain),
    ];
    prop::collection::vec(step, 1..60)
}

/// Runs both and compares every row of every bucket.
fn compare(steps: &[Step], setup: &Setup) {
    let mut real = ingest(setup);
    let mut naive = Naive {
        now: START,
        open: START - START.rem_euclid(WIDTH),
        bucket: BTreeMap::new(),
        last_seen: BTreeMap::new(),
        rests: BTreeMap::new(),
        rows: Rows::new(),
        extra_tag: setup.extra_tag.clone(),
    };
    let mut rows = Rows::new();
    let mut now = START;
    for step in steps {
        match step {
            Step::Packets(packets) => {
                let received = |bytes| Received {
                    bytes,
                    listener: 0,
                    truncated: false,
                    received: now as u64,
                };
                let batch: Vec<Received<'_>> = packets.iter().map(|bytes| received(bytes)).collect();
                real.packets(&batch);
                packets.iter().for_each(|packet| naive.packet(packet));
            }
            Step::Advance(seconds) => {
                now += seconds;
                while !real.advance(now) {
                    if let Some(batch) = real.drain(usize::MAX) {
                        take(&batch, &mut rows);
                    }
                }
                naive.advance(now);
            }
            Step::Drain(contexts) => {
                if let Some(batch) = real.drain(*contexts) {
                    take(&batch, &mut rows);
                }
            }
        }
        assert!(real.counts()[0].balance(), "{:?}", real.counts()[0]);
        assert!(setup.alias_bytes > 0 || real.contexts().aliases() == 0);
    }
    while real.is_draining() {
        if let Some(batch) = real.drain(usize::MAX) {
            take(&batch, &mut rows);
        }
    }
    assert!(real.close_now());
    while real.is_draining() {
        if let Some(batch) = real.drain(usize::MAX) {
            take(&batch, &mut rows);
        }
    }
    naive.close(naive.open + WIDTH);
    for (key, value) in &naive.rows {
        assert_eq!(rows.get(key), Some(value), "{key:?}");
    }
    assert_eq!(rows.len(), naive.rows.len(), "{rows:#?}");
}

fn level() -> impl Strategy<Value = Level> {
    prop::sample::select(Level::available().collect::<Vec<_>>())
}

fn partitioning() -> impl Strategy<Value = Partitioning> {
    prop::sample::select(vec![Partitioning::Hash, Partitioning::Id])
}

/// Always, as soon as there are some aliases, or never.
fn grouped_from() -> impl Strategy<Value = usize> {
    prop::sample::select(vec![0, 5, usize::MAX])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn equals_the_naive_twin(steps in steps(&["", "", "|@0.5", "|@0.25", "|@1", "|@2", "|@"]), extra in any::<bool>(), level in level(), grouped_from in grouped_from(), partitioning in partitioning()) {
        let extra_tag = extra.then(|| "e:1".to_string());
        compare(&steps, &Setup { alias_bytes: usize::MAX, context_expiry: 20, extra_tag, level, grouped_from, partitioning });
    }

    /// No cache, or one so small that entries come and go all the time, changes nothing.
    #[test]
    fn equals_it_with_tiny_caches(steps in steps(&["", "|@0.5"]), alias_bytes in 0usize..6000, level in level(), grouped_from in grouped_from(), partitioning in partitioning()) {
        compare(&steps, &Setup { alias_bytes, context_expiry: 20, extra_tag: None, level, grouped_from, partitioning });
    }

    #[test]
    fn equals_it_with_fractional_weights(steps in steps(&["", "|@0.3", "|@0.7"]), level in level(), grouped_from in grouped_from(), partitioning in partitioning()) {
        compare(&steps, &Setup { alias_bytes: usize::MAX, context_expiry: 1_000_000, extra_tag: None, level, grouped_from, partitioning });
    }
}
