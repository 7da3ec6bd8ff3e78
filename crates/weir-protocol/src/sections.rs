//! The sections behind a message's fixed fields, shared by metrics, events and service checks.

use crate::{ErrorClass, text};

/// Splits `rest`, which begins behind a `|`, at further `|`.
pub(crate) fn split_sections(rest: &[u8]) -> impl Iterator<Item = &[u8]> {
    rest.split(|&byte| byte == b'|')
        .filter(|section| !section.is_empty())
}

/// The sections of a metric that stand for nothing. A bar in a tag ends the tag and begins such a section.
pub fn unknown_sections(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    const KNOWN: [&[u8]; 6] = [b"#", b"@", b"T", b"c:", b"e:", b"card:"];
    let sections = line.split(|&byte| byte == b'|').skip(2);
    sections.filter(|section| !section.is_empty() && !KNOWN.iter().any(|known| section.starts_with(known)))
}

/// The tags of one message in wire order, zero-length ones left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tags<'a> {
    raw: &'a str,
}

impl<'a> Tags<'a> {
    /// Takes a tag section without its `#`.
    pub(crate) fn parse(section: &'a [u8]) -> Result<Self, ErrorClass> {
        Ok(Tags { raw: text(section)? })
    }

    /// Tags as they would stand behind `#`, for callers that have no packet.
    pub fn from_text(raw: &'a str) -> Self {
        Tags { raw }
    }

    /// The section as it stood on the wire, without `#`.
    pub fn raw(&self) -> &'a str {
        self.raw
    }

    pub fn is_empty(&self) -> bool {
        self.iter().next().is_none()
    }

    pub fn iter(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        self.raw.split(',').filter(|tag| !tag.is_empty())
    }
}

/// A tag that is an instruction to the agent rather than a dimension. It is always taken out of the tag list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpecialTag<'a> {
    /// `host:`: replaces the hostname; empty means no host at all.
    Host(&'a str),
    /// `dd.internal.entity_id:`: pod whose origin tags are wanted; `none` means none are.
    EntityId(&'a str),
    /// `dd.internal.card:`: cardinality, unless the message has a `card:` section.
    Cardinality(&'a str),
    /// `dd.internal.jmx_check_name:`: the integration this metric came through.
    JmxCheck(&'a str),
}

/// Whether a tag begins as all special tags do; few others do.
#[inline]
pub fn may_be_special(tag: &[u8]) -> bool {
    tag.starts_with(b"host:") || tag.starts_with(b"dd.internal.")
}

/// Recognises a special tag by its exact, case-sensitive prefix, colon included.
pub fn special_tag(tag: &str) -> Option<SpecialTag<'_>> {
    if let Some(host) = tag.strip_prefix("host:") {
        return Some(SpecialTag::Host(host));
    }
    let internal = tag.strip_prefix("dd.internal.")?;
    if let Some(id) = internal.strip_prefix("entity_id:") {
        Some(SpecialTag::EntityId(id))
    } else if let Some(cardinality) = internal.strip_prefix("card:") {
        Some(SpecialTag::Cardinality(cardinality))
    } else {
        internal.strip_prefix("jmx_check_name:").map(SpecialTag::JmxCheck)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_in_a_tag_begins_an_unknown_section() {
        let of = |line: &'static str| -> Vec<&str> {
            let found = unknown_sections(line.as_bytes());
            found
                .map(|section| std::str::from_utf8(section).unwrap())
                .collect()
        };
        assert_eq!(
            of("r.rq:5|g|#cluster_name:outbound|60051||a.svc"),
            ["60051", "a.svc"]
        );
        assert!(of("a:1|c|@0.5|#a:b|T5|c:in-1|e:x|card:low").is_empty());
        assert!(of("a:1|c").is_empty() && of("a").is_empty());
    }
}
