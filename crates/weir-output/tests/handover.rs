//! An output that replaces another while the process runs: what a receiver sees of it.

use crate::support;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use support::wire::{Samples, otlp_numbers, samples_1};
use support::*;
use weir_aggregate::Expansion;
use weir_output::OutputCounter;
use weir_output::delivery::{Clock, Delivery, OutputEnvironment};
use weir_output::otlp::{OtlpSettings, Temporality};
use weir_output::remote_write::RemoteWriteSettings;
use weir_output::settings::Secret;
use weir_output::settings::Start;

fn start(
    settings: &dyn Start,
    replaces: Option<&Arc<Delivery>>,
    around: &OutputEnvironment,
) -> Arc<Delivery> {
    let around = OutputEnvironment {
        replaces: replaces.cloned(),
        ..around.clone()
    };
    let started = settings.start("output", &Arc::new(Expansion::default()), &around);
    Arc::new(started.unwrap())
}

fn submit(output: &Delivery, bucket: i64, messages: &str) {
    batches_at(BUCKET + 10 * bucket, messages)
        .iter()
        .for_each(|batch| output.submit(batch));
}

async fn until_idle(output: &Delivery) {
    let all = output.wait_for(|status| idle(status) && status.received.points > 0);
    tokio::time::timeout(DEADLINE, all)
        .await
        .expect("everything delivered");
}

