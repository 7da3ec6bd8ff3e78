//! Variables in a `telegraf.conf`, anywhere in the file: `$NAME`, `${NAME}`, and in braces the text for an unset variable (`-`), the text for a
//! set one (`+`), or the error about an unset one (`?`). Telegraf replaces them before it reads the file. It leaves unset ones as they are,
//! and `$$` is `$`.

use weir_config::node::{Content, Key, Node};

/// The value of a variable.
pub type Environment<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Stands for a `$` that begins no variable until the file is read. TOML has no use for it.
const DOLLAR: char = '\u{F8FF}';

/// A reference at the beginning of a text.
#[derive(Debug, PartialEq)]
struct Reference<'t> {
    /// In bytes.
    length: usize,
    name: &'t str,
    /// `-`, `+` or `?` with the text behind it.
    otherwise: Option<(char, &'t str)>,
    /// A colon before it: an empty variable counts as one that is not set.
    is_empty_unset: bool,
}

impl<'t> Reference<'t> {
    fn at(text: &'t str) -> Option<Self> {
        let rest = text.strip_prefix('$')?;
        let is_braced = rest.starts_with('{');
        let inner = match rest.strip_prefix('{') {
            Some(inner) => &inner[..closing_brace(inner)?],
            None => rest,
        };
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let (name, behind) = inner.split_at(inner.find(|c| !is_word(c)).unwrap_or(inner.len()));
        if name.is_empty() || name.starts_with(|c: char| c.is_ascii_digit()) {
            return None;
        }
        let mut found = Reference {
            length: 1 + name.len(),
            name,
            otherwise: None,
            is_empty_unset: false,
        };
        if is_braced {
            found.length = inner.len() + 3;
            let choice = behind.strip_prefix(':').unwrap_or(behind);
            found.is_empty_unset = choice.len() != behind.len();
            let mut chars = choice.chars();
            found.otherwise = match chars.next() {
                Some(sign @ ('-' | '+' | '?')) => Some((sign, chars.as_str())),
                None if behind.is_empty() => None,
                _ => return None,
            };
        }
        Some(found)
    }

    /// Its value. `None` if the variable is not set and nothing stands for it.
    fn value(&self, environment: Environment<'_>) -> Option<String> {
        let value = environment(self.name);
        let is_set = value
            .as_ref()
            .is_some_and(|value| !(self.is_empty_unset && value.is_empty()));
        match self.otherwise {
            Some(('-', text)) if !is_set => Some(replaced_in(text, environment, Unset::Empty)),
            Some(('+', text)) if is_set => Some(replaced_in(text, environment, Unset::Empty)),
            Some(('+', _)) => Some(String::new()),
            Some(('?', _)) if !is_set => None,
            _ => value,
        }
    }
}

/// The position of the brace that closes one, with others in between.
fn closing_brace(text: &str) -> Option<usize> {
    let mut depth = 0;
    for (at, c) in text.char_indices() {
        match c {
            '}' if depth == 0 => return Some(at),
            '}' => depth -= 1,
            '{' if text[..at].ends_with('$') => depth += 1,
            _ => {}
        }
    }
    None
}

/// The fate of variables that are not set.
#[derive(Clone, Copy, PartialEq)]
enum Unset {
    Stay,
    /// Within what stands for another.
    Empty,
}

/// A text with the values of variables as they are.
fn replaced_in(text: &str, environment: Environment<'_>, unset: Unset) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        if let Some(escaped) = rest.strip_prefix("$$") {
            out.push(DOLLAR);
            rest = escaped;
            continue;
        }
        let reference = Reference::at(rest);
        let length = reference.as_ref().map_or(1, |reference| reference.length);
        let is_empty = reference.is_some() && unset == Unset::Empty;
        match reference.and_then(|reference| reference.value(environment)) {
            Some(value) => out.push_str(&value.replace('$', DOLLAR.encode_utf8(&mut [0; 4]))),
            None if is_empty => {}
            None => out.push_str(&rest[..length]),
        }
        rest = &rest[length..];
    }
    out.push_str(rest);
    out
}

/// The text of a file with the values of variables. Those without a value stay.
pub fn replaced(text: &str, environment: Environment<'_>) -> String {
    // A value stands within quotation marks or is a number.
    let quoted = |name: &str| {
        environment(name).map(|value| {
            value
                .replace('\\', "\\\\")
                .replace('"', "\\\"")
                .replace('\n', "\\n")
        })
    };
    let of_line = |line: &str| {
        if line.trim_start().starts_with('#') {
            line.to_owned()
        } else if is_literal(line) {
            replaced_in(line, environment, Unset::Stay)
        } else {
            replaced_in(line, &quoted, Unset::Stay)
        }
    };
    text.split_inclusive('\n').map(of_line).collect()
}

/// Whether the text of a line is in single quotation marks, within which a backslash is one.
fn is_literal(line: &str) -> bool {
    let first = line.find(['"', '\'']);
    first.is_some_and(|at| line[at..].starts_with('\''))
}

