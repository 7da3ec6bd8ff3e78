//! Metrics as columns over HTTP: requests of clients that aggregate, decoded here and handed to a worker.
//!
//! The control plane serves it. A worker gets rows in memory that was counted before, and adds them in slices between its packets.

use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use weir_columns::decode::Limits;
use weir_counters::Counts;
use weir_ingest::{CommandSender, RequestNumber, worker_of};
use weir_listener::{AllowList, ListenerId, SourceRates};

pub mod body;
mod number;
mod passing;
mod request;
mod server;

use passing::Stage;

use weir_admin::tap::columns::ColumnTaps;
use weir_agent::state::SavedPayloads;
use weir_status::counters::HttpCounter;

pub use passing::ColumnSocket;
pub use server::ColumnServer;

/// Requests that are read and decoded at the same time.
const REQUESTS_MAX: usize = 64;

/// Memory that one request may take, at most: the payload as it was sent, without its compression, and decoded.
const REQUEST_BYTES_MAX: usize = 64 << 20;

/// Unit of the memory of requests.
const UNIT: usize = 1 << 10;

/// Shared by the listeners of columns.
pub struct Columns {
    workers: Vec<CommandSender>,
    /// For payloads without a number.
    next_worker: AtomicUsize,
    requests: Arc<Semaphore>,
    /// In units.
    memory: Arc<Semaphore>,
    memory_bytes: usize,
    /// The payloads that a kill does not lose.
    saved: SavedPayloads,
    /// Readers that requests are shown to.
    pub taps: Arc<ColumnTaps>,
    /// The listening sockets, for another process.
    sockets: Vec<(ListenerId, OwnedFd)>,
    stage: watch::Sender<Stage>,
    /// Each open connection has a clone.
    connections: Arc<()>,
    books: Mutex<Vec<Counts<HttpCounter>>>,
}

/// Settings of one listener of columns.
#[derive(Clone)]
pub struct ColumnListener {
    /// Its number.
    pub number: usize,
    /// As it is shown.
    pub address: String,
    pub allow: AllowList,
    pub rates: Option<Arc<SourceRates>>,
    /// The kernel is asked for the process behind a connection.
    pub has_credentials: bool,
    /// It is reached from this machine alone.
    pub is_loopback: bool,
}

/// A request that has no answer yet.
struct UnderWay<'a> {
    columns: &'a Columns,
    listener: usize,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.columns.books()[self.listener][HttpCounter::UnderWay] -= 1;
    }
}

/// No memory is left for another request.
struct Full;

impl Columns {
    /// `listeners`: the number of all listeners. `bytes`: for all requests together.
    pub fn new(
        workers: Vec<CommandSender>,
        sockets: Vec<(ListenerId, OwnedFd)>,
        listeners: usize,
        bytes: usize,
        saved: SavedPayloads,
    ) -> Arc<Columns> {
        Arc::new(Columns {
            workers,
            next_worker: AtomicUsize::new(0),
            requests: Arc::new(Semaphore::new(REQUESTS_MAX)),
            memory: Arc::new(Semaphore::new(bytes / UNIT)),
            memory_bytes: bytes,
            saved,
            taps: Arc::default(),
            sockets,
            stage: watch::Sender::new(Stage::Serving),
            connections: Arc::default(),
            books: Mutex::new(vec![Counts::default(); listeners]),
        })
    }

    /// The counters of a listener.
    pub fn counts(&self, listener: usize) -> Counts<HttpCounter> {
        self.books()[listener]
    }

    /// Bytes set aside for requests.
    pub fn bytes_held(&self) -> u64 {
        let left = self.memory.available_permits() * UNIT;
        (self.memory_bytes / UNIT * UNIT).saturating_sub(left) as u64
    }

    fn count(&self, listener: usize, counter: HttpCounter, more: u64) {
        self.books()[listener][counter] += more;
    }

    /// Counts a request until the guard is dropped.
    fn under_way(&self, listener: usize) -> UnderWay<'_> {
        self.count(listener, HttpCounter::UnderWay, 1);
        UnderWay {
            columns: self,
            listener,
        }
    }

    fn books(&self) -> MutexGuard<'_, Vec<Counts<HttpCounter>>> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Memory that one request may take.
    fn request_bytes(&self) -> usize {
        (self.memory_bytes / UNIT * UNIT).min(REQUEST_BYTES_MAX)
    }

    /// Sets memory aside, or says that there is none.
    fn take_memory(&self, bytes: usize) -> Result<OwnedSemaphorePermit, Full> {
        let units = u32::try_from(bytes.div_ceil(UNIT)).map_err(|_| Full)?;
        self.memory
            .clone()
            .try_acquire_many_owned(units)
            .map_err(|_| Full)
    }

    /// The worker that adds a request: all of a client have the same one, which knows what it has added.
    fn worker(&self, number: Option<&RequestNumber>) -> &CommandSender {
        let workers = self.workers.len();
        let worker = match number {
            Some(number) => worker_of(number.client, workers),
            None => self.next_worker.fetch_add(1, Ordering::Relaxed) % workers,
        };
        &self.workers[worker]
    }
}

impl ColumnListener {
    /// Whether a peer may send.
    fn allows(&self, peer: Option<IpAddr>) -> bool {
        peer.is_none_or(|peer| self.allow.allows(peer))
    }
}

/// Limits of a payload with this much memory.
fn limits(bytes: usize) -> Limits {
    Limits {
        bytes,
        ..Limits::default()
    }
}
