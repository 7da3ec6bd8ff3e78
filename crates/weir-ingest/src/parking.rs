//! Packets and messages that wait for a moment until their origin is known, so that the first message of a container, or the
//! only one of a short-lived process, is tagged as well. Waiting is bounded in time and memory; a message that cannot wait proceeds with
//! what is known.

use crate::counts::ParkingCounter;
use std::collections::VecDeque;
use weir_counters::Counts;

use weir_context::OriginId;

use crate::ingest::Received;

/// Maximum bytes that wait, with an estimate for the bookkeeping of each packet.
const BYTES_MAX: usize = 1024 * 1024;
const OVERHEAD: usize = 96;

/// Longest wait of a packet or message.
pub const WAIT_NS: u64 = 1_000_000_000;

/// The look-up a packet waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Awaited {
    /// A whole packet, for the process that sent it.
    Process(i32),
    /// One line, for the tags of its origin, which is held and itself holds that of its sender.
    Tags { origin: OriginId, sender: OriginId },
}

#[derive(Clone, Debug)]
pub struct Parked {
    pub awaited: Awaited,
    pub bytes: Box<[u8]>,
    pub listener: usize,
    pub truncated: bool,
    pub received: u64,
}

impl Parked {
    pub fn as_received(&self) -> Received<'_> {
        Received {
            bytes: &self.bytes,
            listener: self.listener,
            truncated: self.truncated,
            received: self.received,
        }
    }
}

#[derive(Default)]
pub struct Parking {
    waiting: VecDeque<Parked>,
    bytes: usize,
    pub counts: Counts<ParkingCounter>,
}

impl Parking {
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub fn counts(&self) -> Counts<ParkingCounter> {
        let mut counts = self.counts;
        counts[ParkingCounter::Waiting] = self.waiting.len() as u64;
        counts
    }

    pub fn heap_bytes(&self) -> usize {
        self.bytes
    }

    /// Whole packets of a listener that wait.
    pub fn packets_of(&self, listener: usize) -> u64 {
        let of =
            |parked: &&Parked| parked.listener == listener && matches!(parked.awaited, Awaited::Process(_));
        self.waiting.iter().filter(of).count() as u64
    }

    /// Whether this many more bytes may wait. Counts refused ones.
    pub fn has_room(&mut self, bytes: usize) -> bool {
        let room = self.bytes + bytes + OVERHEAD <= BYTES_MAX;
        self.counts[ParkingCounter::NoRoom] += u64::from(!room);
        room
    }

    pub fn push(&mut self, parked: Parked) {
        self.bytes += parked.bytes.len() + OVERHEAD;
        self.counts[ParkingCounter::Parked] += 1;
        self.waiting.push_back(parked);
    }

    /// When the one that has waited longest has waited enough, in monotonic nanoseconds.
    pub fn deadline(&self) -> Option<u64> {
        // A packet that is parked again goes to the end with its arrival time, so the first is not always the oldest, but at most one wait
        // younger.
        self.waiting.front().map(|parked| parked.received + WAIT_NS)
    }

    /// Takes out everything, to be tried or parked again in the same order.
    pub fn take(&mut self) -> VecDeque<Parked> {
        self.bytes = 0;
        std::mem::take(&mut self.waiting)
    }

    /// Puts back what still waits; it was counted before.
    pub fn put_back(&mut self, parked: Parked) {
        self.bytes += parked.bytes.len() + OVERHEAD;
        self.waiting.push_back(parked);
    }
}
