//! The senders of messages, as far as contexts need them: a small number beside the bytes of the message, and the tags of that origin. This
//! table asks for the tags and stores the answers. It does not look them up.

use crate::counters::OriginCounter;
use std::sync::Arc;
use weir_counters::Counts;

use hashbrown::HashTable;
use weir_protocol::{OriginFields, SpecialTag, special_tag};
use weir_rules::TagStyles;

use crate::hash::HashSecret;
use crate::usage::{OriginUsage, SUMMARY_ROWS, Top};

/// Distinct origins in a table. Messages of further ones count under their sender's origin, and a counter reports them.
const ORIGINS_MAX: usize = 65_536;

/// Additional room for senders that the kernel vouches for, so that origins invented by messages cannot keep them out. Their number is
/// bounded by the number of distinguished processes.
const SENDERS_BEYOND: usize = 16_384;

/// Seconds for which an unused origin is kept with its answer.
const IDLE_SECONDS: u32 = 60;

/// Longer origins are not looked up. No real one is nearly as long, and the table would have to store each.
const TEXT_BYTES_MAX: usize = 1024;

/// An origin, valid while something uses it. The bits above its number say how the listener reads names: equal bytes that are read
/// differently are different messages. Number zero stands for no origin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OriginId(pub(crate) u32);

/// Bits of the number in an [`OriginId`]. The bits above fit beside a kind in the head of an alias.
const NUMBER_BITS: u32 = 20;
const NUMBER_MASK: u32 = (1 << NUMBER_BITS) - 1;

const _: () = assert!(ORIGINS_MAX + SENDERS_BEYOND < NUMBER_MASK as usize);

/// A listener's reading of tags in names: with its own styles, or as the rules say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NameReading(u32);

impl From<Option<TagStyles>> for NameReading {
    fn from(own: Option<TagStyles>) -> Self {
        NameReading(own.map_or(0, |styles| (1 << TagStyles::BITS | styles.bits()) << NUMBER_BITS))
    }
}

impl NameReading {
    /// The listener's own tag styles. `None`: the rules decide.
    pub fn tag_styles(self) -> Option<TagStyles> {
        OriginId::NONE.read(self).tag_styles()
    }
}

impl OriginId {
    pub const NONE: OriginId = OriginId(0);

    pub fn is_none(self) -> bool {
        self.number() == 0
    }

    fn number(self) -> usize {
        (self.0 & NUMBER_MASK) as usize
    }

    /// The same origin at a listener that reads names in this way.
    #[inline]
    pub fn read(self, reading: NameReading) -> Self {
        OriginId(self.0 & NUMBER_MASK | reading.0)
    }

    /// The listener's own styles. `None`: the rules decide.
    pub fn tag_styles(self) -> Option<TagStyles> {
        let bits = self.0 >> NUMBER_BITS;
        (bits != 0).then(|| TagStyles::from_bits(bits))
    }

    /// This origin, read in the same way as `other`.
    fn read_as(self, other: OriginId) -> Self {
        OriginId(self.0 | other.0 & !NUMBER_MASK)
    }
}

/// An origin as other threads know it. An answer for an origin whose number was reused meanwhile finds nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OriginTicket {
    id: OriginId,
    generation: u32,
}

/// The tags of one origin, shared by everything that asked for them.
pub type OriginTags = Arc<[Box<str>]>;

/// All facts of a message and its socket about the sender.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OriginKey<'a> {
    /// Container of the sending process, found through the kernel's credentials. Empty: unknown.
    pub sender: &'a str,
    pub fields: OriginFields<'a>,
    /// Value of the tag `dd.internal.entity_id`.
    pub entity_id: Option<&'a str>,
    /// Value of the tag `dd.internal.card`.
    pub tag_cardinality: Option<&'a str>,
}

impl<'a> OriginKey<'a> {
    /// The origin fields of a message. If a special tag is repeated, the last one counts.
    pub fn of_message(fields: OriginFields<'a>, tags: impl Iterator<Item = &'a str>) -> Self {
        let mut key = OriginKey {
            fields,
            ..OriginKey::default()
        };
        for tag in tags {
            match special_tag(tag) {
                Some(SpecialTag::EntityId(id)) => key.entity_id = Some(id),
                Some(SpecialTag::Cardinality(cardinality)) => key.tag_cardinality = Some(cardinality),
                _ => {}
            }
        }
        key
    }

