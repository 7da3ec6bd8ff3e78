//! Columns and messages with the same samples give the same rows.

use std::collections::BTreeMap;
use std::sync::mpsc::channel;

use proptest::prelude::*;
use weir_aggregate::{AggregatorSettings, Batch, Value};
use weir_columns::decode::{Decoded, Endpoint, Limits};
use weir_columns::{Encoder, MetricType, Row, SketchPoint, TagSet};
use weir_context::{ContextLimits, HashSecret, NameFilter, RuleSettings, Rules};
use weir_ingest::{
    ColumnCounter, ColumnFate, ColumnPayload, Ingest, IngestCounter, IngestSettings, ListenerSettings,
    ParkingCounter, Received, SampleDrop, SeriesRejection,
};
use weir_protocol::ParseOptions;
use weir_sketch::Sketch;

const START: i64 = 1_700_000_000;
const WIDTH: i64 = 10;

fn settings(merge_within: Option<u32>) -> IngestSettings {
    let listener = ListenerSettings {
        parse: ParseOptions {
            timestamps: true,
            origin_client: true,
            ..ParseOptions::default()
        },
        merge_within,
        ..ListenerSettings::default()
    };
    IngestSettings {
        worker: 0,
        aggregator: AggregatorSettings::default(),
        rules: Rules::default(),
        limits: ContextLimits::default(),
        secret: HashSecret::from_random(1, 2),
        listeners: vec![listener],
    }
}

/// Series for one payload of each endpoint.
struct Columns {
    series: Encoder,
    sketches: Encoder,
}

impl Columns {
    fn new() -> Columns {
        Columns {
            series: Encoder::new(1),
            sketches: Encoder::new(1),
        }
    }

    fn numbers(
        &mut self,
        metric: MetricType,
        name: &str,
        tags: &[&str],
        interval: u32,
        points: &[(i64, f64)],
    ) {
        let row = row(&mut self.series, metric, name, tags, interval);
        self.series.row(&row, points);
    }

    fn sketch(&mut self, name: &str, tags: &[&str], timestamp: i64, sketch: &Sketch) {
        let row = row(&mut self.sketches, MetricType::Sketch, name, tags, 10);
        let point = SketchPoint {
            timestamp,
            sum: sketch.sum(),
            min: sketch.min(),
            max: sketch.max(),
            count: sketch.cnt(),
        };
        let bins = sketch.bins().into_owned();
        let bins = bins.into_iter().map(|bin| (i32::from(bin.k), u64::from(bin.n)));
        self.sketches.sketches(&row, std::iter::once((point, bins)));
    }

    /// Sends what there is.
    fn send(mut self, ingest: &mut Ingest, received: u64) {
        for (encoder, endpoint) in [
            (&mut self.series, Endpoint::Series),
            (&mut self.sketches, Endpoint::Sketches),
        ] {
            encoder.sort();
            let decoded = Decoded::read(encoder.to_payload(), endpoint, &Limits::default()).unwrap();
            let fate = apply(ingest, decoded, received);
            assert!(matches!(fate, Some(ColumnFate::Applied { .. })), "{fate:?}");
        }
    }
}

fn row(encoder: &mut Encoder, metric: MetricType, name: &str, tags: &[&str], interval: u32) -> Row {
    Row {
        name: encoder.name(&[name]),
        tags: encoder.tag_set(TagSet::default(), tags.iter().copied()),
        interval,
        ..Row::new(metric)
    }
}

fn apply(ingest: &mut Ingest, columns: Decoded, received: u64) -> Option<ColumnFate> {
    let (tell, told) = channel();
    ingest.columns(ColumnPayload {
        columns,
        listener: 0,
        pid: 0,
        local_data: None,
        external_data: None,
        number: None,
        bytes: 100,
        received,
        done: Box::new(move |fate| tell.send(fate).unwrap()),
    });
    told.try_recv().ok()
}

fn send(ingest: &mut Ingest, line: &str, received: u64) {
    ingest.packet(Received {
        bytes: line.as_bytes(),
        listener: 0,
        truncated: false,
        received,
    });
}

/// The rows of a batch: kind, name, host, tags and timestamp, with count, sum, minimum, maximum and bins of a sketch, or a value.
type Rows = BTreeMap<String, (Vec<f64>, Vec<(i16, u32)>)>;

