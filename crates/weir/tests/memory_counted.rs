//! Bytes of one worker, counted: memory_ledger and flush_memory measure the pages of a process.

use weir_aggregate::AggregatorSettings;
use weir_context::{AliasCounter, ContextLimits, HashSecret, Partitioning, Rules};
use weir_ingest::{Ingest, IngestSettings, Received};
use weir_protocol::ParseOptions;

use crate::memory_ledger::permuted;

const START: i64 = 1_700_000_000;

/// The only one of its agent.
fn worker(bytes_max: usize) -> Ingest {
    let settings = IngestSettings {
        worker: 0,
        aggregator: AggregatorSettings {
            partitioning: Partitioning::Id,
            ..AggregatorSettings::default()
        },
        rules: Rules::default(),
        limits: ContextLimits {
            bytes_max,
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

/// Whatever the number of contexts, a flush needs room for batches of some thousand rows, and none for another bucket.
#[test]
fn a_flush_goes_out_in_pieces() {
    const CONTEXTS: usize = 30_000;
    let mut ingest = worker(1 << 30);
    for i in 0..CONTEXTS {
        let kind = ["c", "g", "d"][i % 3];
        send(
            &mut ingest,
            &format!(
                "application.requests.{}:{i}|{kind}|#env:production,pod:checkout-{i:08x}",
                i % 200
            ),
        );
    }
    let before = held(&ingest);
    assert!(ingest.advance(START + 10));
    let (mut rows, mut largest, mut most) = (0, 0, 0);
    while ingest.is_draining() {
        if let Some(batch) = ingest.drain(256) {
            rows += batch.len();
            largest = largest.max(batch.len());
            most = most.max(batch.heap_bytes());
        }
        let now = held(&ingest);
        assert!(
            now <= before,
            "{before} bytes before the flush, {now} after {rows} rows"
        );
    }
    println!("{before} bytes held, batches of {largest} rows and {most} bytes at most");
    assert_eq!(rows, CONTEXTS);
    // One ends with 4096 rows or a megabyte, and the next drain looks at 256 contexts more.
    assert!(largest <= 4096 + 256, "{largest} rows");
    assert!(most <= 2 << 20, "{most} bytes");
}

#[test]
fn an_alias_too_many_is_evicted_and_counted() {
    const BUDGET: usize = 2 << 20;
    let mut ingest = worker(BUDGET);
    // One context in many forms; each twice, as an alias is kept on the second sight.
    for form in 0..20_000 {
        let line = permuted(form);
        send(&mut ingest, &line);
        send(&mut ingest, &line);
        let held = held(&ingest);
        assert!(held <= BUDGET * 5 / 4, "{held} bytes after {form} forms");
    }
    let counts = ingest.contexts().alias_counts();
    assert!(counts[AliasCounter::Evicted] > 0, "{counts:?}");
}
