//! Keys of the Datadog Agent about metrics and their delivery that are no setting of weir: each with the reason and what weir does instead.
//! A file of that agent says them (`weir convert datadog`), and so do variables: `DD_` and the key in capitals, dots as underscores.
//!
//! Keys that *are* settings of weir are in the declarations of those settings ([`Setting::also`](crate::Setting)).

/// One line of the table. A key that ends in `*` stands for all that begin so.
struct UnsupportedKey {
    key: &'static str,
    why: &'static str,
    /// Without it other data is delivered.
    changes_data: bool,
}

const fn unsupported(key: &'static str, why: &'static str) -> UnsupportedKey {
    UnsupportedKey {
        key,
        why,
        changes_data: false,
    }
}

/// One without which other data is delivered.
const fn lost(key: &'static str, why: &'static str) -> UnsupportedKey {
    UnsupportedKey {
        key,
        why,
        changes_data: true,
    }
}

const ONE_BUDGET: &str = "there is one memory budget, `memory`; queues and caches share it";
const WORKERS: &str = "`workers` is worked out from the cores";
const LOG: &str = "weir writes no log of metrics; `weir top` and the page at the admin address show every metric as it arrives";
const CAPTURE: &str =
    "`weir capture` writes such files, and `weir replay` sends them; both take their limits as flags";
const SIZES: &str = "payloads are cut to what the intake takes; `outputs.datadog.points_per_payload_max` is the one limit to set";
const KINDS: &str = "outputs.datadog sends every kind; rules with `drop: true` keep metrics back";
const CLOUD_TAGS: &str = "weir asks no cloud for tags; write the host's tags into `tags`";
const ORIGIN_SOURCES: &str =
    "tags come from labels of containers and pods, and from the sources in docs/origin.md";
const HOST_NAME: &str = "the host's name is `hostname`, or the system's";
const NO_CHECKS: &str = "is about checks, which weir does not run";
const FAILOVER: &str = "there is no failover by switch; further intakes are `outputs.datadog.additional_endpoints`, which always get everything, or outputs of type datadog with names of their own";
const SELF: &str = "weir's own series are always at /metrics of the admin address and need no switch";
const V3: &str = "outputs.datadog.series_format and outputs.datadog.sketches_format name the formats; nothing is sent twice to compare them";
const DATA_PLANE: &str = "weir is the whole agent for metrics; there is no second process to hand them to";
const PRIORITIES: &str =
    "each output has one queue, newest first, which `memory` bounds; disk_bytes_max is its size on disk";

