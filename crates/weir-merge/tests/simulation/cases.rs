//! The numbered failure cases of docs/fleet.md that need no broker, each with its expected result.

use std::collections::{BTreeMap, BTreeSet};

use weir_merge::{BucketResult, Counts, Ledger, Merge, Occasion, partition_of};
use weir_protocol::Kind;
use weir_state::Record;

use super::agents::Network;
use super::random::Random;
use super::schedule::Fleet;
use super::world::Faults;
use crate::support::{START, Writer, add, agent, decoded};

fn merge(fleet: &Fleet, partition: u32) -> &Merge {
    let mut merges = fleet.owners.iter().flat_map(|place| place.owner.merges());
    merges
        .find(|(at, _)| *at == partition)
        .expect("it has an owner")
        .1
}

fn counts(fleet: &Fleet, partition: u32) -> Counts {
    merge(fleet, partition).counts()
}

fn results(fleet: &Fleet, partition: u32) -> Vec<(BucketResult, Record)> {
    decoded(&fleet.world.borrow().partitions[partition as usize].results)
}

fn raw(fleet: &Fleet) -> Vec<Vec<Vec<u8>>> {
    let world = fleet.world.borrow();
    world
        .partitions
        .iter()
        .map(|partition| partition.results.clone())
        .collect()
}

/// The agents that a bucket was closed with, and those expected.
fn seen(fleet: &Fleet, partition: u32, bucket: i64) -> (u32, u32) {
    let results = results(fleet, partition);
    let found = results.iter().find_map(|(closed, _)| match closed.occasion {
        Occasion::Closed { expected, seen } if closed.bucket_start == bucket => Some((seen, expected)),
        _ => None,
    });
    found.expect("the bucket closed")
}

fn ends_well(mut fleet: Fleet) -> Fleet {
    fleet.heal();
    fleet.check();
    fleet
}

#[test]
fn case_01_an_agent_dies_after_it_sent_and_resends() {
    let mut fleet = Fleet::new(1, 2, 1, 1);
    fleet.seconds(95);
    // The next send arrives, and the agent dies before the acknowledgement.
    fleet.network.ack_lost = 1;
    fleet.agents[1].is_running = false;
    while fleet
        .truths
        .values()
        .filter(|truth| truth.copies.len() == 1)
        .count()
        < fleet.truths.len()
    {
        fleet.second();
    }
    let before = fleet.truths.len();
    while fleet.truths.len() == before {
        fleet.second();
    }
    fleet.agents[0].crash(true);
    fleet.network = Network::default();
    fleet.seconds(5);
    fleet.agents[0].start();
    let fleet = ends_well(fleet);
    assert_eq!(counts(&fleet, 0).repeats, 1);
    assert_eq!(merge(&fleet, 0).repeats(agent(0)), 1);
}

#[test]
fn case_02_an_agent_dies_between_two_partitions_of_one_flush() {
    let mut fleet = Fleet::new(2, 3, 2, 1);
    fleet.seconds(102);
    let bucket = START + 100;
    // One partition has the agent's record of this bucket. The other record stays in its queue.
    fleet.agents[2].write(0, 2, bucket, false, &mut fleet.truths);
    fleet.seconds(1);
    fleet.agents[2].write(1, 2, bucket, false, &mut fleet.truths);
    fleet.agents[2].crash(true);
    fleet.seconds(90);
    assert_eq!(seen(&fleet, 0, bucket), (3, 3));
    assert_eq!(seen(&fleet, 1, bucket), (2, 3));
    fleet.agents[2].start();
    let fleet = ends_well(fleet);
    assert_eq!((counts(&fleet, 0).late, counts(&fleet, 1).late), (0, 1));
}

