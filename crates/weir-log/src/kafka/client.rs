//! Common to all clients of one log: connection settings, and the client library's explanations of errors.

use std::fmt::Display;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rdkafka::ClientContext;
use rdkafka::config::{ClientConfig, RDKafkaLogLevel};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};

use crate::{Brokers, Error};

/// Time for which a line of the client library can explain errors.
const EXPLAINS: Duration = Duration::from_secs(60);

/// The client library's mark on lines about a connection that failed. A broker that hangs up is only information to it.
const FAILED_CONNECTION: &str = "FAIL";

/// Text before the reason in an error.
pub(crate) const REASON: &str = "; last failure of a connection: ";

/// The last failure in the client library's log. Errors of calls often say only "timed out".
#[derive(Clone, Debug, Default)]
pub(crate) struct LastFailure(Arc<Mutex<Option<(Instant, String)>>>);

impl LastFailure {
    fn note(&self, line: &str) {
        // Lines begin with the name of a thread.
        let line = line.rsplit_once("]: ").map_or(line, |(_, line)| line);
        if let Ok(mut last) = self.0.lock() {
            *last = Some((Instant::now(), line.trim().to_owned()));
        }
    }

    fn last(&self) -> Option<String> {
        let last = self.0.lock().ok()?;
        let (at, line) = last.as_ref()?;
        (at.elapsed() < EXPLAINS).then(|| line.clone())
    }

    /// An error of a call, with the client library's reason.
    pub fn explain(&self, doing: impl Into<String>, error: impl Display) -> Error {
        let what = match self.last() {
            Some(reason) => format!("{error}{REASON}{reason}"),
            None => error.to_string(),
        };
        let doing = doing.into();
        Error::Kafka { doing, what }
    }
}

impl ClientContext for LastFailure {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, line: &str) {
        if (level as i32) <= RDKafkaLogLevel::Error as i32 || facility == FAILED_CONNECTION {
            self.note(line);
        }
    }

    fn error(&self, error: KafkaError, reason: &str) {
        let code = error.rdkafka_error_code();
        // The end of a partition is not an error, and that all connections failed is no reason: each has its own.
        if code != Some(RDKafkaErrorCode::PartitionEOF) && code != Some(RDKafkaErrorCode::AllBrokersDown) {
            self.note(&format!("{error}: {reason}"));
        }
    }
}

/// Addresses, TLS and credentials.
pub(crate) fn config(brokers: &Brokers) -> ClientConfig {
    let mut config = ClientConfig::new();
    config
        .set("bootstrap.servers", brokers.addresses.join(","))
        .set("client.id", "weir")
        .set("socket.keepalive.enable", "true")
        .set("reconnect.backoff.max.ms", "2000")
        // Longest delay before added partitions are seen.
        .set("topic.metadata.refresh.interval.ms", "30000")
        .set_log_level(RDKafkaLogLevel::Info);
    secure(&mut config, brokers);
    config
}

fn secure(config: &mut ClientConfig, brokers: &Brokers) {
    let protocol = match (&brokers.tls, &brokers.sasl) {
        (None, None) => "plaintext",
        (Some(_), None) => "ssl",
        (None, Some(_)) => "sasl_plaintext",
        (Some(_), Some(_)) => "sasl_ssl",
    };
    config.set("security.protocol", protocol);
    if let Some(tls) = &brokers.tls {
        let authorities = tls.authorities.as_ref().map(|path| path.to_string_lossy());
        config.set("ssl.ca.location", authorities.as_deref().unwrap_or("probe"));
        if let Some((certificate, key)) = &tls.certificate {
            config.set("ssl.certificate.location", certificate.to_string_lossy());
            config.set("ssl.key.location", key.to_string_lossy());
        }
    }
    if let Some(sasl) = &brokers.sasl {
        config
            .set("sasl.mechanisms", sasl.mechanism.name())
            .set("sasl.username", &sasl.user)
            .set("sasl.password", &sasl.password);
    }
}

/// Settings of a reading client.
pub(crate) fn reading(brokers: &Brokers, group: &str) -> ClientConfig {
    let mut config = config(brokers);
    config
        .set("group.id", group)
        .set("enable.auto.commit", "false")
        .set("enable.auto.offset.store", "false")
        .set("auto.offset.reset", "earliest")
        .set("allow.auto.create.topics", "false");
    config
}

/// Milliseconds as a setting.
pub(crate) fn milliseconds(duration: Duration) -> String {
    duration.as_millis().to_string()
}
