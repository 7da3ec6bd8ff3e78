//! Memory that a flush adds: little, because batches and payloads are created and freed piece by piece. One test counts
//! the bytes of one worker, the other measures the pages of the real agent.
//! Beside a process that keeps one of two cores busy it adds more, whatever the contexts: the batches that wait for the merge and for the encoder,
//! which the share `batches` of the budget bounds, and pages that the allocator has not returned yet.
//!
//! `WEIR_TEST_CONTEXTS=1000000 cargo test --release -p weir --test weir-tests -- --ignored --nocapture flush_memory` measures a million contexts.

use crate::delivery::intake;
use crate::support;
use std::time::{Duration, Instant};

use intake::{Answer, Intake};
use support::place::wait_for_all;
use support::{Agent, PATIENCE, with_long_buckets};
use weir_aggregate::AggregatorSettings;
use weir_context::{AliasCounter, ContextLimits, HashSecret, Partitioning, Rules};
use weir_ingest::{Ingest, IngestSettings, Received};
use weir_protocol::ParseOptions;

use crate::memory_ledger::permuted;

/// Kilobytes of resident memory: `VmRSS` now, `VmHWM` at most. `None` when the process has ended.
fn kilobytes(id: u32, name: &str) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{id}/status")).ok()?;
    let line = text.lines().find(|line| line.starts_with(name))?;
    line.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// In the gate: [`a_flush_goes_out_in_pieces`].
#[test]
#[ignore = "nightly: resident memory"]
fn a_flush_adds_less_than_a_quarter() {
    // So many that the batches which wait for an encoder on a busy machine are a small part.
    let contexts: usize = std::env::var("WEIR_TEST_CONTEXTS").map_or(600_000, |n| n.parse().unwrap());
    let intake = Intake::start(false, |_| Answer::Accept);
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("weir.yaml");
    // One bucket for all of it: the end of the process closes it. What the history keeps of a flush stays, within its own share.
    let text = format!(
        "bucket_width: LONG\nmemory: 2GiB\nhistory: 0\ngrace_period: 60s\noutputs:\n  prometheus: {{enabled: false}}\n  datadog:\n    \
         api_key: 0123456789abcdef0123456789abcdef\n    url: http://{}\n",
        intake.address,
    );
    std::fs::write(&config, with_long_buckets(&text)).unwrap();
    let agent = Agent::start(&["--config", config.to_str().unwrap()], &[]);
    let id = agent.id();
    let idle = kilobytes(id, "VmRSS:").unwrap();
    let mut packet = String::new();
    for i in 0..contexts {
        let kind = ["c", "g", "d"][i % 3];
        let line = format!(
            "application.requests.{}:{}|{kind}|#env:production,service:checkout-{},region:eu-west-{},version:1.{}.0,pod:checkout-{i:08x},team:payments\n",
            i % 200,
            i % 1000 + 1,
            i % 50,
            i % 3,
            i % 20
        );
        if packet.len() + line.len() > 8192 {
            agent.send(std::mem::take(&mut packet));
        }
        packet += &line;
    }
    agent.send(packet);
    wait_for_all(&agent.admin, &agent.socket(), None);
    let held = kilobytes(id, "VmRSS:").unwrap();
    // From here on the peak counts from zero.
    std::fs::write(format!("/proc/{id}/clear_refs"), "5").unwrap();
    let mut peak = held;
    agent.signal("-TERM");
    let deadline = Instant::now() + PATIENCE;
    // Ended, it is a zombie without memory until it is waited for.
    while let Some(now) = kilobytes(id, "VmHWM:") {
        assert!(Instant::now() < deadline, "the agent does not end");
        peak = peak.max(now);
        std::thread::sleep(Duration::from_millis(2));
    }
    agent.finished();
    let (posts, bytes) = *intake.posts.lock().unwrap();
    let growth = (peak as f64 / held as f64 - 1.0) * 100.0;
    println!(
        "{contexts} contexts: {idle} kB idle, {held} kB before the flush, {peak} kB at most during flush and delivery (+{growth:.1} %), {posts} payloads, {bytes} bytes"
    );
    assert!(posts > 1 && bytes > contexts, "{posts} payloads of {bytes} bytes");
    assert!(growth < 25.0, "{growth:.1} %");
}

const START: i64 = 1_700_000_000;

/// The only one of its agent.
fn worker(bytes_max: usize) -> Ingest {
    let settings = IngestSettings {
        worker: 0,
        aggregator: AggregatorSettings {
            partitioning: Partitioning::Id,
            ..AggregatorSettings::default()
        },
        rules: Rules::default(),
        limits: ContextLimits {
            bytes_max,
            ..ContextLimits::default()
        },
        secret: HashSecret::from_random(1, 2),
        listeners: vec![ParseOptions::default().into()],
    };
    Ingest::new(settings, START)
}

fn send(ingest: &mut Ingest, text: &str) {
    ingest.packet(Received {
        bytes: text.as_bytes(),
        listener: 0,
        truncated: false,
        received: 1,
    });
}

fn held(ingest: &Ingest) -> usize {
    ingest.contexts().heap_bytes() + ingest.aggregator().heap_bytes()
}

/// Whatever the number of contexts, a flush needs room for batches of some thousand rows, and none for another bucket.
#[test]
fn a_flush_goes_out_in_pieces() {
    const CONTEXTS: usize = 30_000;
    let mut ingest = worker(1 << 30);
    for i in 0..CONTEXTS {
        let kind = ["c", "g", "d"][i % 3];
        send(
            &mut ingest,
            &format!(
                "application.requests.{}:{i}|{kind}|#env:production,pod:checkout-{i:08x}",
                i % 200
            ),
        );
    }
    let before = held(&ingest);
    assert!(ingest.advance(START + 10));
    let (mut rows, mut largest, mut most) = (0, 0, 0);
    while ingest.is_draining() {
        if let Some(batch) = ingest.drain(256) {
            rows += batch.len();
            largest = largest.max(batch.len());
            most = most.max(batch.heap_bytes());
        }
        let now = held(&ingest);
        assert!(
            now <= before,
            "{before} bytes before the flush, {now} after {rows} rows"
        );
    }
    println!("{before} bytes held, batches of {largest} rows and {most} bytes at most");
    assert_eq!(rows, CONTEXTS);
    // One ends with 4096 rows or a megabyte, and the next drain looks at 256 contexts more.
    assert!(largest <= 4096 + 256, "{largest} rows");
    assert!(most <= 2 << 20, "{most} bytes");
}

#[test]
fn an_alias_too_many_is_evicted_and_counted() {
    const BUDGET: usize = 2 << 20;
    let mut ingest = worker(BUDGET);
    // One context in many forms; each twice, as an alias is kept on the second sight.
    for form in 0..20_000 {
        let line = permuted(form);
        send(&mut ingest, &line);
        send(&mut ingest, &line);
        let held = held(&ingest);
        assert!(held <= BUDGET * 5 / 4, "{held} bytes after {form} forms");
    }
    let counts = ingest.contexts().alias_counts();
    assert!(counts[AliasCounter::Evicted] > 0, "{counts:?}");
}
