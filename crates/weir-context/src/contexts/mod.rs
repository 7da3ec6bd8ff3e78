//! The contexts of one worker: what they are made of and how they are stored.

use std::sync::Arc;

use hashbrown::HashTable;
use weir_protocol::Kind;

use crate::alias::AliasTable;
use crate::chunked::Chunked;
use crate::hash::HashSecret;
use crate::origins::{OriginId, Origins};
use crate::rules::{Resolved, Rules};
use crate::sharded::Sharded;
use crate::strings::{StringId, Strings};
use crate::tag_lists::{RawTag, TagListId, TagLists};
use crate::trials::Trials;
use crate::usage::{LimitReason, Names, Offenders};

mod expiry;
mod find;
mod limits;
mod make;
mod origins;
mod rule_counts;
mod samples;

pub use limits::Limits;
pub use rule_counts::RuleCounts;

/// Number of parts that live contexts are kept in, by their canonical hash. A flush is handed over part by part, so that
/// merging several workers and encoding never need all contexts at once.
pub const PARTITIONS: usize = 64;

/// The tag of the series that takes the samples of contexts for which there is no memory.
pub const OVERFLOW_TAG: &str = "weir_overflow:true";

/// Overflow series, one per metric name, are allowed beyond the budget while there are no more than this; then samples are
/// refused.
const OVERFLOW_NAMES_MAX: usize = 1000;

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

    pub fn secret(&self) -> &HashSecret {
        &self.secret
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

#[inline]
fn partition(hash: u64) -> usize {
    hash as usize % PARTITIONS
}
