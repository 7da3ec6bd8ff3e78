//! Estimates one change: its size, its certainty, and the smallest change that would have been detected.

use crate::describe::{mean, sd, variance};
use crate::special::{normal_cdf, normal_quantile, t_quantile, t_two_sided};

/// The method of an estimate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// Mean of `ln(comparison / baseline)` over pairs, Student's t.
    PairedLogRatio,
    /// Mean difference over pairs in the value's own unit, for values that may be zero.
    PairedDifference,
    /// Ratio of means of two independent groups, delta method, Welch's degrees of freedom.
    WelchRatio,
}

/// The unit of `delta`, `low` and `high`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scale {
    /// Percent of the baseline.
    Percent,
    /// The value's own unit.
    Absolute,
}

/// One change with its interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Estimate {
    pub method: Method,
    pub scale: Scale,
    /// Pairs, or the smaller group for [`Method::WelchRatio`].
    pub n: usize,
    pub delta: f64,
    pub low: f64,
    pub high: f64,
    /// Two-sided p-value of "no change".
    pub p: f64,
    /// 100 (1 - p), in percent.
    pub confidence: f64,
    /// Standard deviation of the paired quantity (log ratio or difference); the standard error times sqrt(n) for Welch.
    pub sd: f64,
    /// The change that this many runs with this spread would distinguish from "no change" 80 % of the time.
    pub mde: f64,
}

impl Estimate {
    pub fn excludes_zero(&self) -> bool {
        self.low > 0.0 || self.high < 0.0
    }

    pub fn half_width(&self) -> f64 {
        (self.high - self.low) / 2.0
    }
}

/// Why there is no estimate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EstimateError {
    /// Fewer than two values: no spread, so no interval.
    TooFew,
    /// A ratio of values needs all of them above zero.
    NotPositive,
    /// NaN or infinite input.
    NotFinite,
    /// Paired methods need the same number on both sides.
    Unequal,
}

impl std::fmt::Display for EstimateError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::TooFew => "fewer than two pairs",
            Self::NotPositive => "a ratio needs values above zero",
            Self::NotFinite => "a value is not a finite number",
            Self::Unequal => "the arms have different numbers of values",
        })
    }
}

impl std::error::Error for EstimateError {}

/// The primary estimator: paired log ratios.
pub fn paired_log_ratio(
    baseline: &[f64],
    comparison: &[f64],
    confidence: f64,
) -> Result<Estimate, EstimateError> {
    check(baseline, comparison, true)?;
    if baseline.iter().chain(comparison).any(|v| *v <= 0.0) {
        return Err(EstimateError::NotPositive);
    }
    let d: Vec<f64> = baseline
        .iter()
        .zip(comparison)
        .map(|(b, c)| (c / b).ln())
        .collect();
    let percent = |x: f64| 100.0 * x.exp_m1();
    Ok(student(
        &d,
        confidence,
        Method::PairedLogRatio,
        Scale::Percent,
        percent,
    ))
}

/// Paired difference in the value's own unit, for values such as loss that may be zero.
pub fn paired_difference(
    baseline: &[f64],
    comparison: &[f64],
    confidence: f64,
) -> Result<Estimate, EstimateError> {
    check(baseline, comparison, true)?;
    let d: Vec<f64> = baseline.iter().zip(comparison).map(|(b, c)| c - b).collect();
    Ok(student(
        &d,
        confidence,
        Method::PairedDifference,
        Scale::Absolute,
        |x| x,
    ))
}

fn student(d: &[f64], confidence: f64, method: Method, scale: Scale, show: impl Fn(f64) -> f64) -> Estimate {
    let n = d.len() as f64;
    let df = n - 1.0;
    let m = mean(d);
    let s = sd(d);
    let error = s / n.sqrt();
    let reach = t_quantile(0.5 + confidence / 2.0, df) * error;
    let p = p_value(m, error, df);
    let mde = (t_quantile(0.5 + confidence / 2.0, df) + t_quantile(0.8, df)) * error;
    Estimate {
        method,
        scale,
        n: d.len(),
        delta: show(m),
        low: show(m - reach),
        high: show(m + reach),
        p,
        confidence: 100.0 * (1.0 - p),
        sd: s,
        mde: show(mde),
    }
}

