//! The status of `weir merge`: progress, agents, and the fate of everything that they published.

use serde::{Deserialize, Serialize};
use weir_counters::Significance::{Normal, Problem};
use weir_counters::{SeriesSpec, counters};

use super::numbers::Numbers;

const QUARANTINED: SeriesSpec = SeriesSpec::counter(
    "weir_fleet_quarantined_records_total",
    "fleet.quarantined",
    "records",
)
.help("Records that were not merged, by reason. The log keeps them with their bytes.");

counters! {
    /// Totals of a merge over its partitions. Includes counts from before a change of owner.
    pub enum FleetCounter {
        /// Partitions that this process reads.
        Partitions = SeriesSpec::gauge("weir_fleet_partitions", "fleet.partitions_held", "partitions"),
            Normal("Partitions move when a process joins or ends; 0 means that this process waits.");
        /// Records of the log that were not read yet.
        LagRecords = SeriesSpec::gauge("weir_fleet_lag_records", "fleet.lag_records", "records"),
            Normal("It rises while agents publish faster than the merge reads: add a process or cores.");
        /// Lag of the merged records behind the clock.
        LagMs = SeriesSpec::gauge("weir_fleet_lag_seconds", "fleet.lag_seconds", "seconds").per_unit(1000),
            Normal("It is zero while everything is read.");
        /// Open buckets.
        OpenBuckets = SeriesSpec::gauge("weir_fleet_open_buckets", "fleet.open_buckets", "buckets"),
            Normal("Two or three per partition are normal; more while the merge waits for an agent.");
        /// Closed buckets.
        ClosedBuckets = SeriesSpec::counter("weir_fleet_closed_buckets_total", "fleet.closed_buckets", "buckets"),
            Normal("It rises by one for each partition and bucket.");
        /// Agents that the last closed bucket waited for.
        AgentsExpected = SeriesSpec::gauge("weir_fleet_agents_expected", "fleet.agents_expected", "agents"),
            Normal("It follows the fleet, six buckets later for an agent that ended without notice.");
        /// Agents whose records are in the last closed bucket.
        AgentsSeen = SeriesSpec::gauge("weir_fleet_agents_seen", "fleet.agents_seen", "agents"),
            Normal("If it is below `weir_fleet_agents_expected`, a drop in values may come from missing agents.");
        /// Agents that the last closed bucket waited for and whose records were missing in some partition.
        AgentsMissing = SeriesSpec::gauge("weir_fleet_agents_missing", "fleet.agents_missing", "agents"),
            Problem("`weir merge status` names them. Their later records go into corrections.");
        /// Agents that share their id with another one.
        SharedIds = SeriesSpec::gauge("weir_fleet_shared_ids", "fleet.shared_ids", "agents"),
            Problem("A disk or its state directory was copied: `weir merge status` names the id. Remove the state directory of one of them.");
        /// Merged records.
        Merged = SeriesSpec::counter("weir_fleet_merged_records_total", "fleet.records.merged", "records"),
            Normal("It rises with each bucket that closes.");
        /// Records that arrived after their bucket had closed, and went into a correction.
        Late = SeriesSpec::counter("weir_fleet_late_records_total", "fleet.records.late", "records"),
            Problem("Agents or their network are slow or were down: a longer `grace` waits for them.");
        /// Repeated records, which were not merged again.
        Repeats = SeriesSpec::counter("weir_fleet_repeated_records_total", "fleet.records.repeated", "records"),
            Normal("Agents resend records that were not confirmed.");
        /// Invalid records, or records of a version that this program cannot read.
        Unreadable = QUARANTINED.because("unreadable"),
            Problem("Something else writes into the log (`topic`, `directory`), or an agent is newer than this process: upgrade the merges first.");
        /// Records that were not published for a fleet.
        Unpublished = QUARANTINED.because("unpublished"),
            Problem("Something else writes into the log: give the fleet a `topic` or `directory` of its own.");
        /// Records whose series were divided among another number of partitions than their bucket requires.
        Partitioned = QUARANTINED.because("partitions"),
            Problem("An agent uses another number of `partitions`: perhaps it may not read the log's plan.");
        /// Records of agents whose clock differs from the log's by more than `max_skew`.
        Clock = QUARANTINED.because("clock"),
            Problem("Set the clock of the agents that `weir merge status` names.");
        /// Records of buckets further in the future than `max_skew`.
        Future = QUARANTINED.because("future"),
            Problem("Set the clock of the agents that `weir merge status` names.");
        /// Records older than the history of their agent.
        TooOld = QUARANTINED.because("too_old"),
            Problem("An agent was offline for longer than a day, or has started more than 64 times: `weir merge status` names it.");
        /// Records with the number of another record of the same agent.
        SharedId = QUARANTINED.because("shared_id"),
            Problem("Two agents have one id: `weir merge status` names it.");
        /// Records of agents beyond the maximum number.
        TooManyAgents = QUARANTINED.because("too_many_agents"),
            Problem("There are more than 200,000 agents: give each region a `topic` or `directory` of its own.");
        /// Records of tenants and bucket widths beyond the maximum number.
        TooManyStreams = QUARANTINED.because("too_many_streams"),
            Problem("There are more than 256 tenants and widths: agents choose them (`tenant`, `bucket_width`).");
        /// Corrections of closed buckets.
        Corrections = SeriesSpec::counter("weir_fleet_corrections_total", "fleet.corrections", "corrections"),
            Normal("Late records arrived.");
        /// Series states that were merged into overflow series.
        Overflowed = SeriesSpec::counter("weir_fleet_overflowed_states_total", "fleet.overflowed_states", "states"),
            Problem("Give the merge more `memory`, or drop a tag in the agents' rules. Sums are right, but in series named or tagged `weir_overflow`.");
        /// Series states of gauges and sets for which there was no room.
        DroppedStates = SeriesSpec::counter("weir_fleet_dropped_states_total", "fleet.dropped_states", "states"),
            Problem("Give the merge more `memory`, or drop a tag in the agents' rules.");
        /// Merged series too large for a result.
        TooLarge = SeriesSpec::counter("weir_fleet_too_large_series_total", "fleet.too_large_series", "series"),
            Problem("A name, its tags or a member of a set has more than a megabyte: shorten tags (`max_tag_length`) in the agents.");
        /// Series states that agents published, by their own count.
        Published = SeriesSpec::counter("weir_fleet_published_states_total", "fleet.states.published", "states"),
            Normal("It rises with each bucket. It is the sum of the six below, for every agent.");
        /// Of these: in results of closed buckets.
        StatesMerged = SeriesSpec::counter("weir_fleet_merged_states_total", "fleet.states.merged", "states"),
            Normal("It rises with each bucket that closes.");
        /// Of these: in corrections.
        StatesLate = SeriesSpec::counter("weir_fleet_late_states_total", "fleet.states.late", "states"),
            Normal("See `weir_fleet_late_records_total`.");
        /// Of these: in quarantine.
        StatesQuarantined = SeriesSpec::counter("weir_fleet_quarantined_states_total", "fleet.states.quarantined", "states"),
            Normal("See `weir_fleet_quarantined_records_total`.");
        /// Of these: in open buckets.
        StatesOpen = SeriesSpec::gauge("weir_fleet_open_states", "fleet.states.open", "states"),
            Normal("It follows the fleet.");
        /// Of these: not received yet.
        StatesMissing = SeriesSpec::gauge("weir_fleet_missing_states", "fleet.states.missing", "states"),
            Problem("An agent sent later records and not these: `weir merge status` names it and the interval.");
        /// Of these: lost.
        StatesLost = SeriesSpec::counter("weir_fleet_lost_states_total", "fleet.states.lost", "states"),
            Problem("The log deleted them before they were read, or the agent dropped them: `weir merge status` names it and the interval.");
        /// Commits of results, snapshot and offset.
        Commits = SeriesSpec::counter("weir_fleet_commits_total", "fleet.commits", "commits"),
            Normal("It rises with each bucket.");
        /// Commits that were refused because another process owns the partition.
        Fenced = SeriesSpec::counter("weir_fleet_fenced_commits_total", "fleet.fenced_commits", "commits"),
            Normal("This process stalled for longer than the session timeout, and another one took over its partitions. Nothing is lost or doubled.");
        /// Number of failed reads and commits.
        LogErrors = SeriesSpec::counter("weir_fleet_log_errors_total", "fleet.log_errors", "times"),
            Problem("The log cannot be reached or written: `weir merge status` shows the reason. Everything is read again.");
        /// Bytes of the log's files that are no records or commits. They were skipped.
        LogDamagedBytes = SeriesSpec::counter("weir_fleet_log_damaged_bytes_total", "fleet.log_damaged_bytes", "bytes"),
            Problem("A disk, a file system or another program changed the files: the log of the merge names each. What follows was read. Test the disk of `directory`.");
        /// Records and commits that were lost with these bytes, or with the ends of files.
        LogLostFrames = SeriesSpec::counter("weir_fleet_log_lost_frames_total", "fleet.log_lost_frames", "frames"),
            Problem("The series states of a lost record are `missing`; the results of a lost commit reach no output that had not read them. Test the disk of `directory`.");
        /// Size of incomplete frames at the ends of the log's files, which were moved to files of their own.
        LogTornBytes = SeriesSpec::gauge("weir_fleet_log_torn_bytes", "fleet.log_torn_bytes", "bytes"),
            Normal("A process was killed while it wrote, before the record was acknowledged. Delete the files `*.torn-*` after a look.");
        /// Partitions that are not merged, because their snapshot cannot be read.
        UnreadableSnapshots = SeriesSpec::gauge("weir_fleet_unreadable_snapshots", "fleet.unreadable_snapshots", "partitions"),
            Problem("Another version wrote them, or they are damaged: start the `weir merge` of the version that wrote them.");
    }
}

