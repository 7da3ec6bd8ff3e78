//! The keys of gostatsd, and why weir needs none for some of them.

const POD_LABELS: &str = "labels of pods become tags with `pod_labels_as_tags`, by their names, and `origin_kubelet` (docs/origin.md)";
const POD_ANNOTATIONS: &str =
    "weir makes no tags of annotations; labels of pods become tags with `pod_labels_as_tags`";
const KUBELET: &str =
    "weir asks the kubelet of its own node, with `origin_kubelet` (docs/origin.md), and not the API server";

/// Keys that weir needs nothing for, and why. One that ends in `*` stands for all that begin so.
pub const NOT_NEEDED: &[(&str, &str)] = &[
    ("annotation-tag-regex", POD_ANNOTATIONS),
    (
        "bad-lines-per-minute",
        "weir counts invalid messages by reason and logs one example every ten seconds",
    ),
    (
        "burst-cloud-requests",
        "weir asks no cloud for metadata; origin detection (docs/origin.md) says which container sent a message",
    ),
    (
        "aws",
        "weir asks no cloud for metadata; origin detection (docs/origin.md) says which container sent a message",
    ),
    (
        "cloud-*",
        "weir asks no cloud for metadata; origin detection (docs/origin.md) says which container sent a message",
    ),
    ("config-path", "is the file that is converted"),
    (
        "conn-per-reader",
        "workers have their own sockets where there are several",
    ),
    ("disable-internal-events", "weir sends no events about itself"),
    (
        "dynamic-headers",
        "weir does not forward to another of its kind over HTTP; outputs.relay forwards messages as they arrive",
    ),
    ("estimated-tags", "there is one memory budget, `memory`"),
    (
        "expiry-interval-gauge",
        "a gauge is sent when it was set, and not repeated; a scrape shows it for outputs.prometheus.expiry",
    ),
    (
        "expiry-interval-set",
        "a set is sent when it had members, and not repeated",
    ),
    (
        "expiry-interval-timer",
        "a timer is sent when it had samples, and not repeated",
    ),
    (
        "fast-fail-on-non-retryable-errors",
        "data that a receiver refuses permanently is never sent again",
    ),
    ("flush-aligned", "buckets are always aligned to the clock"),
    ("flush-offset", "buckets are aligned to multiples of bucket_width"),
    (
        "heartbeat-enabled",
        "the series weir_build_info and weir_uptime are always at /metrics of the admin address",
    ),
    (
        "http-servers",
        "weir does not take metrics over HTTP; /metrics, /healthz and profiles are at `admin`",
    ),
    (
        "http-transport",
        "weir does not forward to another of its kind over HTTP; outputs.relay forwards messages as they arrive",
    ),
    (
        "internal-*",
        "weir's own series are at /metrics of the admin address, and not among yours",
    ),
    ("json", "the log has one format"),
    ("k8s", KUBELET),
    ("kube-api-*", KUBELET),
    ("kubeconfig-*", KUBELET),
    ("label-tag-regex", POD_LABELS),
    ("lambda-*", "weir is not an extension of a function"),
    (
        "log-raw-metric",
        "`weir top` and the page at the admin address show metrics as they arrive",
    ),
    ("max-cloud-requests", "weir asks no cloud for metadata"),
    ("max-concurrent-events", "there is one memory budget, `memory`"),
    ("max-parsers", "`workers` is worked out from the cores"),
    ("max-queue-size", "there is one memory budget, `memory`"),
    ("max-readers", "`workers` is worked out from the cores"),
    ("max-workers", "`workers` is worked out from the cores"),
    ("node-name", KUBELET),
    ("profile", "profiles are at /debug/pprof of the admin address"),
    ("receive-batch-size", "all waiting packets are read at once"),
    ("receive-buffer-size", "packets may be as long as 64KiB"),
    ("resync-period", KUBELET),
    (
        "statser-type",
        "weir's own series are at /metrics of the admin address",
    ),
    (
        "timer-histogram-limit",
        "distributions are sketches, and their buckets cannot be set",
    ),
    ("transport", "each output has its own `delivery`"),
    ("user-agent", KUBELET),
    ("verbose", "log_level is the setting"),
    ("version", "`weir --version` prints it"),
    ("watch-cluster", KUBELET),
];

/// Some of them change what is delivered.
pub const CHANGES_DATA: &[&str] = &[
    "annotation-tag-regex",
    "cloud-provider",
    "dynamic-headers",
    "expiry-interval-gauge",
    "expiry-interval-set",
    "expiry-interval-timer",
    "http-servers",
    "http-transport",
    "label-tag-regex",
    "transport",
];

/// StatsD's series of a timer, as outputs.graphite names them.
pub const TIMERS: [&str; 14] = [
    "count",
    "count_ps",
    "lower",
    "upper",
    "mean",
    "median",
    "std",
    "sum",
    "sum_squares",
    "count_pct",
    "mean_pct",
    "sum_pct",
    "sum_squares_pct",
    "upper_pct",
];

/// The series of timers that can be switched off.
pub const SUB_METRICS: &[&str] = &[
    "count",
    "count-per-second",
    "mean",
    "median",
    "lower",
    "upper",
    "std",
    "stddev",
    "sum",
    "sum-squares",
    "count-pct",
    "mean-pct",
    "sum-pct",
    "sum-squares-pct",
    "lower-pct",
    "upper-pct",
];

/// Keys with a counterpart.
pub const KNOWN: &[&str] = &[
    "metrics-addr",
    "namespace",
    "hostname",
    "default-tags",
    "percent-threshold",
    "flush-interval",
    "expiry-interval",
    "expiry-interval-counter",
    "ignore-host",
    "server-mode",
    "backends",
    "filters",
    "filter",
    "disabled-sub-metrics",
];

/// Tables of backends.
pub const TABLES: &[&str] = &[
    "graphite",
    "datadog",
    "statsdaemon",
    "influxdb",
    "newrelic",
    "cloudwatch",
    "otlp",
    "promremotewriter",
];

/// Settings of its tables.
pub const GRAPHITE: &[&str] = &[
    "address",
    "mode",
    "global_prefix",
    "global_suffix",
    "prefix_counter",
    "prefix_timer",
    "prefix_gauge",
    "prefix_set",
    "write_timeout",
    "dial_timeout",
];
pub const INFLUXDB: &[&str] = &[
    "api-endpoint",
    "api-version",
    "bucket",
    "org",
    "database",
    "retention-policy",
    "credentials",
    "metrics-per-batch",
    "max-requests",
    "compress-payload",
];
pub const DATADOG: &[&str] = &[
    "api_key",
    "api_endpoint",
    "max_requests",
    "metrics_per_batch",
    "compress_payload",
];
pub const FILTER: &[&str] = &[
    "match-metrics",
    "exclude-metrics",
    "match-tags",
    "drop-tags",
    "drop-metric",
    "drop-host",
];

/// The aggregates of a timer that weir has too: those of gostatsd, and those of weir.
pub const AGGREGATES: [(&str, &str); 6] = [
    ("lower", "min"),
    ("upper", "max"),
    ("median", "median"),
    ("mean", "avg"),
    ("sum", "sum"),
    ("count", "count"),
];
