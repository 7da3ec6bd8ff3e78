//! Merges the points of many series into one column per group.
//!
//! First each series is reduced to one [`Point`] per step: a gauge that is reported ten times in a step must not weigh ten times as much in
//! a sum over series as one that is reported once.

use weir_sketch::Sketch;

use crate::dictionary::SeriesKind;
use crate::query::Function;

impl SeriesKind {
    /// Whether its points are sketches, not numbers.
    pub fn has_sketches(self) -> bool {
        matches!(self, SeriesKind::Distribution | SeriesKind::Histogram)
    }
}

/// The scalars of one series in one step, combined.
#[derive(Clone, Copy, Debug)]
pub struct Point {
    count: u64,
    sum: f64,
    min: f64,
    max: f64,
    last: f64,
    last_time: i64,
}

impl Point {
    pub const EMPTY: Point = Point {
        count: 0,
        sum: 0.0,
        min: f64::INFINITY,
        max: f64::NEG_INFINITY,
        last: 0.0,
        last_time: i64::MIN,
    };

    pub fn add(&mut self, time: i64, value: f64) {
        self.count += 1;
        self.sum += value;
        self.min = self.min.min(value);
        self.max = self.max.max(value);
        if time >= self.last_time {
            (self.last, self.last_time) = (value, time);
        }
    }

    /// The series' contribution to a sum over series: counts add up over time, levels are averaged.
    fn level(&self, kind: SeriesKind) -> f64 {
        match kind {
            SeriesKind::Counter => self.sum,
            _ => self.sum / self.count as f64,
        }
    }
}

/// One step of one group.
#[derive(Clone, Debug, Default)]
struct Cell {
    series: u64,
    count: u64,
    sum: f64,
    level: f64,
    last: f64,
    extremes: Option<(f64, f64)>,
    sketch: Option<Box<Sketch>>,
}

impl Cell {
    fn add(&mut self, point: &Point, kind: SeriesKind) {
        self.series += 1;
        self.count += point.count;
        self.sum += point.sum;
        self.level += point.level(kind);
        self.last += point.last;
        let (min, max) = self.extremes.unwrap_or((point.min, point.max));
        self.extremes = Some((min.min(point.min), max.max(point.max)));
    }

    fn merge(&mut self, other: Cell) {
        self.series += other.series;
        self.count += other.count;
        self.sum += other.sum;
        self.level += other.level;
        self.last += other.last;
        self.extremes = match (self.extremes, other.extremes) {
            (Some((min, max)), Some((lower, higher))) => Some((min.min(lower), max.max(higher))),
            (mine, theirs) => mine.or(theirs),
        };
        if let Some(sketch) = other.sketch {
            self.sketch.get_or_insert_default().merge(&sketch);
        }
    }

    fn value(&self, function: Function, seconds: f64) -> Option<f64> {
        if let Some(sketch) = &self.sketch {
            return sketch_value(sketch, function, seconds);
        }
        let (min, max) = self.extremes?;
        Some(match function {
            Function::Sum => self.level,
            Function::Rate => self.sum / seconds,
            Function::Avg => self.sum / self.count as f64,
            Function::Min => min,
            Function::Max => max,
            Function::Count => self.count as f64,
            Function::Last => self.last,
            Function::Quantile(_) | Function::Heatmap => return None,
        })
    }
}

fn sketch_value(sketch: &Sketch, function: Function, seconds: f64) -> Option<f64> {
    if sketch.is_empty() {
        return None;
    }
    Some(match function {
        Function::Sum => sketch.sum(),
        Function::Rate => sketch.cnt() as f64 / seconds,
        Function::Avg => sketch.avg(),
        Function::Min => sketch.min(),
        Function::Max => sketch.max(),
        Function::Count => sketch.cnt() as f64,
        Function::Quantile(q) => sketch.quantile(q),
        Function::Last | Function::Heatmap => return None,
    })
}

/// All steps of one group.
#[derive(Clone, Debug)]
pub struct Column {
    cells: Vec<Cell>,
    pub series: usize,
}

impl Column {
    pub fn new(steps: usize) -> Self {
        Column {
            cells: vec![Cell::default(); steps],
            series: 0,
        }
    }

    pub fn add(&mut self, step: usize, point: &Point, kind: SeriesKind) {
        if point.count > 0 {
            self.cells[step].add(point, kind);
        }
    }

    pub fn add_sketch(&mut self, step: usize, sketch: &Sketch) {
        self.cells[step].sketch.get_or_insert_default().merge(sketch);
    }

    pub fn merge(&mut self, other: Column) {
        self.series += other.series;
        for (mine, theirs) in self.cells.iter_mut().zip(other.cells) {
            mine.merge(theirs);
        }
    }

    /// `seconds`: covered by the buckets of each step.
    pub fn values(&self, function: Function, seconds: &[f64]) -> Vec<Option<f64>> {
        let cells = self.cells.iter().zip(seconds);
        cells
            .map(|(cell, &seconds)| cell.value(function, seconds).filter(|value| value.is_finite()))
            .collect()
    }

    /// Size of the group. The smallest groups are folded.
    pub fn weight(&self) -> f64 {
        let weights = self.cells.iter().map(|cell| match &cell.sketch {
            Some(sketch) => sketch.cnt() as f64,
            None => cell.level.abs(),
        });
        weights.filter(|weight| weight.is_finite()).sum()
    }

    pub fn sketches(&self) -> impl Iterator<Item = Option<&Sketch>> {
        self.cells.iter().map(|cell| cell.sketch.as_deref())
    }
}
