//! The contexts of one worker.

use std::num::NonZeroU32;
use std::sync::Arc;

use weir_protocol::Kind;

use crate::active_rules::{ActiveRules, RuleCounts};
use crate::alias::AliasTable;
use crate::by_context::ContextKey;
use crate::context_table::{Context, ContextId, ContextTable, LiveContext, Partitioning};
use crate::counters::ContextCounter;
use crate::hash::HashSecret;
use crate::interner::Interner;
use crate::origins::Origins;
use crate::prefetch::{prefetch, prefetch_ends, prefetch_value};
use crate::raw_table::{RawId, RawTable};
use crate::rules::{Resolved, Rules};
use crate::tag_lists::RawTag;
use crate::trials::TrialReport;
use crate::usage::{LimitReason, Usage};
use weir_counters::Counts;
use weir_rules::{Applied, RuleId};

mod find;
mod limits;
mod make;
mod origins;
mod samples;
mod sweep;

use limits::Capacity;
pub use limits::ContextLimits;
pub use make::KnownContext;
use sweep::Sweep;

/// The tag of the overflow series, which take the samples of contexts for which there is no memory.
pub const OVERFLOW_TAG: &str = "weir_overflow:true";

/// Tags of a list to prefetch. Longer lists wait for the rest.
const TAGS_AHEAD: usize = 16;

/// The raw context through which a context was found, so that an alias can lead there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawMatch {
    pub(crate) raw: RawId,
    /// This look-up made the raw context.
    pub(crate) is_new: bool,
}

impl RawMatch {
    /// Whether this look-up made the raw context.
    pub fn is_new(self) -> bool {
        self.is_new
    }

    /// Whether there is a raw context: without room for it, the context was found and nothing leads there.
    pub fn is_known(self) -> bool {
        self.raw != RawId::NONE
    }
}

impl From<RawId> for RawMatch {
    fn from(raw: RawId) -> Self {
        RawMatch { raw, is_new: false }
    }
}

/// The destination of a message's samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// The context, and the raw context for [`Contexts::remember_alias`].
    Context(ContextId, RawMatch),
    /// As `Context`, but a rule in a dry run would change it: pass its samples to [`Contexts::count_trial`].
    DryRun(ContextId, RawMatch),
    /// A rule drops this metric. Pass its samples to [`Contexts::count_dropped`].
    Filtered(RawMatch, Option<RuleId>),
    /// There is no memory for a new context. The samples go into the overflow series of the name.
    Overflow(ContextId),
    /// There is no room for a new context, and its kind cannot be summed into an overflow series.
    Refused(LimitReason),
    /// The context is known, but there is no memory for its raw context.
    Unremembered(ContextId),
}

/// A context's parts, for encoding.
#[derive(Clone, Copy)]
pub struct ContextRef<'a> {
    contexts: &'a Contexts,
    context: &'a Context,
    key: ContextKey,
}

impl<'a> ContextRef<'a> {
    pub fn name(&self) -> &'a str {
        self.contexts.interner.strings.get(self.context.identity.name)
    }

    /// `None`: the agent's own host. Empty: explicitly no host.
    pub fn host(&self) -> Option<&'a str> {
        let strings = &self.contexts.interner.strings;
        self.context.identity.host.map(|id| strings.get(id))
    }

    /// Sorted, no duplicates.
    pub fn tags(&self) -> impl ExactSizeIterator<Item = &'a str> + use<'a> {
        let Interner {
            strings, tag_lists, ..
        } = &self.contexts.interner;
        let tags = tag_lists.get(self.context.identity.tags);
        tags.iter().map(|&id| strings.get(id))
    }

    /// Equal lists have equal keys while both exist.
    pub fn tag_list_key(&self) -> u32 {
        self.context.identity.tags.0
    }

    pub fn jmx_check(&self) -> Option<&'a str> {
        let strings = &self.contexts.interner.strings;
        self.context.jmx_check.map(|id| strings.get(id))
    }

    /// Identifies the context among all of the process.
    pub fn key(&self) -> ContextKey {
        self.key
    }

    /// Equal in every worker of the process.
    pub fn hash(&self) -> u64 {
        self.context.hash
    }

    pub fn suffix_mask(&self) -> u32 {
        self.context.suffix_mask
    }

    /// Seconds without a sample after which a change of this gauge begins at zero. `None`: never while the context lives.
    pub fn delta_expiry(&self) -> Option<NonZeroU32> {
        self.context.delta_expiry
    }

    /// The distribution that gets a copy of each sample, if configured.
    pub fn copy_to(&self) -> Option<ContextId> {
        self.context.copy_to()
    }

    /// Whether some histogram copies its samples here. Such a context must outlive the histogram, which refers to it.
    pub fn is_copy(&self) -> bool {
        self.context.is_copy
    }
}

