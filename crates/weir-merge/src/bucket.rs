//! The series of one bucket while records arrive. A record contains each of its texts once, so a series is found by the numbers of its
//! texts. Only a text that is new to the bucket costs more.

use hashbrown::HashTable;
use weir_protocol::Kind;
use weir_state::{Bounds, Facts, Identity, Numbered, Record, State, Table};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::texts::Texts;

/// Tag of the series for states that find no room.
const OVERFLOW_TAG: &str = "weir_overflow:true";

/// Name of the series for names that find no room either.
const OVERFLOW_NAME: &str = "weir_overflow";

/// Bytes of a series besides its key and the heap memory of its state: its entry and its index slot.
const SERIES_BYTES: usize = size_of::<Series>() + 8;

/// Number of a text that the bucket does not have, or of a host or integration that a series does not have.
const UNKNOWN: u32 = u32::MAX;
const NONE: u32 = u32::MAX - 1;

#[derive(Debug)]
pub(crate) struct Bucket {
    seed: u64,
    texts: Texts,
    keys: Vec<u8>,
    series: Vec<Series>,
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
    kind: Kind,
    /// Range in `keys`: the kind, and four bytes each for name, host, integration and tags.
    key: (u32, u32),
    facts: Facts,
    state: State,
}

/// Room for more series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    Plenty,
    /// New series go into one series per name.
    Scarce,
    /// New series go into one series per kind.
    None,
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
            series: Vec::new(),
            index: HashTable::new(),
            heap_of_states: 0,
            translated: Vec::new(),
            key: Vec::new(),
            expected: 0,
        }
    }

    pub fn add(&mut self, record: &Record, room: Room, bounds: &Bounds) -> Added {
        let texts: Vec<&str> = record.texts().collect();
        self.translated.clear();
        self.translated.resize(texts.len(), UNKNOWN);
        self.expected = 0;
        let mut added = Added::default();
        for series in record.numbered() {
            self.translate(&texts, &series, room);
            match self.find() {
                Ok(at) => self.merge(at, series.facts, series.state, bounds),
                Err(hash) if room == Room::Plenty => {
                    self.insert(hash, series.kind, series.facts, series.state);
                }
                Err(_) => self.overflow(texts[series.name as usize], &series, room, bounds, &mut added),
            }
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
        let found = match self.expected < self.series.len() && is_at(self.expected) {
            true => Ok(self.expected),
            false => {
                let hash = hash(&self.key, self.seed);
                let found = self.index.find(hash, |at| is_at(*at as usize));
                found.map(|at| *at as usize).ok_or(hash)
            }
        };
        self.expected = found.unwrap_or(self.series.len()) + 1;
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

    fn insert(&mut self, hash: u64, kind: Kind, facts: Facts, state: &State) {
        let start = self.keys.len() as u32;
        self.keys.extend(&self.key);
        let at = self.series.len() as u32;
        self.heap_of_states += state.heap_bytes();
        self.series.push(Series {
            kind,
            key: (start, self.keys.len() as u32),
            facts,
            state: state.clone(),
        });
        let (series, keys, seed) = (&self.series, &self.keys, self.seed);
        self.index.insert_unique(hash, at, |at| {
            let (start, end) = series[*at as usize].key;
            self::hash(&keys[start as usize..end as usize], seed)
        });
    }

    /// Keeps sums right: merges states that can be summed into an overflow series.
    fn overflow(
        &mut self,
        name: &str,
        series: &Numbered<'_>,
        room: Room,
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
        [name, host, NONE, tag]
            .iter()
            .for_each(|number| push(&mut self.key, *number));
        match self.find() {
            Ok(at) => self.merge(at, series.facts, series.state, bounds),
            Err(hash) => self.insert(hash, series.kind, series.facts, series.state),
        }
    }

    /// Bytes held, estimated.
    pub fn bytes(&self) -> usize {
        size_of::<Self>()
            + self.texts.heap_bytes()
            + self.keys.capacity()
            + self.series.capacity() * SERIES_BYTES
            + self.heap_of_states
    }

    /// The same series, sorted.
    pub fn into_table(self, bounds: Bounds) -> Table {
        let mut table = Table::new(bounds);
        let (texts, keys) = (self.texts, self.keys);
        for series in self.series {
            let mut numbers = keys[series.key.0 as usize + 1..series.key.1 as usize]
                .chunks_exact(4)
                .map(|bytes| u32::from_le_bytes(bytes.try_into().expect("four")))
                .map(|number| (number != NONE).then(|| texts.get(number)));
            let mut next = || numbers.next().flatten();
            let (name, host, integration) = (next().unwrap_or_default(), next(), next());
            let identity = Identity::new(series.kind, name, host, integration, numbers.flatten());
            table.add(identity, series.facts, series.state);
        }
        table
    }
}

fn hash(key: &[u8], seed: u64) -> u64 {
    xxh3_64_with_seed(key, seed)
}

fn push(key: &mut Vec<u8>, number: u32) {
    key.extend_from_slice(&number.to_le_bytes());
}
