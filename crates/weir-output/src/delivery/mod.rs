//! Delivery, the same for every output: encode, queue, send, retry, and account for everything.
//!
//! ```text
//! submit -> inbox -> encoder (one blocking task) -> queue per endpoint -> requests under way
//!           bounded   no network, no waiting        memory, disk           bounded, with backoff
//! ```
//!
//! The encoder never waits for an endpoint: a queue that is full drops its oldest. That is why one output, however dead
//! its backend, cannot delay another, and why one endpoint cannot delay its sibling.

mod backoff;
mod books;
mod clock;
mod disk;
mod divide;
mod encode;
mod encoding;
mod endpoint;
mod environment;
mod handover;
mod inbox;
mod orphaned_queues;
mod queue;
mod record;
mod room;
mod safe;
mod save;
mod saved;
mod settle;
mod status;
mod transport;

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;

use crate::counters::OutputCounter;
use crate::settings::DeliverySettings;

pub use backoff::{Backoff, RETRY_AFTER_MAX, http_date, retry_after, seed};
use books::EndpointBooks;
pub use books::{Class, Dropped, Items, Reason};
pub use clock::{Clock, Driver};
pub use disk::{DiskQueue, Evicted, Next, OpenedQueue, RecordId};
pub use encode::{Counter, Draft, Encode, Encoded, EncoderState};
use encoding::EncoderSide;
use endpoint::EndpointSide;
pub use environment::{AgentIdentity, OutputEnvironment};
use inbox::{Inbox, Intake};
pub use queue::{Order, Queue, QueueSizes};
use room::MemoryLimits;
use safe::BucketEnds;
pub use safe::{AtRisk, Landed, SafeSamples};
pub use save::SavedQueue;
pub use saved::{OutputState, RestoreError, SavedStates};
pub use status::{EndpointStatus, LastError, OutputStatus, Pending};
pub use transport::{BoxFuture, Endpoint, Keep, Outcome, Parts, Payload, Transport};

/// Time per flush that encoding waits for queues that fill up although their endpoints take payloads.
const PACE_MAX: Duration = Duration::from_secs(1);
/// Longest time that a payload stays open for more points when no flush ends it.
const LINGER: Duration = Duration::from_secs(2);
/// Time that a stop waits for attempts at payloads that a disk queue holds already: enough for an endpoint that takes it.
const LAST_ATTEMPT: Duration = Duration::from_secs(1);
/// A refused payload is logged at most this often per endpoint.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// A running output that delivers batches.
pub struct Delivery {
    name: String,
    shared: Arc<Shared>,
    transports: Vec<Arc<dyn Transport>>,
    counter: Counter,
    lineage: String,
    adds_up: bool,
    /// The encoder before the start.
    encoder: Mutex<Option<Box<dyn Encode>>>,
    tasks: Mutex<JoinSet<()>>,
}

impl fmt::Debug for Delivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Delivery")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// The identity of an endpoint, independent of its settings.
#[derive(Clone, Debug)]
struct EndpointIdentity {
    directory: String,
    family: Option<String>,
    /// Directory of its disk queue, if it has one.
    disk: Option<PathBuf>,
}

impl EndpointIdentity {
    fn of(endpoint: &Endpoint, disk: Option<&Path>) -> Self {
        EndpointIdentity {
            directory: endpoint.directory.clone(),
            family: endpoint.family.clone(),
            disk: disk.map(|path| path.join(&endpoint.directory)),
        }
    }
}

struct Shared {
    name: String,
    clock: Clock,
    safe: SafeSamples,
    settings: DeliverySettings,
    limits: MemoryLimits,
    intake: Intake,
    encoder: EncoderSide,
    endpoints: Vec<EndpointSide>,
    sending: watch::Sender<Sending>,
    stage: watch::Sender<Stage>,
    books: Mutex<Books>,
    /// Woken whenever something was finished, for callers that wait for the output to be idle.
    progress: Notify,
}

/// When requests begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Sending {
    /// After the payload's own delay ([`Transport::delay`]).
    InTime,
    /// Without delay: the output ends.
    AtOnce,
    /// Not at all: another process takes over.
    Paused,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd)]
enum Stage {
    Running,
    /// Encode the batches in the inbox, end open payloads, take nothing new.
    Draining,
    /// The encoder is done; endpoints deliver until the queues are empty.
    Encoded,
    Stopped,
}

