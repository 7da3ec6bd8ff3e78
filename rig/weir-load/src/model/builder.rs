//! Stores tags, tag lists and names as text in the arena, once each.

use super::{PAD, Piece};
use crate::profile::{Names, Payload, Profile, ProfileError, TagCount, TagKeys, TagValues};
use crate::rng::Rng;
use crate::units::Range;
use crate::words;
use std::collections::{HashMap, HashSet};
use xxhash_rust::xxh3::xxh3_128;

pub(super) struct Builder<'p> {
    pub profile: &'p Profile,
    pub arena: Vec<u8>,
    pub tags: Vec<Piece>,
    pub tag_keys: Vec<u32>,
    pub tag_ids: HashMap<u128, u32>,
    pub keys: Vec<String>,
    pub values: Vec<String>,
    pub lists: Vec<(u32, u32)>,
    pub list_tails: Vec<Piece>,
    pub list_tags: Vec<u32>,
    pub list_ids: HashMap<u128, u32>,
    pub name_ids: HashMap<u128, u32>,
    pub names: Vec<Piece>,
    pub grammar: Vec<String>,
    pub tag_rng: Rng,
    pub list_rng: Rng,
    pub name_rng: Rng,
}

const LETTERS: &[u8] = b"abcdefghijklmnopqrstuvwxyz0123456789";

pub(super) fn random_text(rng: &mut Rng, alphabet: &[u8], length: u64) -> String {
    (0..length)
        .map(|_| char::from(alphabet[rng.below(alphabet.len() as u64) as usize]))
        .collect()
}

pub(super) fn draw(rng: &mut Rng, range: Range) -> u64 {
    rng.between(range.min, range.max)
}

impl<'p> Builder<'p> {
    pub fn new(profile: &'p Profile, seed: u64) -> Builder<'p> {
        let keys = match &profile.tag_keys {
            TagKeys::Words => words::TAG_KEYS.iter().map(|word| word.to_string()).collect(),
            TagKeys::Random => Vec::new(),
            TagKeys::List(list) => words::expand(list),
        };
        let values = match &profile.tag_values {
            TagValues::List(list) => words::expand(list),
            _ => Vec::new(),
        };
        let grammar = match &profile.names {
            Names::List(list) => words::expand(list),
            _ => Vec::new(),
        };
        Builder {
            profile,
            arena: Vec::new(),
            tags: Vec::new(),
            tag_keys: Vec::new(),
            tag_ids: HashMap::new(),
            keys,
            values,
            lists: Vec::new(),
            list_tails: Vec::new(),
            list_tags: Vec::new(),
            list_ids: HashMap::new(),
            name_ids: HashMap::new(),
            names: Vec::new(),
            grammar,
            tag_rng: Rng::new(seed, "tags", 0),
            list_rng: Rng::new(seed, "tag lists", 0),
            name_rng: Rng::new(seed, "names", 0),
        }
    }
}

impl Builder<'_> {
    pub fn store(&mut self, text: &str) -> Piece {
        let off = self.arena.len() as u32;
        self.arena.extend_from_slice(text.as_bytes());
        Piece {
            off,
            len: text.len() as u32,
        }
    }

    fn tag_text(&mut self, taken_keys: &[u32], distinct_keys: bool) -> (String, u32) {
        let p = self.profile;
        let rng = &mut self.tag_rng;
        if let Some(range) = p.tag_len {
            let length = draw(rng, range);
            let key = (length / 3).max(1);
            let text = if length < 3 {
                random_text(rng, LETTERS, length)
            } else {
                let mut text = random_text(rng, LETTERS, key);
                text.push(':');
                text + &random_text(rng, LETTERS, length - key - 1)
            };
            return (text, u32::MAX);
        }
        let (key, key_id) = if self.keys.is_empty() {
            let length = draw(rng, p.tag_key_len);
            (random_text(rng, LETTERS, length), u32::MAX)
        } else {
            let mut id = rng.below(self.keys.len() as u64) as u32;
            while distinct_keys && taken_keys.contains(&id) {
                id = (id + 1) % self.keys.len() as u32;
            }
            (self.keys[id as usize].clone(), id)
        };
        let value = match &p.tag_values {
            TagValues::List(_) => self.values[rng.below(self.values.len() as u64) as usize].clone(),
            kind => {
                let alphabet: &[u8] = match kind {
                    TagValues::Hex => b"0123456789abcdef",
                    TagValues::Digits => b"0123456789",
                    _ => LETTERS,
                };
                let length = draw(rng, p.tag_value_len);
                random_text(rng, alphabet, length)
            }
        };
        (format!("{key}:{value}"), key_id)
    }

