//! Commands of a merge: quarantined records come back, and an output gets results again.

use std::path::{Path, PathBuf};

use weir_log::{FileLog, unix_milliseconds};
use weir_merge::{Commit, Log as _};

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

/// The configuration of a merge with a scrape and a file, and the file.
fn with_file(directory: &Path, fleet: &Fleet) -> (String, PathBuf) {
    let path = directory.join("points.json");
    let outputs = format!(
        "outputs: {{prometheus: {{}}, file: {{path: {}}}}}\n",
        path.display()
    );
    (config(&fleet.directory, &outputs), path)
}

#[test]
fn an_output_gets_results_again_and_quarantined_records_are_shown_and_put_back_once() {
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
    let (of_merge, path) = with_file(directory.path(), &fleet);
    let of_merge = of_merge + "grace: 5s\n";
    let merge = Merge::start(directory.path(), &of_merge);
    merge.until_sent(fleet.bucket(4));
    assert_eq!(series(&merge.metrics(), "requests_total"), Some(4.0));
    assert_eq!(points(&path, "requests").len(), 4);
    let from = format!("@{}", fleet.bucket(2));
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
    until("the output has two buckets again", || {
        points(&path, "requests").len() == 6
    });
    merge.until_sent(fleet.bucket(4));
    let again = points(&path, "requests")[4..]
        .iter()
        .map(|(at, _)| *at)
        .collect::<Vec<i64>>();
    assert_eq!(again, [2, 3].map(|bucket| fleet.bucket(bucket)));
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
    // The sums are there before the merge reports.
    until("the repeated ones are reported", || {
        merge.fleet()["records"]["repeated"] == 4
    });
    assert!(merge.stop().0.success());
}

/// Snapshots, results and sums of a later version. Nothing of a partition is merged or given behind them, the other partition continues, and the
/// positions stay for a program that can read them.
#[test]
fn what_a_newer_program_wrote_is_named_and_waits() {
    let directory = tempfile::tempdir().unwrap();
    let mut fleet = Fleet::new(&directory.path().join("log"), 3, 100);
    let mut agent = Agent::new(1, 1);
    let paths: Vec<String> = (0..30).map(|path| format!("path:/{path}")).collect();
    let mut publish = |fleet: &mut Fleet, bucket| {
        let series = paths.iter().map(|path| counter("requests", &[path], 1.0));
        fleet.publish(&mut agent, bucket, series.collect());
    };
    publish(&mut fleet, 0);
    let (of_merge, path) = with_file(directory.path(), &fleet);
    let merge = Merge::start(directory.path(), &of_merge);
    merge.until_sent(fleet.bucket(1));
    assert!(merge.stop().0.success());

    // Of partition 0 the snapshot, of partition 1 a result, and the sums of partition 2.
    let mut log = FileLog::open(&fleet.directory, 3, unix_milliseconds).unwrap();
    assert_eq!(log.assignments().unwrap().len(), 3);
    for (partition, results) in [(0, Vec::new()), (1, vec![b"\x02of a newer version".to_vec()])] {
        let (mut snapshot, offset) = log.committed(partition).unwrap().unwrap();
        snapshot[0] = if partition == 0 { 9 } else { snapshot[0] };
        let commit = Commit {
            results,
            snapshot,
            offset,
            ..Commit::default()
        };
        log.commit(partition, 0, &commit).unwrap();
    }
    drop(log);
    let mut scrape = FileLog::open(&fleet.directory, 3, unix_milliseconds)
        .unwrap()
        .of_output("prometheus");
    assert_eq!(scrape.assignments().unwrap().len(), 3);
    let (known, before) = scrape.committed(2).unwrap().unwrap();
    let mut store = |first: u8| {
        let commit = Commit {
            snapshot: [&[first], &known[1..]].concat(),
            offset: before,
            ..Commit::default()
        };
        scrape.commit(2, 0, &commit).unwrap();
    };
    store(2);
    drop(scrape);

    publish(&mut fleet, 1);
    let mut merge = Merge::start(directory.path(), &of_merge);
    merge.says("log: partition 0 is not merged: a snapshot of version 9; this program reads 3");
    merge.says("results for file: partition 1: result ");
    merge.says("results for prometheus: partition 2: the sums before result 1 does not have this program's format; a newer weir reads it");
    let of_partition = |log: &mut FileLog| log.results_sent(1).unwrap();
    assert!(merge.page().contains("newer weir"));
    until("the other partition is merged and given", || {
        points(&path, "requests")
            .iter()
            .any(|(ts, _)| *ts == fleet.bucket(1))
    });
    assert_eq!(
        merge.fleet()["sent"]
            .as_array()
            .unwrap()
            .iter()
            .map(|row| row["deleted"].as_u64().unwrap())
            .sum::<u64>(),
        0
    );
    assert!(merge.stop().0.success());
    let mut file = FileLog::open(&fleet.directory, 3, unix_milliseconds)
        .unwrap()
        .of_output("file");
    assert_eq!(of_partition(&mut file), 1);
}

