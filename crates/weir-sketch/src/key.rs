//! Values to bin keys and back.
//!
//! A key is a rounded logarithm: `round_half_even(ln(v) / LN_GAMMA) + BIAS`. The logarithm and the division cost
//! most of an insertion, so the usual range goes through tables instead: the exponent and the top seven bits of the
//! mantissa narrow a value down to half a bin, and one comparison with the exact boundary decides. The boundaries
//! are found by asking the logarithm version itself, so both agree on every value.

use std::sync::LazyLock;

/// Ratio between neighbouring bins: 1 + 2/128.
pub const GAMMA: f64 = 1.015625;
/// Natural logarithm of [`GAMMA`], the Datadog Agent's constant.
pub const LN_GAMMA: f64 = 0.015504186535965254;
/// Key of the value 1.
pub const BIAS: i32 = 1338;
/// Smallest value that is not in the zero bin.
pub const NORM_MIN: f64 = 9.94185408912145e-10;
/// Largest key; values above its bin share it.
pub const KEY_MAX: i16 = i16::MAX;

/// The definition of the key, by logarithm. Oracle of [`key`], and its route for values outside the tables.
pub fn key_by_logarithm(v: f64) -> i16 {
    if v < 0.0 {
        return -key_by_logarithm(-v);
    }
    // A NaN compares false and would become key 1; callers refuse it, and zero is the harmless answer.
    if v < NORM_MIN || v.is_nan() {
        return 0;
    }
    let rounded = (v.ln() / LN_GAMMA).round_ties_even() + f64::from(BIAS);
    rounded.clamp(1.0, f64::from(KEY_MAX)) as i16
}

/// Lower bound reported for a bin. Values of bin `k` lie within half a bin of it.
pub fn lower(k: i16) -> f64 {
    match k {
        i16::MIN..0 => -lower(k.saturating_neg()),
        0 => 0.0,
        KEY_MAX => f64::INFINITY,
        _ => power(i32::from(k) - BIAS),
    }
}

/// `GAMMA^(2^i)`, for the bits of an exponent.
const SQUARES: [f64; 15] = {
    let mut squares = [GAMMA; 15];
    let mut i = 1;
    while i < squares.len() {
        squares[i] = squares[i - 1] * squares[i - 1];
        i += 1;
    }
    squares
};

/// `GAMMA.powi(exponent)` to the last bit, with the half of its multiplications that is always the same done in advance.
fn power(exponent: i32) -> f64 {
    let mut bits = exponent.unsigned_abs();
    let mut product = 1.0;
    while bits != 0 {
        product *= SQUARES[bits.trailing_zeros() as usize];
        bits &= bits - 1;
    }
    if exponent < 0 { 1.0 / product } else { product }
}

/// First exponent (2^-29, just above [`NORM_MIN`]) and first exponent beyond the tables (2^64: nanosecond timestamps fit).
const EXPONENT_MIN: u64 = 1023 - 29;
const EXPONENT_END: u64 = 1023 + 64;
const MANTISSA_BITS: u32 = 7;
const SLOTS: usize = 1 << MANTISSA_BITS;

pub(crate) struct Tables {
    /// Key position of 2^e relative to `EXPONENT_MIN`, in bins.
    exponents: [f64; (EXPONENT_END - EXPONENT_MIN) as usize],
    /// Key position of the left end of each mantissa slot, in bins, minus a hair so that truncation never overshoots.
    mantissas: [f64; SLOTS],
    /// `boundaries[k]` is the smallest value whose key is above `k`.
    boundaries: Vec<f64>,
}

static TABLES: LazyLock<Tables> = LazyLock::new(|| {
    let bins_per_octave = std::f64::consts::LN_2 / LN_GAMMA;
    let mut exponents = [0.0; (EXPONENT_END - EXPONENT_MIN) as usize];
    for (i, position) in exponents.iter_mut().enumerate() {
        *position = (i as f64 + EXPONENT_MIN as f64 - 1023.0) * bins_per_octave;
    }
    let mut mantissas = [0.0; SLOTS];
    for (i, position) in mantissas.iter_mut().enumerate() {
        let left = 1.0 + i as f64 / SLOTS as f64;
        // Adding one half turns truncation into rounding.
        *position = left.ln() / LN_GAMMA + f64::from(BIAS) + 0.5 - 1e-9;
    }
    let last = f64::from_bits(EXPONENT_END << 52);
    let keys = key_by_logarithm(last) as usize + 1;
    let boundaries = (0..=keys).map(|k| boundary_above(k as i32)).collect();
    Tables {
        exponents,
        mantissas,
        boundaries,
    }
});

/// The smallest value whose key, by logarithm, is above `k`.
fn boundary_above(k: i32) -> f64 {
    if k == 0 {
        return NORM_MIN;
    }
    let guess = ((f64::from(k - BIAS) + 0.5) * LN_GAMMA).exp().to_bits();
    // The guess is right to a few units in the last place; bisect between two sides that are surely apart.
    let (mut below, mut above) = (guess - 4096, guess + 4096);
    while above - below > 1 {
        let middle = below + (above - below) / 2;
        if i32::from(key_by_logarithm(f64::from_bits(middle))) > k {
            above = middle;
        } else {
            below = middle;
        }
    }
    f64::from_bits(above)
}

