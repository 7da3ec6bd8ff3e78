//! Dictionaries of a payload that is being written: each entry once, in the order of its first use.

use hashbrown::HashTable;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::wire::{varint, zigzag};

/// Number of an entry; the first is 1.
type Number = u32;

#[derive(Clone, Copy)]
struct Slot {
    hash: u64,
    number: Number,
}

#[derive(Clone, Copy)]
struct Span {
    start: u32,
    end: u32,
}

/// Finds entries by hash; whether one is the wanted one is up to the caller.
#[derive(Default)]
struct Index {
    table: HashTable<Slot>,
}

impl Index {
    fn find(&self, hash: u64, is_wanted: impl Fn(Number) -> bool) -> Option<Number> {
        let found = self
            .table
            .find(hash, |slot| slot.hash == hash && is_wanted(slot.number));
        found.map(|slot| slot.number)
    }

    fn insert(&mut self, hash: u64, number: Number) {
        self.table
            .insert_unique(hash, Slot { hash, number }, |slot| slot.hash);
    }
}

/// Texts as a column has them: each its length and its bytes.
#[derive(Default)]
pub(crate) struct Texts {
    /// The column, parts that were taken included: texts are compared with it.
    pub bytes: Vec<u8>,
    spans: Vec<Span>,
    index: Index,
}

impl Texts {
    pub fn len(&self) -> usize {
        self.spans.len()
    }

    /// The number of a text; 0 for the empty one.
    pub fn add(&mut self, seed: u64, text: &[u8]) -> Number {
        if text.is_empty() {
            return 0;
        }
        let hash = xxh3_64_with_seed(text, seed);
        let (bytes, spans) = (&self.bytes, &self.spans);
        let is_wanted = |number: Number| {
            let span = spans[number as usize - 1];
            bytes[span.start as usize..span.end as usize] == *text
        };
        if let Some(number) = self.index.find(hash, is_wanted) {
            return number;
        }
        varint(&mut self.bytes, text.len() as u64);
        let start = self.bytes.len() as u32;
        self.bytes.extend_from_slice(text);
        self.spans.push(Span {
            start,
            end: self.bytes.len() as u32,
        });
        let number = self.spans.len() as Number;
        self.index.insert(hash, number);
        number
    }

    pub fn clear(&mut self) {
        self.bytes.clear();
        self.spans.clear();
        self.index.table.clear();
    }
}

/// Lists of numbers.
#[derive(Default)]
pub(crate) struct Lists {
    numbers: Vec<i32>,
    spans: Vec<Span>,
    index: Index,
}

impl Lists {
    pub fn len(&self) -> usize {
        self.spans.len()
    }

    /// The number of a list, and whether it is a new one; 0 for the empty one.
    pub fn add(&mut self, seed: u64, list: &[i32]) -> (Number, bool) {
        if list.is_empty() {
            return (0, false);
        }
        let mut hash = seed ^ list.len() as u64;
        for number in list {
            hash = mix(hash ^ u64::from(*number as u32));
        }
        let (numbers, spans) = (&self.numbers, &self.spans);
        let is_wanted = |number: Number| {
            let span = spans[number as usize - 1];
            numbers[span.start as usize..span.end as usize] == *list
        };
        if let Some(number) = self.index.find(hash, is_wanted) {
            return (number, false);
        }
        let start = self.numbers.len() as u32;
        self.numbers.extend_from_slice(list);
        self.spans.push(Span {
            start,
            end: self.numbers.len() as u32,
        });
        let number = self.spans.len() as Number;
        self.index.insert(hash, number);
        (number, true)
    }

    pub fn clear(&mut self) {
        self.numbers.clear();
        self.spans.clear();
        self.index.table.clear();
    }
}

/// One round of a multiplication whose halves are folded: each bit of the result depends on all.
fn mix(value: u64) -> u64 {
    let product = u128::from(value ^ 0x9e37_79b9_7f4a_7c15) * 0xd6e8_feb8_6659_fd93;
    (product >> 64) as u64 ^ product as u64
}

/// Appends numbers, each as the difference to the one before it.
pub(crate) fn deltas(column: &mut Vec<u8>, numbers: impl Iterator<Item = i32>) {
    let mut last = 0;
    for number in numbers {
        varint(column, zigzag(i64::from(number) - last));
        last = i64::from(number);
    }
}
