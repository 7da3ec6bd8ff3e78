//! The comparison of what arrived with what a load sent, context by context.

use super::record::{Data, Kind, Point, Record};
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use weir_load::manifest::{ContextTruth, Manifest};

/// What is left out of a comparison, and how exact sums must be.
#[derive(Clone, Debug)]
pub struct Rules {
    /// Metrics the agent sends about itself.
    pub ignore_prefixes: Vec<String>,
    /// Keys of tags the agent adds.
    pub ignore_tags: Vec<String>,
    /// Allowed relative error of sums; counts, extremes and last values must be equal.
    pub tolerance: f64,
}

impl Rules {
    /// Whether a metric or a check is what the agent says of itself.
    fn ignores(&self, name: &str) -> bool {
        self.ignore_prefixes.iter().any(|prefix| name.starts_with(prefix))
    }
}

/// Metric and sorted tags.
type Key = (String, Vec<String>);

/// What arrived, folded by context as it came.
#[derive(Default)]
pub struct Observed {
    series: HashMap<Key, Series>,
    events: BTreeMap<String, u64>,
    checks: BTreeMap<String, u64>,
    /// The format folds names and labels to what Prometheus allows.
    folded: bool,
    /// The format has no events and checks.
    plain: bool,
    /// Messages passed on as they were: each says its type.
    relayed: bool,
}

/// All points of one context.
#[derive(Default)]
struct Series {
    /// Sum of rates (times their interval) and counts.
    total: Option<f64>,
    /// Last value of a sum since the start; the sum of the last values of all hosts.
    cumulative: BTreeMap<String, (f64, f64)>,
    gauge: Option<Gauge>,
    distribution: Option<Distribution>,
    /// Distributions since the start, by host: time and value of the latest.
    cumulative_distribution: BTreeMap<String, (f64, Distribution)>,
    /// Members of relayed sets.
    members: BTreeSet<String>,
    /// Sum of value times count, for the averages of a histogram, filled when comparing.
    points: Vec<(Option<f64>, f64)>,
}

struct Gauge {
    last_ts: f64,
    last: f64,
    highest: f64,
    sum: f64,
}

#[derive(Clone, Debug)]
struct Distribution {
    count: f64,
    sum: Option<f64>,
    min: Option<f64>,
    max: Option<f64>,
}

impl Distribution {
    fn merge(&mut self, other: &Distribution) {
        let both = |a: Option<f64>, b: Option<f64>, f: fn(f64, f64) -> f64| Some(f(a?, b?));
        self.count += other.count;
        self.sum = both(self.sum, other.sum, |a, b| a + b);
        self.min = both(self.min, other.min, f64::min);
        self.max = both(self.max, other.max, f64::max);
    }
}

/// One thing that is not as it should be.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Difference {
    pub metric: String,
    pub tags: Vec<String>,
    pub what: String,
    pub expected: Value,
    pub got: Value,
}

/// The verdict.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    pub equal: bool,
    /// Contexts of the manifest.
    pub contexts: usize,
    pub differences_total: usize,
    /// The first of them.
    pub differences: Vec<Difference>,
}

/// Characters Prometheus does not allow become underscores; `fold` is what two names have in common when both may be
/// written alike.
fn fold(name: &str) -> String {
    let mut folded: String = name
        .chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() || c == '_' {
                c
            } else {
                '_'
            }
        })
        .collect();
    if folded.starts_with(|c: char| c.is_ascii_digit()) {
        folded.insert(0, '_');
    }
    folded
}

/// A relayed message says its type, so contexts that differ in nothing else stay apart.
fn add_type(key: &mut Key, statsd_type: &str) {
    key.0.push('|');
    key.0.push_str(statsd_type);
}

impl Observed {
    pub fn new(sink: &str) -> Observed {
        Observed {
            folded: matches!(sink, "scrape" | "remote-write"),
            plain: !matches!(sink, "datadog" | "statsd"),
            relayed: sink == "statsd",
            ..Observed::default()
        }
    }

