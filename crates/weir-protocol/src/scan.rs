//! One pass over a packet that finds every newline, colon and pipe, 64 bytes at a time.
//!
//! The simple version searches for each of them in turn; every search has a start and an end that cost more than
//! the few bytes between them, and how long each takes cannot be predicted. Here the whole packet becomes a list of the places
//! of newlines and bit masks of colons and pipes first. With AVX-512 or AVX2 where the processor has it, 16 bytes at a time elsewhere; the
//! tests compare all with a plain search.
#![allow(unsafe_code)]

/// Positions of the newlines, colons and pipes of a packet.
#[derive(Clone, Debug, Default)]
pub struct Scan {
    /// The position of each newline. Entries from `newline_count` on are meaningless.
    newlines: Vec<u32>,
    newline_count: usize,
    /// One for 64 bytes, and an empty one behind the last.
    marks: Vec<Marks>,
    len: usize,
}

/// The colons and pipes among 64 bytes, one bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Marks {
    pub colons: u64,
    pub pipes: u64,
}

/// Newlines of a block that are written without asking whether there are as many: messages are rarely shorter than 32 bytes.
const NEWLINES_AT_ONCE: usize = 2;

impl Scan {
    pub fn new() -> Self {
        Scan::default()
    }

    /// Scans a packet of less than 4 GiB, and forgets the previous one.
    #[inline]
    pub fn scan(&mut self, packet: &[u8]) {
        self.len = packet.len();
        #[cfg(target_arch = "x86_64")]
        if std::arch::is_x86_feature_detected!("avx512bw") && std::arch::is_x86_feature_detected!("avx512f") {
            // SAFETY: the processor has AVX-512 with bytes; all that do have BMI1 and POPCNT.
            return unsafe { self.scan_avx512(packet) };
        } else if std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("bmi1") {
            // SAFETY: the processor has AVX2 and BMI1.
            return unsafe { self.scan_avx2(packet) };
        }
        self.scan_portable(packet);
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,avx512bw,bmi1,popcnt")]
    fn scan_avx512(&mut self, packet: &[u8]) {
        use std::arch::x86_64::{_mm512_cmpeq_epi8_mask, _mm512_loadu_si512, _mm512_set1_epi8};
        self.blocks(packet, |block, needle| {
            // SAFETY: a block has 64 bytes, and the load needs no alignment.
            let bytes = unsafe { _mm512_loadu_si512(block.as_ptr().cast()) };
            _mm512_cmpeq_epi8_mask(bytes, _mm512_set1_epi8(needle as i8))
        });
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,bmi1,popcnt")]
    fn scan_avx2(&mut self, packet: &[u8]) {
        use std::arch::x86_64::{
            __m256i, _mm256_cmpeq_epi8, _mm256_loadu_si256, _mm256_movemask_epi8, _mm256_set1_epi8,
        };
        self.blocks(packet, |block, needle| {
            let needle = _mm256_set1_epi8(needle as i8);
            // SAFETY: a block has 64 bytes; an unaligned load reads 32 of them at 0 and at 32.
            let (low, high) = unsafe {
                let start = block.as_ptr().cast::<__m256i>();
                (_mm256_loadu_si256(start), _mm256_loadu_si256(start.add(1)))
            };
            let low = _mm256_movemask_epi8(_mm256_cmpeq_epi8(low, needle)) as u32;
            let high = _mm256_movemask_epi8(_mm256_cmpeq_epi8(high, needle)) as u32;
            u64::from(low) | u64::from(high) << 32
        });
    }

    fn scan_portable(&mut self, packet: &[u8]) {
        self.blocks(packet, mask_of);
    }

    /// `mask`: the places of a byte in a block.
    #[inline(always)]
    fn blocks(&mut self, packet: &[u8], mask: impl Fn(&[u8; 64], u8) -> u64) {
        let (blocks, rest) = packet.as_chunks::<64>();
        let words = packet.len().div_ceil(64);
        // Both only ever grow.
        if self.marks.len() <= words {
            self.marks.resize(words + 1, Marks::default());
        }
        if self.newlines.len() < packet.len() + NEWLINES_AT_ONCE {
            self.newlines.resize(packet.len() + NEWLINES_AT_ONCE, 0);
        }
        let newline_places = self.newlines.as_mut_slice();
        let mut count = 0;
        let marks_of = |block: &[u8; 64]| Marks {
            colons: mask(block, b':'),
            pipes: mask(block, b'|'),
        };
        for (at, (block, marks)) in blocks.iter().zip(self.marks.iter_mut()).enumerate() {
            *marks = marks_of(block);
            count = write_places::<NEWLINES_AT_ONCE>(newline_places, count, mask(block, b'\n'), at * 64);
        }
        if !rest.is_empty() {
            let mut last = [0; 64];
            last[..rest.len()].copy_from_slice(rest);
            self.marks[words - 1] = marks_of(&last);
            let newlines = mask(&last, b'\n');
            count = write_places::<NEWLINES_AT_ONCE>(newline_places, count, newlines, blocks.len() * 64);
        }
        self.newline_count = count;
        self.marks[words] = Marks::default();
    }

    /// The position of the newline with this number of earlier ones; the packet's length if there is none.
    #[inline]
    pub fn newline(&self, number: usize) -> usize {
        match self.newlines[..self.newline_count].get(number) {
            Some(&place) => place as usize,
            None => self.len,
        }
    }

    /// The first colon at or behind `from`; the packet's length when there is none.
    #[inline]
    pub fn colon(&self, from: usize) -> usize {
        // Longer names are rare.
        match self.marks(from).colons {
            0 => self.colon_far(from),
            window => from + window.trailing_zeros() as usize,
        }
    }

    /// The colons and pipes among the 64 bytes from `from` on.
    #[inline]
    pub fn marks(&self, from: usize) -> Marks {
        let marks = &self.marks[..=self.len.div_ceil(64)];
        let (word, bit) = (from / 64, from % 64);
        let (Some(first), Some(second)) = (marks.get(word), marks.get(word + 1)) else {
            return Marks::default();
        };
        let from_bit = |first: u64, second: u64| first >> bit | second << 1 << (63 - bit);
        Marks {
            colons: from_bit(first.colons, second.colons),
            pipes: from_bit(first.pipes, second.pipes),
        }
    }

    #[inline(never)]
    fn colon_far(&self, from: usize) -> usize {
        let words = &self.marks[..self.len.div_ceil(64)];
        let mut at = from / 64;
        let Some(word) = words.get(at) else {
            return self.len;
        };
        let mut word = word.colons & (!0 << (from % 64));
        while word == 0 {
            at += 1;
            match words.get(at) {
                Some(next) => word = next.colons,
                None => return self.len,
            }
        }
        at * 64 + word.trailing_zeros() as usize
    }
}

/// Writes the places of the bits in `mask`, which stand for bytes from `base` on, behind the first `count`. Returns how many there
/// are then. `AT_ONCE` of them are written in any case, so there is room for as many.
#[inline(always)]
fn write_places<const AT_ONCE: usize>(places: &mut [u32], count: usize, mask: u64, base: usize) -> usize {
    let mut rest = mask;
    for place in &mut places[count..count + AT_ONCE] {
        *place = base as u32 + rest.trailing_zeros();
        rest &= rest.wrapping_sub(1);
    }
    let all = count + mask.count_ones() as usize;
    if rest != 0 {
        for place in &mut places[count + AT_ONCE..all] {
            *place = base as u32 + rest.trailing_zeros();
            rest &= rest - 1;
        }
    }
    all
}

/// Separators of a block that [`separators`] writes without asking whether there are as many.
const SEPARATORS_AT_ONCE: usize = 8;

/// The places of `separator` in `bytes`, written to the front of `places`; returns how many there are. `None` when they might not
/// fit: `places` has to have eight more entries than there are separators.
///
/// Like the newlines of a packet: how many there are in a block cannot be predicted, so no branch asks.
#[inline(always)]
pub fn separators(bytes: &[u8], separator: u8, places: &mut [u32]) -> Option<usize> {
    let mut count = 0;
    let mut base = 0;
    while base < bytes.len() {
        let mask = block_mask(bytes, base, separator);
        if count + (mask.count_ones() as usize).max(SEPARATORS_AT_ONCE) > places.len() {
            return None;
        }
        count = write_places::<SEPARATORS_AT_ONCE>(places, count, mask, base);
        base += 64;
    }
    Some(count)
}

/// The places of `needle` in the 64 bytes from `base` on, or as many as there are.
#[inline(always)]
fn block_mask(bytes: &[u8], base: usize, needle: u8) -> u64 {
    if let Some(block) = bytes[base..].first_chunk::<64>() {
        return mask_of(block, needle);
    }
    let left = bytes.len() - base;
    // The last block overlaps the previous one if there is one: copying would take a loop with unpredictable branches.
    if let Some(last) = bytes.last_chunk::<64>() {
        return mask_of(last, needle) >> (64 - left);
    }
    let rest = &bytes[base..];
    ends_mask::<32>(rest, needle)
        .or_else(|| ends_mask::<16>(rest, needle))
        .unwrap_or_else(|| {
            let bits = rest.iter().enumerate();
            bits.fold(0, |mask, (at, &byte)| mask | u64::from(byte == needle) << at)
        })
}

/// The places of `needle` in `N` to `2 * N` bytes: among the first `N` and the last `N`.
#[inline(always)]
fn ends_mask<const N: usize>(bytes: &[u8], needle: u8) -> Option<u64> {
    let first = mask_of(bytes.first_chunk::<N>()?, needle);
    let last = mask_of(bytes.last_chunk::<N>()?, needle);
    Some(first | last << (bytes.len() - N))
}

/// The places of `needle` in a block of 16, 32 or 64 bytes.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn mask_of<const N: usize>(block: &[u8; N], needle: u8) -> u64 {
    use std::arch::x86_64::{_mm_cmpeq_epi8, _mm_loadu_si128, _mm_movemask_epi8, _mm_set1_epi8};
    let (parts, _) = block.as_chunks::<16>();
    parts.iter().rev().fold(0, |mask, part| {
        // SAFETY: every x86-64 has SSE2; the reference is to 16 readable bytes, and the load needs no alignment.
        let found = unsafe {
            let bytes = _mm_loadu_si128(part.as_ptr().cast());
            _mm_movemask_epi8(_mm_cmpeq_epi8(bytes, _mm_set1_epi8(needle as i8)))
        };
        mask << 16 | u64::from(found as u16)
    })
}

#[cfg(not(target_arch = "x86_64"))]
fn mask_of<const N: usize>(block: &[u8; N], needle: u8) -> u64 {
    block
        .iter()
        .enumerate()
        .fold(0u64, |bits, (at, &byte)| bits | u64::from(byte == needle) << at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn separators_are_where_a_search_finds_them(
            bytes in prop::collection::vec(prop::sample::select(b",,ab\x00\xac".to_vec()), 0..200), room in 0usize..300,
        ) {
            let expected: Vec<u32> = (0..bytes.len()).filter(|&at| bytes[at] == b',').map(|at| at as u32).collect();
            let mut places = vec![0; room];
            match separators(&bytes, b',', &mut places) {
                Some(count) => prop_assert_eq!(&places[..count], expected),
                None => prop_assert!(expected.len() + SEPARATORS_AT_ONCE > room),
            }
        }

        #[test]
        fn equals_a_search_byte_by_byte(packet in prop::collection::vec(prop::sample::select(b":|\nab\x8a\xba\xfc\x00".to_vec()), 0..if cfg!(miri) { 90 } else { 300 })) {
            let mut scan = Scan::new();
            scan.scan(&packet);
            let mut portable = Scan { len: packet.len(), ..Scan::default() };
            portable.scan_portable(&packet);
            let mut of_avx2 = Scan { len: packet.len(), ..Scan::default() };
            #[cfg(target_arch = "x86_64")]
            if std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("bmi1") {
                // SAFETY: the processor has AVX2 and BMI1.
                unsafe { of_avx2.scan_avx2(&packet) };
            } else {
                of_avx2.scan_portable(&packet);
            }
            #[cfg(not(target_arch = "x86_64"))]
            of_avx2.scan_portable(&packet);
            let newlines: Vec<usize> = packet.iter().enumerate().filter(|(_, b)| **b == b'\n').map(|(at, _)| at).collect();
            for scan in [&scan, &of_avx2, &portable] {
                for number in 0..newlines.len() + 3 {
                    prop_assert_eq!(scan.newline(number), newlines.get(number).copied().unwrap_or(packet.len()));
                }
                for from in 0..=packet.len() + 1 {
                    let colon = packet.iter().skip(from).position(|&byte| byte == b':');
                    prop_assert_eq!(scan.colon(from), colon.map_or(packet.len(), |at| at + from));
                    let places = |needle| packet.iter().skip(from).take(64).enumerate()
                        .fold(0u64, |bits, (at, &byte)| bits | u64::from(byte == needle) << at);
                    prop_assert_eq!(scan.marks(from), Marks { colons: places(b':'), pipes: places(b'|') });
                }
            }
        }
    }
}
