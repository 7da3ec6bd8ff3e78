//! Writes messages and collects their delivery reports.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use rdkafka::ClientContext;
use rdkafka::client::OAuthToken;
use rdkafka::config::{ClientConfig, RDKafkaLogLevel};
use rdkafka::error::KafkaError;
use rdkafka::message::{DeliveryResult, Header, Message, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer, ProducerContext, PurgeConfig};
use rdkafka::types::RDKafkaErrorCode as Code;

use super::client::{self, LastFailure};
use crate::{Brokers, Error};

/// Shortest and longest sleep of a thread while messages are in flight. It is an eighth of the wait so far.
const STEP_MIN: Duration = Duration::from_millis(1);
const STEP_MAX: Duration = Duration::from_millis(50);

/// Delivery reports that were not collected yet, by message number: the offset of each.
#[derive(Debug)]
pub(crate) struct Reports {
    last_failure: LastFailure,
    reports: Mutex<Vec<(usize, Result<u64, KafkaError>)>>,
}

impl ClientContext for Reports {
    const ENABLE_REFRESH_OAUTH_TOKEN: bool = true;

    fn generate_oauth_token(&self, _: Option<&str>) -> Result<OAuthToken, Box<dyn std::error::Error>> {
        self.last_failure.token()
    }

    fn log(&self, level: RDKafkaLogLevel, facility: &str, line: &str) {
        self.last_failure.log(level, facility, line);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        self.last_failure.error(error, reason);
    }
}

impl ProducerContext for Reports {
    type DeliveryOpaque = usize;

    fn delivery(&self, result: &DeliveryResult<'_>, number: usize) {
        let report = match result {
            Ok(message) => Ok(message.offset() as u64),
            Err((error, _)) => Err(error.clone()),
        };
        if let Ok(mut reports) = self.reports.lock() {
            reports.push((number, report));
        }
    }
}

/// A message to write.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outgoing<'a> {
    pub topic: &'a str,
    pub partition: u32,
    pub key: Option<&'a [u8]>,
    pub bytes: &'a [u8],
    pub headers: &'a [(&'a str, &'a [u8])],
}

/// A writing client.
pub(crate) struct Writer {
    client: BaseProducer<Reports>,
    last_failure: LastFailure,
    timeout: Duration,
    /// The number of the next message.
    next: usize,
}

/// Settings of an idempotent producer.
pub(crate) fn writing(brokers: &Brokers) -> ClientConfig {
    let mut config = client::config(brokers);
    config
        .set("enable.idempotence", "true")
        .set("acks", "all")
        .set("linger.ms", "1")
        .set("message.timeout.ms", client::milliseconds(brokers.timeout));
    config
}

/// Whether the brokers refuse this record whenever it comes.
fn is_permanent(error: &KafkaError) -> bool {
    let code = error.rdkafka_error_code();
    matches!(code, Some(Code::MessageSizeTooLarge | Code::InvalidRecord))
}

impl Writer {
    /// For agents.
    pub fn open(brokers: &Brokers, last_failure: &LastFailure) -> Result<Self, Error> {
        let mut config = writing(brokers);
        config.set("message.max.bytes", "2097152");
        Writer::of(&config, brokers, last_failure)
    }

    pub fn of(config: &ClientConfig, brokers: &Brokers, last_failure: &LastFailure) -> Result<Self, Error> {
        let reports = Reports {
            last_failure: last_failure.clone(),
            reports: Mutex::new(Vec::new()),
        };
        let client = client::overridden(config.clone(), brokers).create_with_context(reports);
        let client: BaseProducer<Reports> = client.map_err(|error| last_failure.not_made(error))?;
        last_failure.give_token(|| client.poll(client::TOKEN_STEP));
        Ok(Writer {
            client,
            last_failure: last_failure.clone(),
            timeout: brokers.timeout,
            next: 0,
        })
    }

    pub fn client(&self) -> &BaseProducer<Reports> {
        &self.client
    }

    /// Whether this client is permanently broken and must be replaced.
    pub fn is_broken(&self) -> bool {
        self.client.client().fatal_error().is_some()
    }

    /// Writes messages, in order per partition, and waits for their delivery reports.
    pub fn write_all(&mut self, messages: &[Outgoing<'_>]) -> Vec<Result<u64, KafkaError>> {
        let first = self.next;
        self.next += messages.len();
        let lost = || Err(KafkaError::MessageProduction(Code::MessageTimedOut));
        let mut written: Vec<Result<u64, KafkaError>> = messages.iter().map(|_| lost()).collect();
        let mut awaited = messages.len();
        for (at, message) in messages.iter().enumerate() {
            if let Err(error) = self.send(message, first + at) {
                written[at] = Err(error);
                awaited -= 1;
            }
        }
        // Each message has a report by its own timeout.
        let begun = Instant::now();
        let until = begun + self.timeout + Duration::from_secs(5);
        while awaited > 0 && Instant::now() < until {
            self.wait(begun);
            for (number, report) in self.reports() {
                // Smaller numbers belong to an earlier call that did not wait for them.
                if let Some(mine) = number.checked_sub(first).and_then(|at| written.get_mut(at)) {
                    *mine = report;
                    awaited -= 1;
                }
            }
        }
        if awaited > 0 {
            self.client.purge(PurgeConfig::default().queue().inflight());
        }
        written
    }

    /// Waits for reports since `begun`. A poll with a time would wait all of it, and its last millisecond without sleep.
    fn wait(&self, begun: Instant) {
        std::thread::sleep((begun.elapsed() / 8).clamp(STEP_MIN, STEP_MAX));
        self.client.poll(Duration::ZERO);
    }

    pub fn write(&mut self, message: Outgoing<'_>) -> Result<u64, KafkaError> {
        let mut written = self.write_all(&[message]);
        written.remove(0)
    }

    /// An error of a write.
    pub fn explain(&self, topic: &str, partition: u32, error: KafkaError) -> Error {
        let doing = format!("writing to partition {partition} of topic {topic}");
        if is_permanent(&error) {
            let what = error.to_string();
            return Error::Refused { doing, what };
        }
        let right = format!("WRITE on topic {topic}");
        match self.client.client().fatal_error() {
            Some((code, reason)) => {
                let error = format!("{code}: {reason}");
                self.last_failure.explain_right(doing, error, &right)
            }
            None => self.last_failure.explain_right(doing, error, &right),
        }
    }

    fn reports(&self) -> Vec<(usize, Result<u64, KafkaError>)> {
        let reports = self.client.context().reports.lock();
        reports
            .map(|mut reports| std::mem::take(&mut *reports))
            .unwrap_or_default()
    }

    fn send(&self, message: &Outgoing<'_>, number: usize) -> Result<(), KafkaError> {
        let begun = Instant::now();
        loop {
            let mut record = BaseRecord::<[u8], [u8], usize>::with_opaque_to(message.topic, number)
                .partition(message.partition as i32)
                .payload(message.bytes);
            record.key = message.key;
            if !message.headers.is_empty() {
                let headers = message.headers.iter();
                let headers = headers.fold(OwnedHeaders::new(), |headers, (key, value)| {
                    let value = Some(*value);
                    headers.insert(Header { key, value })
                });
                record = record.headers(headers);
            }
            match self.client.send(record) {
                Ok(()) => return Ok(()),
                // Queued messages end with their timeout.
                Err((KafkaError::MessageProduction(Code::QueueFull), _)) => self.wait(begun),
                Err((error, _)) => return Err(error),
            }
        }
    }
}
