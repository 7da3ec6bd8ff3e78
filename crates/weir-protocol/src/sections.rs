//! The sections behind a message's fixed fields, shared by metrics, events and service checks.

use crate::{ErrorClass, text};

/// Splits `rest`, which begins behind a `|`, at further `|`.
pub(crate) fn split_sections(rest: &[u8]) -> impl Iterator<Item = &[u8]> {
    rest.split(|&byte| byte == b'|')
        .filter(|section| !section.is_empty())
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
