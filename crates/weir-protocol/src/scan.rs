//! One pass over a packet that finds every newline and every colon, 64 bytes at a time.
//!
//! The simple version searches for each newline and each colon in turn; every search has a start and an end that cost more than
//! the few bytes between them. Here the whole packet becomes two bit masks first, and a search is a shift and a count.
//! With AVX2 where the processor has it, byte by byte elsewhere; the tests compare both with a plain search.
#![allow(unsafe_code)]

/// Where the newlines and colons of a packet are, one bit a byte.
#[derive(Clone, Debug, Default)]
pub struct Scan {
    newlines: Vec<u64>,
    colons: Vec<u64>,
    len: usize,
}

/// The bits of one block of 64 bytes: newlines, colons.
type Masks = (u64, u64);

impl Scan {
    pub fn new() -> Self {
        Scan::default()
    }

    /// Takes a packet; what was known of the one before is forgotten.
    #[inline]
    pub fn scan(&mut self, packet: &[u8]) {
        self.len = packet.len();
        #[cfg(target_arch = "x86_64")]
        if std::arch::is_x86_feature_detected!("avx2") {
            // SAFETY: the processor has AVX2.
            return unsafe { self.scan_avx2(packet) };
        }
        self.scan_portable(packet);
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    fn scan_avx2(&mut self, packet: &[u8]) {
        use std::arch::x86_64::{
            __m256i, _mm256_cmpeq_epi8, _mm256_loadu_si256, _mm256_movemask_epi8, _mm256_set1_epi8,
        };
        let newline = _mm256_set1_epi8(b'\n' as i8);
        let colon = _mm256_set1_epi8(b':' as i8);
        self.blocks(packet, |block| {
            // SAFETY: a block has 64 bytes; an unaligned load reads 32 of them at 0 and at 32.
            let (low, high) = unsafe {
                let start = block.as_ptr().cast::<__m256i>();
                (_mm256_loadu_si256(start), _mm256_loadu_si256(start.add(1)))
            };
            let mask = |needle| {
                let low = _mm256_movemask_epi8(_mm256_cmpeq_epi8(low, needle)) as u32;
                let high = _mm256_movemask_epi8(_mm256_cmpeq_epi8(high, needle)) as u32;
                u64::from(low) | u64::from(high) << 32
            };
            (mask(newline), mask(colon))
        });
    }

    fn scan_portable(&mut self, packet: &[u8]) {
        self.blocks(packet, block_words);
    }

    #[inline(always)]
    fn blocks(&mut self, packet: &[u8], masks: impl Fn(&[u8; 64]) -> Masks) {
        let (blocks, rest) = packet.as_chunks::<64>();
        let words = packet.len().div_ceil(64);
        // Only ever grows; words behind the packet's end are never read.
        if self.newlines.len() < words {
            self.newlines.resize(words, 0);
            self.colons.resize(words, 0);
        }
        let places = self.newlines.iter_mut().zip(self.colons.iter_mut());
        for (block, (newlines, colons)) in blocks.iter().zip(places) {
            (*newlines, *colons) = masks(block);
        }
        if !rest.is_empty() {
            let mut last = [0; 64];
            last[..rest.len()].copy_from_slice(rest);
            (self.newlines[words - 1], self.colons[words - 1]) = masks(&last);
        }
    }

    /// The first newline at or behind `from`; the packet's length when there is none.
    #[inline]
    pub fn newline(&self, from: usize) -> usize {
        first(&self.newlines[..self.len.div_ceil(64)], from, self.len)
    }

    /// The first colon at or behind `from`; the packet's length when there is none.
    #[inline]
    pub fn colon(&self, from: usize) -> usize {
        first(&self.colons[..self.len.div_ceil(64)], from, self.len)
    }
}

#[inline]
fn first(masks: &[u64], from: usize, none: usize) -> usize {
    let mut at = from / 64;
    let Some(&mask) = masks.get(at) else { return none };
    let mut mask = mask & (!0 << (from % 64));
    while mask == 0 {
        at += 1;
        match masks.get(at) {
            Some(&next) => mask = next,
            None => return none,
        }
    }
    at * 64 + mask.trailing_zeros() as usize
}

fn block_words(block: &[u8; 64]) -> Masks {
    let mask = |needle: u8| {
        block
            .iter()
            .enumerate()
            .fold(0u64, |bits, (at, &byte)| bits | u64::from(byte == needle) << at)
    };
    (mask(b'\n'), mask(b':'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn equals_a_search_byte_by_byte(packet in prop::collection::vec(prop::sample::select(b":\nab\x8a\xba\x00".to_vec()), 0..300)) {
            let mut scan = Scan::new();
            scan.scan(&packet);
            let mut portable = Scan { len: packet.len(), ..Scan::default() };
            portable.scan_portable(&packet);
            for from in 0..=packet.len() + 1 {
                let find = |needle| {
                    packet.iter().skip(from).position(|&byte| byte == needle).map_or(packet.len(), |at| at + from)
                };
                for scan in [&scan, &portable] {
                    prop_assert_eq!(scan.newline(from), find(b'\n'));
                    prop_assert_eq!(scan.colon(from), find(b':'));
                }
            }
        }
    }
}
