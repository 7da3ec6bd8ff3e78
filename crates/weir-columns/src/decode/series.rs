//! The columns with an entry per series, per point and per bin, read side by side.

use weir_sketch::Bin;

use super::fields::{Fields, Numbers, References};
use super::{
    BINS_MAX, DROPPED_NAMED, DroppedRow, Endpoint, Point, Reading, Refusal, Row, SKETCH_SAMPLES_MAX,
    SeriesFault, SketchPoint, Span, has_unit, types,
};
use crate::wire::{Column, MetricType, ValueType};

/// The columns, each as far as it was read.
struct Columns<'a> {
    types: Numbers<'a>,
    names: References<'a>,
    tag_sets: References<'a>,
    resources: References<'a>,
    /// Not used, but they have to be valid.
    source_types: References<'a>,
    origins: References<'a>,
    units: References<'a>,
    intervals: Numbers<'a>,
    has_intervals: bool,
    point_counts: Numbers<'a>,
    timestamps: Numbers<'a>,
    values: Values<'a>,
    bin_counts: Numbers<'a>,
    bin_keys: Numbers<'a>,
    bin_samples: Numbers<'a>,
}

struct Values<'a> {
    integers: Numbers<'a>,
    floats: Numbers<'a>,
    doubles: Numbers<'a>,
}

impl Values<'_> {
    #[inline]
    fn next(&mut self, value_type: ValueType) -> Result<f64, Refusal> {
        match value_type {
            ValueType::Zero => Ok(0.0),
            ValueType::Integer => Ok(self.integers.signed()? as f64),
            ValueType::Float => self.floats.float(),
            ValueType::Double => self.doubles.double(),
        }
    }
}

impl<'a> Columns<'a> {
    fn new(fields: &Fields<'a>, reading: &Reading<'_>) -> Result<Self, Refusal> {
        let numbers = |name, column| Numbers::new(name, fields.column(column));
        let references = |name, column, largest| References::new(name, fields.column(column), largest);
        let intervals = numbers("intervals", Column::Intervals);
        Ok(Columns {
            types: numbers("types", Column::Types),
            names: references("name references", Column::NameRefs, reading.names.len()),
            tag_sets: references("tag set references", Column::TagSetRefs, reading.sets.len()),
            resources: references(
                "resource references",
                Column::ResourceRefs,
                reading.resources.len(),
            ),
            source_types: references(
                "source type references",
                Column::SourceTypeRefs,
                texts_in(fields, Column::SourceTypes, "source types")?,
            ),
            origins: references(
                "origin references",
                Column::OriginRefs,
                numbers_in(fields, Column::Origins, "origins")? / 3,
            ),
            units: references(
                "unit references",
                Column::UnitRefs,
                texts_in(fields, Column::Units, "units")?,
            ),
            has_intervals: !intervals.is_empty(),
            intervals,
            point_counts: numbers("point counts", Column::PointCounts),
            timestamps: numbers("timestamps", Column::Timestamps),
            values: Values {
                integers: numbers("integers", Column::Integers),
                floats: numbers("floats", Column::Floats),
                doubles: numbers("doubles", Column::Doubles),
            },
            bin_counts: numbers("bin counts", Column::BinCounts),
            bin_keys: numbers("bin keys", Column::BinKeys),
            bin_samples: numbers("bin samples", Column::BinSamples),
        })
    }

    /// All of them have been read to the end.
    fn end(&self) -> Result<(), Refusal> {
        let references = [
            &self.names,
            &self.tag_sets,
            &self.resources,
            &self.source_types,
            &self.origins,
            &self.units,
        ];
        references.into_iter().try_for_each(References::ends)?;
        let numbers = [
            &self.intervals,
            &self.point_counts,
            &self.timestamps,
            &self.values.integers,
            &self.values.floats,
            &self.values.doubles,
            &self.bin_counts,
            &self.bin_keys,
            &self.bin_samples,
        ];
        numbers.into_iter().try_for_each(Numbers::ends)
    }
}

/// Entries of a dictionary of texts that is not used otherwise.
fn texts_in(fields: &Fields<'_>, column: Column, name: &'static str) -> Result<usize, Refusal> {
    let mut rest = fields.column(column);
    let mut count = 0;
    while !rest.is_empty() {
        let length = crate::wire::read_varint(&mut rest).and_then(|length| usize::try_from(length).ok());
        rest = length
            .and_then(|length| rest.get(length..))
            .ok_or(Refusal::Short(name))?;
        count += 1;
    }
    Ok(count)
}

