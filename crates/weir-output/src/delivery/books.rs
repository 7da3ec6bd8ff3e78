//! What became of everything an output was given. Points, events and checks are never added together.

use std::collections::BTreeMap;
use std::ops::{AddAssign, SubAssign};

use serde::Serialize;

/// What a payload carries. A payload carries one of them.
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

    pub fn is_zero(&self) -> bool {
        *self == Self::default()
    }

    /// Whether there is no more of anything than in `other`.
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

/// Why something was not delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// The output could not encode as fast as flushes came.
    InboxFull,
    /// The value is NaN or infinite, which no backend takes.
    NotFinite,
    /// One item alone is over the backend's limit.
    TooLarge,
    /// The backend refused it for good.
    Rejected,
    /// The queue was full and this was the oldest.
    QueueFull,
    /// It waited longer than the operator allows.
    TooOld,
    /// Its record in the disk queue is damaged.
    Corrupt,
    /// The output has no form for it.
    Unsupported,
    /// It was still in memory when the process ended.
    Shutdown,
    /// It begins a series, and the output's state is as large as it may be.
    Memory,
    /// Its timestamp is before that of a newer value of its series.
    OutOfOrder,
}

impl Reason {
    /// The name in status and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Reason::InboxFull => "inbox_full",
            Reason::NotFinite => "not_finite",
            Reason::TooLarge => "too_large",
            Reason::Rejected => "rejected",
            Reason::QueueFull => "queue_full",
            Reason::TooOld => "too_old",
            Reason::Corrupt => "corrupt",
            Reason::Unsupported => "unsupported",
            Reason::Shutdown => "shutdown",
            Reason::Memory => "memory",
            Reason::OutOfOrder => "out_of_order",
        }
    }
}

/// Losses by reason.
pub type Dropped = BTreeMap<Reason, Items>;

pub(crate) fn add_dropped(all: &mut Dropped, reason: Reason, items: Items) {
    if !items.is_zero() {
        *all.entry(reason).or_default() += items;
    }
}
