//! Stores each string and each tag list once.

use crate::hash::HashSecret;
use crate::strings::{StringId, Strings};
use crate::tag_lists::{TagListId, TagLists};

/// The tables of names and tag lists. Each user of an id holds a reference to it.
pub(crate) struct Interner {
    pub strings: Strings,
    pub tag_lists: TagLists,
    /// Scratch memory.
    ids: Vec<StringId>,
}

impl Interner {
    pub fn new() -> Self {
        Interner {
            strings: Strings::new(),
            tag_lists: TagLists::new(),
            ids: Vec::new(),
        }
    }

    /// Finds or adds a name and a tag list. `tags` is sorted and has no duplicates.
    pub fn acquire<T: AsRef<str>>(
        &mut self,
        name: &str,
        tags: &[T],
        secret: &HashSecret,
    ) -> (StringId, TagListId) {
        let name = self.strings.acquire(name, secret);
        let list = self
            .tag_lists
            .acquire(tags, &mut self.strings, secret, &mut self.ids);
        (name, list)
    }

    pub fn release(&mut self, name: StringId, tags: TagListId) {
        self.strings.release(name);
        self.tag_lists.release(tags, &mut self.strings);
    }

    pub fn has_tag(&self, list: TagListId, tag: &str) -> bool {
        let mut tags = self.tag_lists.get(list).iter();
        tags.any(|&id| self.strings.get(id) == tag)
    }

    pub fn compact(&mut self) {
        self.strings.compact();
        self.tag_lists.compact();
    }

    pub fn heap_bytes(&self) -> usize {
        self.strings.heap_bytes() + self.tag_lists.heap_bytes()
    }
}
