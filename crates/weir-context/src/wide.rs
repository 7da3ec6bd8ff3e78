//! Hashing and comparing texts with AVX-512: 64 bytes at a time, the last block under a mask.
//!
//! Lengths of names and tags differ from message to message. A branch on the length is mispredicted about every second time, which costs as
//! much as hashing the whole text does here. A mask needs no branch.
#![allow(unsafe_code)]

use std::arch::x86_64::{
    __m512i, _bzhi_u64, _mm512_aesenc_epi128, _mm512_cmpneq_epi8_mask, _mm512_extracti32x4_epi32,
    _mm512_loadu_si512, _mm512_maskz_loadu_epi8, _mm512_set_epi64, _mm512_setzero_si512, _mm512_xor_si512,
};

use crate::hash::aes::finish;

/// Blocks of the second text of [`pair`] that are always read, however short the text is.
const PAIR_BLOCKS: usize = 3;

/// Bytes `64 * at` to `64 * at + 63`; zero beyond the end.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi2")]
fn block(bytes: &[u8], at: usize) -> __m512i {
    let left = bytes.len().saturating_sub(64 * at).min(64);
    let mask = _bzhi_u64(!0, left as u32);
    // SAFETY: only bytes under the mask are read, and they are inside the slice.
    unsafe { _mm512_maskz_loadu_epi8(mask, bytes.as_ptr().wrapping_add(64 * at).cast()) }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,vaes,aes,bmi2")]
fn start(secret: &[u64; 8], first: u64, second: u64) -> __m512i {
    // SAFETY: the reference is to 64 readable bytes, and the load needs no alignment.
    let secret = unsafe { _mm512_loadu_si512(secret.as_ptr().cast()) };
    _mm512_xor_si512(
        secret,
        _mm512_set_epi64(0, 0, 0, 0, 0, 0, second as i64, first as i64),
    )
}

/// Mixes 64 bytes in. [`crate::hash`] explains why it takes two rounds.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,vaes,aes,bmi2")]
fn take(state: __m512i, block: __m512i) -> __m512i {
    _mm512_aesenc_epi128(_mm512_aesenc_epi128(state, block), _mm512_setzero_si512())
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,vaes,aes,bmi2")]
fn end(state: __m512i) -> u64 {
    finish([
        _mm512_extracti32x4_epi32::<0>(state),
        _mm512_extracti32x4_epi32::<1>(state),
        _mm512_extracti32x4_epi32::<2>(state),
        _mm512_extracti32x4_epi32::<3>(state),
    ])
}

/// Hash of one text.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,vaes,aes,bmi2")]
pub(crate) fn one(secret: &[u64; 8], bytes: &[u8]) -> u64 {
    let mut state = start(secret, bytes.len() as u64, 0);
    state = take(state, block(bytes, 0));
    for at in 1..bytes.len().div_ceil(64) {
        state = take(state, block(bytes, at));
    }
    end(state)
}

/// Hash of two texts and a word.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,vaes,aes,bmi2")]
pub(crate) fn pair(secret: &[u64; 8], first: &[u8], second: &[u8], word: u64) -> u64 {
    let lengths = (first.len() as u64) << 32 | second.len() as u64;
    let mut state = start(secret, lengths, word);
    state = take(state, block(first, 0));
    for at in 0..PAIR_BLOCKS {
        state = take(state, block(second, at));
    }
    for at in 1..first.len().div_ceil(64) {
        state = take(state, block(first, at));
    }
    for at in PAIR_BLOCKS..second.len().div_ceil(64) {
        state = take(state, block(second, at));
    }
    end(state)
}

/// Bytes `from` to `from + 63`.
///
/// # Safety
///
/// The text has at least `from + 64` bytes.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn whole_block(bytes: &[u8], from: usize) -> __m512i {
    // SAFETY: the caller says that they are inside the text; the load needs no alignment.
    unsafe { _mm512_loadu_si512(bytes.as_ptr().add(from).cast()) }
}

/// Whether two texts are equal. At least `BLOCKS` blocks of 64 bytes are compared, however short the texts are.
///
/// The last block ends with the text and overlaps the one before. A load that extends beyond the end, even if its mask has no bit there, waits
/// for a cache line that no prefetch has asked for. With 100,000 contexts that was a third of a look-up's time.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,bmi2")]
pub(crate) fn bytes_equal<const BLOCKS: usize>(a: &[u8], b: &[u8]) -> bool {
    if a.len() != b.len() {
        return false;
    }
    let Some(last) = a.len().checked_sub(64) else {
        return _mm512_cmpneq_epi8_mask(block(a, 0), block(b, 0)) == 0;
    };
    let differs = |at: usize| {
        let from = last.min(64 * at);
        // SAFETY: both texts have `last + 64` bytes.
        unsafe { _mm512_cmpneq_epi8_mask(whole_block(a, from), whole_block(b, from)) }
    };
    let mut different = 0;
    for at in 0..BLOCKS {
        different |= differs(at);
    }
    for at in BLOCKS..a.len().div_ceil(64) {
        different |= differs(at);
    }
    different == 0
}
