//! The log of the simulation: partitions with a clock, owners with generations, and injected faults.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use weir_merge::{Assignment, BucketResult, Commit, CommitError, Fetched, Log, Message, Plan};
use weir_state::Record;

use super::outputs::POLICIES;
use super::random::Random;
use crate::support::decoded;

#[derive(Debug, thiserror::Error)]
#[error("the log does not answer")]
pub struct Unreachable;

/// Frequency of each fault: one in this many cases; zero for never.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    pub fetch_fails: u64,
    /// Messages are returned in another order, some twice, and some earlier ones.
    pub fetch_disorder: u64,
    pub commit_fails: u64,
    /// The commit succeeds without acknowledgement.
    pub commit_unheard: u64,
}

#[derive(Debug, Default)]
pub struct Partition {
    /// The oldest message.
    pub start: u64,
    pub messages: Vec<Message>,
    /// When each was appended, whatever the log's clock said.
    pub stored: Vec<i64>,
    /// Offsets of records that a reader skips, because a file was damaged.
    pub damaged: BTreeSet<u64>,
    /// The owner that it was assigned to last, unless that was killed.
    pub owner: Option<usize>,
    pub generation: u64,
    /// Without their results.
    pub commits: Vec<Commit>,
    /// The results of all commits, the same decoded, and when each was written.
    pub results: Vec<Vec<u8>>,
    pub decoded: Vec<(BucketResult, Record)>,
    pub written: Vec<i64>,
    /// By output.
    pub sent: BTreeMap<usize, Sent>,
}

/// One output's part of a partition.
#[derive(Debug, Default)]
pub struct Sent {
    pub owner: Option<usize>,
    pub generation: u64,
    pub position: u64,
    /// Of an output of sums: its sums, and the position behind them.
    pub sums: Option<(Vec<u8>, u64)>,
}

#[derive(Debug)]
pub struct World {
    /// Unix milliseconds: the time that has passed.
    pub now: i64,
    /// Difference of the log's clock from it, and whether that has changed.
    pub clock: i64,
    pub has_stepped: bool,
    /// A file log's clock can be read at any time; brokers' only from messages.
    pub reads_clock: bool,
    pub random: Random,
    pub faults: Faults,
    pub plan: Plan,
    pub partitions: Vec<Partition>,
    /// The same records as another group of owners has them, with its own results; empty: there is no other group.
    pub others: Vec<Partition>,
    /// Assignments that each owner has not received yet.
    pub news: BTreeMap<usize, Vec<Assignment>>,
    /// The same for each output of each owner.
    pub news_of_outputs: BTreeMap<(usize, usize), Vec<Assignment>>,
    /// Owners that receive nothing.
    pub deaf: BTreeSet<usize>,
    pub fenced: u64,
    /// Outputs have memory for more than the next bucket.
    pub has_room: bool,
    /// Partitions that a rebalance leaves with their owner continue, as with Kafka's cooperative rebalance. Otherwise all are assigned again.
    pub is_cooperative: bool,
    /// Prints what happens, to find the cause of a failure.
    pub is_traced: bool,
}

pub type Shared = Rc<RefCell<World>>;

impl World {
    pub fn new(seed: u64, partitions: u32) -> Shared {
        Rc::new(RefCell::new(World {
            now: crate::support::START * 1000,
            clock: 0,
            has_stepped: false,
            reads_clock: seed.is_multiple_of(2),
            random: Random::new(seed),
            faults: Faults::default(),
            plan: Plan::new(partitions),
            partitions: (0..partitions).map(|_| Partition::default()).collect(),
            others: Vec::new(),
            news: BTreeMap::new(),
            news_of_outputs: BTreeMap::new(),
            deaf: BTreeSet::new(),
            fenced: 0,
            has_room: seed % 4 != 1,
            is_cooperative: seed % 8 < 4,
            is_traced: std::env::var_os("WEIR_SIMULATION_TRACE").is_some(),
        }))
    }

    pub fn of(&self, group: Group) -> &[Partition] {
        match group {
            Group::First => &self.partitions,
            Group::Other => &self.others,
        }
    }

