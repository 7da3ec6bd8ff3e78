//! Encodes the series of an agent's bucket, divided among partitions, into records with gap-free numbers.

use weir_protocol::Kind;
use weir_state::{
    AgentId, Catalogue, Facts, Header, Identity, Packer, Publication, SeriesName, State, TooLarge,
};

use crate::plan::{Plan, partition_of};

/// A series is idle after this many buckets without a sample.
const IDLE_BUCKETS: u32 = 30;

/// Up to this many series are kept even if idle.
const KEPT_MAX: usize = 1024;

/// A record and its partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Published {
    pub partition: u32,
    pub bytes: Vec<u8>,
    /// Number of [`Publisher::put`] calls in the record.
    pub rows: u64,
}

/// The records of a bucket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Closing {
    pub records: Vec<Published>,
    pub too_large: TooLarge,
    /// [`Publisher::put`] calls for series too large for a record.
    pub too_large_rows: u64,
}

/// A series of a publisher. Valid while [`Publisher::generation`] does not change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeriesPlace {
    partition: u32,
    number: u32,
}

/// The publisher of one agent process. The caller removes the host from series if the fleet's series have none.
#[derive(Debug)]
pub struct Publisher {
    tenant: String,
    host: String,
    agent: AgentId,
    epoch: u64,
    sent: Vec<PublishedTotals>,
    /// One per partition.
    catalogues: Vec<Catalogue>,
    packer: Packer,
    generation: u64,
    open: Option<Bucket>,
}

/// Totals of a partition.
#[derive(Clone, Copy, Debug, Default)]
struct PublishedTotals {
    records: u64,
    states: u64,
}

#[derive(Clone, Copy, Debug)]
struct Bucket {
    start: i64,
    width: u32,
}

impl Publisher {
    pub fn new(tenant: &str, agent: AgentId, epoch: u64) -> Self {
        Publisher {
            tenant: tenant.to_owned(),
            host: String::new(),
            agent,
            epoch,
            sent: Vec::new(),
            catalogues: Vec::new(),
            packer: Packer::default(),
            generation: 0,
            open: None,
        }
    }

    pub fn agent(&self) -> AgentId {
        self.agent
    }

    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Sets the tenant of the following series. No bucket may be open.
    pub fn set_tenant(&mut self, tenant: &str) {
        if self.tenant != tenant {
            self.tenant = tenant.to_owned();
            self.forget();
        }
    }

    /// Sets the name of the agent's host in the following records.
    pub fn set_host(&mut self, host: &str) {
        host.clone_into(&mut self.host);
    }

    /// Changes when places become invalid: the number of partitions changed, or most series were idle.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Whether a bucket is open.
    pub fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Begins a bucket. Close an open one first.
    pub fn begin(&mut self, start: i64, width: u32, plan: &Plan) {
        if self.open.is_some() {
            return;
        }
        let partitions = plan.at(start) as usize;
        if self.catalogues.len() != partitions {
            self.forget();
            let agent = self.agent;
            self.catalogues.resize_with(partitions, || Catalogue::new(agent));
        }
        if self.sent.len() < partitions {
            self.sent.resize(partitions, PublishedTotals::default());
        }
        self.open = Some(Bucket { start, width });
    }

    /// Forgets the names of series. The numbers of records continue.
    pub fn forget(&mut self) {
        self.catalogues.clear();
        self.generation += 1;
    }

    /// The place of a series. A bucket must be open.
    pub fn find(&mut self, kind: Kind, named: &SeriesName<'_>) -> SeriesPlace {
        let partition = partition_of(
            &self.tenant,
            kind,
            named.name,
            named.host.unwrap_or_default(),
            named.tags.iter().copied(),
            self.catalogues.len() as u32,
        );
        SeriesPlace {
            partition,
            number: self.catalogues[partition as usize].find(kind, named),
        }
    }

    /// Adds the state of a series to the open bucket.
    pub fn put(&mut self, place: SeriesPlace, facts: Facts, state: &State) {
        self.catalogues[place.partition as usize].put(place.number, facts, state);
    }

    /// Adds a series to the open bucket. Equal series are merged.
    pub fn add(&mut self, identity: &Identity, facts: Facts, state: &State) {
        if self.open.is_none() {
            return;
        }
        let named = SeriesName {
            name: &identity.name,
            host: identity.host.as_deref(),
            integration: identity.integration.as_deref(),
            tags: identity.tags.iter().map(AsRef::as_ref).collect(),
        };
        let place = self.find(identity.kind, &named);
        self.put(place, facts, state);
    }

    /// The records of the bucket: at least one per partition, even without series, because it shows that the agent is alive and the bucket
    /// complete. `is_last`: the agent ends.
    pub fn close(&mut self, is_last: bool) -> Closing {
        let closing = self.close_where(is_last, |_| true);
        self.forget_idle();
        closing
    }

    /// The records of additions to a bucket that was published before: only for partitions with series.
    pub fn close_partly(&mut self) -> Closing {
        self.close_where(false, Catalogue::has_states)
    }

