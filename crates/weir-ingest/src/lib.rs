//! One ingest worker: packets of its listeners to batches of closed buckets.
//!
//! What this crate never does: wait for anything but its sockets while packets flow; share anything with another worker.

mod admission;
mod counts;
mod ingest;
mod origin;
mod origin_rates;
mod parking;
mod relay;
mod sampler;
mod senders;
mod timestamped;
mod worker;

pub use admission::{AdmissionList, AdmissionSettings, RefusedSender};
pub use counts::{IngestCounts, Refusal, SampleDrop};
pub use ingest::{BadInput, Hurry, Ingest, IngestSettings, Received};
pub use origin::{Ask, Asked, OriginAnswer, OriginLink, OriginStats, ProcessFound, Question};
pub use origin_rates::LimitedOrigin;
pub use parking::ParkingCounts;
pub use relay::{BLOCK_BYTES, Relay, RelayBlock, RelayQueue, RelaySettings, RelayTarget};
pub use senders::SenderCounts;
pub use worker::{
    Command, ListenerSnapshot, RelayChange, RelayLink, RelayLinks, Report, RuleSnapshot, TLS_FAULT,
    WorkerHandle, WorkerSettings, WorkerSnapshot, spawn,
};