#[derive(Default)]
struct Books {
    received: Items,
    /// In the inbox, the batch being encoded included.
    inbox: Items,
    /// Of each batch there: the points received before it.
    batches: VecDeque<u64>,
    open: Items,
    dropped: Dropped,
    endpoints: Vec<EndpointBooks>,
    ends: BucketEnds,
    /// The output that this one has replaced, while points of it are at risk: they are older than all of this one's.
    predecessor: Option<Arc<Shared>>,
    encoder_failed: bool,
}

impl Books {
    /// Points received that are in payloads or dropped, all those before them too.
    fn resolved(&self) -> u64 {
        let taken = self.batches.front().copied().unwrap_or(self.received.points);
        taken.saturating_sub(self.open.points)
    }

    fn has_points_at_risk(&self) -> bool {
        let of_endpoints = self.endpoints.iter().any(|of| of.at_risk.before(None).is_some());
        let of_encoder = self.inbox.points + self.open.points > 0;
        let of_predecessor = |old: &Arc<Shared>| lock(&old.books).has_points_at_risk();
        of_endpoints || of_encoder || self.predecessor.as_ref().is_some_and(of_predecessor)
    }

    /// `done`: the batch that is encoded, if there was one.
    fn encoded(&mut self, done: Option<Items>, open: Items) {
        if let Some(done) = done {
            self.inbox -= done;
            self.batches.pop_front();
        }
        self.open = open;
    }

    /// More points were received, before those in the inbox.
    fn add_before(&mut self, points: u64) {
        self.ends.add_made(points);
        self.batches.iter_mut().for_each(|before| *before += points);
    }
}

/// Waits until something is so, and looks whenever there is progress.
pub(crate) async fn wait_for(progress: &Notify, mut is_so: impl FnMut() -> bool) {
    loop {
        let progress = progress.notified();
        tokio::pin!(progress);
        // Registered before looking, so that no progress slips between.
        progress.as_mut().enable();
        if is_so() {
            return;
        }
        progress.await;
    }
}

impl EndpointBooks {
    /// Payloads found in a disk queue when it was opened.
    fn count_found(&mut self, found: &OpenedQueue, output: &str, endpoint: &str) {
        if *found != OpenedQueue::default() {
            tracing::info!(output, endpoint, restored = ?found.restored, torn_bytes = found.torn_bytes, damaged_bytes = found.damaged_bytes, "disk queue opened");
        }
        self.restored = found.restored;
        self.counts[OutputCounter::DiskDamagedBytes] = found.damaged_bytes;
    }
}

impl Delivery {
    /// Opens the disk queues and starts the tasks on the current tokio runtime; those of an output that replaces another start when
    /// it takes over, and until then it only collects.
    pub fn start(
        name: &str,
        settings: &DeliverySettings,
        order: Order,
        mut encoder: Box<dyn Encode>,
        endpoints: Vec<Endpoint>,
        environment: &OutputEnvironment,
    ) -> io::Result<Self> {
        let clock = environment.clock.clone();
        if let Some(state) = encoder.state() {
            environment.saved.restore(name, state);
        }
        let reserved = encoder.reserved_bytes();
        let of_endpoints = environment.memory_bytes_max.saturating_sub(reserved);
        let memory_max = of_endpoints / endpoints.len().max(1) as u64;
        let on_disk = !settings.disk_path.is_empty() && settings.disk_bytes_max > 0;
        let disk_max = settings.disk_bytes_max / endpoints.len().max(1) as u64;
        let disk_path = on_disk.then(|| Path::new(&settings.disk_path));
        let places: Vec<EndpointIdentity> = endpoints
            .iter()
            .map(|endpoint| EndpointIdentity::of(endpoint, disk_path))
            .collect();
        let replaces = environment.replaces.as_ref();
        let is_held = |path: &PathBuf| replaces.is_some_and(|old| old.holds(path));
        // Queues of the replaced output are not strangers.
        if on_disk && replaces.is_none_or(|old| old.shared.settings.disk_path != settings.disk_path) {
            orphaned_queues::settle(name, Path::new(&settings.disk_path), &endpoints);
        }
        let (mut sides, mut books) = (Vec::new(), Books::default());
        books.predecessor = replaces.map(|old| old.shared.clone());
        for (endpoint, place) in endpoints.iter().zip(places) {
            let mut of_endpoint = EndpointBooks {
                since: clock.unix(),
                ..EndpointBooks::default()
            };
            let disk = match place.disk.as_ref().filter(|path| !is_held(path)) {
                Some(directory) => {
                    let age_max = settings.disk_age_max.as_secs() as i64;
                    let (queue, found) = DiskQueue::open(directory, disk_max, age_max)?;
                    of_endpoint.count_found(&found, name, &endpoint.label);
                    Some(queue)
                }
                None => None,
            };
            let mut queue = Queue::new(order, memory_max, disk);
            for payload in environment.saved.take_queue(name, &place.directory) {
                of_endpoint.restored += payload.items();
                queue.push(payload, None);
            }
            of_endpoint.copy_from(&queue);
            sides.push(EndpointSide::new(endpoint.label.clone(), place, queue));
            books.endpoints.push(of_endpoint);
        }
        let shared = Arc::new(Shared {
            name: name.to_owned(),
            clock,
            safe: environment.safe.clone(),
            settings: settings.clone(),
            limits: MemoryLimits::of(environment),
            intake: Intake::default(),
            encoder: EncoderSide::new(reserved),
            endpoints: sides,
            sending: watch::Sender::new(Sending::InTime),
            stage: watch::Sender::new(Stage::Running),
            books: Mutex::new(books),
            progress: Notify::new(),
        });
        let delivery = Self {
            name: name.to_owned(),
            shared,
            transports: endpoints.into_iter().map(|endpoint| endpoint.transport).collect(),
            counter: encoder.counter(),
            lineage: encoder.state().map(|state| state.lineage()).unwrap_or_default(),
            adds_up: encoder.state().is_some_and(|state| state.adds_up()),
            encoder: Mutex::new(Some(encoder)),
            tasks: Mutex::default(),
        };
        if replaces.is_none() {
            delivery.begin_encoding(None);
            delivery.begin_sending();
        }
        Ok(delivery)
    }