/// Bin key of a finite value. Equal to [`key_by_logarithm`] for every value.
#[inline]
pub fn key(v: f64) -> i16 {
    TABLES.key(v).unwrap_or_else(|| key_outside_tables(v))
}

impl Tables {
    /// Loops over values look for them once.
    #[inline]
    pub(crate) fn get() -> &'static Tables {
        &TABLES
    }

    /// [`key`], or `None` for a value that is not finite.
    #[inline]
    pub(crate) fn key_if_finite(&self, v: f64) -> Option<i16> {
        // All values of the tables are finite.
        self.key(v)
            .or_else(|| v.is_finite().then(|| key_outside_tables(v)))
    }

    #[inline]
    fn key(&self, v: f64) -> Option<i16> {
        let bits = v.to_bits();
        let magnitude = bits & !(1 << 63);
        let exponent = (magnitude >> 52).wrapping_sub(EXPONENT_MIN);
        if exponent >= EXPONENT_END - EXPONENT_MIN {
            return None;
        }
        let slot = (magnitude >> (52 - MANTISSA_BITS)) as usize & (SLOTS - 1);
        let k = (self.exponents[exponent as usize] + self.mantissas[slot]) as usize;
        // A slot is at most 0.503 bins wide, so at most one boundary lies inside it.
        let k = k as i32 + i32::from(f64::from_bits(magnitude) >= self.boundaries[k]);
        Some((if bits == magnitude { k } else { -k }) as i16)
    }
}

#[cold]
#[inline(never)]
fn key_outside_tables(v: f64) -> i16 {
    if v == 0.0 { 0 } else { key_by_logarithm(v) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn bounds_are_powers() {
        for k in 1..KEY_MAX {
            assert_eq!(lower(k), GAMMA.powi(i32::from(k) - BIAS), "{k}");
        }
    }

    #[test]
    fn published_check_values() {
        let cases = [
            (1e-10, 0),
            (1e-9, 1),
            (0.001, 892),
            (0.1, 1189),
            (0.5, 1293),
            (1.0, 1338),
            (2.0, 1383),
            (3.0, 1409),
            (10.0, 1487),
            (42.0, 1579),
            (100.0, 1635),
            (1000.0, 1784),
            (12345.678, 1946),
            (1e6, 2229),
            (1e9, 2675),
            (-1.0, -1338),
            (-2.5, -1397),
            (0.0, 0),
            (-0.0, 0),
            (f64::MIN_POSITIVE / 2.0, 0),
            (f64::MAX, 32767),
            (f64::MIN, -32767),
        ];
        for (v, k) in cases {
            assert_eq!(key_by_logarithm(v), k, "by logarithm, {v}");
            assert_eq!(key(v), k, "{v}");
        }
        assert!((lower(1) / NORM_MIN - 1.0).abs() < 1e-12);
        assert_eq!((lower(0), lower(1338), lower(-1338)), (0.0, 1.0, -1.0));
        assert_eq!(
            (lower(KEY_MAX), lower(i16::MIN)),
            (f64::INFINITY, f64::NEG_INFINITY)
        );
    }

    #[test]
    fn equal_to_the_logarithm_around_every_boundary() {
        for k in 0..TABLES.boundaries.len() as i32 - 1 {
            let at = boundary_above(k).to_bits();
            for bits in at - 40..at + 40 {
                for v in [f64::from_bits(bits), -f64::from_bits(bits)] {
                    assert_eq!(key(v), key_by_logarithm(v), "{v:e} near the boundary above {k}");
                }
            }
        }
        // Slot edges and powers of two, where the table lookup itself changes.
        for exponent in EXPONENT_MIN - 2..EXPONENT_END + 2 {
            for slot in 0..SLOTS as u64 {
                let at = (exponent << 52) | (slot << (52 - MANTISSA_BITS));
                for bits in at - 3..at + 3 {
                    let v = f64::from_bits(bits);
                    assert_eq!(key(v), key_by_logarithm(v), "{v:e}");
                }
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20_000))]
        #[test]
        fn equal_to_the_logarithm_everywhere(v in proptest::num::f64::NORMAL | proptest::num::f64::SUBNORMAL | proptest::num::f64::ZERO) {
            prop_assert_eq!(key(v), key_by_logarithm(v));
        }

        #[test]
        fn equal_to_the_logarithm_in_the_usual_range(e in -10f64..20.0) {
            let v = 10f64.powf(e);
            prop_assert_eq!(key(v), key_by_logarithm(v));
            prop_assert!((lower(key(v)) / v).ln().abs() < LN_GAMMA * 0.5000001 || v < 1.01e-9);
        }
    }
}
