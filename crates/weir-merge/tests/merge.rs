//! One partition: in any order of records, and with any owners, the results equal those of a naive merge.

use crate::support;

use std::collections::BTreeMap;

use proptest::prelude::*;
use support::{START, WIDTH, Writer, add, agent, decoded, message, names, signed, sum};
use weir_merge::{BucketResult, Commit, Merge, MergeOutcome, Occasion, Plan, QuarantineReason, Settings};
use weir_protocol::Kind;
use weir_sketch::Sketch;
use weir_state::{
    AgentId, Bounds, Distribution, ExactSum, Facts, Gauge, Header, Identity, Members, Record, Samples, State,
    Table,
};

const BOUNDS: Bounds = Bounds {
    members: 6,
    member_bytes: 1 << 10,
    samples: 8,
};

fn settings() -> Settings {
    Settings {
        bounds: BOUNDS,
        hash_seed: 7,
        ..Settings::default()
    }
}

/// One series of one agent in one bucket.
#[derive(Clone, Debug)]
struct Part {
    agent: u8,
    bucket: i64,
    identity: Identity,
    values: Vec<i32>,
}

fn part() -> impl Strategy<Value = Part> {
    let identity = (
        0usize..Kind::COUNT,
        prop_oneof![Just("a"), Just("a.b"), Just("ä"), Just("k:v")],
        prop_oneof![Just(None), Just(Some("")), Just(Some("a"))],
        prop::collection::vec(prop_oneof![Just("k:v"), Just("a"), Just("ä")], 0..3),
    );
    let identity =
        identity.prop_map(|(kind, name, host, tags)| Identity::new(Kind::ALL[kind], name, host, host, tags));
    let values = prop::collection::vec(-20i32..20, 1..6);
    (0u8..4, 0i64..3, identity, values).prop_map(|(agent, bucket, identity, values)| Part {
        agent,
        bucket: START + bucket * i64::from(WIDTH),
        identity,
        values,
    })
}

fn state(part: &Part) -> State {
    let values = || part.values.iter().map(|value| f64::from(*value) / 4.0);
    match part.identity.kind {
        Kind::Counter => {
            let mut sum = ExactSum::default();
            values().for_each(|value| sum.add(value * 1e300));
            State::Counter(sum)
        }
        Kind::Gauge => State::Gauge(Gauge::new(
            values().sum(),
            i64::from(part.values[0]),
            AgentId([9; 16]),
        )),
        Kind::Set => {
            let members: Vec<String> = values().map(|value| value.to_string()).collect();
            State::Set(Members::exact(members.iter().map(String::as_bytes)))
        }
        Kind::Histogram | Kind::Timing => State::Samples(Samples::exact(values().map(|value| (value, 1.5)))),
        Kind::Distribution => {
            let mut sketch = Sketch::new();
            values().for_each(|value| sketch.insert_one(value));
            Distribution::new(&sketch, 0.25).into()
        }
    }
}

fn facts(part: &Part) -> Facts {
    Facts {
        seen: part.bucket + i64::from(part.values[0]),
        suffixes: 1 << part.values[0].rem_euclid(5),
    }
}

/// The naive merge: all parts of a bucket in one table.
fn tables<'a>(parts: impl IntoIterator<Item = &'a Part>, bounds: Bounds) -> BTreeMap<i64, Table> {
    let mut tables: BTreeMap<i64, Table> = BTreeMap::new();
    for part in parts {
        let table = tables.entry(part.bucket).or_insert_with(|| Table::new(bounds));
        table.add(part.identity.clone(), facts(part), state(part));
    }
    tables
}

fn expected(parts: &[Part]) -> Vec<(i64, Vec<u8>)> {
    let tables = tables(parts, BOUNDS).into_iter();
    let bodies = tables.map(|(start, table)| {
        let header = Header {
            bucket_start: start,
            bucket_width: WIDTH,
            ..Header::default()
        };
        let records = table.encode(&header).0;
        (start, Record::decode(&records[0]).unwrap().body().to_vec())
    });
    bodies.collect()
}

