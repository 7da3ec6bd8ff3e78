//! What a listener counts. Plain numbers: one thread owns them, others get copies.

/// Counters of one listener on one event loop, since it was added. Connections count towards their listener.
///
/// Every packet the kernel handed over is in `packets` and was given to the handler; everything else that a sender
/// could miss is in a counter that names why.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ListenerCounters {
    /// Packets given to the handler: datagrams, stream frames, or runs of complete lines.
    pub packets: u64,
    /// Bytes of those packets, without length headers.
    pub bytes: u64,
    /// Datagrams the kernel dropped because the receive buffer was full, or for a bad checksum (UDP only; Unix
    /// sockets push back instead).
    pub kernel_dropped: u64,
    /// Datagrams from addresses that may not send here (internet sockets with an allow list only).
    pub sources_refused: u64,
    /// Packets from addresses or networks that had sent more than they may.
    pub rate_limited: u64,
    /// Datagrams the kernel dropped after the drain began, because we asked it to (UDP only).
    pub refused_draining: u64,
    /// Datagrams longer than `max_packet_bytes`; the part that fitted was handed over with `truncated` set.
    pub truncated: u64,
    /// How many lines at most were behind that part, beside the one that was cut: nobody reads them to count them.
    pub truncated_lines_max: u64,
    /// Packets whose sender could not be identified although credentials were asked for. A sender in another
    /// process namespace looks like this. The packet itself is handed over.
    pub origin_errors: u64,

    /// Stream frames whose header announced more than the limit (the connection was closed), or lines longer than
    /// the limit (skipped up to the next newline).
    pub frames_too_long: u64,
    /// Frames or lines lost because their connection ended inside them.
    pub frames_cut: u64,
    /// Frames of length zero, which are ignored.
    pub frames_empty: u64,
    /// Last lines without a newline, handed over when the peer closed in order (newline framing only).
    pub lines_unterminated: u64,
    /// Bytes read from connections and thrown away: of lines too long, of cut frames, after a bad header.
    pub bytes_discarded: u64,
    /// Bytes of unfinished frames held at the moment. A gauge.
    pub partial_bytes: u64,

    /// Connections open at the moment. A gauge.
    pub connections_open: u64,
    /// Connections accepted, those refused right after included.
    pub connections_accepted: u64,
    /// Connections closed at once because `max_connections` were open and none of them had to give way.
    pub connections_refused_limit: u64,
    /// Connections closed to make place for a peer that had fewer.
    pub connections_closed_crowded: u64,
    /// Connections closed because nothing had come for long: for an hour, or for a minute where all places were taken.
    pub connections_closed_idle: u64,
    /// Connections closed at once because their address may not send here.
    pub connections_refused_source: u64,
    /// Connections closed at once because this process had no descriptor left.
    pub connections_refused_descriptors: u64,
    /// Connections closed because they could not be encrypted: nothing that we support, a client without a certificate
    /// we trust, no TLS at all, or nothing within ten seconds.
    pub connections_failed_tls: u64,
    /// Connections closed because partial frames had used up the byte budget and theirs was the largest.
    pub connections_closed_budget: u64,
    /// TCP connections that a drain reset although their peers were still sending. What their kernels had not got
    /// acknowledged is lost, and they know that it is.
    pub connections_cut_draining: u64,
    /// Connections that ended with an error (most often a reset by the peer).
    pub connections_failed: u64,
    /// Failed calls of `accept`, those for want of descriptors included.
    pub accept_errors: u64,
    /// Times accepting was paused because the system had no descriptors or memory and it could not be relieved.
    pub accept_pauses: u64,

    /// System calls that asked for data.
    pub receive_calls: u64,
    /// Those of them that found nothing.
    pub receive_calls_empty: u64,
    /// Those of them that failed for another reason.
    pub receive_errors: ReceiveErrors,
}

/// Failed receive calls by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReceiveErrors {
    /// Interrupted by a signal; nothing was lost.
    pub interrupted: u64,
    /// The kernel had no memory for the call.
    pub no_memory: u64,
    /// The peer reset the connection.
    pub reset: u64,
    /// Anything else.
    pub other: u64,
}

/// Counters of an event loop as a whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoopCounters {
    /// Calls of `turn`.
    pub turns: u64,
    /// System calls that asked which descriptors are ready.
    pub polls: u64,
    /// Every system call the loop has made: waiting, receiving, accepting, reading drop counters and so on. (Closing
    /// a connection counts; setting up and binding do not.)
    pub system_calls: u64,
    /// Times the loop slept for a fixed short time to let packets gather, instead of being woken by each.
    pub dozes: u64,
    /// Wake-ups by a [`crate::Waker`].
    pub wakeups: u64,
}
