//! One OS thread, and the order of its work.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use weir_listener::{EventLoop, ListenerId, Monotonic, TlsError};

use crate::ingest::{BadInput, Ingest, Received, WaitLimit};
use crate::origin::{OriginAnswer, OriginLink};
use crate::progress::ProgressGuard;
use crate::relay::Relay;
use crate::saved::PutPiece;
use crate::tap::{CountsBefore, TappedPacket, Taps};
use weir_aggregate::Batch;

mod checkpoint;
mod clock;
mod columns;
mod control;
mod freeze;
mod maintenance;
mod outbox;
mod report;
mod steps;

use checkpoint::Checkpoints;
pub use checkpoint::{CheckpointLink, CheckpointPart, WorkerTally};
use clock::Gaps;
pub use clock::Readings;
use columns::ColumnQueue;
pub use control::{
    Command, CommandSender, RelayChange, RelayLink, RelayLinks, Sources, WorkerHandle, WorkerSettings, spawn,
};
pub use freeze::{AT_THE_END, Freeze, PutState};
use maintenance::{DropWatch, Ticks};
use outbox::Outbox;
pub use report::{
    ContextSnapshot, ListenerSnapshot, Report, RuleSnapshot, SenderSnapshot, WorkerBytes, WorkerSnapshot,
};
pub use steps::Core;

/// Contexts visited between two receive turns while a closed bucket is handed over. At less than a microsecond each, texts included, this
/// is less than a quarter of a millisecond: the kernel queues ten datagrams on a Unix socket, and then a sender at a hundred thousand a
/// second has to wait.
const DRAIN_CONTEXTS: usize = 256;

/// Packets that are processed together: as many as the kernel queues on a Unix socket, so that look-ups of the next packet begin before those
/// of the last one end.
const PACKETS_TOGETHER: usize = 16;

/// Names looked at between two receive turns for a summary: well below a millisecond's worth.
const SUMMARY_NAMES: usize = 8192;

/// Interval at which counts are published and messages without aggregation are handed over.
const TICK: Duration = Duration::from_secs(1);

/// Wait before the control plane is offered again what it had no room for. It may need the core for making room.
const ROOM_WAIT: Duration = Duration::from_millis(1);

/// The class of connections that could not be encrypted, among examples of bad input.
pub const TLS_ERROR: &str = "tls";

/// Longest wait at the end for the look-ups of the last senders.
const END_WAIT_NS: u64 = 250_000_000;

/// Processes a batch: all its packets, with their senders if those are distinguished.
fn packet_handler(
    ingest: &mut Ingest,
    by_sender: bool,
    taps: &mut Taps,
    outbox: &mut Outbox,
) -> impl FnMut(weir_listener::PacketBatch<'_>) {
    move |batch| {
        if !taps.is_empty() {
            process_tapped(ingest, by_sender, taps, batch);
            pass_on(ingest, outbox);
            return;
        }
        let (listener, received) = (usize::from(batch.listener().0), batch.received().0);
        let mut together = [Received {
            bytes: &[],
            listener,
            truncated: false,
            received,
        }; PACKETS_TOGETHER];
        let mut packets = batch.iter();
        while packets.len() > 0 {
            let mut count = 0;
            for (taken, packet) in together.iter_mut().zip(&mut packets) {
                (taken.bytes, taken.truncated) = (packet.bytes, packet.truncated);
                count += 1;
                if by_sender {
                    ingest.packet_from(*taken, packet.origin.map_or(0, |sender| sender.pid));
                }
            }
            if !by_sender {
                ingest.packets(&together[..count]);
            }
            if ingest.has_full_pass_through() {
                pass_on(ingest, outbox);
            }
        }
    }
}

/// Full batches of what passes without aggregation, as far as there is room. What finds none waits, up to a limit; beyond it messages are
/// dropped and counted.
fn pass_on(ingest: &mut Ingest, outbox: &mut Outbox) {
    while !outbox.is_full()
        && let Some(batch) = ingest.take_full_pass_through()
    {
        outbox.offer(Box::new(batch));
    }
}

