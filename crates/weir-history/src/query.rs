//! Queries: select series, group them, and apply a function to their points.

use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;

use weir_sketch::Sketch;

use crate::codec::sketch;
use crate::dictionary::{Labels, Name, SeriesId, SeriesKind};
use crate::group::{Column, Point};
use crate::names::matches;
use crate::query_result::{Group, Heatmap, QueryResult, SeriesColumn, SeriesColumns};
use crate::segment::Segment;
use crate::store::History;

/// Maximum groups of an answer, without `other`.
pub const GROUPS_MAX: usize = 50;
/// Maximum steps of an answer.
pub const STEPS_MAX: usize = 4096;
/// Steps of an answer if the query has no step: about the pixels of a chart.
const STEPS_WANTED: i64 = 360;

/// The function of a query, applied to the points of each step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Function {
    /// Counters: the total. Levels: the sum over series of each one's mean.
    Sum,
    /// Counters: per second. Distributions and histograms: samples per second.
    Rate,
    Avg,
    Min,
    Max,
    /// Points; for distributions, samples.
    Count,
    /// The sum over series of each one's newest value.
    Last,
    /// From 0 to 1.
    Quantile(f64),
    Heatmap,
}

impl FromStr for Function {
    type Err = QueryError;

    fn from_str(text: &str) -> Result<Self, QueryError> {
        Ok(match text {
            "sum" => Function::Sum,
            "rate" => Function::Rate,
            "avg" => Function::Avg,
            "min" => Function::Min,
            "max" => Function::Max,
            "count" => Function::Count,
            "last" => Function::Last,
            "heatmap" => Function::Heatmap,
            _ => {
                let percent = text
                    .strip_prefix('p')
                    .and_then(|percent| percent.parse::<f64>().ok());
                let percent = percent.filter(|percent| (0.0..=100.0).contains(percent));
                Function::Quantile(percent.ok_or_else(|| QueryError::Function(text.to_owned()))? / 100.0)
            }
        })
    }
}

impl fmt::Display for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Function::Sum => "sum",
            Function::Rate => "rate",
            Function::Avg => "avg",
            Function::Min => "min",
            Function::Max => "max",
            Function::Count => "count",
            Function::Last => "last",
            Function::Heatmap => "heatmap",
            Function::Quantile(q) => return write!(f, "p{}", (q * 1e8).round() / 1e6),
        })
    }
}

impl Function {
    /// The function that users usually want first.
    fn default_of(kind: SeriesKind) -> Function {
        match kind {
            SeriesKind::Counter => Function::Rate,
            SeriesKind::Rate => Function::Sum,
            SeriesKind::Gauge | SeriesKind::Set => Function::Avg,
            SeriesKind::Distribution | SeriesKind::Histogram => Function::Quantile(0.95),
        }
    }

    fn fits(self, kind: SeriesKind) -> bool {
        match self {
            Function::Rate => kind == SeriesKind::Counter || kind.has_sketches(),
            Function::Quantile(_) | Function::Heatmap => kind.has_sketches(),
            Function::Last => !kind.has_sketches(),
            _ => true,
        }
    }
}

