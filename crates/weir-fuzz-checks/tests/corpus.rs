//! Replays what the fuzzer has kept.

use std::path::Path;

fn replay(target: &str, check: fn(&[u8])) {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../fuzz/corpus")
        .join(target);
    let mut count = 0;
    for entry in
        std::fs::read_dir(&directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()))
    {
        let path = entry.unwrap().path();
        let bytes = std::fs::read(&path).unwrap();
        println!("{}", path.display());
        check(&bytes);
        count += 1;
    }
    assert!(
        count >= 5,
        "{target}: only {count} inputs in {}",
        directory.display()
    );
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
