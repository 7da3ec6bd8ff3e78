//! Contexts that differ but are equal to a receiver with an incomplete comparison.
//!
//! Three families of pairs: tag lists of one name whose 64-bit murmur3 hashes have the same exclusive or (some agents combine tag hashes in
//! this way, to ignore order); a name and a tag swapped; and lists whose concatenation without separators is the same text.

use crate::model::{CollideBuilder, Context};

/// The first half of murmur3's 128-bit hash for 64-bit machines, seed 0.
pub fn murmur3(data: &[u8]) -> u64 {
    const C1: u64 = 0x87c3_7b91_1142_53d5;
    const C2: u64 = 0x4cf5_ad43_2745_937f;
    let word = |bytes: &[u8]| {
        bytes
            .iter()
            .rev()
            .fold(0u64, |word, byte| (word << 8) | u64::from(*byte))
    };
    let first = |k: u64| k.wrapping_mul(C1).rotate_left(31).wrapping_mul(C2);
    let second = |k: u64| k.wrapping_mul(C2).rotate_left(33).wrapping_mul(C1);
    let finish = |mut k: u64| {
        k ^= k >> 33;
        k = k.wrapping_mul(0xff51_afd7_ed55_8ccd);
        k ^= k >> 33;
        k = k.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
        k ^ (k >> 33)
    };
    let (mut h1, mut h2) = (0u64, 0u64);
    let blocks = data.chunks_exact(16);
    let rest = blocks.remainder();
    for block in blocks {
        h1 ^= first(word(&block[..8]));
        h1 = h1.rotate_left(27).wrapping_add(h2);
        h1 = h1.wrapping_mul(5).wrapping_add(0x52dc_e729);
        h2 ^= second(word(&block[8..]));
        h2 = h2.rotate_left(31).wrapping_add(h1);
        h2 = h2.wrapping_mul(5).wrapping_add(0x3849_5ab5);
    }
    if rest.len() > 8 {
        h2 ^= second(word(&rest[8..]));
    }
    if !rest.is_empty() {
        h1 ^= first(word(&rest[..rest.len().min(8)]));
    }
    h1 ^= data.len() as u64;
    h2 ^= data.len() as u64;
    h1 = h1.wrapping_add(h2);
    h2 = h2.wrapping_add(h1);
    h1 = finish(h1);
    h2 = finish(h2);
    h1.wrapping_add(h2)
}

/// Two disjoint tag lists of equal length whose murmur3 hashes have the same exclusive or.
///
/// Among 65 pairs of tags some subset has differences that cancel, because 65 vectors over 64 bits are dependent. Elimination finds it. The
/// lists are the two sides of that subset, about 32 tags each.
pub fn xor_twins(number: u64) -> (Vec<String>, Vec<String>) {
    let tag = |side: &str, index: usize| format!("x{number}:{side}{index}");
    // Reduced rows: difference so far, and the pairs in it.
    let mut rows: Vec<(u64, u128)> = Vec::new();
    for index in 0.. {
        let mut difference = murmur3(tag("a", index).as_bytes()) ^ murmur3(tag("b", index).as_bytes());
        let mut members = 1u128 << index;
        for (row, made_of) in &rows {
            let lead = 63 - row.leading_zeros();
            if difference >> lead & 1 == 1 {
                difference ^= row;
                members ^= made_of;
            }
        }
        if difference == 0 {
            let side = |side: &str| {
                (0..128)
                    .filter(|bit| members >> bit & 1 == 1)
                    .map(|bit| tag(side, bit))
                    .collect()
            };
            return (side("a"), side("b"));
        }
        rows.push((difference, members));
    }
    unreachable!("65 vectors over 64 bits are dependent")
}

/// As many contexts as wanted, from each family in turn.
pub(crate) fn contexts(b: &mut CollideBuilder<'_, '_>, wanted: usize) -> Vec<Context> {
    let kind = b.kind();
    let mut contexts = Vec::with_capacity(wanted + 5);
    let text = |s: &str| vec![s.to_string()];
    for number in 0u64.. {
        if contexts.len() >= wanted {
            break;
        }
        let name = format!("collide.xor.{number}");
        let (left, right) = xor_twins(number);
        contexts.push(b.context(&name, &left, kind));
        contexts.push(b.context(&name, &right, kind));
        let (one, two) = (format!("collide.a{number}"), format!("collide.b{number}"));
        contexts.push(b.context(&one, &text(&two), kind));
        contexts.push(b.context(&two, &text(&one), kind));
        let name = format!("collide.join.{number}");
        contexts.push(b.context(&name, &[format!("ab{number}"), "c".into()], kind));
        contexts.push(b.context(&name, &["a".into(), format!("b{number}c")], kind));
    }
    contexts.truncate(wanted);
    contexts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn murmur3_agrees_with_published_values() {
        // First halves of the reference implementation's x64 128-bit hash, seed 0.
        assert_eq!(murmur3(b""), 0);
        assert_eq!(murmur3(b"hello"), 0xcbd8_a7b3_41bd_9b02);
        assert_eq!(
            murmur3(b"The quick brown fox jumps over the lazy dog"),
            0xe34b_bc7b_bc07_1b6c
        );
    }

    #[test]
    fn twins_share_the_exclusive_or_and_no_tag() {
        for number in 0..20 {
            let (left, right) = xor_twins(number);
            let xor = |list: &[String]| list.iter().fold(0, |x, t| x ^ murmur3(t.as_bytes()));
            assert_eq!(xor(&left), xor(&right));
            assert_eq!(left.len(), right.len());
            assert!(!left.is_empty() && left.iter().all(|tag| !right.contains(tag)));
        }
    }
}
