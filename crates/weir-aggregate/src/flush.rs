//! The output of a flush: batches of rows. A row is a context with the state of its closed bucket, texts included.
//!
//! A batch refers to nothing outside itself, so it can be shared by outputs, merged with batches of other workers, or saved.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use weir_context::{ContextKey, PARTITIONS};
use weir_protocol::{AlertType, CheckStatus, Kind, Priority};
use weir_sketch::Sketch;
use weir_state::{Distribution, ExactSum, Gauge as SavedGauge, State as Record};

use crate::aggregator::ProcessStamp;
use crate::histogram::Histogram;
use crate::member_set::MemberSet;

mod fleet;
mod timestamped;
mod writer;

pub(crate) use timestamped::KeptPoints;
pub use timestamped::{TimestampedRows, TimestampedSample, TimestampedValue};
pub(crate) use writer::RowWriter;

/// After this many rows a batch is handed over at the next partition boundary. This bounds a flush's memory to about one megabyte of texts
/// at usual lengths, and keeps the cost of messages between threads low.
pub const BATCH_ROWS: usize = 4096;

/// The same in bytes, because histograms and sets can be large: the default, and the most that is useful.
pub const BATCH_BYTES: usize = 1 << 20;

/// Rows of a group: as many prefetches as are useful at once.
const GROUP_ROWS: usize = 16;

/// Groups between two offers of the core: a few hundred microseconds of work.
const YIELD_GROUPS: usize = 16;

/// A closed time window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bucket {
    /// Unix seconds, a multiple of the width.
    pub start: i64,
    /// Unix seconds of its points. Normally the start. The first bucket after a start of the process has the process's start time instead,
    /// so that it cannot overwrite points of the previous process for the same window.
    pub timestamp: i64,
    /// Seconds.
    pub width: u32,
}

/// The maker of a batch, and the number of the batch in the maker's gap-free sequence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BatchSource {
    pub worker: u16,
    pub sequence: u64,
}

/// An event, ready for delivery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventRecord {
    pub title: String,
    pub text: String,
    /// Unix seconds, given by the sender or taken on receipt.
    pub timestamp: i64,
    /// `None`: the agent's own host.
    pub host: Option<String>,
    pub aggregation_key: String,
    pub source_type: String,
    pub priority: Priority,
    pub alert_type: AlertType,
    pub tags: Vec<String>,
}

/// A service check, ready for delivery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckRecord {
    pub name: String,
    pub status: CheckStatus,
    /// Unix seconds, given by the sender or taken on receipt.
    pub timestamp: i64,
    /// `None`: the agent's own host.
    pub host: Option<String>,
    pub message: String,
    pub tags: Vec<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Span {
    start: u32,
    len: u32,
}

#[derive(Clone, Debug)]
struct Row {
    /// `None`: not a row of a worker's context.
    context: Option<ContextKey>,
    hash: u64,
    /// Unix seconds of a timestamped sample; zero for aggregated rows.
    timestamp: i64,
    name: Span,
    host: Option<Span>,
    jmx_check: Option<Span>,
    /// Range in `Batch::tags`.
    tags: Span,
    suffix_mask: u32,
    kind: Kind,
    /// A zero of a counter without samples.
    idle: bool,
    value: RowValue,
}

/// Numbers in place; larger values by their index in the batch.
#[derive(Clone, Copy, Debug)]
enum RowValue {
    Counter(f64),
    Gauge { value: f64, received: u64 },
    Set(u32),
    Histogram(u32),
    Distribution(u32),
}

/// A part of one flush.
#[derive(Clone, Debug)]
pub struct Batch {
    pub source: BatchSource,
    pub bucket: Bucket,
    /// Partitions with rows in this batch, in ascending order; with [`weir_context::Partitioning::Hash`] all rows of each. Empty for
    /// timestamped samples, events and checks.
    pub partitions: std::ops::Range<usize>,
    /// The last batch of its bucket and worker.
    pub last: bool,
    /// Rows that this worker has handed over for this bucket, including this batch. A receiver that counted fewer has lost some.
    pub rows_of_bucket: u64,
    /// With the last batch of a bucket: samples of this bucket and of all that ended before it since the process started, including those
    /// that it continued.
    pub samples_until: u64,
    /// With the last batch of a bucket: points with their own timestamp whose samples count with this bucket. They leave before it.
    pub timestamped: Vec<Batch>,
    /// The agent's hostname, for rows and messages without a host.
    pub hostname: std::sync::Arc<str>,
    pub events: Vec<EventRecord>,
    pub checks: Vec<CheckRecord>,
    texts: Texts,
    rows: Vec<Row>,
    /// Index of the first row of each partition in `partitions`.
    partition_starts: Vec<u32>,
    bodies: Bodies,
    in_transit: TransitBytes,
}

