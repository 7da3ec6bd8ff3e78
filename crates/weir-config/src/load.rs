//! From every source to the whole configuration.

use crate::fleet_log::KafkaClient;
use std::collections::BTreeMap;

use crate::host::Host;
use crate::merge::{self, Merge, Role};
use crate::node::{self, Content, Key, Node};
use crate::outputs::{OutputConfig, OutputType};
use crate::reader::{Reader, Section};
use crate::resolve::{Config, Resolver};
use crate::secrets::{Handles, SecretBackend};
use crate::setting::Setting;
use crate::source::{Inputs, Problem, Problems, ShownValue, ValueSource};
use crate::table::{Settings, removed_settings, settings};
use crate::text::Secret;
use crate::value::Typed as _;

/// A complete, valid configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct Loaded<S> {
    pub config: Config<S>,
    /// Every value in the order of the table, those of the outputs after the agent's own.
    pub shown: Vec<ShownValue>,
    /// Things that are allowed and probably not meant.
    pub notes: Vec<String>,
    /// The file has a secret in it.
    pub has_secret: bool,
    /// Secrets by handle.
    pub secrets: BTreeMap<String, Secret>,
}

/// Reads, checks and resolves everything of an agent. All problems are reported together.
pub fn load<S>(
    inputs: &Inputs<'_>,
    types: &'static [OutputType<S>],
    host: &dyn Host,
) -> Result<Loaded<S>, Problems> {
    load_as(Role::Agent, KafkaClient::Missing, inputs, types, host)
}

/// The same for either role. `client`: whether a merge can reach its log.
pub fn load_as<S>(
    role: Role,
    client: KafkaClient,
    inputs: &Inputs<'_>,
    types: &'static [OutputType<S>],
    host: &dyn Host,
) -> Result<Loaded<S>, Problems> {
    let document = document(inputs);
    let (file, error) = match &document {
        Ok(entries) => (entries.as_slice(), None),
        Err(error) => (&[][..], Some(error)),
    };
    let mut reader = Reader::new(role, inputs, host);
    if let Some(error) = error {
        reader.problem(reader.in_file(error.line), "", &*error.message);
    }
    answer_handles(&mut reader, client, file, types);
    let (merge, own, outputs) = written(&mut reader, client, file, types);
    reader.unknown_variables(types);
    reader.variables_of_outputs_that_are_off(types, &outputs);
    let complete = own.filter(|_| reader.problems.is_empty());
    let from = reader.problems.len();
    let from_notes = reader.notes.len();
    let config = complete.map(|own| Resolver(&mut reader).config(own, merge, outputs));
    for problem in &mut reader.problems[from..] {
        at_line(file, problem);
    }
    for note in &mut reader.notes[from_notes..] {
        with_line(file, note);
    }
    let Reader {
        handles,
        problems,
        notes,
        shown,
        ..
    } = &mut reader;
    for Problem { key, message, .. } in problems {
        handles.hide(message, key);
    }
    for note in notes {
        handles.hide(note, "");
    }
    for shown in shown.iter_mut().filter(|shown| handles.keys.contains(&shown.key)) {
        handles.hide(&mut shown.value, &shown.key);
    }
    match config {
        Some(config) if reader.problems.is_empty() => Ok(Loaded {
            config,
            shown: reader.shown,
            notes: reader.notes,
            has_secret: reader.has_secret,
            secrets: reader.handles.secrets(),
        }),
        _ => Err(sorted(reader.problems)),
    }
}

/// A merge's settings, the agent's own, and the outputs.
type Written<S> = (Option<Merge>, Option<Settings>, Vec<OutputConfig<S>>);

fn written<'i, S>(
    reader: &mut Reader<'i>,
    client: KafkaClient,
    file: &'i [(Key, Node)],
    types: &'static [OutputType<S>],
) -> Written<S> {
    let merge = merge_settings(reader, client, file);
    let own = own_settings(reader, file);
    (merge, own, reader.outputs(file, types))
}

