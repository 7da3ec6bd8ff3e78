//! Rare answers of a broker, from the client library's mock.

use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use rdkafka::mocking::MockCluster;
use rdkafka::producer::DefaultProducerContext;
use rdkafka::types::{RDKafkaApiKey as Api, RDKafkaRespErr as Answer};
use weir_log::{Brokers, KafkaLog};
use weir_merge::{Assignment, Commit, CommitError, Log};

use super::fleet::{PATIENCE, brokers, until};

const ROUNDS: usize = 3;

type Mock = MockCluster<'static, DefaultProducerContext>;

/// The mock cannot create topics on request.
fn mock(topic: &str) -> (Mock, Brokers) {
    let mock = MockCluster::new(1).unwrap();
    let of_group =
        ["results", "snapshots", "quarantine"].map(|ending| format!("{topic}.{topic}-merge.{ending}"));
    let all = [topic.to_owned(), format!("{topic}.control")]
        .into_iter()
        .chain(of_group);
    for topic in all {
        mock.create_topic(&topic, 1, 1).unwrap();
    }
    let brokers = Brokers {
        timeout: Duration::from_secs(5),
        ..brokers(mock.bootstrap_servers(), topic, 1)
    };
    (mock, brokers)
}

fn open(brokers: &Brokers) -> KafkaLog {
    let mut log = KafkaLog::open(brokers).unwrap();
    log.accept_sender_timestamps();
    log
}

/// An owner of partition 0, and its generation.
fn owner(brokers: &Brokers) -> (KafkaLog, u64) {
    let (mut log, mut found) = (open(brokers), None);
    until("the partition", || {
        for change in log.assignments().unwrap() {
            if let Assignment::Assigned { generation, .. } = change {
                found = Some(generation);
            }
        }
        found.is_some()
    });
    (log, found.unwrap())
}

/// A client that closes must not be asked for the proof of ownership: the answer may never come.
#[test]
fn owners_leave_at_any_time() {
    let (mock, brokers) = mock("leaving");
    for _ in 0..ROUNDS {
        mock.broker_up(1).unwrap();
        let (log, _) = owner(&brokers);
        mock.broker_down(1).unwrap();
        let (left, leaving) = channel();
        std::thread::spawn(move || {
            drop(log);
            left.send(())
        });
        leaving.recv_timeout(PATIENCE).expect("it has left");
    }
}

fn commit() -> Commit {
    Commit {
        results: vec![b"result".to_vec()],
        snapshot: b"snapshot".to_vec(),
        ..Commit::default()
    }
}

#[test]
fn a_record_is_stored_after_transient_errors() {
    let (mock, brokers) = mock("passing");
    let mut log = open(&brokers);
    assert_eq!(log.append(0, 1, b"first").unwrap(), 0);
    mock.request_errors(
        Api::Produce,
        &[
            Answer::RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS,
            Answer::RD_KAFKA_RESP_ERR_REQUEST_TIMED_OUT,
            Answer::RD_KAFKA_RESP_ERR_NOT_LEADER_FOR_PARTITION,
        ],
    );
    assert_eq!(log.append(0, 1, b"second").unwrap(), 1);
    let mut found: Vec<Vec<u8>> = Vec::new();
    until("both come", || {
        let fetched = log.fetch(0, found.len() as u64, 1 << 20).unwrap();
        found.extend(fetched.messages.into_iter().map(|message| message.bytes));
        found.len() >= 2
    });
    assert_eq!(found, [&b"first"[..], b"second"]);
}

/// The processor time of this thread.
fn used() -> Duration {
    let used = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(used.tv_sec as u64, used.tv_nsec as u32)
}

/// An agent waits for brokers that are away for as long as they are.
#[test]
fn a_record_waits_for_a_broker_without_using_the_processor() {
    let (mock, brokers) = mock("waiting");
    let brokers = Brokers {
        timeout: Duration::from_secs(2),
        ..brokers
    };
    let mut log = open(&brokers);
    until("a record is stored", || log.append(0, 1, b"first").is_ok());
    mock.broker_down(1).unwrap();
    let (begun, before) = (Instant::now(), used());
    log.append(0, 1, b"second").unwrap_err();
    let (waited, used) = (begun.elapsed(), used() - before);
    assert!(waited >= Duration::from_secs(1), "{waited:?}");
    assert!(used * 20 < waited, "{used:?} in {waited:?}");
}

