//! From batches to records of mergeable state.

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::Arc;

use weir_aggregate::{Batch, ProcessStamp, Series, Value};
use weir_merge::{Closing, Plan, Publisher};
use weir_state::{Facts, Identity, SeriesName, State};

use super::index::{Index, Target};
use super::plan::Planned;
use super::rules::FleetRules;
use crate::delivery::{
    AgentIdentity, Class, Clock, Counter, Draft, Encode, Encoded, EncoderState, Items, Reason,
};
use crate::prometheus::{NoState, SavedAt};

/// Bytes that a series of [`TimestampedStates`] takes, about.
const WAITING_BYTES: u64 = 400;

/// Buckets by which an agent's time may be ahead of its clock. One that is further ahead was begun before the clock was set back.
const AHEAD_BUCKETS_MAX: i64 = 3;

/// The saved state of an encoder is found by the settings that it depends on.
pub(super) struct Settings {
    pub place: String,
    pub tenant: String,
    pub host: Arc<str>,
    pub agent: AgentIdentity,
    pub rules: FleetRules,
    pub state_bytes_max: u64,
    pub clock: Clock,
}

/// Rows into the records of their bucket.
pub struct FleetEncoder {
    place: String,
    tenant: String,
    host: Arc<str>,
    agent: AgentIdentity,
    publisher: Publisher,
    index: Index,
    /// The generation of the publisher that the index is of.
    generation: u64,
    rules: FleetRules,
    planned: Arc<Planned>,
    state_bytes_max: u64,
    /// Rows in the bucket that is open.
    rows: u64,
    /// The bucket that was begun last: start and width.
    bucket: Option<(i64, u32)>,
    present: Present,
    waiting: TimestampedStates,
    is_last: bool,
}

/// The time of rows, whose clock may be set back.
struct Present {
    clock: Clock,
    /// The last bucket that was begun before the clock was set back, and the one that its rows go to.
    set_back: Option<(i64, i64)>,
}

impl Present {
    /// The start of a batch's bucket. A bucket that was open when the clock was set back has the time that was wrong, but its samples came a
    /// moment ago: they go to the bucket of the present, which may have two records.
    fn start_of(&mut self, batch: &Batch) -> i64 {
        let (start, width) = (batch.bucket.start, i64::from(batch.bucket.width.max(1)));
        if let Some((_, to)) = self.set_back.filter(|(from, _)| *from == start) {
            return to;
        }
        let now = self.clock.unix();
        if start.saturating_sub(now) <= AHEAD_BUCKETS_MAX * width {
            return start;
        }
        let present = now.div_euclid(width) * width;
        self.set_back = Some((start, present));
        present
    }
}

/// Samples that came with a timestamp, by the start of their bucket. They go with it, or before the next one.
#[derive(Default)]
struct TimestampedStates {
    buckets: BTreeMap<i64, Vec<(Identity, Facts, State)>>,
    rows: u64,
}

impl TimestampedStates {
    fn add(&mut self, bucket: i64, sample: (Identity, Facts, State)) {
        self.buckets.entry(bucket).or_default().push(sample);
        self.rows += 1;
    }

    fn take(&mut self, bucket: i64) -> Vec<(Identity, Facts, State)> {
        let samples = self.buckets.remove(&bucket).unwrap_or_default();
        self.rows -= samples.len() as u64;
        samples
    }

    /// The oldest bucket, if it starts before this one.
    fn next(&self, before: i64) -> Option<i64> {
        let first = self.buckets.keys().next().copied();
        first.filter(|first| *first < before)
    }

    fn bytes(&self) -> u64 {
        self.rows * WAITING_BYTES
    }
}

impl FleetEncoder {
    pub(super) fn new(settings: Settings, planned: Arc<Planned>, epoch: u64) -> Self {
        let Settings {
            place,
            tenant,
            host,
            agent,
            rules,
            state_bytes_max,
            clock,
        } = settings;
        let mut publisher = Publisher::new(&tenant, agent.id, epoch);
        publisher.set_host(&host);
        FleetEncoder {
            publisher,
            place,
            tenant,
            host,
            agent,
            index: Index::default(),
            generation: 0,
            rules,
            planned,
            state_bytes_max,
            rows: 0,
            bucket: None,
            present: Present {
                clock,
                set_back: None,
            },
            waiting: TimestampedStates::default(),
            is_last: false,
        }
    }

