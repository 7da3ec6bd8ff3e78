//! One partition of the log: merges records into results.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};
use weir_state::{AgentId, Bounds, Header, Packer, Publication, Record};

use crate::Plan;
use crate::agent::{AgentEpochs, End};
use crate::bucket::Limits;
use crate::ledger::{Ledger, Missing};
use crate::log::{Commit, Message, Quarantined};
use crate::quarantine::{QuarantineReason, QuarantinedRecord};
use crate::results::{BucketResult, Occasion};
use crate::sequence::{RecordCheck, RecordFacts};
use crate::snapshot::{COUNT_MAX, SavedStream, Snapshot, SnapshotError};
use crate::stream::{Due, PendingBucket, Stream, StreamKey, StreamStatus, Terms};
use crate::time::LogTime;

/// Maximum tenants and widths of one partition. Senders choose these names.
const STREAMS_MAX: usize = 256;

/// Maximum quarantined records kept for display.
const REFUSED_MAX: usize = 32;

/// Estimated bytes of an agent: marks, membership, and its index entries, and its host.
const AGENT_BYTES: usize = 664;

/// Settings of a merge. Times are in seconds.
#[derive(Clone, Debug)]
pub struct Settings {
    pub plan: Plan,
    /// The partition that is merged.
    pub partition: u32,
    /// Time that a bucket waits for missing agents after its end.
    pub grace: i64,
    /// Maximum difference of an agent's clock from the log's.
    pub max_skew: i64,
    /// Maximum age of records before the closing buckets. Older ones are refused, so that no state is needed for them.
    pub horizon: i64,
    /// Bytes for open buckets, corrections and agents. Beyond it new series share one series per name.
    pub memory: usize,
    pub agents_max: usize,
    /// Limits above which sets and histograms become summaries.
    pub bounds: Bounds,
    /// Random seed of hashes. Senders do not know it, so they cannot cause collisions. It does not affect results.
    pub hash_seed: u64,
    /// Threads that close a bucket, which does not affect results either. Each takes [`weir_state::THREAD_BYTES`] beside `memory`.
    pub threads: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            plan: Plan::new(1),
            partition: 0,
            grace: 60,
            max_skew: 600,
            horizon: 86_400,
            memory: 256 << 20,
            agents_max: 200_000,
            bounds: Bounds::default(),
            hash_seed: 0,
            threads: 1,
        }
    }
}

/// Result of adding a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MergeOutcome {
    Merged,
    /// Its bucket was closed: it goes into a correction.
    Late,
    /// It was merged before.
    Repeat,
    /// The log returned it before.
    Seen,
    Quarantined(QuarantineReason),
}

/// Counts of one partition since it was first read; in records unless stated otherwise. Records that a new owner reads again are not
/// counted again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    pub merged: u64,
    pub late: u64,
    pub repeats: u64,
    /// By [`QuarantineReason::NAMES`].
    pub quarantined: [u64; 9],
    pub closed_buckets: u64,
    pub corrections: u64,
    /// States merged into overflow series.
    pub overflowed_states: u64,
    /// States of gauges and sets without room.
    pub dropped_states: u64,
    /// Merged series too large for a result.
    pub too_large_series: u64,
    /// Ledger of forgotten agents.
    forgotten: Ledger,
}

impl Counts {
    /// Whether the counts are plausible.
    pub(crate) fn is_possible(&self) -> bool {
        let counts = [
            self.merged,
            self.late,
            self.repeats,
            self.closed_buckets,
            self.corrections,
            self.overflowed_states,
            self.dropped_states,
            self.too_large_series,
        ];
        let all = counts.into_iter().chain(self.quarantined);
        all.into_iter().all(|count| count <= COUNT_MAX)
    }
}

