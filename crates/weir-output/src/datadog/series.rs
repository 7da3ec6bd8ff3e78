//! Series and sketches as the Datadog intake takes them. The field numbers are those of its agent-payload definitions.

use std::io::Write;

use weir_columns::payload;
use weir_sketch::Sketch;

use crate::protobuf;

/// The meaning of a point's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PointKind {
    Rate,
    Gauge,
    /// Only for the agent's own reports: counters of users are rates.
    Count,
}

impl PointKind {
    /// The number in protobuf and in v2's JSON.
    fn number(self) -> i64 {
        match self {
            PointKind::Count => 1,
            PointKind::Rate => 2,
            PointKind::Gauge => 3,
        }
    }

    /// The name in v1.
    fn name(self) -> &'static str {
        match self {
            PointKind::Count => "count",
            PointKind::Rate => "rate",
            PointKind::Gauge => "gauge",
        }
    }
}

/// Origin of a metric, in the intake's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Aggregated by the agent.
    Dogstatsd,
    /// Through a JMX integration, by its number.
    Jmx(u8),
    /// With a timestamp of the sender's.
    Timestamped,
    /// From the agent itself.
    Agent,
}

/// Integrations over JMX that the intake knows by a number.
const JMX_SERVICES: &[(&str, u8)] = &[
    ("activemq", 12),
    ("cassandra", 28),
    ("confluent_platform", 40),
    ("hazelcast", 70),
    ("hive", 73),
    ("hivemq", 74),
    ("hudi", 76),
    ("ignite", 83),
    ("jboss_wildfly", 87),
    ("kafka", 90),
    ("presto", 130),
    ("solr", 147),
    ("sonarqube", 148),
    ("tomcat", 163),
    ("weblogic", 172),
];
/// Any other one.
const JMX_CUSTOM: u8 = 9;

impl Origin {
    /// The number of the integration with this name.
    pub fn jmx(check: &str) -> Self {
        let known = JMX_SERVICES.iter().find(|(name, _)| *name == check);
        Origin::Jmx(known.map_or(JMX_CUSTOM, |(_, service)| *service))
    }

    pub fn category(self) -> i64 {
        match self {
            Origin::Dogstatsd => 10,
            Origin::Jmx(_) => 11,
            Origin::Timestamped | Origin::Agent => 0,
        }
    }

    pub fn service(self) -> i64 {
        match self {
            Origin::Jmx(service) => i64::from(service),
            Origin::Dogstatsd | Origin::Timestamped | Origin::Agent => 0,
        }
    }
}

pub const PRODUCT_AGENT: i64 = 10;
const DEVICE: &str = "device:";
const RESOURCE: &str = "dd.internal.resource:";

/// The common part of a series and a sketch.
pub struct Head<'a, T> {
    pub host: &'a str,
    pub tags: &'a T,
    /// Unix seconds.
    pub timestamp: i64,
    pub origin: Origin,
}

/// One point of one series.
pub struct Point<'a, T> {
    pub head: Head<'a, T>,
    pub name: &'a str,
    /// Appended to the name.
    pub suffix: &'a str,
    pub kind: PointKind,
    pub value: f64,
    /// Seconds.
    pub interval: u32,
}

// By hand, as a derivation would ask the same of the tags' iterator, which is only referred to.
impl<T> Clone for Head<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Head<'_, T> {}
impl<T> Clone for Point<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Point<'_, T> {}

/// Type and name; a tag without both of them is none, and goes all the same ([`keeps`]).
pub fn resource(tag: &str) -> Option<(&str, &str)> {
    let (kind, name) = tag.strip_prefix(RESOURCE)?.split_once(':')?;
    (!kind.is_empty() && !name.is_empty()).then_some((kind, name))
}

/// The device that series are attached to: the last `device:` tag's value, unless it is empty.
pub fn device<'a>(tags: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let last = tags.filter_map(|tag| tag.strip_prefix(DEVICE)).last();
    last.filter(|name| !name.is_empty())
}

fn metadata(buffer: &mut Vec<u8>, field: u32, origin: Origin) {
    origin_message(
        buffer,
        field,
        [PRODUCT_AGENT, origin.category(), origin.service()],
    );
}

