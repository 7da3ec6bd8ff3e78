//! Resolved contexts: the identity of a series after rules. Aggregation state is indexed by their ids.

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU32, Ordering};

use hashbrown::HashTable;
use weir_protocol::Kind;

use crate::by_context::ContextKey;
use crate::chunked::Chunked;
use crate::prefetch::prefetch_value;
use crate::raw_table::NO_SLOT;
use crate::sharded::{Sharded, shrink};
use crate::strings::StringId;
use crate::tag_lists::TagListId;

/// Number of partitions of live contexts. A flush goes partition by partition, so merging several workers and encoding never need all
/// contexts at once.
pub const PARTITIONS: usize = 64;

/// The rule that says which partition a context is in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Partitioning {
    /// By canonical hash: equal contexts of several tables are in the same partition of each.
    #[default]
    Hash,
    /// By kind and id, in runs of [`RUN`] ids. A flush reads adjacent memory, and takes the same branches for many rows in sequence.
    Id,
}

/// Enough that the states of a run fill pages, and many rows in sequence are of one kind.
const RUN: u32 = 1024;

/// Distance between the first partitions of two kinds.
const KIND_STEP: usize = PARTITIONS / Kind::COUNT;

/// A context: the index into the aggregation state of its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ContextId(pub u32);

/// A live context and its kind, in the form that a flush visits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LiveContext(u32);

const KIND_SHIFT: u32 = 29;

impl LiveContext {
    pub fn new(kind: Kind, id: ContextId) -> Self {
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

/// The identity of a context within its kind. Strings and tag lists are interned, so comparing ids compares texts.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ContextIdentity {
    pub name: StringId,
    pub host: Option<StringId>,
    pub tags: TagListId,
}

#[derive(Clone, Copy)]
pub(crate) struct Context {
    pub identity: ContextIdentity,
    pub jmx_check: Option<StringId>,
    pub hash: u64,
    pub suffix_mask: u32,
    /// Seconds without a sample after which a change of this gauge begins at zero.
    pub delta_expiry: Option<NonZeroU32>,
    /// One more than the id of the distribution that gets a copy of each sample: an option of an id would be twice as long.
    copy_to: Option<NonZeroU32>,
    /// Some histogram copies its samples to this context.
    pub is_copy: bool,
    /// Head of the list of raw contexts that lead to this one.
    pub first_raw: u32,
    /// Set when the context is added to the table.
    birth: NonZeroU32,
    in_use: bool,
}

impl Context {
    pub fn new(identity: ContextIdentity, hash: u64, suffix_mask: u32, jmx_check: Option<StringId>) -> Self {
        Context {
            identity,
            jmx_check,
            hash,
            suffix_mask,
            delta_expiry: None,
            copy_to: None,
            is_copy: false,
            first_raw: NO_SLOT,
            birth: NonZeroU32::MIN,
            in_use: true,
        }
    }

    /// The distribution that gets a copy of each sample.
    pub fn copy_to(&self) -> Option<ContextId> {
        self.copy_to.map(|next| ContextId(next.get() - 1))
    }

    pub fn set_copy_to(&mut self, copy: Option<ContextId>) {
        self.copy_to = copy.and_then(|id| NonZeroU32::new(id.0 + 1));
    }
}

impl Default for Context {
    /// A free slot.
    fn default() -> Self {
        Context {
            in_use: false,
            ..Context::new(ContextIdentity::default(), 0, 0, None)
        }
    }
}

/// Contexts by kind and id, by hash, and by partition.
pub(crate) struct ContextTable {
    /// Its number among the tables of the process.
    number: u32,
    next_birth: NonZeroU32,
    entries: [Chunked<Context>; Kind::COUNT],
    free: [Vec<ContextId>; Kind::COUNT],
    index: Sharded<HashTable<LiveContext>>,
    partitioning: Partitioning,
    live: Box<[Vec<LiveContext>; PARTITIONS]>,
    live_count: usize,
}

impl ContextTable {
    pub fn new() -> Self {
        static TABLES: AtomicU32 = AtomicU32::new(0);
        ContextTable {
            number: TABLES.fetch_add(1, Ordering::Relaxed),
            next_birth: NonZeroU32::MIN,
            entries: std::array::from_fn(|_| Chunked::new()),
            free: std::array::from_fn(|_| Vec::new()),
            index: Sharded::new(HashTable::new),
            partitioning: Partitioning::default(),
            live: Box::new(std::array::from_fn(|_| Vec::new())),
            live_count: 0,
        }
    }

    /// Reserves room for about this many contexts while the table is empty.
    pub fn reserve(&mut self, contexts: usize) {
        self.index.reserve(contexts);
    }

