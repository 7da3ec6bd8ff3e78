//! One connection: reading, framing, handing over packets.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};

use super::batch::PacketSenders;
use super::drain::Drain;
use super::listener::{Listener, Phase};
use super::peers::Peer;
use super::{Monotonic, PacketBatch};
use crate::ListenerCounter;
use crate::bind::MAX_PACKET_BYTES_LIMIT;
use crate::framing::{End, FeedResult, Framer, FramingCounts, PacketEntries};
use crate::partial::{BudgetExhausted, PartialPool};
use crate::sys::{self, Mapping, PacketEntry};
use crate::tls::TlsSession;
use crate::{Credentials, ListenerCounters, ListenerId, SourceRates};

/// Bytes asked for with one call on a stream.
const READ_BYTES: usize = 64 * 1024;
/// Their place: behind room for the longest partial frame, aligned to a page.
const READ_START: usize = MAX_PACKET_BYTES_LIMIT + 4096;
/// The bytes of partial frames of all connections unless [`crate::EventLoop::set_partial_budget`] says otherwise.
const PARTIAL_BUDGET_DEFAULT: usize = 16 * 1024 * 1024;

/// Memory that all connections of a loop share.
pub(super) struct StreamMemory {
    buffer: Mapping,
    entries: PacketEntries,
    pub(super) pool: PartialPool,
    /// Entries of a batch that may pass, where some may not.
    passing: Vec<PacketEntry>,
}

impl StreamMemory {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            buffer: Mapping::new(READ_START + READ_BYTES)?,
            entries: PacketEntries::new(),
            pool: PartialPool::new(PARTIAL_BUDGET_DEFAULT),
            passing: Vec::new(),
        })
    }

    /// Destination of read bytes.
    pub(super) fn read_buffer(&mut self) -> &mut [u8] {
        &mut self.buffer[READ_START..READ_START + READ_BYTES]
    }

    pub(super) fn release(&mut self) {
        self.buffer.release();
    }
}

pub(super) struct Connection {
    pub(super) fd: OwnedFd,
    pub(super) listener: u32,
    pub(super) origin: Option<Credentials>,
    /// Address of its peer; none on a Unix socket.
    pub(super) address: Option<SocketAddr>,
    /// The peer that it is charged to.
    pub(super) peer: Peer,
    /// When the last whole packet came, in monotonic nanoseconds; at first when it was accepted.
    pub(super) last_data: u64,
    pub(super) tls: Option<TlsSession>,
    pub(super) framer: Framer,
    /// While draining, for a TCP connection whose peer may have more: when its silence has lasted long enough.
    pub(super) awaited_until: Option<u64>,
}

/// The end of the last read, inside a frame, for which the budget has no room.
#[derive(Clone, Copy)]
pub(super) struct UnreadBytes {
    start: usize,
    end: usize,
}

impl UnreadBytes {
    pub(super) fn len(self) -> usize {
        self.end - self.start
    }
}

/// The result of reading bytes.
pub(super) enum ReadResult {
    All,
    NoRoom(UnreadBytes),
    /// A header announced more than the limit: the stream is lost.
    TooLong,
}

impl Connection {
    pub(super) fn is_handshaking(&self) -> bool {
        self.tls.as_ref().is_some_and(TlsSession::is_handshaking)
    }

    pub(super) fn partial_bytes(&self) -> usize {
        self.framer.partial_bytes()
    }

    /// One receive call.
    pub(super) fn read(&self, memory: &mut StreamMemory) -> io::Result<usize> {
        sys::receive(self.fd.as_fd(), memory.read_buffer())
    }

    /// Whether the end of its stream means that all of it has come. While draining it was us who ended the stream, unless its
    /// peer was still awaited.
    pub(super) fn ends_in_order(&self, listener: &Listener) -> bool {
        listener.phase == Phase::Open || self.awaited_until.is_some()
    }

