//! Columns to buckets. A series finds its context by the bytes that a message of the same name and tags would have, so that rules, limits
//! and identity are those of messages, and so are the contexts.

use weir_aggregate::{SketchParts, TimestampedValue};
use weir_columns::decode::{Points, SeriesFault, SketchPoint};
use weir_columns::wire::MetricType;
use weir_context::{AliasKey, ContextId, LimitReason, Lookup, OriginId, OriginKey};
use weir_protocol::{Kind, Message, Metric, OriginFields, ParseOptions, parse_line};

use super::pass_through::{Leaving, TimedPoint};
use super::{Ingest, Received};
use crate::columns::{ColumnFate, ColumnPayload, point_fault};
use crate::counts::{ColumnCounter, IngestCounter, ParkingCounter, SampleDrop, SeriesRejection};
use crate::gate::PayloadAdmission;
use crate::numbers::{NotedBucket, Verdict};

/// Work of one step, in points. A point of a sketch counts more with each bin, and one that is passed on with its texts.
const STEP_COST: usize = 256;
const BINS_PER_COST: usize = 16;
const TEXT_PER_COST: usize = 256;

/// Bytes of points that wait for the end of the bucket with their own timestamp. Beyond them requests with a number wait for it, too.
const KEPT_BYTES: usize = 6 << 20;

/// The beginning of a line whose end has the tags of a series; name and kind are put in its place.
const HEAD: &str = "n:0|c";

/// The start of a payload.
pub(crate) enum ColumnStart {
    Runs(Box<ColumnRun>),
    /// Its sender or origin is being looked up.
    Waits(Box<ColumnPayload>),
    /// It has been answered.
    Refused,
}

/// A payload that is being added, up to its next point.
pub struct ColumnRun {
    payload: Box<ColumnPayload>,
    sender: OriginId,
    /// Origins that are held until the end.
    held: Vec<OriginId>,
    series: usize,
    point: usize,
    /// A message of the current tags, and the list that they are.
    line: String,
    line_of: Option<u32>,
    /// Sections behind the tags.
    sections: String,
    /// Samples of the listener that had met a limit before it.
    limited: u64,
}

/// Where the samples of a series go.
#[derive(Clone, Copy)]
enum Target {
    Context(Lookup, ContextId),
    Nowhere(SampleDrop),
    Filtered(Lookup),
}

/// The points of one series that are added together.
struct Step<'a> {
    name: &'a str,
    kind: Kind,
    interval: f64,
    /// Seconds between the timestamp and the end of what a gauge's point covers.
    covers: i64,
    listener: usize,
    received: u64,
    /// Of points that keep their timestamp.
    leaving: Leaving,
}

/// Which bucket a point belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Open,
    /// It keeps its timestamp.
    Own,
    Nowhere(SampleDrop),
}

impl Ingest {
    /// Adds a whole payload, without waiting for anything.
    pub fn columns(&mut self, payload: ColumnPayload) {
        if let ColumnStart::Runs(mut run) = self.begin_columns(Box::new(payload), true) {
            while self.proceed_columns(&mut run) {}
            self.end_columns(*run);
        }
    }

    /// Looks at the sender of a payload. `is_late`: it has waited long enough.
    pub(crate) fn begin_columns(&mut self, payload: Box<ColumnPayload>, is_late: bool) -> ColumnStart {
        let listener = payload.listener;
        if self.relays.only {
            (payload.done)(ColumnFate::NotAggregated);
            return ColumnStart::Refused;
        }
        let worker = self.settings.worker;
        if let Some(number) = &payload.number {
            self.gate.numbers.seen(number.client, seconds(payload.received));
            let fate = match self.gate.numbers.verdict(number) {
                Verdict::Yes if self.aggregator.kept_bytes() >= KEPT_BYTES => {
                    return ColumnStart::Waits(payload);
                }
                Verdict::Yes => None,
                Verdict::NoRoom => return ColumnStart::Waits(payload),
                Verdict::TooFar => Some(ColumnFate::TooFar),
                Verdict::Added(payload) => Some(ColumnFate::Duplicate { worker, payload }),
            };
            if let Some(fate) = fate {
                (payload.done)(fate);
                return ColumnStart::Refused;
            }
        }
        // Its length alone counts.
        let packet = Received {
            bytes: &[],
            listener,
            truncated: false,
            received: payload.received,
        };
        let counts = &mut self.counts[listener];
        let admission = self
            .gate
            .admit_payload(&mut self.contexts, counts, &packet, payload.pid, is_late);
        let (container, sender) = match admission {
            PayloadAdmission::Yes { container, sender } => (container, sender),
            PayloadAdmission::Waits => return ColumnStart::Waits(payload),
            PayloadAdmission::Refused(reason) => {
                (payload.done)(ColumnFate::Refused(reason));
                return ColumnStart::Refused;
            }
        };
        let settings = &self.settings.listeners[listener];
        let sender = sender.read(settings.names);
        let mut sections = String::new();
        if settings.parse.origin_client {
            for (letter, text) in [('c', &payload.local_data), ('e', &payload.external_data)] {
                if let Some(text) = text {
                    sections.extend(['|', letter, ':']);
                    sections.push_str(text);
                }
            }
        }
        let held = match self.hold_origins(&payload, sender, is_late) {
            Some(held) => held,
            None => return ColumnStart::Waits(payload),
        };
        let counts = &mut self.counts[listener];
        let size = (payload.bytes, payload.received);
        if !self.gate.admits_rate(counts, container, size) {
            held.into_iter()
                .for_each(|origin| self.contexts.release_origin(origin));
            (payload.done)(ColumnFate::RateLimited);
            return ColumnStart::Refused;
        }
        let limited = counts.limited();
        self.count_payload(&payload);
        ColumnStart::Runs(Box::new(ColumnRun {
            payload,
            sender,
            held,
            series: 0,
            point: 0,
            line: String::new(),
            line_of: None,
            sections,
            limited,
        }))
    }

