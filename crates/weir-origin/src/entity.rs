//! Entities that have tags, and the cardinality of tags.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use weir_protocol::special_tag;

/// Something that has tags.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Entity {
    /// A container, by its full id.
    Container(Arc<str>),
    /// A pod, by its uid.
    Pod(Arc<str>),
    /// The environment of the agent, for senders of which nothing better is known.
    Local,
}

impl fmt::Display for Entity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Entity::Container(id) => write!(f, "container {id}"),
            Entity::Pod(uid) => write!(f, "pod {uid}"),
            Entity::Local => f.write_str("weir's own surroundings"),
        }
    }
}

/// Number of series that tags may make of one metric. Each level includes the lower ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cardinality {
    None,
    /// Few values: image, deployment, namespace.
    Low,
    /// One value per pod or task.
    Orchestrator,
    /// One value per container.
    High,
}

impl Cardinality {
    /// Parses the value of `card:`, ignoring case. `None`: not a level.
    pub fn parse(text: &str) -> Option<Self> {
        [
            ("none", Cardinality::None),
            ("low", Cardinality::Low),
            ("orchestrator", Cardinality::Orchestrator),
            ("orch", Cardinality::Orchestrator),
            ("high", Cardinality::High),
        ]
        .into_iter()
        .find(|(name, _)| name.eq_ignore_ascii_case(text))
        .map(|(_, level)| level)
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Cardinality::None => "none",
            Cardinality::Low => "low",
            Cardinality::Orchestrator => "orchestrator",
            Cardinality::High => "high",
        }
    }
}

/// The tags of an entity, by level.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TagSet {
    low: BTreeSet<Box<str>>,
    orchestrator: BTreeSet<Box<str>>,
    high: BTreeSet<Box<str>>,
}

/// Longer tags of a source are skipped: such labels serve another purpose.
const TAG_BYTES_MAX: usize = 1024;

/// Maximum tags of one entity and level.
const TAGS_MAX: usize = 128;

impl TagSet {
    /// Adds `key:value` unless the value is empty. Skips tags that no message could carry, and special tags.
    pub fn add(&mut self, level: Cardinality, key: &str, value: &str) {
        if !value.is_empty() {
            self.add_tag(level, &format!("{key}:{value}"));
        }
    }

    pub fn add_tag(&mut self, level: Cardinality, tag: &str) {
        let tags = match level {
            Cardinality::None => return,
            Cardinality::Low => &mut self.low,
            Cardinality::Orchestrator => &mut self.orchestrator,
            Cardinality::High => &mut self.high,
        };
        let fits = !tag.is_empty() && tag.len() <= TAG_BYTES_MAX && tags.len() < TAGS_MAX;
        if fits && !tag.contains([',', '|', '\n', '\r']) && special_tag(tag).is_none() {
            tags.insert(tag.into());
        }
    }

    pub fn is_empty(&self) -> bool {
        self.low.is_empty() && self.orchestrator.is_empty() && self.high.is_empty()
    }

    /// The tags of all levels up to `level`.
    pub fn up_to(&self, level: Cardinality) -> impl Iterator<Item = &str> {
        [
            (Cardinality::Low, &self.low),
            (Cardinality::Orchestrator, &self.orchestrator),
            (Cardinality::High, &self.high),
        ]
        .into_iter()
        .filter(move |(of, _)| *of <= level)
        .flat_map(|(_, tags)| tags.iter().map(AsRef::as_ref))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_include_lower_ones_and_only_valid_tags() {
        let mut tags = TagSet::default();
        tags.add(Cardinality::Low, "image", "shop");
        tags.add(Cardinality::Low, "empty", "");
        tags.add(Cardinality::Low, "host", "elsewhere");
        tags.add(Cardinality::Low, "two", "a,b");
        tags.add(Cardinality::High, "container_id", "ab");
        let up_to = |level| tags.up_to(level).collect::<Vec<_>>();
        assert_eq!(up_to(Cardinality::None), [""; 0]);
        assert_eq!(up_to(Cardinality::Orchestrator), ["image:shop"]);
        assert_eq!(up_to(Cardinality::High), ["image:shop", "container_id:ab"]);
    }
}
