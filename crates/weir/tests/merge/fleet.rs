//! A fleet for tests: agents that publish into a log of files, at times of the test's choice.

use std::cell::Cell;
use std::path::{Path, PathBuf};

use weir_log::FileLog;
use weir_merge::{BucketResult, Log as _, Published, Publisher};
use weir_protocol::Kind;
use weir_sketch::Sketch;
use weir_state::{AgentId, Distribution, ExactSum, Facts, Gauge, Identity, Members, Record, Samples, State};

/// Seconds of a bucket.
pub const WIDTH: i64 = 10;

thread_local! {
    /// The clock of the log as the agents of a test see it, Unix milliseconds.
    static NOW: Cell<i64> = const { Cell::new(0) };
}

fn clock() -> i64 {
    NOW.get()
}

pub struct Fleet {
    pub directory: PathBuf,
    log: FileLog,
    /// The first second of the first bucket, some time ago.
    pub start: i64,
}

pub struct Agent {
    pub id: AgentId,
    publisher: Publisher,
}

impl Agent {
    pub fn new(number: u8, epoch: u64) -> Agent {
        Agent::of_tenant("", number, epoch)
    }

    pub fn of_tenant(tenant: &str, number: u8, epoch: u64) -> Agent {
        let id = AgentId([number; 16]);
        let publisher = Publisher::new(tenant, id, epoch);
        Agent { id, publisher }.on(&format!("host{number}"))
    }

    /// On this host.
    pub fn on(mut self, host: &str) -> Agent {
        self.publisher.set_host(host);
        self
    }
}

impl Fleet {
    /// Its first bucket began `ago` buckets ago.
    pub fn new(directory: &Path, partitions: u32, ago: i64) -> Fleet {
        let now = weir_log::unix_milliseconds() / 1000;
        Fleet {
            directory: directory.to_owned(),
            log: FileLog::open(directory, partitions, clock).unwrap(),
            start: now - now % WIDTH - ago * WIDTH,
        }
    }

    /// First second of a bucket.
    pub fn bucket(&self, number: i64) -> i64 {
        self.start + number * WIDTH
    }

    /// The records of a bucket, not in the log yet.
    pub fn records(
        &mut self,
        agent: &mut Agent,
        bucket: i64,
        series: Vec<(Identity, State)>,
    ) -> Vec<Published> {
        let start = self.bucket(bucket);
        let plan = self.log.plan().unwrap();
        agent.publisher.begin(start, WIDTH as u32, &plan);
        let facts = Facts {
            seen: start,
            suffixes: u32::MAX,
        };
        for (identity, state) in series {
            agent.publisher.add(&identity, facts, &state);
        }
        let closing = agent.publisher.close(false);
        assert_eq!(closing.too_large.series, 0);
        closing.records
    }

    /// Adds records to the log, as long after a bucket's end as agents do.
    pub fn append(&mut self, bucket: i64, records: &[Published]) {
        let at = (self.bucket(bucket + 1) + WIDTH / 2) * 1000;
        self.append_at(at, records);
    }

    pub fn append_at(&mut self, at_ms: i64, records: &[Published]) {
        NOW.set(at_ms);
        for record in records {
            self.log.append(record.partition, at_ms, &record.bytes).unwrap();
        }
    }

    /// The same from an agent whose clock is this far ahead.
    pub fn append_ahead(&mut self, bucket: i64, ahead_ms: i64, records: &[Published]) {
        let at = (self.bucket(bucket + 1) + WIDTH / 2) * 1000;
        NOW.set(at);
        for record in records {
            self.log
                .append(record.partition, at + ahead_ms, &record.bytes)
                .unwrap();
        }
    }

    pub fn publish(&mut self, agent: &mut Agent, bucket: i64, series: Vec<(Identity, State)>) {
        let records = self.records(agent, bucket, series);
        self.append(bucket, &records);
    }

    /// All results of a partition.
    pub fn results(&mut self, partition: u32) -> Vec<Vec<u8>> {
        let (mut all, mut from) = (Vec::new(), 0);
        loop {
            let results = self.log.results(partition, from, 1 << 20).unwrap();
            let Some((last, _)) = results.last() else {
                return all;
            };
            from = last + 1;
            all.extend(results.into_iter().map(|(_, bytes)| bytes));
        }
    }

    /// The results, decoded.
    pub fn closed(&mut self, partition: u32) -> Vec<(BucketResult, Record)> {
        let results = self.results(partition);
        results
            .iter()
            .map(|bytes| BucketResult::decode(bytes).unwrap())
            .collect()
    }
}

fn identity(kind: Kind, name: &str, tags: &[&str]) -> Identity {
    Identity::new(kind, name, Some(""), None, tags.iter().copied())
}

pub fn counter(name: &str, tags: &[&str], value: f64) -> (Identity, State) {
    (
        identity(Kind::Counter, name, tags),
        State::Counter(ExactSum::from(value)),
    )
}

pub fn gauge(name: &str, value: f64, agent: &Agent) -> (Identity, State) {
    let gauge = Gauge::new(value, 0, agent.id);
    (identity(Kind::Gauge, name, &[]), State::Gauge(gauge))
}

pub fn set(name: &str, members: &[&str]) -> (Identity, State) {
    let members = Members::exact(members.iter().map(|member| member.as_bytes()));
    (identity(Kind::Set, name, &[]), State::Set(members))
}

pub fn timing(name: &str, values: impl IntoIterator<Item = f64>) -> (Identity, State) {
    let samples = Samples::exact(values.into_iter().map(|value| (value, 1.0)));
    (identity(Kind::Timing, name, &[]), State::Samples(samples))
}

pub fn distribution(name: &str, values: impl IntoIterator<Item = f64>) -> (Identity, State) {
    let mut sketch = Sketch::new();
    values.into_iter().for_each(|value| sketch.insert(value, 1));
    let distribution = Distribution::new(&sketch, 0.0);
    (identity(Kind::Distribution, name, &[]), distribution.into())
}
