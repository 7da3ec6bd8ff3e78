//! Connections: reading, framing, encryption, memory, and their end.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};

use super::peers::Peer;
use super::{
    Batch, EventLoop, Kind, Listener, Monotonic, Next, Phase, STREAM_READ_BYTES, STREAM_READ_START, Turn,
};
use crate::framing::{End, Fed, Framer, FramingCounts};
use crate::sys::{self, Entry};
use crate::tls::{TLS_READ_BYTES, TlsSession};
use crate::{Address, Credentials, ListenerCounters, ListenerId, SourceRates};
use crate::{ListenerCounter, LoopCounter};

/// A read that brought at least this much is followed by the next without asking epoll first.
const EAGER_BYTES: usize = 16 * 1024;
/// How often connections are looked at that are not encrypted yet.
const HANDSHAKE_LOOK_NANOS: u64 = 1_000_000_000;
/// Bytes that a TCP peer has written may still lie in its own kernel, waiting for room in ours: whoever wrote them takes them
/// for sent. A drain therefore reads a connection until its peer has closed it or has been silent for this long.
pub(super) const DRAIN_SILENCE_NANOS: u64 = 100_000_000;

/// Whether a peer was heard of within [`DRAIN_SILENCE_NANOS`].
struct StillSending(bool);

pub(super) struct Connection {
    pub(super) fd: OwnedFd,
    pub(super) listener: u32,
    pub(super) origin: Option<Credentials>,
    /// Who it is from, where that limits how much it may send.
    pub(super) source: Option<IpAddr>,
    /// Who has its place.
    pub(super) peer: Peer,
    /// When the last whole packet came, in monotonic nanoseconds; at first when it was accepted.
    pub(super) heard: u64,
    pub(super) tls: Option<TlsSession>,
    pub(super) framer: Framer,
    /// While draining, for a TCP connection whose peer may have more: when its silence has lasted long enough.
    pub(super) awaited_until: Option<u64>,
}

