//! `weir-bench floor`: not built yet; the command says so and fails.

use crate::failure::Failure;

#[derive(clap::Args)]
pub struct Args {}

pub fn run(_args: Args) -> Result<(), Failure> {
    Err(Failure::Runtime("floor: not built yet".into()))
}
