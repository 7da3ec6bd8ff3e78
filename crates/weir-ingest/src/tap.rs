//! Copies packets for readers: a random sample, or all. Without a reader a batch costs one check of an empty list.
//!
//! A copied packet is processed as usual, and its fate is the difference of the counts before and after. A worker never waits for a reader:
//! packets without room are lost to that reader only, and counted.

use std::net::SocketAddr;

use weir_listener::Credentials;

use crate::counts::{IngestCounter, RefusalReason, SampleDrop};
use crate::ingest::Ingest;

/// A sample is drawn for each interval of this length, by the traffic of the previous one.
const STRETCH_NS: u64 = 100_000_000;

/// Longest wait of a copy for others.
const LINGER_NS: u64 = 50_000_000;

/// Maximum time without a block, so that the reader gets current counts, and the tap notices that its reader has disconnected.
const QUIET_NS: u64 = 500_000_000;

/// Bytes per packet besides its content.
const PACKET_BYTES: usize = size_of::<TappedPacket>();

/// Takes a block without waiting. `Err(Some)`: there is no room, and the block is returned. `Err(None)`: the reader has disconnected.
pub type TapPush = Box<dyn FnMut(TapBlock) -> Result<(), Option<TapBlock>> + Send>;

/// A reader's request.
pub struct TapSettings {
    /// About this many bytes a second, selected at random; `None`: everything.
    pub sample: Option<u64>,
    /// Bytes after which a block is handed over.
    pub block_bytes: usize,
    pub push: TapPush,
}

/// Copies of packets.
#[derive(Debug, Default)]
pub struct TapBlock {
    pub packets: Vec<TappedPacket>,
    /// The bytes of all packets, concatenated.
    pub bytes: Vec<u8>,
    /// Since the block before: messages that came, packets that came, and those that ought to be here and found no room.
    pub messages: u64,
    pub seen: u64,
    pub lost: u64,
    /// The first block of its worker, empty: later packets are copied.
    pub begins: bool,
}

impl TapBlock {
    /// The packets, each with its bytes.
    pub fn iter(&self) -> impl Iterator<Item = (&TappedPacket, &[u8])> {
        let mut rest = &self.bytes[..];
        self.packets.iter().map(move |packet| {
            let (bytes, behind) = rest.split_at(packet.length as usize);
            rest = behind;
            (packet, bytes)
        })
    }

    pub fn heap_bytes(&self) -> usize {
        self.bytes.capacity() + self.packets.capacity() * PACKET_BYTES
    }

    fn filled(&self) -> usize {
        self.bytes.len() + self.packets.len() * PACKET_BYTES
    }
}

/// A packet that was copied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TappedPacket {
    pub listener: u16,
    pub length: u32,
    /// Monotonic nanoseconds.
    pub received: u64,
    pub truncated: bool,
    pub sender: Option<Credentials>,
    pub source: Option<SocketAddr>,
    pub outcome: PacketOutcome,
}

/// The result of a packet as a whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PacketOutcome {
    /// It was not taken, because of its sender.
    pub refused: Option<RefusalReason>,
    /// Its origin had sent more than it may.
    pub rate_limited: bool,
    /// Samples without a context, because of a limit on contexts or memory.
    pub limited: u64,
    /// Samples with a timestamp, events and checks that were dropped because too many waited for the outputs.
    pub not_queued: u64,
}

/// The counts that show the fate of a packet.
#[derive(Clone, Copy)]
pub struct CountsBefore {
    refused: [u64; RefusalReason::COUNT],
    rate_limited: u64,
    limited: u64,
    not_queued: u64,
}

impl CountsBefore {
    pub fn of(ingest: &Ingest, listener: usize) -> CountsBefore {
        let counts = &ingest.counts()[listener];
        CountsBefore {
            refused: RefusalReason::ALL.map(|refusal| counts.packets_refused[refusal]),
            rate_limited: counts[IngestCounter::PacketsRateLimited],
            limited: counts.limited(),
            not_queued: counts.samples_dropped[SampleDrop::QueueFull]
                + counts[IngestCounter::EventsDropped]
                + counts[IngestCounter::ChecksDropped],
        }
    }

