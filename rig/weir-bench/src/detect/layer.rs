//! Layers of experiment files: serde types in which every key may be missing, laid over each other. Maps merge, lists
//! replace, null deletes. Each value remembers where it was written, so that an error can name file, line and key also after
//! files were merged.

use serde::de::{self, DeserializeOwned, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;
use serde_saphyr::Spanned;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;
use std::marker::PhantomData;
use std::path::Path;
use std::sync::Arc;

/// A configuration error; always exit code 2.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{0}")]
pub struct ConfigError(pub String);

pub type Result<T> = std::result::Result<T, ConfigError>;

/// Data that serde cannot pass: the current file, and the rig's own message about an error.
#[derive(Default)]
struct Reading {
    file: Arc<str>,
    error: Option<String>,
    /// Line of the current patch, whose values have no lines themselves.
    line: u64,
}

thread_local! {
    static READING: RefCell<Reading> = RefCell::default();
}

/// Reads YAML; `file` is its name in messages.
pub fn parse<T: for<'de> Deserialize<'de> + Default>(text: &str, file: &str) -> Result<T> {
    if text.trim().is_empty() {
        return Ok(T::default());
    }
    READING.set(Reading {
        file: file.into(),
        ..Reading::default()
    });
    serde_saphyr::from_str(text).map_err(|error| {
        let own = READING.with_borrow_mut(|reading| reading.error.take());
        ConfigError(own.unwrap_or_else(|| format!("{file}: {error}")))
    })
}

pub fn read_text(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).map_err(|error| ConfigError(format!("{}: {error}", path.display())))
}

/// File and line of a value.
#[derive(Debug, Clone, PartialEq)]
pub struct SourceLine {
    file: Arc<str>,
    line: u64,
}

impl SourceLine {
    fn at(line: u64) -> SourceLine {
        READING.with_borrow(|reading| SourceLine {
            file: reading.file.clone(),
            line: if line == 0 { reading.line } else { line },
        })
    }
}

impl fmt::Display for SourceLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}", self.file),
            line => write!(f, "{}:{line}", self.file),
        }
    }
}

/// A layer that can override another of its kind.
pub trait Layered {
    fn override_with(&mut self, over: Self);
    fn is_missing(&self) -> bool;
}

/// A value that a layer may leave out, or delete.
#[derive(Debug, Clone, Default)]
pub enum Slot<T> {
    #[default]
    Missing,
    Null,
    Here(T, SourceLine),
}

impl<T> Slot<T> {
    /// A value that no file contains; `source` stands for the file in messages.
    pub fn given(value: T, source: &str) -> Self {
        let file = source.into();
        Slot::Here(value, SourceLine { file, line: 0 })
    }

    pub fn get(&self) -> Option<&T> {
        match self {
            Slot::Here(value, _) => Some(value),
            _ => None,
        }
    }

    /// An error about this value.
    pub fn invalid(&self, path: &str, what: impl fmt::Display) -> ConfigError {
        match self {
            Slot::Here(_, place) => ConfigError(format!("{place}: {path}: {what}")),
            _ => ConfigError(format!("{path}: {what}")),
        }
    }

    pub fn required(&self, path: &str) -> Result<&T> {
        self.get().ok_or_else(|| self.invalid(path, "missing"))
    }
}

impl Slot<String> {
    /// The value as `read` understands it.
    pub fn read<T, E: fmt::Display>(
        &self,
        path: &str,
        read: impl FnOnce(&str) -> std::result::Result<T, E>,
    ) -> Result<Option<T>> {
        let read = self.get().map(|text| read(text));
        read.transpose().map_err(|what| self.invalid(path, what))
    }

    pub fn text(&self) -> Option<String> {
        self.get().cloned()
    }
}

impl<T> Layered for Slot<T> {
    fn override_with(&mut self, over: Self) {
        if !over.is_missing() {
            *self = over;
        }
    }

    fn is_missing(&self) -> bool {
        matches!(self, Slot::Missing)
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Slot<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        let found = Option::<Spanned<T>>::deserialize(deserializer)?;
        Ok(found.map_or(Slot::Null, |spanned| {
            let place = SourceLine::at(spanned.referenced.line());
            Slot::Here(spanned.value, place)
        }))
    }
}

