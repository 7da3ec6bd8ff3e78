//! One ingest worker: packets of its listeners to batches of closed buckets.
//!
//! What this crate never does: wait for anything but its sockets while packets flow; share anything with another worker.

mod counts;
mod ingest;
mod worker;

pub use counts::{IngestCounts, SampleDrop};
pub use ingest::{BadInput, Ingest, IngestSettings, Received};
pub use worker::{Command, EndSettings, ListenerSnapshot, Report, WorkerHandle, WorkerSnapshot, spawn};
