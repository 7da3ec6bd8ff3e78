//! Owners and their log.

// A packer for each thread of the tests.
#![allow(clippy::disallowed_macros)]

mod follower;
mod format;
mod merge;
mod simulation;
mod snapshots;
mod support;
