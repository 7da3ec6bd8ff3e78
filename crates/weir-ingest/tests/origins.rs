//! Senders and their origins from packet to bucket, with this test as the one who knows them.

use std::collections::BTreeMap;
use std::sync::Arc;

use weir_aggregate::{AggregatorSettings, Value};
use weir_context::{Admission, ContextLimits, HashSecret, OriginKey, OriginQuestion, OriginTicket, Rules};
use weir_context::{AliasCounter, OriginCounter};
use weir_ingest::{
    AdmissionList, AdmissionSettings, Ingest, IngestSettings, OriginAnswer, ProcessContainer, Received,
    RefusalReason, WaitLimit,
};
use weir_ingest::{IngestCounter, ParkingCounter};
use weir_protocol::ParseOptions;

const START: i64 = 1_700_000_000;

fn settings() -> IngestSettings {
    IngestSettings {
        worker: 0,
        aggregator: AggregatorSettings::default(),
        rules: Rules::default(),
        limits: ContextLimits::default(),
        secret: HashSecret::from_random(3, 4),
        listeners: vec![
            ParseOptions {
                origin_client: true,
                ..ParseOptions::default()
            }
            .into(),
        ],
    }
}

struct Rig {
    ingest: Ingest,
    now: i64,
    /// Requests, by the text of their key.
    tickets: BTreeMap<String, OriginTicket>,
}

impl Rig {
    fn new() -> Self {
        let mut ingest = Ingest::new(settings(), START);
        ingest.enable_origins(false);
        Rig {
            ingest,
            now: START,
            tickets: BTreeMap::new(),
        }
    }

    fn send(&mut self, pid: i32, line: &str) {
        let packet = Received {
            bytes: line.as_bytes(),
            listener: 0,
            truncated: false,
            received: 1,
        };
        self.ingest.packet_from(packet, pid);
    }

    fn questions(&mut self) {
        for question in self.ingest.contexts_mut().take_origin_questions() {
            if let OriginQuestion::Subscribe { ticket, key } = question {
                self.tickets.insert(key.into(), ticket);
            }
        }
    }

    fn process(&mut self, pid: i32, container: &str) {
        let found = match container {
            "" => ProcessContainer::NoContainer,
            id => ProcessContainer::Container(id.into()),
        };
        self.ingest.answer(OriginAnswer::Process { pid, found });
        self.ingest.feed_parked(1, WaitLimit::Timeout);
        self.questions();
    }

    /// Answers for the origin whose sender is this container and that says nothing else.
    fn container(&mut self, container: &str, tags: &[&str]) {
        let mut key = String::new();
        OriginKey {
            sender: container,
            ..OriginKey::default()
        }
        .write(&mut key);
        self.tags(&key, tags);
    }

    fn tags(&mut self, key: &str, tags: &[&str]) {
        self.say(key, tags, Admission::Undecided);
    }

    /// Says whether a container may send.
    fn admission(&mut self, container: &str, admission: Admission) {
        let key = format!("|||||{container}");
        self.say(&key, &[], admission);
    }

    fn say(&mut self, key: &str, tags: &[&str], admission: Admission) {
        self.questions();
        let ticket = *self
            .tickets
            .get(key)
            .unwrap_or_else(|| panic!("nobody asked for {key}; asked: {:?}", self.tickets));
        let tags: Arc<[Box<str>]> = tags.iter().map(|&tag| Box::from(tag)).collect();
        self.ingest.answer(OriginAnswer::Tags {
            ticket,
            tags,
            settled: true,
            admission,
        });
        self.ingest.feed_parked(1, WaitLimit::Timeout);
        let now = self.ingest.aggregator().now();
        while self.ingest.contexts_mut().sweep_stale(1, now) {}
    }

