use hashbrown::HashTable;

use crate::hash::HashSecret;
use crate::level::Level;
use crate::prefetch::prefetch_value;
use crate::sharded::{Sharded, shrink};
use crate::slab::Slab;
use crate::strings::{StringId, Strings};

/// A sorted list of distinct tags, shared by every context with exactly these tags.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct TagListId(pub u32);

/// Lists keep 32 bits of each tag's hash, enough to find a tag without reading its text. Zero stands for no tag.
#[inline]
fn fingerprint(hash: u64) -> u32 {
    (hash >> 32) as u32 | 1
}

/// A tag as it stands in a message.
#[derive(Clone, Copy, Default)]
pub(crate) struct RawTag<'a> {
    pub text: &'a [u8],
    pub hash: u64,
}

/// Lists of up to this many tags are compared pair by pair. Longer ones have a table from fingerprints to places.
pub(crate) const PAIRS_MAX: usize = 16;

/// The low bits of an entry in that table hold a place, counted from one. The bits above hold a part of the fingerprint.
const PLACE_BITS: u32 = 20;

/// Number of fingerprints compared at once.
const BLOCK: usize = 8;

/// Scratch memory of [`TagLists::acquire`].
#[derive(Default)]
pub(crate) struct Scratch {
    hashes: Vec<u64>,
    ids: Vec<StringId>,
}

#[derive(Default)]
struct Entry {
    /// Sorted by text.
    tags: Box<[StringId]>,
    /// Fingerprints, or a table of places for long lists: see [`finder`].
    finder: Box<[u32]>,
    hash: u64,
    references: u32,
}

/// Every distinct tag list once. A list holds one reference to each of its strings.
pub(crate) struct TagLists {
    index: Sharded<HashTable<u32>>,
    entries: Slab<Entry>,
    tag_count: usize,
    /// Sum of [`Entry::long_places`].
    long_places: usize,
}

impl TagLists {
    pub fn new() -> Self {
        TagLists {
            index: Sharded::new(HashTable::new),
            entries: Slab::new(),
            tag_count: 0,
            long_places: 0,
        }
    }

    /// Reserves room for about this many lists while the table is empty.
    pub fn reserve(&mut self, lists: usize) {
        self.index.reserve(lists);
    }

    /// Finds or adds the list and takes one reference to it. `tags` is sorted and free of duplicates.
    pub fn acquire<T: AsRef<str>>(
        &mut self,
        tags: &[T],
        strings: &mut Strings,
        secret: &HashSecret,
        scratch: &mut Scratch,
    ) -> TagListId {
        let Scratch { hashes, ids } = scratch;
        hashes.clear();
        hashes.extend(tags.iter().map(|tag| secret.bytes(tag.as_ref().as_bytes())));
        let hash = hash(hashes.iter().copied(), secret);
        let entries = &self.entries;
        let found = self.index.shard(hash).find(hash, |&id| {
            let entry = &entries[id];
            if entry.hash != hash {
                return false;
            }
            strings.prefetch(entry.tags.iter().map(|tag| tag.0));
            strings.equal(&entry.tags, tags)
        });
        if let Some(&id) = found {
            return self.acquire_known(TagListId(id));
        }
        ids.clear();
        strings.acquire_tags(tags, hashes, secret, ids);
        let entries = &mut self.entries;
        let shard = self.index.shard_mut(hash);
        self.tag_count += ids.len();
        let entry = Entry {
            tags: ids.as_slice().into(),
            finder: finder(ids, strings),
            hash,
            references: 1,
        };
        self.long_places += entry.long_places();
        let id = entries.add(entry);
        shard.insert_unique(hash, id, |&id| entries[id].hash);
        TagListId(id)
    }

    /// Takes another reference to a list that is held already.
    pub fn acquire_known(&mut self, id: TagListId) -> TagListId {
        self.entries[id.0].references += 1;
        id
    }