    /// Whether the message has no origin fields.
    pub fn is_sender_only(&self) -> bool {
        self.fields.is_empty() && self.entity_id.is_none() && self.tag_cardinality.is_none()
    }

    /// Writes one text, which [`OriginKey::from_text`] reads. No part can contain `|`.
    pub fn write(&self, out: &mut String) {
        out.clear();
        let fields = &self.fields;
        for part in [
            fields.local,
            fields.external,
            fields.cardinality,
            self.entity_id,
            self.tag_cardinality,
        ] {
            if let Some(text) = part {
                out.push('=');
                out.push_str(text);
            }
            out.push('|');
        }
        out.push_str(self.sender);
    }

    pub fn from_text(text: &'a str) -> Self {
        let mut parts = text.split('|');
        let mut part = || parts.next().and_then(|part| part.strip_prefix('='));
        let (local, external, cardinality) = (part(), part(), part());
        let (entity_id, tag_cardinality) = (part(), part());
        OriginKey {
            sender: parts.next().unwrap_or_default(),
            fields: OriginFields {
                local,
                external,
                cardinality,
            },
            entity_id,
            tag_cardinality,
        }
    }
}

/// Whether the list of allowed origins admits this one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Admission {
    /// Not decided yet.
    #[default]
    Undecided,
    Allowed,
    NotAllowed,
    /// Too little is known of the origin to decide.
    Unknown,
}

/// A question of the table to the origin resolver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OriginQuestion {
    /// Asks for the tags of this origin, now and whenever they change.
    Subscribe { ticket: OriginTicket, key: Box<str> },
    /// The answer is no longer wanted.
    Unsubscribe { ticket: OriginTicket },
}

#[derive(Default)]
struct Origin {
    text: Box<str>,
    hash: u64,
    tags: Option<OriginTags>,
    /// True when no further answer is expected for now.
    settled: bool,
    admission: Admission,
    /// The sender's origin, of which this one holds a use. Aliases name senders by number, so the number must not be reused while a raw
    /// context can be reached with it.
    sender: OriginId,
    /// Raw contexts of this origin plus other holders.
    uses: u32,
    /// Raw contexts of this origin and of the origins that its messages name.
    contexts: u32,
    /// Samples of the same, estimated, since the last summary.
    samples: u64,
    /// The second of the last use.
    last_used: u32,
    generation: u32,
    /// The tags have changed, and some raw contexts still lead to contexts made with the old ones.
    dirty: bool,
}

/// The known tags of an origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownTags {
    pub tags: Option<OriginTags>,
    /// False while a more complete answer may come.
    pub settled: bool,
}

pub(crate) struct Origins {
    index: HashTable<u32>,
    entries: Vec<Origin>,
    free: Vec<u32>,
    questions: Vec<OriginQuestion>,
    text_bytes: usize,
    any_dirty: bool,
    /// When false, no questions are asked and every message has origin zero.
    pub enabled: bool,
    /// Bytes that the table may use. Beyond them a new origin is refused.
    pub bytes_max: usize,
    pub counts: Counts<OriginCounter>,
    scratch: String,
}

impl Origins {
    pub fn new() -> Self {
        Origins {
            index: HashTable::new(),
            // Number zero is no origin.
            entries: vec![Origin::default()],
            free: Vec::new(),
            questions: Vec::new(),
            text_bytes: 0,
            any_dirty: false,
            enabled: false,
            bytes_max: usize::MAX,
            counts: Counts::default(),
            scratch: String::new(),
        }
    }

    pub fn len(&self) -> usize {
        self.index.len()
    }

    /// Finds or adds the origin of a message and takes one use of it. `sender` is the origin of the socket's peer.
    pub fn acquire(
        &mut self,
        key: &OriginKey<'_>,
        sender: OriginId,
        secret: &HashSecret,
        now: u32,
    ) -> OriginId {
        if key.is_sender_only() || !self.enabled {
            self.hold(sender, now);
            return sender;
        }
        let mut text = std::mem::take(&mut self.scratch);
        let sender_text = OriginKey::from_text(&self.entries[sender.number()].text).sender;
        OriginKey {
            sender: sender_text,
            ..*key
        }
        .write(&mut text);
        let id = self.acquire_text(&text, sender, secret, now).unwrap_or_else(|| {
            self.hold(sender, now);
            sender
        });
        self.scratch = text;
        id.read_as(sender)
    }

