//! OpenTelemetry: metrics, logs and traces as agents export them, over HTTP and gRPC.
//!
//! The messages come from the crate `opentelemetry-proto`: an independent implementation, so that our own misreading of a field cannot hide
//! here.

use super::record::{Bucket, Data, Point, PointKind, Record, Text};
use super::{Reject, body_of};
use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::metrics::v1::exponential_histogram_data_point::Buckets;
use opentelemetry_proto::tonic::metrics::v1::metric::Data as MetricData;
use opentelemetry_proto::tonic::metrics::v1::{
    AggregationTemporality, DataPointFlags, ExponentialHistogramDataPoint, HistogramDataPoint,
    NumberDataPoint, SummaryDataPoint, number_data_point,
};
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use serde_json::Value;
use std::collections::BTreeMap;

/// Decodes an `ExportMetricsServiceRequest`.
pub fn metrics(body: &[u8]) -> Result<Vec<Record>, Reject> {
    let request: ExportMetricsServiceRequest = body_of(body)?;
    let mut records = Vec::new();
    for group in request.resource_metrics {
        let (host, resource) = host_of(group.resource.unwrap_or_default().attributes);
        for scoped in group.scope_metrics {
            let mut extra = BTreeMap::new();
            if !resource.is_empty() {
                extra.insert("resource".to_owned(), serde_json::json!(resource));
            }
            if let Some(scope) = scoped.scope {
                extra.insert("scope".to_owned(), scope.name.into());
            }
            for metric in scoped.metrics {
                let mut base = Point {
                    metric: metric.name,
                    host: host.clone(),
                    extra: extra.clone(),
                    ..Point::default()
                };
                if base.metric.is_empty() {
                    return Err(Reject::new(400, "a metric without a name"));
                }
                if !metric.unit.is_empty() {
                    base.extra.insert("unit".into(), metric.unit.into());
                }
                let name = base.metric.clone();
                Points {
                    base,
                    records: &mut records,
                }
                .metric(metric.data)
                .map_err(|what| Reject::new(400, format!("{name}: {what}")))?;
            }
        }
    }
    Ok(records)
}

/// The host of a resource, and its other attributes.
fn host_of(attributes: Vec<KeyValue>) -> (String, BTreeMap<String, Value>) {
    let mut resource = BTreeMap::new();
    let mut host = String::new();
    for attribute in attributes {
        let value = text(attribute.value.as_ref());
        if attribute.key == "host.name" {
            host = value;
        } else {
            resource.insert(attribute.key, Value::from(value));
        }
    }
    (host, resource)
}

/// Points with data. A point that ends its series has a flag for a missing value.
fn recorded<T>(points: &[T], flags: impl Fn(&T) -> u32) -> impl Iterator<Item = &T> {
    let no_recorded_value = DataPointFlags::NoRecordedValueMask as u32;
    points
        .iter()
        .filter(move |point| flags(point) & no_recorded_value == 0)
}

/// Why a metric is refused.
#[derive(Debug, thiserror::Error)]
enum PointError {
    #[error("no data")]
    NoData,
    #[error("no aggregation temporality")]
    NoTemporality,
    #[error("a point without a value")]
    NoValue,
    #[error("a negative value in a monotonic sum")]
    NegativeSum,
    #[error("buckets that do not add up to the count")]
    BucketSum,
    #[error("one bucket more than bounds was expected")]
    BucketNumber,
    #[error("a count of {count} whose buckets hold {held}")]
    Count { count: u64, held: f64 },
}

/// The points of one metric, from one base.
struct Points<'a> {
    base: Point,
    records: &'a mut Vec<Record>,
}

