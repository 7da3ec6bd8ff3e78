use hashbrown::HashTable;
use weir_sketch::hll::HyperLogLog;
use weir_state::Members;

/// Members kept exactly in one context and bucket. With more, their number is estimated.
pub const SET_MEMBERS_MAX: usize = 4096;

/// Registers of the estimate: 2^14, a standard error of 0.8 % (1.04 / sqrt(16384)).
const ESTIMATE_PRECISION: u8 = 14;

/// Registers when memory is very short: 2^10, a standard error of 3.3 %.
const SQUEEZED_PRECISION: u8 = 10;

/// Up to this many members are searched linearly by hash, in two cache lines. Most sets are not larger, and a table would add two cache
/// misses.
const FEW: usize = 8;

/// Initial capacity for members, in bytes.
const TEXT_AT_FIRST: usize = 48;

/// A member: its hash and its position in the text.
#[derive(Clone, Copy, Debug)]
struct Member {
    hash: u64,
    start: u32,
    len: u32,
}

impl Member {
    #[inline(always)]
    fn of<'a>(&self, text: &'a [u8]) -> &'a [u8] {
        &text[self.start as usize..][..self.len as usize]
    }
}

/// The distinct members of a set in one bucket: exact up to [`SET_MEMBERS_MAX`], then a HyperLogLog.
#[derive(Clone, Debug, Default)]
pub struct MemberSet {
    /// The concatenated members.
    text: Vec<u8>,
    /// All members up to [`FEW`].
    few: Vec<Member>,
    /// All members once there are more than [`FEW`].
    many: HashTable<Member>,
    estimate: Option<Box<HyperLogLog>>,
}

/// Limits of an exact set.
#[derive(Clone, Copy, Debug)]
pub struct SetBound {
    pub members: usize,
    /// Bytes of the members.
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
        self.insert_within(member, SetBound::EXACT)
    }

    /// [`MemberSet::insert`] with other limits.
    pub fn insert_within(&mut self, member: &[u8], bound: SetBound) -> bool {
        let hash = weir_sketch::hll::hash(member);
        if let Some(estimate) = &mut self.estimate {
            estimate.insert_hash(hash);
            return false;
        }
        if self.holds(hash, member) {
            return false;
        }
        if self.len() >= bound.members || self.text.len() >= bound.text {
            self.start_estimating().insert_hash(hash);
            return true;
        }
        self.add(hash, member);
        false
    }

    #[inline(always)]
    fn holds(&self, hash: u64, member: &[u8]) -> bool {
        let is_it = |known: &Member| known.hash == hash && known.of(&self.text) == member;
        if self.many.is_empty() {
            self.few.iter().any(is_it)
        } else {
            self.many.find(hash, is_it).is_some()
        }
    }

    /// Adds a member that is not in the set.
    fn add(&mut self, hash: u64, member: &[u8]) {
        if self.text.capacity() == 0 {
            self.text.reserve(member.len().max(TEXT_AT_FIRST));
        }
        let start = self.text.len() as u32;
        let len = member.len() as u32;
        self.text.extend_from_slice(member);
        let added = Member { hash, start, len };
        if self.many.is_empty() && self.few.len() < FEW {
            self.few.push(added);
            return;
        }
        for member in std::mem::take(&mut self.few).into_iter().chain([added]) {
            self.many.insert_unique(member.hash, member, |member| member.hash);
        }
    }

    /// Members that are kept exactly.
    fn len(&self) -> usize {
        self.few.len() + self.many.len()
    }

    /// Address of the next member while there are few, for prefetching.
    #[inline]
    pub fn addresses(&self) -> [*const u8; 2] {
        [self.few.as_ptr().cast(), self.text.as_ptr()]
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
        self.kept().map(|member| member.of(&self.text))
    }

    fn kept(&self) -> impl Iterator<Item = &Member> {
        self.few.iter().chain(&self.many)
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
            for member in self.kept() {
                estimate.insert_hash(member.hash);
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
            + self.many.allocation_size()
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
        fn equals_a_hash_set(a in prop::collection::vec("[ab]{0,4}", 0..40), b in prop::collection::vec("[ab]{0,4}", 0..40)) {
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
        }
    }
}