    /// Whether a kind of sink yields points this comparison understands.
    pub fn understands(sink: &str) -> bool {
        matches!(
            sink,
            "datadog" | "statsd" | "otlp-http" | "otlp-grpc" | "scrape" | "remote-write"
        )
    }

    fn key(&self, rules: &Rules, metric: &str, tags: &[String]) -> Key {
        let mut tags: Vec<String> = tags
            .iter()
            .filter(|tag| {
                let key = tag.split(':').next().unwrap_or_default();
                !rules.ignore_tags.iter().any(|ignored| ignored == key)
            })
            .map(|tag| if self.folded { fold_tag(tag) } else { tag.clone() })
            .collect();
        tags.sort();
        tags.dedup();
        if self.folded {
            tags = join_repeated(tags);
        }
        let metric = if self.folded {
            fold(metric)
        } else {
            metric.to_owned()
        };
        (metric, tags)
    }

    pub fn add(&mut self, rules: &Rules, record: &Record) {
        match record {
            Record::Point(point) => self.add_point(rules, point),
            Record::Event(event) => {
                let title = event.get("msg_title").and_then(Value::as_str).unwrap_or_default();
                *self.events.entry(title.to_owned()).or_default() += 1;
            }
            Record::Check(check) => {
                let name = check.get("check").and_then(Value::as_str).unwrap_or_default();
                if rules.ignores(name) {
                    return;
                }
                let status = check.get("status").and_then(Value::as_u64).unwrap_or_default();
                *self.checks.entry(format!("{name}|{status}")).or_default() += 1;
            }
            Record::Log(_) | Record::Span(_) => {}
        }
    }

    fn add_point(&mut self, rules: &Rules, point: &Point) {
        if rules.ignores(&point.metric) {
            return;
        }
        let mut key = self.key(rules, &point.metric, &point.tags);
        if let Data::Sample { statsd_type, .. } = &point.data {
            add_type(&mut key, statsd_type);
        }
        let series = self.series.entry(key).or_default();
        let ts = point.ts.unwrap_or(point.received_ns as f64 / 1e9);
        match (&point.data, point.kind) {
            (Data::Number { value }, Kind::Rate) => {
                let over = point.interval.unwrap_or(1) as f64;
                *series.total.get_or_insert(0.0) += value * over;
                series.points.push((point.ts, value * over));
            }
            (Data::Number { value }, Kind::Count) => *series.total.get_or_insert(0.0) += value,
            (Data::Number { value }, Kind::Cumulative) => {
                let latest = series
                    .cumulative
                    .entry(point.host.clone())
                    .or_insert((ts, *value));
                if ts >= latest.0 {
                    *latest = (ts, *value);
                }
            }
            (Data::Number { value }, _) => {
                series.gauge(ts, *value);
                series.points.push((point.ts, *value));
            }
            (
                Data::Sketch {
                    cnt, min, max, sum, ..
                },
                _,
            ) => series.distribution(Distribution {
                count: *cnt as f64,
                sum: Some(*sum),
                min: Some(*min),
                max: Some(*max),
            }),
            (
                Data::Distribution {
                    count, sum, min, max, ..
                },
                kind,
            ) => {
                let distribution = Distribution {
                    count: *count,
                    sum: *sum,
                    min: *min,
                    max: *max,
                };
                if kind == Kind::CumulativeDistribution {
                    let latest = series
                        .cumulative_distribution
                        .entry(point.host.clone())
                        .or_insert((ts, distribution.clone()));
                    if ts >= latest.0 {
                        *latest = (ts, distribution);
                    }
                } else {
                    series.distribution(distribution);
                }
            }
            (
                Data::Sample {
                    statsd_type,
                    values,
                    rate,
                },
                _,
            ) => {
                let weight = match rate.parse::<f64>() {
                    Ok(rate) if rate > 0.0 && rate <= 1.0 => 1.0 / rate,
                    _ => 1.0,
                };
                if statsd_type == "s" {
                    series.members.extend(values.iter().cloned());
                    return;
                }
                for value in values.iter().filter_map(|value| value.parse::<f64>().ok()) {
                    match statsd_type.as_str() {
                        "c" | "m" => *series.total.get_or_insert(0.0) += value * weight,
                        // Samples have no time: the last to arrive is the last.
                        "g" => series.gauge(point.received_ns as f64, value),
                        _ => series.distribution(Distribution {
                            count: weight,
                            sum: Some(value * weight),
                            min: Some(value),
                            max: Some(value),
                        }),
                    }
                }
            }
        }
    }

