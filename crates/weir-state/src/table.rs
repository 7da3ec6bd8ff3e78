use std::collections::BTreeMap;

use crate::division::pieces;
use crate::record::Part;
use crate::wire::Writer;
use crate::{AgentId, Bounds, Facts, Header, Identity, Packer, Record, State};

/// The state of all series of one bucket. Equal contents give equal bytes, in whatever order they arrived.
#[derive(Clone, Debug, Default)]
pub struct Table {
    bounds: Bounds,
    series: BTreeMap<Identity, TableEntry>,
    /// Bytes of identities and states beside themselves.
    heap: usize,
}

/// Bytes of an entry: half of a node of the tree may be unused.
const ENTRY_BYTES: usize = 2 * (size_of::<Identity>() + size_of::<TableEntry>());

#[derive(Clone, Debug)]
struct TableEntry {
    facts: Facts,
    state: State,
}

/// Series that no record can hold: their texts or a member of a set are too long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TooLarge {
    pub series: u64,
}

impl Table {
    pub fn new(bounds: Bounds) -> Self {
        Table {
            bounds,
            series: BTreeMap::new(),
            heap: 0,
        }
    }

    /// Bytes held, estimated.
    pub fn bytes(&self) -> usize {
        self.series.len() * ENTRY_BYTES + self.heap
    }

    pub fn len(&self) -> usize {
        self.series.len()
    }

    pub fn is_empty(&self) -> bool {
        self.series.is_empty()
    }

    /// Adds the state of a series, which must be one of its kind.
    pub fn add(&mut self, identity: Identity, facts: Facts, mut state: State) {
        assert!(state.is_of(identity.kind), "a state of another kind");
        match self.series.entry(identity) {
            std::collections::btree_map::Entry::Vacant(place) => {
                state.keep_within(&self.bounds);
                self.heap += place.key().heap_bytes() + state.heap_bytes();
                place.insert(TableEntry { facts, state });
            }
            std::collections::btree_map::Entry::Occupied(mut mine) => {
                let mine = mine.get_mut();
                let before = mine.state.heap_bytes();
                mine.facts.merge(facts);
                let merged = mine.state.merge(&state, &self.bounds);
                self.heap = (self.heap + mine.state.heap_bytes()).saturating_sub(before);
                debug_assert!(merged, "kinds are part of an identity");
            }
        }
    }

    /// Takes out a series.
    pub fn remove(&mut self, identity: &Identity) -> Option<(Facts, State)> {
        let (identity, entry) = self.series.remove_entry(identity)?;
        self.removed(&identity, &entry);
        Some((entry.facts, entry.state))
    }

    /// Takes out the first series.
    pub fn pop_first(&mut self) -> Option<(Identity, Facts, State)> {
        let (identity, entry) = self.series.pop_first()?;
        self.removed(&identity, &entry);
        Some((identity, entry.facts, entry.state))
    }

    fn removed(&mut self, identity: &Identity, entry: &TableEntry) {
        let bytes = identity.heap_bytes() + entry.state.heap_bytes();
        self.heap = self.heap.saturating_sub(bytes);
    }

    /// Adds all series of a record.
    pub fn add_record(&mut self, record: &Record) {
        for series in record.series() {
            let (facts, state) = (series.facts, series.state.clone());
            self.add(series.identity(), facts, state);
        }
    }

    /// The series by ascending identity.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&Identity, Facts, &State)> {
        self.series
            .iter()
            .map(|(identity, entry)| (identity, entry.facts, &entry.state))
    }

    /// The same, taken apart.
    pub fn into_series(self) -> impl ExactSizeIterator<Item = (Identity, Facts, State)> {
        self.series
            .into_iter()
            .map(|(identity, entry)| (identity, entry.facts, entry.state))
    }

    /// As records: at least one, each small enough. `first`: the header of the first; those that follow have the next
    /// numbers.
    pub fn encode(&self, first: &Header) -> (Vec<Vec<u8>>, TooLarge) {
        self.encode_with(first, &mut Packer::default())
    }

    /// The same with a packer that other records had.
    pub fn encode_with(&self, first: &Header, packer: &mut Packer) -> (Vec<Vec<u8>>, TooLarge) {
        let (parts, too_large) = self.parts(first.agent);
        let count = parts.len() as u32;
        let mut states = 0;
        let mut records = Vec::with_capacity(parts.len());
        for (part, series) in (0..count).zip(&parts) {
            let header = first.of_part(part, count, states);
            states += series.len() as u64;
            records.push(packer.pack(&header, &series.body(header.bucket_start)));
        }
        (records, too_large)
    }

    fn parts(&self, own: AgentId) -> (Vec<Part<'_>>, TooLarge) {
        let mut parts = vec![Part::new()];
        let mut too_large = TooLarge::default();
        let mut writer = Writer::default();
        for (identity, entry) in &self.series {
            let mut is_lost = false;
            for state in pieces(&entry.state) {
                writer.bytes.clear();
                state.write(own, &mut writer);
                let bytes = &writer.bytes;
                let last = parts.last_mut().expect("there is one");
                if last.add(identity, entry.facts, bytes) {
                    continue;
                }
                let mut next = Part::new();
                is_lost |= !next.add(identity, entry.facts, bytes);
                if !next.is_empty() {
                    parts.push(next);
                }
            }
            too_large.series += u64::from(is_lost);
        }
        (parts, too_large)
    }
}