fn add_rows(batch: &Batch, rows: &mut Rows) {
    for series in batch.series() {
        let tags: Vec<&str> = series.tags().collect();
        let key = format!(
            "{} {} {:?} {} {} {}",
            series.kind().as_str(),
            series.name(),
            series.explicit_host(),
            tags.join(","),
            series.timestamp(),
            series.is_timestamped(),
        );
        let value = match series.value() {
            Value::Counter(value) | Value::Gauge(value) => (vec![value], Vec::new()),
            Value::Distribution(sketch) => {
                let bins = sketch.bins().iter().map(|bin| (bin.k, bin.n)).collect();
                (
                    vec![sketch.cnt() as f64, sketch.min(), sketch.max(), sketch.sum()],
                    bins,
                )
            }
            Value::Set(_) | Value::Histogram(_) => unreachable!("nothing here sends these"),
        };
        assert!(rows.insert(key, value).is_none());
    }
}

/// Closes the open bucket.
fn flush(ingest: &mut Ingest, now: i64) -> Rows {
    assert!(ingest.counts()[0].balance(), "{:?}", ingest.counts()[0]);
    assert!(ingest.advance(now));
    let mut rows = Rows::new();
    while ingest.is_draining() {
        if let Some(batch) = ingest.drain(usize::MAX) {
            add_rows(&batch, &mut rows);
        }
    }
    while let Some(batch) = ingest.take_pass_through() {
        add_rows(&batch, &mut rows);
    }
    rows
}

#[derive(Clone, Debug)]
struct Sample {
    kind: usize,
    name: usize,
    tags: Vec<usize>,
    value: f64,
    /// Sends what was gathered before it.
    ends_window: bool,
    /// Seconds that pass before it.
    wait: i64,
    /// The process that takes it.
    process: usize,
}

const KINDS: [&str; 4] = ["c", "r", "g", "d"];
const TAGS: [&str; 5] = ["a:1", "b", "host:web", "z:\u{e9}", "dd.internal.card:low"];

fn samples() -> impl Strategy<Value = Vec<Sample>> {
    let value = prop_oneof![
        4 => (-4000i32..4000).prop_map(|value| f64::from(value) / 4.0),
        1 => Just(0.0),
        1 => Just(9_007_199_254_740_992.0),
    ];
    let sample = (
        0..KINDS.len(),
        0..3usize,
        prop::collection::vec(0..TAGS.len(), 0..4),
        value,
        prop::bool::weighted(0.2),
        prop_oneof![3 => Just(0i64), 1 => 0..14i64],
        0..2usize,
    );
    let sample = sample.prop_map(|(kind, name, tags, value, ends_window, wait, process)| Sample {
        kind,
        name,
        tags,
        value,
        ends_window,
        wait,
        process,
    });
    prop::collection::vec(sample, 1..80)
}

/// A client: what it has gathered in the current window.
#[derive(Default)]
struct Process {
    numbers: BTreeMap<(usize, usize, Vec<usize>), (f64, u64)>,
    sketches: BTreeMap<(usize, Vec<usize>), Sketch>,
}

impl Process {
    fn add(&mut self, sample: &Sample, received: u64) {
        let tags = sample.tags.clone();
        match KINDS[sample.kind] {
            "d" => {
                let sketch = self.sketches.entry((sample.name, tags)).or_default();
                sketch.insert(sample.value, 1);
            }
            kind => {
                let number = self.numbers.entry((sample.kind, sample.name, tags)).or_default();
                number.0 = if kind == "g" {
                    sample.value
                } else {
                    number.0 + sample.value
                };
                number.1 = received;
            }
        }
    }

    /// Gauges of another process may be newer, so each is sent with the time at which it was set.
    fn send(&mut self, ingest: &mut Ingest, timestamp: i64) {
        let mut columns = Columns::new();
        let tags = |tags: &[usize]| -> Vec<&str> { tags.iter().map(|tag| TAGS[*tag]).collect() };
        for ((name, of), sketch) in std::mem::take(&mut self.sketches) {
            columns.sketch(&format!("n{name}"), &tags(&of), timestamp, &sketch);
        }
        let mut gauges = Vec::new();
        for ((kind, name, of), (value, received)) in std::mem::take(&mut self.numbers) {
            let name = format!("n{name}");
            match KINDS[kind] {
                "c" => columns.numbers(MetricType::Count, &name, &tags(&of), 10, &[(timestamp, value)]),
                // Powers of two divide exactly.
                "r" => columns.numbers(
                    MetricType::Rate,
                    &name,
                    &tags(&of),
                    8,
                    &[(timestamp, value / 8.0)],
                ),
                _ => gauges.push((name, of, value, received)),
            }
        }
        columns.send(ingest, 0);
        for (name, of, value, received) in gauges {
            let mut columns = Columns::new();
            columns.numbers(MetricType::Gauge, &name, &tags(&of), 0, &[(timestamp, value)]);
            columns.send(ingest, received);
        }
    }
}

