//! Takes each setting from the strongest of its sources: flag, environment, file, default.

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use crate::host::Host;
use crate::merge::Role;
use crate::node::{Content, Key, Node};
use crate::secrets::{Handles, handle_in, is_of_backend};
use crate::setting::{RemovedSetting, Setting, SettingType};
use crate::source::{FILE_VARIABLE, Inputs, OUTPUT_VARIABLE, Problem, ShownValue, ValueSource, variable_of};
use crate::text::unknown_key;
use crate::value::{Separator, SettingError, Typed, default_of, entries, entry, list, node_of};
use crate::variables::{self, FORWARD_HOST};

/// The values found in the sources.
pub struct Reader<'i> {
    pub(crate) role: Role,
    pub(crate) inputs: &'i Inputs<'i>,
    pub(crate) host: &'i dyn Host,
    pub(crate) path: PathBuf,
    pub(crate) shown: Vec<ShownValue>,
    pub(crate) problems: Vec<Problem>,
    pub(crate) notes: Vec<String>,
    /// Variables that some setting has as its own.
    pub(crate) known_variables: Vec<String>,
    /// Indexes of flags that some setting took.
    pub(crate) used_flags: Vec<bool>,
    /// The file has a secret in it.
    pub(crate) has_secret: bool,
    /// Handles of secrets in values.
    pub(crate) handles: Handles,
}

impl<'i> Reader<'i> {
    pub(crate) fn new(role: Role, inputs: &'i Inputs<'i>, host: &'i dyn Host) -> Self {
        Self {
            role,
            inputs,
            host,
            path: inputs.file.map_or(Path::new(""), |file| file.path).to_owned(),
            shown: Vec::new(),
            problems: Vec::new(),
            notes: Vec::new(),
            known_variables: vec![FILE_VARIABLE.to_owned(), OUTPUT_VARIABLE.to_owned()],
            used_flags: vec![false; inputs.flags.len()],
            has_secret: false,
            handles: Handles::default(),
        }
    }

    pub(crate) fn in_file(&self, line: usize) -> ValueSource {
        ValueSource::File {
            path: self.path.clone(),
            line,
        }
    }

    pub(crate) fn problem(&mut self, source: ValueSource, key: &str, message: impl Into<String>) {
        self.problems.push(Problem {
            source,
            key: key.to_owned(),
            message: message.into(),
        });
    }

    pub(crate) fn find_shown(&mut self, key: &str) -> Option<&mut ShownValue> {
        self.shown.iter_mut().find(|shown| shown.key == key)
    }

    /// Blames the source that the value came from.
    pub(crate) fn blame(&mut self, key: &str, message: impl Into<String>) {
        // An error inside a list: `rules[2].match` came from where `rules` came from.
        let whole = key.split_once('[').map_or(key, |(whole, _)| whole);
        let shown = self
            .shown
            .iter()
            .find(|shown| shown.key == key || shown.key == whole);
        let source = shown.map_or(ValueSource::Default, |shown| shown.source.clone());
        self.problem(source, key, message);
    }

