//! Every key of the Datadog Agent about metrics and their delivery, in a file and as a variable: it converts, or is refused with the
//! reason. Nothing is silent.

use weir_config::ShownValue;
use weir_system::config::{self, Inputs, Loaded};

/// The verdict of a key.
#[derive(Clone, Copy, Debug)]
enum Verdict {
    /// It is this setting.
    Becomes(&'static str),
    /// weir says why not, and what it does instead.
    Instead,
}
use Verdict::{Becomes, Instead};

/// The key, a value of it, and the verdict. `api_key`, `statsd_forward_host` and `statsd_forward_port` have tests of their
/// own. The names are those that the agent declares in its Go module `pkg/config/setup`.
#[rustfmt::skip]
const KEYS: &[(&str, &str, Verdict)] = &[
    ("additional_endpoints", "{}", Becomes("outputs.datadog.additional_endpoints")),
    ("aggregator_buffer_size", "1", Instead),
    ("aggregator_flush_metrics_and_serialize_in_parallel_buffer_size", "1", Instead),
    ("aggregator_flush_metrics_and_serialize_in_parallel_chan_size", "1", Instead),
    ("aggregator_stop_timeout", "1", Instead),
    ("aggregator_use_tags_store", "1", Instead),
    ("bind_host", "127.0.0.2", Becomes("bind_host")),
    ("checks_tag_cardinality", "1", Instead),
    ("collect_ec2_tags", "1", Instead),
    ("collect_ec2_tags_use_imds", "1", Instead),
    ("collect_gce_tags", "1", Instead),
    ("container_cgroup_root", "/x", Becomes("cgroup_root")),
    ("container_env_as_tags", "1", Instead),
    ("container_labels_as_tags", "{a: b}", Becomes("container_labels_as_tags")),
    ("container_proc_root", "/x", Becomes("proc_root")),
    ("cri_socket_path", "/x", Becomes("origin_containerd")),
    ("data_plane.dogstatsd.enabled", "1", Instead),
    ("data_plane.enabled", "1", Instead),
    ("dd_url", "https://b.example", Becomes("outputs.datadog.url")),
    ("docker_env_as_tags", "1", Instead),
    ("docker_labels_as_tags", "{a: b}", Becomes("container_labels_as_tags")),
    ("dogstatsd_buffer_size", "1", Instead),
    ("dogstatsd_capture_depth", "1", Instead),
    ("dogstatsd_capture_path", "1", Instead),
    ("dogstatsd_context_expiry_seconds", "30", Becomes("context_expiry")),
    ("dogstatsd_disable_verbose_logs", "1", Instead),
    ("dogstatsd_entity_id_precedence", "true", Becomes("entity_id_precedence")),
    ("dogstatsd_eol_required", "[udp]", Becomes("eol_required")),
    ("dogstatsd_expiry_seconds", "30", Becomes("counter_expiry")),
    ("dogstatsd_flush_incomplete_buckets", "true", Becomes("flush_open_buckets")),
    ("dogstatsd_host_socket_path", "1", Instead),
    ("dogstatsd_log_file", "1", Instead),
    ("dogstatsd_log_file_max_rolls", "1", Instead),
    ("dogstatsd_log_file_max_size", "1", Instead),
    ("dogstatsd_logging_enabled", "1", Instead),
    ("dogstatsd_mapper_cache_size", "1", Instead),
    ("dogstatsd_mapper_profiles", "[{name: p, prefix: 'a.', mappings: [{match: 'a.*', name: a, tags: {x: $1}}]}]", Becomes("mapper_profiles")),
    ("dogstatsd_mem_based_rate_limiter.enabled", "1", Instead),
    ("dogstatsd_mem_based_rate_limiter.go_gc", "1", Instead),
    ("dogstatsd_mem_based_rate_limiter.high_soft_limit", "1", Instead),
    ("dogstatsd_mem_based_rate_limiter.low_soft_limit", "1", Instead),
    ("dogstatsd_mem_based_rate_limiter.memory_ballast", "1", Instead),
    ("dogstatsd_mem_based_rate_limiter.rate_check.factor", "1", Instead),
    ("dogstatsd_mem_based_rate_limiter.rate_check.max", "1", Instead),
    ("dogstatsd_mem_based_rate_limiter.rate_check.min", "1", Instead),
    ("dogstatsd_mem_based_rate_limiter.soft_limit_freeos_check.factor", "1", Instead),
    ("dogstatsd_mem_based_rate_limiter.soft_limit_freeos_check.max", "1", Instead),
    ("dogstatsd_mem_based_rate_limiter.soft_limit_freeos_check.min", "1", Instead),
    ("dogstatsd_metrics_stats_enable", "1", Instead),
    ("dogstatsd_no_aggregation_pipeline", "false", Becomes("timestamps")),
    ("dogstatsd_no_aggregation_pipeline_batch_size", "1", Instead),
    ("dogstatsd_non_local_traffic", "true", Becomes("non_local_traffic")),
    ("dogstatsd_origin_detection", "true", Becomes("origin_detection")),
    ("dogstatsd_origin_detection_client", "true", Becomes("origin_client")),
    ("dogstatsd_origin_optout_enabled", "false", Becomes("origin_optout")),
    ("dogstatsd_packet_buffer_flush_timeout", "1", Instead),
    ("dogstatsd_packet_buffer_size", "1", Instead),
    ("dogstatsd_pipe_name", "1", Instead),
    ("dogstatsd_pipeline_autoadjust", "1", Instead),
    ("dogstatsd_pipeline_count", "1", Instead),
    ("dogstatsd_port", "9125", Becomes("udp")),
    ("dogstatsd_queue_size", "1", Instead),
    ("dogstatsd_so_rcvbuf", "65536", Becomes("receive_buffer")),
    ("dogstatsd_socket", "/x/y.sock", Becomes("uds")),
    ("dogstatsd_stats_buffer", "1", Instead),
    ("dogstatsd_stats_enable", "1", Instead),
    ("dogstatsd_stats_port", "1", Instead),
    ("dogstatsd_stream_log_too_big", "1", Instead),
    ("dogstatsd_stream_socket", "/x/z.sock", Becomes("uds_stream")),
    ("dogstatsd_string_interner_size", "1", Instead),
    ("dogstatsd_tag_cardinality", "high", Becomes("tag_cardinality")),
    ("dogstatsd_tags", "[a:b]", Becomes("extra_tags")),
    ("dogstatsd_telemetry_enabled_listener_id", "1", Instead),
    ("dogstatsd_windows_pipe_security_descriptor", "1", Instead),
    ("dogstatsd_workers_count", "1", Instead),
    ("ecs_collect_resource_tags_ec2", "1", Instead),
    ("ecs_resource_tags_replace_colon", "1", Instead),
    ("enable_payloads.events", "1", Instead),
    ("enable_payloads.json_to_v1_intake", "1", Instead),
    ("enable_payloads.series", "1", Instead),
    ("enable_payloads.service_checks", "1", Instead),
    ("enable_payloads.sketches", "1", Instead),
    ("entity_id", "1", Instead),
    ("env", "prod", Becomes("env")),
    ("exclude_ec2_tags", "1", Instead),
    ("exclude_gce_tags", "1", Instead),
    ("expected_tags_duration", "1", Instead),
    ("extra_tags", "[a:b]", Becomes("extra_tags")),
    ("forwarder_apikey_validation_interval", "1", Instead),
    ("forwarder_backoff_base", "1", Instead),
    ("forwarder_backoff_factor", "1", Instead),
    ("forwarder_backoff_max", "32", Becomes("outputs.datadog.delivery.backoff_max")),
    ("forwarder_connection_reset_interval", "1", Instead),
    ("forwarder_flush_to_disk_mem_ratio", "1", Instead),
    ("forwarder_high_prio_buffer_size", "1", Instead),
    ("forwarder_http_protocol", "1", Instead),
    ("forwarder_low_prio_buffer_size", "1", Instead),
    ("forwarder_max_concurrent_requests", "3", Becomes("outputs.datadog.delivery.concurrency")),
    ("forwarder_num_workers", "1", Instead),
    ("forwarder_outdated_file_in_days", "3", Becomes("outputs.datadog.delivery.disk_age_max")),
    ("forwarder_recovery_interval", "1", Instead),
    ("forwarder_recovery_reset", "1", Instead),
    ("forwarder_requeue_buffer_size", "1", Instead),
    ("forwarder_retry_queue_capacity_time_interval_sec", "1", Instead),
    ("forwarder_retry_queue_max_size", "1", Instead),
    ("forwarder_retry_queue_payloads_max_size", "1", Instead),
    ("forwarder_stop_timeout", "1", Instead),
    ("forwarder_storage_max_disk_ratio", "1", Instead),
    ("forwarder_storage_max_size_in_bytes", "50000000", Becomes("outputs.datadog.delivery.disk_bytes_max")),
    ("forwarder_storage_path", "/x", Becomes("outputs.datadog.delivery.disk_path")),
    ("forwarder_timeout", "30", Becomes("outputs.datadog.delivery.timeout")),
    ("histogram_aggregates", "[max, sum]", Becomes("histogram_aggregates")),
    ("histogram_copy_to_distribution", "true", Becomes("histogram_copy_to_distribution")),
    ("histogram_copy_to_distribution_prefix", "d.", Becomes("histogram_copy_to_distribution_prefix")),
    ("histogram_percentiles", "['0.9']", Becomes("histogram_percentiles")),
    ("host_aliases", "1", Instead),
    ("hostname", "h", Becomes("hostname")),
    ("hostname_drift_initial_delay", "1", Instead),
    ("hostname_drift_recurring_interval", "1", Instead),
    ("hostname_file", "1", Instead),
    ("hostname_force_config_as_canonical", "1", Instead),
    ("hostname_fqdn", "1", Instead),
    ("hostname_trust_uts_namespace", "1", Instead),
    ("kubelet_auth_token_path", "/x", Becomes("origin_kubelet_token")),
    ("kubelet_client_ca", "/x", Becomes("origin_kubelet_ca")),
    ("kubelet_client_crt", "/x", Becomes("origin_kubelet_certificate")),
    ("kubelet_client_key", "/x", Becomes("origin_kubelet_key")),
    ("kubelet_tls_verify", "false", Becomes("origin_kubelet_tls_verify")),
    ("kubernetes_namespace_annotations_as_tags", "1", Instead),
    ("kubernetes_namespace_labels_as_tags", "1", Instead),
    ("kubernetes_collect_metadata_tags", "1", Instead),
    ("kubernetes_node_annotations_as_tags", "1", Instead),
    ("kubernetes_node_labels_as_tags", "1", Instead),
    ("kubernetes_persistent_volume_claims_as_tags", "1", Instead),
    ("kubernetes_pod_annotations_as_tags", "1", Instead),
    ("kubernetes_pod_labels_as_tags", "{a: b}", Becomes("pod_labels_as_tags")),
    ("kubernetes_resources_annotations_as_tags", "1", Instead),
    ("kubernetes_resources_labels_as_tags", "1", Instead),
    ("log_level", "debug", Becomes("log_level")),
    ("metric_filterlist", "[a.b]", Becomes("metric_filterlist")),
    ("metric_filterlist_match_prefix", "true", Becomes("metric_filterlist_match_prefix")),
    ("metric_tag_filterlist", "[{metric_name: a, action: exclude, tags: [x]}]", Becomes("metric_tag_filterlist")),
    ("min_tls_version", "1", Instead),
    ("no_proxy_nonexact_match", "1", Instead),
    ("origin_detection_unified", "true", Becomes("origin_unified")),
    ("proxy.http", "http://p.example:1", Becomes("outputs.datadog.delivery.proxy")),
    ("proxy.https", "http://p.example:1", Becomes("outputs.datadog.delivery.proxy")),
    ("proxy.no_proxy", "[q.example]", Becomes("outputs.datadog.delivery.no_proxy")),
    ("secret_backend_arguments", "[a]", Becomes("secret_backend_arguments")),
    ("secret_backend_command", "/x", Becomes("secret_backend_command")),
    ("secret_backend_command_allow_group_exec_perm", "true", Becomes("secret_backend_command_allow_group_exec_perm")),
    ("secret_backend_config.a", "1", Instead),
    ("secret_backend_output_max_size", "1", Instead),
    ("secret_backend_remove_trailing_line_break", "true", Instead),
    ("secret_backend_skip_checks", "true", Instead),
    ("secret_backend_timeout", "5", Becomes("secret_backend_timeout")),
    ("secret_backend_type", "x", Instead),
    ("secret_refresh_interval", "60", Instead),
    ("serializer_compressor_kind", "zlib", Becomes("outputs.datadog.compression")),
    ("serializer_experimental_use_v3_api.compression_level", "1", Instead),
    ("serializer_experimental_use_v3_api.series.endpoints", "1", Instead),
    ("serializer_experimental_use_v3_api.series.validate", "1", Instead),
    ("serializer_experimental_use_v3_api.sketches.endpoints", "1", Instead),
    ("serializer_experimental_use_v3_api.sketches.validate", "1", Instead),
    ("serializer_max_payload_size", "1", Instead),
    ("serializer_max_series_payload_size", "1", Instead),
    ("serializer_max_series_points_per_payload", "500", Becomes("outputs.datadog.points_per_payload_max")),
    ("serializer_max_series_uncompressed_payload_size", "1", Instead),
    ("serializer_max_uncompressed_payload_size", "1", Instead),
    ("serializer_zstd_compressor_level", "3", Becomes("outputs.datadog.compression_level")),
    ("site", "datadoghq.eu", Becomes("outputs.datadog.site")),
    ("skip_ssl_validation", "1", Instead),
    ("sslkeylogfile", "1", Instead),
    ("statsd_metric_blocklist", "[a.b]", Becomes("metric_filterlist")),
    ("statsd_metric_blocklist_match_prefix", "true", Becomes("metric_filterlist_match_prefix")),
    ("statsd_metric_namespace", "n", Becomes("namespace")),
    ("statsd_metric_namespace_blacklist", "[n]", Becomes("namespace_blocklist")),
    ("tag_value_split_separator", "1", Instead),
    ("tags", "[a:b]", Becomes("tags")),
    ("telemetry.dogstatsd.aggregator_channel_latency_buckets", "1", Instead),
    ("telemetry.dogstatsd.listeners_channel_latency_buckets", "1", Instead),
    ("telemetry.dogstatsd.listeners_latency_buckets", "1", Instead),
    ("telemetry.dogstatsd_origin", "1", Instead),
    ("tls_handshake_timeout", "1", Instead),
    ("use_dogstatsd", "1", Instead),
    ("use_proxy_for_cloud_metadata", "1", Instead),
    ("use_v2_api.series", "false", Becomes("outputs.datadog.series_format")),
    ("use_v3_api.series.enabled", "datadog_only", Becomes("outputs.datadog.series_format")),
    ("use_v3_api.series.endpoints", "{https://a.example: true}", Becomes("outputs.datadog.series_format_of")),
];

/// The `datadog.yaml` with one key in it.
fn file(key: &str, value: &str) -> String {
    let parts: Vec<&str> = key.split('.').collect();
    let mut text = String::new();
    for (depth, part) in parts.iter().enumerate() {
        text += &format!("{:1$}{part}:", "", depth * 2);
        text += if depth + 1 == parts.len() { " " } else { "\n" };
    }
    text + value + "\n"
}

/// weir's configuration, and what is said about the rest.
fn converted(text: &str) -> (String, String) {
    let converted = weir_convert::datadog(text).unwrap();
    let left = converted.left.iter();
    let left: String = left.map(|left| format!("{}\n", left.message)).collect();
    (converted.yaml, left + converted.remark)
}

/// A variable without which there is no output to Datadog.
const KEY: (&str, &str) = ("DD_API_KEY", "0123456789abcdef0123456789abcdef");

fn loaded(yaml: &str, environment: &[(&str, &str)]) -> Loaded {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("weir.yaml");
    std::fs::write(&path, yaml).unwrap();
    let variables = environment.iter();
    let variables = variables.map(|(name, value)| ((*name).to_owned(), Some((*value).to_owned())));
    let inputs = Inputs {
        file: Some(path),
        environment: variables.collect(),
        ..Inputs::default()
    };
    config::load(&inputs).unwrap_or_else(|problems| panic!("{environment:?}: {problems}\n{yaml}"))
}

fn setting<'l>(loaded: &'l Loaded, key: &str) -> &'l ShownValue {
    let found = loaded.shown.iter().find(|shown| shown.key == key);
    found.unwrap_or_else(|| panic!("{key} is not in {:?}", loaded.shown))
}

