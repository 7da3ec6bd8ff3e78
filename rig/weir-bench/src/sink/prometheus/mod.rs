//! Prometheus: the exposition formats of a scrape (text and protobuf) and remote write 1.0 and 2.0.

mod native;
mod protobuf;

pub use protobuf::{delimited, remote_write};

use super::Reject;
use super::record::{Bucket, Data, Point, PointKind, Record, Text};
use std::collections::{HashMap, HashSet};
use weir_rig_base::prometheus::{self, Labels, Line, Sample, float};

/// Why a metric is refused whose encoding is valid.
#[derive(Debug, thiserror::Error)]
enum MetricError {
    #[error("no value of the family's kind")]
    NoValue,
    #[error("no summary")]
    NoSummary,
    #[error("no histogram")]
    NoHistogram,
    #[error("no _count")]
    NoCount,
    #[error("the last bucket must be +Inf and hold the count")]
    LastBucket,
    #[error("buckets that do not ascend")]
    BucketOrder,
    #[error("a bucket with the count {0}")]
    NegativeBucket(f64),
    #[error("spans of {spanned} buckets and {given} counts")]
    Spans { spanned: usize, given: usize },
    #[error("unknown schema {0}")]
    Schema(i32),
    #[error("a count of {count} whose buckets hold {held}")]
    Count { count: f64, held: f64 },
    #[error("no __name__")]
    NoName,
    #[error("label names must ascend, each once")]
    LabelOrder,
    #[error("an empty label name or value")]
    EmptyLabel,
    #[error("samples must ascend in time")]
    SampleOrder,
}

/// A point of `metric` with these labels; the label `host` is the host.
fn point(metric: &str, kind: PointKind, labels: &Labels, ts_ms: Option<i64>, data: Data) -> Record {
    let mut host = String::new();
    let mut tags = Vec::new();
    for (name, value) in labels {
        if name == "host" {
            host = value.clone();
        } else {
            tags.push(format!("{name}:{value}"));
        }
    }
    Record::Point(Point {
        metric: metric.to_owned(),
        kind,
        host,
        tags,
        ts: ts_ms.map(|ms| ms as f64 / 1e3),
        data,
        ..Point::default()
    })
}

/// Decodes the text format.
pub fn text(body: &[u8]) -> Result<Vec<Record>, Reject> {
    let body = std::str::from_utf8(body).map_err(|error| Reject::new(400, format!("not UTF-8: {error}")))?;
    let mut exposition = Exposition::default();
    for (index, text) in body.lines().enumerate() {
        exposition
            .line(text)
            .map_err(|what| Reject::new(400, format!("line {}: {what}: {text:?}", index + 1)))?;
    }
    for group in exposition.groups {
        exposition.records.push(group.finish()?);
    }
    Ok(exposition.records)
}

