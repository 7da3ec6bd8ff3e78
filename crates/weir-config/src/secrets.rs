//! Handles of secrets, `ENC[handle]` in place of a value, and the program that knows the secrets.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use thiserror::Error;

use crate::node::{Content, Node};
use crate::setting::SettingType;
use crate::settings;
use crate::text::{Secret, quote, show_text};
use crate::value::SettingError;

settings! {
    /// The program that knows secrets.
    pub struct SecretBackend {
        secret_backend_command: Option<PathBuf> = "''"
            .effect("A program that weir runs once at the start, to get the values that the configuration and the environment have as `ENC[handle]`. It reads the handles as JSON from standard input and writes the secrets as JSON to standard output, as for the Datadog Agent (docs/outputs/README.md). It must belong to the user of weir, and nobody else may have rights on it.")
            .zero("Empty: `ENC[handle]` is refused.")
            .change("if your keys are in a vault.")
            .also(&["DD_SECRET_BACKEND_COMMAND"]);
        secret_backend_arguments: Vec<String> = "[]"
            .effect("Arguments of `secret_backend_command`.")
            .change("if your program needs arguments.")
            .also(&["DD_SECRET_BACKEND_ARGUMENTS"]);
        secret_backend_timeout: Duration = "30s"
            .takes(SettingType::Duration { min: Duration::from_secs(1), max: Duration::from_secs(600) })
            .effect("The time limit of `secret_backend_command`. weir then kills it and does not start.")
            .change("if your vault is slow.")
            .also(&["DD_SECRET_BACKEND_TIMEOUT"]);
        secret_backend_command_allow_group_exec_perm: bool = "false"
            .effect("Whether the group of `secret_backend_command` may read and run it, and weir may be a member of that group instead of the owner.")
            .change("if you install the program for several users.")
            .also(&["DD_SECRET_BACKEND_COMMAND_ALLOW_GROUP_EXEC_PERM"]);
    }
}

/// Shown in place of a secret. It is plain text in YAML, in a list too.
const HIDDEN: &str = "<secret>";

/// Why a handle has no secret. The message never contains one.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum HandleError {
    #[error("secret_backend_command did not answer to it")]
    NotAnswered,
    #[error("secret_backend_command answered with an empty value")]
    Empty,
    /// The program's own words.
    #[error("secret_backend_command says {0}")]
    Said(String),
    #[error(
        "was not there at the start, and the sandbox forbids to run secret_backend_command: restart weir, or set sandbox: off"
    )]
    Forbidden,
}

/// The answers to handles.
pub type SecretAnswers = BTreeMap<String, Result<Secret, HandleError>>;

/// The handle that stands for a value.
pub fn handle_in(text: &str) -> Option<&str> {
    text.trim().strip_prefix("ENC[")?.strip_suffix(']')
}

/// Whether a setting is one of the program itself.
pub(crate) fn is_of_backend(key: &str) -> bool {
    SecretBackend::SETTINGS.iter().any(|setting| setting.key == key)
}

/// Handles in the values that settings have, and the answers to them.
#[derive(Debug, Default)]
pub(crate) struct Handles {
    pub found: BTreeSet<String>,
    /// Settings whose values have secrets in place of handles.
    pub keys: BTreeSet<String>,
    /// `None`: values stay as they are.
    pub answers: Option<SecretAnswers>,
}

impl Handles {
    /// Puts secrets into a value. The result says whether there was a handle.
    pub fn reveal(&mut self, node: &mut Node) -> Result<bool, SettingError> {
        match &mut node.content {
            Content::Scalar { text, plain } => {
                let Some(handle) = handle_in(text).map(str::to_owned) else {
                    return Ok(false);
                };
                if let Some(answers) = &self.answers {
                    match answers.get(&handle) {
                        Some(Ok(secret)) => (*text, *plain) = (secret.expose().to_owned(), false),
                        Some(Err(why)) => return Err(SettingError::new(node.line, format!("{text}: {why}"))),
                        None => return Err(SettingError::new(node.line, format!("{text} has no answer"))),
                    }
                }
                self.found.insert(handle);
                Ok(true)
            }
            Content::List(items) => self.reveal_all(items.iter_mut()),
            Content::Map(entries) => self.reveal_all(entries.iter_mut().map(|(_, node)| node)),
        }
    }

    fn reveal_all<'n>(&mut self, nodes: impl Iterator<Item = &'n mut Node>) -> Result<bool, SettingError> {
        let mut any = false;
        for node in nodes {
            any |= self.reveal(node)?;
        }
        Ok(any)
    }

    /// The secrets that are known.
    pub fn secrets(&self) -> BTreeMap<String, Secret> {
        let answers = self.answers.iter().flatten();
        answers
            .filter_map(|(handle, answer)| Some((handle.clone(), answer.as_ref().ok()?.clone())))
            .collect()
    }

    /// Hides secrets in a text about a setting. In other texts than those about values with secrets, short ones may be words.
    pub fn hide(&self, text: &mut String, key: &str) {
        let whole = key.split_once('[').map_or(key, |(whole, _)| whole);
        let length = if self.keys.contains(whole) { 1 } else { 4 };
        for secret in self.secrets().values().map(Secret::expose) {
            if secret.len() < length {
                continue;
            }
            for form in [quote(secret), show_text(secret), secret.to_owned()] {
                if text.contains(&form) {
                    *text = text.replace(&form, HIDDEN);
                }
            }
        }
    }
}
