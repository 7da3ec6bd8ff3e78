use std::collections::BTreeSet;

use weir_sketch::hll::HyperLogLog;

use crate::wire::{Reader, Writer};
use crate::{Bounds, Error};

/// Registers of an estimate: 2^14. An agent that is short of memory has fewer, and so has a merge with its state.
const PRECISION: u8 = 14;

/// The least that an estimate has: 2^4.
const PRECISION_MIN: u8 = 4;

/// Encoding of members: all of them, an estimate of [`PRECISION`], or one of a lower precision, which follows.
const EXACT: u8 = 0;
const ESTIMATE: u8 = 1;
const COARSE: u8 = 2;

/// The distinct members of a set: all of them, or an estimate of their number once they are too many.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Members {
    Exact(Distinct),
    Estimate(HyperLogLog),
}

const WHAT: &str = "a set";

/// Members in their order, and how long they are together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Distinct {
    members: BTreeSet<Box<[u8]>>,
    bytes: usize,
}

impl Distinct {
    /// The length of all members together.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    fn insert(&mut self, member: &[u8]) {
        if !self.members.contains(member) {
            self.bytes += member.len();
            self.members.insert(member.into());
        }
    }
}

impl std::ops::Deref for Distinct {
    type Target = BTreeSet<Box<[u8]>>;

    fn deref(&self) -> &BTreeSet<Box<[u8]>> {
        &self.members
    }
}

impl Default for Members {
    fn default() -> Self {
        Members::Exact(Distinct::default())
    }
}

impl Members {
    pub fn exact<'a>(members: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let mut distinct = Distinct::default();
        members.into_iter().for_each(|member| distinct.insert(member));
        Members::Exact(distinct)
    }

    /// Number of distinct members, rounded where it is estimated.
    pub fn cardinality(&self) -> u64 {
        match self {
            Members::Exact(members) => members.len() as u64,
            Members::Estimate(estimate) => estimate.estimate().round() as u64,
        }
    }

    pub fn merge(&mut self, other: &Members, bounds: &Bounds) {
        match (&mut *self, other) {
            (Members::Exact(mine), Members::Exact(theirs)) => {
                theirs.iter().for_each(|member| mine.insert(member));
                self.keep_within(bounds);
            }
            (Members::Exact(mine), Members::Estimate(theirs)) => {
                let mut estimate = theirs.clone();
                mine.iter().for_each(|member| estimate.insert(member));
                *self = Members::Estimate(estimate);
            }
            (Members::Estimate(mine), Members::Exact(theirs)) => {
                theirs.iter().for_each(|member| mine.insert(member));
            }
            (Members::Estimate(mine), Members::Estimate(theirs)) => {
                mine.reduce(theirs.precision());
                if mine.merge(theirs).is_err() {
                    let mut theirs = theirs.clone();
                    theirs.reduce(mine.precision());
                    mine.merge(&theirs).expect("both have the lower precision");
                }
            }
        }
    }

    /// Too many members become an estimate.
    pub(crate) fn keep_within(&mut self, bounds: &Bounds) {
        if let Members::Exact(members) = self
            && (members.len() > bounds.members || members.bytes > bounds.member_bytes)
        {
            let mut estimate = HyperLogLog::new(PRECISION);
            members.iter().for_each(|member| estimate.insert(member));
            *self = Members::Estimate(estimate);
        }
    }

    pub(crate) fn heap_bytes(&self) -> usize {
        /// A member's place in the tree and what its allocation takes beside its text.
        const MEMBER_BYTES: usize = 56;
        match self {
            Members::Exact(members) => members.len() * MEMBER_BYTES + members.bytes,
            Members::Estimate(estimate) => estimate.registers().len(),
        }
    }

    pub(crate) fn write(&self, writer: &mut Writer) {
        match self {
            Members::Exact(members) => {
                writer.byte(EXACT);
                writer.number(members.len() as u64);
                members.iter().for_each(|member| writer.block(member));
            }
            Members::Estimate(estimate) => {
                match estimate.precision() {
                    PRECISION => writer.byte(ESTIMATE),
                    lower => writer.raw(&[COARSE, lower]),
                }
                writer.raw(estimate.registers());
            }
        }
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Self, Error> {
        match reader.byte()? {
            EXACT => {
                let mut members = Distinct::default();
                for _ in 0..reader.count(1)? {
                    let member = reader.block()?;
                    if members.last().is_some_and(|last| **last >= *member) {
                        return Err(Error::NotCanonical(WHAT));
                    }
                    members.insert(member);
                }
                Ok(Members::Exact(members))
            }
            ESTIMATE => read_estimate(PRECISION, reader),
            COARSE => match reader.byte()? {
                precision @ PRECISION_MIN..PRECISION => read_estimate(precision, reader),
                _ => Err(Error::NotCanonical(WHAT)),
            },
            _ => Err(Error::NotCanonical(WHAT)),
        }
    }
}

fn read_estimate(precision: u8, reader: &mut Reader<'_>) -> Result<Members, Error> {
    let registers = reader.raw(1 << precision)?;
    let estimate = HyperLogLog::from_registers(registers.into()).map_err(|_| Error::OutOfRange(WHAT))?;
    Ok(Members::Estimate(estimate))
}
