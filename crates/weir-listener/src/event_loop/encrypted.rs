//! Encrypted connections of a loop.

use std::os::fd::AsFd;

use super::connection::Connection;
use super::descriptors::Next;
use super::{EventLoop, PacketBatch, Turn};
use crate::tls::{TLS_READ_BYTES, TLS_SESSION_BYTES};
use crate::{ListenerCounter, LoopCounter};
use crate::{ListenerId, TlsError, sys};

/// Interval of the check for connections that are not encrypted yet.
const LOOK_NANOS: u64 = 1_000_000_000;

/// State that encrypted connections share.
#[derive(Default)]
pub(super) struct Handshakes {
    /// Connections that are not encrypted yet.
    open: usize,
    /// When they are looked at next.
    check_at: u64,
    /// Why the last connection that should be encrypted was not.
    error: Option<(ListenerId, TlsError)>,
    /// Ciphertext, once there was some.
    ciphertext: Vec<u8>,
}

impl Handshakes {
    pub(super) fn begin_one(&mut self) {
        self.open += 1;
    }

    pub(super) fn end_one(&mut self) {
        self.open -= 1;
    }

    #[inline]
    pub(super) fn any_open(&self) -> bool {
        self.open > 0
    }

    pub(super) fn record_error(&mut self, listener: ListenerId, error: TlsError) {
        self.error = Some((listener, error));
    }

    pub(super) fn take_error(&mut self) -> Option<(ListenerId, TlsError)> {
        self.error.take()
    }

    /// Destination of read ciphertext.
    fn read_buffer(&mut self) -> &mut [u8] {
        self.ciphertext.resize(TLS_READ_BYTES, 0);
        &mut self.ciphertext
    }

    fn is_time(&mut self, now: u64) -> bool {
        let is_time = now >= self.check_at;
        if is_time {
            self.check_at = now + LOOK_NANOS;
        }
        is_time
    }
}

/// The state of a connection after some ciphertext.
enum DecryptResult {
    Open,
    Ended,
}

impl Connection {
    /// Takes as much of the received bytes as fits, and sends TLS's replies to the peer. Returns the number of bytes taken.
    fn take_ciphertext(&mut self, received: &[u8], system_calls: &mut u64) -> Result<usize, TlsError> {
        let Some(tls) = &mut self.tls else { return Ok(0) };
        let taken = tls.take(received);
        // An error's reason is for the peer to know too.
        let answered = tls.answer(self.fd.as_fd(), system_calls);
        match taken? {
            0 => Err(TlsError::TooMuchAtOnce),
            taken => answered.map(|()| taken).map_err(TlsError::NoAnswer),
        }
    }
}

impl EventLoop {
    /// Bytes reserved for encrypted connections: the maximum of each open one, and their shared buffer.
    pub fn tls_bytes_held(&self) -> usize {
        let connections = self.descriptors.connections();
        let encrypted = connections.filter(|(_, connection)| connection.tls.is_some());
        encrypted.count() * TLS_SESSION_BYTES + self.handshakes.ciphertext.capacity()
    }

    /// Why the last connection that should have been encrypted was not, since the last call.
    pub fn take_tls_error(&mut self) -> Option<(ListenerId, TlsError)> {
        self.handshakes.take_error()
    }

    /// [`EventLoop::receive_stream`] of an encrypted connection.
    pub(super) fn receive_tls(
        &mut self,
        slot: u32,
        turn: &mut Turn,
        handle: &mut impl FnMut(PacketBatch<'_>),
    ) -> Next {
        let Some(connection) = self.descriptors.connection(slot) else {
            return Next::Wait;
        };
        self.counters[LoopCounter::SystemCalls] += 1;
        let listener = self.listeners.get_mut(connection.listener);
        listener.counters[ListenerCounter::ReceiveCalls] += 1;
        let count = match sys::receive(connection.fd.as_fd(), self.handshakes.read_buffer()) {
            // Without close_notify: the end may be missing.
            Ok(0) => {
                self.close_connection(slot, false, turn, handle);
                return Next::Wait;
            }
            Ok(count) => count,
            Err(error) => return self.stream_failed(slot, &error, turn, handle),
        };
        turn.bytes += count as u64;
        match self.decrypt(slot, count, turn, handle) {
            DecryptResult::Open => self.after_reading(slot, count == TLS_READ_BYTES),
            DecryptResult::Ended => Next::Wait,
        }
    }

    /// Takes the first `count` bytes of ciphertext, in as many parts as TLS needs, and finds packets in the plain text.
    fn decrypt(
        &mut self,
        slot: u32,
        count: usize,
        turn: &mut Turn,
        handle: &mut impl FnMut(PacketBatch<'_>),
    ) -> DecryptResult {
        let mut at = 0;
        while at < count {
            let Some(connection) = self.descriptors.connection_mut(slot) else {
                return DecryptResult::Ended;
            };
            let was_handshaking = connection.is_handshaking();
            let ciphertext = &self.handshakes.ciphertext[at..count];
            let taken = connection.take_ciphertext(ciphertext, &mut self.counters[LoopCounter::SystemCalls]);
            if was_handshaking && !connection.is_handshaking() {
                self.handshakes.end_one();
            }
            match taken {
                Ok(taken) => at += taken,
                Err(error) => {
                    self.tls_failed(slot, error, turn, handle);
                    return DecryptResult::Ended;
                }
            }
            if let DecryptResult::Ended = self.feed_decrypted(slot, turn, handle) {
                return DecryptResult::Ended;
            }
        }
        DecryptResult::Open
    }

    fn feed_decrypted(
        &mut self,
        slot: u32,
        turn: &mut Turn,
        handle: &mut impl FnMut(PacketBatch<'_>),
    ) -> DecryptResult {
        loop {
            let connection = self.descriptors.connection_mut(slot);
            let Some(tls) = connection.and_then(|connection| connection.tls.as_mut()) else {
                return DecryptResult::Ended;
            };
            let count = tls.plain(self.streams.read_buffer());
            if count == 0 {
                if !tls.ended {
                    return DecryptResult::Open;
                }
                self.close_connection(slot, true, turn, handle);
                return DecryptResult::Ended;
            }
            if !self.feed(slot, count, turn, handle) {
                return DecryptResult::Ended;
            }
        }
    }

    /// Closes a connection that is not, or no longer, properly encrypted.
    #[cold]
    fn tls_failed(
        &mut self,
        slot: u32,
        error: TlsError,
        turn: &mut Turn,
        handle: &mut impl FnMut(PacketBatch<'_>),
    ) {
        if let Some(connection) = self.descriptors.connection(slot) {
            let listener = self.listeners.get_mut(connection.listener);
            self.handshakes.record_error(listener.id, error);
            // One that is still handshaking is counted where it is closed.
            if !connection.is_handshaking() {
                listener.counters[ListenerCounter::ConnectionsFailedTls] += 1;
            }
        }
        self.close_connection(slot, false, turn, handle);
    }

    /// Closes connections that have had long enough to say how they are to be encrypted.
    pub(super) fn end_slow_handshakes(&mut self, turn: &mut Turn, handle: &mut impl FnMut(PacketBatch<'_>)) {
        let now = sys::monotonic_nanos();
        if !self.handshakes.is_time(now) {
            return;
        }
        for slot in self.descriptors.places() {
            if let Some(connection) = self.descriptors.connection(slot)
                && let Some(tls) = &connection.tls
                && tls.is_handshaking()
                && (now >= tls.deadline || self.drain.is_on())
            {
                self.tls_failed(slot, TlsError::NoHandshake, turn, handle);
            }
        }
    }
}
