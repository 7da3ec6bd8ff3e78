//! Tables against a naive twin that keeps everything and merges once, and the bytes of tables against each other.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use weir_protocol::Kind;
use weir_sketch::Sketch;
use weir_sketch::hll::HyperLogLog;
use weir_state::{
    AgentId, Bounds, Catalogue, Distribution, Error, ExactSum, Facts, Gauge, Header, Identity, Members,
    Packer, Publication, Record, RecordSeries, Samples, SeriesName, State, Table, VERSION,
};

const BOUNDS: Bounds = Bounds {
    members: 6,
    member_bytes: 40,
    samples: 8,
};

const START: i64 = 1_700_000_000;

/// One agent's state of one series in one bucket.
#[derive(Clone, Debug)]
pub struct Part {
    identity: Identity,
    seen: i64,
    agent: u8,
    values: Vec<i32>,
}

pub fn facts(seen: i64) -> Facts {
    let suffixes = if seen % 2 == 0 {
        u32::MAX
    } else {
        1 << seen.rem_euclid(5)
    };
    Facts { seen, suffixes }
}

fn identity() -> impl Strategy<Value = Identity> {
    let name = prop_oneof![Just("a"), Just("a.b"), Just("ä")];
    let host = prop_oneof![Just(None), Just(Some("")), Just(Some("h"))];
    let tags = prop::collection::vec(prop_oneof![Just("k:v"), Just("k:w"), Just("a"), Just("h")], 0..3);
    (0usize..Kind::COUNT, name, host, tags).prop_map(|(kind, name, host, tags)| {
        Identity::new(
            Kind::ALL[kind],
            name,
            host,
            host.filter(|host| !host.is_empty()),
            tags,
        )
    })
}

pub fn parts() -> impl Strategy<Value = Vec<Part>> {
    let part = (
        identity(),
        -30i64..10,
        0u8..3,
        prop::collection::vec(-20i32..20, 1..6),
    );
    prop::collection::vec(
        part.prop_map(|(identity, seen, agent, values)| Part {
            identity,
            seen: START + seen,
            agent,
            values,
        }),
        0..30,
    )
}

fn state(part: &Part) -> State {
    let values = || part.values.iter().map(|value| f64::from(*value) / 4.0);
    match part.identity.kind {
        Kind::Counter => {
            let mut sum = ExactSum::default();
            values().for_each(|value| sum.add(value));
            State::Counter(sum)
        }
        Kind::Gauge => {
            let last = f64::from(*part.values.last().expect("at least one"));
            State::Gauge(Gauge::new(last, part.seen, AgentId([part.agent; 16])))
        }
        Kind::Set => {
            let members: Vec<String> = part.values.iter().map(|value| format!("m{value}")).collect();
            State::Set(Members::exact(members.iter().map(String::as_bytes)))
        }
        Kind::Histogram | Kind::Timing => {
            State::Samples(Samples::exact(values().map(|value| (value, weight(value)))))
        }
        Kind::Distribution => {
            let mut sketch = Sketch::new();
            values().for_each(|value| sketch.insert_one(value));
            Distribution::new(&sketch, 0.25).into()
        }
    }
}

fn weight(value: f64) -> f64 {
    if value > 3.0 { 2.5 } else { 1.0 }
}

pub fn table<'a>(parts: impl IntoIterator<Item = &'a Part>) -> Table {
    let mut table = Table::new(BOUNDS);
    for part in parts {
        table.add(part.identity.clone(), facts(part.seen), state(part));
    }
    table
}

pub fn header() -> Header {
    Header {
        tenant: "t".into(),
        host: String::new(),
        agent: AgentId([1; 16]),
        epoch: 7,
        bucket_start: START,
        bucket_width: 10,
        sequence: 100,
        part: 0,
        parts: 1,
        is_open: true,
        publication: Some(Publication {
            states_before: 1000,
            partitions: 64,
            is_last: true,
        }),
    }
}

