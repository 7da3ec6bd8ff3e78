//! What the agent says about itself: the books, and what a person wants to know beside them.
//!
//! One struct is behind `weir status`, `/api/v1/status`, `/debug/vars` and the `weir_` series, so they cannot
//! differ. A snapshot is consistent: everything in it was counted up to the same flush.

use std::collections::BTreeMap;

use super::contexts::{LimitedRow, TagKeyRow};
use crate::sandbox::SandboxStatus;
use serde::{Deserialize, Serialize};
use weir_origin::{OriginStatus, SourceStatus};
use weir_output::prometheus::OwnSeries;

/// Reason to count; a reason that never happened may be absent.
pub type Reasons = BTreeMap<String, u64>;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Status {
    pub version: String,
    pub pid: u32,
    pub hostname: String,
    /// Unix seconds.
    pub started: u64,
    /// Unix seconds of the workers' newest report, of which there is one a second; 0 before the first.
    pub as_of: u64,
    /// `None` when ready, else why not.
    pub not_ready: Option<String>,
    /// Per second, over the last bucket.
    pub rates: Rates,
    pub total: Books,
    pub listeners: Vec<ListenerStatus>,
    pub contexts: ContextStatus,
    #[serde(default)]
    pub limits: LimitStatus,
    pub memory: MemoryStatus,
    pub flush: FlushStatus,
    #[serde(default)]
    pub clock: ClockStatus,
    /// Times the kernel's tables told of other drops than its sockets did.
    pub drop_disagreements: u64,
    pub rows: RowBooks,
    #[serde(default)]
    pub rules: RulesStatus,
    #[serde(default)]
    pub reload: ReloadStatus,
    pub outputs: Vec<OutputStatus>,
    /// Absent when senders are not told apart.
    #[serde(default)]
    pub origin: Option<OriginReport>,
    /// What the process has given up.
    #[serde(default)]
    pub sandbox: SandboxStatus,
}

/// What became of reloads, by signal, by request, and because a file with a key or token changed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ReloadStatus {
    pub successful: u64,
    pub failed: u64,
    /// Unix seconds; 0: there was none.
    pub last_successful: u64,
    pub last_failed: u64,
    /// Why the last one failed; absent when it did not.
    pub last_error: Option<String>,
    /// Settings that have another value in the configuration than in the process.
    pub waiting_for_restart: Vec<String>,
}

/// Who sends, as far as workers and the resolver have found out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OriginReport {
    /// Packets with credentials that name no process: its sender is in another process namespace.
    pub packets_without_process: u64,
    /// Packets of processes beyond those that a worker tells apart.
    pub packets_untracked: u64,
    /// Processes that sent in the last minute.
    pub processes: u64,
    /// Packets and messages that waited for their origin to be known; those that still do; those that waited in vain, for a
    /// second or until the end of their bucket; those for which there was no room to wait.
    pub waited: u64,
    pub waiting: u64,
    pub waited_in_vain: u64,
    pub no_room_to_wait: u64,
    /// Origins that found a worker's table full.
    pub origins_refused: u64,
    pub resolver: OriginStatus,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Rates {
    pub datagrams: f64,
    pub bytes: f64,
    pub messages: f64,
    pub samples: f64,
}

/// Units are never mixed: each line adds up in its own.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Books {
    pub bytes: u64,
    pub datagrams: DatagramBooks,
    pub messages: MessageBooks,
    pub samples: SampleBooks,
}

/// `received` = `parsed` + every `dropped`. What the kernel dropped is received here and nowhere else.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DatagramBooks {
    pub received: u64,
    pub parsed: u64,
    pub dropped: Reasons,
}

/// `received` = `accepted` + every `rejected`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MessageBooks {
    pub received: u64,
    pub accepted: u64,
    pub rejected: Reasons,
}

/// `received` = `aggregated` + `overflowed` + `timestamped` + every `dropped`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SampleBooks {
    pub received: u64,
    pub aggregated: u64,
    pub overflowed: u64,
    /// Passed on without aggregation, with the timestamp their sender gave them.
    pub timestamped: u64,
    pub dropped: Reasons,
}

/// `produced` = `delivered` + `pending` + every `dropped`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PointBooks {
    pub produced: u64,
    pub delivered: u64,
    /// Counted where it lies, never by subtraction.
    pub pending: u64,
    /// Which parts of it lie where: `to_encode`, `open_payloads`, `memory`, `under_way`, `disk`. Empty for outputs that tell only the sum.
    #[serde(default)]
    pub pending_where: Reasons,
    pub dropped: Reasons,
}

