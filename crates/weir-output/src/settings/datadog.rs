//! Settings of the Datadog output.

use std::collections::BTreeMap;

use weir_config::{Files, Secret, SettingProblem, SettingType, choices, settings};

use super::{BatchOutput, DeliverySettings, OutputType, QueueSettings};

settings! {
    /// The intake to deliver to, and how.
    pub struct DatadogSettings {
        api_key: Secret = "''"
            .effect("The key that is sent with every payload.")
            .change("to deliver to Datadog; setting it in the environment switches the output on.")
            .required()
            .also(&["DD_API_KEY"]);
        api_key_file: String = "''"
            .effect("A file with the key. It is read again when it changes.")
            .zero("Empty: the key is not in a file.")
            .change("if your keys are secrets of Docker or Kubernetes, or are replaced while weir runs.")
            .file_of("api_key")
            .also(&["DD_API_KEY_FILE"]);
        site: String = "datadoghq.com"
            .takes(SettingType::Checked { allowed: "a host name such as datadoghq.com", check: is_host_name })
            .effect("The site whose intake is used: `https://app.<site>`.")
            .change("if your account is on another site.")
            .also(&["DD_SITE"]);
        /// Empty: `https://app.<site>`; [`DatadogSettings::base_url`] gives the answer.
        url: String = "''"
            .takes(URL)
            .effect("The intake's base URL, instead of the one made from `site`.")
            .zero("Empty: made from `site`.")
            .change("if you deliver to a relay or a test intake.")
            .also(&["DD_URL", "DD_DD_URL"]);
        /// Base URL to further keys. Everything goes to every pair.
        additional_endpoints: BTreeMap<String, Vec<Secret>> = "{}"
            .effect("More base URLs, each with a list of keys; every payload goes to every pair of URL and key.")
            .change("if you deliver to several organisations.")
            .also(&["DD_ADDITIONAL_ENDPOINTS"]);
        additional_endpoints_file: BTreeMap<String, Vec<String>> = "{}"
            .effect("As `additional_endpoints`, each key in a file. The files are read again when they change.")
            .change("if you deliver to several organisations and keep keys in files.")
            .file_of("additional_endpoints");
        form: PayloadForm = "{}".flat();
        arbitrary_tag_values: bool = "false"
            .effect("Asks the intake to accept tag values unchanged.")
            .change("if you follow Datadog's advice.")
            .also(&["DD_ALLOW_ARBITRARY_TAGS"]);
        device_resource: bool = "true"
            .effect("Moves a tag `device:x` of a series into its device resource, as the Datadog Agent does.")
            .change("to keep the tag.");
        heartbeat: bool = "true"
            .effect("Reports every 15 seconds that the agent runs, by the gauge `datadog.dogstatsd.running` and the check `datadog.dogstatsd.up`, and once that it started (`datadog.dogstatsd.started`), as the Datadog Agent's dogstatsd does.")
            .change("if you run a Datadog Agent on the same host, or your intake is not Datadog's.");
        host_metadata: bool = "true"
            .effect("Sends facts about the host, and `tags` and `extra_tags` as its host tags, at the start and every half hour.")
            .change("if you run a Datadog Agent on the same host, or your intake is not Datadog's.")
            .also(&["DD_ENABLE_METADATA_COLLECTION"]);
        delivery: DeliverySettings = "{}"
            .names_below();
    }
}

settings! {
    /// The form of payloads.
    pub struct PayloadForm {
        compression: Compression = "zstd"
            .effect("How payloads are compressed.")
            .change("if your intake is older.")
            .also(&["DD_SERIALIZER_COMPRESSOR_KIND"]);
        compression_level: i32 = "0"
            .takes(SettingType::Integer { min: 0, max: 22 })
            .effect("The compressor's level: 1 to 22 for zstd, 1 to 9 for zlib and gzip.")
            .zero("0: 1 for zstd, 6 for the others.")
            .change("if you pay for bandwidth rather than CPU.")
            .also(&["DD_SERIALIZER_ZSTD_COMPRESSOR_LEVEL"]);
        series_format: SeriesFormat = "auto"
            .effect("Series as columns (`v3`), as protobuf (`v2`), as JSON to the same endpoint (`v2_json`), or as the older JSON (`v1`). `auto`: columns to Datadog's own sites, if `compression` is zstd or gzip, and `v2` everywhere else; a site that does not take columns gets `v2`.")
            .change("if your intake is older, or is not Datadog's and takes columns.")
            .also(&["DD_USE_V3_API_SERIES_ENABLED", "DD_USE_V2_API_SERIES"]);
        series_format_of: BTreeMap<String, EndpointFormat> = "{}"
            .effect("Another format for some base URLs: `auto`, `v2` or `v3`.")
            .change("if you deliver to several intakes, not all of which take columns.")
            .also(&["DD_USE_V3_API_SERIES_ENDPOINTS"]);
        sketches_format: SketchesFormat = "v2"
            .effect("Sketches as protobuf (`v2`) or as columns (`v3`).")
            .change("if your intake takes sketches as columns.");
        points_per_payload_max: usize = "10000"
            .takes(SettingType::Integer { min: 1, max: 1_000_000 })
            .effect("The maximum number of points in one series payload.")
            .change("if your intake has a lower limit.")
            .also(&["DD_SERIALIZER_MAX_SERIES_POINTS_PER_PAYLOAD"]);
    }
}

