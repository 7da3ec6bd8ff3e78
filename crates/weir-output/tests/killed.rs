//! The agent dies at any instant: what was written to the disk queue is delivered by the next one, and what arrives is whole.

mod support;

use std::collections::HashMap;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use support::*;
use weir_aggregate::Expansion;
use weir_output::datadog;
use weir_output::delivery::Clock;
use weir_output::settings::DatadogSettings;

const ROUNDS: i64 = 25;
const PER_ROUND: i64 = 100_000;

fn settings(url: &str, directory: &str) -> DatadogSettings {
    let mut settings = datadog(url);
    settings.delivery.disk_path = directory.into();
    settings.delivery.disk_bytes_max = 256 << 20;
    settings.delivery.timeout = Duration::from_secs(5);
    settings
}

/// The process that gets killed: hands over bucket after bucket, and names each on standard output once it is on disk.
#[test]
fn child() {
    let Ok(arguments) = std::env::var("WEIR_TEST_KILLED_CHILD") else {
        return;
    };
    let [url, directory, first] = arguments.split('\n').collect::<Vec<_>>()[..] else {
        panic!("three arguments")
    };
    let first: i64 = first.parse().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let entered = runtime.enter();
    let output = datadog::start(
        "datadog",
        &settings(url, directory),
        Arc::new(Expansion::default()),
        &surroundings(Clock::system()),
    )
    .unwrap();
    drop(entered);
    for i in first..first + PER_ROUND {
        for batch in batches_at(BUCKET + i * 10, &format!("a:{i}|g\nb:{}|g|#k:v\n", i * 2)) {
            output.submit(&batch);
        }
        let sent = (i - first + 1) as u64 * 2;
        // Encoded means queued, and queued means written: a payload goes to disk before memory and network.
        runtime.block_on(output.wait_for(|status| {
            let pending = status.endpoints[0].pending;
            status.received.points == sent && (pending.inbox + pending.open_payloads).is_zero()
        }));
        assert!(output.status().endpoints[0].disk_error.is_none());
        println!("queued {i}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_again_and_again() {
    let seed = std::env::var("WEIR_TEST_SEED")
        .map_or_else(|_| u64::from(std::process::id()), |seed| seed.parse().unwrap());
    println!("WEIR_TEST_SEED={seed}");
    let mut random = seed;
    let mut random = move || {
        random = random
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        random >> 33
    };
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().display().to_string();
    // Every few requests fail, break off or hang, so that every state of a payload is hit by some kill.
    let count = AtomicUsize::new(0);
    let recovered = Arc::new(AtomicBool::new(false));
    let script = recovered.clone();
    let intake = Intake::start(move |_| match count.fetch_add(1, Ordering::SeqCst) % 11 {
        _ if script.load(Ordering::SeqCst) => Reply::Status(202),
        3 => Reply::Status(503),
        6 => Reply::Raw(b""),
        9 => Reply::Hang,
        _ => Reply::Status(202),
    })
    .await;
    let mut queued: Vec<i64> = Vec::new();
    for round in 0..ROUNDS {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child", "--nocapture"])
            .env(
                "WEIR_TEST_KILLED_CHILD",
                format!("{}\n{path}\n{}", intake.url(), round * PER_ROUND),
            )
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        // The kill comes after a random number of buckets and a random spin, in whatever the child then does.
        let (buckets, spin) = (random() % 40, random() % 200_000);
        let reader = tokio::task::spawn_blocking(move || {
            let mut queued: Vec<i64> = Vec::new();
            for line in stdout.lines().map_while(Result::ok) {
                // The test harness prints on the same line before the first.
                if let Some(i) = line.rsplit("queued ").next().and_then(|i| i.parse().ok()) {
                    queued.push(i);
                }
                if queued.len() as u64 == buckets + 1 {
                    for i in 0..spin {
                        std::hint::black_box(i);
                    }
                    child.kill().unwrap();
                }
            }
            child.wait().unwrap();
            queued
        });
        let of_round = tokio::time::timeout(DEADLINE, reader)
            .await
            .expect("the child makes progress")
            .unwrap();
        assert!(of_round.len() as u64 > buckets, "{} buckets", of_round.len());
        queued.extend(of_round);
    }
    // The last process delivers what is left.
    recovered.store(true, Ordering::SeqCst);
    let output = datadog::start(
        "datadog",
        &settings(&intake.url(), &path),
        Arc::new(Expansion::default()),
        &surroundings(Clock::system()),
    )
    .unwrap();
    let waited = tokio::time::timeout(
        DEADLINE,
        output.wait_for(|status| status.endpoints[0].pending.total().is_zero()),
    )
    .await;
    assert!(waited.is_ok(), "{:#?}", output.status());
    let status = output.status();
    assert!(
        status.balances() && status.endpoints[0].dropped.is_empty(),
        "{status:#?}"
    );
    output.shutdown(DEADLINE).await;
    // Every body that ever arrived decodes; by the backend's rule equal context and second are one point.
    let mut held: HashMap<(String, i64), f64> = HashMap::new();
    for payload in decode(&intake.requests()) {
        for one in payload["series"].as_array().unwrap() {
            let value = one["points"][0]
                .get("value")
                .map_or(0.0, |value| value.as_f64().unwrap());
            let point = (
                one["metric"].as_str().unwrap().to_owned(),
                one["points"][0]["timestamp"].as_i64().unwrap(),
            );
            let before = held.insert(point, value);
            assert!(
                before.is_none_or(|before| before == value),
                "a repeated point has the value it had"
            );
        }
    }
    for i in &queued {
        let at = |name: &str| held.get(&(name.to_owned(), BUCKET + i * 10)).copied();
        assert_eq!(
            (at("a"), at("b")),
            (Some(*i as f64), Some(*i as f64 * 2.0)),
            "bucket {i}"
        );
    }
    // Beyond those there can be one per round that was written but not yet named.
    let unnamed = held.len() as i64 - 2 * queued.len() as i64;
    assert!(
        (0..=2 * ROUNDS).contains(&unnamed),
        "{unnamed} points that nobody queued"
    );
    let left: Vec<_> = std::fs::read_dir(directory.path())
        .unwrap()
        .flatten()
        .flat_map(|e| std::fs::read_dir(e.path()).unwrap().flatten())
        .map(|e| e.file_name())
        .collect();
    assert_eq!(left, ["lock"], "what is delivered leaves no file");
}
