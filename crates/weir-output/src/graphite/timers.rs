//! StatsD's series of a timer. As in that server, statistics are of the samples that came, and only the counts take sample rates into account.

use weir_aggregate::{Histogram, Value, Weights};
use weir_config::choices;
use weir_sketch::Sketch;

use super::names;

choices! {
    /// One of StatsD's series; those of percentiles (`pct`) occur once for each.
    pub enum TimerSeries {
        Count: "count",
        CountPs: "count_ps",
        Lower: "lower",
        Upper: "upper",
        Mean: "mean",
        Median: "median",
        Std: "std",
        Sum: "sum",
        SumSquares: "sum_squares",
        CountPct: "count_pct",
        MeanPct: "mean_pct",
        SumPct: "sum_pct",
        SumSquaresPct: "sum_squares_pct",
        UpperPct: "upper_pct",
    }
}

/// The series of each timer.
pub struct Timers {
    /// With the fraction of a percentile, and the suffix of the name.
    series: Vec<(TimerSeries, f64, String)>,
}

impl Timers {
    /// `None`: there are none.
    pub fn new(series: &[TimerSeries], percentiles: &[f64]) -> Option<Self> {
        let mut all: Vec<(TimerSeries, f64, String)> = Vec::new();
        for &one in series {
            match one.as_str().strip_suffix("_pct") {
                None => all.push((one, 1.0, format!(".{}", one.as_str()))),
                Some(name) => all.extend(percentiles.iter().map(|&fraction| {
                    let percent = names::percentile(fraction);
                    (
                        one,
                        fraction,
                        format!(".{name}_{}", percent.trim_start_matches('p')),
                    )
                })),
            }
        }
        let mut seen = std::collections::HashSet::new();
        all.retain(|(_, _, suffix)| seen.insert(suffix.clone()));
        (!series.is_empty()).then_some(Timers { series: all })
    }

    /// Number of series of a timer.
    pub fn len(&self) -> usize {
        self.series.len()
    }

    /// Calls `each` with the suffix and the value of every series. `interval`: seconds of the bucket.
    pub fn each(&self, value: Value<'_>, interval: f64, mut each: impl FnMut(&str, f64)) {
        let samples = match value {
            Value::Histogram(histogram) => Samples::of_histogram(histogram),
            Value::Distribution(sketch) => Samples::of_sketch(sketch, sketch.cnt() as f64),
            _ => return,
        };
        for (series, fraction, suffix) in &self.series {
            each(suffix, samples.get(*series, *fraction, interval));
        }
    }
}

/// The samples of a bucket.
struct Samples {
    /// Values with their number, ascending.
    ordered: Vec<(f64, f64)>,
    /// Number of samples.
    number: f64,
    /// The same with sample rates.
    count: f64,
    sum: f64,
}

impl Samples {
    fn of_histogram(histogram: &Histogram) -> Self {
        let count = histogram.count(Weights::Exact);
        if let Some(sketch) = histogram.sketch() {
            return Samples::of_sketch(sketch, count);
        }
        let mut ordered: Vec<(f64, f64)> = histogram.samples().map(|(value, _)| (value, 1.0)).collect();
        ordered.sort_by(|one, other| one.0.total_cmp(&other.0));
        Samples {
            number: ordered.len() as f64,
            sum: ordered.iter().map(|(value, _)| value).sum(),
            ordered,
            count,
        }
    }

    /// The values of a sketch's bins, within its extremes.
    fn of_sketch(sketch: &Sketch, count: f64) -> Self {
        let (min, max) = (sketch.min(), sketch.max());
        let bins = sketch.bins();
        let value = |key| weir_sketch::lower(key).max(min).min(max);
        Samples {
            ordered: bins.iter().map(|bin| (value(bin.k), f64::from(bin.n))).collect(),
            number: bins.iter().map(|bin| f64::from(bin.n)).sum(),
            count,
            sum: sketch.sum(),
        }
    }

    fn get(&self, series: TimerSeries, fraction: f64, interval: f64) -> f64 {
        let square = |value: f64| value * value;
        let mean = self.sum / self.number;
        // StatsD rounds the rank to the nearest sample.
        let within = (fraction * self.number).round().max(1.0);
        match series {
            TimerSeries::Count => self.count.round(),
            TimerSeries::CountPs => self.count / interval,
            TimerSeries::Lower => self.at(1.0),
            TimerSeries::Upper => self.at(self.number),
            TimerSeries::Mean => mean,
            TimerSeries::Median => {
                let middle = (self.number / 2.0).floor();
                if self.number % 2.0 == 0.0 {
                    (self.at(middle) + self.at(middle + 1.0)) / 2.0
                } else {
                    self.at(middle + 1.0)
                }
            }
            TimerSeries::Std => {
                let deviations = self.total(self.number, |value| square(value - mean));
                (deviations / self.number).sqrt()
            }
            TimerSeries::Sum => self.sum,
            TimerSeries::SumSquares => self.total(self.number, square),
            TimerSeries::CountPct => within,
            TimerSeries::MeanPct => self.total(within, |value| value) / within,
            TimerSeries::SumPct => self.total(within, |value| value),
            TimerSeries::SumSquaresPct => self.total(within, square),
            TimerSeries::UpperPct => self.at(within),
        }
    }