impl<T: Serialize> Serialize for Slot<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        self.get().serialize(serializer)
    }
}

impl<V: Layered + Default> Layered for BTreeMap<String, V> {
    fn override_with(&mut self, over: Self) {
        for (key, value) in over {
            self.entry(key).or_default().override_with(value);
        }
    }

    fn is_missing(&self) -> bool {
        self.values().all(Layered::is_missing)
    }
}

/// A list: a complete one replaces the one below, a map of positions changes single entries.
#[derive(Debug, Clone)]
pub struct List<T> {
    entries: Option<Vec<T>>,
    changes: BTreeMap<usize, T>,
}

impl<T> Default for List<T> {
    fn default() -> Self {
        List {
            entries: None,
            changes: BTreeMap::new(),
        }
    }
}

impl<T> From<Vec<T>> for List<T> {
    fn from(entries: Vec<T>) -> Self {
        List {
            entries: Some(entries),
            changes: BTreeMap::new(),
        }
    }
}

impl<T: Layered> Layered for List<T> {
    fn override_with(&mut self, over: Self) {
        if over.entries.is_some() {
            *self = over;
            return;
        }
        for (at, change) in over.changes {
            match self.changes.entry(at) {
                Entry::Occupied(mut below) => below.get_mut().override_with(change),
                Entry::Vacant(place) => drop(place.insert(change)),
            }
        }
    }

    fn is_missing(&self) -> bool {
        self.entries.is_none() && self.changes.is_empty()
    }
}

impl<T: Layered + Clone> List<T> {
    /// The entries with their changes.
    fn changed(&self, path: &str) -> Result<Vec<T>> {
        let mut entries = self.entries.clone().unwrap_or_default();
        let length = entries.len();
        for (at, change) in &self.changes {
            let entry = entries.get_mut(*at).ok_or_else(|| {
                ConfigError(format!(
                    "{path}.{at}: position {at} of a list with {length} entries"
                ))
            })?;
            entry.override_with(change.clone());
        }
        Ok(entries)
    }

    /// Each entry as `read` understands it, given its path.
    pub fn read<R>(&self, path: &str, read: impl Fn(&T, &str) -> Result<R>) -> Result<Vec<R>> {
        let entries = self.changed(path)?;
        let read_at = |(at, entry)| read(entry, &format!("{path}.{at}"));
        entries.iter().enumerate().map(read_at).collect()
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for List<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct Entries<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Entries<T> {
            type Value = List<T>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> std::result::Result<List<T>, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = seq.next_element()? {
                    entries.push(entry);
                }
                Ok(List::from(entries))
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<List<T>, A::Error> {
                let mut changes = BTreeMap::new();
                while let Some(step) = map.next_key::<String>()? {
                    let at = step
                        .parse()
                        .map_err(|_| de::Error::custom(format!("{step:?} is not a position in a list")))?;
                    changes.insert(at, map.next_value()?);
                }
                Ok(List {
                    entries: None,
                    changes,
                })
            }
            fn visit_unit<E>(self) -> std::result::Result<List<T>, E> {
                Ok(List::from(Vec::new()))
            }
        }
        deserializer.deserialize_any(Entries(PhantomData))
    }
}

impl<T: Layered + Clone + Serialize> Serialize for List<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        match &self.entries {
            Some(_) => self
                .changed("list")
                .map_err(serde::ser::Error::custom)?
                .serialize(serializer),
            None => self.changes.serialize(serializer),
        }
    }
}

/// A map in the order of the file, for display.
#[derive(Debug, Clone)]
pub struct Entries<T>(pub Vec<(String, T)>);

impl<T> Default for Entries<T> {
    fn default() -> Self {
        Entries(Vec::new())
    }
}

impl<T> Layered for Entries<T> {
    fn override_with(&mut self, over: Self) {
        self.0.extend(over.0);
    }

