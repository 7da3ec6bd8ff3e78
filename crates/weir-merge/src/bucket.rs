//! The series of one bucket while records arrive. A record contains each of its texts once, so a series is found by the numbers of its
//! texts. Only a text that is new to the bucket costs more.

use hashbrown::HashTable;
use weir_protocol::Kind;
use weir_state::{Bounds, Facts, Numbered, ROW_BYTES, Record, Rows, State, TEXT_BYTES};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::texts::{Texts, make_room};

/// Tag of the series for states that find no room.
const OVERFLOW_TAG: &str = "weir_overflow:true";
const PARTITION_TAG: &str = "weir_partition:";

/// Name of the series for names that find no room either.
const OVERFLOW_NAME: &str = "weir_overflow";

/// Series that are kept together. A bucket that grows does not copy them.
const CHUNK: usize = 1024;

/// Number of a text that the bucket does not have, or of a host or integration that a series does not have.
const UNKNOWN: u32 = u32::MAX;
const NONE: u32 = u32::MAX - 1;

#[derive(Debug)]
pub(crate) struct Bucket {
    seed: u64,
    texts: Texts,
    keys: Vec<u8>,
    series: Chunks,
    index: HashTable<u32>,
    heap_of_states: usize,
    /// For the current record: the bucket's number of each of its texts.
    translated: Vec<u32>,
    key: Vec<u8>,
    /// Index of the series after the last one found: most agents have the same series in the same order.
    expected: usize,
}

#[derive(Debug)]
struct Series {
    /// Range in `keys`: the kind, and four bytes each for name, host, integration and tags.
    key: (u32, u32),
    facts: Facts,
    state: State,
}

/// All chunks but the last are full.
#[derive(Debug, Default)]
struct Chunks {
    chunks: Vec<Vec<Series>>,
    len: usize,
}

impl Chunks {
    fn push(&mut self, series: Series) {
        if self.len.is_multiple_of(CHUNK) {
            // A small bucket takes little.
            let capacity = if self.len == 0 { 0 } else { CHUNK };
            self.chunks.push(Vec::with_capacity(capacity));
        }
        if let Some(last) = self.chunks.last_mut() {
            last.push(series);
            self.len += 1;
        }
    }

    fn bytes(&self) -> usize {
        let last = self.chunks.last().map_or(0, Vec::capacity);
        let full = self.chunks.len().saturating_sub(1) * CHUNK;
        (full + last) * size_of::<Series>()
    }
}

impl std::ops::Index<usize> for Chunks {
    type Output = Series;

    fn index(&self, at: usize) -> &Series {
        &self.chunks[at / CHUNK][at % CHUNK]
    }
}

impl std::ops::IndexMut<usize> for Chunks {
    fn index_mut(&mut self, at: usize) -> &mut Series {
        &mut self.chunks[at / CHUNK][at % CHUNK]
    }
}

/// Room for more series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Room {
    Plenty,
    /// New series go into one series per name.
    Scarce,
    /// New series go into one series per kind.
    None,
}

/// The bytes of a bucket, with those that closing it takes, up to which there is room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Whose limits they are.
    pub partition: u32,
    pub plenty: usize,
    pub scarce: usize,
}

impl Limits {
    fn room(&self, bytes: usize) -> Room {
        match bytes {
            bytes if bytes < self.plenty => Room::Plenty,
            bytes if bytes < self.scarce => Room::Scarce,
            _ => Room::None,
        }
    }
}

/// States of a record that found no room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Added {
    /// Merged into overflow series.
    pub overflowed: u64,
    /// Dropped: gauges and sets, which cannot be summed across series.
    pub dropped: u64,
}

impl Bucket {
    /// `seed`: of hashes, secret from senders.
    pub fn new(seed: u64) -> Self {
        Bucket {
            seed,
            texts: Texts::new(seed),
            keys: Vec::new(),
            series: Chunks::default(),
            index: HashTable::new(),
            heap_of_states: 0,
            translated: Vec::new(),
            key: Vec::new(),
            expected: 0,
        }
    }

    /// A record may have more series than there is room for.
    pub fn add(&mut self, record: &Record, limits: Limits, bounds: &Bounds) -> Added {
        let texts: Vec<&str> = record.texts().collect();
        self.translated.clear();
        self.translated.resize(texts.len(), UNKNOWN);
        self.expected = 0;
        let mut added = Added::default();
        let mut room = limits.room(self.bytes() + self.closing_bytes());
        for series in record.numbered() {
            self.translate(&texts, &series, room);
            match self.find() {
                Ok(at) => {
                    self.merge(at, series.facts, series.state, bounds);
                    continue;
                }
                Err(hash) if room == Room::Plenty => {
                    self.insert(hash, series.facts, series.state, bounds);
                }
                Err(_) => {
                    let place = (limits.partition, room);
                    self.overflow(texts[series.name as usize], &series, place, bounds, &mut added);
                }
            }
            room = limits.room(self.bytes() + self.closing_bytes());
        }
        added
    }

