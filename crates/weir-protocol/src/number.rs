//! Decimal numbers as the protocol defines them: exact, and quick for the short ones that real traffic is made of.

/// Powers of ten that a 64-bit float holds exactly.
const EXACT_POWERS: [f64; 23] = [
    1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18,
    1e19, 1e20, 1e21, 1e22,
];

/// Largest integer up to which every integer is a 64-bit float: 2^53.
const EXACT_INTEGER_MAX: u64 = 1 << 53;

/// Parses `[+-]? ( digits [ "." digits? ] | "." digits ) ( [eE] [+-]? digits )?`, or one of `nan`, `inf`, `infinity`
/// in any case with an optional sign (not on `nan`). Returns `None` for anything else and for a magnitude that
/// overflows; underflow gives zero or a denormal.
///
/// With at most 19 digits, a significand of at most 2^53 and at most 22 decimals, significand and power of ten are both
/// exact, so one division rounds once and the result is the correctly rounded one (Clinger, "How to read floating point
/// numbers accurately", 1990). Everything else goes to the standard library, which is exact too.
#[inline]
pub fn parse_number(text: &[u8]) -> Option<f64> {
    let (negative, start) = match text.first()? {
        b'-' => (true, 1),
        b'+' => (false, 1),
        _ => (false, 0),
    };
    let mut significand: u64 = 0;
    let mut digits = 0;
    let mut at = start;
    while let Some(digit) = digit_at(text, at) {
        // More than 19 digits may wrap; the result is not used then.
        significand = significand.wrapping_mul(10).wrapping_add(digit);
        digits += 1;
        at += 1;
    }
    let mut decimals = 0;
    if text.get(at) == Some(&b'.') {
        at += 1;
        let first = at;
        while let Some(digit) = digit_at(text, at) {
            significand = significand.wrapping_mul(10).wrapping_add(digit);
            at += 1;
        }
        decimals = at - first;
        digits += decimals;
    }
    if at == text.len() && digits > 0 && digits <= 19 && significand <= EXACT_INTEGER_MAX && decimals <= 22 {
        let magnitude = if decimals == 0 {
            significand as f64
        } else {
            significand as f64 / EXACT_POWERS[decimals]
        };
        return Some(if negative { -magnitude } else { magnitude });
    }
    parse_number_rare(text)
}

/// Reads a number without exponent from `text[at..]`, as far as it goes. Returns it and the place behind it. `None` where the
/// short cut of [`parse_number`] does not hold, or there is no digit; the caller then takes the long way with the whole field.
pub(crate) fn parse_plain(text: &[u8], at: usize) -> Option<(f64, usize)> {
    let negative = text.get(at) == Some(&b'-');
    let first = at + usize::from(negative);
    let (magnitude, end) = parse_digits(text, first)?;
    let sign = u64::from(negative) << 63;
    Some((f64::from_bits(magnitude.to_bits() | sign), end))
}

/// By sign and number of decimals; a number without a point has the index eight.
const DIVISORS: [[f64; 9]; 2] = [
    [1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e0],
    [-1e0, -1e1, -1e2, -1e3, -1e4, -1e5, -1e6, -1e7, -1e0],
];

/// The number that is all of `text[at..end]`: a sign, and at most eight digits, one of which may be a point. `None` for any other, and where fewer than
/// eight bytes are in front of its end.
///
/// Whether a number has a point, and where, differs from message to message, so no branch asks.
#[inline(always)]
pub(crate) fn parse_short(text: &[u8], at: usize, end: usize) -> Option<f64> {
    let negative = text.get(at) == Some(&b'-');
    let word = u64::from_le_bytes(*text.get(..end)?.last_chunk()?);
    let length = (end - at).wrapping_sub(usize::from(negative));
    if length.wrapping_sub(1) >= 8 {
        return None;
    }
    // The number is at the end of the word; digits in front of it become zeros.
    let before = 64 - 8 * length as u32;
    let bytes = (word ^ 0x3030_3030_3030_3030) >> before << before;
    let others = non_digits(bytes);
    // The lowest bit of the first character that is no digit.
    let point = (others & others.wrapping_neg()) >> 7;
    let is_point = others == point << 7 && bytes & point.wrapping_mul(0xff) == point.wrapping_mul(0x1e);
    if !is_point || length == usize::from(point != 0) {
        return None;
    }
    // Digits in front of the point move one further, over it.
    let front = bytes & point.saturating_sub(1);
    let digits = bytes
        .wrapping_sub(point.wrapping_mul(0x1e))
        .wrapping_add(front.wrapping_mul(0xff));
    let decimals = point.leading_zeros() / 8;
    // At most 10^8 - 1 and 10^7: both exact, so the division rounds once.
    Some(join_word(digits) as f64 / DIVISORS[usize::from(negative)][decimals as usize])
}

