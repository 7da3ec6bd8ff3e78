//! Listeners that read their messages in ways of their own.

use std::num::NonZeroU32;
use std::sync::Arc;

use weir_aggregate::{AggregatorSettings, Value};
use weir_context::{ContextLimits, HashSecret, NameReading, RuleSettings, Rules};
use weir_ingest::{Ingest, IngestCounter, IngestSettings, ListenerSettings, Received, SampleDrop};
use weir_protocol::ParseOptions;
use weir_rules::{Definitions, Kinds, Mapping, Pattern, Profile, RuleLimits, RuleSet, SameTags, TagStyles};

const START: i64 = 1_700_000_000;
const LIBRATO: TagStyles = TagStyles {
    librato: true,
    influx: false,
    signalfx: false,
    hashes: false,
};
const INFLUX: TagStyles = TagStyles {
    librato: false,
    influx: true,
    signalfx: false,
    hashes: false,
};

fn listener(gauge_deltas: bool, styles: Option<TagStyles>) -> ListenerSettings {
    ListenerSettings {
        parse: ParseOptions {
            timestamps: true,
            ..ParseOptions::default()
        },
        gauge_deltas,
        sample_lists: false,
        names: NameReading::from(styles),
        takes_columns: false,
        merge_within: None,
    }
}

/// `styles` are those of the rules.
fn ingest(styles: TagStyles, listeners: Vec<ListenerSettings>) -> Ingest {
    let definitions = Definitions {
        tag_styles: styles,
        ..Definitions::default()
    };
    ingest_with(definitions, None, AggregatorSettings::default(), listeners)
}

