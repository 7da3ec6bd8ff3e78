//! Distribution functions: Student's t, normal, chi-square, binomial.
//!
//! Written from their textbook series and continued fractions and checked against published tables. Quantiles are found by bisection on the
//! distribution function, which is slow, exact enough and robust.

/// Lanczos coefficients for g = 7.
const LANCZOS: [f64; 9] = [
    0.999_999_999_999_809_9,
    676.520_368_121_885_1,
    -1_259.139_216_722_402_8,
    771.323_428_777_653_1,
    -176.615_029_162_140_6,
    12.507_343_278_686_905,
    -0.138_571_095_265_720_12,
    9.984_369_578_019_572e-6,
    1.505_632_735_149_311_6e-7,
];

/// Natural logarithm of the gamma function for `x > 0`.
pub fn ln_gamma(x: f64) -> f64 {
    if x < 0.5 {
        // Reflection keeps the series in the range where it is accurate.
        return (std::f64::consts::PI / (std::f64::consts::PI * x).sin()).ln() - ln_gamma(1.0 - x);
    }
    let x = x - 1.0;
    let t = x + 7.5;
    let sum = LANCZOS
        .iter()
        .enumerate()
        .skip(1)
        .fold(LANCZOS[0], |sum, (i, c)| sum + c / (x + i as f64));
    0.5 * (2.0 * std::f64::consts::PI).ln() + (x + 0.5) * t.ln() - t + sum.ln()
}

/// Regularised incomplete beta function I_x(a, b).
pub fn beta_inc(a: f64, b: f64, x: f64) -> f64 {
    if x <= 0.0 {
        return 0.0;
    }
    if x >= 1.0 {
        return 1.0;
    }
    let front = (ln_gamma(a + b) - ln_gamma(a) - ln_gamma(b) + a * x.ln() + b * (-x).ln_1p()).exp();
    // The fraction converges quickly only on one side of the mean; the other side is its mirror image.
    if x < (a + 1.0) / (a + b + 2.0) {
        front * beta_fraction(a, b, x) / a
    } else {
        1.0 - front * beta_fraction(b, a, 1.0 - x) / b
    }
}

/// Continued fraction of the incomplete beta function, evaluated by Lentz's method.
fn beta_fraction(a: f64, b: f64, x: f64) -> f64 {
    const TINY: f64 = 1e-300;
    let keep = |v: f64| if v.abs() < TINY { TINY } else { v };
    let mut c = 1.0;
    let mut d = 1.0 / keep(1.0 - (a + b) * x / (a + 1.0));
    let mut h = d;
    for m in 1..10_000 {
        let m = f64::from(m);
        let even = m * (b - m) * x / ((a + 2.0 * m - 1.0) * (a + 2.0 * m));
        d = 1.0 / keep(1.0 + even * d);
        c = keep(1.0 + even / c);
        h *= d * c;
        let odd = -(a + m) * (a + b + m) * x / ((a + 2.0 * m) * (a + 2.0 * m + 1.0));
        d = 1.0 / keep(1.0 + odd * d);
        c = keep(1.0 + odd / c);
        let step = d * c;
        h *= step;
        if (step - 1.0).abs() < 1e-16 {
            break;
        }
    }
    h
}

/// Regularised lower incomplete gamma function P(a, x).
pub fn gamma_p(a: f64, x: f64) -> f64 {
    if x <= 0.0 {
        return 0.0;
    }
    if x < a + 1.0 {
        gamma_series(a, x)
    } else {
        1.0 - gamma_fraction(a, x)
    }
}

/// Regularised upper incomplete gamma function Q(a, x) = 1 - P(a, x), without cancellation in the tail.
pub fn gamma_q(a: f64, x: f64) -> f64 {
    if x <= 0.0 {
        return 1.0;
    }
    if x < a + 1.0 {
        1.0 - gamma_series(a, x)
    } else {
        gamma_fraction(a, x)
    }
}

fn gamma_series(a: f64, x: f64) -> f64 {
    let mut term = 1.0 / a;
    let mut sum = term;
    let mut n = a;
    for _ in 0..10_000 {
        n += 1.0;
        term *= x / n;
        sum += term;
        if term.abs() < sum.abs() * 1e-17 {
            break;
        }
    }
    sum * (-x + a * x.ln() - ln_gamma(a)).exp()
}