    fn of_mut(&mut self, group: Group) -> &mut [Partition] {
        match group {
            Group::First => &mut self.partitions,
            Group::Other => &mut self.others,
        }
    }

    /// Assigns a partition to an owner. Earlier owners are notified and fenced.
    pub fn assign(&mut self, partition: u32, owner: usize) {
        let group = group_of(owner);
        let at = &mut self.of_mut(group)[partition as usize];
        at.generation += 1;
        at.owner = Some(owner);
        let generation = at.generation;
        for (other, news) in &mut self.news {
            if *other != owner && group_of(*other) == group {
                news.push(Assignment::Revoked { partition });
            }
        }
        self.news.entry(owner).or_default().push(Assignment::Assigned {
            partition,
            generation,
        });
    }

    /// The same for one output.
    pub fn assign_to_output(&mut self, output: usize, partition: u32, owner: usize) {
        let group = group_of(owner);
        let sent = self.of_mut(group)[partition as usize]
            .sent
            .entry(output)
            .or_default();
        sent.generation += 1;
        sent.owner = Some(owner);
        let generation = sent.generation;
        for ((of, other), news) in &mut self.news_of_outputs {
            if *of == output && *other != owner && group_of(*other) == group {
                news.push(Assignment::Revoked { partition });
            }
        }
        let news = self.news_of_outputs.entry((output, owner)).or_default();
        news.push(Assignment::Assigned {
            partition,
            generation,
        });
    }

    /// Whether a rebalance leaves a partition where it is.
    pub fn keeps(&self, partition: u32, owner: usize) -> bool {
        self.is_cooperative && self.partitions[partition as usize].owner == Some(owner)
    }

    /// The same for one output.
    pub fn keeps_of_output(&self, output: usize, partition: u32, owner: usize) -> bool {
        let sent = self.partitions[partition as usize].sent.get(&output);
        self.is_cooperative && sent.is_some_and(|sent| sent.owner == Some(owner))
    }

    /// A killed owner has nothing, and its successor is told nothing of before.
    pub fn forget(&mut self, owner: usize) {
        self.news.insert(owner, Vec::new());
        for output in 0..POLICIES.len() {
            self.news_of_outputs.insert((output, owner), Vec::new());
        }
        for at in &mut self.partitions {
            at.owner = at.owner.filter(|of| *of != owner);
            for sent in at.sent.values_mut() {
                sent.owner = sent.owner.filter(|of| *of != owner);
            }
        }
    }

    /// The same with all outputs.
    pub fn assign_all(&mut self, partition: u32, owner: usize) {
        self.assign(partition, owner);
        for output in 0..POLICIES.len() {
            self.assign_to_output(output, partition, owner);
        }
    }

    pub fn append(&mut self, partition: u32, sent: i64, bytes: &[u8]) -> u64 {
        let at = &mut self.partitions[partition as usize];
        at.stored.push(self.now);
        let messages = &mut at.messages;
        let offset = messages.len() as u64;
        if self.is_traced {
            let bucket = Record::decode(bytes).map_or(0, |record| record.header.bucket_start);
            let (now, clock) = (self.now / 1000, self.clock / 1000);
            eprintln!("{now} (log {clock:+}): record {partition}/{offset} of bucket {bucket}");
        }
        messages.push(Message {
            offset,
            appended: self.now + self.clock,
            sent,
            bytes: bytes.to_vec(),
        });
        if let Some(other) = self.others.get_mut(partition as usize) {
            other.stored.push(self.now);
            other.messages.extend(messages.last().cloned());
        }
        offset
    }

    /// The log's clock differs by this many milliseconds from now on.
    pub fn step_clock(&mut self, clock: i64) {
        self.has_stepped |= self.clock != clock;
        self.clock = clock;
    }

    /// Damages one of the newest records of a partition.
    pub fn damage(&mut self) {
        let partition = self.random.below(self.partitions.len() as u64) as usize;
        let at = &mut self.partitions[partition];
        let end = at.messages.len() as u64;
        if end > at.start {
            let back = 1 + self.random.below(end.min(20));
            let offset = end.saturating_sub(back).max(at.start);
            at.damaged.insert(offset);
            self.others
                .get_mut(partition)
                .map(|other| other.damaged.insert(offset));
        }
    }

