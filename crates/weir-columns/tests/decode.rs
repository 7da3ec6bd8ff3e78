//! The decoder, on payloads that no encoder of ours would write.

use proptest::prelude::*;
use weir_columns::decode::{
    Decoded, Dropped, Endpoint, Limits, Point, Points, Refusal, SKETCH_SAMPLES_MAX, SeriesFault,
};
use weir_columns::wire::{Column, MetricType};

use crate::raw::{Raw, field};

const COUNT: u64 = 1;
const RATE: u64 = 2;
const GAUGE: u64 = 3;
const SKETCH: u64 = 4;
const INTEGER: u64 = 0x10;
const FLOAT: u64 = 0x20;
const DOUBLE: u64 = 0x30;

fn series(raw: &Raw) -> Result<Decoded, Refusal> {
    Decoded::read(raw.bytes(), Endpoint::Series, &Limits::default())
}

fn sketches(raw: &Raw) -> Result<Decoded, Refusal> {
    Decoded::read(raw.bytes(), Endpoint::Sketches, &Limits::default())
}

fn numbers(decoded: &Decoded, at: usize) -> Vec<(i64, f64)> {
    match decoded.series(at).points {
        Points::Numbers(points) => points
            .iter()
            .map(|point| (point.timestamp, point.value))
            .collect(),
        Points::Sketches(_) => panic!("a sketch"),
    }
}

/// One series with one name, tag and point.
fn one() -> Raw {
    let mut raw = Raw::default();
    raw.text(Column::Names, b"n")
        .text(Column::Tags, b"a:1")
        .tag_set(&[1])
        .series(COUNT | INTEGER, 1, 1, 10, 1)
        .at(1000)
        .signed(Column::Integers, 7);
    raw
}

#[test]
fn each_kind_and_each_type_of_value_is_read() {
    let mut raw = Raw::default();
    raw.text(Column::Names, b"c")
        .text(Column::Names, b"r")
        .text(Column::Names, b"g")
        .text(Column::Tags, b"env:prod")
        .text(Column::Tags, b"host:a")
        .text(Column::Tags, b"z")
        .tag_set(&[1, 2])
        .tag_set(&[-1, 3])
        .series(COUNT | INTEGER, 1, 2, 10, 2)
        .at(1000)
        .at(1010)
        .signed(Column::Integers, -3)
        .signed(Column::Integers, 1 << 48)
        .series(RATE | DOUBLE, 2, 1, 5, 1)
        .at(990)
        .double(0.1)
        .series(GAUGE | FLOAT, 3, 0, 0, 1)
        .at(1000)
        .float(0.5)
        .series(GAUGE, 3, 2, 10, 1)
        .at(1);
    let decoded = series(&raw).unwrap();
    assert_eq!(decoded.len(), 4);
    let first = decoded.series(0);
    assert_eq!(
        (first.name, first.tags, first.kind, first.interval),
        ("c", "env:prod,host:a,z", MetricType::Count, 10)
    );
    assert_eq!(
        numbers(&decoded, 0),
        [(1000, -3.0), (1010, 281_474_976_710_656.0)]
    );
    let rate = decoded.series(1);
    assert_eq!(
        (rate.name, rate.tags, rate.kind),
        ("r", "env:prod,host:a", MetricType::Rate)
    );
    assert_eq!(numbers(&decoded, 1), [(990, 0.1)]);
    assert_eq!(
        (decoded.series(2).tags, numbers(&decoded, 2)),
        ("", vec![(1000, 0.5)])
    );
    assert_eq!(numbers(&decoded, 3), [(1, 0.0)], "zeros are not stored");
    assert_eq!(decoded.series(3).tag_list, first.tag_list, "written out once");
    assert_eq!(decoded.points(), 5);
}

