//! Decoded data: one record per point, event, check, log line or span, for every wire format.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// One JSON line of a capture.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
// Nearly every record is a point; boxing it would save nothing.
#[allow(clippy::large_enum_variant)]
pub enum Record {
    Event(BTreeMap<String, serde_json::Value>),
    Check(BTreeMap<String, serde_json::Value>),
    Log(BTreeMap<String, serde_json::Value>),
    Span(BTreeMap<String, serde_json::Value>),
    #[serde(untagged)]
    Point(Point),
}

/// One point of one series.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// The kind of sink that received it: `datadog`, `otlp-http`, ...
    pub sink: String,
    /// When it arrived, nanoseconds since 1970.
    pub received_ns: u64,
    /// The point's own time, seconds since 1970; absent when the format has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ts: Option<f64>,
    /// Seconds a rate or count covers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval: Option<i64>,
    pub metric: String,
    #[serde(rename = "type")]
    pub kind: PointKind,
    #[serde(default)]
    pub host: String,
    /// In the order received. Labels and attributes are written `key:value`.
    #[serde(default)]
    pub tags: Vec<String>,
    #[serde(flatten)]
    pub data: Data,
    /// Fields that only one format has: resources, origin, unit, source type.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub extra: BTreeMap<String, serde_json::Value>,
}

/// The meaning of a point's number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PointKind {
    /// Per second over the interval.
    Rate,
    /// Over the interval.
    Count,
    /// Since the sender started.
    Cumulative,
    #[default]
    Gauge,
    /// Datadog sketch over the interval.
    Sketch,
    /// Histogram or summary over the interval.
    Distribution,
    /// Histogram or summary since the sender started.
    CumulativeDistribution,
    /// Raw StatsD samples, as relayed.
    Sample,
    /// A number of unknown meaning.
    Untyped,
}

/// The number, or the numbers, of a point.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Data {
    Sketch {
        cnt: i64,
        #[serde(with = "number")]
        min: f64,
        #[serde(with = "number")]
        max: f64,
        #[serde(with = "number")]
        avg: f64,
        #[serde(with = "number")]
        sum: f64,
        k: Vec<i32>,
        n: Vec<u32>,
    },
    Distribution {
        count: f64,
        /// Absent if the format allows that.
        #[serde(with = "number_or_none")]
        sum: Option<f64>,
        #[serde(with = "number_or_none")]
        min: Option<f64>,
        #[serde(with = "number_or_none")]
        max: Option<f64>,
        /// Upper bound and count of each bucket, not cumulative, lowest first.
        buckets: Vec<Bucket>,
        /// Quantile and value.
        quantiles: Vec<(f64, Text)>,
    },
    /// One relayed StatsD message, uninterpreted.
    Sample {
        statsd_type: String,
        values: Vec<String>,
        rate: String,
    },
    Number {
        #[serde(with = "number")]
        value: f64,
    },
}

impl Default for Data {
    fn default() -> Data {
        Data::Number { value: 0.0 }
    }
}

/// A number that may be NaN or infinite, which JSON numbers cannot express.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Text(#[serde(with = "number")] pub f64);

/// One bucket: values above `above` up to `upto`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Bucket {
    #[serde(with = "number")]
    pub above: f64,
    #[serde(with = "number")]
    pub upto: f64,
    pub count: f64,
}

/// Finite numbers as JSON numbers, the others as the strings `NaN`, `inf` and `-inf`.
mod number {
    use serde::{Deserialize, Deserializer, Serializer};

    #[derive(Deserialize)]
    #[serde(untagged)]
    pub enum Either {
        Number(f64),
        Text(String),
    }

    impl Either {
        pub fn value<E: serde::de::Error>(self) -> Result<f64, E> {
            match self {
                Either::Number(value) => Ok(value),
                Either::Text(text) => text
                    .parse()
                    .map_err(|_| E::custom(format!("{text:?} is not a number"))),
            }
        }
    }

    pub fn serialize<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
        if value.is_finite() {
            serializer.serialize_f64(*value)
        } else {
            serializer.collect_str(value)
        }
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
        Either::deserialize(deserializer)?.value()
    }
}

mod number_or_none {
    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(value: &Option<f64>, serializer: S) -> Result<S::Ok, S::Error> {
        match value {
            Some(value) => super::number::serialize(value, serializer),
            None => serializer.serialize_none(),
        }
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<f64>, D::Error> {
        Option::<super::number::Either>::deserialize(deserializer)?
            .map(super::number::Either::value)
            .transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_survive_a_capture() {
        let point = |data| {
            Record::Point(Point {
                sink: "datadog".into(),
                received_ns: 1,
                ts: Some(1.5),
                metric: "a".into(),
                tags: vec!["k:v".into()],
                data,
                ..Point::default()
            })
        };
        let records = [
            point(Data::Number { value: f64::INFINITY }),
            point(Data::Number { value: 0.5 }),
            point(Data::Sketch {
                cnt: 1,
                min: 1.0,
                max: 1.0,
                avg: 1.0,
                sum: 1.0,
                k: vec![1338],
                n: vec![1],
            }),
            point(Data::Distribution {
                count: 1.0,
                sum: None,
                min: Some(1.0),
                max: None,
                buckets: vec![Bucket {
                    above: f64::NEG_INFINITY,
                    upto: 2.0,
                    count: 1.0,
                }],
                quantiles: vec![(0.5, Text(2.0))],
            }),
            point(Data::Sample {
                statsd_type: "c".into(),
                values: vec!["1".into()],
                rate: "0.5".into(),
            }),
            Record::Event(BTreeMap::from([("title".into(), "t".into())])),
            Record::Check(BTreeMap::from([("check".into(), "c".into())])),
        ];
        for record in records {
            let text = serde_json::to_string(&record).unwrap();
            let back: Record = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!(back, record, "{text}");
        }
    }
}
