//! Hands over to another process, and continues if that fails. `docs/restart.md` has the order of steps.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use weir_ingest::{Command, Freeze, SavedBucket};
use weir_listener::{EventLoop, Framing, ListenerId, Monotonic};

use crate::agent::Agent;
use crate::channel::{Channel, DESCRIPTORS_MAX};
use crate::continuity;
use crate::starter::Starter;
use crate::state_dir;
use weir_admin::Gate;
use weir_agent::hand_over::{
    self, Account, Greeting, HandOverMessage, HandOverRequest, HandedConnection, HandedListener, Hello, Side,
    WayOut,
};
use weir_agent::life::LifeState;
use weir_agent::state::TransferWriter;
use weir_system::config::Config;
use weir_system::notify::Notify;

/// Time to wait for open requests. After it the new process repeats them.
const UNDER_WAY_MAX: Duration = Duration::from_secs(2);

/// Time limit for relays to send their lines.
const RELAYS_MAX: Duration = Duration::from_secs(1);

/// Time to wait for open requests with columns. After it their payloads are refused, and clients send them to the new process.
const COLUMNS_MAX: Duration = Duration::from_secs(1);

/// Time limit for connections with columns to end after the new process has started.
const CONNECTIONS_MAX: Duration = Duration::from_secs(5);

/// Time limit for requests to the admin address after the new process has started.
const REQUESTS_MAX: Duration = Duration::from_secs(2);

/// Interval of looking for the stop while this process's own threads are waited for.
const LOOK: Duration = Duration::from_millis(50);

/// Connections that may wait for the hand-over in progress.
const WAITING_MAX: i32 = 128;

/// Workers may stop in different buckets; then they continue for a moment and stop again.
const ATTEMPTS_MAX: usize = 20;

/// The running process's inputs of a hand-over.
pub struct HandOverSource {
    pub agent: Arc<Agent>,
    /// The socket in the state directory. It passes to the next process with the lock.
    pub listener: Option<UnixListener>,
    pub notify: Arc<Notify>,
    /// The sockets of the admin address.
    pub admin: Option<(Vec<OwnedFd>, Gate)>,
    pub starter: Option<Starter>,
    /// The requester of the new process, which waits for the result.
    pub asked: Mutex<Vec<Channel>>,
    /// A process was started, and neither took over nor failed yet.
    pub is_awaited: AtomicBool,
    /// Signalled when another process has taken over.
    pub taken_over: tokio::sync::mpsc::Sender<()>,
}

/// The state handed over, and the further wishes of the new process.
struct StateTransfer {
    account: Account,
    wants_history: bool,
}

/// State that the next process continues, and its buckets that are not written there.
struct FrozenState {
    transfer: Arc<Mutex<TransferWriter>>,
    workers: Vec<SavedBucket>,
}

/// Why this process continues instead.
#[derive(Debug, thiserror::Error)]
enum HandOverError {
    #[error("this process is stopping")]
    Stopping,
    #[error(
        "weir {} speaks version {} of the hand-over and reads state up to version {}; this is weir {}, which speaks {} and \
         writes {}: stop this one and start that one",
        .0.weir,
        .0.protocol,
        .0.state,
        env!("CARGO_PKG_VERSION"),
        hand_over::PROTOCOL,
        weir_agent::state::VERSION
    )]
    OtherVersion(Hello),
    #[error("{what}: {error}")]
    Step {
        what: &'static str,
        #[source]
        error: io::Error,
    },
    #[error("ended buckets are not delivered in time")]
    BucketsLate,
    #[error("the workers are in different buckets")]
    DifferentBuckets,
    #[error("the state directory does not have this process's own files yet, or cannot be written")]
    FilesLate,
    #[error("a worker does not stop in time")]
    WorkerLate,
}

/// Workers that are stopped until this is dropped, or to the end of the process once it was sent.
struct StoppedWorkers {
    ends: Vec<Sender<()>>,
}