/// In the order of the alphabet.
const TABLE: &[UnsupportedKey] = &[
    unsupported("aggregator_buffer_size", ONE_BUDGET),
    unsupported("aggregator_flush_metrics_and_serialize_in_parallel_*", ONE_BUDGET),
    unsupported(
        "aggregator_stop_timeout",
        "`grace_period` (10s) is the one limit of a whole stop",
    ),
    unsupported(
        "aggregator_use_tags_store",
        "equal lists of tags are always kept once",
    ),
    unsupported("basic_telemetry_add_container_tags", SELF),
    unsupported("checks_tag_cardinality", NO_CHECKS),
    lost(
        "cluster_name",
        "that agent gives its host the tags cluster_name and kube_cluster_name; write the ones you use into `tags`",
    ),
    lost("collect_ec2_tags", CLOUD_TAGS),
    lost("collect_ec2_tags_use_imds", CLOUD_TAGS),
    lost("collect_gce_tags", CLOUD_TAGS),
    lost("container_env_as_tags", ORIGIN_SOURCES),
    unsupported(
        "convert_dd_site_fqdn.enabled",
        "names are looked up as they are written; end `outputs.datadog.site` with a dot for a full name",
    ),
    unsupported("data_plane.*", DATA_PLANE),
    lost("docker_env_as_tags", ORIGIN_SOURCES),
    unsupported("dogstatsd_capture_*", CAPTURE),
    unsupported(
        "dogstatsd_client_drop_detection.*",
        "the kernel's own count of dropped packets is in `weir status`, per listener",
    ),
    unsupported(
        "dogstatsd_disable_verbose_logs",
        "weir counts invalid messages by reason (`weir status`) and logs one example every ten seconds",
    ),
    unsupported(
        "dogstatsd_host_socket_path",
        "is for the program that starts containers; `uds` names the socket that weir creates",
    ),
    unsupported("dogstatsd_log_file*", LOG),
    unsupported("dogstatsd_logging_enabled", LOG),
    unsupported(
        "dogstatsd_mapper_cache_size",
        "rules cost known contexts nothing, so there is no cache to size",
    ),
    unsupported(
        "dogstatsd_mem_based_rate_limiter.*",
        "`memory` is a limit that is never exceeded: when contexts fill it, known ones keep working and the others are counted in one series per metric; `rate_limit_per_origin` and its siblings limit senders",
    ),
    unsupported(
        "dogstatsd_metrics_stats_enable",
        "is always on: `weir top` and /api/v1/contexts show samples per metric, `weir status` the totals",
    ),
    unsupported("dogstatsd_no_aggregation_pipeline_batch_size", ONE_BUDGET),
    unsupported("dogstatsd_packet_buffer_*", ONE_BUDGET),
    unsupported("dogstatsd_pipe_name", "is for Windows; weir runs on Linux"),
    unsupported("dogstatsd_pipeline_*", WORKERS),
    unsupported("dogstatsd_queue_size", ONE_BUDGET),
    unsupported("dogstatsd_replay*", CAPTURE),
    unsupported(
        "dogstatsd_stats_*",
        "is always on: /debug/vars and /api/v1/status of the admin address",
    ),
    unsupported(
        "dogstatsd_stream_log_too_big",
        "frames that are too long are counted in `weir status`, not logged one by one",
    ),
    unsupported("dogstatsd_string_interner_size", ONE_BUDGET),
    unsupported(
        "dogstatsd_telemetry_enabled_listener_id",
        "every number of a listener is always shown with its address",
    ),
    unsupported(
        "dogstatsd_windows_pipe_security_descriptor",
        "is for Windows; weir runs on Linux",
    ),
    unsupported("dogstatsd_workers_count", WORKERS),
    lost("ecs_collect_resource_tags_ec2", CLOUD_TAGS),
    lost("ecs_resource_tags_replace_colon", CLOUD_TAGS),
    unsupported("enable_events_stream_payload_serialization", KINDS),
    unsupported("enable_json_stream_shared_compressor_buffers", ONE_BUDGET),
    lost("enable_payloads.*", KINDS),
    unsupported("enable_service_checks_stream_payload_serialization", KINDS),
    unsupported("enable_sketch_stream_payload_serialization", KINDS),
    unsupported("enable_stream_payload_serialization", KINDS),
    unsupported(
        "entity_id",
        "senders are distinguished by the kernel and by what messages say (docs/origin.md), not by an id of the agent's",
    ),
    lost("exclude_ec2_tags", CLOUD_TAGS),
    lost("exclude_gce_tags", CLOUD_TAGS),
    unsupported(
        "expected_tags_duration",
        "host tags are on every point, from the first on",
    ),
    unsupported(
        "forwarder_apikey_validation_interval",
        "a key that the intake refuses shows in `weir status` and the log with the first payload",
    ),
    unsupported(
        "forwarder_connection_reset_interval",
        "a connection lasts as long as it works, and a name is looked up for every new one",
    ),
    unsupported("forwarder_flush_to_disk_mem_ratio", PRIORITIES),
    unsupported("forwarder_high_prio_buffer_size", PRIORITIES),
    unsupported(
        "forwarder_http_protocol",
        "weir speaks HTTP/1.1 to the intake, on at most `concurrency` connections",
    ),
    unsupported("forwarder_low_prio_buffer_size", PRIORITIES),
    unsupported(
        "forwarder_num_workers",
        "one thread is enough; `forwarder_max_concurrent_requests` says how many requests run at once",
    ),
    unsupported("forwarder_requeue_buffer_size", PRIORITIES),
    unsupported("forwarder_retry_queue_*", PRIORITIES),
    unsupported(
        "forwarder_stop_timeout",
        "`grace_period` (10s) is the one limit of a whole stop",
    ),
    unsupported(
        "forwarder_storage_max_disk_ratio",
        "disk_bytes_max is the one limit; a disk that is full costs payloads of this output, which are counted",
    ),
    unsupported("host_aliases", HOST_NAME),
    unsupported("hostname_drift_*", HOST_NAME),
    lost(
        "hostname_file",
        "write the file's content into `hostname` or WEIR_HOSTNAME",
    ),
    unsupported("hostname_force_config_as_canonical", HOST_NAME),
    lost("hostname_fqdn", HOST_NAME),
    unsupported("hostname_trust_uts_namespace", HOST_NAME),
    lost("kubernetes_collect_metadata_tags", ORIGIN_SOURCES),
    lost("kubernetes_namespace_annotations_as_tags", ORIGIN_SOURCES),
    lost("kubernetes_namespace_labels_as_tags", ORIGIN_SOURCES),
    lost("kubernetes_node_annotations_as_tags", ORIGIN_SOURCES),
    lost("kubernetes_node_labels_as_tags", ORIGIN_SOURCES),
    lost("kubernetes_persistent_volume_claims_as_tags", ORIGIN_SOURCES),
    lost("kubernetes_pod_annotations_as_tags", ORIGIN_SOURCES),
    lost("kubernetes_resources_annotations_as_tags", ORIGIN_SOURCES),
    lost("kubernetes_resources_labels_as_tags", ORIGIN_SOURCES),
    unsupported(
        "metric_tag_filterlist_adp_only",
        "tag filters are always exact, for every type",
    ),
    unsupported("min_tls_version", "TLS is 1.2 or 1.3, and nothing older"),
    lost("multi_region_failover.*", FAILOVER),
    unsupported(
        "no_proxy_nonexact_match",
        "a name in `no_proxy` always stands for all below it too",
    ),
    lost(
        "proxy.*",
        "the proxy of an output is `delivery.proxy`; `delivery.no_proxy` lists the receivers that are reached without it",
    ),
    lost(
        "secret_backend_config.*",
        "weir asks `secret_backend_command` and no vault itself",
    ),
    unsupported("secret_backend_output_max_size", "an answer may be 1 MiB long"),
    unsupported(
        "secret_backend_remove_trailing_line_break",
        "a line break at the end of a secret is always removed",
    ),
    unsupported("secret_backend_skip_checks", NO_CHECKS),
    lost(
        "secret_backend_type",
        "weir asks `secret_backend_command` and no vault itself",
    ),
    unsupported(
        "secret_refresh_*",
        "a restart asks again, and so does a reload with `sandbox: off`",
    ),
    unsupported("serializer_experimental_use_v3_api.*", V3),
    unsupported("serializer_max_*", SIZES),
    lost(
        "skip_ssl_validation",
        "certificates are always checked; `outputs.datadog.delivery.ca_file` names the authority of a private one, and a `url` with http:// uses no TLS",
    ),
    unsupported(
        "sslkeylogfile",
        "secrets of connections are never written anywhere",
    ),
    lost(
        "tag_value_split_separator",
        "tags are used as received, except labels: the value of each is one tag",
    ),
    unsupported("telemetry.*", SELF),
    unsupported(
        "tls_handshake_timeout",
        "`delivery.timeout` is the limit of a whole request, its handshake included",
    ),
    lost(
        "use_dogstatsd",
        "weir always receives StatsD; an empty list in `udp`, `uds`, `uds_stream` and `tcp` switches listeners off",
    ),
    unsupported("use_proxy_for_cloud_metadata", "weir asks no cloud for metadata"),
];

