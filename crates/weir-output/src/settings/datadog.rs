//! Settings of the Datadog output.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::{
    DELIVERY, Delivered, DeliverySettings, Kind, OutputType, Secret, Setting, SettingProblem, setting,
};

/// The intake to deliver to, and how.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DatadogSettings {
    pub api_key: Secret,
    pub site: String,
    /// Empty: `https://app.<site>`; [`DatadogSettings::base_url`] gives the answer.
    pub url: String,
    /// Base URL to further keys. Everything goes to every pair.
    pub additional_endpoints: BTreeMap<String, Vec<Secret>>,
    pub compression: Compression,
    pub compression_level: i32,
    pub series_format: SeriesFormat,
    pub points_per_payload_max: usize,
    pub arbitrary_tag_values: bool,
    pub device_resource: bool,
    pub heartbeat: bool,
    pub host_metadata: bool,
    pub delivery: DeliverySettings,
}

impl DatadogSettings {
    /// Where payloads go, without a slash at the end.
    pub fn base_url(&self) -> String {
        if self.url.is_empty() {
            format!("https://app.{}", self.site)
        } else {
            self.url.trim_end_matches('/').to_owned()
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Compression {
    Zstd,
    Zlib,
    Gzip,
    None,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SeriesFormat {
    /// `/api/v2/series` as protobuf.
    V2,
    /// `/api/v2/series` as JSON.
    V2Json,
    /// `/api/v1/series` as JSON.
    V1,
}

pub(crate) const URL: Kind = Kind::Checked {
    allowed: "a URL such as https://host:port, or nothing",
    check: is_url_or_empty,
};

const SETTINGS: &[Setting] = &[
    setting("api_key", Kind::Secret, "''")
        .effect("The key that is sent with every payload.")
        .who("Everyone who delivers to Datadog; setting it in the environment switches the output on.")
        .required(),
    setting("api_key_file", Kind::Text, "''")
        .effect("A file with the key. It is read again when it changes.")
        .zero("Empty: the key is not in a file.")
        .who("Those whose keys are secrets of Docker or Kubernetes, or are replaced while weir runs.")
        .file_of("api_key"),
    setting("site", Kind::Checked { allowed: "a host name such as datadoghq.com", check: is_host_name }, "datadoghq.com")
        .effect("The site whose intake is used: `https://app.<site>`.")
        .who("Customers of another site than the first."),
    setting("url", URL, "''")
        .effect("The intake's base URL, in place of the one made from `site`.")
        .zero("Empty: made from `site`.")
        .who("Operators of a relay or a test intake."),
    setting("additional_endpoints", Kind::Map(&Kind::List(&Kind::Secret)), "{}")
        .effect("More base URLs, each with a list of keys; every payload goes to every pair of URL and key.")
        .who("Those who deliver to several organisations."),
    setting("additional_endpoints_file", Kind::Map(&Kind::List(&Kind::Text)), "{}")
        .effect("As `additional_endpoints`, each key in a file. The files are read again when they change.")
        .who("Those who deliver to several organisations and keep keys in files.")
        .file_of("additional_endpoints"),
    setting("compression", Kind::Choice(&["zstd", "zlib", "gzip", "none"]), "zstd")
        .effect("How payloads are compressed.")
        .who("Operators of an intake that understands less."),
    setting("compression_level", Kind::Integer { min: 0, max: 22 }, "0")
        .effect("The compressor's level: 1 to 22 for zstd, 1 to 9 for zlib and gzip.")
        .zero("0: 1 for zstd, 6 for the others.")
        .who("Those who pay for bandwidth rather than CPU."),
    setting("series_format", Kind::Choice(&["v2", "v2_json", "v1"]), "v2")
        .effect("Series as protobuf (`v2`), as JSON to the same endpoint (`v2_json`), or as the older JSON (`v1`).")
        .who("Operators of an intake that understands less."),
    setting("points_per_payload_max", Kind::Integer { min: 1, max: 1_000_000 }, "10000")
        .effect("The most points in one series payload.")
        .who("Hardly anybody."),
    setting("arbitrary_tag_values", Kind::Bool, "false")
        .effect("Asks the intake to take tag values as they are.")
        .who("Those whom Datadog told to."),
    setting("device_resource", Kind::Bool, "true")
        .effect("Moves a tag `device:x` of a series into its device resource, as the Datadog Agent does.")
        .who("Those who want the tag left alone."),
    setting("heartbeat", Kind::Bool, "true")
        .effect("Says every 15 seconds that the agent runs, by the gauge `datadog.dogstatsd.running` and the check `datadog.dogstatsd.up`, and once that it started (`datadog.dogstatsd.started`), as the Datadog Agent's dogstatsd does.")
        .who("Those who run a Datadog Agent on the same host, or whose intake is not Datadog's."),
    setting("host_metadata", Kind::Bool, "true")
        .effect("Sends what is known of the host, and `tags` and `extra_tags` as its host tags, at the start and every half hour.")
        .who("Those who run a Datadog Agent on the same host, or whose intake is not Datadog's."),
    setting("delivery", Kind::Record(DELIVERY), "{}").effect("Timeouts, retry and the disk queue."),
];

pub(super) const TYPE: OutputType = OutputType {
    name: "datadog",
    summary: "Delivers series, sketches, events and service checks to a Datadog intake.",
    on_by_default: false,
    settings: SETTINGS,
    environment: &[
        ("api_key", &["DD_API_KEY"]),
        ("api_key_file", &["DD_API_KEY_FILE"]),
        ("site", &["DD_SITE"]),
        ("url", &["DD_URL", "DD_DD_URL"]),
        ("additional_endpoints", &["DD_ADDITIONAL_ENDPOINTS"]),
        ("compression", &["DD_SERIALIZER_COMPRESSOR_KIND"]),
        ("compression_level", &["DD_SERIALIZER_ZSTD_COMPRESSOR_LEVEL"]),
        (
            "points_per_payload_max",
            &["DD_SERIALIZER_MAX_SERIES_POINTS_PER_PAYLOAD"],
        ),
        ("arbitrary_tag_values", &["DD_ALLOW_ARBITRARY_TAGS"]),
        ("host_metadata", &["DD_ENABLE_METADATA_COLLECTION"]),
        ("delivery.timeout", &["DD_FORWARDER_TIMEOUT"]),
        ("delivery.concurrency", &["DD_FORWARDER_MAX_CONCURRENT_REQUESTS"]),
        ("delivery.backoff_base", &["DD_FORWARDER_BACKOFF_BASE"]),
        ("delivery.backoff_factor", &["DD_FORWARDER_BACKOFF_FACTOR"]),
        ("delivery.backoff_max", &["DD_FORWARDER_BACKOFF_MAX"]),
        ("delivery.recovery_interval", &["DD_FORWARDER_RECOVERY_INTERVAL"]),
        ("delivery.recovery_reset", &["DD_FORWARDER_RECOVERY_RESET"]),
        ("delivery.disk_path", &["DD_FORWARDER_STORAGE_PATH"]),
        (
            "delivery.disk_bytes_max",
            &["DD_FORWARDER_STORAGE_MAX_SIZE_IN_BYTES"],
        ),
        ("delivery.proxy", &["DD_PROXY_HTTPS", "DD_PROXY_HTTP"]),
        ("delivery.no_proxy", &["DD_PROXY_NO_PROXY"]),
    ],
    load: |values| Delivered::load(values, check),
};

fn check(settings: &DatadogSettings) -> Result<(), SettingProblem> {
    if settings.compression != Compression::Zstd && settings.compression_level > 9 {
        return Err(SettingProblem::new(
            "compression_level",
            "zlib and gzip take levels 0 to 9",
        ));
    }
    for url in settings.additional_endpoints.keys() {
        if !is_url_or_empty(url) || url.is_empty() {
            let message = format!("{url:?} is not a URL such as https://host:port");
            return Err(SettingProblem::new("additional_endpoints", message));
        }
    }
    settings.delivery.check()
}

pub(super) fn is_url_or_empty(text: &str) -> bool {
    let host = text
        .strip_prefix("https://")
        .or_else(|| text.strip_prefix("http://"));
    text.is_empty() || host.is_some_and(|host| !host.is_empty() && !host.starts_with('/') && !has_space(host))
}

fn is_host_name(text: &str) -> bool {
    !text.is_empty()
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-'))
}

fn has_space(text: &str) -> bool {
    text.chars().any(|c| c.is_whitespace() || c.is_control())
}