/// The records of these parts: each agent publishes its own, bucket by bucket.
fn published(parts: &[Part]) -> Vec<Vec<u8>> {
    let mut records = Vec::new();
    for number in 0..4 {
        let mut writer = Writer::new(number, 1);
        let own = parts.iter().filter(|part| part.agent == number);
        for (start, table) in tables(own, Bounds::NONE) {
            records.extend(writer.write(start, &table));
        }
    }
    records
}

fn bodies(results: &[Vec<u8>]) -> Vec<(i64, Vec<u8>)> {
    let decoded = decoded(results).into_iter();
    decoded
        .map(|(closed, record)| (closed.bucket_start, record.body().to_vec()))
        .collect()
}

const FAR: i64 = START + 10_000;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Any permutation, any grouping into agents and any repetition.
    #[test]
    fn order_grouping_and_repetition_do_not_matter(
        parts in prop::collection::vec(part(), 1..40),
        regrouped in prop::collection::vec(0u8..4, 40),
        shuffle in any::<u64>(),
        repeated in 1usize..4,
    ) {
        let expected = expected(&parts);
        let mut other = parts.clone();
        other.iter_mut().zip(&regrouped).for_each(|(part, agent)| part.agent = *agent);
        for parts in [&parts, &other] {
            let mut sent = published(parts);
            let once = sent.len();
            sent = (0..repeated).flat_map(|_| sent.clone()).collect();
            let order = |bytes: &Vec<u8>| bytes.iter().fold(shuffle, |hash, byte| hash.rotate_left(5) ^ u64::from(*byte));
            sent.sort_by_key(order);
            let mut merge = Merge::new(settings(), 0);
            for (offset, bytes) in (0..).zip(&sent) {
                merge.add(&message(offset, START + 30, bytes));
            }
            merge.tick(FAR * 1000);
            let commit = merge.commit().unwrap();
            prop_assert_eq!(&bodies(&commit.results), &expected);
            prop_assert_eq!(merge.counts().repeats, (sent.len() - once) as u64);
            prop_assert_eq!(merge.ledger().difference(), 0);
            prop_assert_eq!(merge.ledger().merged, merge.ledger().published);
        }
    }

    /// With a change of owner after any commit, the next owner writes the same bytes and the same counts.
    #[test]
    fn any_owner_produces_the_same_bytes(
        sent in prop::collection::vec((0u8..4, 0i64..40, 0u8..8), 1..60),
        crashes in prop::collection::vec(any::<bool>(), 120),
    ) {
        let log = log(&sent);
        let (expected, reference) = read(&log, &[false; 120]);
        let (found, merge) = read(&log, &crashes);
        prop_assert_eq!(found, expected);
        prop_assert_eq!(merge.counts(), reference.counts());
        prop_assert_eq!(merge.ledgers(), reference.ledgers());
        prop_assert_eq!(merge.ledger().difference(), 0);
    }
}

/// Records that agents left out come to light after the bucket waits for another agent only.
#[test]
fn an_agent_that_had_passed_a_bucket_may_have_to_be_awaited_again() {
    let sent = [
        (0, 0, 0),
        (0, 1, 0),
        (0, 2, 2),
        (0, 3, 0),
        (0, 4, 1),
        (0, 5, 1),
        (0, 6, 2),
        (2, 0, 4),
        (1, 1, 2),
        (3, 9, 2),
        (0, 9, 2),
        (1, 2, 2),
        (0, 5, 2),
        (2, 0, 2),
        (3, 0, 2),
    ];
    let log = log(&sent);
    let (expected, _) = read(&log, &[false; 120]);
    for crash in 0..log.len() {
        let mut crashes = [false; 120];
        crashes[crash] = true;
        assert_eq!(
            read(&log, &crashes).0,
            expected,
            "owner changed after message {crash}"
        );
    }
}

