//! YAML as a tree that remembers where each value was written, so that an error can name file, line, key and what is
//! allowed, also after files were merged.

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::Spanned;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    Null,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(String),
    List(Vec<Node>),
    /// In the order of the file, so that `show` prints what people wrote.
    Map(Vec<(String, Node)>),
}

/// One value and its place. `line` is 0 for values that no file holds.
#[derive(Debug, Clone)]
pub struct Node {
    pub value: Value,
    pub file: Option<Arc<str>>,
    pub line: u64,
}

impl PartialEq for Node {
    fn eq(&self, other: &Self) -> bool {
        self.value == other.value
    }
}

/// A configuration error; always exit code 2.
#[derive(Debug, Clone, PartialEq)]
pub struct ConfigError(pub String);

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ConfigError {}

pub type Result<T> = std::result::Result<T, ConfigError>;

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        let spanned = Spanned::<Plain>::deserialize(deserializer)?;
        Ok(Node {
            value: spanned.value.0,
            file: None,
            line: spanned.referenced.line(),
        })
    }
}

/// The value without its place; `Spanned` adds that.
struct Plain(Value);

impl<'de> Deserialize<'de> for Plain {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        deserializer.deserialize_any(PlainVisitor)
    }
}

struct PlainVisitor;

impl<'de> Visitor<'de> for PlainVisitor {
    type Value = Plain;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a YAML value")
    }

    fn visit_unit<E>(self) -> std::result::Result<Plain, E> {
        Ok(Plain(Value::Null))
    }

    fn visit_none<E>(self) -> std::result::Result<Plain, E> {
        Ok(Plain(Value::Null))
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> std::result::Result<Plain, D::Error> {
        Plain::deserialize(deserializer)
    }

    fn visit_bool<E>(self, v: bool) -> std::result::Result<Plain, E> {
        Ok(Plain(Value::Bool(v)))
    }

    fn visit_i64<E>(self, v: i64) -> std::result::Result<Plain, E> {
        Ok(Plain(Value::Int(v)))
    }

    fn visit_u64<E>(self, v: u64) -> std::result::Result<Plain, E> {
        Ok(Plain(i64::try_from(v).map_or(Value::Float(v as f64), Value::Int)))
    }

    fn visit_f64<E>(self, v: f64) -> std::result::Result<Plain, E> {
        Ok(Plain(Value::Float(v)))
    }

    fn visit_str<E>(self, v: &str) -> std::result::Result<Plain, E> {
        Ok(Plain(Value::Text(v.to_owned())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> std::result::Result<Plain, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element::<Node>()? {
            items.push(item);
        }
        Ok(Plain(Value::List(items)))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Plain, A::Error> {
        let mut items = Vec::new();
        while let Some((key, value)) = map.next_entry::<String, Node>()? {
            items.push((key, value));
        }
        Ok(Plain(Value::Map(items)))
    }
}

impl Node {
    pub fn new(value: Value) -> Self {
        Self {
            value,
            file: None,
            line: 0,
        }
    }

    pub fn text(text: &str) -> Self {
        Self::new(Value::Text(text.to_owned()))
    }

    pub fn empty_map() -> Self {
        Self::new(Value::Map(Vec::new()))
    }

    pub fn parse(text: &str, file: &str) -> Result<Self> {
        if text.trim().is_empty() {
            return Ok(Self::empty_map());
        }
        let mut node: Node =
            serde_saphyr::from_str_with_options(text, serde_saphyr::options! { strict_booleans: true })
                .map_err(|e| ConfigError(format!("{file}: {e}")))?;
        node.set_file(&Arc::from(file));
        Ok(node)
    }

    pub fn read(path: &Path) -> Result<Self> {
        let text =
            std::fs::read_to_string(path).map_err(|e| ConfigError(format!("{}: {e}", path.display())))?;
        Self::parse(&text, &path.display().to_string())
    }

    fn set_file(&mut self, file: &Arc<str>) {
        self.file = Some(file.clone());
        match &mut self.value {
            Value::List(items) => items.iter_mut().for_each(|n| n.set_file(file)),
            Value::Map(items) => items.iter_mut().for_each(|(_, n)| n.set_file(file)),
            _ => {}
        }
    }

    pub fn get(&self, key: &str) -> Option<&Node> {
        match &self.value {
            Value::Map(items) => items.iter().find(|(k, _)| k == key).map(|(_, n)| n),
            _ => None,
        }
    }

    pub fn set(&mut self, key: &str, node: Node) {
        let Value::Map(items) = &mut self.value else {
            return;
        };
        match items.iter_mut().find(|(k, _)| k == key) {
            Some((_, old)) => *old = node,
            None => items.push((key.to_owned(), node)),
        }
    }

    pub fn remove(&mut self, key: &str) -> Option<Node> {
        let Value::Map(items) = &mut self.value else {
            return None;
        };
        let at = items.iter().position(|(k, _)| k == key)?;
        Some(items.remove(at).1)
    }

    /// Lays `over` on top: maps merge deeply, lists and scalars replace, null deletes.
    pub fn merge(&mut self, over: &Node) {
        let (Value::Map(mine), Value::Map(theirs)) = (&mut self.value, &over.value) else {
            *self = over.clone();
            return;
        };
        for (key, node) in theirs {
            let position = mine.iter().position(|(k, _)| k == key);
            match (position, &node.value) {
                (Some(at), Value::Null) => {
                    mine.remove(at);
                }
                (None, Value::Null) => {}
                (Some(at), _) => mine[at].1.merge(node),
                (None, _) => {
                    let mut fresh = node.clone();
                    fresh.drop_nulls();
                    mine.push((key.clone(), fresh));
                }
            }
        }
    }

    fn drop_nulls(&mut self) {
        if let Value::Map(items) = &mut self.value {
            items.retain(|(_, n)| n.value != Value::Null);
            items.iter_mut().for_each(|(_, n)| n.drop_nulls());
        }
    }

    /// Replaces the value at a dotted path such as `load.0.to`. The path must exist up to its last step.
    pub fn set_path(&mut self, path: &str, node: Node) -> Result<()> {
        let wrong = |what: &str| ConfigError(format!("{}: {path}: {what}", node.place()));
        let mut at = &mut *self;
        let steps: Vec<&str> = path.split('.').collect();
        for (i, step) in steps.iter().enumerate() {
            let last = i + 1 == steps.len();
            at = match &mut at.value {
                Value::List(items) => {
                    let index: usize = step
                        .parse()
                        .map_err(|_| wrong(&format!("{step:?} is not a position in a list")))?;
                    let length = items.len();
                    items
                        .get_mut(index)
                        .ok_or_else(|| wrong(&format!("position {index} of a list with {length} entries")))?
                }
                Value::Map(items) => {
                    if !items.iter().any(|(k, _)| k == step) {
                        if !last {
                            return Err(wrong(&format!("there is no {step:?}")));
                        }
                        items.push(((*step).to_owned(), Node::new(Value::Null)));
                    }
                    items
                        .iter_mut()
                        .find(|(k, _)| k == step)
                        .map(|(_, n)| n)
                        .expect("present or just added")
                }
                _ => return Err(wrong(&format!("{step:?} lies below a plain value"))),
            };
        }
        *at = node;
        Ok(())
    }

    /// Applies `f` to every text in the tree.
    pub fn map_texts(&mut self, f: &mut impl FnMut(&str) -> Result<Option<Node>>) -> Result<()> {
        match &mut self.value {
            Value::Text(text) => {
                if let Some(new) = f(text)? {
                    self.value = new.value;
                }
                Ok(())
            }
            Value::List(items) => items.iter_mut().try_for_each(|n| n.map_texts(f)),
            Value::Map(items) => items.iter_mut().try_for_each(|(_, n)| n.map_texts(f)),
            _ => Ok(()),
        }
    }

    /// `file:line` for messages.
    pub fn place(&self) -> String {
        match (&self.file, self.line) {
            (Some(file), 0) => file.to_string(),
            (Some(file), line) => format!("{file}:{line}"),
            (None, _) => "command line".to_owned(),
        }
    }

    fn kind(&self) -> &'static str {
        match self.value {
            Value::Null => "nothing",
            Value::Bool(_) => "true or false",
            Value::Int(_) | Value::Float(_) => "a number",
            Value::Text(_) => "text",
            Value::List(_) => "a list",
            Value::Map(_) => "a map",
        }
    }

    /// YAML again, for `show`.
    pub fn to_yaml(&self) -> String {
        let mut out = String::new();
        self.write_yaml(&mut out, 0);
        out
    }

    fn write_yaml(&self, out: &mut String, indent: usize) {
        use std::fmt::Write as _;
        let pad = "  ".repeat(indent);
        match &self.value {
            Value::Map(items) => {
                for (key, node) in items {
                    if node.is_block() {
                        let _ = writeln!(out, "{pad}{}:", quote(key));
                        node.write_yaml(out, indent + 1);
                    } else {
                        let _ = writeln!(out, "{pad}{}: {}", quote(key), node.inline());
                    }
                }
            }
            Value::List(items) => {
                for node in items {
                    if node.is_block() {
                        let mut inner = String::new();
                        node.write_yaml(&mut inner, indent + 1);
                        let _ = write!(out, "{pad}- {}", inner.trim_start());
                    } else {
                        let _ = writeln!(out, "{pad}- {}", node.inline());
                    }
                }
            }
            _ => {
                let _ = writeln!(out, "{pad}{}", self.inline());
            }
        }
    }

    fn is_block(&self) -> bool {
        match &self.value {
            Value::Map(items) => !items.is_empty(),
            Value::List(items) => items.iter().any(Node::is_block),
            _ => false,
        }
    }

    fn inline(&self) -> String {
        match &self.value {
            Value::Null => "null".to_owned(),
            Value::Bool(v) => v.to_string(),
            Value::Int(v) => v.to_string(),
            Value::Float(v) => v.to_string(),
            Value::Text(text) => quote(text),
            Value::Map(_) => "{}".to_owned(),
            Value::List(items) => {
                format!(
                    "[{}]",
                    items.iter().map(Node::inline).collect::<Vec<_>>().join(", ")
                )
            }
        }
    }
}

/// Plain where YAML reads it back as the same text, else a JSON string (which YAML reads too).
fn quote(text: &str) -> String {
    let plain = !text.is_empty()
        && text
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"_-./".contains(&b))
        && text.parse::<f64>().is_err()
        && !text.starts_with('-')
        && !["true", "false", "null", "yes", "no", "on", "off", "y", "n", "~"]
            .contains(&text.to_ascii_lowercase().as_str());
    if plain {
        text.to_owned()
    } else {
        serde_json::to_string(text).expect("text is always JSON")
    }
}

/// Reads a map key by key and, at the end, refuses keys that nobody asked for.
pub struct Reader<'a> {
    node: &'a Node,
    path: String,
    asked: Vec<&'static str>,
}

