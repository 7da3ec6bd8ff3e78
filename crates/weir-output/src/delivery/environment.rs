//! The environment of an output: facts about its process.

use std::path::PathBuf;
use std::sync::Arc;

use weir_state::AgentId;

use super::{Clock, Delivery, SafeSamples, SavedStates};

/// Facts that all outputs of a process share.
#[derive(Clone, Debug)]
pub struct OutputEnvironment {
    pub clock: Clock,
    /// Bytes that bodies waiting in memory may take, over all endpoints of the output.
    pub memory_bytes_max: u64,
    /// Bytes that an output which adds up may keep; beyond them it takes no new series.
    pub state_bytes_max: u64,
    /// The tags that every metric has, for outputs that describe the host.
    pub host_tags: Arc<[String]>,
    /// The cumulative state of the previous process's outputs.
    pub saved: Arc<SavedStates>,
    /// Learns what a kill would not lose.
    pub safe: SafeSamples,
    /// The state directory, if there is one.
    pub state_path: Option<PathBuf>,
    /// The delivering agent and its host, for outputs that report them.
    pub agent: AgentIdentity,
    pub hostname: Arc<str>,
    /// The output that the new one replaces while the process runs. [`Delivery::take_over`] then begins the new one.
    pub replaces: Option<Arc<Delivery>>,
}

/// The identity of this process among those that deliver to one place.
#[derive(Clone, Copy, Debug)]
pub struct AgentIdentity {
    pub id: AgentId,
    /// Grows with every start.
    pub epoch: u64,
    /// The next process has the same id. Otherwise this one was drawn for this process alone.
    pub is_kept: bool,
    /// Unix nanoseconds at which the clock that gauges are stamped with was zero.
    pub monotonic_zero: fn() -> i64,
}

impl OutputEnvironment {
    /// Whether the replaced output uses this directory, which cannot be opened twice.
    pub(crate) fn is_replaced(&self, directory: &str) -> bool {
        let replaces = self.replaces.as_ref();
        replaces.is_some_and(|old| {
            old.shared
                .endpoints
                .iter()
                .any(|side| side.identity.directory == directory)
        })
    }
}
