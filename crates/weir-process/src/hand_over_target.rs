//! Takes over from the running process. `docs/restart.md` has the order of steps.

use std::fs::File;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags};
use weir_ingest::ListenerSettings;
use weir_listener::{BoundSocket, Framing, ListenerConfig, ListenerId, Monotonic, PassedConnection};

use crate::channel::{Channel, has_ended};
use crate::continuity;
use crate::kept::PassedSockets;
use crate::state_dir;
use weir_agent::hand_over::{
    self, Account, Greeting, HandOverMessage, HandOverRequest, HandedConnection, HandedListener, Hello, Side,
    WayOut,
};
use weir_agent::life::Resumed;
use weir_agent::state::{StateDir, StoredAgent};
use weir_status::bad_bytes::text;
use weir_status::status::HandOverStatus;
use weir_system::config::Config;
use weir_system::failure::Failure;

/// Interval of looking whether a process listens or has unlocked its directory.
const LOOK: Duration = Duration::from_millis(10);

/// Time for the kernel to close the sockets of a process that was killed.
const MOMENT: Timespec = Timespec {
    tv_sec: 1,
    tv_nsec: 0,
};

/// The state of the directory when a process is to take over.
pub enum Begun {
    /// A running process, which hands over.
    Target(Box<HandOverTarget>),
    /// None. The directory is locked for this process, which may have the sockets of a process that was killed meanwhile.
    Alone(StateDir, PassedSockets),
}

/// The connection to the running process.
pub struct HandOverTarget {
    channel: Channel,
    path: PathBuf,
    before: Greeting,
    process: Option<OtherProcess>,
    sockets: PassedSockets,
    admin: Vec<OwnedFd>,
}

/// The result of a hand-over.
pub enum Received {
    /// With the socket for the next process that takes over.
    State(Box<TakenOver>, UnixListener),
    /// The running process was killed. The directory is locked for this process.
    Alone(StateDir),
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

/// The end of a request for a hand-over.
enum Asked {
    Answered(Box<HandOverTarget>),
    /// The process has ended. Its sockets as far as it sent them.
    Ended(Option<OtherProcess>, PassedSockets),
}

/// A step that failed.
struct StepError {
    what: &'static str,
    error: io::Error,
}

impl HandOverTarget {
    /// Requests a hand-over from the process that uses the state directory. A process that has locked the directory may not listen yet, or
    /// be about to end: this waits for either.
    pub fn begin(config: &Config) -> Result<Begun, Failure> {
        let Some(path) = &config.running.state_path else {
            return Err(Failure::usage(
                "--take-over: state_path is not set; the running process is found through it",
            ));
        };
        let mut ended = None;
        let mut until = Instant::now() + hand_over::STEP_MAX;
        let mut is_told = false;
        loop {
            match UnixStream::connect(hand_over::socket_path(path)) {
                Ok(stream) => match Self::ask(stream, path, config.resources.memory)? {
                    Asked::Answered(target) => return Ok(Begun::Target(target)),
                    Asked::Ended(process, sockets) => {
                        if ended.replace((process, sockets)).is_none() {
                            until = Instant::now() + hand_over::STEP_MAX;
                        }
                    }
                },
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused
                    ) => {}
                Err(error) => return Err(failed("the running process cannot be reached", &error)),
            }
            if let Some(directory) = state_dir::open(path)? {
                let Some((process, sockets)) = ended else {
                    tracing::info!(
                        "--take-over: no weir runs in {}; starting normally",
                        path.display()
                    );
                    return Ok(Begun::Alone(directory, PassedSockets::default()));
                };
                tracing::warn!("{ENDED}");
                wait_for_end(process.as_ref());
                return Ok(Begun::Alone(directory, sockets));
            }
            if Instant::now() >= until {
                return Err(state_dir::in_use(path));
            }
            if !std::mem::replace(&mut is_told, true) {
                tracing::info!(
                    "--take-over: the weir that uses {} does not listen yet, or ends; waiting for it",
                    path.display()
                );
            }
            std::thread::sleep(LOOK);
        }
    }

