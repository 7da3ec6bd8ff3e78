//! From a stream of bytes to packets. Pure: it sees chunks as they were read, the socket is someone else's.

use crate::Framing;
use crate::partial::{BudgetExhausted, Partial, PartialPool};
use crate::sys::PacketEntry;

/// Bytes of the length before a frame.
pub const LENGTH_BYTES: usize = 4;

/// Packets found in a buffer before they are handed over; a chunk with more is handed over in parts.
const ENTRIES_MAX: usize = 256;

/// Counters of framing. Added to a listener's counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FramingCounts {
    pub packets: u64,
    pub bytes: u64,
    pub too_long: u64,
    pub empty: u64,
    pub discarded_bytes: u64,
}

/// The result of a chunk.
#[derive(Debug, PartialEq, Eq)]
pub enum FeedResult {
    /// The end of the chunk, if it is inside a frame, is kept by the framer.
    All,
    /// Everything that was complete has been handed over, but the last bytes of the chunk, of this number, are inside
    /// a frame and the budget has no room for them. Make room and call [`Framer::keep`], or close the connection.
    NoRoom(usize),
    /// A header announced more than the limit. Frames before it have been handed over; the stream is lost.
    TooLong,
}

/// Finds the packets of one stream.
#[derive(Debug)]
pub struct Framer {
    newline: bool,
    /// Inside a line that is too long: discard up to the next newline.
    skipping: bool,
    max: u32,
    partial: Partial,
}

/// A place to note packets until they are handed over, shared by all connections of a loop.
pub struct PacketEntries(Vec<PacketEntry>);

impl PacketEntries {
    pub fn new() -> Self {
        Self(Vec::with_capacity(ENTRIES_MAX))
    }
}

/// Notes packets and hands them over when there are many.
struct Output<'o, H: FnMut(&[u8], &[PacketEntry])> {
    buffer: &'o [u8],
    entries: &'o mut Vec<PacketEntry>,
    counts: &'o mut FramingCounts,
    handle: H,
}

impl<H: FnMut(&[u8], &[PacketEntry])> Output<'_, H> {
    fn packet(&mut self, start: usize, length: usize) {
        self.counts.packets += 1;
        self.counts.bytes += length as u64;
        self.entries.push(PacketEntry {
            start: start as u32,
            length: length as u32,
            lost: 0,
            origin: None,
        });
        if self.entries.len() == ENTRIES_MAX {
            self.flush();
        }
    }

    fn flush(&mut self) {
        if !self.entries.is_empty() {
            (self.handle)(self.buffer, self.entries);
            self.entries.clear();
        }
    }
}

impl Framer {
    /// `framing` must be one for streams; `max` is the longest packet, at most [`crate::bind::MAX_PACKET_BYTES_LIMIT`].
    pub fn new(framing: Framing, max: usize) -> Self {
        Self {
            newline: framing == Framing::Newline,
            skipping: false,
            max: max as u32,
            partial: Partial::default(),
        }
    }

    /// Bytes kept of an unfinished frame or line.
    pub fn partial_bytes(&self) -> usize {
        self.partial.len()
    }

    /// The received part of an unfinished frame or line.
    pub fn partial(&self) -> &[u8] {
        self.partial.bytes()
    }

    pub fn is_skipping(&self) -> bool {
        self.skipping
    }

    /// Continues another one. Before the first chunk.
    pub fn resume(
        &mut self,
        partial: &[u8],
        skipping: bool,
        pool: &mut PartialPool,
    ) -> Result<(), BudgetExhausted> {
        self.skipping = skipping;
        pool.append(&mut self.partial, partial)
    }

    /// Finds the packets that end in the chunk `buffer[start..end]` and hands them over, with the buffer they lie in.
    ///
    /// `buffer[..start]` must have room for the longest frame and its header; the kept beginning of a frame is put there, directly
    /// before the rest of it, which makes the frame contiguous. This is done once per frame, when its end has arrived:
    /// a sender of single bytes costs the same for each of them.
    pub fn feed(
        &mut self,
        buffer: &mut [u8],
        start: usize,
        end: usize,
        pool: &mut PartialPool,
        entries: &mut PacketEntries,
        counts: &mut FramingCounts,
        handle: impl FnMut(&[u8], &[PacketEntry]),
    ) -> FeedResult {
        let mut begin = start;
        if !self.partial.is_empty() {
            if !self.ends_within(&buffer[start..end]) {
                return self.keep_or_report(&buffer[start..end], pool);
            }
            begin = start - self.partial.len();
            buffer[begin..start].copy_from_slice(self.partial.bytes());
            pool.clear(&mut self.partial);
        }
        let mut output = Output {
            buffer: &buffer[..end],
            entries: &mut entries.0,
            counts,
            handle,
        };
        let rest = if self.newline {
            self.lines(&mut output, begin)
        } else {
            self.frames(&mut output, begin)
        };
        output.flush();
        match rest {
            Some(rest) => self.keep_or_report(&buffer[rest..end], pool),
            None => FeedResult::TooLong,
        }
    }

