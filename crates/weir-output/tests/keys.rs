//! Keys come and go; what waits on disk stays.

use crate::support;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use support::*;
use weir_aggregate::Expansion;
use weir_output::OutputCounter;
use weir_output::datadog;
use weir_output::delivery::{Clock, Delivery};
use weir_output::settings::{Secret, Start};

/// An intake that answers only on request.
struct Away {
    intake: Intake,
    reachable: Arc<AtomicBool>,
}

impl Away {
    async fn start() -> Self {
        let (intake, reachable) = Intake::that_can_be_away(false).await;
        Self { intake, reachable }
    }

    fn output(&self, disk: &Path, keys: &[&str]) -> Delivery {
        let mut settings = support::datadog(&self.intake.url());
        settings.api_key = Secret::new(keys[0]);
        let more = keys[1..].iter().map(|key| Secret::new(*key)).collect();
        settings.additional_endpoints = BTreeMap::from([(self.intake.url(), more)]);
        settings.delivery.disk_path = disk.display().to_string();
        settings.delivery.disk_bytes_max = 64 << 20;
        let around = environment(Clock::system());
        datadog::start("datadog", &settings, Arc::new(Expansion::default()), &around).unwrap()
    }

    /// Runs an output with these keys that is given a point and delivers nothing.
    async fn queue(&self, disk: &Path, keys: &[&str]) {
        let output = self.output(disk, keys);
        batches("a:1|g\n").iter().for_each(|batch| output.submit(batch));
        all_is_encoded(&output).await;
        output.shutdown(Duration::ZERO).await;
        for endpoint in output.status().endpoints {
            assert_eq!(endpoint.pending.disk.points, 1, "{endpoint:?}");
        }
    }

    /// Runs an output with these keys that delivers; the points that each found on disk.
    async fn deliver(&self, disk: &Path, keys: &[&str]) -> Vec<u64> {
        self.reachable.store(true, Ordering::SeqCst);
        let output = self.output(disk, keys);
        // A stop leaves on disk what is not delivered within a second.
        wait(&output, "all is delivered", idle).await;
        output.shutdown(DEADLINE).await;
        let status = output.status();
        assert!(status.balances(), "{status:#?}");
        let endpoints = status.endpoints.iter();
        endpoints
            .map(|endpoint| {
                assert_eq!(endpoint.delivered, endpoint.restored, "{status:#?}");
                endpoint.restored.points
            })
            .collect()
    }

    /// Keys with which points arrived.
    fn keys(&self) -> BTreeSet<String> {
        let requests = self.intake.requests().into_iter();
        requests
            .filter(|request| request.path == "/api/v2/series" && self.reachable.load(Ordering::SeqCst))
            .map(|request| request.header("dd-api-key").to_owned())
            .collect()
    }
}

const OLD: &str = "00000000000000000000000000000old";
const NEW: &str = "11111111111111111111111111111new";
const OTHER: &str = "222222222222222222222222222other";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_replaces_another_delivers_its_queue() {
    let (away, disk) = (Away::start().await, tempfile::tempdir().unwrap());
    away.queue(disk.path(), &[OLD, KEY]).await;
    // Of two keys the first is replaced: its queue goes over, the other's stays its own.
    assert_eq!(away.deliver(disk.path(), &[NEW, KEY]).await, [1, 1]);
    assert!(away.keys().contains(NEW), "{:?}", away.keys());
    let left = std::fs::read_dir(disk.path()).unwrap().count();
    assert_eq!(left, 2, "a directory for each key there is");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_ambiguous_queue_is_not_taken_over() {
    // Two keys are new: whose predecessor it was cannot be known.
    let (away, disk) = (Away::start().await, tempfile::tempdir().unwrap());
    away.queue(disk.path(), &[OLD]).await;
    assert_eq!(away.deliver(disk.path(), &[NEW, OTHER]).await, [0, 0]);
    // The old key is back, and so is its queue.
    assert_eq!(away.deliver(disk.path(), &[OLD]).await, [1]);

    // Two are gone.
    let (away, disk) = (Away::start().await, tempfile::tempdir().unwrap());
    away.queue(disk.path(), &[OLD, OTHER]).await;
    assert_eq!(away.deliver(disk.path(), &[NEW]).await, [0]);

    // It is another backend's.
    let (away, elsewhere) = (Away::start().await, Away::start().await);
    let disk = tempfile::tempdir().unwrap();
    away.queue(disk.path(), &[OLD]).await;
    assert_eq!(elsewhere.deliver(disk.path(), &[NEW]).await, [0]);

    // The old key's process still runs.
    let (away, disk) = (Away::start().await, tempfile::tempdir().unwrap());
    let running = away.output(disk.path(), &[OLD]);
    batches("a:1|g\n").iter().for_each(|batch| running.submit(batch));
    let queued = running.wait_for(|status| status.endpoints[0].counts[OutputCounter::AttemptsFailed] > 0);
    tokio::time::timeout(DEADLINE, queued).await.expect("an attempt");
    assert_eq!(away.deliver(disk.path(), &[NEW]).await, [0]);
    wait(&running, "it is delivered", idle).await;
    running.shutdown(DEADLINE).await;
    assert_eq!(running.status().endpoints[0].delivered.points, 1);
}

/// Where a token is a header, the queue belongs to the URL alone: after the token is replaced, waiting payloads are delivered with the new one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_that_replaces_another_delivers_its_queue() {
    let start = |name: &str, url: &str, token: &str, disk: &Path| {
        let authorization = authorization(&[("Authorization", token)]);
        let mut kept = delivery();
        kept.disk_path = disk.display().to_string();
        kept.disk_bytes_max = 64 << 20;
        let settings: Box<dyn Start> = match name {
            "otlp" => Box::new(weir_output::otlp::OtlpSettings {
                authorization,
                delivery: kept,
                ..otlp(url)
            }),
            _ => Box::new(weir_output::remote_write::RemoteWriteSettings {
                authorization,
                delivery: kept,
                ..remote_write(url)
            }),
        };
        let around = environment(Clock::system());
        settings
            .start(name, &Arc::new(Expansion::default()), &around)
            .unwrap()
    };
    for name in ["otlp", "remote_write"] {
        let (intake, reachable) = Intake::that_can_be_away(false).await;
        let disk = tempfile::tempdir().unwrap();
        let first = start(name, &intake.url(), "Bearer old", disk.path());
        batches("a:1|g\n").iter().for_each(|batch| first.submit(batch));
        all_is_encoded(&first).await;
        first.shutdown(Duration::ZERO).await;
        drop(first);
        // One that was on its way when the first output ended is not among those of the second.
        intake.wait_for_ended_clients().await;
        let before = intake.requests().len();
        reachable.store(true, Ordering::SeqCst);
        let second = start(name, &intake.url(), "Bearer new", disk.path());
        assert!(second.status().endpoints[0].restored.points >= 1, "{name}");
        wait(&second, "all is delivered", idle).await;
        second.shutdown(DEADLINE).await;
        let status = second.status();
        assert!(status.balances() && idle(&status), "{name}: {status:#?}");
        assert_eq!(
            status.endpoints[0].delivered, status.endpoints[0].restored,
            "{name}"
        );
        let requests = intake.requests();
        let after = &requests[before..];
        let is_new = |request: &Request| request.header("authorization") == "Bearer new";
        assert!(!after.is_empty() && after.iter().all(is_new), "{name}");
    }
}
