use hashbrown::HashTable;

use super::{SUMMARY_ROWS, Top};
use crate::chunked::Chunked;
use crate::sharded::{Sharded, shrink};
use crate::strings::StringId;

/// A metric name, present as long as a context has it.
#[derive(Clone, Copy, Default)]
pub(crate) struct NameUse {
    pub name: StringId,
    /// Zero for a free slot.
    pub contexts: u32,
    pub hash: u64,
    /// Estimated, since the last summary.
    pub samples: u64,
}

/// Number of live contexts per name.
pub(crate) struct Names {
    index: Sharded<HashTable<u32>>,
    entries: Chunked<NameUse>,
    free: Vec<u32>,
    /// Position of the walk.
    at: usize,
    by_contexts: Top,
    by_samples: Top,
}

/// Result of a walk: slots with their contexts and samples.
pub(crate) type WalkResult = Vec<(NameUse, u64)>;

impl Names {
    pub fn new() -> Self {
        Names {
            index: Sharded::new(HashTable::new),
            entries: Chunked::new(),
            free: Vec::new(),
            at: 0,
            by_contexts: Top::default(),
            by_samples: Top::default(),
        }
    }

    pub fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    fn find(&self, name: StringId, hash: u64) -> Option<u32> {
        let entries = &self.entries;
        let found = self
            .index
            .shard(hash)
            .find(hash, |&at| entries[at as usize].name == name);
        found.copied()
    }

    /// Counts a context that was made with this name.
    pub fn add(&mut self, name: StringId, hash: u64) {
        if let Some(at) = self.find(name, hash) {
            self.entries[at as usize].contexts += 1;
            return;
        }
        let entry = NameUse {
            name,
            contexts: 1,
            hash,
            samples: 0,
        };
        let at = match self.free.pop() {
            Some(at) => {
                self.entries[at as usize] = entry;
                at
            }
            None => {
                self.entries.push(entry);
                self.entries.len() as u32 - 1
            }
        };
        let entries = &self.entries;
        self.index
            .shard_mut(hash)
            .insert_unique(hash, at, |&at| entries[at as usize].hash);
    }

    /// Counts a removed context with this name.
    pub fn remove(&mut self, name: StringId, hash: u64) {
        let Some(at) = self.find(name, hash) else { return };
        let entry = &mut self.entries[at as usize];
        entry.contexts -= 1;
        if entry.contexts > 0 {
            return;
        }
        *entry = NameUse::default();
        let shard = self.index.shard_mut(hash);
        if let Ok(found) = shard.find_entry(hash, |&other| other == at) {
            found.remove();
        }
        let entries = &self.entries;
        shrink(shard, |&at| entries[at as usize].hash);
        self.free.push(at);
    }

    pub fn contexts(&self, name: StringId, hash: u64) -> usize {
        self.find(name, hash)
            .map_or(0, |at| self.entries[at as usize].contexts as usize)
    }

    pub fn add_samples(&mut self, name: StringId, hash: u64, samples: u64) {
        if let Some(at) = self.find(name, hash) {
            self.entries[at as usize].samples += samples;
        }
    }

    /// Visits up to `max` names in search of those with the most contexts and the most samples, and resets their sample counts. Returns the
    /// result once all names were visited.
    pub fn walk(&mut self, max: usize) -> Option<WalkResult> {
        let end = self.entries.len().min(self.at + max);
        for at in self.at..end {
            let entry = &mut self.entries[at];
            if entry.contexts > 0 {
                self.by_contexts
                    .offer(u64::from(entry.contexts), at as u32, SUMMARY_ROWS);
                // Names outside the top list must be reset too.
                self.by_samples
                    .offer(std::mem::take(&mut entry.samples), at as u32, SUMMARY_ROWS);
            }
        }
        self.at = end;
        if end < self.entries.len() {
            return None;
        }
        self.at = 0;
        let samples: std::collections::HashMap<u32, u64> = self
            .by_samples
            .take()
            .map(|(samples, at)| (at, samples))
            .collect();
        let mut slots: Vec<u32> = self.by_contexts.take().map(|(_, at)| at).collect();
        slots.extend(samples.keys());
        slots.sort_unstable();
        slots.dedup();
        let found = slots.into_iter().map(|at| {
            let samples = samples.get(&at).copied().unwrap_or(0);
            (self.entries[at as usize], samples)
        });
        // A name may have been removed after the walk passed it.
        Some(found.filter(|(entry, _)| entry.contexts > 0).collect())
    }

    /// Frees the unused slots at the end.
    pub fn compact(&mut self) {
        if self.free.len() <= 1024 || self.free.len() <= self.entries.len() / 2 {
            return;
        }
        let mut len = self.entries.len();
        while len > 0 && self.entries[len - 1].contexts == 0 {
            len -= 1;
        }
        self.entries.truncate(len);
        self.free.retain(|&at| (at as usize) < len);
        self.free.shrink_to_fit();
        self.at = self.at.min(len);
    }

    pub fn heap_bytes(&self) -> usize {
        self.entries.heap_bytes()
            + self.free.capacity() * 4
            + self.index.iter().map(HashTable::allocation_size).sum::<usize>()
            + self.by_contexts.heap_bytes()
            + self.by_samples.heap_bytes()
    }
}