    /// Compares with the truth. Fails when the manifest has no table of contexts.
    pub fn compare(&self, rules: &Rules, manifest: &Manifest, list: usize) -> Result<Comparison, String> {
        let Some(contexts) = &manifest.contexts else {
            return Err("the manifest has no table of contexts; the load writes it with --contexts".into());
        };
        let mut differences = Vec::new();
        // Contexts an agent cannot or need not tell apart: same name, tags and type, another container.
        let mut truths: BTreeMap<(Key, &str), ContextTruth> = BTreeMap::new();
        for truth in contexts {
            let mut key = self.key(rules, &truth.name, &truth.tags);
            if self.relayed {
                add_type(&mut key, &truth.kind);
            }
            let key = (key, truth.kind.as_str());
            match truths.get_mut(&key) {
                None => drop(truths.insert(key, truth.clone())),
                Some(merged) => merge_truths(merged, truth),
            }
        }
        let mut expected: BTreeSet<Key> = BTreeSet::new();
        for ((key, kind), truth) in &truths {
            let mut check = Check {
                rules,
                key,
                // A gauge and a set of one name and tags arrive as one series of gauges.
                mixed: truths.contains_key(&(key.clone(), "g")) && truths.contains_key(&(key.clone(), "s")),
                differences: &mut differences,
            };
            self.compare_context(&mut check, kind, truth, &mut expected);
        }
        let mut unexpected: Vec<&Key> = self
            .series
            .keys()
            .filter(|key| !expected.contains(*key))
            .collect();
        unexpected.sort();
        for key in unexpected {
            differences.push(Difference {
                metric: key.0.clone(),
                tags: key.1.clone(),
                what: "never sent".into(),
                expected: Value::Null,
                got: "points".into(),
            });
        }
        if !self.plain {
            compare_counts("events", manifest.events.as_ref(), &self.events, &mut differences);
            compare_counts("checks", manifest.checks.as_ref(), &self.checks, &mut differences);
        }
        let differences_total = differences.len();
        differences.truncate(list);
        Ok(Comparison {
            equal: differences_total == 0,
            contexts: contexts.len(),
            differences_total,
            differences,
        })
    }

