//! Series that recur bucket after bucket. Names and order are kept from one bucket to the next, so the records of a bucket cost little more
//! than its states.

use std::hash::{BuildHasher as _, RandomState};

use hashbrown::HashTable;
use weir_protocol::Kind;

use crate::division::{Piece, divided};
use crate::interned::Interned;
use crate::record::{ALL_SUFFIXES, BODY_BYTES_MAX, HAS_HOST, HAS_INTEGRATION, HAS_SUFFIXES, SeriesHead};
use crate::wire::{Reader, Writer};
use crate::{AgentId, Bounds, Facts, Header, Packer, SeriesName, State};

/// No host, or no integration.
const NONE: u32 = u32::MAX;

/// The most that a number of a text or a count can take in a body of this size.
const NUMBER_BYTES: usize = 3;

/// The most that a series takes beside its texts and its state: kind, form, number of tags, time, suffixes.
const HEAD_BYTES: usize = 2 + NUMBER_BYTES + 10 + 5;

/// Series by number, and the state of each in the bucket under construction.
#[derive(Debug)]
pub struct Catalogue {
    own: AgentId,
    hasher: RandomState,
    texts: Interned,
    /// Each series has a range of numbers of texts: name, host, integration, tags.
    keys: Vec<u32>,
    series: Vec<CatalogueEntry>,
    index: HashTable<u32>,
    /// Numbers of series by ascending identity; behind `sorted` as they came.
    order: Vec<u32>,
    sorted: usize,
    /// Concatenated, as in records.
    states: Writer,
    bucket: u32,
}

#[derive(Clone, Copy, Debug)]
struct CatalogueEntry {
    kind: Kind,
    /// Range in `keys`.
    key: (u32, u32),
    facts: Facts,
    /// Range in `states`; empty: it has none.
    state: (u32, u32),
    rows: u32,
    /// The last bucket that it had a state in.
    seen: u32,
}

/// Places before the tags in a key.
const NAME: usize = 0;
const HOST: usize = 1;
const INTEGRATION: usize = 2;
const TAGS: usize = 3;

/// A record of a bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packed {
    pub bytes: Vec<u8>,
    /// Series states in it.
    pub states: u64,
    /// Number of calls of [`Catalogue::put`] for them.
    pub rows: u64,
}

/// The records of a bucket, at least one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Packing {
    pub records: Vec<Packed>,
    /// Series too large for a record: a text or a set member is too long.
    pub too_large: u64,
    pub too_large_rows: u64,
}

impl Catalogue {
    /// `own`: whose series they are.
    pub fn new(own: AgentId) -> Self {
        Catalogue {
            own,
            hasher: RandomState::new(),
            texts: Interned::default(),
            keys: Vec::new(),
            series: Vec::new(),
            index: HashTable::new(),
            order: Vec::new(),
            sorted: 0,
            states: Writer::default(),
            bucket: 1,
        }
    }

    /// The number of a series; a new one if the series is unknown. Tags are sorted by bytes, without duplicates.
    pub fn find(&mut self, kind: Kind, named: &SeriesName<'_>) -> u32 {
        debug_assert!(named.tags.is_sorted(), "tags are sorted");
        let start = self.keys.len();
        self.keys.push(self.texts.number(named.name));
        for optional in [named.host, named.integration] {
            let number = optional.map_or(NONE, |text| self.texts.number(text));
            self.keys.push(number);
        }
        for tag in &named.tags {
            let number = self.texts.number(tag);
            self.keys.push(number);
        }
        let hash = self.hasher.hash_one((kind, &self.keys[start..]));
        let (series, keys) = (&self.series, &self.keys);
        let known = self.index.find(hash, |at| {
            let one = &series[*at as usize];
            one.kind == kind && one.key(keys) == &keys[start..]
        });
        if let Some(known) = known {
            let known = *known;
            self.keys.truncate(start);
            return known;
        }
        self.insert(hash, kind, (start as u32, self.keys.len() as u32))
    }

    fn insert(&mut self, hash: u64, kind: Kind, key: (u32, u32)) -> u32 {
        let number = self.series.len() as u32;
        self.series.push(CatalogueEntry {
            kind,
            key,
            facts: Facts { seen: 0, suffixes: 0 },
            state: (0, 0),
            rows: 0,
            seen: self.bucket,
        });
        self.order.push(number);
        let (series, keys, hasher) = (&self.series, &self.keys, &self.hasher);
        self.index.insert_unique(hash, number, |at| {
            let one = &series[*at as usize];
            hasher.hash_one((one.kind, one.key(keys)))
        });
        number
    }

