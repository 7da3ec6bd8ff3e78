//! The history: takes flushes, closes segments, removes the oldest.

use std::borrow::Cow;
use std::collections::VecDeque;

use serde::{Deserialize, Serialize};
use weir_aggregate::{Batch, Series, Value};
use weir_context::HashSecret;
use weir_sketch::Sketch;

use crate::dictionary::{AdoptError, Dictionary, KnownSeries, SeriesId, SeriesKey, SeriesKind};
use crate::segment::{Combine, OpenBucket, SEGMENT_BUCKETS, Segment};

/// Open buckets may use this fraction of the memory. Closing them briefly takes as much again.
const OPEN_SHARE: usize = 8;
/// The dictionary may use all but this fraction of the memory: a series without room for a point is useless.
const DICTIONARY_SHARE: usize = 4;

/// The last minutes of every series. See the crate's documentation.
#[derive(Debug)]
pub struct History {
    bytes_max: usize,
    pub(crate) dictionary: Dictionary,
    pub(crate) segments: VecDeque<Segment>,
    /// Ordered by time. The last bucket takes points.
    pub(crate) open: Vec<OpenBucket>,
    segment_bytes: usize,
    open_bytes: usize,
    counts: Counts,
    secret: HashSecret,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    taken: u64,
    refused: u64,
    late: u64,
    evicted: u64,
}

/// The contents of a history and the fate of every point.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    pub bytes_max: usize,
    pub bytes: usize,
    /// Names, tags and series.
    pub dictionary_bytes: usize,
    pub series: usize,
    pub metrics: usize,
    pub points: usize,
    /// Unix seconds of the oldest bucket, and of the one that was added last; zero without buckets.
    pub from: i64,
    pub to: i64,
    /// Points received.
    pub taken: u64,
    /// Points of new series that found no memory.
    pub refused: u64,
    /// Points with a timestamp before the open buckets.
    pub late: u64,
    /// Points removed, oldest first.
    pub evicted: u64,
}

impl History {
    pub fn new(bytes_max: usize) -> Self {
        History {
            bytes_max,
            dictionary: Dictionary::default(),
            segments: VecDeque::new(),
            open: Vec::new(),
            segment_bytes: 0,
            open_bytes: 0,
            counts: Counts::default(),
            secret: HashSecret::random(),
        }
    }

    /// Adds a part of a flush.
    pub fn take(&mut self, batch: &Batch) {
        if batch.series().len() > 0 && !batch.partitions.is_empty() {
            self.begin(batch.bucket.timestamp, batch.bucket.width);
        }
        for group in batch.yielding_groups() {
            self.dictionary
                .prefetch(group.clone().filter_map(|series| series.context()));
            for series in group {
                if series.is_timestamped() {
                    self.take_timestamped(&series);
                } else {
                    self.take_row(&series);
                }
            }
        }
        if batch.last {
            self.end();
        } else {
            self.measure();
            self.fit();
        }
    }

    fn take_row(&mut self, series: &Series<'_>) {
        let key = |kind| SeriesKey {
            context: series.context(),
            hash: series.hash(),
            kind,
            name: series.name(),
            suffix: "",
            host: series.explicit_host(),
            tags: series.tags(),
        };
        match series.value() {
            Value::Counter(sum) => self.push(&key(SeriesKind::Counter), sum),
            Value::Gauge(value) => self.push(&key(SeriesKind::Gauge), value),
            Value::Set(members) => self.push(&key(SeriesKind::Set), members.cardinality() as f64),
            Value::Distribution(sketch) => self.push_sketch(&key(SeriesKind::Distribution), sketch),
            // Its aggregates could not be merged over contexts or time.
            Value::Histogram(histogram) => {
                self.push_sketch(&key(SeriesKind::Histogram), &histogram.as_sketch());
            }
        }
    }

