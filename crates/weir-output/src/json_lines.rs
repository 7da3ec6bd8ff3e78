//! One JSON object per point and line, for users and scripts: the format of `--output stdout` and of files.
//!
//! ```text
//! {"ts":1700000000,"interval":10,"metric":"a","type":"rate","host":"h","tags":["k:v"],"value":0.5}
//! {"ts":1700000000,"interval":10,"metric":"d","type":"sketch","host":"h","tags":[],"cnt":3,"min":1,"max":10,"avg":4,"sum":12,"k":[1338,1487],"n":[2,1]}
//! {"event":{...}}
//! {"check":{...}}
//! ```

use std::io::Write;
use std::sync::Arc;

use serde_json::{Map, Value as Json, json};
use weir_aggregate::{Batch, CheckRecord, EventRecord, Expansion, PointType, Series, Value};
use weir_sketch::Sketch;

use crate::delivery::{Class, Counter, Draft, Encode, Encoded, Items};

/// Batches into lines, cut into payloads of whole lines.
pub struct LinesEncoder {
    expansion: Arc<Expansion>,
    payload_bytes: usize,
    route: u16,
}

impl LinesEncoder {
    /// A payload has at most `payload_bytes`, unless one line alone has more.
    pub fn new(expansion: Arc<Expansion>, payload_bytes: usize) -> Self {
        Self {
            expansion,
            payload_bytes,
            route: 0,
        }
    }

    fn lines(&self, class: Class) -> Lines {
        Lines {
            class,
            route: self.route,
            payload_bytes: self.payload_bytes,
            text: Vec::new(),
            count: 0,
        }
    }

    /// Payloads of this route.
    pub fn routed(self, route: u16) -> Self {
        Self { route, ..self }
    }
}

impl Encode for LinesEncoder {
    fn counter(&self) -> Counter {
        let suffixes = self.expansion.suffixes_mask();
        let lines = move |series: Series<'_>| match series.value() {
            Value::Histogram(_) => u64::from((series.suffix_mask() & suffixes).count_ones()),
            _ => 1,
        };
        Box::new(move |batch| Items::of_batch(batch, batch.series().map(lines).sum()))
    }

    fn encode(&mut self, batch: &Batch, out: &mut Encoded) {
        let mut lines = self.lines(Class::Points);
        for series in batch.yielding_series() {
            lines.add(out, |text| write_series(&series, &self.expansion, text));
        }
        lines.finish(out);
        let mut lines = self.lines(Class::Events);
        for event in &batch.events {
            lines.add(out, |text| {
                write_object("event", event_object(event, &batch.hostname), text)
            });
        }
        lines.finish(out);
        let mut lines = self.lines(Class::Checks);
        for check in &batch.checks {
            lines.add(out, |text| {
                write_object("check", check_object(check, &batch.hostname), text)
            });
        }
        lines.finish(out);
    }

    /// Nothing stays open: a reader sees an event when it comes, not at the end of a bucket.
    fn finish(&mut self, _: &mut Encoded) {}

    fn open(&self) -> Items {
        Items::default()
    }
}

/// Collects lines of one class into payloads.
struct Lines {
    class: Class,
    route: u16,
    payload_bytes: usize,
    text: Vec<u8>,
    count: u32,
}

impl Lines {
    /// Adds the lines that `write` appends and counts.
    fn add(&mut self, out: &mut Encoded, write: impl FnOnce(&mut Vec<u8>) -> u64) {
        let before = self.text.len();
        let lines = write(&mut self.text) as u32;
        if self.text.len() > self.payload_bytes && before > 0 {
            let rest = self.text.split_off(before);
            self.finish(out);
            self.text = rest;
        }
        self.count += lines;
    }

    fn finish(&mut self, out: &mut Encoded) {
        if self.count > 0 {
            out.payloads.push(Draft {
                route: self.route,
                class: self.class,
                count: std::mem::take(&mut self.count),
                body: std::mem::take(&mut self.text),
            });
        }
    }
}

/// Appends the lines of one series and returns their number.
fn write_series(series: &Series<'_>, expansion: &Expansion, out: &mut Vec<u8>) -> u64 {
    let interval = series.interval();
    match series.value() {
        Value::Counter(sum) => write_value(series, "", "rate", sum / f64::from(interval), out),
        Value::Gauge(value) => write_value(series, "", "gauge", value, out),
        Value::Set(set) => write_value(series, "", "gauge", set.cardinality() as f64, out),
        Value::Distribution(sketch) => {
            write_head(series, "", "sketch", out);
            write_sketch(sketch, out);
            out.extend_from_slice(b"}\n");
        }
        Value::Histogram(histogram) => {
            let mut written = 0;
            expansion.points(
                histogram,
                interval,
                series.suffix_mask(),
                |suffix, kind, value| {
                    let kind = match kind {
                        PointType::Rate => "rate",
                        PointType::Gauge => "gauge",
                    };
                    write_value(series, suffix, kind, value, out);
                    written += 1;
                },
            );
            return written;
        }
    }
    1
}

