//! Actions on the values of tags.

use std::borrow::Cow;

use regex_automata::meta;
use sha2::{Digest, Sha256};

use crate::pattern::regex;
use crate::{PatternError, RuleLimits};

/// One action on the values of one tag key.
#[derive(Clone, Debug, PartialEq)]
pub struct ValueRule {
    /// `*`: every key.
    pub tag: String,
    /// Expressions, anchored at both ends. The action applies only to values that match one of them. Empty: all values.
    pub only: Vec<String>,
    pub action: ValueAction,
}

#[derive(Clone, Debug, PartialEq)]
pub enum ValueAction {
    /// Keeps the tag, and skips later actions.
    Keep,
    /// Removes the tag.
    Drop,
    /// Replaces the value with the first hexadecimal digits of the SHA-256 digest of salt and value. Equal salts give equal results
    /// everywhere.
    Hash { salt: String, digits: usize },
    /// At most this many characters.
    Truncate { characters: usize },
    /// Replaces numbers with their range: `lt_100`, `100_200`, `ge_200`. Other values stay.
    Ranges { bounds: Vec<f64> },
    /// Replaces the value with one of this many by digest: `0` to `count - 1`.
    Shards { count: u32 },
    /// Replaces all values except these and those that match an expression. Without a replacement it removes the tag.
    Allow {
        values: Vec<String>,
        patterns: Vec<String>,
        replacement: Option<String>,
    },
}

/// A rule with its expressions compiled.
#[derive(Debug)]
pub(crate) struct CompiledValue {
    rule: ValueRule,
    only: Vec<meta::Regex>,
    allowed: Vec<meta::Regex>,
}

/// The result of the actions for a tag.
pub(crate) enum TagOutcome<'a> {
    Unchanged,
    /// Unchanged; later actions are skipped.
    Kept,
    Dropped,
    Changed(Cow<'a, str>),
}

impl CompiledValue {
    pub fn new(rule: &ValueRule, limits: &RuleLimits) -> Result<Self, PatternError> {
        let compile = |texts: &[String]| {
            texts
                .iter()
                .map(|text| regex(text, limits))
                .collect::<Result<Vec<_>, _>>()
        };
        let mut rule = rule.clone();
        let mut allowed = Vec::new();
        match &mut rule.action {
            ValueAction::Allow { values, patterns, .. } => {
                values.sort_unstable();
                allowed = compile(patterns)?;
            }
            ValueAction::Ranges { bounds } => bounds.sort_by(f64::total_cmp),
            _ => {}
        }
        Ok(CompiledValue {
            only: compile(&rule.only)?,
            allowed,
            rule,
        })
    }

    pub fn apply(&self, tag: &str) -> TagOutcome<'static> {
        let (key, value) = match tag.split_once(':') {
            Some((key, value)) => (key, Some(value)),
            None => (tag, None),
        };
        if self.rule.tag != "*" && self.rule.tag != key {
            return TagOutcome::Unchanged;
        }
        let text = value.unwrap_or_default();
        if !self.only.is_empty() && !self.only.iter().any(|regex| regex.is_match(text)) {
            return TagOutcome::Unchanged;
        }
        // The only actions for a tag without a value are keep and drop.
        let changed = match (&self.rule.action, value) {
            (ValueAction::Keep, _) => return TagOutcome::Kept,
            (ValueAction::Drop, _) => return TagOutcome::Dropped,
            (_, None) => return TagOutcome::Unchanged,
            (ValueAction::Hash { salt, digits }, Some(value)) => {
                let mut hex = String::with_capacity(64);
                for byte in digest(salt, value) {
                    hex.push_str(&format!("{byte:02x}"));
                }
                hex.truncate(*digits);
                hex
            }
            (ValueAction::Truncate { characters }, Some(value)) => {
                match value.char_indices().nth(*characters) {
                    Some((end, _)) => value[..end].to_owned(),
                    None => return TagOutcome::Unchanged,
                }
            }
            (ValueAction::Ranges { bounds }, Some(value)) => match value.parse::<f64>() {
                Ok(number) if !number.is_nan() => range(bounds, number),
                _ => return TagOutcome::Unchanged,
            },
            (ValueAction::Shards { count }, Some(value)) => {
                let bytes = digest("", value);
                let number = u64::from_be_bytes(bytes[..8].try_into().expect("eight of them"));
                (number % u64::from((*count).max(1))).to_string()
            }
            (
                ValueAction::Allow {
                    values, replacement, ..
                },
                Some(value),
            ) => {
                let is_listed = values.binary_search_by(|known| known.as_str().cmp(value)).is_ok();
                if is_listed || self.allowed.iter().any(|regex| regex.is_match(value)) {
                    return TagOutcome::Unchanged;
                }
                match replacement {
                    Some(replacement) => replacement.clone(),
                    None => return TagOutcome::Dropped,
                }
            }
        };
        if value == Some(changed.as_str()) {
            return TagOutcome::Unchanged;
        }
        TagOutcome::Changed(Cow::Owned(format!("{key}:{changed}")))
    }
}

