//! Rates of outputs. They work once per bucket, sooner or later in it, so a counter of theirs rises in steps, and a difference over a second
//! is nothing or a whole bucket. Here a rise is divided evenly among the seconds of its bucket: a flat load is a flat line.
//!
//! A mark is made right before outputs are given a bucket. Of the buckets before, it has everything that the outputs have finished, and of
//! this one nothing, whenever in the bucket they work and whenever their counters are read.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use weir_aggregate::Bucket;
use weir_output::prometheus::OwnSeries;

/// Marks that wait. With more the oldest are left out, and the next one has their rise.
const MARKS_MAX: usize = 64;

/// Seconds that a delay may add. Beyond them the rest is shown in one second.
const BEHIND_MAX: i64 = 30;

/// Whether a counter rises with the buckets. What a relay sends does not wait for them.
pub fn rises_with_buckets(series: &OwnSeries) -> bool {
    let is_message = |(name, value): &(&str, String)| *name == "kind" && value == "message";
    series.is_counter && series.name.starts_with("weir_output_") && !series.labels.iter().any(is_message)
}

/// Counters of outputs between two buckets.
#[derive(Clone, Debug)]
pub struct BucketMark {
    /// Unix seconds of the end of the bucket that outputs are given next.
    pub end: i64,
    /// Its width in seconds.
    pub width: i64,
    pub series: Vec<OwnSeries>,
}

impl BucketMark {
    /// Before outputs are given this bucket. Keeps the series that rise with buckets.
    pub fn before(bucket: Bucket, mut series: Vec<OwnSeries>) -> BucketMark {
        series.retain(rises_with_buckets);
        let width = i64::from(bucket.width.max(1));
        BucketMark {
            end: bucket.start + width,
            width,
            series,
        }
    }

    fn value_of(&self, series: &OwnSeries, hint: usize) -> f64 {
        let is_it = |own: &&OwnSeries| own.name == series.name && own.labels == series.labels;
        let found = self.series.get(hint).filter(is_it);
        found
            .or_else(|| self.series.iter().find(is_it))
            .map_or(0.0, |own| own.value)
    }
}

/// Marks on their way from the pipeline to the books.
#[derive(Debug, Default)]
pub struct BucketMarks(Mutex<VecDeque<BucketMark>>);

impl BucketMarks {
    pub fn add(&self, mark: BucketMark) {
        let mut marks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        marks.push_back(mark);
        if marks.len() > MARKS_MAX {
            marks.pop_front();
        }
    }

    pub fn take(&self) -> VecDeque<BucketMark> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Rises by the second, a bucket late: only its end shows what outputs made of a bucket.
#[derive(Debug, Default)]
pub struct SpreadRises {
    marks: VecDeque<BucketMark>,
    /// Unix seconds up to which rises are shown, and those of the step before.
    until: i64,
    before: i64,
}

impl SpreadRises {
    pub fn add(&mut self, mark: BucketMark) {
        // The clock was set back: what lies between is not known.
        if self.marks.back().is_some_and(|last| mark.end <= last.end) {
            self.marks.clear();
        }
        if self.marks.is_empty() {
            (self.until, self.before) = (mark.end, mark.end);
        }
        self.marks.push_back(mark);
    }

    /// The books are at this Unix second. A mark that is late delays what follows instead of making it steeper.
    pub fn advance(&mut self, second: i64) {
        self.before = self.until;
        let Some(last) = self.marks.back() else { return };
        let wanted = second - last.width;
        let next = match wanted - self.until > BEHIND_MAX {
            true => wanted,
            false => self.until + 1,
        };
        self.until = next.min(wanted).min(last.end).max(self.until);
        while self.marks.get(1).is_some_and(|mark| mark.end <= self.before) {
            self.marks.pop_front();
        }
    }

