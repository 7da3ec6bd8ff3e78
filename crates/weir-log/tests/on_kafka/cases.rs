//! The numbered cases with a real broker.

use std::io::Write as _;
use std::time::Duration;

use rustix::process::{Signal, kill_process};
use weir_broker::Broker;
use weir_log::{Error, KafkaLog};
use weir_merge::{Append, Assignment, Commit, CommitError, Fetched, Log, Owner, Plan};

use super::fleet::{
    Fleet, Known, Process, Running, address, brokers, is_whole, late, open, own, settings, turn_until, until,
};

/// Forwards the listed calls to the log.
macro_rules! passed_on {
    () => {
        type Error = Error;

        fn plan(&mut self) -> Result<Plan, Error> {
            self.log.plan()
        }

        fn append(&mut self, partition: u32, sent: i64, bytes: &[u8]) -> Result<u64, Error> {
            self.log.append(partition, sent, bytes)
        }

        fn append_all(&mut self, records: &[Append<'_>]) -> Vec<Result<u64, Error>> {
            self.log.append_all(records)
        }

        fn assignments(&mut self) -> Result<Vec<Assignment>, Error> {
            self.log.assignments()
        }

        fn committed(&mut self, partition: u32) -> Result<Option<(Vec<u8>, u64)>, Error> {
            self.log.committed(partition)
        }

        fn results(
            &mut self,
            partition: u32,
            from: u64,
            bytes_max: usize,
        ) -> Result<Vec<(u64, Vec<u8>)>, Error> {
            self.log.results(partition, from, bytes_max)
        }

        fn results_start(&mut self, partition: u32) -> Result<u64, Error> {
            self.log.results_start(partition)
        }

        fn results_sent(&mut self, partition: u32) -> Result<u64, Error> {
            self.log.results_sent(partition)
        }

        fn record_results_sent(
            &mut self,
            partition: u32,
            generation: u64,
            before: u64,
        ) -> Result<(), CommitError<Error>> {
            self.log.record_results_sent(partition, generation, before)
        }
    };
}

/// Waits until an owner's state contains everything that a fleet published.
fn ends_well(fleet: &mut Fleet, agents: u8) -> (Known, usize) {
    fleet.send_all();
    let mut owner = Owner::new(open(&fleet.brokers), settings());
    let (states, mut last) = (fleet.states, Known::new());
    turn_until(&mut owner, "all that was published is merged", |_, known| {
        last = known;
        is_whole(&last, agents, states)
    });
    drop(owner);
    let late = late(&fleet.check());
    (last, late)
}

/// While the broker is down the agents' records wait. None is lost or merged twice.
#[test]
fn case_03_the_broker_is_killed_and_restarted() {
    let mut broker = Broker::start();
    let mut fleet = Fleet::new(
        weir_log::Brokers {
            timeout: Duration::from_secs(3),
            ..brokers(broker.address(), "killed", 2)
        },
        2,
    );
    let owner = own(open(&fleet.brokers));
    for _ in 0..2 {
        fleet.go_on_for(3);
        broker.kill();
        let failures = fleet.failures;
        until("the agents' queue is used", || {
            fleet.go_on();
            fleet.failures > failures && fleet.waiting() >= 4
        });
        broker.restart();
    }
    fleet.go_on_for(2);
    owner.stop();
    let (known, _) = ends_well(&mut fleet, 2);
    let quarantined: u64 = known.values().flat_map(|(counts, ..)| counts.quarantined).sum();
    assert_eq!(quarantined, 0);
}

/// Waits until so many more records are in the log.
fn goes_on_by(fleet: &mut Fleet, records: usize) {
    let enough = fleet.sent.len() + records;
    until("records get into the log", || {
        fleet.go_on();
        fleet.sent.len() >= enough
    });
}

/// Two of three brokers have every record, so one may be down. After a kill of all three no acknowledged record is missing.
#[test]
#[ignore = "nightly: real time on a real broker; in the gate: case_03_the_broker_is_killed_and_restarted"]
fn case_03_one_and_all_of_three_brokers_are_killed() {
    let mut cluster = Broker::start_cluster(3);
    let addresses = cluster.iter().map(Broker::address).collect();
    let brokers = weir_log::Brokers {
        addresses,
        timeout: Duration::from_secs(3),
        ..brokers(String::new(), "three", 3)
    };
    let mut fleet = Fleet::new(brokers, 2);
    goes_on_by(&mut fleet, 12);
    let owner = own(open(&fleet.brokers));
    for killed in 0..2 {
        cluster[killed].kill();
        // All three partitions, so that of each broker as well.
        goes_on_by(&mut fleet, 24);
        Broker::restart_all(&mut cluster);
        goes_on_by(&mut fleet, 6);
    }
    let failures = fleet.failures;
    cluster.iter_mut().for_each(Broker::kill);
    until("the agents' queue is used", || {
        fleet.go_on();
        fleet.failures > failures && fleet.waiting() >= 6
    });
    Broker::restart_all(&mut cluster);
    goes_on_by(&mut fleet, 6);
    owner.stop();
    let (known, _) = ends_well(&mut fleet, 2);
    let quarantined: u64 = known.values().flat_map(|(counts, ..)| counts.quarantined).sum();
    assert_eq!(quarantined, 0);
}

/// The broker's files may not grow, which looks like a full disk to it, so it ends. Its acknowledged records are there when there is room
/// again; agents resend the others.
#[test]
fn case_04_the_disk_of_the_broker_is_full() {
    let mut broker = Broker::start_with(None, &[("log.segment.bytes", "104857600")]);
    let brokers = weir_log::Brokers {
        timeout: Duration::from_secs(2),
        ..brokers(broker.address(), "full", 1)
    };
    let mut fleet = Fleet::new(brokers, 2);
    fleet.go_on_for(2);
    let owner = own(open(&fleet.brokers));
    broker.limit_files(1 << 20);
    // Records of no agent, until the disk is full. They are quarantined.
    let ballast = vec![0; 200_000];
    let mut is_refused = false;
    let mut log = open(&fleet.brokers);
    until("the broker takes no more, and ends", || {
        if let Err(error) = log.append(0, weir_log::unix_milliseconds(), &ballast) {
            is_refused |= error.to_string().contains("writing to partition 0 of topic full");
        }
        is_refused && !broker.is_running()
    });
    until("the agents' queue is used", || {
        fleet.go_on();
        fleet.waiting() >= 4
    });
    broker.kill();
    broker.restart();
    fleet.go_on_for(2);
    owner.stop();
    let (known, _) = ends_well(&mut fleet, 2);
    assert!(known[&0].0.quarantined[0] > 0, "{:?}", known[&0].0);
}

/// The process that [`case_05_an_owner_is_killed_in_the_middle_of_a_bucket`] kills.
#[test]
#[ignore = "a process of another test"]
fn child_owns() {
    let Some(brokers) = Process::asked_for() else {
        return;
    };
    let mut owner = Owner::new(open(&brokers), settings());
    loop {
        match owner.turn() {
            Ok(turn) if turn.messages > 0 => println!("\nmerged {}", turn.messages),
            Ok(_) => std::thread::sleep(Duration::from_millis(10)),
            Err(error) => println!("\nfailed: {error}"),
        }
    }
}

#[test]
#[ignore = "nightly: real time on a real broker; in the gate: weir-merge simulation::cases::case_05_an_owner_is_killed_in_the_middle_of_a_bucket"]
fn case_05_an_owner_is_killed_in_the_middle_of_a_bucket() {
    let mut fleet = Fleet::new(brokers(address(), "owner-killed", 2), 3);
    for _ in 0..3 {
        let mut process = Process::start("on_kafka::cases::child_owns", &fleet.brokers);
        let said = process.lines();
        until("the owner merges", || {
            fleet.go_on();
            said.try_iter().any(|line| line.starts_with("merged"))
        });
        fleet.go_on_for(3);
        process.0.kill().unwrap();
        process.0.wait().unwrap();
    }
    ends_well(&mut fleet, 3);
}

/// Reports that it is before its third commit, and waits for the parent. The process does not stop itself: another thread may take the
/// signal, and by then the commit may have begun or ended.
struct Stopping {
    log: KafkaLog,
    commits: u32,
}

impl Log for Stopping {
    passed_on!();

    fn fetch(&mut self, partition: u32, from: u64, bytes_max: usize) -> Result<Fetched, Error> {
        self.log.fetch(partition, from, bytes_max)
    }

    fn commit(&mut self, partition: u32, generation: u64, commit: &Commit) -> Result<(), CommitError<Error>> {
        self.commits += 1;
        if self.commits == 3 {
            println!("\n{BEFORE_COMMIT}");
            std::io::stdin().read_line(&mut String::new()).unwrap();
        }
        self.log.commit(partition, generation, commit)
    }
}

const BEFORE_COMMIT: &str = "before a commit";

/// The process that [`case_06_a_stale_owner_is_fenced`] stops before a commit and resumes too late.
#[test]
#[ignore = "a process of another test"]
fn child_stops_before_a_commit() {
    let Some(brokers) = Process::asked_for() else {
        return;
    };
    let log = Stopping {
        log: open(&brokers),
        commits: 0,
    };
    let mut owner = Owner::new(log, settings());
    loop {
        match owner.turn() {
            Ok(turn) if turn.fenced > 0 => return println!("\nfenced"),
            Ok(_) => std::thread::sleep(Duration::from_millis(10)),
            Err(error) => println!("\nfailed: {error}"),
        }
    }
}

/// The owner has read and merged and stops before its commit. The session times out, another owner takes the partition and commits the same
/// records. Then the first one resumes.
#[test]
#[ignore = "nightly: real time on a real broker; in the gate: weir-merge simulation::cases::case_06_a_stale_owner_is_fenced, topics::commits_are_found_by_the_next_owner"]
fn case_06_a_stale_owner_is_fenced() {
    let mut fleet = Fleet::new(brokers(address(), "stale", 1), 2);
    fleet.go_on();
    let mut process = Process::start("on_kafka::cases::child_stops_before_a_commit", &fleet.brokers);
    let said = process.lines();
    until("the owner is before a commit", || {
        fleet.go_on();
        said.try_iter().any(|line| line == BEFORE_COMMIT)
    });
    kill_process(process.pid(), Signal::STOP).unwrap();
    until("the owner stops", || {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.0.id())).unwrap();
        stat.rsplit_once(") ")
            .is_some_and(|(_, rest)| rest.starts_with('T'))
    });
    // It is read when the process goes on.
    let mut stdin = process.0.stdin.take().unwrap();
    stdin.write_all(b"go on\n").unwrap();
    let mut owner = Owner::new(open(&fleet.brokers), settings());
    let mut commits = 0;
    turn_until(&mut owner, "another owner continues", |turn, _| {
        fleet.go_on();
        commits += turn.commits;
        commits > 3
    });
    kill_process(process.pid(), Signal::CONT).unwrap();
    let mut heard = Vec::new();
    until("the stale owner is fenced", || {
        heard.extend(said.try_iter());
        heard.iter().any(|line| line == "fenced")
    });
    until("the stale owner ends", || process.0.try_wait().unwrap().is_some());
    drop(owner);
    ends_well(&mut fleet, 2);
}