#[derive(Clone, Debug, Default)]
struct Texts {
    /// All texts, joined.
    all: String,
    /// Their places in it, tag list by tag list.
    tags: Vec<Span>,
}

/// Values that do not fit into a row. Boxed as in the worker's state, so a flush moves pointers instead of bodies.
#[derive(Clone, Debug, Default)]
#[allow(clippy::vec_box)]
struct Bodies {
    sets: Vec<Box<MemberSet>>,
    histograms: Vec<Box<Histogram>>,
    distributions: Vec<Box<Sketch>>,
    /// Bytes of these and of the batch's events and checks, as of their arrival in the batch.
    bytes: usize,
}

/// Lengths of a batch: of its texts, of its tags, of its rows.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Room {
    text: usize,
    tags: usize,
    rows: usize,
}

impl Room {
    /// Room for both.
    pub fn max(self, other: Room) -> Room {
        Room {
            text: self.text.max(other.text),
            tags: self.tags.max(other.tags),
            rows: self.rows.max(other.rows),
        }
    }
}

/// Counts the bytes of a batch in transit, for as long as this value exists.
#[derive(Debug, Default)]
struct TransitBytes(Option<(Arc<AtomicUsize>, usize)>);

impl Clone for TransitBytes {
    /// A copy counts nothing.
    fn clone(&self) -> Self {
        TransitBytes(None)
    }
}

impl Drop for TransitBytes {
    fn drop(&mut self) {
        if let Some((bytes, of_batch)) = self.0.take() {
            bytes.fetch_sub(of_batch, Ordering::Relaxed);
        }
    }
}

/// State of a context in one bucket.
#[derive(Clone, Copy, Debug)]
pub enum Value<'a> {
    /// Sum of the bucket with sample rates applied; divide by the interval for a rate. For a timestamped sample: its value.
    Counter(f64),
    Gauge(f64),
    Set(&'a MemberSet),
    /// Histograms and timings.
    Histogram(&'a Histogram),
    Distribution(&'a Sketch),
}

/// One row of a batch: a context and its state in the batch's bucket, or one timestamped sample.
#[derive(Clone, Copy, Debug)]
pub struct Series<'a> {
    batch: &'a Batch,
    row: &'a Row,
}

impl<'a> Series<'a> {
    pub fn name(&self) -> &'a str {
        self.batch.text(self.row.name)
    }

    /// `None`: the agent's own host, which is `Batch::hostname`. Empty: explicitly no host.
    pub fn explicit_host(&self) -> Option<&'a str> {
        self.row.host.map(|span| self.batch.text(span))
    }

    /// The host to report: the message's, or else the agent's.
    pub fn host(&self) -> &'a str {
        self.explicit_host().unwrap_or(&self.batch.hostname)
    }

    /// Sorted by bytes, no duplicates.
    pub fn tags(&self) -> impl ExactSizeIterator<Item = &'a str> + Clone + use<'a> {
        let batch = self.batch;
        let Span { start, len } = self.row.tags;
        batch.texts.tags[start as usize..(start + len) as usize]
            .iter()
            .map(move |&span| batch.text(span))
    }

    /// The place of its tags in the batch. Series of one batch with the same place have the same tags; so may others.
    pub fn tag_list(&self) -> usize {
        // An empty list begins where the next one does.
        match self.row.tags.len {
            0 => 0,
            _ => self.row.tags.start as usize + 1,
        }
    }

    /// Name of the integration, for metrics that came through one.
    pub fn jmx_check(&self) -> Option<&'a str> {
        self.row.jmx_check.map(|span| self.batch.text(span))
    }

    pub fn kind(&self) -> Kind {
        self.row.kind
    }

    /// The worker's context. Rows of several workers that were merged have that of one of them. `None`: only the texts identify the
    /// series.
    pub fn context(&self) -> Option<ContextKey> {
        self.row.context
    }

    /// Equal for equal contexts within one process. Equality still needs a comparison.
    pub fn hash(&self) -> u64 {
        self.row.hash
    }

    /// Unix seconds.
    pub fn timestamp(&self) -> i64 {
        if self.row.timestamp != 0 {
            self.row.timestamp
        } else {
            self.batch.bucket.timestamp
        }
    }

    /// The first partition of its batch: of a fleet's log, the one that has the series.
    pub fn partition(&self) -> u32 {
        self.batch.partitions.start as u32
    }

    /// Whether the sender gave the timestamp. Such a row is a single sample, not the state of a bucket.
    pub fn is_timestamped(&self) -> bool {
        self.row.timestamp != 0
    }

    /// Whether this is the zero of a counter without samples in the bucket.
    pub fn is_idle(&self) -> bool {
        self.row.idle
    }

    /// Seconds that a counter's sum covers.
    pub fn interval(&self) -> u32 {
        self.batch.bucket.width
    }

    /// Bit i: the i-th configured histogram suffix passes the name filter.
    pub fn suffix_mask(&self) -> u32 {
        self.row.suffix_mask
    }

    pub fn value(&self) -> Value<'a> {
        match self.row.value {
            RowValue::Counter(sum) => Value::Counter(sum),
            RowValue::Gauge { value, .. } => Value::Gauge(value),
            RowValue::Set(at) => Value::Set(&self.batch.bodies.sets[at as usize]),
            RowValue::Histogram(at) => Value::Histogram(&self.batch.bodies.histograms[at as usize]),
            RowValue::Distribution(at) => Value::Distribution(&self.batch.bodies.distributions[at as usize]),
        }
    }

    /// The value in the form of records.
    pub fn saved(&self, stamp: ProcessStamp) -> Record {
        match self.row.value {
            RowValue::Counter(sum) => Record::Counter(ExactSum::from(sum)),
            RowValue::Gauge { value, received } => {
                let received = match self.row.timestamp {
                    0 => stamp.monotonic_zero.saturating_add_unsigned(received),
                    timestamp => timestamp.saturating_mul(1_000_000_000),
                };
                Record::Gauge(SavedGauge::new(value, received, stamp.agent))
            }
            RowValue::Set(at) => Record::Set(self.batch.bodies.sets[at as usize].saved()),
            RowValue::Histogram(at) => Record::Samples(self.batch.bodies.histograms[at as usize].saved()),
            RowValue::Distribution(at) => Record::from(Distribution::new(
                &self.batch.bodies.distributions[at as usize],
                0.0,
            )),
        }
    }

    /// Whether both have the same context: kind, name, host and tags.
    pub fn same_context(&self, other: &Series<'_>) -> bool {
        self.row.hash == other.row.hash
            && self.row.kind == other.row.kind
            && self.name() == other.name()
            && self.explicit_host() == other.explicit_host()
            && self.tags().eq(other.tags())
    }
}

