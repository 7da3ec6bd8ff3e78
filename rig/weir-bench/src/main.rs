//! `weir-bench`: the measuring rig. This file only dispatches; each command has its own module.

mod common;
mod detect;
mod failure;
mod floor;
mod load;
mod sink;

use clap::{Parser, Subcommand};
use failure::Failure;
use std::process::ExitCode;

/// Load, sinks and limits for any StatsD or DogStatsD agent.
#[derive(Parser)]
#[command(name = "weir-bench", version, max_term_width = 110)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Generate load and record exactly what was sent: run, inspect, dump, calibrate, learn, replay, search.
    Load(Box<load::Args>),
    /// Receive an agent's output and compare it with the manifest of a load.
    Sink(Box<sink::Args>),
    /// Measure the cheapest possible receiver on this machine.
    Floor(floor::Args),
    #[command(flatten)]
    Detect(detect::Command),
}

fn dispatch(command: Command) -> Result<(), Failure> {
    match command {
        Command::Load(args) => load::run(*args),
        Command::Sink(args) => sink::run(*args),
        Command::Floor(args) => floor::run(args),
        Command::Detect(_) => unreachable!("main has exit codes of its own for these"),
    }
}

fn main() -> ExitCode {
    let command = match Cli::parse().command {
        // The detector has more exit codes than success and failure.
        Command::Detect(command) => return detect::dispatch(command, std::env::args().collect()),
        command => command,
    };
    match dispatch(command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("weir-bench: {failure}");
            failure.exit_code()
        }
    }
}