    fn compare_context(
        &self,
        check: &mut Check,
        kind: &str,
        truth: &ContextTruth,
        expected: &mut BTreeSet<Key>,
    ) {
        let (name, tags) = check.key.clone();
        // The first of these names that has the wanted kind of value.
        let mut find = |suffixes: &[&str], has: fn(&Series) -> bool| -> Option<&Series> {
            let candidates = suffixes
                .iter()
                .map(|suffix| (format!("{name}{suffix}"), tags.clone()));
            let key = candidates
                .into_iter()
                .find(|key| self.series.get(key).is_some_and(has))?;
            let series = self.series.get(&key);
            expected.insert(key);
            series
        };
        match kind {
            "c" | "m" => {
                let suffixes: &[&str] = if self.folded { &["_total", ""] } else { &[""] };
                let series = find(suffixes, |s| s.total.is_some() || !s.cumulative.is_empty());
                let got = series
                    .map(|s| s.total.unwrap_or(0.0) + s.cumulative.values().map(|last| last.1).sum::<f64>());
                let scale = scale_of(truth);
                check.near("sum", truth.weighted_sum.to_f64(), got, scale);
            }
            "g" => {
                let series = find(&[""], |s| s.gauge.is_some());
                let got = series.and_then(|s| s.gauge.as_ref()).map(|gauge| gauge.last);
                let allowed: Vec<f64> = truth.last.iter().map(|last| last.to_f64()).collect();
                let among = |series: &Series| series.points.iter().any(|point| allowed.contains(&point.1));
                let is_last = got.is_some_and(|got| allowed.contains(&got));
                let is_there = is_last || check.mixed && series.is_some_and(among);
                if !is_there {
                    check.differ("last value", json!(allowed), json!(got));
                }
            }
            "s" => {
                let members = truth.members.len() as f64;
                let Some(series) = find(&[""], |s| s.gauge.is_some() || !s.members.is_empty()) else {
                    check.differ("members", json!(members), Value::Null);
                    return;
                };
                match &series.gauge {
                    Some(_) if check.mixed => {
                        let is_there = series
                            .points
                            .iter()
                            .any(|point| point.1 > 0.0 && point.1 <= members);
                        if !is_there {
                            check.differ("members", json!(members), json!("no point that could be it"));
                        }
                    }
                    // The members of several buckets may overlap.
                    Some(gauge) if gauge.highest > members || gauge.sum < members => {
                        check.differ(
                            "members",
                            json!(members),
                            json!({"highest": gauge.highest, "sum": gauge.sum}),
                        );
                    }
                    Some(_) => {}
                    None if !series.members.iter().eq(&truth.members) => {
                        check.differ("members", json!(truth.members), json!(series.members));
                    }
                    None => {}
                }
            }
            _ => {
                let whole = find(&[""], |s| {
                    s.distribution.is_some() || !s.cumulative_distribution.is_empty()
                });
                if let Some(series) = whole {
                    let mut got = series.distribution.clone();
                    for (_, latest) in series.cumulative_distribution.values() {
                        match &mut got {
                            None => got = Some(latest.clone()),
                            Some(got) => got.merge(latest),
                        }
                    }
                    check.distribution(truth, &got.expect("found by having one"));
                } else if kind == "d" || self.folded {
                    check.differ("count", json!(truth.weight), Value::Null);
                } else {
                    self.compare_aggregates(check, truth, expected);
                }
            }
        }
    }

    /// A histogram that arrives as series of its own: `.count` and `.max` at least, others where they are sent.
    fn compare_aggregates(&self, check: &mut Check, truth: &ContextTruth, expected: &mut BTreeSet<Key>) {
        let (name, tags) = check.key.clone();
        for suffix in ["count", "max", "min", "sum", "avg", "median"] {
            expected.insert((format!("{name}.{suffix}"), tags.clone()));
        }
        for series in self.series.keys() {
            let percentile = series
                .0
                .strip_prefix(name.as_str())
                .and_then(|rest| rest.strip_prefix('.'))
                .and_then(|rest| rest.strip_suffix("percentile"))
                .is_some_and(|number| number.bytes().all(|b| b.is_ascii_digit()));
            if percentile && series.1 == tags {
                expected.insert(series.clone());
            }
        }
        let series = |suffix: &str| self.series.get(&(format!("{name}.{suffix}"), tags.clone()));
        let count = series("count");
        check.near("count", truth.weight as f64, count.and_then(|s| s.total), 0.0);
        let gauge = |suffix: &str| series(suffix).and_then(|s| s.gauge.as_ref().map(|gauge| (gauge, s)));
        match (gauge("max"), truth.max) {
            (Some((max, _)), Some(expected)) => check.same("max", expected.to_f64(), Some(max.highest)),
            (None, Some(expected)) => check.same("max", expected.to_f64(), None),
            _ => {}
        }
        if let (Some((_, min)), Some(expected)) = (gauge("min"), truth.min) {
            let lowest = min
                .points
                .iter()
                .map(|point| point.1)
                .fold(f64::INFINITY, f64::min);
            check.same("min", expected.to_f64(), Some(lowest));
        }
        if let Some((sum, _)) = gauge("sum") {
            check.near("sum", truth.weighted_sum.to_f64(), Some(sum.sum), scale_of(truth));
        } else if let (Some((_, avg)), Some(count)) = (gauge("avg"), count) {
            let counts: HashMap<u64, f64> = count
                .points
                .iter()
                .filter_map(|&(ts, count)| Some((ts?.to_bits(), count)))
                .collect();
            let sum: f64 = avg
                .points
                .iter()
                .filter_map(|&(ts, avg)| Some(avg * counts.get(&ts?.to_bits())?))
                .sum();
            check.near(
                "average times count",
                truth.weighted_sum.to_f64(),
                Some(sum),
                scale_of(truth),
            );
        }
    }
}

