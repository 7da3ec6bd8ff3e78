//! A bucket that another process continues ends as it would have without the change: messages, buckets and moments at random.

use std::sync::mpsc::channel;

use proptest::prelude::*;
use weir_aggregate::{AggregatorSettings, Batch, Bucket, ProcessStamp, Value};
use weir_context::{ContextLimits, HashSecret, Rules};
use weir_ingest::{Ingest, IngestCounter, IngestSettings, ListenerSettings, Received, SavedBucket};
use weir_protocol::ParseOptions;
use weir_state::{AgentId, Bounds, Header, Record, StreamReader, Table};

const START: i64 = 1_700_000_003;

const STAMP: ProcessStamp = ProcessStamp {
    monotonic_zero: 1_600_000_000_000_000_000,
    agent: AgentId([3; 16]),
};

fn ingest(now: i64, secret: u64, gauge_deltas: bool) -> Ingest {
    let options = ParseOptions {
        origin_client: true,
        timestamps: true,
        eol_required: false,
    };
    let settings = IngestSettings {
        worker: 0,
        aggregator: AggregatorSettings {
            counter_expiry: 30,
            ..AggregatorSettings::default()
        },
        rules: Rules::default(),
        limits: ContextLimits::default(),
        // Another process has other hashes.
        secret: HashSecret::from_random(secret, 2),
        listeners: vec![ListenerSettings {
            gauge_deltas,
            ..options.into()
        }],
    };
    Ingest::new(settings, now)
}

/// A message and the seconds that pass before it.
fn steps() -> impl Strategy<Value = Vec<(String, i64)>> {
    let message = (
        0..6usize,
        0..3u8,
        -40i32..40,
        prop_oneof![Just(""), Just("|@0.3"), Just("|@0.7")],
        0..3u8,
    );
    let line = message.prop_map(|(kind, name, value, rate, tag)| {
        let kinds = ["c", "g", "s", "h", "ms", "d"];
        let rate = if matches!(kind, 1 | 2) { "" } else { rate };
        let sign = if kind == 1 && value > 0 { "+" } else { "" };
        format!(
            "n{name}:{sign}{}|{}{rate}|#t:{tag}",
            f64::from(value) / 4.0,
            kinds[kind]
        )
    });
    let pause = prop_oneof![8 => Just(0i64), 3 => 1i64..5, 1 => 5i64..60];
    prop::collection::vec((line, pause), 1..80)
}

fn drain(ingest: &mut Ingest, rows: &mut Vec<String>) {
    while ingest.is_draining() {
        if let Some(batch) = ingest.drain(usize::MAX) {
            rows.extend(described(&batch));
        }
    }
}

fn described(batch: &Batch) -> Vec<String> {
    let Bucket { start, timestamp, .. } = batch.bucket;
    let rows = batch.series().map(|series| {
        let value = match series.value() {
            // Sums are added up in another order.
            Value::Counter(sum) => format!("{sum:.6}"),
            Value::Gauge(value) => format!("{value}"),
            Value::Set(set) => format!("{}", set.cardinality()),
            Value::Histogram(histogram) => {
                let mut samples: Vec<(f64, f64)> = histogram.samples().collect();
                samples.sort_by(|one, other| one.partial_cmp(other).unwrap());
                let totals = histogram.totals();
                format!("{samples:?} {:.6} {:.6}", totals.sum, totals.weight)
            }
            Value::Distribution(sketch) => {
                format!("{:?} {:.6} {}", sketch.bins(), sketch.sum(), sketch.cnt())
            }
        };
        let (name, kind) = (series.name(), series.kind());
        let tags: Vec<&str> = series.tags().collect();
        let (idle, mask) = (series.is_idle(), series.suffix_mask());
        format!("{start} {timestamp} {name} {kind:?} {tags:?} idle={idle} mask={mask} {value}")
    });
    rows.collect()
}

/// Its pieces, and the rest of it.
fn pieces(ingest: &mut Ingest) -> (SavedBucket, Vec<Vec<u8>>) {
    let (put, pieces) = channel();
    let saved = ingest.save_encoded(STAMP, &|piece| {
        put.send(piece.to_vec()).unwrap();
        Ok(())
    });
    (saved.unwrap(), pieces.try_iter().collect())
}

/// As a table, which is the form of buckets of several workers that were merged.
fn merged(ingest: &mut Ingest) -> SavedBucket {
    let (saved, pieces) = pieces(ingest);
    let bucket = saved.bucket.unwrap();
    let mut table = Table::new(Bounds::NONE);
    for piece in &pieces {
        let mut reader = StreamReader::new(STAMP.agent, piece);
        while let Some(entry) = reader.next_entry().unwrap() {
            let identity = entry.named.unwrap().identity(entry.kind);
            table.add(identity, entry.facts, entry.state);
        }
    }
    let header = Header {
        agent: STAMP.agent,
        bucket_start: bucket.start,
        bucket_width: bucket.width,
        ..Header::default()
    };
    let mut read = Table::new(Bounds::NONE);
    for bytes in table.encode(&header).0 {
        read.add_record(&Record::decode(&bytes).unwrap());
    }
    SavedBucket {
        series: read.into_series().collect(),
        ..saved
    }
}

