//! OpenTelemetry: metrics, logs and traces as agents export them, over HTTP and gRPC.

use super::protobuf::otlp as pb;
use super::record::{Bucket, Data, Kind, Point, Record, Text};
use super::{Reject, body_of};
use serde_json::Value;
use std::collections::BTreeMap;

/// Decodes an `ExportMetricsServiceRequest`.
pub fn metrics(body: &[u8]) -> Result<Vec<Record>, Reject> {
    let request: pb::MetricsRequest = body_of(body)?;
    let mut records = Vec::new();
    for group in request.resource_metrics {
        let mut resource = BTreeMap::new();
        let mut host = String::new();
        for attribute in group.resource.unwrap_or_default().attributes {
            if attribute.key == "host.name" {
                host = text(attribute.value.as_ref());
            } else {
                resource.insert(attribute.key, Value::from(text(attribute.value.as_ref())));
            }
        }
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
                metric_points(base, metric.data, &mut records)?;
            }
        }
    }
    Ok(records)
}

fn metric_points(base: Point, data: Option<pb::MetricData>, records: &mut Vec<Record>) -> Result<(), Reject> {
    let name = base.metric.clone();
    let reject = |what: &str| Reject::new(400, format!("{name}: {what}"));
    let delta = |temporality: i32| match pb::Temporality::try_from(temporality) {
        Ok(pb::Temporality::Delta) => Ok(true),
        Ok(pb::Temporality::Cumulative) => Ok(false),
        _ => Err(reject("no aggregation temporality")),
    };
    let distribution = |temporality| {
        Ok(if delta(temporality)? {
            Kind::Distribution
        } else {
            Kind::CumulativeDistribution
        })
    };
    let mut push = |kind, times: (u64, u64), attributes: &[pb::KeyValue], data| {
        let (start_ns, time_ns) = times;
        let mut point = Point {
            kind,
            ts: Some(time_ns as f64 / 1e9),
            interval: (start_ns != 0).then(|| (time_ns.saturating_sub(start_ns) / 1_000_000_000) as i64),
            tags: tags(attributes),
            data,
            ..base.clone()
        };
        if start_ns != 0 {
            point.extra.insert("start_ns".into(), start_ns.into());
        }
        records.push(Record::Point(point));
    };
    match data {
        None => return Err(reject("no data")),
        Some(pb::MetricData::Gauge(gauge)) => {
            for point in gauge.points {
                let value = number(point.value).ok_or_else(|| reject("a point without a value"))?;
                push(
                    Kind::Gauge,
                    (0, point.time_ns),
                    &point.attributes,
                    Data::Number { value },
                );
            }
        }
        Some(pb::MetricData::Sum(sum)) => {
            let kind = if delta(sum.temporality)? {
                Kind::Count
            } else {
                Kind::Cumulative
            };
            for point in sum.points {
                let value = number(point.value).ok_or_else(|| reject("a point without a value"))?;
                if sum.is_monotonic && value < 0.0 {
                    return Err(reject("a negative value in a monotonic sum"));
                }
                push(
                    kind,
                    (point.start_ns, point.time_ns),
                    &point.attributes,
                    Data::Number { value },
                );
            }
        }
        Some(pb::MetricData::Histogram(histogram)) => {
            let kind = distribution(histogram.temporality)?;
            for point in histogram.points {
                if point.bucket_counts.iter().sum::<u64>() != point.count && !point.bucket_counts.is_empty() {
                    return Err(reject("buckets that do not add up to the count"));
                }
                if !point.bucket_counts.is_empty()
                    && point.bucket_counts.len() != point.explicit_bounds.len() + 1
                {
                    return Err(reject("one bucket more than bounds was expected"));
                }
                let mut above = f64::NEG_INFINITY;
                let bounds = point.explicit_bounds.iter().copied().chain([f64::INFINITY]);
                let buckets = bounds
                    .zip(&point.bucket_counts)
                    .map(|(upto, &count)| {
                        let bucket = Bucket {
                            above,
                            upto,
                            count: count as f64,
                        };
                        above = upto;
                        bucket
                    })
                    .collect();
                let data = Data::Distribution {
                    count: point.count as f64,
                    sum: point.sum,
                    min: point.min,
                    max: point.max,
                    buckets,
                    quantiles: Vec::new(),
                };
                push(kind, (point.start_ns, point.time_ns), &point.attributes, data);
            }
        }
        Some(pb::MetricData::ExponentialHistogram(histogram)) => {
            let kind = distribution(histogram.temporality)?;
            for point in histogram.points {
                let buckets = exponential_buckets(&point);
                let held: f64 = buckets.iter().map(|bucket| bucket.count).sum();
                if held != point.count as f64 {
                    return Err(reject(&format!(
                        "a count of {} whose buckets hold {held}",
                        point.count
                    )));
                }
                let data = Data::Distribution {
                    count: point.count as f64,
                    sum: point.sum,
                    min: point.min,
                    max: point.max,
                    buckets,
                    quantiles: Vec::new(),
                };
                push(kind, (point.start_ns, point.time_ns), &point.attributes, data);
            }
        }
        Some(pb::MetricData::Summary(summary)) => {
            for point in summary.points {
                let data = Data::Distribution {
                    count: point.count as f64,
                    sum: Some(point.sum),
                    min: None,
                    max: None,
                    buckets: Vec::new(),
                    quantiles: point
                        .quantiles
                        .iter()
                        .map(|q| (q.quantile, Text(q.value)))
                        .collect(),
                };
                // A summary has no temporality; with a start time it covers what lies between.
                push(
                    Kind::Distribution,
                    (point.start_ns, point.time_ns),
                    &point.attributes,
                    data,
                );
            }
        }
    }
    Ok(())
}

