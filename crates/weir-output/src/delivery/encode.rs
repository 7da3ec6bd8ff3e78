//! The interface of encoders, which turn batches into request bodies.

use std::any::Any;

use weir_aggregate::Batch;

use super::books::{self, Class, Dropped, Items, Reason};
use crate::prometheus::{NoState, SavedAt, SavedPartitions};

/// Turns batches into request bodies. Runs on a blocking thread, one call at a time.
pub trait Encode: Any + Send {
    /// Counts what [`Encode::encode`] takes responsibility for in a batch: all of it ends up in payloads or drop reasons.
    fn counter(&self) -> Counter;

    /// Encodes one batch. Payloads that are full leave; the last may stay open for the next batch.
    fn encode(&mut self, batch: &Batch, out: &mut Encoded);

    /// Ends open payloads.
    fn finish(&mut self, out: &mut Encoded);

    /// The content of open payloads.
    fn open(&self) -> Items;

    /// The encoder's part of the memory for waiting payloads.
    fn reserved_bytes(&self) -> u64 {
        0
    }

    /// The state that outlives a batch; `None`: there is none.
    fn state(&mut self) -> Option<&mut dyn EncoderState> {
        None
    }
}

/// State of an encoder that the next output or process continues.
pub trait EncoderState {
    /// The lineage: another encoder with the same text can continue the state.
    fn lineage(&self) -> String;

    /// Whether the state is sums that every point repeats. What was delivered without being in the saved sums is missing in the next ones.
    fn adds_up(&self) -> bool {
        true
    }

    /// Sets the limit of the state. Existing state stays; above the limit nothing new is accepted.
    fn limit(&mut self, bytes_max: u64);

    fn bytes(&self) -> u64;

    /// Continues the state of another encoder of the same type and lineage.
    fn inherit(&mut self, other: Box<dyn Any>);

    /// The last batch has been encoded and nobody continues; [`Encode::finish`] follows. For outputs that say goodbye.
    fn end(&mut self, out: &mut Encoded);

    /// Called after the last batch, when the next process continues: writes data that waits for the next batch, and returns the state.
    /// Replaces [`EncoderState::end`].
    fn save(&mut self, out: &mut Encoded) -> Vec<u8>;

    /// Called between two buckets of a fleet: the part of the state of each partition, for the process that gets it next.
    fn save_partitions(&mut self) -> SavedPartitions {
        Vec::new()
    }

    /// Continues the state that another process saved, or the part of another partition. Before the first batch. An error: the bytes are
    /// not a state, and this begins without.
    fn restore(&mut self, saved: &[u8], of: SavedAt) -> Result<u64, NoState>;
}

/// See [`Encode::counter`].
pub type Counter = Box<dyn Fn(&Batch) -> Items + Send + Sync>;

/// The result of encoding one batch.
#[derive(Debug, Default)]
pub struct Encoded {
    pub payloads: Vec<Draft>,
    pub dropped: Dropped,
    /// Points that no batch brought and that are in payloads all the same: repetitions, marks. They count as received.
    pub made: Items,
}

/// A payload before it is numbered and dated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Draft {
    pub route: u16,
    pub class: Class,
    pub count: u32,
    pub body: Vec<u8>,
}

impl Encoded {
    pub fn dropped(&mut self, reason: Reason, class: Class, n: u64) {
        books::add_dropped(&mut self.dropped, reason, Items::of(class, n));
    }

    /// The output has no form for events and service checks.
    pub fn points_only(&mut self, batch: &Batch) {
        self.dropped(Reason::Unsupported, Class::Events, batch.events.len() as u64);
        self.dropped(Reason::Unsupported, Class::Checks, batch.checks.len() as u64);
    }
}
