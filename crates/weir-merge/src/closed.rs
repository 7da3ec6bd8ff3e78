//! The closed buckets of a stream.

/// Ranges that are kept apart. With more the two that are nearest to each other become one: if they were closed while the clock was ahead,
/// buckets between them will be late.
const RANGES_MAX: usize = 64;

/// A range shorter than this, in seconds, may come from a clock that was wrong for a while.
const TRUSTED: i64 = 3600;

/// Ranges of seconds, ascending and apart.
///
/// Buckets close in order, so a bucket between two ranges is closed as well: nobody sent it in time. A range in the future is an exception: it
/// was closed while the clock was ahead, and closes nothing before it. All times are seconds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClosedBuckets(Vec<(i64, i64)>);

impl ClosedBuckets {
    /// From saved ranges. `None`: they are impossible.
    pub fn restore(ranges: Vec<(i64, i64)>) -> Option<Self> {
        let are_ascending = ranges.windows(2).all(|pair| pair[0].1 < pair[1].0);
        let is_possible = are_ascending && ranges.iter().all(|(from, to)| from < to);
        (is_possible && ranges.len() <= RANGES_MAX).then_some(ClosedBuckets(ranges))
    }

    /// Everything before this second is closed.
    pub fn before_second(end: i64) -> Self {
        ClosedBuckets(vec![(i64::MIN, end)])
    }

    pub fn ranges(&self) -> Vec<(i64, i64)> {
        self.0.clone()
    }

    /// `now`: ranges that begin later are in the future.
    pub fn contain(&self, bucket: i64, now: i64) -> bool {
        let after = self.0.partition_point(|(from, _)| *from <= bucket);
        let is_inside = after > 0 && bucket < self.0[after - 1].1;
        is_inside || self.0.get(after).is_some_and(|(from, _)| *from <= now)
    }

    /// Every bucket before this second is closed.
    pub fn end(&self, now: i64) -> Option<i64> {
        let begun = self.0.partition_point(|(from, _)| *from <= now);
        begun.checked_sub(1).map(|last| self.0[last].1)
    }

    pub fn add(&mut self, start: i64, end: i64) {
        let (mut from, mut to) = (start, end);
        if from >= to {
            return;
        }
        self.0.retain(|range| {
            let is_apart = range.1 < from || to < range.0;
            if !is_apart {
                (from, to) = (from.min(range.0), to.max(range.1));
            }
            is_apart
        });
        let at = self.0.partition_point(|range| range.0 < from);
        self.0.insert(at, (from, to));
        if self.0.len() > RANGES_MAX {
            let gap = |at: &usize| self.0[*at + 1].0.saturating_sub(self.0[*at].1);
            let nearest = (0..RANGES_MAX).min_by_key(gap).unwrap_or(0);
            let (from, _) = self.0.remove(nearest);
            self.0[nearest].0 = from;
        }
    }

    /// Whether the clock was right when this bucket closed: others have for an hour, or there was no gap.
    pub fn is_trusted(&self, bucket: i64) -> bool {
        let of = |(from, to): &&(i64, i64)| (*from..*to).contains(&bucket);
        let range = self.0.iter().find(of);
        self.0.len() == 1 || range.is_some_and(|(from, to)| to.saturating_sub(*from) >= TRUSTED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_in_the_future_closes_nothing_before_it() {
        let mut closed = ClosedBuckets::default();
        assert!(!closed.contain(100, 1000));
        assert_eq!(closed.end(1000), None);
        closed.add(100, 110);
        closed.add(110, 120);
        // Nobody sent in between.
        closed.add(200, 210);
        for (bucket, is_closed) in [(90, true), (110, true), (150, true), (200, true), (210, false)] {
            assert_eq!(closed.contain(bucket, 220), is_closed, "{bucket}");
        }
        assert_eq!(closed.end(220), Some(210));
        // An hour ahead, and back.
        closed.add(3800, 3810);
        assert!(closed.contain(210, 3815));
        for (bucket, is_closed) in [
            (200, true),
            (210, false),
            (3790, false),
            (3800, true),
            (3810, false),
        ] {
            assert_eq!(closed.contain(bucket, 230), is_closed, "{bucket}");
        }
        assert_eq!(closed.end(230), Some(210));
        assert!(!closed.is_trusted(3800));
        closed.add(210, 3800);
        assert_eq!(closed.ranges(), [(100, 120), (200, 3810)]);
        assert!(closed.is_trusted(3800));
    }

    /// Clocks of agents and log that were wrong in many ways, and late data of those times.
    #[test]
    fn many_steps_of_the_clock_close_nothing_between_them() {
        let mut closed = ClosedBuckets::default();
        closed.add(0, 100);
        for number in 0..20 {
            closed.add(1000 + number * 3600, 1010 + number * 3600);
        }
        assert_eq!(closed.end(100), Some(100));
        for bucket in (100..1000).step_by(10) {
            assert!(!closed.contain(bucket, bucket));
        }
    }

    #[test]
    fn the_number_of_ranges_is_bounded() {
        let mut closed = ClosedBuckets::default();
        for number in 0..100 {
            closed.add(number * 100, number * 100 + 10);
            assert!(closed.ranges().len() <= RANGES_MAX);
            assert_eq!(ClosedBuckets::restore(closed.ranges()), Some(closed.clone()));
        }
        assert!(closed.contain(55, 0));
        assert!(closed.contain(9905, 0));
        let before = closed.ranges();
        closed.add(9920, 9930);
        let joined = (9900, 9930);
        assert_eq!(closed.ranges(), [&before[..RANGES_MAX - 1], &[joined]].concat());
        assert!(!closed.contain(9950, 0));
        assert_eq!(ClosedBuckets::restore(vec![(1, 2), (2, 3)]), None);
        assert_eq!(ClosedBuckets::restore(vec![(2, 1)]), None);
    }
}
