//! Settings of the OTLP output.

use std::collections::BTreeMap;
use std::time::Duration;

use weir_config::{DURATION_MAX, SettingProblem, SettingType, choices, settings};

use crate::settings::{Authorization, BatchOutput, DeliverySettings, OutputType, URL};
use crate::sums::Counters;

settings! {
    /// The collector to export to, and how.
    pub struct OtlpSettings {
        url: String = "''"
            .takes(URL)
            .effect("The collector's base URL, such as `http://127.0.0.1:4318` for HTTP or `http://127.0.0.1:4317` for gRPC. `/v1/metrics` and the name of the gRPC method are appended.")
            .change("to export OTLP; setting it in the environment switches the output on.")
            .required();
        protocol: Protocol = "http"
            .effect("Protobuf over HTTP, or gRPC.")
            .change("if your collector accepts only gRPC.");
        compression: OtlpCompression = "gzip"
            .effect("How requests are compressed.")
            .change("if your collector is on the same machine.");
        authorization: Authorization = "{}".flat();
        resource_attributes: BTreeMap<String, String> = "{}"
            .effect("Attributes of every resource, such as `service.name: checkout`. `host.name` comes from the metrics unless it is set here.")
            .change("to name your service: backends sort by `service.name`.");
        temporality: Temporality = "delta"
            .effect("Sums and histograms cover their bucket (`delta`) or everything since their start (`cumulative`).")
            .change("if your backend wants cumulative values, as Prometheus does.");
        monotonic_counters: bool = "true"
            .effect("Counters are monotonic sums, and a bucket with a sum below zero is refused and counted as `negative_counter`. `false`: all counters are sums that may fall, and nothing is refused.")
            .change("if you count down too, and your backend accepts such sums.");
        expiry: Duration = "300s"
            .takes(SettingType::Duration { min: Duration::from_secs(1), max: DURATION_MAX })
            .effect("With `cumulative`: a series without a sample for this long ends. At least two buckets. `delta` has no state.")
            .change("if you have many short-lived series.");
        histograms: OtlpHistograms = "exponential"
            .effect("The form of exported `h` and `ms` metrics.")
            .change("if your backend has no exponential histograms.");
        quantiles: Vec<f64> = "[0.5, 0.9, 0.95, 0.99]"
            .takes(SettingType::List(&SettingType::Number { min: 0.0, max: 1.0 }))
            .effect("Quantiles of a summary.")
            .zero("With an empty list a summary has its sum and count only.")
            .change("if your dashboards need another quantile.");
        buckets_max: usize = "160"
            .takes(SettingType::Integer { min: 2, max: 1024 })
            .effect("The maximum number of buckets of each sign of an exponential histogram, including empty ones in between. With more, the scale is lowered.")
            .change("if your values span many orders of magnitude.");
        points_per_payload_max: u32 = "8192"
            .takes(SettingType::Integer { min: 1, max: 1_000_000 })
            .effect("A request ends after this many data points, and before 3.5 MiB, because gRPC servers accept 4 MiB by default.")
            .change("if your collector has a lower limit.");
        /// `concurrency` has no effect: requests are sequential, in the order of time.
        delivery: DeliverySettings = "{}";
    }
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

choices! {
    pub enum Protocol {
        /// Protobuf in HTTP POST requests.
        Http: "http",
        Grpc: "grpc",
    }
}

choices! {
    pub enum OtlpCompression {
        Gzip: "gzip",
        None: "none",
    }
}

choices! {
    /// Period of a sum or histogram: its bucket, or all time since its start.
    pub enum Temporality {
        Delta = 1: "delta",
        Cumulative = 2: "cumulative",
    }
}

choices! {
    /// Form of exported `h` and `ms` metrics.
    pub enum OtlpHistograms {
        Exponential: "exponential",
        Summary: "summary",
    }
}

pub(crate) const TYPE: OutputType = OutputType {
    name: "otlp",
    summary: "Exports metrics to an OpenTelemetry collector or backend, over HTTP or gRPC.",
    on_by_default: false,
    settings: OtlpSettings::SETTINGS,
    removed: &[],
    read: |output| {
        BatchOutput::read(
            output,
            |settings: &mut OtlpSettings, files| settings.authorization.read(files),
            check,
        )
    },
};

fn check(settings: &OtlpSettings) -> Result<(), SettingProblem> {
    if settings.resource_attributes.keys().any(String::is_empty) {
        return Err(SettingProblem::new(
            "resource_attributes",
            "an attribute without a name",
        ));
    }
    settings.authorization.check()
}