fn digest(salt: &str, value: &str) -> [u8; 32] {
    let mut hasher = Sha256::new();
    hasher.update(salt.as_bytes());
    hasher.update(value.as_bytes());
    hasher.finalize().into()
}

fn range(bounds: &[f64], number: f64) -> String {
    let above = bounds.partition_point(|&bound| bound <= number);
    match (above.checked_sub(1).map(|at| bounds[at]), bounds.get(above)) {
        (Some(low), Some(high)) => format!("{low}_{high}"),
        (Some(low), None) => format!("ge_{low}"),
        (None, Some(high)) => format!("lt_{high}"),
        (None, None) => number.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(action: ValueAction, tag: &str, expected: Option<&str>) {
        let rule = ValueRule {
            tag: "k".into(),
            only: vec![],
            action,
        };
        let compiled = CompiledValue::new(&rule, &RuleLimits::default()).unwrap();
        let found = match compiled.apply(tag) {
            TagOutcome::Unchanged | TagOutcome::Kept => Some(tag.to_owned()),
            TagOutcome::Dropped => None,
            TagOutcome::Changed(tag) => Some(tag.into_owned()),
        };
        assert_eq!(found.as_deref(), expected, "{rule:?} {tag}");
    }

    #[test]
    fn each_action() {
        check(ValueAction::Keep, "k:v", Some("k:v"));
        check(ValueAction::Drop, "k:v", None);
        check(ValueAction::Drop, "k", None);
        check(ValueAction::Drop, "kk:v", Some("kk:v"));
        let hash = |salt: &str| ValueAction::Hash {
            salt: salt.into(),
            digits: 8,
        };
        // The digests of "v" and of "sv", as sha256sum prints them.
        check(hash(""), "k:v", Some("k:4c94485e"));
        check(hash("s"), "k:v", Some("k:afac70e6"));
        check(hash(""), "k", Some("k"));
        let truncate = ValueAction::Truncate { characters: 2 };
        check(truncate.clone(), "k:éàb", Some("k:éà"));
        check(truncate, "k:éà", Some("k:éà"));
        let ranges = || ValueAction::Ranges {
            bounds: vec![200.0, 100.0, 0.5],
        };
        for (value, range) in [
            ("0.4", "lt_0.5"),
            ("0.5", "0.5_100"),
            ("100", "100_200"),
            ("1e9", "ge_200"),
            ("x", "x"),
            ("nan", "nan"),
        ] {
            check(ranges(), &format!("k:{value}"), Some(&format!("k:{range}")));
        }
        check(ValueAction::Shards { count: 1 }, "k:anything", Some("k:0"));
        let allow = |replacement: Option<&str>| ValueAction::Allow {
            values: vec!["b".into(), "a".into()],
            patterns: vec!["[0-9]+".into()],
            replacement: replacement.map(str::to_owned),
        };
        check(allow(None), "k:a", Some("k:a"));
        check(allow(None), "k:12", Some("k:12"));
        check(allow(None), "k:c", None);
        check(allow(Some("other")), "k:c1", Some("k:other"));
    }
}
