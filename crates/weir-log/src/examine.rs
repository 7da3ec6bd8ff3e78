//! A look at a log for users who ask why nothing arrives. Nothing is made or changed.

use crate::{Connection, Error};

/// Facts about a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogFacts {
    /// Number of brokers; a directory has none.
    pub brokers: usize,
    /// `None`: there is no topic yet.
    pub partitions: Option<u32>,
    /// Whether the brokers stamp messages; `None` if unknown.
    pub is_stamped: Option<bool>,
}

/// The obstacle between a client and the brokers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// The address does not answer.
    Address,
    /// The brokers answer, but the TLS handshake fails.
    Tls,
    /// They do not accept who we are.
    Login,
    /// We may not do that.
    Rights,
}

impl Obstacle {
    /// By the client library's words, which are all that there is.
    pub fn of(error: &Error) -> Obstacle {
        // The name of a connection begins with its protocol.
        let text = error.to_string().to_ascii_lowercase();
        let text = text.replace("sasl_ssl://", "").replace("sasl_plaintext://", "");
        let names = |words: &[&str]| words.iter().any(|word| text.contains(word));
        if names(&["authorization"]) {
            return Obstacle::Rights;
        }
        if names(&["sasl", "authentication"]) {
            return Obstacle::Login;
        }
        // A broker that expects TLS hangs up on one that does not begin it, and the other way round.
        if names(&[
            "ssl",
            "certificate",
            "tls",
            "requesting apiversion",
            "in state apiversion_query",
        ]) {
            return Obstacle::Tls;
        }
        Obstacle::Address
    }
}

/// Looks at brokers and topics.
pub fn examine(connection: &Connection) -> Result<LogFacts, Error> {
    match connection {
        Connection::Directory { partitions, .. } => Ok(LogFacts {
            brokers: 0,
            partitions: Some(*partitions),
            is_stamped: Some(true),
        }),
        #[cfg(feature = "kafka")]
        Connection::Kafka(brokers) => crate::KafkaLog::open(brokers)?.examine(),
        #[cfg(not(feature = "kafka"))]
        Connection::Kafka(_) => Err(Error::NoKafka),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn obstacles_are_distinguished_by_the_text_of_the_library() {
        for (what, expected) in [
            (
                "Local: Broker transport failure; last failure of a connection: a:9092/bootstrap: Connect to ipv4#127.0.0.1:1 failed: Connection refused",
                Obstacle::Address,
            ),
            (
                "a:9093/bootstrap: Failed to resolve 'a:9093': Name or service not known",
                Obstacle::Address,
            ),
            (
                "a:9093/bootstrap: SSL handshake failed: error:0A000086:SSL routines::certificate verify failed",
                Obstacle::Tls,
            ),
            (
                "sasl_ssl://a:9093/bootstrap: SSL handshake failed: broker certificate could not be verified",
                Obstacle::Tls,
            ),
            (
                "a:9093/bootstrap: Disconnected: requesting ApiVersion: might be caused by incorrect security.protocol configuration",
                Obstacle::Tls,
            ),
            (
                "sasl_plaintext://a:9093/bootstrap: Disconnected: connection closed by peer: receive 0 after POLLIN (after 1ms in state APIVERSION_QUERY)",
                Obstacle::Tls,
            ),
            (
                "sasl_plaintext://a:9093/bootstrap: Connect to ipv4#127.0.0.1:1 failed: Connection refused (after 0ms in state CONNECT)",
                Obstacle::Address,
            ),
            (
                "sasl_ssl://a:9093/bootstrap: SASL authentication error: Authentication failed during authentication due to invalid credentials",
                Obstacle::Login,
            ),
            ("Broker: Topic authorization failed", Obstacle::Rights),
        ] {
            let error = Error::Kafka {
                doing: "asking for topic weir".to_owned(),
                what: what.to_owned(),
            };
            assert_eq!(Obstacle::of(&error), expected, "{what}");
        }
    }
}
