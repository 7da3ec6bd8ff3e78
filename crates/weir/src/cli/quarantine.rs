//! `weir merge quarantine`: shows the records of a fleet that were not merged, and puts them back.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use clap::{Arg, ArgMatches, Command, value_parser};
use weir_merge::{Log as _, Quarantined, put_back};
use weir_state::{Record, State};
use weir_units::{counted, grouped};

use super::partitions::open_fleet;
use super::switch;
use super::table::{Table, shown};
use weir_fleet::FleetLog;
use weir_system::failure::Failure;

/// Shown bytes of a record that cannot be read.
const BYTES_SHOWN: usize = 64;

pub fn command() -> Command {
    let listed = |name: &'static str, about: &'static str| {
        super::with_sources(Command::new(name).about(about))
            .arg(number("partition", "Only records of this partition"))
            .arg(number(
                "offset",
                "Only the record with this number in its partition",
            ))
            .arg(
                Arg::new("reason")
                    .long("reason")
                    .value_name("TEXT")
                    .help("Only records whose reason contains this text"),
            )
    };
    Command::new("quarantine")
        .about("Show records that were not merged, or put them back")
        .long_about(
            "Show the records of a fleet that were not merged, or put them back into the log when the reason no longer holds. A record that is put back twice \
             counts once. Use the merge's configuration.",
        )
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(listed("list", "List the records that the log keeps, with their reasons"))
        .subcommand(listed("show", "Show the records with their series"))
        .subcommand(
            listed("put-back", "Publish the series of the records again, for their buckets")
                .arg(switch("all", "All records that the log keeps")),
        )
}

fn number(name: &'static str, help: &'static str) -> Arg {
    Arg::new(name)
        .long(name)
        .value_name("NUMBER")
        .value_parser(value_parser!(u64))
        .help(help)
}

pub fn quarantine(arguments: &ArgMatches) -> Result<(), Failure> {
    match arguments.subcommand() {
        Some(("list", arguments)) => super::print(&list(&chosen(&mut open(arguments)?, arguments)?)),
        Some(("show", arguments)) => {
            let chosen = chosen(&mut open(arguments)?, arguments)?;
            super::print(&chosen.iter().map(one).collect::<String>())
        }
        Some(("put-back", arguments)) => put_all_back(arguments),
        _ => Err(Failure::usage("list, show or put-back is expected")),
    }
}

fn open(arguments: &ArgMatches) -> Result<FleetLog, Failure> {
    open_fleet(arguments).map(|(_, log)| log)
}

fn failed(error: weir_log::Error) -> Failure {
    Failure::runtime(format!("log: {error}"))
}

/// The quarantined records that the arguments mean, with their partitions.
fn chosen(log: &mut FleetLog, arguments: &ArgMatches) -> Result<Vec<(u32, Quarantined)>, Failure> {
    let of = |name: &str| arguments.get_one::<u64>(name).copied();
    let (partition, offset) = (of("partition"), of("offset"));
    let reason = arguments.get_one::<String>("reason");
    let plan = log.plan().map_err(failed)?;
    let mut chosen = Vec::new();
    for number in 0..plan.at(i64::MAX) {
        if partition.is_some_and(|wanted| wanted != u64::from(number)) {
            continue;
        }
        let quarantined = log.quarantined(number).map_err(failed)?.into_iter();
        let wanted = quarantined.filter(|one| {
            offset.is_none_or(|offset| one.offset == offset)
                && reason.is_none_or(|reason| one.reason.contains(reason.as_str()))
        });
        chosen.extend(wanted.map(|one| (number, one)));
    }
    Ok(chosen)
}

fn list(records: &[(u32, Quarantined)]) -> String {
    let mut page = String::new();
    if records.is_empty() {
        return "no records\n".to_owned();
    }
    let mut table = Table::new(&["partition", "offset", "bucket", "agent", "series", "reason"]);
    for (partition, quarantined) in records {
        let record = Record::decode(&quarantined.bytes).ok();
        let of = |of: fn(&Record) -> String| record.as_ref().map(of).unwrap_or_default();
        table.row([
            partition.to_string(),
            quarantined.offset.to_string(),
            of(|record| record.header.bucket_start.to_string()),
            of(agent),
            of(|record| grouped(record.len() as u64)),
            shown(&quarantined.reason),
        ]);
    }
    table.write(&mut page);
    page
}