/// Listens in the directory for processes that want to take over. Call with the directory locked, and before anything says that this process
/// runs: those that connect are served once it does.
pub fn listen(config: &Config) -> Option<UnixListener> {
    let directory = config.running.state_path.as_deref()?;
    let bound = || {
        let path = hand_over::socket_path(directory);
        // This process owns the directory, so the earlier owner of the file has ended.
        let _ = std::fs::remove_file(&path);
        bind_private(&path)
    };
    let warn = |error: &io::Error| {
        tracing::warn!(
            "state_path: {}: another process cannot take over: {error}",
            directory.display()
        );
    };
    bound().inspect_err(warn).ok()
}

/// Makes this process the one that a socket from the previous process belongs to, for those that connect from now on.
pub fn own(listener: UnixListener) -> UnixListener {
    if let Err(error) = rustix::net::listen(&listener, WAITING_MAX) {
        tracing::debug!("the hand-over socket still names the previous process: {error}");
    }
    listener
}

impl HandOverSource {
    /// Starts to serve the socket, if there is one.
    pub fn start(self: &Arc<Self>) {
        if self.listener.is_none() {
            return;
        }
        let source = self.clone();
        let thread = std::thread::Builder::new().name("hand-over".into());
        if let Err(error) = thread.spawn(move || source.watch()) {
            tracing::warn!("another process cannot take over: a thread cannot be started: {error}");
        }
    }

    /// Serves everyone who connects, and notices that a started process has ended before it took over. Connections come first: a process
    /// that fails while it takes over has a better reason there than its exit code. Ends when a process has taken over: that one serves the
    /// others.
    fn watch(&self) {
        let Some(listener) = &self.listener else { return };
        let mut starter = self.starter.as_ref();
        loop {
            let mut polled = vec![PollFd::new(listener, PollFlags::IN)];
            polled.extend(starter.map(|starter| PollFd::new(starter, PollFlags::IN)));
            let ready = rustix::event::poll(&mut polled, None);
            let connected = !polled[0].revents().is_empty();
            if ready.is_ok() && !connected {
                // An error means that the starter has ended.
                match starter.map(Starter::wait) {
                    Some(Ok(ended)) => ended.iter().for_each(|how| self.started_process_ended(how)),
                    _ => starter = None,
                }
                continue;
            }
            match ready.map_err(io::Error::from).and_then(|_| listener.accept()) {
                Ok((stream, _)) => {
                    if self.serve(stream) {
                        return;
                    }
                }
                // Out of descriptors or memory, perhaps temporarily.
                Err(_) => std::thread::sleep(Duration::from_millis(100)),
            }
        }
    }

    fn started_process_ended(&self, how: &str) {
        // A process that stops has told its requesters by its end.
        let is_running = self.agent.view.course.life.state() == LifeState::Running;
        if is_running && self.is_awaited.load(Ordering::Acquire) {
            self.failed(&format!("the new process: {how}"));
        }
    }

    /// Returns whether another process has taken over.
    fn serve(&self, stream: UnixStream) -> bool {
        let stop = Some(self.agent.stop.clone());
        let greeted = (|| {
            let channel = Channel::new(
                stream,
                Side::Old,
                hand_over::STEP_MAX,
                hand_over::GREETING_BYTES_MAX,
                stop,
            )?;
            let peer = channel.peer()?;
            if !peer.is_trusted() {
                let reason = format!("user {} may not take over", peer.user);
                channel.send_last(HandOverMessage::Refused, &reason);
                return Err(io::Error::other(reason));
            }
            let hello: Hello = channel.expect(HandOverMessage::Hello)?.json()?;
            Ok((channel, hello))
        })();
        match greeted {
            Err(error) => tracing::warn!("hand-over: a connection failed: {error}"),
            Ok((channel, hello)) => match hello.asks {
                HandOverRequest::Upgrade => self.upgrade(Some(channel)),
                HandOverRequest::TakeOver => return self.give(channel, &hello),
            },
        }
        false
    }

