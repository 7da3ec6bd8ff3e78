//! Topics, the plan, the quarantine, and the offsets of sent results.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::ClientConfig;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
use rdkafka::{Offset, TopicPartitionList};
use weir_log::{AnyLog, Brokers, Connection, KafkaLog, unix_milliseconds};
use weir_merge::{Assignment, Commit, CommitError, Log, Owner, Plan};

use super::fleet::{address, brokers, open, settings, turn_until, until, until_shown};

fn admin() -> AdminClient<DefaultClientContext> {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", address()).create().unwrap()
}

fn commit(number: u8) -> Commit {
    Commit {
        results: vec![vec![number; 9], vec![number]],
        quarantined: Vec::new(),
        snapshot: vec![number; 30],
        offset: 0,
    }
}

/// Waits until a log owns so many partitions, and returns the generation of the last one.
pub fn assigned(log: &mut impl Log<Error = weir_log::Error>, partitions: usize) -> u64 {
    owns(log, |owned| owned.len() == partitions)
}

/// Waits until the partitions that a log gets from now on are the wanted ones, by number with their generations. A broker may assign one again.
fn owns(
    log: &mut impl Log<Error = weir_log::Error>,
    are_wanted: impl Fn(&BTreeMap<u32, u64>) -> bool,
) -> u64 {
    let (mut owned, mut last) = (BTreeMap::new(), 0);
    until("partitions", || {
        for change in log.assignments().unwrap() {
            match change {
                Assignment::Assigned {
                    partition,
                    generation,
                } => {
                    owned.insert(partition, generation);
                    last = generation;
                }
                Assignment::Revoked { partition } => drop(owned.remove(&partition)),
            }
        }
        are_wanted(&owned)
    });
    last
}

#[test]
fn a_log_of_topics_that_do_not_exist_makes_them() {
    let brokers = brokers(address(), "new", 3);
    let mut log = AnyLog::open(&Connection::Kafka(brokers.clone())).unwrap();
    assert_eq!(log.plan().unwrap(), Plan::new(3));
    for (partition, sent) in [(0, 7), (2, 8), (2, 9)] {
        let before = unix_milliseconds();
        let offset = log.append(partition, sent, &[sent as u8; 100]).unwrap();
        assert_eq!(offset, u64::from(sent == 9));
        let mut fetched = log.fetch(partition, offset, 1).unwrap();
        assert_eq!(
            (fetched.start, fetched.next, fetched.messages.len()),
            (0, offset + 1, 1)
        );
        let message = fetched.messages.remove(0);
        assert_eq!((message.offset, message.sent), (offset, sent));
        assert_eq!(message.bytes, [sent as u8; 100]);
        assert!((before..=unix_milliseconds()).contains(&message.appended));
    }
    let seen = weir_log::examine(&Connection::Kafka(brokers.clone())).unwrap();
    assert_eq!(
        (seen.brokers, seen.partitions, seen.is_stamped),
        (1, Some(3), Some(true))
    );
    // Another number of partitions in the settings changes nothing.
    let mut other = open(&Brokers {
        partitions: 9,
        ..brokers
    });
    assert_eq!(other.plan().unwrap(), Plan::new(3));
    let error = other.append(3, 1, b"x").unwrap_err().to_string();
    assert!(error.contains("partition 3 of topic new"), "{error}");
    let error = other.fetch(0, 5, 1).unwrap_err().to_string();
    assert!(error.contains("it ends at 1, before the position 5"), "{error}");
}

/// A look makes nothing.
#[test]
fn examining_a_missing_log_does_not_create_it() {
    let brokers = Connection::Kafka(brokers(address(), "nowhere", 1));
    for _ in 0..2 {
        let seen = weir_log::examine(&brokers).unwrap();
        assert_eq!((seen.brokers, seen.partitions, seen.is_stamped), (1, None, None));
    }
}

