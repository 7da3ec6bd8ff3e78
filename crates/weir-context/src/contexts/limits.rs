//! Limits on the number of contexts, and the fair shares of names, origins and tag keys.

use weir_protocol::Values;
use weir_rules::Subject;

use super::Contexts;
use crate::origins::OriginId;
use crate::usage::LimitReason;
use weir_counters::Counts;

/// A name or an origin may have this many times as many contexts as still fit, and a tag key as many values. So a single one gets four
/// fifths of the room, two that both want everything get four ninths each, and later contexts always find room.
const SHARE_FACTOR: usize = 4;

/// A name or origin with fewer contexts than this is never refused while there is any room.
const SHARE_MIN: usize = 256;

/// The limits on contexts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContextLimits {
    /// Bytes for contexts, raw contexts, tag lists, strings, aliases and the aggregation state together.
    pub bytes_max: usize,
    /// Bytes for origins, which senders can invent. Not included in `bytes_max`.
    pub origin_bytes_max: usize,
    /// Live contexts, if the operator set a number.
    pub contexts_max: usize,
    /// Live contexts of one metric name, if the operator set a number.
    pub contexts_per_metric_max: usize,
    /// Raw contexts of one origin, if the operator set a number.
    pub contexts_per_origin_max: usize,
    /// Bytes for the alias cache, part of `bytes_max`. Zero disables it.
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
pub(super) enum Quota {
    Exceeded(LimitReason),
    /// If its name has not used up its share, with this many contexts left for all.
    Fair(usize),
    /// Always.
    Unlimited,
}

/// Number of contexts that one name or origin may have while `left` more fit.
pub(super) fn share(left: usize, max: usize) -> usize {
    left.saturating_mul(SHARE_FACTOR).max(SHARE_MIN).min(max)
}

/// Overflow series (one per metric name) may exceed the budget up to this number. Beyond it samples are refused.
const OVERFLOW_NAMES_MAX: usize = 1000;

/// The use of the tables against the limits.
pub(super) struct Capacity {
    pub limits: ContextLimits,
    overflow_names: usize,
    /// Bytes at the last full count, and contexts created since.
    counted_bytes: usize,
    created_since_count: usize,
    /// Size of the aggregation state now, or expected at the end of the bucket, as reported by its owner.
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

    /// Counts a context that took memory.
    pub fn record_created(&mut self) {
        self.created_since_count += 1;
    }

    /// A full count reads some hundred words. Between counts, new contexts are assumed to have the average size.
    fn wants_count(&self) -> bool {
        self.limits.bytes_max != usize::MAX && (self.created_since_count >= 256 || self.counted_bytes == 0)
    }

    /// About how many more contexts fit beside `live` ones, at least one. `Err`: the limit that was reached.
    fn left(&self, live: usize) -> Result<usize, LimitReason> {
        // Senders are not charged for overflow series.
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
        // The last eighth belongs to the alias cache: without it every known message would take the slow path.
        let bytes_left = (self.limits.bytes_max / 8 * 7).saturating_sub(used);
        if bytes_left == 0 {
            return Err(LimitReason::Memory);
        }
        let each = (average + self.state_bytes / live.max(1)).max(1);
        Ok(left.min((bytes_left / each).max(1)))
    }
}

impl Contexts {
    /// Whether a raw context may be stored. It takes memory even for tags that a rule removes.
    pub(super) fn may_remember(&self, quota: Quota) -> bool {
        match quota {
            Quota::Exceeded(_) => false,
            Quota::Fair(left) => self.interner.strings.new_tag_values() <= share(left, usize::MAX),
            Quota::Unlimited => true,
        }
    }

    /// Sets the size of the aggregation state. Contexts and aliases share the rest.
    #[inline]
    pub fn set_state_bytes(&mut self, bytes: usize) {
        self.capacity.state_bytes = bytes;
    }

    /// Whether one more context of this origin fits.
    pub(super) fn quota(&mut self, origin: OriginId) -> Quota {
        let left = match self.contexts_left() {
            Ok(left) => left,
            Err(reason) => return Quota::Exceeded(reason),
        };
        let max = share(left, self.capacity.limits.contexts_per_origin_max);
        match self.origins.contexts(origin) {
            Some(contexts) if contexts >= max => Quota::Exceeded(LimitReason::Origin),
            _ => Quota::Fair(left),
        }
    }

    /// Whether a context fits that existed in the previous process.
    pub(super) fn quota_for_known(&mut self) -> Quota {
        match self.contexts_left() {
            Ok(_) => Quota::Unlimited,
            Err(reason) => Quota::Exceeded(reason),
        }
    }

    /// About how many more contexts fit, at least one. `Err`: the limit that was reached.
    fn contexts_left(&mut self) -> Result<usize, LimitReason> {
        if self.capacity.wants_count() {
            self.count_bytes();
        }
        self.capacity.left(self.resolved.len())
    }

    /// Whether one more name may have an overflow series. Overflow series must not use the room that a limit reserves.
    pub(super) fn quota_for_overflow(&mut self, refused_by: LimitReason) -> Quota {
        let left = self.contexts_left().unwrap_or(0);
        if self.capacity.overflow_names < left.max(OVERFLOW_NAMES_MAX) {
            Quota::Unlimited
        } else {
            Quota::Exceeded(refused_by)
        }
    }

    /// Records a refused context.
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

    /// Bytes of the origin table.
    pub fn origin_bytes(&self) -> usize {
        self.origins.heap_bytes()
    }

    /// Bytes held, slack included, without origins.
    pub fn heap_bytes(&self) -> usize {
        self.table_bytes() + self.aliases.heap_bytes()
    }

    /// Counts the bytes of the tables and gives the alias cache the rest that tables and state leave. Also for a caller that knows that the
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

    /// Bytes of everything except the alias cache.
    fn table_bytes(&self) -> usize {
        self.interner.heap_bytes()
            + self.raw.heap_bytes()
            + self.resolved.heap_bytes()
            + self.rules.heap_bytes()
            + self.usage.heap_bytes()
    }
}
