//! Rules against a naive twin that applies them to every message with the plainest code there is: one regular expression after
//! the other, no automaton, no contexts, nothing remembered. Whatever becomes equal must have been aggregated exactly, with one
//! worker and with four, whatever the alias cache may hold, and with other rules coming in the middle of a bucket.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proptest::prelude::*;
use regex_lite::Regex;
use weir_aggregate::{AggregatorSettings, Batch, Merger, Value};
use weir_context::{ContextLimits, HashSecret, RuleSet, RuleSettings, Rules};
use weir_ingest::IngestCounter;
use weir_ingest::{Ingest, IngestSettings, Received, SampleDrop};
use weir_protocol::{Kind, Message, ParseOptions, SpecialTag, Values, parse_packet, special_tag};
use weir_rules::{
    Definitions, Effect, HistogramChoice, HostRule, Kinds, Mapping, Pattern, Profile, Rule, TagFilter,
    ValueAction, ValueRule,
};
use weir_sketch::Sketch;

const START: i64 = 1_700_000_000;
const SUFFIXES: [&str; 3] = [".max", ".count", ".95percentile"];
const DEFAULT_MASK: u32 = 0b101;

/// Kind, name, host, tags.
type Key = (Kind, String, Option<String>, BTreeSet<String>);

/// Everything that came for one context.
#[derive(Clone, Debug, Default, PartialEq)]
struct Samples {
    /// Each with its weight, in the order they came.
    values: Vec<(f64, f64)>,
    members: BTreeSet<String>,
    /// The choices of series that applied while they came: more than one if other rules came meanwhile.
    suffixes: BTreeSet<u32>,
}

fn matches(pattern: &Pattern, name: &str) -> bool {
    match pattern {
        Pattern::Any => true,
        Pattern::Exact(text) => name == text,
        Pattern::Prefix(text) => name.starts_with(text.as_str()),
        other => expression(other).is_match(name),
    }
}

fn expression(pattern: &Pattern) -> Regex {
    let text = match pattern {
        Pattern::Wildcard(text) => text.replace('.', "\\.").replace('*', "([^.]*)"),
        other => other.text().to_owned(),
    };
    Regex::new(&format!("^{text}$")).unwrap()
}

/// Only `${1}` and `${2}`, which is all that the test writes.
fn expand(template: &str, pattern: &Pattern, name: &str) -> String {
    let mut text = template.to_owned();
    if let Some(found) = expression(pattern).captures(name) {
        for number in 1..3 {
            let group = found.get(number).map_or("", |group| group.as_str());
            text = text.replace(&format!("${{{number}}}"), group);
        }
    }
    text
}

fn key_of(tag: &str) -> &str {
    tag.split(':').next().unwrap()
}

