use crate::chunked::Chunked;

/// Above this many free places, sorting them costs more than the memory it would give back.
const SORTED_MAX: usize = 1 << 16;

/// Values under small numbers, which are reused. Grows without copying, and gives memory back once the remaining values lie in front.
#[derive(Debug, Default)]
pub(crate) struct Slab<T> {
    entries: Chunked<T>,
    free: Vec<u32>,
}

impl<T: Default> Slab<T> {
    pub fn new() -> Self {
        Slab {
            entries: Chunked::new(),
            free: Vec::new(),
        }
    }

    pub fn add(&mut self, value: T) -> u32 {
        if let Some(id) = self.free.pop() {
            self.entries[id as usize] = value;
            return id;
        }
        self.entries.push(value);
        u32::try_from(self.entries.len() - 1).expect("the memory budget ends long before 2^32 entries")
    }

    /// Removes an entry. Its number will be reused.
    pub fn remove(&mut self, id: u32) -> T {
        self.free.push(id);
        std::mem::take(&mut self.entries[id as usize])
    }

    pub fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// Frees the memory behind the last used entry, once most entries are free.
    pub fn compact(&mut self, is_used: impl Fn(&T) -> bool) {
        if self.free.len() <= 1024 || self.free.len() <= self.entries.len() / 2 {
            return;
        }
        let mut len = self.entries.len();
        while len > 0 && !is_used(&self.entries[len - 1]) {
            len -= 1;
        }
        self.entries.truncate(len);
        self.free.retain(|&id| (id as usize) < len);
        self.free.shrink_to_fit();
        if self.free.len() <= SORTED_MAX {
            // Low places are reused first, so that the high ones stay free.
            self.free.sort_unstable_by(|a, b| b.cmp(a));
        }
    }

    pub fn heap_bytes(&self) -> usize {
        self.entries.heap_bytes() + self.free.capacity() * size_of::<u32>()
    }
}

impl<T> std::ops::Index<u32> for Slab<T> {
    type Output = T;

    #[inline]
    fn index(&self, id: u32) -> &T {
        &self.entries[id as usize]
    }
}

impl<T> std::ops::IndexMut<u32> for Slab<T> {
    #[inline]
    fn index_mut(&mut self, id: u32) -> &mut T {
        &mut self.entries[id as usize]
    }
}