#[test]
fn every_key_in_a_file_converts_or_is_refused_with_the_reason() {
    for (key, value, verdict) in KEYS {
        let (yaml, left) = converted(&file(key, value));
        match verdict {
            // A certificate and its key need each other.
            Becomes(ours) if ours.starts_with("origin_kubelet_c") || ours.starts_with("origin_kubelet_k") => {
                assert!(yaml.contains(&format!("{ours}: ")), "{key}: {yaml}");
            }
            Becomes(ours) => {
                assert_eq!(left, "", "{key}");
                let source = setting(&loaded(&yaml, &[KEY]), ours).source.to_string();
                assert!(source.contains("weir.yaml:"), "{key}: {source}");
            }
            Instead => {
                let begins = format!("{key}: ");
                assert!(
                    left.lines().any(|line| line.starts_with(&begins)),
                    "{key}: {left}"
                );
                assert!(!left.contains("is no setting of"), "{key}: {left}");
            }
        }
    }
}

#[test]
fn every_key_as_a_variable_is_read_or_noted_with_the_reason() {
    for (key, value, verdict) in KEYS {
        let variable = format!("DD_{}", key.to_ascii_uppercase().replace('.', "_"));
        let environment = [(variable.as_str(), *value), KEY];
        // A certificate and its key need each other.
        let file = match *key {
            "kubelet_client_crt" => "origin_kubelet_key: /x\n",
            "kubelet_client_key" => "origin_kubelet_certificate: /x\n",
            _ => "",
        };
        let loaded = loaded(file, &environment);
        match verdict {
            Becomes(ours) => {
                let source = setting(&loaded, ours).source.to_string();
                assert!(
                    source.contains(&format!("environment {variable}")),
                    "{key}: {source}"
                );
            }
            Instead => {
                let note = format!("environment {variable} is set and ignored: ");
                let notes = &loaded.notes;
                assert!(notes.iter().any(|said| said.contains(&note)), "{key}: {notes:?}");
            }
        }
    }
}