    /// Deletes messages older than this many seconds.
    pub fn retain(&mut self, seconds: i64) {
        let oldest = self.now + self.clock - seconds * 1000;
        for partition in self.partitions.iter_mut().chain(&mut self.others) {
            let messages = partition.messages.iter();
            let old = messages.take_while(|message| message.appended < oldest).count();
            partition.start = partition.start.max(old as u64);
        }
    }
}

/// Owners that read the same records for themselves, as with another `log.group`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    First,
    Other,
}

/// The one owner of the other group.
pub const OTHER: usize = 100;

fn group_of(owner: usize) -> Group {
    if owner < OTHER { Group::First } else { Group::Other }
}

impl SimulatedLog {
    /// Whose topics of results and snapshots it uses.
    fn topics(&self) -> Group {
        group_of(self.owner)
    }
}

/// The log as one owner sees it.
#[derive(Debug)]
pub struct SimulatedLog {
    pub world: Shared,
    pub owner: usize,
    /// `None`: the log as the owner itself sees it.
    pub output: Option<usize>,
}

impl Log for SimulatedLog {
    type Error = Unreachable;

    fn plan(&mut self) -> Result<Plan, Unreachable> {
        Ok(self.world.borrow().plan.clone())
    }

    fn append(&mut self, partition: u32, sent: i64, bytes: &[u8]) -> Result<u64, Unreachable> {
        Ok(self.world.borrow_mut().append(partition, sent, bytes))
    }

    fn assignments(&mut self) -> Result<Vec<Assignment>, Unreachable> {
        let mut world = self.world.borrow_mut();
        if world.deaf.contains(&self.owner) {
            return Ok(Vec::new());
        }
        let news = match self.output {
            None => world.news.entry(self.owner).or_default(),
            Some(output) => world.news_of_outputs.entry((output, self.owner)).or_default(),
        };
        Ok(std::mem::take(news))
    }

    fn fetch(&mut self, partition: u32, from: u64, _bytes_max: usize) -> Result<Fetched, Unreachable> {
        let mut world = self.world.borrow_mut();
        let world = &mut *world;
        if world.random.one_in(world.faults.fetch_fails) {
            return Err(Unreachable);
        }
        // Of two fields, so that the random numbers are free.
        let partitions = match group_of(self.owner) {
            Group::First => &world.partitions,
            Group::Other => &world.others,
        };
        let at = &partitions[partition as usize];
        let end = at.messages.len() as u64;
        let from = from.max(at.start).min(end);
        let next = end.min(from + 1 + world.random.below(20));
        let mut messages = at.messages[from as usize..next as usize].to_vec();
        messages.retain(|message| !at.damaged.contains(&message.offset));
        if world.random.one_in(world.faults.fetch_disorder) {
            let before = from.saturating_sub(world.random.below(5)).max(at.start);
            let behind = end.min(next + world.random.below(3));
            let more = at.messages[before as usize..behind as usize].iter();
            let whole = more.filter(|message| !at.damaged.contains(&message.offset));
            messages.extend(whole.cloned());
            world.random.shuffle(&mut messages);
        }
        Ok(Fetched {
            start: at.start,
            messages,
            next,
            end,
            now: world.reads_clock.then_some(world.now + world.clock),
            monotonic: world.now - crate::support::START * 1000,
        })
    }

    fn committed(&mut self, partition: u32) -> Result<Option<(Vec<u8>, u64)>, Unreachable> {
        let world = self.world.borrow();
        let at = &world.of(self.topics())[partition as usize];
        if let Some(output) = self.output {
            return Ok(at.sent[&output].sums.clone());
        }
        let last = at.commits.last();
        Ok(last.map(|commit| (commit.snapshot.clone(), commit.offset)))
    }

