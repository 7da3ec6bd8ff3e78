//! Records that an agent publishes to the log of a fleet, read by the merge: state of every kind, the books, faults of the log, restarts.

use crate::support;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{CWD, RenameFlags, renameat_with};
use support::*;
use tempfile::TempDir;
use weir_aggregate::Expansion;
use weir_log::FileLog;
use weir_merge::{BucketResult, Ledger, Log, Merge, Owner, Settings, delay_ms};
use weir_output::delivery::{AgentIdentity, Clock, Delivery, Items, OutputEnvironment, OutputStatus, Reason};
use weir_output::kafka::{Format, KafkaSettings};
use weir_output::settings::Start as _;
use weir_protocol::Kind;
use weir_state::{AgentId, Bounds, Record, State, Table};

/// A log in a directory, and its reader.
struct Fleet {
    directory: TempDir,
    partitions: u32,
}

/// The merge's results of the log.
struct Merged {
    table: Table,
    ledger: Ledger,
    repeats: u64,
    agents: usize,
}

impl Fleet {
    fn new(partitions: u32) -> Self {
        Fleet {
            directory: tempfile::tempdir().unwrap(),
            partitions,
        }
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("log")
    }

    fn settings(&self) -> KafkaSettings {
        let mut settings = kafka(&self.path());
        settings.log.partitions = self.partitions;
        settings
    }

    /// A file takes the place of the log for a while: no append succeeds, not even as root.
    fn take_away(&self) {
        std::fs::write(self.path().with_extension("away"), "no log").unwrap();
        self.exchange();
    }

    fn bring_back(&self) {
        self.exchange();
        std::fs::remove_file(self.path().with_extension("away")).unwrap();
    }

    /// At no instant is the path free: an agent would begin a new log there.
    fn exchange(&self) {
        let (log, away) = (self.path(), self.path().with_extension("away"));
        renameat_with(CWD, &log, CWD, &away, RenameFlags::EXCHANGE).unwrap();
    }

    fn log(&self) -> FileLog {
        FileLog::open(&self.path(), self.partitions, weir_log::unix_milliseconds).unwrap()
    }

    /// Every record, by partition, in the order of the log.
    fn records(&self) -> Vec<Record> {
        let mut log = self.log();
        let fetched =
            (0..self.partitions).flat_map(|partition| log.fetch(partition, 0, 1 << 30).unwrap().messages);
        fetched
            .map(|message| Record::decode(&message.bytes).unwrap())
            .collect()
    }

    /// Merges all there is, as if the grace of every bucket had ended.
    fn merged(&self) -> Merged {
        let mut merged = Merged {
            table: Table::new(Bounds::NONE),
            ledger: Ledger::default(),
            repeats: 0,
            agents: 0,
        };
        let mut owner = Owner::new(
            self.log(),
            Settings {
                grace: 0,
                ..Settings::default()
            },
        );
        while owner.turn().unwrap().messages > 0 {}
        for partition in 0..self.partitions {
            for (_, bytes) in owner.log().results(partition, 0, 1 << 30).unwrap() {
                merged.table.add_record(&BucketResult::decode(&bytes).unwrap().1);
            }
        }
        for (_, merge) in owner.merges() {
            merged.ledger += merge.ledger();
            merged.repeats += merge.counts().repeats;
            merged.agents = merged.agents.max(agents(merge));
        }
        assert_eq!(merged.ledger.difference(), 0, "{:?}", merged.ledger);
        merged
    }
}

fn agents(merge: &Merge) -> usize {
    merge.ledgers().len()
}

impl Merged {
    fn state(&self, kind: Kind, name: &str, tags: &[&str]) -> &State {
        let mut found = self.table.iter().filter(|(identity, ..)| {
            identity.kind == kind
                && &*identity.name == name
                && identity.tags.iter().map(AsRef::as_ref).eq(tags.iter().copied())
        });
        let (identity, _, state) = found.next().unwrap_or_else(|| panic!("no {name} {tags:?}"));
        assert_eq!(found.next().map(|found| found.0), None, "beside {identity:?}");
        state
    }