impl Points<'_> {
    fn metric(&mut self, data: Option<MetricData>) -> Result<(), PointError> {
        match data.ok_or(PointError::NoData)? {
            MetricData::Gauge(gauge) => {
                recorded(&gauge.data_points, |point| point.flags).try_for_each(|point| self.gauge(point))
            }
            MetricData::Sum(sum) => {
                let kind = match is_delta(sum.aggregation_temporality)? {
                    true => PointKind::Count,
                    false => PointKind::Cumulative,
                };
                recorded(&sum.data_points, |point| point.flags)
                    .try_for_each(|point| self.sum(kind, sum.is_monotonic, point))
            }
            MetricData::Histogram(histogram) => {
                let kind = distribution(histogram.aggregation_temporality)?;
                recorded(&histogram.data_points, |point| point.flags)
                    .try_for_each(|point| self.histogram(kind, point))
            }
            MetricData::ExponentialHistogram(histogram) => {
                let kind = distribution(histogram.aggregation_temporality)?;
                recorded(&histogram.data_points, |point| point.flags)
                    .try_for_each(|point| self.exponential(kind, point))
            }
            MetricData::Summary(summary) => {
                recorded(&summary.data_points, |point| point.flags).for_each(|point| self.summary(point));
                Ok(())
            }
        }
    }

    fn push(&mut self, kind: PointKind, times: (u64, u64), attributes: &[KeyValue], data: Data) {
        let (start_ns, time_ns) = times;
        let mut point = Point {
            kind,
            ts: Some(time_ns as f64 / 1e9),
            interval: (start_ns != 0).then(|| (time_ns.saturating_sub(start_ns) / 1_000_000_000) as i64),
            tags: tags(attributes),
            data,
            ..self.base.clone()
        };
        if start_ns != 0 {
            point.extra.insert("start_ns".into(), start_ns.into());
        }
        self.records.push(Record::Point(point));
    }

    fn gauge(&mut self, point: &NumberDataPoint) -> Result<(), PointError> {
        let value = number(point).ok_or(PointError::NoValue)?;
        let times = (0, point.time_unix_nano);
        self.push(PointKind::Gauge, times, &point.attributes, Data::Number { value });
        Ok(())
    }

    fn sum(
        &mut self,
        kind: PointKind,
        is_monotonic: bool,
        point: &NumberDataPoint,
    ) -> Result<(), PointError> {
        let value = number(point).ok_or(PointError::NoValue)?;
        if is_monotonic && value < 0.0 {
            return Err(PointError::NegativeSum);
        }
        let times = (point.start_time_unix_nano, point.time_unix_nano);
        self.push(kind, times, &point.attributes, Data::Number { value });
        Ok(())
    }

    fn histogram(&mut self, kind: PointKind, point: &HistogramDataPoint) -> Result<(), PointError> {
        if !point.bucket_counts.is_empty() {
            if point.bucket_counts.iter().sum::<u64>() != point.count {
                return Err(PointError::BucketSum);
            }
            if point.bucket_counts.len() != point.explicit_bounds.len() + 1 {
                return Err(PointError::BucketNumber);
            }
        }
        let data = Data::Distribution {
            count: point.count as f64,
            sum: point.sum,
            min: point.min,
            max: point.max,
            buckets: explicit_buckets(point),
            quantiles: Vec::new(),
        };
        let times = (point.start_time_unix_nano, point.time_unix_nano);
        self.push(kind, times, &point.attributes, data);
        Ok(())
    }

    fn exponential(
        &mut self,
        kind: PointKind,
        point: &ExponentialHistogramDataPoint,
    ) -> Result<(), PointError> {
        let buckets = exponential_buckets(point);
        let held: f64 = buckets.iter().map(|bucket| bucket.count).sum();
        let count = point.count;
        if held != count as f64 {
            return Err(PointError::Count { count, held });
        }
        let data = Data::Distribution {
            count: held,
            sum: point.sum,
            min: point.min,
            max: point.max,
            buckets,
            quantiles: Vec::new(),
        };
        let times = (point.start_time_unix_nano, point.time_unix_nano);
        self.push(kind, times, &point.attributes, data);
        Ok(())
    }

    fn summary(&mut self, point: &SummaryDataPoint) {
        let quantiles = point.quantile_values.iter();
        let data = Data::Distribution {
            count: point.count as f64,
            sum: Some(point.sum),
            min: None,
            max: None,
            buckets: Vec::new(),
            quantiles: quantiles.map(|q| (q.quantile, Text(q.value))).collect(),
        };
        // A summary has no temporality; with a start time it covers the time in between.
        let times = (point.start_time_unix_nano, point.time_unix_nano);
        self.push(PointKind::Distribution, times, &point.attributes, data);
    }
}

fn is_delta(temporality: i32) -> Result<bool, PointError> {
    match AggregationTemporality::try_from(temporality) {
        Ok(AggregationTemporality::Delta) => Ok(true),
        Ok(AggregationTemporality::Cumulative) => Ok(false),
        _ => Err(PointError::NoTemporality),
    }
}

fn distribution(temporality: i32) -> Result<PointKind, PointError> {
    Ok(match is_delta(temporality)? {
        true => PointKind::Distribution,
        false => PointKind::CumulativeDistribution,
    })
}

fn number(point: &NumberDataPoint) -> Option<f64> {
    match point.value? {
        number_data_point::Value::AsDouble(value) => Some(value),
        number_data_point::Value::AsInt(value) => Some(value as f64),
    }
}

