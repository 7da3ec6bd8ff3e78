//! Numbers of any bit width, and integers of variable length in bytes.

/// Appends numbers of any bit width to bytes, lowest bit first.
pub struct BitWriter<'a> {
    out: &'a mut Vec<u8>,
    word: u64,
    used: u32,
}

impl<'a> BitWriter<'a> {
    pub fn new(out: &'a mut Vec<u8>) -> Self {
        BitWriter {
            out,
            word: 0,
            used: 0,
        }
    }

    /// Appends the lowest `width` bits of `value`. The other bits must be zero.
    pub fn put(&mut self, value: u64, width: u32) {
        debug_assert!(width <= 64 && (width == 64 || value >> width == 0));
        if width == 0 {
            return;
        }
        self.word |= value << self.used;
        let free = 64 - self.used;
        if width < free {
            self.used += width;
            return;
        }
        self.out.extend_from_slice(&self.word.to_le_bytes());
        self.word = if free == 64 { 0 } else { value.unbounded_shr(free) };
        self.used = width - free;
    }

    pub fn finish(self) {
        let bytes = self.used.div_ceil(8) as usize;
        self.out.extend_from_slice(&self.word.to_le_bytes()[..bytes]);
    }
}

/// Reads the output of [`BitWriter`]. Beyond the end it reads zeros.
pub struct BitReader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> BitReader<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        BitReader { bytes, at: 0 }
    }

    pub fn take(&mut self, width: u32) -> u64 {
        if width == 0 {
            return 0;
        }
        let (byte, shift) = (self.at / 8, (self.at % 8) as u32);
        self.at += width as usize;
        let mut value = self.word(byte) >> shift;
        if shift + width > 64 {
            value |= self.word(byte + 8) << (64 - shift);
        }
        if width == 64 {
            value
        } else {
            value & ((1 << width) - 1)
        }
    }

    fn word(&self, at: usize) -> u64 {
        let mut word = [0; 8];
        let rest = self.bytes.get(at..).unwrap_or_default();
        let len = rest.len().min(8);
        word[..len].copy_from_slice(&rest[..len]);
        u64::from_le_bytes(word)
    }
}

pub fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Reads a number from the front of `bytes`. Missing bytes count as zero.
pub fn take_varint(bytes: &mut &[u8]) -> u64 {
    let mut value = 0;
    let mut shift = 0;
    while let Some((&byte, rest)) = bytes.split_first() {
        *bytes = rest;
        value |= u64::from(byte & 0x7f).unbounded_shl(shift);
        shift += 7;
        if byte < 0x80 {
            break;
        }
    }
    value
}

pub fn varint_len(value: u64) -> usize {
    (64 - (value | 1).leading_zeros()).div_ceil(7) as usize
}

/// Maps integers of small magnitude, positive or negative, to small numbers.
pub fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

pub fn unzigzag(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn bits_survive_a_round_trip(numbers in proptest::collection::vec((any::<u64>(), 0u32..=64), 0..200)) {
            let mut bytes = Vec::new();
            let mut writer = BitWriter::new(&mut bytes);
            let cut = |value: u64, width: u32| value & u64::MAX.checked_shr(64 - width).unwrap_or(0);
            for &(value, width) in &numbers {
                writer.put(cut(value, width), width);
            }
            writer.finish();
            let bits: u32 = numbers.iter().map(|(_, width)| width).sum();
            prop_assert_eq!(bytes.len(), bits.div_ceil(8) as usize);
            let mut reader = BitReader::new(&bytes);
            for &(value, width) in &numbers {
                prop_assert_eq!(reader.take(width), cut(value, width));
            }
        }

        #[test]
        fn integers_survive_a_round_trip(value in any::<i64>()) {
            let mut bytes = Vec::new();
            put_varint(&mut bytes, zigzag(value));
            prop_assert_eq!(bytes.len(), varint_len(zigzag(value)));
            let mut rest = bytes.as_slice();
            prop_assert_eq!(unzigzag(take_varint(&mut rest)), value);
            prop_assert!(rest.is_empty());
        }
    }
}
