//! `weir-bench load calibrate`: proof that the generator is not the bottleneck.

use super::common::{ProfileArgs, TransportArg, scratch, write};
use crate::common::{cache, check_cpus, print_line};
use crate::failure::Failure;
use std::path::PathBuf;
use std::time::Duration;
use weir_load::calibrate;
use weir_units::parse_duration;

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    profile: ProfileArgs,
    /// Transport instead of the profile's.
    #[arg(long, value_enum)]
    transport: Option<TransportArg>,
    #[arg(long, default_value = "5s", value_parser = parse_duration)]
    duration: Duration,
    /// Processors of sender and receiver: 0,1.
    #[arg(long, value_delimiter = ',')]
    cpu: Vec<usize>,
    /// Folder for results that `load run` reads; none: this user's cache folder.
    #[arg(long)]
    store: Option<PathBuf>,
    /// Pass UDP datagrams of one exact size to the kernel as one (UDP_SEGMENT).
    #[arg(long)]
    gso: bool,
    /// Print the result without storing it.
    #[arg(long)]
    no_store: bool,
}

/// The folder of calibrations unless one is given.
pub fn default_store() -> Option<PathBuf> {
    Some(cache()?.join("calibration"))
}

pub fn run(args: Args) -> Result<(), Failure> {
    let load = args.profile.load(args.transport.map(Into::into))?;
    let cpus = match args.cpu[..] {
        [] => None,
        [sender, receiver] => Some((sender, receiver)),
        _ => {
            return Err(Failure::Usage(
                "--cpu: two processors, the sender's and the receiver's, as in --cpu 0,1".into(),
            ));
        }
    };
    check_cpus(&args.cpu)?;
    if args.duration.is_zero() {
        return Err(Failure::Usage("--duration: must be above zero".into()));
    }
    let folder = scratch()?;
    let (calibration, _) = calibrate::calibrate(&load, folder.path(), args.duration, cpus, args.gso)?;
    drop(folder);
    let text = serde_json::to_string(&calibration).map_err(Failure::runtime)?;
    print_line(&calibration)?;
    if !args.no_store {
        let store = args
            .store
            .or_else(default_store)
            .ok_or_else(|| Failure::Usage("no cache folder is known: give --store or --no-store".into()))?;
        let file = calibrate::store(&store, &load.name, load.transport);
        if let Some(parent) = file.parent() {
            std::fs::create_dir_all(parent)
                .map_err(|error| Failure::Runtime(format!("{}: {error}", parent.display())))?;
        }
        write(&file, text.as_bytes())?;
        eprintln!("kept in {}", file.display());
    }
    Ok(())
}
