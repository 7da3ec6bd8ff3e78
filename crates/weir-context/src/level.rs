//! What the processor can do beyond what every one of its kind can.

/// Chosen once per process: hashes of different levels differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Nothing is assumed.
    Portable,
    /// x86-64 since about 2013: AVX2, bit manipulation, AES rounds.
    Aes,
    /// x86-64 with AVX-512 and vector AES (Intel since Ice Lake, AMD since Zen 4): loads of up to 64 bytes whose end is a mask, so
    /// that no branch depends on the length of a text.
    Wide,
}

impl Level {
    /// The highest that this processor has.
    pub fn detect() -> Level {
        Level::available()
            .last()
            .expect("there is always the portable one")
    }

    /// All that this processor has, in ascending order.
    pub fn available() -> impl Iterator<Item = Level> {
        let mut levels = vec![Level::Portable];
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::is_x86_feature_detected;
            if is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("bmi1")
                && is_x86_feature_detected!("bmi2")
                && is_x86_feature_detected!("lzcnt")
                && is_x86_feature_detected!("popcnt")
                && is_x86_feature_detected!("aes")
            {
                levels.push(Level::Aes);
                if is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("vaes")
                {
                    levels.push(Level::Wide);
                }
            }
        }
        levels.into_iter()
    }
}
