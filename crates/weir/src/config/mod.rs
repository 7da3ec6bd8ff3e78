//! Configuration: what was written, by whom, and what follows from it.
//!
//! [`load`] reads every source, checks each value against the one table of settings and returns typed values
//! ready to use, each with where it came from. Precedence: flag, then environment, then file, then default.
//! All problems are reported together.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};
use weir_output::settings::{Kind, OUTPUT_TYPES, OutputConfig, OutputType, Setting};

mod docs;
pub(crate) mod node;
mod resolve;
mod rules;
mod secrets;
mod table;
mod types;
mod value;

pub use docs::{help, page as documentation};
pub use node::FILE_BYTES_MAX;
pub use resolve::{Aggregation, Config, EolRequired, Listeners, Names, Origin, OriginSources, RateLimits};
pub use rules::{RuleConfig, SUFFIXES_MAX, all_percentiles};
pub use secrets::{SecretFile, Stamp, stamp};
pub use table::{Entry, GROUPS, Group, Live, entries};
pub use types::{Cardinality, Framing, HistogramAggregate, HistogramWeights, LogLevel, Ownership, Sandbox};
pub use value::{hide_password, is_invisible, nearest, show_text};

use node::{Content, Node};
use value::{Checked, Refusal, Separator};

/// Everything that configuration is made from, so that a test or a reload can bring its own.
#[derive(Clone, Debug, Default)]
pub struct Inputs {
    pub file: Option<PathBuf>,
    /// `None` marks a value that is not UTF-8.
    pub environment: BTreeMap<String, Option<String>>,
    /// In the order of the command line.
    pub flags: Vec<Flag>,
    /// What the file held, where it is not to be read again.
    pub text: Option<FileText>,
    /// Whether host names may be resolved; numbers and `localhost` need no name server.
    pub resolve_names: bool,
}

/// A configuration file's bytes, which may hold secrets.
#[derive(Clone, PartialEq, Eq)]
pub struct FileText(Vec<u8>);

impl fmt::Debug for FileText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FileText({} bytes)", self.0.len())
    }
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

/// Where a value came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
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

impl fmt::Display for Source {
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

/// One thing that is wrong: where, which key, and what is allowed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    pub source: Source,
    /// Empty when the problem is not one key's.
    pub key: String,
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match (&self.source, self.key.as_str()) {
            (source, "") => format!("{source}: {}", self.message),
            (Source::Default | Source::Computed(_), key) => format!("{key}: {}", self.message),
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
pub struct Shown {
    pub key: String,
    pub value: String,
    pub source: Source,
    /// Sources that say something else and lost.
    pub overridden: Vec<Source>,
    /// What is in the file that the value names, as far as it may be shown, where a reload reads that again.
    pub content: Option<String>,
    /// Differs where the values do, even if what may be shown of two secrets is the same.
    fingerprint: u64,
}

impl Shown {
    /// The value, and what is in its file.
    fn described(&self) -> String {
        match &self.content {
            None => self.value.clone(),
            Some(content) => format!("{} ({content})", self.value),
        }
    }

    /// Whether the setting switches something on.
    fn is_on(&self) -> bool {
        !matches!(self.value.as_str(), "''" | "[]" | "off" | "false")
    }
}

/// A complete, valid configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct Loaded {
    pub config: Config,
    /// Every value in the order of the table, those of the outputs after the agent's own.
    pub shown: Vec<Shown>,
    /// Things that are allowed and probably not meant.
    pub notes: Vec<String>,
    /// What others may do with the files that this comes from.
    pub warnings: Vec<String>,
    /// Files of keys and tokens, as they were when they were read.
    pub secret_files: Vec<SecretFile>,
    /// What the configuration file held; `None`: there is none.
    pub text: Option<FileText>,
}

impl Loaded {
    /// Keys whose values differ from `before`, with whether a reload applies them.
    pub fn changes(&self, before: &Loaded) -> Vec<Change> {
        let old: BTreeMap<&str, &Shown> = before
            .shown
            .iter()
            .map(|shown| (shown.key.as_str(), shown))
            .collect();
        let new: BTreeMap<&str, &Shown> = self
            .shown
            .iter()
            .map(|shown| (shown.key.as_str(), shown))
            .collect();
        let keys = old.keys().chain(new.keys().filter(|key| !old.contains_key(*key)));
        let value =
            |shown: Option<&&Shown>| shown.map_or_else(|| "(unset)".to_owned(), |shown| shown.described());
        let same = |key: &&&str| match (old.get(**key), new.get(**key)) {
            (Some(old), Some(new)) => {
                (&old.value, &old.content) == (&new.value, &new.content) && old.fingerprint == new.fingerprint
            }
            _ => false,
        };
        let is_on = |key: &str| {
            [&old, &new]
                .iter()
                .all(|map| map.get(key).is_some_and(|shown| shown.is_on()))
        };
        let live = |key: &str| {
            if key.starts_with("outputs.") {
                return true;
            }
            let entry = entries().find(|entry| entry.setting.key == key);
            entry.is_some_and(|entry| match entry.live {
                Live::Yes => true,
                Live::No => false,
                Live::While(other) => is_on(other),
            })
        };
        // Of an output that is switched on or off, that alone is worth saying, and not what each of its settings was or will be.
        let is_switched = |key: &&&str| {
            let known_twice = old.contains_key(**key) && new.contains_key(**key);
            !known_twice && key.starts_with("outputs.") && !key.ends_with(".enabled")
        };
        keys.filter(|key| !same(key) && !is_switched(key))
            .map(|key| Change {
                key: (*key).to_owned(),
                from: value(old.get(key)),
                to: value(new.get(key)),
                live: live(key),
            })
            .collect()
    }
}

/// One difference between two configurations; secrets are redacted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    pub key: String,
    pub from: String,
    pub to: String,
    pub live: bool,
}

