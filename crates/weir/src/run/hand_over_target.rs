//! Takes over from the running process. `docs/restart.md` has the order of steps.

use std::fs::File;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use weir_ingest::ListenerSettings;
use weir_listener::{BoundSocket, Framing, ListenerConfig, ListenerId, Monotonic, PassedConnection};

use super::kept::PassedSockets;
use super::resume::Resumed;
use crate::admin::status::HandOverStatus;
use crate::config::Config;
use crate::failure::Failure;
use crate::hand_over::{
    self, Account, Channel, Greeting, HandOverRequest, HandedConnection, HandedListener, Hello,
};
use crate::state::StateDir;

/// The connection to the running process.
pub struct HandOverTarget {
    channel: Channel,
    path: PathBuf,
    before: Greeting,
    sockets: PassedSockets,
    admin: Option<OwnedFd>,
}

/// The state received from it.
pub struct TakenOver {
    channel: Channel,
    before: Greeting,
    pub resumed: Resumed,
    connections: Vec<(HandedConnection, OwnedFd)>,
    account: Account,
}

/// Summary for the log.
#[derive(Clone, Copy, Debug)]
pub struct TakeOverSummary {
    pub pause_seconds: f64,
    pub account: Account,
}

impl HandOverTarget {
    /// Requests a hand-over from the process that uses the state directory. `None` if there is none.
    pub fn begin(config: &Config) -> Result<Option<HandOverTarget>, Failure> {
        let Some(path) = &config.running.state_path else {
            return Err(Failure::usage(
                "--take-over: state_path is not set; the running process is found through it",
            ));
        };
        let stream = match UnixStream::connect(hand_over::socket_path(path)) {
            Ok(stream) => stream,
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused
                ) =>
            {
                tracing::info!(
                    "--take-over: no weir runs in {}; starting normally",
                    path.display()
                );
                return Ok(None);
            }
            Err(error) => return Err(failed("the running process cannot be reached", &error)),
        };
        let bytes_max = config.resources.memory;
        let asked = (|| {
            let channel = Channel::new(stream, hand_over::STEP_MAX, bytes_max)?;
            if !channel.peer()?.is_trusted() {
                return Err(io::Error::other("it belongs to another user"));
            }
            channel.send_json(hand_over::HELLO, &Hello::new(HandOverRequest::TakeOver))?;
            let before: Greeting = channel.expect(hand_over::GREETING)?.json()?;
            Ok((channel, before))
        })();
        let (channel, before) = asked.map_err(|error| failed("the running process", &error))?;
        let mut target = HandOverTarget {
            channel,
            path: path.clone(),
            before,
            sockets: PassedSockets::default(),
            admin: None,
        };
        target
            .receive_sockets()
            .map_err(|error| failed("its sockets were not received", &error))?;
        Ok(Some(target))
    }

    fn receive_sockets(&mut self) -> io::Result<()> {
        loop {
            let message = self.channel.receive()?;
            match message.tag {
                hand_over::SOCKETS => {
                    let of: HandedListener = message.json()?;
                    for socket in message.descriptors {
                        self.sockets.add_of_process(&of, socket);
                    }
                }
                hand_over::ADMIN => self.admin = message.descriptors.into_iter().next(),
                hand_over::SOCKETS_END => return Ok(()),
                hand_over::REFUSED => {
                    return Err(io::Error::other(
                        String::from_utf8_lossy(&message.body).into_owned(),
                    ));
                }
                tag => {
                    return Err(io::Error::other(format!(
                        "unexpected message {tag} among the sockets"
                    )));
                }
            }
        }
    }

    /// The listening sockets.
    pub fn sockets(&mut self) -> PassedSockets {
        std::mem::take(&mut self.sockets)
    }

    /// Its admin socket, if this process has the same address.
    pub fn admin(&mut self, wanted: SocketAddr) -> Option<TcpListener> {
        let listener = TcpListener::from(self.admin.take()?);
        let bound = listener.local_addr().ok()?;
        let is_same = bound == wanted || wanted.port() == 0 && bound.ip() == wanted.ip();
        is_same.then_some(listener)
    }

    /// Everything is prepared: from now on no process receives, until [`TakenOver::running`].
    pub fn receive(self, config: &Config) -> Result<TakenOver, Failure> {
        let agent = StateDir::next_agent(&self.path).inspect_err(|failure| {
            // The other process passes it on to the requester of this one.
            let _ = self
                .channel
                .send(hand_over::REFUSED, failure.to_string().as_bytes(), &[]);
        })?;
        let mut given = ReceivedState::default();
        self.receive_state(&mut given)
            .map_err(|error| failed("its state was not received", &error))?;
        let missing = |what: &str| failed("its state was not received", &format!("{what} is missing"));
        let lock = given.lock.ok_or_else(|| missing("the lock of the directory"))?;
        let state = given.state.ok_or_else(|| missing("its file"))?;
        let directory = StateDir::taken_over(&self.path, agent, File::from(lock));
        let resumed = Resumed::passed(config, directory, File::from(state))
            .map_err(|reason| failed("its state cannot be continued", &reason))?;
        let taken = TakenOver {
            channel: self.channel,
            before: self.before,
            resumed,
            connections: given.connections,
            account: given.account,
        };
        let committed = (|| {
            taken.channel.send(hand_over::COMMIT, &[], &[])?;
            taken.channel.expect(hand_over::GO)
        })();
        committed.map_err(|error| failed("the running process refuses to hand over", &error))?;
        Ok(taken)
    }

    fn receive_state(&self, given: &mut ReceivedState) -> io::Result<()> {
        self.channel.send(hand_over::BEGIN, &[], &[])?;
        loop {
            let message = self.channel.receive()?;
            match message.tag {
                hand_over::AGAIN => given.connections.clear(),
                hand_over::CONNECTIONS => {
                    let heads: Vec<HandedConnection> =
                        postcard::from_bytes(&message.body).map_err(io::Error::other)?;
                    given
                        .connections
                        .extend(heads.into_iter().zip(message.descriptors));
                }
                hand_over::STATE => given.state = message.descriptors.into_iter().next(),
                hand_over::END => {
                    given.account = message.json()?;
                    given.lock = message.descriptors.into_iter().next();
                    return Ok(());
                }
                hand_over::REFUSED => {
                    return Err(io::Error::other(
                        String::from_utf8_lossy(&message.body).into_owned(),
                    ));
                }
                tag => return Err(io::Error::other(format!("unexpected message {tag} in the state"))),
            }
        }
    }
}

