//! The `outputs:` map: which outputs there are, which are on, and their settings.

use std::collections::BTreeMap;
use std::path::Path;

use crate::host::SecretError;
use crate::node::{Content, Key, Node};
use crate::reader::{Reader, Section};
use crate::setting::{RemovedSetting, Setting, leaves};
use crate::source::{OUTPUT_FLAG_KEY, OUTPUT_VARIABLE, ValueSource, variable_of};
use crate::text::{Secret, nearest, unknown_key};
use crate::value::{Typed, entries, entry};
use crate::variables::{FORWARD_HOST, forward_port, is_set};

/// A kind of output the agent knows. `S` is what its settings become.
#[derive(Debug)]
pub struct OutputType<S: 'static> {
    pub name: &'static str,
    /// One sentence for the configuration page.
    pub summary: &'static str,
    /// On without being mentioned.
    pub on_by_default: bool,
    pub settings: &'static [Setting],
    /// Settings that there were: its own, then those of its records.
    pub removed: &'static [&'static [RemovedSetting]],
    /// Reads its settings, by [`Output::read`].
    pub read: fn(&mut Output<'_, '_>) -> Option<S>,
}

/// One output that is switched on.
#[derive(Clone, Debug, PartialEq)]
pub struct OutputConfig<S> {
    /// The name in the `outputs:` map, unique; the type's own name unless the operator gave another.
    pub name: String,
    /// The name of its [`OutputType`].
    pub output_type: &'static str,
    pub settings: S,
}

/// A setting that is fine alone and wrong beside another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettingProblem {
    /// Relative to the output, such as `compression_level`.
    pub key: String,
    /// The error, and the allowed values.
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

/// An output that is on or could be.
struct Instance<'i, S: 'static> {
    name: &'i str,
    output_type: &'static OutputType<S>,
    entries: &'i [(Key, Node)],
    on: bool,
    /// The source that enabled it, unless it is on by default.
    because: Option<ValueSource>,
}

/// Takes the settings of an output's files, each into the setting it is for.
pub struct Files<'o, 'r, 'i>(&'o mut Output<'r, 'i>);

/// An output that is being read.
pub struct Output<'r, 'i> {
    section: Section<'r, 'i>,
    on: bool,
    settings: &'static [Setting],
    problems_before: usize,
}

/// The record of an output's settings is the section itself.
const WHOLE: Setting = Setting::of::<bool>("", "").flat();

impl<'i> Reader<'i> {
    /// The outputs that are on.
    pub(crate) fn outputs<S>(
        &mut self,
        file: &'i [(Key, Node)],
        types: &'static [OutputType<S>],
    ) -> Vec<OutputConfig<S>> {
        let mut instances = self.written(file, types);
        for output_type in types {
            if !instances.iter().any(|instance| instance.name == output_type.name) {
                let because = self.required_elsewhere(output_type);
                instances.push(Instance {
                    name: output_type.name,
                    output_type,
                    entries: &[],
                    on: output_type.on_by_default || because.is_some(),
                    because,
                });
            }
        }
        self.switch_on(&mut instances);
        let found = instances
            .iter()
            .filter_map(|instance| self.output(instance))
            .collect();
        self.unused_flags();
        found
    }

    /// Flags that no setting took.
    fn unused_flags(&mut self) {
        let inputs = self.inputs;
        for (flag, used) in inputs.flags.iter().zip(self.used_flags.clone()) {
            if !used && flag.key != OUTPUT_FLAG_KEY {
                let shown = self.shown.iter().map(|shown| shown.key.as_str());
                let others = self.role.settings().map(|setting| setting.key);
                let message = unknown_key(&flag.key, shown.chain(others));
                self.problem(ValueSource::Flag(flag.shown.clone()), "", message);
            }
        }
    }