/// The texts in a value as it is shown: one, or those of a list or mapping.
pub fn texts(shown: &str) -> Vec<String> {
    fn of(node: Node) -> Vec<String> {
        match node.content {
            Content::Scalar { text, .. } => vec![text],
            Content::List(items) => items.into_iter().flat_map(of).collect(),
            Content::Map(entries) => entries.into_iter().flat_map(|(_, node)| of(node)).collect(),
        }
    }
    node::parse(shown).ok().flatten().map_or_else(Vec::new, of)
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

/// Reads the process's environment. Names that are not UTF-8 cannot be ours.
pub fn environment() -> BTreeMap<String, Option<String>> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok())))
        .collect()
}

/// The configuration file, if a flag or the environment names one.
pub fn file(inputs: &Inputs) -> Option<PathBuf> {
    let from_variable = || {
        let value = inputs.environment.get(FILE_VARIABLE)?.as_ref()?;
        (!value.is_empty()).then(|| PathBuf::from(value))
    };
    inputs.file.clone().or_else(from_variable)
}

/// Reads, checks and resolves everything.
pub fn load(inputs: &Inputs) -> Result<Loaded, Problems> {
    finish(Reader::new(inputs))
}

/// Like [`load`] with nothing but a file of this content, for tests and fuzzing.
pub fn load_content(content: &[u8]) -> Result<Loaded, Problems> {
    let inputs = Inputs::default();
    let mut reader = Reader::new(&inputs);
    let path = PathBuf::from("weir.yaml");
    match entries_of(content) {
        Ok(file) => reader.file = file,
        Err((line, message)) => reader.problem(
            Source::File {
                path: path.clone(),
                line,
            },
            "",
            message,
        ),
    }
    reader.path = path;
    finish(reader)
}

fn finish(mut reader: Reader<'_>) -> Result<Loaded, Problems> {
    let resolve_names = reader.inputs.resolve_names;
    let own = reader.own_settings();
    let outputs = reader.outputs();
    reader.unknown_variables();
    let Reader {
        mut problems,
        shown,
        mut notes,
        file,
        path,
        text,
        secret_files,
        has_secret,
        ..
    } = reader;
    let resolved = match own {
        Some(values) if problems.is_empty() => resolve::resolve(values, outputs, shown, resolve_names),
        _ => Err(Vec::new()),
    };
    let resolved = match resolved {
        Ok((config, shown, more)) => {
            notes.extend(more.into_iter().map(|note| with_line(&file, note)));
            Ok((config, shown))
        }
        Err(more) => Err(more),
    };
    match resolved {
        Ok((config, shown)) if problems.is_empty() => {
            let own = text.is_some().then_some((path.as_path(), has_secret));
            let warnings = warnings(own, &secret_files, &config);
            return Ok(Loaded {
                config,
                shown,
                notes,
                warnings,
                secret_files,
                text,
            });
        }
        Ok(_) => {}
        Err(more) => problems.extend(more.into_iter().map(|problem| at_line(&file, problem))),
    }
    // In the order of the file, what other sources brought after it.
    problems.sort_by_key(|problem| match &problem.source {
        Source::File { line, .. } => *line,
        _ => usize::MAX,
    });
    Err(Problems(problems))
}

/// Of the configuration's `own` file, with whether a secret is in it, and of those of keys and tokens.
fn warnings(own: Option<(&Path, bool)>, secret_files: &[SecretFile], config: &Config) -> Vec<String> {
    let listeners = &config.listeners;
    let tls = listeners.tls.iter().map(|files| (files.key.as_path(), true));
    let kubelet = config.origin.sources.kubelet.iter().flat_map(|kubelet| {
        let key = kubelet.identity.iter().map(|(_, key)| (key.as_path(), true));
        // Every process of a pod may read the token that Kubernetes puts there.
        key.chain([(kubelet.token_file.as_path(), false)])
    });
    let secrets = secret_files.iter().map(|file| (file.path.as_path(), true));
    let files = own.into_iter().chain(secrets).chain(tls).chain(kubelet);
    let mut found: Vec<String> = files
        .flat_map(|(path, is_secret)| secrets::permissions(path, is_secret))
        .collect();
    let mut seen = std::collections::BTreeSet::new();
    found.retain(|warning| seen.insert(warning.clone()));
    found
}

