//! A payload that is read has what was written.

use std::collections::BTreeSet;

use proptest::prelude::*;
use weir_columns::encode::{BIN_BYTES_MAX, POINT_BYTES_MAX, ROW_BYTES_MAX, TAG_BYTES_MAX};
use weir_columns::payload::Payload;
use weir_columns::wire::{Column, METRIC_DATA, MetricType, ValueType, varint, zigzag};
use weir_columns::{Encoder, Origin, Row, SketchPoint, TagSet};

/// Time, the bits of sum, minimum and maximum, count, and bins.
type Sketch = (i64, [u64; 3], u64, Vec<(i32, u64)>);

/// A series in plain words. Numbers are bits, so that NaN is equal to itself and a negative zero is not zero.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Plain {
    name: String,
    tags: BTreeSet<String>,
    resources: Vec<(String, String)>,
    source_type: String,
    origin: (i32, i32, i32),
    unit: String,
    metric: MetricType,
    not_indexed: bool,
    interval: u32,
    points: Vec<(i64, u64)>,
    sketches: Vec<Sketch>,
}

/// Values at the edges of the types.
fn value() -> impl Strategy<Value = f64> {
    let edges = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        0.5,
        0.1,
        -0.1,
        (1i64 << 24) as f64,
        (1i64 << 24) as f64 + 1.0,
        (1i64 << 48) as f64,
        (1i64 << 48) as f64 - 1.0,
        (1i64 << 48) as f64 + 1.0,
        -((1i64 << 48) as f64),
        -((1i64 << 48) as f64) - 1.0,
        (1i64 << 53) as f64,
        (1i64 << 53) as f64 - 1.0,
        (1i64 << 53) as f64 + 2.0,
        f64::MAX,
        f64::MIN_POSITIVE,
        f64::from(f32::MAX),
        f64::INFINITY,
        f64::NEG_INFINITY,
        f64::NAN,
        i64::MAX as f64,
    ];
    prop_oneof![
        3 => prop::sample::select(edges.to_vec()),
        2 => (-1000i64..1000).prop_map(|whole| whole as f64),
        1 => any::<f32>().prop_map(f64::from),
        1 => any::<f64>(),
    ]
}

fn bins() -> impl Strategy<Value = Vec<(i32, u64)>> {
    let samples = prop_oneof![
        1u64..1000,
        Just(u64::from(u32::MAX)),
        Just(u64::from(u32::MAX) * 2 + 7)
    ];
    prop::collection::btree_map(-3000i32..3000, samples, 0..20).prop_map(|bins| bins.into_iter().collect())
}

fn series() -> impl Strategy<Value = Plain> {
    let resources = prop::collection::vec(
        (
            prop::sample::select(vec!["host", "device"]),
            prop::sample::select(vec!["a", "b", ""]),
        ),
        0..3,
    );
    let tags = prop::collection::btree_set("[a-c]:[a-c]{1,3}", 0..6);
    let origin = prop::sample::select(vec![(10, 10, 0), (10, 11, 28), (0, 0, 0), (i32::MAX, 0, 0)]);
    let metric = prop::sample::select(vec![
        MetricType::Count,
        MetricType::Rate,
        MetricType::Gauge,
        MetricType::Sketch,
    ]);
    let points = prop::collection::vec((any::<i32>(), value()), 0..4);
    let sketches = prop::collection::vec((any::<i32>(), [value(), value(), value()], bins()), 0..3);
    (
        (
            "[a-d]{0,2}",
            tags,
            resources,
            prop::sample::select(vec!["", "jmx"]),
            origin,
        ),
        (
            prop::sample::select(vec!["", "byte"]),
            metric,
            any::<bool>(),
            any::<u32>(),
        ),
        (points, sketches),
    )
        .prop_map(
            |(
                (name, tags, resources, source_type, origin),
                (unit, metric, not_indexed, interval),
                (points, sketches),
            )| {
                let is_sketch = metric == MetricType::Sketch;
                let points = points.iter().map(|(at, value)| (i64::from(*at), value.to_bits()));
                let sketches = sketches.iter().map(|(at, summary, bins)| {
                    let count = bins.iter().map(|(_, samples)| samples).sum();
                    (i64::from(*at), summary.map(f64::to_bits), count, bins.clone())
                });
                Plain {
                    name,
                    tags,
                    resources: resources
                        .into_iter()
                        .map(|(kind, name)| (kind.to_owned(), name.to_owned()))
                        .collect(),
                    source_type: source_type.to_owned(),
                    origin,
                    unit: unit.to_owned(),
                    metric,
                    not_indexed,
                    interval,
                    points: if is_sketch { Vec::new() } else { points.collect() },
                    sketches: if is_sketch { sketches.collect() } else { Vec::new() },
                }
            },
        )
}

