use weir_protocol::ErrorClass;

/// Why a sample that was understood is in no bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum SampleDrop {
    /// NaN or infinite.
    NonFinite,
    /// A rule drops its metric.
    Filtered,
    /// A gauge or set in a new context for which there is no memory.
    NoMemory,
    /// A gauge or set in a new context beyond a number of contexts, or beyond its metric's or origin's share.
    ContextLimit,
    /// A timestamp on a kind other than counter and gauge.
    UnsupportedTimestampedType,
}

impl SampleDrop {
    pub const COUNT: usize = 5;
    pub const ALL: [SampleDrop; SampleDrop::COUNT] = [
        SampleDrop::NonFinite,
        SampleDrop::Filtered,
        SampleDrop::NoMemory,
        SampleDrop::ContextLimit,
        SampleDrop::UnsupportedTimestampedType,
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            SampleDrop::NonFinite => "non_finite",
            SampleDrop::Filtered => "filtered",
            SampleDrop::NoMemory => "no_memory",
            SampleDrop::ContextLimit => "context_limit",
            SampleDrop::UnsupportedTimestampedType => "unsupported_timestamped_type",
        }
    }
}

/// Why a packet of somebody whom the kernel may know was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Refusal {
    /// Its origin is not on the list of those that may send.
    NotAllowed,
    /// Its origin could not be found out, and such are not on the list.
    Unknown,
}

impl Refusal {
    pub const COUNT: usize = 2;
    pub const ALL: [Refusal; Refusal::COUNT] = [Refusal::NotAllowed, Refusal::Unknown];

    pub const fn as_str(self) -> &'static str {
        match self {
            Refusal::NotAllowed => "origin_not_allowed",
            Refusal::Unknown => "origin_unknown",
        }
    }
}

/// What became of the packets, messages and samples of one listener. Units are never mixed, and numbers only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IngestCounts {
    /// Packets split into lines.
    pub packets: u64,
    pub bytes: u64,
    /// Packets of origins that had sent more than they may; not among `packets`.
    pub packets_rate_limited: u64,
    /// Packets of senders that may not send, by [`Refusal`]; not among `packets`.
    pub packets_refused: [u64; Refusal::COUNT],
    /// Non-empty lines.
    pub messages: u64,
    pub metrics: u64,
    pub events: u64,
    pub checks: u64,
    pub rejected: [u64; ErrorClass::COUNT],
    /// Last lines of datagrams that the socket cut: refused, because a cut value can look like a valid one.
    pub rejected_truncated: u64,
    /// Accepted messages whose sample rate was unusable and counted as one.
    pub rate_faults: u64,
    /// Values in accepted metrics.
    pub samples: u64,
    pub samples_aggregated: u64,
    /// Samples that went into the overflow series of their name.
    pub samples_overflowed: u64,
    /// Samples with a timestamp of their own, passed on without aggregation.
    pub samples_timestamped: u64,
    pub samples_dropped: [u64; SampleDrop::COUNT],
    /// Accepted events and checks that found the hand-over full.
    pub events_dropped: u64,
    pub checks_dropped: u64,
}

impl IngestCounts {
    pub fn accepted(&self) -> u64 {
        self.metrics + self.events + self.checks
    }

    pub fn rejected_total(&self) -> u64 {
        self.rejected.iter().sum::<u64>() + self.rejected_truncated
    }

    pub fn dropped_total(&self) -> u64 {
        self.samples_dropped.iter().sum()
    }

    /// Messages and samples are all accounted for.
    pub fn balance(&self) -> bool {
        self.messages == self.accepted() + self.rejected_total()
            && self.samples
                == self.samples_aggregated
                    + self.samples_overflowed
                    + self.samples_timestamped
                    + self.dropped_total()
    }

    pub fn add(&mut self, other: &IngestCounts) {
        self.packets += other.packets;
        self.bytes += other.bytes;
        self.packets_rate_limited += other.packets_rate_limited;
        for (mine, theirs) in self.packets_refused.iter_mut().zip(other.packets_refused) {
            *mine += theirs;
        }
        self.messages += other.messages;
        self.metrics += other.metrics;
        self.events += other.events;
        self.checks += other.checks;
        for (mine, theirs) in self.rejected.iter_mut().zip(other.rejected) {
            *mine += theirs;
        }
        self.rejected_truncated += other.rejected_truncated;
        self.rate_faults += other.rate_faults;
        self.samples += other.samples;
        self.samples_aggregated += other.samples_aggregated;
        self.samples_overflowed += other.samples_overflowed;
        self.samples_timestamped += other.samples_timestamped;
        for (mine, theirs) in self.samples_dropped.iter_mut().zip(other.samples_dropped) {
            *mine += theirs;
        }
        self.events_dropped += other.events_dropped;
        self.checks_dropped += other.checks_dropped;
    }
}
