//! Readers of the exposition formats, written from their description and for these tests.

use std::collections::{BTreeMap, BTreeSet};

use super::Format;

fn is_name(name: &str, colons: bool) -> bool {
    let ok = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || (colons && byte == b':');
    !name.is_empty() && !name.as_bytes()[0].is_ascii_digit() && name.bytes().all(ok)
}

/// `name="value",...}` up to and with the brace: the labels and the rest.
fn parse_labels(mut text: &str) -> Result<(BTreeMap<String, String>, &str), String> {
    let mut labels = BTreeMap::new();
    loop {
        if let Some(rest) = text.strip_prefix('}') {
            return Ok((labels, rest));
        }
        let (name, rest) = text.split_once('=').ok_or("label without =")?;
        if !is_name(name, false) || name.starts_with("__") {
            return Err(format!("label name {name:?}"));
        }
        let rest = rest.strip_prefix('"').ok_or("label value without quote")?;
        let mut value = String::new();
        let mut characters = rest.char_indices();
        let end = loop {
            match characters.next().ok_or("label value without end")? {
                (at, '"') => break at,
                (_, '\n') => return Err("a label value has a line break".into()),
                (_, '\\') => match characters.next().ok_or("nothing after a backslash")?.1 {
                    'n' => value.push('\n'),
                    '\\' => value.push('\\'),
                    '"' => value.push('"'),
                    other => return Err(format!("\\{other}")),
                },
                (_, other) => value.push(other),
            }
        };
        if value.is_empty() {
            return Err(format!("label {name} is empty, which is the same as absent"));
        }
        if labels.insert(name.to_owned(), value).is_some() {
            return Err(format!("label {name} twice"));
        }
        text = &rest[end + 1..];
        text = text.strip_prefix(',').unwrap_or(text);
    }
}

/// Every series with its value, or the objection of a strict reader.
pub fn parse(text: &str, format: Format) -> Result<BTreeMap<String, f64>, String> {
    let mut series = BTreeMap::new();
    let mut families = BTreeSet::new();
    let mut sample_names: BTreeMap<String, String> = BTreeMap::new();
    let mut current = (String::new(), String::new());
    let body = match format {
        Format::OpenMetrics => text.strip_suffix("# EOF\n").ok_or("no # EOF")?,
        _ => text,
    };
    if !body.is_empty() && !body.ends_with('\n') {
        return Err("the last line is cut".into());
    }
    // Not `lines`, which ends them at carriage returns too.
    for line in body.split_terminator('\n') {
        if let Some(rest) = line.strip_prefix("# ") {
            let (word, rest) = rest.split_once(' ').ok_or("comment")?;
            let (name, rest) = rest.split_once(' ').ok_or("comment")?;
            match word {
                "HELP" => {
                    if !families.insert(name.to_owned()) {
                        return Err(format!("family {name} twice"));
                    }
                }
                "TYPE" => current = (name.to_owned(), rest.to_owned()),
                _ => return Err(line.to_owned()),
            }
            continue;
        }
        let end = line.find(['{', ' ']).ok_or(line)?;
        let name = &line[..end];
        if !is_name(name, true) {
            return Err(format!("name {name:?}"));
        }
        let (labels, rest) = match line[end..].strip_prefix('{') {
            Some(rest) => parse_labels(rest)?,
            None => (BTreeMap::new(), &line[end..]),
        };
        let number = rest.strip_prefix(' ').ok_or("no space before the value")?;
        let value: f64 = match number {
            "+Inf" => f64::INFINITY,
            "-Inf" => f64::NEG_INFINITY,
            "NaN" => f64::NAN,
            number if number.bytes().all(|byte| b"0123456789.eE+-".contains(&byte)) => {
                number.parse().map_err(|_| number)?
            }
            other => return Err(format!("value {other:?}")),
        };
        let (family, kind) = (&current.0, current.1.as_str());
        let suffix = name
            .strip_prefix(family.as_str())
            .ok_or(format!("{name} in {family}"))?;
        let fits = match (kind, format) {
            ("counter", Format::OpenMetrics) => suffix == "_total",
            ("counter", _) => suffix.is_empty() && name.ends_with("_total"),
            ("gauge", _) => suffix.is_empty(),
            ("summary", _) => {
                (suffix.is_empty() && labels.contains_key("quantile"))
                    || (["_sum", "_count"].contains(&suffix) && !labels.contains_key("quantile"))
            }
            _ => false,
        };
        if !fits {
            return Err(format!("{line:?} in the {kind} {family}"));
        }
        // A name of one family is no name of another.
        let owner = sample_names
            .entry(name.to_owned())
            .or_insert_with(|| family.clone());
        if owner != family {
            return Err(format!("{name} is in {owner} and in {family}"));
        }
        let labels: Vec<String> = labels
            .iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        let key = if labels.is_empty() {
            name.to_owned()
        } else {
            format!("{name}{{{}}}", labels.join(","))
        };
        if series.insert(key.clone(), value).is_some() {
            return Err(format!("{key} twice"));
        }
    }
    Ok(series)
}

enum Field<'a> {
    Number(u64),
    Double(f64),
    Bytes(&'a [u8]),
}

fn varint(bytes: &mut &[u8]) -> u64 {
    let mut value = 0;
    for shift in (0..70).step_by(7) {
        let byte = bytes[0];
        *bytes = &bytes[1..];
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return value;
        }
    }
    panic!("a varint of more than ten bytes");
}

