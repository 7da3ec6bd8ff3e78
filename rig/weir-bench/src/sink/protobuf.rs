//! Protobuf messages of the formats that the sinks decode, written from their public field numbers. Deliberately not the agent's types, so
//! that an error there is not repeated here.

use prost::{Enumeration, Message, Oneof};
use serde::Deserialize;

/// Datadog metrics and sketches.
pub mod datadog {
    use super::*;

    #[derive(Clone, PartialEq, Message, Deserialize)]
    pub struct MetricPayload {
        #[prost(message, repeated, tag = "1")]
        pub series: Vec<Series>,
    }

    /// The attributes of serde are those of the same message as JSON.
    #[derive(Clone, PartialEq, Message, Deserialize)]
    pub struct Series {
        #[serde(default)]
        #[prost(message, repeated, tag = "1")]
        pub resources: Vec<Resource>,
        #[prost(string, tag = "2")]
        pub metric: String,
        #[serde(default)]
        #[prost(string, repeated, tag = "3")]
        pub tags: Vec<String>,
        #[prost(message, repeated, tag = "4")]
        pub points: Vec<Point>,
        #[serde(default, rename = "type")]
        #[prost(int32, tag = "5")]
        pub kind: i32,
        #[serde(default)]
        #[prost(string, tag = "6")]
        pub unit: String,
        #[serde(default)]
        #[prost(string, tag = "7")]
        pub source_type_name: String,
        #[serde(default)]
        #[prost(int64, tag = "8")]
        pub interval: i64,
        #[serde(skip)]
        #[prost(message, optional, tag = "9")]
        pub metadata: Option<Metadata>,
    }

    #[derive(Clone, PartialEq, Message, Deserialize)]
    pub struct Resource {
        #[serde(rename = "type")]
        #[prost(string, tag = "1")]
        pub kind: String,
        #[prost(string, tag = "2")]
        pub name: String,
    }

    #[derive(Clone, Copy, PartialEq, Message, Deserialize)]
    pub struct Point {
        #[prost(double, tag = "1")]
        pub value: f64,
        #[prost(int64, tag = "2")]
        pub timestamp: i64,
    }

    #[derive(Clone, PartialEq, Message)]
    pub struct Metadata {
        #[prost(message, optional, tag = "1")]
        pub origin: Option<Origin>,
    }

    #[derive(Clone, Copy, PartialEq, Message)]
    pub struct Origin {
        #[prost(uint32, tag = "4")]
        pub product: u32,
        #[prost(uint32, tag = "5")]
        pub category: u32,
        #[prost(uint32, tag = "6")]
        pub service: u32,
    }

    #[derive(Clone, PartialEq, Message)]
    pub struct SketchPayload {
        #[prost(message, repeated, tag = "1")]
        pub sketches: Vec<Sketch>,
    }

    #[derive(Clone, PartialEq, Message)]
    pub struct Sketch {
        #[prost(string, tag = "1")]
        pub metric: String,
        #[prost(string, tag = "2")]
        pub host: String,
        #[prost(string, repeated, tag = "4")]
        pub tags: Vec<String>,
        #[prost(message, repeated, tag = "7")]
        pub dogsketches: Vec<Dogsketch>,
        #[prost(message, optional, tag = "8")]
        pub metadata: Option<Metadata>,
    }

    #[derive(Clone, PartialEq, Message)]
    pub struct Dogsketch {
        #[prost(int64, tag = "1")]
        pub ts: i64,
        #[prost(int64, tag = "2")]
        pub cnt: i64,
        #[prost(double, tag = "3")]
        pub min: f64,
        #[prost(double, tag = "4")]
        pub max: f64,
        #[prost(double, tag = "5")]
        pub avg: f64,
        #[prost(double, tag = "6")]
        pub sum: f64,
        #[prost(sint32, repeated, tag = "7")]
        pub k: Vec<i32>,
        #[prost(uint32, repeated, tag = "8")]
        pub n: Vec<u32>,
    }

    #[derive(Clone, PartialEq, Message)]
    pub struct EventsPayload {
        #[prost(message, repeated, tag = "1")]
        pub events: Vec<Event>,
    }