    /// The id of a tag, added if new. The first list that uses it stores `text`.
    fn tag_id(&mut self, text: &str, key: u32) -> (u32, bool) {
        let next = self.tags.len() as u32;
        match self.tag_ids.entry(xxh3_128(text.as_bytes())) {
            std::collections::hash_map::Entry::Occupied(known) => (*known.get(), false),
            std::collections::hash_map::Entry::Vacant(slot) => {
                slot.insert(next);
                self.tags.push(Piece::default());
                self.tag_keys.push(key);
                (next, true)
            }
        }
    }

    fn tag_count(&mut self) -> u64 {
        if self.profile.payload == Payload::Statsd {
            return 0;
        }
        match &self.profile.tags_per_msg {
            TagCount::Range(range) => draw(&mut self.list_rng, *range),
            TagCount::Histogram(weights) => {
                let total: f64 = weights.values().sum();
                let mut left = self.list_rng.unit() * total;
                for (count, weight) in weights {
                    left -= weight;
                    if left < 0.0 {
                        return *count;
                    }
                }
                *weights.keys().next_back().expect("validated")
            }
        }
    }

    /// Draws one list of tags: ids, and the text of new tags.
    fn draw_tags(&mut self) -> Result<Vec<(u32, Option<String>)>, ProfileError> {
        let count = self.tag_count();
        let distinct_keys = !self.keys.is_empty() && (count as usize) * 2 <= self.keys.len();
        let mut list: Vec<(u32, Option<String>)> = Vec::with_capacity(count as usize);
        let mut taken: HashSet<u32> = HashSet::with_capacity(count as usize);
        let mut taken_keys: Vec<u32> = Vec::new();
        for _ in 0..count {
            let fresh = self.tags.is_empty() || self.tag_rng.chance(self.profile.unique_tag_ratio);
            let mut found = None;
            if !fresh {
                for _ in 0..8 {
                    let id = self.tag_rng.below(self.tags.len() as u64) as u32;
                    let key = self.tag_keys[id as usize];
                    if !(taken.contains(&id) || distinct_keys && taken_keys.contains(&key)) {
                        found = Some((id, None));
                        break;
                    }
                }
            }
            for _ in 0..64 {
                if found.is_some() {
                    break;
                }
                let (text, key) = self.tag_text(&taken_keys, distinct_keys);
                let (id, new) = self.tag_id(&text, key);
                if new || !taken.contains(&id) {
                    found = Some((id, new.then_some(text)));
                }
            }
            let Some((id, text)) = found else {
                return Err(ProfileError(format!(
                    "tags_per_msg: asks for {count} different tags, but the keys and values given allow no more than about {}",
                    list.len()
                )));
            };
            taken.insert(id);
            taken_keys.push(self.tag_keys[id as usize]);
            list.push((id, text));
        }
        Ok(list)
    }

    /// Text is addressed by 32-bit offsets.
    pub fn check_size(&self, wanted: usize) -> Result<(), ProfileError> {
        if self.arena.len() + PAD <= u32::MAX as usize {
            return Ok(());
        }
        Err(ProfileError(format!(
            "contexts: {wanted} contexts of this shape need more than 4096 MiB of text, which is the most"
        )))
    }