#[test]
fn a_refused_record_is_an_error_until_rights_are_granted() {
    let (mock, brokers) = mock("refused");
    let mut log = open(&brokers);
    log.append(0, 1, b"first").unwrap();
    mock.request_errors(
        Api::Produce,
        &[Answer::RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED],
    );
    let error = log.append(0, 1, b"second").unwrap_err().to_string();
    assert!(
        error.contains("writing to partition 0 of topic refused"),
        "{error}"
    );
    assert!(error.contains("uthorization"), "{error}");
    until("it is allowed", || log.append(0, 1, b"second").is_ok());
}

/// A topic may take less than a record has: to send that one again would hold up all behind it.
#[test]
fn a_record_that_is_too_large_for_the_topic_is_refused_permanently() {
    let (mock, brokers) = mock("narrow");
    let mut log = open(&brokers);
    log.append(0, 1, b"first").unwrap();
    mock.request_errors(Api::Produce, &[Answer::RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE]);
    let error = log.append(0, 1, b"second").unwrap_err();
    assert!(matches!(error, weir_log::Error::Refused { .. }), "{error:?}");
    assert!(
        error
            .to_string()
            .contains("writing to partition 0 of topic narrow"),
        "{error}"
    );
    assert_eq!(log.append(0, 1, b"third").unwrap(), 1);
}

/// The group is in another generation: it refuses the proof and reports that another owner has the partition.
#[test]
fn a_refused_generation_is_no_commit() {
    let (mock, brokers) = mock("generation");
    let (mut log, generation) = owner(&brokers);
    log.commit(0, generation, &commit()).unwrap();
    mock.request_errors(
        Api::TxnOffsetCommit,
        &[Answer::RD_KAFKA_RESP_ERR_ILLEGAL_GENERATION; 1],
    );
    let fenced = log.commit(0, generation, &commit());
    assert!(
        fenced.is_err(),
        "it was not committed, and the log did not say that it was"
    );
}

/// Members come and go. A partition that an output keeps is not assigned again, so a position that is refused then is stored later.
#[test]
fn a_position_is_stored_after_a_change_of_the_group() {
    let (mock, brokers) = mock("positions");
    let mut output = KafkaLog::open_for_output(&brokers, "file").unwrap();
    let mut generation = None;
    until("the partition", || {
        for change in output.assignments().unwrap() {
            if let Assignment::Assigned { generation: of, .. } = change {
                generation = Some(of);
            }
        }
        generation.is_some()
    });
    mock.request_errors(
        Api::OffsetCommit,
        &[Answer::RD_KAFKA_RESP_ERR_REBALANCE_IN_PROGRESS],
    );
    output.record_results_sent(0, generation.unwrap(), 7).unwrap();
    assert_eq!(output.results_sent(0).unwrap(), 7);
}

/// Another client uses the transactional id: this transaction fails, and the next one succeeds.
#[test]
fn a_client_that_is_fenced_is_replaced() {
    let (mock, brokers) = mock("replaced");
    let (mut log, generation) = owner(&brokers);
    mock.request_errors(Api::EndTxn, &[Answer::RD_KAFKA_RESP_ERR_INVALID_PRODUCER_EPOCH]);
    let failed = log.commit(0, generation, &commit());
    assert!(matches!(failed, Err(CommitError::Log(_))), "{failed:?}");
    log.commit(0, generation, &commit()).unwrap();
}

/// A partition whose snapshot could not be read in time looked like one without a snapshot, and every record was merged again.
#[test]
fn a_snapshot_that_cannot_be_read_is_an_error() {
    let (mock, brokers) = mock("unread");
    let (mut owner, generation) = owner(&brokers);
    owner.commit(0, generation, &commit()).unwrap();
    let mut log = open(&Brokers {
        timeout: Duration::from_secs(1),
        ..brokers
    });
    mock.request_errors(Api::Fetch, &[Answer::RD_KAFKA_RESP_ERR_LEADER_NOT_AVAILABLE; 30]);
    let unread = log.committed(0);
    assert!(unread.is_err(), "{unread:?}");
    until("brokers answer", || matches!(log.committed(0), Ok(Some(_))));
}
