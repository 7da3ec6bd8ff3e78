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