#[test]
#[ignore = "nightly: real time on a real broker; in the gate: weir-merge simulation::cases::case_07_a_storm_of_rebalances"]
fn case_07_a_storm_of_rebalances() {
    let mut fleet = Fleet::new(brokers(address(), "storm", 4), 2);
    fleet.go_on();
    let mut owners: Vec<Running> = Vec::new();
    for count in [1, 4, 2, 4, 1, 3, 2] {
        while owners.len() > count {
            drop(owners.remove(0).stop());
        }
        while owners.len() < count {
            owners.push(own(open(&fleet.brokers)));
        }
        fleet.go_on_for(2);
    }
    for owner in owners {
        owner.stop();
    }
    ends_well(&mut fleet, 2);
}

/// Returns fetched messages in another order, some twice, and some earlier ones.
struct Disordered {
    log: KafkaLog,
    turn: u64,
}

impl Log for Disordered {
    passed_on!();

    fn fetch(&mut self, partition: u32, from: u64, bytes_max: usize) -> Result<Fetched, Error> {
        self.turn += 1;
        let back = from.saturating_sub(self.turn % 4);
        let mut fetched = self.log.fetch(partition, back, bytes_max)?;
        let twice: Vec<_> = fetched.messages.iter().step_by(2).cloned().collect();
        fetched.messages.reverse();
        fetched.messages.extend(twice);
        // Messages older than requested were read before.
        fetched.next = fetched.next.max(from);
        Ok(fetched)
    }