/// Whether a kind of setting takes a node; if not: the line, the part of it, and why.
pub(crate) fn check_node(kind: &Kind, node: &Node) -> Result<(), (usize, String, String)> {
    value::from_node(kind, node)
        .map(drop)
        .map_err(|refusal| (refusal.line, refusal.path, refusal.message))
}

/// The line of the part that a problem inside of a list is about.
fn at_line(file: &[(node::Key, Node)], mut problem: Problem) -> Problem {
    if let Source::File { line, .. } = &mut problem.source
        && let Some(found) = node::line_of_part(file, &problem.key)
    {
        *line = found;
    }
    problem
}

/// A note that begins with the part of the file it is about, and the line of that.
fn with_line(file: &[(node::Key, Node)], note: String) -> String {
    let line = note
        .split_once(": ")
        .and_then(|(path, _)| node::line_of_part(file, path));
    line.map_or(note.clone(), |line| format!("line {line}: {note}"))
}

/// Host and port of a StatsD server, the two halves of the relay's target in the Datadog Agent.
const FORWARD_HOST: &str = "DD_STATSD_FORWARD_HOST";
const FORWARD_PORT: &str = "DD_STATSD_FORWARD_PORT";

/// The relay's target for a host and a port.
pub fn forward_target(host: &str, port: &str) -> Result<String, String> {
    match port.trim().parse::<u16>() {
        Ok(port) if port > 0 && host.contains(':') && !host.starts_with('[') => {
            Ok(format!("udp://[{host}]:{port}"))
        }
        Ok(port) if port > 0 => Ok(format!("udp://{host}:{port}")),
        _ => Err(format!(
            "the port to forward to is {port:?}; must be from 1 to 65535"
        )),
    }
}

/// Whether a list that comes under several second names at once is all of them together.
pub fn adds_up(key: &str) -> bool {
    key == "extra_tags"
}

/// One way a setting was written.
struct Candidate {
    source: Source,
    checked: Result<Checked, Refusal>,
}

/// Lists of several variables as one of all of them, unless one has a fault.
fn added_up(candidates: Vec<Candidate>) -> Vec<Candidate> {
    if candidates.len() < 2 || candidates.iter().any(|candidate| candidate.checked.is_err()) {
        return candidates;
    }
    let told = |candidate: Candidate| match (candidate.source, candidate.checked) {
        (Source::Environment(name), Ok(checked)) => Some((name, checked)),
        _ => None,
    };
    let (names, parts): (Vec<String>, Vec<Checked>) = candidates.into_iter().filter_map(told).unzip();
    vec![Candidate {
        source: Source::Environment(names.join(" and ")),
        checked: Ok(concatenate(parts)),
    }]
}

/// An output that is on or could be.
struct Instance {
    name: String,
    output_type: &'static OutputType,
    entries: Vec<(node::Key, Node)>,
    on: bool,
    /// Who switched it on, unless it is on by default.
    because: Option<Source>,
}

struct Reader<'a> {
    inputs: &'a Inputs,
    path: PathBuf,
    /// The top level of the file.
    file: Vec<(node::Key, Node)>,
    shown: Vec<Shown>,
    problems: Vec<Problem>,
    notes: Vec<String>,
    /// Variables that some setting has as its own.
    known_variables: Vec<String>,
    /// Indexes of flags that some setting took.
    used_flags: Vec<bool>,
    text: Option<FileText>,
    secret_files: Vec<SecretFile>,
    /// The file has one in it.
    has_secret: bool,
}

impl<'a> Reader<'a> {
    fn new(inputs: &'a Inputs) -> Self {
        let path = file(inputs);
        let mut reader = Self {
            inputs,
            path: path.clone().unwrap_or_default(),
            file: Vec::new(),
            shown: Vec::new(),
            problems: Vec::new(),
            notes: Vec::new(),
            known_variables: vec![FILE_VARIABLE.to_owned(), OUTPUT_VARIABLE.to_owned()],
            used_flags: vec![false; inputs.flags.len()],
            text: None,
            secret_files: Vec::new(),
            has_secret: false,
        };
        if let Some(path) = path {
            let text = match &inputs.text {
                Some(text) => Ok(text.clone()),
                None => read_file(&path),
            };
            match text.and_then(|text| Ok((entries_of(&text.0)?, text))) {
                Ok((file, text)) => (reader.file, reader.text) = (file, Some(text)),
                Err((line, message)) => reader.problem(Source::File { path, line }, "", message),
            }
        }
        reader
    }

    fn problem(&mut self, source: Source, key: &str, message: impl Into<String>) {
        self.problems.push(Problem {
            source,
            key: key.to_owned(),
            message: message.into(),
        });
    }

