//! Storage of points: open buckets, and compressed segments of up to 32 closed buckets.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use weir_sketch::Sketch;

use crate::codec::{scalar, sketch};
use crate::dictionary::SeriesId;

/// Buckets of a segment. With more, the uncompressed open buckets would take more memory than longer chunks save.
pub const SEGMENT_BUCKETS: usize = 32;
const _: () = assert!(SEGMENT_BUCKETS <= scalar::BUCKETS_MAX);

/// The points of one time, uncompressed.
#[derive(Debug, Default)]
pub struct OpenBucket {
    /// Unix seconds of the points.
    pub time: i64,
    /// Seconds.
    pub width: u32,
    /// Shared with the previous bucket if equal, which is the rule because flushes have a fixed order.
    ids: Arc<Vec<SeriesId>>,
    values: Vec<f64>,
    sketch_ids: Vec<SeriesId>,
    /// Start of each sketch in `sketches`.
    sketch_starts: Vec<u32>,
    sketches: Vec<u8>,
}

/// Combination of two values of one series in one bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Combine {
    Add,
    Replace,
}

impl OpenBucket {
    pub fn new(time: i64, width: u32) -> Self {
        OpenBucket {
            time,
            width,
            ..OpenBucket::default()
        }
    }

    pub fn push(&mut self, id: SeriesId, value: f64) {
        Arc::make_mut(&mut self.ids).push(id);
        self.values.push(value);
    }

    pub fn push_sketch(&mut self, id: SeriesId, sketch: &Sketch) {
        self.sketch_ids.push(id);
        self.sketch_starts.push(self.sketches.len() as u32);
        sketch::encode(sketch, &mut self.sketches);
    }

    pub fn points(&self) -> usize {
        self.ids.len() + self.sketch_ids.len()
    }

    pub fn ids(&self) -> impl Iterator<Item = SeriesId> + '_ {
        self.ids.iter().chain(&self.sketch_ids).copied()
    }

    pub fn scalars(&self) -> impl Iterator<Item = (SeriesId, f64)> + '_ {
        self.ids.iter().copied().zip(self.values.iter().copied())
    }

    /// Each series with the bytes from the start of its sketch.
    pub fn sketches(&self) -> impl Iterator<Item = (SeriesId, &[u8])> + '_ {
        let starts = self
            .sketch_starts
            .iter()
            .map(|&start| &self.sketches[start as usize..]);
        self.sketch_ids.iter().copied().zip(starts)
    }

    pub fn heap_bytes(&self) -> usize {
        self.ids.capacity() * 4 / Arc::strong_count(&self.ids)
            + self.values.capacity() * 8
            + self.sketch_ids.capacity() * 4
            + self.sketch_starts.capacity() * 4
            + self.sketches.capacity()
    }

    /// Frees spare capacity, and shares the ids of the previous bucket if equal.
    pub fn shrink(&mut self, before: Option<&OpenBucket>) {
        match before {
            Some(before) if before.ids == self.ids => self.ids = before.ids.clone(),
            _ => Arc::make_mut(&mut self.ids).shrink_to_fit(),
        }
        self.values.shrink_to_fit();
        self.sketch_ids.shrink_to_fit();
        self.sketch_starts.shrink_to_fit();
        self.sketches.shrink_to_fit();
    }
}

/// The points of up to 64 buckets, one chunk per series and form.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Segment {
    times: Box<[i64]>,
    widths: Box<[u32]>,
    scalars: Chunks,
    sketches: Chunks,
    points: usize,
}

/// Chunks by series, in ascending order.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Chunks {
    ids: Box<[SeriesId]>,
    starts: Box<[u32]>,
    data: Box<[u8]>,
}

impl Chunks {
    fn of(&self, id: SeriesId) -> Option<&[u8]> {
        let at = self.ids.binary_search(&id).ok()?;
        let start = self.starts[at] as usize;
        let end = self
            .starts
            .get(at + 1)
            .map_or(self.data.len(), |&end| end as usize);
        Some(&self.data[start..end])
    }

    fn heap_bytes(&self) -> usize {
        self.ids.len() * 8 + self.data.len()
    }

    /// Whether every series has exactly one chunk.
    fn is_sound(&self) -> bool {
        let ends = self
            .starts
            .iter()
            .skip(1)
            .copied()
            .chain([self.data.len() as u32]);
        self.ids.len() == self.starts.len()
            && self.ids.is_sorted_by(|one, next| one < next)
            && self.starts.iter().zip(ends).all(|(&start, end)| start <= end)
            && self
                .starts
                .last()
                .is_none_or(|&last| last as usize <= self.data.len())
    }
}

/// Chunks during encoding.
#[derive(Default)]
struct ChunksWriter {
    ids: Vec<SeriesId>,
    starts: Vec<u32>,
    data: Vec<u8>,
}

impl ChunksWriter {
    fn begin(&mut self, id: SeriesId) {
        self.ids.push(id);
        self.starts.push(self.data.len() as u32);
    }

    fn finish(self) -> Chunks {
        Chunks {
            ids: self.ids.into(),
            starts: self.starts.into(),
            data: self.data.into(),
        }
    }
}

impl Segment {
    /// Closes at most [`SEGMENT_BUCKETS`] buckets. `again` decides for a series with two values in one of them.
    pub fn close(buckets: &[OpenBucket], again: impl Fn(SeriesId) -> Combine) -> Segment {
        debug_assert!(buckets.len() <= SEGMENT_BUCKETS);
        let (scalars, points) = close_scalars(buckets, again);
        let (sketches, sketch_points) = close_sketches(buckets);
        Segment {
            times: buckets.iter().map(|bucket| bucket.time).collect(),
            widths: buckets.iter().map(|bucket| bucket.width).collect(),
            scalars,
            sketches,
            points: points + sketch_points,
        }
    }

