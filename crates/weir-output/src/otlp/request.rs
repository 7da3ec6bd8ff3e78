//! Builds request bodies (`ExportMetricsServiceRequest`) point by point. The field numbers are those of opentelemetry-proto 1.x.

use weir_protocol::Kind;
use weir_sketch::{ExponentialHistogram, ZERO_THRESHOLD};

use super::settings::{OtlpCompression, Temporality};
use crate::compress::Compressor;
use crate::delivery::{Class, Draft, Encoded, Items, Reason};
use crate::protobuf;
use crate::settings::Compression;
use crate::sums::Counters;

/// Bytes before compression at which a request ends: gRPC servers accept 4 MiB by default.
const BYTES_MAX: usize = 3_500_000;

/// Nanoseconds since 1970.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// Zero for values that do not cover a time.
    pub start: u64,
    pub at: u64,
}

/// The value of a point.
#[derive(Debug)]
pub enum Data<'a> {
    Number(f64),
    Exponential(&'a ExponentialHistogram),
    Summary {
        count: u64,
        sum: f64,
        quantiles: &'a [(f64, f64)],
    },
    /// The series has ended; of a shape that fits the metric.
    Ended,
}

/// The OTLP type of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Shape {
    Gauge,
    Sum(Counters),
    Exponential,
    Summary,
}

/// Metric and host of a point. Points with the same key should be adjacent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Metric<'a> {
    pub host: &'a str,
    pub kind: Kind,
    pub name: &'a str,
    pub shape: Shape,
}

/// A request under construction.
pub struct Request {
    temporality: Temporality,
    compression: OtlpCompression,
    points_max: u32,
    /// Attributes of every resource, encoded.
    resource: Vec<u8>,
    /// Whether those have a `host.name`.
    names_host: bool,
    body: Vec<u8>,
    open_resource: Option<String>,
    open_scope: Option<Kind>,
    open_metric: Option<(String, Shape)>,
    /// Bodies of the open messages, each without its open children.
    scopes: Vec<u8>,
    metrics: Vec<u8>,
    points: Vec<u8>,
    point: Vec<u8>,
    count: u32,
    compressor: Option<Compressor>,
}

impl Request {
    pub fn new(
        temporality: Temporality,
        compression: OtlpCompression,
        points_max: u32,
        resource_attributes: impl Iterator<Item = (String, String)>,
    ) -> Self {
        let mut resource = Vec::new();
        let mut names_host = false;
        for (name, value) in resource_attributes {
            names_host |= name == "host.name";
            text_attribute(&mut resource, 1, &name, &value);
        }
        Request {
            temporality,
            compression,
            points_max,
            resource,
            names_host,
            body: Vec::new(),
            open_resource: None,
            open_scope: None,
            open_metric: None,
            scopes: Vec::new(),
            metrics: Vec::new(),
            points: Vec::new(),
            point: Vec::new(),
            count: 0,
            compressor: None,
        }
    }

    pub fn open(&self) -> Items {
        Items::of(Class::Points, u64::from(self.count))
    }

    /// Adds a point that stands for `count` of ours. `attributes` appends them as the field whose number it is given.
    pub fn add(
        &mut self,
        metric: Metric<'_>,
        attributes: impl FnOnce(&mut Vec<u8>, u32),
        times: Times,
        data: &Data<'_>,
        count: u32,
        out: &mut Encoded,
    ) {
        let mut point = std::mem::take(&mut self.point);
        point.clear();
        write_point(&mut point, metric.shape, attributes, times, data);
        // Heads of the messages around it, with their lengths.
        let around = 200 + metric.name.len() + metric.host.len() + self.resource.len();
        if point.len() + around > BYTES_MAX {
            out.dropped(Reason::TooLarge, Class::Points, u64::from(count));
        } else {
            let held = self.body.len() + self.scopes.len() + self.metrics.len() + self.points.len();
            let is_full = held + point.len() + 2 * around > BYTES_MAX || self.count >= self.points_max;
            if is_full {
                self.finish(out);
            }
            self.go_to(metric);
            protobuf::bytes(&mut self.points, 1, &point);
            self.count += count;
        }
        self.point = point;
    }

