//! The Datadog intake: endpoints, bodies, and the limits of the real one.

mod columns;

use super::protobuf::datadog as pb;
use super::record::{Data, Point, PointKind, Record};
use super::{Reject, body_of};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Maximum sizes that one endpoint accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IntakeLimits {
    pub compressed: usize,
    pub uncompressed: usize,
    /// Points or logs of one payload; items of check and event payloads are not limited by the intake.
    pub points: usize,
}

/// The endpoint of a path and its limits; none for paths the intake does not have.
pub fn limits(path: &str) -> Option<IntakeLimits> {
    const MIB: usize = 1 << 20;
    let limits = |compressed, uncompressed| IntakeLimits {
        compressed,
        uncompressed,
        points: usize::MAX,
    };
    Some(match path {
        "/api/v2/series" | "/api/intake/metrics/v3/series" => IntakeLimits {
            points: 10_000,
            ..limits(512_000, 5 * MIB)
        },
        "/api/v1/series" => limits(MIB * 5 / 2, 4 * MIB),
        "/api/beta/sketches" | "/api/intake/metrics/v3/sketches" => limits(3_200_000, 62_914_560),
        "/api/v2/logs" => IntakeLimits {
            points: 1000,
            ..limits(5_000_000, 5_000_000)
        },
        "/api/v1/check_run" | "/intake" | "/intake/" | "/api/v1/events_batch" | "/api/v1/events" => {
            limits(3_200_000, 62_914_560)
        }
        _ => return None,
    })
}

/// Decodes one request body, already uncompressed.
pub fn decode(path: &str, content_type: &str, body: &[u8]) -> Result<Vec<Record>, Reject> {
    let json = is(content_type, "application/json");
    let protobuf = is(content_type, "application/x-protobuf");
    let records = match path {
        "/api/v2/series" if protobuf => series_v2(body_of(body)?)?,
        "/api/v2/series" if json => series_v2(json_of(body)?)?,
        "/api/intake/metrics/v3/series" if protobuf => columns::read(body, false)?,
        "/api/intake/metrics/v3/sketches" if protobuf => columns::read(body, true)?,
        "/api/v1/series" if json => series_v1(body)?,
        "/api/beta/sketches" if protobuf => sketches(body)?,
        "/api/v1/check_run" if json => checks(body)?,
        "/intake" | "/intake/" if json => intake(body)?,
        "/api/v1/events" if json => vec![Record::Event(object(json_of(body)?)?)],
        "/api/v1/events_batch" if protobuf => events_batch(body)?,
        "/api/v2/logs" if json => logs(body)?,
        _ => {
            return Err(Reject::new(
                415,
                format!("{path} does not take the content type {content_type:?}"),
            ));
        }
    };
    let allowed = limits(path).map_or(usize::MAX, |limits| limits.points);
    let points = records
        .iter()
        .filter(|record| matches!(record, Record::Point(_) | Record::Log(_)))
        .count();
    if points > allowed {
        return Err(Reject::new(
            413,
            format!("{points} points or logs in one payload, {allowed} allowed"),
        ));
    }
    Ok(records)
}

/// Whether a content type, parameters aside, is this one.
pub fn is(content_type: &str, wanted: &str) -> bool {
    content_type
        .split(';')
        .next()
        .is_some_and(|kind| kind.trim().eq_ignore_ascii_case(wanted))
}

fn json_of<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, Reject> {
    serde_json::from_slice(body)
        .map_err(|error| Reject::new(400, format!("not the JSON expected here: {error}")))
}

fn object(value: Value) -> Result<BTreeMap<String, Value>, Reject> {
    match value {
        Value::Object(map) => Ok(map.into_iter().collect()),
        _ => Err(Reject::new(400, "an object was expected")),
    }
}

fn point_base(metric: &str, kind: PointKind, interval: i64) -> Result<Point, Reject> {
    if metric.is_empty() {
        return Err(Reject::new(400, "a series without a metric name"));
    }
    Ok(Point {
        metric: metric.to_owned(),
        kind,
        interval: (interval != 0).then_some(interval),
        ..Point::default()
    })
}

/// The type numbers of v2: 0 unspecified, 1 count, 2 rate, 3 gauge.
fn kind_of_number(kind: i64) -> Result<PointKind, Reject> {
    match kind {
        0 => Ok(PointKind::Untyped),
        1 => Ok(PointKind::Count),
        2 => Ok(PointKind::Rate),
        3 => Ok(PointKind::Gauge),
        _ => Err(Reject::new(400, format!("unknown series type {kind}"))),
    }
}

fn number(base: &Point, ts: f64, value: f64) -> Result<Record, Reject> {
    if !value.is_finite() {
        return Err(Reject::new(
            400,
            format!("{}: a point with the value {value}", base.metric),
        ));
    }
    Ok(Record::Point(Point {
        ts: Some(ts),
        data: Data::Number { value },
        ..base.clone()
    }))
}

