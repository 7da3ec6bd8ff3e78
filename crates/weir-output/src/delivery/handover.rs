//! Replaces a running output: queues, books and the encoder's state pass from the old one to the new one.
//!
//! Payloads keep their destination: they go to the endpoint of the same place, or to that of a replaced key. Payloads without such an
//! endpoint stay with the old output, which keeps delivering for a while.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::encoding::Legacy;
use super::endpoint::{Release, reached};
use super::queue::{PointsAtRisk, Queue};
use super::safe::BucketEnds;
use super::{Delivery, Encode, EndpointIdentity, Items, Shared, Stage, lock};

/// Time limit for open requests. After it they are cancelled, and the new output sends them again.
const UNDER_WAY_MAX: Duration = Duration::from_secs(2);

/// Longer than any task needs to end; a disk that hangs takes that long.
const RELEASE_MAX: Duration = Duration::from_secs(10);

impl Delivery {
    /// Starts this output in place of `old`, which gets no further batches. Takes over everything that this one delivers too;
    /// [`Delivery::shutdown`] ends the old one.
    pub async fn take_over(&self, old: &Delivery) {
        let pairs = match_endpoints(&self.shared.identities(), &old.shared.identities());
        let inherits = !pairs.is_empty() && !self.lineage.is_empty() && self.lineage == old.lineage;
        let mut encoder = None;
        if inherits {
            encoder = old.end_encoding(true).await;
            if let Some(encoder) = &encoder {
                self.take_open(encoder.open(), &old.shared);
            }
        }
        // Until it has the place of the old one on disk, it would drop what memory cannot hold.
        let waits_for_disk = self.disk_queue().is_some();
        if !waits_for_disk {
            self.begin_encoding(encoder.take());
        }
        if !pairs.is_empty() {
            old.end_encoding(false).await;
            old.await_requests(&pairs).await;
        }
        for (new, before) in pairs {
            old.release(before).await;
            self.take_queue(new, &old.shared, before).await;
        }
        if waits_for_disk {
            self.begin_encoding(encoder);
        }
        self.begin_sending();
    }

    /// Whether a disk queue of this output lies there.
    pub(super) fn holds(&self, path: &Path) -> bool {
        self.shared
            .endpoints
            .iter()
            .any(|side| side.identity.disk.as_deref() == Some(path))
    }

    /// Encodes received batches, and returns the encoder if another one continues its state.
    async fn end_encoding(&self, has_successor: bool) -> Option<Box<dyn Encode>> {
        let shared = &self.shared;
        if has_successor {
            shared.encoder.is_to_leave(Legacy::Encoder);
        }
        shared.advance(Stage::Draining);
        reached(&mut shared.stage.subscribe(), Stage::Encoded).await;
        lock(&shared.encoder.retained).take()
    }

    /// The content of the continued encoder belongs to this output's books from now on.
    fn take_open(&self, open: Items, old: &Shared) {
        // In the order in which an output looks at its predecessor.
        let mut own = lock(&self.shared.books);
        let mut theirs = lock(&old.books);
        theirs.received -= open;
        theirs.open = Items::default();
        own.received += open;
        own.add_before(open.points);
        own.open = open;
    }

    /// Aborted requests may have arrived, and would be sent twice.
    async fn await_requests(&self, pairs: &[(usize, usize)]) {
        let done = self.wait_for(|status| {
            pairs.iter().all(|(_, index)| {
                let endpoint = &status.endpoints[*index];
                let pending = &endpoint.pending;
                pending.total().is_zero() || !endpoint.healthy && pending.in_flight.is_zero()
            })
        });
        self.shared.clock.within(UNDER_WAY_MAX, done).await;
    }

    /// Ends the work on an endpoint's queue.
    async fn release(&self, index: usize) {
        let released = &self.shared.endpoints[index].released;
        released.send_replace(Release::Requested);
        let transport = self.transports[index].clone();
        let ended = async {
            drop(
                released
                    .subscribe()
                    .wait_for(|release| *release == Release::Done)
                    .await,
            );
            drop(self.shared.clock.blocking(move || transport.release()).await);
        };
        if self.shared.clock.within(RELEASE_MAX, ended).await.is_none() {
            tracing::error!(
                output = self.name,
                "a task does not end; its output is replaced anyway"
            );
            released.send_replace(Release::Done);
        }
    }

    /// Takes over the queue and the books of an endpoint of another output.
    async fn take_queue(&self, index: usize, old: &Arc<Shared>, before: usize) {
        let (shared, old) = (self.shared.clone(), old.clone());
        let taken = self
            .shared
            .clock
            .blocking(move || shared.take_queue(index, &old, before));
        drop(taken.await);
    }
}

