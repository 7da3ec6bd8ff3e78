//! The buckets of one tenant and width, and the agents that they wait for.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use weir_state::{AgentId, Header};

use crate::bucket::{Added, Bucket};
use crate::sequence::RecordFacts;

/// An agent is not waited for after this many buckets without a record.
const LIVE_BUCKETS: i64 = 6;

/// Identity of a stream.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct StreamKey {
    pub tenant: String,
    pub width: u32,
}

#[derive(Debug, Default)]
pub(crate) struct Stream {
    /// Buckets before this one are closed.
    pub frontier: Option<i64>,
    pub members: BTreeMap<AgentId, Member>,
    pub open: BTreeMap<i64, PendingBucket>,
    /// Records that arrived after their bucket was closed, and that are not committed.
    pub corrections: BTreeMap<i64, PendingBucket>,
    /// Agents before this one had passed the oldest open bucket when they were checked.
    passed: Option<AgentId>,
    /// Agents among these with records since then, which can reveal missing ones.
    changed: BTreeSet<AgentId>,
    pub closed: Option<LastClosed>,
}

/// An agent of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Member {
    pub first: i64,
    pub last: i64,
    /// The last bucket for which its records are complete.
    pub passed: i64,
    /// The bucket with which it ended.
    pub left: Option<i64>,
}

/// An open bucket, or a correction.
#[derive(Debug)]
pub(crate) struct PendingBucket {
    pub bucket: Bucket,
    /// Offset of its first record.
    pub first_offset: u64,
    pub last_offset: u64,
    pub added: Added,
    pub records: Vec<(AgentId, u64, RecordFacts)>,
}

/// A closed bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LastClosed {
    pub start: i64,
    /// Number of live agents, and of agents with records in it.
    pub expected: u32,
    pub seen: u32,
    /// Live agents whose records it lacks.
    pub missing: Vec<AgentId>,
}

/// State of a stream for `weir merge status`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamStatus {
    pub tenant: String,
    pub width: u32,
    /// Buckets before this second are closed.
    pub closed_before: Option<i64>,
    pub open_buckets: usize,
    /// Live agents whose records of the oldest open bucket are missing.
    pub awaited: Vec<AgentId>,
    /// The last closed bucket.
    pub closed: Option<LastClosed>,
}

impl PendingBucket {
    pub fn new(seed: u64, offset: u64) -> Self {
        PendingBucket {
            bucket: Bucket::new(seed),
            first_offset: offset,
            last_offset: offset,
            added: Added::default(),
            records: Vec::new(),
        }
    }

    pub fn agents(&self) -> BTreeSet<AgentId> {
        self.records.iter().map(|(agent, ..)| *agent).collect()
    }
}

impl Member {
    fn new(start: i64) -> Self {
        Member {
            first: start,
            last: start,
            passed: i64::MIN,
            left: None,
        }
    }

    /// Whether this bucket waits for the agent.
    pub fn is_expected(&self, bucket: i64, width: u32) -> bool {
        self.first <= bucket
            && self.last >= bucket.saturating_sub(LIVE_BUCKETS * i64::from(width))
            && self.left.is_none_or(|left| bucket <= left)
    }
}

impl Stream {
    pub fn restore(frontier: Option<i64>, members: BTreeMap<AgentId, Member>) -> Self {
        Stream {
            frontier,
            members,
            ..Stream::default()
        }
    }

    pub fn is_closed(&self, bucket: i64) -> bool {
        self.frontier.is_some_and(|frontier| bucket < frontier)
    }

    /// Updates the agent of a record.
    pub fn record_agent(&mut self, header: &Header) {
        let start = header.bucket_start;
        let is_last = header.publication.is_some_and(|publication| publication.is_last);
        let is_whole = header.part + 1 == header.parts && (!header.is_open || is_last);
        let passed = match is_whole {
            true => start,
            false => start.saturating_sub(i64::from(header.bucket_width)),
        };
        let member = self
            .members
            .entry(header.agent)
            .or_insert_with(|| Member::new(start));
        member.first = member.first.min(start);
        member.passed = member.passed.max(passed);
        if start >= member.last {
            member.last = start;
            member.left = is_last.then_some(start);
        }
    }