/// The rules by the letter. `None`: dropped.
fn apply(definitions: &Definitions, kind: Kind, name: &str, tags: &[&str]) -> Option<(Key, u32)> {
    let mut name = name.to_owned();
    let mut tags: Vec<String> = tags.iter().map(ToString::to_string).collect();
    let all = definitions
        .profiles
        .iter()
        .flat_map(|profile| profile.mappings.iter().map(move |mapping| (profile, mapping)));
    for (profile, mapping) in all {
        let is_for = profile.prefix == "*" || name.starts_with(&profile.prefix);
        if is_for && !mapping.dry_run && mapping.kinds.contains(kind) && matches(&mapping.pattern, &name) {
            if mapping.drop {
                return None;
            }
            for (key, value) in &mapping.tags {
                tags.push(format!("{key}:{}", expand(value, &mapping.pattern, &name)));
            }
            name = expand(&mapping.name, &mapping.pattern, &name);
            break;
        }
    }
    let mut host = None;
    tags.retain(|tag| match special_tag(tag) {
        Some(SpecialTag::Host(text)) => {
            host = Some(text.to_string());
            false
        }
        other => other.is_none(),
    });
    let mut suffixes = DEFAULT_MASK;
    for rule in &definitions.rules {
        if rule.dry_run || !rule.kinds.contains(kind) || !matches(&rule.pattern, &name) {
            continue;
        }
        let effect = &rule.effect;
        if effect.drop {
            return None;
        }
        match &effect.tags {
            TagFilter::All => {}
            TagFilter::Exclude(keys) => tags.retain(|tag| !keys.contains(&key_of(tag).to_owned())),
            TagFilter::Include(keys) => tags.retain(|tag| keys.contains(&key_of(tag).to_owned())),
        }
        for value in &effect.values {
            let mut changed = Vec::new();
            for tag in tags {
                match (tag.split_once(':'), &value.action) {
                    (Some((key, text)), ValueAction::Truncate { characters }) if key == value.tag => {
                        changed.push(format!(
                            "{key}:{}",
                            text.chars().take(*characters).collect::<String>()
                        ));
                    }
                    (
                        Some((key, text)),
                        ValueAction::Allow {
                            values, replacement, ..
                        },
                    ) if key == value.tag => {
                        if values.contains(&text.to_owned()) {
                            changed.push(tag);
                        } else if let Some(replacement) = replacement {
                            changed.push(format!("{key}:{replacement}"));
                        }
                    }
                    _ => changed.push(tag),
                }
            }
            tags = changed;
        }
        if let HostRule::Tag(key) = &effect.host {
            let start = format!("{key}:");
            let found: BTreeSet<String> = tags
                .iter()
                .filter(|tag| tag.starts_with(&start))
                .cloned()
                .collect();
            if let Some(tag) = found.first() {
                host = Some(tag[start.len()..].to_owned());
                tags.retain(|tag| !tag.starts_with(&start));
            }
        }
        tags.extend(effect.add_tags.iter().cloned());
        if let Some(chosen) = &effect.histogram.aggregates {
            suffixes &= 0b100;
            for (bit, suffix) in SUFFIXES.iter().enumerate() {
                suffixes |= u32::from(chosen.contains(&suffix.to_string())) << bit;
            }
        }
        if rule.last {
            break;
        }
    }
    let host = host.filter(|host| host != "agent");
    Some(((kind, name, host, tags.into_iter().collect()), suffixes))
}

/// State of the naive twin.
#[derive(Default)]
struct Naive {
    /// By the bucket's number.
    buckets: BTreeMap<(usize, Key), Samples>,
    timestamped: Vec<String>,
    filtered: u64,
}

impl Naive {
    fn packet(&mut self, definitions: &Definitions, packet: &[u8], bucket: usize) {
        for message in parse_packet(packet, &ParseOptions::default()).flatten() {
            let Message::Metric(metric) = message else {
                continue;
            };
            if metric.timestamp.is_some() && !matches!(metric.kind, Kind::Counter | Kind::Gauge) {
                continue;
            }
            let tags: Vec<&str> = metric.tags.iter().collect();
            let Some((key, suffixes)) = apply(definitions, metric.kind, metric.name, &tags) else {
                self.filtered += match metric.values {
                    Values::Member(_) => 1,
                    Values::Numbers(numbers) => numbers.iter().count() as u64,
                };
                continue;
            };
            if metric.timestamp.is_some() {
                self.timestamped.push(format!("{key:?}"));
                continue;
            }
            let samples = self.buckets.entry((bucket, key)).or_default();
            samples.suffixes.insert(suffixes);
            match metric.values {
                Values::Member(member) => drop(samples.members.insert(member.to_string())),
                Values::Numbers(numbers) => {
                    let weighted = numbers.iter().map(|value| (value, 1.0 / metric.rate));
                    samples.values.extend(weighted);
                }
            }
        }
    }

    fn rows(&self) -> BTreeMap<String, String> {
        let rows = self.buckets.iter().map(|((bucket, key), samples)| {
            let timestamp = START + 10 * *bucket as i64;
            (format!("{timestamp} {key:?}"), shown(key.0, samples))
        });
        rows.collect()
    }
}

