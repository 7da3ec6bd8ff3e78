//! Settings of the Prometheus scrape endpoint.

use std::time::Duration;

use weir_config::{DURATION_MAX, Kind, choices, settings};

use super::{OutputSettings, OutputType};

settings! {
    /// `/metrics` on the admin address.
    pub struct PrometheusSettings {
        expiry: Duration = "300s"
            .takes(Kind::Duration { min: Duration::from_secs(1), max: DURATION_MAX })
            .effect("A series that got no sample for this long leaves the exposition; seen again, a counter restarts at what it then gets.")
            .who("Operators who scrape less often than every five minutes.");
        histograms: HistogramStyle = "summary"
            .effect("How `h` and `ms` metrics are exposed.")
            .who("Users of native histograms.");
        distributions: HistogramStyle = "native"
            .effect("How `d` metrics are exposed. A scraper that does not ask for the protobuf format gets a summary.")
            .who("Users whose Prometheus has native histograms on but whose dashboards want quantiles.");
        quantiles: Vec<f64> = "[0.5, 0.9, 0.95, 0.99]"
            .takes(Kind::List(&Kind::Number { min: 0.0, max: 1.0 }))
            .effect("Quantiles of a summary.")
            .zero("With an empty list a summary has its `_sum` and `_count` only.")
            .who("Dashboards that need another quantile.");
        timings_in_seconds: bool = "false"
            .effect("Divides `ms` values by 1000, as statsd_exporter does.")
            .who("Operators who come from statsd_exporter.");
        host_label: bool = "true"
            .effect("Adds the label `host` where a message names its host, as in `host:web1`.")
            .who("Operators whose scrape configuration already names the instance.");
    }
}

choices! {
    /// How a histogram, timing or distribution is exposed.
    pub enum HistogramStyle {
        /// Quantiles, `_sum` and `_count`.
        Summary: "summary",
        /// A native histogram to scrapers that ask for the protobuf format, a summary to the others.
        Native: "native",
    }
}

pub(super) const TYPE: OutputType = OutputType {
    name: "prometheus",
    summary: "Serves every series at `/metrics` on the admin address.",
    on_by_default: true,
    settings: PrometheusSettings::SETTINGS,
    gone: &[],
    read: |output| {
        let mut settings: PrometheusSettings = output.read(|_, _| {}, |_| Ok(()))?;
        settings.quantiles.sort_by(f64::total_cmp);
        settings.quantiles.dedup();
        Some(OutputSettings::Prometheus(settings))
    },
};