    fn ask(stream: UnixStream, path: &Path, bytes_max: u64) -> Result<Asked, Failure> {
        let begun = || {
            let channel = Channel::new(stream, Side::New, hand_over::PREPARATION_MAX, bytes_max, None)?;
            let peer = channel.peer()?;
            if !peer.is_trusted() {
                return Err(io::Error::other("it belongs to another user"));
            }
            Ok((channel, peer))
        };
        let (channel, peer) = begun().map_err(|error| failed("the running process", &error))?;
        let process = OtherProcess::of(peer.pid);
        let (mut sockets, mut admin) = (PassedSockets::default(), Vec::new());
        let asked = (|| {
            let hello = serde_json::to_vec(&Hello::new(HandOverRequest::TakeOver))?;
            say(&channel, HandOverMessage::Hello, &hello)?;
            let before: Greeting = channel.expect(HandOverMessage::Greeting)?.json()?;
            receive_sockets(&channel, &mut sockets, &mut admin)?;
            Ok(before)
        })();
        match asked {
            Ok(before) => Ok(Asked::Answered(Box::new(HandOverTarget {
                channel,
                path: path.to_owned(),
                before,
                process,
                sockets,
                admin,
            }))),
            Err(error) if channel.way_out(&error) == WayOut::StartAlone => Ok(Asked::Ended(process, sockets)),
            Err(error) => Err(failed("the running process", &error)),
        }
    }

    /// The listening sockets.
    pub fn sockets(&mut self) -> PassedSockets {
        std::mem::take(&mut self.sockets)
    }

    /// Its admin socket at an address of this process. The others close with this value.
    pub fn admin(&mut self, wanted: SocketAddr) -> Option<TcpListener> {
        let is_same = |bound: SocketAddr| bound == wanted || wanted.port() == 0 && bound.ip() == wanted.ip();
        let mut addresses = self.admin.iter().map(local_address);
        let at = addresses.position(|bound| bound.is_some_and(is_same))?;
        Some(TcpListener::from(self.admin.swap_remove(at)))
    }

    /// Everything is prepared: from now on no process receives, until [`TakenOver::running`].
    pub fn receive(self, config: &Config) -> Result<Received, Failure> {
        let agent = state_dir::next_agent(&self.path).inspect_err(|failure| {
            // The other process passes it on to the requester of this one.
            self.channel
                .send_last(HandOverMessage::Refused, &failure.to_string());
        })?;
        match self.receive_all(config, agent) {
            Ok(state) => {
                let taken = TakenOver {
                    channel: self.channel,
                    before: self.before,
                    resumed: state.resumed,
                    connections: state.connections,
                    account: state.account,
                };
                Ok(Received::State(Box::new(taken), state.listener))
            }
            Err(step) if self.channel.way_out(&step.error) == WayOut::StartAlone => {
                self.continue_alone().map(Received::Alone)
            }
            Err(step) => Err(failed(step.what, &step.error)),
        }
    }

    fn receive_all(&self, config: &Config, agent: StoredAgent) -> Result<ReceivedState, StepError> {
        let step = |what| move |error| StepError { what, error };
        let parts = self.receive_parts().map_err(step("its state was not received"))?;
        let missing = |what: &str| StepError {
            what: "its state was not received",
            error: io::Error::other(format!("{what} is missing")),
        };
        let lock = parts.lock.ok_or_else(|| missing("the lock of the directory"))?;
        let listener = parts
            .listener
            .ok_or_else(|| missing("the socket for the next process"))?;
        let state = parts.state.ok_or_else(|| missing("its file"))?;
        let directory = state_dir::taken_over(&self.path, agent, lock);
        let resumed = continuity::passed(config, directory, File::from(state))
            .map_err(|reason| io::Error::other(reason.to_string()))
            .map_err(step("its state cannot be continued"))?;
        self.commit()
            .map_err(step("the running process refuses to hand over"))?;
        Ok(ReceivedState {
            resumed,
            listener: UnixListener::from(listener),
            connections: parts.connections,
            account: parts.account,
        })
    }

    fn receive_parts(&self) -> io::Result<ReceivedParts> {
        self.channel.set_limit(hand_over::STATE_MAX);
        say(&self.channel, HandOverMessage::Begin, &[])?;
        let mut parts = ReceivedParts::default();
        loop {
            let message = self.channel.receive()?;
            match message.is {
                HandOverMessage::Again => parts.connections.clear(),
                HandOverMessage::Connections => {
                    let heads: Vec<HandedConnection> =
                        postcard::from_bytes(&message.body).map_err(io::Error::other)?;
                    parts
                        .connections
                        .extend(heads.into_iter().zip(message.descriptors));
                }
                HandOverMessage::State => parts.state = message.descriptors.into_iter().next(),
                HandOverMessage::End => {
                    parts.account = message.json()?;
                    let mut descriptors = message.descriptors.into_iter();
                    (parts.lock, parts.listener) = (descriptors.next(), descriptors.next());
                    return Ok(parts);
                }
                _ => return Err(message.unexpected()),
            }
        }
    }

