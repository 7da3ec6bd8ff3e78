//! From the workers' reports to the outputs: merging, summaries, the current status.

use std::sync::mpsc::Receiver;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use weir_aggregate::{Batch, Bucket, Merger};
use weir_context::{ContextCounter, UsageSummary};
use weir_counters::Counts;
use weir_ingest::{BadInput, Report, SavedBucket, WorkerSnapshot};
use weir_output::delivery::Clock;

use crate::state::Tally;
use weir_status::counters::PipelineCounter;

/// The pipeline's state that others may read.
#[derive(Default)]
pub struct Shared {
    state: Mutex<PipelineState>,
    saved: Mutex<SavedBuckets>,
    saved_arrived: Condvar,
    reported: Condvar,
    /// Notified when outputs have been given a bucket.
    pub flushed: tokio::sync::Notify,
}

/// The open buckets of workers that were stopped for another process.
#[derive(Default)]
struct SavedBuckets {
    /// The number of the stop that they belong to. Others arrive late, and are dropped.
    number: u64,
    arrived: Vec<SavedBucket>,
}

#[derive(Clone, Default)]
pub struct PipelineState {
    pub workers: Vec<Option<WorkerSnapshot>>,
    pub counts: Counts<PipelineCounter>,
}

impl Shared {
    pub fn lock(&self) -> MutexGuard<'_, PipelineState> {
        // The state consists of plain numbers, so a panic elsewhere cannot leave it inconsistent in a way that matters.
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Waits until every worker has reported. Returns false on timeout.
    pub fn wait_for_workers(&self, patience: Duration) -> bool {
        let is_missing = |state: &mut PipelineState| state.workers.iter().any(Option::is_none);
        let waited = self
            .reported
            .wait_timeout_while(self.lock(), patience, is_missing);
        let (_state, waited) = waited.unwrap_or_else(PoisonError::into_inner);
        !waited.timed_out()
    }

    /// When workers last reported, on the monotonic clock; the mean over them.
    pub fn reported_ns(&self) -> u64 {
        let state = self.lock();
        let times = state
            .workers
            .iter()
            .flatten()
            .map(|worker| u128::from(worker.at_ns));
        let number = times.clone().count().max(1) as u128;
        (times.sum::<u128>() / number) as u64
    }

    /// The contexts of all workers, as of their last reports.
    pub fn contexts(&self) -> u64 {
        let state = self.lock();
        let of_workers = state.workers.iter().flatten();
        of_workers
            .map(|worker| worker.contexts.counts[ContextCounter::Live])
            .sum()
    }

    fn lock_saved(&self) -> MutexGuard<'_, SavedBuckets> {
        self.saved.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a stop of the workers, and returns its number. Drops the buckets of earlier ones.
    pub fn expect_saved(&self) -> u64 {
        let mut saved = self.lock_saved();
        saved.arrived = Vec::new();
        saved.number += 1;
        saved.number
    }

    /// Begins the last stop.
    pub fn expect_last(&self) {
        *self.lock_saved() = SavedBuckets {
            number: weir_ingest::AT_THE_END,
            arrived: Vec::new(),
        };
    }

    fn add_saved(&self, number: u64, bucket: SavedBucket) {
        let mut saved = self.lock_saved();
        if saved.number == number {
            saved.arrived.push(bucket);
            self.saved_arrived.notify_all();
        }
    }

    /// Whether this is the bucket of the last of `workers` in this stop, and the others are in the same one.
    fn have_stopped_together(&self, number: u64, last: &SavedBucket, workers: usize) -> bool {
        let saved = self.lock_saved();
        let mut others = saved.arrived.iter();
        saved.number == number
            && others.len() + 1 == workers
            && others.all(|other| other.bucket == last.bucket)
    }

    /// Takes the open buckets of `workers`, after everything that they handed over before has been delivered to the outputs.
    pub fn take_saved(&self, workers: usize, patience: Duration) -> Option<Vec<SavedBucket>> {
        let saved = self.lock_saved();
        let is_missing = |saved: &mut SavedBuckets| saved.arrived.len() < workers;
        let waited = self.saved_arrived.wait_timeout_while(saved, patience, is_missing);
        let (mut saved, waited) = waited.unwrap_or_else(PoisonError::into_inner);
        (!waited.timed_out()).then(|| std::mem::take(&mut saved.arrived))
    }

    /// Takes the buckets of the last stop, when no worker runs.
    pub fn take_last(&self) -> Vec<SavedBucket> {
        std::mem::take(&mut self.lock_saved().arrived)
    }
}

/// Outputs, and everything else that is given merged buckets.
pub trait Consumers {
    /// Between two buckets: other outputs may have taken the place of these.
    fn renew(&mut self);

    /// The next batch is the first of this bucket.
    fn begin(&mut self, _bucket: Bucket) {}