    /// Starts the program on disk, which then takes over. `asked`: the requester, which gets the result.
    pub fn upgrade(&self, asked: Option<Channel>) {
        self.is_awaited.store(true, Ordering::Release);
        let started = match &self.starter {
            _ if self.agent.stop.is_set() => Err(io::Error::other("this process is stopping")),
            Some(starter) => starter.go(),
            None => Err(io::Error::other("no process can start it")),
        };
        lock(&self.asked).extend(asked);
        match started {
            Ok(()) => tracing::info!("upgrade: the program on disk is started and takes over"),
            Err(error) => self.failed(&format!("the program on disk cannot be started: {error}")),
        }
    }

    /// Reports in log and status that this process continues, and answers the requester.
    fn failed(&self, reason: &str) {
        self.is_awaited.store(false, Ordering::Release);
        let continues = match self.agent.stop.is_set() {
            true => "",
            false => "; this process continues",
        };
        tracing::error!("hand-over failed{continues}: {reason}");
        self.agent.view.hand_over().record_failure(reason);
        self.answer(HandOverMessage::Refused, reason);
    }

    fn answer(&self, message: HandOverMessage, text: &str) {
        let asked = std::mem::take(&mut *lock(&self.asked));
        for channel in asked {
            channel.send_last(message, text);
        }
    }

    /// Returns whether the other process has taken over.
    fn give(&self, channel: Channel, hello: &Hello) -> bool {
        let Ok(turn) = self.agent.view.course.life.hand_over() else {
            channel.send_last(HandOverMessage::Refused, &HandOverError::Stopping.to_string());
            return false;
        };
        let pid = channel.peer().map_or(0, |peer| peer.pid);
        tracing::info!(
            "hand-over: weir {} (process {pid}) asks to take over from this process",
            hello.weir
        );
        let channel = Arc::new(channel);
        let mut stopped = StoppedWorkers { ends: Vec::new() };
        let given = self
            .check(hello)
            .and_then(|()| self.hand_over(&channel, &mut stopped));
        match given {
            Ok(given) => {
                self.finish(&given, &stopped, pid);
                // The rest of the work does not delay a stop.
                turn.taken_over();
                if given.wants_history {
                    self.give_history(&channel);
                }
                self.end(pid);
                true
            }
            Err(reason) => {
                let reason = match self.agent.stop.is_set() {
                    true => HandOverError::Stopping,
                    false => reason,
                };
                let reason = reason.to_string();
                channel.send_last(HandOverMessage::Refused, &reason);
                drop(stopped);
                self.resume();
                self.failed(&reason);
                false
            }
        }
    }

    fn check(&self, hello: &Hello) -> Result<(), HandOverError> {
        if self.agent.stop.is_set() {
            return Err(HandOverError::Stopping);
        }
        if hello.protocol != hand_over::PROTOCOL || hello.state < weir_agent::state::VERSION {
            return Err(HandOverError::OtherVersion(hello.clone()));
        }
        Ok(())
    }

    /// All steps until the new process reads the sockets. `Err`: why it does not.
    fn hand_over(
        &self,
        channel: &Arc<Channel>,
        stopped: &mut StoppedWorkers,
    ) -> Result<StateTransfer, HandOverError> {
        let step = |what: &'static str| move |error: io::Error| HandOverError::Step { what, error };
        channel.set_limit(hand_over::PREPARATION_MAX);
        self.greet(channel).map_err(step("sockets could not be sent"))?;
        channel
            .expect(HandOverMessage::Begin)
            .map_err(step("the new process could not prepare itself"))?;
        let outputs = &self.agent.view.outputs;
        channel.set_limit(hand_over::STEP_MAX);
        self.await_own_files(channel)?;
        outputs.pause(UNDER_WAY_MAX, &self.agent.stop);
        if let Some(columns) = &self.agent.view.columns {
            columns.hold(COLUMNS_MAX, || self.agent.stop.is_set());
        }
        channel.set_limit(hand_over::STEP_MAX);
        let (account, state) = self.freeze(channel, stopped)?;
        channel.set_limit(hand_over::STEP_MAX);
        self.send_state(channel, state, &account)
            .map_err(step("the state could not be sent"))?;
        channel.set_limit(hand_over::STEP_MAX);
        channel
            .expect(HandOverMessage::Commit)
            .map_err(step("the new process could not read the state"))?;
        if let Some((_, gate)) = &self.admin {
            gate.close();
        }
        outputs.close_files();
        if self.agent.stop.is_set() {
            return Err(HandOverError::Stopping);
        }
        channel.set_limit(hand_over::STEP_MAX);
        channel
            .send(HandOverMessage::Go, &[], &[])
            .map_err(step("the new process has ended"))?;
        match channel.expect(HandOverMessage::Running) {
            Ok(message) => Ok(StateTransfer {
                account,
                wants_history: message.body == hand_over::WANTS_HISTORY,
            }),
            Err(error) if channel.way_out(&error) == WayOut::End => {
                tracing::error!(
                    "hand-over: the new process does not confirm that it runs; this one ends anyway"
                );
                Ok(StateTransfer {
                    account,
                    wants_history: false,
                })
            }
            Err(error) => Err(step("the new process could not start")(error)),
        }
    }

