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

/// The points of a metric on standard output.
fn points(stdout: &str, metric: &str) -> Vec<Value> {
    let lines = stdout
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap());
    lines.filter(|point| point["metric"] == metric).collect()
}

/// An open bucket was split in two at every restart: both halves had points of their own.
#[test]
fn the_open_bucket_continues_with_one_point_per_series() {
    let place = Place::new();
    let config = "bucket_width: 2s\ncounter_expiry: 0\noutputs:\n  stdout: {enabled: true}\n";
    let mut stdout = String::new();
    let mut sent = 0u32;
    for _ in 0..4 {
        let running = place.start(config);
        for _ in 0..3 {
            running.send("c:1|c\ng:5|g\ns:a|s\nh:1:2|h\nd:3|d");
            sent += 1;
        }
        let (out, log) = running.agent.stop();
        assert!(log.contains("state saved for the next process"), "{log}");
        stdout += &out;
    }
    let last = place.start(config);
    let buckets = last.status()["flush"]["count"].as_u64().unwrap();
    until("the bucket ends", || {
        last.status()["flush"]["count"].as_u64().unwrap() > buckets + 1
    });
    stdout += &last.agent.stop().0;
    let counter = points(&stdout, "c");
    let total: f64 = counter
        .iter()
        .map(|point| point["value"].as_f64().unwrap() * 2.0)
        .sum();
    assert_eq!(total, f64::from(sent), "{stdout}");
    for metric in ["c", "g", "s", "h.max", "h.count", "d"] {
        let found = points(&stdout, metric);
        let mut stamps: Vec<i64> = found.iter().map(|point| point["ts"].as_i64().unwrap()).collect();
        stamps.sort_unstable();
        let buckets: Vec<i64> = stamps.iter().map(|stamp| stamp - stamp % 2).collect();
        assert!(
            buckets.windows(2).all(|pair| pair[0] < pair[1]),
            "{metric}: {stamps:?}"
        );
    }
    let samples: u64 = points(&stdout, "d")
        .iter()
        .map(|point| point["cnt"].as_u64().unwrap())
        .sum();
    assert_eq!(samples, u64::from(sent));
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

#[test]
fn unusable_state_is_set_aside_and_the_agent_starts() {
    let good = {
        let place = Place::new();
        let running = place.start(LONG);
        running.send("c:1|c");
        running.agent.stop();
        std::fs::read(place.path().join("state")).unwrap()
    };
    let check = |bytes: &[u8], reason: &str| {
        let place = Place::new();
        std::fs::create_dir_all(place.path()).unwrap();
        std::fs::write(place.path().join("state"), bytes).unwrap();
        let mut running = place.start(LONG);
        let found = running.status();
        assert_eq!(found["state"]["set_aside"], 1, "{reason}: {found}");
        let because = found["state"]["set_aside_because"].as_str().unwrap();
        assert!(because.contains(reason), "{reason}: {because}");
        assert!(running.scrape().contains("weir_saved_state_set_aside_total 1"));
        assert!(has(&place.path(), "state.set-aside"));
        until("the report is in the books", || !has(&place.path(), "state"));
        running.agent.wait_for("is set aside as");
        running.send("c:1|c");
        running.agent.stop();
        // It is counted on.
        let next = place.start(LONG);
        assert_eq!(next.status()["state"]["set_aside"], 1);
        assert_eq!(next.samples(), 1);
    };
    check(b"", "truncated");
    check(b"something else", "not a state file of weir");
    check(&good[..good.len() / 2], "truncated");
    check(&good[..good.len() - 1], "truncated");
    let mut damaged = good.clone();
    let last = damaged.len() - 1;
    damaged[last] ^= 1;
    check(&damaged, "checksum");
    let mut newer = good.clone();
    newer[11] = 200;
    check(&newer, "version 200");
    // Of another agent: this directory begins with one of its own.
    check(&good, "another agent");
}

#[test]
fn state_that_is_too_old_is_set_aside_and_its_loss_reported() {
    let place = Place::new();
    let running = place.start(LONG);
    running.send("c:1:2:3|c");
    running.agent.stop();
    let saved = std::fs::metadata(place.path().join("state"))
        .unwrap()
        .modified()
        .unwrap();
    until("it is older than a second", || {
        saved
            .elapsed()
            .is_ok_and(|age| age > std::time::Duration::from_millis(1100))
    });
    let next = place.start("bucket_width: LONG\ncounter_expiry: 0\ncontext_expiry: 1s\n");
    let found = next.status();
    assert!(
        found["state"]["set_aside_because"]
            .as_str()
            .unwrap()
            .contains(" s old"),
        "{found}"
    );
    assert_eq!(found["state"]["samples_lost"], 3);
    next.agent.stop();
}

/// With another width the bucket cannot continue; the sums and the books do.
#[test]
fn another_bucket_width_loses_only_the_open_bucket_and_reports_it() {
    let place = Place::new();
    let running = place.start(LONG);
    running.send("c:1:2|c");
    running.agent.stop();
    let mut next = place.start("bucket_width: 30m\n");
    next.agent.wait_for("the open bucket is lost, with 2 samples");
    let found = next.status();
    assert_eq!(
        (found["state"]["samples_lost"].as_u64(), next.samples()),
        (Some(2), 2)
    );
    next.agent.stop();
}

/// A kill lost samples without a trace; then the whole bucket, and all sums.
/// The checkpoint of the only worker.
fn checkpoint(place: &Place) -> Option<PathBuf> {
    let names = std::fs::read_dir(place.path()).ok()?.flatten();
    let mut paths = names.map(|entry| entry.path());
    paths.find(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("open-") && !name.ends_with(".new")
    })
}

