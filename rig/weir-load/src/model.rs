//! The build phase: contexts, tag lists and value texts of a profile, ready to be copied into packets.
//!
//! Everything a message consists of lies in one arena as finished text: `name:`, `12|c|@0.5`, `|#tag,tag`, `|c:origin`.
//! A message is the copy of three or four pieces. Gathering the pieces in the kernel (one iovec each) was measured
//! and lost: at 150 bytes per message the kernel pays more per piece than the copy costs (see `rig/docs/load.md`).

use crate::compose::{SERIAL_DIGITS, first_value, renumbered};
use crate::manifest::Decimal;
use crate::profile::{
    Extension, FILLER, Names, Payload, Popularity, Profile, ProfileError, TagCount, TagKeys, TagValues,
    Transport, Value, ValueKind,
};
use crate::rng::{self, Rng};
use crate::units::Range;
use crate::words;
use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;
use xxhash_rust::xxh3::xxh3_128;

/// The wire's names of the metric types, in the order of `Types::weights`.
pub const KINDS: [&str; 6] = ["c", "g", "ms", "d", "s", "h"];
pub const GAUGE: u8 = 1;
pub const SET: u8 = 4;

/// Pieces are copied in steps of up to this many bytes, so every buffer has as many to spare at its end.
pub const PAD: usize = 128;

/// A piece of the arena.
#[derive(Clone, Copy, Debug, Default)]
pub struct Piece {
    pub off: u32,
    pub len: u32,
}

/// One context: which name, tag list and type, and where their text is.
#[derive(Clone, Copy, Debug)]
pub struct Context {
    /// `name:`
    pub name: Piece,
    /// `|#tag,tag`, or nothing.
    pub tail: Piece,
    pub list: u32,
    pub name_id: u32,
    pub suffix: u32,
    pub kind: u8,
}

/// The text between the colon after the name and the tags: value or values, type, rate.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    pub text: Piece,
    pub samples: u32,
    /// `1 / rate`.
    pub weight: u32,
    pub sum: Decimal,
    pub min: Decimal,
    pub max: Decimal,
    pub last: Decimal,
}

/// An event or a service check before and after its tags.
#[derive(Clone, Debug)]
pub struct Notice {
    pub head: Piece,
    pub after: Piece,
    /// The title, or `name|status`.
    pub key: String,
    /// Where the number lies that keeps notices apart: in the head of an event, after the tags of a check.
    pub number: Option<u32>,
}

/// Everything prepared of one profile and seed.
#[derive(Debug)]
pub struct Model {
    pub profile: Profile,
    pub transport: Transport,
    pub seed: u64,
    pub arena: Vec<u8>,
    pub contexts: Vec<Context>,
    /// One weight per context.
    pub weights: Vec<f64>,
    /// Tag ids of each list, as ranges of `list_tags`.
    pub lists: Vec<(u32, u32)>,
    pub list_tags: Vec<u32>,
    pub tags: Vec<Piece>,
    pub names: u32,
    pub suffixes: Vec<Piece>,
    /// Container id per suffix.
    pub containers: Vec<String>,
    pub entries: [Vec<Entry>; 6],
    /// The texts of the entries alone: what sending needs, in a tenth of the memory, so that it stays in the cache.
    pub texts: [Vec<Piece>; 6],
    pub events: Vec<Notice>,
    pub checks: Vec<Notice>,
    /// No message is longer.
    pub message_max: usize,
}

struct Builder<'p> {
    profile: &'p Profile,
    arena: Vec<u8>,
    tags: Vec<Piece>,
    tag_keys: Vec<u32>,
    tag_ids: HashMap<u128, u32>,
    keys: Vec<String>,
    values: Vec<String>,
    lists: Vec<(u32, u32)>,
    list_tails: Vec<Piece>,
    list_tags: Vec<u32>,
    list_ids: HashMap<u128, u32>,
    name_ids: HashMap<u128, u32>,
    names: Vec<Piece>,
    grammar: Vec<String>,
    tag_rng: Rng,
    list_rng: Rng,
    name_rng: Rng,
}

/// Room for a number that is written when the message is composed.
const SERIAL_ROOM: &str = "000000000000";
const _: () = assert!(SERIAL_ROOM.len() == SERIAL_DIGITS);

const LETTERS: &[u8] = b"abcdefghijklmnopqrstuvwxyz0123456789";

