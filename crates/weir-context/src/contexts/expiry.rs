//! What goes: contexts that expire, ways to them that rules or origins have changed, memory after a burst.

use weir_protocol::Kind;

use super::{Contexts, FILTERED, FREE, LiveContext, NOBODY, OVERFLOW_TAG, RawId, STALE};

impl Contexts {
    /// Looks at up to `max` raw contexts for those whose rules or origin have changed. False when none is left to look at.
    pub fn sweep_stale(&mut self, max: usize, now: u32) -> bool {
        if self.sweep_left == 0 {
            return false;
        }
        for _ in 0..max.min(self.sweep_left) {
            if self.sweep_at >= self.raw.len() {
                self.sweep_at = 0;
            }
            let slot = self.sweep_at as u32;
            self.sweep_at += 1;
            self.sweep_left -= 1;
            let to = self.targets[slot as usize].to;
            let is_due = self.sweep_all || self.origins.is_dirty(self.raw[slot as usize].origin);
            if to == FREE || to == STALE || !is_due {
                continue;
            }
            if to == FILTERED {
                self.remove_raw(slot);
                continue;
            }
            self.unlink(slot);
            let target = &mut self.targets[slot as usize];
            target.to = STALE;
            let raw = RawId {
                slot,
                generation: target.generation,
            };
            self.raw[slot as usize].last_seen = now;
            self.loose.push(raw);
        }
        if self.sweep_left == 0 {
            self.sweep_all = false;
            self.origins.clear_dirty();
        }
        self.sweep_left > 0
    }

    /// The live contexts of one partition.
    pub fn live(&self, partition: usize) -> &[LiveContext] {
        &self.live[partition]
    }

    /// Removes the context at `position` of a partition's list, with its raw contexts and all that nothing else uses. The
    /// last context of the list takes its place.
    pub fn remove(&mut self, partition: usize, position: usize) {
        let live = self.live[partition].swap_remove(position);
        if self.live[partition].capacity() > 64
            && self.live[partition].len() < self.live[partition].capacity() / 4
        {
            self.live[partition].shrink_to_fit();
        }
        let (kind, id) = (live.kind() as usize, live.id());
        let context = std::mem::take(&mut self.contexts[kind][id.0 as usize]);
        debug_assert!(context.in_use);
        let mut next = context.first_raw;
        while next != NOBODY {
            let slot = next;
            next = self.raw[slot as usize].next;
            self.remove_raw(slot);
        }
        let contexts = &self.contexts;
        let shard = self.index.shard_mut(context.hash);
        if let Ok(found) = shard.find_entry(context.hash, |&other| other == live) {
            found.remove();
        }
        if shard.capacity() > 64 && shard.len() < shard.capacity() / 4 {
            shard.shrink_to(shard.len() * 2, |live| {
                contexts[live.kind() as usize][live.id().0 as usize].hash
            });
        }
        self.free[kind].push(id);
        self.live_count -= 1;
        if self
            .tag_lists
            .get(context.tags)
            .iter()
            .any(|&tag| self.strings.get(tag) == OVERFLOW_TAG)
        {
            self.overflow_names = self.overflow_names.saturating_sub(1);
        }
        self.names.remove(context.name, self.strings.hash(context.name));
        self.release_context_parts(context.name, context.host, context.jmx_check, context.tags);
    }

    /// Forgets raw contexts that lead to no context and were last seen before `oldest`.
    pub fn expire_loose(&mut self, oldest: u32) {
        let mut at = 0;
        while at < self.loose.len() {
            let RawId { slot, generation } = self.loose[at];
            let target = self.targets.get(slot as usize);
            let is_loose = target.is_some_and(|target| {
                target.generation == generation && matches!(target.to, FILTERED | STALE)
            });
            if is_loose && self.raw[slot as usize].last_seen >= oldest {
                at += 1;
                continue;
            }
            self.loose.swap_remove(at);
            if is_loose {
                self.remove_raw(slot);
            }
        }
    }

    /// Gives back memory at the end of the id ranges, after a burst of contexts has expired. Returns, per kind, the number
    /// of ids that state must still be kept for.
    pub fn compact(&mut self) -> [usize; Kind::COUNT] {
        for kind in 0..Kind::COUNT {
            if self.free[kind].len() > 1024 && self.free[kind].len() > self.contexts[kind].len() / 2 {
                let contexts = &mut self.contexts[kind];
                let mut len = contexts.len();
                while len > 0 && !contexts[len - 1].in_use {
                    len -= 1;
                }
                contexts.truncate(len);
                self.free[kind].retain(|id| (id.0 as usize) < len);
                self.free[kind].sort_unstable_by(|a, b| b.cmp(a));
                self.free[kind].shrink_to_fit();
            }
        }
        self.compact_raw();
        self.strings.compact();
        self.tag_lists.compact();
        self.names.compact();
        self.count_bytes();
        std::array::from_fn(|kind| self.contexts[kind].len())
    }

    /// Gives back the slots behind the last raw context. Generations of slots that come later begin behind all those that
    /// went, so that an alias that outlived its context finds nothing there either.
    fn compact_raw(&mut self) {
        if self.raw_free.len() <= 1024 || self.raw_free.len() <= self.raw.len() / 2 {
            return;
        }
        let mut len = self.targets.len();
        while len > 0 && self.targets[len - 1].to == FREE {
            len -= 1;
            self.generation_start = self
                .generation_start
                .max(self.targets[len].generation.wrapping_add(1));
        }
        self.raw.truncate_chunks(len);
        self.targets.truncate_chunks(len);
        let len = self.raw.len();
        self.raw_free.retain(|&slot| (slot as usize) < len);
        self.raw_free.shrink_to_fit();
        self.sweep_left = self.sweep_left.min(len);
    }
}
