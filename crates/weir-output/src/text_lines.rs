//! Common to outputs of text lines: the values of a series, and the format of numbers.

use weir_aggregate::{Histogram, Ordered, Series, Totals, Weights};
use weir_config::choices;
use weir_sketch::Sketch;

choices! {
    /// Whether the host becomes a tag.
    pub enum Host {
        All: "all",
        Named: "named",
        None: "none",
    }
}

choices! {
    pub enum Aggregate {
        Count: "count",
        Min: "min",
        Max: "max",
        Avg: "avg",
        Sum: "sum",
    }
}

impl Host {
    /// The value of the tag, if there is one.
    pub fn of<'a>(self, series: &Series<'a>) -> Option<&'a str> {
        let host = match self {
            Host::All => Some(series.host()),
            Host::Named => series.explicit_host(),
            Host::None => None,
        };
        host.filter(|host| !host.is_empty())
    }
}

/// One of several values of a histogram, timing or distribution.
#[derive(Clone, Copy, Debug)]
pub enum Part {
    Aggregate(Aggregate),
    Percentile(f64),
}

impl Part {
    /// The written values with their names: aggregates in their order, then percentiles by size, each once.
    pub fn list(
        aggregates: &[Aggregate],
        percentiles: &[f64],
        aggregate_name: fn(Aggregate) -> &'static str,
        percentile_name: fn(f64) -> String,
    ) -> Vec<(Part, String)> {
        let mut percentiles = percentiles.to_vec();
        percentiles.sort_by(f64::total_cmp);
        let aggregates = aggregates
            .iter()
            .map(|aggregate| (Part::Aggregate(*aggregate), aggregate_name(*aggregate).to_owned()));
        let percentiles = percentiles
            .into_iter()
            .map(|fraction| (Part::Percentile(fraction), percentile_name(fraction)));
        let mut parts: Vec<(Part, String)> = Vec::new();
        for (part, name) in aggregates.chain(percentiles) {
            if parts.iter().all(|(_, known)| *known != name) {
                parts.push((part, name));
            }
        }
        parts
    }
}

/// The summary of a bucket's values.
pub enum Summary<'a> {
    Samples {
        histogram: &'a Histogram,
        totals: Totals,
        ordered: Ordered<'a>,
    },
    Sketch(&'a Sketch),
}

impl<'a> Summary<'a> {
    pub fn of_histogram(histogram: &'a Histogram) -> Self {
        Summary::Samples {
            histogram,
            totals: histogram.totals(),
            ordered: histogram.ordered(),
        }
    }

    pub fn get(&self, part: Part) -> f64 {
        match self {
            Summary::Samples {
                histogram,
                totals,
                ordered,
            } => match part {
                Part::Aggregate(Aggregate::Count) => histogram.count(Weights::Exact),
                Part::Aggregate(Aggregate::Min) => totals.min,
                Part::Aggregate(Aggregate::Max) => totals.max,
                Part::Aggregate(Aggregate::Avg) => histogram.average(Weights::Exact),
                Part::Aggregate(Aggregate::Sum) => totals.sum,
                Part::Percentile(fraction) => ordered.quantile(fraction),
            },
            Summary::Sketch(sketch) => match part {
                Part::Aggregate(Aggregate::Count) => sketch.cnt() as f64,
                Part::Aggregate(Aggregate::Min) => sketch.min(),
                Part::Aggregate(Aggregate::Max) => sketch.max(),
                Part::Aggregate(Aggregate::Avg) => sketch.avg(),
                Part::Aggregate(Aggregate::Sum) => sketch.sum(),
                Part::Percentile(fraction) => sketch.quantile(fraction),
            },
        }
    }
}

/// A fraction in percent. Hundredths of hundredths are what people ask for; more digits would be those of the binary fraction.
pub fn percent(fraction: f64) -> f64 {
    (fraction * 1e8).round() / 1e6
}

/// The shortest decimal that reads back equal.
pub fn push_value(text: &mut Vec<u8>, value: f64) {
    if value.fract() == 0.0 && value.abs() < 1e15 {
        push_integer(text, value as i64);
    } else {
        text.extend_from_slice(ryu::Buffer::new().format_finite(value).as_bytes());
    }
}

pub fn push_integer(text: &mut Vec<u8>, value: i64) {
    text.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
}
