//! Answers to queries, in columns for charts.

use serde::Serialize;
use weir_sketch::{GAMMA, Sketch, lower};

use crate::dictionary::SeriesKind;

/// Times, and one column per group.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct QueryResult {
    pub metric: String,
    pub kind: SeriesKind,
    /// As in the request, for example `p99`.
    #[serde(rename = "fn")]
    pub function: String,
    /// Seconds between two times.
    pub step: u32,
    /// Seconds of a bucket; the widest if the width changed.
    pub width: u32,
    /// Unix seconds at which each step begins.
    pub times: Vec<i64>,
    pub groups: Vec<Group>,
    /// Number of groups folded into `other`.
    pub folded: usize,
    /// Series that were read.
    pub series: usize,
    /// Unix seconds of the oldest bucket the history holds.
    pub held_from: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub heatmap: Option<Heatmap>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Group {
    /// Values of the grouping keys, in their order; empty for the sum of all. `None`: the series lacks that key.
    pub tags: Vec<(String, Option<String>)>,
    /// True for the group that contains the smallest groups.
    pub other: bool,
    pub series: usize,
    /// One per time; `None` without a point.
    pub values: Vec<Option<f64>>,
}

/// Separate series.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SeriesColumns {
    /// Seconds between two times.
    pub step: u32,
    /// Unix seconds at which each step begins.
    pub times: Vec<i64>,
    pub series: Vec<SeriesColumn>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SeriesColumn {
    pub name: String,
    pub kind: SeriesKind,
    pub tags: Vec<(String, String)>,
    /// One per time: counters per second, means of gauges; `None` without a point.
    pub values: Vec<Option<f64>>,
}

/// Number of samples in each range of values, per step.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Heatmap {
    /// Lower and upper bound of each row, ascending.
    pub rows: Vec<(f64, f64)>,
    /// One list per time with a number for each row; empty without a point.
    pub counts: Vec<Vec<u64>>,
}

/// Rows of a heat map. More do not fit on a screen.
const HEATMAP_ROWS_MAX: i32 = 64;

impl Heatmap {
    pub(crate) fn of<'s>(sketches: impl Iterator<Item = Option<&'s Sketch>> + Clone) -> Heatmap {
        let keys = sketches.clone().flatten().flat_map(|sketch| {
            let bins = sketch.bins();
            [bins.first().map(|bin| bin.k), bins.last().map(|bin| bin.k)]
        });
        let (min, max) = keys.flatten().fold((i32::MAX, i32::MIN), |(min, max), k| {
            (min.min(i32::from(k)), max.max(i32::from(k)))
        });
        if min > max {
            return Heatmap {
                rows: Vec::new(),
                counts: sketches.map(|_| Vec::new()).collect(),
            };
        }
        let keys_per_row = (max - min) / HEATMAP_ROWS_MAX + 1;
        let rows = (max - min) / keys_per_row + 1;
        Heatmap {
            rows: (0..rows)
                .map(|row| bounds(min + row * keys_per_row, keys_per_row))
                .collect(),
            counts: sketches
                .map(|sketch| sketch.map_or_else(Vec::new, |sketch| counts(sketch, min, keys_per_row, rows)))
                .collect(),
        }
    }
}

/// Bounds of the values whose keys are `first` to `first + count - 1`.
fn bounds(first: i32, count: i32) -> (f64, f64) {
    let edge = |k: i32| match k {
        0 => 0.0,
        k if k > 0 => lower(clamp(k)),
        k => -lower(clamp(-k)),
    };
    let last = first + count - 1;
    // Below zero, `lower` returns the bound nearer to zero.
    let low = if first < 0 {
        edge(first) * GAMMA
    } else {
        edge(first)
    };
    let high = if last >= 0 { edge(last) * GAMMA } else { edge(last) };
    (low, high)
}

fn clamp(k: i32) -> i16 {
    k.clamp(i32::from(i16::MIN), i32::from(i16::MAX)) as i16
}

fn counts(sketch: &Sketch, min: i32, keys_per_row: i32, rows: i32) -> Vec<u64> {
    let mut counts = vec![0; rows as usize];
    for bin in sketch.bins().iter() {
        counts[((i32::from(bin.k) - min) / keys_per_row) as usize] += u64::from(bin.n);
    }
    counts
}
