//! The fast paths from the bytes of a message to a known context, without parsing its tags.

use weir_protocol::{Kind, may_be_special, separators};

use super::{Contexts, Lookup, RawMatch};
use crate::alias::AliasKey;
use crate::compiled_for_levels;
use crate::context_table::ContextId;
use crate::counters::AliasCounter;
use crate::interner::Interner;
use crate::origins::OriginId;
use crate::prefetch::{prefetch, prefetch_text};
use crate::raw_table::{RawId, TargetState};
use crate::tag_lists::{self, PAIRS_MAX, RawTag};
use weir_counters::Counts;

impl Contexts {
    /// Hash of the bytes that identify a message, for the alias functions below.
    #[inline(always)]
    pub fn alias_hash(&self, key: &AliasKey<'_>) -> u64 {
        self.secret.pair(key.name, key.tail, u64::from(key.head))
    }

    /// First step of an alias look-up: prefetches the memory for the second.
    #[inline]
    pub fn prefetch_alias(&self, hash: u64) {
        prefetch(self.aliases.first_slot(hash));
    }

    /// Second step: prefetches the key and the target of an alias. Returns the raw context that the look-up will probably find, for the third
    /// step; nothing else may rely on it.
    #[inline(always)]
    pub fn prefetch_key(&self, hash: u64) -> Option<RawId> {
        let (key, raw) = self.aliases.peek(hash)?;
        prefetch_text(key);
        prefetch(self.raw.target_address(raw));
        Some(raw)
    }

    /// Third step: the context that the look-up will probably find. It serves to prefetch its state; nothing else may rely on it.
    #[inline(always)]
    pub fn probable_context(&self, raw: RawId) -> Option<ContextId> {
        self.raw.probable_context(raw)
    }

    /// The raw context of a message that was seen before. Compares its bytes once.
    #[inline(always)]
    pub fn find_alias(&mut self, hash: u64, key: &AliasKey<'_>) -> Option<RawId> {
        self.aliases.get(hash, key)
    }

    /// The context of a raw context found earlier, if nothing else has to be done: the short form of [`Contexts::resolve_raw`].
    #[inline(always)]
    pub fn ordinary_context(&self, raw: RawId) -> Option<ContextId> {
        self.raw.target(raw)?.ordinary()
    }

    compiled_for_levels! {
        /// Finds the raw context of a metric from the bytes of its name and tags if both are known: the fast form of [`Contexts::resolve`]
        /// for known tags in a new order. `tags` is a tag section without `#`; the message has no origin field besides `sender`. `None`:
        /// use the slow path.
        pub fn find(
            &mut self: Contexts,
            kind: Kind,
            name: &[u8],
            tags: &[u8],
            sender: OriginId
        ) -> Option<RawId>;
        level: self.secret.level();
        body: find_inlined
    }

    #[inline(always)]
    fn find_inlined(&mut self, kind: Kind, name: &[u8], tags: &[u8], sender: OriginId) -> Option<RawId> {
        let mut parts = [RawTag::default(); PAIRS_MAX];
        // The search needs eight more than it uses.
        let mut commas = [0; PAIRS_MAX + 7];
        let comma_count = match separators(tags, b',', &mut commas) {
            Some(count) if count < PAIRS_MAX => count,
            _ => return self.find_many(kind, name, tags, sender),
        };
        let ends = &mut commas[..=comma_count];
        ends[comma_count] = tags.len() as u32;
        let mut start = 0;
        let mut count = 0;
        for &end in ends.iter() {
            let tag = &tags[start..end as usize];
            start = end as usize + 1;
            if tag.is_empty() {
                continue;
            }
            // The last special tag counts, so order matters. They are rare enough for the slow path.
            if is_special(tag, &tags[end as usize - tag.len()..]) {
                return None;
            }
            parts[count] = RawTag {
                text: tag,
                hash: self.secret.bytes(tag),
            };
            count += 1;
        }
        match self.find_parts(kind, name, &parts[..count], sender) {
            None if has_duplicates(&parts[..count]) => self.find_many(kind, name, tags, sender),
            found => found,
        }
    }