/// The state of one partition. Equal messages in equal order give equal results, at every owner and with every repetition.
#[derive(Debug)]
pub struct Merge {
    settings: Settings,
    next: u64,
    /// An earlier owner read and counted messages before this offset.
    read_before: u64,
    time: LogTime,
    /// Set while the agents are not known yet. Until then buckets close only at the end of their grace period.
    known_from: Option<i64>,
    agents: BTreeMap<AgentId, AgentEpochs>,
    streams: BTreeMap<StreamKey, Stream>,
    counts: Counts,
    ready: Vec<Vec<u8>>,
    quarantined: Vec<Quarantined>,
    /// The newest quarantined records.
    refused: VecDeque<QuarantinedRecord>,
    packer: Packer,
}

impl Merge {
    /// Starts at an offset, without known agents.
    pub fn new(settings: Settings, offset: u64) -> Self {
        Merge {
            settings,
            next: offset,
            read_before: offset,
            time: LogTime::default(),
            known_from: None,
            agents: BTreeMap::new(),
            streams: BTreeMap::new(),
            counts: Counts::default(),
            ready: Vec::new(),
            quarantined: Vec::new(),
            refused: VecDeque::new(),
            packer: Packer::default(),
        }
    }

    /// Continues from a commit. Messages are read from its offset on.
    pub fn restore(settings: Settings, snapshot: &[u8], offset: u64) -> Result<Self, SnapshotError> {
        let saved = Snapshot::decode(snapshot)?;
        Ok(Merge {
            read_before: saved.next,
            known_from: saved.known_from,
            agents: Snapshot::agents(saved.agents, saved.hosts),
            streams: Snapshot::streams(saved.streams, saved.closed)?,
            counts: saved.counts,
            ..Merge::new(settings, offset)
        })
    }

    /// The log's time as of the last message, in Unix milliseconds; `None` before the first one.
    pub fn time(&self) -> Option<i64> {
        self.time.now()
    }

    /// The offset of the next message.
    pub fn next(&self) -> u64 {
        self.next
    }

    pub fn settings_mut(&mut self) -> &mut Settings {
        &mut self.settings
    }

    /// Called when the log has deleted everything before this offset.
    pub fn skip_to(&mut self, offset: u64) {
        self.next = self.next.max(offset);
    }

    /// Called when the log no longer has messages that were added: it is read again from here, and repeats are recognised.
    pub fn go_back(&mut self, offset: u64) {
        (self.next, self.read_before) = (offset, offset);
    }

    /// Adds the next message.
    pub fn add(&mut self, message: &Message) -> MergeOutcome {
        if message.offset < self.next {
            return MergeOutcome::Seen;
        }
        self.next = message.offset + 1;
        let step = self.time.message(message.appended);
        self.pass(step);
        let outcome = self.take(message);
        if message.offset >= self.read_before {
            self.count(message, outcome);
        }
        self.close_due();
        outcome
    }

    /// Called before messages of a read are added. `monotonic`: milliseconds of a clock that never steps, when they were read.
    pub fn hear(&mut self, monotonic: i64) {
        self.time.hear(monotonic);
    }

    /// Called when all messages in the log were added. `now`: the log's clock in Unix milliseconds, if it can be read.
    pub fn tick(&mut self, now: impl Into<Option<i64>>) {
        self.read_before = self.read_before.min(self.next);
        if !self.agents.is_empty() {
            let step = self.time.at_end(now.into());
            self.pass(step);
        }
        self.close_due();
    }

    /// Follows the log's clock, and its steps.
    fn pass(&mut self, step: i64) {
        let Some(now) = self.time.now() else { return };
        if step != 0 {
            for (key, stream) in &mut self.streams {
                stream.step(step, now, key.width);
            }
        }
        // Not later: the clock may have been ahead.
        let latest = now.saturating_add(self.settings.grace * 1000);
        self.known_from = Some(self.known_from.map_or(latest, |from| from.min(latest)));
    }

    /// The second of the log's clock.
    fn seconds(&self) -> i64 {
        self.time.now().unwrap_or(i64::MIN).div_euclid(1000)
    }

