//! Properties that hold for any bytes. The fuzzer searches for inputs that violate them; the tests replay the inputs that the fuzzer has
//! kept (`fuzz/corpus`, an input per line).
//!
//! Every function accepts any input and panics if its property is violated.

use std::sync::Arc;

use weir_aggregate::{AggregatorSettings, Batch, Expansion};
use weir_context::{ContextLimits, HashSecret, Rules};
use weir_ingest::{Ingest, IngestCounter, IngestCounts, IngestSettings, ListenerSettings, Received};
use weir_origin::cgroup::{container_of_groups, is_container_id};
use weir_origin::{Cardinality, Description};
use weir_output::delivery::{Encode, Encoded, Items};
use weir_output::json_lines::LinesEncoder;
use weir_protocol::{
    Message, ParseOptions, encode_check, encode_event, encode_metric, parse_line, parse_packet,
};
use weir_state::{Bounds, Header, Record, RecordSeries, Table, decode_body};

mod admin;
mod columns;
mod identity;
mod log;
mod queue;

pub use admin::admin;
pub use columns::columns;
pub use identity::identity;
pub use log::log;
pub use queue::queue;

/// Panics if the bytes violate its property.
pub type Check = fn(&[u8]);

/// Every property, by its name: that of its inputs in `fuzz/corpus`.
pub const TARGETS: [(&str, Check); 13] = [
    ("packet", packet),
    ("event", event),
    ("check", check),
    ("stream", stream),
    ("configuration", configuration),
    ("identity", identity),
    ("queue", queue),
    ("log", log),
    ("cgroup", cgroup),
    ("origin", origin),
    ("admin", admin),
    ("state", state),
    ("columns", columns),
];

const ALL: ParseOptions = ParseOptions {
    origin_client: true,
    timestamps: true,
    eol_required: false,
};

/// A packet means the same with and without the alias cache, on the first sight and on the third, and the books balance.
pub fn packet(bytes: &[u8]) {
    for parsed in parse_packet(bytes, &ALL) {
        round_trip(&parsed);
    }
    let cached = run(bytes, usize::MAX);
    let uncached = run(bytes, 0);
    assert_eq!(cached, uncached);
}

/// `_e{` and these bytes: accepted or refused, and accepted events survive a round trip.
pub fn event(bytes: &[u8]) {
    round_trip(&parse_line(&[b"_e{", bytes].concat(), &ALL));
}

/// `_sc|` and these bytes.
pub fn check(bytes: &[u8]) {
    round_trip(&parse_line(&[b"_sc|", bytes].concat(), &ALL));
}

/// A stream in pieces gives the frames that a naive framer finds.
pub fn stream(bytes: &[u8]) {
    weir_listener::check::stream_framing(bytes);
}

/// A configuration file is a configuration or a list of problems with messages.
pub fn configuration(bytes: &[u8]) {
    if let Err(problems) = weir_system::config::load_content(bytes) {
        assert!(!problems.0.is_empty());
        for problem in problems.0 {
            assert!(!problem.to_string().is_empty());
        }
    }
}

/// The lines of a `cgroup` file: a found id is in them and has the form of an id, and is found in any order of equivalent lines.
pub fn cgroup(bytes: &[u8]) {
    // At the end of the text it would belong to the path, before a further line to the line's end.
    let text = String::from_utf8_lossy(bytes).replace('\r', "");
    let found = container_of_groups(&text);
    if let Some(container) = found {
        assert!(is_container_id(container), "{container:?}");
        assert!(text.contains(container));
    }
    let twice = format!("{text}\n{text}");
    assert_eq!(container_of_groups(&twice), found);
    // The name of a process may contain anything, even the fields that precede a start time.
    let stat = format!("7 ({text}) S 1 7 7 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 4711 1 1");
    assert_eq!(weir_origin::check::start_time(&stat), Some(4711));
}

/// The answers of Docker and the kubelet, and a file of tags: the first byte says which. They are read or refused, and
/// their tags are valid in a message.
pub fn origin(bytes: &[u8]) {
    let Some((&which, json)) = bytes.split_first() else {
        return;
    };
    let described = match which % 3 {
        0 => weir_origin::check::docker(json),
        1 => weir_origin::check::kubelet(json),
        _ => weir_origin::check::file(json),
    };
    for Description { tags, .. } in described.unwrap_or_default() {
        for tag in tags.up_to(Cardinality::High) {
            assert!(
                !tag.is_empty() && !tag.contains([',', '|', '\n', '\r']),
                "{tag:?}"
            );
            assert!(weir_protocol::special_tag(tag).is_none(), "{tag:?}");
        }
    }
}