    /// Opens the messages that a point of this metric belongs into, closing others.
    fn go_to(&mut self, metric: Metric<'_>) {
        let same_resource = self.open_resource.as_deref() == Some(metric.host);
        let same_scope = same_resource && self.open_scope == Some(metric.kind);
        let same_metric = same_scope
            && self
                .open_metric
                .as_ref()
                .is_some_and(|(name, shape)| name == metric.name && *shape == metric.shape);
        if same_metric {
            return;
        }
        self.end_metric();
        if !same_scope {
            self.end_scope();
        }
        if !same_resource {
            self.end_resource();
        }
        self.open_resource.get_or_insert_with(|| metric.host.to_owned());
        self.open_scope = Some(metric.kind);
        self.open_metric = Some((metric.name.to_owned(), metric.shape));
    }

    fn end_metric(&mut self) {
        let Some((name, shape)) = self.open_metric.take() else {
            return;
        };
        let (points, temporality) = (&mut self.points, self.temporality as i64);
        let unit = match self.open_scope {
            Some(Kind::Timing) => "ms",
            _ => "",
        };
        protobuf::message(&mut self.metrics, 2, |out| {
            protobuf::string(out, 1, &name);
            protobuf::string(out, 3, unit);
            let field = match shape {
                Shape::Gauge => 5,
                Shape::Sum(_) => 7,
                Shape::Exponential => 10,
                Shape::Summary => 11,
            };
            protobuf::message(out, field, |out| {
                out.append(points);
                if matches!(shape, Shape::Sum(_) | Shape::Exponential) {
                    protobuf::integer(out, 2, temporality);
                }
                if shape == Shape::Sum(Counters::Monotonic) {
                    protobuf::integer(out, 3, 1);
                }
            });
        });
    }

    fn end_scope(&mut self) {
        let Some(kind) = self.open_scope.take() else {
            return;
        };
        let metrics = &mut self.metrics;
        protobuf::message(&mut self.scopes, 2, |out| {
            protobuf::message(out, 1, |out| {
                protobuf::string(out, 1, "weir");
                protobuf::string(out, 2, env!("CARGO_PKG_VERSION"));
                // A scope is a part of a metric's identity: a gauge and a set of one name stay apart by it.
                text_attribute(out, 3, "statsd.type", kind.as_str());
            });
            out.append(metrics);
        });
    }

    fn end_resource(&mut self) {
        let Some(host) = self.open_resource.take() else {
            return;
        };
        let (scopes, resource, names_host) = (&mut self.scopes, &self.resource, self.names_host);
        protobuf::message(&mut self.body, 1, |out| {
            protobuf::message(out, 1, |out| {
                out.extend_from_slice(resource);
                if !names_host && !host.is_empty() {
                    text_attribute(out, 1, "host.name", &host);
                }
            });
            out.append(scopes);
        });
    }

    /// Ends the request, if anything is in it.
    pub fn finish(&mut self, out: &mut Encoded) {
        if self.count == 0 {
            return;
        }
        self.end_metric();
        self.end_scope();
        self.end_resource();
        let body = match self.compression {
            OtlpCompression::None => std::mem::take(&mut self.body),
            OtlpCompression::Gzip => {
                let compressor = self
                    .compressor
                    .get_or_insert_with(|| Compressor::new(Compression::Gzip, 1));
                compressor.write(&self.body);
                self.body.clear();
                compressor.finish()
            }
        };
        out.payloads.push(Draft {
            route: self.compression as u16,
            class: Class::Points,
            count: std::mem::take(&mut self.count),
            body,
        });
    }

    /// Gives memory back until the next flush.
    pub fn rest(&mut self) {
        if self.count == 0 {
            for buffer in [
                &mut self.body,
                &mut self.scopes,
                &mut self.metrics,
                &mut self.points,
            ] {
                *buffer = Vec::new();
            }
            self.compressor = None;
        }
    }
}

