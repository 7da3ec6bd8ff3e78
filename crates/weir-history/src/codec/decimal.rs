//! Doubles as decimal numbers. Applications mostly send numbers that were typed or rounded: `12.34` is 1234 hundredths, and the integer
//! takes far fewer bits than the double.

/// Powers of ten that a double holds exactly and that keep sums of digits far below 2^53.
const POWERS: [f64; 10] = [1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9];
const EXPONENT_MAX: u8 = POWERS.len() as u8 - 1;
const INTEGER_MAX: f64 = (1u64 << 53) as f64;

/// `integer` / 10^`exponent`, bit for bit. An integer cannot hold negative zero.
pub fn value(integer: i64, exponent: u8) -> f64 {
    integer as f64 / POWERS[usize::from(exponent.min(EXPONENT_MAX))]
}

/// The integer that [`value`] turns back into `v`, if one exists.
pub fn integer(v: f64, exponent: u8) -> Option<i64> {
    let scaled = (v * POWERS[usize::from(exponent)]).round();
    // Also false for NaN.
    if scaled.abs() < INTEGER_MAX {
        let integer = scaled as i64;
        (value(integer, exponent).to_bits() == v.to_bits()).then_some(integer)
    } else {
        None
    }
}

/// Converts all of `values` to integers with one exponent, the smallest possible.
pub fn integers(values: &[f64], out: &mut Vec<i64>) -> Option<u8> {
    let mut exponent = 0;
    for &v in values {
        while integer(v, exponent).is_none() {
            if exponent == EXPONENT_MAX {
                return None;
            }
            exponent += 1;
        }
    }
    out.clear();
    for &v in values {
        // A value that fits a small exponent may be too large for the exponent of another.
        out.push(integer(v, exponent)?);
    }
    Some(exponent)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn zero_has_a_sign_and_infinity_is_no_decimal() {
        assert_eq!(integer(0.0, 0), Some(0));
        assert_eq!(integer(-0.0, 0), None);
        for odd in [
            f64::NAN,
            f64::INFINITY,
            f64::NEG_INFINITY,
            1e300,
            f64::MIN_POSITIVE,
        ] {
            assert_eq!(integers(&[odd], &mut Vec::new()), None, "{odd}");
        }
    }

    proptest! {
        #[test]
        fn decimals_as_typed_are_recognised(integer_ in -1_000_000_000i64..1_000_000_000, exponent in 0u8..=6) {
            let v = value(integer_, exponent);
            let mut out = Vec::new();
            let found = integers(&[v, 0.0], &mut out).expect("a decimal");
            prop_assert!(found <= exponent);
            prop_assert_eq!(value(out[0], found).to_bits(), v.to_bits());
        }
    }
}
