//! From what was written to a checked value, by the kind of the setting.

use std::time::Duration;

use serde_json::{Map, Value, json};
use weir_output::settings::{Kind, Setting, redact};

use super::node::{self, Content, Node};

/// A value that its kind accepts, in the form serde reads into the field, and in the form people are shown.
#[derive(Clone, Debug, PartialEq)]
pub struct Checked {
    pub value: Value,
    pub shown: String,
}

/// Something that is not allowed. `path` leads from the setting to the offending part, such as `.timeout`.
#[derive(Clone, Debug, PartialEq)]
pub struct Refusal {
    pub path: String,
    pub line: usize,
    pub message: String,
}

impl Refusal {
    fn new(line: usize, message: impl Into<String>) -> Self {
        Self {
            path: String::new(),
            line,
            message: message.into(),
        }
    }

    fn below(mut self, part: &str) -> Self {
        self.path.insert_str(0, part);
        self
    }
}

/// How a list is written in one text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Separator {
    /// Flags: commas.
    Comma,
    /// Environment: commas or white space.
    CommaOrSpace,
}

/// What a kind takes, as the end of "must be ...".
pub fn allowed(kind: &Kind) -> String {
    match kind {
        Kind::Bool => "true or false".to_owned(),
        Kind::Text => "text".to_owned(),
        Kind::Secret => "text (never shown)".to_owned(),
        Kind::Integer { min, max } => format!("a whole number from {min} to {max}"),
        Kind::Number { min, max } => format!("a number from {min} to {max}"),
        Kind::Bytes { min, max } => {
            format!(
                "a size such as 64KiB or 1.5GiB, from {} to {}",
                show_bytes(*min),
                show_bytes(*max)
            )
        }
        Kind::Duration { min, max } => format!(
            "a time such as 500ms, 10s, 5m, 1h or a number of seconds, from {} to {}",
            show_duration(*min),
            show_duration(*max)
        ),
        Kind::Choice(names) => format!("one of {}", names.join(", ")),
        Kind::Checked { allowed, .. } => (*allowed).to_owned(),
        Kind::List(kind) => format!("a list, each item {}", allowed(kind)),
        Kind::Map(kind) => format!("a mapping, each value {}", allowed(kind)),
        Kind::Record(settings) => {
            let keys: Vec<_> = settings.iter().map(|setting| setting.key).collect();
            format!("a mapping with {}", keys.join(", "))
        }
    }
}

/// Reads a node of the file.
pub fn from_node(kind: &Kind, node: &Node) -> Result<Checked, Refusal> {
    match kind {
        Kind::List(item) => list_from_node(item, node),
        Kind::Map(item) => map_from_node(item, node),
        Kind::Record(settings) => record_from_node(settings, node),
        _ => match &node.content {
            Content::Scalar { text, .. } if !node.is_null() => scalar(kind, text, node.line),
            _ => Err(must_be(kind, node)),
        },
    }
}

/// Reads the text of a variable or flag. Lists may be written with separators or, as anything nested, as YAML
/// or JSON in one line.
pub fn from_text(kind: &Kind, text: &str, separator: Separator) -> Result<Checked, Refusal> {
    let trimmed = text.trim();
    match kind {
        Kind::List(item) if !(trimmed.starts_with('[') && trimmed.ends_with(']')) => {
            let items: Vec<&str> = match separator {
                Separator::Comma => trimmed.split(',').collect(),
                Separator::CommaOrSpace => trimmed
                    .split(|c: char| c == ',' || c.is_ascii_whitespace())
                    .collect(),
            };
            let items = items.into_iter().map(str::trim).filter(|item| !item.is_empty());
            list(items.map(|text| scalar(item, text, 0)))
        }
        Kind::List(_) | Kind::Map(_) | Kind::Record(_) => match node::parse(trimmed) {
            Ok(Some(node)) => from_node(kind, &node),
            Ok(None) => Err(Refusal::new(0, format!("is empty; must be {}", allowed(kind)))),
            Err(fault) => Err(Refusal::new(0, fault.message)),
        },
        Kind::Text => scalar(kind, text, 0),
        _ => scalar(kind, trimmed, 0),
    }
}

