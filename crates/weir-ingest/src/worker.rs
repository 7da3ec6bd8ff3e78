use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use weir_aggregate::{AgentClock, AggregateCounter, Batch, Carried, Reading};
use weir_context::{
    AliasCounter, ContextCounter, LimitReason, RuleCounts, RuleSet, Rules, TrialReport, UsageSummary,
};
use weir_listener::{
    BoundSocket, EventLoop, ListenerCounter, ListenerCounters, ListenerId, LoopCounters, Monotonic, Waker,
};
use weir_state::AgentId;

use crate::admission::{AdmissionList, RefusedSender};
use crate::counts::{IngestCounter, IngestCounts, WorkerCounter};
use crate::ingest::{BadInput, Hurry, Ingest, IngestSettings, Received};
use crate::origin::{OriginAnswer, OriginLink, OriginStats};
use crate::origin_rates::LimitedOrigin;
use crate::progress::{Alive, Progress};
use crate::relay::{Relay, RelaySettings};
use crate::saved::{Restored, SavedBucket};
use weir_counters::Counts;

/// Slots of the receive ring; each is touched only as far as a packet used it.
const RING_SLOTS: usize = 64;

/// Contexts looked at between two receive turns while a closed bucket is handed over. At one to two microseconds each, texts
/// included, this is less than half a millisecond: the kernel queues ten datagrams on a Unix socket, and a sender at a
/// hundred thousand a second that finds no room waits.
const DRAIN_CONTEXTS: usize = 256;

/// Raw contexts looked at between two receive turns after new rules came: well below a millisecond's worth.
const SWEEP_CONTEXTS: usize = 4096;

/// Names looked at between two receive turns for a summary: well below a millisecond's worth.
const SUMMARY_NAMES: usize = 8192;

/// Contexts that have to go before what they held is worth giving back.
const GIVE_BACK_CONTEXTS: u64 = 1024;

/// How often counts are published and what passes without aggregation is handed over.
const TICK: Duration = Duration::from_secs(1);

/// Ticks between two comparisons of the drops counted with the kernel's tables, which means reading them whole.
const CROSS_CHECK_TICKS: u64 = 60;

/// Examples of bad input are kept at most this often.
const EXAMPLE_INTERVAL_NS: u64 = 10_000_000_000;

/// The class of connections that could not be encrypted, among examples of bad input.
pub const TLS_FAULT: &str = "tls";

/// A turn that lasts this much longer than it was told to wait did not receive in the meantime: a turn's own work is a
/// mebibyte at most.
const LATE_NS: u64 = 100_000_000;

/// Buckets by which the agent's time may be ahead of a wall clock that was set back. A clock that is put right goes back by
/// less; one that is set back by more was wrong before, and points with its timestamps would be wrong until a restart.
const AHEAD_BUCKETS_MAX: i64 = 3;

/// How long the end waits for what is to be found out about the last senders.
const END_WAIT_NS: u64 = 250_000_000;

/// What a worker tells the control plane.
#[derive(Debug)]
pub enum Report {
    Batch(Box<Batch>),
    /// All counts at one moment between two packets.
    Snapshot(Box<WorkerSnapshot>),
    BadInput(BadInput),
    /// Who used how much until the last flush, and between it and the one before.
    Usage(u16, Box<UsageSummary>),
    /// What the open bucket had when the worker was stopped to go on in another process.
    Saved(Box<SavedBucket>),
    /// Nothing more will come from this worker, whether it was asked to end or has panicked.
    Done(u16),
}

/// What a worker has counted. Every message received is in it, none half.
#[derive(Clone, Debug)]
pub struct WorkerSnapshot {
    pub worker: u16,
    /// Unix seconds.
    pub at: i64,
    pub listeners: Vec<ListenerSnapshot>,
    pub event_loop: LoopCounters,
    pub counts: Counts<WorkerCounter>,
    pub aggregate: Counts<AggregateCounter>,
    pub contexts: Counts<ContextCounter>,
    pub aliases: Counts<AliasCounter>,
    /// Samples whose context was not made.
    pub limited_samples: Counts<LimitReason>,
    pub context_bytes: usize,
    pub state_bytes: usize,
    pub partial_bytes: usize,
    /// Set aside for encrypted connections.
    pub tls_bytes: usize,
    pub origin: OriginStats,
    /// Origins that have sent more than they may.
    pub limited_origins: Vec<LimitedOrigin>,
    /// Senders that may not send and lately tried.
    pub refused_senders: Vec<RefusedSender>,
    pub rules: RuleSnapshot,
    /// What it went on with at its start.
    pub restored: Restored,
    /// Samples in the open bucket.
    pub open_samples: u64,
}

