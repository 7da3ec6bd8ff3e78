//! Real Apache Kafka brokers for tests: each is broker and controller in one process, on free ports of the loopback address. Several
//! replicate each other's topics.
//!
//! It ends with its [`Broker`], and when the process that started it is killed.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketType, sockopt};
use rustix::process::{Pid, Rlimit, Signal, kill_process, prlimit};
use tempfile::TempDir;

/// Time limit for a broker's first answer.
const START: Duration = Duration::from_secs(180);

/// Time until other brokers take over from a dead one.
const FAILOVER: &str = "broker.session.timeout.ms=4000\nbroker.heartbeat.interval.ms=1000\n";

/// The directory of this crate.
const HERE: &str = env!("CARGO_MANIFEST_DIR");

/// TLS and passwords of the guarded address.
#[derive(Clone, Debug)]
pub struct Guard {
    /// PEM: a certificate for `127.0.0.1` or `localhost`, and its PKCS #8 key.
    pub certificate: String,
    pub key: String,
    /// Names and passwords. The broker's settings decide what each user may do.
    pub users: Vec<(String, String)>,
}

/// Settings of a broker whose users have the rights that they are given, apart from those of the open address and `owner`.
pub const LEAST_RIGHTS: [(&str, &str); 2] = [
    (
        "authorizer.class.name",
        "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    ),
    ("super.users", "User:ANONYMOUS;User:owner"),
];

/// The resources of a right, and whether others whose names begin so are meant, as the protocol numbers them.
#[derive(Clone, Copy, Debug)]
pub enum Resource {
    Topic,
    TopicsFrom,
    GroupsFrom,
    TransactionsFrom,
}

impl Resource {
    fn numbers(self) -> [u8; 2] {
        match self {
            Resource::Topic => [2, 3],
            Resource::TopicsFrom => [2, 4],
            Resource::GroupsFrom => [3, 4],
            Resource::TransactionsFrom => [5, 4],
        }
    }
}

/// An operation of a right, as the protocol numbers it.
#[derive(Clone, Copy, Debug)]
pub enum Operation {
    Read = 3,
    Write = 4,
    Alter = 7,
    Describe = 8,
}

/// A port of the loopback address that is ours: bound as long as this lives, so that the kernel gives it to nobody else, and not
/// listened on, so that a broker can, which binds it with `SO_REUSEADDR` too.
#[derive(Debug)]
struct Port {
    number: u16,
    _socket: OwnedFd,
}

impl Port {
    fn bound() -> rustix::io::Result<Port> {
        let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None)?;
        sockopt::set_socket_reuseaddr(&socket, true)?;
        rustix::net::bind(&socket, &SocketAddr::from(([127, 0, 0, 1], 0)))?;
        let address = SocketAddr::try_from(rustix::net::getsockname(&socket)?)?;
        Ok(Port {
            number: address.port(),
            _socket: socket,
        })
    }
}

/// Ports of one broker of a cluster.
struct BrokerNode {
    /// From one on; the controllers have the same numbers.
    node: u32,
    port: u16,
    guarded: Option<u16>,
    controllers: Vec<u16>,
    /// Of the whole cluster.
    ports: Arc<[Port]>,
}

/// A running broker. Dropping it ends the process.
#[derive(Debug)]
pub struct Broker {
    jars: PathBuf,
    directory: TempDir,
    port: u16,
    guarded: Option<u16>,
    runner: Option<Child>,
    /// They stay its own while the process is down.
    _ports: Arc<[Port]>,
}

impl Broker {
    /// Starts a broker and waits until it answers.
    pub fn start() -> Broker {
        Broker::start_with(None, &[])
    }

    /// The same with further settings and, with `guard`, a second address that requires TLS and a password (SCRAM-SHA-256, SCRAM-SHA-512) or an
    /// unsigned token.
    pub fn start_with(guard: Option<&Guard>, settings: &[(&str, &str)]) -> Broker {
        let ports = free_ports(3);
        let place = BrokerNode {
            node: 1,
            port: ports[0].number,
            guarded: guard.map(|_| ports[2].number),
            controllers: vec![ports[1].number],
            ports,
        };
        let mut broker = Broker::prepared(&place, guard, settings);
        broker.run();
        broker.await_ready();
        broker
    }

    /// Starts several, and waits until all answer. Each message is on all of them, and acknowledged by two or more.
    pub fn start_cluster(count: usize) -> Vec<Broker> {
        let ports = free_ports(2 * count);
        let (own, controllers) = ports.split_at(count);
        let place = |(node, port): (u32, &Port)| BrokerNode {
            node,
            port: port.number,
            guarded: None,
            controllers: controllers.iter().map(|port| port.number).collect(),
            ports: ports.clone(),
        };
        let places = (1..).zip(own).map(place);
        let mut brokers: Vec<Broker> = places.map(|place| Broker::prepared(&place, None, &[])).collect();
        Broker::restart_all(&mut brokers);
        brokers
    }