/// The counters of quarantined records, in the order of [`weir_merge::QuarantineReason::NAMES`].
pub const REASONS: [FleetCounter; 9] = [
    FleetCounter::Unreadable,
    FleetCounter::Unpublished,
    FleetCounter::Partitioned,
    FleetCounter::Clock,
    FleetCounter::Future,
    FleetCounter::TooOld,
    FleetCounter::SharedId,
    FleetCounter::TooManyAgents,
    FleetCounter::TooManyStreams,
];

/// A merge and its fleet.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct FleetStatus {
    /// Whether this process delivers to the outputs: every process with partitions does.
    pub sends: bool,
    /// The error of the last access to the log; absent after a success.
    pub log_error: Option<String>,
    /// Totals.
    #[serde(flatten)]
    pub numbers: Numbers,
    pub partitions: Vec<PartitionRow>,
    /// At most 1,000 agents with a problem; missing ones come first.
    pub agents: Vec<AgentRow>,
    /// Number of known agents.
    pub agents_known: u64,
    /// The newest quarantined records.
    pub quarantine: Vec<QuarantineRow>,
    pub sent: Vec<SentRow>,
}

/// One partition that this process reads.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PartitionRow {
    pub partition: u32,
    pub lag_records: u64,
    pub lag_seconds: f64,
    pub open_buckets: u64,
    /// In the last closed bucket.
    pub agents_expected: u64,
    pub agents_seen: u64,
    /// Unix seconds before which every bucket is closed, in the most advanced stream.
    pub closed_before: Option<i64>,
    pub merged: u64,
    pub late: u64,
    pub repeated: u64,
    pub quarantined: u64,
    pub bytes: u64,
}

