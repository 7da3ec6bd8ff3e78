//! Writes pieces, numbers and names of a message.

use crate::model::{Model, PAD, Piece};
use crate::profile::{FILLER, Value, ValueKind};
use crate::rng::mix;

/// Copies in steps of `STEP` bytes, at most `PAD`; both sides have this much padding. Faster than `memcpy` at these lengths, because there
/// is no call and no branch on the remainder. Mispredicted numbers of steps decide the cost, so a step is as long as most pieces of its
/// kind.
#[inline(always)]
pub(super) fn copy<const STEP: usize>(
    out: &mut [u8],
    at: usize,
    from: &[u8],
    off: usize,
    len: usize,
) -> usize {
    const { assert!(STEP <= PAD) };
    let mut done = 0;
    loop {
        let step: [u8; STEP] = from[off + done..off + done + STEP]
            .try_into()
            .expect("STEP bytes");
        out[at + done..at + done + STEP].copy_from_slice(&step);
        done += STEP;
        if done >= len {
            return at + len;
        }
    }
}

#[inline(always)]
pub(super) fn put(out: &mut [u8], at: usize, model: &Model, piece: Piece) -> usize {
    put_steps::<32>(out, at, model, piece)
}

#[inline(always)]
pub(super) fn put_steps<const STEP: usize>(out: &mut [u8], at: usize, model: &Model, piece: Piece) -> usize {
    copy::<STEP>(out, at, &model.arena, piece.off as usize, piece.len as usize)
}

pub(super) fn put_text(out: &mut [u8], at: usize, text: &[u8]) -> usize {
    out[at..at + text.len()].copy_from_slice(text);
    at + text.len()
}

/// The name of a filler with `extra` bytes more than the shortest.
pub fn filler_name(extra: u32) -> String {
    let (name, _) = FILLER.split_once(':').expect("a message");
    format!("{name}{}", "x".repeat(extra as usize))
}

pub(super) fn put_filler(out: &mut [u8], at: usize, extra: usize) -> usize {
    let (name, rest) = FILLER.split_at(FILLER.len() - ":1|c".len());
    let at = put_text(out, at, name.as_bytes());
    out[at..at + extra].fill(b'x');
    put_text(out, at + extra, rest.as_bytes())
}

pub(super) fn put_hex(out: &mut [u8], at: usize, value: u64, digits: usize) -> usize {
    for index in 0..digits {
        let nibble = (value >> (4 * (digits - 1 - index))) & 15;
        out[at + index] = b"0123456789abcdef"[nibble as usize];
    }
    at + digits
}

pub(super) fn put_decimal(out: &mut [u8], at: usize, value: i64) -> usize {
    let mut digits = [0u8; 21];
    let mut start = digits.len();
    let mut rest = value.unsigned_abs();
    loop {
        start -= 1;
        digits[start] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    if value < 0 {
        start -= 1;
        digits[start] = b'-';
    }
    put_text(out, at, &digits[start..])
}

pub(super) fn put_serial(out: &mut [u8], at: usize, serial: u64) {
    let mut rest = serial;
    for digit in out[at..at + SERIAL_DIGITS].iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
}

/// Number in the instance tag of a group of contexts in one generation.
pub fn instance(seed: u64, group: u64, generation: u32) -> u64 {
    mix(mix(seed, group), u64::from(generation)) >> 24
}

/// Digits of a number that makes packets distinct.
pub const SERIAL_DIGITS: usize = 12;
const SERIALS: i128 = 1_000_000_000_000;

/// The first value of a packet of an SMP shape: the drawn value with its last twelve digits replaced by the packet's number. Such packets
/// often hold a single message, and would otherwise repeat.
pub fn renumbered(drawn: i128, serial: u64, value: &Value) -> i128 {
    let ValueKind::Uniform { min, max } = value.kind else {
        return drawn;
    };
    let serial = i128::from(serial) % SERIALS;
    let (sign, leading) = (if drawn < 0 { -1 } else { 1 }, drawn.abs() / SERIALS);
    let number = sign * (leading * SERIALS + serial);
    // Another leading digit keeps the value in its range.
    if number > i128::from(max) || number < i128::from(min) {
        sign * ((leading - 1) * SERIALS + serial)
    } else {
        number
    }
}

/// Whether the range of values has room for a number.
pub fn numbers_packets(value: &Value) -> bool {
    match value.kind {
        ValueKind::Uniform { min, max } => i128::from(min) <= -4 * SERIALS && i128::from(max) >= 4 * SERIALS,
        _ => false,
    }
}

/// The integer part of the first value in a text, and the length of that value.
pub fn first_value(text: &[u8]) -> (i128, usize) {
    let len = text
        .iter()
        .position(|byte| matches!(byte, b':' | b'|'))
        .unwrap_or(text.len());
    let negative = text.first() == Some(&b'-');
    let whole = text[usize::from(negative)..len]
        .iter()
        .take_while(|byte| byte.is_ascii_digit())
        .fold(0i128, |value, byte| value * 10 + i128::from(byte - b'0'));
    (if negative { -whole } else { whole }, len)
}

/// The set member that makes its packet distinct.
pub fn serial_member(serial: u64) -> String {
    format!("n{serial}")
}

/// Digits of the instance and flood tags.
pub(super) const INSTANCE_DIGITS: usize = 10;
pub(super) const FRESH_DIGITS: usize = 12;

/// The instance tag in the form that `tags` writes.
pub fn instance_tag(seed: u64, group: u64, generation: u32) -> String {
    format!("instance:{:010x}", instance(seed, group, generation))
}

/// The tag of a context that occurs once.
pub fn fresh_tag(fresh: u64) -> String {
    format!("fresh:{fresh:012x}")
}
