//! The open bucket leaves for another process, or comes from one.

use weir_aggregate::Carried;
use weir_context::{KnownContext, PARTITIONS};
use weir_state::{Facts, Identity};

use super::{Hurry, Ingest};
use crate::saved::{Restored, SavedBucket, SavedSeries};

impl Ingest {
    /// Everything that the open bucket has, and the contexts that are remembered. Nothing may wait to be handed over, and no
    /// packet may come behind it.
    pub fn save(&mut self, carried: Carried) -> SavedBucket {
        self.feed_parked(0, Hurry::End);
        let series = (0..PARTITIONS).flat_map(|partition| self.contexts.live(partition));
        let series = series.filter_map(|&live| {
            let (seen, state) = self.aggregator.save(live, carried)?;
            let context = self.contexts.get(live.kind(), live.id());
            let (host, integration) = (context.host(), context.jmx_check());
            let identity = Identity::new(live.kind(), context.name(), host, integration, context.tags());
            let suffixes = context.suffix_mask();
            Some((identity, Facts { seen, suffixes }, state))
        });
        SavedBucket {
            series: series.collect(),
            bucket: Some(self.aggregator.open_bucket()),
            samples: self.aggregator.open_samples(),
        }
    }

    /// Goes on with a bucket that another process began. Before the first packet; `now`: Unix seconds.
    pub fn resume(&mut self, saved: SavedBucket, now: i64, carried: Carried) -> Restored {
        let mut restored = Restored::default();
        let Some(bucket) = saved.bucket else {
            return restored;
        };
        self.aggregator.resume(bucket, saved.samples, now);
        for series in saved.series {
            match self.restore(series, carried) {
                true => restored.contexts += 1,
                false => restored.refused += 1,
            }
        }
        self.contexts.set_state_bytes(self.aggregator.expected_bytes());
        restored
    }

    fn restore(&mut self, (identity, facts, state): SavedSeries, carried: Carried) -> bool {
        let Identity {
            name,
            kind,
            host,
            integration,
            tags,
        } = &identity;
        let tags: Vec<&str> = tags.iter().map(AsRef::as_ref).collect();
        let context = self.contexts.restore(KnownContext {
            kind: *kind,
            name,
            host: host.as_deref(),
            integration: integration.as_deref(),
            tags: &tags,
            suffixes: facts.suffixes,
        });
        if let Some(id) = context {
            self.aggregator.restore(*kind, id, facts.seen, state, carried);
        }
        context.is_some()
    }
}
