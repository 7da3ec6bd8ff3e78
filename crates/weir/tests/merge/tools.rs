//! Commands of a merge: quarantined records come back, an output gets results again, and a configuration is checked.

use std::path::Path;

use crate::merge::fleet::{Agent, Fleet, counter};
use crate::merge::process::{Merge, config, series};
use crate::support::{until, weir};

/// The sums of a counter in a file of points, by the start of their bucket.
fn points(path: &Path, name: &str) -> Vec<(i64, f64)> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let point = |line: &str| {
        // The last line may be being written.
        let point: serde_json::Value = serde_json::from_str(line).ok()?;
        let sum = point["value"].as_f64()? * point["interval"].as_f64().unwrap_or(1.0);
        (point["metric"] == name && sum != 0.0).then_some((point["ts"].as_i64()?, sum))
    };
    text.lines().filter_map(point).collect()
}

fn command(directory: &Path, arguments: &[&str]) -> (bool, String) {
    let path = directory.join("merge.yaml");
    let config = ["--config", path.to_str().unwrap()];
    weir(&[&["merge"][..], arguments, &config[..]].concat())
}

#[test]
fn quarantined_records_are_shown_and_put_back_once() {
    let directory = tempfile::tempdir().unwrap();
    let mut fleet = Fleet::new(&directory.path().join("log"), 2, 100);
    let (mut good, mut wrong) = (Agent::new(1, 1), Agent::new(2, 1));
    for bucket in 0..4 {
        fleet.publish(&mut good, bucket, vec![counter("requests", &[], 1.0)]);
    }
    // Its clock was an hour ahead while it sent.
    let tags: Vec<String> = (0..8).map(|path| format!("path:/{path}")).collect();
    let of_wrong = tags.iter().map(|path| counter("requests", &[path], 10.0));
    let records = fleet.records(&mut wrong, 1, of_wrong.collect());
    fleet.append_ahead(4, 3_600_000, &records);
    let mut others = fleet.records(&mut good, 360, vec![]);
    others.truncate(2);
    others[0].bytes = b"GET / HTTP/1.1".to_vec();
    others[1].bytes[0] = 9;
    fleet.append(4, &others);
    let of_merge = config(&fleet.directory, "grace: 5s\n");
    let merge = Merge::start(directory.path(), &of_merge);
    merge.until_sent(fleet.bucket(4));
    assert_eq!(series(&merge.metrics(), "requests_total"), Some(4.0));
    assert!(merge.stop().0.success());

    let (_, page) = command(directory.path(), &["quarantine", "list"]);
    for part in ["host2 (", "s ahead of the log's", "not a record: version"] {
        assert!(page.contains(part), "{part}: {page}");
    }
    assert_eq!(
        page.lines().filter(|line| line.contains("ahead")).count(),
        2,
        "{page}"
    );
    let (_, page) = command(directory.path(), &["quarantine", "list", "--reason", "no such"]);
    assert_eq!(page, "no records\n");
    let (_, page) = command(directory.path(), &["quarantine", "show", "--reason", "ahead"]);
    assert_eq!(page.matches("  counter requests path:/").count(), 8, "{page}");
    assert!(page.contains(" 10\n"), "{page}");
    let (is_right, error) = command(directory.path(), &["quarantine", "put-back"]);
    assert!(!is_right && error.contains("--all"), "{error}");

    for _ in 0..2 {
        let (is_right, page) = command(directory.path(), &["quarantine", "put-back", "--reason", "ahead"]);
        assert!(is_right && page.matches(": put back, ").count() == 2, "{page}");
    }
    let (is_right, page) = command(directory.path(), &["quarantine", "put-back", "--all"]);
    assert!(
        !is_right && page.contains("not put back: 2 of 4 records"),
        "{page}"
    );
    let merge = Merge::start(directory.path(), &of_merge);
    let sum = |merge: &Merge| {
        let metrics = merge.metrics();
        let of_test = metrics.lines().filter(|line| line.starts_with("requests_total"));
        let values = of_test.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok());
        values.sum::<f64>()
    };
    until("what was put back is in the sums, once", || sum(&merge) == 84.0);
    let fleet = merge.fleet();
    assert_eq!(fleet["records"]["repeated"], 4, "{fleet}");
    assert!(merge.stop().0.success());
}

