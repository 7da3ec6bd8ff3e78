//! Known contexts find their series without labels. The twin reads the labels of every row.

use proptest::prelude::*;
use weir_aggregate::{AggregatorSettings, Batch};
use weir_context::{ContextLimits, HashSecret, Rules};
use weir_ingest::{Ingest, IngestSettings, Received};
use weir_protocol::ParseOptions;

use super::*;

/// Some have the same labels in Prometheus.
const TAGS: [&str; 6] = ["", "a.b:1", "a-b:1", "a.b:2", "a.b:1,c", "a-b:1,c"];
const KINDS: [&str; 5] = ["c", "g", "ms", "d", "s"];

/// Metric, tags, kind and value of a message.
type Message = (usize, usize, usize, u8);

fn ingest(now: i64) -> Ingest {
    let settings = IngestSettings {
        worker: 0,
        aggregator: AggregatorSettings::default(),
        rules: Rules::default(),
        limits: ContextLimits::default(),
        secret: HashSecret::from_random(1, 2),
        listeners: vec![ParseOptions::default().into()],
    };
    Ingest::new(settings, now)
}

fn flush(ingest: &mut Ingest, messages: &[Message], now: i64) -> Vec<Batch> {
    for (metric, tags, kind, value) in messages {
        let message = format!("m{metric}:{value}|{}|#{}", KINDS[*kind], TAGS[*tags]);
        ingest.packet(Received {
            bytes: message.as_bytes(),
            listener: 0,
            truncated: false,
            received: 1,
        });
    }
    assert!(ingest.advance(now));
    let mut batches = Vec::new();
    while ingest.is_draining() {
        batches.extend(ingest.drain(3));
    }
    batches
}

/// Takes a batch row by row, by labels alone.
fn take_by_labels(scrape: &Scrape, batch: &Batch, now: u32) {
    let mut state = scrape.lock();
    for series in batch.series().filter(|series| !series.is_idle()) {
        let row = Row {
            context: None,
            ..Row::of(&series)
        };
        let _ = state.add(&row, series.tags(), series.value(), now);
    }
    if batch.last {
        state.expire(now);
    }
}

proptest! {
    #[test]
    fn known_contexts_are_as_their_labels(
        flushes in prop::collection::vec(
            // Of two agents; the second one has not seen the contexts of the first.
            (any::<bool>(), prop::collection::vec((0..4usize, 0..6usize, 0..5usize, any::<u8>()), 0..12), 1..40u32),
            1..30,
        ),
    ) {
        let (known, by_labels) = (scrape(), scrape());
        let mut now = 1_700_000_000;
        let mut agents = [ingest(now), ingest(now)];
        for (agent, messages, buckets) in &flushes {
            now += i64::from(buckets * 10);
            for batch in flush(&mut agents[usize::from(*agent)], messages, now) {
                known.take(&batch, now as u32);
                take_by_labels(&by_labels, &batch, now as u32);
            }
            let (one, other) = (known.status(), by_labels.status());
            prop_assert_eq!((one.counts, one.series), (other.counts, other.series));
        }
        prop_assert_eq!(known.text(now as u32), by_labels.text(now as u32));
        known.check_bytes();
    }
}