    /// The change of the counts since then.
    pub fn outcome(self, ingest: &Ingest, listener: usize) -> PacketOutcome {
        let now = CountsBefore::of(ingest, listener);
        let refused = (0..RefusalReason::COUNT).find(|&at| now.refused[at] > self.refused[at]);
        PacketOutcome {
            refused: refused.map(|at| RefusalReason::ALL[at]),
            rate_limited: now.rate_limited > self.rate_limited,
            limited: now.limited - self.limited,
            not_queued: now.not_queued - self.not_queued,
        }
    }
}

/// Messages of all listeners.
fn messages(ingest: &Ingest) -> u64 {
    let counts = ingest.counts().iter();
    counts.map(|counts| counts[IngestCounter::Messages]).sum()
}

/// The taps of a worker.
#[derive(Default)]
pub struct Taps {
    all: Vec<Tap>,
}

impl Taps {
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub fn add(&mut self, settings: TapSettings, ingest: &Ingest, now: u64) {
        let mut tap = Tap {
            sample: settings
                .sample
                .map(|per_second| PacketSampler::new(per_second, now)),
            block_bytes: settings.block_bytes.max(1),
            push: settings.push,
            open: TapBlock {
                begins: true,
                ..TapBlock::default()
            },
            oldest: None,
            handed_over: now,
            messages: messages(ingest),
        };
        if tap.hand_over(ingest, now) {
            self.all.push(tap);
        }
    }

    /// A packet that was taken.
    pub fn take(&mut self, packet: &TappedPacket, bytes: &[u8]) {
        for tap in &mut self.all {
            tap.take(packet, bytes);
        }
    }

    /// Hands over due blocks, and removes taps without readers. Called between two receive turns.
    pub fn turn(&mut self, ingest: &Ingest, now: u64) {
        self.all
            .retain_mut(|tap| now < tap.deadline() || tap.hand_over(ingest, now));
    }

    /// When [`Taps::turn`] has something to do, in monotonic nanoseconds.
    pub fn deadline(&self) -> Option<u64> {
        self.all.iter().map(Tap::deadline).min()
    }

    /// Hands over everything, at the end.
    pub fn finish(&mut self, ingest: &Ingest) {
        self.turn(ingest, u64::MAX);
        self.all.clear();
    }
}

struct Tap {
    sample: Option<PacketSampler>,
    block_bytes: usize,
    push: TapPush,
    open: TapBlock,
    /// When the first packet in the open block came.
    oldest: Option<u64>,
    handed_over: u64,
    /// Messages of all listeners, at the last block.
    messages: u64,
}

impl Tap {
    fn take(&mut self, packet: &TappedPacket, bytes: &[u8]) {
        self.open.seen += 1;
        if let Some(sample) = &mut self.sample
            && !sample.wants(bytes.len() + PACKET_BYTES, packet.received)
        {
            return;
        }
        if self.open.filled() >= self.block_bytes && !self.push(packet.received) {
            self.open.lost += 1;
            return;
        }
        self.open.bytes.extend_from_slice(bytes);
        self.open.packets.push(packet.clone());
        self.oldest.get_or_insert(packet.received);
    }

    fn deadline(&self) -> u64 {
        let quiet = self.handed_over.saturating_add(QUIET_NS);
        self.oldest.map_or(quiet, |oldest| quiet.min(oldest + LINGER_NS))
    }

    /// Returns false if the reader has disconnected.
    fn hand_over(&mut self, ingest: &Ingest, now: u64) -> bool {
        let messages = messages(ingest);
        self.open.messages += messages - self.messages;
        self.messages = messages;
        self.handed_over = now;
        self.oldest = None;
        let block = std::mem::take(&mut self.open);
        match (self.push)(block) {
            Ok(()) => true,
            Err(Some(block)) => {
                self.discard(block);
                true
            }
            Err(None) => false,
        }
    }

