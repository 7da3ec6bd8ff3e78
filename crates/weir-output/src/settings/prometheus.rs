//! Settings of the Prometheus scrape endpoint.

use std::time::Duration;

use weir_config::{DURATION_MAX, MatchType, MetricType, SettingType, choices, kinds, pattern, settings};
use weir_rules::{Kinds, Pattern};

use super::{OutputSettings, OutputType, SettingProblem};
use crate::prometheus::Forms;

/// Finite or not is looked at when they are used.
const BOUND: SettingType = SettingType::Number {
    min: f64::NEG_INFINITY,
    max: f64::INFINITY,
};

settings! {
    /// `/metrics` on the admin address.
    pub struct PrometheusSettings {
        expiry: Duration = "300s"
            .takes(SettingType::Duration { min: Duration::from_secs(1), max: DURATION_MAX })
            .effect("A series without a sample for this long leaves the exposition; if it returns, a counter restarts from zero.")
            .change("if you scrape less often than every five minutes.");
        histograms: HistogramStyle = "summary"
            .effect("The form of exposed `h` and `ms` metrics.")
            .change("if you use native histograms.");
        distributions: HistogramStyle = "native"
            .effect("The form of exposed `d` metrics. A scraper that does not ask for the protobuf format gets a summary.")
            .change("if your Prometheus has native histograms on but your dashboards want quantiles.");
        quantiles: Vec<f64> = "[0.5, 0.9, 0.95, 0.99]"
            .takes(SettingType::List(&SettingType::Number { min: 0.0, max: 1.0 }))
            .effect("Quantiles of a summary.")
            .zero("With an empty list a summary has its `_sum` and `_count` only.")
            .change("if your dashboards need another quantile.");
        buckets: Vec<f64> = "[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10]"
            .takes(SettingType::List(&BOUND))
            .effect("Upper bounds of the buckets of the style `classic`; a bucket without a bound follows.")
            .zero("An empty list: only the bucket without a bound.")
            .change("if your values are not seconds, or lie close together.");
        timings_in_seconds: bool = "false"
            .effect("Divides `ms` values by 1000, as statsd_exporter does.")
            .change("if you migrate from statsd_exporter.");
        host_label: bool = "true"
            .effect("Adds the label `host` if a message names its host, as in `host:web1`.")
            .change("if your scrape configuration already names the instance.");
        total_suffix: bool = "true"
            .effect("Names of counters end in `_total`, as OpenMetrics requires. Off, names stay as they are, and counters without `_total` have an unknown type in OpenMetrics.")
            .change("if you migrate from statsd_exporter.");
        openmetrics_created: bool = "false"
            .effect("Shows the start time of each sum as a series `_created` of OpenMetrics. The protobuf format always has it, but not as a series.")
            .change("if your OpenMetrics scraper uses it; Prometheus stores it as one more series.");
        merge_names: bool = "false"
            .effect("Metrics whose names are equal here and that have one type of Prometheus are one metric, and series with the same labels add up, as in statsd_exporter. Off, all but one get a suffix.")
            .change("if you migrate from statsd_exporter.");
        metrics: Vec<MetricForm> = "[]"
            .effect("The exposition of metrics with certain names, kinds or tags; the first entry that matches applies. `docs/outputs/prometheus.md` has every field.")
            .zero("An empty list: the other settings apply to all.")
            .change("if your metrics need their own buckets, quantiles, units, help texts or expiry.");
    }
}

settings! {
    /// Exposition of selected metrics. Missing options are those of the output.
    pub struct MetricForm {
        pattern: String = "''".named("match");
        match_type: MatchType = "wildcard";
        types: Vec<MetricType> = "[]";
        tag: String = "''";
        style: FormStyle = "default";
        buckets: Vec<f64> = "[]".takes(SettingType::List(&BOUND));
        quantiles: Vec<f64> = "[]".takes(SettingType::List(&SettingType::Number { min: 0.0, max: 1.0 }));
        help: String = "''";
        expiry: Duration = "0".takes(SettingType::Duration { min: Duration::ZERO, max: DURATION_MAX });
        scale: f64 = "1".takes(BOUND);
    }
}

impl Default for MetricForm {
    /// As declared, for every metric.
    fn default() -> Self {
        MetricForm {
            pattern: String::new(),
            match_type: MatchType::Wildcard,
            types: Vec::new(),
            tag: String::new(),
            style: FormStyle::Default,
            buckets: Vec::new(),
            quantiles: Vec::new(),
            help: String::new(),
            expiry: Duration::ZERO,
            scale: 1.0,
        }
    }
}

impl MetricForm {
    pub(crate) fn pattern(&self) -> Pattern {
        pattern(&self.pattern, self.match_type)
    }

    pub(crate) fn kinds(&self) -> Kinds {
        kinds(&self.types)
    }
}

choices! {
    /// Exposition of histograms, timings and distributions in an entry of `metrics`.
    pub enum FormStyle {
        /// As the output does.
        Default: "default",
        Summary: "summary",
        Native: "native",
        Classic: "classic",
    }
}

impl Default for PrometheusSettings {
    /// As declared, for outputs with such a state and other settings.
    fn default() -> Self {
        PrometheusSettings {
            expiry: Duration::from_secs(300),
            histograms: HistogramStyle::Summary,
            distributions: HistogramStyle::Native,
            quantiles: vec![0.5, 0.9, 0.95, 0.99],
            buckets: vec![0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0],
            timings_in_seconds: false,
            host_label: true,
            total_suffix: true,
            openmetrics_created: false,
            merge_names: false,
            metrics: Vec::new(),
        }
    }
}

choices! {
    /// Exposition of a histogram, timing or distribution.
    pub enum HistogramStyle {
        /// Quantiles, `_sum` and `_count`.
        Summary: "summary",
        /// A native histogram to scrapers that ask for the protobuf format, a summary to the others.
        Native: "native",
        /// Buckets with bounds of their own, and to scrapers that ask for the protobuf format native ones beside them.
        Classic: "classic",
    }
}

fn check(settings: &PrometheusSettings) -> Result<(), SettingProblem> {
    for (at, form) in settings.metrics.iter().enumerate() {
        let problem =
            |field: &str, message| Err(SettingProblem::new(format!("metrics[{at}].{field}"), message));
        if form.pattern.is_empty() && form.types.is_empty() && form.tag.is_empty() {
            return problem(
                "match",
                "is missing; must be a pattern of names, or types or tag must say which metrics",
            );
        }
        if !form.scale.is_finite() || form.scale == 0.0 {
            return problem("scale", "must be a number other than zero");
        }
        if !form.expiry.is_zero() && form.expiry < Duration::from_secs(1) {
            return problem("expiry", "must be 0 or at least 1s");
        }
    }
    Forms::new(&settings.metrics).map(drop)
}

pub(super) const TYPE: OutputType = OutputType {
    name: "prometheus",
    summary: "Serves every series at `/metrics` on the admin address.",
    on_by_default: true,
    settings: PrometheusSettings::SETTINGS,
    removed: &[],
    read: |output| {
        let mut settings: PrometheusSettings = output.read(|_, _| {}, check)?;
        settings.quantiles.sort_by(f64::total_cmp);
        settings.quantiles.dedup();
        Some(OutputSettings::Prometheus(settings))
    },
};
