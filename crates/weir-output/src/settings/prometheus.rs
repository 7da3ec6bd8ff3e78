//! Settings of the Prometheus scrape endpoint.

use std::time::Duration;

use serde::Deserialize;

use super::{DURATION_MAX, Kind, OutputSettings, OutputType, Setting, SettingProblem, from_values, setting};

/// `/metrics` on the admin address.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PrometheusSettings {
    pub expiry: Duration,
    pub histograms: HistogramStyle,
    pub distributions: HistogramStyle,
    pub quantiles: Vec<f64>,
    pub timings_in_seconds: bool,
    pub host_label: bool,
}

/// How a histogram, timing or distribution is exposed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HistogramStyle {
    /// Quantiles, `_sum` and `_count`.
    Summary,
    /// A native histogram to scrapers that ask for the protobuf format, a summary to the others.
    Native,
}

pub(crate) const STYLES: &[&str] = &["summary", "native"];

const SETTINGS: &[Setting] = &[
    setting("expiry", Kind::Duration { min: Duration::from_secs(1), max: DURATION_MAX }, "300s")
        .effect("A series that got no sample for this long leaves the exposition; seen again, a counter restarts at what it then gets.")
        .who("Whoever scrapes less often than every five minutes."),
    setting("histograms", Kind::Choice(STYLES), "summary")
        .effect("How `h` and `ms` metrics are exposed.")
        .who("Users of native histograms."),
    setting("distributions", Kind::Choice(STYLES), "native")
        .effect("How `d` metrics are exposed. A scraper that does not ask for the protobuf format gets a summary.")
        .who("Users whose Prometheus has native histograms on but whose dashboards want quantiles."),
    setting("quantiles", Kind::List(&Kind::Number { min: 0.0, max: 1.0 }), "[0.5, 0.9, 0.95, 0.99]")
        .effect("Quantiles of a summary.")
        .zero("With an empty list a summary has its `_sum` and `_count` only.")
        .who("Dashboards that need another quantile."),
    setting("timings_in_seconds", Kind::Bool, "false")
        .effect("Divides `ms` values by 1000, as statsd_exporter does.")
        .who("Those who come from statsd_exporter."),
    setting("host_label", Kind::Bool, "true")
        .effect("Adds the label `host` where a message names its host, as in `host:web1`.")
        .who("Those whose scrape configuration already names the instance."),
];

pub(super) const TYPE: OutputType = OutputType {
    name: "prometheus",
    summary: "Serves every series at `/metrics` on the admin address.",
    on_by_default: true,
    settings: SETTINGS,
    environment: &[],
    load,
};

fn load(values: serde_json::Value) -> Result<OutputSettings, SettingProblem> {
    let mut settings: PrometheusSettings = from_values(values)?;
    settings.quantiles.sort_by(f64::total_cmp);
    settings.quantiles.dedup();
    Ok(OutputSettings::Prometheus(settings))
}
