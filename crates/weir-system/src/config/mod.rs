//! Configuration of the process: reads the files, gathers facts about the machine, and calls [`weir_config`].

use std::collections::BTreeMap;
use std::fmt;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use weir_config::{File, Flag, Problems, Role, Secret, ShownValue};
use weir_output::settings::{OUTPUT_TYPES, OutputSettings};

mod backend;
mod machine;
mod secrets;

pub use machine::tls_files;
pub use secrets::{SecretFile, Stamp, stamp};

use machine::Machine;

/// The warning of a reload that may not ask for secrets.
const KEPT_SECRETS: &str =
    "secrets stay as they were at the start: the sandbox forbids to run secret_backend_command again";

/// The whole configuration, typed and ready to use.
pub type Config = weir_config::Config<OutputSettings>;

/// All sources of the configuration, so that a test or a reload can replace them.
#[derive(Clone, Debug, Default)]
pub struct Inputs {
    pub file: Option<PathBuf>,
    /// `None` marks a value that is not UTF-8.
    pub environment: BTreeMap<String, Option<String>>,
    /// In the order of the command line.
    pub flags: Vec<Flag>,
    /// The content of the file, if it must not be read again.
    pub text: Option<FileText>,
    /// Whether host names may be resolved; numbers and `localhost` need no name server.
    pub resolve_names: bool,
    /// Whether `secret_backend_command` runs. Without it, handles of secrets stay as they are.
    pub run_secret_backend: bool,
    /// Secrets of the last reading by handle, for a reload that may not run the program.
    pub known_secrets: BTreeMap<String, Secret>,
    /// The kind of process.
    pub role: Role,
}

/// A configuration file's bytes, which may hold secrets.
#[derive(Clone, PartialEq, Eq)]
pub struct FileText(Vec<u8>);

impl fmt::Debug for FileText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FileText({} bytes)", self.0.len())
    }
}

/// A complete, valid configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct Loaded {
    pub config: Config,
    /// Every value in the order of the table, then those of the outputs.
    pub shown: Vec<ShownValue>,
    /// Remarks about valid settings that are probably mistakes.
    pub notes: Vec<String>,
    /// Excessive permissions of the configuration's files.
    pub warnings: Vec<String>,
    /// Key and token files, with the stamps of when they were read.
    pub secret_files: Vec<SecretFile>,
    /// Secrets that `secret_backend_command` gave, by handle.
    pub secrets: BTreeMap<String, Secret>,
    /// Content of the configuration file; `None` without one.
    pub text: Option<FileText>,
}

impl Loaded {
    /// Keys whose values differ from `before`, and whether a reload applies them.
    pub fn changes(&self, before: &Loaded) -> Vec<weir_config::Change> {
        weir_config::changes(&before.shown, &self.shown)
    }
}

/// Reads the environment of the process. Names that are not UTF-8 cannot be weir's.
pub fn environment() -> BTreeMap<String, Option<String>> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok())))
        .collect()
}

/// The configuration file, if a flag or the environment names one.
pub fn file(inputs: &Inputs) -> Option<PathBuf> {
    let from_variable = || {
        let value = inputs.environment.get(weir_config::FILE_VARIABLE)?.as_ref()?;
        (!value.is_empty()).then(|| PathBuf::from(value))
    };
    inputs.file.clone().or_else(from_variable)
}

/// Reads, checks and resolves everything.
pub fn load(inputs: &Inputs) -> Result<Loaded, Problems> {
    let path = file(inputs);
    let text = match (&path, &inputs.text) {
        (None, _) => None,
        (Some(_), Some(text)) => Some(Ok(text.clone())),
        (Some(path), None) => Some(read_file(path)),
    };
    load_from(inputs, path.as_deref(), text)
}

/// [`load`] with a file of this content and no other source, for tests and fuzzing.
pub fn load_content(content: &[u8]) -> Result<Loaded, Problems> {
    let text = FileText(content.to_vec());
    load_from(&Inputs::default(), Some(Path::new("weir.yaml")), Some(Ok(text)))
}

