//! The state of a fleet, as known to the owner of its partitions.

use std::collections::{BTreeMap, BTreeSet};

use weir_counters::Counts;
use weir_merge::{Interval, Merge, Missing, Owner, OwnerTurn};
use weir_state::AgentId;

use super::{FleetLog, unix_ms};
use weir_status::fleet::{AgentRow, FleetCounter, FleetStatus, PartitionRow, QuarantineRow, REASONS};

/// Listed agents.
const AGENTS_MAX: usize = 1000;

/// Listed quarantined records.
const QUARANTINE_MAX: usize = 32;

/// Counts since the start.
#[derive(Clone, Copy, Debug, Default)]
pub struct Totals {
    commits: u64,
    fenced: u64,
}

impl Totals {
    pub fn add(&mut self, turn: OwnerTurn) {
        self.commits += turn.commits;
        self.fenced += turn.fenced;
    }
}

pub fn report(owner: &Owner<FleetLog>, totals: &Totals, log_errors: u64) -> FleetStatus {
    let mut report = FleetStatus::default();
    let mut counts = Counts::default();
    counts[FleetCounter::Partitions] = owner.held() as u64;
    counts[FleetCounter::Commits] = totals.commits;
    counts[FleetCounter::Fenced] = totals.fenced;
    counts[FleetCounter::UnreadableSnapshots] = owner.refused().count() as u64;
    counts[FleetCounter::LogErrors] = log_errors;
    let mut agents = BTreeMap::new();
    let mut fleet = Membership::default();
    for (number, merge) in owner.merges() {
        let row = partition(number, owner.behind(number), merge);
        add(&mut counts, merge, &row);
        report.partitions.push(row);
        add_agents(&mut agents, merge);
        fleet.add(merge);
        report.quarantine.extend(quarantine(number, merge));
    }
    let excess = report.quarantine.len().saturating_sub(QUARANTINE_MAX);
    report.quarantine.drain(..excess);
    counts[FleetCounter::AgentsExpected] = fleet.expected;
    counts[FleetCounter::AgentsSeen] = fleet.seen;
    counts[FleetCounter::AgentsMissing] = fleet.missing.len() as u64;
    for agent in &fleet.missing {
        agents.entry(*agent).or_default().is_missing = true;
    }
    for agent in &fleet.awaited {
        agents.entry(*agent).or_default().is_awaited = true;
    }
    let shared = agents.values().filter(|row| row.shared_id > 0);
    counts[FleetCounter::SharedIds] = shared.count() as u64;
    report.agents_known = agents.len() as u64;
    report.agents = listed(agents);
    for (info, count) in counts.iter() {
        report.numbers.put(info, count);
    }
    report
}

/// The expected agents of the last closed buckets.
#[derive(Default)]
struct Membership {
    expected: u64,
    seen: u64,
    missing: BTreeSet<AgentId>,
    awaited: BTreeSet<AgentId>,
}

impl Membership {
    fn add(&mut self, merge: &Merge) {
        let (mut expected, mut seen) = (0, 0);
        for stream in merge.streams() {
            self.awaited.extend(stream.awaited);
            if let Some(closed) = stream.closed {
                expected += u64::from(closed.expected);
                seen += u64::from(closed.seen);
                self.missing.extend(closed.missing);
            }
        }
        // Every agent sends to every partition.
        self.expected = self.expected.max(expected);
        self.seen = self.seen.max(seen);
    }
}

fn partition(number: u32, behind: u64, merge: &Merge) -> PartitionRow {
    let counts = merge.counts();
    let streams = merge.streams();
    let closed = streams.iter().filter_map(|stream| stream.closed.as_ref());
    let lag_ms = match merge.time() {
        Some(time) if behind > 0 => (unix_ms() - time).max(0),
        _ => 0,
    };
    PartitionRow {
        partition: number,
        lag_records: behind,
        lag_seconds: lag_ms as f64 / 1e3,
        open_buckets: streams.iter().map(|stream| stream.open_buckets as u64).sum(),
        agents_expected: closed.clone().map(|closed| u64::from(closed.expected)).sum(),
        agents_seen: closed.map(|closed| u64::from(closed.seen)).sum(),
        closed_before: streams.iter().filter_map(|stream| stream.closed_before).max(),
        merged: counts.merged,
        late: counts.late,
        repeated: counts.repeats,
        quarantined: counts.quarantined.iter().sum(),
        bytes: merge.bytes() as u64,
    }
}

