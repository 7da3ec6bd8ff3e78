//! Receiving datagrams, and when not to look for them at once.

use std::io;
use std::os::fd::AsFd;

use super::{Batch, EventLoop, Monotonic, Next, Phase, Turn};
use crate::sys::{self, Ancillary};
use crate::{Address, guard};
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
/// Sleeping until the first packet comes costs a wake-up for every packet or two when packets come one by one but
/// fast. After this many such wake-ups in a row, each less than `DOZE_GAP_NANOS` after the one before, the loop
/// sleeps for `DOZE_NANOS` without looking and takes what has come then, as long as that is at least
/// `DOZE_PACKETS` (a timer costs about as much as three wake-ups by packets). Only for UDP: its receive buffer holds
/// what a fast sender can send in that time if packets are at most `DOZE_PACKET_BYTES` long, while the queue of a Unix
/// datagram socket holds ten packets, and a sender that does not wait would lose the eleventh.
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
    pub(super) allowed: bool,
    /// Wake-ups in a row that came fast and brought little.
    fast_wakes: u32,
    last_batch: u64,
    /// Sleep before the next turn.
    pub(super) now: bool,
}

impl Doze {
    /// Learns from a batch of UDP datagrams. True if the loop shall doze before it receives again.
    fn learn(&mut self, count: usize, bytes: u64, received: u64) -> bool {
        let small = bytes <= DOZE_PACKET_BYTES * count as u64;
        let dozing = self.fast_wakes >= DOZE_AFTER_WAKES;
        let keep = if dozing {
            count >= DOZE_PACKETS
        } else {
            received.wrapping_sub(self.last_batch) < DOZE_GAP_NANOS
        };
        self.last_batch = received;
        self.fast_wakes = if keep && small { self.fast_wakes + 1 } else { 0 };
        self.now = self.fast_wakes >= DOZE_AFTER_WAKES;
        self.now
    }
}

impl EventLoop {
    /// Whether dozing is harmless to every listener there is.
    pub(super) fn allow_doze(&self) -> bool {
        self.listeners
            .iter()
            .filter(|listener| listener.fd.is_some())
            .all(|listener| match listener.address {
                Address::Udp { .. } => listener.buffer_bytes >= DOZE_BUFFER_BYTES,
                Address::UnixDatagram(_) => false,
                Address::Tcp { .. } | Address::UnixStream(_) => true,
            })
    }

    pub(super) fn receive_datagrams(
        &mut self,
        index: u32,
        turn: &mut Turn,
        handle: &mut impl FnMut(Batch<'_>),
    ) -> Next {
        let listener = &mut self.listeners[index as usize];
        let Some(fd) = &listener.fd else { return Next::Wait };
        let (slots, limit) = (self.ring.slots(), listener.batch_limit);
        self.counters[LoopCounter::SystemCalls] += 1;
        listener.counters[ListenerCounter::ReceiveCalls] += 1;
        let received = if listener.guarded {
            self.ring
                .receive_with_sources(fd.as_fd(), limit, listener.ancillary)
        } else {
            self.ring.receive(fd.as_fd(), limit, listener.ancillary)
        };
        let (received_count, drops) = match received {
            Ok(received) => received,
            Err(error) => return self.datagrams_failed(index, &error),
        };
        if received_count == 0 {
            return Next::Wait;
        }
        let received = Monotonic::now();
        if let Some(drops) = drops {
            listener.note_drops(drops);
        }
        let count = if listener.guarded {
            guard::pass(
                &mut self.ring,
                received_count,
                &listener.config,
                received,
                &mut listener.counters,
            )
        } else {
            received_count
        };
        let (memory, entries) = self.ring.parts_mut();
        let entries = &mut entries[..count];
        let longest = listener.config.max_packet_bytes as u32;
        let counters = &mut listener.counters;
        let mut bytes = 0;
        for entry in entries.iter_mut() {
            if entry.length > longest {
                entry.lost += entry.length - longest;
                entry.length = longest;
            }
            bytes += u64::from(entry.length);
            if entry.lost > 0 {
                counters[ListenerCounter::Truncated] += 1;
                counters[ListenerCounter::TruncatedLinesMax] += (u64::from(entry.lost) + 1) / LINE_BYTES_MIN;
            }
            if listener.ancillary == Ancillary::Credentials
                && entry.origin.is_none_or(|origin| origin.pid <= 0)
            {
                counters[ListenerCounter::OriginErrors] += 1;
                entry.origin = None;
            }
        }
        counters[ListenerCounter::Packets] += count as u64;
        counters[ListenerCounter::Bytes] += bytes;
        turn.packets += count as u64;
        turn.bytes += bytes;
        if count > 0 {
            let fitting = (BATCH_BYTES * count as u64 / bytes.max(1)).max(BATCH_PACKETS_MIN);
            listener.batch_limit = slots.min(fitting as usize);
            handle(Batch {
                memory,
                entries,
                listener: listener.id,
                received,
                origin: None,
            });
        }
        let count = received_count;
        if self.doze.allowed && count < limit / 2 && self.doze.learn(count, bytes, received.0) {
            return Next::Again;
        }
        if count >= EAGER_PACKETS.min(limit) || listener.phase == Phase::Draining {
            Next::Again
        } else {
            Next::Wait
        }
    }

    #[cold]
    fn datagrams_failed(&mut self, index: u32, error: &io::Error) -> Next {
        let listener = &mut self.listeners[index as usize];
        match error.raw_os_error() {
            Some(libc::EAGAIN) => {
                listener.counters[ListenerCounter::ReceiveCallsEmpty] += 1;
                if listener.phase == Phase::Draining {
                    if sys::monotonic_nanos() < self.drain_settled_at {
                        // Asked again at the next turn, which waits a millisecond at most.
                        return Next::Wait;
                    }
                    self.close_listener(index);
                }
                return Next::Wait;
            }
            Some(libc::EINTR) => {
                listener.counters[ListenerCounter::ReceiveInterrupted] += 1;
                return Next::Again;
            }
            Some(libc::ENOMEM | libc::ENOBUFS) => listener.counters[ListenerCounter::ReceiveNoMemory] += 1,
            // Left over from a datagram we are said to have sent; the next call works.
            Some(libc::ECONNREFUSED | libc::ECONNRESET) => {
                listener.counters[ListenerCounter::ReceiveReset] += 1;
                return Next::Again;
            }
            _ => listener.counters[ListenerCounter::ReceiveOther] += 1,
        }
        self.pause(index);
        Next::Wait
    }
}