/// The broker's timestamps count, so a topic with the senders' timestamps is refused.
#[test]
fn a_topic_without_the_brokers_time_is_an_error() {
    let new = [
        NewTopic::new("unstamped", 1, TopicReplication::Fixed(1)),
        NewTopic::new("unstamped.control", 1, TopicReplication::Fixed(1)),
    ];
    let made = futures_executor::block_on(admin().create_topics(&new, &AdminOptions::new())).unwrap();
    assert!(made.iter().all(Result::is_ok), "{made:?}");
    let mut log = open(&brokers(address(), "unstamped", 1));
    let expect = |error: weir_log::Error| {
        let error = error.to_string();
        assert!(error.contains("message.timestamp.type=LogAppendTime"), "{error}");
    };
    until("the topic is there", || log.append(0, 1, b"x").is_ok());
    expect(log.fetch(0, 0, 1).unwrap_err());
    let seen = weir_log::examine(&Connection::Kafka(brokers(address(), "unstamped", 1))).unwrap();
    assert_eq!((seen.partitions, seen.is_stamped), (Some(1), Some(false)));
}

#[test]
fn partitions_are_announced_to_all_agents() {
    let brokers = brokers(address(), "raised", 1);
    let (mut one, mut other) = (open(&brokers), open(&brokers));
    assert_eq!(other.plan().unwrap(), Plan::new(1));
    assigned(&mut other, 1);
    assert_eq!(other.fetch(0, 0, 1).unwrap().end, 0);
    let from = unix_milliseconds() / 1000 + 100;
    one.announce(from, 3).unwrap();
    let mut expected = Plan::new(1);
    expected.announce(from, 3);
    assert_eq!(one.plan().unwrap(), expected);
    until("the other one hears of it", || other.plan().unwrap() == expected);
    // A new partition takes records and gets an owner.
    until("partition 2 takes records", || one.append(2, 1, b"x").is_ok());
    owns(&mut other, |owned| {
        [1, 2].iter().all(|new| owned.contains_key(new))
    });
    // Its client knows the topic with one partition, and would look again in some minutes.
    assert_eq!(other.fetch(2, 0, 1).unwrap().messages[0].bytes, b"x");
}

/// Writes to a topic, as another program may.
fn put(topic: &str, key: &str, bytes: &[u8]) {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", address());
    let producer: BaseProducer = config.create().unwrap();
    let record = BaseRecord::to(topic).partition(0).key(key).payload(bytes);
    producer.send(record).unwrap();
    producer.flush(Duration::from_secs(60)).unwrap();
}

/// A process that knows the plan before refuses it too: it does not divide by what it knew. None replaces the plan by the first one.
#[test]
fn what_a_newer_program_wrote_is_refused_and_stays() {
    let brokers = brokers(address(), "newer", 1);
    let (mut agent, mut owner) = (open(&brokers), open(&brokers));
    agent.append(0, 1, b"a record").unwrap();
    let generation = assigned(&mut owner, 1);
    owner.commit(0, generation, &commit(1)).unwrap();
    put("newer.control", "plan", b"partitions 1\nhash xxh4\n");
    let refused = |what: &str, error: Option<weir_log::Error>| {
        let error = error.map(|error| error.to_string()).unwrap_or_default();
        error.contains("the plan in topic newer.control: line 2") && error.contains("a newer weir") || {
            assert_eq!(error, "", "{what}");
            false
        }
    };
    until("who knew the plan before hears of it", || {
        refused("a process with a plan", agent.plan().err())
    });
    assert!(refused(
        "an agent that writes",
        agent.append(0, 1, b"a record").err()
    ));
    let mut new = open(&brokers);
    for _ in 0..3 {
        assert!(refused("a new process", new.plan().err()));
        assert!(refused("a new agent", new.append(0, 1, b"a record").err()));
        assert!(refused("an announcement", new.announce(1000, 2).err()));
    }
    put("newer.control", "plan", b"partitions 1\n");
    until("a plan that it knows", || agent.plan().is_ok());
    assert_eq!(agent.append(0, 1, b"a record").unwrap(), 1);

    let snapshots = "newer.newer-merge.snapshots";
    put(snapshots, "0", b"\x02of a newer version");
    let error = owner.committed(0).unwrap_err().to_string();
    assert!(
        error.contains("partition 0: snapshot") && error.contains("a newer weir"),
        "{error}"
    );
    put(snapshots, "0", &[&[1][..], &[0; 8], b"of this one"].concat());
    assert_eq!(owner.committed(0).unwrap(), Some((b"of this one".to_vec(), 0)));
}