    fn take(&mut self, message: &Message) -> MergeOutcome {
        let record = match Record::decode(&message.bytes) {
            Ok(record) => record,
            Err(error) => return MergeOutcome::Quarantined(QuarantineReason::Unreadable(error)),
        };
        let header = &record.header;
        let Some(publication) = header.publication else {
            return MergeOutcome::Quarantined(QuarantineReason::Unpublished);
        };
        let place = place(&record, publication, &message.bytes);
        let key = StreamKey {
            tenant: header.tenant.clone(),
            width: header.bucket_width,
        };
        if let Err(outcome) = self.admit(&key, header, &place) {
            return outcome;
        }
        let wrong = self.wrong(message, header, publication);
        let agent = self.agents.entry(header.agent).or_default();
        agent.came_from(&header.host);
        if agent.is_succeeded(header.epoch, place.bucket) && message.offset >= self.read_before {
            agent.contradictions += 1;
        }
        agent.take(header.epoch, &place);
        for stream in self.streams.values_mut() {
            stream.check_again(header.agent);
        }
        match wrong {
            Some(reason) => {
                agent.settle(header.epoch, &place, End::Quarantined);
                MergeOutcome::Quarantined(reason)
            }
            None => self.merge(key, message, &record, place),
        }
    }

    /// Checks that the record is new, and that there is room for its agent and stream.
    fn admit(&mut self, key: &StreamKey, header: &Header, place: &RecordFacts) -> Result<(), MergeOutcome> {
        let refuse = |reason| Err(MergeOutcome::Quarantined(reason));
        let stream = self.streams.get(key);
        if stream.is_none() && self.streams.len() >= STREAMS_MAX {
            return refuse(QuarantineReason::TooManyStreams);
        }
        let closed = stream.and_then(|stream| stream.closed_buckets.end(self.seconds()));
        if closed.is_some_and(|end| place.bucket < end.saturating_sub(self.settings.horizon)) {
            return refuse(QuarantineReason::TooOld);
        }
        let Some(agent) = self.agents.get_mut(&header.agent) else {
            return match self.agents.len() < self.settings.agents_max {
                true => Ok(()),
                false => refuse(QuarantineReason::TooManyAgents),
            };
        };
        match agent.check(header.epoch, place) {
            None => refuse(QuarantineReason::TooOld),
            Some(RecordCheck::New) => Ok(()),
            Some(RecordCheck::Repeat) => Err(MergeOutcome::Repeat),
            Some(RecordCheck::Contradiction) => refuse(QuarantineReason::SharedId),
        }
    }

    /// The reason why a valid new record must not be merged.
    fn wrong(
        &self,
        message: &Message,
        header: &Header,
        publication: Publication,
    ) -> Option<QuarantineReason> {
        let max_skew = self.settings.max_skew;
        let ahead = message.sent.saturating_sub(message.appended) / 1000;
        let future = header.bucket_start.saturating_sub(message.appended / 1000);
        let expected = self.settings.plan.at(header.bucket_start);
        if ahead.abs() > max_skew {
            return Some(QuarantineReason::Clock { seconds: ahead });
        }
        if future > max_skew {
            return Some(QuarantineReason::Future { seconds: future });
        }
        (publication.partitions != expected).then_some(QuarantineReason::Partitions {
            found: publication.partitions,
            expected,
        })
    }