    fn flag(&mut self, key: &str, kind: &SettingType) -> Option<Candidate<'i>> {
        let mut found = Vec::new();
        for (used, flag) in self.used_flags.iter_mut().zip(self.inputs.flags) {
            if flag.key == key {
                *used = true;
                found.extend(flag.values.iter().map(|text| (&flag.shown, text)));
            }
        }
        let (shown, last) = found.last()?;
        let node = match kind {
            SettingType::List(_) if found.len() > 1 => {
                let nodes = found
                    .iter()
                    .map(|(_, text)| node_of(kind, text, Separator::Comma));
                nodes.collect::<Result<Vec<_>, _>>().map(concatenated)
            }
            _ => node_of(kind, last, Separator::Comma),
        };
        Some(Candidate {
            source: ValueSource::Flag((*shown).clone()),
            node: node.map(Cow::Owned),
            has_handle: false,
        })
    }

    fn variables(&mut self, key: &str, setting: &Setting, also: &[&str]) -> Vec<Candidate<'i>> {
        let own = variable_of(key);
        let mut found: Vec<_> = self.variable(&own, &setting.kind).into_iter().collect();
        let also = also
            .iter()
            .filter_map(|name| self.variable(name, &setting.kind))
            .collect();
        found.extend(if variables::adds_up(key) {
            added_up(also)
        } else {
            also
        });
        self.known_variables.push(own);
        found
    }

    /// The value of a variable; `None` if it is missing or empty: `DD_SITE=${DD_SITE}` in a compose file must not override the
    /// configuration file.
    fn variable(&self, name: &str, kind: &SettingType) -> Option<Candidate<'i>> {
        let node = match self.inputs.environment.get(name)? {
            None => Err(SettingError::new(0, "is not valid UTF-8")),
            Some(text) if variables::unquoted(text).is_empty() => return None,
            // Half of an address; without the other half nothing is forwarded.
            Some(host) if name == FORWARD_HOST => {
                let target = variables::forward_target(host, variables::forward_port(self.inputs)?);
                let target = target.map_err(|error| SettingError::new(0, error.to_string()));
                target.and_then(|target| node_of(kind, &target, Separator::Comma))
            }
            Some(text) => variables::in_our_words(name, variables::unquoted(text))
                .map_err(|error| SettingError::new(0, error.to_string()))
                .and_then(|text| node_of(kind, &text, Separator::CommaOrSpace)),
        };
        Some(Candidate {
            source: ValueSource::Environment(name.to_owned()),
            node: node.map(Cow::Owned),
            has_handle: false,
        })
    }

    /// Reports keys that were removed, wherever they are set.
    pub(crate) fn report_removed(&mut self, prefix: &str, removed: &[RemovedSetting]) {
        for removed in removed {
            let key = below(prefix, removed.key);
            let variable = variable_of(&key);
            let message = format!("was removed: {}", removed.why);
            if variables::is_set(self.inputs, &variable) {
                self.problem(ValueSource::Environment(variable.clone()), &key, &*message);
            }
            self.known_variables.push(variable);
            let inputs = self.inputs;
            for (at, flag) in inputs
                .flags
                .iter()
                .enumerate()
                .filter(|(_, flag)| flag.key == key)
            {
                self.used_flags[at] = true;
                self.problem(ValueSource::Flag(flag.shown.clone()), &key, &*message);
            }
        }
    }
}

pub(crate) fn below(prefix: &str, key: &str) -> String {
    match prefix {
        "" => key.to_owned(),
        _ => format!("{prefix}.{key}"),
    }
}

/// One way a setting was written.
struct Candidate<'i> {
    source: ValueSource,
    node: Result<Cow<'i, Node>, SettingError>,
    /// A secret stands in it in place of a handle.
    has_handle: bool,
}

impl Candidate<'_> {
    /// Puts secrets in place of handles.
    fn reveal(&mut self, setting: &Setting, handles: &mut Handles) {
        let Ok(node) = &mut self.node else { return };
        if !node.texts().into_iter().any(|text| handle_in(text).is_some()) {
            return;
        }
        if setting.path.is_some() || is_of_backend(setting.key) {
            let message = "must be written as it is, not as a handle of a secret";
            self.node = Err(SettingError::new(node.line, message));
            return;
        }
        match handles.reveal(node.to_mut()) {
            Ok(found) => self.has_handle = found,
            Err(error) => self.node = Err(error),
        }
    }
}

fn concatenated(lists: Vec<Node>) -> Node {
    let items = |node: Node| match node.content {
        Content::List(items) => items,
        _ => vec![node],
    };
    list(lists.into_iter().flat_map(items).collect())
}