#[test]
fn a_sketch_has_the_bins_that_were_sent() {
    let mut raw = Raw::default();
    raw.text(Column::Names, b"d").series(SKETCH | DOUBLE, 1, 0, 10, 2);
    raw.at(1000)
        .double(12.0)
        .double(1.0)
        .double(10.0)
        .signed(Column::Integers, 3)
        .bins(&[(1338, 2), (1487, 1)]);
    let full = u64::from(u32::MAX);
    raw.at(1010)
        .double(0.0)
        .double(-1.0)
        .double(1.0)
        .signed(Column::Integers, (2 * full + 7) as i64)
        .bins(&[(-5, 2 * full + 5), (0, 1), (0, 1)]);
    let decoded = sketches(&raw).unwrap();
    let Points::Sketches(points) = decoded.series(0).points else {
        panic!("no sketch");
    };
    let bins = |at: usize| -> Vec<(i16, u32)> {
        decoded
            .bins(&points[at])
            .iter()
            .map(|bin| (bin.k, bin.n))
            .collect()
    };
    assert_eq!(
        (points[0].count, points[0].sum, points[0].min, points[0].max),
        (3, 12.0, 1.0, 10.0)
    );
    assert_eq!(bins(0), [(1338, 2), (1487, 1)]);
    assert_eq!(
        bins(1),
        [(-5, 5), (-5, u32::MAX), (-5, u32::MAX), (0, 1), (0, 1)],
        "a count beyond 32 bits is several bins"
    );
}

#[test]
fn sums_of_integer_sketches_come_before_their_count() {
    let mut raw = Raw::default();
    raw.text(Column::Names, b"d")
        .series(SKETCH | INTEGER, 1, 0, 10, 1)
        .at(1000);
    for value in [12, 1, 10, 2] {
        raw.signed(Column::Integers, value);
    }
    raw.bins(&[(1, 2)]);
    let decoded = sketches(&raw).unwrap();
    let Points::Sketches(points) = decoded.series(0).points else {
        panic!("no sketch");
    };
    assert_eq!(
        (points[0].sum, points[0].min, points[0].max, points[0].count),
        (12.0, 1.0, 10.0, 2)
    );
}

#[test]
fn hosts_resources_and_common_tags_become_tags() {
    let mut raw = one();
    for text in [&b"host"[..], b"web-1", b"device", b"eth0,1"] {
        raw.text(Column::ResourceTexts, text);
    }
    raw.resource_list(&[(1, 2), (3, 4)]).resource_list(&[(3, 4)]);
    raw.delta(Column::ResourceRefs, 1);
    raw.series(GAUGE, 1, 1, 0, 1)
        .at(1000)
        .delta(Column::ResourceRefs, 2);
    for (number, text) in [(1, &b"team:x"[..]), (2, b"host"), (2, b"other")] {
        field(&mut raw.metadata, number, text);
    }
    let decoded = series(&raw).unwrap();
    assert_eq!(decoded.series(0).tags, "a:1,team:x,host:web-1,device:eth0_1");
    assert_eq!(decoded.series(1).tags, "a:1,team:x,device:eth0_1,host:other");
}

#[test]
fn what_ends_a_tag_is_replaced_and_so_is_what_is_no_text() {
    let mut raw = Raw::default();
    raw.text(Column::Names, b"n")
        .text(Column::Tags, b"a:1,2|3\n4")
        .text(Column::Tags, b"b:\xff")
        .text(Column::Tags, b"")
        .tag_set(&[1, 2, 3])
        .series(COUNT, 1, 1, 10, 1)
        .at(1000);
    assert_eq!(series(&raw).unwrap().series(0).tags, "a:1_2_3_4,b:\u{fffd}");
}