/// Variables that clients read; an agent that has them in its environment does nothing with them.
const OF_CLIENTS: &[(&str, &str)] = &[
    (
        "DD_AGENT_HOST",
        "is for clients, which send there; weir listens at the addresses of `udp` and `bind_host`",
    ),
    (
        "DD_DOGSTATSD_HOST",
        "is for clients, which send there; weir listens at the addresses of `udp` and `bind_host`",
    ),
    (
        "DD_DOGSTATSD_URL",
        "is for clients, which send there; weir listens at the addresses of `udp`, `uds` and `uds_stream`",
    ),
    (
        "DD_ENTITY_ID",
        "is for clients, which say it in their messages (`origin_client` reads it)",
    ),
    (
        "DD_SERVICE",
        "is for clients; an agent's metrics come from many services. `tags` adds a tag to all of them",
    ),
    (
        "DD_VERSION",
        "is for clients; an agent's metrics come from many versions. `tags` adds a tag to all of them",
    ),
];

/// Why a key of the Datadog Agent such as `telemetry.enabled` is no setting of weir; `None` for those that are, or are not about metrics.
pub fn unsupported_reason(key: &str) -> Option<&'static str> {
    TABLE
        .iter()
        .find_map(|line| line.is_about(key).then_some(line.why))
}

/// Whether weir delivers other data without this unsupported key.
pub fn changes_data(key: &str) -> bool {
    TABLE.iter().any(|line| line.is_about(key) && line.changes_data)
}

