//! Checks the detector on this machine. Comparing a program with itself must exclude zero about as often as the confidence level says: less
//! often is wasteful, more often is wrong.

use crate::estimate::{Estimate, paired_log_ratio};
use crate::rng::Rng;
use crate::special::binomial_central;

/// Outcome of an A/A run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Calibration {
    pub rows: u64,
    /// Rows whose interval excludes zero.
    pub excluded: u64,
    /// Rows that met both criteria and would have been reported.
    pub flagged: u64,
    pub expected: f64,
    /// Accepted range of `excluded`.
    pub low: u64,
    pub high: u64,
    pub state: CalibrationState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CalibrationState {
    Accepted,
    /// Intervals are wider than they need to be: safe, but small changes are missed.
    TooWide,
    /// Intervals are too narrow or too many rows were flagged: do not trust reports of this machine.
    Failed,
    /// Nothing against the intervals, but too little evidence for them.
    TooFew,
}

impl CalibrationState {
    pub fn name(self) -> &'static str {
        match self {
            Self::Accepted => "accepted",
            Self::TooWide => "too-wide",
            Self::Failed => "failed",
            Self::TooFew => "too-few-rows",
        }
    }
}

/// Fewer rows prove little: intervals of half the right width exclude zero in four rows of ten, and three of ten would be accepted.
pub const ROWS_MIN: u64 = 30;

/// Judges an A/A run: `excluded` of `rows` intervals exclude zero, `flagged` would have been reported as changes.
pub fn calibrate(rows: u64, excluded: u64, flagged: u64, confidence: f64) -> Calibration {
    let (low, high) = binomial_central(rows, 1.0 - confidence, 0.95);
    // Simulations of correct intervals give at most one flagged row of sixty.
    let most_flagged = (rows as f64 / 60.0).ceil().max(1.0) as u64;
    let state = if excluded > high || flagged > most_flagged {
        CalibrationState::Failed
    } else if rows < ROWS_MIN {
        CalibrationState::TooFew
    } else if excluded < low {
        CalibrationState::TooWide
    } else {
        CalibrationState::Accepted
    };
    Calibration {
        rows,
        excluded,
        flagged,
        expected: rows as f64 * (1.0 - confidence),
        low,
        high,
        state,
    }
}

/// Swaps the labels inside stored pairs at random, `rounds` times, and returns the share of intervals that exclude zero. It needs no
/// machine time and tests the code, not the machine.
pub fn label_shuffle(
    baseline: &[f64],
    comparison: &[f64],
    confidence: f64,
    rounds: u32,
    seed: u64,
) -> Option<f64> {
    let mut rng = Rng::stream(seed, "label-shuffle");
    let mut excluded = 0_u32;
    for _ in 0..rounds {
        let (b, c): (Vec<f64>, Vec<f64>) = baseline
            .iter()
            .zip(comparison)
            .map(|(b, c)| if rng.coin() { (*b, *c) } else { (*c, *b) })
            .unzip();
        let e: Estimate = paired_log_ratio(&b, &c, confidence).ok()?;
        excluded += u32::from(e.excludes_zero());
    }
    (rounds > 0).then(|| f64::from(excluded) / f64::from(rounds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sixty_rows() {
        assert_eq!(calibrate(60, 6, 0, 0.9).state, CalibrationState::Accepted);
        assert_eq!(calibrate(60, 2, 1, 0.9).state, CalibrationState::Accepted);
        assert_eq!(calibrate(60, 11, 0, 0.9).state, CalibrationState::Accepted);
        assert_eq!(calibrate(60, 1, 0, 0.9).state, CalibrationState::TooWide);
        assert_eq!(calibrate(60, 12, 0, 0.9).state, CalibrationState::Failed);
        assert_eq!(calibrate(60, 6, 2, 0.9).state, CalibrationState::Failed);
    }

    #[test]
    fn few_rows_are_never_accepted_and_may_fail() {
        for (rows, excluded, flagged) in [(1, 0, 0), (5, 1, 1), (29, 3, 0)] {
            let state = calibrate(rows, excluded, flagged, 0.9).state;
            assert_eq!(state, CalibrationState::TooFew, "{rows} rows");
        }
        assert_eq!(calibrate(30, 3, 0, 0.9).state, CalibrationState::Accepted);
        assert_eq!(calibrate(5, 4, 0, 0.9).state, CalibrationState::Failed);
        assert_eq!(calibrate(5, 2, 2, 0.9).state, CalibrationState::Failed);
    }

    #[test]
    fn shuffled_labels_exclude_zero_at_the_nominal_rate() {
        let seed = 42;
        let mut rng = Rng::new(seed);
        let base: Vec<f64> = (0..15).map(|_| 100.0 * (1.0 + 0.02 * rng.normal())).collect();
        let other: Vec<f64> = (0..15).map(|_| 100.0 * (1.0 + 0.02 * rng.normal())).collect();
        let share = label_shuffle(&base, &other, 0.9, 4000, seed).unwrap();
        assert!((0.08..0.12).contains(&share), "seed {seed}: {share}");
    }
}
