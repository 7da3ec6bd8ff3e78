//! A follower gives each series of a bucket once, whatever results it is in.

use std::collections::BTreeMap;

use weir_merge::{CorrectionPolicy, Follower, Series};
use weir_protocol::Kind;
use weir_state::{Bounds, ExactSum, Facts, Identity, Members, State, Table};

use crate::support::results::{ResultsLog, closed};
use crate::support::{START, add};

const DIFFERENCES: CorrectionPolicy = CorrectionPolicy {
    adds_up: false,
    counters: true,
    distributions: true,
    histograms: false,
};
const SUMS: CorrectionPolicy = CorrectionPolicy {
    adds_up: true,
    counters: false,
    distributions: false,
    histograms: false,
};

/// Bytes for less than one result.
const NO_ROOM: usize = 1;
const PATIENCE: i64 = 80_000;

/// Members that no single result can hold.
const MEMBERS: usize = 20_000;

fn facts() -> Facts {
    Facts {
        seen: START,
        suffixes: u32::MAX,
    }
}

fn large_set() -> Table {
    let mut table = Table::new(Bounds::NONE);
    add(&mut table, "before", 1.0);
    let members: Vec<String> = (0..MEMBERS)
        .map(|number| format!("a member with a long name {number:060}"))
        .collect();
    let set = Identity::new(Kind::Set, "large", Some(""), None, []);
    let members = members.iter().map(|member| member.as_bytes());
    table.add(set, facts(), State::Set(Members::exact(members)));
    add(&mut table, "then", 1.0);
    table
}

fn named(name: &str) -> Table {
    let mut table = Table::default();
    add(&mut table, name, 1.0);
    table
}

/// The next deliveries until there is none: each bucket and its series. An output of sums gets them by partitions.
fn given(follower: &mut Follower<ResultsLog>, now: i64) -> Vec<(i64, Vec<Series>)> {
    let mut given = Vec::new();
    while let Some(mut delivery) = follower.next(now).unwrap() {
        let mut buckets: BTreeMap<i64, Vec<Series>> = BTreeMap::new();
        for flush in std::mem::take(&mut delivery.flushes) {
            buckets
                .entry(flush.start)
                .or_default()
                .extend(flush.into_series());
        }
        given.extend(buckets);
        follower.delivered(&delivery).unwrap();
    }
    given
}

fn members(series: &[Series]) -> Vec<usize> {
    let sets = series.iter().filter_map(|(_, _, state)| match state {
        State::Set(Members::Exact(members)) => Some(members.len()),
        _ => None,
    });
    sets.collect()
}

#[test]
fn a_set_in_several_results_is_given_whole() {
    let results = closed(START, &large_set());
    assert!(results.len() > 3, "{}", results.len());
    for policy in [DIFFERENCES, SUMS] {
        let log = ResultsLog::new(vec![results.clone()]);
        let mut follower = Follower::new(log, policy, PATIENCE, NO_ROOM);
        let given = given(&mut follower, 0);
        assert_eq!(given.len(), 1);
        assert_eq!(given[0].1.len(), 3, "each series once");
        assert_eq!(members(&given[0].1), [MEMBERS]);
        assert!(follower.log().is_delivered());
    }
}

/// It comes after the others' bucket was given, and counts in the next one.
#[test]
fn a_set_in_several_late_results_is_given_whole() {
    let log = ResultsLog::new(vec![closed(START + 10, &named("a")), Vec::new()]);
    let mut follower = Follower::new(log, SUMS, PATIENCE, 1 << 20);
    assert!(
        given(&mut follower, 0).is_empty(),
        "it waits for the other partition"
    );
    assert_eq!(given(&mut follower, PATIENCE + 1).len(), 1);
    let partitions = &mut follower.log().partitions;
    partitions[1] = [closed(START, &large_set()), closed(START + 20, &named("b"))].concat();
    partitions[0].extend(closed(START + 20, &named("a")));
    let given = given(&mut follower, PATIENCE + 2);
    assert_eq!(given.len(), 1);
    assert_eq!(given[0].0, START + 20);
    assert_eq!(given[0].1.len(), 5);
    assert_eq!(members(&given[0].1), [MEMBERS]);
}

/// Each partition that has no room makes one: a receiver that replaces points must get their sum. An output of sums adds them up.
#[test]
fn the_overflow_of_two_partitions_is_one_series() {
    let mut table = Table::default();
    let overflow = Identity::new(Kind::Counter, "a", Some(""), None, ["weir_overflow:true"]);
    table.add(overflow, facts(), State::Counter(ExactSum::from(2.0)));
    add(&mut table, "own", 1.0);
    for (policy, expected) in [(DIFFERENCES, &[4.0][..]), (SUMS, &[2.0, 2.0])] {
        let results = closed(START, &table);
        let log = ResultsLog::new(vec![results.clone(), results]);
        let mut follower = Follower::new(log, policy, PATIENCE, 1 << 20);
        let given = given(&mut follower, 0);
        assert_eq!(given.len(), 1);
        let sums: Vec<f64> = given[0]
            .1
            .iter()
            .filter(|(identity, ..)| !identity.tags.is_empty())
            .map(|(_, _, state)| match state {
                State::Counter(sum) => sum.to_f64(),
                _ => f64::NAN,
            })
            .collect();
        assert_eq!(sums, expected);
    }
}
