//! What every part of the rig stands on: addresses, clocks, system calls, one HTTP client and one reader of Prometheus text.
//! It knows nothing of loads, sinks or comparisons.

pub mod address;
pub mod clock;
pub mod cpu;
pub mod http;
pub mod process;
pub mod prometheus;
pub mod signal;
pub mod socket;
mod sys;
