//! The real `weir merge` over a log of files: what `docs/fleet.md` promises, by the numbers of its cases.

mod backends;
mod cases;
mod faults;
pub mod fleet;
mod owners;
pub mod process;
mod tools;
