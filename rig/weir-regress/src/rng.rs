//! A small seeded generator (xoshiro256**, seeded by SplitMix64), so that a schedule is the same on every machine.

/// Pseudo-random numbers; never used for anything that must be unpredictable.
#[derive(Debug, Clone)]
pub struct Rng {
    state: [u64; 4],
}

impl Rng {
    /// A generator whose whole output follows from `seed`.
    pub fn new(seed: u64) -> Self {
        let mut s = seed;
        Self {
            state: std::array::from_fn(|_| split_mix(&mut s)),
        }
    }

    /// An independent generator for one purpose, so that more draws for one do not shift the others.
    pub fn stream(seed: u64, purpose: &str) -> Self {
        // FNV-1a is enough: purposes are a handful of fixed words.
        let tag = purpose.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |h, b| {
            (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3)
        });
        Self::new(seed ^ tag)
    }

    pub fn next_u64(&mut self) -> u64 {
        let s = &mut self.state;
        let result = s[1].wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        result
    }

    /// Uniform in [0, 1).
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Uniform in `0..n` without modulo bias. `n` must not be zero.
    pub fn below(&mut self, n: u64) -> u64 {
        assert!(n > 0, "an empty range has no member");
        let zone = u64::MAX - u64::MAX % n;
        loop {
            let v = self.next_u64();
            if v < zone {
                return v % n;
            }
        }
    }

    pub fn coin(&mut self) -> bool {
        self.next_u64() >> 63 == 1
    }

    /// Standard normal (Box and Muller; the second value is discarded to keep the state simple).
    pub fn normal(&mut self) -> f64 {
        let u = 1.0 - self.unit();
        (-2.0 * u.ln()).sqrt() * (2.0 * std::f64::consts::PI * self.unit()).cos()
    }

    /// Fisher-Yates.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i as u64 + 1) as usize);
        }
    }
}

fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_seed_same_numbers_and_streams_differ() {
        let four = |seed| {
            let mut random = Rng::new(seed);
            [(); 4].map(|()| random.next_u64())
        };
        assert_eq!(four(7), four(7));
        assert_ne!(four(7), four(8));
        assert_ne!(
            Rng::stream(7, "order").next_u64(),
            Rng::stream(7, "payload").next_u64()
        );
    }

    #[test]
    fn reference_values_of_split_mix() {
        // Published test vector of SplitMix64 for seed 1234567.
        let mut s = 1_234_567;
        assert_eq!(split_mix(&mut s), 6_457_827_717_110_365_317);
        assert_eq!(split_mix(&mut s), 3_203_168_211_198_807_973);
    }

    #[test]
    fn shuffle_is_a_permutation_and_moments_are_right() {
        let mut rng = Rng::new(11);
        let mut items: Vec<u32> = (0..100).collect();
        rng.shuffle(&mut items);
        assert_ne!(items, (0..100).collect::<Vec<_>>());
        items.sort_unstable();
        assert_eq!(items, (0..100).collect::<Vec<_>>());
        let draws: Vec<f64> = (0..100_000).map(|_| rng.normal()).collect();
        let mean = draws.iter().sum::<f64>() / 1e5;
        let variance = draws.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / 1e5;
        assert!(
            mean.abs() < 0.02 && (variance - 1.0).abs() < 0.03,
            "mean {mean}, variance {variance}"
        );
    }
}
