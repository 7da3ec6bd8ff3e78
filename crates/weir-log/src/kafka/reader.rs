//! Reads any partition of any topic from any offset, only committed transactions.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rdkafka::consumer::base_consumer::PartitionQueue;
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::message::{BorrowedMessage, Headers, Message};
use rdkafka::types::RDKafkaErrorCode as Code;
use rdkafka::{Offset, Timestamp, TopicPartitionList};

use super::client::{self, LastFailure};
use crate::{Brokers, Error};

/// Bytes of one partition that wait to be read: a smaller number would be a request for each few records.
const WAITING_LEAST: usize = 64 << 10;
const WAITING_MOST: usize = 8 << 20;

/// Bytes of one partition in an answer. A larger message comes alone.
const ANSWER_MOST: usize = 4 << 20;

/// The header with the time at which an agent sent a record: Unix milliseconds, eight bytes, little-endian.
pub(crate) const SENT: &str = "weir-sent";

impl ConsumerContext for LastFailure {}

/// A message of any topic.
#[derive(Debug)]
pub(crate) struct FetchedMessage {
    pub offset: u64,
    pub stamp: Timestamp,
    pub key: Vec<u8>,
    pub bytes: Vec<u8>,
    pub headers: Vec<(String, Vec<u8>)>,
}

impl FetchedMessage {
    fn of(message: &BorrowedMessage<'_>) -> Self {
        let headers = message.headers().map(|headers| {
            let headers = headers.iter();
            let headers = headers.map(|header| {
                let value = header.value.unwrap_or_default().to_vec();
                (header.key.to_owned(), value)
            });
            headers.collect()
        });
        FetchedMessage {
            offset: message.offset() as u64,
            stamp: message.timestamp(),
            key: message.key().unwrap_or_default().to_vec(),
            bytes: message.payload().unwrap_or_default().to_vec(),
            headers: headers.unwrap_or_default(),
        }
    }

    pub fn header(&self, name: &str) -> Option<&[u8]> {
        let mut headers = self.headers.iter();
        headers.find(|(key, _)| key == name).map(|(_, value)| &value[..])
    }

    fn size(&self) -> usize {
        self.bytes.len() + 64
    }
}

/// Result of a read.
#[derive(Debug, Default)]
pub(crate) struct FetchResult {
    pub messages: Vec<FetchedMessage>,
    /// The client reached the end of the partition after the last message.
    pub is_end: bool,
}

type Key = (String, u32);

/// A client without a group. It reads ahead in each requested partition.
pub(crate) struct Reader {
    // Declared before the client that they belong to, so that they are dropped first.
    places: HashMap<Key, ReadPosition>,
    client: Arc<BaseConsumer<LastFailure>>,
    last_failure: LastFailure,
    timeout: Duration,
}

struct ReadPosition {
    queue: PartitionQueue<LastFailure>,
    next: u64,
    /// The client reached the end and has received nothing since.
    is_drained: bool,
}

impl Reader {
    pub fn open(brokers: &Brokers, last_failure: &LastFailure) -> Result<Self, Error> {
        let mut config = client::reading(brokers, &format!("{}-reader", brokers.group));
        let waiting = brokers.read_ahead / brokers.partitions.max(1) as usize;
        let waiting = waiting.clamp(WAITING_LEAST, WAITING_MOST);
        config
            .set("isolation.level", "read_committed")
            .set("enable.partition.eof", "true")
            .set("queued.max.messages.kbytes", (waiting >> 10).to_string())
            .set("fetch.message.max.bytes", waiting.min(ANSWER_MOST).to_string())
            .set("fetch.wait.max.ms", "100")
            .set("fetch.queue.backoff.ms", "10")
            .set("fetch.error.backoff.ms", "100");
        let client = client::overridden(config, brokers).create_with_context(last_failure.clone());
        let client: BaseConsumer<LastFailure> = client.map_err(|error| last_failure.not_made(error))?;
        last_failure.give_token(|| drop(client.poll(client::TOKEN_STEP)));
        Ok(Reader {
            places: HashMap::new(),
            client: Arc::new(client),
            last_failure: last_failure.clone(),
            timeout: brokers.timeout,
        })
    }

    pub fn client(&self) -> &BaseConsumer<LastFailure> {
        &self.client
    }

    /// The first available offset, and the one after the last readable message.
    pub fn ends(&self, topic: &str, partition: u32) -> Result<(u64, u64), Error> {
        ends(&self.client, &self.last_failure, self.timeout, topic, partition)
    }

    /// Messages from an offset on, about `bytes_max` at most. Waits for the first one, or for the end of the partition.
    pub fn read(
        &mut self,
        topic: &str,
        partition: u32,
        from: u64,
        bytes_max: usize,
        wait: Duration,
    ) -> Result<FetchResult, Error> {
        let key = (topic.to_owned(), partition);
        self.go_to(&key, from)?;
        // Collects errors that concern no single partition.
        drop(self.client.poll(Duration::ZERO));
        let is_drained = self.places.get(&key).is_some_and(|place| place.is_drained);
        let wait = if is_drained { Duration::ZERO } else { wait };
        let (until, mut bytes, mut read) = (Instant::now() + wait, 0, FetchResult::default());
        while bytes < bytes_max && !read.is_end {
            let left = match read.messages.is_empty() {
                true => until.saturating_duration_since(Instant::now()),
                false => Duration::ZERO,
            };
            match self.next(&key, left)? {
                Next::Message(got) if got.offset < from => {}
                Next::Message(got) => {
                    bytes += got.size();
                    read.messages.push(got);
                }
                Next::End => read.is_end = true,
                Next::Nothing if left.is_zero() => break,
                Next::Nothing => {}
            }
        }
        read.is_end |= is_drained && read.messages.is_empty();
        Ok(read)
    }

