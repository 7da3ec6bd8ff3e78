//! Random numbers and the few transcendental functions of the model, identical on every machine.
//!
//! `f64::ln` and `exp` come from the platform's C library and may differ in the last bit, so a golden digest would hold on one machine
//! only. The versions here use plain IEEE arithmetic.

/// xoshiro256++, one stream per purpose, so that changing one setting does not change the draws of the others.
#[derive(Clone, Debug)]
pub struct Rng {
    s: [u64; 4],
}

fn splitmix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Mixes two numbers into one that looks random.
pub fn mix(a: u64, b: u64) -> u64 {
    let mut state = a ^ b.rotate_left(32).wrapping_mul(0xd6e8_feb8_6659_fd93);
    splitmix(&mut state)
}

impl Rng {
    /// The stream of `purpose` number `index` (a connection, say) under `seed`.
    pub fn new(seed: u64, purpose: &str, index: u64) -> Rng {
        let mut state = purpose.bytes().fold(mix(seed, index), |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        Rng {
            s: std::array::from_fn(|_| splitmix(&mut state)),
        }
    }

    #[inline(always)]
    pub fn next_u64(&mut self) -> u64 {
        let s = &mut self.s;
        let result = s[0].wrapping_add(s[3]).rotate_left(23).wrapping_add(s[0]);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        result
    }

    /// Uniform below `n`. The bias of the multiplication is below 2^-40 for the sizes used here.
    #[inline(always)]
    pub fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(n)) >> 64) as u64
    }

    /// Uniform in `min..=max`.
    #[inline]
    pub fn between(&mut self, min: u64, max: u64) -> u64 {
        min + self.below(max - min + 1)
    }

    /// Uniform in `[0, 1)` with 53 bits.
    #[inline]
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 * (1.0 / 9_007_199_254_740_992.0)
    }

    #[inline]
    pub fn chance(&mut self, p: f64) -> bool {
        p > 0.0 && self.unit() < p
    }

    /// Standard normal, by the polar method.
    pub fn normal(&mut self) -> f64 {
        loop {
            let u = 2.0 * self.unit() - 1.0;
            let v = 2.0 * self.unit() - 1.0;
            let s = u * u + v * v;
            if s > 0.0 && s < 1.0 {
                return u * (-2.0 * ln(s) / s).sqrt();
            }
        }
    }

    /// Fisher-Yates.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            let other = self.below(last as u64 + 1) as usize;
            items.swap(last, other);
        }
    }
}

/// Natural logarithm of a positive normal number, to about 1e-15 relative.
pub fn ln(x: f64) -> f64 {
    debug_assert!(x.is_normal() && x > 0.0);
    let bits = x.to_bits();
    let mut exponent = ((bits >> 52) & 0x7ff) as i64 - 1023;
    let mut mantissa = f64::from_bits((bits & 0x000f_ffff_ffff_ffff) | 0x3ff0_0000_0000_0000);
    if mantissa > std::f64::consts::SQRT_2 {
        mantissa *= 0.5;
        exponent += 1;
    }
    // ln m = 2 atanh((m - 1) / (m + 1)); the argument is below 0.172, so 12 terms suffice.
    let z = (mantissa - 1.0) / (mantissa + 1.0);
    let square = z * z;
    let mut power = z;
    let mut sum = 0.0;
    for k in 0..12 {
        sum += power / f64::from(2 * k + 1);
        power *= square;
    }
    2.0 * sum + exponent as f64 * std::f64::consts::LN_2
}

/// Exponential function for arguments within +-700, to about 1e-15 relative.
pub fn exp(x: f64) -> f64 {
    let x = x.clamp(-700.0, 700.0);
    let k = (x / std::f64::consts::LN_2).round();
    let r = x - k * std::f64::consts::LN_2;
    let mut term = 1.0;
    let mut sum = 1.0;
    for n in 1..18 {
        term *= r / f64::from(n);
        sum += term;
    }
    sum * f64::from_bits(((k as i64 + 1023) as u64) << 52)
}

/// `base` to the power `exponent`, for positive `base`.
pub fn pow(base: f64, exponent: f64) -> f64 {
    exp(exponent * ln(base))
}

/// Draws an index with given weights in constant time (Vose's alias method).
#[derive(Clone, Debug)]
pub struct Alias {
    /// Threshold of the low 32 bits, and where to go above it.
    cells: Vec<(u32, u32)>,
}

impl Alias {
    /// At least one weight must be positive.
    pub fn new(weights: &[f64]) -> Alias {
        let n = weights.len();
        let total: f64 = weights.iter().sum();
        assert!(n > 0 && total > 0.0, "a weight must be positive");
        let mut scaled: Vec<f64> = weights.iter().map(|w| w * n as f64 / total).collect();
        let mut cells: Vec<(u32, u32)> = (0..n as u32).map(|i| (u32::MAX, i)).collect();
        let (mut small, mut large): (Vec<usize>, Vec<usize>) = (0..n).partition(|&i| scaled[i] < 1.0);
        while let (Some(&less), Some(&more)) = (small.last(), large.last()) {
            small.pop();
            cells[less] = ((scaled[less] * 4_294_967_296.0) as u32, more as u32);
            scaled[more] -= 1.0 - scaled[less];
            if scaled[more] < 1.0 {
                large.pop();
                small.push(more);
            }
        }
        Alias { cells }
    }

    #[inline(always)]
    pub fn draw(&self, rng: &mut Rng) -> u32 {
        let wide = u128::from(rng.next_u64()) * self.cells.len() as u128;
        let index = (wide >> 64) as usize;
        let coin = (wide as u64 >> 32) as u32;
        let (threshold, other) = self.cells[index];
        if coin < threshold || threshold == u32::MAX {
            index as u32
        } else {
            other
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logarithm_and_exponential_agree_with_the_library() {
        let mut rng = Rng::new(1, "math", 0);
        for _ in 0..10_000 {
            let x = exp(rng.unit() * 100.0 - 50.0);
            assert!((ln(x) - x.ln()).abs() <= 1e-13 * x.ln().abs().max(1.0), "{x}");
            let y = rng.unit() * 200.0 - 100.0;
            assert!((exp(y) / y.exp() - 1.0).abs() < 1e-13, "{y}");
        }
    }

    #[test]
    fn the_first_numbers_never_change() {
        let mut rng = Rng::new(7, "values", 3);
        let drawn: Vec<u64> = (0..2).map(|_| rng.next_u64()).collect();
        assert_eq!(drawn, [10_614_847_333_055_212_143, 14_930_085_803_420_696_486]);
    }

    #[test]
    fn alias_table_keeps_its_weights() {
        let weights = [5.0, 0.0, 1.0, 3.0, 1.0];
        let table = Alias::new(&weights);
        let mut rng = Rng::new(1, "alias", 0);
        let mut seen = [0u32; 5];
        for _ in 0..100_000 {
            seen[table.draw(&mut rng) as usize] += 1;
        }
        assert_eq!(seen[1], 0);
        // Chi-square with 3 degrees of freedom: 16.3 is the 99.9 % point, and the seed is fixed.
        let chi: f64 = [0usize, 2, 3, 4]
            .iter()
            .map(|&i| {
                let expected = weights[i] * 10_000.0;
                (f64::from(seen[i]) - expected).powi(2) / expected
            })
            .sum();
        assert!(chi < 16.3, "{chi} {seen:?}");
    }
}
