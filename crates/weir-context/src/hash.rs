//! The hash for table look-ups, keyed by a secret that each process draws at start: AES rounds if the processor has them, folded 64x64
//! multiplications otherwise.
//!
//! It only finds a place in a table. Comparing bytes decides equality, so a collision, accidental or crafted, costs a comparison and never
//! merges two contexts.

#![allow(unsafe_code)]

use std::hash::{BuildHasher, RandomState};

use crate::level::Level;

/// A secret for hashes. The workers of a process share one, so their canonical hashes agree.
#[derive(Clone, Copy, Debug)]
pub struct HashSecret {
    words: [u64; 8],
    /// Selects the hash function; the results of levels differ.
    level: Level,
}

impl Default for HashSecret {
    fn default() -> Self {
        Self::random()
    }
}

impl HashSecret {
    /// A secret from the operating system's randomness, through the standard library's hash keys.
    pub fn random() -> Self {
        let word = || RandomState::new().hash_one(0u64);
        HashSecret::from_random(word(), word())
    }

    /// Derives the secret from two random words.
    pub fn from_random(first: u64, second: u64) -> Self {
        // SplitMix64 (Steele, Lea, Flood 2014) spreads the two words over eight; odd words keep multiplication a bijection.
        let mut state = first;
        let mut next = || {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15 ^ second.rotate_left(17));
            let mut z = state;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            (z ^ (z >> 31)) | 1
        };
        HashSecret {
            words: std::array::from_fn(|_| next()),
            level: Level::detect(),
        }
    }

    /// The same secret for a lower level than the processor's, so that tests can try all levels.
    #[must_use]
    pub fn at_level(self, level: Level) -> Self {
        assert!(level <= Level::detect(), "the processor has no {level:?}");
        HashSecret { level, ..self }
    }

    /// Features of the processor.
    #[inline]
    pub fn level(&self) -> Level {
        self.level
    }

    /// Hash of one byte string.
    #[inline(always)]
    pub fn bytes(&self, bytes: &[u8]) -> u64 {
        #[cfg(target_arch = "x86_64")]
        if self.level.is_wide() {
            // SAFETY: the level proves that the processor has the instructions.
            return unsafe { crate::wide::one(&self.words, bytes) };
        } else if self.level.is_aes() {
            // SAFETY: as above.
            return unsafe { aes::one(&self.words, bytes) };
        }
        self.keyed(0, bytes)
    }

    /// Hash of two byte strings and a word. It includes their lengths, so moving a byte from one to the other changes it.
    #[inline(always)]
    pub fn pair(&self, first: &[u8], second: &[u8], word: u64) -> u64 {
        #[cfg(target_arch = "x86_64")]
        if self.level.is_wide() {
            // SAFETY: the level proves that the processor has the instructions.
            return unsafe { crate::wide::pair(&self.words, first, second, word) };
        } else if self.level.is_aes() {
            // SAFETY: as above.
            return unsafe { aes::pair(&self.words, first, second, word) };
        }
        self.keyed(self.keyed(word, first), second)
    }

    /// Hash of two words, in order.
    #[inline]
    pub fn two(&self, words: [u64; 2]) -> u64 {
        fold(words[0] ^ self.words[0], words[1] ^ self.words[1])
    }

    /// Hash of four words, in order. The two halves are computed in parallel.
    #[inline]
    pub fn four(&self, words: [u64; 4]) -> u64 {
        let first = fold(words[0] ^ self.words[2], words[1] ^ self.words[3]);
        let second = fold(words[2] ^ self.words[4], words[3] ^ self.words[5]);
        fold(first ^ self.words[6], second ^ self.words[7])
    }

    /// Spreads a word over all bits, so that a sum of such words depends on every part.
    #[inline]
    pub(crate) fn spread(&self, word: u64) -> u64 {
        fold(word ^ self.words[1], self.words[3])
    }

    #[inline]
    fn keyed(&self, start: u64, bytes: &[u8]) -> u64 {
        let [k0, k1, k2, k3, ..] = self.words;
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
        // The remainder overlaps bytes that were already read: this costs nothing and needs no padding.
        if let Some(first) = rest.first_chunk::<16>() {
            let [w0, w1] = words(first);
            a = fold(w0 ^ k1, w1 ^ a);
        }
        let [w0, w1] = words(last);
        b = fold(w0 ^ k2, w1 ^ b);
        fold(a ^ b.rotate_left(32) ^ length, k3)
    }
}

