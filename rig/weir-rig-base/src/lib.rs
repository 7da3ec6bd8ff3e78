//! The base of the rig: addresses, clocks, counters of the processor, system calls, the table of UDP sockets, an HTTP client and a parser of Prometheus text. It knows
//! nothing of loads, sinks or comparisons.

pub mod address;
pub mod clock;
pub mod counter;
pub mod http;
pub mod process;
pub mod prometheus;
pub mod socket;
mod sys;
pub mod udp;

/// Termination signals: waited for, or recorded in a flag.
pub mod signal {
    pub use crate::sys::{block_termination, catch_interrupts, interrupted, wait_termination};
}
