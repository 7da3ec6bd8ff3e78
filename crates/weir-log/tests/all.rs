//! Logs of a fleet: files of one machine, topics of a broker.

#[path = "../../weir-merge/tests/support/mod.rs"]
mod support;

mod damage;
mod file;
/// Apache Kafka as the log: a real broker, and the client library's mock for answers that a real one rarely gives. docs/fleet.md has the
/// numbered cases.
#[cfg(feature = "kafka")]
mod on_kafka {
    mod cases;
    mod fleet;
    mod guarded;
    mod mock;
    mod topics;
}
