use std::collections::{BTreeMap, BTreeSet};

use crate::{AgentId, Header};

/// Records that may be missing before the newest of an agent, and still be told from repeats.
const AHEAD_MAX: usize = 4096;

/// Which records were merged, so that none is merged twice: of each agent and epoch, the numbers below which none is missing
/// and those beyond it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Marks(BTreeMap<(AgentId, u64), Mark>);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Mark {
    /// Every number before it was taken, or given up.
    next: u64,
    ahead: BTreeSet<u64>,
}

impl Marks {
    /// Whether this record is new; from now on it is not. One that is missing when 4096 newer ones have come counts as taken.
    #[must_use = "false: the record was merged before"]
    pub fn take(&mut self, header: &Header) -> bool {
        let mark = self.0.entry((header.agent, header.epoch)).or_default();
        if header.sequence < mark.next || !mark.ahead.insert(header.sequence) {
            return false;
        }
        if mark.ahead.len() > AHEAD_MAX {
            mark.next = *mark.ahead.first().expect("one was inserted");
        }
        while mark.ahead.first() == Some(&mark.next) {
            mark.ahead.pop_first();
            mark.next = mark.next.saturating_add(1);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeats_are_told_from_records_that_come_late() {
        let mut marks = Marks::default();
        let mut check = |epoch, sequence, expected| {
            let header = Header {
                epoch,
                sequence,
                ..Header::default()
            };
            assert_eq!(marks.take(&header), expected, "{epoch} {sequence}");
        };
        check(1, 0, true);
        check(1, 0, false);
        check(1, 3, true);
        check(1, 1, true);
        check(1, 3, false);
        check(1, 2, true);
        check(1, 2, false);
        check(2, 2, true);
        // What is missing for long is given up, so that the marks stay bounded.
        for sequence in 0..=AHEAD_MAX as u64 {
            check(3, 10 + 2 * sequence, true);
        }
        check(3, 9, false);
        check(3, 10, false);
        check(3, 11, true);
    }
}