#[derive(Default)]
struct ReceivedState {
    connections: Vec<(HandedConnection, OwnedFd)>,
    state: Option<OwnedFd>,
    account: Account,
    lock: Option<OwnedFd>,
}

impl TakenOver {
    /// Its connections, for each worker those of its listeners. The others end.
    pub fn connections(
        &mut self,
        planned: &[(ListenerConfig, ListenerSettings)],
        of_workers: &[Vec<(BoundSocket, ListenerId)>],
    ) -> Vec<Vec<PassedConnection>> {
        let mut connections: Vec<Vec<PassedConnection>> = of_workers.iter().map(|_| Vec::new()).collect();
        for (number, (head, fd)) in self.connections.drain(..).enumerate() {
            let listener = planned
                .iter()
                .position(|(listener, _)| listener.address.to_string() == head.address);
            let Some(listener) = listener.map(|listener| ListenerId(listener as u16)) else {
                tracing::warn!(
                    "a connection to {} ends: no listener is configured for it",
                    head.address
                );
                continue;
            };
            let has_it =
                |sockets: &Vec<(BoundSocket, ListenerId)>| sockets.iter().any(|(_, id)| *id == listener);
            let workers: Vec<usize> = (0..of_workers.len())
                .filter(|worker| has_it(&of_workers[*worker]))
                .collect();
            if let Some(worker) = workers.get(number % workers.len().max(1)) {
                connections[*worker].push(PassedConnection {
                    listener,
                    fd,
                    framing: match head.lengths {
                        true => Framing::LengthPrefixed,
                        false => Framing::Newline,
                    },
                    partial: head.partial,
                    skipping: head.skipping,
                });
            }
        }
        connections
    }

    /// The workers read, so the previous process ends. If it sends its history first, that arrives on the returned channel.
    pub fn running(self, wants_history: bool) -> (TakeOverSummary, Option<Channel>) {
        let summary = TakeOverSummary {
            pause_seconds: Monotonic::now().0.saturating_sub(self.account.since) as f64 / 1e9,
            account: self.account,
        };
        let wants: &[u8] = if wants_history {
            hand_over::WANTS_HISTORY
        } else {
            &[]
        };
        let sent = self.channel.send(hand_over::RUNNING, wants, &[]);
        if let Err(error) = &sent {
            tracing::error!("hand-over: the previous process ended without waiting for this one: {error}");
        }
        let Account {
            connections,
            encrypted,
            ..
        } = summary.account;
        tracing::info!(
            "hand-over: took over from weir {} (process {}), with {connections} connections; receiving paused for {:.1} ms, and \
             {encrypted} TLS connections ended",
            self.before.weir,
            self.before.pid,
            summary.pause_seconds * 1e3
        );
        (summary, (wants_history && sent.is_ok()).then_some(self.channel))
    }
}

impl From<TakeOverSummary> for HandOverStatus {
    fn from(summary: TakeOverSummary) -> Self {
        HandOverStatus {
            completed: 1,
            pause_seconds: summary.pause_seconds,
            connections: summary.account.connections,
            connections_ended: summary.account.encrypted,
            ..HandOverStatus::default()
        }
    }
}

fn failed(what: &str, error: &dyn std::fmt::Display) -> Failure {
    Failure::runtime(format!("--take-over: {what}: {error}"))
}

/// Asks the process that uses the directory to start the program on disk and hand over to it. Returns the new process's id.
pub fn upgrade(directory: &Path) -> Result<String, Failure> {
    let failed =
        |what: &str, error: &dyn std::fmt::Display| Failure::runtime(format!("upgrade: {what}: {error}"));
    let path = hand_over::socket_path(directory);
    let stream = UnixStream::connect(&path)
        .map_err(|error| failed(&format!("no weir can be reached at {}", path.display()), &error))?;
    let asked = (|| {
        let channel = Channel::new(
            stream,
            2 * hand_over::PREPARATION_MAX,
            hand_over::GREETING_BYTES_MAX,
        )?;
        channel.send_json(hand_over::HELLO, &Hello::new(HandOverRequest::Upgrade))?;
        channel.expect(hand_over::DONE)
    })();
    let done = asked.map_err(|error| failed("the running process continues", &error))?;
    Ok(String::from_utf8_lossy(&done.body).into_owned())
}
