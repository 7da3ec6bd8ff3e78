//! Apache Kafka as the log: a real broker, and the client library's mock for answers that a real one rarely gives. docs/fleet.md has the
//! numbered cases.

mod cases;
mod fleet;
mod guarded;
mod mock;
mod topics;
