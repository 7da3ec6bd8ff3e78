//! The open bucket leaves for another process, or comes from one.

use std::io;
use std::ops::Range;
use std::sync::mpsc::sync_channel;
use std::thread::{Scope, ScopedJoinHandle};

use weir_aggregate::{Aggregator, ProcessStamp};
use weir_context::{Contexts, KnownContext, LiveContext, PARTITIONS};
use weir_protocol::Kind;
use weir_state::{Entry, Facts, SERIES_BYTES, SeriesName, State, StreamReader, StreamWriter};

use super::{Ingest, WaitLimit};
use crate::hand_over::ROWS_AHEAD;
use crate::saved::{PutPiece, Restored, SavedBucket, timestamped_pieces};

/// About how large a piece of an encoded bucket is, and how many of them are decoded together.
const PIECE_BYTES: usize = 64 << 10;
const PIECES_TOGETHER: usize = 16;

/// Series that are decoded together, and how many such groups may wait to be restored.
const DECODED_TOGETHER: usize = 256;
const DECODED_AHEAD: usize = 16;

impl Ingest {
    fn saved(&self, stamp: ProcessStamp) -> SavedBucket {
        let rows = 0..self.aggregator.kept_rows();
        let timestamped = self.aggregator.kept_changes(rows, None, stamp);
        SavedBucket {
            worker: self.settings.worker,
            contexts: (0..PARTITIONS)
                .map(|partition| self.contexts_in(partition) as u64)
                .sum(),
            bucket: Some(self.aggregator.open_bucket()),
            samples: self.aggregator.open_samples(),
            timestamped: timestamped_pieces(stamp.agent, timestamped),
            clients: self.gate.numbers.all(),
            ..SavedBucket::default()
        }
    }

    /// The open bucket's state, and the remembered contexts, in memory order and as bytes, which go to `put` in pieces: a bucket has no
    /// room for a copy. Nothing may wait to be handed over, and no packet may come behind it. Nobody receives meanwhile, so a second
    /// thread takes half of what is long.
    pub fn save_encoded(&mut self, stamp: ProcessStamp, put: PutPiece<'_>) -> io::Result<SavedBucket> {
        self.feed_parked(0, WaitLimit::NoWait);
        let (contexts, aggregator) = (&self.contexts, &self.aggregator);
        let encode = |partitions: Range<usize>| encode(contexts, aggregator, stamp, partitions, put);
        let half = PARTITIONS / 2;
        let bytes = contexts.len() * SERIES_BYTES;
        std::thread::scope(|scope| {
            let second = spawn(scope, "save", bytes, || encode(half..PARTITIONS));
            encode(0..half).and(second.map_or_else(|| encode(half..PARTITIONS), joined))
        })?;
        Ok(self.saved(stamp))
    }

    pub fn contexts_in(&self, partition: usize) -> usize {
        self.contexts.live(partition).len()
    }

    /// The state of a partition's contexts that were seen since this Unix second, with names for those not in `named`: by kind, one bit per
    /// context. No bucket may wait for hand-over.
    pub fn changes(
        &self,
        partition: usize,
        since: i64,
        stamp: ProcessStamp,
        named: &mut [Vec<u64>; Kind::ALL.len()],
    ) -> Vec<u8> {
        let mut writer = StreamWriter::new(stamp.agent);
        for group in self.contexts.live(partition).chunks(ROWS_AHEAD) {
            self.aggregator.prefetch_saved(group);
            if since == i64::MIN {
                self.contexts.prefetch_rows(group);
            }
            for &live in group {
                if self.aggregator.seen(live) >= since {
                    let is_new = |live: LiveContext| set_bit(&mut named[live.kind() as usize], live.id().0);
                    entry(&self.contexts, &self.aggregator, live, stamp, is_new)
                        .iter()
                        .for_each(|entry| writer.add(entry));
                }
            }
        }
        writer.finish()
    }

    /// Continues a bucket that another process started. Before the first packet; `now`: Unix seconds.
    pub fn resume(&mut self, saved: SavedBucket, now: i64, stamp: ProcessStamp) -> Restored {
        let mut restored = Restored::default();
        let Some(bucket) = saved.bucket else {
            return restored;
        };
        self.aggregator.resume(bucket, saved.samples, now);
        let mut count = |is_there: bool| match is_there {
            true => restored.contexts += 1,
            false => restored.refused += 1,
        };
        for (identity, facts, state) in saved.series {
            let named = SeriesName::from(&identity);
            count(self.restore(identity.kind, &named, facts, state, stamp));
        }
        for piece in &saved.timestamped {
            let mut points = StreamReader::new(stamp.agent, piece);
            // Its checksum was verified as well.
            while let Ok(Some(point)) = points.next_entry() {
                if !self.aggregator.restore_timestamped(&point) {
                    count(false);
                }
            }
        }
        self.contexts.reserve(saved.encoded.bytes / SERIES_BYTES);
        let mut pieces = saved.encoded.each.into_iter().flatten();
        loop {
            // Their checksum was verified on arrival: a piece that cannot be read is a bug, or a disk that fails.
            let together = pieces.by_ref().take(PIECES_TOGETHER);
            let together: Vec<Vec<u8>> = together
                .filter_map(|piece| piece.inspect_err(|_| count(false)).ok())
                .collect();
            if together.is_empty() {
                break;
            }
            if !self.restore_pieces(&together, stamp, &mut count) {
                count(false);
            }
        }
        self.contexts.set_state_bytes(self.aggregator.expected_bytes());
        restored
    }