/// Agents send for buckets around the time of sending: some late, some twice, some invalid, some never.
fn log(sent: &[(u8, i64, u8)]) -> Vec<weir_merge::Message> {
    let mut writers: Vec<Writer> = (0..4).map(|number| Writer::new(number, 1)).collect();
    let mut log: Vec<weir_merge::Message> = Vec::new();
    for (at, (number, bucket, fate)) in (0i64..).zip(sent) {
        let now = START + 10 * at;
        // Up to 200 s late.
        let start = (now - bucket % 20 * 10).max(START);
        let bytes = writers[usize::from(*number)].one(start);
        match fate {
            0 => continue,
            1 => log.push(message(log.len() as u64, now, &bytes[..bytes.len() / 2])),
            2 => log.extend([0, 1].map(|more| message(log.len() as u64 + more, now, &bytes))),
            3 => log.push(weir_merge::Message {
                sent: (now - 3600) * 1000,
                ..message(log.len() as u64, now, &bytes)
            }),
            _ => log.push(message(log.len() as u64, now, &bytes)),
        }
        if *fate == 4 {
            let earlier = log[log.len() / 2].bytes.clone();
            log.push(message(log.len() as u64, now, &earlier));
        }
    }
    log
}

/// Reads a log to its end, with a commit after each message and a new owner if `crashes` says so.
fn read(log: &[weir_merge::Message], crashes: &[bool]) -> (Vec<Vec<u8>>, Merge) {
    let mut merge = Merge::new(settings(), 0);
    let mut committed: Option<Commit> = None;
    let mut results = Vec::new();
    let mut at = 0;
    let mut crashes = crashes.iter();
    while at < log.len() {
        merge.add(&log[at]);
        at += 1;
        if let Some(commit) = merge.commit() {
            results.extend(commit.results.clone());
            committed = Some(commit);
        }
        if crashes.next() == Some(&true) {
            merge = match &committed {
                Some(commit) => Merge::restore(settings(), &commit.snapshot, commit.offset).unwrap(),
                None => Merge::new(settings(), 0),
            };
            at = merge.next() as usize;
        }
    }
    merge.tick(FAR * 1000);
    results.extend(merge.commit().unwrap_or_default().results);
    (results, merge)
}

#[test]
fn a_bucket_closes_when_all_agents_have_passed_it() {
    let mut merge = Merge::new(settings(), 0);
    let mut writers = [Writer::new(1, 1), Writer::new(2, 1)];
    let mut offset = 0;
    let mut send = |merge: &mut Merge, number: usize, bucket: i64, now: i64| {
        let bytes = writers[number].one(START + bucket * 10);
        merge.add(&message(offset, now, &bytes));
        offset += 1;
        let results = merge.commit().unwrap_or_default().results;
        decoded(&results)
            .iter()
            .map(|(closed, _)| (closed.bucket_start - START, closed.occasion))
            .collect::<Vec<_>>()
    };
    let both = Occasion::Closed { expected: 2, seen: 2 };
    let one = Occasion::Closed { expected: 2, seen: 1 };
    let alone = Occasion::Closed { expected: 1, seen: 1 };
    // The agents are not known yet: only the grace period ends a bucket.
    for bucket in 0..6 {
        for number in [0, 1] {
            let now = START + bucket * 10 + 9 + number as i64;
            assert_eq!(send(&mut merge, number, bucket, now), []);
        }
    }
    let closed = send(&mut merge, 0, 6, START + 69);
    assert_eq!(closed, [0, 10, 20, 30, 40].map(|start| (start, both)));
    assert_eq!(send(&mut merge, 1, 6, START + 70), [(50, both)]);
    assert_eq!(send(&mut merge, 0, 7, START + 80), [(60, both)]);
    // One agent is silent: its buckets wait for the grace period.
    for bucket in 8..13 {
        assert_eq!(send(&mut merge, 0, bucket, START + bucket * 10 + 10), []);
    }
    assert_eq!(merge.streams()[0].awaited, [agent(2)]);
    for bucket in 13..18 {
        let closed = send(&mut merge, 0, bucket, START + bucket * 10 + 10);
        assert_eq!(closed, [(bucket * 10 - 60, one)]);
    }
    // After six buckets the agent is not waited for.
    let closed = send(&mut merge, 0, 18, START + 190);
    let rest = [130, 140, 150, 160, 170].map(|start| (start, alone));
    assert_eq!(closed, [&[(120, one)][..], &rest].concat());
    assert_eq!(merge.streams()[0].awaited, []);
}