    #[derive(Clone, PartialEq, Message)]
    pub struct Event {
        #[prost(string, tag = "1")]
        pub title: String,
        #[prost(string, tag = "2")]
        pub text: String,
        #[prost(int64, tag = "3")]
        pub ts: i64,
        #[prost(string, tag = "4")]
        pub priority: String,
        #[prost(string, tag = "5")]
        pub host: String,
        #[prost(string, repeated, tag = "6")]
        pub tags: Vec<String>,
        #[prost(string, tag = "7")]
        pub alert_type: String,
        #[prost(string, tag = "8")]
        pub aggregation_key: String,
        #[prost(string, tag = "9")]
        pub source_type_name: String,
    }
}

/// Prometheus exposition and remote write.
pub mod prometheus {
    use super::*;

    #[derive(Clone, PartialEq, Message)]
    pub struct MetricFamily {
        #[prost(string, tag = "1")]
        pub name: String,
        #[prost(enumeration = "FamilyKind", tag = "3")]
        pub kind: i32,
        #[prost(message, repeated, tag = "4")]
        pub metrics: Vec<Metric>,
        #[prost(string, tag = "5")]
        pub unit: String,
    }

    #[derive(Clone, Copy, Debug, PartialEq, Eq, Enumeration)]
    #[repr(i32)]
    pub enum FamilyKind {
        Counter = 0,
        Gauge = 1,
        Summary = 2,
        Untyped = 3,
        Histogram = 4,
        GaugeHistogram = 5,
    }

    #[derive(Clone, PartialEq, Message)]
    pub struct Metric {
        #[prost(message, repeated, tag = "1")]
        pub labels: Vec<Label>,
        #[prost(message, optional, tag = "2")]
        pub gauge: Option<Number>,
        #[prost(message, optional, tag = "3")]
        pub counter: Option<Number>,
        #[prost(message, optional, tag = "4")]
        pub summary: Option<Summary>,
        #[prost(message, optional, tag = "5")]
        pub untyped: Option<Number>,
        #[prost(int64, optional, tag = "6")]
        pub timestamp_ms: Option<i64>,
        #[prost(message, optional, tag = "7")]
        pub histogram: Option<ScrapeHistogram>,
    }

    #[derive(Clone, PartialEq, Message)]
    pub struct Label {
        #[prost(string, tag = "1")]
        pub name: String,
        #[prost(string, tag = "2")]
        pub value: String,
    }

    #[derive(Clone, Copy, PartialEq, Message)]
    pub struct Number {
        #[prost(double, tag = "1")]
        pub value: f64,
    }

    #[derive(Clone, PartialEq, Message)]
    pub struct Summary {
        #[prost(uint64, tag = "1")]
        pub count: u64,
        #[prost(double, tag = "2")]
        pub sum: f64,
        #[prost(message, repeated, tag = "3")]
        pub quantiles: Vec<Quantile>,
    }

    #[derive(Clone, Copy, PartialEq, Message)]
    pub struct Quantile {
        #[prost(double, tag = "1")]
        pub quantile: f64,
        #[prost(double, tag = "2")]
        pub value: f64,
    }

    #[derive(Clone, PartialEq, Message)]
    pub struct ScrapeHistogram {
        #[prost(uint64, tag = "1")]
        pub count: u64,
        #[prost(double, tag = "2")]
        pub sum: f64,
        #[prost(message, repeated, tag = "3")]
        pub buckets: Vec<ClassicBucket>,
        #[prost(double, tag = "4")]
        pub count_float: f64,
        /// Present on native histograms only.
        #[prost(sint32, optional, tag = "5")]
        pub schema: Option<i32>,
        #[prost(double, tag = "6")]
        pub zero_threshold: f64,
        #[prost(uint64, tag = "7")]
        pub zero_count: u64,
        #[prost(double, tag = "8")]
        pub zero_count_float: f64,
        #[prost(message, repeated, tag = "9")]
        pub negative_spans: Vec<Span>,
        #[prost(sint64, repeated, tag = "10")]
        pub negative_deltas: Vec<i64>,
        #[prost(double, repeated, tag = "11")]
        pub negative_counts: Vec<f64>,
        #[prost(message, repeated, tag = "12")]
        pub positive_spans: Vec<Span>,
        #[prost(sint64, repeated, tag = "13")]
        pub positive_deltas: Vec<i64>,
        #[prost(double, repeated, tag = "14")]
        pub positive_counts: Vec<f64>,
    }

    #[derive(Clone, Copy, PartialEq, Message)]
    pub struct ClassicBucket {
        #[prost(uint64, tag = "1")]
        pub cumulative: u64,
        #[prost(double, tag = "2")]
        pub upper_bound: f64,
        #[prost(double, tag = "4")]
        pub cumulative_float: f64,
    }

