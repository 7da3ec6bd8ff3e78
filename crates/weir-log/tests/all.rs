//! Logs of a fleet: files of one machine, topics of a broker.

#[path = "../../weir-merge/tests/support/mod.rs"]
mod support;

mod damage;
mod file;
#[cfg(feature = "kafka")]
mod on_kafka;