    /// Adds a state, of the series' kind, to the series' state in this bucket.
    pub fn put(&mut self, number: u32, facts: Facts, state: &State) {
        let known = &mut self.series[number as usize];
        assert!(state.is_of(known.kind), "a state of another kind");
        let (start, end) = known.state;
        let from = self.states.bytes.len();
        if start == end {
            known.facts = facts;
            state.write(self.own, &mut self.states);
        } else {
            known.facts.merge(facts);
            let before = &self.states.bytes[start as usize..end as usize];
            // Written by this very catalogue.
            let mut all = State::read(known.kind, self.own, &mut Reader::new(before)).expect("a state");
            let merged = all.merge(state, &Bounds::NONE);
            debug_assert!(merged, "both are of the kind of the series");
            all.write(self.own, &mut self.states);
        }
        known.state = (from as u32, self.states.bytes.len() as u32);
        known.rows += 1;
        known.seen = self.bucket;
    }

    /// Whether a series has a state in this bucket.
    pub fn has_states(&self) -> bool {
        !self.states.bytes.is_empty()
    }

    pub fn len(&self) -> usize {
        self.series.len()
    }

    pub fn is_empty(&self) -> bool {
        self.series.is_empty()
    }

    /// Number of series without state in this many buckets.
    pub fn idle(&self, buckets: u32) -> usize {
        let oldest = self.bucket.saturating_sub(buckets);
        self.series.iter().filter(|known| known.seen < oldest).count()
    }

    /// Bytes held, about.
    pub fn heap_bytes(&self) -> usize {
        self.texts.heap_bytes()
            + self.keys.capacity() * 4
            + self.series.capacity() * (size_of::<CatalogueEntry>() + 4)
            + self.index.allocation_size()
            + self.states.bytes.capacity()
    }

    /// The records of the bucket, each small enough, and the next bucket begins. `first`: the header of the first; those that follow
    /// have the next numbers.
    pub fn pack(&mut self, first: &Header, packer: &mut Packer) -> Packing {
        self.sort();
        let mut packing = Packing::default();
        let pieces = self.pieces();
        let parts = self.parts(&pieces, &mut packing);
        let count = parts.len() as u32;
        let (mut stamps, mut states) = (vec![0; self.texts.len()], 0);
        for (part, of_part) in (0..count).zip(&parts) {
            let header = first.of_part(part, count, states);
            let body = self.body(of_part, header.bucket_start, &mut stamps);
            packing.records.push(Packed {
                bytes: packer.pack(&header, &body),
                states: of_part.len() as u64,
                rows: of_part.iter().map(|piece| u64::from(piece.rows)).sum(),
            });
            states += of_part.len() as u64;
        }
        self.begin();
        packing
    }

    /// The next bucket: no series has a state.
    fn begin(&mut self) {
        for known in &mut self.series {
            (known.state, known.rows) = ((0, 0), 0);
        }
        self.states.bytes.clear();
        self.bucket += 1;
    }

    /// Sorts new entries into their places.
    fn sort(&mut self) {
        self.texts.sort();
        if self.sorted == self.order.len() {
            return;
        }
        let (texts, keys, series) = (&self.texts, &self.keys, &self.series);
        let place = |number: &u32| {
            let known = &series[*number as usize];
            let key = known.key(keys);
            let optional = |number: u32| (number != NONE).then(|| texts.place(number));
            let head = (
                texts.place(key[NAME]),
                known.kind,
                optional(key[HOST]),
                optional(key[INTEGRATION]),
            );
            (head, key[TAGS..].iter().map(|tag| texts.place(*tag)))
        };
        // Sorted parts are one run for this sort, which costs a comparison each.
        self.order.sort_by(|one, other| {
            let ((head, tags), (other_head, other_tags)) = (place(one), place(other));
            head.cmp(&other_head).then_with(|| tags.cmp(other_tags))
        });
        self.sorted = self.order.len();
    }

    /// The states of the bucket in their order. A set that is too large for one record is in several.
    fn pieces(&mut self) -> Vec<Piece> {
        let mut pieces = Vec::with_capacity(self.series.len());
        for &number in &self.order {
            let CatalogueEntry {
                kind, state, rows, ..
            } = self.series[number as usize];
            if state.0 == state.1 {
                continue;
            }
            let (own, whole) = (
                self.own,
                Piece {
                    series: number,
                    state,
                    rows,
                },
            );
            match kind {
                Kind::Set => divided(whole, own, &mut self.states, &mut pieces),
                _ => pieces.push(whole),
            }
        }
        pieces
    }

