//! The agent's status: the books, and further information for users.
//!
//! One struct is the source of `weir status`, `/api/v1/status`, `/debug/vars` and the `weir_` series, so they cannot differ. A snapshot is
//! consistent: all of it was counted up to the same flush. What a version before this one did not have is read as zero or absent.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use weir_config::Change;
use weir_counters::{Counter, Counts};
use weir_ingest::WorkerCounter;
use weir_origin::OriginStatus;
use weir_output::delivery::Reason;

use super::clients::ClientReport;
use super::contexts::{LimitedRow, TagKeyRow};
use super::counters::{Listed, PipelineCounter};
use super::fleet::FleetStatus;
pub use super::numbers::{Account, Number, Numbers, Reasons, sum_of};
use weir_system::sandbox::SandboxStatus;

/// Units of the books, which are never mixed.
pub const UNITS: [&str; 3] = ["packets", "messages", "samples"];

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Status {
    #[serde(flatten)]
    pub process: ProcessStatus,
    /// The reason if the agent is not ready.
    pub not_ready: Option<String>,
    /// Per second, over the last bucket.
    pub rates: Rates,
    pub listeners: Vec<ListenerStatus>,
    pub limits: LimitStatus,
    /// The clients' own telemetry.
    pub clients: ClientReport,
    pub memory: MemoryStatus,
    pub rules: RulesStatus,
    pub reload: ReloadStatus,
    pub outputs: Vec<OutputStatus>,
    /// Absent if senders are not distinguished.
    pub origin: Option<OriginReport>,
    /// Only in `weir merge`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fleet: Option<FleetStatus>,
    /// The rights that the process has dropped.
    pub sandbox: SandboxStatus,
    /// The state that the process continued.
    pub state: StateStatus,
    /// All other counters, and under `total` the books of all listeners together.
    #[serde(flatten)]
    pub numbers: Numbers,
}

/// The process that reports.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProcessStatus {
    pub version: String,
    pub pid: u32,
    pub hostname: String,
    /// Unix seconds.
    pub started: u64,
    /// Unix seconds of the workers' newest report, which comes every second; 0 before the first.
    pub as_of: u64,
}

/// The previous process's files in the state directory, and their use.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct StateStatus {
    /// The directory; absent without one.
    pub path: Option<String>,
    /// The agent's id, which survives restarts, and the number of this start.
    pub agent: String,
    pub epoch: u64,
    /// Unix seconds at which the state was saved; absent if this process started without state.
    pub restored_from: Option<u64>,
    pub away_seconds: f64,
    /// Samples in the continued bucket.
    pub samples_restored: u64,
    pub contexts_restored: u64,
    /// Contexts that did not fit; their samples in the open bucket are lost.
    pub contexts_refused: u64,
    /// Outputs that could not continue their sums.
    pub outputs_reset: u64,
    /// Number of times state could not be used, and the last reason.
    pub set_aside: u64,
    pub set_aside_because: Option<String>,
    /// Samples in the open bucket.
    pub samples_open: u64,
    #[serde(flatten)]
    pub saves: SaveStatus,
    #[serde(flatten)]
    pub killed: KillStatus,
    pub hand_over: HandOverStatus,
}

/// Attempts to write books, sums or the open bucket that failed, and the last error.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SaveStatus {
    pub saves_failed: u64,
    pub save_error: Option<String>,
}

/// Processes that ended without saving state, as after `kill -9`, and what that has cost.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct KillStatus {
    pub kills: u64,
    /// Seconds of receiving that the last kill lost.
    pub kill_seconds: f64,
    /// Samples in buckets that could not be continued, as far as they are known.
    pub samples_lost: u64,
    /// More samples that an output of a killed process has not delivered, or has not in its saved sums, by output.
    pub samples_undelivered: BTreeMap<String, u64>,
    /// Of the samples that an output of a killed process lacks by these numbers, those that it may have delivered after all, by output.
    pub samples_uncertain: BTreeMap<String, u64>,
    /// Files of a killed process that were damaged; what they had is lost.
    pub files_damaged: u64,
}

/// Hand-overs from one process to the next.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct HandOverStatus {
    pub completed: u64,
    /// Failed hand-overs, after which the old process continued, and the last reason.
    pub failed: u64,
    pub failed_because: Option<String>,
    /// Length of the last pause in receiving.
    pub pause_seconds: f64,
    /// Connections handed over.
    pub connections: u64,
    /// Connections over TLS, which ended.
    pub connections_ended: u64,
}

