//! The rule of outputs that show sums: sums and counts are finite, and counters only rise. `docs/outputs/README.md` has it in
//! words ("Counters only rise").

use weir_aggregate::Value;

use crate::delivery::Reason;

/// An output's exposition of counters. It is the same for every series and never changes while the output runs: a name in Prometheus depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Counters {
    /// A bucket that adds up to less than zero is refused.
    Monotonic,
    /// Sums may fall.
    UpDown,
}

/// Why a bucket's value cannot be part of a sum, if it cannot.
pub fn check(value: Value<'_>, counters: Counters) -> Result<(), Reason> {
    match value {
        Value::Counter(sum) if sum < 0.0 && counters == Counters::Monotonic && sum.is_finite() => {
            Err(Reason::NegativeCounter)
        }
        Value::Counter(sum) => finite(sum).map(drop),
        Value::Histogram(histogram) => finite(histogram.totals().sum).map(drop),
        Value::Distribution(sketch) => finite(sketch.sum()).map(drop),
        Value::Gauge(_) | Value::Set(_) => Ok(()),
    }
}

/// Adds to a sum; one that would overflow stays unchanged.
pub fn add(sum: f64, more: f64) -> Result<f64, Reason> {
    finite(sum + more)
}

fn finite(value: f64) -> Result<f64, Reason> {
    if value.is_finite() {
        Ok(value)
    } else {
        Err(Reason::NotFinite)
    }
}