    /// Stores a list unless the same set of tags exists. Returns its number and whether it is new.
    fn add_list(&mut self, list: Vec<(u32, Option<String>)>) -> (u32, bool) {
        let mut ids: Vec<u32> = list.iter().map(|(id, _)| *id).collect();
        ids.sort_unstable();
        let identity: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
        let next = self.lists.len() as u32;
        let key = xxh3_128(&identity);
        if let Some(known) = self.list_ids.get(&key) {
            return (*known, false);
        }
        self.list_ids.insert(key, next);
        let start = self.arena.len();
        let first = self.list_tags.len() as u32;
        for (position, (id, text)) in list.into_iter().enumerate() {
            self.arena
                .extend_from_slice(if position == 0 { b"|#" } else { b"," });
            match text {
                Some(text) => self.tags[id as usize] = self.store(&text),
                None => {
                    let Piece { off, len } = self.tags[id as usize];
                    self.arena.extend_from_within(off as usize..(off + len) as usize);
                }
            }
            self.list_tags.push(id);
        }
        self.lists.push((first, self.list_tags.len() as u32));
        self.list_tails.push(Piece {
            off: start as u32,
            len: (self.arena.len() - start) as u32,
        });
        (next, true)
    }

    pub fn new_list(&mut self) -> Result<u32, ProfileError> {
        let mut list = 0;
        // A repeated set is drawn again a few times. With few possible tags it is shared.
        for _ in 0..16 {
            let tags = self.draw_tags()?;
            let new;
            (list, new) = self.add_list(tags);
            if new {
                break;
            }
        }
        Ok(list)
    }

    pub fn explicit_list(&mut self, tags: &[String]) -> u32 {
        let list = tags
            .iter()
            .map(|text| {
                let (id, new) = self.tag_id(text, u32::MAX);
                (id, new.then(|| text.clone()))
            })
            .collect();
        self.add_list(list).0
    }

    pub fn name_text(&mut self, attempt: u64) -> String {
        let range = self.profile.name_len;
        let rng = &mut self.name_rng;
        match &self.profile.names {
            Names::Random => {
                let length = draw(rng, range);
                random_text(rng, LETTERS, length)
            }
            Names::List(_) => {
                let base = &self.grammar[rng.below(self.grammar.len() as u64) as usize];
                if attempt < 8 {
                    base.clone()
                } else {
                    format!("{base}.{}", rng.below(1 << 32))
                }
            }
            Names::Grammar => {
                let mut pick = |words: &[&'static str]| words[rng.below(words.len() as u64) as usize];
                let mut text = format!(
                    "{}.{}.{}",
                    pick(words::SERVICES),
                    pick(words::COMPONENTS),
                    pick(words::METRICS)
                );
                let unique = if attempt < 4 {
                    String::new()
                } else {
                    format!("_{}", self.name_rng.below(1 << 32))
                };
                let target = draw(&mut self.name_rng, range) as usize;
                while text.len() < target {
                    text.push('.');
                    let words = words::COMPONENTS;
                    text.push_str(words[self.name_rng.below(words.len() as u64) as usize]);
                }
                text.truncate((range.max as usize).saturating_sub(unique.len()).max(1));
                while text.len() > 1 && text.ends_with(['.', '_']) {
                    text.pop();
                }
                text + &unique
            }
        }
    }

    /// The id of a name, which is stored with its colon.
    pub fn name_id(&mut self, text: &str) -> (u32, bool) {
        let next = self.names.len() as u32;
        let key = xxh3_128(text.as_bytes());
        if let Some(known) = self.name_ids.get(&key) {
            return (*known, false);
        }
        self.name_ids.insert(key, next);
        let piece = self.store(text);
        self.arena.push(b':');
        self.names.push(Piece {
            off: piece.off,
            len: piece.len + 1,
        });
        (next, true)
    }

    pub fn distinct_names(&mut self, wanted: u64) -> Result<Vec<u32>, ProfileError> {
        let mut ids = Vec::with_capacity(wanted as usize);
        while (ids.len() as u64) < wanted {
            let mut attempt = 0;
            loop {
                let text = self.name_text(attempt);
                let (id, new) = self.name_id(&text);
                if new {
                    ids.push(id);
                    break;
                }
                attempt += 1;
                if attempt > 256 {
                    return Err(ProfileError(format!(
                        "distinct_names: {wanted} asked for, but name_len {} allows about {}",
                        self.profile.name_len,
                        ids.len()
                    )));
                }
            }
        }
        Ok(ids)
    }
}
