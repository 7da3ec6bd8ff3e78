//! The raw-alias cache: from the bytes of a message to its raw context, without reading its tags.
//!
//! An alias is kind, sender, name and everything after value, type and rate, byte for byte. A message that was seen before costs one hash
//! over these bytes and one comparison, however many tags they hold. The comparison alone decides equality.
//!
//! Aliases are a cache: any of them may be evicted at any time, and a miss takes the canonical path. They refer to raw contexts by slot and
//! generation, so an alias that outlives its context finds nothing.

use crate::counters::AliasCounter;
use weir_counters::Counts;
use weir_protocol::Kind;

use crate::bytes_equal::bytes_equal;
use crate::level::Level;
use crate::origins::OriginId;
use crate::raw_table::RawId;

/// Longer keys are not cached. No datagram is longer.
pub const ALIAS_KEY_BYTES_MAX: usize = 65_535;

/// Longer keys are admitted with their second sight, and only where there is room: one of them takes the memory of hundreds of others.
const SHORT_KEY_BYTES_MAX: usize = 4096;

const SHARDS: usize = 64;
const SLOTS_MIN: usize = 16;

/// Fingerprints of aliases seen once. A second sight within this many others admits an alias.
const DOORKEEPER_SLOTS: usize = 8192;

/// An alias without a hit during this many sweeps is dropped.
const AGE_MAX: u64 = 3;

// The low bits of a stored hash hold state. The bits above are compared.
const OCCUPIED: u64 = 0b100;
const AGE_MASK: u64 = 0b011;
const STATE_MASK: u64 = 0b111;

/// The parts of a message that identify its raw context, byte for byte, and its sender.
#[derive(Clone, Copy, Debug)]
pub struct AliasKey<'a> {
    /// See [`AliasKey::head`].
    pub head: u32,
    pub name: &'a [u8],
    /// From the `|` after type and rate to the end of the line. A name cannot contain `|`, so the boundary is unambiguous.
    pub tail: &'a [u8],
}

const KIND_BITS: u32 = 3;
const HEAD_BYTES: usize = 4;

impl AliasKey<'_> {
    /// Kind and sender as one word: the same bytes from two senders are two aliases.
    #[inline]
    pub fn head(kind: Kind, sender: OriginId) -> u32 {
        (kind as u32) | sender.0 << KIND_BITS
    }
}

/// 32 bytes: two slots to a cache line.
#[derive(Clone, Debug, Default)]
struct Slot {
    /// Hash in the high bits, state in the low three bits. Zero for an empty slot.
    hash: u64,
    key: Box<[u8]>,
    raw: RawId,
}

/// Open addressing with linear probing that begins at a pair of slots, which is a cache line. At most half full, so that
/// 90 to 95 % of the entries are in the pair where their probe begins.
#[derive(Debug, Default)]
struct Shard {
    slots: Box<[Slot]>,
    len: usize,
    /// Raw contexts that had been removed at its last sweep.
    removals: u64,
}

#[derive(Debug)]
pub(crate) struct AliasTable {
    shards: Box<[Shard; SHARDS]>,
    doorkeeper: Box<[u16]>,
    len: usize,
    key_bytes: usize,
    slot_count: usize,
    bytes_max: usize,
    level: Level,
    next_sweep: usize,
    /// The next shard to trim when memory is short.
    next_trim: usize,
    pub counts: Counts<AliasCounter>,
}

