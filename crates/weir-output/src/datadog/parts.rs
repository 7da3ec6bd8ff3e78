//! A payload taken apart into its series, sketches, checks or events.

use std::ops::Range;

use serde_json::Value;
use weir_columns::{Encoder, payload};
use xxhash_rust::xxh3::xxh3_128;

use super::encode::{RequestKind, parse_route};
use super::series;
use crate::compress::{compressed, decompressed};
use crate::delivery::{Keep, Parts, Payload};
use crate::protobuf::{self, Content, for_each_field};
use crate::settings::Compression;

pub struct Elements {
    kind: RequestKind,
    compression: Compression,
    plain: Vec<u8>,
}

impl Elements {
    pub fn of(payload: &Payload) -> Option<Self> {
        let (kind, compression) = parse_route(payload.route)?;
        Some(Elements {
            kind,
            compression,
            plain: decompressed(compression, &payload.body)?,
        })
    }

    fn pick_columns(&self, keep: &mut Keep<'_>) -> Option<Vec<u8>> {
        let read = payload::Payload::read(&self.plain).ok()?;
        // The texts are a payload's, which an intake was to have: nobody chooses them for their hashes.
        let mut encoder = Encoder::new(0);
        let mut identity = Vec::new();
        for series in read.series() {
            identity.clear();
            let (name, tag) = if self.kind == RequestKind::SketchesV3 {
                protobuf::string(&mut identity, 1, series.name());
                protobuf::string(&mut identity, 2, series.resource("host"));
                let mut tags = series.tags();
                tags.sort_unstable();
                tags.iter()
                    .for_each(|tag| protobuf::string(&mut identity, 4, tag));
                (1, 4)
            } else {
                series::identity_of_columns(&mut identity, &series);
                (2, 3)
            };
            if keep(xxh3_128(&identity), &|| shown(&identity, name, tag)) {
                series.write(&mut encoder);
            }
        }
        encoder.sort();
        Some(encoder.to_payload())
    }

    fn pick_messages(&self, keep: &mut Keep<'_>) -> Option<Vec<u8>> {
        // Resources, name and tags of a series; name, host and tags of a sketch.
        let (own, name, tag) = match self.kind {
            RequestKind::Sketches => ([1, 2, 4], 1, 4),
            _ => ([1, 2, 3], 2, 3),
        };
        let mut out = Vec::new();
        for_each_field(&self.plain, |field, content| {
            let is_wanted = match content {
                Content::Bytes(element) if field == 1 => {
                    let mut identity = Vec::new();
                    for_each_field(element, |field, content| {
                        if own.contains(&field) {
                            protobuf::copy(&mut identity, field, content);
                        }
                        Some(())
                    })?;
                    keep(xxh3_128(&identity), &|| shown(&identity, name, tag))
                }
                _ => true,
            };
            if is_wanted {
                protobuf::copy(&mut out, field, content);
            }
            Some(())
        })?;
        Some(out)
    }

    fn pick_json(&self, keep: &mut Keep<'_>) -> Option<Vec<u8>> {
        let (elements, end) = elements(&self.plain)?;
        let mut out = self.plain[..elements.first()?.start].to_vec();
        let mut is_first = true;
        for range in elements {
            let text = &self.plain[range];
            let element: Value = serde_json::from_slice(text).ok()?;
            // The identity of a series or check; every event is unique.
            let own = [
                "metric",
                "check",
                "msg_title",
                "tags",
                "host",
                "host_name",
                "resources",
                "device",
            ];
            let identity: Vec<&Value> = own.iter().filter_map(|key| element.get(key)).collect();
            let identity = match self.kind {
                RequestKind::Events => text.to_vec(),
                _ => serde_json::to_vec(&identity).ok()?,
            };
            let name = || {
                let names = ["metric", "check", "msg_title"];
                let name = names.iter().find_map(|key| element.get(key)?.as_str());
                let tags = element.get("tags").map_or(String::new(), Value::to_string);
                format!("{} {tags}", name.unwrap_or_default())
            };
            if keep(xxh3_128(&identity), &name) {
                if !std::mem::take(&mut is_first) {
                    out.push(b',');
                }
                out.extend_from_slice(text);
            }
        }
        out.extend_from_slice(&self.plain[end..]);
        Some(out)
    }
}

impl Parts for Elements {
    fn pick(&self, keep: &mut Keep<'_>) -> Option<Vec<u8>> {
        let plain = if self.kind.has_columns() {
            self.pick_columns(keep)
        } else if self.kind.is_protobuf() {
            self.pick_messages(keep)
        } else {
            self.pick_json(keep)
        };
        Some(compressed(self.compression, plain?))
    }
}

/// `name [tag, tag]`, of the fields that identify a series or sketch.
fn shown(identity: &[u8], name: u32, tag: u32) -> String {
    let (mut text, mut tags) = (String::new(), Vec::new());
    let _ = for_each_field(identity, |field, content| {
        if let Content::Bytes(bytes) = content {
            let bytes = String::from_utf8_lossy(bytes);
            match field {
                _ if field == name => text = bytes.into_owned(),
                _ if field == tag => tags.push(bytes.into_owned()),
                _ => {}
            }
        }
        Some(())
    });
    format!("{text} [{}]", tags.join(", "))
}

/// Positions of the elements of the first array of a JSON text, and of its end.
fn elements(json: &[u8]) -> Option<(Vec<Range<usize>>, usize)> {
    let mut found = Vec::new();
    // Brackets that are open inside the array, and where the element in hand began.
    let (mut depth, mut start) = (0, None);
    let (mut in_text, mut escaped) = (false, false);
    for (at, byte) in json.iter().enumerate() {
        if in_text {
            in_text = escaped || *byte != b'"';
            escaped = !escaped && *byte == b'\\';
            continue;
        }
        match (byte, start) {
            (b'"', _) => in_text = true,
            (b'[', None) => start = Some(at + 1),
            (b'[' | b'{', Some(_)) => depth += 1,
            (b',', Some(from)) if depth == 0 => {
                found.push(from..at);
                start = Some(at + 1);
            }
            (b']', Some(from)) if depth == 0 => {
                found.push(from..at);
                return Some((found, at));
            }
            (b']' | b'}', Some(_)) => depth -= 1,
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_of_an_array_whatever_is_in_them() {
        let json = br#"{"a,[":"]","series":[{"x":[1,2],"y":"]},\""},{"z":{}}],"rest":[1]}"#;
        let (found, end) = elements(json).unwrap();
        let texts: Vec<&[u8]> = found.into_iter().map(|range| &json[range]).collect();
        assert_eq!(texts, [&br#"{"x":[1,2],"y":"]},\""}"#[..], br#"{"z":{}}"#]);
        assert_eq!(&json[end..], br#"],"rest":[1]}"#);
        assert_eq!(elements(b"{}"), None);
        assert_eq!(elements(b"[1"), None);
    }
}
