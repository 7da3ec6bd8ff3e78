//! Raw contexts: the identity of a metric before rules, and the context that each leads to.

use hashbrown::HashTable;
use weir_rules::RuleId;

use crate::chunked::Chunked;
use crate::context_table::ContextId;
use crate::origins::OriginId;
use crate::sharded::{Sharded, shrink};
use crate::strings::StringId;
use crate::tag_lists::TagListId;

/// A raw context: the identity of a metric as sent, before rules. Valid for one generation of its slot, so a cached id can never reach a
/// later raw context in the slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RawId {
    pub(crate) slot: u32,
    pub(crate) generation: u32,
}

impl RawId {
    /// No raw context. No alias leads to a slot of this number.
    pub(crate) const NONE: RawId = RawId {
        slot: NO_SLOT,
        generation: 0,
    };
}

/// No slot.
pub(crate) const NO_SLOT: u32 = u32::MAX;

#[derive(Clone, Copy, Default)]
pub(crate) struct RawContext {
    pub name: StringId,
    pub tags: TagListId,
    pub origin: OriginId,
    pub hash: u64,
    pub kind: u8,
    /// Neighbours in the list of raw contexts with the same target; [`NO_SLOT`] at its ends. A filtered raw context has no neighbours; its
    /// `next` holds the number of the rule that drops it.
    next: u32,
    previous: u32,
    /// Second of the last look-up. Used only without a context: otherwise a raw context lives as long as its context.
    last_seen: u32,
}

/// The target of a raw context. Stored separately, so that eight share a cache line.
#[derive(Clone, Copy, Default)]
pub(crate) struct Target {
    generation: u32,
    /// [`FREE`], [`FILTERED`], [`STALE`], or a context id plus three, with [`DRY_RUN`] if samples must be counted.
    to: u32,
}

const FREE: u32 = 0;
const FILTERED: u32 = 1;
const STALE: u32 = 2;
const FIRST_ID: u32 = 3;
/// The sign bit: one comparison separates an ordinary context from everything else.
const DRY_RUN: u32 = 1 << 31;

/// The decoded form of a [`Target`].
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum TargetState {
    /// The slot is free.
    Free,
    /// A rule drops the metric.
    Filtered,
    /// The rules or the tags of its origin have changed. It is resolved again with its next message.
    Stale,
    Context(ContextId),
    /// A context that a rule in a dry run would change.
    DryRun(ContextId),
}

impl Target {
    /// The context, if the target is an ordinary one. The fast form of [`Target::target_state`].
    #[inline(always)]
    pub fn ordinary(self) -> Option<ContextId> {
        (self.to as i32 >= FIRST_ID as i32).then(|| ContextId(self.to - FIRST_ID))
    }

    pub fn target_state(self) -> TargetState {
        match self.to {
            FREE => TargetState::Free,
            FILTERED => TargetState::Filtered,
            STALE => TargetState::Stale,
            to if to & DRY_RUN != 0 => TargetState::DryRun(ContextId((to & !DRY_RUN) - FIRST_ID)),
            to => TargetState::Context(ContextId(to - FIRST_ID)),
        }
    }

    fn context(self) -> Option<ContextId> {
        (self.to >= FIRST_ID).then(|| ContextId((self.to & !DRY_RUN) - FIRST_ID))
    }
}

/// Result of [`RawTable::unlink`].
#[derive(Clone, Copy)]
pub(crate) struct Unlinked {
    pub context: ContextId,
    /// The new head of the context's list, if this raw context was the head.
    pub head: Option<u32>,
}

/// Raw contexts by slot and by hash.
pub(crate) struct RawTable {
    entries: Chunked<RawContext>,
    targets: Chunked<Target>,
    free: Vec<u32>,
    /// The first generation of new slots.
    generation_start: u32,
    index: Sharded<HashTable<u32>>,
    /// Raw contexts without a context: filtered ones, and stale ones that were not seen since. An entry may be out of date, so expiry
    /// checks it.
    orphans: Vec<RawId>,
    removals: u64,
}

