use hashbrown::HashTable;

use crate::hash::HashSecret;
use crate::sharded::Sharded;
use crate::strings::{StringId, Strings, shrink};

/// A sorted, duplicate-free list of tags, shared by every context that has exactly these.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct TagListId(pub u32);

struct Entry {
    /// The tags twice: by text, which is how they are written down, and by id, which is how they are recognised.
    tags: Box<[StringId]>,
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
        ids.extend(tags.iter().map(|tag| strings.acquire(tag.as_ref(), secret)));
        let count = ids.len();
        ids.extend_from_within(..);
        ids[count..].sort_unstable();
        let hash = hash(&ids[count..], strings, secret);
        if let Some(id) = self.find_hashed(&ids[count..], hash) {
            self.entries[id.0 as usize].references += 1;
            for &string in &ids[..count] {
                strings.release(string);
            }
            return id;
        }
        let entries = &mut self.entries;
        let shard = self.index.shard_mut(hash);
        self.tag_count += ids.len();
        let entry = Entry {
            tags: ids.as_slice().into(),
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

    /// Finds a list that is held already by the ids of its tags, sorted and free of duplicates.
    pub fn find(&self, ids: &[StringId], strings: &Strings, secret: &HashSecret) -> Option<TagListId> {
        self.find_hashed(ids, hash(ids, strings, secret))
    }

    fn find_hashed(&self, ids: &[StringId], hash: u64) -> Option<TagListId> {
        let entries = &self.entries;
        let found = self.index.shard(hash).find(hash, |&id| {
            let entry = &entries[id as usize];
            entry.hash == hash && entry.tags[entry.tags.len() / 2..] == *ids
        });
        found.map(|&id| TagListId(id))
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
        for &tag in &tags[..tags.len() / 2] {
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
        let tags = &self.entries[id.0 as usize].tags;
        &tags[..tags.len() / 2]
    }

    pub fn hash(&self, id: TagListId) -> u64 {
        self.entries[id.0 as usize].hash
    }

    pub fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// Bytes held, slack included.
    pub fn heap_bytes(&self) -> usize {
        self.tag_count * size_of::<StringId>()
            + self.len() * 8
            + self.entries.capacity() * size_of::<Entry>()
            + self.free.capacity() * 4
            + self.index.iter().map(HashTable::allocation_size).sum::<usize>()
    }
}

/// Over the texts' own hashes and independent of order: equal in every worker of the process, whatever ids it gave. For finding
/// a place only; equality is decided by the ids.
fn hash(ids: &[StringId], strings: &Strings, secret: &HashSecret) -> u64 {
    let sum = ids
        .iter()
        .fold(0u64, |sum, &id| sum.wrapping_add(secret.spread(strings.hash(id))));
    secret.words([sum, ids.len() as u64].into_iter())
}
