//! The addressing hash: a folded 64x64 multiplication keyed by a secret that each process draws anew.
//!
//! It only finds a place in a table. Equality is always decided by comparing bytes, so a collision, accidental or
//! crafted, costs a comparison and never merges two contexts.

/// Secret of one process. Two workers share it so that their canonical hashes agree.
#[derive(Clone, Copy, Debug)]
pub struct HashSecret([u64; 4]);

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
        HashSecret([next(), next(), next(), next()])
    }

    /// Hash of one byte string.
    #[inline]
    pub fn bytes(&self, bytes: &[u8]) -> u64 {
        self.keyed(0, bytes)
    }

    /// Hash of two byte strings and a word. Their lengths are mixed in, so moving a byte from one to the other changes it.
    #[inline]
    pub fn pair(&self, first: &[u8], second: &[u8], word: u64) -> u64 {
        self.keyed(self.keyed(word, first), second)
    }

    /// Hash of a list of words, in order.
    #[inline]
    pub fn words(&self, words: impl Iterator<Item = u64>) -> u64 {
        let mut state = self.0[0];
        for word in words {
            state = fold(state ^ word, self.0[1]).wrapping_add(word);
        }
        fold(state ^ self.0[2], self.0[3])
    }

    #[inline]
    fn keyed(&self, start: u64, bytes: &[u8]) -> u64 {
        let [k0, k1, k2, k3] = self.0;
        let length = bytes.len() as u64;
        let mut a = start ^ k0;
        if bytes.len() <= 16 {
            let (low, high) = short(bytes);
            return fold(fold(low ^ a, high ^ k1) ^ length, k2);
        }
        let mut b = start ^ k3;
        let mut rest = bytes;
        while rest.len() > 32 {
            let (block, tail) = rest.split_at(32);
            a = fold(word(block, 0) ^ k1, word(block, 8) ^ a);
            b = fold(word(block, 16) ^ k2, word(block, 24) ^ b);
            rest = tail;
        }
        // The last 16 bytes may overlap what was read: that costs nothing and needs no padding.
        if rest.len() > 16 {
            a = fold(word(rest, 0) ^ k1, word(rest, 8) ^ a);
        }
        let last = &bytes[bytes.len() - 16..];
        b = fold(word(last, 0) ^ k2, word(last, 8) ^ b);
        fold(a ^ b.rotate_left(32) ^ length, k3)
    }
}

#[inline]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

#[inline]
fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

/// At most 16 bytes as two words that together hold all of them.
#[inline]
fn short(bytes: &[u8]) -> (u64, u64) {
    let n = bytes.len();
    let half = |at: usize| {
        u64::from(u32::from_le_bytes(
            bytes[at..at + 4].try_into().expect("four bytes"),
        ))
    };
    match n {
        8.. => (word(bytes, 0), word(bytes, n - 8)),
        4.. => (half(0), half(n - 4)),
        1.. => (
            u64::from(bytes[0]) << 16 | u64::from(bytes[n / 2]) << 8 | u64::from(bytes[n - 1]),
            0,
        ),
        0 => (0, 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn lengths_and_borders_matter() {
        let secret = HashSecret::from_random(1, 2);
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
        let secret = HashSecret::from_random(3, 4);
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