/// The results must not depend on owners: they are compared byte by byte with those of an undisturbed twin.
fn beside_a_twin(disturb: impl Fn(&mut Fleet, i64)) -> Fleet {
    let run = |disturb: &dyn Fn(&mut Fleet, i64)| {
        let mut fleet = Fleet::new(3, 4, 3, 4);
        for second in 0..150 {
            disturb(&mut fleet, second);
            fleet.second();
        }
        fleet.world.borrow_mut().deaf.clear();
        fleet.owners.iter_mut().for_each(|place| place.is_stopped = false);
        fleet.rebalance();
        ends_well(fleet)
    };
    let (found, expected) = (run(&disturb), run(&|_, _| {}));
    let merged = |fleet: &Fleet| {
        let all = (0..3).map(|partition| merge(fleet, partition).ledger());
        all.collect::<Vec<Ledger>>()
    };
    assert_eq!(merged(&found), merged(&expected));
    assert_eq!(bodies(&found), bodies(&expected));
    found
}

/// The sum of all results of each partition and bucket.
fn bodies(fleet: &Fleet) -> Vec<BTreeMap<i64, Vec<Vec<u8>>>> {
    let partitions = 0..raw(fleet).len() as u32;
    let of_partition = |partition| {
        let mut bodies: BTreeMap<i64, Vec<Vec<u8>>> = BTreeMap::new();
        for (closed, record) in results(fleet, partition) {
            bodies
                .entry(closed.bucket_start)
                .or_default()
                .push(record.body().to_vec());
        }
        bodies
    };
    partitions.map(of_partition).collect()
}

#[test]
fn case_05_an_owner_is_killed_in_the_middle_of_a_bucket() {
    beside_a_twin(|fleet, second| {
        if second % 17 == 5 {
            let all = 0..fleet.owners.len();
            all.for_each(|owner| fleet.kill_owner(owner));
            fleet.rebalance();
        }
    });
}

/// The owner reads again what it has not committed. Outputs have logs and positions of their own: they keep their partitions, and give nothing
/// a second time.
#[test]
fn failed_commits_restart_no_output() {
    let mut fleet = Fleet::new(1, 2, 2, 1);
    fleet.seconds(95);
    fleet.world.borrow_mut().faults.commit_fails = 2;
    let mut lost = 0;
    for _ in 0..100 {
        fleet.second();
        let merges = fleet.owners[0].owner.merges().count();
        lost += 2 - merges;
    }
    assert!(lost > 0, "a commit fails, and its merge is dropped");
    let fleet = ends_well(fleet);
    for (sending, receiver) in fleet.owners[0].outputs.iter().zip(&fleet.receivers) {
        assert_eq!(
            sending.follower.counts().moved,
            2,
            "the partitions that it began with"
        );
        assert!(receiver.disturbances.is_empty());
        let accepted: Vec<&u32> = receiver.accepted.values().flatten().collect();
        assert!(accepted.len() > 20 && accepted.iter().all(|times| **times == 1));
    }
}

#[test]
fn case_06_a_stale_owner_is_fenced() {
    let fleet = beside_a_twin(|fleet, second| match second % 40 {
        0 => (0..3).for_each(|partition| fleet.world.borrow_mut().assign(partition, 0)),
        10 => {
            // The owner is stopped and others take its partitions. When it resumes, it does not know that.
            fleet.owners[0].is_stopped = true;
            fleet.world.borrow_mut().deaf.insert(0);
            fleet.rebalance();
        }
        30 => fleet.owners[0].is_stopped = false,
        39 => drop(fleet.world.borrow_mut().deaf.remove(&0)),
        _ => {}
    });
    assert!(fleet.world.borrow().fenced > 0, "it never tried");
}

#[test]
fn case_07_a_storm_of_rebalances() {
    beside_a_twin(|fleet, second| {
        if second % 5 == 0 {
            let running = [1, 4, 2][(second / 5 % 3) as usize];
            for (number, place) in fleet.owners.iter_mut().enumerate() {
                place.is_stopped = number >= running;
            }
            fleet.rebalance();
        }
    });
}

