//! One ingest worker: packets of its listeners to batches of closed buckets.
//!
//! What this crate never does: wait for anything but its sockets while packets flow; share anything with another worker.

mod counts;
mod ingest;
mod origin;
mod parking;
mod relay;
mod sampler;
mod senders;
mod timestamped;
mod worker;

pub use counts::{IngestCounts, SampleDrop};
pub use ingest::{BadInput, Ingest, IngestSettings, Received};
pub use origin::{Ask, Asked, OriginAnswer, OriginLink, OriginStats, Question};
pub use parking::ParkingCounts;
pub use relay::{BLOCK_BYTES, Relay, RelayBlock, RelayQueue, RelaySettings, RelayTarget};
pub use senders::SenderCounts;
pub use worker::{
    Command, EndSettings, ListenerSnapshot, RelayLinks, Report, RuleSnapshot, WorkerHandle, WorkerSnapshot,
    spawn,
};