    /// A second thread decodes what is long. False: something cannot be read.
    fn restore_pieces(
        &mut self,
        pieces: &[Vec<u8>],
        stamp: ProcessStamp,
        count: &mut impl FnMut(bool),
    ) -> bool {
        let mut take =
            |entries: Vec<Entry<'_>>| {
                for entry in entries {
                    let named = entry.named.as_ref();
                    count(named.is_some_and(|named| {
                        self.restore(entry.kind, named, entry.facts, entry.state, stamp)
                    }));
                }
            };
        let bytes = pieces.iter().map(Vec::len).sum();
        std::thread::scope(|scope| {
            let (send, decoded) = sync_channel(DECODED_AHEAD);
            let decoder = spawn(scope, "decode", bytes, move || {
                decode(pieces, stamp, |entries| send.send(entries).is_ok())
            });
            match decoder {
                None => decode(pieces, stamp, |entries| {
                    take(entries);
                    true
                }),
                Some(decoder) => {
                    decoded.into_iter().for_each(take);
                    joined(decoder)
                }
            }
        })
    }

    fn restore(
        &mut self,
        kind: Kind,
        named: &SeriesName<'_>,
        facts: Facts,
        state: State,
        stamp: ProcessStamp,
    ) -> bool {
        let context = self.contexts.restore(KnownContext {
            kind,
            name: named.name,
            host: named.host,
            integration: named.integration,
            tags: &named.tags,
            suffixes: facts.suffixes,
        });
        if let Some(id) = context {
            self.aggregator.restore(kind, id, facts.seen, state, stamp);
        }
        context.is_some()
    }
}

/// State of the contexts of some partitions.
fn encode(
    contexts: &Contexts,
    aggregator: &Aggregator,
    stamp: ProcessStamp,
    partitions: Range<usize>,
    put: PutPiece<'_>,
) -> io::Result<()> {
    let mut writer = StreamWriter::new(stamp.agent);
    for partition in partitions {
        for group in contexts.live(partition).chunks(ROWS_AHEAD) {
            contexts.prefetch_rows(group);
            aggregator.prefetch_saved(group);
            for &live in group {
                entry(contexts, aggregator, live, stamp, |_| true)
                    .iter()
                    .for_each(|entry| writer.add(entry));
            }
            if writer.written().len() >= PIECE_BYTES {
                put(writer.written())?;
                writer.clear();
            }
        }
    }
    match writer.written() {
        [] => Ok(()),
        rest => put(rest),
    }
}

/// The state of one context; `is_named`: with its name.
fn entry<'a>(
    contexts: &'a Contexts,
    aggregator: &Aggregator,
    live: LiveContext,
    stamp: ProcessStamp,
    is_named: impl FnOnce(LiveContext) -> bool,
) -> Option<Entry<'a>> {
    let (seen, state) = aggregator.save(live, stamp)?;
    let context = contexts.get(live.kind(), live.id());
    Some(Entry {
        number: live.id().0,
        kind: live.kind(),
        named: is_named(live).then(|| SeriesName {
            name: context.name(),
            host: context.host(),
            integration: context.jmx_check(),
            tags: context.tags().collect(),
        }),
        facts: Facts {
            seen,
            suffixes: context.suffix_mask(),
        },
        state,
    })
}

/// Passes on all series of the pieces, in groups, until nobody wants more. False: the rest of a piece cannot be read.
fn decode<'a>(
    pieces: &'a [Vec<u8>],
    stamp: ProcessStamp,
    mut take: impl FnMut(Vec<Entry<'a>>) -> bool,
) -> bool {
    let mut is_whole = true;
    for piece in pieces {
        let mut reader = StreamReader::new(stamp.agent, piece);
        let mut entries = std::iter::from_fn(|| match reader.next_entry() {
            Ok(entry) => entry,
            Err(_) => {
                is_whole = false;
                None
            }
        });
        loop {
            let group: Vec<Entry<'_>> = entries.by_ref().take(DECODED_TOGETHER).collect();
            if group.is_empty() {
                break;
            }
            if !take(group) {
                return true;
            }
        }
    }
    is_whole
}

/// A thread beside this one, or none: the work on so many bytes takes less time than a thread needs to start, or the system has no more.
fn spawn<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    name: &str,
    bytes: usize,
    work: impl FnOnce() -> T + Send + 'scope,
) -> Option<ScopedJoinHandle<'scope, T>> {
    if bytes < PIECE_BYTES {
        return None;
    }
    let thread = std::thread::Builder::new().name(name.into());
    thread.spawn_scoped(scope, work).ok()
}

fn joined<T>(thread: ScopedJoinHandle<'_, T>) -> T {
    thread
        .join()
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// True if it was not set.
fn set_bit(bits: &mut Vec<u64>, at: u32) -> bool {
    let (word, bit) = (at as usize / 64, 1 << (at % 64));
    if word >= bits.len() {
        bits.resize(word + 1, 0);
    }
    let is_new = bits[word] & bit == 0;
    bits[word] |= bit;
    is_new
}
