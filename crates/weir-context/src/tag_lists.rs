use hashbrown::HashTable;

use crate::hash::HashSecret;
use crate::level::Level;
use crate::sharded::Sharded;
use crate::strings::{StringId, Strings, shrink};

/// A sorted, duplicate-free list of tags, shared by every context that has exactly these.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct TagListId(pub u32);

/// Of each tag in a list, 32 bits of its hash are kept: enough to find it without a look at its text. Zero stands for none.
#[inline]
fn fingerprint(hash: u64) -> u32 {
    (hash >> 32) as u32 | 1
}

/// A tag as a message brings it.
#[derive(Clone, Copy, Default)]
pub(crate) struct RawTag<'a> {
    pub text: &'a [u8],
    pub hash: u64,
}

/// Most tags that [`TagLists::holds`] compares; it looks at each pair.
pub(crate) const RAW_TAGS_MAX: usize = 16;

/// Fingerprints compared at once.
const BLOCK: usize = 8;

struct Entry {
    /// Sorted by text.
    tags: Box<[StringId]>,
    /// In the same order, in blocks of [`BLOCK`]; zeros fill the last.
    fingerprints: Box<[[u32; BLOCK]]>,
    hash: u64,
    references: u32,
}

/// Each distinct tag list once. A list holds one reference to each of its strings.
pub(crate) struct TagLists {
    index: Sharded<HashTable<u32>>,
    entries: Vec<Entry>,
    free: Vec<u32>,
    tag_count: usize,
}

impl TagLists {
    pub fn new() -> Self {
        TagLists {
            index: Sharded::new(HashTable::new),
            entries: Vec::new(),
            free: Vec::new(),
            tag_count: 0,
        }
    }

    /// Finds or adds the list and takes one reference to it. `tags` is sorted and free of duplicates.
    pub fn acquire<T: AsRef<str>>(
        &mut self,
        tags: &[T],
        strings: &mut Strings,
        secret: &HashSecret,
        ids: &mut Vec<StringId>,
    ) -> TagListId {
        ids.clear();
        ids.extend(tags.iter().map(|tag| strings.acquire_tag(tag.as_ref(), secret)));
        let hash = hash(ids.iter().map(|&id| strings.hash(id)), secret);
        let entries = &self.entries;
        let found = self.index.shard(hash).find(hash, |&id| {
            let entry = &entries[id as usize];
            entry.hash == hash && *entry.tags == **ids
        });
        if let Some(&id) = found {
            self.entries[id as usize].references += 1;
            for &string in ids.iter() {
                strings.release(string);
            }
            return TagListId(id);
        }
        let entries = &mut self.entries;
        let shard = self.index.shard_mut(hash);
        self.tag_count += ids.len();
        let entry = Entry {
            tags: ids.as_slice().into(),
            fingerprints: fingerprints(ids, strings),
            hash,
            references: 1,
        };
        let id = match self.free.pop() {
            Some(id) => {
                entries[id as usize] = entry;
                id
            }
            None => {
                entries.push(entry);
                u32::try_from(entries.len() - 1).expect("the memory budget ends long before 2^32 tag lists")
            }
        };
        shard.insert_unique(hash, id, |&id| entries[id as usize].hash);
        TagListId(id)
    }

    /// Finds a list that is held already by the ids of its tags, sorted by id and free of duplicates.
    pub fn find(&self, ids: &[StringId], strings: &Strings, secret: &HashSecret) -> Option<TagListId> {
        let hash = hash(ids.iter().map(|&id| strings.hash(id)), secret);
        let entries = &self.entries;
        let found = self.index.shard(hash).find(hash, |&id| {
            let entry = &entries[id as usize];
            // As many different tags, each of them among the list's: the same set.
            entry.hash == hash
                && entry.tags.len() == ids.len()
                && entry.tags.iter().all(|id| ids.binary_search(id).is_ok())
        });
        found.map(|&id| TagListId(id))
    }

    /// Whether a list consists of exactly these tags, in whatever order. At most [`RAW_TAGS_MAX`]; a tag that is there twice
    /// makes it false.
    #[inline(always)]
    pub fn holds(&self, id: TagListId, tags: &[RawTag<'_>], strings: &Strings, level: Level) -> bool {
        let Entry {
            tags: held,
            fingerprints,
            ..
        } = &self.entries[id.0 as usize];
        if held.len() != tags.len() || tags.len() > RAW_TAGS_MAX {
            return false;
        }
        // A tag's place is found without a branch on its fingerprint: in a random order none of those could be predicted.
        let mut taken = 0u32;
        for tag in tags {
            let wanted = fingerprint(tag.hash);
            let mut places = 0u32;
            for block in fingerprints.iter().rev() {
                places = places << BLOCK | equal_lanes(block, wanted);
            }
            // Two tags of one list with the same fingerprint are one in millions of lists; the long way knows what to do.
            let place = places & !taken;
            let Some(&held) = held.get(place.trailing_zeros() as usize) else {
                return false;
            };
            if !strings.is(held, tag.text, level) {
                return false;
            }
            taken |= place;
        }
        true
    }

    pub fn release(&mut self, id: TagListId, strings: &mut Strings) {
        let entry = &mut self.entries[id.0 as usize];
        entry.references -= 1;
        if entry.references > 0 {
            return;
        }
        let hash = entry.hash;
        let tags = std::mem::take(&mut entry.tags);
        self.tag_count -= tags.len();
        entry.fingerprints = Box::default();
        for &tag in &tags {
            strings.release(tag);
        }
        let shard = self.index.shard_mut(hash);
        if let Ok(found) = shard.find_entry(hash, |&other| other == id.0) {
            found.remove();
        }
        shrink(shard, &self.entries, |entry| entry.hash);
        self.free.push(id.0);
    }

    /// The tags, sorted by text.
    pub fn get(&self, id: TagListId) -> &[StringId] {
        &self.entries[id.0 as usize].tags
    }

    pub fn hash(&self, id: TagListId) -> u64 {
        self.entries[id.0 as usize].hash
    }

    pub fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// Bytes held, slack included.
    pub fn heap_bytes(&self) -> usize {
        // The last block of fingerprints is half full on average; two allocations a list.
        self.tag_count * (size_of::<StringId>() + size_of::<u32>())
            + self.len() * (BLOCK / 2 * size_of::<u32>() + 16)
            + self.entries.capacity() * size_of::<Entry>()
            + self.free.capacity() * 4
            + self.index.iter().map(HashTable::allocation_size).sum::<usize>()
    }
}

fn fingerprints(ids: &[StringId], strings: &Strings) -> Box<[[u32; BLOCK]]> {
    let block = |ids: &[StringId]| {
        std::array::from_fn(|at| ids.get(at).map_or(0, |&id| fingerprint(strings.hash(id))))
    };
    ids.chunks(BLOCK).map(block).collect()
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

/// Over the hashes of the tags' texts and independent of order: equal in every worker of the process, whatever ids it gave. For
/// finding a place only; equality is decided by comparing texts or their ids.
#[inline]
pub(crate) fn hash(tags: impl ExactSizeIterator<Item = u64>, secret: &HashSecret) -> u64 {
    let count = tags.len() as u64;
    let sum = tags.fold(0u64, |sum, hash| sum.wrapping_add(secret.spread(hash)));
    secret.words([sum, count].into_iter())
}
