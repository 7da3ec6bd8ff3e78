//! A fleet in real time: the broker's clock counts, so buckets are seconds.

use std::collections::{BTreeMap, VecDeque};
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use weir_log::{Brokers, Error, KafkaLog, unix_milliseconds};
use weir_merge::{BucketResult, Counts, Ledger, Log, Merge, Occasion, Owner, OwnerTurn, Settings};
use weir_state::{AgentId, Bounds, Header, Record, Table};

use crate::support::{Writer, agent, signed};

/// Timeout of every wait.
pub const PATIENCE: Duration = Duration::from_secs(90);

/// One broker for all tests that do not harm it.
pub use weir_broker::shared as address;

/// Topics for one test.
pub fn brokers(address: String, topic: &str, partitions: u32) -> Brokers {
    Brokers {
        addresses: vec![address],
        topic: topic.to_owned(),
        group: format!("{topic}-merge"),
        partitions,
        ..Brokers::default()
    }
}

pub fn open(brokers: &Brokers) -> KafkaLog {
    KafkaLog::open(brokers).unwrap()
}

pub fn settings() -> Settings {
    Settings {
        grace: 3,
        bounds: Bounds::NONE,
        hash_seed: 1,
        ..Settings::default()
    }
}

/// Waits for a condition, and fails with its name.
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < end, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Waits until brokers show everything that was committed. A commit succeeds before they have marked its records in each topic.
pub fn until_shown(brokers: &Brokers, ending: &str, partition: u32) {
    let topic = format!("{}.{}.{ending}", brokers.topic, brokers.group);
    let [readable, written] = ["read_committed", "read_uncommitted"].map(|level| {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", &brokers.addresses[0]);
        config.set("isolation.level", level);
        config.create::<BaseConsumer>().unwrap()
    });
    let end = |client: &BaseConsumer| {
        let ends = client.fetch_watermarks(&topic, partition as i32, PATIENCE);
        ends.map(|(_, end)| end)
    };
    until("no transaction is open", || {
        let written = end(&written);
        written.is_ok() && end(&readable) == written
    });
}

struct Waiting {
    partition: u32,
    bytes: Vec<u8>,
}

/// Agents, their published records, and those that wait because the log refused them.
pub struct Fleet {
    pub brokers: Brokers,
    pub log: KafkaLog,
    writers: BTreeMap<(u8, u32), Writer>,
    queue: VecDeque<Waiting>,
    agents: u8,
    last: i64,
    /// The expected result of each partition and bucket.
    truth: BTreeMap<(u32, i64), Table>,
    pub states: u64,
    /// The records sent last, to send them again.
    pub sent: Vec<(u32, i64, Vec<u8>)>,
    pub failures: u64,
}

fn header(writer: &Writer, bucket: i64, partitions: u32) -> Header {
    let mut header = writer.header(bucket);
    header.bucket_width = 1;
    if let Some(publication) = &mut header.publication {
        publication.partitions = partitions;
    }
    header
}

impl Fleet {
    pub fn new(brokers: Brokers, agents: u8) -> Self {
        Fleet {
            log: open(&brokers),
            brokers,
            writers: BTreeMap::new(),
            queue: VecDeque::new(),
            agents,
            last: unix_milliseconds() / 1000 - 1,
            truth: BTreeMap::new(),
            states: 0,
            sent: Vec::new(),
            failures: 0,
        }
    }

    /// Publishes the elapsed seconds, and sends waiting records. `false`: some still wait.
    pub fn go_on(&mut self) -> bool {
        let now = unix_milliseconds() / 1000 - 1;
        for bucket in self.last + 1..=now {
            (0..self.agents).for_each(|agent| self.publish(agent, bucket));
        }
        self.last = self.last.max(now);
        self.send();
        self.queue.is_empty()
    }