    /// A hash for the keys of a caller that has none.
    pub fn hash<'t>(&self, name: &str, tags: impl Iterator<Item = &'t str>) -> u64 {
        tags.fold(self.secret.bytes(name.as_bytes()), |hash, tag| {
            self.secret.pair(tag.as_bytes(), &[], hash)
        })
    }

    /// Starts the bucket of this time, unless it is the current one.
    pub fn begin(&mut self, time: i64, width: u32) {
        if self.open.last().is_some_and(|open| open.time == time) {
            return;
        }
        // The last batch of a flush can be missing, and with it the end of its bucket.
        if self.open.len() >= SEGMENT_BUCKETS {
            self.end();
        }
        self.open.push(OpenBucket::new(time, width));
    }

    /// Adds a point to the current bucket.
    pub fn push<'t>(&mut self, key: &SeriesKey<'_, impl Iterator<Item = &'t str> + Clone>, value: f64) {
        if let Some(id) = self.place(key)
            && let Some(open) = self.open.last_mut()
        {
            open.push(id, value);
        }
    }

    /// Adds a sketch to the current bucket.
    pub fn push_sketch<'t>(
        &mut self,
        key: &SeriesKey<'_, impl Iterator<Item = &'t str> + Clone>,
        sketch: &Sketch,
    ) {
        if let Some(id) = self.place(key)
            && let Some(open) = self.open.last_mut()
        {
            open.push_sketch(id, sketch);
        }
    }

    fn place<'t>(&mut self, key: &SeriesKey<'_, impl Iterator<Item = &'t str> + Clone>) -> Option<SeriesId> {
        self.counts.taken += 1;
        let time = self.open.last()?.time;
        let known = key
            .context
            .and_then(|context| self.dictionary.of_context(context));
        let id = match known {
            Some(id) => id,
            None => self.place_texts(key, time)?,
        };
        self.dictionary.hold(id, time);
        Some(id)
    }

    /// Finds or makes the series of a context that is not known yet.
    fn place_texts<'t>(
        &mut self,
        key: &SeriesKey<'_, impl Iterator<Item = &'t str> + Clone>,
        time: i64,
    ) -> Option<SeriesId> {
        let known = self
            .dictionary
            .find(key)
            .or_else(|| self.dictionary.recognise(key));
        let id = match known {
            Some(id) => id,
            None if self.dictionary.heap_bytes() / 3 >= self.bytes_max / DICTIONARY_SHARE => {
                self.counts.refused += 1;
                return None;
            }
            None => self.dictionary.insert(key, time),
        };
        if let Some(context) = key.context {
            self.dictionary.remember(context, id);
        }
        Some(id)
    }

    /// Adds a sample with a timestamp of its own to the open bucket of that time.
    fn take_timestamped(&mut self, series: &Series<'_>) {
        let (kind, value) = match series.value() {
            Value::Counter(value) => (SeriesKind::Counter, value),
            Value::Gauge(value) => (SeriesKind::Gauge, value),
            _ => return,
        };
        let key = SeriesKey {
            context: None,
            // These rows have no hash, because they are in no table.
            hash: self.hash(series.name(), series.tags()),
            kind,
            name: series.name(),
            suffix: "",
            host: series.explicit_host(),
            tags: series.tags(),
        };
        let time = series.timestamp();
        let covers = |open: &OpenBucket| open.time <= time && time < open.time + i64::from(open.width);
        let Some(at) = self.open.iter().rposition(covers) else {
            self.counts.taken += 1;
            self.counts.late += 1;
            return;
        };
        if let Some(id) = self.place(&key) {
            self.open[at].push(id, value);
        }
    }

    /// Ends the current bucket and makes room for the next.
    pub fn end(&mut self) {
        if let Some((last, others)) = self.open.split_last_mut() {
            last.shrink(others.last());
        }
        self.measure();
        if self.open.len() >= SEGMENT_BUCKETS || self.open_bytes > self.bytes_max / OPEN_SHARE {
            self.close();
        }
        self.fit();
    }

    fn measure(&mut self) {
        self.open_bytes = self.open.iter().map(OpenBucket::heap_bytes).sum();
    }

    fn close(&mut self) {
        let buckets = std::mem::take(&mut self.open);
        self.open_bytes = 0;
        self.push_segment(self.segment(&buckets));
        for bucket in &buckets {
            bucket.ids().for_each(|id| self.dictionary.release(id));
        }
        self.dictionary.forget_contexts();
    }

    /// The segment of these buckets.
    pub(crate) fn segment(&self, buckets: &[OpenBucket]) -> Segment {
        let dictionary = &self.dictionary;
        let again = |id| match dictionary
            .series(id)
            .and_then(|series| dictionary.name_of(series))
        {
            Some(name) if name.kind == SeriesKind::Counter => Combine::Add,
            _ => Combine::Replace,
        };
        Segment::close(buckets, again)
    }

    /// Adds a segment that is newer than all others.
    pub(crate) fn push_segment(&mut self, segment: Segment) {
        segment.ids().for_each(|id| self.dictionary.hold(id, i64::MIN));
        self.segment_bytes += segment.heap_bytes();
        self.segments.push_back(segment);
    }

    fn bytes(&self) -> usize {
        self.dictionary.heap_bytes() + self.segment_bytes + self.open_bytes
    }

    /// Removes the oldest time until the rest fits, with room for the next closing.
    pub(crate) fn fit(&mut self) {
        let room = self.bytes_max - self.bytes_max / OPEN_SHARE;
        while self.bytes() > room {
            if let Some(segment) = self.segments.pop_front() {
                self.segment_bytes -= segment.heap_bytes();
                self.evict(&segment);
                segment.ids().for_each(|id| self.dictionary.release(id));
            } else if self.open.is_empty() {
                // Only tables are left, with capacity for more entries.
                self.dictionary = Dictionary::default();
                return;
            } else {
                let bucket = self.open.remove(0);
                self.counts.evicted += bucket.points() as u64;
                bucket.ids().for_each(|id| self.dictionary.release(id));
                drop(bucket);
                // The others share its ids, so each has a larger part of them now.
                self.measure();
            }
        }
    }

    pub(crate) fn evict(&mut self, segment: &Segment) {
        self.counts.evicted += segment.points() as u64;
    }

    /// Time and width of every bucket, in order.
    pub(crate) fn buckets(&self) -> impl Iterator<Item = (i64, u32)> + '_ {
        let open = self.open.iter().map(|open| (open.time, open.width));
        self.segments.iter().flat_map(Segment::buckets).chain(open)
    }

    /// Time and width of the newest bucket.
    pub fn newest(&self) -> Option<(i64, u32)> {
        let closed = || self.segments.back().and_then(|segment| segment.buckets().last());
        self.open
            .last()
            .map(|open| (open.time, open.width))
            .or_else(closed)
    }

    pub fn figures(&self) -> Figures {
        let Counts {
            taken,
            refused,
            late,
            evicted,
        } = self.counts;
        let open_points: usize = self.open.iter().map(OpenBucket::points).sum();
        Figures {
            bytes_max: self.bytes_max,
            bytes: self.bytes(),
            dictionary_bytes: self.dictionary.heap_bytes(),
            series: self.dictionary.series_len(),
            metrics: self.dictionary.names_len(),
            points: open_points + self.segments.iter().map(Segment::points).sum::<usize>(),
            from: self.buckets().map(|(time, _)| time).min().unwrap_or(0),
            to: self.newest().map_or(0, |(time, _)| time),
            taken,
            refused,
            late,
            evicted,
        }
    }
}

