//! A column: the values of one series in the buckets of a segment, of which it may miss some.
//!
//! ```text
//! header: mode (3 bits), every bucket present (1 bit)
//! presence: one bit per bucket, unless every one is present
//! body by mode, the smallest:
//!   constant   the double
//!   offsets    exponent, width, smallest integer; each value's distance from it in `width` bits
//!   deltas     exponent, width, first integer, smallest difference; each difference's distance from that
//!   varints    exponent; each difference as an integer of variable length
//!   xor        Gorilla's coding of doubles that follow each other
//!   raw        doubles
//! ```

use super::bits::{BitReader, BitWriter, put_varint, take_varint, unzigzag, varint_len, zigzag};
use super::decimal;

/// Maximum buckets of a column: presence is one word.
pub const BUCKETS_MAX: usize = 64;

const ALL_PRESENT: u8 = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Mode {
    Constant,
    Offsets,
    Deltas,
    Varints,
    Xor,
    Raw,
}

impl Mode {
    fn of(header: u8) -> Mode {
        match header & 7 {
            0 => Mode::Constant,
            1 => Mode::Offsets,
            2 => Mode::Deltas,
            3 => Mode::Varints,
            4 => Mode::Xor,
            _ => Mode::Raw,
        }
    }
}

/// Reusable buffers for encoding.
#[derive(Debug, Default)]
pub struct Scratch {
    integers: Vec<i64>,
    xor: Vec<u8>,
}

/// Appends a column. Bit i of `presence` is set if bucket i of `buckets` has a value. `values` are the values present, in order.
pub fn encode(values: &[f64], presence: u64, buckets: usize, scratch: &mut Scratch, out: &mut Vec<u8>) {
    debug_assert_eq!(values.len(), presence.count_ones() as usize);
    let header = out.len();
    out.push(0);
    if presence == all(buckets) {
        out[header] = ALL_PRESENT;
    } else {
        out.extend_from_slice(&presence.to_le_bytes()[..buckets.div_ceil(8)]);
    }
    out[header] |= encode_body(values, scratch, out) as u8;
}

fn all(buckets: usize) -> u64 {
    u64::MAX.checked_shr(64 - buckets as u32).unwrap_or(0)
}

fn encode_body(values: &[f64], scratch: &mut Scratch, out: &mut Vec<u8>) -> Mode {
    if let Some(exponent) = decimal::integers(values, &mut scratch.integers)
        && !values.is_empty()
    {
        return encode_integers(&scratch.integers, exponent, out);
    }
    if values
        .windows(2)
        .all(|pair| pair[0].to_bits() == pair[1].to_bits())
    {
        out.extend(values.first().map(|v| v.to_le_bytes()).unwrap_or_default());
        return Mode::Constant;
    }
    scratch.xor.clear();
    encode_xor(values, &mut scratch.xor);
    if scratch.xor.len() < 8 * values.len() {
        out.extend_from_slice(&scratch.xor);
        return Mode::Xor;
    }
    out.extend(values.iter().flat_map(|v| v.to_le_bytes()));
    Mode::Raw
}

/// The range of a series of integers, and the bits of any distance from the smallest.
#[derive(Clone, Copy)]
struct Range {
    min: i64,
    width: u32,
}

impl Range {
    fn of(integers: impl Iterator<Item = i64>) -> Range {
        let (min, max) = integers.fold((i64::MAX, i64::MIN), |(min, max), v| (min.min(v), max.max(v)));
        if min > max {
            return Range { min: 0, width: 0 };
        }
        Range {
            min,
            width: 64 - (max - min).leading_zeros(),
        }
    }

    fn bytes(self, count: usize) -> usize {
        varint_len(zigzag(self.min)) + (count * self.width as usize).div_ceil(8)
    }
}

fn differences(integers: &[i64]) -> impl Iterator<Item = i64> + Clone + '_ {
    integers.windows(2).map(|pair| pair[1] - pair[0])
}

// The integers are below 2^53, so the difference of two differences cannot overflow.
fn encode_integers(integers: &[i64], exponent: u8, out: &mut Vec<u8>) -> Mode {
    let first = varint_len(zigzag(integers[0]));
    let offsets = Range::of(integers.iter().copied());
    let deltas = Range::of(differences(integers));
    let varints = first
        + differences(integers)
            .map(|delta| varint_len(zigzag(delta)))
            .sum::<usize>();
    let by_offset = 1 + offsets.bytes(integers.len());
    let by_delta = 1 + first + deltas.bytes(integers.len() - 1);
    out.push(exponent);
    if varints < by_offset.min(by_delta) {
        put_varint(out, zigzag(integers[0]));
        differences(integers).for_each(|delta| put_varint(out, zigzag(delta)));
        Mode::Varints
    } else if by_offset <= by_delta {
        put_range(offsets, integers.iter().copied(), out);
        Mode::Offsets
    } else {
        put_varint(out, zigzag(integers[0]));
        put_range(deltas, differences(integers), out);
        Mode::Deltas
    }
}

