//! The control plane's interface to a worker: start, commands, end.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, OnceLock};

use weir_context::Rules;
use weir_listener::{BoundSocket, EventLoop, ListenerId, Monotonic, PassedConnection, Waker};
use weir_state::AgentId;

use super::checkpoint::CheckpointLink;
use super::clock::{Gaps, Readings};
use super::freeze::{Freeze, PutState};
use super::maintenance::{DropWatch, Ticks};
use super::{ColumnQueue, Core, Inbox, Report, Worker};
use crate::admission::AdmissionList;
use crate::columns::ColumnPayload;
use crate::ingest::{Ingest, IngestSettings};
use crate::origin::{OriginAnswer, OriginLink};
use crate::progress::{Progress, ProgressGuard};
use crate::relay::{Relay, RelaySettings};
use crate::saved::SavedBucket;
use crate::tap::{TapSettings, Taps};

/// Slots of the receive ring; each is touched only as far as a packet used it.
const RING_SLOTS: usize = 64;

/// Commands of the control plane to a worker.
pub enum Command {
    /// New rules; contexts and open buckets stay.
    Rules(Box<Rules>),
    /// Answers about senders.
    Origins(Vec<OriginAnswer>),
    /// Another list of the origins that may send; `None`: all.
    Admission(Option<AdmissionList>),
    /// A new socket to replace one whose file was removed.
    Socket(ListenerId, Box<BoundSocket>),
    /// Other relays.
    Relays(RelayChange),
    /// Start to copy packets for a reader.
    Tap(TapSettings),
    /// Lend the event loop, between two packets.
    Inspect(Box<dyn FnOnce(&EventLoop) + Send>),
    /// Stop reading, so that another process can continue.
    Freeze(Box<Freeze>),
    /// Columns to add.
    Columns(Box<ColumnPayload>),
}

/// The relays that a worker has from now on.
pub struct RelayChange {
    pub relays: Vec<RelayLink>,
    /// Nothing is aggregated.
    pub only: bool,
}

pub enum RelayLink {
    /// The one that has had this place until now.
    Kept(usize),
    New(RelaySettings),
}

/// The control plane's end of a running worker.
pub struct WorkerHandle {
    stop: Arc<AtomicBool>,
    /// Takes the open bucket for the next process.
    keep: Arc<OnceLock<PutState>>,
    waker: Waker,
    commands: CommandSender,
    progress: Arc<Progress>,
    thread: std::thread::JoinHandle<()>,
}

impl WorkerHandle {
    /// Asks the worker to read the kernel's buffers, flush and end. Its last report is [`Report::Done`].
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.waker.wake();
    }

    /// The same; the open bucket is not flushed, but given to `put` in pieces, and reported as [`Report::Saved`].
    pub fn stop_and_keep(&self, put: PutState) {
        let _ = self.keep.set(put);
        self.stop();
    }

    pub fn send(&self, command: Command) {
        self.commands.send(command);
    }

    pub fn commands(&self) -> CommandSender {
        self.commands.clone()
    }

    pub fn progress(&self) -> Arc<Progress> {
        self.progress.clone()
    }

    /// Waits for the thread to end; an error is a panic of ours.
    pub fn join(self) -> std::thread::Result<()> {
        self.thread.join()
    }
}

/// A handle to command a worker from another thread.
#[derive(Clone)]
pub struct CommandSender {
    commands: std::sync::mpsc::Sender<Command>,
    waker: Waker,
}

impl CommandSender {
    pub fn send(&self, command: Command) {
        // A worker that has ended needs no command any more.
        let _ = self.commands.send(command);
        self.waker.wake();
    }
}

/// Settings of a worker besides those of packets.
#[derive(Clone, Copy, Debug)]
pub struct WorkerSettings {
    /// Called after a bucket at whose end many contexts went: an allocator may keep what a thread has freed for that thread,
    /// which may not need it again for long.
    pub release_memory: fn(),
    /// Hand over the open bucket at shutdown.
    pub flush_open_bucket: bool,
    pub agent: AgentId,
    /// Bytes of batches that may be on their way to the outputs before the next part of a flush is held back.
    pub batch_bytes_max: usize,
    /// Clients whose numbers are known at the same time.
    pub clients_max: usize,
}