/// Powers of ten for the digits of one word.
const TENS: [u64; 8] = [1, 10, 100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000];

/// The high bit of each byte, up to the first that is no digit and a point behind digits, that is no digit. Bytes are relative
/// to `0`.
#[inline]
fn non_digits(bytes: u64) -> u64 {
    (bytes | bytes.wrapping_add(0x7676_7676_7676_7676)) & 0x8080_8080_8080_8080
}

/// The number that the first `count` bytes, at most seven, are the digits of.
#[inline]
fn join_digits(bytes: u64, count: u32) -> u64 {
    // Right-aligned, zeros in front; two shifts, because one by 64 is not allowed.
    join_word(bytes << 8 << (56 - 8 * count))
}

/// The number that eight bytes are the digits of, the first one in the lowest byte.
#[inline]
fn join_word(digits: u64) -> u64 {
    // Neighbours pair up: ones and tens, then hundreds, then all eight (a multiplication for each level).
    let pairs = digits.wrapping_mul(10).wrapping_add(digits >> 8) & 0x00ff_00ff_00ff_00ff;
    let fours = pairs.wrapping_mul(100).wrapping_add(pairs >> 16) & 0x0000_ffff_0000_ffff;
    fours.wrapping_mul(10_000).wrapping_add(fours >> 32) & 0xffff_ffff
}

/// [`parse_plain`] without the sign.
fn parse_digits(text: &[u8], first: usize) -> Option<(f64, usize)> {
    let (mut significand, mut at) = digit_run(text, first, 0);
    let mut digits = at - first;
    let mut decimals = 0;
    if text.get(at) == Some(&b'.') {
        let first = at + 1;
        (significand, at) = digit_run(text, first, significand);
        decimals = at - first;
        digits += decimals;
    }
    if digits == 0 || digits > 19 || significand > EXACT_INTEGER_MAX {
        return None;
    }
    let magnitude = if decimals == 0 {
        significand as f64
    } else {
        significand as f64 / EXACT_POWERS[decimals]
    };
    Some((magnitude, at))
}

/// Appends the digits from `text[at..]` on to `number`; returns the result and the place behind them. More than 19 digits in all
/// wrap, which the caller rules out.
///
/// Eight bytes at a time.
#[inline]
fn digit_run(text: &[u8], at: usize, number: u64) -> (u64, usize) {
    if let Some(eight) = text.get(at..).and_then(|rest| rest.first_chunk::<8>()) {
        let bytes = u64::from_le_bytes(*eight) ^ 0x3030_3030_3030_3030;
        let count = non_digits(bytes).trailing_zeros() / 8;
        if count < 8 {
            let joined = join_digits(bytes, count);
            return (
                number.wrapping_mul(TENS[count as usize]).wrapping_add(joined),
                at + count as usize,
            );
        }
    }
    digit_run_plain(text, at, number)
}

/// The plain form: near the end of the text, and for long numbers.
fn digit_run_plain(text: &[u8], mut at: usize, mut number: u64) -> (u64, usize) {
    while let Some(digit) = digit_at(text, at) {
        number = number.wrapping_mul(10).wrapping_add(digit);
        at += 1;
    }
    (number, at)
}

#[inline]
fn digit_at(text: &[u8], at: usize) -> Option<u64> {
    let value = text.get(at)?.wrapping_sub(b'0');
    (value < 10).then_some(u64::from(value))
}

/// Exponents, many digits, special values and errors.
#[cold]
fn parse_number_rare(text: &[u8]) -> Option<f64> {
    let unsigned = text
        .strip_prefix(b"-")
        .or_else(|| text.strip_prefix(b"+"))
        .unwrap_or(text);
    let signed = unsigned.len() != text.len();
    if unsigned.eq_ignore_ascii_case(b"nan") {
        return (!signed).then_some(f64::NAN);
    }
    if unsigned.eq_ignore_ascii_case(b"inf") || unsigned.eq_ignore_ascii_case(b"infinity") {
        return Some(if text[0] == b'-' {
            f64::NEG_INFINITY
        } else {
            f64::INFINITY
        });
    }
    if !is_decimal(unsigned) {
        return None;
    }
    // The grammar allows only ASCII, and the standard parser accepts all of the grammar.
    let number: f64 = std::str::from_utf8(text).ok()?.parse().ok()?;
    number.is_finite().then_some(number)
}

