//! Cost of publishing and merging the series of a fleet: CPU time of one thread, so that a busy machine disturbs it less.
//!
//! `cargo run --release -p weir-merge --example merge_speed -- [AGENTS] [SERIES] [PARTITIONS] [THREADS]`. Closing is
//! shown in elapsed time and in CPU time of all threads too.

#![allow(clippy::disallowed_methods, clippy::disallowed_macros)]

use std::time::{Duration, Instant};

use weir_merge::{BucketResult, Merge, Message, Plan, Published, Publisher, SeriesPlace, Settings};
use weir_protocol::Kind;
use weir_sketch::Sketch;
use weir_state::{
    AgentId, Distribution, ExactSum, Facts, Gauge, Identity, Members, Samples, SeriesName, State,
};

const START: i64 = 1_700_000_000;

/// CPU time of the first thread, as counted by the scheduler.
fn spent() -> Duration {
    let text = std::fs::read_to_string("/proc/self/schedstat").expect("a kernel that counts");
    let nanoseconds = text.split(' ').next().and_then(|text| text.parse().ok());
    Duration::from_nanos(nanoseconds.expect("a number"))
}

/// CPU time of all threads, those that have ended included, in hundredths of a second.
fn spent_by_all() -> u64 {
    let text = std::fs::read_to_string("/proc/self/stat").expect("a kernel that counts");
    let fields = text.rsplit_once(") ").expect("a name").1.split(' ');
    // Of the program and of the kernel for it.
    let ticks = fields
        .skip(11)
        .take(2)
        .map(|ticks| ticks.parse::<u64>().expect("a number"));
    ticks.sum()
}

fn argument(number: usize, default: usize) -> usize {
    let argument = std::env::args().nth(number);
    argument.map_or(default, |text| text.parse().expect("a number"))
}

/// Of ten series, six are counters; the others are one of each kind. All agents have the same series, so they are merged.
fn identity(at: usize) -> Identity {
    let kind = match at % 10 {
        0..6 => Kind::Counter,
        6 => Kind::Gauge,
        7 => Kind::Distribution,
        8 => Kind::Timing,
        _ => Kind::Set,
    };
    let tags = [
        format!("endpoint:/api/v1/things/{}", at / 10 % 400),
        format!("status:{}", 200 + at % 5),
        format!("version:1.2.{}", at % 3),
        format!("customer:{}", at % 50),
        "env:production".to_owned(),
        "service:checkout".to_owned(),
        "region:eu-west-1".to_owned(),
    ];
    let name = format!("app.component{}.requests", at / 4000);
    Identity::new(kind, &name, Some(""), None, tags.iter().map(String::as_str))
}

fn state(kind: Kind, agent: usize, at: usize) -> State {
    let values = (0..10).map(|value| ((agent * 31 + at * 17 + value * 7) % 1000) as f64 / 8.0);
    match kind {
        Kind::Counter => State::Counter(ExactSum::from((agent + at) as f64)),
        Kind::Gauge => State::Gauge(Gauge::new(at as f64, agent as i64, AgentId::default())),
        Kind::Set => {
            let members: Vec<String> = values.take(3).map(|value| value.to_string()).collect();
            State::Set(Members::exact(members.iter().map(String::as_bytes)))
        }
        Kind::Histogram | Kind::Timing => State::Samples(Samples::exact(values.map(|value| (value, 1.0)))),
        Kind::Distribution => {
            let mut sketch = Sketch::new();
            values.for_each(|value| sketch.insert_one(value));
            Distribution::new(&sketch, 0.0).into()
        }
    }
}

/// Cost of publishing: with new names, and with those of the previous bucket.
#[derive(Default)]
struct Publishing {
    first: Duration,
    again: Duration,
}

