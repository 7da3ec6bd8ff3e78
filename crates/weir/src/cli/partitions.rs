//! `weir merge partitions`: shows the number of partitions of a fleet, and announces a larger one.

use std::fmt::Write as _;
use std::time::Duration;

use clap::{Arg, ArgMatches, Command, value_parser};
use weir_config::Role;
use weir_merge::{Log as _, Plan};
use weir_units::counted;

use super::table::duration;
use weir_fleet::{FleetLog, open as open_log};
use weir_system::config::{self, Loaded};
use weir_system::failure::Failure;

/// Agents ask every 10 s, and hear within half a minute of partitions that a topic has got.
const AFTER_MIN: Duration = Duration::from_secs(60);

pub fn command() -> Command {
    let number = Arg::new("number")
        .value_name("NUMBER")
        .value_parser(value_parser!(u32).range(1..=10_000))
        .help("The new number of partitions, larger than the current one; without it nothing changes");
    let after = Arg::new("after")
        .long("after")
        .value_name("TIME")
        .default_value("5m")
        .help("The time from which the new number applies: an agent that does not reach the log before then divides as before, and its records are quarantined");
    super::with_sources(
        Command::new("partitions")
            .about("Show the number of partitions, or raise it")
            .long_about(
                "Show the number of partitions among which the series of the fleet are divided, or raise it. The topics get the new partitions at once; \
                 series move with a later bucket, so that every agent learns of it and no series is split. Use the merge's configuration.",
            ),
    )
    .arg(number)
    .arg(after)
}

pub fn partitions(arguments: &ArgMatches) -> Result<(), Failure> {
    let after = after(arguments)?;
    let (_, mut log) = open_fleet(arguments)?;
    let failed = |error: weir_log::Error| Failure::runtime(format!("log: {error}"));
    let mut plan = log.plan().map_err(failed)?;
    let now = super::status::unix_now() as i64;
    if let Some(number) = arguments.get_one::<u32>("number").copied() {
        may_become(&plan, number)?;
        let from = now + after.as_secs() as i64;
        log.announce(from, number).map_err(failed)?;
        plan.announce(from, number);
    }
    super::print(&shown(&plan, now))
}

/// The merge's configuration, and its log, which must exist.
pub fn open_fleet(arguments: &ArgMatches) -> Result<(Loaded, FleetLog), Failure> {
    let loaded = config::load(&super::inputs_of(Role::Merge, arguments)?)?;
    let reader = loaded.config.merge.as_ref().map(|merge| &merge.log);
    let reader = reader.ok_or_else(|| Failure::usage("no merge is configured"))?;
    if let Some(directory) = &reader.log.directory
        && !directory.is_dir()
    {
        let shown = directory.display();
        return Err(Failure::runtime(format!(
            "log.directory: {shown}: there is no log"
        )));
    }
    let log = open_log(reader)?;
    Ok((loaded, log))
}

fn after(arguments: &ArgMatches) -> Result<Duration, Failure> {
    let text = arguments.get_one::<String>("after").map_or("5m", String::as_str);
    let wrong = |why: String| Failure::usage(format!("flag --after: {why}"));
    let after = weir_units::parse_duration(text).map_err(|error| wrong(error.to_string()))?;
    match after >= AFTER_MIN {
        true => Ok(after),
        false => Err(wrong(format!(
            "{text} is too soon: agents need up to {} s to learn of it",
            AFTER_MIN.as_secs()
        ))),
    }
}

/// Removed partitions would take their records along.
fn may_become(plan: &Plan, number: u32) -> Result<(), Failure> {
    let last = plan.at(i64::MAX);
    match number > last {
        true => Ok(()),
        false => Err(Failure::usage(format!(
            "{number} partitions: there are or will be {last}, and their number can only be raised"
        ))),
    }
}

fn shown(plan: &Plan, now: i64) -> String {
    let mut text = format!("{}\n", counted(plan.at(now).into(), "partitions"));
    for (from, partitions) in plan.steps().filter(|(from, _)| *from > now) {
        let left = duration((from - now) as u64);
        let _ = writeln!(
            text,
            "{partitions} from the bucket that begins at {from} (Unix seconds, in {left})"
        );
    }
    text
}