    fn counter(&self, name: &str, tags: &[&str]) -> f64 {
        match self.state(Kind::Counter, name, tags) {
            State::Counter(sum) => sum.to_f64(),
            other => panic!("{other:?}"),
        }
    }
}

/// An agent that publishes at the end of the bucket, and not later.
fn prompt(epoch: u64) -> AgentIdentity {
    let ids = (0u128..).map(|number| AgentId(number.to_be_bytes()));
    let mut prompt = ids.filter(|id| delay_ms(*id, 10) < 20);
    AgentIdentity {
        id: prompt.next().unwrap(),
        ..agent(epoch)
    }
}

fn around(agent: AgentIdentity) -> OutputEnvironment {
    OutputEnvironment {
        agent,
        ..environment(Clock::system())
    }
}

fn start(settings: &KafkaSettings, around: &OutputEnvironment) -> Delivery {
    settings
        .start("kafka", &Arc::new(Expansion::default()), around)
        .unwrap()
}

fn submit(output: &Delivery, bucket: i64, messages: &str) {
    let batches = batches_at(BUCKET + bucket * 10, messages);
    batches.iter().for_each(|batch| output.submit(batch));
}

async fn until(output: &Delivery, what: &str, done: impl FnMut(&OutputStatus) -> bool) -> OutputStatus {
    wait(output, what, done).await
}

/// Everything that was handed over has been delivered.
async fn delivered(output: &Delivery) -> OutputStatus {
    let status = until(output, "everything delivered", |status| {
        status.received.points > 0 && idle(status)
    })
    .await;
    assert!(status.balances() && status.healthy, "{status:#?}");
    status
}

