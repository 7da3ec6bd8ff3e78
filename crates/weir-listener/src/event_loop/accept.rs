//! New connections.

use std::fs::File;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};

use super::peers::Peer;
use super::streams::{Connection, DRAIN_SILENCE_NANOS, is_tcp};
use super::{EventLoop, Kind, Next, Phase};
use crate::framing::Framer;
use crate::tls::TlsSession;
use crate::{Address, sys};
use crate::{ListenerCounter, LoopCounter};

/// Connections accepted before others get their turn.
const ACCEPTS_PER_TURN: usize = 64;

impl EventLoop {
    pub(super) fn accept(&mut self, index: u32) -> Next {
        for _ in 0..ACCEPTS_PER_TURN {
            let listener = &mut self.listeners[index as usize];
            let Some(fd) = &listener.fd else { return Next::Wait };
            self.counters[LoopCounter::SystemCalls] += 1;
            match sys::accept(fd.as_fd()) {
                Ok((connection, address)) => self.accepted(index, connection, address),
                Err(error) => match error.raw_os_error() {
                    Some(libc::EAGAIN) => {
                        return self.no_more_connections(index);
                    }
                    // A Unix socket that was shut and is empty says so this way.
                    Some(libc::EINVAL) if listener.phase == Phase::Draining => {
                        self.close_listener(index);
                        return Next::Wait;
                    }
                    Some(libc::EINTR) => {}
                    Some(libc::EMFILE | libc::ENFILE) => match self.refuse_one(index) {
                        Refusal::Refused => {}
                        // The kernel looks for a descriptor before it looks for a connection.
                        Refusal::NoConnection => return self.no_more_connections(index),
                        Refusal::Failed => {
                            self.listeners[index as usize].counters[ListenerCounter::AcceptPauses] += 1;
                            self.pause(index);
                            return Next::Wait;
                        }
                    },
                    Some(libc::ENOMEM | libc::ENOBUFS) => {
                        listener.counters[ListenerCounter::AcceptErrors] += 1;
                        listener.counters[ListenerCounter::AcceptPauses] += 1;
                        self.pause(index);
                        return Next::Wait;
                    }
                    // The connection is gone again (or the network below it is); the next one may be fine.
                    _ => listener.counters[ListenerCounter::AcceptErrors] += 1,
                },
            }
        }
        Next::Again
    }

    fn no_more_connections(&mut self, index: u32) -> Next {
        if self.listeners[index as usize].phase == Phase::Draining
            && sys::monotonic_nanos() >= self.drain_settled_at
        {
            self.close_listener(index);
        }
        Next::Wait
    }