/// A worker's relay targets.
#[derive(Default)]
pub struct RelayLinks {
    pub relays: Vec<RelaySettings>,
    /// Nothing is aggregated.
    pub only: bool,
}

/// The sockets of a worker.
#[derive(Default)]
pub struct Sources {
    /// With the number of the listener.
    pub sockets: Vec<(BoundSocket, ListenerId)>,
    /// Connections from another process, of the listeners above.
    pub connections: Vec<PassedConnection>,
    /// Destination of its state, in case the process is killed.
    pub checkpoints: Option<CheckpointLink>,
}

/// Starts one worker thread with its sockets. The number of a socket is its index in `settings.listeners`. With `origins`
/// senders are distinguished.
pub fn spawn(
    settings: IngestSettings,
    sources: Sources,
    partial_budget: usize,
    around: WorkerSettings,
    reports: SyncSender<Report>,
    origins: Option<OriginLink>,
    relays: RelayLinks,
    saved: SavedBucket,
) -> io::Result<WorkerHandle> {
    let mut event_loop = EventLoop::new(RING_SLOTS)?;
    event_loop.set_partial_budget(partial_budget);
    for (socket, id) in sources.sockets {
        event_loop.add(socket, id)?;
    }
    for connection in sources.connections {
        event_loop.add_connection(connection)?;
    }
    let stop = Arc::new(AtomicBool::new(false));
    let keep = Arc::new(OnceLock::new());
    let waker = event_loop.waker();
    let (commands, inbox) = std::sync::mpsc::channel();
    let name = format!("ingest-{}", settings.worker);
    let (worker_stop, worker_keep) = (stop.clone(), keep.clone());
    let progress_guard = ProgressGuard::new();
    let checkpoints = sources.checkpoints;
    let progress = progress_guard.progress();
    let thread = std::thread::Builder::new().name(name).spawn(move || {
        // Goes last, also in a panic.
        let _done = DoneGuard {
            worker: settings.worker,
            reports: reports.clone(),
        };
        let prepare = |ingest: &mut Ingest| prepare(ingest, origins.as_ref(), relays);
        let now = Readings::now();
        let core = Core::new(settings, around, reports, checkpoints, saved, now, prepare);
        let worker = Worker {
            core,
            drops: DropWatch::default(),
            gaps: Gaps::default(),
            taps: Taps::default(),
            ticks: Ticks::new(Monotonic::now().0),
            stop: worker_stop,
            freeze: None,
            keep: worker_keep,
            origins,
            event_loop,
            progress_guard,
            inbox: Inbox {
                commands: inbox,
                columns: ColumnQueue::default(),
            },
        };
        worker.run();
    })?;
    Ok(WorkerHandle {
        stop,
        keep,
        commands: CommandSender {
            commands,
            waker: waker.clone(),
        },
        waker,
        progress,
        thread,
    })
}

/// The packet processing of a worker, beyond its settings.
fn prepare(ingest: &mut Ingest, origins: Option<&OriginLink>, links: RelayLinks) {
    let relays = links.relays.into_iter().map(Relay::new).collect();
    ingest.enable_relays(relays, links.only);
    if let Some(origins) = origins {
        ingest.enable_origins(origins.tags_unknown);
        if let Some(rate) = origins.rate {
            ingest.limit_origins(rate);
        }
        ingest.limit_senders(origins.admission.clone());
    }
}

/// Always says that nothing more will come: the merge of the workers' buckets would wait for one that has panicked.
struct DoneGuard {
    worker: u16,
    reports: SyncSender<Report>,
}

impl Drop for DoneGuard {
    fn drop(&mut self) {
        let _ = self.reports.send(Report::Done(self.worker));
    }
}