    /// For contexts that are added from now on.
    pub fn partition_by(&mut self, partitioning: Partitioning) {
        self.partitioning = partitioning;
    }

    pub fn len(&self) -> usize {
        self.live_count
    }

    pub fn get(&self, kind: Kind, id: ContextId) -> &Context {
        &self.entries[kind as usize][id.0 as usize]
    }

    pub fn key(&self, kind: Kind, id: ContextId) -> ContextKey {
        ContextKey::new(self.number, LiveContext::new(kind, id), self.get(kind, id).birth)
    }

    /// Prefetches a context.
    #[inline]
    pub fn prefetch(&self, kind: Kind, id: ContextId) {
        prefetch_value(self.get(kind, id));
    }

    pub fn get_mut(&mut self, kind: Kind, id: ContextId) -> &mut Context {
        &mut self.entries[kind as usize][id.0 as usize]
    }

    /// The live contexts of one partition.
    pub fn live(&self, partition: usize) -> &[LiveContext] {
        &self.live[partition]
    }

    pub fn find(&self, hash: u64, kind: Kind, identity: ContextIdentity) -> Option<ContextId> {
        let found = self.index.shard(hash).find(hash, |live| {
            live.kind() == kind && self.get(kind, live.id()).identity == identity
        });
        found.map(|live| live.id())
    }

    pub fn add(&mut self, kind: Kind, context: Context) -> ContextId {
        let hash = context.hash;
        let of_kind = &mut self.entries[kind as usize];
        let id = self.free[kind as usize].pop().unwrap_or_else(|| {
            of_kind.push(Context::default());
            ContextId(of_kind.len() as u32 - 1)
        });
        of_kind[id.0 as usize] = Context {
            birth: self.next_birth,
            ..context
        };
        self.next_birth = self.next_birth.checked_add(1).unwrap_or(NonZeroU32::MIN);
        let live = LiveContext::new(kind, id);
        let entries = &self.entries;
        self.index
            .shard_mut(hash)
            .insert_unique(hash, live, |live| hash_of(entries, *live));
        let partition = match self.partitioning {
            Partitioning::Hash => hash as usize % PARTITIONS,
            Partitioning::Id => (kind as usize * KIND_STEP + (id.0 / RUN) as usize) % PARTITIONS,
        };
        self.live[partition].push(live);
        self.live_count += 1;
        id
    }

    /// Removes the context at `position` in a partition's list. The last context of the list takes its position.
    pub fn remove(&mut self, partition: usize, position: usize) -> Context {
        let of_partition = &mut self.live[partition];
        let live = of_partition.swap_remove(position);
        if of_partition.capacity() > 64 && of_partition.len() < of_partition.capacity() / 4 {
            of_partition.shrink_to_fit();
        }
        let kind = live.kind() as usize;
        let context = std::mem::take(&mut self.entries[kind][live.id().0 as usize]);
        debug_assert!(context.in_use);
        let shard = self.index.shard_mut(context.hash);
        if let Ok(found) = shard.find_entry(context.hash, |&other| other == live) {
            found.remove();
        }
        let entries = &self.entries;
        shrink(shard, |live| hash_of(entries, *live));
        self.free[kind].push(live.id());
        self.live_count -= 1;
        context
    }

    /// Frees memory at the end of the id ranges after a burst of contexts has expired. Returns, per kind, the number of ids that still need
    /// state.
    pub fn compact(&mut self) -> [usize; Kind::COUNT] {
        for (entries, free) in self.entries.iter_mut().zip(&mut self.free) {
            if free.len() <= 1024 || free.len() <= entries.len() / 2 {
                continue;
            }
            let mut len = entries.len();
            while len > 0 && !entries[len - 1].in_use {
                len -= 1;
            }
            entries.truncate(len);
            free.retain(|id| (id.0 as usize) < len);
            free.sort_unstable_by(|a, b| b.cmp(a));
            free.shrink_to_fit();
        }
        std::array::from_fn(|kind| self.entries[kind].len())
    }

    pub fn heap_bytes(&self) -> usize {
        self.entries.iter().map(Chunked::heap_bytes).sum::<usize>()
            + self.free.iter().map(|free| free.capacity() * 4).sum::<usize>()
            + self.index.iter().map(HashTable::allocation_size).sum::<usize>()
            + self.live.iter().map(|live| live.capacity() * 4).sum::<usize>()
    }
}

fn hash_of(entries: &[Chunked<Context>; Kind::COUNT], live: LiveContext) -> u64 {
    entries[live.kind() as usize][live.id().0 as usize].hash
}
