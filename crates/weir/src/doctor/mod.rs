//! `weir doctor`: checks everything that receiving and delivering depends on, and suggests remedies. Each check is a function that returns
//! its findings. Nothing is changed, except that a metric is sent on request.

use serde::Serialize;

use weir_status::status::Status;
use weir_system::config::{Inputs, Loaded};

mod agent;
mod kernel;
mod outputs;
mod paths;
mod sockets;

/// Result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    Fine,
    /// There was nothing to check, or no means to check it.
    Skipped,
    /// It works, but not as well as it could, or it may stop working.
    Warning,
    /// It does not work.
    Error,
}

/// One finding of a check about one thing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The kind of check, for example `socket`.
    pub check: &'static str,
    /// The checked thing, for example a path or an address.
    pub subject: String,
    pub verdict: Severity,
    pub found: String,
    /// The remedy; empty if there is nothing to do.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub remedy: String,
}

impl Finding {
    fn new(
        check: &'static str,
        subject: impl Into<String>,
        verdict: Severity,
        found: impl Into<String>,
    ) -> Self {
        Finding {
            check,
            subject: subject.into(),
            verdict,
            found: found.into(),
            remedy: String::new(),
        }
    }

    fn fine(check: &'static str, subject: impl Into<String>, found: impl Into<String>) -> Self {
        Self::new(check, subject, Severity::Fine, found)
    }

    fn skipped(check: &'static str, subject: impl Into<String>, found: impl Into<String>) -> Self {
        Self::new(check, subject, Severity::Skipped, found)
    }

    fn warning(check: &'static str, subject: impl Into<String>, found: impl Into<String>) -> Self {
        Self::new(check, subject, Severity::Warning, found)
    }

    fn error(check: &'static str, subject: impl Into<String>, found: impl Into<String>) -> Self {
        Self::new(check, subject, Severity::Error, found)
    }

    fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = remedy.into();
        self
    }
}

/// The input of checks.
struct CheckInput<'a> {
    loaded: &'a Loaded,
    /// The status of the running agent; `None` without one.
    status: Option<Status>,
    /// Whether a metric may be sent.
    sends: bool,
}

/// All checks, ordered so that an error explains the following ones.
pub fn examine(loaded: &Loaded, inputs: &Inputs, sends: bool) -> Vec<Finding> {
    let (status, mut findings) = agent::look(loaded, inputs.role);
    let input = CheckInput {
        loaded,
        status,
        sends,
    };
    findings.extend(input.status.iter().flat_map(agent::losses));
    findings.extend(sockets::check(&input));
    findings.extend(kernel::datagram_queue(&input));
    findings.extend(kernel::receive_buffers(&input));
    findings.extend(paths::state_directory(&input));
    findings.extend(paths::named(&input, weir_system::config::file(inputs)));
    let (of_outputs, date) = outputs::check(&input);
    findings.extend(kernel::clock(date));
    findings.extend(of_outputs);
    findings
}

#[cfg(test)]
mod tests {
    use super::agent;
    use weir_status::examples::all_lost;
    use weir_status::losses::losses;

    #[test]
    fn every_loss_is_a_finding_with_its_remedy() {
        let status = all_lost();
        let findings = agent::losses(&status);
        for loss in losses(&status) {
            let is_it = |finding: &&super::Finding| {
                finding.found.ends_with(loss.meaning) && finding.remedy == loss.remedy
            };
            let finding = findings.iter().find(is_it).unwrap_or_else(|| panic!("{loss:?}"));
            assert!(
                loss.place.is_empty() || finding.subject == loss.place,
                "{finding:?}"
            );
        }
    }
}
