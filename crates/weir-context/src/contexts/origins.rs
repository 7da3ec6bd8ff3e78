//! The interface for ingest, which looks up origins, and for the resolver, which answers for them.

use super::Contexts;
use crate::counters::OriginCounter;
use crate::origins::{Admission, KnownTags, OriginId, OriginKey, OriginQuestion, OriginTags, OriginTicket};
use weir_counters::Counts;

impl Contexts {
    /// From now on messages are distinguished by origin, and questions about origins must be answered.
    pub fn enable_origins(&mut self) {
        self.origins.enabled = true;
    }

    /// The origin of unknown senders, which is needed when even those get tags. Held until it is released.
    pub fn hold_unknown(&mut self, now: u32) -> OriginId {
        self.origins.acquire_unknown(&self.secret, now)
    }

    /// The origin of a container's processes. The caller holds it until [`Contexts::release_origin`].
    pub fn hold_sender(&mut self, container: &str, now: u32) -> OriginId {
        self.origins.acquire_sender(container, &self.secret, now)
    }

    /// The origin of a message without a context: an event, a service check, a timestamped sample. Held as above.
    pub fn hold_origin(&mut self, key: &OriginKey<'_>, sender: OriginId, now: u32) -> OriginId {
        self.origins.acquire(key, sender, &self.secret, now)
    }

    pub fn release_origin(&mut self, origin: OriginId) {
        self.origins.release(origin);
    }

    pub fn origin_tags(&self, origin: OriginId) -> KnownTags {
        self.origins.known(origin)
    }

    /// Treats what is known of an origin as complete until an answer changes it.
    pub fn settle_origin(&mut self, origin: OriginId) {
        self.origins.settle(origin);
    }

    /// The text of the origin that is charged; see [`OriginKey::from_text`].
    pub fn origin_text(&self, origin: OriginId) -> &str {
        self.origins.account_text(origin)
    }

    /// The open questions about origins.
    pub fn take_origin_questions(&mut self) -> Vec<OriginQuestion> {
        self.origins.take_questions()
    }

    pub fn has_origin_questions(&self) -> bool {
        self.origins.has_questions()
    }

    /// Counters of origins.
    pub fn origin_counts(&self) -> Counts<OriginCounter> {
        let mut counts = self.origins.counts;
        counts[OriginCounter::Live] = self.origins.len() as u64;
        counts
    }

    pub fn origins(&self) -> usize {
        self.origins.len()
    }

    /// Stores the answer to a question. A context that was resolved with other tags is resolved again when [`Contexts::sweep_stale`] has
    /// found it and its next message comes. Its earlier state stays where it is.
    pub fn answer_origin(
        &mut self,
        ticket: OriginTicket,
        tags: OriginTags,
        settled: bool,
        admission: Admission,
    ) {
        if self.origins.answer(ticket, tags, settled, admission) {
            self.sweep.begin(self.raw.len());
        }
    }

    /// Whether an origin may send, as far as it is decided.
    #[inline]
    pub fn admission(&self, origin: OriginId) -> Admission {
        self.origins.admission(origin)
    }

    /// Treats an undecided origin as one of which too little is known, until an answer changes it.
    pub fn settle_admission(&mut self, origin: OriginId) {
        self.origins.settle_admission(origin);
    }

    /// Removes origins that were not used for a minute.
    pub fn expire_origins(&mut self, now: u32) {
        self.origins.expire(now);
    }
}
