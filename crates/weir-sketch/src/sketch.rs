//! The agent DDSketch.
//!
//! A sketch sees very different lives: most contexts collect a handful of samples per bucket, a few collect
//! millions. Keys therefore wait unsorted in a small buffer that grows with use. A full buffer is sorted into the bins; or,
//! once a sketch proves busy, counted in a dense window, where all its keys at once find the memory that each would have to fetch on
//! its own. Which way a key took is invisible: [`Sketch::bins`] is the same.

use crate::key::{GAMMA, Tables, key, lower};
use std::borrow::Cow;

/// Most distinct keys of one sketch; beyond it the lowest keys are folded into the lowest surviving one.
pub const BINS_MAX: usize = 4096;
/// Most keys that wait unsorted.
const PENDING_MAX: usize = 128;
/// A sketch with fewer samples than this stays without a window, which would be larger than its bins.
const WINDOW_COUNT_MIN: u64 = 128;
/// Widest window in keys (1 KiB of counters for each sign); it spans a factor of 8 million between smallest and largest value.
const WINDOW_MAX: i32 = 1024;

/// `n` samples under key `k`. Counts beyond u32 appear as several bins with the same key: the rest first, then full ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bin {
    pub k: i16,
    pub n: u32,
}

/// Counters of the keys `base..base + width`, and behind them, if there are any, of the same keys with a negative sign.
#[derive(Clone, Debug)]
struct Window {
    base: i32,
    width: i32,
    /// Narrow, because each fold touches most of them: what they cannot hold moves to the bins.
    counts: Vec<u8>,
    used: bool,
}

/// Count, sum, minimum, maximum and logarithmic bins of samples.
// The fields that every sample touches come first and fit in one cache line.
#[derive(Clone, Debug)]
#[repr(C)]
pub struct Sketch {
    cnt: u64,
    sum: f64,
    min: f64,
    max: f64,
    pending: Vec<i16>,
    bins: Vec<Bin>,
    window: Option<Window>,
}

impl Default for Sketch {
    fn default() -> Self {
        Self::new()
    }
}

/// Equal when count, minimum, maximum, sum and bins are.
impl PartialEq for Sketch {
    fn eq(&self, other: &Self) -> bool {
        self.cnt == other.cnt
            && (self.cnt == 0 || (self.min == other.min && self.max == other.max && self.sum == other.sum))
            && self.bins() == other.bins()
    }
}

impl Sketch {
    /// An empty sketch; allocates nothing.
    pub const fn new() -> Self {
        Self {
            cnt: 0,
            sum: 0.0,
            min: f64::INFINITY,
            max: f64::NEG_INFINITY,
            bins: Vec::new(),
            pending: Vec::new(),
            window: None,
        }
    }

    /// Rebuilds a sketch from what [`Sketch::bins`] and the accessors gave. `None` unless keys ascend, no bin is
    /// empty, the bins add up to `cnt` and the three values are finite.
    pub fn from_parts(cnt: u64, sum: f64, min: f64, max: f64, bins: Vec<Bin>) -> Option<Self> {
        let ascending = bins.windows(2).all(|w| w[0].k <= w[1].k);
        let total: u64 = bins.iter().map(|b| u64::from(b.n)).sum();
        let finite = cnt == 0 || (min.is_finite() && max.is_finite() && min <= max && !sum.is_nan());
        if !ascending || total != cnt || bins.iter().any(|b| b.n == 0) || !finite {
            return None;
        }
        if cnt == 0 {
            return Some(Self::new());
        }
        Some(Self {
            cnt,
            sum,
            min,
            max,
            bins,
            pending: Vec::new(),
            window: None,
        })
    }

    /// Adds `v` with multiplicity `n`. Zero multiplicity and values that are not finite change nothing.
    #[inline]
    pub fn insert(&mut self, v: f64, n: u64) {
        if n == 1 {
            return self.insert_one(v);
        }
        self.insert_many(v, n);
    }

    /// Adds `v` once.
    #[inline]
    pub fn insert_one(&mut self, v: f64) {
        let Some(key) = Tables::get().key_if_finite(v) else {
            return;
        };
        self.cnt += 1;
        self.sum += v;
        self.observe_extremes(v, v);
        if self.pending.len() == PENDING_MAX {
            self.fold_pending();
        }
        self.pending.push(key);
    }