impl HandOverStatus {
    pub fn record_failure(&mut self, reason: &str) {
        self.failed += 1;
        self.failed_because = Some(reason.to_owned());
    }

    /// Adds the counts of earlier processes.
    pub fn add(&mut self, earlier: &HandOverStatus) {
        self.completed += earlier.completed;
        self.failed += earlier.failed;
        self.connections += earlier.connections;
        self.connections_ended += earlier.connections_ended;
        if self.failed_because.is_none() {
            self.failed_because.clone_from(&earlier.failed_because);
        }
        if self.pause_seconds == 0.0 {
            self.pause_seconds = earlier.pause_seconds;
        }
    }
}

/// Results of reloads, by signal, by request, and because a file with a key or token changed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ReloadStatus {
    pub successful: u64,
    pub failed: u64,
    /// Unix seconds; 0 before the first.
    pub last_successful: u64,
    pub last_failed: u64,
    /// The error of the last reload; absent after a success.
    pub last_error: Option<String>,
    /// Settings whose value in the configuration differs from that in the process.
    pub waiting_for_restart: Vec<String>,
}

impl ReloadStatus {
    /// Adds the result of a reload, at these Unix seconds.
    pub fn note(&mut self, result: &Result<Vec<Change>, Vec<String>>, now: u64) {
        match result {
            Ok(changes) => {
                self.successful += 1;
                self.last_successful = now;
                self.last_error = None;
                let waiting = changes.iter().filter(|change| !change.live);
                self.waiting_for_restart = waiting.map(|change| change.key.clone()).collect();
            }
            Err(errors) => {
                self.failed += 1;
                self.last_failed = now;
                self.last_error = errors.first().cloned();
            }
        }
    }
}

/// The result of a reload.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Reloaded {
    /// Errors that prevented the reload; empty after a success.
    pub errors: Vec<String>,
    pub changes: Vec<ChangeReport>,
    /// Remarks about valid settings that are probably mistakes.
    pub notes: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ChangeReport {
    pub key: String,
    pub from: String,
    pub to: String,
    /// False if it needs a restart.
    pub applied: bool,
}

/// Senders known to workers and the resolver.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct OriginReport {
    #[serde(flatten)]
    pub numbers: Numbers,
    pub resolver: OriginStatus,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Rates {
    pub packets: f64,
    pub bytes: f64,
    pub messages: f64,
    pub samples: f64,
}

/// `produced` = `delivered` + `pending` + every `dropped`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PointBooks {
    pub produced: u64,
    pub delivered: u64,
    /// Counted in the queues, not derived by subtraction.
    pub pending: u64,
    /// `pending` by place: `to_encode`, `open_payloads`, `memory`, `under_way`, `disk`. Empty for outputs that report only the sum.
    pub pending_where: Reasons,
    pub dropped: Reasons,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ListenerStatus {
    /// For example `udp://127.0.0.1:8125`.
    pub address: String,
    #[serde(flatten)]
    pub numbers: Numbers,
}

/// The effects of rules since the start. A rule that keeps its name keeps its numbers across a reload.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RulesStatus {
    /// Active mappings, tag filters and rules.
    pub count: u64,
    /// Time spent on the search for matching rules, once per context.
    pub matching_seconds: f64,
    /// Rules that applied or are in a dry run, in order.
    pub active: Vec<RuleStatus>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RuleStatus {
    pub name: String,
    /// `mapper`, `rule` or `filterlist`.
    pub stage: String,
    /// Contexts it was applied to.
    pub hits: u64,
    /// Time spent on applying it.
    pub seconds: f64,
    pub samples_dropped: u64,
    /// Its effects in a dry run.
    pub trial: Option<TrialStatus>,
}

/// As everywhere here, a context counts once for each worker that sees it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TrialStatus {
    /// Live contexts that the rule would change or drop.
    pub contexts_now: u64,
    /// Contexts that would remain of these.
    pub contexts_then: u64,
    /// Samples since the rules became active that it would have dropped or moved to other contexts.
    pub samples_dropped: u64,
    pub samples_changed: u64,
    /// Some contexts, with their results.
    pub examples: Vec<String>,
    /// There were too many contexts to follow all.
    pub incomplete: bool,
}