impl AliasTable {
    pub fn new(level: Level) -> Self {
        AliasTable {
            level,
            shards: Box::new(std::array::from_fn(|_| Shard::default())),
            doorkeeper: Box::default(),
            len: 0,
            key_bytes: 0,
            slot_count: 0,
            bytes_max: usize::MAX,
            next_sweep: 0,
            next_trim: 0,
            counts: Counts::default(),
        }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// Sets the byte limit. Above it idle aliases are evicted, a shard at a time; whole shards only if that is not enough.
    pub fn set_bytes_max(&mut self, bytes: usize) {
        self.bytes_max = bytes;
        for _ in 0..SHARDS {
            if self.heap_bytes() <= bytes {
                return;
            }
            self.sweep_shard(self.next_trim, 1, |_| true);
            self.next_trim = (self.next_trim + 1) % SHARDS;
        }
        for shard in 0..SHARDS {
            if self.heap_bytes() <= bytes {
                break;
            }
            let shard = std::mem::take(&mut self.shards[shard]);
            self.slot_count -= shard.slots.len();
            self.counts[AliasCounter::Evicted] += shard.len as u64;
            for slot in shard.slots.iter().filter(|slot| slot.hash != 0) {
                self.forget(slot);
            }
        }
    }

    /// Bytes held. The allocator's rounding is estimated at an eighth of each key.
    pub fn heap_bytes(&self) -> usize {
        self.slot_count * size_of::<Slot>() + self.key_bytes + self.key_bytes / 8 + self.doorkeeper.len() * 2
    }

    #[inline]
    fn shard_of(hash: u64) -> usize {
        (hash >> 58) as usize
    }

    /// Address of the first slot for `hash`, for prefetching.
    #[inline]
    pub fn first_slot(&self, hash: u64) -> *const u8 {
        let shard = &self.shards[Self::shard_of(hash)];
        if shard.slots.is_empty() {
            return std::ptr::null();
        }
        std::ptr::from_ref(&shard.slots[shard.start(hash)]).cast()
    }

    /// The probable entry, by hash alone: its key for prefetching, and its raw context. Reads as far as nearly all probes go; otherwise
    /// every following step would wait for a displaced entry.
    #[inline(always)]
    pub fn peek(&self, hash: u64) -> Option<(&[u8], RawId)> {
        let shard = &self.shards[Self::shard_of(hash)];
        let mask = shard.slots.len().checked_sub(1)?;
        let start = shard.start(hash);
        let at = shard
            .find_in_pair(hash, start)
            .or_else(|| shard.find_in_pair(hash, (start + 2) & mask))?;
        let slot = &shard.slots[at];
        Some((&slot.key, slot.raw))
    }

    #[inline(always)]
    pub fn get(&mut self, hash: u64, key: &AliasKey<'_>) -> Option<RawId> {
        let shard = &mut self.shards[Self::shard_of(hash)];
        if let Some(at) = shard.find(hash, key, self.level) {
            let slot = &mut shard.slots[at];
            // Written at most once between two sweeps, so that a hot table stays clean in the cache.
            if slot.hash & AGE_MASK != 0 {
                slot.hash &= !AGE_MASK;
            }
            return Some(slot.raw);
        }
        self.counts[AliasCounter::Misses] += 1;
        None
    }

    /// [`AliasTable::get`] without counting a hit or refreshing the entry.
    pub fn find(&self, hash: u64, key: &AliasKey<'_>) -> Option<RawId> {
        let shard = &self.shards[Self::shard_of(hash)];
        shard.find(hash, key, self.level).map(|at| shard.slots[at].raw)
    }

    /// Offers an alias after a miss. The first alias of a raw context is admitted at once while there is room. Without room, for long keys, and
    /// for further aliases such as other tag orders, the second sight admits.
    pub fn offer(&mut self, hash: u64, key: &AliasKey<'_>, raw: RawId, is_first: bool) {
        let key_len = HEAD_BYTES + key.name.len() + key.tail.len();
        if key_len > ALIAS_KEY_BYTES_MAX {
            return;
        }
        let shard = &mut self.shards[Self::shard_of(hash)];
        if let Some(at) = shard.find(hash, key, self.level) {
            // The old raw context was removed and this one took its place.
            shard.slots[at].raw = raw;
            return;
        }
        let is_long = key_len > SHORT_KEY_BYTES_MAX;
        let has_room = self.heap_bytes() + size_of::<Slot>() + key_len <= self.bytes_max;
        // A flood of messages that never repeat must not evict those that do.
        let is_admitted = is_first && !is_long && has_room || self.passes_doorkeeper(hash);
        if !is_admitted {
            self.counts[AliasCounter::HeldBack] += 1;
            return;
        }
        if !has_room && (is_long || !self.evict_one(hash)) {
            self.counts[AliasCounter::Refused] += 1;
            return;
        }
        let mut bytes = Vec::with_capacity(key_len);
        bytes.extend_from_slice(&key.head.to_le_bytes());
        bytes.extend_from_slice(key.name);
        bytes.extend_from_slice(key.tail);
        let shard = &mut self.shards[Self::shard_of(hash)];
        let before = shard.slots.len();
        shard.insert(Slot {
            hash: hash & !STATE_MASK | OCCUPIED,
            key: bytes.into_boxed_slice(),
            raw,
        });
        self.slot_count += shard.slots.len() - before;
        self.len += 1;
        self.key_bytes += key_len;
        self.counts[AliasCounter::Admitted] += 1;
    }

    fn passes_doorkeeper(&mut self, hash: u64) -> bool {
        if self.doorkeeper.is_empty() {
            self.doorkeeper = vec![0; DOORKEEPER_SLOTS].into();
        }
        let fingerprint = (hash >> 40) as u16 | 1;
        let place = &mut self.doorkeeper[(hash >> 8) as usize % DOORKEEPER_SLOTS];
        let seen = *place == fingerprint;
        *place = fingerprint;
        seen
    }

    /// Evicts one alias without a hit since its last check by this function or a sweep: from the same shard if the new alias needs a place
    /// there, otherwise from the next few shards in turn. Checks a bounded number.
    fn evict_one(&mut self, hash: u64) -> bool {
        if self.evict_from(Self::shard_of(hash), hash) {
            return true;
        }
        (0..4).any(|_| {
            self.next_trim = (self.next_trim + 1) % SHARDS;
            self.evict_from(self.next_trim, hash)
        })
    }

    fn evict_from(&mut self, shard: usize, hash: u64) -> bool {
        let shard = &mut self.shards[shard];
        let len = shard.slots.len();
        if len == 0 {
            return false;
        }
        let start = shard.start(hash);
        for step in 0..len.min(64) {
            let at = (start + step) & (len - 1);
            if shard.slots[at].hash & AGE_MASK != 0 {
                let removed = shard.remove(at);
                self.forget(&removed);
                self.counts[AliasCounter::Evicted] += 1;
                return true;
            }
            if shard.slots[at].hash != 0 {
                shard.slots[at].hash += 1;
            }
        }
        false
    }

    fn forget(&mut self, removed: &Slot) {
        self.len -= 1;
        self.key_bytes -= removed.key.len();
    }

    /// Ages one shard: drops aliases of removed raw contexts and those without a hit for [`AGE_MAX`] rounds, and frees memory when the
    /// shard has become sparse. One call is a 64th of a round. `removals`: raw contexts removed so far; none since the last round leaves
    /// nothing to look up.
    pub fn sweep_next(&mut self, removals: u64, is_live: impl Fn(RawId) -> bool) {
        let before = std::mem::replace(&mut self.shards[self.next_sweep].removals, removals);
        self.sweep_shard(self.next_sweep, AGE_MAX, |raw| before == removals || is_live(raw));
        self.next_sweep = (self.next_sweep + 1) % SHARDS;
    }

    /// Drops the aliases of a shard that have reached `age` and ages the others.
    fn sweep_shard(&mut self, shard: usize, age: u64, is_live: impl Fn(RawId) -> bool) {
        let shard = &mut self.shards[shard];
        if shard.slots.is_empty() {
            return;
        }
        let mut removed_len = 0;
        let mut removed_bytes = 0;
        let mut at = 0;
        while at < shard.slots.len() {
            let slot = &mut shard.slots[at];
            if slot.hash == 0 {
                at += 1;
            } else if slot.hash & AGE_MASK >= age || !is_live(slot.raw) {
                // The removal may move another slot here, so this one is visited again.
                removed_bytes += shard.remove(at).key.len();
                removed_len += 1;
            } else {
                slot.hash += 1;
                at += 1;
            }
        }
        let before = shard.slots.len();
        shard.shrink();
        self.slot_count -= before - shard.slots.len();
        self.len -= removed_len;
        self.key_bytes -= removed_bytes;
        self.counts[AliasCounter::Evicted] += removed_len as u64;
        if self.len == 0 {
            self.doorkeeper = Box::default();
        }
    }
}

impl Shard {
    /// The first slot of a pair.
    #[inline]
    fn start(&self, hash: u64) -> usize {
        (hash >> 16) as usize & (self.slots.len() - 2)
    }