    /// The agent's own settings: each from the first source that has it.
    fn own_settings(&mut self) -> Option<Value> {
        let known = || entries().map(|entry| entry.setting.key).chain(["outputs"]);
        for (key, _) in self.file.clone() {
            if !known().any(|name| name == key.text) {
                let source = Source::File {
                    path: self.path.clone(),
                    line: key.line,
                };
                self.problem(source, "", value::unknown_key(&key.text, known()));
            }
        }
        let mut values = Map::new();
        let mut complete = true;
        for entry in entries() {
            let setting = &entry.setting;
            let node = self
                .file
                .iter()
                .find(|(key, _)| key.text == setting.key)
                .map(|(_, node)| node.clone());
            match self.choose(setting.key, setting, node.as_ref(), entry.second_names) {
                Some(value) => drop(values.insert(setting.key.to_owned(), value)),
                None => complete = false,
            }
        }
        complete.then_some(Value::Object(values))
    }

    /// Takes the strongest of a setting's sources, and reports the wrong ones, the weaker ones included: a file
    /// must not hide a fault behind a variable.
    fn choose(
        &mut self,
        key: &str,
        setting: &Setting,
        node: Option<&Node>,
        second_names: &[&str],
    ) -> Option<Value> {
        let mut candidates = Vec::new();
        candidates.extend(self.flag_candidate(key, &setting.kind));
        candidates.extend(self.variable_candidates(key, &setting.kind, second_names));
        if let Some(node) = node {
            let source = Source::File {
                path: self.path.clone(),
                line: node.line,
            };
            candidates.push(Candidate {
                source,
                checked: value::from_node(&setting.kind, node),
            });
        }
        if candidates.is_empty() {
            candidates.push(Candidate {
                source: Source::Default,
                checked: value::default_of(setting),
            });
        }
        let mut chosen: Option<(Checked, Source)> = None;
        let mut overridden = Vec::new();
        for Candidate { source, checked } in candidates {
            match checked {
                Err(refusal) => {
                    let source = match source {
                        Source::File { path, .. } => Source::File {
                            path,
                            line: refusal.line,
                        },
                        source => source,
                    };
                    self.problem(source, &format!("{key}{}", refusal.path), refusal.message);
                }
                Ok(checked) if chosen.is_none() => chosen = Some((checked, source)),
                Ok(_) => overridden.push(source),
            }
        }
        let (checked, source) = chosen?;
        let is_in_file = matches!(source, Source::File { .. });
        self.has_secret |= is_in_file && setting.kind.is_secret() && !is_empty(Some(&checked.value));
        self.shown.push(Shown {
            fingerprint: fingerprint(&checked.value),
            content: None,
            key: key.to_owned(),
            value: checked.shown,
            source,
            overridden,
        });
        Some(checked.value)
    }

    fn flag_candidate(&mut self, key: &str, kind: &Kind) -> Option<Candidate> {
        let mut texts = Vec::new();
        let mut shown = "";
        for (index, flag) in self.inputs.flags.iter().enumerate() {
            if flag.key == key {
                self.used_flags[index] = true;
                shown = &flag.shown;
                texts.extend(flag.values.iter().map(String::as_str));
            }
        }
        let last = *texts.last()?;
        let checked = match kind {
            Kind::List(_) if texts.len() > 1 => {
                let parts: Result<Vec<_>, _> = texts
                    .iter()
                    .map(|text| value::from_text(kind, text, Separator::Comma))
                    .collect();
                parts.map(concatenate)
            }
            _ => value::from_text(kind, last, Separator::Comma),
        };
        Some(Candidate {
            source: Source::Flag(shown.to_owned()),
            checked,
        })
    }

    fn variable_candidates(&mut self, key: &str, kind: &Kind, second_names: &[&str]) -> Vec<Candidate> {
        let own = variable_of(key);
        self.known_variables.push(own.clone());
        let names = std::iter::once(own.as_str()).chain(second_names.iter().copied());
        let mut candidates: Vec<Candidate> = names
            .filter_map(|name| {
                let checked = self.variable(name, kind)?;
                let source = Source::Environment(name.to_owned());
                Some(Candidate { source, checked })
            })
            .collect();
        if adds_up(key) {
            let has_own = candidates
                .first()
                .is_some_and(|first| first.source == Source::Environment(own));
            let seconds = candidates.split_off(usize::from(has_own));
            candidates.extend(added_up(seconds));
        }
        candidates
    }

    /// What a variable says; `None` without it, or where it is empty: `DD_SITE=${DD_SITE}` in a compose file must not undo what stands
    /// in the configuration file.
    fn variable(&self, name: &str, kind: &Kind) -> Option<Result<Checked, Refusal>> {
        let refused = |message: String| {
            Err(Refusal {
                path: String::new(),
                line: 0,
                message,
            })
        };
        let Some(text) = self.inputs.environment.get(name)? else {
            return Some(refused("is not valid UTF-8".to_owned()));
        };
        if text.is_empty() {
            return None;
        }
        if name != FORWARD_HOST {
            return Some(value::from_text(kind, text, Separator::CommaOrSpace));
        }
        // Half of an address; without the other half nothing is forwarded.
        let port = self.forward_port()?;
        Some(match forward_target(text, port) {
            Ok(target) => value::from_text(kind, &target, Separator::Comma),
            Err(message) => refused(message),
        })
    }

