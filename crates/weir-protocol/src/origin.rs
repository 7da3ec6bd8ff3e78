//! The sender as named by the message: Local Data (`c:`), External Data (`e:`) and cardinality (`card:`).

use crate::{ErrorClass, text};

/// The three origin sections as they stood on the wire. A section that is present may still be empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OriginFields<'a> {
    pub local: Option<&'a str>,
    pub external: Option<&'a str>,
    pub cardinality: Option<&'a str>,
}

impl<'a> OriginFields<'a> {
    /// Takes one section if it is one of the three. The first prefix that fits wins; a repeated section replaces.
    pub(crate) fn take(&mut self, section: &'a [u8]) -> Result<bool, ErrorClass> {
        if let Some(value) = section.strip_prefix(b"c:") {
            self.local = Some(text(value)?);
        } else if let Some(value) = section.strip_prefix(b"e:") {
            self.external = Some(text(value)?);
        } else if let Some(value) = section.strip_prefix(b"card:") {
            self.cardinality = Some(text(value)?);
        } else {
            return Ok(false);
        }
        Ok(true)
    }

    pub fn is_empty(&self) -> bool {
        self.local.is_none() && self.external.is_none() && self.cardinality.is_none()
    }

    pub fn local_data(&self) -> LocalData<'a> {
        self.local.map(LocalData::parse).unwrap_or_default()
    }

    pub fn external_data(&self) -> ExternalData<'a> {
        self.external.map(ExternalData::parse).unwrap_or_default()
    }
}

/// The sender's container in `c:`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LocalData<'a> {
    pub container_id: Option<&'a str>,
    /// Inode of the sender's cgroup directory.
    pub inode: Option<u64>,
}

impl<'a> LocalData<'a> {
    /// With a comma, items other than `ci-` and `in-` are ignored; without one, a bare word is a container id (v1.2).
    pub fn parse(field: &'a str) -> Self {
        let mut data = LocalData::default();
        if field.contains(',') {
            for item in field.split(',') {
                data.take_item(item);
            }
        } else if !data.take_item(field) {
            let id = field.strip_prefix("cid-").unwrap_or(field);
            data.container_id = (!id.is_empty()).then_some(id);
        }
        data
    }

    fn take_item(&mut self, item: &'a str) -> bool {
        if let Some(id) = item.strip_prefix("ci-") {
            self.container_id = (!id.is_empty()).then_some(id);
        } else if let Some(inode) = item.strip_prefix("in-") {
            self.inode = inode.parse().ok();
        } else {
            return false;
        }
        true
    }
}

/// The sender in `e:`, as injected into its environment by an admission controller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExternalData<'a> {
    pub init_container: Option<bool>,
    pub container_name: Option<&'a str>,
    pub pod_uid: Option<&'a str>,
}

impl<'a> ExternalData<'a> {
    pub fn parse(field: &'a str) -> Self {
        let mut data = ExternalData::default();
        for item in field.split(',') {
            if let Some(flag) = item.strip_prefix("it-") {
                data.init_container = parse_flag(flag);
            } else if let Some(name) = item.strip_prefix("cn-") {
                data.container_name = (!name.is_empty()).then_some(name);
            } else if let Some(uid) = item.strip_prefix("pu-") {
                data.pod_uid = (!uid.is_empty()).then_some(uid);
            }
        }
        data
    }
}

/// The spellings that the injecting side's language accepts for a boolean.
fn parse_flag(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}
