//! `weir-bench load run`.

use super::common::{ProfileArgs, failure};
use crate::failure::Failure;
use serde_json::json;
use std::time::Duration;
use weir_load::run::{Backpressure, Framing, Options, Report};
use weir_load::target::Target;
use weir_load::units::{Bytes, parse_duration};

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    profile: ProfileArgs,
    /// Where to: udp://host:port, unixgram:///path, unix:///path, tcp://host:port, http://host:port/path.
    #[arg(long)]
    to: String,
    /// Stop after this time: 30s, 5m.
    #[arg(long, value_parser = parse_duration)]
    duration: Option<Duration>,
    /// Stop with the packet that reaches this many messages.
    #[arg(long)]
    count: Option<u64>,
    /// Sending threads; connections are spread over them.
    #[arg(long, default_value_t = 1)]
    threads: u32,
    /// Processors to pin the threads to, in turn.
    #[arg(long, value_delimiter = ',')]
    cpu: Vec<usize>,
    /// Time step of the schedule (default 1ms, 250us at high rates).
    #[arg(long, value_parser = parse_duration)]
    quantum: Option<Duration>,
    /// What to do when the target takes no more. Default: paced datagrams wait one quantum and are then skipped and
    /// counted, everything else waits.
    #[arg(long, value_enum)]
    on_backpressure: Option<OnBackpressure>,
    /// How packets are kept apart on streams. Default: length on unix:// and for DogStatsD on tcp://, else newline.
    #[arg(long, value_enum)]
    framing: Option<FramingArg>,
    /// Send buffer of each socket.
    #[arg(long, default_value = "4 MiB", value_parser = |text: &str| text.parse::<Bytes>())]
    send_buffer: Bytes,
    /// Receive buffer of the target; larger packets are refused.
    #[arg(long, default_value = "65535", value_parser = |text: &str| text.parse::<Bytes>())]
    target_buffer: Bytes,
    /// Send packets larger than transport or target take.
    #[arg(long)]
    oversize_ok: bool,
    /// Refuse a prebuilt load that would send a packet twice.
    #[arg(long)]
    no_repeat: bool,
    /// Send a numbered gauge `weir.load.marker` this often, for end-to-end delay: 100ms.
    #[arg(long, value_parser = parse_duration)]
    markers: Option<Duration>,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum OnBackpressure {
    Skip,
    Wait,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum FramingArg {
    Length,
    Newline,
}

/// The line scripts read.
pub fn summary(name: &str, seed: u64, target: &str, report: &Report) -> serde_json::Value {
    let elapsed = report.elapsed.as_secs_f64();
    let per_second = |value: f64| if elapsed > 0.0 { value / elapsed } else { 0.0 };
    let cpu = (report.cpu_user + report.cpu_system).as_secs_f64();
    json!({
        "profile": name,
        "seed": seed,
        "target": target,
        "packets": report.packets,
        "messages": report.messages,
        "bytes": report.bytes,
        "elapsed_s": elapsed,
        "packets_per_s": per_second(report.packets as f64),
        "messages_per_s": per_second(report.messages as f64),
        "bytes_per_s": per_second(report.bytes as f64),
        "cpu_user_s": report.cpu_user.as_secs_f64(),
        "cpu_system_s": report.cpu_system.as_secs_f64(),
        "cpu_ns_per_message": if report.messages > 0 { cpu * 1e9 / report.messages as f64 } else { 0.0 },
        "run_delay_s": report.run_delay.as_secs_f64(),
        "system_calls": report.system_calls,
        "blocked_s": report.blocked.as_secs_f64(),
        "refused_packets": report.refused_packets,
        "refused_messages": report.refused_messages,
        "kernel_drops": report.kernel_drops,
        "unit": report.unit.map(|u| u.name()),
        "scheduled": report.scheduled,
        "achieved": report.achieved,
        "late_fraction": if report.packets > 0 { report.late_packets as f64 / report.packets as f64 } else { 0.0 },
        "lateness_p99_s": report.lateness_p99_s,
        "send_buffer": report.send_buffer,
        "verdict": report.verdict().name(),
    })
}

impl Args {
    fn options(&self, target: Target) -> Options {
        Options {
            duration: self.duration,
            count: self.count,
            threads: self.threads,
            cpus: self.cpu.clone(),
            quantum: self.quantum,
            backpressure: match self.on_backpressure {
                None => Backpressure::Auto,
                Some(OnBackpressure::Skip) => Backpressure::Skip,
                Some(OnBackpressure::Wait) => Backpressure::Wait,
            },
            framing: self.framing.map(|framing| match framing {
                FramingArg::Length => Framing::Length,
                FramingArg::Newline => Framing::Newline,
            }),
            send_buffer: self.send_buffer.0 as usize,
            markers: self.markers,
            target_buffer: self.target_buffer.0,
            oversize_ok: self.oversize_ok,
            no_repeat: self.no_repeat,
            ..Options::new(target)
        }
    }
}

pub fn run(args: Args) -> Result<(), Failure> {
    let target = Target::parse(&args.to).map_err(|error| Failure::Usage(error.to_string()))?;
    let load = args.profile.load(Some(target.transport()))?;
    let options = args.options(target);
    let (report, error) = weir_load::run::run(&load, &options).map_err(failure)?;
    println!(
        "{}",
        summary(&load.name, load.seed, &options.target.to_string(), &report)
    );
    match error {
        Some(error) => Err(failure(error)),
        None => Ok(()),
    }
}
