//! Messages back to bytes, for relays, tools and the round-trip tests. Each function appends one line without newline.

use std::io::Write;

use crate::{Event, Metric, OriginFields, Priority, ServiceCheck, Tags, Values};

/// Appends `name:value|type|@rate|#tags|c:..|e:..|card:..|T..`.
pub fn encode_metric(metric: &Metric<'_>, out: &mut Vec<u8>) {
    out.extend_from_slice(metric.name.as_bytes());
    match metric.values {
        Values::Member(member) => {
            out.push(b':');
            out.extend_from_slice(member.as_bytes());
        }
        Values::Numbers(numbers) => {
            for number in numbers.iter() {
                // `Display` prints the shortest text that reads back as the same float, never with an exponent.
                let _ = write!(out, ":{number}");
            }
        }
    }
    out.push(b'|');
    out.extend_from_slice(metric.kind.wire().as_bytes());
    if metric.rate != 1.0 {
        let _ = write!(out, "|@{}", metric.rate);
    }
    encode_tags(&metric.tags, out);
    encode_origin(&metric.origin, out);
    if let Some(seconds) = metric.timestamp {
        let _ = write!(out, "|T{seconds}");
    }
}

/// Appends `_e{title bytes,text bytes}:title|text|fields`.
pub fn encode_event(event: &Event<'_>, out: &mut Vec<u8>) {
    let _ = write!(
        out,
        "_e{{{},{}}}:{}|{}",
        event.title.len(),
        event.text.len(),
        event.title,
        event.text
    );
    if let Some(seconds) = event.timestamp {
        let _ = write!(out, "|d:{seconds}");
    }
    encode_field("h:", event.host, out);
    encode_field("k:", event.aggregation_key, out);
    if event.priority != Priority::default() {
        encode_field("p:", event.priority.as_str(), out);
    }
    encode_field("s:", event.source_type, out);
    if event.alert_type != Default::default() {
        encode_field("t:", event.alert_type.as_str(), out);
    }
    encode_tags(&event.tags, out);
    encode_origin(&event.origin, out);
}

/// Appends `_sc|name|status|fields`, the message before the origin fields.
pub fn encode_check(check: &ServiceCheck<'_>, out: &mut Vec<u8>) {
    let _ = write!(out, "_sc|{}|{}", check.name, check.status as u8);
    if let Some(seconds) = check.timestamp {
        let _ = write!(out, "|d:{seconds}");
    }
    encode_field("h:", check.host, out);
    encode_tags(&check.tags, out);
    encode_field("m:", check.message, out);
    encode_origin(&check.origin, out);
}

fn encode_field(prefix: &str, value: &str, out: &mut Vec<u8>) {
    if !value.is_empty() {
        let _ = write!(out, "|{prefix}{value}");
    }
}

fn encode_tags(tags: &Tags<'_>, out: &mut Vec<u8>) {
    let mut separator = "|#";
    for tag in tags.iter() {
        let _ = write!(out, "{separator}{tag}");
        separator = ",";
    }
}

fn encode_origin(origin: &OriginFields<'_>, out: &mut Vec<u8>) {
    let fields = [
        ("c:", origin.local),
        ("e:", origin.external),
        ("card:", origin.cardinality),
    ];
    for (prefix, value) in fields {
        if let Some(value) = value {
            let _ = write!(out, "|{prefix}{value}");
        }
    }
}