/// The way of closed buckets from the workers to the outputs, and a second count of the samples in them.
///
/// `handed_over` = `received` + `lost`, as far as batches have arrived.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RowBooks {
    /// Rows that arrived from the workers.
    pub received: u64,
    /// Rows that a worker announced and that never arrived.
    pub lost: u64,
    /// Rows that wait for other workers' part of their bucket.
    pub waiting: u64,
    /// Rows after the merge of all workers.
    pub merged: u64,
    /// Samples in the state of contexts, by kind, counted where they are added.
    pub samples: Reasons,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ListenerStatus {
    /// As in `udp://127.0.0.1:8125`.
    pub address: String,
    pub books: Books,
    /// Open stream connections.
    pub connections: u64,
    /// Connections of senders that are not allowed, closed at once.
    #[serde(default)]
    pub connections_refused: u64,
    /// Connections that were to be encrypted and could not be.
    #[serde(default)]
    pub connections_failed_tls: u64,
    /// Connections beyond those that there is memory or descriptors for, closed at once.
    #[serde(default)]
    pub connections_refused_limit: u64,
    /// Connections closed to make place for a peer that had fewer.
    #[serde(default)]
    pub connections_closed_crowded: u64,
    /// Connections closed because nothing had come for long.
    #[serde(default)]
    pub connections_closed_idle: u64,
    /// Times the socket file was missing or replaced, and made again.
    #[serde(default)]
    pub socket_files_remade: u64,
    /// Connections that the stop reset although their peers were still sending.
    #[serde(default)]
    pub connections_cut: u64,
    /// Bytes of receive buffer the kernel granted; 0 where that has no meaning.
    pub receive_buffer: u64,
    pub receive_buffer_wanted: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ContextStatus {
    pub live: u64,
    pub created: u64,
    pub expired: u64,
    /// Series named after a metric that took the samples of contexts the budget had no room for.
    pub overflow_series: u64,
    /// Messages known by their bytes alone, whatever their values.
    #[serde(default)]
    pub aliases: u64,
    /// Metrics that were not among them and were found or made by their parts.
    #[serde(default)]
    pub alias_misses: u64,
}

/// What the rules did since the start. A rule that keeps its name keeps its numbers over a reload.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RulesStatus {
    /// Mappings, tag filters and rules in force.
    pub count: u64,
    /// Spent on finding out which rules match, once per context.
    pub matching_seconds: f64,
    /// Those that applied or are on trial, in their order.
    pub active: Vec<RuleStatus>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RuleStatus {
    pub name: String,
    /// `mapper`, `rule` or `filterlist`.
    pub stage: String,
    /// Contexts it was applied to.
    pub hits: u64,
    /// Spent on applying it.
    pub seconds: f64,
    pub samples_dropped: u64,
    /// What it would have done, when it is on trial.
    pub trial: Option<TrialStatus>,
}

/// With several workers a context that several see counts once for each, as it does everywhere here.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TrialStatus {
    /// Live contexts that the rule would change or drop.
    pub contexts_now: u64,
    /// How many would be left of them.
    pub contexts_then: u64,
    /// Samples, since the rules are in force, that it would have dropped, or that would be in other contexts.
    pub samples_dropped: u64,
    pub samples_changed: u64,
    /// A few contexts, with what would become of them.
    pub examples: Vec<String>,
    /// There were too many contexts to follow all.
    pub incomplete: bool,
}

/// Contexts that were not made, and who wanted them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LimitStatus {
    /// Samples whose context was not made, by the limit it met. Those of counters, histograms, timings and distributions
    /// are in overflow series, those of gauges and sets among the dropped samples.
    pub samples: Reasons,
    /// The metrics that met a limit in the last bucket, most samples first.
    pub limited: Vec<LimitedRow>,
    /// Tag keys with more values than `tag_values_alert`, most values first.
    pub tag_keys: Vec<TagKeyRow>,
    /// Who sent more than a rate limit allows, those who lost most first.
    #[serde(default)]
    pub rates: Vec<RateLimitedRow>,
    /// Who sent over a Unix socket in the last minute and may not, those who lost most first.
    #[serde(default)]
    pub senders_refused: Vec<RefusedSenderRow>,
}

/// A sender that `allowed_origins` does not let send.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RefusedSenderRow {
    pub source: String,
    /// `origin_not_allowed` or `origin_unknown`.
    pub reason: String,
    /// The process that sent last; 0 where the kernel names none.
    pub pid: i32,
    /// Dropped since the start, or since the sender was last quiet for a minute.
    pub packets: u64,
}

