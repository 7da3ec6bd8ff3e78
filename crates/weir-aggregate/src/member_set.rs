use std::num::NonZero;

use weir_sketch::hll::HyperLogLog;
use weir_state::Members;

/// Members kept exactly in one context and bucket. With more, their number is estimated.
pub const SET_MEMBERS_MAX: usize = 4096;

/// Registers of the estimate: 2^14, a standard error of 0.8 % (1.04 / sqrt(16384)).
const ESTIMATE_PRECISION: u8 = 14;

/// Registers when memory is very short: 2^10, a standard error of 3.3 %.
const SQUEEZED_PRECISION: u8 = 10;

/// Up to this many members are searched linearly, in three cache lines. Most sets are not larger, and a table would take more memory.
const FEW: usize = 8;

/// Longest member that is kept inside [`Member`]: ids of users and hosts, mostly.
const INLINE_MAX: usize = 16;

/// A member: its length, its first bytes, and where a longer one is in the text of its set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Member {
    /// Plus one, so that an empty slot of a table takes no more memory.
    len: NonZero<u32>,
    start: u32,
    /// The first [`INLINE_MAX`] bytes, with zeros behind a shorter member. Not aligned for words, so that a member takes 24 bytes.
    head: [u8; INLINE_MAX],
}

impl Member {
    #[inline(always)]
    fn new(member: &[u8], start: u32) -> Self {
        let mut head = [0; INLINE_MAX];
        let inside = member.len().min(INLINE_MAX);
        head[..inside].copy_from_slice(&member[..inside]);
        Member {
            len: NonZero::<u32>::MIN.saturating_add(member.len() as u32),
            start,
            head,
        }
    }

    #[inline(always)]
    fn len(&self) -> usize {
        self.len.get() as usize - 1
    }

    #[inline(always)]
    fn is_inline(&self) -> bool {
        self.len() <= INLINE_MAX
    }

    #[inline(always)]
    fn of<'a>(&'a self, text: &'a [u8]) -> &'a [u8] {
        let len = self.len();
        match self.head.get(..len) {
            Some(member) => member,
            None => &text[self.start as usize..][..len],
        }
    }
}

/// More than [`FEW`] members, found by hash: open addressing with linear probing, at most three quarters full. The members are in the slots, so
/// that most look-ups read one place, which a prefetch can name.
#[derive(Clone, Debug, Default)]
struct MemberTable {
    /// A power of two.
    slots: Box<[Option<Member>]>,
    len: usize,
}

impl MemberTable {
    #[inline(always)]
    fn home(&self, hash: u64) -> usize {
        hash as usize & self.slots.len().wrapping_sub(1)
    }

    #[inline(always)]
    fn contains(&self, hash: u64, is_it: impl Fn(&Member) -> bool) -> bool {
        let mut at = self.home(hash);
        while let Some(Some(member)) = self.slots.get(at) {
            if is_it(member) {
                return true;
            }
            at = (at + 1) & (self.slots.len() - 1);
        }
        false
    }

    /// Inserts a member that is not in the table.
    fn insert(&mut self, hash: u64, member: Member, hash_of: impl Fn(&Member) -> u64) {
        if (self.len + 1) * 4 > self.slots.len() * 3 {
            let slots = (self.slots.len() * 2).max(2 * FEW);
            let old = std::mem::replace(&mut self.slots, vec![None; slots].into());
            for member in old.into_iter().flatten() {
                self.place(hash_of(&member), member);
            }
        }
        self.place(hash, member);
        self.len += 1;
    }

    fn place(&mut self, hash: u64, member: Member) {
        let mut at = self.home(hash);
        while self.slots[at].is_some() {
            at = (at + 1) & (self.slots.len() - 1);
        }
        self.slots[at] = Some(member);
    }

    fn iter(&self) -> impl Iterator<Item = &Member> {
        self.slots.iter().flatten()
    }

    fn heap_bytes(&self) -> usize {
        self.slots.len() * size_of::<Option<Member>>()
    }
}

