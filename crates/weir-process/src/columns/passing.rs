//! A hand-over to another process: it accepts the connections that this one has not accepted, and adds what is not in a bucket by then.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use weir_listener::{BoundSocket, ListenerId};

use super::{Columns, REQUESTS_MAX};

/// Interval of looking for the end of requests.
const LOOK: Duration = Duration::from_millis(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Serving,
    /// Connections wait in the kernel, and new requests on open ones are refused. Workers may be stopped, and then have payloads that
    /// nobody has added.
    Held,
    /// Another process has the buckets: whatever has no answer is refused.
    Passed,
}

/// A listening socket. Its file is removed at the end, unless another process has it then.
pub struct ColumnSocket {
    bound: BoundSocket,
    columns: Arc<Columns>,
}

impl ColumnSocket {
    pub fn new(bound: BoundSocket, columns: Arc<Columns>) -> ColumnSocket {
        ColumnSocket { bound, columns }
    }

    pub fn bound(&self) -> &BoundSocket {
        &self.bound
    }
}

impl Drop for ColumnSocket {
    fn drop(&mut self) {
        if self.columns.stage() == Stage::Passed {
            self.bound.keep();
        }
    }
}

impl Columns {
    /// The listening sockets.
    pub fn sockets(&self) -> impl Iterator<Item = (ListenerId, BorrowedFd<'_>)> {
        let sockets: &[(ListenerId, OwnedFd)] = &self.sockets;
        sockets.iter().map(|(id, socket)| (*id, socket.as_fd()))
    }

    /// Accepts nothing more, and waits until open requests are answered, at most `patience` or until the agent stops. Not for async tasks.
    pub fn hold(&self, patience: Duration, stops: impl Fn() -> bool) {
        self.stage.send_replace(Stage::Held);
        let answered = || self.requests.available_permits() == REQUESTS_MAX;
        wait(patience, || answered() || stops());
    }

    /// Undoes [`Columns::hold`].
    pub fn resume(&self) {
        self.stage.send_replace(Stage::Serving);
    }

    /// Another process has taken over. Connections end, each with the answer to its request.
    pub fn pass(&self) {
        self.stage.send_replace(Stage::Passed);
    }

    /// Waits until all connections have ended, at most `patience`. Not for async tasks.
    pub fn wait_for_end(&self, patience: Duration) {
        wait(patience, || Arc::strong_count(&self.connections) == 1);
    }

    pub(super) fn stage(&self) -> Stage {
        *self.stage.borrow()
    }

    pub(super) async fn serving(&self) {
        self.reached(|stage| stage == Stage::Serving).await;
    }

    pub(super) async fn held(&self) {
        self.reached(|stage| stage != Stage::Serving).await;
    }

    pub(super) async fn passed(&self) {
        self.reached(|stage| stage == Stage::Passed).await;
    }

    async fn reached(&self, is_it: impl Fn(Stage) -> bool) {
        drop(self.stage.subscribe().wait_for(|stage| is_it(*stage)).await);
    }
}

fn wait(patience: Duration, is_over: impl Fn() -> bool) {
    let deadline = Instant::now() + patience;
    while !is_over() && Instant::now() < deadline {
        std::thread::sleep(LOOK);
    }
}