/// Two rounds of AES per 16 bytes, in four chains so that the rounds of one hide the latency of the others.
///
/// Blocks overlap instead of being padded, and up to 64 bytes there is no loop: its number of rounds depends on the length of the text,
/// differs from message to message, and cannot be predicted.
#[cfg(target_arch = "x86_64")]
pub(crate) mod aes {
    use std::arch::x86_64::{
        __m128i, _mm_aesenc_si128, _mm_cvtsi128_si64, _mm_loadu_si128, _mm_set_epi64x, _mm_setzero_si128,
        _mm_xor_si128,
    };

    pub type Chains = [__m128i; 4];

    #[inline]
    #[target_feature(enable = "aes,sse2")]
    pub fn pair(secret: &[u64; 8], first: &[u8], second: &[u8], word: u64) -> u64 {
        let lengths = _mm_set_epi64x(word as i64, (first.len() as i64) << 32 | second.len() as i64);
        let mut chains = start(secret, lengths);
        // A name is short, so it uses the two chains that the text uses last.
        chains.swap(0, 2);
        chains.swap(1, 3);
        absorb(&mut chains, first);
        chains.swap(0, 2);
        chains.swap(1, 3);
        absorb(&mut chains, second);
        finish(chains)
    }

    #[inline]
    #[target_feature(enable = "aes,sse2")]
    pub fn one(secret: &[u64; 8], bytes: &[u8]) -> u64 {
        let mut chains = start(secret, _mm_set_epi64x(0, bytes.len() as i64));
        absorb(&mut chains, bytes);
        finish(chains)
    }

    #[inline]
    #[target_feature(enable = "aes,sse2")]
    fn start(secret: &[u64; 8], lengths: __m128i) -> Chains {
        let [a, b, c, d] =
            std::array::from_fn(|lane| _mm_set_epi64x(secret[2 * lane + 1] as i64, secret[2 * lane] as i64));
        [_mm_xor_si128(a, lengths), b, c, d]
    }

    #[inline]
    #[target_feature(enable = "aes,sse2")]
    pub fn finish([a, b, c, d]: Chains) -> u64 {
        let (front, back) = (_mm_aesenc_si128(a, b), _mm_aesenc_si128(c, d));
        let mixed = _mm_aesenc_si128(_mm_aesenc_si128(front, back), b);
        _mm_cvtsi128_si64(_mm_aesenc_si128(mixed, d)) as u64
    }

    /// Mixes 16 bytes into a chain. The second round protects the next block and the other chains: the effect of a single round on a byte
    /// depends on only one byte of the secret, so one block could cancel what another did.
    #[inline]
    #[target_feature(enable = "aes,sse2")]
    fn take(chain: __m128i, bytes: __m128i) -> __m128i {
        _mm_aesenc_si128(_mm_aesenc_si128(chain, bytes), _mm_setzero_si128())
    }

    #[inline]
    #[target_feature(enable = "aes,sse2")]
    fn absorb(chains: &mut Chains, bytes: &[u8]) {
        if let Some(last) = bytes.last_chunk::<64>() {
            // The remainder overlaps the last whole block.
            for block in bytes.as_chunks::<64>().0 {
                absorb_block(chains, block);
            }
            absorb_block(chains, last);
        } else if let (Some(first), Some(last)) = (bytes.first_chunk::<32>(), bytes.last_chunk::<32>()) {
            let ([a, b], [c, d]) = (halves(first), halves(last));
            chains[0] = take(chains[0], load(a));
            chains[1] = take(chains[1], load(b));
            chains[2] = take(chains[2], load(c));
            chains[3] = take(chains[3], load(d));
        } else if let (Some(first), Some(last)) = (bytes.first_chunk::<16>(), bytes.last_chunk::<16>()) {
            chains[0] = take(chains[0], load(first));
            chains[1] = take(chains[1], load(last));
        } else {
            let (low, high) = super::short(bytes);
            chains[0] = take(chains[0], _mm_set_epi64x(high as i64, low as i64));
        }
    }

    #[inline]
    #[target_feature(enable = "aes,sse2")]
    fn absorb_block(chains: &mut Chains, block: &[u8; 64]) {
        let (quarters, _) = block.as_chunks::<16>();
        for (chain, quarter) in chains.iter_mut().zip(quarters) {
            *chain = take(*chain, load(quarter));
        }
    }

