//! Treatment of corrections and repeated buckets by each type of output.

use weir_merge::CorrectionPolicy;

use weir_agent::run::outputs::Output;

/// The kinds that an output can add to a bucket that it already has.
pub fn corrections(output_type: &str, output: &Output) -> CorrectionPolicy {
    let adds_up = match output {
        Output::Scrape(_) => true,
        Output::Delivered(_, delivery) => delivery.keeps_state(),
        Output::Relay(_) => false,
    };
    // Files show maximum and percentiles of a histogram, which cannot be added.
    let (counters, distributions, histograms) = match output_type {
        "otlp" => (true, true, true),
        "stdout" | "file" => (true, true, false),
        "datadog" => (false, true, false),
        _ => (false, false, false),
    };
    CorrectionPolicy {
        adds_up,
        counters,
        distributions,
        histograms,
    }
}

/// The backend's handling of a repeated bucket.
pub fn repeats_are(output_type: &str, policy: &CorrectionPolicy) -> &'static str {
    match output_type {
        _ if policy.adds_up => "replaced",
        "graphite" | "influx" => "replaced",
        "datadog" => "distributions_added_up",
        _ => "added_up",
    }
}
