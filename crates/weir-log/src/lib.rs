//! Logs that a fleet's records are kept in, behind `weir_merge::Log`: files of one machine.
//!
//! A file ends where its last whole frame ends. What a process that died left behind it is moved aside by the next one that
//! writes, and counted. A commit is one frame, so its results, its snapshot and its offset are there together or not at all.

mod error;
mod file;
mod frames;
mod plan;

pub use error::Error;
pub use file::{Clock, FileLog, unix_milliseconds};