/// A network, address or origin that sent more than it may.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RateLimitedRow {
    pub source: String,
    pub bytes_per_second: u64,
    /// Dropped since the start, or since the source was last forgotten for being quiet.
    pub packets: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MemoryStatus {
    pub budget: u64,
    /// Counted against the budget.
    pub used: u64,
    /// What `used` is made of.
    pub parts: BTreeMap<String, u64>,
    /// Who may take how much: together the budget.
    #[serde(default)]
    pub shares: Vec<MemoryShare>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MemoryShare {
    pub name: String,
    pub bytes: u64,
    pub used: u64,
    /// What happens then, in words.
    pub when_full: String,
    /// How often it has, by what was done.
    pub events: BTreeMap<String, u64>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FlushStatus {
    pub count: u64,
    /// Unix seconds at which the last one was handed over; 0 before the first.
    #[serde(default)]
    pub at: u64,
    pub bucket_seconds: u64,
    /// Of the last flush.
    pub series: u64,
    pub seconds: f64,
    /// The longest time a worker did not receive although it should: because of a flush, or because the process stood still.
    pub longest_gap_seconds: f64,
}

/// The agent's time beside the wall clock.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ClockStatus {
    /// By how much timestamps are ahead of a wall clock that was set back: at most three buckets.
    pub ahead_seconds: f64,
    /// Times the wall clock was set back by more, and the agent's time with it.
    pub set_back: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OutputStatus {
    pub name: String,
    #[serde(rename = "type")]
    pub output_type: String,
    pub healthy: bool,
    /// Unix seconds since when it is as healthy as it is.
    pub since: u64,
    /// Redacted; absent when there was none, or it is over.
    pub last_error: Option<String>,
    /// How old the oldest pending point is.
    pub lag_seconds: f64,
    pub points: PointBooks,
    pub events: PointBooks,
    pub checks: PointBooks,
    /// Of a relay, which passes messages on as they are.
    #[serde(default)]
    pub messages: PointBooks,
    /// Of the disk queue, if there is one.
    #[serde(default)]
    pub disk_bytes: Option<u64>,
    /// Payload bytes delivered.
    pub bytes: u64,
    pub payloads: u64,
    /// Attempts that failed and whose payload is tried again.
    pub retries: u64,
    /// Bytes of the disk queue that were found damaged at the start.
    #[serde(default)]
    pub disk_damaged_bytes: u64,
    /// Anything else worth a line, such as names that were made distinct.
    pub notes: Vec<String>,
}

impl PointBooks {
    fn add(&mut self, other: &PointBooks) {
        self.produced += other.produced;
        self.delivered += other.delivered;
        self.pending += other.pending;
        for (sum, reasons) in [
            (&mut self.pending_where, &other.pending_where),
            (&mut self.dropped, &other.dropped),
        ] {
            for (reason, count) in reasons {
                *sum.entry(reason.clone()).or_default() += count;
            }
        }
    }

    /// Without what the end of the output left on disk, which counts again where it is found again.
    fn closed(&self) -> PointBooks {
        PointBooks {
            produced: self.produced.saturating_sub(self.pending),
            pending: 0,
            pending_where: Reasons::new(),
            ..self.clone()
        }
    }
}

impl OutputStatus {
    /// The books of each unit.
    pub fn books(&self) -> [(&'static str, &PointBooks); 4] {
        [
            ("points", &self.points),
            ("events", &self.events),
            ("checks", &self.checks),
            ("messages", &self.messages),
        ]
    }

    pub fn waiting(&self) -> u64 {
        self.books().iter().map(|(_, books)| books.pending).sum()
    }

    pub fn has_produced(&self) -> bool {
        self.books().iter().any(|(_, books)| books.produced > 0)
    }

    /// Adds the figures of another output.
    pub fn add(&mut self, other: &OutputStatus) {
        self.points.add(&other.points);
        self.events.add(&other.events);
        self.checks.add(&other.checks);
        self.messages.add(&other.messages);
        self.bytes += other.bytes;
        self.payloads += other.payloads;
        self.retries += other.retries;
    }

    /// As it is once the output has ended.
    pub fn closed(&self) -> OutputStatus {
        OutputStatus {
            points: self.points.closed(),
            events: self.events.closed(),
            checks: self.checks.closed(),
            messages: self.messages.closed(),
            ..self.clone()
        }
    }
}

impl Status {
    /// What does not add up, one sentence each. Empty when the books balance.
    pub fn imbalances(&self) -> Vec<String> {
        let mut found = Vec::new();
        self.total.check("in total", &mut found);
        let mut sum = Books::default();
        for listener in &self.listeners {
            listener
                .books
                .check(&format!("at {}", listener.address), &mut found);
            sum.datagrams.received += listener.books.datagrams.received;
            sum.messages.received += listener.books.messages.received;
            sum.samples.received += listener.books.samples.received;
        }
        if !self.listeners.is_empty() {
            for (unit, listeners, total) in [
                ("datagrams", sum.datagrams.received, self.total.datagrams.received),
                ("messages", sum.messages.received, self.total.messages.received),
                ("samples", sum.samples.received, self.total.samples.received),
            ] {
                compare(&format!("{unit} of all listeners"), listeners, total, &mut found);
            }
        }
        if !self.rows.samples.is_empty() {
            let given = self.total.samples.aggregated + self.total.samples.overflowed;
            compare(
                "samples given to the aggregate",
                given,
                sum_of(&self.rows.samples),
                &mut found,
            );
        }
        compare(
            "comparisons of kernel drops that disagree",
            self.drop_disagreements,
            0,
            &mut found,
        );
        compare(
            "rows lost between workers and merge",
            self.rows.lost,
            0,
            &mut found,
        );
        for output in &self.outputs {
            for (unit, books) in output.books() {
                let accounted = books.delivered + books.pending + sum_of(&books.dropped);
                compare(
                    &format!("{unit} of {}", output.name),
                    books.produced,
                    accounted,
                    &mut found,
                );
            }
        }
        found
    }
}

impl Books {
    fn check(&self, place: &str, found: &mut Vec<String>) {
        let Self {
            datagrams,
            messages,
            samples,
            ..
        } = self;
        let accounted = datagrams.parsed + sum_of(&datagrams.dropped);
        compare(
            &format!("datagrams {place}"),
            datagrams.received,
            accounted,
            found,
        );
        let accounted = messages.accepted + sum_of(&messages.rejected);
        compare(&format!("messages {place}"), messages.received, accounted, found);
        let accounted =
            samples.aggregated + samples.overflowed + samples.timestamped + sum_of(&samples.dropped);
        compare(&format!("samples {place}"), samples.received, accounted, found);
    }
}

pub fn sum_of(reasons: &Reasons) -> u64 {
    reasons.values().sum()
}

fn compare(what: &str, left: u64, right: u64, found: &mut Vec<String>) {
    if left != right {
        found.push(format!("{what}: {left} came in, {right} are accounted for"));
    }
}

/// Rules that have series of their own.
const RULE_SERIES_MAX: usize = 200;

/// Name, help, and where the count lies.
type Counted<T> = (&'static str, &'static str, fn(&T) -> u64);
type CountedByReason = (&'static str, &'static str, fn(&Books) -> &Reasons);

/// The `weir_` series, those of one name together.
pub fn own_series(status: &Status) -> Vec<OwnSeries> {
    let mut series = Series(Vec::new());
    series.gauge(
        "weir_info",
        "Always 1; the labels say what runs.",
        vec![("version", status.version.clone())],
        1.0,
    );
    series.gauge(
        "weir_start_time_seconds",
        "Unix time of the start.",
        vec![],
        status.started as f64,
    );
    let listeners = || {
        status
            .listeners
            .iter()
            .map(|listener| (listener.address.clone(), &listener.books))
    };
    let simple: [Counted<Books>; 6] = [
        ("weir_received_bytes_total", "Bytes received.", |books| {
            books.bytes
        }),
        (
            "weir_datagrams_received_total",
            "Packets received, those the kernel dropped included.",
            |books| books.datagrams.received,
        ),
        ("weir_datagrams_parsed_total", "Packets parsed.", |books| {
            books.datagrams.parsed
        }),
        ("weir_messages_received_total", "Messages received.", |books| {
            books.messages.received
        }),
        ("weir_messages_accepted_total", "Messages accepted.", |books| {
            books.messages.accepted
        }),
        ("weir_samples_received_total", "Samples received.", |books| {
            books.samples.received
        }),
    ];
    for (name, help, read) in simple {
        for (address, books) in listeners() {
            series.counter(name, help, vec![("listener", address)], read(books));
        }
    }
    for (address, books) in listeners() {
        series.counter(
            "weir_samples_aggregated_total",
            "Samples aggregated.",
            vec![("listener", address)],
            books.samples.aggregated,
        );
    }
    for (address, books) in listeners() {
        let help = "Samples of contexts the memory budget had no room for, kept in one series per name.";
        series.counter(
            "weir_samples_overflowed_total",
            help,
            vec![("listener", address)],
            books.samples.overflowed,
        );
    }
    for (address, books) in listeners() {
        series.counter(
            "weir_samples_timestamped_total",
            "Samples passed on with the timestamp of their sender.",
            vec![("listener", address)],
            books.samples.timestamped,
        );
    }
    let reasons: [CountedByReason; 3] = [
        (
            "weir_datagrams_dropped_total",
            "Packets dropped, by reason.",
            |books| &books.datagrams.dropped,
        ),
        (
            "weir_messages_rejected_total",
            "Messages rejected, by reason.",
            |books| &books.messages.rejected,
        ),
        (
            "weir_samples_dropped_total",
            "Samples dropped, by reason.",
            |books| &books.samples.dropped,
        ),
    ];
    for (name, help, read) in reasons {
        for (address, books) in listeners() {
            for (reason, count) in read(books) {
                let labels = vec![("listener", address.clone()), ("reason", reason.clone())];
                series.counter(name, help, labels, *count);
            }
        }
    }
    for listener in &status.listeners {
        let labels = vec![("listener", listener.address.clone())];
        series.gauge(
            "weir_connections",
            "Open stream connections.",
            labels,
            listener.connections as f64,
        );
    }
    let closed: [Counted<ListenerStatus>; 7] = [
        (
            "weir_connections_refused_total",
            "Connections of senders that are not allowed, closed at once.",
            |listener| listener.connections_refused,
        ),
        (
            "weir_connections_refused_limit_total",
            "Connections beyond those that there is memory or descriptors for, closed at once.",
            |listener| listener.connections_refused_limit,
        ),
        (
            "weir_connections_failed_tls_total",
            "Connections that were to be encrypted and could not be.",
            |listener| listener.connections_failed_tls,
        ),
        (
            "weir_connections_closed_crowded_total",
            "Connections closed to make place for a peer that had fewer.",
            |listener| listener.connections_closed_crowded,
        ),
        (
            "weir_connections_closed_idle_total",
            "Connections closed because nothing had come for long.",
            |listener| listener.connections_closed_idle,
        ),
        (
            "weir_socket_files_remade_total",
            "Times a socket file was missing or replaced, and made again.",
            |listener| listener.socket_files_remade,
        ),
        (
            "weir_connections_cut_total",
            "Connections that the stop reset although their peers were still sending.",
            |listener| listener.connections_cut,
        ),
    ];
    for (name, help, count) in closed {
        for listener in status.listeners.iter().filter(|listener| count(listener) > 0) {
            let labels = vec![("listener", listener.address.clone())];
            series.counter(name, help, labels, count(listener));
        }
    }
    let contexts = &status.contexts;
    series.gauge("weir_contexts", "Live contexts.", vec![], contexts.live as f64);
    series.counter(
        "weir_contexts_created_total",
        "Contexts created.",
        vec![],
        contexts.created,
    );
    series.counter(
        "weir_contexts_expired_total",
        "Contexts expired.",
        vec![],
        contexts.expired,
    );
    series.gauge(
        "weir_overflow_series",
        "Series that hold the samples of contexts without room.",
        vec![],
        contexts.overflow_series as f64,
    );
    series.gauge(
        "weir_aliases",
        "Messages known by their bytes alone, whatever their values.",
        vec![],
        contexts.aliases as f64,
    );
    series.counter(
        "weir_alias_misses_total",
        "Metrics whose bytes were not known: their context was found or made by its parts.",
        vec![],
        contexts.alias_misses,
    );
    series.limits(&status.limits);
    series.gauge(
        "weir_memory_budget_bytes",
        "The memory budget.",
        vec![],
        status.memory.budget as f64,
    );
    series.gauge(
        "weir_memory_used_bytes",
        "Memory counted against the budget.",
        vec![],
        status.memory.used as f64,
    );
    for (part, bytes) in &status.memory.parts {
        series.gauge(
            "weir_memory_part_bytes",
            "What the used memory is made of.",
            vec![("part", part.clone())],
            *bytes as f64,
        );
    }
    series.memory_shares(&status.memory.shares);
    let flush = &status.flush;
    series.counter("weir_flushes_total", "Flushes.", vec![], flush.count);
    series.gauge(
        "weir_flush_seconds",
        "Duration of the last flush.",
        vec![],
        flush.seconds,
    );
    series.gauge(
        "weir_flush_series",
        "Series of the last flush.",
        vec![],
        flush.series as f64,
    );
    series.gauge(
        "weir_receive_gap_seconds",
        "The longest time a worker did not receive although it should.",
        vec![],
        flush.longest_gap_seconds,
    );
    series.gauge(
        "weir_clock_ahead_seconds",
        "By how much timestamps are ahead of a wall clock that was set back.",
        vec![],
        status.clock.ahead_seconds,
    );
    series.counter(
        "weir_clock_set_back_total",
        "Times timestamps went back because the wall clock was set back by more than three buckets.",
        vec![],
        status.clock.set_back,
    );
    series.reload(&status.reload);
    series.rules(&status.rules);
    series.outputs(&status.outputs);
    if let Some(origin) = &status.origin {
        series.origin(origin);
    }
    series.0
}

struct Series(Vec<OwnSeries>);

impl Series {
    fn counter(
        &mut self,
        name: &'static str,
        help: &'static str,
        labels: Vec<(&'static str, String)>,
        value: u64,
    ) {
        self.0.push(OwnSeries {
            name,
            help,
            is_counter: true,
            labels,
            value: value as f64,
        });
    }

    fn gauge(
        &mut self,
        name: &'static str,
        help: &'static str,
        labels: Vec<(&'static str, String)>,
        value: f64,
    ) {
        self.0.push(OwnSeries {
            name,
            help,
            is_counter: false,
            labels,
            value,
        });
    }

    fn memory_shares(&mut self, shares: &[MemoryShare]) {
        for share in shares {
            let (help, bytes) = (
                "What each share of the memory budget may take.",
                share.bytes as f64,
            );
            let label = ("share", share.name.clone());
            self.gauge("weir_memory_share_bytes", help, vec![label], bytes);
        }
        for share in shares {
            let (help, used) = (
                "What is used of each share of the memory budget.",
                share.used as f64,
            );
            let label = ("share", share.name.clone());
            self.gauge("weir_memory_share_used_bytes", help, vec![label], used);
        }
        for share in shares {
            for (event, number) in &share.events {
                let help = "What was done because a share of the memory budget was full.";
                let labels = vec![("event", event.clone()), ("share", share.name.clone())];
                self.counter("weir_memory_share_events_total", help, labels, *number);
            }
        }
    }

    fn limits(&mut self, limits: &LimitStatus) {
        for (reason, samples) in &limits.samples {
            self.counter(
                "weir_context_limit_samples_total",
                "Samples whose context was not made, by the limit it met.",
                vec![("reason", reason.clone())],
                *samples,
            );
        }
        for limited in &limits.limited {
            let labels = vec![
                ("metric", limited.metric.clone()),
                ("reason", limited.reason.clone()),
            ];
            self.gauge(
                "weir_context_limit_metric_samples",
                "Samples of metrics whose new contexts met a limit in the last bucket; absent when there are none.",
                labels,
                limited.samples as f64,
            );
        }
        for limited in &limits.rates {
            self.gauge(
                "weir_rate_limited_packets",
                "Packets dropped of sources that send more than a rate limit allows; absent when they are quiet.",
                vec![("source", limited.source.clone())],
                limited.packets as f64,
            );
        }
        for row in &limits.senders_refused {
            let labels = vec![("reason", row.reason.clone()), ("source", row.source.clone())];
            self.gauge(
                "weir_sender_refused_packets",
                "Packets dropped of senders that allowed_origins does not let send; absent when they are quiet.",
                labels,
                row.packets as f64,
            );
        }
        for key in &limits.tag_keys {
            self.gauge(
                "weir_tag_key_values_alert",
                "Different values of tag keys that have more than tag_values_alert; absent when there are none.",
                vec![("key", key.key.clone())],
                key.values as f64,
            );
        }
    }

    fn reload(&mut self, reload: &ReloadStatus) {
        for (result, count) in [("failed", reload.failed), ("successful", reload.successful)] {
            let help = "Reloads of the configuration, by result.";
            let labels = vec![("result", result.to_owned())];
            self.counter("weir_config_reloads_total", help, labels, count);
        }
        for (result, at) in [
            ("failed", reload.last_failed),
            ("successful", reload.last_successful),
        ] {
            let help = "Unix time of the last reload of the configuration, by result; 0 before the first.";
            let labels = vec![("result", result.to_owned())];
            self.gauge(
                "weir_config_last_reload_timestamp_seconds",
                help,
                labels,
                at as f64,
            );
        }
        self.gauge(
            "weir_config_last_reload_failed",
            "1 when the last reload failed: what is in force is not what the configuration says.",
            vec![],
            f64::from(u8::from(reload.last_error.is_some())),
        );
        self.gauge(
            "weir_config_settings_waiting_for_restart",
            "Settings that have another value in the configuration than in the process.",
            vec![],
            reload.waiting_for_restart.len() as f64,
        );
    }

    fn origin(&mut self, origin: &OriginReport) {
        let resolver = &origin.resolver;
        for (name, help, count) in [
            (
                "weir_origin_packets_without_process_total",
                "Packets whose sender the kernel cannot name here.",
                origin.packets_without_process,
            ),
            (
                "weir_origin_packets_untracked_total",
                "Packets of processes beyond those that are told apart.",
                origin.packets_untracked,
            ),
            (
                "weir_origin_waited_total",
                "Packets and messages that waited for their origin.",
                origin.waited,
            ),
            (
                "weir_origin_waited_in_vain_total",
                "Of those, what went on without it.",
                origin.waited_in_vain,
            ),
            (
                "weir_origin_no_room_to_wait_total",
                "Packets and messages that went on at once because too many waited.",
                origin.no_room_to_wait,
            ),
            (
                "weir_origins_refused_total",
                "Origins that found the table full.",
                origin.origins_refused,
            ),
            (
                "weir_origin_processes_reused_total",
                "Process numbers that went to another process.",
                resolver.processes_reused,
            ),
            (
                "weir_origin_changes_total",
                "Origins whose tags changed.",
                resolver.origins_changed,
            ),
        ] {
            self.counter(name, help, vec![], count);
        }
        for (result, count) in &resolver.processes {
            let help = "Look-ups of processes, by result.";
            let labels = vec![("result", result.clone())];
            self.counter("weir_origin_processes_total", help, labels, *count);
        }
        for (result, count) in &resolver.origins {
            let help = "Origins asked for, by result.";
            let labels = vec![("result", result.clone())];
            self.counter("weir_origins_total", help, labels, *count);
        }
        self.gauge(
            "weir_origins_live",
            "Origins in use.",
            vec![],
            resolver.origins_live as f64,
        );
        let labels =
            |source: &SourceStatus| vec![("place", source.place.clone()), ("source", source.name.clone())];
        for source in &resolver.sources {
            let healthy = f64::from(u8::from(source.healthy));
            let help = "1 when a source of tags answered last time.";
            self.gauge("weir_origin_source_healthy", help, labels(source), healthy);
        }
        for source in &resolver.sources {
            let help = "Containers and pods a source knows.";
            let entities = source.entities as f64;
            self.gauge("weir_origin_source_entities", help, labels(source), entities);
        }
        for source in &resolver.sources {
            let help = "Failed attempts of a source.";
            self.counter(
                "weir_origin_source_failures_total",
                help,
                labels(source),
                source.failures,
            );
        }
    }

    fn rules(&mut self, rules: &RulesStatus) {
        self.gauge("weir_rules", "Rules in force.", vec![], rules.count as f64);
        self.0.push(OwnSeries {
            name: "weir_rule_matching_seconds_total",
            help: "Time spent on finding out which rules match.",
            is_counter: true,
            labels: vec![],
            value: rules.matching_seconds,
        });
        // Whoever has ten thousand rules wants to know of the busy ones.
        let mut busiest: Vec<&RuleStatus> = rules.active.iter().collect();
        busiest.sort_by_key(|rule| std::cmp::Reverse((rule.trial.is_some(), rule.hits)));
        busiest.truncate(RULE_SERIES_MAX);
        let mut shown = std::collections::BTreeSet::new();
        busiest.retain(|rule| shown.insert((rule.name.as_str(), rule.stage.as_str())));
        let labels = |rule: &RuleStatus| vec![("rule", rule.name.clone()), ("stage", rule.stage.clone())];
        for rule in &busiest {
            let help = "Contexts a rule was applied to; the busiest rules only.";
            self.counter("weir_rule_hits_total", help, labels(rule), rule.hits);
        }
        for rule in &busiest {
            self.0.push(OwnSeries {
                name: "weir_rule_seconds_total",
                help: "Time spent on applying a rule.",
                is_counter: true,
                labels: labels(rule),
                value: rule.seconds,
            });
        }
        for rule in &busiest {
            let help = "Samples a rule dropped.";
            self.counter(
                "weir_rule_samples_dropped_total",
                help,
                labels(rule),
                rule.samples_dropped,
            );
        }
        let trials = || {
            busiest
                .iter()
                .filter_map(|rule| Some((*rule, rule.trial.as_ref()?)))
        };
        for (rule, trial) in trials() {
            let help = "Live contexts that a rule on trial would change or drop.";
            self.gauge(
                "weir_rule_trial_contexts",
                help,
                labels(rule),
                trial.contexts_now as f64,
            );
        }
        for (rule, trial) in trials() {
            let help = "How many contexts would be left of those.";
            self.gauge(
                "weir_rule_trial_contexts_left",
                help,
                labels(rule),
                trial.contexts_then as f64,
            );
        }
        for (rule, trial) in trials() {
            let help = "Samples that a rule on trial would have dropped.";
            self.counter(
                "weir_rule_trial_samples_dropped_total",
                help,
                labels(rule),
                trial.samples_dropped,
            );
        }
    }

    fn outputs(&mut self, outputs: &[OutputStatus]) {
        let name = |output: &OutputStatus| ("output", output.name.clone());
        for output in outputs {
            self.gauge(
                "weir_output_healthy",
                "1 when the last attempt succeeded.",
                vec![name(output)],
                f64::from(u8::from(output.healthy)),
            );
        }
        for output in outputs {
            self.gauge(
                "weir_output_lag_seconds",
                "Age of the oldest pending point.",
                vec![name(output)],
                output.lag_seconds,
            );
        }
        for output in outputs {
            if let Some(bytes) = output.disk_bytes {
                let help = "Bytes of the disk queue.";
                self.gauge(
                    "weir_output_disk_queue_bytes",
                    help,
                    vec![name(output)],
                    bytes as f64,
                );
            }
        }
        let counts: [Counted<PointBooks>; 2] = [
            (
                "weir_output_produced_total",
                "Items made for an output, by kind.",
                |books| books.produced,
            ),
            (
                "weir_output_delivered_total",
                "Items delivered, by kind.",
                |books| books.delivered,
            ),
        ];
        fn kinds(output: &OutputStatus) -> [(&'static str, &PointBooks); 4] {
            [
                ("point", &output.points),
                ("event", &output.events),
                ("check", &output.checks),
                ("message", &output.messages),
            ]
        }
        for (series, help, read) in counts {
            for output in outputs {
                for (kind, books) in kinds(output) {
                    self.counter(
                        series,
                        help,
                        vec![("kind", kind.to_owned()), name(output)],
                        read(books),
                    );
                }
            }
        }
        for output in outputs {
            for (kind, books) in kinds(output) {
                let labels = vec![("kind", kind.to_owned()), name(output)];
                self.gauge(
                    "weir_output_pending",
                    "Items waiting, by kind.",
                    labels,
                    books.pending as f64,
                );
            }
        }
        for output in outputs {
            for (kind, books) in kinds(output) {
                for (reason, count) in &books.dropped {
                    let labels = vec![
                        ("kind", kind.to_owned()),
                        name(output),
                        ("reason", reason.clone()),
                    ];
                    self.counter(
                        "weir_output_dropped_total",
                        "Items dropped, by kind and reason.",
                        labels,
                        *count,
                    );
                }
            }
        }
        let totals: [Counted<OutputStatus>; 4] = [
            (
                "weir_output_disk_damaged_bytes_total",
                "Bytes of the disk queue that were found damaged at the start; what they held is lost.",
                |output| output.disk_damaged_bytes,
            ),
            ("weir_output_bytes_total", "Payload bytes delivered.", |output| {
                output.bytes
            }),
            ("weir_output_payloads_total", "Payloads delivered.", |output| {
                output.payloads
            }),
            (
                "weir_output_retries_total",
                "Attempts that failed and whose payload is tried again.",
                |output| output.retries,
            ),
        ];
        for (series, help, read) in totals {
            for output in outputs {
                self.counter(series, help, vec![name(output)], read(output));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn balanced() -> Status {
        let books = Books {
            bytes: 100,
            datagrams: DatagramBooks {
                received: 10,
                parsed: 7,
                dropped: [("kernel".to_owned(), 3)].into(),
            },
            messages: MessageBooks {
                received: 20,
                accepted: 19,
                rejected: [("bad_type".to_owned(), 1)].into(),
            },
            samples: SampleBooks {
                received: 30,
                aggregated: 25,
                overflowed: 5,
                timestamped: 0,
                dropped: Reasons::new(),
            },
        };
        let points = PointBooks {
            produced: 9,
            delivered: 4,
            pending: 3,
            pending_where: [("disk".to_owned(), 3)].into(),
            dropped: [("too_old".to_owned(), 2)].into(),
        };
        Status {
            total: books.clone(),
            listeners: vec![ListenerStatus {
                address: "udp://127.0.0.1:8125".to_owned(),
                books,
                ..Default::default()
            }],
            outputs: vec![OutputStatus {
                name: "datadog".to_owned(),
                points,
                ..Default::default()
            }],
            ..Default::default()
        }
    }

    #[test]
    fn a_loss_anywhere_unbalances_the_books() {
        assert_eq!(balanced().imbalances(), Vec::<String>::new());
        let losses: [fn(&mut Status); 6] = [
            |status| status.listeners[0].books.datagrams.parsed -= 1,
            |status| status.total.messages.accepted -= 1,
            |status| status.total.samples.overflowed -= 1,
            |status| status.listeners.clear_first(),
            |status| status.outputs[0].points.pending -= 1,
            |status| *status.total.datagrams.dropped.get_mut("kernel").unwrap() -= 1,
        ];
        for (index, lose) in losses.iter().enumerate() {
            let mut status = balanced();
            lose(&mut status);
            assert!(!status.imbalances().is_empty(), "loss {index}");
        }
    }

    trait ClearFirst {
        fn clear_first(&mut self);
    }

    impl ClearFirst for Vec<ListenerStatus> {
        /// A listener whose books were lost whole.
        fn clear_first(&mut self) {
            self[0].books = Books::default();
        }
    }

    #[test]
    fn own_series_have_valid_names_and_come_grouped() {
        let mut seen: Vec<&str> = Vec::new();
        for series in own_series(&balanced()) {
            assert!(series.name.starts_with("weir_"), "{series:?}");
            assert_eq!(series.is_counter, series.name.ends_with("_total"), "{series:?}");
            assert!(series.labels.is_sorted(), "{series:?}");
            if seen.last() != Some(&series.name) {
                assert!(
                    !seen.contains(&series.name),
                    "{} is not in one piece",
                    series.name
                );
                seen.push(series.name);
            }
        }
    }
}
