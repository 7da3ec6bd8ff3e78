//! Origin detection: the sender of a message, and the tags of that origin.
//!
//! This crate never blocks a worker. Workers ask without waiting and receive answers later. One thread and its tasks read
//! `/proc`, HTTP and files.
//!
//! * [`decide`] decides which origins count and which tags they bring: a pure function, used by workers and by `weir explain`.
//! * [`Resolver`] owns the facts: processes, control groups, and the reports of [`sources`].
//! * A [`sources::TagSource`] reports everything it knows whenever that changes, and looks again when something unknown is asked for.

pub mod cgroup;
mod decide;
mod entity;
mod processes;
mod resolver;
pub mod sources;
mod status;
mod store;

pub use decide::{Decision, DecisionStep, Facts, Policy, decide};
pub use entity::{Cardinality, Entity, TagSet};
pub use resolver::{AnswerTo, Origins, Resolver, Settings};
pub use status::{AccessExplanation, OriginExplanation, OriginStatus, OriginStep, SourceStatus};
pub use store::{ContainerPlace, Description};

/// Entry points to the parsers, for the fuzz targets.
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod check {
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
}
