//! Membership of the group of owners: our partitions, and the proof of ownership.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rdkafka::client::OAuthToken;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{
    BaseConsumer, CommitMode, Consumer, ConsumerContext, ConsumerGroupMetadata, Rebalance,
};
use rdkafka::error::KafkaError;
use rdkafka::types::RDKafkaErrorCode as Code;
use rdkafka::{ClientContext, Offset, TopicPartitionList};
use weir_merge::Assignment;

use super::client::{self, LastFailure};
use super::reader::one;
use crate::{Brokers, Error};

/// News from the group since the last query.
#[derive(Default)]
struct GroupEvents {
    assignments: Vec<(u32, bool)>,
    /// Proof for the generation of the last assignment that we know. It proves nothing for another generation.
    proof: Option<ConsumerGroupMetadata>,
    proofs: u64,
    /// The client leaves the group. It may not be asked for a proof then: the group no longer answers, and the question has no end.
    is_leaving: bool,
}

pub(crate) struct GroupContext {
    last_failure: LastFailure,
    events: Mutex<GroupEvents>,
}

impl GroupContext {
    fn events(&self) -> MutexGuard<'_, GroupEvents> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, list: &TopicPartitionList, is_assigned: bool) {
        let partitions = list.elements().into_iter();
        let partitions = partitions.map(|one| (one.partition() as u32, is_assigned));
        self.events().assignments.extend(partitions);
    }
}

impl ClientContext for GroupContext {
    const ENABLE_REFRESH_OAUTH_TOKEN: bool = true;

    fn generate_oauth_token(&self, _: Option<&str>) -> Result<OAuthToken, Box<dyn std::error::Error>> {
        self.last_failure.token()
    }

    fn log(&self, level: RDKafkaLogLevel, facility: &str, line: &str) {
        self.last_failure.log(level, facility, line);
    }
}

impl ConsumerContext for GroupContext {
    fn pre_rebalance(&self, _client: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        if let Rebalance::Revoke(list) = rebalance {
            self.note(list, false);
        }
    }

    /// Called with each change of the generation, even if no partition is added.
    fn post_rebalance(&self, client: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        if let Rebalance::Assign(list) = rebalance {
            // Another client reads.
            drop(client.pause(list));
            self.note(list, true);
        }
        let mut events = self.events();
        if !events.is_leaving {
            events.proof = client.group_metadata();
            events.proofs += 1;
        }
    }
}

/// A member of the group.
pub(crate) struct Member {
    client: BaseConsumer<GroupContext>,
    topic: String,
    last_failure: LastFailure,
    timeout: Duration,
    /// Our partitions, with the number of the assignment.
    held: BTreeMap<u32, u64>,
    generation: u64,
    unreported: Vec<Assignment>,
}

/// Whether the group's generation differs from that of the proof.
pub(crate) fn is_stale(code: Code) -> bool {
    matches!(
        code,
        Code::IllegalGeneration
            | Code::UnknownMemberId
            | Code::FencedInstanceId
            | Code::RebalanceInProgress
            | Code::StaleMemberEpoch
            | Code::AssignmentLost
    )
}

impl Member {
    pub fn join(brokers: &Brokers, topic: &str, last_failure: &LastFailure) -> Result<Self, Error> {
        let session = brokers.session_timeout;
        let mut config = client::reading(brokers, &brokers.group);
        config
            .set("partition.assignment.strategy", "cooperative-sticky")
            .set("session.timeout.ms", client::milliseconds(session))
            .set("heartbeat.interval.ms", client::milliseconds(session / 5))
            // The end of a partition includes open transactions.
            .set("isolation.level", "read_uncommitted");
        let context = GroupContext {
            last_failure: last_failure.clone(),
            events: Mutex::default(),
        };
        if let Some(instance) = &brokers.instance {
            config.set("group.instance.id", instance);
        }
        let client: BaseConsumer<GroupContext> = client::overridden(config, brokers)
            .create_with_context(context)
            .map_err(|error| last_failure.not_made(error))?;
        last_failure.give_token(|| drop(client.poll(client::TOKEN_STEP)));
        let joined = client.subscribe(&[topic]);
        joined.map_err(|error| last_failure.explain(format!("joining group {}", brokers.group), error))?;
        Ok(Member {
            client,
            topic: topic.to_owned(),
            last_failure: last_failure.clone(),
            timeout: brokers.timeout,
            held: BTreeMap::new(),
            generation: 0,
            unreported: Vec::new(),
        })
    }

