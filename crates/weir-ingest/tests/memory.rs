//! The memory of a worker stays within its budget whatever grows: contexts, aliases, samples of histograms, members of sets,
//! bins of sketches. Nothing is lost uncounted, and series that were there first stay whole.

use std::collections::BTreeMap;

use weir_aggregate::AggregateCounter;
use weir_aggregate::{AggregatorSettings, Value};
use weir_context::{ContextLimits, HashSecret, Rules};
use weir_ingest::{Ingest, IngestSettings, Received};
use weir_ingest::{IngestCounter, SampleDrop};
use weir_protocol::ParseOptions;

const BUDGET: usize = 16 << 20;
const START: i64 = 1_700_000_000;

/// Beyond the budget: what a single packet may add before the next count, and the slack of tables that double.
const TOLERANCE: usize = BUDGET / 4;

fn ingest() -> Ingest {
    let settings = IngestSettings {
        worker: 0,
        aggregator: AggregatorSettings::default(),
        rules: Rules::default(),
        limits: ContextLimits {
            bytes_max: BUDGET,
            ..ContextLimits::default()
        },
        secret: HashSecret::from_random(1, 2),
        listeners: vec![ParseOptions::default().into()],
    };
    Ingest::new(settings, START)
}

fn send(ingest: &mut Ingest, text: &str) {
    ingest.packet(Received {
        bytes: text.as_bytes(),
        listener: 0,
        truncated: false,
        received: 1,
    });
}

fn held(ingest: &Ingest) -> usize {
    ingest.contexts().heap_bytes() + ingest.aggregator().heap_bytes()
}

/// Closes the bucket. Weight of each series by name and tags: what histograms, distributions and counters add up to, and
/// the number of members of sets.
fn flush(ingest: &mut Ingest, now: i64) -> BTreeMap<String, f64> {
    let mut weights = BTreeMap::new();
    assert!(ingest.advance(now));
    while ingest.is_draining() {
        let Some(batch) = ingest.drain(usize::MAX) else {
            continue;
        };
        for series in batch.series() {
            let weight = match series.value() {
                Value::Counter(sum) => sum,
                Value::Gauge(value) => value,
                Value::Set(set) => set.cardinality() as f64,
                Value::Histogram(histogram) => histogram.totals().weight,
                Value::Distribution(sketch) => sketch.cnt() as f64,
            };
            let tags: Vec<_> = series.tags().collect();
            *weights
                .entry(format!("{} {}", series.name(), tags.join(",")))
                .or_default() += weight;
        }
    }
    weights
}

/// Sends `rounds` samples to each of `series` series with hot ones in between; checks memory all the way, and the books.
fn flood(
    kind: &str,
    series: u32,
    rounds: u32,
    value: impl Fn(u32, u32) -> String,
) -> (Ingest, BTreeMap<String, f64>) {
    let mut ingest = ingest();
    let hot = |ingest: &mut Ingest| (0..10).for_each(|at| send(ingest, &format!("hot:1|c|#at:{at}")));
    hot(&mut ingest);
    for round in 0..rounds {
        for at in 0..series {
            let value = value(at, round);
            send(
                &mut ingest,
                &format!("flood:{value}|{kind}|#id:{at},env:production,region:somewhere"),
            );
        }
        hot(&mut ingest);
        let held = held(&ingest);
        assert!(
            held <= BUDGET + TOLERANCE,
            "{kind}: {held} bytes in round {round}"
        );
    }
    let counts = ingest.counts()[0];
    assert!(counts.balance(), "{counts:?}");
    assert_eq!(
        counts[IngestCounter::Metrics],
        u64::from(series * rounds + 10 * (rounds + 1))
    );
    let weights = flush(&mut ingest, START + 10);
    for at in 0..10 {
        assert_eq!(weights[&format!("hot at:{at}")], f64::from(rounds + 1));
    }
    (ingest, weights)
}

/// Samples of a kind that can overflow are all there, in their own series or in the one that takes the overflow.
fn check_sum(weights: &BTreeMap<String, f64>, sent: u32) {
    let found: f64 = weights
        .iter()
        .filter(|(name, _)| name.starts_with("flood "))
        .map(|(_, weight)| weight)
        .sum();
    assert_eq!(found, f64::from(sent));
}

#[test]
fn histograms_are_folded_early_and_keep_their_totals() {
    let (ingest, weights) = flood("h", 2_000, 1_500, |_, round| round.to_string());
    check_sum(&weights, 2_000 * 1_500);
    assert!(ingest.aggregator().counts()[AggregateCounter::HistogramsFolded] > 0);
}