/// A query. Times are Unix seconds.
#[derive(Clone, Debug, Default)]
pub struct Query {
    pub metric: String,
    /// Only metrics of this kind. `None`: the kind with the most series.
    pub kind: Option<SeriesKind>,
    /// Required tags. Several values under one key mean any of them. A value may be a pattern with `*` and `?`.
    pub tags: Vec<(String, String)>,
    /// Tags that a series must not have, in the same form.
    pub without: Vec<(String, String)>,
    pub by: Vec<String>,
    /// `None`: the default of the kind.
    pub function: Option<Function>,
    /// `None`: from the oldest bucket.
    pub from: Option<i64>,
    /// The first second after the range. `None`: to the end of the bucket with the latest time.
    pub to: Option<i64>,
    /// Seconds. `None`: chosen to give a few hundred steps.
    pub step: Option<u32>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum QueryError {
    /// No such metric.
    Unknown(String),
    /// No such function.
    Function(String),
    /// The function is undefined for this kind.
    Unfit { function: String, kind: SeriesKind },
    /// The name stands for another function of a histogram.
    Derived {
        name: String,
        histogram: String,
        function: String,
    },
    /// Too many steps, or none.
    Steps { steps: i64 },
}

impl fmt::Display for QueryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            QueryError::Unknown(metric) => write!(f, "no metric named {metric:?} is in the history"),
            QueryError::Function(name) => write!(
                f,
                "there is no function {name:?}: sum, rate, avg, min, max, count, last, heatmap, or p and a percentage such as p99.9"
            ),
            QueryError::Unfit { function, kind } => {
                write!(
                    f,
                    "{function} is not available for a {}",
                    format!("{kind:?}").to_lowercase()
                )
            }
            QueryError::Derived {
                name,
                histogram,
                function,
            } => {
                write!(
                    f,
                    "{name:?} is {function} of {histogram:?}: for other functions ask for {histogram:?}"
                )
            }
            QueryError::Steps { steps } => {
                write!(
                    f,
                    "{steps} steps: from must lie before to, and an answer has at most {STEPS_MAX} steps"
                )
            }
        }
    }
}

impl std::error::Error for QueryError {}

/// The steps of an answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Steps {
    first: i64,
    step: i64,
    count: usize,
}

impl Steps {
    fn times(self) -> impl Iterator<Item = i64> {
        (0..self.count as i64).map(move |at| self.first + at * self.step)
    }

    fn at(&self, time: i64) -> Option<usize> {
        let at = usize::try_from((time - self.first).div_euclid(self.step)).ok()?;
        (at < self.count).then_some(at)
    }
}

impl History {
    /// Answers a query. Reads every point of the selected series once.
    pub fn query(&self, query: &Query) -> Result<QueryResult, QueryError> {
        let (metric, derived) = self.metric(query)?;
        let kind = metric.kind;
        let function = query.function.or(derived);
        let function = function.unwrap_or_else(|| Function::default_of(kind));
        if let Some(derived) = derived.filter(|derived| *derived != function) {
            return Err(QueryError::Derived {
                name: query.metric.clone(),
                histogram: metric.text.to_string(),
                function: derived.to_string(),
            });
        }
        if !function.fits(kind) {
            let function = function.to_string();
            return Err(QueryError::Unfit { function, kind });
        }
        let width = self.buckets().map(|(_, width)| width).max().unwrap_or(1).max(1);
        let steps = self.steps(query, i64::from(width))?;
        let selected = self.select(metric, &query.tags, &query.without);
        let held = self.in_window(&selected, steps);
        let (columns, folded) = fold(self.columns(&selected, &query.by, kind, steps, &held));
        let seconds = self.seconds(steps);
        Ok(QueryResult {
            metric: query.metric.clone(),
            kind,
            function: function.to_string(),
            step: steps.step as u32,
            width,
            times: steps.times().collect(),
            folded,
            series: selected.len(),
            held_from: self.figures().from,
            heatmap: (function == Function::Heatmap).then(|| heatmap(&columns)),
            groups: columns
                .into_iter()
                .map(|(tags, column)| Group {
                    other: tags.is_none(),
                    tags: query.by.iter().cloned().zip(tags.unwrap_or_default()).collect(),
                    series: column.series,
                    values: column.values(function, &seconds),
                })
                .collect(),
        })
    }

