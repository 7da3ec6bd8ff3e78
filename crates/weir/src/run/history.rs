//! The history thread: stores the batches that the pipeline gives to outputs, and the books once a second.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use weir_aggregate::{Batch, Expansion};
use weir_output::prometheus::OwnSeries;

use super::view::View;
use crate::admin::series::own_series;
use crate::hand_over::{self, Channel};
use crate::history::{HistoryKind, Recent};
use crate::process;

/// Maximum batches that wait for the thread, which needs a few milliseconds for each. Their bytes are limited too.
const INBOX_BATCHES: usize = 16;

/// The pipeline's sender. Never waits.
#[derive(Clone)]
pub struct HistoryFeed {
    inbox: SyncSender<Arc<Batch>>,
    recent: Arc<Recent>,
    bytes_max: u64,
}

impl HistoryFeed {
    pub fn take(&self, batch: &Arc<Batch>) {
        if !self.recent.add_pending(batch, self.bytes_max) {
            return;
        }
        if let Err(TrySendError::Full(batch)) = self.inbox.try_send(batch.clone()) {
            self.recent.remove_pending(batch.bytes());
            self.recent.count_lost(&batch);
        }
    }
}

/// `bytes_max`: batches that wait take no more, or are one.
pub fn feed(recent: &Arc<Recent>, bytes_max: u64) -> (HistoryFeed, Receiver<Arc<Batch>>) {
    let (inbox, batches) = std::sync::mpsc::sync_channel(INBOX_BATCHES);
    let feed = HistoryFeed {
        inbox,
        recent: recent.clone(),
        bytes_max,
    };
    (feed, batches)
}

/// Starts the thread, which ends with the pipeline. `before`: the previous process, which sends its history.
pub fn start(
    recent: Arc<Recent>,
    batches: Receiver<Arc<Batch>>,
    expansion: Arc<Expansion>,
    view: Arc<View>,
    before: Option<Channel>,
) -> io::Result<()> {
    let thread_state = HistoryThread {
        recent,
        batches,
        expansion,
        view,
        before: Vec::new(),
    };
    std::thread::Builder::new()
        .name("history".into())
        .spawn(move || {
            crate::sys::let_workers_go_first();
            if let Some(before) = before {
                adopt(&thread_state.recent, &before);
            }
            thread_state.run();
        })
        .map(drop)
}

/// Sends everything to the next process.
pub fn give(recent: &Recent, channel: &Channel) -> io::Result<()> {
    recent.give(hand_over::STEP_MAX, |of, part| {
        let tag = match of {
            HistoryKind::Points => hand_over::POINTS,
            HistoryKind::Books => hand_over::BOOKS,
        };
        let bytes = postcard::to_extend(part, Vec::new()).map_err(io::Error::other)?;
        channel.send(tag, &bytes, &[])
    })?;
    channel.send(hand_over::HISTORY_END, &[], &[])
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
        let of = match message.tag {
            hand_over::POINTS => HistoryKind::Points,
            hand_over::BOOKS => HistoryKind::Books,
            hand_over::HISTORY_END => return Ok(()),
            tag => {
                return Err(io::Error::other(format!(
                    "unexpected message {tag} in the history"
                )));
            }
        };
        let part = postcard::from_bytes(&message.body).map_err(io::Error::other)?;
        recent.adopt(of, part).map_err(io::Error::other)?;
    }
}

struct HistoryThread {
    recent: Arc<Recent>,
    batches: Receiver<Arc<Batch>>,
    expansion: Arc<Expansion>,
    view: Arc<View>,
    /// The books of the previous second.
    before: Vec<OwnSeries>,
}

impl HistoryThread {
    fn run(mut self) {
        self.before = self.books();
        let mut done = unix_time().as_secs();
        loop {
            let now = unix_time();
            if now.as_secs() != done {
                done = now.as_secs();
                self.keep_books(done);
            }
            let next_second = Duration::from_secs(1) - Duration::from_nanos(u64::from(now.subsec_nanos()));
            match self.batches.recv_timeout(next_second) {
                Ok(batch) => {
                    self.recent.take(&batch, &self.expansion);
                    let bytes = batch.bytes();
                    drop(batch);
                    self.recent.remove_pending(bytes);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn keep_books(&mut self, second: u64) {
        let series = self.books();
        self.recent.take_books(second as i64, &series, &self.before);
        self.before = series;
    }

    fn books(&self) -> Vec<OwnSeries> {
        let mut series = own_series(&self.view.snapshot());
        series.extend(process::series());
        series
    }
}

fn unix_time() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}
