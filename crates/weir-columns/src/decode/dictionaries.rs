//! Names, tags, tag sets and resources.

use super::fields::{Fields, Message, Numbers};
use super::{Common, Limits, Memory, Refusal, Span, push_tag};
use crate::wire::{Column, METADATA_RESOURCES, METADATA_TAGS, read_varint};

/// Texts of a dictionary, as places in the bytes that they were read from.
#[derive(Default)]
pub(super) struct Texts {
    pub spans: Vec<Span>,
}

impl Texts {
    /// `offset`: place of these bytes in those that the spans are used with.
    pub fn read(
        bytes: &[u8],
        offset: usize,
        memory: &mut Memory,
        name: &'static str,
    ) -> Result<Texts, Refusal> {
        let mut texts = Texts::default();
        let mut rest = bytes;
        while !rest.is_empty() {
            let length = read_varint(&mut rest).ok_or(Refusal::Short(name))?;
            let length = usize::try_from(length).map_err(|_| Refusal::Short(name))?;
            let at = bytes.len() - rest.len();
            rest = rest.get(length..).ok_or(Refusal::Short(name))?;
            let span = Span {
                start: (offset + at) as u32,
                len: length as u32,
            };
            memory.push(&mut texts.spans, span)?;
        }
        Ok(texts)
    }

    pub fn len(&self) -> usize {
        self.spans.len()
    }

    /// Copies the texts, so that each can be a tag: what is not UTF-8 is replaced, and so are the characters that end a tag.
    pub fn repaired(self, bytes: &[u8], memory: &mut Memory) -> Result<(Texts, String), Refusal> {
        memory.take(bytes.len())?;
        let mut spans = self.spans;
        let mut copies = String::with_capacity(bytes.len());
        for span in &mut spans {
            let start = copies.len();
            let text = span.of(bytes);
            match std::str::from_utf8(text) {
                Ok(tag) if memchr3(text).is_none() => copies.push_str(tag),
                // Up to three bytes for each that is not UTF-8.
                _ => {
                    memory.take(3 * text.len())?;
                    repair(text, &mut copies);
                }
            }
            *span = Span {
                start: start as u32,
                len: (copies.len() - start) as u32,
            };
        }
        Ok((Texts { spans }, copies))
    }
}

fn memchr3(text: &[u8]) -> Option<usize> {
    text.iter().position(|byte| matches!(byte, b',' | b'|' | b'\n'))
}

/// Appends a text as a tag can have it.
fn repair(text: &[u8], to: &mut String) {
    let is_end = |character: char| matches!(character, ',' | '|' | '\n');
    let text = String::from_utf8_lossy(text);
    to.extend(text.chars().map(|character| match is_end(character) {
        true => '_',
        false => character,
    }));
}

/// A bit for each name that no series may have: the empty one, long ones, and those with a character that ends a name.
pub(super) fn bad_names(names: &Texts, fields: &Fields<'_>, longest: usize) -> Result<Vec<u64>, Refusal> {
    let column = fields.column(Column::Names);
    let offset = fields.offset(Column::Names) as u32;
    let mut bad = vec![0; names.len() / 64 + 1];
    for (at, span) in names.spans.iter().enumerate() {
        let start = (span.start - offset) as usize;
        let text = &column[start..start + span.len as usize];
        std::str::from_utf8(text).map_err(|_| Refusal::NameNotUtf8(at + 1))?;
        let ends_name = |byte: &u8| matches!(byte, b':' | b'|' | b'\n');
        if text.is_empty() || text.len() > longest || text.iter().any(ends_name) {
            bad[at / 64] |= 1 << (at % 64);
        }
    }
    Ok(bad)
}

/// Size of a tag set with all that it splices in; the largest number where it does not fit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Size {
    pub tags: u32,
    pub bytes: u32,
    /// Entries that have to be visited to write it.
    pub steps: u32,
}

impl Size {
    fn add(&mut self, other: Size) {
        self.tags = self.tags.saturating_add(other.tags);
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.steps = self.steps.saturating_add(other.steps);
    }
}

/// Steps to a tag through sets that splice in each other, for each tag that a series may have.
const STEPS_PER_TAG: u32 = 4;
const STEPS_MORE: u32 = 64;