impl Shared {
    fn identities(&self) -> Vec<&EndpointIdentity> {
        self.endpoints.iter().map(|side| &side.identity).collect()
    }

    fn take_queue(&self, index: usize, old: &Shared, before: usize) {
        let nothing = Queue::new(super::Order::NewestFirst, 0, None);
        let mut queue = std::mem::replace(&mut *lock(&old.endpoints[before].queue), nothing);
        queue.requeue();
        if self.has_disk() {
            let books = lock(&old.books);
            old.tell_written(&books, books.resolved());
        }
        let mut own = lock(&self.endpoints[index].queue);
        own.set_memory_max(self.memory_max());
        let mut books = {
            let mut books = lock(&old.books);
            queue.merge_dropped(&books.dropped);
            let mut of_endpoint = books.endpoints[before].clone();
            books.endpoints[before].at_risk = PointsAtRisk::default();
            // Only the output that has the queue knows from now on when its points are delivered.
            books.ends = BucketEnds::default();
            of_endpoint.earlier += books.received;
            of_endpoint
        };
        let (from, to) = (
            &old.endpoints[before].identity.disk,
            &self.endpoints[index].identity.disk,
        );
        let left = if from == to {
            let disk_max = self.settings.disk_bytes_max / self.endpoints.len().max(1) as u64;
            own.continue_with(queue, disk_max, self.settings.disk_age_max.as_secs() as i64);
            Items::default()
        } else {
            own.pour(queue, self.clock.unix())
        };
        if let Some(path) = from.as_deref().filter(|_| from != to) {
            self.remove_if_empty(path, left);
        }
        let mut all = lock(&self.books);
        books.earlier -= left;
        books.restored += all.endpoints[index].restored;
        books.counts.add(&all.endpoints[index].counts);
        books.retry_at = None;
        books.copy_from(&own);
        all.endpoints[index] = books;
    }

    /// Removes a disk queue that is empty; otherwise says that it is not.
    fn remove_if_empty(&self, path: &Path, left: Items) {
        if left.is_zero() {
            // The next start shows what prevents it.
            drop(std::fs::remove_file(path.join("lock")));
            drop(std::fs::remove_dir(path));
        } else {
            tracing::warn!(output = self.name, directory = %path.display(), waiting = ?left, "the new disk queue has no room for the payloads of the old one; they are delivered when an output has that disk_path again");
        }
    }
}

/// The assignment of old endpoints to new ones: the one of the same place, or, if one key of a URL was removed and one added, that.
fn match_endpoints(new: &[&EndpointIdentity], old: &[&EndpointIdentity]) -> Vec<(usize, usize)> {
    let same = |place: &EndpointIdentity, other: &EndpointIdentity| place.directory == other.directory;
    let mut found: Vec<(usize, usize)> = Vec::new();
    for (index, place) in new.iter().enumerate() {
        if let Some(before) = old.iter().position(|other| same(place, other)) {
            found.push((index, before));
            continue;
        }
        let Some(family) = &place.family else { continue };
        let is_new = |other: &&EndpointIdentity| {
            other.family.as_ref() == Some(family) && !old.iter().any(|before| same(other, before))
        };
        let is_gone = |(_, other): &(usize, &EndpointIdentity)| {
            other.family.as_ref() == Some(family) && !new.iter().any(|after| same(other, after))
        };
        let mut gone = old.iter().copied().enumerate().filter(is_gone);
        if let (Some((before, _)), None) = (gone.next(), gone.next())
            && new.iter().copied().filter(is_new).count() == 1
        {
            found.push((index, before));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(url: &str, key: &str) -> EndpointIdentity {
        EndpointIdentity {
            directory: format!("{url}-{key}"),
            family: Some(url.to_owned()),
            disk: None,
        }
    }

    #[test]
    fn a_key_continues_the_queue_of_the_one_it_replaces() {
        let old = [place("a", "1"), place("a", "2"), place("b", "1")];
        let check = |new: &[EndpointIdentity], expected: &[(usize, usize)]| {
            let new: Vec<_> = new.iter().collect();
            assert_eq!(match_endpoints(&new, &old.each_ref()), expected)
        };
        check(&[place("b", "1"), place("a", "1")], &[(0, 2), (1, 0)]);
        check(&[place("a", "1"), place("a", "3")], &[(0, 0), (1, 1)]);
        // Whose predecessor it was cannot be known.
        check(&[place("a", "3")], &[]);
        check(&[place("a", "1"), place("a", "3"), place("a", "4")], &[(0, 0)]);
        check(&[place("c", "1")], &[]);
        let keyless = EndpointIdentity {
            family: None,
            ..place("b", "2")
        };
        check(&[keyless], &[]);
    }
}