fn load_from(
    inputs: &Inputs,
    path: Option<&Path>,
    text: Option<Result<FileText, Unreadable>>,
) -> Result<Loaded, Problems> {
    let unreadable = text.as_ref().and_then(|text| text.as_ref().err());
    let unreadable = unreadable.map(ToString::to_string);
    let content = text.as_ref().map(|text| match (text, &unreadable) {
        (Ok(text), _) => Ok(text.0.as_slice()),
        (Err(_), reason) => Err(reason.as_deref().unwrap_or_default()),
    });
    let sources = weir_config::Inputs {
        file: path.zip(content).map(|(path, content)| File { path, content }),
        environment: &inputs.environment,
        flags: &inputs.flags,
    };
    let machine = Machine::new(inputs);
    let loaded = weir_config::load_as(
        inputs.role,
        weir_output::kafka::CLIENT,
        &sources,
        OUTPUT_TYPES,
        &machine,
    )?;
    let kept = machine.kept_secrets();
    let secret_files = machine.secret_files();
    let own = path.map(|path| (path, loaded.has_secret));
    let mut warnings = warnings(own, &secret_files, &loaded.config);
    warnings.extend(kept);
    Ok(Loaded {
        warnings,
        config: loaded.config,
        shown: loaded.shown,
        notes: loaded.notes,
        secret_files,
        secrets: loaded.secrets,
        text: text.and_then(Result::ok),
    })
}

/// Warnings about the configuration file `own`, with whether it contains a secret, and about key and token files.
fn warnings(own: Option<(&Path, bool)>, secret_files: &[SecretFile], config: &Config) -> Vec<String> {
    let mut files: Vec<(&Path, bool)> = own.into_iter().collect();
    files.extend(secret_files.iter().map(|file| (file.path.as_path(), true)));
    let tls = config.listeners.tls.tcp_tls_certificate.is_some();
    files.extend(
        config
            .listeners
            .tls
            .tcp_tls_key
            .iter()
            .filter(|_| tls)
            .map(|key| (key.as_path(), true)),
    );
    let origin = &config.origin;
    if !origin.sources.origin_kubelet.is_empty() {
        files.extend(origin.kubelet_identity().map(|(_, key)| (key, true)));
        // Every process of a pod may read the token that Kubernetes places there.
        files.push((&origin.sources.origin_kubelet_token, false));
    }
    let mut found: Vec<String> = files
        .into_iter()
        .flat_map(|(path, is_secret)| secrets::permissions(path, is_secret))
        .collect();
    let mut seen = std::collections::BTreeSet::new();
    found.retain(|warning| seen.insert(warning.clone()));
    found
}

#[derive(Debug, thiserror::Error)]
#[error("the configuration file cannot be read: {0}")]
struct Unreadable(#[from] std::io::Error);

fn read_file(path: &Path) -> Result<FileText, Unreadable> {
    let file = std::fs::File::open(path)?;
    let mut bytes = Vec::new();
    file.take(weir_config::node::FILE_BYTES_MAX as u64 + 1)
        .read_to_end(&mut bytes)?;
    Ok(FileText(bytes))
}

#[cfg(test)]
mod tests {
    use weir_config::{Setting, SettingType};

    use super::*;

    #[test]
    fn the_committed_page_is_current() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/configuration.md");
        let committed = std::fs::read_to_string(path).unwrap_or_default();
        assert!(
            committed == weir_config::page(OUTPUT_TYPES),
            "docs/configuration.md differs from the declarations; run: cargo run -- check --documentation > docs/configuration.md"
        );
    }

    #[test]
    fn every_setting_is_described_and_every_default_is_valid() {
        load(&Inputs::default()).expect("the defaults are a configuration");
        for setting in weir_config::settings() {
            described("", setting);
        }
        for output_type in OUTPUT_TYPES {
            for setting in output_type.settings {
                described(output_type.name, setting);
            }
        }
    }

    fn described(prefix: &str, setting: &Setting) {
        let key = format!("{prefix}.{}", setting.key);
        if let SettingType::Record(fields) = setting.kind {
            fields.iter().for_each(|field| described(&key, field));
        } else {
            assert!(!setting.effect.is_empty(), "{key}");
            let is_end = |text: &str| text.ends_with('.') && !text.contains("  ");
            let is_part = ["if ", "to ", "in ", "on "]
                .iter()
                .any(|word| setting.change.starts_with(word));
            assert!(
                is_part && is_end(setting.change),
                "{key}: \"Change it {}\" is no sentence",
                setting.change
            );
            let nobody = setting.change.to_ascii_lowercase().contains("hardly anybody");
            assert!(!nobody, "{key}: what nobody changes is a constant");
        }
    }
}