    /// The metric, and its function if the name is that of one of a histogram's aggregates.
    fn metric<'s>(&'s self, query: &'s Query) -> Result<(&'s Name, Option<Function>), QueryError> {
        let named = self.dictionary.named(&query.metric);
        let wanted = named.filter(|name| query.kind.is_none_or(|kind| name.kind == kind));
        let most = wanted.max_by_key(|name| name.series.len());
        let derived = || {
            let (name, function) = self.histogram_of(&query.metric)?;
            Some((name, Some(function)))
        };
        most.map(|name| (name, None))
            .or_else(derived)
            .ok_or_else(|| QueryError::Unknown(query.metric.clone()))
    }

    /// The histogram of which this is the name of an aggregate, as outputs have it.
    pub(crate) fn histogram_of<'s>(&'s self, aggregate: &'s str) -> Option<(&'s Name, Function)> {
        let (histogram, suffix) = aggregate.rsplit_once('.')?;
        let function = match suffix {
            "max" => Function::Max,
            "min" => Function::Min,
            "median" => Function::Quantile(0.5),
            "avg" => Function::Avg,
            "sum" => Function::Sum,
            "count" => Function::Rate,
            _ => {
                let percent: u8 = suffix.strip_suffix("percentile")?.parse().ok()?;
                Function::Quantile(f64::from(percent.min(100)) / 100.0)
            }
        };
        let mut named = self.dictionary.named(histogram);
        Some((named.find(|name| name.kind == SeriesKind::Histogram)?, function))
    }

    fn steps(&self, query: &Query, width: i64) -> Result<Steps, QueryError> {
        // Not the first and the last one, which are in the wrong order if the clock was set back between them.
        let oldest = self.buckets().map(|(time, _)| time).min();
        let end = self.buckets().map(|(time, width)| time + i64::from(width)).max();
        let from = query.from.or(oldest).unwrap_or_default();
        let to = query.to.or(end).unwrap_or_default();
        let step = match query.step {
            // A step that is not a multiple of the width would alternate between one bucket and two.
            Some(step) => (i64::from(step.max(1)) + width - 1) / width * width,
            None => (((to - from).max(0) / width + STEPS_WANTED - 1) / STEPS_WANTED).max(1) * width,
        };
        let first = from.div_euclid(step) * step;
        let count = (to - first + step - 1).div_euclid(step);
        if count < 1 || count > STEPS_MAX as i64 {
            return Err(QueryError::Steps { steps: count });
        }
        Ok(Steps {
            first,
            step,
            count: count as usize,
        })
    }

    fn select(
        &self,
        metric: &Name,
        tags: &[(String, String)],
        without: &[(String, String)],
    ) -> Vec<SeriesId> {
        let mut wanted: HashMap<&str, Vec<&str>> = HashMap::new();
        for (key, value) in tags {
            wanted.entry(key).or_default().push(value);
        }
        let fits = |labels: Labels<'_>| {
            wanted
                .iter()
                .all(|(key, values)| values.iter().any(|value| has(labels, key, value)))
                && !without.iter().any(|(key, value)| has(labels, key, value))
        };
        let all = metric.series.iter().copied();
        let mut selected: Vec<_> = all.filter(|&id| fits(self.dictionary.labels(id))).collect();
        // Makes sums independent of the order in which series appeared.
        selected.sort_unstable();
        selected
    }

    fn columns(
        &self,
        selected: &[SeriesId],
        by: &[String],
        kind: SeriesKind,
        steps: Steps,
        held: &InWindow<'_>,
    ) -> HashMap<Vec<Option<String>>, Column> {
        let mut columns: HashMap<Vec<Option<String>>, Column> = HashMap::new();
        let mut points = vec![Point::EMPTY; steps.count];
        for &id in selected {
            let labels = self.dictionary.labels(id);
            let group = by
                .iter()
                .map(|key| labels.value(key).map(str::to_owned))
                .collect();
            let column = columns.entry(group).or_insert_with(|| Column::new(steps.count));
            column.series += 1;
            if kind.has_sketches() {
                held.each_sketch(id, |time, sketch| {
                    if let Some(at) = steps.at(time) {
                        column.add_sketch(at, &sketch);
                    }
                });
                continue;
            }
            points.fill(Point::EMPTY);
            held.each_scalar(id, |time, value| {
                if let Some(at) = steps.at(time) {
                    points[at].add(time, value);
                }
            });
            for (at, point) in points.iter().enumerate() {
                column.add(at, point, kind);
            }
        }
        columns
    }

    /// The stored points in the window of these steps. Open points are not copied, nor are their sketches. Reads every open point of the
    /// window, so an answer calls it once for all its series.
    pub(crate) fn in_window(&self, selected: &[SeriesId], steps: Steps) -> InWindow<'_> {
        let mut wanted = vec![false; self.dictionary.ids_end()];
        selected.iter().for_each(|&id| wanted[id as usize] = true);
        let reaches = |segment: &&Segment| segment.buckets().any(|(time, _)| steps.at(time).is_some());
        let mut points = InWindow {
            segments: self.segments.iter().filter(reaches).collect(),
            ..InWindow::default()
        };
        for bucket in self.open.iter().filter(|bucket| steps.at(bucket.time).is_some()) {
            for (id, value) in bucket.scalars().filter(|(id, _)| wanted[*id as usize]) {
                points.scalars.push((id, bucket.time, value));
            }
            for (id, bytes) in bucket.sketches().filter(|(id, _)| wanted[*id as usize]) {
                points.sketches.push((id, bucket.time, bytes));
            }
        }
        // Stable, so that the points of a series stay ordered by time.
        points.scalars.sort_by_key(|point| point.0);
        points.sketches.sort_by_key(|point| point.0);
        points
    }

    /// Seconds of the buckets in each step: the divisor of rates, correct also if the window begins or ends within a step.
    fn seconds(&self, steps: Steps) -> Vec<f64> {
        let mut seconds = vec![0.0; steps.count];
        for (time, width) in self.buckets() {
            if let Some(at) = steps.at(time) {
                seconds[at] += f64::from(width);
            }
        }
        seconds
    }

    /// The series of every metric whose name matches, separately.
    pub fn series(
        &self,
        is_wanted: impl Fn(&str) -> bool,
        from: i64,
        to: i64,
        step: Option<u32>,
    ) -> Result<SeriesColumns, QueryError> {
        let width = self.newest().map_or(1, |(_, width)| i64::from(width.max(1)));
        let window = Query {
            from: Some(from),
            to: Some(to),
            step,
            ..Query::default()
        };
        let steps = self.steps(&window, width)?;
        let seconds = self.seconds(steps);
        let mut series = Vec::new();
        let names = self.dictionary.names();
        let names: Vec<&Name> = names.filter(|name| is_wanted(&name.text)).collect();
        let held = self.in_window(&ids_of(&names), steps);
        for name in names {
            let function = sparkline_function(name.kind);
            for &id in &name.series {
                let columns = self.columns(&[id], &[], name.kind, steps, &held);
                let pairs = self.dictionary.labels(id).pairs();
                series.extend(columns.into_values().map(|column| {
                    SeriesColumn {
                        name: name.text.to_string(),
                        kind: name.kind,
                        tags: pairs
                            .clone()
                            .map(|(key, value)| (key.to_owned(), value.to_owned()))
                            .collect(),
                        values: column.values(function, &seconds),
                    }
                }));
            }
        }
        series.sort_by(|a, b| (&a.name, &a.tags).cmp(&(&b.name, &b.tags)));
        Ok(SeriesColumns {
            step: steps.step as u32,
            times: steps.times().collect(),
            series,
        })
    }

    /// The last `count` buckets, for overviews. `None` without buckets.
    pub(crate) fn last_steps(&self, count: usize) -> Option<Steps> {
        let (last, width) = self.newest()?;
        let step = i64::from(width.max(1));
        Some(Steps {
            first: last - (count as i64 - 1) * step,
            step,
            count,
        })
    }

    /// One line with the points of a metric.
    pub(crate) fn sparkline(&self, metric: &Name, steps: Steps, held: &InWindow<'_>) -> Vec<Option<f64>> {
        let columns = self.columns(&metric.series, &[], metric.kind, steps, held);
        let seconds = self.seconds(steps);
        let function = sparkline_function(metric.kind);
        columns
            .into_values()
            .next()
            .map_or_else(Vec::new, |column| column.values(function, &seconds))
    }
}