    /// Closes the bucket: name and tags to the sum of its counters, zeros left out.
    fn bucket(&mut self) -> BTreeMap<String, f64> {
        self.now += 10;
        assert!(self.ingest.advance(self.now));
        let mut sums = BTreeMap::new();
        while self.ingest.is_draining() {
            let Some(batch) = self.ingest.drain(usize::MAX) else {
                continue;
            };
            for series in batch.series() {
                let tags: Vec<_> = series.tags().collect();
                if let Value::Counter(sum) = series.value()
                    && sum != 0.0
                {
                    *sums
                        .entry(format!("{} {}", series.name(), tags.join(",")))
                        .or_default() += sum;
                }
            }
        }
        for counts in self.ingest.counts() {
            assert!(counts.balance(), "{counts:?}");
        }
        sums
    }
}

fn sums<const N: usize>(expected: [(&str, f64); N]) -> BTreeMap<String, f64> {
    expected
        .into_iter()
        .map(|(key, sum)| (key.to_owned(), sum))
        .collect()
}

#[test]
fn equal_bytes_from_two_containers_are_two_contexts() {
    let mut rig = Rig::new();
    rig.send(1, "a:1|c|#k:v");
    rig.send(2, "a:10|c|#k:v");
    assert_eq!(
        rig.ingest.counts()[0][IngestCounter::Messages],
        0,
        "both wait for their process"
    );
    rig.process(1, "one");
    rig.process(2, "two");
    rig.container("one", &["c:one"]);
    rig.container("two", &["c:two"]);
    for _ in 0..3 {
        rig.send(1, "a:1|c|#k:v");
        rig.send(2, "a:10|c|#k:v");
        rig.send(0, "a:100|c|#k:v");
    }
    assert_eq!(
        rig.bucket(),
        sums([("a k:v", 300.0), ("a c:one,k:v", 4.0), ("a c:two,k:v", 40.0)])
    );
}

/// Messages that had waited used to be found by their parts from then on instead of by their bytes, at 20 ns each.
#[test]
fn a_parked_message_gets_an_alias() {
    let mut rig = Rig::new();
    let packet: String = (0..100).map(|i| format!("m{i}:1|c|#k:v\n")).collect();
    rig.send(1, &packet);
    rig.process(1, "one");
    rig.container("one", &["c:one"]);
    assert_eq!(rig.ingest.contexts().aliases(), 100);
    let misses = rig.ingest.contexts().alias_counts()[AliasCounter::Misses];
    rig.send(1, &packet);
    assert_eq!(rig.ingest.contexts().alias_counts()[AliasCounter::Misses], misses);
    assert_eq!(rig.bucket().len(), 100);
}

#[test]
fn reordered_tags_keep_their_sender() {
    let mut rig = Rig::new();
    rig.process(1, "");
    for (pid, container) in [(1, "one"), (2, "two")] {
        rig.send(pid, "a:1|c|#x,y");
        rig.process(pid, container);
        rig.container(container, &[&format!("c:{container}")]);
    }
    for _ in 0..3 {
        rig.send(1, "a:1|c|#y,x");
        rig.send(2, "a:10|c|#y,x");
    }
    assert_eq!(rig.bucket(), sums([("a c:one,x,y", 4.0), ("a c:two,x,y", 31.0)]));
}

#[test]
fn processes_of_one_container_share_its_contexts() {
    let mut rig = Rig::new();
    for pid in 1..=3 {
        rig.send(pid, "a:1|c");
        rig.process(pid, "one");
    }
    rig.container("one", &["c:one"]);
    for pid in 1..=3 {
        rig.send(pid, "a:1|c");
    }
    assert_eq!(rig.bucket(), sums([("a c:one", 6.0)]));
    assert_eq!(rig.ingest.contexts().len(), 1);
}

#[test]
fn changed_tags_apply_to_later_messages_and_state_stays() {
    let mut rig = Rig::new();
    rig.send(1, "a:1|c");
    rig.process(1, "one");
    rig.container("one", &["v:1"]);
    rig.send(1, "a:2|c");
    rig.container("one", &["v:2"]);
    rig.send(1, "a:4|c");
    assert_eq!(
        rig.bucket(),
        sums([("a v:1", 3.0), ("a v:2", 4.0)]),
        "what was aggregated stays"
    );
    rig.send(1, "a:8|c");
    assert_eq!(rig.bucket(), sums([("a v:2", 8.0)]));
    // The way back meets the context that is still there.
    rig.container("one", &["v:1"]);
    rig.send(1, "a:16|c");
    assert_eq!(rig.bucket(), sums([("a v:1", 16.0)]));
}