#[test]
fn an_output_gets_results_again_from_a_time_on() {
    let directory = tempfile::tempdir().unwrap();
    let mut fleet = Fleet::new(&directory.path().join("log"), 2, 100);
    let mut agent = Agent::new(1, 1);
    for bucket in 0..10 {
        fleet.publish(&mut agent, bucket, vec![counter("requests", &[], 1.0)]);
    }
    let path = directory.path().join("points.json");
    let outputs = format!(
        "outputs: {{prometheus: {{}}, file: {{path: {}}}}}\n",
        path.display()
    );
    let of_merge = config(&fleet.directory, &outputs);
    let merge = Merge::start(directory.path(), &of_merge);
    merge.until_sent(fleet.bucket(10));
    assert_eq!(points(&path, "requests").len(), 10);
    let from = format!("@{}", fleet.bucket(6));
    let replay = |arguments: &[&str]| command(directory.path(), &[&["replay"][..], arguments].concat());
    let (is_right, error) = replay(&["file", "--from", &from]);
    assert!(!is_right && error.contains("stop every merge"), "{error}");
    assert!(merge.stop().0.success());
    for (arguments, expected) in [
        (&["prometheus", "--from", "1h"][..], "sums since its start"),
        (&["influx", "--from", "1h"][..], "there is no output influx"),
        (&["file", "--from", "7"][..], "--partition is missing"),
        (&["file", "--from", "@later"][..], "no Unix second"),
    ] {
        let (is_right, error) = replay(arguments);
        assert!(!is_right && error.contains(expected), "{error}");
    }
    let (is_right, page) = replay(&["file", "--from", &from]);
    assert!(is_right && page.matches(" back to ").count() == 2, "{page}");
    let (_, page) = replay(&["file", "--from", &from]);
    assert_eq!(page.matches("has not passed").count(), 2, "{page}");
    let merge = Merge::start(directory.path(), &of_merge);
    until("the output has four buckets again", || {
        points(&path, "requests").len() == 14
    });
    let again: Vec<i64> = points(&path, "requests")[10..]
        .iter()
        .map(|(ts, _)| *ts)
        .collect();
    assert_eq!(again, [6, 7, 8, 9].map(|bucket| fleet.bucket(bucket)));
    assert_eq!(series(&merge.metrics(), "requests_total"), Some(10.0));
    assert!(merge.stop().0.success());
}

#[cfg(feature = "kafka")]
mod on_kafka {
    use weir_log::{Brokers, KafkaLog, unix_milliseconds};
    use weir_merge::{Log as _, Publisher};
    use weir_state::{AgentId, Facts};

    use super::*;

