//! A HyperLogLog: how many distinct members a set has, in fixed memory.
//!
//! One byte per register, 2^precision registers, relative standard error 1.04 / sqrt(2^precision): 1.6 % at 12,
//! 0.8 % at 14. The estimator is Ertl's (arXiv 1702.01284, algorithm 6), which needs no bias tables and no switch
//! between ranges. Precision and hash are part of the state: only equal ones merge.

/// Legal precisions.
pub const PRECISION: std::ops::RangeInclusive<u8> = 4..=18;

/// Registers of one set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HyperLogLog {
    precision: u8,
    registers: Box<[u8]>,
}

/// Sets of different precision were to be merged, or registers do not fit a precision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrecisionMismatch;

impl std::fmt::Display for PrecisionMismatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("HyperLogLog states of different or impossible precision")
    }
}

impl std::error::Error for PrecisionMismatch {}

impl HyperLogLog {
    /// An empty set of 2^precision bytes; precision is clamped to [`PRECISION`].
    pub fn new(precision: u8) -> Self {
        let precision = precision.clamp(*PRECISION.start(), *PRECISION.end());
        Self {
            precision,
            registers: vec![0; 1 << precision].into(),
        }
    }

    /// Rebuilds a set from its registers.
    pub fn from_registers(registers: Box<[u8]>) -> Result<Self, PrecisionMismatch> {
        let precision = registers.len().checked_ilog2().ok_or(PrecisionMismatch)? as u8;
        let fits = registers.len().is_power_of_two() && PRECISION.contains(&precision);
        if !fits || registers.iter().any(|r| *r > 64 - precision + 1) {
            return Err(PrecisionMismatch);
        }
        Ok(Self { precision, registers })
    }

    pub fn registers(&self) -> &[u8] {
        &self.registers
    }

    /// Adds a member.
    pub fn insert(&mut self, member: &[u8]) {
        self.insert_hash(hash(member));
    }

    /// Adds a member by its 64-bit hash, which must be uniform and the same function everywhere.
    pub fn insert_hash(&mut self, hash: u64) {
        let index = (hash >> (64 - self.precision)) as usize;
        // The guard bit ends the run of zeros where the hash has no more bits.
        let rest = (hash << self.precision) | (1 << (self.precision - 1));
        let rank = rest.leading_zeros() as u8 + 1;
        let register = &mut self.registers[index];
        *register = (*register).max(rank);
    }

    /// Union with another set.
    pub fn merge(&mut self, other: &Self) -> Result<(), PrecisionMismatch> {
        if self.precision != other.precision {
            return Err(PrecisionMismatch);
        }
        self.registers
            .iter_mut()
            .zip(&other.registers)
            .for_each(|(a, b)| *a = (*a).max(*b));
        Ok(())
    }

    /// The same set with fewer registers, as if it had been filled with this precision from the start. A precision that is not
    /// lower changes nothing.
    pub fn reduce(&mut self, precision: u8) {
        let precision = precision.max(*PRECISION.start());
        let Some(bits) = self.precision.checked_sub(precision).filter(|bits| *bits > 0) else {
            return;
        };
        let mut reduced = Self::new(precision);
        for (index, &rank) in self.registers.iter().enumerate().filter(|(_, rank)| **rank > 0) {
            // Bits of the index become the beginning of the run of zeros.
            let low = index & ((1 << bits) - 1);
            let rank = match low.checked_ilog2() {
                Some(highest) => bits - highest as u8,
                None => bits + rank,
            };
            let register = &mut reduced.registers[index >> bits];
            *register = (*register).max(rank);
        }
        *self = reduced;
    }

    pub fn precision(&self) -> u8 {
        self.precision
    }

    /// Estimated number of distinct members.
    pub fn estimate(&self) -> f64 {
        let ranks = 64 - usize::from(self.precision);
        let mut histogram = [0u32; 66];
        self.registers
            .iter()
            .for_each(|r| histogram[usize::from(*r)] += 1);
        let m = self.registers.len() as f64;
        let mut z = m * tau(1.0 - f64::from(histogram[ranks + 1]) / m);
        for k in (1..=ranks).rev() {
            z = 0.5 * (z + f64::from(histogram[k]));
        }
        z += m * sigma(f64::from(histogram[0]) / m);
        m * m / (2.0 * std::f64::consts::LN_2 * z)
    }

    /// Forgets the members and keeps the registers.
    pub fn clear(&mut self) {
        self.registers.fill(0);
    }

    pub fn heap_bytes(&self) -> usize {
        self.registers.len()
    }
}

fn sigma(mut x: f64) -> f64 {
    if x == 1.0 {
        return f64::INFINITY;
    }
    let (mut y, mut z) = (1.0, x);
    loop {
        x *= x;
        let before = z;
        z += x * y;
        y += y;
        if z == before {
            return z;
        }
    }
}

fn tau(mut x: f64) -> f64 {
    if x == 0.0 || x == 1.0 {
        return 0.0;
    }
    let (mut y, mut z) = (1.0, 1.0 - x);
    loop {
        x = x.sqrt();
        let before = z;
        y *= 0.5;
        z -= (1.0 - x) * (1.0 - x) * y;
        if z == before {
            return z / 3.0;
        }
    }
}

