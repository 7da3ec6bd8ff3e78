//! The end of a bucket: writes its rows and removes expired contexts.

use weir_aggregate::{Aggregator, Batch};
use weir_context::{Contexts, PARTITIONS};

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
            if self.position == 0 {
                aggregator.begin_partition(self.partition);
            }
            budget = self.walk_partition(contexts, aggregator, budget)?;
            // As many shards of aliases as partitions of contexts: one round a flush.
            if !aggregator.hands_over_zeros() {
                contexts.sweep_aliases();
            }
            self.partition += 1;
            self.position = 0;
            if self.partition == PARTITIONS {
                continue;
            }
            if let Some(batch) = aggregator.take_full_batch() {
                return Some(batch);
            }
            // An empty partition must not make the loop endless work either.
            budget = budget.saturating_sub(1);
            if budget == 0 {
                return None;
            }
        }
        None
    }

    /// Walks the rest of a partition. Returns the rest of the budget; `None`: the budget ended first.
    fn walk_partition(
        &mut self,
        contexts: &mut Contexts,
        aggregator: &mut Aggregator,
        mut budget: usize,
    ) -> Option<usize> {
        let mut asked_for = self.position;
        while let Some(&live) = contexts.live(self.partition).get(self.position) {
            budget = budget.checked_sub(1)?;
            if self.position == asked_for {
                let rest = &contexts.live(self.partition)[asked_for..];
                let ahead = &rest[..rest.len().min(ROWS_AHEAD)];
                contexts.prefetch_rows(ahead);
                aggregator.prefetch_rows(ahead);
                asked_for += ahead.len();
            }
            if aggregator.write(contexts, live) {
                aggregator.forget(live);
                contexts.remove(self.partition, self.position);
                self.contexts_expired += 1;
            } else {
                self.position += 1;
            }
        }
        Some(budget)
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
