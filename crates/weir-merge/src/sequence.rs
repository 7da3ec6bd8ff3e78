//! The merged records of one agent and epoch: ranges of numbers, and the missing ones between them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::ledger::{Interval, Missing};

/// Maximum open holes. With more the oldest is given up.
const HOLES_MAX: usize = 64;

/// Remembered checksums, which distinguish a repeat from another record with the same number.
const CHECKSUMS_MAX: usize = 64;

/// The start or end of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Boundary {
    /// The number of the first or last record.
    sequence: u64,
    /// States in all records before the first, or up to the last.
    states: u64,
    bucket: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Range {
    first: Boundary,
    last: Boundary,
}

/// The properties of a record that a sequence checks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecordFacts {
    pub sequence: u64,
    pub states_before: u64,
    pub states: u64,
    pub bucket: i64,
    pub checksum: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecordCheck {
    New,
    Repeat,
    /// Another record has this number, or its sums do not match its neighbours': two processes write under one name.
    Contradiction,
}

/// Numbers begin at zero and have no gaps, so a number below the last one that is in no range is missing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Sequence {
    ranges: Vec<Range>,
    abandoned: Missing,
    #[serde(skip)]
    checksums: BTreeMap<u64, u32>,
}

impl Sequence {
    pub fn check(&self, place: &RecordFacts) -> RecordCheck {
        let at = self.after(place.sequence);
        let before = at.checked_sub(1).map(|at| self.ranges[at].last);
        if before.is_some_and(|before| place.sequence <= before.sequence) {
            let known = self.checksums.get(&place.sequence);
            return match known.is_none_or(|known| *known == place.checksum) {
                true => RecordCheck::Repeat,
                false => RecordCheck::Contradiction,
            };
        }
        let next = self.ranges.get(at).map(|range| range.first);
        match follows(before, place) && precedes(place, next) {
            true => RecordCheck::New,
            false => RecordCheck::Contradiction,
        }
    }

    /// The index of the first range after this number.
    fn after(&self, sequence: u64) -> usize {
        self.ranges
            .partition_point(|range| range.first.sequence <= sequence)
    }

    /// Adds a record that [`Sequence::check`] called new.
    pub fn take(&mut self, place: &RecordFacts) {
        self.checksums.insert(place.sequence, place.checksum);
        if self.checksums.len() > CHECKSUMS_MAX {
            self.checksums.pop_first();
        }
        let border = |states| Boundary {
            sequence: place.sequence,
            states,
            bucket: place.bucket,
        };
        let one = Range {
            first: border(place.states_before),
            last: border(place.states_before.saturating_add(place.states)),
        };
        let at = self.after(place.sequence);
        self.ranges.insert(at, one);
        self.join(at);
    }

    /// Gives up the oldest holes if there are too many.
    pub fn keep_few_holes(&mut self) {
        while self.ranges.len() > HOLES_MAX && self.holes().next().is_some() {
            self.give_up_first();
        }
    }

    /// Whether both contain the same records.
    pub fn is_same(&self, other: &Sequence) -> bool {
        self.ranges == other.ranges
    }

    /// Joins a new range with adjacent ones.
    fn join(&mut self, at: usize) {
        if let Some(next) = self.ranges.get(at + 1).copied()
            && self.ranges[at].last.sequence.checked_add(1) == Some(next.first.sequence)
        {
            self.ranges[at].last = next.last;
            self.ranges.remove(at + 1);
        }
        if let Some(before) = at.checked_sub(1)
            && self.ranges[before].last.sequence.checked_add(1) == Some(self.ranges[at].first.sequence)
        {
            self.ranges[before].last = self.ranges[at].last;
            self.ranges.remove(at);
        }
    }

    /// The hole before a range.
    fn hole(&self, at: usize) -> Missing {
        let next = self.ranges[at].first;
        let before = at.checked_sub(1).map(|at| self.ranges[at].last);
        let (first, states, from) = before.map_or((0, 0, i64::MIN), |before| {
            (before.sequence.saturating_add(1), before.states, before.bucket)
        });
        Missing {
            // Settled records may have been given up before.
            records: next.sequence.saturating_sub(first),
            states: next.states.saturating_sub(states),
            interval: Some(Interval {
                from,
                to: next.bucket,
            }),
        }
    }

    fn holes(&self) -> impl Iterator<Item = Missing> {
        (0..self.ranges.len())
            .map(|at| self.hole(at))
            .filter(|hole| hole.records > 0)
    }

    fn give_up_first(&mut self) {
        let Some(at) = (0..self.ranges.len()).find(|at| self.hole(*at).records > 0) else {
            return;
        };
        self.abandoned.add(self.hole(at));
        match at {
            0 => {
                self.ranges[0].first = Boundary {
                    sequence: 0,
                    states: 0,
                    ..self.ranges[0].first
                }
            }
            _ => {
                self.ranges[at - 1].last = self.ranges[at].last;
                self.ranges.remove(at);
            }
        }
    }

    /// Gives up holes whose records are so old that they would be refused.
    pub fn give_up_before(&mut self, bucket: i64) {
        while self
            .holes()
            .next()
            .is_some_and(|hole| hole.interval.is_some_and(|interval| interval.to < bucket))
        {
            self.give_up_first();
        }
    }