/// The facts about a context's bucket that both sides report.
fn shown(kind: Kind, samples: &Samples) -> String {
    match kind {
        Kind::Counter => {
            let sum: f64 = samples.values.iter().map(|(value, weight)| value * weight).sum();
            format!("sum {sum}")
        }
        Kind::Gauge => format!("last {}", samples.values.last().unwrap().0),
        Kind::Set => format!("members {}", samples.members.len()),
        Kind::Histogram | Kind::Timing => {
            let shown = print_histogram(samples.values.clone());
            match samples.suffixes.iter().collect::<Vec<_>>()[..] {
                [suffixes] => format!("{shown}{SERIES}{suffixes:b}"),
                // Which of them counts is up to where the last sample went.
                _ => format!("{shown}{SERIES}{ANY}"),
            }
        }
        Kind::Distribution => {
            let mut sketch = Sketch::default();
            for &(value, weight) in &samples.values {
                sketch.insert(value, weight as u64);
            }
            print_sketch(&sketch)
        }
    }
}

const SERIES: &str = ", series ";
const ANY: &str = "of one of several rules";

/// Workers hand their samples over in turn, so the order says nothing.
fn print_histogram(mut samples: Vec<(f64, f64)>) -> String {
    samples.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
    format!("{samples:?}")
}

fn print_sketch(sketch: &Sketch) -> String {
    format!(
        "{} {} {} {:?}",
        sketch.cnt(),
        sketch.min(),
        sketch.max(),
        sketch.bins()
    )
}

fn take(batch: &Batch, rows: &mut BTreeMap<String, String>, timestamped: &mut Vec<String>) {
    for series in batch.series() {
        let tags: BTreeSet<String> = series.tags().map(str::to_string).collect();
        let host = series.explicit_host().map(str::to_string);
        let key: Key = (series.kind(), series.name().to_string(), host, tags);
        if series.is_timestamped() {
            timestamped.push(format!("{key:?}"));
            continue;
        }
        if series.is_idle() {
            continue;
        }
        let value = match series.value() {
            Value::Counter(sum) => format!("sum {sum}"),
            Value::Gauge(value) => format!("last {value}"),
            Value::Set(set) => format!("members {}", set.cardinality()),
            Value::Histogram(histogram) => {
                let shown = print_histogram(histogram.samples().collect());
                format!("{shown}{SERIES}{:b}", series.suffix_mask())
            }
            Value::Distribution(sketch) => print_sketch(sketch),
        };
        let before = rows.insert(format!("{} {key:?}", series.timestamp()), value);
        assert!(before.is_none(), "{key:?} twice in one bucket");
    }
}

fn rules(definitions: &Definitions) -> Rules {
    let suffixes = SUFFIXES.map(str::to_owned);
    let set = RuleSet::new(definitions.clone(), &suffixes, weir_rules::RuleLimits::default()).unwrap();
    Rules::new(RuleSettings {
        set: Arc::new(set),
        hostname: "agent".into(),
        histogram_suffixes: suffixes.to_vec(),
        suffix_mask: Some(DEFAULT_MASK),
        ..RuleSettings::default()
    })
}

fn ingest(definitions: &Definitions) -> Ingest {
    worker(definitions, 0, usize::MAX)
}

fn worker(definitions: &Definitions, number: u16, alias_bytes_max: usize) -> Ingest {
    let settings = IngestSettings {
        worker: number,
        aggregator: AggregatorSettings {
            bucket_width: 10,
            counter_expiry: 0,
            context_expiry: 1_000_000,
            hostname: "agent".into(),
            ..AggregatorSettings::default()
        },
        rules: rules(definitions),
        limits: ContextLimits {
            alias_bytes_max,
            ..ContextLimits::default()
        },
        // One process, one secret: canonical hashes agree between its workers.
        secret: HashSecret::from_random(5, 6),
        listeners: vec![ParseOptions::default().into()],
    };
    Ingest::new(settings, START)
}

fn pattern() -> impl Strategy<Value = Pattern> {
    prop_oneof![
        Just(Pattern::Any),
        prop::sample::select(vec!["a", "a.b", "x.a"]).prop_map(|text| Pattern::Exact(text.into())),
        prop::sample::select(vec!["a", "a.", "x"]).prop_map(|text| Pattern::Prefix(text.into())),
        prop::sample::select(vec!["*", "a.*", "*.*", "*.b", "a*", "*a*.*"])
            .prop_map(|text| Pattern::Wildcard(text.into())),
        prop::sample::select(vec!["a.*", "(a|b)\\.(.*)", ".*b", "a|.*c", "[ab]+"])
            .prop_map(|text| Pattern::Regex(text.into())),
    ]
}

