//! The state of a partition for its next owner.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use weir_state::AgentId;

use crate::agent::AgentEpochs;
use crate::merge::Counts;
use crate::stream::{Member, Stream, StreamKey};

/// The first byte of a snapshot.
const VERSION: u8 = 1;

/// Counts stay far below this, so that their sums cannot overflow.
pub(crate) const COUNT_MAX: u64 = 1 << 56;

/// Offsets of a log are signed elsewhere.
const OFFSET_MAX: u64 = i64::MAX as u64;

/// Why a snapshot is invalid.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum SnapshotError {
    #[error("a snapshot of version {found:?}; this program reads {VERSION}")]
    Version { found: Option<u8> },
    #[error("a snapshot that cannot be read: {0}")]
    Form(#[from] postcard::Error),
    #[error("an invalid snapshot: {what}")]
    Impossible { what: &'static str },
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Snapshot {
    /// Everything before this offset has been read.
    pub next: u64,
    pub time: i64,
    pub known_from: Option<i64>,
    pub counts: Counts,
    pub agents: Vec<([u8; 16], AgentEpochs)>,
    pub streams: Vec<SavedStream>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct SavedStream {
    key: StreamKey,
    frontier: Option<i64>,
    members: Vec<([u8; 16], Member)>,
}

impl SavedStream {
    pub fn of(key: &StreamKey, stream: &Stream) -> Self {
        SavedStream {
            key: key.clone(),
            frontier: stream.frontier,
            members: stream
                .members
                .iter()
                .map(|(agent, member)| (agent.0, *member))
                .collect(),
        }
    }

    pub fn stream(self) -> (StreamKey, Stream) {
        let members = self.members.into_iter();
        let members = members.map(|(agent, member)| (AgentId(agent), member)).collect();
        let stream = Stream::restore(self.frontier, members);
        (self.key, stream)
    }
}

impl Snapshot {
    pub fn encode(&self) -> Vec<u8> {
        postcard::to_extend(self, vec![VERSION]).expect("all lengths are known")
    }

    pub fn decode(bytes: &[u8]) -> Result<Self, SnapshotError> {
        let Some((&VERSION, rest)) = bytes.split_first() else {
            let found = bytes.first().copied();
            return Err(SnapshotError::Version { found });
        };
        let snapshot: Snapshot = postcard::from_bytes(rest)?;
        let agents_are_whole = snapshot.agents.iter().all(|(_, agent)| agent.is_possible());
        match agents_are_whole && snapshot.next <= OFFSET_MAX {
            true if snapshot.counts.is_possible() => Ok(snapshot),
            true => Err(SnapshotError::Impossible { what: "its counts" }),
            false => Err(SnapshotError::Impossible { what: "its agents" }),
        }
    }

    pub fn agents(agents: Vec<([u8; 16], AgentEpochs)>) -> BTreeMap<AgentId, AgentEpochs> {
        let restored = agents.into_iter().map(|(id, mut agent)| {
            agent.restore();
            (AgentId(id), agent)
        });
        restored.collect()
    }
}
