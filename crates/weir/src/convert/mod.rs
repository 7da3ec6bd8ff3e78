//! Converts other programs' configuration into weir's: `weir convert`.
//!
//! Settings without a counterpart are listed with their line; none is dropped silently.

use std::fmt::Write as _;

use weir_config::node::{Content, Key, Node, YamlError};
use weir_config::show_text;

use crate::config::load_content;

mod datadog;
mod draft;
mod gostatsd;
mod statsd_exporter;
mod telegraf;
mod toml;

pub use datadog::convert as datadog;
pub use gostatsd::convert as gostatsd;
pub use statsd_exporter::convert as statsd_exporter;
pub use telegraf::convert as telegraf;

/// A configuration for weir, and the settings that are not converted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Converted {
    /// A YAML document.
    pub yaml: String,
    pub left: Vec<Unconverted>,
}

/// A setting that is not converted, or whose meaning changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unconverted {
    /// Counted from 1.
    pub line: usize,
    pub message: String,
}

/// The reason why a file cannot be converted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConvertError {
    pub line: usize,
    pub message: String,
}

impl From<YamlError> for ConvertError {
    fn from(error: YamlError) -> Self {
        ConvertError {
            line: error.line,
            message: error.message,
        }
    }
}

/// The top-level mapping of a document; an empty document has none.
fn top_level(text: &str) -> Result<Vec<(Key, Node)>, ConvertError> {
    match weir_config::node::parse(text)? {
        None => Ok(Vec::new()),
        Some(node) if node.is_null() => Ok(Vec::new()),
        Some(Node {
            content: Content::Map(entries),
            ..
        }) => Ok(entries),
        Some(node) => Err(ConvertError {
            line: node.line,
            message: format!("is {}; must be a mapping of settings", node.what()),
        }),
    }
}

/// Lists unconverted settings as comments before the document, in the order of the file, and checks that weir accepts the document.
fn finish(body: &str, mut left: Vec<Unconverted>, source: &str) -> Converted {
    left.sort_by_key(|left| left.line);
    if let Err(problems) = load_content(body.as_bytes()) {
        // Secrets are not copied, so an output's required secret may be missing here.
        for problem in problems
            .0
            .iter()
            .filter(|problem| !problem.message.starts_with("is missing"))
        {
            left.push(Unconverted {
                line: 0,
                message: format!("weir rejects the result: {}: {}", problem.key, problem.message),
            });
        }
    }
    let mut yaml =
        format!("# Converted from {source} by `weir convert`; `weir check --config FILE` validates it.\n");
    for Unconverted { line, message } in &left {
        let _ = writeln!(yaml, "# not converted, line {line}: {message}");
    }
    yaml.push_str(body);
    Converted { yaml, left }
}

fn scalar(node: &Node) -> Option<&str> {
    match &node.content {
        Content::Scalar { text, .. } if !node.is_null() => Some(text),
        _ => None,
    }
}

fn map(node: &Node) -> &[(Key, Node)] {
    match &node.content {
        Content::Map(entries) => entries,
        _ => &[],
    }
}

fn list(node: &Node) -> &[Node] {
    match &node.content {
        Content::List(items) => items,
        _ => &[],
    }
}

/// Writes a node behind `key:` or `-`, in block style.
fn block(node: &Node, indent: usize, out: &mut String) {
    match &node.content {
        _ if node.is_null() => out.push_str(" ''\n"),
        Content::Scalar { text, .. } => {
            let _ = writeln!(out, " {}", show_text(text));
        }
        Content::List(items) if items.is_empty() => out.push_str(" []\n"),
        Content::Map(entries) if entries.is_empty() => out.push_str(" {}\n"),
        Content::List(items) => {
            out.push('\n');
            for item in items {
                let _ = write!(out, "{:indent$}-", "");
                match &item.content {
                    Content::Map(entries) if !entries.is_empty() => {
                        entries_of(entries, indent + 2, true, out)
                    }
                    _ => block(item, indent + 2, out),
                }
            }
        }
        Content::Map(entries) => {
            out.push('\n');
            entries_of(entries, indent, false, out);
        }
    }
}

fn entries_of(entries: &[(Key, Node)], indent: usize, first_is_here: bool, out: &mut String) {
    for (at, (key, node)) in entries.iter().enumerate() {
        if at == 0 && first_is_here {
            out.push(' ');
        } else {
            let _ = write!(out, "{:indent$}", "");
        }
        let _ = write!(out, "{}:", show_text(&key.text));
        block(node, indent + 2, out);
    }
}