#[cfg(feature = "kafka")]
mod on_kafka {
    use weir_broker::Operation::{self, Alter, Describe, Read, Write};
    use weir_broker::{Broker, Guard, LEAST_RIGHTS, Resource};
    use weir_log::{Brokers, KafkaLog};
    use weir_merge::Publisher;
    use weir_state::{AgentId, Facts};

    use super::*;
    use crate::support::tls::Authority;

    /// Appends the records of a bucket from two agents. The clock of the second one is an hour ahead while it sends.
    fn publish(log: &mut KafkaLog, bucket: i64, series: usize) {
        for number in 0..2 {
            let mut publisher = Publisher::new("", AgentId([number as u8 + 1; 16]), 1);
            publisher.set_host(&format!("host{}", number + 1));
            publisher.begin(bucket, 10, &log.plan().unwrap());
            let facts = Facts {
                seen: bucket,
                suffixes: u32::MAX,
            };
            for path in 0..series {
                let tags = [format!("agent:{number}"), format!("path:/{path}")];
                let (identity, state) = counter("requests", &tags.each_ref().map(String::as_str), 10.0);
                publisher.add(&identity, facts, &state);
            }
            for record in publisher.close(false).records {
                let sent = unix_milliseconds() + number * 3_600_000;
                log.append(record.partition, sent, &record.bytes).unwrap();
            }
        }
    }

