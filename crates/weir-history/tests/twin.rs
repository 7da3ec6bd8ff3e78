//! Compares the history with a naive twin that keeps every point in a list and reads all of them for each query.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::num::NonZeroU32;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

use proptest::prelude::*;
use weir_context::{ContextId, ContextKey, Kind, LiveContext};
use weir_history::{Function, History, Query, SeriesKey, SeriesKind};
use weir_sketch::Sketch;

const WIDTH: i64 = 10;
const START: i64 = 1_700_000_000;

#[derive(Clone, Debug)]
struct Sent {
    time: i64,
    name: usize,
    tags: Vec<String>,
    value: f64,
}

const NAMES: [(&str, SeriesKind); 5] = [
    ("requests", SeriesKind::Counter),
    ("temperature", SeriesKind::Gauge),
    ("latency.count", SeriesKind::Rate),
    ("latency", SeriesKind::Distribution),
    ("login.time", SeriesKind::Histogram),
];

fn hash(name: usize, tags: &[String]) -> u64 {
    // Few hash values, so that different keys collide.
    (name + tags.len()) as u64 % 3
}

/// Name and tags.
type Identity = (usize, Vec<String>);

/// The contexts of a worker that forgets all but the last few, whose ids the next ones get.
struct Contexts {
    table: u32,
    slots: [(Option<Identity>, NonZeroU32); 3],
    made: u32,
}

impl Contexts {
    fn new() -> Self {
        static TABLES: AtomicU32 = AtomicU32::new(0);
        Contexts {
            table: TABLES.fetch_add(1, Ordering::Relaxed),
            slots: std::array::from_fn(|_| (None, NonZeroU32::MIN)),
            made: 0,
        }
    }

    fn key(&mut self, point: &Sent) -> ContextKey {
        let identity = Some((point.name, point.tags.clone()));
        let known = self.slots.iter().position(|slot| slot.0 == identity);
        let id = known.unwrap_or_else(|| {
            let id = self.made as usize % self.slots.len();
            self.made += 1;
            self.slots[id] = (identity, NonZeroU32::MIN.saturating_add(self.made));
            id
        });
        let live = LiveContext::new(Kind::Gauge, ContextId(id as u32));
        ContextKey::new(self.table, live, self.slots[id].1)
    }
}

fn feed(history: &mut History, sent: &[Sent], buckets: Range<i64>, salt: u64) {
    let mut contexts = Contexts::new();
    for bucket in buckets {
        let time = START + bucket * WIDTH;
        history.begin(time, WIDTH as u32);
        for point in sent.iter().filter(|point| point.time == time) {
            let (name, kind) = NAMES[point.name];
            let key = SeriesKey {
                context: Some(contexts.key(point)),
                hash: salt + hash(point.name, &point.tags),
                kind,
                name,
                suffix: "",
                host: None,
                tags: point.tags.iter().map(String::as_str),
            };
            if kind.has_sketches() {
                history.push_sketch(&key, &sketch(point.value));
            } else {
                history.push(&key, point.value);
            }
        }
        history.end();
    }
}

/// The history after a hand-over to a process with this memory bound.
fn moved(history: &History, bytes_max: usize) -> History {
    let mut next = History::new(bytes_max);
    for part in history.parts() {
        let bytes = postcard::to_extend(&part, Vec::new()).expect("bytes");
        next.adopt(postcard::from_bytes(&bytes).expect("a part"))
            .expect("it fits");
    }
    next.adopted();
    next
}

fn sketch(value: f64) -> Sketch {
    let mut sketch = Sketch::new();
    sketch.insert(value, 3);
    sketch.insert(value / 2.0, 1);
    sketch
}

/// The value under `key` of a series, the obvious way.
fn label<'a>(tags: &'a [String], key: &str) -> Option<&'a str> {
    tags.iter()
        .find_map(|tag| tag.strip_prefix(key)?.strip_prefix(':'))
}

type Columns = BTreeMap<Option<String>, Vec<Option<f64>>>;