/// Writes a series; `prefix`: its tags are a set that is spliced in, and others.
fn write(encoder: &mut Encoder, series: &Plain, prefix: bool) {
    let tags: Vec<&str> = series.tags.iter().map(String::as_str).collect();
    let (first, rest) = tags.split_at(if prefix { tags.len() / 2 } else { 0 });
    let first = encoder.tag_set(TagSet::default(), first.iter().copied());
    let (product, category, service) = series.origin;
    let (before, after) = series.name.split_at(series.name.len() / 2);
    let row = Row {
        name: encoder.name(&[before, after]),
        tags: encoder.tag_set(first, rest.iter().copied()),
        resources: encoder.resources(series.resources.iter().map(|(kind, name)| (&kind[..], &name[..]))),
        source_type: encoder.source_type(&series.source_type),
        origin: encoder.origin(Origin {
            product,
            category,
            service,
        }),
        unit: encoder.unit(&series.unit),
        metric: series.metric,
        not_indexed: series.not_indexed,
        interval: series.interval,
    };
    if series.metric == MetricType::Sketch {
        let points = series
            .sketches
            .iter()
            .map(|(timestamp, [sum, min, max], count, bins)| {
                let point = SketchPoint {
                    timestamp: *timestamp,
                    sum: f64::from_bits(*sum),
                    min: f64::from_bits(*min),
                    max: f64::from_bits(*max),
                    count: *count,
                };
                (point, bins.iter().copied())
            });
        encoder.sketches(&row, points);
    } else {
        let points = series
            .points
            .iter()
            .map(|(at, bits)| (*at, f64::from_bits(*bits)));
        encoder.row(&row, &points.collect::<Vec<_>>());
    }
}

/// The series of a payload, sorted.
fn read(bytes: &[u8]) -> Vec<Plain> {
    let payload = Payload::read(bytes).unwrap();
    let mut all: Vec<Plain> = payload
        .series()
        .map(|series| {
            let is_sketch = series.metric() == MetricType::Sketch;
            let (mut points, mut sketches) = (Vec::new(), Vec::new());
            for point in series.points() {
                if !is_sketch {
                    points.push((point.timestamp, point.value.to_bits()));
                    continue;
                }
                let (summary, bins) = series.sketch(point);
                assert!(bins.iter().all(|(_, samples)| *samples <= u64::from(u32::MAX)));
                let mut merged: Vec<(i32, u64)> = Vec::new();
                for (key, samples) in bins {
                    match merged.last_mut().filter(|(last, _)| last == key) {
                        Some((_, all)) => *all += samples,
                        None => merged.push((*key, *samples)),
                    }
                }
                let numbers = [summary.sum, summary.min, summary.max].map(f64::to_bits);
                sketches.push((summary.timestamp, numbers, summary.count, merged));
            }
            let origin = series.origin();
            let tags = series.tags();
            let set: BTreeSet<String> = tags.iter().map(|tag| (*tag).to_owned()).collect();
            assert_eq!(set.len(), tags.len(), "each tag once");
            Plain {
                name: series.name().to_owned(),
                tags: set,
                resources: series
                    .resources()
                    .iter()
                    .map(|(kind, name)| ((*kind).to_owned(), (*name).to_owned()))
                    .collect(),
                source_type: series.source_type().to_owned(),
                origin: (origin.product, origin.category, origin.service),
                unit: series.unit().to_owned(),
                metric: series.metric(),
                not_indexed: series.is_not_indexed(),
                interval: series.interval() as u32,
                points,
                sketches,
            }
        })
        .collect();
    all.sort();
    all
}

