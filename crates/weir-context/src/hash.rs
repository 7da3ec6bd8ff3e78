//! The addressing hash, keyed by a secret that each process draws anew: AES rounds where the processor has them, folded
//! 64x64 multiplications elsewhere.
//!
//! It only finds a place in a table. Equality is always decided by comparing bytes, so a collision, accidental or
//! crafted, costs a comparison and never merges two contexts.

#![allow(unsafe_code)]

/// Secret of one process. Two workers share it so that their canonical hashes agree.
#[derive(Clone, Copy, Debug)]
pub struct HashSecret {
    words: [u64; 4],
    aes: bool,
}

impl HashSecret {
    /// Derives the secret from two random words.
    pub fn from_random(first: u64, second: u64) -> Self {
        // SplitMix64 (Steele, Lea, Flood 2014) spreads the two words over four; odd words keep multiplication a bijection.
        let mut state = first;
        let mut next = || {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15 ^ second.rotate_left(17));
            let mut z = state;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            (z ^ (z >> 31)) | 1
        };
        HashSecret {
            words: [next(), next(), next(), next()],
            aes: has_aes(),
        }
    }

    /// Hash of one byte string.
    #[inline]
    pub fn bytes(&self, bytes: &[u8]) -> u64 {
        self.pair(bytes, &[], 0)
    }

    /// Hash of two byte strings and a word. Their lengths are mixed in, so moving a byte from one to the other changes it.
    #[inline]
    pub fn pair(&self, first: &[u8], second: &[u8], word: u64) -> u64 {
        #[cfg(target_arch = "x86_64")]
        if self.aes {
            // SAFETY: the processor has AES instructions.
            return unsafe { aes::pair(&self.words, first, second, word) };
        }
        self.keyed(self.keyed(word, first), second)
    }

    /// Hash of a list of words, in order.
    #[inline]
    pub fn words(&self, words: impl Iterator<Item = u64>) -> u64 {
        let mut state = self.words[0];
        for word in words {
            state = fold(state ^ word, self.words[1]).wrapping_add(word);
        }
        fold(state ^ self.words[2], self.words[3])
    }

    /// A word spread over all bits, so that sums of such words say something about their parts.
    #[inline]
    pub(crate) fn spread(&self, word: u64) -> u64 {
        fold(word ^ self.words[1], self.words[3])
    }

    #[inline]
    fn keyed(&self, start: u64, bytes: &[u8]) -> u64 {
        let [k0, k1, k2, k3] = self.words;
        let length = bytes.len() as u64;
        let mut a = start ^ k0;
        let Some(last) = bytes.last_chunk::<16>() else {
            let (low, high) = short(bytes);
            return fold(fold(low ^ a, high ^ k1) ^ length, k2);
        };
        let mut b = start ^ k3;
        let (blocks, rest) = bytes.as_chunks::<32>();
        for block in blocks {
            let [w0, w1, w2, w3] = words(block);
            a = fold(w0 ^ k1, w1 ^ a);
            b = fold(w2 ^ k2, w3 ^ b);
        }
        // What is left overlaps what was read: that costs nothing and needs no padding.
        if let Some(first) = rest.first_chunk::<16>() {
            let [w0, w1] = words(first);
            a = fold(w0 ^ k1, w1 ^ a);
        }
        let [w0, w1] = words(last);
        b = fold(w0 ^ k2, w1 ^ b);
        fold(a ^ b.rotate_left(32) ^ length, k3)
    }
}

fn has_aes() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::arch::is_x86_feature_detected!("aes");
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// A round of AES per 16 bytes, in two chains so that the rounds of one hide the latency of the other. One load and one
/// round replace two loads, two additions and a multiplication per 16 bytes: measured, a third of the instructions of the
/// portable form on keys of 140 bytes.
#[cfg(target_arch = "x86_64")]
mod aes {
    use std::arch::x86_64::{
        __m128i, _mm_add_epi64, _mm_aesenc_si128, _mm_cvtsi128_si64, _mm_loadu_si128, _mm_set_epi64x,
        _mm_xor_si128,
    };

