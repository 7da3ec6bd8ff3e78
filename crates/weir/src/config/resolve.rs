//! From checked values to what the agent uses: derived sizes, addresses, ids.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;
use weir_context::NameFilter;
use weir_output::settings::OutputConfig;

use super::rules::{self, RuleConfig};
use super::table::Raw;
use super::types::{
    Cardinality, EolTransport, Framing, HistogramAggregate, HistogramWeights, LogLevel, Ownership, Sandbox,
    account, admin_address, is_off, listen_address, mode, percentile, socket_path,
};
use super::value::{show_bytes, show_text};
use super::{Problem, Shown, Source};

/// The whole configuration, typed and ready to use.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    pub listeners: Listeners,
    pub origin: Origin,
    pub aggregation: Aggregation,
    pub names: Names,
    /// Mapper, tag filters and rules.
    pub rules: RuleConfig,
    /// The one budget, in bytes.
    pub memory: u64,
    /// `None`: memory alone decides.
    pub contexts_max: Option<usize>,
    pub contexts_per_metric_max: Option<usize>,
    pub contexts_per_origin_max: Option<usize>,
    /// Values of one tag key from which on there is an alert.
    pub tag_values_alert: Option<u64>,
    /// Cores to plan with.
    pub cpu: f64,
    pub workers: usize,
    /// `None`: no admin server.
    pub admin: Option<SocketAddr>,
    /// Names under which it may be asked.
    pub admin_hosts: Vec<String>,
    /// Give up what the configuration does not need.
    pub sandbox: bool,
    pub grace_period: Duration,
    /// `None`: nothing is kept for the next process.
    pub state_path: Option<PathBuf>,
    pub log_level: LogLevel,
    pub flush_summary: bool,
    /// Those that are on.
    pub outputs: Vec<OutputConfig>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Listeners {
    pub udp: Vec<SocketAddr>,
    pub uds: Vec<PathBuf>,
    pub uds_stream: Vec<PathBuf>,
    pub tcp: Vec<SocketAddr>,
    /// Who may send over the network; empty: everybody.
    pub allowed_networks: Vec<weir_listener::Network>,
    /// `None`: TCP is not encrypted.
    pub tls: Option<weir_listener::TlsFiles>,
    pub rates: RateLimits,
    pub tcp_framing: Framing,
    /// Who may send over Unix sockets; `None`: everybody.
    pub allowed_origins: Option<weir_origin::AllowedOrigins>,
    /// Mode bits of the Unix socket files.
    pub socket_mode: u32,
    pub socket_ownership: Ownership,
    /// Directories of root's for sockets get the sticky bit where others may write.
    pub sticky_directories: bool,
    /// `None`: the system's default.
    pub receive_buffer: Option<u64>,
    pub packet_bytes_max: usize,
    pub eol_required: EolRequired,
}

