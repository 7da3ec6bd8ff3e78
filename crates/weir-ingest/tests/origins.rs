//! Senders and their origins from packet to bucket, with this test as the one who knows them.

use std::collections::BTreeMap;
use std::sync::Arc;

use weir_aggregate::{AggregatorSettings, Value};
use weir_context::{HashSecret, Limits, OriginKey, OriginQuestion, OriginTicket, Rules};
use weir_ingest::{Ingest, IngestSettings, OriginAnswer, Received};
use weir_protocol::ParseOptions;

const START: i64 = 1_700_000_000;

fn settings() -> IngestSettings {
    IngestSettings {
        worker: 0,
        aggregator: AggregatorSettings::default(),
        rules: Rules::default(),
        limits: Limits::default(),
        secret: HashSecret::from_random(3, 4),
        gauge_deltas: false,
        listeners: vec![ParseOptions {
            origin_client: true,
            ..ParseOptions::default()
        }],
    }
}

struct Rig {
    ingest: Ingest,
    now: i64,
    /// What was asked, by the text of its key.
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
            if let OriginQuestion::Tags { ticket, key } = question {
                self.tickets.insert(key.into(), ticket);
            }
        }
    }

    fn process(&mut self, pid: i32, container: &str) {
        let container = (!container.is_empty()).then(|| container.into());
        self.ingest.answer(OriginAnswer::Process { pid, container });
        self.ingest.feed_parked(1, false);
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
        });
        self.ingest.feed_parked(1, false);
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
    assert_eq!(rig.ingest.counts()[0].messages, 0, "both wait for their process");
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

/// What had waited was taken by its parts from then on instead of by its bytes, at 20 ns for each message.
#[test]
fn what_has_waited_is_known_by_its_bytes_from_then_on() {
    let mut rig = Rig::new();
    let packet: String = (0..100).map(|i| format!("m{i}:1|c|#k:v\n")).collect();
    rig.send(1, &packet);
    rig.process(1, "one");
    rig.container("one", &["c:one"]);
    assert_eq!(rig.ingest.contexts().aliases(), 100);
    let misses = rig.ingest.contexts().alias_counts().misses;
    rig.send(1, &packet);
    assert_eq!(rig.ingest.contexts().alias_counts().misses, misses);
    assert_eq!(rig.bucket().len(), 100);
}

#[test]
fn known_tags_in_another_order_keep_their_sender() {
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
fn changed_tags_apply_from_then_on_and_state_stays() {
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
fn what_waits_too_long_goes_on_untagged_and_is_tagged_when_the_answer_comes() {
    let mut rig = Rig::new();
    rig.send(1, "a:1|c");
    rig.ingest.feed_parked(u64::MAX, false);
    assert_eq!(rig.ingest.origin_stats().parking.gave_up, 1);
    assert_eq!(rig.bucket(), sums([("a ", 1.0)]));
    rig.process(1, "one");
    rig.send(1, "a:2|c");
    rig.ingest.feed_parked(u64::MAX, false);
    assert_eq!(rig.bucket(), sums([("a ", 2.0)]), "the container's tags are late");
    rig.container("one", &["c:one"]);
    rig.send(1, "a:4|c");
    assert_eq!(rig.bucket(), sums([("a c:one", 4.0)]));
}

#[test]
fn a_bucket_that_closes_takes_what_waits() {
    let mut rig = Rig::new();
    rig.send(1, "a:1|c\nb:2|c\nbroken");
    assert_eq!(rig.bucket(), sums([("a ", 1.0), ("b ", 2.0)]));
    let counts = &rig.ingest.counts()[0];
    assert_eq!(
        (counts.packets, counts.messages, counts.rejected_total()),
        (1, 3, 1)
    );
}

#[test]
fn more_than_fits_goes_on_at_once() {
    let mut rig = Rig::new();
    let packet = "a:1|c\n".repeat(1000);
    for _ in 0..400 {
        rig.send(1, &packet);
    }
    let stats = rig.ingest.origin_stats();
    assert!(
        stats.parking.no_room > 0 && stats.parked_bytes <= 1024 * 1024,
        "{stats:?}"
    );
    assert_eq!(rig.bucket(), sums([("a ", 400_000.0)]));
}

#[test]
fn what_the_message_says_is_part_of_its_origin() {
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
    let batch = rig.ingest.take_passed_on().expect("all three");
    assert_eq!(batch.events[0].tags, ["c:one", "e"]);
    assert_eq!(batch.checks[0].tags, ["c:one", "s"]);
    let series: Vec<Vec<String>> = batch
        .series()
        .map(|series| series.tags().map(str::to_owned).collect())
        .collect();
    assert_eq!(series, [["c:one", "g"]]);
    rig.bucket();
}

#[test]
fn made_up_origins_are_bounded() {
    let mut rig = Rig::new();
    rig.send(1, "a:0|c");
    rig.process(1, "one");
    rig.container("one", &["c:one"]);
    for i in 0..70_000 {
        rig.send(1, &format!("a:1|c|c:ci-{i}"));
        rig.ingest.feed_parked(u64::MAX, false);
    }
    let stats = rig.ingest.origin_stats();
    assert!(
        stats.origins_live <= 65_536 && stats.origins.refused > 0,
        "{stats:?}"
    );
    assert_eq!(rig.ingest.contexts().len(), 2, "untagged, and that of the sender");
    assert_eq!(rig.bucket().values().sum::<f64>(), 70_000.0);
    // Nothing uses them any more once their contexts are gone; a minute later they go as well.
    for _ in 0..100 {
        rig.bucket();
        for _ in 0..2 {
            rig.ingest.tick_origins();
        }
    }
    assert_eq!(rig.ingest.origin_stats().origins_live, 0);
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
        ingest.feed_parked(u64::MAX, false);
        ingest.contexts_mut().take_origin_questions();
    }
    assert!(
        ingest.contexts().heap_bytes() <= 5 * 1024 * 1024,
        "{} bytes",
        ingest.contexts().heap_bytes()
    );
    assert_eq!(ingest.counts()[0].samples_aggregated, 60_000);
}