    fn merge(
        &mut self,
        key: StreamKey,
        message: &Message,
        record: &Record,
        place: RecordFacts,
    ) -> MergeOutcome {
        let (memory, held) = (self.settings.memory, self.bytes());
        let bounds = self.bounds(held);
        let (seed, now) = (self.settings.hash_seed, self.seconds());
        let partition = self.settings.partition;
        let (header, offset) = (&record.header, message.offset);
        let bucket = (header.bucket_start, header.bucket_width);
        let stream = self.streams.entry(key).or_default();
        stream.record_agent(header, now);
        let is_late = stream.is_closed(bucket, now);
        let open = match is_late {
            true => stream.correction(bucket, seed, offset, message.appended),
            false => stream.open(bucket, seed, offset, message.appended),
        };
        let others = held.saturating_sub(open.bucket.bytes() + open.bucket.closing_bytes());
        let limits = Limits {
            partition,
            plenty: memory.saturating_sub(others),
            scarce: (memory + memory / 8).saturating_sub(others),
        };
        let added = open.bucket.add(record, limits, &bounds);
        open.added.overflowed += added.overflowed;
        open.added.dropped += added.dropped;
        open.last_offset = offset;
        open.records.push((header.agent, header.epoch, place));
        match is_late {
            true => MergeOutcome::Late,
            false => MergeOutcome::Merged,
        }
    }

    /// Limits of states while this many bytes are held.
    fn bounds(&self, held: usize) -> Bounds {
        let mut bounds = self.settings.bounds;
        if held > self.settings.memory / 4 * 3 {
            bounds.samples = bounds.samples.min(256);
            bounds.members = bounds.members.min(512);
            bounds.member_bytes = bounds.member_bytes.min(16 << 10);
        }
        bounds
    }

    /// Bytes held, estimated, with those that closing the largest bucket takes.
    pub fn bytes(&self) -> usize {
        let (mut held, mut closing) = (self.agents.len() * AGENT_BYTES, 0);
        for stream in self.streams.values() {
            held += stream.bytes();
            closing = closing.max(stream.closing_bytes());
        }
        held + closing
    }

    fn count(&mut self, message: &Message, outcome: MergeOutcome) {
        match outcome {
            // Counted when they are settled.
            MergeOutcome::Merged | MergeOutcome::Late | MergeOutcome::Seen => {}
            MergeOutcome::Repeat => self.counts.repeats += 1,
            MergeOutcome::Quarantined(reason) => {
                self.counts.quarantined[reason.index()] += 1;
                self.refuse(message, reason);
                self.quarantined.push(Quarantined {
                    offset: message.offset,
                    reason: reason.to_string(),
                    bytes: message.bytes.clone(),
                });
            }
        }
        if matches!(
            outcome,
            MergeOutcome::Repeat | MergeOutcome::Quarantined(QuarantineReason::SharedId)
        ) && let Ok(record) = Record::decode(&message.bytes)
            && let Some(agent) = self.agents.get_mut(&record.header.agent)
        {
            match outcome {
                MergeOutcome::Repeat => agent.repeats += 1,
                _ => {
                    agent.came_from(&record.header.host);
                    agent.contradictions += 1;
                }
            }
        }
    }

    fn refuse(&mut self, message: &Message, reason: QuarantineReason) {
        if self.refused.len() >= REFUSED_MAX {
            self.refused.pop_front();
        }
        let header = Record::decode(&message.bytes).ok().map(|record| record.header);
        self.refused.push_back(QuarantinedRecord {
            offset: message.offset,
            agent: header.as_ref().map(|header| header.agent),
            host: header.map(|header| header.host).unwrap_or_default(),
            reason,
        });
    }

    /// The newest quarantined records, the last one at the end.
    pub fn refused(&self) -> impl Iterator<Item = &QuarantinedRecord> {
        self.refused.iter()
    }

    /// Closes due buckets, oldest first. The log's time decides, so every owner closes the same buckets.
    fn close_due(&mut self) {
        if self.next < self.read_before {
            return;
        }
        let Some(terms) = self.terms() else { return };
        // Each record asks, and seldom is a bucket due.
        let (agents, streams) = (&self.agents, self.streams.iter_mut());
        let due = streams.filter_map(|(key, stream)| {
            let is_due = stream.due(key.width, &terms, agents) != Due::No;
            is_due.then(|| key.clone())
        });
        for key in due.collect::<Vec<_>>() {
            while let Some(start) = self.due(&key) {
                self.close(&key, start);
            }
        }
    }

