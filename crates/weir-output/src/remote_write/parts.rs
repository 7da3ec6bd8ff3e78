//! A request taken apart into its series.

use std::collections::{BTreeSet, HashMap};
use std::fmt::Write;

use xxhash_rust::xxh3::xxh3_128;

use super::settings::RemoteWriteVersion;
use crate::delivery::{Keep, Parts, Payload};
use crate::protobuf::{self, Content, for_each_field};

/// A `WriteRequest` of one version or the other.
pub struct RequestSeries {
    version: RemoteWriteVersion,
    request: Vec<u8>,
}

impl RequestSeries {
    pub fn of(version: RemoteWriteVersion, payload: &Payload) -> Option<Self> {
        let request = snap::raw::Decoder::new().decompress_vec(&payload.body).ok()?;
        Some(RequestSeries { version, request })
    }
}

impl Parts for RequestSeries {
    fn pick(&self, keep: &mut Keep<'_>) -> Option<Vec<u8>> {
        let picked = match self.version {
            RemoteWriteVersion::V1 => pick_1(&self.request, keep),
            RemoteWriteVersion::V2 => pick_2(&self.request, keep),
        };
        snap::raw::Encoder::new().compress_vec(&picked?).ok()
    }
}

fn pick_1(request: &[u8], keep: &mut Keep<'_>) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    let mut names = BTreeSet::new();
    for_each_field(request, |field, content| {
        if let (1, Content::Bytes(series)) = (field, content) {
            let labels = labels_1(series)?;
            if keep(identity(&labels), &|| shown(&labels)) {
                names.insert(name(&labels));
                protobuf::bytes(&mut out, field, series);
            }
        }
        Some(())
    })?;
    // Descriptions of the metrics that are left; a series' name is its metric's, or begins with it.
    for_each_field(request, |field, content| {
        if let (3, Content::Bytes(metadata)) = (field, content) {
            let metric = text(metadata, 2)?;
            let next = names.range(metric..).next();
            if next.is_some_and(|name| name.starts_with(metric)) {
                protobuf::bytes(&mut out, field, metadata);
            }
        }
        Some(())
    })?;
    Some(out)
}

/// Texts that are no longer used are left out: a receiver may look at all of them.
fn pick_2(request: &[u8], keep: &mut Keep<'_>) -> Option<Vec<u8>> {
    let mut symbols = Symbols::default();
    let mut picked = Vec::new();
    for_each_field(request, |field, content| {
        match (field, content) {
            (4, Content::Bytes(text)) => symbols.old.push(std::str::from_utf8(text).ok()?),
            (5, Content::Bytes(series)) => {
                let labels = labels_2(series, &symbols.old)?;
                if keep(identity(&labels), &|| shown(&labels)) {
                    protobuf::bytes(&mut picked, 5, &symbols.rewritten(series)?);
                }
            }
            _ => {}
        }
        Some(())
    })?;
    let mut out = Vec::new();
    protobuf::bytes(&mut out, 4, b"");
    symbols
        .new
        .iter()
        .for_each(|text| protobuf::bytes(&mut out, 4, text.as_bytes()));
    out.append(&mut picked);
    Some(out)
}

/// The texts of a 2.0 request, and those of its picked part. The empty text is number zero in both.
#[derive(Default)]
struct Symbols<'a> {
    old: Vec<&'a str>,
    new: Vec<&'a str>,
    numbers: HashMap<u64, u64>,
}

impl Symbols<'_> {
    fn renumbered(&mut self, old: u64) -> Option<u64> {
        if old == 0 {
            return Some(0);
        }
        if let Some(new) = self.numbers.get(&old) {
            return Some(*new);
        }
        self.new.push(self.old.get(usize::try_from(old).ok()?)?);
        let new = self.new.len() as u64;
        self.numbers.insert(old, new);
        Some(new)
    }

    /// A series with its labels and its description under their new numbers.
    fn rewritten(&mut self, series: &[u8]) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        for_each_field(series, |field, content| {
            match (field, content) {
                (1, Content::Bytes(numbers)) => {
                    let mut renumbered = Vec::new();
                    for number in protobuf::unpacked(numbers) {
                        protobuf::varint(&mut renumbered, self.renumbered(number?)?);
                    }
                    protobuf::bytes(&mut out, field, &renumbered);
                }
                (5, Content::Bytes(metadata)) => {
                    let mut renumbered = Vec::new();
                    for_each_field(metadata, |field, content| {
                        // Help and unit are texts, the type is none.
                        let content = match content {
                            Content::Integer(text) if field != 1 => Content::Integer(self.renumbered(text)?),
                            content => content,
                        };
                        protobuf::copy(&mut renumbered, field, content);
                        Some(())
                    })?;
                    protobuf::bytes(&mut out, field, &renumbered);
                }
                _ => protobuf::copy(&mut out, field, content),
            }
            Some(())
        })?;
        Some(out)
    }
}

type Labels<'a> = Vec<(&'a str, &'a str)>;

fn labels_1(series: &[u8]) -> Option<Labels<'_>> {
    let mut labels = Vec::new();
    for_each_field(series, |field, content| {
        if let (1, Content::Bytes(label)) = (field, content) {
            labels.push((text(label, 1)?, text(label, 2)?));
        }
        Some(())
    })?;
    Some(labels)
}

/// A field that is a text.
fn text(message: &[u8], wanted: u32) -> Option<&str> {
    let mut text = "";
    for_each_field(message, |field, content| {
        if let (true, Content::Bytes(bytes)) = (field == wanted, content) {
            text = std::str::from_utf8(bytes).ok()?;
        }
        Some(())
    })?;
    Some(text)
}

/// Symbols stand before the series that name them by number.
fn labels_2<'a>(series: &[u8], symbols: &[&'a str]) -> Option<Labels<'a>> {
    let mut texts = Vec::new();
    for_each_field(series, |field, content| {
        if let (1, Content::Bytes(numbers)) = (field, content) {
            for number in protobuf::unpacked(numbers) {
                texts.push(*symbols.get(usize::try_from(number?).ok()?)?);
            }
        }
        Some(())
    })?;
    Some(texts.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect())
}

fn identity(labels: &Labels<'_>) -> u128 {
    let mut bytes = Vec::new();
    for (name, value) in labels {
        protobuf::bytes(&mut bytes, 1, name.as_bytes());
        protobuf::bytes(&mut bytes, 2, value.as_bytes());
    }
    xxh3_128(&bytes)
}

fn name<'a>(labels: &Labels<'a>) -> &'a str {
    let found = labels.iter().find(|label| label.0 == "__name__");
    found.map_or("", |label| label.1)
}

/// `name{label="value"}`.
fn shown(labels: &Labels<'_>) -> String {
    let mut text = format!("{}{{", name(labels));
    for (name, value) in labels.iter().filter(|label| label.0 != "__name__") {
        let comma = if text.ends_with('{') { "" } else { "," };
        let _ = write!(text, "{comma}{name}={value:?}");
    }
    text.push('}');
    text
}
