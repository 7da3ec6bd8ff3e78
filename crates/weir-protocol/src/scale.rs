//! The float that is nearest to `significand * 10^exponent`: one or two multiplications by a table's power of five (Lemire, "Number parsing at
//! a gigabyte per second", 2021).

/// The powers of ten beyond which every product of 64 bits is zero or overflows.
const EXPONENT_MIN: i64 = -342;
const EXPONENT_MAX: i64 = 308;
const POWERS: usize = (EXPONENT_MAX - EXPONENT_MIN + 1) as usize;

/// The first 128 bits of each power of five, the highest one set.
static POWERS_OF_FIVE: [PowerOfFive; POWERS] = powers_of_five();

#[derive(Clone, Copy)]
struct PowerOfFive {
    high: u64,
    low: u64,
}

/// Powers of five from here on are rounded up, smaller ones down, as all positive ones: the article proves its bounds for these.
const ROUNDED_UP_FROM: i64 = -27;

/// Bits of a float's significand that it stores.
const STORED_BITS: u32 = 52;
const EXPONENT_BIAS: i64 = 1023;
const INFINITY: u64 = 0x7ff << STORED_BITS;

/// `None`: the result is smaller than any normal float, larger than any float, or undecided.
#[inline]
pub(crate) fn scale(significand: u64, exponent: i64) -> Option<f64> {
    if exponent == 0 {
        return Some(significand as f64);
    }
    if significand == 0 {
        return Some(0.0);
    }
    let power = POWERS_OF_FIVE.get(usize::try_from(exponent - EXPONENT_MIN).ok()?)?;
    let zeros = significand.leading_zeros();
    let normal = significand << zeros;
    let mut product = u128::from(normal) * u128::from(power.high);
    if (product >> 64) as u64 & 0x1ff == 0x1ff {
        // The rest of the power could carry into the bits that are kept.
        product += (u128::from(normal) * u128::from(power.low)) >> 64;
    }
    let (high, low) = ((product >> 64) as u64, product as u64);
    if low == u64::MAX && !(-27..=55).contains(&exponent) {
        return None;
    }
    let upper = (high >> 63) as u32;
    // One bit more than a float has, to round by.
    let shift = upper + 64 - STORED_BITS - 3;
    let mut kept = high >> shift;
    let is_half = low <= 1 && (-4..=23).contains(&exponent) && kept & 3 == 1 && kept << shift == high;
    if is_half {
        // To the even neighbour, which is below.
        kept -= 1;
    }
    let rounded = (kept + (kept & 1)) >> 1;
    let power_of_two =
        ((exponent * 217_706) >> 16) + 63 + i64::from(upper) - i64::from(zeros) + EXPONENT_BIAS;
    if power_of_two <= 0 {
        return None;
    }
    // The leading bit of the significand raises the exponent by one, and by two where rounding reached the next power of two.
    let bits = rounded + ((power_of_two as u64 - 1) << STORED_BITS);
    (bits < INFINITY).then(|| f64::from_bits(bits))
}

/// Computed exactly, in words of 64 bits, the lowest first.
const fn powers_of_five() -> [PowerOfFive; POWERS] {
    let mut powers = [PowerOfFive { high: 0, low: 0 }; POWERS];
    let one = -EXPONENT_MIN as usize;
    let mut words = [0; 16];
    words[0] = 1;
    let mut at = one;
    while at < POWERS {
        powers[at] = leading_bits(&words);
        let (mut word, mut carry) = (0, 0);
        while word < words.len() {
            let product = words[word] as u128 * 5 + carry;
            words[word] = product as u64;
            carry = product >> 64;
            word += 1;
        }
        at += 1;
    }
    // A power of two divided by five again and again: what each division rounds down, all together round down once.
    let mut words = [0; 16];
    words[15] = 1 << 63;
    let mut at = one;
    while at > 0 {
        at -= 1;
        let (mut word, mut rest) = (words.len(), 0);
        while word > 0 {
            word -= 1;
            let dividend = rest << 64 | words[word] as u128;
            words[word] = (dividend / 5) as u64;
            rest = dividend % 5;
        }
        powers[at] = leading_bits(&words);
        if at as i64 + EXPONENT_MIN >= ROUNDED_UP_FROM {
            let (low, carry) = powers[at].low.overflowing_add(1);
            powers[at].low = low;
            powers[at].high += carry as u64;
        }
    }
    powers
}

const fn leading_bits(words: &[u64; 16]) -> PowerOfFive {
    let mut top = words.len() - 1;
    while words[top] == 0 {
        top -= 1;
    }
    let next = if top >= 1 { words[top - 1] } else { 0 };
    let last = if top >= 2 { words[top - 2] } else { 0 };
    let zeros = words[top].leading_zeros();
    let both = (words[top] as u128) << 64 | next as u128;
    // Two shifts, because one by 64 is not allowed.
    let bits = both << zeros | (last as u128) >> 1 >> (63 - zeros);
    PowerOfFive {
        high: (bits >> 64) as u64,
        low: bits as u64,
    }
}
