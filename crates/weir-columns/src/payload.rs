//! Reads a payload as it is, with every field of every series: to divide it, to write it in another form, to compare it.
//!
//! For payloads of our own and of tests. Nothing in it is trusted, but memory is bounded by a multiple of the payload alone.

use std::ops::Range;

use crate::encode::{Encoder, Origin, OriginRef, Resources, Row, SketchPoint, SourceType, TagSet, Unit};
use crate::wire::{
    COLUMNS, Column, HAS_UNIT, METRIC_DATA, MetricType, NOT_INDEXED, ValueType, read_varint, unzigzag,
};

/// Steps through a tag set and those that it splices in.
const STEPS_MAX: u32 = 1 << 16;

/// The bytes are no payload of series. The column in which that shows, if it is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no payload of columns: {0:?} is not valid")]
pub struct InvalidPayload(pub Option<Column>);

/// A payload.
pub struct Payload<'a> {
    names: Vec<&'a str>,
    tags: Vec<&'a str>,
    /// Indexes of all tag sets; negative ones splice in a set.
    set_indexes: Vec<i32>,
    sets: Vec<Range<u32>>,
    /// Type and name of all resources.
    resource_texts: Vec<(&'a str, &'a str)>,
    resources: Vec<Range<u32>>,
    source_types: Vec<&'a str>,
    origins: Vec<Origin>,
    units: Vec<&'a str>,
    rows: Vec<ReadRow>,
    points: Vec<Point>,
    bins: Vec<(i32, u64)>,
}

struct ReadRow {
    types: u64,
    values: ValueType,
    name: u32,
    tags: u32,
    resources: u32,
    source_type: u32,
    origin: u32,
    unit: u32,
    interval: u64,
    points: Range<u32>,
}

/// A point of a series.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    /// Unix seconds.
    pub timestamp: i64,
    /// The value; of a sketch its sum.
    pub value: f64,
    sketch: Sketch,
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Sketch {
    min: f64,
    max: f64,
    count: u64,
    bins: Range<u32>,
}

/// A series of a payload.
#[derive(Clone, Copy)]
pub struct Series<'p, 'a> {
    payload: &'p Payload<'a>,
    row: &'p ReadRow,
}

