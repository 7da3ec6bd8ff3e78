//! The texts of a bucket, stored once.

use hashbrown::HashTable;
use xxhash_rust::xxh3::xxh3_64_with_seed;

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
        self.text.push_str(text);
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

    pub fn heap_bytes(&self) -> usize {
        self.text.capacity() + self.ends.capacity() * 4 + self.numbers.capacity() * 5
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
