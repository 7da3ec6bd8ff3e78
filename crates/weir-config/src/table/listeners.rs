//! Where messages come in, and from whom.

use std::collections::BTreeMap;
use std::path::PathBuf;

use weir_rules::{OriginPattern, TagStyles};
use weir_units::Network;

use crate::setting::{Gone, Kind, PathUse, Reload};
use crate::types::{EolTransport, Framing, Listen, Mode, SocketPath};
use crate::{choices, settings};

/// Ten seconds of it are far from the end of what can be counted.
const RATE_MAX: u64 = 1 << 50;

settings! {
    /// How messages of some listeners are read. What is not set is as for all.
    pub struct ListenerReading {
        listener: String = "''";
        gauge_deltas: OwnGaugeDeltas = "default";
        tag_styles: Vec<OwnTagStyle> = "[default]";
    }
}

choices! {
    /// Whether a gauge with a sign changes the last value.
    pub enum OwnGaugeDeltas {
        /// As `statsd_gauge_deltas` says.
        Default: "default",
        Yes: "true",
        No: "false",
    }
}

choices! {
    /// How names carry tags.
    pub enum OwnTagStyle {
        /// As `tag_styles` says.
        Default: "default",
        Librato: "librato",
        Influx: "influx",
        SignalFx: "signalfx",
    }
}

impl ListenerReading {
    /// `None`: as for all listeners.
    pub fn own_gauge_deltas(&self) -> Option<bool> {
        match self.gauge_deltas {
            OwnGaugeDeltas::Default => None,
            OwnGaugeDeltas::Yes => Some(true),
            OwnGaugeDeltas::No => Some(false),
        }
    }

    /// `None`: as for all listeners.
    pub fn own_tag_styles(&self) -> Option<TagStyles> {
        let has = |style| self.tag_styles.contains(&style);
        (!has(OwnTagStyle::Default)).then(|| TagStyles {
            librato: has(OwnTagStyle::Librato),
            influx: has(OwnTagStyle::Influx),
            signalfx: has(OwnTagStyle::SignalFx),
        })
    }
}

