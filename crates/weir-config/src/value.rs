//! From the written text to a typed value.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use weir_units::{Network, parse_duration_or_seconds, parse_size_any_case, show_duration, show_size};

use crate::node::{self, Content, Key, Node};
use crate::reader::Section;
use crate::setting::{DURATION_MAX, Setting, SettingType};
use crate::text::{Secret, quote, show_text, unknown_key};

/// Something that is not allowed. `path` leads from the setting to the offending part, such as `.timeout`.
#[derive(Clone, Debug, PartialEq)]
pub struct SettingError {
    pub path: String,
    pub line: usize,
    pub message: String,
}

impl SettingError {
    pub(crate) fn new(line: usize, message: impl Into<String>) -> Self {
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

/// A type that a setting can have.
pub trait Typed: Sized {
    const KIND: SettingType;

    /// Parses the written value; the text is its form for users.
    fn read(kind: &SettingType, node: &Node) -> Result<(Self, String), SettingError>;

    /// Reads a setting from the first of its sources. `None`: it has none that is allowed, which was reported.
    fn take(section: &mut Section<'_, '_>, setting: &Setting) -> Option<Self> {
        section.choose(setting)
    }
}

/// A type that is written as a single text.
pub trait Scalar: Sized {
    const KIND: SettingType;

    fn parse(kind: &SettingType, text: &str) -> Option<Self>;

    /// The value read from `text`, formatted for users.
    fn show(&self, _kind: &SettingType, text: &str) -> String {
        show_text(text)
    }
}

impl<T: Scalar> Typed for T {
    const KIND: SettingType = <T as Scalar>::KIND;

    fn read(kind: &SettingType, node: &Node) -> Result<(Self, String), SettingError> {
        let Content::Scalar { text, .. } = &node.content else {
            return Err(must_be(kind, node));
        };
        if node.is_null() {
            return Err(must_be(kind, node));
        }
        let value = T::parse(kind, text).ok_or_else(|| not_allowed(kind, text, node.line))?;
        let shown = value.show(kind, text);
        Ok((value, shown))
    }
}

fn must_be(kind: &SettingType, node: &Node) -> SettingError {
    SettingError::new(
        node.line,
        format!("is {}; must be {}", node.what(), kind.allowed()),
    )
}

fn not_allowed(kind: &SettingType, text: &str, line: usize) -> SettingError {
    let allowed = kind.allowed();
    SettingError::new(
        line,
        match text {
            "" => format!("is empty; must be {allowed}"),
            _ => format!("{} is not {allowed}", quote(text)),
        },
    )
}

impl Scalar for bool {
    const KIND: SettingType = SettingType::Bool;

    fn parse(_: &SettingType, text: &str) -> Option<Self> {
        match text.to_ascii_lowercase().as_str() {
            "true" | "yes" | "on" | "1" | "t" => Some(true),
            "false" | "no" | "off" | "0" | "f" => Some(false),
            _ => None,
        }
    }

    fn show(&self, _: &SettingType, _: &str) -> String {
        self.to_string()
    }
}

/// Whether a text has the form that its kind asks for.
fn has_form(kind: &SettingType, text: &str) -> bool {
    match kind {
        SettingType::Checked { check, .. } => check(text),
        _ => true,
    }
}

impl Scalar for String {
    const KIND: SettingType = SettingType::Text;

    fn parse(kind: &SettingType, text: &str) -> Option<Self> {
        has_form(kind, text).then(|| text.to_owned())
    }
}

impl Scalar for PathBuf {
    const KIND: SettingType = SettingType::Text;

    fn parse(kind: &SettingType, text: &str) -> Option<Self> {
        has_form(kind, text).then(|| text.into())
    }
}

impl Scalar for Secret {
    const KIND: SettingType = SettingType::Secret;

    fn parse(_: &SettingType, text: &str) -> Option<Self> {
        Some(Secret::new(text))
    }

    fn show(&self, _: &SettingType, _: &str) -> String {
        show_text(&self.redacted())
    }
}

/// Whole numbers, and sizes.
macro_rules! integers {
    ($($type:ty),*) => {$(
        impl Scalar for $type {
            const KIND: SettingType = SettingType::Integer { min: 0, max: i64::MAX };

            fn parse(kind: &SettingType, text: &str) -> Option<Self> {
                match kind {
                    SettingType::Bytes { min, max } => {
                        let size = parse_size_any_case(text).ok()?;
                        (*min..=*max).contains(&size).then(|| size.try_into().ok())?
                    }
                    SettingType::Integer { min, max } => {
                        let number: i64 = text.replace('_', "").parse().ok()?;
                        (*min..=*max).contains(&number).then(|| number.try_into().ok())?
                    }
                    _ => None,
                }
            }

            fn show(&self, kind: &SettingType, _: &str) -> String {
                match (kind, u64::try_from(*self)) {
                    (SettingType::Bytes { .. }, Ok(size)) => show_size(size),
                    _ => self.to_string(),
                }
            }
        }
    )*};
}

integers!(i32, u32, u64, usize);

impl Scalar for f64 {
    const KIND: SettingType = SettingType::Number {
        min: f64::MIN,
        max: f64::MAX,
    };

    fn parse(kind: &SettingType, text: &str) -> Option<Self> {
        let SettingType::Number { min, max } = kind else {
            return None;
        };
        text.parse().ok().filter(|number| (*min..=*max).contains(number))
    }

    fn show(&self, _: &SettingType, _: &str) -> String {
        self.to_string()
    }
}

impl Scalar for Duration {
    const KIND: SettingType = SettingType::Duration {
        min: Duration::ZERO,
        max: DURATION_MAX,
    };

    fn parse(kind: &SettingType, text: &str) -> Option<Self> {
        let SettingType::Duration { min, max } = kind else {
            return None;
        };
        parse_duration_or_seconds(text)
            .ok()
            .filter(|time| (*min..=*max).contains(time))
    }

    fn show(&self, _: &SettingType, _: &str) -> String {
        show_duration(*self)
    }
}

impl Scalar for Network {
    const KIND: SettingType = SettingType::Checked {
        allowed: "a network or an address, such as 10.1.0.0/16, 192.0.2.7 or fd00::/8, without bits set beyond the prefix",
        check: |text| text.parse::<Network>().is_ok(),
    };

    fn parse(_: &SettingType, text: &str) -> Option<Self> {
        text.parse().ok()
    }
}

/// Zero or empty is "not set".
impl<T: Scalar + Default + PartialEq> Scalar for Option<T> {
    const KIND: SettingType = <T as Scalar>::KIND;

    fn parse(kind: &SettingType, text: &str) -> Option<Self> {
        T::parse(kind, text).map(|value| (value != T::default()).then_some(value))
    }

    fn show(&self, kind: &SettingType, text: &str) -> String {
        match self {
            Some(value) => value.show(kind, text),
            None => T::default().show(kind, text),
        }
    }
}

impl<T: Typed> Typed for Vec<T> {
    const KIND: SettingType = SettingType::List(&T::KIND);

    fn read(kind: &SettingType, node: &Node) -> Result<(Self, String), SettingError> {
        let SettingType::List(item) = kind else {
            return Err(must_be(kind, node));
        };
        let items = match &node.content {
            Content::List(items) => items.as_slice(),
            // One value where a list is expected is a list of one.
            Content::Scalar { .. } if !node.is_null() => std::slice::from_ref(node),
            _ => return Err(must_be(kind, node)),
        };
        let (mut values, mut shown) = (Vec::new(), Vec::new());
        for (at, node) in items.iter().enumerate() {
            let read = T::read(item, node).map_err(|refusal| refusal.below(&format!("[{at}]")))?;
            values.push(read.0);
            shown.push(read.1);
        }
        Ok((values, format!("[{}]", shown.join(", "))))
    }
}

impl<T: Typed> Typed for BTreeMap<String, T> {
    const KIND: SettingType = SettingType::Map(&T::KIND);

    fn read(kind: &SettingType, node: &Node) -> Result<(Self, String), SettingError> {
        let SettingType::Map(item) = kind else {
            return Err(must_be(kind, node));
        };
        let (mut values, mut shown) = (BTreeMap::new(), Vec::new());
        for (key, node) in entries(node).ok_or_else(|| must_be(kind, node))? {
            let below = |refusal: SettingError| refusal.below(&format!(".{}", key.text));
            let (value, text) = T::read(item, node).map_err(below)?;
            shown.push(format!("{}: {text}", show_text(&key.text)));
            values.insert(key.text.clone(), value);
        }
        Ok((values, format!("{{{}}}", shown.join(", "))))
    }
}

/// The entries of a mapping, or none for an empty node.
pub(crate) fn entries(node: &Node) -> Option<&[(Key, Node)]> {
    match &node.content {
        Content::Map(entries) => Some(entries),
        _ if node.is_null() => Some(&[]),
        _ => None,
    }
}

/// The value of a key.
pub(crate) fn entry<'n>(entries: &'n [(Key, Node)], key: &str) -> Option<&'n Node> {
    entries
        .iter()
        .find(|(name, _)| name.text == key)
        .map(|(_, node)| node)
}