fn note(extra: &mut BTreeMap<String, Value>, key: &str, text: &str) {
    if !text.is_empty() {
        extra.insert(key.to_owned(), text.into());
    }
}

fn record_origin(extra: &mut BTreeMap<String, Value>, metadata: Option<&pb::Metadata>) {
    if let Some(origin) = metadata.and_then(|metadata| metadata.origin) {
        extra.insert(
            "origin".into(),
            json!({"product": origin.product, "category": origin.category, "service": origin.service}),
        );
    }
}

fn series_v2(payload: pb::MetricPayload) -> Result<Vec<Record>, Reject> {
    let mut records = Vec::new();
    for series in payload.series {
        let mut base = point_base(
            &series.metric,
            kind_of_number(i64::from(series.kind))?,
            series.interval,
        )?;
        base.tags = series.tags;
        let mut others = Vec::new();
        for resource in series.resources {
            if resource.kind == "host" && base.host.is_empty() {
                base.host = resource.name;
            } else {
                others.push(json!({"type": resource.kind, "name": resource.name}));
            }
        }
        if !others.is_empty() {
            base.extra.insert("resources".into(), Value::Array(others));
        }
        note(&mut base.extra, "unit", &series.unit);
        note(&mut base.extra, "source_type_name", &series.source_type_name);
        record_origin(&mut base.extra, series.metadata.as_ref());
        if series.points.is_empty() {
            return Err(Reject::new(
                400,
                format!("{}: a series without points", base.metric),
            ));
        }
        for point in &series.points {
            records.push(number(&base, point.timestamp as f64, point.value)?);
        }
    }
    Ok(records)
}

#[derive(Deserialize)]
struct V1 {
    series: Vec<SeriesV1>,
}

#[derive(Deserialize)]
struct SeriesV1 {
    metric: String,
    points: Vec<(f64, f64)>,
    #[serde(default)]
    tags: Option<Vec<String>>,
    #[serde(default)]
    host: Option<String>,
    #[serde(default)]
    device: Option<String>,
    #[serde(default, rename = "type")]
    kind: Option<String>,
    #[serde(default)]
    interval: Option<i64>,
    #[serde(default)]
    source_type_name: Option<String>,
    #[serde(default)]
    unit: Option<String>,
}

fn series_v1(body: &[u8]) -> Result<Vec<Record>, Reject> {
    let payload: V1 = json_of(body)?;
    let mut records = Vec::new();
    for series in payload.series {
        let kind = match series.kind.as_deref() {
            Some("rate") => PointKind::Rate,
            Some("count") => PointKind::Count,
            Some("gauge") | None => PointKind::Gauge,
            Some(other) => return Err(Reject::new(400, format!("unknown series type {other:?}"))),
        };
        let mut base = point_base(&series.metric, kind, series.interval.unwrap_or(0))?;
        base.tags = series.tags.unwrap_or_default();
        base.host = series.host.unwrap_or_default();
        note(&mut base.extra, "device", &series.device.unwrap_or_default());
        note(&mut base.extra, "unit", &series.unit.unwrap_or_default());
        note(
            &mut base.extra,
            "source_type_name",
            &series.source_type_name.unwrap_or_default(),
        );
        for (ts, value) in series.points {
            records.push(number(&base, ts, value)?);
        }
    }
    Ok(records)
}

fn sketches(body: &[u8]) -> Result<Vec<Record>, Reject> {
    let payload: pb::SketchPayload = body_of(body)?;
    let mut records = Vec::new();
    for sketch in payload.sketches {
        let mut base = point_base(&sketch.metric, PointKind::Sketch, 0)?;
        base.host = sketch.host;
        base.tags = sketch.tags;
        record_origin(&mut base.extra, sketch.metadata.as_ref());
        for point in sketch.dogsketches {
            records.push(sketch_point(&base, point)?);
        }
    }
    Ok(records)
}

fn sketch_point(base: &Point, point: pb::Dogsketch) -> Result<Record, Reject> {
    let wrong = |what: &str| Reject::new(400, format!("{}: a sketch {what}", base.metric));
    if point.k.len() != point.n.len() {
        return Err(wrong("with as many keys as counts was expected"));
    }
    if !point.k.is_sorted() {
        return Err(wrong("whose keys do not ascend"));
    }
    let bins: i64 = point.n.iter().map(|&n| i64::from(n)).sum();
    if bins != point.cnt {
        return Err(wrong(&format!("of {} values whose bins hold {bins}", point.cnt)));
    }
    Ok(Record::Point(Point {
        ts: Some(point.ts as f64),
        data: Data::Sketch {
            cnt: point.cnt,
            min: point.min,
            max: point.max,
            avg: point.avg,
            sum: point.sum,
            k: point.k,
            n: point.n,
        },
        ..base.clone()
    }))
}

