//! Connections of a loop: reading them, room for their partial frames, and their end.

use std::io;

use super::connection::{Connection, ReadResult, UnreadBytes};
use super::descriptors::{Descriptor, Next};
use super::drain::Drain;
use super::listener::Listener;
use super::{EventLoop, PacketBatch, Turn};
use crate::framing::End;
use crate::sys;
use crate::{ListenerCounter, LoopCounter};

/// A read that brought at least this much is followed by the next without asking epoll first.
const EAGER_BYTES: usize = 16 * 1024;

/// Whether a peer has sent data recently.
struct StillSending(bool);

/// The reaction to a failed receive call.
enum ReceiveError {
    /// There is nothing.
    Empty,
    /// The next call may work.
    Retry,
    /// The kernel had no memory. The data stays there.
    NoMemory,
    /// The connection is lost.
    Lost,
}

impl Listener {
    #[cold]
    fn record_stream_error(&mut self, error: &io::Error) -> ReceiveError {
        let counters = &mut self.counters;
        match error.raw_os_error() {
            Some(libc::EAGAIN) => {
                counters[ListenerCounter::ReceiveCallsEmpty] += 1;
                ReceiveError::Empty
            }
            Some(libc::EINTR) => {
                counters[ListenerCounter::ReceiveInterrupted] += 1;
                ReceiveError::Retry
            }
            Some(libc::ENOMEM | libc::ENOBUFS) => {
                counters[ListenerCounter::ReceiveNoMemory] += 1;
                ReceiveError::NoMemory
            }
            Some(libc::ECONNRESET | libc::EPIPE | libc::ETIMEDOUT) => {
                counters[ListenerCounter::ReceiveReset] += 1;
                ReceiveError::Lost
            }
            _ => {
                counters[ListenerCounter::ReceiveOther] += 1;
                ReceiveError::Lost
            }
        }
    }

    /// One of the peer's connections held the most when there was no room.
    fn record_closed_for_room(&mut self, connection: &Connection, unkept: Option<UnreadBytes>) {
        self.counters[ListenerCounter::ConnectionsClosedBudget] += 1;
        if let Some(rest) = unkept {
            self.counters[ListenerCounter::BytesDiscarded] += rest.len() as u64;
            self.counters[ListenerCounter::FramesCut] += u64::from(connection.partial_bytes() == 0);
        }
    }

    fn record_end(&mut self, end: &End) {
        match end {
            End::Clean => {}
            End::Unterminated => self.counters[ListenerCounter::LinesUnterminated] += 1,
            End::Cut => self.counters[ListenerCounter::FramesCut] += 1,
        }
    }
}

