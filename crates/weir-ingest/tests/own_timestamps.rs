//! Points of numbered requests that keep their timestamp count with the open bucket: they leave with it, and are saved with it.

use std::sync::mpsc::{Receiver, channel};

use weir_aggregate::{AggregatorSettings, Batch, Merger, ProcessStamp, Value};
use weir_columns::decode::{Decoded, Endpoint, Limits};
use weir_columns::{Encoder, MetricType, Row, TagSet};
use weir_context::{ContextLimits, HashSecret, Partitioning, Rules};
use weir_ingest::{
    ColumnFate, ColumnPayload, Ingest, IngestSettings, ListenerSettings, Received, RequestNumber,
};
use weir_protocol::ParseOptions;
use weir_state::AgentId;

const START: i64 = 1_700_000_000;
const WIDTH: i64 = 10;
const LATE: i64 = START - 60;

const STAMP: ProcessStamp = ProcessStamp {
    monotonic_zero: 0,
    agent: AgentId([3; 16]),
};

fn ingest(worker: u16) -> Ingest {
    let settings = IngestSettings {
        worker,
        aggregator: AggregatorSettings {
            partitioning: Partitioning::Hash,
            ..AggregatorSettings::default()
        },
        rules: Rules::default(),
        limits: ContextLimits::default(),
        secret: HashSecret::from_random(1, 2),
        listeners: vec![ListenerSettings {
            merge_within: Some(20),
            ..ParseOptions::default().into()
        }],
    };
    Ingest::new(settings, START)
}

/// Sends a request with points of one series.
fn send(
    ingest: &mut Ingest,
    number: Option<u64>,
    metric: MetricType,
    name: &str,
    points: &[(i64, f64)],
) -> Receiver<ColumnFate> {
    let mut encoder = Encoder::new(1);
    let row = Row {
        name: encoder.name(&[name]),
        tags: encoder.tag_set(TagSet::default(), ["b", "a"].into_iter()),
        interval: 10,
        ..Row::new(metric)
    };
    encoder.row(&row, points);
    encoder.sort();
    let columns = Decoded::read(encoder.to_payload(), Endpoint::Series, &Limits::default()).unwrap();
    let (tell, told) = channel();
    ingest.columns(ColumnPayload {
        columns,
        listener: 0,
        pid: 0,
        local_data: None,
        external_data: None,
        number: number.map(|number| RequestNumber {
            client: 1,
            number,
            oldest: number,
        }),
        bytes: 100,
        received: 1,
        done: Box::new(move |fate| tell.send(fate).unwrap()),
    });
    told
}

fn added(told: &Receiver<ColumnFate>) {
    let fate = told.try_recv();
    assert!(matches!(fate, Ok(ColumnFate::Added { .. })), "{fate:?}");
}

/// Name, timestamp and value.
fn rows(batch: &Batch) -> Vec<(String, i64, f64)> {
    let row = |series: weir_aggregate::Series<'_>| {
        assert_eq!(series.tags().collect::<Vec<_>>(), ["a", "b"]);
        let value = match series.value() {
            Value::Counter(value) | Value::Gauge(value) => value,
            other => panic!("{other:?}"),
        };
        (series.name().to_owned(), series.timestamp(), value)
    };
    batch.series().map(row).collect()
}

/// All batches of the bucket that ends.
fn flush(ingest: &mut Ingest, now: i64) -> Vec<Batch> {
    assert!(ingest.advance(now));
    std::iter::from_fn(|| ingest.drain(usize::MAX)).collect()
}

/// The points that leave with it, and its samples.
fn leaving(batches: &mut [Batch]) -> (Vec<(String, i64, f64)>, u64) {
    let (last, others) = batches.split_last_mut().unwrap();
    assert!(last.last && others.iter().all(|batch| batch.timestamped.is_empty()));
    (
        last.timestamped.iter().flat_map(rows).collect(),
        last.samples_until,
    )
}

#[test]
fn they_leave_with_the_bucket_and_count_with_it() {
    let mut ingest = ingest(0);
    let late = [(LATE, 2.0), (LATE + 10, 3.0), (START, 1.0)];
    for number in [1, 2] {
        added(&send(&mut ingest, Some(number), MetricType::Count, "n", &late));
    }
    added(&send(
        &mut ingest,
        Some(3),
        MetricType::Gauge,
        "g",
        &[(LATE, 5.0)],
    ));
    assert!(
        ingest.take_pass_through().is_none(),
        "a kill would lose what leaves before a checkpoint"
    );
    assert_eq!(ingest.aggregator().open_samples(), 7);
    let (rows, samples) = leaving(&mut flush(&mut ingest, START + WIDTH));
    let n = |timestamp, value| ("n".to_owned(), timestamp, value);
    assert_eq!(
        rows,
        [n(LATE, 4.0), n(LATE + 10, 6.0), ("g".to_owned(), LATE, 5.0)]
    );
    assert_eq!(samples, 7);
    // The next bucket has none of them.
    let (rows, samples) = leaving(&mut flush(&mut ingest, START + 2 * WIDTH));
    assert_eq!((rows.len(), samples), (0, 7));
}