    compiled_for_levels! {
        /// [`Contexts::find`] for many tags and for duplicates. A separate function, compiled per level: as a part of the short form it
        /// takes 320 instead of 130 ns with 8 tags.
        #[inline(never)]
        fn find_many(
            &mut self: Contexts,
            kind: Kind,
            name: &[u8],
            tags: &[u8],
            sender: OriginId
        ) -> Option<RawId>;
        level: self.secret.level();
        body: find_many_inlined
    }

    #[inline(always)]
    fn find_many_inlined(&mut self, kind: Kind, name: &[u8], tags: &[u8], sender: OriginId) -> Option<RawId> {
        let mut commas = std::mem::take(&mut self.scratch.commas);
        let mut parts = emptied(std::mem::take(&mut self.scratch.parts));
        let comma_count = loop {
            match separators(tags, b',', &mut commas) {
                Some(count) => break count,
                None => commas.resize((2 * commas.len()).max(64), 0),
            }
        };
        let ends = commas[..comma_count].iter().map(|&comma| comma as usize);
        let mut start = 0;
        for end in ends.chain([tags.len()]) {
            let text = &tags[start..end];
            start = end + 1;
            if !text.is_empty() {
                let hash = self.secret.bytes(text);
                parts.push(RawTag { text, hash });
            }
        }
        let found = self.find_any(kind, name, &mut parts, sender);
        self.scratch.parts = emptied(parts);
        self.scratch.commas = commas;
        found
    }

    /// [`Contexts::find`] for tags that are already split.
    pub fn find_split(&mut self, kind: Kind, name: &[u8], tags: &[&[u8]], sender: OriginId) -> Option<RawId> {
        let mut parts = emptied(std::mem::take(&mut self.scratch.parts));
        parts.extend(tags.iter().map(|&text| RawTag {
            text,
            hash: self.secret.bytes(text),
        }));
        let found = self.find_any(kind, name, &mut parts, sender);
        self.scratch.parts = emptied(parts);
        found
    }

    /// [`Contexts::find_parts`] for any tags.
    #[inline(always)]
    fn find_any(
        &mut self,
        kind: Kind,
        name: &[u8],
        parts: &mut Vec<RawTag<'_>>,
        sender: OriginId,
    ) -> Option<RawId> {
        // The last special tag counts, so order matters. They are rare enough for the slow path.
        if parts.iter().any(|tag| is_special(tag.text, tag.text)) {
            return None;
        }
        if let Some(found) = self.find_parts(kind, name, parts, sender) {
            return Some(found);
        }
        if !remove_duplicates(parts, &mut self.scratch.places) {
            return None;
        }
        self.find_parts(kind, name, parts, sender)
    }

