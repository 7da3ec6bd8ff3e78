//! Treatment of corrections and repeated buckets by each type of output.

use weir_protocol::Kind;

use crate::run::outputs::Output;

/// An output's treatment of late records for a bucket that it already has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Correction {
    /// It shows sums: they rise in the next bucket.
    InNextBucket,
    /// Its receivers add up points of equal times: the difference is sent with the time of its bucket.
    AtItsTime,
    /// Its receivers replace points of equal times: a difference would replace the full value.
    None,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CorrectionPolicy {
    pub adds_up: bool,
    output_type: &'static str,
}

impl CorrectionPolicy {
    pub fn of(output_type: &'static str, output: &Output) -> Self {
        let adds_up = match output {
            Output::Scrape(_) => true,
            Output::Delivered(_, delivery) => delivery.keeps_state(),
            Output::Relay(_) => false,
        };
        CorrectionPolicy { adds_up, output_type }
    }

    /// Gauges and sets cannot be added to.
    pub fn correction(&self, kind: Kind) -> Correction {
        let is_sum = kind == Kind::Counter;
        let is_distribution = kind == Kind::Distribution;
        let is_histogram = matches!(kind, Kind::Histogram | Kind::Timing);
        match self.output_type {
            _ if self.adds_up && (is_sum || is_distribution || is_histogram) => Correction::InNextBucket,
            _ if self.adds_up => Correction::None,
            "otlp" if is_sum || is_distribution || is_histogram => Correction::AtItsTime,
            // They show maximum and percentiles of a histogram, which cannot be added.
            "stdout" | "file" if is_sum || is_distribution => Correction::AtItsTime,
            "datadog" if is_distribution => Correction::AtItsTime,
            _ => Correction::None,
        }
    }

    /// The backend's handling of a repeated bucket.
    pub fn repeats_are(&self) -> &'static str {
        match self.output_type {
            _ if self.adds_up => "replaced",
            "graphite" | "influx" => "replaced",
            "datadog" => "distributions_added_up",
            _ => "added_up",
        }
    }
}