    /// Address of the next sample's key, for a prefetch.
    #[inline]
    pub fn next_key(&self) -> *const u8 {
        self.pending.as_ptr().wrapping_add(self.pending.len()).cast()
    }

    /// Adds each of `values` once. Values that are not finite change nothing.
    ///
    /// The fields that all values touch stay in registers: each addition to memory would wait for the previous one.
    #[inline]
    pub fn insert_each(&mut self, values: &[f64]) {
        let tables = Tables::get();
        for values in values.chunks(PENDING_MAX) {
            if self.pending.len() + values.len() > PENDING_MAX {
                self.fold_pending();
            }
            self.pending.reserve(values.len());
            let waiting = self.pending.len();
            let (mut sum, mut min, mut max) = (self.sum, self.min, self.max);
            let keys = values.iter().filter_map(|&value| {
                let key = tables.key_if_finite(value)?;
                sum += value;
                min = if value < min { value } else { min };
                max = if value > max { value } else { max };
                Some(key)
            });
            self.pending.extend(keys);
            self.cnt += (self.pending.len() - waiting) as u64;
            (self.sum, self.min, self.max) = (sum, min, max);
        }
    }

    fn insert_many(&mut self, v: f64, n: u64) {
        if n == 0 || !v.is_finite() {
            return;
        }
        self.cnt = self.cnt.saturating_add(n);
        self.sum += v * n as f64;
        self.observe_extremes(v, v);
        let k = key(v);
        if n <= 4 {
            if self.pending.len() + n as usize > PENDING_MAX {
                self.fold_pending();
            }
            self.pending.extend(std::iter::repeat_n(k, n as usize));
            return;
        }
        if let Some(window) = &mut self.window
            && let Ok(n) = u8::try_from(n)
            && let Some(count) = window.counter(k)
        {
            add_to(count, k, n, &mut self.bins);
            window.used = true;
            return;
        }
        match u32::try_from(n) {
            Ok(n) => add_sorted(&mut self.bins, std::iter::once(Bin { k, n })),
            Err(_) => add_wide(&mut self.bins, std::iter::once((k, n))),
        }
    }

    #[inline]
    fn observe_extremes(&mut self, min: f64, max: f64) {
        if min < self.min {
            self.min = min;
        }
        if max > self.max {
            self.max = max;
        }
    }

    /// Counts the waiting keys in the window and sorts the others into the bins. A sketch that got busy gets its window here.
    #[inline(never)]
    fn fold_pending(&mut self) {
        if let Some(window) = &mut self.window {
            window.take(&mut self.pending, &mut self.bins);
            if self.pending.is_empty() {
                return;
            }
        }
        self.pending.sort_unstable();
        add_sorted(&mut self.bins, Runs(&self.pending));
        self.pending.clear();
        if self.cnt >= WINDOW_COUNT_MIN {
            self.fit_window();
        }
    }

    /// Opens the window over the keys seen so far, or widens it as far as it may grow, and moves the bins it covers into it. It opens only if it
    /// covers all, since a single far value could keep it away from the others in all later buckets. Zero lies far from every other key.
    fn fit_window(&mut self) {
        let mut covered = self.window.as_ref().map(|w| (w.base, w.base + w.width - 1));
        for bin in self.bins.iter().rev().filter(|bin| bin.k != 0) {
            let size = i32::from(bin.k).abs();
            let (first, last) = covered.unwrap_or((size, size));
            let (first, last) = (first.min(size), last.max(size));
            if last - first < WINDOW_MAX {
                covered = Some((first, last));
            } else if self.window.is_none() {
                return;
            }
        }
        let Some((first, last)) = covered else { return };
        let window = self.window.get_or_insert_with(|| Window::new(first));
        let negative = self.bins.first().is_some_and(|bin| bin.k < 0);
        window.widen(first, last - first + 1, negative);
        self.bins.retain(|bin| {
            let Some(count) = window.counter(bin.k) else {
                return true;
            };
            let Some(sum) = u8::try_from(bin.n).ok().and_then(|n| count.checked_add(n)) else {
                return true;
            };
            *count = sum;
            window.used = true;
            false
        });
    }

