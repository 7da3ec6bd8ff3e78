use weir_sketch::{BINS_MAX, Bin, KEY_MAX};

use crate::Error;
use crate::unite::unite;
use crate::wire::{Reader, Writer};

/// Upper limit of counts: far above any real one, and its sums stay within 128 bits.
const COUNT_MAX: u128 = 1 << 96;

/// Number of samples in each bin of the agent's sketch, by ascending key. Beyond [`BINS_MAX`] keys the lowest are added to
/// the lowest that stays, as the sketch does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bins(Vec<(i16, u128)>);

impl Bins {
    /// Bins in any order; counts of equal keys are added up.
    pub fn new(bins: impl IntoIterator<Item = (i16, u128)>) -> Self {
        let mut all: Vec<(i16, u128)> = bins.into_iter().filter(|(_, count)| *count > 0).collect();
        all.sort_by_key(|(key, _)| *key);
        let mut added: Vec<(i16, u128)> = Vec::with_capacity(all.len());
        for (key, count) in all {
            match added.last_mut() {
                Some((last, sum)) if *last == key => *sum = add(*sum, count),
                _ => added.push((key, count.min(COUNT_MAX))),
            }
        }
        collapse(&mut added);
        Bins(added)
    }

    pub fn of(bins: &[Bin], scale: u32) -> Self {
        Bins::new(bins.iter().map(|bin| (bin.k, u128::from(bin.n) << scale)))
    }

    pub fn iter(&self) -> impl ExactSizeIterator<Item = (i16, u128)> {
        self.0.iter().copied()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Samples in all bins.
    pub fn count(&self) -> u128 {
        self.0
            .iter()
            .fold(0, |sum, (_, count)| sum.saturating_add(*count))
    }

    pub fn merge(&mut self, other: &Bins) {
        let order = |one: &(i16, u128), other: &(i16, u128)| one.0.cmp(&other.0);
        unite(&mut self.0, &other.0, order, |mine, theirs| {
            mine.1 = add(mine.1, theirs.1);
        });
        collapse(&mut self.0);
    }

    pub(crate) fn heap_bytes(&self) -> usize {
        self.0.capacity() * size_of::<(i16, u128)>()
    }

    pub(crate) fn write(&self, writer: &mut Writer) {
        writer.number(self.0.len() as u64);
        let mut before = 0;
        for &(key, count) in &self.0 {
            writer.signed(i64::from(key) - before);
            writer.wide(count);
            before = i64::from(key);
        }
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Self, Error> {
        const WHAT: &str = "the bins of a sketch";
        let len = reader.count(2)?;
        if len > BINS_MAX {
            return Err(Error::OutOfRange(WHAT));
        }
        let mut bins: Vec<(i16, u128)> = Vec::with_capacity(len);
        let mut before = 0i64;
        for at in 0..len {
            let key = before
                .checked_add(reader.signed()?)
                .ok_or(Error::OutOfRange(WHAT))?;
            if key.abs() > i64::from(KEY_MAX) {
                return Err(Error::OutOfRange(WHAT));
            }
            let count = reader.wide()?;
            if count > COUNT_MAX {
                return Err(Error::OutOfRange(WHAT));
            }
            if count == 0 || (at > 0 && key <= before) {
                return Err(Error::NotCanonical(WHAT));
            }
            bins.push((key as i16, count));
            before = key;
        }
        Ok(Bins(bins))
    }
}

fn add(one: u128, other: u128) -> u128 {
    one.saturating_add(other).min(COUNT_MAX)
}

fn collapse(bins: &mut Vec<(i16, u128)>) {
    let excess = bins.len().saturating_sub(BINS_MAX);
    if excess == 0 {
        return;
    }
    let removed = bins.drain(..excess).fold(0, |sum, (_, count)| add(sum, count));
    if let Some((_, lowest)) = bins.first_mut() {
        *lowest = add(*lowest, removed);
    }
}
