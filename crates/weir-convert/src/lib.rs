//! Converts other programs' configuration into weir's: `weir convert`.
//!
//! Settings without a counterpart are listed with their line; none is dropped silently.

use std::fmt::Write as _;

use weir_config::node::{Content, Key, Node, YamlError};
use weir_config::show_text;

use draft::Draft;
use weir_system::config::load_content;

mod datadog;
mod draft;
mod gostatsd;
mod statsd_exporter;
mod telegraf;
mod toml;
mod within;

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
    /// Said at the end of the conversion; empty if there is nothing to say.
    pub remark: &'static str,
}

/// The consequence of a setting that is not converted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Consequence {
    /// Series, values or tags differ, or data does not come or does not go.
    ChangesData,
    /// The purpose of the setting does not arise here.
    NoEffect,
    /// It is about another part of that program.
    Elsewhere,
}

impl Consequence {
    const ALL: [Consequence; 3] = [
        Consequence::ChangesData,
        Consequence::NoEffect,
        Consequence::Elsewhere,
    ];

    /// The heading of such settings.
    pub fn heading(self) -> &'static str {
        match self {
            Consequence::ChangesData => "changes your data",
            Consequence::NoEffect => "has no effect here",
            Consequence::Elsewhere => "belongs to another part of that program",
        }
    }
}

/// A setting that is not converted, or whose meaning changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unconverted {
    /// Counted from 1.
    pub line: usize,
    pub message: String,
    pub consequence: Consequence,
}

impl Unconverted {
    pub fn new(consequence: Consequence, line: usize, message: impl Into<String>) -> Self {
        Unconverted {
            line,
            message: message.into(),
            consequence,
        }
    }
}

/// Unconverted settings by consequence, each group with its heading.
pub fn by_consequence(left: &[Unconverted]) -> impl Iterator<Item = (Consequence, Vec<&Unconverted>)> {
    let of = |consequence| {
        left.iter()
            .filter(move |left| left.consequence == consequence)
            .collect()
    };
    Consequence::ALL
        .into_iter()
        .map(move |consequence| (consequence, of(consequence)))
        .filter(|(_, found): &(_, Vec<_>)| !found.is_empty())
}

/// Adds notes to a list.
trait Notes {
    fn left(&mut self) -> &mut Vec<Unconverted>;

    /// Notes a setting whose absence changes the data.
    fn skip(&mut self, line: usize, message: impl Into<String>) {
        let note = Unconverted::new(Consequence::ChangesData, line, message);
        self.left().push(note);
    }

    /// Notes a setting that has no effect here.
    fn skip_idle(&mut self, line: usize, message: impl Into<String>) {
        let note = Unconverted::new(Consequence::NoEffect, line, message);
        self.left().push(note);
    }

    /// Notes a setting of another part of that program.
    fn skip_elsewhere(&mut self, line: usize, message: impl Into<String>) {
        let note = Unconverted::new(Consequence::Elsewhere, line, message);
        self.left().push(note);
    }
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

/// The hint at a known word that is like an unknown one.
fn did_you_mean<'a>(unknown: &str, known: impl Iterator<Item = &'a str>) -> Option<String> {
    let near = weir_config::nearest(unknown, known)?;
    Some(format!("is not known; did you mean {near}?"))
}

/// The hint at a known word that one slip of the finger makes of it. For words among many that are right.
fn slipped<'a>(unknown: &str, known: impl IntoIterator<Item = &'a str>) -> Option<String> {
    let near = known.into_iter().find(|name| is_slip(unknown, name))?;
    Some(format!("is not known; did you mean {near}?"))
}

/// Whether one character more, less or another, or two that are swapped, make one text of the other.
fn is_slip(one: &str, other: &str) -> bool {
    let (one, other): (Vec<char>, Vec<char>) = (one.chars().collect(), other.chars().collect());
    let same = |(a, b): &(&char, &char)| a == b;
    let begin = one.iter().zip(&other).take_while(same).count();
    let (one, other) = (&one[begin..], &other[begin..]);
    let end = one.iter().rev().zip(other.iter().rev()).take_while(same).count();
    match (&one[..one.len() - end], &other[..other.len() - end]) {
        ([a, b], [c, d]) => a == d && b == c,
        (one, other) => one.len().max(other.len()) == 1,
    }
}

