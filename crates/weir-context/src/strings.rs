use hashbrown::HashTable;

use crate::bytes_equal::bytes_equal;
use crate::hash::HashSecret;
use crate::level::Level;
use crate::prefetch::{prefetch_ends, prefetch_value};
use crate::sharded::{Sharded, shrink};
use crate::slab::Slab;
use crate::usage::{NO_KEY, TagKeys};

/// A string that the table owns while something refers to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct StringId(pub u32);

#[derive(Default)]
struct Entry {
    text: Box<str>,
    hash: u64,
    references: u32,
    /// Its key if it was ever a tag, numbered by [`TagKeys`].
    tag_key: u32,
}

/// Tags whose memory is prefetched together.
const GROUP: usize = 16;

/// Stores each distinct string once. Each holder of an id has a reference and returns it with [`Strings::release`].
pub(crate) struct Strings {
    index: Sharded<HashTable<u32>>,
    entries: Slab<Entry>,
    text_bytes: usize,
    tag_keys: TagKeys,
    /// The largest number of values that the key of a new tag has, since this was reset.
    new_tag_values: usize,
}

impl Strings {
    pub fn new() -> Self {
        Strings {
            index: Sharded::new(HashTable::new),
            entries: Slab::new(),
            text_bytes: 0,
            tag_keys: TagKeys::new(),
            new_tag_values: 0,
        }
    }

    /// Reserves room for about this many strings while the table is empty.
    pub fn reserve(&mut self, strings: usize) {
        self.index.reserve(strings);
    }

    /// [`Strings::acquire`] for each of these tags, whose hashes are known. Appends their ids.
    pub fn acquire_tags<T: AsRef<str>>(
        &mut self,
        tags: &[T],
        hashes: &[u64],
        secret: &HashSecret,
        ids: &mut Vec<StringId>,
    ) {
        for (tags, hashes) in tags.chunks(GROUP).zip(hashes.chunks(GROUP)) {
            // Decided by the few bits of the hash in the table, without a look at the entry.
            let likely = |&hash: &u64| self.index.shard(hash).find(hash, |_| true).copied();
            self.prefetch(hashes.iter().filter_map(likely));
            for (tag, &hash) in tags.iter().zip(hashes) {
                ids.push(self.acquire_tag(tag.as_ref(), hash, secret));
            }
        }
    }

    /// Whether these strings have these texts.
    pub fn equal<T: AsRef<str>>(&self, ids: &[StringId], texts: &[T]) -> bool {
        let mut pairs = ids.iter().zip(texts);
        ids.len() == texts.len() && pairs.all(|(&id, text)| self.get(id) == text.as_ref())
    }

    /// Prefetches the first [`GROUP`] entries and their texts, so that their waits for memory overlap.
    pub fn prefetch(&self, ids: impl Iterator<Item = u32>) {
        let mut known = [0; GROUP];
        let mut count = 0;
        for (place, id) in known.iter_mut().zip(ids) {
            prefetch_value(&self.entries[id]);
            *place = id;
            count += 1;
        }
        for &id in &known[..count] {
            prefetch_ends(&self.entries[id].text);
        }
    }

    fn acquire_tag(&mut self, tag: &str, hash: u64, secret: &HashSecret) -> StringId {
        let id = self.acquire_hashed(tag, hash);
        let entry = &mut self.entries[id.0];
        if entry.tag_key == NO_KEY {
            entry.tag_key = self.tag_keys.add(tag, secret);
            self.new_tag_values = self.new_tag_values.max(self.tag_keys.values(entry.tag_key));
        }
        id
    }

    /// Resets [`Strings::new_tag_values`].
    pub fn clear_new_tags(&mut self) {
        self.new_tag_values = 0;
    }

    /// The number of values of the tag keys that got a new tag since the reset; the largest one.
    pub fn new_tag_values(&self) -> usize {
        self.new_tag_values
    }

    pub fn tag_keys(&self) -> &TagKeys {
        &self.tag_keys
    }

    /// Finds or adds `text` and takes one reference.
    pub fn acquire(&mut self, text: &str, secret: &HashSecret) -> StringId {
        self.acquire_hashed(text, secret.bytes(text.as_bytes()))
    }

    fn acquire_hashed(&mut self, text: &str, hash: u64) -> StringId {
        let entries = &mut self.entries;
        let shard = self.index.shard_mut(hash);
        if let Some(&id) = shard.find(hash, |&id| entries[id].hash == hash && &*entries[id].text == text) {
            entries[id].references += 1;
            return StringId(id);
        }
        let id = entries.add(Entry {
            text: text.into(),
            hash,
            references: 1,
            tag_key: NO_KEY,
        });
        self.text_bytes += text.len();
        shard.insert_unique(hash, id, |&id| entries[id].hash);
        StringId(id)
    }

    /// Takes another reference to a string that is held already.
    pub fn acquire_known(&mut self, id: StringId) -> StringId {
        self.entries[id.0].references += 1;
        id
    }

    /// Finds a stored string. Bytes suffice: if they equal a stored string, they are valid UTF-8.
    #[inline]
    pub fn find(&self, text: &[u8], secret: &HashSecret) -> Option<StringId> {
        let hash = secret.bytes(text);
        let entries = &self.entries;
        let found = self.index.shard(hash).find(hash, |&id| {
            let entry = &entries[id];
            entry.hash == hash && entry.text.as_bytes() == text
        });
        found.map(|&id| StringId(id))
    }

    /// Whether a string is this one.
    #[inline(always)]
    pub fn equals(&self, id: StringId, text: &[u8], level: Level) -> bool {
        bytes_equal::<1>(self.entries[id.0].text.as_bytes(), text, level)
    }

    /// Releases one reference. The last one frees the string.
    pub fn release(&mut self, id: StringId) {
        let entry = &mut self.entries[id.0];
        entry.references -= 1;
        if entry.references > 0 {
            return;
        }
        let entry = self.entries.remove(id.0);
        self.tag_keys.remove(entry.tag_key);
        self.text_bytes -= entry.text.len();
        let shard = self.index.shard_mut(entry.hash);
        if let Ok(found) = shard.find_entry(entry.hash, |&other| other == id.0) {
            found.remove();
        }
        shrink(shard, |&id| self.entries[id].hash);
    }

    /// Gives memory back after many strings were removed.
    pub fn compact(&mut self) {
        self.entries.compact(|entry| entry.references > 0);
    }

    /// Address of a string's entry, for prefetching.
    #[inline]
    pub fn entry(&self, id: StringId) -> &impl Sized {
        &self.entries[id.0]
    }

    pub fn get(&self, id: StringId) -> &str {
        &self.entries[id.0].text
    }

    pub fn hash(&self, id: StringId) -> u64 {
        self.entries[id.0].hash
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Bytes held, slack included. The allocator's rounding is estimated at 8 bytes a string.
    pub fn heap_bytes(&self) -> usize {
        self.text_bytes
            + self.len() * 8
            + self.entries.heap_bytes()
            + self.index.iter().map(HashTable::allocation_size).sum::<usize>()
            + self.tag_keys.heap_bytes()
    }
}
