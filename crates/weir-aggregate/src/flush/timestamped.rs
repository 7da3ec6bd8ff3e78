//! Points that keep their own timestamp. Each series and second is one row, because receivers keep one point of it.

use std::collections::HashMap;
use std::ops::Range;

use weir_protocol::Kind;
use weir_sketch::Sketch;
use weir_state::{Entry, Facts, SeriesName, State as Record};

use super::{Batch, Row, RowValue, Series};
use crate::aggregator::ProcessStamp;

/// The parts of a timestamped sample besides its value, resolved but not stored.
#[derive(Clone, Debug)]
pub struct TimestampedSample<'a> {
    pub kind: Kind,
    pub name: &'a str,
    pub host: Option<&'a str>,
    pub tags: &'a [&'a str],
    /// Unix seconds.
    pub timestamp: i64,
}

impl TimestampedSample<'_> {
    /// Name, host and tags as one text.
    pub fn identity(&self) -> String {
        // A line end is in none of them.
        let mut identity = self.name.to_owned();
        match self.host {
            None => identity.push_str("\n-"),
            Some(host) => identity.extend(["\n+", host]),
        }
        for tag in self.tags {
            identity.extend(["\n", tag]);
        }
        identity
    }
}

/// The value of a timestamped sample.
#[derive(Clone, Debug)]
pub enum TimestampedValue {
    /// Of a counter or a gauge.
    Number(f64),
    Sketch(Sketch),
}

impl TimestampedValue {
    pub fn samples(&self) -> u64 {
        match self {
            TimestampedValue::Number(_) => 1,
            TimestampedValue::Sketch(sketch) => sketch.cnt(),
        }
    }

    /// `None`: samples of this kind have no timestamp of their own.
    fn of(record: &Record) -> Option<TimestampedValue> {
        match record {
            Record::Counter(sum) => Some(TimestampedValue::Number(sum.to_f64())),
            Record::Gauge(gauge) => Some(TimestampedValue::Number(gauge.value)),
            Record::Distribution(distribution) => Some(TimestampedValue::Sketch(distribution.sketch())),
            Record::Set(_) | Record::Samples(_) => None,
        }
    }
}

impl Batch {
    /// Adds to the value in a row. Returns false, and changes nothing, if it is no sum, or would not be finite.
    fn add_to_timestamped(&mut self, row: usize, value: &TimestampedValue) -> bool {
        match (self.rows.get_mut(row).map(|row| &mut row.value), value) {
            (Some(RowValue::Counter(sum)), TimestampedValue::Number(more)) if (*sum + more).is_finite() => {
                *sum += more;
                true
            }
            (Some(RowValue::Distribution(at)), TimestampedValue::Sketch(sketch)) => {
                let held = &mut self.bodies.distributions[*at as usize];
                let before = held.heap_bytes();
                held.merge(sketch);
                self.bodies.bytes = self.bodies.bytes + held.heap_bytes() - before;
                true
            }
            _ => false,
        }
    }

    /// Appends one timestamped sample.
    pub fn push_timestamped(&mut self, sample: &TimestampedSample<'_>, value: TimestampedValue) {
        let value = match value {
            TimestampedValue::Number(value) if sample.kind == Kind::Counter => RowValue::Counter(value),
            TimestampedValue::Number(value) => RowValue::Gauge { value, received: 0 },
            TimestampedValue::Sketch(sketch) => {
                self.bodies.bytes += size_of::<Sketch>() + sketch.heap_bytes();
                self.bodies.distributions.push(Box::new(sketch));
                RowValue::Distribution(self.bodies.distributions.len() as u32 - 1)
            }
        };
        let name = self.push_text(sample.name);
        let host = sample.host.map(|host| self.push_text(host));
        let tags = self.push_tags(sample.tags.iter().copied());
        self.rows.push(Row {
            context: None,
            hash: 0,
            timestamp: sample.timestamp,
            name,
            host,
            jmx_check: None,
            tags,
            suffix_mask: u32::MAX,
            kind: sample.kind,
            idle: false,
            value,
        });
    }
}