#[test]
fn an_error_of_one_series_drops_that_series_alone() {
    let mut raw = one();
    raw.text(Column::Names, b"bad|name")
        .text(Column::Names, b"")
        .series(COUNT | INTEGER, 2, 1, 10, 2)
        .at(1)
        .at(2)
        .signed(Column::Integers, 1)
        .signed(Column::Integers, 1)
        .series(COUNT, 3, 1, 10, 1)
        .at(3)
        .series(COUNT, 0, 1, 10, 1)
        .at(3)
        .series(RATE, 1, 1, 0, 1)
        .at(3)
        .series(GAUGE | INTEGER, 1, 1, 0, 1)
        .at(4)
        .signed(Column::Integers, 9);
    let decoded = series(&raw).unwrap();
    assert_eq!(decoded.len(), 2);
    assert_eq!(numbers(&decoded, 1), [(4, 9.0)]);
    let dropped = |series, points| Dropped {
        series,
        points,
        samples: points,
    };
    assert_eq!(decoded.dropped(SeriesFault::BadName), dropped(3, 4));
    assert_eq!(decoded.dropped(SeriesFault::BadInterval), dropped(1, 1));
    let named = decoded.dropped_series();
    let named: Vec<_> = named.map(|series| (series.place, series.fault)).collect();
    let (name, interval) = (SeriesFault::BadName, SeriesFault::BadInterval);
    assert_eq!(named, [(2, name), (3, name), (4, name), (5, interval)]);
}

#[test]
fn contradicting_sketches_are_dropped_and_their_samples_counted() {
    let good: &[(i64, u64)] = &[(1, 2), (5, 1)];
    type Case<'a> = (&'a str, f64, f64, f64, i64, &'a [(i64, u64)]);
    let cases: &[Case<'_>] = &[
        ("count", 1.0, 0.0, 1.0, 4, good),
        ("order", 1.0, 0.0, 1.0, 3, &[(5, 1), (1, 2)]),
        ("key", 1.0, 0.0, 1.0, 3, &[(40_000, 3)]),
        ("lowest key", 1.0, 0.0, 1.0, 3, &[(-32_768, 3)]),
        ("range", 1.0, 2.0, 1.0, 3, good),
        ("not a number", f64::NAN, 0.0, 1.0, 3, good),
        ("infinite", 1.0, f64::NEG_INFINITY, 1.0, 3, good),
        ("negative", 1.0, 0.0, 1.0, -3, good),
        (
            "too many",
            1.0,
            0.0,
            1.0,
            i64::MAX,
            &[(1, u64::MAX), (2, u64::MAX)],
        ),
    ];
    for &(what, sum, min, max, count, bins) in cases {
        let mut raw = Raw::default();
        raw.text(Column::Names, b"d").series(SKETCH | DOUBLE, 1, 0, 10, 1);
        raw.at(1).double(sum).double(min).double(max);
        raw.signed(Column::Integers, count).bins(bins);
        raw.series(SKETCH | DOUBLE, 1, 0, 10, 1);
        raw.at(1).double(1.0).double(0.0).double(1.0);
        raw.signed(Column::Integers, 3).bins(good);
        let decoded = sketches(&raw).unwrap();
        assert_eq!(decoded.len(), 1, "{what}");
        let samples = u64::try_from(count)
            .ok()
            .filter(|count| *count <= SKETCH_SAMPLES_MAX);
        let dropped = decoded.dropped(SeriesFault::BadSketch);
        assert_eq!(
            (dropped.series, dropped.samples),
            (1, samples.unwrap_or(0)),
            "{what}"
        );
        let Points::Sketches(points) = decoded.series(0).points else {
            panic!("no sketch");
        };
        assert_eq!(decoded.bins(&points[0]).len(), 2, "{what}");
    }
}

