//! The log of the simulation: partitions with a clock, owners with generations, and injected faults.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use weir_merge::{Assignment, Commit, CommitError, Fetched, Log, Message, Plan};

use super::random::Random;

#[derive(Debug, thiserror::Error)]
#[error("the log does not answer")]
pub struct Unreachable;

/// Frequency of each fault: one in this many cases; zero for never.
#[derive(Clone, Copy, Debug, Default)]
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
    pub generation: u64,
    pub commits: Vec<Commit>,
    pub results_sent: u64,
}

#[derive(Debug)]
pub struct World {
    /// Unix milliseconds.
    pub now: i64,
    pub random: Random,
    pub faults: Faults,
    pub plan: Plan,
    pub partitions: Vec<Partition>,
    /// Assignments that each owner has not received yet.
    pub news: BTreeMap<usize, Vec<Assignment>>,
    /// Owners that receive nothing.
    pub deaf: std::collections::BTreeSet<usize>,
    pub fenced: u64,
}

pub type Shared = Rc<RefCell<World>>;

impl World {
    pub fn new(seed: u64, partitions: u32) -> Shared {
        Rc::new(RefCell::new(World {
            now: crate::support::START * 1000,
            random: Random::new(seed),
            faults: Faults::default(),
            plan: Plan::new(partitions),
            partitions: (0..partitions).map(|_| Partition::default()).collect(),
            news: BTreeMap::new(),
            deaf: std::collections::BTreeSet::new(),
            fenced: 0,
        }))
    }

    /// Assigns a partition to an owner. Earlier owners are notified and fenced.
    pub fn assign(&mut self, partition: u32, owner: usize) {
        let at = &mut self.partitions[partition as usize];
        at.generation += 1;
        let generation = at.generation;
        for (other, news) in &mut self.news {
            if *other != owner {
                news.push(Assignment::Revoked { partition });
            }
        }
        self.news.entry(owner).or_default().push(Assignment::Assigned {
            partition,
            generation,
        });
    }

    pub fn append(&mut self, partition: u32, sent: i64, bytes: &[u8]) -> u64 {
        let messages = &mut self.partitions[partition as usize].messages;
        let offset = messages.len() as u64;
        messages.push(Message {
            offset,
            appended: self.now,
            sent,
            bytes: bytes.to_vec(),
        });
        offset
    }

    /// Deletes messages older than this many seconds.
    pub fn retain(&mut self, seconds: i64) {
        let oldest = self.now - seconds * 1000;
        for partition in &mut self.partitions {
            let kept = partition
                .messages
                .partition_point(|message| message.appended < oldest);
            partition.start = partition.start.max(kept as u64);
        }
    }
}

impl Partition {
    pub fn results(&self) -> Vec<Vec<u8>> {
        self.commits
            .iter()
            .flat_map(|commit| commit.results.clone())
            .collect()
    }
}

/// The log as one owner sees it.
#[derive(Debug)]
pub struct SimulatedLog {
    pub world: Shared,
    pub owner: usize,
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
        match world.deaf.contains(&self.owner) {
            true => Ok(Vec::new()),
            false => Ok(std::mem::take(world.news.entry(self.owner).or_default())),
        }
    }

    fn fetch(&mut self, partition: u32, from: u64, _bytes_max: usize) -> Result<Fetched, Unreachable> {
        let mut world = self.world.borrow_mut();
        let world = &mut *world;
        if world.random.one_in(world.faults.fetch_fails) {
            return Err(Unreachable);
        }
        let at = &world.partitions[partition as usize];
        let end = at.messages.len() as u64;
        let from = from.max(at.start).min(end);
        let next = end.min(from + 1 + world.random.below(20));
        let mut messages = at.messages[from as usize..next as usize].to_vec();
        if world.random.one_in(world.faults.fetch_disorder) {
            let before = from.saturating_sub(world.random.below(5)).max(at.start);
            let behind = end.min(next + world.random.below(3));
            messages.extend_from_slice(&at.messages[before as usize..behind as usize]);
            world.random.shuffle(&mut messages);
        }
        Ok(Fetched {
            start: at.start,
            messages,
            next,
            end,
            now: world.now,
        })
    }

    fn committed(&mut self, partition: u32) -> Result<Option<(Vec<u8>, u64)>, Unreachable> {
        let world = self.world.borrow();
        let last = world.partitions[partition as usize].commits.last();
        Ok(last.map(|commit| (commit.snapshot.clone(), commit.offset)))
    }

    fn commit(
        &mut self,
        partition: u32,
        generation: u64,
        commit: &Commit,
    ) -> Result<(), CommitError<Unreachable>> {
        let mut world = self.world.borrow_mut();
        let world = &mut *world;
        let at = &mut world.partitions[partition as usize];
        if generation != at.generation {
            world.fenced += 1;
            return Err(CommitError::Fenced);
        }
        if world.random.one_in(world.faults.commit_fails) {
            return Err(Unreachable.into());
        }
        at.commits.push(commit.clone());
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
        let results = self.world.borrow().partitions[partition as usize].results();
        Ok((0..).zip(results).skip(from as usize).collect())
    }

    fn results_sent(&mut self, partition: u32) -> Result<u64, Unreachable> {
        Ok(self.world.borrow().partitions[partition as usize].results_sent)
    }

    fn record_results_sent(
        &mut self,
        partition: u32,
        generation: u64,
        before: u64,
    ) -> Result<(), CommitError<Unreachable>> {
        let mut world = self.world.borrow_mut();
        let at = &mut world.partitions[partition as usize];
        if generation != at.generation {
            return Err(CommitError::Fenced);
        }
        at.results_sent = before;
        Ok(())
    }
}
