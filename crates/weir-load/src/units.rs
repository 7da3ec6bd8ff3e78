//! Sizes, rates, durations and ranges as people write them.
//!
//! `kB` is 1000 and `KiB` is 1024; `kb`, `Kb`, `KB` and their like are refused, because their authors meant different things.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// The text means nothing, or two things.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadUnit(pub String);

impl fmt::Display for BadUnit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BadUnit {}

fn split_number(text: &str) -> Result<(f64, &str), BadUnit> {
    let text = text.trim();
    let end = text
        .find(|c: char| !(c.is_ascii_digit() || c == '.' || c == '_'))
        .unwrap_or(text.len());
    let number: f64 = text[..end]
        .replace('_', "")
        .parse()
        .map_err(|_| BadUnit(format!("{text:?} does not start with a number")))?;
    Ok((number, text[end..].trim()))
}

/// The factor of a byte unit, or nothing when it is no byte unit.
fn byte_factor(unit: &str) -> Result<Option<f64>, BadUnit> {
    Ok(Some(match unit {
        "B" => 1.0,
        "kB" => 1e3,
        "MB" => 1e6,
        "GB" => 1e9,
        "KiB" => 1024.0,
        "MiB" => 1024.0 * 1024.0,
        "GiB" => 1024.0 * 1024.0 * 1024.0,
        other => {
            let lower = other.to_ascii_lowercase();
            if matches!(lower.as_str(), "b" | "kb" | "mb" | "gb" | "kib" | "mib" | "gib") {
                return Err(BadUnit(format!(
                    "{other:?} is ambiguous: write kB, MB, GB (powers of 1000) or KiB, MiB, GiB (powers of 1024)"
                )));
            }
            return Ok(None);
        }
    }))
}

/// A number of bytes: `8192`, `8 KiB`, `1.5 MB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bytes(pub u64);

impl FromStr for Bytes {
    type Err = BadUnit;

    fn from_str(text: &str) -> Result<Bytes, BadUnit> {
        let (number, unit) = split_number(text)?;
        let factor = if unit.is_empty() {
            1.0
        } else {
            byte_factor(unit)?
                .ok_or_else(|| BadUnit(format!("{unit:?} is not a size: B, kB, MB, GB, KiB, MiB, GiB")))?
        };
        Ok(Bytes((number * factor).round() as u64))
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

/// What a rate counts.
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

/// So much per second: `8 MiB/s`, `100k msg/s`, `20k packets/s`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {
    pub per_second: f64,
    pub unit: RateUnit,
}

impl FromStr for Rate {
    type Err = BadUnit;

    fn from_str(text: &str) -> Result<Rate, BadUnit> {
        let help = "write for example `8 MiB/s`, `100k msg/s` or `20k packets/s`";
        let body = text
            .trim()
            .strip_suffix("/s")
            .ok_or_else(|| BadUnit(format!("{text:?} is not a rate, it does not end in /s: {help}")))?;
        let (number, unit) = split_number(body)?;
        if let Some(factor) = byte_factor(unit)? {
            return positive(
                Rate {
                    per_second: number * factor,
                    unit: RateUnit::Bytes,
                },
                text,
            );
        }
        let (factor, word) = match unit.split_once(' ') {
            Some(("k", word)) => (1e3, word),
            Some(("M", word)) => (1e6, word),
            Some((_, _)) => return Err(BadUnit(format!("{text:?} is not a rate: {help}"))),
            None => (1.0, unit),
        };
        let unit = match word.trim() {
            "msg" | "messages" => RateUnit::Messages,
            "packets" | "pkt" => RateUnit::Packets,
            _ => return Err(BadUnit(format!("{text:?} is not a rate: {help}"))),
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
        Err(BadUnit(format!("{text:?}: a rate must be above zero")))
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

/// A duration: `250us`, `200ms`, `10s`, `5m`, `1h`.
pub fn parse_duration(text: &str) -> Result<Duration, BadUnit> {
    let (number, unit) = split_number(text)?;
    let factor = match unit {
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => {
            return Err(BadUnit(format!(
                "{text:?} is not a duration: number and us, ms, s, m or h"
            )));
        }
    };
    Ok(Duration::from_secs_f64(number * factor))
}

/// A duration in a profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span(pub Duration);

impl FromStr for Span {
    type Err = BadUnit;
    fn from_str(text: &str) -> Result<Span, BadUnit> {
        parse_duration(text).map(Span)
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

/// Both ends included: `7` or `"2..50"`.
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
            part.trim().replace('_', "").parse::<u64>().map_err(|_| {
                BadUnit(format!(
                    "{text:?} is not a range: write 7 or \"2..50\" (both ends included)"
                ))
            })
        };
        let range = match text.split_once("..") {
            Some((min, max)) => Range::new(number(min)?, number(max)?),
            None => Range::just(number(text)?),
        };
        if range.min > range.max {
            return Err(BadUnit(format!(
                "{text:?} is an impossible range: {} is above {}",
                range.min, range.max
            )));
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

/// Reads from a string or a bare number through `FromStr`, writes through `Display`.
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
        assert_eq!(parse_duration("250us"), Ok(Duration::from_micros(250)));
    }

    #[test]
    fn ambiguous_units_and_impossible_ranges_are_refused_with_the_reason() {
        for text in ["8 Kb", "8 kb", "8 KB", "1mb", "5 Mb"] {
            let error = text.parse::<Bytes>().unwrap_err();
            assert!(error.0.contains("ambiguous"), "{text}: {error}");
            assert!(format!("{text}/s").parse::<Rate>().is_err());
        }
        let error = "50..2".parse::<Range>().unwrap_err();
        assert!(error.0.contains("50 is above 2"), "{error}");
        for text in ["", "fast", "8", "8/s", "8 x/s", "0 msg/s"] {
            assert!(text.parse::<Rate>().is_err(), "{text}");
        }
        for text in ["", "x", "1..", "-1..3"] {
            assert!(text.parse::<Range>().is_err(), "{text}");
        }
    }
}