/// The rows of a batch by kind and timestamp, and by identity. Each sample of a gauge has a row: the last one counts.
#[derive(Debug, Default)]
pub struct TimestampedRows(HashMap<(Kind, i64), HashMap<Box<str>, usize>>);

impl TimestampedRows {
    /// Adds a sample to the row of its series and second, or appends it. `identity`: that of the sample. Returns the row.
    pub fn add(
        &mut self,
        batch: &mut Batch,
        identity: &str,
        sample: &TimestampedSample<'_>,
        value: TimestampedValue,
    ) -> usize {
        let place = (sample.kind, sample.timestamp);
        let known = self.0.get(&place).and_then(|rows| rows.get(identity)).copied();
        if let Some(row) = known.filter(|&row| batch.add_to_timestamped(row, &value)) {
            return row;
        }
        let row = batch.len();
        if sample.kind != Kind::Gauge {
            self.0.entry(place).or_default().insert(identity.into(), row);
        }
        batch.push_timestamped(sample, value);
        row
    }

    pub fn clear(&mut self) {
        self.0.clear();
    }
}

/// Timestamped samples that leave with the open bucket: they are saved with it, and count with it.
#[derive(Debug, Default)]
pub(crate) struct KeptPoints {
    /// `None`: there are none.
    batch: Option<Batch>,
    rows: TimestampedRows,
    /// By row: the change that was its last.
    changed: Vec<u64>,
}

impl KeptPoints {
    pub fn new(batch: Batch) -> KeptPoints {
        KeptPoints {
            batch: Some(batch),
            ..KeptPoints::default()
        }
    }

    pub fn is_empty(&self) -> bool {
        self.batch.is_none()
    }

    pub fn bytes(&self) -> usize {
        self.batch.as_ref().map_or(0, Batch::bytes)
    }

    pub fn len(&self) -> usize {
        self.changed.len()
    }

    /// `change`: not less than those before it.
    pub fn add(
        &mut self,
        identity: &str,
        sample: &TimestampedSample<'_>,
        value: TimestampedValue,
        change: u64,
    ) {
        let Some(batch) = &mut self.batch else { return };
        let row = self.rows.add(batch, identity, sample, value);
        match self.changed.get_mut(row) {
            Some(changed) => *changed = change,
            None => self.changed.push(change),
        }
    }

    /// As [`KeptPoints::saved`] had it. False: such a series has no timestamp of its own.
    pub fn restore(&mut self, point: &Entry<'_>) -> bool {
        let (Some(named), Some(value)) = (&point.named, TimestampedValue::of(&point.state)) else {
            return false;
        };
        let sample = TimestampedSample {
            kind: point.kind,
            name: named.name,
            host: named.host,
            tags: &named.tags,
            timestamp: point.facts.seen,
        };
        self.add(&sample.identity(), &sample, value, 0);
        true
    }

    pub fn take(&mut self) -> Option<Batch> {
        std::mem::take(self).batch
    }

    /// The rows among these that have changed after `after`, or all of them. In an entry, the time of the last sample holds the timestamp.
    pub fn saved(
        &self,
        rows: Range<usize>,
        after: Option<u64>,
        stamp: ProcessStamp,
    ) -> impl Iterator<Item = Entry<'_>> {
        let batch = self.batch.iter();
        batch.flat_map(move |batch| {
            let changed = rows
                .clone()
                .filter(move |&row| after.is_none_or(|after| self.changed[row] > after));
            changed.map(move |row| entry(row, &batch.row_series(row), stamp))
        })
    }
}

fn entry<'a>(row: usize, series: &Series<'a>, stamp: ProcessStamp) -> Entry<'a> {
    Entry {
        number: row as u32,
        kind: series.kind(),
        named: Some(SeriesName {
            name: series.name(),
            host: series.explicit_host(),
            integration: None,
            tags: series.tags().collect(),
        }),
        facts: Facts {
            seen: series.timestamp(),
            suffixes: series.suffix_mask(),
        },
        state: series.saved(stamp),
    }
}