    #[inline(always)]
    fn find(&self, hash: u64, key: &AliasKey<'_>, level: Level) -> Option<usize> {
        if self.slots.is_empty() {
            return None;
        }
        let start = self.start(hash);
        match self.find_in_pair(hash, start) {
            Some(at) if equals(&self.slots[at].key, key, level) => Some(at),
            // An entry with this hash would be here.
            None if self.slots[start].hash == 0 || self.slots[start + 1].hash == 0 => None,
            _ => self.find_displaced(hash, key, level),
        }
    }

    /// The slot of the pair at `start` with this hash. Which of the two it is cannot be predicted, so no branch asks.
    #[inline(always)]
    fn find_in_pair(&self, hash: u64, start: usize) -> Option<usize> {
        let has_hash = |slot: &Slot| (slot.hash ^ hash) & !STATE_MASK == 0;
        let pair = self.slots.get(start..start + 2)?;
        let at = std::hint::select_unpredictable(has_hash(&pair[0]), 0, 1);
        has_hash(&pair[at]).then_some(start + at)
    }

    /// The general form of [`Shard::find`], slot by slot.
    #[inline(never)]
    fn find_displaced(&self, hash: u64, key: &AliasKey<'_>, level: Level) -> Option<usize> {
        let mask = self.slots.len() - 1;
        let mut at = self.start(hash);
        loop {
            let slot = &self.slots[at & mask];
            if slot.hash == 0 {
                return None;
            }
            if slot.hash & !STATE_MASK == hash & !STATE_MASK && equals(&slot.key, key, level) {
                return Some(at & mask);
            }
            at += 1;
        }
    }

