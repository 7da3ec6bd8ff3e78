//! A stop and a start: the next process continues where the previous one ended. And the state directory: who may write in it, and what weir
//! does where it cannot.

use crate::support;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use serde_json::Value;
use support::place::{self, received};
use support::senders::total;
use support::{Agent, get, long_bucket, status, until, weir};

/// Long enough that no bucket ends by itself while a test looks at it.
const LONG: &str = "bucket_width: LONG\n";

struct Place(place::Place);

impl Place {
    fn new() -> Place {
        Place(place::Place::new())
    }

    fn path(&self) -> PathBuf {
        self.0.path("state")
    }

    fn start(&self, config: &str) -> Running {
        let agent = self.0.start(config);
        Running { agent }
    }
}

struct Running {
    agent: Agent,
}

impl Running {
    /// Sends, and waits until it is counted.
    fn send(&self, messages: &str) {
        let before = self.samples();
        self.agent.send(messages);
        until("the samples are counted", || self.samples() > before);
    }

    fn samples(&self) -> u64 {
        received(&self.agent.admin)
    }

    fn status(&self) -> Value {
        self.agent.status()
    }

    fn scrape(&self) -> String {
        get(&self.agent.admin, "/metrics").1
    }
}

fn has(directory: &Path, name: &str) -> bool {
    directory.join(name).exists()
}

/// Prometheus saw a reset of every counter.
#[test]
fn counters_of_a_scrape_and_of_the_books_continue() {
    let place = Place::new();
    let config = "bucket_width: 1s\ncounter_expiry: 0\n";
    let first = place.start(config);
    first.send("c:3|c\nd:1:2|d\nh:7|h");
    until("the bucket is flushed", || first.scrape().contains("c_total"));
    first.send("c:1|c\nbad line");
    let before = first.status();
    first.agent.stop();

    let second = place.start(config);
    // The bucket that was open ends in this process.
    until("the sum continues", || second.scrape().contains("\nc_total 4"));
    second.send("c:5|c");
    until("and on", || second.scrape().contains("\nc_total 9"));
    let exposition = second.scrape();
    assert!(exposition.contains("\nd_sum 3"), "{exposition}");
    assert!(exposition.contains("\nh_count 1"), "{exposition}");
    let after = second.status();
    let total = |status: &Value, path: &str| status.pointer(path).unwrap().as_u64().unwrap();
    assert_eq!(total(&before, "/total/samples/received"), 5);
    assert_eq!(total(&after, "/total/samples/received"), 6);
    assert_eq!(total(&after, "/total/messages/received"), 6);
    assert!(
        after["total"]["messages"]["rejected"]
            .as_object()
            .unwrap()
            .values()
            .any(|count| *count == 1)
    );
    assert_eq!(
        after["state"]["restored_from"].as_u64().map(|at| at > 0),
        Some(true)
    );
    // The shown books balance at the end of every process.
    second.agent.stop();
    let third = place.start(config);
    assert_eq!(third.samples(), 6);
    third.agent.stop();
}

/// The checkpoint of the only worker.
fn checkpoint(place: &Place) -> Option<PathBuf> {
    let names = std::fs::read_dir(place.path()).ok()?.flatten();
    let mut paths = names.map(|entry| entry.path());
    paths.find(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("open-") && !name.ends_with(".new")
    })
}

