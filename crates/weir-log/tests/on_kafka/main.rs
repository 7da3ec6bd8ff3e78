//! Apache Kafka as the log: a real broker, and the mock of the client library for answers that a real one gives seldom. The numbered
//! cases are those of docs/fleet.md.

#[path = "../../../weir-merge/tests/support/mod.rs"]
mod support;

mod cases;
mod fleet;
mod guarded;
mod mock;
mod topics;
