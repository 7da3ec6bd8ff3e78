use std::sync::Arc;

use hashbrown::HashTable;
use weir_protocol::{Kind, Metric, Values, separators};
use weir_rules::{Applied, RuleId, Subject};

use crate::alias::{AliasCounts, AliasKey, AliasTable};
use crate::chunked::Chunked;
use crate::hash::HashSecret;
use crate::level::Level;
use crate::origins::{
    Admission, KnownTags, OriginCounts, OriginId, OriginKey, OriginQuestion, OriginTags, OriginTicket,
    Origins,
};
use crate::prefetch::prefetch;
use crate::rules::{Resolved, Rules, Trial, keep_last_special, sort_and_dedup};
use crate::sharded::Sharded;
use crate::strings::{StringId, Strings};
use crate::tag_lists::{self, PAIRS_MAX, RawTag, TagListId, TagLists};
use crate::trials::{TrialReport, Trials};
use crate::usage::{LimitReason, MetricUsage, Names, Offenders, UsageSummary};

/// Number of parts that live contexts are kept in, by their canonical hash. A flush is handed over part by part, so that
/// merging several workers and encoding never need all contexts at once.
pub const PARTITIONS: usize = 64;

/// The tag of the series that takes the samples of contexts for which there is no memory.
pub const OVERFLOW_TAG: &str = "weir_overflow:true";

/// Overflow series, one per metric name, are allowed beyond the budget while there are no more than this; then samples are
/// refused.
const OVERFLOW_NAMES_MAX: usize = 1000;

/// A name or an origin may have this many times as many contexts as there is still room for, a tag key as many values: one alone gets four fifths of
/// what there is, two that both want everything four ninths each, and whoever comes later finds room in any case.
const SHARE_FACTOR: usize = 4;

/// Fewer contexts than this are never too many for one name or origin while there is any room.
const SHARE_MIN: usize = 256;

/// A context, as an index into the aggregation state of its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ContextId(pub u32);

/// A live context together with its kind, as the flush walks them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LiveContext(u32);

const KIND_SHIFT: u32 = 29;

impl LiveContext {
    fn new(kind: Kind, id: ContextId) -> Self {
        debug_assert!(id.0 < 1 << KIND_SHIFT);
        LiveContext((kind as u32) << KIND_SHIFT | id.0)
    }

    #[inline]
    pub fn kind(self) -> Kind {
        Kind::ALL[(self.0 >> KIND_SHIFT) as usize]
    }

    #[inline]
    pub fn id(self) -> ContextId {
        ContextId(self.0 & ((1 << KIND_SHIFT) - 1))
    }
}

/// A raw context: what a message says about itself, before any rule. Valid for one generation of its slot, so that a
/// cached one can never reach a context that took the slot later.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RawId {
    pub(crate) slot: u32,
    pub(crate) generation: u32,
}

/// One part in this many of the memory limit is for origins, most of which a sender can make up.
const ORIGINS_SHARE: usize = 16;

/// A raw context that is none: no alias leads to a slot of this number.
const NO_RAW: RawId = RawId {
    slot: NOBODY,
    generation: 0,
};

/// Where the samples of a message belong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// The context, and the raw context through which it can be found again without this work.
    Context(ContextId, RawId),
    /// The same, and a rule on trial would do something to it: its samples are to be given to [`Contexts::count_trial`].
    OnTrial(ContextId, RawId),
    /// A rule drops this metric.
    Filtered(RawId),
    /// There is no memory for a new context; its samples go into the overflow series of its name.
    Overflow(ContextId),
    /// There is no memory for a new context, and its kind cannot be summed into another series.
    Refused,
    /// The context is known, but there is no memory to remember the way there.
    Unremembered(ContextId),
}

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

/// A context's parts, for whoever writes it down.
#[derive(Clone, Copy)]
pub struct ContextRef<'a> {
    contexts: &'a Contexts,
    context: &'a Context,
}

impl<'a> ContextRef<'a> {
    pub fn name(&self) -> &'a str {
        self.contexts.strings.get(self.context.name)
    }

    /// `None`: the agent's own host. Empty: explicitly no host.
    pub fn host(&self) -> Option<&'a str> {
        self.context.host.map(|id| self.contexts.strings.get(id))
    }

    /// Sorted, without duplicates.
    pub fn tags(&self) -> impl ExactSizeIterator<Item = &'a str> + use<'a> {
        let contexts = self.contexts;
        contexts
            .tag_lists
            .get(self.context.tags)
            .iter()
            .map(move |&id| contexts.strings.get(id))
    }

    /// Equal lists have equal keys while both are alive.
    pub fn tag_list_key(&self) -> u32 {
        self.context.tags.0
    }

    pub fn jmx_check(&self) -> Option<&'a str> {
        self.context.jmx_check.map(|id| self.contexts.strings.get(id))
    }

    /// Equal in every worker of the process.
    pub fn hash(&self) -> u64 {
        self.context.hash
    }

    pub fn suffix_mask(&self) -> u32 {
        self.context.suffix_mask
    }

    /// The distribution that gets a copy of each sample, where that is configured.
    pub fn copy_to(&self) -> Option<ContextId> {
        self.context.copy_to
    }

    /// Whether some histogram copies its samples here. Such a context must outlive the histogram, which refers to it.
    pub fn is_copy(&self) -> bool {
        self.context.is_copy
    }
}

#[derive(Clone, Copy, Default)]
struct Context {
    name: StringId,
    host: Option<StringId>,
    jmx_check: Option<StringId>,
    tags: TagListId,
    hash: u64,
    suffix_mask: u32,
    copy_to: Option<ContextId>,
    /// Some histogram copies its samples here.
    is_copy: bool,
    /// Head of the list of raw contexts that resolve to this one.
    first_raw: u32,
    in_use: bool,
}

#[derive(Clone, Copy, Default)]
struct RawContext {
    name: StringId,
    tags: TagListId,
    origin: OriginId,
    hash: u64,
    kind: u8,
    /// Neighbours in the list of raw contexts with the same target; [`NOBODY`] at its ends. A filtered one, which has no
    /// neighbours, has the number of the rule that drops it in `next`.
    next: u32,
    previous: u32,
    /// Second of the last look-up, for those without a context only: others live as long as their context.
    last_seen: u32,
}

/// Second step of the lookup, apart from the raw contexts so that eight of them share a cache line.
#[derive(Clone, Copy, Default)]
struct Target {
    generation: u32,
    /// [`FREE`], [`FILTERED`], [`STALE`], or a context id plus three, with [`ON_TRIAL`] where samples are to be counted.
    to: u32,
}