/// The fields of one record, as [`settings!`](crate::settings!) reads them in order.
#[derive(Debug)]
pub struct Fields<'n> {
    declared: std::slice::Iter<'static, Setting>,
    entries: &'n [(Key, Node)],
    shown: Vec<String>,
}

impl<'n> Fields<'n> {
    pub fn of(declared: &'static [Setting], node: &'n Node) -> Result<Self, SettingError> {
        let not_a_mapping = || SettingError::new(node.line, format!("is {}; must be a mapping", node.what()));
        let entries = entries(node).ok_or_else(not_a_mapping)?;
        let known = declared.iter().map(|setting| setting.key);
        match entries
            .iter()
            .find(|(key, _)| !known.clone().any(|name| name == key.text))
        {
            Some((key, _)) => Err(SettingError::new(key.line, unknown_key(&key.text, known))),
            None => Ok(Self {
                declared: declared.iter(),
                entries,
                shown: Vec::new(),
            }),
        }
    }

    pub fn read_next<T: Typed>(&mut self) -> Result<T, SettingError> {
        let setting = self.declared.next().expect("as many settings as fields");
        let below = |refusal: SettingError| refusal.below(&format!(".{}", setting.key));
        let Some(node) = entry(self.entries, setting.key) else {
            let node = default_of(setting)?;
            return T::read(&setting.kind, &node).map(|read| read.0).map_err(below);
        };
        let (value, shown) = T::read(&setting.kind, node).map_err(below)?;
        self.shown.push(format!("{}: {shown}", setting.key));
        Ok(value)
    }