    /// Does not wait for long.
    fn take(&mut self, batch: &Arc<Batch>);
}

pub struct Pipeline<C> {
    reports: Receiver<Report>,
    merger: Merger,
    consumers: C,
    /// Is told which buckets consumers are given.
    tally: Option<Arc<Tally>>,
    shared: Arc<Shared>,
    /// That have not ended.
    running: usize,
    on_bad_input: Box<dyn FnMut(BadInput) + Send>,
    on_flush: Box<dyn FnMut(&Flushed) + Send>,
    on_usage: Box<dyn FnMut(u16, UsageSummary) + Send>,
    rows_of_bucket: u64,
    clock: Clock,
    /// Arrival of the first batch of the current bucket, on the clock.
    began: Option<Duration>,
}

/// One bucket, handed over completely.
pub struct Flushed {
    pub rows: u64,
    pub state: PipelineState,
}

impl<C: Consumers> Pipeline<C> {
    pub fn new(
        reports: Receiver<Report>,
        merger: Merger,
        consumers: C,
        tally: Option<Arc<Tally>>,
        shared: Arc<Shared>,
        on_bad_input: Box<dyn FnMut(BadInput) + Send>,
        on_flush: Box<dyn FnMut(&Flushed) + Send>,
        on_usage: Box<dyn FnMut(u16, UsageSummary) + Send>,
        clock: Clock,
    ) -> Self {
        shared.lock().workers = vec![None; merger.workers()];
        Pipeline {
            reports,
            running: merger.workers(),
            merger,
            consumers,
            tally,
            shared,
            on_bad_input,
            on_flush,
            on_usage,
            rows_of_bucket: 0,
            clock,
            began: None,
        }
    }

    /// Runs until every worker has ended and everything is handed over.
    pub fn run(mut self) {
        while self.running > 0 {
            let Ok(report) = self.reports.recv() else { break };
            self.report(report);
        }
        self.finish();
    }

    /// Takes the next report that has arrived. False: none has.
    #[cfg(test)]
    pub fn step(&mut self) -> bool {
        let report = self.reports.try_recv();
        report.is_ok_and(|report| {
            self.report(report);
            true
        })
    }

    #[cfg(test)]
    pub fn look(&self) -> &C {
        &self.consumers
    }

    #[cfg(test)]
    pub fn consumers(&mut self) -> &mut C {
        &mut self.consumers
    }

    /// No worker ends a bucket any more: hands over the rest.
    pub fn finish(&mut self) {
        self.forward(0, |merger, ready| merger.finish(|merged| ready.push(merged)));
    }

    fn report(&mut self, report: Report) {
        if self.began.is_none() {
            self.consumers.renew();
        }
        match report {
            Report::Batch(batch) => self.batch(*batch),
            Report::Snapshot(snapshot) => {
                let worker = usize::from(snapshot.worker);
                self.shared.lock().workers[worker] = Some(*snapshot);
                self.shared.reported.notify_all();
            }
            Report::Saved {
                worker,
                number,
                bucket,
            } => {
                self.deliver_before(worker, &bucket);
                if self.shared.have_stopped_together(number, &bucket, self.running) {
                    // A bucket that ended before the clock was set back waits here for workers that never had it, and is in no open bucket:
                    // another process would not have it.
                    self.finish();
                }
                self.shared.add_saved(number, *bucket);
            }
            Report::Begun { worker, open } => {
                self.forward(0, |merger, ready| {
                    merger.has_none_before(worker, open, |merged| ready.push(merged));
                });
            }
            Report::BadInput(bad_input) => (self.on_bad_input)(bad_input),
            Report::Usage(worker, summary) => (self.on_usage)(worker, *summary),
            Report::Done(worker) => {
                self.running -= 1;
                self.forward(0, |merger, ready| {
                    merger.remove_worker(worker, |merged| ready.push(merged))
                });
            }
        }
    }

    /// Delivers buckets of other workers that this one, which has stopped in its open bucket, never had.
    fn deliver_before(&mut self, worker: u16, open: &SavedBucket) {
        if let Some(bucket) = open.bucket {
            self.forward(0, |merger, ready| {
                merger.has_none_before(worker, bucket.start, |merged| ready.push(merged));
            });
        }
    }

    fn batch(&mut self, batch: Batch) {
        let rows = if batch.partitions.is_empty() {
            0
        } else {
            batch.len() as u64
        };
        self.forward(rows, |merger, ready| {
            merger.push(batch, |merged| ready.push(merged));
        });
    }

    /// Delivers complete buckets after a step of the merger that took `rows`.
    fn forward(&mut self, rows: u64, step: impl FnOnce(&mut Merger, &mut Vec<Batch>)) {
        let mut ready = Vec::new();
        step(&mut self.merger, &mut ready);
        self.record_merge(rows);
        for merged in ready {
            self.deliver(merged);
        }
    }