    /// The `outputs:` map of the file: name, type and settings of each.
    fn written<S>(
        &mut self,
        file: &'i [(Key, Node)],
        types: &'static [OutputType<S>],
    ) -> Vec<Instance<'i, S>> {
        let Some(node) = entry(file, "outputs") else {
            return Vec::new();
        };
        let Some(outputs) = entries(node) else {
            let message = format!("is {}; must be a mapping of names to outputs", node.what());
            self.problem(self.in_file(node.line), "outputs", message);
            return Vec::new();
        };
        outputs
            .iter()
            .filter_map(|(key, node)| self.written_output(key, node, types))
            .collect()
    }

    fn written_output<S>(
        &mut self,
        key: &'i Key,
        node: &'i Node,
        types: &'static [OutputType<S>],
    ) -> Option<Instance<'i, S>> {
        let path = format!("outputs.{}", key.text);
        let allowed = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        if key.text.is_empty() || !key.text.chars().all(allowed) {
            let message = format!("{:?} is not a name of letters, digits, - and _", key.text);
            self.problem(self.in_file(key.line), "outputs", message);
            return None;
        }
        let Some(entries) = entries(node) else {
            let message = format!("is {}; must be a mapping of settings", node.what());
            self.problem(self.in_file(node.line), &path, message);
            return None;
        };
        Some(Instance {
            name: &key.text,
            output_type: self.type_of(key, entries, types)?,
            entries,
            on: true,
            because: Some(self.in_file(key.line)),
        })
    }

    fn type_of<S>(
        &mut self,
        key: &Key,
        entries: &[(Key, Node)],
        types: &'static [OutputType<S>],
    ) -> Option<&'static OutputType<S>> {
        let path = format!("outputs.{}", key.text);
        let (line, name) = match entries.iter().find(|(setting, _)| setting.text == "type") {
            None => (key.line, &key.text),
            Some((
                setting,
                Node {
                    content: Content::Scalar { text, .. },
                    ..
                },
            )) => (setting.line, text),
            Some((setting, node)) => {
                let message = format!("is {}; must be text", node.what());
                self.problem(self.in_file(setting.line), &format!("{path}.type"), message);
                return None;
            }
        };
        let found = types.iter().find(|output_type| output_type.name == name);
        if found.is_none() {
            let known: Vec<&str> = types.iter().map(|output_type| output_type.name).collect();
            let near = nearest(name, known.iter().copied());
            let hint = near.map_or(String::new(), |near| format!("; did you mean {near:?}?"));
            let known = known.join(", ");
            let message = format!("there is no output of type {name:?}; known are {known}{hint}");
            self.problem(self.in_file(line), &path, message);
        }
        found
    }

    /// Switches on the outputs named by a flag or variable.
    fn switch_on<S>(&mut self, instances: &mut [Instance<'i, S>]) {
        for (name, source) in self.named_outputs() {
            match instances.iter_mut().find(|instance| instance.name == name) {
                Some(instance) if instance.on => {}
                Some(instance) => (instance.on, instance.because) = (true, Some(source)),
                None => {
                    let known: Vec<&str> = instances.iter().map(|instance| instance.name).collect();
                    let message = format!("{name:?} is not an output; known are {}", known.join(", "));
                    self.problem(source, "", message);
                }
            }
        }
    }

    fn named_outputs(&mut self) -> Vec<(String, ValueSource)> {
        let mut named = Vec::new();
        for (used, flag) in self.used_flags.iter_mut().zip(self.inputs.flags) {
            if flag.key == OUTPUT_FLAG_KEY {
                *used = true;
                let names = flag.values.iter().flat_map(|value| value.split(','));
                named.extend(
                    names.map(|name| (name.trim().to_owned(), ValueSource::Flag(flag.shown.clone()))),
                );
            }
        }
        if named.is_empty()
            && let Some(Some(text)) = self.inputs.environment.get(OUTPUT_VARIABLE)
        {
            let names = text.split([',', ' ']).filter(|name| !name.is_empty());
            let source = ValueSource::Environment(OUTPUT_VARIABLE.to_owned());
            named.extend(names.map(|name| (name.to_owned(), source.clone())));
        }
        named
    }

    /// The variable or flag of a required setting, which switches the output on.
    fn required_elsewhere<S>(&self, output_type: &OutputType<S>) -> Option<ValueSource> {
        let settings = output_type.settings;
        let is_required = |key: &str| {
            settings
                .iter()
                .any(|setting| setting.required && setting.key == key)
        };
        let mut wanted = settings
            .iter()
            .filter(|setting| setting.required || is_required(setting.file_of));
        wanted.find_map(|setting| {
            self.set_elsewhere(&format!("outputs.{}.{}", output_type.name, setting.key), setting)
        })
    }

    fn set_elsewhere(&self, key: &str, setting: &Setting) -> Option<ValueSource> {
        if let Some(flag) = self.inputs.flags.iter().find(|flag| flag.key == key) {
            return Some(ValueSource::Flag(flag.shown.clone()));
        }
        let own = variable_of(key);
        let mut names = std::iter::once(own.as_str()).chain(setting.also.iter().copied());
        let counts = |name: &&str| {
            is_set(self.inputs, name) && (*name != FORWARD_HOST || forward_port(self.inputs).is_some())
        };
        names
            .find(counts)
            .map(|name| ValueSource::Environment(name.to_owned()))
    }

    fn output<S>(&mut self, instance: &Instance<'i, S>) -> Option<OutputConfig<S>> {
        let Instance {
            name,
            output_type,
            entries,
            ..
        } = instance;
        let problems_before = self.problems.len();
        let shown_before = self.shown.len();
        let mut section = Section {
            reader: self,
            prefix: format!("outputs.{name}"),
            entries,
            // If there are several of one type, they apply to the one with the type's own name.
            names: *name == output_type.name,
        };
        let known = output_type.settings.iter().map(|setting| setting.key);
        let removed = output_type.removed.first().copied().unwrap_or_default();
        section.refuse_unknown(known.chain(["enabled", "type"]), removed);
        let enabled = section.enabled(instance.on, instance.because.as_ref());
        let on = enabled == Some(true);
        let settings = (output_type.read)(&mut Output {
            section,
            on,
            settings: output_type.settings,
            problems_before,
        });
        if !on {
            // A disabled output is checked, but only the fact that it is off is shown.
            self.shown.truncate(shown_before + usize::from(enabled.is_some()));
        }
        Some(OutputConfig {
            name: (*name).to_owned(),
            output_type: output_type.name,
            settings: settings.filter(|_| on)?,
        })
    }
}

