use std::collections::VecDeque;

use hashbrown::HashTable;
use weir_context::PARTITIONS;

use crate::flush::{BATCH_BYTES, BATCH_ROWS, Batch, BatchSource};

/// A worker sees that the clock was set back within a second or a bucket.
const PASSED_OVER_MAX: usize = 3;

/// Merges the batches of several workers into one stream in which every context of a bucket occurs once.
///
/// Each worker delivers its buckets in order and the partitions of a bucket in order. A partition is merged as soon as every worker has
/// delivered it, so memory is bounded by the spread between workers. A worker that starts in a later bucket than the others says so
/// ([`Merger::has_none_before`]). One that gets no CPU during a whole bucket never delivers that one: it is merged once this worker has
/// delivered a later one, or has stopped.
///
/// A worker's buckets go back in time when the clock is set back, and another worker may not have seen the clock ahead. So the next bucket
/// is one that an older bucket of the same worker follows, or else one not before the last merged bucket, or else any; each time the
/// oldest. A worker that sees the clock late has few such buckets: one before the last merged bucket is passed over
/// [`PASSED_OVER_MAX`] times, because others that follow the clock would pass over it without limit.
pub struct Merger {
    pending: Vec<VecDeque<Batch>>,
    /// Workers that have ended.
    ended: Vec<bool>,
    /// For each worker, the start of the bucket in which it has begun or stopped; the minimum if it has delivered a batch since.
    open_in: Vec<i64>,
    /// Number of steps back in time between the buckets of each queue.
    set_backs: Vec<usize>,
    /// Start of the last merged bucket, or of the one that is merged in part.
    last: i64,
    /// Buckets merged one after another while an earlier one waited.
    passed_over: usize,
    /// Next partition to merge of the oldest bucket.
    partition: usize,
    sequence: u64,
    merged: Option<Batch>,
    /// [`Batch::timestamped`] of the bucket that is merged in part.
    timestamped: Vec<Batch>,
    batch_bytes: usize,
    rows_of_bucket: u64,
    /// Rows that workers announced and that never came: a batch was lost.
    rows_lost: u64,
    received: Vec<u64>,
    /// Samples of the ended buckets of each worker that are merged completely.
    samples_until: Vec<u64>,
}

impl Merger {
    pub fn new(workers: usize) -> Self {
        Merger {
            pending: (0..workers).map(|_| VecDeque::new()).collect(),
            ended: vec![false; workers],
            open_in: vec![i64::MIN; workers],
            set_backs: vec![0; workers],
            last: i64::MIN,
            passed_over: 0,
            partition: 0,
            sequence: 0,
            merged: None,
            timestamped: Vec::new(),
            batch_bytes: BATCH_BYTES,
            rows_of_bucket: 0,
            rows_lost: 0,
            received: vec![0; workers],
            samples_until: vec![0; workers],
        }
    }

    /// The number of workers.
    pub fn workers(&self) -> usize {
        self.pending.len()
    }

    /// Sets the size at which a merged batch is delivered, at the next end of a partition.
    pub fn with_batch_bytes(self, batch_bytes: usize) -> Self {
        Merger { batch_bytes, ..self }
    }

    /// Announced rows that never arrived. Any value above zero is a bug in weir.
    pub fn rows_lost(&self) -> u64 {
        self.rows_lost
    }

    /// Rows that wait for other workers.
    pub fn pending_rows(&self) -> usize {
        self.pending.iter().flatten().map(Batch::len).sum()
    }

    /// Adds one batch and delivers everything that is complete. Timestamped samples, events and checks pass unchanged.
    ///
    /// What is delivered is the receiver's: a worker that counts its batches in transit ([`Batch::begin_transit`]) does not wait for outputs.
    pub fn push(&mut self, mut batch: Batch, mut deliver: impl FnMut(Batch)) {
        if batch.partitions.is_empty() {
            batch.end_transit();
            deliver(batch);
            return;
        }
        let worker = usize::from(batch.source.worker);
        self.open_in[worker] = i64::MIN;
        self.received[worker] += batch.len() as u64;
        self.rows_lost += batch.rows_of_bucket.saturating_sub(self.received[worker]);
        self.received[worker] = if batch.last { 0 } else { batch.rows_of_bucket };
        if self.pending.len() == 1 {
            batch.end_transit();
            deliver(batch);
            return;
        }
        let before = self.pending[worker].back();
        self.set_backs[worker] += usize::from(is_before(before, Some(&batch)));
        self.pending[worker].push_back(batch);
        while self.merge_next_partition(&mut deliver) {}
    }

