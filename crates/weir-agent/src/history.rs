//! The history as a consumer: it stores the batches that the pipeline gives to outputs, and the books at whole seconds.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError};
use std::time::Duration;

use weir_admin::history::Recent;
use weir_aggregate::{BATCHES_BEHIND_MAX, Batch};

use crate::book_times::{BookTimes, Sample};
use crate::bucket_marks::{BucketMark, BucketMarks};

/// Longest wait of all batches of a flush for the keeper, which yields to the workers and to outputs. A query may hold it up too, and
/// outputs must not wait for that.
const WAIT_MAX: Duration = Duration::from_millis(500);

/// The pipeline's sender.
#[derive(Clone)]
pub struct HistoryFeed {
    inbox: SyncSender<Arc<Batch>>,
    recent: Arc<Recent>,
    marks: Arc<BucketMarks>,
    bytes_max: u64,
    /// Longest wait of all batches of a flush.
    patience: Duration,
}

/// The keeper's end.
pub struct HistoryInbox {
    batches: Receiver<Arc<Batch>>,
    marks: Arc<BucketMarks>,
}

/// No batch comes any more: the pipeline has ended.
#[derive(Debug)]
pub struct PipelineEnded;

impl HistoryFeed {
    /// Outputs are given a bucket next.
    pub fn mark(&self, mark: BucketMark) {
        self.marks.add(mark);
    }

    pub fn take(&self, batch: &Arc<Batch>) {
        if !self.recent.add_pending(batch, self.bytes_max, self.patience) {
            return;
        }
        if let Err(TrySendError::Full(batch)) = self.inbox.try_send(batch.clone()) {
            self.recent.remove_pending(batch.bytes());
            self.recent.count_lost(&batch);
        }
    }
}

/// A tenth of a bucket, which delays no flush into the next one.
pub fn patience(bucket: Duration) -> Duration {
    (bucket / 10).min(WAIT_MAX)
}

/// `bytes_max`: batches that wait take no more, or are one.
pub fn feed(recent: &Arc<Recent>, bytes_max: u64, patience: Duration) -> (HistoryFeed, HistoryInbox) {
    let (inbox, batches) = std::sync::mpsc::sync_channel(BATCHES_BEHIND_MAX);
    let marks = Arc::new(BucketMarks::default());
    let feed = HistoryFeed {
        inbox,
        recent: recent.clone(),
        marks: marks.clone(),
        bytes_max,
        patience,
    };
    (feed, HistoryInbox { batches, marks })
}

/// Keeps the history: of points, and of the books.
pub struct HistoryKeeper {
    recent: Arc<Recent>,
    inbox: HistoryInbox,
    books: BookTimes,
}

impl HistoryKeeper {
    /// `first`: the books at its start.
    pub fn new(recent: Arc<Recent>, inbox: HistoryInbox, first: Sample) -> Self {
        HistoryKeeper {
            recent,
            inbox,
            books: BookTimes::new(first),
        }
    }

    /// Stores the next batch, for which it waits up to `patience`. Returns whether one came.
    pub fn take_batch(&mut self, patience: Duration) -> Result<bool, PipelineEnded> {
        match self.inbox.batches.recv_timeout(patience) {
            Ok(batch) => {
                self.recent.take(&batch);
                let bytes = batch.bytes();
                drop(batch);
                self.recent.remove_pending(bytes);
                Ok(true)
            }
            Err(RecvTimeoutError::Timeout) => Ok(false),
            Err(RecvTimeoutError::Disconnected) => Err(PipelineEnded),
        }
    }

    /// Stores the books of the seconds that are known now. `report`: the last one of the workers; `now_ns`: Unix time.
    pub fn keep_books(&mut self, report: u64, now_ns: u64, sample: impl FnOnce() -> Sample) {
        if self.books.is_due(report, now_ns) {
            let sample = sample();
            for mark in self.inbox.marks.take() {
                self.books.mark(mark);
            }
            self.books.add(sample, |second, series, before| {
                self.recent.take_books(second as i64, series, before);
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use weir_admin::streams::Streams;
    use weir_aggregate::{BatchSource, Bucket, CheckRecord, IDLE_BUCKETS_MAX};
    use weir_protocol::CheckStatus;

    use super::*;

    /// With a check, because room is counted in bytes.
    fn batch() -> Arc<Batch> {
        let bucket = Bucket {
            start: 0,
            timestamp: 0,
            width: 1,
        };
        let mut batch = Batch::new(BatchSource::default(), bucket, "host".into());
        batch.push_check(CheckRecord {
            name: "up".to_owned(),
            status: CheckStatus::Ok,
            timestamp: 0,
            host: None,
            message: String::new(),
            tags: Vec::new(),
        });
        Arc::new(batch)
    }

    /// The room is that of one batch.
    #[test]
    fn a_batch_waits_for_the_thread_as_long_as_its_flush_may() {
        let recent = Arc::new(Recent::new(1 << 20, Streams::default()));
        let (patient, inbox) = feed(&recent, 1, Duration::from_secs(60));
        let batch = batch();
        patient.take(&batch);
        let (hasty, _) = feed(&recent, 1, Duration::ZERO);
        assert!(!recent.add_pending(&batch, hasty.bytes_max, hasty.patience));
        let taking = {
            let recent = recent.clone();
            let take = move |batch: Arc<Batch>| recent.remove_pending(batch.bytes());
            std::thread::spawn(move || inbox.batches.iter().map(take).count())
        };
        (1..100).for_each(|_| patient.take(&batch));
        drop(patient);
        assert_eq!(taking.join().unwrap(), 100);
    }

    /// A step of the clock closes the bucket under way and, for idle counters, many more at once.
    #[test]
    fn zero_buckets_of_a_step_displace_no_bucket() {
        let recent = Arc::new(Recent::new(1 << 20, Streams::default()));
        let (feed, inbox) = feed(&recent, u64::MAX, Duration::ZERO);
        let batch = batch();
        let buckets = 2 + IDLE_BUCKETS_MAX as usize;
        (0..buckets).for_each(|_| feed.take(&batch));
        assert_eq!(inbox.batches.try_iter().count(), buckets);
    }
}