/// The parsed part of an exposition.
#[derive(Default)]
struct Exposition<'a> {
    kinds: HashMap<&'a str, &'a str>,
    seen: HashSet<(&'a str, Labels)>,
    records: Vec<Record>,
    /// Summaries and histograms have several lines, which are collected by family and labels, in order of appearance.
    groups: Vec<Group>,
    group_of: HashMap<(&'a str, Labels), usize>,
}

impl<'a> Exposition<'a> {
    fn line(&mut self, text: &'a str) -> Result<(), &'static str> {
        match prometheus::line(text)? {
            Line::Comment => Ok(()),
            Line::Type { name, kind } => match self.kinds.insert(name, kind) {
                Some(_) => Err("a second TYPE for this name"),
                None => Ok(()),
            },
            Line::Sample(sample) => self.sample(sample),
        }
    }

    fn sample(&mut self, sample: Sample<'a>) -> Result<(), &'static str> {
        let mut identity = sample.labels.clone();
        identity.sort();
        if identity.windows(2).any(|pair| pair[0].0 == pair[1].0) {
            return Err("a label name twice");
        }
        if !self.seen.insert((sample.name, identity)) {
            return Err("a series twice");
        }
        match self.family(sample.name) {
            Some((base, part)) => self.part(base, part, sample),
            None => {
                let kind = self.kind(sample.name);
                let data = Data::Number { value: sample.value };
                self.records
                    .push(point(sample.name, kind, &sample.labels, sample.ts_ms, data));
                Ok(())
            }
        }
    }

    /// The summary or histogram of a line, and which part of it the line is.
    fn family(&self, name: &'a str) -> Option<(&'a str, &'static str)> {
        let part_of = |suffix: &'static str| {
            let base = name.strip_suffix(suffix)?;
            matches!(self.kinds.get(base), Some(&("histogram" | "summary"))).then_some((base, suffix))
        };
        ["_bucket", "_sum", "_count"]
            .into_iter()
            .find_map(part_of)
            .or_else(|| (self.kinds.get(name) == Some(&"summary")).then_some((name, "quantile")))
    }

    fn part(&mut self, base: &'a str, part: &str, sample: Sample<'a>) -> Result<(), &'static str> {
        let edge = if part == "quantile" { "quantile" } else { "le" };
        let mut labels = sample.labels;
        let at = labels.iter().position(|(name, _)| name == edge);
        let edge = at.map(|at| labels.remove(at).1);
        let groups = &mut self.groups;
        let group = *self.group_of.entry((base, labels.clone())).or_insert_with(|| {
            groups.push(Group::new(base, labels));
            groups.len() - 1
        });
        groups[group].add(part, edge.as_deref(), sample.value)
    }

    fn kind(&self, name: &str) -> PointKind {
        match self.kinds.get(name) {
            Some(&"counter") => PointKind::Cumulative,
            Some(&"gauge") => PointKind::Gauge,
            None if name.ends_with("_total")
                && self.kinds.get(name.trim_end_matches("_total")) == Some(&"counter") =>
            {
                PointKind::Cumulative
            }
            _ => PointKind::Untyped,
        }
    }
}

/// The lines of one summary or histogram.
struct Group {
    name: String,
    labels: Labels,
    count: Option<f64>,
    sum: Option<f64>,
    quantiles: Vec<(f64, Text)>,
    /// Upper bound and cumulative count.
    bounds: Vec<(f64, f64)>,
}

impl Group {
    fn new(name: &str, labels: Labels) -> Group {
        Group {
            name: name.to_owned(),
            labels,
            count: None,
            sum: None,
            quantiles: Vec::new(),
            bounds: Vec::new(),
        }
    }

    fn add(&mut self, part: &str, edge: Option<&str>, value: f64) -> Result<(), &'static str> {
        match part {
            "_sum" => self.sum = Some(value),
            "_count" => self.count = Some(value),
            "_bucket" => {
                let upto = edge.and_then(float).ok_or("a bucket without le")?;
                self.bounds.push((upto, value));
            }
            _ => {
                let quantile = edge.and_then(float).ok_or("a summary value without quantile")?;
                self.quantiles.push((quantile, Text(value)));
            }
        }
        Ok(())
    }

    fn finish(self) -> Result<Record, Reject> {
        let wrong =
            |error: MetricError| Reject::new(400, format!("{} {:?}: {error}", self.name, self.labels));
        let count = self.count.ok_or_else(|| wrong(MetricError::NoCount))?;
        let buckets = differences(&self.bounds).map_err(wrong)?;
        if self
            .bounds
            .last()
            .is_some_and(|&(upto, held)| upto != f64::INFINITY || held != count)
        {
            return Err(wrong(MetricError::LastBucket));
        }
        let data = distribution(count, self.sum, buckets, self.quantiles);
        Ok(point(
            &self.name,
            PointKind::CumulativeDistribution,
            &self.labels,
            None,
            data,
        ))
    }
}

/// Cumulative counts by upper bound to buckets.
fn differences(bounds: &[(f64, f64)]) -> Result<Vec<Bucket>, MetricError> {
    let mut below = (f64::NEG_INFINITY, 0.0);
    let mut buckets = Vec::new();
    for &(upto, held) in bounds {
        if upto <= below.0 || held < below.1 {
            return Err(MetricError::BucketOrder);
        }
        buckets.push(Bucket {
            above: below.0,
            upto,
            count: held - below.1,
        });
        below = (upto, held);
    }
    Ok(buckets)
}

/// Prometheus has no extremes.
fn distribution(count: f64, sum: Option<f64>, buckets: Vec<Bucket>, quantiles: Vec<(f64, Text)>) -> Data {
    Data::Distribution {
        count,
        sum,
        min: None,
        max: None,
        buckets,
        quantiles,
    }
}

#[cfg(test)]
mod tests;
