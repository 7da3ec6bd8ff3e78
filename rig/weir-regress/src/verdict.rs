//! Turns an estimate into a verdict.

use crate::describe::{Variation, mean, variation};
use crate::estimate::{Estimate, Scale};

/// The desired direction of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    HigherIsBetter,
    LowerIsBetter,
    /// Unspecified by the experiment; a change is shown but not judged.
    Undeclared,
}

/// The two criteria and the limit on spread.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rule {
    /// Smaller relative changes do not matter (0.05 = 5 %).
    pub effect: f64,
    /// For values that may be zero: the smallest difference that matters, in the value's own unit.
    pub effect_absolute: f64,
    /// Level of the interval (0.90).
    pub confidence: f64,
    /// An arm whose runs vary more than this (standard deviation over mean) is erratic.
    pub erratic_cv: f64,
}

impl Default for Rule {
    fn default() -> Self {
        Self {
            effect: 0.05,
            effect_absolute: 0.001,
            confidence: 0.90,
            erratic_cv: 0.1,
        }
    }
}

/// The verdict for one row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Large enough, certain enough, and in the bad direction.
    Regression,
    /// Large enough, certain enough, and in the good direction.
    Improvement,
    /// Large enough and certain enough, but the good direction is unspecified.
    Changed,
    /// The whole interval is inside the threshold: shown not to have changed by as much as matters.
    Equivalent,
    /// Neither a change nor its absence could be shown.
    Inconclusive,
    /// Not conclusive, and at least one arm varies too much for this number of pairs to tell.
    Erratic,
    /// The runs did not prove that they measured the target.
    Invalid,
}

impl Verdict {
    pub fn name(self) -> &'static str {
        match self {
            Self::Regression => "regression",
            Self::Improvement => "improvement",
            Self::Changed => "changed",
            Self::Equivalent => "equivalent",
            Self::Inconclusive => "inconclusive",
            Self::Erratic => "erratic",
            Self::Invalid => "invalid",
        }
    }
}

/// Spread of both arms.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Spread {
    pub baseline: Option<Variation>,
    pub comparison: Option<Variation>,
    /// Either arm exceeds the limit.
    pub erratic: bool,
    /// Only the comparison exceeds it.
    pub newly_erratic: bool,
    /// Newly erratic, and the low end of the spread's own interval exceeds the limit too. Seven runs know their spread only to a factor of
    /// two, so only this may fail a build, not `newly_erratic`.
    pub surely_newly_erratic: bool,
}

pub fn spread(baseline: &[f64], comparison: &[f64], rule: &Rule) -> Spread {
    let (b, c) = (variation(baseline), variation(comparison));
    let over = |v: &Option<Variation>| v.is_some_and(|v| v.cv > rule.erratic_cv);
    let newly_erratic = over(&c) && !over(&b);
    Spread {
        baseline: b,
        comparison: c,
        erratic: over(&b) || over(&c),
        newly_erratic,
        surely_newly_erratic: newly_erratic && c.is_some_and(|v| v.low > rule.erratic_cv),
    }
}

/// The threshold of this row in the unit of its estimate. For absolute differences a share of the baseline counts too: a tenth of a point
/// more matters if nothing was lost before, and is noise if a third was.
pub fn threshold(estimate: &Estimate, baseline: &[f64], rule: &Rule) -> f64 {
    match estimate.scale {
        Scale::Percent => 100.0 * rule.effect,
        Scale::Absolute => rule.effect_absolute.max(rule.effect * mean(baseline).abs()),
    }
}

/// Applies the two criteria; a row that meets neither proof is inconclusive, never "no change".
pub fn judge(estimate: &Estimate, threshold: f64, spread: &Spread, direction: Direction) -> Verdict {
    if estimate.delta.abs() >= threshold && estimate.excludes_zero() {
        return match (direction, estimate.delta > 0.0) {
            (Direction::HigherIsBetter, true) | (Direction::LowerIsBetter, false) => Verdict::Improvement,
            (Direction::HigherIsBetter, false) | (Direction::LowerIsBetter, true) => Verdict::Regression,
            (Direction::Undeclared, _) => Verdict::Changed,
        };
    }
    if estimate.low > -threshold && estimate.high < threshold {
        return Verdict::Equivalent;
    }
    if spread.erratic {
        Verdict::Erratic
    } else {
        Verdict::Inconclusive
    }
}

