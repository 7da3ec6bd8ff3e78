//! Lists metrics by name, and the tags of one metric.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

use serde::Serialize;

use crate::dictionary::{Labels, Name, SeriesKind, StoredSeries};
use crate::query::{QueryError, ids_of};
use crate::store::History;

/// Points of a sparkline.
const SPARKLINE_POINTS: usize = 30;
/// A series counts as new for this many seconds.
const GROWTH_SECONDS: i64 = 600;
/// Values shown of a tag key.
const VALUES_MAX: usize = 100;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MetricSort {
    #[default]
    Name,
    /// By number of series, descending.
    Contexts,
    /// By number of new series, descending.
    Growth,
    /// By last point, newest first.
    Seen,
    /// By samples per second, descending. Metrics of which it is not known come last.
    Samples,
}

#[derive(Clone, Debug)]
pub struct MetricsRequest {
    /// See [`matches`]. Empty: all.
    pub pattern: String,
    /// Only these names. Empty: all.
    pub names: Vec<String>,
    /// Only these kinds. Empty: all.
    pub kinds: Vec<SeriesKind>,
    /// Samples per second by name, which the history does not know: for `MetricSort::Samples`, and for the answer.
    pub samples: HashMap<String, f64>,
    pub sort: MetricSort,
    /// Metrics to skip.
    pub offset: usize,
    pub limit: usize,
    /// Whether to add tag keys and a sparkline, which read the metric's series.
    pub details: bool,
}

/// The metrics that match a request.
#[derive(Clone, Debug, PartialEq)]
pub struct MetricsFound {
    /// One page of them.
    pub metrics: Vec<Metric>,
    /// All of them.
    pub total: usize,
    /// Number of metrics of each kind if the request allows every kind.
    pub kinds: BTreeMap<SeriesKind, usize>,
}

/// One metric.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Metric {
    pub name: String,
    pub kind: SeriesKind,
    /// Number of stored series.
    pub contexts: usize,
    /// Series that appeared in the last ten minutes.
    pub new: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub samples_per_second: Option<f64>,
    /// Unix seconds of the first and of the last point known.
    pub first_seen: i64,
    pub last_seen: i64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tag_keys: Vec<String>,
    /// The newest buckets, oldest first: counts per second, samples per second of distributions and histograms, means of gauges.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub sparkline: Vec<Option<f64>>,
}

/// A tag key of a metric.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TagKey {
    pub key: String,
    /// Distinct values.
    pub values_total: usize,
    /// Series with this key.
    pub contexts: usize,
    /// The values with the most series first.
    pub values: Vec<TagValue>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TagValue {
    pub value: String,
    pub contexts: usize,
}