/// The same with a tap.
#[cold]
fn process_tapped(
    ingest: &mut Ingest,
    by_sender: bool,
    taps: &mut Taps,
    batch: weir_listener::PacketBatch<'_>,
) {
    let (listener, received) = (usize::from(batch.listener().0), batch.received().0);
    for (index, packet) in batch.iter().enumerate() {
        let before = CountsBefore::of(ingest, listener);
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
        let tapped = TappedPacket {
            listener: listener as u16,
            length: packet.bytes.len() as u32,
            received,
            truncated: packet.truncated,
            sender: packet.origin,
            source: batch.source(index),
            outcome: before.outcome(ingest, listener),
        };
        taps.take(&tapped, packet.bytes);
    }
}

/// One OS thread. It waits for nothing but its sockets until it ends.
struct Worker {
    /// Dropped first: a watcher that misses a socket file must see by then that the worker has ended.
    progress_guard: ProgressGuard,
    event_loop: EventLoop,
    core: Core,
    origins: Option<OriginLink>,
    inbox: Inbox,
    taps: Taps,
    ticks: Ticks,
    gaps: Gaps,
    drops: DropWatch,
    stop: Arc<AtomicBool>,
    /// Another process asks to take over.
    freeze: Option<Freeze>,
    /// Takes the open bucket for the next process, if one continues it.
    keep: Arc<OnceLock<PutState>>,
}

/// Commands and columns of the control plane.
struct Inbox {
    commands: Receiver<Command>,
    columns: ColumnQueue,
}

impl Worker {
    fn run(mut self) {
        self.core.begin();
        // So that others need not wait for the first tick to see that it runs.
        self.publish();
        self.core.begin_checkpoint();
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
        self.gaps.turn_begins(before);
        let by_sender = self.origins.is_some();
        let turn = self.event_loop.turn(
            Some(timeout),
            &mut packet_handler(
                &mut self.core.ingest,
                by_sender,
                &mut self.taps,
                &mut self.core.outbox,
            ),
        );
        let after = Monotonic::now().0;
        self.progress_guard.end_turn(after);
        self.gaps.turn_ended(before, after, timeout.as_nanos() as u64);
        self.core.turn_ended(Readings::at(after));
        let Ok(turn) = turn else { return false };
        if turn.packets > 0 || self.core.ingest.is_draining() || self.core.maintenance.any() {
            self.gaps.busy(after);
        }
        true
    }
}

impl Core {
    /// The merge does not wait for buckets before the open one.
    pub fn begin(&mut self) {
        self.outbox.try_send(Report::Begun {
            worker: self.outbox.worker(),
            open: self.ingest.aggregator().open_bucket().start,
        });
    }

    /// The packets of the turn are in. `now`: the clocks after it.
    pub fn turn_ended(&mut self, now: Readings) {
        self.clock.read(now);
    }

    /// Ends the bucket if it is time, or if the clock was set back. What the turn received, and the end, are counted before anything of it is
    /// handed over: a kill from here on delivers nothing of this bucket again.
    ///
    /// If the bucket before it is not handed over yet, the control plane does not keep up. Then the bucket ends later, with its own timestamp
    /// and all samples until then: nobody waits, and nothing is lost but resolution, which is counted.
    pub fn advance(&mut self) {
        let now = self.clock.seconds();
        if self.clock.ends_bucket {
            self.clock.ends_bucket = !self.ingest.set_back(now);
        } else {
            let _ = self.ingest.advance(now);
        }
        self.count();
    }

    fn count(&self) {
        if let Some(checkpoints) = &self.checkpoints {
            checkpoints.count(&self.ingest, self.clock.milliseconds());
        }
    }
}

