//! Stores each string and each tag list once.

use crate::hash::HashSecret;
use crate::strings::{StringId, Strings};
use crate::tag_lists::{Scratch, TagListId, TagLists};

/// The tables of names and tag lists. Each user of an id holds a reference to it.
pub(crate) struct Interner {
    pub strings: Strings,
    pub tag_lists: TagLists,
    scratch: Scratch,
}

impl Interner {
    pub fn new() -> Self {
        Interner {
            strings: Strings::new(),
            tag_lists: TagLists::new(),
            scratch: Scratch::default(),
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
            .acquire(tags, &mut self.strings, secret, &mut self.scratch);
        (name, list)
    }

    /// [`Interner::acquire`] for a name and tags that are mostly equal to `known`: comparing texts is cheaper than hashing each tag again.
    pub fn acquire_near<T: AsRef<str>>(
        &mut self,
        known: (StringId, TagListId),
        name: &str,
        tags: &[T],
        secret: &HashSecret,
    ) -> (StringId, TagListId) {
        let (known_name, known_list) = known;
        let name = if self.strings.get(known_name) == name {
            self.strings.acquire_known(known_name)
        } else {
            self.strings.acquire(name, secret)
        };
        let list = if self.strings.equal(self.tag_lists.get(known_list), tags) {
            self.tag_lists.acquire_known(known_list)
        } else {
            self.tag_lists
                .acquire(tags, &mut self.strings, secret, &mut self.scratch)
        };
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
