use hashbrown::HashTable;

/// A table in shards, selected by the top bits of the hash. A growing table rehashes all entries, and their hashes lie all over memory: with
/// 64 shards, and a million contexts with tags of their own, a packet took up to ten milliseconds, with 256 three.
pub(crate) struct Sharded<T> {
    shards: Box<[T; SHARDS]>,
}

const SHARDS: usize = 256;

impl<T> Sharded<T> {
    pub fn new(make: impl Fn() -> T) -> Self {
        Sharded {
            shards: Box::new(std::array::from_fn(|_| make())),
        }
    }

    /// hashbrown uses bits 57 to 63 within its groups, so the shard comes from the bits just below.
    #[inline]
    fn index(hash: u64) -> usize {
        (hash >> 49) as usize & (SHARDS - 1)
    }

    #[inline]
    pub fn shard(&self, hash: u64) -> &T {
        &self.shards[Self::index(hash)]
    }

    #[inline]
    pub fn shard_mut(&mut self, hash: u64) -> &mut T {
        &mut self.shards[Self::index(hash)]
    }

    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.shards.iter()
    }
}

impl<T> Sharded<HashTable<T>> {
    /// Reserves room for about this many entries while the table is empty, so that growth does not rehash them.
    pub fn reserve(&mut self, entries: usize) {
        for shard in self.shards.iter_mut().filter(|shard| shard.is_empty()) {
            shard.reserve(entries / SHARDS, |_| 0);
        }
    }
}

/// Frees a shard's spare memory once three quarters of it are unused.
pub(crate) fn shrink<T>(shard: &mut HashTable<T>, hash: impl Fn(&T) -> u64) {
    if shard.capacity() > 16 && shard.len() < shard.capacity() / 4 {
        shard.shrink_to(shard.len() * 2, hash);
    }
}