/// The names of the variables in a text that has none of their values.
fn missing(text: &str) -> Vec<String> {
    let references = text
        .match_indices('$')
        .filter_map(|(at, _)| Reference::at(&text[at..]));
    references.map(|reference| reference.name.to_owned()).collect()
}

/// Removes values with variables that have none, from a table. Each is reported by its line, its place and the names.
pub fn without_missing(place: &str, entries: &mut Vec<(Key, Node)>, report: &mut dyn FnMut(usize, String)) {
    entries.retain_mut(|(key, node)| keep(&format!("{place}.{}", key.text), key.line, node, report));
}

fn keep(place: &str, line: usize, node: &mut Node, report: &mut dyn FnMut(usize, String)) -> bool {
    match &mut node.content {
        Content::Scalar { text, .. } => {
            let names = missing(text);
            if !names.is_empty() {
                let (names, verb) = (names.join(", "), if names.len() == 1 { "is" } else { "are" });
                report(
                    line,
                    format!(
                        "{place}: {names} {verb} not set here; set it for `weir convert`, or write the value by hand"
                    ),
                );
                return false;
            }
            if text.contains("@{") {
                report(
                    line,
                    format!(
                        "{place}: is in a store of secrets, which weir does not ask; write the value by hand"
                    ),
                );
                return false;
            }
            *text = text.replace(DOLLAR, "$");
        }
        Content::List(items) => items.retain_mut(|item| keep(place, item.line, item, report)),
        Content::Map(entries) => without_missing(place, entries, report),
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(name: &str) -> Option<String> {
        match name {
            "DC" => Some("fra".to_owned()),
            "QUOTED" => Some("a\"b".to_owned()),
            "PATTERN" => Some(r"\d$x".to_owned()),
            "EMPTY" => Some(String::new()),
            _ => None,
        }
    }

    #[test]
    fn set_variables_are_replaced() {
        for (text, expected) in [
            ("dc=\"$DC\"", "dc=\"fra\""),
            ("dc=\"${DC}-1\"", "dc=\"fra-1\""),
            ("dc=\"$OTHER ${OTHER} $1 $\"", "dc=\"$OTHER ${OTHER} $1 $\""),
            ("x=\"$QUOTED$EMPTY\"", "x=\"a\\\"b\""),
            ("x=\"$PATTERN\"", "x=\"\\\\d\u{F8FF}x\""),
            ("x='$PATTERN'", "x='\\d\u{F8FF}x'"),
            ("# $DC\n $DC\n", "# $DC\n fra\n"),
            ("$${DC} $$$DC", "\u{F8FF}{DC} \u{F8FF}fra"),
            ("${DC", "${DC"),
        ] {
            assert_eq!(replaced(text, &environment), expected, "{text}");
        }
    }

    #[test]
    fn braces_say_what_stands_for_a_variable() {
        for (text, expected) in [
            ("${OTHER:-x}${OTHER-y}", "xy"),
            ("${DC:-x}${DC-y}", "frafra"),
            ("${EMPTY:-x}|${EMPTY-y}", "x|"),
            ("${DC:+x}${DC+y}", "xy"),
            ("${OTHER:+x}|${OTHER+y}|${EMPTY:+x}|${EMPTY+y}", "|||y"),
            ("${DC:?no}${EMPTY?no}", "fra"),
            ("${EMPTY:?no}${OTHER?no}", "${EMPTY:?no}${OTHER?no}"),
            ("${OTHER:-${DC}-${EMPTY:-a}}", "fra-a"),
            ("${OTHER:-a$ZONE${ZONE}b}", "ab"),
            ("${OTHER:-$1}${DC!x}", "\u{F8FF}1${DC!x}"),
        ] {
            assert_eq!(replaced(text, &environment), expected, "{text}");
        }
    }

    #[test]
    fn values_that_are_not_known_are_reported_and_left_out() {
        let text = "dc=\"$DC\"\nzone=\"${ZONE:?say it}/$RACK\"\ncost=\"5$$\"\nname=\"$PATTERN\"\nkey=\"@{store:key}\"\nlist=[\"a\", \"$RACK\"]\n";
        let mut entries = super::super::toml::parse(&replaced(text, &environment)).unwrap();
        let mut told = Vec::new();
        without_missing("tags", &mut entries, &mut |line, message| {
            told.push((line, message))
        });
        let expected = [
            (2, "tags.zone: ZONE, RACK are not set"),
            (5, "tags.key: is in a store"),
            (6, "tags.list: RACK is not set"),
        ];
        assert_eq!(told.len(), expected.len(), "{told:?}");
        for ((line, message), (expected_line, beginning)) in told.iter().zip(expected) {
            assert!(
                *line == expected_line && message.starts_with(beginning),
                "{told:?}"
            );
        }
        let texts: Vec<_> = entries
            .iter()
            .map(|(key, node)| format!("{}={}", key.text, node.texts().join(",")))
            .collect();
        assert_eq!(texts, ["dc=fra", "cost=5$", r"name=\d$x", "list=a"]);
    }
}
