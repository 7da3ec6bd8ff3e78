//! Data that is not aggregated: events, service checks, samples with a timestamp.

use std::borrow::Cow;
use std::collections::VecDeque;

use weir_aggregate::{
    Aggregator, Batch, CheckRecord, EventRecord, TimestampedRows, TimestampedSample, TimestampedValue,
};
use weir_context::{OriginKey, OriginTags, Resolved};
use weir_protocol::{Event, Kind, Metric, ServiceCheck, Tags, Values, unescape_newlines};

use super::Ingest;
use crate::columns::is_plausible;
use crate::counts::IngestCounter;
use crate::counts::SampleDrop;
use crate::timestamped::Timestamped;

/// Events, checks and timestamped samples are handed over when this many wait, or with the next tick.
const PASS_THROUGH_MAX: usize = 2048;

/// Or this many bytes.
const PASS_THROUGH_BYTES: usize = 512 * 1024;

/// Batches of passed-on messages that may wait for the hand-over; beyond them events and checks are dropped and counted.
const OUTBOX_MAX: usize = 8;

/// Bytes of such batches beyond which samples are dropped and counted too: more than the packets between two hand-overs make.
const OUTBOX_BYTES: usize = 6 << 20;

/// Seconds that a timestamp may be ahead. Beyond them it is no time of a sample: most are milliseconds.
const AHEAD_MAX: i64 = 24 * 60 * 60;

/// The largest timestamp that a sample may have at this time.
pub(crate) fn latest_timestamp(now: i64) -> i64 {
    now.saturating_add(AHEAD_MAX)
}

/// Why a sample with a timestamp is passed on to no output, whatever its series: `now` is the agent's time in Unix seconds.
fn timestamp_fault(metric: &Metric<'_>, now: i64) -> Option<SampleDrop> {
    let timestamp = metric.timestamp?;
    let can_be_passed_on =
        matches!(metric.values, Values::Numbers(_)) && matches!(metric.kind, Kind::Counter | Kind::Gauge);
    if !can_be_passed_on {
        return Some(SampleDrop::UnsupportedTimestampedType);
    }
    (timestamp > latest_timestamp(now)).then_some(SampleDrop::FutureTimestamp)
}

/// Why a message, or one of its samples, is dropped whatever its series. A worker decides by it, and so does all that shows messages.
pub fn metric_fault(metric: &Metric<'_>, now: i64) -> Option<SampleDrop> {
    timestamp_fault(metric, now).or_else(|| match metric.values {
        Values::Numbers(numbers) => (numbers.non_finite > 0).then_some(SampleDrop::NonFinite),
        Values::Member(_) => None,
    })
}

/// The data in transit.
#[derive(Default)]
pub(super) struct PassThrough {
    open_batch: OpenBatch,
    outbox: VecDeque<Batch>,
    /// Of the batches there.
    outbox_bytes: usize,
    timestamped: Timestamped,
    resolved: Resolved,
}

/// The batch that is being filled.
#[derive(Default)]
struct OpenBatch {
    batch: Option<Batch>,
    sequence: u64,
    rows: TimestampedRows,
}

/// A point with a timestamp of its own.
pub(super) struct TimedPoint {
    pub timestamp: i64,
    pub value: TimestampedValue,
}

/// When points with a timestamp of their own leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Leaving {
    /// Within a second, so a kill may lose them.
    Soon,
    /// With the open bucket. They share its fate, and so that of the number of their request.
    WithBucket,
}

impl OpenBatch {
    fn batch(&mut self, aggregator: &Aggregator) -> &mut Batch {
        self.batch.get_or_insert_with(|| {
            self.sequence += 1;
            self.rows.clear();
            aggregator.pass_through_batch(self.sequence)
        })
    }

    fn add(
        &mut self,
        aggregator: &Aggregator,
        identity: &str,
        sample: &TimestampedSample<'_>,
        value: TimestampedValue,
    ) {
        self.batch(aggregator);
        if let Some(batch) = &mut self.batch {
            self.rows.add(batch, identity, sample, value);
        }
    }
}

