//! Listeners and allowed senders.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use weir_rules::{OriginPattern, TagStyles};
use weir_units::Network;

use crate::setting::{PathUse, Reload, RemovedSetting, SettingType};
use crate::types::{EolTransport, Framing, Listen, Mode, SocketPath};
use crate::{choices, settings};

/// Ten seconds of it are far below the counter's limit.
const RATE_MAX: u64 = 1 << 50;

settings! {
    /// Reading of messages for selected listeners. Unset options are those of all listeners.
    pub struct ListenerReading {
        listener: String = "''";
        gauge_deltas: OwnSwitch = "default";
        sample_lists: OwnSwitch = "default";
        tag_styles: Vec<OwnTagStyle> = "[default]";
        merge: OwnSwitch = "default";
    }
}

choices! {
    /// A listener's own choice.
    pub enum OwnSwitch {
        /// As the setting for all listeners says.
        Default: "default",
        Yes: "true",
        No: "false",
    }
}

choices! {
    /// The format of tags in names.
    pub enum OwnTagStyle {
        /// As `tag_styles` says.
        Default: "default",
        Librato: "librato",
        Influx: "influx",
        SignalFx: "signalfx",
        Hashes: "hashes",
    }
}

impl OwnSwitch {
    /// `None`: as for all listeners.
    fn own(self) -> Option<bool> {
        match self {
            OwnSwitch::Default => None,
            OwnSwitch::Yes => Some(true),
            OwnSwitch::No => Some(false),
        }
    }
}

impl ListenerReading {
    /// `None`: as for all listeners.
    pub fn own_gauge_deltas(&self) -> Option<bool> {
        self.gauge_deltas.own()
    }

    /// `None`: as for all listeners.
    pub fn own_sample_lists(&self) -> Option<bool> {
        self.sample_lists.own()
    }

    /// Whether points of columns are added to the open bucket. `None`: as for all listeners.
    pub fn own_merge(&self) -> Option<bool> {
        self.merge.own()
    }

    /// `None`: as for all listeners.
    pub fn own_tag_styles(&self) -> Option<TagStyles> {
        let has = |style| self.tag_styles.contains(&style);
        (!has(OwnTagStyle::Default)).then(|| TagStyles {
            librato: has(OwnTagStyle::Librato),
            influx: has(OwnTagStyle::Influx),
            signalfx: has(OwnTagStyle::SignalFx),
            hashes: has(OwnTagStyle::Hashes),
        })
    }
}

