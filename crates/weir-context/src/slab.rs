use crate::chunked::Chunked;

/// Free places beyond which giving memory back is not worth sorting them for.
const SORTED_MAX: usize = 1 << 16;

/// Values under small numbers that are used again. Grows without a pause, and gives memory back when what is left lies in front.
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

    /// Takes an entry out; its number will be used again.
    pub fn remove(&mut self, id: u32) -> T {
        self.free.push(id);
        std::mem::take(&mut self.entries[id as usize])
    }

    pub fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// Gives back what lies behind the last entry in use, once most are not.
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
            // The first places are used first, so that the last become free.
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
