//! The tables of `docs/protocol.md`: each message is read as its row says.

use serde_json::{Map, Value};
use weir_protocol::{ParseOptions, json::packet_to_json};

const PAGE: &str = include_str!("../../../docs/protocol.md");

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