fn dropped(status: &OutputStatus, reason: Reason) -> Items {
    status.endpoints[0]
        .dropped
        .get(&reason)
        .copied()
        .unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn state_of_every_kind_is_merged_with_that_of_other_agents() {
    let fleet = Fleet::new(3);
    let messages =
        "c:2|c|@0.5|#k:v\nc:1.5|c|#k:v\ng:7|g\ns:a|s\ns:b|s\nh:3|h|@0.5\nh:1|h\nt:9|ms\nd:4|d\nd:4|d\n";
    for number in 1..=3 {
        let around = around(AgentIdentity {
            id: AgentId([number; 16]),
            ..prompt(1)
        });
        let output = start(&fleet.settings(), &around);
        submit(&output, 0, messages);
        submit(
            &output,
            0,
            &format!("s:of-{number}|s\ng:{number}|g\nonly-{number}:1|c"),
        );
        until(&output, "both buckets", |status| status.received.points >= 9).await;
        output.shutdown(DEADLINE).await;
        let status = output.status();
        assert!(status.balances() && idle(&status), "{status:#?}");
        assert!(status.endpoints[0].dropped.is_empty(), "{status:#?}");
    }
    let merged = fleet.merged();
    assert_eq!(merged.counter("c", &["k:v"]), 3.0 * 5.5);
    assert_eq!(merged.counter("only-2", &[]), 1.0);
    let State::Gauge(gauge) = merged.state(Kind::Gauge, "g", &[]) else {
        unreachable!()
    };
    assert_eq!((gauge.extremes.min, gauge.extremes.max), (1.0, 7.0));
    let State::Set(members) = merged.state(Kind::Set, "s", &[]) else {
        unreachable!()
    };
    assert_eq!(members.cardinality(), 5);
    let State::Samples(samples) = merged.state(Kind::Histogram, "h", &[]) else {
        unreachable!()
    };
    assert_eq!(
        *samples,
        weir_state::Samples::exact([(3.0, 2.0), (1.0, 1.0)].repeat(3))
    );
    let State::Samples(samples) = merged.state(Kind::Timing, "t", &[]) else {
        unreachable!()
    };
    assert_eq!(samples.count(), 3);
    let State::Distribution(distribution) = merged.state(Kind::Distribution, "d", &[]) else {
        unreachable!()
    };
    assert_eq!(
        (distribution.sketch().cnt(), distribution.sum.to_f64()),
        (6, 24.0)
    );
    assert!(
        merged
            .table
            .iter()
            .all(|(identity, ..)| identity.host.as_deref() == Some(""))
    );
    let Ledger {
        merged: states,
        late,
        missing,
        lost,
        quarantined,
        open,
        ..
    } = merged.ledger;
    assert_eq!((missing, lost, quarantined, open), (0, 0, 0, 0));
    // The buckets are of long ago, so what comes after the first agent's is a correction.
    assert_eq!((states + late, merged.agents), (3 * 9, 3));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hosts_are_kept_when_configured() {
    let fleet = Fleet::new(1);
    let settings = KafkaSettings {
        keep_host: true,
        ..fleet.settings()
    };
    let output = start(&settings, &around(prompt(1)));
    submit(&output, 0, "a:1|c\na:2|c|#host:other\n");
    delivered(&output).await;
    let merged = fleet.merged();
    let hosts: BTreeMap<Option<String>, f64> = merged
        .table
        .iter()
        .map(|(identity, _, state)| match state {
            State::Counter(sum) => (identity.host.as_deref().map(str::to_owned), sum.to_f64()),
            other => panic!("{other:?}"),
        })
        .collect();
    let expected = [
        (Some("agent-host".to_owned()), 1.0),
        (Some("other".to_owned()), 2.0),
    ];
    assert_eq!(hosts, BTreeMap::from(expected));
    output.shutdown(DEADLINE).await;
}

/// Rules from a file, as an operator writes them.
fn with_rules(fleet: &Fleet, rules: &str) -> KafkaSettings {
    use weir_config::{Typed, node};
    let rules = node::parse(rules).unwrap().unwrap();
    let (rules, _) = Vec::<weir_config::Rule>::read(&Vec::<weir_config::Rule>::KIND, &rules).unwrap();
    KafkaSettings {
        rules,
        ..fleet.settings()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rules_of_the_fleet_make_series_equal_or_drop_them() {
    let fleet = Fleet::new(2);
    let rules = "[{name: pods, exclude_tags: [pod]}, {name: debug, match: debug.*, drop: true}, {name: all, add_tags: [fleet:a]}]";
    let output = start(&with_rules(&fleet, rules), &around(prompt(1)));
    for bucket in 0..2 {
        submit(
            &output,
            bucket,
            "a:1|c|#pod:x,k:v\na:2|c|#pod:y,k:v\na:4|c|#k:v\nh:1|h|#pod:x\nh:2|h|#pod:y\ndebug.a:1|c\n",
        );
    }
    let status = delivered(&output).await;
    assert_eq!(dropped(&status, Reason::Filtered).points, 2);
    let merged = fleet.merged();
    assert_eq!(merged.counter("a", &["fleet:a", "k:v"]), 14.0);
    let State::Samples(samples) = merged.state(Kind::Histogram, "h", &["fleet:a"]) else {
        unreachable!()
    };
    assert_eq!(samples.count(), 4);
    assert_eq!((merged.table.len(), merged.ledger.merged), (2, 4));
    output.shutdown(DEADLINE).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_without_series_publishes_to_every_partition() {
    let fleet = Fleet::new(4);
    let output = start(&fleet.settings(), &around(prompt(1)));
    for bucket in 0..3 {
        submit(&output, bucket, "");
    }
    let status = until(&output, "twelve records", |status| {
        status.received.points == 12 && idle(status)
    })
    .await;
    assert!(status.balances(), "{status:#?}");
    assert_eq!(status.endpoints[0].delivered.points, 12, "each counts as a point");
    let records = fleet.records();
    assert_eq!(records.len(), 12);
    assert!(records.iter().all(Record::is_empty));
    output.shutdown(DEADLINE).await;
    let records = fleet.records();
    let last: Vec<bool> = records
        .iter()
        .map(|record| record.header.publication.unwrap().is_last)
        .collect();
    assert_eq!(
        last.iter().filter(|is_last| **is_last).count(),
        4,
        "the agent ends"
    );
    assert_eq!(fleet.merged().ledger, Ledger::default());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_that_continues_in_another_process_publishes_no_end() {
    let fleet = Fleet::new(2);
    for epoch in 1..=2 {
        let output = start(&fleet.settings(), &around(prompt(epoch)));
        submit(&output, epoch as i64, "a:1|c\n");
        delivered(&output).await;
        output.keep_state();
        output.shutdown(DEADLINE).await;
    }
    let records = fleet.records();
    assert!(
        records
            .iter()
            .all(|record| !record.header.publication.unwrap().is_last)
    );
    let merged = fleet.merged();
    assert_eq!((merged.counter("a", &[]), merged.agents), (2.0, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_wait_while_the_log_is_down_and_are_appended_once() {
    let fleet = Fleet::new(2);
    let output = start(&fleet.settings(), &around(prompt(1)));
    submit(&output, 0, "a:1|c\nb:1|g\n");
    delivered(&output).await;
    fleet.take_away();
    for bucket in 1..6 {
        submit(&output, bucket, "a:1|c\nb:1|g\n");
    }
    let status = until(&output, "attempts that fail", |status| {
        let endpoint = &status.endpoints[0];
        endpoint.counts[weir_output::OutputCounter::AttemptsFailed] >= 3 && endpoint.pending.inbox.is_zero()
    })
    .await;
    assert!(!status.healthy && status.balances(), "{status:#?}");
    let error = &status.endpoints[0].last_error.as_ref().unwrap().message;
    assert!(error.contains("log"), "{error}");
    fleet.bring_back();
    let status = delivered(&output).await;
    assert!(status.endpoints[0].dropped.is_empty(), "{status:#?}");
    let merged = fleet.merged();
    assert_eq!((merged.counter("a", &[]), merged.ledger.missing), (6.0, 0));
    output.shutdown(DEADLINE).await;
}

/// The next process sends the payloads of a disk queue, under their old numbers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_process_sends_what_the_disk_queue_holds() {
    let fleet = Fleet::new(2);
    let mut settings = fleet.settings();
    settings.delivery.disk_path = fleet.directory.path().join("queue").display().to_string();
    let first = start(&settings, &around(prompt(1)));
    submit(&first, 0, "a:1|c\n");
    delivered(&first).await;
    fleet.take_away();
    // An empty record has a number, too, and must not be missed.
    for bucket in 1..4 {
        submit(&first, bucket, if bucket == 2 { "" } else { "a:1|c\n" });
    }
    // A stop without time drops what is not encoded yet.
    until(&first, "a failure, and all encoded", |status| {
        !status.healthy && status.endpoints[0].pending.inbox.is_zero()
    })
    .await;
    first.shutdown(Duration::ZERO).await;
    let left = first.status().endpoints[0].pending.disk;
    assert!(
        first.status().balances() && left.points >= 6,
        "{:#?}",
        first.status()
    );
    drop(first);
    fleet.bring_back();
    let second = start(&settings, &around(prompt(2)));
    submit(&second, 4, "a:1|c\n");
    let status = delivered(&second).await;
    assert_eq!(status.endpoints[0].restored, left);
    second.shutdown(DEADLINE).await;
    let merged = fleet.merged();
    assert_eq!(merged.counter("a", &[]), 4.0);
    assert_eq!(
        (merged.ledger.missing, merged.ledger.lost, merged.agents),
        (0, 0, 1)
    );
    // The append that was under way at the stop may end after it: then the second process repeats it, under its number.
    assert!(merged.repeats <= 1, "{}", merged.repeats);
}

/// The oldest records are dropped first, and the merge counts them as missing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_queue_drops_the_oldest_and_the_merge_knows_how_much() {
    let fleet = Fleet::new(1);
    let around = OutputEnvironment {
        memory_bytes_max: 2000,
        ..around(prompt(1))
    };
    let output = start(&fleet.settings(), &around);
    submit(&output, 0, "a:1|c\n");
    delivered(&output).await;
    fleet.take_away();
    for bucket in 1..30 {
        submit(&output, bucket, "a:1|c\nb:1|c\nc:1|c\n");
    }
    until(&output, "all encoded", |status| {
        let pending = &status.endpoints[0].pending;
        status.received.points == 1 + 29 * 3
            && (pending.inbox + pending.open_payloads).is_zero()
            && !status.healthy
    })
    .await;
    fleet.bring_back();
    let status = delivered(&output).await;
    let lost = dropped(&status, Reason::QueueFull).points;
    assert!(lost > 0 && lost < 29 * 3, "{status:#?}");
    let merged = fleet.merged();
    assert_eq!(merged.ledger.missing, lost, "{:?}", merged.ledger);
    assert_eq!(merged.ledger.published, 1 + 29 * 3);
    assert_eq!(merged.counter("b", &[]), 29.0 - lost as f64 / 3.0);
    output.shutdown(DEADLINE).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reload_continues_the_sequence_numbers() {
    let fleet = Fleet::new(2);
    let around = around(prompt(1));
    let old = Arc::new(start(&fleet.settings(), &around));
    submit(&old, 0, "a:1|c|#pod:x\n");
    delivered(&old).await;
    let replacing = OutputEnvironment {
        replaces: Some(old.clone()),
        ..around.clone()
    };
    let new = start(
        &with_rules(&fleet, "[{name: pods, exclude_tags: [pod]}]"),
        &replacing,
    );
    submit(&new, 1, "a:2|c|#pod:x\n");
    new.take_over(&old).await;
    old.shutdown(DEADLINE).await;
    submit(&new, 2, "a:4|c|#pod:x\n");
    delivered(&new).await;
    new.shutdown(DEADLINE).await;
    let mut epochs: Vec<u64> = fleet.records().iter().map(|record| record.header.epoch).collect();
    epochs.dedup();
    assert_eq!(epochs.len(), 1, "one epoch");
    let merged = fleet.merged();
    assert_eq!(
        (merged.counter("a", &["pod:x"]), merged.counter("a", &[])),
        (1.0, 6.0)
    );
    assert_eq!((merged.ledger.missing, merged.repeats), (0, 0));
    assert!(new.status().balances() && old.status().balances());
}

/// Two outputs of one process into one log have numbers of their own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_outputs_are_two_agents() {
    let fleet = Fleet::new(1);
    let expansion = Arc::new(Expansion::default());
    let around = around(prompt(1));
    for name in ["kafka", "second"] {
        let output = fleet.settings().start(name, &expansion, &around).unwrap();
        submit(&output, 0, "a:1|c\n");
        until(&output, name, |status| status.received.points >= 1).await;
        output.shutdown(DEADLINE).await;
    }
    let merged = fleet.merged();
    assert_eq!(
        (merged.counter("a", &[]), merged.agents, merged.repeats),
        (2.0, 2, 0)
    );
    assert_eq!(merged.ledger.quarantined, 0);
}

/// Samples with a timestamp of their own are state of their own bucket, which may be closed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn samples_with_timestamps_go_into_their_buckets() {
    let fleet = Fleet::new(2);
    let output = start(&fleet.settings(), &around(prompt(1)));
    let at = |seconds: i64| BUCKET + seconds;
    let messages = format!(
        "a:1|c\na:2|c|T{}\na:4|c|T{}\na:8|c|T{}\ng:5|g|T{}\na:16|c|T{}\n",
        at(13),
        at(-25),
        at(-21),
        at(-25),
        at(1005)
    );
    submit(&output, 1, &messages);
    let status = until(&output, "the bucket", |status| {
        status.received.points >= 6 && status.endpoints[0].pending.total().points == 1
    })
    .await;
    assert_eq!(
        status.endpoints[0].pending.open_payloads.points, 1,
        "one is of a bucket to come"
    );
    output.shutdown(DEADLINE).await;
    let status = output.status();
    assert!(
        status.balances() && status.endpoints[0].dropped.is_empty(),
        "{status:#?}"
    );
    let mut sums: BTreeMap<i64, f64> = BTreeMap::new();
    for record in fleet.records() {
        for series in record.series() {
            if let State::Counter(sum) = series.state {
                *sums.entry(record.header.bucket_start).or_default() += sum.to_f64();
            }
            if let State::Gauge(gauge) = series.state {
                assert_eq!(gauge.received, at(-25) * 1_000_000_000);
                assert_eq!(record.header.bucket_start, at(-30));
            }
        }
    }
    assert_eq!(
        sums,
        BTreeMap::from([(at(-30), 12.0), (at(10), 3.0), (at(1000), 16.0)])
    );
}

/// The clock was an hour ahead: the bucket that was open when it was set right has that hour, and samples of this one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bucket_that_was_open_when_the_clock_was_set_back_is_one_of_the_present() {
    let fleet = Fleet::new(2);
    let (clock, driver) = Clock::driven(BUCKET + 3600);
    let around = OutputEnvironment {
        agent: prompt(1),
        ..environment(clock)
    };
    let output = start(&fleet.settings(), &around);
    let run = async |bucket, messages: &str| {
        let before = output.status().received.points;
        submit(&output, bucket, messages);
        until(&output, "a bucket", |status| {
            // It waits a little before it is sent.
            driver.advance(Duration::from_millis(20));
            status.received.points > before && idle(status)
        })
        .await;
    };
    run(360, "a:1|c").await;
    driver.step(-3600);
    run(361, "a:2|c\nb:2|c").await;
    run(0, "a:4|c").await;
    // The agent's time may be a little ahead.
    driver.step(-25);
    run(0, "a:8|c").await;
    output.shutdown(DEADLINE).await;
    let mut sums: BTreeMap<(i64, String), f64> = BTreeMap::new();
    for record in fleet.records() {
        for series in record.series() {
            if let State::Counter(sum) = series.state {
                let key = (record.header.bucket_start - BUCKET, series.name.to_owned());
                *sums.entry(key).or_default() += sum.to_f64();
            }
        }
    }
    let a = |start, sum| ((start, "a".to_owned()), sum);
    let expected = [a(3600, 1.0), a(0, 14.0), ((0, "b".to_owned()), 2.0)];
    assert_eq!(sums, BTreeMap::from(expected));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_series_beyond_the_memory_are_refused_and_counted() {
    let fleet = Fleet::new(1);
    let around = OutputEnvironment {
        state_bytes_max: 200_000,
        ..around(prompt(1))
    };
    let output = start(&fleet.settings(), &around);
    let many: String = (0..5000).map(|number| format!("a{number}:1|c\n")).collect();
    for bucket in 0..2 {
        submit(&output, bucket, &many);
    }
    let status = until(&output, "two buckets", |status| {
        status.received.points >= 10_000 && idle(status)
    })
    .await;
    assert!(status.balances(), "{status:#?}");
    let refused = dropped(&status, Reason::Memory).points;
    assert!((1000..10_000).contains(&refused), "{refused}");
    assert_eq!(status.endpoints[0].delivered.points, 10_000 - refused);
    assert!(output.state_bytes() < 400_000, "{}", output.state_bytes());
    output.shutdown(DEADLINE).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_and_checks_are_not_published_to_a_fleet() {
    let fleet = Fleet::new(1);
    let output = start(&fleet.settings(), &around(prompt(1)));
    submit(&output, 0, "_e{1,1}:a|b\n_sc|a|0\na:1|c\n");
    let status = delivered(&output).await;
    let expected = Items {
        points: 0,
        events: 1,
        checks: 1,
    };
    assert_eq!(dropped(&status, Reason::Unsupported), expected);
    output.shutdown(DEADLINE).await;
}

/// Agents publish at different moments of the interval; one that ends does not wait for its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn publishing_is_spread_over_the_interval() {
    let fleet = Fleet::new(1);
    let (clock, driver) = Clock::driven(BUCKET + 10);
    let ids = (0u128..).map(|number| AgentId(number.to_be_bytes()));
    let id = ids
        .clone()
        .find(|id| (4000..5000).contains(&delay_ms(*id, 10)))
        .unwrap();
    let around = OutputEnvironment {
        agent: AgentIdentity { id, ..agent(1) },
        ..environment(clock)
    };
    let output = start(&fleet.settings(), &around);
    submit(&output, 0, "a:1|c\n");
    let queued = |points: u64| {
        move |status: &OutputStatus| {
            let pending = &status.endpoints[0].pending;
            (pending.memory + pending.in_flight).points == points
        }
    };
    until(&output, "a record that waits", queued(1)).await;
    driver.advance(Duration::from_millis(3999));
    submit(&output, 1, "a:1|c\n");
    let status = until(&output, "another one", queued(2)).await;
    assert_eq!(status.endpoints[0].delivered.points, 0, "neither has gone");
    driver.advance(Duration::from_millis(1001));
    let status = until(&output, "the first", |status| {
        status.endpoints[0].delivered.points > 0
    })
    .await;
    assert_eq!(
        status.endpoints[0].delivered.points, 1,
        "the second waits for its own time"
    );
    output.shutdown(DEADLINE).await;
    let status = output.status();
    assert!(
        idle(&status) && status.endpoints[0].dropped.is_empty(),
        "{status:#?}"
    );
    let records = fleet.records();
    let buckets = records.iter().filter(|record| !record.is_empty());
    let buckets: Vec<i64> = buckets.map(|record| record.header.bucket_start).collect();
    assert_eq!(buckets, [BUCKET, BUCKET + 10], "aligned whenever they are sent");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn points_can_be_appended_to_the_log_as_json_lines() {
    let fleet = Fleet::new(2);
    let settings = KafkaSettings {
        format: Format::Json,
        ..fleet.settings()
    };
    let output = start(&settings, &around(prompt(1)));
    submit(&output, 0, "a:1|g\n_sc|a|0\n");
    let status = delivered(&output).await;
    assert_eq!(
        (
            status.endpoints[0].delivered.points,
            status.endpoints[0].delivered.checks
        ),
        (1, 1)
    );
    output.shutdown(DEADLINE).await;
    let mut log = fleet.log();
    let messages = (0..2).flat_map(|partition| log.fetch(partition, 0, 1 << 20).unwrap().messages);
    let text: String = messages
        .map(|message| String::from_utf8(message.bytes).unwrap())
        .collect();
    let lines: Vec<serde_json::Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(lines.len(), 2, "{text}");
    assert!(
        lines
            .iter()
            .any(|line| line["metric"] == "a" && line["value"] == 1)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn points_can_be_appended_to_the_log_in_the_line_protocol() {
    let fleet = Fleet::new(1);
    let settings = KafkaSettings {
        format: Format::Influx,
        ..fleet.settings()
    };
    let output = start(&settings, &around(prompt(1)));
    submit(&output, 0, "a:1|g|#k:v\n_sc|a|0\n");
    let status = delivered(&output).await;
    assert_eq!(status.endpoints[0].delivered.points, 1);
    assert_eq!(dropped(&status, Reason::Unsupported).checks, 1);
    output.shutdown(DEADLINE).await;
    let messages = fleet.log().fetch(0, 0, 1 << 20).unwrap().messages;
    let text: Vec<String> = messages
        .into_iter()
        .map(|message| String::from_utf8(message.bytes).unwrap())
        .collect();
    let expected = format!("a,host=agent-host,k=v,metric_type=gauge value=1 {BUCKET}000000000\n");
    assert_eq!(text, [expected]);
}
