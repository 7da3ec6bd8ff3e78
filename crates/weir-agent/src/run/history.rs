//! The history thread: stores the batches that the pipeline gives to outputs, and the books once a second.

#![allow(clippy::disallowed_methods, reason = "a thread of its own")]

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use weir_aggregate::{BATCHES_BEHIND_MAX, Batch};
use weir_listener::Monotonic;

use super::book_times::{BookTimes, Sample};
use super::bucket_marks::{BucketMark, BucketMarks};
use super::view::View;
use crate::hand_over::{self, Channel, HandOverMessage};
use weir_admin::history::{HistoryKind, Recent};
use weir_status::series::own_series;
use weir_system::process;

/// Time between two looks whether workers have reported.
const LOOK: Duration = Duration::from_millis(250);

/// Longest wait of all batches of a flush for the thread, which yields to the workers and to outputs. A query may hold it up too, and
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

/// The thread's end.
pub struct HistoryInbox {
    batches: Receiver<Arc<Batch>>,
    marks: Arc<BucketMarks>,
}

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

/// Starts the thread, which ends with the pipeline. `before`: the previous process, which sends its history.
pub fn start(
    recent: Arc<Recent>,
    inbox: HistoryInbox,
    view: Arc<View>,
    before: Option<Channel>,
) -> io::Result<()> {
    let thread_state = HistoryThread { recent, inbox, view };
    // Before clients know that the agent is ready: the thread can be late, and the books would miss what the first sample has.
    let first = thread_state.sample();
    std::thread::Builder::new()
        .name("history".into())
        .spawn(move || {
            weir_system::sys::let_workers_go_first();
            if let Some(before) = before {
                adopt(&thread_state.recent, &before);
            }
            thread_state.run(first);
        })
        .map(drop)
}

/// Sends everything to the next process.
pub fn give(recent: &Recent, channel: &Channel) -> io::Result<()> {
    recent.give(hand_over::STEP_MAX, |of, part| {
        let message = match of {
            HistoryKind::Points => HandOverMessage::Points,
            HistoryKind::Books => HandOverMessage::Books,
        };
        let bytes = postcard::to_extend(part, Vec::new()).map_err(io::Error::other)?;
        channel.send(message, &bytes, &[])
    })?;
    channel.send(HandOverMessage::HistoryEnd, &[], &[])
}

/// Receives what [`give`] sends. Batches wait meanwhile.
fn adopt(recent: &Recent, channel: &Channel) {
    let adopted = take_parts(recent, channel);
    recent.adopted();
    match adopted {
        Ok(()) => tracing::info!(
            "hand-over: the history continues with {} points",
            recent.points().figures().points
        ),
        Err(error) => tracing::warn!("hand-over: the history was received in part: {error}"),
    }
}

fn take_parts(recent: &Recent, channel: &Channel) -> io::Result<()> {
    loop {
        let message = channel.receive()?;
        let of = match message.is {
            HandOverMessage::Points => HistoryKind::Points,
            HandOverMessage::Books => HistoryKind::Books,
            HandOverMessage::HistoryEnd => return Ok(()),
            _ => return Err(message.unexpected()),
        };
        let part = postcard::from_bytes(&message.body).map_err(io::Error::other)?;
        recent.adopt(of, part).map_err(io::Error::other)?;
    }
}

struct HistoryThread {
    recent: Arc<Recent>,
    inbox: HistoryInbox,
    view: Arc<View>,
}

impl HistoryThread {
    fn run(self, first: Sample) {
        let mut books = BookTimes::new(first);
        loop {
            self.keep_books(&mut books);
            let now = Duration::from_nanos(unix_ns());
            let next_look = LOOK - Duration::from_nanos((now.as_nanos() % LOOK.as_nanos()) as u64);
            match self.inbox.batches.recv_timeout(next_look) {
                Ok(batch) => {
                    self.recent.take(&batch);
                    let bytes = batch.bytes();
                    drop(batch);
                    self.recent.remove_pending(bytes);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn keep_books(&self, books: &mut BookTimes) {
        if books.is_due(self.view.shared.reported_ns(), unix_ns()) {
            let sample = self.sample();
            for mark in self.inbox.marks.take() {
                books.mark(mark);
            }
            books.add(sample, |second, series, before| {
                self.recent.take_books(second as i64, series, before);
            });
        }
    }

    /// All series, with the times of their numbers.
    fn sample(&self) -> Sample {
        loop {
            let report = self.view.shared.reported_ns();
            let mut series = own_series(&self.view.snapshot());
            series.extend(process::series());
            // A report in between has changed a part of the numbers.
            if self.view.shared.reported_ns() == report {
                let read_ns = unix_ns();
                let ago = Monotonic::now().0.saturating_sub(report);
                return Sample {
                    series,
                    report,
                    reported_ns: read_ns.saturating_sub(ago),
                    read_ns,
                };
            }
        }
    }
}

fn unix_ns() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_nanos() as u64
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