/// An agent that announces its end is not waited for.
#[test]
fn an_agent_that_ends_is_not_awaited() {
    let mut merge = Merge::new(settings(), 0);
    let (mut one, mut other) = (Writer::new(1, 1), Writer::new(2, 1));
    let mut log = vec![one.one(START), other.one(START)];
    let mut header = other.header(START + 10);
    header.publication.as_mut().unwrap().is_last = true;
    header.is_open = true;
    log.extend(other.write_as(&header, &signed(&["bye"])));
    log.extend((1..12).map(|bucket| one.one(START + bucket * 10)));
    for (offset, bytes) in (0..).zip(&log) {
        merge.add(&message(offset, START + 10 * offset as i64, bytes));
    }
    let results = decoded(&merge.commit().unwrap().results);
    let (last, _) = results.last().unwrap();
    assert_eq!(last.bucket_start, START + 110);
    assert_eq!(last.occasion, Occasion::Closed { expected: 1, seen: 1 });
}

fn outcome(settings: Settings, change: impl Fn(&mut weir_merge::Message, &mut Header)) -> MergeOutcome {
    let mut merge = Merge::new(settings, 0);
    let mut writer = Writer::new(1, 1);
    merge.add(&message(0, START + 10, &writer.one(START)));
    let mut header = writer.header(START + 10);
    let mut message = message(1, START + 20, &[]);
    change(&mut message, &mut header);
    message.bytes = writer.write_as(&header, &signed(&["x"])).remove(0);
    let outcome = merge.add(&message);
    assert_eq!(merge.ledger().difference(), 0);
    let is_quarantined = matches!(outcome, MergeOutcome::Quarantined(_));
    let quarantined = merge.commit().map_or(0, |commit| commit.quarantined.len());
    assert_eq!(quarantined, usize::from(is_quarantined));
    assert_eq!(
        merge.counts().quarantined.iter().sum::<u64>(),
        u64::from(is_quarantined)
    );
    outcome
}

#[test]
fn unmergeable_records_are_quarantined_and_named() {
    let check = |change: &dyn Fn(&mut weir_merge::Message, &mut Header), expected| {
        let reason = MergeOutcome::Quarantined(expected);
        assert_eq!(outcome(settings(), change), reason);
    };
    assert_eq!(outcome(settings(), |_, _| {}), MergeOutcome::Merged);
    check(
        &|_, header| header.publication = None,
        QuarantineReason::Unpublished,
    );
    check(
        &|message, _| message.sent += 700_000,
        QuarantineReason::Clock { seconds: 700 },
    );
    check(
        &|message, _| message.sent -= 700_000,
        QuarantineReason::Clock { seconds: -700 },
    );
    check(
        &|_, header| header.bucket_start = START + 1000,
        QuarantineReason::Future { seconds: 980 },
    );
    check(
        &|_, header| header.publication.as_mut().unwrap().partitions = 3,
        QuarantineReason::Partitions {
            found: 3,
            expected: 1,
        },
    );
    check(&|_, header| header.sequence = 0, QuarantineReason::SharedId);
    check(
        &|_, header| header.publication.as_mut().unwrap().states_before = 1,
        QuarantineReason::SharedId,
    );
    let few = Settings {
        agents_max: 1,
        ..settings()
    };
    assert_eq!(
        outcome(few, |_, header| header.agent = agent(2)),
        MergeOutcome::Quarantined(QuarantineReason::TooManyAgents)
    );
    let mut plan = Plan::new(1);
    plan.announce(START + 10, 3);
    let moved = Settings { plan, ..settings() };
    assert_eq!(
        outcome(moved, |_, header| header
            .publication
            .as_mut()
            .unwrap()
            .partitions = 3),
        MergeOutcome::Merged
    );
}

