//! Processes that are killed at random instants: what is missing is what the next start says.

use crate::support;
use std::time::Duration;

use support::manager::Manager;
use support::senders::{Senders, over_udp, over_unixgram, total};
use support::{status, until};

/// `WEIR_TEST_KILLS` in a long run.
fn kills() -> usize {
    let number = std::env::var("WEIR_TEST_KILLS")
        .ok()
        .and_then(|number| number.parse().ok());
    number.unwrap_or(5)
}

/// Sockets outlive the process, so that all that was sent is received by one process or another.
#[test]
fn a_kill_loses_exactly_the_reported_samples() {
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
        "bucket_width: 1h\nreceive_buffer: 8MiB\nuds: {}\noutputs:\n  stdout: {{enabled: true}}\n",
        datagrams.display()
    );
    let environment = [("WEIR_STATE_PATH", kept.to_str().unwrap())];
    let mut agent = manager.start(&config, &environment);
    let senders = Senders::start(
        vec![over_udp(agent.address()), over_unixgram(&datagrams)],
        Duration::from_millis(1),
    );
    let (mut lost, mut within) = (0, 0.0);
    for _ in 0..kills() {
        std::thread::sleep(Duration::from_millis(300 + random() % 2500));
        agent.signal("-KILL");
        drop(agent);
        agent = manager.start(&config, &environment);
        let told = agent.wait_for("the previous process was killed: ");
        let number = told.split(' ').next().unwrap();
        let number: u64 = number.parse().unwrap();
        let seconds = told
            .split("in its last ")
            .nth(1)
            .unwrap()
            .split(' ')
            .next()
            .unwrap();
        let seconds: f64 = seconds.parse().unwrap();
        println!("lost {number} samples of {seconds} s");
        // A tick a second, and what a busy machine is late.
        assert!(seconds < 3.0, "{told}");
        lost += number;
        within += seconds;
    }
    senders.wait_for_more();
    let sent = senders.end();
    let admin = agent.wait_for("admin on http://");
    let open = || status(&admin)["state"]["samples_open"].as_u64().unwrap();
    // The kernel's buffer is empty by now.
    let mut before = 0;
    until("nothing more comes", || {
        let now = open();
        std::thread::sleep(Duration::from_millis(1500));
        std::mem::replace(&mut before, now) == now && now > 0
    });
    assert_eq!(status(&admin)["state"]["samples_lost"], lost);
    let missing = sent - open();
    println!("sent {sent}, missing {missing}, reported {lost}, {within} s");
    let difference = missing.abs_diff(lost);
    assert!(
        difference * 100 <= lost.max(100),
        "{missing} are missing, {lost} were reported"
    );
    // Nothing can be kept, so the bucket is flushed: it has what the status says.
    let open = open();
    std::fs::remove_dir_all(&kept).unwrap();
    let (stdout, _) = agent.stop();
    assert_eq!((total(&stdout, "c") * 3600.0).round(), open as f64);
}
