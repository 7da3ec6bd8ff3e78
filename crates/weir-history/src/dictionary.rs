//! The series of a history. Each is a metric (name and kind) with a tag list, stored once.

use std::borrow::Cow;
use std::num::NonZeroU32;

use hashbrown::HashTable;
use serde::{Deserialize, Serialize};
use weir_context::{ByContext, ContextKey, HashSecret, prefetch_value};

/// The meaning of a series' values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SeriesKind {
    /// A value is the sum of a bucket.
    Counter,
    /// A value is per second.
    Rate,
    Gauge,
    /// A value is the number of distinct members.
    Set,
    Distribution,
    /// Histograms and timings.
    Histogram,
}

/// The identity of a series.
#[derive(Clone, Debug)]
pub struct SeriesKey<'a, T> {
    /// The context whose only series this is. It finds the series without its texts, once they were seen.
    pub context: Option<ContextKey>,
    /// Equal keys have equal hashes. Keys with equal hashes are compared.
    pub hash: u64,
    pub kind: SeriesKind,
    pub name: &'a str,
    /// Suffix of the name, such as `.max`.
    pub suffix: &'a str,
    /// `None`: the agent's own host.
    pub host: Option<&'a str>,
    /// Always in the same order for the same series.
    pub tags: T,
}

/// Slots accepted from another process per series: after a burst most of them may be free.
const IDS_PER_SERIES_MAX: usize = 1024;

/// Number of a series. It is reused once no point of the series is left.
pub type SeriesId = u32;

#[derive(Debug)]
pub struct StoredSeries {
    hash: u64,
    pub name: u32,
    /// Position in `Name::series`.
    place: u32,
    list: u32,
    /// Distinguishes the series that have the same number in turn.
    birth: NonZeroU32,
    /// Number of buckets and segments with points of the series.
    holders: u32,
    /// Unix seconds of the first and of the last known point.
    pub first: i64,
    pub last: i64,
}

#[derive(Debug)]
pub struct Name {
    pub text: Box<str>,
    hash: TextHash,
    pub kind: SeriesKind,
    pub series: Vec<SeriesId>,
}

/// Host and tags, each followed by a newline, which no tag contains. A host has the prefix `h`; an empty line means no host.
#[derive(Debug)]
struct List {
    text: Box<str>,
    hash: TextHash,
    series: u32,
}

/// 32 bits of a text's hash. They fit beside the text without making its entry larger, and decide nearly every comparison without a look
/// at the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct TextHash(u32);

impl TextHash {
    fn of(text: &str, secret: &HashSecret) -> Self {
        TextHash(secret.bytes(text.as_bytes()) as u32)
    }

    /// For a table, which uses the lowest and the highest bits.
    fn word(self) -> u64 {
        u64::from(self.0) << 32 | u64::from(self.0)
    }
}

#[derive(Debug, Default)]
pub struct Dictionary {
    names: Slots<Name>,
    lists: Slots<List>,
    series: Slots<StoredSeries>,
    by_name: HashTable<u32>,
    by_list: HashTable<u32>,
    by_key: HashTable<u32>,
    /// Number and birth of the only series of a context.
    by_context: ByContext<(SeriesId, NonZeroU32)>,
    births: u32,
    text_bytes: usize,
    /// Capacity of all `Name::series` together.
    members: usize,
    /// Series of another process whose key hashes are not known yet: see [`Dictionary::recognise`].
    unrecognised: usize,
    /// Senders choose the texts.
    secret: HashSecret,
    /// Buffer for composing a text.
    line: String,
}

/// The series in the form of another process.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct KnownSeries<'a> {
    names: Vec<(Cow<'a, str>, SeriesKind)>,
    /// Host and tags.
    lists: Vec<Cow<'a, str>>,
    series: Vec<SeriesEntry>,
}

/// One series: indexes into those lists, and the times of its first and last point.
#[derive(Debug, Serialize, Deserialize)]
struct SeriesEntry {
    id: SeriesId,
    name: u32,
    list: u32,
    first: i64,
    last: i64,
}

/// Why data from another process is unusable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdoptError(pub &'static str);

impl std::fmt::Display for AdoptError {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(self.0)
    }
}

impl std::error::Error for AdoptError {}

/// Numbered slots that are reused.
#[derive(Debug)]
struct Slots<T> {
    all: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Slots {
            all: Vec::new(),
            free: Vec::new(),
        }
    }
}

