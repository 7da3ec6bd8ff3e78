//! Place of a log, and how to connect.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// A log of one machine, or topics of Apache Kafka.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "a process has one")]
pub enum Connection {
    /// A directory. It is created with this many partitions if missing.
    Directory {
        path: PathBuf,
        partitions: u32,
    },
    Kafka(Brokers),
}

/// Brokers, topic and group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Brokers {
    /// `host:port` of some brokers. The client learns the others.
    pub addresses: Vec<String>,
    /// The topic of records. The other topics have its name with a suffix: `results`, `snapshots`, `quarantine`, `control`.
    pub topic: String,
    /// The consumer group of merging processes. Agents join no group.
    pub group: String,
    /// Partitions of topics to create. Existing topics keep theirs.
    pub partitions: u32,
    /// Replication factor of topics to create. `None`: the brokers' default.
    pub replicas: Option<u32>,
    pub tls: Option<Tls>,
    pub sasl: Option<Sasl>,
    /// Timeout of one call.
    pub timeout: Duration,
    /// Longest silence of an owner before its partitions go to others. Brokers accept 6 s to 5 min by default.
    pub session_timeout: Duration,
    /// Names a static member of the groups: its partitions stay with it while it restarts within that time.
    pub instance: Option<String>,
    /// Bytes that the client library reads ahead, of this many partitions together.
    pub read_ahead: usize,
    /// Further settings of the client library. They come last.
    pub properties: Properties,
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
            instance: None,
            read_ahead: 64 << 20,
            properties: Properties::default(),
        }
    }
}

/// TLS to the brokers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tls {
    /// PEM file with the certificate authorities for brokers. `None`: those of the system.
    pub authorities: Option<PathBuf>,
    /// PEM files with the client certificate and its key.
    pub certificate: Option<(PathBuf, PathBuf)>,
}

/// Names and values. Some are secret.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Properties(pub Vec<(String, String)>);

impl fmt::Debug for Properties {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_list()
            .entries(self.0.iter().map(|(name, _)| name))
            .finish()
    }
}

/// User name and password, or a file with a token.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Sasl {
    pub mechanism: Mechanism,
    pub user: String,
    pub password: String,
    /// For [`Mechanism::OAuthBearer`].
    pub token_file: Option<PathBuf>,
}

impl fmt::Debug for Sasl {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Sasl({:?}, {:?})", self.mechanism, self.user)
    }
}

/// SASL mechanism.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mechanism {
    Plain,
    #[default]
    ScramSha256,
    ScramSha512,
    OAuthBearer,
}

impl Mechanism {
    pub const ALL: [Mechanism; 4] = [
        Mechanism::Plain,
        Mechanism::ScramSha256,
        Mechanism::ScramSha512,
        Mechanism::OAuthBearer,
    ];

    /// Kafka's name of the mechanism.
    pub fn name(self) -> &'static str {
        match self {
            Mechanism::Plain => "PLAIN",
            Mechanism::ScramSha256 => "SCRAM-SHA-256",
            Mechanism::ScramSha512 => "SCRAM-SHA-512",
            Mechanism::OAuthBearer => "OAUTHBEARER",
        }
    }
}