    /// In its first second a process still needs what it began with, in case the other one fails.
    fn await_own_files(&self, channel: &Channel) -> Result<(), HandOverError> {
        let own = within(channel, |patience| {
            let is_own = self.agent.state_saver.is_independent();
            is_own.then_some(()).or_else(|| {
                std::thread::sleep(patience);
                None
            })
        });
        own.ok_or(HandOverError::FilesLate)
    }

    fn greet(&self, channel: &Channel) -> io::Result<()> {
        channel.send_json(
            HandOverMessage::Greeting,
            &Greeting {
                weir: env!("CARGO_PKG_VERSION").into(),
                protocol: hand_over::PROTOCOL,
                state: weir_agent::state::VERSION,
                pid: std::process::id(),
            },
        )?;
        let mut sockets = self.sockets(channel)?;
        sockets.sort_by_key(|(id, _)| *id);
        for of_listener in sockets.chunk_by(|(one, _), (other, _)| one == other) {
            let source = &self.agent.sources[usize::from(of_listener[0].0.0)];
            let descriptors: Vec<_> = of_listener.iter().map(|(_, socket)| socket.as_fd()).collect();
            let head = serde_json::to_vec(source).map_err(io::Error::other)?;
            channel.send(HandOverMessage::Sockets, &head, &descriptors)?;
        }
        if let Some((sockets, _)) = &self.admin {
            let sockets: Vec<_> = sockets.iter().map(AsFd::as_fd).collect();
            channel.send(HandOverMessage::Admin, &[], &sockets)?;
        }
        channel.send(HandOverMessage::SocketsEnd, &[], &[])
    }

    /// The sockets that the workers read, and those of columns.
    fn sockets(&self, limit: &Channel) -> io::Result<Vec<(ListenerId, OwnedFd)>> {
        let (results, received) = channel();
        let workers = lock(&self.agent.workers);
        for worker in workers.iter() {
            let results = results.clone();
            worker.send(Command::Inspect(Box::new(move |event_loop: &EventLoop| {
                let sockets = event_loop.sockets();
                let cloned = sockets.map(|(id, socket)| Ok((id, socket.try_clone_to_owned()?)));
                let _ = results.send(cloned.collect::<io::Result<Vec<_>>>());
            })));
        }
        let mut sockets = Vec::new();
        for _ in workers.iter() {
            let of_worker = answer_of_worker(&received, limit);
            sockets.extend(of_worker.ok_or_else(|| io::Error::other("a worker does not answer"))??);
        }
        for (id, socket) in self
            .agent
            .view
            .columns
            .iter()
            .flat_map(|columns| columns.sockets())
        {
            sockets.push((id, socket.try_clone_to_owned()?));
        }
        Ok(sockets)
    }