fn records(table: &Table) -> Vec<Vec<u8>> {
    let (records, too_large) = table.encode(&header());
    assert_eq!(too_large.series, 0);
    records
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn equals_the_naive_merge(parts in parts()) {
        let table = table(&parts);
        let mut of_series: BTreeMap<&Identity, Vec<&Part>> = BTreeMap::new();
        for part in &parts {
            of_series.entry(&part.identity).or_default().push(part);
        }
        prop_assert_eq!(table.len(), of_series.len());
        for ((identity, found, state), (expected, parts)) in table.iter().zip(&of_series) {
            prop_assert_eq!(identity, *expected);
            prop_assert_eq!(Some(found.seen), parts.iter().map(|part| part.seen).max());
            let suffixes = parts.iter().fold(0, |all, part| all | facts(part.seen).suffixes);
            prop_assert_eq!(found.suffixes, suffixes);
            check_naively(state, parts);
        }
    }

    /// Any permutation, any grouping and any repetition that the marks find give the same bytes.
    #[test]
    fn order_grouping_and_repetition_do_not_matter(
        parts in parts(),
        shuffled in Just(()).prop_perturb(|(), mut rng| (rng.random::<u64>(), rng.random::<u64>())),
    ) {
        let expected = records(&table(&parts));
        let mut reversed = parts.clone();
        reversed.sort_by_key(|part| (part.values.len() as u64).wrapping_mul(shuffled.0) ^ part.seen as u64);
        prop_assert_eq!(&records(&table(&reversed)), &expected);

        // Several agents send a record each; some come twice, in some order.
        let groups = 4;
        let mut sent: Vec<Vec<u8>> = Vec::new();
        for group in 0..groups {
            let of_group = parts.iter().enumerate().filter(|(at, _)| at % groups == group).map(|(_, part)| part);
            let header = Header { agent: AgentId([group as u8; 16]), ..header() };
            sent.extend(table(of_group).encode(&header).0);
        }
        sent.extend(sent.clone());
        sent.sort_by_key(|bytes| bytes.iter().fold(shuffled.1, |hash, byte| hash.rotate_left(5) ^ u64::from(*byte)));
        let (mut merged, mut marks) = (Table::new(BOUNDS), BTreeSet::new());
        for bytes in &sent {
            let record = Record::decode(bytes).unwrap();
            if marks.insert((record.header.agent, record.header.sequence)) {
                merged.add_record(&record);
            }
        }
        prop_assert_eq!(&records(&merged), &expected);
    }

    #[test]
    fn bytes_give_the_table(parts in parts()) {
        let table = table(&parts);
        let records = records(&table);
        let mut read = Table::new(BOUNDS);
        for bytes in &records {
            let record = Record::decode(bytes).unwrap();
            prop_assert_eq!(&record.header, &Header { parts: records.len() as u32, ..header() });
            read.add_record(&record);
        }
        prop_assert_eq!(self::records(&read), records);
        prop_assert!(table.iter().eq(read.iter()));
    }

    /// A catalogue that has seen other buckets writes what a table writes.
    #[test]
    fn a_catalogue_writes_what_a_table_writes(buckets in prop::collection::vec(parts(), 1..5)) {
        let (mut catalogue, mut packer) = (Catalogue::new(header().agent), Packer::default());
        for parts in &buckets {
            let mut table = Table::new(Bounds::NONE);
            for part in parts {
                table.add(part.identity.clone(), facts(part.seen), state(part));
                let number = find(&mut catalogue, &part.identity);
                catalogue.put(number, facts(part.seen), &state(part));
            }
            let packing = catalogue.pack(&header(), &mut packer);
            let packed: Vec<Vec<u8>> = packing.records.iter().map(|record| record.bytes.clone()).collect();
            prop_assert_eq!(packed, records(&table));
            let states: u64 = packing.records.iter().map(|record| record.states).sum();
            let rows: u64 = packing.records.iter().map(|record| record.rows).sum();
            prop_assert_eq!((states, rows, packing.too_large), (table.len() as u64, parts.len() as u64, 0));
        }
    }

    /// No byte can change unnoticed, and no beginning is a whole.
    #[test]
    fn damage_is_named(parts in parts(), at in any::<prop::sample::Index>(), bit in 0u8..8) {
        for bytes in records(&table(&parts)) {
            let at = at.index(bytes.len());
            let mut damaged = bytes.clone();
            damaged[at] ^= 1 << bit;
            let error = Record::decode(&damaged).unwrap_err();
            prop_assert!(matches!(error, Error::Checksum | Error::Version { .. }), "{:?}", error);
            let error = Record::decode(&bytes[..at]).unwrap_err();
            prop_assert!(matches!(error, Error::Truncated | Error::Checksum), "{:?}", error);
        }
    }
}