impl EventLoop {
    pub(super) fn receive_stream(
        &mut self,
        slot: u32,
        turn: &mut Turn,
        handle: &mut impl FnMut(PacketBatch<'_>),
    ) -> Next {
        let Some(connection) = self.descriptors.connection_mut(slot) else {
            return Next::Wait;
        };
        if connection.tls.is_some() {
            return self.receive_tls(slot, turn, handle);
        }
        let listener = self.listeners.get_mut(connection.listener);
        self.counters[LoopCounter::SystemCalls] += 1;
        listener.counters[ListenerCounter::ReceiveCalls] += 1;
        let count = match connection.read(&mut self.streams) {
            Ok(0) => {
                let orderly = connection.ends_in_order(listener);
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

    /// The fate of a connection that was just read. A peer that had data may have more.
    pub(super) fn after_reading(&mut self, slot: u32, eager: bool) -> Next {
        if !self.drain.is_on() {
            return if eager { Next::Again } else { Next::Wait };
        }
        if let Some(connection) = self.descriptors.connection_mut(slot)
            && let Some(awaited_until) = &mut connection.awaited_until
        {
            let now = sys::monotonic_nanos();
            *awaited_until = Drain::silence_after(now);
            if now >= self.drain.connections_until() {
                return self.stop_awaiting(slot, StillSending(true));
            }
        }
        Next::Again
    }

    /// Finds packets in the first `count` bytes of the read buffer. False if the connection had to be closed.
    pub(super) fn feed(
        &mut self,
        slot: u32,
        count: usize,
        turn: &mut Turn,
        handle: &mut impl FnMut(PacketBatch<'_>),
    ) -> bool {
        let Some(connection) = self.descriptors.connection_mut(slot) else {
            return false;
        };
        let listener = self.listeners.get_mut(connection.listener);
        let (taken, found) = connection.feed(count, &mut self.streams, listener, handle);
        found.add_to(&mut listener.counters);
        turn.packets += found.packets();
        match taken {
            ReadResult::All => true,
            ReadResult::NoRoom(rest) => self.make_room(slot, rest, turn, handle),
            ReadResult::TooLong => {
                self.close_connection(slot, false, turn, handle);
                false
            }
        }
    }

    /// Closes the connections that hold most until the rest of this one fits. False if this connection was one of them.
    #[cold]
    fn make_room(
        &mut self,
        slot: u32,
        rest: UnreadBytes,
        turn: &mut Turn,
        handle: &mut impl FnMut(PacketBatch<'_>),
    ) -> bool {
        loop {
            let largest = self.largest_holder(slot, rest);
            let unkept = (largest == slot).then_some(rest);
            if let Some(connection) = self.descriptors.connection(largest) {
                let listener = self.listeners.get_mut(connection.listener);
                listener.record_closed_for_room(connection, unkept);
            }
            self.close_connection(largest, false, turn, handle);
            if unkept.is_some() {
                return false;
            }
            let Some(connection) = self.descriptors.connection_mut(slot) else {
                return false;
            };
            if connection.keep(rest, &mut self.streams).is_ok() {
                let counters = &mut self.listeners.get_mut(connection.listener).counters;
                counters[ListenerCounter::PartialBytes] += rest.len() as u64;
                return true;
            }
        }
    }

    /// The connection with the longest unfinished frame, this one's remainder included.
    fn largest_holder(&self, slot: u32, rest: UnreadBytes) -> u32 {
        let mut largest = (slot, rest.len());
        for (index, connection) in self.descriptors.connections() {
            let own = if index == slot { rest.len() } else { 0 };
            let holds = connection.partial_bytes() + own;
            if holds > largest.1 {
                largest = (index, holds);
            }
        }
        largest.0
    }

    #[cold]
    pub(super) fn stream_failed(
        &mut self,
        slot: u32,
        error: &io::Error,
        turn: &mut Turn,
        handle: &mut impl FnMut(PacketBatch<'_>),
    ) -> Next {
        let Some(connection) = self.descriptors.connection(slot) else {
            return Next::Wait;
        };
        let listener = self.listeners.get_mut(connection.listener);
        match listener.record_stream_error(error) {
            ReceiveError::Empty if self.drain.is_on() => {
                return self.empty_while_draining(slot, turn, handle);
            }
            ReceiveError::Empty => return Next::Wait,
            ReceiveError::Retry => return Next::Again,
            // Tried again when epoll reports it.
            ReceiveError::NoMemory if !self.drain.is_on() => return Next::Wait,
            ReceiveError::NoMemory | ReceiveError::Lost => {
                listener.counters[ListenerCounter::ConnectionsFailed] += 1
            }
        }
        self.close_connection(slot, false, turn, handle);
        Next::Wait
    }

    fn empty_while_draining(
        &mut self,
        slot: u32,
        turn: &mut Turn,
        handle: &mut impl FnMut(PacketBatch<'_>),
    ) -> Next {
        let connection = self.descriptors.connection(slot);
        match connection.and_then(|connection| connection.awaited_until) {
            Some(until) => {
                let now = sys::monotonic_nanos();
                if now >= until.min(self.drain.connections_until()) {
                    return self.stop_awaiting(slot, StillSending(now < until));
                }
            }
            None if self.drain.has_settled() => self.close_connection(slot, false, turn, handle),
            None => {}
        }
        Next::Wait
    }

    pub(super) fn close_connection(
        &mut self,
        slot: u32,
        orderly: bool,
        turn: &mut Turn,
        handle: &mut impl FnMut(PacketBatch<'_>),
    ) {
        let Descriptor::Connection(mut connection) = self.descriptors.remove(slot) else {
            return;
        };
        let listener = self.listeners.get_mut(connection.listener);
        if connection.is_handshaking() {
            self.handshakes.end_one();
            listener.counters[ListenerCounter::ConnectionsFailedTls] += 1;
        }
        let (end, found) = connection.finish(orderly, &mut self.streams, listener, handle);
        found.add_to(&mut listener.counters);
        turn.packets += found.packets();
        listener.record_end(&end);
        self.counters[LoopCounter::SystemCalls] += 1;
        listener.connection_closed(connection.peer);
    }

    #[cold]
    fn stop_awaiting(&mut self, slot: u32, StillSending(still_sending): StillSending) -> Next {
        if let Some(connection) = self.descriptors.connection_mut(slot) {
            let counters = &mut self.listeners.get_mut(connection.listener).counters;
            counters[ListenerCounter::ConnectionsCutDraining] += u64::from(still_sending);
            connection.stop_awaiting();
            self.drain.settle();
            self.counters[LoopCounter::SystemCalls] += 3;
        }
        Next::Again
    }
}