    /// Finds packets in the first `count` bytes of the read buffer.
    #[inline]
    pub(super) fn feed(
        &mut self,
        count: usize,
        memory: &mut StreamMemory,
        listener: &Listener,
        handle: &mut impl FnMut(PacketBatch<'_>),
    ) -> (ReadResult, FramedPackets) {
        let end = READ_START + count;
        let before = self.partial_bytes();
        let mut counts = FramingCounts::default();
        let mut delivery = Delivery::new(listener, self, &mut memory.passing);
        let fed = self.framer.feed(
            &mut memory.buffer,
            READ_START,
            end,
            &mut memory.pool,
            &mut memory.entries,
            &mut counts,
            |memory, entries| delivery.deliver(memory, entries, handle),
        );
        if counts.packets + counts.empty > 0 {
            self.last_data = delivery.received.0;
        }
        let found = FramedPackets {
            counts,
            dropped: delivery.dropped,
            partial_before: before as u64,
            partial_after: self.partial_bytes() as u64,
        };
        let taken = match fed {
            FeedResult::All => ReadResult::All,
            FeedResult::NoRoom(bytes) => ReadResult::NoRoom(UnreadBytes {
                start: end - bytes,
                end,
            }),
            FeedResult::TooLong => ReadResult::TooLong,
        };
        (taken, found)
    }

    /// Keeps what there was no room for.
    pub(super) fn keep(
        &mut self,
        rest: UnreadBytes,
        memory: &mut StreamMemory,
    ) -> Result<(), BudgetExhausted> {
        let bytes = &memory.buffer[rest.start..rest.end];
        self.framer.keep(bytes, &mut memory.pool)
    }

    /// The end of the stream: the rest is handed over or lost.
    pub(super) fn finish(
        &mut self,
        orderly: bool,
        memory: &mut StreamMemory,
        listener: &Listener,
        handle: &mut impl FnMut(PacketBatch<'_>),
    ) -> (End, FramedPackets) {
        let before = self.partial_bytes();
        let mut counts = FramingCounts::default();
        let mut delivery = Delivery::new(listener, self, &mut memory.passing);
        let end = self
            .framer
            .finish(orderly, &mut memory.pool, &mut counts, |memory, entries| {
                delivery.deliver(memory, entries, handle);
            });
        let found = FramedPackets {
            counts,
            dropped: delivery.dropped,
            partial_before: before as u64,
            partial_after: 0,
        };
        (end, found)
    }

    /// During a drain: waits for data in flight from a TCP peer; other peers have none. Returns the number of system calls.
    pub(super) fn begin_to_end(&mut self, listener: &Listener) -> u64 {
        if listener.is_tcp() {
            self.awaited_until = Some(Drain::silence_after(sys::monotonic_nanos()));
            return 0;
        }
        // An error means that the connection is closed, which reading will show.
        let _ = sys::shutdown_read(self.fd.as_fd());
        1
    }

    /// Over TCP the peer then knows at once that it has ended: after an end in order its next write would be taken by its own
    /// kernel and lost. An error means that the connection is closed already.
    pub(super) fn reset_on_close(&self) {
        let _ = sys::reset_on_close(self.fd.as_fd());
    }

    /// Makes the kernel refuse more bytes of a TCP connection; accepted ones can still be read. Two system calls.
    ///
    /// The connection then ends with a reset, also when the process ends before it is closed. An orderly end would be
    /// worse in two ways: the filter drops the peer's answers to it, so that the peer waits for minutes, and without
    /// the filter the peer's next write would be accepted by its own kernel and lost. After a reset that write fails.
    pub(super) fn stop_awaiting(&mut self) {
        self.awaited_until = None;
        self.reset_on_close();
        // An error means that the connection is closed, which reading will show.
        let _ = sys::attach_drop_all_filter(self.fd.as_fd());
    }
}

/// The packets in bytes of a connection.
pub(super) struct FramedPackets {
    counts: FramingCounts,
    dropped: DroppedPackets,
    /// Bytes of unfinished frames held before and after.
    partial_before: u64,
    partial_after: u64,
}

impl FramedPackets {
    /// Packets handed over.
    pub(super) fn packets(&self) -> u64 {
        self.counts.packets - self.dropped.packets
    }

    pub(super) fn add_to(&self, counters: &mut ListenerCounters) {
        let (counts, dropped) = (&self.counts, self.dropped);
        counters[ListenerCounter::Packets] += self.packets();
        counters[ListenerCounter::Bytes] += counts.bytes - dropped.bytes;
        counters[ListenerCounter::RateLimited] += dropped.packets;
        counters[ListenerCounter::FramesTooLong] += counts.too_long;
        counters[ListenerCounter::FramesEmpty] += counts.empty;
        counters[ListenerCounter::BytesDiscarded] += counts.discarded_bytes;
        counters[ListenerCounter::PartialBytes] += self.partial_after;
        counters[ListenerCounter::PartialBytes] -= self.partial_before;
    }
}

/// Hands over packets of one connection, those that it may still send.
struct Delivery<'a> {
    id: ListenerId,
    origin: Option<Credentials>,
    address: Option<SocketAddr>,
    received: Monotonic,
    limits: Option<(IpAddr, &'a SourceRates)>,
    passing: &'a mut Vec<PacketEntry>,
    dropped: DroppedPackets,
}

/// Packets that were found and not handed over.
#[derive(Clone, Copy, Default)]
struct DroppedPackets {
    packets: u64,
    bytes: u64,
}

impl<'a> Delivery<'a> {
    fn new(listener: &'a Listener, connection: &Connection, passing: &'a mut Vec<PacketEntry>) -> Self {
        Self {
            id: listener.id,
            origin: connection.origin,
            address: connection.address,
            received: Monotonic::now(),
            limits: connection
                .address
                .map(|address| address.ip())
                .zip(listener.config.rates.as_deref()),
            passing,
            dropped: DroppedPackets::default(),
        }
    }

    #[inline]
    fn deliver(&mut self, memory: &[u8], entries: &[PacketEntry], handle: &mut impl FnMut(PacketBatch<'_>)) {
        let batch = PacketBatch {
            memory,
            entries,
            listener: self.id,
            received: self.received,
            origin: self.origin,
            sources: PacketSenders::Peer(self.address),
        };
        let Some((source, rates)) = self.limits else {
            handle(batch);
            return;
        };
        let entries = self.admitted(entries, source, rates);
        if !entries.is_empty() {
            handle(PacketBatch { entries, ..batch });
        }
    }

    fn admitted(&mut self, entries: &[PacketEntry], source: IpAddr, rates: &SourceRates) -> &[PacketEntry] {
        let mut open = rates.open(self.received);
        self.passing.clear();
        for entry in entries {
            if open.admits(source, entry.length as usize) {
                self.passing.push(*entry);
            } else {
                self.dropped.packets += 1;
                self.dropped.bytes += u64::from(entry.length);
            }
        }
        self.passing
    }
}
