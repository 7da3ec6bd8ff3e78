//! The buckets of one tenant and width, and the agents that they wait for.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use weir_state::{AgentId, Header};

use crate::agent::AgentEpochs;
use crate::bucket::{Added, Bucket};
use crate::closed::ClosedBuckets;
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
    pub closed_buckets: ClosedBuckets,
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
    /// When it counts as ended: Unix milliseconds of the log's clock, which move with its steps.
    pub ended: i64,
    /// Offset of its first record.
    pub first_offset: u64,
    pub last_offset: u64,
    pub added: Added,
    pub records: Vec<(AgentId, u64, RecordFacts)>,
}

/// Terms of closing beside the buckets. Times are milliseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    /// The log's clock.
    pub now: i64,
    /// Time that a bucket waits for missing agents after its end.
    pub grace: i64,
    /// All agents are known.
    pub is_known: bool,
}

/// The next bucket to close.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    No,
    /// It still waits for agents, unless memory is short.
    IfFull(i64),
    Now(i64),
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
    /// `now`: Unix milliseconds of the log's clock. A bucket that begins later than the one after it has ended comes from the queue of an
    /// agent that was away. Others may have been away too, so it waits as long as if it ended now.
    pub fn new(seed: u64, offset: u64, (start, width): (i64, u32), now: i64) -> Self {
        let after = |widths: i64| {
            let end = start.saturating_add(widths * i64::from(width));
            end.saturating_mul(1000)
        };
        PendingBucket {
            bucket: Bucket::new(seed),
            ended: if now <= after(2) { after(1) } else { now },
            first_offset: offset,
            last_offset: offset,
            added: Added::default(),
            records: Vec::new(),
        }
    }

    /// The same for a bucket that is no longer in the future. After steps of the clock it may have counted as ended before it began; others
    /// send their records of it when it ends.
    pub fn ended_in_time(&self, start: i64, width: u32) -> i64 {
        let end = start.saturating_add(i64::from(width)).saturating_mul(1000);
        self.ended.max(end)
    }

    pub fn agents(&self) -> BTreeSet<AgentId> {
        self.records.iter().map(|(agent, ..)| *agent).collect()
    }
}

impl Member {
    /// Forgets buckets after this one: a clock was ahead. The agent is waited for again.
    fn go_back(&mut self, bucket: i64, width: u32) {
        self.first = self.first.min(bucket);
        if self.last > bucket {
            self.last = bucket;
            self.passed = self.passed.min(bucket.saturating_sub(2 * i64::from(width)));
            self.left = None;
        }
    }

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
    pub fn restore(closed_buckets: ClosedBuckets, members: BTreeMap<AgentId, Member>) -> Self {
        Stream {
            closed_buckets,
            members,
            ..Stream::default()
        }
    }

    /// `now`: the second of the log's clock.
    pub fn is_closed(&self, (bucket, width): (i64, u32), now: i64) -> bool {
        // No bucket closes before its end, unless the clock was ahead.
        let ended = now.saturating_sub(i64::from(width));
        !self.open.contains_key(&bucket) && self.closed_buckets.contain(bucket, ended)
    }

    /// The log's clock has stepped by this many milliseconds to `now`. What waits goes on waiting for the rest of its time.
    pub fn step(&mut self, step: i64, now: i64, width: u32) {
        let before = now.saturating_sub(step);
        for open in self.open.values_mut() {
            // The end of a bucket in the future may come closer.
            open.ended = match step > 0 && open.ended > before {
                true => open.ended.max(now),
                false => open.ended.saturating_add(step),
            };
        }
        if step < 0 {
            let now = now.div_euclid(1000);
            self.members
                .values_mut()
                .for_each(|member| member.go_back(now, width));
        }
        self.check_all_again();
    }

