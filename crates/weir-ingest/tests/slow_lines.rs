//! Lines that take longer than one look-up of their bytes are counted by reason, and all others are not.

use std::sync::Arc;

use weir_aggregate::AggregatorSettings;
use weir_context::{ContextLimits, HashSecret, RuleSet, RuleSettings, Rules};
use weir_ingest::{Ingest, IngestCounter, IngestSettings, ListenerSettings, Received, SlowLine};
use weir_protocol::ParseOptions;
use weir_rules::{Definitions, Effect, Kinds, Pattern, Rule, RuleLimits, TagFilter};

const START: i64 = 1_700_000_000;

fn ingest(rules: RuleSettings, limits: ContextLimits, gauge_deltas: bool) -> Ingest {
    let listener = ListenerSettings {
        gauge_deltas,
        ..ParseOptions::default().into()
    };
    let settings = IngestSettings {
        worker: 0,
        aggregator: AggregatorSettings::default(),
        rules: Rules::new(rules),
        limits,
        secret: HashSecret::from_random(1, 2),
        listeners: vec![listener],
    };
    Ingest::new(settings, START)
}

fn plain() -> Ingest {
    ingest(RuleSettings::default(), ContextLimits::default(), false)
}

/// A drop of sets, and a rule in a dry run.
fn with_rules() -> RuleSettings {
    let rule = |name: &str, effect, dry_run| Rule {
        name: name.into(),
        pattern: Pattern::Prefix(name.into()),
        kinds: Kinds::ALL,
        effect,
        last: false,
        dry_run,
    };
    let drop = Effect {
        drop: true,
        ..Effect::default()
    };
    let shorten = Effect {
        tags: TagFilter::Exclude(vec!["id".into()]),
        ..Effect::default()
    };
    let definitions = Definitions {
        rules: vec![rule("dropped", drop, false), rule("tried", shorten, true)],
        ..Definitions::default()
    };
    RuleSettings {
        set: Arc::new(RuleSet::new(definitions, &[], RuleLimits::default()).unwrap()),
        copy_to_distribution: Some("copy.".into()),
        ..RuleSettings::default()
    }
}

/// Sends the lines as a packet. Returns the reasons that were counted for it.
fn reasons(ingest: &mut Ingest, lines: &str) -> Vec<(&'static str, u64)> {
    let before = ingest.counts()[0].lines_slow;
    ingest.packet(Received {
        bytes: lines.as_bytes(),
        listener: 0,
        truncated: false,
        received: 1,
    });
    assert!(ingest.counts()[0].balance());
    let after = ingest.counts()[0].lines_slow;
    let counted = after.iter().zip(before.iter());
    let counted = counted.map(|((info, after), (_, before))| (info.as_str(), after - before));
    counted.filter(|&(_, count)| count > 0).collect()
}

#[test]
fn a_metric_of_finite_numbers_is_slow_once() {
    let lines = [
        "counter:1|c|#env:prod",
        "gauge:93.881|g|#env:prod",
        "gauge.full:0.30000000000000004|g|#env:prod",
        "gauge.longest:-12.345678901234567|g",
        "gauge.plus:+5|g",
        "gauge.exponent:1e5|g",
        "gauge.tiny:5e-324|g|#env:prod",
        "gauge.huge:1.7976931348623157E+308|g|#env:prod",
        "gauge.many:0.1000000000000000055511151231257827|g|#env:prod",
        "counter.signed:-9223372036854775808|c|#env:prod",
        "counter.unsigned:18446744073709551615|c|#env:prod",
        "packed:0.1:0.30000000000000004:1e-7:9223372036854775807:1:2:3:0.3333333333333333|d|@0.5|#env:prod",
        "rate:1|c|@1e-1|#env:prod",
        "_private:1|c|#env:prod",
        "set:0.30000000000000004|s|#env:prod",
        "extended:1|c|#env:prod|c:ci-1",
        "special:1|c|#env:prod,host:db-1",
    ];
    for alone in [true, false] {
        let mut ingest = plain();
        let packets: Vec<String> = match alone {
            true => lines.iter().map(|line| (*line).to_owned()).collect(),
            false => vec![lines.join("\n")],
        };
        for packet in &packets {
            let count = packet.lines().count() as u64;
            assert_eq!(reasons(&mut ingest, packet), [("new_context", count)], "{packet}");
        }
        assert_eq!(ingest.contexts().aliases(), lines.len());
        for packet in packets.iter().chain(&packets) {
            assert_eq!(reasons(&mut ingest, packet), [], "{packet}");
        }
    }
}

#[test]
fn each_reason_is_counted() {
    let mut ingest = plain();
    for (line, reason) in [
        ("a:1|c|#x:1,y:2", "new_context"),
        ("a:1|c|#y:2,x:1", "new_bytes"),
        ("a:1|c|#x:1,host:h", "new_context"),
        ("a:1|c|#host:h,x:1", "special_tag"),
        ("a:1|c|#x:1,y:2|c:ci-1", "extension"),
        ("a:1|c|#x:1,y:2|@0.5", "late_section"),
        ("a:1|c|T1700000001", "timestamp"),
        ("h:1|h", "new_context"),
        ("h:1:nan|h", "number"),
        ("h:1::2|h", "number"),
        ("h:1|h|@inf", "number"),
        ("_e{1,1}:a|b", "no_metric"),
        ("_sc|a|0", "no_metric"),
        ("x", "rejected"),
        ("x:1.2.3|c", "rejected"),
    ] {
        assert_eq!(reasons(&mut ingest, line), [(reason, 1)], "{line}");
    }
    let counts = &ingest.counts()[0];
    assert_eq!(counts.lines_slow.sum(), counts[IngestCounter::Messages]);
}

#[test]
fn rules_and_listeners_that_need_the_slow_path_are_counted() {
    let mut ingest = ingest(with_rules(), ContextLimits::default(), true);
    for (line, reason) in [
        ("level:+1|g", "gauge_delta"),
        ("latency:1|ms", "copied_histogram"),
        ("tried:1|c|#id:1", "dry_run"),
        ("dropped:a|s", "filtered_set"),
    ] {
        assert_eq!(reasons(&mut ingest, line), [("new_context", 1)], "{line}");
        assert_eq!(reasons(&mut ingest, line), [(reason, 1)], "{line}");
    }
    assert_eq!(reasons(&mut ingest, "level:1|g\nlevel:2:3|g"), []);
    assert_eq!(reasons(&mut ingest, "dropped:1|c"), [("new_context", 1)]);
    assert_eq!(reasons(&mut ingest, "dropped:1|c"), []);
}

#[test]
fn a_limit_on_contexts_is_counted() {
    let limits = ContextLimits {
        contexts_max: 1,
        ..ContextLimits::default()
    };
    let mut ingest = ingest(RuleSettings::default(), limits, false);
    assert_eq!(reasons(&mut ingest, "a:1|c|#x:1"), [("new_context", 1)]);
    for _ in 0..2 {
        assert_eq!(
            reasons(&mut ingest, "a:1|c|#x:2\nb:1|g\na:1|c|#x:1"),
            [("limit", 2)]
        );
    }
    assert_eq!(ingest.counts()[0].lines_slow[SlowLine::Limit], 4);
}
