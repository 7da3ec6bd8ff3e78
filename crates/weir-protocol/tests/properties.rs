//! Any bytes are harmless, and what is accepted survives a round trip.
#![allow(clippy::disallowed_methods, reason = "tests read the vectors")]

use proptest::prelude::*;
use weir_protocol::{
    Message, ParseOptions, Values, encode_check, encode_event, encode_metric, parse_line, parse_packet,
};

const ALL: ParseOptions = ParseOptions {
    origin_client: true,
    timestamps: true,
    eol_required: false,
};

/// Bytes that the grammar cares about are drawn often, so that random input gets past the first separator.
fn protocol_bytes() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![
        4 => prop::sample::select(b"|:,#@T\n\r{}_escgdhm0123456789.-+ec:ni".to_vec()),
        1 => any::<u8>(),
    ];
    prop::collection::vec(byte, 0..200)
}

fn encode(message: &Message<'_>) -> Vec<u8> {
    let mut line = Vec::new();
    match message {
        Message::Metric(metric) => encode_metric(metric, &mut line),
        Message::Event(event) => encode_event(event, &mut line),
        Message::Check(check) => encode_check(check, &mut line),
    }
    line
}

/// Everything a message means, without the text of its numbers.
fn meaning(message: &Message<'_>) -> String {
    match message {
        Message::Metric(metric) => {
            let values = match metric.values {
                Values::Member(member) => member.to_string(),
                Values::Numbers(numbers) => format!("{:?}", numbers.iter().collect::<Vec<_>>()),
            };
            let tags: Vec<_> = metric.tags.iter().collect();
            format!(
                "{} {:?} {values} {} {tags:?} {:?} {:?}",
                metric.name, metric.kind, metric.rate, metric.timestamp, metric.origin
            )
        }
        Message::Event(event) => {
            let tags: Vec<_> = event.tags.iter().collect();
            format!(
                "{:?} {tags:?}",
                weir_protocol::Event {
                    tags: Default::default(),
                    ..*event
                }
            )
        }
        Message::Check(check) => {
            let tags: Vec<_> = check.tags.iter().collect();
            format!(
                "{:?} {tags:?}",
                weir_protocol::ServiceCheck {
                    tags: Default::default(),
                    ..*check
                }
            )
        }
    }
}

proptest! {
    #[test]
    fn any_bytes_never_panic(packet in protocol_bytes()) {
        for parsed in parse_packet(&packet, &ALL) {
            let _ = parsed;
        }
    }

    #[test]
    fn parse_of_encode_is_identity(packet in protocol_bytes()) {
        for message in parse_packet(&packet, &ALL).flatten() {
            let line = encode(&message);
            let again = parse_line(&line, &ALL);
            prop_assert!(again.is_ok(), "{:?} became {:?}: {:?}", message, String::from_utf8_lossy(&line), again);
            prop_assert_eq!(meaning(&message), meaning(&again.unwrap()));
        }
    }

    #[test]
    fn a_bad_line_leaves_its_neighbours_alone(garbage in prop::collection::vec(any::<u8>(), 0..60)) {
        let garbage: Vec<u8> = garbage.into_iter().filter(|&byte| byte != b'\n').collect();
        let packet = [b"before:1|c\n".as_slice(), &garbage, b"\nafter:2|g|#k:v"].concat();
        let parsed: Vec<_> = parse_packet(&packet, &ALL).collect();
        prop_assert!(matches!(parsed.first(), Some(Ok(Message::Metric(metric))) if metric.name == "before"));
        prop_assert!(matches!(parsed.last(), Some(Ok(Message::Metric(metric))) if metric.name == "after"));
    }
}

#[test]
fn every_truncation_of_every_vector_is_harmless() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/vectors/protocol.jsonl");
    for line in std::fs::read_to_string(path).unwrap().lines() {
        let vector: serde_json::Value = serde_json::from_str(line).unwrap();
        let Some(input) = vector["input"].as_str() else {
            continue;
        };
        for end in 0..input.len() {
            for parsed in parse_packet(&input.as_bytes()[..end], &ALL) {
                let _ = parsed;
            }
        }
    }
}