fn origin_message(buffer: &mut Vec<u8>, field: u32, [product, category, service]: [i64; 3]) {
    protobuf::message(buffer, field, |b| {
        protobuf::message(b, 1, |b| {
            protobuf::integer(b, 4, product);
            protobuf::integer(b, 5, category);
            protobuf::integer(b, 6, service);
        });
    });
}

/// One element of a MetricPayload, its field tag included: payloads are their concatenation.
pub fn protobuf<'t, T: Iterator<Item = &'t str> + Clone>(
    buffer: &mut Vec<u8>,
    point: &Point<'_, T>,
    device_resource: bool,
) {
    let Head {
        host,
        tags,
        timestamp,
        origin,
    } = point.head;
    protobuf::message(buffer, 1, |b| {
        named(b, "host", host);
        if let Some(device) = device(tags.clone()).filter(|_| device_resource) {
            named(b, "device", device);
        }
        tags.clone()
            .filter_map(resource)
            .for_each(|(kind, name)| named(b, kind, name));
        if point.suffix.is_empty() {
            protobuf::string(b, 2, point.name);
        } else {
            protobuf::message(b, 2, |b| {
                b.extend_from_slice(point.name.as_bytes());
                b.extend_from_slice(point.suffix.as_bytes());
            });
        }
        for tag in tags.clone().filter(|tag| keeps(tag, device_resource)) {
            protobuf::string(b, 3, tag);
        }
        protobuf::message(b, 4, |b| {
            protobuf::double(b, 1, point.value);
            protobuf::integer(b, 2, timestamp);
        });
        protobuf::integer(b, 5, point.kind.number());
        protobuf::integer(b, 8, i64::from(point.interval));
        metadata(b, 9, origin);
    });
}

fn named(buffer: &mut Vec<u8>, kind: &str, name: &str) {
    protobuf::message(buffer, 1, |b| {
        protobuf::string(b, 1, kind);
        protobuf::string(b, 2, name);
    });
}

/// The fields that identify a series of columns, as [`protobuf`] writes them: resources, name and tags.
pub fn identity_of_columns(buffer: &mut Vec<u8>, series: &payload::Series<'_, '_>) {
    if series.resources().first().is_none_or(|(kind, _)| *kind != "host") {
        named(buffer, "host", "");
    }
    for (kind, name) in series.resources() {
        named(buffer, kind, name);
    }
    protobuf::string(buffer, 2, series.name());
    let mut tags = series.tags();
    tags.sort_unstable();
    for tag in tags {
        protobuf::string(buffer, 3, tag);
    }
}

/// [`protobuf`] for a series of columns that is none of a sketch.
pub fn protobuf_of_columns(buffer: &mut Vec<u8>, series: &payload::Series<'_, '_>) {
    protobuf::message(buffer, 1, |b| {
        identity_of_columns(b, series);
        for point in series.points() {
            protobuf::message(b, 4, |b| {
                protobuf::double(b, 1, point.value);
                protobuf::integer(b, 2, point.timestamp);
            });
        }
        protobuf::integer(b, 5, series.metric() as i64);
        protobuf::integer(b, 8, series.interval() as i64);
        let origin = series.origin();
        let numbers = [origin.product, origin.category, origin.service];
        origin_message(b, 9, numbers.map(i64::from));
    });
}

pub fn keeps(tag: &str, device_resource: bool) -> bool {
    !(tag.starts_with(RESOURCE) || device_resource && tag.starts_with(DEVICE))
}

/// One element of the `series` array of the v2 endpoint's JSON form.
pub fn json_v2<'t, T: Iterator<Item = &'t str> + Clone>(
    buffer: &mut Vec<u8>,
    point: &Point<'_, T>,
    device_resource: bool,
) {
    let Head {
        host,
        tags,
        timestamp,
        ..
    } = point.head;
    buffer.extend_from_slice(b"{\"metric\":");
    name(buffer, point);
    let kind = point.kind.number();
    write(
        buffer,
        format_args!(
            ",\"type\":{kind},\"interval\":{},\"points\":[{{\"timestamp\":{timestamp},\"value\":",
            point.interval
        ),
    );
    number(buffer, point.value);
    buffer.extend_from_slice(b"}],\"resources\":[{\"type\":\"host\",\"name\":");
    text(buffer, host);
    buffer.push(b'}');
    let device = device(tags.clone())
        .filter(|_| device_resource)
        .map(|name| ("device", name));
    for (kind, name) in device.into_iter().chain(tags.clone().filter_map(resource)) {
        buffer.extend_from_slice(b",{\"type\":");
        text(buffer, kind);
        buffer.extend_from_slice(b",\"name\":");
        text(buffer, name);
        buffer.push(b'}');
    }
    buffer.extend_from_slice(b"],\"tags\":");
    texts(buffer, tags.clone().filter(|tag| keeps(tag, device_resource)));
    buffer.push(b'}');
}