    fn record_merge(&self, received: u64) {
        let counts = &mut self.shared.lock().counts;
        counts[PipelineCounter::RowsReceived] += received;
        counts[PipelineCounter::RowsLost] = self.merger.rows_lost();
        counts[PipelineCounter::RowsWaiting] = self.merger.pending_rows() as u64;
    }

    fn deliver(&mut self, mut merged: Batch) {
        let (last, is_bucket) = (merged.last, !merged.partitions.is_empty());
        let samples_until = merged.samples_until;
        if is_bucket {
            self.rows_of_bucket += merged.len() as u64;
            if self.began.is_none() {
                self.consumers.begin(merged.bucket);
                self.began = Some(self.clock.now());
            }
        }
        if let Some(tally) = &self.tally
            && is_bucket
        {
            tally.submits(merged.bucket.start);
        }
        // Before the end of the bucket that they count with.
        for timestamped in std::mem::take(&mut merged.timestamped) {
            self.consumers.take(&Arc::new(timestamped));
        }
        let merged = Arc::new(merged);
        self.consumers.take(&merged);
        if last {
            if let Some(tally) = &self.tally {
                tally.handed_over(samples_until);
            }
            let rows = std::mem::take(&mut self.rows_of_bucket);
            let state = {
                let mut state = self.shared.lock();
                let took = self
                    .began
                    .take()
                    .map_or(Duration::ZERO, |began| self.clock.now() - began);
                let counts = &mut state.counts;
                counts[PipelineCounter::RowsMerged] += rows;
                counts[PipelineCounter::FlushSeries] = rows;
                counts[PipelineCounter::FlushedAt] = self.clock.unix().max(0) as u64;
                counts[PipelineCounter::FlushNs] = took.as_nanos() as u64;
                state.clone()
            };
            let flushed = Flushed { rows, state };
            (self.on_flush)(&flushed);
            self.shared.flushed.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use weir_aggregate::AggregatorSettings;
    use weir_context::{ContextLimits, HashSecret, Rules};
    use weir_ingest::{Ingest, IngestSettings, ListenerSettings, Received};

    use super::*;

    /// The bucket of a worker that had one packet.
    fn batch(packet: &str) -> Batch {
        let settings = IngestSettings {
            worker: 0,
            aggregator: AggregatorSettings::default(),
            rules: Rules::default(),
            limits: ContextLimits::default(),
            secret: HashSecret::from_random(1, 2),
            listeners: vec![ListenerSettings::default()],
        };
        let mut ingest = Ingest::new(settings, 0);
        ingest.packet(Received {
            bytes: packet.as_bytes(),
            listener: 0,
            truncated: false,
            received: 1,
        });
        let _ = ingest.close_now();
        ingest.drain(usize::MAX).expect("the bucket")
    }

    /// Notes the calls.
    #[derive(Default)]
    struct Calls(Vec<(&'static str, i64)>);

    impl Consumers for Calls {
        fn renew(&mut self) {}

        fn begin(&mut self, bucket: Bucket) {
            self.0.push(("begin", bucket.start));
        }

        fn take(&mut self, batch: &Arc<Batch>) {
            self.0
                .push((if batch.last { "last" } else { "part" }, batch.bucket.start));
        }
    }

    /// The marks of [`crate::bucket_marks`] are made in `begin`.
    #[test]
    fn consumers_hear_of_a_bucket_once_and_before_they_are_given_any_of_it() {
        let (_sender, reports) = std::sync::mpsc::sync_channel(1);
        let mut pipeline = Pipeline::new(
            reports,
            Merger::new(1),
            Calls::default(),
            None,
            Arc::default(),
            Box::new(|_| {}),
            Box::new(|_| {}),
            Box::new(|_, _| {}),
            Clock::driven(0).0,
        );
        let batch = batch("a:1|c");
        let first = batch.bucket.start;
        for bucket in 0..3 {
            for last in [false, true] {
                let mut part = batch.clone();
                part.last = last;
                part.bucket.start = first + bucket * 10;
                part.rows_of_bucket = if last { 2 } else { 1 } * batch.rows_of_bucket;
                pipeline.report(Report::Batch(Box::new(part)));
            }
        }
        pipeline.finish();
        let calls = &pipeline.consumers().0;
        for bucket in 0..3 {
            let start = first + bucket * 10;
            let of_bucket: Vec<_> = calls
                .iter()
                .filter(|(_, of)| *of == start)
                .map(|(call, _)| *call)
                .collect();
            assert_eq!(of_bucket.first(), Some(&"begin"), "{calls:?}");
            assert_eq!(of_bucket.last(), Some(&"last"), "{calls:?}");
            let begun = of_bucket.iter().filter(|call| **call == "begin").count();
            assert_eq!(begun, 1, "{calls:?}");
        }
    }
}
