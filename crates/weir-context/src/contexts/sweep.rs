//! Resolves raw contexts again after their rules or origins changed.

use weir_protocol::Kind;

use super::{Contexts, OVERFLOW_TAG};
use crate::context_table::LiveContext;
use crate::raw_table::{NO_SLOT, RawTable, TargetState};

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

// Removal of contexts, and memory after a burst.

impl Contexts {
    /// The live contexts of one partition.
    pub fn live(&self, partition: usize) -> &[LiveContext] {
        self.resolved.live(partition)
    }

    /// Removes the context at `position` in a partition's list, its raw contexts, and everything that nothing else uses. The last context
    /// of the list takes its position.
    pub fn remove(&mut self, partition: usize, position: usize) {
        let context = self.resolved.remove(partition, position);
        let mut next = context.first_raw;
        while next != NO_SLOT {
            let slot = next;
            next = self.raw.next_of(slot);
            self.remove_raw(slot);
        }
        if self.interner.has_tag(context.identity.tags, OVERFLOW_TAG) {
            self.capacity.remove_overflow();
        }
        let name = context.identity.name;
        self.usage.names.remove(name, self.interner.strings.hash(name));
        self.release(context.identity);
        if let Some(check) = context.jmx_check {
            self.interner.strings.release(check);
        }
    }

    /// Removes raw contexts without a context that were last seen before `oldest`.
    pub fn expire_orphans(&mut self, oldest: u32) {
        let mut place = 0;
        while let Some(slot) = self.raw.next_expired(&mut place, oldest) {
            self.remove_raw(slot);
        }
    }

    /// Ages a 64th of the aliases.
    pub fn sweep_aliases(&mut self) {
        let raw = &self.raw;
        self.aliases
            .sweep_next(raw.removals(), |id| raw.target(id).is_some());
    }

    /// Frees memory at the end of the id ranges after a burst of contexts has expired. Returns, per kind, the number of ids that still need
    /// state.
    pub fn compact(&mut self) -> [usize; Kind::COUNT] {
        let ids = self.resolved.compact();
        self.raw.compact();
        self.sweep.truncate(self.raw.len());
        self.interner.compact();
        self.usage.names.compact();
        self.count_bytes();
        ids
    }
}