    /// Brings everything into the sorted bins, so that reading is free. Reading works without it, through a copy.
    pub fn seal(&mut self) {
        if let Some(window) = &mut self.window {
            window.take(&mut self.pending, &mut self.bins);
        }
        if !self.pending.is_empty() {
            self.pending.sort_unstable();
            add_sorted(&mut self.bins, Runs(&self.pending));
            self.pending.clear();
        }
        if let Some(window) = self.window.as_mut().filter(|window| window.used) {
            window.add_to_sorted(&mut self.bins);
            window.clear();
        }
    }

    /// Adds what `other` holds. Bins, count, minimum and maximum do not depend on the order of merges; the sum does
    /// only by rounding.
    pub fn merge(&mut self, other: &Sketch) {
        if other.cnt == 0 {
            return;
        }
        self.seal();
        self.cnt = self.cnt.saturating_add(other.cnt);
        self.sum += other.sum;
        self.observe_extremes(other.min, other.max);
        add_sorted(&mut self.bins, other.bins().iter().copied());
    }

    /// [`Sketch::merge`] with the parts of a sketch: ascending bins that add up to `cnt`, none of them empty.
    pub fn merge_parts(&mut self, cnt: u64, (sum, min, max): (f64, f64, f64), bins: &[Bin]) {
        if cnt == 0 {
            return;
        }
        self.seal();
        self.cnt = self.cnt.saturating_add(cnt);
        self.sum += sum;
        self.observe_extremes(min, max);
        add_sorted(&mut self.bins, bins.iter().copied());
    }

    /// Forgets the samples and keeps the memory for the next bucket.
    pub fn clear(&mut self) {
        self.cnt = 0;
        self.sum = 0.0;
        self.min = f64::INFINITY;
        self.max = f64::NEG_INFINITY;
        self.bins.clear();
        self.pending.clear();
        if let Some(window) = self.window.as_mut().filter(|window| window.used) {
            window.clear();
        }
    }

    /// Forgets the samples and gives the memory back.
    pub fn release(&mut self) {
        *self = Self::new();
    }

    /// Frees memory that the current bins do not need, for a sketch about to be handed over.
    pub fn shrink(&mut self) {
        self.seal();
        self.window = None;
        self.pending = Vec::new();
        self.bins.shrink_to_fit();
    }

    /// Reduces resolution: joins keys in groups of two, four and so on until at most `bins_max` remain. Count, sum, minimum and maximum
    /// stay exact. Later samples have full resolution.
    pub fn coarsen(&mut self, bins_max: usize) {
        self.seal();
        self.window = None;
        self.pending = Vec::new();
        for bits in 1..i16::BITS - 1 {
            if self.bins.len() <= bins_max {
                break;
            }
            let all = std::mem::take(&mut self.bins);
            let grouped = all.into_iter().map(|bin| (middle(bin.k, bits), u64::from(bin.n)));
            rebuild(&mut self.bins, grouped);
        }
        self.bins.shrink_to_fit();
    }

    /// Bytes on the heap, by capacity.
    pub fn heap_bytes(&self) -> usize {
        let window = self.window.as_ref().map_or(0, |window| window.counts.capacity());
        self.bins.capacity() * size_of::<Bin>() + self.pending.capacity() * size_of::<i16>() + window
    }

    pub fn is_empty(&self) -> bool {
        self.cnt == 0
    }

    /// Samples, multiplicities included; the sum of all bins.
    pub fn cnt(&self) -> u64 {
        self.cnt
    }

    pub fn sum(&self) -> f64 {
        self.sum
    }

    /// Smallest sample; 0 when empty.
    pub fn min(&self) -> f64 {
        if self.cnt == 0 { 0.0 } else { self.min }
    }

    /// Largest sample; 0 when empty.
    pub fn max(&self) -> f64 {
        if self.cnt == 0 { 0.0 } else { self.max }
    }

    /// Mean of the samples; 0 when empty. Stays between minimum and maximum even where the sum overflowed.
    pub fn avg(&self) -> f64 {
        if self.cnt == 0 {
            0.0
        } else {
            (self.sum / self.cnt as f64).clamp(self.min, self.max)
        }
    }