impl<T> Slots<T> {
    fn add(&mut self, value: T) -> u32 {
        if let Some(id) = self.free.pop() {
            self.all[id as usize] = Some(value);
            return id;
        }
        if self.all.len() == self.all.capacity() {
            // Grows by an eighth instead of doubling, because spare capacity counts against the memory.
            self.all.reserve_exact(self.all.len() / 8 + 64);
        }
        self.all.push(Some(value));
        self.all.len() as u32 - 1
    }

    fn remove(&mut self, id: u32) -> Option<T> {
        let value = self.all.get_mut(id as usize)?.take();
        if value.is_some() {
            self.free.push(id);
        }
        value
    }

    fn get(&self, id: u32) -> Option<&T> {
        self.all.get(id as usize)?.as_ref()
    }

    fn get_mut(&mut self, id: u32) -> Option<&mut T> {
        self.all.get_mut(id as usize)?.as_mut()
    }

    fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        let numbered = self.all.iter().enumerate();
        numbered.filter_map(|(id, value)| Some((id as u32, value.as_ref()?)))
    }

    fn len(&self) -> usize {
        self.all.len() - self.free.len()
    }

    fn heap_bytes(&self) -> usize {
        self.all.capacity() * size_of::<Option<T>>() + self.free.capacity() * 4
    }
}

impl Dictionary {
    /// The series that [`Dictionary::remember`] was told.
    pub fn of_context(&self, context: ContextKey) -> Option<SeriesId> {
        let (id, birth) = self.by_context.get(context)?;
        (self.series.get(id)?.birth == birth).then_some(id)
    }

    /// The context's only series is this one.
    pub fn remember(&mut self, context: ContextKey, id: SeriesId) {
        if let Some(series) = self.series.get(id) {
            self.by_context.set(context, (id, series.birth));
        }
    }

    /// Prefetches what [`Dictionary::of_context`] and [`Dictionary::hold`] read of these contexts.
    pub fn prefetch(&self, contexts: impl Iterator<Item = ContextKey> + Clone) {
        contexts
            .clone()
            .for_each(|context| self.by_context.prefetch(context));
        let known = contexts.filter_map(|context| self.by_context.get(context));
        known
            .filter_map(|(id, _)| self.series.all.get(id as usize))
            .for_each(prefetch_value);
    }

    /// Forgets the contexts of series that have left.
    pub fn forget_contexts(&mut self) {
        let series = &self.series;
        let lives =
            |(id, birth): (SeriesId, NonZeroU32)| series.get(id).is_some_and(|series| series.birth == birth);
        self.by_context.update(|known| lives(known).then_some(known));
    }

    fn birth(&mut self) -> NonZeroU32 {
        self.births = self.births.wrapping_add(1);
        NonZeroU32::new(self.births).unwrap_or(NonZeroU32::MIN)
    }

    /// The hash of a series that another process has hashed: see [`Dictionary::recognise`].
    fn hash_pair(&self, name: u32, list: u32) -> u64 {
        self.secret.two([u64::from(name), u64::from(list)])
    }

