//! Two processes over one log, which are killed in turn while an agent publishes.

use std::os::unix::net::UnixDatagram;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::merge::process::{Merge, config};
use crate::support::senders::number;
use crate::support::{Agent, until};

/// The process that has the log is killed, then the one that has the outputs, and so on. `WEIR_TEST_KILLS`: how often.
/// In the gate: merge::faults::receivers_have_what_was_sent_but_for_what_an_agent_names_as_lost.
#[test]
#[ignore = "nightly: kills in real time"]
fn owners_that_are_killed_in_turn_count_each_sample_once() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let agent = Agent::start(
        &format!(
            "bucket_width: 1s\nworkers: 1\nuds: {}\noutputs: {{kafka: {{directory: {}, partitions: 2}}}}\n",
            at("datagrams").display(),
            at("log").display()
        ),
        &[],
    );
    let socket = UnixDatagram::unbound().unwrap();
    socket.connect(at("datagrams")).unwrap();
    let start = |place: usize| {
        let own = at(&place.to_string());
        std::fs::create_dir_all(&own).unwrap();
        Merge::start(&own, &config(&at("log"), "grace: 5s\n"))
    };
    let mut running: Vec<Merge> = (0..2).map(start).collect();
    let (mut sent, mut of_both) = (0, 0);
    for kill in 0..number("WEIR_TEST_KILLS", 30) {
        let end = Instant::now() + Duration::from_millis(1500);
        while Instant::now() < end {
            for path in 0..50 {
                socket.send(format!("c:1|c|#path:{path}").as_bytes()).unwrap();
                sent += 1;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let owner = the_one("partitions_held", 2, &running);
        let sender = the_one("sends", true, &running);
        of_both += usize::from(owner == sender);
        let killed = if kill % 2 == 0 { owner } else { sender };
        running.remove(killed).kill();
        running.insert(killed, start(killed));
    }
    // It flushes its last bucket, and says that it ends.
    agent.stop();
    let found = || scraped(&running[the_one("sends", true, &running)]);
    until("the outputs have all", || found() >= sent);
    println!(
        "{sent} sent, {} in the scrape; {of_both} kills of a process that had both",
        found()
    );
    assert_eq!(found(), sent);
    let owner = the_one("partitions_held", 2, &running);
    let states = running[owner].fleet()["states"].clone();
    for lost in ["late", "quarantined", "missing", "lost"] {
        assert_eq!(states[lost], 0, "{states}");
    }
}

/// Waits until this is the value of one of the processes, which has the log, or the outputs.
fn the_one(field: &str, value: impl Into<Value>, running: &[Merge]) -> usize {
    let (value, mut found) = (value.into(), None);
    until(field, || {
        found = running.iter().position(|merge| merge.fleet()[field] == value);
        found.is_some()
    });
    found.unwrap()
}

fn scraped(merge: &Merge) -> i64 {
    let metrics = merge.metrics();
    let of_test = metrics.lines().filter(|line| line.starts_with("c_total{"));
    let values = of_test.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok());
    values.sum::<f64>() as i64
}