/// Runs that agree to the last bit have no error to divide by: then any difference is certain.
fn p_value(estimate: f64, error: f64, df: f64) -> f64 {
    if error > 0.0 {
        t_two_sided(estimate / error, df)
    } else if estimate == 0.0 {
        1.0
    } else {
        0.0
    }
}

/// Ratio of the means of two groups that were not measured in pairs.
pub fn welch_ratio(baseline: &[f64], comparison: &[f64], confidence: f64) -> Result<Estimate, EstimateError> {
    check(baseline, comparison, false)?;
    let (mb, mc) = (mean(baseline), mean(comparison));
    if mb <= 0.0 {
        return Err(EstimateError::NotPositive);
    }
    let (nb, nc) = (baseline.len() as f64, comparison.len() as f64);
    let vc = variance(comparison) / (nc * mb * mb);
    let vb = mc * mc * variance(baseline) / (nb * mb.powi(4));
    let error = (vb + vc).sqrt();
    let df = if error > 0.0 {
        (vc + vb).powi(2) / (vc * vc / (nc - 1.0) + vb * vb / (nb - 1.0))
    } else {
        nb + nc - 2.0
    };
    let r = mc / mb - 1.0;
    let t = t_quantile(0.5 + confidence / 2.0, df);
    let p = p_value(r, error, df);
    let n = baseline.len().min(comparison.len());
    Ok(Estimate {
        method: Method::WelchRatio,
        scale: Scale::Percent,
        n,
        delta: 100.0 * r,
        low: 100.0 * (r - t * error),
        high: 100.0 * (r + t * error),
        p,
        confidence: 100.0 * (1.0 - p),
        sd: error * (n as f64).sqrt(),
        mde: 100.0 * (t + t_quantile(0.8, df)) * error,
    })
}

/// Exact two-sided p-value of the mean of paired differences, by flipping every combination of signs.
///
/// `None` above 16 pairs (65 536 combinations) and below one. The smallest possible p is 2 / 2^n, so fewer than five pairs can never reach
/// 90 % confidence.
pub fn sign_flip_p(differences: &[f64]) -> Option<f64> {
    let n = differences.len();
    if n == 0 || n > 16 {
        return None;
    }
    let seen = differences.iter().sum::<f64>().abs();
    // Sums in another order differ in their last bits; those are ties, not evidence.
    let slack = 1e-12 * differences.iter().map(|d| d.abs()).sum::<f64>();
    let extreme = (0..1_u32 << n)
        .filter(|signs| {
            let sum: f64 = differences
                .iter()
                .enumerate()
                .map(|(i, d)| if signs >> i & 1 == 1 { -d } else { *d })
                .sum();
            sum.abs() >= seen - slack
        })
        .count();
    Some(extreme as f64 / f64::from(1_u32 << n))
}

/// The confidence, in percent, that a symmetric normal interval implies for "not zero". It checks reports with an estimate, its interval
/// and a confidence for consistency.
pub fn implied_confidence(delta: f64, low: f64, high: f64, level: f64) -> f64 {
    let error = (high - low) / 2.0 / normal_quantile(0.5 + level / 2.0);
    if error == 0.0 {
        return if delta == 0.0 { 0.0 } else { 100.0 };
    }
    100.0 * (1.0 - 2.0 * normal_cdf(-(delta / error).abs()))
}

