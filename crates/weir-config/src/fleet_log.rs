//! Connection to the log of a fleet: the same keys for publishing agents and for merges.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::outputs::{Files, SettingProblem};
use crate::setting::{PathUse, SettingType};
use crate::text::Secret;
use crate::{choices, settings};

settings! {
    /// The place of the log: files of this machine, or Apache Kafka.
    pub struct LogConnection {
        directory: Option<PathBuf> = "''"
            .path(PathUse::WriteBeneath)
            .effect("A directory with the log, for agents and a merge on one machine. weir creates it if it is missing.")
            .zero("Empty: the log is at `brokers`.")
            .change("to try a fleet on one machine, or if your agents all run there.");
        partitions: u32 = "1"
            .takes(SettingType::Integer { min: 1, max: 10_000 })
            .effect("Number of partitions of a log in a directory that weir creates. A topic of Kafka has the number that it was created with.")
            .change("if you merge with several processes.");
        brokers: Vec<String> = "[]"
            .takes(SettingType::List(&BROKER))
            .effect("Brokers of Apache Kafka, such as `kafka1:9092`. One reachable broker is enough: it names the others.")
            .zero("An empty list: the log is in `directory`.")
            .change("if your fleet has more than one machine.");
        topic: String = "weir"
            .takes(SettingType::Checked { allowed: "a name of at most 249 letters, digits, dots, - and _", check: is_topic })
            .effect("The topic of the records.")
            .change("if you have several fleets in one cluster.");
        tenant: String = "''"
            .takes(SettingType::Checked { allowed: "a text of at most 255 bytes without control characters", check: is_tenant })
            .effect("The tenant that owns the series. Series of different tenants are never merged.")
            .zero("Empty: there is one tenant, without a name.")
            .change("if several customers or teams share your log.");
        sasl: Sasl = "{}";
        tls: Tls = "{}";
        properties: BTreeMap<String, Secret> = "{}"
            .effect("Settings of the client library (librdkafka), such as `client.rack` or `session.timeout.ms`. They apply to every connection to the brokers, over the values of weir. Values are never shown.")
            .zero("An empty map: the values of weir and of the library.")
            .change("if your brokers or network need other values.");
    }
}

settings! {
    /// The log as those see it who read it together.
    pub struct LogReader {
        log: LogConnection = "{}".flat();
        group: String = "weir-merge"
            .takes(SettingType::Checked { allowed: "a text of 1 to 100 letters, digits and characters of `.-_`", check: is_group })
            .effect("The consumer group: processes of one group share the partitions. Its name is part of the names of the topics that they write, so two groups of one topic never meet.")
            .change("if you run several merges of the same topic.");
        static_member: bool = "false"
            .effect("This process is a static member of its groups, named after `hostname` and `state_path`: if it restarts within the session timeout (10 s, or `properties: {session.timeout.ms: ...}`), its partitions stay with it. When it stops, they wait for it for that long before other processes get them.")
            .change("if your merges have stable names, as the pods of a StatefulSet have, and restart often.");
    }
}

settings! {
    /// The identity of this process at the brokers.
    pub struct Sasl {
        mechanism: Mechanism = "none"
            .effect("The authentication mechanism. `plain` sends the password itself and `oauthbearer` a token, so use them only with TLS.")
            .change("if your brokers require authentication.");
        username: String = "''"
            .effect("The user name.")
            .change("if your brokers require authentication.");
        password: Secret = "''"
            .effect("The password. It is never shown.")
            .change("if your brokers require authentication.");
        password_file: String = "''"
            .effect("A file with the password. It is read again when it changes.")
            .zero("Empty: the password is not in a file.")
            .change("if you keep passwords in files.")
            .file_of("password");
        token_file: Option<PathBuf> = "''"
            .path(PathUse::Read)
            .effect("A file with the token for `oauthbearer`, as a projected token of Kubernetes or a helper for Amazon MSK writes it. It is read at each connection, and again before the token expires.")
            .zero("Empty: there is no token.")
            .change("if your brokers take tokens.");
    }
}

