//! A worker stops reading while another process takes over its state, and continues if that fails.

use std::io;
use std::sync::mpsc::Receiver;

use weir_listener::{EventLoop, Monotonic};

use super::{Report, Worker};

/// Looks at the sockets and connections of a worker.
pub type Lend = Box<dyn FnOnce(&EventLoop) -> io::Result<()> + Send>;

/// A worker's part in a hand-over to another process. It begins once no bucket is being handed over.
pub struct Freeze {
    /// Receives the sockets and connections while they are not read.
    pub lend: Lend,
    /// Called with the result, once everything the worker had is on its way to the pipeline; and with the time since which
    /// nothing is received.
    pub frozen: Box<dyn FnOnce(io::Result<()>, Monotonic) + Send>,
    /// The process ends when a message arrives here. The worker continues when the sender is dropped.
    pub thaw: Receiver<()>,
}

impl Worker {
    /// Stops reading, if it was asked to and no bucket is being handed over.
    pub(super) fn freeze_if_asked(&mut self) {
        let can = !self.ingest.is_draining() && !self.outbox.has_batch();
        if let Some(freeze) = self.freeze.take_if(|_| can) {
            self.stand_still(freeze);
        }
    }

    #[cold]
    fn stand_still(&mut self, freeze: Freeze) {
        let since = Monotonic::now();
        let mut saved = self.ingest.save_encoded(self.clock.carried(self.agent));
        let _ = self.event_loop.refresh_drops();
        saved.drops = self.event_loop.drops_seen().collect();
        for relay in self.ingest.relays_mut() {
            relay.hand_over();
        }
        while let Some(batch) = self.ingest.take_passed_on() {
            self.outbox.send(Report::Batch(Box::new(batch)));
        }
        self.outbox.send(Report::Snapshot(Box::new(self.snapshot())));
        self.outbox.send(Report::Saved(Box::new(saved)));
        let lent = (freeze.lend)(&self.event_loop);
        (freeze.frozen)(lent, since);
        while freeze.thaw.recv().is_ok() {
            self.event_loop.reset_encrypted();
        }
        self.alive.turned(Monotonic::now().0);
    }
}
