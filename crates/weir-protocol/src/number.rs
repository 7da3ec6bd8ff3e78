//! Decimal numbers as the protocol defines them: exact, and quick for all that clients write.
//!
//! Three readers that give the same bits: [`parse_short`] for most of real traffic, [`parse_long`] for most other numbers whose end is known, and
//! [`read_number`] for the whole grammar.

use crate::scale::scale;
use crate::sixteen::Sixteen;

/// Significant digits that fit into 64 bits, whichever they are.
const DIGITS_MAX: usize = 19;

/// Parses `[+-]? ( digits [ "." digits? ] | "." digits ) ( [eE] [+-]? digits )?`, or one of `nan`, `inf`, `infinity`
/// in any case with an optional sign (not on `nan`). Returns `None` for anything else and for a magnitude that
/// overflows; underflow gives zero or a denormal. The result is the nearest float, or the even one of two that are as near.
#[inline]
pub fn parse_number(text: &[u8]) -> Option<f64> {
    match read_number(text, 0) {
        Some((number, end)) if end == text.len() => Some(number),
        _ => parse_special(text),
    }
}

#[cold]
fn parse_special(text: &[u8]) -> Option<f64> {
    let unsigned = text
        .strip_prefix(b"-")
        .or_else(|| text.strip_prefix(b"+"))
        .unwrap_or(text);
    let signed = unsigned.len() != text.len();
    if unsigned.eq_ignore_ascii_case(b"nan") {
        return (!signed).then_some(f64::NAN);
    }
    let is_infinite = unsigned.eq_ignore_ascii_case(b"inf") || unsigned.eq_ignore_ascii_case(b"infinity");
    let infinity = if text.first() == Some(&b'-') {
        f64::NEG_INFINITY
    } else {
        f64::INFINITY
    };
    is_infinite.then_some(infinity)
}

/// Reads a finite number from `text[at..]`, as far as its grammar allows. Returns it and the place behind it.
#[inline(never)]
pub(crate) fn read_number(text: &[u8], at: usize) -> Option<(f64, usize)> {
    let sign = *text.get(at)?;
    let first = at + usize::from(matches!(sign, b'-' | b'+'));
    let (mut significand, mut end) = digit_run(text, first, 0);
    let mut digits = end - first;
    let mut exponent = 0;
    if text.get(end) == Some(&b'.') {
        let decimals = end + 1;
        (significand, end) = digit_run(text, decimals, significand);
        digits += end - decimals;
        exponent = -((end - decimals) as i64);
    }
    if digits == 0 {
        return None;
    }
    let fits = digits <= DIGITS_MAX || digits - leading_zeros(&text[first..end]) <= DIGITS_MAX;
    if matches!(text.get(end), Some(b'e' | b'E')) {
        let (written, behind) = read_exponent(text, end + 1)?;
        exponent = written.saturating_add(exponent);
        end = behind;
    }
    let near = if fits { scale(significand, exponent) } else { None };
    let magnitude = match near {
        Some(magnitude) => magnitude,
        None => parse_rare(&text[first..end])?,
    };
    Some((with_sign(magnitude, sign == b'-'), end))
}

/// Zeros in front of the first other digit.
#[cold]
fn leading_zeros(number: &[u8]) -> usize {
    let before = number.iter().take_while(|byte| matches!(byte, b'0' | b'.'));
    before.filter(|&&byte| byte == b'0').count()
}

/// More than 19 significant digits, denormal numbers, and what overflows.
#[cold]
fn parse_rare(decimal: &[u8]) -> Option<f64> {
    let number: f64 = std::str::from_utf8(decimal).ok()?.parse().ok()?;
    number.is_finite().then_some(number)
}

/// Reads `[+-]? digits` from `text[at..]`; beyond 64 bits the largest value stands for all.
fn read_exponent(text: &[u8], at: usize) -> Option<(i64, usize)> {
    let sign = *text.get(at)?;
    let first = at + usize::from(matches!(sign, b'-' | b'+'));
    let mut exponent = 0i64;
    let mut end = first;
    while let Some(digit) = digit_at(text, end) {
        exponent = exponent.saturating_mul(10).saturating_add(digit as i64);
        end += 1;
    }
    let signed = if sign == b'-' { -exponent } else { exponent };
    (end > first).then_some((signed, end))
}