settings! {
    /// Where messages come in, and from whom.
    pub struct Listeners {
        udp: Vec<Listen> = "['8125']"
            .effect("UDP addresses to receive on, as `host:port` or a port alone, which `bind_host` completes.")
            .zero("An empty list, or the port `0` alone: no UDP. `host:0` lets the kernel choose a port.")
            .who("Operators with another port, or without UDP.")
            .also(&["DD_DOGSTATSD_PORT"])
            .common();
        bind_host: String = "127.0.0.1"
            .effect("The host of every address that is written as a port alone.")
            .zero("Empty: 127.0.0.1.")
            .who("Operators who receive from other machines on one interface.")
            .also(&["DD_BIND_HOST"]);
        non_local_traffic: bool = "false"
            .effect("Receive on every interface, wherever an address is written as a port alone; overrides `bind_host`.")
            .who("Operators who receive from other machines or containers.")
            .also(&["DD_DOGSTATSD_NON_LOCAL_TRAFFIC"])
            .common();
        uds: Vec<SocketPath> = "[]"
            .path(PathUse::WriteBeside)
            .effect("Unix datagram sockets to create. A stale socket file is replaced; any other file is an error.")
            .zero("An empty list: none.")
            .who("Anyone whose clients run on the same machine: it is faster than UDP and loses nothing.")
            .also(&["DD_DOGSTATSD_SOCKET"])
            .common();
        uds_stream: Vec<SocketPath> = "[]"
            .path(PathUse::WriteBeside)
            .effect("Unix stream sockets to create. Each packet follows its length in four bytes, the lowest first.")
            .zero("An empty list: none.")
            .who("Clients that speak the stream form.")
            .also(&["DD_DOGSTATSD_STREAM_SOCKET"])
            .common();
        tcp: Vec<Listen> = "[]"
            .effect("TCP addresses to receive on, as `host:port` or a port alone, which `bind_host` completes.")
            .zero("An empty list, or the port `0` alone: none.")
            .who("Operators whose network loses UDP.")
            .also(&["DD_DOGSTATSD_TCP_PORT"])
            .common();
        allowed_networks: Vec<Network> = "[]"
            .effect("Who may send over UDP and TCP, besides 127.0.0.1 and ::1. Datagrams of others are dropped and counted as `source_not_allowed`, their connections closed and counted. The sender's address is all there is to tell by: UDP senders can forge it.")
            .zero("An empty list: everybody who reaches the socket.")
            .who("Operators who receive from other machines.");
        tcp_framing: Framing = "length"
            .effect("How TCP carries packets: each after its length in four bytes, the lowest first, or as lines.")
            .who("Operators of clients that send lines (`newline`).");
        tcp_tls_certificate: Option<PathBuf> = "''"
            .path(PathUse::Read)
            .effect("PEM file with the certificate that TCP clients are shown, those of intermediate authorities behind it. With it every address of `tcp` takes TLS (1.2 or 1.3) and nothing else. Read again on reload; connections that are open stay as they are.")
            .zero("Empty: TCP is not encrypted.")
            .who("Operators who receive over networks that others can read or write.")
            .on_reload(Reload::AppliedWhile("tcp_tls_certificate"));
        tcp_tls_key: Option<PathBuf> = "''"
            .path(PathUse::Read)
            .effect("PEM file with the private key of `tcp_tls_certificate`. Read again with it.")
            .zero("Empty: none, and no certificate either.")
            .who("Operators who receive over networks that others can read or write.")
            .on_reload(Reload::AppliedWhile("tcp_tls_certificate"));
        tcp_tls_client_ca: Option<PathBuf> = "''"
            .path(PathUse::Read)
            .effect("PEM file with the certificates of authorities. With it TCP clients have to show a certificate that one of them signed. Read again on reload; connections that are open stay open.")
            .zero("Empty: clients need none.")
            .who("Operators who say which machines may send.")
            .on_reload(Reload::AppliedWhile("tcp_tls_certificate"));
        rate_limit_per_network: BTreeMap<String, u64> = "{}"
            .takes(Kind::Map(&Kind::Bytes { min: 1, max: RATE_MAX }))
            .effect("Bytes per second that each of these networks may send as a whole over UDP and TCP, as in `10.0.0.0/8: 1MiB`; of several that hold an address the smallest counts. Ten seconds' worth may come at once, and a packet counts as 64 bytes more than it holds. What is beyond is dropped and counted as `rate_limited`. 127.0.0.1 and ::1 are not limited.")
            .zero("Empty: none is limited.")
            .who("Operators who receive from networks that others run.");
        rate_limit_per_address: Option<u64> = "0"
            .takes(Kind::Bytes { min: 0, max: RATE_MAX })
            .effect("Bytes per second that each address (of IPv6: each /64) may send over UDP and TCP, in the same way.")
            .zero("0: addresses are not limited.")
            .who("Operators who receive from many machines.");
        rate_limit_per_origin: Option<u64> = "0"
            .takes(Kind::Bytes { min: 0, max: RATE_MAX })
            .effect("Bytes per second that each container may send over Unix sockets, in the same way, with `origin_detection`; processes outside of containers are one. What is beyond is dropped and counted as `origin_rate_limited`.")
            .zero("0: origins are not limited.")
            .who("Operators who run other people's containers.");
        socket_mode: Mode = "0722"
            .effect("Mode of the Unix socket files.")
            .who("Operators who restrict who may send.");
        socket_owner: String = "''"
            .effect("User, by name or number, that owns the Unix socket files.")
            .zero("Empty: the user weir runs as.")
            .who("Operators who restrict who may send.");
        socket_group: String = "''"
            .effect("Group, by name or number, of the Unix socket files.")
            .zero("Empty: the group weir runs as.")
            .who("Operators who restrict who may send.");
        socket_directory_sticky: bool = "false"
            .effect("Run as root, weir refuses a directory for a Unix socket in which other users may write, unless it has the sticky bit: they could put another socket in the place of weir's. With this, it sets that bit on a directory of root's (docs/limits.md).")
            .who("Operators who run weir as root with the socket in an `emptyDir` of Kubernetes.");
        allowed_origins: Vec<OriginPattern> = "[]"
            .effect("Who may send on Unix sockets, with `origin_detection`: containers by their tags (of every cardinality; in the value `*` stands for any characters), `no_container` for processes outside of containers, `unknown` for senders that nothing could be found out about. Packets of others are dropped and counted as `origin_not_allowed`, and as `origin_unknown` where nothing could be found out (docs/limits.md).")
            .zero("An empty list: everybody who may open the socket.")
            .who("Operators who run other people's containers.")
            .on_reload(Reload::Applied);
        receive_buffer: Option<u64> = "8MiB"
            .takes(Kind::Bytes { min: 0, max: 1 << 30 })
            .effect("Receive buffer to ask the kernel for, per socket. weir says at start what was granted and how to get more.")
            .zero("0: the system's default.")
            .who("Operators whose `weir status` shows kernel drops: their bursts need more. Or who count buffers of many sockets in a container's memory.")
            .also(&["DD_DOGSTATSD_SO_RCVBUF"]);
        eol_required: Vec<EolTransport> = "[]"
            .effect("Transports on which a last line without a newline is refused and counted.")
            .zero("An empty list: none.")
            .who("Operators whose senders cut packets.")
            .also(&["DD_DOGSTATSD_EOL_REQUIRED"]);
        per_listener: Vec<ListenerReading> = "[]"
            .effect("How messages of some listeners are read; the first entry that is about a listener applies. `listener` is `udp`, `uds`, `uds_stream` or `tcp`, or the address of one as the log shows it, such as `udp://127.0.0.1:9125`. `gauge_deltas` (`true`, `false`) takes the place of `statsd_gauge_deltas` there, and `tag_styles` that of `tag_styles`.")
            .zero("An empty list: all are read in the same way.")
            .who("Operators whose clients come from different programs, each with a port of its own.");
    }
    gone &[Gone {
        key: "packet_bytes_max",
        why: "packets may be as long as 64KiB, and a shorter limit only cut what others may send",
        also: &["DD_DOGSTATSD_BUFFER_SIZE"],
    }]
}