/// Sets of tags, not expanded.
#[derive(Default)]
pub(super) struct TagSets {
    /// Indexes into tags; negative: a set.
    entries: Vec<i32>,
    sets: Vec<(Span, Size)>,
}

impl TagSets {
    pub fn read(bytes: &[u8], tags: &Texts, memory: &mut Memory) -> Result<TagSets, Refusal> {
        let mut read = TagSets::default();
        let mut numbers = Numbers::new("tag sets", bytes);
        while !numbers.is_empty() {
            let set = read.sets.len() + 1;
            let count = numbers.signed()?;
            // Each entry has at least a byte.
            let count = usize::try_from(count)
                .ok()
                .filter(|count| *count <= numbers.bytes_left())
                .ok_or(Refusal::Short("tag sets"))?;
            let start = read.entries.len() as u32;
            let mut size = Size::default();
            numbers.restart();
            for _ in 0..count {
                let index = numbers.delta()?;
                size.add(read.size_of(index, tags).ok_or(Refusal::TagSet {
                    set,
                    index,
                    tags: tags.len(),
                    earlier: set - 1,
                })?);
                memory.push(&mut read.entries, index as i32)?;
            }
            let span = Span {
                start,
                len: count as u32,
            };
            if size.steps > size.tags.saturating_mul(STEPS_PER_TAG).saturating_add(STEPS_MORE) {
                // Mostly detours: as if it had too many tags.
                size.tags = u32::MAX;
            }
            memory.push(&mut read.sets, (span, size))?;
        }
        Ok(read)
    }

    /// Size of what an entry stands for. `None`: it stands for nothing.
    fn size_of(&self, index: i64, tags: &Texts) -> Option<Size> {
        if index > 0 {
            let span = tags.spans.get(usize::try_from(index).ok()? - 1)?;
            return Some(Size {
                tags: u32::from(span.len > 0),
                bytes: span.len,
                steps: 1,
            });
        }
        let earlier = usize::try_from(index.checked_neg()?).ok()?.checked_sub(1)?;
        let (_, mut size) = *self.sets.get(earlier)?;
        size.steps = size.steps.saturating_add(1);
        Some(size)
    }

    pub fn len(&self) -> usize {
        self.sets.len()
    }

    /// Of a set by its number; 0 has no tags.
    pub fn size(&self, set: u32) -> Size {
        match set {
            0 => Size::default(),
            set => self.sets[set as usize - 1].1,
        }
    }

    /// Appends the tags of a set. The caller has looked at its size.
    pub fn write(&self, set: u32, tags: &Texts, tag_texts: &str, texts: &mut String) {
        if set == 0 {
            return;
        }
        let begin = texts.len();
        // Ranges of entries that are still to be written.
        let mut waiting = vec![self.sets[set as usize - 1].0];
        while let Some(range) = waiting.last_mut() {
            if range.len == 0 {
                waiting.pop();
                continue;
            }
            let entry = self.entries[range.start as usize];
            (range.start, range.len) = (range.start + 1, range.len - 1);
            match u32::try_from(entry) {
                Ok(tag) => {
                    let span = tags.spans[tag as usize - 1];
                    let tag = &tag_texts[span.start as usize..(span.start + span.len) as usize];
                    push_tag(texts, begin, tag);
                }
                Err(_) => waiting.push(self.sets[entry.unsigned_abs() as usize - 1].0),
            }
        }
    }
}

/// Lists of resources, each written as tags.
#[derive(Default)]
pub(super) struct Resources {
    texts: String,
    lists: Vec<ResourceList>,
}

#[derive(Clone, Copy, Default)]
struct ResourceList {
    tags: Span,
    has_host: bool,
}

/// The resource that is the host of a series.
const HOST: &[u8] = b"host";

/// Resources of a series, at most.
const RESOURCES_MAX: usize = 16;

