//! Relays StatsD lines, as received, to other servers of the protocol.
//!
//! Workers pack lines per target ([`Port`]). Here each target has a task that sends them, a bounded queue, and books. A failing target is
//! ejected: its slots and its queue go to the others until it returns.

mod connection;
mod settings;
mod target;

use weir_counters::Significance::{Normal, Problem};
use weir_counters::{Counts, counters};

use crate::counters::{DROPPED, OutputCounter};
use crate::delivery::wait_for;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinSet;
use weir_protocol::{Routes, SharedRoutes};

pub(crate) use settings::TYPE;
pub use settings::{RelaySettings, StreamFraming};

use target::Task;

/// Buffers per worker and target, at least.
const BUFFERS_MIN: u64 = 4;
/// And at most: beyond that a longer queue is no better.
const BUFFERS_MAX: u64 = 1024;
/// Room in a target's mailbox for what needs no buffer: counts alone, and lines of a target that was ejected.
const MAILBOX_MARGIN: usize = 64;

/// Lines for one target, and the counts of lines that are not in it. The same as the worker's.
#[derive(Debug, Default)]
pub struct Block {
    pub lines: Vec<u8>,
    pub messages: u64,
    pub no_buffer: u64,
    pub too_long: u64,
    pub unmatched: u64,
    /// The port that owns the buffer; `None` without an owner.
    worker: Option<usize>,
    /// Bytes of `lines` that need no more sending.
    done: usize,
}

impl Block {
    pub fn new(lines: Vec<u8>, messages: u64, no_buffer: u64, too_long: u64, unmatched: u64) -> Self {
        Self {
            lines,
            messages,
            no_buffer,
            too_long,
            unmatched,
            ..Self::default()
        }
    }
}

/// Everything that was pushed to a target's task, which may get its turn late. It is in the target's books from the push on.
#[derive(Debug, Default)]
struct Mailbox {
    messages: AtomicU64,
    no_buffer: AtomicU64,
    too_long: AtomicU64,
    unmatched: AtomicU64,
    /// Of `messages`. Written and read under the lock of the books.
    taken: AtomicU64,
}

impl Mailbox {
    fn push(&self, blocks: &mpsc::Sender<Block>, block: Block) -> Result<(), Block> {
        let Ok(place) = blocks.try_reserve() else {
            return Err(block);
        };
        // Counted first: the task may take the block at once.
        self.messages.fetch_add(block.messages, Ordering::Relaxed);
        self.no_buffer.fetch_add(block.no_buffer, Ordering::Relaxed);
        self.too_long.fetch_add(block.too_long, Ordering::Relaxed);
        self.unmatched.fetch_add(block.unmatched, Ordering::Relaxed);
        place.send(block);
        Ok(())
    }

    /// Completes books that have only messages that were taken.
    fn add_to(&self, books: &mut TargetStatus) {
        let messages = self.messages.load(Ordering::Relaxed);
        let no_buffer = self.no_buffer.load(Ordering::Relaxed);
        let too_long = self.too_long.load(Ordering::Relaxed);
        books.produced = messages + no_buffer + too_long;
        books.waiting += messages - self.taken.load(Ordering::Relaxed);
        books.drop_messages(RelayLoss::QueueFull, no_buffer);
        books.drop_messages(RelayLoss::TooLong, too_long);
        books.counts[OutputCounter::Unmatched] = self.unmatched.load(Ordering::Relaxed);
    }
}

/// One worker's way to one target.
pub struct Port {
    worker: usize,
    blocks: mpsc::Sender<Block>,
    mailbox: Arc<Mailbox>,
    returned: std::sync::mpsc::Receiver<Vec<u8>>,
    /// Buffers that may still be made.
    unmade: usize,
    buffer_bytes: usize,
}

impl Port {
    /// Never waits. Gives the block back when there is no room.
    pub fn push(&mut self, mut block: Block) -> Result<(), Block> {
        block.worker = Some(self.worker);
        self.mailbox.push(&self.blocks, block)
    }

    /// Never waits. `None` while all buffers are on their way.
    pub fn buffer(&mut self) -> Option<Vec<u8>> {
        if let Ok(buffer) = self.returned.try_recv() {
            return Some(buffer);
        }
        self.unmade = self.unmade.checked_sub(1)?;
        Some(Vec::with_capacity(self.buffer_bytes))
    }
}

