//! The bucket that one message alone would make, for a look at what outputs send of it.

use std::sync::Arc;

use weir_aggregate::{AggregatorSettings, Batch};
use weir_context::{ContextLimits, HashSecret, Rules};
use weir_ingest::{Ingest, IngestSettings, ListenerSettings, Received};
use weir_protocol::{Message, Metric, OriginFields, Tags, encode_metric, parse_line};

use super::explain::first_sample;

/// The start of a full bucket in Unix time. Any time does.
const BUCKET: i64 = 1_700_000_000;

/// The batch of a bucket with this message, whose sender has these tags: the same parser, rules and aggregation as for real messages.
/// `None`: the message is no metric, or makes no series.
pub fn batch(line: &str, reading: &ListenerSettings, sender: &[String], rules: &Rules) -> Option<Batch> {
    let line = line.trim_end_matches(['\n', '\r']);
    let first = first_sample(line, reading);
    let Ok(Message::Metric(metric)) = parse_line(first.as_deref().unwrap_or(line).as_bytes(), &reading.parse)
    else {
        return None;
    };
    let tags: Vec<&str> = metric
        .tags
        .iter()
        .chain(sender.iter().map(String::as_str))
        .collect();
    let tags = tags.join(",");
    let known = Metric {
        tags: Tags::from_text(&tags),
        // Its tags are known; and a point with its own time would be in no bucket.
        origin: OriginFields::default(),
        timestamp: None,
        ..metric
    };
    let mut bytes = Vec::new();
    encode_metric(&known, &mut bytes);
    let hostname: Arc<str> = rules.hostname().into();
    let settings = IngestSettings {
        worker: 0,
        aggregator: AggregatorSettings {
            hostname,
            ..AggregatorSettings::default()
        },
        rules: rules.clone(),
        limits: ContextLimits::default(),
        secret: HashSecret::random(),
        listeners: vec![ListenerSettings {
            takes_columns: false,
            ..*reading
        }],
    };
    let mut ingest = Ingest::new(settings, BUCKET);
    ingest.packet(Received {
        bytes: &bytes,
        listener: 0,
        truncated: false,
        received: 1,
    });
    // Nothing was open before it, so it has to end.
    let _ = ingest.close_now();
    let mut found = None;
    while ingest.is_draining() {
        if let Some(batch) = ingest.drain(usize::MAX)
            && batch.series().next().is_some()
        {
            found = Some(batch);
        }
    }
    let mut found = found?;
    found.last = true;
    Some(found)
}
