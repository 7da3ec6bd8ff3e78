//! The state of a partition for its next owner.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use weir_state::AgentId;

use crate::agent::AgentEpochs;
use crate::closed::ClosedBuckets;
use crate::merge::Counts;
use crate::stream::{Member, Stream, StreamKey};

/// The first byte of a snapshot.
const VERSION: u8 = 3;

/// Of earlier programs: agents had no names of hosts; before that, each stream had one range of closed buckets.
const NO_HOSTS: u8 = 2;
const ONE_RANGE: u8 = 1;

/// Counts stay far below this, so that their sums cannot overflow.
pub(crate) const COUNT_MAX: u64 = 1 << 56;

/// Offsets of a log are signed elsewhere.
const OFFSET_MAX: u64 = i64::MAX as u64;

/// Why a snapshot is invalid.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum SnapshotError {
    #[error("a snapshot of version {found}; this program reads {VERSION}")]
    Version { found: u8 },
    #[error("a snapshot that cannot be read: {0}")]
    Form(#[from] postcard::Error),
    #[error("an invalid snapshot: {what}")]
    Impossible { what: &'static str },
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Snapshot {
    /// Everything before this offset has been read.
    pub next: u64,
    /// The log's clock. The next owner reads it again, with the messages.
    pub time: i64,
    pub known_from: Option<i64>,
    pub counts: Counts,
    pub agents: Vec<([u8; 16], AgentEpochs)>,
    pub streams: Vec<SavedStream>,
    /// For each stream, its closed buckets. They follow the rest.
    #[serde(skip)]
    pub closed: Vec<Vec<(i64, i64)>>,
    /// For each agent, the names of its hosts. They follow.
    #[serde(skip)]
    pub hosts: Vec<Vec<Box<str>>>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct SavedStream {
    key: StreamKey,
    /// The end of the newest closed bucket.
    end: Option<i64>,
    members: Vec<([u8; 16], Member)>,
}

impl SavedStream {
    pub fn of(key: &StreamKey, stream: &Stream) -> Self {
        SavedStream {
            key: key.clone(),
            end: stream.closed_buckets.end(i64::MAX),
            members: stream
                .members
                .iter()
                .map(|(agent, member)| (agent.0, *member))
                .collect(),
        }
    }

    fn stream(self, closed: Option<ClosedBuckets>) -> (StreamKey, Stream) {
        let members = self.members.into_iter();
        let members = members.map(|(agent, member)| (AgentId(agent), member)).collect();
        let one = || self.end.map(ClosedBuckets::before_second);
        let stream = Stream::restore(closed.or_else(one).unwrap_or_default(), members);
        (self.key, stream)
    }
}

impl Snapshot {
    pub fn encode(&self) -> Vec<u8> {
        /// About what an agent and the rest take.
        const AGENT_BYTES: usize = 128;
        let mut bytes = Vec::with_capacity((self.agents.len() + 2) * AGENT_BYTES);
        bytes.push(VERSION);
        let bytes = postcard::to_extend(self, bytes);
        let bytes = bytes.and_then(|bytes| postcard::to_extend(&(&self.closed, &self.hosts), bytes));
        bytes.expect("all lengths are known")
    }

    pub fn decode(bytes: &[u8]) -> Result<Self, SnapshotError> {
        let Some((&version @ (VERSION | NO_HOSTS | ONE_RANGE), rest)) = bytes.split_first() else {
            let found = bytes.first().copied().unwrap_or_default();
            return Err(SnapshotError::Version { found });
        };
        let (mut snapshot, rest): (Snapshot, _) = postcard::take_from_bytes(rest)?;
        match version {
            ONE_RANGE => {}
            NO_HOSTS => snapshot.closed = postcard::from_bytes(rest)?,
            _ => (snapshot.closed, snapshot.hosts) = postcard::from_bytes(rest)?,
        }
        let agents_are_whole = snapshot.agents.iter().all(|(_, agent)| agent.is_possible());
        match agents_are_whole && snapshot.next <= OFFSET_MAX {
            true if snapshot.counts.is_possible() => Ok(snapshot),
            true => Err(SnapshotError::Impossible { what: "its counts" }),
            false => Err(SnapshotError::Impossible { what: "its agents" }),
        }
    }

    /// The streams.
    pub fn streams(
        streams: Vec<SavedStream>,
        closed: Vec<Vec<(i64, i64)>>,
    ) -> Result<BTreeMap<StreamKey, Stream>, SnapshotError> {
        let what = "its closed buckets";
        let mut closed = closed.into_iter();
        let streams = streams.into_iter().map(|saved| {
            let ranges = closed.next().map(ClosedBuckets::restore);
            match ranges {
                Some(None) => Err(SnapshotError::Impossible { what }),
                ranges => Ok(saved.stream(ranges.flatten())),
            }
        });
        streams.collect()
    }

    pub fn agents(
        agents: Vec<([u8; 16], AgentEpochs)>,
        hosts: Vec<Vec<Box<str>>>,
    ) -> BTreeMap<AgentId, AgentEpochs> {
        let mut hosts = hosts.into_iter();
        let restored = agents.into_iter().map(|(id, mut agent)| {
            agent.restore();
            let of_agent = hosts.next().unwrap_or_default();
            of_agent.iter().rev().for_each(|host| agent.came_from(host));
            (AgentId(id), agent)
        });
        restored.collect()
    }
}
