//! Sixteen characters at once: which of them are digits, and the number that they are.

/// With SSE2, which every x86-64 has.
#[cfg(target_arch = "x86_64")]
pub(crate) type Sixteen = sse2::Sixteen;
#[cfg(not(target_arch = "x86_64"))]
pub(crate) type Sixteen = portable::Sixteen;

/// [`Sixteen::last`] is a part of it.
const NONE_THEN_ALL: [u8; 32] = {
    let mut bytes = [0; 32];
    let mut at = 16;
    while at < bytes.len() {
        bytes[at] = 0xff;
        at += 1;
    }
    bytes
};

/// Sixteen bytes from a place on; zeros where there are fewer.
#[inline(always)]
fn bytes_at(bytes: &[u8], at: usize) -> [u8; 16] {
    bytes
        .get(at..)
        .and_then(<[u8]>::first_chunk)
        .copied()
        .unwrap_or_default()
}

#[cfg(target_arch = "x86_64")]
mod sse2 {
    #![allow(unsafe_code)]

    use super::{NONE_THEN_ALL, bytes_at};
    use std::arch::x86_64::{
        __m128i, _mm_add_epi16, _mm_and_si128, _mm_andnot_si128, _mm_cmpeq_epi8, _mm_cvtsi128_si64,
        _mm_loadu_si128, _mm_madd_epi16, _mm_min_epu8, _mm_movemask_epi8, _mm_mullo_epi16, _mm_or_si128,
        _mm_packs_epi32, _mm_set1_epi8, _mm_set1_epi16, _mm_set1_epi32, _mm_srli_epi16, _mm_xor_si128,
    };

    #[derive(Clone, Copy)]
    pub(crate) struct Sixteen(__m128i);

    // SAFETY of all: every x86-64 has SSE2, and nothing here has another condition but for the load.
    impl Sixteen {
        #[inline(always)]
        pub fn of(bytes: &[u8], at: usize) -> Sixteen {
            let sixteen = bytes_at(bytes, at);
            // SAFETY: the reference is to 16 bytes, and the load needs no alignment.
            Sixteen(unsafe { _mm_loadu_si128(sixteen.as_ptr().cast()) })
        }

        /// A mask of the last `count`; of all for more than 16.
        #[inline(always)]
        pub fn last(count: usize) -> Sixteen {
            Sixteen::of(&NONE_THEN_ALL, count.min(16))
        }

        /// One bit for each digit.
        #[inline(always)]
        pub fn digits(self) -> u64 {
            let Sixteen(values) = self.relative();
            let found = unsafe {
                let most_nine = _mm_min_epu8(values, _mm_set1_epi8(9));
                _mm_movemask_epi8(_mm_cmpeq_epi8(most_nine, values))
            };
            u64::from(found as u16)
        }

        /// Relative to `0`.
        #[inline(always)]
        pub fn relative(self) -> Sixteen {
            Sixteen(unsafe { _mm_xor_si128(self.0, _mm_set1_epi8(b'0' as i8)) })
        }

        #[inline(always)]
        pub fn and(self, mask: Sixteen) -> Sixteen {
            Sixteen(unsafe { _mm_and_si128(self.0, mask.0) })
        }

        /// The other ones where the mask has none.
        #[inline(always)]
        pub fn or_where_not(self, other: Sixteen, mask: Sixteen) -> Sixteen {
            Sixteen(unsafe { _mm_or_si128(_mm_and_si128(mask.0, self.0), _mm_andnot_si128(mask.0, other.0)) })
        }

        /// The number whose digits these are, relative to `0`.
        #[inline(always)]
        pub fn number(self) -> u64 {
            // Neighbours pair up: two, four, then eight digits.
            let both = unsafe {
                let tens = _mm_and_si128(self.0, _mm_set1_epi16(0xff));
                let ones = _mm_srli_epi16(self.0, 8);
                let pairs = _mm_add_epi16(_mm_mullo_epi16(tens, _mm_set1_epi16(10)), ones);
                let fours = _mm_madd_epi16(pairs, _mm_set1_epi32(100 | 1 << 16));
                let fours = _mm_packs_epi32(fours, fours);
                let eights = _mm_madd_epi16(fours, _mm_set1_epi32(10_000 | 1 << 16));
                _mm_cvtsi128_si64(eights) as u64
            };
            (both & 0xffff_ffff) * 100_000_000 + (both >> 32)
        }
    }
}

#[cfg(any(test, not(target_arch = "x86_64")))]
mod portable {
    use super::{NONE_THEN_ALL, bytes_at};
    use crate::number::join_word;

    #[derive(Clone, Copy)]
    pub(crate) struct Sixteen(u128);

    impl Sixteen {
        pub fn of(bytes: &[u8], at: usize) -> Sixteen {
            Sixteen(u128::from_le_bytes(bytes_at(bytes, at)))
        }

        pub fn last(count: usize) -> Sixteen {
            Sixteen::of(&NONE_THEN_ALL, count.min(16))
        }

        pub fn digits(self) -> u64 {
            let characters = self.0.to_le_bytes();
            let digits = characters.iter().enumerate();
            digits.fold(0, |bits, (at, byte)| {
                bits | u64::from(byte.is_ascii_digit()) << at
            })
        }

        pub fn relative(self) -> Sixteen {
            Sixteen(self.0 ^ u128::from_le_bytes([b'0'; 16]))
        }

        pub fn and(self, mask: Sixteen) -> Sixteen {
            Sixteen(self.0 & mask.0)
        }

        pub fn or_where_not(self, other: Sixteen, mask: Sixteen) -> Sixteen {
            Sixteen(self.0 & mask.0 | other.0 & !mask.0)
        }

        pub fn number(self) -> u64 {
            join_word(self.0 as u64) * 100_000_000 + join_word((self.0 >> 64) as u64)
        }
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn both_forms_agree(bytes in "[0-9.:\\x7f-\u{ff}-]{12,24}", at in 0usize..8, kept in 0usize..20, chosen in 0usize..20) {
            let bytes = bytes.as_bytes();
            let (one, other) = (sse2::Sixteen::of(bytes, at), portable::Sixteen::of(bytes, at));
            prop_assert_eq!(one.digits(), other.digits());
            let one = one.or_where_not(sse2::Sixteen::of(bytes, at / 2), sse2::Sixteen::last(chosen));
            let other = other.or_where_not(portable::Sixteen::of(bytes, at / 2), portable::Sixteen::last(chosen));
            prop_assert_eq!(one.digits(), other.digits());
            if one.digits() == 0xffff {
                let one = one.relative().and(sse2::Sixteen::last(kept));
                let other = other.relative().and(portable::Sixteen::last(kept));
                prop_assert_eq!(one.number(), other.number());
            }
        }

        #[test]
        fn digits_are_a_number(text in "[0-9]{16}", count in 1usize..17) {
            let sixteen = Sixteen::of(text.as_bytes(), 0).relative().and(Sixteen::last(count));
            prop_assert_eq!(sixteen.number(), text[16 - count..].parse::<u64>().unwrap());
        }
    }
}