/// The offset of a partition is committed with its snapshot. Without the snapshot all of its records would be merged again.
#[test]
fn a_lost_snapshot_is_an_error() {
    let brokers = brokers(address(), "lost", 1);
    let mut log = open(&brokers);
    let generation = assigned(&mut log, 1);
    let commit = Commit {
        offset: 7,
        ..commit(1)
    };
    log.commit(0, generation, &commit).unwrap();
    drop(log);
    let (admin, options) = (admin(), AdminOptions::new());
    let deleted = admin.delete_topics(&["lost.lost-merge.snapshots"], &options);
    futures_executor::block_on(deleted).unwrap()[0].as_ref().unwrap();
    let mut next = open(&brokers);
    assigned(&mut next, 1);
    let mut error = String::new();
    until("the topic is there again", || {
        error = next.committed(0).unwrap_err().to_string();
        error.contains("ends at record")
    });
    assert!(
        error.contains("the last snapshot ends at record 0, but 7 are merged"),
        "{error}"
    );
}

/// Everybody sees a commit, the next owner finds it, and a process that is not the owner cannot commit.
#[test]
fn commits_are_found_by_the_next_owner() {
    let brokers = brokers(address(), "commits", 2);
    let mut log = open(&brokers);
    let generation = assigned(&mut log, 2);
    assert_eq!(log.committed(1).unwrap(), None);
    for number in 1..4 {
        log.commit(1, generation, &commit(number)).unwrap();
        assert_eq!(log.committed(1).unwrap(), Some((vec![number; 30], 0)));
    }
    let stale = log.commit(1, generation + 1, &commit(9));
    assert!(matches!(stale, Err(CommitError::Fenced)), "{stale:?}");
    let stranger = open(&brokers).commit(1, generation, &commit(9));
    assert!(matches!(stranger, Err(CommitError::Fenced)), "{stranger:?}");
    let expected: Vec<Vec<u8>> = (1..4).flat_map(|number| commit(number).results).collect();
    until_shown(&brokers, "results", 1);
    let results = log.results(1, 0, 1 << 20).unwrap();
    let found: Vec<&Vec<u8>> = results.iter().map(|(_, bytes)| bytes).collect();
    assert_eq!(found, expected.iter().collect::<Vec<_>>());
    // Reading from the number after each result returns the rest.
    for (at, (number, _)) in results.iter().enumerate() {
        assert_eq!(log.results(1, number + 1, 1 << 20).unwrap(), results[at + 1..]);
    }
    let sent = results[2].0;
    assert_eq!(log.results_sent(1).unwrap(), 0);
    log.record_results_sent(1, generation, sent).unwrap();
    drop(log);
    let mut next = open(&brokers);
    let generation = assigned(&mut next, 2);
    assert_eq!(next.committed(1).unwrap(), Some((vec![3; 30], 0)));
    assert_eq!(
        (next.results_sent(1).unwrap(), next.results_sent(0).unwrap()),
        (sent, 0)
    );
    assert!(next.record_results_sent(1, generation + 1, 0).is_err());
}

