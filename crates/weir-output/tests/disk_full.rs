//! The file system of the disk queue is full: a warning, and payloads wait in memory until there is room again.

use crate::support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use support::*;
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;
use weir_aggregate::Expansion;
use weir_output::delivery::{Clock, Delivery};
use weir_output::settings::Start;

/// A carbon that closes connections at once while it is down.
async fn carbon() -> (String, Arc<AtomicBool>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("tcp://{}", listener.local_addr().unwrap());
    let reachable = Arc::new(AtomicBool::new(false));
    let script = reachable.clone();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let is_reachable = script.load(Ordering::SeqCst);
            tokio::spawn(async move {
                if is_reachable {
                    drop(stream.read_to_end(&mut Vec::new()).await);
                }
            });
        }
    });
    (address, reachable)
}

/// The output with its queue in `directory`, and what makes its backend reachable.
async fn start(name: &str, directory: &str) -> (Delivery, Arc<AtomicBool>) {
    let mut kept = delivery();
    kept.disk_path = format!("{directory}/{name}");
    kept.disk_bytes_max = 64 << 20;
    let around = environment(Clock::system());
    if name == "graphite" {
        let (address, reachable) = carbon().await;
        let mut settings = graphite(&address);
        settings.delivery = kept.queue;
        let started = settings.start(name, &Arc::new(Expansion::default()), &around);
        return (started.unwrap(), reachable);
    }
    let (intake, reachable) = Intake::that_can_be_away(false).await;
    (start_output(name, &intake.url(), kept, &around), reachable)
}

/// A flush that no compression makes small.
fn messages(round: u64) -> String {
    let mut state = round + 1;
    let mut line = |i: u64| {
        let mut padding = String::new();
        for _ in 0..6 {
            state = state
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            padding += &format!("{state:016x}");
        }
        format!("m{i}:{round}|g|#a:{padding}\n")
    };
    (0..100).map(&mut line).collect()
}

/// Runs in a mount namespace of its own, in which the directory is a file system of 256 KiB.
#[test]
#[ignore = "a process of another test"]
fn child() {
    let Ok(directory) = std::env::var("WEIR_TEST_DISK_FULL_CHILD") else {
        return;
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    for name in OVER_HTTP.into_iter().chain(["graphite"]) {
        runtime.block_on(full_and_free_again(name, &directory));
        std::fs::remove_dir_all(format!("{directory}/{name}")).unwrap();
        runtime.block_on(room_during_an_outage(name, &directory));
        std::fs::remove_dir_all(format!("{directory}/{name}")).unwrap();
    }
}

/// A flush of the series with this number.
async fn submit(output: &Delivery, name: &str, round: u64, series: u64) {
    let before = output.status().received.points;
    let batches = batches_at(BUCKET + round as i64 * 10, &messages(series));
    batches.iter().for_each(|batch| output.submit(batch));
    wait(output, name, |status| {
        let pending = status.endpoints[0].pending;
        status.received.points >= before + 100 && (pending.inbox + pending.open_payloads).is_zero()
    })
    .await;
}

/// Submits until the disk is full, the same series or others each time. Returns how many rounds it took.
async fn fill(output: &Delivery, name: &str, series: fn(u64) -> u64) -> u64 {
    let mut round = 0;
    while output.status().endpoints[0].disk_error.is_none() {
        assert!(round < 100, "{name}: 256 KiB hold no more than that");
        submit(output, name, round, series(round)).await;
        round += 1;
    }
    round
}

/// Another program used up the disk and frees it during the outage: payloads in memory are written, and the end loses
/// nothing of it.
async fn room_during_an_outage(name: &str, directory: &str) {
    let ballast = format!("{directory}/ballast");
    std::fs::write(&ballast, vec![1; 160 << 10]).unwrap();
    let (output, _) = start(name, directory).await;
    // Cumulative values are sent again in every round, and must not outgrow the disk.
    let round = fill(&output, name, |_| 0).await;
    submit(&output, name, round, 0).await;
    let status = output.status();
    assert!(!status.is_safe() && status.balances(), "{name}: {status:#?}");
    std::fs::remove_file(ballast).unwrap();
    submit(&output, name, round + 1, 0).await;
    let status = output.status();
    assert!(status.is_safe() && status.balances(), "{name}: {status:#?}");
    assert_eq!(status.endpoints[0].disk_error, None, "{name}");
    output.shutdown(Duration::ZERO).await;
    let status = output.status();
    assert!(status.endpoints[0].dropped.is_empty(), "{name}: {status:#?}");
    assert_eq!(
        status.endpoints[0].pending.disk, status.received,
        "{name}: for the next process"
    );
}

async fn full_and_free_again(name: &str, directory: &str) {
    let (output, reachable) = start(name, directory).await;
    let round = fill(&output, name, |round| round).await;
    let status = output.status();
    let error = status.endpoints[0].disk_error.as_ref().unwrap();
    assert!(error.contains("No space left"), "{name}: {status:#?}");
    assert!(
        status.balances() && status.endpoints[0].dropped.is_empty(),
        "{name}: {status:#?}"
    );
    // Delivery continues from memory, payloads on disk are completed, and then there is room again.
    reachable.store(true, Ordering::SeqCst);
    wait(&output, name, idle).await;
    let error = output.status().endpoints[0].disk_error.clone();
    assert_eq!(error, None, "{name}: nothing waits in memory any more");
    let before = output.status().received.points;
    submit(&output, name, round, round).await;
    let status = wait(&output, name, |status| {
        status.received.points >= before + 100 && idle(status)
    })
    .await;
    let endpoint = &status.endpoints[0];
    assert!(
        endpoint.disk_error.is_none() && status.balances() && status.healthy,
        "{name}: {status:#?}"
    );
    assert_eq!(endpoint.delivered, status.received, "{name}");
    output.shutdown(DEADLINE).await;
}

#[test]
fn full() {
    child_on_a_small_disk("disk_full::child", "WEIR_TEST_DISK_FULL_CHILD");
}