    pub fn find<'t>(&self, key: &SeriesKey<'_, impl Iterator<Item = &'t str> + Clone>) -> Option<SeriesId> {
        let same = |&id: &u32| {
            let series = self.series.get(id)?;
            (series.hash == key.hash && self.is(series, key)).then_some(())
        };
        self.by_key.find(key.hash, |id| same(id).is_some()).copied()
    }

    fn is<'t>(
        &self,
        series: &StoredSeries,
        key: &SeriesKey<'_, impl Iterator<Item = &'t str> + Clone>,
    ) -> bool {
        let (Some(name), Some(list)) = (self.names.get(series.name), self.lists.get(series.list)) else {
            return false;
        };
        name.kind == key.kind
            && name.text.strip_suffix(key.suffix) == Some(key.name)
            && is_list(&list.text, key.host, key.tags.clone())
    }

    /// Adds a series that [`Dictionary::find`] did not find.
    pub fn insert<'t>(
        &mut self,
        key: &SeriesKey<'_, impl Iterator<Item = &'t str> + Clone>,
        time: i64,
    ) -> SeriesId {
        let name = self.name(key.name, key.suffix, key.kind);
        let list = self.list(key.host, key.tags.clone());
        let birth = self.birth();
        let id = self.series.add(StoredSeries {
            hash: key.hash,
            name,
            place: 0,
            list,
            birth,
            holders: 0,
            first: time,
            last: time,
        });
        self.index(id, key.hash, name);
        id
    }

    /// Adds a new series to its name and to the table of keys.
    fn index(&mut self, id: SeriesId, hash: u64, name: u32) {
        let Self {
            series,
            by_key,
            names,
            ..
        } = self;
        by_key.insert_unique(hash, id, |&id| series.get(id).map_or(0, |series| series.hash));
        if let (Some(name), Some(made)) = (names.get_mut(name), series.get_mut(id)) {
            let before = name.series.capacity();
            made.place = name.series.len() as u32;
            name.series.push(id);
            self.members += name.series.capacity() - before;
        }
    }

    /// Finds a series of another process by its texts, because that process hashed with another secret. From then on the hash of this key
    /// finds it.
    pub fn recognise<'t>(
        &mut self,
        key: &SeriesKey<'_, impl Iterator<Item = &'t str> + Clone>,
    ) -> Option<SeriesId> {
        if self.unrecognised == 0 {
            return None;
        }
        self.line.clear();
        self.line.push_str(key.name);
        self.line.push_str(key.suffix);
        let name = self.find_name(key.kind)?;
        self.write_list(key.host, key.tags.clone());
        let list = self.find_list()?;
        let hash = self.hash_pair(name, list);
        let Self { series, by_key, .. } = self;
        let same = |&id: &u32| {
            let known = series.get(id);
            known.is_some_and(|known| (known.hash, known.name, known.list) == (hash, name, list))
        };
        let (id, _) = by_key.find_entry(hash, same).ok()?.remove();
        series.get_mut(id)?.hash = key.hash;
        by_key.insert_unique(key.hash, id, |&id| series.get(id).map_or(0, |series| series.hash));
        self.unrecognised -= 1;
        Some(id)
    }

    /// All series, in a form for another process.
    pub fn known(&self) -> KnownSeries<'_> {
        let (mut known, mut names, mut lists) = (KnownSeries::default(), Vec::new(), Vec::new());
        names.resize(self.names.all.len(), 0);
        for (id, name) in self.names.iter() {
            names[id as usize] = known.names.len() as u32;
            known.names.push((Cow::Borrowed(&name.text), name.kind));
        }
        lists.resize(self.lists.all.len(), 0);
        for (id, list) in self.lists.iter() {
            lists[id as usize] = known.lists.len() as u32;
            known.lists.push(Cow::Borrowed(&list.text));
        }
        known
            .series
            .extend(self.series.iter().map(|(id, series)| SeriesEntry {
                id,
                name: names[series.name as usize],
                list: lists[series.list as usize],
                first: series.first,
                last: series.last,
            }));
        known
    }

    /// Adds the series of another process under their numbers, and keeps them until [`Dictionary::adopted`]. The dictionary must be empty.
    pub fn adopt(&mut self, known: &KnownSeries<'_>) -> Result<(), AdoptError> {
        let is_known = |series: &SeriesEntry| {
            (series.name as usize) < known.names.len() && (series.list as usize) < known.lists.len()
        };
        let ids_end = known.series.last().map_or(0, |last| last.id as usize + 1);
        if self.ids_end() > 0
            || !known.series.is_sorted_by(|one, next| one.id < next.id)
            || !known.series.iter().all(is_known)
            || ids_end > known.series.len().saturating_mul(IDS_PER_SERIES_MAX)
        {
            return Err(AdoptError("series are there already, or do not fit their names"));
        }
        let names: Vec<u32> = known
            .names
            .iter()
            .map(|(name, kind)| self.name(name, "", *kind))
            .collect();
        let lists: Vec<u32> = known.lists.iter().map(|text| self.adopt_list(text)).collect();
        self.series.all.resize_with(ids_end, || None);
        for one in &known.series {
            let (name, list) = (names[one.name as usize], lists[one.list as usize]);
            let hash = self.hash_pair(name, list);
            let birth = self.birth();
            self.series.all[one.id as usize] = Some(StoredSeries {
                hash,
                name,
                place: 0,
                list,
                birth,
                // Held until all buckets have arrived.
                holders: 1,
                first: one.first,
                last: one.last,
            });
            if let Some(list) = self.lists.get_mut(list) {
                list.series += 1;
            }
            self.index(one.id, hash, name);
        }
        let free = (0..ids_end as u32).filter(|&id| self.series.get(id).is_none());
        self.series.free = free.collect();
        self.unrecognised = known.series.len();
        Ok(())
    }

    fn adopt_list(&mut self, text: &str) -> u32 {
        self.line.clear();
        self.line.push_str(text);
        self.find_list().unwrap_or_else(|| self.add_list())
    }

    /// Called after all buckets have arrived. Removes adopted series without points.
    pub fn adopted(&mut self) {
        (0..self.ids_end() as u32).for_each(|id| self.release(id));
    }

    fn name(&mut self, name: &str, suffix: &str, kind: SeriesKind) -> u32 {
        self.line.clear();
        self.line.push_str(name);
        self.line.push_str(suffix);
        match self.find_name(kind) {
            Some(id) => id,
            None => self.add_name(kind),
        }
    }

    /// The metric whose text is in `line`.
    fn find_name(&self, kind: SeriesKind) -> Option<u32> {
        let hash = TextHash::of(&self.line, &self.secret);
        let same = |&id: &u32| {
            let known = self.names.get(id);
            known.is_some_and(|known| known.hash == hash && known.kind == kind && *known.text == *self.line)
        };
        self.by_name.find(hash.word(), same).copied()
    }

    fn add_name(&mut self, kind: SeriesKind) -> u32 {
        let Self {
            names,
            by_name,
            secret,
            line,
            ..
        } = self;
        let hash = TextHash::of(line, secret);
        self.text_bytes += line.len();
        let id = names.add(Name {
            text: line.as_str().into(),
            hash,
            kind,
            series: Vec::new(),
        });
        by_name.insert_unique(hash.word(), id, |&id| {
            names.get(id).map_or(0, |name| name.hash.word())
        });
        id
    }

    fn list<'t>(&mut self, host: Option<&str>, tags: impl Iterator<Item = &'t str>) -> u32 {
        self.write_list(host, tags);
        let id = self.find_list().unwrap_or_else(|| self.add_list());
        if let Some(list) = self.lists.get_mut(id) {
            list.series += 1;
        }
        id
    }

    /// Writes host and tags to `line`.
    fn write_list<'t>(&mut self, host: Option<&str>, tags: impl Iterator<Item = &'t str>) {
        let line = &mut self.line;
        line.clear();
        if let Some(host) = host {
            line.push('h');
            line.push_str(host);
        }
        line.push('\n');
        for tag in tags {
            line.push_str(tag);
            line.push('\n');
        }
    }

    /// The list whose text is in `line`.
    fn find_list(&self) -> Option<u32> {
        let hash = TextHash::of(&self.line, &self.secret);
        let same = |&id: &u32| {
            let known = self.lists.get(id);
            known.is_some_and(|known| known.hash == hash && *known.text == *self.line)
        };
        self.by_list.find(hash.word(), same).copied()
    }

    fn add_list(&mut self) -> u32 {
        let Self {
            lists,
            by_list,
            secret,
            line,
            ..
        } = self;
        let hash = TextHash::of(line, secret);
        self.text_bytes += line.len();
        let id = lists.add(List {
            text: line.as_str().into(),
            hash,
            series: 0,
        });
        by_list.insert_unique(hash.word(), id, |&id| {
            lists.get(id).map_or(0, |list| list.hash.word())
        });
        id
    }

    /// Counts a bucket or segment with points of the series, the last of them at `time`.
    pub fn hold(&mut self, id: SeriesId, time: i64) {
        if let Some(series) = self.series.get_mut(id) {
            series.holders += 1;
            series.last = series.last.max(time);
        }
    }

    /// The reverse of [`Dictionary::hold`]. Removes the series with its last holder.
    pub fn release(&mut self, id: SeriesId) {
        let Some(series) = self.series.get_mut(id) else {
            return;
        };
        series.holders -= 1;
        if series.holders == 0 {
            self.remove(id);
        }
    }

    fn remove(&mut self, id: SeriesId) {
        let Some(series) = self.series.remove(id) else {
            return;
        };
        if let Ok(entry) = self.by_key.find_entry(series.hash, |&other| other == id) {
            entry.remove();
        }
        if self.unrecognised > 0 && series.hash == self.hash_pair(series.name, series.list) {
            self.unrecognised -= 1;
        }
        self.release_name(&series);
        self.release_list(series.list);
    }

    fn release_name(&mut self, series: &StoredSeries) {
        let Some(name) = self.names.get_mut(series.name) else {
            return;
        };
        name.series.swap_remove(series.place as usize);
        if let Some(&moved) = name.series.get(series.place as usize)
            && let Some(moved) = self.series.get_mut(moved)
        {
            moved.place = series.place;
        }
        if !name.series.is_empty() {
            return;
        }
        if let Some(name) = self.names.remove(series.name) {
            self.members -= name.series.capacity();
            self.text_bytes -= name.text.len();
            if let Ok(entry) = self
                .by_name
                .find_entry(name.hash.word(), |&other| other == series.name)
            {
                entry.remove();
            }
        }
    }

    fn release_list(&mut self, id: u32) {
        let Some(list) = self.lists.get_mut(id) else {
            return;
        };
        list.series -= 1;
        if list.series > 0 {
            return;
        }
        if let Some(list) = self.lists.remove(id) {
            self.text_bytes -= list.text.len();
            if let Ok(entry) = self.by_list.find_entry(list.hash.word(), |&other| other == id) {
                entry.remove();
            }
        }
    }

    pub fn series(&self, id: SeriesId) -> Option<&StoredSeries> {
        self.series.get(id)
    }

    /// The metric of a series.
    pub fn name_of(&self, series: &StoredSeries) -> Option<&Name> {
        self.names.get(series.name)
    }

    /// Upper bound of the ids.
    pub fn ids_end(&self) -> usize {
        self.series.all.len()
    }

    pub fn series_len(&self) -> usize {
        self.series.len()
    }

    pub fn names_len(&self) -> usize {
        self.names.len()
    }

    pub fn names(&self) -> impl Iterator<Item = &Name> {
        self.names.iter().map(|(_, name)| name)
    }

    /// The metrics of this name, one per kind.
    pub fn named<'s>(&'s self, text: &'s str) -> impl Iterator<Item = &'s Name> {
        let found = self.by_name.iter_hash(TextHash::of(text, &self.secret).word());
        found
            .filter_map(|&id| self.names.get(id))
            .filter(move |name| *name.text == *text)
    }

    /// Host and tags of a series.
    pub fn labels(&self, id: SeriesId) -> Labels<'_> {
        let list = self.series.get(id).and_then(|series| self.lists.get(series.list));
        Labels(list.map_or("", |list| &list.text))
    }

    pub fn heap_bytes(&self) -> usize {
        // A table has one more byte per entry and is at most seven eighths full.
        let tables = self.by_name.capacity() + self.by_list.capacity() + self.by_key.capacity();
        self.names.heap_bytes()
            + self.lists.heap_bytes()
            + self.series.heap_bytes()
            + tables * 5 * 8 / 7
            + self.by_context.heap_bytes()
            + self.members * 4
            + self.text_bytes
            // Average loss of an allocation of a few dozen bytes to rounding.
            + 8 * (self.names.len() + self.lists.len())
    }
}

