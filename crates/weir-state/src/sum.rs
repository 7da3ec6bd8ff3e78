//! Sums whose result does not depend on the order of their parts.

use crate::Error;
use crate::wire::{Reader, Writer};

/// The lowest bit that a float can have, as a power of two.
const LOWEST: i32 = -1074;

/// Words of a sum that has outgrown 128 bits. A record's sum is below 2^[`MAGNITUDE_MAX`]; that leaves room for 2^77 of them.
const WORDS: usize = 36;

/// Sums in records are smaller than two to this power. Floats end at 1024.
const MAGNITUDE_MAX: i32 = 1152;

/// Bits of the first byte: the non-finite values in the sum, and the sign of the rest.
const POSITIVE_INFINITY: u8 = 1;
const NEGATIVE_INFINITY: u8 = 2;
const NOT_A_NUMBER: u8 = 4;
const SPECIAL: u8 = 7;
const NEGATIVE: u8 = 8;
const NONZERO: u8 = 16;

/// The exact sum of floats and integers. Equal sums compare as equal, in whatever order they were added.
#[derive(Clone, Debug, Default)]
pub struct ExactSum {
    special: u8,
    fixed: Fixed,
}

#[derive(Clone, Debug)]
enum Fixed {
    /// `mantissa * 2^exponent`.
    Small { mantissa: i128, exponent: i32 },
    /// A two's complement number of units of 2^[`LOWEST`], lowest word first.
    Wide(Box<[u64; WORDS]>),
}

impl Default for Fixed {
    fn default() -> Self {
        Fixed::Small {
            mantissa: 0,
            exponent: 0,
        }
    }
}

/// A number in the one form that equal numbers share: `magnitude * 2^exponent` with an odd magnitude.
#[derive(PartialEq, Eq)]
struct Canonical {
    negative: bool,
    exponent: i32,
    /// Lowest word first, none of zeros at the end.
    magnitude: Vec<u64>,
}

impl PartialEq for ExactSum {
    fn eq(&self, other: &Self) -> bool {
        self.special == other.special && self.fixed.canonical() == other.fixed.canonical()
    }
}

impl From<f64> for ExactSum {
    fn from(value: f64) -> Self {
        let mut sum = ExactSum::default();
        sum.add(value);
        sum
    }
}

impl ExactSum {
    pub fn add(&mut self, value: f64) {
        self.add_times(value, 1);
    }

    /// Adds a value as often as `times` says.
    pub fn add_times(&mut self, value: f64, times: u64) {
        if times == 0 {
            return;
        }
        if !value.is_finite() {
            self.special |= special_of(value);
            return;
        }
        let (mantissa, exponent) = parts(value);
        self.fixed.add(i128::from(mantissa) * i128::from(times), exponent);
    }

    pub fn merge(&mut self, other: &ExactSum) {
        self.special |= other.special;
        match &other.fixed {
            Fixed::Small { mantissa, exponent } => self.fixed.add(*mantissa, *exponent),
            Fixed::Wide(words) => self.fixed.add_wide(words),
        }
    }

    pub fn is_zero(&self) -> bool {
        *self == ExactSum::default()
    }

    /// The nearest float, ties to even; infinite where floats end.
    pub fn to_f64(&self) -> f64 {
        match self.special {
            0 => self.fixed.canonical().to_f64(),
            POSITIVE_INFINITY => f64::INFINITY,
            NEGATIVE_INFINITY => f64::NEG_INFINITY,
            _ => f64::NAN,
        }
    }

    pub(crate) fn heap_bytes(&self) -> usize {
        match self.fixed {
            Fixed::Small { .. } => 0,
            Fixed::Wide(_) => WORDS * size_of::<u64>(),
        }
    }