    #[target_feature(enable = "aes,sse2")]
    pub fn pair(secret: &[u64; 4], first: &[u8], second: &[u8], word: u64) -> u64 {
        let [k0, k1, k2, k3] = secret.map(|word| word as i64);
        let key = _mm_set_epi64x(k1, k0);
        let lengths = _mm_set_epi64x(word as i64, (first.len() as i64) << 32 | second.len() as i64);
        let mut a = _mm_xor_si128(key, lengths);
        let mut b = _mm_set_epi64x(k3, k2);
        absorb(&mut a, &mut b, first);
        absorb(&mut a, &mut b, second);
        let mixed = _mm_aesenc_si128(_mm_add_epi64(a, _mm_aesenc_si128(b, key)), key);
        let mixed = _mm_aesenc_si128(_mm_aesenc_si128(mixed, b), key);
        _mm_cvtsi128_si64(mixed) as u64
    }

    #[inline]
    #[target_feature(enable = "aes,sse2")]
    fn absorb(a: &mut __m128i, b: &mut __m128i, bytes: &[u8]) {
        let Some(last) = bytes.last_chunk::<16>() else {
            let (low, high) = super::short(bytes);
            *a = _mm_aesenc_si128(*a, _mm_set_epi64x(high as i64, low as i64));
            return;
        };
        let (blocks, rest) = bytes.as_chunks::<32>();
        for block in blocks {
            let (halves, _) = block.as_chunks::<16>();
            *a = _mm_aesenc_si128(*a, load(&halves[0]));
            *b = _mm_aesenc_si128(*b, load(&halves[1]));
        }
        if let Some(first) = rest.first_chunk::<16>() {
            *a = _mm_aesenc_si128(*a, load(first));
        }
        *b = _mm_aesenc_si128(*b, load(last));
    }

    #[inline]
    #[target_feature(enable = "sse2")]
    fn load(bytes: &[u8; 16]) -> __m128i {
        // SAFETY: the reference is to 16 readable bytes, and the load needs no alignment.
        unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
    }
}

#[inline]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

/// `N` little-endian words out of `8 * N` bytes.
#[inline]
fn words<const BYTES: usize, const N: usize>(bytes: &[u8; BYTES]) -> [u64; N] {
    const { assert!(BYTES == 8 * N) };
    let (words, _) = bytes.as_chunks::<8>();
    std::array::from_fn(|at| u64::from_le_bytes(words[at]))
}

/// Fewer than 16 bytes as two words that together hold all of them.
#[inline]
fn short(bytes: &[u8]) -> (u64, u64) {
    let n = bytes.len();
    let half = |at: usize| {
        u64::from(u32::from_le_bytes(
            bytes[at..at + 4].try_into().expect("four bytes"),
        ))
    };
    match n {
        8.. => (
            u64::from_le_bytes(at::<8>(bytes, 0)),
            u64::from_le_bytes(at::<8>(bytes, n - 8)),
        ),
        4.. => (half(0), half(n - 4)),
        1.. => (
            u64::from(bytes[0]) << 16 | u64::from(bytes[n / 2]) << 8 | u64::from(bytes[n - 1]),
            0,
        ),
        0 => (0, 0),
    }
}

#[inline]
fn at<const N: usize>(bytes: &[u8], from: usize) -> [u8; N] {
    bytes[from..from + N]
        .try_into()
        .expect("as many bytes as asked for")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    /// Both forms, where the processor has both.
    fn secrets() -> impl Iterator<Item = HashSecret> {
        let secret = HashSecret::from_random(1, 2);
        [secret, HashSecret { aes: false, ..secret }].into_iter()
    }

    #[test]
    fn lengths_and_borders_matter() {
        secrets().for_each(|secret| check_borders(&secret));
    }

    fn check_borders(secret: &HashSecret) {
        let text = b"abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyz";
        let mut seen = HashSet::new();
        for end in 0..text.len() {
            for border in 0..=end {
                assert!(
                    seen.insert(secret.pair(&text[..border], &text[border..end], 7)),
                    "{border} {end}"
                );
            }
        }
    }

    #[test]
    fn every_bit_reaches_every_half() {
        secrets().for_each(|secret| check_bits(&secret));
    }

    fn check_bits(secret: &HashSecret) {
        for length in [1, 3, 4, 7, 8, 15, 16, 17, 31, 32, 33, 64, 100, 150] {
            let base = vec![0x5au8; length];
            let hash = secret.bytes(&base);
            for bit in 0..length * 8 {
                let mut changed = base.clone();
                changed[bit / 8] ^= 1 << (bit % 8);
                let difference = hash ^ secret.bytes(&changed);
                assert!(
                    difference >> 32 != 0 && difference as u32 != 0,
                    "length {length} bit {bit}"
                );
            }
        }
    }
}