#[test]
fn a_parked_message_times_out_untagged_and_later_ones_are_tagged() {
    let mut rig = Rig::new();
    rig.send(1, "a:1|c");
    rig.ingest.feed_parked(u64::MAX, WaitLimit::Timeout);
    assert_eq!(rig.ingest.origin_stats().parking[ParkingCounter::GaveUp], 1);
    assert_eq!(rig.bucket(), sums([("a ", 1.0)]));
    rig.process(1, "one");
    rig.send(1, "a:2|c");
    rig.ingest.feed_parked(u64::MAX, WaitLimit::Timeout);
    assert_eq!(rig.bucket(), sums([("a ", 2.0)]), "the container's tags are late");
    rig.container("one", &["c:one"]);
    rig.send(1, "a:4|c");
    assert_eq!(rig.bucket(), sums([("a c:one", 4.0)]));
}

#[test]
fn messages_of_a_packet_that_was_late_do_not_wait_again_and_are_counted() {
    let mut rig = Rig::new();
    rig.send(1, "a:1|c\nb:2|c");
    let found = ProcessContainer::Container("one".into());
    rig.ingest.answer(OriginAnswer::Process { pid: 1, found });
    rig.ingest.feed_parked(u64::MAX, WaitLimit::Timeout);
    let gave_up = |rig: &Rig| rig.ingest.origin_stats().parking[ParkingCounter::GaveUp];
    assert_eq!(
        gave_up(&rig),
        2,
        "its process is known, and the tags of neither message"
    );
    assert_eq!(rig.bucket(), sums([("a ", 1.0), ("b ", 2.0)]));
    rig.questions();
    rig.container("one", &["c:one"]);
    rig.send(1, "a:4|c");
    assert_eq!(gave_up(&rig), 2);
    assert_eq!(rig.bucket(), sums([("a c:one", 4.0)]));
}

#[test]
fn a_closing_bucket_includes_parked_messages() {
    let mut rig = Rig::new();
    rig.send(1, "a:1|c\nb:2|c\nbroken");
    assert_eq!(rig.bucket(), sums([("a ", 1.0), ("b ", 2.0)]));
    let counts = &rig.ingest.counts()[0];
    assert_eq!(
        (
            counts[IngestCounter::Packets],
            counts[IngestCounter::Messages],
            counts.rejected_total()
        ),
        (1, 3, 1)
    );
}

#[test]
fn messages_beyond_the_parking_limit_are_not_parked() {
    let mut rig = Rig::new();
    let packet = "a:1|c\n".repeat(1000);
    for _ in 0..400 {
        rig.send(1, &packet);
    }
    let stats = rig.ingest.origin_stats();
    assert!(
        stats.parking[ParkingCounter::NoRoom] > 0 && stats.parked_bytes <= 1024 * 1024,
        "{stats:?}"
    );
    assert_eq!(rig.bucket(), sums([("a ", 400_000.0)]));
}

#[test]
fn origin_fields_of_a_message_are_part_of_its_origin() {
    let mut rig = Rig::new();
    rig.send(
        1,
        "a:1|c|c:ci-x\na:2|c|c:ci-y|card:high\na:4|c|#dd.internal.entity_id:pod",
    );
    rig.process(1, "one");
    rig.tags("=ci-x|||||one", &["c:x"]);
    rig.tags("=ci-y||=high|||one", &["c:y"]);
    rig.tags("|||=pod||one", &["p:pod"]);
    assert_eq!(
        rig.bucket(),
        sums([("a c:x", 1.0), ("a c:y", 2.0), ("a p:pod", 4.0)])
    );
}