    pub(crate) fn write(&self, writer: &mut Writer) {
        let wide;
        let small;
        let (negative, exponent, magnitude): (bool, i32, &[u8]) = match &self.fixed {
            Fixed::Small { mantissa, exponent } => {
                let size = mantissa.unsigned_abs();
                let zeros = if size == 0 { 0 } else { size.trailing_zeros() };
                small = (size >> zeros).to_le_bytes();
                (*mantissa < 0, exponent + zeros as i32, &small)
            }
            Fixed::Wide(_) => {
                let number = self.fixed.canonical();
                wide = number
                    .magnitude
                    .iter()
                    .flat_map(|word| word.to_le_bytes())
                    .collect::<Vec<u8>>();
                (number.negative, number.exponent, &wide)
            }
        };
        let len = magnitude
            .iter()
            .rposition(|&byte| byte != 0)
            .map_or(0, |last| last + 1);
        let sign = if negative { NEGATIVE } else { 0 };
        writer.byte(self.special | sign | if len == 0 { 0 } else { NONZERO });
        if len > 0 {
            writer.signed(i64::from(exponent));
            writer.block(&magnitude[..len]);
        }
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<ExactSum, Error> {
        const WHAT: &str = "a sum";
        let first = reader.byte()?;
        if first & !(SPECIAL | NEGATIVE | NONZERO) != 0 || first & (NONZERO | NEGATIVE) == NEGATIVE {
            return Err(Error::NotCanonical(WHAT));
        }
        let mut sum = ExactSum {
            special: first & SPECIAL,
            ..ExactSum::default()
        };
        if first & NONZERO == 0 {
            return Ok(sum);
        }
        let exponent = i32::try_from(reader.signed()?).map_err(|_| Error::OutOfRange(WHAT))?;
        let bytes = reader.block()?;
        let (Some(lowest), Some(&highest)) = (bytes.first(), bytes.last()) else {
            return Err(Error::NotCanonical(WHAT));
        };
        if lowest & 1 == 0 || highest == 0 {
            return Err(Error::NotCanonical(WHAT));
        }
        let bits = bytes.len() as i64 * 8 - i64::from(highest.leading_zeros());
        if exponent < LOWEST || bits + i64::from(exponent) > i64::from(MAGNITUDE_MAX) {
            return Err(Error::OutOfRange(WHAT));
        }
        let sign = if first & NEGATIVE == 0 { 1 } else { -1 };
        // Eight bytes at a time: each is small enough to be added as a signed number.
        for (at, chunk) in bytes.chunks(8).enumerate() {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            let word = i128::from(u64::from_le_bytes(word));
            sum.fixed.add(sign * word, exponent + 64 * at as i32);
        }
        Ok(sum)
    }
}

fn special_of(value: f64) -> u8 {
    if value.is_nan() {
        NOT_A_NUMBER
    } else if value > 0.0 {
        POSITIVE_INFINITY
    } else {
        NEGATIVE_INFINITY
    }
}

/// A finite float as `mantissa * 2^exponent` with an odd mantissa; zero as zero.
fn parts(value: f64) -> (i64, i32) {
    let bits = value.to_bits();
    let fraction = (bits & ((1 << 52) - 1)) as i64;
    let biased = (bits >> 52 & 0x7ff) as i32;
    let (mantissa, exponent) = match biased {
        0 => (fraction, LOWEST),
        _ => (fraction | 1 << 52, biased - 1075),
    };
    if mantissa == 0 {
        return (0, 0);
    }
    let zeros = mantissa.trailing_zeros();
    let mantissa = mantissa >> zeros;
    let signed = if value < 0.0 { -mantissa } else { mantissa };
    (signed, exponent + zeros as i32)
}

impl Fixed {
    fn add(&mut self, more: i128, at: i32) {
        if more == 0 {
            return;
        }
        match self {
            Fixed::Small { mantissa, exponent } => {
                let (low, sum) = match *mantissa {
                    0 => (at, Some(more)),
                    _ => {
                        let low = at.min(*exponent);
                        let mine = shifted(*mantissa, (*exponent - low) as u32);
                        let theirs = shifted(more, (at - low) as u32);
                        let sum = mine
                            .zip(theirs)
                            .and_then(|(mine, theirs)| mine.checked_add(theirs));
                        (low, sum)
                    }
                };
                match sum {
                    Some(sum) => (*mantissa, *exponent) = (sum, low),
                    None => {
                        self.widen();
                        self.add(more, at);
                    }
                }
            }
            Fixed::Wide(words) => add_at(words, more, (at - LOWEST) as u32),
        }
    }

    fn add_wide(&mut self, other: &[u64; WORDS]) {
        self.widen();
        if let Fixed::Wide(words) = self {
            add_words(words, 0, other.iter().copied());
        }
    }

    fn widen(&mut self) {
        if let Fixed::Small { mantissa, exponent } = *self {
            let mut words = Box::new([0; WORDS]);
            add_at(&mut words, mantissa, (exponent - LOWEST) as u32);
            *self = Fixed::Wide(words);
        }
    }