    /// The value of this rank, counted from one.
    fn at(&self, rank: f64) -> f64 {
        let mut before = 0.0;
        for &(value, number) in &self.ordered {
            before += number;
            if before >= rank {
                return value;
            }
        }
        self.ordered.last().map_or(0.0, |(value, _)| *value)
    }

    /// The sum of a function over the lowest values, as many as `number`.
    fn total(&self, number: f64, of: impl Fn(f64) -> f64) -> f64 {
        let mut left = number;
        let mut sum = 0.0;
        for &(value, number) in &self.ordered {
            let taken = number.min(left);
            sum += of(value) * taken;
            left -= taken;
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [TimerSeries; 14] = [
        TimerSeries::Count,
        TimerSeries::CountPs,
        TimerSeries::Lower,
        TimerSeries::Upper,
        TimerSeries::Mean,
        TimerSeries::Median,
        TimerSeries::Std,
        TimerSeries::Sum,
        TimerSeries::SumSquares,
        TimerSeries::CountPct,
        TimerSeries::MeanPct,
        TimerSeries::SumPct,
        TimerSeries::SumSquaresPct,
        TimerSeries::UpperPct,
    ];

    #[track_caller]
    fn check(value: Value<'_>, expected: &[(&str, f64)]) {
        let timers = Timers::new(&ALL, &[0.9]).unwrap();
        let mut found = Vec::new();
        timers.each(value, 10.0, |suffix, value| {
            found.push((suffix.to_owned(), value))
        });
        assert_eq!(found.len(), timers.len());
        for ((suffix, value), (name, wanted)) in found.iter().zip(expected) {
            assert_eq!(suffix, name);
            assert!(
                (value - wanted).abs() <= 1e-9 * wanted.abs(),
                "{suffix}: {value}, not {wanted}"
            );
        }
        assert_eq!(found.len(), expected.len());
    }

    #[test]
    fn statistics_are_those_of_statsd() {
        let mut histogram = Histogram::default();
        for value in (1..=10).rev() {
            histogram.insert(f64::from(value * 10), 2.0);
        }
        check(
            Value::Histogram(&histogram),
            &[
                (".count", 20.0),
                (".count_ps", 2.0),
                (".lower", 10.0),
                (".upper", 100.0),
                (".mean", 55.0),
                (".median", 55.0),
                (".std", 825f64.sqrt()),
                (".sum", 550.0),
                (".sum_squares", 38_500.0),
                (".count_90", 9.0),
                (".mean_90", 50.0),
                (".sum_90", 450.0),
                (".sum_squares_90", 28_500.0),
                (".upper_90", 90.0),
            ],
        );
    }

    #[test]
    fn one_sample_is_every_statistic() {
        let mut histogram = Histogram::default();
        histogram.insert(4.0, 1.0);
        let expected = [
            1.0, 0.1, 4.0, 4.0, 4.0, 4.0, 0.0, 4.0, 16.0, 1.0, 4.0, 4.0, 16.0, 4.0,
        ];
        let names = [
            ".count",
            ".count_ps",
            ".lower",
            ".upper",
            ".mean",
            ".median",
            ".std",
            ".sum",
            ".sum_squares",
            ".count_90",
            ".mean_90",
            ".sum_90",
            ".sum_squares_90",
            ".upper_90",
        ];
        let expected: Vec<(&str, f64)> = names.into_iter().zip(expected).collect();
        check(Value::Histogram(&histogram), &expected);
    }

    #[test]
    fn a_sketch_is_near_to_the_samples() {
        let mut sketch = Sketch::new();
        (1..=1000).for_each(|value| sketch.insert_one(f64::from(value)));
        let timers = Timers::new(&ALL, &[0.9]).unwrap();
        timers.each(Value::Distribution(&sketch), 1.0, |suffix, value| {
            let wanted = match suffix {
                ".lower" => 1.0,
                ".upper" => 1000.0,
                ".upper_90" | ".count_90" => 900.0,
                ".median" | ".mean" => 500.0,
                ".count" => 1000.0,
                _ => return,
            };
            assert!((value / wanted - 1.0).abs() < 0.02, "{suffix}: {value}");
        });
    }

    #[test]
    fn names_have_no_point_of_a_percent() {
        let timers = Timers::new(&[TimerSeries::UpperPct], &[0.999, 0.999, 0.5]).unwrap();
        let suffixes: Vec<&str> = timers.series.iter().map(|(.., suffix)| suffix.as_str()).collect();
        assert_eq!(suffixes, [".upper_99_9", ".upper_50"]);
        assert!(Timers::new(&[], &[0.5]).is_none());
    }
}