impl Resources {
    pub fn read(fields: &Fields<'_>, memory: &mut Memory) -> Result<Resources, Refusal> {
        let bytes = fields.column(Column::ResourceTexts);
        let texts = Texts::read(bytes, 0, memory, "resource texts")?;
        let mut lengths = Numbers::new("resource lengths", fields.column(Column::ResourceLengths));
        let mut types = Numbers::new("resource types", fields.column(Column::ResourceTypes));
        let mut names = Numbers::new("resource names", fields.column(Column::ResourceNames));
        let mut read = Resources::default();
        while !lengths.is_empty() {
            let count = lengths.unsigned()?;
            if count > types.bytes_left() as u64 {
                return Err(Refusal::Short("resource types"));
            }
            let (start, mut has_host) = (read.texts.len(), false);
            types.restart();
            names.restart();
            for at in 0..count as usize {
                let kind = text(bytes, &texts, types.delta()?, at, "resource types")?;
                let name = text(bytes, &texts, names.delta()?, at, "resource names")?;
                if at < RESOURCES_MAX && !(kind == HOST && has_host) {
                    memory.take(3 * (kind.len() + name.len()) + 2)?;
                    has_host |= kind == HOST;
                    write(kind, name, start, &mut read.texts);
                }
            }
            let list = ResourceList {
                tags: Span {
                    start: start as u32,
                    len: (read.texts.len() - start) as u32,
                },
                has_host,
            };
            memory.push(&mut read.lists, list)?;
        }
        types.ends()?;
        names.ends()?;
        Ok(read)
    }

    pub fn len(&self) -> usize {
        self.lists.len()
    }

    fn list(&self, number: u32) -> ResourceList {
        match number {
            0 => ResourceList::default(),
            number => self.lists[number as usize - 1],
        }
    }

    pub fn bytes(&self, list: u32) -> usize {
        self.list(list).tags.len as usize
    }

    /// Appends them as tags. True: one of them is the host.
    pub fn write(&self, list: u32, start: usize, texts: &mut String) -> bool {
        let list = self.list(list);
        let tags = &self.texts[list.tags.start as usize..(list.tags.start + list.tags.len) as usize];
        push_tag(texts, start, tags);
        list.has_host
    }
}

/// A text by its index in a dictionary; 0 is the empty one.
fn text<'a>(
    bytes: &'a [u8],
    texts: &Texts,
    index: i64,
    entry: usize,
    column: &'static str,
) -> Result<&'a [u8], Refusal> {
    let largest = texts.len();
    match usize::try_from(index) {
        Ok(0) => Ok(&[]),
        Ok(at) if at <= largest => Ok(texts.spans[at - 1].of(bytes)),
        _ => Err(Refusal::OutOfRange {
            column,
            entry: entry + 1,
            index,
            largest,
        }),
    }
}

/// A resource as a tag.
fn write(kind: &[u8], name: &[u8], start: usize, texts: &mut String) {
    let mut tag = String::with_capacity(kind.len() + name.len() + 1);
    repair(kind, &mut tag);
    tag.push(':');
    repair(name, &mut tag);
    push_tag(texts, start, &tag);
}

/// The tags and the host that the metadata gives to every series.
pub(super) fn common(fields: &Fields<'_>, limits: &Limits) -> Result<Common, Refusal> {
    let mut common = Common::default();
    let mut message = Message::new(fields.metadata);
    let mut resource_type = None;
    while let Some((field, _, bytes)) = message.next()? {
        if common.tags.len() + 3 * bytes.len() > limits.text_bytes {
            return Err(Refusal::TooLarge(limits.text_bytes));
        }
        match (field, resource_type.take()) {
            (METADATA_TAGS, before) => {
                resource_type = before;
                let mut tag = String::new();
                repair(bytes, &mut tag);
                push_tag(&mut common.tags, 0, &tag);
            }
            (METADATA_RESOURCES, None) => resource_type = Some(bytes),
            (METADATA_RESOURCES, Some(HOST)) => {
                let mut host = String::new();
                write(HOST, bytes, 0, &mut host);
                common.host = Some(host);
            }
            (METADATA_RESOURCES, Some(kind)) => {
                let mut tag = String::new();
                write(kind, bytes, 0, &mut tag);
                push_tag(&mut common.tags, 0, &tag);
            }
            (_, before) => resource_type = before,
        }
    }
    Ok(common)
}