    fn commit(&self) -> io::Result<()> {
        self.channel.set_limit(hand_over::STEP_MAX);
        say(&self.channel, HandOverMessage::Commit, &[])?;
        self.channel.expect(HandOverMessage::Go).map(drop)
    }

    /// Locks the directory of a process that was killed. The lock proves its end.
    fn continue_alone(&self) -> Result<StateDir, Failure> {
        let until = Instant::now() + hand_over::STEP_MAX;
        loop {
            if let Some(directory) = state_dir::open(&self.path)? {
                tracing::warn!("{ENDED}");
                wait_for_end(self.process.as_ref());
                return Ok(directory);
            }
            if Instant::now() >= until {
                return Err(state_dir::in_use(&self.path));
            }
            std::thread::sleep(LOOK);
        }
    }
}

const ENDED: &str =
    "--take-over: the running process ended before it handed over; starting with its saved state";

/// Sends a message that has an answer. If the other process has closed the connection, it may have sent the reason before.
fn say(channel: &Channel, message: HandOverMessage, body: &[u8]) -> io::Result<()> {
    match channel.send(message, body, &[]) {
        Err(error) if has_ended(&error) => Ok(()),
        sent => sent,
    }
}

/// The address of a socket of IPv4 or IPv6.
fn local_address(socket: &OwnedFd) -> Option<SocketAddr> {
    SocketAddr::try_from(rustix::net::getsockname(socket).ok()?).ok()
}

fn receive_sockets(
    channel: &Channel,
    sockets: &mut PassedSockets,
    admin: &mut Vec<OwnedFd>,
) -> io::Result<()> {
    loop {
        let message = channel.receive()?;
        match message.is {
            HandOverMessage::Sockets => {
                let of: HandedListener = message.json()?;
                for socket in message.descriptors {
                    sockets.add_of_process(&of, socket);
                }
            }
            HandOverMessage::Admin => admin.extend(message.descriptors),
            HandOverMessage::SocketsEnd => return Ok(()),
            _ => return Err(message.unexpected()),
        }
    }
}

/// Another process, identified for its whole life.
struct OtherProcess(OwnedFd);

impl OtherProcess {
    /// `None` if the kernel does not tell: it has ended, or runs in another namespace.
    fn of(pid: i32) -> Option<OtherProcess> {
        let pid = Pid::from_raw(pid.max(0))?;
        rustix::process::pidfd_open(pid, PidfdFlags::empty())
            .ok()
            .map(OtherProcess)
    }
}

/// Waits for the last moment of a process that has lost its lock: until then it may have sockets whose addresses this one binds.
fn wait_for_end(process: Option<&OtherProcess>) {
    if let Some(OtherProcess(process)) = process {
        let _ = rustix::event::poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&MOMENT));
    }
}

#[derive(Default)]
struct ReceivedParts {
    connections: Vec<(HandedConnection, OwnedFd)>,
    state: Option<OwnedFd>,
    account: Account,
    lock: Option<OwnedFd>,
    listener: Option<OwnedFd>,
}

struct ReceivedState {
    resumed: Resumed,
    listener: UnixListener,
    connections: Vec<(HandedConnection, OwnedFd)>,
    account: Account,
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
                    text(head.address.as_bytes())
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
        self.channel.set_limit(hand_over::STEP_MAX);
        let sent = self.channel.send(HandOverMessage::Running, wants, &[]);
        self.channel.set_limit(hand_over::PREPARATION_MAX);
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
            Side::New,
            hand_over::UPGRADE_MAX,
            hand_over::GREETING_BYTES_MAX,
            None,
        )?;
        channel.send_json(HandOverMessage::Hello, &Hello::new(HandOverRequest::Upgrade))?;
        channel.expect(HandOverMessage::Done)
    })();
    let done = asked.map_err(|error| match has_ended(&error) {
        true => failed(
            "the running process",
            &"it ended before it handed over; its log and that of the new one say more",
        ),
        false => failed("the running process continues", &error),
    })?;
    Ok(text(&done.body))
}