/// Whether an unsupported key has the value that it would mean here anyway: what weir does not do is off, what it always does is on.
pub fn means_the_same(key: &str, value: &str) -> bool {
    const ALWAYS_ON: &[&str] = &[
        "aggregator_use_tags_store",
        "dogstatsd_disable_verbose_logs",
        "dogstatsd_metrics_stats_enable",
        "dogstatsd_stats_enable",
        "enable_",
        "telemetry.",
        "use_dogstatsd",
    ];
    // Their values mean more than on and off.
    const NEITHER: &[&str] = &[
        "kubernetes_collect_metadata_tags",
        "collect_ec2_tags_use_imds",
        "no_proxy_nonexact_match",
    ];
    let is_always_on = ALWAYS_ON.iter().any(|start| key.starts_with(start));
    match value {
        "true" | "yes" | "on" => is_always_on,
        "false" | "no" | "off" => !is_always_on && !NEITHER.contains(&key),
        _ => false,
    }
}

/// The keys of the Datadog Agent in this table, as far as they are whole.
pub fn unsupported_keys() -> impl Iterator<Item = &'static str> {
    TABLE
        .iter()
        .map(|line| line.key)
        .filter(|key| !key.ends_with('*'))
}

/// [`unsupported_reason`] for a variable.
pub(crate) fn unsupported_variable_reason(variable: &str) -> Option<&'static str> {
    let of_clients = OF_CLIENTS.iter().find(|(name, _)| *name == variable);
    of_clients.map(|(_, why)| *why).or_else(|| {
        let line = TABLE.iter().find(|line| line.has_variable(variable));
        line.map(|line| line.why)
    })
}

/// Whether some keys of the agent stand below this one.
pub fn is_section(key: &str) -> bool {
    let is_below = |of: &str, key: &str| of.strip_prefix(key).is_some_and(|rest| rest.starts_with('.'));
    let within = |line: &UnsupportedKey| {
        let whole = line.key.strip_suffix(".*");
        is_below(line.key, key) || whole.is_some_and(|whole| is_below(key, whole))
    };
    let of_settings = ["use_v2_api", "use_v3_api", "use_v3_api.series"];
    of_settings.contains(&key) || TABLE.iter().any(within)
}

impl UnsupportedKey {
    fn is_about(&self, key: &str) -> bool {
        match self.key.strip_suffix('*') {
            Some(start) => key.starts_with(start),
            None => key == self.key,
        }
    }

    fn has_variable(&self, variable: &str) -> bool {
        let name = |key: &str| format!("DD_{}", key.to_ascii_uppercase().replace('.', "_"));
        match self.key.strip_suffix('*') {
            Some(start) => variable.starts_with(&name(start)),
            None => variable == name(self.key),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_sorted_and_has_each_key_once() {
        assert!(TABLE.is_sorted_by(|a, b| a.key < b.key));
        for line in TABLE {
            let found: Vec<_> = TABLE.iter().filter(|other| other.is_about(line.key)).collect();
            assert_eq!(found.len(), 1, "{}", line.key);
        }
    }

    #[test]
    fn values_that_mean_what_weir_does_anyway() {
        for (key, value, expected) in [
            ("skip_ssl_validation", "false", true),
            ("skip_ssl_validation", "no", true),
            ("skip_ssl_validation", "true", false),
            ("enable_payloads.series", "true", true),
            ("enable_payloads.series", "false", false),
            ("telemetry.enabled", "true", true),
            ("collect_ec2_tags", "false", true),
            ("collect_ec2_tags", "1", false),
        ] {
            assert_eq!(means_the_same(key, value), expected, "{key}: {value}");
        }
        assert!(changes_data("enable_payloads.series") && changes_data("cluster_name"));
        assert!(!changes_data("dogstatsd_queue_size") && !changes_data("apm_config"));
    }

    #[test]
    fn keys_and_their_variables() {
        for (key, variable) in [
            ("dogstatsd_queue_size", "DD_DOGSTATSD_QUEUE_SIZE"),
            ("telemetry.enabled", "DD_TELEMETRY_ENABLED"),
            ("skip_ssl_validation", "DD_SKIP_SSL_VALIDATION"),
        ] {
            assert!(unsupported_reason(key).is_some(), "{key}");
            assert_eq!(
                unsupported_reason(key),
                unsupported_variable_reason(variable),
                "{key}"
            );
        }
        assert!(unsupported_variable_reason("DD_SERVICE").is_some());
        assert!(unsupported_variable_reason("DD_TRACE_ENABLED").is_none());
        assert!(
            is_section("telemetry")
                && is_section("use_v2_api")
                && is_section("use_v3_api.series")
                && !is_section("use_v3_api.series.endpoints")
                && is_section("data_plane.dogstatsd")
                && !is_section("tags")
        );
    }
}