    /// Whether a list consists of exactly these tags, in any order. A duplicate tag makes it false. `taken` is scratch memory.
    #[inline(always)]
    pub fn matches(
        &self,
        id: TagListId,
        tags: &[RawTag<'_>],
        strings: &Strings,
        level: Level,
        taken: &mut Vec<u64>,
    ) -> bool {
        let entry = &self.entries[id.0];
        if entry.tags.len() != tags.len() {
            return false;
        }
        if tags.len() > PAIRS_MAX {
            return entry.matches_many(tags, strings, level, taken);
        }
        // Finds a tag's place without branching on its fingerprint: in random order such a branch cannot be predicted.
        let (fingerprints, _) = entry.finder.as_chunks::<BLOCK>();
        let mut taken = 0u32;
        for tag in tags {
            let wanted = fingerprint(tag.hash);
            let mut places = 0u32;
            for block in fingerprints.iter().rev() {
                places = places << BLOCK | equal_lanes(block, wanted);
            }
            // Two tags with the same fingerprint occur once in millions of lists; the slow path handles them.
            let place = places & !taken;
            let Some(&held) = entry.tags.get(place.trailing_zeros() as usize) else {
                return false;
            };
            if !strings.equals(held, tag.text, level) {
                return false;
            }
            taken |= place;
        }
        true
    }

    pub fn release(&mut self, id: TagListId, strings: &mut Strings) {
        let entry = &mut self.entries[id.0];
        entry.references -= 1;
        if entry.references > 0 {
            return;
        }
        let entry = self.entries.remove(id.0);
        self.long_places -= entry.long_places();
        self.tag_count -= entry.tags.len();
        for &tag in &entry.tags {
            strings.release(tag);
        }
        let shard = self.index.shard_mut(entry.hash);
        if let Ok(found) = shard.find_entry(entry.hash, |&other| other == id.0) {
            found.remove();
        }
        shrink(shard, |&id| self.entries[id].hash);
    }

    /// Gives memory back after many lists were removed.
    pub fn compact(&mut self) {
        self.entries.compact(|entry| entry.references > 0);
    }

    /// The tags, sorted by text.
    pub fn get(&self, id: TagListId) -> &[StringId] {
        &self.entries[id.0].tags
    }

    /// Prefetches a list's entry.
    #[inline]
    pub fn prefetch(&self, id: TagListId) {
        prefetch_value(&self.entries[id.0]);
    }

    pub fn hash(&self, id: TagListId) -> u64 {
        self.entries[id.0].hash
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Bytes held, slack included.
    pub fn heap_bytes(&self) -> usize {
        // The last block of fingerprints is half full on average. A list has two allocations.
        self.tag_count * (size_of::<StringId>() + size_of::<u32>())
            + self.long_places * size_of::<u32>()
            + self.len() * (BLOCK / 2 * size_of::<u32>() + 16)
            + self.entries.heap_bytes()
            + self.index.iter().map(HashTable::allocation_size).sum::<usize>()
    }
}

/// Leads from a tag's hash to its place in a list. For a short list: the fingerprints in the list's order, in blocks of [`BLOCK`], the last
/// one filled with zeros. For a long list: a hash table with linear probing, at most a quarter full, because the branch of a second probe
/// cannot be predicted.
fn finder(ids: &[StringId], strings: &Strings) -> Box<[u32]> {
    if ids.len() <= PAIRS_MAX {
        let mut fingerprints = vec![0; ids.len().next_multiple_of(BLOCK)];
        for (slot, &id) in fingerprints.iter_mut().zip(ids) {
            *slot = fingerprint(strings.hash(id));
        }
        return fingerprints.into();
    }
    if ids.len() >= 1 << PLACE_BITS {
        // No packet is that long. Such a list would take the slow path.
        return Box::default();
    }
    let mut table = vec![0; (4 * ids.len()).next_power_of_two()];
    let mask = table.len() - 1;
    for (place, &id) in ids.iter().enumerate() {
        let hash = strings.hash(id);
        let mut at = hash as usize & mask;
        while table[at] != 0 {
            at = (at + 1) & mask;
        }
        table[at] = fingerprint(hash) >> PLACE_BITS << PLACE_BITS | (place as u32 + 1);
    }
    table.into()
}

impl Entry {
    /// [`TagLists::matches`] for a long list with the same number of tags.
    #[inline(never)]
    fn matches_many(
        &self,
        tags: &[RawTag<'_>],
        strings: &Strings,
        level: Level,
        taken: &mut Vec<u64>,
    ) -> bool {
        taken.clear();
        taken.resize(tags.len().div_ceil(64), 0);
        tags.iter().all(|tag| {
            self.place(tag, strings, level).is_some_and(|place| {
                let (word, bit) = (place / 64, 1 << (place % 64));
                let is_new = taken[word] & bit == 0;
                taken[word] |= bit;
                is_new
            })
        })
    }

    /// The place of a tag in a long list.
    #[inline(always)]
    fn place(&self, tag: &RawTag<'_>, strings: &Strings, level: Level) -> Option<usize> {
        let mask = self.finder.len().checked_sub(1)?;
        let wanted = fingerprint(tag.hash) >> PLACE_BITS;
        let mut at = tag.hash as usize & mask;
        loop {
            let found = self.finder[at];
            if found == 0 {
                return None;
            }
            let place = (found & ((1 << PLACE_BITS) - 1)) as usize - 1;
            if found >> PLACE_BITS == wanted && strings.equals(self.tags[place], tag.text, level) {
                return Some(place);
            }
            at = (at + 1) & mask;
        }
    }

    /// Entries of a long list's finder minus its tags.
    fn long_places(&self) -> usize {
        if self.tags.len() > PAIRS_MAX {
            self.finder.len().saturating_sub(self.tags.len())
        } else {
            0
        }
    }
}

/// The lanes that hold `wanted`, one bit each.
#[cfg(target_arch = "x86_64")]
#[inline]
#[allow(unsafe_code)]
fn equal_lanes(block: &[u32; BLOCK], wanted: u32) -> u32 {
    use std::arch::x86_64::{
        _mm_castsi128_ps, _mm_cmpeq_epi32, _mm_loadu_si128, _mm_movemask_ps, _mm_set1_epi32,
    };
    let (halves, _) = block.as_chunks::<4>();
    let lanes = |half: &[u32; 4]| {
        // SAFETY: every x86-64 has SSE2; the reference is to 16 readable bytes, and the load needs no alignment.
        unsafe {
            let half = _mm_loadu_si128(half.as_ptr().cast());
            _mm_movemask_ps(_mm_castsi128_ps(_mm_cmpeq_epi32(
                half,
                _mm_set1_epi32(wanted as i32),
            ))) as u32
        }
    };
    lanes(&halves[0]) | lanes(&halves[1]) << 4
}

#[cfg(not(target_arch = "x86_64"))]
fn equal_lanes(block: &[u32; BLOCK], wanted: u32) -> u32 {
    (0..BLOCK).fold(0, |lanes, at| lanes | u32::from(block[at] == wanted) << at)
}

/// Combines the hashes of the tags' texts in any order, so it is equal in every worker of the process. It only finds a place; equality is
/// decided by comparing texts or their ids.
#[inline]
pub(crate) fn hash(tags: impl ExactSizeIterator<Item = u64>, secret: &HashSecret) -> u64 {
    let count = tags.len() as u64;
    let sum = tags.fold(0u64, |sum, hash| sum.wrapping_add(secret.spread(hash)));
    secret.two([sum, count])
}
