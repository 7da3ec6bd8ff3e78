//! Logs for a fleet's records, behind `weir_merge::Log`: files of one machine, and, with the feature `kafka`, topics of Apache Kafka.
//! [`AnyLog::open`] opens either from a [`Connection`].
//!
//! A file ends with its last whole frame. The next process that writes moves the remains of a killed process aside. Damage before the last
//! frame is skipped and counted. A commit is one frame, so its results, snapshot and offset are stored together or not at all.

mod any;
mod checked;
mod connection;
mod error;
mod examine;
mod file;
mod frames;
#[cfg(feature = "kafka")]
mod kafka;
pub mod plan;

pub use any::AnyLog;
pub use connection::{Brokers, Connection, Mechanism, Properties, Sasl, Tls};
pub use error::Error;
pub use examine::{LogFacts, Obstacle, examine};
pub use file::{Clock, FileLog, unix_milliseconds};
pub use frames::Damage;
#[cfg(feature = "kafka")]
pub use kafka::KafkaLog;