/// What the rules of a worker did.
#[derive(Clone, Debug)]
pub struct RuleSnapshot {
    /// The set that the numbers below are about.
    pub set: Arc<RuleSet>,
    /// By rule number.
    pub counts: Vec<RuleCounts>,
    /// Nanoseconds spent on finding the rules that match.
    pub matching_ns: u64,
    /// Of the rules on trial.
    pub trials: Vec<TrialReport>,
}

#[derive(Clone, Debug)]
pub struct ListenerSnapshot {
    pub listener: u16,
    pub socket: ListenerCounters,
    pub ingest: IngestCounts,
}

/// What the control plane tells a worker.
pub enum Command {
    /// New rules; contexts and open buckets stay.
    Rules(Box<Rules>),
    /// What was found out about senders.
    Origins(Vec<OriginAnswer>),
    /// Another list of the origins that may send; `None`: all.
    Admission(Option<AdmissionList>),
    /// A socket in the place of one whose file somebody has taken away.
    Socket(ListenerId, Box<BoundSocket>),
    /// Other relays.
    Relays(RelayChange),
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
    /// The open bucket goes on in another process.
    keep: Arc<AtomicBool>,
    waker: Waker,
    commands: CommandSender,
    progress: Arc<Progress>,
    thread: std::thread::JoinHandle<()>,
}