fn kinds() -> impl Strategy<Value = Kinds> {
    prop_oneof![
        3 => Just(Kinds::ALL),
        1 => prop::sample::subsequence(Kind::ALL.to_vec(), 1..4).prop_map(Kinds::of),
    ]
}

fn mapping() -> impl Strategy<Value = Mapping> {
    let pattern = pattern().prop_filter("a mapping has a pattern", |pattern| *pattern != Pattern::Any);
    let value = prop::sample::select(vec!["v", "1"]);
    (
        pattern,
        kinds(),
        prop::sample::select(vec!["m", "a.b"]),
        value,
        prop::bool::weighted(0.1),
        prop::bool::weighted(0.2),
    )
        .prop_map(|(pattern, kinds, name, value, drop, dry_run)| {
            let groups = match &pattern {
                Pattern::Wildcard(text) => text.matches('*').count(),
                Pattern::Regex(text) if text.starts_with('(') => 2,
                _ => 0,
            };
            let (name, value) = match groups {
                0 => (name.to_owned(), value.to_owned()),
                1 => (format!("{name}.${{1}}"), "${1}".to_owned()),
                _ => ("x${1}".to_owned(), "${2}".to_owned()),
            };
            Mapping {
                pattern,
                kinds,
                name,
                tags: vec![("t".into(), value)],
                same_tags: weir_rules::SameTags::default(),
                delta_expiry: None,
                drop,
                dry_run,
            }
        })
}

fn effect() -> impl Strategy<Value = Effect> {
    let keys = || prop::sample::subsequence(vec!["t".to_owned(), "u".to_owned(), "w".to_owned()], 0..3);
    let tags = prop_oneof![
        2 => Just(TagFilter::All),
        2 => keys().prop_map(TagFilter::Exclude),
        1 => keys().prop_map(TagFilter::Include),
    ];
    let action = prop_oneof![
        (0usize..3).prop_map(|characters| ValueAction::Truncate { characters }),
        any::<bool>().prop_map(|replace| ValueAction::Allow {
            values: vec!["1".into(), "zz".into()],
            patterns: vec![],
            replacement: replace.then(|| "other".into()),
        }),
    ];
    let value = (prop::sample::select(vec!["t", "u"]), action).prop_map(|(tag, action)| ValueRule {
        tag: tag.into(),
        only: vec![],
        action,
    });
    let host = prop::sample::select(vec![HostRule::Keep, HostRule::Keep, HostRule::Tag("w".into())]);
    let aggregates = prop::option::of(prop::sample::subsequence(
        vec![".max".to_owned(), ".count".to_owned()],
        0..3,
    ));
    let add = prop::sample::subsequence(vec!["n:1".to_owned()], 0..2);
    (
        prop::bool::weighted(0.1),
        tags,
        prop::collection::vec(value, 0..2),
        host,
        add,
        aggregates,
    )
        .prop_map(|(drop, tags, values, host, add_tags, aggregates)| Effect {
            drop,
            tags,
            values,
            host,
            add_tags,
            histogram: HistogramChoice {
                aggregates,
                percentiles: None,
            },
        })
}

fn definitions() -> impl Strategy<Value = Definitions> {
    let profile = (
        prop::sample::select(vec!["*", "a", "x."]),
        prop::collection::vec(mapping(), 0..4),
    );
    let rule = (
        pattern(),
        kinds(),
        effect(),
        prop::bool::weighted(0.2),
        prop::bool::weighted(0.2),
    );
    (
        prop::collection::vec(profile, 0..3),
        prop::collection::vec(rule, 0..5),
    )
        .prop_map(|(profiles, rules)| Definitions {
            profiles: profiles
                .into_iter()
                .map(|(prefix, mappings)| Profile {
                    name: "p".into(),
                    prefix: prefix.into(),
                    mappings,
                })
                .collect(),
            rules: rules
                .into_iter()
                .enumerate()
                .map(|(at, (pattern, kinds, effect, last, dry_run))| Rule {
                    name: format!("rule {at}"),
                    pattern,
                    kinds,
                    effect,
                    last,
                    dry_run,
                })
                .collect(),
            ..Definitions::default()
        })
}

