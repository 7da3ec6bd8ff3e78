//! Settings of the Prometheus remote write output.

use std::collections::BTreeMap;
use std::time::Duration;

use weir_config::{DURATION_MAX, SettingProblem, SettingType, choices, settings};

use crate::settings::{
    Authorization, BatchOutput, DeliverySettings, HistogramStyle, OutputType, PrometheusSettings, URL,
};

/// Classic buckets are for scrapes.
const STYLES: SettingType = SettingType::Choice(&["summary", "native"]);

settings! {
    /// The receiver to write to, and how.
    pub struct RemoteWriteSettings {
        url: String = "''"
            .takes(URL)
            .effect("The receiver's URL, path included, such as `https://prometheus.example:9090/api/v1/write`.")
            .change("to write to Prometheus or to a system that accepts its remote write; setting it in the environment switches the output on.")
            .required();
        version: RemoteWriteVersion = "1.0"
            .effect("The version of the remote write protocol. 2.0 is smaller and contains start times; the receiver must support it, like Prometheus from 3.0 on.")
            .change("if your receiver supports 2.0.");
        authorization: Authorization = "{}".flat();
        labels: BTreeMap<String, String> = "{}"
            .effect("Labels that every series gets, such as `job: weir`. A tag of the same name overrides it.")
            .change("if several clusters or teams share one receiver.");
        instance_label: bool = "true"
            .effect("Adds the label `instance` with the agent's host name, unless `labels` has one. Without it two agents cannot write to one receiver: they would write the same series.")
            .change("if your `labels` name the agent already.");
        expiry: Duration = "300s"
            .takes(SettingType::Duration { min: Duration::from_secs(1), max: DURATION_MAX })
            .effect("A series without a sample for this long ends with a staleness marker; if it returns, a counter restarts from zero. At least two buckets.")
            .change("if you have many short-lived series.");
        repeat_idle: bool = "true"
            .effect("Writes every series in every bucket until it expires, like a scrape; otherwise only in buckets in which it got a sample.")
            .change("if you have many rarely used series.");
        zero_samples: bool = "true"
            .effect("Writes a 0 at the start of a counter, sum, count or native histogram, so that `increase()` counts its first value and sees every restart.")
            .change("if your receiver derives zeros from start times.");
        histograms: HistogramStyle = "summary"
            .takes(STYLES)
            .effect("The form of written `h` and `ms` metrics.")
            .change("if you use native histograms.");
        distributions: HistogramStyle = "native"
            .takes(STYLES)
            .effect("The form of written `d` metrics: native histograms, or quantiles with `_sum` and `_count`.")
            .change("if your receiver has no native histograms, such as VictoriaMetrics or a Prometheus that has them off.");
        quantiles: Vec<f64> = "[0.5, 0.9, 0.95, 0.99]"
            .takes(SettingType::List(&SettingType::Number { min: 0.0, max: 1.0 }))
            .effect("Quantiles of a summary.")
            .zero("With an empty list a summary has its `_sum` and `_count` only.")
            .change("if your dashboards need another quantile.");
        timings_in_seconds: bool = "false"
            .effect("Divides `ms` values by 1000, as statsd_exporter does.")
            .change("if you migrate from statsd_exporter.");
        host_label: bool = "true"
            .effect("Adds the label `host` if a message names its host, as in `host:web1`.")
            .change("if you do not want it.");
        samples_per_payload_max: u32 = "10000"
            .takes(SettingType::Integer { min: 1, max: 1_000_000 })
            .effect("A request ends after this many samples.")
            .change("if your receiver has a lower limit.");
        /// `concurrency` has no effect: requests are sequential, in the order of time.
        delivery: DeliverySettings = "{}";
    }
}

choices! {
    /// The version of the protocol. The numbers are in disk queues.
    pub enum RemoteWriteVersion {
        V1 = 0: "1.0",
        V2 = 1: "2.0",
    }
}

impl RemoteWriteSettings {
    /// The options of series, as in the scrape endpoint.
    pub fn as_scrape(&self) -> PrometheusSettings {
        let mut quantiles = self.quantiles.clone();
        quantiles.sort_by(f64::total_cmp);
        quantiles.dedup();
        PrometheusSettings {
            expiry: self.expiry,
            histograms: self.histograms,
            distributions: self.distributions,
            quantiles,
            timings_in_seconds: self.timings_in_seconds,
            host_label: self.host_label,
            ..PrometheusSettings::default()
        }
    }
}

pub(crate) const TYPE: OutputType = OutputType {
    name: "remote_write",
    summary: "Writes cumulative series to Prometheus or any other receiver of remote write 1.0 or 2.0.",
    on_by_default: false,
    settings: RemoteWriteSettings::SETTINGS,
    removed: &[],
    read: |output| {
        BatchOutput::read(
            output,
            |settings: &mut RemoteWriteSettings, files| settings.authorization.read(files),
            check,
        )
    },
};

fn check(settings: &RemoteWriteSettings) -> Result<(), SettingProblem> {
    for (name, value) in &settings.labels {
        let is_name = name
            .bytes()
            .enumerate()
            .all(|(at, byte)| byte == b'_' || byte.is_ascii_alphabetic() || at > 0 && byte.is_ascii_digit());
        if !is_name
            || name.is_empty()
            || name.starts_with("__")
            || ["quantile", "le"].contains(&name.as_str())
        {
            let message = format!(
                "{name:?} cannot be a label here; allowed are letters, digits and _, not __ in front, not quantile or le"
            );
            return Err(SettingProblem::new("labels", message));
        }
        if value.is_empty() {
            return Err(SettingProblem::new(
                "labels",
                format!("{name} is empty; leave it out instead"),
            ));
        }
    }
    settings.authorization.check()
}