/// The setting every output has.
fn enabled_setting(on: bool) -> Setting {
    Setting::of::<bool>("enabled", if on { "true" } else { "false" })
}

impl Section<'_, '_> {
    fn enabled(&mut self, on: bool, because: Option<&ValueSource>) -> Option<bool> {
        let enabled = self.choose(&enabled_setting(on))?;
        if let (Some(shown), Some(because)) = (self.reader.shown.last_mut(), because)
            && shown.source == ValueSource::Default
        {
            shown.source = because.clone();
        }
        Some(enabled)
    }
}

impl<'r, 'i> Output<'r, 'i> {
    /// Reads every setting, then what is in the files they name, then looks at what depends on each other. `None` where the output is
    /// off, and where something is wrong, which was reported.
    pub fn read<T: Typed>(
        &mut self,
        files: fn(&mut T, &mut Files<'_, 'r, 'i>),
        check: fn(&T) -> Result<(), SettingProblem>,
    ) -> Option<T> {
        let mut settings = T::take(&mut self.section, &WHOLE)?;
        if !self.on {
            return None;
        }
        let before = self.section.reader.problems.len();
        files(&mut settings, &mut Files(self));
        if self.section.reader.problems.len() == before {
            self.require();
        }
        if self.section.reader.problems.len() > self.problems_before {
            return None;
        }
        if let Err(SettingProblem { key, message }) = check(&settings) {
            self.section.reader.blame(&self.key(&key), message);
            return None;
        }
        Some(settings)
    }

    fn key(&self, key: &str) -> String {
        match key {
            "" => self.section.prefix.clone(),
            _ => format!("{}.{key}", self.section.prefix),
        }
    }

    /// Reports missing required settings.
    fn require(&mut self) {
        for setting in self.settings.iter().filter(|setting| setting.required) {
            let file = self.settings.iter().find(|file| file.file_of == setting.key);
            let is_set = |of: &Setting| {
                let key = self.key(of.key);
                self.section
                    .reader
                    .shown
                    .iter()
                    .any(|shown| shown.key == key && !shown.is_empty())
            };
            if is_set(setting) || file.is_some_and(is_set) {
                continue;
            }
            let mut names = vec![format!("the variable {}", variable_of(&self.key(setting.key)))];
            names.extend(
                setting
                    .also
                    .iter()
                    .take(usize::from(self.section.names))
                    .map(|name| (*name).to_owned()),
            );
            names.extend(file.map(|file| format!("the file that {} names", self.key(file.key))));
            let message = format!("is missing; set it in the file or with {}", names.join(" or "));
            let source = match self.section.entries.first() {
                Some((first, _)) => self.section.reader.in_file(first.line),
                None => ValueSource::Default,
            };
            self.section
                .reader
                .problem(source, &self.key(setting.key), message);
        }
    }
}

impl<'i> Reader<'i> {
    /// Reads files that settings below a key name which is no output.
    pub(crate) fn files_below(&mut self, key: &str, read: &mut dyn FnMut(&mut Files<'_, '_, 'i>)) {
        let problems_before = self.problems.len();
        let section = Section {
            reader: self,
            prefix: key.to_owned(),
            entries: &[],
            names: false,
        };
        read(&mut Files(&mut Output {
            section,
            on: true,
            settings: &[],
            problems_before,
        }));
    }
}

impl Files<'_, '_, '_> {
    /// Reads the files that the setting `key` names into the setting it is for.
    pub fn read<T: FromFiles>(&mut self, key: &str, into: &mut T, paths: &T::Paths) {
        let key = self.0.key(key);
        let reader = &mut *self.0.section.reader;
        let (host, mut contents) = (reader.host, Vec::new());
        let merged = into.merge(paths, &mut |path| {
            let secret = host.secret(Path::new(path))?;
            contents.push(secret.clone());
            Ok(secret)
        });
        if let Err(error) = merged {
            reader.blame(&key, error.to_string());
        } else if let Some(shown) = reader.find_shown(&key).filter(|_| !contents.is_empty()) {
            let redacted: Vec<String> = contents.iter().map(Secret::redacted).collect();
            shown.content = Some(redacted.join(", "));
            let exposed = contents.iter().map(Secret::expose);
            shown.fingerprint ^= crate::node::fingerprint(exposed);
        }
    }
}

/// A setting whose secrets may be in files.
pub trait FromFiles {
    /// The setting that names the files.
    type Paths;

