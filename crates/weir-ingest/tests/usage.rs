//! Usage: counts of contexts, tag values and samples are right, fair shares hold, and what has no room is
//! counted and named.

use std::collections::BTreeMap;

use weir_aggregate::{AggregatorSettings, Value};
use weir_context::{Admission, ContextLimits, HashSecret, LimitReason, Rules, SUMMARY_ROWS, UsageSummary};
use weir_ingest::IngestCounter;
use weir_ingest::{Ingest, IngestSettings, OriginAnswer, ProcessContainer, Received, WaitLimit};
use weir_protocol::{Kind, ParseOptions};

const START: i64 = 1_700_000_000;

struct Node {
    ingest: Ingest,
    now: i64,
    /// Sums of counters by name and tags, over all flushes.
    sums: BTreeMap<String, f64>,
}

impl Node {
    fn new(limits: ContextLimits) -> Node {
        let settings = IngestSettings {
            worker: 0,
            aggregator: AggregatorSettings {
                hostname: "agent".into(),
                ..AggregatorSettings::default()
            },
            rules: Rules::default(),
            limits,
            secret: HashSecret::from_random(7, 8),
            listeners: vec![ParseOptions::default().into()],
        };
        Node {
            ingest: Ingest::new(settings, START),
            now: START,
            sums: BTreeMap::new(),
        }
    }

    fn send(&mut self, line: &str) {
        self.send_from(line, 0);
    }

    fn send_from(&mut self, line: &str, pid: i32) {
        let packet = Received {
            bytes: line.as_bytes(),
            listener: 0,
            truncated: false,
            received: 1,
        };
        if pid > 0 {
            self.ingest.packet_from(packet, pid);
        } else {
            self.ingest.packet(packet);
        }
    }

    /// Ends the bucket and looks at it.
    fn flush(&mut self) -> UsageSummary {
        self.now += 10;
        assert!(self.ingest.advance(self.now));
        while self.ingest.is_draining() {
            let Some(batch) = self.ingest.drain(usize::MAX) else {
                continue;
            };
            for series in batch.series() {
                if let (Kind::Counter, Value::Counter(sum)) = (series.kind(), series.value()) {
                    let tags: Vec<_> = series.tags().collect();
                    *self
                        .sums
                        .entry(format!("{} {}", series.name(), tags.join(",")))
                        .or_default() += sum;
                }
            }
        }
        loop {
            // In small slices, as a worker does.
            if let Some(mut summary) = self.ingest.summarise(10) {
                summary.metrics.sort_by(|a, b| a.name.cmp(&b.name));
                summary.tag_keys.sort_by(|a, b| a.key.cmp(&b.key));
                return summary;
            }
        }
    }
}

fn metrics(summary: &UsageSummary) -> Vec<(&str, u64, u64)> {
    let metrics = summary.metrics.iter();
    metrics
        .map(|usage| (&*usage.name, usage.contexts, usage.samples))
        .collect()
}

#[test]
fn contexts_values_and_samples_are_counted_and_forgotten() {
    let mut node = Node::new(ContextLimits::default());
    for number in 0..30 {
        node.send(&format!("a:1:2|d|#id:{number},env:prod\nb:1|c\n"));
        node.send(&format!("a:3|d|#env:prod,id:{number}"));
    }
    let summary = node.flush();
    assert_eq!(metrics(&summary), [("a", 30, 90), ("b", 1, 30)]);
    let keys: Vec<_> = summary
        .tag_keys
        .iter()
        .map(|key| (&*key.key, key.values))
        .collect();
    assert_eq!(keys, [("env", 1), ("id", 30)]);
    assert_eq!((summary.metrics_live, summary.tag_keys_live), (2, 2));

    node.send("b:1|c");
    assert_eq!(metrics(&node.flush()), [("a", 30, 0), ("b", 1, 1)]);
    for _ in 0..4 {
        node.flush();
    }
    let summary = node.flush();
    assert_eq!(metrics(&summary), [("b", 1, 0)]);
    assert_eq!((summary.tag_keys_live, summary.contexts), (0, 1));
}

#[test]
fn a_summary_is_bounded_and_has_the_largest() {
    let mut node = Node::new(ContextLimits::default());
    for number in 0..3000 {
        node.send(&format!("few.{number}:1|c"));
    }
    for number in 0..50 {
        node.send(&format!("many:1|c|#n:{number}"));
    }
    let summary = node.flush();
    assert_eq!(summary.metrics_live, 3001);
    assert!(
        summary.metrics.len() <= 2 * SUMMARY_ROWS,
        "{}",
        summary.metrics.len()
    );
    assert!(
        metrics(&summary)
            .iter()
            .any(|&(name, contexts, _)| (name, contexts) == ("many", 50))
    );
}

