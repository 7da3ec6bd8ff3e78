//! Conditions that must hold at the end of every schedule.

use std::collections::{BTreeMap, BTreeSet};

use weir_merge::{BucketResult, Ledger, Merge, Occasion, QuarantinedRecord};
use weir_state::Record;

use super::agents::{Truth, Truths};
use super::world::{Group, Partition, World};
use crate::support::{WIDTH, names, sum};

/// The results of a partition equal those of a naive merge: each record once, or a reason.
pub fn partition(world: &World, group: Group, truths: &Truths, partition: u32, merge: &Merge) {
    let of = &world.of(group)[partition as usize];
    let results = &of.decoded;
    closed_once(results, world.has_stepped);
    merged_once(results);
    let ledger = merge.ledger();
    assert_eq!(ledger.difference(), 0, "partition {partition}: {ledger:?}");
    for (agent, ledger) in merge.ledgers() {
        assert_eq!(
            ledger.difference(),
            0,
            "partition {partition}, {agent}: {ledger:?}"
        );
    }
    assert_eq!(ledger.open, 0, "{ledger:?}");
    let merged = names(results.iter().map(|(_, record)| record));
    in_its_bucket(results, truths);
    let own = truths
        .iter()
        .filter(|(key, _)| key.2 == partition)
        .map(|(_, truth)| truth);
    match of.start == 0 && of.damaged.is_empty() {
        true => equals_the_truth(own, &merged, ledger),
        false => lost_at_most(own, &merged, of, &merge.refused().collect::<Vec<_>>()),
    }
}

/// Once clocks are right and nothing fails, every record is in its bucket when that closes.
pub fn on_time(world: &World, group: Group, truths: &Truths, partition: u32, (from, to): (i64, i64)) {
    let width = i64::from(WIDTH);
    let of = &world.of(group)[partition as usize];
    let closed = of.decoded.iter().zip(&of.written);
    let closed = closed.filter(|((result, _), _)| matches!(result.occasion, Occasion::Closed { .. }));
    // While a clock was ahead.
    let too_early = closed
        .clone()
        .map(|((result, _), at)| (result.bucket_start, at / 1000));
    let too_early: BTreeSet<i64> = too_early
        .filter(|(start, at)| *at < start + width)
        .map(|(start, _)| start)
        .collect();
    let closed = names(closed.map(|((_, record), _)| record));
    let is_new =
        |(offset, _): &(u64, bool)| of.stored[*offset as usize] > from * 1000 && !of.damaged.contains(offset);
    let due = |truth: &&Truth| {
        let is_in_time = truth.bucket >= from + 4 * width && truth.bucket + 2 * width <= to;
        is_in_time && truth.copies.iter().all(is_new)
    };
    let own = truths.iter().filter(|(key, _)| key.2 == partition);
    for truth in own.map(|(_, truth)| truth).filter(due) {
        if !too_early.contains(&truth.bucket) && !truth.name.is_empty() && !truth.copies.is_empty() {
            assert!(
                closed.contains(&truth.name),
                "{truth:?} is not in its bucket of partition {partition}, although all is well since {from}"
            );
        }
    }
}

/// Buckets close in order, each once. After a step of the clock, earlier ones may follow.
fn closed_once(results: &[(BucketResult, Record)], has_stepped: bool) {
    let mut newest: BTreeMap<&str, i64> = BTreeMap::new();
    let mut all = BTreeSet::new();
    for (closed, _) in results {
        if let (Occasion::Closed { .. }, 0) = (closed.occasion, closed.part) {
            let bucket = (closed.tenant.as_str(), closed.bucket_start);
            assert!(all.insert(bucket), "{bucket:?} closes twice");
        }
        let last = newest.entry(&closed.tenant).or_insert(i64::MIN);
        if let (Occasion::Closed { expected, seen }, 0) = (closed.occasion, closed.part) {
            assert!(
                closed.bucket_start > *last || has_stepped,
                "{} closes after {last}",
                closed.bucket_start
            );
            assert!(
                expected > 0 || seen > 0,
                "nobody waited for it and nobody sent it"
            );
            *last = closed.bucket_start;
        }
    }
}

fn merged_once(results: &[(BucketResult, Record)]) {
    let records: Vec<&Record> = results.iter().map(|(_, record)| record).collect();
    let names: usize = records.iter().map(|record| names([*record]).len()).sum();
    assert_eq!(
        sum("count", records.iter().copied()),
        names as f64,
        "a record was merged twice"
    );
    let all = crate::support::names(records.iter().copied());
    assert_eq!(all.len(), names, "a record was merged into two buckets");
}

fn in_its_bucket(results: &[(BucketResult, Record)], truths: &Truths) {
    let buckets: BTreeMap<&str, i64> = truths
        .values()
        .map(|truth| (truth.name.as_str(), truth.bucket))
        .collect();
    for (closed, record) in results {
        for name in names([record]) {
            assert_eq!(buckets[name.as_str()], closed.bucket_start, "{name}");
        }
    }
}

/// If the log deleted nothing, every record that was not merged was quarantined or never arrived.
fn equals_the_truth<'a>(truths: impl Iterator<Item = &'a Truth>, merged: &BTreeSet<String>, ledger: Ledger) {
    let (mut expected, mut quarantined, mut states) = (BTreeSet::new(), 0, 0);
    for truth in truths {
        // The first copy in the log decides.
        match truth.copies.iter().min() {
            None => {}
            Some((_, true)) => quarantined += truth.states,
            Some((_, false)) => {
                states += truth.states;
                if !truth.name.is_empty() {
                    expected.insert(truth.name.clone());
                }
            }
        }
    }
    assert_eq!(*merged, expected);
    assert_eq!(ledger.merged + ledger.late, states, "{ledger:?}");
    assert_eq!(ledger.quarantined, quarantined, "{ledger:?}");
}

/// Every record still in the log was merged, unless a deleted or damaged copy decided otherwise.
fn lost_at_most<'a>(
    truths: impl Iterator<Item = &'a Truth>,
    merged: &BTreeSet<String>,
    log: &Partition,
    refused: &[&QuarantinedRecord],
) {
    for truth in truths.filter(|truth| !truth.name.is_empty()) {
        let is_merged = merged.contains(&truth.name);
        let is_sound = truth
            .copies
            .iter()
            .all(|(offset, is_off)| *offset >= log.start && !log.damaged.contains(offset) && !is_off);
        if truth.copies.is_empty() || truth.copies.iter().all(|(_, is_off)| *is_off) {
            assert!(!is_merged, "{truth:?}");
        } else if is_sound {
            assert!(is_merged, "{truth:?} is not merged; refused: {refused:?}");
        }
    }
}