fn numbers_in(fields: &Fields<'_>, column: Column, name: &'static str) -> Result<usize, Refusal> {
    let mut numbers = Numbers::new(name, fields.column(column));
    let mut count = 0;
    while !numbers.is_empty() {
        numbers.unsigned()?;
        count += 1;
    }
    Ok(count)
}

/// The entries of one series.
struct Head {
    name: u32,
    /// `Err`: the series is dropped.
    tags: Result<u32, SeriesFault>,
    kind: MetricType,
    value_type: ValueType,
    interval: u32,
    points: usize,
}

/// Where a series began, in case it is dropped.
#[derive(Clone, Copy)]
struct Mark {
    points: usize,
    sketches: usize,
    bins: usize,
}

impl Reading<'_> {
    pub(super) fn read_series(&mut self, fields: &Fields<'_>, endpoint: Endpoint) -> Result<(), Refusal> {
        let mut columns = Columns::new(fields, self)?;
        let mut series = 0;
        while !columns.types.is_empty() {
            series += 1;
            let head = self.head(&mut columns, series, endpoint)?;
            let mark = Mark {
                points: self.kept.points.len(),
                sketches: self.kept.sketches.len(),
                bins: self.kept.bins.len(),
            };
            let (samples, fault) = match head.kind {
                MetricType::Sketch => self.sketches(&mut columns, &head)?,
                _ => (self.numbers(&mut columns, &head)?, None),
            };
            match (head.tags, fault) {
                (Ok(tags), None) => self.keep(&head, tags, mark)?,
                (Err(fault), _) | (_, Some(fault)) => {
                    self.drop_series(&head, fault, samples, mark);
                    self.note_dropped(series, head.name, fault)?;
                }
            }
        }
        columns.end()
    }

    fn head(
        &mut self,
        columns: &mut Columns<'_>,
        series: usize,
        endpoint: Endpoint,
    ) -> Result<Head, Refusal> {
        let entry = columns.types.unsigned()?;
        let (kind, value_type) = types(series, entry, endpoint)?;
        let name = columns.names.next()?;
        let (set, resources) = (columns.tag_sets.next()?, columns.resources.next()?);
        columns.source_types.next()?;
        columns.origins.next()?;
        if has_unit(entry) {
            columns.units.next()?;
        }
        let interval = match columns.has_intervals {
            true => columns.intervals.unsigned()?,
            false => 0,
        };
        let points = columns.point_counts.unsigned()?;
        // Each has a timestamp of at least a byte, whatever else it has.
        if points > columns.timestamps.bytes_left() as u64 {
            return Err(Refusal::Short("timestamps"));
        }
        let is_bad_interval = interval > u64::from(u32::MAX) || (interval == 0 && kind == MetricType::Rate);
        let tags = if self.is_bad_name(name) {
            Err(SeriesFault::BadName)
        } else if is_bad_interval {
            Err(SeriesFault::BadInterval)
        } else {
            self.tag_list(set, resources)?
        };
        Ok(Head {
            name: name.wrapping_sub(1),
            tags,
            kind,
            value_type,
            interval: interval.min(u64::from(u32::MAX)) as u32,
            points: points as usize,
        })
    }

    fn is_bad_name(&self, name: u32) -> bool {
        let Some(at) = name.checked_sub(1) else {
            return true;
        };
        self.bad_names[at as usize / 64] & 1 << (at % 64) != 0
    }

    /// Reads the points of a count, rate or gauge. Returns their samples: each is one.
    fn numbers(&mut self, columns: &mut Columns<'_>, head: &Head) -> Result<u64, Refusal> {
        if self.kept.points.capacity() - self.kept.points.len() < head.points {
            let more = head.points.max(self.kept.points.len()).max(16);
            self.memory.reserve(&mut self.kept.points, more)?;
        }
        for _ in 0..head.points {
            self.kept.points.push(Point {
                timestamp: columns.timestamps.delta()?,
                value: columns.values.next(head.value_type)?,
            });
        }
        Ok(head.points as u64)
    }

    /// Reads the points of a sketch. Returns their samples, and the error of the series.
    fn sketches(
        &mut self,
        columns: &mut Columns<'_>,
        head: &Head,
    ) -> Result<(u64, Option<SeriesFault>), Refusal> {
        let (mut samples, mut fault) = (0u64, None);
        for _ in 0..head.points {
            let timestamp = columns.timestamps.delta()?;
            let [sum, min, max] = [
                columns.values.next(head.value_type)?,
                columns.values.next(head.value_type)?,
                columns.values.next(head.value_type)?,
            ];
            let count = columns.values.integers.signed()?;
            let count = u64::try_from(count)
                .ok()
                .filter(|count| *count <= SKETCH_SAMPLES_MAX);
            let bins = self.bins(columns)?;
            match (count, bins) {
                (Some(0), Some((_, 0))) => {}
                (Some(count), Some((bins, in_bins))) if count == in_bins && is_range(sum, min, max) => {
                    samples += count;
                    let point = SketchPoint {
                        timestamp,
                        count,
                        sum,
                        min,
                        max,
                        bins,
                    };
                    self.memory.push(&mut self.kept.sketches, point)?;
                }
                (count, _) => {
                    samples += count.unwrap_or(0);
                    fault = Some(SeriesFault::BadSketch);
                }
            }
        }
        Ok((samples, fault))
    }

    /// Reads the bins of a point, and how many samples they have. `None`: they are the bins of no sketch.
    fn bins(&mut self, columns: &mut Columns<'_>) -> Result<Option<(Span, u64)>, Refusal> {
        let count = columns.bin_counts.unsigned()?;
        if count > columns.bin_keys.bytes_left() as u64 {
            return Err(Refusal::Short("bin keys"));
        }
        let start = self.kept.bins.len();
        let (mut all, mut distinct, mut last) = (0u64, 0, None);
        let mut is_valid = true;
        columns.bin_keys.restart();
        for _ in 0..count {
            let key = columns.bin_keys.delta()?;
            let samples = columns.bin_samples.unsigned()?;
            all = all.saturating_add(samples);
            distinct += usize::from(last != Some(key));
            let ascends = last.is_none_or(|last| last <= key);
            last = Some(key);
            // The lowest number of its type has no positive twin.
            let own = i16::try_from(key).ok().filter(|key| *key > i16::MIN);
            is_valid &= ascends && distinct <= BINS_MAX && all <= SKETCH_SAMPLES_MAX && own.is_some();
            if let (true, Some(k)) = (is_valid, own) {
                self.add_bin(k, samples)?;
            }
        }
        let span = Span {
            start: start as u32,
            len: (self.kept.bins.len() - start) as u32,
        };
        Ok(is_valid.then_some((span, all)))
    }

    /// A count beyond a bin's own takes several: the rest first, then full ones.
    fn add_bin(&mut self, k: i16, samples: u64) -> Result<(), Refusal> {
        let full = u64::from(u32::MAX);
        if !samples.is_multiple_of(full) {
            let n = (samples % full) as u32;
            self.memory.push(&mut self.kept.bins, Bin { k, n })?;
        }
        for _ in 0..samples / full {
            self.memory.push(&mut self.kept.bins, Bin { k, n: u32::MAX })?;
        }
        Ok(())
    }

    fn keep(&mut self, head: &Head, tags: u32, mark: Mark) -> Result<(), Refusal> {
        let (start, end) = match head.kind {
            MetricType::Sketch => (mark.sketches, self.kept.sketches.len()),
            _ => (mark.points, self.kept.points.len()),
        };
        let row = Row {
            name: head.name,
            tags,
            kind: head.kind,
            interval: head.interval,
            points: Span {
                start: start as u32,
                len: (end - start) as u32,
            },
        };
        self.memory.push(&mut self.kept.rows, row)
    }

    fn note_dropped(&mut self, series: usize, name: u32, fault: SeriesFault) -> Result<(), Refusal> {
        if self.first_dropped.len() == DROPPED_NAMED {
            return Ok(());
        }
        let row = DroppedRow {
            place: series as u32,
            name,
            fault,
        };
        self.memory.push(&mut self.first_dropped, row)
    }

    fn drop_series(&mut self, head: &Head, fault: SeriesFault, samples: u64, mark: Mark) {
        self.kept.points.truncate(mark.points);
        self.kept.sketches.truncate(mark.sketches);
        self.kept.bins.truncate(mark.bins);
        let dropped = &mut self.dropped[fault as usize];
        dropped.series += 1;
        dropped.points += head.points as u64;
        dropped.samples += samples;
    }
}

/// Whether these can be of one sketch.
fn is_range(sum: f64, min: f64, max: f64) -> bool {
    min.is_finite() && max.is_finite() && min <= max && sum.is_finite()
}
