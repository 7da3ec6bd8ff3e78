//! The shared protocol vectors, and the tables of `docs/protocol.md`, run through the parser.
#![allow(clippy::disallowed_methods, reason = "tests read the vectors")]

use serde_json::{Map, Value};
use weir_protocol::json::{enrichment_to_json, packet_to_json};
use weir_protocol::{ParseOptions, parse_packet};

const VECTORS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/vectors/protocol.jsonl");

const PAGE: &str = include_str!("../../../docs/protocol.md");

#[test]
fn every_vector() {
    let text = std::fs::read_to_string(VECTORS).expect("the vectors are in the repository");
    let mut failures = Vec::new();
    let mut count = 0;
    for line in text.lines() {
        let vector: Value = serde_json::from_str(line).expect("a vector is one JSON object per line");
        count += 1;
        if let Err(difference) = check(&vector) {
            failures.push(format!("{}: {difference}", vector["id"]));
        }
    }
    assert!(count > 200, "only {count} vectors found");
    assert!(
        failures.is_empty(),
        "{} of {count} failed:\n{}",
        failures.len(),
        failures.join("\n")
    );
}

fn check(vector: &Value) -> Result<(), String> {
    let packet = input(vector);
    let options = options(vector);
    let got = packet_to_json(&packet, &options);
    let expected = match vector.get("error") {
        Some(class) => serde_json::json!([{ "error": class }]),
        None => vector["expect"].clone(),
    };
    if !equal(&got, &expected) {
        return Err(format!("expected {expected}, got {got}"));
    }
    if let Some(expected) = vector.get("enrich") {
        let first = parse_packet(&packet, &options)
            .next()
            .expect("an element")
            .expect("accepted");
        let got = enrichment_to_json(&first);
        if !equal(&got, expected) {
            return Err(format!("enrich: expected {expected}, got {got}"));
        }
    }
    Ok(())
}

/// Equality in which 1 and 1.0 are the same number, compared exactly as floats.
fn equal(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => {
            if a.is_f64() || b.is_f64() {
                a.as_f64() == b.as_f64()
            } else {
                a == b
            }
        }
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| equal(a, b)),
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len()
                && a.iter()
                    .all(|(key, value)| b.get(key).is_some_and(|other| equal(value, other)))
        }
        _ => a == b,
    }
}

fn options(vector: &Value) -> ParseOptions {
    let switch = |key: &str, default: bool| {
        vector["config"]
            .get(key)
            .map_or(default, |value| value == &Value::Bool(true))
    };
    ParseOptions {
        origin_client: switch("origin_client", true),
        timestamps: switch("timestamps", true),
        eol_required: switch("eol_required", false),
    }
}

fn input(vector: &Value) -> Vec<u8> {
    match vector.get("input_b64") {
        Some(encoded) => decode_base64(encoded.as_str().expect("text")),
        None => vector["input"].as_str().expect("text").as_bytes().to_vec(),
    }
}

fn decode_base64(encoded: &str) -> Vec<u8> {
    let mut bits = 0u32;
    let mut bit_count = 0;
    let mut out = Vec::new();
    for byte in encoded.bytes().filter(|&byte| byte != b'=') {
        let value = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => panic!("not base64: {encoded}"),
        };
        bits = bits << 6 | u32::from(value);
        bit_count += 6;
        if bit_count >= 8 {
            bit_count -= 8;
            out.push((bits >> bit_count) as u8);
        }
    }
    out
}

/// Rows of the tables headed "message | read as": the message, and a part of what it is read as.
fn rows() -> Vec<(String, Map<String, Value>)> {
    let mut rows = Vec::new();
    let mut inside = false;
    for line in PAGE.lines() {
        if !line.starts_with("| `") {
            inside = line.starts_with("| message | read as |") || inside && line.starts_with("| ---");
        } else if inside {
            let cells = line.replace(r"\|", "\0");
            let cell = |index| cells.split('|').nth(index).unwrap().trim().trim_matches('`');
            let message = cell(1).replace('\0', "|").replace(r"\r", "\r");
            let fields = format!("{{{}}}", cell(2).replace('\0', "|"));
            rows.push((
                message,
                serde_json::from_str(&fields).unwrap_or_else(|e| panic!("{line}: {e}")),
            ));
        }
    }
    rows
}

/// Numbers are compared by value: the page writes `1` where the parser prints `1.0`.
fn same(written: &Value, read: &Value) -> bool {
    match (written, read) {
        (Value::Number(a), Value::Number(b)) => a.as_f64() == b.as_f64(),
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b)),
        _ => written == read,
    }
}

#[test]
fn every_row_is_parsed_as_documented() {
    let options = ParseOptions {
        origin_client: true,
        timestamps: true,
        eol_required: false,
    };
    let rows = rows();
    assert!(rows.len() > 50, "{} rows found", rows.len());
    for (message, fields) in rows {
        let read = packet_to_json(message.as_bytes(), &options);
        let [element] = read.as_array().unwrap().as_slice() else {
            panic!("{message:?} is {read}");
        };
        for (field, written) in &fields {
            assert!(
                same(written, &element[field]),
                "{message:?}: {field} is not {written} in {read}"
            );
        }
    }
}
