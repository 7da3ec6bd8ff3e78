//! Compares received data with the truth, context by context.

use super::{Comparison, Difference, Distribution, Gauge, Key, Observed, Rules, Series, add_type};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use weir_load::manifest::{ContextTruth, Manifest};

/// A comparison needs more than the manifest has.
#[derive(Debug, thiserror::Error)]
pub enum NoTruth {
    #[error("the manifest has no table of contexts; the load writes it with --contexts")]
    Contexts,
    #[error("the manifest has no tables of windows; a load of columns writes them with --windows")]
    Windows,
}

impl Observed {
    /// Compares with the truth. Fails if the manifest has no table of contexts.
    pub fn compare(&self, rules: &Rules, manifest: &Manifest, list: usize) -> Result<Comparison, NoTruth> {
        let Some(contexts) = &manifest.contexts else {
            return Err(NoTruth::Contexts);
        };
        let truths = self.truths(rules, contexts);
        let mut differences = Vec::new();
        let mut expected: BTreeSet<Key> = BTreeSet::new();
        for ((key, kind), truth) in &truths {
            let is_there = |kind| truths.contains_key(&(key.clone(), kind));
            let mut check = Check {
                observed: self,
                rules,
                key,
                // A gauge and a set of one name and tags arrive as one series of gauges.
                mixed: is_there("g") && is_there("s"),
                expected: &mut expected,
                differences: &mut differences,
            };
            check.context(kind, truth);
        }
        let mut unexpected: Vec<&Key> = self
            .series
            .keys()
            .filter(|key| !expected.contains(*key))
            .collect();
        unexpected.sort();
        differences.extend(unexpected.into_iter().map(|key| Difference {
            metric: key.0.clone(),
            tags: key.1.clone(),
            what: "never sent".into(),
            expected: Value::Null,
            got: "points".into(),
            window: None,
        }));
        if !self.plain {
            compare_counts("events", manifest.events.as_ref(), &self.events, &mut differences);
            compare_counts("checks", manifest.checks.as_ref(), &self.checks, &mut differences);
        }
        let differences_total = differences.len();
        differences.truncate(list);
        Ok(Comparison {
            equal: differences_total == 0,
            contexts: contexts.len(),
            windows: 0,
            differences_total,
            differences,
        })
    }

    /// The truth by context and type. Contexts that an agent cannot or need not distinguish are joined: same name, tags and type, another
    /// container.
    fn truths<'a>(
        &self,
        rules: &Rules,
        contexts: &'a [ContextTruth],
    ) -> BTreeMap<(Key, &'a str), ContextTruth> {
        let mut truths: BTreeMap<(Key, &str), ContextTruth> = BTreeMap::new();
        for truth in contexts {
            let mut key = self.key(rules, &truth.name, &truth.tags);
            if self.relayed {
                add_type(&mut key, &truth.kind);
            }
            let key = (key, truth.kind.as_str());
            match truths.get_mut(&key) {
                None => drop(truths.insert(key, truth.clone())),
                Some(merged) => merged.merge(truth),
            }
        }
        truths
    }
}

/// The magnitude of the summed numbers, to which the rounding is relative.
fn scale_of(truth: &ContextTruth) -> f64 {
    let largest = [truth.min, truth.max]
        .into_iter()
        .flatten()
        .map(|value| value.to_f64().abs())
        .fold(0.0, f64::max);
    largest * truth.weight as f64
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
                window: None,
            });
        }
    }
}

/// Collects the differences of one context.
struct Check<'a> {
    observed: &'a Observed,
    rules: &'a Rules,
    key: &'a Key,
    mixed: bool,
    /// Series that belong to some context.
    expected: &'a mut BTreeSet<Key>,
    differences: &'a mut Vec<Difference>,
}