    fn close_where(&mut self, is_last: bool, is_wanted: impl Fn(&Catalogue) -> bool) -> Closing {
        let mut closing = Closing::default();
        let Some(bucket) = self.open.take() else {
            return closing;
        };
        let partitions = self.catalogues.len() as u32;
        for ((partition, catalogue), sent) in (0..).zip(&mut self.catalogues).zip(&mut self.sent) {
            if !is_wanted(catalogue) {
                continue;
            }
            let header = Header {
                tenant: self.tenant.clone(),
                host: self.host.clone(),
                agent: self.agent,
                epoch: self.epoch,
                bucket_start: bucket.start,
                bucket_width: bucket.width,
                sequence: sent.records,
                publication: Some(Publication {
                    states_before: sent.states,
                    partitions,
                    is_last,
                }),
                ..Header::default()
            };
            let packing = catalogue.pack(&header, &mut self.packer);
            sent.records += packing.records.len() as u64;
            sent.states += packing.records.iter().map(|packed| packed.states).sum::<u64>();
            closing.too_large.series += packing.too_large;
            closing.too_large_rows += packing.too_large_rows;
            let records = packing.records.into_iter();
            closing.records.extend(records.map(|packed| Published {
                partition,
                bytes: packed.bytes,
                rows: packed.rows,
            }));
        }
        closing
    }

    /// Starts over when most series have not come for a while: this costs less than tracking each one.
    fn forget_idle(&mut self) {
        let known: usize = self.catalogues.iter().map(Catalogue::len).sum();
        let idle = || {
            self.catalogues
                .iter()
                .map(|catalogue| catalogue.idle(IDLE_BUCKETS))
        };
        if known > KEPT_MAX && idle().sum::<usize>() > known / 2 {
            self.forget();
        }
    }

    /// Bytes held, estimated.
    pub fn heap_bytes(&self) -> usize {
        self.catalogues.iter().map(Catalogue::heap_bytes).sum()
    }
}

/// Milliseconds from the end of a bucket until an agent publishes it. Constant per agent, and spread over the bucket's width, so that
/// the agents of a fleet do not publish all at once.
pub fn delay_ms(agent: AgentId, width: u32) -> u64 {
    xxhash_rust::xxh3::xxh3_64(&agent.0) % (u64::from(width).max(1) * 1000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_state::{ExactSum, Record};

    /// A fleet that starts at once spreads its sending.
    #[test]
    fn case_19_sends_of_a_fleet_are_spread() {
        let mut of_second = [0; 10];
        for number in 0..10_000u128 {
            let delay = delay_ms(AgentId(number.to_le_bytes()), 10);
            assert_eq!(delay, delay_ms(AgentId(number.to_le_bytes()), 10));
            of_second[delay as usize / 1000] += 1;
        }
        assert!(
            of_second.iter().all(|agents| (850..1150).contains(agents)),
            "{of_second:?}"
        );
    }

    fn counter(name: &str) -> Identity {
        Identity::new(Kind::Counter, name, Some(""), None, [])
    }

    /// Publishes one series and returns the number of series in the records.
    fn publish(publisher: &mut Publisher, bucket: i64, names: &[String], plan: &Plan) -> usize {
        let facts = Facts {
            seen: bucket,
            suffixes: u32::MAX,
        };
        publisher.begin(bucket, 10, plan);
        for name in names {
            publisher.add(&counter(name), facts, &State::Counter(ExactSum::from(1.0)));
        }
        let closing = publisher.close(false);
        let rows: u64 = closing.records.iter().map(|record| record.rows).sum();
        assert_eq!(rows, names.len() as u64);
        let records = closing.records.iter();
        let series = records.map(|record| {
            let read = Record::decode(&record.bytes).unwrap();
            assert_eq!(read.header.publication.unwrap().partitions, plan.at(bucket));
            read.len()
        });
        series.sum()
    }

    #[test]
    fn idle_series_are_forgotten_and_numbers_continue() {
        let plan = Plan::new(2);
        let mut publisher = Publisher::new("", AgentId([1; 16]), 1);
        let many: Vec<String> = (0..3000).map(|at| format!("a{at}")).collect();
        assert_eq!(publish(&mut publisher, 0, &many, &plan), 3000);
        let (generation, bytes) = (publisher.generation(), publisher.heap_bytes());
        for bucket in 1..i64::from(IDLE_BUCKETS) {
            assert_eq!(publish(&mut publisher, bucket * 10, &many[..10], &plan), 10);
            assert_eq!(publisher.generation(), generation);
        }
        for bucket in 30..34 {
            assert_eq!(publish(&mut publisher, bucket * 10, &many[..10], &plan), 10);
        }
        assert_ne!(publisher.generation(), generation);
        assert!(publisher.heap_bytes() < bytes / 10);
        assert_eq!(publisher.sent.iter().map(|sent| sent.records).sum::<u64>(), 68);
    }

    #[test]
    fn another_number_of_partitions_is_another_division() {
        let mut plan = Plan::new(1);
        plan.announce(20, 3);
        let mut publisher = Publisher::new("", AgentId([1; 16]), 1);
        let names: Vec<String> = (0..50).map(|at| format!("a{at}")).collect();
        for bucket in [0, 10, 20, 30] {
            assert_eq!(publish(&mut publisher, bucket, &names, &plan), 50);
        }
        assert_eq!(
            publisher.sent.iter().map(|sent| sent.records).collect::<Vec<_>>(),
            [4, 2, 2]
        );
    }
}