/// The most that a series takes, by the maxima of its parts.
fn most(series: &Plain) -> usize {
    let texts = series.tags.iter().map(|tag| tag.len() + TAG_BYTES_MAX);
    let resources = series.resources.iter();
    let resources = resources.map(|(kind, name)| kind.len() + name.len() + 2 * TAG_BYTES_MAX);
    let sketches = series.sketches.iter().map(|(_, _, _, bins)| {
        let bins = bins
            .iter()
            .map(|(_, samples)| 1 + (samples / u64::from(u32::MAX)) as usize);
        2 * POINT_BYTES_MAX + 16 + bins.sum::<usize>() * BIN_BYTES_MAX
    });
    texts.chain(resources).chain(sketches).sum::<usize>()
        + series.name.len()
        + series.source_type.len()
        + series.unit.len()
        + ROW_BYTES_MAX
        + series.points.len() * POINT_BYTES_MAX
}

/// Writes and reads all series, twice with one encoder. `sorts`: after which of them it sorts what it has.
fn write_and_read(mut all: Vec<Plain>, prefix: bool, sorts: &[bool]) {
    let mut encoder = Encoder::new(7);
    for _ in 0..2 {
        encoder.clear();
        for (series, sorts) in all.iter().zip(sorts) {
            let before = encoder.payload_bound();
            write(&mut encoder, series, prefix);
            let grown = encoder.payload_bound() - before;
            assert!(grown <= most(series), "{} of {}", grown, most(series));
            if *sorts {
                encoder.sort();
            }
        }
        let bound = encoder.payload_bound();
        encoder.sort();
        let payload = encoder.to_payload();
        assert_eq!(payload.len(), encoder.payload_len());
        assert!(payload.len() <= bound, "{} of {}", payload.len(), bound);
        all.sort();
        assert_eq!(read(&payload), all);

        // Series by series into another one.
        let mut copy = Encoder::new(8);
        Payload::read(&payload)
            .unwrap()
            .series()
            .for_each(|series| series.write(&mut copy));
        copy.sort();
        assert_eq!(read(&copy.to_payload()), all);
    }
}

/// A place in the order of the types that is taken by many equal series, and by a few that differ in one column.
#[test]
fn a_few_series_among_many_equal_ones_are_read() {
    let plain = Plain {
        name: String::new(),
        tags: BTreeSet::new(),
        resources: Vec::new(),
        source_type: String::new(),
        origin: (10, 10, 0),
        unit: String::new(),
        metric: MetricType::Count,
        not_indexed: false,
        interval: 0,
        points: Vec::new(),
        sketches: Vec::new(),
    };
    let mut all = vec![plain; 15];
    all[0].resources = vec![("device".to_owned(), String::new())];
    all[8].points = vec![(0, 0), (1, 0), (1, 0)];
    all[9].points = vec![(-1, 0)];
    all[11].source_type = "jmx".to_owned();
    all[13].origin = (10, 11, 28);
    write_and_read(all, false, &[false; 15]);
}

proptest! {
    #[test]
    fn what_was_written_is_read(
        all in prop::collection::vec(series(), 0..40),
        prefix in any::<bool>(),
        sorts in prop::collection::vec(any::<bool>(), 40),
    ) {
        write_and_read(all, prefix, &sorts);
    }

    #[test]
    fn columns_that_are_taken_in_pieces_are_the_same_payload(
        all in prop::collection::vec(series(), 1..40),
        every in 1usize..10,
    ) {
        let mut encoder = Encoder::new(7);
        let mut pieces = vec![Vec::new(); 27];
        let take = |encoder: &mut Encoder, pieces: &mut Vec<Vec<u8>>| {
            encoder.sort();
            for column in Column::ALL {
                pieces[column as usize].extend_from_slice(encoder.pending(column));
                encoder.take(column);
            }
            assert_eq!(encoder.pending_bound(), 0);
        };
        for (at, series) in all.iter().enumerate() {
            write(&mut encoder, series, false);
            if at % every == 0 {
                take(&mut encoder, &mut pieces);
            }
        }
        take(&mut encoder, &mut pieces);
        let mut payload = Vec::new();
        encoder.payload_header(&mut payload);
        for column in Column::ALL {
            encoder.column_header(&mut payload, column);
            payload.extend_from_slice(&pieces[column as usize]);
        }
        let mut all = all;
        all.sort();
        prop_assert_eq!(read(&payload), all);
    }

    #[test]
    fn no_bytes_are_read_beyond_their_end(
        all in prop::collection::vec(series(), 1..10),
        at in any::<prop::sample::Index>(),
        byte in any::<u8>(),
    ) {
        let mut encoder = Encoder::new(7);
        all.iter().for_each(|series| write(&mut encoder, series, true));
        encoder.sort();
        let mut payload = encoder.to_payload();
        let at = at.index(payload.len());
        let _ = Payload::read(&payload[..at]).map(|payload| payload.series().map(|series| series.tags().len()).sum::<usize>());
        payload[at] = byte;
        let _ = Payload::read(&payload).map(|payload| payload.series().map(|series| series.tags().len()).sum::<usize>());
    }
}