#[test]
fn variables_of_clients_and_of_disabled_outputs_are_noted() {
    for variable in [
        "DD_SERVICE",
        "DD_VERSION",
        "DD_AGENT_HOST",
        "DD_DOGSTATSD_URL",
        "DD_ENTITY_ID",
    ] {
        let notes = loaded("", &[(variable, "x")]).notes.join("\n");
        let note = format!("environment {variable} is set and ignored: is for clients");
        assert!(notes.contains(&note), "{notes}");
    }
    let environment = [
        ("DD_PROXY_HTTPS", "http://p:1"),
        ("DD_SITE", "datadoghq.eu"),
        ("DD_TRACE_ENABLED", "1"),
    ];
    let notes = loaded("", &environment).notes.join("\n");
    let note = "environment DD_SITE, DD_PROXY_HTTPS: for outputs.datadog, which is off; name that output in the file or set DD_API_KEY";
    assert!(notes.contains(note), "{notes}");
    assert!(!notes.contains("DD_TRACE_ENABLED"), "{notes}");
}

#[test]
fn a_key_is_not_copied_and_forwarding_is_a_relay() {
    let (yaml, left) = converted("api_key: 0123456789abcdef0123456789abcdef\n");
    assert!(
        left.contains("api_key: is a secret") && !yaml.contains("0123456789"),
        "{yaml}{left}"
    );
    let (yaml, left) = converted("statsd_forward_host: other.example\nstatsd_forward_port: 8126\n");
    assert_eq!(left, "");
    let targets = |loaded: &Loaded| setting(loaded, "outputs.relay.targets").value.clone();
    assert!(targets(&loaded(&yaml, &[KEY])).contains("udp://other.example:8126"));
    let forward = [
        ("DD_STATSD_FORWARD_HOST", "other.example"),
        ("DD_STATSD_FORWARD_PORT", "8126"),
    ];
    assert!(targets(&loaded("", &forward)).contains("udp://other.example:8126"));
}