/// The hash of [`HyperLogLog::insert`]: fixed, as sets of several agents may be merged. Words are mixed in by
/// multiplication and rotation; the end is a full avalanche.
pub fn hash(member: &[u8]) -> u64 {
    const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut state = (member.len() as u64).wrapping_mul(ODD);
    let mut chunks = member.chunks_exact(8);
    for chunk in &mut chunks {
        let word = u64::from_le_bytes(chunk.try_into().expect("chunks of eight"));
        state = avalanche(state ^ word).wrapping_mul(ODD).rotate_left(29);
    }
    let last = last_word(member, chunks.remainder());
    avalanche(avalanche(state ^ last).wrapping_add(ODD))
}

/// The rest of a member after its complete words, padded with zeros. Read from the last eight bytes if there are that many, because copying
/// a few bytes is a call.
#[inline]
fn last_word(member: &[u8], rest: &[u8]) -> u64 {
    match member.last_chunk::<8>() {
        Some(_) if rest.is_empty() => 0,
        Some(last) => u64::from_le_bytes(*last) >> (64 - 8 * rest.len()),
        None => rest
            .iter()
            .rev()
            .fold(0, |word, &byte| word << 8 | u64::from(byte)),
    }
}

fn avalanche(mut x: u64) -> u64 {
    x = (x ^ (x >> 32)).wrapping_mul(0xe9846af9b1a615d);
    x = (x ^ (x >> 32)).wrapping_mul(0xe9846af9b1a615d);
    x ^ (x >> 28)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(precision: u8, members: std::ops::Range<u64>) -> HyperLogLog {
        let mut set = HyperLogLog::new(precision);
        members.for_each(|i| set.insert(format!("user-{i}").as_bytes()));
        set
    }

    /// The last word is equal to a copy of the rest.
    #[test]
    fn the_last_word_is_the_rest() {
        let bytes: Vec<u8> = (1..=40).collect();
        for length in 0..bytes.len() {
            let member = &bytes[..length];
            let (_, rest) = member.as_chunks::<8>();
            let mut copy = [0; 8];
            copy[..rest.len()].copy_from_slice(rest);
            assert_eq!(last_word(member, rest), u64::from_le_bytes(copy), "{length}");
        }
    }

    #[test]
    fn estimates_stay_within_four_standard_errors() {
        for precision in [4, 12, 14, 18] {
            let error = 4.0 * 1.04 / (f64::from(1u32 << precision)).sqrt();
            for n in [0u64, 1, 2, 10, 100, 5000, 50_000, 300_000] {
                let estimate = of(precision, 0..n).estimate();
                let tolerance = (n as f64 * error).max(0.5 + 3.0 * error);
                assert!(
                    (estimate - n as f64).abs() <= tolerance,
                    "precision {precision}: {n} estimated as {estimate}"
                );
            }
        }
    }

    #[test]
    fn union_does_not_depend_on_order_or_repetition() {
        let (a, b) = (of(12, 0..7000), of(12, 5000..12_000));
        let mut ab = a.clone();
        ab.merge(&b).unwrap();
        let mut ba = b.clone();
        ba.merge(&a).unwrap();
        ba.merge(&a).unwrap();
        assert_eq!(ab, ba);
        assert_eq!(ab, of(12, 0..12_000));
        assert_eq!(ab.merge(&HyperLogLog::new(13)), Err(PrecisionMismatch));
    }

    #[test]
    fn reduced_is_as_if_it_had_always_been_so() {
        for n in [0, 10, 1000, 100_000] {
            let mut set = of(14, 0..n);
            set.reduce(15);
            assert_eq!(set, of(14, 0..n));
            set.reduce(10);
            assert_eq!(set, of(10, 0..n), "{n} members");
        }
    }

    #[test]
    fn registers_round_trip_and_are_checked() {
        let set = of(12, 0..1000);
        assert_eq!(
            HyperLogLog::from_registers(set.registers().into()).as_ref(),
            Ok(&set)
        );
        for bad in [vec![], vec![0; 7], vec![0; 8], vec![60; 4096]] {
            assert_eq!(HyperLogLog::from_registers(bad.into()), Err(PrecisionMismatch));
        }
        let mut cleared = set;
        cleared.clear();
        assert_eq!((cleared.estimate(), cleared.heap_bytes()), (0.0, 4096));
    }

    #[test]
    fn the_hash_is_fixed() {
        // Other agents may hold registers filled with this function: changing it breaks merging with them.
        assert_eq!(
            [hash(b""), hash(b"a"), hash(b"a\0"), hash(b"0123456789abcdef")].map(|h| h >> 48),
            FIXED
        );
        let full = HyperLogLog::from_registers(vec![53; 4096].into()).unwrap();
        assert!(full.estimate() > 1e18);
    }

    const FIXED: [u64; 4] = [10411, 12770, 15750, 10827];
}
