//! The texts of a bucket, stored once.

use hashbrown::HashTable;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// A list that is full grows by this part of its length: one that doubles holds up to three times its content while it grows.
const GROWTH: usize = 4;

/// Makes room for more entries in a list that may become long.
pub(crate) fn make_room<T>(list: &mut Vec<T>, more: usize) {
    if list.capacity() - list.len() < more {
        list.reserve_exact(more.max(list.len() / GROWTH).max(LEAST_ENTRIES));
    }
}

/// A short list does not grow entry by entry.
const LEAST_ENTRIES: usize = 16;

#[derive(Debug)]
pub(crate) struct Texts {
    seed: u64,
    text: String,
    ends: Vec<u32>,
    numbers: HashTable<u32>,
}

impl Texts {
    pub fn new(seed: u64) -> Self {
        Texts {
            seed,
            text: String::new(),
            ends: Vec::new(),
            numbers: HashTable::new(),
        }
    }

    /// The number of a known text.
    pub fn known(&self, text: &str) -> Option<u32> {
        let (all, ends) = (&self.text, &self.ends);
        self.numbers
            .find(self.hash(text), |number| get(all, ends, *number) == text)
            .copied()
    }

    /// The number of a text, added if unknown.
    pub fn number(&mut self, text: &str) -> u32 {
        if let Some(found) = self.known(text) {
            return found;
        }
        let number = self.ends.len() as u32;
        if self.text.capacity() - self.text.len() < text.len() {
            let more = text.len().max(self.text.len() / GROWTH);
            self.text.reserve_exact(more.max(LEAST_ENTRIES));
        }
        self.text.push_str(text);
        make_room(&mut self.ends, 1);
        self.ends.push(self.text.len() as u32);
        let (all, ends, seed) = (&self.text, &self.ends, self.seed);
        self.numbers.insert_unique(self.hash(text), number, |number| {
            hash(get(all, ends, *number), seed)
        });
        number
    }

    pub fn get(&self, number: u32) -> &str {
        get(&self.text, &self.ends, number)
    }

    fn hash(&self, text: &str) -> u64 {
        hash(text, self.seed)
    }

    pub fn len(&self) -> usize {
        self.ends.len()
    }

    pub fn heap_bytes(&self) -> usize {
        self.text.capacity() + self.ends.capacity() * 4 + self.numbers.allocation_size()
    }
}

fn hash(text: &str, seed: u64) -> u64 {
    xxh3_64_with_seed(text.as_bytes(), seed)
}

fn get<'a>(text: &'a str, ends: &[u32], number: u32) -> &'a str {
    let at = number as usize;
    let start = at.checked_sub(1).map_or(0, |before| ends[before]);
    &text[start as usize..ends[at] as usize]
}
