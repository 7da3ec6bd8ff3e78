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
