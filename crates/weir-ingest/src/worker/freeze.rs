//! A worker stops reading while another process takes over its state, and continues if that fails.

use std::io;
use std::sync::mpsc::Receiver;

use weir_listener::{EventLoop, Monotonic};

use super::{Report, Worker};
use crate::saved::SavedBucket;

/// The number of the report of a worker that ends.
pub const AT_THE_END: u64 = 0;

/// Takes a piece of the open bucket's state.
pub type PutState = Box<dyn Fn(&[u8]) -> io::Result<()> + Send + Sync>;

/// Looks at the sockets and connections of a worker.
pub type Inspect = Box<dyn FnOnce(&EventLoop) -> io::Result<()> + Send>;

/// Receives the result of a freeze, and the time since which nothing is received.
pub type OnFrozen = Box<dyn FnOnce(io::Result<()>, Monotonic) + Send>;

/// A worker's part in a hand-over to another process. It begins once no bucket is being handed over.
pub struct Freeze {
    /// Goes with the report of the open bucket, which may arrive when the hand-over has failed and another one has begun. Not
    /// [`AT_THE_END`].
    pub number: u64,
    /// Is given the series of the open bucket, piece by piece, before anything else is called.
    pub put: PutState,
    /// Receives the sockets and connections while they are not read.
    pub inspect: Inspect,
    /// Called with the result, once everything the worker had is on its way to the pipeline; and with the time since which
    /// nothing is received.
    pub frozen: OnFrozen,
    /// The worker never continues after a message here, since the process ends. It continues when the sender is dropped without one.
    pub thaw: Receiver<()>,
}

impl Worker {
    /// Stops reading, if it was asked to, no bucket is being handed over, and no payload of columns is half added.
    pub(super) fn freeze_if_requested(&mut self) {
        let is_handing_over = self.core.ingest.is_draining() || self.core.outbox.has_batch();
        let can = !is_handing_over && !self.inbox.columns.is_running();
        if let Some(freeze) = self.freeze.take_if(|_| can) {
            self.freeze(freeze);
        }
    }

    #[cold]
    fn freeze(&mut self, freeze: Freeze) {
        let since = Monotonic::now();
        let stamp = self.core.clock.stamp(self.core.agent);
        match self.core.ingest.save_encoded(stamp, &freeze.put) {
            Ok(saved) => self.complete_freeze(freeze.number, saved, since, freeze.inspect, freeze.frozen),
            Err(error) => (freeze.frozen)(Err(error), since),
        }
        if freeze.thaw.recv().is_ok() {
            self.event_loop.reset_encrypted();
            // Another process reads the sockets now, however long this one takes to end.
            loop {
                std::thread::park();
            }
        }
        self.progress_guard.end_turn(Monotonic::now().0);
    }

    /// Gives everything else that goes with the bucket.
    fn complete_freeze(
        &mut self,
        number: u64,
        mut saved: SavedBucket,
        since: Monotonic,
        inspect: Inspect,
        frozen: OnFrozen,
    ) {
        let _ = self.event_loop.refresh_drops();
        saved.drops = self.event_loop.drops_seen().collect();
        for relay in self.core.ingest.relays_mut() {
            relay.hand_over();
        }
        while let Some(batch) = self.core.ingest.take_pass_through() {
            self.core.outbox.send(Report::Batch(Box::new(batch)));
        }
        self.core.outbox.send(Report::Snapshot(Box::new(self.snapshot())));
        self.core.outbox.send_saved(number, saved);
        frozen(inspect(&self.event_loop), since);
    }
}
