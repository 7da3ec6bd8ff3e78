//! What an agent publishes: the series of a bucket, divided among partitions, as records whose numbers have no gaps.

use weir_state::{AgentId, Facts, Header, Identity, Publication, State, Table, TooLarge};

use crate::plan::{Plan, partition_of};

/// A record, and where it belongs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Published {
    pub partition: u32,
    pub bytes: Vec<u8>,
}

/// One process of an agent. Series are added as they are to come out: without their host, where the fleet's series have none.
#[derive(Debug)]
pub struct Publisher {
    tenant: String,
    agent: AgentId,
    epoch: u64,
    partitions: Vec<Sent>,
    open: Option<Bucket>,
}

/// What went to a partition.
#[derive(Clone, Copy, Debug, Default)]
struct Sent {
    records: u64,
    states: u64,
}

#[derive(Debug)]
struct Bucket {
    start: i64,
    width: u32,
    tables: Vec<Table>,
}

impl Publisher {
    pub fn new(tenant: &str, agent: AgentId, epoch: u64) -> Self {
        Publisher {
            tenant: tenant.to_owned(),
            agent,
            epoch,
            partitions: Vec::new(),
            open: None,
        }
    }

    /// Begins a bucket. What was added to one before and not closed stays in that one: close it first.
    pub fn begin(&mut self, start: i64, width: u32, plan: &Plan) {
        let partitions = plan.at(start) as usize;
        if self.partitions.len() < partitions {
            self.partitions.resize(partitions, Sent::default());
        }
        self.open.get_or_insert_with(|| Bucket {
            start,
            width,
            tables: vec![Table::new(weir_state::Bounds::NONE); partitions],
        });
    }

    /// Adds a series to the bucket that was begun. Equal series become one.
    pub fn add(&mut self, identity: Identity, facts: Facts, state: State) {
        let Some(bucket) = &mut self.open else {
            return;
        };
        let partition = partition_of(
            &self.tenant,
            identity.kind,
            &identity.name,
            identity.host.as_deref().unwrap_or_default(),
            identity.tags.iter().map(AsRef::as_ref),
            bucket.tables.len() as u32,
        );
        bucket.tables[partition as usize].add(identity, facts, state);
    }

    /// The records of the bucket: of each partition at least one, also where it has no series, since they tell that the agent is
    /// there and has nothing more to say. `is_last`: the agent ends.
    pub fn close(&mut self, is_last: bool) -> (Vec<Published>, TooLarge) {
        let (mut published, mut too_large) = (Vec::new(), TooLarge::default());
        let Some(bucket) = self.open.take() else {
            return (published, too_large);
        };
        let partitions = bucket.tables.len() as u32;
        for ((partition, table), sent) in (0..).zip(&bucket.tables).zip(&mut self.partitions) {
            let header = Header {
                tenant: self.tenant.clone(),
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
            let (records, states, refused) = table.encode_counted(&header);
            sent.records += records.len() as u64;
            sent.states += states;
            too_large.series += refused.series;
            let records = records.into_iter();
            published.extend(records.map(|bytes| Published { partition, bytes }));
        }
        (published, too_large)
    }
}

/// How long after the end of a bucket an agent publishes it, in milliseconds: always the same, and spread over the width of a
/// bucket, so that the agents of a fleet do not publish all at once.
pub fn delay_ms(agent: AgentId, width: u32) -> u64 {
    xxhash_rust::xxh3::xxh3_64(&agent.0) % (u64::from(width).max(1) * 1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The whole fleet starts at once, and what it sends is spread.
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
}