/// The distinct members of a set in one bucket: exact up to [`SET_MEMBERS_MAX`], then a HyperLogLog.
#[derive(Clone, Debug, Default)]
pub struct MemberSet {
    /// Members longer than [`INLINE_MAX`], one behind the other.
    text: Vec<u8>,
    /// All members up to [`FEW`].
    few: Vec<Member>,
    /// All members once there are more than [`FEW`].
    many: MemberTable,
    estimate: Option<Box<HyperLogLog>>,
}

/// Limits of an exact set.
#[derive(Clone, Copy, Debug)]
pub struct SetBound {
    pub members: usize,
    /// Bytes of the members that are kept in the text.
    pub text: usize,
}

impl SetBound {
    pub const EXACT: SetBound = SetBound {
        members: SET_MEMBERS_MAX,
        text: usize::MAX,
    };
}

impl MemberSet {
    /// Adds a member. Returns true if this one ended the exactness.
    pub fn insert(&mut self, member: &[u8]) -> bool {
        self.insert_hashed(Self::hash(member), member, SetBound::EXACT)
    }

    pub fn hash(member: &[u8]) -> u64 {
        weir_sketch::hll::hash(member)
    }

    /// [`MemberSet::insert`] with a known hash and other limits.
    pub fn insert_hashed(&mut self, hash: u64, member: &[u8], bound: SetBound) -> bool {
        if let Some(estimate) = &mut self.estimate {
            estimate.insert_hash(hash);
            return false;
        }
        let new = Member::new(member, self.text.len() as u32);
        if self.holds(hash, &new, member) {
            return false;
        }
        if self.len() >= bound.members || self.text.len() >= bound.text {
            self.start_estimating().insert_hash(hash);
            return true;
        }
        self.add(hash, new, member);
        false
    }

    #[inline(always)]
    fn holds(&self, hash: u64, new: &Member, member: &[u8]) -> bool {
        let is_it = |known: &Member| {
            known.len == new.len
                && known.head == new.head
                && (new.is_inline() || known.of(&self.text) == member)
        };
        if self.many.len == 0 {
            self.few.iter().any(is_it)
        } else {
            self.many.contains(hash, is_it)
        }
    }

    /// Adds a member that is not in the set.
    fn add(&mut self, hash: u64, new: Member, member: &[u8]) {
        if !new.is_inline() {
            self.text.extend_from_slice(member);
        }
        if self.many.len == 0 && self.few.len() < FEW {
            self.few.push(new);
            return;
        }
        let text = &self.text;
        let hash_of = |member: &Member| Self::hash(member.of(text));
        for few in std::mem::take(&mut self.few) {
            self.many.insert(hash_of(&few), few, hash_of);
        }
        self.many.insert(hash, new, hash_of);
    }

    /// Members that are kept exactly.
    fn len(&self) -> usize {
        self.few.len() + self.many.len
    }

    /// Address of the members while there are few, or of the slot for this hash, for prefetching.
    #[inline]
    pub fn address(&self, hash: u64) -> *const u8 {
        match self.many.slots.get(self.many.home(hash)) {
            Some(slot) => std::ptr::from_ref(slot).cast(),
            None => self.few.as_ptr().cast(),
        }
    }

    /// Number of distinct members, rounded if it is estimated.
    pub fn cardinality(&self) -> u64 {
        match &self.estimate {
            Some(estimate) => estimate.estimate().round() as u64,
            None => self.len() as u64,
        }
    }

    pub fn is_exact(&self) -> bool {
        self.estimate.is_none()
    }

    /// The members while the set is exact, in any order.
    pub fn members(&self) -> impl Iterator<Item = &[u8]> {
        let kept = self.few.iter().chain(self.many.iter());
        kept.map(|member| member.of(&self.text))
    }

    /// In the form of records.
    pub(crate) fn saved(&self) -> Members {
        match &self.estimate {
            Some(estimate) => Members::Estimate((**estimate).clone()),
            None => Members::exact(self.members()),
        }
    }

