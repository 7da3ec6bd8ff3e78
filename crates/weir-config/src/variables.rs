//! Environment variables that no setting has, or that have a combined meaning.

use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use crate::agent::unsupported_variable_reason;
use crate::outputs::{OutputConfig, OutputType};
use crate::reader::Reader;
use crate::setting::{RemovedSetting, leaves};
use crate::source::{Inputs, ValueSource};
use crate::table::{removed_settings, settings};
use crate::text::nearest;

/// Host and port of a StatsD server, the two halves of the relay's target in the Datadog Agent.
pub(crate) const FORWARD_HOST: &str = "DD_STATSD_FORWARD_HOST";
const FORWARD_PORT: &str = "DD_STATSD_FORWARD_PORT";

/// Switches the Datadog Agent's listener for columns.
pub(crate) const HTTP_ENABLED: &str = "DD_DOGSTATSD_EXPERIMENTAL_HTTP_ENABLED";
/// Its address if no other is given.
pub(crate) const HTTP_ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8125);

/// Whether the Datadog Agent's listener for columns is on. `None`: it is not said.
pub(crate) fn http_switch(inputs: &Inputs<'_>) -> Option<Result<bool, VariableError>> {
    let value = inputs.environment.get(HTTP_ENABLED)?.as_deref()?;
    let value = unquoted(value).trim();
    (!value.is_empty()).then(|| yes_or_no(value))
}

/// The error in the value of a variable of the Datadog Agent.
#[derive(Debug, thiserror::Error)]
pub enum VariableError {
    #[error("the port to forward to is {0:?}; must be from 1 to 65535")]
    Port(String),
    #[error("is {0:?}; must be a number of days")]
    Days(String),
    #[error("is {0:?}; must be true or false")]
    Bool(String),
}

/// The relay's target, built from a host and a port.
pub fn forward_target(host: &str, port: &str) -> Result<String, VariableError> {
    match port.trim().parse::<u16>() {
        Ok(port) if port > 0 && host.contains(':') && !host.starts_with('[') => {
            Ok(format!("udp://[{host}]:{port}"))
        }
        Ok(port) if port > 0 => Ok(format!("udp://{host}:{port}")),
        _ => Err(VariableError::Port(port.to_owned())),
    }
}

pub(crate) fn forward_port<'i>(inputs: &'i Inputs<'_>) -> Option<&'i str> {
    let port = inputs.environment.get(FORWARD_PORT)?.as_deref()?;
    (!port.is_empty() && port != "0").then_some(port)
}

/// Translates a value of the Datadog Agent's variable where weir's values differ.
pub fn in_our_words<'t>(variable: &str, text: &'t str) -> Result<Cow<'t, str>, VariableError> {
    Ok(match (variable, text.trim()) {
        // With this value the Datadog Agent removes files of the previous process at the start.
        ("DD_FORWARDER_OUTDATED_FILE_IN_DAYS", "0") => "1s".into(),
        ("DD_FORWARDER_OUTDATED_FILE_IN_DAYS", days) if days.parse::<u32>().is_ok() => {
            format!("{days}d").into()
        }
        ("DD_FORWARDER_OUTDATED_FILE_IN_DAYS", other) => {
            return Err(VariableError::Days(other.to_owned()));
        }
        // In the Datadog Agent it chooses between v1 and newer versions; another key chooses between v2 and v3.
        ("DD_USE_V2_API_SERIES", text) => if yes_or_no(text)? { "auto" } else { "v1" }.into(),
        ("DD_USE_V3_API_SERIES_ENABLED", "datadog_only") => "auto".into(),
        ("DD_USE_V3_API_SERIES_ENABLED", text) => if yes_or_no(text)? { "v3" } else { "v2" }.into(),
        _ => text.into(),
    })
}

/// A truth value in the Datadog Agent's words.
fn yes_or_no(text: &str) -> Result<bool, VariableError> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "t" | "1" | "yes" | "on" => Ok(true),
        "false" | "f" | "0" | "no" | "off" => Ok(false),
        _ => Err(VariableError::Bool(text.to_owned())),
    }
}

/// The text without quotation marks around the whole of it: container engines pass those of an env file on.
pub(crate) fn unquoted(text: &str) -> &str {
    for mark in ['"', '\''] {
        let inner = text.strip_prefix(mark).and_then(|rest| rest.strip_suffix(mark));
        if let Some(inner) = inner.filter(|inner| !inner.contains(mark)) {
            return inner;
        }
    }
    text
}

/// Whether a variable says anything.
pub(crate) fn is_set(inputs: &Inputs<'_>, name: &str) -> bool {
    let value = inputs.environment.get(name);
    value.is_some_and(|value| value.as_deref() != Some(""))
}

/// Whether a list joins the values of all its `DD_` variables. Other settings take the first one that is set.
pub fn adds_up(key: &str) -> bool {
    key == "extra_tags"
}