impl<'a> Payload<'a> {
    pub fn read(bytes: &'a [u8]) -> Result<Payload<'a>, InvalidPayload> {
        let columns = columns(bytes).ok_or(InvalidPayload(None))?;
        let of = |column: Column| Reader {
            column,
            rest: columns[column as usize],
            last: 0,
        };
        let (set_indexes, sets) = of(Column::TagSets).tag_sets()?;
        let (resource_texts, resources) = read_resources(of)?;
        let mut payload = Payload {
            names: of(Column::Names).texts()?,
            tags: of(Column::Tags).texts()?,
            set_indexes,
            sets,
            resource_texts,
            resources,
            source_types: of(Column::SourceTypes).texts()?,
            origins: of(Column::Origins).origins()?,
            units: of(Column::Units).texts()?,
            rows: Vec::new(),
            points: Vec::new(),
            bins: Vec::new(),
        };
        payload.check_sets()?;
        payload.read_rows(Column::ALL.map(of))?;
        Ok(payload)
    }

    /// Whether each index of a tag set is one of a tag or of an earlier set, and no set is too large.
    fn check_sets(&self) -> Result<(), InvalidPayload> {
        let invalid = InvalidPayload(Some(Column::TagSets));
        let mut steps: Vec<u32> = Vec::with_capacity(self.sets.len());
        for set in &self.sets {
            let mut of_set = 0u32;
            for &index in &self.set_indexes[set.start as usize..set.end as usize] {
                let of_index = match index {
                    0.. => (1..=self.tags.len()).contains(&(index as usize)).then_some(1),
                    _ => steps
                        .get(index.unsigned_abs() as usize - 1)
                        .map(|steps| steps + 1),
                };
                of_set = of_set.saturating_add(of_index.ok_or(invalid)?);
            }
            if of_set > STEPS_MAX {
                return Err(invalid);
            }
            steps.push(of_set);
        }
        Ok(())
    }

    fn read_rows(&mut self, columns: [Reader<'a>; COLUMNS - 1]) -> Result<(), InvalidPayload> {
        let mut columns = columns;
        let at = |column: Column| column as usize - 1;
        while !columns[at(Column::Types)].rest.is_empty() {
            let types = columns[at(Column::Types)].unsigned()?;
            let invalid = InvalidPayload(Some(Column::Types));
            let metric = MetricType::of(types).ok_or(invalid)?;
            let values = ValueType::of(types).ok_or(invalid)?;
            let mut reference = |column: Column, entries: usize| {
                let reader = &mut columns[at(column)];
                let index = reader.delta()?;
                let found = u32::try_from(index)
                    .ok()
                    .filter(|index| *index as usize <= entries);
                found.ok_or(InvalidPayload(Some(column)))
            };
            let name = reference(Column::NameRefs, self.names.len())?;
            let tags = reference(Column::TagSetRefs, self.sets.len())?;
            let resources = reference(Column::ResourceRefs, self.resources.len())?;
            let source_type = reference(Column::SourceTypeRefs, self.source_types.len())?;
            let origin = reference(Column::OriginRefs, self.origins.len())?;
            let unit = match types & HAS_UNIT {
                0 => 0,
                _ => reference(Column::UnitRefs, self.units.len())?,
            };
            let interval = columns[at(Column::Intervals)].unsigned()?;
            let first = self.points.len() as u32;
            for _ in 0..columns[at(Column::PointCounts)].unsigned()? {
                let point = self.read_point(&mut columns, values, metric)?;
                self.points.push(point);
            }
            self.rows.push(ReadRow {
                types,
                values,
                name,
                tags,
                resources,
                source_type,
                origin,
                unit,
                interval,
                points: first..self.points.len() as u32,
            });
        }
        let is_read = |column: &Column| {
            let is_of_rows = *column as usize > Column::Origins as usize && *column != Column::Units;
            !is_of_rows || columns[at(*column)].rest.is_empty()
        };
        match Column::ALL.into_iter().find(|column| !is_read(column)) {
            Some(column) => Err(InvalidPayload(Some(column))),
            None => Ok(()),
        }
    }

    fn read_point(
        &mut self,
        columns: &mut [Reader<'a>; COLUMNS - 1],
        values: ValueType,
        metric: MetricType,
    ) -> Result<Point, InvalidPayload> {
        let at = |column: Column| column as usize - 1;
        let timestamp = columns[at(Column::Timestamps)].delta()?;
        let mut value = || match values {
            ValueType::Zero => Ok(0.0),
            ValueType::Integer => Ok(unzigzag(columns[at(Column::Integers)].unsigned()?) as f64),
            ValueType::Float => columns[at(Column::Floats)].float(),
            ValueType::Double => columns[at(Column::Doubles)].double(),
        };
        let mut point = Point {
            timestamp,
            value: value()?,
            sketch: Sketch::default(),
        };
        if metric == MetricType::Sketch {
            let (min, max) = (value()?, value()?);
            let count = unzigzag(columns[at(Column::Integers)].unsigned()?) as u64;
            let first = self.bins.len() as u32;
            let mut key = 0i64;
            for _ in 0..columns[at(Column::BinCounts)].unsigned()? {
                let keys = &mut columns[at(Column::BinKeys)];
                key = key.wrapping_add(unzigzag(keys.unsigned()?));
                let found = i32::try_from(key).map_err(|_| InvalidPayload(Some(Column::BinKeys)))?;
                self.bins
                    .push((found, columns[at(Column::BinSamples)].unsigned()?));
            }
            point.sketch = Sketch {
                min,
                max,
                count,
                bins: first..self.bins.len() as u32,
            };
        }
        Ok(point)
    }

    /// The series, in the payload's order.
    pub fn series(&self) -> impl ExactSizeIterator<Item = Series<'_, 'a>> {
        self.rows.iter().map(|row| Series { payload: self, row })
    }

    /// Appends the tags of a set.
    fn tags_of(&self, set: u32, tags: &mut Vec<&'a str>) {
        let Some(span) = set.checked_sub(1).map(|at| &self.sets[at as usize]) else {
            return;
        };
        for &index in &self.set_indexes[span.start as usize..span.end as usize] {
            match index {
                1.. => tags.push(self.tags[index as usize - 1]),
                _ => self.tags_of(index.unsigned_abs(), tags),
            }
        }
    }
}

impl<'p, 'a> Series<'p, 'a> {
    pub fn name(&self) -> &'a str {
        entry(&self.payload.names, self.row.name)
    }

    /// In no particular order.
    pub fn tags(&self) -> Vec<&'a str> {
        let mut tags = Vec::new();
        self.payload.tags_of(self.row.tags, &mut tags);
        tags
    }

    /// Type and name of each.
    pub fn resources(&self) -> &'p [(&'a str, &'a str)] {
        match self.row.resources.checked_sub(1) {
            Some(at) => {
                let range = &self.payload.resources[at as usize];
                &self.payload.resource_texts[range.start as usize..range.end as usize]
            }
            None => &[],
        }
    }