fn gamma_fraction(a: f64, x: f64) -> f64 {
    const TINY: f64 = 1e-300;
    let mut b = x + 1.0 - a;
    let mut c = 1.0 / TINY;
    let mut d = 1.0 / b;
    let mut h = d;
    for i in 1..10_000 {
        let i = f64::from(i);
        let an = -i * (i - a);
        b += 2.0;
        d = an * d + b;
        d = 1.0 / if d.abs() < TINY { TINY } else { d };
        c = b + an / c;
        c = if c.abs() < TINY { TINY } else { c };
        let step = d * c;
        h *= step;
        if (step - 1.0).abs() < 1e-16 {
            break;
        }
    }
    h * (-x + a * x.ln() - ln_gamma(a)).exp()
}

/// Standard normal distribution function.
pub fn normal_cdf(x: f64) -> f64 {
    let half = 0.5 * gamma_q(0.5, 0.5 * x * x);
    if x > 0.0 { 1.0 - half } else { half }
}

/// Standard normal quantile for `0 < p < 1`.
pub fn normal_quantile(p: f64) -> f64 {
    bisect(-40.0, 40.0, |x| normal_cdf(x) - p)
}

/// Distribution function of Student's t with `df` degrees of freedom (fractions allowed).
pub fn t_cdf(t: f64, df: f64) -> f64 {
    let tail = 0.5 * t_two_sided(t, df);
    if t > 0.0 { 1.0 - tail } else { tail }
}

/// Two-sided tail P(|T| >= |t|), computed directly so that tiny p-values do not drown in `1 - cdf`.
pub fn t_two_sided(t: f64, df: f64) -> f64 {
    if t.is_infinite() {
        return 0.0;
    }
    beta_inc(0.5 * df, 0.5, df / (df + t * t))
}

/// Quantile of Student's t with `df` degrees of freedom.
pub fn t_quantile(p: f64, df: f64) -> f64 {
    if p < 0.5 {
        return -t_quantile(1.0 - p, df);
    }
    let mut high = 2.0;
    while t_cdf(high, df) < p && high < 1e12 {
        high *= 2.0;
    }
    bisect(0.0, high, |t| t_cdf(t, df) - p)
}

/// Chi-square quantile with `df` degrees of freedom.
pub fn chi_square_quantile(p: f64, df: f64) -> f64 {
    let mut high = df.max(1.0) * 2.0;
    while gamma_p(0.5 * df, 0.5 * high) < p && high < 1e12 {
        high *= 2.0;
    }
    bisect(0.0, high, |x| gamma_p(0.5 * df, 0.5 * x) - p)
}

/// P(X <= k) for X ~ Binomial(n, p).
pub fn binomial_cdf(k: u64, n: u64, p: f64) -> f64 {
    if k >= n {
        return 1.0;
    }
    // The identity with the incomplete beta function holds for every k < n and needs no sum over terms.
    beta_inc((n - k) as f64, k as f64 + 1.0, 1.0 - p)
}

/// The central interval of Binomial(n, p): at most `(1 - level) / 2` of the probability lies below and above it.
pub fn binomial_central(n: u64, p: f64, level: f64) -> (u64, u64) {
    let tail = (1.0 - level) / 2.0;
    let low = (0..=n).find(|&k| binomial_cdf(k, n, p) > tail).unwrap_or(n);
    let high = (0..=n)
        .find(|&k| binomial_cdf(k, n, p) >= 1.0 - tail)
        .unwrap_or(n);
    (low, high)
}

