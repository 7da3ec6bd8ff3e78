//! Batches that wait to be encoded, bounded in number and bytes.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use weir_aggregate::{BATCHES_BEHIND_MAX, Batch};

use super::books::{self, Items, Reason};
use super::room::MemoryLimits;
use super::{Delivery, Stage, lock};

/// Time that a batch waits for an output that is behind before it is dropped.
const SUBMIT_WAIT: Duration = Duration::from_secs(1);

#[derive(Default)]
pub(super) struct Inbox {
    waiting: VecDeque<(Arc<Batch>, Items)>,
    /// Bytes of those batches and of the one that is being encoded.
    pub(super) bytes: u64,
    /// A submitter ran out of patience; the next ones do not wait before there is room again.
    late: bool,
    /// The time that the batches of this flush have waited together.
    waited: Duration,
}

impl Inbox {
    fn has_room(&self, bytes: u64, bytes_max: u64) -> bool {
        self.bytes == 0 || self.waiting.len() < BATCHES_BEHIND_MAX && self.bytes + bytes <= bytes_max
    }

    /// The next batch to encode; [`Inbox::encoded`] follows.
    pub(super) fn pop(&mut self) -> Option<(Arc<Batch>, Items)> {
        self.waiting.pop_front()
    }

    /// A batch of these bytes was encoded and freed.
    pub(super) fn encoded(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_sub(bytes);
    }
}

/// The inbox, and who waits at it.
#[derive(Default)]
pub(super) struct Intake {
    pub(super) inbox: Mutex<Inbox>,
    /// The encoder has something to do.
    pub(super) arrived: Notify,
    /// The inbox has room again.
    pub(super) room: Condvar,
}

impl MemoryLimits {
    /// Longest wait of a batch of a flush whose batches have waited so long.
    fn patience(&self, waited: Duration, now: Instant) -> Duration {
        let of_flush = Duration::from_nanos(self.wait_nanos.load(Ordering::Relaxed));
        let until_end = self.waits_end.get().map(|end| end.saturating_duration_since(now));
        let of_batch = SUBMIT_WAIT.min(of_flush.saturating_sub(waited));
        until_end.map_or(of_batch, |until_end| of_batch.min(until_end))
    }
}

impl Delivery {
    /// Whether a batch would be taken now.
    pub fn has_room(&self, batch: &Batch) -> bool {
        let bytes_max = self.shared.limits.inbox.load(Ordering::Relaxed);
        lock(&self.shared.intake.inbox).has_room(batch.bytes() as u64, bytes_max)
    }

    /// Sets how long all batches of a flush together may wait for this output. Without it only the wait of each is limited, and an output
    /// that is always a little behind delays the flush, the next one, and at last the workers.
    pub fn limit_wait(&self, of_flush: Duration) {
        let nanos = u64::try_from(of_flush.as_nanos()).unwrap_or(u64::MAX);
        self.shared.limits.wait_nanos.store(nanos, Ordering::Relaxed);
    }

    /// Sets the moment from which no batch waits, once: several outputs that are behind, and several flushes, may delay the end of a process
    /// together as long as one of them.
    pub fn end_waits(&self, at: Instant) {
        let _ = self.shared.limits.waits_end.set(at);
    }

    /// Hands over a batch. Waits a moment if the output is behind with encoding, then drops the batch and counts it, and does
    /// not wait again before it has caught up. Blocks: for plain threads, not for async tasks.
    pub fn submit(&self, batch: &Arc<Batch>) {
        let shared = &self.shared;
        let items = (self.counter)(batch);
        let bytes = batch.bytes() as u64;
        let bytes_max = shared.limits.inbox.load(Ordering::Relaxed);
        let is_full = |inbox: &mut Inbox| {
            !inbox.has_room(bytes, bytes_max) && !inbox.late && shared.stage() == Stage::Running
        };
        let began = Instant::now();
        let inbox = lock(&shared.intake.inbox);
        let patience = shared.limits.patience(inbox.waited, began);
        let waited = shared.intake.room.wait_timeout_while(inbox, patience, is_full);
        let (mut inbox, _) = waited.unwrap_or_else(PoisonError::into_inner);
        inbox.waited = if batch.last {
            Duration::ZERO
        } else {
            inbox.waited + began.elapsed()
        };
        let mut books = lock(&shared.books);
        let before = books.received.points;
        books.received += items;
        if batch.last && !batch.partitions.is_empty() {
            let points = books.received.points;
            books.ends.push(points, batch.samples_until);
        }
        if shared.stage() != Stage::Running && !books.encoder_failed {
            books::add_dropped(&mut books.dropped, Reason::Shutdown, items);
        } else if !inbox.has_room(bytes, bytes_max) || books.encoder_failed {
            inbox.late = true;
            books::add_dropped(&mut books.dropped, Reason::InboxFull, items);
        } else {
            inbox.late = false;
            inbox.bytes += bytes;
            inbox.waiting.push_back((batch.clone(), items));
            books.inbox += items;
            books.batches.push_back(before);
            shared.intake.arrived.notify_one();
        }
        shared.tell_safe(&mut books, None);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::OnceLock;

    use super::*;

    #[test]
    fn a_batch_waits_as_long_as_all_limits_allow() {
        let limits = MemoryLimits {
            queued: 0.into(),
            coming: 0.into(),
            is_full: false.into(),
            ask: OnceLock::new(),
            state: 0.into(),
            inbox: 0.into(),
            wait_nanos: u64::MAX.into(),
            waits_end: OnceLock::new(),
        };
        let (now, second) = (Instant::now(), Duration::from_secs(1));
        assert_eq!(limits.patience(Duration::ZERO, now), SUBMIT_WAIT);
        limits.wait_nanos.store(2_500_000_000, Ordering::Relaxed);
        assert_eq!(limits.patience(second, now), SUBMIT_WAIT);
        assert_eq!(limits.patience(2 * second, now), second / 2);
        limits.waits_end.set(now + second / 4).unwrap();
        assert_eq!(limits.patience(2 * second, now), second / 4);
        // Another output, or another flush, has used it up.
        assert_eq!(limits.patience(Duration::ZERO, now + second), Duration::ZERO);
    }
}