impl Worker {
    /// Until the open bucket ends or the next tick, whichever is first; not at all while there is work that can proceed.
    fn timeout(&self) -> Duration {
        let columns = self.can_add_columns();
        if self.core.can_proceed() || (columns && !self.core.ingest.has_full_outbox()) {
            return Duration::ZERO;
        }
        if columns || self.core.waits_for_room() {
            return ROOM_WAIT;
        }
        let bucket_ms =
            self.core.ingest.aggregator().open_bucket_end() * 1000 - self.core.clock.milliseconds();
        let deadlines = [
            self.core.ingest.parked_deadline(),
            self.core.ingest.relay_deadline(),
            self.taps.deadline(),
        ];
        let next_ns = deadlines
            .into_iter()
            .flatten()
            .fold(self.ticks.next_ns(), u64::min);
        let tick_ns = next_ns.saturating_sub(Monotonic::now().0);
        Duration::from_millis(bucket_ms.max(0) as u64)
            .min(Duration::from_nanos(tick_ns))
            .min(self.core.checkpoint_pause().unwrap_or(TICK))
            .min(TICK)
    }

    fn periodic(&mut self) {
        // All of a payload is in one bucket.
        if !self.inbox.columns.is_running() {
            self.core.advance();
        }
        self.hand_over();
        self.core.pass_on();
        self.core.summarise();
        let monotonic = Monotonic::now().0;
        for relay in self.core.ingest.relays_mut() {
            relay.turn(monotonic);
        }
        if self.ticks.is_time(monotonic) {
            self.tick(monotonic);
        }
        if !self.taps.is_empty() {
            self.tap(monotonic);
        }
        self.commands(monotonic);
        if self.can_add_columns() {
            self.columns();
        }
        if self.freeze.is_some() {
            self.freeze_if_requested();
        }
        if !self.inbox.columns.is_running() {
            self.core.begin_due_checkpoint();
        }
        self.core.proceed_with_checkpoint();
    }

    fn commands(&mut self, monotonic: u64) {
        while let Ok(command) = self.inbox.commands.try_recv() {
            self.command(command);
        }
        if let Some(origins) = &mut self.origins {
            let deadline = self.core.ingest.parked_deadline();
            if deadline.is_some_and(|deadline| monotonic >= deadline) {
                self.core.ingest.feed_parked(monotonic, WaitLimit::Timeout);
            }
            origins.turn(&mut self.core.ingest);
        }
        let now = self.core.ingest.aggregator().now();
        self.core
            .maintenance
            .proceed(self.core.ingest.contexts_mut(), now);
    }

    fn command(&mut self, command: Command) {
        match command {
            Command::Rules(rules) => {
                self.core.ingest.set_rules(*rules);
                self.core.maintenance.sweep();
            }
            Command::Socket(id, socket) => {
                let by_sender = self.origins.is_some();
                // One that cannot be added is closed, with its file: the maker sees that and makes another.
                let _ = self.event_loop.replace(
                    id,
                    *socket,
                    &mut packet_handler(
                        &mut self.core.ingest,
                        by_sender,
                        &mut self.taps,
                        &mut self.core.outbox,
                    ),
                );
            }
            Command::Origins(answers) => self.apply_answers(answers),
            Command::Admission(list) => {
                self.core.ingest.set_admission_list(list);
                self.core
                    .ingest
                    .feed_parked(Monotonic::now().0, WaitLimit::Timeout);
            }
            Command::Relays(change) => self.change_relays(change),
            Command::Tap(settings) => {
                self.taps.add(settings, &self.core.ingest, Monotonic::now().0);
                self.event_loop.report_sources(true);
            }
            Command::Inspect(inspect) => inspect(&self.event_loop),
            Command::Freeze(freeze) => self.freeze = Some(*freeze),
            Command::Columns(payload) => self.inbox.columns.push(payload),
        }
    }

    #[cold]
    fn tap(&mut self, monotonic: u64) {
        self.taps.turn(&self.core.ingest, monotonic);
        if self.taps.is_empty() {
            self.event_loop.report_sources(false);
        }
    }

