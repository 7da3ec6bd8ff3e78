//! Removal of contexts, and memory after a burst.

use weir_protocol::Kind;

use super::{Contexts, OVERFLOW_TAG};
use crate::context_table::LiveContext;
use crate::raw_table::NO_SLOT;

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