    /// The name of the first resource of a type; empty if there is none.
    pub fn resource(&self, kind: &str) -> &'a str {
        let found = self.resources().iter().find(|(of, _)| *of == kind);
        found.map_or("", |(_, name)| name)
    }

    pub fn source_type(&self) -> &'a str {
        entry(&self.payload.source_types, self.row.source_type)
    }

    pub fn origin(&self) -> Origin {
        entry(&self.payload.origins, self.row.origin)
    }

    pub fn unit(&self) -> &'a str {
        entry(&self.payload.units, self.row.unit)
    }

    pub fn metric(&self) -> MetricType {
        MetricType::of(self.row.types).expect("it was read")
    }

    /// The type that its values have in the payload.
    pub fn values(&self) -> ValueType {
        self.row.values
    }

    pub fn is_not_indexed(&self) -> bool {
        self.row.types & NOT_INDEXED != 0
    }

    /// Seconds.
    pub fn interval(&self) -> u64 {
        self.row.interval
    }

    pub fn points(&self) -> &'p [Point] {
        &self.payload.points[self.row.points.start as usize..self.row.points.end as usize]
    }

    /// Summary, and key and samples of each bin of a point, if it is one of a sketch.
    pub fn sketch(&self, point: &Point) -> (SketchPoint, &'p [(i32, u64)]) {
        let Sketch {
            min,
            max,
            count,
            ref bins,
        } = point.sketch;
        let summary = SketchPoint {
            timestamp: point.timestamp,
            sum: point.value,
            min,
            max,
            count,
        };
        (
            summary,
            &self.payload.bins[bins.start as usize..bins.end as usize],
        )
    }

    /// Adds it to another payload.
    pub fn write(&self, encoder: &mut Encoder) {
        let row = Row {
            name: encoder.name(&[self.name()]),
            tags: encoder.tag_set(TagSet::default(), self.tags().into_iter()),
            resources: match self.resources() {
                [] => Resources::default(),
                resources => encoder.resources(resources.iter().copied()),
            },
            source_type: match self.source_type() {
                "" => SourceType::default(),
                name => encoder.source_type(name),
            },
            origin: match self.row.origin {
                0 => OriginRef::default(),
                _ => encoder.origin(self.origin()),
            },
            unit: match self.unit() {
                "" => Unit::default(),
                unit => encoder.unit(unit),
            },
            metric: self.metric(),
            not_indexed: self.is_not_indexed(),
            interval: u32::try_from(self.interval()).unwrap_or(u32::MAX),
        };
        match self.metric() {
            MetricType::Sketch => {
                let points = self.points().iter().map(|point| {
                    let (summary, bins) = self.sketch(point);
                    (summary, bins.iter().copied())
                });
                encoder.sketches(&row, points);
            }
            _ => {
                let points = self.points().iter().map(|point| (point.timestamp, point.value));
                encoder.row(&row, &points.collect::<Vec<_>>());
            }
        }
    }
}

fn entry<T: Copy + Default>(dictionary: &[T], number: u32) -> T {
    match number.checked_sub(1) {
        Some(at) => dictionary[at as usize],
        None => T::default(),
    }
}

/// The bytes of each column. A message of a field that comes several times is the concatenation of its contents.
fn columns(mut bytes: &[u8]) -> Option<[&[u8]; COLUMNS]> {
    let mut columns = [&[][..]; COLUMNS];
    while !bytes.is_empty() {
        let (field, mut content) = field(&mut bytes)?;
        if field != METRIC_DATA {
            continue;
        }
        while !content.is_empty() {
            let (field, column) = self::field(&mut content)?;
            let slot = columns.get_mut(usize::try_from(field).ok()?)?;
            if !slot.is_empty() {
                return None;
            }
            *slot = column;
        }
    }
    Some(columns)
}