    /// Assignment of pieces to records.
    fn parts<'p>(&self, pieces: &'p [Piece], packing: &mut Packing) -> Vec<Vec<&'p Piece>> {
        let mut stamps: Vec<u32> = vec![0; self.texts.len()];
        let mut parts: Vec<Vec<&Piece>> = vec![Vec::new()];
        let mut bytes = 2 * NUMBER_BYTES;
        for piece in pieces {
            let follows = parts.last().and_then(|part| part.last());
            let is_again = follows.is_some_and(|last| last.series == piece.series);
            let more = self.bytes_of(piece, parts.len() as u32, &mut stamps);
            if is_again || bytes + more > BODY_BYTES_MAX {
                let alone = 2 * NUMBER_BYTES + self.bytes_of(piece, parts.len() as u32 + 1, &mut stamps);
                if alone > BODY_BYTES_MAX {
                    packing.too_large += 1;
                    packing.too_large_rows += u64::from(piece.rows);
                    // Its texts are in no record yet.
                    let key = self.series[piece.series as usize].key(&self.keys);
                    key.iter()
                        .filter(|text| **text != NONE)
                        .for_each(|text| stamps[*text as usize] = 0);
                    continue;
                }
                parts.push(Vec::new());
                bytes = alone;
            } else {
                bytes += more;
            }
            parts.last_mut().expect("there is one").push(piece);
        }
        parts
    }

    /// The most that a piece adds to a record. `stamps`: the last record that each text is in.
    fn bytes_of(&self, piece: &Piece, part: u32, stamps: &mut [u32]) -> usize {
        let mut bytes = piece.len() + HEAD_BYTES;
        for &text in self.series[piece.series as usize].key(&self.keys) {
            if text == NONE {
                continue;
            }
            bytes += NUMBER_BYTES;
            let stamp = &mut stamps[text as usize];
            if *stamp != part {
                *stamp = part;
                bytes += self.texts.text(text).len() + NUMBER_BYTES;
            }
        }
        bytes
    }

    /// The body of a record. `numbers` is room to work in.
    fn body(&self, pieces: &[&Piece], bucket_start: i64, numbers: &mut [u32]) -> Vec<u8> {
        const UNUSED: u32 = u32::MAX;
        numbers.fill(UNUSED);
        let mut count = 0;
        for piece in pieces {
            for &text in self.series[piece.series as usize].key(&self.keys) {
                if text != NONE && numbers[text as usize] == UNUSED {
                    numbers[text as usize] = 0;
                    count += 1;
                }
            }
        }
        let mut writer = Writer::default();
        writer.number(count);
        let used = self
            .texts
            .in_order()
            .filter(|text| numbers[*text as usize] != UNUSED);
        let used: Vec<u32> = used.collect();
        for (number, text) in (0..).zip(used) {
            numbers[text as usize] = number;
            writer.block(self.texts.text(text).as_bytes());
        }
        writer.number(pieces.len() as u64);
        for piece in pieces {
            self.write_series(piece, bucket_start, numbers, &mut writer);
        }
        writer.bytes
    }

    fn write_series(&self, piece: &Piece, bucket_start: i64, numbers: &[u32], writer: &mut Writer) {
        let known = &self.series[piece.series as usize];
        let key = known.key(&self.keys);
        let flag = |is_set: bool, flag| if is_set { flag } else { 0 };
        let has_suffixes = known.facts.suffixes != ALL_SUFFIXES;
        let head = SeriesHead {
            kind: known.kind,
            form: flag(key[HOST] != NONE, HAS_HOST)
                | flag(key[INTEGRATION] != NONE, HAS_INTEGRATION)
                | flag(has_suffixes, HAS_SUFFIXES),
            tags: key.len() - TAGS,
            seen: known.facts.seen.wrapping_sub(bucket_start),
            suffixes: known.facts.suffixes,
        };
        let present = key.iter().filter(|text| **text != NONE);
        let references = present.map(|text| u64::from(numbers[*text as usize]));
        head.write(references, writer);
        let (start, end) = piece.state;
        writer.raw(&self.states.bytes[start as usize..end as usize]);
    }
}

impl CatalogueEntry {
    fn key<'k>(&self, keys: &'k [u32]) -> &'k [u32] {
        &keys[self.key.0 as usize..self.key.1 as usize]
    }
}
