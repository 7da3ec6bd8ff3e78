//! Durations, sizes and thresholds as people write them in experiment files.

use super::node::{Node, Result, Value, invalid, wrong_kind};
use std::time::Duration;

/// `250ms`, `10s`, `2m`; a bare number is refused because its unit would be a guess.
pub fn parse_duration(text: &str) -> std::result::Result<Duration, String> {
    let (number, unit) = split(text);
    let factor = match unit {
        "ms" => 1e-3,
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => {
            return Err(format!(
                "{text:?} is not a duration: write a number and ms, s, m or h"
            ));
        }
    };
    match number.parse::<f64>() {
        Ok(v) if v >= 0.0 && v * factor <= 86_400.0 * 7.0 => Ok(Duration::from_secs_f64(v * factor)),
        _ => Err(format!("{text:?} is not a duration between 0 and 7 days")),
    }
}

/// `64MiB`, `100kB`, `2GiB`, `512B`. `kb` and `Kb` are refused: nobody knows whether bits or 1000 or 1024 are meant.
pub fn parse_bytes(text: &str) -> std::result::Result<u64, String> {
    let (number, unit) = split(text);
    let factor = match unit {
        "B" => 1.0,
        "kB" => 1e3,
        "MB" => 1e6,
        "GB" => 1e9,
        "KiB" => 1024.0,
        "MiB" => 1024.0 * 1024.0,
        "GiB" => 1024.0 * 1024.0 * 1024.0,
        _ => {
            return Err(format!(
                "{text:?} is not a size: write a number and B, kB, MB, GB, KiB, MiB or GiB"
            ));
        }
    };
    match number.parse::<f64>() {
        Ok(v) if v >= 0.0 && v * factor < 9e15 => Ok((v * factor).round() as u64),
        _ => Err(format!("{text:?} is not a size")),
    }
}

fn split(text: &str) -> (&str, &str) {
    let text = text.trim();
    let at = text
        .find(|c: char| c.is_ascii_alphabetic() || c == '%')
        .unwrap_or(text.len());
    (text[..at].trim(), text[at..].trim())
}

pub fn duration(node: &Node, path: &str) -> Result<Duration> {
    match &node.value {
        Value::Text(text) => parse_duration(text).map_err(|e| invalid(node, path, e)),
        Value::Int(0) => Ok(Duration::ZERO),
        _ => Err(wrong_kind(node, path, "a duration such as 10s")),
    }
}

pub fn bytes(node: &Node, path: &str) -> Result<u64> {
    match &node.value {
        Value::Text(text) => parse_bytes(text).map_err(|e| invalid(node, path, e)),
        _ => Err(wrong_kind(node, path, "a size such as 64MiB")),
    }
}

/// A limit of a bounds check: a plain number or a size.
pub fn limit(node: &Node, path: &str) -> Result<f64> {
    match &node.value {
        Value::Int(v) => Ok(*v as f64),
        Value::Float(v) => Ok(*v),
        Value::Text(text) => parse_bytes(text)
            .map(|v| v as f64)
            .map_err(|e| invalid(node, path, e)),
        _ => Err(wrong_kind(node, path, "a number or a size such as 64MiB")),
    }
}

/// Whole seconds without a unit sign are unambiguous in our own output.
pub fn show_duration(d: Duration) -> String {
    let s = d.as_secs_f64();
    if s < 1.0 {
        format!("{}ms", d.as_millis())
    } else if s < 120.0 {
        let text = format!("{s:.1}");
        format!("{}s", text.trim_end_matches(".0"))
    } else if s < 7200.0 {
        format!("{:.0}m", s / 60.0)
    } else {
        format!("{}h{:02}m", d.as_secs() / 3600, d.as_secs() % 3600 / 60)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        assert_eq!(parse_duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(parse_duration("1.5s"), Ok(Duration::from_millis(1500)));
        assert_eq!(parse_duration("2 m"), Ok(Duration::from_secs(120)));
        for bad in ["10", "s", "-1s", "1d", "9999999h"] {
            assert!(parse_duration(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn sizes() {
        assert_eq!(parse_bytes("64MiB"), Ok(64 << 20));
        assert_eq!(parse_bytes("100kB"), Ok(100_000));
        for bad in ["64", "64Mb", "64kb", "64Kb", "MiB", "-1B"] {
            assert!(parse_bytes(bad).is_err(), "{bad}");
        }
    }
}
