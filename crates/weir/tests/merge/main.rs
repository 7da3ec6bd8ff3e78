//! The real `weir merge` over a log of files: what `docs/fleet.md` promises, by the numbers of its cases.

#[path = "../delivery/intake.rs"]
#[allow(dead_code)]
mod intake;
#[path = "../support/mod.rs"]
mod support;

mod fleet;
mod process;

mod backends;
mod cases;
mod settings;
