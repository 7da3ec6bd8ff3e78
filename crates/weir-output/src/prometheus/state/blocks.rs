//! A growing array that is never copied.

use std::ops::{Index, IndexMut};

/// Entries of a block.
const BLOCK: usize = 128;

/// A growing array in blocks that never move. A vector of many metrics would be copied when it grows, and while that is done there is memory for
/// two of them.
#[derive(Debug)]
pub struct Blocks<T> {
    /// All but the last are full.
    blocks: Vec<Vec<T>>,
}

impl<T> Default for Blocks<T> {
    fn default() -> Self {
        Blocks { blocks: Vec::new() }
    }
}

impl<T> Blocks<T> {
    pub fn len(&self) -> usize {
        let last = self.blocks.last().map_or(0, Vec::len);
        self.blocks.len().saturating_sub(1) * BLOCK + last
    }

    pub fn push(&mut self, value: T) {
        match self.blocks.last_mut() {
            Some(last) if last.len() < BLOCK => last.push(value),
            // The first one grows, as most states have few metrics.
            None => self.blocks.push(vec![value]),
            Some(_) => {
                let mut block = Vec::with_capacity(BLOCK);
                block.push(value);
                self.blocks.push(block);
            }
        }
    }

    pub fn get(&self, at: usize) -> Option<&T> {
        self.blocks.get(at / BLOCK)?.get(at % BLOCK)
    }

    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.blocks.iter().flatten()
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.blocks.iter_mut().flatten()
    }

    /// Removes the other entries. The rest moves together, one block at a time.
    pub fn retain(&mut self, mut stays: impl FnMut(&T) -> bool) {
        for block in std::mem::take(&mut self.blocks) {
            for value in block {
                if stays(&value) {
                    self.push(value);
                }
            }
        }
        self.blocks.shrink_to_fit();
        if let [only] = self.blocks.as_mut_slice() {
            only.shrink_to_fit();
        }
    }

    pub fn heap_bytes(&self) -> usize {
        let last = self.blocks.last().map_or(0, Vec::capacity);
        let entries = self.blocks.len().saturating_sub(1) * BLOCK + last;
        entries * size_of::<T>() + self.blocks.capacity() * size_of::<Vec<T>>()
    }

    /// Bytes that the next [`Blocks::push`] allocates, beside those that are there.
    pub fn bytes_to_push(&self) -> usize {
        let entries = match self.blocks.as_slice() {
            [.., last] if last.len() < last.capacity() => return 0,
            [] => 1,
            [last] if last.len() < BLOCK => (2 * last.capacity()).max(4),
            _ => BLOCK,
        };
        let has_place =
            self.blocks.len() < self.blocks.capacity() || entries < BLOCK && !self.blocks.is_empty();
        let places = if has_place {
            0
        } else {
            (2 * self.blocks.capacity()).max(4)
        };
        entries * size_of::<T>() + places * size_of::<Vec<T>>()
    }
}

impl<T> Index<usize> for Blocks<T> {
    type Output = T;

    #[inline]
    fn index(&self, at: usize) -> &T {
        &self.blocks[at / BLOCK][at % BLOCK]
    }
}

impl<T> IndexMut<usize> for Blocks<T> {
    #[inline]
    fn index_mut(&mut self, at: usize) -> &mut T {
        &mut self.blocks[at / BLOCK][at % BLOCK]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_where_they_were_put() {
        let mut blocks = Blocks::default();
        assert_eq!((blocks.len(), blocks.get(0)), (0, None));
        for value in 0..1000u64 {
            let (before, needed) = (blocks.heap_bytes(), blocks.bytes_to_push());
            blocks.push(value);
            let after = blocks.heap_bytes();
            assert!(
                after <= before + needed,
                "{value}: {before} and {needed}, then {after}"
            );
            assert_eq!(blocks.len(), value as usize + 1);
        }
        assert!((0..1000).all(|at| blocks[at as usize] == at && blocks.get(at as usize) == Some(&at)));
        assert_eq!(blocks.get(1000), None);
        blocks.iter_mut().for_each(|value| *value += 1);
        blocks[5] = 0;
        assert_eq!(blocks.iter().sum::<u64>(), 500_500 - 6);
    }

    #[test]
    fn what_stays_moves_together() {
        let mut blocks = Blocks::default();
        (0..1000u64).for_each(|value| blocks.push(value));
        let full = blocks.heap_bytes();
        blocks.retain(|value| value % 4 == 3);
        assert!(blocks.iter().copied().eq((0..250).map(|at| 4 * at + 3)));
        assert!(
            blocks.heap_bytes() < full / 2,
            "{} of {full}",
            blocks.heap_bytes()
        );
        blocks.retain(|value| *value == 3);
        assert_eq!(
            (blocks.len(), blocks.heap_bytes()),
            (1, 8 + size_of::<Vec<u64>>())
        );
        blocks.retain(|_| false);
        assert_eq!((blocks.len(), blocks.heap_bytes()), (0, 0));
    }
}
