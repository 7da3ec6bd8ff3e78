//! Accounts for every state that an agent published.

use std::ops::AddAssign;

use serde::{Deserialize, Serialize};

/// A range of buckets by their start: after `from`, up to `to`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interval {
    pub from: i64,
    pub to: i64,
}

/// Records that must exist because numbers have no gaps, and that did not arrive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Missing {
    pub records: u64,
    pub states: u64,
    /// Their buckets; of several, from the first to the last.
    pub interval: Option<Interval>,
}

impl Missing {
    pub fn add(&mut self, other: Missing) {
        self.records = self.records.saturating_add(other.records);
        self.states = self.states.saturating_add(other.states);
        self.interval = match (self.interval, other.interval) {
            (Some(mine), Some(theirs)) => Some(Interval {
                from: mine.from.min(theirs.from),
                to: mine.to.max(theirs.to),
            }),
            (one, other) => one.or(other),
        };
    }
}

/// Series states of one agent in one partition, or a sum of such counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ledger {
    /// As announced by the agent.
    pub published: u64,
    /// In results of closed buckets.
    pub merged: u64,
    /// In corrections, because their bucket was closed.
    pub late: u64,
    pub quarantined: u64,
    /// In open buckets, and in corrections that are not committed.
    pub open: u64,
    /// Not received yet.
    pub missing: u64,
    /// Lost for good: the log deleted them before they were read, or the agent dropped them.
    pub lost: u64,
}

impl Ledger {
    /// Published states that no other line accounts for. Always zero; tests remove something and see it here.
    pub fn difference(&self) -> i128 {
        let found = [
            self.merged,
            self.late,
            self.quarantined,
            self.open,
            self.missing,
            self.lost,
        ];
        i128::from(self.published) - found.into_iter().map(i128::from).sum::<i128>()
    }
}

impl AddAssign for Ledger {
    fn add_assign(&mut self, other: Ledger) {
        self.published = self.published.saturating_add(other.published);
        self.merged = self.merged.saturating_add(other.merged);
        self.late = self.late.saturating_add(other.late);
        self.quarantined = self.quarantined.saturating_add(other.quarantined);
        self.open = self.open.saturating_add(other.open);
        self.missing = self.missing.saturating_add(other.missing);
        self.lost = self.lost.saturating_add(other.lost);
    }
}
