//! Payloads of columns: what comes with them, and their fate.

use weir_columns::decode::{Decoded, SeriesFault};

use crate::counts::{RefusalReason, SampleDrop, SeriesRejection};
use crate::ingest::latest_timestamp;
use crate::numbers::RequestNumber;

/// A payload for a worker.
pub struct ColumnPayload {
    pub columns: Decoded,
    /// Index in `IngestSettings::listeners`.
    pub listener: usize,
    /// The process that sent it, as the kernel says; 0 where it names none.
    pub pid: i32,
    /// The sender as it names itself, in the form of the section `c:` of a message.
    pub local_data: Option<Box<str>>,
    /// The same, in the form of the section `e:`.
    pub external_data: Option<Box<str>>,
    /// By which it is added once. `None`: the client gave it none.
    pub number: Option<RequestNumber>,
    /// Bytes as they were sent, for limits on rates.
    pub bytes: usize,
    /// Monotonic nanoseconds of its arrival.
    pub received: u64,
    /// Called with its fate.
    pub done: Box<dyn FnOnce(ColumnFate) + Send>,
}

/// The fate of a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ColumnFate {
    /// All of it is in the books. `limited`: samples without a context of their own, because of a limit on contexts or memory.
    Applied { limited: u64 },
    /// The same, for one with a number: it is safe when a saved checkpoint has this payload of the worker.
    Added { worker: u16, payload: u64, limited: u64 },
    /// Nothing of it was read: its number was added before, or given up. The same about that.
    Duplicate { worker: u16, payload: u64 },
    /// Nothing of it was read: too many numbers before it are missing.
    TooFar,
    /// Nothing of it was read: the sender may not send.
    Refused(RefusalReason),
    /// Nothing of it was read: the sender is above its rate.
    RateLimited,
    /// Nothing of it was read: messages are only relayed here.
    NotAggregated,
    /// Nothing of it was read, because the worker ends.
    Ended,
}

/// Whether a timestamp of an event or a service check can be one: `now` is the agent's time in Unix seconds.
pub fn is_plausible(timestamp: i64, now: i64) -> bool {
    (0..=latest_timestamp(now)).contains(&timestamp)
}

/// Why no bucket and no output takes a point, whatever its series: `now` is the agent's time in Unix seconds.
pub fn point_fault(timestamp: i64, is_finite: bool, now: i64) -> Option<SampleDrop> {
    if !is_finite {
        return Some(SampleDrop::NonFinite);
    }
    if timestamp <= 0 {
        return Some(SampleDrop::BadTimestamp);
    }
    (timestamp > latest_timestamp(now)).then_some(SampleDrop::FutureTimestamp)
}

impl From<SeriesFault> for SeriesRejection {
    fn from(fault: SeriesFault) -> SeriesRejection {
        match fault {
            SeriesFault::BadName => SeriesRejection::BadName,
            SeriesFault::TooManyTags => SeriesRejection::TooManyTags,
            SeriesFault::BadInterval => SeriesRejection::BadInterval,
            SeriesFault::BadSketch => SeriesRejection::BadSketch,
        }
    }
}
