//! One partition's view of an agent: which of its records were merged, and the fate of their states.

use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Unbounded};

use serde::{Deserialize, Serialize};

use crate::ledger::{Ledger, Missing};
use crate::sequence::{RecordCheck, RecordFacts, Sequence};
use crate::snapshot::COUNT_MAX;

/// Names of an agent's hosts that are remembered: after a change of the name, or if two agents share an id, there are two.
const HOSTS_MAX: usize = 2;

/// Epochs (starts) of an agent that are distinguished. With more the oldest is closed.
const EPOCHS_MAX: usize = 64;

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct AgentEpochs {
    epochs: BTreeMap<u64, Epoch>,
    /// Earlier epochs are closed: their records are refused.
    first_epoch: u64,
    /// Ledger of closed epochs.
    past: Ledger,
    late: u64,
    merged: u64,
    quarantined: u64,
    pub repeats: u64,
    /// Records that prove that two processes write under this name.
    pub contradictions: u64,
    /// The newest first. Snapshots have them in a place of their own.
    #[serde(skip)]
    hosts: Vec<Box<str>>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Epoch {
    /// All merged records. Unsettled ones are read again by the next owner, so this is not saved.
    #[serde(skip)]
    taken: Sequence,
    /// Records whose fate is final: those of closed buckets, of committed corrections, and quarantined ones.
    settled: Sequence,
    first_bucket: i64,
}

/// The fate of a record's states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Merged,
    Late,
    Quarantined,
}

impl AgentEpochs {
    /// Whether a saved state is plausible.
    pub fn is_possible(&self) -> bool {
        let counts = [
            self.late,
            self.merged,
            self.quarantined,
            self.repeats,
            self.contradictions,
        ];
        counts.into_iter().all(|count| count <= COUNT_MAX)
    }

    /// Remembers the host that a record names.
    pub fn came_from(&mut self, host: &str) {
        if host.is_empty() || self.hosts.first().is_some_and(|newest| **newest == *host) {
            return;
        }
        self.hosts.retain(|known| **known != *host);
        self.hosts.insert(0, host.into());
        self.hosts.truncate(HOSTS_MAX);
    }

    pub fn hosts(&self) -> &[Box<str>] {
        &self.hosts
    }

    /// Continues from a saved state.
    pub fn restore(&mut self) {
        for epoch in self.epochs.values_mut() {
            epoch.taken = epoch.settled.clone();
        }
    }

    /// `None`: the epoch is closed.
    pub fn check(&self, epoch: u64, place: &RecordFacts) -> Option<RecordCheck> {
        if epoch < self.first_epoch {
            return None;
        }
        match self.epochs.get(&epoch) {
            Some(epoch) => Some(epoch.taken.check(place)),
            None => Some(Sequence::default().check(place)),
        }
    }

    /// Records a new record.
    pub fn take(&mut self, epoch: u64, place: &RecordFacts) {
        let mine = self.epochs.entry(epoch).or_insert_with(|| Epoch {
            first_bucket: place.bucket,
            ..Epoch::default()
        });
        mine.first_bucket = mine.first_bucket.min(place.bucket);
        mine.taken.take(place);
        mine.taken.keep_few_holes();
        while self.epochs.len() > EPOCHS_MAX && self.is_first_settled() {
            self.close_first();
        }
    }

    /// The next owner must find unsettled records again.
    fn is_first_settled(&self) -> bool {
        let first = self.epochs.first_key_value();
        first.is_some_and(|(_, first)| first.taken.is_same(&first.settled))
    }

    /// Whether a later epoch of the agent had begun before this bucket: an ended process cannot continue.
    pub fn is_succeeded(&self, epoch: u64, bucket: i64) -> bool {
        let mut later = self.epochs.range((Excluded(epoch), Unbounded));
        later.any(|(_, later)| later.first_bucket < bucket)
    }

    /// Makes the fate of a record final.
    pub fn settle(&mut self, epoch: u64, place: &RecordFacts, end: End) {
        match end {
            End::Merged => self.merged += place.states,
            End::Late => self.late += place.states,
            End::Quarantined => self.quarantined += place.states,
        }
        if let Some(epoch) = self.epochs.get_mut(&epoch) {
            epoch.settled.take(place);
        }
    }

    pub fn has_hole_at(&self, bucket: i64) -> bool {
        self.epochs.values().any(|epoch| epoch.taken.has_hole_at(bucket))
    }

    /// Closes everything older than this: such records are refused.
    pub fn forget_before(&mut self, bucket: i64) {
        for epoch in self.epochs.values_mut() {
            epoch.taken.give_up_before(bucket);
            epoch.settled.give_up_before(bucket);
        }
        while self.is_first_before(bucket) && self.is_first_settled() {
            self.close_first();
        }
    }

    fn is_first_before(&self, bucket: i64) -> bool {
        let first = self.epochs.first_key_value();
        first.is_some_and(|(_, first)| first.taken.last_bucket() < bucket)
    }

    fn close_first(&mut self) {
        let Some((epoch, closed)) = self.epochs.pop_first() else {
            return;
        };
        self.first_epoch = epoch.saturating_add(1);
        let mut lost = closed.taken.missing();
        lost.add(closed.taken.abandoned());
        self.past += Ledger {
            published: closed.taken.published(),
            lost: lost.states,
            ..Ledger::default()
        };
    }

    /// Whether all of its records are so old that they would be refused.
    pub fn is_forgotten(&self) -> bool {
        self.epochs.is_empty()
    }

    pub fn missing(&self) -> Missing {
        self.sum(Sequence::missing)
    }

    /// Records known to be lost, of open epochs.
    pub fn abandoned(&self) -> Missing {
        self.sum(Sequence::abandoned)
    }

    fn sum(&self, of: impl Fn(&Sequence) -> Missing) -> Missing {
        let mut sum = Missing::default();
        self.epochs.values().for_each(|epoch| sum.add(of(&epoch.taken)));
        sum
    }

    /// `open`: its states in open buckets.
    pub fn ledger(&self, open: u64) -> Ledger {
        let mut ledger = Ledger {
            merged: self.merged,
            late: self.late,
            quarantined: self.quarantined,
            open,
            missing: self.missing().states,
            lost: self.abandoned().states,
            ..self.past
        };
        ledger.lost = ledger.lost.saturating_add(self.past.lost);
        for epoch in self.epochs.values() {
            ledger.published = ledger.published.saturating_add(epoch.taken.published());
        }
        ledger
    }
}