    fn is_missing(&self) -> bool {
        self.0.is_empty()
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Entries<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct Pairs<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Pairs<T> {
            type Value = Entries<T>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Entries<T>, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(Entries(entries))
            }
        }
        deserializer.deserialize_map(Pairs(PhantomData))
    }
}

impl<T: Serialize> Serialize for Entries<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, entry)| (name, entry)))
    }
}

/// The error for an unknown key. `READING` keeps the message, because serde's would lack the path.
pub fn unknown_key<E: de::Error>(path: &str, key: &str, allowed: &[&str], line: u64) -> E {
    let dot = if path.is_empty() { "" } else { "." };
    let message = format!(
        "{}: {path}{dot}{key}: unknown key{}; allowed: {}",
        SourceLine::at(line),
        suggestion(key, allowed),
        allowed.join(", ")
    );
    READING.with_borrow_mut(|reading| reading.error = Some(message));
    E::custom("unknown key")
}

/// A struct of slots, lists and further layers, whose keys are those of a map at `$path`.
macro_rules! layer {
    ($(#[$doc:meta])* $name:ident at $path:literal { $($field:ident: $type:ty,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Default)]
        pub struct $name { $(pub $field: $type,)* }

        impl $crate::detect::layer::Layered for $name {
            fn override_with(&mut self, over: Self) {
                $(self.$field.override_with(over.$field);)*
            }

            fn is_missing(&self) -> bool {
                $(self.$field.is_missing())&&*
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
                struct Keys;
                impl<'de> serde::de::Visitor<'de> for Keys {
                    type Value = $name;
                    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                        f.write_str(concat!("a map of the keys of ", stringify!($name)))
                    }
                    fn visit_map<A: serde::de::MapAccess<'de>>(
                        self,
                        mut map: A,
                    ) -> std::result::Result<$name, A::Error> {
                        let mut layer = $name::default();
                        while let Some(key) = map.next_key::<String>()? {
                            match key.as_str() {
                                $(stringify!($field) => layer.$field = map.next_value()?,)*
                                other => {
                                    let value: serde_saphyr::Spanned<serde::de::IgnoredAny> = map.next_value()?;
                                    let line = value.referenced.line();
                                    let allowed = [$(stringify!($field)),*];
                                    return Err($crate::detect::layer::unknown_key($path, other, &allowed, line));
                                }
                            }
                        }
                        Ok(layer)
                    }
                }
                deserializer.deserialize_map(Keys)
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
                use serde::ser::SerializeMap;
                use $crate::detect::layer::Layered;
                let mut map = serializer.serialize_map(None)?;
                $(if !self.$field.is_missing() {
                    map.serialize_entry(stringify!($field), &self.$field)?;
                })*
                map.end()
            }
        }
    };
}
pub(crate) use layer;

/// A layer written as a map of dotted paths, such as `load.0.to`.
#[derive(Debug, Clone, Default)]
pub struct Patch<L>(pub L);

impl<L: Layered> Layered for Patch<L> {
    fn override_with(&mut self, over: Self) {
        self.0.override_with(over.0);
    }

    fn is_missing(&self) -> bool {
        self.0.is_missing()
    }
}

impl<L: Serialize> Serialize for Patch<L> {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de, L: Layered + Default + DeserializeOwned> Deserialize<'de> for Patch<L> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct Paths<L>(PhantomData<L>);
        impl<'de, L: Layered + Default + DeserializeOwned> Visitor<'de> for Paths<L> {
            type Value = Patch<L>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map of paths")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Patch<L>, A::Error> {
                let mut layer = L::default();
                while let Some(path) = map.next_key::<String>()? {
                    let value: Spanned<Value> = map.next_value()?;
                    READING.with_borrow_mut(|reading| reading.line = value.referenced.line());
                    layer.override_with(at_path(&path, value.value).map_err(de::Error::custom)?);
                    READING.with_borrow_mut(|reading| reading.line = 0);
                }
                Ok(Patch(layer))
            }
        }
        deserializer.deserialize_map(Paths(PhantomData))
    }
}

/// A layer with the value at a path.
fn at_path<L: DeserializeOwned>(path: &str, value: Value) -> serde_json::Result<L> {
    let nest = |below: Value, step: &str| Value::Object([(step.to_owned(), below)].into_iter().collect());
    let nested = path.rsplit('.').fold(as_text(value), nest);
    serde_json::from_value(nested)
}