    /// Adds the secrets of files to those that are written in the configuration. Fails where both name the same.
    fn merge(
        &mut self,
        paths: &Self::Paths,
        read: &mut dyn FnMut(&str) -> Result<Secret, SecretError>,
    ) -> Result<(), SecretError>;

    /// Whether it can hold entries of files beside written ones.
    const IS_LIST: bool = false;
}

impl FromFiles for Secret {
    type Paths = String;

    fn merge(
        &mut self,
        path: &String,
        read: &mut dyn FnMut(&str) -> Result<Secret, SecretError>,
    ) -> Result<(), SecretError> {
        if path.is_empty() {
            return Ok(());
        }
        let secret = read(path)?;
        if !self.is_empty() {
            return Err(SecretError::SetTwice);
        }
        *self = secret;
        Ok(())
    }
}

impl FromFiles for Vec<Secret> {
    type Paths = Vec<String>;

    fn merge(
        &mut self,
        paths: &Vec<String>,
        read: &mut dyn FnMut(&str) -> Result<Secret, SecretError>,
    ) -> Result<(), SecretError> {
        for path in paths {
            self.push(read(path)?);
        }
        Ok(())
    }

    const IS_LIST: bool = true;
}

impl<T: FromFiles + Default> FromFiles for BTreeMap<String, T> {
    type Paths = BTreeMap<String, T::Paths>;