#[test]
fn sets_become_estimates_early() {
    let (ingest, weights) = flood("s", 200, 3_000, |_, round| {
        format!("member-{round}-of-a-common-length")
    });
    assert!(ingest.aggregator().counts()[AggregateCounter::SetsEstimated] > 0);
    let kept = weights.iter().filter(|(name, _)| name.starts_with("flood "));
    for (name, members) in kept {
        assert!((members / 3_000.0 - 1.0).abs() < 0.05, "{name}: {members}");
    }
}

#[test]
fn sketches_reduce_the_memory_for_contexts() {
    // Values far from each other: every sample is a bin of its own.
    let (_, weights) = flood("d", 20_000, 40, |at, round| {
        format!("{}", f64::from(round * 7 + at % 13).exp2().min(1e300))
    });
    check_sum(&weights, 20_000 * 40);
}

#[test]
fn contexts_and_aliases_share_the_rest() {
    let (_, weights) = flood("c", 100_000, 2, |_, _| "1".to_owned());
    check_sum(&weights, 200_000);
}

#[test]
fn a_second_bucket_as_full_as_the_first_stays_within_the_budget() {
    let mut ingest = ingest();
    for bucket in 0..4 {
        for at in 0..15_000 {
            for value in 0..8 {
                send(&mut ingest, &format!("d{bucket}:{value}|d|#id:{at}"));
            }
            if at % 1_000 == 0 {
                let held = held(&ingest);
                assert!(held <= BUDGET + TOLERANCE, "{held} bytes in bucket {bucket}");
            }
        }
        let weights = flush(&mut ingest, START + 10 * (bucket + 1));
        assert_eq!(weights.values().sum::<f64>(), 8.0 * 15_000.0);
        assert!(ingest.counts()[0].balance());
    }
}

/// Series that came while little was sent, and are all sent much then: no new one has to come for the valve to open.
fn known_ones_grow(kind: &str, value: impl Fn(u32, u32) -> String) {
    let series = 5_000;
    let (ingest, _) = flood(kind, series, 301, |at, round| {
        if round == 0 { "1".into() } else { value(at, round) }
    });
    assert!(
        ingest.aggregator().counts()[AggregateCounter::BodiesSqueezed] > 0,
        "{kind}"
    );
    let counts = ingest.counts()[0];
    assert_eq!(
        counts[IngestCounter::SamplesOverflowed] + counts.dropped_total(),
        0,
        "{kind}: {counts:?}"
    );
}

#[test]
fn known_sketches_that_grow_are_squeezed() {
    known_ones_grow("d", |at, round| {
        format!("{}", f64::from((round * 7 + at) % 900).exp2())
    });
}

#[test]
fn known_histograms_that_grow_are_squeezed() {
    known_ones_grow("h", |at, round| {
        format!("{}", f64::from((round * 7 + at) % 900).exp2())
    });
}

#[test]
fn known_sets_that_grow_are_squeezed() {
    known_ones_grow("s", |_, round| format!("member-{round}"));
}

/// A context that is silent for longer than `context_expiry` is a new one when it comes again. If a flood has reached the limit meanwhile, its
/// gauge is dropped and counted, and the last value that was delivered stays the old one.
#[test]
fn a_gauge_that_expires_during_a_flood_is_refused_and_counted() {
    let dropped = |ingest: &Ingest| ingest.counts()[0].samples_dropped[SampleDrop::ContextLimit];
    for (expiry, is_kept) in [(20, false), (3600, true)] {
        let settings = IngestSettings {
            worker: 0,
            aggregator: AggregatorSettings {
                context_expiry: expiry,
                ..AggregatorSettings::default()
            },
            rules: Rules::default(),
            limits: ContextLimits {
                contexts_max: 100,
                ..ContextLimits::default()
            },
            secret: HashSecret::from_random(1, 2),
            listeners: vec![ParseOptions::default().into()],
        };
        let mut ingest = Ingest::new(settings, START);
        send(&mut ingest, "hot:1|g");
        let mut last = 0.0;
        for bucket in 1..=6 {
            // Counters stay for another five minutes, so that there is never room for what has left.
            for number in 0..200 {
                send(&mut ingest, &format!("flood.{bucket}.{number}:1|c"));
            }
            if bucket == 6 {
                let before = dropped(&ingest);
                send(&mut ingest, "hot:2|g");
                assert_eq!(dropped(&ingest) - before, u64::from(!is_kept));
            }
            let weights = flush(&mut ingest, START + 10 * bucket);
            last = weights
                .iter()
                .find(|(name, _)| name.starts_with("hot"))
                .map_or(last, |(_, value)| *value);
        }
        assert_eq!(last, if is_kept { 2.0 } else { 1.0 });
        assert!(ingest.counts()[0].balance());
    }
}
