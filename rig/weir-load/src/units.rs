//! Sizes, rates, durations and ranges in text form.
//!
//! `kB` is 1000 and `KiB` is 1024; `kb`, `Kb`, `KB` and similar are refused as ambiguous.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// The text is invalid or ambiguous.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadUnit {
    #[error(transparent)]
    Unit(#[from] weir_units::UnitError),
    #[error("{0:?} is not a rate, it does not end in /s: {RATE_HELP}")]
    NotPerSecond(String),
    #[error("{0:?} does not start with a number: {RATE_HELP}")]
    NoNumber(String),
    #[error("{0:?} is not a rate: {RATE_HELP}")]
    Rate(String),
    #[error("{0:?}: a rate must be above zero")]
    ZeroRate(String),
    #[error(
        "{0:?} is not a seed: write a number from 0 to {max}, or 32 bytes as 64 hexadecimal digits or 32 numbers",
        max = u64::MAX
    )]
    Seed(String),
    #[error("{0:?} is not a range: write 7 or \"2..50\" (both ends included)")]
    Range(String),
    #[error("{text:?} is an impossible range: {min} is above {max}")]
    Reversed { text: String, min: u64, max: u64 },
}

const RATE_HELP: &str = "write for example `8 MiB/s`, `100k msg/s` or `20k packets/s`";

/// A number of bytes: `8192`, `8 KiB`, `1.5 MB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bytes(pub u64);

impl FromStr for Bytes {
    type Err = BadUnit;

    fn from_str(text: &str) -> Result<Bytes, BadUnit> {
        Ok(Bytes(weir_units::parse_size(text)?))
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            n if n >= 1 << 20 && n % (1 << 20) == 0 => write!(f, "{} MiB", n >> 20),
            n if n >= 1 << 10 && n % (1 << 10) == 0 => write!(f, "{} KiB", n >> 10),
            n => write!(f, "{n} B"),
        }
    }
}

/// The unit of a rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RateUnit {
    Messages,
    Packets,
    Bytes,
}

impl RateUnit {
    pub fn name(self) -> &'static str {
        match self {
            RateUnit::Messages => "messages",
            RateUnit::Packets => "packets",
            RateUnit::Bytes => "bytes",
        }
    }
}

/// A rate per second: `8 MiB/s`, `100k msg/s`, `20k packets/s`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {
    pub per_second: f64,
    pub unit: RateUnit,
}

impl FromStr for Rate {
    type Err = BadUnit;

    fn from_str(text: &str) -> Result<Rate, BadUnit> {
        let not_a_rate = || BadUnit::Rate(text.to_owned());
        let body = text
            .trim()
            .strip_suffix("/s")
            .ok_or_else(|| BadUnit::NotPerSecond(text.to_owned()))?;
        let (number, unit) =
            weir_units::split_number(body).ok_or_else(|| BadUnit::NoNumber(text.to_owned()))?;
        if let Some(factor) = weir_units::size_unit(unit)? {
            return positive(
                Rate {
                    per_second: number * factor as f64,
                    unit: RateUnit::Bytes,
                },
                text,
            );
        }
        let (factor, word) = match unit.split_once(' ') {
            Some(("k", word)) => (1e3, word),
            Some(("M", word)) => (1e6, word),
            Some((_, _)) => return Err(not_a_rate()),
            None => (1.0, unit),
        };
        let unit = match word.trim() {
            "msg" | "messages" => RateUnit::Messages,
            "packets" | "pkt" => RateUnit::Packets,
            _ => return Err(not_a_rate()),
        };
        positive(
            Rate {
                per_second: number * factor,
                unit,
            },
            text,
        )
    }
}

fn positive(rate: Rate, text: &str) -> Result<Rate, BadUnit> {
    if rate.per_second > 0.0 && rate.per_second.is_finite() {
        Ok(rate)
    } else {
        Err(BadUnit::ZeroRate(text.to_owned()))
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.unit {
            RateUnit::Bytes => write!(f, "{}/s", Bytes(self.per_second as u64)),
            RateUnit::Messages => write!(f, "{} msg/s", self.per_second),
            RateUnit::Packets => write!(f, "{} packets/s", self.per_second),
        }
    }
}

/// A seed: a number below 2^64, or 32 bytes (64 hexadecimal digits, or 32 numbers with commas), which are hashed to 64 bits, so that
/// lading's seeds can be used directly.
pub fn parse_seed(text: &str) -> Result<u64, BadUnit> {
    let text = text.trim();
    if let Ok(number) = text.parse::<u64>() {
        return Ok(number);
    }
    let bytes: Option<Vec<u8>> = if text.len() == 64 && text.is_ascii() {
        (0..32)
            .map(|index| u8::from_str_radix(&text[2 * index..2 * index + 2], 16).ok())
            .collect()
    } else {
        text.split(',').map(|part| part.trim().parse().ok()).collect()
    };
    match bytes {
        Some(bytes) if bytes.len() == 32 => Ok(xxhash_rust::xxh3::xxh3_64(&bytes)),
        _ => Err(BadUnit::Seed(text.to_owned())),
    }
}

/// A seed in a profile: as [`parse_seed`], or a list of 32 numbers.
pub fn seed<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    struct Visitor;
    impl<'de> de::Visitor<'de> for Visitor {
        type Value = u64;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a seed: a number below 2^64, 64 hexadecimal digits, or a list of 32 bytes")
        }
        fn visit_u64<E: de::Error>(self, number: u64) -> Result<u64, E> {
            Ok(number)
        }
        fn visit_i64<E: de::Error>(self, number: i64) -> Result<u64, E> {
            self.visit_str(&number.to_string())
        }
        fn visit_str<E: de::Error>(self, text: &str) -> Result<u64, E> {
            parse_seed(text).map_err(E::custom)
        }
        fn visit_seq<A: de::SeqAccess<'de>>(self, mut seq: A) -> Result<u64, A::Error> {
            let mut parts = Vec::new();
            while let Some(byte) = seq.next_element::<u8>()? {
                parts.push(byte.to_string());
            }
            parse_seed(&parts.join(",")).map_err(de::Error::custom)
        }
    }
    deserializer.deserialize_any(Visitor)
}

