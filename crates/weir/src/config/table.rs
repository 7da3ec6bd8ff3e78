//! Every setting of the agent itself. Outputs bring their own tables (`weir_output::settings`).

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;
use weir_output::settings::{DURATION_MAX, Kind, PathUse, Setting, setting};

use super::rules::{self, RawProfile, RawRule, RawTagFilter};
use super::types::{
    Cardinality, EolTransport, Framing, HistogramAggregate, HistogramWeights, LogLevel, Sandbox, is_address,
    is_admin_address_or_off, is_host_name, is_mode, is_network, is_origin_pattern, is_percentile,
    is_socket_path,
};

/// A setting with what only the agent's own settings have.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    pub setting: Setting,
    /// Variables of the Datadog Agent that mean the same, in order of preference.
    pub second_names: &'static [&'static str],
    /// Shown by `-h`; the others by `--help`.
    pub common: bool,
    pub live: Live,
}

/// What a reload does with another value of a setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Live {
    /// Nothing: it needs a restart.
    No,
    Yes,
    /// It applies it while this other setting is on, before and after.
    While(&'static str),
}

/// Settings that belong together on the configuration page and in `--help`.
#[derive(Clone, Copy, Debug)]
pub struct Group {
    pub title: &'static str,
    pub entries: &'static [Entry],
}

const fn entry(setting: Setting) -> Entry {
    Entry {
        setting,
        second_names: &[],
        common: false,
        live: Live::No,
    }
}

impl Entry {
    const fn also(mut self, names: &'static [&'static str]) -> Self {
        self.second_names = names;
        self
    }

    const fn common(mut self) -> Self {
        self.common = true;
        self
    }

    const fn live(mut self) -> Self {
        self.live = Live::Yes;
        self
    }

    const fn live_while(mut self, key: &'static str) -> Self {
        self.live = Live::While(key);
        self
    }
}

/// Every entry, in the order of the page.
pub fn entries() -> impl Iterator<Item = &'static Entry> + Clone {
    GROUPS.iter().flat_map(|group| group.entries)
}

/// The table as a struct, one field per entry. `deny_unknown_fields` and the absence of serde defaults make a
/// table and a struct that differ fail on the first load, which a test does.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Raw {
    pub udp: Vec<String>,
    pub bind_host: String,
    pub non_local_traffic: bool,
    pub uds: Vec<String>,
    pub uds_stream: Vec<String>,
    pub tcp: Vec<String>,
    pub allowed_networks: Vec<String>,
    pub tcp_framing: Framing,
    pub tcp_tls_certificate: String,
    pub tcp_tls_key: String,
    pub tcp_tls_client_ca: String,
    pub rate_limit_per_network: BTreeMap<String, u64>,
    pub rate_limit_per_address: u64,
    pub rate_limit_per_origin: u64,
    pub socket_mode: String,
    pub socket_owner: String,
    pub socket_group: String,
    pub allowed_origins: Vec<String>,
    pub receive_buffer: u64,
    pub packet_bytes_max: u64,
    pub eol_required: Vec<EolTransport>,
    pub origin_detection: bool,
    pub origin_client: bool,
    pub origin_unified: bool,
    pub origin_optout: bool,
    pub entity_id_precedence: bool,
    pub tag_cardinality: Cardinality,
    pub origin_docker: Vec<String>,
    pub origin_containerd: Vec<String>,
    pub origin_kubelet: String,
    pub origin_kubelet_token: String,
    pub origin_kubelet_ca: String,
    pub origin_kubelet_certificate: String,
    pub origin_kubelet_key: String,
    pub origin_kubelet_tls_verify: bool,
    pub origin_podinfo: String,
    pub origin_file: String,
    pub origin_environment: BTreeMap<String, String>,
    pub container_labels_as_tags: BTreeMap<String, String>,
    pub pod_labels_as_tags: BTreeMap<String, String>,
    pub proc_root: String,
    pub cgroup_root: String,
    pub bucket_width: Duration,
    pub counter_expiry: Duration,
    pub context_expiry: Duration,
    pub histogram_aggregates: Vec<HistogramAggregate>,
    pub histogram_percentiles: Vec<String>,
    pub histogram_weights: HistogramWeights,
    pub histogram_copy_to_distribution: bool,
    pub histogram_copy_to_distribution_prefix: String,
    pub timestamps: bool,
    pub statsd_gauge_deltas: bool,
    pub flush_open_buckets: bool,
    pub hostname: String,
    pub tags: Vec<String>,
    pub extra_tags: Vec<String>,
    pub namespace: String,
    pub namespace_blocklist: Vec<String>,
    pub metric_filterlist: Vec<String>,
    pub metric_filterlist_match_prefix: bool,
    pub max_tag_length: usize,
    pub mapper_profiles: Vec<RawProfile>,
    pub metric_tag_filterlist: Vec<RawTagFilter>,
    pub rules: Vec<RawRule>,
    pub memory: u64,
    pub contexts_max: usize,
    pub contexts_per_metric_max: usize,
    pub contexts_per_origin_max: usize,
    pub tag_values_alert: u64,
    pub cpu: f64,
    pub workers: usize,
    pub admin: String,
    pub admin_hosts: Vec<String>,
    pub sandbox: Sandbox,
    pub grace_period: Duration,
    pub log_level: LogLevel,
    pub flush_summary: bool,
}

