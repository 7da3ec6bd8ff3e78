//! Series without a recent sample leave, and the others move together.

use hashbrown::HashTable;

use super::{CumulativeState, Family, Seconds, SeriesState};

impl<M: Default, S: Default> CumulativeState<M, S> {
    /// Removes series without a recent sample.
    pub fn expire(&mut self, now: Seconds) {
        self.expire_with(now, |_, _| {});
    }

    /// The same, showing each series that goes, with its metric, whose other series cannot be seen meanwhile.
    pub fn expire_with(&mut self, now: Seconds, mut goes: impl FnMut(&Family<M, S>, &SeriesState<S>)) {
        let now = now.saturating_add(self.past);
        let of_all = u32::try_from(self.settings.expiry.as_secs()).unwrap_or(u32::MAX);
        let least = self.forms.least_expiry(of_all);
        if self.renderings > 0
            || self.is_within_flush
            || self.series == 0
            || now.saturating_sub(self.oldest) < least
        {
            return;
        }
        self.oldest = Seconds::MAX;
        let before = self.series;
        let mut moves = Moves::default();
        for family in self.families.iter_mut() {
            moves.begin_family();
            let mut all = std::mem::take(&mut family.series);
            let capacity = all.capacity();
            all.retain(|series| {
                let expiry = self.forms.get(series.form).expiry.unwrap_or(of_all);
                let stays = now.saturating_sub(series.seen) < expiry;
                moves.series(stays);
                if stays {
                    self.oldest = self.oldest.min(series.seen);
                } else {
                    goes(family, series);
                    self.bytes -= series.labels.len() + series.value.heap_bytes();
                    self.series -= 1;
                }
                stays
            });
            family.series = all;
            if family.series.len() < capacity / 2 {
                family.series.shrink_to_fit();
                self.bytes -= (capacity - family.series.capacity()) * size_of::<SeriesState<S>>();
            }
        }
        if self.series == before {
            return;
        }
        self.counts.expired += (before - self.series) as u64;
        let families = self.families.len();
        let (mut at, mut named) = (0, 0);
        self.families.retain(|family| {
            named += usize::from(at < self.named && !family.series.is_empty());
            at += 1;
            if family.series.is_empty() {
                let renamed = family.renamed.as_ref().map_or(0, |name| name.len());
                self.bytes -=
                    family.name.len() + renamed + family.series.capacity() * size_of::<SeriesState<S>>();
            }
            !family.series.is_empty()
        });
        self.named = named;
        self.names_are_stale |= self.families.len() < families;
        self.of_context.update(|place| moves.place(place));
        self.index();
    }

    /// Everything is somewhere else after an expiry. The hashes are kept, so that no text is read.
    fn index(&mut self) {
        let families = &self.families;
        self.family_index = HashTable::with_capacity(families.len());
        self.series_index = HashTable::with_capacity(self.series);
        for (at, family) in families.iter().enumerate() {
            self.family_index
                .insert_unique(family.hash, at as u32, |&at| families[at as usize].hash);
            for (number, series) in family.series.iter().enumerate() {
                self.series_index
                    .insert_unique(series.hash, (at as u32, number as u32), |&(family, at)| {
                        families[family as usize].series[at as usize].hash
                    });
            }
        }
    }
}

/// Where the series of an expiry are before and after it.
#[derive(Default)]
struct Moves {
    /// By family before: its number after the expiry, and its first entry in `series`.
    families: Vec<(u32, usize)>,
    /// Numbers within the family after the expiry. `None`: it leaves.
    series: Vec<Option<u32>>,
    /// Numbers after the expiry of the next family that stays, and of the next series of the current one.
    next_family: u32,
    next: u32,
}

impl Moves {
    fn begin_family(&mut self) {
        // A family without series leaves.
        self.next_family += u32::from(self.next > 0);
        self.next = 0;
        self.families.push((self.next_family, self.series.len()));
    }

    fn series(&mut self, stays: bool) {
        self.series.push(stays.then_some(self.next));
        self.next += u32::from(stays);
    }

    fn place(&self, (family, at): (u32, u32)) -> Option<(u32, u32)> {
        let (moved, first) = self.families[family as usize];
        Some((moved, self.series[first + at as usize]?))
    }
}
