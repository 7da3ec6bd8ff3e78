//! Termination signals: waited for, or recorded in a flag.

pub use crate::sys::{block_termination, catch_interrupts, interrupted, wait_termination};
