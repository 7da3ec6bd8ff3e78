//! `weir run`: the agent itself.

use crate::config::{Inputs, Loaded};
use crate::failure::Failure;

/// Runs until a signal ends it. `inputs` is kept for reloads.
pub fn run(_loaded: Loaded, _inputs: Inputs) -> Result<(), Failure> {
    Err(Failure::runtime("the receiving side is not wired up yet"))
}
