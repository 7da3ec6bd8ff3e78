//! The build phase: contexts, tag lists and value texts of a profile, ready to be copied into packets.
//!
//! All parts of messages are in one arena as finished text: `name:`, `12|c|@0.5`, `|#tag,tag`, `|c:origin`. A message is a copy of three or
//! four pieces. Gathering the pieces in the kernel (one iovec each) was slower: at 150 bytes per message the kernel's cost per piece
//! exceeds that of the copy (see `rig/docs/load.md`).

mod builder;
mod contexts;
mod entries;

use crate::compose::{first_value, fresh_tag, instance_tag, renumbered};
use crate::manifest::Decimal;
use crate::profile::{Churn, FILLER, Profile, ProfileError, Transport};
use crate::rng::Rng;
use builder::Builder;
use contexts::{build_contexts, build_suffixes, popularity};
use entries::{build_checks, build_entries, build_events};

/// The wire's names of the metric types, in the order of `Types::weights`.
pub const KINDS: [&str; 6] = ["c", "g", "ms", "d", "s", "h"];
pub const GAUGE: u8 = 1;
pub const DISTRIBUTION: u8 = 3;
pub const SET: u8 = 4;

/// Pieces are copied in steps of up to this many bytes, so every buffer has this much padding.
pub const PAD: usize = 128;

/// A piece of the arena.
#[derive(Clone, Copy, Debug, Default)]
pub struct Piece {
    pub off: u32,
    pub len: u32,
}

/// One context: its name, tag list and type, and the position of their text.
#[derive(Clone, Copy, Debug)]
pub struct Context {
    /// `name:`
    pub name: Piece,
    /// `|#tag,tag`, or empty.
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

/// The parts of an event or service check before and after its tags.
#[derive(Clone, Debug)]
pub struct Notice {
    pub head: Piece,
    pub after: Piece,
    /// The title, or `name|status`.
    pub key: String,
    /// Position of the number that makes notices distinct: in the head of an event, after the tags of a check.
    pub number: Option<u32>,
}

/// Everything prepared from one profile and seed.
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
    /// Only the texts of the entries: all that sending needs, in a tenth of the memory, so that it stays in the cache.
    pub texts: [Vec<Piece>; 6],
    pub events: Vec<Notice>,
    pub checks: Vec<Notice>,
    /// Maximum length of a message.
    pub message_max: usize,
}

impl Model {
    /// Prepares a profile for a transport. This is slow: all expensive work happens here.
    pub fn build(profile: &Profile, transport: Transport, seed: u64) -> Result<Model, ProfileError> {
        profile.validate()?;
        if !profile.payload.is_statsd() {
            return Err(ProfileError(format!(
                "payload {}: is made of records, not of contexts",
                profile.payload.name()
            )));
        }
        let mut b = Builder::new(profile, seed);
        let wanted =
            Rng::new(seed, "contexts", 0).between(profile.contexts.min, profile.contexts.max) as usize;
        // Every message uses value texts, so they come first, close together.
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
            build_contexts(&mut b, &weights, seed)?
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

    /// The values of a message, as it was drawn: the entry's, unless it carries a number.
    pub fn drawn_values(&self, kind: u8, entry: u32, sequence: u64, serial: u64) -> Vec<Decimal> {
        if sequence > 0 {
            return vec![Decimal::from_int(sequence as i64)];
        }
        let entry = &self.entries[kind as usize][entry as usize];
        let text = self.text(entry.text);
        let values = text.split('|').next().expect("split yields one part at least");
        let values = values.split(':').enumerate();
        values
            .map(|(index, value)| match index {
                0 if serial > 0 => {
                    let (first, _) = first_value(value.as_bytes());
                    Decimal::from_int(renumbered(first, serial, &self.profile.value) as i64)
                }
                _ => value.parse().expect("a plain decimal"),
            })
            .collect()
    }

    /// The entry of which the first value carries a number.
    pub fn numbered_entry(&self, kind: u8, entry: u32, serial: u64) -> Entry {
        let values = self.drawn_values(kind, entry, 0, serial);
        Entry {
            sum: Decimal {
                micros: values.iter().map(|value| value.micros).sum(),
            },
            min: *values.iter().min().expect("one value at least"),
            max: *values.iter().max().expect("one value at least"),
            last: *values.last().expect("one value at least"),
            ..self.entries[kind as usize][entry as usize]
        }
    }

    /// The tags of a context, sorted, each once.
    pub fn tags_of(&self, index: u32, generation: u32, fresh: u64) -> Vec<String> {
        let list = self.list(self.contexts[index as usize].list).iter();
        let mut tags: Vec<String> = list
            .map(|tag| self.text(self.tags[*tag as usize]).to_owned())
            .collect();
        if let Churn::Trickle { group, .. } | Churn::Deploy { group, .. } = self.profile.churn {
            tags.push(instance_tag(self.seed, u64::from(index) / group, generation));
        }
        if fresh > 0 {
            tags.push(fresh_tag(fresh));
        }
        tags.sort_unstable();
        tags.dedup();
        tags
    }

    /// The tags of a list, in the order of the text.
    pub fn list(&self, list: u32) -> &[u32] {
        let (first, end) = self.lists[list as usize];
        &self.list_tags[first as usize..end as usize]
    }
}

/// The part of the builder that `collide` uses.
pub(crate) struct CollideBuilder<'a, 'p>(&'a mut Builder<'p>);

impl CollideBuilder<'_, '_> {
    /// A context with this name, tags and type, if the profile's types allow it.
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

/// The maximum length of a message, with space for instance tag, flood tag, timestamp and the longest error.
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
    // Repeated tags at most double the list.
    let tail = match model.profile.tag_order {
        crate::profile::TagOrder::Dup(_) => 2 * tail + 2,
        _ => tail,
    };
    (name + entry).max(notice) as usize + tail as usize + suffix as usize + 96
}