    pub fn go_on_for(&mut self, seconds: u64) {
        let end = Instant::now() + Duration::from_secs(seconds);
        while Instant::now() < end {
            self.go_on();
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn publish(&mut self, number: u8, bucket: i64) {
        let partitions = self.brokers.partitions;
        for partition in 0..partitions {
            let writer = self
                .writers
                .entry((number, partition))
                .or_insert_with(|| Writer::new(number, 1));
            let name = format!("{number}/{partition}/{}", writer.sequence);
            let table = signed(&[&name]);
            let bytes = writer
                .write_as(&header(writer, bucket, partitions), &table)
                .remove(0);
            let record = Record::decode(&bytes).unwrap();
            let truth = self.truth.entry((partition, bucket));
            truth
                .or_insert_with(|| Table::new(Bounds::NONE))
                .add_record(&record);
            self.states += record.len() as u64;
            self.queue.push_back(Waiting { partition, bytes });
        }
    }

    /// Sends in order. Resends records that the log may or may not have stored.
    fn send(&mut self) {
        while let Some(next) = self.queue.front() {
            let sent = unix_milliseconds();
            match self.log.append(next.partition, sent, &next.bytes) {
                Ok(_) => {
                    let Waiting { partition, bytes } = self.queue.pop_front().unwrap();
                    self.sent.push((partition, sent, bytes));
                }
                Err(_) => {
                    self.failures += 1;
                    return;
                }
            }
        }
    }

    pub fn waiting(&self) -> usize {
        self.queue.len()
    }

    /// Sends until nothing waits.
    pub fn send_all(&mut self) {
        let end = Instant::now() + PATIENCE;
        while !self.queue.is_empty() {
            assert!(Instant::now() < end, "the log takes nothing");
            self.send();
        }
    }

    /// All results. Panics unless they contain each published state exactly once, in its bucket.
    pub fn check(&mut self) -> Vec<(BucketResult, Record)> {
        let timeout = Brokers::default().timeout;
        let mut log = open(&Brokers {
            timeout,
            ..self.brokers.clone()
        });
        let mut all = Vec::new();
        for partition in 0..self.brokers.partitions {
            until_shown(&self.brokers, "results", partition);
            let expected: BTreeMap<i64, Vec<u8>> = self
                .truth
                .iter()
                .filter(|((of, _), _)| *of == partition)
                .map(|((_, bucket), table)| (*bucket, contents(table)))
                .collect();
            let (mut found, mut from) = (Vec::new(), 0);
            loop {
                let results = log.results(partition, from, 1 << 20).unwrap();
                let Some((last, _)) = results.last() else {
                    break;
                };
                assert!(results[0].0 >= from, "results are not in order");
                from = last + 1;
                let decoded = results
                    .iter()
                    .map(|(_, bytes)| BucketResult::decode(bytes).unwrap());
                found.extend(decoded);
            }
            assert_eq!(buckets(&found), expected, "partition {partition}");
            all.extend(found);
        }
        all
    }
}

/// Equal series give equal bytes.
fn contents(table: &Table) -> Vec<u8> {
    let (records, _) = table.encode(&Header::default());
    records.concat()
}

/// The sum of the results of each bucket. A record that is merged twice counts twice.
fn buckets(results: &[(BucketResult, Record)]) -> BTreeMap<i64, Vec<u8>> {
    let mut tables: BTreeMap<i64, Table> = BTreeMap::new();
    for (closed, record) in results {
        let table = tables.entry(closed.bucket_start);
        table
            .or_insert_with(|| Table::new(Bounds::NONE))
            .add_record(record);
    }
    let tables = tables.iter();
    tables.map(|(bucket, table)| (*bucket, contents(table))).collect()
}

pub fn late(results: &[(BucketResult, Record)]) -> usize {
    let late = |closed: &BucketResult| matches!(closed.occasion, Occasion::Late { .. });
    results.iter().filter(|(closed, _)| late(closed)).count()
}

/// The counts and ledgers of a running owner, for each of its partitions.
pub type Known = BTreeMap<u32, (Counts, Ledger, BTreeMap<AgentId, Ledger>)>;

/// An owner in its own thread.
pub struct Running {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Known>,
}

fn known<'a>(merges: impl Iterator<Item = (u32, &'a Merge)>) -> Known {
    let of = |merge: &Merge| (merge.counts(), merge.ledger(), merge.ledgers());
    merges.map(|(partition, merge)| (partition, of(merge))).collect()
}