#[test]
fn without_a_number_they_leave_at_once() {
    let mut ingest = ingest(0);
    let told = send(&mut ingest, None, MetricType::Count, "n", &[(LATE, 2.0)]);
    assert!(matches!(told.try_recv(), Ok(ColumnFate::Applied { .. })));
    let batch = ingest.take_pass_through().expect("it leaves");
    assert_eq!(rows(&batch), [("n".to_owned(), LATE, 2.0)]);
    assert_eq!(ingest.aggregator().open_samples(), 0);
}

#[test]
fn a_bucket_that_waits_keeps_those_of_the_open_one_apart() {
    let mut ingest = ingest(0);
    added(&send(
        &mut ingest,
        Some(1),
        MetricType::Count,
        "n",
        &[(LATE, 1.0)],
    ));
    assert!(ingest.advance(START + WIDTH));
    // The first bucket is not handed over yet.
    added(&send(
        &mut ingest,
        Some(2),
        MetricType::Count,
        "n",
        &[(LATE, 2.0)],
    ));
    let mut batches: Vec<Batch> = std::iter::from_fn(|| ingest.drain(usize::MAX)).collect();
    assert_eq!(leaving(&mut batches), (vec![("n".to_owned(), LATE, 1.0)], 1));
    let (rows, samples) = leaving(&mut flush(&mut ingest, START + 2 * WIDTH));
    assert_eq!((rows, samples), (vec![("n".to_owned(), LATE, 2.0)], 2));
}

#[test]
fn the_next_process_continues_them() {
    let mut first = ingest(0);
    let late = [(LATE, 2.0), (LATE + 10, 3.0)];
    added(&send(&mut first, Some(1), MetricType::Count, "n", &late));
    added(&send(&mut first, Some(2), MetricType::Gauge, "g", &[(LATE, 5.0)]));
    let saved = first.save_encoded(STAMP, &|_| Ok(())).unwrap();
    assert_eq!((saved.samples, saved.timestamped.len()), (3, 1));
    let mut second = ingest(0);
    second.resume(saved, START + 3, STAMP);
    assert_eq!(second.aggregator().open_samples(), 3);
    added(&send(
        &mut second,
        Some(3),
        MetricType::Count,
        "n",
        &[(LATE, 0.5)],
    ));
    let (mut rows, samples) = leaving(&mut flush(&mut second, START + WIDTH));
    rows.sort_by(|one, other| one.0.cmp(&other.0).then(one.1.cmp(&other.1)));
    let n = |timestamp, value| ("n".to_owned(), timestamp, value);
    assert_eq!(
        rows,
        [("g".to_owned(), LATE, 5.0), n(LATE, 2.5), n(LATE + 10, 3.0)]
    );
    assert_eq!(samples, 4);
}

/// The merge of two workers has those of both with the last batch of their bucket.
#[test]
fn the_merged_bucket_has_those_of_all_workers() {
    let mut workers = [ingest(0), ingest(1)];
    let mut merger = Merger::new(2);
    let mut ready = Vec::new();
    for (at, worker) in workers.iter_mut().enumerate() {
        added(&send(
            worker,
            Some(1),
            MetricType::Count,
            "n",
            &[(LATE + at as i64, 1.0)],
        ));
        worker.packet(Received {
            bytes: b"m:1|c",
            listener: 0,
            truncated: false,
            received: 1,
        });
        for batch in flush(worker, START + WIDTH) {
            assert!(ready.is_empty(), "one of them has not ended it");
            merger.push(batch, |merged| ready.push(merged));
        }
    }
    let (rows, samples) = leaving(&mut ready);
    let n = |timestamp| ("n".to_owned(), timestamp, 1.0);
    assert_eq!((rows, samples), (vec![n(LATE), n(LATE + 1)], 4));
}

/// A client that was cut off for long has more than a bucket takes. Its requests wait for the next one, and none is lost.
#[test]
fn more_than_there_is_room_for_waits_for_the_next_bucket() {
    let mut ingest = ingest(0);
    let points: Vec<(i64, f64)> = (0..1000).map(|second| (LATE - second, 1.0)).collect();
    let (mut number, mut samples) = (0, 0);
    let waiting = loop {
        number += 1;
        let told = send(
            &mut ingest,
            Some(number),
            MetricType::Count,
            &format!("n{number}"),
            &points,
        );
        match told.try_recv() {
            Ok(ColumnFate::Added { .. }) => samples += 1000,
            _ => break told,
        }
        assert!(ingest.aggregator().kept_bytes() < 8 << 20);
    };
    assert!(samples > 10_000, "{samples}");
    assert!(waiting.try_recv().is_err(), "it has no answer");
    let (rows, _) = leaving(&mut flush(&mut ingest, START + WIDTH));
    assert_eq!(rows.len(), samples);
    added(&send(&mut ingest, Some(number), MetricType::Count, "n", &points));
}