/// Whether a series has this tag, or one whose value fits the pattern.
fn has(labels: Labels<'_>, key: &str, value: &str) -> bool {
    if !value.contains(['*', '?']) {
        return labels.has(key, value);
    }
    let mut pairs = labels.pairs();
    pairs.any(|(own, text)| own == key && matches(value, text))
}

/// The ids of all series of these metrics.
pub(crate) fn ids_of(names: &[&Name]) -> Vec<SeriesId> {
    names
        .iter()
        .flat_map(|name| name.series.iter().copied())
        .collect()
}

fn sparkline_function(kind: SeriesKind) -> Function {
    match kind {
        SeriesKind::Distribution | SeriesKind::Histogram => Function::Rate,
        kind => Function::default_of(kind),
    }
}

/// The points in a window: closed segments that overlap it, and the points of open buckets by series.
#[derive(Default)]
pub(crate) struct InWindow<'a> {
    segments: Vec<&'a Segment>,
    scalars: Vec<(SeriesId, i64, f64)>,
    sketches: Vec<(SeriesId, i64, &'a [u8])>,
}

impl InWindow<'_> {
    fn each_scalar(&self, id: SeriesId, mut point: impl FnMut(i64, f64)) {
        let segments = self.segments.iter();
        segments.for_each(|segment| segment.scalars_of(id, &mut point));
        of_series(&self.scalars, id, |scalar| scalar.0)
            .iter()
            .for_each(|&(_, time, value)| point(time, value));
    }

    fn each_sketch(&self, id: SeriesId, mut point: impl FnMut(i64, Sketch)) {
        let segments = self.segments.iter();
        segments.for_each(|segment| segment.sketches_of(id, &mut point));
        of_series(&self.sketches, id, |sketch| sketch.0)
            .iter()
            .for_each(|&(_, time, mut bytes)| point(time, sketch::decode(&mut bytes)));
    }
}

