//! The open bucket leaves for another process, or comes from one.

use std::io;

use weir_aggregate::Carried;
use weir_context::{KnownContext, LiveContext, PARTITIONS};
use weir_protocol::Kind;
use weir_state::{Entry, Facts, Identity, Named, SERIES_BYTES, State, StreamReader, StreamWriter};

use super::{Hurry, Ingest};
use crate::hand_over::ROWS_AHEAD;
use crate::saved::{PutPiece, Restored, SavedBucket};

/// About how large a piece of an encoded bucket is.
const PIECE_BYTES: usize = 64 << 10;

impl Ingest {
    /// Everything that the open bucket has, and the contexts that are remembered. Nothing may wait to be handed over, and no
    /// packet may come behind it.
    pub fn save(&mut self, carried: Carried) -> SavedBucket {
        self.feed_parked(0, Hurry::End);
        let series = (0..PARTITIONS).flat_map(|partition| self.contexts.live(partition));
        let series = series.filter_map(|&live| {
            let (seen, state) = self.aggregator.save(live, carried)?;
            let context = self.contexts.get(live.kind(), live.id());
            let (host, integration) = (context.host(), context.jmx_check());
            let identity = Identity::new(live.kind(), context.name(), host, integration, context.tags());
            let suffixes = context.suffix_mask();
            Some((identity, Facts { seen, suffixes }, state))
        });
        SavedBucket {
            series: series.collect(),
            ..self.saved()
        }
    }

    fn saved(&self) -> SavedBucket {
        SavedBucket {
            bucket: Some(self.aggregator.open_bucket()),
            samples: self.aggregator.open_samples(),
            ..SavedBucket::default()
        }
    }

    /// The same for a process that takes over at once: in memory order, and as bytes, which go to `put` in pieces.
    pub fn save_encoded(&mut self, carried: Carried, put: PutPiece<'_>) -> io::Result<SavedBucket> {
        self.feed_parked(0, Hurry::End);
        let mut writer = StreamWriter::new(carried.agent);
        for partition in 0..PARTITIONS {
            for group in self.contexts.live(partition).chunks(ROWS_AHEAD) {
                self.contexts.look_ahead_rows(group);
                self.aggregator.look_ahead_saved(group);
                for &live in group {
                    self.entry(live, carried, |_| true)
                        .iter()
                        .for_each(|entry| writer.add(entry));
                }
                if writer.written().len() >= PIECE_BYTES {
                    put(writer.written())?;
                    writer.clear();
                }
            }
        }
        if !writer.written().is_empty() {
            put(writer.written())?;
        }
        Ok(self.saved())
    }

    /// What one context has; `is_named`: whether with its name.
    fn entry(
        &self,
        live: LiveContext,
        carried: Carried,
        is_named: impl FnOnce(LiveContext) -> bool,
    ) -> Option<Entry<'_>> {
        let (seen, state) = self.aggregator.save(live, carried)?;
        let context = self.contexts.get(live.kind(), live.id());
        Some(Entry {
            number: live.id().0,
            kind: live.kind(),
            named: is_named(live).then(|| Named {
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

    pub fn contexts_in(&self, partition: usize) -> usize {
        self.contexts.live(partition).len()
    }

    /// What the contexts of a partition have that were seen since this Unix second, those with their names that are not in `named`
    /// yet: by kind, a bit for each context. Nothing may wait to be handed over.
    pub fn changes(
        &self,
        partition: usize,
        since: i64,
        carried: Carried,
        named: &mut [Vec<u64>; Kind::ALL.len()],
    ) -> Vec<u8> {
        let mut writer = StreamWriter::new(carried.agent);
        for group in self.contexts.live(partition).chunks(ROWS_AHEAD) {
            self.aggregator.look_ahead_saved(group);
            if since == i64::MIN {
                self.contexts.look_ahead_rows(group);
            }
            for &live in group {
                if self.aggregator.seen(live) >= since {
                    let is_new = |live: LiveContext| set_bit(&mut named[live.kind() as usize], live.id().0);
                    self.entry(live, carried, is_new)
                        .iter()
                        .for_each(|entry| writer.add(entry));
                }
            }
        }
        writer.finish()
    }

    /// Continues a bucket that another process started. Before the first packet; `now`: Unix seconds.
    pub fn resume(&mut self, saved: SavedBucket, now: i64, carried: Carried) -> Restored {
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
            let named = Named {
                name: &identity.name,
                host: identity.host.as_deref(),
                integration: identity.integration.as_deref(),
                tags: identity.tags.iter().map(AsRef::as_ref).collect(),
            };
            count(self.restore(identity.kind, &named, facts, state, carried));
        }
        self.contexts.expect(saved.encoded.bytes / SERIES_BYTES);
        for piece in saved.encoded.each.into_iter().flatten() {
            // Their checksum was compared on arrival: a piece that cannot be read is a defect, of weir or of a disk.
            match piece {
                Ok(piece) => self.restore_piece(&piece, carried, &mut count),
                Err(_) => count(false),
            }
        }
        self.contexts.set_state_bytes(self.aggregator.expected_bytes());
        restored
    }

    fn restore_piece(&mut self, piece: &[u8], carried: Carried, count: &mut impl FnMut(bool)) {
        let mut reader = StreamReader::new(carried.agent, piece);
        while let Some(entry) = reader.next_entry().transpose() {
            let Ok(entry) = entry else { return count(false) };
            let named = entry.named.as_ref();
            count(
                named.is_some_and(|named| self.restore(entry.kind, named, entry.facts, entry.state, carried)),
            );
        }
    }

    fn restore(
        &mut self,
        kind: Kind,
        named: &Named<'_>,
        facts: Facts,
        state: State,
        carried: Carried,
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
            self.aggregator.restore(kind, id, facts.seen, state, carried);
        }
        context.is_some()
    }
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
