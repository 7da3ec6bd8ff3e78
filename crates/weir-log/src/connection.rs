//! Where a log is, and how it is reached.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// A log of one machine, or topics of Apache Kafka.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "a process has one")]
pub enum Connection {
    /// A directory, made where there is none, with this many partitions.
    Directory {
        path: PathBuf,
        partitions: u32,
    },
    Kafka(Brokers),
}

/// Brokers, and what of them is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Brokers {
    /// `host:port` of some of them: the others are learned.
    pub addresses: Vec<String>,
    /// Of records. Other topics have its name and an ending: `results`, `snapshots`, `quarantine`, `control`.
    pub topic: String,
    /// The group of those who merge. Agents are in none.
    pub group: String,
    /// Partitions of topics that do not exist yet. Those that exist keep theirs.
    pub partitions: u32,
    /// Copies of topics that do not exist yet; `None`: as many as the brokers are set up for.
    pub replicas: Option<u32>,
    pub tls: Option<Tls>,
    pub sasl: Option<Sasl>,
    /// How long one call waits for the brokers.
    pub timeout: Duration,
    /// How long an owner may be silent before its partitions go to others. Brokers take 6 s to 5 min, where they are not told
    /// otherwise.
    pub session_timeout: Duration,
}

impl Default for Brokers {
    fn default() -> Self {
        Brokers {
            addresses: Vec::new(),
            topic: "weir".to_owned(),
            group: "weir-merge".to_owned(),
            partitions: 8,
            replicas: None,
            tls: None,
            sasl: None,
            timeout: Duration::from_secs(10),
            session_timeout: Duration::from_secs(10),
        }
    }
}

/// TLS to the brokers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tls {
    /// PEM file with the authorities that brokers' certificates come from; `None`: those of the system.
    pub authorities: Option<PathBuf>,
    /// PEM files with a certificate of our own and its key.
    pub certificate: Option<(PathBuf, PathBuf)>,
}

/// Name and password for the brokers.
#[derive(Clone, PartialEq, Eq)]
pub struct Sasl {
    pub mechanism: Mechanism,
    pub user: String,
    pub password: String,
}

impl fmt::Debug for Sasl {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Sasl({:?}, {:?})", self.mechanism, self.user)
    }
}

/// How name and password are shown to the brokers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mechanism {
    Plain,
    ScramSha256,
    ScramSha512,
}

impl Mechanism {
    pub const ALL: [Mechanism; 3] = [Mechanism::Plain, Mechanism::ScramSha256, Mechanism::ScramSha512];

    /// As Kafka calls it.
    pub fn name(self) -> &'static str {
        match self {
            Mechanism::Plain => "PLAIN",
            Mechanism::ScramSha256 => "SCRAM-SHA-256",
            Mechanism::ScramSha512 => "SCRAM-SHA-512",
        }
    }
}