    /// The rise of a counter in the last step. `hint`: its position among such counters.
    pub fn of(&self, series: &OwnSeries, hint: usize) -> f64 {
        let two = self.marks.iter().zip(self.marks.iter().skip(1));
        let rises = two.map(|(old, new)| {
            let part = |at: i64| (at.clamp(old.end, new.end) - old.end) as f64 / (new.end - old.end) as f64;
            let (from, to) = (part(self.before), part(self.until));
            if from == to {
                return 0.0;
            }
            let (before, after) = (old.value_of(series, hint), new.value_of(series, hint));
            // A counter that has fallen began again.
            let rise = if after < before { after } else { after - before };
            // Whole numbers stay whole, and their sum is exact.
            (rise * to).round() - (rise * from).round()
        });
        rises.sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::book_times::{BookTimes, Sample};

    const SECOND: u64 = 1_000_000_000;
    const START: i64 = 1_700_000_000;

    fn series(name: &'static str, kind: &str, value: u64) -> OwnSeries {
        OwnSeries {
            name,
            help: "",
            is_counter: true,
            labels: vec![("kind", kind.to_owned()), ("output", "file".to_owned())],
            value: value as f64,
        }
    }

    /// A number below `limit` that looks random.
    fn noise(seed: u64, limit: u64) -> u64 {
        (seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 20) % limit
    }

    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    enum Event {
        /// Outputs are given the bucket with this end.
        Given(i64),
        /// They have finished it.
        Delivered,
        /// Workers report; and the books are read.
        Reported,
        Read,
    }

    /// Load of `rate` a second, with events in an order that the seed chooses: a bucket is given up to 0.9 s after its end and finished at
    /// any time before the next one, and reports and readings drift through the second and are late. Returns the rises by second.
    fn rises(width: i64, rate: u64, seed: u64) -> Vec<(i64, f64, f64)> {
        let mut events = Vec::new();
        let given = |bucket: i64| {
            let end = START + bucket * width;
            end as u64 * SECOND + noise(seed + bucket as u64, 900) * 1_000_000
        };
        for bucket in 1..200 / width {
            let free = given(bucket + 1) - given(bucket);
            let took = noise(seed * 31 + bucket as u64, free / 1000) * 1000;
            events.push((given(bucket), Event::Given(START + bucket * width)));
            events.push((given(bucket) + took.max(1), Event::Delivered));
        }
        for number in 0..200 {
            let late = noise(seed * 7 + number, 900) * 1_000_000;
            let reported = START as u64 * SECOND + number * (SECOND + 3_000_000) + late;
            events.push((reported, Event::Reported));
            events.push((reported + noise(seed + number, 90) * 1_000_000 + 1, Event::Read));
        }
        events.sort_unstable();
        let (mut delivered, mut reported_ns, mut found) = (0, 0, Vec::new());
        let sample = |delivered: u64, reported_ns: u64, now_ns: u64| {
            let sent = (now_ns / 1000).saturating_sub(START as u64 * SECOND / 1000) * rate / 1_000_000;
            Sample {
                series: vec![
                    series("weir_output_delivered_total", "point", delivered),
                    series("weir_output_delivered_total", "message", sent),
                ],
                report: reported_ns,
                reported_ns,
                read_ns: now_ns,
            }
        };
        let start = START as u64 * SECOND;
        let mut books = BookTimes::new(sample(0, start, start));
        for (now_ns, event) in events {
            match event {
                Event::Given(end) => {
                    let bucket = Bucket {
                        start: end - width,
                        timestamp: end - width,
                        width: width as u32,
                    };
                    let series = sample(delivered, reported_ns, now_ns).series;
                    books.mark(BucketMark::before(bucket, series));
                }
                Event::Delivered => delivered += rate * width as u64,
                Event::Reported => reported_ns = now_ns,
                Event::Read if !books.is_due(reported_ns, now_ns) => {}
                Event::Read => books.add(sample(delivered, reported_ns, now_ns), |second, now, before| {
                    let rise = |at: usize| now[at].value - before[at].value;
                    found.push((second as i64, rise(0), rise(1)));
                }),
            }
        }
        found
    }

    #[test]
    fn a_flat_load_is_a_flat_line_at_outputs_whatever_the_width_of_buckets() {
        for (width, seed) in [1, 2, 10]
            .into_iter()
            .flat_map(|width| (1..30).map(move |seed| (width, seed)))
        {
            let rate = 3391;
            let found = rises(width, rate, seed);
            let (first, last) = (START + 3 * width + 1, START + 180);
            let of_time = |second: i64| second > first && second <= last;
            let looked_at = found.iter().filter(|(second, ..)| of_time(*second));
            assert_eq!(looked_at.clone().count() as i64, last - first, "{width} s");
            for (second, points, messages) in looked_at {
                for value in [points, messages] {
                    let of_rate = value / rate as f64;
                    assert!(
                        (of_rate - 1.0).abs() <= 0.02,
                        "buckets of {width} s, seed {seed}, second {}: {value}",
                        second - START
                    );
                }
            }
        }
    }

    #[test]
    fn a_late_bucket_is_a_gap_and_no_peak_and_every_rise_is_shown_once() {
        let mut rises = SpreadRises::default();
        let bucket = |number: i64| Bucket {
            start: START + number * 2 - 2,
            timestamp: START + number * 2 - 2,
            width: 2,
        };
        let counter = |value| series("weir_output_delivered_total", "point", value);
        let mut shown = Vec::new();
        for second in 0..30 {
            // The pipeline is stuck for five seconds.
            let given = match second {
                8..=12 => None,
                13 => Some(vec![4, 5, 6]),
                second if second % 2 == 0 => Some(vec![second / 2]),
                _ => None,
            };
            for number in given.into_iter().flatten() {
                let value = 101 * number.min(10) as u64;
                rises.add(BucketMark::before(bucket(number), vec![counter(value)]));
            }
            rises.advance(START + second);
            shown.push(rises.of(&counter(0), 0));
        }
        assert!(
            shown.iter().all(|rise| [0.0, 50.0, 51.0].contains(rise)),
            "{shown:?}"
        );
        assert_eq!(shown.iter().sum::<f64>(), 1010.0, "{shown:?}");
    }

    #[test]
    fn a_new_output_begins_at_zero_and_a_clock_that_was_set_back_begins_again() {
        let mut rises = SpreadRises::default();
        let mark = |end: i64, value: Option<u64>| BucketMark {
            end,
            width: 1,
            series: value
                .map(|value| series("weir_output_delivered_total", "point", value))
                .into_iter()
                .collect(),
        };
        let counter = series("weir_output_delivered_total", "point", 0);
        let mut shown = Vec::new();
        let times = [
            (10, None),
            (11, Some(7)),
            (12, Some(9)),
            (13, Some(4)),
            (5, Some(90)),
            (6, Some(95)),
        ];
        for (end, value) in times {
            rises.add(mark(end, value));
            rises.advance(end + 1);
            shown.push(rises.of(&counter, 0));
        }
        assert_eq!(shown, [0.0, 7.0, 2.0, 4.0, 0.0, 5.0]);
    }
}
