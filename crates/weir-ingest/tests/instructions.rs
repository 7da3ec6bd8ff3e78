//! Instructions of a message from packet to bucket, and of a row of a flush, stay below bounds. Counted by callgrind, which other
//! work on the machine cannot disturb; without it (`scripts/install-test-deps.sh`) the test says so and passes. The counts are
//! those of the tests' profile, which optimises less than a release: `rig/scripts/instructions.sh` has those of a release.

use std::path::Path;
use std::process::Command;

use weir_aggregate::AggregatorSettings;
use weir_context::{ContextLimits, HashSecret, Rules};
use weir_ingest::{Ingest, IngestSettings, Received};
use weir_protocol::ParseOptions;

#[path = "../benches/ingest/workload.rs"]
mod workload;

/// The child's work: contexts, mode, and the counted step.
const WORK: &str = "WEIR_TEST_WORK";
const MESSAGES: usize = 10_000;
const START: i64 = 1_700_000_000;

/// Its instructions, with those of what it calls, are the ones that count.
#[inline(never)]
fn take_messages(ingest: &mut Ingest, packets: &[Vec<u8>]) {
    feed(ingest, packets);
}

/// Callgrind writes its counts after each.
#[inline(never)]
fn feed(ingest: &mut Ingest, packets: &[Vec<u8>]) {
    for bytes in packets {
        ingest.packet(Received {
            bytes,
            listener: 0,
            truncated: false,
            received: 1,
        });
    }
}

/// As [`take_messages`].
#[inline(never)]
fn write_rows(ingest: &mut Ingest) -> usize {
    drain(ingest)
}

fn drain(ingest: &mut Ingest) -> usize {
    let mut rows = 0;
    while ingest.is_draining() {
        rows += ingest.drain(256).map_or(0, |batch| batch.len());
    }
    rows
}

#[test]
#[ignore = "the other process of the tests below"]
fn child_works() {
    let work = std::env::var(WORK).expect(WORK);
    let (count, mode) = work.split_once(' ').unwrap_or((&work, ""));
    let has = |word| mode.split(' ').any(|other| other == word);
    let shape = workload::Shape {
        permute: has("permute"),
        dist: has("dist"),
        values: mode
            .split(' ')
            .find_map(workload::Values::from_name)
            .unwrap_or_default(),
    };
    let mut random = workload::Random(42);
    let count = count.parse().unwrap();
    let contexts = match shape.values {
        workload::Values::Interner => workload::interner_contexts(count, &mut random),
        _ => workload::contexts(count, 7, shape.dist, &mut random),
    };
    let mut packets = |messages| workload::packets(&contexts, messages, shape, &mut random);
    let alias_bytes_max = if has("noalias") { 0 } else { usize::MAX };
    let mut ingest = Ingest::new(
        IngestSettings {
            worker: 0,
            aggregator: AggregatorSettings::default(),
            rules: Rules::default(),
            limits: ContextLimits {
                alias_bytes_max,
                ..ContextLimits::default()
            },
            secret: HashSecret::from_random(1, 2),
            listeners: vec![ParseOptions::default().into()],
        },
        START,
    );
    if !has("new") {
        let known = packets(3 * contexts.len() + MESSAGES);
        feed(&mut ingest, &known);
    }
    assert!(ingest.advance(START + 10));
    drain(&mut ingest);
    take_messages(&mut ingest, &packets(MESSAGES));
    assert!(ingest.advance(START + 20));
    let rows = write_rows(&mut ingest);
    println!("rows: {rows}");
}

/// Instructions of all messages and of all rows of this workload, and the number of rows.
fn instructions(work: &str) -> (f64, f64, f64) {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("counted");
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--toggle-collect=*take_messages*"])
        .args([
            "--toggle-collect=*write_rows*",
            "--dump-after=*instructions::feed*",
        ])
        .arg(format!("--callgrind-out-file={}", file.display()))
        .arg(std::env::current_exe().unwrap())
        .args([
            "instructions::child_works",
            "--exact",
            "--ignored",
            "--test-threads=1",
            "--nocapture",
        ])
        .env(WORK, work)
        .output()
        .unwrap();
    let text =
        String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    let number = |text: &str, before: &str| {
        let found = text.lines().find_map(|line| line.split_once(before));
        let (_, number) = found.unwrap_or_else(|| panic!("no {before} in\n{text}"));
        number.trim().parse::<f64>().unwrap()
    };
    // Messages that only make contexts are not counted, and the last dump is of the rows.
    let counted = |file: &Path| number(&std::fs::read_to_string(file).unwrap(), "summary: ");
    let files = std::fs::read_dir(directory.path()).unwrap();
    let all: f64 = files.map(|entry| counted(&entry.unwrap().path())).sum();
    let rows = counted(&file);
    (all - rows, rows, number(&text, "rows: "))
}

/// A workload, and what one of its messages and one row of the flush behind them may take: a few per cent more than with this code.
/// A change that makes them cheaper lowers the bound; one that raises it says why. The bounds of rows are those of incremental builds,
/// in which the compiler inlines less: 5 % more than in .ci/run.
#[track_caller]
fn stays_within(work: &str, per_message: f64, per_row: f64) {
    if Command::new("valgrind").arg("--version").output().is_err() {
        println!("skipped: no valgrind here (scripts/install-test-deps.sh), nothing was counted");
        return;
    }
    let (of_messages, of_rows, rows) = instructions(work);
    for (what, found, most) in [
        ("message", of_messages / MESSAGES as f64, per_message),
        ("row", of_rows / rows, per_row),
    ] {
        println!("{work}: {found:.0} of {most} instructions per {what}");
        assert!(found > 100.0, "nothing was counted");
        assert!(found <= most, "{work}: {found:.0} per {what}, {most} are allowed");
    }
}

#[test]
fn known_contexts_stay_within_their_bounds() {
    stays_within("1000", 1800.0, 2230.0);
}

#[test]
fn contexts_looked_up_in_groups_stay_within_their_bounds() {
    stays_within("5000", 2150.0, 2350.0);
}

#[test]
fn tags_in_random_order_stay_within_their_bounds() {
    stays_within("1000 permute", 5080.0, 2240.0);
}

#[test]
fn contexts_without_aliases_stay_within_their_bounds() {
    stays_within("1000 noalias", 5070.0, 2180.0);
}

#[test]
fn distributions_stay_within_their_bounds() {
    stays_within("1000 dist", 3070.0, 11_500.0);
}

#[test]
fn long_floats_stay_within_their_bounds() {
    stays_within("1000 floats", 2080.0, 2230.0);
}

#[test]
fn integers_of_64_bits_stay_within_their_bounds() {
    stays_within("1000 integers", 1930.0, 2230.0);
}

#[test]
fn exponents_stay_within_their_bounds() {
    stays_within("1000 exponents", 2100.0, 2260.0);
}

#[test]
fn packed_long_floats_stay_within_their_bounds() {
    stays_within("1000 dist floats", 4760.0, 12_000.0);
}

/// Messages of 2.8 kB, whose hash and comparison are the work.
#[test]
fn the_interner_s_payload_stays_within_its_bounds() {
    stays_within("1000 interner", 12_300.0, 6060.0);
}

/// Half of the messages make a context. Each is looked through for sections that stand for nothing, and says why it was slow.
#[test]
fn new_contexts_stay_within_their_bounds() {
    stays_within("5000 new", 14_800.0, 2620.0);
}
