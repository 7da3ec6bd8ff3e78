//! The file system of the disk queue is full: a warning, and payloads wait in memory until there is room again.

mod support;

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use support::*;
use weir_aggregate::Expansion;
use weir_output::datadog;
use weir_output::delivery::Clock;

/// Runs in a mount namespace of its own, in which the directory is a file system of 256 KiB.
#[test]
fn child() {
    let Ok(directory) = std::env::var("WEIR_TEST_DISK_FULL_CHILD") else {
        return;
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let reachable = Arc::new(AtomicBool::new(false));
        let script = reachable.clone();
        let intake =
            Intake::start(move |_| Reply::Status(if script.load(Ordering::SeqCst) { 202 } else { 503 }))
                .await;
        let mut settings = datadog(&intake.url());
        settings.compression = weir_output::settings::Compression::None;
        settings.delivery.disk_path = directory;
        settings.delivery.disk_bytes_max = 64 << 20;
        let output = datadog::start(
            "datadog",
            &settings,
            Arc::new(Expansion::default()),
            &surroundings(Clock::system()),
        )
        .unwrap();
        let mut sent = 0;
        let mut submit = |n: i64| {
            let messages: String = (0..100)
                .map(|i| format!("m{i}:{n}|g|#a:{}\n", "x".repeat(100)))
                .collect();
            batches_at(BUCKET + n * 10, &messages)
                .iter()
                .for_each(|batch| output.submit(batch));
            sent += 100;
            sent
        };
        let mut n = 0;
        while output.status().endpoints[0].disk_error.is_none() {
            assert!(n < 100, "256 KiB hold no more than that");
            let sent = submit(n);
            output
                .wait_for(|status| {
                    status.received.points == sent
                        && (status.endpoints[0].pending.inbox + status.endpoints[0].pending.open_payloads)
                            .is_zero()
                })
                .await;
            n += 1;
        }
        let status = output.status();
        assert!(
            status.endpoints[0]
                .disk_error
                .as_ref()
                .unwrap()
                .contains("No space left"),
            "{status:#?}"
        );
        assert!(status.balances() && status.endpoints[0].dropped.is_empty());
        // Delivery goes on from memory, what is on disk is done with, and then there is room again.
        reachable.store(true, Ordering::SeqCst);
        output
            .wait_for(|status| status.endpoints[0].pending.total().is_zero())
            .await;
        let sent = submit(n);
        output
            .wait_for(|status| status.endpoints[0].delivered.points == sent)
            .await;
        let status = output.status();
        assert!(
            status.endpoints[0].disk_error.is_none() && status.balances() && status.healthy,
            "{status:#?}"
        );
        output.shutdown(DEADLINE).await;
    });
}

#[test]
fn full() {
    if std::env::var_os("WEIR_TEST_DISK_FULL_CHILD").is_some() {
        return;
    }
    let unshare = ["--user", "--map-root-user", "--mount"];
    if !Command::new("unshare")
        .args(unshare)
        .arg("true")
        .status()
        .is_ok_and(|status| status.success())
    {
        println!("skipped: this system gives no mount namespace to mount a small file system in");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let script = r#"mount -t tmpfs -o size=256k none "$WEIR_TEST_DISK_FULL_CHILD" && exec "$0" --exact child --nocapture"#;
    let status = Command::new("timeout")
        .args(["60", "unshare"])
        .args(unshare)
        .args(["sh", "-c", script])
        .arg(std::env::current_exe().unwrap())
        .env("WEIR_TEST_DISK_FULL_CHILD", directory.path())
        .status()
        .unwrap();
    assert!(status.success(), "{status}");
}
