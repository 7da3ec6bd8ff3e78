//! Lines on their way to other StatsD servers. The worker packs them into buffers per target.
//!
//! A line costs a look-up in a small cache and a copy. Buffers are exchanged with their target's sender when they are full, or when their
//! first line has waited long enough, and return empty. If a target accepts none, it has all buffers; then its lines are dropped and
//! counted, and nothing waits.

use std::sync::Arc;

use weir_protocol::{Routes, SharedRoutes, route_slot};

/// Bytes in a buffer. Large, as each costs a hand-over to another thread.
pub const BLOCK_BYTES: usize = 64 << 10;

/// Places of the cache of slots, a mebibyte; touched only as far as used.
const CACHE: usize = 1 << 16;

/// A buffer of whole lines, each with its line feed, and the counts of lines that are not in it.
#[derive(Debug, Default)]
pub struct RelayBlock {
    pub lines: Vec<u8>,
    pub messages: u64,
    /// Since the block before: lines for which no buffer was free.
    pub no_buffer: u64,
    /// Since the block before: lines longer than the target takes.
    pub too_long: u64,
    /// Lines since the previous block that the relay does not select. Counted at the first target only.
    pub unmatched: u64,
}

/// The way to one target's sender, and of its buffers back. Neither waits.
pub trait RelayQueue: Send {
    /// Gives the block back when there is no room.
    fn push(&mut self, block: RelayBlock) -> Result<(), RelayBlock>;

    /// An empty buffer; `None` when all are on their way.
    fn buffer(&mut self) -> Option<Vec<u8>>;
}

pub struct RelayTarget {
    pub queue: Box<dyn RelayQueue>,
    /// The longest line it takes, with its line feed.
    pub line_bytes_max: usize,
}

/// Settings of one relay.
pub struct RelaySettings {
    /// Names that begin with one of these are relayed; all, if there is none.
    pub prefixes: Vec<String>,
    pub targets: Vec<RelayTarget>,
    pub routes: Arc<SharedRoutes>,
    /// Longest wait of a line for others.
    pub linger_ns: u64,
}

struct Target {
    queue: Box<dyn RelayQueue>,
    line_bytes_max: usize,
    open: RelayBlock,
}

/// One entry of the cache: the hash of a line without its value, and its slot.
#[derive(Clone, Copy)]
struct Cached {
    hash: u64,
    slot: u16,
}

/// Slot of lines that are not wanted.
const UNWANTED: u16 = u16::MAX;
/// Slot of an empty place.
const EMPTY: u16 = u16::MAX - 1;

pub struct Relay {
    prefixes: Vec<Vec<u8>>,
    targets: Vec<Target>,
    shared: Arc<SharedRoutes>,
    routes: Arc<Routes>,
    version: u64,
    cache: Vec<Cached>,
    linger_ns: u64,
    /// Monotonic nanoseconds of the oldest line in an open buffer.
    oldest: Option<u64>,
    unmatched: u64,
}

impl Relay {
    pub fn new(settings: RelaySettings) -> Self {
        let target = |target: RelayTarget| Target {
            queue: target.queue,
            line_bytes_max: target.line_bytes_max.min(BLOCK_BYTES),
            open: RelayBlock::default(),
        };
        let empty = Cached { hash: 0, slot: EMPTY };
        Self {
            prefixes: settings.prefixes.into_iter().map(String::into_bytes).collect(),
            targets: settings.targets.into_iter().map(target).collect(),
            routes: settings.routes.get(),
            shared: settings.routes,
            version: 0,
            cache: vec![empty; CACHE],
            linger_ns: settings.linger_ns,
            oldest: None,
            unmatched: 0,
        }
    }

    /// Whether a line with this hash was taken before.
    #[inline]
    pub fn is_cached(&self, hash: u64) -> bool {
        let cached = &self.cache[hash as usize % CACHE];
        cached.hash == hash && cached.slot != EMPTY
    }

