//! The explanation of one message, for `/api/v1/explain` and `weir explain`.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};
use weir_origin::OriginExplanation;

use crate::bad_bytes::BadBytes;

/// The request of an explanation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExplainRequest {
    pub line: String,
    /// The process to treat as its sender.
    pub pid: Option<i32>,
    /// The listener that receives it: an address, or a transport as in `per_listener`.
    pub listener: Option<String>,
}

/// Why there is no explanation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExplainError {
    #[error("this process receives no messages")]
    ReceivesNone,
    #[error("listener: {name:?} is no listener; allowed are {allowed}")]
    NoSuchListener { name: String, allowed: String },
    #[error("listener: {name} is several listeners that read messages differently; name one of {allowed}")]
    ReadDifferently { name: String, allowed: String },
    #[error("the explanation failed: {0}")]
    Failed(String),
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Explanation {
    pub line: String,
    /// The address of the listener that the explanation is about.
    pub listener: String,
    /// Listeners that read messages in another way.
    pub others: Vec<String>,
    /// Why the line is invalid; all fields below are then empty.
    pub rejected: Option<String>,
    /// The invalid bytes, and what is allowed in their place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bad: Option<BadBytes>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub meaning: String,
    /// A remark about a probable mistake.
    pub note: Option<String>,
    pub origin: OriginExplanation,
    /// The rule stages that changed something, in order.
    pub steps: Vec<ExplainedStep>,
    /// Absent if a rule drops the message, or its sender may not send.
    pub context: Option<ExplainedContext>,
    /// Of a metric: its series at each output.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub outputs: Vec<ExplainedOutput>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ExplainedOutput {
    pub output: String,
    /// As users of the receiver see them; none if the output drops the metric.
    pub series: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ExplainedStep {
    pub stage: String,
    pub why: String,
    pub renamed_to: Option<String>,
    pub added: Vec<String>,
    pub removed: Vec<String>,
    pub dropped: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ExplainedContext {
    pub name: String,
    /// A metric's type, `event` or `check`.
    #[serde(rename = "type")]
    pub message_type: String,
    pub host: String,
    pub tags: Vec<String>,
}

impl Explanation {
    /// Text for users.
    pub fn render(&self) -> String {
        let mut page = format!("{}\n", self.line);
        if !self.others.is_empty() {
            let (listener, others) = (&self.listener, self.others.join(", "));
            let _ = writeln!(
                page,
                "\nlistener\n  {listener}; --listener names another: {others}"
            );
        }
        if let Some(class) = &self.rejected {
            let at = self.bad.as_ref().map_or(String::new(), |bad| {
                let under = "^".repeat(bad.bytes.chars().count().max(1));
                let before = bad.before.chars().count() + 2;
                let _ = writeln!(page, "\n  {}{}{}", bad.before, bad.bytes, bad.after);
                let _ = writeln!(page, "{:before$}{under}", "");
                format!(", {} of {}", bad.place(), self.line.len())
            });
            let _ = writeln!(page, "\nrejected: {class}{at}\n  {}", self.meaning);
            return page;
        }
        if let Some(note) = &self.note {
            let _ = writeln!(page, "\nnote: {note}");
        }
        let changes = |page: &mut String, added: &[String], removed: &[String]| {
            for tag in added {
                let _ = writeln!(page, "    + {tag}");
            }
            for tag in removed {
                let _ = writeln!(page, "    - {tag}");
            }
        };
        page.push_str("\norigin\n");
        if let (Some(pid), Some(process)) = (self.origin.pid, &self.origin.process) {
            let _ = writeln!(page, "  process {pid}: {process}");
        }
        if let Some(access) = &self.origin.access {
            let verdict = if access.allowed { "allowed" } else { "refused" };
            let _ = writeln!(page, "  {verdict}: {}", access.why);
            if !access.allowed {
                page.push_str("\nno context: its packets from a Unix socket are dropped before parsing\n");
                return page;
            }
        }
        for step in &self.origin.steps {
            let _ = writeln!(page, "  {}: {}", step.means, step.what);
            changes(&mut page, &step.added, &[]);
        }
        if self.origin.steps.is_empty() && self.origin.pid.is_none() {
            page.push_str("  neither the message nor its sender names an origin\n");
        }
        page.push_str("\nrules\n");
        for step in &self.steps {
            let dropped = if step.dropped { ": dropped" } else { "" };
            let _ = writeln!(page, "  {}{dropped}: {}", step.stage, step.why);
            if let Some(name) = &step.renamed_to {
                let _ = writeln!(page, "    name is now {name}");
            }
            changes(&mut page, &step.added, &step.removed);
        }
        if self.steps.is_empty() {
            page.push_str("  no rule applies\n");
        }
        match &self.context {
            None => page.push_str("\nno context: it is dropped\n"),
            Some(context) => {
                let _ = writeln!(
                    page,
                    "\ncontext\n  {} ({}) on {}",
                    context.name,
                    context.message_type,
                    if context.host.is_empty() {
                        "no host"
                    } else {
                        &context.host
                    }
                );
                for tag in &context.tags {
                    let _ = writeln!(page, "    {tag}");
                }
            }
        }
        for (at, output) in self.outputs.iter().enumerate() {
            page.push_str(if at == 0 { "\noutputs\n" } else { "" });
            let _ = writeln!(page, "  {}", output.output);
            for series in &output.series {
                let _ = writeln!(page, "    {series}");
            }
            if output.series.is_empty() {
                page.push_str("    drops it\n");
            }
        }
        page
    }
}