choices! {
    pub enum Mechanism {
        None: "none",
        Plain: "plain",
        ScramSha256: "scram-sha-256",
        ScramSha512: "scram-sha-512",
        OAuthBearer: "oauthbearer",
    }
}

settings! {
    /// Encryption of the connections to the brokers.
    pub struct Tls {
        enabled: bool = "false"
            .effect("Encrypts the connections and verifies the brokers' certificates. Setting any of the files below enables it too.")
            .change("if your brokers have certificates of a public authority.");
        ca_file: Option<PathBuf> = "''"
            .path(PathUse::Read)
            .effect("A PEM file with the certificate authorities to trust, instead of the system's.")
            .zero("Empty: the system's.")
            .change("if you have a private certificate authority.");
        certificate_file: Option<PathBuf> = "''"
            .path(PathUse::Read)
            .effect("A PEM file with the client certificate for brokers, followed by its intermediate certificates.")
            .zero("Empty: none is sent.")
            .change("if your brokers identify clients by their certificate.");
        key_file: Option<PathBuf> = "''"
            .path(PathUse::Read)
            .effect("A PEM file with the private key of `certificate_file`.")
            .change("if your brokers identify clients by their certificate.");
    }
}

const BROKER: SettingType = SettingType::Checked {
    allowed: "a broker such as kafka1:9092, 192.0.2.7:9092 or [fd00::7]:9092",
    check: is_broker,
};

/// Properties of the client library that have a setting of weir, or that exactly-once delivery depends on.
const REFUSED: [(&str, &str); 22] = [
    ("bootstrap.servers", "set `brokers`"),
    ("metadata.broker.list", "set `brokers`"),
    ("security.protocol", "set `tls` and `sasl`"),
    ("sasl.mechanism", "set `sasl.mechanism`"),
    ("sasl.mechanisms", "set `sasl.mechanism`"),
    ("sasl.username", "set `sasl.username`"),
    ("sasl.password", "set `sasl.password`"),
    ("ssl.ca.location", "set `tls.ca_file`"),
    ("ssl.certificate.location", "set `tls.certificate_file`"),
    ("ssl.key.location", "set `tls.key_file`"),
    ("group.id", "set `group`"),
    ("group.instance.id", "set `static_member`"),
    ("acks", EXACT),
    ("request.required.acks", EXACT),
    ("enable.idempotence", EXACT),
    ("transactional.id", EXACT),
    ("isolation.level", EXACT),
    ("enable.auto.commit", EXACT),
    ("enable.auto.offset.store", EXACT),
    ("auto.offset.reset", EXACT),
    ("enable.partition.eof", EXACT),
    ("partition.assignment.strategy", EXACT),
];

const EXACT: &str = "weir sets it, because no record may be lost or counted twice";

/// Leaves room for the names of topic and purpose.
const GROUP_BYTES_MAX: usize = 100;
const TENANT_BYTES_MAX: usize = 255;
const TOPIC_BYTES_MAX: usize = 249;

/// Whether this program was built with a client of Apache Kafka, for [`LogConnection::check`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KafkaClient {
    BuiltIn,
    Missing,
}

impl LogConnection {
    /// Reads the files that the settings name.
    pub fn read(&mut self, files: &mut Files<'_, '_, '_>) {
        let Sasl {
            password,
            password_file,
            ..
        } = &mut self.sasl;
        files.read("sasl.password_file", password, password_file);
    }

    /// Looks at what depends on each other.
    pub fn check(&self, client: KafkaClient) -> Result<(), SettingProblem> {
        match (&self.directory, &self.brokers[..]) {
            (None, []) => Err(SettingProblem::new(
                "directory",
                "is missing, and so is `brokers`; one of them must name the log",
            )),
            (Some(_), [_, ..]) => Err(SettingProblem::new(
                "brokers",
                "cannot be combined with `directory`: there is one log",
            )),
            (None, [_, ..]) if client == KafkaClient::Missing => Err(SettingProblem::new(
                "brokers",
                "needs a weir with the Kafka client, and this one was built without it: install the package or the image `weir-kafka` (docs/install.md), or use `directory`",
            )),
            (Some(_), []) => self.check_unused(),
            (None, [_, ..]) => self
                .sasl
                .check()
                .and_then(|()| self.tls.check())
                .and_then(|()| self.check_properties()),
        }
    }

