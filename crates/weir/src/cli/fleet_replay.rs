//! `weir merge replay`: an output gets results of a fleet again.

use std::fmt::Write as _;
use std::time::Duration;

use clap::{Arg, ArgMatches, Command, value_parser};
use weir_merge::{BucketResult, Log as _};
use weir_output::settings::OutputSettings;

use super::partitions::open_fleet;
use weir_fleet::{FleetLog, open_for_output as open_log_for_output};
use weir_system::config::Config;
use weir_system::failure::Failure;

/// Bytes of one read.
const READ_BYTES: usize = 1 << 20;

pub fn command() -> Command {
    let output = Arg::new("name")
        .value_name("NAME")
        .required(true)
        .help("The output, as the configuration names it");
    let from = Arg::new("from")
        .long("from")
        .value_name("PLACE")
        .required(true)
        .help(
            "How long ago (90m), a time in Unix seconds with @ before it (@1700000000), or the number of a result with --partition",
        );
    let partition = Arg::new("partition")
        .long("partition")
        .value_name("NUMBER")
        .value_parser(value_parser!(u32))
        .help("Only this partition");
    super::with_sources(
        Command::new("replay")
            .about("Let an output get results again")
            .long_about(
                "Move the position of an output back, so that it gets results of the fleet again that the log still has. Stop every merge of this log \
                 first. Use the merge's configuration.",
            ),
    )
    .arg(output)
    .arg(from)
    .arg(partition)
}

/// A place in the results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Offset(u64),
    /// Unix seconds: the first bucket that ends after it.
    Second(i64),
}

fn parsed(text: &str, now: i64) -> Result<Place, Failure> {
    let wrong = |why: String| Failure::usage(format!("flag --from: {why}"));
    if let Some(second) = text.strip_prefix('@') {
        let second = second
            .parse()
            .map_err(|_| wrong(format!("{text}: no Unix second follows @")))?;
        return Ok(Place::Second(second));
    }
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        let offset = text.parse().map_err(|_| wrong(format!("{text}: too large")))?;
        return Ok(Place::Offset(offset));
    }
    let ago: Duration = weir_units::parse_duration(text).map_err(|error| wrong(error.to_string()))?;
    Ok(Place::Second(now - ago.as_secs() as i64))
}

pub fn replay(arguments: &ArgMatches) -> Result<(), Failure> {
    let text = |name| arguments.get_one::<String>(name).map_or("", String::as_str);
    let from = parsed(text("from"), super::status::unix_now() as i64)?;
    let only = arguments.get_one::<u32>("partition").copied();
    if matches!(from, Place::Offset(_)) && only.is_none() {
        return Err(Failure::usage(
            "flag --from: the number of a result belongs to one partition: --partition is missing",
        ));
    }
    let (loaded, _) = open_fleet(arguments)?;
    let output = text("name");
    may_repeat(&loaded.config, output)?;
    let failed = |error: weir_log::Error| Failure::runtime(format!("log: {error}"));
    let mut log = open_log_for_output(&loaded.config, output)?;
    let partitions = log.plan().map_err(failed)?.at(i64::MAX);
    let mut page = String::new();
    for partition in (0..partitions).filter(|partition| only.is_none_or(|only| only == *partition)) {
        let start = log.results_start(partition).map_err(failed)?;
        let wanted = match from {
            Place::Offset(offset) => Some(offset),
            Place::Second(second) => first_after(&mut log, partition, second).map_err(failed)?,
        };
        let Some(wanted) = wanted.map(|wanted| wanted.max(start)) else {
            let _ = writeln!(page, "partition {partition}: no results since then");
            continue;
        };
        let moved = rewind(&mut log, partition, wanted).map_err(failed)?;
        let _ = match moved {
            Some(before) => writeln!(page, "partition {partition}: from {before} back to {wanted}"),
            None => writeln!(
                page,
                "partition {partition}: the output has not passed {wanted} yet"
            ),
        };
    }
    super::print(&page)
}

/// Sums that already contain a bucket would contain it twice.
fn may_repeat(config: &Config, name: &str) -> Result<(), Failure> {
    let output = config.outputs.iter().find(|output| output.name == name);
    let adds_up = match output.map(|output| &output.settings) {
        None => {
            return Err(Failure::usage(format!("there is no output {name}")));
        }
        Some(OutputSettings::Delivered(settings)) => settings.adds_up(),
        Some(OutputSettings::Prometheus(_) | OutputSettings::Relay(_)) => true,
    };
    match adds_up {
        false => Ok(()),
        true => Err(Failure::usage(format!(
            "{name} has sums since its start, which contain these buckets: their backend cannot take them again"
        ))),
    }
}

/// The first result of a bucket that ends after this second. `None`: there is none.
fn first_after(log: &mut FleetLog, partition: u32, second: i64) -> Result<Option<u64>, weir_log::Error> {
    let start = log.results_start(partition)?;
    let mut from = log
        .results_near(partition, second.saturating_mul(1000))?
        .max(start);
    loop {
        let results = log.results(partition, from, READ_BYTES)?;
        let Some((last, _)) = results.last() else {
            return Ok(None);
        };
        from = last + 1;
        let ends_after = |bytes: &[u8]| {
            let result = BucketResult::read(bytes).ok();
            let end = result.map(|result| result.bucket_start.saturating_add(i64::from(result.bucket_width)));
            // One that this program cannot read may end after it.
            end.is_none_or(|end| end > second)
        };
        if let Some((number, _)) = results.iter().find(|(_, bytes)| ends_after(bytes)) {
            return Ok(Some(*number));
        }
    }
}

/// Moves the output back: from where. `None`: it is not beyond.
fn rewind(log: &mut FleetLog, partition: u32, wanted: u64) -> Result<Option<u64>, weir_log::Error> {
    let before = log.position(partition)?;
    if before <= wanted {
        return Ok(None);
    }
    log.rewind(partition, wanted)?;
    Ok(Some(before))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_a_time_or_a_number() {
        let now = 1_700_000_000;
        for (text, expected) in [
            ("90m", Place::Second(now - 5400)),
            ("@1699990000", Place::Second(1_699_990_000)),
            ("12", Place::Offset(12)),
        ] {
            assert_eq!(parsed(text, now).ok(), Some(expected), "{text}");
        }
        for text in ["", "@", "@soon", "yesterday", "99999999999999999999"] {
            assert!(parsed(text, now).is_err(), "{text}");
        }
    }
}