/// The values of `a_total` or `a` that arrived, in order: five, then three more at the second output.
async fn values(intake: &Intake, first: &dyn Start, second: &dyn Start) -> Vec<f64> {
    let around = environment(Clock::system());
    let old = start(first, None, &around);
    submit(&old, 0, "a:5|c");
    until_idle(&old).await;
    let new = start(second, Some(&old), &around);
    // Handed over before it has begun.
    submit(&new, 1, "a:3|c");
    new.take_over(&old).await;
    old.shutdown(DEADLINE).await;
    until_idle(&new).await;
    assert!(new.status().balances() && old.status().balances());
    let mut found = Samples::new();
    for request in intake.requests() {
        match request.path.as_str() {
            "/v1/metrics" => otlp_numbers(&request.plain(), "a", &mut found),
            _ => samples_1(&request.plain(), "a_total", &mut found),
        }
    }
    new.shutdown(DEADLINE).await;
    found.into_iter().map(|(_, value)| value).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_token_does_not_reset_cumulative_sums() {
    let intake = Intake::start(|_| taken()).await;
    let settings = |token: &str| RemoteWriteSettings {
        authorization: authorization(&[("Authorization", token)]),
        expiry: Duration::from_secs(if token == "old" { 60 } else { 600 }),
        ..remote_write(&intake.url())
    };
    let found = values(&intake, &settings("old"), &settings("new")).await;
    assert_eq!(found, [0.0, 5.0, 8.0]);
    let last = intake.requests().pop().unwrap();
    assert_eq!(last.header("authorization"), "new");

    let intake = Intake::start(|_| taken()).await;
    let settings = |token: &str| OtlpSettings {
        authorization: authorization(&[("Authorization", token)]),
        temporality: Temporality::Cumulative,
        ..otlp(&intake.url())
    };
    let found = values(&intake, &settings("old"), &settings("new")).await;
    assert_eq!(found, [5.0, 8.0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_labels_are_other_series() {
    let intake = Intake::start(|_| taken()).await;
    let settings = |job: &str| RemoteWriteSettings {
        labels: BTreeMap::from([("job".to_owned(), job.to_owned())]),
        ..remote_write(&intake.url())
    };
    let found = values(&intake, &settings("one"), &settings("two")).await;
    // The old series ends, the new one begins.
    assert_eq!(found.len(), 5, "{found:?}");
    assert!(
        found[2].is_nan() && [found[0], found[1], found[3], found[4]] == [0.0, 5.0, 0.0, 3.0],
        "{found:?}"
    );
}

/// Every way from memory and disk to memory and disk: nothing lost, nothing twice, figures continue.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queued_payloads_are_handed_over_from_memory_and_disk() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).display().to_string();
    for (case, (from, to)) in [("", ""), ("a", "a"), ("", "b"), ("c", "d"), ("e", "")]
        .into_iter()
        .enumerate()
    {
        for key in ["same", "other"] {
            let (intake, reachable) = Intake::that_can_be_away(false).await;
            let settings = |disk: &str, with: &str| {
                let mut settings = datadog(&intake.url());
                settings.api_key = Secret::new(with);
                if !disk.is_empty() {
                    settings.delivery.disk_path = path(&format!("{case}-{key}-{disk}"));
                    settings.delivery.disk_bytes_max = 1 << 20;
                }
                settings
            };
            let around = environment(Clock::system());
            let old = start(&settings(from, KEY), None, &around);
            submit(&old, 0, "a:1|g\n");
            let tried = old.wait_for(|status| status.endpoints[0].counts[OutputCounter::AttemptsFailed] > 0);
            tokio::time::timeout(DEADLINE, tried).await.expect("an attempt");
            let with = if key == "same" {
                KEY
            } else {
                "fedcba9876543210fedcba9876543210"
            };
            let new = start(&settings(to, with), Some(&old), &around);
            submit(&new, 1, "b:1|g\n");
            new.take_over(&old).await;
            old.shutdown(DEADLINE).await;
            reachable.store(true, Ordering::SeqCst);
            new.retry_now();
            until_idle(&new).await;
            let status = new.status();
            let named = format!("{from:?} to {to:?}, {key} key: {status:#?}");
            assert!(status.balances() && old.status().balances(), "{named}");
            let endpoint = &status.endpoints[0];
            assert_eq!(
                (endpoint.delivered.points, endpoint.earlier.points),
                (2, 1),
                "{named}"
            );
            assert!(endpoint.dropped.is_empty(), "{named}");
            new.shutdown(DEADLINE).await;
            if from != to && !from.is_empty() {
                let left = std::fs::read_dir(path(&format!("{case}-{key}-{from}")))
                    .unwrap()
                    .count();
                assert_eq!(left, 0, "an empty queue is removed");
            }
        }
    }
    assert!(Path::new(&path("1-same-a")).is_dir());
}

/// One of two keys is replaced: the other's endpoint is not affected, and the payloads of the first go only to its heir.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_two_keys_is_replaced() {
    let (intake, reachable) = Intake::that_can_be_away(false).await;
    let other = "fedcba9876543210fedcba9876543210";
    let settings = |first: &str, elsewhere: &[&str]| {
        let mut settings = datadog(&intake.url());
        settings.api_key = Secret::new(first);
        let keys = elsewhere.iter().map(|key| Secret::new(*key)).collect();
        settings.additional_endpoints = BTreeMap::from([(intake.url(), keys)]);
        settings
    };
    let around = environment(Clock::system());
    let old = start(
        &settings(KEY, &[other, "to-be-removed-0123456789"]),
        None,
        &around,
    );
    submit(&old, 0, "a:1|g\n");
    let tried = old.wait_for(|status| {
        status
            .endpoints
            .iter()
            .all(|endpoint| endpoint.counts[OutputCounter::AttemptsFailed] > 0)
    });
    tokio::time::timeout(DEADLINE, tried).await.expect("attempts");
    let new = start(&settings(KEY, &[other]), Some(&old), &around);
    new.take_over(&old).await;
    submit(&new, 1, "b:1|g\n");
    reachable.store(true, Ordering::SeqCst);
    // Payloads without a successor are delivered by the old output.
    old.retry_now();
    old.shutdown(DEADLINE).await;
    let left = old.status();
    assert_eq!(
        (left.endpoints.len(), left.endpoints[0].delivered.points),
        (1, 1),
        "{left:#?}"
    );
    new.retry_now();
    until_idle(&new).await;
    let status = new.status();
    assert!(status.balances() && left.balances(), "{status:#?}");
    assert!(
        status
            .endpoints
            .iter()
            .all(|endpoint| endpoint.delivered.points == 2),
        "{status:#?}"
    );
    new.shutdown(DEADLINE).await;
}