/// Lists of several variables as one, unless one has an error.
fn added_up(candidates: Vec<Candidate<'_>>) -> Vec<Candidate<'_>> {
    if candidates.len() < 2 || candidates.iter().any(|candidate| candidate.node.is_err()) {
        return candidates;
    }
    let (mut names, mut lists) = (Vec::new(), Vec::new());
    for candidate in candidates {
        if let (ValueSource::Environment(name), Ok(node)) = (candidate.source, candidate.node) {
            names.push(name);
            lists.push(node.into_owned());
        }
    }
    vec![Candidate {
        source: ValueSource::Environment(names.join(" and ")),
        node: Ok(Cow::Owned(concatenated(lists))),
        has_handle: false,
    }]
}

/// A part of the configuration: the agent's own settings, an output, a record in one.
pub struct Section<'r, 'i> {
    pub(crate) reader: &'r mut Reader<'i>,
    /// Its own key; empty for the whole.
    pub(crate) prefix: String,
    /// The entries of the file.
    pub(crate) entries: &'i [(Key, Node)],
    /// Variables of the Datadog Agent are meant for it.
    pub(crate) names: bool,
}

impl<'i> Section<'_, 'i> {
    /// Takes the strongest of a setting's sources, and reports the wrong ones, the weaker ones included: a file
    /// must not hide an error behind a variable.
    pub fn choose<T: Typed>(&mut self, setting: &Setting) -> Option<T> {
        let key = below(&self.prefix, setting.key);
        if self.reader.role.skips(&key) {
            self.reader.known_variables.push(variable_of(&key));
            let node = default_of(setting).ok()?;
            return T::read(&setting.kind, &node).ok().map(|(value, _)| value);
        }
        let mut chosen = None;
        let mut overridden = Vec::new();
        for candidate in self.candidates(&key, setting) {
            let Candidate {
                source,
                node,
                has_handle,
            } = candidate;
            if has_handle {
                self.reader.handles.keys.insert(key.clone());
            }
            let read = node.and_then(|node| Ok((T::read(&setting.kind, &node)?, node)));
            match read {
                Err(refusal) => self.refuse(&key, source, refusal),
                Ok((read, node)) if chosen.is_none() => chosen = Some((read, node, source, has_handle)),
                Ok(_) => overridden.push(source),
            }
        }
        let ((value, shown), node, source, has_handle) = chosen?;
        self.show(
            setting,
            (&node, has_handle),
            ShownValue {
                key,
                value: shown,
                source,
                overridden,
                content: None,
                fingerprint: 0,
            },
        );
        Some(value)
    }

    fn candidates(&mut self, key: &str, setting: &Setting) -> Vec<Candidate<'i>> {
        let mut found: Vec<_> = self.reader.flag(key, &setting.kind).into_iter().collect();
        let also = if self.names { setting.also } else { &[] };
        found.extend(self.reader.variables(key, setting, also));
        found.extend(entry(self.entries, setting.key).map(|node| Candidate {
            source: self.reader.in_file(node.line),
            node: Ok(Cow::Borrowed(node)),
            has_handle: false,
        }));
        if found.is_empty() {
            found.push(Candidate {
                source: ValueSource::Default,
                node: default_of(&self.reader.role.version_of(setting)).map(Cow::Owned),
                has_handle: false,
            });
        }
        for candidate in &mut found {
            candidate.reveal(setting, &mut self.reader.handles);
        }
        found
    }

    fn refuse(&mut self, key: &str, source: ValueSource, refusal: SettingError) {
        let source = match source {
            ValueSource::File { path, .. } => ValueSource::File {
                path,
                line: refusal.line,
            },
            source => source,
        };
        self.reader
            .problem(source, &format!("{key}{}", refusal.path), refusal.message);
    }

    /// The node comes with whether there was a handle in it.
    fn show(&mut self, setting: &Setting, (node, has_handle): (&Node, bool), mut shown: ShownValue) {
        if setting.kind.hides() || has_handle {
            shown.fingerprint = node.fingerprint();
        }
        let is_in_file = matches!(shown.source, ValueSource::File { .. });
        self.reader.has_secret |= is_in_file && !has_handle && setting.kind.is_secret() && !shown.is_empty();
        self.reader.shown.push(shown);
    }

    /// The section of a record. `None`: the value is not a mapping, and the error was reported.
    pub fn within(
        &mut self,
        setting: &Setting,
        settings: &[Setting],
        removed: &[RemovedSetting],
    ) -> Option<Section<'_, 'i>> {
        let (prefix, entries, names) = if setting.flat {
            (self.prefix.clone(), self.entries, self.names)
        } else {
            let key = below(&self.prefix, setting.key);
            let entries = self.entries_below(&key, setting)?;
            (key, entries, self.names && setting.names_below)
        };
        let is_flat = setting.flat;
        let mut inner = Section {
            reader: self.reader,
            prefix,
            entries,
            names,
        };
        if !is_flat {
            let known = settings.iter().map(|setting| setting.key);
            inner.refuse_unknown(known, removed);
        }
        Some(inner)
    }

    fn entries_below(&mut self, key: &str, setting: &Setting) -> Option<&'i [(Key, Node)]> {
        let Some(node) = entry(self.entries, setting.key) else {
            return Some(&[]);
        };
        let found = entries(node);
        if found.is_none() {
            let message = format!("is {}; must be {}", node.what(), setting.kind.allowed());
            self.reader.problem(self.reader.in_file(node.line), key, message);
        }
        found
    }

    /// Reports keys of the file that are no settings.
    pub(crate) fn refuse_unknown<'k>(
        &mut self,
        known: impl Iterator<Item = &'k str> + Clone,
        removed: &[RemovedSetting],
    ) {
        self.reader.report_removed(&self.prefix, removed);
        for (key, _) in self.entries {
            if known.clone().any(|name| name == key.text) {
                continue;
            }
            let source = self.reader.in_file(key.line);
            match removed.iter().find(|removed| removed.key == key.text) {
                Some(removed) => {
                    let key = below(&self.prefix, removed.key);
                    self.reader
                        .problem(source, &key, format!("was removed: {}", removed.why));
                }
                None => self
                    .reader
                    .problem(source, &self.prefix, unknown_key(&key.text, known.clone())),
            }
        }
    }
}