impl PassThrough {
    /// A full batch waits in the outbox.
    fn close_full_batch(&mut self) {
        let full = |batch: &Batch| {
            batch.len() + batch.events.len() + batch.checks.len() >= PASS_THROUGH_MAX
                || batch.bytes() >= PASS_THROUGH_BYTES
        };
        if self.open_batch.batch.as_ref().is_some_and(full) {
            let batch = self.open_batch.batch.take();
            self.outbox_bytes += batch.as_ref().map_or(0, Batch::bytes);
            self.outbox.extend(batch);
        }
    }

    fn take_full(&mut self) -> Option<Batch> {
        let batch = self.outbox.pop_front()?;
        self.outbox_bytes -= batch.bytes();
        Some(batch)
    }

    /// Whether there is room for another sample.
    fn has_room_for_samples(&self) -> bool {
        self.outbox_bytes < OUTBOX_BYTES
    }

    /// Whether there is room for another event or check.
    fn has_room(&self) -> bool {
        self.outbox.len() < OUTBOX_MAX
    }

    /// The rules have changed.
    pub fn forget_rules(&mut self) {
        self.timestamped = Timestamped::default();
    }
}

impl Ingest {
    /// Hands over what passes without aggregation. Called at least once a second.
    pub fn take_pass_through(&mut self) -> Option<Batch> {
        let full = self.pass_through.take_full();
        full.or_else(|| self.pass_through.open_batch.batch.take())
    }

    /// Points with their own timestamp that would have left with the open bucket, which never ends.
    pub fn take_kept(&mut self) -> Option<Batch> {
        self.aggregator.take_kept()
    }

    /// Whether as many batches wait as may.
    pub fn has_full_outbox(&self) -> bool {
        !self.pass_through.has_room()
    }

    /// Whether [`Ingest::take_full_pass_through`] has something.
    #[inline]
    pub fn has_full_pass_through(&self) -> bool {
        !self.pass_through.outbox.is_empty()
    }

    /// A full batch, before the second is over, so that a high rate does not accumulate.
    pub fn take_full_pass_through(&mut self) -> Option<Batch> {
        self.pass_through.take_full()
    }

    /// Passes a timestamped sample on: no bucket, no rate, no zeros, and no place in the tables either.
    pub(super) fn timestamped(&mut self, metric: &Metric<'_>, listener: usize) {
        if let Some(reason) = timestamp_fault(metric, self.now) {
            self.drop_samples(metric, listener, reason);
            return;
        }
        let (Some(timestamp), Values::Numbers(numbers)) = (metric.timestamp, metric.values) else {
            debug_assert!(false, "a sample with a timestamp");
            return;
        };
        if !self.pass_through.has_room_for_samples() {
            self.drop_samples(metric, listener, SampleDrop::QueueFull);
            return;
        }
        let points = numbers.iter().map(|value| TimedPoint {
            timestamp,
            value: TimestampedValue::Number(value),
        });
        self.pass_on(metric, points, listener, Leaving::Soon);
    }

    /// Passes points of one series on, each with its timestamp.
    pub(super) fn pass_on(
        &mut self,
        metric: &Metric<'_>,
        points: impl Iterator<Item = TimedPoint>,
        listener: usize,
        leaving: Leaving,
    ) {
        let origin_tags = self.origin_tags(&OriginKey::of_message(metric.origin, metric.tags.iter()));
        let tags = with_origin(metric.tags, &origin_tags);
        let PassThrough {
            open_batch,
            timestamped,
            resolved,
            ..
        } = &mut self.pass_through;
        let Some(known) = timestamped.resolve(metric, tags, self.sender, &mut self.contexts, resolved) else {
            let rule = resolved.applied.dropped_by;
            let samples = points.map(|point| point.value.samples()).sum();
            self.counts[listener][IngestCounter::Samples] += samples;
            self.counts[listener].samples_dropped[SampleDrop::Filtered] += samples;
            self.contexts.count_dropped(rule, samples);
            return;
        };
        let tags: Vec<&str> = known.tags.iter().map(|tag| &**tag).collect();
        let mut samples = 0;
        let change = self.gate.numbers.payloads() + 1;
        for TimedPoint { timestamp, value } in points {
            samples += value.samples();
            let sample = TimestampedSample {
                kind: metric.kind,
                name: &known.name,
                host: known.host.as_deref(),
                tags: &tags,
                timestamp,
            };
            match leaving {
                Leaving::Soon => open_batch.add(&self.aggregator, &known.identity, &sample, value),
                Leaving::WithBucket => {
                    self.aggregator
                        .keep_timestamped(&known.identity, &sample, value, change);
                }
            }
        }
        self.counts[listener][IngestCounter::Samples] += samples;
        self.counts[listener][IngestCounter::SamplesTimestamped] += samples;
        self.pass_through.close_full_batch();
    }