#[test]
fn case_08_fetches_are_reordered_and_repeated() {
    beside_a_twin(|fleet, _| fleet.world.borrow_mut().faults.fetch_disorder = 1);
}

#[test]
fn case_11_a_clock_is_an_hour_off_and_jumps() {
    let mut fleet = Fleet::new(4, 3, 1, 1);
    fleet.seconds(60);
    for (second, clock) in [(0, 3_600_000), (30, -3_600_000), (60, 0)] {
        fleet.agents[0].clock = clock;
        fleet.seconds(second);
    }
    fleet.seconds(60);
    let fleet = ends_well(fleet);
    let clock = weir_merge::QuarantineReason::NAMES
        .iter()
        .position(|name| *name == "clock")
        .unwrap();
    assert!(counts(&fleet, 0).quarantined[clock] > 3);
    let ledgers = merge(&fleet, 0).ledgers();
    assert!(ledgers[&agent(0)].quarantined > 0);
    for other in [1, 2].map(agent) {
        assert_eq!((ledgers[&other].quarantined, ledgers[&other].late), (0, 0));
    }
}

#[test]
fn case_12_an_agent_sends_the_queue_of_an_hour() {
    let mut fleet = Fleet::new(5, 2, 1, 1);
    fleet.seconds(100);
    fleet.agents[0].is_connected = false;
    fleet.seconds(3600);
    fleet.agents[0].is_connected = true;
    fleet.seconds(100);
    let fleet = ends_well(fleet);
    let ledger = merge(&fleet, 0).ledgers()[&agent(0)];
    assert!(counts(&fleet, 0).late > 340, "{:?}", counts(&fleet, 0));
    assert_eq!((ledger.missing, ledger.lost, ledger.quarantined), (0, 0, 0));
}

/// Both have the id, epoch and numbers of the copied disk.
#[test]
fn case_13_two_agents_with_one_id() {
    let fleet = Fleet::new(6, 1, 1, 1);
    let mut fleet = fleet;
    fleet.seconds(100);
    let mut twins = [Writer::new(7, 1), Writer::new(7, 1)];
    for bucket in 0..2 {
        assert_eq!(
            merge(&fleet, 0).shared_ids().count(),
            0,
            "nothing shows it before bucket {bucket}"
        );
        let start = START + 100 + bucket * 10;
        for (value, twin) in [1.0, 2.0].iter().zip(&mut twins) {
            let mut table = weir_state::Table::default();
            add(&mut table, "twin", *value);
            let bytes = twin.write(start, &table).remove(0);
            let now = fleet.world.borrow().now;
            fleet.world.borrow_mut().append(0, now, &bytes);
        }
        fleet.seconds(10);
        if bucket == 0 {
            break;
        }
    }
    let shared: Vec<_> = merge(&fleet, 0).shared_ids().collect();
    assert_eq!(shared, [(agent(7), 1)], "detected within one bucket, named");
}

/// With different epochs: the copy was started one time more than the original, which continues.
#[test]
fn case_13_two_agents_with_one_id_and_other_epochs() {
    let mut fleet = Fleet::new(6, 1, 1, 1);
    fleet.seconds(100);
    let mut twins = [Writer::new(7, 1), Writer::new(7, 2)];
    for bucket in 0..2 {
        let start = START + 100 + bucket * 10;
        for twin in &mut twins {
            let bytes = twin.one(start);
            let now = fleet.world.borrow().now;
            fleet.world.borrow_mut().append(0, now, &bytes);
        }
        fleet.seconds(10);
    }
    let shared: Vec<_> = merge(&fleet, 0).shared_ids().map(|(agent, _)| agent).collect();
    assert_eq!(shared, [agent(7)]);
    // Their records can be distinguished, so all of them count.
    assert_eq!(merge(&fleet, 0).ledgers()[&agent(7)].published, 8);
}