fn checks(body: &[u8]) -> Result<Vec<Record>, Reject> {
    let checks: Vec<BTreeMap<String, Value>> = json_of(body)?;
    for check in &checks {
        let named = check
            .get("check")
            .and_then(Value::as_str)
            .is_some_and(|name| !name.is_empty());
        let status = check
            .get("status")
            .and_then(Value::as_u64)
            .is_some_and(|status| status <= 3);
        if !named || !status {
            return Err(Reject::new(400, "a check needs a name and a status from 0 to 3"));
        }
    }
    Ok(checks.into_iter().map(Record::Check).collect())
}

/// One log or an array of them. A log without a message is invalid.
fn logs(body: &[u8]) -> Result<Vec<Record>, Reject> {
    let logs = match json_of(body)? {
        Value::Array(logs) => logs,
        one => vec![one],
    };
    logs.into_iter()
        .map(|log| {
            let log = object(log)?;
            match log.get("message").and_then(Value::as_str) {
                Some(text) if !text.is_empty() => Ok(Record::Log(log)),
                _ => Err(Reject::new(400, "a log without a message")),
            }
        })
        .collect()
}

/// `/intake/` takes events grouped by source type, and host metadata, which is accepted and gives no record.
fn intake(body: &[u8]) -> Result<Vec<Record>, Reject> {
    #[derive(Deserialize)]
    struct Intake {
        #[serde(default)]
        events: Option<BTreeMap<String, Vec<BTreeMap<String, Value>>>>,
        #[serde(default, rename = "internalHostname")]
        internal_hostname: String,
    }
    let intake: Intake = json_of(body)?;
    let mut records = Vec::new();
    for (group, events) in intake.events.unwrap_or_default() {
        for mut event in events {
            if !event.contains_key("msg_title") || !event.contains_key("msg_text") {
                return Err(Reject::new(400, "an event needs msg_title and msg_text"));
            }
            event.insert("group".into(), group.clone().into());
            event.insert(
                "internal_hostname".into(),
                intake.internal_hostname.clone().into(),
            );
            records.push(Record::Event(event));
        }
    }
    Ok(records)
}

