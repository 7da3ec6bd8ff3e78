//! Texts with references to groups: `$1`, `${1}`, `$name`, `${name}`, `$$`, by the rules of Go's `Regexp.Expand`.

use regex_automata::meta;

/// A parsed template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    parts: Vec<Part>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    Group(usize),
    Named(String),
}

/// The source of a template's groups.
#[derive(Clone, Copy)]
pub(crate) enum Groups<'a> {
    /// The pattern has no groups.
    None,
    /// The groups of a wildcard, in the order of its stars.
    Stars(&'a [&'a str], &'a str),
    Regex(&'a regex_automata::util::captures::Captures, &'a str),
}

impl<'a> Groups<'a> {
    fn number(&self, number: usize) -> &'a str {
        match *self {
            Groups::None => "",
            Groups::Stars(_, name) if number == 0 => name,
            Groups::Stars(groups, _) => groups.get(number - 1).copied().unwrap_or_default(),
            Groups::Regex(captures, name) => captures
                .get_group(number)
                .map_or("", |span| &name[span.start..span.end]),
        }
    }

    fn named(&self, group: &str) -> &'a str {
        match *self {
            Groups::Regex(captures, name) => captures
                .get_group_by_name(group)
                .map_or("", |span| &name[span.start..span.end]),
            _ => "",
        }
    }
}

impl Template {
    pub fn parse(text: &str) -> Self {
        let mut parts = Vec::new();
        let mut plain = String::new();
        let mut rest = text;
        while let Some(at) = rest.find('$') {
            plain.push_str(&rest[..at]);
            rest = &rest[at + 1..];
            if let Some(after) = rest.strip_prefix('$') {
                plain.push('$');
                rest = after;
                continue;
            }
            let Some((name, after)) = reference(rest) else {
                // A malformed reference: the dollar sign is literal.
                plain.push('$');
                continue;
            };
            if !plain.is_empty() {
                parts.push(Part::Text(std::mem::take(&mut plain)));
            }
            parts.push(match number(name) {
                Some(number) => Part::Group(number),
                None => Part::Named(name.to_owned()),
            });
            rest = after;
        }
        plain.push_str(rest);
        if !plain.is_empty() {
            parts.push(Part::Text(plain));
        }
        Template { parts }
    }

    /// Whether the text is the same for every name.
    pub fn is_constant(&self) -> bool {
        self.parts.iter().all(|part| matches!(part, Part::Text(_)))
    }

    /// References to groups that the pattern lacks: it has `stars` stars, or is this expression.
    pub(crate) fn missing(&self, stars: usize, regex: Option<&meta::Regex>) -> Vec<String> {
        let count = regex.map_or(stars + 1, meta::Regex::captures_len);
        let info = regex.map(meta::Regex::group_info);
        let absent = |part: &Part| match part {
            Part::Text(_) => None,
            Part::Group(number) => (*number >= count).then(|| format!("${{{number}}}")),
            Part::Named(name) => {
                let known = info.is_some_and(|info| {
                    info.pattern_names(regex_automata::PatternID::ZERO)
                        .any(|known| known == Some(name))
                });
                (!known).then(|| format!("${{{name}}}"))
            }
        };
        self.parts.iter().filter_map(absent).collect()
    }

    pub(crate) fn expand(&self, groups: Groups<'_>, into: &mut String) {
        for part in &self.parts {
            into.push_str(match part {
                Part::Text(text) => text,
                Part::Group(number) => groups.number(*number),
                Part::Named(name) => groups.named(name),
            });
        }
    }
}

/// The name after a dollar sign, and the rest of the text.
fn reference(text: &str) -> Option<(&str, &str)> {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let (body, braced) = match text.strip_prefix('{') {
        Some(body) => (body, true),
        None => (text, false),
    };
    let end = body.find(|c| !is_word(c)).unwrap_or(body.len());
    if end == 0 {
        return None;
    }
    let (name, rest) = body.split_at(end);
    if !braced {
        return Some((name, rest));
    }
    rest.strip_prefix('}').map(|rest| (name, rest))
}

/// Digits without a leading zero are a number, everything else is a name.
fn number(name: &str) -> Option<usize> {
    if name.len() > 1 && name.starts_with('0') || name.len() > 8 || !name.bytes().all(|b| b.is_ascii_digit())
    {
        return None;
    }
    name.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(template: &str, expected: &str) {
        let mut text = String::new();
        Template::parse(template).expand(Groups::Stars(&["one", "two"], "a.one.two"), &mut text);
        assert_eq!(text, expected, "{template}");
    }

    #[test]
    fn references() {
        for (template, expected) in [
            ("a.$1", "a.one"),
            ("${1}_$2", "one_two"),
            // As in Go: the longest word is the name, and this pattern has no group called 1x.
            ("$1x", ""),
            ("$1.x", "one.x"),
            ("$0", "a.one.two"),
            ("$3", ""),
            ("$$1", "$1"),
            ("$", "$"),
            ("${1", "${1"),
            ("${}", "${}"),
            ("$-", "$-"),
            ("$01", ""),
            ("é$1", "éone"),
        ] {
            check(template, expected);
        }
    }
}
