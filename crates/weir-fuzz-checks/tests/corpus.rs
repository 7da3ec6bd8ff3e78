//! Replays what the fuzzer has kept. `fuzz/corpus.py` writes the files.

use std::path::PathBuf;

use weir_fuzz_checks::TARGETS;

fn corpus() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus")
}

fn replay(target: &str) {
    let (_, check) = TARGETS.iter().find(|(name, _)| *name == target).unwrap();
    let file = corpus().join(target).with_extension("txt");
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

/// `scripts/fuzz.sh` takes the names of the files for targets.
#[test]
fn every_target_has_inputs() {
    let files = std::fs::read_dir(corpus()).unwrap();
    let name = |file: std::io::Result<std::fs::DirEntry>| {
        let path = file.unwrap().path();
        path.file_stem().unwrap().to_str().unwrap().to_owned()
    };
    let mut files: Vec<String> = files.map(name).collect();
    let mut targets = TARGETS.map(|(name, _)| name);
    files.sort_unstable();
    targets.sort_unstable();
    assert_eq!(files, targets);
}

#[test]
fn packet() {
    replay("packet");
}

#[test]
fn event() {
    replay("event");
}

#[test]
fn check() {
    replay("check");
}

#[test]
fn stream() {
    replay("stream");
}

#[test]
fn configuration() {
    replay("configuration");
}

#[test]
fn identity() {
    replay("identity");
}

#[test]
fn queue() {
    replay("queue");
}

#[test]
fn log() {
    replay("log");
}

#[test]
fn cgroup() {
    replay("cgroup");
}

#[test]
fn origin() {
    replay("origin");
}

#[test]
fn admin() {
    replay("admin");
}

#[test]
fn state() {
    replay("state");
}

#[test]
fn columns() {
    replay("columns");
}
