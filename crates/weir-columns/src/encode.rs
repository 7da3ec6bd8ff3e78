//! Writes a payload: texts and tag sets into dictionaries, rows that refer to them into columns.
//!
//! ```
//! use weir_columns::{Encoder, MetricType, Row, wire::Column};
//!
//! let mut encoder = Encoder::new(0);
//! let tags = encoder.tag_set(Default::default(), ["env:test", "service:web"].into_iter());
//! let name = encoder.name(&["requests"]);
//! encoder.row(&Row { name, tags, ..Row::new(MetricType::Gauge) }, &[(1_700_000_000, 3.0)]);
//! encoder.sort();
//! assert_eq!(encoder.pending(Column::Names), b"\x08requests");
//! assert_eq!(encoder.to_payload().len(), encoder.payload_len());
//! ```

use crate::dictionary::{Lists, Texts, deltas};
use crate::wire::{
    COLUMNS, Column, HAS_UNIT, METRIC_DATA, MetricType, NOT_INDEXED, ValueType, varint, varint_len, zigzag,
};

/// A name in an encoder's dictionary. It ends with [`Encoder::clear`], as all numbers of entries do. Default: empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Name(u32);

/// A tag set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TagSet(u32);

/// A list of resources.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Resources(u32);

/// A source type name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SourceType(u32);

/// An origin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OriginRef(u32);

/// A unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unit(u32);

/// The maker of a series, in the intake's numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    pub product: i32,
    pub category: i32,
    pub service: i32,
}

/// A series without its points.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    pub name: Name,
    pub tags: TagSet,
    pub resources: Resources,
    pub source_type: SourceType,
    pub origin: OriginRef,
    pub unit: Unit,
    pub metric: MetricType,
    pub not_indexed: bool,
    /// Seconds.
    pub interval: u32,
}

impl Row {
    /// With nothing but a type.
    pub fn new(metric: MetricType) -> Row {
        Row {
            name: Name::default(),
            tags: TagSet::default(),
            resources: Resources::default(),
            source_type: SourceType::default(),
            origin: OriginRef::default(),
            unit: Unit::default(),
            metric,
            not_indexed: false,
            interval: 0,
        }
    }
}

/// A point of a sketch. A reader computes its average.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SketchPoint {
    /// Unix seconds.
    pub timestamp: i64,
    pub sum: f64,
    pub min: f64,
    pub max: f64,
    pub count: u64,
}

/// The most that a row can take beside its texts, tags and points: its entries of dictionaries and columns.
pub const ROW_BYTES_MAX: usize = 128;
/// The most that a point can take: a value, its own difference of timestamps, and that of the next one.
pub const POINT_BYTES_MAX: usize = 32;
/// The most that a tag can take beside its text: its length, and its number in a set.
pub const TAG_BYTES_MAX: usize = 10;
/// The most that a bin of a sketch can take.
pub const BIN_BYTES_MAX: usize = 10;

/// A row that waits to be written.
#[derive(Clone, Copy)]
struct StoredRow {
    row: Row,
    values: ValueType,
    /// Number of the first in [`Encoder::points`].
    first: u32,
    points: u32,
}

#[derive(Clone, Copy)]
struct StoredPoint {
    timestamp: i64,
    value: f64,
    /// Number in [`Encoder::sketches`].
    sketch: u32,
}

struct StoredSketch {
    min: f64,
    max: f64,
    count: u64,
    bins: u32,
    /// Ends of its bytes in [`Encoder::bin_keys`] and [`Encoder::bin_samples`]; they begin where those of the one before end.
    keys_end: u32,
    samples_end: u32,
}

/// Last entries of the columns that are deltas.
#[derive(Clone, Copy, Default)]
struct Last {
    name: i64,
    tags: i64,
    resources: i64,
    source_type: i64,
    origin: i64,
    unit: i64,
    timestamp: i64,
}

/// Builds one payload at a time.
///
/// Rows wait until [`Encoder::sort`] or [`Encoder::take`]: they are then written by name and tag set, or by tag set and name, so
/// that neighbours share them and most differences are 0 or 1.
pub struct Encoder {
    seed: u64,
    names: Texts,
    tags: Texts,
    tag_sets: Lists,
    resource_texts: Texts,
    resources: Lists,
    source_types: Texts,
    origins: Vec<Origin>,
    units: Texts,
    waiting: Waiting,
    /// Columns by field number, except those of texts.
    columns: [Vec<u8>; COLUMNS],
    /// Bytes of each that were taken.
    taken: [usize; COLUMNS],
    last: Last,
    scratch: Scratch,
}