/// Without room, sums stay right: counters and distributions lose nothing, and dropped states are counted.
#[test]
fn without_memory_sums_stay_exact() {
    let series = 20_000;
    let settings = Settings {
        memory: 1 << 20,
        partition: 5,
        ..settings()
    };
    let mut merge = Merge::new(settings, 0);
    let mut writer = Writer::new(1, 1);
    let mut most = 0;
    for record in 0..20 {
        let mut table = Table::new(Bounds::NONE);
        for at in 0..series / 20 {
            let tag = format!("number:{record}/{at}");
            let names = [format!("name{}", at % 7), format!("alone{record}/{at}")];
            for name in &names {
                for kind in [Kind::Counter, Kind::Distribution, Kind::Gauge] {
                    let identity = Identity::new(kind, name, Some(""), None, [tag.as_str()]);
                    let part = Part {
                        agent: 1,
                        bucket: START,
                        identity: identity.clone(),
                        values: vec![at],
                    };
                    table.add(identity, facts(&part), state(&part));
                }
            }
        }
        for bytes in writer.write(START, &table) {
            assert_eq!(
                merge.add(&message(
                    writer.sequence * 100 + record as u64,
                    START + 15,
                    &bytes
                )),
                MergeOutcome::Merged
            );
        }
        most = most.max(merge.bytes());
    }
    // One more record may be added while a byte is left.
    assert!(most < 4 << 20, "{most}");
    merge.tick(FAR * 1000);
    let results = decoded(&merge.commit().unwrap().results);
    let (mut total, mut count, mut gauges, mut overflows) = (ExactSum::default(), 0, 0, 0);
    for series in results.iter().flat_map(|(_, record)| record.series()) {
        let tags: Vec<&str> = series.tags.collect();
        if tags[0] == "weir_overflow:true" {
            // A receiver that replaces points would keep those of one partition.
            assert_eq!(tags[1..], ["weir_partition:5"]);
            overflows += 1;
        }
        match series.state {
            State::Counter(sum) => total.merge(sum),
            State::Distribution(distribution) => count += distribution.sketch().cnt(),
            _ => gauges += 1,
        }
    }
    let sum = |count: i32| f64::from(count * (count - 1) / 2);
    assert_eq!(total.to_f64(), 20.0 * 2.0 * sum(series / 20) / 4.0 * 1e300);
    assert_eq!(count, 2 * series as u64);
    let counts = merge.counts();
    assert!(overflows > 0 && counts.overflowed_states > 10_000, "{counts:?}");
    assert_eq!(gauges + counts.dropped_states, 2 * series as u64);
    assert_eq!(merge.ledger().difference(), 0);
}

/// A late record becomes a correction. A record of a bucket that closed long ago is refused, because its history was removed.
#[test]
fn late_records_become_corrections_until_the_horizon() {
    let settings = Settings {
        horizon: 300,
        ..settings()
    };
    let mut merge = Merge::new(settings, 0);
    let (mut early, mut late) = (Writer::new(1, 1), Writer::new(2, 1));
    let first = late.one(START);
    let (lost, second) = (late.one(START), late.one(START + 100));
    let mut offset = 0;
    let mut send = |merge: &mut Merge, now: i64, bytes: &[u8]| {
        offset += 1;
        merge.add(&message(offset, now, bytes))
    };
    for bucket in 0..20 {
        send(
            &mut merge,
            START + bucket * 10 + 12,
            &early.one(START + bucket * 10),
        );
    }
    merge.commit().unwrap();
    assert_eq!(send(&mut merge, START + 205, &first), MergeOutcome::Late);
    assert_eq!(send(&mut merge, START + 206, &first), MergeOutcome::Repeat);
    let corrections = decoded(&merge.commit().unwrap().results);
    let (closed, record) = &corrections[0];
    assert_eq!((closed.bucket_start, corrections.len()), (START, 1));
    assert!(matches!(closed.occasion, Occasion::Late { .. }));
    assert_eq!((sum("count", [record]), names([record]).len()), (1.0, 1));
    assert_eq!(send(&mut merge, START + 207, &second), MergeOutcome::Late);
    assert_eq!(merge.missing(agent(2)).0.records, 1);
    assert_eq!(merge.ledgers()[&agent(2)].missing, 2);
    for bucket in 20..60 {
        send(
            &mut merge,
            START + bucket * 10 + 12,
            &early.one(START + bucket * 10),
        );
    }
    // Uncommitted records are not forgotten.
    let ledger = merge.ledgers()[&agent(2)];
    assert_eq!(
        (ledger.missing, ledger.lost, ledger.late, ledger.open),
        (0, 2, 2, 2)
    );
    merge.commit().unwrap();
    send(&mut merge, START + 622, &early.one(START + 600));
    assert_eq!(merge.ledgers().get(&agent(2)), None);
    let ledger = merge.ledger();
    assert_eq!((ledger.missing, ledger.lost, ledger.late), (0, 2, 4));
    assert_eq!(
        send(&mut merge, START + 623, &lost),
        MergeOutcome::Quarantined(QuarantineReason::TooOld)
    );
    assert_eq!(merge.ledger().difference(), 0);
}

