//! The sketch of a distribution: how many values there are of each logarithm.
//!
//! The Datadog Agent's definition, written a second time: the manifest must not owe its bins to the program that it is compared with.

use crate::manifest::Decimal;
use std::collections::BTreeMap;

/// The logarithm of the ratio between neighbouring bins, the Agent's constant.
const LN_GAMMA: f64 = 0.015504186535965254;
/// The key of 1.
const BIAS: f64 = 1338.0;
/// The smallest value that does not count as zero.
const SMALLEST: f64 = 9.94185408912145e-10;

/// The bin of a value.
pub fn key(value: f64) -> i32 {
    let size = value.abs();
    if size.is_nan() || size < SMALLEST {
        return 0;
    }
    let rounded = (size.ln() / LN_GAMMA).round_ties_even() + BIAS;
    let key = rounded.clamp(1.0, f64::from(i16::MAX)) as i32;
    if value < 0.0 { -key } else { key }
}

/// The values of one series.
#[derive(Clone, Debug, Default)]
pub struct Sketch {
    pub count: u64,
    pub sum: Decimal,
    pub min: Decimal,
    pub max: Decimal,
    pub bins: BTreeMap<i32, u64>,
}

impl Sketch {
    /// Adds a value `weight` times.
    pub fn add(&mut self, value: Decimal, weight: u64) {
        if self.count == 0 {
            (self.min, self.max) = (value, value);
        }
        self.min = self.min.min(value);
        self.max = self.max.max(value);
        self.count += weight;
        self.sum.micros += value.micros * i128::from(weight);
        *self.bins.entry(key(value.to_f64())).or_default() += weight;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The file has the values at the edges of bins too, found by others.
    #[test]
    fn keys_are_those_of_the_vectors() {
        let text = include_str!("../../../../tests/vectors/sketches.jsonl");
        let mut compared = 0;
        for line in text.lines() {
            let case: serde_json::Value = serde_json::from_str(line).unwrap();
            // The values are next to the edges of bins: they are read to the last bit, which this parser of JSON does not do.
            let pairs = line.split_once("\"keys\":[[").map(|(_, pairs)| pairs);
            for pair in pairs.into_iter().flat_map(|pairs| pairs.split("],[")) {
                let (value, wanted) = pair.split_once(',').unwrap();
                let wanted: i32 = wanted.trim_end_matches([']', '}']).parse().unwrap();
                assert_eq!(key(value.parse().unwrap()), wanted, "{value}");
                compared += 1;
            }
            let Some(values) = case["values"].as_array() else {
                continue;
            };
            let Some(bins) = case["bins"].as_array() else {
                continue;
            };
            let mut found: BTreeMap<i32, u64> = BTreeMap::new();
            for value in values {
                *found.entry(key(value.as_f64().unwrap())).or_default() += 1;
            }
            let mut wanted: BTreeMap<i32, u64> = BTreeMap::new();
            for bin in bins {
                *wanted.entry(bin[0].as_i64().unwrap() as i32).or_default() += bin[1].as_u64().unwrap();
            }
            assert_eq!(found, wanted, "{}", case["id"]);
            compared += 1;
        }
        assert!(compared > 30, "{compared}");
    }

    #[test]
    fn weights_count_as_often_as_they_say() {
        let mut sketch = Sketch::default();
        sketch.add("1.5".parse().unwrap(), 10);
        sketch.add("-2".parse().unwrap(), 1);
        assert_eq!(
            (sketch.count, sketch.sum, sketch.min, sketch.max),
            (
                11,
                Decimal::from_int(13),
                Decimal::from_int(-2),
                "1.5".parse().unwrap()
            )
        );
        assert_eq!(sketch.bins, BTreeMap::from([(key(1.5), 10), (key(-2.0), 1)]));
    }
}
