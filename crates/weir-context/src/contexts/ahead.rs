//! The memory that a flush reads of contexts, asked for before it is read.

use super::Contexts;
use crate::context_table::LiveContext;
use crate::prefetch::{prefetch, prefetch_ends, prefetch_value};

/// Tags of a list that are asked for; those of longer ones are waited for.
const TAGS_AHEAD: usize = 16;

impl Contexts {
    /// Asks for all that writing the rows of these contexts reads: the contexts, then names and tag lists, then the entries of
    /// the tags, then their texts. Each step reads what the one before asked for, of all contexts: that is why they come in
    /// groups. Written one by one, each row would wait for some fifteen places in memory in sequence.
    pub fn look_ahead_rows(&self, live: &[LiveContext]) {
        let (strings, lists) = (&self.interner.strings, &self.interner.tag_lists);
        for live in live {
            self.resolved.prefetch(live.kind(), live.id());
        }
        let identities = || {
            live.iter()
                .map(|live| self.resolved.get(live.kind(), live.id()).identity)
        };
        for identity in identities() {
            prefetch_value(strings.entry(identity.name));
            lists.prefetch(identity.tags);
        }
        for identity in identities() {
            prefetch_ends(strings.get(identity.name));
            prefetch(lists.get(identity.tags).as_ptr().cast());
        }
        for identity in identities() {
            for &tag in lists.get(identity.tags).iter().take(TAGS_AHEAD) {
                prefetch_value(strings.entry(tag));
            }
        }
        for identity in identities() {
            for &tag in lists.get(identity.tags).iter().take(TAGS_AHEAD) {
                prefetch_ends(strings.get(tag));
            }
        }
    }
}