/// Runs turns until it is stopped. Ignores errors: uncommitted records are read again.
pub fn own<L: Log<Error = Error> + Send + 'static>(log: L) -> Running {
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = stop.clone();
    let thread = std::thread::spawn(move || {
        let mut owner = Owner::new(log, settings());
        while !stopped.load(Ordering::Relaxed) {
            match owner.turn() {
                Ok(turn) if turn.messages == 0 => std::thread::sleep(Duration::from_millis(10)),
                Ok(_) => {}
                Err(error) => eprintln!("a turn failed: {error}"),
            }
        }
        known(owner.merges())
    });
    Running { stop, thread }
}

impl Running {
    pub fn stop(self) -> Known {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("it ends well")
    }
}

/// Runs turns until the condition holds. Brokers may take longer than a test's timeout, and have a transaction of an owner that was killed
/// open for 20 s.
pub fn turn_until<L: Log<Error = Error>>(
    owner: &mut Owner<L>,
    what: &str,
    mut is_so: impl FnMut(&OwnerTurn, Known) -> bool,
) {
    until(what, || match owner.turn() {
        Ok(turn) => is_so(&turn, known(owner.merges())),
        Err(error @ Error::Kafka { .. }) => {
            eprintln!("a turn failed: {error}");
            false
        }
        Err(error) => panic!("{what}: {error}"),
    });
}

/// A child process that this one may stop and kill.
pub struct Process(pub Child);

const TOPIC: &str = "WEIR_LOG_TEST_TOPIC";
const ADDRESS: &str = "WEIR_LOG_TEST_ADDRESS";
const PARTITIONS: &str = "WEIR_LOG_TEST_PARTITIONS";

impl Process {
    /// Runs a single ignored test of this program.
    pub fn start(test: &str, brokers: &Brokers) -> Self {
        let child = Command::new(std::env::current_exe().unwrap())
            .args([test, "--ignored", "--exact", "--nocapture"])
            .env(TOPIC, &brokers.topic)
            .env(ADDRESS, &brokers.addresses[0])
            .env(PARTITIONS, brokers.partitions.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        Process(child.unwrap())
    }

    /// The lines that it writes from now on, as they come.
    pub fn lines(&mut self) -> Receiver<String> {
        let stdout = BufReader::new(self.0.stdout.take().unwrap());
        let (say, said) = channel();
        std::thread::spawn(move || {
            let mut lines = stdout.lines().map_while(Result::ok);
            lines.try_for_each(|line| say.send(line))
        });
        said
    }

    /// In the child process: its brokers.
    pub fn asked_for() -> Option<Brokers> {
        let topic = std::env::var(TOPIC).ok()?;
        let partitions = std::env::var(PARTITIONS).ok()?.parse().ok()?;
        Some(brokers(std::env::var(ADDRESS).ok()?, &topic, partitions))
    }

    pub fn pid(&self) -> rustix::process::Pid {
        rustix::process::Pid::from_child(&self.0)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A complete ledger: every state of each agent is merged, and nothing is missing.
pub fn is_whole(known: &Known, agents: u8, states: u64) -> bool {
    let sum: u64 = known
        .values()
        .map(|(_, ledger, _)| ledger.merged + ledger.late)
        .sum();
    let none_is_missing = known.values().all(|(_, ledger, ledgers)| {
        ledger.difference() == 0
            && ledger.missing == 0
            && ledger.open == 0
            && (0..agents).all(|number| ledgers.contains_key(&agent(number)))
    });
    none_is_missing && sum == states
}
