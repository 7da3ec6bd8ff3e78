//! A value per context for readers of flushes, found without texts.

use std::num::NonZeroU32;

use weir_protocol::Kind;

use crate::context_table::LiveContext;
use crate::prefetch::prefetch;

/// Identifies a context among all of the process, past ones included. The births of a table repeat after 2^32 contexts, hours at the least;
/// no reader remembers one that has left for so long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ContextKey {
    /// The table of contexts; every worker has one.
    table: u32,
    live: LiveContext,
    /// Distinguishes the contexts that have the same id in turn.
    birth: NonZeroU32,
}

impl ContextKey {
    pub fn new(table: u32, live: LiveContext, birth: NonZeroU32) -> Self {
        ContextKey { table, live, birth }
    }
}

/// One value per context. A look-up is an index and a comparison of births.
#[derive(Clone, Debug)]
pub struct ByContext<T> {
    /// Few: as many as workers.
    tables: Vec<(u32, [Slots<T>; Kind::COUNT])>,
    /// Slots that there is memory for.
    capacity: usize,
}

/// By the id of the context: its birth and its value.
type Slots<T> = Vec<Option<(NonZeroU32, T)>>;

impl<T> Default for ByContext<T> {
    fn default() -> Self {
        ByContext {
            tables: Vec::new(),
            capacity: 0,
        }
    }
}

/// Slots with room for one at this place. They grow by an eighth instead of doubling, because spare capacity counts against the memory.
fn slots_for(at: usize) -> usize {
    at + at / 8 + 64
}

impl<T: Copy> ByContext<T> {
    fn slot(&self, key: ContextKey) -> Option<&Option<(NonZeroU32, T)>> {
        let (_, kinds) = self.tables.iter().find(|(table, _)| *table == key.table)?;
        kinds[key.live.kind() as usize].get(key.live.id().0 as usize)
    }

    pub fn get(&self, key: ContextKey) -> Option<T> {
        let (birth, value) = (*self.slot(key)?)?;
        (birth == key.birth).then_some(value)
    }

    /// Prefetches what [`ByContext::get`] reads.
    #[inline]
    pub fn prefetch(&self, key: ContextKey) {
        if let Some(slot) = self.slot(key) {
            prefetch(std::ptr::from_ref(slot).cast());
        }
    }

    /// Bytes that [`ByContext::set`] allocates, beside those that are there.
    pub fn bytes_to_set(&self, key: ContextKey) -> usize {
        let at = key.live.id().0 as usize;
        let known = self.tables.iter().find(|(table, _)| *table == key.table);
        let capacity = known.map_or(0, |(_, kinds)| kinds[key.live.kind() as usize].capacity());
        match at < capacity {
            true => 0,
            false => slots_for(at) * size_of::<Option<(NonZeroU32, T)>>(),
        }
    }

    /// Replaces the value of a context that had the same id, if there is one.
    pub fn set(&mut self, key: ContextKey, value: T) {
        let known = self.tables.iter().position(|(table, _)| *table == key.table);
        let table = known.unwrap_or_else(|| {
            self.tables.push((key.table, std::array::from_fn(|_| Vec::new())));
            self.tables.len() - 1
        });
        let slots = &mut self.tables[table].1[key.live.kind() as usize];
        let at = key.live.id().0 as usize;
        if at >= slots.len() {
            let capacity = slots.capacity();
            if at >= capacity {
                slots.reserve_exact(slots_for(at) - slots.len());
            }
            self.capacity += slots.capacity() - capacity;
            slots.resize(at + 1, None);
        }
        slots[at] = Some((key.birth, value));
    }

    /// Replaces every value, or removes it, and frees the memory behind the last one.
    pub fn update(&mut self, mut new: impl FnMut(T) -> Option<T>) {
        self.capacity = 0;
        for (_, kinds) in &mut self.tables {
            for slots in kinds {
                for slot in slots.iter_mut() {
                    *slot = slot.and_then(|(birth, value)| Some((birth, new(value)?)));
                }
                let end = slots.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
                slots.truncate(end);
                if slots.len() < slots.capacity() / 2 {
                    slots.shrink_to_fit();
                }
                self.capacity += slots.capacity();
            }
        }
    }

    pub fn heap_bytes(&self) -> usize {
        self.capacity * size_of::<Option<(NonZeroU32, T)>>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context_table::ContextId;

    fn key(table: u32, id: u32, birth: u32) -> ContextKey {
        let live = LiveContext::new(Kind::Gauge, ContextId(id));
        ContextKey::new(table, live, NonZeroU32::new(birth).unwrap())
    }

    #[test]
    fn values_are_of_one_context() {
        let mut known = ByContext::default();
        known.set(key(1, 7, 3), 'a');
        assert_eq!(known.get(key(1, 7, 3)), Some('a'));
        // Another context with the id, of another table, with another id.
        for other in [key(1, 7, 4), key(2, 7, 3), key(1, 8, 3), key(1, 6, 3)] {
            assert_eq!(known.get(other), None);
        }
        known.set(key(1, 7, 4), 'b');
        assert_eq!(known.get(key(1, 7, 3)), None);
        assert_eq!(known.get(key(1, 7, 4)), Some('b'));
        known.set(key(2, 7, 3), 'c');
        known.update(|value| (value != 'b').then_some('d'));
        assert_eq!(known.get(key(1, 7, 4)), None);
        assert_eq!(known.get(key(2, 7, 3)), Some('d'));
    }

    #[test]
    fn memory_follows_the_contexts() {
        let mut known = ByContext::default();
        (0..50_000).for_each(|id| known.set(key(1, id, 1), id));
        let full = known.heap_bytes();
        assert!((50_000 * 8..60_000 * 8).contains(&full), "{full}");
        known.update(|id| (id < 10).then_some(id));
        assert!(known.heap_bytes() <= 10 * 8, "{}", known.heap_bytes());
        assert_eq!(known.get(key(1, 9, 1)), Some(9));
    }
}