/// Root of an increasing function in `[low, high]`, to the last bit that a double can distinguish.
fn bisect(mut low: f64, mut high: f64, f: impl Fn(f64) -> f64) -> f64 {
    for _ in 0..200 {
        let middle = 0.5 * (low + high);
        if middle == low || middle == high {
            break;
        }
        if f(middle) < 0.0 {
            low = middle;
        } else {
            high = middle;
        }
    }
    0.5 * (low + high)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(got: f64, want: f64, tolerance: f64) {
        assert!((got - want).abs() <= tolerance, "got {got:.15}, want {want:.15}");
    }

    #[test]
    fn student_t_quantiles_match_closed_forms() {
        // One and two degrees of freedom have closed forms, so nothing here depends on a printed table's digits.
        for p in [0.6, 0.75, 0.9, 0.95, 0.975, 0.995, 0.9995] {
            close(
                t_quantile(p, 1.0) / (std::f64::consts::PI * (p - 0.5)).tan(),
                1.0,
                1e-9,
            );
            let a = 4.0 * p * (1.0 - p);
            close(t_quantile(p, 2.0), 2.0 * (p - 0.5) * (2.0 / a).sqrt(), 1e-9);
            // Four degrees of freedom (Shaw 2006).
            let angle = (a.sqrt().acos() / 3.0).cos() / a.sqrt();
            close(t_quantile(p, 4.0), 2.0 * (angle - 1.0).sqrt(), 1e-9);
        }
    }

    #[test]
    fn student_t_quantiles_match_tables() {
        // Two-sided 90 % points as printed in every statistics book, to the digits printed there.
        for (df, want) in [
            (3.0, 2.353),
            (4.0, 2.132),
            (6.0, 1.943),
            (9.0, 1.833),
            (14.0, 1.761),
            (30.0, 1.697),
            (120.0, 1.658),
        ] {
            close(t_quantile(0.95, df), want, 5e-4);
        }
        // To 1e-9 (R, qt(0.95, df)).
        close(t_quantile(0.95, 6.0), 1.943_180_280_515_303, 1e-9);
        close(t_quantile(0.95, 9.0), 1.833_112_932_653_235, 1e-9);
        close(t_quantile(0.8, 6.0), 0.905_703_285_141_683_9, 1e-9);
    }

    #[test]
    fn student_t_with_many_degrees_is_normal_and_quantile_inverts_cdf() {
        for p in [0.001, 0.05, 0.3, 0.5, 0.77, 0.999] {
            // They still differ by z^3 / (4 df) here.
            close(t_quantile(p, 1e6), normal_quantile(p), 2e-5);
            for df in [1.0, 2.5, 6.0, 40.0] {
                close(t_cdf(t_quantile(p, df), df), p, 1e-12);
            }
        }
    }

    #[test]
    fn normal_matches_tables() {
        close(normal_cdf(0.0), 0.5, 1e-15);
        close(normal_cdf(1.0), 0.841_344_746_068_542_9, 1e-12);
        close(normal_cdf(-1.959_963_984_540_054), 0.025, 1e-12);
        close(normal_cdf(-6.0), 9.865_876_450_376_98e-10, 1e-20);
        close(normal_quantile(0.95), 1.644_853_626_951_472_2, 1e-9);
        close(normal_quantile(0.995), 2.575_829_303_548_901, 1e-9);
    }

    #[test]
    fn chi_square_matches_closed_form_and_table() {
        for p in [0.05, 0.5, 0.95] {
            close(chi_square_quantile(p, 2.0), -2.0 * (-p).ln_1p(), 1e-9);
        }
        close(chi_square_quantile(0.05, 6.0), 1.635_382_894, 1e-8);
        close(chi_square_quantile(0.95, 6.0), 12.591_587_243, 1e-8);
    }

    #[test]
    fn binomial_equals_the_sum_of_its_terms() {
        for (n, p) in [(1_u64, 0.3_f64), (7, 0.5), (60, 0.1), (200, 0.1)] {
            let mut sum = 0.0;
            let mut term = (1.0 - p).powi(n as i32);
            for k in 0..=n {
                sum += term;
                close(binomial_cdf(k, n, p), sum, 1e-12);
                term *= (n - k) as f64 / (k + 1) as f64 * p / (1.0 - p);
            }
        }
    }

    #[test]
    fn acceptance_ranges_of_a_calibration() {
        assert_eq!(binomial_central(60, 0.1, 0.95), (2, 11));
        assert_eq!(binomial_central(100, 0.1, 0.95), (5, 16));
        assert_eq!(binomial_central(200, 0.1, 0.95), (12, 29));
    }
}
