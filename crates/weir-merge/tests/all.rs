//! Owners and their log.

mod merge;
mod simulation;
mod snapshots;
mod support;