    #[derive(Clone, Copy, PartialEq, Message)]
    pub struct Span {
        #[prost(sint32, tag = "1")]
        pub offset: i32,
        #[prost(uint32, tag = "2")]
        pub length: u32,
    }

    #[derive(Clone, PartialEq, Message)]
    pub struct WriteRequest {
        #[prost(message, repeated, tag = "1")]
        pub timeseries: Vec<TimeSeries>,
        #[prost(message, repeated, tag = "3")]
        pub metadata: Vec<Metadata>,
    }

    #[derive(Clone, PartialEq, Message)]
    pub struct Metadata {
        #[prost(int32, tag = "1")]
        pub kind: i32,
        #[prost(string, tag = "2")]
        pub family: String,
    }

    #[derive(Clone, PartialEq, Message)]
    pub struct TimeSeries {
        #[prost(message, repeated, tag = "1")]
        pub labels: Vec<Label>,
        #[prost(message, repeated, tag = "2")]
        pub samples: Vec<Sample>,
        #[prost(message, repeated, tag = "4")]
        pub histograms: Vec<WriteHistogram>,
    }

    #[derive(Clone, Copy, PartialEq, Message)]
    pub struct Sample {
        #[prost(double, tag = "1")]
        pub value: f64,
        #[prost(int64, tag = "2")]
        pub timestamp_ms: i64,
    }

    #[derive(Clone, PartialEq, Message)]
    pub struct WriteHistogram {
        #[prost(oneof = "Count", tags = "1, 2")]
        pub count: Option<Count>,
        #[prost(double, tag = "3")]
        pub sum: f64,
        #[prost(sint32, tag = "4")]
        pub schema: i32,
        #[prost(double, tag = "5")]
        pub zero_threshold: f64,
        #[prost(oneof = "ZeroCount", tags = "6, 7")]
        pub zero_count: Option<ZeroCount>,
        #[prost(message, repeated, tag = "8")]
        pub negative_spans: Vec<Span>,
        #[prost(sint64, repeated, tag = "9")]
        pub negative_deltas: Vec<i64>,
        #[prost(double, repeated, tag = "10")]
        pub negative_counts: Vec<f64>,
        #[prost(message, repeated, tag = "11")]
        pub positive_spans: Vec<Span>,
        #[prost(sint64, repeated, tag = "12")]
        pub positive_deltas: Vec<i64>,
        #[prost(double, repeated, tag = "13")]
        pub positive_counts: Vec<f64>,
        #[prost(int64, tag = "15")]
        pub timestamp_ms: i64,
        #[prost(double, repeated, tag = "16")]
        pub custom_bounds: Vec<f64>,
    }

    #[derive(Clone, Copy, PartialEq, Oneof)]
    pub enum Count {
        #[prost(uint64, tag = "1")]
        Int(u64),
        #[prost(double, tag = "2")]
        Float(f64),
    }

    #[derive(Clone, Copy, PartialEq, Oneof)]
    pub enum ZeroCount {
        #[prost(uint64, tag = "6")]
        Int(u64),
        #[prost(double, tag = "7")]
        Float(f64),
    }

    /// Remote write 2.0.
    #[derive(Clone, PartialEq, Message)]
    pub struct WriteRequest2 {
        #[prost(string, repeated, tag = "4")]
        pub symbols: Vec<String>,
        #[prost(message, repeated, tag = "5")]
        pub timeseries: Vec<TimeSeries2>,
    }

    #[derive(Clone, PartialEq, Message)]
    pub struct TimeSeries2 {
        #[prost(uint32, repeated, tag = "1")]
        pub label_refs: Vec<u32>,
        #[prost(message, repeated, tag = "2")]
        pub samples: Vec<Sample>,
        #[prost(message, repeated, tag = "3")]
        pub histograms: Vec<WriteHistogram>,
        #[prost(message, optional, tag = "5")]
        pub metadata: Option<Metadata2>,
    }

    #[derive(Clone, Copy, PartialEq, Message)]
    pub struct Metadata2 {
        #[prost(int32, tag = "1")]
        pub kind: i32,
        #[prost(uint32, tag = "3")]
        pub help_ref: u32,
        #[prost(uint32, tag = "4")]
        pub unit_ref: u32,
    }
}