fn put_range(range: Range, integers: impl Iterator<Item = i64>, out: &mut Vec<u8>) {
    out.push(range.width as u8);
    put_varint(out, zigzag(range.min));
    let mut bits = BitWriter::new(out);
    integers.for_each(|v| bits.put((v - range.min) as u64, range.width));
    bits.finish();
}

/// Equal bits before and after the part in which two doubles differ.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Place {
    leading: u32,
    trailing: u32,
}

impl Place {
    fn width(self) -> u32 {
        64 - self.leading - self.trailing
    }
}

fn encode_xor(values: &[f64], out: &mut Vec<u8>) {
    let mut bits = BitWriter::new(out);
    let mut previous = values[0].to_bits();
    bits.put(previous, 64);
    let mut place: Option<Place> = None;
    for v in &values[1..] {
        let difference = v.to_bits() ^ previous;
        previous = v.to_bits();
        if difference == 0 {
            bits.put(0, 1);
            continue;
        }
        let own = Place {
            leading: difference.leading_zeros().min(31),
            trailing: difference.trailing_zeros(),
        };
        match place {
            Some(kept) if kept.leading <= own.leading && kept.trailing <= own.trailing => {
                bits.put(0b01, 2);
                bits.put(difference >> kept.trailing, kept.width());
            }
            _ => {
                bits.put(0b11, 2);
                bits.put(u64::from(own.leading), 5);
                bits.put(u64::from(own.width() - 1), 6);
                bits.put(difference >> own.trailing, own.width());
                place = Some(own);
            }
        }
    }
    bits.finish();
}

/// Calls `point` with the bucket number and value of each point of a column.
pub fn decode(bytes: &[u8], buckets: usize, mut point: impl FnMut(usize, f64)) {
    let Some((&header, mut bytes)) = bytes.split_first() else {
        return;
    };
    let presence = presence(header, &mut bytes, buckets);
    let count = presence.count_ones() as usize;
    if count == 0 {
        return;
    }
    let mut rest = presence;
    decode_body(Mode::of(header), bytes, count, |v| {
        point(rest.trailing_zeros() as usize, v);
        rest &= rest.wrapping_sub(1);
    });
}

fn presence(header: u8, bytes: &mut &[u8], buckets: usize) -> u64 {
    if header & ALL_PRESENT != 0 {
        return all(buckets);
    }
    let len = buckets.div_ceil(8).min(bytes.len());
    let (mask, rest) = bytes.split_at(len);
    *bytes = rest;
    let mut word = [0; 8];
    word[..len].copy_from_slice(mask);
    u64::from_le_bytes(word)
}

fn decode_body(mode: Mode, bytes: &[u8], count: usize, value: impl FnMut(f64)) {
    match mode {
        Mode::Constant => {
            let v = double(bytes);
            std::iter::repeat_n(v, count).for_each(value);
        }
        Mode::Raw => bytes.chunks(8).take(count).map(double).for_each(value),
        Mode::Xor => decode_xor(bytes, count, value),
        Mode::Offsets | Mode::Deltas | Mode::Varints => decode_integers(mode, bytes, count, value),
    }
}

fn double(bytes: &[u8]) -> f64 {
    bytes
        .first_chunk()
        .map_or(0.0, |chunk| f64::from_le_bytes(*chunk))
}

fn decode_integers(mode: Mode, bytes: &[u8], count: usize, mut value: impl FnMut(f64)) {
    let Some((&exponent, mut bytes)) = bytes.split_first() else {
        return;
    };
    if mode == Mode::Offsets {
        let (min, width, mut bits) = take_range(&mut bytes);
        (0..count).for_each(|_| {
            value(decimal::value(
                min.wrapping_add(bits.take(width) as i64),
                exponent,
            ))
        });
        return;
    }
    let mut integer = unzigzag(take_varint(&mut bytes));
    value(decimal::value(integer, exponent));
    let mut follow = |delta: i64| {
        integer = integer.wrapping_add(delta);
        value(decimal::value(integer, exponent));
    };
    if mode == Mode::Varints {
        (1..count).for_each(|_| follow(unzigzag(take_varint(&mut bytes))));
    } else {
        let (min, width, mut bits) = take_range(&mut bytes);
        (1..count).for_each(|_| follow(min.wrapping_add(bits.take(width) as i64)));
    }
}

