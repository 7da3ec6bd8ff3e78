use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use weir_aggregate::{AgentClock, AggregateCounts, Batch, Reading};
use weir_context::{LimitReason, RuleCounts, RuleSet, Rules, TrialReport, UsageSummary};
use weir_listener::{BoundSocket, EventLoop, ListenerCounters, ListenerId, LoopCounters, Monotonic, Waker};

use crate::admission::{AdmissionList, RefusedSender};
use crate::counts::IngestCounts;
use crate::ingest::{BadInput, Hurry, Ingest, IngestSettings, Received};
use crate::origin::{OriginAnswer, OriginLink, OriginStats};
use crate::origin_rates::LimitedOrigin;
use crate::progress::{Alive, Progress};
use crate::relay::{Relay, RelaySettings};

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
    /// Nothing more will come from this worker.
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
    pub aggregate: AggregateCounts,
    pub contexts: usize,
    /// Contexts that have expired since the start.
    pub contexts_expired: u64,
    pub overflow_names: usize,
    /// Messages that the raw-alias cache knows, and those it was asked for and did not.
    pub aliases: usize,
    pub alias_misses: u64,
    /// Aliases that went, or were not kept, for lack of memory.
    pub aliases_short: u64,
    /// Samples whose context was not made, by [`LimitReason`].
    pub limited_samples: [u64; LimitReason::COUNT],
    pub strings: usize,
    pub tag_lists: usize,
    pub context_bytes: usize,
    pub state_bytes: usize,
    pub partial_bytes: usize,
    /// Set aside for encrypted connections.
    pub tls_bytes: usize,
    /// Of what is known of senders.
    pub origin_bytes: usize,
    /// Batches that have been handed over and not merged yet.
    pub batch_bytes: usize,
    /// Batches that waited because the control plane had not taken the ones before.
    pub hand_over_waits: u64,
    /// Times the kernel's tables told of other drops than were counted.
    pub drop_disagreements: u64,
    /// Milliseconds by which the agent's time is ahead of a wall clock that was set back.
    pub clock_ahead_ms: i64,
    /// Times it was set back because it was too far ahead.
    pub clock_set_back: u64,
    /// Longest time between two receive turns while packets were waiting or a flush was running, or by which a turn lasted
    /// longer than it should, nanoseconds.
    pub longest_gap_ns: u64,
    pub origin: OriginStats,
    /// Origins that have sent more than they may.
    pub limited_origins: Vec<LimitedOrigin>,
    /// Senders that may not send and lately tried.
    pub refused_senders: Vec<RefusedSender>,
    pub rules: RuleSnapshot,
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
    /// Packets that wait for their sender to be known, and are not counted yet.
    pub packets_waiting: u64,
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
    /// Bytes of batches that may be on their way to the outputs before the next part of a flush is held back.
    pub batch_bytes_max: usize,
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
) -> io::Result<WorkerHandle> {
    let mut event_loop = EventLoop::new(RING_SLOTS)?;
    event_loop.set_partial_budget(partial_budget);
    for (socket, id) in sockets {
        event_loop.add(socket, id)?;
    }
    let stop = Arc::new(AtomicBool::new(false));
    let waker = event_loop.waker();
    let (commands, inbox) = std::sync::mpsc::channel();
    let name = format!("ingest-{}", settings.worker);
    let (worker_stop, worker_id) = (stop.clone(), settings.worker);
    let alive = Alive::new();
    let progress = alive.progress();
    let ahead_max_ms = AHEAD_BUCKETS_MAX * 1000 * i64::from(settings.aggregator.bucket_width);
    let thread = std::thread::Builder::new().name(name).spawn(move || {
        let (wall_ms, monotonic) = (wall_ms(), Monotonic::now().0);
        let mut ingest = Ingest::new(settings, wall_ms.div_euclid(1000));
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
            clock_set_back: 0,
            worker: worker_id,
            reports,
            waiting: None,
            on_their_way: Arc::default(),
            inbox,
            stop: worker_stop,
            around,
            expired_kept: 0,
            next_tick_ns: monotonic + TICK.as_nanos() as u64,
            next_example_ns: 0,
            hand_over_waits: 0,
            ticks: 0,
            drop_disagreements: 0,
            busy_since_ns: None,
            longest_gap_ns: 0,
            now_ms: wall_ms,
        };
        worker.run();
    })?;
    Ok(WorkerHandle {
        stop,
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
    clock_set_back: u64,
    worker: u16,
    reports: SyncSender<Report>,
    /// A batch for which the channel had no room.
    waiting: Option<Box<Batch>>,
    /// Bytes of batches that were handed over and not merged yet.
    on_their_way: Arc<AtomicUsize>,
    inbox: Receiver<Command>,
    stop: Arc<AtomicBool>,
    around: WorkerSettings,
    /// Contexts expired when memory was given back last.
    expired_kept: u64,
    next_tick_ns: u64,
    next_example_ns: u64,
    hand_over_waits: u64,
    ticks: u64,
    drop_disagreements: u64,
    busy_since_ns: Option<u64>,
    longest_gap_ns: u64,
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
            self.longest_gap_ns = self.longest_gap_ns.max(before - since);
        }
        let by_sender = self.origins.is_some();
        let turn = self
            .event_loop
            .turn(Some(timeout), &mut taking(&mut self.ingest, by_sender));
        let after = Monotonic::now().0;
        self.alive.turned(after);
        let late_ns = (after - before).saturating_sub(timeout.as_nanos() as u64);
        if late_ns >= LATE_NS {
            self.longest_gap_ns = self.longest_gap_ns.max(late_ns);
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

    fn read_clock(&mut self, monotonic: u64) {
        match self.clock.advance(wall_ms(), monotonic) {
            Reading::On(now_ms) => self.now_ms = now_ms,
            Reading::SetBack(now_ms) => {
                self.now_ms = now_ms;
                self.clock_set_back += 1;
                while !self.ingest.set_back(now_ms.div_euclid(1000)) {
                    // Once in a process's life, if ever: nothing is received while the last bucket is handed over.
                    self.hand_over_all();
                }
            }
        }
    }

    /// Until the open bucket ends or the next tick, whichever is first; not at all while a flush has work left.
    fn timeout(&self) -> Duration {
        let held_back = self.waiting.is_some() || !self.has_room_on_the_way();
        if self.sweeping || self.summarising || (self.ingest.is_draining() && !held_back) {
            return Duration::ZERO;
        }
        if self.ingest.is_draining() || self.waiting.is_some() {
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
            self.hand_over_waits += 1;
            self.hand_over_all();
        }
        self.hand_over();
        self.pass_on();
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
            && self.has_room_on_the_way()
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

    /// Full batches of what passes without aggregation, as far as there is room.
    fn pass_on(&mut self) {
        while self.waiting.is_none()
            && self.has_room_on_the_way()
            && let Some(batch) = self.ingest.take_full_passed_on()
        {
            self.offer(Box::new(batch));
        }
        if self.ingest.has_full_outbox() {
            // As where a whole bucket waits: the kernel's buffers fill, whose losses are counted.
            self.hand_over_waits += 1;
            if let Some(batch) = self.waiting.take() {
                let _ = self.reports.send(Report::Batch(batch));
            }
            while let Some(batch) = self.ingest.take_full_passed_on() {
                let _ = self.reports.send(Report::Batch(Box::new(batch)));
            }
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

    /// Whether the outputs keep up, so that another batch takes no memory that is not there for it.
    fn has_room_on_the_way(&self) -> bool {
        self.on_their_way.load(Ordering::Relaxed) < self.around.batch_bytes_max
    }

    fn offer(&mut self, mut batch: Box<Batch>) {
        batch.depart(&self.on_their_way);
        match self.reports.try_send(Report::Batch(batch)) {
            Ok(()) => {}
            Err(TrySendError::Full(Report::Batch(batch))) => {
                self.hand_over_waits += 1;
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
            && self.has_room_on_the_way()
            && let Some(batch) = self.ingest.take_passed_on()
        {
            self.offer(Box::new(batch));
        }
        self.ingest.keep_within_memory();
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
                self.drop_disagreements += u64::from(!check.agrees());
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

    fn snapshot(&self) -> WorkerSnapshot {
        let (strings, tag_lists) = self.ingest.contexts().table_sizes();
        let listeners = self
            .event_loop
            .listeners()
            .map(|(id, _)| ListenerSnapshot {
                listener: id.0,
                socket: *self.event_loop.counters(id),
                ingest: self.ingest.counts()[usize::from(id.0)],
                packets_waiting: self.ingest.packets_waiting(usize::from(id.0)),
            })
            .collect();
        WorkerSnapshot {
            worker: self.worker,
            at: self.now_ms.div_euclid(1000),
            listeners,
            event_loop: *self.event_loop.loop_counters(),
            aggregate: self.ingest.aggregator().counts(),
            contexts: self.ingest.contexts().len(),
            contexts_expired: self.ingest.contexts_expired(),
            overflow_names: self.ingest.contexts().overflow_names(),
            aliases: self.ingest.contexts().aliases(),
            alias_misses: self.ingest.contexts().alias_counts().misses,
            aliases_short: {
                let counts = self.ingest.contexts().alias_counts();
                counts.evicted + counts.refused
            },
            limited_samples: self.ingest.contexts().limited_samples(),
            strings,
            tag_lists,
            context_bytes: self.ingest.contexts().heap_bytes(),
            state_bytes: self.ingest.aggregator().heap_bytes(),
            partial_bytes: self.event_loop.partial_bytes_held(),
            tls_bytes: self.event_loop.tls_bytes_held(),
            origin_bytes: self.ingest.contexts().origin_bytes(),
            batch_bytes: self.on_their_way.load(Ordering::Relaxed),
            hand_over_waits: self.hand_over_waits,
            drop_disagreements: self.drop_disagreements,
            clock_set_back: self.clock_set_back,
            clock_ahead_ms: self.clock.ahead_ms(wall_ms()),
            longest_gap_ns: self.longest_gap_ns,
            origin: self.ingest.origin_stats(),
            limited_origins: self.ingest.limited_origins(),
            refused_senders: self.ingest.refused_senders(),
            rules: self.rule_snapshot(),
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
        if self.around.flush_open_bucket && self.ingest.close_now() {
            self.hand_over_all();
        }
        while let Some(batch) = self.ingest.take_passed_on() {
            let _ = self.reports.send(Report::Batch(Box::new(batch)));
        }
        let _ = self.reports.send(Report::Snapshot(Box::new(self.snapshot())));
        let _ = self.reports.send(Report::Done(self.worker));
    }
}

fn wall_ms() -> i64 {
    match SystemTime::now().duration_since(UNIX_EPOCH) {
        Ok(since) => since.as_millis() as i64,
        Err(before) => -(before.duration().as_millis() as i64),
    }
}
