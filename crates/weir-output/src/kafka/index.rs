//! The fleet's series for each series of the agent. Rules apply when a series is seen for the first time.

use hashbrown::HashTable;
use weir_aggregate::Series;
use weir_merge::SeriesPlace;

/// Texts of an index beyond which it takes no more: their places have 32 bits.
const TEXT_BYTES_MAX: usize = 1 << 31;

/// Flags for the parts of a series besides name and tags.
const HAS_HOST: u8 = 1;
const HAS_INTEGRATION: u8 = 2;

/// The agent's series by name, as they come from bucket to bucket.
#[derive(Debug, Default)]
pub(super) struct Index {
    series: Vec<IndexEntry>,
    texts: Vec<u8>,
    table: HashTable<u32>,
    /// The series behind the one that was found last: they come in the same order, bucket after bucket.
    next: usize,
}

#[derive(Debug)]
struct IndexEntry {
    hash: u64,
    /// Start and end in `texts`.
    text: (u32, u32),
    target: Target,
}

/// Destination of a series' state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    Place(SeriesPlace),
    /// A rule drops it.
    Nowhere,
}

impl Index {
    pub fn clear(&mut self) {
        *self = Index::default();
    }

    pub fn find(&mut self, series: &Series<'_>) -> Option<Target> {
        let hash = series.hash();
        let is_it = |at: usize| {
            let known = &self.series[at];
            let (start, end) = known.text;
            known.hash == hash && is_called(series, &self.texts[start as usize..end as usize])
        };
        let at = match self.next {
            next if next < self.series.len() && is_it(next) => next,
            _ => *self.table.find(hash, |at| is_it(*at as usize))? as usize,
        };
        self.next = at + 1;
        Some(self.series[at].target)
    }

    pub fn insert(&mut self, series: &Series<'_>, target: Target) {
        let (hash, start, number) = (series.hash(), self.texts.len() as u32, self.series.len() as u32);
        write_name(series, &mut self.texts);
        self.series.push(IndexEntry {
            hash,
            text: (start, self.texts.len() as u32),
            target,
        });
        let known = &self.series;
        self.table
            .insert_unique(hash, number, |at| known[*at as usize].hash);
        self.next = self.series.len();
    }

    pub fn is_full(&self) -> bool {
        self.texts.len() >= TEXT_BYTES_MAX
    }

    /// Bytes held, about.
    pub fn heap_bytes(&self) -> usize {
        self.series.capacity() * size_of::<IndexEntry>()
            + self.texts.capacity()
            + self.table.allocation_size()
    }
}

/// Kind, form, then each text behind its length.
fn write_name(series: &Series<'_>, into: &mut Vec<u8>) {
    into.extend([series.kind() as u8, form(series)]);
    let mut text = |text: &str| {
        into.extend((text.len() as u32).to_le_bytes());
        into.extend(text.as_bytes());
    };
    text(series.name());
    for optional in [series.explicit_host(), series.jmx_check()] {
        optional.into_iter().for_each(&mut text);
    }
    series.tags().for_each(text);
}

fn form(series: &Series<'_>) -> u8 {
    let flag = |is_set: bool, flag| if is_set { flag } else { 0 };
    flag(series.explicit_host().is_some(), HAS_HOST) | flag(series.jmx_check().is_some(), HAS_INTEGRATION)
}

/// Whether [`write_name`] would write this.
fn is_called(series: &Series<'_>, written: &[u8]) -> bool {
    let head = [series.kind() as u8, form(series)];
    let Some(mut rest) = written.strip_prefix(&head) else {
        return false;
    };
    let mut is_next = |text: &str| {
        let behind = rest
            .strip_prefix(&(text.len() as u32).to_le_bytes())
            .and_then(|rest| rest.strip_prefix(text.as_bytes()));
        rest = behind.unwrap_or_default();
        behind.is_some()
    };
    let mut optional = [series.explicit_host(), series.jmx_check()].into_iter().flatten();
    is_next(series.name()) && optional.all(&mut is_next) && series.tags().all(&mut is_next) && rest.is_empty()
}
