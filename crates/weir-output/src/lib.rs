//! Delivery: encoders, payload limits, retry, queues, one module per output.
//!
//! No output can delay or fail another.

pub mod json_lines;
pub mod settings;
