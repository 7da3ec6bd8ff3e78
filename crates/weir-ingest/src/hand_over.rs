//! The end of a bucket: writes its rows and removes expired contexts.

use weir_aggregate::{Aggregator, Batch};
use weir_context::{Contexts, PARTITIONS, Partitioning};

/// Contexts whose memory is asked for together: enough to have many loads on their way, few enough for their names, tags and
/// state to fit the first-level cache.
pub(crate) const ROWS_AHEAD: usize = 16;

/// A walk over all contexts for the bucket that was closed, in slices. The one place that removes contexts together with
/// their state.
#[derive(Default)]
pub(crate) struct HandOver {
    partition: usize,
    position: usize,
    contexts_expired: u64,
}

impl HandOver {
    /// Contexts that have expired so far.
    pub fn contexts_expired(&self) -> u64 {
        self.contexts_expired
    }

    /// Looks at up to `contexts_max` contexts, and returns a batch when one is complete.
    pub fn proceed(
        &mut self,
        contexts: &mut Contexts,
        aggregator: &mut Aggregator,
        contexts_max: usize,
    ) -> Option<Batch> {
        let mut budget = contexts_max;
        while aggregator.is_draining() {
            if self.partition == PARTITIONS {
                return Some(self.finish(contexts, aggregator));
            }
            if budget == 0 {
                return None;
            }
            aggregator.begin_partition(self.partition);
            let walked = self.walk_group(contexts, aggregator, budget.min(ROWS_AHEAD));
            let ended = walked == 0;
            if ended {
                self.end_partition(contexts, aggregator);
            }
            // An empty partition must not make the loop endless work either.
            budget -= walked.max(1);
            // Batches that are merged end with partitions; the last one ends with the bucket.
            let may_end = ended || aggregator.settings().partitioning == Partitioning::Id;
            if may_end
                && self.partition < PARTITIONS
                && let Some(batch) = aggregator.take_full_batch()
            {
                return Some(batch);
            }
        }
        None
    }

    /// Walks up to `contexts_max` contexts of the partition, and returns their number.
    fn walk_group(
        &mut self,
        contexts: &mut Contexts,
        aggregator: &mut Aggregator,
        contexts_max: usize,
    ) -> usize {
        let rest = &contexts.live(self.partition)[self.position..];
        let ahead = &rest[..rest.len().min(contexts_max)];
        let count = ahead.len();
        contexts.prefetch_rows(ahead);
        aggregator.prefetch_rows(ahead);
        for _ in 0..count {
            let live = contexts.live(self.partition)[self.position];
            if aggregator.write(contexts, live) {
                aggregator.forget(live);
                contexts.remove(self.partition, self.position);
                self.contexts_expired += 1;
            } else {
                self.position += 1;
            }
        }
        count
    }

    fn end_partition(&mut self, contexts: &mut Contexts, aggregator: &Aggregator) {
        // As many shards of aliases as partitions of contexts: one round a flush.
        if !aggregator.hands_over_zeros() {
            contexts.sweep_aliases();
        }
        self.partition += 1;
        self.position = 0;
    }

    fn finish(&mut self, contexts: &mut Contexts, aggregator: &mut Aggregator) -> Batch {
        (self.partition, self.position) = (0, 0);
        if !aggregator.hands_over_zeros() {
            contexts.expire_orphans(aggregator.oldest_remembered());
        }
        let (batch, is_last) = aggregator.finish_bucket();
        if is_last {
            aggregator.truncate(contexts.compact());
        }
        batch
    }
}