    /// Inserts a slot whose key is not in the table.
    fn insert(&mut self, slot: Slot) {
        if (self.len + 1) * 2 > self.slots.len() {
            self.resize((self.slots.len() * 2).max(SLOTS_MIN));
        }
        self.place(slot);
        self.len += 1;
    }

    fn place(&mut self, slot: Slot) {
        let mask = self.slots.len() - 1;
        let mut at = self.start(slot.hash);
        while self.slots[at & mask].hash != 0 {
            at += 1;
        }
        self.slots[at & mask] = slot;
    }

    fn resize(&mut self, slots: usize) {
        let old = std::mem::replace(&mut self.slots, vec![Slot::default(); slots].into());
        for slot in old {
            if slot.hash != 0 {
                self.place(slot);
            }
        }
    }

    fn shrink(&mut self) {
        if self.len == 0 {
            self.slots = Box::default();
        } else if self.slots.len() > SLOTS_MIN && self.len * 8 < self.slots.len() {
            self.resize((self.len * 4).next_power_of_two().max(SLOTS_MIN));
        }
    }

    /// Removes a slot and moves displaced ones back, so that no probe meets a hole before its key.
    fn remove(&mut self, at: usize) -> Slot {
        let mask = self.slots.len() - 1;
        let removed = std::mem::take(&mut self.slots[at]);
        self.len -= 1;
        let mut hole = at;
        let mut next = (at + 1) & mask;
        while self.slots[next].hash != 0 {
            let home = self.start(self.slots[next].hash);
            // Move it unless its home lies between the hole and its position.
            if (next.wrapping_sub(home) & mask) >= (next.wrapping_sub(hole) & mask) {
                self.slots[hole] = std::mem::take(&mut self.slots[next]);
                hole = next;
            }
            next = (next + 1) & mask;
        }
        removed
    }
}

#[inline(always)]
fn equals(stored: &[u8], key: &AliasKey<'_>, level: Level) -> bool {
    let border = HEAD_BYTES + key.name.len();
    stored.len() == border + key.tail.len()
        && stored[..HEAD_BYTES] == key.head.to_le_bytes()
        && bytes_equal::<1>(&stored[HEAD_BYTES..border], key.name, level)
        && bytes_equal::<3>(&stored[border..], key.tail, level)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    #[derive(Clone, Debug)]
    enum Step {
        Offer(u8, u32),
        Get(u8),
        Sweep,
        Kill(u32),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            4 => (any::<u8>(), 0u32..50).prop_map(|(key, raw)| Step::Offer(key, raw)),
            4 => any::<u8>().prop_map(Step::Get),
            1 => Just(Step::Sweep),
            1 => (0u32..50).prop_map(Step::Kill),
        ];
        prop::collection::vec(step, 1..400)
    }