    pub fn buckets(&self) -> impl ExactSizeIterator<Item = (i64, u32)> + '_ {
        self.times.iter().copied().zip(self.widths.iter().copied())
    }

    pub fn points(&self) -> usize {
        self.points
    }

    /// Whether the parts are consistent.
    pub fn is_sound(&self) -> bool {
        self.times.len() == self.widths.len()
            && self.times.len() <= SEGMENT_BUCKETS
            && self.scalars.is_sound()
            && self.sketches.is_sound()
    }

    /// The series in the segment, once for each form.
    pub fn ids(&self) -> impl Iterator<Item = SeriesId> + '_ {
        self.scalars.ids.iter().chain(&self.sketches.ids).copied()
    }

    pub fn scalars_of(&self, id: SeriesId, mut point: impl FnMut(i64, f64)) {
        if let Some(chunk) = self.scalars.of(id) {
            scalar::decode(chunk, self.times.len(), |bucket, value| {
                if let Some(&time) = self.times.get(bucket) {
                    point(time, value);
                }
            });
        }
    }

    pub fn sketches_of(&self, id: SeriesId, mut point: impl FnMut(i64, Sketch)) {
        let Some(mut chunk) = self.sketches.of(id) else {
            return;
        };
        while let Some((&bucket, rest)) = chunk.split_first() {
            chunk = rest;
            let found = sketch::decode(&mut chunk);
            if let Some(&time) = self.times.get(usize::from(bucket)) {
                point(time, found);
            }
        }
    }

    pub fn heap_bytes(&self) -> usize {
        self.times.len() * 12 + self.scalars.heap_bytes() + self.sketches.heap_bytes()
    }
}

/// All points of some buckets, ordered by series. Ids are small numbers, so this is a counting sort.
struct BySeries<T> {
    /// Start of the points of each id.
    starts: Vec<u32>,
    points: Vec<T>,
}

impl<T: Copy + Default> BySeries<T> {
    fn new(ids: impl Iterator<Item = SeriesId> + Clone, points: impl Iterator<Item = (SeriesId, T)>) -> Self {
        let end = ids.clone().max().map_or(0, |id| id as usize + 1);
        // Shifted by one, so that filling moves each start to its final position.
        let mut starts = vec![0u32; end + 2];
        ids.for_each(|id| starts[id as usize + 2] += 1);
        for at in 1..starts.len() {
            starts[at] += starts[at - 1];
        }
        let mut sorted = vec![T::default(); starts[starts.len() - 1] as usize];
        for (id, point) in points {
            let place = &mut starts[id as usize + 1];
            sorted[*place as usize] = point;
            *place += 1;
        }
        BySeries {
            starts,
            points: sorted,
        }
    }

    fn iter(&self) -> impl Iterator<Item = (SeriesId, &[T])> {
        let ranges = self.starts.windows(2).enumerate();
        ranges
            .map(|(id, range)| (id as SeriesId, &self.points[range[0] as usize..range[1] as usize]))
            .filter(|(_, points)| !points.is_empty())
    }
}

fn close_scalars(buckets: &[OpenBucket], again: impl Fn(SeriesId) -> Combine) -> (Chunks, usize) {
    let ids = buckets.iter().flat_map(|bucket| bucket.ids.iter().copied());
    let points = buckets
        .iter()
        .enumerate()
        .flat_map(|(at, bucket)| bucket.scalars().map(move |(id, value)| (id, (at as u8, value))));
    let sorted = BySeries::new(ids, points);
    let mut chunks = ChunksWriter::default();
    let mut scratch = scalar::Scratch::default();
    let (mut values, mut count) = (Vec::new(), 0);
    for (id, points) in sorted.iter() {
        let presence = column(points, again(id), &mut values);
        count += values.len();
        chunks.begin(id);
        scalar::encode(&values, presence, buckets.len(), &mut scratch, &mut chunks.data);
    }
    (chunks.finish(), count)
}

/// Writes one value per bucket to `values` and returns the presence bits.
fn column(points: &[(u8, f64)], again: Combine, values: &mut Vec<f64>) -> u64 {
    values.clear();
    let mut presence = 0u64;
    for &(bucket, value) in points {
        let bit = 1 << bucket;
        match values.last_mut() {
            // Buckets are in order, so a second value for a bucket directly follows the first.
            Some(last) if presence & bit != 0 => match again {
                Combine::Add => *last += value,
                Combine::Replace => *last = value,
            },
            _ => values.push(value),
        }
        presence |= bit;
    }
    presence
}

fn close_sketches(buckets: &[OpenBucket]) -> (Chunks, usize) {
    let ids = buckets
        .iter()
        .flat_map(|bucket| bucket.sketch_ids.iter().copied());
    let points = buckets.iter().enumerate().flat_map(|(at, bucket)| {
        let numbered = bucket.sketch_ids.iter().enumerate();
        numbered.map(move |(place, &id)| (id, (at as u8, place as u32)))
    });
    let sorted = BySeries::new(ids, points);
    let mut chunks = ChunksWriter::default();
    for (id, points) in sorted.iter() {
        chunks.begin(id);
        for &(bucket, place) in points {
            let open = &buckets[usize::from(bucket)];
            let start = open.sketch_starts[place as usize] as usize;
            let end = open
                .sketch_starts
                .get(place as usize + 1)
                .map_or(open.sketches.len(), |&end| end as usize);
            chunks.data.push(bucket);
            chunks.data.extend_from_slice(&open.sketches[start..end]);
        }
    }
    (chunks.finish(), sorted.points.len())
}