fn must_be(kind: &Kind, node: &Node) -> Refusal {
    Refusal::new(
        node.line,
        format!("is {}; must be {}", node.what(), allowed(kind)),
    )
}

fn list(items: impl Iterator<Item = Result<Checked, Refusal>>) -> Result<Checked, Refusal> {
    let mut values = Vec::new();
    let mut shown = Vec::new();
    for (index, item) in items.enumerate() {
        let item = item.map_err(|refusal| refusal.below(&format!("[{index}]")))?;
        values.push(item.value);
        shown.push(item.shown);
    }
    Ok(Checked {
        value: Value::Array(values),
        shown: format!("[{}]", shown.join(", ")),
    })
}

fn list_from_node(kind: &Kind, node: &Node) -> Result<Checked, Refusal> {
    match &node.content {
        Content::List(items) => list(items.iter().map(|item| from_node(kind, item))),
        // One value where a list is expected is a list of one.
        Content::Scalar { text, .. } if !node.is_null() => {
            list(std::iter::once(scalar(kind, text, node.line)))
        }
        _ => Err(Refusal::new(
            node.line,
            format!("is {}; must be a list, each item {}", node.what(), allowed(kind)),
        )),
    }
}

fn map_from_node(kind: &Kind, node: &Node) -> Result<Checked, Refusal> {
    let entries = match &node.content {
        Content::Map(entries) => entries.as_slice(),
        _ if node.is_null() => &[],
        _ => {
            let message = format!(
                "is {}; must be a mapping, each value {}",
                node.what(),
                allowed(kind)
            );
            return Err(Refusal::new(node.line, message));
        }
    };
    let mut map = Map::new();
    let mut shown = Vec::new();
    for (key, value) in entries {
        let value = from_node(kind, value).map_err(|refusal| refusal.below(&format!(".{}", key.text)))?;
        shown.push(format!("{}: {}", show_text(&key.text), value.shown));
        map.insert(key.text.clone(), value.value);
    }
    Ok(Checked {
        value: Value::Object(map),
        shown: format!("{{{}}}", shown.join(", ")),
    })
}

fn record_from_node(settings: &[Setting], node: &Node) -> Result<Checked, Refusal> {
    let entries = match &node.content {
        Content::Map(entries) => entries.as_slice(),
        _ if node.is_null() => &[],
        _ => {
            return Err(Refusal::new(
                node.line,
                format!("is {}; must be a mapping", node.what()),
            ));
        }
    };
    for (key, _) in entries {
        if !settings.iter().any(|setting| setting.key == key.text) {
            let known = settings.iter().map(|setting| setting.key);
            return Err(Refusal::new(key.line, unknown_key(&key.text, known)));
        }
    }
    let mut map = Map::new();
    let mut shown = Vec::new();
    for setting in settings {
        let written = entries.iter().find(|(key, _)| key.text == setting.key);
        let value = match written {
            Some((_, node)) => from_node(&setting.kind, node),
            None => default_of(setting),
        };
        let value = value.map_err(|refusal| refusal.below(&format!(".{}", setting.key)))?;
        if written.is_some() {
            shown.push(format!("{}: {}", setting.key, value.shown));
        }
        map.insert(setting.key.to_owned(), value.value);
    }
    Ok(Checked {
        value: Value::Object(map),
        shown: format!("{{{}}}", shown.join(", ")),
    })
}

/// The default, read as if it stood in the file.
pub fn default_of(setting: &Setting) -> Result<Checked, Refusal> {
    let fault = |message: String| Refusal::new(0, format!("default {:?}: {message}", setting.default));
    match node::parse(setting.default) {
        Ok(Some(node)) => from_node(&setting.kind, &node),
        Ok(None) => Err(fault("is empty".to_owned())),
        Err(error) => Err(fault(error.message)),
    }
}