/// The twin's answer, for functions with one obvious meaning.
fn twin(
    sent: &[Sent],
    name: usize,
    by: Option<&str>,
    function: Function,
    first: i64,
    step: i64,
    count: usize,
) -> Columns {
    let mut columns = Columns::new();
    let mut groups: BTreeMap<Option<String>, Vec<&Sent>> = BTreeMap::new();
    for point in sent.iter().filter(|point| point.name == name) {
        let group = by.and_then(|key| label(&point.tags, key)).map(str::to_owned);
        groups.entry(group).or_default().push(point);
    }
    for (group, points) in groups {
        let column = (0..count).map(|at| {
            let from = first + at as i64 * step;
            let inside: Vec<&Sent> = points
                .iter()
                .copied()
                .filter(|point| (from..from + step).contains(&point.time))
                .collect();
            (!inside.is_empty()).then(|| reduce(&inside, NAMES[name].1, function))
        });
        columns.insert(group, column.collect());
    }
    columns
}

fn reduce(points: &[&Sent], kind: SeriesKind, function: Function) -> f64 {
    if kind.has_sketches() {
        let mut whole = Sketch::new();
        points.iter().for_each(|point| whole.merge(&sketch(point.value)));
        return match function {
            Function::Sum => whole.sum(),
            Function::Count => whole.cnt() as f64,
            Function::Max => whole.max(),
            Function::Quantile(q) => whole.quantile(q),
            other => panic!("{other} is not in the test"),
        };
    }
    let values = || points.iter().map(|point| point.value);
    match function {
        Function::Sum if kind == SeriesKind::Counter => values().sum(),
        Function::Sum => {
            let mut series: BTreeMap<&[String], Vec<f64>> = BTreeMap::new();
            points
                .iter()
                .for_each(|point| series.entry(&point.tags).or_default().push(point.value));
            series
                .values()
                .map(|values| values.iter().sum::<f64>() / values.len() as f64)
                .sum()
        }
        Function::Avg => values().sum::<f64>() / points.len() as f64,
        Function::Min => values().fold(f64::INFINITY, f64::min),
        Function::Max => values().fold(f64::NEG_INFINITY, f64::max),
        Function::Count => points.len() as f64,
        other => panic!("{other} is not in the test"),
    }
}

fn near(a: Option<f64>, b: Option<f64>) -> bool {
    match (a, b) {
        (Some(a), Some(b)) => (a - b).abs() <= 1e-9 * a.abs().max(b.abs()).max(1.0),
        (a, b) => a == b,
    }
}

fn value() -> impl Strategy<Value = f64> {
    prop_oneof![
        (0i64..100).prop_map(|v| v as f64),
        (-10_000i64..10_000).prop_map(|v| v as f64 / 100.0),
        -1e6..1e6,
    ]
}

fn points(buckets: i64) -> impl Strategy<Value = Vec<Sent>> {
    let tags = proptest::sample::subsequence(
        vec!["env:a", "env:b", "host:x", "plain", "zone:1", "zone:2"],
        0..4,
    );
    let point = (0..buckets, 0..NAMES.len(), tags, value());
    proptest::collection::vec(point, 0..400).prop_map(|points| {
        let mut seen = BTreeMap::new();
        for (bucket, name, tags, value) in points {
            let tags: Vec<String> = tags.into_iter().map(str::to_owned).collect();
            // One point per series and bucket, as a flush has.
            seen.insert((bucket, name, tags), value);
        }
        let sent = seen.into_iter().map(|((bucket, name, tags), value)| Sent {
            time: START + bucket * WIDTH,
            name,
            tags,
            value,
        });
        sent.collect()
    })
}

fn functions(kind: SeriesKind) -> Vec<Function> {
    match kind {
        SeriesKind::Distribution | SeriesKind::Histogram => vec![
            Function::Sum,
            Function::Count,
            Function::Max,
            Function::Quantile(0.9),
        ],
        _ => vec![
            Function::Sum,
            Function::Avg,
            Function::Min,
            Function::Max,
            Function::Count,
        ],
    }
}

