//! Counters of a listener. Plain numbers: one thread owns them, others get copies.

use weir_counters::Significance::{Normal, Problem};
use weir_counters::books::{MESSAGES_RECEIVED, MESSAGES_REJECTED, PACKETS_DROPPED, PACKETS_RECEIVED};
use weir_counters::{Counts, SeriesSpec, counters};

/// Of one listener on one event loop, since it was added. Connections count towards their listener.
pub type ListenerCounters = Counts<ListenerCounter>;

/// Of an event loop.
pub type LoopCounters = Counts<LoopCounter>;

const fn connections(name: &'static str, path: &'static str) -> SeriesSpec {
    SeriesSpec::counter(name, path, "connections")
}

/// A packet that was lost before it counted as received.
const fn lost(reason: &'static str) -> SeriesSpec {
    PACKETS_DROPPED.because(reason).also(PACKETS_RECEIVED)
}

const REFUSED_LIMIT: SeriesSpec = connections(
    "weir_connections_refused_limit_total",
    "listeners.connections_refused_limit",
)
.help("Connections closed at once for lack of memory or descriptors.");

const RECEIVE_ERRORS: SeriesSpec = SeriesSpec::counter(
    "weir_receive_errors_total",
    "listeners.receive_errors",
    "system calls",
)
.help("Receive calls that failed, by reason.");

