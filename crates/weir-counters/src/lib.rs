//! Declares counters. Each is in one table, with the series and the field of the status that show it,
//! its meaning, its unit, and what to do when it moves; arrays are indexed by it.
//!
//! This crate never knows who counts, and never locks: a [`Counts`] is an array of plain integers that one thread owns.
//!
//! ```
//! use weir_counters::{Counts, Significance, SeriesSpec, counters};
//!
//! counters! {
//!     /// What a door counts.
//!     pub enum DoorCounter {
//!         /// Guests who came in.
//!         Entered = SeriesSpec::counter("weir_door_entered_total", "door.entered", "guests"), Significance::Normal("It is open.");
//!     }
//! }
//!
//! let mut counts = Counts::<DoorCounter>::default();
//! counts[DoorCounter::Entered] += 1;
//! assert_eq!(counts.sum(), 1);
//! ```

#![forbid(unsafe_code)]

pub mod books;

use std::fmt;
use std::ops::{Index, IndexMut};

/// Whether a number only grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NumberKind {
    Counter,
    Gauge,
}

/// Combination of several workers' numbers into one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Across {
    Sum,
    Highest,
}

/// The meaning of a change of the number, with what to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Significance {
    /// It changes with the work that is done.
    Normal(&'static str),
    /// A loss, a refusal or a degradation: `weir status` shows it as soon as it is not zero.
    Problem(&'static str),
}

/// The places that show a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeriesSpec {
    /// In the exposition, with its `weir_` prefix; counters end in `_total`.
    pub name: &'static str,
    /// In `/api/v1/status`: field names with dots between them, without the label's value. Paths below `listeners` and `outputs` are in
    /// each of their entries.
    pub path: &'static str,
    /// Units of shown values.
    pub unit: &'static str,
    /// Counted steps per unit.
    pub per_unit: u64,
    pub kind: NumberKind,
    pub across: Across,
    /// Name and value of the label that distinguishes the counters of one series.
    pub label: Option<(&'static str, &'static str)>,
    /// Another field that the same number is part of.
    pub also: Option<&'static str>,
    /// The meaning of a series with several counters; empty where the counter's own is that.
    pub help: &'static str,
}

impl SeriesSpec {
    const fn new(kind: NumberKind, name: &'static str, path: &'static str, unit: &'static str) -> Self {
        SeriesSpec {
            name,
            path,
            unit,
            per_unit: 1,
            kind,
            across: Across::Sum,
            label: None,
            also: None,
            help: "",
        }
    }

    pub const fn counter(name: &'static str, path: &'static str, unit: &'static str) -> Self {
        Self::new(NumberKind::Counter, name, path, unit)
    }

    pub const fn gauge(name: &'static str, path: &'static str, unit: &'static str) -> Self {
        Self::new(NumberKind::Gauge, name, path, unit)
    }

    /// The meaning of the series, if its counters only document their differences.
    pub const fn help(mut self, help: &'static str) -> Self {
        self.help = help;
        self
    }

    /// One of several counters, distinguished by the value of a label.
    pub const fn by(mut self, label: &'static str, value: &'static str) -> Self {
        self.label = Some((label, value));
        self
    }

    pub const fn because(self, reason: &'static str) -> Self {
        self.by("reason", reason)
    }

    /// The same number is part of another field too.
    pub const fn also(mut self, path: &'static str) -> Self {
        self.also = Some(path);
        self
    }

    /// The counted quantity is this much smaller than the unit.
    pub const fn per_unit(mut self, per_unit: u64) -> Self {
        self.per_unit = per_unit;
        self
    }

    /// The maximum over workers counts.
    pub const fn highest(mut self) -> Self {
        self.across = Across::Highest;
        self
    }
}

/// One number: the places that show it, its meaning and its remedy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CounterInfo {
    pub series: SeriesSpec,
    /// As written above the variant.
    pub doc: &'static str,
    pub significance: Significance,
}