    /// Takes a valid line, without its line feed. `hash` is that of everything in it but value, type and rate, if it is known;
    /// `received` in monotonic nanoseconds.
    #[inline]
    pub fn take(&mut self, hash: Option<u64>, line: &[u8], received: u64) {
        let slot = match hash {
            Some(hash) if self.is_cached(hash) => self.cache[hash as usize % CACHE].slot,
            _ => self.slot_for(hash, line),
        };
        if slot == UNWANTED {
            self.unmatched += 1;
            return;
        }
        let at = self.routes.target(slot);
        let target = &mut self.targets[at];
        if line.len() >= target.line_bytes_max {
            target.open.too_long += 1;
            return;
        }
        if target.open.lines.capacity() - target.open.lines.len() <= line.len() && !target.make_room() {
            target.open.no_buffer += 1;
            return;
        }
        target.open.lines.extend_from_slice(line);
        target.open.lines.push(b'\n');
        target.open.messages += 1;
        self.oldest.get_or_insert(received);
    }

    /// Works the slot out and remembers it.
    fn slot_for(&mut self, hash: Option<u64>, line: &[u8]) -> u16 {
        let name = line.strip_prefix(b"_sc|").unwrap_or(line);
        let wanted = self.prefixes.is_empty() || self.prefixes.iter().any(|prefix| name.starts_with(prefix));
        let slot = if wanted { route_slot(line) } else { UNWANTED };
        if let Some(hash) = hash {
            self.cache[hash as usize % CACHE] = Cached { hash, slot };
        }
        slot
    }

    /// When [`Relay::turn`] has something to do, in monotonic nanoseconds.
    pub fn deadline(&self) -> Option<u64> {
        self.oldest.map(|oldest| oldest + self.linger_ns)
    }

    /// Hands over buffers that have waited long enough. Called between two receive turns.
    #[inline]
    pub fn turn(&mut self, monotonic: u64) {
        if let Some(routes) = self.shared.newer(&mut self.version) {
            self.routes = routes;
        }
        if self.deadline().is_some_and(|deadline| monotonic >= deadline) {
            self.hand_over();
        }
    }

    /// Hands over everything, counts included. Called once a second, and at the end.
    pub fn hand_over(&mut self) {
        self.oldest = None;
        for (at, target) in self.targets.iter_mut().enumerate() {
            if at == 0 {
                target.open.unmatched = self.unmatched;
            }
            target.hand_over();
            if at == 0 {
                self.unmatched = target.open.unmatched;
            }
        }
    }

    /// Hands over everything for good.
    pub fn finish(&mut self) {
        self.hand_over();
        for target in &mut self.targets {
            let left = std::mem::take(&mut target.open);
            if left.messages > 0 {
                // No other buffer is needed any more.
                let _ = target.queue.push(left);
            }
        }
    }

    pub fn heap_bytes(&self) -> usize {
        self.targets
            .iter()
            .map(|target| target.open.lines.capacity())
            .sum::<usize>()
            + self.cache.capacity() * size_of::<Cached>()
    }
}

impl Target {
    /// An open buffer with room for any line. False when there is none.
    #[cold]
    fn make_room(&mut self) -> bool {
        if self.open.lines.capacity() > 0 {
            return self.hand_over();
        }
        match self.queue.buffer() {
            Some(buffer) => {
                self.open.lines = buffer;
                true
            }
            None => false,
        }
    }

    /// Changes the open buffer for an empty one; counts go along, alone if there is no line. False when the buffer stays, because
    /// there is no other: then the next line or the next second tries again.
    fn hand_over(&mut self) -> bool {
        let RelayBlock {
            messages,
            no_buffer,
            too_long,
            unmatched,
            ..
        } = self.open;
        let buffer = match messages {
            0 if no_buffer + too_long + unmatched == 0 => return true,
            0 => std::mem::take(&mut self.open.lines),
            _ => match self.queue.buffer() {
                Some(buffer) => buffer,
                None => return false,
            },
        };
        let empty = RelayBlock {
            lines: buffer,
            ..RelayBlock::default()
        };
        let block = std::mem::replace(&mut self.open, empty);
        if let Err(block) = self.queue.push(block) {
            // The sender has ended. Its lines are lost, and counted with the next block if there ever is one.
            self.open.no_buffer += block.no_buffer + block.messages;
            self.open.too_long += block.too_long;
            self.open.unmatched += block.unmatched;
        }
        true
    }
}