/// A start that fails must not cost the state, whatever it fails for.
#[test]
fn a_kill_loses_the_samples_since_the_last_checkpoint_and_reports_it_and_refused_starts_lose_none() {
    let place = Place::new();
    let running = place.start(LONG);
    running.send("c:1:2:3|c|#a:b\ng:5|g\nh:1:2|h\nd:3:4|d\ns:x|s\nt:7|ms");
    until("a checkpoint has them", || {
        let kept = checkpoint(&place).map(std::fs::read);
        kept.is_some_and(|kept| {
            String::from_utf8_lossy(&kept.unwrap_or_default()).contains("{\"samples\":10,")
        })
    });
    running.send("c:4|c|#a:b");
    running.agent.signal("-KILL");
    drop(running);
    let mut next = place.start(LONG);
    let told = next.agent.wait_for("the previous process was killed: ");
    // A worker says what it took over with its first counts.
    until("the worker has the contexts", || {
        next.status()["state"]["contexts_restored"] == 6
    });
    let found = next.status();
    let number = |name: &str| found["state"][name].as_u64().unwrap();
    assert_eq!(number("samples_restored") + number("samples_lost"), 11, "{told}");
    assert!(number("samples_restored") >= 10, "{told}");
    assert!(
        told.starts_with(&format!("{} samples are lost", number("samples_lost"))),
        "{told}"
    );
    assert_eq!(number("kills"), 1);
    let lost = format!("weir_saved_state_lost_samples_total {}", number("samples_lost"));
    assert!(next.scrape().contains(&lost));
    let said = refused("127.0.0.1:0", &place.path());
    assert!(said.contains("another weir uses it"), "{said}");
    next.agent.stop();
    let taken = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    refused(&taken.local_addr().unwrap().to_string(), &place.path());
    let set_mode = |mode| {
        let mode = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(place.path(), mode).unwrap();
    };
    if place.path().metadata().unwrap().uid() == 0 {
        set_mode(0o777);
        let said = refused("127.0.0.1:0", &place.path());
        assert!(
            said.contains("mode 0777") && said.contains("chmod go-w"),
            "{said}"
        );
        set_mode(0o755);
    }
    // A kill is reported once, and a clean end is not reported.
    let last = place.start(LONG);
    assert_eq!(last.status()["state"]["kills"], 1);
    assert_eq!(
        last.status()["state"]["samples_restored"],
        number("samples_restored")
    );
    last.agent.stop();
    for name in ["books", "sums"] {
        assert!(!has(&place.path(), name), "{name}");
    }
    assert_eq!(checkpoint(&place), None);
    let names = std::fs::read_dir(place.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name());
    let tallies: Vec<_> = names
        .filter(|name| name.to_string_lossy().starts_with("tally-"))
        .collect();
    assert!(tallies.is_empty(), "{tallies:?}");
}

/// A start that is not to succeed, with this UDP address and this directory.
fn refused(udp: &str, directory: &Path) -> String {
    let path = directory.to_str().unwrap();
    let (ok, said) = weir(&["run", "--udp", udp, "--admin", "off", "--state-path", path]);
    assert!(!ok, "{said}");
    said
}

/// The file was opened, which needs no room, and then the state found none: the bucket was lost with outputs that were up.
#[test]
fn a_disk_that_is_known_to_be_full_means_a_flush_at_the_stop() {
    let directory = tempfile::tempdir().unwrap();
    let config = format!(
        "workers: 1\nbucket_width: LONG\nstate_path: {}\noutputs:\n  stdout: {{enabled: true}}\n",
        directory.path().join("state").display()
    );
    // Files of at most 64 KiB, which is more than the books need, and less than the bucket.
    let mut agent = Agent::start_after("ulimit -f 128", &config);
    let admin = agent.wait_for("admin on http://");
    let received = || status(&admin)["total"]["samples"]["received"].as_u64();
    for block in 0..60 {
        let lines: Vec<String> = (0..50)
            .map(|number| format!("c:1|c|#with:a-long-tag-that-needs-room,number:{block}-{number}"))
            .collect();
        agent.send(&lines.join("\n"));
        // As many as the socket holds. What was received is known once a second.
        if block % 10 == 9 {
            until("the blocks are read", || received() >= Some((block + 1) * 50));
        }
    }
    agent.wait_for("the open bucket cannot be saved");
    let (stdout, log) = agent.stop();
    assert!(log.contains("so the open bucket is flushed"), "{log}");
    assert_eq!((total(&stdout, "c") * long_bucket()).round(), 3000.0);
    // There is nothing left to report or to deliver again.
    let next = Agent::start(&config, &[]);
    let (_, log) = next.stop();
    assert!(
        !log.contains("was killed") && !log.contains("continues from"),
        "{log}"
    );
}

/// The reason was in the log of the agent alone.
#[test]
fn an_upgrade_says_why_the_new_process_cannot_write_in_the_directory() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("state");
    let config = format!("workers: 1\nbucket_width: LONG\nstate_path: {}\n", path.display());
    let agent = Agent::start(&config, &[]);
    std::fs::create_dir(path.join("agent.new")).unwrap();
    let (ok, said) = weir(&["upgrade", "--state-path", path.to_str().unwrap()]);
    assert!(!ok && said.contains("its files cannot be written"), "{said}");
    agent.stop();
}