settings! {
    /// Listeners and allowed senders.
    pub struct Listeners {
        udp: Vec<Listen> = "['8125']"
            .effect("UDP addresses to receive on: `host:port`, or a port alone, which `bind_host` completes. The host `*` is every interface, and `localhost` is 127.0.0.1 and ::1; the default is 127.0.0.1 alone.")
            .zero("An empty list, or the port `0` alone: no UDP. `host:0` lets the kernel choose a port.")
            .change("to use another port, or to `[]` for no UDP.")
            .also(&["DD_DOGSTATSD_PORT"])
            .common();
        bind_host: String = "127.0.0.1"
            .effect("The host of addresses that are only a port.")
            .zero("Empty: 127.0.0.1.")
            .change("if you receive from other machines on one interface.")
            .also(&["DD_BIND_HOST"]);
        non_local_traffic: bool = "false"
            .effect("Receive on every interface for addresses that are only a port; overrides `bind_host`.")
            .change("if you receive from other machines or containers.")
            .also(&["DD_DOGSTATSD_NON_LOCAL_TRAFFIC"])
            .common();
        uds: Vec<SocketPath> = "[]"
            .path(PathUse::WriteBeside)
            .effect("Unix datagram sockets to create. A stale socket file is replaced; any other file is an error.")
            .zero("An empty list: none.")
            .change("if your clients run on the same machine: a socket is faster than UDP and loses nothing.")
            .also(&["DD_DOGSTATSD_SOCKET"])
            .common();
        uds_stream: Vec<SocketPath> = "[]"
            .path(PathUse::WriteBeside)
            .effect("Unix stream sockets to create. Each packet follows its length in four bytes, the lowest first.")
            .zero("An empty list: none.")
            .change("if your clients speak the stream form.")
            .also(&["DD_DOGSTATSD_STREAM_SOCKET"])
            .common();
        tcp: Vec<Listen> = "[]"
            .effect("TCP addresses to receive on, in the form of `udp`.")
            .zero("An empty list, or the port `0` alone: none.")
            .change("if your network drops UDP packets.")
            .also(&["DD_DOGSTATSD_TCP_PORT"])
            .common();
        http: Vec<Listen> = "[]"
            .effect("Addresses to receive columns on, over HTTP/1.1 and HTTP/2 without encryption, in the form of `udp` (docs/columns.md).")
            .zero("An empty list, or the port `0` alone: none.")
            .change("if your clients aggregate in the process and send columns.")
            .also(&["DD_DOGSTATSD_EXPERIMENTAL_HTTP_LISTEN_ADDRESS"])
            .common();
        http_uds: Vec<SocketPath> = "[]"
            .path(PathUse::WriteBeside)
            .effect("Unix stream sockets to create for columns over HTTP (docs/columns.md).")
            .zero("An empty list: none.")
            .change("if your clients aggregate in the process and run on the same machine.")
            .common();
        http_merge_within: Duration = "20s"
            .takes(SettingType::Duration { min: Duration::ZERO, max: Duration::from_secs(86_400) })
            .effect("Points of columns whose timestamp is at most this long ago when they arrive are added to the open bucket, so that one series of several senders is one point. Older ones go out with their own timestamp (docs/columns.md).")
            .zero("0: only points of the bucket that is open are added to it.")
            .change("if your outputs cannot take old timestamps (longer), or each window should be at its own time (shorter).");
        tcp_framing: Framing = "length"
            .effect("The framing of packets on TCP: each after its length in four bytes, the lowest first (`length`), or as lines (`newline`).")
            .change("if your clients send lines (`newline`).");
        tls: TcpTls = "{}".flat();
        senders: AllowedSenders = "{}".flat();
        socket_file: SocketFile = "{}".flat();
        receive_buffer: Option<u64> = "8MiB"
            .takes(SettingType::Bytes { min: 0, max: 1 << 30 })
            .effect("Receive buffer to request from the kernel, per socket. At the start weir logs the granted size and how to get more.")
            .zero("0: the system's default.")
            .change("if `weir status` shows kernel drops: bursts need more. Many sockets in a small container need less.")
            .also(&["DD_DOGSTATSD_SO_RCVBUF"]);
        reading: Reading = "{}".flat();
    }
    removed &[RemovedSetting {
        key: "packet_bytes_max",
        why: "packets may be up to 64KiB long; a shorter limit only truncated valid packets",
        also: &["DD_DOGSTATSD_BUFFER_SIZE"],
    }]
}

settings! {
    /// The certificates of TCP.
    pub struct TcpTls {
        tcp_tls_certificate: Option<PathBuf> = "''"
            .path(PathUse::Read)
            .effect("PEM file with the server certificate for TCP, followed by those of intermediate authorities. With it every address of `tcp` accepts only TLS (1.2 or 1.3). A reload reads it again; open connections stay as they are.")
            .zero("Empty: TCP is not encrypted.")
            .change("if you receive over networks that others can read or write.")
            .on_reload(Reload::AppliedWhile("tcp_tls_certificate"));
        tcp_tls_key: Option<PathBuf> = "''"
            .path(PathUse::Read)
            .effect("PEM file with the private key of `tcp_tls_certificate`. A reload reads it again.")
            .zero("Empty: none, and no certificate either.")
            .change("if you receive over networks that others can read or write.")
            .on_reload(Reload::AppliedWhile("tcp_tls_certificate"));
        tcp_tls_client_ca: Option<PathBuf> = "''"
            .path(PathUse::Read)
            .effect("PEM file with the certificates of authorities. With it TCP clients need a certificate that one of them signed. A reload reads it again; open connections stay open.")
            .zero("Empty: clients need none.")
            .change("if you restrict which machines may send.")
            .on_reload(Reload::AppliedWhile("tcp_tls_certificate"));
    }
}

