//! The books at whole seconds. Workers report once a second, each at its own time, and later when the machine is busy. What a counter was at
//! a whole second lies on the line between the report before it and the one after it: so a flat load is a flat line, and nothing is lost or
//! counted twice. Counters that rise once per bucket have [rises](super::bucket_marks) that fit the bucket.

use weir_output::prometheus::OwnSeries;

use crate::bucket_marks::{BucketMark, SpreadRises, rises_with_buckets};

/// A worker that has not reported for so long is not waited for: its numbers stand still.
const SILENCE_NS: u64 = 2_000_000_000;

/// Seconds of which the books wait for the clock if it was set back. With more, and forwards, they go on at the new time.
const CLOCK_STEP: u64 = 60;

/// Series that are read when the sample is taken, not when workers report.
const READ_AT_ONCE: [&str; 5] = [
    "weir_output_",
    "weir_scrape_",
    "weir_history_",
    "weir_memory_",
    "process_",
];

/// All series, and the Unix nanoseconds at which their numbers were true.
#[derive(Clone, Debug, Default)]
pub struct Sample {
    pub series: Vec<OwnSeries>,
    /// Distinguishes the reports of workers.
    pub report: u64,
    pub reported_ns: u64,
    pub read_ns: u64,
}

impl Sample {
    fn time_of(&self, series: &OwnSeries) -> u64 {
        match READ_AT_ONCE.iter().any(|prefix| series.name.starts_with(prefix)) {
            true => self.read_ns,
            false => self.reported_ns,
        }
    }
}

/// The last samples, and the last whole second that was made.
#[derive(Debug)]
pub struct BookTimes {
    last: Sample,
    /// The one before: a second after the last report may lie before the last reading.
    before: Sample,
    second: u64,
    /// The series at that second.
    at_second: Vec<OwnSeries>,
    rises: SpreadRises,
}

impl BookTimes {
    pub fn new(first: Sample) -> Self {
        BookTimes {
            second: first.read_ns / 1_000_000_000,
            at_second: first.series.clone(),
            before: first.clone(),
            last: first,
            rises: SpreadRises::default(),
        }
    }

    /// Outputs are given the next bucket.
    pub fn mark(&mut self, mark: BucketMark) {
        self.rises.add(mark);
    }

    /// Whether workers have reported since the last sample, or will not soon.
    pub fn is_due(&self, report: u64, now_ns: u64) -> bool {
        report != self.last.report || now_ns >= self.last.read_ns + SILENCE_NS
    }

    /// Adds a sample. Calls `take` with each whole second that is known now, the series at it, and those at the second before.
    pub fn add(&mut self, mut sample: Sample, mut take: impl FnMut(u64, &[OwnSeries], &[OwnSeries])) {
        if sample.read_ns < self.last.read_ns {
            let second_ago = |ns: u64| ns.saturating_sub(1_000_000_000);
            self.last.read_ns = second_ago(sample.read_ns);
            self.last.reported_ns = second_ago(sample.reported_ns);
            self.before = self.last.clone();
        }
        if sample.report == self.last.report {
            sample.reported_ns = sample.read_ns.saturating_sub(SILENCE_NS / 2);
        }
        sample.reported_ns = sample.reported_ns.max(self.last.reported_ns);
        let known = sample.reported_ns.min(sample.read_ns) / 1_000_000_000;
        // The clock was set: what lies between is not known.
        if known.abs_diff(self.second) > CLOCK_STEP {
            self.second = known.saturating_sub(1);
        }
        while self.second < known {
            self.second += 1;
            self.rises.advance(self.second as i64);
            let at = self.series_at(&sample, self.second * 1_000_000_000);
            take(self.second, &at, &self.at_second);
            self.at_second = at;
        }
        self.before = std::mem::replace(&mut self.last, sample);
    }

