//! Logs that a fleet's records are kept in, behind `weir_merge::Log`: files of one machine, and, with the feature `kafka`,
//! topics of Apache Kafka. [`AnyLog::open`] opens either from a [`Connection`].
//!
//! A file ends where its last whole frame ends. What a process that died left behind it is moved aside by the next one that
//! writes, and counted. A commit is one frame, so its results, its snapshot and its offset are there together or not at all.

mod any;
mod connection;
mod error;
mod examine;
mod file;
mod frames;
#[cfg(feature = "kafka")]
mod kafka;
mod plan;

pub use any::AnyLog;
pub use connection::{Brokers, Connection, Mechanism, Sasl, Tls};
pub use error::Error;
pub use examine::{Obstacle, Seen, examine};
pub use file::{Clock, FileLog, unix_milliseconds};
#[cfg(feature = "kafka")]
pub use kafka::KafkaLog;
