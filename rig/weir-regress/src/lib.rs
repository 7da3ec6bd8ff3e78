//! The statistics of the regression detector: pure functions of measured numbers.
//!
//! This crate never reads a file, a clock or an environment variable. Randomness takes a seed. The unit of analysis is one number per run
//! of a program and never a one-second sample: pooling samples from the same process gives intervals that exclude zero half of the time
//! when nothing changed (see `tests/simulation.rs`).

pub mod calibration;
pub mod change_point;
pub mod describe;
pub mod estimate;
pub mod plan;
pub mod rng;
pub mod special;
pub mod verdict;

pub use estimate::{Estimate, EstimateError, Method, Scale};
pub use verdict::{Direction, Rule, Verdict};