#[inline(always)]
fn with_sign(magnitude: f64, negative: bool) -> f64 {
    f64::from_bits(magnitude.to_bits() | u64::from(negative) << 63)
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
    let bytes = (word ^ ZEROS) >> before << before;
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

/// Characters in front of a number's end that [`parse_long`] looks at.
const WINDOW: usize = 24;

/// Digits of the longest integer of 64 bits, and characters of the longest number without an exponent that [`parse_usual`] reads.
const LENGTH_MAX: usize = 20;

/// The number that is all of `text[at..end]`, as [`read_number`] gives it.
#[inline(never)]
pub(crate) fn parse_long(text: &[u8], at: usize, end: usize) -> Option<f64> {
    let negative = text.get(at) == Some(&b'-');
    match parse_usual(text, at + usize::from(negative), end) {
        Some(magnitude) => Some(with_sign(magnitude, negative)),
        None => parse_unusual(text, at, end),
    }
}

/// Numbers that [`parse_usual`] does not read.
#[inline(never)]
fn parse_unusual(text: &[u8], at: usize, end: usize) -> Option<f64> {
    let (number, behind) = read_number(text, at)?;
    (behind == end).then_some(number)
}

/// The magnitude of a number whose digits fit into 64 bits. `None` for any other text, and where the window begins before it.
#[inline(always)]
fn parse_usual(text: &[u8], at: usize, end: usize) -> Option<f64> {
    let window: &[u8; WINDOW] = text.get(..end)?.last_chunk()?;
    let length = end.wrapping_sub(at);
    // Most printers write two digits of an exponent: its letter is known without a look at the others.
    let has_exponent = window[WINDOW - 4] | 0x20 == b'e';
    if has_exponent || length.wrapping_sub(1) >= LENGTH_MAX {
        return parse_with_exponent(text, at, end);
    }
    let digits = Sixteen::of(window, 0).digits() | Sixteen::of(window, 8).digits() << 8;
    let others = (!digits & ((1 << WINDOW) - 1)) >> (WINDOW - length);
    // A source sends integers or floats, so a processor predicts this branch.
    if others != 0 {
        return parse_with_others(text, (at, end), window, others);
    }
    let low = Sixteen::of(window, 8).relative().and(Sixteen::last(length));
    let top = last_of_four(four(window, 4) ^ ZEROS_OF_FOUR, length);
    // Half the time of a conversion from all 64 bits.
    let integer = joined(top, low)?;
    Some(match i64::try_from(integer) {
        Ok(integer) => integer as f64,
        Err(_) => integer as f64,
    })
}

/// The same for a number with `others`, characters that are no digits: one bit each, from its start.
#[inline(never)]
fn parse_with_others(
    text: &[u8],
    (at, end): (usize, usize),
    window: &[u8; WINDOW],
    others: u64,
) -> Option<f64> {
    let length = end - at;
    let point = others.trailing_zeros() as usize;
    if others & (others - 1) != 0 || text.get(at + point) != Some(&b'.') {
        return parse_with_exponent(text, at, end);
    }
    let digits = length - 1;
    let decimals = digits - point;
    if digits == 0 {
        return None;
    }
    // The number of digits and the place of the point differ from message to message, so no branch asks for them. Those in front of the point
    // move one further, over it.
    let behind = Sixteen::last(decimals);
    let low = Sixteen::of(window, 8)
        .or_where_not(Sixteen::of(window, 7), behind)
        .relative()
        .and(Sixteen::last(digits));
    let moved = four(window, 3) & !last_of_four(u64::from(u32::MAX), decimals);
    let top = last_of_four(four(window, 4), decimals) | moved;
    let top = last_of_four(top ^ ZEROS_OF_FOUR, digits);
    scale(joined(top, low)?, -(decimals as i64))
}

/// The same for a number with an exponent. `None` for any other.
#[inline(always)]
fn parse_with_exponent(text: &[u8], at: usize, end: usize) -> Option<f64> {
    let last = text.get(..end)?.last_chunk()?;
    let (exponent, length) = short_exponent(*last)?;
    let (significand, decimals) = short_fraction(text, at, end.checked_sub(length)?)?;
    scale(significand, exponent - decimals)
}

/// The exponent that ends with these characters, and its length with the letter: one or two digits, and perhaps a sign. `None` for any other.
#[inline(always)]
fn short_exponent(last: [u8; 4]) -> Option<(i64, usize)> {
    // A source writes one of these forms, so a processor predicts the branches.
    let (sign, tens, ones, length) = match last {
        [b'e' | b'E', sign @ (b'+' | b'-'), tens, ones] => (sign, tens, ones, 4),
        [_, b'e' | b'E', sign @ (b'+' | b'-'), ones] => (sign, b'0', ones, 3),
        [_, b'e' | b'E', tens, ones] => (b'+', tens, ones, 3),
        [_, _, b'e' | b'E', ones] => (b'+', b'0', ones, 2),
        _ => return None,
    };
    let (tens, ones) = (tens ^ b'0', ones ^ b'0');
    if tens > 9 || ones > 9 {
        return None;
    }
    let number = i64::from(10 * tens + ones);
    Some((if sign == b'-' { -number } else { number }, length))
}

/// The digits of `text[at..end]` as an integer, and how many of them are decimals: in front of a point one digit, as all printers write numbers
/// with an exponent, or no point; at most 16 digits besides. `None` for any other.
#[inline(always)]
fn short_fraction(text: &[u8], at: usize, end: usize) -> Option<(u64, i64)> {
    let window: &[u8; 16] = text.get(..end)?.last_chunk()?;
    let has_point = end > at + 1 && text[at + 1] == b'.';
    let (lead, first) = if has_point {
        (text[at] ^ b'0', at + 2)
    } else {
        (0, at)
    };
    let length = end.wrapping_sub(first);
    if length > 16 || end <= at || lead >= 10 {
        return None;
    }
    let digits = Sixteen::of(window, 0);
    if (!digits.digits() & 0xffff) >> (16 - length) != 0 {
        return None;
    }
    let rest = digits.relative().and(Sixteen::last(length)).number();
    let decimals = if has_point { length } else { 0 };
    Some((u64::from(lead) * LONG_TENS[length] + rest, decimals as i64))
}

/// The integer of up to 20 digits relative to `0`: four, and sixteen. `None` if it has more than 64 bits.
#[inline(always)]
fn joined(top: u64, low: Sixteen) -> Option<u64> {
    join_four(top as u32)
        .checked_mul(LONG_TENS[16])?
        .checked_add(low.number())
}

/// Four characters of a window.
#[inline(always)]
fn four(window: &[u8; WINDOW], at: usize) -> u64 {
    let characters = window[at..]
        .first_chunk()
        .map_or(0, |four| u32::from_le_bytes(*four));
    u64::from(characters)
}

/// The first four of the last 20 characters, without those in front of the last `count`.
#[inline(always)]
fn last_of_four(four: u64, count: usize) -> u64 {
    let others = 8 * (20 - count.max(16)) as u32;
    four >> others << others
}

/// Eight digits zero, and four.
const ZEROS: u64 = 0x3030_3030_3030_3030;
const ZEROS_OF_FOUR: u64 = 0x3030_3030;

/// Powers of ten for the digits of one word.
const TENS: [u64; 8] = [1, 10, 100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000];

/// Powers of ten in front of the digits of two words.
const LONG_TENS: [u64; 17] = {
    let mut powers = [1; 17];
    let mut at = 1;
    while at < powers.len() {
        powers[at] = 10 * powers[at - 1];
        at += 1;
    }
    powers
};

/// The high bit of each byte, up to the first that is no digit and a point behind digits, that is no digit. Bytes are relative
/// to `0`.
#[inline(always)]
fn non_digits(bytes: u64) -> u64 {
    (bytes | bytes.wrapping_add(0x7676_7676_7676_7676)) & 0x8080_8080_8080_8080
}

/// The number that the first `count` bytes, at most seven, are the digits of.
#[inline(always)]
fn join_digits(bytes: u64, count: u32) -> u64 {
    // Right-aligned, zeros in front; two shifts, because one by 64 is not allowed.
    join_word(bytes << 8 << (56 - 8 * count))
}

/// The number that eight bytes are the digits of, the first one in the lowest byte.
#[inline(always)]
pub(crate) fn join_word(digits: u64) -> u64 {
    // Neighbours pair up: ones and tens, then hundreds, then all eight (a multiplication for each level).
    let pairs = digits.wrapping_mul(10).wrapping_add(digits >> 8) & 0x00ff_00ff_00ff_00ff;
    let fours = pairs.wrapping_mul(100).wrapping_add(pairs >> 16) & 0x0000_ffff_0000_ffff;
    fours.wrapping_mul(10_000).wrapping_add(fours >> 32) & 0xffff_ffff
}

/// As [`join_word`], of four bytes.
#[inline(always)]
fn join_four(digits: u32) -> u64 {
    let pairs = digits.wrapping_mul(10).wrapping_add(digits >> 8) & 0x00ff_00ff;
    u64::from(pairs.wrapping_mul(100).wrapping_add(pairs >> 16) & 0xffff)
}

/// Appends the digits from `text[at..]` on to `number`; returns the result and the place behind them. More than 19 digits in all
/// wrap, which the caller rules out. Eight bytes at a time.
#[inline]
fn digit_run(text: &[u8], mut at: usize, mut number: u64) -> (u64, usize) {
    while let Some(eight) = text.get(at..).and_then(|rest| rest.first_chunk()) {
        let bytes = u64::from_le_bytes(*eight) ^ ZEROS;
        let count = non_digits(bytes).trailing_zeros() / 8;
        if count < 8 {
            let joined = join_digits(bytes, count);
            number = number.wrapping_mul(TENS[count as usize]).wrapping_add(joined);
            return (number, at + count as usize);
        }
        number = number.wrapping_mul(100_000_000).wrapping_add(join_word(bytes));
        at += 8;
    }
    digit_run_plain(text, at, number)
}

/// The plain form, near the end of the text.
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

    /// `( digits [ "." digits? ] | "." digits ) ( [eE] [+-]? digits )?`
    fn is_decimal(text: &str) -> bool {
        let (mantissa, exponent) = match text.split_once(['e', 'E']) {
            Some((mantissa, exponent)) => (mantissa, Some(exponent)),
            None => (text, None),
        };
        let are_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        let (whole, decimals) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let has_digits = !(whole.is_empty() && decimals.is_empty());
        let exponent = exponent.is_none_or(|text| {
            let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
            !digits.is_empty() && are_digits(digits)
        });
        has_digits && are_digits(whole) && are_digits(decimals) && exponent
    }

    /// The standard library's opinion, within the grammar.
    fn expected(text: &str) -> Option<u64> {
        let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
        let number = is_decimal(unsigned).then(|| text.parse::<f64>().expect("a number"))?;
        number.is_finite().then_some(number.to_bits())
    }

    /// All readers give the bits that are expected, whatever is around the number.
    fn check_all(text: &str) {
        let expected = expected(text);
        let bits = |number: Option<f64>| number.map(f64::to_bits);
        assert_eq!(bits(parse_number(text.as_bytes())), expected, "{text:?}");
        for (before, behind) in [
            ("", ""),
            ("a:", "|c"),
            ("page.views.of.the.shop:", "|c|#env:prod"),
            ("e9:", ":1"),
        ] {
            let line = format!("{before}{text}{behind}");
            let (at, end) = (before.len(), before.len() + text.len());
            assert_eq!(
                bits(parse_long(line.as_bytes(), at, end)),
                expected,
                "{text:?} in {line:?}"
            );
            if let Some(number) = parse_short(line.as_bytes(), at, end) {
                assert_eq!(Some(number.to_bits()), expected, "{text:?} in {line:?}");
            }
            let read = read_number(line.as_bytes(), at);
            match read {
                Some((number, behind)) if behind == end => {
                    assert_eq!(Some(number.to_bits()), expected, "{text:?} in {line:?}")
                }
                _ => assert_eq!(expected, None, "{text:?} in {line:?} gave {read:?}"),
            }
        }
    }

    struct Random(u64);

    impl Random {
        fn bits(&mut self) -> u64 {
            // SplitMix64.
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = self.0;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ (z >> 31)
        }

        fn below(&mut self, bound: u64) -> u64 {
            self.bits() % bound
        }

        /// Up to this many digits.
        fn digits(&mut self, most: u64) -> String {
            let count = self.below(most + 1);
            (0..count)
                .map(|_| char::from(b'0' + self.below(10) as u8))
                .collect()
        }

        fn sign(&mut self) -> &'static str {
            ["", "", "-", "+"][self.below(4) as usize]
        }

        /// A number as programs write it, as nobody writes it, or nearly one.
        fn text(&mut self) -> String {
            let float = loop {
                let float = f64::from_bits(self.bits());
                if float.is_finite() {
                    break float;
                }
            };
            // Exponents that programs have, rather than any.
            let usual = (self.bits() >> 11) as f64 / 10f64.powi(self.below(36) as i32);
            match self.below(12) {
                0 => format!("{float:e}"),
                1 => format!("{float:.16e}"),
                2 => format!("{usual}"),
                3 => format!("{usual:.*e}", self.below(19) as usize),
                4 => format!("{}", self.bits() as i64 >> self.below(64)),
                5 => format!("{}", self.bits()),
                6 => format!(
                    "{}e{}",
                    self.bits() >> self.below(64),
                    self.below(700) as i64 - 370
                ),
                // Exactly between two floats, then one digit below or above.
                7 => {
                    let odd = u128::from(self.bits() >> 11 | 1 << 52) * 2 + 1;
                    format!("{}", (odd << self.below(70)) + u128::from(self.below(3)) - 1)
                }
                8 => {
                    let even_or_odd = self.bits() >> 12 | 1 << 52;
                    format!(
                        "{even_or_odd}.5{}",
                        ["", "0", "1", "0000000001"][self.below(4) as usize]
                    )
                }
                9 => format!(
                    "{}0.{}{}",
                    self.sign(),
                    "0".repeat(self.below(30) as usize),
                    self.digits(21)
                ),
                10 => {
                    let point = ["", "."][self.below(2) as usize];
                    format!("{}{}{point}{}", self.sign(), self.digits(21), self.digits(21))
                }
                _ => {
                    let mut text = format!(
                        "{}{}.{}e{}",
                        self.sign(),
                        self.digits(9),
                        self.digits(9),
                        self.digits(3)
                    )
                    .into_bytes();
                    let at = self.below(text.len() as u64) as usize;
                    text[at] = b"0:.eE+-|/a \x7f9"[self.below(13) as usize];
                    String::from_utf8(text).expect("ASCII")
                }
            }
        }
    }

    /// `WEIR_TEST_NUMBERS`: how many, instead of a few.
    #[test]
    #[allow(clippy::disallowed_methods, reason = "the test may be asked for more")]
    fn random_numbers_equal_the_standard_library_s() {
        let wanted = std::env::var("WEIR_TEST_NUMBERS");
        let count = wanted.map_or(if cfg!(miri) { 200 } else { 100_000 }, |text| {
            text.parse().expect("a count")
        });
        let mut random = Random(42);
        for _ in 0..count {
            check_all(&random.text());
        }
    }

    #[test]
    fn edges_equal_the_standard_library_s() {
        for text in [
            "0",
            "-0",
            "0.0",
            "-0e-999",
            "0e99999999999999999999",
            "1e-99999999999999999999",
            "4.9406564584124654e-324",
            "2.4703282292062327e-324",
            "2.4703282292062328e-324",
            "2.2250738585072011e-308",
            "2.2250738585072014e-308",
            "2.225073858507201136057409796709131975934819546351645648023426109724822222021076945516529523908135087914149158913039621106870086438694594645527657207407820621743379988141063267329253552286881372149012981122451451889849057222307285255133155755015914397476397983411801999323962548289017107081850690630666655994938275772572015763062690663332647565300009245888316433037779791869612049497390377829704905051080609940730262937128958950003583799967207254304360284078895771796150945516748243471030702609144621572289880258182545180325707018860872113128079512233426288368622321503775666622503982534335974568884423900265498198385487948292206894721689831099698365846814022854243330660339850886445804001034933970427567186443383770486037861622771738545623065874679014086723327636718751234567890123456789012345678901e-308",
            "1.7976931348623157e308",
            "1.7976931348623158e308",
            "1.7976931348623159e308",
            "9007199254740993",
            "9007199254740991.5",
            "18446744073709551615",
            "18446744073709551616",
            "9999999999999999999",
            "99999999999999999999",
            "00000000000000000000001",
            "0.30000000000000004",
            "12.345678901234567",
            "1e5",
            "1E5",
            "1.e5",
            ".5e1",
            "1e23",
            "8.5e22",
            "5e-27",
            "5e-28",
            "1e55",
            "1e56",
            "9223372036854775807",
            "-9223372036854775808",
            "123456789.12345678",
            ".",
            "e",
            "1e",
            "1e+",
            "1e5.0",
            "1.2.3",
            "--1",
            "1-",
            "1e5e5",
            // One digit in front of the point, and a digit more than there is room for behind it.
            "1.e5",
            "7.123456789012345e-07",
            "9.9999999999999999e+22",
            "1.23456789012345678e-10",
            "1.5e-99",
            "1.5e100",
            "1.5e-100",
            "1.5e+",
            "12.5e3",
            ".5e3",
            "x.5e3",
            "1.x5e3",
            "1.5e1x",
            "1234567890123456e5",
            "12345678901234567e5",
        ] {
            check_all(text);
            check_all(&format!("-{text}"));
        }
    }

    #[test]
    fn every_power_of_ten_equals_the_standard_library_s() {
        for exponent in -400..400 {
            for significand in [
                1u64,
                3,
                123_456_789,
                (1 << 53) - 1,
                (1 << 53) + 1,
                9_999_999_999_999_999_999,
            ] {
                check_all(&format!("{significand}e{exponent}"));
            }
        }
    }

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
            check_all(&text);
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
                let expected = read_number(text, at).map(|(number, end)| (number.to_bits(), end));
                prop_assert_eq!(Some((number.to_bits(), text.len())), expected);
            } else if let Ok(plain) = std::str::from_utf8(&text[at..]) {
                let digits = plain.strip_prefix('-').unwrap_or(plain);
                let is_short = is_decimal(digits) && digits.len() <= 8 && text.len() >= 8;
                prop_assert!(!is_short, "{:?} is a short number", plain);
            }
        }

        #[test]
        fn numbers_end_where_their_grammar_ends(number in "[+-]?([0-9]{1,19}(\\.[0-9]{0,6})?|\\.[0-9]{1,9})(e-?[0-9]{1,2})?", behind in "([|:\\x7f-\u{ff}\\x00-\\x1f][ -~\\x80-\u{ff}]{0,12})?", at in 0usize..3) {
            let text = format!("{}{number}{behind}", &"abc"[..at]);
            let found = read_number(text.as_bytes(), at).map(|(value, end)| (value.to_bits(), end));
            let value: f64 = number.parse().unwrap();
            prop_assert_eq!(found, Some((value.to_bits(), at + number.len())));
        }

        #[test]
        fn any_bytes_are_harmless(bytes in proptest::collection::vec(any::<u8>(), 0..40), at in 0usize..50, end in 0usize..50) {
            let _ = parse_number(&bytes);
            let _ = parse_integer(&bytes);
            let _ = parse_short(&bytes, at.min(end), end);
            let _ = parse_long(&bytes, at.min(end), end);
            let _ = read_number(&bytes, at);
        }
    }
}