impl CounterInfo {
    /// The value of its label; the field of one that has none.
    pub const fn as_str(&self) -> &'static str {
        match self.series.label {
            Some((_, value)) => value,
            None => self.series.path,
        }
    }

    pub fn meaning(&self) -> &'static str {
        self.doc.trim()
    }

    /// The remedy when it moves.
    pub fn advice(&self) -> &'static str {
        let (Significance::Normal(advice) | Significance::Problem(advice)) = self.significance;
        advice
    }

    /// The `# HELP` text of its series.
    pub fn help(&self) -> &'static str {
        match self.series.help {
            "" => self.meaning(),
            help => help,
        }
    }
}

/// An enum whose variants are counted; [`counters!`] makes one.
pub trait Counter: Copy + 'static {
    type Array: AsRef<[u64]> + AsMut<[u64]> + Copy;
    const ZERO: Self::Array;
    const INFO: &'static [CounterInfo];
    fn index(self) -> usize;

    fn info(self) -> &'static CounterInfo {
        &Self::INFO[self.index()]
    }
}

/// One number for each variant of an enum.
#[derive(Clone, Copy)]
pub struct Counts<C: Counter>(C::Array);

impl<C: Counter> Counts<C> {
    /// Each number with its declaration.
    pub fn iter(&self) -> impl Iterator<Item = (&'static CounterInfo, u64)> {
        C::INFO.iter().zip(self.0.as_ref().iter().copied())
    }

    /// The sum of counters of one unit.
    pub fn sum(&self) -> u64 {
        self.0.as_ref().iter().sum()
    }

    pub fn add(&mut self, other: &Self) {
        for (mine, theirs) in self.0.as_mut().iter_mut().zip(other.0.as_ref()) {
            *mine += theirs;
        }
    }
}

impl<C: Counter> Default for Counts<C> {
    fn default() -> Self {
        Counts(C::ZERO)
    }
}

impl<C: Counter> Index<C> for Counts<C> {
    type Output = u64;

    #[inline(always)]
    fn index(&self, counter: C) -> &u64 {
        &self.0.as_ref()[counter.index()]
    }
}

impl<C: Counter> IndexMut<C> for Counts<C> {
    #[inline(always)]
    fn index_mut(&mut self, counter: C) -> &mut u64 {
        &mut self.0.as_mut()[counter.index()]
    }
}

impl<C: Counter> PartialEq for Counts<C> {
    fn eq(&self, other: &Self) -> bool {
        self.0.as_ref() == other.0.as_ref()
    }
}

impl<C: Counter> Eq for Counts<C> {}

/// The counters that are not zero.
impl<C: Counter> fmt::Debug for Counts<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let moved = self.iter().filter(|(_, count)| *count > 0);
        f.debug_map()
            .entries(moved.map(|(info, count)| (info.as_str(), count)))
            .finish()
    }
}

/// Declares an enum of counters. Each variant has a comment, which is its meaning everywhere, a [`SeriesSpec`] and a
/// [`Significance`].
#[macro_export]
macro_rules! counters {
    ($(#[$attribute:meta])* pub enum $name:ident {
        $($(#[doc = $doc:literal])+ $variant:ident = $series:expr, $significance:expr;)+
    }) => {
        $(#[$attribute])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum $name {
            $($(#[doc = $doc])+ $variant,)+
        }

        #[allow(dead_code)]
        impl $name {
            pub const ALL: [$name; [$(stringify!($variant)),+].len()] = [$($name::$variant),+];
            pub const COUNT: usize = Self::ALL.len();

            /// The name in counters, JSON and logs.
            pub const fn as_str(self) -> &'static str {
                <Self as $crate::Counter>::INFO[self as usize].as_str()
            }
        }

        impl $crate::Counter for $name {
            type Array = [u64; $name::COUNT];
            const ZERO: Self::Array = [0; $name::COUNT];
            const INFO: &'static [$crate::CounterInfo] = &[$($crate::CounterInfo {
                series: $series,
                doc: concat!($($doc),+),
                significance: $significance,
            }),+];

            #[inline(always)]
            fn index(self) -> usize {
                self as usize
            }
        }
    };
}