fn add(counts: &mut Counts<FleetCounter>, merge: &Merge, row: &PartitionRow) {
    let of = merge.counts();
    let ledger = merge.ledger();
    for (counter, number) in [
        (FleetCounter::LagRecords, row.lag_records),
        (FleetCounter::OpenBuckets, row.open_buckets),
        (FleetCounter::ClosedBuckets, of.closed_buckets),
        (FleetCounter::Merged, of.merged),
        (FleetCounter::Late, of.late),
        (FleetCounter::Repeats, of.repeats),
        (FleetCounter::Corrections, of.corrections),
        (FleetCounter::Overflowed, of.overflowed_states),
        (FleetCounter::DroppedStates, of.dropped_states),
        (FleetCounter::TooLarge, of.too_large_series),
        (FleetCounter::Published, ledger.published),
        (FleetCounter::StatesMerged, ledger.merged),
        (FleetCounter::StatesLate, ledger.late),
        (FleetCounter::StatesQuarantined, ledger.quarantined),
        (FleetCounter::StatesOpen, ledger.open),
        (FleetCounter::StatesMissing, ledger.missing),
        (FleetCounter::StatesLost, ledger.lost),
    ] {
        counts[counter] += number;
    }
    for (counter, number) in REASONS.into_iter().zip(of.quarantined) {
        counts[counter] += number;
    }
    let lag_ms = (row.lag_seconds * 1e3) as u64;
    counts[FleetCounter::LagMs] = counts[FleetCounter::LagMs].max(lag_ms);
}

fn add_agents(agents: &mut BTreeMap<AgentId, AgentRow>, merge: &Merge) {
    for (id, ledger) in merge.ledgers() {
        let row = agents.entry(id).or_default();
        if let (true, Some(host)) = (row.host.is_empty(), merge.hosts(id).first()) {
            row.host = host.to_string();
        }
        row.repeated += merge.repeats(id);
        row.published += ledger.published;
        row.merged += ledger.merged;
        row.late += ledger.late;
        row.quarantined += ledger.quarantined;
        row.open += ledger.open;
        row.missing += ledger.missing;
        row.lost += ledger.lost;
        let (missing, lost) = merge.missing(id);
        widen(&mut row.missing_between, missing);
        widen(&mut row.lost_between, lost);
    }
    for (id, records) in merge.shared_ids() {
        let row = agents.entry(id).or_default();
        row.shared_id += records;
        row.host = merge.hosts(id).join(", ");
    }
}

fn widen(between: &mut Option<(i64, i64)>, missing: Missing) {
    if let Some(Interval { from, to }) = missing.interval.filter(|_| missing.records > 0) {
        let (first, last) = between.unwrap_or((from, to));
        *between = Some((first.min(from), last.max(to)));
    }
}

fn quarantine(partition: u32, merge: &Merge) -> impl Iterator<Item = QuarantineRow> {
    merge.refused().map(move |refused| QuarantineRow {
        partition,
        offset: refused.offset,
        agent: refused.agent.map(|agent| agent.to_string()),
        host: refused.host.clone(),
        reason: refused.reason.to_string(),
    })
}

/// Agents with problems come first.
fn listed(agents: BTreeMap<AgentId, AgentRow>) -> Vec<AgentRow> {
    let rows = agents.into_iter().map(|(id, row)| AgentRow {
        agent: id.to_string(),
        ..row
    });
    let mut rows: Vec<AgentRow> = rows.collect();
    rows.sort_by_key(|row| std::cmp::Reverse((row.is_missing, row.is_remarkable())));
    rows.truncate(AGENTS_MAX);
    rows
}
