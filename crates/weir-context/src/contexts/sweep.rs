//! Resolves raw contexts again after their rules or origins changed.

use super::Contexts;
use crate::raw_table::{RawTable, TargetState};

/// A walk over all raw contexts, in slices, for those that must be resolved again.
#[derive(Default)]
pub(super) struct Sweep {
    /// The next slot, and the number of slots left.
    at: usize,
    left: usize,
    /// True: the rules changed, so all raw contexts are stale. False: only those of changed origins.
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

    /// Called when the slots beyond `slots` were removed.
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
    /// Visits up to `max` raw contexts and marks stale ones, after a change of rules or origin. Returns false once none is left.
    pub fn sweep_stale(&mut self, max: usize, now: u32) -> bool {
        if self.sweep.left == 0 {
            return false;
        }
        for _ in 0..max.min(self.sweep.left) {
            let slot = self.sweep.next(&self.raw);
            let target_state = self.raw.target_state(slot);
            if matches!(target_state, TargetState::Free | TargetState::Stale) || !self.is_due(slot) {
                continue;
            }
            if target_state == TargetState::Filtered {
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