    fn commit(
        &mut self,
        partition: u32,
        generation: u64,
        commit: &Commit,
    ) -> Result<(), CommitError<Unreachable>> {
        if self.output.is_some() {
            return self.store(partition, generation, commit.offset, Some(&commit.snapshot));
        }
        let mut world = self.world.borrow_mut();
        let world = &mut *world;
        if generation != world.of(group_of(self.owner))[partition as usize].generation {
            world.fenced += 1;
            return Err(CommitError::Fenced);
        }
        if world.random.one_in(world.faults.commit_fails) {
            return Err(Unreachable.into());
        }
        if world.is_traced {
            let now = world.now / 1000;
            for result in &commit.results {
                let result = BucketResult::read(result).expect("a result");
                let (tenant, bucket, occasion) = (result.tenant, result.bucket_start, result.occasion);
                eprintln!("{now}: partition {partition}, bucket {bucket} of {tenant:?}: {occasion:?}");
            }
            eprintln!(
                "{now}: partition {partition} is committed up to {}",
                commit.offset
            );
        }
        let now = world.now;
        let at = &mut world.of_mut(self.topics())[partition as usize];
        at.results.extend_from_slice(&commit.results);
        at.decoded.extend(decoded(&commit.results));
        at.written.resize(at.results.len(), now);
        at.commits.push(Commit {
            results: Vec::new(),
            quarantined: commit.quarantined.clone(),
            snapshot: commit.snapshot.clone(),
            offset: commit.offset,
        });
        match world.random.one_in(world.faults.commit_unheard) {
            true => Err(Unreachable.into()),
            false => Ok(()),
        }
    }

    fn results(
        &mut self,
        partition: u32,
        from: u64,
        _bytes_max: usize,
    ) -> Result<Vec<(u64, Vec<u8>)>, Unreachable> {
        let mut world = self.world.borrow_mut();
        let world = &mut *world;
        if world.random.one_in(world.faults.fetch_fails) {
            return Err(Unreachable);
        }
        let some = 1 + world.random.below(5) as usize;
        let results = &world.of(self.topics())[partition as usize].results;
        let rest = results.get(from as usize..).unwrap_or_default();
        let numbered = (from..).zip(rest).take(some);
        Ok(numbered
            .map(|(number, result)| (number, result.clone()))
            .collect())
    }

    fn results_start(&mut self, _partition: u32) -> Result<u64, Unreachable> {
        Ok(0)
    }

    fn results_sent(&mut self, partition: u32) -> Result<u64, Unreachable> {
        let output = self.output.expect("of an output");
        let world = self.world.borrow();
        Ok(world.of(group_of(self.owner))[partition as usize].sent[&output].position)
    }

    fn record_results_sent(
        &mut self,
        partition: u32,
        generation: u64,
        before: u64,
    ) -> Result<(), CommitError<Unreachable>> {
        self.store(partition, generation, before, None)
    }
}

impl SimulatedLog {
    /// Stores the position of an output, with its sums if it has some.
    fn store(
        &mut self,
        partition: u32,
        generation: u64,
        before: u64,
        sums: Option<&[u8]>,
    ) -> Result<(), CommitError<Unreachable>> {
        let output = self.output.expect("of an output");
        let mut world = self.world.borrow_mut();
        let world = &mut *world;
        let partitions = match group_of(self.owner) {
            Group::First => &mut world.partitions,
            Group::Other => &mut world.others,
        };
        let sent = partitions[partition as usize].sent.get_mut(&output);
        let sent = sent.expect("it was assigned");
        if generation != sent.generation {
            return Err(CommitError::Fenced);
        }
        assert!(
            before >= sent.position,
            "a position goes back from {} to {before}",
            sent.position
        );
        if world.random.one_in(world.faults.commit_fails) {
            return Err(Unreachable.into());
        }
        if let Some(sums) = sums {
            sent.sums = Some((sums.to_vec(), before));
            // Files keep the sums first, then the position.
            if world.reads_clock && world.random.one_in(world.faults.commit_fails) {
                return Err(Unreachable.into());
            }
        }
        sent.position = before;
        match world.random.one_in(world.faults.commit_unheard) {
            true => Err(Unreachable.into()),
            false => Ok(()),
        }
    }
}