/// Asks the machine for the secrets whose handles the sources have.
fn answer_handles<'i, S>(
    reader: &mut Reader<'i>,
    client: KafkaClient,
    file: &'i [(Key, Node)],
    types: &'static [OutputType<S>],
) {
    if !may_have_handles(reader.inputs) {
        return;
    }
    // A first reading finds handles in the values that settings take, and the program.
    let mut first = Reader::new(reader.role, reader.inputs, reader.host);
    written(&mut first, client, file, types);
    let found = std::mem::take(&mut first.handles.found);
    let mut section = Section {
        reader: &mut first,
        prefix: String::new(),
        entries: file,
        names: true,
    };
    let backend = SecretBackend::take(&mut section, &Setting::of::<bool>("", "").flat());
    let Some(backend) = backend.filter(|_| !found.is_empty()) else {
        return;
    };
    match reader.host.secrets(&backend, &found) {
        Ok(answers) => {
            reader.handles = Handles {
                answers,
                ..Handles::default()
            };
        }
        Err(error) => {
            let shown = first.find_shown("secret_backend_command");
            let source = shown.map_or(ValueSource::Default, |shown| shown.source.clone());
            reader.problem(source, "secret_backend_command", error.to_string());
        }
    }
}

fn may_have_handles(inputs: &Inputs<'_>) -> bool {
    const BEGIN: &str = "ENC[";
    let file = inputs.file.and_then(|file| file.content.ok()).unwrap_or_default();
    let variables = inputs.environment.values().flatten();
    let flags = inputs.flags.iter().flat_map(|flag| &flag.values);
    file.windows(BEGIN.len()).any(|part| part == BEGIN.as_bytes())
        || variables.chain(flags).any(|text| text.contains(BEGIN))
}

/// In the order of the file, what other sources brought after it.
fn sorted(mut problems: Vec<Problem>) -> Problems {
    problems.sort_by_key(|problem| match &problem.source {
        ValueSource::File { line, .. } => *line,
        _ => usize::MAX,
    });
    Problems(problems)
}

/// The settings of a merge only.
fn merge_settings<'i>(
    reader: &mut Reader<'i>,
    client: KafkaClient,
    file: &'i [(Key, Node)],
) -> Option<Merge> {
    if reader.role == Role::Agent {
        return None;
    }
    merge::refuse_settings_of_agents(reader, file);
    let mut section = Section {
        reader,
        prefix: String::new(),
        entries: file,
        names: false,
    };
    merge::take(&mut section, client)
}

/// The agent's own settings.
fn own_settings<'i>(reader: &mut Reader<'i>, file: &'i [(Key, Node)]) -> Option<Settings> {
    let mut section = Section {
        reader,
        prefix: String::new(),
        entries: file,
        names: true,
    };
    let role = section.reader.role;
    let known = role.settings().chain(settings()).map(|setting| setting.key);
    let removed: Vec<_> = removed_settings().copied().collect();
    section.refuse_unknown(known.chain(["outputs"]), &removed);
    Settings::take(&mut section)
}

/// The line of the part that a problem inside of a list is about.
fn at_line(file: &[(Key, Node)], problem: &mut Problem) {
    if let ValueSource::File { line, .. } = &mut problem.source
        && let Some(found) = node::line_of_part(file, &problem.key)
    {
        *line = found;
    }
}

/// A note that begins with the part of the file it is about, and the line of that.
fn with_line(file: &[(Key, Node)], note: &mut String) {
    let line = note
        .split_once(": ")
        .and_then(|(path, _)| node::line_of_part(file, path));
    if let Some(line) = line {
        *note = format!("line {line}: {note}");
    }
}

/// The entries of the file's top level.
fn document(inputs: &Inputs<'_>) -> Result<Vec<(Key, Node)>, node::YamlError> {
    let Some(file) = inputs.file else {
        return Ok(Vec::new());
    };
    let bytes = file.content.map_err(|message| node::YamlError {
        line: 0,
        message: message.to_owned(),
    })?;
    let text = std::str::from_utf8(bytes).map_err(|error| {
        let valid = &bytes[..error.valid_up_to()];
        node::YamlError {
            line: 1 + valid.iter().filter(|byte| **byte == b'\n').count(),
            message: "is not valid UTF-8".to_owned(),
        }
    })?;
    top_level(text)
}

fn top_level(text: &str) -> Result<Vec<(Key, Node)>, node::YamlError> {
    match node::parse(text)? {
        None => Ok(Vec::new()),
        Some(node) if node.is_null() => Ok(Vec::new()),
        Some(Node {
            content: Content::Map(entries),
            ..
        }) => Ok(entries),
        Some(node) => Err(node::YamlError {
            line: node.line,
            message: format!(
                "is {}; must be a mapping of settings, such as \"bucket_width: 10s\"",
                node.what()
            ),
        }),
    }
}