impl EventLoop {
    pub(super) fn receive_stream(
        &mut self,
        slot: u32,
        turn: &mut Turn,
        handle: &mut impl FnMut(Batch<'_>),
    ) -> Next {
        let Kind::Connection(connection) = &mut self.slots[slot as usize].kind else {
            return Next::Wait;
        };
        if connection.tls.is_some() {
            return self.receive_tls(slot, turn, handle);
        }
        let listener = &mut self.listeners[connection.listener as usize];
        self.counters[LoopCounter::SystemCalls] += 1;
        listener.counters[ListenerCounter::ReceiveCalls] += 1;
        let end = STREAM_READ_START + STREAM_READ_BYTES;
        let count = match sys::receive(
            connection.fd.as_fd(),
            &mut self.stream_memory[STREAM_READ_START..end],
        ) {
            Ok(0) => {
                // While draining it was us who ended the stream, unless its peer was still awaited.
                let orderly = listener.phase == Phase::Open || connection.awaited_until.is_some();
                self.close_connection(slot, orderly, turn, handle);
                return Next::Wait;
            }
            Ok(count) => count,
            Err(error) => return self.stream_failed(slot, &error, turn, handle),
        };
        turn.bytes += count as u64;
        if !self.feed(slot, count, turn, handle) {
            return Next::Wait;
        }
        self.after_reading(slot, count >= EAGER_BYTES)
    }

    /// What to do with a connection that has just been read. A peer that had something may have more.
    fn after_reading(&mut self, slot: u32, eager: bool) -> Next {
        if !self.draining {
            return if eager { Next::Again } else { Next::Wait };
        }
        let until = self.drain_connections_until;
        if let Kind::Connection(connection) = &mut self.slots[slot as usize].kind
            && let Some(awaited_until) = &mut connection.awaited_until
        {
            let now = sys::monotonic_nanos();
            *awaited_until = now + DRAIN_SILENCE_NANOS;
            if now >= until {
                return self.stop_awaiting(slot, StillSending(true));
            }
        }
        Next::Again
    }

    /// Finds packets in the first `count` bytes of the stream buffer. False if the connection had to be closed.
    fn feed(&mut self, slot: u32, count: usize, turn: &mut Turn, handle: &mut impl FnMut(Batch<'_>)) -> bool {
        let Kind::Connection(connection) = &mut self.slots[slot as usize].kind else {
            return false;
        };
        let listener = &mut self.listeners[connection.listener as usize];
        let before = connection.framer.partial_bytes() as u64;
        let mut counts = FramingCounts::default();
        let mut delivery = Delivery::new(listener, connection.origin, connection.source, &mut self.passing);
        let fed = connection.framer.feed(
            &mut self.stream_memory,
            STREAM_READ_START,
            STREAM_READ_START + count,
            &mut self.pool,
            &mut self.entries,
            &mut counts,
            |memory, entries| delivery.deliver(memory, entries, handle),
        );
        let (dropped, received) = (delivery.dropped, delivery.received);
        if counts.packets + counts.empty > 0 {
            connection.heard = received.0;
        }
        let counters = &mut listener.counters;
        add_counts(counters, turn, &counts, dropped);
        counters[ListenerCounter::PartialBytes] += connection.framer.partial_bytes() as u64;
        counters[ListenerCounter::PartialBytes] -= before;
        match fed {
            Fed::All => true,
            Fed::NoRoom(rest) => {
                let end = STREAM_READ_START + count;
                self.make_room(slot, end - rest, end, turn, handle)
            }
            Fed::TooLong => {
                self.close_connection(slot, false, turn, handle);
                false
            }
        }
    }

    /// [`EventLoop::receive_stream`] of an encrypted connection.
    fn receive_tls(&mut self, slot: u32, turn: &mut Turn, handle: &mut impl FnMut(Batch<'_>)) -> Next {
        let Kind::Connection(connection) = &mut self.slots[slot as usize].kind else {
            return Next::Wait;
        };
        let listener = &mut self.listeners[connection.listener as usize];
        self.counters[LoopCounter::SystemCalls] += 1;
        listener.counters[ListenerCounter::ReceiveCalls] += 1;
        self.tls_memory.resize(TLS_READ_BYTES, 0);
        let count = match sys::receive(connection.fd.as_fd(), &mut self.tls_memory) {
            // Without a word of farewell: the end may be missing.
            Ok(0) => {
                self.close_connection(slot, false, turn, handle);
                return Next::Wait;
            }
            Ok(count) => count,
            Err(error) => return self.stream_failed(slot, &error, turn, handle),
        };
        turn.bytes += count as u64;
        let mut taken = 0;
        while taken < count {
            let Kind::Connection(connection) = &mut self.slots[slot as usize].kind else {
                return Next::Wait;
            };
            let Some(tls) = &mut connection.tls else {
                return Next::Wait;
            };
            let was_handshaking = tls.is_handshaking();
            let result = tls.take(&self.tls_memory[taken..count]);
            // An error's reason is for the peer to know too.
            let answered = tls.answer(
                connection.fd.as_fd(),
                &mut self.counters[LoopCounter::SystemCalls],
            );
            if was_handshaking && !tls.is_handshaking() {
                self.handshakes -= 1;
            }
            match (result, answered) {
                (Ok(0), _) => {
                    self.tls_failed(slot, "it sends more than TLS allows at once".into(), turn, handle);
                    return Next::Wait;
                }
                (Ok(more), Ok(())) => taken += more,
                (Err(fault), _) => {
                    self.tls_failed(slot, fault, turn, handle);
                    return Next::Wait;
                }
                (_, Err(error)) => {
                    self.tls_failed(slot, format!("it takes no answer: {error}"), turn, handle);
                    return Next::Wait;
                }
            }
            let end = STREAM_READ_START + STREAM_READ_BYTES;
            loop {
                let Kind::Connection(connection) = &mut self.slots[slot as usize].kind else {
                    return Next::Wait;
                };
                let Some(tls) = &mut connection.tls else {
                    return Next::Wait;
                };
                let plain = tls.plain(&mut self.stream_memory[STREAM_READ_START..end]);
                if plain == 0 {
                    if tls.ended {
                        self.close_connection(slot, true, turn, handle);
                        return Next::Wait;
                    }
                    break;
                }
                if !self.feed(slot, plain, turn, handle) {
                    return Next::Wait;
                }
            }
        }
        self.after_reading(slot, count == TLS_READ_BYTES)
    }

    /// Closes a connection that is not, or no longer, properly encrypted.
    #[cold]
    fn tls_failed(&mut self, slot: u32, fault: String, turn: &mut Turn, handle: &mut impl FnMut(Batch<'_>)) {
        if let Kind::Connection(connection) = &self.slots[slot as usize].kind {
            let listener = &mut self.listeners[connection.listener as usize];
            self.tls_fault = Some((listener.id, fault));
            // One that is still handshaking is counted where it is closed, whoever closes it.
            if connection.tls.as_ref().is_some_and(|tls| !tls.is_handshaking()) {
                listener.counters[ListenerCounter::ConnectionsFailedTls] += 1;
            }
        }
        self.close_connection(slot, false, turn, handle);
    }

    /// Closes connections that have had long enough to say how they are to be encrypted.
    pub(super) fn end_slow_handshakes(&mut self, turn: &mut Turn, handle: &mut impl FnMut(Batch<'_>)) {
        let now = sys::monotonic_nanos();
        if now < self.handshakes_looked_at {
            return;
        }
        self.handshakes_looked_at = now + HANDSHAKE_LOOK_NANOS;
        for slot in 0..self.slots.len() as u32 {
            if let Kind::Connection(connection) = &self.slots[slot as usize].kind
                && let Some(tls) = &connection.tls
                && tls.is_handshaking()
                && (now >= tls.deadline || self.draining)
            {
                self.tls_failed(slot, "no handshake within ten seconds".into(), turn, handle);
            }
        }
    }

    /// Closes the connections that hold most until the bytes in `start..end` of the stream buffer fit. False if this
    /// connection was one of them.
    #[cold]
    fn make_room(
        &mut self,
        slot: u32,
        start: usize,
        end: usize,
        turn: &mut Turn,
        handle: &mut impl FnMut(Batch<'_>),
    ) -> bool {
        loop {
            let mut largest = (slot, end - start);
            for (index, candidate) in self.slots.iter().enumerate() {
                if let Kind::Connection(connection) = &candidate.kind {
                    let own = if index as u32 == slot { end - start } else { 0 };
                    let holds = connection.framer.partial_bytes() + own;
                    if holds > largest.1 {
                        largest = (index as u32, holds);
                    }
                }
            }
            if let Kind::Connection(connection) = &self.slots[largest.0 as usize].kind {
                let counters = &mut self.listeners[connection.listener as usize].counters;
                counters[ListenerCounter::ConnectionsClosedBudget] += 1;
                if largest.0 == slot {
                    counters[ListenerCounter::BytesDiscarded] += (end - start) as u64;
                    if connection.framer.partial_bytes() == 0 {
                        counters[ListenerCounter::FramesCut] += 1;
                    }
                }
            }
            self.close_connection(largest.0, false, turn, handle);
            if largest.0 == slot {
                return false;
            }
            let Kind::Connection(connection) = &mut self.slots[slot as usize].kind else {
                return false;
            };
            if connection
                .framer
                .keep(&self.stream_memory[start..end], &mut self.pool)
                .is_ok()
            {
                let counters = &mut self.listeners[connection.listener as usize].counters;
                counters[ListenerCounter::PartialBytes] += (end - start) as u64;
                return true;
            }
        }
    }

    #[cold]
    fn stream_failed(
        &mut self,
        slot: u32,
        error: &io::Error,
        turn: &mut Turn,
        handle: &mut impl FnMut(Batch<'_>),
    ) -> Next {
        let Kind::Connection(connection) = &self.slots[slot as usize].kind else {
            return Next::Wait;
        };
        let counters = &mut self.listeners[connection.listener as usize].counters;
        match error.raw_os_error() {
            Some(libc::EAGAIN) => {
                counters[ListenerCounter::ReceiveCallsEmpty] += 1;
                if self.draining {
                    let now = sys::monotonic_nanos();
                    match connection.awaited_until {
                        Some(until) if now >= until.min(self.drain_connections_until) => {
                            return self.stop_awaiting(slot, StillSending(now < until));
                        }
                        Some(_) => {}
                        None if now >= self.drain_settled_at => {
                            self.close_connection(slot, false, turn, handle);
                        }
                        None => {}
                    }
                }
                return Next::Wait;
            }
            Some(libc::EINTR) => {
                counters[ListenerCounter::ReceiveInterrupted] += 1;
                return Next::Again;
            }
            Some(libc::ENOMEM | libc::ENOBUFS) => {
                // Asked again when epoll says so; the data stays in the kernel.
                counters[ListenerCounter::ReceiveNoMemory] += 1;
                if !self.draining {
                    return Next::Wait;
                }
            }
            Some(libc::ECONNRESET | libc::EPIPE | libc::ETIMEDOUT) => {
                counters[ListenerCounter::ReceiveReset] += 1
            }
            _ => counters[ListenerCounter::ReceiveOther] += 1,
        }
        counters[ListenerCounter::ConnectionsFailed] += 1;
        self.close_connection(slot, false, turn, handle);
        Next::Wait
    }

    pub(super) fn close_connection(
        &mut self,
        slot: u32,
        orderly: bool,
        turn: &mut Turn,
        handle: &mut impl FnMut(Batch<'_>),
    ) {
        let Kind::Connection(mut connection) = self.free_slot(slot) else {
            return;
        };
        let listener = &mut self.listeners[connection.listener as usize];
        if connection.tls.as_ref().is_some_and(TlsSession::is_handshaking) {
            self.handshakes -= 1;
            listener.counters[ListenerCounter::ConnectionsFailedTls] += 1;
        }
        listener.counters[ListenerCounter::PartialBytes] -= connection.framer.partial_bytes() as u64;
        let mut counts = FramingCounts::default();
        let mut delivery = Delivery::new(listener, connection.origin, connection.source, &mut self.passing);
        let end = connection
            .framer
            .finish(orderly, &mut self.pool, &mut counts, |memory, entries| {
                delivery.deliver(memory, entries, handle);
            });
        let dropped = delivery.dropped;
        add_counts(&mut listener.counters, turn, &counts, dropped);
        match end {
            End::Clean => {}
            End::Unterminated => listener.counters[ListenerCounter::LinesUnterminated] += 1,
            End::Cut => listener.counters[ListenerCounter::FramesCut] += 1,
        }
        self.counters[LoopCounter::SystemCalls] += 1;
        listener.peers.remove(connection.peer);
        drop(connection);
        listener.counters[ListenerCounter::ConnectionsOpen] -= 1;
        if listener.counters[ListenerCounter::ConnectionsOpen] == 0 && listener.fd.is_none() {
            listener.phase = Phase::Closed;
        }
    }

    /// Makes the kernel refuse more bytes of a TCP connection; what it has taken can still be read.
    ///
    /// The connection then ends with a reset, also when the process ends before it is closed. An orderly end would be
    /// worse in two ways: the filter drops the peer's answers to it, so that the peer waits for minutes, and without
    /// the filter the peer's next write would be accepted by its own kernel and lost. After a reset that write fails.
    #[cold]
    fn stop_awaiting(&mut self, slot: u32, StillSending(still_sending): StillSending) -> Next {
        if let Kind::Connection(connection) = &mut self.slots[slot as usize].kind {
            connection.awaited_until = None;
            let counters = &mut self.listeners[connection.listener as usize].counters;
            counters[ListenerCounter::ConnectionsCutDraining] += u64::from(still_sending);
            self.counters[LoopCounter::SystemCalls] += 2;
            // An error means that the connection is gone, which reading will tell.
            let _ = sys::reset_on_close(connection.fd.as_fd());
            let _ = sys::attach_drop_all_filter(connection.fd.as_fd());
            self.settle();
        }
        Next::Again
    }
}

pub(super) fn is_tcp(connection: &Connection, listeners: &[Listener]) -> bool {
    matches!(
        listeners[connection.listener as usize].address,
        Address::Tcp { .. }
    )
}

/// Hands over packets of one connection, those that it may still send.
struct Delivery<'a> {
    id: ListenerId,
    origin: Option<Credentials>,
    received: Monotonic,
    limits: Option<(IpAddr, &'a SourceRates)>,
    passing: &'a mut Vec<Entry>,
    dropped: Dropped,
}

/// Packets that were found and not handed over.
#[derive(Clone, Copy, Default)]
struct Dropped {
    packets: u64,
    bytes: u64,
}

impl<'a> Delivery<'a> {
    fn new(
        listener: &'a Listener,
        origin: Option<Credentials>,
        source: Option<IpAddr>,
        passing: &'a mut Vec<Entry>,
    ) -> Self {
        Self {
            id: listener.id,
            origin,
            received: Monotonic::now(),
            limits: source.zip(listener.config.rates.as_deref()),
            passing,
            dropped: Dropped::default(),
        }
    }

    #[inline]
    fn deliver(&mut self, memory: &[u8], entries: &[Entry], handle: &mut impl FnMut(Batch<'_>)) {
        let batch = Batch {
            memory,
            entries,
            listener: self.id,
            received: self.received,
            origin: self.origin,
        };
        let Some((source, rates)) = self.limits else {
            handle(batch);
            return;
        };
        let entries = self.admitted(entries, source, rates);
        if !entries.is_empty() {
            handle(Batch { entries, ..batch });
        }
    }

    fn admitted(&mut self, entries: &[Entry], source: IpAddr, rates: &SourceRates) -> &[Entry] {
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

fn add_counts(counters: &mut ListenerCounters, turn: &mut Turn, counts: &FramingCounts, dropped: Dropped) {
    counters[ListenerCounter::Packets] += counts.packets - dropped.packets;
    counters[ListenerCounter::Bytes] += counts.bytes - dropped.bytes;
    counters[ListenerCounter::RateLimited] += dropped.packets;
    counters[ListenerCounter::FramesTooLong] += counts.too_long;
    counters[ListenerCounter::FramesEmpty] += counts.empty;
    counters[ListenerCounter::BytesDiscarded] += counts.discarded_bytes;
    turn.packets += counts.packets - dropped.packets;
}
