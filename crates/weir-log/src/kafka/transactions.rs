//! Results, snapshot and offset of a partition in one transaction.

use std::hash::{BuildHasher, RandomState};

use rdkafka::error::KafkaError;
use rdkafka::producer::Producer;
use rdkafka::types::RDKafkaErrorCode as Code;
use weir_merge::Commit;

use super::client::{self, LastFailure};
use super::member::{Member, is_stale};
use super::reader::one;
use super::topics::Topics;
use super::writer::{Outgoing, Writer, writing};
use crate::{Brokers, Error};

/// The first byte of a snapshot in its topic.
const VERSION: u8 = 1;

/// Headers of a quarantined record.
pub(crate) const REASON: &str = "weir-reason";
pub(crate) const OFFSET: &str = "weir-offset";

/// Time for which brokers keep the transaction of a dead owner open. Until then its partitions have no owner.
const OPEN_MILLISECONDS: &str = "20000";

/// Maximum size of a snapshot, plus a margin.
const MESSAGE_BYTES_MAX: &str = "67108864";

/// A client that writes in transactions.
pub(crate) struct Committer {
    writer: Writer,
    last_failure: LastFailure,
    timeout: std::time::Duration,
}

/// Why a transaction failed or may have failed.
pub(crate) enum TransactionError {
    /// The group is in another generation. Nothing was written.
    Stale,
    /// The client is still usable. Nothing was written.
    Aborted(Error),
    /// The client must be replaced. The transaction may have been committed.
    Broken(Error),
}

/// The transactional id of a process. Brokers let one client at a time use it.
pub(crate) fn name_for_transactions(group: &str) -> String {
    let random = RandomState::new().hash_one(std::process::id());
    format!("{group}-{random:016x}")
}

impl Committer {
    /// Opens the client and aborts any open transaction under this name.
    pub fn open(brokers: &Brokers, name: &str, last_failure: &LastFailure) -> Result<Self, Error> {
        let mut config = writing(brokers);
        config
            .set("transactional.id", name)
            .set("transaction.timeout.ms", OPEN_MILLISECONDS)
            .set("message.max.bytes", MESSAGE_BYTES_MAX)
            .set(
                "message.timeout.ms",
                client::milliseconds(brokers.timeout.min(std::time::Duration::from_secs(20))),
            );
        let writer = Writer::of(&config, brokers, last_failure)?;
        let ready = writer.client().init_transactions(brokers.timeout);
        ready.map_err(|error| {
            // The name ends with a number that each process draws.
            let prefix = name.rsplit_once('-').map_or(name, |(group, _)| group);
            let right = format!("WRITE and DESCRIBE on transactional ids with the prefix {prefix}-");
            last_failure.explain_right("starting transactions", error_text(&error), &right)
        })?;
        Ok(Committer {
            writer,
            last_failure: last_failure.clone(),
            timeout: brokers.timeout,
        })
    }

    pub fn commit(
        &mut self,
        topics: &Topics,
        partition: u32,
        member: &Member,
        commit: &Commit,
    ) -> Result<(), TransactionError> {
        let begun = self.writer.client().begin_transaction();
        begun.map_err(|error| TransactionError::Broken(self.explain(topics, partition, &error)))?;
        let done = self
            .write(topics, partition, commit)
            .and_then(|()| self.offsets(topics, partition, member, commit.offset))
            .and_then(|()| self.writer.client().commit_transaction(self.timeout));
        done.map_err(|error| self.end(topics, partition, &error))
    }

    /// Everything is in the log before the offset, so a client that asks for the end of a partition sees the open transaction.
    fn write(&mut self, topics: &Topics, partition: u32, commit: &Commit) -> Result<(), KafkaError> {
        let mut snapshot = vec![VERSION];
        snapshot.extend(commit.offset.to_le_bytes());
        snapshot.extend(&commit.snapshot);
        let key = partition.to_string();
        let offsets: Vec<[u8; 8]> = commit
            .quarantined
            .iter()
            .map(|one| one.offset.to_le_bytes())
            .collect();
        let quarantined = commit.quarantined.iter().zip(&offsets);
        let headers: Vec<[(&str, &[u8]); 2]> = quarantined
            .map(|(one, offset)| [(REASON, one.reason.as_bytes()), (OFFSET, &offset[..])])
            .collect();
        let plain = |topic, bytes| Outgoing {
            topic,
            partition,
            key: None,
            bytes,
            headers: &[],
        };
        let results = commit.results.iter().map(|result| plain(&topics.results, result));
        let quarantined = commit.quarantined.iter().zip(&headers);
        let quarantined = quarantined.map(|(one, headers)| Outgoing {
            headers,
            ..plain(&topics.quarantine, &one.bytes)
        });
        let snapshot = Outgoing {
            key: Some(key.as_bytes()),
            ..plain(&topics.kept, &snapshot)
        };
        let all: Vec<Outgoing<'_>> = results.chain(quarantined).chain([snapshot]).collect();
        let written = self.writer.write_all(&all);
        written.into_iter().try_for_each(|one| one.map(drop))
    }

    fn offsets(
        &self,
        topics: &Topics,
        partition: u32,
        member: &Member,
        offset: u64,
    ) -> Result<(), KafkaError> {
        let list = one(&topics.read, partition, Some(offset))?;
        let client = self.writer.client();
        let shown = member.with_proof(|proof| client.send_offsets_to_transaction(&list, proof, self.timeout));
        shown.unwrap_or(Err(KafkaError::ConsumerCommit(Code::UnknownMemberId)))
    }

    /// Ends a failed transaction.
    fn end(&self, topics: &Topics, partition: u32, error: &KafkaError) -> TransactionError {
        let explained = self.explain(topics, partition, error);
        let is_over = match error {
            KafkaError::Transaction(error) => error.is_fatal(),
            _ => self.writer.is_broken(),
        };
        if is_over || self.writer.client().abort_transaction(self.timeout).is_err() {
            return TransactionError::Broken(explained);
        }
        match code(error) {
            Some(code) if is_stale(code) => TransactionError::Stale,
            _ => TransactionError::Aborted(explained),
        }
    }

    fn explain(&self, topics: &Topics, partition: u32, error: &KafkaError) -> Error {
        let doing = format!("committing partition {partition}");
        // The client library does not name the topic.
        let prefix = topics.results.trim_end_matches("results");
        let right = format!("WRITE on topics with the prefix {prefix}");
        self.last_failure.explain_right(doing, error_text(error), &right)
    }
}

fn code(error: &KafkaError) -> Option<Code> {
    match error {
        KafkaError::Transaction(error) => Some(error.code()),
        error => error.rdkafka_error_code(),
    }
}

fn error_text(error: &KafkaError) -> String {
    match error {
        KafkaError::Transaction(error) => error.string(),
        error => error.to_string(),
    }
}

/// Splits a message of the snapshot topic into snapshot and offset.
pub(crate) fn snapshot_of(bytes: &[u8]) -> Option<(Vec<u8>, u64)> {
    let rest = bytes.strip_prefix(&[VERSION])?;
    let (offset, snapshot) = rest.split_first_chunk()?;
    Some((snapshot.to_vec(), u64::from_le_bytes(*offset)))
}