    fn stamp(&self) -> ProcessStamp {
        ProcessStamp {
            monotonic_zero: (self.agent.monotonic_zero)(),
            agent: self.agent.id,
        }
    }

    /// Rows of a bucket, some or all.
    fn rows_of_bucket(&mut self, batch: &Batch, plan: &Plan, out: &mut Encoded) {
        let bucket = (self.present.start_of(batch), batch.bucket.width);
        if self.publisher.is_open() && self.bucket != Some(bucket) {
            self.close(out);
        }
        if !self.publisher.is_open() {
            self.publish_waiting(bucket, plan, out);
            self.publisher.begin(bucket.0, bucket.1, plan);
            self.bucket = Some(bucket);
            self.planned.set_width(bucket.1);
        }
        if self.generation != self.publisher.generation() {
            self.index.clear();
            self.generation = self.publisher.generation();
        }
        let stamp = self.stamp();
        for series in batch.yielding_series() {
            if let Err(reason) = self.row(&series, batch, bucket.0, stamp) {
                out.dropped(reason, Class::Points, 1);
            }
        }
    }

    fn row(
        &mut self,
        series: &Series<'_>,
        batch: &Batch,
        bucket: i64,
        stamp: ProcessStamp,
    ) -> Result<(), Reason> {
        if !is_finite(&series.value()) {
            return Err(Reason::NotFinite);
        }
        let target = match self.index.find(series) {
            Some(target) => target,
            None => self.learn(series, batch)?,
        };
        let Target::Place(place) = target else {
            return Err(Reason::Filtered);
        };
        let facts = facts(series, bucket);
        self.publisher.put(place, facts, &series.saved(stamp));
        self.rows += 1;
        Ok(())
    }

    /// A series that comes for the first time.
    fn learn(&mut self, series: &Series<'_>, batch: &Batch) -> Result<Target, Reason> {
        if self.bytes() >= self.state_bytes_max || self.index.is_full() {
            return Err(Reason::Memory);
        }
        let publisher = &mut self.publisher;
        let place = self
            .rules
            .named(series, batch, |named| publisher.find(series.kind(), named));
        let target = place.map_or(Target::Nowhere, Target::Place);
        self.index.insert(series, target);
        Ok(target)
    }

    /// Samples with a timestamp of their own.
    fn timestamped(&mut self, batch: &Batch, out: &mut Encoded) {
        let (stamp, width) = (self.stamp(), i64::from(batch.bucket.width.max(1)));
        for series in batch.yielding_series() {
            let bucket = series.timestamp().div_euclid(width) * width;
            let refused = if !is_finite(&series.value()) {
                Some(Reason::NotFinite)
            } else if self.bytes() >= self.state_bytes_max {
                Some(Reason::Memory)
            } else {
                let kind = series.kind();
                let named = |named: &SeriesName<'_>| named.identity(kind);
                match self.rules.named(&series, batch, named) {
                    None => Some(Reason::Filtered),
                    Some(identity) => {
                        let facts = facts(&series, bucket);
                        self.waiting.add(bucket, (identity, facts, series.saved(stamp)));
                        None
                    }
                }
            };
            if let Some(reason) = refused {
                out.dropped(reason, Class::Points, 1);
            }
        }
    }

    /// Publishes rows that wait for buckets before this one. No bucket is open.
    fn publish_waiting(&mut self, (before, width): (i64, u32), plan: &Plan, out: &mut Encoded) {
        while let Some(bucket) = self.waiting.next(before) {
            self.publisher.begin(bucket, width, plan);
            self.add_waiting(bucket);
            let closing = self.publisher.close_partly();
            self.draft(closing, out);
        }
    }

    /// Adds rows that wait for the open bucket.
    fn add_waiting(&mut self, bucket: i64) {
        for (identity, facts, state) in self.waiting.take(bucket) {
            self.publisher.add(&identity, facts, &state);
        }
    }

    fn close(&mut self, out: &mut Encoded) {
        if let Some((start, _)) = self.bucket.filter(|_| self.publisher.is_open()) {
            self.add_waiting(start);
        }
        let closing = self.publisher.close(self.is_last);
        self.draft(closing, out);
    }

