//! Reports on their way to the control plane.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError};

use weir_aggregate::Batch;
use weir_context::UsageSummary;

use super::Report;
use crate::saved::SavedBucket;

/// The channel to the control plane, and what found no room in it.
pub(super) struct Outbox {
    worker: u16,
    reports: SyncSender<Report>,
    batch: Option<Box<Batch>>,
    summary: Option<Report>,
    waits: u64,
    /// Bytes of batches that were handed over and not merged yet.
    bytes_in_transit: Arc<AtomicUsize>,
    /// Bytes of batches in transit at which the next one waits.
    bytes_max: usize,
}

impl Outbox {
    pub(super) fn new(worker: u16, reports: SyncSender<Report>, bytes_max: usize) -> Self {
        Outbox {
            worker,
            reports,
            batch: None,
            summary: None,
            waits: 0,
            bytes_in_transit: Arc::default(),
            bytes_max,
        }
    }

    pub(super) fn worker(&self) -> u16 {
        self.worker
    }

    /// Batches that waited because the control plane had not taken the ones before.
    pub(super) fn waits(&self) -> u64 {
        self.waits
    }

    /// A batch waits, or those on their way have all the memory that there is for them.
    pub(super) fn is_full(&self) -> bool {
        self.batch.is_some() || self.bytes() >= self.bytes_max
    }

    pub(super) fn has_batch(&self) -> bool {
        self.batch.is_some()
    }

    /// Bytes of batches that were handed over and not merged yet.
    pub(super) fn bytes(&self) -> usize {
        self.bytes_in_transit.load(Ordering::Relaxed)
    }

    /// Gives a batch, without waiting. Only when none waits.
    pub(super) fn offer(&mut self, mut batch: Box<Batch>) {
        batch.begin_transit(&self.bytes_in_transit);
        // Without the control plane the process is ending.
        if let Err(TrySendError::Full(Report::Batch(batch))) = self.reports.try_send(Report::Batch(batch)) {
            self.waits += 1;
            self.batch = Some(batch);
        }
    }

    /// Offers again the batch that waits.
    pub(super) fn retry_batch(&mut self) {
        if let Some(batch) = self.batch.take() {
            self.offer(batch);
        }
    }

    /// Gives the batch that waits, for as long as that takes.
    pub(super) fn wait_for_batch(&mut self) {
        if let Some(batch) = self.batch.take() {
            self.send(Report::Batch(batch));
        }
    }

    /// Gives the open bucket of a worker that has stopped, behind all its batches.
    pub(super) fn send_saved(&mut self, number: u64, bucket: SavedBucket) {
        self.wait_for_batch();
        self.send(Report::Saved {
            worker: self.worker,
            number,
            bucket: Box::new(bucket),
        });
    }

    /// Usage, sent with the next [`Outbox::retry_summary`].
    pub(super) fn put_summary(&mut self, summary: UsageSummary) {
        self.summary = Some(Report::Usage(self.worker, Box::new(summary)));
    }

    pub(super) fn retry_summary(&mut self) {
        if let Some(report) = self.summary.take()
            && let Err(TrySendError::Full(report)) = self.reports.try_send(report)
        {
            self.summary = Some(report);
        }
    }

    /// A report without room is lost: a newer one follows.
    pub(super) fn try_send(&self, report: Report) {
        let _ = self.reports.try_send(report);
    }

    /// Waits for room. Without the control plane the process is ending.
    pub(super) fn send(&self, report: Report) {
        let _ = self.reports.send(report);
    }
}
