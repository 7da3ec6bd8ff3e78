//! `weir-bench load search`: the highest rate a target takes without loss.

use super::common::ProfileArgs;
use crate::common::{check_cpus, print_line};
use crate::failure::Failure;
use std::time::Duration;
use weir_load::run::Options;
use weir_load::search::{self, Plan};
use weir_load::target::Target;
use weir_load::units::Rate;
use weir_units::parse_duration;

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    profile: ProfileArgs,
    /// Target address: udp://host:port, unixgram:///path, unix:///path, tcp://host:port, http://host:port/path, grpc://host:port.
    #[arg(long)]
    to: String,
    /// First rate; its unit is that of the search.
    #[arg(long, default_value = "10k msg/s", value_parser = |text: &str| text.parse::<Rate>())]
    from: Rate,
    /// Highest rate to try, in the same unit.
    #[arg(long, value_parser = |text: &str| text.parse::<Rate>())]
    up_to: Option<Rate>,
    #[arg(long, default_value = "2s", value_parser = parse_duration)]
    settle: Duration,
    #[arg(long, default_value = "5s", value_parser = parse_duration)]
    probe: Duration,
    #[arg(long, default_value = "20s", value_parser = parse_duration)]
    confirm: Duration,
    /// Largest share of packets lost or refused.
    #[arg(long, default_value_t = 0.001)]
    loss: f64,
    /// Largest 99th percentile of lateness.
    #[arg(long, default_value = "20ms", value_parser = parse_duration)]
    lateness: Duration,
    #[arg(long, default_value_t = 0.02)]
    precision: f64,
    /// Longest time of the whole search; without a confirmed rate by then, the result has the highest rate that held for a probe.
    #[arg(long, default_value = "5m", value_parser = parse_duration)]
    max_time: Duration,
    #[arg(long, default_value_t = 1)]
    threads: u32,
    #[arg(long, value_delimiter = ',')]
    cpu: Vec<usize>,
}

pub fn run(args: Args) -> Result<(), Failure> {
    let target = Target::parse(&args.to).map_err(Failure::usage)?;
    if args.up_to.is_some_and(|to| to.unit != args.from.unit) {
        return Err(Failure::Usage("--up-to: needs the same unit as --from".into()));
    }
    for (flag, value, most) in [("--precision", args.precision, 1.0), ("--loss", args.loss, 1.0)] {
        let least = if flag == "--loss" { 0.0 } else { 0.001 };
        if !(least..=most).contains(&value) {
            return Err(Failure::Usage(format!(
                "{flag} {value}: allowed is {least} to {most}"
            )));
        }
    }
    if args.probe.is_zero() || args.confirm.is_zero() {
        return Err(Failure::Usage("--probe, --confirm: must be above zero".into()));
    }
    check_cpus(&args.cpu)?;
    let load = args.profile.load_on(&target)?;
    let mut options = Options::new(target);
    options.threads = args.threads;
    options.cpus = args.cpu;
    let plan = Plan {
        from: args.from,
        to: args.up_to.map_or(f64::INFINITY, |rate| rate.per_second),
        settle: args.settle,
        probe: args.probe,
        confirm: args.confirm,
        loss: args.loss,
        lateness: args.lateness,
        precision: args.precision,
        time: args.max_time,
    };
    let unit = args.from.unit.name();
    let found = search::search(&load, &options, &plan, |probe| {
        eprintln!(
            "{:>14.0} {unit}/s  {}  loss {:.4} %  p99 lateness {:.2} ms{}",
            probe.rate,
            if probe.good { "holds" } else { "fails" },
            probe.loss * 100.0,
            probe.lateness_p99_s * 1e3,
            if probe.confirming { "  (confirming)" } else { "" },
        );
    })?;
    print_line(&found)
}