#[test]
fn structural_errors_refuse_the_payload_with_a_reason() {
    let refused = |change: &dyn Fn(&mut Raw)| {
        let mut raw = one();
        change(&mut raw);
        series(&raw).unwrap_err().to_string()
    };
    let cut = |column: Column| {
        refused(&|raw| raw.columns[column as usize].truncate(raw.columns[column as usize].len() - 1))
    };
    for (reason, expected) in [
        (cut(Column::Integers), "integers: it ends before its last entry"),
        (cut(Column::Timestamps), "timestamps: it ends before"),
        (cut(Column::Names), "names: it ends before"),
        (cut(Column::TagSets), "tag sets: it ends before"),
        (cut(Column::PointCounts), "point counts: it ends before"),
        (
            refused(&|raw| {
                raw.signed(Column::Integers, 1);
            }),
            "integers: it has more entries",
        ),
        (
            refused(&|raw| {
                raw.at(5);
            }),
            "timestamps: it has more entries",
        ),
        (
            refused(&|raw| {
                raw.tag_set(&[2]);
            }),
            "set 2 has the index 2; 1 to 1 and -1 to -1 are allowed",
        ),
        (
            refused(&|raw| {
                raw.tag_set(&[-2]);
            }),
            "set 2 has the index -2",
        ),
        (
            refused(&|raw| {
                raw.tag_set(&[0]);
            }),
            "set 2 has the index 0",
        ),
        (
            refused(&|raw| {
                raw.tag_set(&[i64::MIN]);
            }),
            "set 2 has the index -9223372036854775808",
        ),
        (
            refused(&|raw| {
                raw.signed(Column::TagSets, -1);
            }),
            "tag sets: it ends before",
        ),
        (
            refused(&|raw| {
                raw.signed(Column::TagSets, i64::MAX);
            }),
            "tag sets: it ends before",
        ),
        (
            refused(&|raw| {
                raw.text(Column::Names, b"\xff");
            }),
            "names: entry 2 is not UTF-8",
        ),
        (
            refused(&|raw| {
                raw.series(COUNT, 2, 1, 10, 0);
            }),
            "name references: entry 2 is 2; 0 to 1 are allowed",
        ),
        (
            refused(&|raw| {
                raw.series(COUNT, -1, 1, 10, 0);
            }),
            "name references: entry 2 is -1",
        ),
        (
            refused(&|raw| {
                raw.series(COUNT, 1, 2, 10, 0);
            }),
            "tag set references: entry 2 is 2",
        ),
        (
            refused(&|raw| {
                raw.delta(Column::ResourceRefs, 1);
            }),
            "resource references: entry 1 is 1; 0 to 0",
        ),
        (
            refused(&|raw| {
                raw.delta(Column::OriginRefs, 1);
            }),
            "origin references",
        ),
        (
            refused(&|raw| {
                raw.series(SKETCH, 1, 1, 10, 0);
            }),
            "series 2 is a sketch; /sketches",
        ),
        (
            refused(&|raw| {
                raw.series(6, 1, 1, 10, 0);
            }),
            "series 2 is a histogram (type 6)",
        ),
        (
            refused(&|raw| {
                raw.series(5, 1, 1, 10, 0);
            }),
            "series 2 has the type 0x5",
        ),
        (
            refused(&|raw| {
                raw.series(COUNT | 0x40, 1, 1, 10, 0);
            }),
            "series 2 has the type 0x41",
        ),
    ] {
        assert!(reason.contains(expected), "{reason}, not {expected}");
    }
    let wrong = sketches(&one()).unwrap_err();
    assert_eq!(
        wrong.to_string(),
        "types: series 1 is no sketch; /series takes it"
    );
    let twice = [one().bytes(), one().bytes()].concat();
    let read = |bytes: Vec<u8>| Decoded::read(bytes, Endpoint::Series, &Limits::default()).map(|_| ());
    assert_eq!(read(twice), Err(Refusal::Twice(3)));
    assert_eq!(read(vec![0x18, 1]), Err(Refusal::NotPacked(3, 0)));
    assert_eq!(read(vec![0xff]), Err(Refusal::NoField(0)));
    assert_eq!(
        read(vec![0x1a, 0xff, 0xff, 0xff, 0xff, 0x0f]),
        Err(Refusal::NoField(0)),
        "past the end"
    );
    assert_eq!(read(Vec::new()), Ok(()), "nothing is no error");
    assert_eq!(
        read(vec![0x28, 1]),
        Ok(()),
        "fields of later versions are skipped"
    );
}

