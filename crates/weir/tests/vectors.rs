//! The shared vectors through the binary: `weir parse` prints what the parser, which has its own test against the expected
//! results, makes of each packet.

use std::io::Write;
use std::process::{Command, Stdio};

use serde_json::Value;
use weir_protocol::ParseOptions;
use weir_protocol::json::packet_to_json;

#[test]
fn parse_prints_every_vector() {
    let text = std::fs::read_to_string(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../tests/vectors/protocol.jsonl"
    ))
    .unwrap();
    let mut count = 0;
    for line in text.lines() {
        let vector: Value = serde_json::from_str(line).unwrap();
        // Packets that are no text are the parser's own test's affair: they differ in nothing on the way through here.
        let Some(input) = vector["input"].as_str() else {
            continue;
        };
        let switch = |key: &str, default: bool| {
            vector["config"]
                .get(key)
                .map_or(default, |value| value == &Value::Bool(true))
        };
        let options = ParseOptions {
            origin_client: switch("origin_client", true),
            timestamps: switch("timestamps", true),
            eol_required: switch("eol_required", false),
        };
        let mut child = Command::new(env!("CARGO_BIN_EXE_weir"))
            .arg("parse")
            .arg(format!("--origin-client={}", options.origin_client))
            .arg(format!("--timestamps={}", options.timestamps))
            .arg(format!("--eol-required={}", options.eol_required))
            .arg("-")
            .env_clear()
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(
            output.status.success(),
            "{}: a rejected line is an answer, not a failure",
            vector["id"]
        );
        let printed: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(
            printed,
            packet_to_json(input.as_bytes(), &options),
            "{}",
            vector["id"]
        );
        count += 1;
    }
    assert!(count > 200, "{count}");
}
