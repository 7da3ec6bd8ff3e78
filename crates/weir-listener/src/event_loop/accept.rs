//! New connections.

use std::fs::File;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};

use super::EventLoop;
use super::connection::Connection;
use super::descriptors::{Descriptor, Next};
use super::listener::Listener;
use super::peers::Peer;
use crate::framing::Framer;
use crate::tls::TlsSession;
use crate::{Address, Credentials, TlsError, sys};
use crate::{ListenerCounter, LoopCounter};

/// Connections accepted before others get their turn.
const ACCEPTS_PER_TURN: usize = 64;

/// The result of a call of `accept`.
enum Accepted {
    Connection(OwnedFd, Option<SocketAddr>),
    /// There is none.
    Empty,
    /// A Unix socket that was shut is empty.
    Ended,
    /// The next call may work.
    Retry,
    NoDescriptor,
    /// The kernel had no memory.
    NoMemory,
}

/// A new connection that may stay, but for TLS.
pub(super) struct NewConnection {
    fd: OwnedFd,
    address: Option<SocketAddr>,
    credentials: Option<Credentials>,
}

impl NewConnection {
    fn peer(&self) -> Peer {
        let unix = Peer::of_credentials(self.credentials);
        self.address
            .map_or(unix, |address| Peer::of_address(address.ip()))
    }
}

impl Listener {
    fn accept(&mut self) -> Accepted {
        let Some(socket) = &self.socket else {
            return Accepted::Ended;
        };
        let error = match sys::accept(socket.fd.as_fd()) {
            Ok((fd, address)) => {
                self.counters[ListenerCounter::ConnectionsAccepted] += 1;
                return Accepted::Connection(fd, address);
            }
            Err(error) => error,
        };
        match error.raw_os_error() {
            Some(libc::EAGAIN) => Accepted::Empty,
            Some(libc::EINVAL) if self.is_draining() => Accepted::Ended,
            Some(libc::EINTR) => Accepted::Retry,
            Some(libc::EMFILE | libc::ENFILE) => Accepted::NoDescriptor,
            Some(libc::ENOMEM | libc::ENOBUFS) => {
                self.counters[ListenerCounter::AcceptErrors] += 1;
                Accepted::NoMemory
            }
            // The connection was closed again (or its network failed); the next one may be fine.
            _ => {
                self.counters[ListenerCounter::AcceptErrors] += 1;
                Accepted::Retry
            }
        }
    }

    /// Whether a peer of this address may send here.
    fn admits(&mut self, address: Option<IpAddr>) -> bool {
        let refused = address.is_some_and(|address| !self.config.allow.allows(address));
        self.counters[ListenerCounter::ConnectionsRefusedSource] += u64::from(refused);
        !refused
    }

    fn is_full(&self) -> bool {
        self.counters[ListenerCounter::ConnectionsOpen] >= self.config.max_connections as u64
    }

    /// The encryption of a new connection, if it is to have one.
    fn tls_session(&mut self) -> Result<Option<TlsSession>, TlsError> {
        let server = self.config.tls.as_ref().filter(|_| self.is_tcp());
        let session = server.map(|server| TlsSession::new(server, sys::monotonic_nanos()));
        let session = session.transpose();
        self.counters[ListenerCounter::ConnectionsFailedTls] += u64::from(session.is_err());
        session
    }

    /// The connection of a newcomer to this listener, which is the one of this number.
    pub(super) fn connection(
        &mut self,
        number: u32,
        newcomer: NewConnection,
        tls: Option<TlsSession>,
    ) -> Connection {
        let mut origin = None;
        if self.config.pass_credentials && !self.is_tcp() {
            origin = newcomer.credentials;
            self.counters[ListenerCounter::OriginErrors] += u64::from(origin.is_none());
        }
        Connection {
            listener: number,
            origin,
            address: newcomer.address,
            peer: newcomer.peer(),
            last_data: sys::monotonic_nanos(),
            tls,
            framer: Framer::new(self.config.framing, self.config.max_packet_bytes),
            awaited_until: None,
            fd: newcomer.fd,
        }
    }

    /// Accepts and closes a connection with the descriptor that is kept for that.
    fn refuse_one(&mut self, reserve: &mut Reserve) -> RefuseResult {
        let Some(socket) = &self.socket else {
            return RefuseResult::NoConnection;
        };
        match reserve.spend(|| sys::accept(socket.fd.as_fd()).map(drop)) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return RefuseResult::NoConnection,
            Err(_) => {
                self.counters[ListenerCounter::AcceptErrors] += 1;
                return RefuseResult::Failed;
            }
            Ok(()) => {}
        }
        self.counters[ListenerCounter::AcceptErrors] += 1;
        self.counters[ListenerCounter::ConnectionsAccepted] += 1;
        self.counters[ListenerCounter::ConnectionsRefusedDescriptors] += 1;
        if reserve.is_there() {
            RefuseResult::Refused
        } else {
            RefuseResult::Failed
        }
    }
}