#[test]
fn neighbours_share_names_and_sets() {
    let mut encoder = Encoder::new(0);
    for tags in [["a:1", "b:1"], ["a:2", "b:1"]] {
        for name in ["y", "x"] {
            let row = Row {
                name: encoder.name(&[name]),
                tags: encoder.tag_set(TagSet::default(), tags.into_iter()),
                ..Row::new(MetricType::Gauge)
            };
            encoder.row(&row, &[(100, 1.0)]);
        }
    }
    encoder.sort();
    let numbers = |column: Column| {
        let mut rest = encoder.pending(column);
        std::iter::from_fn(|| weir_columns::wire::read_varint(&mut rest))
            .map(weir_columns::wire::unzigzag)
            .collect::<Vec<i64>>()
    };
    assert_eq!(numbers(Column::NameRefs), [1, 0, 1, 0]);
    assert_eq!(numbers(Column::TagSetRefs), [1, 1, -1, 1]);
    assert_eq!(numbers(Column::Timestamps), [100, 0, 0, 0]);
    assert_eq!(numbers(Column::TagSets), [2, 1, 1, 2, 2, 1]);
}

#[test]
fn a_set_that_splices_itself_in_many_times_is_refused() {
    let mut sets = Vec::new();
    let mut list = |numbers: &[i64]| {
        varint(&mut sets, zigzag(numbers.len() as i64));
        numbers
            .iter()
            .for_each(|number| varint(&mut sets, zigzag(*number)));
    };
    list(&[1]);
    for set in 1..40 {
        // The set before, and the set before.
        list(&[-set, 0]);
    }
    let mut columns = Vec::new();
    let mut column = |column: Column, bytes: &[u8]| {
        varint(&mut columns, u64::from((column as u32) << 3 | 2));
        varint(&mut columns, bytes.len() as u64);
        columns.extend_from_slice(bytes);
    };
    column(Column::Tags, b"\x01a");
    column(Column::TagSets, &sets);
    let mut payload = Vec::new();
    varint(&mut payload, u64::from(METRIC_DATA << 3 | 2));
    varint(&mut payload, columns.len() as u64);
    payload.extend_from_slice(&columns);
    let refused = Payload::read(&payload).err().unwrap();
    assert_eq!(refused.0, Some(Column::TagSets));
}

#[test]
fn each_series_has_its_smallest_type() {
    let mut encoder = Encoder::new(0);
    for (name, values) in [
        ("zero", &[0.0, 0.0][..]),
        ("whole", &[0.0, -3.0]),
        ("float", &[0.5, 3.0]),
        ("double", &[0.1, 3.0]),
    ] {
        let row = Row {
            name: encoder.name(&[name]),
            ..Row::new(MetricType::Count)
        };
        let points: Vec<(i64, f64)> = values.iter().map(|value| (0, *value)).collect();
        encoder.row(&row, &points);
    }
    encoder.sort();
    let payload = encoder.to_payload();
    let payload = Payload::read(&payload).unwrap();
    let types: Vec<ValueType> = payload.series().map(|series| series.values()).collect();
    assert_eq!(
        types,
        [
            ValueType::Zero,
            ValueType::Integer,
            ValueType::Float,
            ValueType::Double
        ]
    );
}
