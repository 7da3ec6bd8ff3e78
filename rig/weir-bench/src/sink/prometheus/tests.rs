//! Input that Prometheus would refuse, and every kind that it accepts.

use super::protobuf::WriteCounts;
use super::*;
use crate::sink::protobuf::prometheus as pb;
use prost::Message;

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
    assert_eq!(row(0), ("a_total", PointKind::Cumulative));
    assert_eq!(
        (points[0].host.as_str(), points[0].tags.as_slice()),
        ("h", &["x:y".to_owned()][..])
    );
    assert_eq!(points[1].tags, ["x:q\"uo\\te\n"]);
    assert_eq!(points[1].ts, Some(1_700_000_000.0));
    assert_eq!(row(2), ("g", PointKind::Gauge));
    assert_eq!(points[2].data, Data::Number { value: f64::INFINITY });
    assert_eq!(row(3), ("bare", PointKind::Untyped));
    assert_eq!(row(4), ("s", PointKind::CumulativeDistribution));
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
        WriteCounts {
            samples: 1,
            histograms: 1
        }
    );
    let first = points(records);
    assert_eq!(
        (first[0].metric.as_str(), first[0].kind, first[0].ts),
        ("a_total", PointKind::Cumulative, Some(1.5))
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
fn remote_writes_that_a_receiver_must_refuse() {
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
