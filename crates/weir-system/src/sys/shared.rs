//! Words of memory mapped to a file: data stored here is in the file, even after a kill.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

pub struct SharedWords {
    start: NonNull<AtomicU64>,
    number: usize,
}

// SAFETY: words are only reached as atomics, through `&self`.
unsafe impl Send for SharedWords {}
// SAFETY: as above.
unsafe impl Sync for SharedWords {}

impl SharedWords {
    /// Maps a file with at least this many words, which must not shrink: storing beyond the file's end fails.
    pub fn of(file: &File, number: usize) -> io::Result<SharedWords> {
        let bytes = number * size_of::<AtomicU64>();
        if file.metadata()?.len() < bytes as u64 {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof));
        }
        // SAFETY: a new mapping at an address the kernel chooses touches nothing that exists; the descriptor is open.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast::<AtomicU64>()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(SharedWords { start, number })
    }

    /// A relaxed store, which waits for nothing.
    pub fn store(&self, at: usize, value: u64) {
        assert!(at < self.number);
        // SAFETY: within the mapping, by the line above; a page is aligned for every word, and zeros are a valid value.
        unsafe { self.start.add(at).as_ref() }.store(value.to_le(), Ordering::Relaxed);
    }
}

impl Drop for SharedWords {
    fn drop(&mut self) {
        // SAFETY: the mapping that was made above, of this length, which nothing refers to any more.
        unsafe {
            libc::munmap(self.start.as_ptr().cast(), self.number * size_of::<AtomicU64>());
        }
    }
}
