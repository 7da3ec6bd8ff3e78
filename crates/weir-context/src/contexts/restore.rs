//! Restores contexts of a previous process.

use weir_protocol::Kind;

use super::limits::Quota;
use super::{Contexts, OVERFLOW_TAG};
use crate::context_table::{Context, ContextId, ContextIdentity};

/// A context's parts, as another process resolved them.
#[derive(Clone, Copy, Debug)]
pub struct KnownContext<'a> {
    pub kind: Kind,
    pub name: &'a str,
    /// `None`: the agent's own host. Empty: explicitly no host.
    pub host: Option<&'a str>,
    pub integration: Option<&'a str>,
    /// Sorted by bytes, without duplicates.
    pub tags: &'a [&'a str],
    pub suffixes: u32,
}

impl Contexts {
    /// Reserves room for about this many contexts.
    pub fn reserve(&mut self, contexts: usize) {
        self.interner.strings.reserve(contexts);
        self.interner.tag_lists.reserve(contexts);
        self.resolved.reserve(contexts);
    }

    /// Makes a context that no message leads to yet. `None`: there is no room, or it exists.
    pub fn restore(&mut self, known: KnownContext<'_>) -> Option<ContextId> {
        let is_overflow = known.tags.contains(&OVERFLOW_TAG);
        if !is_overflow && matches!(self.quota_for_known(), Quota::Exceeded(_)) {
            return None;
        }
        let (name, tags) = self.interner.acquire(known.name, known.tags, &self.secret);
        let host = known
            .host
            .map(|host| self.interner.strings.acquire(host, &self.secret));
        let identity = ContextIdentity { name, host, tags };
        let hash = self.hash_resolved(known.kind, identity);
        if self.resolved.find(hash, known.kind, identity).is_some() {
            self.release(identity);
            return None;
        }
        let strings = &mut self.interner.strings;
        let check = known
            .integration
            .map(|check| strings.acquire(check, &self.secret));
        let context = Context::new(identity, hash, known.suffixes, check);
        self.usage.names.add(name, self.interner.strings.hash(name));
        self.capacity.record_created();
        if is_overflow {
            self.capacity.add_overflow();
        }
        Some(self.resolved.add(known.kind, context))
    }
}