    fn canonical(&self) -> Canonical {
        let (negative, exponent, mut magnitude) = match self {
            Fixed::Small { mantissa, exponent } => {
                let size = mantissa.unsigned_abs();
                (*mantissa < 0, *exponent, vec![size as u64, (size >> 64) as u64])
            }
            Fixed::Wide(words) => {
                let negative = words[WORDS - 1] >> 63 == 1;
                let mut size = words.to_vec();
                if negative {
                    negate(&mut size);
                }
                (negative, LOWEST, size)
            }
        };
        let Some(first) = magnitude.iter().position(|&word| word != 0) else {
            return Canonical {
                negative: false,
                exponent: 0,
                magnitude: Vec::new(),
            };
        };
        let zeros = first as u32 * 64 + magnitude[first].trailing_zeros();
        shift_down(&mut magnitude, zeros);
        while magnitude.last() == Some(&0) {
            magnitude.pop();
        }
        Canonical {
            negative,
            exponent: exponent + zeros as i32,
            magnitude,
        }
    }
}

fn shifted(number: i128, by: u32) -> Option<i128> {
    let room = number.unsigned_abs().leading_zeros();
    // One bit is the sign's.
    (by < room).then(|| number << by)
}

/// Adds a signed number, `bit` bits above the lowest.
fn add_at(words: &mut [u64; WORDS], number: i128, bit: u32) {
    let (word, shift) = ((bit / 64) as usize, bit % 64);
    let low = (number as u128) << shift;
    let high = match shift {
        0 => (number >> 127) as u64,
        _ => (number >> (128 - shift)) as u64,
    };
    let sign = (number >> 127) as u64;
    let parts = [low as u64, (low >> 64) as u64, high];
    add_words(words, word, parts.into_iter().chain(std::iter::repeat(sign)));
}

fn add_words(words: &mut [u64; WORDS], from: usize, others: impl Iterator<Item = u64>) {
    let mut carry = false;
    for (word, other) in words[from..].iter_mut().zip(others) {
        let (sum, first) = word.overflowing_add(other);
        let (sum, second) = sum.overflowing_add(u64::from(carry));
        (*word, carry) = (sum, first | second);
    }
}

fn negate(words: &mut [u64]) {
    let mut carry = true;
    for word in words {
        let (negated, overflows) = (!*word).overflowing_add(u64::from(carry));
        (*word, carry) = (negated, overflows);
    }
}

fn shift_down(words: &mut Vec<u64>, bits: u32) {
    words.drain(..(bits / 64) as usize);
    let shift = bits % 64;
    if shift == 0 {
        return;
    }
    for at in 0..words.len() {
        let above = words.get(at + 1).copied().unwrap_or(0);
        words[at] = words[at] >> shift | above << (64 - shift);
    }
}

impl Canonical {
    fn to_f64(&self) -> f64 {
        let Some(&last) = self.magnitude.last() else {
            return 0.0;
        };
        let bits = self.magnitude.len() as i32 * 64 - last.leading_zeros() as i32;
        // More than 53 bits are cut and rounded. The lowest bit is a one, so a tie is only possible when one bit is cut.
        let cut = (bits - 53).max(0);
        let mut top = self.magnitude.clone();
        shift_down(&mut top, cut as u32);
        let kept = top.first().copied().unwrap_or(0);
        let rounds_up = cut > 0 && self.bit(cut as u32 - 1) && (cut > 1 || kept & 1 == 1);
        let size = scale((kept + u64::from(rounds_up)) as f64, self.exponent + cut);
        if self.negative { -size } else { size }
    }