    proptest! {
        /// Whatever the hash, an alias returns what was stored for its key, or nothing. Hashes of few bits make probes long and comparisons
        /// necessary.
        #[test]
        fn never_returns_the_value_of_another_key(steps in steps(), hash_bits in 0u32..12) {
            let mut table = AliasTable::new(Level::detect());
            let mut stored: HashMap<u8, RawId> = HashMap::new();
            let mut generations: HashMap<u32, u32> = HashMap::new();
            let mut removals = 0;
            let hash = |key: u8| (u64::from(key).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20 & ((1 << hash_bits) - 1)) << 16;
            for step in steps {
                match step {
                    Step::Offer(key, slot) => {
                        let raw = RawId { slot, generation: *generations.get(&slot).unwrap_or(&0) };
                        let text = [key];
                        table.offer(hash(key), &AliasKey { head: 0, name: &text, tail: b"|#t" }, raw, true);
                        stored.insert(key, raw);
                    }
                    Step::Get(key) => {
                        let text = [key];
                        let got = table.get(hash(key), &AliasKey { head: 0, name: &text, tail: b"|#t" });
                        if let Some(got) = got {
                            prop_assert_eq!(Some(&got), stored.get(&key));
                        }
                        let other_kind = AliasKey { head: 1, name: &text, tail: b"|#t" };
                        prop_assert!(table.get(hash(key), &other_kind).is_none());
                    }
                    Step::Sweep => {
                        for _ in 0..SHARDS {
                            table.sweep_next(removals, |raw| generations.get(&raw.slot).copied().unwrap_or(0) == raw.generation);
                        }
                        let counted: usize = table.shards.iter().map(|shard| shard.len).sum();
                        prop_assert_eq!(counted, table.len());
                    }
                    Step::Kill(slot) => {
                        *generations.entry(slot).or_default() += 1;
                        removals += 1;
                    }
                }
            }
        }
    }

    #[test]
    fn boundaries_and_kinds_matter() {
        let mut table = AliasTable::new(Level::detect());
        let raw = |slot| RawId { slot, generation: 0 };
        table.offer(
            64,
            &AliasKey {
                head: 0,
                name: b"ab",
                tail: b"|#c",
            },
            raw(1),
            true,
        );
        assert!(
            table
                .get(
                    64,
                    &AliasKey {
                        head: 0,
                        name: b"ab|#",
                        tail: b"c"
                    }
                )
                .is_some()
        );
        assert!(
            table
                .get(
                    64,
                    &AliasKey {
                        head: 0,
                        name: b"a",
                        tail: b"|#c"
                    }
                )
                .is_none()
        );
        assert!(
            table
                .get(
                    64,
                    &AliasKey {
                        head: 3,
                        name: b"ab",
                        tail: b"|#c"
                    }
                )
                .is_none()
        );
        assert_eq!(
            table.get(
                64,
                &AliasKey {
                    head: 0,
                    name: b"ab",
                    tail: b"|#c"
                }
            ),
            Some(raw(1))
        );
    }

