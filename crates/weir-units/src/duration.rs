use crate::{UnitError, split_number};
use std::time::Duration;

/// A century: more is a slip, and a moment that far ahead cannot be counted on every clock.
pub const DURATION_MAX: Duration = Duration::from_secs(100 * 366 * 86_400);

const ALLOWED: &str = "write a number and ns, us, ms, s, m, h or d, for example 500ms";

/// Reads `250us`, `1.5s`, `2 m`, `1h`. A bare number is refused because its unit would be a guess; `0` needs none.
pub fn parse_duration(text: &str) -> Result<Duration, UnitError> {
    let (number, unit) = split(text)?;
    if unit.is_empty() && number != 0.0 {
        return Err(UnitError(format!(
            "{text:?} is not a duration, it has no unit; {ALLOWED}"
        )));
    }
    read(text, number, unit)
}

/// As [`parse_duration`], but a bare number counts seconds.
pub fn parse_duration_or_seconds(text: &str) -> Result<Duration, UnitError> {
    let (number, unit) = split(text)?;
    read(text, number, unit)
}

fn split(text: &str) -> Result<(f64, &str), UnitError> {
    split_number(text).ok_or_else(|| UnitError(format!("{text:?} is not a duration; {ALLOWED}")))
}

fn read(text: &str, number: f64, unit: &str) -> Result<Duration, UnitError> {
    let seconds = match unit {
        "ns" => 1e-9,
        "us" | "µs" => 1e-6,
        "ms" => 1e-3,
        "" | "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        "d" => 86_400.0,
        _ => {
            return Err(UnitError(format!(
                "{text:?} is not a duration, {unit:?} is no unit of time; {ALLOWED}"
            )));
        }
    };
    Duration::try_from_secs_f64(number * seconds)
        .ok()
        .filter(|duration| *duration <= DURATION_MAX)
        .ok_or_else(|| UnitError(format!("{text:?}: a duration of more than a hundred years")))
}

/// Prints a duration in its largest whole unit; [`parse_duration`] reads the same duration from it.
pub fn show_duration(duration: Duration) -> String {
    const UNITS: [(u128, &str); 7] = [
        (86_400_000_000_000, "d"),
        (3_600_000_000_000, "h"),
        (60_000_000_000, "m"),
        (1_000_000_000, "s"),
        (1_000_000, "ms"),
        (1_000, "us"),
        (1, "ns"),
    ];
    let nanos = duration.as_nanos();
    if nanos == 0 {
        return "0".to_owned();
    }
    let (size, unit) = UNITS
        .into_iter()
        .find(|(size, _)| nanos.is_multiple_of(*size))
        .expect("every number is a multiple of one");
    format!("{}{unit}", nanos / size)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_unit_is_read() {
        let nanos = |text: &str| parse_duration(text).map(|duration| duration.as_nanos());
        assert_eq!(nanos("7ns"), Ok(7));
        assert_eq!(nanos("250us"), Ok(250_000));
        assert_eq!(nanos("250µs"), Ok(250_000));
        assert_eq!(nanos("200 ms"), Ok(200_000_000));
        assert_eq!(nanos("1.5s"), Ok(1_500_000_000));
        assert_eq!(nanos("2m"), nanos("2min"));
        assert_eq!(nanos("1h"), nanos("60m"));
        assert_eq!(nanos("1d"), nanos("24h"));
        assert_eq!(nanos("1_000ms"), nanos("1s"));
        assert_eq!(nanos("0"), Ok(0));
    }

    #[test]
    fn bad_durations_are_errors_with_the_allowed_form() {
        for text in [
            "", "s", "-1s", "10", "1x", "1 S", "1.2.3s", "1s2", "nans", "infs", "1e3s",
        ] {
            let error = parse_duration(text).unwrap_err().to_string();
            assert!(error.contains("ns, us, ms, s, m, h or d"), "{text}: {error}");
        }
        for text in ["37000d", "99999999999999999999h"] {
            let error = parse_duration(text).unwrap_err().to_string();
            assert!(error.contains("a hundred years"), "{text}: {error}");
        }
        assert_eq!(parse_duration_or_seconds("10"), parse_duration("10s"));
        assert!(parse_duration_or_seconds("").is_err());
    }

    proptest! {
        /// Up to two weeks, where a product of `f64` still holds every nanosecond.
        #[test]
        fn what_is_printed_reads_the_same(nanos in 0..1_209_600_000_000_000_u64, shift in 0..7_u32) {
            let unit = [1, 1_000, 1_000_000, 1_000_000_000, 60_000_000_000, 3_600_000_000_000, 86_400_000_000_000][shift as usize];
            let duration = Duration::from_nanos(nanos / unit * unit);
            prop_assert_eq!(parse_duration(&show_duration(duration)), Ok(duration));
        }
    }
}