    /// The next bucket to close.
    fn due(&mut self, key: &StreamKey) -> Option<i64> {
        let terms = self.terms()?;
        let stream = self.streams.get_mut(key)?;
        match stream.due(key.width, &terms, &self.agents) {
            Due::Now(start) => Some(start),
            // Rather late than without its tags.
            Due::IfFull(start) => (self.bytes() > self.settings.memory / 4 * 3).then_some(start),
            Due::No => None,
        }
    }

    fn terms(&self) -> Option<Terms> {
        let now = self.time.now()?;
        Some(Terms {
            now,
            grace: self.settings.grace.saturating_mul(1000),
            is_known: self.known_from.is_some_and(|from| now >= from),
        })
    }

    fn close(&mut self, key: &StreamKey, start: i64) {
        let Some(stream) = self.streams.get_mut(key) else {
            return;
        };
        let Some(open) = stream.close(start, key.width) else {
            return;
        };
        let closed = stream.closing(start, key.width, &open.agents());
        let occasion = Occasion::Closed {
            expected: closed.expected,
            seen: closed.seen,
        };
        stream.closed = Some(closed);
        let is_trusted = stream.closed_buckets.is_trusted(start);
        self.counts.closed_buckets += 1;
        self.counts.merged += open.records.len() as u64;
        self.finish(key, start, open, occasion);
        if is_trusted {
            self.forget(start.saturating_sub(self.settings.horizon));
        }
    }

    /// Encodes a bucket or a correction into results and settles its records.
    fn finish(&mut self, key: &StreamKey, start: i64, open: PendingBucket, occasion: Occasion) {
        let end = match occasion {
            Occasion::Closed { .. } => End::Merged,
            Occasion::Late { .. } => End::Late,
        };
        let mut states = 0;
        for (agent, epoch, place) in &open.records {
            states += place.states;
            if let Some(agent) = self.agents.get_mut(agent) {
                agent.settle(*epoch, place, end);
            }
        }
        self.counts.overflowed_states += open.added.overflowed;
        self.counts.dropped_states += open.added.dropped;
        let bucket = (start, key.width);
        let header = BucketResult::header(&key.tenant, bucket);
        let (records, too_large) =
            weir_state::encode_rows(&open.bucket, &header, self.settings.threads, &mut self.packer);
        let results = BucketResult::encode(&key.tenant, bucket, occasion, states, records);
        self.ready.extend(results);
        self.counts.too_large_series += too_large.series;
    }

    /// Forgets everything older than this: such records would be refused.
    fn forget(&mut self, bucket: i64) {
        for stream in self.streams.values_mut() {
            stream.members.retain(|_, member| member.last >= bucket);
        }
        let forgotten = &mut self.counts.forgotten;
        self.agents.retain(|_, agent| {
            agent.forget_before(bucket);
            if agent.is_forgotten() {
                *forgotten += agent.ledger(0);
            }
            !agent.is_forgotten()
        });
    }

    /// Whether a commit has more than a few late or refused records.
    pub fn is_commit_urgent(&self) -> bool {
        let refused: usize = self.quarantined.iter().map(|one| one.bytes.len()).sum();
        !self.ready.is_empty() || refused.saturating_add(self.bytes()) > self.settings.memory / 2
    }

    /// The next commit, if there is one. If it fails, drop this merge and restore the next one from the last successful commit.
    pub fn commit(&mut self) -> Option<Commit> {
        self.correct();
        if self.ready.is_empty() && self.quarantined.is_empty() {
            return None;
        }
        let open = self.streams.values().flat_map(|stream| stream.open.values());
        let offset = open.map(|open| open.first_offset).min();
        Some(Commit {
            results: std::mem::take(&mut self.ready),
            quarantined: std::mem::take(&mut self.quarantined),
            snapshot: self.snapshot(),
            offset: offset.unwrap_or(self.next),
        })
    }