    /// A right of this file's topic and of a group: the resource, its name with `GROUP`, and the operation.
    type Right = (Resource, &'static str, Operation);

    /// Rights, and the end of the refusal without each.
    type Needs = Vec<(Right, &'static str)>;

    const CONTROL: Right = (Resource::Topic, "least.control", Read);
    const RECORDS: Right = (Resource::Topic, "least", Describe);
    const OWN: Right = (Resource::TopicsFrom, "least.GROUP.", Read);
    const MEMBER: Right = (Resource::GroupsFrom, "GROUP", Read);

    /// The table of docs/fleet.md. A command without arguments is a merge that runs.
    fn rights() -> Vec<(&'static [&'static str], Needs)> {
        let control = (CONTROL, "DESCRIBE on topic least.control");
        let records = (RECORDS, "DESCRIBE on topic least ");
        let own = (OWN, "DESCRIBE on topic least.GROUP.");
        let member = (MEMBER, "READ on group GROUP");
        vec![
            (&["partitions"], vec![control, records]),
            (&["quarantine", "list"], vec![control, records, own]),
            (
                &["quarantine", "put-back", "--all"],
                vec![
                    control,
                    (RECORDS, ""),
                    own,
                    ((Resource::Topic, "least", Write), "WRITE on topic least"),
                ],
            ),
            (
                &["replay", "file", "--from", "1h"],
                vec![control, records, own, member],
            ),
            (
                &["partitions", "3"],
                // In the order in which the topics are raised, and the plan after them.
                vec![
                    (RECORDS, ""),
                    (OWN, ""),
                    (
                        (Resource::TopicsFrom, "least.GROUP.", Alter),
                        "ALTER on topic least.GROUP.",
                    ),
                    ((Resource::Topic, "least", Alter), "ALTER on topic least"),
                    (
                        (Resource::Topic, "least.control", Write),
                        "WRITE on topic least.control",
                    ),
                    (CONTROL, ""),
                ],
            ),
            (
                &[],
                vec![
                    control,
                    (RECORDS, ""),
                    ((Resource::TopicsFrom, "least.GROUP.", Describe), ""),
                    ((Resource::Topic, "least", Read), "READ on topic least"),
                    (OWN, "READ on topic least.GROUP."),
                    (
                        (Resource::TopicsFrom, "least.GROUP.", Write),
                        "WRITE on topics with the prefix least.GROUP.",
                    ),
                    member,
                    (
                        (Resource::TransactionsFrom, "GROUP-", Write),
                        "WRITE and DESCRIBE on transactional ids with the prefix GROUP-",
                    ),
                ],
            ),
        ]
    }

    /// Of the brokers: has rights of a command but for one.
    struct User {
        name: String,
        /// A merge without a right has a group of its own.
        group: String,
        arguments: &'static [&'static str],
        rights: Vec<Right>,
        /// The refusal. Empty: nothing is missing.
        refusal: String,
    }

    fn users() -> Vec<User> {
        let mut users = Vec::new();
        for (arguments, needs) in rights() {
            let missing = (0..needs.len()).filter(|at| !needs[*at].1.is_empty());
            for missing in missing.map(Some).chain([None]) {
                let group = match missing {
                    Some(at) if arguments.is_empty() => format!("group{at}"),
                    _ => "group".to_owned(),
                };
                let rights = needs.iter().enumerate().filter(|(at, _)| Some(*at) != missing);
                users.push(User {
                    name: format!("user{}", users.len()),
                    arguments,
                    rights: rights.map(|(_, (right, _))| *right).collect(),
                    refusal: missing.map_or_else(String::new, |at| needs[at].1.replace("GROUP", &group)),
                    group,
                });
            }
        }
        users
    }