fn packet() -> impl Strategy<Value = String> {
    let name = prop::sample::select(vec!["a", "a.b", "a.c", "x.a", "b.b", "ab", "é.b"]);
    let kind = prop::sample::select(vec!["c", "g", "s", "h", "ms", "d"]);
    let value = prop::sample::select(vec!["1", "2.5", "3:4"]);
    let tag = prop::sample::select(vec![
        "t:1",
        "t:22",
        "u:zzé",
        "u",
        "w:h",
        "w:g",
        "host:k",
        "host:agent",
    ]);
    let end = prop::sample::select(vec!["", "", "", "|@0.5", "|T1700000000"]);
    let line = (name, kind, value, prop::collection::vec(tag, 0..4), end).prop_map(
        |(name, kind, value, tags, end)| {
            let tags = if tags.is_empty() {
                String::new()
            } else {
                format!("|#{}", tags.join(","))
            };
            format!("{name}:{value}|{kind}{tags}{end}")
        },
    );
    prop::collection::vec(line, 1..12).prop_map(|lines| lines.join("\n"))
}

/// Settings of the real side.
#[derive(Clone, Copy, Debug)]
struct Setup {
    workers: usize,
    alias_bytes: usize,
}

/// Closes the open bucket of all workers, with hand-overs that interleave.
fn close(
    workers: &mut [Ingest],
    merger: &mut Merger,
    rows: &mut BTreeMap<String, String>,
    timestamped: &mut Vec<String>,
) {
    for worker in workers.iter_mut() {
        while let Some(batch) = worker.take_pass_through() {
            take(&batch, rows, timestamped);
        }
    }
    let mut turn = 0;
    while workers.iter().any(Ingest::is_draining) {
        let count = workers.len();
        if let Some(batch) = workers[turn % count].drain(5) {
            merger.push(batch, |merged| take(&merged, rows, timestamped));
        }
        turn += 1;
    }
}

/// Both sides over two buckets. Other rules come twice, the first time in the middle of a bucket whatever the number of packets.
fn compare(sets: &[Definitions], packets: &[(String, usize)], setup: Setup) {
    let mut workers: Vec<Ingest> = (0..setup.workers)
        .map(|number| worker(&sets[0], number as u16, setup.alias_bytes))
        .collect();
    let mut merger = Merger::new(setup.workers);
    let (mut rows, mut timestamped) = (BTreeMap::new(), Vec::new());
    let mut naive = Naive::default();
    let (mut bucket, mut active, mut received) = (0, 0, 0);
    for (at, (packet, worker)) in packets.iter().enumerate() {
        let due = at * sets.len() / packets.len();
        if due > active {
            active = due;
            for worker in &mut workers {
                worker.set_rules(rules(&sets[active]));
                while worker.contexts_mut().sweep_stale(3, 20) {}
            }
        }
        if bucket == 0 && at * 2 >= packets.len() && at > 0 {
            bucket = 1;
            for worker in &mut workers {
                assert!(worker.advance(START + 10));
            }
            close(&mut workers, &mut merger, &mut rows, &mut timestamped);
        }
        // Twice: the second time every message is known, if the same worker gets it.
        for again in 0..2 {
            received += 1;
            let bytes = packet.as_bytes();
            let number = (worker + again * (at % 2)) % setup.workers;
            workers[number].packet(Received {
                bytes,
                listener: 0,
                truncated: false,
                received,
            });
            naive.packet(&sets[active], bytes, bucket);
        }
    }
    for worker in &mut workers {
        assert!(worker.counts()[0].balance(), "{:?}", worker.counts()[0]);
        assert!(worker.close_now());
        assert!(setup.alias_bytes > 0 || worker.contexts().aliases() == 0);
    }
    close(&mut workers, &mut merger, &mut rows, &mut timestamped);
    merger.finish(|merged| take(&merged, &mut rows, &mut timestamped));
    assert_eq!(merger.rows_lost(), 0);
    let expected = naive.rows();
    for (key, row) in &mut rows {
        if let Some(shown) = expected.get(key).and_then(|row| row.strip_suffix(ANY))
            && row.starts_with(shown)
        {
            *row = format!("{shown}{ANY}");
        }
    }
    assert_eq!(rows, expected, "{setup:?}");
    let distinct = |keys: &[String]| keys.iter().cloned().collect::<BTreeSet<_>>();
    assert_eq!(distinct(&timestamped), distinct(&naive.timestamped));
    let filtered = workers
        .iter()
        .map(|worker| worker.counts()[0].samples_dropped[SampleDrop::Filtered]);
    assert_eq!(filtered.sum::<u64>(), naive.filtered, "{setup:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn equals_the_naive_twin(
        sets in prop::collection::vec(definitions(), 3),
        packets in prop::collection::vec((packet(), 0usize..4), 1..12),
        alias_bytes in prop_oneof![Just(0), 100usize..6000, Just(usize::MAX)],
    ) {
        for workers in [1, 4] {
            compare(&sets, &packets, Setup { workers, alias_bytes });
        }
    }
}