#[test]
fn the_size_of_the_disk_queue_enables_it_and_its_path_alone_does_not() {
    let sized = loaded(
        &converted("forwarder_storage_max_size_in_bytes: 50000000\n").0,
        &[KEY],
    );
    let path = &setting(&sized, "outputs.datadog.delivery.disk_path").value;
    assert!(path.contains("/var/lib/weir/datadog"), "{path}");
    let placed = loaded(&converted("forwarder_storage_path: /x\n").0, &[KEY]);
    assert_eq!(
        setting(&placed, "outputs.datadog.delivery.disk_bytes_max").value,
        "0"
    );
}

/// Keys that the agent's own code declares, from the module proxy. One that is new there is found here.
#[test]
fn the_agent_declares_no_key_about_metrics_that_is_not_in_the_table() {
    const MODULE: &str = "github.com/DataDog/datadog-agent/pkg/config/setup@v0.77.0";
    let directory = tempfile::tempdir().unwrap();
    let downloaded = std::process::Command::new("go")
        .args(["mod", "download", "-json", MODULE])
        .current_dir(directory.path())
        .output();
    let Ok(downloaded) = downloaded else {
        eprintln!("skipped: there is no Go toolchain to get {MODULE} with");
        return;
    };
    let said: serde_json::Value = serde_json::from_slice(&downloaded.stdout).unwrap();
    let sources = said["Dir"].as_str().unwrap_or_else(|| panic!("{MODULE}: {said}"));
    let (mut declared, mut missing) = (0, Vec::new());
    for file in std::fs::read_dir(sources).unwrap() {
        let path = file.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "go") {
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        for key in [
            "BindEnvAndSetDefault(\"",
            "BindEnv(\"",
            "SetDefault(\"",
            "SetKnown(\"",
        ]
        .iter()
        .flat_map(|call| text.split(call).skip(1))
        .filter_map(|rest| rest.split('"').next())
        .filter(|key| is_about_metrics(key))
        {
            declared += 1;
            let own = ["api_key", "statsd_forward_host", "statsd_forward_port"];
            if !own.contains(&key) && !KEYS.iter().any(|(known, ..)| *known == key) {
                missing.push(key.to_owned());
            }
        }
    }
    assert!(declared >= 150, "only {declared} keys found in {sources}");
    assert_eq!(missing, [""; 0]);
}

fn is_about_metrics(key: &str) -> bool {
    const BEGIN: &[&str] = &[
        "dogstatsd_",
        "statsd_",
        "histogram_",
        "forwarder_",
        "metric_",
        "aggregator_",
        "serializer_",
        "proxy.",
        "no_proxy",
        "use_proxy",
        "origin_detection",
        "enable_payloads.",
        "use_v2_api.",
        "use_v3_api.",
        "hostname",
        "telemetry.dogstatsd",
    ];
    const WHOLE: &[&str] = &[
        "additional_endpoints",
        "api_key",
        "bind_host",
        "dd_url",
        "entity_id",
        "env",
        "extra_tags",
        "log_level",
        "min_tls_version",
        "site",
        "skip_ssl_validation",
        "sslkeylogfile",
        "tag_value_split_separator",
        "tags",
        "tls_handshake_timeout",
        "use_dogstatsd",
    ];
    let of_containers = ["container_", "docker_", "kubernetes_"]
        .iter()
        .any(|begin| key.starts_with(begin));
    BEGIN.iter().any(|begin| key.starts_with(begin))
        || WHOLE.contains(&key)
        || of_containers && key.ends_with("_as_tags")
}