impl Reader<'_> {
    /// An unknown `WEIR_` variable is an error: somebody mistyped its name.
    pub(crate) fn unknown_variables<S>(&mut self, types: &'static [OutputType<S>]) {
        let inputs = self.inputs;
        for name in inputs.environment.keys() {
            if self.known_variables.iter().any(|known| known == name) {
                continue;
            }
            if let Some(rest) = name.strip_prefix("WEIR_") {
                if !is_foreign(rest) {
                    self.unknown_variable(name);
                }
            } else if !is_set(inputs, name) || is_second_name(name, types) {
                // An empty variable is not set, and one that a setting reads is reported there.
            } else if let Some(why) = ignored_reason(name, types) {
                self.notes
                    .push(format!("environment {name} is set and ignored: {why}"));
            } else if is_about_metrics(name) {
                self.notes.push(format!(
                    "environment {name} is set; weir has no such setting and ignores it"
                ));
            }
        }
        if is_set(inputs, FORWARD_HOST) != forward_port(inputs).is_some() {
            self.notes.push(format!(
                "environment {FORWARD_HOST} and {FORWARD_PORT} have no effect unless both are set; together they enable the relay output"
            ));
        }
    }

    /// Variables whose settings belong to an output that is off.
    pub(crate) fn variables_of_outputs_that_are_off<S>(
        &mut self,
        types: &'static [OutputType<S>],
        on: &[OutputConfig<S>],
    ) {
        for output_type in types {
            if on.iter().any(|output| output.output_type == output_type.name) {
                continue;
            }
            let leaves = leaves(output_type.settings);
            let also = leaves.iter().flat_map(|leaf| leaf.also).copied();
            let set: Vec<&str> = also
                .filter(|name| *name != FORWARD_HOST && is_set(self.inputs, name))
                .collect();
            if !set.is_empty() {
                let (name, set) = (output_type.name, set.join(", "));
                self.notes.push(format!(
                    "environment {set}: for outputs.{name}, which is off; name that output in the file{}",
                    switches(output_type)
                ));
            }
        }
    }

    fn unknown_variable(&mut self, name: &str) {
        let near = nearest(name, self.known_variables.iter().map(String::as_str));
        let hint = near.map_or(String::new(), |near| format!("; did you mean {near}?"));
        let source = ValueSource::Environment(name.to_owned());
        self.problem(source, "", format!("is not a variable of weir{hint}"));
    }
}

/// Variables of the client libraries and of their tests, which may run in the same environment as an agent.
const CLIENT_VARIABLES: &[&str] = &["BIN", "EXPECT_NATIVE", "PURE_RUBY"];

/// Variables of others with weir's prefix: those that Kubernetes sets for a service named `weir`, and those of the clients, the rig and the
/// tests.
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

/// Variables of the Datadog Agent about metrics and their delivery; those of its other parts, and of clients, are ignored here.
fn is_about_metrics(name: &str) -> bool {
    const BEGIN: [&str; 10] = [
        "DD_DOGSTATSD_",
        "DD_STATSD_",
        "DD_FORWARDER_",
        "DD_PROXY_",
        "DD_SERIALIZER_",
        "DD_HISTOGRAM_",
        "DD_AGGREGATOR_",
        "DD_ENABLE_PAYLOADS_",
        "DD_USE_V2_API_",
        "DD_USE_V3_API_",
    ];
    BEGIN.iter().any(|begin| name.starts_with(begin)) || name == "DD_SKIP_SSL_VALIDATION"
}

fn is_second_name<S>(name: &str, types: &'static [OutputType<S>]) -> bool {
    name == FORWARD_PORT
        || name == HTTP_ENABLED
        || settings().any(|setting| setting.also.contains(&name))
        || types
            .iter()
            .flat_map(|output_type| leaves(output_type.settings))
            .any(|leaf| leaf.also.contains(&name))
}

/// The variable that switches an output on, as the end of a sentence.
fn switches<S>(output_type: &OutputType<S>) -> String {
    let required = output_type.settings.iter().find(|setting| setting.required);
    let name = required.and_then(|setting| setting.also.first());
    name.map_or(String::new(), |name| format!(" or set {name}"))
}

fn ignored_reason<S>(name: &str, types: &'static [OutputType<S>]) -> Option<&'static str> {
    let removed = removed_variable(name, types).map(|removed| removed.why);
    removed.or_else(|| unsupported_variable_reason(name))
}

/// A removed setting that had this variable of the Datadog Agent.
pub fn removed_variable<S>(name: &str, types: &'static [OutputType<S>]) -> Option<&'static RemovedSetting> {
    removed_settings()
        .chain(
            types
                .iter()
                .flat_map(|output_type| output_type.removed.iter().copied().flatten()),
        )
        .find(|removed| removed.also.contains(&name))
}
