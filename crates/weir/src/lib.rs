//! The command line of weir, and its doctor. Everything else is in the crates below.

pub mod cli;
mod doctor;
