//! The one hint to the processor that safe Rust cannot give. Looking up a group of messages step by step, with the next step's
//! memory already on its way, is what keeps the cost per message flat when the tables outgrow the second-level cache.
#![allow(unsafe_code)]

/// Asks for the cache line at `address`. Harmless for any address, null and dangling ones included: it is never read.
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

/// Asks for all cache lines of a text: three in any case, because most keys have as many and a branch on it would be predicted
/// wrongly, and the others of a longer one.
#[inline(always)]
pub(crate) fn prefetch_text(text: &[u8]) {
    let start = text.as_ptr();
    for at in 0..3 {
        prefetch(start.wrapping_add(at * LINE));
    }
    // The last one is the third or fourth at common lengths.
    let end = start.wrapping_add(text.len().saturating_sub(1));
    prefetch(end);
    for at in 3..text.len() / LINE {
        prefetch(start.wrapping_add(at * LINE));
    }
}

/// Asks for the first and the last cache line of a text.
#[inline(always)]
pub(crate) fn prefetch_ends(text: &str) {
    let start = text.as_ptr();
    prefetch(start);
    prefetch(start.wrapping_add(text.len().saturating_sub(1)));
}

/// Asks for a value that may lie across two cache lines.
#[inline(always)]
pub fn prefetch_value<T>(value: &T) {
    let start = std::ptr::from_ref(value).cast::<u8>();
    prefetch(start);
    prefetch(start.wrapping_add(size_of::<T>().saturating_sub(1)));
}