fn number(value: Option<pb::Number>) -> Option<f64> {
    match value? {
        pb::Number::Double(value) => Some(value),
        pb::Number::Int(value) => Some(value as f64),
    }
}

/// Bucket `i` of scale `s` holds values above `2^(i/2^s)` up to `2^((i+1)/2^s)`.
fn exponential_buckets(point: &pb::ExponentialPoint) -> Vec<Bucket> {
    let exponent = (-f64::from(point.scale)).exp2();
    let bound = |index: i64| (index as f64 * exponent).exp2();
    let side = |buckets: &Option<pb::Buckets>| -> Vec<(i64, u64)> {
        buckets
            .iter()
            .flat_map(|buckets| {
                let offset = i64::from(buckets.offset);
                buckets
                    .bucket_counts
                    .iter()
                    .enumerate()
                    .filter(|&(_, &count)| count > 0)
                    .map(move |(index, &count)| (offset + index as i64, count))
            })
            .collect()
    };
    let mut buckets: Vec<Bucket> = side(&point.negative)
        .into_iter()
        .rev()
        .map(|(index, count)| Bucket {
            above: -bound(index + 1),
            upto: -bound(index),
            count: count as f64,
        })
        .collect();
    if point.zero_count > 0 {
        buckets.push(Bucket {
            above: -point.zero_threshold,
            upto: point.zero_threshold,
            count: point.zero_count as f64,
        });
    }
    buckets.extend(side(&point.positive).into_iter().map(|(index, count)| Bucket {
        above: bound(index),
        upto: bound(index + 1),
        count: count as f64,
    }));
    buckets
}

/// Decodes an `ExportLogsServiceRequest`.
pub fn logs(body: &[u8]) -> Result<Vec<Record>, Reject> {
    let request: pb::LogsRequest = body_of(body)?;
    let mut records = Vec::new();
    for group in request.resource_logs {
        for log in group.scope_logs.into_iter().flat_map(|scoped| scoped.records) {
            records.push(Record::Log(BTreeMap::from([
                ("time_ns".to_owned(), Value::from(log.time_ns)),
                ("severity".to_owned(), Value::from(log.severity_text)),
                ("body".to_owned(), Value::from(text(log.body.as_ref()))),
                ("attributes".to_owned(), Value::from(tags(&log.attributes))),
            ])));
        }
    }
    Ok(records)
}