    /// As processes against brokers with rights: what the table of docs/fleet.md names is enough for each command and for a merge, and without
    /// one of the rights each says which one to allow. Quarantined records come back, and results come again.
    #[test]
    fn rights_are_those_of_the_page_and_a_missing_one_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let authority = Authority::new();
        let ca = directory.path().join("authority.pem");
        std::fs::write(&ca, &authority.pem).unwrap();
        let (certificate, key) = authority.issue("localhost");
        let users = users();
        let names = users.iter().map(|user| user.name.as_str()).chain(["owner"]);
        let guard = Guard {
            certificate,
            key,
            users: names
                .map(|name| (name.to_owned(), "a password".to_owned()))
                .collect(),
        };
        let broker = Broker::start_with(Some(&guard), &LEAST_RIGHTS);
        let open = |group: &str| {
            let brokers = Brokers {
                addresses: vec![broker.address()],
                topic: "least".to_owned(),
                group: group.to_owned(),
                partitions: 2,
                ..Brokers::default()
            };
            KafkaLog::open(&brokers).unwrap()
        };
        let now = unix_milliseconds() / 1000;
        publish(&mut open("group"), now - now % 10 - 30, 8);
        for user in users.iter().filter(|user| user.group != "group") {
            open(&user.group).results_start(0).unwrap();
        }
        let home = |name: &str, group: &str, scrape: bool| {
            let home = directory.path().join(name);
            std::fs::create_dir_all(&home).unwrap();
            let text = format!(
                "log:\n  brokers: ['{}']\n  topic: least\n  group: {group}\n  partitions: 2\n  tls: {{ca_file: {}}}\n  \
                 sasl: {{mechanism: scram-sha-256, username: {name}, password: a password}}\nstate_path: {}\ngrace: 2s\nflush_summary: false\n\
                 outputs: {{prometheus: {{enabled: {scrape}}}, file: {{path: {}}}}}\n",
                broker.guarded_address(),
                ca.display(),
                home.join("state").display(),
                home.join("points.json").display(),
            );
            std::fs::write(home.join("merge.yaml"), &text).unwrap();
            (home, text)
        };
        // The first process makes the topics.
        let (at, text) = home("owner", "group", true);
        let merge = Merge::start(&at, &text);
        let both_have = |merge: &Merge, count: u64| {
            let fleet = merge.fleet();
            let sent = fleet["sent"].as_array().cloned().unwrap_or_default();
            let have = sent
                .iter()
                .all(|row| row["buckets"].as_u64() >= Some(count) && row["is_behind"] == false);
            let is_right = have && fleet["log_error"].is_null();
            is_right.then_some(()).ok_or_else(|| fleet.to_string())
        };
        until("both outputs have the bucket", || both_have(&merge, 1));
        let (is_right, error) = command(&at, &["replay", "file", "--from", "1h"]);
        assert!(!is_right && error.contains("stop every merge"), "{error}");
        assert!(merge.stop().0.success());
        for user in &users {
            for (resource, name, operation) in &user.rights {
                broker.allow(
                    &user.name,
                    &[(*resource, &name.replace("GROUP", &user.group), &[*operation])],
                );
            }
        }
        let run = |user: &User| {
            let (at, text) = home(&user.name, &user.group, false);
            if user.arguments.is_empty() {
                let mut merge = Merge::start(&at, &text);
                merge.says(&format!("allow this user {}", user.refusal));
                return merge.kill();
            }
            let (is_right, page) = command(&at, user.arguments);
            let refusal = match &*user.refusal {
                "" => String::new(),
                refusal => format!("allow this user {refusal}"),
            };
            let is_so = is_right == refusal.is_empty() && page.contains(&refusal);
            assert!(is_so, "{:?}: {refusal:?} is not in: {page}", user.arguments);
        };
        // A merge is the last one: when its rights are known, so are those of the others.
        let (raising, others): (Vec<&User>, Vec<&User>) = users
            .iter()
            .partition(|user| user.arguments == ["partitions", "3"]);
        let last = users.last().unwrap();
        let (at, text) = home(&last.name, "group", true);
        let merge = Merge::start(&at, &text);
        until("a merge with these rights runs", || {
            let fleet = merge.fleet();
            let runs = fleet["log_error"].is_null() && fleet["partitions_held"] == 2;
            runs.then_some(()).ok_or_else(|| fleet.to_string())
        });
        assert!(merge.stop().0.success());
        // A command has ten seconds for an answer of the broker. With all of them at once, that is too little on a busy
        // machine.
        let refused = others.iter().filter(|user| !user.refusal.is_empty());
        let refused: Vec<&User> = refused.copied().collect();
        for some in refused.chunks(6) {
            std::thread::scope(|scope| {
                some.iter().for_each(|user| drop(scope.spawn(|| run(user))));
            });
        }
        let all = others.iter().filter(|user| user.refusal.is_empty());
        for user in all.filter(|user| !user.arguments.is_empty()) {
            run(user);
            // A record that is put back twice counts once.
            if user.arguments.contains(&"put-back") {
                run(user);
            }
        }
        let merge = Merge::start(&at, &text);
        let of_file = || points(&at.join("points.json"), "requests").len();
        until("the file has the bucket again, and what was put back", || {
            (of_file() == 16)
                .then_some(())
                .ok_or_else(|| format!("{}: {}", of_file(), merge.fleet()))
        });
        assert_eq!(merge.fleet()["log_error"], serde_json::Value::Null);
        assert!(merge.stop().0.success());
        // Each raises what it may: one after another.
        raising.into_iter().for_each(run);
    }
}