/// Compares the text of a list with the parts of a key.
fn is_list<'t>(mut text: &str, host: Option<&str>, tags: impl Iterator<Item = &'t str>) -> bool {
    let mut takes = |part: &str| match text.strip_prefix(part) {
        Some(rest) => {
            text = rest;
            true
        }
        None => false,
    };
    let host_is_same = host.is_none_or(|host| takes("h") && takes(host)) && takes("\n");
    let mut tags = tags;
    host_is_same && tags.all(|tag| takes(tag) && takes("\n")) && text.is_empty()
}

/// Host and tags of a series.
#[derive(Clone, Copy, Debug)]
pub struct Labels<'a>(&'a str);

impl<'a> Labels<'a> {
    pub fn host(self) -> Option<&'a str> {
        self.0.split('\n').next()?.strip_prefix('h')
    }

    pub fn tags(self) -> impl Iterator<Item = &'a str> + Clone {
        self.0.split_terminator('\n').skip(1)
    }

    /// Keys and values, the host under `host`. The value of a tag without a colon is empty.
    pub fn pairs(self) -> impl Iterator<Item = (&'a str, &'a str)> + Clone {
        let host = self
            .host()
            .filter(|host| !host.is_empty())
            .map(|host| ("host", host));
        let tags = self.tags().map(|tag| tag.split_once(':').unwrap_or((tag, "")));
        host.into_iter().chain(tags)
    }

    /// The first value under a key.
    pub fn value(self, key: &str) -> Option<&'a str> {
        self.pairs().find(|(own, _)| *own == key).map(|(_, value)| value)
    }

    pub fn has(self, key: &str, value: &str) -> bool {
        self.pairs().any(|pair| pair == (key, value))
    }
}
