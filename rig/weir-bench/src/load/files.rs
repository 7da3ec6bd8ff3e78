//! `weir-bench load files` and `load tree`: load for programs that watch files.

use super::common::ProfileArgs;
use crate::common::print_line;
use crate::failure::Failure;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use weir_load::files::{LogFiles, Tree, grow_tree, write_logs};
use weir_load::profile::Throttle;
use weir_load::units::{Bytes, RateUnit};
use weir_units::parse_duration;

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    profile: ProfileArgs,
    /// Folder of the files `load-0.log`, `load-1.log`, ...
    #[arg(long)]
    folder: PathBuf,
    #[arg(long, default_value_t = 4)]
    files: u32,
    /// Size at which a file is renamed to `.1` and started again.
    #[arg(long, default_value = "20 MB", value_parser = |text: &str| text.parse::<Bytes>())]
    rotate_at: Bytes,
    /// Rotated files to keep per file.
    #[arg(long, default_value_t = 4)]
    keep: u32,
    #[arg(long, value_parser = parse_duration)]
    duration: Duration,
    /// Write counts and digest of the written data to this file.
    #[arg(long)]
    manifest: Option<PathBuf>,
}

/// Writes a profile of lines; its rate is that of each file.
pub fn run(args: Args) -> Result<(), Failure> {
    let load = args.profile.load(None)?;
    let rate = match load.profile.rate.filter(|_| load.profile.rate_unit().is_some()) {
        None if load.profile.rate.is_none() && load.profile.throttle != Throttle::AllOut => {
            return Err(Failure::Usage(format!(
                "profile {:?} has no rate; give --rate or --all-out",
                load.name
            )));
        }
        None => None,
        Some(rate) if rate.unit == RateUnit::Bytes => Some(rate.per_second),
        Some(_) => {
            return Err(Failure::Usage(
                "--rate: files grow in bytes, as in --rate \"10 MB/s\", or --all-out".into(),
            ));
        }
    };
    if !(1..=10_000).contains(&args.files) {
        return Err(Failure::Usage(format!(
            "--files {}: allowed is 1 to 10000",
            args.files
        )));
    }
    let plan = LogFiles {
        folder: args.folder,
        files: args.files,
        rate,
        rotate_at: args.rotate_at.0,
        keep: args.keep,
        duration: args.duration,
        bytes: None,
    };
    let done = write_logs(&load, &plan)
        .map_err(|error| Failure::Runtime(format!("{}: {error}", plan.folder.display())))?;
    if let Some(path) = &args.manifest {
        // Without a rate nothing is due, so nothing is late.
        let due = done.scheduled.unwrap_or(done.bytes);
        write_manifest(
            path,
            &FileLoad {
                began: done.began,
                elapsed: done.elapsed,
                messages: done.lines,
                bytes: done.bytes,
                digest: done.digest,
                scheduled: due,
                achieved: done.bytes.min(due),
            },
        )?;
    }
    print_line(&serde_json::json!({
        "profile": load.name, "files": done.files, "bytes": done.bytes, "lines": done.lines,
        "rotations": done.rotations, "elapsed_s": done.elapsed.as_secs_f64(),
    }))
}

/// The facts in the manifest of a load on files.
struct FileLoad {
    began: SystemTime,
    elapsed: Duration,
    messages: u64,
    bytes: u64,
    digest: u64,
    scheduled: u64,
    achieved: u64,
}

/// The fields that `weir-bench compare` reads of any load.
fn write_manifest(path: &Path, done: &FileLoad) -> Result<(), Failure> {
    let began = done.began.duration_since(UNIX_EPOCH).unwrap_or_default();
    let late = (done.achieved as f64) < 0.99 * done.scheduled as f64;
    let manifest = serde_json::json!({
        "version": 1,
        "started_unix_ns": began.as_nanos() as u64,
        "totals": {"messages": done.messages, "packets": done.messages, "bytes": done.bytes},
        "digest": format!("xxh3:{:016x}", done.digest),
        "sending": {
            "elapsed_s": done.elapsed.as_secs_f64(),
            "scheduled": done.scheduled,
            "achieved": done.achieved,
            "refused_messages": 0,
            // Files do not push back: a late writer has a slow disk or too little CPU.
            "verdict": if late { "generator-limited" } else { "on-schedule" },
        },
    });
    fs::write(path, manifest.to_string())
        .map_err(|error| Failure::Runtime(format!("{}: {error}", path.display())))
}

#[derive(clap::Args)]
pub struct TreeArgs {
    /// The root; created if missing.
    #[arg(long)]
    folder: PathBuf,
    #[arg(long, default_value_t = 4)]
    depth: u32,
    /// Folders per folder.
    #[arg(long, default_value_t = 4)]
    width: u32,
    /// Files per folder.
    #[arg(long, default_value_t = 10)]
    files: u32,
    #[arg(long, default_value = "1 kB", value_parser = |text: &str| text.parse::<Bytes>())]
    file_size: Bytes,
    /// Renames per second.
    #[arg(long, default_value_t = 10.0)]
    renames: f64,
    #[arg(long, value_parser = parse_duration)]
    duration: Duration,
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Write counts and digest of the work to this file.
    #[arg(long)]
    manifest: Option<PathBuf>,
}

pub fn tree(args: TreeArgs) -> Result<(), Failure> {
    if args.depth == 0 || !(args.renames >= 0.0 && args.renames.is_finite()) {
        return Err(Failure::Usage(format!(
            "--depth {} --renames {}: at least 1, and zero or more",
            args.depth, args.renames
        )));
    }
    let folders: f64 = (0..args.depth)
        .map(|d| f64::from(args.width).powi(d as i32))
        .sum();
    if folders * f64::from(args.files) > 1e6 {
        return Err(Failure::Usage(format!(
            "--depth {} --width {} --files {}: would be {:.0} files, the most is a million",
            args.depth,
            args.width,
            args.files,
            folders * f64::from(args.files)
        )));
    }
    let tree = Tree {
        folder: args.folder,
        depth: args.depth,
        width: args.width,
        files: args.files,
        file_bytes: args.file_size.0,
        renames_per_second: args.renames,
        duration: args.duration,
        seed: args.seed,
    };
    let grew =
        grow_tree(&tree).map_err(|error| Failure::Runtime(format!("{}: {error}", tree.folder.display())))?;
    if let Some(path) = &args.manifest {
        write_manifest(
            path,
            &FileLoad {
                began: grew.began,
                elapsed: grew.elapsed,
                messages: grew.renames,
                bytes: 0,
                digest: grew.digest,
                scheduled: grew.renames,
                achieved: grew.renames,
            },
        )?;
    }
    print_line(&serde_json::json!({"folders": grew.folders, "files": grew.files, "renames": grew.renames}))
}