    /// Finds or adds the origin of a container and takes one use of it. Its messages may carry further fields.
    pub fn acquire_sender(&mut self, container: &str, secret: &HashSecret, now: u32) -> OriginId {
        if container.is_empty() || !self.enabled {
            return OriginId::NONE;
        }
        let mut text = std::mem::take(&mut self.scratch);
        let key = OriginKey {
            sender: container,
            ..OriginKey::default()
        };
        key.write(&mut text);
        let id = self.acquire_text(&text, OriginId::NONE, secret, now);
        self.scratch = text;
        id.unwrap_or_default()
    }

    /// The origin of unknown senders, which is needed when even those get tags. Takes one use.
    pub fn acquire_unknown(&mut self, secret: &HashSecret, now: u32) -> OriginId {
        let mut text = String::new();
        OriginKey::default().write(&mut text);
        self.acquire_text(&text, OriginId::NONE, secret, now)
            .unwrap_or_default()
    }

    fn acquire_text(
        &mut self,
        text: &str,
        sender: OriginId,
        secret: &HashSecret,
        now: u32,
    ) -> Option<OriginId> {
        let hash = secret.bytes(text.as_bytes());
        let entries = &self.entries;
        let found = self.index.find(hash, |&id| *entries[id as usize].text == *text);
        if let Some(&id) = found {
            self.hold(OriginId(id), now);
            return Some(OriginId(id));
        }
        let is_full = if sender.is_none() && OriginKey::from_text(text).is_sender_only() {
            self.index.len() >= ORIGINS_MAX + SENDERS_BEYOND
        } else {
            self.index.len() >= ORIGINS_MAX || self.heap_bytes() >= self.bytes_max
        };
        if is_full || text.len() > TEXT_BYTES_MAX {
            self.counts[OriginCounter::Refused] += 1;
            return None;
        }
        self.hold(sender, now);
        let id = self.free.pop().unwrap_or_else(|| {
            self.entries.push(Origin::default());
            self.entries.len() as u32 - 1
        });
        let entry = &mut self.entries[id as usize];
        *entry = Origin {
            text: text.into(),
            hash,
            sender,
            uses: 1,
            last_used: now,
            generation: entry.generation,
            ..Origin::default()
        };
        self.text_bytes += text.len();
        let ticket = OriginTicket {
            id: OriginId(id),
            generation: entry.generation,
        };
        let entries = &self.entries;
        self.index
            .insert_unique(hash, id, |&id| entries[id as usize].hash);
        self.counts[OriginCounter::Asked] += 1;
        self.questions.push(OriginQuestion::Subscribe {
            ticket,
            key: text.into(),
        });
        Some(OriginId(id))
    }

    /// Takes one more use.
    #[inline]
    pub fn hold(&mut self, id: OriginId, now: u32) {
        if !id.is_none() {
            let entry = &mut self.entries[id.number()];
            entry.uses += 1;
            entry.last_used = now;
        }
    }

    /// Releases one use. An unused origin is kept for a while in case it returns.
    #[inline]
    pub fn release(&mut self, id: OriginId) {
        if !id.is_none() {
            self.entries[id.number()].uses -= 1;
        }
    }

    /// The origin to charge for contexts and samples: that of the sending process if known, because the sender chooses the fields of a
    /// message.
    fn account(&self, id: OriginId) -> usize {
        let sender = self.entries[id.number()].sender;
        if sender.is_none() {
            id.number()
        } else {
            sender.number()
        }
    }

    /// Counts a raw context that was made for this origin.
    pub fn add_context(&mut self, id: OriginId) {
        let account = self.account(id);
        self.entries[account].contexts += 1;
    }

    /// Counts a raw context of this origin that was removed.
    pub fn remove_context(&mut self, id: OriginId) {
        let account = self.account(id);
        self.entries[account].contexts -= 1;
    }

    pub fn add_samples(&mut self, id: OriginId, samples: u64) {
        let account = self.account(id);
        self.entries[account].samples += samples;
    }

    /// Raw contexts charged to the account of this origin; `None` if it has none.
    pub fn contexts(&self, id: OriginId) -> Option<usize> {
        let account = self.account(id);
        (account > 0).then(|| self.entries[account].contexts as usize)
    }

    /// The text of the origin that is charged for this one.
    pub fn account_text(&self, id: OriginId) -> &str {
        &self.entries[self.account(id)].text
    }