    /// Bins by ascending key. Borrowed from a sealed sketch, computed otherwise.
    pub fn bins(&self) -> Cow<'_, [Bin]> {
        let window = self.window.as_ref().filter(|window| window.used);
        if self.pending.is_empty() && window.is_none() {
            return Cow::Borrowed(&self.bins);
        }
        let mut bins = self.bins.clone();
        let mut pending = self.pending.clone();
        pending.sort_unstable();
        add_sorted(&mut bins, Runs(&pending));
        if let Some(window) = window {
            window.add_to_sorted(&mut bins);
        }
        Cow::Owned(bins)
    }

    /// The value at rank `q * (cnt - 1)`, interpolated inside its bin as the agent does; 0 when empty.
    pub fn quantile(&self, q: f64) -> f64 {
        if self.cnt == 0 {
            return 0.0;
        }
        if q <= 0.0 {
            return self.min;
        }
        if q >= 1.0 {
            return self.max;
        }
        let rank = (q * (self.cnt - 1) as f64).round_ties_even();
        let mut seen = 0.0;
        for (i, bin) in self.bins().iter().enumerate() {
            seen += f64::from(bin.n);
            if seen <= rank {
                continue;
            }
            let weight = (seen - rank) / f64::from(bin.n);
            let bound = lower(bin.k);
            let high = bound * GAMMA;
            let low = if i == 0 { self.min } else { bound };
            return (low * weight + high * (1.0 - weight)).clamp(self.min, self.max);
        }
        self.max
    }
}

impl Window {
    fn new(base: i32) -> Self {
        Self {
            base,
            width: 0,
            counts: Vec::new(),
            used: false,
        }
    }

    /// `None` for keys outside.
    #[inline(always)]
    fn counter(&mut self, k: i16) -> Option<&mut u8> {
        let slot = i32::from(k).abs().wrapping_sub(self.base) as u32;
        if slot >= self.width as u32 {
            return None;
        }
        // Without a branch: signs may come in any order.
        let sign = if k < 0 { self.width as u32 } else { 0 };
        self.counts.get_mut((slot + sign) as usize)
    }

    /// [`Window::counter`] where no key has a negative sign.
    #[inline(always)]
    fn positive_counter(&mut self, k: i16) -> Option<&mut u8> {
        self.counts.get_mut(i32::from(k).wrapping_sub(self.base) as usize)
    }

    /// Counts the keys that lie in the window and leaves the others.
    fn take(&mut self, keys: &mut Vec<i16>, bins: &mut Vec<Bin>) {
        let left = if self.counts.len() > self.width as usize {
            self.count_each(keys, bins, Self::counter)
        } else {
            self.count_each(keys, bins, Self::positive_counter)
        };
        self.used |= left < keys.len();
        keys.truncate(left);
    }

    /// The number of keys without a counter, which come first then.
    #[inline(always)]
    fn count_each(
        &mut self,
        keys: &mut [i16],
        bins: &mut Vec<Bin>,
        counter: impl Fn(&mut Self, i16) -> Option<&mut u8>,
    ) -> usize {
        let mut left = 0;
        for at in 0..keys.len() {
            let key = keys[at];
            match counter(self, key) {
                Some(count) => add_to(count, key, 1, bins),
                None => {
                    keys[left] = key;
                    left += 1;
                }
            }
        }
        left
    }

    /// Covers at least what it covered.
    fn widen(&mut self, base: i32, width: i32, negative: bool) {
        let signs = 1 + usize::from(negative || self.counts.len() > self.width as usize);
        let counters = width as usize * signs;
        if counters == self.counts.len() {
            return;
        }
        let counts = vec![0; counters];
        let (old, shift) = (
            std::mem::replace(&mut self.counts, counts),
            (self.base - base) as usize,
        );
        if !old.is_empty() {
            let both = old
                .chunks(self.width as usize)
                .zip(self.counts.chunks_mut(width as usize));
            both.for_each(|(old, new)| new[shift..][..old.len()].copy_from_slice(old));
        }
        (self.base, self.width) = (base, width);
    }

    fn clear(&mut self) {
        self.counts.fill(0);
        self.used = false;
    }

    fn add_to_sorted(&self, bins: &mut Vec<Bin>) {
        let (positive, negative) = self.counts.split_at(self.width as usize);
        let key = |slot: usize| self.base + slot as i32;
        let below = negative.iter().enumerate().rev();
        let below = counted(below.map(|(slot, n)| (-key(slot), n)));
        let above = positive.iter().enumerate();
        let above = counted(above.map(|(slot, n)| (key(slot), n)));
        // Most sketches with a window have nothing else.
        if bins.is_empty() {
            bins.reserve(self.counts.iter().filter(|n| **n != 0).count());
            bins.extend(below);
            return bins.extend(above);
        }
        if !negative.is_empty() {
            add_sorted(bins, below);
        }
        add_sorted(bins, above);
    }
}

