//! Describes a list of numbers: mean, spread, coefficient of variation with its uncertainty.

use crate::special::chi_square_quantile;

pub fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// Standard deviation with `n - 1`; zero for a single value.
pub fn sd(values: &[f64]) -> f64 {
    variance(values).sqrt()
}

pub fn variance(values: &[f64]) -> f64 {
    if values.len() < 2 {
        return 0.0;
    }
    let m = mean(values);
    values.iter().map(|v| (v - m).powi(2)).sum::<f64>() / (values.len() - 1) as f64
}

pub fn median(values: &[f64]) -> f64 {
    quantile(values, 0.5)
}

/// Quantile by linear interpolation between order statistics; NaN for an empty list.
pub fn quantile(values: &[f64], q: f64) -> f64 {
    if values.is_empty() {
        return f64::NAN;
    }
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let position = q.clamp(0.0, 1.0) * (sorted.len() - 1) as f64;
    let low = position.floor() as usize;
    let high = position.ceil() as usize;
    sorted[low] + (sorted[high] - sorted[low]) * (position - low as f64)
}

/// Spread relative to the mean, with its uncertainty.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Variation {
    /// Standard deviation divided by the mean.
    pub cv: f64,
    /// 90 % interval of `cv` from the chi-square distribution of the variance.
    pub low: f64,
    pub high: f64,
}

/// Coefficient of variation; `None` below two values or if the mean is zero.
pub fn variation(values: &[f64]) -> Option<Variation> {
    let m = mean(values).abs();
    if values.len() < 2 || m == 0.0 || !m.is_finite() {
        return None;
    }
    let cv = sd(values) / m;
    let df = (values.len() - 1) as f64;
    let scale = |p: f64| (df / chi_square_quantile(p, df)).sqrt();
    Some(Variation {
        cv,
        low: cv * scale(0.95),
        high: cv * scale(0.05),
    })
}

/// Correlation of a series with itself one step later; zero when the series does not vary.
pub fn lag1(values: &[f64]) -> f64 {
    if values.len() < 3 {
        return 0.0;
    }
    let m = mean(values);
    let total: f64 = values.iter().map(|v| (v - m).powi(2)).sum();
    if total == 0.0 {
        return 0.0;
    }
    values.windows(2).map(|w| (w[0] - m) * (w[1] - m)).sum::<f64>() / total
}

/// The source of the uncertainty of one arm.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct VarianceSplit {
    /// Share of the variance of replicate means that noise inside each replicate explains, 0 to 1.
    pub within: f64,
}

/// Splits the variance of replicate means. Each series has the readings of one replicate. Successive readings are correlated, so their
/// number is discounted by the correlation.
pub fn variance_split(series: &[Vec<f64>]) -> Option<VarianceSplit> {
    let usable: Vec<&Vec<f64>> = series.iter().filter(|s| s.len() >= 5).collect();
    if usable.len() < 2 {
        return None;
    }
    let means: Vec<f64> = usable.iter().map(|s| mean(s)).collect();
    let total = variance(&means);
    if total == 0.0 {
        return None;
    }
    let within = usable
        .iter()
        .map(|s| {
            let rho = lag1(s).clamp(0.0, 0.95);
            variance(s) / s.len() as f64 * (1.0 + rho) / (1.0 - rho)
        })
        .sum::<f64>()
        / usable.len() as f64;
    Some(VarianceSplit {
        within: (within / total).min(1.0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spread_of_seven_runs_is_known_within_a_factor() {
        // With n = 7 the spread is only known to a factor between 0.69 and 1.92; reports must show that.
        let v = variation(&[9.0, 10.0, 11.0, 9.5, 10.5, 10.0, 10.0]).unwrap();
        assert!(
            (v.low / v.cv - 0.690).abs() < 0.001 && (v.high / v.cv - 1.915).abs() < 0.001,
            "{v:?}"
        );
    }

    #[test]
    fn no_variation_without_a_mean() {
        assert_eq!(variation(&[0.0, 0.0]), None);
        assert_eq!(variation(&[1.0]), None);
        assert_eq!(variation(&[2.0, 2.0]).unwrap().cv, 0.0);
    }

    #[test]
    fn quantiles_interpolate() {
        assert_eq!(quantile(&[3.0, 1.0, 2.0, 4.0], 0.5), 2.5);
        assert_eq!(quantile(&[3.0], 0.99), 3.0);
        assert!(quantile(&[], 0.5).is_nan());
    }

    #[test]
    fn split_tells_noise_inside_from_noise_between() {
        let mut rng = crate::rng::Rng::new(5);
        let inside: Vec<Vec<f64>> = (0..12)
            .map(|_| (0..30).map(|_| 100.0 + rng.normal() * 5.0).collect())
            .collect();
        let between: Vec<Vec<f64>> = (0..12)
            .map(|_| {
                let level = 100.0 + rng.normal() * 5.0;
                (0..30).map(|_| level + rng.normal() * 0.5).collect()
            })
            .collect();
        assert!(variance_split(&inside).unwrap().within > 0.5);
        assert!(variance_split(&between).unwrap().within < 0.05);
    }
}
