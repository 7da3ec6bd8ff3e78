use crate::{UnitError, split_number};

const ALLOWED: &str = "write kB, MB, GB, TB (powers of 1000) or KiB, MiB, GiB, TiB (powers of 1024)";

/// The number of bytes of a unit of size; `None` for other text, an error for `kb`, `Kb`, `KB` and their like,
/// whose authors meant different things.
pub fn size_unit(unit: &str) -> Result<Option<u64>, UnitError> {
    let bytes = match unit {
        "B" => 1,
        "kB" => 1_000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        "TB" => 1_000_000_000_000,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        "TiB" => 1 << 40,
        other if any_case(other).is_some() => {
            return Err(UnitError(format!("{other:?} is ambiguous: {ALLOWED}")));
        }
        _ => return Ok(None),
    };
    Ok(Some(bytes))
}

fn any_case(unit: &str) -> Option<u64> {
    Some(match unit.to_ascii_lowercase().as_str() {
        "b" => 1,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "t" | "tib" => 1 << 40,
        _ => return None,
    })
}

/// Reads `8192`, `8KiB`, `1.5 MB`. Units are written exactly; see [`size_unit`].
pub fn parse_size(text: &str) -> Result<u64, UnitError> {
    read(text, |unit| match unit {
        "" => Ok(Some(1)),
        unit => size_unit(unit),
    })
}

/// As [`parse_size`], but units in any case and `k`, `m`, `g`, `t` for powers of 1024, as people write them in the
/// configuration of an agent.
pub fn parse_size_any_case(text: &str) -> Result<u64, UnitError> {
    read(text, |unit| match unit {
        "" => Ok(Some(1)),
        unit => Ok(any_case(unit)),
    })
}

fn read(text: &str, factor: impl FnOnce(&str) -> Result<Option<u64>, UnitError>) -> Result<u64, UnitError> {
    let no_size = || UnitError(format!("{text:?} is not a size: {ALLOWED}"));
    let (number, unit) = split_number(text).ok_or_else(no_size)?;
    let factor = factor(unit)?.ok_or_else(no_size)?;
    // Whole numbers are multiplied as integers: `f64` holds them exactly up to 2^53 only.
    let digits = text.trim().strip_suffix(unit).unwrap_or(text).trim_end();
    let bytes = match digits.parse::<u64>() {
        Ok(whole) => whole.checked_mul(factor),
        Err(_) => Some((number * factor as f64).round())
            .filter(|bytes| *bytes < u64::MAX as f64)
            .map(|bytes| bytes as u64),
    };
    bytes.ok_or_else(|| UnitError(format!("{text:?}: a size beyond 2^64 bytes")))
}

/// Prints a size in its largest whole power of 1024; both readers read the same size from it.
pub fn show_size(bytes: u64) -> String {
    for (shift, unit) in [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")] {
        if bytes >> shift > 0 && bytes.trailing_zeros() >= shift {
            return format!("{}{unit}", bytes >> shift);
        }
    }
    bytes.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sizes_are_read_exactly() {
        assert_eq!(parse_size("8192"), Ok(8192));
        assert_eq!(parse_size("18446744073709551615"), Ok(u64::MAX));
        assert_eq!(parse_size("8 KiB"), Ok(8192));
        assert_eq!(parse_size("1.5kB"), Ok(1500));
        assert_eq!(parse_size("64MiB"), Ok(64 << 20));
        assert_eq!(parse_size("2TB"), Ok(2_000_000_000_000));
        assert_eq!(parse_size_any_case("64mb"), Ok(64_000_000));
        assert_eq!(parse_size_any_case("2G"), Ok(2 << 30));
        assert_eq!(parse_size_any_case("1 kib"), Ok(1024));
    }

    #[test]
    fn ambiguous_and_wrong_sizes_are_errors_with_the_allowed_form() {
        for text in ["8 Kb", "8kb", "8 KB", "1mb", "64k"] {
            let error = parse_size(text).unwrap_err().to_string();
            assert!(
                error.contains("ambiguous") && error.contains("KiB"),
                "{text}: {error}"
            );
        }
        for text in ["", "MiB", "-1B", "1 x", "1.2.3"] {
            assert!(
                parse_size(text).unwrap_err().to_string().contains("not a size"),
                "{text}"
            );
            assert!(parse_size_any_case(text).is_err(), "{text}");
        }
        assert!(
            parse_size("99999999999TiB")
                .unwrap_err()
                .to_string()
                .contains("2^64")
        );
    }

    proptest! {
        #[test]
        fn what_is_printed_reads_the_same(bytes in any::<u64>(), shift in 0..41_u32) {
            let bytes = bytes >> shift << shift;
            let text = show_size(bytes);
            prop_assert_eq!(parse_size(&text), Ok(bytes));
            prop_assert_eq!(parse_size_any_case(&text), Ok(bytes));
        }
    }
}