/// The bins of keys and their counters.
fn counted<'a>(
    counters: impl DoubleEndedIterator<Item = (i32, &'a u8)> + Clone,
) -> impl DoubleEndedIterator<Item = Bin> + Clone {
    let used = counters.filter(|(_, n)| **n != 0);
    used.map(|(k, n)| Bin {
        k: k as i16,
        n: u32::from(*n),
    })
}

/// Adds to the counter of a key; a sum that it cannot hold moves to the bins.
#[inline(always)]
fn add_to(count: &mut u8, k: i16, n: u8, bins: &mut Vec<Bin>) {
    match count.checked_add(n) {
        Some(sum) => *count = sum,
        None => {
            let n = u32::from(*count) + u32::from(n);
            add_sorted(bins, std::iter::once(Bin { k, n }));
            *count = 0;
        }
    }
}

/// The key in the middle of the group of `2^bits` keys that contains this one. Keeps order and sign; zero is a separate group.
fn middle(k: i16, bits: u32) -> i16 {
    let size = k.unsigned_abs();
    if size == 0 {
        return 0;
    }
    k.signum() * ((size >> bits << bits) | (1 << (bits - 1))) as i16
}

/// Sorted keys as bins: equal neighbours counted.
#[derive(Clone)]
struct Runs<'a>(&'a [i16]);

impl Iterator for Runs<'_> {
    type Item = Bin;
    fn next(&mut self) -> Option<Bin> {
        let k = *self.0.first()?;
        let n = self.0.iter().take_while(|other| **other == k).count();
        self.0 = &self.0[n..];
        Some(Bin { k, n: n as u32 })
    }
}

impl DoubleEndedIterator for Runs<'_> {
    fn next_back(&mut self) -> Option<Bin> {
        let k = *self.0.last()?;
        let n = self.0.iter().rev().take_while(|other| **other == k).count();
        self.0 = &self.0[..self.0.len() - n];
        Some(Bin { k, n: n as u32 })
    }
}

/// Adds ascending bins to ascending bins in place: count the new keys, make room, then merge from the back.
fn add_sorted(bins: &mut Vec<Bin>, source: impl DoubleEndedIterator<Item = Bin> + Clone) {
    // Most sketches are small and sealed once.
    if bins.is_empty() {
        bins.reserve(source.clone().count());
        return bins.extend(source);
    }
    let mut fresh = 0;
    let mut at = 0;
    let mut previous = None;
    for add in source.clone() {
        while at < bins.len() && bins[at].k < add.k {
            at += 1;
        }
        let found = at < bins.len() && bins[at].k == add.k;
        let repeated = previous == Some(add.k) || (found && at + 1 < bins.len() && bins[at + 1].k == add.k);
        if repeated || (found && bins[at].n.checked_add(add.n).is_none()) {
            return add_wide(bins, source.map(|b| (b.k, u64::from(b.n))));
        }
        fresh += usize::from(!found);
        previous = Some(add.k);
    }
    let mut read = bins.len();
    let mut write = read + fresh;
    bins.resize(write, Bin { k: 0, n: 0 });
    for add in source.rev() {
        while read > 0 && bins[read - 1].k > add.k {
            read -= 1;
            write -= 1;
            bins[write] = bins[read];
        }
        write -= 1;
        if read > 0 && bins[read - 1].k == add.k {
            read -= 1;
            bins[write] = Bin {
                k: add.k,
                n: bins[read].n + add.n,
            };
        } else {
            bins[write] = add;
        }
    }
    if bins.len() > BINS_MAX {
        let all = std::mem::take(bins);
        rebuild(bins, all.into_iter().map(|b| (b.k, u64::from(b.n))));
    }
}

/// The general case, for counts beyond u32: sums per key, then split again.
#[cold]
fn add_wide(bins: &mut Vec<Bin>, source: impl Iterator<Item = (i16, u64)>) {
    let mut all: Vec<(i16, u64)> = bins.iter().map(|b| (b.k, u64::from(b.n))).chain(source).collect();
    all.sort_by_key(|(k, _)| *k);
    rebuild(bins, all.into_iter());
}