#[test]
fn a_dry_run_counts_its_savings_and_changes_nothing() {
    let rule = |dry_run| Definitions {
        profiles: vec![],
        rules: vec![Rule {
            name: "ids".into(),
            pattern: Pattern::Prefix("api.".into()),
            kinds: Kinds::ALL,
            effect: Effect {
                tags: TagFilter::Exclude(vec!["id".into()]),
                ..Effect::default()
            },
            last: false,
            dry_run,
        }],
        ..Definitions::default()
    };
    let mut ingest = ingest(&rule(true));
    let send = |ingest: &mut Ingest, lines: &str| {
        ingest.packet(Received {
            bytes: lines.as_bytes(),
            listener: 0,
            truncated: false,
            received: 1,
        });
    };
    for _ in 0..10 {
        send(
            &mut ingest,
            "api.a:1|c|#id:1,env:p\napi.a:1:2|d|#id:2\napi.a:1|c|#env:p,id:3\nother:1|c|#id:1\napi.b:1|g",
        );
    }
    let reports = ingest.contexts().trial_reports();
    let [report] = reports.as_slice() else {
        panic!("{reports:?}")
    };
    // Two counters become one, the distribution only loses its tag; the gauge has none to lose.
    assert_eq!((report.contexts_now, report.contexts_then), (3, 2), "{report:?}");
    assert_eq!(
        (report.samples_dropped, report.samples_changed),
        (0, 40),
        "{report:?}"
    );
    assert_eq!(report.examples.len(), 3);
    assert_eq!(ingest.contexts().len(), 5);
    assert!(ingest.counts()[0].balance());
    assert_eq!(ingest.counts()[0][IngestCounter::SamplesAggregated], 60);

    // Switched on, it does what it said.
    ingest.set_rules(rules(&rule(false)));
    while ingest.contexts_mut().sweep_stale(1, 20) {}
    assert!(ingest.contexts().trial_reports().is_empty());
    send(
        &mut ingest,
        "api.a:1|c|#id:1,env:p\napi.a:1:2|d|#id:2\napi.a:1|c|#env:p,id:3\nother:1|c|#id:1\napi.b:1|g",
    );
    assert!(ingest.contexts().trial_reports().is_empty());
    assert_eq!(ingest.contexts().rule_counts().0[0].hits, 4);
    assert_eq!(
        ingest.contexts().len(),
        5 + 2,
        "two merged ones beside those that will expire"
    );
}

#[test]
fn dropped_samples_are_counted_by_rule_on_every_path() {
    let rule = Rule {
        name: "gone".into(),
        pattern: Pattern::Wildcard("gone.*".into()),
        kinds: Kinds::ALL,
        effect: Effect {
            drop: true,
            ..Effect::default()
        },
        last: false,
        dry_run: false,
    };
    let mut ingest = ingest(&Definitions {
        profiles: vec![],
        rules: vec![rule],
        ..Definitions::default()
    });
    for _ in 0..3 {
        let bytes = b"gone.a:1:2|c\ngone.b:x|s\ngone.c:1|g|T1700000000\nhere:1|c".as_slice();
        ingest.packet(Received {
            bytes,
            listener: 0,
            truncated: false,
            received: 1,
        });
    }
    let counts = &ingest.counts()[0];
    assert!(counts.balance(), "{counts:?}");
    assert_eq!(counts.dropped_total(), 12);
    assert_eq!(ingest.contexts().rule_counts().0[0].samples_dropped, 12);
}
