//! Compares received data with a load, context by context.

mod compare;

use super::record::{Data, Point, PointKind, Record};
use compare::NoTruth;
use serde::Serialize;
use serde_json::Value;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use weir_load::manifest::Manifest;

/// Exclusions of a comparison, and the precision of sums.
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
    /// Whether a metric or check is the agent's own.
    fn ignores(&self, name: &str) -> bool {
        self.ignore_prefixes.iter().any(|prefix| name.starts_with(prefix))
    }
}

/// Metric and sorted tags.
type Key = (String, Vec<String>);

/// Received data, aggregated by context on arrival.
#[derive(Default)]
pub struct Observed {
    series: HashMap<Key, Series>,
    events: BTreeMap<String, u64>,
    checks: BTreeMap<String, u64>,
    /// The format restricts names and labels to Prometheus's characters.
    folded: bool,
    /// The format has no events and checks.
    plain: bool,
    /// Messages are relayed unchanged, so each has its type.
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
    /// Of the sketch, if all of it arrived as sketches.
    bins: Option<BTreeMap<i32, u64>>,
}

impl Distribution {
    fn merge(&mut self, other: &Distribution) {
        let both = |a: Option<f64>, b: Option<f64>, f: fn(f64, f64) -> f64| Some(f(a?, b?));
        self.count += other.count;
        self.sum = both(self.sum, other.sum, |a, b| a + b);
        self.min = both(self.min, other.min, f64::min);
        self.max = both(self.max, other.max, f64::max);
        self.bins = match (self.bins.take(), &other.bins) {
            (Some(mut bins), Some(others)) => {
                for (key, count) in others {
                    *bins.entry(*key).or_default() += count;
                }
                Some(bins)
            }
            _ => None,
        };
    }
}

/// One difference.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Difference {
    pub metric: String,
    pub tags: Vec<String>,
    pub what: String,
    pub expected: Value,
    pub got: Value,
    /// The second at which the window began, in a comparison of windows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window: Option<i64>,
}

/// The verdict.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    pub equal: bool,
    /// Contexts of the manifest.
    pub contexts: usize,
    /// Windows that were compared, each by itself.
    pub windows: usize,
    pub differences_total: usize,
    /// The first of them.
    pub differences: Vec<Difference>,
}

/// Replaces characters that Prometheus does not allow with underscores; names that may be written alike have equal results.
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

/// A relayed message has its type, so contexts that differ only in type stay separate.
fn add_type(key: &mut Key, statsd_type: &str) {
    key.0.push('|');
    key.0.push_str(statsd_type);
}

impl Comparison {
    /// Adds the comparison of one window.
    fn add_window(&mut self, window: i64, other: Comparison, list: usize) {
        self.windows += 1;
        self.equal &= other.equal;
        self.differences_total += other.differences_total;
        let marked = other.differences.into_iter().map(|difference| Difference {
            window: Some(window),
            ..difference
        });
        self.differences.extend(marked);
        self.differences.truncate(list);
    }
}

/// The truth of several loads that were sent to one receiver.
pub fn joined(manifests: Vec<Manifest>) -> Manifest {
    let mut manifests = manifests.into_iter();
    let mut all = manifests.next().unwrap_or_default();
    let add = |to: &mut Option<BTreeMap<String, u64>>, more: Option<BTreeMap<String, u64>>| {
        for (key, count) in more.unwrap_or_default() {
            *to.get_or_insert_default().entry(key).or_default() += count;
        }
    };
    for other in manifests {
        all.contexts = all.contexts.zip(other.contexts).map(|(mut rows, more)| {
            rows.extend(more);
            rows
        });
        add(&mut all.events, other.events);
        add(&mut all.checks, other.checks);
        all.windows = all.windows.zip(other.windows).map(|(mut windows, more)| {
            for (start, rows) in more {
                windows.entry(start).or_default().extend(rows);
            }
            windows
        });
    }
    all
}

/// The points, by their timestamps.
#[derive(Default)]
pub struct ObservedWindows(BTreeMap<i64, Observed>);

impl ObservedWindows {
    pub fn add(&mut self, sink: &str, rules: &Rules, record: &Record) {
        // Events and checks are of no window.
        if let Record::Point(point) = record
            && let Some(ts) = point.ts
            && !rules.ignores(&point.metric)
        {
            let window = self.0.entry(ts as i64);
            window.or_insert_with(|| Observed::new(sink)).add(rules, record);
        }
    }