/// `( digits [ "." digits? ] | "." digits ) ( [eE] [+-]? digits )?`
fn is_decimal(text: &[u8]) -> bool {
    let digits = |from: usize| {
        text[from..]
            .iter()
            .take_while(|byte| byte.is_ascii_digit())
            .count()
    };
    let mut at = digits(0);
    let mut mantissa_digits = at;
    if text.get(at) == Some(&b'.') {
        let decimals = digits(at + 1);
        mantissa_digits += decimals;
        at += 1 + decimals;
    }
    if mantissa_digits == 0 {
        return false;
    }
    if matches!(text.get(at), Some(b'e' | b'E')) {
        at += 1;
        if matches!(text.get(at), Some(b'+' | b'-')) {
            at += 1;
        }
        let exponent_digits = digits(at);
        if exponent_digits == 0 {
            return false;
        }
        at += exponent_digits;
    }
    at == text.len()
}

/// Parses `[+-]? digits` that fit in a signed 64-bit integer.
pub fn parse_integer(text: &[u8]) -> Option<i64> {
    let unsigned = text
        .strip_prefix(b"-")
        .or_else(|| text.strip_prefix(b"+"))
        .unwrap_or(text);
    if unsigned.is_empty() || !unsigned.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check(text: &str, expected: Option<f64>) {
        let got = parse_number(text.as_bytes());
        assert_eq!(
            got.map(f64::to_bits),
            expected.map(f64::to_bits),
            "{text:?} gave {got:?}, not {expected:?}"
        );
    }

    #[test]
    fn accepts_the_grammar() {
        check("0", Some(0.0));
        check("-0", Some(-0.0));
        check("+5", Some(5.0));
        check(".5", Some(0.5));
        check("5.", Some(5.0));
        check("1e3", Some(1000.0));
        check("1E-3", Some(0.001));
        check("9007199254740993", Some(9007199254740992.0));
        check("12345678901234567890123", Some(12345678901234567890123.0));
        check("0.1", Some(0.1));
        check("123.456", Some(123.456));
        check("1e-400", Some(0.0));
        check("INF", Some(f64::INFINITY));
        check("-Infinity", Some(f64::NEG_INFINITY));
        assert!(parse_number(b"NaN").unwrap().is_nan());
    }

    #[test]
    fn rejects_the_rest() {
        for text in [
            "", "+", "-", ".", "e5", "1e", "1e+", "1 ", " 1", "0x10", "1_0", "1,5", "+-1", "1e400", "1.0f",
            "+nan", "1.2.3",
        ] {
            check(text, None);
        }
    }

    proptest! {
        #[test]
        fn equals_the_standard_parser(text in "[+-]?[0-9]{0,21}(\\.[0-9]{0,21})?([eE][+-]?[0-9]{1,3})?") {
            let expected = if is_decimal(text.trim_start_matches(['+', '-']).as_bytes()) {
                text.parse::<f64>().ok().filter(|number| number.is_finite())
            } else {
                None
            };
            prop_assert_eq!(parse_number(text.as_bytes()).map(f64::to_bits), expected.map(f64::to_bits));
        }

        #[test]
        fn eight_digits_at_once_equal_one_by_one(text in "[0-9]{0,12}[ -~\\x80-\u{ff}]{0,12}", at in 0usize..4, number in 0u64..1000) {
            let text = text.as_bytes();
            prop_assert_eq!(digit_run(text, at, number), digit_run_plain(text, at, number));
        }

        #[test]
        fn numbers_with_a_known_end_equal_others(text in "[a:0-9.-]{6,10}(-?[0-9]{0,6}(\\.[0-9]{0,5})?|[0-9.:\\x7f-\u{ff}-]{0,5})", length in 0usize..11) {
            let text = text.as_bytes();
            let at = text.len().saturating_sub(length);
            if let Some(number) = parse_short(text, at, text.len()) {
                let expected = parse_plain(text, at).map(|(number, end)| (number.to_bits(), end));
                prop_assert_eq!(Some((number.to_bits(), text.len())), expected);
            } else if let Ok(plain) = std::str::from_utf8(&text[at..]) {
                let digits = plain.strip_prefix('-').unwrap_or(plain);
                let is_short = is_decimal(digits.as_bytes()) && digits.len() <= 8 && text.len() >= 8;
                prop_assert!(!is_short, "{:?} is a short number", plain);
            }
        }

        #[test]
        fn plain_numbers_end_with_their_digits(number in "-?([0-9]{1,9}(\\.[0-9]{0,6})?|\\.[0-9]{1,9})", behind in "([|:e\\x7f-\u{ff}\\x00-\\x1f][ -~\\x80-\u{ff}]{0,12})?", at in 0usize..3) {
            let text = format!("{}{number}{behind}", &"abc"[..at]);
            let found = parse_plain(text.as_bytes(), at).map(|(value, end)| (value.to_bits(), end));
            let value: f64 = number.parse().unwrap();
            prop_assert_eq!(found, Some((value.to_bits(), at + number.len())));
        }

        #[test]
        fn any_bytes_are_harmless(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            let _ = parse_number(&bytes);
            let _ = parse_integer(&bytes);
        }
    }
}