    fn commit(&mut self, partition: u32, generation: u64, commit: &Commit) -> Result<(), CommitError<Error>> {
        self.log.commit(partition, generation, commit)
    }
}

#[test]
#[ignore = "nightly: real time on a real broker; in the gate: weir-merge simulation::cases::case_08_fetches_are_reordered_and_repeated"]
fn case_08_fetches_are_reordered_and_repeated() {
    let mut fleet = Fleet::new(brokers(address(), "disorder", 2), 3);
    let log = Disordered {
        log: open(&fleet.brokers),
        turn: 0,
    };
    let owner = own(log);
    fleet.go_on_for(6);
    owner.stop();
    let (known, _) = ends_well(&mut fleet, 3);
    let repeats: u64 = known.values().map(|(counts, ..)| counts.repeats).sum();
    assert_eq!(repeats, 0, "what the log gives twice is no repeat of an agent");
}

#[test]
#[ignore = "nightly: real time on a real broker; in the gate: weir-merge simulation::cases::case_20_an_owner_changes_after_a_close_and_a_record_is_resent"]
fn case_20_an_owner_changes_after_a_close_then_a_record_is_resent() {
    let mut fleet = Fleet::new(brokers(address(), "resent", 1), 2);
    let mut owner = Owner::new(open(&fleet.brokers), settings());
    let closed = |known: &Known| known.get(&0).map_or(0, |(counts, ..)| counts.closed_buckets);
    turn_until(&mut owner, "buckets close", |_, known| {
        fleet.go_on();
        closed(&known) >= 3
    });
    drop(owner);
    let (partition, sent, bytes) = fleet.sent[0].clone();
    fleet.log.append(partition, sent, &bytes).unwrap();
    let (known, late) = ends_well(&mut fleet, 2);
    let (counts, ..) = &known[&0];
    assert_eq!((counts.repeats, counts.late, late), (1, 0, 0), "{counts:?}");
}