    fn merge(
        &mut self,
        paths: &Self::Paths,
        read: &mut dyn FnMut(&str) -> Result<Secret, SecretError>,
    ) -> Result<(), SecretError> {
        for (key, paths) in paths {
            let known = self.keys().find(|known| known.eq_ignore_ascii_case(key)).cloned();
            if known.is_some() && !T::IS_LIST {
                return Err(SecretError::EntrySetTwice(key.clone()));
            }
            let into = self.entry(known.unwrap_or_else(|| key.clone())).or_default();
            into.merge(paths, read)?;
        }
        Ok(())
    }
}

/// Variables of the Datadog Agent that lead to a setting of an output, with its path there.
pub fn output_setting<S>(
    types: &'static [OutputType<S>],
    variable: &str,
) -> Option<(&'static OutputType<S>, String, &'static Setting)> {
    types.iter().find_map(|output_type| {
        let mut leaves = leaves(output_type.settings).into_iter();
        let leaf = leaves.find(|leaf| leaf.also.contains(&variable))?;
        Some((output_type, leaf.path, leaf.setting))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every file holds its own name.
    fn merge<T: FromFiles>(into: &mut T, paths: &T::Paths) -> Result<(), SecretError> {
        into.merge(paths, &mut |path| match path {
            "none" => Err(SecretError::Wrong {
                path: path.into(),
                wrong: "does not exist",
            }),
            _ => Ok(Secret::new(path)),
        })
    }

    #[test]
    fn a_secret_is_written_or_in_a_file_and_not_both() {
        for (written, path, expected) in [
            ("", "a", Some("a")),
            ("a", "", Some("a")),
            ("", "", Some("")),
            ("a", "b", None),
            ("", "none", None),
        ] {
            let mut secret = Secret::new(written);
            let result = merge(&mut secret, &path.to_owned());
            assert_eq!(
                result.ok().map(|()| secret.expose()),
                expected,
                "{written} {path}"
            );
        }
    }

    #[test]
    fn secrets_of_mappings_are_merged_by_key() {
        let map = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
            pairs
                .iter()
                .map(|(key, value)| ((*key).into(), (*value).into()))
                .collect()
        };
        let secrets = |pairs: &[(&str, &str)]| -> BTreeMap<String, Secret> {
            map(pairs)
                .into_iter()
                .map(|(key, value)| (key, Secret::new(value)))
                .collect()
        };
        let mut headers = secrets(&[("A", "1")]);
        merge(&mut headers, &map(&[("b", "2")])).unwrap();
        assert_eq!(headers, secrets(&[("A", "1"), ("b", "2")]));
        let error = merge(&mut headers, &map(&[("a", "2")])).unwrap_err().to_string();
        assert!(error.contains("\"a\" is set without a file too"), "{error}");

        let mut lists = BTreeMap::from([("u".to_owned(), vec![Secret::new("1")])]);
        let paths = BTreeMap::from([
            ("u".to_owned(), vec!["2".to_owned()]),
            ("v".to_owned(), vec!["3".to_owned()]),
        ]);
        merge(&mut lists, &paths).unwrap();
        assert_eq!(lists["u"], [Secret::new("1"), Secret::new("2")]);
        assert_eq!(lists["v"], [Secret::new("3")]);
    }
}