fn write_value(series: &Series<'_>, suffix: &str, kind: &str, value: f64, out: &mut Vec<u8>) {
    write_head(series, suffix, kind, out);
    let _ = writeln!(out, ",\"value\":{}}}", Number(value));
}

/// Everything up to the value, without the closing brace.
fn write_head(series: &Series<'_>, suffix: &str, kind: &str, out: &mut Vec<u8>) {
    let _ = write!(
        out,
        "{{\"ts\":{},\"interval\":{},\"metric\":",
        series.timestamp(),
        series.interval()
    );
    if suffix.is_empty() {
        write_text(series.name(), out);
    } else {
        write_text(&format!("{}{suffix}", series.name()), out);
    }
    let _ = write!(out, ",\"type\":\"{kind}\",\"host\":");
    write_text(series.host(), out);
    out.extend_from_slice(b",\"tags\":[");
    for (at, tag) in series.tags().enumerate() {
        if at > 0 {
            out.push(b',');
        }
        write_text(tag, out);
    }
    out.push(b']');
}

fn write_sketch(sketch: &Sketch, out: &mut Vec<u8>) {
    let _ = write!(
        out,
        ",\"cnt\":{},\"min\":{},\"max\":{},\"avg\":{},\"sum\":{}",
        sketch.cnt(),
        Number(sketch.min()),
        Number(sketch.max()),
        Number(sketch.avg()),
        Number(sketch.sum())
    );
    let bins = sketch.bins();
    for (name, part) in [("k", 0), ("n", 1)] {
        let _ = write!(out, ",\"{name}\":[");
        for (at, bin) in bins.iter().enumerate() {
            let separator = if at > 0 { "," } else { "" };
            let number = if part == 0 {
                i64::from(bin.k)
            } else {
                i64::from(bin.n)
            };
            let _ = write!(out, "{separator}{number}");
        }
        out.push(b']');
    }
}

/// A float as JSON: shortest form that reads back equal; an overflow, which JSON cannot say, as null.
struct Number(f64);

impl std::fmt::Display for Number {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if !self.0.is_finite() {
            f.write_str("null")
        } else if self.0.abs() >= 1e17 || (self.0 != 0.0 && self.0.abs() < 1e-7) {
            write!(f, "{:e}", self.0)
        } else {
            write!(f, "{}", self.0)
        }
    }
}

fn write_text(text: &str, out: &mut Vec<u8>) {
    let _ = serde_json::to_writer(out, text);
}

fn write_object(name: &str, object: Json, out: &mut Vec<u8>) -> u64 {
    let _ = serde_json::to_writer(&mut *out, &json!({ name: object }));
    out.push(b'\n');
    1
}

fn event_object(event: &EventRecord, hostname: &str) -> Json {
    let mut object = Map::new();
    object.insert("title".into(), event.title.as_str().into());
    object.insert("text".into(), event.text.as_str().into());
    object.insert("ts".into(), event.timestamp.into());
    object.insert("host".into(), event.host.as_deref().unwrap_or(hostname).into());
    object.insert("priority".into(), event.priority.as_str().into());
    object.insert("alert_type".into(), event.alert_type.as_str().into());
    for (key, text) in [
        ("agg_key", &event.aggregation_key),
        ("source", &event.source_type),
    ] {
        if !text.is_empty() {
            object.insert(key.into(), text.as_str().into());
        }
    }
    object.insert("tags".into(), event.tags.clone().into());
    Json::Object(object)
}

fn check_object(check: &CheckRecord, hostname: &str) -> Json {
    let mut object = Map::new();
    object.insert("name".into(), check.name.as_str().into());
    object.insert("status".into(), (check.status as u8).into());
    object.insert("ts".into(), check.timestamp.into());
    object.insert("host".into(), check.host.as_deref().unwrap_or(hostname).into());
    if !check.message.is_empty() {
        object.insert("message".into(), check.message.as_str().into());
    }
    object.insert("tags".into(), check.tags.clone().into());
    Json::Object(object)
}
