//! Memory for frames that have begun but not ended, within a budget.

/// Sizes in which memory is handed out. A connection that has sent one byte of a frame costs the smallest, so that
/// thousands of such connections stay cheap.
const CLASS_BYTES: [usize; 6] = [64, 256, 1024, 4096, 16384, 65536 + 64];

/// Unused memory kept for the next partial frame. Enough that busy connections, which end almost every read inside a
/// frame, never reach the allocator; little enough to be forgotten about.
const SPARE_BYTES_MAX: usize = 256 * 1024;

/// The beginning of a frame of one connection.
#[derive(Debug, Default)]
pub struct Partial {
    memory: Option<Box<[u8]>>,
    length: usize,
}

impl Partial {
    pub fn bytes(&self) -> &[u8] {
        self.memory
            .as_deref()
            .map_or(&[], |memory| &memory[..self.length])
    }

    pub fn len(&self) -> usize {
        self.length
    }

    pub fn is_empty(&self) -> bool {
        self.length == 0
    }
}

/// Source of the memory for partial frames, and its limit.
#[derive(Debug)]
pub struct PartialPool {
    spare: [Vec<Box<[u8]>>; CLASS_BYTES.len()],
    spare_bytes: usize,
    used_bytes: usize,
    budget_bytes: usize,
}

/// The budget has no room.
#[derive(Debug, PartialEq, Eq)]
pub struct BudgetExhausted;

impl PartialPool {
    pub fn new(budget_bytes: usize) -> Self {
        Self {
            spare: Default::default(),
            spare_bytes: 0,
            used_bytes: 0,
            budget_bytes,
        }
    }

    pub fn budget(&self) -> usize {
        self.budget_bytes
    }

    /// Takes effect with the next partial frame; nothing is taken away from those there are.
    pub fn set_budget(&mut self, bytes: usize) {
        self.budget_bytes = bytes;
        self.trim(0);
    }

    /// Memory in use and in reserve.
    pub fn held(&self) -> usize {
        self.used_bytes + self.spare_bytes
    }

    /// Appends bytes to a partial frame.
    ///
    /// # Errors
    ///
    /// [`BudgetExhausted`], and the partial frame is as before.
    pub fn append(&mut self, partial: &mut Partial, bytes: &[u8]) -> Result<(), BudgetExhausted> {
        if bytes.is_empty() {
            return Ok(());
        }
        let needed = partial.length + bytes.len();
        if partial.memory.as_ref().is_none_or(|memory| memory.len() < needed) {
            let mut larger = self.take(needed)?;
            larger[..partial.length].copy_from_slice(partial.bytes());
            if let Some(smaller) = partial.memory.replace(larger) {
                self.give_back(smaller);
            }
        }
        if let Some(memory) = &mut partial.memory {
            memory[partial.length..needed].copy_from_slice(bytes);
            partial.length = needed;
        }
        Ok(())
    }

    /// Forgets a partial frame.
    pub fn clear(&mut self, partial: &mut Partial) {
        partial.length = 0;
        if let Some(memory) = partial.memory.take() {
            self.give_back(memory);
        }
    }

    fn take(&mut self, bytes: usize) -> Result<Box<[u8]>, BudgetExhausted> {
        let class = CLASS_BYTES
            .iter()
            .position(|size| *size >= bytes)
            .ok_or(BudgetExhausted)?;
        let size = CLASS_BYTES[class];
        if self.used_bytes + size > self.budget_bytes {
            return Err(BudgetExhausted);
        }
        let memory = match self.spare[class].pop() {
            Some(memory) => {
                self.spare_bytes -= size;
                memory
            }
            None => {
                // The reserve counts too, so it has to make room.
                self.trim(size);
                vec![0; size].into()
            }
        };
        self.used_bytes += size;
        Ok(memory)
    }

    fn give_back(&mut self, memory: Box<[u8]>) {
        let size = memory.len();
        self.used_bytes -= size;
        if self.spare_bytes + size > SPARE_BYTES_MAX || self.held() + size > self.budget_bytes {
            return;
        }
        if let Some(class) = CLASS_BYTES.iter().position(|s| *s == size) {
            self.spare_bytes += size;
            self.spare[class].push(memory);
        }
    }

    /// Frees reserve until `room` more bytes fit the budget or there is no reserve.
    fn trim(&mut self, room: usize) {
        for (class, spare) in self.spare.iter_mut().enumerate().rev() {
            while self.used_bytes + self.spare_bytes + room > self.budget_bytes && spare.pop().is_some() {
                self.spare_bytes -= CLASS_BYTES[class];
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_reused_and_counted() {
        let mut pool = PartialPool::new(10_000);
        let mut partial = Partial::default();
        pool.append(&mut partial, &[1; 10]).unwrap();
        assert_eq!(pool.held(), 64);
        pool.append(&mut partial, &[2; 100]).unwrap();
        assert_eq!((pool.held(), pool.spare_bytes), (256 + 64, 64));
        assert_eq!(partial.bytes()[..12], [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2]);
        pool.clear(&mut partial);
        assert_eq!((pool.used_bytes, pool.spare_bytes), (0, 256 + 64));
        pool.append(&mut partial, &[3; 64]).unwrap();
        assert_eq!((pool.used_bytes, pool.spare_bytes), (64, 256));
    }

    #[test]
    fn the_budget_holds_and_a_release_frees_it() {
        let mut pool = PartialPool::new(1024 + 256);
        let mut a = Partial::default();
        let mut b = Partial::default();
        pool.append(&mut a, &[0; 200]).unwrap();
        pool.append(&mut b, &[0; 1000]).unwrap();
        assert_eq!(pool.append(&mut a, &[0; 100]), Err(BudgetExhausted));
        assert_eq!(a.len(), 200);
        pool.clear(&mut b);
        pool.clear(&mut a);
        assert_eq!(pool.held(), 1024 + 256);
        let mut c = Partial::default();
        pool.append(&mut c, &[0; 60]).unwrap();
        assert!(pool.held() <= 1024 + 256);
        pool.set_budget(0);
        assert_eq!(pool.held(), 64);
        assert_eq!(pool.append(&mut c, &[0; 10]), Err(BudgetExhausted));
        pool.clear(&mut c);
        assert_eq!(pool.held(), 0);
    }
}
