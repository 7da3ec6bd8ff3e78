//! Cost of storing a flush, and bytes per point: `cargo bench -p weir-history -- [SERIES] [BUCKETS]`.
//!
//! Half counters of small sums, half gauges of two decimals, with seven tags each; then distributions of five samples.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_macros,
    reason = "a benchmark reads the clock and prints"
)]

use std::num::NonZeroU32;
use std::time::Instant;

use weir_context::{ContextId, ContextKey, Kind, LiveContext};
use weir_history::{History, Query, SeriesKey, SeriesKind};
use weir_sketch::Sketch;

const START: i64 = 1_700_000_000;

fn main() {
    let numbers: Vec<usize> = std::env::args()
        .skip(1)
        .filter_map(|argument| argument.parse().ok())
        .collect();
    let series = numbers.first().copied().unwrap_or(10_000);
    let buckets = numbers.get(1).copied().unwrap_or(360) as i64;
    let tags: Vec<Vec<String>> = (0..series).map(tags).collect();
    let mut history = History::new(64 << 20);
    let mut random = 42u64;
    let begin = Instant::now();
    for bucket in 0..buckets {
        history.begin(START + bucket * 10, 10);
        for (at, tags) in tags.iter().enumerate() {
            let draw = next(&mut random);
            let (kind, value) = match at % 2 {
                0 => (SeriesKind::Counter, (20 + draw % 30) as f64),
                _ => (SeriesKind::Gauge, (draw % 10_000) as f64 / 100.0),
            };
            history.push(&key(at, kind, tags), value);
        }
        history.end();
    }
    let nanoseconds = begin.elapsed().as_nanos() as f64 / (series as f64 * buckets as f64);
    let figures = history.figures();
    let points = (figures.bytes - figures.dictionary_bytes) as f64 / figures.points as f64;
    println!(
        "{series} scalar series, {buckets} buckets: {nanoseconds:.0} ns per series and flush, {points:.2} bytes per point,"
    );
    println!(
        "{} bytes in all, {} of them names and tags",
        figures.bytes, figures.dictionary_bytes
    );
    let query = Query {
        metric: "page.views.of.service".to_owned(),
        by: vec!["zone".to_owned()],
        ..Query::default()
    };
    let begin = Instant::now();
    let answer = history.query(&query).expect("an answer");
    println!(
        "a query over {} series and {} steps: {:.1} ms",
        answer.series,
        answer.times.len(),
        begin.elapsed().as_secs_f64() * 1e3
    );

    let mut history = History::new(64 << 20);
    for bucket in 0..60 {
        history.begin(START + bucket * 10, 10);
        for (at, tags) in tags.iter().enumerate() {
            let mut sketch = Sketch::new();
            (0..5).for_each(|_| sketch.insert((next(&mut random) % 100_000) as f64 / 100.0, 1));
            history.push_sketch(&key(at, SeriesKind::Distribution, tags), &sketch);
        }
        history.end();
    }
    let figures = history.figures();
    let points = (figures.bytes - figures.dictionary_bytes) as f64 / figures.points as f64;
    println!("distributions of five samples: {points:.1} bytes per point");
}

fn tags(at: usize) -> Vec<String> {
    let tag = |key: &str, value: usize| format!("{key}:value-{value}");
    vec![
        tag("env", at % 3),
        tag("host", at % 50),
        tag("instance", at),
        tag("region", at % 4),
        tag("service", at % 20),
        tag("version", at % 5),
        tag("zone", at % 7),
    ]
}

fn key<'a>(
    at: usize,
    kind: SeriesKind,
    tags: &'a [String],
) -> SeriesKey<'a, impl Iterator<Item = &'a str> + Clone> {
    let context = LiveContext::new(Kind::Gauge, ContextId(at as u32));
    SeriesKey {
        context: Some(ContextKey::new(0, context, NonZeroU32::MIN)),
        hash: (at as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15),
        kind,
        name: "page.views.of.service",
        suffix: "",
        host: None,
        tags: tags.iter().map(String::as_str),
    }
}

/// SplitMix64: the same numbers everywhere.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed ^ (mixed >> 27)
}