/// The size of the numbers a sum was made of, to which its rounding is relative.
fn scale_of(truth: &ContextTruth) -> f64 {
    let largest = [truth.min, truth.max]
        .into_iter()
        .flatten()
        .map(|value| value.to_f64().abs())
        .fold(0.0, f64::max);
    largest * truth.weight as f64
}

fn fold_tag(tag: &str) -> String {
    let (key, value) = tag.split_once(':').unwrap_or((tag, "true"));
    let key = fold(key);
    // Names that Prometheus keeps for itself lose an underscore.
    let key = match key.strip_prefix("__") {
        Some(rest) => format!("_{}", rest.trim_start_matches('_')),
        None => key,
    };
    format!("{key}:{value}")
}

/// A label cannot repeat: the values of a repeated key, sorted, are joined with commas.
fn join_repeated(tags: Vec<String>) -> Vec<String> {
    let mut joined: BTreeMap<String, String> = BTreeMap::new();
    for tag in tags {
        let (key, value) = tag.split_once(':').unwrap_or((&tag, ""));
        joined
            .entry(key.to_owned())
            .and_modify(|values| {
                values.push(',');
                values.push_str(value);
            })
            .or_insert_with(|| value.to_owned());
    }
    let mut tags: Vec<String> = joined
        .into_iter()
        .map(|(key, value)| format!("{key}:{value}"))
        .collect();
    tags.sort();
    tags
}

fn merge_truths(into: &mut ContextTruth, other: &ContextTruth) {
    into.messages += other.messages;
    into.samples += other.samples;
    into.weight += other.weight;
    into.sum.micros += other.sum.micros;
    into.weighted_sum.micros += other.weighted_sum.micros;
    into.min = into.min.into_iter().chain(other.min).min();
    into.max = into.max.into_iter().chain(other.max).max();
    into.last.extend_from_slice(&other.last);
    into.members.extend_from_slice(&other.members);
    into.members.sort();
    into.members.dedup();
}

fn compare_counts(
    what: &str,
    truth: Option<&BTreeMap<String, u64>>,
    observed: &BTreeMap<String, u64>,
    differences: &mut Vec<Difference>,
) {
    let Some(truth) = truth else { return };
    let names: BTreeSet<&String> = truth.keys().chain(observed.keys()).collect();
    for name in names {
        let (expected, got) = (truth.get(name).copied(), observed.get(name).copied());
        if expected.unwrap_or(0) != got.unwrap_or(0) {
            differences.push(Difference {
                metric: name.clone(),
                tags: Vec::new(),
                what: what.into(),
                expected: json!(expected.unwrap_or(0)),
                got: json!(got.unwrap_or(0)),
            });
        }
    }
}

impl Series {
    fn gauge(&mut self, ts: f64, value: f64) {
        match &mut self.gauge {
            None => {
                self.gauge = Some(Gauge {
                    last_ts: ts,
                    last: value,
                    highest: value,
                    sum: value,
                });
            }
            Some(gauge) => {
                if ts >= gauge.last_ts {
                    (gauge.last_ts, gauge.last) = (ts, value);
                }
                gauge.highest = gauge.highest.max(value);
                gauge.sum += value;
            }
        }
    }