impl<'a> Check<'a> {
    /// The first of these names that has the wanted kind of value.
    fn find(&mut self, suffixes: &[&str], has: fn(&Series) -> bool) -> Option<&'a Series> {
        let observed = self.observed;
        let mut candidates = suffixes.iter().map(|suffix| self.named(suffix));
        let key = candidates.find(|key| observed.series.get(key).is_some_and(has))?;
        let series = observed.series.get(&key);
        self.expected.insert(key);
        series
    }

    /// The context's key with a suffix after its name.
    fn named(&self, suffix: &str) -> Key {
        (format!("{}{suffix}", self.key.0), self.key.1.clone())
    }

    fn context(&mut self, kind: &str, truth: &ContextTruth) {
        match kind {
            "c" | "m" => self.counter(truth),
            "g" => self.gauge(truth),
            "s" => self.set(truth),
            _ => {
                let has = |s: &Series| s.distribution.is_some() || !s.cumulative_distribution.is_empty();
                if let Some(whole) = self.find(&[""], has).and_then(Series::whole) {
                    self.distribution(truth, &whole);
                } else if kind == "d" || self.observed.folded {
                    self.differ("count", json!(truth.weight), Value::Null);
                } else {
                    self.aggregates(truth);
                }
            }
        }
    }

    fn counter(&mut self, truth: &ContextTruth) {
        let suffixes: &[&str] = if self.observed.folded {
            &["_total", ""]
        } else {
            &[""]
        };
        let series = self.find(suffixes, |s| s.total.is_some() || !s.cumulative.is_empty());
        let got = series.map(|s| {
            let of_hosts: f64 = s.cumulative.values().map(|last| last.1).sum();
            s.total.unwrap_or(0.0) + of_hosts
        });
        self.near("sum", truth.weighted_sum.to_f64(), got, scale_of(truth));
    }

    fn gauge(&mut self, truth: &ContextTruth) {
        let series = self.find(&[""], |s| s.gauge.is_some());
        let got = series.and_then(|s| s.gauge.as_ref()).map(|gauge| gauge.last);
        let allowed: Vec<f64> = truth.last.iter().map(|last| last.to_f64()).collect();
        let among = |series: &Series| series.points.iter().any(|point| allowed.contains(&point.1));
        let is_last = got.is_some_and(|got| allowed.contains(&got));
        let is_allowed = is_last || self.mixed && series.is_some_and(among);
        if !is_allowed {
            self.differ("last value", json!(allowed), json!(got));
        }
    }

    fn set(&mut self, truth: &ContextTruth) {
        let members = truth.members.len() as f64;
        let Some(series) = self.find(&[""], |s| s.gauge.is_some() || !s.members.is_empty()) else {
            return self.differ("members", json!(members), Value::Null);
        };
        let could_be = |point: &(Option<f64>, f64)| point.1 > 0.0 && point.1 <= members;
        match &series.gauge {
            Some(_) if self.mixed && series.points.iter().any(could_be) => {}
            Some(_) if self.mixed => {
                self.differ("members", json!(members), json!("no point that could be it"));
            }
            // The members of several buckets may overlap.
            Some(gauge) if gauge.highest > members || gauge.sum < members => {
                let got = json!({"highest": gauge.highest, "sum": gauge.sum});
                self.differ("members", json!(members), got);
            }
            None if !series.members.iter().eq(&truth.members) => {
                self.differ("members", json!(truth.members), json!(series.members));
            }
            _ => {}
        }
    }

    fn distribution(&mut self, truth: &ContextTruth, got: &Distribution) {
        // Weights are integers; their floating-point sum may still round.
        self.near("count", truth.weight as f64, Some(got.count), 0.0);
        if got.sum.is_some() {
            self.near("sum", truth.weighted_sum.to_f64(), got.sum, scale_of(truth));
        }
        for (what, expected, got) in [("min", truth.min, got.min), ("max", truth.max, got.max)] {
            if let (Some(expected), Some(_)) = (expected, got) {
                self.same(what, expected.to_f64(), got);
            }
        }
        if let (Some(expected), Some(got)) = (&truth.bins, &got.bins)
            && expected != got
        {
            let counts = |bins: &BTreeMap<i32, u64>, others: &BTreeMap<i32, u64>| {
                let differ = bins.iter().filter(|(key, count)| others.get(key) != Some(count));
                json!(differ.collect::<BTreeMap<_, _>>())
            };
            self.differ("bins", counts(expected, got), counts(got, expected));
        }
    }

    /// A histogram that arrives as separate series: at least `.count` and `.max`, others if they are sent.
    fn aggregates(&mut self, truth: &ContextTruth) {
        self.expect_aggregates();
        let observed = self.observed;
        let count = observed.series.get(&self.named(".count"));
        self.near("count", truth.weight as f64, count.and_then(|s| s.total), 0.0);
        if let Some(expected) = truth.max {
            let got = self.aggregate(".max").map(|(max, _)| max.highest);
            self.same("max", expected.to_f64(), got);
        }
        if let (Some((_, min)), Some(expected)) = (self.aggregate(".min"), truth.min) {
            let lowest = min
                .points
                .iter()
                .map(|point| point.1)
                .fold(f64::INFINITY, f64::min);
            self.same("min", expected.to_f64(), Some(lowest));
        }
        let wanted = truth.weighted_sum.to_f64();
        if let Some((sum, _)) = self.aggregate(".sum") {
            self.near("sum", wanted, Some(sum.sum), scale_of(truth));
        } else if let (Some((_, avg)), Some(count)) = (self.aggregate(".avg"), count) {
            let got = Some(averages_times_counts(avg, count));
            self.near("average times count", wanted, got, scale_of(truth));
        }
    }

    fn aggregate(&self, suffix: &str) -> Option<(&'a Gauge, &'a Series)> {
        let series = self.observed.series.get(&self.named(suffix))?;
        Some((series.gauge.as_ref()?, series))
    }

    fn expect_aggregates(&mut self) {
        for suffix in [".count", ".max", ".min", ".sum", ".avg", ".median"] {
            self.expected.insert(self.named(suffix));
        }
        let name = self.key.0.as_str();
        let is_percentile = |series: &&Key| {
            let number = series
                .0
                .strip_prefix(name)
                .and_then(|rest| rest.strip_prefix('.'));
            let number = number.and_then(|rest| rest.strip_suffix("percentile"));
            series.1 == self.key.1 && number.is_some_and(|n| n.bytes().all(|b| b.is_ascii_digit()))
        };
        let percentiles = self.observed.series.keys().filter(is_percentile);
        self.expected.extend(percentiles.cloned());
    }

    fn differ(&mut self, what: &str, expected: Value, got: Value) {
        self.differences.push(Difference {
            metric: self.key.0.clone(),
            tags: self.key.1.clone(),
            what: what.to_owned(),
            expected,
            got,
            window: None,
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
}

/// The sum that results from the averages, bucket by bucket.
fn averages_times_counts(averages: &Series, counts: &Series) -> f64 {
    let counts = counts.points.iter();
    let counts: HashMap<u64, f64> = counts
        .filter_map(|&(ts, count)| Some((ts?.to_bits(), count)))
        .collect();
    let products = averages.points.iter();
    products
        .filter_map(|&(ts, avg)| Some(avg * counts.get(&ts?.to_bits())?))
        .sum()
}