    /// From the form of records.
    pub(crate) fn restored(members: Members) -> Self {
        let mut set = MemberSet::default();
        match members {
            Members::Exact(members) => members.iter().for_each(|member| {
                set.insert(member);
            }),
            Members::Estimate(estimate) => set.estimate = Some(Box::new(estimate)),
        }
        set
    }

    pub fn merge(&mut self, other: MemberSet) {
        if let Some(theirs) = &other.estimate {
            let mut theirs = theirs.clone();
            let mine = self.start_estimating();
            mine.reduce(theirs.precision());
            theirs.reduce(mine.precision());
            mine.merge(&theirs).expect("both have the lower precision");
            return;
        }
        for member in other.members() {
            self.insert(member);
        }
    }

    /// Reduces memory: becomes an estimate with few registers. Returns true if it was exact.
    pub fn squeeze(&mut self) -> bool {
        let was_exact = self.is_exact();
        self.start_estimating().reduce(SQUEEZED_PRECISION);
        was_exact
    }

    fn start_estimating(&mut self) -> &mut HyperLogLog {
        if self.estimate.is_none() {
            let mut estimate = HyperLogLog::new(ESTIMATE_PRECISION);
            for member in self.members() {
                estimate.insert(member);
            }
            *self = MemberSet {
                estimate: Some(Box::new(estimate)),
                ..MemberSet::default()
            };
        }
        self.estimate.as_mut().expect("set above")
    }

    pub fn heap_bytes(&self) -> usize {
        self.text.capacity()
            + self.few.capacity() * size_of::<Member>()
            + self.many.heap_bytes()
            + self
                .estimate
                .as_ref()
                .map_or(0, |estimate| size_of::<HyperLogLog>() + estimate.heap_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    #[test]
    fn estimates_beyond_its_bound() {
        let mut set = MemberSet::default();
        let mut turned = 0;
        for i in 0..20_000u32 {
            turned += u32::from(set.insert(&i.to_le_bytes()));
        }
        assert_eq!(turned, 1);
        assert!(!set.is_exact());
        let error = set.cardinality() as f64 / 20_000.0 - 1.0;
        assert!(error.abs() < 0.04, "{error}");
    }

    #[test]
    fn squeezed_sets_merge_with_others() {
        let of = |members: std::ops::Range<u32>| {
            let mut set = MemberSet::default();
            members.for_each(|member| {
                set.insert(&member.to_le_bytes());
            });
            set
        };
        for (mut squeezed, turned) in [(of(0..3000), true), (of(0..20_000), false)] {
            let members = squeezed.cardinality();
            assert_eq!(squeezed.squeeze(), turned);
            assert!(squeezed.heap_bytes() < 1100, "{}", squeezed.heap_bytes());
            let error = squeezed.cardinality() as f64 / members as f64 - 1.0;
            assert!(error.abs() < 0.15, "{error}");
            let mut large = of(0..20_000);
            large.merge(squeezed);
            let error = large.cardinality() as f64 / 20_000.0 - 1.0;
            assert!(error.abs() < 0.15, "{error}");
        }
    }

    proptest! {
        #[test]
        fn equals_a_hash_set(a in prop::collection::vec("[ab]{0,4}|(ab){3,10}a?", 0..40), b in prop::collection::vec("[ab]{0,4}|(ab){3,10}b?", 0..40)) {
            let build = |members: &[String]| {
                let mut set = MemberSet::default();
                for member in members {
                    set.insert(member.as_bytes());
                }
                set
            };
            let mut merged = build(&a);
            merged.merge(build(&b));
            let expected: HashSet<&String> = a.iter().chain(&b).collect();
            prop_assert_eq!(merged.cardinality(), expected.len() as u64);
            let found: HashSet<&[u8]> = merged.members().collect();
            prop_assert_eq!(found, expected.iter().map(|member| member.as_bytes()).collect());
        }
    }
}
