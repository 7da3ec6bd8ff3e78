//! Selects the target of a line, so that a series always goes to the same one.
//!
//! A line's slot depends only on its name and the set of its tags, not on their order, its type or its value, and is the same in every
//! process on every machine. A slot belongs to the active target that scores highest for it (rendezvous hashing): when a target leaves, its
//! slots go to the others and no other slot moves; when it returns, they return.

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// Enough that 64 targets get equal shares to some percent, few enough for the first-level cache to hold the busy part.
pub const SLOTS: usize = 16_384;

/// The slot of a line without its line feed.
pub fn route_slot(line: &[u8]) -> u16 {
    let (name, sections) = split(line);
    let mut sum = xxh3_64(name);
    for section in sections.split(|&byte| byte == b'|') {
        if let Some(tags) = section.strip_prefix(b"#") {
            for tag in tags.split(|&byte| byte == b',').filter(|tag| !tag.is_empty()) {
                sum = sum.wrapping_add(xxh3_64_with_seed(tag, 1));
            }
        }
    }
    // A sum says little in its low bits; one round spreads it.
    (xxh3_64(&sum.to_le_bytes()) % SLOTS as u64) as u16
}

/// Name, and the section that may have tags.
fn split(line: &[u8]) -> (&[u8], &[u8]) {
    let at = |from: usize, wanted: u8| memchr::memchr(wanted, &line[from..]).map(|at| from + at);
    if line.starts_with(b"_e{") {
        // Events are no series; those with one title and text may as well stay together.
        return (line, b"");
    }
    if line.starts_with(b"_sc|") {
        let end = at(4, b'|').unwrap_or(line.len());
        return (&line[4..end], &line[end..]);
    }
    let end = at(0, b':').unwrap_or(line.len());
    let rest = at(end, b'|').unwrap_or(line.len());
    (&line[..end], &line[rest..])
}

/// The target of each slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Routes(Box<[u16]>);

impl Routes {
    /// `names` are the targets', the same in every process that shares them; `takes_part` marks the active ones. If none is active, all
    /// count as active: then no other target is better for a line.
    pub fn new(names: &[String], takes_part: &[bool]) -> Self {
        let all = !takes_part.contains(&true);
        let seeds: Vec<(u16, u64)> = names
            .iter()
            .enumerate()
            .filter(|(at, _)| all || takes_part[*at])
            .map(|(at, name)| (at as u16, xxh3_64(name.as_bytes())))
            .collect();
        let best = |slot: usize| {
            let score = |seed: u64| xxh3_64_with_seed(&(slot as u64).to_le_bytes(), seed);
            let best = seeds.iter().max_by_key(|(at, seed)| (score(*seed), *at));
            best.map_or(0, |(at, _)| *at)
        };
        Self((0..SLOTS).map(best).collect())
    }

    #[inline]
    pub fn target(&self, slot: u16) -> usize {
        usize::from(self.0[usize::from(slot) % SLOTS])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_series_has_one_slot_for_all_its_messages() {
        let same = [
            "a.b:1|c|#x:1,y:2,z",
            "a.b:2:3|g|@0.5|#z,y:2,x:1",
            "a.b:foo|s|#y:2,,z,x:1|c:ci-1|T1700000000",
            "_sc|a.b|0|d:1|#x:1,y:2,z|m:text",
        ];
        for line in same {
            assert_eq!(
                route_slot(line.as_bytes()),
                route_slot(same[0].as_bytes()),
                "{line}"
            );
        }
        for other in ["a.b:1|c|#x:1,y:2", "a.c:1|c|#x:1,y:2,z", "a.b:1|c"] {
            assert_ne!(
                route_slot(other.as_bytes()),
                route_slot(same[0].as_bytes()),
                "{other}"
            );
        }
        // Known to other processes: a change of these numbers moves every series.
        assert_eq!(route_slot(b"page.views:1|c|#env:prod"), KNOWN_SLOT);
        for any in ["", ":", "|", "_sc|", "_e{", "a|#", "#", "a:|#,,"] {
            route_slot(any.as_bytes());
        }
    }

    const KNOWN_SLOT: u16 = 6325;

    #[test]
    #[cfg_attr(miri, ignore = "says something of shares, nothing of memory")]
    fn only_slots_of_a_removed_or_returned_target_move() {
        let names: Vec<String> = (0..5).map(|i| format!("udp://10.0.0.{i}:8125")).collect();
        let all = Routes::new(&names, &[true; 5]);
        let mut shares = [0; 5];
        (0..SLOTS as u16).for_each(|slot| shares[all.target(slot)] += 1);
        assert!(
            shares.iter().all(|share| (2900..3700).contains(share)),
            "{shares:?}"
        );
        let without = Routes::new(&names, &[true, true, false, true, true]);
        for slot in 0..SLOTS as u16 {
            if all.target(slot) != 2 {
                assert_eq!(all.target(slot), without.target(slot));
            } else {
                assert_ne!(without.target(slot), 2);
            }
        }
        assert_eq!(Routes::new(&names, &[false; 5]), all);
    }
}