    fn forward_port(&self) -> Option<&str> {
        let port = self.inputs.environment.get(FORWARD_PORT)?.as_deref()?;
        (!port.is_empty() && port != "0").then_some(port)
    }

    /// The outputs that are on.
    fn outputs(&mut self) -> Vec<OutputConfig> {
        let mut instances = self.written_outputs();
        for output_type in OUTPUT_TYPES {
            if !instances.iter().any(|instance| instance.name == output_type.name) {
                let because = self.required_elsewhere(output_type);
                let on = output_type.on_by_default || because.is_some();
                let name = output_type.name.to_owned();
                instances.push(Instance {
                    name,
                    output_type,
                    entries: Vec::new(),
                    on,
                    because,
                });
            }
        }
        for (name, source) in self.named_outputs() {
            match instances.iter_mut().find(|instance| instance.name == name) {
                Some(instance) if instance.on => {}
                Some(instance) => (instance.on, instance.because) = (true, Some(source)),
                None => {
                    let known: Vec<&str> = instances.iter().map(|instance| instance.name.as_str()).collect();
                    let message = format!("{name:?} is not an output; known are {}", known.join(", "));
                    self.problem(source, "", message);
                }
            }
        }
        let mut outputs = Vec::new();
        for instance in &instances {
            outputs.extend(self.output(instance));
        }
        for (index, flag) in self.inputs.flags.iter().enumerate() {
            if !self.used_flags[index] && flag.key != OUTPUT_FLAG_KEY {
                let known: Vec<&str> = self
                    .shown
                    .iter()
                    .map(|shown| shown.key.as_str())
                    .chain(entries().map(|entry| entry.setting.key))
                    .collect();
                let message = value::unknown_key(&flag.key, known.into_iter());
                self.problems.push(Problem {
                    source: Source::Flag(flag.shown.clone()),
                    key: String::new(),
                    message,
                });
            }
        }
        outputs
    }

    /// The `outputs:` map of the file: name, type and settings of each.
    fn written_outputs(&mut self) -> Vec<Instance> {
        let Some((_, node)) = self.file.iter().find(|(key, _)| key.text == "outputs") else {
            return Vec::new();
        };
        let at = |line| Source::File {
            path: self.path.clone(),
            line,
        };
        let mut found = Vec::new();
        let mut problems = Vec::new();
        let mut refuse = |line, key: &str, message: String| {
            problems.push(Problem {
                source: at(line),
                key: key.to_owned(),
                message,
            });
        };
        let entries = match &node.content {
            Content::Map(entries) => entries.as_slice(),
            _ if node.is_null() => &[],
            _ => {
                refuse(
                    node.line,
                    "outputs",
                    format!("is {}; must be a mapping of names to outputs", node.what()),
                );
                &[]
            }
        };
        let types: Vec<&str> = OUTPUT_TYPES.iter().map(|output_type| output_type.name).collect();
        for (key, node) in entries {
            let path = format!("outputs.{}", key.text);
            if key.text.is_empty()
                || !key
                    .text
                    .chars()
                    .all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-')
            {
                refuse(
                    key.line,
                    "outputs",
                    format!("{:?} is not a name of letters, digits, - and _", key.text),
                );
                continue;
            }
            let settings = match &node.content {
                Content::Map(settings) => settings.clone(),
                _ if node.is_null() => Vec::new(),
                _ => {
                    refuse(
                        node.line,
                        &path,
                        format!("is {}; must be a mapping of settings", node.what()),
                    );
                    continue;
                }
            };
            let (line, type_name) = match settings.iter().find(|(setting, _)| setting.text == "type") {
                None => (key.line, key.text.as_str()),
                Some((
                    setting,
                    Node {
                        content: Content::Scalar { text, .. },
                        ..
                    },
                )) => (setting.line, text.as_str()),
                Some((setting, node)) => {
                    refuse(
                        setting.line,
                        &format!("{path}.type"),
                        format!("is {}; must be text", node.what()),
                    );
                    continue;
                }
            };
            match OUTPUT_TYPES
                .iter()
                .find(|output_type| output_type.name == type_name)
            {
                Some(output_type) => {
                    found.push(Instance {
                        name: key.text.clone(),
                        output_type,
                        entries: settings,
                        on: true,
                        because: Some(Source::File {
                            path: self.path.clone(),
                            line: key.line,
                        }),
                    });
                }
                None => {
                    let near = nearest(type_name, types.iter().copied());
                    let hint = near.map_or(String::new(), |near| format!("; did you mean {near:?}?"));
                    let message = format!(
                        "there is no output of type {type_name:?}; known are {}{hint}",
                        types.join(", ")
                    );
                    refuse(line, &path, message);
                }
            }
        }
        self.problems.extend(problems);
        found
    }