// Hands a history to the next process in parts: its series, then its buckets, oldest first.

/// The parts, sent and added in this order.
#[derive(Debug, Serialize, Deserialize)]
pub enum Part<'a> {
    Series(KnownSeries<'a>),
    Buckets(Cow<'a, Segment>),
}

impl History {
    /// All parts.
    pub fn parts(&self) -> impl Iterator<Item = Part<'_>> {
        let open = (!self.open.is_empty()).then(|| Cow::Owned(self.segment(&self.open)));
        let segments = self.segments.iter().map(Cow::Borrowed).chain(open);
        std::iter::once(Part::Series(self.dictionary.known())).chain(segments.map(Part::Buckets))
    }

    /// Adds a part from another process, before this process adds a bucket. Removes the oldest data if it does not fit. An error says why
    /// the part was refused.
    pub fn adopt(&mut self, part: Part<'_>) -> Result<(), AdoptError> {
        match part {
            Part::Series(_) if self.newest().is_some() => Err(AdoptError("series come before buckets")),
            Part::Series(known) => self.dictionary.adopt(&known),
            Part::Buckets(_) if !self.open.is_empty() => Err(AdoptError("this process has buckets already")),
            Part::Buckets(segment) => self.adopt_segment(segment.into_owned()),
        }
    }

    fn adopt_segment(&mut self, segment: Segment) -> Result<(), AdoptError> {
        if !segment.is_sound() {
            return Err(AdoptError("a segment is damaged"));
        }
        if self.dictionary.series_len() == 0 {
            // The series alone filled the memory.
            self.evict(&segment);
            return Ok(());
        }
        if segment.ids().any(|id| self.dictionary.series(id).is_none()) {
            return Err(AdoptError("a segment has points of unknown series"));
        }
        self.push_segment(segment);
        self.fit();
        Ok(())
    }

    /// Called after the last part. Removes series without points.
    pub fn adopted(&mut self) {
        self.dictionary.adopted();
    }
}