    /// Relays that end first hand over their lines.
    fn change_relays(&mut self, change: RelayChange) {
        let mut known: Vec<Option<Relay>> = self.core.ingest.take_relays().into_iter().map(Some).collect();
        let relay = |link| match link {
            RelayLink::Kept(at) => known.get_mut(at).and_then(Option::take),
            RelayLink::New(settings) => Some(Relay::new(settings)),
        };
        let relays = change.relays.into_iter().filter_map(relay).collect();
        self.core.ingest.enable_relays(relays, change.only);
        known.iter_mut().flatten().for_each(Relay::finish);
    }

    fn apply_answers(&mut self, answers: Vec<OriginAnswer>) {
        for answer in answers {
            self.core.ingest.answer(answer);
        }
        self.core.maintenance.sweep();
        self.core
            .ingest
            .feed_parked(Monotonic::now().0, WaitLimit::Timeout);
        self.inbox.columns.look_again();
    }

    /// The next slice of a flush, without waiting.
    fn hand_over(&mut self) {
        if let Some(batch) = self.core.next_batch() {
            if batch.last {
                // The counts go ahead of the batch that ends a bucket, so that a reader that sees its end sees them.
                self.publish();
            }
            self.core.offer(batch);
        }
    }
}

impl Core {
    /// Whether there is work left that needs nobody else: without anything received, calling the steps ends it.
    pub fn can_proceed(&self) -> bool {
        let can_hand_over = if self.ingest.is_draining() {
            !self.outbox.is_full()
        } else {
            self.maintenance.is_summarising()
        };
        can_hand_over || self.maintenance.is_sweeping() || self.checkpoint_pause() == Some(Duration::ZERO)
    }

    /// Whether a part of a bucket is to be handed over once the control plane has room for it.
    pub fn waits_for_room(&self) -> bool {
        self.ingest.is_draining() || self.outbox.has_batch()
    }

    fn checkpoint_pause(&self) -> Option<Duration> {
        self.checkpoints.as_ref().and_then(Checkpoints::pause)
    }

    /// The next batch of a flush, if there is one and room for it. It goes to [`Core::offer`].
    pub fn next_batch(&mut self) -> Option<Batch> {
        self.outbox.retry_batch();
        if self.outbox.is_full() || !self.ingest.is_draining() {
            return None;
        }
        self.ingest.drain(DRAIN_CONTEXTS)
    }

    /// Hands over a batch, without waiting.
    pub fn offer(&mut self, batch: Batch) {
        if batch.last {
            self.maintenance.summarise();
            self.release_memory.bucket_ended(self.ingest.contexts_expired());
        }
        self.outbox.offer(Box::new(batch));
    }

    /// Full batches of what passes without aggregation, as far as there is room.
    pub fn pass_on(&mut self) {
        pass_on(&mut self.ingest, &mut self.outbox);
    }

    /// The next slice of a summary, and what was complete but found no room.
    pub fn summarise(&mut self) {
        if self.maintenance.is_summarising()
            && !self.ingest.is_draining()
            && let Some(summary) = self.ingest.summarise(SUMMARY_NAMES)
        {
            self.maintenance.summarised();
            self.outbox.put_summary(summary);
        }
        self.outbox.retry_summary();
    }

    /// At the end: the rest of a flush, waiting for room as long as it takes.
    pub fn hand_over_all(&mut self) {
        self.outbox.wait_for_batch();
        while self.ingest.is_draining() {
            if let Some(batch) = self.ingest.drain(usize::MAX) {
                self.outbox.send(Report::Batch(Box::new(batch)));
            }
        }
    }

    /// The end: another process continues the open bucket, which goes to `put` in pieces. Everything before it is handed over. False: the
    /// pieces found no place.
    pub fn keep(&mut self, put: PutPiece<'_>, drops: impl Iterator<Item = (u64, u32)>) -> bool {
        let stamp = self.clock.stamp(self.agent);
        let Ok(mut saved) = self.ingest.save_encoded(stamp, put) else {
            return false;
        };
        saved.drops = drops.collect();
        // Packets that waited for the look-up of their sender are in it too.
        self.count();
        self.outbox.send_saved(AT_THE_END, saved);
        true
    }

