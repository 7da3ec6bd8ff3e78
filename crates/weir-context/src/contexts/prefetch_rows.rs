//! Prefetches the memory of contexts that a flush reads.

use super::Contexts;
use crate::context_table::LiveContext;
use crate::prefetch::{prefetch, prefetch_ends, prefetch_value};

/// Tags of a list to prefetch. Longer lists wait for the rest.
const TAGS_AHEAD: usize = 16;

impl Contexts {
    /// Prefetches everything that writing the rows of these contexts reads: first the contexts, then names and tag lists, then the entries
    /// of the tags, then their texts. Contexts come in groups because each step reads what the previous step prefetched, for all of them.
    /// Written one by one, each row would wait for about fifteen places in memory in sequence.
    pub fn prefetch_rows(&self, live: &[LiveContext]) {
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
