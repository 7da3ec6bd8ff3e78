//! The result of a receive call, as it is handed over.

use std::net::SocketAddr;

use crate::sys::{self, PacketEntry, SourceSlots};
use crate::{Credentials, ListenerId};

/// A point in time on the monotonic clock, in nanoseconds. Comparable within one boot of one machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Monotonic(pub u64);

impl Monotonic {
    /// Reads the clock.
    pub fn now() -> Self {
        Self(sys::monotonic_nanos())
    }
}

/// One packet: a datagram, a stream frame, or a run of complete lines of a stream (newlines included).
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    /// The received bytes. Never more than [`crate::DATAGRAM_BYTES_MAX`].
    pub bytes: &'a [u8],
    /// Number of its listener.
    pub listener: ListenerId,
    /// The end is missing, because the datagram was longer than the listener takes.
    pub truncated: bool,
    /// The sender, if requested and known. On stream sockets: the process that connected.
    pub origin: Option<Credentials>,
    /// When its batch was received.
    pub received: Monotonic,
}

/// Packets received together from one descriptor: a non-empty list, lent for the duration of the call.
#[derive(Clone, Copy)]
pub struct PacketBatch<'a> {
    pub(super) memory: &'a [u8],
    pub(super) entries: &'a [PacketEntry],
    pub(super) listener: ListenerId,
    pub(super) received: Monotonic,
    /// The same for all packets of a connection.
    pub(super) origin: Option<Credentials>,
    pub(super) sources: PacketSenders<'a>,
}

/// Senders of the packets of a batch.
#[derive(Clone, Copy)]
pub(super) enum PacketSenders<'a> {
    /// All from the peer of one connection.
    Peer(Option<SocketAddr>),
    /// Each from its own, where that was asked for.
    Datagrams(SourceSlots<'a>),
}

impl<'a> PacketBatch<'a> {
    /// Number of packets.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Never true for a batch that was handed over.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Number of their listener.
    pub fn listener(&self) -> ListenerId {
        self.listener
    }

    /// When they were received. The clock is read once for all.
    pub fn received(&self) -> Monotonic {
        self.received
    }

    /// One packet by its position, so that a later one can be looked at while an earlier one is handled.
    pub fn get(&self, index: usize) -> Option<Packet<'a>> {
        self.entries.get(index).map(|entry| self.packet(entry))
    }

    /// The packets in the order in which they were received.
    pub fn iter(&self) -> Packets<'a> {
        Packets {
            batch: *self,
            entries: self.entries.iter(),
        }
    }

    /// The internet address that one packet came from, where it is known; see [`crate::EventLoop::report_sources`].
    pub fn source(&self, index: usize) -> Option<SocketAddr> {
        match self.sources {
            PacketSenders::Peer(peer) => peer,
            PacketSenders::Datagrams(slots) => slots.get(index),
        }
    }

    #[inline]
    fn packet(&self, entry: &PacketEntry) -> Packet<'a> {
        Packet {
            bytes: &self.memory[entry.start as usize..][..entry.length as usize],
            listener: self.listener,
            truncated: entry.lost > 0,
            origin: entry.origin.or(self.origin),
            received: self.received,
        }
    }
}

/// Iterates over the packets of a [`PacketBatch`].
pub struct Packets<'a> {
    batch: PacketBatch<'a>,
    entries: std::slice::Iter<'a, PacketEntry>,
}

impl<'a> Iterator for Packets<'a> {
    type Item = Packet<'a>;

    #[inline]
    fn next(&mut self) -> Option<Packet<'a>> {
        self.entries.next().map(|entry| self.batch.packet(entry))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.entries.size_hint()
    }
}

impl ExactSizeIterator for Packets<'_> {}

impl<'a> IntoIterator for PacketBatch<'a> {
    type Item = Packet<'a>;
    type IntoIter = Packets<'a>;
    fn into_iter(self) -> Packets<'a> {
        self.iter()
    }
}

impl<'a> IntoIterator for &PacketBatch<'a> {
    type Item = Packet<'a>;
    type IntoIter = Packets<'a>;
    fn into_iter(self) -> Packets<'a> {
        self.iter()
    }
}