    /// Holds the origins that the series name, if all of their tags are known. `None`: a look-up is in progress.
    fn hold_origins(
        &mut self,
        payload: &ColumnPayload,
        sender: OriginId,
        is_late: bool,
    ) -> Option<Vec<OriginId>> {
        let mut held = Vec::new();
        if !self.gate.may_wait {
            return Some(held);
        }
        let fields = match self.settings.listeners[payload.listener].parse.origin_client {
            true => OriginFields {
                local: payload.local_data.as_deref(),
                external: payload.external_data.as_deref(),
                cardinality: None,
            },
            false => OriginFields::default(),
        };
        let now = self.aggregator.now();
        let mut are_settled = true;
        for tags in payload.columns.tag_lists() {
            if !held.is_empty() && !tags.contains("dd.internal.") {
                continue;
            }
            let key = OriginKey::of_message(fields, tags.split(','));
            if key.is_sender_only() && self.contexts.origin_tags(sender).settled {
                continue;
            }
            let origin = self.contexts.hold_origin(&key, sender, now);
            are_settled &= self.contexts.origin_tags(origin).settled;
            held.push(origin);
        }
        if are_settled || is_late {
            self.gate.parking.counts[ParkingCounter::GaveUp] += u64::from(!are_settled);
            for &origin in &held {
                self.contexts.settle_origin(origin);
            }
            return Some(held);
        }
        held.into_iter()
            .for_each(|origin| self.contexts.release_origin(origin));
        None
    }

    fn count_payload(&mut self, payload: &ColumnPayload) {
        let counts = &mut self.counts[payload.listener];
        counts[IngestCounter::Packets] += 1;
        counts.columns[ColumnCounter::Payloads] += 1;
        for fault in SeriesFault::ALL {
            let dropped = payload.columns.dropped(fault);
            counts.series_rejected[SeriesRejection::from(fault)] += dropped.series;
            counts[IngestCounter::Messages] += dropped.series;
            counts.columns[ColumnCounter::Points] += dropped.points;
        }
        counts[IngestCounter::Messages] += payload.columns.len() as u64;
        counts[IngestCounter::Metrics] += payload.columns.len() as u64;
        counts.columns[ColumnCounter::Points] += payload.columns.points() as u64;
    }

    pub(crate) fn count_columns(&mut self, listener: usize, counter: ColumnCounter) {
        self.counts[listener].columns[counter] += 1;
    }

    /// Adds the next points. False: there are no more.
    pub(crate) fn proceed_columns(&mut self, run: &mut ColumnRun) -> bool {
        if run.series == run.payload.columns.len() {
            return false;
        }
        self.sender = run.sender;
        let points = self.step(run);
        self.sender = self.gate.unknown_sender;
        run.point += points;
        if run.point >= run.payload.columns.series(run.series).points.len() {
            (run.series, run.point) = (run.series + 1, 0);
        }
        if self.aggregator.body_bytes() >= self.recount_at {
            self.keep_within_memory();
        }
        true
    }

