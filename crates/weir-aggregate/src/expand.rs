//! Expands histograms to the series of the Datadog Agent: `.max`, `.median`, `.avg`, `.count`, `.95percentile`, ...

use crate::histogram::{Histogram, Weights};

/// One aggregate that histograms and timings are expanded to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Aggregate {
    Max,
    Min,
    Median,
    Average,
    Sum,
    Count,
    /// In percent, 0 to 100.
    Percentile(u8),
}

impl Aggregate {
    /// The configuration's names of all aggregates except percentiles.
    pub fn from_name(name: &str) -> Option<Aggregate> {
        match name {
            "max" => Some(Aggregate::Max),
            "min" => Some(Aggregate::Min),
            "median" => Some(Aggregate::Median),
            "avg" => Some(Aggregate::Average),
            "sum" => Some(Aggregate::Sum),
            "count" => Some(Aggregate::Count),
            _ => None,
        }
    }

    /// A percentile by its fraction of one: `percent = trunc(100 * fraction + 0.5)`.
    pub fn from_fraction(fraction: f64) -> Option<Aggregate> {
        (0.0..=1.0)
            .contains(&fraction)
            .then_some(Aggregate::Percentile((fraction * 100.0 + 0.5) as u8))
    }

    /// The suffix of the metric's name, with its dot.
    pub fn suffix(self) -> String {
        match self {
            Aggregate::Max => ".max".into(),
            Aggregate::Min => ".min".into(),
            Aggregate::Median => ".median".into(),
            Aggregate::Average => ".avg".into(),
            Aggregate::Sum => ".sum".into(),
            Aggregate::Count => ".count".into(),
            Aggregate::Percentile(percent) => format!(".{percent}percentile"),
        }
    }
}

/// The meaning of a point's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PointType {
    /// Per second, averaged over the interval.
    Rate,
    Gauge,
}

/// The series that a histogram expands to.
#[derive(Clone, Debug)]
pub struct Expansion {
    aggregates: Vec<(Aggregate, String)>,
    weights: Weights,
}

/// Maximum number of aggregates and percentiles together; each has a bit in a context's suffix mask.
pub const AGGREGATES_MAX: usize = 32;

impl Default for Expansion {
    /// `max`, `median`, `avg`, `count` and the 95th percentile.
    fn default() -> Self {
        let aggregates = [
            Aggregate::Max,
            Aggregate::Median,
            Aggregate::Average,
            Aggregate::Count,
            Aggregate::Percentile(95),
        ];
        Expansion::new(&aggregates, Weights::Exact)
    }
}

impl Expansion {
    /// Takes the first [`AGGREGATES_MAX`] distinct aggregates, in their order.
    pub fn new(aggregates: &[Aggregate], weights: Weights) -> Self {
        let mut distinct: Vec<(Aggregate, String)> = Vec::new();
        for &aggregate in aggregates {
            if distinct.len() < AGGREGATES_MAX && distinct.iter().all(|(known, _)| *known != aggregate) {
                distinct.push((aggregate, aggregate.suffix()));
            }
        }
        Expansion {
            aggregates: distinct,
            weights,
        }
    }

    /// The suffixes in the order of their bits in the suffix mask.
    pub fn suffixes(&self) -> impl Iterator<Item = &str> {
        self.aggregates.iter().map(|(_, suffix)| suffix.as_str())
    }

    /// The bits of all suffixes.
    pub fn suffixes_mask(&self) -> u32 {
        u32::MAX
            .checked_shr(32 - self.aggregates.len() as u32)
            .unwrap_or(0)
    }

    pub fn weights(&self) -> Weights {
        self.weights
    }

    /// Calls `point` with suffix, type and value of each series. `interval` is in seconds.
    pub fn points(
        &self,
        histogram: &Histogram,
        interval: u32,
        suffix_mask: u32,
        mut point: impl FnMut(&str, PointType, f64),
    ) {
        let ordered = histogram.ordered();
        let totals = histogram.totals();
        for (bit, (aggregate, suffix)) in self.aggregates.iter().enumerate() {
            if suffix_mask & (1 << bit) == 0 {
                continue;
            }
            let value = match *aggregate {
                Aggregate::Max => totals.max,
                Aggregate::Min => totals.min,
                Aggregate::Median => ordered.median(self.weights),
                Aggregate::Average => histogram.average(self.weights),
                Aggregate::Sum => totals.sum,
                Aggregate::Count => histogram.count(self.weights) / f64::from(interval),
                Aggregate::Percentile(percent) => ordered.percentile(percent, self.weights),
            };
            let kind = if *aggregate == Aggregate::Count {
                PointType::Rate
            } else {
                PointType::Gauge
            };
            point(suffix, kind, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worked_example() {
        let mut histogram = Histogram::default();
        for value in [1.0, 2.0, 3.0, 4.0] {
            histogram.insert(value, 1.0);
        }
        let mut points = Vec::new();
        Expansion::default().points(&histogram, 10, u32::MAX, |suffix, kind, value| {
            points.push((suffix.to_string(), kind, value));
        });
        let expected = [
            (".max", PointType::Gauge, 4.0),
            (".median", PointType::Gauge, 2.0),
            (".avg", PointType::Gauge, 2.5),
            (".count", PointType::Rate, 0.4),
            (".95percentile", PointType::Gauge, 4.0),
        ];
        assert_eq!(
            points,
            expected.map(|(suffix, kind, value)| (suffix.to_string(), kind, value))
        );
    }

    #[test]
    fn percentile_names() {
        for (fraction, suffix) in [
            (0.95, ".95percentile"),
            (0.299, ".30percentile"),
            (0.05, ".5percentile"),
            (1.0, ".100percentile"),
        ] {
            assert_eq!(Aggregate::from_fraction(fraction).unwrap().suffix(), suffix);
        }
        assert_eq!(Aggregate::from_fraction(1.5), None);
        assert_eq!(Aggregate::from_fraction(f64::NAN), None);
    }
}