/// All contexts of one worker.
///
/// Raw bytes lead to a raw context, which leads to a resolved context. Aggregation state is indexed by the latter. Identity is exact at
/// both steps: hashes find candidates, comparisons decide.
pub struct Contexts {
    secret: HashSecret,
    rules: ActiveRules,
    interner: Interner,
    aliases: AliasTable,
    raw: RawTable,
    resolved: ContextTable,
    origins: Origins,
    usage: Usage,
    capacity: Capacity,
    sweep: Sweep,
    scratch: Scratch,
}

/// Buffers of the miss path, kept so that it allocates only for what it stores.
#[derive(Default)]
struct Scratch {
    resolved: Resolved,
    /// Empty between calls; kept for its memory.
    parts: Vec<RawTag<'static>>,
    commas: Vec<u32>,
    places: Vec<u32>,
    taken: Vec<u64>,
}

impl Contexts {
    pub fn new(secret: HashSecret, rules: Rules, limits: ContextLimits) -> Self {
        let mut contexts = Contexts {
            secret,
            rules: ActiveRules::new(rules),
            interner: Interner::new(),
            aliases: AliasTable::new(secret.level()),
            raw: RawTable::new(),
            resolved: ContextTable::new(),
            origins: Origins::new(),
            usage: Usage::new(),
            capacity: Capacity::new(limits),
            sweep: Sweep::default(),
            scratch: Scratch::default(),
        };
        contexts.count_bytes();
        contexts
    }

    /// For contexts that are added from now on.
    pub fn partition_by(&mut self, partitioning: Partitioning) {
        self.resolved.partition_by(partitioning);
    }

    pub fn rules(&self) -> &Arc<Rules> {
        self.rules.rules()
    }

    /// Replaces the rules. A raw context is resolved again when [`Contexts::sweep_stale`] has found it and its next message comes; until
    /// then its target stays. Contexts and their state stay too. Those that nothing leads to any more are flushed as usual and expire.
    pub fn set_rules(&mut self, rules: Rules) {
        if self.rules.replace(rules) {
            self.sweep.begin_all(self.raw.len());
        }
    }

    pub fn secret(&self) -> &HashSecret {
        &self.secret
    }

    /// Live contexts, including overflow series.
    pub fn len(&self) -> usize {
        self.resolved.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn get(&self, kind: Kind, id: ContextId) -> ContextRef<'_> {
        ContextRef {
            contexts: self,
            context: self.resolved.get(kind, id),
            key: self.resolved.key(kind, id),
        }
    }

    /// The current counts.
    pub fn counts(&self) -> Counts<ContextCounter> {
        let mut counts = Counts::default();
        counts[ContextCounter::Live] = self.len() as u64;
        counts[ContextCounter::OverflowSeries] = self.capacity.overflow_names() as u64;
        counts[ContextCounter::Strings] = self.interner.strings.len() as u64;
        counts[ContextCounter::TagLists] = self.interner.tag_lists.len() as u64;
        counts
    }

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

/// The effects of active rules and of rules in a dry run.
impl Contexts {
    /// Counts by rule number, and the nanoseconds of the search for matching rules.
    pub fn rule_counts(&self) -> (&[RuleCounts], u64) {
        self.rules.counts()
    }

    /// The effect that rules in a dry run would have had.
    pub fn trial_reports(&self) -> Vec<TrialReport> {
        self.rules.trials.reports()
    }

    pub fn count_applied(&mut self, applied: &Applied) {
        self.rules.count_applied(applied);
    }

    /// Counts samples that a rule drops.
    pub fn count_dropped(&mut self, rule: Option<RuleId>, samples: u64) {
        self.rules.count_dropped(rule, samples);
    }

    /// Counts samples of a context that a rule in a dry run would change.
    pub fn count_trial(&mut self, raw_match: RawMatch, samples: u64) {
        self.rules.trials.count(raw_match.raw.slot, samples);
    }
}