#[test]
fn two_billion_zeros_are_refused_before_memory_is_taken() {
    let mut raw = one();
    raw.series(GAUGE, 1, 1, 0, 1 << 31).at(1);
    assert_eq!(series(&raw).unwrap_err(), Refusal::Short("timestamps"));
    let mut raw = Raw::default();
    raw.text(Column::Names, b"d").series(SKETCH, 1, 0, 10, 1).at(1);
    raw.signed(Column::Integers, 1)
        .unsigned(Column::BinCounts, 1 << 31);
    assert_eq!(sketches(&raw).unwrap_err(), Refusal::Short("bin keys"));
}

/// Each set contains the one before it twice.
fn doubling(sets: usize, first: &[i64]) -> Raw {
    let mut raw = Raw::default();
    raw.text(Column::Names, b"n")
        .text(Column::Tags, b"tag")
        .text(Column::Tags, b"");
    raw.tag_set(first);
    for set in 1..sets as i64 {
        raw.tag_set(&[-set, -set]);
    }
    for set in 1..=sets as i64 {
        raw.series(COUNT, 1, set, 10, 1).at(1000);
    }
    raw
}

#[test]
fn tag_sets_that_double_are_no_series_of_many_tags() {
    for first in [&[1][..], &[], &[2]] {
        let decoded = series(&doubling(20_000, first)).unwrap();
        assert!(decoded.len() <= 11, "{} of {first:?}", decoded.len());
        assert_eq!(
            decoded.dropped(SeriesFault::TooManyTags).series as usize,
            20_000 - decoded.len()
        );
        assert!(decoded.heap_bytes() < 4 << 20, "{}", decoded.heap_bytes());
    }
}

#[test]
fn a_long_chain_of_sets_costs_no_stack_and_little_time() {
    let mut raw = Raw::default();
    raw.text(Column::Names, b"n").text(Column::Tags, b"tag");
    raw.tag_set(&[1]);
    for set in 1..100_000 {
        raw.tag_set(&[-set]);
    }
    for set in 1..=100_000 {
        raw.series(COUNT, 1, set, 10, 1).at(1000);
    }
    let decoded = series(&raw).unwrap();
    assert!(decoded.len() < 100, "{}", decoded.len());
    assert_eq!(decoded.series(decoded.len() - 1).tags, "tag");
}

#[test]
fn memory_is_refused_before_it_is_taken() {
    // Many sets that each write out the same thousand tags.
    let mut raw = Raw::default();
    raw.text(Column::Names, b"n");
    for tag in 0..1000 {
        raw.text(Column::Tags, format!("tag-number:{tag}").as_bytes());
    }
    raw.tag_set(&(1..=1000).collect::<Vec<i64>>());
    for set in 2..=60_000 {
        raw.tag_set(&[-1]);
        raw.series(COUNT, 1, set, 10, 1).at(1000);
    }
    let limits = Limits {
        bytes: 16 << 20,
        ..Limits::default()
    };
    let refused = Decoded::read(raw.bytes(), Endpoint::Series, &limits).map(|_| ());
    assert!(
        matches!(refused, Err(Refusal::TooLarge(_) | Refusal::TooManySteps)),
        "{refused:?}"
    );
    // Empty texts take memory for their places alone.
    let mut raw = Raw::default();
    raw.columns[Column::Tags as usize] = vec![0; 4 << 20];
    let refused = Decoded::read(raw.bytes(), Endpoint::Series, &limits).map(|_| ());
    assert_eq!(refused, Err(Refusal::TooLarge(limits.bytes)));
}

/// A series that a test writes and expects.
#[derive(Clone, Debug)]
struct Wanted {
    name: usize,
    tags: Vec<usize>,
    kind: u64,
    interval: u64,
    points: Vec<Point>,
}