fn random_text(rng: &mut Rng, alphabet: &[u8], length: u64) -> String {
    (0..length)
        .map(|_| char::from(alphabet[rng.below(alphabet.len() as u64) as usize]))
        .collect()
}

fn draw(rng: &mut Rng, range: Range) -> u64 {
    rng.between(range.min, range.max)
}

impl Builder<'_> {
    fn store(&mut self, text: &str) -> Piece {
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

    /// The id of a tag, made known if it is new. `text` is stored by the list that uses it first.
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

    /// One list of tags, as ids and, for the new ones, their text.
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

    /// Text is found by 32-bit offsets.
    fn check_size(&self, wanted: usize) -> Result<(), ProfileError> {
        if self.arena.len() + PAD <= u32::MAX as usize {
            return Ok(());
        }
        Err(ProfileError(format!(
            "contexts: {wanted} contexts of this shape need more than 4096 MiB of text, which is the most"
        )))
    }

    /// Stores a list unless the same set of tags is known, and says which it is.
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

    fn new_list(&mut self) -> Result<u32, ProfileError> {
        let mut list = 0;
        // A repeated set is drawn again a few times; with few possible tags it is simply shared.
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

    fn explicit_list(&mut self, tags: &[String]) -> u32 {
        let list = tags
            .iter()
            .map(|text| {
                let (id, new) = self.tag_id(text, u32::MAX);
                (id, new.then(|| text.clone()))
            })
            .collect();
        self.add_list(list).0
    }

    fn name_text(&mut self, attempt: u64) -> String {
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

    /// The id of a name, stored with its colon.
    fn name_id(&mut self, text: &str) -> (u32, bool) {
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

    fn distinct_names(&mut self, wanted: u64) -> Result<Vec<u32>, ProfileError> {
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

/// A number as it is written and as it counts.
struct Number {
    text: String,
    value: Decimal,
}

fn number(rng: &mut Rng, value: &Value) -> Number {
    let with_fraction = rng.chance(value.float_p);
    let whole: i64 = match value.kind {
        ValueKind::Lognormal { median, sigma } => {
            (median * rng::exp(sigma * rng.normal())).clamp(0.0, 999_999.0) as i64
        }
        ValueKind::Uniform { min, max } => {
            let span = (i128::from(max) - i128::from(min) + 1) as u128;
            (i128::from(min) + ((u128::from(rng.next_u64()) * span) >> 64) as i128) as i64
        }
        ValueKind::Constant(value) => value,
        ValueKind::SmallInts => rng.below(1001) as i64,
        ValueKind::Sequence => unreachable!("written by the composer"),
    };
    if !with_fraction {
        return Number {
            text: whole.to_string(),
            value: Decimal::from_int(whole),
        };
    }
    // Beyond 2^53 a double has no fraction left; it is written as the integer it is.
    if whole.unsigned_abs() >= 1 << 53 {
        let text = format!("{}", whole as f64);
        let value = text.parse().expect("an integer");
        return Number { text, value };
    }
    let fraction = rng.below(10u64.pow(value.decimals));
    let sign = if whole < 0 { "-" } else { "" };
    let text = format!(
        "{sign}{}.{fraction:0width$}",
        whole.unsigned_abs(),
        width = value.decimals as usize
    );
    let value = text.parse().expect("a plain decimal");
    Number { text, value }
}

/// `1/n` as text that reads back as the nearest double.
fn rate_text(n: u32) -> String {
    format!("{}", 1.0 / f64::from(n))
}

fn build_entries(b: &mut Builder<'_>, seed: u64, kind: usize) -> Vec<Entry> {
    let p = b.profile;
    let mut rng = Rng::new(seed, "values", kind as u64);
    let letter = KINDS[kind];
    let is_set = kind == SET as usize;
    let sampled = !is_set && kind != GAUGE as usize;
    // Numbered values are written when a message is composed; what is left to draw is the rate.
    let numbered = p.value.kind == ValueKind::Sequence;
    let count = if is_set {
        if numbered { 1 } else { p.set_members as usize }
    } else {
        p.value.pool as usize
    };
    let mut entries = Vec::with_capacity(count);
    for index in 0..count {
        let packed = !is_set && rng.chance(p.multivalue_p);
        let samples = if packed { draw(&mut rng, p.multivalue_n) } else { 1 };
        let mut text = String::new();
        let mut sum = Decimal::ZERO;
        let (mut min, mut max, mut last) = (None, None, Decimal::ZERO);
        for position in 0..if numbered { 0 } else { samples } {
            if position > 0 {
                text.push(':');
            }
            if is_set {
                // Unique by the index, of changing length.
                let tail = rng.below(1 << 20);
                let _ = write!(text, "u{index:x}-{tail:x}");
                continue;
            }
            let number = number(&mut rng, &p.value);
            text.push_str(&number.text);
            sum.micros += number.value.micros;
            min = Some(min.map_or(number.value, |m: Decimal| m.min(number.value)));
            max = Some(max.map_or(number.value, |m: Decimal| m.max(number.value)));
            last = number.value;
        }
        text.push('|');
        text.push_str(letter);
        let mut weight = 1;
        if sampled && rng.chance(p.sample_p) {
            weight = p.sample_rates[rng.below(p.sample_rates.len() as u64) as usize];
            text.push_str("|@");
            text.push_str(&rate_text(weight));
        }
        let text = b.store(&text);
        entries.push(Entry {
            text,
            samples: samples as u32,
            weight,
            sum,
            min: min.unwrap_or_default(),
            max: max.unwrap_or_default(),
            last,
        });
    }
    entries
}

fn build_events(b: &mut Builder<'_>, seed: u64) -> Vec<Notice> {
    let mut rng = Rng::new(seed, "events", 0);
    let pick = |rng: &mut Rng, words: &[&'static str]| words[rng.below(words.len() as u64) as usize];
    (0..256)
        .map(|index| {
            let service = pick(&mut rng, words::SERVICES);
            let title = format!("{} {} event {index}", service, pick(&mut rng, words::COMPONENTS));
            let text: Vec<&str> = (0..rng.between(3, 40))
                .map(|_| pick(&mut rng, words::METRICS))
                .collect();
            let text = format!("{} {SERIAL_ROOM}", text.join(" "));
            let mut head = format!("_e{{{},{}}}:{title}|{text}", title.len(), text.len());
            let number = (head.len() - SERIAL_DIGITS) as u32;
            if rng.chance(0.5) {
                let _ = write!(head, "|h:host-{}", rng.below(100));
            }
            if rng.chance(0.5) {
                let _ = write!(head, "|k:key-{}", rng.below(100));
            }
            if rng.chance(0.3) {
                head.push_str("|p:low");
            }
            if rng.chance(0.5) {
                let kinds = ["error", "warning", "info", "success"];
                let _ = write!(head, "|t:{}", pick(&mut rng, &kinds));
            }
            Notice {
                head: b.store(&head),
                after: Piece::default(),
                key: title,
                number: Some(number),
            }
        })
        .collect()
}

fn build_checks(b: &mut Builder<'_>, seed: u64) -> Vec<Notice> {
    let mut rng = Rng::new(seed, "checks", 0);
    let pick = |rng: &mut Rng, words: &[&'static str]| words[rng.below(words.len() as u64) as usize];
    (0..64)
        .map(|index| {
            let status = [0, 0, 0, 1, 2, 3][rng.below(6) as usize];
            let name = format!(
                "{}.{}.can_connect",
                pick(&mut rng, words::SERVICES),
                pick(&mut rng, words::COMPONENTS)
            );
            // Every second one has a text.
            let (after, number) = if index % 2 == 0 {
                let text = format!("|m:state {SERIAL_ROOM} reached");
                (b.store(&text), Some("|m:state ".len() as u32))
            } else {
                (Piece::default(), None)
            };
            Notice {
                head: b.store(&format!("_sc|{name}|{status}")),
                after,
                key: format!("{name}|{status}"),
                number,
            }
        })
        .collect()
}

impl Model {
    /// Prepares a profile for a transport. Slow on purpose: everything costly happens here.
    pub fn build(profile: &Profile, transport: Transport, seed: u64) -> Result<Model, ProfileError> {
        profile.validate()?;
        if !profile.payload.is_statsd() {
            return Err(ProfileError(format!(
                "payload {}: is made of records, not of contexts",
                profile.payload.name()
            )));
        }
        let keys = match &profile.tag_keys {
            TagKeys::Words => words::TAG_KEYS.iter().map(|w| w.to_string()).collect(),
            TagKeys::Random => Vec::new(),
            TagKeys::List(list) => words::expand(list),
        };
        let mut b = Builder {
            profile,
            arena: Vec::new(),
            tags: Vec::new(),
            tag_keys: Vec::new(),
            tag_ids: HashMap::new(),
            keys,
            values: match &profile.tag_values {
                TagValues::List(list) => words::expand(list),
                _ => Vec::new(),
            },
            lists: Vec::new(),
            list_tails: Vec::new(),
            list_tags: Vec::new(),
            list_ids: HashMap::new(),
            name_ids: HashMap::new(),
            names: Vec::new(),
            grammar: match &profile.names {
                Names::List(list) => words::expand(list),
                _ => Vec::new(),
            },
            tag_rng: Rng::new(seed, "tags", 0),
            list_rng: Rng::new(seed, "tag lists", 0),
            name_rng: Rng::new(seed, "names", 0),
        };
        let wanted =
            Rng::new(seed, "contexts", 0).between(profile.contexts.min, profile.contexts.max) as usize;
        // Value texts are used by every message; they come first, close together.
        let entries = std::array::from_fn(|kind| {
            if profile.types.weights()[kind] > 0.0 {
                build_entries(&mut b, seed, kind)
            } else {
                Vec::new()
            }
        });
        let weights = popularity(&profile.popularity, wanted);
        let contexts = if profile.collide {
            crate::collide::contexts(&mut CollideBuilder(&mut b), wanted)
        } else {
            build_contexts(&mut b, &weights, wanted, seed)?
        };
        let events = if profile.kinds.event > 0.0 {
            build_events(&mut b, seed)
        } else {
            Vec::new()
        };
        let checks = if profile.kinds.service_check > 0.0 {
            build_checks(&mut b, seed)
        } else {
            Vec::new()
        };
        let mut model = Model {
            transport,
            seed,
            arena: Vec::new(),
            contexts,
            weights,
            suffixes: vec![Piece::default()],
            containers: vec![String::new()],
            texts: std::array::from_fn(|kind: usize| {
                let entries: &Vec<Entry> = &entries[kind];
                entries.iter().map(|entry| entry.text).collect()
            }),
            entries,
            events,
            checks,
            message_max: 0,
            profile: profile.clone(),
            lists: std::mem::take(&mut b.lists),
            list_tags: std::mem::take(&mut b.list_tags),
            tags: std::mem::take(&mut b.tags),
            names: b.names.len() as u32,
        };
        build_suffixes(&mut b, &mut model, seed);
        b.check_size(wanted)?;
        b.arena.resize(b.arena.len() + PAD, 0);
        model.arena = std::mem::take(&mut b.arena);
        model.message_max = message_max(&model);
        if let Some(size) = profile.packet_size_on(transport).exact()
            && (model.message_max + 1 + FILLER.len()) as u64 > size
        {
            return Err(ProfileError(format!(
                "packet_size: exactly {size} bytes is too small for messages of up to {} bytes and what makes a packet up to \
                 its size; {} would do",
                model.message_max,
                model.message_max + 1 + FILLER.len()
            )));
        }
        Ok(model)
    }

    pub fn text(&self, piece: Piece) -> &str {
        let bytes = &self.arena[piece.off as usize..(piece.off + piece.len) as usize];
        std::str::from_utf8(bytes).expect("the model writes text")
    }

    pub fn name(&self, context: &Context) -> &str {
        self.text(context.name).trim_end_matches(':')
    }

    /// An entry as it counts, its first value made to carry a number.
    pub fn numbered_entry(&self, kind: u8, entry: u32, serial: u64) -> Entry {
        let entry = self.entries[kind as usize][entry as usize];
        let text = self.text(entry.text);
        let values = text.split('|').next().expect("split yields one part at least");
        let values: Vec<Decimal> = values
            .split(':')
            .enumerate()
            .map(|(index, value)| match index {
                0 => {
                    let (first, _) = first_value(value.as_bytes());
                    Decimal::from_int(renumbered(first, serial, &self.profile.value) as i64)
                }
                _ => value.parse().expect("a plain decimal"),
            })
            .collect();
        Entry {
            sum: Decimal {
                micros: values.iter().map(|value| value.micros).sum(),
            },
            min: *values.iter().min().expect("one value at least"),
            max: *values.iter().max().expect("one value at least"),
            last: *values.last().expect("one value at least"),
            ..entry
        }
    }

    /// The tags of a list, in the order they are written.
    pub fn list(&self, list: u32) -> &[u32] {
        let (first, end) = self.lists[list as usize];
        &self.list_tags[first as usize..end as usize]
    }
}

/// What `collide` needs of the builder.
pub(crate) struct CollideBuilder<'a, 'p>(&'a mut Builder<'p>);

impl CollideBuilder<'_, '_> {
    /// A context of explicit name, tags and type, if the profile's types allow it.
    pub(crate) fn context(&mut self, name: &str, tags: &[String], kind: u8) -> Context {
        let list = self.0.explicit_list(tags);
        let (name_id, _) = self.0.name_id(name);
        Context {
            name: self.0.names[name_id as usize],
            tail: self.0.list_tails[list as usize],
            list,
            name_id,
            suffix: 0,
            kind,
        }
    }

    pub(crate) fn kind(&self) -> u8 {
        let weights = self.0.profile.types.weights();
        (0..6)
            .max_by(|&a, &b| weights[a].total_cmp(&weights[b]))
            .expect("six") as u8
    }
}

fn popularity(popularity: &Popularity, contexts: usize) -> Vec<f64> {
    match popularity {
        Popularity::Uniform | Popularity::Cyclic => vec![1.0; contexts],
        Popularity::Zipf(s) => (1..=contexts)
            .map(|rank| 1.0 / rng::pow(rank as f64, *s))
            .collect(),
        Popularity::Weights(weights) => (0..contexts)
            .map(|index| weights[index % weights.len()])
            .collect(),
        // Resolved when the file was read; a profile made in memory has no folder to look in.
        Popularity::WeightsFile(_) => vec![1.0; contexts],
    }
}

fn build_contexts(
    b: &mut Builder<'_>,
    weights: &[f64],
    wanted: usize,
    seed: u64,
) -> Result<Vec<Context>, ProfileError> {
    let profile = b.profile;
    let mut share_rng = Rng::new(seed, "sharing", 0);
    let mut conflict_rng = Rng::new(seed, "conflicts", 0);
    let names = match profile.distinct_names {
        Some(count) => b.distinct_names(count)?,
        None => Vec::new(),
    };
    let lists: Vec<u32> = match profile.distinct_tag_lists {
        Some(count) => {
            let mut lists: Vec<u32> = Vec::new();
            for _ in 0..count {
                let list = b.new_list()?;
                if list as usize != lists.len() {
                    return Err(ProfileError(format!(
                        "distinct_tag_lists: {count} asked for, but tags_per_msg and the tags given allow about {}",
                        lists.len()
                    )));
                }
                lists.push(list);
            }
            lists
        }
        None => Vec::new(),
    };
    // With both counts given, every pair of name and list is a candidate once.
    let mut pairs: Vec<(u32, u32)> = Vec::new();
    if !names.is_empty() && !lists.is_empty() {
        if names.len() * lists.len() < wanted {
            return Err(ProfileError(format!(
                "contexts: {wanted} asked for, but {} names times {} tag lists are {}",
                names.len(),
                lists.len(),
                names.len() * lists.len()
            )));
        }
        for name in &names {
            pairs.extend(lists.iter().map(|list| (*name, *list)));
        }
        share_rng.shuffle(&mut pairs);
    }
    let shares = profile.types.weights();
    let total_share: f64 = shares.iter().sum();
    let mut given = [0.0f64; 6];
    let mut total = 0.0;
    let mut seen: HashSet<(u32, u32, u8)> = HashSet::with_capacity(wanted);
    let mut contexts: Vec<Context> = Vec::with_capacity(wanted);
    for (index, weight) in weights.iter().enumerate() {
        b.check_size(wanted)?;
        // The type furthest behind its share of all messages, so that shares hold whatever the popularity.
        total += weight;
        let kind = (0..6)
            .filter(|&k| shares[k] > 0.0)
            .max_by(|&x, &y| {
                let behind = |k: usize| shares[k] / total_share * total - given[k];
                behind(x).total_cmp(&behind(y))
            })
            .expect("validated: one type has weight") as u8;
        let mut placed = None;
        if index > 0 && conflict_rng.chance(profile.type_conflict) {
            let other: &Context = &contexts[conflict_rng.below(index as u64) as usize];
            if seen.insert((other.name_id, other.list, kind)) {
                placed = Some((other.name_id, other.list));
            }
        }
        let mut attempt = 0;
        while placed.is_none() {
            let (name, list) = if let Some(pair) = pairs.pop() {
                pair
            } else {
                let list = if !lists.is_empty() {
                    lists[share_rng.below(lists.len() as u64) as usize]
                } else if !b.lists.is_empty() && share_rng.chance(profile.shared_tagsets) {
                    share_rng.below(b.lists.len() as u64) as u32
                } else {
                    b.new_list()?
                };
                let name = if names.is_empty() {
                    let text = b.name_text(attempt);
                    b.name_id(&text).0
                } else {
                    names[share_rng.below(names.len() as u64) as usize]
                };
                (name, list)
            };
            if seen.insert((name, list, kind)) {
                placed = Some((name, list));
            }
            attempt += 1;
            if attempt > 1000 {
                return Err(ProfileError(format!(
                    "contexts: {wanted} asked for, but the names and tags given allow only about {index} different ones"
                )));
            }
        }
        let (name_id, list) = placed.expect("set above");
        given[kind as usize] += weight;
        contexts.push(Context {
            name: b.names[name_id as usize],
            tail: b.list_tails[list as usize],
            list,
            name_id,
            suffix: 0,
            kind,
        });
    }
    Ok(contexts)
}

fn build_suffixes(b: &mut Builder<'_>, model: &mut Model, seed: u64) {
    let p = b.profile;
    if p.container_id.is_none() && p.external_data.is_none() && p.cardinality_p == 0.0 {
        return;
    }
    let mut rng = Rng::new(seed, "origins", 0);
    let mut known: HashMap<(u64, u64, u64), u32> = HashMap::new();
    let container = |index: u64| {
        let mut rng = Rng::new(seed, "container", index);
        random_text(&mut rng, b"0123456789abcdef", 64)
    };
    let pick = |rng: &mut Rng, extension: Option<Extension>| match extension {
        Some(e) if rng.chance(e.p) => 1 + rng.below(u64::from(e.pool)),
        _ => 0,
    };
    for index in 0..model.contexts.len() {
        let c = pick(&mut rng, p.container_id);
        let e = pick(&mut rng, p.external_data);
        let card = if rng.chance(p.cardinality_p) {
            1 + rng.below(4)
        } else {
            0
        };
        let suffix = match known.get(&(c, e, card)) {
            Some(known) => *known,
            None => {
                let mut text = String::new();
                let mut id = String::new();
                if c > 0 {
                    id = container(c);
                    let _ = write!(text, "|c:ci-{id}");
                }
                if e > 0 {
                    let mut rng = Rng::new(seed, "external", e);
                    let uid = random_text(&mut rng, b"0123456789abcdef", 32);
                    let _ = write!(
                        text,
                        "|e:it-false,cn-{}-{e},pu-{}-{}-{}-{}-{}",
                        words::SERVICES[(e as usize) % words::SERVICES.len()],
                        &uid[..8],
                        &uid[8..12],
                        &uid[12..16],
                        &uid[16..20],
                        &uid[20..]
                    );
                }
                if card > 0 {
                    let names = ["none", "low", "orchestrator", "high"];
                    let _ = write!(text, "|card:{}", names[card as usize - 1]);
                }
                let piece = b.store(&text);
                let suffix = model.suffixes.len() as u32;
                model.suffixes.push(piece);
                model.containers.push(id);
                known.insert((c, e, card), suffix);
                suffix
            }
        };
        model.contexts[index].suffix = suffix;
    }
}

/// The longest a message can get; room for instance tag, flood tag, timestamp and the longest fault is added.
fn message_max(model: &Model) -> usize {
    let longest = |pieces: &mut dyn Iterator<Item = Piece>| pieces.map(|p| p.len).max().unwrap_or(0);
    let name = longest(&mut model.contexts.iter().map(|c| c.name));
    let tail = longest(&mut model.contexts.iter().map(|c| c.tail));
    let suffix = longest(&mut model.suffixes.iter().copied());
    let entry = longest(&mut model.entries.iter().flatten().map(|e| e.text));
    let notice = longest(&mut model.events.iter().chain(&model.checks).map(|n| Piece {
        off: 0,
        len: n.head.len + n.after.len,
    }));
    // A repeated tag at worst doubles the list.
    let tail = match model.profile.tag_order {
        crate::profile::TagOrder::Dup(_) => 2 * tail + 2,
        _ => tail,
    };
    (name + entry).max(notice) as usize + tail as usize + suffix as usize + 96
}