/// Refused contexts and their metrics.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LimitStatus {
    /// Samples of refused contexts: those of counters, histograms, timings and distributions are in overflow series, those of gauges and
    /// sets among the dropped samples.
    #[serde(flatten)]
    pub numbers: Numbers,
    /// The metrics with refused contexts in the last bucket, most samples first.
    pub limited: Vec<LimitedRow>,
    /// Tag keys with more values than `tag_values_alert`, most values first.
    pub tag_keys: Vec<TagKeyRow>,
    /// Senders above a rate limit, most losses first.
    pub rates: Vec<RateLimitedRow>,
    /// Refused senders on Unix sockets in the last minute, most losses first.
    pub senders_refused: Vec<RefusedSenderRow>,
}

/// A sender that `allowed_origins` refuses.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RefusedSenderRow {
    pub source: String,
    /// `origin_not_allowed` or `origin_unknown`.
    pub reason: String,
    /// The process that sent last; 0 if the kernel names none.
    pub pid: i32,
    /// Dropped since the start, or since the sender was last quiet for a minute.
    pub packets: u64,
}

/// A network, address or origin above its rate limit.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RateLimitedRow {
    pub source: String,
    pub bytes_per_second: u64,
    /// Dropped since the start, or since the source was last removed after a quiet period.
    pub packets: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct MemoryStatus {
    pub budget: u64,
    /// Bytes counted against the budget.
    pub used: u64,
    /// The parts of `used`.
    pub parts: BTreeMap<String, u64>,
    /// The shares, which sum to the budget.
    pub shares: Vec<MemoryShare>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct MemoryShare {
    pub name: String,
    pub bytes: u64,
    pub used: u64,
    /// Used share of the fullest of its parts: outputs have parts of a share, and act when their own is full.
    pub fullest: f64,
    /// The action when the share is full, in words.
    pub when_full: String,
    /// Number of times each action was taken.
    pub events: BTreeMap<String, u64>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct OutputStatus {
    pub name: String,
    #[serde(rename = "type")]
    pub output_type: String,
    pub healthy: bool,
    /// Unix seconds of the last change of `healthy`.
    pub since: u64,
    /// Redacted; absent without an error since the last success.
    pub last_error: Option<String>,
    /// Age of the oldest pending point.
    pub lag_seconds: f64,
    pub points: PointBooks,
    pub events: PointBooks,
    pub checks: PointBooks,
    /// Of a relay, which forwards messages unchanged.
    pub messages: PointBooks,
    /// Of the disk queue, if configured.
    pub disk_bytes: Option<u64>,
    #[serde(flatten)]
    pub numbers: Numbers,
    /// Other remarks, for example names that were made distinct.
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

    /// Only points on disk are still pending.
    fn killed(&self) -> PointBooks {
        let on_disk = self.pending_where.get("disk").copied().unwrap_or(0);
        let mut killed = self.clone();
        let lost = self.pending.saturating_sub(on_disk);
        if lost > 0 {
            *killed
                .dropped
                .entry(Reason::Shutdown.as_str().into())
                .or_default() += lost;
        }
        killed.pending -= lost;
        killed
    }

    /// Without points that the output left on disk, which count again when they are found.
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
        self.numbers.merge(&other.numbers);
    }

    /// The status after a kill: points neither delivered nor on disk are lost.
    pub fn killed(&self) -> OutputStatus {
        OutputStatus {
            points: self.points.killed(),
            events: self.events.killed(),
            checks: self.checks.killed(),
            messages: self.messages.killed(),
            ..self.clone()
        }
    }

    /// The status after the output's end.
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
    /// Adds the counts of one worker or of the agent; for a listener, with its number.
    pub fn add<C: Listed>(&mut self, listener: Option<usize>, counts: &Counts<C>) {
        for (info, count) in counts.iter() {
            let (section, _) = info.series.path.split_once('.').unwrap_or_default();
            let numbers = match (section, listener) {
                ("listeners", Some(listener)) => self.listeners.get_mut(listener).map(|of| &mut of.numbers),
                ("limits", _) => Some(&mut self.limits.numbers),
                ("clients", _) => Some(&mut self.clients.numbers),
                ("origin", _) => self.origin.as_mut().map(|of| &mut of.numbers),
                ("fleet", _) => self.fleet.as_mut().map(|of| &mut of.numbers),
                _ => Some(&mut self.numbers),
            };
            if let Some(numbers) = numbers {
                numbers.put(info, count);
            }
        }
    }

    /// The books of all listeners together.
    pub fn add_up(&mut self) {
        let total = self.numbers.group_at("total");
        for listener in &self.listeners {
            if let Some(Number::Group(books)) = listener.numbers.at("books") {
                total.merge(books);
            }
        }
    }

    pub fn of(&self, counter: impl Counter) -> u64 {
        self.numbers.of(counter)
    }

    /// The total books of a unit.
    pub fn total(&self, unit: &str) -> Account {
        self.numbers.account(&format!("total.{unit}"))
    }

    /// The integers of a group, for example `total.packets`.
    pub fn number(&self, path: &str) -> f64 {
        self.numbers.at(path).map_or(0.0, Number::as_f64)
    }

    /// Equations that do not hold, one sentence each. Empty when the books balance.
    pub fn imbalances(&self) -> Vec<String> {
        let mut found = Vec::new();
        for unit in UNITS {
            let total = self.total(unit);
            compare(
                &format!("{unit} in total"),
                total.received,
                total.accounted(),
                &mut found,
            );
            let mut received = 0;
            for listener in &self.listeners {
                let account = listener.account(unit);
                let what = format!("{unit} at {}", listener.address);
                compare(&what, account.received, account.accounted(), &mut found);
                received += account.received;
            }
            if !self.listeners.is_empty() {
                let what = format!("{unit} of all listeners");
                compare(&what, received, total.received, &mut found);
            }
        }
        self.check_aggregate(&mut found);
        if let Some(fleet) = &self.fleet {
            fleet.imbalances(&mut found);
        }
        for output in &self.outputs {
            for (unit, books) in output.books() {
                let accounted = books.delivered + books.pending + sum_of(&books.dropped);
                let what = format!("{unit} of {}", output.name);
                compare(&what, books.produced, accounted, &mut found);
            }
        }
        found
    }

    /// Samples are counted a second time in the state of contexts, and rows at both ends of their path.
    fn check_aggregate(&self, found: &mut Vec<String>) {
        if let Some(Number::Group(samples)) = self.numbers.at("rows.samples") {
            let given = self.number("total.samples.aggregated") + self.number("total.samples.overflowed");
            let what = "samples passed to the aggregator";
            compare(what, given as u64, sum_of(&samples.reasons()), found);
        }
        let what = "comparisons of kernel drops that disagree";
        compare(what, self.of(WorkerCounter::DropDisagreements), 0, found);
        let what = "rows lost between workers and merge";
        compare(what, self.of(PipelineCounter::RowsLost), 0, found);
    }
}

impl ListenerStatus {
    pub fn account(&self, unit: &str) -> Account {
        self.numbers.account(&format!("books.{unit}"))
    }
}

fn compare(what: &str, left: u64, right: u64, found: &mut Vec<String>) {
    if left != right {
        found.push(format!("{what}: {left} received, {right} accounted for"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::examples::balanced;

    #[test]
    fn a_loss_anywhere_unbalances_the_books() {
        assert_eq!(balanced().imbalances(), Vec::<String>::new());
        let losses: [fn(&mut Status); 8] = [
            |status| status.listeners[0].numbers.add_at("books.packets.received", 1),
            |status| status.numbers.add_at("total.messages.received", 1),
            |status| status.numbers.add_at("total.samples.received", 1),
            |status| status.listeners[0].numbers = Numbers::default(),
            |status| status.outputs[0].points.pending -= 1,
            |status| status.numbers.add_at("total.packets.dropped.kernel", 1),
            |status| {
                let mut rows = Counts::default();
                rows[PipelineCounter::RowsLost] = 1;
                status.add(None, &rows);
            },
            |status| {
                let mut samples = Counts::default();
                samples[weir_aggregate::AggregateCounter::Gauge] = 28;
                status.add(None, &samples);
            },
        ];
        for (index, lose) in losses.iter().enumerate() {
            let mut status = balanced();
            lose(&mut status);
            assert!(!status.imbalances().is_empty(), "loss {index}");
        }
    }

    #[test]
    fn what_is_written_is_what_is_read() {
        let status = balanced();
        let text = serde_json::to_string(&status).unwrap();
        assert_eq!(serde_json::from_str::<Status>(&text).unwrap(), status, "{text}");
        assert!(
            text.contains(r#""packets":{"dropped":{"kernel":3},"parsed":7,"received":10}"#),
            "{text}"
        );
    }
}