fn ingest_with(
    definitions: Definitions,
    delta_expiry: Option<NonZeroU32>,
    aggregator: AggregatorSettings,
    listeners: Vec<ListenerSettings>,
) -> Ingest {
    let set = RuleSet::new(definitions, &[], RuleLimits::default()).unwrap();
    let rules = RuleSettings {
        set: Arc::new(set),
        delta_expiry,
        ..RuleSettings::default()
    };
    let settings = IngestSettings {
        worker: 0,
        aggregator,
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

fn number(value: Value<'_>) -> f64 {
    match value {
        Value::Counter(value) | Value::Gauge(value) => value,
        _ => panic!("counters and gauges alone"),
    }
}

/// The open bucket's state, and the samples that passed without one.
fn points(ingest: &mut Ingest) -> Vec<String> {
    points_at(ingest, START + 10)
}

fn points_at(ingest: &mut Ingest, now: i64) -> Vec<String> {
    let mut batches: Vec<_> = std::iter::from_fn(|| ingest.take_pass_through()).collect();
    assert!(ingest.advance(now));
    while ingest.is_draining() {
        batches.extend(ingest.drain(usize::MAX));
    }
    let mut points = Vec::new();
    for series in batches.iter().flat_map(|batch| batch.series()) {
        let value = number(series.value());
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

/// Two gauges with times of their own, by their mappings, and one with that of all.
#[test]
fn an_idle_gauge_begins_again_at_zero_after_the_time_of_its_mapping() {
    let mapping = |name: &str, seconds| Mapping {
        pattern: Pattern::Wildcard(format!("{name}.*")),
        kinds: Kinds::ALL,
        name: format!("{name}_$1"),
        tags: Vec::new(),
        same_tags: SameTags::default(),
        delta_expiry: NonZeroU32::new(seconds),
        drop: false,
        dry_run: false,
    };
    let definitions = Definitions {
        profiles: vec![Profile {
            name: "p".into(),
            prefix: "*".into(),
            mappings: vec![mapping("short", 5), mapping("long", 60), mapping("same", 0)],
        }],
        ..Definitions::default()
    };
    let settings = || AggregatorSettings {
        context_expiry: 3600,
        ..AggregatorSettings::default()
    };
    let all = "short.a:{}|g\nlong.a:{}|g\nsame.a:{}|g\nplain:{}|g\n";
    // Seconds between the value and the change, and what the change makes of each.
    for (of_all, pause, expected) in [
        (20, 5, ["13", "13", "13", "13"]),
        (20, 6, ["13", "13", "13", "3"]),
        (20, 21, ["13", "3", "3", "3"]),
        (20, 61, ["3", "3", "3", "3"]),
        (0, 61, ["3", "13", "13", "3"]),
    ] {
        let mut ingest = ingest_with(
            definitions.clone(),
            NonZeroU32::new(of_all),
            settings(),
            vec![listener(true, None)],
        );
        send(&mut ingest, 0, &all.replace("{}", "10"));
        let end = (START + pause) / 10 * 10;
        for now in (START + 10..=end).step_by(10).chain([START + pause]) {
            assert!(ingest.advance(now));
            while ingest.is_draining() {
                let _ = ingest.drain(usize::MAX);
            }
        }
        send(&mut ingest, 0, &all.replace("{}", "+3"));
        let forgotten = expected.iter().filter(|value| **value == "3").count();
        assert_eq!(
            ingest.counts()[0][IngestCounter::GaugeDeltasWithoutBase],
            forgotten as u64,
            "{of_all} {pause}"
        );
        let [long, plain, same, short] = expected;
        let expected = [
            format!("long_a [] {long}"),
            format!("plain [] {plain}"),
            format!("same_a [] {same}"),
            format!("short_a [] {short}"),
        ];
        assert_eq!(points_at(&mut ingest, end + 10), expected, "{of_all} {pause}");
    }
}

fn samples_dropped(ingest: &Ingest, listener: usize, reason: SampleDrop) -> u64 {
    ingest.counts()[listener].samples_dropped[reason]
}

#[test]
fn a_line_with_several_samples_is_read_at_the_listener_that_is_configured_for_it() {
    let lists = ListenerSettings {
        sample_lists: true,
        ..listener(true, None)
    };
    let mut ingest = ingest(TagStyles::default(), vec![listener(true, None), lists]);
    let text = "m:1|c:2|c\nusers:32|g:+10|g:-10|g\nm:1|c|@0.5:5|c|#a:b\nbad:1|c:x|c:2|q\nm:1|c";
    for number in [0, 1, 0, 1] {
        send(&mut ingest, number, text);
    }
    let of = |listener: usize| {
        let counts = &ingest.counts()[listener];
        let rejected: u64 = counts.rejected.iter().map(|(_, count)| count).sum();
        [
            counts[IngestCounter::Messages],
            counts[IngestCounter::Metrics],
            rejected,
        ]
    };
    // Twice: one plain message, and four lines that are refused; or all samples but two.
    assert_eq!(of(0), [10, 2, 8]);
    assert_eq!(of(1), [22, 18, 4]);
    assert_eq!(
        points(&mut ingest),
        ["bad [] 2", "m [] 10", "m [a:b] 14", "users [] 32"]
    );
}

#[test]
fn timestamped_counts_of_one_series_and_second_are_one_point() {
    let mut ingest = ingest(TagStyles::default(), vec![listener(false, None)]);
    for line in [
        "pk:1|c|T1699999990",
        "pk:4|c|T1699999990",
        "pk:1:2:3|c|T1699999991",
        "pk:4|c|T1699999990|#b:1,a:1",
        "pk:4|c|T1699999990|#a:1,b:1",
        "level:1|g|T1699999990",
        "level:2|g|T1699999990",
    ] {
        send(&mut ingest, 0, line);
    }
    assert_eq!(ingest.counts()[0][IngestCounter::SamplesTimestamped], 9);
    let of = |batch: weir_aggregate::Batch| -> Vec<String> {
        let shown = |series: weir_aggregate::Series<'_>| {
            let tags: Vec<&str> = series.tags().collect();
            format!(
                "{} {} [{}] {}",
                series.name(),
                series.timestamp(),
                tags.join(","),
                number(series.value())
            )
        };
        batch.series().map(shown).collect()
    };
    assert_eq!(
        of(ingest.take_pass_through().unwrap()),
        [
            "pk 1699999990 [] 5",
            "pk 1699999991 [] 6",
            "pk 1699999990 [a:1,b:1] 8",
            "level 1699999990 [] 1",
            "level 1699999990 [] 2",
        ]
    );
    // A row that was handed over stays as it is.
    send(&mut ingest, 0, "pk:1|c|T1699999990");
    send(&mut ingest, 0, "pk:1e308|c|T1699999990\npk:1e308|c|T1699999990");
    let large = format!("pk 1699999990 [] {}", 1e308);
    assert_eq!(of(ingest.take_pass_through().unwrap()), [large.clone(), large]);
}

#[test]
fn a_timestamp_that_is_no_second_of_today_is_dropped_and_counted() {
    let mut ingest = ingest(TagStyles::default(), vec![listener(false, None)]);
    let day = START + 24 * 60 * 60;
    send(
        &mut ingest,
        0,
        &format!("at:1|c|T{day}\nlater:1:2|c|T{}\n", day + 1),
    );
    send(
        &mut ingest,
        0,
        "ms:1|c|T1661176132000\nmax:1|g|T9223372036854775807\nold:1|c|T1",
    );
    assert_eq!(samples_dropped(&ingest, 0, SampleDrop::FutureTimestamp), 4);
    assert_eq!(points(&mut ingest), ["at [] 1", "old [] 1"]);
}

#[test]
fn an_event_with_an_impossible_timestamp_has_the_time_of_its_arrival() {
    let mut ingest = ingest(TagStyles::default(), vec![listener(false, None)]);
    let day = START + 24 * 60 * 60;
    let own = [1_661_176_132, day, 1_661_176_132_000, day + 1, -7, 0];
    for own in own {
        send(
            &mut ingest,
            0,
            &format!("_e{{1,1}}:a|b|d:{own}\n_sc|db|0|d:{own}"),
        );
    }
    let batch = ingest.take_pass_through().unwrap();
    let expected = [own[0], own[1], START, START, START, START];
    let times: Vec<i64> = batch.events.iter().map(|event| event.timestamp).collect();
    assert_eq!(times, expected);
    let times: Vec<i64> = batch.checks.iter().map(|check| check.timestamp).collect();
    assert_eq!(times, expected);
    assert_eq!(ingest.counts()[0][IngestCounter::TimestampsIgnored], 6);
}

#[test]
fn sections_that_stand_for_nothing_are_counted_when_they_are_new() {
    let mut ingest = ingest(TagStyles::default(), vec![listener(false, None)]);
    for _ in 0..3 {
        send(
            &mut ingest,
            0,
            "r.rq:5|c|#cluster_name:outbound|60051||a.svc\nok:1|c|#a:b|c:in-1|e:x|card:low",
        );
    }
    let counted = ingest.counts()[0][IngestCounter::UnknownSections];
    assert!((1..=3).contains(&counted), "{counted}");
    send(&mut ingest, 0, "r.rq:5|c|#cluster_name:outbound|60052||b.svc");
    assert_eq!(ingest.counts()[0][IngestCounter::UnknownSections], counted + 1);
}

#[test]
fn tags_with_a_hash_each_lose_it_by_every_way() {
    let hashes = TagStyles {
        hashes: true,
        ..TagStyles::default()
    };
    let mut ingest = ingest(
        TagStyles::default(),
        vec![listener(false, None), listener(false, Some(hashes))],
    );
    for _ in 0..4 {
        for number in [0, 1] {
            send(&mut ingest, number, "php:1|c|#xx:1,#yy:2\nphp:1|c|#xx:1,#yy:2, ");
        }
    }
    assert_eq!(
        points(&mut ingest),
        ["php [ ,#yy:2,xx:1] 4", "php [#yy:2,xx:1] 4", "php [xx:1,yy:2] 8"]
    );
}
