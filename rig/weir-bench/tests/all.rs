//! The rig as a process.

mod detector;
mod floor;
mod load;
mod sink;