    fn keep_or_report(&mut self, rest: &[u8], pool: &mut PartialPool) -> FeedResult {
        match pool.append(&mut self.partial, rest) {
            Ok(()) => FeedResult::All,
            Err(BudgetExhausted) => FeedResult::NoRoom(rest.len()),
        }
    }

    /// Keeps the bytes that [`FeedResult::NoRoom`] was about: the last ones of the chunk.
    pub fn keep(&mut self, rest: &[u8], pool: &mut PartialPool) -> Result<(), BudgetExhausted> {
        pool.append(&mut self.partial, rest)
    }

    /// The end of the stream: hands over a last line without a newline if `orderly` says that the peer meant to end
    /// there. Returns the number of bytes lost inside a frame, and whether there was one.
    pub fn finish(
        &mut self,
        orderly: bool,
        pool: &mut PartialPool,
        counts: &mut FramingCounts,
        mut handle: impl FnMut(&[u8], &[PacketEntry]),
    ) -> End {
        let length = self.partial.len();
        let end = if self.newline && orderly && length > 0 {
            counts.packets += 1;
            counts.bytes += length as u64;
            let entry = PacketEntry {
                start: 0,
                length: length as u32,
                lost: 0,
                origin: None,
            };
            handle(self.partial.bytes(), &[entry]);
            End::Unterminated
        } else if length > 0 {
            counts.discarded_bytes += length as u64;
            End::Cut
        } else {
            // A line too long was counted when it exceeded the limit.
            End::Clean
        };
        self.skipping = false;
        pool.clear(&mut self.partial);
        end
    }

    /// Whether the frame that has begun ends in `chunk` or goes over the limit there.
    fn ends_within(&self, chunk: &[u8]) -> bool {
        let have = self.partial.bytes();
        let total = have.len() + chunk.len();
        if self.newline {
            return total > self.max as usize || memchr::memchr(b'\n', chunk).is_some();
        }
        let mut header = have.iter().chain(chunk).copied();
        let mut next = || header.next();
        let (Some(a), Some(b), Some(c), Some(d)) = (next(), next(), next(), next()) else {
            return false;
        };
        let length = u32::from_le_bytes([a, b, c, d]);
        length > self.max || total - LENGTH_BYTES >= length as usize
    }

    /// Frames with a length before them. Returns where the unfinished one starts, or `None` after a bad length.
    fn frames<H: FnMut(&[u8], &[PacketEntry])>(
        &mut self,
        output: &mut Output<'_, H>,
        begin: usize,
    ) -> Option<usize> {
        let buffer = output.buffer;
        let mut at = begin;
        while let Some(header) = buffer[at..].first_chunk::<LENGTH_BYTES>() {
            let length = u32::from_le_bytes(*header);
            if length > self.max {
                output.counts.too_long += 1;
                output.counts.discarded_bytes += (buffer.len() - at) as u64;
                return None;
            }
            let length = length as usize;
            let body = at + LENGTH_BYTES;
            if buffer.len() - body < length {
                break;
            }
            if length == 0 {
                output.counts.empty += 1;
            } else {
                output.packet(body, length);
            }
            at = body + length;
        }
        Some(at)
    }

    /// Lines. A packet is as many complete lines as the limit holds, so the only bytes looked at here are those
    /// between the last newline within the limit and the limit; the parser looks at all of them anyway.
    fn lines<H: FnMut(&[u8], &[PacketEntry])>(
        &mut self,
        output: &mut Output<'_, H>,
        begin: usize,
    ) -> Option<usize> {
        let buffer = output.buffer;
        let max = self.max as usize;
        let mut at = begin;
        while at < buffer.len() {
            let rest = &buffer[at..];
            if self.skipping {
                let skip = memchr::memchr(b'\n', rest);
                output.counts.discarded_bytes += skip.map_or(rest.len(), |newline| newline + 1) as u64;
                let Some(newline) = skip else {
                    return Some(buffer.len());
                };
                self.skipping = false;
                at += newline + 1;
                continue;
            }
            // A line of exactly the limit still has its newline after it.
            match memchr::memrchr(b'\n', &rest[..rest.len().min(max + 1)]) {
                Some(newline) => {
                    output.packet(at, newline + 1);
                    at += newline + 1;
                }
                None if rest.len() > max => {
                    output.counts.too_long += 1;
                    self.skipping = true;
                }
                None => break,
            }
        }
        Some(at)
    }
}

/// The end of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Between frames.
    Clean,
    /// After a line without a newline, which was handed over.
    Unterminated,
    /// Inside a frame or line, whose beginning was thrown away.
    Cut,
}