/// With any memory bound, the stored points are exact and end now, and all others are counted.
fn keep_the_newest(buckets: i64, sent: &[Sent], bytes_max: usize) {
    let mut history = History::new(bytes_max);
    feed(&mut history, sent, 0..buckets, 0);
    let figures = history.figures();
    assert!(figures.bytes <= bytes_max, "{figures:?}");
    assert_eq!(
        figures.taken,
        figures.points as u64 + figures.evicted + figures.refused,
        "{:?}",
        figures
    );
    if figures.points == 0 || figures.refused > 0 {
        return;
    }
    assert_eq!(figures.to, START + (buckets - 1) * WIDTH);
    let less = moved(&history, bytes_max / 2).figures();
    assert!(less.bytes <= bytes_max / 2, "{less:?}");
    assert_eq!(less.points as u64 + less.evicted, figures.points as u64);
    let held = sent.iter().filter(|point| point.time >= figures.from).count();
    assert_eq!(figures.points, held);
}

/// Open buckets share the memory of the ids in them: when one is evicted, the others are charged with all of it.
#[test]
fn open_buckets_that_share_their_ids_are_measured_again() {
    for series in 1..12 {
        let sent: Vec<Sent> = (0..series * 30)
            .map(|at| Sent {
                time: START + at / series * WIDTH,
                name: (at % series) as usize % NAMES.len(),
                tags: vec![format!("env:{}", at % series)],
                value: at as f64,
            })
            .collect();
        for bytes_max in (2_000..12_000).step_by(250) {
            keep_the_newest(30, &sent, bytes_max);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn any_window_answers_as_the_list_does(
        (buckets, sent) in (1i64..200).prop_flat_map(|buckets| (Just(buckets), points(buckets))),
        name in 0..NAMES.len(),
        by in proptest::option::of(prop_oneof![Just("env"), Just("zone"), Just("host")]),
        window in (0i64..2000, 1i64..2000),
        step in 1u32..70,
        moves in proptest::option::of(0i64..200),
    ) {
        let mut history = History::new(64 << 20);
        let moves = moves.map_or(buckets, |bucket| bucket.min(buckets));
        feed(&mut history, &sent, 0..moves, 0);
        if moves < buckets {
            history = moved(&history, 64 << 20);
            feed(&mut history, &sent, moves..buckets, 7);
        }
        let figures = history.figures();
        prop_assert_eq!(figures.points, sent.len());
        let series: BTreeSet<_> = sent.iter().map(|point| (point.name, &point.tags)).collect();
        prop_assert_eq!(figures.series, series.len());
        let (name_text, kind) = NAMES[name];
        for function in functions(kind) {
            let query = Query {
                metric: name_text.to_owned(),
                by: by.iter().map(|&key| key.to_owned()).collect(),
                function: Some(function),
                from: Some(START + window.0),
                to: Some(START + window.0 + window.1),
                step: Some(step),
                ..Query::default()
            };
            let is_known = sent.iter().any(|point| point.name == name);
            let answer = history.query(&query);
            prop_assert_eq!(answer.is_ok(), is_known, "{:?}", answer.err());
            let Ok(answer) = answer else { continue };
            let expected = twin(
                &sent, name, by, function, answer.times[0], i64::from(answer.step), answer.times.len(),
            );
            prop_assert_eq!(answer.groups.len(), expected.len());
            for group in &answer.groups {
                let tag = group.tags.first().and_then(|(_, value)| value.clone());
                let column = &expected[&tag];
                for (at, (found, wanted)) in group.values.iter().zip(column).enumerate() {
                    prop_assert!(
                        near(*found, *wanted),
                        "{} {} at {}: {:?} instead of {:?}", name_text, function, at, found, wanted,
                    );
                }
            }
        }
    }

    #[test]
    fn with_little_memory_the_newest_points_are_kept(
        (buckets, sent) in (1i64..150).prop_flat_map(|buckets| (Just(buckets), points(buckets))),
        bytes_max in 2_000usize..60_000,
    ) {
        keep_the_newest(buckets, &sent, bytes_max);
    }
}

#[test]
fn groups_beyond_fifty_fold_into_one_without_losing_anything() {
    let mut history = History::new(8 << 20);
    history.begin(START, 10);
    for user in 0..200 {
        let tags = [format!("user:{user}")];
        let tags = || tags.iter().map(String::as_str);
        let key = |kind, name| SeriesKey {
            context: None,
            hash: user,
            kind,
            name,
            suffix: "",
            host: None,
            tags: tags(),
        };
        history.push(&key(SeriesKind::Counter, "requests"), user as f64);
        history.push_sketch(&key(SeriesKind::Distribution, "latency"), &sketch(user as f64));
    }
    history.end();
    let ask = |metric: &str, function, by: &[&str]| {
        let query = Query {
            metric: metric.to_owned(),
            function: Some(function),
            by: by.iter().map(|&key| key.to_owned()).collect(),
            ..Query::default()
        };
        history.query(&query).expect("an answer")
    };
    for (metric, function) in [("requests", Function::Sum), ("latency", Function::Count)] {
        let groups = ask(metric, function, &["user"]);
        assert_eq!((groups.groups.len(), groups.folded), (51, 150));
        assert!(groups.groups[50].other && groups.groups[50].series == 150);
        let total: f64 = groups.groups.iter().filter_map(|group| group.values[0]).sum();
        assert_eq!(Some(total), ask(metric, function, &[]).groups[0].values[0]);
    }
    // The sketch of all series is the merge of their sketches. A quantile of all needs it.
    let mut whole = Sketch::new();
    (0..200).for_each(|user| whole.merge(&sketch(f64::from(user))));
    assert_eq!(
        ask("latency", Function::Quantile(0.99), &[]).groups[0].values[0],
        Some(whole.quantile(0.99))
    );
    let heatmap = ask("latency", Function::Heatmap, &[])
        .heatmap
        .expect("a heat map");
    assert_eq!(heatmap.counts[0].iter().sum::<u64>(), whole.cnt());
    assert!(
        heatmap
            .rows
            .windows(2)
            .all(|rows| rows[0].1 <= rows[1].0 * (1.0 + 1e-12))
    );
}

/// A histogram is one metric. The names that outputs give to its aggregates answer from its sketches, never from each other.
#[test]
fn aggregates_of_a_histogram_are_functions_of_all_its_samples() {
    let mut history = History::new(1 << 20);
    history.begin(START, 10);
    let mut whole = Sketch::new();
    for (user, times) in [("ann", 1..=90), ("ben", 1000..=1009)] {
        let tags = [format!("user:{user}")];
        let mut sketch = Sketch::new();
        times.for_each(|time| sketch.insert(f64::from(time), 1));
        whole.merge(&sketch);
        let key = SeriesKey {
            context: None,
            hash: user.len() as u64,
            kind: SeriesKind::Histogram,
            name: "login.time",
            suffix: "",
            host: None,
            tags: tags.iter().map(String::as_str),
        };
        history.push_sketch(&key, &sketch);
    }
    history.end();
    let ask = |metric: &str, function: Option<Function>| {
        history.query(&Query {
            metric: metric.to_owned(),
            // A link from before may name the kind that the aggregate had.
            kind: metric.contains("percentile").then_some(SeriesKind::Gauge),
            function,
            ..Query::default()
        })
    };
    let expected = [
        ("login.time.95percentile", whole.quantile(0.95)),
        ("login.time.median", whole.quantile(0.5)),
        ("login.time.max", 1009.0),
        ("login.time.min", 1.0),
        ("login.time.avg", whole.avg()),
        ("login.time.sum", whole.sum()),
        ("login.time.count", 10.0),
    ];
    for (metric, value) in expected {
        let answer = ask(metric, None).expect("an answer");
        assert_eq!(
            (answer.metric.as_str(), answer.kind),
            (metric, SeriesKind::Histogram)
        );
        assert_eq!(answer.groups[0].values, [Some(value)], "{metric}");
        assert_eq!(history.tags(metric).expect("tags")[0].key, "user");
    }
    assert!(
        whole.quantile(0.95) > 900.0,
        "a mean of percentiles would be half of it"
    );
    let mean = ask("login.time.95percentile", Some(Function::Avg)).expect_err("an error");
    assert_eq!(
        mean.to_string(),
        "\"login.time.95percentile\" is p95 of \"login.time\": for other functions ask for \"login.time\""
    );
    for unknown in ["login.time.p95", "login.max", "login.time.max.max"] {
        assert!(ask(unknown, None).is_err(), "{unknown}");
    }
    let request = weir_history::MetricsRequest {
        pattern: String::new(),
        names: Vec::new(),
        kinds: Vec::new(),
        samples: HashMap::new(),
        sort: weir_history::MetricSort::Name,
        offset: 0,
        limit: 10,
        details: false,
    };
    assert_eq!(history.metrics(&request).total, 1, "it is one row of the list");
}

#[test]
fn the_list_has_one_kind_of_many_and_an_order_by_samples() {
    let mut history = History::new(1 << 20);
    history.begin(START, 10);
    let kinds = [
        SeriesKind::Counter,
        SeriesKind::Gauge,
        SeriesKind::Distribution,
        SeriesKind::Histogram,
        SeriesKind::Set,
    ];
    // 100 names, of which a few have two kinds.
    for at in 0..110_u64 {
        let key = SeriesKey {
            context: None,
            hash: at,
            kind: kinds[at as usize % 3 + at as usize / 60],
            name: &format!("name.{:03}", at % 100),
            suffix: "",
            host: None,
            tags: [].into_iter(),
        };
        history.push(&key, 1.0);
    }
    history.end();
    let request = weir_history::MetricsRequest {
        pattern: "name".to_owned(),
        names: Vec::new(),
        kinds: Vec::new(),
        samples: HashMap::from([("name.007".to_owned(), 0.5), ("name.050".to_owned(), 20.0)]),
        sort: weir_history::MetricSort::Samples,
        offset: 0,
        limit: 1000,
        details: false,
    };
    let all = history.metrics(&request);
    assert_eq!((all.total, all.metrics.len()), (110, 110));
    let first: Vec<&str> = all.metrics.iter().map(|metric| metric.name.as_str()).collect();
    assert_eq!(first[..4], ["name.050", "name.007", "name.007", "name.000"]);
    assert_eq!(all.metrics[0].samples_per_second, Some(20.0));
    assert_eq!(all.metrics[3].samples_per_second, None);
    for wanted in [
        vec![SeriesKind::Gauge],
        vec![SeriesKind::Histogram, SeriesKind::Distribution],
    ] {
        let found = history.metrics(&weir_history::MetricsRequest {
            kinds: wanted.clone(),
            ..request.clone()
        });
        let expected = all.metrics.iter().filter(|metric| wanted.contains(&metric.kind));
        assert!(found.metrics.iter().eq(expected), "{wanted:?}");
        assert_eq!(
            found.total,
            wanted.iter().map(|kind| all.kinds[kind]).sum::<usize>()
        );
        assert_eq!(found.kinds, all.kinds, "the counts are those of every kind");
    }
}

#[test]
fn filters_take_patterns_and_exclusions() {
    let mut history = History::new(1 << 20);
    history.begin(START, 10);
    let all = [
        "env:prod,status:200",
        "env:prod,status:500",
        "env:dev,status:503",
        "status:200",
    ];
    for (at, tags) in all.iter().enumerate() {
        let key = SeriesKey {
            context: None,
            hash: at as u64,
            kind: SeriesKind::Counter,
            name: "requests",
            suffix: "",
            host: None,
            tags: tags.split(','),
        };
        history.push(&key, f64::from(1 << at));
    }
    history.end();
    let ask = |tags: &[&str], without: &[&str]| {
        let pairs = |tags: &[&str]| {
            let pair = |tag: &&str| {
                let (key, value) = tag.split_once(':').expect("key and value");
                (key.to_owned(), value.to_owned())
            };
            tags.iter().map(pair).collect::<Vec<_>>()
        };
        let answer = history.query(&Query {
            metric: "requests".to_owned(),
            function: Some(Function::Sum),
            tags: pairs(tags),
            without: pairs(without),
            ..Query::default()
        });
        answer
            .expect("an answer")
            .groups
            .first()
            .and_then(|group| group.values[0])
    };
    assert_eq!(ask(&["status:5*"], &[]), Some(6.0));
    assert_eq!(ask(&["status:5*", "status:200"], &[]), Some(15.0));
    assert_eq!(ask(&[], &["env:dev"]), Some(11.0));
    assert_eq!(ask(&["status:?00"], &["env:p*"]), Some(8.0));
    assert_eq!(ask(&["env:*"], &["status:*"]), None);
}

#[test]
fn buckets_whose_end_was_lost_are_closed_all_the_same() {
    const BUCKETS: i64 = 100;
    let mut history = History::new(1 << 20);
    for bucket in 0..BUCKETS {
        history.begin(START + bucket * WIDTH, WIDTH as u32);
        let key = SeriesKey {
            context: None,
            hash: 0,
            kind: SeriesKind::Counter,
            name: "c",
            suffix: "",
            host: None,
            tags: [].into_iter(),
        };
        history.push(&key, 1.0);
    }
    history.end();
    let query = Query {
        metric: "c".to_owned(),
        function: Some(Function::Sum),
        from: Some(START),
        to: Some(START + BUCKETS * WIDTH),
        step: Some(WIDTH as u32),
        ..Query::default()
    };
    let points = history.query(&query).expect("points");
    let values: Vec<f64> = points.groups[0].values.iter().flatten().copied().collect();
    assert_eq!(values, vec![1.0; BUCKETS as usize]);
}

/// More than three buckets back, the agent's buckets follow the clock.
#[test]
fn a_query_without_a_range_has_the_buckets_of_a_clock_that_was_set_back() {
    for last in 1..100 {
        let mut history = History::new(1 << 20);
        for time in (1000..1040).chain(500..500 + last) {
            history.begin(time, 1);
            let key = SeriesKey {
                context: None,
                hash: 7,
                kind: SeriesKind::Counter,
                name: "requests",
                suffix: "",
                host: None,
                tags: std::iter::empty(),
            };
            history.push(&key, 1.0);
            history.end();
        }
        let query = Query {
            metric: "requests".into(),
            function: Some(Function::Sum),
            ..Query::default()
        };
        let found = history.query(&query).unwrap();
        let sum: f64 = found.groups[0].values.iter().flatten().sum();
        assert_eq!(sum, 40.0 + last as f64);
        assert_eq!((found.held_from, history.figures().to), (500, 499 + last));
    }
}

#[test]
fn errors_name_the_allowed_values() {
    let mut history = History::new(1 << 20);
    history.begin(START, 10);
    let key = SeriesKey {
        context: None,
        hash: 0,
        kind: SeriesKind::Gauge,
        name: "g",
        suffix: "",
        host: None,
        tags: [].into_iter(),
    };
    history.push(&key, 1.0);
    history.end();
    let ask = |query| history.query(&query).expect_err("an error").to_string();
    let metric = || "g".to_owned();
    assert_eq!(
        ask(Query {
            metric: "x".to_owned(),
            ..Query::default()
        }),
        "no metric named \"x\" is in the history"
    );
    let p99 = Query {
        metric: metric(),
        function: Some(Function::Quantile(0.99)),
        ..Query::default()
    };
    assert_eq!(ask(p99), "p99 is not available for a gauge");
    let far = Query {
        metric: metric(),
        to: Some(START * 2),
        step: Some(10),
        ..Query::default()
    };
    assert!(ask(far).contains("at most 4096 steps"));
    assert!(
        "p101"
            .parse::<Function>()
            .is_err_and(|error| error.to_string().contains("p99.9"))
    );
    assert_eq!(
        "p99.9".parse::<Function>().map(|function| function.to_string()),
        Ok("p99.9".to_owned())
    );
}
