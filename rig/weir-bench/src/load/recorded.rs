//! `weir-bench load learn` and `replay`: a profile from recorded traffic, and recorded packets sent again.

use super::common::FramingArg;
use crate::common::{print, print_line};
use crate::failure::Failure;
use std::path::PathBuf;
use weir_load::recorded;
use weir_load::replay::Options;
use weir_load::target::Target;

#[derive(clap::Args)]
pub struct LearnArgs {
    /// pcap file, raw packet file, or agent capture.
    file: PathBuf,
    /// From a pcap file, only UDP packets to this port.
    #[arg(long)]
    port: Option<u16>,
    /// Seed of the word replacements; without it, a random number, so that the words cannot be guessed.
    #[arg(long)]
    salt: Option<u64>,
}

pub fn learn(args: LearnArgs) -> Result<(), Failure> {
    let packets = recorded::read(&args.file, args.port).map_err(Failure::usage)?;
    let salt = args.salt.unwrap_or_else(|| {
        use std::hash::{BuildHasher, RandomState};
        RandomState::new().hash_one("salt")
    });
    let (profile, learned) = weir_load::learn::learn(&packets, salt)
        .map_err(|error| Failure::Usage(format!("{}: {error}", args.file.display())))?;
    eprintln!(
        "{} packets, {} messages, {} contexts, {} lines not understood",
        learned.packets, learned.messages, learned.contexts, learned.unread
    );
    print(profile.to_yaml().as_bytes())
}

#[derive(clap::Args)]
pub struct ReplayArgs {
    /// pcap file, raw packet file, or agent capture.
    file: PathBuf,
    /// Target address: udp://host:port, unixgram:///path, unix:///path, tcp://host:port.
    #[arg(long)]
    to: String,
    /// From a pcap file, only UDP packets to this port.
    #[arg(long)]
    port: Option<u16>,
    /// 1 as recorded, 2 twice as fast.
    #[arg(long, default_value_t = 1.0)]
    speed: f64,
    /// Send as fast as the target accepts.
    #[arg(long, conflicts_with = "speed")]
    all_out: bool,
    #[arg(long, default_value_t = 1)]
    rounds: u32,
    #[arg(long, value_enum)]
    framing: Option<FramingArg>,
}

pub fn replay(args: ReplayArgs) -> Result<(), Failure> {
    let target = Target::parse(&args.to).map_err(Failure::usage)?;
    if !(args.speed > 0.0 && args.speed.is_finite()) {
        return Err(Failure::Usage(format!(
            "--speed {}: must be above zero",
            args.speed
        )));
    }
    if args.rounds == 0 {
        return Err(Failure::Usage("--rounds 0: must be above zero".into()));
    }
    let packets = recorded::read(&args.file, args.port).map_err(Failure::usage)?;
    if packets.is_empty() {
        return Err(Failure::Usage(format!(
            "{}: holds no packet",
            args.file.display()
        )));
    }
    let options = Options {
        target,
        speed: (!args.all_out).then_some(args.speed),
        rounds: args.rounds,
        framing: args.framing.map(Into::into),
    };
    let done = weir_load::replay::replay(&packets, &options)?;
    print_line(&serde_json::json!({
        "target": options.target.to_string(), "packets": done.packets, "bytes": done.bytes,
        "elapsed_s": done.elapsed.as_secs_f64(), "blocked_s": done.blocked.as_secs_f64(),
        "latest_s": done.latest.as_secs_f64(), "kernel_drops": done.kernel_drops,
    }))
}
