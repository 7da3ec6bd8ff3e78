//! Entry points to the parsers, for the fuzz targets.

use std::io;

use crate::sources::{self, Docker, LabelTags, SourceError};
use crate::{Description, cgroup};

/// Start time of a process, from its `stat`.
pub fn start_time(stat: &str) -> Option<u64> {
    cgroup::start_time(stat)
}

/// Docker's description of a container.
pub fn docker(json: &[u8]) -> Result<Vec<Description>, SourceError> {
    let docker = Docker::new("", LabelTags::default());
    Ok(vec![docker.described(json)?])
}

/// A kubelet's list of pods.
pub fn kubelet(json: &[u8]) -> Result<Vec<Description>, SourceError> {
    sources::kubelet_described(json, &LabelTags::default())
}

/// A file of tags.
pub fn file(json: &[u8]) -> Result<Vec<Description>, SourceError> {
    let text = std::str::from_utf8(json).map_err(io::Error::other)?;
    sources::parse_file(text)
}
