//! Reads payloads of any sender in bounded memory.
//!
//! A structural error refuses the whole payload: whatever follows it could be anything. An error of one series drops that series alone.
//! Memory is counted before it is taken, so that a small payload cannot become a large one: dictionaries are not expanded, tag sets are
//! written out once each, and points are only announced by bytes that are there.

use std::collections::HashMap;

use weir_sketch::Bin;

use crate::wire::{Column, HAS_UNIT, MetricType, ValueType};

mod dictionaries;
mod fields;
mod series;

use dictionaries::{Resources, TagSets, Texts};
use fields::Fields;

/// Samples of one sketch point, at most. More than any process takes in a window, and few enough to be added up without an overflow.
pub const SKETCH_SAMPLES_MAX: u64 = 1 << 40;

/// Distinct keys of a sketch.
const BINS_MAX: usize = 4096;

/// Steps through tag sets per byte of the payload. Sets that share a set of a hundred tags need about thirty.
const STEPS_PER_BYTE: usize = 64;
const STEPS_LEAST: usize = 1 << 16;

/// The types that an endpoint takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// Counts, rates and gauges.
    Series,
    Sketches,
}

/// Limits of a payload.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of memory, the payload included.
    pub bytes: usize,
    /// Tags of a series.
    pub tags: usize,
    /// Bytes of the tags of a series, and of its name.
    pub text_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            bytes: 64 << 20,
            tags: 1024,
            text_bytes: 32 << 10,
        }
    }
}

/// Why a whole payload is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("byte {0} begins no field: it is truncated, or no protobuf message")]
    NoField(usize),
    #[error("field {0} comes twice; a payload has each column once")]
    Twice(u32),
    #[error("field {0} is not packed: it has wire type {1}; 2 is allowed")]
    NotPacked(u32, u32),
    #[error("{0}: it ends before its last entry, or has an entry that is no number of its type")]
    Short(&'static str),
    #[error("{0}: it has more entries than the series announce")]
    Long(&'static str),
    #[error("{column}: entry {entry} is {index}; 0 to {largest} are allowed")]
    OutOfRange {
        column: &'static str,
        entry: usize,
        index: i64,
        largest: usize,
    },
    #[error("tag sets: set {set} has the index {index}; 1 to {tags} and -1 to -{earlier} are allowed")]
    TagSet {
        set: usize,
        index: i64,
        tags: usize,
        earlier: usize,
    },
    #[error("names: entry {0} is not UTF-8")]
    NameNotUtf8(usize),
    #[error(
        "types: series {series} has the type {found:#x}; 1 (count), 2 (rate), 3 (gauge) and 4 (sketch) are understood"
    )]
    UnknownType { series: usize, found: u64 },
    #[error(
        "types: series {series} is a histogram (type {found}), which is not understood yet; send a sketch (4)"
    )]
    Histogram { series: usize, found: u64 },
    #[error("types: series {0} is a sketch; /sketches takes these")]
    SketchInSeries(usize),
    #[error("types: series {0} is no sketch; /series takes it")]
    SeriesInSketches(usize),
    #[error("it needs more than {0} bytes of memory; send fewer series at once")]
    TooLarge(usize),
    #[error("its tag sets refer to each other too often; send fewer series at once")]
    TooManySteps,
}

/// Why a series is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum SeriesFault {
    /// The name is empty, too long, or has a character that no name may have.
    BadName,
    /// More tags, or longer ones, than a series may have.
    TooManyTags,
    /// A rate without an interval, or an interval that is no time.
    BadInterval,
    /// A sketch whose parts contradict each other.
    BadSketch,
}

impl SeriesFault {
    pub const ALL: [SeriesFault; 4] = [
        SeriesFault::BadName,
        SeriesFault::TooManyTags,
        SeriesFault::BadInterval,
        SeriesFault::BadSketch,
    ];
}

/// Series, points and samples that were dropped for one reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dropped {
    pub series: u64,
    pub points: u64,
    /// The samples that its points announce.
    pub samples: u64,
}

/// A series that was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DroppedSeries<'a> {
    /// Its place in the payload, from 1.
    pub place: usize,
    pub name: &'a str,
    pub fault: SeriesFault,
}

/// Dropped series of a payload that are named. The others are counted.
pub const DROPPED_NAMED: usize = 16;

