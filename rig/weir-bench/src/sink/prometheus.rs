//! Prometheus: the exposition formats of a scrape (text and protobuf) and remote write 1.0 and 2.0.

use super::protobuf::prometheus as pb;
use super::record::{Bucket, Data, Kind, Point, Record, Text};
use super::{Reject, body_of};
use prost::Message;
use std::collections::{BTreeMap, HashMap, HashSet};
use weir_rig_base::prometheus::{self, Labels, Line, Sample, float};

/// A point of `metric` with these labels; the label `host` is the host.
fn point(metric: &str, kind: Kind, labels: &Labels, ts_ms: Option<i64>, data: Data) -> Record {
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

/// An exposition as far as it has been read.
#[derive(Default)]
struct Exposition<'a> {
    kinds: HashMap<&'a str, &'a str>,
    seen: HashSet<(&'a str, Labels)>,
    records: Vec<Record>,
    /// Summaries and histograms come as several lines; they are collected by family and labels, in order of appearance.
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

    /// The summary or histogram that a line belongs to, and which part of it the line is.
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

    fn kind(&self, name: &str) -> Kind {
        match self.kinds.get(name) {
            Some(&"counter") => Kind::Cumulative,
            Some(&"gauge") => Kind::Gauge,
            None if name.ends_with("_total")
                && self.kinds.get(name.trim_end_matches("_total")) == Some(&"counter") =>
            {
                Kind::Cumulative
            }
            _ => Kind::Untyped,
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
        let wrong = |what: &str| Reject::new(400, format!("{} {:?}: {what}", self.name, self.labels));
        let count = self.count.ok_or_else(|| wrong("no _count"))?;
        let buckets = differences(&self.bounds).map_err(&wrong)?;
        if self
            .bounds
            .last()
            .is_some_and(|&(upto, held)| upto != f64::INFINITY || held != count)
        {
            return Err(wrong("the last bucket must be +Inf and hold the count"));
        }
        let data = Data::Distribution {
            count,
            sum: self.sum,
            min: None,
            max: None,
            buckets,
            quantiles: self.quantiles,
        };
        Ok(point(
            &self.name,
            Kind::CumulativeDistribution,
            &self.labels,
            None,
            data,
        ))
    }
}

/// Cumulative counts by upper bound to buckets.
fn differences(bounds: &[(f64, f64)]) -> Result<Vec<Bucket>, &'static str> {
    let mut below = (f64::NEG_INFINITY, 0.0);
    let mut buckets = Vec::new();
    for &(upto, held) in bounds {
        if upto <= below.0 || held < below.1 {
            return Err("buckets that do not ascend");
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

/// Decodes the length-delimited protobuf exposition.
pub fn delimited(mut body: &[u8]) -> Result<Vec<Record>, Reject> {
    let mut records = Vec::new();
    while !body.is_empty() {
        let family = pb::MetricFamily::decode_length_delimited(&mut body)
            .map_err(|error| Reject::new(400, format!("not a metric family: {error}")))?;
        let family_kind = family.kind();
        for metric in family.metrics {
            let labels: Labels = metric
                .labels
                .into_iter()
                .map(|label| (label.name, label.value))
                .collect();
            let wrong = |what: &str| Reject::new(400, format!("{}: {what}", family.name));
            let number = |value: Option<pb::Number>| {
                value
                    .map(|number| Data::Number { value: number.value })
                    .ok_or_else(|| wrong("no value of the family's kind"))
            };
            let (kind, data) = match family_kind {
                pb::FamilyKind::Counter => (Kind::Cumulative, number(metric.counter)?),
                pb::FamilyKind::Gauge => (Kind::Gauge, number(metric.gauge)?),
                pb::FamilyKind::Untyped => (Kind::Untyped, number(metric.untyped)?),
                pb::FamilyKind::Summary => {
                    let summary = metric.summary.ok_or_else(|| wrong("no summary"))?;
                    let data = Data::Distribution {
                        count: summary.count as f64,
                        sum: Some(summary.sum),
                        min: None,
                        max: None,
                        buckets: Vec::new(),
                        quantiles: summary
                            .quantiles
                            .iter()
                            .map(|q| (q.quantile, Text(q.value)))
                            .collect(),
                    };
                    (Kind::CumulativeDistribution, data)
                }
                pb::FamilyKind::Histogram | pb::FamilyKind::GaugeHistogram => {
                    let histogram = metric.histogram.ok_or_else(|| wrong("no histogram"))?;
                    (
                        Kind::CumulativeDistribution,
                        scraped(&histogram).map_err(|what| wrong(&what))?,
                    )
                }
            };
            records.push(point(&family.name, kind, &labels, metric.timestamp_ms, data));
        }
    }
    Ok(records)
}

fn scraped(histogram: &pb::ScrapeHistogram) -> Result<Data, String> {
    let count = if histogram.count_float > 0.0 {
        histogram.count_float
    } else {
        histogram.count as f64
    };
    let native = !histogram.positive_spans.is_empty()
        || !histogram.negative_spans.is_empty()
        || histogram.zero_count > 0
        || histogram.zero_count_float > 0.0;
    let buckets = if native {
        let zero = histogram.zero_count_float.max(histogram.zero_count as f64);
        native_buckets(&Native {
            schema: histogram.schema.unwrap_or(0),
            zero_threshold: histogram.zero_threshold,
            zero,
            negative: Side::new(
                &histogram.negative_spans,
                &histogram.negative_deltas,
                &histogram.negative_counts,
            ),
            positive: Side::new(
                &histogram.positive_spans,
                &histogram.positive_deltas,
                &histogram.positive_counts,
            ),
            custom_bounds: &[],
            count,
        })?
    } else {
        let bounds: Vec<(f64, f64)> = histogram
            .buckets
            .iter()
            .map(|bucket| {
                (
                    bucket.upper_bound,
                    if bucket.cumulative_float > 0.0 {
                        bucket.cumulative_float
                    } else {
                        bucket.cumulative as f64
                    },
                )
            })
            .collect();
        differences(&bounds)?
    };
    Ok(Data::Distribution {
        count,
        sum: Some(histogram.sum),
        min: None,
        max: None,
        buckets,
        quantiles: Vec::new(),
    })
}

/// One side of a native histogram.
struct Side<'a> {
    spans: &'a [pb::Span],
    deltas: &'a [i64],
    counts: &'a [f64],
}

impl<'a> Side<'a> {
    fn new(spans: &'a [pb::Span], deltas: &'a [i64], counts: &'a [f64]) -> Side<'a> {
        Side {
            spans,
            deltas,
            counts,
        }
    }

    /// Bucket indexes and their counts, ascending.
    fn buckets(&self) -> Result<Vec<(i64, f64)>, String> {
        let spanned: usize = self.spans.iter().map(|span| span.length as usize).sum();
        let given = self.deltas.len().max(self.counts.len());
        if spanned != given {
            return Err(format!("spans of {spanned} buckets and {given} counts"));
        }
        let mut buckets = Vec::with_capacity(spanned);
        let mut index = 0i64;
        let mut count = 0i64;
        for span in self.spans {
            // The first offset is an index; the others are gaps.
            index += i64::from(span.offset);
            for _ in 0..span.length {
                let at = buckets.len();
                let held = match self.counts.get(at) {
                    Some(&held) => held,
                    None => {
                        count += self.deltas[at];
                        count as f64
                    }
                };
                if held < 0.0 {
                    return Err(format!("a bucket with the count {held}"));
                }
                buckets.push((index, held));
                index += 1;
            }
        }
        Ok(buckets)
    }
}

struct Native<'a> {
    schema: i32,
    zero_threshold: f64,
    zero: f64,
    negative: Side<'a>,
    positive: Side<'a>,
    /// Upper bounds of a histogram with custom buckets (schema -53).
    custom_bounds: &'a [f64],
    count: f64,
}

/// Bucket `i` of schema `s` holds values above `2^((i-1)/2^s)` up to `2^(i/2^s)`.
fn native_buckets(native: &Native) -> Result<Vec<Bucket>, String> {
    const CUSTOM: i32 = -53;
    if native.schema != CUSTOM && !(-4..=8).contains(&native.schema) {
        return Err(format!("unknown schema {}", native.schema));
    }
    let exponent = (-f64::from(native.schema)).exp2();
    let bound = |index: i64| match native.schema {
        CUSTOM => match usize::try_from(index) {
            Err(_) => f64::NEG_INFINITY,
            Ok(at) => native.custom_bounds.get(at).copied().unwrap_or(f64::INFINITY),
        },
        _ => (index as f64 * exponent).exp2(),
    };
    let mut buckets = Vec::new();
    for (index, count) in native.negative.buckets()?.into_iter().rev() {
        buckets.push(Bucket {
            above: -bound(index),
            upto: -bound(index - 1),
            count,
        });
    }
    if native.zero > 0.0 {
        buckets.push(Bucket {
            above: -native.zero_threshold,
            upto: native.zero_threshold,
            count: native.zero,
        });
    }
    for (index, count) in native.positive.buckets()? {
        buckets.push(Bucket {
            above: bound(index - 1),
            upto: bound(index),
            count,
        });
    }
    let held: f64 = buckets.iter().map(|bucket| bucket.count).sum();
    if held != native.count {
        return Err(format!("a count of {} whose buckets hold {held}", native.count));
    }
    Ok(buckets)
}

fn written(histogram: &pb::WriteHistogram) -> Result<Data, String> {
    let count = match histogram.count {
        Some(pb::Count::Int(count)) => count as f64,
        Some(pb::Count::Float(count)) => count,
        None => 0.0,
    };
    let zero = match histogram.zero_count {
        Some(pb::ZeroCount::Int(count)) => count as f64,
        Some(pb::ZeroCount::Float(count)) => count,
        None => 0.0,
    };
    let buckets = native_buckets(&Native {
        schema: histogram.schema,
        zero_threshold: histogram.zero_threshold,
        zero,
        negative: Side::new(
            &histogram.negative_spans,
            &histogram.negative_deltas,
            &histogram.negative_counts,
        ),
        positive: Side::new(
            &histogram.positive_spans,
            &histogram.positive_deltas,
            &histogram.positive_counts,
        ),
        custom_bounds: &histogram.custom_bounds,
        count,
    })?;
    Ok(Data::Distribution {
        count,
        sum: Some(histogram.sum),
        min: None,
        max: None,
        buckets,
        quantiles: Vec::new(),
    })
}

/// What a remote write held, counted as version 2.0 wants it told.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Written {
    pub samples: usize,
    pub histograms: usize,
}

/// Decodes a remote write body, already uncompressed; `version_2` as the content type says.
pub fn remote_write(body: &[u8], version_2: bool) -> Result<(Vec<Record>, Written), Reject> {
    let mut records = Vec::new();
    let mut written = Written::default();
    if version_2 {
        let request: pb::WriteRequest2 = body_of(body)?;
        if request.symbols.first().is_none_or(|first| !first.is_empty()) {
            return Err(Reject::new(400, "the first symbol must be the empty string"));
        }
        for series in request.timeseries {
            let symbol = |&at: &u32| {
                request
                    .symbols
                    .get(at as usize)
                    .cloned()
                    .ok_or_else(|| Reject::new(400, format!("label reference {at} beyond the symbols")))
            };
            let refs: Vec<String> = series.label_refs.iter().map(symbol).collect::<Result<_, _>>()?;
            if !refs.len().is_multiple_of(2) {
                return Err(Reject::new(400, "an odd number of label references"));
            }
            let labels = refs
                .chunks(2)
                .map(|pair| (pair[0].clone(), pair[1].clone()))
                .collect();
            let kind = series.metadata.map(|metadata| metadata.kind);
            series_points(
                labels,
                kind,
                &series.samples,
                &series.histograms,
                &mut records,
                &mut written,
            )?;
        }
    } else {
        let request: pb::WriteRequest = body_of(body)?;
        let kinds: BTreeMap<&str, i32> = request
            .metadata
            .iter()
            .map(|metadata| (metadata.family.as_str(), metadata.kind))
            .collect();
        for series in &request.timeseries {
            let labels: Labels = series
                .labels
                .iter()
                .map(|label| (label.name.clone(), label.value.clone()))
                .collect();
            let name = labels
                .iter()
                .find(|(name, _)| name == "__name__")
                .map(|(_, value)| value.as_str());
            let kind = name.and_then(|name| kinds.get(name).copied());
            series_points(
                labels,
                kind,
                &series.samples,
                &series.histograms,
                &mut records,
                &mut written,
            )?;
        }
    }
    Ok((records, written))
}

fn series_points(
    mut labels: Labels,
    kind: Option<i32>,
    samples: &[pb::Sample],
    histograms: &[pb::WriteHistogram],
    records: &mut Vec<Record>,
    written: &mut Written,
) -> Result<(), Reject> {
    let wrong = |what: &str| Reject::new(400, format!("series {labels:?}: {what}"));
    if !labels.windows(2).all(|pair| pair[0].0 < pair[1].0) {
        return Err(wrong("label names must ascend, each once"));
    }
    if labels
        .iter()
        .any(|(name, value)| name.is_empty() || value.is_empty())
    {
        return Err(wrong("an empty label name or value"));
    }
    let Some(at) = labels.iter().position(|(name, _)| name == "__name__") else {
        return Err(wrong("no __name__"));
    };
    let ascending = samples
        .windows(2)
        .all(|pair| pair[0].timestamp_ms < pair[1].timestamp_ms)
        && histograms
            .windows(2)
            .all(|pair| pair[0].timestamp_ms < pair[1].timestamp_ms);
    if !ascending {
        return Err(wrong("samples must ascend in time"));
    }
    let mut decoded = Vec::new();
    for histogram in histograms {
        decoded.push((histogram.timestamp_ms, written_or(histogram, &wrong)?));
    }
    let name = labels.remove(at).1;
    // Metadata types of both versions: 1 counter, 2 gauge. A name ending in _total is a counter by convention.
    let kind = match kind {
        Some(1) => Kind::Cumulative,
        Some(2) => Kind::Gauge,
        _ if name.ends_with("_total") => Kind::Cumulative,
        _ => Kind::Untyped,
    };
    written.samples += samples.len();
    written.histograms += histograms.len();
    for sample in samples {
        let data = Data::Number { value: sample.value };
        records.push(point(&name, kind, &labels, Some(sample.timestamp_ms), data));
    }
    for (ts_ms, data) in decoded {
        records.push(point(
            &name,
            Kind::CumulativeDistribution,
            &labels,
            Some(ts_ms),
            data,
        ));
    }
    Ok(())
}

fn written_or(histogram: &pb::WriteHistogram, wrong: &impl Fn(&str) -> Reject) -> Result<Data, Reject> {
    written(histogram).map_err(|what| wrong(&what))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn points(records: Vec<Record>) -> Vec<Point> {
        records
            .into_iter()
            .map(|record| match record {
                Record::Point(point) => point,
                other => panic!("{other:?}"),
            })
            .collect()
    }

    const TEXT: &str = r#"
# HELP a_total Things.
# TYPE a_total counter
a_total{x="y",host="h"} 3
a_total{x="q\"uo\\te\n"} 4 1700000000000
# TYPE g gauge
g +Inf
# TYPE s summary
s{a="b",quantile="0.5"} 2
s_sum{a="b"} 6
s_count{a="b"} 3
# TYPE h histogram
h_bucket{le="1"} 1
h_bucket{le="+Inf"} 4
h_sum 10
h_count 4
bare 1
"#;

    #[test]
    fn text_format_with_every_kind() {
        let points = points(text(TEXT.as_bytes()).unwrap());
        let row = |index: usize| (points[index].metric.as_str(), points[index].kind);
        assert_eq!(row(0), ("a_total", Kind::Cumulative));
        assert_eq!(
            (points[0].host.as_str(), points[0].tags.as_slice()),
            ("h", &["x:y".to_owned()][..])
        );
        assert_eq!(points[1].tags, ["x:q\"uo\\te\n"]);
        assert_eq!(points[1].ts, Some(1_700_000_000.0));
        assert_eq!(row(2), ("g", Kind::Gauge));
        assert_eq!(points[2].data, Data::Number { value: f64::INFINITY });
        assert_eq!(row(3), ("bare", Kind::Untyped));
        assert_eq!(row(4), ("s", Kind::CumulativeDistribution));
        let Data::Distribution {
            count,
            sum,
            quantiles,
            ..
        } = &points[4].data
        else {
            panic!()
        };
        assert_eq!(
            (*count, *sum, quantiles.as_slice()),
            (3.0, Some(6.0), &[(0.5, Text(2.0))][..])
        );
        let Data::Distribution { buckets, .. } = &points[5].data else {
            panic!()
        };
        assert_eq!(buckets.iter().map(|b| b.count).collect::<Vec<_>>(), [1.0, 3.0]);
    }

    #[test]
    fn invalid_text_is_refused_with_its_line() {
        for (body, hint) in [
            ("a{b=\"c\"} x", "no number"),
            ("a{b=\"c\" 1", "a label without a value"),
            ("a{9b=\"c\"} 1", "not a label name"),
            ("a 1\na 2", "line 2: a series twice"),
            ("a{b=\"1\",b=\"2\"} 1", "a label name twice"),
            ("9a 1", "not a metric name"),
            (
                "# TYPE h histogram\nh_bucket{le=\"1\"} 2\nh_bucket{le=\"+Inf\"} 1\nh_sum 1\nh_count 1",
                "ascend",
            ),
            (
                "# TYPE h histogram\nh_bucket{le=\"1\"} 2\nh_sum 1\nh_count 2",
                "+Inf",
            ),
            ("# TYPE a counter\n# TYPE a gauge\n", "a second TYPE"),
        ] {
            let error = text(body.as_bytes()).unwrap_err();
            assert!(error.reason.contains(hint), "{body:?}: {error:?}");
        }
    }

    fn labels(pairs: &[(&str, &str)]) -> Vec<pb::Label> {
        pairs
            .iter()
            .map(|(name, value)| pb::Label {
                name: (*name).into(),
                value: (*value).into(),
            })
            .collect()
    }

    fn histogram(count: u64) -> pb::WriteHistogram {
        pb::WriteHistogram {
            count: Some(pb::Count::Int(count)),
            sum: 12.0,
            schema: 0,
            zero_threshold: 1e-9,
            zero_count: Some(pb::ZeroCount::Int(1)),
            // Buckets 1, 2 and 4: (1,2] (2,4] (8,16]; counts 2, 1, 3 as differences.
            positive_spans: vec![
                pb::Span { offset: 1, length: 2 },
                pb::Span { offset: 1, length: 1 },
            ],
            positive_deltas: vec![2, -1, 2],
            timestamp_ms: 5000,
            ..pb::WriteHistogram::default()
        }
    }

    #[test]
    fn remote_write_of_both_versions() {
        let request = pb::WriteRequest {
            timeseries: vec![pb::TimeSeries {
                labels: labels(&[("__name__", "a_total"), ("host", "h"), ("k", "v")]),
                samples: vec![pb::Sample {
                    value: 3.0,
                    timestamp_ms: 1500,
                }],
                histograms: vec![histogram(7)],
            }],
            metadata: Vec::new(),
        };
        let (records, written) = remote_write(&request.encode_to_vec(), false).unwrap();
        assert_eq!(
            written,
            Written {
                samples: 1,
                histograms: 1
            }
        );
        let first = points(records);
        assert_eq!(
            (first[0].metric.as_str(), first[0].kind, first[0].ts),
            ("a_total", Kind::Cumulative, Some(1.5))
        );
        assert_eq!(
            (first[0].host.as_str(), first[0].tags.as_slice()),
            ("h", &["k:v".to_owned()][..])
        );
        let Data::Distribution { buckets, .. } = &first[1].data else {
            panic!()
        };
        let rows: Vec<(f64, f64, f64)> = buckets.iter().map(|b| (b.above, b.upto, b.count)).collect();
        assert_eq!(
            rows,
            [
                (-1e-9, 1e-9, 1.0),
                (1.0, 2.0, 2.0),
                (2.0, 4.0, 1.0),
                (8.0, 16.0, 3.0)
            ]
        );

        let request = pb::WriteRequest2 {
            symbols: ["", "__name__", "a_total", "host", "h", "k", "v"]
                .map(String::from)
                .to_vec(),
            timeseries: vec![pb::TimeSeries2 {
                label_refs: vec![1, 2, 3, 4, 5, 6],
                samples: request.timeseries[0].samples.clone(),
                histograms: request.timeseries[0].histograms.clone(),
                metadata: Some(pb::Metadata2 {
                    kind: 1,
                    ..pb::Metadata2::default()
                }),
            }],
        };
        let (records, _) = remote_write(&request.encode_to_vec(), true).unwrap();
        assert_eq!(points(records), first);
    }

    #[test]
    fn what_a_remote_write_receiver_must_refuse() {
        let refused = |pairs: &[(&str, &str)], histograms: Vec<pb::WriteHistogram>, hint: &str| {
            let request = pb::WriteRequest {
                timeseries: vec![pb::TimeSeries {
                    labels: labels(pairs),
                    samples: Vec::new(),
                    histograms,
                }],
                metadata: Vec::new(),
            };
            let error = remote_write(&request.encode_to_vec(), false).unwrap_err();
            assert!(error.reason.contains(hint), "{error:?}");
        };
        refused(&[("k", "v")], vec![], "no __name__");
        refused(&[("k", "v"), ("__name__", "a")], vec![], "ascend");
        refused(&[("__name__", "a"), ("k", "")], vec![], "empty");
        refused(&[("__name__", "a")], vec![histogram(8)], "buckets hold 7");
    }

    #[test]
    fn protobuf_exposition_has_native_histograms() {
        let write = histogram(7);
        let family = pb::MetricFamily {
            name: "d".into(),
            kind: pb::FamilyKind::Histogram as i32,
            metrics: vec![pb::Metric {
                labels: labels(&[("k", "v")]),
                histogram: Some(pb::ScrapeHistogram {
                    count: 7,
                    sum: 12.0,
                    schema: Some(0),
                    zero_threshold: 1e-9,
                    zero_count: 1,
                    positive_spans: write.positive_spans.clone(),
                    positive_deltas: write.positive_deltas.clone(),
                    ..pb::ScrapeHistogram::default()
                }),
                ..pb::Metric::default()
            }],
            unit: String::new(),
        };
        let body = [
            family.encode_length_delimited_to_vec(),
            family.encode_length_delimited_to_vec(),
        ]
        .concat();
        let points = points(delimited(&body).unwrap());
        assert_eq!(points.len(), 2);
        let Data::Distribution { count, buckets, .. } = &points[0].data else {
            panic!()
        };
        assert_eq!((*count, buckets.len()), (7.0, 4));
        assert!(delimited(&body[..body.len() - 1]).is_err());
    }
}
