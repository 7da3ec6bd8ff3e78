//! Delivery: encoders, payload limits, retry, queues, one module per output.
//!
//! No output can delay or fail another.

pub mod assemble;
pub mod compress;
pub mod datadog;
pub mod delivery;
pub mod http;
pub mod json_lines;
pub mod protobuf;
pub mod settings;
