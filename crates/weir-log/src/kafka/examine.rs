//! A read-only look at the brokers.

use rdkafka::admin::ResourceSpecifier;
use rdkafka::consumer::{Consumer, ConsumerContext};

use super::KafkaLog;
use super::topics::{STAMPED, TopicCreator};
use crate::Error;
use crate::examine::LogFacts;

impl KafkaLog {
    /// The brokers, and the topic of records.
    pub fn examine(&mut self) -> Result<LogFacts, Error> {
        let facts = self.examine_once();
        facts.map_err(|error| self.with_reason(error))
    }

    fn examine_once(&mut self) -> Result<LogFacts, Error> {
        let topic_creator = self.topic_creator()?;
        let partitions = topic_creator.partitions(&topic_creator.topics.records)?;
        Ok(LogFacts {
            brokers: topic_creator.known_brokers()?,
            partitions,
            is_stamped: partitions.and_then(|_| topic_creator.is_stamped()),
        })
    }
}

impl<C: ConsumerContext> TopicCreator<'_, C> {
    fn known_brokers(&self) -> Result<usize, Error> {
        let found = self.client.fetch_metadata(None, self.brokers.timeout);
        let found = found.map_err(|error| self.last_failure.explain("asking for brokers", error))?;
        Ok(found.brokers().len())
    }

    /// Whether the brokers stamp the records. `None`: this user may not ask.
    fn is_stamped(&self) -> Option<bool> {
        let admin = self.admin().ok().filter(|_| !self.has_token())?;
        let topic = [ResourceSpecifier::Topic(&self.topics.records)];
        let options = self.options();
        let described = futures_executor::block_on(admin.describe_configs(&topic, &options)).ok()?;
        let settings = described.into_iter().next()?.ok()?;
        let (key, value) = STAMPED;
        let stamp = settings.get(key)?.value.as_deref()?;
        Some(stamp == value)
    }
}