    #[test]
    #[cfg_attr(
        miri,
        ignore = "too many messages for Miri; the tests beside it run the same code"
    )]
    fn the_budget_holds_and_hot_entries_stay() {
        let mut table = AliasTable::new(Level::detect());
        table.set_bytes_max(64 * 1024);
        let secret = crate::HashSecret::from_random(1, 2);
        let text = |i: u32| format!("metric.{i}");
        for i in 0..10_000u32 {
            let name = text(i);
            let hash = secret.bytes(name.as_bytes());
            table.offer(
                hash,
                &AliasKey {
                    head: 0,
                    name: name.as_bytes(),
                    tail: b"",
                },
                RawId::default(),
                true,
            );
            assert!(
                table.heap_bytes() <= 64 * 1024 + 64 * SLOTS_MIN * size_of::<Slot>(),
                "{}",
                table.heap_bytes()
            );
            // The first ten are hot.
            for hot in 0..10 {
                let name = text(hot);
                let hash = secret.bytes(name.as_bytes());
                let key = AliasKey {
                    head: 0,
                    name: name.as_bytes(),
                    tail: b"",
                };
                assert!(i < hot || table.get(hash, &key).is_some(), "{hot} lost at {i}");
            }
            if i % 100 == 0 {
                for _ in 0..SHARDS {
                    table.sweep_next(0, |_| true);
                }
            }
        }
        assert!(table.counts[AliasCounter::Evicted] > 0);
    }

    /// Nine of ten messages never repeat and no sweep runs: repeating messages stay or are admitted, also when the limit shrinks.
    #[test]
    #[cfg_attr(
        miri,
        ignore = "too many messages for Miri; the tests beside it run the same code"
    )]
    fn a_flood_does_not_evict_repeated_keys() {
        let secret = crate::HashSecret::from_random(3, 4);
        let mut table = AliasTable::new(Level::detect());
        table.set_bytes_max(256 * 1024);
        let mut hits = 0;
        let look_up = |table: &mut AliasTable, number: u32| {
            let name = number.to_string();
            let key = AliasKey {
                head: 0,
                name: name.as_bytes(),
                tail: b"|#env:prod,role:web",
            };
            let hash = secret.bytes(name.as_bytes());
            let hit = table.get(hash, &key).is_some();
            if !hit {
                table.offer(hash, &key, RawId::default(), true);
            }
            hit
        };
        for round in 0..400 {
            if round == 200 {
                table.set_bytes_max(192 * 1024);
            }
            for hot in 0..100 {
                for once in 0..9 {
                    look_up(&mut table, 1_000_000 + round * 1000 + hot * 9 + once);
                }
                let hit = look_up(&mut table, hot);
                hits += u32::from(hit && round >= 10);
            }
        }
        assert!(hits >= 39_000 * 95 / 100, "{hits} of 39,000");
        assert!(table.heap_bytes() <= 192 * 1024 + SHARDS * SLOTS_MIN * size_of::<Slot>());
    }

    /// One of them takes the memory of hundreds of others: it is stored with its second sight, if there is room, and evicts nothing.
    #[test]
    fn long_keys_wait_for_their_second_sight_and_for_room() {
        let mut table = AliasTable::new(Level::detect());
        let tails = [SHORT_KEY_BYTES_MAX, 60_000, ALIAS_KEY_BYTES_MAX].map(|length| vec![b't'; length]);
        let [long, longer, too_long] = tails.each_ref().map(|tail| AliasKey {
            head: 0,
            name: b"name",
            tail,
        });
        let short = AliasKey { tail: b"", ..long };
        let sights = |table: &mut AliasTable, hash: u64, key: &AliasKey<'_>| {
            [(); 2].map(|()| {
                table.offer(hash << 41, key, RawId::default(), true);
                table.get(hash << 41, key).is_some()
            })
        };
        assert_eq!(sights(&mut table, 1, &short), [true, true]);
        assert_eq!(sights(&mut table, 2, &long), [false, true]);
        assert_eq!(sights(&mut table, 3, &longer), [false, true]);
        assert_eq!(sights(&mut table, 4, &too_long), [false, false]);

        let mut table = AliasTable::new(Level::detect());
        table.set_bytes_max(32 * 1024);
        assert_eq!(sights(&mut table, 1, &short), [true, true]);
        assert_eq!(sights(&mut table, 3, &longer), [false, false]);
        assert_eq!(table.counts[AliasCounter::Refused], 1);
        assert!(table.get(1 << 41, &short).is_some(), "a long key evicts nothing");
    }
}