impl WorkerHandle {
    /// Asks the worker to read what the kernel holds, flush and end. Its last report is [`Report::Done`].
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.waker.wake();
    }

    /// The same; the open bucket is not flushed, but reported as [`Report::Saved`].
    pub fn stop_and_keep(&self) {
        self.keep.store(true, Ordering::Release);
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

/// A way to tell a worker something, for whoever does not own it.
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

/// What a worker does apart from its packets.
#[derive(Clone, Copy, Debug)]
pub struct WorkerSettings {
    /// Called after a bucket at whose end many contexts went: an allocator may keep what a thread has freed for that thread,
    /// which may not need it again for long.
    pub give_back: fn(),
    /// Hand over the open bucket at shutdown.
    pub flush_open_bucket: bool,
    pub agent: AgentId,
}

/// Where a worker relays lines to.
#[derive(Default)]
pub struct RelayLinks {
    pub relays: Vec<RelaySettings>,
    /// Nothing is aggregated.
    pub only: bool,
}

/// Starts one worker thread with its sockets. The number of a socket is its index in `settings.listeners`. With `origins`
/// senders are told apart.
pub fn spawn(
    settings: IngestSettings,
    sockets: Vec<(BoundSocket, ListenerId)>,
    partial_budget: usize,
    around: WorkerSettings,
    reports: SyncSender<Report>,
    origins: Option<OriginLink>,
    relays: RelayLinks,
    saved: SavedBucket,
) -> io::Result<WorkerHandle> {
    let mut event_loop = EventLoop::new(RING_SLOTS)?;
    event_loop.set_partial_budget(partial_budget);
    for (socket, id) in sockets {
        event_loop.add(socket, id)?;
    }
    let stop = Arc::new(AtomicBool::new(false));
    let keep = Arc::new(AtomicBool::new(false));
    let waker = event_loop.waker();
    let (commands, inbox) = std::sync::mpsc::channel();
    let name = format!("ingest-{}", settings.worker);
    let (worker_stop, worker_keep, worker_id) = (stop.clone(), keep.clone(), settings.worker);
    let alive = Alive::new();
    let progress = alive.progress();
    let ahead_max_ms = AHEAD_BUCKETS_MAX * 1000 * i64::from(settings.aggregator.bucket_width);
    let thread = std::thread::Builder::new().name(name).spawn(move || {
        // Goes last, also in a panic.
        let _done = Done {
            worker: worker_id,
            reports: reports.clone(),
        };
        let (wall_ms, monotonic) = (wall_ms(), Monotonic::now().0);
        let mut ingest = Ingest::new(settings, wall_ms.div_euclid(1000));
        let restored = ingest.resume(saved, wall_ms.div_euclid(1000), around.carried());
        let only = relays.only;
        ingest.enable_relays(relays.relays.into_iter().map(Relay::new).collect(), only);
        if let Some(origins) = &origins {
            ingest.enable_origins(origins.nobody);
            if let Some(rate) = origins.rate {
                ingest.limit_origins(rate);
            }
            ingest.limit_senders(origins.admission.clone());
        }
        let worker = Worker {
            ingest,
            origins,
            sweeping: false,
            summarising: false,
            summary: None,
            event_loop,
            alive,
            clock: AgentClock::new(wall_ms, monotonic, ahead_max_ms),
            worker: worker_id,
            reports,
            waiting: None,
            inbox,
            stop: worker_stop,
            keep: worker_keep,
            restored,
            around,
            expired_kept: 0,
            next_tick_ns: monotonic + TICK.as_nanos() as u64,
            next_example_ns: 0,
            counts: Counts::default(),
            ticks: 0,
            busy_since_ns: None,
            now_ms: wall_ms,
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

/// What is done with a batch: all its packets are taken, with their senders if those are told apart.
fn taking(ingest: &mut Ingest, by_sender: bool) -> impl FnMut(weir_listener::Batch<'_>) {
    move |batch| {
        let (listener, received) = (usize::from(batch.listener().0), batch.received().0);
        for packet in batch.iter() {
            let taken = Received {
                bytes: packet.bytes,
                listener,
                truncated: packet.truncated,
                received,
            };
            if by_sender {
                ingest.packet_from(taken, packet.origin.map_or(0, |sender| sender.pid));
            } else {
                ingest.packet(taken);
            }
        }
    }
}

/// One OS thread. It waits for nothing but its sockets until it ends.
struct Worker {
    ingest: Ingest,
    origins: Option<OriginLink>,
    /// Contexts are being told of new rules.
    sweeping: bool,
    /// A summary is being made.
    summarising: bool,
    /// A summary for which the channel had no room.
    summary: Option<Report>,
    event_loop: EventLoop,
    alive: Alive,
    clock: AgentClock,
    worker: u16,
    reports: SyncSender<Report>,
    /// A batch for which the channel had no room.
    waiting: Option<Box<Batch>>,
    inbox: Receiver<Command>,
    stop: Arc<AtomicBool>,
    keep: Arc<AtomicBool>,
    restored: Restored,
    around: WorkerSettings,
    /// Contexts expired when memory was given back last.
    expired_kept: u64,
    next_tick_ns: u64,
    next_example_ns: u64,
    counts: Counts<WorkerCounter>,
    ticks: u64,
    busy_since_ns: Option<u64>,
    now_ms: i64,
}

impl Worker {
    fn run(mut self) {
        // So that nobody has to wait for the first tick to know that it runs.
        self.publish();
        while !self.stop.load(Ordering::Acquire) {
            let timeout = self.timeout();
            if !self.turn(timeout) {
                break;
            }
            self.periodic();
        }
        self.finish();
    }

    /// Receives once. Returns false when waiting itself failed, which only a broken epoll descriptor can cause.
    fn turn(&mut self, timeout: Duration) -> bool {
        let before = Monotonic::now().0;
        if let Some(since) = self.busy_since_ns.take() {
            self.note_gap(before - since);
        }
        let by_sender = self.origins.is_some();
        let turn = self
            .event_loop
            .turn(Some(timeout), &mut taking(&mut self.ingest, by_sender));
        let after = Monotonic::now().0;
        self.alive.turned(after);
        let late_ns = (after - before).saturating_sub(timeout.as_nanos() as u64);
        if late_ns >= LATE_NS {
            self.note_gap(late_ns);
        }
        self.read_clock(after);
        match turn {
            Ok(turn) => {
                if turn.packets > 0 || self.ingest.is_draining() || self.sweeping || self.summarising {
                    self.busy_since_ns = Some(after);
                }
                true
            }
            Err(_) => false,
        }
    }

    fn note_gap(&mut self, nanoseconds: u64) {
        let longest = &mut self.counts[WorkerCounter::LongestGapNs];
        *longest = nanoseconds.max(*longest);
    }

    fn read_clock(&mut self, monotonic: u64) {
        match self.clock.advance(wall_ms(), monotonic) {
            Reading::On(now_ms) => self.now_ms = now_ms,
            Reading::SetBack(now_ms) => {
                self.now_ms = now_ms;
                self.counts[WorkerCounter::ClockSetBack] += 1;
                while !self.ingest.set_back(now_ms.div_euclid(1000)) {
                    // Once in a process's life, if ever: nothing is received while the last bucket is handed over.
                    self.hand_over_all();
                }
            }
        }
    }

    /// Until the open bucket ends or the next tick, whichever is first; not at all while a flush has work left.
    fn timeout(&self) -> Duration {
        if self.sweeping || self.summarising || (self.ingest.is_draining() && self.waiting.is_none()) {
            return Duration::ZERO;
        }
        if self.waiting.is_some() {
            return Duration::from_millis(1);
        }
        let bucket_ms = self.ingest.aggregator().open_bucket_end() * 1000 - self.now_ms;
        let mut next_ns = self.next_tick_ns;
        if let Some(deadline) = self.ingest.parked_deadline() {
            next_ns = next_ns.min(deadline);
        }
        if let Some(deadline) = self.ingest.relay_deadline() {
            next_ns = next_ns.min(deadline);
        }
        let tick_ns = next_ns.saturating_sub(Monotonic::now().0);
        Duration::from_millis(bucket_ms.max(0) as u64)
            .min(Duration::from_nanos(tick_ns))
            .min(TICK)
    }

    fn periodic(&mut self) {
        while !self.ingest.advance(self.now_ms.div_euclid(1000)) {
            // A whole bucket went by and the last one is not handed over: the control plane does not keep up. Waiting
            // here lets the kernel's buffers fill, whose losses are counted; anything else would mix up two buckets.
            self.counts[WorkerCounter::HandOverWaits] += 1;
            self.hand_over_all();
        }
        self.hand_over();
        self.summarise();
        let monotonic = Monotonic::now().0;
        for relay in self.ingest.relays_mut() {
            relay.turn(monotonic);
        }
        if monotonic >= self.next_tick_ns {
            self.next_tick_ns = monotonic + TICK.as_nanos() as u64;
            self.tick(monotonic);
        }
        self.commands(monotonic);
    }

    fn commands(&mut self, monotonic: u64) {
        while let Ok(command) = self.inbox.try_recv() {
            self.command(command);
        }
        if let Some(origins) = &mut self.origins {
            let deadline = self.ingest.parked_deadline();
            if deadline.is_some_and(|deadline| monotonic >= deadline) {
                self.ingest.feed_parked(monotonic, Hurry::None);
            }
            origins.turn(&mut self.ingest);
        }
        if self.sweeping {
            let now = self.ingest.aggregator().now();
            self.sweeping = self.ingest.contexts_mut().sweep_stale(SWEEP_CONTEXTS, now);
        }
    }

    fn command(&mut self, command: Command) {
        match command {
            Command::Rules(rules) => {
                self.ingest.set_rules(*rules);
                self.sweeping = true;
            }
            Command::Socket(id, socket) => {
                let by_sender = self.origins.is_some();
                // One that cannot be taken goes, with its file: whoever made it sees that and makes another.
                let _ = self
                    .event_loop
                    .replace(id, *socket, &mut taking(&mut self.ingest, by_sender));
            }
            Command::Origins(answers) => self.answers(answers),
            Command::Admission(list) => {
                self.ingest.set_admission_list(list);
                self.ingest.feed_parked(Monotonic::now().0, Hurry::None);
            }
            Command::Relays(change) => self.change_relays(change),
        }
    }

    /// What lines the relays that go have, they hand over first.
    fn change_relays(&mut self, change: RelayChange) {
        let mut known: Vec<Option<Relay>> = self.ingest.take_relays().into_iter().map(Some).collect();
        let relay = |link| match link {
            RelayLink::Kept(at) => known.get_mut(at).and_then(Option::take),
            RelayLink::New(settings) => Some(Relay::new(settings)),
        };
        let relays = change.relays.into_iter().filter_map(relay).collect();
        self.ingest.enable_relays(relays, change.only);
        known.iter_mut().flatten().for_each(Relay::finish);
    }

    fn answers(&mut self, answers: Vec<OriginAnswer>) {
        for answer in answers {
            self.ingest.answer(answer);
        }
        self.sweeping = true;
        self.ingest.feed_parked(Monotonic::now().0, Hurry::None);
    }

    /// The next slice of a flush, without waiting.
    fn hand_over(&mut self) {
        if let Some(batch) = self.waiting.take() {
            self.offer(batch);
        }
        if self.waiting.is_none()
            && self.ingest.is_draining()
            && let Some(batch) = self.ingest.drain(DRAIN_CONTEXTS)
        {
            // The counts go ahead of the batch that ends a bucket, so that whoever sees its end sees them.
            if batch.last {
                self.publish();
                self.summarising = true;
                let expired = self.ingest.contexts_expired();
                if expired - self.expired_kept >= GIVE_BACK_CONTEXTS {
                    self.expired_kept = expired;
                    (self.around.give_back)();
                }
            }
            self.offer(Box::new(batch));
        }
    }

    /// The next slice of a summary, and what was complete but found no room.
    fn summarise(&mut self) {
        if self.summarising
            && !self.ingest.is_draining()
            && let Some(summary) = self.ingest.summarise(SUMMARY_NAMES)
        {
            self.summarising = false;
            self.summary = Some(Report::Usage(self.worker, Box::new(summary)));
        }
        if let Some(report) = self.summary.take()
            && let Err(TrySendError::Full(report)) = self.reports.try_send(report)
        {
            self.summary = Some(report);
        }
    }

    fn offer(&mut self, batch: Box<Batch>) {
        match self.reports.try_send(Report::Batch(batch)) {
            Ok(()) => {}
            Err(TrySendError::Full(Report::Batch(batch))) => {
                self.counts[WorkerCounter::HandOverWaits] += 1;
                self.waiting = Some(batch);
            }
            // The control plane is gone: the process is ending.
            Err(_) => {}
        }
    }

    /// The rest of a flush, waiting for room as long as it takes.
    fn hand_over_all(&mut self) {
        if let Some(batch) = self.waiting.take() {
            let _ = self.reports.send(Report::Batch(batch));
        }
        while self.ingest.is_draining() {
            if let Some(batch) = self.ingest.drain(usize::MAX) {
                let _ = self.reports.send(Report::Batch(Box::new(batch)));
            }
        }
    }

    fn tick(&mut self, monotonic: u64) {
        while self.waiting.is_none()
            && let Some(batch) = self.ingest.take_passed_on()
        {
            self.offer(Box::new(batch));
        }
        if let Some(example) = self.ingest.take_bad_input() {
            let _ = self.reports.try_send(Report::BadInput(example));
            self.next_example_ns = monotonic + EXAMPLE_INTERVAL_NS;
        } else if monotonic >= self.next_example_ns {
            self.ingest.want_example();
        }
        if let Some((listener, example)) = self.event_loop.take_tls_fault() {
            let bad = BadInput {
                listener: usize::from(listener.0),
                class: TLS_FAULT,
                example,
            };
            let _ = self.reports.try_send(Report::BadInput(bad));
        }
        for relay in self.ingest.relays_mut() {
            relay.hand_over();
        }
        let _ = self.event_loop.refresh_drops();
        self.event_loop.end_idle(Monotonic(monotonic));
        self.ingest.tick_origins(monotonic);
        self.ingest.tick_sampler();
        self.ticks += 1;
        if self.ticks.is_multiple_of(CROSS_CHECK_TICKS) {
            self.cross_check_drops();
        }
        self.publish();
    }

    fn cross_check_drops(&mut self) {
        let listeners: Vec<ListenerId> = self.event_loop.listeners().map(|(id, _)| id).collect();
        for id in listeners {
            if let Ok(Some(check)) = self.event_loop.cross_check_drops(id) {
                self.counts[WorkerCounter::DropDisagreements] += u64::from(!check.agrees());
            }
        }
    }

    fn publish(&mut self) {
        let snapshot = Report::Snapshot(Box::new(self.snapshot()));
        // A snapshot that finds no room is replaced by the next one.
        let _ = self.reports.try_send(snapshot);
    }

    fn rule_snapshot(&self) -> RuleSnapshot {
        let contexts = self.ingest.contexts();
        let (counts, matching_ns) = contexts.rule_counts();
        RuleSnapshot {
            set: contexts.rules().set().clone(),
            counts: counts.to_vec(),
            matching_ns,
            trials: contexts.trial_reports(),
        }
    }

    fn listener_snapshot(&self, id: ListenerId) -> ListenerSnapshot {
        let listener = usize::from(id.0);
        let (mut socket, mut ingest) = (*self.event_loop.counters(id), self.ingest.counts()[listener]);
        // What waits for its sender to be known is counted, received and otherwise, when it goes on.
        let waiting = self.ingest.packets_waiting(listener);
        socket[ListenerCounter::Packets] -= waiting;
        ingest[IngestCounter::PacketsWaiting] = waiting;
        ListenerSnapshot {
            listener: id.0,
            socket,
            ingest,
        }
    }

    fn snapshot(&self) -> WorkerSnapshot {
        let listeners = self
            .event_loop
            .listeners()
            .map(|(id, _)| self.listener_snapshot(id));
        let listeners = listeners.collect();
        let mut counts = self.counts;
        counts[WorkerCounter::ClockAheadMs] = self.clock.ahead_ms(wall_ms()).max(0) as u64;
        let mut contexts = self.ingest.contexts().counts();
        contexts[ContextCounter::Expired] = self.ingest.contexts_expired();
        contexts[ContextCounter::Created] =
            contexts[ContextCounter::Live] + contexts[ContextCounter::Expired];
        WorkerSnapshot {
            worker: self.worker,
            at: self.now_ms.div_euclid(1000),
            listeners,
            event_loop: *self.event_loop.loop_counters(),
            counts,
            aggregate: self.ingest.aggregator().counts(),
            contexts,
            aliases: self.ingest.contexts().alias_counts(),
            limited_samples: self.ingest.contexts().limited_samples(),
            context_bytes: self.ingest.contexts().heap_bytes(),
            state_bytes: self.ingest.aggregator().heap_bytes(),
            partial_bytes: self.event_loop.partial_bytes_held(),
            tls_bytes: self.event_loop.tls_bytes_held(),
            origin: self.ingest.origin_stats(),
            limited_origins: self.ingest.limited_origins(),
            refused_senders: self.ingest.refused_senders(),
            rules: self.rule_snapshot(),
            restored: self.restored,
            open_samples: self.ingest.aggregator().open_samples(),
        }
    }

    /// Reads what the kernel had accepted, hands over every bucket, publishes the last counts.
    fn finish(mut self) {
        self.event_loop.begin_drain();
        while !self.event_loop.drained() {
            if !self.turn(Duration::from_millis(10)) {
                break;
            }
            while !self.ingest.advance(self.now_ms.div_euclid(1000)) {
                self.hand_over_all();
            }
            self.hand_over();
            let monotonic = Monotonic::now().0;
            for relay in self.ingest.relays_mut() {
                relay.turn(monotonic);
            }
            self.commands(monotonic);
        }
        // Whoever sent at last is still being looked up.
        let patience = Monotonic::now().0 + END_WAIT_NS;
        while let Some(deadline) = self.ingest.parked_deadline() {
            let now = Monotonic::now().0;
            let left = deadline.min(patience).saturating_sub(now);
            match self.inbox.recv_timeout(Duration::from_nanos(left)) {
                Ok(command) if left > 0 => self.command(command),
                _ => self.ingest.feed_parked(0, Hurry::End),
            }
            self.commands(Monotonic::now().0);
        }
        for relay in self.ingest.relays_mut() {
            relay.finish();
        }
        // Nothing comes in any more: what the log says of the last buckets is everything.
        let _ = self.reports.send(Report::Snapshot(Box::new(self.snapshot())));
        self.hand_over_all();
        if self.keep.load(Ordering::Acquire) {
            let saved = self.ingest.save(self.around.carried());
            let _ = self.reports.send(Report::Saved(Box::new(saved)));
        } else if self.around.flush_open_bucket && self.ingest.close_now() {
            self.hand_over_all();
        }
        while let Some(batch) = self.ingest.take_passed_on() {
            let _ = self.reports.send(Report::Batch(Box::new(batch)));
        }
        let _ = self.reports.send(Report::Snapshot(Box::new(self.snapshot())));
    }
}

/// Says in any case that nothing more will come: whoever merges the workers' buckets would wait for one that has panicked.
struct Done {
    worker: u16,
    reports: SyncSender<Report>,
}

impl Drop for Done {
    fn drop(&mut self) {
        let _ = self.reports.send(Report::Done(self.worker));
    }
}

impl WorkerSettings {
    fn carried(&self) -> Carried {
        let monotonic_ms = (Monotonic::now().0 / 1_000_000) as i64;
        Carried {
            monotonic_zero: (wall_ms() - monotonic_ms).saturating_mul(1_000_000),
            agent: self.agent,
        }
    }
}

fn wall_ms() -> i64 {
    match SystemTime::now().duration_since(UNIX_EPOCH) {
        Ok(since) => since.as_millis() as i64,
        Err(before) => -(before.duration().as_millis() as i64),
    }
}