    /// Starts all again that have ended. Most of a cluster must be there before one of it answers.
    pub fn restart_all(brokers: &mut [Broker]) {
        for broker in &mut *brokers {
            if broker.runner.is_none() {
                broker.run();
            }
        }
        brokers.iter_mut().for_each(Broker::await_ready);
    }

    /// A directory with its settings.
    fn prepared(place: &BrokerNode, guard: Option<&Guard>, settings: &[(&str, &str)]) -> Broker {
        let broker = Broker {
            jars: jars(),
            directory: TempDir::new().expect("a directory"),
            port: place.port,
            guarded: place.guarded,
            runner: None,
            _ports: place.ports.clone(),
        };
        let mut text = properties(broker.directory.path(), place);
        if place.controllers.len() > 1 {
            text += FAILOVER;
        }
        for (key, value) in settings {
            text += &format!("{key}={value}\n");
        }
        let mut format = String::new();
        if let Some(guard) = guard {
            let store = broker.file("store.pem");
            fs::write(&store, format!("{}{}", guard.key, guard.certificate)).expect("a key store");
            text += &format!(
                "ssl.keystore.type=PEM\nssl.keystore.location={}\n",
                store.display()
            );
            for (user, password) in &guard.users {
                for mechanism in ["SCRAM-SHA-256", "SCRAM-SHA-512"] {
                    format += &format!("--add-scram\n{mechanism}=[name={user},password={password}]\n");
                }
            }
        }
        fs::write(broker.file("server.properties"), text).expect("settings");
        fs::write(broker.file("format"), format).expect("settings");
        broker
    }

    /// The address that is open to all clients.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// The address that requires TLS and a password.
    pub fn guarded_address(&self) -> String {
        format!("localhost:{}", self.guarded.expect("a guarded broker"))
    }

    /// Gives a user rights, by a request to the open address.
    pub fn allow(&self, user: &str, rights: &[(Resource, &str, &[Operation])]) {
        let text = |text: &str| [&(text.len() as i16).to_be_bytes()[..], text.as_bytes()].concat();
        let mut creations = Vec::new();
        for (resource, name, operations) in rights {
            let [resource, pattern] = resource.numbers();
            for operation in *operations {
                let (name, principal) = (text(name), text(&format!("User:{user}")));
                // The last one: allowed.
                let end = [*operation as u8, 3];
                creations.push([&[resource], &name[..], &[pattern], &principal, &text("*"), &end].concat());
            }
        }
        // Version 1 of request 30 creates them. It has number 7, and no client's name.
        let head = [0, 30, 0, 1, 0, 0, 0, 7, 0xff, 0xff];
        let count = (creations.len() as i32).to_be_bytes();
        let request = [&head[..], &count, &creations.concat()].concat();
        let request = [&(request.len() as i32).to_be_bytes()[..], &request].concat();
        let mut stream = TcpStream::connect(self.address()).expect("a broker");
        stream.write_all(&request).expect("a request");
        let mut size = [0; 4];
        stream.read_exact(&mut size).expect("an answer");
        let mut answer = vec![0; i32::from_be_bytes(size) as usize];
        stream.read_exact(&mut answer).expect("an answer");
        // Its number, a delay, their count; and an error of each, which is zero, with an empty message.
        assert_eq!(answer[..4], [0, 0, 0, 7]);
        assert!(answer[12..].chunks(4).all(|one| one[..2] == [0, 0]), "{answer:?}");
    }

    /// Gives a user the documented rights of a merge of this topic and group.
    pub fn allow_merge(&self, user: &str, topic: &str, group: &str) {
        use Operation::{Describe, Read, Write};
        let control = format!("{topic}.control");
        let own = format!("{topic}.{group}.");
        let transactions = format!("{group}-");
        self.allow(
            user,
            &[
                (Resource::Topic, topic, &[Read, Describe]),
                (Resource::Topic, &control, &[Read, Describe]),
                (Resource::TopicsFrom, &own, &[Read, Write, Describe]),
                (Resource::GroupsFrom, group, &[Read]),
                (Resource::TransactionsFrom, &transactions, &[Write, Describe]),
            ],
        );
    }

    /// The directory of its logs.
    pub fn data(&self) -> PathBuf {
        self.file("data")
    }

    /// Its output.
    pub fn said(&self) -> String {
        fs::read_to_string(self.file("log")).unwrap_or_default()
    }

    /// Kills the process. Its files stay.
    pub fn kill(&mut self) {
        if self.is_running() {
            self.signal(Signal::KILL);
        }
        self.await_end();
    }

    /// Limits the size of every file that the process writes, until it is restarted.
    pub fn limit_files(&self, bytes: u64) {
        let limit = Rlimit {
            current: Some(bytes),
            maximum: Some(bytes),
        };
        prlimit(Some(self.pid()), rustix::process::Resource::Fsize, limit).expect("a limit");
    }

