//! One experiment, as one arm runs it.

mod files;

pub use files::{Layer, SinkLayer, TargetLayer};

use super::goal::Goal;
use super::record::Budget;
use super::rig::{TARGET_BOOKS, TARGET_COUNTER, TARGET_RESULT};
use super::running::Running;
use super::values::CheckRule;
use std::collections::BTreeMap;
use std::time::Duration;
use weir_regress::Direction;

/// One experiment for one arm, completely resolved except for values that only a run knows (`{work}`, `{port:...}`).
#[derive(Debug, Clone, PartialEq)]
pub struct Experiment {
    pub description: String,
    pub goal: Goal,
    pub direction: Direction,
    /// Run and print, but never fail a build.
    pub erratic: bool,
    /// Requirements of the payload on a target: transports, message types.
    pub needs: Vec<String>,
    pub target: Target,
    pub load: Vec<Load>,
    pub sinks: Vec<Sink>,
    pub measure: Measure,
    /// Both arms of a pair run concurrently on the same core, so that disturbances affect both.
    pub together: bool,
    pub checks: Vec<CheckRule>,
    pub valid: Valid,
    pub budget: Option<Budget>,
}

impl Experiment {
    /// Whether a check needs the load's table of contexts.
    pub fn needs_contexts(&self) -> bool {
        let by_points = self
            .sinks
            .iter()
            .any(|s| ![TARGET_BOOKS, TARGET_COUNTER, TARGET_RESULT].contains(&s.kind.as_str()));
        let verified = self.sinks.iter().any(|s| s.verify);
        verified || (by_points && self.valid.min_target_share.is_some()) || self.valid.overload
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct Target {
    pub command: Vec<String>,
    pub env: BTreeMap<String, String>,
    /// Files written into the work directory before the start, path to content.
    pub files: BTreeMap<String, String>,
    pub stop_signal: i32,
    pub stop_grace: Duration,
    pub cpus: Option<Vec<usize>>,
    pub memory_limit: Option<u64>,
    pub ready_timeout: Duration,
    /// All of these must hold; an empty list means "as soon as it runs".
    pub ready: Vec<Ready>,
    pub telemetry: Vec<Telemetry>,
    /// Its addresses, by transport; addresses as everywhere (`udp://...`, `unixgram://...`).
    pub listen: BTreeMap<String, String>,
    pub supports: Vec<String>,
    /// Its flush interval.
    pub flush: Duration,
    /// It flushes when it stops, so no wait for the last flush is needed.
    pub flushes_at_stop: bool,
    /// Go targets: base of `/debug/pprof/`. Ours have it too.
    pub pprof: Option<String>,
    /// It runs already; then nothing starts it.
    pub running: Option<Running>,
}

/// The schemes of addresses, with the words for them in `listen`.
pub const LISTENS: [(&str, &str); 10] = [
    ("udp", "udp"),
    ("unixgram", "unix_datagram"),
    ("unix", "unix_stream"),
    ("tcp", "tcp"),
    ("tcp", "syslog_tcp"),
    ("tcp", "logs_tcp"),
    ("http", "http"),
    ("http", "otlp_http_logs"),
    ("http", "traces_json"),
    ("http", "traces_msgpack"),
];

#[derive(Debug, Clone, PartialEq)]
pub enum Ready {
    UnixSocket(String),
    UdpPort(String),
    TcpPort(String),
    Http(String),
    LogLine(String),
    File(String),
}

#[derive(Debug, Clone, PartialEq)]
pub struct Telemetry {
    pub kind: TelemetryKind,
    pub address: String,
    /// Canonical counter name to the target's own name.
    pub map: BTreeMap<String, String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TelemetryKind {
    Prometheus,
    Expvar,
    /// The text protocol on a TCP port that the original StatsD and its relatives answer (`counters`, `stats`).
    StatsdAdmin,
}

/// Canonical telemetry counters.
pub const CANONICAL: [&str; 5] = [
    "received_packets",
    "received_bytes",
    "parsed_messages",
    "dropped",
    "created_contexts",
];

#[derive(Debug, Clone, PartialEq)]
pub enum Load {
    /// `weir-bench load run`.
    Profile {
        /// `--profile`, or `--file` for a file of the user's.
        flag: &'static str,
        profile: String,
        /// Extra flags, passed unchanged.
        args: Vec<String>,
        to: String,
        cpus: Option<Vec<usize>>,
        /// The profile sends as much as the target accepts; otherwise it follows a schedule.
        all_out: bool,
    },
    /// Any program. It must write a manifest to `{manifest}` before it exits.
    Command {
        command: Vec<String>,
        cpus: Option<Vec<usize>>,
        all_out: bool,
    },
}

impl Load {
    /// Whether the load sends as much as the target accepts.
    pub fn all_out(&self) -> bool {
        match self {
            Load::Profile { all_out, .. } | Load::Command { all_out, .. } => *all_out,
        }
    }

    pub fn cpus(&self) -> Option<&Vec<usize>> {
        match self {
            Load::Profile { cpus, .. } | Load::Command { cpus, .. } => cpus.as_ref(),
        }
    }

    /// The payload, regardless of its destination.
    pub fn payload(&self) -> (&str, &[String]) {
        match self {
            Load::Profile { profile, args, .. } => (profile, args),
            Load::Command { command, .. } => ("", command),
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct Sink {
    /// A kind of `weir-bench sink`, or `command`.
    pub kind: String,
    pub listen: String,
    pub args: Vec<String>,
    pub verify: bool,
    pub command: Vec<String>,
    pub cpus: Option<Vec<usize>>,
}

impl Sink {
    /// Whether nothing must be started: the target itself reports its deliveries.
    pub fn is_target(&self) -> bool {
        self.kind.starts_with("target-")
    }

    /// Whether it counts what the target has taken, not what it has passed on.
    pub fn needs_no_flush(&self) -> bool {
        self.kind == TARGET_COUNTER
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct Measure {
    /// Pairs.
    pub replicates: usize,
    /// Adaptive runs continue up to this many pairs; equal to `replicates` when not adaptive.
    pub replicates_max: usize,
    /// Loads end with the packet that reaches this many messages, if that is before their time is over.
    pub messages: Option<usize>,
    pub warmup: Duration,
    pub duration: Duration,
    pub sample_period: Duration,
    pub smaps_period: Duration,
    /// Both arms of a pair concurrently; `None`: decided by goal and load.
    pub together: Option<bool>,
    /// `None`: two flush intervals and two seconds, or less for a target that flushes when stopped.
    pub drain: Option<Duration>,
    pub instructions: CountedBy,
}

/// The counter of a target's instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CountedBy {
    /// The processor.
    Counters,
    /// The target runs inside valgrind, and no other goal means anything.
    Valgrind,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Valid {
    /// Delivered / sent; `None` for experiments without a countable delivery.
    pub min_target_share: Option<f64>,
    /// By which factor the generator must be able to exceed its rate. 0: it may determine the rate, because the goal is work per message.
    pub generator_headroom: f64,
    /// Deliberate overload: loss is expected, so the share is not judged, but the target must have worked.
    pub overload: bool,
    /// No load at all (idle): nothing to deliver.
    pub idle: bool,
    /// `None`: the default for concurrent or sequential arms.
    pub max_steal: Option<f64>,
    pub max_foreign_cpu: f64,
}
