//! Sockets and connections on their way from one process to the next.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::EventLoop;
use crate::{Framing, ListenerCounter, ListenerId, sys};

/// An open connection with the frame that it is inside of.
#[derive(Debug)]
pub struct OpenConnection<'a> {
    pub listener: ListenerId,
    pub fd: BorrowedFd<'a>,
    pub framing: Framing,
    /// The received part of the frame.
    pub partial: &'a [u8],
    /// It is inside of a line that is too long: the rest of it is left out.
    pub skipping: bool,
}

/// A connection that another process has read until now.
#[derive(Debug)]
pub struct PassedConnection {
    pub listener: ListenerId,
    pub fd: OwnedFd,
    pub framing: Framing,
    pub partial: Vec<u8>,
    pub skipping: bool,
}

impl EventLoop {
    /// The listening sockets, for another process to take over.
    pub fn sockets(&self) -> impl Iterator<Item = (ListenerId, BorrowedFd<'_>)> {
        let listeners = self.listeners.iter();
        listeners.filter_map(|listener| Some((listener.id, listener.socket.as_ref()?.fd.as_fd())))
    }

    /// The connections that another process can take over: unencrypted ones.
    pub fn connections(&self) -> impl Iterator<Item = OpenConnection<'_>> {
        self.descriptors.connections().filter_map(|(_, connection)| {
            let listener = self.listeners.get(connection.listener);
            connection.tls.is_none().then(|| OpenConnection {
                listener: listener.id,
                fd: connection.fd.as_fd(),
                framing: listener.config.framing,
                partial: connection.framer.partial(),
                skipping: connection.framer.is_skipping(),
            })
        })
    }

    /// Connections that another process cannot take over.
    pub fn encrypted_connections(&self) -> u64 {
        let connections = self.descriptors.connections();
        connections
            .filter(|(_, connection)| connection.tls.is_some())
            .count() as u64
    }

    /// Continues a connection of another process. Returns false if that is impossible; then it is closed, and its partial frame is counted
    /// as cut.
    ///
    /// # Errors
    ///
    /// If there is no such listener.
    pub fn add_connection(&mut self, passed: PassedConnection) -> io::Result<bool> {
        let Some(number) = self.listeners.number_of(passed.listener) else {
            return Err(io::Error::from(io::ErrorKind::InvalidInput));
        };
        let listener = self.listeners.get(number);
        let suits = listener.config.framing == passed.framing && listener.config.tls.is_none();
        let address = sys::peer_address(passed.fd.as_fd());
        let newcomer = suits.then(|| self.admitted(number, passed.fd, address)).flatten();
        let Some(newcomer) = newcomer else {
            let cut = u64::from(!passed.partial.is_empty());
            self.listeners.get_mut(number).counters[ListenerCounter::FramesCut] += cut;
            return Ok(false);
        };
        let mut connection = self.listeners.get_mut(number).connection(number, newcomer, None);
        let kept = connection
            .framer
            .resume(&passed.partial, passed.skipping, &mut self.streams.pool);
        if kept.is_err() {
            let counters = &mut self.listeners.get_mut(number).counters;
            counters[ListenerCounter::ConnectionsClosedBudget] += 1;
            counters[ListenerCounter::FramesCut] += 1;
            return Ok(false);
        }
        let partial = connection.partial_bytes() as u64;
        let is_watched = self.admit(connection);
        if is_watched {
            self.listeners.get_mut(number).counters[ListenerCounter::PartialBytes] += partial;
        }
        Ok(is_watched)
    }

    /// The process ends: clients connected over TLS learn it at once.
    pub fn reset_encrypted(&self) {
        for slot in self.descriptors.places() {
            if let Some(connection) = self.descriptors.connection(slot)
                && connection.tls.is_some()
            {
                connection.reset_on_close();
            }
        }
    }
}