/// One element of the `series` array of the v1 endpoint.
pub fn json_v1<'t, T: Iterator<Item = &'t str> + Clone>(
    buffer: &mut Vec<u8>,
    point: &Point<'_, T>,
    device_resource: bool,
) {
    let Head {
        host,
        tags,
        timestamp,
        ..
    } = point.head;
    buffer.extend_from_slice(b"{\"metric\":");
    name(buffer, point);
    write(buffer, format_args!(",\"points\":[[{timestamp},"));
    number(buffer, point.value);
    buffer.extend_from_slice(b"]],\"tags\":");
    texts(buffer, tags.clone().filter(|tag| keeps(tag, device_resource)));
    buffer.extend_from_slice(b",\"host\":");
    text(buffer, host);
    if let Some(device) = device(tags.clone()).filter(|_| device_resource) {
        buffer.extend_from_slice(b",\"device\":");
        text(buffer, device);
    }
    let kind = point.kind.name();
    write(
        buffer,
        format_args!(",\"type\":\"{kind}\",\"interval\":{}}}", point.interval),
    );
}

/// One element of a SketchPayload, its field tag included. Tags stay as they are: sketches have no resources.
pub fn sketch<'t, T: Iterator<Item = &'t str> + Clone>(
    buffer: &mut Vec<u8>,
    head: &Head<'_, T>,
    metric: &str,
    sketch: &Sketch,
) {
    let bins = sketch.bins();
    protobuf::message(buffer, 1, |b| {
        protobuf::string(b, 1, metric);
        protobuf::string(b, 2, head.host);
        head.tags.clone().for_each(|tag| protobuf::string(b, 4, tag));
        protobuf::message(b, 7, |b| {
            protobuf::integer(b, 1, head.timestamp);
            protobuf::integer(b, 2, sketch.cnt() as i64);
            protobuf::double(b, 3, sketch.min());
            protobuf::double(b, 4, sketch.max());
            protobuf::double(b, 5, sketch.avg());
            protobuf::double(b, 6, sketch.sum());
            protobuf::packed(b, 7, bins.iter().map(|bin| protobuf::zigzag(i64::from(bin.k))));
            protobuf::packed(b, 8, bins.iter().map(|bin| u64::from(bin.n)));
        });
        metadata(b, 8, head.origin);
    });
}

/// The end of a SketchPayload: its metadata, empty as the agent sends it.
pub const SKETCH_TAIL: [u8; 2] = [0x12, 0];

fn name<T>(buffer: &mut Vec<u8>, point: &Point<'_, T>) {
    text(buffer, point.name);
    if !point.suffix.is_empty() {
        // Suffixes are ours and need no escapes: they go before the closing quote.
        buffer.pop();
        buffer.extend_from_slice(point.suffix.as_bytes());
        buffer.push(b'"');
    }
}

pub fn text(buffer: &mut Vec<u8>, value: &str) {
    serde_json::to_writer(buffer, value).expect("writing to memory");
}

pub fn texts<'a>(buffer: &mut Vec<u8>, values: impl Iterator<Item = &'a str>) {
    buffer.push(b'[');
    for (i, value) in values.enumerate() {
        if i > 0 {
            buffer.push(b',');
        }
        text(buffer, value);
    }
    buffer.push(b']');
}

fn number(buffer: &mut Vec<u8>, value: f64) {
    serde_json::to_writer(buffer, &value).expect("writing to memory");
}

pub fn write(buffer: &mut Vec<u8>, arguments: std::fmt::Arguments<'_>) {
    buffer.write_fmt(arguments).expect("writing to memory");
}