counters! {
    /// Counters of a listener's sockets.
    ///
    /// Every packet the kernel handed over is in `Packets` and was given to the handler; everything else that a sender
    /// could miss is in a counter that names why.
    pub enum ListenerCounter {
        /// Packets received: datagrams, stream frames, or runs of complete lines, including dropped ones.
        Packets = SeriesSpec::counter("weir_packets_received_total", PACKETS_RECEIVED, "packets"),
            Normal("It rises as long as clients send.");
        /// Bytes of the packets given to the parser, without length headers.
        Bytes = SeriesSpec::counter("weir_received_bytes_total", "listeners.books.bytes", "bytes"),
            Normal("It rises as long as clients send.");
        /// Datagrams the kernel dropped because the receive buffer was full, or for a bad checksum (UDP only; Unix sockets
        /// push back instead).
        KernelDropped = lost("kernel"),
            Problem("Give weir a larger `receive_buffer` (and `net.core.rmem_max`), more `workers` or more CPU, or let clients send fewer and larger packets.");
        /// Datagrams from addresses that may not send here.
        SourcesRefused = lost("source_not_allowed"),
            Problem("Add the sender's network to `allowed_networks`, or find the sender.");
        /// Packets from addresses or networks above their rate limit.
        RateLimited = lost("rate_limited"),
            Problem("Raise `rate_limit_per_network` or `rate_limit_per_address`, or slow down the sender.");
        /// Datagrams the kernel dropped after the stop began, because weir asked it to (UDP only).
        RefusedDraining = lost("refused_at_shutdown"),
            Normal("Clients kept sending while weir stopped.");
        /// Stream frames longer than the limit (their connection was closed), or lines longer than the limit (skipped).
        FramesTooLong = lost("frame_too_long"),
            Problem("weir takes frames of up to 64 KiB: let the client send smaller ones, or set `tcp_framing` to the framing that it uses.");
        /// Frames or lines that were lost because their connection ended inside them.
        FramesCut = lost("frame_cut"),
            Problem("Let clients finish a message before they close, and check that `tcp_framing` is theirs. If weir closed the connection, another loss of the same place says why.");
        /// Datagrams longer than `packet_bytes_max`; the part that fitted was parsed without its last line.
        Truncated = SeriesSpec::counter("weir_packets_truncated_total", "listeners.packets_truncated", "packets"),
            Problem("weir takes packets of up to 64 KiB: let the client send smaller ones (`WithMaxBytesPerPayload` in Go, `buffer_max_payload_size` of dogstatsd-ruby).");
        /// Lines that a datagram above `packet_bytes_max` lost.
        TruncatedLinesMax = MESSAGES_REJECTED.because("truncated").also(MESSAGES_RECEIVED),
            Problem("weir takes packets of up to 64 KiB: let the client send smaller ones (`WithMaxBytesPerPayload` in Go, `buffer_max_payload_size` of dogstatsd-ruby). The cut part counts as the most lines that fit into it.");
        /// Packets whose sender the kernel cannot name here, because it is in another process namespace. They are parsed.
        OriginErrors = SeriesSpec::counter("weir_origin_packets_without_process_total", "origin.packets_without_process", "packets"),
            Problem("Give weir the host's process namespace (`hostPID: true`), or their origin stays unknown.");

        /// Frames of length zero, which are ignored.
        FramesEmpty = SeriesSpec::counter("weir_frames_empty_total", "listeners.frames_empty", "frames"),
            Normal("A client sends empty frames; nothing is lost.");
        /// Last lines without a newline, accepted because the peer closed the connection cleanly (newline framing only).
        LinesUnterminated = SeriesSpec::counter("weir_lines_unterminated_total", "listeners.lines_unterminated", "lines"),
            Normal("Clients do not end their last line; nothing is lost.");
        /// Bytes read from connections and discarded: too long lines, truncated frames, everything after a bad header.
        BytesDiscarded = SeriesSpec::counter("weir_discarded_bytes_total", "listeners.bytes_discarded", "bytes"),
            Problem("It is the size of the frames dropped as `frame_too_long` and `frame_cut`.");
        /// Bytes of unfinished frames in memory.
        PartialBytes = SeriesSpec::gauge("weir_partial_frame_bytes", "listeners.partial_bytes", "bytes"),
            Normal("Clients are in the middle of a frame.");

        /// Open stream connections.
        ConnectionsOpen = SeriesSpec::gauge("weir_connections", "listeners.connections", "connections"),
            Normal("Clients connect and leave.");
        /// Connections accepted, including those refused right after.
        ConnectionsAccepted = connections("weir_connections_accepted_total", "listeners.connections_accepted"),
            Normal("If it rises fast, clients open a connection for each message.");
        /// Connections closed at once because the maximum number was open.
        ConnectionsRefusedLimit = REFUSED_LIMIT,
            Problem("Clients hold more connections than the limit of open files allows, or with TLS the memory: raise it (`LimitNOFILE=`, `ulimit -n`), give weir more `memory`, or close some.");
        /// Connections closed at once because the process had no descriptor left.
        ConnectionsRefusedDescriptors = REFUSED_LIMIT,
            Problem("Raise the limit of open files (`LimitNOFILE=`, `ulimit -n`).");
        /// Connections closed to make room for a peer with fewer.
        ConnectionsClosedCrowded = connections("weir_connections_closed_crowded_total", "listeners.connections_closed_crowded"),
            Problem("All connections are in use, and one peer holds most of them: `ss -tn` shows which; let it reuse connections, or raise the limit of open files (`LimitNOFILE=`, `ulimit -n`).");
        /// Connections closed after an hour of silence, or a minute if all connections were in use.
        ConnectionsClosedIdle = connections("weir_connections_closed_idle_total", "listeners.connections_closed_idle"),
            Normal("Clients keep connections that they do not use; nothing is lost.");
        /// Connections of senders that are not allowed, closed at once.
        ConnectionsRefusedSource = connections("weir_connections_refused_total", "listeners.connections_refused"),
            Problem("Add the sender's network to `allowed_networks`, or find the client.");
        /// Connections that could not be encrypted: no common version, no trusted certificate, no TLS, or no handshake within ten seconds.
        ConnectionsFailedTls = connections("weir_connections_failed_tls_total", "listeners.connections_failed_tls"),
            Problem("The log has the error of the last one: correct the client's certificate, or `tcp_tls_certificate`, `tcp_tls_key` or `tcp_tls_client_ca`.");
        /// Connections closed because partial frames had used up their share of `memory`, and theirs was the largest.
        ConnectionsClosedBudget = connections("weir_connections_closed_budget_total", "listeners.connections_closed_budget"),
            Problem("Clients do not finish long frames: give weir more `memory`, or find the clients.");
        /// TCP connections that the stop reset although their peers were still sending.
        ConnectionsCutDraining = connections("weir_connections_cut_total", "listeners.connections_cut"),
            Problem("Clients kept sending during the stop, and the reset shows them that their last data is lost. `weir upgrade` replaces the process without ending connections.");
        /// Connections that ended with an error, most often a reset by the peer.
        ConnectionsFailed = connections("weir_connections_failed_total", "listeners.connections_failed"),
            Problem("A client ended without closing its connection: let it close, or its log says why it was killed. Otherwise the network between fails: `nstat -az TcpRetransSegs` counts what it lost.");
        /// Failed calls of `accept`, including those for lack of descriptors.
        AcceptErrors = SeriesSpec::counter("weir_accept_errors_total", "listeners.accept_errors", "system calls"),
            Problem("If `weir_accept_pauses_total` rises too, raise the limit of open files (`LimitNOFILE=`, `ulimit -n`); otherwise clients leave before they are accepted.");
        /// Times accepting was paused because the system had no descriptors or memory.
        AcceptPauses = SeriesSpec::counter("weir_accept_pauses_total", "listeners.accept_pauses", "pauses"),
            Problem("Raise the limit of open files of weir, or of the system (`fs.file-max`).");

        /// System calls that asked for data.
        ReceiveCalls = SeriesSpec::counter("weir_receive_calls_total", "listeners.receive_calls", "system calls"),
            Normal("Packets per call show how well batches work.");
        /// Receive calls that returned nothing.
        ReceiveCallsEmpty = SeriesSpec::counter("weir_receive_calls_empty_total", "listeners.receive_calls_empty", "system calls"),
            Normal("It rises while weir waits for packets.");
        /// A signal interrupted the call; nothing was lost.
        ReceiveInterrupted = RECEIVE_ERRORS.because("interrupted"),
            Normal("Signals interrupted system calls; nothing was lost.");
        /// The kernel had no memory for the call.
        ReceiveNoMemory = RECEIVE_ERRORS.because("no_memory"),
            Problem("The kernel has no memory for the call: give the machine more, or weir less (`memory`).");
        /// The peer reset the connection.
        ReceiveReset = RECEIVE_ERRORS.because("reset"),
            Problem("A client ended without closing its connection: let it close, or its log says why it was killed. Otherwise the network between fails: `nstat -az TcpRetransSegs` counts what it lost.");
        /// Any other error.
        ReceiveOther = RECEIVE_ERRORS.because("other"),
            Problem("The system refuses to receive: `journalctl -k` says why, for example a security module.");
    }
}