    pub fn client(&self) -> &BaseConsumer<GroupContext> {
        &self.client
    }

    /// Processes news from the group.
    pub fn listen(&mut self, wait: Duration) -> Result<(), Error> {
        let failed = self.client.poll(wait).and_then(Result::err);
        let events = std::mem::take(&mut self.client.context().events().assignments);
        for (partition, is_assigned) in events {
            self.change(partition, is_assigned);
        }
        match failed {
            Some(error @ KafkaError::MessageConsumptionFatal(_)) => Err(self.broken(error)),
            Some(KafkaError::MessageConsumption(code)) if is_refusal(code) => Err(self.broken(code)),
            // The client library retries.
            _ => Ok(()),
        }
    }

    fn change(&mut self, partition: u32, is_assigned: bool) {
        if is_assigned {
            self.generation += 1;
            let generation = self.generation;
            self.held.insert(partition, generation);
            self.unreported.push(Assignment::Assigned {
                partition,
                generation,
            });
        } else if self.held.remove(&partition).is_some() {
            self.unreported.push(Assignment::Revoked { partition });
        }
    }

    fn broken(&self, error: impl std::fmt::Display) -> Error {
        let right = format!("READ on topic {}", self.topic);
        self.last_failure
            .explain_right("being a member of the group", error, &right)
    }

    pub fn take_assignments(&mut self) -> Vec<Assignment> {
        std::mem::take(&mut self.unreported)
    }

    pub fn holds(&self, partition: u32, generation: u64) -> bool {
        self.held.get(&partition) == Some(&generation)
    }

    /// Number of changes of the proof.
    pub fn proofs(&self) -> u64 {
        self.client.context().events().proofs
    }

    /// Lends the proof of ownership for the brokers.
    pub fn with_proof<T>(&self, use_it: impl FnOnce(&ConsumerGroupMetadata) -> T) -> Option<T> {
        let events = self.client.context().events();
        events.proof.as_ref().map(use_it)
    }

    /// The offset stored for a partition of any topic.
    pub fn noted(&self, topic: &str, partition: u32) -> Result<u64, Error> {
        committed(&self.client, &self.last_failure, self.timeout, topic, partition)
    }

    /// Stores an offset for a partition of any topic. `Ok(false)`: the group is in another generation.
    pub fn note(&self, topic: &str, partition: u32, offset: u64) -> Result<bool, Error> {
        let list = one(topic, partition, Some(offset));
        let noted = list.and_then(|list| self.client.commit(&list, CommitMode::Sync));
        match noted {
            Ok(()) => Ok(true),
            Err(KafkaError::ConsumerCommit(code)) if is_stale(code) => Ok(false),
            Err(error) => {
                let doing = format!("storing the offset of partition {partition} of topic {topic}");
                let right = format!("READ on topic {topic}");
                Err(self.last_failure.explain_right(doing, error, &right))
            }
        }
    }
}

/// The offset that a client's group has stored for a partition of any topic.
pub(crate) fn committed<C: ConsumerContext>(
    client: &BaseConsumer<C>,
    last_failure: &LastFailure,
    timeout: Duration,
    topic: &str,
    partition: u32,
) -> Result<u64, Error> {
    let doing = || format!("reading the stored offset of partition {partition} of topic {topic}");
    let list = one(topic, partition, None);
    let found = list.and_then(|list| client.committed_offsets(list, timeout));
    let explain = |error| last_failure.explain_right(doing(), error, &format!("DESCRIBE on topic {topic}"));
    let found = found.map_err(explain)?;
    let elements = found.elements();
    let one = elements.first();
    // An unknown offset is no offset: everything would be read again.
    if let Some(Err(error)) = one.map(|one| one.error()) {
        return Err(explain(error));
    }
    Ok(match one.map(|one| one.offset()) {
        Some(Offset::Offset(offset)) => offset.max(0) as u64,
        _ => 0,
    })
}

/// The client leaves the group when it is dropped, after this, and reports that its partitions are revoked.
impl Drop for Member {
    fn drop(&mut self) {
        self.client.context().events().is_leaving = true;
    }
}

/// Errors that retrying cannot fix.
fn is_refusal(code: Code) -> bool {
    matches!(
        code,
        Code::GroupAuthorizationFailed
            | Code::TopicAuthorizationFailed
            | Code::ClusterAuthorizationFailed
            | Code::SaslAuthenticationFailed
            | Code::Authentication
            | Code::InvalidSessionTimeout
            | Code::InconsistentGroupProtocol
    )
}
