use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The largest few of many amounts.
#[derive(Default)]
pub(crate) struct Top {
    heap: BinaryHeap<Reverse<(u64, u32)>>,
}

impl Top {
    /// Offers slot `at` with its amount.
    pub fn offer(&mut self, amount: u64, at: u32, max: usize) {
        if amount == 0 {
            return;
        }
        if self.heap.len() < max {
            self.heap.push(Reverse((amount, at)));
        } else if let Some(mut least) = self.heap.peek_mut()
            && least.0.0 < amount
        {
            *least = Reverse((amount, at));
        }
    }

    /// The slots kept, unordered.
    pub fn take(&mut self) -> impl Iterator<Item = (u64, u32)> + use<> {
        std::mem::take(&mut self.heap)
            .into_iter()
            .map(|Reverse(entry)| entry)
    }

    pub fn heap_bytes(&self) -> usize {
        self.heap.capacity() * size_of::<(u64, u32)>()
    }
}
