//! Owners and their log.

mod format;
mod merge;
mod simulation;
mod snapshots;
mod support;
