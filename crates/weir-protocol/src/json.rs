//! Parsed packets as JSON: the schema of the shared test vectors and of `weir parse`.
//!
//! One array per packet, one element per non-empty line. Fields at their default are left out, except the
//! `priority` and `alert_type` of events.

use serde_json::{Map, Value, json};

use crate::{
    ErrorClass, Event, Message, Metric, OriginFields, ParseOptions, ServiceCheck, SpecialTag, Tags, Values,
    parse_packet, special_tag, unescape_newlines,
};

/// The whole packet as one JSON array.
pub fn packet_to_json(packet: &[u8], options: &ParseOptions) -> Value {
    parse_packet(packet, options)
        .map(|parsed| line_to_json(&parsed))
        .collect()
}

/// One line as one JSON object.
pub fn line_to_json(parsed: &Result<Message<'_>, ErrorClass>) -> Value {
    match parsed {
        Ok(Message::Metric(metric)) => metric_to_json(metric),
        Ok(Message::Event(event)) => event_to_json(event),
        Ok(Message::Check(check)) => check_to_json(check),
        Err(class) => json!({"error": class.as_str()}),
    }
}

fn metric_to_json(metric: &Metric<'_>) -> Value {
    let mut object = object("metric");
    object.insert("name".into(), metric.name.into());
    object.insert("type".into(), metric.kind.wire().into());
    match metric.values {
        Values::Numbers(numbers) => {
            object.insert("values".into(), numbers.iter().collect::<Vec<f64>>().into());
        }
        Values::Member(member) => {
            object.insert("set".into(), member.into());
        }
    }
    if metric.rate != 1.0 {
        object.insert("rate".into(), metric.rate.into());
    }
    insert_tags(&mut object, &metric.tags);
    insert_timestamp(&mut object, metric.timestamp);
    insert_origin(&mut object, &metric.origin);
    Value::Object(object)
}

fn event_to_json(event: &Event<'_>) -> Value {
    let mut object = object("event");
    object.insert("title".into(), unescape_newlines(event.title).into());
    object.insert("text".into(), unescape_newlines(event.text).into());
    object.insert("priority".into(), event.priority.as_str().into());
    object.insert("alert_type".into(), event.alert_type.as_str().into());
    insert_timestamp(&mut object, event.timestamp);
    insert_text(&mut object, "host", event.host);
    insert_text(&mut object, "agg_key", event.aggregation_key);
    insert_text(&mut object, "source", event.source_type);
    insert_tags(&mut object, &event.tags);
    insert_origin(&mut object, &event.origin);
    Value::Object(object)
}

fn check_to_json(check: &ServiceCheck<'_>) -> Value {
    let mut object = object("check");
    object.insert("name".into(), check.name.into());
    object.insert("status".into(), (check.status as u8).into());
    insert_timestamp(&mut object, check.timestamp);
    insert_text(&mut object, "host", check.host);
    insert_text(&mut object, "message", check.message);
    insert_tags(&mut object, &check.tags);
    insert_origin(&mut object, &check.origin);
    Value::Object(object)
}

/// The meaning of a message's special tags: `host`, `tags`, `pod_uid`, `card`, `jmx_check`; absent means not set.
pub fn enrichment_to_json(message: &Message<'_>) -> Value {
    let (tags, cardinality) = match message {
        Message::Metric(metric) => (metric.tags, metric.origin.cardinality),
        Message::Event(event) => (event.tags, event.origin.cardinality),
        Message::Check(check) => (check.tags, check.origin.cardinality),
    };
    let mut object = Map::new();
    let mut plain = Vec::new();
    if let Some(cardinality) = cardinality {
        object.insert("card".into(), cardinality.into());
    }
    for tag in tags.iter() {
        match special_tag(tag) {
            Some(SpecialTag::Host(host)) => {
                object.insert("host".into(), host.into());
            }
            Some(SpecialTag::EntityId(id)) => {
                object.insert("pod_uid".into(), id.into());
            }
            Some(SpecialTag::Cardinality(value)) => {
                object.entry("card").or_insert_with(|| value.into());
            }
            Some(SpecialTag::JmxCheck(name)) => {
                object.insert("jmx_check".into(), name.into());
            }
            None => plain.push(tag),
        }
    }
    object.insert("tags".into(), plain.into());
    Value::Object(object)
}

fn object(kind: &str) -> Map<String, Value> {
    let mut object = Map::new();
    object.insert("kind".into(), kind.into());
    object
}

fn insert_text(object: &mut Map<String, Value>, key: &str, text: &str) {
    if !text.is_empty() {
        object.insert(key.into(), text.into());
    }
}

fn insert_timestamp(object: &mut Map<String, Value>, timestamp: Option<i64>) {
    if let Some(seconds) = timestamp {
        object.insert("ts".into(), seconds.into());
    }
}

fn insert_tags(object: &mut Map<String, Value>, tags: &Tags<'_>) {
    let tags: Vec<&str> = tags.iter().collect();
    if !tags.is_empty() {
        object.insert("tags".into(), tags.into());
    }
}

fn insert_origin(object: &mut Map<String, Value>, origin: &OriginFields<'_>) {
    let local = origin.local_data();
    let mut fields = Map::new();
    if let Some(id) = local.container_id {
        fields.insert("container_id".into(), id.into());
    }
    if let Some(inode) = local.inode {
        fields.insert("inode".into(), inode.into());
    }
    insert_fields(object, "local", fields);

    let external = origin.external_data();
    let mut fields = Map::new();
    if let Some(init) = external.init_container {
        fields.insert("init".into(), init.into());
    }
    if let Some(name) = external.container_name {
        fields.insert("container_name".into(), name.into());
    }
    if let Some(uid) = external.pod_uid {
        fields.insert("pod_uid".into(), uid.into());
    }
    insert_fields(object, "external", fields);

    insert_text(object, "card", origin.cardinality.unwrap_or_default());
}

fn insert_fields(object: &mut Map<String, Value>, key: &str, fields: Map<String, Value>) {
    if !fields.is_empty() {
        object.insert(key.into(), Value::Object(fields));
    }
}
