//! A follower gives each series of a bucket once, whatever results it is in.

use std::collections::BTreeMap;

use weir_merge::{CorrectionPolicy, Follower, Merge, MergeOutcome, Series, Settings};
use weir_protocol::Kind;
use weir_state::{Bounds, Facts, Gauge, Identity, Members, State, Table};

use crate::support::results::{ResultsLog, closed};
use crate::support::{START, Writer, add, agent, message};

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

/// The correction of a bucket to which these series come too late.
fn late(start: i64, table: &Table) -> Vec<Vec<u8>> {
    let mut merge = Merge::new(Settings::default(), 0);
    merge.add(&message(0, start + 15, &Writer::new(1, 1).one(start)));
    merge.tick((start + 1000) * 1000);
    merge.commit().expect("the bucket has closed");
    let records = Writer::new(2, 1).write(start, table);
    let added = merge.add(&message(1, start + 1000, &records[0]));
    assert_eq!(added, MergeOutcome::Late);
    merge.commit().expect("a correction").results
}

/// Corrections of buckets far apart come alone, and a bucket after them only later.
#[test]
fn late_series_are_given_or_counted_and_delay_no_bucket() {
    let mut table = named("late");
    let identity = |kind, name| Identity::new(kind, name, Some(""), None, []);
    let gauge = Gauge::new(2.0, 0, agent(2));
    table.add(identity(Kind::Gauge, "load"), facts(), State::Gauge(gauge));
    let members = Members::exact([b"someone".as_slice()]);
    table.add(identity(Kind::Set, "users"), facts(), State::Set(members));
    let in_time = |bucket: i64| closed(START + bucket * 10, &named("in time"));
    for (policy, given) in [(DIFFERENCES, &[(0, 1.0), (3, 1.0)][..]), (SUMS, &[(4, 2.0)])] {
        let corrections = [0, 3].map(|bucket| late(START + bucket * 10, &table));
        let results = (0..5).flat_map(in_time).chain(corrections.concat());
        let log = ResultsLog::new(vec![results.collect()]);
        let mut follower = Follower::new(log, policy, PATIENCE, 1 << 20);
        let (mut counts, mut found) = ((0, 0), BTreeMap::new());
        for more in [None, Some(5)] {
            let more = more.into_iter().flat_map(in_time);
            follower.log().partitions[0].extend(more);
            while let Some(mut delivery) = follower.next(0).unwrap() {
                counts.0 += delivery.corrected;
                counts.1 += delivery.not_corrected;
                for flush in std::mem::take(&mut delivery.flushes) {
                    let bucket = (flush.start - START) / 10;
                    let mut series = flush.into_series();
                    for (identity, _, state) in series.by_ref() {
                        let State::Counter(sum) = state else {
                            panic!("{identity:?}")
                        };
                        let earlier = found.insert((identity.name, bucket), sum.to_f64());
                        assert_eq!(earlier, None, "bucket {bucket}");
                    }
                    counts.0 += series.counts().corrected;
                    counts.1 += series.counts().not_corrected;
                }
                follower.delivered(&delivery).unwrap();
            }
        }
        assert_eq!(counts, (2, 4), "{policy:?}");
        let of = |wanted: &str| -> Vec<(i64, f64)> {
            let of = found.iter().filter(|((name, _), _)| **name == *wanted);
            of.map(|((_, bucket), sum)| (*bucket, *sum)).collect()
        };
        assert_eq!(of("in time"), [0, 1, 2, 3, 4, 5].map(|bucket| (bucket, 1.0)));
        assert_eq!(of("late"), given, "{policy:?}");
    }
}

/// It may be in the results of a later version, or in a record of one. Its partition waits, the other one continues, and once a program reads
/// it nothing is missing.
#[test]
fn a_result_of_a_newer_program_waits_for_that_program() {
    let results = |start: i64| closed(START + start, &named("a")).remove(0);
    let bytes = results(10);
    let mut places = 0..bytes.len();
    let record_at = places
        .find(|at| weir_state::Record::decode(&bytes[*at..]).is_ok())
        .unwrap();
    for (policy, place, newer) in [
        (DIFFERENCES, 0, 2),
        (SUMS, 0, 2),
        (DIFFERENCES, record_at, weir_state::VERSION + 1),
        (SUMS, record_at, weir_state::VERSION + 1),
    ] {
        let mut partitions = vec![vec![results(0), results(10), results(20)]; 2];
        partitions[1][1][place] = newer;
        let mut follower = Follower::new(ResultsLog::new(partitions), policy, PATIENCE, 1 << 20);
        let now = [0, PATIENCE + 1, 3 * PATIENCE];
        let buckets: Vec<i64> = now
            .iter()
            .flat_map(|now| given(&mut follower, *now))
            .map(|(start, _)| start)
            .collect();
        assert_eq!(
            buckets.iter().max(),
            Some(&(START + 20)),
            "the other partition continues"
        );
        assert_eq!(follower.counts().newer, Some((1, 1)));
        assert_eq!(follower.positions(), [(0, 3), (1, 1)].into());
        follower.log().partitions[1][1] = results(10);
        let rest = given(&mut follower, 4 * PATIENCE)
            .into_iter()
            .chain(given(&mut follower, 6 * PATIENCE));
        let series: usize = rest.map(|(_, series)| series.len()).sum();
        assert_eq!(
            (series, follower.counts().newer, follower.counts().unreadable),
            (if policy.adds_up { 1 } else { 2 }, None, 0)
        );
        assert!(follower.log().is_delivered());
    }
}