    /// Whether the process is running.
    pub fn is_running(&mut self) -> bool {
        let runner = self.runner.as_mut();
        runner.is_some_and(|runner| matches!(runner.try_wait(), Ok(None)))
    }

    /// Waits until the process ends without being killed.
    pub fn await_end(&mut self) {
        if let Some(mut runner) = self.runner.take() {
            // Keeps standard input open, so the runner does not remove the directory.
            let input = runner.stdin.take();
            runner.wait().expect("it ends");
            drop(input);
        }
    }

    /// Restarts it on the same ports with its data.
    pub fn restart(&mut self) {
        assert!(self.runner.is_none(), "it is running");
        self.run();
        self.await_ready();
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).expect("a broker");
    }

    fn pid(&self) -> Pid {
        let pid = fs::read_to_string(self.file("pid")).expect("the pid of a broker");
        let pid = pid.trim().parse().ok().and_then(Pid::from_raw);
        pid.expect("a pid")
    }

    fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn run(&mut self) {
        // Its earlier output does not show that it is ready now.
        let _ = fs::remove_file(self.file("log"));
        let _ = fs::remove_file(self.file("pid"));
        let runner = Command::new(Path::new(HERE).join("broker.sh"))
            .args([&self.jars, self.directory.path()])
            .stdin(Stdio::piped())
            .spawn();
        self.runner = Some(runner.expect("a shell"));
    }

    fn await_ready(&mut self) {
        let until = Instant::now() + START;
        while !(self.said().contains("Kafka Server started") && self.answers()) {
            let said = self.said();
            assert!(self.is_running(), "the broker ended: {said}");
            assert!(Instant::now() < until, "the broker is not ready: {said}");
            std::thread::sleep(Duration::from_millis(25));
        }
    }

    fn answers(&self) -> bool {
        TcpStream::connect(("127.0.0.1", self.port)).is_ok()
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        if let Some(mut runner) = self.runner.take() {
            drop(runner.stdin.take());
            let _ = runner.wait();
        }
    }
}

/// The address of a broker for all tests that do it no harm: the one that `WEIR_TEST_BROKER` names, which a run of many test
/// processes starts once, or one of this process.
pub fn shared() -> String {
    static OWN: OnceLock<Broker> = OnceLock::new();
    match std::env::var("WEIR_TEST_BROKER") {
        Ok(address) => address,
        Err(_) => OWN.get_or_init(Broker::start).address(),
    }
}

fn free_ports(count: usize) -> Arc<[Port]> {
    (0..count).map(|_| Port::bound().expect("a port")).collect()
}

/// The directory with the jars; fetches them if missing.
fn jars() -> PathBuf {
    let output = Command::new(Path::new(HERE).join("jars.sh"))
        .stderr(Stdio::piped())
        .output()
        .expect("a shell");
    if !output.status.success() {
        let _ = std::io::stderr().write_all(&output.stderr);
        panic!("no jars of Apache Kafka: scripts/install-test-deps.sh says what is missing");
    }
    PathBuf::from(String::from_utf8_lossy(&output.stdout).trim())
}

fn properties(directory: &Path, place: &BrokerNode) -> String {
    let BrokerNode { node, port, .. } = place;
    let guarded = place
        .guarded
        .map(|port| format!(",GUARDED://localhost:{port}"))
        .unwrap_or_default();
    let controller = place.controllers[*node as usize - 1];
    let voters = (1..).zip(&place.controllers);
    let voters: Vec<String> = voters
        .map(|(node, port): (u32, _)| format!("{node}@127.0.0.1:{port}"))
        .collect();
    let voters = voters.join(",");
    let copies = place.controllers.len();
    let in_sync = copies.div_ceil(2);
    let data = directory.join("data");
    let data = data.display();
    format!(
        "process.roles=broker,controller
node.id={node}
controller.quorum.voters={voters}
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}{guarded}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}{guarded}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,GUARDED:SASL_SSL
inter.broker.listener.name=PLAINTEXT
sasl.enabled.mechanisms=SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER
listener.name.guarded.scram-sha-256.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;
listener.name.guarded.scram-sha-512.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;
listener.name.guarded.oauthbearer.sasl.jaas.config=org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub=\"broker\";
log.dirs={data}
auto.create.topics.enable=false
default.replication.factor={copies}
min.insync.replicas={in_sync}
offsets.topic.replication.factor={copies}
offsets.topic.num.partitions=1
transaction.state.log.replication.factor={copies}
transaction.state.log.min.isr={in_sync}
transaction.state.log.num.partitions=1
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=1000
log.cleaner.threads=1
log.cleaner.dedupe.buffer.size=8388608
num.network.threads=2
num.io.threads=2
"
    )
}