fn line(sample: &Sample) -> String {
    let tags: Vec<&str> = sample.tags.iter().map(|tag| TAGS[*tag]).collect();
    let kind = match KINDS[sample.kind] {
        "r" => "c",
        kind => kind,
    };
    let tags = match tags.is_empty() {
        true => String::new(),
        false => format!("|#{}", tags.join(",")),
    };
    format!("n{}:{}|{kind}{tags}", sample.name, sample.value)
}

fn compare(messages: &Rows, columns: &Rows) -> Result<(), TestCaseError> {
    let keys = |rows: &Rows| -> Vec<String> { rows.keys().cloned().collect() };
    prop_assert_eq!(keys(messages), keys(columns));
    for (key, (numbers, bins)) in messages {
        let (others, other_bins) = &columns[key];
        prop_assert_eq!(bins, other_bins, "{}", key);
        for (one, other) in numbers.iter().zip(others) {
            // Sums in another order differ in their last bits.
            let tolerance = 1e-12 * one.abs().max(1.0);
            prop_assert!(
                (one - other).abs() <= tolerance,
                "{} is {} and {}",
                key,
                one,
                other
            );
        }
    }
    Ok(())
}

proptest! {
    /// Two processes gather what a third agent gets as messages, and send it whenever they like within the bucket.
    #[test]
    fn the_same_samples_give_the_same_rows(samples in samples()) {
        let mut messages = Ingest::new(settings(Some(20)), START);
        let mut columns = Ingest::new(settings(Some(20)), START);
        let mut processes = [Process::default(), Process::default()];
        let (mut now, mut received) = (START, 1);
        for sample in &samples {
            let next = now + sample.wait;
            if next / WIDTH > now / WIDTH {
                for process in &mut processes {
                    process.send(&mut columns, now);
                }
                compare(&flush(&mut messages, next), &flush(&mut columns, next))?;
            }
            now = next;
            prop_assert!(messages.advance(now) && columns.advance(now));
            received += 1;
            send(&mut messages, &line(sample), received);
            let process = &mut processes[sample.process];
            if sample.ends_window {
                process.send(&mut columns, now);
            }
            process.add(sample, received);
        }
        for process in &mut processes {
            process.send(&mut columns, now);
        }
        compare(&flush(&mut messages, now + 2 * WIDTH), &flush(&mut columns, now + 2 * WIDTH))?;
        let counts = |ingest: &Ingest| ingest.aggregator().counts()[weir_aggregate::AggregateCounter::Distribution];
        prop_assert_eq!(counts(&messages), counts(&columns), "each sample of a sketch counts");
    }
}

fn value(rows: &Rows, part: &str) -> f64 {
    let mut found = rows.iter().filter(|(key, _)| key.contains(part));
    let (_, (numbers, _)) = found.next().unwrap_or_else(|| panic!("{part}: {rows:?}"));
    assert!(found.next().is_none(), "{part}: {rows:?}");
    numbers[0]
}

#[test]
fn points_of_one_bucket_are_added_to_messages_of_the_same_series() {
    let mut ingest = Ingest::new(settings(Some(20)), START);
    send(&mut ingest, "n:1|c|#a:1\nd:10|d|#a:1\ng:1|g|#a:1", 100);
    let mut columns = Columns::new();
    columns.numbers(
        MetricType::Count,
        "n",
        &["a:1"],
        10,
        &[(START, 2.0), (START + 3, 4.0)],
    );
    columns.numbers(MetricType::Rate, "n", &["a:1"], 10, &[(START, 0.8)]);
    columns.numbers(MetricType::Gauge, "g", &["a:1"], 0, &[(START, 5.0)]);
    let mut sketch = Sketch::new();
    sketch.insert(20.0, 3);
    columns.sketch("d", &["a:1"], START, &sketch);
    columns.send(&mut ingest, 200);
    let counts = ingest.counts()[0];
    assert_eq!(counts.columns[ColumnCounter::PointsMerged], 5);
    assert_eq!(counts.columns[ColumnCounter::Payloads], 2);
    assert_eq!(counts[IngestCounter::Messages], 3 + 4, "a series is a message");
    assert_eq!(counts[IngestCounter::SamplesAggregated], 3 + 4 + 3);
    let rows = flush(&mut ingest, START + WIDTH);
    assert_eq!(value(&rows, "counter n"), 1.0 + 6.0 + 8.0);
    assert_eq!(value(&rows, "gauge g"), 5.0);
    assert_eq!(value(&rows, "distribution d"), 4.0, "samples");
    assert_eq!(rows.len(), 3, "{rows:?}");
}

