//! Instructions of a message from packet to bucket, and of a row of a flush, stay below bounds. Counted by callgrind, which other
//! work on the machine cannot disturb; without it (`scripts/install-test-deps.sh`) the test says so and passes. The counts are
//! those of the tests' profile, which optimises less than a release: `scripts/instructions.sh` has those of a release.

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

/// A workload and what its messages, and the rows of the flush behind them, may take: a few per cent more than with this code.
/// A change that makes them cheaper lowers the bound; one that raises it says why.
struct Bound {
    work: &'static str,
    per_message: f64,
    per_row: f64,
}

const BOUNDS: [Bound; 6] = [
    bound("1000", 2160.0, 3190.0),
    // Looked up in groups.
    bound("5000", 2480.0, 3030.0),
    bound("1000 permute", 5560.0, 3190.0),
    bound("1000 noalias", 5560.0, 3190.0),
    bound("1000 dist", 3370.0, 16_200.0),
    // Half of the messages make a context.
    bound("5000 new", 17_200.0, 3060.0),
];

const fn bound(work: &'static str, per_message: f64, per_row: f64) -> Bound {
    Bound {
        work,
        per_message,
        per_row,
    }
}

/// Its instructions, with those of what it calls, are the ones that count.
#[inline(never)]
fn take_messages(ingest: &mut Ingest, packets: &[Vec<u8>]) {
    feed(ingest, packets);
}

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
#[ignore = "the other process of messages_and_rows_stay_within_their_instruction_bounds"]
fn child_works() {
    let work = std::env::var(WORK).expect(WORK);
    let (count, mode) = work.split_once(' ').unwrap_or((&work, ""));
    let mut random = workload::Random(42);
    let contexts = workload::contexts(count.parse().unwrap(), 7, mode == "dist", &mut random);
    let mut packets = |messages| {
        workload::packets(
            &contexts,
            messages,
            mode == "permute",
            mode == "dist",
            &mut random,
        )
    };
    let alias_bytes_max = if mode == "noalias" { 0 } else { usize::MAX };
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
    if mode != "new" {
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

/// Instructions of the step in this workload, and how many rows the child wrote.
fn instructions(work: &str, step: &str) -> (f64, f64) {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(format!("--toggle-collect=*{step}*"))
        .arg(std::env::current_exe().unwrap())
        .args([
            "child_works",
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
    let number = |before: &str| {
        let found = text.lines().find_map(|line| line.split_once(before));
        let (_, number) = found.unwrap_or_else(|| panic!("no {before} in\n{text}"));
        number.trim().parse::<f64>().unwrap()
    };
    (number("Collected : "), number("rows: "))
}

#[test]
fn messages_and_rows_stay_within_their_instruction_bounds() {
    if Command::new("valgrind").arg("--version").output().is_err() {
        println!("no valgrind here (scripts/install-test-deps.sh): nothing was counted");
        return;
    }
    let mut errors = Vec::new();
    for Bound {
        work,
        per_message,
        per_row,
    } in BOUNDS
    {
        let (of_messages, _) = instructions(work, "take_messages");
        let (of_rows, rows) = instructions(work, "write_rows");
        for (what, found, most) in [
            ("message", of_messages / MESSAGES as f64, per_message),
            ("row", of_rows / rows, per_row),
        ] {
            println!("{work}: {found:.0} of {most} instructions per {what}");
            assert!(found > 100.0, "nothing was counted");
            if found > most {
                errors.push(format!("{work}: {found:.0} per {what}, {most} are allowed"));
            }
        }
    }
    assert!(errors.is_empty(), "{errors:#?}");
}