    /// Answers a payload that was added.
    pub(crate) fn end_columns(&mut self, run: ColumnRun) {
        for origin in run.held {
            self.contexts.release_origin(origin);
        }
        let limited = self.counts[run.payload.listener].limited() - run.limited;
        let fate = match &run.payload.number {
            None => ColumnFate::Applied { limited },
            Some(number) => {
                let bucket = NotedBucket {
                    start: self.aggregator.open_bucket().start,
                    ended: Some(self.aggregator.ended_samples()),
                };
                let payload = self
                    .gate
                    .numbers
                    .add(number, bucket, seconds(run.payload.received));
                ColumnFate::Added {
                    worker: self.settings.worker,
                    payload,
                    limited,
                }
            }
        };
        (run.payload.done)(fate);
    }

    /// Adds some points of the current series. Returns how many.
    fn step(&mut self, run: &mut ColumnRun) -> usize {
        let ColumnRun {
            payload,
            series,
            point,
            line,
            line_of,
            sections,
            ..
        } = run;
        let series = payload.columns.series(*series);
        if *line_of != Some(series.tag_list) {
            *line_of = Some(series.tag_list);
            line.clear();
            line.push_str(HEAD);
            if !series.tags.is_empty() {
                line.push_str("|#");
                line.push_str(series.tags);
            }
            line.push_str(sections);
        }
        let step = Step {
            name: series.name,
            kind: match series.kind {
                MetricType::Count | MetricType::Rate => Kind::Counter,
                MetricType::Gauge => Kind::Gauge,
                MetricType::Sketch => Kind::Distribution,
            },
            interval: match series.kind {
                MetricType::Rate => f64::from(series.interval),
                _ => 1.0,
            },
            covers: i64::from(series.interval),
            listener: payload.listener,
            received: payload.received,
            leaving: match payload.number {
                Some(_) => Leaving::WithBucket,
                None => Leaving::Soon,
            },
        };
        match series.points {
            Points::Numbers(points) => {
                let points = points[*point..].iter().map(|point| Value {
                    timestamp: point.timestamp,
                    samples: 1,
                    parts: Parts::Number(point.value * step.interval),
                });
                self.add_points(&step, line, points)
            }
            Points::Sketches(points) => {
                let points = points[*point..].iter().map(|point| Value {
                    timestamp: point.timestamp,
                    samples: point.count,
                    parts: Parts::Sketch(parts(point, payload.columns.bins(point))),
                });
                self.add_points(&step, line, points)
            }
        }
    }