/// A duration in a profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span(pub Duration);

impl FromStr for Span {
    type Err = BadUnit;
    fn from_str(text: &str) -> Result<Span, BadUnit> {
        Ok(Span(weir_units::parse_duration(text)?))
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = self.0.as_secs_f64() * 1e3;
        if ms >= 1000.0 {
            write!(f, "{}s", ms / 1e3)
        } else {
            write!(f, "{ms}ms")
        }
    }
}

/// An inclusive range: `7` or `"2..50"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    pub min: u64,
    pub max: u64,
}

impl Range {
    pub const fn new(min: u64, max: u64) -> Range {
        Range { min, max }
    }
    pub const fn just(value: u64) -> Range {
        Range {
            min: value,
            max: value,
        }
    }
}

impl FromStr for Range {
    type Err = BadUnit;

    fn from_str(text: &str) -> Result<Range, BadUnit> {
        let number = |part: &str| {
            let number = part.trim().replace('_', "").parse();
            number.map_err(|_| BadUnit::Range(text.to_owned()))
        };
        let range = match text.split_once("..") {
            Some((min, max)) => Range::new(number(min)?, number(max)?),
            None => Range::just(number(text)?),
        };
        if range.min > range.max {
            return Err(BadUnit::Reversed {
                text: text.to_owned(),
                min: range.min,
                max: range.max,
            });
        }
        Ok(range)
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.min == self.max {
            write!(f, "{}", self.min)
        } else {
            write!(f, "{}..{}", self.min, self.max)
        }
    }
}

/// Deserializes from a string or a number through `FromStr`, serializes through `Display`.
macro_rules! text_serde {
    ($type:ty, $expecting:literal) => {
        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<$type, D::Error> {
                struct Visitor;
                impl de::Visitor<'_> for Visitor {
                    type Value = $type;
                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.write_str($expecting)
                    }
                    fn visit_str<E: de::Error>(self, text: &str) -> Result<$type, E> {
                        text.parse().map_err(|error: BadUnit| E::custom(error))
                    }
                    fn visit_u64<E: de::Error>(self, number: u64) -> Result<$type, E> {
                        self.visit_str(&number.to_string())
                    }
                    fn visit_i64<E: de::Error>(self, number: i64) -> Result<$type, E> {
                        self.visit_str(&number.to_string())
                    }
                }
                deserializer.deserialize_any(Visitor)
            }
        }
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }
    };
}

text_serde!(Bytes, "a size such as 8192 or \"8 KiB\"");
text_serde!(Rate, "a rate such as \"8 MiB/s\" or \"100k msg/s\"");
text_serde!(Range, "a number or a range such as \"2..50\"");
text_serde!(Span, "a duration such as \"200ms\" or \"10s\"");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_rates_are_read_exactly() {
        assert_eq!("8 KiB".parse(), Ok(Bytes(8192)));
        assert_eq!("1432".parse(), Ok(Bytes(1432)));
        assert_eq!("1.5kB".parse(), Ok(Bytes(1500)));
        let rate: Rate = "8 MiB/s".parse().unwrap();
        assert_eq!((rate.per_second, rate.unit), (8_388_608.0, RateUnit::Bytes));
        let rate: Rate = "100k msg/s".parse().unwrap();
        assert_eq!((rate.per_second, rate.unit), (1e5, RateUnit::Messages));
        let rate: Rate = "250 packets/s".parse().unwrap();
        assert_eq!((rate.per_second, rate.unit), (250.0, RateUnit::Packets));
        assert_eq!("2..50".parse(), Ok(Range::new(2, 50)));
        assert_eq!("250us".parse(), Ok(Span(Duration::from_micros(250))));
    }

    #[test]
    fn ambiguous_units_and_impossible_ranges_are_refused_with_the_reason() {
        for text in ["8 Kb", "8 kb", "8 KB", "1mb", "5 Mb"] {
            let error = text.parse::<Bytes>().unwrap_err();
            assert!(error.to_string().contains("ambiguous"), "{text}: {error}");
            assert!(format!("{text}/s").parse::<Rate>().is_err());
        }
        let error = "50..2".parse::<Range>().unwrap_err();
        assert!(error.to_string().contains("50 is above 2"), "{error}");
        for text in ["", "fast", "8", "8/s", "8 x/s", "0 msg/s"] {
            assert!(text.parse::<Rate>().is_err(), "{text}");
        }
        for text in ["", "x", "1", "1 y", "-1s", "99999999999999999999h"] {
            assert!(text.parse::<Span>().is_err(), "{text}");
        }
        let prime = "2,3,5,7,11,13,17,19,23,29,31,37,41,43,47,53,59,61,67,71,73,79,83,89,97,101,103,107,109,113,127,131";
        let hex = "020305070b0d1113171d1f25292b2f353b3d4347494f53596165676b6d717f83";
        assert_eq!(parse_seed(prime), parse_seed(hex));
        assert_eq!(parse_seed("18446744073709551615"), Ok(u64::MAX));
        for text in ["", "-1", "18446744073709551616", "1,2,3", "zz", &hex[..62]] {
            assert!(parse_seed(text).is_err(), "{text}");
        }
        for text in ["", "x", "1..", "-1..3"] {
            assert!(text.parse::<Range>().is_err(), "{text}");
        }
    }
}