impl RawTable {
    pub fn new() -> Self {
        RawTable {
            entries: Chunked::new(),
            targets: Chunked::new(),
            free: Vec::new(),
            generation_start: 0,
            index: Sharded::new(HashTable::new),
            orphans: Vec::new(),
            removals: 0,
        }
    }

    /// Slots, including free ones.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn get(&self, slot: u32) -> &RawContext {
        &self.entries[slot as usize]
    }

    pub fn id(&self, slot: u32) -> RawId {
        RawId {
            slot,
            generation: self.targets[slot as usize].generation,
        }
    }

    pub fn target_state(&self, slot: u32) -> TargetState {
        self.targets[slot as usize].target_state()
    }

    /// The target of a raw context found earlier, if its slot still holds it.
    #[inline(always)]
    pub fn target(&self, raw: RawId) -> Option<Target> {
        let target = *self.targets.get(raw.slot as usize)?;
        (target.generation == raw.generation).then_some(target)
    }

    /// Address of the target, for prefetching.
    #[inline]
    pub fn target_address(&self, raw: RawId) -> *const u8 {
        self.targets.address(raw.slot as usize)
    }

    /// The context that a raw context probably leads to, for prefetching only.
    #[inline]
    pub fn probable_context(&self, raw: RawId) -> Option<ContextId> {
        self.targets.get(raw.slot as usize)?.context()
    }

    /// The slots of raw contexts with this hash. An iterator instead of a comparing closure: a closure would not be compiled for the
    /// instructions of the callers.
    #[inline(always)]
    pub fn candidates(&self, hash: u64) -> impl Iterator<Item = &u32> {
        self.index.shard(hash).iter_hash(hash)
    }

    pub fn find(
        &self,
        hash: u64,
        kind: u8,
        name: StringId,
        tags: TagListId,
        origin: OriginId,
    ) -> Option<u32> {
        let found = self.index.shard(hash).find(hash, |&slot| {
            let other = self.get(slot);
            (other.kind, other.name, other.tags, other.origin) == (kind, name, tags, origin)
        });
        found.copied()
    }

    /// Adds a raw context, stale at first.
    pub fn add(&mut self, hash: u64, kind: u8, name: StringId, tags: TagListId, origin: OriginId) -> u32 {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.entries.push(RawContext::default());
            self.targets.push(Target {
                generation: self.generation_start,
                to: FREE,
            });
            self.entries.len() as u32 - 1
        });
        self.entries[slot as usize] = RawContext {
            name,
            tags,
            origin,
            hash,
            kind,
            next: NO_SLOT,
            previous: NO_SLOT,
            last_seen: 0,
        };
        self.targets[slot as usize].to = STALE;
        let entries = &self.entries;
        self.index
            .shard_mut(hash)
            .insert_unique(hash, slot, |&slot| entries[slot as usize].hash);
        slot
    }

    /// Removes a raw context. The next one in its slot has another generation.
    pub fn remove(&mut self, slot: u32) -> RawContext {
        let removed = std::mem::take(&mut self.entries[slot as usize]);
        let target = &mut self.targets[slot as usize];
        *target = Target {
            generation: target.generation.wrapping_add(1),
            to: FREE,
        };
        let shard = self.index.shard_mut(removed.hash);
        if let Ok(found) = shard.find_entry(removed.hash, |&other| other == slot) {
            found.remove();
        }
        let entries = &self.entries;
        shrink(shard, |&slot| entries[slot as usize].hash);
        self.free.push(slot);
        self.removals += 1;
        removed
    }

    /// Raw contexts removed so far.
    pub fn removals(&self) -> u64 {
        self.removals
    }

    /// The next slot in the list.
    pub fn next_of(&self, slot: u32) -> u32 {
        self.entries[slot as usize].next
    }

    /// Links a raw context to `context`, as the new head of its list.
    pub fn link(&mut self, slot: u32, context: ContextId, head: u32) {
        self.targets[slot as usize].to = context.0 + FIRST_ID;
        let entry = &mut self.entries[slot as usize];
        (entry.next, entry.previous) = (head, NO_SLOT);
        if head != NO_SLOT {
            self.entries[head as usize].previous = slot;
        }
    }

    /// Removes a raw context from its context's list. `None` if it has no context.
    pub fn unlink(&mut self, slot: u32) -> Option<Unlinked> {
        let context = self.targets[slot as usize].context()?;
        let RawContext { next, previous, .. } = self.entries[slot as usize];
        if next != NO_SLOT {
            self.entries[next as usize].previous = previous;
        }
        let head = if previous == NO_SLOT {
            Some(next)
        } else {
            self.entries[previous as usize].next = next;
            None
        };
        Some(Unlinked { context, head })
    }

    /// Marks a raw context as dropped by `rule`.
    pub fn filter(&mut self, slot: u32, rule: Option<RuleId>, now: u32) {
        self.entries[slot as usize].next = rule.map_or(NO_SLOT, |rule| rule.0);
        self.orphan(slot, FILTERED, now);
    }

    /// The rule that drops a filtered raw context.
    pub fn filtered_by(&self, slot: u32) -> Option<RuleId> {
        let rule = self.entries[slot as usize].next;
        (rule != NO_SLOT).then_some(RuleId(rule))
    }

    /// Marks an unlinked raw context for resolving again.
    pub fn make_stale(&mut self, slot: u32, now: u32) {
        self.orphan(slot, STALE, now);
    }

    fn orphan(&mut self, slot: u32, to: u32, now: u32) {
        self.targets[slot as usize].to = to;
        self.entries[slot as usize].last_seen = now;
        self.orphans.push(self.id(slot));
    }

    pub fn mark_dry_run(&mut self, slot: u32) {
        self.targets[slot as usize].to |= DRY_RUN;
    }

    /// Records a look-up of a filtered raw context.
    pub fn touch(&mut self, slot: u32, now: u32) {
        self.entries[slot as usize].last_seen = now;
    }

    /// The next raw context in the loose list, from `place` on, that has no context and was last seen before `oldest`. It leaves the list.
    pub fn next_expired(&mut self, place: &mut usize, oldest: u32) -> Option<u32> {
        while let Some(&raw) = self.orphans.get(*place) {
            let target = self.target(raw);
            let is_loose = target.is_some_and(|target| matches!(target.to, FILTERED | STALE));
            if is_loose && self.entries[raw.slot as usize].last_seen >= oldest {
                *place += 1;
                continue;
            }
            self.orphans.swap_remove(*place);
            if is_loose {
                return Some(raw.slot);
            }
        }
        None
    }

    /// Frees the slots after the last raw context. Later slots start with a generation after all removed ones, so an alias that outlived
    /// its context finds nothing there.
    pub fn compact(&mut self) {
        if self.free.len() <= 1024 || self.free.len() <= self.entries.len() / 2 {
            return;
        }
        let mut len = self.targets.len();
        while len > 0 && self.targets[len - 1].to == FREE {
            len -= 1;
            self.generation_start = self
                .generation_start
                .max(self.targets[len].generation.wrapping_add(1));
        }
        self.entries.truncate_chunks(len);
        self.targets.truncate_chunks(len);
        let len = self.entries.len();
        self.free.retain(|&slot| (slot as usize) < len);
        self.free.shrink_to_fit();
    }

    pub fn heap_bytes(&self) -> usize {
        self.entries.heap_bytes()
            + self.targets.heap_bytes()
            + self.free.capacity() * 4
            + self.index.iter().map(HashTable::allocation_size).sum::<usize>()
            + self.orphans.capacity() * size_of::<RawId>()
    }
}