fn write_point(
    out: &mut Vec<u8>,
    shape: Shape,
    attributes: impl FnOnce(&mut Vec<u8>, u32),
    times: Times,
    data: &Data<'_>,
) {
    let is_exponential = shape == Shape::Exponential;
    attributes(out, if is_exponential { 1 } else { 7 });
    protobuf::fixed64(out, 2, times.start);
    protobuf::fixed64(out, 3, times.at);
    match data {
        Data::Number(value) => protobuf::present_double(out, 4, *value),
        Data::Summary {
            count,
            sum,
            quantiles,
        } => {
            protobuf::fixed64(out, 4, *count);
            protobuf::double(out, 5, *sum);
            for &(quantile, value) in *quantiles {
                protobuf::message(out, 6, |out| {
                    protobuf::double(out, 1, quantile);
                    protobuf::double(out, 2, value);
                });
            }
        }
        Data::Exponential(histogram) => {
            protobuf::fixed64(out, 4, histogram.count());
            protobuf::present_double(out, 5, histogram.sum);
            protobuf::integer(out, 6, protobuf::zigzag(i64::from(histogram.scale)) as i64);
            protobuf::fixed64(out, 7, histogram.zero_count);
            buckets(out, 8, &histogram.positive);
            buckets(out, 9, &histogram.negative);
            // Unknown for a cumulative histogram: forgotten samples may have been larger.
            if histogram.min.is_finite() {
                protobuf::present_double(out, 12, histogram.min);
                protobuf::present_double(out, 13, histogram.max);
            }
            protobuf::double(out, 14, ZERO_THRESHOLD);
        }
        // The flag of a point without a recorded value.
        Data::Ended => protobuf::integer(out, if is_exponential { 10 } else { 8 }, 1),
    }
}

fn buckets(out: &mut Vec<u8>, field: u32, side: &[(i32, u64)]) {
    if side.is_empty() {
        return;
    }
    let (offset, counts) = ExponentialHistogram::dense(side);
    protobuf::message(out, field, |out| {
        protobuf::integer(out, 1, protobuf::zigzag(i64::from(offset)) as i64);
        protobuf::packed(out, 2, counts.iter().copied());
    });
}

/// Appends an attribute whose value is a text.
fn text_attribute(out: &mut Vec<u8>, field: u32, name: &str, value: &str) {
    protobuf::message(out, field, |out| {
        protobuf::string(out, 1, name);
        protobuf::message(out, 2, |out| protobuf::bytes(out, 1, value.as_bytes()));
    });
}

/// Appends the attributes that tags become: texts; true for a tag without a value; a list where a name comes several times.
pub fn attributes<'t>(out: &mut Vec<u8>, field: u32, tags: impl Iterator<Item = &'t str> + Clone) {
    // Tags are sorted, so those with one name are usually adjacent: `k:` sorts before every longer name that begins with `k`, unless its
    // next character is below the colon.
    let name_of = |tag: &'t str| tag.split_once(':').map_or(tag, |(name, _)| name);
    let repeats = |at: usize, name: &str| {
        tags.clone()
            .enumerate()
            .any(|(other, tag)| other < at && name_of(tag) == name)
    };
    let mut is_in_order = true;
    let mut before = None;
    for tag in tags.clone() {
        let name = name_of(tag);
        is_in_order &= before.is_none_or(|before| before < name);
        before = Some(name);
    }
    for (at, tag) in tags.clone().enumerate() {
        let name = name_of(tag);
        if !is_in_order && repeats(at, name) {
            continue;
        }
        let all = || tags.clone().filter(|tag| name_of(tag) == name);
        protobuf::message(out, field, |out| {
            // A name must not be empty.
            protobuf::string(out, 1, if name.is_empty() { "_" } else { name });
            protobuf::message(out, 2, |out| {
                if is_in_order || all().count() == 1 {
                    value(out, tag);
                } else {
                    protobuf::message(out, 5, |out| {
                        all().for_each(|tag| protobuf::message(out, 1, |out| value(out, tag)));
                    });
                }
            });
        });
    }
}

fn value(out: &mut Vec<u8>, tag: &str) {
    match tag.split_once(':') {
        Some((_, value)) => protobuf::bytes(out, 1, value.as_bytes()),
        None => protobuf::present(out, 2, 1),
    }
}