/// Its partitions do not go to the other member while it restarts, and it gets them again.
#[test]
fn a_static_member_keeps_its_partitions_over_a_restart() {
    let named = |name: &str| Brokers {
        instance: Some(name.to_owned()),
        session_timeout: Duration::from_secs(60),
        ..brokers(address(), "static", 2)
    };
    let (mut one, mut other) = (open(&named("one")), open(&named("other")));
    let mut held = [BTreeSet::new(), BTreeSet::new()];
    let follow = |log: &mut KafkaLog, held: &mut BTreeSet<u32>| {
        let news = log.assignments().unwrap();
        for change in &news {
            match change {
                Assignment::Assigned { partition, .. } => held.insert(*partition),
                Assignment::Revoked { partition } => held.remove(partition),
            };
        }
        news.len()
    };
    until("each has one", || {
        follow(&mut one, &mut held[0]);
        follow(&mut other, &mut held[1]);
        held[0].len() == 1 && held[1].len() == 1
    });
    drop(one);
    let mut again = open(&named("one"));
    let mut of_again = BTreeSet::new();
    until("it has its partition again", || {
        follow(&mut again, &mut of_again);
        assert_eq!(follow(&mut other, &mut held[1]), 0, "the other member has news");
        of_again == held[0]
    });
}

/// Requests to a broker by their numbers in the protocol: fetches and questions for the ends of partitions.
const FETCH: u16 = 1;
const LIST_OFFSETS: u16 = 2;

/// Passes connections on, and counts requests.
fn counted(listener: TcpListener, to: String) -> Arc<Mutex<BTreeMap<u16, u64>>> {
    let counts: Arc<Mutex<BTreeMap<u16, u64>>> = Arc::default();
    let all = counts.clone();
    std::thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let Ok(broker) = TcpStream::connect(&to) else {
                continue;
            };
            let (mut answers, mut asking) = (broker.try_clone().unwrap(), client.try_clone().unwrap());
            std::thread::spawn(move || drop(std::io::copy(&mut answers, &mut asking)));
            let counts = all.clone();
            std::thread::spawn(move || pass_on(client, broker, &counts));
        }
    });
    counts
}

/// Ends with the connection. A request is its length, its number, and the rest.
fn pass_on(mut client: TcpStream, mut broker: TcpStream, counts: &Mutex<BTreeMap<u16, u64>>) {
    let mut head = [0; 4];
    while client.read_exact(&mut head).is_ok() {
        let mut request = vec![0; u32::from_be_bytes(head) as usize];
        if client.read_exact(&mut request).is_err() {
            break;
        }
        let number = u16::from_be_bytes([request[0], request[1]]);
        *counts.lock().unwrap().entry(number).or_default() += 1;
        if broker.write_all(&[&head[..], &request].concat()).is_err() {
            break;
        }
    }
    drop(broker.shutdown(Shutdown::Both));
}

/// Thousands of agents ask the one broker that has the plan.
#[test]
fn an_idle_agent_asks_for_the_plan_and_fetches_nothing() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let proxy = listener.local_addr().unwrap().to_string();
    let advertised = format!("PLAINTEXT://{proxy}");
    let broker = weir_broker::Broker::start_with(None, &[("advertised.listeners", &advertised)]);
    let counts = counted(listener, broker.address());
    let of = |number: u16| counts.lock().unwrap().get(&number).copied().unwrap_or(0);
    let mut log = open(&brokers(proxy, "idle", 1));
    log.append(0, 1, b"a record").unwrap();
    assert_eq!(log.plan().unwrap(), Plan::new(1));
    let (fetches, asked) = (of(FETCH), of(LIST_OFFSETS));
    assert!(fetches > 0 && asked > 0, "{:?}", counts.lock().unwrap());
    until("it has asked for the plan some more times", || {
        assert_eq!(log.plan().unwrap(), Plan::new(1));
        of(LIST_OFFSETS) >= asked + 4
    });
    // A fetch may be under way while the client stops reading.
    assert!(of(FETCH) <= fetches + 1, "{:?}", counts.lock().unwrap());
}