/// A restart is not a second agent, even if the first process's queue arrives after the second one's records.
#[test]
fn a_restart_is_no_second_agent() {
    let mut fleet = Fleet::new(6, 2, 1, 1);
    for _ in 0..5 {
        fleet.seconds(23);
        fleet.agents[0].is_connected = false;
        fleet.seconds(23);
        fleet.agents[0].crash(true);
        fleet.seconds(3);
        fleet.agents[0].start();
        fleet.agents[0].is_connected = true;
        fleet.network.overtaken = 2;
    }
    let fleet = ends_well(fleet);
    assert_eq!(merge(&fleet, 0).shared_ids().count(), 0);
}

#[test]
fn case_14_partitions_are_added_and_no_series_is_split() {
    let mut fleet = Fleet::new(7, 0, 2, 2);
    let names: Vec<String> = (0..50).map(|at| format!("series{at}")).collect();
    let mut writers: BTreeMap<(u8, u32), Writer> = BTreeMap::new();
    let mut sent = 0.0;
    for bucket in 0..20 {
        if bucket == 8 {
            fleet.raise_partitions();
        }
        let start = START + bucket * 10;
        let partitions = fleet.world.borrow().plan.at(start);
        for number in 0..3 {
            for partition in 0..partitions {
                let mut table = weir_state::Table::default();
                let own =
                    |name: &&String| partition_of("", Kind::Counter, name, "", [], partitions) == partition;
                for name in names.iter().filter(own) {
                    add(&mut table, name, 1.0);
                    sent += 1.0;
                }
                let writer = writers
                    .entry((number, partition))
                    .or_insert_with(|| Writer::new(number, 1));
                writer.partitions = partitions;
                let bytes = writer.write(start, &table).remove(0);
                let mut world = fleet.world.borrow_mut();
                let now = world.now;
                world.append(partition, now, &bytes);
            }
        }
        fleet.seconds(10);
    }
    fleet.seconds(100);
    assert_eq!(fleet.world.borrow().plan.at(i64::MAX), 3);
    let (mut found, mut places) = (0.0, BTreeMap::new());
    for partition in 0..3 {
        assert_eq!(merge(&fleet, partition).ledger().difference(), 0);
        for (closed, record) in results(&fleet, partition) {
            for series in record.series() {
                let earlier = places.insert((closed.bucket_start, series.name.to_owned()), partition);
                assert_eq!(earlier, None, "{} is in two partitions", series.name);
            }
            found += names
                .iter()
                .map(|name| crate::support::sum(name, [&record]))
                .sum::<f64>();
        }
    }
    assert_eq!(found, sent);
    assert!(places.values().any(|partition| *partition == 2), "nothing moved");
}

#[test]
fn case_15_an_invalid_record_is_quarantined_and_the_partition_continues() {
    let mut fleet = Fleet::new(8, 2, 1, 1);
    fleet.seconds(30);
    let sound = Writer::new(9, 1).one(START);
    let mut unknown = sound.clone();
    unknown[0] = 200;
    let poison = [
        b"poison".to_vec(),
        unknown,
        sound[..sound.len() - 5].to_vec(),
        Vec::new(),
    ];
    for bytes in &poison {
        let mut world = fleet.world.borrow_mut();
        let now = world.now;
        world.append(0, now, bytes);
    }
    fleet.seconds(30);
    let fleet = ends_well(fleet);
    let quarantined: Vec<_> = {
        let world = fleet.world.borrow();
        let commits = world.partitions[0].commits.iter();
        commits.flat_map(|commit| commit.quarantined.clone()).collect()
    };
    let found: Vec<_> = quarantined
        .iter()
        .map(|quarantined| quarantined.bytes.clone())
        .collect();
    assert_eq!(found, poison);
    let reasons: Vec<_> = quarantined
        .iter()
        .map(|quarantined| quarantined.reason.as_str())
        .collect();
    for (reason, part) in reasons
        .iter()
        .zip(["version 112", "version 200", "checksum", "truncated"])
    {
        assert!(reason.contains(part), "{reason}");
    }
}

