//! Owners and their log.

mod merge;
mod simulation;
mod support;