/// One agent over all partitions of this process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct AgentRow {
    pub agent: String,
    /// Its host, by its records; two if two agents share the id. Empty: the agent is too old to say.
    pub host: String,
    /// Its records were missing in the last closed bucket.
    pub is_missing: bool,
    /// Its records for the oldest open bucket have not arrived.
    pub is_awaited: bool,
    /// Records that prove that another agent has its id.
    pub shared_id: u64,
    pub repeated: u64,
    pub published: u64,
    pub merged: u64,
    pub late: u64,
    pub quarantined: u64,
    pub open: u64,
    pub missing: u64,
    pub lost: u64,
    /// The buckets of the missing and of the lost states, as ranges of Unix seconds.
    pub missing_between: Option<(i64, i64)>,
    pub lost_between: Option<(i64, i64)>,
}

impl AgentRow {
    /// Published states that no other column accounts for. Always zero.
    pub fn difference(&self) -> i128 {
        let found = [
            self.merged,
            self.late,
            self.quarantined,
            self.open,
            self.missing,
            self.lost,
        ];
        i128::from(self.published) - found.into_iter().map(i128::from).sum::<i128>()
    }

    /// Whether it has a problem.
    pub fn is_remarkable(&self) -> bool {
        self.is_missing
            || self.shared_id > 0
            || [self.late, self.quarantined, self.missing, self.lost]
                .iter()
                .any(|states| *states > 0)
    }
}

/// A quarantined record.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct QuarantineRow {
    pub partition: u32,
    pub offset: u64,
    /// If the record names it.
    pub agent: Option<String>,
    pub host: String,
    pub reason: String,
}

/// Progress of an output in the results.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SentRow {
    pub output: String,
    /// Partitions that this process gives to the output.
    pub partitions: u64,
    /// Buckets that the output has got from this process, and the end of the newest, in Unix seconds.
    pub buckets: u64,
    pub newest: Option<i64>,
    /// Seconds since the end of that bucket.
    pub lag_seconds: f64,
    /// Whether results of this process wait for it.
    pub is_behind: bool,
    /// Buckets delivered again after a restart, because it was unknown whether the output had them.
    pub repeated: u64,
    /// The backend's handling of equal points: `replaced`, `added_up`, or `distributions_added_up` for distributions only.
    pub repeats_are: String,
    /// Corrected series that were delivered, and those that this output cannot correct.
    pub corrected: u64,
    pub not_corrected: u64,
    /// Results that the output lacks: the log deleted them before, at most, or they are unreadable.
    pub deleted: u64,
    /// The event the output waits for; meanwhile it reads no results.
    pub waits: bool,
}

impl FleetStatus {
    /// Violated equations, one sentence each.
    pub fn imbalances(&self, found: &mut Vec<String>) {
        for agent in self.agents.iter().filter(|agent| agent.difference() != 0) {
            found.push(format!(
                "series states of agent {} ({}): {} were published, {} are missing in the ledger",
                agent.agent,
                agent.host,
                agent.published,
                agent.difference()
            ));
        }
        let of = |counter| i128::from(self.numbers.of(counter));
        let accounted = of(FleetCounter::StatesMerged)
            + of(FleetCounter::StatesLate)
            + of(FleetCounter::StatesQuarantined)
            + of(FleetCounter::StatesOpen)
            + of(FleetCounter::StatesMissing)
            + of(FleetCounter::StatesLost);
        let published = of(FleetCounter::Published);
        if published != accounted {
            found.push(format!(
                "series states of the fleet: {published} were published, {accounted} are accounted for"
            ));
        }
    }
}