    /// Called for every new record of an agent, also in other streams: its records are numbered across all.
    pub fn check_again(&mut self, agent: AgentId) {
        if self.passed.is_some_and(|passed| agent < passed) {
            self.changed.insert(agent);
        }
    }

    /// The open bucket of a record.
    pub fn open(&mut self, start: i64, seed: u64, offset: u64) -> &mut PendingBucket {
        if self
            .open
            .first_key_value()
            .is_some_and(|(oldest, _)| start < *oldest)
        {
            self.check_all_again();
        }
        let open = self.open.entry(start);
        open.or_insert_with(|| PendingBucket::new(seed, offset))
    }

    /// The correction of a closed bucket.
    pub fn correction(&mut self, start: i64, seed: u64, offset: u64) -> &mut PendingBucket {
        let correction = self.corrections.entry(start);
        correction.or_insert_with(|| PendingBucket::new(seed, offset))
    }

    fn check_all_again(&mut self) {
        self.passed = None;
        self.changed.clear();
    }

    /// Whether every live agent has passed the oldest open bucket. `has_hole`: whether a record of an agent is missing there.
    /// Between records each agent is checked once: a fleet has thousands, and each record asks.
    pub fn is_passed(&mut self, bucket: i64, width: u32, has_hole: impl Fn(AgentId, i64) -> bool) -> bool {
        let is_awaited = |agent: AgentId, member: &Member| {
            member.is_expected(bucket, width) && (member.passed < bucket || has_hole(agent, bucket))
        };
        while let Some(agent) = self.changed.first().copied() {
            let member = self.members.get(&agent);
            if member.is_some_and(|member| is_awaited(agent, member)) {
                return false;
            }
            self.changed.remove(&agent);
        }
        let mut unchecked = self.members.range(self.passed.unwrap_or_default()..);
        let awaited = unchecked.find(|(agent, member)| is_awaited(**agent, member));
        self.passed = awaited.map(|(agent, _)| *agent);
        self.passed.is_none()
    }

    /// The summary of a bucket that closes with the records of these agents.
    pub fn closing(&self, start: i64, width: u32, seen: &BTreeSet<AgentId>) -> LastClosed {
        let members = self.members.iter();
        let expected = members.filter(|(_, member)| member.is_expected(start, width));
        let missing = expected.clone().filter(|(agent, _)| !seen.contains(agent));
        LastClosed {
            start,
            expected: expected.count() as u32,
            seen: seen.len() as u32,
            missing: missing.map(|(agent, _)| *agent).collect(),
        }
    }

    /// Removes the oldest open bucket.
    pub fn close(&mut self, width: u32) -> Option<(i64, PendingBucket)> {
        let (start, open) = self.open.pop_first()?;
        self.frontier = Some(start.saturating_add(i64::from(width)));
        self.check_all_again();
        Some((start, open))
    }

    pub fn bytes(&self) -> usize {
        let all = self.open.values().chain(self.corrections.values());
        all.map(|open| {
            open.bucket.bytes() + open.records.capacity() * size_of::<(AgentId, u64, RecordFacts)>()
        })
        .sum::<usize>()
            + self.members.len() * (size_of::<(AgentId, Member)>() + 16)
    }

    pub fn status(&self, key: &StreamKey) -> StreamStatus {
        let oldest = self.open.first_key_value().map(|(start, _)| *start);
        let awaited = self.members.iter().filter(|(_, member)| {
            oldest.is_some_and(|oldest| member.is_expected(oldest, key.width) && member.passed < oldest)
        });
        StreamStatus {
            tenant: key.tenant.clone(),
            width: key.width,
            closed_before: self.frontier,
            open_buckets: self.open.len(),
            awaited: awaited.map(|(agent, _)| *agent).collect(),
            closed: self.closed.clone(),
        }
    }
}