impl Batch {
    /// An empty batch; `make` fills it.
    pub fn new(source: BatchSource, bucket: Bucket, hostname: std::sync::Arc<str>) -> Self {
        Batch {
            source,
            bucket,
            partitions: 0..0,
            last: false,
            rows_of_bucket: 0,
            samples_until: 0,
            timestamped: Vec::new(),
            hostname,
            events: Vec::new(),
            checks: Vec::new(),
            texts: Texts::default(),
            rows: Vec::new(),
            partition_starts: Vec::new(),
            bodies: Bodies::default(),
            in_transit: TransitBytes::default(),
        }
    }

    /// Its lengths now.
    pub(crate) fn room(&self) -> Room {
        Room {
            text: self.texts.all.len(),
            tags: self.texts.tags.len(),
            rows: self.rows.len(),
        }
    }

    /// Reserves so much, and a little more: a batch that grows copies what it holds.
    pub(crate) fn reserve(&mut self, room: Room) {
        let more = |len: usize| len + len / 16;
        self.texts.all.reserve_exact(more(room.text));
        self.texts.tags.reserve_exact(more(room.tags));
        self.rows.reserve_exact(more(room.rows));
    }

    /// Adds the batch to the bytes in transit, until it is dropped or [`Batch::end_transit`] is called.
    pub fn begin_transit(&mut self, bytes: &Arc<AtomicUsize>) {
        let of_batch = self.bytes();
        bytes.fetch_add(of_batch, Ordering::Relaxed);
        self.in_transit = TransitBytes(Some((bytes.clone(), of_batch)));
    }

    /// See [`Batch::begin_transit`].
    pub fn end_transit(&mut self) {
        self.in_transit = TransitBytes::default();
    }

    /// Bytes held, estimated: bodies count as on arrival.
    pub fn bytes(&self) -> usize {
        self.texts.all.capacity()
            + self.texts.tags.capacity() * size_of::<Span>()
            + self.rows.capacity() * size_of::<Row>()
            + self.bodies.bytes
            + self.timestamped.iter().map(Batch::bytes).sum::<usize>()
    }