/// Rows that are not in their columns yet.
#[derive(Default)]
struct Waiting {
    rows: Vec<StoredRow>,
    points: Vec<StoredPoint>,
    sketches: Vec<StoredSketch>,
    bin_keys: Vec<u8>,
    bin_samples: Vec<u8>,
    /// Bytes of the rows in columns that depend on no neighbour.
    bytes: usize,
    /// Timestamp of the first point, and how many have another one.
    timestamps: (i64, usize),
}

impl Waiting {
    /// Memory stays.
    fn clear(&mut self) {
        self.rows.clear();
        self.points.clear();
        self.sketches.clear();
        self.bin_keys.clear();
        self.bin_samples.clear();
        self.bytes = 0;
        self.timestamps = (0, 0);
    }
}

/// Memory that is used again.
#[derive(Default)]
struct Scratch {
    order: Vec<(u64, u32)>,
    list: Vec<i32>,
    text: Vec<u8>,
}

impl Encoder {
    /// `seed`: a random number that senders of texts do not know, so that they cannot choose texts with equal hashes.
    pub fn new(seed: u64) -> Encoder {
        Encoder {
            seed,
            names: Texts::default(),
            tags: Texts::default(),
            tag_sets: Lists::default(),
            resource_texts: Texts::default(),
            resources: Lists::default(),
            source_types: Texts::default(),
            origins: Vec::new(),
            units: Texts::default(),
            waiting: Waiting::default(),
            columns: Default::default(),
            taken: [0; COLUMNS],
            last: Last::default(),
            scratch: Scratch::default(),
        }
    }

    /// A name, made of these parts.
    pub fn name(&mut self, parts: &[&str]) -> Name {
        if let [name] = parts {
            return Name(self.names.add(self.seed, name.as_bytes()));
        }
        self.scratch.text.clear();
        parts
            .iter()
            .for_each(|part| self.scratch.text.extend_from_slice(part.as_bytes()));
        Name(self.names.add(self.seed, &self.scratch.text))
    }