    /// Encodes from now on; `before` is the encoder whose state is continued.
    fn begin_encoding(&self, before: Option<Box<dyn Encode>>) {
        let Some(mut encoder) = lock(&self.encoder).take() else {
            return;
        };
        if let (Some(before), Some(state)) = (before, encoder.state()) {
            state.inherit(before);
        }
        lock(&self.tasks).spawn(encoding::run(self.shared.clone(), encoder));
    }

    fn begin_sending(&self) {
        let shared = &self.shared;
        let mut tasks = lock(&self.tasks);
        for (index, transport) in self.transports.iter().enumerate() {
            tasks.spawn(endpoint::run(shared.clone(), index, transport.clone()));
            let (transport, clock, mut stage) =
                (transport.clone(), shared.clock.clone(), shared.stage.subscribe());
            tasks.spawn(async move {
                tokio::select! {
                    biased;
                    () = transport.background(clock) => {}
                    () = endpoint::reached(&mut stage, Stage::Stopped) => {}
                }
            });
        }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether the encoder adds up.
    pub fn keeps_state(&self) -> bool {
        !self.lineage.is_empty()
    }

    /// See [`EncoderState::adds_up`].
    pub fn adds_up(&self) -> bool {
        self.adds_up
    }

    /// Sets the memory limit of the encoder's state, from the next batch on.
    pub fn limit_state(&self, bytes_max: u64) {
        self.shared.limits.state.store(bytes_max, Ordering::Relaxed);
    }

    pub fn state_limit(&self) -> u64 {
        self.shared.limits.state.load(Ordering::Relaxed)
    }

    pub fn state_bytes(&self) -> u64 {
        self.shared.encoder.state_bytes.load(Ordering::Relaxed)
    }

    /// Sets what batches that wait to be encoded may take; one is taken in any case.
    pub fn limit_inbox(&self, bytes_max: u64) {
        self.shared.limits.inbox.store(bytes_max, Ordering::Relaxed);
    }

    pub fn inbox_bytes(&self) -> u64 {
        lock(&self.shared.intake.inbox).bytes
    }

    /// Ends waits after failures: something that attempts depend on, such as a key, is another one now.
    pub fn retry_now(&self) {
        self.shared
            .endpoints
            .iter()
            .for_each(|side| side.retry_requested.notify_one());
    }

    /// Makes every endpoint reopen its files.
    pub fn reopen(&self) {
        self.transports.iter().for_each(|transport| transport.reopen());
    }

    /// Waits until the status satisfies `done`.
    pub async fn wait_for(&self, mut done: impl FnMut(&OutputStatus) -> bool) {
        wait_for(&self.shared.progress, || done(&self.status())).await;
    }

    /// Encodes the batches handed over, delivers for at most `grace`, then stops. It does not wait for payloads in a disk queue
    /// beyond one last attempt. The rest waits on disk, or is dropped and counted if it could not be written.
    pub async fn shutdown(&self, grace: Duration) {
        let shared = &self.shared;
        let deadline = shared.clock.now() + grace;
        shared.advance(Stage::Draining);
        tokio::select! {
            biased;
            () = self.settled() => {}
            () = shared.clock.sleep_until(deadline) => {}
        }
        shared.advance(Stage::Stopped);
        let mut tasks = std::mem::take(&mut *lock(&self.tasks));
        while tasks.join_next().await.is_some() {}
        let closing = shared.clone();
        drop(shared.clock.blocking(move || closing.close()).await);
        self.log_what_is_left();
    }

    /// Waits until there is nothing left to do before the end: all is delivered, or it is on disk and its endpoint has had its
    /// chance.
    async fn settled(&self) {
        let shared = &self.shared;
        self.wait_for(|_| shared.stage() >= Stage::Encoded).await;
        for index in 0..shared.endpoints.len() {
            shared.with_queue(index, |queue, _| queue.write_down()).await;
        }
        let has_had_its_chance = |of: &EndpointBooks| of.sizes.total().is_zero() || of.gave_up;
        let all_had_theirs = |status: &OutputStatus| {
            status.is_safe() && lock(&shared.books).endpoints.iter().all(has_had_its_chance)
        };
        let patience = shared.clock.now() + LAST_ATTEMPT;
        tokio::select! {
            biased;
            () = self.wait_for(all_had_theirs) => {}
            () = async {
                shared.clock.sleep_until(patience).await;
                self.wait_for(OutputStatus::is_safe).await;
            } => {}
        }
    }

    fn log_what_is_left(&self) {
        let output = &self.name;
        for of in self.status().endpoints {
            let endpoint = &of.endpoint;
            if !of.pending.disk.is_zero() {
                tracing::info!(output, endpoint, waiting = ?of.pending.disk, "not everything was delivered; the rest waits on disk");
            }
            let Some(lost) = of.dropped.get(&Reason::Shutdown) else {
                continue;
            };
            match of.disk_error {
                Some(error) => {
                    tracing::warn!(
                        output,
                        endpoint,
                        ?lost,
                        error,
                        "not everything was delivered, and payloads that the disk queue did not accept are lost"
                    );
                }
                None if self.shared.has_disk() => {
                    tracing::warn!(
                        output,
                        endpoint,
                        ?lost,
                        "not everything was delivered, and payloads that had not reached the disk queue are lost"
                    );
                }
                None => {
                    tracing::warn!(
                        output,
                        endpoint,
                        ?lost,
                        "not everything was delivered, and without a disk queue the rest is lost"
                    );
                }
            }
        }
    }
}

impl Shared {
    fn stage(&self) -> Stage {
        *self.stage.borrow()
    }

