/// A growing array in chunks of 1024 that never move. Growth costs one small allocation at any size; a vector of a million entries would
/// stop the worker to copy them.
#[derive(Debug, Default)]
pub struct Chunked<T> {
    chunks: Vec<Box<[T; CHUNK]>>,
    len: usize,
}

/// Entries of a chunk.
pub const CHUNK: usize = 1024;

impl<T: Default> Chunked<T> {
    pub fn new() -> Self {
        Chunked {
            chunks: Vec::new(),
            len: 0,
        }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn push(&mut self, value: T) {
        let len = self.len;
        self.grow_to(len + 1);
        self[len] = value;
    }

    /// Extends the array to `len` entries; new entries hold the default.
    pub fn grow_to(&mut self, len: usize) {
        while self.chunks.len() * CHUNK < len {
            let chunk: Vec<T> = std::iter::repeat_with(T::default).take(CHUNK).collect();
            self.chunks.push(
                chunk
                    .try_into()
                    .unwrap_or_else(|_| unreachable!("made with that length")),
            );
        }
        self.len = self.len.max(len);
    }

    /// [`Chunked::truncate`] to whole chunks. The remaining entries keep their values.
    pub fn truncate_chunks(&mut self, len: usize) {
        self.truncate(len.next_multiple_of(CHUNK).min(self.len));
    }

    /// Removes the entries from `len` on and frees chunks without entries.
    pub fn truncate(&mut self, len: usize) {
        for at in len..self.len.min(len.next_multiple_of(CHUNK)) {
            self[at] = T::default();
        }
        self.len = self.len.min(len);
        self.chunks.truncate(self.len.div_ceil(CHUNK));
        self.chunks.shrink_to_fit();
    }

    /// The entry; `None` beyond the end.
    #[inline]
    pub fn get(&self, at: usize) -> Option<&T> {
        self.chunks.get(at / CHUNK).map(|chunk| &chunk[at % CHUNK])
    }

    /// Address of an entry, for prefetching; null beyond the end.
    #[inline]
    pub fn address(&self, at: usize) -> *const u8 {
        if at < self.len {
            std::ptr::from_ref(&self[at]).cast()
        } else {
            std::ptr::null()
        }
    }

    pub fn chunk_count(&self) -> usize {
        self.chunks.len()
    }

    /// Address of each chunk, for prefetching.
    pub fn chunk_addresses(&self) -> impl Iterator<Item = usize> {
        self.chunks.iter().map(|chunk| chunk.as_ptr().addr())
    }

    pub fn heap_bytes(&self) -> usize {
        self.chunks.len() * CHUNK * size_of::<T>() + self.chunks.capacity() * size_of::<usize>()
    }
}

impl<T> std::ops::Index<usize> for Chunked<T> {
    type Output = T;

    #[inline]
    fn index(&self, at: usize) -> &T {
        &self.chunks[at / CHUNK][at % CHUNK]
    }
}

impl<T> std::ops::IndexMut<usize> for Chunked<T> {
    #[inline]
    fn index_mut(&mut self, at: usize) -> &mut T {
        &mut self.chunks[at / CHUNK][at % CHUNK]
    }
}