fn wanted() -> impl Strategy<Value = Wanted> {
    let value = prop_oneof![
        any::<f64>(),
        (-1000i64..1000).prop_map(|value| value as f64),
        Just(0.0)
    ];
    let point = (any::<i64>(), value).prop_map(|(timestamp, value)| Point { timestamp, value });
    let tags = prop::collection::btree_set(0usize..6, 0..5);
    (
        0usize..4,
        tags,
        1u64..4,
        1u64..100,
        prop::collection::vec(point, 0..4),
    )
        .prop_map(|(name, tags, kind, interval, points)| Wanted {
            name,
            tags: tags.into_iter().collect(),
            kind,
            interval,
            points,
        })
}

proptest! {
    #[test]
    fn what_is_written_is_read(all in prop::collection::vec(wanted(), 0..20)) {
        let mut raw = Raw::default();
        for name in 0..4 {
            raw.text(Column::Names, format!("name{name}").as_bytes());
        }
        for tag in 0..6 {
            raw.text(Column::Tags, format!("tag:{tag}").as_bytes());
        }
        for (at, wanted) in all.iter().enumerate() {
            let tags: Vec<i64> = wanted.tags.iter().map(|tag| *tag as i64 + 1).collect();
            raw.tag_set(&tags);
            raw.series(wanted.kind | DOUBLE, wanted.name as i64 + 1, at as i64 + 1, wanted.interval, wanted.points.len() as u64);
            for point in &wanted.points {
                raw.at(point.timestamp).double(point.value);
            }
        }
        let decoded = series(&raw).unwrap();
        prop_assert_eq!(decoded.len(), all.len());
        for (at, wanted) in all.iter().enumerate() {
            let found = decoded.series(at);
            let tags: Vec<String> = wanted.tags.iter().map(|tag| format!("tag:{tag}")).collect();
            prop_assert_eq!(found.name, format!("name{}", wanted.name));
            prop_assert_eq!(found.tags, tags.join(","));
            prop_assert_eq!(found.kind as u64, wanted.kind);
            prop_assert_eq!(u64::from(found.interval), wanted.interval);
            let bits = |points: &[(i64, f64)]| -> Vec<(i64, u64)> {
                points.iter().map(|point| (point.0, point.1.to_bits())).collect()
            };
            let expected: Vec<(i64, f64)> = wanted.points.iter().map(|point| (point.timestamp, point.value)).collect();
            prop_assert_eq!(bits(&numbers(&decoded, at)), bits(&expected));
        }
    }

    /// A damaged payload is refused or read; memory stays within its limit.
    #[test]
    fn no_damage_exceeds_the_memory(
        damages in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        sketch in any::<bool>(),
    ) {
        let mut raw = one();
        let endpoint = match sketch {
            true => {
                raw = Raw::default();
                raw.text(Column::Names, b"d").series(SKETCH | FLOAT, 1, 0, 10, 1).at(1);
                raw.float(3.0).float(1.0).float(2.0).signed(Column::Integers, 2).bins(&[(1, 1), (3, 1)]);
                Endpoint::Sketches
            }
            false => Endpoint::Series,
        };
        let mut bytes = raw.bytes();
        for (at, value) in damages {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        let limits = Limits { bytes: 1 << 20, ..Limits::default() };
        if let Ok(decoded) = Decoded::read(bytes, endpoint, &limits) {
            prop_assert!(decoded.heap_bytes() <= 1 << 20);
            for at in 0..decoded.len() {
                let found = decoded.series(at);
                prop_assert!(!found.name.is_empty());
                if let Points::Sketches(points) = found.points {
                    for point in points {
                        let all: u64 = decoded.bins(point).iter().map(|bin| u64::from(bin.n)).sum();
                        prop_assert_eq!(all, point.count);
                    }
                }
            }
        }
    }
}