/// A point of a count, rate or gauge.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Unix seconds.
    pub timestamp: i64,
    /// May be infinite or not a number.
    pub value: f64,
}

/// A point of a sketch. Its parts agree with each other, and it has samples.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SketchPoint {
    /// Unix seconds.
    pub timestamp: i64,
    pub count: u64,
    pub sum: f64,
    pub min: f64,
    pub max: f64,
    bins: Span,
}

/// A range of a table of a payload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Span {
    start: u32,
    len: u32,
}

impl Span {
    fn of<'a, T>(&self, table: &'a [T]) -> &'a [T] {
        &table[self.start as usize..(self.start + self.len) as usize]
    }
}

#[derive(Clone, Copy, Debug)]
struct Row {
    /// Number in the dictionary of names.
    name: u32,
    /// Number of its tags in `tag_lists`.
    tags: u32,
    kind: MetricType,
    interval: u32,
    /// In `points`, or in `sketches`.
    points: Span,
}

/// See [`DroppedSeries`].
#[derive(Clone, Copy, Debug)]
struct DroppedRow {
    place: u32,
    name: u32,
    fault: SeriesFault,
}

/// A payload that was read.
#[derive(Debug)]
pub struct Decoded {
    body: Vec<u8>,
    names: Vec<Span>,
    /// Tags joined by commas.
    tag_texts: String,
    tag_lists: Vec<Span>,
    kept: Kept,
    dropped: [Dropped; SeriesFault::ALL.len()],
    first_dropped: Vec<DroppedRow>,
}

/// One series of a payload.
#[derive(Clone, Copy, Debug)]
pub struct Series<'a> {
    pub name: &'a str,
    /// Joined by commas, as in the tag section of a message. A comma, bar or line end within a tag has become `_`. The host is a tag.
    pub tags: &'a str,
    /// Equal for series of one payload with the same tags.
    pub tag_list: u32,
    pub kind: MetricType,
    /// Seconds; not zero for a rate.
    pub interval: u32,
    pub points: Points<'a>,
}

