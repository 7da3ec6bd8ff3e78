//! Rows of a worker's contexts.

use weir_context::ContextRef;
use weir_protocol::Kind;
use weir_sketch::Sketch;

use super::{Batch, Row, RowValue, Span};
use crate::histogram::Histogram;
use crate::member_set::MemberSet;

/// Appends rows of one worker's contexts. Contexts with the same tag list share its texts in the batch.
#[derive(Default)]
pub(crate) struct RowWriter {
    /// Direct-mapped: tag list key, and the range of the list in this batch.
    recent_lists: Vec<Option<(u32, Span)>>,
}

const RECENT_LISTS: usize = 256;

impl RowWriter {
    /// Forgets the tag lists of the previous batch.
    pub fn begin(&mut self) {
        self.recent_lists.clear();
        self.recent_lists.resize(RECENT_LISTS, None);
    }

    pub fn counter(&mut self, batch: &mut Batch, context: ContextRef<'_>, sum: f64) {
        self.push(batch, context, Kind::Counter, RowValue::Counter(sum));
    }

    /// Appends the zero of a counter without samples.
    pub fn idle_counter(&mut self, batch: &mut Batch, context: ContextRef<'_>) {
        self.counter(batch, context, 0.0);
        if let Some(row) = batch.rows.last_mut() {
            row.idle = true;
        }
    }

    pub fn gauge(&mut self, batch: &mut Batch, context: ContextRef<'_>, value: f64, received: u64) {
        self.push(batch, context, Kind::Gauge, RowValue::Gauge { value, received });
    }

    pub fn set(&mut self, batch: &mut Batch, context: ContextRef<'_>, set: Box<MemberSet>) {
        batch.bodies.bytes += size_of::<MemberSet>() + set.heap_bytes();
        batch.bodies.sets.push(set);
        self.push(
            batch,
            context,
            Kind::Set,
            RowValue::Set(batch.bodies.sets.len() as u32 - 1),
        );
    }

    pub fn histogram(
        &mut self,
        batch: &mut Batch,
        context: ContextRef<'_>,
        kind: Kind,
        histogram: Box<Histogram>,
    ) {
        batch.bodies.bytes += size_of::<Histogram>() + histogram.heap_bytes();
        batch.bodies.histograms.push(histogram);
        self.push(
            batch,
            context,
            kind,
            RowValue::Histogram(batch.bodies.histograms.len() as u32 - 1),
        );
    }

    pub fn distribution(&mut self, batch: &mut Batch, context: ContextRef<'_>, sketch: Box<Sketch>) {
        batch.bodies.bytes += size_of::<Sketch>() + sketch.heap_bytes();
        batch.bodies.distributions.push(sketch);
        self.push(
            batch,
            context,
            Kind::Distribution,
            RowValue::Distribution(batch.bodies.distributions.len() as u32 - 1),
        );
    }

    fn push(&mut self, batch: &mut Batch, context: ContextRef<'_>, kind: Kind, value: RowValue) {
        let key = context.tag_list_key();
        let slot = key as usize % RECENT_LISTS;
        let tags = match self.recent_lists[slot] {
            Some((written, span)) if written == key => span,
            _ => {
                let span = batch.push_tags(context.tags());
                self.recent_lists[slot] = Some((key, span));
                span
            }
        };
        let name = batch.push_text(context.name());
        let host = context.host().map(|host| batch.push_text(host));
        let jmx_check = context.jmx_check().map(|check| batch.push_text(check));
        batch.rows.push(Row {
            context: Some(context.key()),
            hash: context.hash(),
            timestamp: 0,
            name,
            host,
            jmx_check,
            tags,
            suffix_mask: context.suffix_mask(),
            kind,
            idle: false,
            value,
        });
    }
}