/// Lists unconverted settings as comments before the document, by consequence and in the order of the file, and checks that weir accepts the document.
fn finish(body: &str, mut left: Vec<Unconverted>, source: &str) -> Converted {
    left.sort_by_key(|left| left.line);
    if let Err(problems) = load_content(body.as_bytes()) {
        // Secrets are not copied, so an output's required secret may be missing here, and so may a file for one.
        for problem in problems.0.iter().filter(|problem| {
            !problem.message.starts_with("is missing") && !problem.key.ends_with("additional_endpoints_file")
        }) {
            let message = format!("weir rejects the result: {}: {}", problem.key, problem.message);
            left.push(Unconverted::new(Consequence::ChangesData, 0, message));
        }
    }
    let mut yaml =
        format!("# Converted from {source} by `weir convert`; `weir check --config FILE` validates it.\n");
    for (consequence, left) in by_consequence(&left) {
        let _ = writeln!(yaml, "# Not converted; it {}:", consequence.heading());
        for Unconverted { line, message, .. } in left {
            let _ = writeln!(yaml, "#   line {line}: {message}");
        }
    }
    let mut remark = "";
    for line in body.split_inclusive('\n') {
        if line.strip_prefix("admin: ").is_some_and(is_reachable) {
            yaml.extend(ADMIN.lines().flat_map(|line| ["# ", line, "\n"]));
            remark = ADMIN;
        }
        yaml.push_str(line);
    }
    Converted { yaml, left, remark }
}

const API_KEY: &str =
    "is a secret, which is not copied; set DD_API_KEY, or outputs.datadog.api_key_file to a file that has it";

/// Of programs that make no host known to Datadog, which lists hosts and bills them.
fn without_host(draft: &mut Draft) {
    for setting in ["heartbeat", "host_metadata"] {
        draft.set_output("datadog", setting, "false");
    }
}

/// Before an address that other machines reach: the other program shows metrics there, and weir a little more.
const ADMIN: &str = "\
Other machines get metrics, health and status at this address, and nothing else. `admin_remote: read` gives them the page and all
names and values, `admin_remote: full` everything, with a token.
";

/// Whether an address, as it is in the document, is more than loopback.
fn is_reachable(address: &str) -> bool {
    let host = address.trim().trim_matches('\'');
    !["127.", "localhost:", "[::1]:", "off"]
        .iter()
        .any(|own| host.starts_with(own))
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

/// Whether a text means yes, as in the files of all these programs.
fn is_yes(text: &str) -> bool {
    matches!(text, "true" | "yes" | "on")
}

/// An address in Go's form: without a host it means every interface, of both families.
fn address(text: &str) -> String {
    match text.strip_prefix(':') {
        Some(port) => format!("*:{port}"),
        None => text.to_owned(),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_others_reach_has_a_warning() {
        for (address, is_warned) in [
            ("'*:9102'", true),
            ("10.0.0.1:9102", true),
            ("'[::]:1'", true),
            ("127.0.0.1:9102", false),
            ("'[::1]:9102'", false),
            ("localhost:9102", false),
        ] {
            let converted = finish(&format!("udp: []\nadmin: {address}\n"), Vec::new(), "x");
            assert_eq!(!converted.remark.is_empty(), is_warned, "{address}");
            let yaml = converted.yaml;
            assert_eq!(yaml.contains("# Other machines get metrics"), is_warned, "{yaml}");
            assert!(yaml.ends_with(&format!("\nadmin: {address}\n")), "{yaml}");
        }
    }

    #[test]
    fn a_slip_is_one_character() {
        for slip in ["bucke", "buckett", "ucket", "bukcet", "bocket", "bucker", "buckt"] {
            assert!(is_slip(slip, "bucket") && is_slip("bucket", slip), "{slip}");
        }
        for other in ["bucket", "bucket_tag", "buck", "tekcub", "bkucte", ""] {
            assert!(!is_slip(other, "bucket"), "{other}");
        }
        assert!(is_slip("aa", "a") && is_slip("", "a"));
    }
}