/// An unknown name, the nearest known one, or all of them.
pub fn unknown_key<'a>(text: &str, known: impl Iterator<Item = &'a str> + Clone) -> String {
    match nearest(text, known.clone()) {
        Some(near) => format!("{} is not a setting; did you mean {near:?}?", quote(text)),
        None => {
            let known: Vec<_> = known.collect();
            let listed = if known.is_empty() {
                "nothing can be set here".to_owned()
            } else {
                format!("known are {}", known.join(", "))
            };
            format!("{} is not a setting; {listed}", quote(text))
        }
    }
}

/// The known name that a typing slip most likely meant.
pub fn nearest<'a>(text: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let text = text.to_ascii_lowercase().replace('-', "_");
    known
        .map(|name| (strsim::jaro_winkler(&text, &name.to_ascii_lowercase()), name))
        .filter(|(score, _)| *score >= 0.8)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, name)| name)
}

fn scalar(kind: &Kind, text: &str, line: usize) -> Result<Checked, Refusal> {
    let refuse = || {
        let found = if text.is_empty() {
            "is empty".to_owned()
        } else {
            format!("{} is not", quote(text))
        };
        let sentence = if text.is_empty() {
            format!("{found}; must be {}", allowed(kind))
        } else {
            format!("{found} {}", allowed(kind))
        };
        Refusal::new(line, sentence)
    };
    let (value, shown) = match kind {
        Kind::Bool => {
            let value = read_bool(text).ok_or_else(refuse)?;
            (json!(value), value.to_string())
        }
        Kind::Text => (json!(text), show_text(text)),
        Kind::Secret => (json!(text), show_text(&redact(text))),
        Kind::Integer { min, max } => {
            let value = read_integer(text)
                .filter(|v| (min..=max).contains(&v))
                .ok_or_else(refuse)?;
            (json!(value), value.to_string())
        }
        Kind::Number { min, max } => {
            let value = read_number(text)
                .filter(|v| v >= min && v <= max)
                .ok_or_else(refuse)?;
            (json!(value), value.to_string())
        }
        Kind::Bytes { min, max } => {
            let value = read_bytes(text)
                .filter(|v| (min..=max).contains(&v))
                .ok_or_else(refuse)?;
            (json!(value), show_bytes(value))
        }
        Kind::Duration { min, max } => {
            let value = read_duration(text)
                .filter(|v| (min..=max).contains(&v))
                .ok_or_else(refuse)?;
            let parts = json!({"secs": value.as_secs(), "nanos": value.subsec_nanos()});
            (parts, show_duration(value))
        }
        Kind::Choice(names) => {
            let name = names
                .iter()
                .find(|name| name.eq_ignore_ascii_case(text))
                .ok_or_else(refuse)?;
            (json!(name), (*name).to_owned())
        }
        Kind::Checked { check, .. } => {
            if !check(text) {
                return Err(refuse());
            }
            (json!(text), show_text(text))
        }
        Kind::List(_) | Kind::Map(_) | Kind::Record(_) => return Err(refuse()),
    };
    Ok(Checked { value, shown })
}

fn read_bool(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "yes" | "on" | "1" | "t" => Some(true),
        "false" | "no" | "off" | "0" | "f" => Some(false),
        _ => None,
    }
}

fn read_integer(text: &str) -> Option<i64> {
    text.replace('_', "").parse().ok()
}

fn read_number(text: &str) -> Option<f64> {
    text.parse().ok().filter(|value: &f64| value.is_finite())
}

/// Splits `1.5GiB` into number and unit.
fn split_unit(text: &str) -> Option<(f64, &str)> {
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    Some((number.parse().ok()?, unit.trim()))
}

fn read_bytes(text: &str) -> Option<u64> {
    if let Ok(value) = text.parse() {
        return Some(value);
    }
    let (number, unit) = split_unit(text)?;
    let factor: u64 = match unit.to_ascii_lowercase().as_str() {
        "b" => 1,
        "kb" => 1000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "t" | "tib" => 1 << 40,
        _ => return None,
    };
    let bytes = number * factor as f64;
    (bytes < u64::MAX as f64).then_some(bytes as u64)
}