fn take_range<'a>(bytes: &mut &'a [u8]) -> (i64, u32, BitReader<'a>) {
    let width = bytes.first().map_or(0, |&width| u32::from(width).min(64));
    *bytes = bytes.get(1..).unwrap_or_default();
    let min = unzigzag(take_varint(bytes));
    (min, width, BitReader::new(bytes))
}

fn decode_xor(bytes: &[u8], count: usize, mut value: impl FnMut(f64)) {
    let mut bits = BitReader::new(bytes);
    let mut current = bits.take(64);
    value(f64::from_bits(current));
    let mut place = Place {
        leading: 0,
        trailing: 0,
    };
    for _ in 1..count {
        if bits.take(1) == 1 {
            if bits.take(1) == 1 {
                let leading = bits.take(5) as u32;
                let width = (bits.take(6) as u32 + 1).min(64 - leading);
                place = Place {
                    leading,
                    trailing: 64 - leading - width,
                };
            }
            current ^= bits.take(place.width()) << place.trailing;
        }
        value(f64::from_bits(current));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn round_trip(points: &[Option<f64>]) -> usize {
        let values: Vec<f64> = points.iter().flatten().copied().collect();
        let presence = points
            .iter()
            .enumerate()
            .fold(0, |mask, (at, point)| mask | u64::from(point.is_some()) << at);
        let mut bytes = Vec::new();
        encode(
            &values,
            presence,
            points.len(),
            &mut Scratch::default(),
            &mut bytes,
        );
        let mut found = vec![None; points.len()];
        decode(&bytes, points.len(), |at, v| found[at] = Some(v));
        let bits = |points: &[Option<f64>]| points.iter().map(|p| p.map(f64::to_bits)).collect::<Vec<_>>();
        assert_eq!(bits(&found), bits(points));
        bytes.len()
    }

    #[test]
    fn common_columns_are_small() {
        let of = |value: &dyn Fn(usize) -> f64| -> Vec<Option<f64>> {
            (0..60).map(|at| Some(value(at))).collect()
        };
        // Bytes per column of 60 points.
        for (what, column, bytes_max) in [
            ("zeros", of(&|_| 0.0), 4),
            ("constant double", of(&|_| std::f64::consts::PI), 9),
            (
                "counter of 40 to 60",
                of(&|at| 40.0 + (at * 7919 % 20) as f64),
                42,
            ),
            ("hundredths", of(&|at| (at * 7919 % 1000) as f64 / 100.0), 80),
            (
                "rising by about 1000",
                of(&|at| (at * 1000 + at * 7919 % 100) as f64),
                65,
            ),
            (
                "one in eight is large",
                of(&|at| if at % 8 == 0 { 1e9 } else { 3.0 }),
                128,
            ),
        ] {
            let bytes = round_trip(&column);
            assert!(bytes <= bytes_max, "{what}: {bytes} of {bytes_max}");
        }
    }

    #[test]
    fn odd_values_survive_bit_by_bit() {
        round_trip(&[]);
        round_trip(&[None]);
        round_trip(&[Some(f64::NAN), Some(-0.0), None, Some(0.0), Some(f64::INFINITY)]);
        round_trip(&[
            Some(f64::MAX),
            Some(f64::MIN),
            Some(f64::MIN_POSITIVE),
            Some(5e-324),
        ]);
        round_trip(&[
            Some(9_007_199_254_740_991.0),
            Some(-9_007_199_254_740_991.0),
            Some(9_007_199_254_740_993.0),
        ]);
        round_trip(&[Some(9_007_199_254_740_991.0), Some(0.1)]);
    }

    fn number() -> impl Strategy<Value = f64> {
        prop_oneof![
            (-1000i64..1000).prop_map(|v| v as f64),
            (-100_000i64..100_000).prop_map(|v| v as f64 / 100.0),
            (0i64..1 << 53).prop_map(|v| v as f64),
            any::<f64>(),
            Just(0.0),
        ]
    }

    proptest! {
        #[test]
        fn any_column_survives_a_round_trip(points in proptest::collection::vec(proptest::option::weighted(0.8, number()), 0..=64)) {
            round_trip(&points);
        }

        #[test]
        fn any_bytes_are_harmless(bytes in proptest::collection::vec(any::<u8>(), 0..100), buckets in 0usize..=64) {
            let mut points = 0;
            decode(&bytes, buckets, |at, _| {
                assert!(at < 64);
                points += 1;
            });
            prop_assert!(points <= 65);
        }
    }
}
