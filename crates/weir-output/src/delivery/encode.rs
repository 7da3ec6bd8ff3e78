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

    /// The last batch has been encoded; [`Encode::finish`] follows. For outputs that say goodbye.
    fn end(&mut self, _out: &mut Encoded) {}

    /// The lineage of the state of an encoder: another encoder with the same text can continue it. Empty: it has no state.
    fn lineage(&self) -> String {
        String::new()
    }

    /// Whether the state is sums that every point repeats. What was delivered without being in the saved sums is missing in the next ones.
    fn adds_up(&self) -> bool {
        !self.lineage().is_empty()
    }

    /// Sets the limit of the state. Existing state stays; above the limit nothing new is accepted.
    fn limit_state(&mut self, _bytes_max: u64) {}

    /// The size of the state.
    fn state_bytes(&self) -> u64 {
        0
    }

    /// The encoder's part of the memory for waiting payloads.
    fn reserved_bytes(&self) -> u64 {
        0
    }

    /// Continues the state of another encoder of the same type and lineage.
    fn inherit(&mut self, _other: Box<dyn Any>) {}

    /// Called after the last batch, when the next process continues: writes data that waits for the next batch, and returns the state.
    /// Replaces [`Encode::end`] if there is a lineage.
    fn save(&mut self, _out: &mut Encoded) -> Vec<u8> {
        Vec::new()
    }

    /// Called between two buckets of a fleet: the part of the state of each partition, for the process that gets it next.
    fn save_partitions(&mut self) -> SavedPartitions {
        Vec::new()
    }

    /// Continues the state that another process saved, or the part of another partition. Before the first batch. An error: the bytes are
    /// not a state, and this begins without.
    fn restore(&mut self, _saved: &[u8], _of: SavedAt) -> Result<u64, NoState> {
        Ok(0)
    }
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
