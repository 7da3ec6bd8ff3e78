//! Texts by number, and their order by bytes.

use std::hash::{BuildHasher as _, RandomState};

use hashbrown::HashTable;

/// Each text once.
#[derive(Debug, Default)]
pub(crate) struct Interned {
    hasher: RandomState,
    /// Concatenated.
    all: String,
    /// Start and end of each in `all`.
    spans: Vec<(u32, u32)>,
    index: HashTable<u32>,
    /// Numbers by ascending text; behind `sorted` as they came.
    order: Vec<u32>,
    sorted: usize,
    /// The place of each in `order`.
    places: Vec<u32>,
}

impl Interned {
    /// The number of a text, which is added where it is new.
    pub fn number(&mut self, text: &str) -> u32 {
        let hash = self.hasher.hash_one(text);
        let known = self.index.find(hash, |number| self.text(*number) == text);
        if let Some(known) = known {
            return *known;
        }
        let number = self.spans.len() as u32;
        let start = self.all.len() as u32;
        self.all.push_str(text);
        self.spans.push((start, self.all.len() as u32));
        self.order.push(number);
        let (all, spans, hasher) = (&self.all, &self.spans, &self.hasher);
        self.index.insert_unique(hash, number, |number| {
            let (start, end) = spans[*number as usize];
            hasher.hash_one(&all[start as usize..end as usize])
        });
        number
    }

    pub fn text(&self, number: u32) -> &str {
        let (start, end) = self.spans[number as usize];
        &self.all[start as usize..end as usize]
    }

    pub fn len(&self) -> usize {
        self.spans.len()
    }

    /// Sorts new entries into their places.
    pub fn sort(&mut self) {
        if self.sorted == self.order.len() {
            return;
        }
        let mut order = std::mem::take(&mut self.order);
        order.sort_by(|one, other| self.text(*one).cmp(self.text(*other)));
        self.places.resize(order.len(), 0);
        for (place, number) in (0..).zip(&order) {
            self.places[*number as usize] = place;
        }
        (self.sorted, self.order) = (order.len(), order);
    }

    /// Position of a text in the sorted list.
    pub fn place(&self, number: u32) -> u32 {
        self.places[number as usize]
    }

    /// Numbers by ascending text, once they are sorted.
    pub fn in_order(&self) -> impl Iterator<Item = u32> {
        self.order.iter().copied()
    }

    pub fn heap_bytes(&self) -> usize {
        self.all.capacity()
            + self.spans.capacity() * size_of::<(u32, u32)>()
            + self.index.allocation_size()
            + (self.order.capacity() + self.places.capacity()) * 4
    }
}
