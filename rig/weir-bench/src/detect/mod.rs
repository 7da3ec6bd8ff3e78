//! The regression detector: did replacing program A by program B change performance, by how much, and how sure are we?
//!
//! Running (`run`, `replicate`, `observe`, `process`), recording (`capture`), judging (`values`, `analysis`) and printing
//! (`report`) are separate: everything that is printed is recomputed from what was recorded. The statistics themselves
//! live in `weir-regress`, which knows neither files nor clocks.

mod analysis;
mod books;
mod capture;
mod cli;
mod delivered;
mod experiment;
mod goal;
mod history;
mod layer;
mod library;
mod micro;
mod observe;
mod ports;
mod practice;
mod process;
mod procfs;
mod profile;
mod record;
mod replicate;
mod report;
mod rig;
mod run;
mod running;
mod smp;
mod targets;
mod telemetry;
mod valgrind;
mod values;
mod waits;

pub use cli::{Command, dispatch};