fn agent(record: &Record) -> String {
    super::merge::named(&record.header.host, &record.header.agent.to_string())
}

fn one((partition, quarantined): &(u32, Quarantined)) -> String {
    let (offset, reason) = (quarantined.offset, shown(&quarantined.reason));
    let mut text = format!("partition {partition}, record {offset}: {reason}\n");
    let record = match Record::decode(&quarantined.bytes) {
        Ok(record) => record,
        Err(error) => {
            let bytes = quarantined.bytes.iter().take(BYTES_SHOWN);
            let bytes: String = bytes.map(|byte| format!("{byte:02x}")).collect();
            let len = counted(quarantined.bytes.len() as u64, "bytes");
            let _ = writeln!(text, "  {error}\n  {len}: {bytes}");
            return text;
        }
    };
    let header = &record.header;
    let _ = writeln!(
        text,
        "  agent {}, start {}, record {}; bucket {} of {} s; tenant {:?}; {} series",
        agent(&record),
        header.epoch,
        header.sequence,
        header.bucket_start,
        header.bucket_width,
        header.tenant,
        grouped(record.len() as u64)
    );
    for series in record.series() {
        let value = value(series.state);
        let identity = series.identity();
        let tags: Vec<String> = identity.tags.iter().map(|tag| shown(tag)).collect();
        let (kind, name) = (
            format!("{:?}", identity.kind).to_lowercase(),
            shown(&identity.name),
        );
        let _ = writeln!(text, "  {kind} {name} {} {value}", tags.join(","));
    }
    text
}

fn value(state: &State) -> String {
    match state {
        State::Counter(sum) => sum.to_f64().to_string(),
        State::Gauge(gauge) => gauge.value.to_string(),
        State::Set(members) => counted(members.cardinality(), "members"),
        State::Samples(samples) => counted(samples.count(), "samples"),
        State::Distribution(distribution) => counted(
            distribution.bins.count().try_into().unwrap_or(u64::MAX),
            "samples",
        ),
    }
}

fn put_all_back(arguments: &ArgMatches) -> Result<(), Failure> {
    let is_chosen = ["partition", "offset", "reason"]
        .iter()
        .any(|name| arguments.contains_id(name));
    if !is_chosen && !arguments.get_flag("all") {
        return Err(Failure::usage(
            "which records? --partition, --offset and --reason choose some, --all takes all that `weir merge quarantine list` shows",
        ));
    }
    let mut log = open(arguments)?;
    let chosen = chosen(&mut log, arguments)?;
    let plan = log.plan().map_err(failed)?;
    let (mut text, mut not_put_back, mut seen) = (String::new(), 0, BTreeSet::new());
    for (partition, quarantined) in &chosen {
        let place = format!("partition {partition}, record {}", quarantined.offset);
        if !seen.insert(&quarantined.bytes) {
            let _ = writeln!(text, "{place}: the same record again");
            continue;
        }
        let now = super::status::unix_now() as i64;
        match put_back(*partition, quarantined, &plan, now) {
            Err(reason) => {
                not_put_back += 1;
                let _ = writeln!(text, "{place}: not put back: {reason}");
            }
            Ok(records) => {
                let series: u64 = records.iter().map(|record| record.rows).sum();
                for record in &records {
                    let sent = weir_log::unix_milliseconds();
                    log.append(record.partition, sent, &record.bytes)
                        .map_err(failed)?;
                }
                let _ = writeln!(text, "{place}: put back, {} series", grouped(series));
            }
        }
    }
    super::print(&text)?;
    match not_put_back {
        0 => Ok(()),
        some => Err(Failure::runtime(format!(
            "not put back: {some} of {}",
            counted(chosen.len() as u64, "records")
        ))),
    }
}
