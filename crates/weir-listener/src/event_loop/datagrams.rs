//! Receiving datagrams, and when not to look for them at once.

use std::io;
use std::os::fd::AsFd;

use super::batch::PacketSenders;
use super::descriptors::Next;
use super::listener::{Listener, Listeners};
use super::{EventLoop, Monotonic, PacketBatch, Turn};
use crate::sys::{Ancillary, DatagramRing, SourceSlots};
use crate::{Address, BoundSocket, guard};
use crate::{ListenerCounter, LoopCounter};

/// A batch is kept near this size by asking for fewer datagrams where they are long: 64 of 64 KiB each would keep the
/// worker from everything else for milliseconds, and push the batch's own beginning out of the cache.
const BATCH_BYTES: u64 = 512 * 1024;
const BATCH_PACKETS_MIN: u64 = 8;
/// A batch that came back short emptied its socket. If it was at least this long the next call follows without
/// asking epoll first, because more will have come while the batch was handled.
const EAGER_PACKETS: usize = 4;
/// A line that means something has at least this many bytes, its newline included: `a:1|c`.
const LINE_BYTES_MIN: u64 = 6;
/// If packets come one by one but fast, sleeping until the next packet costs a wake-up for every packet or two. After this many such
/// wake-ups in a row, each less than `DOZE_GAP_NANOS` after the previous one, the loop sleeps for `DOZE_NANOS` without polling and then
/// takes the packets that have arrived, as long as these are at least `DOZE_PACKETS` (a timer costs about as much as three wake-ups by
/// packets). Only for UDP: its receive buffer holds what a fast sender can send in that time if packets are at most `DOZE_PACKET_BYTES`
/// long, while the queue of a Unix datagram socket holds ten packets, and a sender that does not wait would lose the eleventh.
const DOZE_AFTER_WAKES: u32 = 8;
const DOZE_GAP_NANOS: u64 = 50_000;
pub(super) const DOZE_NANOS: u64 = 100_000;
const DOZE_PACKETS: usize = 4;
const DOZE_PACKET_BYTES: u64 = 1500;
const DOZE_BUFFER_BYTES: usize = 100_000;

/// Whether to sleep without looking, see [`DOZE_AFTER_WAKES`].
#[derive(Default)]
pub(super) struct Doze {
    /// No listener of this loop would suffer.
    allowed: bool,
    /// Wake-ups in a row that came fast and brought little.
    fast_wakes: u32,
    last_batch: u64,
    /// Sleep before the next turn.
    now: bool,
}

impl Doze {
    /// Allows it if it is harmless to every listener there is.
    pub(super) fn allow(&mut self, listeners: &Listeners) {
        let mut open = listeners.iter().filter(|listener| listener.socket.is_some());
        self.allowed = open.all(|listener| match listener.address {
            Address::Udp { .. } => listener.intake.buffer_bytes >= DOZE_BUFFER_BYTES,
            Address::UnixDatagram(_) => false,
            Address::Tcp { .. } | Address::UnixStream(_) => true,
        });
    }

    /// Whether to sleep before this turn.
    pub(super) fn take(&mut self) -> bool {
        std::mem::take(&mut self.now)
    }

    /// Learns from a batch of datagrams. True if the loop shall doze before it receives again.
    fn update(&mut self, batch: &Received) -> bool {
        if !self.allowed || batch.count >= batch.limit / 2 {
            return false;
        }
        let small = batch.bytes <= DOZE_PACKET_BYTES * batch.count as u64;
        let dozing = self.fast_wakes >= DOZE_AFTER_WAKES;
        let keep = if dozing {
            batch.count >= DOZE_PACKETS
        } else {
            batch.at.0.wrapping_sub(self.last_batch) < DOZE_GAP_NANOS
        };
        self.last_batch = batch.at.0;
        self.fast_wakes = if keep && small { self.fast_wakes + 1 } else { 0 };
        self.now = self.fast_wakes >= DOZE_AFTER_WAKES;
        self.now
    }
}

/// A listener's request for datagrams.
pub(super) struct Intake {
    /// The content of its socket.
    buffer_bytes: usize,
    /// Datagrams to ask for, by the length of those of the last batch.
    limit: usize,
    ancillary: Ancillary,
    /// Datagrams have to pass something before they are handed over.
    guarded: bool,
    /// The kernel is asked where they come from.
    sources: bool,
}

impl Intake {
    pub(super) fn new(bound: &BoundSocket, ring_slots: usize) -> Self {
        let ancillary = match bound.address {
            Address::Udp { .. } => Ancillary::Drops,
            Address::UnixDatagram(_) if bound.config.pass_credentials => Ancillary::Credentials,
            _ => Ancillary::None,
        };
        let guarded = matches!(bound.address, Address::Udp { .. }) && guard::is_on(&bound.config);
        Self {
            buffer_bytes: bound.buffer.granted,
            limit: ring_slots,
            ancillary,
            guarded,
            sources: guarded,
        }
    }

    /// Asks where datagrams come from, or no longer, as far as nothing else needs to know.
    pub(super) fn report_sources(&mut self, is_internet: bool, wanted: bool) {
        self.sources = self.guarded || (is_internet && wanted);
    }

    /// So that the next batch is about as long in bytes as it should be.
    #[inline]
    fn adapt(&mut self, slots: usize, packets: u64, bytes: u64) {
        let fitting = (BATCH_BYTES * packets / bytes.max(1)).max(BATCH_PACKETS_MIN);
        self.limit = slots.min(fitting as usize);
    }
}

/// The result of a receive call.
struct Received {
    /// Datagrams, those that were not let through included.
    count: usize,
    /// Number requested.
    limit: usize,
    /// At the beginning of the ring.
    passed: usize,
    /// Bytes of the packets that passed, as far as they are handed over.
    bytes: u64,
    at: Monotonic,
}