settings! {
    /// The senders that may send, and how much.
    pub struct AllowedSenders {
        allowed_networks: Vec<Network> = "[]"
            .effect("Networks that may send over UDP, TCP and HTTP, besides 127.0.0.1 and ::1. weir drops datagrams of other senders, counted as `source_not_allowed`, and closes and counts their connections. UDP senders can forge their address.")
            .zero("An empty list: every sender that reaches the socket.")
            .change("if you receive from other machines.");
        allowed_origins: Vec<OriginPattern> = "[]"
            .effect("Senders that may use the Unix sockets, with `origin_detection`: containers by their tags (of every cardinality; in the value `*` stands for any characters), `no_container` for processes outside of containers, `unknown` for senders whose origin is not known. weir drops packets of other senders, counted as `origin_not_allowed` or `origin_unknown` (docs/limits.md).")
            .zero("An empty list: every process that may open the socket.")
            .change("if you run other people's containers.")
            .on_reload(Reload::Applied);
        rate_limit_per_network: BTreeMap<String, u64> = "{}"
            .takes(SettingType::Map(&SettingType::Bytes { min: 1, max: RATE_MAX }))
            .effect("Bytes per second that each of these networks may send in total over UDP and TCP, as in `10.0.0.0/8: 1MiB`; the smallest network that contains an address counts. A burst may use ten seconds' worth, and each packet counts 64 bytes more than its size. Packets above the rate are dropped and counted as `rate_limited`. 127.0.0.1 and ::1 are not limited.")
            .zero("Empty: none is limited.")
            .change("if you receive from networks that others run.");
        rate_limit_per_address: Option<u64> = "0"
            .takes(SettingType::Bytes { min: 0, max: RATE_MAX })
            .effect("Bytes per second that each address (of IPv6: each /64) may send over UDP and TCP, in the same way.")
            .zero("0: addresses are not limited.")
            .change("if you receive from many machines.");
        rate_limit_per_origin: Option<u64> = "0"
            .takes(SettingType::Bytes { min: 0, max: RATE_MAX })
            .effect("Bytes per second that each container may send over Unix sockets, in the same way, with `origin_detection`; processes outside of containers share one limit. Packets above the rate are dropped and counted as `origin_rate_limited`.")
            .zero("0: origins are not limited.")
            .change("if you run other people's containers.");
    }
}

settings! {
    /// The files of Unix sockets.
    pub struct SocketFile {
        socket_mode: Mode = "0722"
            .effect("Mode of the Unix socket files.")
            .change("if you restrict senders.");
        socket_owner: String = "''"
            .effect("User, by name or number, that owns the Unix socket files.")
            .zero("Empty: the user weir runs as.")
            .change("if you restrict senders.");
        socket_group: String = "''"
            .effect("Group, by name or number, of the Unix socket files.")
            .zero("Empty: the group weir runs as.")
            .change("if you restrict senders.");
        socket_directory_sticky: bool = "false"
            .effect("As root, weir refuses a directory for a Unix socket where other users may write, unless it has the sticky bit: they could replace weir's socket. This setting makes weir set the bit on directories that root owns (docs/limits.md).")
            .change("if you run weir as root with the socket in an `emptyDir` of Kubernetes.");
    }
}

settings! {
    /// The reading of messages.
    pub struct Reading {
        eol_required: Vec<EolTransport> = "[]"
            .effect("Transports on which a last line without a newline is refused and counted.")
            .zero("An empty list: none.")
            .change("if your senders truncate packets.")
            .also(&["DD_DOGSTATSD_EOL_REQUIRED"]);
        per_listener: Vec<ListenerReading> = "[]"
            .effect("Settings for the messages of selected listeners; the first entry that names a listener applies. `listener` is `udp`, `uds`, `uds_stream`, `tcp`, `http` or `http_uds`, or an address as in its setting or as in the log, such as `udp://127.0.0.1:9125`. `gauge_deltas` and `sample_lists` (`true`, `false`) replace `statsd_gauge_deltas` and `statsd_sample_lists` there, and its `tag_styles` replaces the general one. `merge: false` passes all points of columns on with their own timestamp.")
            .zero("An empty list: all listeners have the same settings.")
            .change("if your clients come from different programs, each on its own port.");
    }
}