/// Bytes per second. Nothing: not limited.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RateLimits {
    pub networks: Vec<(weir_listener::Network, u64)>,
    pub per_address: Option<u64>,
    pub per_origin: Option<u64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EolRequired {
    pub udp: bool,
    pub uds: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Origin {
    /// Ask the kernel who sent.
    pub detection: bool,
    /// Read `c:`, `e:` and `card:`.
    pub client: bool,
    pub unified: bool,
    pub optout: bool,
    pub entity_id_precedence: bool,
    pub cardinality: Cardinality,
    pub sources: OriginSources,
    pub proc_root: PathBuf,
    pub cgroup_root: PathBuf,
}

impl Origin {
    /// Whether senders are told apart at all. Off, nothing of it costs anything.
    pub fn is_on(&self) -> bool {
        let OriginSources {
            kubelet,
            podinfo,
            file,
            environment,
            ..
        } = &self.sources;
        let has_source = kubelet.is_some() || podinfo.is_some() || file.is_some();
        self.detection || self.client || has_source || !environment.is_empty()
    }
}

/// Who is asked for tags. Pairs are what becomes a tag, and the tag.
#[derive(Clone, Debug, PartialEq)]
pub struct OriginSources {
    pub docker: Vec<PathBuf>,
    pub containerd: Vec<PathBuf>,
    pub kubelet: Option<Kubelet>,
    pub podinfo: Option<PathBuf>,
    pub file: Option<PathBuf>,
    pub environment: Vec<(String, String)>,
    pub container_labels: Vec<(String, String)>,
    pub pod_labels: Vec<(String, String)>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Kubelet {
    pub url: String,
    pub token_file: PathBuf,
    pub ca_file: PathBuf,
    /// Certificate and key to show it.
    pub identity: Option<(PathBuf, PathBuf)>,
    pub verify: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Aggregation {
    /// Whole seconds, at least one.
    pub bucket_seconds: u64,
    /// Zero: idle counters send no zeros.
    pub counter_expiry: Duration,
    pub context_expiry: Duration,
    /// Sorted, without repetition.
    pub histogram_aggregates: Vec<HistogramAggregate>,
    /// Whole percents, sorted, without repetition.
    pub histogram_percentiles: Vec<u8>,
    pub histogram_weights: HistogramWeights,
    /// The prefix of the copy; `None`: no copy is made.
    pub histogram_copy_prefix: Option<String>,
    /// Timestamped counters and gauges skip aggregation.
    pub timestamps: bool,
    pub gauge_deltas: bool,
    pub flush_open_buckets: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Names {
    pub hostname: String,
    /// Sorted, without repetition.
    pub tags: Vec<String>,
    /// With its dot at the end; empty for none.
    pub namespace: String,
    /// Prefixes of names that get no namespace.
    pub namespace_blocklist: Vec<String>,
    pub filterlist: Vec<String>,
    pub filterlist_match_prefix: bool,
    /// `None`: tags stay as they are.
    pub max_tag_length: Option<usize>,
}

const MIB: u64 = 1 << 20;

/// Fails with everything that is wrong. Values that were worked out replace what is shown for them.
pub(super) fn resolve(
    values: Value,
    outputs: Vec<OutputConfig>,
    shown: Vec<Shown>,
    resolve_names: bool,
) -> Result<(Config, Vec<Shown>, Vec<String>), Vec<Problem>> {
    let raw: Raw = serde_json::from_value(values).map_err(|error| {
        vec![Problem {
            source: Source::Default,
            key: String::new(),
            message: format!("table and struct differ: {error}"),
        }]
    })?;
    let mut resolver = Resolver {
        notes: Vec::new(),
        shown,
        problems: Vec::new(),
        resolve_names,
    };
    let config = resolver.config(raw, outputs);
    if resolver.problems.is_empty() {
        Ok((config, resolver.shown, resolver.notes))
    } else {
        Err(resolver.problems)
    }
}

struct Resolver {
    notes: Vec<String>,
    resolve_names: bool,
    shown: Vec<Shown>,
    problems: Vec<Problem>,
}

impl Resolver {
    /// Blames the source that the value came from.
    fn problem(&mut self, key: &str, message: impl Into<String>) {
        // A fault inside of a list: `rules[2].match` came from where `rules` came from.
        let whole = key.split_once('[').map_or(key, |(whole, _)| whole);
        let source = self
            .shown
            .iter()
            .find(|shown| shown.key == key || shown.key == whole)
            .map(|shown| shown.source.clone());
        self.problems.push(Problem {
            source: source.unwrap_or(Source::Default),
            key: key.to_owned(),
            message: message.into(),
        });
    }

    fn ok<T: Default>(&mut self, key: &str, result: Result<T, String>) -> T {
        result.unwrap_or_else(|message| {
            self.problem(key, message);
            T::default()
        })
    }

    /// Shows a value that was worked out because none was given.
    fn computed(&mut self, key: &str, value: String, how: &str) {
        if let Some(shown) = self.shown.iter_mut().find(|shown| shown.key == key) {
            shown.value = value;
            shown.source = match &shown.source {
                Source::Default => Source::Computed(format!("default: {how}")),
                source => Source::Computed(format!("{source}: {how}")),
            };
        }
    }

    fn config(&mut self, raw: Raw, outputs: Vec<OutputConfig>) -> Config {
        let (cpu, memory) = (self.cpu(raw.cpu), self.memory(raw.memory));
        let workers = self.workers(raw.workers, cpu);
        let config = Config {
            listeners: self.listeners(&raw),
            origin: Origin {
                detection: raw.origin_detection,
                client: raw.origin_client,
                unified: raw.origin_unified,
                optout: raw.origin_optout,
                entity_id_precedence: raw.entity_id_precedence,
                cardinality: raw.tag_cardinality,
                sources: self.origin_sources(&raw),
                proc_root: raw.proc_root.clone().into(),
                cgroup_root: raw.cgroup_root.clone().into(),
            },
            aggregation: self.aggregation(&raw),
            names: self.names(&raw),
            rules: self.rules(&raw),
            memory,
            contexts_max: (raw.contexts_max > 0).then_some(raw.contexts_max),
            contexts_per_metric_max: (raw.contexts_per_metric_max > 0).then_some(raw.contexts_per_metric_max),
            contexts_per_origin_max: (raw.contexts_per_origin_max > 0).then_some(raw.contexts_per_origin_max),
            tag_values_alert: (raw.tag_values_alert > 0).then_some(raw.tag_values_alert),
            cpu,
            workers,
            admin: self.admin(&raw.admin),
            admin_hosts: raw.admin_hosts.clone(),
            sandbox: raw.sandbox == Sandbox::Auto,
            grace_period: raw.grace_period,
            state_path: (!raw.state_path.is_empty()).then(|| PathBuf::from(&raw.state_path)),
            log_level: raw.log_level,
            flush_summary: raw.flush_summary,
            outputs,
        };
        self.note_missing_sources(&config);
        for (output_type, what) in [("stdout", "standard output"), ("prometheus", "the path /metrics")] {
            let names: Vec<&str> = config
                .outputs
                .iter()
                .filter(|output| output.output_type == output_type)
                .map(|output| output.name.as_str())
                .collect();
            if let [_, second, ..] = names[..] {
                let key = format!("outputs.{second}.enabled");
                self.problem(
                    &key,
                    format!("only one output can have {what}; {} wants it too", names[0]),
                );
            }
        }
        config
    }

    fn origin_sources(&mut self, raw: &Raw) -> OriginSources {
        let sockets = |resolver: &Self, key: &str, texts: &[String]| -> Vec<PathBuf> {
            let shown = resolver.shown.iter().find(|shown| shown.key == key);
            let is_default = shown.is_some_and(|shown| shown.source == Source::Default);
            texts
                .iter()
                .map(|text| PathBuf::from(socket_path(text)))
                .filter(|path| !is_default || path.exists())
                .collect()
        };
        let docker = sockets(self, "origin_docker", &raw.origin_docker);
        let containerd = sockets(self, "origin_containerd", &raw.origin_containerd);
        let path = |text: &str| (!text.is_empty()).then(|| PathBuf::from(text));
        let pairs = |map: &std::collections::BTreeMap<String, String>| -> Vec<(String, String)> {
            map.iter().map(|(from, to)| (from.clone(), to.clone())).collect()
        };
        let kubelet = self.kubelet(raw);
        OriginSources {
            docker,
            containerd,
            kubelet,
            podinfo: path(&raw.origin_podinfo),
            file: path(&raw.origin_file),
            environment: pairs(&raw.origin_environment),
            container_labels: pairs(&raw.container_labels_as_tags),
            pod_labels: pairs(&raw.pod_labels_as_tags),
        }
    }

    fn kubelet(&mut self, raw: &Raw) -> Option<Kubelet> {
        let text = raw.origin_kubelet.trim();
        if text.is_empty() {
            return None;
        }
        let url = if text.starts_with("https://") || text.starts_with("http://") {
            text.trim_end_matches('/').to_owned()
        } else if text.contains("://") || text.contains(['/', '@', ' ']) {
            self.problem(
                "origin_kubelet",
                format!("{text:?} is neither a host nor a URL; write 10.0.0.1 or https://10.0.0.1:10250"),
            );
            return None;
        } else if text.parse::<std::net::Ipv6Addr>().is_ok() {
            format!("https://[{text}]:10250")
        } else if text.contains(':') {
            format!("https://{text}")
        } else {
            format!("https://{text}:10250")
        };
        self.show("origin_kubelet", show_text(&url));
        let (certificate, key) = (&raw.origin_kubelet_certificate, &raw.origin_kubelet_key);
        let identity = match (certificate.is_empty(), key.is_empty()) {
            (true, true) => None,
            (false, false) => Some((PathBuf::from(certificate), PathBuf::from(key))),
            (true, false) => {
                self.problem(
                    "origin_kubelet_key",
                    "needs origin_kubelet_certificate, the certificate it belongs to",
                );
                None
            }
            (false, true) => {
                self.problem(
                    "origin_kubelet_certificate",
                    "needs origin_kubelet_key, its private key",
                );
                None
            }
        };
        Some(Kubelet {
            url,
            token_file: raw.origin_kubelet_token.clone().into(),
            ca_file: raw.origin_kubelet_ca.clone().into(),
            identity,
            verify: raw.origin_kubelet_tls_verify,
        })
    }

    fn listeners(&mut self, raw: &Raw) -> Listeners {
        let addresses = |resolver: &mut Self, key: &str, texts: &[String]| {
            let mut found = Vec::new();
            for text in texts {
                match listen_address(
                    text,
                    &raw.bind_host,
                    raw.non_local_traffic,
                    resolver.resolve_names,
                ) {
                    Ok(address) => found.extend(address),
                    Err(message) => resolver.problem(key, message),
                }
            }
            for (index, address) in found.iter().enumerate() {
                if address.port() != 0 && found[..index].contains(address) {
                    resolver.problem(key, format!("{address} is listed twice"));
                }
            }
            let shown: Vec<String> = found
                .iter()
                .map(|address| show_text(&address.to_string()))
                .collect();
            resolver.show(key, format!("[{}]", shown.join(", ")));
            found
        };
        let udp = addresses(self, "udp", &raw.udp);
        let tcp = addresses(self, "tcp", &raw.tcp);
        let paths = |texts: &[String]| -> Vec<PathBuf> {
            texts
                .iter()
                .map(|text| PathBuf::from(socket_path(text)))
                .collect()
        };
        let (uds, uds_stream) = (paths(&raw.uds), paths(&raw.uds_stream));
        let all: Vec<&PathBuf> = uds.iter().chain(&uds_stream).collect();
        for (index, path) in all.iter().enumerate() {
            if all[..index].contains(path) {
                let key = if index < uds.len() { "uds" } else { "uds_stream" };
                self.problem(
                    key,
                    format!(
                        "{} is listed twice; each socket needs a path of its own",
                        path.display()
                    ),
                );
            }
        }
        let eol = |transport| raw.eol_required.contains(&transport);
        let tls = self.tls(raw, tcp.is_empty());
        let rates = self.rates(raw);
        let uid = account(&raw.socket_owner, "/etc/passwd");
        let gid = account(&raw.socket_group, "/etc/group");
        Listeners {
            udp,
            uds,
            uds_stream,
            allowed_networks: raw
                .allowed_networks
                .iter()
                .filter_map(|text| text.parse().ok())
                .collect(),
            tls,
            rates,
            tcp,
            tcp_framing: raw.tcp_framing,
            allowed_origins: self.allowed_origins(raw),
            socket_mode: mode(&raw.socket_mode).unwrap_or(0o722),
            socket_ownership: Ownership {
                uid: self.ok("socket_owner", uid),
                gid: self.ok("socket_group", gid),
            },
            sticky_directories: raw.socket_directory_sticky,
            receive_buffer: (raw.receive_buffer > 0).then_some(raw.receive_buffer),
            packet_bytes_max: raw.packet_bytes_max as usize,
            eol_required: EolRequired {
                udp: eol(EolTransport::Udp),
                uds: eol(EolTransport::Uds),
            },
        }
    }

    fn allowed_origins(&mut self, raw: &Raw) -> Option<weir_origin::AllowedOrigins> {
        let patterns = raw.allowed_origins.iter().filter_map(|text| text.parse().ok());
        let list = weir_origin::AllowedOrigins::new(patterns.collect())?;
        let key = "allowed_origins";
        if !raw.origin_detection {
            let message =
                "needs origin_detection: true, by which weir learns whose process sends on a Unix socket";
            self.problem(key, message);
        }
        if raw.uds.is_empty() && raw.uds_stream.is_empty() {
            self.notes.push(format!(
                "{key}: it is without effect, no Unix socket is in uds or uds_stream; for the network there is allowed_networks"
            ));
        }
        Some(list)
    }

    /// Nobody may tell the tags that the list is about.
    fn note_missing_sources(&mut self, config: &Config) {
        let sources = &config.origin.sources;
        let OriginSources {
            docker,
            containerd,
            kubelet,
            file,
            ..
        } = sources;
        let none = docker.is_empty() && containerd.is_empty() && kubelet.is_none() && file.is_none();
        if none
            && let Some(list) = &config.listeners.allowed_origins
            && list.needs_sources()
        {
            self.notes.push(
                "allowed_origins: nobody tells the tags it is about, no source of tags is on (origin_docker, origin_containerd, origin_kubelet, origin_file); of containers only container_id is known"
                    .into(),
            );
        }
    }

    fn tls(&mut self, raw: &Raw, no_tcp: bool) -> Option<weir_listener::TlsFiles> {
        let path = |text: &str| (!text.is_empty()).then(|| PathBuf::from(text));
        let client_ca = path(&raw.tcp_tls_client_ca);
        let files = match (path(&raw.tcp_tls_certificate), path(&raw.tcp_tls_key)) {
            (None, None) => {
                if client_ca.is_some() {
                    let message =
                        "needs tcp_tls_certificate and tcp_tls_key: without TLS clients show no certificate";
                    self.problem("tcp_tls_client_ca", message);
                }
                return None;
            }
            (Some(_), None) => {
                self.problem("tcp_tls_certificate", "needs tcp_tls_key, its private key");
                return None;
            }
            (None, Some(_)) => {
                self.problem(
                    "tcp_tls_key",
                    "needs tcp_tls_certificate, the certificate it belongs to",
                );
                return None;
            }
            (Some(certificate), Some(key)) => weir_listener::TlsFiles {
                certificate,
                key,
                client_ca,
            },
        };
        match weir_listener::TlsServer::load(&files) {
            Ok(server) => {
                self.holds("tcp_tls_certificate", server.certificate());
                if let Some(authorities) = server.client_ca() {
                    self.holds("tcp_tls_client_ca", authorities);
                }
            }
            Err(error) => {
                let key = if error.path == files.certificate {
                    "tcp_tls_certificate"
                } else if error.path == files.key {
                    "tcp_tls_key"
                } else {
                    "tcp_tls_client_ca"
                };
                self.problem(key, error.to_string());
            }
        }
        if no_tcp {
            self.notes
                .push("tcp_tls_certificate is without effect: no address is in tcp".into());
        }
        Some(files)
    }

    fn rates(&mut self, raw: &Raw) -> RateLimits {
        let mut networks: Vec<(weir_listener::Network, u64)> = Vec::new();
        for (text, rate) in &raw.rate_limit_per_network {
            match text.parse() {
                Ok(network) if networks.iter().any(|(known, _)| *known == network) => {
                    self.problem("rate_limit_per_network", format!("{network} is listed twice"));
                }
                Ok(network) => networks.push((network, *rate)),
                Err(error) => self.problem("rate_limit_per_network", format!("{text:?}: {error}")),
            }
        }
        if raw.rate_limit_per_origin > 0 && !raw.origin_detection {
            self.problem(
                "rate_limit_per_origin",
                "needs origin_detection: what messages say of themselves is no ground to limit anybody",
            );
        }
        let limit = |rate: u64| (rate > 0).then_some(rate);
        RateLimits {
            networks,
            per_address: limit(raw.rate_limit_per_address),
            per_origin: limit(raw.rate_limit_per_origin),
        }
    }

    /// Says what is in a setting's file.
    fn holds(&mut self, key: &str, content: String) {
        if let Some(shown) = self.shown.iter_mut().find(|shown| shown.key == key) {
            shown.content = Some(content);
        }
    }

    fn show(&mut self, key: &str, value: String) {
        if let Some(shown) = self.shown.iter_mut().find(|shown| shown.key == key) {
            shown.value = value;
        }
    }

    fn aggregation(&mut self, raw: &Raw) -> Aggregation {
        if raw.bucket_width.subsec_nanos() != 0 {
            self.problem("bucket_width", "must be whole seconds, from 1s to 1h");
        }
        let mut aggregates = raw.histogram_aggregates.clone();
        aggregates.sort();
        aggregates.dedup();
        let mut percentiles: Vec<u8> = raw
            .histogram_percentiles
            .iter()
            .filter_map(|text| percentile(text))
            .collect();
        percentiles.sort_unstable();
        percentiles.dedup();
        Aggregation {
            bucket_seconds: raw.bucket_width.as_secs(),
            counter_expiry: raw.counter_expiry,
            context_expiry: raw.context_expiry,
            histogram_aggregates: aggregates,
            histogram_percentiles: percentiles,
            histogram_weights: raw.histogram_weights,
            histogram_copy_prefix: raw
                .histogram_copy_to_distribution
                .then(|| raw.histogram_copy_to_distribution_prefix.clone()),
            timestamps: raw.timestamps,
            gauge_deltas: raw.statsd_gauge_deltas,
            flush_open_buckets: raw.flush_open_buckets,
        }
    }

    fn names(&mut self, raw: &Raw) -> Names {
        let mut tags: Vec<String> = raw
            .tags
            .iter()
            .chain(&raw.extra_tags)
            .filter(|tag| !tag.is_empty())
            .cloned()
            .collect();
        tags.sort();
        tags.dedup();
        for (key, list) in [("tags", &raw.tags), ("extra_tags", &raw.extra_tags)] {
            if let Some(tag) = list.iter().find(|tag| tag.contains([',', '|', '\n'])) {
                self.problem(
                    key,
                    format!("{tag:?} holds a comma, a bar or a line end, which no tag can"),
                );
            }
        }
        let namespace = match raw.namespace.as_str() {
            "" => String::new(),
            name if name.ends_with('.') => name.to_owned(),
            name => format!("{name}."),
        };
        if namespace.contains([':', '|', '\n']) {
            self.problem(
                "namespace",
                "holds a colon, a bar or a line end, which no metric name can",
            );
        }
        Names {
            hostname: self.hostname(&raw.hostname),
            tags,
            namespace,
            namespace_blocklist: raw.namespace_blocklist.clone(),
            filterlist: raw.metric_filterlist.clone(),
            filterlist_match_prefix: raw.metric_filterlist_match_prefix,
            max_tag_length: (raw.max_tag_length > 0).then_some(raw.max_tag_length),
        }
    }

    fn rules(&mut self, raw: &Raw) -> RuleConfig {
        let configured: Vec<u8> = raw
            .histogram_percentiles
            .iter()
            .filter_map(|text| percentile(text))
            .collect();
        let namespace = match raw.namespace.trim_end_matches('.') {
            "" => String::new(),
            name => format!("{name}."),
        };
        let filter = NameFilter::new(raw.metric_filterlist.clone(), raw.metric_filterlist_match_prefix);
        let (rules, notes) = rules::resolve(&rules::RawRules {
            profiles: &raw.mapper_profiles,
            tag_filters: &raw.metric_tag_filterlist,
            rules: &raw.rules,
            percentiles: &configured,
            namespace: &namespace,
            is_filtered: &|name| filter.matches(name),
        });
        self.notes.extend(notes);
        rules.unwrap_or_else(|faults| {
            for fault in faults {
                self.problem(&fault.path, fault.message);
            }
            RuleConfig::default()
        })
    }

    fn hostname(&mut self, configured: &str) -> String {
        if !configured.is_empty() {
            return configured.to_owned();
        }
        let system = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let hostname = system.trim().to_owned();
        self.computed("hostname", show_text(&hostname), "the system's host name");
        hostname
    }

    fn admin(&mut self, text: &str) -> Option<SocketAddr> {
        if is_off(text) {
            return None;
        }
        // A port alone means loopback whatever `bind_host` says: this server hands out profiles.
        let address = listen_address(admin_address(text), "127.0.0.1", false, self.resolve_names);
        self.ok("admin", address)
    }

    fn memory(&mut self, configured: u64) -> u64 {
        if configured > 0 {
            if configured < 8 * MIB {
                self.problem("memory", "is too little to work with; must be 0 or at least 8MiB");
            }
            return configured;
        }
        let (available, of) = available_memory();
        let budget = (available / 4).clamp(64 * MIB, 2048 * MIB);
        // Whole mebibytes read better and nobody misses the rest.
        let budget = budget / MIB * MIB;
        let how = format!(
            "a quarter of {} of {of}, within 64MiB and 2GiB",
            show_bytes(available / MIB * MIB)
        );
        self.computed("memory", show_bytes(budget), &how);
        budget
    }

    fn cpu(&mut self, configured: f64) -> f64 {
        if configured > 0.0 {
            return configured;
        }
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get()) as f64;
        self.computed("cpu", cores.to_string(), "what the machine and its cgroup allow");
        cores
    }

    fn workers(&mut self, configured: usize, cpu: f64) -> usize {
        if configured > 0 {
            return configured;
        }
        let workers = workers_for(cpu);
        self.computed("workers", workers.to_string(), &format!("for {cpu} cores"));
        workers
    }
}

/// One below 8 cores, then one per 8, at most 4.
fn workers_for(cpu: f64) -> usize {
    ((cpu / 8.0) as usize).clamp(1, 4)
}

/// The smaller of the machine's memory and the limits of the cgroups the process is in, and which it is.
fn available_memory() -> (u64, &'static str) {
    let machine = std::fs::read_to_string("/proc/meminfo")
        .ok()
        .and_then(|text| total_memory(&text));
    let machine = machine.unwrap_or(256 * MIB);
    let own = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let limit = cgroup_files(&own)
        .iter()
        .filter_map(|file| std::fs::read_to_string(file).ok()?.trim().parse::<u64>().ok())
        .filter(|limit| *limit > 0)
        .min();
    match limit {
        Some(limit) if limit < machine => (limit, "the cgroup's limit"),
        _ => (machine, "the machine"),
    }
}

fn total_memory(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1024)
}

/// The files that may hold a limit: this cgroup's and those of every one above it. Inside a container the root
/// of the mount is the container's own.
fn cgroup_files(own: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for line in own.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next()) else {
            continue;
        };
        let (mount, file) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.max"),
            list if list.split(',').any(|name| name == "memory") => {
                ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")
            }
            _ => continue,
        };
        let mut path = path.trim_matches('/');
        loop {
            files.push(PathBuf::from(mount).join(path).join(file));
            match path.rsplit_once('/') {
                Some((parent, _)) => path = parent,
                None if path.is_empty() => break,
                None => path = "",
            }
        }
    }
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_follow_the_cores() {
        for (cpu, expect) in [
            (0.5, 1),
            (1.0, 1),
            (7.0, 1),
            (8.0, 1),
            (16.0, 2),
            (33.0, 4),
            (128.0, 4),
        ] {
            assert_eq!(workers_for(cpu), expect, "{cpu}");
        }
    }

    #[test]
    fn limits_are_looked_for_all_the_way_up() {
        let files = cgroup_files("0::/system.slice/weir.service\n");
        let shown: Vec<_> = files.iter().map(|file| file.display().to_string()).collect();
        assert_eq!(
            shown,
            [
                "/sys/fs/cgroup/system.slice/weir.service/memory.max",
                "/sys/fs/cgroup/system.slice/memory.max",
                "/sys/fs/cgroup/memory.max",
            ]
        );
        let files = cgroup_files("4:memory:/docker/ab\n1:cpu:/x\n0::/\n");
        assert_eq!(
            files[0].display().to_string(),
            "/sys/fs/cgroup/memory/docker/ab/memory.limit_in_bytes"
        );
        assert_eq!(files.len(), 4);
        assert_eq!(total_memory("MemTotal:       16 kB\n"), Some(16_384));
        assert_eq!(total_memory("MemFree: 1 kB"), None);
        let (available, _) = available_memory();
        assert!(available > MIB);
    }
}