#[test]
fn the_newer_of_two_gauges_stays_whichever_comes_first() {
    let second = 1_000_000_000;
    let mut ingest = Ingest::new(settings(Some(20)), START);
    assert!(ingest.advance(START + 9));
    send(&mut ingest, "g:1|g", 8 * second);
    let gauge = |ingest: &mut Ingest, value, timestamp| {
        let mut columns = Columns::new();
        columns.numbers(MetricType::Gauge, "g", &[], 2, &[(timestamp, value)]);
        columns.send(ingest, 9 * second);
    };
    gauge(&mut ingest, 2.0, START + 3);
    gauge(&mut ingest, 3.0, START + 7);
    gauge(&mut ingest, 4.0, START + 4);
    assert_eq!(value(&flush(&mut ingest, START + WIDTH), "gauge g"), 3.0);
    // One of the bucket before does not count as newer.
    gauge(&mut ingest, 5.0, START + 5);
    assert_eq!(value(&flush(&mut ingest, START + 2 * WIDTH), "gauge g"), 5.0);
}

#[test]
fn a_payload_that_waited_in_vain_for_tags_is_counted() {
    let mut ingest = Ingest::new(settings(None), START);
    ingest.enable_origins(false);
    // The second one has no origin that tags would come for.
    for (tags, in_vain) in [(&["dd.internal.entity_id:pod-1"][..], 1), (&[], 1)] {
        let mut columns = Columns::new();
        columns.numbers(MetricType::Count, "n", tags, 10, &[(START, 2.0)]);
        columns.send(&mut ingest, 1);
        assert_eq!(ingest.origin_stats().parking[ParkingCounter::GaveUp], in_vain);
    }
    assert_eq!(value(&flush(&mut ingest, START + WIDTH), "counter n"), 4.0);
}

#[test]
fn late_points_keep_their_timestamp_and_are_merged_on_their_way() {
    let late = START - 60;
    for merge_within in [Some(20), None] {
        let mut ingest = Ingest::new(settings(merge_within), START);
        for _ in 0..2 {
            let mut columns = Columns::new();
            columns.numbers(
                MetricType::Count,
                "n",
                &[],
                10,
                &[
                    (late, 2.0),
                    (late + 10, 3.0),
                    (START, 1.0),
                    (START - 20, 1.0),
                    (START - 21, 1.0),
                ],
            );
            let mut sketch = Sketch::new();
            sketch.insert(1.0, 7);
            columns.sketch("d", &["b", "a"], late, &sketch);
            columns.send(&mut ingest, 1);
        }
        let passed_on = ingest.counts()[0].columns[ColumnCounter::PointsPassedOn];
        let merged = ingest.counts()[0].columns[ColumnCounter::PointsMerged];
        let rows = flush(&mut ingest, START + WIDTH);
        let row = |name: &str, timestamp: i64| value(&rows, &format!("{name} {timestamp} true"));
        assert_eq!(row("counter n None ", late), 4.0);
        assert_eq!(row("counter n None ", late + 10), 6.0);
        assert_eq!(row("counter n None ", START - 21), 2.0);
        assert_eq!(row("distribution d None a,b", late), 14.0);
        match merge_within {
            Some(_) => {
                assert_eq!((merged, passed_on), (4, 8));
                assert_eq!(value(&rows, &format!("counter n None  {START} false")), 4.0);
            }
            None => {
                assert_eq!((merged, passed_on), (0, 12), "as it was sent");
                assert_eq!(row("counter n None ", START), 2.0);
            }
        }
    }
}

