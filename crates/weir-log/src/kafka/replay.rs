//! An output's position is moved back while no process delivers to the output.

use rdkafka::Offset;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
use rdkafka::error::KafkaError;

use super::client::{self, LastFailure};
use super::member;
use super::reader::one;
use super::{KafkaLog, KnownTopics, reader};
use crate::Error;

impl KafkaLog {
    /// The first result that the brokers stored at this Unix millisecond or later.
    pub fn results_near(&mut self, partition: u32, milliseconds: i64) -> Result<u64, Error> {
        self.has(KnownTopics::All)?;
        let topic = self.topics.results.clone();
        let reader = reader(&mut self.reader, &self.brokers, &self.last_failure)?;
        let end = reader.ends(&topic, partition)?.1;
        let wanted = one(&topic, partition, Some(milliseconds.max(0) as u64));
        let found = wanted.and_then(|wanted| reader.client().offsets_for_times(wanted, self.brokers.timeout));
        let found = found.map_err(|error| {
            let doing = format!("looking for a time in partition {partition} of topic {topic}");
            let right = format!("DESCRIBE on topic {topic}");
            self.last_failure.explain_right(doing, error, &right)
        })?;
        let found = found.elements().first().map(|found| found.offset());
        Ok(match found {
            Some(Offset::Offset(offset)) => offset.max(0) as u64,
            _ => end,
        })
    }

    /// The position of this output. Joins no group.
    pub fn position(&mut self, partition: u32) -> Result<u64, Error> {
        let topic = &self.topics.results;
        member::committed(
            &self.outsider()?,
            &self.last_failure,
            self.brokers.timeout,
            topic,
            partition,
        )
    }

    /// Moves the position of this output back. The brokers refuse it while the output's group has members.
    pub fn rewind(&mut self, partition: u32, before: u64) -> Result<(), Error> {
        let topic = &self.topics.results;
        let list = one(topic, partition, Some(before));
        let client = self.outsider()?;
        match list.and_then(|list| client.commit(&list, CommitMode::Sync)) {
            Ok(()) => Ok(()),
            Err(KafkaError::ConsumerCommit(code)) if member::is_stale(code) => Err(Error::Held {
                output: self.brokers.group.clone(),
            }),
            Err(error) => {
                let doing = format!("storing the offset of partition {partition} of topic {topic}");
                let right = format!("READ on topic {topic}");
                Err(self.last_failure.explain_right(doing, error, &right))
            }
        }
    }

    /// A client with the name of the group that is no member of it.
    fn outsider(&self) -> Result<BaseConsumer<LastFailure>, Error> {
        let config = client::overridden(client::reading(&self.brokers, &self.brokers.group), &self.brokers);
        let client = config.create_with_context(self.last_failure.clone());
        let client: BaseConsumer<LastFailure> = client.map_err(|error| self.last_failure.not_made(error))?;
        self.last_failure
            .give_token(|| drop(client.poll(client::TOKEN_STEP)));
        Ok(client)
    }
}
