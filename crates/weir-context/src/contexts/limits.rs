//! How many contexts there may be, and whose are refused.

use weir_protocol::Values;
use weir_rules::Subject;

use super::Contexts;
use crate::origins::OriginId;
use crate::usage::LimitReason;
use weir_counters::Counts;

/// A name or an origin may have this many times as many contexts as there is still room for, a tag key as many values: one alone gets four fifths of
/// what there is, two that both want everything four ninths each, and later contexts always find room.
const SHARE_FACTOR: usize = 4;

/// Fewer contexts than this are never too many for one name or origin while there is any room.
const SHARE_MIN: usize = 256;

/// What limits the number of contexts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContextLimits {
    /// Bytes that contexts, raw contexts, tag lists, strings, aliases and the state elsewhere may take together.
    pub bytes_max: usize,
    /// Bytes that origins may take, most of which a sender can make up. Not among the others.
    pub origin_bytes_max: usize,
    /// Live contexts, where the operator set a number.
    pub contexts_max: usize,
    /// Live contexts of one metric name, where the operator set a number.
    pub contexts_per_metric_max: usize,
    /// Raw contexts of one origin, where the operator set a number.
    pub contexts_per_origin_max: usize,
    /// Bytes that the alias cache may take at most, within `bytes_max`; zero switches it off.
    pub alias_bytes_max: usize,
}

impl Default for ContextLimits {
    fn default() -> Self {
        ContextLimits {
            bytes_max: usize::MAX,
            origin_bytes_max: usize::MAX,
            contexts_max: usize::MAX,
            contexts_per_metric_max: usize::MAX,
            contexts_per_origin_max: usize::MAX,
            alias_bytes_max: usize::MAX,
        }
    }
}

/// Whether a context may be added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Room {
    No(LimitReason),
    /// As long as its name has not used up its share, with this many contexts left for all.
    Fair(usize),
    /// In any case.
    Always,
}

/// How many contexts one name or origin may have while there is room for `left` more.
pub(super) fn share(left: usize, max: usize) -> usize {
    left.saturating_mul(SHARE_FACTOR).max(SHARE_MIN).min(max)
}

/// Overflow series, one per metric name, are allowed beyond the budget while there are no more than this; then samples are
/// refused.
const OVERFLOW_NAMES_MAX: usize = 1000;

/// What the tables hold, against the limits.
pub(super) struct Capacity {
    pub limits: ContextLimits,
    overflow_names: usize,
    /// Bytes at the last full count, and contexts created since.
    counted_bytes: usize,
    created_since_count: usize,
    /// What the contexts' state takes, or will take by the end of the bucket, as far as its owner has said.
    state_bytes: usize,
}

impl Capacity {
    pub fn new(limits: ContextLimits) -> Self {
        Capacity {
            limits,
            overflow_names: 0,
            counted_bytes: 0,
            created_since_count: 0,
            state_bytes: 0,
        }
    }

    pub fn overflow_names(&self) -> usize {
        self.overflow_names
    }

    pub fn add_overflow(&mut self) {
        self.overflow_names += 1;
    }

    pub fn remove_overflow(&mut self) {
        self.overflow_names = self.overflow_names.saturating_sub(1);
    }

    /// A context has taken memory.
    pub fn note_created(&mut self) {
        self.created_since_count += 1;
    }

    /// A full count reads some hundred words; between counts the average context is assumed to go on.
    fn wants_count(&self) -> bool {
        self.limits.bytes_max != usize::MAX && (self.created_since_count >= 256 || self.counted_bytes == 0)
    }

    /// About how many more contexts fit beside `live` ones, at least one; or which limit is reached.
    fn left(&self, live: usize) -> Result<usize, LimitReason> {
        // Overflow series are ours, not the senders'.
        let of_senders = live.saturating_sub(self.overflow_names);
        if of_senders >= self.limits.contexts_max {
            return Err(LimitReason::Contexts);
        }
        let left = self.limits.contexts_max - of_senders;
        if self.limits.bytes_max == usize::MAX {
            return Ok(left);
        }
        let average = (self.counted_bytes / live.max(1)).min(1024);
        let used = self.counted_bytes + self.created_since_count * average + self.state_bytes;
        // The last eighth is the alias cache's: without it every known message would take the long way.
        let bytes_left = (self.limits.bytes_max / 8 * 7).saturating_sub(used);
        if bytes_left == 0 {
            return Err(LimitReason::Memory);
        }
        let each = (average + self.state_bytes / live.max(1)).max(1);
        Ok(left.min((bytes_left / each).max(1)))
    }
}

