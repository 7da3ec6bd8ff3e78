//! A request taken apart into its points: each is one series.

use std::fmt::Write;

use xxhash_rust::xxh3::xxh3_128;

use crate::compress::{compressed, decompressed};
use crate::delivery::{Keep, Parts, Payload};
use crate::protobuf::{self, Content, for_each_field};
use crate::settings::Compression;

/// An `ExportMetricsServiceRequest`.
pub struct Points {
    compression: Compression,
    request: Vec<u8>,
}

impl Points {
    pub fn of(payload: &Payload, is_gzip: bool) -> Option<Self> {
        let compression = if is_gzip {
            Compression::Gzip
        } else {
            Compression::None
        };
        Some(Points {
            compression,
            request: decompressed(compression, &payload.body)?,
        })
    }
}

impl Parts for Points {
    fn pick(&self, keep: &mut Keep<'_>) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        // Resource, scope, metric and attributes identify a series.
        for_each_field(&self.request, |field, content| match (field, content) {
            (1, Content::Bytes(resource)) => {
                nested(&mut out, 1, resource, &[], &[1], 2, &mut |out, scope, of| {
                    nested(out, 2, scope, of, &[1], 2, &mut |out, metric, of| {
                        let of = [of, &identity(metric, &[1])].concat();
                        pick_metric(out, metric, &of, keep)
                    })
                })
            }
            _ => {
                protobuf::copy(&mut out, field, content);
                Some(())
            }
        })?;
        Some(compressed(self.compression, out))
    }
}

/// Appends the parent's part for one child, given the identity of its surroundings.
type Child<'a> = dyn FnMut(&mut Vec<u8>, &[u8], &[u8]) -> Option<()> + 'a;

/// Appends a message with those of its `children` that are wanted, and nothing if there are none. Its own fields `identified_by`
/// identify it, within `around`.
fn nested(
    out: &mut Vec<u8>,
    field: u32,
    message: &[u8],
    around: &[u8],
    identified_by: &[u32],
    children: u32,
    child: &mut Child<'_>,
) -> Option<()> {
    let identity = [around, &identity(message, identified_by)].concat();
    let (mut rest, mut wanted) = (Vec::new(), Vec::new());
    for_each_field(message, |field, content| match content {
        Content::Bytes(bytes) if field == children => child(&mut wanted, bytes, &identity),
        _ => {
            protobuf::copy(&mut rest, field, content);
            Some(())
        }
    })?;
    if !wanted.is_empty() {
        rest.append(&mut wanted);
        protobuf::bytes(out, field, &rest);
    }
    Some(())
}

/// The content of some fields of a message, as bytes that are another for another content.
fn identity(message: &[u8], fields: &[u32]) -> Vec<u8> {
    let mut identity = Vec::new();
    // Invalid messages are noticed elsewhere.
    let _ = for_each_field(message, |field, content| {
        if fields.contains(&field) {
            protobuf::copy(&mut identity, field, content);
        }
        Some(())
    });
    identity
}

fn pick_metric(out: &mut Vec<u8>, metric: &[u8], identity_of: &[u8], keep: &mut Keep<'_>) -> Option<()> {
    let (mut rest, mut wanted) = (Vec::new(), Vec::new());
    let mut name = "";
    for_each_field(metric, |field, content| match content {
        Content::Bytes(bytes) if field == 1 => {
            name = std::str::from_utf8(bytes).ok()?;
            protobuf::copy(&mut rest, field, content);
            Some(())
        }
        // The data: a gauge, a sum, a histogram, an exponential one, a summary.
        Content::Bytes(data) if [5, 7, 9, 10, 11].contains(&field) => {
            let attributes = match field {
                9 => 9,
                10 => 1,
                _ => 7,
            };
            nested(&mut wanted, field, data, &[], &[], 1, &mut |out, point, _| {
                let of_point = identity(point, &[attributes]);
                let series = xxh3_128(&[identity_of, &field.to_le_bytes(), &of_point].concat());
                if keep(series, &|| shown(name, &of_point)) {
                    protobuf::bytes(out, 1, point);
                }
                Some(())
            })
        }
        _ => {
            protobuf::copy(&mut rest, field, content);
            Some(())
        }
    })?;
    if !wanted.is_empty() {
        rest.append(&mut wanted);
        protobuf::bytes(out, 2, &rest);
    }
    Some(())
}

/// `name{key="value"}`, from the fields of a point that are its attributes.
fn shown(name: &str, attributes: &[u8]) -> String {
    let mut text = format!("{name}{{");
    let _ = for_each_field(attributes, |_, attribute| {
        let Content::Bytes(attribute) = attribute else {
            return Some(());
        };
        let (mut key, mut value) = (String::new(), "true".to_owned());
        for_each_field(attribute, |field, content| {
            match (field, content) {
                (1, Content::Bytes(bytes)) => key = String::from_utf8_lossy(bytes).into_owned(),
                (2, Content::Bytes(any)) => for_each_field(any, |field, content| {
                    match (field, content) {
                        (1, Content::Bytes(text)) => value = String::from_utf8_lossy(text).into_owned(),
                        (5, _) => value = "[...]".to_owned(),
                        _ => {}
                    }
                    Some(())
                })?,
                _ => {}
            }
            Some(())
        })?;
        let comma = if text.ends_with('{') { "" } else { "," };
        let _ = write!(text, "{comma}{key}={value:?}");
        Some(())
    });
    text.push('}');
    text
}
