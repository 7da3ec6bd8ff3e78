//! The agent dies at any instant: what was written to the disk queue is delivered by the next one, and what arrives is whole.

use crate::support;

use std::collections::HashMap;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use support::wire::{Samples, influx_lines, otlp_numbers, samples_1, samples_2};
use support::*;
use weir_output::delivery::Clock;
use weir_output::settings::DeliverySettings;

const PER_ROUND: i64 = 100_000;

fn settings(directory: &str) -> DeliverySettings {
    let mut settings = delivery();
    settings.disk_path = directory.into();
    settings.disk_bytes_max = 256 << 20;
    settings.timeout = Duration::from_secs(5);
    settings
}

/// The process that gets killed: hands over bucket after bucket, and names each on standard output once it is on disk.
#[test]
#[ignore = "a process of another test"]
fn child() {
    let Ok(arguments) = std::env::var("WEIR_TEST_KILLED_CHILD") else {
        return;
    };
    let [name, url, directory, first] = arguments.split('\n').collect::<Vec<_>>()[..] else {
        panic!("four arguments")
    };
    let first: i64 = first.parse().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let entered = runtime.enter();
    let output = start_output(name, url, settings(directory), &environment(Clock::system()));
    drop(entered);
    for i in first..first + PER_ROUND {
        for batch in batches_at(BUCKET + i * 10, &format!("a:{i}|g\nb:{}|g|#k:v\n", i * 2)) {
            output.submit(&batch);
        }
        let sent = (i - first + 1) as u64 * 2;
        // Encoded means queued, and queued means written: a payload goes to disk before memory and network. Cumulative outputs
        // count the zeros in front of a series too.
        runtime.block_on(output.wait_for(|status| {
            let pending = status.endpoints[0].pending;
            status.received.points >= sent && (pending.inbox + pending.open_payloads).is_zero()
        }));
        assert!(output.status().endpoints[0].disk_error.is_none());
        println!("queued {i}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_again_and_again() {
    killed("datadog", 25, |intake| {
        let mut points = Vec::new();
        for payload in decode(&intake.requests()) {
            for one in payload["series"].as_array().unwrap() {
                let point = &one["points"][0];
                let value = point.get("value").map_or(0.0, |value| value.as_f64().unwrap());
                points.push((
                    one["metric"].as_str().unwrap().to_owned(),
                    point["timestamp"].as_i64().unwrap(),
                    value,
                ));
            }
        }
        points
    })
    .await;
    killed("influx", 6, |intake| {
        let mut points = Vec::new();
        for name in ["a", "b"] {
            let mut samples = Samples::new();
            let requests = intake.requests();
            requests
                .iter()
                .for_each(|request| influx_lines(&request.plain(), name, &mut samples));
            let of_bucket = |(at, value)| (name.to_owned(), at as i64 / 1_000_000_000, value);
            points.extend(samples.into_iter().map(of_bucket));
        }
        points
    })
    .await;
}

/// The same for outputs that deliver in the order of time, whatever the kill did to it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_again_and_again_in_the_order_of_time() {
    let in_order = |read: fn(&[u8], &str, &mut Samples), end_of_bucket: fn(u64) -> i64| {
        move |intake: &Intake| {
            let mut points = Vec::new();
            for name in ["a", "b"] {
                let mut samples = Samples::new();
                let requests = intake.requests();
                requests
                    .iter()
                    .for_each(|request| read(&request.plain(), name, &mut samples));
                // A request comes again until it was answered; a newer one never comes before that.
                let in_order = samples.is_sorted_by_key(|(at, _)| *at);
                assert!(in_order, "{name} went back in time");
                let of_bucket = |(at, value)| (name.to_owned(), end_of_bucket(at) - 10, value);
                points.extend(samples.into_iter().map(of_bucket));
            }
            points
        }
    };
    let milliseconds = |at| at as i64 / 1000;
    let nanoseconds = |at| at as i64 / 1_000_000_000;
    killed("remote_write 1.0", 6, in_order(samples_1, milliseconds)).await;
    killed("remote_write 2.0", 6, in_order(samples_2, milliseconds)).await;
    killed("otlp delta", 6, in_order(otlp_numbers, nanoseconds)).await;
    killed("otlp cumulative", 6, in_order(otlp_numbers, nanoseconds)).await;
}

/// Kills a process in each round, lets the last one deliver everything, and compares what came with what was queued. `read` finds
/// points in the requests: name, start of the bucket, value.
async fn killed(name: &'static str, rounds: i64, read: impl Fn(&Intake) -> Vec<(String, i64, f64)>) {
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
        _ if script.load(Ordering::SeqCst) => taken(),
        3 => Reply::Status(503),
        6 => Reply::Raw(b""),
        9 => Reply::Hang,
        _ => taken(),
    })
    .await;
    let mut queued: Vec<i64> = Vec::new();
    for round in 0..rounds {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "killed::child", "--nocapture"])
            .env(
                "WEIR_TEST_KILLED_CHILD",
                format!("{name}\n{}\n{path}\n{}", intake.url(), round * PER_ROUND),
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
        // A request of a process that was killed would otherwise be recorded among those of the next one.
        intake.wait_for_ended_clients().await;
    }
    // The last process delivers what is left.
    recovered.store(true, Ordering::SeqCst);
    let output = start_output(
        name,
        &intake.url(),
        settings(&path),
        &environment(Clock::system()),
    );
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
    for (metric, bucket, value) in read(&intake) {
        let before = held.insert((metric, bucket), value);
        assert!(
            before.is_none_or(|before| before == value),
            "{name}: a repeated point has the value it had"
        );
    }
    for i in &queued {
        let at = |name: &str| held.get(&(name.to_owned(), BUCKET + i * 10)).copied();
        assert_eq!(
            (at("a"), at("b")),
            (Some(*i as f64), Some(*i as f64 * 2.0)),
            "{name}: bucket {i}"
        );
    }
    // Beyond those there can be one per round that was written but not yet named.
    let unnamed = held.len() as i64 - 2 * queued.len() as i64;
    assert!(
        (0..=2 * rounds).contains(&unnamed),
        "{name}: {unnamed} points that nobody queued"
    );
    let left: Vec<_> = std::fs::read_dir(directory.path())
        .unwrap()
        .flatten()
        .flat_map(|e| std::fs::read_dir(e.path()).unwrap().flatten())
        .map(|e| e.file_name())
        .collect();
    assert_eq!(left, ["lock"], "what is delivered leaves no file");
}
