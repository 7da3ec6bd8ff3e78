//! What an operator can set, described once: the tables here drive reading, checking, error messages,
//! `weir check` and the generated configuration page, and each table has a plain serde struct beside it
//! that holds the resolved values.
//!
//! An output is one module: its struct, which knows how to start it ([`Start`]), its table and its [`OutputType`], which is
//! entered in [`OUTPUT_TYPES`].

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use weir_aggregate::Expansion;

use crate::StartError;
use crate::delivery::{Delivery, Surroundings};
use crate::relay::RelaySettings;

mod datadog;
mod delivery;
mod prometheus;

pub(crate) use datadog::URL;
pub use datadog::{Compression, DatadogSettings, SeriesFormat};
pub use delivery::{DELIVERY, DeliverySettings, QUEUE};
pub(crate) use prometheus::STYLES;
pub use prometheus::{HistogramStyle, PrometheusSettings};

/// One setting: what it is called, what it takes, what it does.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// The last part of the key; the field of the struct has the same name.
    pub key: &'static str,
    pub kind: Kind,
    /// As it would be written in the file. A number's or a text's "not set" is its zero or empty value.
    pub default: &'static str,
    /// What it does, in one or two sentences.
    pub effect: &'static str,
    /// What zero or empty means; empty text where neither is allowed or nothing needs saying.
    pub zero: &'static str,
    /// Who would change it.
    pub who: &'static str,
    /// An output is refused while this is empty, and setting it through the environment switches the output on.
    pub required: bool,
    /// What is done with the file that it names.
    pub path: Option<PathUse>,
    /// The setting whose secrets are in the files that this one names; empty text: none. It is not in the struct: what the files
    /// hold is in that other one.
    pub file_of: &'static str,
}

/// What a setting's path is for: the sandbox lets the process do that, and nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathUse {
    /// This very file is read.
    Itself,
    /// Read, and read again after another file has taken its place.
    Read,
    /// A directory in which files are read.
    ReadBeneath,
    /// Made, written, renamed and removed in its directory.
    WriteBeside,
    /// A directory of our own.
    WriteBeneath,
    /// A socket of somebody else's.
    Connect,
}

/// The table's shorthand: everything but the texts has a usual value.
pub const fn setting(key: &'static str, kind: Kind, default: &'static str) -> Setting {
    Setting {
        key,
        kind,
        default,
        effect: "",
        zero: "",
        who: "",
        required: false,
        path: None,
        file_of: "",
    }
}

impl Setting {
    pub const fn effect(mut self, text: &'static str) -> Self {
        self.effect = text;
        self
    }

    pub const fn zero(mut self, text: &'static str) -> Self {
        self.zero = text;
        self
    }

    pub const fn who(mut self, text: &'static str) -> Self {
        self.who = text;
        self
    }

    pub const fn path(mut self, used: PathUse) -> Self {
        self.path = Some(used);
        self
    }

    pub const fn file_of(mut self, key: &'static str) -> Self {
        self.file_of = key;
        self
    }

    pub const fn required(mut self) -> Self {
        self.required = true;
        self
    }
}

/// What a setting takes. The resolved struct's field has the type named here.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// `bool`.
    Bool,
    /// `String`.
    Text,
    /// [`Secret`]: never shown.
    Secret,
    /// Any integer type that holds the range.
    Integer { min: i64, max: i64 },
    /// `f64`.
    Number { min: f64, max: f64 },
    /// `u64` bytes, written as `64KiB`, `1.5GiB`, `10MB` or a plain number.
    Bytes { min: u64, max: u64 },
    /// [`Duration`], written as `500ms`, `10s`, `5m`, `1h`, `2d` or a plain number of seconds.
    Duration { min: Duration, max: Duration },
    /// An enum whose variants serde knows by these names.
    Choice(&'static [&'static str]),
    /// A `String`, or a type that serde reads from one, that `check` accepts.
    Checked {
        allowed: &'static str,
        check: fn(&str) -> bool,
    },
    /// `Vec<T>`.
    List(&'static Kind),
    /// `BTreeMap<String, T>`.
    Map(&'static Kind),
    /// A struct with these settings as fields.
    Record(&'static [Setting]),
}

impl Kind {
    /// Whether it is one, or made of them.
    pub fn is_secret(&self) -> bool {
        match self {
            Kind::Secret => true,
            Kind::List(item) | Kind::Map(item) => item.is_secret(),
            _ => false,
        }
    }
}

/// A year: the longest time any setting takes.
pub const DURATION_MAX: Duration = Duration::from_secs(365 * 86_400);

/// A value that must not be shown: its `Debug`, `Display` and `Serialize` forms are redacted.
#[derive(Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    pub fn new(value: impl Into<String>) -> Self {
        Self(value.into())
    }

    /// The value itself, for the one place that sends it.
    pub fn expose(&self) -> &str {
        &self.0
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// What may be shown in its place: whether it is set, and the last four characters of a long one, so that
    /// two keys can be told apart.
    pub fn redacted(&self) -> String {
        redact(&self.0)
    }
}

/// See [`Secret::redacted`].
pub fn redact(value: &str) -> String {
    let length = value.chars().count();
    if length == 0 {
        String::new()
    } else if length < 16 {
        "****".to_owned()
    } else {
        format!("****{}", value.chars().skip(length - 4).collect::<String>())
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secret({:?})", self.redacted())
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.redacted())
    }
}

