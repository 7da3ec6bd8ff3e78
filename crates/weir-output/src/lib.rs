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

use std::io;

use weir_units::{Address, AddressError};

use crate::http::{ClientError, HeaderError};

pub use counters::{OutputCounter, ScrapeCounter};

/// Why an output cannot be started. The text names the setting or the path.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error(transparent)]
    Header(#[from] HeaderError),
    #[error("path: {0}")]
    Path(#[source] io::Error),
    #[error("address: {0}")]
    Address(#[from] AddressError),
    #[error("address: {0} is neither TCP nor UDP")]
    NoInternetAddress(Address),
    #[error("the log cannot be opened: {0}")]
    Log(#[from] weir_log::Error),
    #[error("format: the defaults of lines cannot be read, which is a bug in weir")]
    Lines,
    /// The disk queue cannot be opened.
    #[error(transparent)]
    Queue(#[from] io::Error),
}