impl<'a> Reader<'a> {
    pub fn new(node: &'a Node, path: &str) -> Result<Self> {
        match node.value {
            Value::Map(_) => Ok(Self {
                node,
                path: path.to_owned(),
                asked: Vec::new(),
            }),
            _ => Err(wrong_kind(node, path, "a map")),
        }
    }

    pub fn take(&mut self, key: &'static str) -> Option<&'a Node> {
        self.asked.push(key);
        self.node.get(key)
    }

    pub fn path(&self, key: &str) -> String {
        join(&self.path, key)
    }

    pub fn required(&mut self, key: &'static str) -> Result<&'a Node> {
        self.take(key).ok_or_else(|| {
            ConfigError(format!(
                "{}: {}: missing",
                self.node.place(),
                join(&self.path, key)
            ))
        })
    }

    pub fn optional<T>(
        &mut self,
        key: &'static str,
        read: impl FnOnce(&'a Node, &str) -> Result<T>,
    ) -> Result<Option<T>> {
        let path = self.path(key);
        self.take(key).map(|n| read(n, &path)).transpose()
    }

    pub fn or<T>(
        &mut self,
        key: &'static str,
        default: T,
        read: impl FnOnce(&'a Node, &str) -> Result<T>,
    ) -> Result<T> {
        Ok(self.optional(key, read)?.unwrap_or(default))
    }

    pub fn list<T>(
        &mut self,
        key: &'static str,
        read: impl Fn(&'a Node, &str) -> Result<T>,
    ) -> Result<Vec<T>> {
        self.or(key, Vec::new(), |n, p| list(n, p, &read))
    }

    /// Every key must have been asked for by now.
    pub fn finish(self) -> Result<()> {
        let Value::Map(items) = &self.node.value else {
            return Ok(());
        };
        for (key, node) in items {
            if !self.asked.contains(&key.as_str()) {
                let hint = suggestion(key, &self.asked);
                return Err(ConfigError(format!(
                    "{}: {}: unknown key{hint}; allowed: {}",
                    node.place(),
                    join(&self.path, key),
                    self.asked.join(", ")
                )));
            }
        }
        Ok(())
    }
}

pub fn join(path: &str, key: &str) -> String {
    if path.is_empty() {
        key.to_owned()
    } else {
        format!("{path}.{key}")
    }
}

pub fn wrong_kind(node: &Node, path: &str, want: &str) -> ConfigError {
    ConfigError(format!(
        "{}: {path}: expected {want}, found {}",
        node.place(),
        node.kind()
    ))
}

pub fn invalid(node: &Node, path: &str, what: impl fmt::Display) -> ConfigError {
    ConfigError(format!("{}: {path}: {what}", node.place()))
}

pub fn list<'a, T>(node: &'a Node, path: &str, read: impl Fn(&'a Node, &str) -> Result<T>) -> Result<Vec<T>> {
    match &node.value {
        Value::List(items) => items
            .iter()
            .enumerate()
            .map(|(i, n)| read(n, &join(path, &i.to_string())))
            .collect(),
        _ => Err(wrong_kind(node, path, "a list")),
    }
}

/// Text, or a number written without quotes.
pub fn text(node: &Node, path: &str) -> Result<String> {
    match &node.value {
        Value::Text(text) => Ok(text.clone()),
        Value::Int(v) => Ok(v.to_string()),
        Value::Float(v) => Ok(v.to_string()),
        Value::Bool(v) => Ok(v.to_string()),
        _ => Err(wrong_kind(node, path, "text")),
    }
}

pub fn boolean(node: &Node, path: &str) -> Result<bool> {
    match node.value {
        Value::Bool(v) => Ok(v),
        _ => Err(wrong_kind(node, path, "true or false")),
    }
}

pub fn number(node: &Node, path: &str) -> Result<f64> {
    match node.value {
        Value::Int(v) => Ok(v as f64),
        Value::Float(v) => Ok(v),
        _ => Err(wrong_kind(node, path, "a number")),
    }
}

pub fn count(node: &Node, path: &str) -> Result<usize> {
    match node.value {
        Value::Int(v) if v >= 0 => Ok(v as usize),
        _ => Err(wrong_kind(node, path, "a whole number, zero or more")),
    }
}

/// `; did you mean "x"?` when one of the allowed words is close enough to be a typing error.
pub fn suggestion(word: &str, allowed: &[&str]) -> String {
    allowed
        .iter()
        .map(|a| (strsim::levenshtein(word, a), a))
        .min()
        .filter(|(d, a)| *d <= 2.max(a.len() / 3) && *d < a.len())
        .map(|(_, a)| format!("; did you mean {a:?}?"))
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Node {
        Node::parse(text, "f.yaml").unwrap()
    }

    #[test]
    fn maps_merge_lists_replace_null_deletes() {
        let mut base = parse("a: {x: 1, y: [1, 2]}\nb: 2\nc: 3\n");
        base.merge(&parse("a: {y: [3], z: {q: null, r: 1}}\nb: null\n"));
        assert_eq!(base, parse("a: {x: 1, y: [3], z: {r: 1}}\nc: 3\n"));
    }

    #[test]
    fn errors_name_file_line_key_and_what_is_allowed() {
        let node = parse("target:\n  command: [a]\n  memry: 1\n");
        let mut top = Reader::new(&node, "").unwrap();
        let target = top.required("target").unwrap();
        let mut r = Reader::new(target, "target").unwrap();
        r.take("command");
        r.take("memory");
        assert_eq!(
            r.finish().unwrap_err().0,
            "f.yaml:3: target.memry: unknown key; did you mean \"memory\"?; allowed: command, memory"
        );
        assert_eq!(
            number(target.get("command").unwrap(), "target.command")
                .unwrap_err()
                .0,
            "f.yaml:2: target.command: expected a number, found a list"
        );
    }

    #[test]
    fn places_survive_merging() {
        let mut base = parse("a: {x: 1}\n");
        base.merge(&Node::parse("\n\na:\n  x: oops\n", "g.yaml").unwrap());
        let x = base.get("a").unwrap().get("x").unwrap();
        assert_eq!(
            number(x, "a.x").unwrap_err().0,
            "g.yaml:4: a.x: expected a number, found text"
        );
    }

    #[test]
    fn yaml_reads_back() {
        let node = parse(
            "a: {x: 1, y: [1, two, '3']}\nb: ['{bin}', '-', 'a: b']\nc: [{k: v, l: [1]}, {m: 'true'}]\nd: {}\ne: '1.5'\n",
        );
        assert_eq!(parse(&node.to_yaml()), node, "{}", node.to_yaml());
    }

    #[test]
    fn dotted_paths() {
        let mut node = parse("load: [{to: 1}]\n");
        node.set_path("load.0.to", Node::text("x")).unwrap();
        node.set_path("load.0.new", Node::text("y")).unwrap();
        assert_eq!(node, parse("load: [{to: x, new: y}]\n"));
        assert!(
            node.set_path("load.3.to", Node::text("x"))
                .unwrap_err()
                .0
                .contains("position 3")
        );
        assert!(
            node.set_path("nothing.to", Node::text("x"))
                .unwrap_err()
                .0
                .contains("no \"nothing\"")
        );
    }
}