#[test]
fn a_kill_loses_the_samples_since_the_last_checkpoint_and_reports_it() {
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
    next.agent.stop();
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

/// Of cumulative outputs a kill loses nothing that was flushed a second before it.
#[test]
fn sums_continue_after_a_kill() {
    let place = Place::new();
    let config = "bucket_width: 1s\ncounter_expiry: 0\n";
    let running = place.start(config);
    running.send("c:3|c");
    until("it is flushed", || running.scrape().contains("\nc_total 3"));
    let sums = place.path().join("sums");
    let written = || std::fs::metadata(&sums).and_then(|found| found.modified()).ok();
    let before = written();
    until("the sums are kept", || written() > before);
    running.agent.signal("-KILL");
    drop(running);
    let next = place.start(config);
    assert!(next.scrape().contains("\nc_total 3"), "{}", next.scrape());
    next.send("c:4|c");
    until("the sum continues", || next.scrape().contains("\nc_total 7"));
    next.agent.stop();
}

/// Files after a kill may have any content.
#[test]
fn a_damaged_checkpoint_is_used_as_far_as_it_is_whole() {
    let place = Place::new();
    let running = place.start(LONG);
    running.send("c:1:2:3|c");
    until("a checkpoint has them", || {
        let kept = checkpoint(&place).map(std::fs::read);
        kept.is_some_and(|kept| {
            String::from_utf8_lossy(&kept.unwrap_or_default()).contains("{\"samples\":3,")
        })
    });
    running.agent.signal("-KILL");
    drop(running);
    let open = checkpoint(&place).expect("it is there");
    let whole = std::fs::read(&open).unwrap();
    std::fs::write(&open, &whole[..20]).unwrap();
    let next = place.start(LONG);
    let found = next.status();
    assert_eq!(
        (
            &found["state"]["samples_restored"],
            &found["state"]["samples_lost"]
        ),
        (&0.into(), &3.into()),
        "{found}"
    );
    next.agent.stop();
}

#[test]
fn a_directory_serves_one_weir() {
    let place = Place::new();
    let running = place.start(LONG);
    let said = refused("127.0.0.1:0", &place.path());
    assert!(said.contains("another weir uses it"), "{said}");
    running.agent.stop();
}

/// A start that fails must not cost the state.
#[test]
fn a_start_that_fails_leaves_the_state_for_the_next() {
    let place = Place::new();
    let running = place.start(LONG);
    running.send("c:1|c");
    running.agent.stop();
    let taken = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    refused(&taken.local_addr().unwrap().to_string(), &place.path());
    let next = place.start(LONG);
    assert_eq!(next.status()["state"]["samples_restored"], 1);
    next.agent.stop();
}

/// A start that is not to succeed, with this UDP address and this directory.
fn refused(udp: &str, directory: &Path) -> String {
    let path = directory.to_str().unwrap();
    let (ok, said) = weir(&["run", "--udp", udp, "--admin", "off", "--state-path", path]);
    assert!(!ok, "{said}");
    said
}

/// A process of root took whatever another user had put there.
#[test]
fn a_directory_in_which_others_may_write_is_refused_like_that_of_a_socket() {
    let parent = tempfile::tempdir().unwrap();
    if parent.path().metadata().unwrap().uid() != 0 {
        println!("skipped: not root");
        return;
    }
    let directory = parent.path().join("state");
    std::fs::create_dir(&directory).unwrap();
    let set_mode =
        |mode| std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(mode)).unwrap();
    for mode in [0o777, 0o775, 0o702] {
        set_mode(mode);
        let said = refused("127.0.0.1:0", &directory);
        assert!(
            said.contains(&format!("mode {mode:04o}")) && said.contains("chmod go-w"),
            "{said}"
        );
    }
    let path = directory.to_str().unwrap().to_owned();
    let starts = |warns: bool| {
        let agent = Agent::start("workers: 1\n", &[("WEIR_STATE_PATH", &path)]);
        let (_, log) = agent.stop();
        assert_eq!(log.contains("users other than this one"), warns, "{log}");
    };
    // Nobody can replace files of others in such a directory.
    set_mode(0o1777);
    starts(true);
    set_mode(0o755);
    starts(false);

    for name in ["agent", "state", "tally-7", "open-0", "numbers-7", "books"] {
        let file = directory.join(name);
        let before = std::fs::read(&file).unwrap_or_default();
        std::fs::write(&file, &before).unwrap();
        std::os::unix::fs::chown(&file, Some(65534), None).unwrap();
        let said = refused("127.0.0.1:0", &directory);
        assert!(said.contains(&format!("{name} belongs to user 65534")), "{said}");
        std::fs::remove_file(&file).unwrap();
    }
    // Of others, but not of weir.
    std::fs::write(directory.join("notes"), "").unwrap();
    std::os::unix::fs::chown(directory.join("notes"), Some(65534), None).unwrap();
    starts(false);
    std::os::unix::fs::chown(&directory, Some(65534), None).unwrap();
    let said = refused("127.0.0.1:0", &directory);
    assert!(said.contains("owner 65534"), "{said}");
}

/// The mode was set by path, after the file was there.
#[test]
fn the_socket_for_hand_overs_is_private() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("state");
    let config = format!("workers: 1\nstate_path: {}\n", path.display());
    let agent = Agent::start_after("umask 0", &config);
    until("it listens", || path.join("hand-over").exists());
    assert_eq!(path.join("hand-over").metadata().unwrap().mode() & 0o7777, 0o600);
    agent.stop();
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
