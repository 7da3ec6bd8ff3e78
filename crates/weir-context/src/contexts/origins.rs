//! Origins of messages, as those who look them up and answer for them see them.

use super::Contexts;
use crate::counters::OriginCounter;
use crate::origins::{Admission, KnownTags, OriginId, OriginKey, OriginQuestion, OriginTags, OriginTicket};
use weir_counters::Counts;

impl Contexts {
    /// From now on messages are distinguished by their origins, and questions about them have to be answered.
    pub fn enable_origins(&mut self) {
        self.origins.enabled = true;
    }

    /// The origin of senders that nothing is known of, for when even that brings tags. Held until it is released.
    pub fn hold_nobody(&mut self, now: u32) -> OriginId {
        self.origins.acquire_nobody(&self.secret, now)
    }

    /// The origin of a container's processes; the caller holds it until [`Contexts::release_origin`].
    pub fn hold_sender(&mut self, container: &str, now: u32) -> OriginId {
        self.origins.acquire_sender(container, &self.secret, now)
    }

    /// The origin of a message that has no context: an event, a check, a timestamped sample. Held as above.
    pub fn hold_origin(&mut self, key: &OriginKey<'_>, sender: OriginId, now: u32) -> OriginId {
        self.origins.acquire(key, sender, &self.secret, now)
    }

    pub fn release_origin(&mut self, origin: OriginId) {
        self.origins.release(origin);
    }

    pub fn origin_tags(&self, origin: OriginId) -> KnownTags {
        self.origins.known(origin)
    }

    /// Takes what is known of an origin as all there is, until an answer says otherwise.
    pub fn settle_origin(&mut self, origin: OriginId) {
        self.origins.settle(origin);
    }

    /// The text of the answerer of an origin; see [`OriginKey::from_text`].
    pub fn origin_text(&self, origin: OriginId) -> &str {
        self.origins.account_text(origin)
    }

    /// What must be found out about origins.
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

    /// Takes the answer to a question. Contexts that were resolved with other tags are resolved again as
    /// [`Contexts::sweep_stale`] finds them and their next message comes; what their state holds by then stays theirs.
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

    /// Whether an origin may send, as far as somebody has said.
    #[inline]
    pub fn admission(&self, origin: OriginId) -> Admission {
        self.origins.admission(origin)
    }

    /// Takes an origin of which nobody has said whether it may send as one of which not enough is known, until an answer
    /// says otherwise.
    pub fn settle_admission(&mut self, origin: OriginId) {
        self.origins.settle_admission(origin);
    }

    /// Forgets origins that nothing has used for a minute.
    pub fn expire_origins(&mut self, now: u32) {
        self.origins.expire(now);
    }
}