    /// A worker has delivered all its buckets before the one that starts at `open`: it has begun there, or stopped. It may continue.
    pub fn has_none_before(&mut self, worker: u16, open: i64, mut deliver: impl FnMut(Batch)) {
        self.open_in[usize::from(worker)] = open;
        while self.merge_next_partition(&mut deliver) {}
    }

    /// A worker has ended, perhaps within a bucket. Do not wait for it.
    pub fn remove_worker(&mut self, worker: u16, mut deliver: impl FnMut(Batch)) {
        self.ended[usize::from(worker)] = true;
        while self.merge_next_partition(&mut deliver) {}
    }

    /// All workers have ended.
    pub fn finish(&mut self, mut deliver: impl FnMut(Batch)) {
        while self.pending.iter().any(|queue| !queue.is_empty()) {
            self.merge_partition(&mut deliver);
        }
    }

    fn merge_next_partition(&mut self, deliver: &mut impl FnMut(Batch)) -> bool {
        let Some(next) = self.next_bucket() else {
            return false;
        };
        let complete = self.pending.iter().enumerate().all(|(worker, queue)| {
            let has_none = self.ended[worker] || next < self.open_in[worker];
            queue.front().map_or(has_none, |batch| {
                batch.bucket.start != next || batch.partitions.contains(&self.partition)
            })
        });
        if complete {
            self.merge_partition(deliver);
        }
        complete
    }

    /// The start of the bucket to merge next.
    fn next_bucket(&self) -> Option<i64> {
        if self.partition > 0 {
            return Some(self.last);
        }
        let may_wait = self.passed_over < PASSED_OVER_MAX;
        let fronts = self.pending.iter().zip(&self.set_backs);
        fronts
            .filter_map(|(queue, set_backs)| Some((*set_backs == 0, queue.front()?.bucket.start)))
            .min_by_key(|(is_last_of_its_time, start)| {
                (*is_last_of_its_time, may_wait && *start < self.last, *start)
            })
            .map(|(_, start)| start)
    }

    fn merge_partition(&mut self, deliver: &mut impl FnMut(Batch)) {
        let Some(next) = self.next_bucket() else {
            return;
        };
        self.last = next;
        let mut index = HashTable::new();
        let workers = self.pending.iter_mut().zip(&mut self.set_backs);
        for ((queue, set_backs), samples_until) in workers.zip(&mut self.samples_until) {
            let Some(front) = queue.front_mut().filter(|batch| batch.bucket.start == next) else {
                continue;
            };
            let merged = self.merged.get_or_insert_with(|| {
                self.sequence += 1;
                let source = BatchSource {
                    worker: 0,
                    sequence: self.sequence,
                };
                Batch::new(source, front.bucket, front.hostname.clone())
            });
            if merged.partitions.is_empty() || merged.partitions.end == self.partition {
                merged.begin_partition(self.partition);
            }
            let first = merged.partition_rows(self.partition).start;
            let rows = front.partition_rows(self.partition);
            merged.merge_rows(front, rows, first, &mut index);
            if front.partitions.end <= self.partition + 1 {
                *samples_until = front.samples_until.max(*samples_until);
                let mut merged = queue.pop_front();
                *set_backs -= usize::from(is_before(merged.as_ref(), queue.front()));
                let timestamped = merged.iter_mut().flat_map(|batch| batch.timestamped.drain(..));
                self.timestamped.extend(timestamped);
            }
        }
        self.partition += 1;
        let last = self.partition == PARTITIONS;
        let (rows, bytes) = self
            .merged
            .as_ref()
            .map_or((0, 0), |merged| (merged.len(), merged.bytes()));
        if (last || rows >= BATCH_ROWS || bytes >= self.batch_bytes)
            && let Some(mut merged) = self.merged.take()
        {
            self.rows_of_bucket += rows as u64;
            merged.last = last;
            merged.rows_of_bucket = self.rows_of_bucket;
            if last {
                merged.samples_until = self.samples_until.iter().sum();
                merged.timestamped = std::mem::take(&mut self.timestamped);
            }
            deliver(merged);
        }
        if last {
            let mut fronts = self.pending.iter().filter_map(VecDeque::front);
            self.passed_over = match fronts.any(|front| front.bucket.start < next) {
                true => self.passed_over + 1,
                false => 0,
            };
            self.partition = 0;
            self.rows_of_bucket = 0;
        }
    }
}

fn is_before(before: Option<&Batch>, after: Option<&Batch>) -> bool {
    matches!((before, after), (Some(before), Some(after)) if after.bucket.start < before.bucket.start)
}
