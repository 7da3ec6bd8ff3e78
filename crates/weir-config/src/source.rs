//! Sources of values, their errors, and the differences between two readings.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use crate::setting::Reload;
use crate::table::settings;
use crate::text::is_invisible;

/// All inputs of a configuration.
#[derive(Clone, Copy, Debug)]
pub struct Inputs<'i> {
    pub file: Option<File<'i>>,
    /// `None` marks a value that is not UTF-8.
    pub environment: &'i BTreeMap<String, Option<String>>,
    /// In the order of the command line.
    pub flags: &'i [Flag],
}

/// The configuration file.
#[derive(Clone, Copy, Debug)]
pub struct File<'i> {
    pub path: &'i Path,
    /// Its content, or why it cannot be read.
    pub content: Result<&'i [u8], &'i str>,
}

/// One setting from the command line.
#[derive(Clone, Debug)]
pub struct Flag {
    /// As it was typed, such as `--udp` or `--set`.
    pub shown: String,
    pub key: String,
    /// Each occurrence of the flag.
    pub values: Vec<String>,
}

/// The variable that names the configuration file.
pub const FILE_VARIABLE: &str = "WEIR_CONFIG";
/// Switches outputs on by name, as `--output` does.
pub const OUTPUT_VARIABLE: &str = "WEIR_OUTPUT";
/// The key under which `--output` arrives.
pub const OUTPUT_FLAG_KEY: &str = "output";

/// The variable of a key: `WEIR_` and the key in capitals, its dots and dashes underscores.
pub fn variable_of(key: &str) -> String {
    format!("WEIR_{}", key.to_ascii_uppercase().replace(['.', '-'], "_"))
}

/// The source of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ValueSource {
    Default,
    /// Worked out; the text says from what.
    Computed(String),
    File {
        path: PathBuf,
        line: usize,
    },
    Environment(String),
    Flag(String),
}

impl fmt::Display for ValueSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::Computed(how) => f.write_str(how),
            Self::File { path, line: 0 } => write!(f, "{}", path.display()),
            Self::File { path, line } => write!(f, "{}:{line}", path.display()),
            Self::Environment(name) => write!(f, "environment {name}"),
            Self::Flag(name) => write!(f, "flag {name}"),
        }
    }
}

/// One error: its place, key and allowed values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    pub source: ValueSource,
    /// Empty when the problem is not one key's.
    pub key: String,
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match (&self.source, self.key.as_str()) {
            (source, "") => format!("{source}: {}", self.message),
            (ValueSource::Default | ValueSource::Computed(_), key) => format!("{key}: {}", self.message),
            (source, key) => format!("{source}: {key}: {}", self.message),
        };
        // Keys are quoted from the file, and a file may hold anything.
        for c in text.chars() {
            if is_invisible(c) {
                write!(f, "{}", c.escape_default())?;
            } else {
                write!(f, "{c}")?;
            }
        }
        Ok(())
    }
}

/// Every problem there is, one per line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problems(pub Vec<Problem>);

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{problem}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Problems {}

/// A value as `weir check` shows it; secrets are redacted already.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShownValue {
    pub key: String,
    pub value: String,
    pub source: ValueSource,
    /// Sources with another value and a lower precedence.
    pub overridden: Vec<ValueSource>,
    /// The displayable content of the file that the value names, if a reload reads it again.
    pub content: Option<String>,
    /// Compares the values, even if two secrets are shown alike.
    pub(crate) fingerprint: u64,
}

impl ShownValue {
    /// The value, and the content of its file.
    fn described(&self) -> String {
        match &self.content {
            None => self.value.clone(),
            Some(content) => format!("{} ({content})", self.value),
        }
    }

    fn same(&self, other: &ShownValue) -> bool {
        (&self.value, &self.content, self.fingerprint) == (&other.value, &other.content, other.fingerprint)
    }

    pub(crate) fn is_empty(&self) -> bool {
        matches!(self.value.as_str(), "''" | "[]" | "{}")
    }

    /// Whether the setting switches something on.
    fn is_on(&self) -> bool {
        !self.is_empty() && !matches!(self.value.as_str(), "off" | "false")
    }
}

/// One difference between two configurations; secrets are redacted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    pub key: String,
    pub from: String,
    pub to: String,
    /// A reload applies it.
    pub live: bool,
}

/// Keys whose values differ, with whether a reload applies them.
pub fn changes(before: &[ShownValue], after: &[ShownValue]) -> Vec<Change> {
    let by_key = |shown: &'_ [ShownValue]| -> BTreeMap<String, ShownValue> {
        shown
            .iter()
            .map(|shown| (shown.key.clone(), shown.clone()))
            .collect()
    };
    let (old, new) = (by_key(before), by_key(after));
    let value =
        |shown: Option<&ShownValue>| shown.map_or_else(|| "(unset)".to_owned(), ShownValue::described);
    let is_on = |key: &str| {
        [&old, &new]
            .iter()
            .all(|map| map.get(key).is_some_and(ShownValue::is_on))
    };
    old.keys()
        .chain(new.keys().filter(|key| !old.contains_key(*key)))
        .filter(|key| match (old.get(*key), new.get(*key)) {
            (Some(old), Some(new)) => !old.same(new),
            // If an output is switched on or off, only that is reported, not each of its settings.
            _ => !key.starts_with("outputs.") || key.ends_with(".enabled"),
        })
        .map(|key| Change {
            key: key.clone(),
            from: value(old.get(key)),
            to: value(new.get(key)),
            live: is_applied(key, is_on),
        })
        .collect()
}

fn is_applied(key: &str, is_on: impl Fn(&str) -> bool) -> bool {
    if key.starts_with("outputs.") {
        return true;
    }
    match settings()
        .find(|setting| setting.key == key)
        .map(|setting| setting.reload)
    {
        Some(Reload::Applied) => true,
        Some(Reload::AppliedWhile(other)) => is_on(other),
        Some(Reload::Waits) | None => false,
    }
}
