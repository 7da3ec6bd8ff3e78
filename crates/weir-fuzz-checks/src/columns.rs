//! Bodies of requests with columns: any bytes are a payload or are refused with a reason, in the memory that they may take, and what is
//! read is what a worker adds.

use std::sync::mpsc::channel;

use weir_columns::decode::{Decoded, Endpoint, Limits, Points, Series};
use weir_columns::{Encoder, MetricType, Row, SketchPoint, TagSet};
use weir_ingest::{ColumnFate, ColumnPayload, Ingest, RequestNumber};
use weir_process::columns::body::{self, Coding};

use crate::lines;

/// Memory for one payload.
const BYTES: usize = 1 << 20;

/// The first byte chooses endpoint and compression, and the rest is the body.
pub fn columns(bytes: &[u8]) {
    let Some((&choice, body)) = bytes.split_first() else {
        return;
    };
    let endpoint = match choice & 1 {
        0 => Endpoint::Series,
        _ => Endpoint::Sketches,
    };
    let coding = match choice >> 1 & 3 {
        0 => Coding::Identity,
        1 => Coding::Zstd,
        2 => Coding::Gzip,
        _ => Coding::Deflate,
    };
    let read = || body::read(body, coding, endpoint, BYTES);
    let decoded = match read() {
        Ok(decoded) => decoded,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    if coding == Coding::Identity {
        assert!(decoded.heap_bytes() <= BYTES, "{} bytes", decoded.heap_bytes());
    }
    round_trip(&decoded, endpoint);
    let again = || read().expect("it was read before");
    let cached = added(decoded, usize::MAX, None);
    assert_eq!(cached, added(again(), 0, None), "without the alias cache");
    let number = RequestNumber {
        client: 7,
        number: 1,
        oldest: 1,
    };
    let repeated = lines(usize::MAX, |ingest| {
        assert!(matches!(
            add(ingest, again(), Some(number)),
            ColumnFate::Added { .. }
        ));
        assert!(matches!(
            add(ingest, again(), Some(number)),
            ColumnFate::Duplicate { .. }
        ));
    });
    assert_eq!(cached.1, repeated.1, "a repetition is added once");
}

/// Counts and rows after a payload with these columns.
fn added(
    columns: Decoded,
    alias_bytes_max: usize,
    number: Option<RequestNumber>,
) -> (weir_ingest::IngestCounts, Vec<String>) {
    let mut columns = Some(columns);
    lines(alias_bytes_max, |ingest| {
        if let Some(columns) = columns.take() {
            assert_eq!(add(ingest, columns, number), ColumnFate::Applied { limited: 0 });
        }
    })
}

fn add(ingest: &mut Ingest, columns: Decoded, number: Option<RequestNumber>) -> ColumnFate {
    let (tell, told) = channel();
    ingest.columns(ColumnPayload {
        columns,
        listener: 0,
        pid: 0,
        local_data: None,
        external_data: None,
        number,
        bytes: 1,
        received: 1,
        done: Box::new(move |fate| tell.send(fate).expect("it is waited for")),
    });
    told.try_recv().expect("a payload is answered")
}

/// A payload that was read can be written, and is read as the same.
fn round_trip(decoded: &Decoded, endpoint: Endpoint) {
    let mut encoder = Encoder::new(1);
    for at in 0..decoded.len() {
        write(decoded, &decoded.series(at), &mut encoder);
    }
    encoder.sort();
    let limits = Limits {
        bytes: 64 * BYTES,
        ..Limits::default()
    };
    let again = match Decoded::read(encoder.to_payload(), endpoint, &limits) {
        Ok(again) => again,
        Err(error) => panic!("the reader refuses a payload of the writer: {error}"),
    };
    assert_eq!(plain(decoded), plain(&again));
}

fn write(decoded: &Decoded, series: &Series<'_>, encoder: &mut Encoder) {
    let row = Row {
        name: encoder.name(&[series.name]),
        tags: encoder.tag_set(TagSet::default(), series.tags.split(',')),
        interval: series.interval,
        ..Row::new(series.kind)
    };
    match series.points {
        Points::Numbers(points) => {
            let points: Vec<(i64, f64)> = points
                .iter()
                .map(|point| (point.timestamp, point.value))
                .collect();
            encoder.row(&row, &points);
        }
        Points::Sketches(points) => {
            let points = points.iter().map(|point| {
                let bins = decoded.bins(point).iter();
                let bins = bins.map(|bin| (i32::from(bin.k), u64::from(bin.n)));
                let summary = SketchPoint {
                    timestamp: point.timestamp,
                    sum: point.sum,
                    min: point.min,
                    max: point.max,
                    count: point.count,
                };
                (summary, bins)
            });
            encoder.sketches(&row, points);
        }
    }
}

/// The series as texts, sorted.
fn plain(decoded: &Decoded) -> Vec<String> {
    let mut all: Vec<String> = (0..decoded.len())
        .map(|at| one(decoded, &decoded.series(at)))
        .collect();
    all.sort_unstable();
    all
}

fn one(decoded: &Decoded, series: &Series<'_>) -> String {
    let mut tags: Vec<&str> = series.tags.split(',').filter(|tag| !tag.is_empty()).collect();
    tags.sort_unstable();
    let points = match series.points {
        // A zero that is negative is printed as such.
        Points::Numbers(points) => format!("{points:?}"),
        Points::Sketches(points) => {
            let bins = |point| decoded.bins(point).iter().map(|bin| (bin.k, bin.n));
            let points = points.iter().map(|point| {
                let range = (point.sum, point.min, point.max);
                (
                    point.timestamp,
                    point.count,
                    range,
                    bins(point).collect::<Vec<_>>(),
                )
            });
            format!("{:?}", points.collect::<Vec<_>>())
        }
    };
    assert!(
        series.kind != MetricType::Rate || series.interval > 0,
        "{series:?}"
    );
    assert!(
        !series.tags.contains(['|', '\n']) && !series.name.contains(['|', ':', '\n']),
        "{series:?} is not the text of a message"
    );
    format!(
        "{:?} {:?} {tags:?} {} {points}",
        series.kind, series.name, series.interval
    )
}