/// The reaction to a failed receive call.
enum ReceiveError {
    /// There is nothing.
    Empty,
    /// The next call may work.
    Retry,
    /// The next call would fail as well.
    Persistent,
}

impl Listener {
    /// One receive call. Counts its packets. `None` without any.
    #[inline]
    fn receive(&mut self, ring: &mut DatagramRing) -> io::Result<Option<Received>> {
        let Some(socket) = &self.socket else {
            return Ok(None);
        };
        self.counters[ListenerCounter::ReceiveCalls] += 1;
        let (fd, limit, ancillary) = (socket.fd.as_fd(), self.intake.limit, self.intake.ancillary);
        let (count, drops) = if self.intake.sources {
            ring.receive_with_sources(fd, limit, ancillary)?
        } else {
            ring.receive(fd, limit, ancillary)?
        };
        if count == 0 {
            return Ok(None);
        }
        let at = Monotonic::now();
        if let Some(drops) = drops {
            self.record_drops(drops);
        }
        let passed = if self.intake.guarded {
            guard::pass(ring, count, &self.config, at, &mut self.counters)
        } else {
            count
        };
        let bytes = self.shorten(ring, passed);
        if passed > 0 {
            self.intake.adapt(ring.slots(), passed as u64, bytes);
        }
        Ok(Some(Received {
            count,
            limit,
            passed,
            bytes,
            at,
        }))
    }

    /// Cuts datagrams above the limit, and counts the rest. Returns the bytes handed over.
    #[inline]
    fn shorten(&mut self, ring: &mut DatagramRing, count: usize) -> u64 {
        let (_, entries) = ring.parts_mut();
        let longest = self.config.max_packet_bytes as u32;
        let identified = self.intake.ancillary == Ancillary::Credentials;
        let counters = &mut self.counters;
        let mut bytes = 0;
        for entry in &mut entries[..count] {
            if entry.length > longest {
                entry.lost += entry.length - longest;
                entry.length = longest;
            }
            bytes += u64::from(entry.length);
            if entry.lost > 0 {
                counters[ListenerCounter::Truncated] += 1;
                counters[ListenerCounter::TruncatedLinesMax] += (u64::from(entry.lost) + 1) / LINE_BYTES_MIN;
            }
            if identified && entry.origin.is_none_or(|origin| origin.pid <= 0) {
                counters[ListenerCounter::OriginErrors] += 1;
                entry.origin = None;
            }
        }
        counters[ListenerCounter::Packets] += count as u64;
        counters[ListenerCounter::Bytes] += bytes;
        bytes
    }

    #[cold]
    fn record_receive_error(&mut self, error: &io::Error) -> ReceiveError {
        let counters = &mut self.counters;
        match error.raw_os_error() {
            Some(libc::EAGAIN) => {
                counters[ListenerCounter::ReceiveCallsEmpty] += 1;
                return ReceiveError::Empty;
            }
            Some(libc::EINTR) => {
                counters[ListenerCounter::ReceiveInterrupted] += 1;
                return ReceiveError::Retry;
            }
            // Left over from a datagram we are said to have sent; the next call works.
            Some(libc::ECONNREFUSED | libc::ECONNRESET) => {
                counters[ListenerCounter::ReceiveReset] += 1;
                return ReceiveError::Retry;
            }
            Some(libc::ENOMEM | libc::ENOBUFS) => counters[ListenerCounter::ReceiveNoMemory] += 1,
            _ => counters[ListenerCounter::ReceiveOther] += 1,
        }
        ReceiveError::Persistent
    }
}

impl EventLoop {
    #[inline]
    pub(super) fn receive_datagrams(
        &mut self,
        number: u32,
        turn: &mut Turn,
        handle: &mut impl FnMut(PacketBatch<'_>),
    ) -> Next {
        let listener = self.listeners.get_mut(number);
        self.counters[LoopCounter::SystemCalls] += u64::from(listener.socket.is_some());
        let received = match listener.receive(&mut self.ring) {
            Ok(Some(received)) => received,
            Ok(None) => return Next::Wait,
            Err(error) => {
                let failed = listener.record_receive_error(&error);
                return self.no_datagrams(number, failed);
            }
        };
        turn.packets += received.passed as u64;
        turn.bytes += received.bytes;
        let (memory, entries, sources) = self.ring.parts();
        if received.passed > 0 {
            let known = listener.intake.sources;
            handle(PacketBatch {
                memory,
                entries: &entries[..received.passed],
                listener: listener.id,
                received: received.at,
                origin: None,
                sources: PacketSenders::Datagrams(if known { sources } else { SourceSlots::UNKNOWN }),
            });
        }
        let eager = received.count >= EAGER_PACKETS.min(received.limit);
        if listener.is_draining() {
            self.drain_on(number)
        } else if self.doze.update(&received) || eager {
            Next::Again
        } else {
            Next::Wait
        }
    }

    #[cold]
    fn drain_on(&mut self, number: u32) -> Next {
        if self.listeners.get(number).kept && self.drain.is_over() {
            self.close_listener(number);
            return Next::Wait;
        }
        Next::Again
    }

    #[cold]
    fn no_datagrams(&mut self, number: u32, failed: ReceiveError) -> Next {
        match failed {
            ReceiveError::Retry => return Next::Again,
            ReceiveError::Empty if !self.listeners.get(number).is_draining() => {}
            // Until then it is asked again at each turn, which waits a millisecond at most.
            ReceiveError::Empty if self.drain.has_settled() => self.close_listener(number),
            ReceiveError::Empty => {}
            ReceiveError::Persistent => self.pause(number),
        }
        Next::Wait
    }
}
