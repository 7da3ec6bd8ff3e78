//! Processes that are killed at random instants: what is missing is what the next start says.

use crate::support;
use std::time::Duration;

use support::manager::Manager;
use support::place::{replace_by_a_file, wait_for_all};
use support::senders::{Senders, number, over_udp, over_unixgram, total};
use support::{long_bucket, status};

/// Sockets outlive the process, so that all that was sent is received by one process or another.
/// In the gate: restart::a_kill_loses_the_samples_since_the_last_checkpoint_and_reports_it, sums_continue_after_a_kill.
#[test]
#[ignore = "nightly: kills at random instants"]
fn a_kill_loses_the_reported_samples() {
    let seed = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap()
        .as_nanos() as u64;
    println!("seed {seed}");
    let mut state = seed | 1;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state >> 33
    };
    let mut manager = Manager::new();
    let directory = manager.path().to_owned();
    let (datagrams, kept) = (directory.join("datagrams"), directory.join("state"));
    let config = format!(
        "bucket_width: LONG\nworkers: 1\nreceive_buffer: 8MiB\nuds: {}\noutputs:\n  stdout: {{enabled: true}}\n",
        datagrams.display()
    );
    let environment = [("WEIR_STATE_PATH", kept.to_str().unwrap())];
    let mut agent = manager.start(&config, &environment);
    let senders = Senders::start(
        vec![over_udp(agent.address()), over_unixgram(&datagrams)],
        Duration::from_millis(1),
    );
    let mut lost = 0;
    for _ in 0..number("WEIR_TEST_KILLS", 5) {
        std::thread::sleep(Duration::from_millis(300 + random() % 2500));
        agent.signal("-KILL");
        drop(agent);
        agent = manager.start(&config, &environment);
        let told = agent.wait_for("the previous process was killed: ");
        let number: u64 = told.split(' ').next().unwrap().parse().unwrap();
        println!("{told}");
        lost += number;
    }
    senders.wait_for_more();
    let sent = senders.end();
    let admin = agent.wait_for("admin on http://");
    wait_for_all(&admin, &datagrams, Some(agent.address()));
    let state = status(&admin)["state"].clone();
    assert_eq!(state["samples_lost"], lost);
    let open = state["samples_open"].as_u64().unwrap();
    let missing = sent - open;
    println!("sent {sent}, missing {missing}, reported {lost}");
    let difference = missing.abs_diff(lost);
    assert!(
        difference * 100 <= lost.max(100),
        "{missing} are missing, {lost} were reported"
    );
    // Nothing can be kept, so the bucket is flushed: it has what the status says.
    replace_by_a_file(&kept);
    let (stdout, _) = agent.stop();
    assert_eq!((total(&stdout, "c") * long_bucket()).round(), open as f64);
}
