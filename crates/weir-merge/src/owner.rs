//! Reads the partitions that a log assigns, merges them, and commits.

use std::collections::BTreeMap;

use crate::log::{Assignment, CommitError, Fetched, Log};
use crate::merge::{Merge, Settings};
use crate::snapshot::SnapshotError;

/// Bytes per fetch.
const FETCH_BYTES: usize = 1 << 20;

/// Reads a log. Several may do so concurrently; each partition is committed by one of them only.
#[derive(Debug)]
pub struct Owner<L> {
    log: L,
    /// The memory is shared by all held partitions.
    settings: Settings,
    commit_interval: i64,
    held: BTreeMap<u32, HeldPartition>,
}

#[derive(Debug)]
struct HeldPartition {
    /// When it was committed last, by the log's monotonic clock.
    committed: i64,
    generation: u64,
    /// Number of unread messages.
    behind: u64,
    /// `None`: to be restored from the last commit.
    merge: Option<Merge>,
    /// Why it could not be restored.
    refused: Option<SnapshotError>,
}

/// Result of a turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OwnerTurn {
    pub messages: u64,
    pub commits: u64,
    /// Partitions lost to another owner.
    pub fenced: u64,
    /// Number of unread messages.
    pub behind: u64,
}

impl<L: Log> Owner<L> {
    pub fn new(log: L, settings: Settings) -> Self {
        Owner {
            log,
            settings,
            commit_interval: 0,
            held: BTreeMap::new(),
        }
    }

    /// Late and refused records without a closed bucket wait so many milliseconds for a commit: each writes a whole snapshot.
    pub fn set_commit_interval(&mut self, milliseconds: i64) {
        self.commit_interval = milliseconds;
    }

    pub fn log(&mut self) -> &mut L {
        &mut self.log
    }

    /// Number of unread messages of a partition.
    pub fn behind(&self, partition: u32) -> u64 {
        self.held.get(&partition).map_or(0, |held| held.behind)
    }

    /// The partitions being read.
    pub fn merges(&self) -> impl Iterator<Item = (u32, &Merge)> {
        self.held
            .iter()
            .filter_map(|(partition, held)| Some((*partition, held.merge.as_ref()?)))
    }

    /// Partitions with an unreadable snapshot. They are not merged, because records would be merged twice.
    pub fn refused(&self) -> impl Iterator<Item = (u32, &SnapshotError)> {
        self.held
            .iter()
            .filter_map(|(partition, held)| Some((*partition, held.refused.as_ref()?)))
    }

    /// Follows changes of the assignment, then reads and commits a part of each partition. An error in one does not stop the others; the
    /// first error is returned. Uncommitted records are read again.
    pub fn turn(&mut self) -> Result<OwnerTurn, L::Error> {
        self.follow_assignments()?;
        self.settings.plan = self.log.plan()?;
        let (mut turn, mut failed) = (OwnerTurn::default(), None);
        let memory = self.settings.memory / self.held.len().max(1);
        let mut reading = Reading {
            log: &mut self.log,
            settings: &self.settings,
            commit_interval: self.commit_interval,
            memory,
            turn: &mut turn,
        };
        self.held
            .retain(|partition, held| match reading.read(*partition, held) {
                Err(CommitError::Fenced) => {
                    reading.turn.fenced += 1;
                    false
                }
                Err(CommitError::Log(error)) => {
                    failed.get_or_insert(error);
                    true
                }
                Ok(()) => true,
            });
        failed.map_or(Ok(turn), Err)
    }

    fn follow_assignments(&mut self) -> Result<(), L::Error> {
        for assignment in self.log.assignments()? {
            match assignment {
                Assignment::Assigned {
                    partition,
                    generation,
                } => {
                    let held = HeldPartition {
                        generation,
                        committed: i64::MIN,
                        behind: 0,
                        merge: None,
                        refused: None,
                    };
                    self.held.insert(partition, held);
                }
                Assignment::Revoked { partition } => drop(self.held.remove(&partition)),
            }
        }
        Ok(())
    }

    /// Number of assigned partitions, restored or not.
    pub fn held(&self) -> usize {
        self.held.len()
    }
}

/// A turn.
struct Reading<'a, L> {
    log: &'a mut L,
    settings: &'a Settings,
    commit_interval: i64,
    /// Of each partition.
    memory: usize,
    turn: &'a mut OwnerTurn,
}

impl<L: Log> Reading<'_, L> {
    fn read(&mut self, partition: u32, held: &mut HeldPartition) -> Result<(), CommitError<L::Error>> {
        if held.merge.is_none() {
            let loaded = self.load(partition)?;
            held.refused = loaded.as_ref().err().cloned();
            held.merge = loaded.ok();
        }
        let turn = &mut *self.turn;
        let Some(merge) = &mut held.merge else {
            return Ok(());
        };
        merge.settings_mut().plan.clone_from(&self.settings.plan);
        merge.settings_mut().memory = self.memory;
        let fetched = self.log.fetch(partition, merge.next(), FETCH_BYTES)?;
        held.behind = fetched.end.saturating_sub(fetched.next);
        turn.behind += held.behind;
        let since = fetched.monotonic.saturating_sub(held.committed);
        let now = fetched.monotonic;
        turn.messages += take(merge, fetched);
        if since < self.commit_interval && !merge.is_commit_urgent() {
            return Ok(());
        }
        if let Some(commit) = merge.commit() {
            held.committed = now;
            let committed = self.log.commit(partition, held.generation, &commit);
            if committed.is_err() {
                // The commit may or may not have succeeded; only the log knows.
                held.merge = None;
            }
            committed?;
            turn.commits += 1;
        }
        Ok(())
    }

    /// The state of a partition as of its last commit, unless the snapshot is damaged or has another version.
    fn load(&mut self, partition: u32) -> Result<Result<Merge, SnapshotError>, L::Error> {
        let settings = Settings {
            partition,
            ..self.settings.clone()
        };
        Ok(match self.log.committed(partition)? {
            Some((snapshot, offset)) => Merge::restore(settings, &snapshot, offset),
            None => Ok(Merge::new(settings, 0)),
        })
    }
}

/// Adds fetched messages in the order of the log, and returns the number of new ones.
fn take(merge: &mut Merge, mut fetched: Fetched) -> u64 {
    if fetched.end < merge.next() {
        merge.go_back(fetched.start);
        return 0;
    }
    merge.hear(fetched.monotonic);
    merge.skip_to(fetched.start);
    fetched.messages.sort_by_key(|message| message.offset);
    let before = merge.next();
    let new = fetched
        .messages
        .iter()
        .filter(|message| (before..fetched.next).contains(&message.offset))
        .map(|message| merge.add(message))
        .filter(|outcome| *outcome != crate::MergeOutcome::Seen)
        .count();
    merge.skip_to(fetched.next);
    if fetched.next >= fetched.end {
        merge.tick(fetched.now);
    }
    new as u64
}