    fn distribution(&mut self, distribution: Distribution) {
        match &mut self.distribution {
            None => self.distribution = Some(distribution),
            Some(merged) => merged.merge(&distribution),
        }
    }
}

/// Collects the differences of one context.
struct Check<'a> {
    rules: &'a Rules,
    key: &'a Key,
    mixed: bool,
    differences: &'a mut Vec<Difference>,
}

impl Check<'_> {
    fn differ(&mut self, what: &str, expected: Value, got: Value) {
        self.differences.push(Difference {
            metric: self.key.0.clone(),
            tags: self.key.1.clone(),
            what: what.to_owned(),
            expected,
            got,
        });
    }

    fn same(&mut self, what: &str, expected: f64, got: Option<f64>) {
        if got != Some(expected) {
            self.differ(what, json!(expected), json!(got));
        }
    }

    fn near(&mut self, what: &str, expected: f64, got: Option<f64>, scale: f64) {
        let allowed = self.rules.tolerance * expected.abs().max(scale);
        if !got.is_some_and(|got| (got - expected).abs() <= allowed) {
            self.differ(what, json!(expected), json!(got));
        }
    }

    fn distribution(&mut self, truth: &ContextTruth, got: &Distribution) {
        // Weights are whole numbers; adding them up in floating point may still round.
        self.near("count", truth.weight as f64, Some(got.count), 0.0);
        if got.sum.is_some() {
            self.near("sum", truth.weighted_sum.to_f64(), got.sum, scale_of(truth));
        }
        for (what, expected, got) in [("min", truth.min, got.min), ("max", truth.max, got.max)] {
            if let (Some(expected), Some(_)) = (expected, got) {
                self.same(what, expected.to_f64(), got);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules() -> Rules {
        Rules {
            ignore_prefixes: vec!["agent.".into()],
            ignore_tags: vec!["pod".into()],
            tolerance: 1e-9,
        }
    }

    fn truth(kind: &str, name: &str) -> ContextTruth {
        ContextTruth {
            name: name.into(),
            kind: kind.into(),
            tags: vec!["a:b".into(), "c".into()],
            messages: 2,
            samples: 2,
            weight: 20,
            sum: "3".parse().unwrap(),
            weighted_sum: "30".parse().unwrap(),
            min: Some("1".parse().unwrap()),
            max: Some("2".parse().unwrap()),
            last: vec!["2".parse().unwrap()],
            members: vec!["x".into(), "y".into()],
            ..ContextTruth::default()
        }
    }

    fn manifest(kinds: &[&str]) -> Manifest {
        Manifest {
            contexts: Some(
                kinds
                    .iter()
                    .map(|kind| truth(kind, &format!("m.{kind}")))
                    .collect(),
            ),
            events: Some(BTreeMap::from([("up".to_owned(), 1)])),
            checks: Some(BTreeMap::from([("db|0".to_owned(), 1)])),
            ..Manifest::default()
        }
    }

    fn number(metric: &str, kind: Kind, ts: f64, value: f64) -> Point {
        Point {
            metric: metric.into(),
            kind,
            ts: Some(ts),
            interval: Some(10),
            tags: vec!["c".into(), "a:b".into(), "a:b".into(), "pod:1".into()],
            data: Data::Number { value },
            ..Point::default()
        }
    }

    fn sketch(metric: &str, cnt: i64, sum: f64, min: f64, max: f64) -> Point {
        Point {
            data: Data::Sketch {
                cnt,
                min,
                max,
                avg: sum / cnt as f64,
                sum,
                k: vec![1],
                n: vec![cnt as u32],
            },
            kind: Kind::Sketch,
            ..number(metric, Kind::Sketch, 10.0, 0.0)
        }
    }

    /// What a correct agent sends for `manifest(&["c", "g", "s", "d", "h"])`, in two buckets.
    fn faithful() -> Vec<Point> {
        vec![
            number("m.c", Kind::Rate, 10.0, 1.0),
            number("m.c", Kind::Rate, 20.0, 2.0),
            number("m.g", Kind::Gauge, 20.0, 2.0),
            number("m.g", Kind::Gauge, 10.0, 1.0),
            number("m.s", Kind::Gauge, 10.0, 1.0),
            number("m.s", Kind::Gauge, 20.0, 1.0),
            sketch("m.d", 10, 10.0, 1.0, 1.0),
            sketch("m.d", 10, 20.0, 2.0, 2.0),
            number("m.h.count", Kind::Rate, 10.0, 1.0),
            number("m.h.count", Kind::Rate, 20.0, 1.0),
            number("m.h.avg", Kind::Gauge, 10.0, 1.0),
            number("m.h.avg", Kind::Gauge, 20.0, 2.0),
            number("m.h.max", Kind::Gauge, 10.0, 1.0),
            number("m.h.max", Kind::Gauge, 20.0, 2.0),
            number("m.h.95percentile", Kind::Gauge, 20.0, 2.0),
            number("agent.self", Kind::Gauge, 20.0, 1.0),
        ]
    }

    fn compare(sink: &str, manifest: &Manifest, points: &[Point]) -> Comparison {
        let mut observed = Observed::new(sink);
        for point in points {
            observed.add(&rules(), &Record::Point(point.clone()));
        }
        observed.add(
            &rules(),
            &Record::Event(BTreeMap::from([("msg_title".into(), "up".into())])),
        );
        // Of the agent itself: left out.
        for name in ["db", "agent.up"] {
            let check = BTreeMap::from([("check".into(), name.into()), ("status".into(), 0.into())]);
            observed.add(&rules(), &Record::Check(check));
        }
        observed.compare(&rules(), manifest, 100).unwrap()
    }

    #[test]
    fn a_faithful_agent_is_equal_and_every_single_change_is_seen() {
        let manifest = manifest(&["c", "g", "s", "d", "h"]);
        let comparison = compare("datadog", &manifest, &faithful());
        assert!(comparison.equal, "{comparison:#?}");
        // Take away, in turn, each point that carries something no other says.
        let redundant = ["m.h.avg", "m.h.95percentile", "agent.self"];
        for index in 0..faithful().len() {
            let mut points = faithful();
            let removed = points.remove(index);
            let gauge_that_is_not_last = removed.metric == "m.g" && removed.ts == Some(10.0);
            let not_highest = removed.metric == "m.h.max" && removed.ts == Some(10.0);
            let comparison = compare("datadog", &manifest, &points);
            if gauge_that_is_not_last || not_highest || redundant[1..].contains(&removed.metric.as_str()) {
                assert!(comparison.equal, "{removed:?}: {comparison:#?}");
            } else {
                assert!(!comparison.equal, "{removed:?} was not missed");
            }
        }
        // Change each number.
        for index in 0..faithful().len() - 1 {
            let mut points = faithful();
            match &mut points[index].data {
                Data::Number { value } => *value += 3.0,
                Data::Sketch { sum, .. } => *sum += 0.001,
                _ => unreachable!(),
            }
            if points[index].metric == "m.h.95percentile"
                || (points[index].metric == "m.g" && points[index].ts == Some(10.0))
            {
                continue;
            }
            let comparison = compare("datadog", &manifest, &points);
            assert!(!comparison.equal, "{:?} was not noticed", points[index]);
        }
    }

    #[test]
    fn contexts_that_were_never_sent_and_lost_events_are_differences() {
        let manifest = manifest(&["c"]);
        let points = [
            number("m.c", Kind::Count, 10.0, 30.0),
            number("other", Kind::Count, 10.0, 1.0),
        ];
        let comparison = compare("datadog", &manifest, &points);
        assert_eq!(comparison.differences.len(), 1);
        assert_eq!(comparison.differences[0].what, "never sent");

        let observed = Observed::new("datadog");
        let comparison = observed.compare(&rules(), &manifest, 100).unwrap();
        let what: Vec<&str> = comparison.differences.iter().map(|d| d.what.as_str()).collect();
        assert_eq!(what, ["sum", "events", "checks"]);
        assert!(observed.compare(&rules(), &Manifest::default(), 1).is_err());
    }

    #[test]
    fn a_gauge_and_a_set_of_one_name_are_told_apart_by_value_only() {
        let mut manifest = manifest(&["g"]);
        let mut set = truth("s", "m.g");
        set.members = vec!["x".into()];
        manifest.contexts.as_mut().unwrap().push(set);
        let points = [
            number("m.g", Kind::Gauge, 10.0, 2.0),
            number("m.g", Kind::Gauge, 10.0, 1.0),
        ];
        assert!(compare("datadog", &manifest, &points).equal);
        assert!(!compare("datadog", &manifest, &points[..1]).equal);
        assert!(!compare("datadog", &manifest, &points[1..]).equal);
    }

    #[test]
    fn prometheus_names_are_folded_and_the_latest_sum_counts() {
        let manifest = manifest(&["c", "d"]);
        let label = |mut point: Point| {
            point.tags = vec!["a:b".into(), "c:true".into()];
            point.interval = None;
            point
        };
        let distribution = |ts: f64, count: f64, sum: f64| {
            label(Point {
                data: Data::Distribution {
                    count,
                    sum: Some(sum),
                    min: None,
                    max: None,
                    buckets: Vec::new(),
                    quantiles: Vec::new(),
                },
                ..number("m_d", Kind::CumulativeDistribution, ts, 0.0)
            })
        };
        let points = [
            label(number("m_c_total", Kind::Cumulative, 20.0, 30.0)),
            label(number("m_c_total", Kind::Cumulative, 10.0, 10.0)),
            distribution(10.0, 10.0, 10.0),
            distribution(20.0, 20.0, 30.0),
        ];
        let comparison = compare("remote-write", &manifest, &points);
        assert!(comparison.equal, "{comparison:#?}");
        assert!(!compare("remote-write", &manifest, &points[..3]).equal);
    }

    #[test]
    fn repeated_label_keys_are_joined_in_order() {
        let tags = ["k:b", "k:a", "x:y"].map(String::from).to_vec();
        let mut sorted = tags;
        sorted.sort();
        assert_eq!(join_repeated(sorted), ["k:a,b", "x:y"]);
    }

    #[test]
    fn relayed_samples_are_summed_with_their_rate() {
        let manifest = manifest(&["c", "g", "s", "d"]);
        let sample = |metric: &str, statsd_type: &str, value: &str, rate: &str, received_ns| Point {
            metric: metric.into(),
            received_ns,
            kind: Kind::Sample,
            tags: vec!["a:b".into(), "c".into()],
            data: Data::Sample {
                statsd_type: statsd_type.into(),
                values: vec![value.into()],
                rate: rate.into(),
            },
            ..Point::default()
        };
        let points = [
            sample("m.c", "c", "1", "0.1", 1),
            sample("m.c", "c", "2", "0.1", 2),
            sample("m.g", "g", "1", "", 1),
            sample("m.g", "g", "2", "", 2),
            sample("m.s", "s", "x", "", 1),
            sample("m.s", "s", "y", "", 1),
            sample("m.d", "d", "1", "0.1", 1),
            sample("m.d", "d", "2", "0.1", 2),
        ];
        let comparison = compare("statsd", &manifest, &points);
        assert!(comparison.equal, "{comparison:#?}");
        for lost in 0..points.len() {
            let kept: Vec<Point> = points
                .iter()
                .enumerate()
                .filter(|(i, _)| *i != lost)
                .map(|(_, p)| p.clone())
                .collect();
            assert_eq!(compare("statsd", &manifest, &kept).equal, lost == 2, "{lost}");
        }
    }
}