fn find(catalogue: &mut Catalogue, identity: &Identity) -> u32 {
    let named = SeriesName {
        name: &identity.name,
        host: identity.host.as_deref(),
        integration: identity.integration.as_deref(),
        tags: identity.tags.iter().map(AsRef::as_ref).collect(),
    };
    catalogue.find(identity.kind, &named)
}

/// The records of a table as a catalogue writes them.
fn catalogued(table: &Table) -> Vec<Vec<u8>> {
    let mut catalogue = Catalogue::new(header().agent);
    for (identity, facts, state) in table.iter() {
        let number = find(&mut catalogue, identity);
        catalogue.put(number, facts, state);
    }
    let packing = catalogue.pack(&header(), &mut Packer::default());
    packing.records.into_iter().map(|record| record.bytes).collect()
}

fn check_naively(state: &State, parts: &[&Part]) {
    let values: Vec<f64> = parts
        .iter()
        .flat_map(|part| &part.values)
        .map(|value| f64::from(*value) / 4.0)
        .collect();
    match state {
        State::Counter(sum) => assert_eq!(sum.to_f64(), values.iter().sum::<f64>()),
        State::Gauge(gauge) => {
            let lasts = || {
                parts
                    .iter()
                    .map(|part| (part.seen, part.agent, *part.values.last().unwrap()))
            };
            let last = lasts().max().unwrap();
            assert_eq!((gauge.received, gauge.value), (last.0, f64::from(last.2)));
            let (min, max) = (lasts().map(|last| last.2).min(), lasts().map(|last| last.2).max());
            assert_eq!(
                (Some(gauge.extremes.min), Some(gauge.extremes.max)),
                (min.map(f64::from), max.map(f64::from))
            );
        }
        State::Set(members) => {
            let all: BTreeSet<String> = values.iter().map(|value| format!("m{}", value * 4.0)).collect();
            let bytes: usize = all.iter().map(String::len).sum();
            let is_exact = all.len() <= BOUNDS.members && bytes <= BOUNDS.member_bytes;
            assert_eq!(matches!(members, Members::Exact(_)), is_exact, "{all:?}");
            assert_eq!(members.cardinality(), all.len() as u64);
        }
        State::Samples(samples) => {
            assert_eq!(
                matches!(samples, Samples::Exact(_)),
                values.len() as u64 <= BOUNDS.samples
            );
            if let Samples::Folded(folded) = samples {
                let weight: f64 = values.iter().copied().map(weight).sum();
                let sum: f64 = values.iter().map(|value| value * self::weight(*value)).sum();
                assert_eq!((folded.weight.to_f64(), folded.sum.to_f64()), (weight, sum));
                let extremes = folded.extremes.unwrap();
                assert_eq!(extremes.min, values.iter().copied().fold(f64::INFINITY, f64::min));
                assert_eq!(
                    extremes.max,
                    values.iter().copied().fold(f64::NEG_INFINITY, f64::max)
                );
                assert_eq!(folded.sketch().cnt(), weight.floor() as u64);
                assert_eq!(samples.count(), weight.floor() as u64);
            } else {
                assert_eq!(samples.count(), values.len() as u64);
            }
        }
        State::Distribution(distribution) => {
            let mut sketch = Sketch::new();
            values.iter().for_each(|value| sketch.insert_one(*value));
            assert_eq!(distribution.sketch(), sketch);
            assert_eq!(distribution.rest.to_f64(), 0.25 * parts.len() as f64);
        }
    }
}

/// An agent that is short of memory keeps its sets as estimates of few registers.
#[test]
fn estimates_of_few_registers_survive_and_merge() {
    let estimate = |precision: u8, members: std::ops::Range<u32>| {
        let mut estimate = HyperLogLog::new(precision);
        members.for_each(|member| estimate.insert(&member.to_le_bytes()));
        Members::Estimate(estimate)
    };
    let exact = |members: std::ops::Range<u32>| {
        let members: Vec<[u8; 4]> = members.map(u32::to_le_bytes).collect();
        Members::exact(members.iter().map(<[u8; 4]>::as_slice))
    };
    let set = || Identity::new(Kind::Set, "set", None, None, []);
    let all = [
        estimate(10, 0..3000),
        estimate(14, 2000..9000),
        exact(8000..8005),
        exact(9000..9004),
    ];
    let merged = |order: [usize; 4]| {
        let mut table = Table::new(BOUNDS);
        for at in order {
            let mut one = Table::new(Bounds::NONE);
            one.add(set(), facts(START), State::Set(all[at].clone()));
            for bytes in records(&one) {
                table.add_record(&Record::decode(&bytes).unwrap());
            }
        }
        table
    };
    let expected = records(&merged([0, 1, 2, 3]));
    for order in [[3, 2, 1, 0], [2, 3, 0, 1], [1, 3, 2, 0], [2, 3, 1, 0]] {
        assert_eq!(records(&merged(order)), expected, "{order:?}");
    }
    let merged = merged([0, 1, 2, 3]);
    let (_, _, state) = merged.iter().next().unwrap();
    let State::Set(members) = state else {
        panic!("{state:?}")
    };
    assert_eq!(*members, estimate(10, 0..9004));
}