impl EventLoop {
    pub(super) fn accept(&mut self, number: u32) -> Next {
        for _ in 0..ACCEPTS_PER_TURN {
            let listener = self.listeners.get_mut(number);
            if listener.socket.is_none() {
                return Next::Wait;
            }
            self.counters[LoopCounter::SystemCalls] += 1;
            match listener.accept() {
                Accepted::Connection(fd, address) => self.accepted(number, fd, address),
                Accepted::Empty => return self.no_more_connections(number),
                Accepted::Ended => {
                    self.close_listener(number);
                    return Next::Wait;
                }
                Accepted::Retry => {}
                Accepted::NoDescriptor => match self.refuse_one(number) {
                    RefuseResult::Refused => {}
                    // The kernel looks for a descriptor before it looks for a connection.
                    RefuseResult::NoConnection => return self.no_more_connections(number),
                    RefuseResult::Failed => return self.pause_accepting(number),
                },
                Accepted::NoMemory => return self.pause_accepting(number),
            }
        }
        Next::Again
    }

    fn pause_accepting(&mut self, number: u32) -> Next {
        self.listeners.get_mut(number).counters[ListenerCounter::AcceptPauses] += 1;
        self.pause(number);
        Next::Wait
    }

    fn no_more_connections(&mut self, number: u32) -> Next {
        if self.listeners.get(number).is_draining() && self.drain.has_settled() {
            self.close_listener(number);
        }
        Next::Wait
    }

    fn accepted(&mut self, number: u32, fd: OwnedFd, address: Option<SocketAddr>) {
        let Some(newcomer) = self.admitted(number, fd, address) else {
            // It is closed.
            self.counters[LoopCounter::SystemCalls] += 1;
            return;
        };
        let listener = self.listeners.get_mut(number);
        let tls = match listener.tls_session() {
            Ok(tls) => tls,
            Err(error) => {
                self.handshakes.record_error(listener.id, error);
                self.counters[LoopCounter::SystemCalls] += 1;
                return;
            }
        };
        let mut connection = listener.connection(number, newcomer, tls);
        if self.drain.is_on() {
            self.counters[LoopCounter::SystemCalls] += connection.begin_to_end(self.listeners.get(number));
        }
        self.admit(connection);
    }

    /// Looks whether a new connection may stay.
    pub(super) fn admitted(
        &mut self,
        number: u32,
        fd: OwnedFd,
        address: Option<SocketAddr>,
    ) -> Option<NewConnection> {
        let listener = self.listeners.get_mut(number);
        if !listener.admits(address.map(|address| address.ip())) {
            return None;
        }
        let mut credentials = None;
        if !matches!(listener.address, Address::Tcp { .. }) {
            self.counters[LoopCounter::SystemCalls] += 1;
            let found = sys::peer_credentials(fd.as_fd()).ok();
            credentials = found.filter(|origin| origin.pid > 0);
        }
        let newcomer = NewConnection {
            fd,
            address,
            credentials,
        };
        if listener.is_full() && (self.drain.is_on() || !self.evict_one(number, newcomer.peer())) {
            let counters = &mut self.listeners.get_mut(number).counters;
            counters[ListenerCounter::ConnectionsRefusedLimit] += 1;
            return None;
        }
        Some(newcomer)
    }

    /// Begins to watch a connection. False if it cannot be watched, and is closed.
    pub(super) fn admit(&mut self, connection: Connection) -> bool {
        let (number, peer) = (connection.listener, connection.peer);
        let encrypted = connection.tls.is_some();
        let slot = self.descriptors.add(Descriptor::Connection(connection));
        let Some(connection) = self.descriptors.connection(slot) else {
            return false;
        };
        let token = self.descriptors.token_of(slot);
        self.counters[LoopCounter::SystemCalls] += 1;
        let listener = self.listeners.get_mut(number);
        if self.poller.watch(connection.fd.as_fd(), token).is_err() {
            // The system's limit of watched descriptors is reached, which is one more kind of having none left.
            listener.counters[ListenerCounter::ConnectionsRefusedDescriptors] += 1;
            self.descriptors.remove(slot);
            return false;
        }
        if encrypted {
            self.handshakes.begin_one();
        }
        listener.connection_opened(peer);
        // Most connections are made to send something at once.
        self.descriptors.make_ready(slot);
        true
    }

    /// Without a free descriptor, releases the reserve to accept one connection and close it: otherwise it would stay in the queue, its
    /// peer would wait in vain, and epoll would report it permanently.
    #[cold]
    fn refuse_one(&mut self, number: u32) -> RefuseResult {
        self.counters[LoopCounter::SystemCalls] += 4;
        self.listeners.get_mut(number).refuse_one(&mut self.reserve)
    }
}

/// The result of [`EventLoop::refuse_one`].
enum RefuseResult {
    /// One connection was closed, and the next can be refused as well.
    Refused,
    /// There was none.
    NoConnection,
    /// There is no reserve any more.
    Failed,
}

/// A descriptor that is closed to accept (and refuse) a connection when no other is left.
pub(super) struct Reserve(Option<OwnedFd>);

impl Reserve {
    pub(super) fn new() -> Self {
        Reserve(File::open("/dev/null").ok().map(OwnedFd::from))
    }

    fn spend<T>(&mut self, with_one_more: impl FnOnce() -> T) -> T {
        self.0 = None;
        let result = with_one_more();
        *self = Reserve::new();
        result
    }

    fn is_there(&self) -> bool {
        self.0.is_some()
    }
}
