//! The books of an output. Points, events and checks are never added together.

use std::collections::BTreeMap;
use std::ops::{AddAssign, SubAssign};
use std::time::Duration;

use serde::Serialize;
use weir_aggregate::Batch;
use weir_counters::Significance::{Normal, Problem};
use weir_counters::{Counts, counters};

use crate::counters::{DROPPED, OutputCounter};

use super::queue::{PointsAtRisk, Queue, QueueSizes};
use super::status::LastError;
use super::transport::Payload;

/// Seconds for which a refusal is shown although later payloads are delivered.
const REFUSAL_SHOWN: i64 = 60;

/// The content of a payload, one kind each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    Points,
    Events,
    Checks,
}

/// Numbers of points, events and service checks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Items {
    pub points: u64,
    pub events: u64,
    pub checks: u64,
}

impl Items {
    pub fn of(class: Class, n: u64) -> Self {
        let mut items = Self::default();
        *items.field(class) = n;
        items
    }

    /// Of a batch whose series become so many points.
    pub fn of_batch(batch: &Batch, points: u64) -> Self {
        Items {
            points,
            events: batch.events.len() as u64,
            checks: batch.checks.len() as u64,
        }
    }

    pub fn is_zero(&self) -> bool {
        *self == Self::default()
    }

    /// Whether no count exceeds that in `other`.
    pub fn is_within(&self, other: Items) -> bool {
        self.points <= other.points && self.events <= other.events && self.checks <= other.checks
    }

    fn field(&mut self, class: Class) -> &mut u64 {
        match class {
            Class::Points => &mut self.points,
            Class::Events => &mut self.events,
            Class::Checks => &mut self.checks,
        }
    }
}

impl AddAssign for Items {
    fn add_assign(&mut self, other: Self) {
        self.points += other.points;
        self.events += other.events;
        self.checks += other.checks;
    }
}

impl std::ops::Add for Items {
    type Output = Self;
    fn add(mut self, other: Self) -> Self {
        self += other;
        self
    }
}

impl std::iter::Sum for Items {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, items| sum + items)
    }
}

/// Saturates: a count that went below zero is a defect which the books then show, not a crash.
impl SubAssign for Items {
    fn sub_assign(&mut self, other: Self) {
        self.points = self.points.saturating_sub(other.points);
        self.events = self.events.saturating_sub(other.events);
        self.checks = self.checks.saturating_sub(other.checks);
    }
}

counters! {
    /// Why something was not delivered.
    #[derive(Serialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Reason {
        /// Flushes came faster than the output could encode.
        InboxFull = DROPPED.because("inbox_full"),
            Problem("The outputs need more CPU than there is: give weir more (`cpu`), or remove one of `outputs`.");
        /// The value is NaN or infinite, which no backend accepts.
        NotFinite = DROPPED.because("not_finite"),
            Problem("A client sends values that add up to infinity: `weir tail` shows its lines.");
        /// A counter's bucket adds up to less than zero, and the output's counters only rise.
        NegativeCounter = DROPPED.because("negative_counter"),
            Problem("A client sends negative counts. OTLP takes them with `monotonic_counters: false`; without a scrape, `enabled: false` switches `outputs.prometheus` off.");
        /// A single item exceeds the backend's limit.
        TooLarge = DROPPED.because("too_large"),
            Problem("The backend does not accept an item of that size: shorten names, texts or tags (`max_tag_length`).");
        /// The backend refused it permanently.
        Rejected = DROPPED.because("rejected"),
            Problem("The receiver refuses the data for good: the log has its answer; correct the client that it names, or drop the metric by `rules`.");
        /// The queue was full and this item was the oldest.
        QueueFull = DROPPED.because("queue_full"),
            Problem("The outage is longer than the queue can hold: let `weir doctor --config FILE` test the receiver, set `disk_path` for a queue on disk, or raise `memory` or `disk_bytes_max`.");
        /// It waited longer than allowed.
        TooOld = DROPPED.because("too_old"),
            Problem("The outage is longer than `disk_age_max` allows: let `weir doctor --config FILE` test the receiver, or raise it.");
        /// Its record in the disk queue is damaged.
        Corrupt = DROPPED.because("corrupt"),
            Problem("The disk or its file system lost data: test it, or set `disk_path` to another.");
        /// The output has no form for it.
        Unsupported = DROPPED.because("unsupported"),
            Normal("Most outputs cannot express events and checks.");
        /// A rule of this output drops it.
        Filtered = DROPPED.because("filtered"),
            Normal("The output has `rules` that drop metrics.");
        /// The log has not reported its number of partitions yet.
        NotReady = DROPPED.because("not_ready"),
            Problem("The log has not answered since the start: `weir doctor --config FILE` tests its brokers.");
        /// It was still in memory when the process ended.
        Shutdown = DROPPED.because("shutdown"),
            Problem("The receiver did not accept the rest in time: set `disk_path`, and a queue on disk keeps it.");
        /// It starts a series, and the output's state is full.
        Memory = DROPPED.because("memory"),
            Problem("Raise `memory`, or drop the tag with the most values by a rule.");
        /// Its timestamp is older than that of a previous value of its series.
        OutOfOrder = DROPPED.because("out_of_order"),
            Normal("Clients send timestamps out of order.");
    }
}