/// An ingest's encoded state, and the number of its contexts.
fn encoded(ingest: &mut Ingest) -> (SavedBucket, u64) {
    let (saved, pieces) = pieces(ingest);
    let entries = |piece: &Vec<u8>| {
        let mut reader = StreamReader::new(STAMP.agent, piece);
        std::iter::from_fn(|| reader.next_entry().unwrap()).count() as u64
    };
    let contexts = pieces.iter().map(entries).sum();
    assert_eq!(saved.contexts, contexts);
    let encoded = pieces.into();
    (SavedBucket { encoded, ..saved }, contexts)
}

/// Takes the messages; before each message number in `changes`, another process takes over.
fn run(steps: &[(String, i64)], changes: &[usize], gauge_deltas: bool) -> (Vec<String>, u64) {
    let mut rows = Vec::new();
    let mut now = START;
    let mut samples = 0;
    let mut current = ingest(now, 1, gauge_deltas);
    for (number, (line, pause)) in steps.iter().enumerate() {
        if changes.contains(&number) {
            drain(&mut current, &mut rows);
            // The one way and the other.
            let (saved, contexts) = match number % 2 {
                0 => {
                    let saved = merged(&mut current);
                    let contexts = saved.series.len() as u64;
                    (saved, contexts)
                }
                _ => encoded(&mut current),
            };
            samples += current.counts()[0].counts[IngestCounter::Samples];
            current = ingest(now, number as u64 + 2, gauge_deltas);
            let restored = current.resume(saved, now, STAMP);
            assert_eq!((restored.contexts, restored.refused), (contexts, 0));
        }
        now += pause;
        while !current.advance(now) {
            drain(&mut current, &mut rows);
        }
        drain(&mut current, &mut rows);
        current.packet(Received {
            bytes: line.as_bytes(),
            listener: 0,
            truncated: false,
            received: (now - 1_600_000_000) as u64 * 1_000_000_000 + number as u64,
        });
    }
    assert!(current.counts()[0].balance());
    samples += current.counts()[0].counts[IngestCounter::Samples];
    while !current.advance(now + 60) {
        drain(&mut current, &mut rows);
    }
    drain(&mut current, &mut rows);
    rows.sort_unstable();
    (rows, samples)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn another_process_changes_nothing(
        steps in steps(),
        changes in prop::collection::vec(0usize..80, 1..4),
        gauge_deltas in any::<bool>(),
    ) {
        let expected = run(&steps, &[], gauge_deltas);
        prop_assert_eq!(run(&steps, &changes, gauge_deltas), expected);
    }
}

/// Two threads encode it, and one decodes for another.
#[test]
fn another_process_continues_a_bucket_of_many_series() {
    let line = |number| format!("n{}:{number}|c|#t:{number}", number % 7);
    let steps: Vec<_> = (0..5000).map(|number| (line(number), 0)).collect();
    let expected = run(&steps, &[], false);
    let with_samples = expected.0.iter().filter(|row| row.contains("idle=false"));
    assert_eq!(with_samples.count(), 5000);
    assert_eq!(run(&steps, &[4999], false), expected);
}

/// A counter without a sample of a value other than zero is one all the same.
#[test]
fn zeros_before_and_after_a_change_of_the_process_count() {
    let steps = vec![("n0:0|c|#t:0".to_owned(), 0); 4];
    assert_eq!(run(&steps, &[1], false), run(&steps, &[], false));
}

/// The samples in the open bucket are known, so that their loss can be reported.
#[test]
fn the_open_bucket_counts_its_samples() {
    let mut first = ingest(START, 1, false);
    let packet = |ingest: &mut Ingest, bytes: &[u8]| {
        ingest.packet(Received {
            bytes,
            listener: 0,
            truncated: false,
            received: 1,
        });
    };
    packet(&mut first, b"a:1:2:3|c\nb:1|g");
    let saved = merged(&mut first);
    assert_eq!(saved.samples, 4);
    let mut second = ingest(START, 2, false);
    let _ = second.resume(saved, START + 1, STAMP);
    packet(&mut second, b"a:1|c");
    assert_eq!(pieces(&mut second).0.samples, 5);
    assert!(second.advance(START + 10));
    drain(&mut second, &mut Vec::new());
    assert_eq!(pieces(&mut second).0.samples, 0);
}