const FREE: u32 = 0;
const FILTERED: u32 = 1;
/// The rules or the tags of its origin have changed: it is resolved again when it is next seen.
const STALE: u32 = 2;
const FIRST_ID: u32 = 3;
/// The sign bit: one comparison tells an ordinary context from everything else.
const ON_TRIAL: u32 = 1 << 31;

/// Whether a context may be added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Room {
    No(LimitReason),
    /// As long as its name has not used up its share, with this many contexts left for all.
    Fair(usize),
    /// In any case.
    Always,
}

/// How many contexts one name or origin may have while there is room for `left` more.
fn share(left: usize, max: usize) -> usize {
    left.saturating_mul(SHARE_FACTOR).max(SHARE_MIN).min(max)
}

/// What one rule did. Numbers only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RuleCounts {
    /// Contexts it was applied to, and different samples that carried a timestamp of their own.
    pub hits: u64,
    /// Time that took, beside finding the rules that match.
    pub nanoseconds: u64,
    /// Samples it dropped.
    pub samples_dropped: u64,
}

/// No raw context.
const NOBODY: u32 = u32::MAX;

/// All contexts of one worker.
///
/// Raw bytes lead to a raw context, a raw context to a resolved one; aggregation state is indexed by the latter. Identity
/// is exact at both steps: hashes find candidates, comparisons decide.
pub struct Contexts {
    secret: HashSecret,
    rules: Arc<Rules>,
    /// By rule number, the list of filtered names last.
    rule_counts: Vec<RuleCounts>,
    /// Time spent on finding the rules that match.
    matching_ns: u64,
    trials: Trials,
    limits: Limits,
    strings: Strings,
    tag_lists: TagLists,
    aliases: AliasTable,
    raw: Chunked<RawContext>,
    targets: Chunked<Target>,
    raw_free: Vec<u32>,
    /// The generation that new slots begin with.
    generation_start: u32,
    raw_index: Sharded<HashTable<u32>>,
    contexts: [Chunked<Context>; Kind::COUNT],
    free: [Vec<ContextId>; Kind::COUNT],
    index: Sharded<HashTable<LiveContext>>,
    live: Box<[Vec<LiveContext>; PARTITIONS]>,
    live_count: usize,
    overflow_names: usize,
    /// Raw contexts that lead to no context: filtered ones, and stale ones that were not seen since. An entry may have been
    /// overtaken by events; expiry looks.
    loose: Vec<RawId>,
    origins: Origins,
    names: Names,
    offenders: Offenders,
    /// Why a context was refused last, and the samples refused so far, by reason.
    refused_by: LimitReason,
    limited_samples: [u64; LimitReason::COUNT],
    /// Where the sweep for raw contexts of changed origins goes on, and how many it still has to look at.
    sweep_at: usize,
    sweep_left: usize,
    /// The sweep is for all, because the rules have changed.
    sweep_all: bool,
    scratch: Scratch,
    /// Whether the last call of `resolve` made a new raw context.
    raw_created: bool,
    /// Bytes at the last full count, and contexts created since.
    counted_bytes: usize,
    created_since_count: usize,
}

/// Buffers of the miss path, kept so that it allocates only what it stores.
#[derive(Default)]
struct Scratch {
    ids: Vec<StringId>,
    resolved: Resolved,
    /// Empty between calls: only the memory is kept.
    parts: Vec<RawTag<'static>>,
    commas: Vec<u32>,
    places: Vec<u32>,
    taken: Vec<u64>,
}

/// The memory of a vector of tags, for tags of another lifetime. (Collecting in place is what makes it the same memory.)
fn emptied<'a>(mut parts: Vec<RawTag<'_>>) -> Vec<RawTag<'a>> {
    parts.clear();
    parts.into_iter().map(|_| RawTag::default()).collect()
}

impl Contexts {
    pub fn new(secret: HashSecret, rules: Rules, limits: Limits) -> Self {
        let mut contexts = Contexts {
            secret,
            rule_counts: vec![RuleCounts::default(); rules.set().infos().len()],
            rules: Arc::new(rules),
            matching_ns: 0,
            trials: Trials::default(),
            limits,
            strings: Strings::new(),
            tag_lists: TagLists::new(),
            aliases: AliasTable::new(secret.level()),
            raw: Chunked::new(),
            targets: Chunked::new(),
            raw_created: false,
            raw_free: Vec::new(),
            generation_start: 0,
            raw_index: Sharded::new(HashTable::new),
            contexts: std::array::from_fn(|_| Chunked::new()),
            free: std::array::from_fn(|_| Vec::new()),
            index: Sharded::new(HashTable::new),
            live: Box::new(std::array::from_fn(|_| Vec::new())),
            live_count: 0,
            overflow_names: 0,
            loose: Vec::new(),
            origins: Origins::new(),
            names: Names::new(),
            offenders: Offenders::default(),
            refused_by: LimitReason::Memory,
            limited_samples: [0; LimitReason::COUNT],
            sweep_at: 0,
            sweep_left: 0,
            sweep_all: false,
            scratch: Scratch::default(),
            counted_bytes: 0,
            created_since_count: 0,
        };
        contexts.count_bytes();
        contexts
    }

    pub fn rules(&self) -> &Arc<Rules> {
        &self.rules
    }

    /// Replaces the rules. Raw contexts are resolved again as [`Contexts::sweep_stale`] finds them and their next message
    /// comes; until then they lead where they led. Contexts and their state stay; those that nothing leads to any more are
    /// flushed as usual and expire.
    pub fn set_rules(&mut self, rules: Rules) {
        if rules == *self.rules {
            return;
        }
        self.carry_counts(&rules);
        self.rules = Arc::new(rules);
        self.sweep_left = self.raw.len();
        self.sweep_all = true;
    }

    /// What each rule did, by rule number, and the nanoseconds spent on finding those that match.
    pub fn rule_counts(&self) -> (&[RuleCounts], u64) {
        (&self.rule_counts, self.matching_ns)
    }

    /// What rules on trial would have done.
    pub fn trial_reports(&self) -> Vec<TrialReport> {
        self.trials.reports()
    }

    pub fn count_applied(&mut self, applied: &Applied) {
        self.matching_ns += applied.matching_ns;
        for &(rule, nanoseconds) in &applied.hits {
            if let Some(counts) = self.rule_counts.get_mut(rule.0 as usize) {
                counts.hits += 1;
                counts.nanoseconds += nanoseconds;
            }
        }
    }