    /// Publishes the open bucket, and rows that wait for buckets before `before`.
    fn publish_until(&mut self, before: i64, out: &mut Encoded) {
        self.close(out);
        if let (Some((_, width)), Some(plan)) = (self.bucket, self.planned.known()) {
            self.publish_waiting((before, width), &plan, out);
        }
    }

    /// Records as payloads. One without a series counts as a point, which no batch brought.
    fn draft(&mut self, closing: Closing, out: &mut Encoded) {
        self.rows = 0;
        out.dropped(Reason::TooLarge, Class::Points, closing.too_large_rows);
        for record in closing.records {
            if record.rows == 0 {
                out.made += Items::of(Class::Points, 1);
            }
            out.payloads.push(Draft {
                route: record.partition as u16,
                class: Class::Points,
                count: record.rows.max(1) as u32,
                body: record.bytes,
            });
        }
    }
}

impl Encode for FleetEncoder {
    fn counter(&self) -> Counter {
        Box::new(|batch| Items::of_batch(batch, batch.len() as u64))
    }

    fn encode(&mut self, batch: &Batch, out: &mut Encoded) {
        out.points_only(batch);
        if batch.partitions.is_empty() {
            return self.timestamped(batch, out);
        }
        match self.planned.get() {
            Some(plan) => self.rows_of_bucket(batch, &plan, out),
            None => out.dropped(Reason::NotReady, Class::Points, batch.len() as u64),
        }
    }

    /// The bucket is complete, or nothing arrived for a while. Later rows for it go into further records.
    fn finish(&mut self, out: &mut Encoded) {
        self.close(out);
    }

    fn open(&self) -> Items {
        Items::of(Class::Points, self.rows + self.waiting.rows)
    }

    fn state(&mut self) -> Option<&mut dyn EncoderState> {
        Some(self)
    }
}

impl EncoderState for FleetEncoder {
    /// Announces the agent's end, in records of the last bucket.
    fn end(&mut self, out: &mut Encoded) {
        self.publish_until(i64::MAX, out);
        if let (Some((start, width)), Some(plan)) = (self.bucket, self.planned.known()) {
            self.is_last = true;
            self.publisher.begin(start, width, &plan);
        }
    }

    fn lineage(&self) -> String {
        self.place.clone()
    }

    /// It is names and numbers.
    fn adds_up(&self) -> bool {
        false
    }

    fn limit(&mut self, bytes_max: u64) {
        self.state_bytes_max = bytes_max;
    }

    fn bytes(&self) -> u64 {
        (self.index.heap_bytes() + self.publisher.heap_bytes()) as u64 + self.waiting.bytes()
    }

    fn inherit(&mut self, other: Box<dyn Any>) {
        let Ok(other) = other.downcast::<FleetEncoder>() else {
            return;
        };
        self.publisher = other.publisher;
        self.publisher.set_tenant(&self.tenant);
        self.publisher.set_host(&self.host);
        self.publisher.forget();
        (self.bucket, self.waiting) = (other.bucket, other.waiting);
    }

    /// The numbers of records belong to this process. Rows that wait for the open bucket or a later one stay: a record of such a bucket
    /// would say that the agent has passed the earlier ones.
    fn save(&mut self, out: &mut Encoded) -> Vec<u8> {
        let open = self.bucket.map_or(0, |(start, width)| start + i64::from(width));
        self.publish_until(open, out);
        Vec::new()
    }

    fn restore(&mut self, _: &[u8], _: SavedAt) -> Result<u64, NoState> {
        Ok(0)
    }
}

fn facts(series: &Series<'_>, bucket: i64) -> Facts {
    Facts {
        // Rows lack the second of their last sample; a second before the bucket means that it had none.
        seen: if series.is_idle() { bucket - 1 } else { bucket },
        suffixes: series.suffix_mask(),
    }
}

fn is_finite(value: &Value<'_>) -> bool {
    match value {
        Value::Counter(value) | Value::Gauge(value) => value.is_finite(),
        Value::Set(_) => true,
        Value::Histogram(histogram) => {
            let mut samples = histogram.samples();
            let totals = histogram.totals();
            samples.all(|(value, weight)| value.is_finite() && weight.is_finite())
                && [totals.min, totals.max, totals.sum, totals.weight]
                    .iter()
                    .all(|total| total.is_finite())
        }
        Value::Distribution(sketch) => [sketch.min(), sketch.max(), sketch.sum()]
            .iter()
            .all(|value| value.is_finite()),
    }
}