    #[inline]
    fn halves(bytes: &[u8; 32]) -> [&[u8; 16]; 2] {
        let (halves, _) = bytes.as_chunks::<16>();
        [&halves[0], &halves[1]]
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
pub(crate) fn short(bytes: &[u8]) -> (u64, u64) {
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

    /// The secret for each level of this processor.
    fn secrets() -> impl Iterator<Item = HashSecret> {
        let secret = HashSecret::from_random(1, 2);
        Level::available().map(move |level| HashSecret { level, ..secret })
    }

    #[test]
    fn lengths_and_boundaries_matter() {
        secrets().for_each(|secret| check_borders(&secret));
    }

    fn check_borders(secret: &HashSecret) {
        let text =
            b"abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyz".repeat(4);
        let text = &text[..230];
        let mut seen = HashSet::new();
        let stride = if cfg!(miri) { 13 } else { 1 };
        for end in (0..text.len()).step_by(stride) {
            for border in (0..=end).step_by(stride) {
                assert!(
                    seen.insert(secret.pair(&text[..border], &text[border..end], 7)),
                    "{border} {end}"
                );
            }
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "says something of hashes, nothing of memory")]
    fn every_bit_reaches_every_half() {
        secrets().for_each(|secret| check_bits(&secret));
    }

    fn check_bits(secret: &HashSecret) {
        for length in [
            1, 3, 4, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 128, 150, 200, 300,
        ] {
            let base = vec![0x5au8; length];
            let hash = secret.bytes(&base);
            let pair = secret.pair(&base, &[], 0);
            for bit in 0..length * 8 {
                let mut changed = base.clone();
                changed[bit / 8] ^= 1 << (bit % 8);
                for difference in [
                    hash ^ secret.bytes(&changed),
                    pair ^ secret.pair(&changed, &[], 0),
                ] {
                    assert!(
                        difference >> 32 != 0 && difference as u32 != 0,
                        "length {length} bit {bit}"
                    );
                }
            }
        }
    }

    /// The effect of a difference in one byte after one round of AES, except for the byte's value: its positions, and the factors of
    /// MixColumns.
    fn round_of_byte(byte: usize) -> [(usize, u8); 4] {
        let (row, column) = (byte % 4, (byte / 4 + 4 - byte % 4) % 4);
        std::array::from_fn(|to| (4 * column + to, [2, 1, 1, 3][(4 + to - row) % 4]))
    }

    fn times(factor: u8, byte: u8) -> u8 {
        let doubled = byte << 1 ^ if byte & 0x80 != 0 { 0x1b } else { 0 };
        match factor {
            1 => byte,
            2 => doubled,
            _ => doubled ^ byte,
        }
    }

    /// An attacker who knows the hash but not the secret varies a byte of one block and compensates a single round in another block. If
    /// only one round lies between them, thousands of texts have a few hundred hashes, whatever the secret is.
    #[test]
    #[cfg_attr(miri, ignore = "says something of hashes, nothing of memory")]
    fn no_block_cancels_another() {
        for secret in secrets() {
            for length in [48usize, 63, 128, 192, 256] {
                for (block, next) in (0..length / 16).flat_map(|b| [(b, b + 1), (b, b + 2), (b, b + 4)]) {
                    for offset in [0, 15] {
                        let (from, to) = (16 * block + offset, 16 * next + offset);
                        if to + 16 <= length {
                            check_cancelling(&secret, length, from, to);
                        }
                    }
                }
            }
        }
    }

    fn check_cancelling(secret: &HashSecret, length: usize, from: usize, to: usize) {
        for byte in [3, 8] {
            let mut hashes = [HashSet::new(), HashSet::new(), HashSet::new()];
            for (u, w) in (0..64u8).flat_map(|u| (0..64).map(move |w| (u, w))) {
                let mut text = vec![b'.'; length];
                text[from + byte] ^= u;
                for (at, factor) in round_of_byte(byte) {
                    text[to + at] ^= times(factor, w);
                }
                hashes[0].insert(secret.bytes(&text));
                hashes[1].insert(secret.pair(b"name", &text, 1));
                hashes[2].insert(secret.pair(&text, b"a:1", 1));
            }
            for (form, hashes) in hashes.iter().enumerate() {
                assert!(
                    hashes.len() == 64 * 64,
                    "{:?}, form {form}, length {length}, byte {byte} of {from} against {to}: {} hashes of 4096 texts",
                    secret.level(),
                    hashes.len()
                );
            }
        }
    }
}