    /// Samples of a metric that [`Lookup::Filtered`] was the answer for.
    pub fn count_dropped(&mut self, raw: RawId, samples: u64) {
        let rule = if raw == NO_RAW {
            self.scratch.resolved.applied.dropped_by
        } else {
            Some(RuleId(self.raw[raw.slot as usize].next))
        };
        self.count_dropped_by(rule, samples);
    }

    /// Samples that a rule drops.
    pub fn count_dropped_by(&mut self, rule: Option<RuleId>, samples: u64) {
        if let Some(counts) = rule.and_then(|rule| self.rule_counts.get_mut(rule.0 as usize)) {
            counts.samples_dropped += samples;
        }
    }

    /// Samples of a context that a rule on trial would do something to.
    pub fn count_trial(&mut self, raw: RawId, samples: u64) {
        self.trials.count(raw.slot, samples);
    }

    /// Makes room for the counts of new rules; those of rules that stay, by stage and name, go on.
    fn carry_counts(&mut self, rules: &Rules) {
        let (before, after) = (self.rules.set(), rules.set());
        self.trials = Trials::default();
        if Arc::ptr_eq(before, after) {
            return;
        }
        let known: std::collections::HashMap<_, _> = before
            .infos()
            .iter()
            .zip(&self.rule_counts)
            .map(|(info, counts)| ((info.stage.as_str(), info.name.as_str()), *counts))
            .collect();
        let counts = after.infos().iter().map(|info| {
            let key = (info.stage.as_str(), info.name.as_str());
            known.get(&key).copied().unwrap_or_default()
        });
        self.rule_counts = counts.collect();
    }

    pub fn secret(&self) -> &HashSecret {
        &self.secret
    }

    pub fn set_limits(&mut self, limits: Limits) {
        self.limits = limits;
        self.count_bytes();
    }

    /// Live contexts, overflow series included.
    pub fn len(&self) -> usize {
        self.live_count
    }

    pub fn is_empty(&self) -> bool {
        self.live_count == 0
    }

    /// Contexts that may have an id of this kind: every id of a live context is below it.
    pub fn id_bound(&self, kind: Kind) -> usize {
        self.contexts[kind as usize].len()
    }