    /// Compares each window by itself, and adds the differences. Fails if the manifest has no windows.
    pub fn compare(
        &self,
        sink: &str,
        rules: &Rules,
        manifest: &Manifest,
        list: usize,
        into: &mut Comparison,
    ) -> Result<(), NoTruth> {
        let Some(windows) = &manifest.windows else {
            return Err(NoTruth::Windows);
        };
        let starts: BTreeSet<i64> = self.0.keys().chain(windows.keys()).copied().collect();
        let nothing = Observed::new(sink);
        for start in starts {
            let truth = Manifest {
                contexts: Some(windows.get(&start).cloned().unwrap_or_default()),
                ..Manifest::default()
            };
            let observed = self.0.get(&start).unwrap_or(&nothing);
            into.add_window(start, observed.compare(rules, &truth, list)?, list);
        }
        Ok(())
    }
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

    /// Whether the comparison supports the points of this kind of sink.
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
        self.series.entry(key).or_default().add(point);
    }
}

fn fold_tag(tag: &str) -> String {
    let (key, value) = tag.split_once(':').unwrap_or((tag, "true"));
    let key = fold(key);
    // Names that Prometheus reserves lose an underscore.
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

impl Series {
    fn add(&mut self, point: &Point) {
        match &point.data {
            Data::Number { value } => self.number(point, *value),
            Data::Sketch {
                cnt,
                min,
                max,
                sum,
                k,
                n,
                ..
            } => self.distribution(Distribution {
                count: *cnt as f64,
                sum: Some(*sum),
                min: Some(*min),
                max: Some(*max),
                bins: Some(bins(k, n)),
            }),
            Data::Distribution {
                count, sum, min, max, ..
            } => {
                let distribution = Distribution {
                    count: *count,
                    sum: *sum,
                    min: *min,
                    max: *max,
                    bins: None,
                };
                match point.kind {
                    PointKind::CumulativeDistribution => {
                        latest(&mut self.cumulative_distribution, point, distribution);
                    }
                    _ => self.distribution(distribution),
                }
            }
            Data::Sample {
                statsd_type,
                values,
                rate,
            } => self.sample(point, statsd_type, values, rate),
        }
    }

    fn number(&mut self, point: &Point, value: f64) {
        match point.kind {
            PointKind::Rate => {
                let sum = value * point.interval.unwrap_or(1) as f64;
                *self.total.get_or_insert(0.0) += sum;
                self.points.push((point.ts, sum));
            }
            PointKind::Count => *self.total.get_or_insert(0.0) += value,
            PointKind::Cumulative => latest(&mut self.cumulative, point, value),
            _ => {
                self.gauge(time(point), value);
                self.points.push((point.ts, value));
            }
        }
    }

    /// One relayed message.
    fn sample(&mut self, point: &Point, statsd_type: &str, values: &[String], rate: &str) {
        if statsd_type == "s" {
            self.members.extend(values.iter().cloned());
            return;
        }
        let weight = match rate.parse::<f64>() {
            Ok(rate) if rate > 0.0 && rate <= 1.0 => 1.0 / rate,
            _ => 1.0,
        };
        for value in values.iter().filter_map(|value| value.parse::<f64>().ok()) {
            match statsd_type {
                "c" | "m" => *self.total.get_or_insert(0.0) += value * weight,
                // Samples have no time: the last to arrive counts.
                "g" => self.gauge(point.received_ns as f64, value),
                _ => self.distribution(Distribution {
                    count: weight,
                    sum: Some(value * weight),
                    min: Some(value),
                    max: Some(value),
                    bins: None,
                }),
            }
        }
    }

    /// All observed distributions, of all hosts.
    fn whole(&self) -> Option<Distribution> {
        let latest = self.cumulative_distribution.values().map(|(_, latest)| latest);
        let mut all = self.distribution.iter().chain(latest);
        let mut whole = all.next()?.clone();
        all.for_each(|other| whole.merge(other));
        Some(whole)
    }

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

/// A key may be repeated: a large count has several bins.
fn bins(keys: &[i32], counts: &[u32]) -> BTreeMap<i32, u64> {
    let mut bins = BTreeMap::new();
    for (key, count) in keys.iter().zip(counts) {
        *bins.entry(*key).or_default() += u64::from(*count);
    }
    bins
}

/// The point's own time, or when it arrived.
fn time(point: &Point) -> f64 {
    point.ts.unwrap_or(point.received_ns as f64 / 1e9)
}

/// Keeps the latest value of each host.
fn latest<T>(by_host: &mut BTreeMap<String, (f64, T)>, point: &Point, value: T) {
    let ts = time(point);
    match by_host.entry(point.host.clone()) {
        Entry::Vacant(place) => drop(place.insert((ts, value))),
        Entry::Occupied(mut known) if ts >= known.get().0 => *known.get_mut() = (ts, value),
        Entry::Occupied(_) => {}
    }
}

#[cfg(test)]
mod tests;
