//! `weir-bench load learn`: a profile from recorded traffic.

use crate::common::print;
use crate::failure::Failure;
use std::path::PathBuf;
use weir_load::{learn, recorded};

#[derive(clap::Args)]
pub struct Args {
    /// pcap file, raw packet file, or agent capture.
    file: PathBuf,
    /// From a pcap file, only UDP packets to this port.
    #[arg(long)]
    port: Option<u16>,
    /// Seed of the word replacements; without it, a random number, so that the words cannot be guessed.
    #[arg(long)]
    salt: Option<u64>,
}

pub fn run(args: Args) -> Result<(), Failure> {
    let packets = recorded::read(&args.file, args.port).map_err(Failure::usage)?;
    let salt = args.salt.unwrap_or_else(|| {
        use std::hash::{BuildHasher, RandomState};
        RandomState::new().hash_one("salt")
    });
    let (profile, learned) = learn::learn(&packets, salt)
        .map_err(|error| Failure::Usage(format!("{}: {error}", args.file.display())))?;
    eprintln!(
        "{} packets, {} messages, {} contexts, {} lines not understood",
        learned.packets, learned.messages, learned.contexts, learned.unread
    );
    print(profile.to_yaml().as_bytes())
}
