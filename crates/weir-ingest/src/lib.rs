//! One ingest worker: packets of its listeners to batches of closed buckets.
//!
//! While packets flow, this crate never waits for anything but its sockets. It never shares anything with another worker.

mod admission;
mod columns;
mod counts;
mod gate;
mod hand_over;
mod ingest;
mod numbers;
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
pub use columns::{ColumnFate, ColumnPayload, is_plausible, point_fault};
pub use counts::{
    ColumnCounter, IngestCounter, IngestCounts, NumberCounter, ParkingCounter, RefusalReason, SampleDrop,
    SenderCounter, SeriesRejection, SlowLine, WorkerCounter,
};
pub use ingest::{BadInput, Ingest, IngestSettings, ListenerSettings, Received, WaitLimit, metric_fault};
pub use numbers::{
    AddedNumber, CLIENT_BYTES, CLIENT_EXPIRY, KnownClient, NUMBERS_UNDER_WAY, NotedBucket, NumberLink,
    RequestNumber, worker_of,
};
pub use origin::{
    LookupRequest, OriginAnswer, OriginLink, OriginStats, ProcessContainer, Question, SendRequest,
};
pub use origin_rates::LimitedOrigin;
pub use progress::{Progress, ProgressGuard};
pub use relay::{BLOCK_BYTES, Relay, RelayBlock, RelayQueue, RelaySettings, RelayTarget};
pub use saved::{Pieces, PutPiece, Restored, SavedBucket, SavedSeries, timestamped_pieces};
pub use tap::{PacketOutcome, PacketSampler, TapBlock, TapPush, TapSettings, TappedPacket};
pub use worker::{
    AT_THE_END, CheckpointLink, CheckpointPart, Command, CommandSender, ContextSnapshot, Core, Freeze,
    ListenerSnapshot, PutState, Readings, RelayChange, RelayLink, RelayLinks, Report, RuleSnapshot,
    SenderSnapshot, Sources, TLS_ERROR, WorkerBytes, WorkerHandle, WorkerSettings, WorkerSnapshot,
    WorkerTally, spawn,
};