    /// The record as written.
    pub fn shown(&self) -> String {
        format!("{{{}}}", self.shown.join(", "))
    }
}

/// The default, as if it stood in the file.
pub(crate) fn default_of(setting: &Setting) -> Result<Node, SettingError> {
    let refusal = |message: &str| SettingError::new(0, format!("default {:?}: {message}", setting.default));
    match node::parse(setting.default) {
        Ok(Some(node)) => Ok(node),
        Ok(None) => Err(refusal("is empty")),
        Err(error) => Err(refusal(&error.message)),
    }
}

/// A list, written as one text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Separator {
    /// Flags: commas.
    Comma,
    /// Environment: commas or white space.
    CommaOrSpace,
}

/// The text of a variable or flag as if it stood in the file. Lists may be written with separators or, as anything nested, as
/// YAML or JSON in one line.
pub(crate) fn node_of(kind: &SettingType, text: &str, separator: Separator) -> Result<Node, SettingError> {
    let trimmed = text.trim();
    match kind {
        SettingType::List(_) if !(trimmed.starts_with('[') && trimmed.ends_with(']')) => {
            let is_separator =
                |c: char| c == ',' || separator == Separator::CommaOrSpace && c.is_ascii_whitespace();
            let items = trimmed.split(is_separator).map(str::trim);
            Ok(list(items.filter(|item| !item.is_empty()).map(scalar).collect()))
        }
        SettingType::List(_) | SettingType::Map(_) | SettingType::Record(_) => match node::parse(trimmed) {
            Ok(Some(node)) => Ok(node),
            Ok(None) => Err(SettingError::new(
                0,
                format!("is empty; must be {}", kind.allowed()),
            )),
            Err(error) => Err(SettingError::new(0, error.message)),
        },
        SettingType::Text => Ok(scalar(text)),
        _ => Ok(scalar(trimmed)),
    }
}

fn scalar(text: &str) -> Node {
    let content = Content::Scalar {
        text: text.to_owned(),
        plain: false,
    };
    Node { line: 0, content }
}

pub(crate) fn list(items: Vec<Node>) -> Node {
    Node {
        line: 0,
        content: Content::List(items),
    }
}