#[test]
fn case_16_the_log_deletes_unread_records() {
    let mut fleet = Fleet::new(9, 2, 1, 1);
    fleet.seconds(150);
    fleet.owners[0].is_stopped = true;
    fleet.retention = 60;
    fleet.seconds(300);
    fleet.retention = 0;
    let fleet = ends_well(fleet);
    for number in [0, 1].map(agent) {
        let ledger = merge(&fleet, 0).ledgers()[&number];
        let (missing, _) = merge(&fleet, 0).missing(number);
        let interval = missing.interval.expect("an interval of what is lost");
        assert!(missing.states > 0 && ledger.missing == missing.states);
        assert!((20..30).contains(&missing.records), "{missing:?}");
        let seconds = interval.to - interval.from;
        assert!((200..300).contains(&seconds), "{interval:?}");
    }
}

/// Every second agent writes the older format, without the name of its host. What a later program sends is kept whole and holds up nobody,
/// and is merged once it comes in a format that owners read: from the agent before its upgrade is taken back, or from the quarantine after
/// theirs.
#[test]
fn case_18_formats_are_mixed_and_records_of_a_later_one_are_kept_until_they_can_be_read() {
    let (oldest, newest) = (weir_state::OLDEST_VERSION, weir_state::VERSION);
    assert_eq!((oldest, newest), (1, 2), "another format is to be mixed here");
    let mut fleet = Fleet::new(18, 2, 1, 1);
    fleet.seconds(30);
    fleet.agents[1].is_connected = false;
    fleet.seconds(40);
    let sent = fleet.agents[1].send_in_a_later_format(&mut fleet.world.borrow_mut());
    assert!(sent >= 3, "{sent}");
    fleet.seconds(100);
    let found = counts(&fleet, 0);
    assert_eq!(
        (found.quarantined[0], found.quarantined.iter().sum::<u64>()),
        (sent, sent)
    );
    {
        let world = fleet.world.borrow();
        let commits = world.partitions[0].commits.iter();
        let kept: Vec<_> = commits.flat_map(|commit| &commit.quarantined).collect();
        assert_eq!(kept.len() as u64, sent);
        for one in kept {
            let reason = format!("version {}", newest + 1);
            assert!(
                one.reason.contains(&reason) && one.bytes[0] == newest + 1,
                "{}",
                one.reason
            );
        }
    }
    // The other agent's buckets closed without this one's.
    assert_eq!(seen(&fleet, 0, START + 40), (1, 2));
    fleet.agents[1].is_connected = true;
    let fleet = ends_well(fleet);
    assert!(counts(&fleet, 0).late >= sent, "{:?}", counts(&fleet, 0));
    let world = fleet.world.borrow();
    let versions = world.partitions[0]
        .messages
        .iter()
        .map(|message| message.bytes[0]);
    assert_eq!(
        versions.collect::<BTreeSet<u8>>(),
        (oldest..=newest + 1).collect()
    );
    assert_eq!(merge(&fleet, 0).hosts(agent(1)), ["host1".into()]);
    assert!(merge(&fleet, 0).hosts(agent(0)).is_empty());
}

/// The next owner knows the names, and an id that two hosts have is shown with both.
#[test]
fn hosts_are_known_after_a_change_of_the_owner_and_both_of_a_shared_id_are_named() {
    let mut fleet = Fleet::new(19, 2, 1, 2);
    fleet.seconds(100);
    let mut twins = [Writer::new(7, 1), Writer::new(7, 1)];
    for (number, twin) in twins.iter_mut().enumerate() {
        let mut table = weir_state::Table::default();
        add(&mut table, "twin", number as f64);
        let mut header = twin.header(START + 100);
        header.host = format!("twin{number}");
        let bytes = twin.write_as(&header, &table).remove(0);
        let now = fleet.world.borrow().now;
        fleet.world.borrow_mut().append(0, now, &bytes);
    }
    fleet.seconds(90);
    let named = |fleet: &Fleet| {
        let merge = merge(fleet, 0);
        (merge.hosts(agent(1)).to_vec(), merge.hosts(agent(7)).to_vec())
    };
    let expected = (vec!["host1".into()], vec!["twin1".into(), "twin0".into()]);
    assert_eq!(named(&fleet), expected);
    let refused: Vec<String> = merge(&fleet, 0)
        .refused()
        .map(|refused| refused.host.clone())
        .collect();
    assert_eq!(refused, ["twin1"]);
    (0..2).for_each(|owner| fleet.kill_owner(owner));
    fleet.rebalance();
    fleet.seconds(1);
    assert_eq!(named(&fleet), expected);
}

