//! Ways to contexts that rules or origins have changed.

use super::Contexts;
use crate::raw_table::{Leads, RawTable};

/// A walk over all raw contexts, in slices, for those that have to be resolved again.
#[derive(Default)]
pub(super) struct Sweep {
    /// The slot that is looked at next, and how many are left.
    at: usize,
    left: usize,
    /// It is for all, because the rules have changed; else for those of changed origins.
    all: bool,
}

impl Sweep {
    pub fn begin(&mut self, slots: usize) {
        self.left = slots;
    }

    pub fn begin_all(&mut self, slots: usize) {
        self.begin(slots);
        self.all = true;
    }

    /// Slots behind these are gone.
    pub fn truncate(&mut self, slots: usize) {
        self.left = self.left.min(slots);
    }

    fn next(&mut self, raw: &RawTable) -> u32 {
        if self.at >= raw.len() {
            self.at = 0;
        }
        let slot = self.at as u32;
        self.at += 1;
        self.left -= 1;
        slot
    }
}

impl Contexts {
    /// Looks at up to `max` raw contexts for those whose rules or origin have changed. False when none is left to look at.
    pub fn sweep_stale(&mut self, max: usize, now: u32) -> bool {
        if self.sweep.left == 0 {
            return false;
        }
        for _ in 0..max.min(self.sweep.left) {
            let slot = self.sweep.next(&self.raw);
            let leads = self.raw.leads(slot);
            if matches!(leads, Leads::Nowhere | Leads::Stale) || !self.is_due(slot) {
                continue;
            }
            if leads == Leads::Filtered {
                self.remove_raw(slot);
            } else {
                self.unlink(slot);
                self.raw.make_stale(slot, now);
            }
        }
        if self.sweep.left == 0 {
            self.sweep.all = false;
            self.origins.clear_dirty();
        }
        self.sweep.left > 0
    }

    fn is_due(&self, slot: u32) -> bool {
        self.sweep.all || self.origins.is_dirty(self.raw.get(slot).origin)
    }
}
