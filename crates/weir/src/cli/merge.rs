//! `weir merge`: merges the records that the agents of a fleet publish, and reports its state.

use std::fmt::Write as _;

use clap::{ArgMatches, Command};
use weir_config::Role;
use weir_units::{counted, grouped, unit_of};

use super::agent::{admin_address_of, show_at};
use super::style::Style;
use super::switch;
use super::table::{Table, duration};
use weir_status::fleet::{AgentRow, FleetCounter, FleetStatus};
use weir_status::status::Status;
use weir_system::config;
use weir_system::failure::Failure;

/// Shown agents and quarantined records; the JSON has more.
const ROWS_MAX: usize = 20;

pub fn command() -> Command {
    let mut command = super::with_sources(
        Command::new("merge")
            .about("Merge what the agents of a fleet publish, each record once")
            .long_about(
                "Merge the records of a fleet's agents into one series per service, each record once. It reads the log that the agents' output \
                 writes, and delivers to the same outputs as an agent (docs/fleet.md).",
            ),
    )
    .args_conflicts_with_subcommands(true)
    .arg(
        switch("check", "Check the configuration, print every value and its source, and exit"),
    )
    .subcommand(status_command())
    .subcommand(super::partitions::command())
    .subcommand(super::quarantine::command())
    .subcommand(super::fleet_replay::command());
    for setting in super::flags_of(Role::Merge) {
        let setting = Role::Merge.version_of(setting);
        let arg = super::setting_flag(&setting).help(weir_config::help(&setting));
        command = command.arg(arg.hide_short_help(!setting.common));
    }
    command
}

fn status_command() -> Command {
    Command::new("status")
        .about("Show the state of the merge on this machine: lag, agents, ledger, quarantine, outputs")
        .args(super::agent::arguments_of(Role::Merge))
        .arg(switch("watch", "Show it again every second"))
        .arg(switch("json", "Print the JSON instead"))
}

pub fn merge(arguments: &ArgMatches) -> Result<(), Failure> {
    match arguments.subcommand() {
        Some(("status", arguments)) => return status(arguments),
        Some(("partitions", arguments)) => return super::partitions::partitions(arguments),
        Some(("quarantine", arguments)) => return super::quarantine::quarantine(arguments),
        Some(("replay", arguments)) => return super::fleet_replay::replay(arguments),
        _ => {}
    }
    let inputs = super::inputs_of(Role::Merge, arguments)?;
    let loaded = config::load(&inputs)?;
    match arguments.get_flag("check") {
        true => super::print(&super::check::report(&loaded)),
        false => weir_fleet::run(loaded, &inputs),
    }
}

fn status(arguments: &ArgMatches) -> Result<(), Failure> {
    let address = admin_address_of(Role::Merge, arguments)?;
    let style = Style::of_stdout();
    show_at(address, arguments, "/api/v1/status", |status: &Status| {
        super::status::render(status, super::status::unix_now(), style)
    })
}

/// The fleet's part of `weir status`.
pub fn render(page: &mut String, fleet: &FleetStatus, now: u64, style: Style) {
    let of = |counter| fleet.numbers.of(counter);
    let count = |counter| grouped(of(counter));
    let sends = match fleet.sends {
        true => "this process sends their results to the outputs",
        false => "this process has none, and waits",
    };
    let _ = writeln!(
        page,
        "\nfleet     {} here; {sends}\nagents    {} expected, {} seen, {} missing in the bucket that closed last; {} known",
        counted(of(FleetCounter::Partitions), "partitions"),
        count(FleetCounter::AgentsExpected),
        count(FleetCounter::AgentsSeen),
        count(FleetCounter::AgentsMissing),
        grouped(fleet.agents_known)
    );
    if let Some(error) = &fleet.log_error {
        let _ = writeln!(page, "{}", style.bad(&super::table::shown(error)));
    }
    let _ = writeln!(
        page,
        "records   {} merged, {} late, {} repeated, {} quarantined; {} closed, {} open",
        count(FleetCounter::Merged),
        count(FleetCounter::Late),
        count(FleetCounter::Repeats),
        grouped(fleet.partitions.iter().map(|row| row.quarantined).sum()),
        counted(of(FleetCounter::ClosedBuckets), "buckets"),
        count(FleetCounter::OpenBuckets)
    );
    partitions(page, fleet);
    ledger(page, fleet, style);
    quarantine(page, fleet);
    sent(page, fleet, now);
}