    fn next(&mut self, key: &Key, wait: Duration) -> Result<Next, Error> {
        let Some(place) = self.places.get_mut(key) else {
            return Ok(Next::Nothing);
        };
        let next = next_of(place.queue.poll(wait));
        match &next {
            Ok(Next::Message(got)) => {
                place.next = got.offset + 1;
                place.is_drained = false;
            }
            Ok(Next::End) => place.is_drained = true,
            Err(_) => drop(self.stop_reading(&key.0, key.1)),
            Ok(_) => {}
        }
        next.map_err(|error| {
            let doing = format!("reading partition {} of topic {}", key.1, key.0);
            let right = format!("READ on topic {}", key.0);
            self.last_failure.explain_right(doing, error, &right)
        })
    }

    /// Continues at an offset.
    fn go_to(&mut self, key: &Key, from: u64) -> Result<(), Error> {
        if self.places.get(key).is_some_and(|place| place.next == from) {
            return Ok(());
        }
        self.stop_reading(&key.0, key.1)?;
        let doing = || format!("reading partition {} of topic {}", key.1, key.0);
        // Before the partition is assigned, so that all its messages use this queue.
        let queue = self.client.split_partition_queue(&key.0, key.1 as i32);
        let queue = queue.ok_or_else(|| self.last_failure.explain(doing(), "there is no such partition"))?;
        let list = one(&key.0, key.1, Some(from)).and_then(|list| self.client.incremental_assign(&list));
        list.map_err(|error| self.last_failure.explain(doing(), error))?;
        let place = ReadPosition {
            queue,
            next: from,
            is_drained: false,
        };
        self.places.insert(key.clone(), place);
        Ok(())
    }

    /// The error of a read that brought neither a message nor the end.
    pub fn unanswered(&self, topic: &str, partition: u32) -> Error {
        let doing = format!("reading partition {partition} of topic {topic}");
        let waited = format!("no answer within {:?}", self.timeout);
        self.last_failure.explain(doing, waited)
    }

    /// Stops reading a partition.
    pub fn stop_reading(&mut self, topic: &str, partition: u32) -> Result<(), Error> {
        if self.places.remove(&(topic.to_owned(), partition)).is_none() {
            return Ok(());
        }
        let left = one(topic, partition, None).and_then(|list| self.client.incremental_unassign(&list));
        left.map_err(|error| {
            let doing = format!("leaving partition {partition} of topic {topic}");
            self.last_failure.explain(doing, error)
        })
    }
}

enum Next {
    Message(FetchedMessage),
    End,
    Nothing,
}

fn next_of(polled: Option<KafkaResult<BorrowedMessage<'_>>>) -> KafkaResult<Next> {
    match polled {
        None => Ok(Next::Nothing),
        Some(Ok(message)) => Ok(Next::Message(FetchedMessage::of(&message))),
        Some(Err(KafkaError::PartitionEOF(_))) => Ok(Next::End),
        // The client library retries.
        Some(Err(KafkaError::MessageConsumption(code))) if is_passing(code) => Ok(Next::Nothing),
        Some(Err(error)) => Err(error),
    }
}

fn is_passing(code: Code) -> bool {
    matches!(
        code,
        Code::BrokerTransportFailure
            | Code::AllBrokersDown
            | Code::Resolve
            | Code::OperationTimedOut
            | Code::RequestTimedOut
            | Code::NotEnoughReplicas
    ) || has_no_leader(code)
}

/// The first available offset of a partition, and the one after the last that this client sees.
pub(crate) fn ends<C: ConsumerContext>(
    client: &BaseConsumer<C>,
    last_failure: &LastFailure,
    timeout: Duration,
    topic: &str,
    partition: u32,
) -> Result<(u64, u64), Error> {
    let until = Instant::now() + timeout;
    let mut has_looked = false;
    loop {
        match client.fetch_watermarks(topic, partition as i32, timeout) {
            Ok((start, end)) => return Ok((start.max(0) as u64, end.max(0) as u64)),
            // The topic was created a moment ago, or another broker is taking over.
            Err(KafkaError::MetadataFetch(code)) if has_no_leader(code) && Instant::now() < until => {
                std::thread::sleep(Duration::from_millis(20));
            }
            // Partitions were added since the client looked, which it does every few minutes.
            Err(KafkaError::MetadataFetch(Code::UnknownPartition)) if !has_looked => {
                has_looked = true;
                drop(client.fetch_metadata(Some(topic), timeout));
            }
            Err(error) => {
                let doing = format!("asking for the end of partition {partition} of topic {topic}");
                return Err(last_failure.explain_right(doing, error, &format!("DESCRIBE on topic {topic}")));
            }
        }
    }
}

fn has_no_leader(code: Code) -> bool {
    matches!(code, Code::NotLeaderForPartition | Code::LeaderNotAvailable)
}

/// A list of one partition.
pub(crate) fn one(topic: &str, partition: u32, offset: Option<u64>) -> KafkaResult<TopicPartitionList> {
    let mut list = TopicPartitionList::new();
    match offset {
        None => drop(list.add_partition(topic, partition as i32)),
        Some(offset) => list.add_partition_offset(topic, partition as i32, Offset::Offset(offset as i64))?,
    }
    Ok(list)
}