    /// Whether a record of this bucket may be missing.
    pub fn has_hole_at(&self, bucket: i64) -> bool {
        self.holes().any(|hole| {
            hole.interval
                .is_some_and(|interval| interval.from < bucket && bucket <= interval.to)
        })
    }

    /// Missing records that may still arrive.
    pub fn missing(&self) -> Missing {
        let mut missing = Missing::default();
        self.holes().for_each(|hole| missing.add(hole));
        missing
    }

    /// Missing records that were given up.
    pub fn abandoned(&self) -> Missing {
        self.abandoned
    }

    /// States in all records up to the last known one.
    pub fn published(&self) -> u64 {
        self.ranges.last().map_or(0, |range| range.last.states)
    }

    /// The bucket of the newest record.
    pub fn last_bucket(&self) -> i64 {
        self.ranges.last().map_or(i64::MIN, |range| range.last.bucket)
    }
}

/// Whether a record can follow the range that ends there.
fn follows(before: Option<Boundary>, place: &RecordFacts) -> bool {
    let (next, states) = before.map_or((0, 0), |before| {
        (before.sequence.saturating_add(1), before.states)
    });
    match place.sequence == next {
        true => place.states_before == states,
        false => place.states_before >= states,
    }
}

/// Whether a record can precede the range that begins there.
fn precedes(place: &RecordFacts, next: Option<Boundary>) -> bool {
    let Some(next) = next else {
        return place.sequence < u64::MAX;
    };
    let after = place.states_before.saturating_add(place.states);
    match place.sequence.checked_add(1) == Some(next.sequence) {
        true => after == next.states,
        false => after <= next.states,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn place(sequence: u64) -> RecordFacts {
        RecordFacts {
            sequence,
            states_before: states_before(sequence),
            states: sequence % 3,
            bucket: sequence as i64,
            checksum: sequence as u32,
        }
    }

    fn states_before(sequence: u64) -> u64 {
        (0..sequence).map(|before| before % 3).sum()
    }

    proptest! {
        #[test]
        fn equals_a_set_of_numbers(sent in prop::collection::vec(0u64..50, 0..80)) {
            let (mut sequence, mut naive) = (Sequence::default(), std::collections::BTreeSet::new());
            for &number in &sent {
                let verdict = sequence.check(&place(number));
                if naive.insert(number) {
                    prop_assert_eq!(verdict, RecordCheck::New);
                    sequence.take(&place(number));
                } else {
                    prop_assert_eq!(verdict, RecordCheck::Repeat);
                }
                let last = *naive.last().unwrap();
                let missing: Vec<u64> = (0..last).filter(|number| !naive.contains(number)).collect();
                prop_assert_eq!(sequence.missing().records, missing.len() as u64);
                prop_assert_eq!(sequence.missing().states, missing.iter().map(|number| number % 3).sum::<u64>());
                prop_assert_eq!(sequence.published(), states_before(last + 1));
                for bucket in 0..50 {
                    let is_near = missing.iter().any(|at| {
                        let before = naive.range(..at).last().map_or(i64::MIN, |number| *number as i64);
                        let next = *naive.range(at..).next().unwrap() as i64;
                        before < bucket && bucket <= next
                    });
                    prop_assert_eq!(sequence.has_hole_at(bucket), is_near);
                }
            }
        }
    }

    #[test]
    fn another_record_with_the_same_number_is_a_contradiction() {
        let mut sequence = Sequence::default();
        sequence.take(&place(0));
        sequence.take(&place(5));
        let check = |place: RecordFacts, expected| assert_eq!(sequence.check(&place), expected, "{place:?}");
        check(place(5), RecordCheck::Repeat);
        check(
            RecordFacts {
                checksum: 9,
                ..place(5)
            },
            RecordCheck::Contradiction,
        );
        check(place(1), RecordCheck::New);
        check(
            RecordFacts {
                states_before: 1,
                ..place(1)
            },
            RecordCheck::Contradiction,
        );
        check(
            RecordFacts {
                states: 9,
                ..place(4)
            },
            RecordCheck::Contradiction,
        );
        check(
            RecordFacts {
                states_before: 0,
                ..place(7)
            },
            RecordCheck::Contradiction,
        );
        check(
            RecordFacts {
                sequence: u64::MAX,
                ..place(7)
            },
            RecordCheck::Contradiction,
        );
    }

    #[test]
    fn gaps_are_bounded_and_abandoned_records_are_counted() {
        let mut sequence = Sequence::default();
        for number in 0..=HOLES_MAX as u64 {
            sequence.take(&place(2 * number + 1));
            sequence.keep_few_holes();
        }
        assert_eq!(sequence.abandoned().records, 2);
        assert_eq!(sequence.missing().records, HOLES_MAX as u64 - 1);
        assert_eq!(sequence.check(&place(0)), RecordCheck::Repeat);
        sequence.give_up_before(100);
        assert_eq!(sequence.abandoned().records, 50);
        let total = sequence.abandoned().states + sequence.missing().states;
        assert_eq!(
            total,
            (0..=HOLES_MAX as u64).map(|number| 2 * number % 3).sum::<u64>()
        );
    }
}