    /// The end, without a process that continues the open bucket.
    pub fn flush_open_bucket(&mut self) {
        if self.flush_open_bucket && self.ingest.close_now() {
            self.count();
            self.hand_over_all();
        } else if let Some(batch) = self.ingest.take_kept() {
            // These points are complete, unlike the bucket.
            self.outbox.send(Report::Batch(Box::new(batch)));
        }
    }
}

impl Worker {
    fn tick(&mut self, monotonic: u64) {
        self.core.pass_all_on();
        self.core.ingest.numbers_mut().expire(monotonic / 1_000_000_000);
        self.core.ingest.keep_within_memory();
        self.report_examples(monotonic);
        for relay in self.core.ingest.relays_mut() {
            relay.hand_over();
        }
        let _ = self.event_loop.refresh_drops();
        self.event_loop.end_idle(Monotonic(monotonic));
        self.core.ingest.tick_origins(monotonic);
        self.core.ingest.tick_sampler();
        self.drops.tick(&mut self.event_loop);
        self.core.request_checkpoint();
        self.inbox.columns.look_again();
        self.publish();
    }

    fn report_examples(&mut self, monotonic: u64) {
        if let Some(example) = self.core.ingest.take_bad_input() {
            self.core.outbox.try_send(Report::BadInput(example));
            self.ticks.example_taken(monotonic);
        } else if self.ticks.wants_example(monotonic) {
            self.core.ingest.want_example();
        }
        if let Some((listener, error)) = self.event_loop.take_tls_error() {
            self.core
                .outbox
                .try_send(Report::BadInput(tls_failure(listener, &error)));
        }
    }

    fn publish(&self) {
        self.core
            .outbox
            .try_send(Report::Snapshot(Box::new(self.snapshot())));
    }

    /// Reads packets that the kernel had accepted, hands over every bucket, publishes the last counts.
    fn finish(mut self) {
        self.drain_sockets();
        self.await_pending_senders();
        self.finish_payload();
        self.refuse_payloads();
        self.taps.finish(&self.core.ingest);
        for relay in self.core.ingest.relays_mut() {
            relay.finish();
        }
        // Nothing is received any more, so this snapshot is final.
        self.core.outbox.send(Report::Snapshot(Box::new(self.snapshot())));
        self.core.hand_over_all();
        let is_kept = self
            .keep
            .get()
            .is_some_and(|put| self.core.keep(put, self.event_loop.drops_seen()));
        if !is_kept {
            self.core.flush_open_bucket();
        }
        while let Some(batch) = self.core.ingest.take_pass_through() {
            self.core.outbox.send(Report::Batch(Box::new(batch)));
        }
        self.core.outbox.send(Report::Snapshot(Box::new(self.snapshot())));
    }

    fn drain_sockets(&mut self) {
        self.event_loop.begin_drain();
        while !self.event_loop.drained() {
            if !self.turn(Duration::from_millis(10)) {
                break;
            }
            self.core.advance();
            self.hand_over();
            let monotonic = Monotonic::now().0;
            for relay in self.core.ingest.relays_mut() {
                relay.turn(monotonic);
            }
            self.commands(monotonic);
        }
    }

    /// The last sender is still being looked up.
    fn await_pending_senders(&mut self) {
        let patience = Monotonic::now().0 + END_WAIT_NS;
        while let Some(deadline) = self.core.ingest.parked_deadline() {
            let now = Monotonic::now().0;
            let left = deadline.min(patience).saturating_sub(now);
            match self.inbox.commands.recv_timeout(Duration::from_nanos(left)) {
                Ok(command) if left > 0 => self.command(command),
                _ => self.core.ingest.feed_parked(0, WaitLimit::NoWait),
            }
            self.commands(Monotonic::now().0);
        }
    }
}

fn tls_failure(listener: ListenerId, error: &TlsError) -> BadInput {
    BadInput {
        listener: usize::from(listener.0),
        class: TLS_ERROR,
        example: error.to_string(),
    }
}
