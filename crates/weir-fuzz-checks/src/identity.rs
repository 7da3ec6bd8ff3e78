//! Assignment of messages of several packets to series, compared with a twin that keeps trees of strings.

use std::collections::{BTreeMap, BTreeSet};

use weir_aggregate::{AggregatorSettings, Batch, Value};
use weir_context::{ContextLimits, HashSecret, Level, RuleSettings, Rules};
use weir_ingest::{Ingest, IngestSettings, Received};
use weir_protocol::{Kind, Message, SpecialTag, parse_packet, special_tag};

use crate::ALL;

const START: i64 = 1_700_000_000;

/// Kind, name, host of the message and its tags; the sum of a counter.
type Series = BTreeMap<(Kind, String, Option<String>, BTreeSet<String>), Option<String>>;

/// The first two bytes choose the size of the alias cache and the form of the hot path; the rest are packets separated by zeros. In any
/// order of tags, packets and look-ups: the same series with the same sums.
pub fn identity(bytes: &[u8]) {
    let Some((&[cache, level], bytes)) = bytes.split_first_chunk::<2>() else {
        return;
    };
    // Twice: the first call creates contexts, the second finds them.
    let once: Vec<&[u8]> = bytes.split(|byte| *byte == 0).collect();
    let packets = [&once[..], &once[..]].concat();
    let alias_bytes_max = match cache {
        255 => usize::MAX,
        cache => usize::from(cache) * 64,
    };
    let levels: Vec<Level> = Level::available().collect();
    let level = levels[usize::from(level) % levels.len()];
    assert_eq!(real(&packets, alias_bytes_max, level), naive(&packets));
}

fn naive(packets: &[&[u8]]) -> Series {
    let mut sums: BTreeMap<_, f64> = BTreeMap::new();
    for message in packets.iter().flat_map(|packet| parse_packet(packet, &ALL)) {
        let Ok(Message::Metric(metric)) = message else {
            continue;
        };
        // A distribution without a finite value has nothing to show; timestamped ones go another way.
        if metric.timestamp.is_some() || metric.kind == Kind::Distribution {
            continue;
        }
        let mut host = None;
        let mut tags = BTreeSet::new();
        for tag in metric.tags.iter() {
            match special_tag(tag) {
                Some(SpecialTag::Host(name)) => host = Some(name.to_owned()),
                Some(_) => {}
                None => drop(tags.insert(tag.to_owned())),
            }
        }
        let sum = sums
            .entry((metric.kind, metric.name.to_owned(), host, tags))
            .or_default();
        if let weir_protocol::Values::Numbers(numbers) = metric.values {
            for value in numbers.iter() {
                *sum += value * (1.0 / metric.rate);
            }
        }
    }
    let shown = |kind, sum: f64| (kind == Kind::Counter).then(|| format!("{sum}"));
    sums.into_iter()
        .map(|(key, sum)| {
            let sum = shown(key.0, sum);
            (key, sum)
        })
        .collect()
}

fn real(packets: &[&[u8]], alias_bytes_max: usize, level: Level) -> Series {
    let settings = IngestSettings {
        worker: 0,
        // With a name, so that a message without a host and one that says it has none are two.
        aggregator: AggregatorSettings {
            hostname: "agent".into(),
            ..AggregatorSettings::default()
        },
        rules: Rules::new(RuleSettings {
            hostname: "agent".into(),
            ..RuleSettings::default()
        }),
        limits: ContextLimits {
            alias_bytes_max,
            ..ContextLimits::default()
        },
        secret: HashSecret::from_random(3, 4).at_level(level),
        listeners: vec![ALL.into()],
    };
    let mut ingest = Ingest::new(settings, START);
    for bytes in packets {
        ingest.packet(Received {
            bytes,
            listener: 0,
            truncated: false,
            received: 1,
        });
    }
    assert!(ingest.counts()[0].balance(), "{:?}", ingest.counts()[0]);
    assert!(ingest.advance(START + 10));
    let mut found = Series::new();
    while ingest.is_draining() {
        if let Some(batch) = ingest.drain(usize::MAX) {
            take(&batch, &mut found);
        }
    }
    found
}

fn take(batch: &Batch, found: &mut Series) {
    for series in batch.series() {
        if series.is_timestamped() || series.kind() == Kind::Distribution {
            continue;
        }
        let tags = series.tags().map(str::to_owned).collect();
        let host = series.explicit_host().map(str::to_owned);
        let key = (series.kind(), series.name().to_owned(), host, tags);
        let sum = match series.value() {
            Value::Counter(sum) => Some(format!("{sum}")),
            _ => None,
        };
        let before = found.insert(key, sum);
        assert!(before.is_none(), "one series twice");
    }
}
