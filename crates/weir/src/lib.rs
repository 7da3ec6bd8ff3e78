//! The agent's process: configuration, wiring, signals, admin HTTP, command line and exit codes.
//!
//! It knows nothing of the meaning of metrics; the other crates do.

// `life` and the files of the state deny these: the rest of the crate is their world.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

pub mod admin;
pub mod budget;
pub mod capture_file;
pub mod cli;
pub mod columns;
pub mod config;
pub mod convert;
mod doctor;
pub mod failure;
mod hand_over;
pub mod history;
mod life;
pub mod logging;
mod notify;
pub mod process;
mod profile;
pub mod run;
pub mod sandbox;
pub mod signals;
mod state;
pub mod streams;
mod sys;
pub mod tap;
pub mod version;