#[test]
fn a_large_set_is_spread_over_several_records() {
    let members: Vec<Vec<u8>> = (0..4000u32)
        .map(|at| [vec![b'x'; 1000], at.to_le_bytes().to_vec()].concat())
        .collect();
    let mut table = Table::new(Bounds::NONE);
    let set = Identity::new(Kind::Set, "set", None, None, []);
    table.add(
        set,
        facts(START),
        State::Set(Members::exact(members.iter().map(Vec::as_slice))),
    );
    let counter = Identity::new(Kind::Counter, "z", None, None, []);
    table.add(counter, facts(START), State::Counter(ExactSum::from(1.0)));
    let records = records(&table);
    assert!(records.len() > 4, "{}", records.len());
    assert_eq!(catalogued(&table), records);
    assert!(records.iter().all(|bytes| bytes.len() < 1 << 20));
    let mut read = Table::new(Bounds::NONE);
    for (at, bytes) in records.iter().enumerate().rev() {
        let record = Record::decode(bytes).unwrap();
        assert_eq!(
            (record.header.part as usize, record.header.sequence),
            (at, 100 + at as u64)
        );
        read.add_record(&record);
    }
    assert!(table.iter().eq(read.iter()));
}

#[test]
fn many_series_are_spread_over_several_records() {
    let mut table = Table::new(Bounds::NONE);
    for at in 0..40_000 {
        let tags = [format!("number:{at}"), format!("of:{}", at % 100)];
        let identity = Identity::new(
            Kind::Counter,
            "name",
            Some("host"),
            None,
            tags.iter().map(String::as_str),
        );
        table.add(
            identity,
            facts(START),
            State::Counter(ExactSum::from(f64::from(at))),
        );
    }
    let records = records(&table);
    assert!(records.len() > 1);
    assert_eq!(catalogued(&table), records);
    let mut read = Table::new(Bounds::NONE);
    let mut states_before = 1000;
    for (part, bytes) in (1..).zip(&records) {
        let record = Record::decode(bytes).unwrap();
        let expected = Publication {
            states_before,
            partitions: 64,
            is_last: part == records.len(),
        };
        assert_eq!(record.header.publication, Some(expected));
        states_before += record.len() as u64;
        read.add_record(&record);
    }
    assert_eq!(self::records(&read), records);
    assert_eq!(read.len(), 40_000);
}

#[test]
fn a_series_that_no_record_can_hold_is_counted() {
    let long = "x".repeat(2_000_000);
    let mut table = Table::new(Bounds::NONE);
    table.add(
        Identity::new(Kind::Counter, &long, None, None, []),
        facts(START),
        State::Counter(ExactSum::from(1.0)),
    );
    table.add(
        Identity::new(Kind::Counter, "short", None, None, []),
        facts(START),
        State::Counter(ExactSum::from(1.0)),
    );
    let (records, too_large) = table.encode(&header());
    assert_eq!(too_large.series, 1);
    let held: usize = records
        .iter()
        .map(|bytes| Record::decode(bytes).unwrap().len())
        .sum();
    assert_eq!(held, 1);
}

/// A record without series is a sign of life.
#[test]
fn an_empty_table_gives_one_record() {
    let records = records(&Table::default());
    assert_eq!(records.len(), 1);
    assert!(Record::decode(&records[0]).unwrap().is_empty());
}

#[test]
fn another_version_is_named() {
    let mut bytes = records(&Table::default()).remove(0);
    for found in [0, VERSION + 1, 255] {
        bytes[0] = found;
        assert_eq!(Record::decode(&bytes).unwrap_err(), Error::Version { found });
    }
    assert_eq!(Record::decode(&[]).unwrap_err(), Error::Truncated);
}