    fn check_properties(&self) -> Result<(), SettingProblem> {
        for (name, reason) in REFUSED {
            if self.properties.contains_key(name) {
                let key = format!("properties.{name}");
                return Err(SettingProblem::new(key, format!("cannot be set here: {reason}")));
            }
        }
        Ok(())
    }

    /// A log in a directory has no connection that could be guarded.
    fn check_unused(&self) -> Result<(), SettingProblem> {
        let unused = |key: &str| {
            SettingProblem::new(
                key,
                "needs `brokers`: files in `directory` are guarded by their owner and mode",
            )
        };
        if self.sasl.mechanism != Mechanism::None {
            return Err(unused("sasl.mechanism"));
        }
        if !self.properties.is_empty() {
            return Err(unused("properties"));
        }
        match self.tls.is_on() {
            true => Err(unused("tls.enabled")),
            false => Ok(()),
        }
    }
}

impl Sasl {
    fn check(&self) -> Result<(), SettingProblem> {
        let problem = |key: &str, message: &str| Err(SettingProblem::new(format!("sasl.{key}"), message));
        match (self.mechanism, &self.token_file) {
            (Mechanism::OAuthBearer, None) => {
                return problem("token_file", "is missing; `mechanism: oauthbearer` needs it");
            }
            (Mechanism::OAuthBearer, Some(_)) => return Ok(()),
            (_, Some(_)) => return problem("token_file", "needs `mechanism: oauthbearer`"),
            (_, None) => {}
        }
        let is_on = self.mechanism != Mechanism::None;
        match (is_on, self.username.is_empty(), self.password.is_empty()) {
            (true, true, _) => problem("username", "is missing; `mechanism` needs it"),
            (true, _, true) => problem(
                "password",
                "is missing, and so is `password_file`; `mechanism` needs one of them",
            ),
            (false, false, _) => problem(
                "username",
                "needs `mechanism`: plain, scram-sha-256 or scram-sha-512",
            ),
            (false, _, false) => problem(
                "password",
                "needs `mechanism`: plain, scram-sha-256 or scram-sha-512",
            ),
            _ => Ok(()),
        }
    }
}

impl Tls {
    pub fn is_on(&self) -> bool {
        self.enabled
            || [&self.ca_file, &self.certificate_file, &self.key_file]
                .into_iter()
                .any(Option::is_some)
    }

    fn check(&self) -> Result<(), SettingProblem> {
        let problem = |key: &str, message: &str| Err(SettingProblem::new(format!("tls.{key}"), message));
        match (&self.certificate_file, &self.key_file) {
            (Some(_), None) => problem("certificate_file", "needs `key_file`, its private key"),
            (None, Some(_)) => problem(
                "key_file",
                "needs `certificate_file`, the certificate it belongs to",
            ),
            _ => Ok(()),
        }
    }
}

fn is_broker(text: &str) -> bool {
    let Some((host, port)) = text.rsplit_once(':') else {
        return false;
    };
    let is_port = port.parse::<u16>().is_ok_and(|port| port > 0);
    let address = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    is_port
        && match address {
            Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
            None => {
                !host.is_empty()
                    && host
                        .bytes()
                        .all(|byte| byte.is_ascii_alphanumeric() || b".-_".contains(&byte))
            }
        }
}

fn is_topic(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
    (1..=TOPIC_BYTES_MAX).contains(&text.len()) && text.bytes().all(allowed) && !matches!(text, "." | "..")
}

fn is_tenant(text: &str) -> bool {
    text.len() <= TENANT_BYTES_MAX && !text.chars().any(char::is_control)
}

/// Its name is part of the names of topics.
fn is_group(text: &str) -> bool {
    is_topic(text) && text.len() <= GROUP_BYTES_MAX
}