    /// Outputs switched on by flag or variable.
    fn named_outputs(&mut self) -> Vec<(String, Source)> {
        let mut named = Vec::new();
        for (index, flag) in self.inputs.flags.iter().enumerate() {
            if flag.key == OUTPUT_FLAG_KEY {
                self.used_flags[index] = true;
                let names = flag.values.iter().flat_map(|value| value.split(','));
                named.extend(names.map(|name| (name.trim().to_owned(), Source::Flag(flag.shown.clone()))));
            }
        }
        if named.is_empty()
            && let Some(Some(text)) = self.inputs.environment.get(OUTPUT_VARIABLE)
        {
            let names = text.split([',', ' ']).filter(|name| !name.is_empty());
            named
                .extend(names.map(|name| (name.to_owned(), Source::Environment(OUTPUT_VARIABLE.to_owned()))));
        }
        named
    }

    /// The variable or flag that sets what the output cannot be without, which switches it on.
    fn required_elsewhere(&self, output_type: &OutputType) -> Option<Source> {
        output_type
            .settings
            .iter()
            .filter(|setting| setting.required || is_file_of_required(output_type, setting))
            .find_map(|setting| {
                let key = format!("outputs.{}.{}", output_type.name, setting.key);
                if let Some(flag) = self.inputs.flags.iter().find(|flag| flag.key == key) {
                    return Some(Source::Flag(flag.shown.clone()));
                }
                let own = variable_of(&key);
                let mut names = std::iter::once(own.as_str())
                    .chain(second_names(output_type, setting.key).iter().copied());
                let is_set = |name: &str| {
                    let value = self.inputs.environment.get(name);
                    value.is_some_and(|value| value.as_deref() != Some(""))
                        && (name != FORWARD_HOST || self.forward_port().is_some())
                };
                names
                    .find(|name| is_set(name))
                    .map(|name| Source::Environment(name.to_owned()))
            })
    }

    fn output(&mut self, instance: &Instance) -> Option<OutputConfig> {
        let Instance {
            name,
            output_type,
            entries,
            on,
            because,
        } = instance;
        let prefix = format!("outputs.{name}");
        let problems_before = self.problems.len();
        let shown_before = self.shown.len();
        let known = || {
            output_type
                .settings
                .iter()
                .map(|setting| setting.key)
                .chain(["enabled", "type"])
        };
        for (key, _) in entries {
            if !known().any(|name| name == key.text) {
                let source = Source::File {
                    path: self.path.clone(),
                    line: key.line,
                };
                self.problem(source, &prefix, value::unknown_key(&key.text, known()));
            }
        }
        let enabled = enabled_setting(*on);
        let node = |key: &str| {
            entries
                .iter()
                .find(|(name, _)| name.text == key)
                .map(|(_, node)| node)
        };
        let enabled = self.choose(&format!("{prefix}.enabled"), &enabled, node("enabled"), &[]);
        if let (Some(shown), Some(because)) = (self.shown.last_mut(), because)
            && enabled.is_some()
            && shown.source == Source::Default
        {
            shown.source = because.clone();
        }
        // Second names belong to the output that has its type's own name; another of the same type has its own.
        let second = |path: &str| {
            if name == output_type.name {
                second_names(output_type, path)
            } else {
                &[]
            }
        };
        let mut values = Map::new();
        let mut complete = true;
        for setting in output_type.settings {
            match self.choose_nested(&prefix, setting.key, setting, node(setting.key), &second) {
                Some(value) => drop(values.insert(setting.key.to_owned(), value)),
                None => complete = false,
            }
        }
        complete &=
            enabled != Some(Value::Bool(true)) || self.read_secrets(&prefix, output_type, &mut values);
        if enabled != Some(Value::Bool(true)) {
            // What is off is checked all the same, but not shown beyond being off.
            self.shown.truncate(shown_before + usize::from(enabled.is_some()));
            return None;
        }
        for setting in output_type.settings.iter().filter(|setting| setting.required) {
            if is_empty(values.get(setting.key)) && complete {
                let key = format!("{prefix}.{}", setting.key);
                let mut names = vec![format!("the variable {}", variable_of(&key))];
                names.extend(second(setting.key).first().map(|name| (*name).to_owned()));
                let file = output_type
                    .settings
                    .iter()
                    .find(|file| file.file_of == setting.key);
                names.extend(file.map(|file| format!("the file that {prefix}.{} names", file.key)));
                let source = match entries.first() {
                    Some((first, _)) => Source::File {
                        path: self.path.clone(),
                        line: first.line,
                    },
                    None => Source::Default,
                };
                let message = format!("is missing; set it in the file or with {}", names.join(" or "));
                self.problem(source, &key, message);
                complete = false;
            }
        }
        if !complete || self.problems.len() > problems_before {
            return None;
        }
        values.retain(|key, _| {
            let setting = output_type.settings.iter().find(|setting| setting.key == key);
            setting.is_none_or(|setting| setting.file_of.is_empty())
        });
        match (output_type.load)(Value::Object(values)) {
            Ok(settings) => Some(OutputConfig {
                name: name.to_owned(),
                output_type: output_type.name,
                settings,
            }),
            Err(problem) => {
                let key = if problem.key.is_empty() {
                    prefix
                } else {
                    format!("{prefix}.{}", problem.key)
                };
                let source = self
                    .shown
                    .iter()
                    .find(|shown| shown.key == key)
                    .map(|shown| shown.source.clone());
                self.problem(source.unwrap_or(Source::Default), &key, problem.message);
                None
            }
        }
    }