impl DatadogSettings {
    /// URL of payloads, without a slash at the end.
    pub fn base_url(&self) -> String {
        if self.url.is_empty() {
            format!("https://app.{}", self.site)
        } else {
            self.url.trim_end_matches('/').to_owned()
        }
    }
}

choices! {
    pub enum Compression {
        Zstd: "zstd",
        Zlib: "zlib",
        Gzip: "gzip",
        None: "none",
    }
}

choices! {
    pub enum SeriesFormat {
        /// [`SeriesFormat::V3`] where it is known to be taken, else [`SeriesFormat::V2`].
        Auto: "auto",
        /// `/api/intake/metrics/v3/series`.
        V3: "v3",
        /// `/api/v2/series` as protobuf.
        V2: "v2",
        /// `/api/v2/series` as JSON.
        V2Json: "v2_json",
        /// `/api/v1/series` as JSON.
        V1: "v1",
    }
}

choices! {
    /// In the Datadog Agent's words too.
    pub enum EndpointFormat {
        Auto: "auto" | "datadog_only",
        V2: "v2" | "false",
        V3: "v3" | "true",
    }
}

choices! {
    pub enum SketchesFormat {
        /// `/api/beta/sketches`.
        V2: "v2",
        /// `/api/intake/metrics/v3/sketches`.
        V3: "v3",
    }
}

pub(crate) const URL: SettingType = SettingType::Checked {
    allowed: "a URL such as https://host:port, or nothing",
    check: is_url_or_empty,
};

pub(super) const TYPE: OutputType = OutputType {
    name: "datadog",
    summary: "Delivers series, sketches, events and service checks to a Datadog intake.",
    on_by_default: false,
    settings: DatadogSettings::SETTINGS,
    removed: &[DatadogSettings::REMOVED, QueueSettings::REMOVED],
    read: |output| BatchOutput::read(output, read_files, check),
};

fn read_files(settings: &mut DatadogSettings, files: &mut Files<'_, '_, '_>) {
    files.read("api_key_file", &mut settings.api_key, &settings.api_key_file);
    let more = &mut settings.additional_endpoints;
    files.read(
        "additional_endpoints_file",
        more,
        &settings.additional_endpoints_file,
    );
}

fn check(settings: &DatadogSettings) -> Result<(), SettingProblem> {
    if settings.form.compression != Compression::Zstd && settings.form.compression_level > 9 {
        return Err(SettingProblem::new(
            "compression_level",
            "zlib and gzip take levels 0 to 9",
        ));
    }
    let series = settings.form.series_format_of.values();
    let mut columns = [
        ("series_format", settings.form.series_format == SeriesFormat::V3),
        (
            "sketches_format",
            settings.form.sketches_format == SketchesFormat::V3,
        ),
        (
            "series_format_of",
            series.clone().any(|format| *format == EndpointFormat::V3),
        ),
    ]
    .into_iter();
    if settings.form.compression == Compression::Zlib
        && let Some((key, _)) = columns.find(|(_, is_used)| *is_used)
    {
        let message = "the intake takes v3 with the compression zstd, gzip or none";
        return Err(SettingProblem::new(key, message));
    }
    let is_json = matches!(
        settings.form.series_format,
        SeriesFormat::V1 | SeriesFormat::V2Json
    );
    if is_json && !settings.form.series_format_of.is_empty() {
        let message = "needs a series_format of auto, v2 or v3";
        return Err(SettingProblem::new("series_format_of", message));
    }
    for url in settings.additional_endpoints.keys() {
        if !is_url_or_empty(url) || url.is_empty() {
            let message = format!("{url:?} is not a URL such as https://host:port");
            return Err(SettingProblem::new("additional_endpoints", message));
        }
    }
    Ok(())
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
