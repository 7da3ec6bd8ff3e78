//! The work on the bytes of a received packet, from only counting lines to a table look-up.
//!
//! These are lower bounds, not parsers: an invalid message is counted as a line.

use super::sys::masks;
use std::hint::black_box;

/// Depth of the work on each packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Depth {
    /// Count the lines: one vectorised pass over the bytes.
    L0,
    /// L0, and find the end of name and value and every section of each message.
    L1,
    /// L1, and hash name and tags and look the hash up in a table of counters.
    L3,
}

impl Depth {
    pub fn name(self) -> &'static str {
        match self {
            Depth::L0 => "L0",
            Depth::L1 => "L1",
            Depth::L3 => "L3",
        }
    }
}

/// A pass over packets, with its state.
pub struct Pass {
    depth: Depth,
    table: Table,
}

impl Pass {
    pub fn new(depth: Depth) -> Pass {
        Pass {
            depth,
            table: Table::new(),
        }
    }

    /// Processes one packet. Returns its messages: lines, the last of which may lack its newline.
    #[inline]
    pub fn packet(&mut self, packet: &[u8]) -> u64 {
        match self.depth {
            Depth::L0 => lines(packet),
            Depth::L1 => {
                let mut sum = 0usize;
                let messages = tokenise(packet, |_, message| {
                    sum = sum.wrapping_add(message.name_end ^ message.value_end ^ message.end);
                });
                black_box(sum);
                messages
            }
            Depth::L3 => {
                let table = &mut self.table;
                tokenise(packet, |packet, message| {
                    let name = &packet[message.start..message.name_end];
                    let tail = &packet[message.value_end..message.end];
                    table.count(hash(name, hash(tail, SEED)));
                })
            }
        }
    }

    /// Distinct names and tails seen (L3 only).
    pub fn distinct(&self) -> usize {
        self.table.used
    }
}

/// Lines in a packet, an unterminated last one included.
#[inline]
pub fn lines(packet: &[u8]) -> u64 {
    let newlines = memchr::memchr_iter(b'\n', packet).count() as u64;
    newlines + u64::from(packet.last().is_some_and(|&last| last != b'\n'))
}

/// Offsets of one message in its packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Message {
    pub start: usize,
    /// The first `:`, or the end.
    pub name_end: usize,
    /// The first `|` after the name, or the end.
    pub value_end: usize,
    /// The newline, or the end of the packet.
    pub end: usize,
    /// Number of `|` after the name.
    pub sections: usize,
}

/// Calls `visit` for each message; returns how many there were.
#[inline]
fn tokenise(packet: &[u8], mut visit: impl FnMut(&[u8], Message)) -> u64 {
    const OPEN: usize = usize::MAX;
    let fresh = |start| Message {
        start,
        name_end: OPEN,
        value_end: OPEN,
        end: OPEN,
        sections: 0,
    };
    let mut messages = 0;
    let mut message = fresh(0);
    let mut finish = |mut message: Message, end: usize| {
        message.end = end;
        message.name_end = message.name_end.min(end);
        message.value_end = message.value_end.min(end);
        visit(packet, message);
        messages += 1;
    };
    let (blocks, rest) = packet.as_chunks::<64>();
    let mut last = [0u8; 64];
    last[..rest.len()].copy_from_slice(rest);
    let mut base = 0;
    for block in blocks.iter().chain(std::iter::once(&last)) {
        let found = masks(block);
        // Only colons before the value matter; tags contain many, which cost nothing here.
        let mut ends = found.newline | found.bar;
        let mut reached = 0u64;
        loop {
            if message.name_end == OPEN {
                let colon = found.colon & !reached;
                let newline = found.newline & !reached;
                if colon != 0 && (newline == 0 || colon.trailing_zeros() < newline.trailing_zeros()) {
                    let bit = colon.trailing_zeros();
                    message.name_end = base + bit as usize;
                    reached |= (1u64 << bit) | ((1u64 << bit) - 1);
                    ends &= !reached;
                } else {
                    // No name end before the next newline: earlier bars are meaningless.
                    ends &= found.newline;
                }
            }
            if ends == 0 {
                break;
            }
            let bit = ends.trailing_zeros();
            let at = base + bit as usize;
            ends &= ends - 1;
            if found.newline & (1u64 << bit) != 0 {
                finish(message, at);
                message = fresh(at + 1);
                reached |= (1u64 << bit) | ((1u64 << bit) - 1);
                ends = (found.newline | found.bar) & !reached;
            } else {
                if message.sections == 0 {
                    message.value_end = at;
                }
                message.sections += 1;
            }
        }
        base += 64;
    }
    if message.start < packet.len() {
        finish(message, packet.len());
    }
    messages
}

