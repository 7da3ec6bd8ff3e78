//! The agent's process: its workers, pipeline, outputs and reloads ([`run`]), what survives its end ([`state`], [`life`]), its successor
//! ([`hand_over`]), and its listeners of columns ([`columns`]).
//!
//! It knows nothing of the meaning of metrics; the crates below do.

// `life` and the files of the state deny these: the rest of the crate is their world.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

pub mod budget;
pub mod columns;
pub mod hand_over;
pub mod life;
pub mod run;
pub mod signals;
pub mod state;
