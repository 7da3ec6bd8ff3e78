//! One goal of one group of pairs: estimate, verdict, and its row in the report.

use super::{Arm, Change, Pair, PairValues, Row, sig};
use crate::detect::capture::{self, Capture};
use crate::detect::goal::Goal;
use crate::detect::record::{ARMS, ExperimentInfo, replicate_folder};
use std::path::Path;
use weir_regress::describe::{self, Variation};
use weir_regress::estimate::{self, Estimate};
use weir_regress::verdict::{self, Spread};
use weir_regress::{Direction, Rule, Scale, Verdict};

/// With more signs, flipping each combination takes too long.
const FLIPS_MAX: usize = 12;

pub struct Comparison<'a> {
    goal: Goal,
    direction: Direction,
    rule: &'a Rule,
    values: Vec<PairValues>,
    baseline: Vec<f64>,
    comparison: Vec<f64>,
}

impl<'a> Comparison<'a> {
    /// `None` if some runs could not measure the goal: comparing the others would be a choice after the fact.
    pub fn of(e: &ExperimentInfo, goal: Goal, pairs: &[Pair], rule: &'a Rule) -> Option<Comparison<'a>> {
        let values = pairs.iter().map(|p| {
            let value = |arm: usize| p.arms[arm].values.get(&goal).map(|v| sig(*v));
            Some(PairValues {
                pair: p.record.pair,
                order: p.record.order.clone(),
                baseline: value(0)?,
                comparison: value(1)?,
            })
        });
        let values: Vec<PairValues> = values.collect::<Option<_>>()?;
        (!values.is_empty()).then(|| Comparison {
            goal,
            direction: e.direction_of(goal),
            rule,
            baseline: values.iter().map(|v| v.baseline).collect(),
            comparison: values.iter().map(|v| v.comparison).collect(),
            values,
        })
    }

    pub fn row(self, e: &ExperimentInfo, name: &str) -> Row {
        let (b, c) = (&self.baseline, &self.comparison);
        let (estimated, spread) = match self.goal.is_difference() {
            true => (
                estimate::paired_difference(b, c, self.rule.confidence),
                Spread::default(),
            ),
            false => (
                estimate::paired_log_ratio(b, c, self.rule.confidence),
                verdict::spread(b, c, self.rule),
            ),
        };
        let mut row = Row {
            experiment: name.to_owned(),
            newly_erratic: spread.newly_erratic,
            surely_newly_erratic: spread.surely_newly_erratic,
            pairs: self.values.len(),
            baseline: arm(b, spread.baseline),
            comparison: arm(c, spread.comparison),
            reason: None,
            ..Row::empty(e, self.goal, Verdict::Inconclusive.name(), "")
        };
        match estimated {
            // All zeros on both sides is a valid answer for a headline that counts something.
            Err(why) => row.reason = Some(why.to_string()),
            Ok(estimate) => self.judge(&mut row, &estimate, &spread),
        }
        row.values = self.values;
        row
    }

    fn judge(&self, row: &mut Row, estimate: &Estimate, spread: &Spread) {
        let threshold = verdict::threshold(estimate, &self.baseline, self.rule);
        let word = verdict::judge(estimate, threshold, spread, self.direction);
        row.verdict = word.name().to_owned();
        row.perf = match word {
            Verdict::Improvement => "better",
            Verdict::Regression => "worse",
            Verdict::Equivalent => "none",
            _ => "unknown",
        }
        .to_owned();
        row.change = Some(self.change(estimate, threshold));
    }

    fn change(&self, e: &Estimate, threshold: f64) -> Change {
        let welch = estimate::welch_ratio(&self.baseline, &self.comparison, self.rule.confidence);
        let flips = self.flips();
        Change {
            scale: match e.scale {
                Scale::Percent => "percent",
                Scale::Absolute => "absolute",
            }
            .to_owned(),
            delta: sig(e.delta),
            low: sig(e.low),
            high: sig(e.high),
            confidence: sig(e.confidence),
            p: sig(e.p),
            q: 1.0,
            mde: sig(e.mde),
            threshold: sig(threshold),
            welch: welch.ok().map(|w| [w.delta, w.low, w.high].map(sig)),
            sign_flip_p: match flips.len() {
                0..=FLIPS_MAX => estimate::sign_flip_p(&flips).map(sig),
                _ => None,
            },
        }
    }

    /// The difference between the arms of each pair.
    fn flips(&self) -> Vec<f64> {
        let between = |(b, c): (&f64, &f64)| match self.goal.is_difference() {
            true => c - b,
            false => (c / b).ln(),
        };
        self.baseline.iter().zip(&self.comparison).map(between).collect()
    }
}

fn arm(values: &[f64], v: Option<Variation>) -> Arm {
    Arm {
        mean: Some(sig(describe::mean(values))),
        cv: v.map(|v| [v.cv, v.low, v.high].map(sig)),
        within: None,
    }
}

/// Share of the variance of run means that noise inside the runs explains.
pub fn within(run: &Path, experiment: &str, arm: usize, pairs: &[Pair]) -> Option<f64> {
    let shares = |p: &Pair| {
        let folder = replicate_folder(run, experiment, ARMS[arm], p.record.replicate(arm));
        let capture = Capture::read(&folder).ok()?;
        Some(capture::shares(&capture.window("target", "cpu_ns")))
    };
    let series: Vec<Vec<f64>> = pairs.iter().filter_map(shares).collect();
    describe::variance_split(&series).map(|s| sig(s.within))
}