const SEED: u64 = 0x9e37_79b9_7f4a_7c15;

#[inline]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    (product as u64) ^ ((product >> 64) as u64)
}

#[inline]
fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

/// A multiply-and-fold hash, sixteen bytes a step: about the minimum that still reads every byte.
#[inline]
fn hash(bytes: &[u8], seed: u64) -> u64 {
    const A: u64 = 0xa076_1d64_78bd_642f;
    const B: u64 = 0xe703_7ed1_a0b4_28db;
    let length = bytes.len();
    let (mut x, mut y) = (seed ^ A, length as u64 ^ B);
    if length >= 16 {
        let mut at = 0;
        while at + 16 < length {
            x = fold(word(bytes, at) ^ A, word(bytes, at + 8) ^ x);
            at += 16;
        }
        // The last sixteen bytes may overlap those before.
        y ^= fold(word(bytes, length - 16) ^ B, word(bytes, length - 8) ^ x);
    } else if length >= 8 {
        y ^= fold(word(bytes, 0) ^ B, word(bytes, length - 8) ^ x);
    } else {
        let mut short = 0;
        for &byte in bytes {
            short = short << 8 | u64::from(byte);
        }
        y ^= fold(short ^ B, x);
    }
    fold(y ^ A, B)
}

/// Counters addressed by hash alone. Two keys with one hash would share a counter; acceptable for a floor, not for an agent.
struct Table {
    slots: Vec<(u64, u64)>,
    used: usize,
}

impl Table {
    fn new() -> Table {
        Table {
            slots: vec![(0, 0); 1024],
            used: 0,
        }
    }

    #[inline]
    fn count(&mut self, hash: u64) {
        // Zero marks a free slot.
        let hash = hash | 1;
        let mask = self.slots.len() - 1;
        let mut at = (hash >> 32) as usize & mask;
        loop {
            let slot = &mut self.slots[at];
            if slot.0 == hash {
                slot.1 += 1;
                return;
            }
            if slot.0 == 0 {
                *slot = (hash, 1);
                self.used += 1;
                if self.used * 2 > self.slots.len() {
                    self.grow();
                }
                return;
            }
            at = (at + 1) & mask;
        }
    }

    #[cold]
    fn grow(&mut self) {
        let old = std::mem::take(&mut self.slots);
        let mask = old.len() * 2 - 1;
        self.slots = vec![(0, 0); mask + 1];
        for slot in old.into_iter().filter(|slot| slot.0 != 0) {
            let mut at = (slot.0 >> 32) as usize & mask;
            while self.slots[at].0 != 0 {
                at = (at + 1) & mask;
            }
            self.slots[at] = slot;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(packet: &[u8]) -> Vec<Message> {
        let mut found = Vec::new();
        let count = tokenise(packet, |_, message| found.push(message));
        assert_eq!(count as usize, found.len());
        found
    }

    /// The same offsets, byte by byte.
    fn naive(packet: &[u8]) -> Vec<Message> {
        let mut found = Vec::new();
        let mut start = 0;
        while start < packet.len() {
            let end = packet[start..]
                .iter()
                .position(|&b| b == b'\n')
                .map_or(packet.len(), |at| start + at);
            let line = &packet[start..end];
            let name_end = line.iter().position(|&b| b == b':').map_or(end, |at| start + at);
            let bars: Vec<usize> = (name_end..end).filter(|&at| packet[at] == b'|').collect();
            found.push(Message {
                start,
                name_end,
                value_end: bars.first().copied().unwrap_or(end),
                end,
                sections: bars.len(),
            });
            start = end + 1;
        }
        found
    }

    proptest::proptest! {
        #[test]
        fn tokens_equal_the_naive_twin(packet in proptest::collection::vec(
            proptest::sample::select(b"a\n:|#,".to_vec()), 0..300)) {
            proptest::prop_assert_eq!(messages(&packet), naive(&packet));
            proptest::prop_assert_eq!(lines(&packet), naive(&packet).len() as u64);
        }
    }

    #[test]
    fn probe_counts_each_key_once_through_growth() {
        let mut pass = Pass::new(Depth::L3);
        for round in 0..2 {
            for context in 0..5000 {
                let packet = format!("metric.{context}:{round}|c|#a:{context},b:c\n");
                assert_eq!(pass.packet(packet.as_bytes()), 1);
            }
        }
        assert_eq!(pass.distinct(), 5000);
        assert!(pass.table.slots.iter().all(|slot| slot.0 == 0 || slot.1 == 2));
    }
}