#[test]
fn points_at_the_edges_of_the_bucket_go_where_they_belong() {
    let mut ingest = Ingest::new(settings(Some(20)), START);
    let last = START + WIDTH - 1;
    assert!(ingest.advance(last));
    let day = 24 * 60 * 60;
    // The open bucket takes what is at most 20 s old, and what is at most 20 s after its end.
    for (timestamp, merged, passed_on, dropped) in [
        (last, 1, 0, 0),
        (last - 20, 1, 0, 0),
        (last - 21, 0, 1, 0),
        (START + WIDTH + 19, 1, 0, 0),
        (START + WIDTH + 20, 0, 1, 0),
        (last + day, 0, 1, 0),
        (last + day + 1, 0, 0, 1),
    ] {
        let counted = |ingest: &Ingest| {
            let counts = &ingest.counts()[0];
            [
                counts.columns[ColumnCounter::PointsMerged],
                counts.columns[ColumnCounter::PointsPassedOn],
                counts.samples_dropped[SampleDrop::FutureTimestamp],
            ]
        };
        let before = counted(&ingest);
        let mut columns = Columns::new();
        columns.numbers(MetricType::Count, "edge", &[], 10, &[(timestamp, 1.0)]);
        columns.send(&mut ingest, 1);
        let after = counted(&ingest);
        let more: Vec<u64> = after
            .iter()
            .zip(before)
            .map(|(after, before)| after - before)
            .collect();
        assert_eq!(more, [merged, passed_on, dropped], "{}", timestamp - last);
    }
    // One that arrives after its bucket is added to the next one.
    let rows = flush(&mut ingest, START + WIDTH);
    assert_eq!(value(&rows, &format!("edge None  {START} false")), 3.0);
    let mut columns = Columns::new();
    columns.numbers(MetricType::Count, "edge", &[], 10, &[(last, 1.0)]);
    columns.send(&mut ingest, 1);
    let rows = flush(&mut ingest, START + 2 * WIDTH);
    let next = START + WIDTH;
    assert_eq!(value(&rows, &format!("edge None  {next} false")), 1.0);
}

#[test]
fn what_is_no_sample_is_dropped_with_its_reason() {
    let mut ingest = Ingest::new(settings(Some(20)), START);
    let day = 24 * 60 * 60;
    let mut columns = Columns::new();
    columns.numbers(
        MetricType::Gauge,
        "g",
        &[],
        0,
        &[
            (START, f64::NAN),
            (START, f64::INFINITY),
            (0, 1.0),
            (-5, 1.0),
            (START + day + 1, 1.0),
            (START * 1000, 1.0),
            (START, 7.0),
        ],
    );
    columns.numbers(MetricType::Count, "bad|name", &[], 0, &[(START, 1.0)]);
    columns.send(&mut ingest, 1);
    let counts = ingest.counts()[0];
    let dropped = |reason| counts.samples_dropped[reason];
    assert_eq!(dropped(SampleDrop::NonFinite), 2);
    assert_eq!(dropped(SampleDrop::BadTimestamp), 2);
    assert_eq!(dropped(SampleDrop::FutureTimestamp), 2);
    assert_eq!(counts.series_rejected[SeriesRejection::BadName], 1);
    assert_eq!(counts[IngestCounter::Samples], 7);
    assert_eq!(value(&flush(&mut ingest, START + WIDTH), "gauge g"), 7.0);
}

#[test]
fn filters_and_limits_apply_as_to_messages() {
    let filtered = RuleSettings {
        filter: NameFilter::new(vec!["secret".to_owned()], false),
        ..RuleSettings::default()
    };
    let settings = IngestSettings {
        rules: Rules::new(filtered),
        limits: ContextLimits {
            contexts_max: 2,
            ..ContextLimits::default()
        },
        ..settings(Some(20))
    };
    let mut ingest = Ingest::new(settings, START);
    let mut columns = Columns::new();
    for name in ["secret", "a", "b", "c", "d"] {
        columns.numbers(
            MetricType::Count,
            name,
            &["t:1"],
            10,
            &[(START, 1.0), (START - 100, 1.0)],
        );
        columns.numbers(MetricType::Gauge, name, &["t:1"], 10, &[(START, 1.0)]);
    }
    columns.send(&mut ingest, 1);
    let counts = ingest.counts()[0];
    assert_eq!(counts.samples_dropped[SampleDrop::Filtered], 3);
    assert!(counts[IngestCounter::SamplesOverflowed] > 0, "{counts:?}");
    assert!(counts.samples_dropped[SampleDrop::ContextLimit] > 0, "{counts:?}");
    let rows = flush(&mut ingest, START + WIDTH);
    assert!(!rows.keys().any(|key| key.contains("secret")), "{rows:?}");
    assert!(
        rows.keys().any(|key| key.contains("weir_overflow:true")),
        "{rows:?}"
    );
}
