//! Records in the form that an agent publishes.
#![allow(dead_code)]

pub mod results;

use std::cell::RefCell;

use weir_merge::{BucketResult, Message};
use weir_protocol::Kind;
use weir_state::{
    AgentId, Bounds, ExactSum, Facts, Header, Identity, Members, Packer, Publication, Record, State, Table,
};

/// The first second of the first bucket.
pub const START: i64 = 1_700_000_000;
pub const WIDTH: u32 = 10;

pub fn agent(number: u8) -> AgentId {
    AgentId([number; 16])
}

/// Every second agent names its host: both formats of records are mixed.
pub fn host(agent: AgentId) -> String {
    match agent.0[0] {
        number if number % 2 == 1 => format!("host{number}"),
        _ => String::new(),
    }
}

thread_local! {
    /// As agents, which keep one: making one for each record costs more than the record.
    static PACKER: RefCell<Packer> = RefCell::default();
}

/// An agent's state between the records of one partition.
#[derive(Clone, Debug)]
pub struct Writer {
    pub agent: AgentId,
    pub epoch: u64,
    pub sequence: u64,
    pub states: u64,
    pub partitions: u32,
    pub tenant: String,
}

impl Writer {
    pub fn new(number: u8, epoch: u64) -> Self {
        Writer {
            agent: agent(number),
            epoch,
            sequence: 0,
            states: 0,
            partitions: 1,
            tenant: String::new(),
        }
    }

    pub fn header(&self, bucket_start: i64) -> Header {
        Header {
            tenant: self.tenant.clone(),
            host: host(self.agent),
            agent: self.agent,
            epoch: self.epoch,
            bucket_start,
            bucket_width: WIDTH,
            sequence: self.sequence,
            publication: Some(Publication {
                states_before: self.states,
                partitions: self.partitions,
                is_last: false,
            }),
            ..Header::default()
        }
    }

    pub fn write(&mut self, bucket_start: i64, table: &Table) -> Vec<Vec<u8>> {
        self.write_as(&self.header(bucket_start), table)
    }

    pub fn write_as(&mut self, header: &Header, table: &Table) -> Vec<Vec<u8>> {
        let (records, too_large) = PACKER.with_borrow_mut(|packer| table.encode_with(header, packer));
        assert_eq!(too_large.series, 0);
        self.sequence += records.len() as u64;
        let states = |bytes: &Vec<u8>| Record::decode(bytes).unwrap().len() as u64;
        self.states += match records.len() {
            1 => table.len() as u64,
            // A set may be in several.
            _ => records.iter().map(states).sum(),
        };
        records
    }

    /// A record that counts one and names itself.
    pub fn one(&mut self, bucket_start: i64) -> Vec<u8> {
        let name = format!("{}/{}/{}", self.agent.0[0], self.epoch, self.sequence);
        self.write(bucket_start, &signed(&[&name])).remove(0)
    }
}

pub fn counter(name: &str) -> Identity {
    Identity::new(Kind::Counter, name, Some(""), None, [])
}

pub fn add(table: &mut Table, name: &str, value: f64) {
    let facts = Facts {
        seen: START,
        suffixes: u32::MAX,
    };
    table.add(counter(name), facts, State::Counter(ExactSum::from(value)));
}

/// A counter with one for each name, and a set of the names: a record that is merged twice counts twice and is named once.
pub fn signed(names: &[&str]) -> Table {
    let mut table = Table::new(Bounds::NONE);
    add(&mut table, "count", names.len() as f64);
    let facts = Facts {
        seen: START,
        suffixes: u32::MAX,
    };
    let set = Identity::new(Kind::Set, "names", Some(""), None, []);
    let names = names.iter().map(|name| name.as_bytes());
    table.add(set, facts, State::Set(Members::exact(names)));
    table
}

/// A message of the log with these bytes.
pub fn message(offset: u64, seconds: i64, bytes: &[u8]) -> Message {
    Message {
        offset,
        appended: seconds * 1000,
        sent: seconds * 1000,
        bytes: bytes.to_vec(),
    }
}

pub fn decoded(results: &[Vec<u8>]) -> Vec<(BucketResult, Record)> {
    results
        .iter()
        .map(|bytes| BucketResult::decode(bytes).expect("a result"))
        .collect()
}

/// The sum of a counter over records.
pub fn sum<'a>(name: &str, records: impl IntoIterator<Item = &'a Record>) -> f64 {
    let mut sum = ExactSum::default();
    for record in records {
        for series in record.series().filter(|series| series.name == name) {
            if let State::Counter(more) = series.state {
                sum.merge(more);
            }
        }
    }
    sum.to_f64()
}

/// The members of a set over records.
pub fn names<'a>(records: impl IntoIterator<Item = &'a Record>) -> std::collections::BTreeSet<String> {
    let mut names = std::collections::BTreeSet::new();
    for record in records {
        for series in record.series() {
            if let State::Set(Members::Exact(members)) = series.state {
                names.extend(
                    members
                        .iter()
                        .map(|name| String::from_utf8_lossy(name).into_owned()),
                );
            }
        }
    }
    names
}
