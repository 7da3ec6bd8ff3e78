//! Prometheus's protobuf formats: the delimited exposition, and remote write 1.0 and 2.0.

use super::native::{self, NativeHistogram, Side};
use super::{MetricError, differences, distribution, point};
use crate::sink::protobuf::prometheus as pb;
use crate::sink::record::{Data, PointKind, Record, Text};
use crate::sink::{Reject, body_of};
use prost::Message;
use std::collections::BTreeMap;
use weir_rig_base::prometheus::Labels;

/// Decodes the length-delimited protobuf exposition.
pub fn delimited(mut body: &[u8]) -> Result<Vec<Record>, Reject> {
    let mut records = Vec::new();
    while !body.is_empty() {
        let mut family = pb::MetricFamily::decode_length_delimited(&mut body)
            .map_err(|error| Reject::new(400, format!("not a metric family: {error}")))?;
        for mut metric in std::mem::take(&mut family.metrics) {
            let labels = std::mem::take(&mut metric.labels);
            let labels: Labels = labels
                .into_iter()
                .map(|label| (label.name, label.value))
                .collect();
            let (kind, data) = of_family(family.kind(), &metric)
                .map_err(|error| Reject::new(400, format!("{}: {error}", family.name)))?;
            records.push(point(&family.name, kind, &labels, metric.timestamp_ms, data));
        }
    }
    Ok(records)
}

/// The data of a metric of a family of this kind.
fn of_family(kind: pb::FamilyKind, metric: &pb::Metric) -> Result<(PointKind, Data), MetricError> {
    let number = |value: Option<pb::Number>| match value {
        Some(number) => Ok(Data::Number { value: number.value }),
        None => Err(MetricError::NoValue),
    };
    Ok(match kind {
        pb::FamilyKind::Counter => (PointKind::Cumulative, number(metric.counter)?),
        pb::FamilyKind::Gauge => (PointKind::Gauge, number(metric.gauge)?),
        pb::FamilyKind::Untyped => (PointKind::Untyped, number(metric.untyped)?),
        pb::FamilyKind::Summary => {
            let summary = metric.summary.as_ref().ok_or(MetricError::NoSummary)?;
            let quantiles = summary.quantiles.iter().map(|q| (q.quantile, Text(q.value)));
            let count = summary.count as f64;
            let data = distribution(count, Some(summary.sum), Vec::new(), quantiles.collect());
            (PointKind::CumulativeDistribution, data)
        }
        pb::FamilyKind::Histogram | pb::FamilyKind::GaugeHistogram => {
            let histogram = metric.histogram.as_ref().ok_or(MetricError::NoHistogram)?;
            (PointKind::CumulativeDistribution, scraped(histogram)?)
        }
    })
}

/// The two sides of a native histogram, for either message type.
macro_rules! sides {
    ($histogram:expr) => {
        (
            Side {
                spans: &$histogram.negative_spans,
                deltas: &$histogram.negative_deltas,
                counts: &$histogram.negative_counts,
            },
            Side {
                spans: &$histogram.positive_spans,
                deltas: &$histogram.positive_deltas,
                counts: &$histogram.positive_counts,
            },
        )
    };
}

fn scraped(histogram: &pb::ScrapeHistogram) -> Result<Data, MetricError> {
    // Of two fields for one number, the float counts if it is set.
    let either = |float: f64, int: u64| if float > 0.0 { float } else { int as f64 };
    let count = either(histogram.count_float, histogram.count);
    let zero = either(histogram.zero_count_float, histogram.zero_count);
    let spans = histogram.positive_spans.len() + histogram.negative_spans.len();
    let buckets = if spans > 0 || zero > 0.0 {
        let (negative, positive) = sides!(histogram);
        native::buckets(&NativeHistogram {
            schema: histogram.schema.unwrap_or(0),
            zero_threshold: histogram.zero_threshold,
            zero,
            negative,
            positive,
            custom_bounds: &[],
            count,
        })?
    } else {
        let bounds = histogram.buckets.iter();
        let bounds = bounds.map(|b| (b.upper_bound, either(b.cumulative_float, b.cumulative)));
        differences(&bounds.collect::<Vec<_>>())?
    };
    Ok(distribution(count, Some(histogram.sum), buckets, Vec::new()))
}

fn written(histogram: &pb::WriteHistogram) -> Result<Data, MetricError> {
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
    let (negative, positive) = sides!(histogram);
    let buckets = native::buckets(&NativeHistogram {
        schema: histogram.schema,
        zero_threshold: histogram.zero_threshold,
        zero,
        negative,
        positive,
        custom_bounds: &histogram.custom_bounds,
        count,
    })?;
    Ok(distribution(count, Some(histogram.sum), buckets, Vec::new()))
}