/// Numbers near the limits of their types.
fn extreme() -> impl Strategy<Value = u64> {
    prop_oneof![0u64..4, u64::MAX - 3..=u64::MAX, any::<u64>(), Just(1 << 62)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    /// A damaged snapshot is refused, or it restores a merge that works: it merges, closes, and has a snapshot that can be read.
    #[test]
    fn a_damaged_snapshot_is_refused_or_continues(damages in prop::collection::vec((0usize..600, 1u8..=255), 1..6)) {
        let mut writers = [Writer::new(1, 1), Writer::new(2, 1)];
        let mut merge = Merge::new(settings(), 0);
        for offset in 0..12u64 {
            let bytes = writers[offset as usize % 2].one(START + offset as i64 / 2 * 10);
            if offset % 5 != 3 {
                merge.add(&message(offset, START + 10 * offset as i64, &bytes));
            }
        }
        merge.tick(FAR * 1000);
        let mut snapshot = merge.commit().unwrap().snapshot;
        for (at, change) in damages {
            let at = at % snapshot.len();
            snapshot[at] ^= change;
        }
        if let Ok(mut merge) = Merge::restore(settings(), &snapshot, 0) {
            for offset in 0..8 {
                let bytes = writers[offset as usize % 2].one(START + 100 + offset as i64);
                merge.add(&message(offset, START + 200, &bytes));
            }
            merge.tick(FAR * 2000);
            merge.ledger();
            merge.streams();
            if let Some(commit) = merge.commit() {
                prop_assert!(Merge::restore(settings(), &commit.snapshot, commit.offset).is_ok());
            }
        }
    }

    /// Whatever a record contains, it is merged or refused. No sum overflows, and the saved state can be continued.
    #[test]
    fn any_header_is_accepted(
        headers in prop::collection::vec((0u8..2, [extreme(), extreme(), extreme()], extreme(), 1..=u32::MAX, any::<bool>()), 1..12),
    ) {
        let mut merge = Merge::new(settings(), 0);
        for (offset, (number, [epoch, sequence, states], start, width, is_near)) in (0u64..).zip(headers) {
            let mut header = Writer::new(number, epoch).header(if is_near { START } else { start as i64 });
            header.bucket_width = if is_near { WIDTH } else { width };
            header.sequence = sequence;
            header.publication.as_mut().unwrap().states_before = states;
            let record = signed(&["x"]).encode(&header).0.remove(0);
            merge.add(&message(offset, START + 10 * offset as i64, &record));
            if offset % 4 == 3 {
                merge.tick(FAR * 1000);
                if let Some(commit) = merge.commit() {
                    decoded(&commit.results);
                    merge = Merge::restore(settings(), &commit.snapshot, commit.offset).unwrap();
                    merge.skip_to(offset + 1);
                }
            }
            merge.ledger();
            merge.streams();
        }
    }
}

#[test]
fn any_bytes_are_a_result_or_an_error() {
    let mut table = Table::default();
    add(&mut table, "a", 1.0);
    let mut merge = Merge::new(settings(), 0);
    merge.add(&message(
        0,
        START + 10,
        &Writer::new(1, 1).write(START, &table)[0],
    ));
    merge.tick(FAR * 1000);
    let commit = merge.commit().unwrap();
    let bytes = &commit.results[0];
    assert_eq!(BucketResult::decode(bytes).unwrap().0.states, 1);
    for len in 0..bytes.len() {
        BucketResult::decode(&bytes[..len]).unwrap_err();
        let _ = Merge::restore(
            settings(),
            &commit.snapshot[..len.min(commit.snapshot.len() - 1)],
            0,
        )
        .unwrap_err();
    }
    for at in 0..bytes.len() {
        let mut changed = bytes.clone();
        changed[at] ^= 0x55;
        let _ = BucketResult::decode(&changed);
    }
}
