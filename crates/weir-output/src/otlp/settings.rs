//! Settings of the OTLP output.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;

use crate::settings::{
    DELIVERY, DURATION_MAX, Delivered, DeliverySettings, Kind, OutputType, Secret, Setting, SettingProblem,
    URL, check_token, setting,
};
use crate::sums::Counters;

/// The collector to export to, and how.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OtlpSettings {
    pub url: String,
    pub protocol: Protocol,
    pub compression: OtlpCompression,
    pub headers: BTreeMap<String, Secret>,
    pub bearer_token: Secret,
    pub resource_attributes: BTreeMap<String, String>,
    pub temporality: Temporality,
    pub monotonic_counters: bool,
    pub expiry: Duration,
    pub histograms: OtlpHistograms,
    pub quantiles: Vec<f64>,
    pub buckets_max: usize,
    pub points_per_payload_max: u32,
    pub delivery: DeliverySettings,
}

impl OtlpSettings {
    pub fn counters(&self) -> Counters {
        if self.monotonic_counters {
            Counters::Monotonic
        } else {
            Counters::UpDown
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Protocol {
    /// Protobuf in HTTP POST requests.
    Http,
    Grpc,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OtlpCompression {
    Gzip,
    None,
}

/// What a sum or histogram covers: its bucket, or everything since it began.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Temporality {
    Delta = 1,
    Cumulative = 2,
}

/// How `h` and `ms` metrics are exported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OtlpHistograms {
    Exponential,
    Summary,
}

const SETTINGS: &[Setting] = &[
    setting("url", URL, "''")
        .effect("The collector's base URL, such as `http://127.0.0.1:4318` for HTTP or `http://127.0.0.1:4317` for gRPC. `/v1/metrics` and the name of the gRPC method are appended.")
        .who("Everyone who exports OTLP; setting it in the environment switches the output on.")
        .required(),
    setting("protocol", Kind::Choice(&["http", "grpc"]), "http")
        .effect("Protobuf over HTTP, or gRPC.")
        .who("Operators of a collector that takes gRPC alone."),
    setting("compression", Kind::Choice(&["gzip", "none"]), "gzip")
        .effect("How requests are compressed.")
        .who("Those with a collector on the same machine."),
    setting("headers", Kind::Map(&Kind::Secret), "{}")
        .effect("Headers of every request (metadata in gRPC), such as `Authorization`. Values are never shown.")
        .who("Operators of a backend that asks for a key."),
    setting("headers_file", Kind::Map(&Kind::Text), "{}")
        .effect("As `headers`, each value in a file. The files are read again when they change.")
        .who("Those who keep keys in files.")
        .file_of("headers"),
    setting("bearer_token", Kind::Secret, "''")
        .effect("The token of every request's header `Authorization: Bearer TOKEN`. It is never shown.")
        .zero("Empty: there is no such header.")
        .who("Operators of a backend that asks for a token."),
    setting("bearer_token_file", Kind::Text, "''")
        .effect("A file with the token. It is read again when it changes.")
        .zero("Empty: the token is not in a file.")
        .who("Those whose tokens are replaced while weir runs, as Kubernetes does with those of service accounts.")
        .file_of("bearer_token"),
    setting("resource_attributes", Kind::Map(&Kind::Text), "{}")
        .effect("Attributes of every resource, such as `service.name: checkout`. `host.name` comes from the metrics unless it is set here.")
        .who("Nearly everyone: backends sort by `service.name`."),
    setting("temporality", Kind::Choice(&["delta", "cumulative"]), "delta")
        .effect("Whether sums and histograms cover their bucket (`delta`) or everything since they began (`cumulative`).")
        .who("Those whose backend wants cumulative values, as Prometheus does."),
    setting("monotonic_counters", Kind::Bool, "true")
        .effect("Counters are monotonic sums, and a bucket of one that adds up to less than zero is refused and counted as `negative_counter`. `false`: they are sums that may fall, all of them, and nothing is refused.")
        .who("Those who count down as well as up, and whose backend takes such sums."),
    setting("expiry", Kind::Duration { min: Duration::from_secs(1), max: DURATION_MAX }, "300s")
        .effect("With `cumulative`: a series that got no sample for this long ends. Two buckets at least. `delta` keeps nothing.")
        .who("Those with many short-lived series."),
    setting("histograms", Kind::Choice(&["exponential", "summary"]), "exponential")
        .effect("How `h` and `ms` metrics are exported.")
        .who("Those whose backend has no exponential histograms."),
    setting("quantiles", Kind::List(&Kind::Number { min: 0.0, max: 1.0 }), "[0.5, 0.9, 0.95, 0.99]")
        .effect("Quantiles of a summary.")
        .zero("With an empty list a summary has its sum and count only.")
        .who("Dashboards that need another quantile."),
    setting("buckets_max", Kind::Integer { min: 2, max: 1024 }, "160")
        .effect("The most buckets of each sign of an exponential histogram, empty ones in between counted. With more, the scale is lowered.")
        .who("Those with values over many orders of magnitude who want them finer."),
    setting("points_per_payload_max", Kind::Integer { min: 1, max: 1_000_000 }, "8192")
        .effect("Data points after which a request ends. One also ends before 3.5 MiB, as gRPC servers take 4 MiB by default.")
        .who("Operators of a collector that takes less at once."),
    setting("delivery", Kind::Record(DELIVERY), "{}")
        .effect("Timeouts, retry and the disk queue. `concurrency` has no effect: requests go one after the other, in the order of time."),
];

pub(crate) const TYPE: OutputType = OutputType {
    name: "otlp",
    summary: "Exports metrics to an OpenTelemetry collector or backend, over HTTP or gRPC.",
    on_by_default: false,
    settings: SETTINGS,
    environment: &[],
    load: |values| Delivered::load(values, check),
};

fn check(settings: &OtlpSettings) -> Result<(), SettingProblem> {
    if settings.resource_attributes.keys().any(String::is_empty) {
        return Err(SettingProblem::new(
            "resource_attributes",
            "an attribute without a name",
        ));
    }
    check_token(&settings.bearer_token, &settings.headers)?;
    settings.delivery.check()
}