    fn correct(&mut self) {
        let streams = self.streams.iter_mut();
        let with_corrections = streams.filter(|(_, stream)| !stream.corrections.is_empty());
        let all =
            with_corrections.map(|(key, stream)| (key.clone(), std::mem::take(&mut stream.corrections)));
        for (key, corrections) in all.collect::<Vec<_>>() {
            for (start, open) in corrections {
                self.counts.corrections += 1;
                self.counts.late += open.records.len() as u64;
                let through = open.last_offset;
                self.finish(&key, start, open, Occasion::Late { through });
            }
        }
    }

    fn snapshot(&self) -> Vec<u8> {
        let agents = self.agents.iter();
        let snapshot = Snapshot {
            next: self.next.max(self.read_before),
            time: self.time.now().unwrap_or(i64::MIN),
            known_from: self.known_from,
            counts: self.counts,
            agents: agents.map(|(id, agent)| (id.0, agent.clone())).collect(),
            streams: self
                .streams
                .iter()
                .map(|(key, stream)| SavedStream::of(key, stream))
                .collect(),
            closed: self
                .streams
                .values()
                .map(|stream| stream.closed_buckets.ranges())
                .collect(),
            hosts: self.agents.values().map(|agent| agent.hosts().to_vec()).collect(),
        };
        snapshot.encode()
    }

    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Ledgers by agent.
    pub fn ledgers(&self) -> BTreeMap<AgentId, Ledger> {
        let mut open: BTreeMap<AgentId, u64> = BTreeMap::new();
        let streams = self.streams.values();
        for bucket in streams.flat_map(|stream| stream.open.values().chain(stream.corrections.values())) {
            for (agent, _, place) in &bucket.records {
                *open.entry(*agent).or_default() += place.states;
            }
        }
        let agents = self.agents.iter();
        agents
            .map(|(id, agent)| (*id, agent.ledger(open.get(id).copied().unwrap_or_default())))
            .collect()
    }

    /// The ledger of all agents, including forgotten ones.
    pub fn ledger(&self) -> Ledger {
        let mut sum = self.counts.forgotten;
        self.ledgers().into_values().for_each(|ledger| sum += ledger);
        sum
    }

    /// An agent's records that may still arrive, and those that are lost.
    pub fn missing(&self, agent: AgentId) -> (Missing, Missing) {
        let agent = self.agents.get(&agent);
        agent.map_or_else(Default::default, |agent| (agent.missing(), agent.abandoned()))
    }

    /// Agents that share an id, with the number of records that prove it.
    pub fn shared_ids(&self) -> impl Iterator<Item = (AgentId, u64)> {
        let agents = self.agents.iter().map(|(id, agent)| (*id, agent.contradictions));
        agents.filter(|(_, contradictions)| *contradictions > 0)
    }

    /// The hosts that an agent's records name, the newest first.
    pub fn hosts(&self, agent: AgentId) -> &[Box<str>] {
        self.agents.get(&agent).map_or(&[], AgentEpochs::hosts)
    }

    /// Number of an agent's repeated records.
    pub fn repeats(&self, agent: AgentId) -> u64 {
        self.agents.get(&agent).map_or(0, |agent| agent.repeats)
    }

    pub fn streams(&self) -> Vec<StreamStatus> {
        let streams = self.streams.iter();
        streams
            .map(|(key, stream)| stream.status(key, self.seconds()))
            .collect()
    }
}

fn place(record: &Record, publication: Publication, bytes: &[u8]) -> RecordFacts {
    RecordFacts {
        sequence: record.header.sequence,
        states_before: publication.states_before,
        states: record.len() as u64,
        bucket: record.header.bucket_start,
        checksum: xxhash_rust::xxh3::xxh3_64(bytes) as u32,
    }
}