    fn has_disk(&self) -> bool {
        !self.settings.disk_path.is_empty() && self.settings.disk_bytes_max > 0
    }

    /// Ends the queues. Batches still in the inbox are lost: the encoder panicked, or the grace period was too short.
    fn close(&self) {
        let mut queues: Vec<_> = self.endpoints.iter().map(|side| lock(&side.queue)).collect();
        if self.has_disk() {
            let books = lock(&self.books);
            self.tell_written(&books, books.resolved());
        }
        queues.iter_mut().for_each(|queue| queue.close());
        *lock(&self.intake.inbox) = Inbox::default();
        let mut books = lock(&self.books);
        let left = books.inbox + books.open;
        books.inbox = Items::default();
        books.batches.clear();
        books.open = Items::default();
        books::add_dropped(&mut books.dropped, Reason::Shutdown, left);
        for (of, queue) in books.endpoints.iter_mut().zip(&queues) {
            of.copy_from(queue);
        }
    }

    fn advance(&self, stage: Stage) {
        self.hurry();
        self.stage
            .send_modify(|now| *now = if stage > *now { stage } else { *now });
        self.progress.notify_waiters();
    }

    /// Payloads do not wait for their time any more.
    fn hurry(&self) {
        self.sending
            .send_modify(|sending| *sending = Sending::AtOnce.max(*sending));
    }