    /// Builds the key of a series. Without room an unknown text stays unknown, and so does the series.
    fn translate(&mut self, texts: &[&str], series: &Numbered<'_>, room: Room) {
        let (all, translated) = (&mut self.texts, &mut self.translated);
        let mut number = |text: u32| {
            let known = &mut translated[text as usize];
            if *known == UNKNOWN {
                *known = match room {
                    Room::Plenty => all.number(texts[text as usize]),
                    _ => all.known(texts[text as usize]).unwrap_or(UNKNOWN),
                };
            }
            *known
        };
        self.key.clear();
        self.key.push(series.kind as u8);
        push(&mut self.key, number(series.name));
        for optional in [series.host, series.integration] {
            push(&mut self.key, optional.map_or(NONE, &mut number));
        }
        series
            .tags
            .iter()
            .for_each(|tag| push(&mut self.key, number(*tag)));
    }

    /// The index of the series with this key, or the key's hash.
    fn find(&mut self) -> Result<usize, u64> {
        let is_at = |at: usize| {
            let (start, end) = self.series[at].key;
            self.keys[start as usize..end as usize] == self.key
        };
        let found = match self.expected < self.series.len && is_at(self.expected) {
            true => Ok(self.expected),
            false => {
                let hash = hash(&self.key, self.seed);
                let found = self.index.find(hash, |at| is_at(*at as usize));
                found.map(|at| *at as usize).ok_or(hash)
            }
        };
        self.expected = found.unwrap_or(self.series.len) + 1;
        found
    }

    fn merge(&mut self, at: usize, facts: Facts, state: &State, bounds: &Bounds) {
        let mine = &mut self.series[at];
        let before = mine.state.heap_bytes();
        mine.facts.merge(facts);
        let merged = mine.state.merge(state, bounds);
        debug_assert!(merged, "kinds are part of a key");
        self.heap_of_states = self.heap_of_states + mine.state.heap_bytes() - before;
    }

    fn insert(&mut self, hash: u64, facts: Facts, state: &State, bounds: &Bounds) {
        let start = self.keys.len() as u32;
        make_room(&mut self.keys, self.key.len());
        self.keys.extend(&self.key);
        let at = self.series.len as u32;
        let mut state = state.clone();
        state.keep_within(bounds);
        self.heap_of_states += state.heap_bytes();
        self.series.push(Series {
            key: (start, self.keys.len() as u32),
            facts,
            state,
        });
        let (series, keys, seed) = (&self.series, &self.keys, self.seed);
        self.index.insert_unique(hash, at, |at| {
            let (start, end) = series[*at as usize].key;
            self::hash(&keys[start as usize..end as usize], seed)
        });
    }

    /// Keeps sums right: merges states that can be summed into an overflow series. Its tags name the partition: a receiver that replaces points would
    /// otherwise keep those of one partition.
    fn overflow(
        &mut self,
        name: &str,
        series: &Numbered<'_>,
        (partition, room): (u32, Room),
        bounds: &Bounds,
        added: &mut Added,
    ) {
        if matches!(series.kind, Kind::Gauge | Kind::Set) {
            added.dropped += 1;
            return;
        }
        added.overflowed += 1;
        let is_known = self.texts.known(name).is_some();
        let name = match room {
            Room::None if !is_known => OVERFLOW_NAME,
            _ => name,
        };
        self.key.clear();
        self.key.push(series.kind as u8);
        let (name, host) = (self.texts.number(name), self.texts.number(""));
        let tag = self.texts.number(OVERFLOW_TAG);
        let partition = self.texts.number(&format!("{PARTITION_TAG}{partition}"));
        [name, host, NONE, tag, partition]
            .iter()
            .for_each(|number| push(&mut self.key, *number));
        match self.find() {
            Ok(at) => self.merge(at, series.facts, series.state, bounds),
            Err(hash) => self.insert(hash, series.facts, series.state, bounds),
        }
    }

    /// Bytes held, estimated.
    pub fn bytes(&self) -> usize {
        size_of::<Self>()
            + self.texts.heap_bytes()
            + self.keys.capacity()
            + self.translated.capacity() * 4
            + self.series.bytes()
            + self.index.allocation_size()
            + self.heap_of_states
    }

    /// Bytes that closing it takes besides, for one thread.
    pub fn closing_bytes(&self) -> usize {
        self.series.len * ROW_BYTES + self.texts.len() * TEXT_BYTES
    }

    fn key_bytes(&self, at: u32) -> &[u8] {
        let (start, end) = self.series[at as usize].key;
        &self.keys[start as usize..end as usize]
    }
}

impl Rows for Bucket {
    fn texts(&self) -> usize {
        self.texts.len()
    }

    fn text(&self, number: u32) -> &str {
        self.texts.get(number)
    }

    fn len(&self) -> usize {
        self.series.len
    }

    fn kind(&self, at: u32) -> Kind {
        Kind::ALL[usize::from(self.key_bytes(at)[0])]
    }

    fn key(&self, at: u32) -> impl Iterator<Item = Option<u32>> {
        let numbers = self.key_bytes(at)[1..].chunks_exact(4);
        numbers.map(|bytes| {
            let number = u32::from_le_bytes(bytes.try_into().expect("four"));
            (number != NONE).then_some(number)
        })
    }

    fn value(&self, at: u32) -> (Facts, &State) {
        let series = &self.series[at as usize];
        (series.facts, &series.state)
    }
}

fn hash(key: &[u8], seed: u64) -> u64 {
    xxh3_64_with_seed(key, seed)
}

fn push(key: &mut Vec<u8>, number: u32) {
    key.extend_from_slice(&number.to_le_bytes());
}
