//! The detector with known truth.

mod published_report;
mod simulation;