#[test]
fn one_metric_is_limited_to_its_share_and_others_fit() {
    let limits = ContextLimits {
        contexts_max: 5000,
        ..ContextLimits::default()
    };
    let mut node = Node::new(limits);
    for number in 0..20_000 {
        node.send(&format!("flood:1|c|#id:{number},env:prod"));
    }
    for round in 0..3 {
        for number in 0..500 {
            node.send(&format!("hot.{}:1|c|#n:{number}", number % 7));
            node.send(&format!("flood:1|c|#id:x{round}-{number},env:prod"));
        }
    }
    let summary = node.flush();
    let flood = summary
        .metrics
        .iter()
        .find(|usage| &*usage.name == "flood")
        .unwrap();
    // Four fifths of the number, and the overflow series.
    assert_eq!(flood.contexts, 4001);
    let limited = &summary.limited[..];
    assert_eq!(limited.len(), 1);
    assert_eq!(
        (&*limited[0].name, limited[0].reason),
        ("flood", LimitReason::Metric)
    );
    assert_eq!(limited[0].samples, 21_500 - 4000);
    assert_eq!(&*limited[0].tag_key.as_ref().unwrap().0, "id");
    let hot: Vec<f64> = node
        .sums
        .iter()
        .filter(|(context, _)| context.starts_with("hot."))
        .map(|(_, sum)| *sum)
        .collect();
    assert_eq!(hot, [3.0; 500]);
    assert_eq!(node.sums["flood weir_overflow:true"], 17_500.0);
    let all: f64 = node
        .sums
        .iter()
        .filter(|(context, _)| context.starts_with("flood "))
        .map(|(_, sum)| sum)
        .sum();
    assert_eq!(all, 21_500.0);
    assert_eq!(
        node.ingest.contexts().limited_samples()[LimitReason::Metric],
        17_500
    );
    assert!(node.ingest.counts()[0].balance());
    assert!(node.flush().limited.is_empty());
}

#[test]
fn the_limit_per_metric_holds_and_gauges_are_dropped() {
    let limits = ContextLimits {
        contexts_per_metric_max: 10,
        ..ContextLimits::default()
    };
    let mut node = Node::new(limits);
    for number in 0..25 {
        node.send(&format!("g:1|g|#id:{number}\nc:1|c|#id:{number}\n"));
    }
    let summary = node.flush();
    assert_eq!(metrics(&summary), [("c", 11, 25), ("g", 10, 25)]);
    let counts = &node.ingest.counts()[0];
    assert_eq!(
        (counts[IngestCounter::SamplesOverflowed], counts.dropped_total()),
        (15, 15)
    );
    let dropped = counts.samples_dropped[weir_ingest::SampleDrop::ContextLimit];
    assert_eq!(dropped, 15);
    assert!(counts.balance());
}

#[test]
fn a_memory_budget_is_shared_fairly_too() {
    let limits = ContextLimits {
        bytes_max: 4 << 20,
        ..ContextLimits::default()
    };
    let mut node = Node::new(limits);
    for number in 0..50_000 {
        node.send(&format!("flood:1|c|#id:{number},env:prod"));
    }
    for number in 0..300 {
        node.send(&format!("hot:1|c|#n:{number}"));
    }
    let held = node.ingest.contexts().heap_bytes() + node.ingest.aggregator().heap_bytes();
    assert!(held <= 4 << 20, "{held}");
    let summary = node.flush();
    assert_eq!(&*summary.limited[0].name, "flood");
    assert_eq!(summary.limited.len(), 1, "{:?}", summary.limited);
    assert_eq!(
        node.sums
            .iter()
            .filter(|(context, _)| context.starts_with("hot n:"))
            .count(),
        300
    );
}

#[test]
fn one_origin_is_limited_to_its_share() {
    let limits = ContextLimits {
        contexts_max: 3000,
        ..ContextLimits::default()
    };
    let mut node = Node::new(limits);
    node.ingest.enable_origins(false);
    for (pid, container) in [(1, "bad"), (2, "good")] {
        // Waits until it is known who sent it.
        node.send_from("first:1|g", pid);
        node.ingest.answer(OriginAnswer::Process {
            pid,
            found: ProcessContainer::Container(container.into()),
        });
    }
    for question in node.ingest.contexts_mut().take_origin_questions() {
        if let weir_context::OriginQuestion::Subscribe { ticket, .. } = question {
            node.ingest.answer(OriginAnswer::Tags {
                ticket,
                tags: [].into(),
                settled: true,
                admission: Admission::Undecided,
            });
        }
    }
    node.ingest.feed_parked(0, WaitLimit::NoWait);
    for number in 0..10_000 {
        node.send_from(&format!("name.{number}:1|c"), 1);
    }
    for number in 0..400 {
        node.send_from(&format!("good.{number}:1|c"), 2);
    }
    assert_ne!(node.ingest.contexts().len(), 0);
    let mut summary = node.flush();
    summary.origins.sort_by(|a, b| b.origin.cmp(&a.origin));
    let found: Vec<_> = summary.origins.iter().map(|usage| usage.contexts).collect();
    // With the first message of each. Overflow series, up to a thousand here, are not the origin's.
    assert_eq!(found, [401, 2400]);
    assert_eq!(summary.limited[0].reason, LimitReason::Origin);
    assert!(summary.limited[0].origin.ends_with("bad"));
    assert_eq!(
        node.sums
            .keys()
            .filter(|context| context.starts_with("good."))
            .count(),
        400
    );
}

#[test]
fn one_tag_key_is_limited_to_its_share_over_many_names() {
    let limits = ContextLimits {
        contexts_max: 5000,
        ..ContextLimits::default()
    };
    let mut node = Node::new(limits);
    for number in 0..20_000 {
        node.send(&format!("name.{}:1|c|#id:{number}", number % 100));
    }
    for number in 0..300 {
        node.send(&format!("hot.{number}:1|c|#env:prod"));
    }
    let summary = node.flush();
    assert_eq!(summary.limited[0].reason, LimitReason::TagKey);
    let ids = summary.tag_keys.iter().find(|usage| &*usage.key == "id").unwrap();
    // The overflow series of a hundred names take some of the room.
    assert!((3900..=4000).contains(&ids.values), "{}", ids.values);
    assert_eq!(
        node.sums
            .keys()
            .filter(|context| context.starts_with("hot."))
            .count(),
        300
    );
    let of_names: f64 = node
        .sums
        .iter()
        .filter(|(context, _)| context.starts_with("name."))
        .map(|(_, sum)| sum)
        .sum();
    assert_eq!(of_names, 20_000.0);
}
