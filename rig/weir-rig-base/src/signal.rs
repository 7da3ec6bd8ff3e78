//! Signals that end a program: waited for, or noted in a flag.

pub use crate::sys::{block_termination, catch_interrupts, interrupted, wait_termination};