const SECOND: Duration = Duration::from_secs(1);
/// Ten seconds of it are far from the end of what can be counted.
const RATE_MAX: u64 = 1 << 50;
const ADDRESS: Kind = Kind::Checked {
    allowed: "an address such as 127.0.0.1:8125, [::1]:8125, or a port alone, which `bind_host` completes",
    check: is_address,
};
const NETWORK: Kind = Kind::Checked {
    allowed: "a network or an address, such as 10.1.0.0/16, 192.0.2.7 or fd00::/8, without bits set beyond the prefix",
    check: is_network,
};
const ORIGIN: Kind = Kind::Checked {
    allowed: "no_container, unknown, or a tag of containers such as kube_namespace:prod, image_name:shop/*, container_name:web-*, container_id:8fca07c6*",
    check: is_origin_pattern,
};
const HOST_NAME: Kind = Kind::Checked {
    allowed: "a host name without a port, such as weir.example.org",
    check: is_host_name,
};
const SOCKET_PATH: Kind = Kind::Checked {
    allowed: "an absolute path of at most 107 bytes, such as /run/weir/dsd.socket",
    check: is_socket_path,
};

pub const GROUPS: &[Group] = &[
    Group {
        title: "Listeners",
        entries: &[
            entry(
                setting("udp", Kind::List(&ADDRESS), "['8125']")
                    .effect("UDP addresses to receive on, as `host:port` or a port alone, which `bind_host` completes.")
                    .zero("An empty list, or the port `0` alone: no UDP. `host:0` lets the kernel choose a port.")
                    .who("Operators with another port, or without UDP."),
            )
            .also(&["DD_DOGSTATSD_PORT"])
            .common(),
            entry(
                setting("bind_host", Kind::Text, "127.0.0.1")
                    .effect("The host of every address that is written as a port alone.")
                    .zero("Empty: 127.0.0.1.")
                    .who("Operators who receive from other machines on one interface."),
            )
            .also(&["DD_BIND_HOST"]),
            entry(
                setting("non_local_traffic", Kind::Bool, "false")
                    .effect("Receive on every interface, wherever an address is written as a port alone; overrides `bind_host`.")
                    .who("Operators who receive from other machines or containers."),
            )
            .also(&["DD_DOGSTATSD_NON_LOCAL_TRAFFIC"])
            .common(),
            entry(
                setting("uds", Kind::List(&SOCKET_PATH), "[]")
                    .path(PathUse::WriteBeside)
        .effect("Unix datagram sockets to create. A stale socket file is replaced; any other file is an error.")
                    .zero("An empty list: none.")
                    .who("Anyone whose clients run on the same machine: it is faster than UDP and loses nothing."),
            )
            .also(&["DD_DOGSTATSD_SOCKET"])
            .common(),
            entry(
                setting("uds_stream", Kind::List(&SOCKET_PATH), "[]")
                    .path(PathUse::WriteBeside)
        .effect("Unix stream sockets to create. Each packet follows its length in four bytes, the lowest first.")
                    .zero("An empty list: none.")
                    .who("Clients that speak the stream form."),
            )
            .also(&["DD_DOGSTATSD_STREAM_SOCKET"])
            .common(),
            entry(
                setting("tcp", Kind::List(&ADDRESS), "[]")
                    .effect("TCP addresses to receive on, as `host:port` or a port alone, which `bind_host` completes.")
                    .zero("An empty list, or the port `0` alone: none.")
                    .who("Operators whose network loses UDP."),
            )
            .also(&["DD_DOGSTATSD_TCP_PORT"])
            .common(),
            entry(
                setting("allowed_networks", Kind::List(&NETWORK), "[]")
                    .effect("Who may send over UDP and TCP, besides 127.0.0.1 and ::1. Datagrams of others are dropped and counted as `source_not_allowed`, their connections closed and counted. The sender's address is all there is to tell by: UDP senders can forge it.")
                    .zero("An empty list: whoever reaches the socket.")
                    .who("Operators who receive from other machines."),
            ),
            entry(
                setting("tcp_framing", Kind::Choice(&["length", "newline"]), "length")
                    .effect("How TCP carries packets: each after its length in four bytes, the lowest first, or as lines.")
                    .who("Operators of clients that send lines (`newline`)."),
            ),
            entry(
                setting("tcp_tls_certificate", Kind::Text, "''")
                    .path(PathUse::Read)
        .effect("PEM file with the certificate that TCP clients are shown, those of intermediate authorities behind it. With it every address of `tcp` takes TLS (1.2 or 1.3) and nothing else. Read again on reload; connections that are open stay as they are.")
                    .zero("Empty: TCP is not encrypted.")
                    .who("Operators who receive over networks that others can read or write."),
            )
            .live_while("tcp_tls_certificate"),
            entry(
                setting("tcp_tls_key", Kind::Text, "''")
                    .path(PathUse::Read)
        .effect("PEM file with the private key of `tcp_tls_certificate`. Read again with it.")
                    .zero("Empty: none, and no certificate either.")
                    .who("Operators who receive over networks that others can read or write."),
            )
            .live_while("tcp_tls_certificate"),
            entry(
                setting("tcp_tls_client_ca", Kind::Text, "''")
                    .path(PathUse::Read)
        .effect("PEM file with the certificates of authorities. With it TCP clients have to show a certificate that one of them signed. Read again on reload; connections that are open stay open.")
                    .zero("Empty: clients need none.")
                    .who("Operators who say which machines may send."),
            )
            .live_while("tcp_tls_certificate"),
            entry(
                setting("rate_limit_per_network", Kind::Map(&Kind::Bytes { min: 1, max: RATE_MAX }), "{}")
                    .effect("Bytes per second that each of these networks may send as a whole over UDP and TCP, as in `10.0.0.0/8: 1MiB`; of several that hold an address the smallest counts. Ten seconds' worth may come at once, and a packet counts as 64 bytes more than it holds. What is beyond is dropped and counted as `rate_limited`. 127.0.0.1 and ::1 are not limited.")
                    .zero("Empty: none is limited.")
                    .who("Operators who receive from networks that others run."),
            ),
            entry(
                setting("rate_limit_per_address", Kind::Bytes { min: 0, max: RATE_MAX }, "0")
                    .effect("Bytes per second that each address (of IPv6: each /64) may send over UDP and TCP, in the same way.")
                    .zero("0: addresses are not limited.")
                    .who("Operators who receive from many machines."),
            ),
            entry(
                setting("rate_limit_per_origin", Kind::Bytes { min: 0, max: RATE_MAX }, "0")
                    .effect("Bytes per second that each container may send over Unix sockets, in the same way, with `origin_detection`; processes outside of containers are one. What is beyond is dropped and counted as `origin_rate_limited`.")
                    .zero("0: origins are not limited.")
                    .who("Operators who run other people's containers."),
            ),
            entry(
                setting("socket_mode", Kind::Checked { allowed: "an octal file mode such as 0722", check: is_mode }, "0722")
                    .effect("Mode of the Unix socket files.")
                    .who("Operators who restrict who may send."),
            ),
            entry(
                setting("socket_owner", Kind::Text, "''")
                    .effect("User, by name or number, that owns the Unix socket files.")
                    .zero("Empty: the user weir runs as.")
                    .who("Operators who restrict who may send."),
            ),
            entry(
                setting("socket_group", Kind::Text, "''")
                    .effect("Group, by name or number, of the Unix socket files.")
                    .zero("Empty: the group weir runs as.")
                    .who("Operators who restrict who may send."),
            ),
            entry(
                setting("allowed_origins", Kind::List(&ORIGIN), "[]")
                    .effect("Who may send on Unix sockets, with `origin_detection`: containers by their tags (of every cardinality; in the value `*` stands for any characters), `no_container` for processes outside of containers, `unknown` for senders that nothing could be found out about. Packets of others are dropped and counted as `origin_not_allowed`, and as `origin_unknown` where nothing could be found out (docs/limits.md).")
                    .zero("An empty list: whoever may open the socket.")
                    .who("Operators who run other people's containers."),
            )
            .live(),
            entry(
                setting("receive_buffer", Kind::Bytes { min: 0, max: 1 << 30 }, "8MiB")
                    .effect("Receive buffer to ask the kernel for, per socket. weir says at start what was granted and how to get more.")
                    .zero("0: the system's default.")
                    .who("Hardly anybody."),
            )
            .also(&["DD_DOGSTATSD_SO_RCVBUF"]),
            entry(
                setting("packet_bytes_max", Kind::Bytes { min: 64, max: 65_536 }, "64KiB")
                    .effect("The longest packet. A longer datagram is cut there: the cut line is refused, and what lies behind it is counted as `truncated`, as many lines as fit in at most; a stream connection that announces a longer frame is closed and counted.")
                    .who("Hardly anybody."),
            )
            .also(&["DD_DOGSTATSD_BUFFER_SIZE"]),
            entry(
                setting("eol_required", Kind::List(&Kind::Choice(&["udp", "uds"])), "[]")
                    .effect("Transports on which a last line without a newline is refused and counted.")
                    .zero("An empty list: none.")
                    .who("Operators whose senders cut packets."),
            )
            .also(&["DD_DOGSTATSD_EOL_REQUIRED"]),
        ],
    },
    Group {
        title: "Origin",
        entries: &[
            entry(
                setting("origin_detection", Kind::Bool, "false")
                    .effect("Learn from the kernel which process sent a packet on a Unix socket.")
                    .who("Operators who want to know which container sent a metric."),
            )
            .also(&["DD_DOGSTATSD_ORIGIN_DETECTION"]),
            entry(
                setting("origin_client", Kind::Bool, "false")
                    .effect("Read the origin fields of messages (`c:`, `e:`, `card:`); off, they are ignored.")
                    .who("Operators who want to know which container sent a metric."),
            )
            .also(&["DD_DOGSTATSD_ORIGIN_DETECTION_CLIENT"]),
            entry(
                setting("origin_unified", Kind::Bool, "false")
                    .effect("Take the first origin that is known, from the message before the socket, instead of adding them up.")
                    .who("Operators of clusters that use this mode already."),
            )
            .also(&["DD_ORIGIN_DETECTION_UNIFIED"]),
            entry(
                setting("origin_optout", Kind::Bool, "true")
                    .effect("A message with cardinality `none` gets no origin tags.")
                    .who("Operators who want origin tags whatever clients say."),
            )
            .also(&["DD_DOGSTATSD_ORIGIN_OPTOUT_ENABLED", "DD_DOGSTATSD_ORIGIN_OPT_OUT_ENABLED"]),
            entry(
                setting("entity_id_precedence", Kind::Bool, "false")
                    .effect("An entity id in the message replaces the sender's origin instead of adding to it.")
                    .who("Operators whose messages are relayed by another container."),
            )
            .also(&["DD_DOGSTATSD_ENTITY_ID_PRECEDENCE"]),
            entry(
                setting("tag_cardinality", Kind::Choice(&["none", "low", "orchestrator", "orch", "high"]), "low")
                    .effect("Which origin tags are added when a message does not say.")
                    .who("Operators who want pod or container names on every metric."),
            )
            .also(&["DD_DOGSTATSD_TAG_CARDINALITY"]),
            entry(
                setting("origin_docker", Kind::List(&SOCKET_PATH), "[/var/run/docker.sock, /run/podman/podman.sock]")
                    .path(PathUse::Connect)
        .effect("Sockets of Docker or Podman to ask for containers and their tags, once origins are told apart. Those of the default are left out if they are not there at the start.")
                    .zero("An empty list: none.")
                    .who("Operators whose runtime listens elsewhere."),
            ),
            entry(
                setting("origin_containerd", Kind::List(&SOCKET_PATH), "[/run/containerd/containerd.sock]")
                    .path(PathUse::Connect)
        .effect("Sockets of containerd to ask for containers and their tags, as above.")
                    .zero("An empty list: none.")
                    .who("Operators whose runtime listens elsewhere."),
            )
            .also(&["DD_CRI_SOCKET_PATH"]),
            entry(
                setting("origin_kubelet", Kind::Text, "''")
                    .effect("Kubelet to ask for pods and their tags: a host, for https and port 10250, or a URL.")
                    .zero("Empty: none.")
                    .who("Operators of Kubernetes; `status.hostIP` of the downward API is the host."),
            )
            .also(&["DD_KUBERNETES_KUBELET_HOST"]),
            entry(
                setting("origin_kubelet_token", Kind::Text, "/var/run/secrets/kubernetes.io/serviceaccount/token")
                    .path(PathUse::Read)
        .effect("File with the token to show the kubelet, read before each request.")
                    .zero("Empty, or no such file: no token.")
                    .who("Operators who mount it elsewhere."),
            )
            .also(&["DD_KUBELET_AUTH_TOKEN_PATH"]),
            entry(
                setting("origin_kubelet_ca", Kind::Text, "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt")
                    .path(PathUse::Read)
        .effect("PEM file with the certificates of the authority that signed the kubelet's.")
                    .zero("Empty, or no such file: those of the system.")
                    .who("Operators who mount it elsewhere."),
            )
            .also(&["DD_KUBELET_CLIENT_CA"]),
            entry(
                setting("origin_kubelet_certificate", Kind::Text, "''")
                    .path(PathUse::Read)
        .effect("PEM file with a certificate to show the kubelet, for those that know their clients by certificates. Read again when a connection fails.")
                    .zero("Empty: none.")
                    .who("Operators whose kubelets take no tokens."),
            )
            .also(&["DD_KUBELET_CLIENT_CRT"]),
            entry(
                setting("origin_kubelet_key", Kind::Text, "''")
                    .path(PathUse::Read)
        .effect("PEM file with the private key of `origin_kubelet_certificate`.")
                    .zero("Empty: none, and no certificate either.")
                    .who("Operators whose kubelets take no tokens."),
            )
            .also(&["DD_KUBELET_CLIENT_KEY"]),
            entry(
                setting("origin_kubelet_tls_verify", Kind::Bool, "true")
                    .effect("The kubelet has to show a certificate that its authority signed for its address.")
                    .who("Operators whose kubelets sign their own certificates."),
            )
            .also(&["DD_KUBELET_TLS_VERIFY"]),
            entry(
                setting("origin_podinfo", Kind::Text, "''")
                    .path(PathUse::ReadBeneath)
        .effect("Directory of a downward API volume with any of the files `labels`, `name`, `namespace`, `uid`. Its tags go to every sender of which nothing better is known.")
                    .zero("Empty: none.")
                    .who("Those who run weir inside the pod whose metrics it receives."),
            ),
            entry(
                setting("origin_file", Kind::Text, "''")
                    .path(PathUse::Read)
        .effect("JSON file with the tags of containers and pods (docs/origin.md), read again when it changes.")
                    .zero("Empty: none.")
                    .who("Those whose containers no other source knows."),
            ),
            entry(
                setting("origin_environment", Kind::Map(&Kind::Text), "{}")
                    .effect("Variables of weir's environment, each with the tag it becomes, as in `POD_NAME: pod_name`; a `+` before the tag: only at cardinality `high`. The tags go to every sender of which nothing better is known.")
                    .zero("Empty: none.")
                    .who("Those who run weir inside the pod or task whose metrics it receives."),
            ),
            entry(
                setting("container_labels_as_tags", Kind::Map(&Kind::Text), "{}")
                    .effect("Labels of containers, each with the tag it becomes; a `+` before the tag: only at cardinality `high`.")
                    .zero("Empty: none but the usual ones.")
                    .who("Operators with labels of their own."),
            )
            .also(&["DD_CONTAINER_LABELS_AS_TAGS", "DD_DOCKER_LABELS_AS_TAGS"]),
            entry(
                setting("pod_labels_as_tags", Kind::Map(&Kind::Text), "{}")
                    .effect("Labels of pods, each with the tag it becomes; a `+` before the tag: only at cardinality `high`.")
                    .zero("Empty: none but the usual ones.")
                    .who("Operators with labels of their own."),
            )
            .also(&["DD_KUBERNETES_POD_LABELS_AS_TAGS"]),
            entry(
                setting("proc_root", Kind::Text, "/proc")
                    .path(PathUse::ReadBeneath)
        .effect("Where the processes of the host are to be found.")
                    .who("Those who run weir in a container and mount the host's elsewhere."),
            )
            .also(&["DD_CONTAINER_PROC_ROOT"]),
            entry(
                setting("cgroup_root", Kind::Text, "/sys/fs/cgroup")
                    .path(PathUse::ReadBeneath)
        .effect("Where the control groups of the host are to be found.")
                    .who("Those who run weir in a container and mount the host's elsewhere."),
            )
            .also(&["DD_CONTAINER_CGROUP_ROOT"]),
        ],
    },
    Group {
        title: "Aggregation",
        entries: &[
            entry(
                setting("bucket_width", Kind::Duration { min: SECOND, max: Duration::from_secs(3600) }, "10s")
                    .effect("Width of a bucket in whole seconds; a bucket is flushed when it closes.")
                    .who("Those who want to see changes sooner, at the price of more points."),
            )
            .common(),
            entry(
                setting("counter_expiry", Kind::Duration { min: Duration::ZERO, max: DURATION_MAX }, "300s")
                    .effect("A counter that gets no samples sends zeros for this long.")
                    .zero("0: no zeros.")
                    .who("Those whose alerts treat zero and nothing differently."),
            )
            .also(&["DD_DOGSTATSD_EXPIRY_SECONDS"]),
            entry(
                setting("context_expiry", Kind::Duration { min: SECOND, max: DURATION_MAX }, "20s")
                    .effect("A context that gets no samples for this long is forgotten (a counter's: after `counter_expiry` as well). It affects memory alone.")
                    .who("Hardly anybody."),
            )
            .also(&["DD_DOGSTATSD_CONTEXT_EXPIRY_SECONDS"]),
            entry(
                setting(
                    "histogram_aggregates",
                    Kind::List(&Kind::Choice(&["max", "min", "median", "avg", "sum", "count"])),
                    "[max, median, avg, count]",
                )
                .effect("Series made of each histogram and timing.")
                .zero("An empty list: none of them.")
                .who("Those who look at other aggregates."),
            )
            .also(&["DD_HISTOGRAM_AGGREGATES"]),
            entry(
                setting(
                    "histogram_percentiles",
                    Kind::List(&Kind::Checked { allowed: "a number from 0 to 1 such as 0.95", check: is_percentile }),
                    "['0.95']",
                )
                .effect("Percentiles made of each histogram and timing, rounded to whole percents.")
                .zero("An empty list: none.")
                .who("Those who look at other percentiles."),
            )
            .also(&["DD_HISTOGRAM_PERCENTILES"]),
            entry(
                setting("histogram_weights", Kind::Choice(&["exact", "agent"]), "exact")
                    .effect("How a sampled histogram or timing counts: `exact` keeps fractions, `agent` cuts them off as the Datadog Agent does.")
                    .who("Those who compare with that agent number by number."),
            ),
            entry(
                setting("histogram_copy_to_distribution", Kind::Bool, "false")
                    .effect("Every sample of a histogram or timing also goes into a distribution.")
                    .who("Those who move from histograms to distributions."),
            )
            .also(&["DD_HISTOGRAM_COPY_TO_DISTRIBUTION"]),
            entry(
                setting("histogram_copy_to_distribution_prefix", Kind::Text, "''")
                    .effect("Put before the name of that distribution as it is, without a dot in between.")
                    .zero("Empty: the distribution has the histogram's name.")
                    .who("Those who move from histograms to distributions."),
            )
            .also(&["DD_HISTOGRAM_COPY_TO_DISTRIBUTION_PREFIX"]),
            entry(
                setting("timestamps", Kind::Bool, "true")
                    .effect("Counters and gauges that carry a timestamp keep it and skip aggregation; off, the timestamp is ignored.")
                    .who("Those whose clients send wrong timestamps."),
            )
            .also(&["DD_DOGSTATSD_NO_AGGREGATION_PIPELINE"]),
            entry(
                setting("statsd_gauge_deltas", Kind::Bool, "false")
                    .effect("A gauge with a sign changes the last value instead of replacing it, as in etsy's StatsD.")
                    .who("Those who come from a StatsD that does this."),
            ),
            entry(
                setting("flush_open_buckets", Kind::Bool, "true")
                    .effect("Send the buckets that are still open at shutdown; off, they are dropped and counted.")
                    .who("Those who would rather lose a bucket than send part of one."),
            )
            .also(&["DD_DOGSTATSD_FLUSH_INCOMPLETE_BUCKETS"]),
        ],
    },
    Group {
        title: "Names and tags",
        entries: &[
            entry(
                setting("hostname", Kind::Text, "''")
                    .effect("The host of everything that does not bring its own.")
                    .zero("Empty: the system's host name.")
                    .who("Operators of containers, whose host name says little."),
            )
            .also(&["DD_HOSTNAME"])
            .common(),
            entry(
                setting("tags", Kind::List(&Kind::Text), "[]")
                    .effect("Tags for every metric, event and service check.")
                    .zero("An empty list: none.")
                    .who("Operators who tell environments apart."),
            )
            .also(&["DD_TAGS"])
            .common()
            .live(),
            entry(
                setting("extra_tags", Kind::List(&Kind::Text), "[]")
                    .effect("More such tags, so that two sources can each bring some.")
                    .zero("An empty list: none.")
                    .who("Operators who tell environments apart."),
            )
            .also(&["DD_DOGSTATSD_TAGS", "DD_EXTRA_TAGS"])
            .live(),
            entry(
                setting("namespace", Kind::Text, "''")
                    .effect("Put before every metric name, with a dot in between.")
                    .zero("Empty: names stay as they are.")
                    .who("Operators who share a backend."),
            )
            .also(&["DD_STATSD_METRIC_NAMESPACE"])
            .live(),
            entry(
                setting(
                    "namespace_blocklist",
                    Kind::List(&Kind::Text),
                    "[datadog.agent, datadog.dogstatsd, datadog.process, datadog.trace_agent, datadog.tracer, activemq, activemq_58, airflow, cassandra, confluent, hazelcast, hive, ignite, jboss, jvm, kafka, presto, sidekiq, solr, tomcat, runtime]",
                )
                .effect("Names that start with one of these get no namespace.")
                .zero("An empty list: every name gets it.")
                .who("Operators who use a namespace."),
            )
            .also(&["DD_STATSD_METRIC_NAMESPACE_BLOCKLIST", "DD_STATSD_METRIC_NAMESPACE_BLACKLIST"])
            .live(),
            entry(
                setting("metric_filterlist", Kind::List(&Kind::Text), "[]")
                    .effect("Metrics with these names, namespace included, are dropped and counted. A histogram's series are filtered by their own names too.")
                    .zero("An empty list: nothing is dropped.")
                    .who("Operators who pay for a metric nobody reads."),
            )
            .also(&["DD_METRIC_FILTERLIST", "DD_STATSD_METRIC_BLOCKLIST"])
            .live(),
            entry(
                setting("metric_filterlist_match_prefix", Kind::Bool, "false")
                    .effect("The names of `metric_filterlist` are prefixes.")
                    .who("Operators who filter whole families."),
            )
            .also(&["DD_METRIC_FILTERLIST_MATCH_PREFIX", "DD_STATSD_METRIC_BLOCKLIST_MATCH_PREFIX"])
            .live(),
            entry(
                setting("max_tag_length", Kind::Integer { min: 0, max: 65_536 }, "0")
                    .effect("Tags are cut to this many bytes, at the end of a character.")
                    .zero("0: tags stay as they are.")
                    .who("Operators whose backend refuses long tags."),
            )
            .live(),
        ],
    },
    Group {
        title: "Rules",
        entries: &[
            entry(
                setting("mapper_profiles", rules::PROFILES, "[]")
                    .effect("New names and tags for metrics by the name they arrive with. `docs/rules.md` has every field.")
                    .zero("An empty list: names stay as they are.")
                    .who("Those whose names hold what should be tags."),
            )
            .also(&["DD_DOGSTATSD_MAPPER_PROFILES"])
            .live(),
            entry(
                setting("metric_tag_filterlist", rules::TAG_FILTERS, "[]")
                    .effect("Tag keys to take from (`exclude`), or to leave to (`include`), the metrics of one name each; what becomes equal is aggregated as one.")
                    .zero("An empty list: tags stay as they are.")
                    .who("Operators who pay for a tag nobody reads."),
            )
            .also(&["DD_METRIC_TAG_FILTERLIST"])
            .live(),
            entry(
                setting("rules", rules::RULES, "[]")
                    .effect("Drops, tag filters, actions on tag values, hosts, tags and histogram series for metrics by their final name, in this order. `docs/rules.md` has every field.")
                    .zero("An empty list: no rules.")
                    .who("Operators who pay per series, or must not pass on some value."),
            )
            .live(),
        ],
    },
    Group {
        title: "Resources",
        entries: &[
            entry(
                setting("memory", Kind::Bytes { min: 0, max: 1 << 40 }, "0")
                    .effect("The one budget for everything that grows: contexts, caches, samples, batches, frames, sessions, queues, sums. docs/limits.md has the shares, and `weir check` prints them.")
                    .zero("0: a quarter of the cgroup's limit or of the machine, at least 64MiB and at most 2GiB.")
                    .who("Operators with a million contexts, or very little memory. The least that is taken is 8MiB."),
            )
            .common(),
            entry(
                setting("contexts_max", Kind::Integer { min: 0, max: 1 << 32 }, "0")
                    .effect("A limit on the number of contexts, besides the memory budget.")
                    .zero("0: memory alone decides.")
                    .who("Operators whose backend charges per series."),
            ),
            entry(
                setting("contexts_per_metric_max", Kind::Integer { min: 0, max: 1 << 32 }, "0")
                    .effect("A limit on the number of contexts of one metric name, besides its fair share of the memory budget and of `contexts_max`.")
                    .zero("0: a metric may have four times as many contexts as there is still room for.")
                    .who("Operators whose backend charges per series."),
            ),
            entry(
                setting("contexts_per_origin_max", Kind::Integer { min: 0, max: 1 << 32 }, "0")
                    .effect("The same for one container, or whatever else origin detection tells apart. Different orders of the same tags count once.")
                    .zero("0: an origin may have four times as many contexts as there is still room for.")
                    .who("Operators of machines that many teams share."),
            ),
            entry(
                setting("tag_values_alert", Kind::Integer { min: 0, max: 1 << 32 }, "10000")
                    .effect("When a tag key has more different values in live contexts than this, the log says so once and the series `weir_tag_key_values_alert` shows it, until it has fewer than half as many.")
                    .zero("0: no alert.")
                    .who("Operators whose keys have many values for a reason."),
            ),
            entry(
                setting("cpu", Kind::Number { min: 0.0, max: 1024.0 }, "0")
                    .effect("How many cores weir may plan with.")
                    .zero("0: those of the cgroup's quota, or of the machine.")
                    .who("Operators who share a machine without cgroups."),
            ),
            entry(
                setting("workers", Kind::Integer { min: 0, max: 64 }, "0")
                    .effect("Threads that receive and aggregate.")
                    .zero("0: one below 8 cores, then one per 8 cores, at most 4.")
                    .who("Operators who measured that one is too few."),
            ),
        ],
    },
    Group {
        title: "Running",
        entries: &[
            entry(
                setting(
                    "admin",
                    Kind::Checked { allowed: "an address such as 127.0.0.1:8127, or off", check: is_admin_address_or_off },
                    "127.0.0.1:8127",
                )
                .effect("Address of the admin HTTP server: metrics, status, profiles. Whoever reaches it can read metric names and take profiles.")
                .zero("`off` or empty: no admin server.")
                .who("Operators whose Prometheus scrapes from another machine."),
            )
            .common(),
            entry(
                setting("admin_hosts", Kind::List(&HOST_NAME), "[]")
                    .effect("Host names under which the admin server may be asked, besides addresses and `localhost`. A request whose `Host` is another one is refused, so that no web page can read answers by pointing its own name at this machine.")
                    .zero("An empty list: addresses and `localhost` alone.")
                    .who("Operators whose Prometheus or reverse proxy asks by name."),
            ),
            entry(
                setting("sandbox", Kind::Choice(&["auto", "off"]), "auto")
                    .effect("What the process gives up once its sockets are bound, as far as the kernel offers it: new privileges, capabilities, files that the configuration does not name, and system calls that it never makes (docs/sandbox.md). A file or directory that a reload names for the first time may be out of reach until a restart.")
                    .zero("`off`: nothing.")
                    .who("Operators whose weir has to reach what its configuration does not name."),
            ),
            entry(
                setting("grace_period", Kind::Duration { min: Duration::ZERO, max: Duration::from_secs(3600) }, "10s")
                    .effect("How long a shutdown may take to deliver what is left. What is still left then is lost and counted. What a disk queue holds is not waited for.")
                    .zero("0: one attempt, without waiting.")
                    .who("Operators with a slow backend; stay below the service manager's own limit."),
            ),
            entry(
                setting(
                    "log_level",
                    Kind::Choice(&["off", "critical", "error", "warn", "warning", "info", "debug", "trace"]),
                    "info",
                )
                .effect("The least severe log lines that are written to standard error.")
                .who("Whoever looks for a fault."),
            )
            .also(&["DD_LOG_LEVEL"])
            .common()
            .live(),
            entry(
                setting("flush_summary", Kind::Bool, "true")
                    .effect("Log one line per flush at level `info` that says what came in, what went out and what was lost.")
                    .who("Operators who store logs of many agents."),
            ),
        ],
    },
];
