//! The life of the agent across processes: what a start continues, what a running process saves, and what an end leaves.
//!
//! Nothing here reads a clock, opens a file or a socket, starts a thread or draws a random number: time is an argument, and files are
//! behind [`crate::state::disk::Disk`]. So [`simulation`] can run the same code through thousands of lives from a seed.

#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

pub mod fixes;
mod resume;
#[cfg(test)]
mod simulation;

pub use resume::{LifeSettings, Resumed, StateSaver};
