//! Properties that hold for any bytes. The fuzzer searches for inputs that violate them; the tests replay the inputs that the fuzzer has
//! kept (`fuzz/corpus`, an input per line).
//!
//! Every function accepts any input and panics if its property is violated.

use std::sync::Arc;

use weir_aggregate::{AggregatorSettings, Batch, Expansion};
use weir_context::{ContextLimits, HashSecret, Rules};
use weir_ingest::{Ingest, IngestCounter, IngestCounts, IngestSettings, ListenerSettings, Received};
use weir_output::delivery::{Encode, Encoded, Items};
use weir_output::json_lines::LinesEncoder;
use weir_protocol::{
    Message, ParseOptions, encode_check, encode_event, encode_metric, parse_line, parse_packet,
};

mod admin;
mod columns;
mod identity;
mod log;
mod origin;
mod queue;
mod state;

pub use admin::admin;
pub use columns::columns;
pub use identity::identity;
pub use log::log;
pub use origin::{cgroup, origin};
pub use queue::queue;
pub use state::state;

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
