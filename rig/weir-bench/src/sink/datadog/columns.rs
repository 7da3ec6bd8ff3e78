//! Payloads of columns.

use serde_json::{Value, json};
use weir_columns::MetricType;
use weir_columns::payload::{Payload, Series};

use super::super::Reject;
use super::super::protobuf::datadog as pb;
use super::super::record::{Point, PointKind, Record};
use super::{note, number, point_base, sketch_point};

/// The points of a payload of series, or of one of sketches.
pub fn read(body: &[u8], of_sketches: bool) -> Result<Vec<Record>, Reject> {
    let payload = Payload::read(body).map_err(|error| Reject::new(400, error.to_string()))?;
    let mut records = Vec::new();
    for series in payload.series() {
        let kind = kind(&series);
        if (kind == PointKind::Sketch) != of_sketches {
            return Err(Reject::new(
                400,
                format!("{}: a series of the other endpoint", series.name()),
            ));
        }
        let base = base(&series, kind)?;
        if series.points().is_empty() {
            let error = format!("{}: a series without points", series.name());
            return Err(Reject::new(400, error));
        }
        for point in series.points() {
            records.push(match kind {
                PointKind::Sketch => sketch(&base, &series, point)?,
                _ => number(&base, point.timestamp as f64, point.value)?,
            });
        }
    }
    Ok(records)
}

fn kind(series: &Series<'_, '_>) -> PointKind {
    match series.metric() {
        MetricType::Count => PointKind::Count,
        MetricType::Rate => PointKind::Rate,
        MetricType::Gauge => PointKind::Gauge,
        MetricType::Sketch => PointKind::Sketch,
    }
}

/// The fields that all points of a series have, as in the older form.
fn base(series: &Series<'_, '_>, kind: PointKind) -> Result<Point, Reject> {
    let interval = i64::try_from(series.interval()).unwrap_or(i64::MAX);
    let mut base = point_base(series.name(), kind, interval)?;
    let mut tags = series.tags();
    tags.sort_unstable();
    base.tags = tags.into_iter().map(str::to_owned).collect();
    base.host = series.resource("host").to_owned();
    let others: Vec<Value> = series
        .resources()
        .iter()
        .filter(|(kind, _)| *kind != "host")
        .map(|(kind, name)| json!({"type": kind, "name": name}))
        .collect();
    if !others.is_empty() {
        base.extra.insert("resources".into(), Value::Array(others));
    }
    note(&mut base.extra, "unit", series.unit());
    note(&mut base.extra, "source_type_name", series.source_type());
    let origin = series.origin();
    if origin != weir_columns::Origin::default() {
        base.extra.insert(
            "origin".into(),
            json!({"product": origin.product, "category": origin.category, "service": origin.service}),
        );
    }
    Ok(base)
}

fn sketch(
    base: &Point,
    series: &Series<'_, '_>,
    point: &weir_columns::payload::Point,
) -> Result<Record, Reject> {
    let (summary, bins) = series.sketch(point);
    let wide = |_| Reject::new(400, format!("{}: a bin of more than 32 bits", base.metric));
    let samples = bins.iter().map(|(_, samples)| u32::try_from(*samples));
    let point = pb::Dogsketch {
        ts: summary.timestamp,
        cnt: summary.count as i64,
        min: summary.min,
        max: summary.max,
        avg: summary.sum / summary.count as f64,
        sum: summary.sum,
        k: bins.iter().map(|(key, _)| *key).collect(),
        n: samples.collect::<Result<_, _>>().map_err(wide)?,
    };
    sketch_point(base, point)
}

#[cfg(test)]
mod tests {
    use super::super::super::record::Data;
    use super::super::{decode, limits};

    /// Bytes written by hand from the field numbers.
    #[test]
    fn bytes_by_hand() {
        let columns: &[(u8, &[u8])] = &[
            (1, b"\x03a.b"),
            (2, b"\x03x:y"),
            (3, b"\x02\x02"),
            (4, b"\x04host\x01h\x06device\x03sda"),
            (5, b"\x02"),
            (6, b"\x02\x04"),
            (7, b"\x04\x04"),
            (9, b"\x0a\x0a\x00"),
            (10, b"\x22"),
            (11, b"\x02"),
            (12, b"\x02"),
            (13, b"\x02"),
            (14, b"\x0a"),
            (15, b"\x01"),
            (16, b"\x80\xc4\x9f\xd5\x0c"),
            (18, b"\x00\x00\x00\x3f"),
            (23, b"\x00"),
            (24, b"\x02"),
        ];
        let mut body = Vec::new();
        for (field, bytes) in columns {
            let key = u32::from(*field) << 3 | 2;
            if key >= 0x80 {
                body.extend_from_slice(&[key as u8 | 0x80, (key >> 7) as u8]);
            } else {
                body.push(key as u8);
            }
            body.push(bytes.len() as u8);
            body.extend_from_slice(bytes);
        }
        let body = [&[0x1a, body.len() as u8][..], &body].concat();
        let path = "/api/intake/metrics/v3/series";
        let records = decode(path, "application/x-protobuf", &body).unwrap();
        let [super::Record::Point(point)] = records.as_slice() else {
            panic!("{records:?}")
        };
        assert_eq!((point.metric.as_str(), point.host.as_str()), ("a.b", "h"));
        assert_eq!((point.kind, point.interval), (super::PointKind::Rate, Some(10)));
        assert_eq!(point.tags, ["x:y"]);
        assert_eq!(point.ts, Some(1_700_000_000.0));
        assert_eq!(point.data, Data::Number { value: 0.5 });
        let device = serde_json::json!([{"type": "device", "name": "sda"}]);
        assert_eq!(point.extra["resources"], device);
        assert_eq!(limits(path), limits("/api/v2/series"));
        let other = "/api/intake/metrics/v3/sketches";
        assert!(decode(other, "application/x-protobuf", &body).is_err());
        for end in 1..body.len() {
            assert!(
                decode(path, "application/x-protobuf", &body[..end]).is_err(),
                "{end}"
            );
        }
    }
}