/// Each output is a group of its own: it gets the results, and its position is its own.
#[test]
fn each_output_has_its_own_position() {
    let brokers = brokers(address(), "outputs", 1);
    let mut log = open(&brokers);
    let generation = assigned(&mut log, 1);
    for number in 1..4 {
        log.commit(0, generation, &commit(number)).unwrap();
    }
    let output = |name| KafkaLog::open_for_output(&brokers, name).unwrap();
    let (mut one, mut other) = (output("one"), output("other"));
    let generation = assigned(&mut one, 1);
    assigned(&mut other, 1);
    let start = one.results_start(0).unwrap();
    let expected: Vec<Vec<u8>> = (1..4).flat_map(|number| commit(number).results).collect();
    until_shown(&brokers, "results", 0);
    let results = one.results(0, start, 1 << 20).unwrap();
    let found: Vec<Vec<u8>> = results.iter().map(|(_, bytes)| bytes.clone()).collect();
    assert_eq!(found, expected);
    let sent = results[2].0 + 1;
    assert!(one.record_results_sent(0, generation + 1, sent).is_err());
    one.record_results_sent(0, generation, sent).unwrap();
    drop(one);
    let mut next = output("one");
    assigned(&mut next, 1);
    assert_eq!(
        (next.results_sent(0).unwrap(), other.results_sent(0).unwrap()),
        (sent, 0)
    );
    assert_eq!(next.results(0, sent, 1 << 20).unwrap(), results[3..]);
}

/// The sums of an output move with its position, in one transaction, and a process that has lost the partition cannot store older ones.
#[test]
fn sums_of_an_output_move_with_its_position() {
    let brokers = brokers(address(), &format!("sums-{}", unix_milliseconds()), 2);
    let output = || KafkaLog::open_for_output(&brokers, "scrape").unwrap();
    let sums = |number: u8| Commit {
        snapshot: vec![number; 300_000],
        offset: number.into(),
        ..Commit::default()
    };
    let mut one = output();
    let generation = assigned(&mut one, 2);
    assert_eq!(one.committed(1).unwrap(), None);
    let stale = one.commit(1, generation + 1, &sums(9));
    assert!(matches!(stale, Err(CommitError::Fenced)), "{stale:?}");
    let generations = [generation, generation - 1];
    let mut held = generations.into_iter();
    let generation = held.find(|generation| one.commit(1, *generation, &sums(1)).is_ok());
    let generation = generation.expect("one of them is that of partition 1");
    for number in 2..5 {
        one.commit(1, generation, &sums(number)).unwrap();
        assert_eq!(
            one.committed(1).unwrap(),
            Some((vec![number; 300_000], u64::from(number)))
        );
        until("the position is shown", || {
            one.results_sent(1).unwrap() == u64::from(number)
        });
    }
    assert_eq!(one.committed(0).unwrap(), None);
    drop(one);
    let mut next = output();
    assigned(&mut next, 2);
    assert_eq!(next.committed(1).unwrap(), Some((vec![4; 300_000], 4)));
    // Added partitions have a place for their sums.
    let mut owner = open(&brokers);
    owner.announce(unix_milliseconds() / 1000 + 60, 3).unwrap();
    until("the new partition is assigned", || {
        let news = next.assignments().unwrap();
        news.iter()
            .any(|change| matches!(change, Assignment::Assigned { partition: 2, .. }))
    });
    assert_eq!(next.committed(2).unwrap(), None);
}

/// Two groups merge the same records, and neither sees results or snapshots of the other.
#[test]
fn two_groups_on_one_topic_never_meet() {
    // The broker may be that of an earlier run.
    let topic = format!("groups-{}", unix_milliseconds());
    let one = brokers(address(), &topic, 1);
    let other = Brokers {
        group: format!("{topic}-other"),
        ..one.clone()
    };
    for (number, brokers) in (1..).zip([&one, &other]) {
        let mut log = open(brokers);
        let generation = assigned(&mut log, 1);
        assert_eq!(log.committed(0).unwrap(), None);
        log.commit(0, generation, &commit(number)).unwrap();
    }
    for (number, brokers) in (1..).zip([&one, &other]) {
        until_shown(brokers, "results", 0);
        let results = open(brokers).results(0, 0, 1 << 20).unwrap();
        let found: Vec<Vec<u8>> = results.into_iter().map(|(_, bytes)| bytes).collect();
        assert_eq!(found, commit(number).results);
    }
}