impl Serialize for Secret {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.redacted())
    }
}

/// The settings of one output, resolved.
#[derive(Clone, Debug, PartialEq)]
pub enum OutputSettings {
    /// Answers scrapes at the admin address.
    Prometheus(PrometheusSettings),
    /// Delivers batches.
    Delivered(Delivered),
    /// Passes lines on as they come, from the workers.
    Relay(RelaySettings),
}

/// Settings that start the output they are for.
pub trait Start: fmt::Debug + Send + Sync + 'static {
    /// Starts it on the current tokio runtime.
    fn start(
        &self,
        name: &str,
        expansion: &Arc<Expansion>,
        surroundings: &Surroundings,
    ) -> Result<Delivery, StartError>;
}

/// What an output that delivers batches was configured with.
#[derive(Clone)]
pub struct Delivered {
    /// For comparison alone; never shown, as there may be secrets in it.
    values: serde_json::Value,
    start: Arc<dyn Start>,
}

impl Delivered {
    /// Reads the struct from checked values; `check` looks at settings that depend on each other.
    pub fn load<T: Start + serde::de::DeserializeOwned>(
        values: serde_json::Value,
        check: impl FnOnce(&T) -> Result<(), SettingProblem>,
    ) -> Result<OutputSettings, SettingProblem> {
        let settings: T = from_values(values.clone())?;
        check(&settings)?;
        let start = Arc::new(settings);
        Ok(OutputSettings::Delivered(Self { values, start }))
    }
}

impl PartialEq for Delivered {
    fn eq(&self, other: &Self) -> bool {
        self.values == other.values
    }
}

impl fmt::Debug for Delivered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.start.fmt(f)
    }
}

impl std::ops::Deref for Delivered {
    type Target = dyn Start;

    fn deref(&self) -> &Self::Target {
        &*self.start
    }
}

/// One output that is switched on.
#[derive(Clone, Debug, PartialEq)]
pub struct OutputConfig {
    /// The name in the `outputs:` map, unique; the type's own name unless the operator gave another.
    pub name: String,
    /// The name of its [`OutputType`].
    pub output_type: &'static str,
    pub settings: OutputSettings,
}

/// A setting that is fine alone and wrong beside another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettingProblem {
    /// Relative to the output, such as `compression_level`.
    pub key: String,
    /// What is wrong and what is allowed.
    pub message: String,
}

impl SettingProblem {
    pub fn new(key: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            key: key.into(),
            message: message.into(),
        }
    }
}

/// A kind of output the agent knows.
#[derive(Clone, Copy, Debug)]
pub struct OutputType {
    pub name: &'static str,
    /// One sentence for the configuration page.
    pub summary: &'static str,
    /// On without being mentioned.
    pub on_by_default: bool,
    pub settings: &'static [Setting],
    /// Second spellings from the environment: key relative to the output, variables in order of preference.
    pub environment: &'static [(&'static str, &'static [&'static str])],
    /// Builds the typed settings from values that the table has already checked.
    pub load: fn(serde_json::Value) -> Result<OutputSettings, SettingProblem>,
}

/// Every kind of output there is.
pub const OUTPUT_TYPES: &[OutputType] = &[
    crate::stdout::TYPE,
    prometheus::TYPE,
    datadog::TYPE,
    crate::remote_write::TYPE,
    crate::otlp::TYPE,
    crate::file::TYPE,
    crate::graphite::TYPE,
    crate::relay::TYPE,
];

/// A token makes a header of its own.
pub(crate) fn check_token(token: &Secret, headers: &BTreeMap<String, Secret>) -> Result<(), SettingProblem> {
    let is_set = |name: &String| name.eq_ignore_ascii_case("authorization");
    if !token.is_empty() && headers.keys().any(is_set) {
        let message = "`headers` has Authorization too; only one of them can be";
        return Err(SettingProblem::new("bearer_token", message));
    }
    Ok(())
}

/// Turns checked values into the struct. A failure is a table that disagrees with its struct, which the test
/// below rules out; it is still a value, never a panic.
pub(crate) fn from_values<T: serde::de::DeserializeOwned>(
    values: serde_json::Value,
) -> Result<T, SettingProblem> {
    serde_json::from_value(values).map_err(|error| SettingProblem::new("", error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_never_shown() {
        let secret = Secret::new("0123456789abcdef0123456789abcdef");
        for shown in [
            format!("{secret:?}"),
            format!("{secret}"),
            serde_json::to_string(&secret).unwrap(),
        ] {
            assert!(shown.contains("****cdef"), "{shown}");
            assert!(!shown.contains("0123"), "{shown}");
        }
        assert_eq!(Secret::new("short").redacted(), "****");
        assert_eq!(Secret::default().redacted(), "");
    }
}