    /// The same over brokers.
    #[test]
    fn quarantined_records_come_back_and_results_come_again() {
        let directory = tempfile::tempdir().unwrap();
        // The broker may be that of an earlier run.
        let topic = format!("tools-{}", unix_milliseconds());
        let brokers = Brokers {
            addresses: vec![weir_broker::shared()],
            topic: topic.clone(),
            group: format!("{topic}-merge"),
            partitions: 2,
            ..Brokers::default()
        };
        let mut log = KafkaLog::open(&brokers).unwrap();
        let mut publishers = [1, 2].map(|number| {
            let mut publisher = Publisher::new("", AgentId([number; 16]), 1);
            publisher.set_host(&format!("host{number}"));
            publisher
        });
        let now = unix_milliseconds() / 1000;
        let bucket = now - now % 10 - 30;
        // The clock of the second one is an hour ahead while it sends.
        for (number, publisher) in (0..).zip(&mut publishers) {
            publisher.begin(bucket, 10, &log.plan().unwrap());
            let facts = Facts {
                seen: bucket,
                suffixes: u32::MAX,
            };
            let (identity, state) = counter("requests", &[&format!("agent:{number}")], 10.0);
            publisher.add(&identity, facts, &state);
            for record in publisher.close(false).records {
                let sent = unix_milliseconds() + number * 3_600_000;
                log.append(record.partition, sent, &record.bytes).unwrap();
            }
        }
        let path = directory.path().join("points.json");
        let of_merge = format!(
            "log: {{brokers: ['{}'], topic: {topic}, group: {topic}-merge, partitions: 2}}\nstate_path: {}\ngrace: 2s\nflush_summary: false\n\
             outputs: {{prometheus: {{enabled: false}}, file: {{path: {}}}}}\n",
            brokers.addresses[0],
            directory.path().join("state").display(),
            path.display()
        );
        let merge = Merge::start(directory.path(), &of_merge);
        let sums = || -> Vec<f64> { points(&path, "requests").iter().map(|(_, sum)| *sum).collect() };
        until(
            "the good agent's bucket is delivered, the other is quarantined",
            || sums() == [10.0] && merge.fleet()["states"]["quarantined"] == 1,
        );
        let (_, page) = command(directory.path(), &["quarantine", "list"]);
        assert!(
            page.contains("host2 (") && page.contains("ahead of the log's"),
            "{page}"
        );
        let (is_right, error) = command(directory.path(), &["replay", "file", "--from", "1h"]);
        assert!(!is_right && error.contains("stop every merge"), "{error}");
        for _ in 0..2 {
            let (_, page) = command(directory.path(), &["quarantine", "put-back", "--reason", "ahead"]);
            assert!(page.contains("put back, 1 series"), "{page}");
        }
        until("it is a correction, once", || {
            sums() == [10.0, 10.0] && merge.fleet()["records"]["repeated"].as_u64() >= Some(1)
        });
        assert!(merge.stop().0.success());

        let (is_right, page) = command(directory.path(), &["replay", "file", "--from", "1h"]);
        assert!(is_right && page.contains(" back to 0"), "{page}");
        let merge = Merge::start(directory.path(), &of_merge);
        until("the output has both again", || sums() == [10.0; 4]);
        assert!(merge.stop().0.success());
    }
}

fn checked(text: &str, flags: &[&str]) -> (bool, String) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("merge.yaml");
    std::fs::write(&path, text).unwrap();
    let mut arguments = vec!["merge", "--check", "--config", path.to_str().unwrap()];
    arguments.extend(flags);
    weir(&arguments)
}

#[test]
fn a_configuration_is_checked_and_shown() {
    let (is_valid, page) = checked(
        "log: {directory: /var/lib/weir/fleet}\nmemory: 1GiB\noutputs: {file: {path: /tmp/points.json}}\n",
        &["--grace", "30s"],
    );
    assert!(is_valid, "{page}");
    for part in [
        "directory: /var/lib/weir/fleet",
        "grace: 30s",
        "flag --grace",
        "max_skew: 10m",
        "admin: 127.0.0.1:8128",
        "path: /tmp/points.json",
        "open_buckets",
    ] {
        assert!(page.contains(part), "{part}: {page}");
    }
    for part in ["udp", "mapper_profiles", "contexts_max"] {
        assert!(!page.contains(part), "{part} is nothing for a merge: {page}");
    }
}

#[test]
fn errors_are_reported_with_their_line() {
    for (text, expected) in [
        ("memory: 1GiB\n", "log.directory: is missing, and so is `brokers`"),
        (
            "log: {directory: /a}\nudp: 127.0.0.1:8125\n",
            "merge.yaml:2: udp: is a setting of agents (`weir run`)",
        ),
        (
            "log: {directory: /a}\ngrace: 1500ms\n",
            "merge.yaml:2: grace: must be whole seconds",
        ),
        ("log: {directory: /a}\ngrase: 10s\n", "did you mean \"grace\""),
        ("log: {directory: /a, brocers: [a]}\n", "did you mean \"brokers\""),
        (
            "log: {brokers: ['a:9092'], properties: {isolation.level: read_uncommitted}}\nstate_path: /a\n",
            "properties.isolation.level: cannot be set here",
        ),
        (
            "log: {brokers: ['a:9092'], sasl: {mechanism: oauthbearer}}\nstate_path: /a\n",
            "sasl.token_file: is missing",
        ),
        (
            "log: {directory: /a}\noutputs:\n  relay: {targets: ['udp://127.0.0.1:9']}\n",
            "a relay forwards messages",
        ),
    ] {
        let (is_valid, message) = checked(text, &[]);
        assert!(!is_valid && message.contains(expected), "{text}: {message}");
    }
}
