//! A process and its operating system: the files of its configuration, facts about the machine, its rights, its memory, its log, and system
//! calls.
//!
//! It knows no metric.

pub mod config;
pub mod disk;
pub mod failure;
pub mod logging;
pub mod notify;
pub mod process;
pub mod sandbox;
pub mod sys;