    fn bit(&self, at: u32) -> bool {
        self.magnitude[(at / 64) as usize] >> (at % 64) & 1 == 1
    }
}

/// `value * 2^exponent`, in steps that are all exact: the result has no bit below the lowest.
fn scale(mut value: f64, mut exponent: i32) -> f64 {
    while exponent > 0 && value.is_finite() {
        let step = exponent.min(1000);
        value *= 2f64.powi(step);
        exponent -= step;
    }
    while exponent < 0 {
        let step = exponent.max(-1000);
        value *= 2f64.powi(step);
        exponent -= step;
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sum(values: &[f64]) -> ExactSum {
        let mut sum = ExactSum::default();
        values.iter().for_each(|value| sum.add(*value));
        sum
    }

    fn bytes(sum: &ExactSum) -> Vec<u8> {
        let mut writer = Writer::default();
        sum.write(&mut writer);
        writer.bytes
    }

    #[test]
    fn precision_that_floats_lose_is_kept() {
        let check = |values: &[f64], expected: f64| assert_eq!(sum(values).to_f64(), expected, "{values:?}");
        check(&[1e16, 1.0, 1.0], 1e16 + 2.0);
        check(&[1e300, 1.0, -1e300], 1.0);
        check(&[f64::MAX, f64::MAX, -f64::MAX], f64::MAX);
        check(&[f64::MAX, f64::MAX], f64::INFINITY);
        check(&[f64::MIN, f64::MIN], f64::NEG_INFINITY);
        check(&[5e-324, 5e-324], 1e-323);
        check(&[5e-324, f64::MAX, -f64::MAX], 5e-324);
        check(&[-0.0], 0.0);
        check(&[], 0.0);
        // Ties go to the even neighbour.
        check(&[9007199254740992.0, 1.0], 9007199254740992.0);
        check(&[9007199254740994.0, 1.0], 9007199254740996.0);
        check(&[f64::INFINITY, 1.0], f64::INFINITY);
        assert!(sum(&[f64::INFINITY, f64::NEG_INFINITY]).to_f64().is_nan());
        assert!(sum(&[f64::NAN]).to_f64().is_nan());
    }

    #[test]
    fn small_integers_are_short() {
        assert_eq!(bytes(&sum(&[])), [0]);
        assert_eq!(bytes(&sum(&[5.0])), [NONZERO, 0, 1, 5]);
        assert_eq!(bytes(&sum(&[-5.0])), [NONZERO | NEGATIVE, 0, 1, 5]);
    }

    #[test]
    fn other_forms_are_refused() {
        let check = |bytes: &[u8], expected: Error| {
            assert_eq!(
                ExactSum::read(&mut Reader::new(bytes)),
                Err(expected),
                "{bytes:?}"
            );
        };
        check(&[NONZERO, 0, 1, 4], Error::NotCanonical("a sum"));
        check(&[NONZERO, 0, 2, 5, 0], Error::NotCanonical("a sum"));
        check(&[NONZERO, 0, 0], Error::NotCanonical("a sum"));
        check(&[NEGATIVE], Error::NotCanonical("a sum"));
        check(&[32], Error::NotCanonical("a sum"));
        check(&[NONZERO, 0, 200], Error::Truncated);
        check(&[NONZERO, 0xff, 0xff, 3, 1, 1], Error::OutOfRange("a sum"));
        check(&[NONZERO, 0x80, 0x12, 1, 3], Error::OutOfRange("a sum"));
    }

    fn value() -> impl Strategy<Value = f64> {
        prop_oneof![
            3 => (-1_000_000i64..1_000_000).prop_map(|value| value as f64),
            3 => -1e6..1e6f64,
            2 => any::<u64>().prop_map(f64::from_bits).prop_filter("finite", |value| value.is_finite()),
            1 => Just(f64::MAX),
            1 => Just(-5e-324),
        ]
    }

    proptest! {
        /// The naive twin adds integers, which are exact.
        #[test]
        fn equals_the_sum_of_integers(values in prop::collection::vec(-(1i64 << 52)..1 << 52, 0..50)) {
            let floats: Vec<f64> = values.iter().map(|&value| value as f64).collect();
            let expected: i128 = values.iter().map(|&value| i128::from(value)).sum();
            prop_assert_eq!(sum(&floats).to_f64(), expected as f64);
        }

        #[test]
        fn order_and_grouping_do_not_matter(mut values in prop::collection::vec(value(), 0..40), at in 0usize..40) {
            let forwards = sum(&values);
            let (one, other) = values.split_at(at.min(values.len()));
            let mut grouped = sum(other);
            grouped.merge(&sum(one));
            prop_assert_eq!(bytes(&forwards), bytes(&grouped));
            values.reverse();
            prop_assert_eq!(bytes(&forwards), bytes(&sum(&values)));
            let mut wide = sum(&[f64::MAX, 5e-324]);
            wide.merge(&forwards);
            wide.merge(&sum(&[-f64::MAX, -5e-324]));
            prop_assert_eq!(bytes(&forwards), bytes(&wide));
        }

        #[test]
        fn bytes_give_the_sum(values in prop::collection::vec(value(), 0..40)) {
            let sum = sum(&values);
            let bytes = bytes(&sum);
            let mut reader = Reader::new(&bytes);
            let read = ExactSum::read(&mut reader).unwrap();
            prop_assert_eq!(reader.end(), Ok(()));
            prop_assert_eq!(read.to_f64().to_bits(), sum.to_f64().to_bits());
            prop_assert_eq!(read, sum);
        }

        #[test]
        fn one_value_is_itself(value in value(), times in 0u64..1000) {
            prop_assert_eq!(ExactSum::from(value).to_f64(), value);
            let mut multiplied = ExactSum::default();
            multiplied.add_times(value, times);
            let mut repeated = ExactSum::default();
            (0..times).for_each(|_| repeated.add(value));
            prop_assert_eq!(multiplied, repeated);
        }
    }
}