    /// Hands over a full block. Returns false if there was no room or the reader has disconnected, which the next turn detects.
    fn push(&mut self, now: u64) -> bool {
        self.handed_over = now;
        let block = std::mem::take(&mut self.open);
        self.oldest = None;
        match (self.push)(block) {
            Ok(()) => true,
            Err(Some(block)) => {
                self.discard(block);
                false
            }
            Err(None) => false,
        }
    }

    /// Discards a block without room. Its counts are added to the next block.
    fn discard(&mut self, block: TapBlock) {
        self.open.begins |= block.begins;
        self.open.lost += block.lost + block.packets.len() as u64;
        self.open.messages += block.messages;
        self.open.seen += block.seen;
    }
}

/// Chooses packets at random, so that about as many bytes are chosen in a stretch as may be.
pub struct PacketSampler {
    bytes_per_stretch: u64,
    ends: u64,
    seen: u64,
    taken: u64,
    /// Wanted packets out of 2^32.
    wanted: u64,
    random: u64,
}

impl PacketSampler {
    pub fn new(per_second: u64, now: u64) -> PacketSampler {
        PacketSampler {
            bytes_per_stretch: (per_second * STRETCH_NS / 1_000_000_000).max(1),
            ends: now + STRETCH_NS,
            seen: 0,
            taken: 0,
            wanted: 1 << 32,
            random: now | 1,
        }
    }

    /// Whether a packet of this size is chosen. `now`: monotonic nanoseconds.
    pub fn wants(&mut self, bytes: usize, now: u64) -> bool {
        if now >= self.ends {
            self.next_stretch(now);
        }
        self.seen += bytes as u64;
        if self.taken >= 2 * self.bytes_per_stretch || self.random() >= self.wanted {
            return false;
        }
        self.taken += bytes as u64;
        true
    }

    fn next_stretch(&mut self, now: u64) {
        self.wanted = match self.seen {
            0 => 1 << 32,
            seen => (self.bytes_per_stretch.saturating_mul(1 << 32) / seen).min(1 << 32),
        };
        self.ends = now + STRETCH_NS;
        self.seen = 0;
        self.taken = 0;
    }

    /// Below 2^32.
    fn random(&mut self) -> u64 {
        // Xorshift: quality enough for not walking in step with a sender.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random >> 32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_is_everything_at_a_low_rate_and_a_share_at_a_high_one() {
        let mut sample = PacketSampler::new(10_000, 1);
        let mut now = 1;
        let mut taken_in = |every_ns: u64| {
            let end = now + 10_000_000_000;
            let mut taken = (0, 0);
            while now < end {
                now += every_ns;
                taken.0 += u64::from(sample.wants(100, now));
                taken.1 += 1;
            }
            taken
        };
        let (taken, came) = taken_in(20_000_000);
        assert_eq!(taken, came, "5000 bytes a second");
        let (taken, _) = taken_in(10_000);
        // 10 seconds of 100 packets, and a first stretch that did not know.
        assert!((800..1250).contains(&taken), "{taken}");
        let (taken, came) = taken_in(20_000_000);
        assert!(taken > came - 20, "{taken} of {came}");
    }

    #[test]
    fn blocks_keep_packets_apart() {
        let packet = |length| TappedPacket {
            listener: 0,
            length,
            received: 0,
            truncated: false,
            sender: None,
            source: None,
            outcome: PacketOutcome::default(),
        };
        let block = TapBlock {
            packets: vec![packet(2), packet(0), packet(3)],
            bytes: b"abcde".to_vec(),
            ..TapBlock::default()
        };
        let parts: Vec<&[u8]> = block.iter().map(|(_, bytes)| bytes).collect();
        assert_eq!(parts, [&b"ab"[..], b"", b"cde"]);
    }
}