#[test]
fn case_20_an_owner_changes_after_a_close_and_a_record_is_resent() {
    let mut fleet = Fleet::new(10, 2, 1, 2);
    fleet.seconds(130);
    // The last record of the last closed bucket.
    let (closed, _) = results(&fleet, 0).pop().unwrap();
    let (offset, bytes) = {
        let world = fleet.world.borrow();
        let messages = world.partitions[0].messages.iter();
        let of_bucket = |bytes: &[u8]| {
            Record::decode(bytes).is_ok_and(|record| record.header.bucket_start == closed.bucket_start)
        };
        let last = messages.rev().find(|message| of_bucket(&message.bytes)).unwrap();
        (last.offset, last.bytes.clone())
    };
    (0..2).for_each(|owner| fleet.kill_owner(owner));
    fleet.rebalance();
    {
        let mut world = fleet.world.borrow_mut();
        assert!(world.partitions[0].commits.last().unwrap().offset <= offset + 20);
        let now = world.now;
        world.append(0, now, &bytes);
    }
    fleet.seconds(5);
    assert_eq!((counts(&fleet, 0).repeats, counts(&fleet, 0).late), (1, 0));
    ends_well(fleet);
}

/// Without its snapshot a partition would be merged twice, so it is skipped while the others continue.
#[test]
fn a_partition_whose_snapshot_cannot_be_read_is_left_alone() {
    let mut fleet = Fleet::new(12, 2, 2, 1);
    fleet.seconds(100);
    fleet.kill_owner(0);
    fleet.rebalance();
    let commits = |fleet: &Fleet, partition: usize| fleet.world.borrow().partitions[partition].commits.len();
    let before = [0, 1].map(|partition| commits(&fleet, partition));
    let sound = {
        let mut world = fleet.world.borrow_mut();
        let last = world.partitions[0].commits.last_mut().unwrap();
        std::mem::replace(&mut last.snapshot, vec![9, 9, 9])
    };
    fleet.seconds(50);
    fleet.owners[0].owner.turn().unwrap();
    let refused: Vec<(u32, String)> = fleet.owners[0]
        .owner
        .refused()
        .map(|(partition, error)| (partition, error.to_string()))
        .collect();
    assert_eq!(
        refused,
        [(0, "a snapshot of version 9; this program reads 3".to_owned())]
    );
    assert_eq!(commits(&fleet, 0), before[0]);
    assert!(commits(&fleet, 1) > before[1]);
    // A program that can read the snapshot loses nothing.
    fleet.world.borrow_mut().partitions[0]
        .commits
        .last_mut()
        .unwrap()
        .snapshot = sound;
    ends_well(fleet);
}

/// Commits that fail, and commits without acknowledgement: no record is merged twice.
#[test]
fn transactions_of_unknown_end_do_not_double_anything() {
    let mut random = Random::new(11);
    for seed in 0..10 {
        let mut fleet = Fleet::new(seed, 3, 2, 2);
        fleet.world.borrow_mut().faults = Faults {
            commit_fails: 2 + random.below(3),
            commit_unheard: 2 + random.below(3),
            ..Faults::default()
        };
        fleet.seconds(120);
        ends_well(fleet);
    }
}