/// Replaces `bins` by the given ones: equal keys summed, at most [`BINS_MAX`] distinct keys, counts split to fit u32.
#[cold]
fn rebuild(bins: &mut Vec<Bin>, all: impl Iterator<Item = (i16, u64)>) {
    let mut sums: Vec<(i16, u64)> = Vec::new();
    for (k, n) in all {
        match sums.last_mut() {
            Some(last) if last.0 == k => last.1 = last.1.saturating_add(n),
            _ => sums.push((k, n)),
        }
    }
    // Counting distinct keys, not entries, is what makes collapsing independent of the order of merges.
    let excess = sums.len().saturating_sub(BINS_MAX);
    let removed = sums
        .drain(..excess)
        .fold(0u64, |sum, (_, n)| sum.saturating_add(n));
    if let Some(lowest) = sums.first_mut() {
        lowest.1 = lowest.1.saturating_add(removed);
    }
    bins.clear();
    for (k, n) in sums {
        let full = u64::from(u32::MAX);
        if n % full != 0 {
            bins.push(Bin {
                k,
                n: (n % full) as u32,
            });
        }
        bins.extend(std::iter::repeat_n(Bin { k, n: u32::MAX }, (n / full) as usize));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::{LN_GAMMA, key_by_logarithm};
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn of(values: &[f64]) -> Sketch {
        let mut sketch = Sketch::new();
        values.iter().for_each(|v| sketch.insert_one(*v));
        sketch
    }

    fn pairs(sketch: &Sketch) -> Vec<(i16, u32)> {
        sketch.bins().iter().map(|b| (b.k, b.n)).collect()
    }

    #[test]
    fn worked_examples() {
        let d = of(&[1.0, 1.0, 10.0]);
        assert_eq!(pairs(&d), [(1338, 2), (1487, 1)]);
        assert_eq!(
            (d.cnt(), d.min(), d.max(), d.avg(), d.sum()),
            (3, 1.0, 10.0, 4.0, 12.0)
        );
        assert_eq!(
            pairs(&of(&[-2.5, 0.0, 1e-10, 42.0])),
            [(-1397, 1), (0, 2), (1579, 1)]
        );
        let empty = Sketch::new();
        assert_eq!(
            (
                empty.cnt(),
                empty.min(),
                empty.max(),
                empty.avg(),
                empty.quantile(0.5)
            ),
            (0, 0.0, 0.0, 0.0, 0.0)
        );
    }

    #[test]
    fn values_that_are_not_finite_and_zero_multiplicity_change_nothing() {
        let mut sketch = of(&[1.0]);
        for v in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            sketch.insert(v, 1);
            sketch.insert(v, 9);
            sketch.insert_each(&[v, v]);
        }
        sketch.insert(5.0, 0);
        assert_eq!(sketch, of(&[1.0]));
    }

    #[test]
    fn counts_beyond_u32_are_split_rest_first() {
        let full = u64::from(u32::MAX);
        let mut sketch = Sketch::new();
        sketch.insert(1.0, full);
        assert_eq!(pairs(&sketch), [(1338, u32::MAX)]);
        sketch.insert(1.0, 3);
        assert_eq!(pairs(&sketch), [(1338, 3), (1338, u32::MAX)]);
        sketch.insert(1.0, full - 3);
        assert_eq!(pairs(&sketch), [(1338, u32::MAX); 2]);
        sketch.insert(2.0, 1);
        let other = sketch.clone();
        sketch.merge(&other);
        assert_eq!(
            pairs(&sketch),
            [
                (1338, u32::MAX),
                (1338, u32::MAX),
                (1338, u32::MAX),
                (1338, u32::MAX),
                (1383, 2)
            ]
        );
        assert_eq!(sketch.cnt(), 4 * full + 2);
        let mut both = Sketch::new();
        (0..1000).for_each(|i| both.insert_one(if i % 2 == 0 { 1.0 } else { -2.0 }));
        let window = both.window.as_ref().unwrap();
        assert_eq!((window.base, window.width, window.counts.len()), (1338, 46, 92));
        assert_eq!(pairs(&both), [(-1383, 500), (1338, 500)]);
        // The dense window must not wrap either.
        let mut busy = Sketch::new();
        (0..1000).for_each(|_| busy.insert_one(1.0));
        assert!(busy.window.is_some());
        busy.insert(1.0, full - 1000);
        busy.insert_one(1.0);
        busy.insert(1.0, 7);
        assert_eq!(pairs(&busy), [(1338, 8), (1338, u32::MAX)]);
        let mut busiest = Sketch::new();
        (0..200_000).for_each(|_| busiest.insert_one(1.0));
        (0..2_000).for_each(|_| busiest.insert(1.0, 100));
        busiest.insert(2.0, 65_535);
        busiest.insert(2.0, 65_536);
        assert_eq!(pairs(&busiest), [(1338, 400_000), (1383, 131_071)]);
    }

    #[test]
    fn beyond_4096_keys_the_lowest_are_collapsed() {
        let mut sketch = Sketch::new();
        let keys: Vec<i16> = (-2500..2500).collect();
        for k in &keys {
            let v = lower(*k) * 1.001;
            sketch.insert_one(v);
        }
        let bins = sketch.bins();
        assert_eq!(bins.len(), BINS_MAX);
        assert_eq!(
            bins[0],
            Bin {
                k: 2500 - BINS_MAX as i16,
                n: (5000 - BINS_MAX + 1) as u32
            }
        );
        assert!(bins[1..].iter().all(|b| b.n == 1));
        assert_eq!(sketch.cnt(), 5000);
    }

    #[test]
    fn small_sketches_are_small_and_clearing_keeps_memory() {
        for samples in 1..=20 {
            let mut sketch = Sketch::new();
            (0..samples).for_each(|i| sketch.insert_one(1.0 + f64::from(i)));
            assert!(
                size_of::<Sketch>() + sketch.heap_bytes() <= 192,
                "{samples} samples: {}",
                sketch.heap_bytes()
            );
        }
        let mut sketch = Sketch::new();
        (0..10_000).for_each(|i| sketch.insert_one(1.0 + f64::from(i % 100)));
        sketch.seal();
        let grown = sketch.heap_bytes();
        for _ in 0..3 {
            sketch.clear();
            (0..10_000).for_each(|i| sketch.insert_one(1.0 + f64::from(i % 100)));
            sketch.seal();
            assert_eq!(sketch.heap_bytes(), grown);
        }
        let before = sketch.bins().into_owned();
        sketch.shrink();
        assert_eq!(sketch.heap_bytes(), before.len() * size_of::<Bin>());
        assert_eq!(*sketch.bins(), *before);
        sketch.release();
        assert_eq!(sketch.heap_bytes(), 0);
    }

    #[test]
    fn coarse_bins_lie_near_the_fine_ones() {
        let mut sketch = Sketch::new();
        (0..10_000).for_each(|i| sketch.insert_one(f64::from(i) - 2000.0));
        let fine = sketch.clone();
        sketch.coarsen(64);
        assert!(sketch.bins().len() <= 64 && sketch.heap_bytes() <= 64 * size_of::<Bin>());
        assert_eq!(
            (sketch.cnt(), sketch.sum(), sketch.min(), sketch.max()),
            (fine.cnt(), fine.sum(), fine.min(), fine.max())
        );
        for q in [0.05, 0.5, 0.9, 0.99] {
            let (coarse, fine) = (sketch.quantile(q), fine.quantile(q));
            assert!(
                (coarse / fine).ln().abs() < 64.0 * LN_GAMMA,
                "{q}: {coarse} for {fine}"
            );
        }
        assert!(
            Sketch::from_parts(
                sketch.cnt(),
                sketch.sum(),
                sketch.min(),
                sketch.max(),
                sketch.bins().into_owned()
            )
            .is_some()
        );
        // It continues to work, and most bins stay.
        sketch.insert_one(5.0);
        assert_eq!(sketch.cnt(), 10_001);
        let mut few = of(&[1.0, 10.0]);
        few.coarsen(64);
        assert_eq!(few, of(&[1.0, 10.0]));
        assert_eq!(
            [middle(0, 3), middle(1, 3), middle(-9, 3), middle(i16::MAX, 14)],
            [0, 4, -12, 24576]
        );
    }

    #[test]
    fn parts_that_do_not_fit_together_are_refused() {
        let d = of(&[1.0, 1.0, 10.0]);
        let bins = || d.bins().into_owned();
        assert_eq!(Sketch::from_parts(3, 12.0, 1.0, 10.0, bins()).unwrap(), d);
        assert!(Sketch::from_parts(4, 12.0, 1.0, 10.0, bins()).is_none());
        assert!(Sketch::from_parts(3, 12.0, f64::NAN, 10.0, bins()).is_none());
        assert!(Sketch::from_parts(3, 12.0, 1.0, 10.0, bins().into_iter().rev().collect()).is_none());
    }

    fn value() -> impl Strategy<Value = f64> {
        prop_oneof![
            4 => (-3f64..6.0).prop_map(|e| 10f64.powf(e)),
            1 => (-300f64..300.0).prop_map(|e| 10f64.powf(e)),
            1 => (-3f64..6.0).prop_map(|e| -(10f64.powf(e))),
            1 => Just(0.0),
        ]
    }

    fn naive(values: &[(f64, u64)]) -> BTreeMap<i16, u64> {
        let mut bins = BTreeMap::new();
        for (v, n) in values.iter().filter(|(_, n)| *n != 0) {
            *bins.entry(key_by_logarithm(*v)).or_insert(0) += n;
        }
        bins
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        #[test]
        fn bins_equal_the_naive_count(values in proptest::collection::vec((value(), prop_oneof![8 => Just(1u64), 1 => 0u64..6, 1 => 0..5_000_000_000u64]), 0..1500), close in any::<bool>()) {
            // So close together that a window opens, and some far from it.
            let values = values.into_iter().enumerate();
            let values: Vec<(f64, u64)> = values.map(|(i, (v, n))| (if close && i % 300 < 270 { v.signum() * (1.0 + v.abs() % 1000.0) } else { v }, n)).collect();
            let mut sketch = Sketch::new();
            for (i, (v, n)) in values.iter().enumerate() {
                sketch.insert(*v, *n);
                if i % 700 == 699 {
                    sketch.seal();
                }
            }
            let mut sums = BTreeMap::new();
            for bin in sketch.bins().iter() {
                *sums.entry(bin.k).or_insert(0u64) += u64::from(bin.n);
            }
            prop_assert_eq!(&sums, &naive(&values));
            prop_assert_eq!(sketch.cnt(), values.iter().map(|(_, n)| n).sum::<u64>());
            let mut sealed = sketch.clone();
            sealed.seal();
            prop_assert_eq!(&sealed, &sketch);
        }

        #[test]
        fn merge_order_does_not_matter(parts in proptest::collection::vec(proptest::collection::vec(value(), 0..400), 1..6), wide in any::<bool>(), seed in any::<u64>()) {
            let mut sketches: Vec<Sketch> = parts.iter().map(|p| of(p)).collect();
            if wide {
                // Together more distinct keys than a sketch keeps, so that collapsing occurs.
                for (i, sketch) in sketches.iter_mut().enumerate() {
                    (0..3000).for_each(|k| sketch.insert_one(lower(k * 4 + i as i16 + 1)));
                }
            }
            let mut forward = Sketch::new();
            sketches.iter().for_each(|s| forward.merge(s));
            // A random tree: merge random neighbours until one is left.
            let mut rest = sketches;
            let mut state = seed | 1;
            while rest.len() > 1 {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                let i = (state >> 33) as usize % rest.len();
                let taken = rest.swap_remove(i);
                let j = (state >> 20) as usize % rest.len();
                rest[j].merge(&taken);
            }
            let tree = &rest[0];
            prop_assert_eq!(tree.bins(), forward.bins());
            prop_assert_eq!((tree.cnt(), tree.min(), tree.max()), (forward.cnt(), forward.min(), forward.max()));
            prop_assert!((tree.sum() - forward.sum()).abs() <= 1e-9 * forward.sum().abs().max(forward.max().abs()));
        }

        #[test]
        fn quantiles_lie_near_the_sample_of_that_rank(mut values in proptest::collection::vec((-3f64..6.0).prop_map(|e| 10f64.powf(e)), 1..500), q in 0f64..1.0) {
            let sketch = of(&values);
            values.sort_by(f64::total_cmp);
            let exact = values[(q * (values.len() - 1) as f64).round_ties_even() as usize];
            // The sample is within half a bin of its key, and the agent's interpolation runs one bin upward from it.
            let distance = (sketch.quantile(q) / exact).ln() / LN_GAMMA;
            prop_assert!((-1.5..=1.5001).contains(&distance), "{} bins", distance);
        }
    }
}