/// Records without the name of a host are those of the first version, which earlier programs read.
#[test]
fn a_host_is_named_and_needs_the_second_version() {
    let named = |host: &str| Header {
        host: host.to_owned(),
        ..header()
    };
    let written = |header: &Header| Table::default().encode(header).0.remove(0);
    assert_eq!(written(&named(""))[0], 1);
    for (host, expected) in [
        ("web-17.example", "web-17.example"),
        (&"é".repeat(200), &"é".repeat(127)),
    ] {
        let bytes = written(&named(host));
        assert_eq!(bytes[0], VERSION);
        assert_eq!(Record::decode(&bytes).unwrap().header, named(expected));
    }
    // One byte of length after the tenant's, and the checksum of what remains.
    let with_host = |host: &[u8]| {
        let mut bytes = written(&named("h"));
        let at = 6 + 1 + header().tenant.len();
        bytes.splice(at..at + 2, host.iter().copied());
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(&bytes[..2]);
        hasher.update(&bytes[6..]);
        bytes[2..6].copy_from_slice(&hasher.finalize().to_le_bytes());
        Record::decode(&bytes).map(|record| record.header.host)
    };
    assert_eq!(with_host(&[1, b'x']), Ok("x".to_owned()));
    assert_eq!(with_host(&[0]), Err(Error::NotCanonical("the header")));
    assert_eq!(with_host(&[1, 0xff]), Err(Error::NotText));
    let long = [vec![0x80, 2], vec![b'x'; 256]].concat();
    assert_eq!(with_host(&long), Err(Error::OutOfRange("the header")));
}

/// A body of a few bytes that would be gigabytes once it is decompressed.
#[test]
fn a_decompression_bomb_is_refused() {
    let bomb = zstd::bulk::compress(&vec![0; 50_000_000], 1).unwrap();
    for announced in [50_000_000u64, 1_000_000] {
        let mut rest = Vec::new();
        rest.push(0);
        rest.extend([0; 16]);
        rest.extend([0, 0, 1, 0, 0, 1]);
        let mut number = announced;
        while number >= 0x80 {
            rest.push(number as u8 | 0x80);
            number >>= 7;
        }
        rest.push(number as u8);
        rest.extend(&bomb);
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(&[1, 1]);
        hasher.update(&rest);
        let bytes = [&[1, 1][..], &hasher.finalize().to_le_bytes(), &rest].concat();
        let expected = match announced {
            1_000_000 => Error::Compression,
            bytes => Error::TooLarge { bytes },
        };
        assert_eq!(Record::decode(&bytes).unwrap_err(), expected);
    }
}

/// The series of a record that is read one series at a time.
fn one_by_one(bytes: &[u8]) -> Result<Table, Error> {
    let (mut series, mut table) = (RecordSeries::decode(bytes)?, Table::new(Bounds::NONE));
    while let Some(one) = series.next_series()? {
        let (facts, state) = (one.facts, one.state.clone());
        table.add(one.identity(), facts, state);
    }
    Ok(table)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    /// Behind the checksum: a body with changed bytes is refused, or it is what these series are always written as.
    #[test]
    fn any_body_is_refused_or_canonical(
        parts in parts(),
        bounds in prop_oneof![Just(BOUNDS), Just(Bounds::NONE)],
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0u8..3), 0..4),
    ) {
        let mut table = Table::new(bounds);
        for part in &parts {
            table.add(part.identity.clone(), facts(part.seen), state(part));
        }
        let record = Record::decode(&records(&table)[0]).unwrap();
        let mut body = record.body().to_vec();
        for (at, byte, change) in changes {
            let at = at.index(body.len() + 1);
            match change {
                _ if at == body.len() => body.push(byte),
                0 => body[at] = byte,
                1 => body.insert(at, byte),
                _ => drop(body.remove(at)),
            }
        }
        let bytes = Packer::default().pack(&record.header, &body);
        let (decoded, one_by_one) = (Record::decode(&bytes), one_by_one(&bytes));
        prop_assert_eq!(one_by_one.as_ref().err(), decoded.as_ref().err());
        if let Ok(read) = weir_state::decode_body(record.header.clone(), body.clone()) {
            let mut again = Table::new(Bounds::NONE);
            again.add_record(&read);
            prop_assert!(one_by_one.unwrap().iter().eq(again.iter()));
            let written = records(&again);
            let written = Record::decode(&written[0]).unwrap();
            prop_assert_eq!(written.body(), &body);
        }
    }
}