/// Bytes are looked at as a record, and as the body of one, which no checksum stands before.
pub fn state(bytes: &[u8]) {
    let decoded = Record::decode(bytes);
    assert_eq!(decoded.as_ref().map(Record::len).ok(), series_one_by_one(bytes));
    check_record(decoded);
    let header = Header {
        bucket_start: 1_700_000_000,
        bucket_width: 10,
        parts: 1,
        ..Header::default()
    };
    check_record(decode_body(header, bytes.to_vec()));
}

/// Number of series of a record that is read one series at a time.
fn series_one_by_one(bytes: &[u8]) -> Option<usize> {
    let (mut series, mut count) = (RecordSeries::decode(bytes).ok()?, 0);
    while series.next_series().ok()?.is_some() {
        count += 1;
    }
    Some(count)
}

fn check_record(decoded: Result<Record, weir_state::Error>) {
    let record = match decoded {
        Ok(record) => record,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    let mut table = Table::new(Bounds::NONE);
    table.add_record(&record);
    let (written, too_large) = table.encode(&record.header);
    assert_eq!(too_large.series, 0);
    if let [one] = &written[..] {
        let again = Record::decode(one).expect("what was written is a record");
        assert!(again.body() == record.body(), "another way to write the same");
    }
    // A state stays valid when it becomes a summary or is repeated.
    let mut small = Table::new(Bounds {
        members: 1,
        member_bytes: 1,
        samples: 1,
    });
    small.add_record(&record);
    small.add_record(&record);
    assert_eq!(small.len(), record.len());
}

fn round_trip(parsed: &Result<Message<'_>, weir_protocol::ErrorClass>) {
    let Ok(message) = parsed else { return };
    let mut line = Vec::new();
    match message {
        Message::Metric(metric) => encode_metric(metric, &mut line),
        Message::Event(event) => encode_event(event, &mut line),
        Message::Check(check) => encode_check(check, &mut line),
    }
    // A line feed cannot come out of one line; a carriage return at the very end would be taken for a line ending.
    assert!(!line.contains(&b'\n') || matches!(message, Message::Event(_) | Message::Check(_)));
    let again = parse_line(&line, &ALL);
    assert!(
        again.is_ok(),
        "{message:?} became {:?}: {again:?}",
        line.escape_ascii().to_string()
    );
}

/// Three times the same packet in one bucket: counts, and everything flushed as sorted lines.
fn run(bytes: &[u8], alias_bytes_max: usize) -> (IngestCounts, Vec<String>) {
    lines(alias_bytes_max, |ingest| {
        for _ in 0..3 {
            ingest.packet(Received {
                bytes,
                listener: 0,
                truncated: false,
                received: 1,
            });
        }
    })
}

/// Counts, and everything flushed as sorted lines, after one bucket.
fn lines(alias_bytes_max: usize, feed: impl FnOnce(&mut Ingest)) -> (IngestCounts, Vec<String>) {
    let now = 1_700_000_000;
    let listener = ListenerSettings {
        merge_within: Some(20),
        ..ALL.into()
    };
    let settings = IngestSettings {
        worker: 0,
        aggregator: AggregatorSettings::default(),
        rules: Rules::default(),
        limits: ContextLimits {
            alias_bytes_max,
            ..ContextLimits::default()
        },
        secret: HashSecret::from_random(1, 2),
        listeners: vec![listener],
    };
    let mut ingest = Ingest::new(settings, now);
    feed(&mut ingest);
    assert!(ingest.counts()[0].balance(), "{:?}", ingest.counts()[0]);
    assert!(ingest.advance(now + 10));
    let mut encoder = LinesEncoder::new(Arc::new(Expansion::default()), 1 << 20);
    let counter = encoder.counter();
    let mut out = Encoded::default();
    let mut announced = Items::default();
    let mut encode = |batch: &Batch| {
        announced += counter(batch);
        encoder.encode(batch, &mut out);
    };
    while ingest.is_draining() {
        if let Some(batch) = ingest.drain(usize::MAX) {
            batch.timestamped.iter().for_each(&mut encode);
            encode(&batch);
        }
    }
    while let Some(batch) = ingest.take_pass_through() {
        encode(&batch);
    }
    let encoded: Items = out
        .payloads
        .iter()
        .map(|draft| Items::of(draft.class, u64::from(draft.count)))
        .sum();
    assert_eq!(announced, encoded);
    let text: Vec<u8> = out.payloads.into_iter().flat_map(|draft| draft.body).collect();
    let mut lines: Vec<String> = String::from_utf8(text)
        .expect("JSON is text")
        .lines()
        .map(str::to_string)
        .collect();
    lines.sort_unstable();
    // These alone depend on the cache: bytes seen before are not looked at again.
    let mut counts = IngestCounts {
        lines_slow: Default::default(),
        ..ingest.counts()[0]
    };
    counts[IngestCounter::UnknownSections] = 0;
    (counts, lines)
}
