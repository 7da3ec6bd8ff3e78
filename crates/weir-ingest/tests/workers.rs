//! Several workers must give what one worker gives for the same messages, however the messages are dealt out.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use proptest::prelude::*;
use weir_aggregate::{AggregateCounter, AggregatorSettings, BATCH_ROWS, Batch, Merger, Value};
use weir_context::{ContextLimits, HashSecret, Rules};
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
        limits: ContextLimits::default(),
        // One process, one secret: canonical hashes agree between its workers.
        secret: HashSecret::from_random(7, 8),
        listeners: vec![ParseOptions::default().into()],
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
fn a_lost_batch_is_detected() {
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

/// A worker pauses its flush for batches in transit. What the merge has delivered is none, however long an output keeps it.
#[test]
fn delivered_batches_are_not_in_transit() {
    for count in 1..3 {
        let in_transit = Arc::new(AtomicUsize::new(0));
        let mut workers: Vec<Ingest> = (0..count).map(ingest).collect();
        for worker in &mut workers {
            receive(worker, "a:1|c");
            receive(worker, "_sc|a|0");
            assert!(worker.advance(START + 10));
        }
        let mut merger = Merger::new(usize::from(count));
        let mut kept = Vec::new();
        for worker in &mut workers {
            let mut batches: Vec<Batch> = worker.take_pass_through().into_iter().collect();
            while worker.is_draining() {
                batches.extend(worker.drain(1000));
            }
            for mut batch in batches {
                batch.begin_transit(&in_transit);
                assert!(in_transit.load(Ordering::Relaxed) > 0);
                merger.push(batch, |merged| kept.push(merged));
            }
        }
        merger.finish(|merged| kept.push(merged));
        assert!(kept.len() > 1 && kept.iter().any(|batch| !batch.checks.is_empty()));
        assert_eq!(in_transit.load(Ordering::Relaxed), 0, "{count} workers");
    }
}

const YEARS: i64 = 315_360_000;

fn receive(worker: &mut Ingest, line: &str) {
    worker.packet(Received {
        bytes: line.as_bytes(),
        listener: 0,
        truncated: false,
        received: 1,
    });
}

fn drain(worker: &mut Ingest) -> Vec<Batch> {
    std::iter::from_fn(|| worker.is_draining().then(|| worker.drain(usize::MAX)))
        .flatten()
        .collect()
}

/// Timestamp and sum of every counter that is not zero, in the order of the batches.
fn sums(batches: &[Batch]) -> Vec<(i64, f64)> {
    let of_batch = |batch: &Batch| {
        let sums = batch.series().filter_map(|series| match series.value() {
            Value::Counter(sum) if sum != 0.0 => Some((series.timestamp(), sum)),
            _ => None,
        });
        sums.collect::<Vec<_>>()
    };
    batches.iter().flat_map(of_batch).collect()
}

/// One wrong step of the wall clock forward once moved every later timestamp until a restart.
#[test]
fn a_clock_that_is_set_back_moves_later_buckets_back() {
    let mut worker = ingest(0);
    let mut batches = Vec::new();
    receive(&mut worker, "a:1|c");
    assert!(worker.advance(START + YEARS + 3));
    assert!(!worker.set_back(START + 5), "a closed bucket waits");
    batches.extend(drain(&mut worker));
    receive(&mut worker, "a:2|c");
    assert!(worker.set_back(START + 5));
    receive(&mut worker, "a:4|c");
    batches.extend(drain(&mut worker));
    assert!(worker.advance(START + 9));
    receive(&mut worker, "a:8|c");
    assert!(worker.advance(START + 10) && worker.is_draining());
    receive(&mut worker, "a:16|c");
    batches.extend(drain(&mut worker));
    assert!(worker.close_now());
    batches.extend(drain(&mut worker));
    // The second part of the first bucket does not carry the timestamp of its first part.
    assert_eq!(
        sums(&batches),
        [
            (START, 1.0),
            (START + YEARS, 2.0),
            (START + 5, 12.0),
            (START + 10, 16.0)
        ]
    );
}

/// A worker that was busy need not have seen that the clock was wrong. The buckets of the others must not wait for its.
#[test]
fn workers_that_saw_different_clocks_are_merged_again() {
    for late in [0, 1] {
        let mut workers = [ingest(0), ingest(1)];
        let mut merger = Merger::new(2);
        let mut merged = Vec::new();
        let mut sent = 0.0;
        let mut push = |worker: &mut Ingest, merged: &mut Vec<Batch>| {
            for batch in drain(worker) {
                merger.push(batch, |batch| merged.push(batch));
            }
            merger.pending_rows()
        };
        for step in 0..8 {
            let now = START + 10 * (step + 1);
            for (number, worker) in workers.iter_mut().enumerate() {
                receive(worker, "a:1|c");
                sent += 1.0;
                if step == 2 && number != late {
                    assert!(worker.advance(now + YEARS));
                    push(worker, &mut merged);
                    receive(worker, "a:1|c");
                    sent += 1.0;
                    assert!(worker.set_back(now));
                } else {
                    assert!(worker.advance(now));
                }
                push(worker, &mut merged);
            }
        }
        let waiting = push(&mut workers[0], &mut merged);
        assert!(waiting <= 2, "{waiting} rows wait");
        merger.finish(|batch| merged.push(batch));
        assert_eq!(merger.rows_lost(), 0);
        let total: f64 = sums(&merged).iter().map(|(_, sum)| sum).sum();
        assert_eq!(total, sent);
        // They are together again.
        assert_eq!(sums(&merged).last(), Some(&(START + 70, 2.0)));
    }
}

/// A worker whose clock was set back delivers a bucket before the last merged one, and no other until that is taken. The other worker
/// follows the clock: each of its buckets was preferred to the earlier one.
#[test]
fn an_earlier_bucket_is_not_passed_over_without_limit() {
    let mut workers = [ingest(0), ingest(1)];
    let mut merger = Merger::new(2);
    let mut merged = Vec::new();
    let mut push = |worker: &mut Ingest| {
        for batch in drain(worker) {
            merger.push(batch, |batch| merged.push(batch));
        }
        sums(&merged)
    };
    for worker in &mut workers {
        receive(worker, "a:1|c");
        assert!(worker.advance(START + 100));
        push(worker);
    }
    receive(&mut workers[1], "a:2|c");
    assert!(workers[1].set_back(START + 20));
    receive(&mut workers[0], "a:2|c");
    assert!(workers[0].advance(START + 110));
    push(&mut workers[1]);
    assert_eq!(push(&mut workers[0]), [(START, 2.0), (START + 100, 4.0)]);
    receive(&mut workers[1], "a:4|c");
    assert!(workers[1].advance(START + 30));
    push(&mut workers[1]);
    let steps = (12..30).take_while(|step| {
        receive(&mut workers[0], "a:8|c");
        assert!(workers[0].advance(START + 10 * step));
        !push(&mut workers[0]).contains(&(START + 20, 4.0))
    });
    assert!(steps.count() <= 4);
    // They are together again.
    receive(&mut workers[1], "a:8|c");
    assert!(workers[1].advance(START + 300));
    push(&mut workers[1]);
    assert!(workers[0].advance(START + 300));
    let total: f64 = push(&mut workers[0]).iter().map(|(_, sum)| sum).sum();
    assert_eq!(total % 8.0, 2.0, "2 + 4 + 4, and eights");
}

/// A worker that starts in a later bucket, or gets no CPU during one, never has that bucket. Nobody waits for it when all have stopped.
#[test]
fn workers_do_not_wait_for_a_bucket_that_one_of_them_never_had() {
    let mut workers = [ingest(0), ingest(1)];
    let mut merger = Merger::new(2);
    let mut merged = Vec::new();
    assert!(workers[1].advance(START + 20));
    drain(&mut workers[1]);
    for step in 1..=2 {
        receive(&mut workers[0], "a:1|c");
        assert!(workers[0].advance(START + 10 * step));
        for batch in drain(&mut workers[0]) {
            merger.push(batch, |batch| merged.push(batch));
        }
    }
    assert_eq!((merger.pending_rows(), merged.len()), (2, 0));
    // A bucket that is open is not waited for, and one that is not delivered is.
    merger.has_none_before(1, START + 10, |batch| merged.push(batch));
    assert_eq!(sums(&merged), [(START, 1.0)]);
    merger.has_none_before(1, START + 20, |batch| merged.push(batch));
    assert_eq!(sums(&merged), [(START, 1.0), (START + 10, 1.0)]);
    assert_eq!((merger.pending_rows(), merger.rows_lost()), (0, 0));
    // Both continue, and wait for each other again.
    for (worker, pending) in workers.iter_mut().zip([1, 0]) {
        receive(worker, "a:2|c");
        assert!(worker.advance(START + 30));
        for batch in drain(worker) {
            merger.push(batch, |batch| merged.push(batch));
        }
        assert_eq!(merger.pending_rows(), pending);
    }
    assert_eq!(sums(&merged).last(), Some(&(START + 20, 4.0)));
}

/// A bucket that should end while the one before it is not handed over goes on: its samples stay together, later ones come to them, and it
/// has its own timestamp. The ends that went by are counted.
#[test]
fn a_bucket_ends_later_if_the_one_before_it_is_not_handed_over() {
    let mut worker = ingest(0);
    let joined = |worker: &Ingest| worker.aggregator().counts()[AggregateCounter::BucketsJoined];
    receive(&mut worker, "a:1|c\ng:1|g");
    assert!(worker.advance(START + 10));
    for (at, line) in [
        (10, "a:2|c\ng:2|g"),
        (19, "a:4|c"),
        (20, "a:8|c"),
        (31, "a:16|c\ng:3|g"),
        (39, "b:1|c"),
    ] {
        assert_eq!(worker.advance(START + at), at < 20, "{at}");
        receive(&mut worker, line);
    }
    assert_eq!(joined(&worker), 2);
    let first = drain(&mut worker);
    assert_eq!(sums(&first), [(START, 1.0)]);
    assert!(worker.advance(START + 39));
    receive(&mut worker, "a:32|c");
    let second = drain(&mut worker);
    let mut found = sums(&second);
    found.sort_by(|one, other| other.1.total_cmp(&one.1));
    assert_eq!(found, [(START + 10, 30.0), (START + 10, 1.0)]);
    let gauges = second
        .iter()
        .flat_map(Batch::series)
        .filter_map(|series| match series.value() {
            Value::Gauge(value) => Some(value),
            _ => None,
        });
    assert_eq!(gauges.collect::<Vec<_>>(), [3.0]);
    assert!(worker.advance(START + 40));
    assert_eq!(sums(&drain(&mut worker)), [(START + 30, 32.0)]);
    assert_eq!(joined(&worker), 2);
    assert!(worker.counts()[0].balance());
}

/// The first bucket of the others does not wait for a worker that has begun in a later one.
#[test]
fn workers_begin_in_different_buckets() {
    let mut merger = Merger::new(2);
    let mut merged = Vec::new();
    let mut first = ingest(0);
    merger.has_none_before(0, START, |batch| merged.push(batch));
    merger.has_none_before(1, START + 10, |batch| merged.push(batch));
    for (step, pending) in [(1, 0), (2, 1)] {
        receive(&mut first, "a:1|c");
        assert!(first.advance(START + 10 * step));
        for batch in drain(&mut first) {
            merger.push(batch, |batch| merged.push(batch));
        }
        assert_eq!(sums(&merged), [(START, 1.0)]);
        assert_eq!(merger.pending_rows(), pending);
    }
}

/// Nobody waits for a worker that has ended, also in the middle of a bucket, whether before or after the others' batches have come.
#[test]
fn workers_do_not_wait_for_one_that_has_ended() {
    // More than are in one batch.
    const CONTEXTS: usize = 3 * BATCH_ROWS;
    for others_first in [false, true] {
        let mut workers = [ingest(0), ingest(1)];
        let mut merger = Merger::new(2);
        let mut merged = Vec::new();
        for worker in &mut workers {
            for number in 0..CONTEXTS {
                receive(worker, &format!("a:1|c|#n:{number}"));
            }
            assert!(worker.advance(START + 10));
        }
        // Of the first one, part of a bucket.
        let half = (0..CONTEXTS).find_map(|_| workers[0].drain(256)).unwrap();
        assert!(!half.last && half.len() < CONTEXTS);
        let rows = half.len();
        merger.push(half, |batch| merged.push(batch));
        if !others_first {
            merger.remove_worker(0, |batch| merged.push(batch));
        }
        for batch in drain(&mut workers[1]) {
            merger.push(batch, |batch| merged.push(batch));
        }
        if others_first {
            assert!(merger.pending_rows() > 0);
            merger.remove_worker(0, |batch| merged.push(batch));
        }
        assert_eq!((merger.pending_rows(), merger.rows_lost()), (0, 0));
        let total: f64 = sums(&merged).iter().map(|(_, sum)| sum).sum();
        assert_eq!(total, (CONTEXTS + rows) as f64);
        receive(&mut workers[1], "a:3|c");
        assert!(workers[1].advance(START + 20));
        for batch in drain(&mut workers[1]) {
            merger.push(batch, |batch| merged.push(batch));
        }
        assert_eq!(sums(&merged).last(), Some(&(START + 10, 3.0)));
    }
}
