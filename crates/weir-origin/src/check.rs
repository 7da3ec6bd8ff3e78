//! What is read of others, for the fuzz targets.

use crate::sources::{self, Docker, LabelTags};
use crate::{Description, cgroup};

/// Of a process, from its `stat`.
pub fn start_time(stat: &str) -> Option<u64> {
    cgroup::start_time(stat)
}

/// What Docker says of a container.
pub fn docker(json: &[u8]) -> Result<Vec<Description>, String> {
    let docker = Docker::new("", LabelTags::default());
    docker
        .described(json)
        .map(|description| vec![description])
        .map_err(|error| error.to_string())
}

/// What a kubelet says of its pods.
pub fn kubelet(json: &[u8]) -> Result<Vec<Description>, String> {
    sources::kubelet_described(json, &LabelTags::default())
}

/// A file of tags.
pub fn file(json: &[u8]) -> Result<Vec<Description>, String> {
    let text = std::str::from_utf8(json).map_err(|error| error.to_string())?;
    sources::parse_file(text)
}
