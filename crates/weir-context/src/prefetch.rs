//! Prefetching, the one hint to the processor that safe Rust lacks. A group of messages is looked up step by step, with the memory of the
//! next step already on its way. This keeps the cost per message flat when the tables outgrow the second-level cache.
#![allow(unsafe_code)]

/// Prefetches the cache line at `address`. Any address is harmless, also a null or dangling one, because nothing reads it.
#[inline]
pub fn prefetch(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch does not access memory in the sense of the abstract machine and cannot fault, whatever the address.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(address.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// Bytes of a cache line.
const LINE: usize = 64;

/// Lines of a text that are prefetched. The processor sees by itself that a longer text is read in order.
const TEXT_LINES_MAX: usize = 16;

/// Prefetches the cache lines of a text: always three, because most keys have as many and a branch would be predicted wrongly, and the next
/// ones of a longer text.
#[inline(always)]
pub(crate) fn prefetch_text(text: &[u8]) {
    let start = text.as_ptr();
    for at in 0..3 {
        prefetch(start.wrapping_add(at * LINE));
    }
    // The last one is the third or fourth at common lengths.
    let end = start.wrapping_add(text.len().saturating_sub(1));
    prefetch(end);
    for at in 3..(text.len() / LINE).min(TEXT_LINES_MAX) {
        prefetch(start.wrapping_add(at * LINE));
    }
}

/// Prefetches the first and the last cache line of a text.
#[inline(always)]
pub(crate) fn prefetch_ends(text: &str) {
    let start = text.as_ptr();
    prefetch(start);
    prefetch(start.wrapping_add(text.len().saturating_sub(1)));
}

/// Prefetches a value that may span two cache lines.
#[inline(always)]
pub fn prefetch_value<T>(value: &T) {
    let start = std::ptr::from_ref(value).cast::<u8>();
    prefetch(start);
    prefetch(start.wrapping_add(size_of::<T>().saturating_sub(1)));
}
