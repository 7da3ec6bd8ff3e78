//! Patterns of metric names.

use std::fmt;

use regex_automata::meta;
use regex_automata::util::syntax;

use crate::RuleLimits;

/// The names that a rule applies to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Pattern {
    /// Every name.
    #[default]
    Any,
    Exact(String),
    Prefix(String),
    /// `*` stands for any characters except a dot, and is a group for templates.
    Wildcard(String),
    /// Placed between `^` and `$` unchanged: in `a|b`, `a` is anchored at the start and `b` at the end, as in the Datadog Agent.
    Regex(String),
}

/// Why a pattern is invalid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PatternError(pub String);

impl fmt::Display for PatternError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for PatternError {}

impl Pattern {
    pub fn text(&self) -> &str {
        match self {
            Pattern::Any => "",
            Pattern::Exact(text) | Pattern::Prefix(text) | Pattern::Wildcard(text) | Pattern::Regex(text) => {
                text
            }
        }
    }

    /// Checks the text against the rules of its kind.
    pub fn validate(&self, limits: &RuleLimits) -> Result<(), PatternError> {
        match self {
            Pattern::Any => Ok(()),
            Pattern::Exact(text) | Pattern::Prefix(text) if text.is_empty() => {
                Err(PatternError("is empty; must be a name".to_owned()))
            }
            Pattern::Exact(_) | Pattern::Prefix(_) => Ok(()),
            Pattern::Wildcard(text) => check_wildcard(text),
            Pattern::Regex(text) => regex(text, limits).map(drop),
        }
    }
}

fn check_wildcard(text: &str) -> Result<(), PatternError> {
    if text.is_empty() {
        return Err(PatternError(
            "is empty; must be a name with * for its parts".to_owned(),
        ));
    }
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-' | '*');
    if let Some(c) = text.chars().find(|&c| !allowed(c)) {
        return Err(PatternError(format!(
            "{text:?} holds {c:?}; a wildcard is made of letters, digits, '_', '.', '-' and '*', anything else needs match_type: regex"
        )));
    }
    if text.contains("**") {
        return Err(PatternError(format!(
            "{text:?} holds \"**\"; each * stands for one part between dots, match_type: regex can span several"
        )));
    }
    Ok(())
}

/// The expression for a pattern's text.
pub(crate) fn anchored(text: &str) -> String {
    format!("^{text}$")
}

/// Compiles one regular expression with its groups. Matching takes time proportional to pattern times name at most.
pub(crate) fn regex(text: &str, limits: &RuleLimits) -> Result<meta::Regex, PatternError> {
    build(&anchored(text), limits).map_err(|error| PatternError(format!("{text:?} {error}")))
}

/// Compiles an expression without anchors.
pub(crate) fn build(expression: &str, limits: &RuleLimits) -> Result<meta::Regex, RegexError> {
    let config = meta::Config::new()
        .nfa_size_limit(Some(limits.one_regex_bytes))
        .hybrid_cache_capacity(32 << 10);
    meta::Builder::new()
        .configure(config)
        .syntax(syntax_of())
        .build(expression)
        .map_err(|error| RegexError::of(&error, limits.one_regex_bytes))
}

pub(crate) fn syntax_of() -> syntax::Config {
    syntax::Config::new().nest_limit(100)
}

/// Why an expression is invalid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RegexError {
    /// It needs more than this many bytes.
    TooLarge(usize),
    /// The parser's message.
    Syntax(String),
    /// The compiler's message.
    Build(String),
}

impl RegexError {
    pub(crate) fn of(error: &meta::BuildError, limit: usize) -> Self {
        if error.size_limit().is_some() {
            return RegexError::TooLarge(limit);
        }
        let Some(error) = error.syntax_error() else {
            return RegexError::Build(error.to_string());
        };
        // The last line of the report has the reason; the other lines draw an arrow.
        let text = error.to_string();
        let last = text.lines().last().unwrap_or_default();
        RegexError::Syntax(last.trim_start_matches("error: ").to_owned())
    }
}

impl fmt::Display for RegexError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RegexError::TooLarge(limit) => write!(
                f,
                "takes more than {limit} bytes once compiled; repeat less, or use fewer character classes"
            ),
            RegexError::Syntax(why) => write!(f, "is not a regular expression: {why}"),
            RegexError::Build(why) => write!(f, "cannot be compiled: {why}"),
        }
    }
}

// The groups of a wildcard pattern.

/// The text for each `*` of `pattern` in `name`: the first star takes as much as possible, then the second, as for the expression
/// `([^.]*)`. `None` if the name does not match.
pub fn captures<'n>(pattern: &str, name: &'n str, groups: &mut Vec<&'n str>) -> Option<()> {
    groups.clear();
    let (mut patterns, mut parts) = (pattern.split('.'), name.split('.'));
    loop {
        match (patterns.next(), parts.next()) {
            (None, None) => return Some(()),
            // A star cannot cross a dot, so the parts correspond one to one.
            (Some(pattern), Some(part)) => part_captures(pattern, part, groups)?,
            _ => return None,
        }
    }
}

fn part_captures<'n>(pattern: &str, part: &'n str, groups: &mut Vec<&'n str>) -> Option<()> {
    let Some((first, rest)) = pattern.split_once('*') else {
        return (pattern == part).then_some(());
    };
    let inner = part.strip_prefix(first)?;
    let Some((middle, last)) = rest.rsplit_once('*') else {
        groups.push(inner.strip_suffix(rest)?);
        return Some(());
    };
    let mut inner = inner.strip_suffix(last)?;
    // From the right, each literal as far right as possible: this leaves the most to the first star, then to the second.
    let first_group = groups.len();
    let mut tail = inner;
    for literal in middle.rsplit('*') {
        let at = inner.rfind(literal)?;
        groups.push(&tail[at + literal.len()..]);
        inner = &inner[..at];
        tail = inner;
    }
    groups.push(inner);
    groups[first_group..].reverse();
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check(pattern: &str, name: &str, expected: Option<&[&str]>) {
        let mut groups = Vec::new();
        let found = captures(pattern, name, &mut groups);
        assert_eq!(found.map(|()| groups.as_slice()), expected, "{pattern} {name}");
    }

    #[test]
    fn groups_of_wildcards() {
        check("a.*.c", "a.b.c", Some(&["b"]));
        check("a.*.c", "a..c", Some(&[""]));
        check("a.*.c", "a.b.b.c", None);
        check("*.x-*", "1.x-2", Some(&["1", "2"]));
        check("a*b*", "aXbYbZ", Some(&["XbY", "Z"]));
        check("*a*a*", "aaa", Some(&["a", "", ""]));
        check("a", "a", Some(&[]));
        check("*", "a.b", None);
    }

    proptest! {
        #[test]
        fn captures_equal_those_of_the_expression(
            pattern in "[ab.]{0,2}(\\*[ab.]{1,2}){0,3}\\*?", name in "[ab.]{0,10}",
        ) {
            let expression = format!("^{}$", pattern.replace('.', "\\.").replace('*', "([^.]*)"));
            let regex = regex_lite::Regex::new(&expression).unwrap();
            let expected = regex.captures(&name).map(|found| {
                found.iter().skip(1).map(|group| group.unwrap().as_str().to_owned()).collect::<Vec<_>>()
            });
            let mut groups = Vec::new();
            let found = captures(&pattern, &name, &mut groups);
            prop_assert_eq!(found.map(|()| groups.iter().map(ToString::to_string).collect()), expected);
        }
    }
}
