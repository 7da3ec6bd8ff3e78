//! The topics of a log: names and creation.

use rdkafka::admin::{AdminClient, AdminOptions, NewPartitions, NewTopic, TopicReplication};
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};
use rdkafka::types::RDKafkaErrorCode as Code;

use super::client::{self, LastFailure};
use crate::{Brokers, Error, Mechanism};

/// The names of the topics of one log.
#[derive(Clone, Debug)]
pub(crate) struct Topics {
    pub records: String,
    pub results: String,
    pub snapshots: String,
    pub quarantine: String,
    pub control: String,
    /// The group reads the first, and keeps the second with its offsets: records and snapshots, or results and sums.
    pub read: String,
    pub kept: String,
}

/// The end of the names of topics of sums.
const SUMS: &str = ".sums";

/// A topic that may have to be created.
struct TopicSettings<'a> {
    name: &'a str,
    partitions: u32,
    settings: &'static [(&'static str, &'static str)],
}

/// The brokers set the timestamps, so there is one clock.
pub(crate) const STAMPED: (&str, &str) = ("message.timestamp.type", "LogAppendTime");
const DAY: (&str, &str) = ("retention.ms", "86400000");
const RECORDS: &[(&str, &str)] = &[STAMPED, DAY, ("max.message.bytes", "2097152")];
const QUARANTINE: &[(&str, &str)] = &[
    STAMPED,
    ("retention.ms", "604800000"),
    ("max.message.bytes", "2097152"),
];
const SNAPSHOTS: &[(&str, &str)] = &[
    STAMPED,
    ("cleanup.policy", "compact"),
    ("min.cleanable.dirty.ratio", "0.1"),
    ("segment.bytes", "134217728"),
    ("max.message.bytes", "67108864"),
];
const CONTROL: &[(&str, &str)] = &[STAMPED, ("cleanup.policy", "compact")];

impl Topics {
    /// The topics that a group writes have its name: two groups that read the same records never meet.
    pub fn of(records: &str, group: &str) -> Self {
        let of_group = |ending: &str| format!("{records}.{group}.{ending}");
        Topics {
            records: records.to_owned(),
            results: of_group("results"),
            snapshots: of_group("snapshots"),
            quarantine: of_group("quarantine"),
            control: format!("{records}.control"),
            read: records.to_owned(),
            kept: of_group("snapshots"),
        }
    }

    /// The same for an output, which has a group of its own.
    pub fn of_output(records: &str, group: &str, output: &str) -> Self {
        let topics = Topics::of(records, group);
        Topics {
            read: topics.results.clone(),
            kept: format!("{records}.{group}.{output}{SUMS}"),
            ..topics
        }
    }

    fn for_agents(&self, partitions: u32) -> Vec<TopicSettings<'_>> {
        let wanted = |name, partitions, settings| TopicSettings {
            name,
            partitions,
            settings,
        };
        vec![
            wanted(&self.records, partitions, RECORDS),
            wanted(&self.control, 1, CONTROL),
        ]
    }

    fn for_owners(&self, partitions: u32) -> Vec<TopicSettings<'_>> {
        let wanted = |name, settings| TopicSettings {
            name,
            partitions,
            settings,
        };
        vec![
            wanted(&self.results, RECORDS),
            wanted(&self.snapshots, SNAPSHOTS),
            wanted(&self.quarantine, QUARANTINE),
        ]
    }
}

/// Creates topics and queries them.
pub(crate) struct TopicCreator<'a, C: ConsumerContext> {
    pub brokers: &'a Brokers,
    pub topics: &'a Topics,
    pub client: &'a BaseConsumer<C>,
    pub last_failure: &'a LastFailure,
}