fn partitions(page: &mut String, fleet: &FleetStatus) {
    let mut table = Table::new(&[
        "partition",
        "behind",
        "seconds",
        "open",
        "agents",
        "merged",
        "late",
        "repeated",
        "quarantined",
    ]);
    for row in &fleet.partitions {
        table.row([
            row.partition.to_string(),
            grouped(row.lag_records),
            format!("{:.1}", row.lag_seconds),
            row.open_buckets.to_string(),
            format!("{} of {}", row.agents_seen, row.agents_expected),
            grouped(row.merged),
            grouped(row.late),
            grouped(row.repeated),
            grouped(row.quarantined),
        ]);
    }
    table.write(page);
}

/// The states of the fleet's series, and of agents with problems.
fn ledger(page: &mut String, fleet: &FleetStatus, style: Style) {
    let mut table = Table::new(&[
        "series states",
        "published",
        "merged",
        "late",
        "quarantined",
        "open",
        "missing",
        "lost",
        "because",
    ])
    .styled(style);
    let of = |counter| fleet.numbers.of(counter);
    let whole = AgentRow {
        agent: "all agents".into(),
        published: of(FleetCounter::Published),
        merged: of(FleetCounter::StatesMerged),
        late: of(FleetCounter::StatesLate),
        quarantined: of(FleetCounter::StatesQuarantined),
        open: of(FleetCounter::StatesOpen),
        missing: of(FleetCounter::StatesMissing),
        lost: of(FleetCounter::StatesLost),
        ..AgentRow::default()
    };
    let remarkable: Vec<&AgentRow> = fleet.agents.iter().filter(|row| row.is_remarkable()).collect();
    for row in std::iter::once(&whole).chain(remarkable.iter().copied().take(ROWS_MAX)) {
        let cells = [
            named(&row.host, &row.agent),
            grouped(row.published),
            grouped(row.merged),
            grouped(row.late),
            grouped(row.quarantined),
            grouped(row.open),
            grouped(row.missing),
            grouped(row.lost),
            because(row),
        ];
        table.row_unless(row.missing + row.lost + row.shared_id > 0, cells);
    }
    table.write(page);
    let others = remarkable.len().saturating_sub(ROWS_MAX);
    if others > 0 {
        let _ = writeln!(
            page,
            "  and {} more {}: --json lists all",
            grouped(others as u64),
            unit_of(others as u64, "agents")
        );
    }
}

/// Agents are named by their host where it is known.
pub fn named(host: &str, agent: &str) -> String {
    match host {
        "" => agent.to_owned(),
        host => format!("{} ({agent})", super::table::shown(host)),
    }
}

fn because(row: &AgentRow) -> String {
    let mut because = Vec::new();
    if row.is_missing {
        because.push("is missing".to_owned());
    }
    if row.shared_id > 0 {
        because.push(format!(
            "two agents have this id ({})",
            counted(row.shared_id, "records")
        ));
    }
    for (what, between) in [("missing", row.missing_between), ("lost", row.lost_between)] {
        if let Some((from, to)) = between {
            let from = if from == i64::MIN {
                "the beginning".to_owned()
            } else {
                from.to_string()
            };
            because.push(format!("{what} between {from} and {to}"));
        }
    }
    because.join("; ")
}

fn quarantine(page: &mut String, fleet: &FleetStatus) {
    if fleet.quarantine.is_empty() {
        return;
    }
    let mut table = Table::new(&["quarantined", "partition", "agent", "reason"]);
    for row in fleet.quarantine.iter().rev().take(ROWS_MAX) {
        table.row([
            row.offset.to_string(),
            row.partition.to_string(),
            named(&row.host, row.agent.as_deref().unwrap_or_default()),
            super::table::shown(&row.reason),
        ]);
    }
    table.write(page);
}

fn sent(page: &mut String, fleet: &FleetStatus, now: u64) {
    let mut table = Table::new(&[
        "output",
        "buckets",
        "newest ended",
        "given again",
        "which are",
        "corrected",
        "not corrected",
    ]);
    for row in &fleet.sent {
        let ago = |end: i64| format!("{} ago", duration(now.saturating_sub(end.max(0) as u64)));
        let newest = row.newest.map_or("none yet".to_owned(), ago);
        let waits = if row.waits { ", waits for the output" } else { "" };
        table.row([
            row.output.clone(),
            grouped(row.buckets),
            format!("{newest}{waits}"),
            grouped(row.repeated),
            row.repeats_are.clone(),
            grouped(row.corrected),
            grouped(row.not_corrected),
        ]);
    }
    table.write(page);
}
