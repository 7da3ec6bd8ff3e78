//! Line formats: Graphite's plain text, and StatsD with Datadog's extensions.

use super::Reject;
use super::record::{Data, Point, PointKind, Record};
use serde_json::Value;
use std::collections::BTreeMap;

/// One line `path value seconds`; tags as `path;key=value`.
pub fn graphite(line: &[u8]) -> Result<Record, Reject> {
    let wrong = |what: &str| Reject::new(400, format!("{what}: {:?}", String::from_utf8_lossy(line)));
    let text = std::str::from_utf8(line).map_err(|_| wrong("not UTF-8"))?;
    let mut words = text.split_ascii_whitespace();
    let (Some(path), Some(value), Some(ts), None) = (words.next(), words.next(), words.next(), words.next())
    else {
        return Err(wrong("three words were expected: path, value, seconds"));
    };
    let mut parts = path.split(';');
    let metric = parts.next().unwrap_or_default();
    if metric.is_empty() {
        return Err(wrong("no path"));
    }
    let mut tags = Vec::new();
    for part in parts {
        let (key, value) = part.split_once('=').ok_or_else(|| wrong("a tag without ="))?;
        tags.push(format!("{key}:{value}"));
    }
    Ok(Record::Point(Point {
        metric: metric.to_owned(),
        kind: PointKind::Untyped,
        ts: Some(ts.parse().map_err(|_| wrong("not a time"))?),
        tags,
        data: Data::Number {
            value: value.parse().map_err(|_| wrong("not a number"))?,
        },
        ..Point::default()
    }))
}

/// A line, unchanged.
pub fn plain(line: &[u8]) -> Record {
    Record::Log(BTreeMap::from([(
        "body".to_owned(),
        Value::from(String::from_utf8_lossy(line)),
    )]))
}

/// One StatsD line; only its structure is parsed.
pub fn statsd(line: &[u8]) -> Result<Record, Reject> {
    let wrong = |what: &str| Reject::new(400, format!("{what}: {:?}", String::from_utf8_lossy(line)));
    let text = std::str::from_utf8(line).map_err(|_| wrong("not UTF-8"))?;
    if text.starts_with("_e{") {
        return event(text)
            .ok_or_else(|| wrong("not an event"))
            .map(Record::Event);
    }
    if let Some(check) = text.strip_prefix("_sc|") {
        return service_check(check)
            .ok_or_else(|| wrong("not a service check"))
            .map(Record::Check);
    }
    let mut sections = text.split('|');
    let head = sections.next().unwrap_or_default();
    let (metric, values) = head.split_once(':').ok_or_else(|| wrong("no colon"))?;
    let statsd_type = sections.next().ok_or_else(|| wrong("no type"))?;
    if metric.is_empty() || values.is_empty() || !["c", "g", "ms", "h", "d", "s", "m"].contains(&statsd_type)
    {
        return Err(wrong("not a metric"));
    }
    let mut point = Point {
        metric: metric.to_owned(),
        kind: PointKind::Sample,
        ..Point::default()
    };
    let mut rate = String::new();
    for section in sections {
        if let Some(tags) = section.strip_prefix('#') {
            point.tags = tags.split(',').map(str::to_owned).collect();
        } else if let Some(text) = section.strip_prefix('@') {
            rate = text.to_owned();
        } else if let Some(seconds) = section.strip_prefix('T') {
            point.ts = Some(seconds.parse().map_err(|_| wrong("not a time"))?);
        } else if let Some((key, value)) = section.split_once(':') {
            point.extra.insert(key.to_owned(), value.into());
        } else {
            return Err(wrong("an unknown section"));
        }
    }
    let values = match statsd_type {
        // Members of a set may contain anything.
        "s" => vec![values.to_owned()],
        _ => values.split(':').map(str::to_owned).collect(),
    };
    point.data = Data::Sample {
        statsd_type: statsd_type.to_owned(),
        values,
        rate,
    };
    Ok(Record::Point(point))
}

fn event(text: &str) -> Option<BTreeMap<String, Value>> {
    let (lengths, rest) = text.strip_prefix("_e{")?.split_once("}:")?;
    let (title, body) = lengths.split_once(',')?;
    let (title, body): (usize, usize) = (title.parse().ok()?, body.parse().ok()?);
    let title_text = rest.get(..title)?;
    let after = rest.get(title..)?.strip_prefix('|')?;
    let mut record = BTreeMap::from([
        ("msg_title".to_owned(), Value::from(title_text)),
        (
            "msg_text".to_owned(),
            Value::from(after.get(..body)?.replace("\\n", "\n")),
        ),
    ]);
    fields(after.get(body..)?, &mut record);
    Some(record)
}

fn service_check(text: &str) -> Option<BTreeMap<String, Value>> {
    let (name, rest) = text.split_once('|')?;
    let (status, rest) = rest.split_once('|').unwrap_or((rest, ""));
    let status: u8 = status.parse().ok()?;
    let mut record = BTreeMap::from([
        ("check".to_owned(), Value::from(name)),
        ("status".to_owned(), Value::from(status)),
    ]);
    fields(rest, &mut record);
    (status <= 3 && !name.is_empty()).then_some(record)
}

fn fields(text: &str, record: &mut BTreeMap<String, Value>) {
    for section in text.split('|').filter(|section| !section.is_empty()) {
        if let Some(tags) = section.strip_prefix('#') {
            record.insert("tags".to_owned(), tags.split(',').collect::<Vec<_>>().into());
        } else if let Some((key, value)) = section.split_once(':') {
            record.insert(key.to_owned(), value.into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(record: Result<Record, Reject>) -> Value {
        serde_json::to_value(record.unwrap()).unwrap()
    }

    #[test]
    fn graphite_lines() {
        let record = json(graphite(b"a.b;k=v;x=y 1.5 1700000000"));
        assert_eq!(record["metric"], "a.b");
        assert_eq!(record["tags"], serde_json::json!(["k:v", "x:y"]));
        assert_eq!(record["value"], 1.5);
        for line in ["a 1", "a b 1", "a 1 x", "a;k 1 1", ";k=v 1 1", "a 1 1 1"] {
            assert!(graphite(line.as_bytes()).is_err(), "{line}");
        }
    }

    #[test]
    fn statsd_lines() {
        let record = json(statsd(b"a:1:2|ms|@0.5|#k:v,bare|c:ci-1|T1700000000"));
        assert_eq!(record["values"], serde_json::json!(["1", "2"]));
        assert_eq!(record["rate"], "0.5");
        assert_eq!(record["tags"], serde_json::json!(["k:v", "bare"]));
        assert_eq!(record["extra"]["c"], "ci-1");
        assert_eq!(json(statsd(b"s:a:b|s"))["values"], serde_json::json!(["a:b"]));
        assert_eq!(
            json(statsd(b"_e{1,2}:t|xy|p:low|#k:v"))["event"]["msg_text"],
            "xy"
        );
        assert_eq!(json(statsd(b"_sc|c|1|m:down"))["check"]["status"], 1);
        for line in [
            "a",
            "a:1",
            "a:1|x",
            ":1|c",
            "_e{9,9}:a|b",
            "_sc|c|4",
            "a:1|c|what",
        ] {
            assert!(statsd(line.as_bytes()).is_err(), "{line}");
        }
    }
}