    /// The set of these tags and of all tags of `prefix`. Sets with the same prefix refer to it, so its tags are written once.
    pub fn tag_set<'t>(&mut self, prefix: TagSet, tags: impl Iterator<Item = &'t str>) -> TagSet {
        self.scratch.list.clear();
        for tag in tags {
            let number = self.tags.add(self.seed, tag.as_bytes());
            if number > 0 {
                self.scratch.list.push(number as i32);
            }
        }
        if self.scratch.list.is_empty() {
            return prefix;
        }
        if prefix.0 > 0 {
            self.scratch.list.push(-(prefix.0 as i32));
        }
        self.scratch.list.sort_unstable();
        let (number, is_new) = self.tag_sets.add(self.seed, &self.scratch.list);
        if is_new {
            let column = &mut self.columns[Column::TagSets as usize];
            varint(column, zigzag(self.scratch.list.len() as i64));
            deltas(column, self.scratch.list.iter().copied());
        }
        TagSet(number)
    }

    /// A list of resources: type and name of each.
    pub fn resources<'t>(&mut self, resources: impl Iterator<Item = (&'t str, &'t str)>) -> Resources {
        self.scratch.list.clear();
        for (kind, name) in resources {
            for text in [kind, name] {
                self.scratch
                    .list
                    .push(self.resource_texts.add(self.seed, text.as_bytes()) as i32);
            }
        }
        let (number, is_new) = self.resources.add(self.seed, &self.scratch.list);
        if is_new {
            let list = &self.scratch.list;
            let columns = &mut self.columns;
            varint(
                &mut columns[Column::ResourceLengths as usize],
                list.len() as u64 / 2,
            );
            deltas(
                &mut columns[Column::ResourceTypes as usize],
                list.iter().copied().step_by(2),
            );
            deltas(
                &mut columns[Column::ResourceNames as usize],
                list.iter().copied().skip(1).step_by(2),
            );
        }
        Resources(number)
    }

    pub fn source_type(&mut self, name: &str) -> SourceType {
        SourceType(self.source_types.add(self.seed, name.as_bytes()))
    }

    pub fn unit(&mut self, unit: &str) -> Unit {
        Unit(self.units.add(self.seed, unit.as_bytes()))
    }

    pub fn origin(&mut self, origin: Origin) -> OriginRef {
        // There are a few of them, and most rows have the last one.
        if let Some(at) = self.origins.iter().rposition(|known| *known == origin) {
            return OriginRef(at as u32 + 1);
        }
        let column = &mut self.columns[Column::Origins as usize];
        for number in [origin.product, origin.category, origin.service] {
            varint(column, number as i64 as u64);
        }
        self.origins.push(origin);
        OriginRef(self.origins.len() as u32)
    }

    /// Adds a series of counts, rates or gauges: Unix seconds and value of each point.
    pub fn row(&mut self, row: &Row, points: &[(i64, f64)]) {
        let values = ValueType::smallest(points.iter().map(|(_, value)| *value));
        let first = self.waiting.points.len() as u32;
        for &(timestamp, value) in points {
            self.waiting.bytes += value_len(values, value);
            self.point(StoredPoint {
                timestamp,
                value,
                sketch: 0,
            });
        }
        self.push(row, values, first);
    }

    /// Adds a series of sketches. Each point has its bins, key and samples: keys ascend, and a key that has more samples than 32 bits
    /// hold is there several times.
    pub fn sketches<B: Iterator<Item = (i32, u64)>>(
        &mut self,
        row: &Row,
        points: impl Iterator<Item = (SketchPoint, B)>,
    ) {
        let (first, first_sketch) = (self.waiting.points.len() as u32, self.waiting.sketches.len());
        for (point, bins) in points {
            let of_bins = self.waiting.bin_keys.len() + self.waiting.bin_samples.len();
            let count = self.bins(bins);
            let sketch = self.waiting.sketches.len() as u32;
            self.waiting.sketches.push(StoredSketch {
                min: point.min,
                max: point.max,
                count: point.count,
                bins: count,
                keys_end: self.waiting.bin_keys.len() as u32,
                samples_end: self.waiting.bin_samples.len() as u32,
            });
            self.waiting.bytes += self.waiting.bin_keys.len() + self.waiting.bin_samples.len() - of_bins
                + varint_len(u64::from(count))
                + varint_len(zigzag(point.count as i64));
            self.point(StoredPoint {
                timestamp: point.timestamp,
                value: point.sum,
                sketch,
            });
        }
        let points = self.waiting.points[first as usize..].iter();
        let summaries = points.zip(&self.waiting.sketches[first_sketch..]);
        let all = summaries.flat_map(|(point, sketch)| [point.value, sketch.min, sketch.max]);
        let values = ValueType::smallest(all.clone());
        self.waiting.bytes += all.map(|value| value_len(values, value)).sum::<usize>();
        self.push(row, values, first);
    }

    /// Appends the bins of a point, and returns how many there are.
    fn bins(&mut self, bins: impl Iterator<Item = (i32, u64)>) -> u32 {
        let (mut count, mut last) = (0, 0);
        for (key, mut samples) in bins {
            loop {
                let of_bin = samples.min(u64::from(u32::MAX));
                varint(&mut self.waiting.bin_keys, zigzag(i64::from(key) - last));
                varint(&mut self.waiting.bin_samples, of_bin);
                last = i64::from(key);
                count += 1;
                samples -= of_bin;
                if samples == 0 {
                    break;
                }
            }
        }
        count
    }

    fn point(&mut self, point: StoredPoint) {
        if self.waiting.points.is_empty() {
            self.waiting.timestamps = (point.timestamp, 0);
        }
        let (first, others) = &mut self.waiting.timestamps;
        *others += usize::from(point.timestamp != *first);
        self.waiting.points.push(point);
    }

    fn push(&mut self, row: &Row, values: ValueType, first: u32) {
        let points = self.waiting.points.len() as u32 - first;
        let row = StoredRow {
            row: *row,
            values,
            first,
            points,
        };
        self.waiting.bytes +=
            varint_len(row.types()) + varint_len(u64::from(row.row.interval)) + varint_len(u64::from(points));
        self.waiting.rows.push(row);
    }

    /// Writes the waiting rows into their columns.
    pub fn sort(&mut self) {
        let mut order = std::mem::take(&mut self.scratch.order);
        let rows = self.waiting.rows.iter().enumerate();
        // Rows of one name have similar values. Where most sets are of one row alone, their differences would be long.
        let by_name = self.tag_sets.len() * 2 <= self.waiting.rows.len();
        order.extend(rows.map(|(at, StoredRow { row, .. })| {
            let (name, tags) = (u64::from(row.name.0), u64::from(row.tags.0));
            let key = if by_name {
                name << 32 | tags
            } else {
                tags << 32 | name
            };
            (key, at as u32)
        }));
        order.sort_unstable();
        for (_, at) in order.drain(..) {
            let row = self.waiting.rows[at as usize];
            self.write(&row);
        }
        self.scratch.order = order;
        self.waiting.clear();
    }

    fn write(&mut self, stored: &StoredRow) {
        let StoredRow { row, values, .. } = *stored;
        let (columns, last) = (&mut self.columns, &mut self.last);
        varint(&mut columns[Column::Types as usize], stored.types());
        varint(&mut columns[Column::Intervals as usize], u64::from(row.interval));
        varint(
            &mut columns[Column::PointCounts as usize],
            u64::from(stored.points),
        );
        let references = [
            (Column::NameRefs, &mut last.name, row.name.0),
            (Column::TagSetRefs, &mut last.tags, row.tags.0),
            (Column::ResourceRefs, &mut last.resources, row.resources.0),
            (Column::SourceTypeRefs, &mut last.source_type, row.source_type.0),
            (Column::OriginRefs, &mut last.origin, row.origin.0),
        ];
        for (column, last, number) in references {
            write_delta(&mut columns[column as usize], last, number.into());
        }
        if row.unit.0 > 0 {
            write_delta(
                &mut columns[Column::UnitRefs as usize],
                &mut last.unit,
                row.unit.0.into(),
            );
        }
        let first = stored.first as usize;
        for at in first..first + stored.points as usize {
            let StoredPoint {
                timestamp,
                value,
                sketch,
            } = self.waiting.points[at];
            let timestamps = &mut self.columns[Column::Timestamps as usize];
            write_delta(timestamps, &mut self.last.timestamp, timestamp);
            write_value(&mut self.columns, values, value);
            if row.metric == MetricType::Sketch {
                self.write_sketch(values, sketch as usize);
            }
        }
    }

    /// Writes the part of a sketch that other points do not have.
    fn write_sketch(&mut self, values: ValueType, at: usize) {
        let columns = &mut self.columns;
        let (keys, samples) = match at.checked_sub(1).map(|before| &self.waiting.sketches[before]) {
            Some(before) => (before.keys_end as usize, before.samples_end as usize),
            None => (0, 0),
        };
        let sketch = &self.waiting.sketches[at];
        write_value(columns, values, sketch.min);
        write_value(columns, values, sketch.max);
        varint(
            &mut columns[Column::Integers as usize],
            zigzag(sketch.count as i64),
        );
        varint(&mut columns[Column::BinCounts as usize], u64::from(sketch.bins));
        columns[Column::BinKeys as usize]
            .extend_from_slice(&self.waiting.bin_keys[keys..sketch.keys_end as usize]);
        columns[Column::BinSamples as usize]
            .extend_from_slice(&self.waiting.bin_samples[samples..sketch.samples_end as usize]);
    }

    /// Whether there is no row.
    pub fn is_empty(&self) -> bool {
        self.waiting.rows.is_empty() && self.len(Column::Types) == 0
    }

    /// Bytes of a column that were not taken; waiting rows are not among them.
    pub fn pending(&self, column: Column) -> &[u8] {
        match self.texts(column) {
            Some(texts) => &texts.bytes[self.taken[column as usize]..],
            None => &self.columns[column as usize],
        }
    }

    /// Bytes of a column, those that were taken included.
    pub fn len(&self, column: Column) -> usize {
        self.taken[column as usize] + self.pending(column).len()
    }

    /// Marks all of a column as taken: it is in the output, which needs no more of it but its length.
    pub fn take(&mut self, column: Column) {
        self.taken[column as usize] = self.len(column);
        if self.texts(column).is_none() {
            self.columns[column as usize].clear();
        }
    }

    fn texts(&self, column: Column) -> Option<&Texts> {
        match column {
            Column::Names => Some(&self.names),
            Column::Tags => Some(&self.tags),
            Column::ResourceTexts => Some(&self.resource_texts),
            Column::SourceTypes => Some(&self.source_types),
            Column::Units => Some(&self.units),
            _ => None,
        }
    }

    /// The most that waiting rows take in their columns. A row, a point or an entry of a dictionary raises it by no more than its own
    /// maximum.
    pub fn waiting_bound(&self) -> usize {
        if self.waiting.rows.is_empty() {
            return 0;
        }
        // Three bytes hold a difference of a million. The number of bytes must not rise with the next entry, for all waiting rows at once.
        let reference = |entries: usize| varint_len(zigzag(-(entries as i64))).max(3);
        let of_row = [
            self.names.len(),
            self.tag_sets.len(),
            self.resources.len(),
            self.source_types.len(),
            self.origins.len(),
            self.units.len(),
        ];
        let of_row: usize = of_row.into_iter().map(reference).sum();
        // In whatever order: a difference is not zero only before or after a point with another timestamp, and at the first point.
        let (_, others) = self.waiting.timestamps;
        let of_timestamps = self.waiting.points.len() + 9 * (2 * others + 1);
        self.waiting.bytes + self.waiting.rows.len() * of_row + of_timestamps
    }

    /// Bytes that are not taken, waiting rows at their most.
    pub fn pending_bound(&self) -> usize {
        let pending = Column::ALL.into_iter().map(|column| self.pending(column).len());
        pending.sum::<usize>() + self.waiting_bound()
    }

    /// The most that the payload is, waiting rows and headers included.
    pub fn payload_bound(&self) -> usize {
        let taken: usize = self.taken.iter().sum();
        taken + self.pending_bound() + HEADERS_MAX
    }

    /// The most that an empty payload is.
    pub fn empty_bound(&self) -> usize {
        HEADERS_MAX
    }

    /// The length of the payload without waiting rows, headers included.
    pub fn payload_len(&self) -> usize {
        let (data, mut header) = (self.data_len(), Vec::new());
        payload_header(&mut header, data);
        header.len() + data
    }

    fn data_len(&self) -> usize {
        let mut header = Vec::new();
        let mut data = 0;
        for column in Column::ALL {
            header.clear();
            self.column_header(&mut header, column);
            data += header.len() + self.len(column);
        }
        data
    }

    /// Appends what comes before the first column.
    pub fn payload_header(&self, buffer: &mut Vec<u8>) {
        payload_header(buffer, self.data_len());
    }

    /// Appends what comes before the bytes of a column; nothing for an empty one, which is left out.
    pub fn column_header(&self, buffer: &mut Vec<u8>, column: Column) {
        let len = self.len(column);
        if len > 0 {
            varint(buffer, u64::from((column as u32) << 3 | 2));
            varint(buffer, len as u64);
        }
    }

    /// The payload without waiting rows, if nothing of it was taken.
    pub fn to_payload(&self) -> Vec<u8> {
        let mut payload = Vec::with_capacity(self.payload_len());
        self.payload_header(&mut payload);
        for column in Column::ALL {
            self.column_header(&mut payload, column);
            payload.extend_from_slice(self.pending(column));
        }
        payload
    }

    /// Begins the next payload, with empty dictionaries. Memory stays.
    pub fn clear(&mut self) {
        let texts = [
            &mut self.names,
            &mut self.tags,
            &mut self.resource_texts,
            &mut self.source_types,
            &mut self.units,
        ];
        texts.into_iter().for_each(Texts::clear);
        self.tag_sets.clear();
        self.resources.clear();
        self.origins.clear();
        self.waiting.clear();
        self.columns.iter_mut().for_each(Vec::clear);
        self.taken = [0; COLUMNS];
        self.last = Last::default();
    }
}

