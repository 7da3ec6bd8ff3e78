//! Payloads of columns: what comes with them, and their fate.

use weir_columns::decode::Decoded;

use crate::counts::RefusalReason;
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
    /// All of it is in the books.
    Applied,
    /// The same, for one with a number: it is safe when a saved checkpoint has this payload of the worker.
    Added { worker: u16, payload: u64 },
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