fn events_batch(body: &[u8]) -> Result<Vec<Record>, Reject> {
    let payload: pb::EventsPayload = body_of(body)?;
    Ok(payload
        .events
        .into_iter()
        .map(|event| {
            // The key names of the JSON form, so that a comparison is independent of the form.
            let mut record = BTreeMap::from([
                ("msg_title".to_owned(), Value::from(event.title)),
                ("msg_text".to_owned(), Value::from(event.text)),
                ("timestamp".to_owned(), Value::from(event.ts)),
                ("tags".to_owned(), Value::from(event.tags)),
            ]);
            note(&mut record, "priority", &event.priority);
            note(&mut record, "host", &event.host);
            note(&mut record, "alert_type", &event.alert_type);
            note(&mut record, "aggregation_key", &event.aggregation_key);
            note(&mut record, "source_type_name", &event.source_type_name);
            Record::Event(record)
        })
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost::Message;

    const PROTOBUF: &str = "application/x-protobuf";
    const JSON: &str = "application/json; charset=utf-8";

    fn points(records: Vec<Record>) -> Vec<Point> {
        records
            .into_iter()
            .map(|record| match record {
                Record::Point(point) => point,
                other => panic!("{other:?}"),
            })
            .collect()
    }

    /// Bytes written by hand from the field numbers: the decoder is checked without its own encoder.
    #[test]
    fn series_bytes_by_hand() {
        let body = b"\x0a\x3f\
            \x0a\x09\x0a\x04host\x12\x01h\
            \x0a\x0d\x0a\x06device\x12\x03sda\
            \x12\x03a.b\x1a\x03x:y\x22\x0f\x09\0\0\0\0\0\0\xe0\x3f\x10\x80\xe2\xcf\xaa\x06\x28\x02\x40\x0a";
        let body = [&body[..1], &[body.len() as u8 - 2], &body[2..]].concat();
        let points = points(decode("/api/v2/series", PROTOBUF, &body).unwrap());
        assert_eq!(points.len(), 1);
        let point = &points[0];
        assert_eq!((point.metric.as_str(), point.host.as_str()), ("a.b", "h"));
        assert_eq!((point.kind, point.interval), (PointKind::Rate, Some(10)));
        assert_eq!(point.tags, ["x:y"]);
        assert_eq!(point.ts, Some(1_700_000_000.0));
        assert_eq!(point.data, Data::Number { value: 0.5 });
        assert_eq!(
            point.extra["resources"],
            json!([{"type": "device", "name": "sda"}])
        );
    }

    #[test]
    fn sketch_keys_are_zigzag_and_bins_must_add_up() {
        let sketch = |n: &[u8]| {
            let bins = [
                &b"\x08\x80\xe2\xcf\xaa\x06\x10\x03\x3a\x04\xf3\x14\xf4\x14\x42\x02"[..],
                n,
            ]
            .concat();
            let sketch = [
                b"\x0a\x01d\x12\x01h\x22\x03x:y\x3a",
                &[bins.len() as u8][..],
                &bins,
            ]
            .concat();
            [&[0x0a, sketch.len() as u8][..], &sketch].concat()
        };
        let points = points(decode("/api/beta/sketches", PROTOBUF, &sketch(b"\x01\x02")).unwrap());
        let Data::Sketch { cnt, k, n, .. } = &points[0].data else {
            panic!("{points:?}")
        };
        // 2675 is -1338 in zigzag, 2676 is 1338.
        assert_eq!(
            (*cnt, k.as_slice(), n.as_slice()),
            (3, &[-1338, 1338][..], &[1, 2][..])
        );
        let error = decode("/api/beta/sketches", PROTOBUF, &sketch(b"\x01\x01")).unwrap_err();
        assert!(error.reason.contains("hold 2"), "{error:?}");
    }

    #[test]
    fn both_json_forms_of_a_series_mean_the_same() {
        let v1 = br#"{"series":[{"metric":"a","points":[[1700000000,0.5]],"tags":["k:v"],"host":"h","type":"rate","interval":10}]}"#;
        let v2 = br#"{"series":[{"metric":"a","type":2,"interval":10,"points":[{"timestamp":1700000000,"value":0.5}],
            "resources":[{"type":"host","name":"h"}],"tags":["k:v"],"unit":"","source_type_name":""}]}"#;
        assert_eq!(
            decode("/api/v1/series", JSON, v1).unwrap(),
            decode("/api/v2/series", JSON, v2).unwrap()
        );
    }

    #[test]
    fn payloads_that_the_intake_refuses_are_refused() {
        let status = |path: &str, kind: &str, body: &[u8]| decode(path, kind, body).unwrap_err().status;
        assert_eq!(status("/api/v2/series", "text/plain", b""), 415);
        assert_eq!(status("/api/v2/series", PROTOBUF, b"\xff"), 400);
        assert_eq!(status("/api/v1/series", JSON, b"{}"), 400);
        assert_eq!(
            status("/api/v1/check_run", JSON, br#"[{"check":"c","status":4}]"#),
            400
        );
        assert_eq!(
            status("/intake/", JSON, br#"{"events":{"api":[{"msg_title":"t"}]}}"#),
            400
        );
        let series = |points: usize| {
            pb::MetricPayload {
                series: vec![pb::Series {
                    metric: "a".into(),
                    points: vec![
                        pb::Point {
                            value: 1.0,
                            timestamp: 1
                        };
                        points
                    ],
                    ..pb::Series::default()
                }],
            }
            .encode_to_vec()
        };
        assert_eq!(
            decode("/api/v2/series", PROTOBUF, &series(10_000)).unwrap().len(),
            10_000
        );
        assert_eq!(status("/api/v2/series", PROTOBUF, &series(10_001)), 413);
        let logs = |count: usize| format!("[{}]", vec![r#"{"message":"m"}"#; count].join(",")).into_bytes();
        assert_eq!(decode("/api/v2/logs", JSON, &logs(1000)).unwrap().len(), 1000);
        assert_eq!(status("/api/v2/logs", JSON, &logs(1001)), 413);
        assert_eq!(
            decode("/api/v2/logs", JSON, br#"{"message":"m"}"#).unwrap().len(),
            1
        );
        assert_eq!(status("/api/v2/logs", JSON, br#"[{"ddsource":"x"}]"#), 400);
    }

    #[test]
    fn events_of_both_forms_have_the_same_keys() {
        let json = br#"{"apiKey":"","events":{"api":[{"msg_title":"t","msg_text":"x","timestamp":5,"tags":["a:b"],"alert_type":"error"}]},"internalHostname":"me"}"#;
        let records = decode("/intake/", JSON, json).unwrap();
        let [Record::Event(from_json)] = records.as_slice() else {
            panic!("{records:?}")
        };
        let body = b"\x0a\x14\x0a\x01t\x12\x01x\x18\x05\x32\x03a:b\x3a\x05error";
        let records = decode("/api/v1/events_batch", PROTOBUF, body).unwrap();
        let [Record::Event(from_protobuf)] = records.as_slice() else {
            panic!("{records:?}")
        };
        for (key, value) in from_protobuf {
            assert_eq!(from_json[key], *value, "{key}");
        }
    }
}