/// The most that all headers are: a key of two bytes and a length of five for each column, and those of the payload.
const HEADERS_MAX: usize = 7 * COLUMNS;

fn payload_header(buffer: &mut Vec<u8>, data: usize) {
    varint(buffer, u64::from(METRIC_DATA << 3 | 2));
    varint(buffer, data as u64);
}

impl StoredRow {
    fn types(&self) -> u64 {
        let mut types = self.row.metric as u64 | self.values as u64;
        if self.row.not_indexed {
            types |= NOT_INDEXED;
        }
        if self.row.unit.0 > 0 {
            types |= HAS_UNIT;
        }
        types
    }
}

fn write_delta(column: &mut Vec<u8>, last: &mut i64, value: i64) {
    varint(column, zigzag(value.wrapping_sub(*last)));
    *last = value;
}

fn value_len(values: ValueType, value: f64) -> usize {
    match values {
        ValueType::Zero => 0,
        ValueType::Integer => varint_len(zigzag(value as i64)),
        ValueType::Float => 4,
        ValueType::Double => 8,
    }
}

fn write_value(columns: &mut [Vec<u8>; COLUMNS], values: ValueType, value: f64) {
    match values {
        ValueType::Zero => {}
        ValueType::Integer => varint(&mut columns[Column::Integers as usize], zigzag(value as i64)),
        ValueType::Float => {
            columns[Column::Floats as usize].extend_from_slice(&(value as f32).to_le_bytes());
        }
        ValueType::Double => columns[Column::Doubles as usize].extend_from_slice(&value.to_le_bytes()),
    }
}