counters! {
    /// Why a line was not delivered.
    pub enum RelayLoss {
        /// Its target accepts lines too slowly or not at all; the oldest are dropped.
        QueueFull = DROPPED.because("queue_full"),
            Problem("The target is down or slow: let `weir doctor --config FILE` test it, or raise `memory`.");
        /// Longer than a datagram to its target.
        TooLong = DROPPED.because("too_long"),
            Problem("Raise the relay's `udp_bytes_max` or `uds_bytes_max`, or shorten names and tags.");
        /// Not lost: given to another target when this one was ejected.
        Rerouted = DROPPED.because("rerouted"),
            Normal("The target failed, and the other targets get its lines.");
        /// Still waiting when the process ended.
        Shutdown = DROPPED.because("shutdown"),
            Problem("The target did not accept the rest before the stop: let `weir doctor --config FILE` test it.");
    }
}

/// Messages of one target: `produced` = `delivered` + `waiting` + `in_flight` + every `dropped`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TargetStatus {
    pub address: String,
    pub produced: u64,
    pub delivered: u64,
    pub counts: Counts<OutputCounter>,
    pub waiting: u64,
    pub in_flight: u64,
    /// Bytes that wait or are under way.
    pub queued_bytes: u64,
    pub dropped: BTreeMap<RelayLoss, u64>,
    pub healthy: bool,
    /// Its share goes to the others.
    pub ejected: bool,
    /// Time of the last change of `healthy`, in Unix seconds.
    pub since: i64,
    pub last_error: Option<String>,
}

impl TargetStatus {
    pub fn balances(&self) -> bool {
        self.produced == self.delivered + self.waiting + self.in_flight + self.dropped.values().sum::<u64>()
    }

    fn drop_messages(&mut self, reason: RelayLoss, messages: u64) {
        if messages > 0 {
            *self.dropped.entry(reason).or_default() += messages;
        }
    }
}

/// State that tasks of one relay share.
struct Shared {
    name: String,
    settings: RelaySettings,
    names: Vec<String>,
    routes: Arc<SharedRoutes>,
    takes_part: Mutex<Vec<bool>>,
    mailboxes: Vec<(mpsc::WeakSender<Block>, Arc<Mailbox>)>,
    /// Without what the mailboxes count, see [`Mailbox::add_to`].
    books: Vec<Mutex<TargetStatus>>,
    progress: Notify,
    stage: watch::Sender<Stage>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd)]
enum Stage {
    Running,
    /// Send the waiting lines; no target is ejected any more.
    Draining,
    Stopped,
}

/// A running relay.
pub struct Relay {
    shared: Arc<Shared>,
    ports: Mutex<Vec<Vec<Port>>>,
    tasks: Mutex<JoinSet<()>>,
    buffers_bytes: u64,
}

impl Relay {
    /// Starts a task per target on the current tokio runtime. `memory_bytes_max` limits the queues of all targets; `buffer_bytes` is the
    /// size of a worker's buffer.
    pub fn start(
        name: &str,
        settings: &RelaySettings,
        workers: usize,
        buffer_bytes: usize,
        memory_bytes_max: u64,
    ) -> Self {
        let targets = settings.targets.len();
        let share = memory_bytes_max / (targets * workers * buffer_bytes).max(1) as u64;
        let buffers = share.clamp(BUFFERS_MIN, BUFFERS_MAX) as usize;
        let names = settings.targets.clone();
        let mut ports: Vec<Vec<Port>> = (0..workers).map(|_| Vec::new()).collect();
        let mut inboxes = Vec::new();
        let mut mailboxes = Vec::new();
        for _ in 0..targets {
            let (blocks, inbox) = mpsc::channel(buffers * workers + MAILBOX_MARGIN);
            let mailbox = Arc::new(Mailbox::default());
            let mut returns = Vec::new();
            for (worker, of_worker) in ports.iter_mut().enumerate() {
                let (give_back, returned) = std::sync::mpsc::sync_channel(buffers);
                returns.push(give_back);
                of_worker.push(Port {
                    worker,
                    blocks: blocks.clone(),
                    mailbox: mailbox.clone(),
                    returned,
                    unmade: buffers,
                    buffer_bytes,
                });
            }
            mailboxes.push((blocks.downgrade(), mailbox));
            inboxes.push((inbox, returns));
        }
        let status = |address: &String| {
            Mutex::new(TargetStatus {
                address: address.clone(),
                healthy: true,
                since: unix_now(),
                ..TargetStatus::default()
            })
        };
        let shared = Arc::new(Shared {
            name: name.to_owned(),
            routes: Arc::new(SharedRoutes::new(Routes::new(&names, &vec![true; targets]))),
            takes_part: Mutex::new(vec![true; targets]),
            mailboxes,
            books: names.iter().map(status).collect(),
            names,
            settings: settings.clone(),
            progress: Notify::new(),
            stage: watch::Sender::new(Stage::Running),
        });
        let mut tasks = JoinSet::new();
        // Two of a worker's buffers stay free, so that new lines find room while the oldest are dropped.
        let blocks_max = (buffers - 2) * workers;
        for (index, (inbox, returns)) in inboxes.into_iter().enumerate() {
            tasks.spawn(Task::new(shared.clone(), index, inbox, returns, blocks_max).run());
        }
        Self {
            shared,
            ports: Mutex::new(ports),
            tasks: Mutex::new(tasks),
            buffers_bytes: (buffers * workers * targets * buffer_bytes) as u64,
        }
    }