fn explicit_buckets(point: &HistogramDataPoint) -> Vec<Bucket> {
    let bounds = &point.explicit_bounds;
    let above = [f64::NEG_INFINITY].into_iter().chain(bounds.iter().copied());
    let upto = bounds.iter().copied().chain([f64::INFINITY]);
    above
        .zip(upto)
        .zip(&point.bucket_counts)
        .map(|((above, upto), &count)| Bucket {
            above,
            upto,
            count: count as f64,
        })
        .collect()
}

/// Bucket `i` of scale `s` holds values above `2^(i/2^s)` up to `2^((i+1)/2^s)`.
fn exponential_buckets(point: &ExponentialHistogramDataPoint) -> Vec<Bucket> {
    let exponent = (-f64::from(point.scale)).exp2();
    let bound = |index: i64| (index as f64 * exponent).exp2();
    let negative = held(&point.negative)
        .into_iter()
        .rev()
        .map(|(index, count)| Bucket {
            above: -bound(index + 1),
            upto: -bound(index),
            count,
        });
    let zero = (point.zero_count > 0).then(|| Bucket {
        above: -point.zero_threshold,
        upto: point.zero_threshold,
        count: point.zero_count as f64,
    });
    let positive = held(&point.positive).into_iter().map(|(index, count)| Bucket {
        above: bound(index),
        upto: bound(index + 1),
        count,
    });
    negative.chain(zero).chain(positive).collect()
}

/// The non-empty buckets of one side, by index.
fn held(buckets: &Option<Buckets>) -> Vec<(i64, f64)> {
    let Some(buckets) = buckets else { return Vec::new() };
    let first = i64::from(buckets.offset);
    (first..)
        .zip(&buckets.bucket_counts)
        .filter(|&(_, &count)| count > 0)
        .map(|(index, &count)| (index, count as f64))
        .collect()
}

/// Decodes an `ExportLogsServiceRequest`.
pub fn logs(body: &[u8]) -> Result<Vec<Record>, Reject> {
    let request: ExportLogsServiceRequest = body_of(body)?;
    let scopes = request
        .resource_logs
        .into_iter()
        .flat_map(|group| group.scope_logs);
    Ok(scopes
        .flat_map(|scoped| scoped.log_records)
        .map(|log| {
            Record::Log(BTreeMap::from([
                ("time_ns".to_owned(), Value::from(log.time_unix_nano)),
                ("severity".to_owned(), Value::from(log.severity_text)),
                ("body".to_owned(), Value::from(text(log.body.as_ref()))),
                ("attributes".to_owned(), Value::from(tags(&log.attributes))),
            ]))
        })
        .collect())
}

/// Decodes an `ExportTraceServiceRequest`.
pub fn traces(body: &[u8]) -> Result<Vec<Record>, Reject> {
    let request: ExportTraceServiceRequest = body_of(body)?;
    let scopes = request
        .resource_spans
        .into_iter()
        .flat_map(|group| group.scope_spans);
    scopes
        .flat_map(|scoped| scoped.spans)
        .map(|span| span_record(&span))
        .collect()
}

fn span_record(span: &Span) -> Result<Record, Reject> {
    let parent = match span.parent_span_id.as_slice() {
        [] => Value::Null,
        parent => identifier(span, "parent_span_id", parent, 8)?,
    };
    let is_error = span
        .status
        .as_ref()
        .is_some_and(|status| status.code() == StatusCode::Error);
    Ok(Record::Span(BTreeMap::from([
        (
            "trace_id".to_owned(),
            identifier(span, "trace_id", &span.trace_id, 16)?,
        ),
        (
            "span_id".to_owned(),
            identifier(span, "span_id", &span.span_id, 8)?,
        ),
        ("parent_id".to_owned(), parent),
        ("name".to_owned(), Value::from(span.name.as_str())),
        ("start_ns".to_owned(), Value::from(span.start_time_unix_nano)),
        ("end_ns".to_owned(), Value::from(span.end_time_unix_nano)),
        ("error".to_owned(), Value::from(is_error)),
        ("attributes".to_owned(), Value::from(tags(&span.attributes))),
    ])))
}

fn identifier(span: &Span, what: &str, bytes: &[u8], length: usize) -> Result<Value, Reject> {
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    if bytes.len() == length && bytes.iter().any(|byte| *byte != 0) {
        return Ok(Value::from(hex));
    }
    let what = format!(
        "span {:?}: {what} {hex:?}; {length} bytes that are not all zero were expected",
        span.name
    );
    Err(Reject::new(400, what))
}