    /// The origins with the most contexts and those with the most samples. Resets the counts of samples.
    pub fn top(&mut self) -> Vec<OriginUsage> {
        let (mut by_contexts, mut by_samples) = (Top::default(), Top::default());
        let mut samples = std::collections::HashMap::new();
        for (at, entry) in self.entries.iter_mut().enumerate() {
            by_contexts.offer(u64::from(entry.contexts), at as u32, SUMMARY_ROWS);
            by_samples.offer(std::mem::take(&mut entry.samples), at as u32, SUMMARY_ROWS);
        }
        samples.extend(by_samples.take().map(|(samples, at)| (at, samples)));
        let mut slots: Vec<u32> = by_contexts.take().map(|(_, at)| at).collect();
        slots.extend(samples.keys());
        slots.sort_unstable();
        slots.dedup();
        let usage = slots.into_iter().map(|at| OriginUsage {
            origin: self.entries[at as usize].text.clone(),
            contexts: u64::from(self.entries[at as usize].contexts),
            samples: samples.get(&at).copied().unwrap_or(0),
        });
        usage.collect()
    }

    pub fn hash(&self, id: OriginId) -> u64 {
        self.entries[id.number()].hash
    }

    pub fn known(&self, id: OriginId) -> KnownTags {
        if id.is_none() {
            return KnownTags {
                tags: None,
                settled: true,
            };
        }
        let entry = &self.entries[id.number()];
        KnownTags {
            tags: entry.tags.clone(),
            settled: entry.settled,
        }
    }

    /// Stores an answer. Returns true if it changed tags that contexts may have been made with.
    pub fn answer(
        &mut self,
        ticket: OriginTicket,
        tags: OriginTags,
        settled: bool,
        admission: Admission,
    ) -> bool {
        let Some(entry) = self.entries.get_mut(ticket.id.number()) else {
            return false;
        };
        if entry.generation != ticket.generation || entry.text.is_empty() {
            return false;
        }
        self.counts[OriginCounter::Answered] += 1;
        entry.settled = settled;
        entry.admission = admission;
        let changed = entry.tags.as_deref().unwrap_or_default() != &*tags;
        entry.tags = Some(tags);
        if changed {
            self.counts[OriginCounter::Changed] += 1;
            entry.dirty = entry.uses > 0;
            self.any_dirty |= entry.dirty;
        }
        changed && entry.dirty
    }

    pub fn settle(&mut self, id: OriginId) {
        self.entries[id.number()].settled = true;
    }

    #[inline]
    pub fn admission(&self, id: OriginId) -> Admission {
        self.entries[id.number()].admission
    }

    /// Stops waiting for a decision about this origin.
    pub fn settle_admission(&mut self, id: OriginId) {
        let admission = &mut self.entries[id.number()].admission;
        if *admission == Admission::Undecided {
            *admission = Admission::Unknown;
        }
    }

    pub fn is_dirty(&self, id: OriginId) -> bool {
        self.entries[id.number()].dirty
    }

    /// Called when every raw context was checked since the last change.
    pub fn clear_dirty(&mut self) {
        if std::mem::take(&mut self.any_dirty) {
            for entry in &mut self.entries {
                entry.dirty = false;
            }
        }
    }

    /// Removes origins that were not used for a while.
    pub fn expire(&mut self, now: u32) {
        for id in 1..self.entries.len() {
            let entry = &mut self.entries[id];
            if entry.uses > 0 || entry.text.is_empty() || now.saturating_sub(entry.last_used) < IDLE_SECONDS {
                continue;
            }
            let ticket = OriginTicket {
                id: OriginId(id as u32),
                generation: entry.generation,
            };
            self.text_bytes -= entry.text.len();
            let (hash, sender) = (entry.hash, entry.sender);
            *entry = Origin {
                generation: entry.generation.wrapping_add(1),
                ..Origin::default()
            };
            self.release(sender);
            if let Ok(found) = self.index.find_entry(hash, |&other| other == id as u32) {
                found.remove();
            }
            self.free.push(id as u32);
            self.questions.push(OriginQuestion::Unsubscribe { ticket });
        }
        if self.index.capacity() > 64 && self.index.len() < self.index.capacity() / 4 {
            let entries = &self.entries;
            self.index
                .shrink_to(self.index.len() * 2, |&id| entries[id as usize].hash);
        }
    }

