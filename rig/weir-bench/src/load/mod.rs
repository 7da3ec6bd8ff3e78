//! `weir-bench load ...`: one module per verb.

mod calibrate;
mod common;
mod dump;
mod files;
mod inspect;
mod recorded;
mod run;
mod search;

use crate::failure::Failure;
use clap::Subcommand;

#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Send a profile to a target; prints one JSON line.
    Run(run::Args),
    /// Print the shape of a profile: lengths, tags, contexts, messages per packet.
    Inspect(inspect::Args),
    /// Print the messages of a profile, or their digest.
    Dump(dump::Args),
    /// Measure this machine's highest rate, with a built-in null receiver.
    Calibrate(calibrate::Args),
    /// Find the highest rate without loss at a target.
    Search(search::Args),
    /// Make a profile from recorded traffic; replaces words by others of the same length.
    Learn(recorded::LearnArgs),
    /// Send recorded packets again.
    Replay(recorded::ReplayArgs),
    /// Write log files that grow and rotate.
    Files(files::Args),
    /// Make a tree of files and rename them.
    Tree(files::TreeArgs),
    /// List the named profiles.
    Profiles,
    /// Print a profile as YAML, as a start for your own.
    Show(inspect::ShowArgs),
}

pub fn run(args: Args) -> Result<(), Failure> {
    match args.verb {
        Verb::Run(args) => run::run(args),
        Verb::Inspect(args) => inspect::run(args),
        Verb::Dump(args) => dump::run(args),
        Verb::Calibrate(args) => calibrate::run(args),
        Verb::Search(args) => search::run(args),
        Verb::Learn(args) => recorded::learn(args),
        Verb::Replay(args) => recorded::replay(args),
        Verb::Files(args) => files::run(args),
        Verb::Tree(args) => files::tree(args),
        Verb::Profiles => inspect::profiles(),
        Verb::Show(args) => inspect::show(args),
    }
}
