//! Delivery: encoders, payload limits, retry, queues, one module per output.
//!
//! No output can delay or fail another.

pub mod settings;