impl Contexts {
    /// Whether the way to a context may be kept. It takes memory for tags that a rule removes, too.
    pub(super) fn may_remember(&self, room: Room) -> bool {
        match room {
            Room::No(_) => false,
            Room::Fair(left) => self.interner.strings.new_tag_values() <= share(left, usize::MAX),
            Room::Always => true,
        }
    }

    /// Takes note of what the contexts' state takes: the room for contexts and aliases is what it leaves.
    #[inline]
    pub fn set_state_bytes(&mut self, bytes: usize) {
        self.capacity.state_bytes = bytes;
    }

    /// Whether one more context of this origin fits.
    pub(super) fn room(&mut self, origin: OriginId) -> Room {
        let left = match self.contexts_left() {
            Ok(left) => left,
            Err(reason) => return Room::No(reason),
        };
        let max = share(left, self.capacity.limits.contexts_per_origin_max);
        match self.origins.contexts(origin) {
            Some(contexts) if contexts >= max => Room::No(LimitReason::Origin),
            _ => Room::Fair(left),
        }
    }

    /// Whether a context fits that had its place before.
    pub(super) fn room_for_known(&mut self) -> Room {
        match self.contexts_left() {
            Ok(_) => Room::Always,
            Err(reason) => Room::No(reason),
        }
    }

    /// About how many more contexts fit, at least one; or which limit is reached.
    fn contexts_left(&mut self) -> Result<usize, LimitReason> {
        if self.capacity.wants_count() {
            self.count_bytes();
        }
        self.capacity.left(self.resolved.len())
    }

    /// Whether there may be an overflow series for one more name: they must not take the room that the limit was to keep.
    pub(super) fn room_for_overflow(&mut self, refused_by: LimitReason) -> Room {
        let left = self.contexts_left().unwrap_or(0);
        if self.capacity.overflow_names < left.max(OVERFLOW_NAMES_MAX) {
            Room::Always
        } else {
            Room::No(refused_by)
        }
    }

    /// Notes who wanted a context and got none.
    pub(super) fn count_refused(
        &mut self,
        subject: &Subject<'_>,
        values: &Values<'_>,
        origin: OriginId,
        reason: LimitReason,
    ) {
        let samples = match values {
            Values::Numbers(numbers) => numbers.iter().count() as u64,
            Values::Member(_) => 1,
        };
        self.usage.limited_samples[reason] += samples;
        let origin = self.origins.account_text(origin);
        self.usage.offenders.count(
            &subject.name,
            &subject.tags,
            reason,
            samples,
            origin,
            &self.secret,
        );
    }

    /// Samples whose context was not made, by reason.
    pub fn limited_samples(&self) -> Counts<LimitReason> {
        self.usage.limited_samples
    }

    /// Bytes of what is known of senders.
    pub fn origin_bytes(&self) -> usize {
        self.origins.heap_bytes()
    }

    /// Bytes held, slack included, those of origins aside.
    pub fn heap_bytes(&self) -> usize {
        self.table_bytes() + self.aliases.heap_bytes()
    }

    /// Counts what the tables hold and lets the alias cache have what they and the state leave. Also for a caller that knows that the
    /// state has grown.
    pub fn count_bytes(&mut self) {
        let limits = self.capacity.limits;
        self.capacity.counted_bytes = self.table_bytes();
        self.capacity.created_since_count = 0;
        let needed = self.capacity.counted_bytes + self.capacity.state_bytes;
        let left = limits.bytes_max.saturating_sub(needed);
        self.aliases.set_bytes_max(left.min(limits.alias_bytes_max));
        self.origins.bytes_max = limits.origin_bytes_max;
    }

    /// Bytes of everything but the alias cache.
    fn table_bytes(&self) -> usize {
        self.interner.heap_bytes()
            + self.raw.heap_bytes()
            + self.resolved.heap_bytes()
            + self.rules.heap_bytes()
            + self.usage.heap_bytes()
    }
}
