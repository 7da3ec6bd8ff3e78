//! Several workers must give what one worker gives for the same messages, however the messages are dealt out.

use std::collections::BTreeMap;

use proptest::prelude::*;
use weir_aggregate::{AggregatorSettings, Batch, Merger, Value};
use weir_context::{HashSecret, Limits, Rules};
use weir_ingest::{Ingest, IngestSettings, Received};
use weir_protocol::ParseOptions;

const START: i64 = 1_700_000_000;

fn ingest(worker: u16) -> Ingest {
    let settings = IngestSettings {
        worker,
        aggregator: AggregatorSettings {
            hostname: "agent".into(),
            ..AggregatorSettings::default()
        },
        rules: Rules::default(),
        limits: Limits::default(),
        // One process, one secret: canonical hashes agree between its workers.
        secret: HashSecret::from_random(7, 8),
        gauge_deltas: false,
        listeners: vec![ParseOptions::default()],
    };
    Ingest::new(settings, START)
}

/// Every row as text; a context that comes twice in one bucket fails.
fn take(batch: &Batch, rows: &mut BTreeMap<String, String>) {
    for series in batch.series() {
        let tags: Vec<_> = series.tags().collect();
        let key = format!(
            "{} {:?} {} {:?} {tags:?}",
            series.timestamp(),
            series.kind(),
            series.name(),
            series.explicit_host()
        );
        let value = match series.value() {
            Value::Counter(sum) => format!("{sum}"),
            Value::Gauge(value) => format!("{value}"),
            Value::Set(set) => format!("{}", set.cardinality()),
            Value::Histogram(histogram) => {
                let mut samples: Vec<_> = histogram.samples().collect();
                samples.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
                format!("{samples:?}")
            }
            Value::Distribution(sketch) => format!(
                "{} {} {} {:?}",
                sketch.cnt(),
                sketch.min(),
                sketch.max(),
                sketch.bins()
            ),
        };
        assert!(rows.insert(key.clone(), value).is_none(), "{key} came twice");
    }
}

/// Runs the messages of each bucket, dealt out by `deal`, and merges. The order of the workers' batches is by `turns`.
fn run(workers: usize, buckets: &[Vec<(String, usize)>], turns: &[usize]) -> BTreeMap<String, String> {
    let mut workers: Vec<Ingest> = (0..workers).map(|worker| ingest(worker as u16)).collect();
    let count = workers.len();
    let mut merger = Merger::new(count);
    let mut rows = BTreeMap::new();
    let mut received = 0;
    for (number, bucket) in buckets.iter().enumerate() {
        for (line, worker) in bucket {
            received += 1;
            let packet = Received {
                bytes: line.as_bytes(),
                listener: 0,
                truncated: false,
                received,
            };
            workers[worker % count].packet(packet);
        }
        let now = START + 10 * (number as i64 + 1);
        for worker in &mut workers {
            assert!(worker.advance(now));
        }
        let mut turn = 0;
        while workers.iter().any(Ingest::is_draining) {
            let worker = turns.get(turn).copied().unwrap_or(turn) % count;
            turn += 1;
            // Small parts, so that the workers' hand-overs interleave.
            if let Some(batch) = workers[worker].drain(7) {
                merger.push(batch, |merged| take(&merged, &mut rows));
            }
        }
    }
    merger.finish(|merged| take(&merged, &mut rows));
    assert_eq!(merger.rows_lost(), 0);
    rows
}

fn line() -> impl Strategy<Value = String> {
    let name = prop::sample::select(vec!["a", "b", "c.d"]);
    let value = prop::sample::select(vec!["1", "2:3", "4"]);
    let kind = prop::sample::select(vec!["c", "g", "s", "h", "ms", "d"]);
    let tags = prop::sample::select(vec!["", "|#t:1", "|#t:2,u", "|#u,t:2", "|#host:h", "|@0.5"]);
    (name, value, kind, tags).prop_map(|(name, value, kind, tags)| format!("{name}:{value}|{kind}{tags}"))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn several_workers_equal_one(
        buckets in prop::collection::vec(prop::collection::vec((line(), 0usize..4), 0..40), 1..4),
        turns in prop::collection::vec(0usize..4, 0..200),
    ) {
        prop_assert_eq!(run(4, &buckets, &turns), run(1, &buckets, &[]));
    }
}

#[test]
fn a_lost_batch_is_noticed() {
    let mut worker = ingest(0);
    for number in 0..20_000 {
        let line = format!("metric.{number}:1|c");
        worker.packet(Received {
            bytes: line.as_bytes(),
            listener: 0,
            truncated: false,
            received: 1,
        });
    }
    assert!(worker.advance(START + 10));
    let mut merger = Merger::new(1);
    let mut batches = Vec::new();
    while worker.is_draining() {
        batches.extend(worker.drain(1000));
    }
    assert!(batches.len() > 2, "{} batches", batches.len());
    let lost = batches.remove(1).len() as u64;
    for batch in batches {
        merger.push(batch, |_| {});
    }
    assert_eq!(merger.rows_lost(), lost);
}