    /// Updates the agent of a record. `now`: the second of the log's clock.
    pub fn record_agent(&mut self, header: &Header, now: i64) {
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
        if member.last > now && start < member.last {
            // The agent's clock was ahead.
            member.go_back(start, header.bucket_width);
        }
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
    pub fn open(&mut self, bucket: (i64, u32), seed: u64, offset: u64, now: i64) -> &mut PendingBucket {
        let (start, _) = bucket;
        if self
            .open
            .first_key_value()
            .is_some_and(|(oldest, _)| start < *oldest)
        {
            self.check_all_again();
        }
        let open = self.open.entry(start);
        open.or_insert_with(|| PendingBucket::new(seed, offset, bucket, now))
    }

    /// The correction of a closed bucket.
    pub fn correction(&mut self, bucket: (i64, u32), seed: u64, offset: u64, now: i64) -> &mut PendingBucket {
        let correction = self.corrections.entry(bucket.0);
        correction.or_insert_with(|| PendingBucket::new(seed, offset, bucket, now))
    }

    fn check_all_again(&mut self) {
        self.passed = None;
        self.changed.clear();
    }

    /// Whether every live agent has passed the oldest open bucket. `has_hole`: whether a record of an agent is missing there.
    /// Between records each agent is checked once: a fleet has thousands, and each record asks.
    fn is_passed(&mut self, bucket: i64, width: u32, has_hole: impl Fn(AgentId, i64) -> bool) -> bool {
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

    /// Removes an open bucket.
    pub fn close(&mut self, start: i64, width: u32) -> Option<PendingBucket> {
        let open = self.open.remove(&start)?;
        let end = start.saturating_add(i64::from(width));
        self.closed_buckets.add(start, end);
        self.check_all_again();
        Some(open)
    }

    /// The next bucket to close.
    pub fn due(&mut self, width: u32, terms: &Terms, agents: &BTreeMap<AgentId, AgentEpochs>) -> Due {
        if self.open.is_empty() {
            return Due::No;
        }
        let &Terms { now, grace, .. } = terms;
        if let Some(start) = self.left_ahead(now, grace) {
            return Due::Now(start);
        }
        let Some((start, is_over)) = self.oldest(now, grace, width) else {
            return Due::No;
        };
        // Agents spread their sending over the following bucket. Until its end a new agent may still send.
        let open = self.open.get(&start);
        let ended = open.map_or(i64::MAX, |open| open.ended_in_time(start, width));
        let mut is_passed = || {
            terms.is_known
                && ended.saturating_add(i64::from(width) * 1000) <= now
                && self.is_passed(start, width, |agent, bucket| {
                    agents.get(&agent).is_some_and(|agent| agent.has_hole_at(bucket))
                })
        };
        let end = start.saturating_add(i64::from(width)).saturating_mul(1000);
        if is_over || is_passed() {
            Due::Now(start)
        } else if end.saturating_add(grace) <= now {
            Due::IfFull(start)
        } else {
            Due::No
        }
    }

    /// A bucket of a clock that was ahead, whose time is over although it is in the future. It does not wait for others, and they not for it.
    fn left_ahead(&self, now: i64, grace: i64) -> Option<i64> {
        let near = now.saturating_add(grace).div_euclid(1000);
        let mut ahead = self.open.range(near.saturating_add(1)..);
        let left = ahead.find(|(_, open)| open.ended.saturating_add(grace) <= now);
        left.map(|(start, _)| *start)
    }

    /// The oldest open bucket, unless it is in the future, and whether its time or that of one after it is over.
    fn oldest(&self, now: i64, grace: i64, width: u32) -> Option<(i64, bool)> {
        let mut open = self.open.range(..=now.div_euclid(1000));
        let (start, _) = open.clone().next()?;
        let is_over =
            open.any(|(start, open)| open.ended_in_time(*start, width).saturating_add(grace) <= now);
        Some((*start, is_over))
    }

    pub fn bytes(&self) -> usize {
        let all = self.open.values().chain(self.corrections.values());
        all.map(|open| {
            open.bucket.bytes() + open.records.capacity() * size_of::<(AgentId, u64, RecordFacts)>()
        })
        .sum::<usize>()
            + self.members.len() * (size_of::<(AgentId, Member)>() + 16)
    }

    /// Bytes that closing the largest bucket takes besides.
    pub fn closing_bytes(&self) -> usize {
        let all = self.open.values().chain(self.corrections.values());
        all.map(|open| open.bucket.closing_bytes()).max().unwrap_or(0)
    }

    /// `now`: the second of the log's clock.
    pub fn status(&self, key: &StreamKey, now: i64) -> StreamStatus {
        let oldest = self.open.first_key_value().map(|(start, _)| *start);
        let awaited = self.members.iter().filter(|(_, member)| {
            oldest.is_some_and(|oldest| member.is_expected(oldest, key.width) && member.passed < oldest)
        });
        StreamStatus {
            tenant: key.tenant.clone(),
            width: key.width,
            closed_before: self.closed_buckets.end(now),
            open_buckets: self.open.len(),
            awaited: awaited.map(|(agent, _)| *agent).collect(),
            closed: self.closed.clone(),
        }
    }
}
