//! The standard output as an output: a thread of its own, so that a slow reader delays nobody else.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError};

use weir_aggregate::{Batch, Expansion};
use weir_output::json_lines;

use super::pipeline::BatchSink;
use crate::admin::status::{OutputStatus, PointBooks};

/// Batches that may wait for the reader of standard output.
const QUEUE_BATCHES: usize = 256;

#[derive(Default)]
pub struct StdoutBooks {
    taken: AtomicU64,
    /// In the queue or being written.
    queued: AtomicU64,
    delivered: AtomicU64,
    dropped_queue_full: AtomicU64,
    dropped_write_failed: AtomicU64,
}

impl StdoutBooks {
    /// Counted in rows, events and checks together.
    pub fn status(&self, name: &str) -> OutputStatus {
        let load = |counter: &AtomicU64| counter.load(Ordering::Acquire);
        let failed = load(&self.dropped_write_failed);
        let points = PointBooks {
            produced: load(&self.taken),
            delivered: load(&self.delivered),
            pending: load(&self.queued),
            dropped: [
                ("queue_full".to_string(), load(&self.dropped_queue_full)),
                ("write_failed".to_string(), failed),
            ]
            .into(),
        };
        OutputStatus {
            name: name.into(),
            output_type: "stdout".into(),
            healthy: failed == 0,
            last_error: (failed > 0).then(|| "standard output cannot be written".to_string()),
            points,
            ..Default::default()
        }
    }
}

pub struct StdoutSink {
    queue: Option<SyncSender<Arc<Batch>>>,
    writer: Option<std::thread::JoinHandle<()>>,
    books: Arc<StdoutBooks>,
}

fn items(batch: &Batch) -> u64 {
    (batch.len() + batch.events.len() + batch.checks.len()) as u64
}

impl StdoutSink {
    pub fn start(expansion: Expansion, books: Arc<StdoutBooks>) -> std::io::Result<Self> {
        let (queue, batches) = std::sync::mpsc::sync_channel(QUEUE_BATCHES);
        let thread_books = books.clone();
        let writer = std::thread::Builder::new()
            .name("stdout".into())
            .spawn(move || write_batches(&batches, &expansion, &thread_books))?;
        Ok(StdoutSink {
            queue: Some(queue),
            writer: Some(writer),
            books,
        })
    }
}

fn write_batches(batches: &Receiver<Arc<Batch>>, expansion: &Expansion, books: &StdoutBooks) {
    let mut text = Vec::new();
    while let Ok(batch) = batches.recv() {
        text.clear();
        json_lines::write_batch(&batch, expansion, &mut text);
        let mut stdout = std::io::stdout().lock();
        let counter = match stdout.write_all(&text).and_then(|()| stdout.flush()) {
            Ok(()) => &books.delivered,
            Err(_) => &books.dropped_write_failed,
        };
        counter.fetch_add(items(&batch), Ordering::AcqRel);
        books.queued.fetch_sub(items(&batch), Ordering::AcqRel);
    }
}

impl BatchSink for StdoutSink {
    fn take(&mut self, batch: &Arc<Batch>) {
        let Some(queue) = &self.queue else { return };
        self.books.taken.fetch_add(items(batch), Ordering::AcqRel);
        self.books.queued.fetch_add(items(batch), Ordering::AcqRel);
        if let Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) = queue.try_send(batch.clone()) {
            self.books.queued.fetch_sub(items(batch), Ordering::AcqRel);
            self.books
                .dropped_queue_full
                .fetch_add(items(batch), Ordering::AcqRel);
        }
    }

    fn finish(&mut self) {
        self.queue = None;
        if let Some(writer) = self.writer.take() {
            let _ = writer.join();
        }
    }
}