/// Numbers and booleans as the texts they were written as, because layers store texts.
fn as_text(value: Value) -> Value {
    match value {
        Value::Number(_) | Value::Bool(_) => Value::String(value.to_string()),
        Value::Array(values) => values.into_iter().map(as_text).collect(),
        Value::Object(map) => map
            .into_iter()
            .map(|(key, value)| (key, as_text(value)))
            .collect(),
        other => other,
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

    layer!(Inner at "a" { x: Slot<String>, y: Slot<Vec<String>>, z: BTreeMap<String, Slot<String>>, });
    layer!(Outer at "" { a: Inner, b: Slot<String>, c: Slot<String>, l: List<Inner>, });

    fn outer(text: &str) -> Outer {
        parse(text, "f.yaml").unwrap()
    }

    fn yaml(layer: &Outer) -> serde_json::Value {
        serde_json::to_value(layer).unwrap()
    }

    #[test]
    fn maps_merge_lists_replace_null_deletes() {
        let mut base = outer("a: {x: 1, y: [1, 2], z: {p: 1, q: 2}}\nb: 2\nc: 3\n");
        base.override_with(outer("a: {y: [3], z: {q: null, r: 1}}\nb: null\n"));
        assert_eq!(base.a.x.get().unwrap(), "1");
        assert_eq!(base.a.y.get().unwrap(), &["3"]);
        assert_eq!(base.a.z["q"].get(), None);
        assert_eq!(
            (
                base.a.z["p"].get().unwrap().as_str(),
                base.a.z["r"].get().unwrap().as_str()
            ),
            ("1", "1")
        );
        assert_eq!((base.b.get(), base.c.get().unwrap().as_str()), (None, "3"));
    }

    #[test]
    fn errors_name_file_line_key_and_allowed_values() {
        let error = parse::<Outer>("a:\n  x: 1\n  zz: 1\n", "f.yaml").unwrap_err();
        assert_eq!(error.0, "f.yaml:3: a.zz: unknown key; allowed: x, y, z");
        let error = parse::<Outer>("b: 1\na: [\n", "f.yaml").unwrap_err();
        assert!(error.0.starts_with("f.yaml: "), "{error}");
        let error = parse::<Outer>("\na: {y: 1}\n", "f.yaml").unwrap_err();
        assert!(
            error.0.starts_with("f.yaml: ") && error.0.contains("line 2"),
            "{error}"
        );
    }

    #[test]
    fn places_survive_merging() {
        let mut base = outer("a: {x: 1}\n");
        base.override_with(parse("\n\na:\n  x: oops\n", "g.yaml").unwrap());
        let error = base
            .a
            .x
            .read("a.x", |_| Err::<(), _>("a number was expected".to_owned()));
        assert_eq!(error.unwrap_err().0, "g.yaml:4: a.x: a number was expected");
    }

    #[test]
    fn a_layer_reads_back() {
        let text = "a: {x: '{bin}', y: ['-', 'a: b', 'true', '1.5']}\nl: [{x: k, y: [1]}, {x: 'null'}]\n";
        let layer = outer(text);
        let again = outer(&serde_saphyr::to_string(&layer).unwrap());
        assert_eq!(yaml(&again), yaml(&layer));
    }

    #[test]
    fn dotted_paths() {
        let patch = |text: &str| parse::<Patch<Outer>>(text, "--set").map(|patch| patch.0);
        let mut layer = outer("l: [{x: 1}]\n");
        layer.override_with(patch("{l.0.x: new, l.0.y: [2], a.z.q: 3, b: x}\n").unwrap());
        assert_eq!(
            yaml(&layer),
            serde_json::json!({"a": {"z": {"q": "3"}}, "b": "x", "l": [{"x": "new", "y": ["2"]}]})
        );
        for wrong in ["nothing.to: 1", "a.x.y: 1", "l.one.x: 1", "a: 1"] {
            assert!(patch(wrong).is_err(), "{wrong}");
        }
    }
}