fn fields(mut bytes: &[u8]) -> Vec<(u64, Field<'_>)> {
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let tag = varint(&mut bytes);
        let field = match tag & 7 {
            0 => Field::Number(varint(&mut bytes)),
            1 => {
                let (value, rest) = bytes.split_at(8);
                bytes = rest;
                Field::Double(f64::from_le_bytes(value.try_into().unwrap()))
            }
            2 => {
                let length = varint(&mut bytes) as usize;
                let (value, rest) = bytes.split_at(length);
                bytes = rest;
                Field::Bytes(value)
            }
            other => panic!("wire type {other}"),
        };
        found.push((tag >> 3, field));
    }
    found
}

fn text_of<'a>(fields: &[(u64, Field<'a>)], number: u64) -> &'a str {
    fields
        .iter()
        .find_map(|(field, value)| match value {
            Field::Bytes(bytes) if *field == number => Some(std::str::from_utf8(bytes).unwrap()),
            _ => None,
        })
        .unwrap_or_default()
}

/// Like [`parse`]; native histograms count as their `_count`.
pub fn parse_protobuf(mut body: &[u8]) -> BTreeMap<String, f64> {
    let mut series = BTreeMap::new();
    let mut types: BTreeMap<String, u64> = BTreeMap::new();
    while !body.is_empty() {
        let length = varint(&mut body) as usize;
        let (message, rest) = body.split_at(length);
        body = rest;
        let family = fields(message);
        let name = text_of(&family, 1);
        assert!(is_name(name, true), "{name:?}");
        let number = |fields: &[(u64, Field<'_>)], wanted: u64| {
            fields.iter().find_map(|(field, value)| match value {
                Field::Number(value) if *field == wanted => Some(*value),
                _ => None,
            })
        };
        let double = |fields: &[(u64, Field<'_>)], wanted: u64| {
            fields.iter().find_map(|(field, value)| match value {
                Field::Double(value) if *field == wanted => Some(*value),
                _ => None,
            })
        };
        let kind = number(&family, 3).unwrap_or(0);
        assert_eq!(
            *types.entry(name.to_owned()).or_insert(kind),
            kind,
            "{name} has two types"
        );
        let metrics = family.iter().filter_map(|(field, value)| match value {
            Field::Bytes(bytes) if *field == 4 => Some(fields(bytes)),
            _ => None,
        });
        for metric in metrics {
            let mut labels = BTreeMap::new();
            let mut add =
                |suffix: &str, quantile: Option<f64>, labels: &BTreeMap<String, String>, value: f64| {
                    let mut labels = labels.clone();
                    if let Some(quantile) = quantile {
                        assert!(
                            labels
                                .insert("quantile".into(), format!("{quantile:?}"))
                                .is_none()
                        );
                    }
                    let labels: Vec<String> = labels
                        .iter()
                        .map(|(name, value)| format!("{name}={value}"))
                        .collect();
                    let key = if labels.is_empty() {
                        format!("{name}{suffix}")
                    } else {
                        format!("{name}{suffix}{{{}}}", labels.join(","))
                    };
                    assert!(series.insert(key.clone(), value).is_none(), "{key} twice");
                };
            for (field, value) in &metric {
                let Field::Bytes(bytes) = value else {
                    panic!("field {field}")
                };
                let inner = fields(bytes);
                match field {
                    1 => {
                        let (name, value) = (text_of(&inner, 1), text_of(&inner, 2));
                        assert!(is_name(name, false) && !name.starts_with("__") && !value.is_empty());
                        assert!(labels.insert(name.to_owned(), value.to_owned()).is_none());
                    }
                    2 | 3 => add("", None, &labels, double(&inner, 1).unwrap_or(0.0)),
                    4 => {
                        add("_count", None, &labels, number(&inner, 1).unwrap_or(0) as f64);
                        add("_sum", None, &labels, double(&inner, 2).unwrap_or(0.0));
                        for (_, value) in inner.iter().filter(|(field, _)| *field == 3) {
                            let Field::Bytes(bytes) = value else {
                                panic!("a quantile")
                            };
                            let quantile = fields(bytes);
                            let at = double(&quantile, 1).unwrap_or(0.0);
                            add("", Some(at), &labels, double(&quantile, 2).unwrap_or(0.0));
                        }
                    }
                    7 => {
                        assert_eq!(double(&inner, 6), Some(1e-9), "what marks it as native");
                        let side = |spans: u64, deltas: u64| {
                            let lengths: u64 = inner
                                .iter()
                                .filter_map(|(field, value)| match value {
                                    Field::Bytes(bytes) if *field == spans => number(&fields(bytes), 2),
                                    _ => None,
                                })
                                .sum();
                            let mut packed = inner
                                .iter()
                                .find_map(|(field, value)| match value {
                                    Field::Bytes(bytes) if *field == deltas => Some(*bytes),
                                    _ => None,
                                })
                                .unwrap_or_default();
                            let (mut count, mut total, mut seen) = (0i64, 0i64, 0);
                            while !packed.is_empty() {
                                let folded = varint(&mut packed);
                                count += (folded >> 1) as i64 ^ -((folded & 1) as i64);
                                assert!(count > 0);
                                total += count;
                                seen += 1;
                            }
                            assert_eq!(seen, lengths);
                            total
                        };
                        let total = side(9, 10) + side(12, 13) + number(&inner, 7).unwrap_or(0) as i64;
                        let count = number(&inner, 1).unwrap_or(0);
                        assert_eq!(total as u64, count);
                        add("_count", None, &labels, count as f64);
                    }
                    other => panic!("field {other}"),
                }
            }
        }
    }
    series
}
