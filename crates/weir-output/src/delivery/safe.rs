//! Up to which sample an output has nothing to lose: what a kill costs it, in samples.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use super::{Books, Class, Payload, Shared, lock};

/// Ends of buckets that an output remembers while it does not deliver. Beyond them it forgets the oldest, and is said to be safe later
/// than it is.
const ENDS_MAX: usize = 4096;

/// Is told by outputs what a kill of the process would cost.
pub trait AtRisk: Send + Sync {
    /// Part of the newest bucket may leave the process now: from now on no other process may deliver that bucket.
    fn begins(&self);

    /// Some of the samples up to this number may leave by this output now; `u64::MAX`: of a bucket that has not ended there yet. Called
    /// with a lock held, before each payload: it must not wait.
    fn leaves(&self, output: &str, samples: u64);

    /// This output has delivered, dropped for a reason or written to disk whatever came of the samples up to this number, as
    /// [`weir_aggregate::Batch::samples_until`] counts them. Called with a lock held, after each payload: it must not wait.
    fn is_safe(&self, output: &str, samples: u64);
}

/// The listener to that, if there is one.
#[derive(Clone, Default)]
pub struct SafeSamples(Option<Arc<dyn AtRisk>>);

impl SafeSamples {
    pub fn new(told: Arc<dyn AtRisk>) -> SafeSamples {
        SafeSamples(Some(told))
    }
}

impl fmt::Debug for SafeSamples {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SafeSamples")
    }
}

/// The buckets of which something may be lost yet, oldest first: the points received up to their ends, and the samples.
#[derive(Default)]
pub(super) struct BucketEnds(VecDeque<(u64, u64)>);

impl BucketEnds {
    pub fn push(&mut self, points: u64, samples: u64) {
        if self.0.len() == ENDS_MAX {
            self.0.pop_front();
        }
        self.0.push_back((points, samples));
    }

    /// The encoder has made more points of what was received.
    pub fn add_made(&mut self, points: u64) {
        if points > 0 {
            self.0.iter_mut().for_each(|(until, _)| *until += points);
        }
    }

    /// The samples up to the end of the bucket with this point, counted from 1; `u64::MAX`: it has not ended.
    fn until(&self, point: u64) -> u64 {
        let first = self.0.partition_point(|(until, _)| *until < point);
        self.0.get(first).map_or(u64::MAX, |(_, samples)| *samples)
    }

    /// This many points of those received are at no risk. Returns the samples of the last bucket that is among them, if it is another
    /// one than before.
    fn reached(&mut self, points: u64) -> Option<u64> {
        let mut samples = None;
        while let Some((_, of)) = self.0.pop_front_if(|(until, _)| *until <= points) {
            samples = Some(of);
        }
        samples
    }
}

/// Marks a payload right before and right after it is delivered: between a write and its entry in the books several threads take turns, and
/// a kill there would report as lost what has been delivered.
#[derive(Clone, Default)]
pub struct Landed(Option<(Arc<Shared>, usize, u64)>);

impl Landed {
    /// Of an endpoint.
    pub(super) fn of(shared: &Arc<Shared>, endpoint: usize, payload: &Payload) -> Landed {
        let is_marked = payload.class == Class::Points;
        Landed(is_marked.then(|| (shared.clone(), endpoint, payload.id)))
    }

    /// Its delivery begins.
    pub fn begin(&self) {
        if let Some((shared, endpoint, _)) = &self.0 {
            shared.tell_leaves(&lock(&shared.books), *endpoint);
            shared.begins();
        }
    }

    /// It has been delivered. Payloads in a disk queue are safe already.
    pub fn mark(&self) {
        if let Some((shared, endpoint, id)) = &self.0
            && !shared.has_disk()
        {
            shared.tell_safe(&mut lock(&shared.books), Some((*endpoint, *id)));
        }
    }
}

impl Shared {
    /// Part of the received data may leave the process.
    pub(super) fn begins(&self) {
        if let Some(told) = &self.safe.0 {
            told.begins();
        }
    }

    /// Reports how much may have left once this endpoint has tried the payloads that it took from its queue.
    fn tell_leaves(&self, books: &Books, endpoint: usize) {
        let Some(told) = &self.safe.0 else { return };
        let untried = books.endpoints[endpoint].sizes.untried.points;
        let leaves = books.resolved().saturating_sub(untried);
        told.leaves(&self.name, books.ends.until(leaves));
    }

    /// Reports that payloads may be written to disk now, up to the one with this point of those received: after a kill another process
    /// delivers them, whether [`AtRisk::is_safe`] was told or not.
    pub(super) fn tell_written(&self, books: &Books, until: u64) {
        if let Some(told) = &self.safe.0 {
            told.leaves(&self.name, books.ends.until(until));
        }
    }

    /// Tells how far nothing is at risk, after a change of the books. `landed`: the payload of an endpoint that is delivered, and not entered
    /// yet. Payloads arrive in any order: what counts is the oldest that has not.
    pub(super) fn tell_safe(&self, books: &mut Books, landed: Option<(usize, u64)>) {
        let is_over = |old: &mut Arc<Shared>| !lock(&old.books).has_points_at_risk();
        drop(books.predecessor.take_if(is_over));
        if books.predecessor.is_some() {
            return;
        }
        let before = books.endpoints.iter().enumerate().filter_map(|(index, of)| {
            let landed = landed.filter(|(at, _)| *at == index).map(|(_, id)| id);
            of.at_risk.before(landed)
        });
        let resolved = i64::try_from(books.resolved()).unwrap_or(i64::MAX);
        let Ok(points) = u64::try_from(before.fold(resolved, i64::min)) else {
            return;
        };
        if let Some(samples) = books.ends.reached(points)
            && let Some(told) = &self.safe.0
        {
            told.is_safe(&self.name, samples);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_is_safe_once_its_last_point_is() {
        let mut ends = BucketEnds::default();
        ends.push(10, 100);
        ends.push(10, 100);
        ends.push(15, 170);
        let until = [1, 10, 11, 15, 16].map(|point| ends.until(point));
        assert_eq!(until, [100, 100, 170, 170, u64::MAX]);
        assert_eq!(ends.reached(9), None);
        assert_eq!(ends.reached(10), Some(100));
        assert_eq!(ends.reached(14), None);
        ends.add_made(3);
        assert_eq!(ends.reached(17), None);
        assert_eq!(ends.reached(18), Some(170));
        assert_eq!(ends.reached(18), None);
    }
}