    pub fn len(&self) -> usize {
        self.rows.len()
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty() && self.events.is_empty() && self.checks.is_empty()
    }

    pub fn series(&self) -> impl ExactSizeIterator<Item = Series<'_>> {
        self.rows.iter().map(|row| Series { batch: self, row })
    }

    /// [`Batch::series`] for a thread that does much with each: it offers its core to others now and then, because on its own the kernel
    /// takes it back at a tick, and a worker that wants it waits for 4 ms.
    pub fn yielding_series(&self) -> impl Iterator<Item = Series<'_>> {
        self.yielding_groups().flatten()
    }

    /// [`Batch::yielding_series`] in groups, for a thread that prefetches the memory of several rows before it reads that of the first.
    pub fn yielding_groups(&self) -> impl Iterator<Item = impl Iterator<Item = Series<'_>> + Clone> {
        self.rows.chunks(GROUP_ROWS).enumerate().map(|(at, rows)| {
            if at % YIELD_GROUPS == YIELD_GROUPS - 1 {
                std::thread::yield_now();
            }
            rows.iter().map(|row| Series { batch: self, row })
        })
    }

    /// Row numbers of one partition.
    pub(crate) fn partition_rows(&self, partition: usize) -> std::ops::Range<usize> {
        if !self.partitions.contains(&partition) {
            return 0..0;
        }
        let at = partition - self.partitions.start;
        let start = self.partition_starts[at] as usize;
        let end = self
            .partition_starts
            .get(at + 1)
            .map_or(self.rows.len(), |&end| end as usize);
        start..end
    }

    pub(crate) fn row_series(&self, row: usize) -> Series<'_> {
        Series {
            batch: self,
            row: &self.rows[row],
        }
    }

    /// Begins the next partition. Partitions are ascending, without gaps.
    pub(crate) fn begin_partition(&mut self, partition: usize) {
        debug_assert!(partition < PARTITIONS);
        if self.partition_starts.is_empty() {
            self.partitions = partition..partition + 1;
        } else {
            debug_assert_eq!(self.partitions.end, partition);
            self.partitions.end = partition + 1;
        }
        self.partition_starts.push(self.rows.len() as u32);
    }

    /// Bytes held, slack included, without events and checks.
    pub fn heap_bytes(&self) -> usize {
        self.texts.all.capacity()
            + self.texts.tags.capacity() * size_of::<Span>()
            + self.rows.capacity() * size_of::<Row>()
            + self.partition_starts.capacity() * 4
            + self
                .bodies
                .sets
                .iter()
                .map(|set| size_of::<MemberSet>() + set.heap_bytes())
                .sum::<usize>()
            + self
                .bodies
                .histograms
                .iter()
                .map(|histogram| size_of::<Histogram>() + histogram.heap_bytes())
                .sum::<usize>()
            + self
                .bodies
                .distributions
                .iter()
                .map(|sketch| size_of::<Sketch>() + sketch.heap_bytes())
                .sum::<usize>()
    }

    fn text(&self, span: Span) -> &str {
        &self.texts.all[span.start as usize..(span.start + span.len) as usize]
    }

    fn push_text(&mut self, text: &str) -> Span {
        let start = u32::try_from(self.texts.all.len()).expect("a batch stays far below 4 GiB of texts");
        self.texts.all.push_str(text);
        Span {
            start,
            len: text.len() as u32,
        }
    }

    fn push_tags<'t>(&mut self, tags: impl Iterator<Item = &'t str>) -> Span {
        let start = self.texts.tags.len() as u32;
        for tag in tags {
            let span = self.push_text(tag);
            self.texts.tags.push(span);
        }
        Span {
            start,
            len: self.texts.tags.len() as u32 - start,
        }
    }

    /// Copies one row of another batch with this value.
    fn push_row_of(&mut self, other: &Batch, row: &Row, value: RowValue) {
        let name = self.push_text(other.text(row.name));
        let host = row.host.map(|span| self.push_text(other.text(span)));
        let jmx_check = row.jmx_check.map(|span| self.push_text(other.text(span)));
        let Span { start, len } = row.tags;
        let tags = self.push_tags(
            other.texts.tags[start as usize..(start + len) as usize]
                .iter()
                .map(|&span| other.text(span)),
        );
        self.rows.push(Row {
            name,
            host,
            jmx_check,
            tags,
            value,
            ..row.clone()
        });
    }

    /// Moves the rows of `other` here, and adds to rows of the same context since `first`. `index` finds those by hash.
    pub(crate) fn merge_rows(
        &mut self,
        other: &mut Batch,
        rows: std::ops::Range<usize>,
        first: usize,
        index: &mut hashbrown::HashTable<u32>,
    ) {
        for at in rows {
            let (hash, incoming) = (other.rows[at].hash, other.rows[at].value);
            let found = index
                .find(hash, |&mine| {
                    self.row_series(mine as usize).same_context(&other.row_series(at))
                })
                .copied()
                .map(|mine| mine as usize);
            debug_assert!(found.is_none_or(|mine| mine >= first));
            match found {
                Some(mine) => {
                    self.rows[mine].idle &= other.rows[at].idle;
                    self.merge_value(mine, other, incoming);
                }
                None => {
                    let value = self.take_value(other, incoming);
                    let row = other.rows[at].clone();
                    self.push_row_of(other, &row, value);
                    let rows = &self.rows;
                    index.insert_unique(hash, rows.len() as u32 - 1, |&row| rows[row as usize].hash);
                }
            }
        }
    }

    fn take_value(&mut self, other: &mut Batch, value: RowValue) -> RowValue {
        match value {
            RowValue::Counter(_) | RowValue::Gauge { .. } => value,
            RowValue::Set(at) => {
                let set = std::mem::take(&mut other.bodies.sets[at as usize]);
                self.bodies.bytes += size_of::<MemberSet>() + set.heap_bytes();
                self.bodies.sets.push(set);
                RowValue::Set(self.bodies.sets.len() as u32 - 1)
            }
            RowValue::Histogram(at) => {
                let histogram = std::mem::take(&mut other.bodies.histograms[at as usize]);
                self.bodies.bytes += size_of::<Histogram>() + histogram.heap_bytes();
                self.bodies.histograms.push(histogram);
                RowValue::Histogram(self.bodies.histograms.len() as u32 - 1)
            }
            RowValue::Distribution(at) => {
                let sketch = std::mem::take(&mut other.bodies.distributions[at as usize]);
                self.bodies.bytes += size_of::<Sketch>() + sketch.heap_bytes();
                self.bodies.distributions.push(sketch);
                RowValue::Distribution(self.bodies.distributions.len() as u32 - 1)
            }
        }
    }

    fn merge_value(&mut self, mine: usize, other: &mut Batch, incoming: RowValue) {
        match (&mut self.rows[mine].value, incoming) {
            (RowValue::Counter(sum), RowValue::Counter(more)) => *sum += more,
            // Batches are in the order of their workers, so at equal times the later worker's value wins.
            (
                RowValue::Gauge { value, received },
                RowValue::Gauge {
                    value: newer,
                    received: at,
                },
            ) => {
                if at >= *received {
                    (*value, *received) = (newer, at);
                }
            }
            (RowValue::Set(mine), RowValue::Set(theirs)) => {
                self.bodies.sets[*mine as usize]
                    .merge(std::mem::take(&mut *other.bodies.sets[theirs as usize]));
            }
            (RowValue::Histogram(mine), RowValue::Histogram(theirs)) => {
                self.bodies.histograms[*mine as usize].merge(&other.bodies.histograms[theirs as usize]);
            }
            (RowValue::Distribution(mine), RowValue::Distribution(theirs)) => {
                self.bodies.distributions[*mine as usize].merge(&other.bodies.distributions[theirs as usize]);
            }
            _ => unreachable!("the kind is part of the context"),
        }
    }
}

impl EventRecord {
    fn bytes(&self) -> usize {
        let texts = [&self.title, &self.text, &self.aggregation_key, &self.source_type];
        let texts: usize = texts.iter().map(|text| text.capacity()).sum();
        size_of::<Self>() + texts + self.host.as_ref().map_or(0, String::capacity) + bytes_of(&self.tags)
    }
}

impl CheckRecord {
    fn bytes(&self) -> usize {
        let host = self.host.as_ref().map_or(0, String::capacity);
        size_of::<Self>() + self.name.capacity() + self.message.capacity() + host + bytes_of(&self.tags)
    }
}

fn bytes_of(texts: &[String]) -> usize {
    texts
        .iter()
        .map(|text| size_of::<String>() + text.capacity())
        .sum()
}

impl Batch {
    pub fn push_event(&mut self, event: EventRecord) {
        self.bodies.bytes += event.bytes();
        self.events.push(event);
    }

    pub fn push_check(&mut self, check: CheckRecord) {
        self.bodies.bytes += check.bytes();
        self.checks.push(check);
    }
}