    /// The time of an event or a service check: its own, or that of its arrival.
    fn time_of_text(&mut self, own: Option<i64>, listener: usize) -> i64 {
        match own.filter(|&seconds| seconds != 0) {
            Some(seconds) if is_plausible(seconds, self.now) => seconds,
            Some(_) => {
                self.counts[listener][IngestCounter::TimestampsIgnored] += 1;
                self.now
            }
            None => self.now,
        }
    }

    pub(super) fn event(&mut self, event: &Event<'_>, listener: usize) {
        self.counts[listener][IngestCounter::Events] += 1;
        if !self.pass_through.has_room() {
            self.counts[listener][IngestCounter::EventsDropped] += 1;
            return;
        }
        let timestamp = self.time_of_text(event.timestamp, listener);
        let origin_tags = self.origin_tags(&OriginKey::of_message(event.origin, event.tags.iter()));
        let mut tags = with_origin(event.tags, &origin_tags);
        let tag_host = self.contexts.rules().apply_to_tags(&mut tags);
        let record = EventRecord {
            title: unescape_newlines(event.title).into_owned(),
            text: unescape_newlines(event.text).into_owned(),
            timestamp,
            host: if event.host.is_empty() {
                tag_host
            } else {
                Some(event.host.to_string())
            },
            aggregation_key: event.aggregation_key.to_string(),
            source_type: event.source_type.to_string(),
            priority: event.priority,
            alert_type: event.alert_type,
            tags: tags.iter().map(ToString::to_string).collect(),
        };
        self.pass_through
            .open_batch
            .batch(&self.aggregator)
            .push_event(record);
        self.pass_through.close_full_batch();
    }

    pub(super) fn check(&mut self, check: &ServiceCheck<'_>, listener: usize) {
        self.counts[listener][IngestCounter::Checks] += 1;
        if !self.pass_through.has_room() {
            self.counts[listener][IngestCounter::ChecksDropped] += 1;
            return;
        }
        let timestamp = self.time_of_text(check.timestamp, listener);
        let origin_tags = self.origin_tags(&OriginKey::of_message(check.origin, check.tags.iter()));
        let mut tags = with_origin(check.tags, &origin_tags);
        let tag_host = self.contexts.rules().apply_to_tags(&mut tags);
        let record = CheckRecord {
            name: check.name.to_string(),
            status: check.status,
            timestamp,
            host: if check.host.is_empty() {
                tag_host
            } else {
                Some(check.host.to_string())
            },
            message: check.message.to_string(),
            tags: tags.iter().map(ToString::to_string).collect(),
        };
        self.pass_through
            .open_batch
            .batch(&self.aggregator)
            .push_check(record);
        self.pass_through.close_full_batch();
    }
}

/// The tags of a message and those of its origin.
fn with_origin<'a>(tags: Tags<'a>, origin: &'a Option<OriginTags>) -> Vec<Cow<'a, str>> {
    let origin = origin.iter().flat_map(|tags| tags.iter().map(AsRef::as_ref));
    tags.iter().chain(origin).map(Cow::Borrowed).collect()
}