/// Correction for many rows: with 23 rows at 90 %, two or three intervals exclude zero by chance.
///
/// Benjamini and Hochberg's q-values, in the order of the input. Among rows with q < 0.1 at most a tenth is expected to be false.
pub fn benjamini_hochberg(p: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..p.len()).collect();
    order.sort_by(|a, b| p[*a].total_cmp(&p[*b]));
    let mut q = vec![1.0; p.len()];
    let mut least = 1.0_f64;
    for (rank, index) in order.iter().enumerate().rev() {
        least = least.min(p[*index] * p.len() as f64 / (rank + 1) as f64);
        q[*index] = least;
    }
    q
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::estimate::{Method, paired_difference};

    fn estimate(delta: f64, low: f64, high: f64) -> Estimate {
        Estimate {
            method: Method::PairedLogRatio,
            scale: Scale::Percent,
            n: 7,
            delta,
            low,
            high,
            p: 0.5,
            confidence: 50.0,
            sd: 0.01,
            mde: 1.0,
        }
    }

    fn check(delta: f64, low: f64, high: f64, want: Verdict) {
        let got = judge(
            &estimate(delta, low, high),
            5.0,
            &Spread::default(),
            Direction::LowerIsBetter,
        );
        assert_eq!(got, want, "{delta} [{low}, {high}]");
    }

    #[test]
    fn the_two_criteria() {
        check(8.0, 6.0, 10.0, Verdict::Regression);
        check(-8.0, -10.0, -6.0, Verdict::Improvement);
        check(5.0, 4.0, 6.0, Verdict::Regression);
        check(8.0, -1.0, 17.0, Verdict::Inconclusive);
        check(3.0, 2.0, 4.0, Verdict::Equivalent);
        check(3.0, 0.5, 5.5, Verdict::Inconclusive);
        check(0.0, -4.9, 4.9, Verdict::Equivalent);
        check(0.0, -5.0, 5.0, Verdict::Inconclusive);
    }

    #[test]
    fn direction_decides_the_word_and_nothing_else() {
        let up = estimate(8.0, 6.0, 10.0);
        let word = |d| judge(&up, 5.0, &Spread::default(), d);
        assert_eq!(word(Direction::HigherIsBetter), Verdict::Improvement);
        assert_eq!(word(Direction::LowerIsBetter), Verdict::Regression);
        assert_eq!(word(Direction::Undeclared), Verdict::Changed);
    }

    #[test]
    fn wild_arms_are_erratic_only_when_nothing_was_proven() {
        let rule = Rule::default();
        let calm = [100.0, 101.0, 99.0, 100.0, 100.0, 101.0, 99.0];
        let wild = [100.0, 180.0, 40.0, 150.0, 60.0, 170.0, 30.0];
        let s = spread(&calm, &wild, &rule);
        assert!(s.erratic && s.newly_erratic && s.surely_newly_erratic, "{s:?}");
        assert_eq!(
            judge(&estimate(1.0, -30.0, 30.0), 5.0, &s, Direction::LowerIsBetter),
            Verdict::Erratic
        );
        assert_eq!(
            judge(&estimate(60.0, 20.0, 90.0), 5.0, &s, Direction::LowerIsBetter),
            Verdict::Regression
        );
        // Both arms vary strongly: erratic, but not newly.
        let s = spread(&wild, &wild, &rule);
        assert!(s.erratic && !s.newly_erratic);
        // Barely above the limit with seven runs: not certain enough to fail a build.
        let slightly = [100.0, 112.0, 88.0, 111.0, 89.0, 110.0, 90.0];
        let s = spread(&calm, &slightly, &rule);
        assert!(s.newly_erratic && !s.surely_newly_erratic, "{s:?}");
    }

    #[test]
    fn loss_is_judged_in_points_with_a_share_of_the_baseline() {
        let rule = Rule::default();
        let none = [0.0; 5];
        let some = [0.004, 0.005, 0.006, 0.005, 0.005];
        let e = paired_difference(&none, &some, 0.9).unwrap();
        let t = threshold(&e, &none, &rule);
        assert_eq!(t, 0.001);
        assert_eq!(
            judge(&e, t, &Spread::default(), Direction::LowerIsBetter),
            Verdict::Regression
        );
        // The same half point on top of a third does not count.
        let third = [0.33; 5];
        let more = [0.334, 0.335, 0.336, 0.335, 0.335];
        let e = paired_difference(&third, &more, 0.9).unwrap();
        let t = threshold(&e, &third, &rule);
        assert_eq!(
            judge(&e, t, &Spread::default(), Direction::LowerIsBetter),
            Verdict::Equivalent
        );
    }

    #[test]
    fn by_hand() {
        let q = benjamini_hochberg(&[0.01, 0.04, 0.03, 0.005]);
        let want = [0.02, 0.04, 0.04, 0.02];
        assert!(q.iter().zip(want).all(|(a, b)| (a - b).abs() < 1e-12), "{q:?}");
        assert_eq!(benjamini_hochberg(&[]), Vec::<f64>::new());
        assert_eq!(benjamini_hochberg(&[0.3]), vec![0.3]);
    }

    #[test]
    fn never_below_p_and_never_above_one() {
        let p: Vec<f64> = (0..50).map(|i| f64::from(i * 37 % 50) / 50.0).collect();
        for (p, q) in p.iter().zip(benjamini_hochberg(&p)) {
            assert!(q >= *p - 1e-15 && q <= 1.0);
        }
    }
}
