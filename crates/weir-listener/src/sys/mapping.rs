//! Anonymous memory that costs nothing until it is touched.

use std::io;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// Zeroed private memory. Pages become resident when they are first written, so a large mapping of which only the
/// start is used costs only the start.
pub struct Mapping {
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: the mapping is owned by this value alone, as a boxed slice would be.
unsafe impl Send for Mapping {}

impl Mapping {
    pub fn new(length: usize) -> io::Result<Self> {
        // SAFETY: a new anonymous mapping at an address the kernel chooses touches nothing that exists.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                length,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // A huge page would make the whole ring resident at its first packet. Best effort: the advice fails on
        // kernels without huge pages, where nothing is to be prevented.
        // SAFETY: the range is the mapping just made.
        unsafe { libc::madvise(start, length, libc::MADV_NOHUGEPAGE) };
        let start = NonNull::new(start.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { start, length })
    }

    pub(super) fn pointer(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Gives the pages back to the kernel; they read as zeroes afterwards and cost nothing until touched again.
    pub fn release(&mut self) {
        // SAFETY: the range is this mapping, borrowed exclusively; anonymous pages are replaced by zero pages.
        unsafe { libc::madvise(self.start.as_ptr().cast(), self.length, libc::MADV_DONTNEED) };
    }
}

impl Deref for Mapping {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: the mapping is `length` bytes long, readable, initialised by the kernel, and lives as long as self.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.length) }
    }
}

impl DerefMut for Mapping {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.length) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `new` and nothing borrows from it any more.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.length) };
    }
}