fn check(baseline: &[f64], comparison: &[f64], paired: bool) -> Result<(), EstimateError> {
    if paired && baseline.len() != comparison.len() {
        return Err(EstimateError::Unequal);
    }
    if baseline.len() < 2 || comparison.len() < 2 {
        return Err(EstimateError::TooFew);
    }
    if baseline.iter().chain(comparison).any(|v| !v.is_finite()) {
        return Err(EstimateError::NotFinite);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(got: f64, want: f64) {
        assert!((got - want).abs() < 1e-9, "got {got}, want {want}");
    }

    #[test]
    fn paired_log_ratio_by_hand() {
        // Ratios 1.1, 1.2, 1.1, 1.2 with the same geometric mean at any level of each pair.
        let e = paired_log_ratio(&[10.0, 20.0, 30.0, 40.0], &[11.0, 24.0, 33.0, 48.0], 0.9).unwrap();
        close(e.delta, 100.0 * ((1.1_f64 * 1.2).sqrt() - 1.0));
        let half = (1.2_f64 / 1.1).ln() / 2.0;
        let s = (4.0 * half * half / 3.0).sqrt();
        let reach = t_quantile(0.95, 3.0) * s / 2.0;
        let centre = (1.1_f64 * 1.2).ln() / 2.0;
        close(e.low, 100.0 * ((centre - reach).exp() - 1.0));
        close(e.high, 100.0 * ((centre + reach).exp() - 1.0));
        assert!(e.excludes_zero() && e.confidence > 90.0);
    }

    #[test]
    fn interval_touches_zero_exactly_when_confidence_is_the_level() {
        // The printed interval and the printed confidence are two views of one test and must never disagree.
        let base = [100.0, 101.0, 99.0, 100.5, 98.5, 100.2, 99.9];
        for shift in [0.0, 0.1, 0.3, 0.6, 1.0, 3.0] {
            let other: Vec<f64> = base
                .iter()
                .enumerate()
                .map(|(i, b)| b + shift + f64::from(i as u8 % 3) * 0.4)
                .collect();
            let e = paired_log_ratio(&base, &other, 0.9).unwrap();
            assert_eq!(e.excludes_zero(), e.confidence > 90.0, "{e:?}");
            let e = welch_ratio(&base, &other, 0.9).unwrap();
            assert_eq!(e.excludes_zero(), e.confidence > 90.0, "{e:?}");
        }
    }

    #[test]
    fn swapping_arms_inverts_the_ratio() {
        let (a, b) = ([3.0, 4.0, 5.0, 4.5, 3.5], [3.3, 4.1, 5.9, 4.4, 3.9]);
        let forward = paired_log_ratio(&a, &b, 0.9).unwrap();
        let back = paired_log_ratio(&b, &a, 0.9).unwrap();
        close((1.0 + forward.delta / 100.0) * (1.0 + back.delta / 100.0), 1.0);
        close(forward.p, back.p);
    }

    #[test]
    fn identical_runs_are_certain() {
        let e = paired_log_ratio(&[2.0; 5], &[2.0; 5], 0.9).unwrap();
        assert_eq!((e.delta, e.low, e.high, e.p), (0.0, 0.0, 0.0, 1.0));
        let e = paired_log_ratio(&[2.0; 5], &[3.0; 5], 0.9).unwrap();
        assert!(
            e.p < 1e-9 && e.excludes_zero() && (e.delta - 50.0).abs() < 1e-9,
            "{e:?}"
        );
    }

    #[test]
    fn refuses_what_it_cannot_estimate() {
        assert_eq!(paired_log_ratio(&[1.0], &[1.0], 0.9), Err(EstimateError::TooFew));
        assert_eq!(
            paired_log_ratio(&[1.0, 2.0], &[1.0], 0.9),
            Err(EstimateError::Unequal)
        );
        assert_eq!(
            paired_log_ratio(&[1.0, 0.0], &[1.0, 1.0], 0.9),
            Err(EstimateError::NotPositive)
        );
        assert_eq!(
            paired_log_ratio(&[1.0, f64::NAN], &[1.0, 1.0], 0.9),
            Err(EstimateError::NotFinite)
        );
        assert!(paired_difference(&[1.0, 0.0], &[0.0, 0.0], 0.9).is_ok());
    }

    #[test]
    fn sign_flips_cannot_reach_ninety_percent_below_five_pairs() {
        for n in 1..=12_usize {
            let p = sign_flip_p(&vec![1.0; n]).unwrap();
            close(p, 2.0 / f64::from(1_u32 << n));
            assert_eq!(p < 0.1, n >= 5);
        }
        assert_eq!(sign_flip_p(&[0.0; 6]), Some(1.0));
        assert_eq!(sign_flip_p(&[0.0; 17]), None);
    }

    #[test]
    fn minimum_detectable_effect_shrinks_with_pairs() {
        let base: Vec<f64> = (0..40).map(|i| 100.0 + f64::from(i % 5)).collect();
        let other: Vec<f64> = (0..40).map(|i| 100.0 + f64::from((i * 3) % 5)).collect();
        let few = paired_log_ratio(&base[..5], &other[..5], 0.9).unwrap();
        let many = paired_log_ratio(&base, &other, 0.9).unwrap();
        assert!(many.mde < few.mde / 2.0 && many.mde > many.half_width());
    }
}
