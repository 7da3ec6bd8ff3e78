//! One ingest worker: packets of its listeners to batches of closed buckets.
//!
//! While packets flow, this crate never waits for anything but its sockets. It never shares anything with another worker.

mod admission;
mod counts;
mod gate;
mod hand_over;
mod ingest;
mod origin;
mod origin_rates;
mod parking;
mod progress;
mod relay;
mod sampler;
mod saved;
mod senders;
mod tap;
mod timestamped;
mod worker;

pub use admission::{AdmissionList, AdmissionSettings, RefusedSender};
pub use counts::{
    IngestCounter, IngestCounts, ParkingCounter, Refusal, SampleDrop, SenderCounter, WorkerCounter,
};
pub use ingest::{BadInput, Hurry, Ingest, IngestSettings, ListenerSettings, Received};
pub use origin::{Ask, Asked, OriginAnswer, OriginLink, OriginStats, ProcessFound, Question};
pub use origin_rates::LimitedOrigin;
pub use progress::Progress;
pub use relay::{BLOCK_BYTES, Relay, RelayBlock, RelayQueue, RelaySettings, RelayTarget};
pub use saved::{Pieces, PutPiece, Restored, SavedBucket, SavedSeries};
pub use tap::{Fate, TapBlock, TapPush, TapSettings, TappedPacket};
pub use worker::{
    CheckpointLink, Command, CommandSender, Freeze, ListenerSnapshot, Piece, RelayChange, RelayLink,
    RelayLinks, Report, RuleSnapshot, Sources, TLS_ERROR, WorkerHandle, WorkerSettings, WorkerSnapshot,
    spawn,
};