/// Decodes an `ExportTraceServiceRequest`.
pub fn traces(body: &[u8]) -> Result<Vec<Record>, Reject> {
    let request: pb::TracesRequest = body_of(body)?;
    let mut records = Vec::new();
    for group in request.resource_spans {
        for span in group.scope_spans.into_iter().flat_map(|scoped| scoped.spans) {
            let id = |what: &str, bytes: &[u8], length: usize| {
                if bytes.len() == length && bytes.iter().any(|byte| *byte != 0) {
                    Ok(Value::from(hex(bytes)))
                } else {
                    let what = format!(
                        "span {:?}: {what} {:?}; {length} bytes that are not all zero were expected",
                        span.name,
                        hex(bytes)
                    );
                    Err(Reject::new(400, what))
                }
            };
            let parent = match span.parent_id.as_slice() {
                [] => Value::Null,
                parent => id("parent_span_id", parent, 8)?,
            };
            records.push(Record::Span(BTreeMap::from([
                ("trace_id".to_owned(), id("trace_id", &span.trace_id, 16)?),
                ("span_id".to_owned(), id("span_id", &span.span_id, 8)?),
                ("parent_id".to_owned(), parent),
                ("name".to_owned(), Value::from(span.name.as_str())),
                ("start_ns".to_owned(), Value::from(span.start_ns)),
                ("end_ns".to_owned(), Value::from(span.end_ns)),
                (
                    "error".to_owned(),
                    Value::from(span.status.as_ref().is_some_and(|status| status.code == 2)),
                ),
                ("attributes".to_owned(), Value::from(tags(&span.attributes))),
            ])));
        }
    }
    Ok(records)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Attributes as tags: `key:value`, the bare key for a boolean true, one tag for each element of an array.
fn tags(attributes: &[pb::KeyValue]) -> Vec<String> {
    let mut tags = Vec::new();
    for attribute in attributes {
        match attribute.value.as_ref().and_then(|value| value.value.as_ref()) {
            Some(pb::Any::Bool(true)) => tags.push(attribute.key.clone()),
            Some(pb::Any::Array(array)) => {
                for value in &array.values {
                    match &value.value {
                        Some(pb::Any::Bool(true)) => tags.push(attribute.key.clone()),
                        _ => tags.push(format!("{}:{}", attribute.key, text(Some(value)))),
                    }
                }
            }
            _ => tags.push(format!("{}:{}", attribute.key, text(attribute.value.as_ref()))),
        }
    }
    tags
}

fn text(value: Option<&pb::AnyValue>) -> String {
    match value.and_then(|value| value.value.as_ref()) {
        None => String::new(),
        Some(pb::Any::String(text)) => text.clone(),
        Some(pb::Any::Bool(value)) => value.to_string(),
        Some(pb::Any::Int(value)) => value.to_string(),
        Some(pb::Any::Double(value)) => value.to_string(),
        Some(pb::Any::Bytes(bytes)) => String::from_utf8_lossy(bytes).into_owned(),
        Some(pb::Any::Array(array)) => {
            let parts: Vec<String> = array.values.iter().map(|value| text(Some(value))).collect();
            format!("[{}]", parts.join(","))
        }
        Some(pb::Any::Map(map)) => {
            let parts: Vec<String> = map
                .values
                .iter()
                .map(|pair| format!("{}={}", pair.key, text(pair.value.as_ref())))
                .collect();
            format!("{{{}}}", parts.join(","))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost::Message;

    fn attribute(key: &str, value: pb::Any) -> pb::KeyValue {
        pb::KeyValue {
            key: key.into(),
            value: Some(pb::AnyValue { value: Some(value) }),
        }
    }

    fn request(data: pb::MetricData) -> Vec<u8> {
        pb::MetricsRequest {
            resource_metrics: vec![pb::ResourceMetrics {
                resource: Some(pb::Resource {
                    attributes: vec![attribute("host.name", pb::Any::String("h".into()))],
                }),
                scope_metrics: vec![pb::ScopeMetrics {
                    scope: None,
                    metrics: vec![pb::Metric {
                        name: "m".into(),
                        unit: String::new(),
                        data: Some(data),
                    }],
                }],
            }],
        }
        .encode_to_vec()
    }

    fn exponential(count: u64) -> Vec<u8> {
        request(pb::MetricData::ExponentialHistogram(pb::ExponentialHistogram {
            temporality: 1,
            points: vec![pb::ExponentialPoint {
                start_ns: 10_000_000_000,
                time_ns: 20_000_000_000,
                count,
                sum: Some(9.0),
                scale: 0,
                zero_count: 1,
                zero_threshold: 0.5,
                positive: Some(pb::Buckets {
                    offset: 1,
                    bucket_counts: vec![2, 0, 1],
                }),
                negative: Some(pb::Buckets {
                    offset: 0,
                    bucket_counts: vec![1, 1],
                }),
                ..pb::ExponentialPoint::default()
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
            (Kind::Distribution, Some(10), "h")
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
            let span = pb::Span {
                trace_id: trace_id.into(),
                span_id: span_id.into(),
                parent_id: parent_id.into(),
                name: "GET /".into(),
                start_ns: 1,
                end_ns: 3,
                status: Some(pb::SpanStatus {
                    message: String::new(),
                    code: 2,
                }),
                ..pb::Span::default()
            };
            let scope_spans = vec![pb::ScopeSpans { spans: vec![span] }];
            let resource_spans = vec![pb::ResourceSpans {
                resource: None,
                scope_spans,
            }];
            traces(&pb::TracesRequest { resource_spans }.encode_to_vec())
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

    #[test]
    fn attributes_become_tags() {
        let body = request(pb::MetricData::Sum(pb::Sum {
            temporality: 1,
            is_monotonic: true,
            points: vec![pb::NumberPoint {
                start_ns: 1_000_000_000,
                time_ns: 11_000_000_000,
                value: Some(pb::Number::Int(7)),
                attributes: vec![
                    attribute("a", pb::Any::String("b".into())),
                    attribute("bare", pb::Any::Bool(true)),
                    attribute(
                        "dup",
                        pb::Any::Array(pb::ArrayValue {
                            values: ["x", "y"]
                                .map(|text| pb::AnyValue {
                                    value: Some(pb::Any::String(text.into())),
                                })
                                .to_vec(),
                        }),
                    ),
                ],
            }],
        }));
        let records = metrics(&body).unwrap();
        let [Record::Point(point)] = records.as_slice() else {
            panic!("{records:?}")
        };
        assert_eq!(point.tags, ["a:b", "bare", "dup:x", "dup:y"]);
        assert_eq!(
            (point.kind, &point.data),
            (Kind::Count, &Data::Number { value: 7.0 })
        );
    }
}