/// Whether a name matches a pattern. `*` stands for any characters and `?` for one. Without either, the pattern may occur anywhere in the
/// name. Case is ignored.
pub fn matches(pattern: &str, name: &str) -> bool {
    if !pattern.contains(['*', '?']) {
        return pattern.len() <= name.len()
            && name
                .as_bytes()
                .windows(pattern.len().max(1))
                .any(|part| part.eq_ignore_ascii_case(pattern.as_bytes()))
            || pattern.is_empty();
    }
    let (pattern, name): (Vec<char>, Vec<char>) = (pattern.chars().collect(), name.chars().collect());
    let (mut at, mut star) = (0, None);
    let mut p = 0;
    while at < name.len() {
        match pattern.get(p) {
            Some('*') => {
                star = Some((p, at));
                p += 1;
            }
            Some(&c) if c == '?' || c.eq_ignore_ascii_case(&name[at]) => {
                p += 1;
                at += 1;
            }
            // The last star takes one more character.
            _ => match &mut star {
                Some((after, from)) => {
                    *from += 1;
                    (p, at) = (*after + 1, *from);
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|&c| c == '*')
}

impl History {
    /// The metrics that match.
    pub fn metrics(&self, request: &MetricsRequest) -> MetricsFound {
        let now = self.figures().to;
        let mut kinds = BTreeMap::new();
        let named: Box<dyn Iterator<Item = &Name>> = if request.names.is_empty() {
            Box::new(self.dictionary.names())
        } else {
            Box::new(request.names.iter().flat_map(|name| self.dictionary.named(name)))
        };
        // Names are matched and sorted by reference; only those on the page are copied.
        let mut found: Vec<(Reverse<i64>, &Name)> = named
            .filter(|name| matches(&request.pattern, &name.text))
            .inspect(|name| *kinds.entry(name.kind).or_insert(0) += 1)
            .filter(|name| request.kinds.is_empty() || request.kinds.contains(&name.kind))
            .map(|name| (Reverse(self.rank(name, request, now)), name))
            .collect();
        let total = found.len();
        found.sort_unstable_by(|(a, left), (b, right)| {
            (a, &left.text, left.kind).cmp(&(b, &right.text, right.kind))
        });
        let page = found.into_iter().skip(request.offset).take(request.limit);
        let page: Vec<&Name> = page.map(|(_, name)| name).collect();
        let metrics = page.iter().map(|name| Metric {
            samples_per_second: request.samples.get(&*name.text).copied(),
            ..self.summary(name, now)
        });
        let metrics = match self.last_steps(SPARKLINE_POINTS).filter(|_| request.details) {
            None => metrics.collect(),
            Some(steps) => {
                let held = self.in_window(&ids_of(&page), steps);
                let with_details = metrics.zip(&page).map(|(metric, name)| Metric {
                    tag_keys: self.tag_keys(name).into_iter().map(|key| key.key).collect(),
                    sparkline: self.sparkline(name, steps, &held),
                    ..metric
                });
                with_details.collect()
            }
        };
        MetricsFound {
            metrics,
            total,
            kinds,
        }
    }

    /// A higher rank comes earlier in the list.
    fn rank(&self, name: &Name, request: &MetricsRequest, now: i64) -> i64 {
        let series = || name.series.iter().filter_map(|&id| self.dictionary.series(id));
        match request.sort {
            MetricSort::Name => 0,
            MetricSort::Contexts => name.series.len() as i64,
            MetricSort::Growth => series().filter(|series| is_new(series, now)).count() as i64,
            MetricSort::Seen => series().map(|series| series.last).max().unwrap_or(0),
            // In thousandths: a metric with one sample in a bucket comes before one without.
            MetricSort::Samples => {
                let samples = request.samples.get(&*name.text);
                samples.map_or(0, |samples| (samples * 1000.0).round() as i64)
            }
        }
    }

    /// Calls `look` for every series with a point at or after this time, until it returns false. Returns whether it saw all.
    pub fn each_series<'s>(
        &'s self,
        since: i64,
        mut look: impl FnMut(SeriesKind, &'s str, Labels<'s>) -> bool,
    ) -> bool {
        let names = self.dictionary.names();
        let all = names.flat_map(|name| name.series.iter().map(move |&id| (name, id)));
        let mut recent = all.filter(|(_, id)| {
            let series = self.dictionary.series(*id);
            series.is_some_and(|series| series.last >= since)
        });
        recent.all(|(name, id)| look(name.kind, &name.text, self.dictionary.labels(id)))
    }

    fn summary(&self, name: &Name, now: i64) -> Metric {
        let series = || name.series.iter().filter_map(|&id| self.dictionary.series(id));
        Metric {
            name: name.text.to_string(),
            kind: name.kind,
            contexts: name.series.len(),
            new: series().filter(|series| is_new(series, now)).count(),
            samples_per_second: None,
            first_seen: series().map(|series| series.first).min().unwrap_or(0),
            last_seen: series().map(|series| series.last).max().unwrap_or(0),
            tag_keys: Vec::new(),
            sparkline: Vec::new(),
        }
    }

    /// The tag keys and values of a metric, of all its kinds.
    pub fn tags(&self, metric: &str) -> Result<Vec<TagKey>, QueryError> {
        let mut keys: Vec<TagKey> = Vec::new();
        let mut is_known = false;
        for name in self.dictionary.named(metric) {
            is_known = true;
            keys.append(&mut self.tag_keys(name));
        }
        if let Some((histogram, _)) = self.histogram_of(metric).filter(|_| !is_known) {
            is_known = true;
            keys = self.tag_keys(histogram);
        }
        if is_known {
            Ok(keys)
        } else {
            Err(QueryError::Unknown(metric.to_owned()))
        }
    }

    fn tag_keys(&self, name: &Name) -> Vec<TagKey> {
        let mut keys: BTreeMap<&str, HashMap<&str, usize>> = BTreeMap::new();
        for &id in &name.series {
            for (key, value) in self.dictionary.labels(id).pairs() {
                *keys.entry(key).or_default().entry(value).or_default() += 1;
            }
        }
        keys.into_iter()
            .map(|(key, values)| tag_key(key, values))
            .collect()
    }
}

fn is_new(series: &StoredSeries, now: i64) -> bool {
    series.first > now - GROWTH_SECONDS
}

fn tag_key(key: &str, values: HashMap<&str, usize>) -> TagKey {
    let (values_total, contexts) = (values.len(), values.values().sum());
    let mut values: Vec<_> = values.into_iter().collect();
    values.sort_by(|(a, few), (b, many)| many.cmp(few).then_with(|| a.cmp(b)));
    values.truncate(VALUES_MAX);
    TagKey {
        key: key.to_owned(),
        values_total,
        contexts,
        values: values
            .into_iter()
            .map(|(value, contexts)| TagValue {
                value: value.to_owned(),
                contexts,
            })
            .collect(),
    }
}