fn of_series<T>(points: &[T], id: SeriesId, id_of: impl Fn(&T) -> SeriesId) -> &[T] {
    let start = points.partition_point(|point| id_of(point) < id);
    let rest = &points[start..];
    &rest[..rest.partition_point(|point| id_of(point) == id)]
}

/// A group's values of the grouping keys. `None` for `other`.
type Tagged = (Option<Vec<Option<String>>>, Column);

/// The largest groups, ordered by their tags, and one more for all others.
fn fold(columns: HashMap<Vec<Option<String>>, Column>) -> (Vec<Tagged>, usize) {
    let mut all: Vec<_> = columns.into_iter().collect();
    all.sort_by(|(a, left), (b, right)| right.weight().total_cmp(&left.weight()).then_with(|| a.cmp(b)));
    let rest = all.split_off(all.len().min(GROUPS_MAX));
    let folded = rest.len();
    let other = rest
        .into_iter()
        .map(|(_, column)| column)
        .reduce(|mut other, column| {
            other.merge(column);
            other
        });
    all.sort_by(|(a, _), (b, _)| a.cmp(b));
    let kept = all.into_iter().map(|(tags, column)| (Some(tags), column));
    (kept.chain(other.map(|column| (None, column))).collect(), folded)
}

fn heatmap(columns: &[Tagged]) -> Heatmap {
    let whole = columns
        .iter()
        .map(|(_, column)| column.clone())
        .reduce(|mut whole, column| {
            whole.merge(column);
            whole
        });
    let Some(whole) = whole else {
        return Heatmap {
            rows: Vec::new(),
            counts: Vec::new(),
        };
    };
    let sketches: Vec<_> = whole.sketches().collect();
    Heatmap::of(sketches.iter().copied())
}
