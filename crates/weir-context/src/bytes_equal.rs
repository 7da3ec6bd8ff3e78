//! Compares two short byte strings, such as keys and tags.

use crate::level::Level;

/// `a == b` without the standard library's call, which costs more than comparing the usual two to ten blocks of 16 bytes. Blocks overlap
/// where the length asks for it. Up to 64 bytes there is no loop, because its number of rounds differs from key to key and cannot be
/// predicted. `BLOCKS` is the usual length of the texts, in blocks of 64 bytes.
#[inline(always)]
pub(crate) fn bytes_equal<const BLOCKS: usize>(a: &[u8], b: &[u8], level: Level) -> bool {
    #[cfg(target_arch = "x86_64")]
    if level.is_wide() {
        // SAFETY: the level says that the processor has the instructions.
        #[allow(unsafe_code)]
        return unsafe { crate::wide::bytes_equal::<BLOCKS>(a, b) };
    }
    bytes_equal_plain(a, b)
}

#[inline(always)]
fn bytes_equal_plain(a: &[u8], b: &[u8]) -> bool {
    if a.len() != b.len() {
        return false;
    }
    if let (Some(last_a), Some(last_b)) = (a.last_chunk::<64>(), b.last_chunk::<64>()) {
        let blocks = a.as_chunks::<64>().0.iter().zip(b.as_chunks::<64>().0);
        return blocks.fold(equal(last_a, last_b), |all, (a, b)| all & equal(a, b));
    }
    ends_equal::<32>(a, b)
        .or_else(|| ends_equal::<16>(a, b))
        .or_else(|| ends_equal::<8>(a, b))
        .unwrap_or_else(|| a == b)
}

/// Whether the first and the last `N` bytes are equal. `None` for texts shorter than that.
#[inline(always)]
fn ends_equal<const N: usize>(a: &[u8], b: &[u8]) -> Option<bool> {
    let first = equal(a.first_chunk::<N>()?, b.first_chunk::<N>()?);
    Some(first & equal(a.last_chunk::<N>()?, b.last_chunk::<N>()?))
}

#[inline(always)]
fn equal<const N: usize>(a: &[u8; N], b: &[u8; N]) -> bool {
    a == b
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_counts_at_every_length() {
        for level in Level::available() {
            // Miri is slow, so it tries only lengths around the borders of blocks.
            let lengths = (0..270).filter(|length| !cfg!(miri) || matches!(length % 64, 0 | 1 | 31 | 63));
            for length in lengths {
                let a = vec![7u8; length];
                assert!(bytes_equal::<1>(&a, &a.clone(), level));
                assert!(bytes_equal::<3>(&a, &a.clone(), level));
                assert!(!bytes_equal::<1>(&a, &vec![7u8; length + 1], level));
                for at in 0..length {
                    let mut b = a.clone();
                    b[at] ^= 0x80;
                    assert!(!bytes_equal::<1>(&a, &b, level), "{length} {at}");
                    assert!(!bytes_equal::<3>(&a, &b, level), "{length} {at}");
                }
            }
        }
    }
}