    /// Reads the files of an output's keys and tokens, each into the setting it is for. False if that fails.
    fn read_secrets(
        &mut self,
        prefix: &str,
        output_type: &OutputType,
        values: &mut Map<String, Value>,
    ) -> bool {
        let problems_before = self.problems.len();
        for setting in output_type
            .settings
            .iter()
            .filter(|setting| !setting.file_of.is_empty())
        {
            let (Some(paths), Some(written)) =
                (values.get(setting.key).cloned(), values.get_mut(setting.file_of))
            else {
                continue;
            };
            let mut reading = secrets::Reading {
                files: &mut self.secret_files,
                shown: Vec::new(),
            };
            let merged = reading
                .read(&paths)
                .and_then(|read| secrets::merge(written, read.clone()).map(|()| read));
            let content = reading.shown.join(", ");
            let key = format!("{prefix}.{}", setting.key);
            let shown = self.shown.iter_mut().find(|shown| shown.key == key);
            match (merged, shown) {
                (Ok(read), Some(shown)) if !content.is_empty() => {
                    shown.fingerprint = fingerprint(&Value::Array(vec![paths, read]));
                    shown.content = Some(content);
                }
                (Ok(_), _) => {}
                (Err(message), shown) => {
                    let source = shown.map_or(Source::Default, |shown| shown.source.clone());
                    self.problem(source, &key, message);
                }
            }
        }
        self.problems.len() == problems_before
    }

    /// Like [`Reader::choose`], but each part of a record has sources of its own.
    fn choose_nested<'b>(
        &mut self,
        prefix: &str,
        path: &str,
        setting: &Setting,
        node: Option<&Node>,
        second: &dyn Fn(&str) -> &'b [&'b str],
    ) -> Option<Value> {
        let key = format!("{prefix}.{path}");
        let Kind::Record(fields) = setting.kind else {
            return self.choose(&key, setting, node, second(path));
        };
        let entries: &[(node::Key, Node)] = match node {
            Some(Node {
                content: Content::Map(entries),
                ..
            }) => entries,
            Some(node) if !node.is_null() => {
                let source = Source::File {
                    path: self.path.clone(),
                    line: node.line,
                };
                self.problem(
                    source,
                    &key,
                    format!("is {}; must be {}", node.what(), value::allowed(&setting.kind)),
                );
                return None;
            }
            _ => &[],
        };
        for (name, _) in entries {
            if !fields.iter().any(|field| field.key == name.text) {
                let source = Source::File {
                    path: self.path.clone(),
                    line: name.line,
                };
                let known = fields.iter().map(|field| field.key);
                self.problem(source, &key, value::unknown_key(&name.text, known));
            }
        }
        let mut values = Map::new();
        let mut complete = true;
        for field in fields {
            let node = entries
                .iter()
                .find(|(name, _)| name.text == field.key)
                .map(|(_, node)| node);
            match self.choose_nested(prefix, &format!("{path}.{}", field.key), field, node, second) {
                Some(value) => drop(values.insert(field.key.to_owned(), value)),
                None => complete = false,
            }
        }
        complete.then_some(Value::Object(values))
    }

    /// A `WEIR_` variable that means nothing is a typing slip.
    fn unknown_variables(&mut self) {
        for name in self.inputs.environment.keys() {
            if self.known_variables.iter().any(|known| known == name) {
                continue;
            }
            if let Some(rest) = name.strip_prefix("WEIR_") {
                if is_foreign(rest) {
                    continue;
                }
                let near = nearest(name, self.known_variables.iter().map(String::as_str));
                let hint = near.map_or(String::new(), |near| format!("; did you mean {near}?"));
                let message = format!("is not a variable of weir{hint}");
                self.problems.push(Problem {
                    source: Source::Environment(name.clone()),
                    key: String::new(),
                    message,
                });
            } else if is_about_metrics(name) && !is_second_name(name) {
                self.notes.push(format!(
                    "environment {name} is set; weir has no such setting and ignores it"
                ));
            }
        }
        let is_set = |name: &str| {
            let value = self.inputs.environment.get(name);
            value.is_some_and(|value| value.as_deref() != Some(""))
        };
        if is_set(FORWARD_HOST) != self.forward_port().is_some() {
            self.notes.push(format!(
                "environment {FORWARD_HOST} and {FORWARD_PORT} forward nothing unless both are set; the relay output is what they switch on"
            ));
        }
    }
}

/// The setting every output has.
fn enabled_setting(on: bool) -> Setting {
    weir_output::settings::setting("enabled", Kind::Bool, if on { "true" } else { "false" })
        .effect("Whether the output is on. Naming it in the file switches it on.")
}