fn publish(
    agent: usize,
    identities: &[Identity],
    plan: &Plan,
    publishing: &mut Publishing,
) -> Vec<Published> {
    let facts = Facts {
        seen: START,
        suffixes: u32::MAX,
    };
    let states = identities.iter().enumerate();
    let states: Vec<State> = states
        .map(|(at, identity)| state(identity.kind, agent, at))
        .collect();
    let mut publisher = Publisher::new("", AgentId((agent as u128).to_le_bytes()), 1);
    let before = spent();
    publisher.begin(START, 10, plan);
    for (identity, state) in identities.iter().zip(&states) {
        publisher.add(identity, facts, state);
    }
    let closing = publisher.close(false);
    publishing.first += spent() - before;
    assert_eq!(closing.too_large.series, 0);
    publisher.begin(START + 10, 10, plan);
    let find = |identity: &Identity| {
        let named = SeriesName {
            name: &identity.name,
            host: identity.host.as_deref(),
            integration: identity.integration.as_deref(),
            tags: identity.tags.iter().map(AsRef::as_ref).collect(),
        };
        publisher.find(identity.kind, &named)
    };
    let places: Vec<SeriesPlace> = identities.iter().map(find).collect();
    let before = spent();
    for (place, state) in places.iter().zip(&states) {
        publisher.put(*place, facts, state);
    }
    assert!(!publisher.close(false).records.is_empty());
    publishing.again += spent() - before;
    closing.records
}

fn main() {
    let (agents, series, partitions) = (argument(1, 100), argument(2, 5000), argument(3, 4));
    let threads = argument(4, 1);
    let plan = Plan::new(partitions as u32);
    let identities: Vec<Identity> = (0..series).map(identity).collect();
    let mut publishing = Publishing::default();
    let ([mut merging, mut closing, mut elapsed], mut of_all) = ([Duration::ZERO; 3], 0);
    let mut log: Vec<Vec<Vec<u8>>> = vec![Vec::new(); partitions];
    for agent in 0..agents {
        for Published { partition, bytes, .. } in publish(agent, &identities, &plan, &mut publishing) {
            log[partition as usize].push(bytes);
        }
    }
    let bytes: usize = log.iter().flatten().map(Vec::len).sum();
    let (mut merged, mut results, mut memory, mut snapshot) = (0, 0, 0, 0);
    for messages in &log {
        let settings = Settings {
            plan: plan.clone(),
            // All series of the example.
            memory: 64 << 30,
            threads,
            ..Settings::default()
        };
        let mut merge = Merge::new(settings, 0);
        let before = spent();
        for (offset, bytes) in (0..).zip(messages) {
            merge.add(&Message {
                offset,
                appended: (START + 15) * 1000,
                sent: (START + 15) * 1000,
                bytes: bytes.clone(),
            });
        }
        merging += spent() - before;
        memory = merge.bytes().max(memory);
        let (before, of_all_before, begun) = (spent(), spent_by_all(), Instant::now());
        merge.tick((START + 1000) * 1000);
        let commit = merge.commit().expect("a bucket");
        closing += spent() - before;
        elapsed += begun.elapsed();
        of_all += spent_by_all() - of_all_before;
        snapshot = commit.snapshot.len();
        merged += merge.ledger().merged;
        for result in &commit.results {
            results += BucketResult::decode(result).expect("a result").1.len();
        }
    }
    let states = (agents * series) as u64;
    assert_eq!(merged, states, "states that were not merged");
    assert_eq!(results, series, "results that are not the fleet's");
    let each = |spent: Duration, of: u64| spent.as_nanos() as f64 / of as f64;
    println!("{agents} agents with {series} series each, {partitions} partitions, one bucket");
    println!(
        "publishing: {:.0} ns per series and flush, {:.0} ns in the first one",
        each(publishing.again, states),
        each(publishing.first, states)
    );
    println!(
        "record: {:.1} bytes per series state",
        bytes as f64 / states as f64
    );
    println!(
        "merging: {:.0} ns per state, {:.2} million states per second",
        each(merging, states),
        states as f64 / merging.as_secs_f64() / 1e6
    );
    println!(
        "closing: {:.0} ns per output series in the first of {threads} threads; {:.2} s of CPU in all of them, {:.2} s elapsed",
        each(closing, series as u64),
        of_all as f64 / 100.0,
        elapsed.as_secs_f64()
    );
    println!(
        "memory: {:.0} bytes per output series in one partition",
        memory as f64 * partitions as f64 / series as f64
    );
    println!(
        "snapshot: {:.0} bytes per agent and partition",
        snapshot as f64 / agents as f64
    );
}
