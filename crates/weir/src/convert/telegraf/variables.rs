//! Variables in a `telegraf.conf`: `$NAME`, `${NAME}` and `${NAME:-default}`, anywhere in the file. Telegraf replaces those that are set,
//! before it reads the file.

use weir_config::node::{Content, Key, Node};

/// The value of a variable.
pub type Environment<'a> = &'a dyn Fn(&str) -> Option<String>;

/// A reference at the beginning of a text: its length, the name, and the default.
fn reference(text: &str) -> Option<(usize, &str, Option<&str>)> {
    let is_name = |name: &str| {
        let first = name.chars().next();
        first.is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
            && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    let rest = text.strip_prefix('$')?;
    if let Some(inner) = rest.strip_prefix('{') {
        let (inner, _) = inner.split_once('}')?;
        let (name, default) = match inner.split_once(":-").or_else(|| inner.split_once('-')) {
            Some((name, default)) => (name, Some(default)),
            None => (inner, None),
        };
        return is_name(name).then_some((inner.len() + 3, name, default));
    }
    let end = rest.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    let name = &rest[..end.unwrap_or(rest.len())];
    is_name(name).then_some((name.len() + 1, name, None))
}

/// The text of a file with the values of variables. Those without a value stay.
pub fn replaced(text: &str, environment: Environment<'_>) -> String {
    let mut out = String::new();
    for line in text.split_inclusive('\n') {
        if line.trim_start().starts_with('#') {
            out.push_str(line);
            continue;
        }
        let mut rest = line;
        while let Some(at) = rest.find('$') {
            out.push_str(&rest[..at]);
            rest = &rest[at..];
            let Some((length, name, default)) = reference(rest) else {
                out.push('$');
                rest = &rest[1..];
                continue;
            };
            match environment(name).or_else(|| default.map(str::to_owned)) {
                // A value stands within quotation marks or is a number.
                Some(value) => out.push_str(
                    &value
                        .replace('\\', "\\\\")
                        .replace('"', "\\\"")
                        .replace('\n', "\\n"),
                ),
                None => out.push_str(&rest[..length]),
            }
            rest = &rest[length..];
        }
        out.push_str(rest);
    }
    out
}

/// The names of the variables in a text that has none of their values.
fn missing(text: &str) -> Vec<String> {
    let mut names = Vec::new();
    for (at, _) in text.match_indices('$') {
        names.extend(reference(&text[at..]).map(|(_, name, _)| name.to_owned()));
    }
    names
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
            "EMPTY" => Some(String::new()),
            _ => None,
        }
    }

    #[test]
    fn set_variables_are_replaced() {
        for (text, expected) in [
            ("dc=\"$DC\"", "dc=\"fra\""),
            ("dc=\"${DC}-1\"", "dc=\"fra-1\""),
            ("dc=\"${OTHER:-x}${OTHER-y}\"", "dc=\"xy\""),
            ("dc=\"$OTHER ${OTHER} $1 $\"", "dc=\"$OTHER ${OTHER} $1 $\""),
            ("x=\"$QUOTED$EMPTY\"", "x=\"a\\\"b\""),
            ("# $DC\n $DC\n", "# $DC\n fra\n"),
            ("${DC", "${DC"),
        ] {
            assert_eq!(replaced(text, &environment), expected, "{text}");
        }
    }
}