    pub fn get(&self, kind: Kind, id: ContextId) -> ContextRef<'_> {
        ContextRef {
            contexts: self,
            context: &self.contexts[kind as usize][id.0 as usize],
        }
    }

    /// Hash of the bytes that identify a message, for the alias calls below.
    #[inline(always)]
    pub fn alias_hash(&self, key: &AliasKey<'_>) -> u64 {
        self.secret.pair(key.name, key.tail, u64::from(key.head))
    }

    /// First step of a look-up by alias: asks for the memory the second needs.
    #[inline]
    pub fn prefetch_alias(&self, hash: u64) {
        prefetch(self.aliases.first_slot(hash));
    }

    /// Second step: asks for the key and the target of the probable alias.
    #[inline]
    pub fn prefetch_target(&self, hash: u64) -> Option<RawId> {
        let (key, raw) = self.aliases.peek(hash)?;
        // Keys are a little over two cache lines at common lengths; the third comes with the adjacent-line prefetcher.
        prefetch(key);
        prefetch(key.wrapping_add(64));
        prefetch(key.wrapping_add(128));
        prefetch(self.targets.address(raw.slot as usize));
        Some(raw)
    }

    /// Third step: the probable context, whose state the caller may ask for. Nothing may rely on it.
    #[inline]
    pub fn probable_context(&self, raw: RawId) -> Option<ContextId> {
        let target = self.targets.get(raw.slot as usize)?;
        (target.to >= FIRST_ID).then(|| context_of(target.to))
    }

    /// The context of a message seen before: one comparison of its bytes.
    #[inline(always)]
    pub fn resolve_alias(&mut self, hash: u64, key: &AliasKey<'_>, now: u32) -> Option<Lookup> {
        let raw = self.aliases.get(hash, key)?;
        self.resolve_raw(raw, now)
    }

    /// Finds the raw context of a metric from the bytes of its name and tags, where both are known: the short form of
    /// [`Contexts::resolve`] for known tags in a new order. `tags` is a tag section without its `#`, and nothing else is said
    /// about the origin than `sender`. `None`: the long form must look.
    pub fn find(
        &mut self,
        kind: Kind,
        name: &[u8],
        tags: &[u8],
        sender: OriginId,
        now: u32,
    ) -> Option<Lookup> {
        #[cfg(target_arch = "x86_64")]
        if self.secret.level() == Level::Wide {
            // SAFETY: the level says that the processor has the instructions.
            #[allow(unsafe_code)]
            return unsafe { self.find_wide(kind, name, tags, sender, now) };
        }
        self.find_inlined(kind, name, tags, sender, now)
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,vaes,avx2,bmi1,bmi2,lzcnt,popcnt,aes")]
    fn find_wide(
        &mut self,
        kind: Kind,
        name: &[u8],
        tags: &[u8],
        sender: OriginId,
        now: u32,
    ) -> Option<Lookup> {
        self.find_inlined(kind, name, tags, sender, now)
    }

    #[inline(always)]
    fn find_inlined(
        &mut self,
        kind: Kind,
        name: &[u8],
        tags: &[u8],
        sender: OriginId,
        now: u32,
    ) -> Option<Lookup> {
        let mut parts = [RawTag::default(); PAIRS_MAX];
        // Eight more than are used, as the search wants.
        let mut commas = [0; PAIRS_MAX + 7];
        let comma_count = match separators(tags, b',', &mut commas) {
            Some(count) if count < PAIRS_MAX => count,
            _ => return self.find_many(kind, name, tags, sender, now),
        };
        let ends = &mut commas[..=comma_count];
        ends[comma_count] = tags.len() as u32;
        let mut start = 0;
        let mut count = 0;
        for &end in ends.iter() {
            let tag = &tags[start..end as usize];
            start = end as usize + 1;
            if tag.is_empty() {
                continue;
            }
            // Of special tags the last counts, which order decides; they are rare enough for the long form.
            if is_special(tag, &tags[end as usize - tag.len()..]) {
                return None;
            }
            parts[count] = RawTag {
                text: tag,
                hash: self.secret.bytes(tag),
            };
            count += 1;
        }
        match self.find_parts(kind, name, &parts[..count], sender, now) {
            None if has_duplicates(&parts[..count]) => self.find_many(kind, name, tags, sender, now),
            found => found,
        }
    }

    /// The form of [`Contexts::find`] for many tags and for duplicates. A function of its own with the levels of its own: in one with
    /// the short form, that takes 320 instead of 130 ns with 8 tags.
    #[inline(never)]
    fn find_many(
        &mut self,
        kind: Kind,
        name: &[u8],
        tags: &[u8],
        sender: OriginId,
        now: u32,
    ) -> Option<Lookup> {
        #[cfg(target_arch = "x86_64")]
        if self.secret.level() == Level::Wide {
            // SAFETY: the level says that the processor has the instructions.
            #[allow(unsafe_code)]
            return unsafe { self.find_many_wide(kind, name, tags, sender, now) };
        }
        self.find_many_inlined(kind, name, tags, sender, now)
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,vaes,avx2,bmi1,bmi2,lzcnt,popcnt,aes")]
    fn find_many_wide(
        &mut self,
        kind: Kind,
        name: &[u8],
        tags: &[u8],
        sender: OriginId,
        now: u32,
    ) -> Option<Lookup> {
        self.find_many_inlined(kind, name, tags, sender, now)
    }

    #[inline(always)]
    fn find_many_inlined(
        &mut self,
        kind: Kind,
        name: &[u8],
        tags: &[u8],
        sender: OriginId,
        now: u32,
    ) -> Option<Lookup> {
        let mut commas = std::mem::take(&mut self.scratch.commas);
        let mut parts = emptied(std::mem::take(&mut self.scratch.parts));
        let comma_count = loop {
            match separators(tags, b',', &mut commas) {
                Some(count) => break count,
                None => commas.resize((2 * commas.len()).max(64), 0),
            }
        };
        let ends = commas[..comma_count].iter().map(|&comma| comma as usize);
        let mut start = 0;
        for end in ends.chain([tags.len()]) {
            let text = &tags[start..end];
            start = end + 1;
            if !text.is_empty() {
                let hash = self.secret.bytes(text);
                parts.push(RawTag { text, hash });
            }
        }
        let found = self.find_any(kind, name, &mut parts, sender, now);
        self.scratch.parts = emptied(parts);
        self.scratch.commas = commas;
        found
    }

    /// [`Contexts::find`] for tags that the caller has split already.
    pub fn find_split(
        &mut self,
        kind: Kind,
        name: &[u8],
        tags: &[&[u8]],
        sender: OriginId,
        now: u32,
    ) -> Option<Lookup> {
        let mut parts = emptied(std::mem::take(&mut self.scratch.parts));
        parts.extend(tags.iter().map(|&text| RawTag {
            text,
            hash: self.secret.bytes(text),
        }));
        let found = self.find_any(kind, name, &mut parts, sender, now);
        self.scratch.parts = emptied(parts);
        found
    }

    /// [`Contexts::find_parts`] for any tags.
    #[inline(always)]
    fn find_any(
        &mut self,
        kind: Kind,
        name: &[u8],
        parts: &mut Vec<RawTag<'_>>,
        sender: OriginId,
        now: u32,
    ) -> Option<Lookup> {
        // Of special tags the last counts, which order decides; they are rare enough for the long form.
        if parts.iter().any(|tag| is_special(tag.text, tag.text)) {
            return None;
        }
        if let Some(found) = self.find_parts(kind, name, parts, sender, now) {
            return Some(found);
        }
        if !remove_duplicates(parts, &mut self.scratch.places) {
            return None;
        }
        self.find_parts(kind, name, parts, sender, now)
    }

    /// The raw context of a name and tags that are hashed already. `None` also when a tag is there twice.
    #[inline(always)]
    fn find_parts(
        &mut self,
        kind: Kind,
        name: &[u8],
        parts: &[RawTag<'_>],
        sender: OriginId,
        now: u32,
    ) -> Option<Lookup> {
        let level = self.secret.level();
        let list_hash = tag_lists::hash(parts.iter().map(|tag| tag.hash), &self.secret);
        let hash = self.hash_raw(
            kind,
            self.secret.bytes(name),
            list_hash,
            self.origins.hash(sender),
        );
        // A loop and no closure: that would be compiled without what this function's callers are compiled for.
        let mut candidates = self.raw_index.shard(hash).iter_hash(hash);
        let slot = loop {
            let &slot = candidates.next()?;
            let raw = &self.raw[slot as usize];
            if (raw.kind, raw.origin) == (kind as u8, sender)
                && self.strings.is(raw.name, name, level)
                && self
                    .tag_lists
                    .holds(raw.tags, parts, &self.strings, level, &mut self.scratch.taken)
            {
                break slot;
            }
        };
        self.resolve_found(slot, now)
    }

    fn resolve_found(&mut self, slot: u32, now: u32) -> Option<Lookup> {
        self.raw_created = false;
        self.resolve_raw(
            RawId {
                slot,
                generation: self.targets[slot as usize].generation,
            },
            now,
        )
    }

    #[inline]
    fn hash_raw(&self, kind: Kind, name: u64, tags: u64, origin: u64) -> u64 {
        self.secret.four([kind as u64, name, tags, origin])
    }

    fn raw_hash(&self, kind: Kind, name: StringId, tags: TagListId, origin: OriginId) -> u64 {
        let origin = self.origins.hash(origin);
        self.hash_raw(kind, self.strings.hash(name), self.tag_lists.hash(tags), origin)
    }

    fn find_raw(
        &self,
        hash: u64,
        kind: Kind,
        name: StringId,
        tags: TagListId,
        origin: OriginId,
    ) -> Option<u32> {
        let raw = &self.raw;
        let found = self.raw_index.shard(hash).find(hash, |&slot| {
            let other = &raw[slot as usize];
            (other.kind, other.name, other.tags, other.origin) == (kind as u8, name, tags, origin)
        });
        found.copied()
    }

    /// Remembers the bytes of the message that [`Contexts::resolve`] was just called for, so that they lead to `raw` at once
    /// the next time. Only for messages whose tail says nothing else, such as a rate or a timestamp.
    pub fn remember_alias(&mut self, hash: u64, key: &AliasKey<'_>, raw: RawId) {
        if raw == NO_RAW {
            return;
        }
        let is_first = self.raw_created;
        self.aliases.offer(hash, key, raw, is_first);
    }

    pub fn alias_counts(&self) -> AliasCounts {
        self.aliases.counts
    }

    pub fn aliases(&self) -> usize {
        self.aliases.len()
    }

    /// Ages a 64th of the aliases.
    pub fn sweep_aliases(&mut self) {
        let targets = &self.targets;
        self.aliases.sweep_next(|raw| {
            targets
                .get(raw.slot as usize)
                .is_some_and(|target| target.generation == raw.generation)
        });
    }

    /// The target of a raw context that was found before, if its slot still holds it.
    #[inline(always)]
    fn resolve_raw(&mut self, raw: RawId, now: u32) -> Option<Lookup> {
        let target = *self.targets.get(raw.slot as usize)?;
        if target.generation != raw.generation {
            return None;
        }
        if target.to as i32 >= FIRST_ID as i32 {
            return Some(Lookup::Context(ContextId(target.to - FIRST_ID), raw));
        }
        self.resolve_other(raw, target.to, now)
    }

    #[cold]
    fn resolve_other(&mut self, raw: RawId, to: u32, now: u32) -> Option<Lookup> {
        match to {
            FREE | STALE => None,
            FILTERED => {
                self.raw[raw.slot as usize].last_seen = now;
                Some(Lookup::Filtered(raw))
            }
            to => Some(Lookup::OnTrial(context_of(to), raw)),
        }
    }

    /// The miss path: finds or makes the context of a metric from its parsed parts. `sender` is the origin of the process
    /// that sent it; `now` is the second of the agent's clock. Tags of an origin that are not known yet count as none until
    /// they come.
    pub fn resolve(&mut self, metric: &Metric<'_>, sender: OriginId, now: u32) -> Lookup {
        let mut tags: Vec<&str> = metric.tags.iter().collect();
        keep_last_special(&mut tags);
        let key = OriginKey::of_message(metric.origin, tags.iter().copied());
        let origin = self.origins.acquire(&key, sender, &self.secret, now);
        let known = self.origins.known(origin);
        sort_and_dedup(&mut tags);

        self.strings.clear_new_tags();
        let name = self.strings.acquire(metric.name, &self.secret);
        let tag_list = self
            .tag_lists
            .acquire(&tags, &mut self.strings, &self.secret, &mut self.scratch.ids);
        let kind = metric.kind;
        let hash = self.raw_hash(kind, name, tag_list, origin);
        self.raw_created = false;
        let known_raw = self.find_raw(hash, kind, name, tag_list, origin);
        if let Some(slot) = known_raw {
            self.release_raw_parts(name, tag_list, origin);
            let raw = RawId {
                slot,
                generation: self.targets[slot as usize].generation,
            };
            if let Some(lookup) = self.resolve_raw(raw, now) {
                return lookup;
            }
        }

        tags.extend(known.tags.iter().flat_map(|tags| tags.iter().map(AsRef::as_ref)));
        let mut resolved = std::mem::take(&mut self.scratch.resolved);
        let rules = self.rules.clone();
        let mut subject = rules.subject(kind, metric.name, tags.iter().copied());
        let verdict = rules.apply(&mut subject, &mut resolved);
        let passes = verdict.passes;
        self.count_applied(&resolved.applied);
        let room = self.room(origin);
        let created_before = self.created_since_count;
        let target = if !passes {
            Ok(None)
        } else {
            match self.context_for(&subject, &resolved, &rules, room) {
                Some(id) => Ok(Some(id)),
                None => {
                    self.count_refused(&subject, &metric.values, origin);
                    Err(self.overflow(&subject, &resolved, &rules))
                }
            }
        };
        let rule = resolved.applied.dropped_by;
        let lookup = match (target, known_raw) {
            (Ok(to), Some(slot)) => self.lead(slot, &subject, to, rule, &verdict.trials, now),
            (Ok(to), None) if self.may_remember(room) => {
                let slot = self.add_raw(name, tag_list, origin, kind, hash);
                // A raw context that leads to a known one takes memory too.
                self.created_since_count = self.created_since_count.max(created_before + 1);
                self.lead(slot, &subject, to, rule, &verdict.trials, now)
            }
            (Ok(to), None) => {
                self.release_raw_parts(name, tag_list, origin);
                match to {
                    Some(id) => Lookup::Unremembered(id),
                    None => Lookup::Filtered(NO_RAW),
                }
            }
            (Err(lookup), known_raw) => {
                if known_raw.is_none() {
                    self.release_raw_parts(name, tag_list, origin);
                }
                lookup
            }
        };
        self.scratch.resolved = resolved;
        lookup
    }

    /// Lets a raw context that leads nowhere lead to a context, or to none because a rule filters it.
    fn lead(
        &mut self,
        slot: u32,
        subject: &Subject<'_>,
        to: Option<ContextId>,
        rule: Option<RuleId>,
        trials: &[Trial<'_>],
        now: u32,
    ) -> Lookup {
        let target = &mut self.targets[slot as usize];
        let raw = RawId {
            slot,
            generation: target.generation,
        };
        let Some(id) = to else {
            target.to = FILTERED;
            let entry = &mut self.raw[slot as usize];
            (entry.last_seen, entry.next) = (now, rule.map_or(NOBODY, |rule| rule.0));
            self.loose.push(raw);
            return Lookup::Filtered(raw);
        };
        target.to = id.0 + FIRST_ID;
        let context = &mut self.contexts[subject.kind as usize][id.0 as usize];
        // The rules may have changed since it was made.
        context.suffix_mask = subject.suffix_mask;
        let next = std::mem::replace(&mut context.first_raw, slot);
        let entry = &mut self.raw[slot as usize];
        (entry.next, entry.previous) = (next, NOBODY);
        if next != NOBODY {
            self.raw[next as usize].previous = slot;
        }
        if !trials.is_empty() && self.follow(slot, id, subject, trials) {
            return Lookup::OnTrial(id, raw);
        }
        Lookup::Context(id, raw)
    }

    #[cold]
    fn follow(&mut self, slot: u32, id: ContextId, subject: &Subject<'_>, trials: &[Trial<'_>]) -> bool {
        let secret = self.secret;
        let digest = |subject: &Subject<'_>| secret.bytes(format!("{subject:?}").as_bytes());
        let is_followed = self
            .trials
            .follow(slot, (subject.kind, id), subject, trials, digest);
        if is_followed {
            self.targets[slot as usize].to |= ON_TRIAL;
        }
        is_followed
    }

    /// Takes a raw context that leads to a context out of that context's list.
    fn unlink(&mut self, slot: u32) {
        let RawContext {
            next, previous, kind, ..
        } = self.raw[slot as usize];
        if next != NOBODY {
            self.raw[next as usize].previous = previous;
        }
        if previous != NOBODY {
            self.raw[previous as usize].next = next;
        } else {
            let id = context_of(self.targets[slot as usize].to).0 as usize;
            self.contexts[usize::from(kind)][id].first_raw = next;
        }
        if !self.trials.is_empty() {
            self.trials.forget(slot);
        }
    }

    /// From now on messages are told apart by their origins, and questions about them have to be answered.
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

    /// The text of whoever answers for an origin; see [`OriginKey::from_text`].
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

    pub fn origin_counts(&self) -> OriginCounts {
        self.origins.counts
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
            self.sweep_left = self.raw.len();
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

    /// Looks at up to `max` raw contexts for those whose rules or origin have changed. False when none is left to look at.
    pub fn sweep_stale(&mut self, max: usize, now: u32) -> bool {
        if self.sweep_left == 0 {
            return false;
        }
        for _ in 0..max.min(self.sweep_left) {
            if self.sweep_at >= self.raw.len() {
                self.sweep_at = 0;
            }
            let slot = self.sweep_at as u32;
            self.sweep_at += 1;
            self.sweep_left -= 1;
            let to = self.targets[slot as usize].to;
            let is_due = self.sweep_all || self.origins.is_dirty(self.raw[slot as usize].origin);
            if to == FREE || to == STALE || !is_due {
                continue;
            }
            if to == FILTERED {
                self.remove_raw(slot);
                continue;
            }
            self.unlink(slot);
            let target = &mut self.targets[slot as usize];
            target.to = STALE;
            let raw = RawId {
                slot,
                generation: target.generation,
            };
            self.raw[slot as usize].last_seen = now;
            self.loose.push(raw);
        }
        if self.sweep_left == 0 {
            self.sweep_all = false;
            self.origins.clear_dirty();
        }
        self.sweep_left > 0
    }

    /// Forgets origins that nothing has used for a minute.
    pub fn expire_origins(&mut self, now: u32) {
        self.origins.expire(now);
    }

    /// Finds or makes a resolved context; `None` when a new one would not fit the limits.
    fn context_for(
        &mut self,
        subject: &Subject<'_>,
        resolved: &Resolved,
        rules: &Rules,
        room: Room,
    ) -> Option<ContextId> {
        let Subject {
            kind,
            name,
            tags,
            suffix_mask,
            ..
        } = subject;
        let kind = *kind;
        let copied_name = rules.copied_name(name, kind);
        let host = subject.host.as_deref();
        let id = self.find_or_add(name, kind, host, tags, resolved, *suffix_mask, room)?;
        if let Some(copied) = copied_name
            && self.contexts[kind as usize][id.0 as usize].copy_to.is_none()
        {
            let copy = self.find_or_add(&copied, Kind::Distribution, host, tags, resolved, u32::MAX, room);
            self.contexts[kind as usize][id.0 as usize].copy_to = copy;
            if let Some(copy) = copy {
                self.contexts[Kind::Distribution as usize][copy.0 as usize].is_copy = true;
            }
        }
        Some(id)
    }

    fn overflow(&mut self, subject: &Subject<'_>, resolved: &Resolved, rules: &Rules) -> Lookup {
        let kind = subject.kind;
        if matches!(kind, Kind::Gauge | Kind::Set) {
            return Lookup::Refused;
        }
        let mut tags: Vec<&str> = rules.extra_tags().iter().map(String::as_str).collect();
        tags.push(OVERFLOW_TAG);
        sort_and_dedup(&mut tags);
        let before = self.live_count;
        // They must not take the room that the limit was to keep.
        let left = self.contexts_left().unwrap_or(0);
        let room = if self.overflow_names < left.max(OVERFLOW_NAMES_MAX) {
            Room::Always
        } else {
            Room::No(self.refused_by)
        };
        let mask = subject.suffix_mask;
        match self.find_or_add(&subject.name, kind, None, &tags, resolved, mask, room) {
            Some(id) => {
                self.overflow_names += self.live_count - before;
                Lookup::Overflow(id)
            }
            None => Lookup::Refused,
        }
    }

    fn find_or_add<T: AsRef<str>>(
        &mut self,
        name: &str,
        kind: Kind,
        host: Option<&str>,
        tags: &[T],
        resolved: &Resolved,
        suffix_mask: u32,
        room: Room,
    ) -> Option<ContextId> {
        let name = self.strings.acquire(name, &self.secret);
        let host = host.map(|host| self.strings.acquire(host, &self.secret));
        let tag_list = self
            .tag_lists
            .acquire(tags, &mut self.strings, &self.secret, &mut self.scratch.ids);
        let hash = self.secret.four([
            kind as u64,
            self.strings.hash(name),
            host.map_or(1, |id| self.strings.hash(id)),
            self.tag_lists.hash(tag_list),
        ]);
        let contexts = &self.contexts;
        let found = self.index.shard(hash).find(hash, |live| {
            let other = &contexts[live.kind() as usize][live.id().0 as usize];
            (live.kind(), other.name, other.host, other.tags) == (kind, name, host, tag_list)
        });
        if let Some(live) = found {
            let id = live.id();
            self.release_context_parts(name, host, None, tag_list);
            return Some(id);
        }
        let name_hash = self.strings.hash(name);
        let refused_by = match room {
            Room::Always => None,
            Room::No(reason) => Some(reason),
            Room::Fair(left) => {
                let max = share(left, self.limits.contexts_per_metric_max);
                if self.names.contexts(name, name_hash) >= max {
                    Some(LimitReason::Metric)
                } else if self.strings.new_tag_values() > share(left, usize::MAX) {
                    Some(LimitReason::TagKey)
                } else {
                    None
                }
            }
        };
        if let Some(reason) = refused_by {
            self.refused_by = reason;
            self.release_context_parts(name, host, None, tag_list);
            return None;
        }
        let jmx_check = resolved
            .jmx_check
            .as_deref()
            .map(|check| self.strings.acquire(check, &self.secret));
        let context = Context {
            name,
            host,
            jmx_check,
            tags: tag_list,
            hash,
            suffix_mask,
            copy_to: None,
            is_copy: false,
            first_raw: NOBODY,
            in_use: true,
        };
        let of_kind = &mut self.contexts[kind as usize];
        let id = match self.free[kind as usize].pop() {
            Some(id) => {
                of_kind[id.0 as usize] = context;
                id
            }
            None => {
                of_kind.push(context);
                ContextId(of_kind.len() as u32 - 1)
            }
        };
        let live = LiveContext::new(kind, id);
        let contexts = &self.contexts;
        self.index.shard_mut(hash).insert_unique(hash, live, |live| {
            contexts[live.kind() as usize][live.id().0 as usize].hash
        });
        self.live[partition(hash)].push(live);
        self.names.add(name, name_hash);
        self.live_count += 1;
        self.created_since_count += 1;
        Some(id)
    }

    fn add_raw(&mut self, name: StringId, tags: TagListId, origin: OriginId, kind: Kind, hash: u64) -> u32 {
        let slot = match self.raw_free.pop() {
            Some(slot) => slot,
            None => {
                self.raw.push(RawContext::default());
                self.targets.push(Target {
                    generation: self.generation_start,
                    to: FREE,
                });
                self.raw.len() as u32 - 1
            }
        };
        self.raw[slot as usize] = RawContext {
            name,
            tags,
            origin,
            hash,
            kind: kind as u8,
            next: NOBODY,
            previous: NOBODY,
            last_seen: 0,
        };
        self.origins.add_context(origin);
        self.targets[slot as usize].to = STALE;
        let raw = &self.raw;
        self.raw_index
            .shard_mut(hash)
            .insert_unique(hash, slot, |&slot| raw[slot as usize].hash);
        self.raw_created = true;
        slot
    }

    fn remove_raw(&mut self, slot: u32) {
        if !self.trials.is_empty() {
            self.trials.forget(slot);
        }
        let RawContext {
            name,
            tags,
            origin,
            hash,
            ..
        } = std::mem::take(&mut self.raw[slot as usize]);
        let target = &mut self.targets[slot as usize];
        *target = Target {
            generation: target.generation.wrapping_add(1),
            to: FREE,
        };
        let raw = &self.raw;
        let shard = self.raw_index.shard_mut(hash);
        if let Ok(found) = shard.find_entry(hash, |&other| other == slot) {
            found.remove();
        }
        if shard.capacity() > 64 && shard.len() < shard.capacity() / 4 {
            shard.shrink_to(shard.len() * 2, |&slot| raw[slot as usize].hash);
        }
        self.raw_free.push(slot);
        self.origins.remove_context(origin);
        self.release_raw_parts(name, tags, origin);
    }

    fn release_raw_parts(&mut self, name: StringId, tags: TagListId, origin: OriginId) {
        self.strings.release(name);
        self.tag_lists.release(tags, &mut self.strings);
        self.origins.release(origin);
    }

    fn release_context_parts(
        &mut self,
        name: StringId,
        host: Option<StringId>,
        jmx_check: Option<StringId>,
        tags: TagListId,
    ) {
        self.strings.release(name);
        self.tag_lists.release(tags, &mut self.strings);
        for id in [host, jmx_check].into_iter().flatten() {
            self.strings.release(id);
        }
    }

    /// The live contexts of one partition.
    pub fn live(&self, partition: usize) -> &[LiveContext] {
        &self.live[partition]
    }

    /// Removes the context at `position` of a partition's list, with its raw contexts and all that nothing else uses. The
    /// last context of the list takes its place.
    pub fn remove(&mut self, partition: usize, position: usize) {
        let live = self.live[partition].swap_remove(position);
        if self.live[partition].capacity() > 64
            && self.live[partition].len() < self.live[partition].capacity() / 4
        {
            self.live[partition].shrink_to_fit();
        }
        let (kind, id) = (live.kind() as usize, live.id());
        let context = std::mem::take(&mut self.contexts[kind][id.0 as usize]);
        debug_assert!(context.in_use);
        let mut next = context.first_raw;
        while next != NOBODY {
            let slot = next;
            next = self.raw[slot as usize].next;
            self.remove_raw(slot);
        }
        let contexts = &self.contexts;
        let shard = self.index.shard_mut(context.hash);
        if let Ok(found) = shard.find_entry(context.hash, |&other| other == live) {
            found.remove();
        }
        if shard.capacity() > 64 && shard.len() < shard.capacity() / 4 {
            shard.shrink_to(shard.len() * 2, |live| {
                contexts[live.kind() as usize][live.id().0 as usize].hash
            });
        }
        self.free[kind].push(id);
        self.live_count -= 1;
        if self
            .tag_lists
            .get(context.tags)
            .iter()
            .any(|&tag| self.strings.get(tag) == OVERFLOW_TAG)
        {
            self.overflow_names = self.overflow_names.saturating_sub(1);
        }
        self.names.remove(context.name, self.strings.hash(context.name));
        self.release_context_parts(context.name, context.host, context.jmx_check, context.tags);
    }

    /// Forgets raw contexts that lead to no context and were last seen before `oldest`.
    pub fn expire_loose(&mut self, oldest: u32) {
        let mut at = 0;
        while at < self.loose.len() {
            let RawId { slot, generation } = self.loose[at];
            let target = self.targets.get(slot as usize);
            let is_loose = target.is_some_and(|target| {
                target.generation == generation && matches!(target.to, FILTERED | STALE)
            });
            if is_loose && self.raw[slot as usize].last_seen >= oldest {
                at += 1;
                continue;
            }
            self.loose.swap_remove(at);
            if is_loose {
                self.remove_raw(slot);
            }
        }
    }

    /// Gives back memory at the end of the id ranges, after a burst of contexts has expired. Returns, per kind, the number
    /// of ids that state must still be kept for.
    pub fn compact(&mut self) -> [usize; Kind::COUNT] {
        for kind in 0..Kind::COUNT {
            if self.free[kind].len() > 1024 && self.free[kind].len() > self.contexts[kind].len() / 2 {
                let contexts = &mut self.contexts[kind];
                let mut len = contexts.len();
                while len > 0 && !contexts[len - 1].in_use {
                    len -= 1;
                }
                contexts.truncate(len);
                self.free[kind].retain(|id| (id.0 as usize) < len);
                self.free[kind].sort_unstable_by(|a, b| b.cmp(a));
                self.free[kind].shrink_to_fit();
            }
        }
        self.compact_raw();
        self.strings.compact();
        self.tag_lists.compact();
        self.names.compact();
        self.count_bytes();
        std::array::from_fn(|kind| self.contexts[kind].len())
    }

    /// Gives back the slots behind the last raw context. Generations of slots that come later begin behind all those that
    /// went, so that an alias that outlived its context finds nothing there either.
    fn compact_raw(&mut self) {
        if self.raw_free.len() <= 1024 || self.raw_free.len() <= self.raw.len() / 2 {
            return;
        }
        let mut len = self.targets.len();
        while len > 0 && self.targets[len - 1].to == FREE {
            len -= 1;
            self.generation_start = self
                .generation_start
                .max(self.targets[len].generation.wrapping_add(1));
        }
        self.raw.truncate_chunks(len);
        self.targets.truncate_chunks(len);
        let len = self.raw.len();
        self.raw_free.retain(|&slot| (slot as usize) < len);
        self.raw_free.shrink_to_fit();
        self.sweep_left = self.sweep_left.min(len);
    }

    /// Whether the way to a context may be kept. It takes memory for tags that a rule removes, too.
    fn may_remember(&self, room: Room) -> bool {
        match room {
            Room::No(_) => false,
            Room::Fair(left) => self.strings.new_tag_values() <= share(left, usize::MAX),
            Room::Always => true,
        }
    }

    /// Whether one more context of this origin fits.
    fn room(&mut self, origin: OriginId) -> Room {
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
    fn contexts_left(&mut self) -> Result<usize, LimitReason> {
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
    fn count_refused(&mut self, subject: &Subject<'_>, values: &Values<'_>, origin: OriginId) {
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

    /// The name that a metric has after rules, if a context has it.
    fn resolved_name(&mut self, metric: &Metric<'_>, sender: OriginId, now: u32) -> Option<StringId> {
        if metric.origin.is_empty() {
            let (name, tags) = (metric.name.as_bytes(), metric.tags.raw().as_bytes());
            if let Some(Lookup::Context(id, _) | Lookup::OnTrial(id, _)) =
                self.find(metric.kind, name, tags, sender, now)
            {
                return Some(self.contexts[metric.kind as usize][id.0 as usize].name);
            }
        }
        let rules = self.rules.clone();
        let mut resolved = std::mem::take(&mut self.scratch.resolved);
        let mut subject = rules.subject(metric.kind, metric.name, metric.tags.iter());
        let passes = rules.apply(&mut subject, &mut resolved).passes;
        let name = self.strings.find(subject.name.as_bytes(), &self.secret);
        drop(subject);
        self.scratch.resolved = resolved;
        name.filter(|_| passes)
    }

    /// Takes note of samples, as far as somebody looks at all: `samples` stands for those that were not looked at too.
    pub fn note_samples(&mut self, metric: &Metric<'_>, sender: OriginId, samples: u64, now: u32) {
        if let Some(name) = self.resolved_name(metric, sender, now) {
            self.names.add_samples(name, self.strings.hash(name), samples);
        }
        let key = OriginKey::of_message(metric.origin, metric.tags.iter());
        let origin = self.origins.acquire(&key, sender, &self.secret, now);
        self.origins.add_samples(origin, samples);
        self.origins.release(origin);
    }

    /// [`Contexts::note_samples`] for a message whose bytes an alias knows, without reading its tags. False: none does.
    pub fn note_known_samples(&mut self, hash: u64, key: &AliasKey<'_>, samples: u64, now: u32) -> bool {
        let found = self.aliases.find(hash, key);
        let (raw, context) = match found.and_then(|raw| self.resolve_raw(raw, now)) {
            Some(Lookup::Context(id, raw) | Lookup::OnTrial(id, raw)) => (raw, Some(id)),
            Some(Lookup::Filtered(raw)) => (raw, None),
            _ => return false,
        };
        let RawContext { origin, kind, .. } = self.raw[raw.slot as usize];
        if let Some(id) = context {
            let name = self.contexts[usize::from(kind)][id.0 as usize].name;
            self.names.add_samples(name, self.strings.hash(name), samples);
        }
        self.origins.add_samples(origin, samples);
        true
    }

    /// Looks at up to `max` names for the next summary. Returns it when all have been looked at; what it counts since the
    /// last one begins anew.
    pub fn summarise(&mut self, max: usize) -> Option<UsageSummary> {
        let walked = self.names.walk(max)?;
        let metrics = walked.into_iter().map(|(entry, samples)| MetricUsage {
            name: self.strings.get(entry.name).into(),
            contexts: u64::from(entry.contexts),
            samples,
        });
        let metrics = metrics.collect();
        let keys = self.strings.tag_keys();
        let (limited, limited_others) = self.offenders.take();
        Some(UsageSummary {
            contexts: self.live_count as u64,
            metrics,
            metrics_live: self.names.len() as u64,
            tag_keys: keys.top(),
            tag_keys_live: keys.len() as u64,
            tag_values_untracked: keys.untracked(),
            origins: self.origins.top(),
            origins_live: self.origins.len() as u64,
            limited,
            limited_others,
        })
    }

    /// Bytes held, slack included.
    pub fn heap_bytes(&self) -> usize {
        self.table_bytes() + self.aliases.heap_bytes()
    }

    /// Counts what the tables hold and lets the alias cache have what they leave.
    fn count_bytes(&mut self) {
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

    /// Live overflow series.
    pub fn overflow_names(&self) -> usize {
        self.overflow_names
    }

    /// Distinct strings and tag lists, for status.
    pub fn table_sizes(&self) -> (usize, usize) {
        (self.strings.len(), self.tag_lists.len())
    }
}

/// The context that a target leads to.
#[inline]
fn context_of(to: u32) -> ContextId {
    ContextId((to & !ON_TRIAL) - FIRST_ID)
}

/// Whether a tag has a meaning of its own. `from` is the text that it begins, and may go on behind it.
///
/// One branch, which is hardly ever taken: whether a tag begins with a `d` could not be predicted.
#[inline]
fn is_special(tag: &[u8], from: &[u8]) -> bool {
    let Some(first) = from.first_chunk::<8>() else {
        return tag.starts_with(b"host:") || tag.starts_with(b"dd.internal.");
    };
    let word = u64::from_le_bytes(*first);
    let host = word & 0xff_ffff_ffff == u64::from_le_bytes(*b"host:\0\0\0");
    let internal = word == u64::from_le_bytes(*b"dd.inter");
    (host | internal) && (tag.starts_with(b"host:") || tag.starts_with(b"dd.internal."))
}

/// Keeps the first of equal tags. True if there were any. `places` is memory to work in: a hash table of places in `tags`, from
/// one on; to sort would take longer than all else does.
#[inline(always)]
fn remove_duplicates(tags: &mut Vec<RawTag<'_>>, places: &mut Vec<u32>) -> bool {
    places.clear();
    places.resize((2 * tags.len()).next_power_of_two(), 0);
    let mask = places.len() - 1;
    let mut kept = 0;
    for next in 0..tags.len() {
        let tag = tags[next];
        let mut at = tag.hash as usize & mask;
        loop {
            let Some(place) = (places[at] as usize).checked_sub(1) else {
                tags[kept] = tag;
                kept += 1;
                places[at] = kept as u32;
                break;
            };
            let other = &tags[place];
            if other.hash == tag.hash && other.text == tag.text {
                break;
            }
            at = (at + 1) & mask;
        }
    }
    let removed = kept < tags.len();
    tags.truncate(kept);
    removed
}

fn has_duplicates(tags: &[RawTag<'_>]) -> bool {
    tags.iter()
        .enumerate()
        .any(|(at, tag)| tags[..at].iter().any(|earlier| earlier.hash == tag.hash))
}

#[inline]
fn partition(hash: u64) -> usize {
    hash as usize % PARTITIONS
}