    /// Adds points until they are enough for one step. Returns how many.
    fn add_points<'a>(
        &mut self,
        step: &Step<'_>,
        line: &str,
        points: impl Iterator<Item = Value<'a>>,
    ) -> usize {
        let mut target = None;
        let mut passed_on = Vec::new();
        let (mut added, mut cost) = (0, 0);
        for point in points {
            added += 1;
            cost += 1 + point.bins() / BINS_PER_COST;
            match self.place(&point, step.listener) {
                Place::Open => {
                    let target = *target.get_or_insert_with(|| self.target(step, line));
                    self.add_point(step, target, &point);
                }
                Place::Own => {
                    cost += (step.name.len() + line.len()) / TEXT_PER_COST;
                    passed_on.push(TimedPoint {
                        timestamp: point.timestamp,
                        value: match point.parts {
                            Parts::Number(value) => TimestampedValue::Number(value),
                            Parts::Sketch(parts) => TimestampedValue::Sketch(parts.to_sketch()),
                        },
                    });
                }
                Place::Nowhere(reason) => self.drop_point(step, reason, point.samples),
            }
            if cost >= STEP_COST {
                break;
            }
        }
        if !passed_on.is_empty() {
            self.counts[step.listener].columns[ColumnCounter::PointsPassedOn] += passed_on.len() as u64;
            match metric(step, line) {
                Some(metric) => self.pass_on(&metric, passed_on.into_iter(), step.listener, step.leaving),
                None => debug_assert!(false, "{line:?}"),
            }
        }
        added
    }

    /// Where a point goes by its timestamp.
    fn place(&self, point: &Value<'_>, listener: usize) -> Place {
        let timestamp = point.timestamp;
        if let Some(reason) = point_fault(timestamp, point.is_finite(), self.now) {
            return Place::Nowhere(reason);
        }
        let Some(within) = self.settings.listeners[listener].merge_within else {
            return Place::Own;
        };
        let bucket = self.aggregator.open_bucket();
        let within = i64::from(within);
        let first = bucket.start.min(self.now - within);
        // A clock may be ahead by as much as a point may be late.
        let end = bucket.start + i64::from(bucket.width) + within;
        match (first..end).contains(&timestamp) {
            true => Place::Open,
            false => Place::Own,
        }
    }

    /// Finds the context of a series, as a line with these bytes would.
    fn target(&mut self, step: &Step<'_>, line: &str) -> Target {
        let key = AliasKey {
            head: AliasKey::head(step.kind, self.sender),
            name: step.name.as_bytes(),
            tail: &line.as_bytes()[HEAD.len()..],
        };
        let now = self.aggregator.now();
        let hash = self.contexts.alias_hash(&key);
        let known = self.contexts.find_alias(hash, &key);
        let known = known.and_then(|raw| self.contexts.resolve_raw(raw, now));
        let lookup = known.or_else(|| {
            let metric = metric(step, line)?;
            self.contexts.set_state_bytes(self.aggregator.expected_bytes());
            let lookup = self.contexts.resolve(&metric, self.sender, now);
            if let Lookup::Context(_, raw) | Lookup::DryRun(_, raw) | Lookup::Filtered(raw, _) = lookup {
                self.contexts.remember_alias(hash, &key, raw);
            }
            Some(lookup)
        });
        let Some(lookup) = lookup else {
            debug_assert!(false, "{line:?}");
            return Target::Nowhere(SampleDrop::Filtered);
        };
        match lookup {
            Lookup::Context(id, _)
            | Lookup::DryRun(id, _)
            | Lookup::Overflow(id)
            | Lookup::Unremembered(id) => Target::Context(lookup, id),
            Lookup::Filtered(..) => Target::Filtered(lookup),
            Lookup::Refused(LimitReason::Memory) => Target::Nowhere(SampleDrop::NoMemory),
            Lookup::Refused(_) => Target::Nowhere(SampleDrop::ContextLimit),
        }
    }

    fn add_point(&mut self, step: &Step<'_>, target: Target, point: &Value<'_>) {
        let samples = point.samples;
        let (lookup, id) = match target {
            Target::Context(lookup, id) => (lookup, id),
            Target::Nowhere(reason) => return self.drop_point(step, reason, samples),
            Target::Filtered(lookup) => {
                self.drop_point(step, SampleDrop::Filtered, samples);
                if let Lookup::Filtered(_, rule) = lookup {
                    self.contexts.count_dropped(rule, samples);
                }
                return;
            }
        };
        match point.parts {
            Parts::Number(value) if step.kind == Kind::Gauge => {
                let age = self.now - point.timestamp.saturating_add(step.covers);
                let age_ns = u64::try_from(age).unwrap_or(0).saturating_mul(1_000_000_000);
                let measured = step.received.saturating_sub(age_ns);
                self.aggregator.gauge_measured(id, value, measured);
            }
            Parts::Number(value) => self.aggregator.counter(id, value),
            Parts::Sketch(parts) => self.aggregator.sketch(id, parts),
        }
        let counts = &mut self.counts[step.listener];
        counts[IngestCounter::Samples] += samples;
        counts.columns[ColumnCounter::PointsMerged] += 1;
        match lookup {
            Lookup::Overflow(_) => counts[IngestCounter::SamplesOverflowed] += samples,
            _ => counts[IngestCounter::SamplesAggregated] += samples,
        }
        if let Lookup::DryRun(_, raw) = lookup {
            self.contexts.count_trial(raw, samples);
        }
    }

    fn drop_point(&mut self, step: &Step<'_>, reason: SampleDrop, samples: u64) {
        let counts = &mut self.counts[step.listener];
        counts[IngestCounter::Samples] += samples;
        counts.samples_dropped[reason] += samples;
    }
}

/// Of the monotonic clock.
fn seconds(received: u64) -> u64 {
    received / 1_000_000_000
}

/// The metric that these points are samples of.
fn metric<'a>(step: &Step<'a>, line: &'a str) -> Option<Metric<'a>> {
    let options = ParseOptions {
        origin_client: true,
        ..ParseOptions::default()
    };
    match parse_line(line.as_bytes(), &options) {
        Ok(Message::Metric(metric)) => Some(Metric {
            name: step.name,
            kind: step.kind,
            ..metric
        }),
        _ => None,
    }
}

/// A point of either kind.
struct Value<'a> {
    timestamp: i64,
    samples: u64,
    parts: Parts<'a>,
}

#[derive(Clone, Copy)]
enum Parts<'a> {
    Number(f64),
    Sketch(SketchParts<'a>),
}

impl Value<'_> {
    fn bins(&self) -> usize {
        match self.parts {
            Parts::Number(_) => 0,
            Parts::Sketch(parts) => parts.bins.len(),
        }
    }

    fn is_finite(&self) -> bool {
        match self.parts {
            Parts::Number(value) => value.is_finite(),
            Parts::Sketch(_) => true,
        }
    }
}

fn parts<'a>(point: &SketchPoint, bins: &'a [weir_sketch::Bin]) -> SketchParts<'a> {
    SketchParts {
        count: point.count,
        sum: point.sum,
        min: point.min,
        max: point.max,
        bins,
    }
}