/// Takes a field with a length off the front.
fn field<'a>(bytes: &mut &'a [u8]) -> Option<(u32, &'a [u8])> {
    let key = read_varint(bytes)?;
    let length = usize::try_from(read_varint(bytes)?).ok()?;
    let (content, rest) = bytes.split_at_checked(length).filter(|_| key & 7 == 2)?;
    *bytes = rest;
    Some((u32::try_from(key >> 3).ok()?, content))
}

type ResourceLists<'a> = (Vec<(&'a str, &'a str)>, Vec<Range<u32>>);

fn read_resources<'a>(of: impl Fn(Column) -> Reader<'a>) -> Result<ResourceLists<'a>, InvalidPayload> {
    let texts = of(Column::ResourceTexts).texts()?;
    let (mut all, mut lists) = (Vec::new(), Vec::new());
    let mut lengths = of(Column::ResourceLengths);
    let (mut types, mut names) = (of(Column::ResourceTypes), of(Column::ResourceNames));
    while !lengths.rest.is_empty() {
        let first = all.len() as u32;
        types.last = 0;
        names.last = 0;
        for _ in 0..lengths.unsigned()? {
            let text = |reader: &mut Reader<'a>| {
                let number = u32::try_from(reader.delta()?).ok();
                let number = number.filter(|number| *number as usize <= texts.len());
                let number = number.ok_or(InvalidPayload(Some(reader.column)))?;
                Ok::<_, InvalidPayload>(entry(&texts, number))
            };
            all.push((text(&mut types)?, text(&mut names)?));
        }
        lists.push(first..all.len() as u32);
    }
    Ok((all, lists))
}

/// A column that is being read.
#[derive(Clone, Copy)]
struct Reader<'a> {
    column: Column,
    rest: &'a [u8],
    last: i64,
}

impl<'a> Reader<'a> {
    fn invalid(&self) -> InvalidPayload {
        InvalidPayload(Some(self.column))
    }

    fn unsigned(&mut self) -> Result<u64, InvalidPayload> {
        read_varint(&mut self.rest).ok_or(self.invalid())
    }

    fn delta(&mut self) -> Result<i64, InvalidPayload> {
        self.last = self.last.wrapping_add(unzigzag(self.unsigned()?));
        Ok(self.last)
    }

    fn fixed<const N: usize>(&mut self) -> Result<[u8; N], InvalidPayload> {
        let (number, rest) = self.rest.split_first_chunk().ok_or(self.invalid())?;
        self.rest = rest;
        Ok(*number)
    }

    fn float(&mut self) -> Result<f64, InvalidPayload> {
        Ok(f64::from(f32::from_le_bytes(self.fixed()?)))
    }

    fn double(&mut self) -> Result<f64, InvalidPayload> {
        Ok(f64::from_le_bytes(self.fixed()?))
    }

    fn texts(mut self) -> Result<Vec<&'a str>, InvalidPayload> {
        let mut texts = Vec::new();
        while !self.rest.is_empty() {
            let length = usize::try_from(self.unsigned()?).map_err(|_| self.invalid())?;
            let (text, rest) = self.rest.split_at_checked(length).ok_or(self.invalid())?;
            texts.push(std::str::from_utf8(text).map_err(|_| self.invalid())?);
            self.rest = rest;
        }
        Ok(texts)
    }

    fn tag_sets(mut self) -> Result<(Vec<i32>, Vec<Range<u32>>), InvalidPayload> {
        let (mut indexes, mut sets) = (Vec::new(), Vec::new());
        while !self.rest.is_empty() {
            let first = indexes.len() as u32;
            self.last = 0;
            for _ in 0..unzigzag(self.unsigned()?) {
                let index = self.delta()?;
                let index = i32::try_from(index).ok().filter(|index| *index != 0);
                indexes.push(index.ok_or(self.invalid())?);
            }
            sets.push(first..indexes.len() as u32);
        }
        Ok((indexes, sets))
    }

    fn origins(mut self) -> Result<Vec<Origin>, InvalidPayload> {
        let mut origins = Vec::new();
        while !self.rest.is_empty() {
            let mut number = || self.unsigned().map(|number| number as i32);
            origins.push(Origin {
                product: number()?,
                category: number()?,
                service: number()?,
            });
        }
        Ok(origins)
    }
}
