//! Replays what the fuzzer has kept. `fuzz/corpus.py` writes the files.

use std::path::Path;

fn replay(target: &str, check: fn(&[u8])) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../fuzz/corpus")
        .join(target)
        .with_extension("txt");
    let inputs = std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    for line in inputs.lines() {
        println!("{line}");
        check(&bytes(line));
    }
    let count = inputs.lines().count();
    assert!(count >= 5, "{target}: only {count} inputs in {}", file.display());
}

/// The bytes of an input: visible ASCII, and escapes for everything else.
fn bytes(line: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = line.as_bytes();
    while let Some((&first, more)) = rest.split_first() {
        let escape = if first == b'\\' { more.first() } else { None };
        let (byte, length) = match escape {
            None => (first, 1),
            Some(b'n') => (b'\n', 2),
            Some(b'r') => (b'\r', 2),
            Some(b't') => (b'\t', 2),
            Some(b'\\') => (b'\\', 2),
            Some(b'x') => {
                let digits = std::str::from_utf8(&rest[2..4]).unwrap();
                (u8::from_str_radix(digits, 16).unwrap(), 4)
            }
            Some(other) => panic!("an input has the escape {other}: {line}"),
        };
        bytes.push(byte);
        rest = &rest[length..];
    }
    bytes
}

#[test]
fn escapes_are_bytes() {
    assert_eq!(bytes(r"a:1|c\n\x00\xff\\x41"), b"a:1|c\n\x00\xff\\x41");
}

#[test]
fn packet() {
    replay("packet", weir_fuzz_checks::packet);
}

#[test]
fn event() {
    replay("event", weir_fuzz_checks::event);
}

#[test]
fn check() {
    replay("check", weir_fuzz_checks::check);
}

#[test]
fn stream() {
    replay("stream", weir_fuzz_checks::stream);
}

#[test]
fn configuration() {
    replay("configuration", weir_fuzz_checks::configuration);
}

#[test]
fn identity() {
    replay("identity", weir_fuzz_checks::identity);
}

#[test]
fn queue() {
    replay("queue", weir_fuzz_checks::queue);
}

#[test]
fn log() {
    replay("log", weir_fuzz_checks::log);
}

#[test]
fn cgroup() {
    replay("cgroup", weir_fuzz_checks::cgroup);
}

#[test]
fn origin() {
    replay("origin", weir_fuzz_checks::origin);
}

#[test]
fn admin() {
    replay("admin", weir_fuzz_checks::admin);
}

#[test]
fn state() {
    replay("state", weir_fuzz_checks::state);
}

#[test]
fn columns() {
    replay("columns", weir_fuzz_checks::columns);
}
