//! Detects gradual changes in a history of results.
//!
//! Pairwise comparison judges one change and misses ten small ones in a row. This finds the splits that best separate a series in energy
//! distance (Matteson and James, 2014) and keeps a split if a t-test between its neighbours agrees, the combination that MongoDB and
//! DataStax reported to work on performance histories.

use crate::describe::{mean, variance};
use crate::special::t_two_sided;

/// Criteria for reporting a split.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Options {
    /// Maximum p-value. The best of many splits is tested, so it must be far below the usual 0.05.
    pub p_max: f64,
    /// Smallest accepted change of the mean, as a share (0.02 = 2 %).
    pub change_min: f64,
    /// Minimum number of values on either side.
    pub side_min: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            p_max: 0.001,
            change_min: 0.02,
            side_min: 4,
        }
    }
}

/// A level change: values before `index` differ from those at and after it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ChangePoint {
    pub index: usize,
    pub before: f64,
    pub after: f64,
    pub p: f64,
}

impl ChangePoint {
    /// Relative change in percent.
    pub fn percent(&self) -> f64 {
        100.0 * (self.after / self.before - 1.0)
    }
}

/// All change points of `series` in order of position.
pub fn change_points(series: &[f64], options: &Options) -> Vec<ChangePoint> {
    let side = options.side_min.max(2);
    let mut splits = Vec::new();
    split(series, 0, side, options.p_max, &mut splits);
    splits.sort_unstable();
    // Splitting is greedy, so a split may become unjustified once its neighbours are found: drop the weakest until all others are
    // significant against their adjacent segments.
    loop {
        let points = describe(series, &splits);
        let weakest = points
            .iter()
            .enumerate()
            .filter(|(_, c)| c.p > options.p_max || relative(c) < options.change_min)
            .max_by(|a, b| a.1.p.total_cmp(&b.1.p));
        match weakest {
            Some((i, _)) => splits.remove(i),
            None => return points,
        };
    }
}

fn relative(c: &ChangePoint) -> f64 {
    if c.before == 0.0 {
        f64::INFINITY
    } else {
        ((c.after - c.before) / c.before).abs()
    }
}

fn describe(series: &[f64], splits: &[usize]) -> Vec<ChangePoint> {
    splits
        .iter()
        .enumerate()
        .map(|(i, &at)| {
            let from = if i == 0 { 0 } else { splits[i - 1] };
            let to = splits.get(i + 1).copied().unwrap_or(series.len());
            let (left, right) = (&series[from..at], &series[at..to]);
            ChangePoint {
                index: at,
                before: mean(left),
                after: mean(right),
                p: welch_p(left, right),
            }
        })
        .collect()
}

fn split(part: &[f64], offset: usize, side: usize, p_max: f64, out: &mut Vec<usize>) {
    if part.len() < 2 * side {
        return;
    }
    let Some(at) = best_split(part, side) else { return };
    if welch_p(&part[..at], &part[at..]) > p_max {
        return;
    }
    out.push(offset + at);
    split(&part[..at], offset, side, p_max, out);
    split(&part[at..], offset + at, side, p_max, out);
}

/// The split with the largest scaled energy distance. Sums over pairs are updated from split to split, so a history of n results costs n^2
/// steps, not n^3.
fn best_split(part: &[f64], side: usize) -> Option<usize> {
    let n = part.len();
    let distance = |i: usize, j: usize| (part[i] - part[j]).abs();
    let mut left = 0.0; // sum over pairs inside the left part
    let mut right = 0.0; // sum over pairs inside the right part
    let mut across = 0.0;
    for i in 0..n {
        for j in 0..i {
            right += distance(i, j);
        }
    }
    let mut best: Option<(f64, usize)> = None;
    for at in 1..n {
        // The value at `at - 1` moves from right to left.
        let moved = at - 1;
        let to_left: f64 = (0..moved).map(|j| distance(moved, j)).sum();
        let to_right: f64 = (at..n).map(|j| distance(moved, j)).sum();
        left += to_left;
        right -= to_right;
        across += to_right - to_left;
        if at < side || n - at < side {
            continue;
        }
        let (a, b) = (at as f64, (n - at) as f64);
        let energy = 2.0 * across / (a * b) - 2.0 * left / (a * (a - 1.0)) - 2.0 * right / (b * (b - 1.0));
        let scaled = energy * a * b / (a + b);
        if best.is_none_or(|(most, _)| scaled > most) {
            best = Some((scaled, at));
        }
    }
    best.filter(|(scaled, _)| *scaled > 0.0).map(|(_, at)| at)
}

fn welch_p(left: &[f64], right: &[f64]) -> f64 {
    let (a, b) = (
        variance(left) / left.len() as f64,
        variance(right) / right.len() as f64,
    );
    let gap = mean(left) - mean(right);
    let error = (a + b).sqrt();
    if error == 0.0 {
        return if gap == 0.0 { 1.0 } else { 0.0 };
    }
    let df = (a + b).powi(2) / (a * a / (left.len() - 1) as f64 + b * b / (right.len() - 1) as f64);
    t_two_sided(gap / error, df)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    fn noisy(rng: &mut Rng, levels: &[(usize, f64)], cv: f64) -> Vec<f64> {
        levels
            .iter()
            .flat_map(|&(n, level)| vec![level; n])
            .map(|l| l * (1.0 + cv * rng.normal()))
            .collect()
    }

    #[test]
    fn finds_steps_where_they_are() {
        let seed = 3;
        let series = noisy(&mut Rng::new(seed), &[(30, 100.0), (25, 106.0), (30, 97.0)], 0.01);
        let found = change_points(&series, &Options::default());
        let at: Vec<usize> = found.iter().map(|c| c.index).collect();
        assert_eq!(at.len(), 2, "seed {seed}: {found:?}");
        assert!(
            at[0].abs_diff(30) <= 1 && at[1].abs_diff(55) <= 1,
            "seed {seed}: {found:?}"
        );
        assert!((found[0].percent() - 6.0).abs() < 1.0 && (found[1].percent() + 8.5).abs() < 1.0);
    }

    #[test]
    fn finds_creep_that_no_single_comparison_would_flag() {
        // Twenty changes of 0.5 % each, all far below the 5 % of a pairwise comparison.
        let mut rng = Rng::new(8);
        let series: Vec<f64> = (0..60)
            .map(|i| 100.0 * 1.005_f64.powi(i / 3) * (1.0 + 0.005 * rng.normal()))
            .collect();
        assert!(!change_points(&series, &Options::default()).is_empty());
    }

    #[test]
    fn stays_silent_on_noise() {
        let seed = 17;
        let mut rng = Rng::new(seed);
        let trials = 200;
        let alarms = (0..trials)
            .filter(|_| {
                !change_points(&noisy(&mut rng, &[(50, 100.0)], 0.02), &Options::default()).is_empty()
            })
            .count();
        assert!(
            alarms <= trials / 20,
            "seed {seed}: {alarms} alarms in {trials} quiet histories"
        );
    }

    #[test]
    fn short_and_constant_histories_are_fine() {
        assert!(change_points(&[], &Options::default()).is_empty());
        assert!(change_points(&[1.0; 3], &Options::default()).is_empty());
        assert!(change_points(&[5.0; 40], &Options::default()).is_empty());
        let step: Vec<f64> = [vec![5.0; 10], vec![6.0; 10]].concat();
        assert_eq!(change_points(&step, &Options::default())[0].index, 10);
    }
}
