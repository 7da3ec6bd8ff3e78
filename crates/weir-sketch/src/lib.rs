//! Mergeable summaries of samples: the agent DDSketch, its conversion to exponential histograms, and a
//! HyperLogLog for sets that outgrew their exact bound.
//!
//! No I/O, no clock, no global state besides one table of constants. Merging in any order gives the same bins.

mod exponential;
pub mod hll;
mod key;
mod sketch;

pub use exponential::{BinBuckets, ExponentialHistogram, MAX_SCALE, MIN_SCALE, ZERO_THRESHOLD};
pub use key::{BIAS, GAMMA, KEY_MAX, LN_GAMMA, NORM_MIN, key, key_by_logarithm, lower};
pub use sketch::{BINS_MAX, Bin, Sketch};
