//! Rows of a fleet: series with the merged state of many agents.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;

use weir_state::{Identity, State};

use super::{Batch, BatchSource, Bucket, Row, RowValue};
use crate::histogram::Histogram;
use crate::member_set::MemberSet;

impl Batch {
    /// An empty batch of a fleet's bucket, which has no host. [`Batch::push_merged`] fills it with series of this partition of the log.
    pub fn of_fleet(bucket: Bucket, sequence: u64, partition: u32) -> Self {
        let source = BatchSource { worker: 0, sequence };
        let mut batch = Batch::new(source, bucket, Arc::from(""));
        let partition = partition as usize;
        batch.partitions = partition..partition + 1;
        batch.partition_starts.push(0);
        batch
    }

    /// Appends a series with its state in the batch's bucket. Each series must occur once in a bucket.
    pub fn push_merged(&mut self, identity: Identity, suffix_mask: u32, state: State) {
        let mut hasher = DefaultHasher::new();
        identity.hash(&mut hasher);
        let value = self.push_state(state);
        let mut optional = |text: Option<Box<str>>| text.map(|text| self.push_text(&text));
        let (host, jmx_check) = (optional(identity.host), optional(identity.integration));
        let name = self.push_text(&identity.name);
        let tags = self.push_tags(identity.tags.iter().map(AsRef::as_ref));
        self.rows.push(Row {
            context: None,
            hash: hasher.finish(),
            timestamp: 0,
            name,
            host,
            jmx_check,
            tags,
            suffix_mask,
            kind: identity.kind,
            idle: false,
            value,
        });
    }

    fn push_state(&mut self, state: State) -> RowValue {
        match state {
            State::Counter(sum) => RowValue::Counter(sum.to_f64()),
            State::Gauge(gauge) => RowValue::Gauge {
                value: gauge.value,
                received: 0,
            },
            State::Set(members) => {
                let set = MemberSet::restored(members);
                self.bodies.bytes += size_of::<MemberSet>() + set.heap_bytes();
                self.bodies.sets.push(Box::new(set));
                RowValue::Set(self.bodies.sets.len() as u32 - 1)
            }
            State::Samples(samples) => {
                let histogram = Histogram::restored(&samples);
                self.bodies.bytes += size_of::<Histogram>() + histogram.heap_bytes();
                self.bodies.histograms.push(Box::new(histogram));
                RowValue::Histogram(self.bodies.histograms.len() as u32 - 1)
            }
            // The agents keep the remainders and count them with their next samples.
            State::Distribution(distribution) => {
                let sketch = distribution.sketch();
                self.bodies.bytes += size_of_val(&sketch) + sketch.heap_bytes();
                self.bodies.distributions.push(Box::new(sketch));
                RowValue::Distribution(self.bodies.distributions.len() as u32 - 1)
            }
        }
    }
}
