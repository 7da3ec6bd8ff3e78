//! The patterns of `allowed_origins`, and which containers match them.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// One entry of `allowed_origins`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OriginPattern {
    /// `no_container`: processes whose control group belongs to no container.
    NoContainer,
    /// `unknown`: senders that could not be identified.
    Unknown,
    /// `key:value`: containers with such a tag. In the value `*` stands for any characters.
    Tag { key: Box<str>, value: Box<str> },
}

/// Why an entry is invalid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OriginPatternError(&'static str);

impl fmt::Display for OriginPatternError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for OriginPatternError {}

impl FromStr for OriginPattern {
    type Err = OriginPatternError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "no_container" => return Ok(OriginPattern::NoContainer),
            "unknown" => return Ok(OriginPattern::Unknown),
            _ => {}
        }
        let (key, value) = text
            .split_once(':')
            .ok_or(OriginPatternError("is neither a tag nor no_container or unknown"))?;
        if key.is_empty() || value.is_empty() || key.contains('*') {
            return Err(OriginPatternError("needs a key without * and a value"));
        }
        if text.contains([',', '|', '\n', '\r']) || text.trim() != text {
            return Err(OriginPatternError("has a character that is not allowed in a tag"));
        }
        Ok(OriginPattern::Tag {
            key: key.into(),
            value: value.into(),
        })
    }
}

impl fmt::Display for OriginPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OriginPattern::NoContainer => f.write_str("no_container"),
            OriginPattern::Unknown => f.write_str("unknown"),
            OriginPattern::Tag { key, value } => write!(f, "{key}:{value}"),
        }
    }
}

/// The verdict for a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListMatch<'a> {
    Entry(&'a OriginPattern),
    /// Its tags are known and none is on the list.
    NoEntry,
    /// No source knows its tags, and its id is not on the list.
    TagsUnknown,
}

/// All entries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllowedOrigins(Vec<OriginPattern>);

impl AllowedOrigins {
    /// `None` for an empty list, which allows everything.
    pub fn new(patterns: Vec<OriginPattern>) -> Option<Self> {
        (!patterns.is_empty()).then_some(AllowedOrigins(patterns))
    }

    pub fn no_container(&self) -> bool {
        self.0.contains(&OriginPattern::NoContainer)
    }

    pub fn unknown(&self) -> bool {
        self.0.contains(&OriginPattern::Unknown)
    }

    /// Whether an entry needs the tags of a container, which come from a source. Its id is always known.
    pub fn needs_sources(&self) -> bool {
        let needs_tags = |pattern: &OriginPattern| matches!(pattern, OriginPattern::Tag { key, .. } if &**key != "container_id");
        self.0.iter().any(needs_tags)
    }

    /// The verdict for the container with this id. `tags`: all its tags from sources, at every cardinality.
    pub fn container(&self, id: &str, tags: Option<&[Arc<str>]>) -> ListMatch<'_> {
        let by_id = |pattern: &&OriginPattern| match pattern {
            OriginPattern::Tag { key, value } => &**key == "container_id" && matches(value, id),
            _ => false,
        };
        if let Some(pattern) = self.0.iter().find(by_id) {
            return ListMatch::Entry(pattern);
        }
        let Some(tags) = tags else {
            return ListMatch::TagsUnknown;
        };
        let by_tag = |pattern: &&OriginPattern| match pattern {
            OriginPattern::Tag { key, value } => tags.iter().any(|tag| {
                tag.split_once(':')
                    .is_some_and(|(of, text)| of == &**key && matches(value, text))
            }),
            _ => false,
        };
        self.0
            .iter()
            .find(by_tag)
            .map_or(ListMatch::NoEntry, ListMatch::Entry)
    }
}

/// Whether a text matches the pattern. Takes time proportional to the sum of both lengths, except for the search for the middle parts.
fn matches(pattern: &str, text: &str) -> bool {
    let Some((first, rest)) = pattern.split_once('*') else {
        return pattern == text;
    };
    let Some(text) = text.strip_prefix(first) else {
        return false;
    };
    let (middle, last) = rest.rsplit_once('*').unwrap_or(("", rest));
    let Some(mut text) = text.strip_suffix(last) else {
        return false;
    };
    // The leftmost position of each part leaves the most text to the following parts.
    for part in middle.split('*') {
        match text.find(part) {
            Some(at) => text = &text[at + part.len()..],
            None => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn list(patterns: &[&str]) -> AllowedOrigins {
        let patterns = patterns.iter().map(|text| text.parse().unwrap()).collect();
        AllowedOrigins::new(patterns).unwrap()
    }

    #[test]
    fn containers_are_listed_by_their_tags_and_their_id() {
        let tags: Vec<Arc<str>> = ["kube_namespace:prod", "image_name:shop/cart", "prod", "url:a:b"]
            .map(Arc::from)
            .to_vec();
        for (patterns, listed) in [
            (&["kube_namespace:prod"][..], true),
            (&["kube_namespace:pro"], false),
            (&["kube_namespace:dev", "image_name:shop/*"], true),
            (&["image_name:*/cart"], true),
            (&["image_name:*op*ca*"], true),
            (&["image_name:*cart*shop*"], false),
            (&["url:a:b"], true),
            (&["namespace:prod", "kube:*"], false),
            (&["container_id:8fca*"], true),
            (&["container_id:8fcb*"], false),
            (&["no_container", "unknown"], false),
        ] {
            let list = list(patterns);
            let found = list.container("8fca07c6", Some(&tags));
            assert_eq!(
                matches!(found, ListMatch::Entry(_)),
                listed,
                "{patterns:?}: {found:?}"
            );
        }
        let by_name = list(&["kube_namespace:prod"]);
        assert_eq!(by_name.container("8fca", None), ListMatch::TagsUnknown);
        assert_eq!(by_name.container("8fca", Some(&[])), ListMatch::NoEntry);
        let by_id = list(&["container_id:8*"]);
        assert!(matches!(by_id.container("8fca", None), ListMatch::Entry(_)));
        assert!(by_name.needs_sources() && !by_id.needs_sources());
        assert_eq!(AllowedOrigins::new(Vec::new()), None);
    }

    #[test]
    fn invalid_entries_are_refused() {
        for text in ["", "prod", "host", ":x", "x:", "ki*:x", "a:b,c:d", " a:b", "a:b|"] {
            assert!(text.parse::<OriginPattern>().is_err(), "{text}");
        }
        for text in ["no_container", "unknown", "a:b", "a:*", "a:b:c*"] {
            assert_eq!(text.parse::<OriginPattern>().unwrap().to_string(), text);
        }
    }

    proptest! {
        #[test]
        fn stars_match_any_text(pattern in "[ab*]{0,8}", text in "[ab]{0,10}") {
            // The naive twin tries every length.
            fn naive(pattern: &[u8], text: &[u8]) -> bool {
                match pattern.split_first() {
                    None => text.is_empty(),
                    Some((b'*', rest)) => (0..=text.len()).any(|at| naive(rest, &text[at..])),
                    Some((c, rest)) => text.first() == Some(c) && naive(rest, &text[1..]),
                }
            }
            prop_assert_eq!(matches(&pattern, &text), naive(pattern.as_bytes(), text.as_bytes()));
        }
    }
}