/// Losses by reason.
pub type Dropped = BTreeMap<Reason, Items>;

pub(crate) fn add_dropped(all: &mut Dropped, reason: Reason, items: Items) {
    if !items.is_zero() {
        *all.entry(reason).or_default() += items;
    }
}

/// The results of everything that one endpoint was given, and its state.
#[derive(Clone, Debug, Default)]
pub(super) struct EndpointBooks {
    pub restored: Items,
    /// Given to outputs that this one has replaced.
    pub earlier: Items,
    pub delivered: Items,
    pub counts: Counts<OutputCounter>,
    /// An attempt has failed since the stop began.
    pub gave_up: bool,
    pub sizes: QueueSizes,
    pub at_risk: PointsAtRisk,
    pub dropped: Dropped,
    pub disk_error: Option<String>,
    pub failing: bool,
    pub since: i64,
    pub last_error: Option<LastError>,
    /// The error is a refusal of the payload, not a failure.
    pub is_refusal: bool,
    pub retry_at: Option<Duration>,
}

impl EndpointBooks {
    pub fn copy_from(&mut self, queue: &Queue) {
        self.sizes = queue.sizes();
        self.at_risk = queue.at_risk();
        self.dropped.clone_from(queue.dropped());
        self.disk_error = queue.disk_error().map(str::to_owned);
    }

    /// Called when a payload was delivered completely: a failure is over; a refusal is shown for a while, because another may follow.
    pub fn forget_error(&mut self, now: i64) {
        let shown_for = if self.is_refusal { REFUSAL_SHOWN } else { 0 };
        if self
            .last_error
            .as_ref()
            .is_some_and(|error| now >= error.at + shown_for)
        {
            self.last_error = None;
        }
    }

    pub fn took(&mut self, payload: &Payload, now: i64) {
        self.counts[OutputCounter::Bytes] += payload.body.len() as u64;
        self.counts[OutputCounter::Payloads] += 1;
        self.turn(false, now);
    }

    pub fn turn(&mut self, failing: bool, now: i64) {
        if self.failing != failing {
            self.failing = failing;
            self.since = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_ends_with_a_delivery_and_a_refusal_is_shown_for_a_minute() {
        for (is_refusal, shown_until) in [(false, 0), (true, 60)] {
            let error = LastError {
                at: 1000,
                message: "no".into(),
            };
            let mut books = EndpointBooks {
                last_error: Some(error),
                is_refusal,
                ..EndpointBooks::default()
            };
            books.forget_error(1000 + shown_until - 1);
            assert!(books.last_error.is_some(), "refusal: {is_refusal}");
            books.forget_error(1000 + shown_until);
            assert_eq!(books.last_error, None, "refusal: {is_refusal}");
        }
    }
}