#[derive(Clone, Copy, Debug)]
pub enum Points<'a> {
    Numbers(&'a [Point]),
    Sketches(&'a [SketchPoint]),
}

impl Points<'_> {
    pub fn len(&self) -> usize {
        match self {
            Points::Numbers(points) => points.len(),
            Points::Sketches(points) => points.len(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Decoded {
    /// Reads a payload.
    pub fn read(body: Vec<u8>, endpoint: Endpoint, limits: &Limits) -> Result<Decoded, Refusal> {
        let mut memory = Memory {
            left: limits.bytes,
            all: limits.bytes,
        };
        if u32::try_from(body.len()).is_err() {
            return Err(Refusal::TooLarge(limits.bytes));
        }
        memory.take(body.len())?;
        let fields = Fields::of(&body)?;
        let mut reading = Reading::new(&fields, limits, body.len(), memory)?;
        reading.read_series(&fields, endpoint)?;
        let Reading {
            names,
            lists,
            kept,
            dropped,
            first_dropped,
            ..
        } = reading;
        let names = names.spans;
        Ok(Decoded {
            body,
            names,
            tag_texts: lists.texts,
            tag_lists: lists.spans,
            kept,
            dropped,
            first_dropped,
        })
    }

    /// Series that are kept.
    pub fn len(&self) -> usize {
        self.kept.rows.len()
    }

    pub fn is_empty(&self) -> bool {
        self.kept.rows.is_empty()
    }

    /// The series at this place.
    pub fn series(&self, at: usize) -> Series<'_> {
        let row = &self.kept.rows[at];
        let points = match row.kind {
            MetricType::Sketch => Points::Sketches(row.points.of(&self.kept.sketches)),
            _ => Points::Numbers(row.points.of(&self.kept.points)),
        };
        Series {
            name: std::str::from_utf8(self.names[row.name as usize].of(&self.body)).unwrap_or_default(),
            tags: self.tags(row.tags),
            tag_list: row.tags,
            kind: row.kind,
            interval: row.interval,
            points,
        }
    }

    fn tags(&self, list: u32) -> &str {
        let span = self.tag_lists[list as usize];
        &self.tag_texts[span.start as usize..(span.start + span.len) as usize]
    }

    /// The tags of all series, each list once, in the form of [`Series::tags`].
    pub fn tag_lists(&self) -> impl ExactSizeIterator<Item = &str> {
        (0..self.tag_lists.len() as u32).map(|list| self.tags(list))
    }

    /// The bins of a point, by ascending key.
    pub fn bins(&self, point: &SketchPoint) -> &[Bin] {
        point.bins.of(&self.kept.bins)
    }

    /// The series that were dropped for this reason.
    pub fn dropped(&self, fault: SeriesFault) -> Dropped {
        self.dropped[fault as usize]
    }

    /// The first series that were dropped, in the order of the payload.
    pub fn dropped_series(&self) -> impl ExactSizeIterator<Item = DroppedSeries<'_>> {
        self.first_dropped.iter().map(|row| {
            let name = self.names.get(row.name as usize);
            let name = name.map_or(&[][..], |name| name.of(&self.body));
            DroppedSeries {
                place: row.place as usize,
                name: std::str::from_utf8(name).unwrap_or_default(),
                fault: row.fault,
            }
        })
    }

    /// Points of all series that are kept.
    pub fn points(&self) -> usize {
        self.kept.points.len() + self.kept.sketches.len()
    }

    /// Bytes held.
    pub fn heap_bytes(&self) -> usize {
        self.body.capacity()
            + (self.names.capacity() + self.tag_lists.capacity()) * size_of::<Span>()
            + self.tag_texts.capacity()
            + self.kept.rows.capacity() * size_of::<Row>()
            + self.kept.points.capacity() * size_of::<Point>()
            + self.kept.sketches.capacity() * size_of::<SketchPoint>()
            + self.kept.bins.capacity() * size_of::<Bin>()
            + self.first_dropped.capacity() * size_of::<DroppedRow>()
    }
}

/// The memory that is left.
#[derive(Clone, Copy)]
struct Memory {
    left: usize,
    all: usize,
}

impl Memory {
    fn take(&mut self, bytes: usize) -> Result<(), Refusal> {
        self.left = self.left.checked_sub(bytes).ok_or(Refusal::TooLarge(self.all))?;
        Ok(())
    }

    /// Makes room for `count` more elements, exactly, once they are counted.
    fn reserve<T>(&mut self, table: &mut Vec<T>, count: usize) -> Result<(), Refusal> {
        self.take(count.saturating_mul(size_of::<T>()))?;
        table.reserve_exact(count);
        Ok(())
    }

    /// Adds one element; the table doubles, which is counted.
    fn push<T>(&mut self, table: &mut Vec<T>, element: T) -> Result<(), Refusal> {
        if table.len() == table.capacity() {
            let more = table.len().max(16);
            self.reserve(table, more)?;
        }
        table.push(element);
        Ok(())
    }
}

/// Tag lists that were written out: those of a tag set and a list of resources.
#[derive(Default)]
struct TagLists {
    texts: String,
    spans: Vec<Span>,
    known: HashMap<(u32, u32), Result<u32, SeriesFault>>,
    last: Option<((u32, u32), Result<u32, SeriesFault>)>,
}

/// A payload that is being read.
struct Reading<'a> {
    limits: &'a Limits,
    memory: Memory,
    /// Steps through tag sets that are left.
    steps: usize,
    names: Texts,
    /// Reason why a name may be in no series, by number.
    bad_names: Vec<u64>,
    tags: Texts,
    tag_texts: String,
    sets: TagSets,
    resources: Resources,
    /// Tags and host of every series.
    common: Common,
    lists: TagLists,
    kept: Kept,
    dropped: [Dropped; SeriesFault::ALL.len()],
    first_dropped: Vec<DroppedRow>,
}

/// The series that are kept, without their texts.
#[derive(Debug, Default)]
struct Kept {
    rows: Vec<Row>,
    points: Vec<Point>,
    sketches: Vec<SketchPoint>,
    bins: Vec<Bin>,
}

/// Tags and resources of the payload's metadata.
#[derive(Default)]
struct Common {
    tags: String,
    host: Option<String>,
}

impl<'a> Reading<'a> {
    fn new(
        fields: &Fields<'_>,
        limits: &'a Limits,
        body_bytes: usize,
        mut memory: Memory,
    ) -> Result<Self, Refusal> {
        let names = Texts::read(
            fields.column(Column::Names),
            fields.offset(Column::Names),
            &mut memory,
            "names",
        )?;
        let bad_names = dictionaries::bad_names(&names, fields, limits.text_bytes)?;
        let tags = Texts::read(fields.column(Column::Tags), 0, &mut memory, "tags")?;
        let (tags, tag_texts) = tags.repaired(fields.column(Column::Tags), &mut memory)?;
        let sets = TagSets::read(fields.column(Column::TagSets), &tags, &mut memory)?;
        let resources = Resources::read(fields, &mut memory)?;
        let common = dictionaries::common(fields, limits)?;
        memory.take(common.tags.len())?;
        Ok(Reading {
            limits,
            memory,
            steps: STEPS_LEAST + STEPS_PER_BYTE * body_bytes,
            names,
            bad_names,
            tags,
            tag_texts,
            sets,
            resources,
            common,
            lists: TagLists::default(),
            kept: Kept::default(),
            dropped: Default::default(),
            first_dropped: Vec::new(),
        })
    }

    /// The number of the tags of a series.
    fn tag_list(&mut self, set: u32, resources: u32) -> Result<Result<u32, SeriesFault>, Refusal> {
        let key = (set, resources);
        if let Some((last, known)) = self.lists.last
            && last == key
        {
            return Ok(known);
        }
        let known = match self.lists.known.get(&key) {
            Some(known) => *known,
            None => {
                let made = self.write_tag_list(set, resources)?;
                self.memory
                    .take(2 * size_of::<((u32, u32), Result<u32, SeriesFault>)>())?;
                self.lists.known.insert(key, made);
                made
            }
        };
        self.lists.last = Some((key, known));
        Ok(known)
    }

    /// Writes the tags of a set, then those that every series has, then the resources.
    fn write_tag_list(&mut self, set: u32, resources: u32) -> Result<Result<u32, SeriesFault>, Refusal> {
        let size = self.sets.size(set);
        let extra = self.common.tags.len() + self.resources.bytes(resources);
        if size.tags as usize > self.limits.tags || size.bytes as usize + extra > self.limits.text_bytes {
            return Ok(Err(SeriesFault::TooManyTags));
        }
        self.steps = self
            .steps
            .checked_sub(size.steps as usize)
            .ok_or(Refusal::TooManySteps)?;
        let start = self.lists.texts.len();
        let longest = size.bytes as usize + size.tags as usize + extra + 64;
        let texts = &mut self.lists.texts;
        if texts.capacity() - start < longest {
            let more = longest.max(start);
            self.memory.take(more)?;
            texts.reserve_exact(more);
        }
        self.sets.write(set, &self.tags, &self.tag_texts, texts);
        push_tag(texts, start, &self.common.tags);
        let host = self.resources.write(resources, start, texts);
        if let (false, Some(host)) = (host, &self.common.host) {
            push_tag(texts, start, host);
        }
        let span = Span {
            start: start as u32,
            len: (texts.len() - start) as u32,
        };
        self.memory.push(&mut self.lists.spans, span)?;
        Ok(Ok(self.lists.spans.len() as u32 - 1))
    }
}

/// Appends a tag, or several, to a list that begins at `start`.
fn push_tag(texts: &mut String, start: usize, tag: &str) {
    if tag.is_empty() {
        return;
    }
    if texts.len() > start {
        texts.push(',');
    }
    texts.push_str(tag);
}

/// Whether the entry of a series is followed by one in the column of units.
fn has_unit(entry: u64) -> bool {
    entry & HAS_UNIT != 0
}

/// The type of a series, and of its values.
fn types(series: usize, entry: u64, endpoint: Endpoint) -> Result<(MetricType, ValueType), Refusal> {
    let unknown = Refusal::UnknownType { series, found: entry };
    let kind = match MetricType::of(entry) {
        Some(kind) => kind,
        None if matches!(entry & crate::wire::METRIC_TYPE, 6 | 7) => {
            let found = entry & crate::wire::METRIC_TYPE;
            return Err(Refusal::Histogram { series, found });
        }
        None => return Err(unknown),
    };
    match (endpoint, kind) {
        (Endpoint::Series, MetricType::Sketch) => return Err(Refusal::SketchInSeries(series)),
        (Endpoint::Sketches, MetricType::Count | MetricType::Rate | MetricType::Gauge) => {
            return Err(Refusal::SeriesInSketches(series));
        }
        _ => {}
    }
    Ok((kind, ValueType::of(entry).ok_or(unknown)?))
}
