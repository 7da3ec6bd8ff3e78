//! Ordered lists that are added up.

use std::cmp::Ordering;

/// Merges an ordered list into another one, in place, and adds equal entries. Allocates only for new entries.
pub(crate) fn unite<T: Copy>(
    mine: &mut Vec<T>,
    theirs: &[T],
    order: impl Fn(&T, &T) -> Ordering,
    add: impl Fn(&mut T, &T),
) {
    let mut new: Vec<T> = Vec::new();
    let mut from = 0;
    for one in theirs {
        from += before(&mine[from..], |other| order(other, one).is_lt());
        match mine.get_mut(from) {
            Some(same) if order(same, one).is_eq() => add(same, one),
            _ => new.push(*one),
        }
    }
    insert(mine, &new, order);
}

/// The number of leading entries for which the condition holds; it holds for no later one. Entries near the front are found fastest.
fn before<T>(list: &[T], is_so: impl Fn(&T) -> bool) -> usize {
    let mut step = 1;
    while list.get(step - 1).is_some_and(&is_so) {
        step *= 2;
    }
    let (from, to) = (step / 2, (step - 1).min(list.len()));
    from + list[from..to].partition_point(is_so)
}

/// Inserts an ordered list of new entries into another one. Each later entry moves once.
fn insert<T: Copy>(mine: &mut Vec<T>, new: &[T], order: impl Fn(&T, &T) -> Ordering) {
    let mut end = mine.len();
    mine.extend_from_slice(new);
    for (at, one) in new.iter().enumerate().rev() {
        let place = mine[..end].partition_point(|other| order(other, one).is_lt());
        mine.copy_within(place..end, place + at + 1);
        mine[place + at] = *one;
        end = place;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn equals_a_map(mine in prop::collection::btree_map(0u8..60, 1u32..9, 0..40), theirs in prop::collection::btree_map(0u8..60, 1u32..9, 0..40)) {
            let list = |map: &BTreeMap<u8, u32>| map.iter().map(|(key, count)| (*key, *count)).collect::<Vec<_>>();
            let mut united = list(&mine);
            unite(&mut united, &list(&theirs), |one, other| one.0.cmp(&other.0), |one, other| one.1 += other.1);
            let mut expected = mine;
            for (key, count) in theirs {
                *expected.entry(key).or_default() += count;
            }
            prop_assert_eq!(united, list(&expected));
        }
    }
}