    /// The raw context of a name and tags whose hashes are known. Also `None` if a tag occurs twice.
    #[inline(always)]
    fn find_parts(
        &mut self,
        kind: Kind,
        name: &[u8],
        parts: &[RawTag<'_>],
        sender: OriginId,
    ) -> Option<RawId> {
        let level = self.secret.level();
        let list_hash = tag_lists::hash(parts.iter().map(|tag| tag.hash), &self.secret);
        let hash = self.hash_raw(
            kind,
            self.secret.bytes(name),
            list_hash,
            self.origins.hash(sender),
        );
        let Interner {
            strings, tag_lists, ..
        } = &self.interner;
        // A loop instead of a closure: a closure would not be compiled for the instructions of this function's callers.
        let mut candidates = self.raw.candidates(hash);
        let slot = loop {
            let &slot = candidates.next()?;
            let raw = self.raw.get(slot);
            if (raw.kind, raw.origin) == (kind as u8, sender)
                && strings.equals(raw.name, name, level)
                && tag_lists.matches(raw.tags, parts, strings, level, &mut self.scratch.taken)
            {
                break slot;
            }
        };
        drop(candidates);
        Some(self.raw.id(slot))
    }

    /// Adds an alias from the bytes of a message to `raw_match`, so that the next equal message finds its context at once. Only for messages
    /// whose tail has nothing else, such as a rate or a timestamp.
    pub fn remember_alias(&mut self, hash: u64, key: &AliasKey<'_>, raw_match: RawMatch) {
        if raw_match.is_known() {
            self.aliases.offer(hash, key, raw_match.raw, raw_match.is_new);
        }
    }

    /// Counters of the raw-alias cache.
    pub fn alias_counts(&self) -> Counts<AliasCounter> {
        let mut counts = self.aliases.counts;
        counts[AliasCounter::Known] = self.aliases.len() as u64;
        counts
    }

    pub fn aliases(&self) -> usize {
        self.aliases.len()
    }

    /// The target of a raw context found earlier, if its slot still holds it.
    #[inline(always)]
    pub fn resolve_raw(&mut self, raw: RawId, now: u32) -> Option<Lookup> {
        let target = self.raw.target(raw)?;
        let raw_match = RawMatch::from(raw);
        match target.ordinary() {
            Some(id) => Some(Lookup::Context(id, raw_match)),
            None => self.resolve_other(raw_match, target.target_state(), now),
        }
    }

    #[cold]
    fn resolve_other(&mut self, raw_match: RawMatch, target_state: TargetState, now: u32) -> Option<Lookup> {
        match target_state {
            TargetState::Free | TargetState::Stale => None,
            TargetState::Filtered => {
                let slot = raw_match.raw.slot;
                self.raw.touch(slot, now);
                Some(Lookup::Filtered(raw_match, self.raw.filtered_by(slot)))
            }
            TargetState::Context(id) => Some(Lookup::Context(id, raw_match)),
            TargetState::DryRun(id) => Some(Lookup::DryRun(id, raw_match)),
        }
    }
}

/// Reuses the memory of a vector for tags of another lifetime. Collecting in place keeps the allocation.
fn emptied<'a>(mut parts: Vec<RawTag<'_>>) -> Vec<RawTag<'a>> {
    parts.clear();
    parts.into_iter().map(|_| RawTag::default()).collect()
}

/// Whether a tag is special. `from` is the text from the tag's start on; it may extend beyond the tag.
///
/// One branch, hardly ever taken: whether a tag begins with a `d` could not be predicted.
#[inline]
fn is_special(tag: &[u8], from: &[u8]) -> bool {
    let Some(first) = from.first_chunk::<8>() else {
        return may_be_special(tag);
    };
    let word = u64::from_le_bytes(*first);
    let host = word & 0xff_ffff_ffff == u64::from_le_bytes(*b"host:\0\0\0");
    let internal = word == u64::from_le_bytes(*b"dd.inter");
    (host | internal) && may_be_special(tag)
}

/// Keeps the first of equal tags. Returns true if there were duplicates. `places` is scratch memory for a hash table of places in `tags`,
/// counted from one. Sorting would take longer than everything else here.
#[inline(always)]
fn remove_duplicates(tags: &mut Vec<RawTag<'_>>, places: &mut Vec<u32>) -> bool {
    places.clear();
    places.resize((2 * tags.len()).next_power_of_two(), 0);
    let mask = places.len() - 1;
    let mut kept = 0;
    for next in 0..tags.len() {
        let tag = tags[next];
        let mut at = tag.hash as usize & mask;
        loop {
            let Some(place) = (places[at] as usize).checked_sub(1) else {
                tags[kept] = tag;
                kept += 1;
                places[at] = kept as u32;
                break;
            };
            let other = &tags[place];
            if other.hash == tag.hash && other.text == tag.text {
                break;
            }
            at = (at + 1) & mask;
        }
    }
    let removed = kept < tags.len();
    tags.truncate(kept);
    removed
}

fn has_duplicates(tags: &[RawTag<'_>]) -> bool {
    tags.iter()
        .enumerate()
        .any(|(at, tag)| tags[..at].iter().any(|earlier| earlier.hash == tag.hash))
}