    fn accepted(&mut self, index: u32, fd: OwnedFd, address: Option<IpAddr>) {
        let listener = &mut self.listeners[index as usize];
        listener.counters[ListenerCounter::ConnectionsAccepted] += 1;
        if address.is_some_and(|address| !listener.config.allow.allows(address)) {
            listener.counters[ListenerCounter::ConnectionsRefusedSource] += 1;
            self.counters[LoopCounter::SystemCalls] += 1;
            return;
        }
        let is_internet = matches!(listener.address, Address::Tcp { .. });
        let mut credentials = None;
        if !is_internet {
            self.counters[LoopCounter::SystemCalls] += 1;
            credentials = sys::peer_credentials(fd.as_fd())
                .ok()
                .filter(|origin| origin.pid > 0);
        }
        let peer = address.map_or(Peer::of_credentials(credentials), Peer::of_address);
        let full =
            listener.counters[ListenerCounter::ConnectionsOpen] >= listener.config.max_connections as u64;
        if full && (self.draining || !self.make_place(index, peer)) {
            self.listeners[index as usize].counters[ListenerCounter::ConnectionsRefusedLimit] += 1;
            self.counters[LoopCounter::SystemCalls] += 1;
            return;
        }
        let listener = &mut self.listeners[index as usize];
        let mut tls = None;
        if is_internet && let Some(server) = &listener.config.tls {
            match TlsSession::new(server, sys::monotonic_nanos()) {
                Ok(session) => tls = Some(session),
                Err(fault) => {
                    listener.counters[ListenerCounter::ConnectionsFailedTls] += 1;
                    self.tls_fault = Some((listener.id, fault));
                    self.counters[LoopCounter::SystemCalls] += 1;
                    return;
                }
            }
        }
        let mut origin = None;
        if listener.config.pass_credentials && !is_internet {
            origin = credentials;
            listener.counters[ListenerCounter::OriginErrors] += u64::from(origin.is_none());
        }
        let framer = Framer::new(listener.config.framing, listener.config.max_packet_bytes);
        let mut connection = Connection {
            fd,
            listener: index,
            origin,
            source: address.filter(|_| listener.config.rates.is_some()),
            peer,
            heard: sys::monotonic_nanos(),
            tls,
            framer,
            awaited_until: None,
        };
        self.handshakes += usize::from(connection.tls.is_some());
        if self.draining {
            if is_tcp(&connection, &self.listeners) {
                connection.awaited_until = Some(sys::monotonic_nanos() + DRAIN_SILENCE_NANOS);
            } else {
                self.counters[LoopCounter::SystemCalls] += 1;
                // An error means that the connection is gone, which reading will tell.
                let _ = sys::shutdown_read(connection.fd.as_fd());
            }
        }
        let slot = self.take_slot(Kind::Connection(connection));
        let token = self.token_of(slot);
        let Kind::Connection(connection) = &self.slots[slot as usize].kind else {
            return;
        };
        self.counters[LoopCounter::SystemCalls] += 1;
        if self.epoll.add(connection.fd.as_fd(), token).is_err() {
            // The system's limit of watched descriptors is reached, which is one more kind of having none left.
            self.listeners[index as usize].counters[ListenerCounter::ConnectionsRefusedDescriptors] += 1;
            if let Kind::Connection(connection) = self.free_slot(slot) {
                self.handshakes -= usize::from(connection.tls.is_some());
            }
            return;
        }
        let listener = &mut self.listeners[index as usize];
        listener.counters[ListenerCounter::ConnectionsOpen] += 1;
        listener.peers.add(peer);
        // Most connections are made to send something at once.
        self.make_ready(slot);
    }

    /// With no descriptor left, gives up the reserve to accept one connection and close it: otherwise it would stay in
    /// the queue, the peer waiting for nothing and epoll reporting it for ever.
    #[cold]
    fn refuse_one(&mut self, index: u32) -> Refusal {
        let listener = &mut self.listeners[index as usize];
        let Some(fd) = &listener.fd else {
            return Refusal::NoConnection;
        };
        self.counters[LoopCounter::SystemCalls] += 4;
        self.reserve = None;
        let refused = sys::accept(fd.as_fd()).map(drop);
        self.reserve = open_reserve();
        match refused {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Refusal::NoConnection,
            Err(_) => {
                listener.counters[ListenerCounter::AcceptErrors] += 1;
                return Refusal::Failed;
            }
            Ok(()) => {}
        }
        listener.counters[ListenerCounter::AcceptErrors] += 1;
        listener.counters[ListenerCounter::ConnectionsAccepted] += 1;
        listener.counters[ListenerCounter::ConnectionsRefusedDescriptors] += 1;
        if self.reserve.is_some() {
            Refusal::Refused
        } else {
            Refusal::Failed
        }
    }
}

/// What [`EventLoop::refuse_one`] achieved.
enum Refusal {
    /// One connection is gone, and the next can be refused as well.
    Refused,
    /// There was none.
    NoConnection,
    /// There is no reserve any more.
    Failed,
}

pub(super) fn open_reserve() -> Option<OwnedFd> {
    File::open("/dev/null").ok().map(OwnedFd::from)
}
