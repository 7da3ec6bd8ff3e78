//! Delivery: encoders, payload limits, retry, queues, one module per output.
//!
//! No output can delay or fail another.

pub mod assemble;
mod claims;
pub mod compress;
mod counters;
pub mod datadog;
mod datagrams;
pub mod delivery;
mod error;
pub mod file;
pub mod graphite;
pub mod http;
pub mod influx;
pub mod json_lines;
pub mod kafka;
mod names;
pub mod otlp;
mod preview;
pub mod probe;
pub mod prometheus;
pub mod protobuf;
pub mod relay;
pub mod remote_write;
pub mod settings;
pub mod stdout;
mod sums;
mod tcp;
mod text_lines;
mod timeline;

pub use counters::{OutputCounter, ScrapeCounter};
pub use error::StartError;
