//! Agents of the simulation: their records, their queues, and what reached the log.

use std::collections::{BTreeMap, VecDeque};

use super::world::World;
use crate::support::{WIDTH, Writer, signed};

/// Identity of a record: agent, epoch, partition, number.
pub type Key = (u8, u64, u32, u64);

/// The simulation's knowledge of a record.
#[derive(Clone, Debug)]
pub struct Truth {
    pub bucket: i64,
    pub states: u64,
    /// The name that the record counts. Empty: a record without series.
    pub name: String,
    /// Its copies in the log: offset, and whether its times are out of range.
    pub copies: Vec<(u64, bool)>,
}

#[derive(Debug)]
struct Waiting {
    key: Key,
    bytes: Vec<u8>,
}

#[derive(Debug)]
pub struct Agent {
    pub number: u8,
    pub tenant: &'static str,
    pub epoch: u64,
    writers: BTreeMap<u32, Writer>,
    queue: VecDeque<Waiting>,
    /// Difference of its clock from the log's, in milliseconds.
    pub clock: i64,
    pub is_running: bool,
    pub is_connected: bool,
    last_bucket: i64,
}

/// Faults of one attempt to send.
#[derive(Clone, Copy, Debug, Default)]
pub struct Network {
    /// The record is stored without acknowledgement.
    pub ack_lost: u64,
    /// Another record of the queue is sent before the first.
    pub overtaken: u64,
    /// Invalid bytes arrive.
    pub damaged: u64,
}

pub type Truths = BTreeMap<Key, Truth>;

/// Maximum clock difference in the settings of the simulated merge.
pub const MAX_SKEW: i64 = 600;

impl Agent {
    pub fn new(number: u8) -> Self {
        Agent {
            number,
            tenant: "",
            epoch: 1,
            writers: BTreeMap::new(),
            queue: VecDeque::new(),
            clock: 0,
            is_running: true,
            is_connected: true,
            last_bucket: i64::MIN,
        }
    }

    /// Publishes its last bucket after its end, a second later for each agent.
    pub fn publish(&mut self, world: &World, truths: &mut Truths, is_empty: bool) {
        let now = (world.now + self.clock) / 1000 - i64::from(self.number % 8);
        let bucket = now.div_euclid(i64::from(WIDTH)) * i64::from(WIDTH) - i64::from(WIDTH);
        if !self.is_running || bucket == self.last_bucket {
            return;
        }
        self.last_bucket = bucket;
        let partitions = world.plan.at(bucket);
        for partition in 0..partitions {
            let key = self.write(partition, partitions, bucket, is_empty, truths);
            debug_assert!(truths.contains_key(&key));
        }
    }

    pub fn write(
        &mut self,
        partition: u32,
        partitions: u32,
        bucket: i64,
        is_empty: bool,
        truths: &mut Truths,
    ) -> Key {
        let (number, epoch) = (self.number, self.epoch);
        let writer = self
            .writers
            .entry(partition)
            .or_insert_with(|| Writer::new(number, epoch));
        writer.partitions = partitions;
        writer.tenant = self.tenant.to_owned();
        let key = (number, epoch, partition, writer.sequence);
        let name = match is_empty {
            true => String::new(),
            false => format!("{key:?}"),
        };
        let before = writer.states;
        let names: &[&str] = if is_empty { &[] } else { &[&name] };
        let table = match is_empty {
            true => weir_state::Table::default(),
            false => signed(names),
        };
        let bytes = writer.write(bucket, &table).remove(0);
        let states = writer.states - before;
        self.queue.push_back(Waiting { key, bytes });
        let truth = Truth {
            bucket,
            states,
            name,
            copies: Vec::new(),
        };
        truths.insert(key, truth);
        key
    }

    /// Sends queued records as far as the network permits.
    pub fn send(&mut self, world: &mut World, truths: &mut Truths, network: Network) {
        while self.is_running && self.is_connected && !self.queue.is_empty() {
            if world.random.one_in(network.overtaken) {
                let other = world.random.below(self.queue.len() as u64) as usize;
                self.queue.swap(0, other);
            }
            let Waiting { key, bytes } = &self.queue[0];
            if world.random.one_in(network.damaged) {
                let sent = world.now + self.clock;
                let len = world.random.below(bytes.len() as u64) as usize;
                world.append(key.2, sent, &bytes[..len]);
            }
            let truth = truths.get_mut(key).expect("it was written");
            let sent = world.now + self.clock;
            let appended = world.now + world.clock;
            let future = truth.bucket - appended / 1000;
            let is_off = ((sent - appended) / 1000).abs() > MAX_SKEW || future > MAX_SKEW;
            truth.copies.push((world.append(key.2, sent, bytes), is_off));
            if world.random.one_in(network.ack_lost) {
                return;
            }
            self.queue.pop_front();
        }
    }

    /// Publishes a bucket that ended this many buckets ago, as points with timestamps do.
    pub fn send_late(&mut self, truths: &mut Truths, world: &World, ago: i64) {
        let now = (world.now + self.clock) / 1000;
        let width = i64::from(WIDTH);
        let bucket = now.div_euclid(width) * width - (2 + ago) * width;
        if !self.is_running || world.plan.at(bucket) != world.plan.at(now) {
            return;
        }
        let partitions = world.plan.at(bucket);
        for partition in 0..partitions {
            self.write(partition, partitions, bucket, false, truths);
        }
    }

    /// Waiting records in the format of a later program: an owner of today cannot read them. Returns their number.
    pub fn send_in_a_later_format(&self, world: &mut World) -> u64 {
        for Waiting { key, bytes } in &self.queue {
            let later = [&[weir_state::VERSION + 1], &bytes[1..]].concat();
            let sent = world.now + self.clock;
            world.append(key.2, sent, &later);
        }
        self.queue.len() as u64
    }

    /// Ends without notice. The queue survives if it is on disk.
    pub fn crash(&mut self, keeps_queue: bool) {
        self.is_running = false;
        if !keeps_queue {
            self.queue.clear();
        }
    }

    pub fn start(&mut self) {
        if !self.is_running {
            self.is_running = true;
            self.epoch += 1;
            self.writers.clear();
            self.last_bucket = i64::MIN;
        }
    }

    /// Drops the oldest records beyond this number.
    pub fn drop_oldest(&mut self, most: usize) {
        let excess = self.queue.len().saturating_sub(most);
        self.queue.drain(..excess);
    }
}
