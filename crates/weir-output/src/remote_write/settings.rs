//! Settings of the Prometheus remote write output.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;

use crate::settings::{
    DELIVERY, DURATION_MAX, Delivered, DeliverySettings, HistogramStyle, Kind, OutputType,
    PrometheusSettings, STYLES, Secret, Setting, SettingProblem, URL, check_token, setting,
};

/// The receiver to write to, and how.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RemoteWriteSettings {
    pub url: String,
    pub version: RemoteWriteVersion,
    pub headers: BTreeMap<String, Secret>,
    pub bearer_token: Secret,
    pub labels: BTreeMap<String, String>,
    pub instance_label: bool,
    pub expiry: Duration,
    pub repeat_idle: bool,
    pub zero_samples: bool,
    pub histograms: HistogramStyle,
    pub distributions: HistogramStyle,
    pub quantiles: Vec<f64>,
    pub timings_in_seconds: bool,
    pub host_label: bool,
    pub samples_per_payload_max: u32,
    pub delivery: DeliverySettings,
}

/// The version of the protocol. The numbers are in disk queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub enum RemoteWriteVersion {
    #[serde(rename = "1.0")]
    V1 = 0,
    #[serde(rename = "2.0")]
    V2 = 1,
}

impl RemoteWriteSettings {
    /// What decides about series, as the scrape endpoint has it.
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
        }
    }
}

const SETTINGS: &[Setting] = &[
    setting("url", URL, "''")
        .effect("Where to write, path included, such as `https://prometheus.example:9090/api/v1/write`.")
        .who("Everyone who writes to Prometheus or to a system that takes its remote write; setting it in the environment switches the output on.")
        .required(),
    setting("version", Kind::Choice(&["1.0", "2.0"]), "1.0")
        .effect("The version of the remote write protocol. 2.0 is smaller and carries start times; the receiver must know it, as Prometheus does from 3.0 on.")
        .who("Operators of a receiver that takes 2.0."),
    setting("headers", Kind::Map(&Kind::Secret), "{}")
        .effect("Headers of every request, such as `Authorization` or `X-Scope-OrgID`. Values are never shown.")
        .who("Operators of a receiver that asks for a key or a tenant."),
    setting("headers_file", Kind::Map(&Kind::Text), "{}")
        .effect("As `headers`, each value in a file. The files are read again when they change.")
        .who("Those who keep keys in files.")
        .file_of("headers"),
    setting("bearer_token", Kind::Secret, "''")
        .effect("The token of every request's header `Authorization: Bearer TOKEN`. It is never shown.")
        .zero("Empty: there is no such header.")
        .who("Operators of a receiver that asks for a token."),
    setting("bearer_token_file", Kind::Text, "''")
        .effect("A file with the token. It is read again when it changes.")
        .zero("Empty: the token is not in a file.")
        .who("Those whose tokens are replaced while weir runs, as Kubernetes does with those of service accounts.")
        .file_of("bearer_token"),
    setting("labels", Kind::Map(&Kind::Text), "{}")
        .effect("Labels that every series gets, such as `job: weir`. A tag of the same name goes before it.")
        .who("Those with several clusters or teams in one receiver."),
    setting("instance_label", Kind::Bool, "true")
        .effect("Adds the label `instance` with the agent's host name, unless `labels` has one. Without it no two agents may write to one receiver: they would write the same series.")
        .who("Those whose `labels` name the agent already."),
    setting("expiry", Kind::Duration { min: Duration::from_secs(1), max: DURATION_MAX }, "300s")
        .effect("A series that got no sample for this long ends with a staleness marker; seen again, a counter restarts at what it then gets. Two buckets at least.")
        .who("Those with many short-lived series."),
    setting("repeat_idle", Kind::Bool, "true")
        .effect("Writes every series in every bucket until it expires, as a scrape would; otherwise only in buckets in which it got a sample.")
        .who("Those with many rarely used series who can live with rates that end early."),
    setting("zero_samples", Kind::Bool, "true")
        .effect("Writes a 0 where a counter, sum, count or native histogram begins, so that `increase()` counts its first value and sees every restart.")
        .who("Those whose receiver makes zeros of start times itself."),
    setting("histograms", Kind::Choice(STYLES), "summary")
        .effect("How `h` and `ms` metrics are written.")
        .who("Users of native histograms."),
    setting("distributions", Kind::Choice(STYLES), "native")
        .effect("How `d` metrics are written: as native histograms, or as quantiles with `_sum` and `_count`.")
        .who("Operators of a receiver without native histograms, such as VictoriaMetrics or a Prometheus that has them off."),
    setting("quantiles", Kind::List(&Kind::Number { min: 0.0, max: 1.0 }), "[0.5, 0.9, 0.95, 0.99]")
        .effect("Quantiles of a summary.")
        .zero("With an empty list a summary has its `_sum` and `_count` only.")
        .who("Dashboards that need another quantile."),
    setting("timings_in_seconds", Kind::Bool, "false")
        .effect("Divides `ms` values by 1000, as statsd_exporter does.")
        .who("Those who come from statsd_exporter."),
    setting("host_label", Kind::Bool, "true")
        .effect("Adds the label `host` where a message names its host, as in `host:web1`.")
        .who("Those who do not want it."),
    setting("samples_per_payload_max", Kind::Integer { min: 1, max: 1_000_000 }, "10000")
        .effect("Samples after which a request ends.")
        .who("Operators of a receiver that takes less at once."),
    setting("delivery", Kind::Record(DELIVERY), "{}")
        .effect("Timeouts, retry and the disk queue. `concurrency` has no effect: requests go one after the other, as samples must arrive in order."),
];

pub(crate) const TYPE: OutputType = OutputType {
    name: "remote_write",
    summary: "Writes cumulative series to Prometheus, or whatever takes its remote write, 1.0 or 2.0.",
    on_by_default: false,
    settings: SETTINGS,
    environment: &[],
    load: |values| Delivered::load(values, check),
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
    check_token(&settings.bearer_token, &settings.headers)?;
    settings.delivery.check()
}
