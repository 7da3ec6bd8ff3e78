//! `weir-bench floor`: the minimum work of a receiver, so that anyone can reproduce the "ratio to the limit".

mod receive;
mod sys;

use crate::common::check_cpus;
use crate::failure::Failure;
use receive::Receive;
use std::time::Duration;
use weir_rig_base::address::{Address, parse_resolved};
use weir_rig_base::{process, signal};
use weir_units::parse_duration;

/// Receives packets at the lowest possible cost, and reports that cost.
///
/// Prints one JSON line when it listens ({"listening": ADDRESS, "pid": ..., "cpu": ...}) and one with the result
/// when it ends: after SIGTERM, SIGINT, --duration, or --until-idle of silence once traffic was seen.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// udp://host:port, unixgram:///path, tcp://host:port or unix:///path; port 0 picks a free one.
    #[arg(long, value_name = "ADDRESS", value_parser = parse_resolved)]
    pub listen: Address,
    /// Method of receiving packets.
    #[arg(long, value_enum, default_value = "r2")]
    pub receive: Receive,
    /// Datagrams per system call and slots of the ring (r2 and r3).
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub batch: u16,
    /// Receive buffer to request for UDP and TCP sockets, in bytes.
    #[arg(long, default_value_t = 4 << 20, value_name = "BYTES")]
    pub receive_buffer: usize,
    /// Run on this CPU only; the sender belongs on another.
    #[arg(long)]
    pub cpu: Option<usize>,
    /// End after this time, with or without traffic.
    #[arg(long, value_parser = parse_duration, value_name = "TIME")]
    pub duration: Option<Duration>,
    /// End after this much silence after the first packet; 0s: never.
    #[arg(long, value_parser = parse_duration, value_name = "TIME", default_value = "2s")]
    pub until_idle: Duration,
}

pub fn run(args: Args) -> Result<(), Failure> {
    // Before the first thread starts, so that all inherit both.
    signal::block_termination()?;
    if let Some(cpu) = args.cpu {
        check_cpus(&[cpu])?;
        process::pin(&[cpu]).map_err(|error| Failure::Runtime(format!("--cpu {cpu}: {error}")))?;
    }
    receive::run(&args.listen, &args)
}
