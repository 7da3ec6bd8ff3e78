//! A sketch in a few bytes: count, sum, extremes, and the distances between the keys of its bins.

use weir_sketch::{Bin, Sketch};

use super::bits::{put_varint, take_varint, unzigzag, zigzag};
use super::decimal;

/// Flags for parts that are omitted or written as an integer.
const ONE_VALUE: u8 = 1;
const DECIMAL: u8 = 2;

pub fn encode(sketch: &Sketch, out: &mut Vec<u8>) {
    put_varint(out, sketch.cnt());
    if sketch.cnt() == 0 {
        return;
    }
    put_extremes(sketch, out);
    let bins = sketch.bins();
    put_varint(out, bins.len() as u64);
    let mut previous = 0;
    for bin in bins.iter() {
        let step = zigzag(i64::from(bin.k) - previous);
        previous = i64::from(bin.k);
        put_varint(out, step << 1 | u64::from(bin.n > 1));
        if bin.n > 1 {
            put_varint(out, u64::from(bin.n));
        }
    }
}

fn put_extremes(sketch: &Sketch, out: &mut Vec<u8>) {
    let (min, max) = (sketch.min(), sketch.max());
    // Samples near both ends of a double's range can sum to NaN, which a sketch cannot be rebuilt from.
    let sum = if sketch.sum().is_nan() { 0.0 } else { sketch.sum() };
    let is_one = [min, max, sum].iter().all(|v| v.to_bits() == min.to_bits());
    let one = if is_one { ONE_VALUE } else { 0 };
    let values = [min, max, sum];
    let values = if is_one { &values[..1] } else { &values[..] };
    let mut integers = Vec::with_capacity(3);
    match decimal::integers(values, &mut integers) {
        Some(exponent) => {
            out.push(one | DECIMAL | exponent << 4);
            integers
                .iter()
                .for_each(|&integer| put_varint(out, zigzag(integer)));
        }
        None => {
            out.push(one);
            out.extend(values.iter().flat_map(|v| v.to_le_bytes()));
        }
    }
}

/// Reads a sketch from the front of `bytes`. Returns an empty one if [`encode`] did not write them.
pub fn decode(bytes: &mut &[u8]) -> Sketch {
    let cnt = take_varint(bytes);
    if cnt == 0 {
        return Sketch::new();
    }
    let [min, max, sum] = take_extremes(bytes);
    // A bin takes at least a byte, so a wrong length cannot reserve more memory.
    let len = (take_varint(bytes) as usize).min(bytes.len());
    let mut bins = Vec::with_capacity(len);
    let mut key = 0i64;
    for _ in 0..len {
        let step = take_varint(bytes);
        key = key.wrapping_add(unzigzag(step >> 1));
        let n = if step & 1 == 1 { take_varint(bytes) } else { 1 };
        bins.push(Bin {
            k: key as i16,
            n: n as u32,
        });
    }
    Sketch::from_parts(cnt, sum, min, max, bins).unwrap_or_default()
}

fn take_extremes(bytes: &mut &[u8]) -> [f64; 3] {
    let Some((&header, rest)) = bytes.split_first() else {
        return [0.0; 3];
    };
    *bytes = rest;
    let mut take = || {
        if header & DECIMAL != 0 {
            return decimal::value(unzigzag(take_varint(bytes)), header >> 4);
        }
        let (chunk, rest) = bytes.split_at(bytes.len().min(8));
        *bytes = rest;
        chunk.try_into().map_or(0.0, f64::from_le_bytes)
    };
    let first = take();
    if header & ONE_VALUE != 0 {
        return [first; 3];
    }
    [first, take(), take()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(values: &[(f64, u64)]) -> Sketch {
        let mut sketch = Sketch::new();
        values.iter().for_each(|&(v, n)| sketch.insert(v, n));
        sketch
    }

    #[test]
    fn five_samples_take_less_than_sixty_bytes() {
        for values in [
            [1.0, 2.5, 3.75, 100.0, 12_345.678],
            [1.0 / 3.0, -1e9, 2e-7, 1e12, 0.7],
        ] {
            let mut bytes = Vec::new();
            encode(&of(&values.map(|v| (v, 1))), &mut bytes);
            assert!(bytes.len() <= 60, "{} bytes", bytes.len());
        }
    }

    proptest! {
        #[test]
        fn any_sketch_survives_a_round_trip(values in proptest::collection::vec((any::<f64>(), 1u64..1 << 34), 0..200)) {
            let sketch = of(&values);
            let mut bytes = Vec::new();
            encode(&sketch, &mut bytes);
            let mut rest = bytes.as_slice();
            let found = decode(&mut rest);
            prop_assert!(rest.is_empty());
            if !sketch.sum().is_nan() {
                prop_assert_eq!(found.sum().to_bits(), sketch.sum().to_bits());
            }
            prop_assert_eq!(found.bins(), sketch.bins());
            prop_assert_eq!((found.cnt(), found.min(), found.max()), (sketch.cnt(), sketch.min(), sketch.max()));
        }

        #[test]
        fn any_bytes_are_harmless(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            decode(&mut bytes.as_slice());
        }
    }
}