counters! {
    /// Counters of an event loop.
    pub enum LoopCounter {
        /// Turns of the event loops: each waits for packets and reads them.
        Turns = SeriesSpec::counter("weir_event_loop_turns_total", "event_loop.turns", "turns"),
            Normal("It rises by at least one per second and worker; if it does not, a worker is stuck.");
        /// System calls that asked which sockets have data.
        Polls = SeriesSpec::counter("weir_event_loop_polls_total", "event_loop.polls", "system calls"),
            Normal("It rises with the packets, slower when they arrive in batches.");
        /// System calls of the event loops: waiting, receiving, accepting, reading drop counters.
        SystemCalls = SeriesSpec::counter("weir_event_loop_system_calls_total", "event_loop.system_calls", "system calls"),
            Normal("Calls per packet show where the kernel's CPU time goes.");
        /// Times a loop slept for a fixed short time to let packets gather.
        Dozes = SeriesSpec::counter("weir_event_loop_dozes_total", "event_loop.dozes", "sleeps"),
            Normal("Packets arrive one by one, and weir lets them gather.");
        /// Times another thread woke a loop.
        Wakeups = SeriesSpec::counter("weir_event_loop_wakeups_total", "event_loop.wakeups", "wake-ups"),
            Normal("Reloads, answers about origins, and the stop.");
    }
}