#[test]
fn events_checks_and_timestamped_samples_get_their_tags() {
    let mut rig = Rig::new();
    rig.send(1, "_e{1,1}:t|x|#e\n_sc|n|0|#s\ng:1|g|T1700000000|#g");
    rig.process(1, "one");
    rig.container("one", &["c:one"]);
    let batch = rig.ingest.take_pass_through().expect("all three");
    assert_eq!(batch.events[0].tags, ["c:one", "e"]);
    assert_eq!(batch.checks[0].tags, ["c:one", "s"]);
    let series: Vec<Vec<String>> = batch
        .series()
        .map(|series| series.tags().map(str::to_owned).collect())
        .collect();
    assert_eq!(series, [["c:one", "g"]]);
    rig.bucket();
}

/// A rig that takes only who is allowed, on its first listener.
fn guarded(no_container: bool, unknown: bool) -> Rig {
    let mut rig = Rig::new();
    rig.ingest.limit_senders(AdmissionSettings {
        list: Some(AdmissionList {
            no_container,
            unknown,
        }),
        listeners: vec![true],
    });
    rig
}

/// Packets taken, and refused because the origin is not on the list and because it is not known; those that wait.
fn packets(rig: &Rig) -> (u64, u64, u64, u64) {
    let counts = &rig.ingest.counts()[0];
    let [not_allowed, unknown] = RefusalReason::ALL.map(|why| counts.packets_refused[why]);
    (
        counts[IngestCounter::Packets],
        not_allowed,
        unknown,
        rig.ingest.packets_waiting(0),
    )
}

#[test]
fn only_allowed_senders_are_admitted_and_none_before_its_look_up() {
    let mut rig = guarded(false, false);
    for pid in 1..=3 {
        rig.send(pid, "a:1|c");
    }
    rig.process(1, "good");
    rig.process(2, "bad");
    assert_eq!(
        packets(&rig),
        (0, 0, 0, 3),
        "nothing is said of the containers yet"
    );
    rig.process(3, "");
    assert_eq!(
        packets(&rig),
        (0, 1, 0, 2),
        "no container's processes are not on the list"
    );
    rig.admission("good", Admission::Allowed);
    rig.admission("bad", Admission::NotAllowed);
    for pid in 0..=3 {
        rig.send(pid, "a:10|c");
    }
    assert_eq!(
        packets(&rig),
        (2, 4, 1, 0),
        "and one whose process the kernel does not name"
    );
    let refused = rig.ingest.refused_senders();
    let rows: Vec<_> = refused
        .iter()
        .map(|row| (row.origin.as_str(), row.reason, row.pid, row.packets))
        .collect();
    assert_eq!(
        rows,
        [
            ("", RefusalReason::NotAllowed, 3, 2),
            ("|||||bad", RefusalReason::NotAllowed, 2, 2),
            ("", RefusalReason::Unknown, 0, 1)
        ]
    );
    // Tags change, and with them what the list says.
    rig.admission("good", Admission::NotAllowed);
    rig.admission("bad", Admission::Allowed);
    rig.send(1, "a:100|c");
    rig.send(2, "a:1000|c");
    assert_eq!(packets(&rig), (3, 5, 1, 0));
    assert_eq!(rig.bucket().values().sum::<f64>(), 1011.0);
    // Another list, and none.
    rig.ingest.set_admission_list(Some(AdmissionList {
        no_container: true,
        unknown: true,
    }));
    for pid in [0, 1, 3] {
        rig.send(pid, "a:1|c");
    }
    assert_eq!(packets(&rig), (5, 6, 1, 0));
    rig.ingest.set_admission_list(None);
    rig.send(1, "a:1|c");
    assert_eq!(packets(&rig), (6, 6, 1, 0));
}

