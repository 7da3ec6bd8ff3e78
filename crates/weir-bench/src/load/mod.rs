//! `weir-bench load ...`: one module per verb.

mod common;
mod inspect;
mod run;

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
    /// List the named profiles.
    Profiles,
    /// Print a profile as YAML, as a start for one's own.
    Show(inspect::ShowArgs),
}

pub fn run(args: Args) -> Result<(), Failure> {
    match args.verb {
        Verb::Run(args) => run::run(args),
        Verb::Profiles => inspect::profiles(),
        Verb::Show(args) => inspect::show(args),
    }
}