    /// Queues the encoder's payloads, for all endpoints and the books in one step. `done` is the batch it came from.
    fn commit(&self, encoded: Encoded, open: Items, done: Option<Items>, sync: bool) {
        let created = self.clock.unix();
        self.ask_for(encoded.payloads.iter().map(|draft| draft.body.len() as u64).sum());
        let memory_max = self.memory_max();
        let mut queues: Vec<MutexGuard<'_, Queue>> =
            self.endpoints.iter().map(|side| lock(&side.queue)).collect();
        let before = {
            let books = lock(&self.books);
            let before = books.resolved();
            if self.has_disk() && !encoded.payloads.is_empty() {
                // Another process would find them there.
                let points = encoded
                    .payloads
                    .iter()
                    .filter(|draft| draft.class == Class::Points);
                let points: u64 = points.map(|draft| u64::from(draft.count)).sum();
                self.tell_written(&books, before + points);
                self.begins();
            }
            i64::try_from(before).ok()
        };
        queues
            .iter_mut()
            .for_each(|queue| queue.set_memory_max(memory_max));
        let (displaced, has_payloads) = (room::displaced(&queues), !encoded.payloads.is_empty());
        for draft in encoded.payloads {
            let payload = Payload {
                id: 0,
                route: draft.route,
                class: draft.class,
                count: draft.count,
                created,
                body: draft.body.into(),
            };
            queues
                .iter_mut()
                .for_each(|queue| queue.push(payload.clone(), before));
        }
        if has_payloads {
            let is_full = room::displaced(&queues) != displaced;
            self.limits.is_full.store(is_full, Ordering::Relaxed);
        }
        if sync {
            queues
                .iter_mut()
                .filter(|queue| queue.has_disk())
                .for_each(|queue| queue.sync());
        }
        {
            let mut books = lock(&self.books);
            for (reason, items) in encoded.dropped {
                books::add_dropped(&mut books.dropped, reason, items);
            }
            let made = encoded.made.points;
            books.received += encoded.made;
            books.encoded(done, open);
            books.add_before(made);
            for (index, queue) in queues.iter().enumerate() {
                self.record_disk_error(&mut books.endpoints[index], queue, index);
                books.endpoints[index].copy_from(queue);
            }
            self.tell_safe(&mut books, None);
            self.limits.coming.store(0, Ordering::Relaxed);
        }
        drop(queues);
        self.endpoints.iter().for_each(|side| side.queued.notify_one());
        self.progress.notify_waiters();
    }

    /// Encoding is quicker than delivering, and a flush may be larger than memory: waits while every queue is half full and its
    /// endpoint takes payloads, for at most `patience` and not beyond the end. Returns how long it was.
    async fn pace(&self, patience: Duration) -> Duration {
        let on_disk = self.has_disk();
        let begun = self.clock.now();
        let fills_up = |of: &EndpointBooks| !of.failing && of.sizes.memory_bytes > self.memory_max() / 2;
        let wait = wait_for(&self.progress, || {
            on_disk || !lock(&self.books).endpoints.iter().all(fills_up)
        });
        let (mut stage, mut sending) = (self.stage.subscribe(), self.sending.subscribe());
        let may_go_on = async {
            tokio::select! {
                biased;
                () = wait => {}
                // Nothing is sent while another process takes over.
                _ = sending.wait_for(|sending| *sending == Sending::Paused) => {}
                () = endpoint::reached(&mut stage, Stage::Stopped) => {}
            }
        };
        self.clock.within(patience, may_go_on).await;
        self.clock.now() - begun
    }

    /// Says once when the disk stops or resumes taking payloads.
    fn record_disk_error(&self, books: &mut EndpointBooks, queue: &Queue, index: usize) {
        let endpoint = &self.endpoints[index].label;
        match (&books.disk_error, queue.disk_error()) {
            (None, Some(error)) => {
                books.counts[OutputCounter::DiskFailures] += 1;
                tracing::warn!(
                    output = self.name,
                    endpoint,
                    error,
                    "the disk queue cannot be written; payloads wait in memory only"
                );
            }
            (Some(_), None) => tracing::info!(
                output = self.name,
                endpoint,
                "the disk queue can be written again"
            ),
            _ => {}
        }
    }

    /// Works on one endpoint's queue and shows the result in the books. Off the runtime's threads where a disk is involved.
    async fn with_queue<T: Default + Send + 'static>(
        self: &Arc<Self>,
        index: usize,
        work: impl FnOnce(&mut Queue, &mut EndpointBooks) -> T + Send + 'static,
    ) -> T {
        let shared = self.clone();
        let work = move || {
            let mut queue = lock(&shared.endpoints[index].queue);
            // The queue may touch the disk, and readers of the books must not wait for that: work on a copy.
            let mut books = {
                let all = lock(&shared.books);
                if queue.has_disk() && !all.endpoints[index].sizes.unsaved.is_zero() {
                    // A disk that has room again takes them.
                    shared.tell_written(&all, all.resolved());
                }
                all.endpoints[index].clone()
            };
            let result = work(&mut queue, &mut books);
            shared.record_disk_error(&mut books, &queue, index);
            books.copy_from(&queue);
            let mut all = lock(&shared.books);
            all.endpoints[index] = books;
            shared.tell_safe(&mut all, None);
            result
        };
        if !self.has_disk() {
            return work();
        }
        self.clock.blocking(work).await.unwrap_or_default()
    }
}

/// The state is whole after every statement that may panic, so a poisoned lock is still a good one.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