impl<C: ConsumerContext> TopicCreator<'_, C> {
    /// Creates missing topics that agents write to, and returns the number of partitions.
    pub fn for_agents(&self) -> Result<u32, Error> {
        self.create_missing(&self.topics.for_agents(self.brokers.partitions))?;
        self.partitions(&self.topics.records)?
            .ok_or_else(|| self.absent(&self.topics.records))
    }

    /// The same for the topics that owners write to.
    pub fn for_owners(&self) -> Result<u32, Error> {
        let partitions = self.for_agents()?;
        let wanted = self.topics.for_owners(partitions);
        self.create_missing(&wanted)?;
        for TopicSettings { name, .. } in &wanted {
            let found = self.partitions(name)?.unwrap_or_default();
            if found < partitions {
                let records = &self.topics.records;
                return Err(self.last_failure.explain(
                    format!("topic {name}"),
                    format!("it has {found} partitions, and {records} {partitions}: add partitions to it"),
                ));
            }
        }
        Ok(partitions)
    }

    /// Creates the topic of an output's sums if it is missing.
    pub fn for_sums(&self) -> Result<(), Error> {
        let partitions = self.partitions(&self.topics.results)?;
        self.create_missing(&[TopicSettings {
            name: &self.topics.kept,
            partitions: partitions.ok_or_else(|| self.absent(&self.topics.results))?,
            settings: SNAPSHOTS,
        }])
    }

    /// Adds partitions to all topics that have fewer than this.
    pub fn raise(&self, partitions: u32) -> Result<(), Error> {
        let of_owners = self.topics.for_owners(partitions).into_iter();
        let of_owners: Vec<String> = of_owners.map(|topic| topic.name.to_owned()).collect();
        let records = [self.topics.records.clone()];
        for name in of_owners.into_iter().chain(self.of_sums()?).chain(records) {
            if self.partitions(&name)?.is_some_and(|found| found < partitions) {
                self.add_partitions(&name, partitions)?;
            }
        }
        Ok(())
    }

    /// The topics with sums of outputs of this group.
    fn of_sums(&self) -> Result<Vec<String>, Error> {
        let found = self.client.fetch_metadata(None, self.brokers.timeout);
        let found = found.map_err(|error| self.last_failure.explain("asking for topics", error))?;
        let prefix = format!("{}.{}.", self.topics.records, self.brokers.group);
        let names = found.topics().iter().map(|topic| topic.name());
        let of_sums = names.filter(|name| name.starts_with(&prefix) && name.ends_with(SUMS));
        Ok(of_sums.map(str::to_owned).collect())
    }

    /// The number of partitions of a topic. `None`: the topic does not exist.
    pub fn partitions(&self, topic: &str) -> Result<Option<u32>, Error> {
        let doing = || format!("asking for topic {topic}");
        let found = self.client.fetch_metadata(Some(topic), self.brokers.timeout);
        let explain = |error: &dyn std::fmt::Display| {
            let right = format!("DESCRIBE on topic {topic} (READ and WRITE include it)");
            self.last_failure.explain_right(doing(), error, &right)
        };
        let found = found.map_err(|error| explain(&error))?;
        let Some(found) = found.topics().first() else {
            return Ok(None);
        };
        match found.error().map(Code::from) {
            None => Ok(Some(found.partitions().len() as u32)),
            Some(Code::UnknownTopicOrPartition | Code::UnknownTopic) => Ok(None),
            Some(code) => Err(explain(&code)),
        }
    }

    fn create_missing(&self, wanted: &[TopicSettings<'_>]) -> Result<(), Error> {
        let mut absent = Vec::new();
        for topic in wanted {
            if self.partitions(topic.name)?.is_none() {
                absent.push(topic);
            }
        }
        if absent.is_empty() {
            return Ok(());
        }
        self.create(&absent)?;
        // Other brokers learn of it a moment later.
        for topic in absent {
            self.await_topic(topic.name)?;
        }
        Ok(())
    }

    fn create(&self, absent: &[&TopicSettings<'_>]) -> Result<(), Error> {
        if let (true, Some(topic)) = (self.has_token(), absent.first()) {
            return Err(self.not_made(
                topic,
                "weir creates topics with a password or certificate, not with a token",
            ));
        }
        let admin = self.admin()?;
        let replicas = self.brokers.replicas.map_or(-1, |replicas| replicas as i32);
        let new = absent.iter().map(|topic| {
            let new = NewTopic::new(
                topic.name,
                topic.partitions as i32,
                TopicReplication::Fixed(replicas),
            );
            let settings = topic.settings.iter();
            settings.fold(new, |new, (key, value)| new.set(key, value))
        });
        let new: Vec<NewTopic<'_>> = new.collect();
        let made = futures_executor::block_on(admin.create_topics(&new, &self.options()));
        let made = made.map_err(|error| self.last_failure.explain("making topics", error))?;
        for (result, topic) in made.into_iter().zip(absent) {
            match result {
                Ok(_) | Err((_, Code::TopicAlreadyExists)) => {}
                Err((_, code)) => return Err(self.not_made(topic, code)),
            }
        }
        Ok(())
    }

    fn add_partitions(&self, topic: &str, partitions: u32) -> Result<(), Error> {
        let doing = format!("raising the partitions of topic {topic} to {partitions}");
        if self.has_token() {
            return Err(self.last_failure.explain(
                &doing,
                "weir does this with a password or certificate, not with a token",
            ));
        }
        let admin = self.admin()?;
        let new = [NewPartitions::new(topic, partitions as usize)];
        let made = futures_executor::block_on(admin.create_partitions(&new, &self.options()));
        let made = made.map_err(|error| self.last_failure.explain(&doing, error))?;
        let right = format!("ALTER on topic {topic}");
        for result in made {
            result.map_err(|(_, code)| self.last_failure.explain_right(&doing, code, &right))?;
        }
        Ok(())
    }

    /// The client library's administration does not take tokens from files.
    pub fn has_token(&self) -> bool {
        let sasl = self.brokers.sasl.as_ref();
        sasl.is_some_and(|sasl| sasl.mechanism == Mechanism::OAuthBearer)
    }

    pub fn admin(&self) -> Result<AdminClient<LastFailure>, Error> {
        let config = client::overridden(client::config(self.brokers), self.brokers);
        let admin = config.create_with_context(self.last_failure.clone());
        admin.map_err(|error| self.last_failure.not_made(error))
    }

    pub fn options(&self) -> AdminOptions {
        let timeout = Some(self.brokers.timeout);
        AdminOptions::new()
            .request_timeout(timeout)
            .operation_timeout(timeout)
    }

    fn await_topic(&self, topic: &str) -> Result<(), Error> {
        let until = std::time::Instant::now() + self.brokers.timeout;
        while self.partitions(topic)?.is_none() {
            if std::time::Instant::now() > until {
                return Err(self.absent(topic));
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        Ok(())
    }

    fn absent(&self, topic: &str) -> Error {
        self.last_failure
            .explain(format!("topic {topic}"), "there is none")
    }

    fn not_made(&self, topic: &TopicSettings<'_>, code: impl std::fmt::Display) -> Error {
        let settings: Vec<String> = topic
            .settings
            .iter()
            .map(|(key, value)| format!("{key}={value}"))
            .collect();
        let (partitions, settings) = (topic.partitions, settings.join(","));
        self.last_failure.explain(
            format!("topic {}: it does not exist and could not be created", topic.name),
            format!("{code}; create it with {partitions} partitions and {settings}, or allow this user to create topics"),
        )
    }
}