fn read_duration(text: &str) -> Option<Duration> {
    let (number, unit) = split_unit(text)?;
    let seconds = match unit {
        "ns" => 1e-9,
        "us" | "µs" => 1e-6,
        "ms" => 1e-3,
        "" | "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        "d" => 86_400.0,
        _ => return None,
    };
    Duration::try_from_secs_f64(number * seconds).ok()
}

pub fn show_bytes(bytes: u64) -> String {
    for (shift, unit) in [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")] {
        if bytes >> shift > 0 && bytes.trailing_zeros() >= shift {
            return format!("{}{unit}", bytes >> shift);
        }
    }
    bytes.to_string()
}

pub fn show_duration(duration: Duration) -> String {
    let nanos = duration.subsec_nanos();
    let seconds = duration.as_secs();
    if nanos == 0 {
        match seconds {
            0 => "0".to_owned(),
            s if s.is_multiple_of(86_400) => format!("{}d", s / 86_400),
            s if s.is_multiple_of(3600) => format!("{}h", s / 3600),
            s => format!("{s}s"),
        }
    } else if nanos.is_multiple_of(1_000_000) {
        format!("{}ms", duration.as_millis())
    } else {
        format!("{}s", duration.as_secs_f64())
    }
}

/// Text as YAML would write it, with any password inside a URL hidden.
pub fn show_text(text: &str) -> String {
    let text = hide_password(text);
    let plain = !text.is_empty()
        && text
            .chars()
            .all(|c| c.is_alphanumeric() || "-_./:@%+*~".contains(c))
        && !text.starts_with(['-', '*', '@', '%', ':', '~'])
        && !text.ends_with(':');
    if plain {
        text
    } else if text.chars().all(|c| !is_invisible(c)) {
        format!("'{}'", text.replace('\'', "''"))
    } else {
        let mut quoted = String::from("\"");
        for c in text.chars() {
            match c {
                '"' | '\\' => quoted.extend(['\\', c]),
                c if is_invisible(c) && u32::from(c) < 0x10000 => {
                    quoted.push_str(&format!("\\u{:04x}", u32::from(c)))
                }
                c if is_invisible(c) => quoted.push_str(&format!("\\U{:08x}", u32::from(c))),
                c => quoted.push(c),
            }
        }
        quoted.push('"');
        quoted
    }
}

/// Words of at least 24 letters and digits, both present, redacted.
fn hide_keys(text: &str) -> String {
    let mut shown = String::new();
    let mut rest = text;
    while !rest.is_empty() {
        let end = rest
            .find(|c: char| !c.is_ascii_alphanumeric())
            .unwrap_or(rest.len());
        let (word, tail) = rest.split_at(end);
        let is_key = word.len() >= 24
            && word.bytes().any(|byte| byte.is_ascii_digit())
            && word.bytes().any(|byte| byte.is_ascii_alphabetic());
        shown.push_str(&if is_key { redact(word) } else { word.to_owned() });
        let next = tail
            .find(|c: char| c.is_ascii_alphanumeric())
            .unwrap_or(tail.len());
        shown.push_str(&tail[..next]);
        rest = &tail[next..];
    }
    shown
}

/// What a terminal acts upon, or what hides from the eye.
pub fn is_invisible(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

/// `http://user:password@host` with the part before `@` hidden.
pub fn hide_password(text: &str) -> String {
    let Some(start) = text.find("://").map(|at| at + 3) else {
        return text.to_owned();
    };
    let authority = text[start..]
        .find(['/', '?', '#'])
        .map_or(text.len(), |at| start + at);
    match text[start..authority].rfind('@') {
        Some(at) => format!("{}****{}", &text[..start], &text[start + at..]),
        None => text.to_owned(),
    }
}

/// For error messages: bounded, on one line, without passwords and without what looks like a key: people paste
/// keys into the wrong line.
fn quote(text: &str) -> String {
    let text = hide_keys(&hide_password(text));
    let short: String = text.chars().take(80).collect();
    let dots = if short.len() < text.len() { "..." } else { "" };
    format!("{short:?}{dots}")
}