#[test]
fn a_sender_that_is_not_found_in_time_is_unknown() {
    for unknown in [false, true] {
        let mut rig = guarded(true, unknown);
        rig.send(1, "a:1|c");
        rig.send(2, "a:1|c");
        rig.process(2, "slow");
        rig.ingest.feed_parked(u64::MAX, WaitLimit::Timeout);
        let expected = if unknown { (2, 0, 0, 0) } else { (0, 0, 2, 0) };
        assert_eq!(packets(&rig), expected, "neither the process nor its container");
        rig.send(1, "a:1|c");
        rig.send(2, "a:1|c");
        let expected = if unknown { (4, 0, 0, 0) } else { (0, 0, 4, 0) };
        assert_eq!(packets(&rig), expected, "and it waits no more");
        rig.process(1, "");
        rig.admission("slow", Admission::Allowed);
        rig.send(1, "a:1|c");
        rig.send(2, "a:1|c");
        let (taken, not_allowed, refused, waiting) = expected;
        assert_eq!(packets(&rig), (taken + 2, not_allowed, refused, waiting));
        // More than can wait.
        let packet = "a:1|c\n".repeat(1000);
        for _ in 0..400 {
            rig.send(3, &packet);
        }
        let (now_taken, _, now_refused, waiting) = packets(&rig);
        assert!(waiting > 0 && waiting < 400);
        let went_on = (now_taken - taken - 2, now_refused - refused);
        let expected = if unknown {
            (400 - waiting, 0)
        } else {
            (0, 400 - waiting)
        };
        assert_eq!(went_on, expected);
        rig.bucket();
    }
}

/// Messages that wait for tags proceed at the end of their bucket. Those that may be refused would be lost that way.
#[test]
fn an_admission_decision_is_awaited_beyond_the_bucket() {
    let mut rig = guarded(false, false);
    rig.send(1, "a:1|c");
    assert_eq!(rig.bucket(), sums([]));
    rig.process(1, "good");
    assert_eq!(rig.bucket(), sums([]));
    rig.admission("good", Admission::Allowed);
    assert_eq!(packets(&rig), (1, 0, 0, 0));
    assert_eq!(rig.bucket(), sums([("a ", 1.0)]));
    rig.send(2, "a:1|c");
    assert!(rig.ingest.close_now());
    assert_eq!(packets(&rig), (1, 0, 1, 0), "the end waits for nobody");
}

#[test]
fn listeners_without_credentials_admit_all_senders() {
    let mut rig = guarded(false, false);
    rig.ingest.limit_senders(AdmissionSettings {
        list: Some(AdmissionList {
            no_container: false,
            unknown: false,
        }),
        listeners: vec![false],
    });
    rig.send(0, "a:1|c");
    assert_eq!(packets(&rig), (1, 0, 0, 0));
}

#[test]
fn invented_origins_are_bounded() {
    let mut rig = Rig::new();
    rig.send(1, "a:0|c");
    rig.process(1, "one");
    rig.container("one", &["c:one"]);
    for i in 0..70_000 {
        rig.send(1, &format!("a:1|c|c:ci-{i}"));
        rig.ingest.feed_parked(u64::MAX, WaitLimit::Timeout);
    }
    let stats = rig.ingest.origin_stats();
    assert!(
        stats.origins[OriginCounter::Live] <= 65_536 && stats.origins[OriginCounter::Refused] > 0,
        "{stats:?}"
    );
    assert_eq!(rig.ingest.contexts().len(), 2, "untagged, and that of the sender");
    assert_eq!(rig.bucket().values().sum::<f64>(), 70_000.0);
    // They are unused once their contexts have expired; a minute later they are removed too.
    for _ in 0..100 {
        rig.bucket();
        for _ in 0..2 {
            rig.ingest.tick_origins(u64::MAX);
        }
    }
    assert_eq!(rig.ingest.origin_stats().origins[OriginCounter::Live], 0);
}

#[test]
fn a_flood_of_origins_for_one_context_stays_within_the_budget() {
    let mut settings = settings();
    settings.limits.bytes_max = 4 * 1024 * 1024;
    let mut ingest = Ingest::new(settings, START);
    ingest.enable_origins(false);
    for i in 0..60_000 {
        let line = format!("a:1|c|c:ci-{i:060}");
        ingest.packet(Received {
            bytes: line.as_bytes(),
            listener: 0,
            truncated: false,
            received: 1,
        });
        ingest.feed_parked(u64::MAX, WaitLimit::Timeout);
        ingest.contexts_mut().take_origin_questions();
    }
    assert!(
        ingest.contexts().heap_bytes() <= 5 * 1024 * 1024,
        "{} bytes",
        ingest.contexts().heap_bytes()
    );
    assert_eq!(ingest.counts()[0][IngestCounter::SamplesAggregated], 60_000);
}
