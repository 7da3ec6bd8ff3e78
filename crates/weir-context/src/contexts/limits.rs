//! How many contexts there may be, and whose are refused.

use hashbrown::HashTable;
use weir_protocol::Values;
use weir_rules::Subject;

use super::{Contexts, RawId, RuleCounts};
use crate::chunked::Chunked;
use crate::origins::OriginId;
use crate::usage::LimitReason;

/// A name or an origin may have this many times as many contexts as there is still room for, a tag key as many values: one alone gets four fifths of
/// what there is, two that both want everything four ninths each, and whoever comes later finds room in any case.
const SHARE_FACTOR: usize = 4;

/// Fewer contexts than this are never too many for one name or origin while there is any room.
const SHARE_MIN: usize = 256;

/// One part in this many of the memory limit is for origins, most of which a sender can make up.
const ORIGINS_SHARE: usize = 16;

/// What limits the number of contexts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes that contexts, raw contexts, tag lists, strings and `bytes_per_context` of state may take together.
    pub bytes_max: usize,
    /// Live contexts, where the operator set a number.
    pub contexts_max: usize,
    /// Live contexts of one metric name, where the operator set a number.
    pub contexts_per_metric_max: usize,
    /// Raw contexts of one origin, where the operator set a number.
    pub contexts_per_origin_max: usize,
    /// Bytes of aggregation state that each context will need elsewhere.
    pub bytes_per_context: usize,
    /// Bytes that the alias cache may take at most, within `bytes_max`; zero switches it off.
    pub alias_bytes_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            bytes_max: usize::MAX,
            contexts_max: usize::MAX,
            contexts_per_metric_max: usize::MAX,
            contexts_per_origin_max: usize::MAX,
            bytes_per_context: 0,
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

impl Contexts {
    pub fn set_limits(&mut self, limits: Limits) {
        self.limits = limits;
        self.count_bytes();
    }

    /// Whether the way to a context may be kept. It takes memory for tags that a rule removes, too.
    pub(super) fn may_remember(&self, room: Room) -> bool {
        match room {
            Room::No(_) => false,
            Room::Fair(left) => self.strings.new_tag_values() <= share(left, usize::MAX),
            Room::Always => true,
        }
    }

    /// Whether one more context of this origin fits.
    pub(super) fn room(&mut self, origin: OriginId) -> Room {
        let left = self.contexts_left();
        let reason = match left {
            Err(reason) => reason,
            Ok(left) => {
                let max = share(left, self.limits.contexts_per_origin_max);
                match self.origins.contexts(origin) {
                    Some(contexts) if contexts >= max => LimitReason::Origin,
                    _ => return Room::Fair(left),
                }
            }
        };
        self.refused_by = reason;
        Room::No(reason)
    }

    /// About how many more contexts fit, at least one; or which limit is reached.
    pub(super) fn contexts_left(&mut self) -> Result<usize, LimitReason> {
        // Overflow series are ours, not the senders'.
        let live = self.live_count.saturating_sub(self.overflow_names);
        if live >= self.limits.contexts_max {
            return Err(LimitReason::Contexts);
        }
        let left = self.limits.contexts_max - live;
        if self.limits.bytes_max == usize::MAX {
            return Ok(left);
        }
        // A full count reads some hundred words; between counts the average context is assumed to go on.
        if self.created_since_count >= 256 || self.counted_bytes == 0 {
            self.count_bytes();
        }
        let average = (self.counted_bytes / self.live_count.max(1)).min(1024);
        let estimate = self.counted_bytes + self.created_since_count * average;
        let used = estimate + self.live_count * self.limits.bytes_per_context;
        // The last eighth is the alias cache's: without it every known message would take the long way.
        let bytes_left = (self.limits.bytes_max / 8 * 7).saturating_sub(used);
        if bytes_left == 0 {
            return Err(LimitReason::Memory);
        }
        let each = (average + self.limits.bytes_per_context).max(1);
        Ok(left.min((bytes_left / each).max(1)))
    }

    /// Notes who wanted a context and got none.
    pub(super) fn count_refused(&mut self, subject: &Subject<'_>, values: &Values<'_>, origin: OriginId) {
        let samples = match values {
            Values::Numbers(numbers) => numbers.iter().count() as u64,
            Values::Member(_) => 1,
        };
        let reason = self.refused_by;
        self.limited_samples[reason as usize] += samples;
        let origin = self.origins.account_text(origin);
        self.offenders.count(
            &subject.name,
            &subject.tags,
            reason,
            samples,
            origin,
            &self.secret,
        );
    }

    /// The limit that the last [`Lookup::Overflow`] or [`Lookup::Refused`] met.
    pub fn refused_by(&self) -> LimitReason {
        self.refused_by
    }

    /// Samples whose context was not made, by reason.
    pub fn limited_samples(&self) -> [u64; LimitReason::COUNT] {
        self.limited_samples
    }

    /// Bytes held, slack included.
    pub fn heap_bytes(&self) -> usize {
        self.table_bytes() + self.aliases.heap_bytes()
    }

    /// Counts what the tables hold and lets the alias cache have what they leave.
    pub(super) fn count_bytes(&mut self) {
        self.counted_bytes = self.table_bytes();
        self.created_since_count = 0;
        let needed = self.counted_bytes + self.live_count * self.limits.bytes_per_context;
        let left = self.limits.bytes_max.saturating_sub(needed);
        self.aliases.set_bytes_max(left.min(self.limits.alias_bytes_max));
        self.origins.bytes_max = self.limits.bytes_max / ORIGINS_SHARE;
    }

    /// Bytes of everything but the alias cache.
    fn table_bytes(&self) -> usize {
        self.strings.heap_bytes()
            + self.tag_lists.heap_bytes()
            + self.raw.heap_bytes()
            + self.targets.heap_bytes()
            + self.raw_free.capacity() * 4
            + self
                .raw_index
                .iter()
                .map(HashTable::allocation_size)
                .sum::<usize>()
            + self.contexts.iter().map(Chunked::heap_bytes).sum::<usize>()
            + self.free.iter().map(|free| free.capacity() * 4).sum::<usize>()
            + self.index.iter().map(HashTable::allocation_size).sum::<usize>()
            + self.live.iter().map(|live| live.capacity() * 4).sum::<usize>()
            + self.loose.capacity() * size_of::<RawId>()
            + self.origins.heap_bytes()
            + self.rule_counts.capacity() * size_of::<RuleCounts>()
            + self.trials.heap_bytes()
            + self.names.heap_bytes()
            + self.offenders.heap_bytes()
    }
}