/// Attributes as tags: `key:value`, the bare key for a boolean true, one tag for each element of an array.
fn tags(attributes: &[KeyValue]) -> Vec<String> {
    let mut tags = Vec::new();
    for attribute in attributes {
        match attribute.value.as_ref().and_then(|value| value.value.as_ref()) {
            Some(Any::ArrayValue(array)) => {
                tags.extend(array.values.iter().map(|value| tag(&attribute.key, Some(value))));
            }
            _ => tags.push(tag(&attribute.key, attribute.value.as_ref())),
        }
    }
    tags
}

fn tag(key: &str, value: Option<&AnyValue>) -> String {
    match value.and_then(|value| value.value.as_ref()) {
        Some(Any::BoolValue(true)) => key.to_owned(),
        _ => format!("{key}:{}", text(value)),
    }
}

fn text(value: Option<&AnyValue>) -> String {
    match value.and_then(|value| value.value.as_ref()) {
        // Only profiles have references into a string table.
        None | Some(Any::StringValueStrindex(_)) => String::new(),
        Some(Any::StringValue(text)) => text.clone(),
        Some(Any::BoolValue(value)) => value.to_string(),
        Some(Any::IntValue(value)) => value.to_string(),
        Some(Any::DoubleValue(value)) => value.to_string(),
        Some(Any::BytesValue(bytes)) => String::from_utf8_lossy(bytes).into_owned(),
        Some(Any::ArrayValue(array)) => {
            let parts: Vec<String> = array.values.iter().map(|value| text(Some(value))).collect();
            format!("[{}]", parts.join(","))
        }
        Some(Any::KvlistValue(map)) => {
            let pair = |pair: &KeyValue| format!("{}={}", pair.key, text(pair.value.as_ref()));
            let parts: Vec<String> = map.values.iter().map(pair).collect();
            format!("{{{}}}", parts.join(","))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use opentelemetry_proto::tonic::common::v1::ArrayValue;
    use opentelemetry_proto::tonic::metrics::v1::{
        ExponentialHistogram, Gauge, Metric, ResourceMetrics, ScopeMetrics, Sum,
    };
    use opentelemetry_proto::tonic::resource::v1::Resource;
    use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Status};
    use prost::Message;

    fn attribute(key: &str, value: Any) -> KeyValue {
        KeyValue {
            key: key.into(),
            value: Some(AnyValue { value: Some(value) }),
            ..KeyValue::default()
        }
    }

    fn request(data: MetricData) -> Vec<u8> {
        ExportMetricsServiceRequest {
            resource_metrics: vec![ResourceMetrics {
                resource: Some(Resource {
                    attributes: vec![attribute("host.name", Any::StringValue("h".into()))],
                    ..Resource::default()
                }),
                schema_url: String::new(),
                scope_metrics: vec![ScopeMetrics {
                    metrics: vec![Metric {
                        name: "m".into(),
                        data: Some(data),
                        ..Metric::default()
                    }],
                    ..ScopeMetrics::default()
                }],
            }],
        }
        .encode_to_vec()
    }

    fn exponential(count: u64) -> Vec<u8> {
        request(MetricData::ExponentialHistogram(ExponentialHistogram {
            aggregation_temporality: 1,
            data_points: vec![ExponentialHistogramDataPoint {
                start_time_unix_nano: 10_000_000_000,
                time_unix_nano: 20_000_000_000,
                count,
                sum: Some(9.0),
                scale: 0,
                zero_count: 1,
                zero_threshold: 0.5,
                positive: Some(Buckets {
                    offset: 1,
                    bucket_counts: vec![2, 0, 1],
                }),
                negative: Some(Buckets {
                    offset: 0,
                    bucket_counts: vec![1, 1],
                }),
                ..ExponentialHistogramDataPoint::default()
            }],
        }))
    }

    #[test]
    fn exponential_buckets_have_their_bounds_in_order() {
        let records = metrics(&exponential(6)).unwrap();
        let [Record::Point(point)] = records.as_slice() else {
            panic!("{records:?}")
        };
        assert_eq!(
            (point.kind, point.interval, point.host.as_str()),
            (PointKind::Distribution, Some(10), "h")
        );
        let Data::Distribution { buckets, .. } = &point.data else {
            panic!("{point:?}")
        };
        let rows: Vec<(f64, f64, f64)> = buckets.iter().map(|b| (b.above, b.upto, b.count)).collect();
        assert_eq!(
            rows,
            [
                (-4.0, -2.0, 1.0),
                (-2.0, -1.0, 1.0),
                (-0.5, 0.5, 1.0),
                (2.0, 4.0, 2.0),
                (8.0, 16.0, 1.0)
            ]
        );
        assert!(metrics(&exponential(7)).unwrap_err().reason.contains("hold 6"));
    }

    #[test]
    fn spans_need_identifiers() {
        let decoded = |trace_id: &[u8], span_id: &[u8], parent_id: &[u8]| {
            let span = Span {
                trace_id: trace_id.into(),
                span_id: span_id.into(),
                parent_span_id: parent_id.into(),
                name: "GET /".into(),
                start_time_unix_nano: 1,
                end_time_unix_nano: 3,
                status: Some(Status {
                    message: String::new(),
                    code: 2,
                }),
                ..Span::default()
            };
            let scope_spans = vec![ScopeSpans {
                spans: vec![span],
                ..ScopeSpans::default()
            }];
            let resource_spans = vec![ResourceSpans {
                scope_spans,
                ..ResourceSpans::default()
            }];
            traces(&ExportTraceServiceRequest { resource_spans }.encode_to_vec())
        };
        let records = decoded(&[1; 16], &[2; 8], &[]).unwrap();
        let [Record::Span(span)] = records.as_slice() else {
            panic!("{records:?}")
        };
        assert_eq!(span["trace_id"], "01".repeat(16));
        assert_eq!(span["span_id"], "02".repeat(8));
        assert_eq!(
            (&span["parent_id"], &span["error"]),
            (&Value::Null, &Value::from(true))
        );
        for (trace_id, span_id, parent_id, said) in [
            (&[1; 8][..], &[2; 8][..], &[][..], "trace_id"),
            (&[0; 16], &[2; 8], &[], "trace_id"),
            (&[1; 16], &[], &[], "span_id"),
            (&[1; 16], &[2; 8], &[3; 7], "parent_span_id"),
        ] {
            let reject = decoded(trace_id, span_id, parent_id).unwrap_err();
            assert!(reject.reason.contains(said), "{}", reject.reason);
        }
    }

    /// Cumulative series end with a point that has a time, attributes, and no value.
    #[test]
    fn points_that_end_a_series_are_no_data() {
        for (flags, taken) in [(1, true), (0, false)] {
            let point = NumberDataPoint {
                start_time_unix_nano: 1_000_000_000,
                time_unix_nano: 11_000_000_000,
                flags,
                ..NumberDataPoint::default()
            };
            let sum = MetricData::Sum(Sum {
                aggregation_temporality: 2,
                is_monotonic: true,
                data_points: vec![point.clone()],
            });
            let gauge = MetricData::Gauge(Gauge {
                data_points: vec![point],
            });
            for body in [request(sum), request(gauge)] {
                match metrics(&body) {
                    Ok(records) => assert!(taken && records.is_empty(), "{records:?}"),
                    Err(reject) => assert!(
                        !taken && reject.reason.contains("without a value"),
                        "{}",
                        reject.reason
                    ),
                }
            }
        }
        let ended = MetricData::ExponentialHistogram(ExponentialHistogram {
            aggregation_temporality: 2,
            data_points: vec![ExponentialHistogramDataPoint {
                time_unix_nano: 11_000_000_000,
                flags: 1,
                ..ExponentialHistogramDataPoint::default()
            }],
        });
        assert!(metrics(&request(ended)).unwrap().is_empty());
    }

    #[test]
    fn attributes_become_tags() {
        let body = request(MetricData::Sum(Sum {
            aggregation_temporality: 1,
            is_monotonic: true,
            data_points: vec![NumberDataPoint {
                start_time_unix_nano: 1_000_000_000,
                time_unix_nano: 11_000_000_000,
                value: Some(number_data_point::Value::AsInt(7)),
                attributes: vec![
                    attribute("a", Any::StringValue("b".into())),
                    attribute("bare", Any::BoolValue(true)),
                    attribute(
                        "dup",
                        Any::ArrayValue(ArrayValue {
                            values: ["x", "y"]
                                .map(|text| AnyValue {
                                    value: Some(Any::StringValue(text.into())),
                                })
                                .to_vec(),
                        }),
                    ),
                ],
                ..NumberDataPoint::default()
            }],
        }));
        let records = metrics(&body).unwrap();
        let [Record::Point(point)] = records.as_slice() else {
            panic!("{records:?}")
        };
        assert_eq!(point.tags, ["a:b", "bare", "dup:x", "dup:y"]);
        assert_eq!(
            (point.kind, &point.data),
            (PointKind::Count, &Data::Number { value: 7.0 })
        );
    }
}