    /// Stops every worker in the same bucket, and sends its connections.
    fn freeze(
        &self,
        channel: &Arc<Channel>,
        stopped: &mut StoppedWorkers,
    ) -> Result<(Account, FrozenState), HandOverError> {
        for _ in 0..ATTEMPTS_MAX {
            channel
                .send(HandOverMessage::Again, &[], &[])
                .map_err(|error| HandOverError::Step {
                    what: "the new process has ended",
                    error,
                })?;
            let transfer = self
                .agent
                .state_saver
                .transfer()
                .map_err(|error| HandOverError::Step {
                    what: "the state could not be written",
                    error,
                })?;
            let transfer = Arc::new(Mutex::new(transfer));
            let account = self.freeze_once(channel, &transfer, stopped)?;
            let shared = &self.agent.view.shared;
            let workers = within(channel, |patience| {
                shared.take_saved(stopped.ends.len(), patience)
            })
            .ok_or(HandOverError::BucketsLate)?;
            let first = workers.first().and_then(|saved| saved.bucket);
            if workers.iter().all(|saved| saved.bucket == first) {
                return Ok((account, FrozenState { transfer, workers }));
            }
            stopped.ends.clear();
        }
        Err(HandOverError::DifferentBuckets)
    }

    fn freeze_once(
        &self,
        channel: &Arc<Channel>,
        transfer: &Arc<Mutex<TransferWriter>>,
        stopped: &mut StoppedWorkers,
    ) -> Result<Account, HandOverError> {
        let (results, received) = std::sync::mpsc::channel();
        let stop = self.agent.view.shared.expect_saved();
        let workers = lock(&self.agent.workers);
        for (number, worker) in workers.iter().enumerate() {
            let transfer = transfer.clone();
            let (end, thaw) = std::sync::mpsc::channel();
            stopped.ends.push(end);
            let (results, channel, sources) = (results.clone(), channel.clone(), self.agent.sources.clone());
            let counted = Arc::new(Mutex::new(Account::default()));
            let noted = counted.clone();
            worker.send(Command::Freeze(Box::new(Freeze {
                number: stop,
                put: Box::new(move |piece| {
                    let written = lock(&transfer).piece(number as u16, piece);
                    written.map_err(|error| io::Error::new(error.kind(), format!("state_path: {error}")))
                }),
                inspect: Box::new(move |event_loop| {
                    let account = send_connections(&channel, event_loop, &sources)?;
                    *lock(&noted) = account;
                    Ok(())
                }),
                frozen: Box::new(move |sent, since: Monotonic| {
                    let account = *lock(&counted);
                    let account = Account {
                        since: since.0,
                        ..account
                    };
                    let _ = results.send(sent.map(|()| account));
                }),
                thaw,
            })));
        }
        let mut sum = Account {
            since: u64::MAX,
            ..Account::default()
        };
        for _ in workers.iter() {
            let of_worker = answer_of_worker(&received, channel).ok_or(HandOverError::WorkerLate)?;
            let of_worker = of_worker.map_err(|error| HandOverError::Step {
                what: "a worker could not return its state",
                error,
            })?;
            sum.since = sum.since.min(of_worker.since);
            sum.connections += of_worker.connections;
            sum.encrypted += of_worker.encrypted;
        }
        Ok(sum)
    }

    /// Sends the state, and with its end what makes the new process the owner of the directory.
    fn send_state(&self, channel: &Channel, state: FrozenState, account: &Account) -> io::Result<()> {
        let view = &self.agent.view;
        let mut transfer = lock(&state.transfer);
        view.outputs.save(&mut transfer, RELAYS_MAX, &self.agent.stop)?;
        let mut books = view.snapshot();
        for output in &mut books.outputs {
            // Lines that a relay has not sent by now are lost with this process.
            if output.output_type == "relay" {
                *output = output.killed();
            }
        }
        self.agent.state_saver.finish_transfer(
            &mut transfer,
            &state.workers,
            &books,
            continuity::now_ms(),
        )?;
        let directory = self
            .agent
            .state_saver
            .directory()
            .ok_or(io::ErrorKind::NotFound)?;
        let file = state_dir::transferred(directory)?;
        channel.send(HandOverMessage::State, &[], &[file.as_fd()])?;
        let account = serde_json::to_vec(account).map_err(io::Error::other)?;
        let lock = directory.lock();
        let listener = self.listener.as_ref().map(AsFd::as_fd);
        let owned: Vec<_> = lock.into_iter().chain(listener).collect();
        channel.send(HandOverMessage::End, &account, &owned)
    }

