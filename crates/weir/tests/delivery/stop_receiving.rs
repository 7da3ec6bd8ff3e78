//! While one output is down, a stop does not make the agent deaf for the others: it receives until nearly the end of the grace
//! period, and what it took is in the output that works.

use std::time::{Duration, Instant};

use crate::delivery::receiver::{HANG, Receiver};
use crate::support::ports::free_address;
use crate::support::{Agent, PATIENCE, PointBooks, until};

const KEY: &str = "0123456789abcdef0123456789abcdef";

struct Setup {
    directory: tempfile::TempDir,
    healthy: Receiver,
}

impl Setup {
    fn new() -> Setup {
        Setup {
            directory: tempfile::tempdir().unwrap(),
            healthy: Receiver::start(202),
        }
    }

    /// One output to `dead` and one that works.
    fn start(&self, grace: &str, dead: &str, disk: bool) -> Agent {
        let path = self.directory.path().join("weir.yaml");
        let queue = match disk {
            true => format!("disk_path: {}/queue, ", self.directory.path().display()),
            false => String::new(),
        };
        let intake = |url: &str, delivery: &str| {
            format!(
                "{{type: datadog, api_key: {KEY}, url: '{url}', series_format: v2_json, compression: none, delivery: {{{delivery}timeout: 1h}}}}"
            )
        };
        let text = format!(
            "bucket_width: 1s\ngrace_period: {grace}\noutputs:\n  dead: {}\n  healthy: {}\n",
            intake(dead, &queue),
            intake(&self.healthy.url, "")
        );
        std::fs::write(&path, text).unwrap();
        Agent::start(&["--config", path.to_str().unwrap()], &[])
    }
}

/// Sends after SIGTERM until nobody listens any more.
fn check(dead: &str) {
    let setup = Setup::new();
    let mut agent = setup.start("4s", dead, false);
    agent.send("before:1|c");
    until("the dead output holds a point", || {
        let books = PointBooks::read(&agent.output("dead")["points"]);
        let tried = agent.output("dead")["points"]["pending_where"]["under_way"].as_u64() > Some(0)
            || agent.output("dead")["healthy"] == false;
        (books.pending > 0 && tried)
            .then_some(())
            .ok_or(format!("{books:?}"))
    });
    agent.signal("-TERM");
    agent.wait_for("SIGTERM: ");
    let begun = Instant::now();
    let mut sent = 0;
    while agent.try_send("during:1|c").is_ok() {
        sent += 1;
        assert!(begun.elapsed() < PATIENCE, "it does not end");
        std::thread::sleep(Duration::from_millis(20));
    }
    let received_for = begun.elapsed();
    let ended = agent.ended_with_a_loss();
    println!(
        "received for {received_for:?} after SIGTERM, {sent} datagrams; ended after {:?}",
        begun.elapsed()
    );
    assert!(ended.contains("not everything was delivered"), "{ended}");
    // The output has three of the four seconds to get rid of what it holds.
    assert!(
        received_for >= Duration::from_secs(2),
        "deaf after {received_for:?}"
    );
    assert_eq!(setup.healthy.sum("before"), 1.0);
    assert_eq!(setup.healthy.sum("during"), f64::from(sent));
}

#[test]
fn an_output_that_answers_503() {
    check(&Receiver::start(503).url);
}

#[test]
fn an_output_that_hangs() {
    check(&Receiver::start(HANG).url);
}

#[test]
fn an_output_that_refuses_connections() {
    check(&format!("http://{}", free_address()));
}

/// There is nothing to wait for, so the grace period does not matter: this test would take an hour.
#[test]
fn healthy_outputs_and_disk_queues_are_not_waited_for() {
    let setup = Setup::new();
    let agent = setup.start("1h", &Receiver::start(202).url, false);
    agent.send("last:1|c");
    agent.finish();
    assert_eq!(setup.healthy.sum("last"), 1.0);

    let dead = Receiver::start(HANG);
    let agent = setup.start("1h", &dead.url, true);
    agent.send("last:1|c");
    until("it is on disk", || {
        let output = agent.output("dead");
        (output["disk_bytes"].as_u64() > Some(0))
            .then_some(())
            .ok_or(output.to_string())
    });
    agent.send("last:1|c");
    agent.finish();
    assert_eq!(setup.healthy.sum("last"), 3.0);
    dead.answer_with(202);
    let agent = setup.start("1h", &dead.url, true);
    until("what was on disk arrives", || {
        let found = dead.sum("last");
        (found == 2.0).then_some(()).ok_or(format!("{found}"))
    });
    agent.finish();
}
