//! Listeners that read their messages in ways of their own.

use std::sync::Arc;

use weir_aggregate::{AggregatorSettings, Value};
use weir_context::{ContextLimits, HashSecret, NameReading, RuleSettings, Rules};
use weir_ingest::{Ingest, IngestCounter, IngestSettings, ListenerSettings, Received};
use weir_protocol::ParseOptions;
use weir_rules::{Definitions, RuleLimits, RuleSet, TagStyles};

const START: i64 = 1_700_000_000;
const LIBRATO: TagStyles = TagStyles {
    librato: true,
    influx: false,
    signalfx: false,
};
const INFLUX: TagStyles = TagStyles {
    librato: false,
    influx: true,
    signalfx: false,
};

fn listener(gauge_deltas: bool, styles: Option<TagStyles>) -> ListenerSettings {
    ListenerSettings {
        parse: ParseOptions {
            timestamps: true,
            ..ParseOptions::default()
        },
        gauge_deltas,
        names: NameReading::from(styles),
    }
}

/// `styles` are those of the rules.
fn ingest(styles: TagStyles, listeners: Vec<ListenerSettings>) -> Ingest {
    let definitions = Definitions {
        tag_styles: styles,
        ..Definitions::default()
    };
    let set = RuleSet::new(definitions, &[], RuleLimits::default()).unwrap();
    let rules = RuleSettings {
        set: Arc::new(set),
        ..RuleSettings::default()
    };
    let settings = IngestSettings {
        worker: 0,
        aggregator: AggregatorSettings::default(),
        rules: Rules::new(rules),
        limits: ContextLimits::default(),
        secret: HashSecret::from_random(1, 2),
        listeners,
    };
    Ingest::new(settings, START)
}

fn send(ingest: &mut Ingest, listener: usize, text: &str) {
    ingest.packet(Received {
        bytes: text.as_bytes(),
        listener,
        truncated: false,
        received: 0,
    });
}

/// The open bucket's state, and the samples that passed without one.
fn points(ingest: &mut Ingest) -> Vec<String> {
    let mut batches: Vec<_> = std::iter::from_fn(|| ingest.take_pass_through()).collect();
    assert!(ingest.advance(START + 10));
    while ingest.is_draining() {
        batches.extend(ingest.drain(usize::MAX));
    }
    let mut points = Vec::new();
    for series in batches.iter().flat_map(|batch| batch.series()) {
        let value = match series.value() {
            Value::Counter(value) | Value::Gauge(value) => value,
            _ => panic!("counters and gauges alone"),
        };
        let tags: Vec<&str> = series.tags().collect();
        points.push(format!("{} [{}] {value}", series.name(), tags.join(",")));
    }
    points.sort();
    points
}

/// The same bytes, again and again, by every way: new, by an alias, with known tags in another order, with a rate, with a timestamp.
#[test]
fn each_listener_reads_equal_bytes_by_its_settings() {
    let listeners = vec![
        listener(false, None),
        listener(false, Some(LIBRATO)),
        listener(false, Some(INFLUX)),
        listener(false, Some(TagStyles::default())),
    ];
    // Where the listener has none of its own, the rules' apply.
    for (of_rules, by_rules) in [(TagStyles::default(), "q#a=1"), (LIBRATO, "q")] {
        let mut ingest = ingest(of_rules, listeners.clone());
        for _ in 0..4 {
            for number in 0..listeners.len() {
                send(
                    &mut ingest,
                    number,
                    "q#a=1:1|c|#x:1,y:2\nq#a=1:1|c|#y:2,x:1\nq#a=1:1|c|@0.5|#x:1,y:2\n",
                );
            }
        }
        let tags = if by_rules == "q" { "a:1,x:1,y:2" } else { "x:1,y:2" };
        let mut expected = std::collections::BTreeMap::from([("q [a:1,x:1,y:2]".to_owned(), 16.0)]);
        *expected.entry(format!("{by_rules} [{tags}]")).or_insert(0.0) += 16.0;
        // No style, and one that does not fit.
        *expected.entry("q#a=1 [x:1,y:2]".to_owned()).or_insert(0.0) += 32.0;
        let expected: Vec<String> = expected
            .into_iter()
            .map(|(name, value)| format!("{name} {value}"))
            .collect();
        assert_eq!(points(&mut ingest), expected);
    }
    let mut ingest = ingest(TagStyles::default(), listeners);
    for number in [0, 1, 0, 1] {
        send(&mut ingest, number, "t#a=1:1|g|T1700000001\n");
    }
    assert_eq!(
        points(&mut ingest),
        ["t [a:1] 1", "t [a:1] 1", "t#a=1 [] 1", "t#a=1 [] 1"]
    );
}

#[test]
fn a_signed_gauge_adds_at_the_listener_that_is_configured_for_it() {
    let mut ingest = ingest(
        TagStyles::default(),
        vec![listener(false, None), listener(true, None)],
    );
    for _ in 0..3 {
        send(&mut ingest, 0, "absolute:10|g\nabsolute:+5|g\n");
        send(&mut ingest, 1, "level:10|g\nlevel:+5|g\nlevel:-3:+1|g\n");
    }
    send(&mut ingest, 1, "new:-2|g\nnew:-2|g\n");
    let counts: Vec<u64> = ingest
        .counts()
        .iter()
        .map(|counts| counts[IngestCounter::GaugeDeltasWithoutBase])
        .collect();
    assert_eq!(counts, [0, 1]);
    assert_eq!(points(&mut ingest), ["absolute [] 5", "level [] 13", "new [] -4"]);
}