    /// Undoes the preparations.
    fn resume(&self) {
        self.agent.state_saver.reclaim();
        // Drops what has arrived, and what still arrives.
        self.agent.view.shared.expect_saved();
        let outputs = &self.agent.view.outputs;
        outputs.open_files();
        outputs.resume();
        if let Some((_, gate)) = &self.admin {
            gate.open();
        }
        if let Some(columns) = &self.agent.view.columns {
            columns.resume();
        }
    }

    /// The new process runs: this one ends.
    fn finish(&self, given: &StateTransfer, stopped: &StoppedWorkers, pid: i32) {
        self.agent.state_saver.keep_for_next();
        self.agent.watch.end();
        for end in &stopped.ends {
            let _ = end.send(());
        }
        if let Some(columns) = &self.agent.view.columns {
            columns.pass();
        }
        self.notify.main_process(pid);
        let account = &given.account;
        let ended = match account.encrypted {
            0 => String::new(),
            encrypted => format!("; {encrypted} TLS connections end, and their clients reconnect"),
        };
        tracing::info!(
            "hand-over: process {pid} took over from this one, with {} connections{ended}",
            account.connections
        );
    }

    fn give_history(&self, channel: &Channel) {
        channel.set_limit(hand_over::PREPARATION_MAX);
        let Some(recent) = &self.agent.view.recent else {
            // If this fails, the receiver notices the missing message.
            let _ = channel.send(HandOverMessage::HistoryEnd, &[], &[]);
            return;
        };
        if let Err(error) = crate::history::give(recent, channel) {
            tracing::warn!("hand-over: the history could not be sent: {error}");
        }
    }

    /// Nothing is left to do here.
    fn end(&self, pid: i32) {
        self.answer(HandOverMessage::Done, &pid.to_string());
        if let Some((_, gate)) = &self.admin {
            gate.wait_until_answered(REQUESTS_MAX);
        }
        if let Some(columns) = &self.agent.view.columns {
            columns.wait_for_end(CONNECTIONS_MAX);
        }
        let _ = self.taken_over.blocking_send(());
    }
}

/// A listening socket whose file only this user and root may use, from its first instant: a mode that is set by path could be set for what
/// a link leads to.
fn bind_private(path: &Path) -> io::Result<UnixListener> {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
    let socket = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    // The mode of the file that `bind` makes.
    rustix::fs::fchmod(&socket, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR)?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    rustix::net::listen(&socket, WAITING_MAX)?;
    Ok(UnixListener::from(socket))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Repeats a wait that takes a patience, up to the limit of the channel, which a stop ends.
fn within<T>(limit: &Channel, mut wait: impl FnMut(Duration) -> Option<T>) -> Option<T> {
    loop {
        let left = limit.left().ok()?;
        if let Some(found) = wait(left.min(LOOK)) {
            return Some(found);
        }
    }
}

fn answer_of_worker<T>(received: &Receiver<T>, limit: &Channel) -> Option<T> {
    within(limit, |patience| received.recv_timeout(patience).ok())
}

/// Sends the connections of a worker.
fn send_connections(
    channel: &Channel,
    event_loop: &EventLoop,
    sources: &[HandedListener],
) -> io::Result<Account> {
    let connections: Vec<_> = event_loop.connections().collect();
    for some in connections.chunks(DESCRIPTORS_MAX) {
        let heads = some.iter().map(|connection| HandedConnection {
            address: sources[usize::from(connection.listener.0)].address.clone(),
            lengths: connection.framing == Framing::LengthPrefixed,
            partial: connection.partial.to_vec(),
            skipping: connection.skipping,
        });
        let heads = postcard::to_extend(&heads.collect::<Vec<_>>(), Vec::new()).map_err(io::Error::other)?;
        let descriptors: Vec<_> = some.iter().map(|connection| connection.fd).collect();
        channel.send(HandOverMessage::Connections, &heads, &descriptors)?;
    }
    Ok(Account {
        since: 0,
        connections: connections.len() as u64,
        encrypted: event_loop.encrypted_connections(),
    })
}