    fn series_at(&self, sample: &Sample, at_ns: u64) -> Vec<OwnSeries> {
        let mut known = self.last.series.iter().peekable();
        let mut made = self.at_second.iter().peekable();
        let mut of_outputs = 0;
        let all = sample.series.iter().map(|series| {
            if !series.is_counter {
                return series.clone();
            }
            // Lists usually have the same series in the same order.
            let same = |old: &&OwnSeries| old.name == series.name && old.labels == series.labels;
            let last = known.next_if(same).or_else(|| self.last.series.iter().find(same));
            let at_second = made.next_if(same).or_else(|| self.at_second.iter().find(same));
            if rises_with_buckets(series) {
                of_outputs += 1;
                let rise = self.rises.of(series, of_outputs - 1);
                return OwnSeries {
                    value: at_second.map_or(0.0, |at_second| at_second.value) + rise,
                    ..series.clone()
                };
            }
            let value_of = |old: Option<&OwnSeries>| old.map_or(0.0, |old| old.value);
            let (mut old, mut new) = (value_of(last), series.value);
            let (mut from, mut to) = (self.last.time_of(series), sample.time_of(series));
            if at_ns < from {
                (old, new) = (value_of(self.before.series.iter().find(same)), old);
                (from, to) = (self.before.time_of(series), from);
            }
            let part = match to > from {
                true => at_ns.saturating_sub(from) as f64 / (to - from) as f64,
                false => 1.0,
            };
            let value = old + (new - old) * part.min(1.0);
            // Whole numbers stay whole, and a counter never falls, except at a new start.
            let value = if series.value.fract() == 0.0 {
                value.round()
            } else {
                value
            };
            let floor = at_second.map_or(0.0, |at_second| at_second.value);
            OwnSeries {
                value: value.max(floor.min(series.value)),
                ..series.clone()
            }
        });
        all.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;
    const START: u64 = 1_700_000_000 * SECOND;

    /// Of a relay, whose messages do not wait for buckets.
    fn series(name: &'static str, value: f64) -> OwnSeries {
        OwnSeries {
            name,
            help: "",
            is_counter: true,
            labels: vec![("kind", "message".to_owned())],
            value,
        }
    }

    /// A sample at these times of load that began at `START`.
    fn sample(reported_ns: u64, read_ns: u64, rate: f64) -> Sample {
        let counted = |at: u64| ((at - START) as f64 / SECOND as f64 * rate).round();
        Sample {
            series: vec![
                series("weir_messages_received_total", counted(reported_ns)),
                series("weir_output_delivered_total", counted(read_ns)),
            ],
            report: reported_ns,
            reported_ns,
            read_ns,
        }
    }

    /// The increase of each series in each second.
    fn increases(times: &[(u64, u64)], rate: f64) -> Vec<(u64, Vec<f64>)> {
        let mut books = BookTimes::new(sample(times[0].0, times[0].1, rate));
        let mut found = Vec::new();
        for (reported_ns, read_ns) in &times[1..] {
            assert!(books.is_due(*reported_ns, *read_ns));
            books.add(sample(*reported_ns, *read_ns, rate), |second, now, before| {
                let values = now
                    .iter()
                    .zip(before)
                    .map(|(now, before)| now.value - before.value);
                found.push((second, values.collect()));
            });
        }
        found
    }

    /// Reports that drift through the second and are late by up to 0.9 s, as on a busy machine.
    #[test]
    fn a_flat_load_is_a_flat_line() {
        let times: Vec<(u64, u64)> = (0..120)
            .map(|number: u64| {
                let late = number * 7919 % 900 * 1_000_000;
                let reported = START + number * (SECOND + 3_000_000) + late;
                (reported, reported + number * 104_729 % 90 * 1_000_000)
            })
            .collect();
        let found = increases(&times, 3391.0);
        assert!(found.len() > 115, "{found:?}");
        assert!(found.windows(2).all(|two| two[1].0 == two[0].0 + 1), "{found:?}");
        for (second, values) in &found[1..] {
            for value in values {
                assert!((value / 3391.0 - 1.0).abs() <= 0.001, "{second}: {value}");
            }
        }
    }

    #[test]
    fn nothing_is_lost_or_counted_twice() {
        let mut books = BookTimes::new(sample(START, START, 0.0));
        let mut sum = 0.0;
        let lost = [0, 0, 912_129, 912_129, 912_130, 912_130, 912_130];
        for (number, lost) in lost.into_iter().enumerate() {
            let at = START + (number as u64 + 1) * SECOND * 11 / 10;
            let one = Sample {
                series: vec![series("weir_packets_dropped_total", f64::from(lost))],
                report: at,
                reported_ns: at,
                read_ns: at,
            };
            books.add(one, |_, now, before| {
                let old = before.iter().find(|old| old.name == now[0].name);
                let increase = now[0].value - old.map_or(0.0, |old| old.value);
                assert_eq!(increase.fract(), 0.0);
                sum += increase;
            });
        }
        assert_eq!(sum, 912_130.0);
    }

    #[test]
    fn a_worker_that_is_stuck_stands_still_and_the_rest_goes_on() {
        let mut books = BookTimes::new(sample(START, START, 10.0));
        let mut found = Vec::new();
        for number in 1..6 {
            let read = START + number * 2 * SECOND;
            assert!(!books.is_due(START, read - SECOND / 10));
            assert!(books.is_due(START, read));
            books.add(sample(START, read, 10.0), |_, now, before| {
                found.push((now[0].value - before[0].value, now[1].value - before[1].value));
            });
        }
        assert!(
            found.len() >= 8 && found.iter().all(|values| *values == (0.0, 10.0)),
            "{found:?}"
        );
    }
}