/// Variables of the client libraries and of their tests, which may run in the same environment as an agent.
const CLIENT_VARIABLES: &[&str] = &["BIN", "EXPECT_NATIVE", "PURE_RUBY"];

/// Variables of others that begin as ours do: what Kubernetes sets for a service called `weir`, and those of the
/// clients, the rig and the tests.
fn is_foreign(rest: &str) -> bool {
    rest == "PORT"
        || CLIENT_VARIABLES.contains(&rest)
        || ["PORT_", "SERVICE_", "BENCH_", "TEST_"]
            .iter()
            .any(|prefix| rest.starts_with(prefix))
        || rest.contains("_PORT_")
        || rest.ends_with("_PORT")
        || rest.ends_with("_SERVICE_HOST")
}

/// Variables of the Datadog Agent that are about metrics and their delivery; those of its other parts, and of clients, are nobody's
/// business here.
fn is_about_metrics(name: &str) -> bool {
    const BEGIN: [&str; 9] = [
        "DD_DOGSTATSD_",
        "DD_STATSD_",
        "DD_FORWARDER_",
        "DD_PROXY_",
        "DD_SERIALIZER_",
        "DD_HISTOGRAM_",
        "DD_AGGREGATOR_",
        "DD_ENABLE_PAYLOADS_",
        "DD_USE_V2_API_",
    ];
    BEGIN.iter().any(|begin| name.starts_with(begin)) || name == "DD_SKIP_SSL_VALIDATION"
}

fn is_second_name(name: &str) -> bool {
    name == FORWARD_PORT
        || entries().any(|entry| entry.second_names.contains(&name))
        || OUTPUT_TYPES
            .iter()
            .flat_map(|output_type| output_type.environment)
            .any(|(_, names)| names.contains(&name))
}

/// Whether what the output cannot be without may come from this setting's file.
fn is_file_of_required(output_type: &OutputType, setting: &Setting) -> bool {
    let of = output_type.settings.iter().find(|of| of.key == setting.file_of);
    of.is_some_and(|of| of.required)
}

fn second_names(output_type: &OutputType, path: &str) -> &'static [&'static str] {
    output_type
        .environment
        .iter()
        .find(|(key, _)| *key == path)
        .map_or(&[], |(_, names)| names)
}

fn fingerprint(value: &Value) -> u64 {
    use std::hash::{BuildHasher as _, RandomState};
    use std::sync::LazyLock;
    // Keyed anew in every process: it must not tell anything about a secret elsewhere.
    static STATE: LazyLock<RandomState> = LazyLock::new(RandomState::new);
    STATE.hash_one(value.to_string())
}

fn is_empty(value: Option<&Value>) -> bool {
    match value {
        None | Some(Value::Null) => true,
        Some(Value::String(text)) => text.is_empty(),
        Some(Value::Array(items)) => items.is_empty(),
        Some(Value::Object(map)) => map.is_empty(),
        Some(_) => false,
    }
}

fn concatenate(parts: Vec<Checked>) -> Checked {
    let mut values = Vec::new();
    let mut shown = Vec::new();
    for part in parts {
        if let Value::Array(items) = part.value {
            values.extend(items);
        }
        let inner = part.shown.trim_start_matches('[').trim_end_matches(']');
        shown.extend((!inner.is_empty()).then(|| inner.to_owned()));
    }
    Checked {
        value: Value::Array(values),
        shown: format!("[{}]", shown.join(", ")),
    }
}

fn read_file(path: &Path) -> Result<FileText, (usize, String)> {
    use std::io::Read as _;
    let failed = |error: std::io::Error| (0, format!("the configuration file cannot be read: {error}"));
    let file = std::fs::File::open(path).map_err(failed)?;
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX as u64 + 1)
        .read_to_end(&mut bytes)
        .map_err(failed)?;
    Ok(FileText(bytes))
}

/// The entries of the file's top level.
fn entries_of(bytes: &[u8]) -> Result<Vec<(node::Key, Node)>, (usize, String)> {
    let text = std::str::from_utf8(bytes).map_err(|error| {
        let valid = &bytes[..error.valid_up_to()];
        let line = 1 + valid.iter().filter(|byte| **byte == b'\n').count();
        (line, "is not valid UTF-8".to_owned())
    })?;
    top_level(text).map_err(|fault| (fault.line, fault.message))
}

fn top_level(text: &str) -> Result<Vec<(node::Key, Node)>, node::Fault> {
    match node::parse(text)? {
        None => Ok(Vec::new()),
        Some(node) if node.is_null() => Ok(Vec::new()),
        Some(Node {
            content: Content::Map(entries),
            ..
        }) => Ok(entries),
        Some(node) => {
            let message = format!(
                "is {}; must be a mapping of settings, such as \"bucket_width: 10s\"",
                node.what()
            );
            Err(node::Fault {
                line: node.line,
                message,
            })
        }
    }
}