#[test]
fn a_snapshot_may_be_larger_than_a_record() {
    let mut log = open(&brokers(address(), "large", 1));
    let generation = assigned(&mut log, 1);
    let mut large = commit(1);
    large.snapshot = vec![7; 9_000_000];
    log.commit(0, generation, &large).unwrap();
    let (snapshot, _) = log.committed(0).unwrap().unwrap();
    assert_eq!(snapshot.len(), 9_000_000);
}

#[test]
fn quarantined_records_are_kept() {
    let brokers = brokers(address(), "poison", 1);
    let mut log = open(&brokers);
    for bytes in [&b"poison"[..], b"more"] {
        log.append(0, unix_milliseconds(), bytes).unwrap();
    }
    let mut owner = Owner::new(log, settings());
    turn_until(&mut owner, "both are quarantined", |turn, _| turn.commits > 0);
    until_shown(&brokers, "quarantine", 0);
    let kept = owner.log().quarantined(0).unwrap();
    let found: Vec<(u64, &[u8])> = kept.iter().map(|one| (one.offset, &one.bytes[..])).collect();
    assert_eq!(found, [(0, &b"poison"[..]), (1, b"more")]);
    assert!(kept[0].reason.contains("version 112"), "{}", kept[0].reason);
}

/// Records and results that the log has deleted are skipped, and the log reports the first offset it has.
#[test]
fn reading_begins_where_the_log_does() {
    let brokers = brokers(address(), "forgotten", 1);
    let mut log = open(&brokers);
    for number in 0..10 {
        log.append(0, 1, &[number; 10]).unwrap();
    }
    let generation = assigned(&mut log, 1);
    for number in 1..4 {
        log.commit(0, generation, &commit(number)).unwrap();
    }
    until_shown(&brokers, "results", 0);
    let mut output = KafkaLog::open_for_output(&brokers, "file").unwrap();
    let results = output.results(0, 0, 1 << 20).unwrap();
    let (rest, from) = (&results[4..], results[4].0);
    let mut list = TopicPartitionList::new();
    let of_results = "forgotten.forgotten-merge.results";
    for (topic, offset) in [("forgotten", 6), (of_results, from as i64)] {
        list.add_partition_offset(topic, 0, Offset::Offset(offset))
            .unwrap();
    }
    futures_executor::block_on(admin().delete_records(&list, &AdminOptions::new())).unwrap();
    let mut fresh = open(&brokers);
    let fetched = fresh.fetch(0, 2, 1 << 20).unwrap();
    let offsets: Vec<u64> = fetched.messages.iter().map(|message| message.offset).collect();
    assert_eq!((fetched.start, offsets), (6, vec![6, 7, 8, 9]));
    assert_eq!((fetched.next, fetched.end), (10, 10));
    let mut output = KafkaLog::open_for_output(&brokers, "file").unwrap();
    assert_eq!(output.results_start(0).unwrap(), from);
    assert_eq!(output.results(0, from, 1 << 20).unwrap(), rest);
}

/// An error names brokers that are down and the attempted operation.
#[test]
fn unreachable_brokers_are_an_error_with_their_address() {
    // The kernel hands out no port below 1024.
    let unused = "127.0.0.1:1";
    let away = Brokers {
        timeout: Duration::from_secs(1),
        ..brokers(unused.to_owned(), "away", 1)
    };
    let mut log = open(&away);
    let error = log.append(0, 1, b"x").unwrap_err().to_string();
    assert!(
        error.contains("Connection refused") && error.contains(unused),
        "{error}"
    );
    assert!(log.plan().is_err());
}
