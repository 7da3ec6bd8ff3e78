//! The rig as a process.

mod columns;
mod detector;
mod floor;
mod load;
mod sink;
