//! The agent's process: its workers, pipeline, outputs and reloads ([`run`]), what survives its end ([`state`], [`life`]), its successor
//! ([`hand_over`]), and its listeners of columns ([`columns`]).
//!
//! It knows nothing of the meaning of metrics; the crates below do.

// Clocks, files, sockets, threads and randomness are given: `clippy.toml` names them. A file that takes them from the system says why.
#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]
#![cfg_attr(test, allow(clippy::disallowed_methods, clippy::disallowed_types))]

pub mod budget;
pub mod columns;
pub mod hand_over;
pub mod life;
pub mod run;
pub mod signals;
pub mod state;