/// The contents of a remote write, counted as version 2.0 reports them.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct WriteCounts {
    pub samples: usize,
    pub histograms: usize,
}

/// Decodes an uncompressed remote write body; `version_2`: according to the content type.
pub fn remote_write(body: &[u8], version_2: bool) -> Result<(Vec<Record>, WriteCounts), Reject> {
    let series = if version_2 {
        version_two(body)?
    } else {
        version_one(body)?
    };
    let mut written = WriteCounts::default();
    let mut records = Vec::new();
    for series in series {
        written.samples += series.samples.len();
        written.histograms += series.histograms.len();
        records.extend(series.records()?);
    }
    Ok((records, written))
}

/// A series of either version.
struct Series {
    labels: Labels,
    /// Types of both versions' metadata: 1 counter, 2 gauge.
    kind: Option<i32>,
    samples: Vec<pb::Sample>,
    histograms: Vec<pb::WriteHistogram>,
}

fn version_one(body: &[u8]) -> Result<Vec<Series>, Reject> {
    let request: pb::WriteRequest = body_of(body)?;
    let metadata = request.metadata.into_iter();
    let kinds: BTreeMap<String, i32> = metadata.map(|m| (m.family, m.kind)).collect();
    let series = request.timeseries.into_iter().map(|series| {
        let name = series.labels.iter().find(|label| label.name == "__name__");
        Series {
            kind: name.and_then(|name| kinds.get(&name.value).copied()),
            labels: series
                .labels
                .into_iter()
                .map(|label| (label.name, label.value))
                .collect(),
            samples: series.samples,
            histograms: series.histograms,
        }
    });
    Ok(series.collect())
}

fn version_two(body: &[u8]) -> Result<Vec<Series>, Reject> {
    let pb::WriteRequest2 { symbols, timeseries } = body_of(body)?;
    if symbols.first().is_none_or(|first| !first.is_empty()) {
        return Err(Reject::new(400, "the first symbol must be the empty string"));
    }
    let symbol = |at: u32| {
        let beyond = || Reject::new(400, format!("label reference {at} beyond the symbols"));
        symbols.get(at as usize).cloned().ok_or_else(beyond)
    };
    let series = timeseries.into_iter().map(|series| {
        let (pairs, odd) = series.label_refs.as_chunks::<2>();
        if !odd.is_empty() {
            return Err(Reject::new(400, "an odd number of label references"));
        }
        let label = |&[name, value]: &[u32; 2]| Ok((symbol(name)?, symbol(value)?));
        Ok(Series {
            labels: pairs.iter().map(label).collect::<Result<_, Reject>>()?,
            kind: series.metadata.map(|metadata| metadata.kind),
            samples: series.samples,
            histograms: series.histograms,
        })
    });
    series.collect()
}

impl Series {
    fn records(mut self) -> Result<Vec<Record>, Reject> {
        let labels = format!("{:?}", self.labels);
        let wrong = |error: MetricError| Reject::new(400, format!("series {labels}: {error}"));
        let name = self.checked_name().map_err(wrong)?;
        let kind = match self.kind {
            Some(1) => PointKind::Cumulative,
            Some(2) => PointKind::Gauge,
            // By convention.
            _ if name.ends_with("_total") => PointKind::Cumulative,
            _ => PointKind::Untyped,
        };
        let mut records = Vec::new();
        for sample in &self.samples {
            let data = Data::Number { value: sample.value };
            records.push(point(&name, kind, &self.labels, Some(sample.timestamp_ms), data));
        }
        for histogram in &self.histograms {
            let data = written(histogram).map_err(wrong)?;
            let (kind, time) = (PointKind::CumulativeDistribution, Some(histogram.timestamp_ms));
            records.push(point(&name, kind, &self.labels, time, data));
        }
        Ok(records)
    }

    /// Removes the name from the labels, and checks them as a receiver does.
    fn checked_name(&mut self) -> Result<String, MetricError> {
        let labels = &self.labels;
        let ascend = |times: &[i64]| times.is_sorted_by(|a, b| a < b);
        let samples: Vec<i64> = self.samples.iter().map(|s| s.timestamp_ms).collect();
        let histograms: Vec<i64> = self.histograms.iter().map(|h| h.timestamp_ms).collect();
        if !labels.is_sorted_by(|a, b| a.0 < b.0) {
            return Err(MetricError::LabelOrder);
        }
        if labels
            .iter()
            .any(|(name, value)| name.is_empty() || value.is_empty())
        {
            return Err(MetricError::EmptyLabel);
        }
        let at = labels
            .iter()
            .position(|(name, _)| name == "__name__")
            .ok_or(MetricError::NoName)?;
        if !ascend(&samples) || !ascend(&histograms) {
            return Err(MetricError::SampleOrder);
        }
        Ok(self.labels.remove(at).1)
    }
}