    /// The size of its buffers when all are in use. Their number never changes.
    pub fn buffers_bytes(&self) -> u64 {
        self.buffers_bytes
    }

    /// The ways from one worker to all targets; each worker takes its own once.
    pub fn ports(&self, worker: usize) -> Vec<Port> {
        std::mem::take(&mut lock(&self.ports)[worker])
    }

    pub fn routes(&self) -> Arc<SharedRoutes> {
        self.shared.routes.clone()
    }

    pub fn name(&self) -> &str {
        &self.shared.name
    }

    pub fn settings(&self) -> &RelaySettings {
        &self.shared.settings
    }

    /// Each entry is consistent in itself.
    pub fn status(&self) -> Vec<TargetStatus> {
        let status = |(books, (_, mailbox)): (&Mutex<TargetStatus>, &(_, Arc<Mailbox>))| {
            let books = lock(books);
            let mut status = books.clone();
            mailbox.add_to(&mut status);
            status
        };
        let targets = self.shared.books.iter().zip(&self.shared.mailboxes);
        targets.map(status).collect()
    }

    /// Waits until the status satisfies `done`.
    pub async fn wait_for(&self, mut done: impl FnMut(&[TargetStatus]) -> bool) {
        wait_for(&self.shared.progress, || done(&self.status())).await;
    }

    /// Delivers for at most `grace`, then drops and counts the rest. Call it when every port was dropped.
    pub async fn shutdown(&self, grace: Duration) {
        let shared = &self.shared;
        lock(&self.ports).clear();
        shared.stage.send_replace(Stage::Draining);
        let mut tasks = std::mem::take(&mut *lock(&self.tasks));
        let ended = async { while tasks.join_next().await.is_some() {} };
        if tokio::time::timeout(grace, ended).await.is_err() {
            shared.stage.send_replace(Stage::Stopped);
            while tasks.join_next().await.is_some() {}
        }
        for status in self.status() {
            if let Some(lost) = status.dropped.get(&RelayLoss::Shutdown) {
                let target = status.address;
                tracing::warn!(output = shared.name, target, lost, "not everything was relayed");
            }
        }
    }
}

impl Shared {
    fn stage(&self) -> Stage {
        *self.stage.borrow()
    }

    /// Takes a target out of the routes. False when it is the last one.
    fn eject(&self, index: usize) -> bool {
        let mut takes_part = lock(&self.takes_part);
        let others = takes_part
            .iter()
            .enumerate()
            .any(|(at, there)| at != index && *there);
        if others {
            takes_part[index] = false;
            self.routes.set(Routes::new(&self.names, &takes_part));
        }
        others
    }

    fn readmit(&self, index: usize) {
        let mut takes_part = lock(&self.takes_part);
        takes_part[index] = true;
        self.routes.set(Routes::new(&self.names, &takes_part));
    }
}

/// The state is whole after every statement that may panic, so a poisoned lock is still a good one.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn unix_now() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs() as i64)
}