    /// The questions since the last call.
    pub fn take_questions(&mut self) -> Vec<OriginQuestion> {
        std::mem::take(&mut self.questions)
    }

    pub fn has_questions(&self) -> bool {
        !self.questions.is_empty()
    }

    /// Bytes held. Tags are shared with the resolver, which counts them.
    pub fn heap_bytes(&self) -> usize {
        self.text_bytes
            + self.len() * 8
            + self.entries.capacity() * size_of::<Origin>()
            + self.free.capacity() * 4
            + self.index.allocation_size()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn enabled() -> Origins {
        let mut origins = Origins::new();
        origins.enabled = true;
        origins
    }

    fn secret() -> HashSecret {
        HashSecret::from_random(1, 2)
    }

    #[test]
    fn a_key_survives_its_text() {
        let keys = [
            OriginKey::default(),
            OriginKey {
                sender: "abc",
                ..OriginKey::default()
            },
            OriginKey {
                sender: "abc",
                fields: OriginFields {
                    local: Some(""),
                    external: Some("cn-a,pu-b"),
                    cardinality: None,
                },
                entity_id: Some("=x"),
                tag_cardinality: Some("none"),
            },
        ];
        let mut text = String::new();
        for key in keys {
            key.write(&mut text);
            assert_eq!(OriginKey::from_text(&text), key, "{text}");
        }
    }

    #[test]
    fn an_answer_to_a_forgotten_origin_finds_nothing() {
        let (mut origins, secret) = (enabled(), secret());
        let first = origins.acquire_sender("a", &secret, 0);
        let [OriginQuestion::Subscribe { ticket, .. }] = origins.take_questions()[..] else {
            panic!("one question");
        };
        origins.release(first);
        origins.expire(IDLE_SECONDS);
        assert_eq!(origins.take_questions(), [OriginQuestion::Unsubscribe { ticket }]);
        let second = origins.acquire_sender("b", &secret, IDLE_SECONDS);
        assert_eq!(first, second, "the number is used again");
        let tags = Arc::from([Box::from("of:a")]);
        assert!(!origins.answer(ticket, tags, true, Admission::Allowed));
        assert_eq!(origins.admission(second), Admission::Undecided);
        assert_eq!(origins.known(second).tags, None);
    }

    #[test]
    fn the_number_of_a_sender_is_kept_while_origins_of_its_messages_exist() {
        let (mut origins, secret) = (enabled(), secret());
        let sender = origins.acquire_sender("a", &secret, 0);
        let key = OriginKey {
            entity_id: Some("pod"),
            ..OriginKey::default()
        };
        let of_message = origins.acquire(&key, sender, &secret, 0);
        origins.release(sender);
        origins.expire(10 * IDLE_SECONDS);
        assert_eq!(origins.acquire_sender("a", &secret, 10 * IDLE_SECONDS), sender);
        origins.release(sender);
        origins.release(of_message);
        origins.expire(20 * IDLE_SECONDS);
        origins.expire(21 * IDLE_SECONDS);
        assert_eq!(origins.len(), 0);
    }

    #[test]
    fn invented_origins_displace_no_sender() {
        let (mut origins, secret) = (enabled(), secret());
        let sender = origins.acquire_sender("a", &secret, 0);
        origins.bytes_max = origins.heap_bytes();
        let key = OriginKey {
            entity_id: Some("made up"),
            ..OriginKey::default()
        };
        assert_eq!(origins.acquire(&key, sender, &secret, 0), sender);
        assert_eq!(origins.acquire(&key, OriginId::NONE, &secret, 0), OriginId::NONE);
        assert_eq!(origins.counts[OriginCounter::Refused], 2);
        assert_ne!(origins.acquire_sender("b", &secret, 0), OriginId::NONE);
    }

    #[test]
    fn a_full_table_falls_back_to_the_sender() {
        let (mut origins, secret) = (enabled(), secret());
        let sender = origins.acquire_sender("a", &secret, 0);
        let long = "x".repeat(TEXT_BYTES_MAX);
        let fields = OriginFields {
            local: Some(&long),
            ..OriginFields::default()
        };
        let key = OriginKey {
            fields,
            ..OriginKey::default()
        };
        assert_eq!(origins.acquire(&key, sender, &secret, 0), sender);
        assert_eq!(origins.counts[OriginCounter::Refused], 1);
        assert_eq!(origins.len(), 1);
    }
}
