//! One target: its queue, its connection, its health.

use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;
use weir_protocol::route_slot;
use weir_units::Address;

use super::connection::{Connection, SentCounts};
use super::{Block, RelayLoss, RelaySettings, Shared, Stage, TargetStatus, lock, unix_now};
use crate::counters::OutputCounter;

/// The first wait after a failure; it doubles up to the interval of checks.
const BACKOFF: Duration = Duration::from_millis(100);
/// A target without answers may have moved: its name is looked up again after this many check intervals.
const CHECKS_PER_LOOK_UP: u32 = 12;
/// Longest wait of lines for that.
const LOOK_UP_WAIT: Duration = Duration::from_secs(1);
/// Bytes of a block of lines that were meant for another target.
const REROUTED_BYTES: usize = 64 << 10;

pub struct Task {
    shared: Arc<Shared>,
    index: usize,
    inbox: mpsc::Receiver<Block>,
    /// Buffers go back to their workers.
    returns: Vec<SyncSender<Vec<u8>>>,
    blocks_max: usize,
    waiting: VecDeque<Block>,
    connection: Option<Connection>,
    /// When the name of a target without answers is looked up again.
    look_up_at: Instant,
    /// In a row.
    failures: u32,
    ejected: bool,
    /// Successful checks in a row since it was ejected.
    checks: u32,
    /// Not tried before then.
    rests_until: Option<Instant>,
}

/// The data of an attempt, given and returned.
struct Attempt {
    connection: Option<Connection>,
    block: Option<Block>,
    sent: SentCounts,
    result: io::Result<()>,
}

type Attempting = Pin<Box<dyn Future<Output = Attempt> + Send>>;

impl Task {
    pub fn new(
        shared: Arc<Shared>,
        index: usize,
        inbox: mpsc::Receiver<Block>,
        returns: Vec<SyncSender<Vec<u8>>>,
        blocks_max: usize,
    ) -> Self {
        Self {
            shared,
            index,
            inbox,
            returns,
            blocks_max,
            waiting: VecDeque::new(),
            connection: None,
            look_up_at: Instant::now(),
            failures: 0,
            ejected: false,
            checks: 0,
            rests_until: None,
        }
    }

    pub async fn run(mut self) {
        let shared = self.shared.clone();
        let mut stage = shared.stage.subscribe();
        let mut attempt: Option<Attempting> = None;
        let mut open = true;
        let mut last_chance = false;
        loop {
            let draining = shared.stage() >= Stage::Draining;
            if draining && !last_chance {
                // The process ends within the grace period, which a wait may well outlast: try now.
                last_chance = true;
                self.rests_until = None;
            }
            if draining && !open && self.waiting.is_empty() && attempt.is_none() {
                break;
            }
            let rested = self.rests_until.is_none_or(|at| Instant::now() >= at);
            let due = if self.ejected {
                !draining
            } else {
                !self.waiting.is_empty()
            };
            if attempt.is_none() && rested && due {
                attempt = Some(self.attempt());
            }
            let resting = self.rests_until.filter(|_| attempt.is_none() && due);
            tokio::select! {
                block = self.inbox.recv(), if open => match block {
                    Some(block) => self.take(block),
                    None => open = false,
                },
                done = async { attempt.as_mut().expect("the branch is on only then").await }, if attempt.is_some() => {
                    attempt = None;
                    self.settle(done);
                }
                () = tokio::time::sleep_until(resting.unwrap_or_else(Instant::now)), if resting.is_some() => {
                    self.rests_until = None;
                }
                _ = stage.changed() => {
                    if shared.stage() == Stage::Stopped {
                        break;
                    }
                }
            }
        }
        drop(attempt);
        self.inbox.close();
        // Also what another target's task is pushing at this moment.
        while let Some(block) = self.inbox.recv().await {
            self.take(block);
        }
        self.books(|books| {
            let left = std::mem::take(&mut books.waiting) + std::mem::take(&mut books.in_flight);
            books.drop_messages(RelayLoss::Shutdown, left);
            books.queued_bytes = 0;
        });
    }

    fn books<T>(&self, work: impl FnOnce(&mut TargetStatus) -> T) -> T {
        let result = work(&mut lock(&self.shared.books[self.index]));
        self.shared.progress.notify_waiters();
        result
    }

    /// A block of a worker, or of a target that was ejected.
    fn take(&mut self, block: Block) {
        let (messages, bytes) = (block.messages, block.lines.len() as u64);
        let (_, mailbox) = &self.shared.mailboxes[self.index];
        self.books(|books| {
            mailbox.taken.fetch_add(messages, Ordering::Relaxed);
            books.waiting += messages;
            books.queued_bytes += bytes;
        });
        if messages == 0 {
            return;
        }
        self.waiting.push_back(block);
        if self.ejected {
            self.reroute();
        }
        while self.waiting.len() > self.blocks_max {
            if let Some(oldest) = self.waiting.pop_front() {
                self.books(|books| {
                    books.waiting -= oldest.messages;
                    books.queued_bytes = books.queued_bytes.saturating_sub(oldest.lines.len() as u64);
                    books.drop_messages(RelayLoss::QueueFull, oldest.messages);
                });
                self.give_back(oldest);
            }
        }
    }

    fn give_back(&self, block: Block) {
        if let Some(worker) = block.worker {
            let mut buffer = block.lines;
            buffer.clear();
            // A worker that has ended needs none.
            let _ = self.returns[worker].try_send(buffer);
        }
    }

    /// Sends the next block, or looks after a target that was ejected.
    fn attempt(&mut self) -> Attempting {
        let block = if self.ejected {
            None
        } else {
            self.waiting.pop_front()
        };
        if let Some(block) = &block {
            self.books(|books| {
                books.waiting -= block.messages;
                books.in_flight += block.messages;
            });
        }
        let connection = self.connection.take();
        let settings = self.shared.settings.clone();
        let address = self.shared.names[self.index].clone();
        let failing = self.failures > 0;
        let look_up = Instant::now() >= self.look_up_at;
        if look_up {
            self.look_up_at = Instant::now() + settings.check_interval * CHECKS_PER_LOOK_UP;
        }
        Box::pin(try_once(connection, block, address, settings, failing, look_up))
    }

    fn settle(&mut self, attempt: Attempt) {
        let Attempt {
            connection,
            block,
            sent,
            result,
        } = attempt;
        if let Some(mut block) = block {
            let accounted = sent.messages + sent.too_long;
            let left = block.messages - accounted;
            self.books(|books| {
                books.in_flight -= block.messages;
                books.waiting += left;
                books.delivered += sent.messages;
                books.counts[OutputCounter::Bytes] += sent.bytes;
                books.counts[OutputCounter::Payloads] += sent.packets;
                books.drop_messages(RelayLoss::TooLong, sent.too_long);
            });
            block.messages = left;
            let bytes = block.lines.len() as u64;
            if result.is_ok() {
                self.books(|books| books.queued_bytes = books.queued_bytes.saturating_sub(bytes));
                self.give_back(block);
            } else {
                self.waiting.push_front(block);
            }
        }
        match result {
            Ok(()) => {
                self.connection = connection;
                self.succeeded();
            }
            Err(error) => self.failed(&error),
        }
    }

    fn succeeded(&mut self) {
        let shared = self.shared.clone();
        let address = &shared.names[self.index];
        if self.ejected {
            self.checks += 1;
            if self.checks < shared.settings.readmit_after {
                self.rests_until = Some(Instant::now() + shared.settings.check_interval);
                return;
            }
            self.ejected = false;
            shared.readmit(self.index);
            tracing::info!(
                output = shared.name,
                target = address,
                "reachable again: it gets its lines again"
            );
        }
        if self.failures > 0 {
            self.failures = 0;
            self.rests_until = None;
            self.books(|books| {
                (books.healthy, books.ejected, books.since) = (true, false, unix_now());
                books.last_error = None;
            });
        }
    }

    fn failed(&mut self, error: &io::Error) {
        let shared = self.shared.clone();
        let settings = &shared.settings;
        let address = &shared.names[self.index];
        self.failures = self.failures.saturating_add(1);
        self.checks = 0;
        self.books(|books| {
            if books.healthy {
                (books.healthy, books.since) = (false, unix_now());
            }
            books.counts[OutputCounter::AttemptsFailed] += 1;
            books.counts[OutputCounter::Retries] += 1;
            books.last_error = Some(error.to_string());
        });
        if self.failures == 1 {
            tracing::warn!(output = shared.name, target = address, %error, "cannot relay; retrying");
        }
        let wait = BACKOFF * 2u32.saturating_pow(self.failures.min(16) - 1);
        self.rests_until = Some(Instant::now() + wait.min(settings.check_interval));
        let enough = settings.eject_after > 0 && self.failures >= settings.eject_after;
        if enough && !self.ejected && shared.stage() == Stage::Running && shared.eject(self.index) {
            self.ejected = true;
            self.books(|books| books.ejected = true);
            tracing::warn!(
                output = shared.name,
                target = address,
                "ejected: other targets get its lines"
            );
            self.reroute();
        }
    }

    /// Moves its queue to the targets that have its slots now.
    fn reroute(&mut self) {
        let shared = self.shared.clone();
        let routes = shared.routes.get();
        let mut blocks: Vec<Block> = (0..shared.names.len()).map(|_| Block::default()).collect();
        let (mut moved, mut lost) = (0, 0);
        let mut send = |at: usize, block: Block| {
            let messages = block.messages;
            let (blocks, mailbox) = &shared.mailboxes[at];
            let sent = blocks
                .upgrade()
                .is_some_and(|blocks| mailbox.push(&blocks, block).is_ok());
            *(if sent { &mut moved } else { &mut lost }) += messages;
        };
        let mut bytes = 0;
        for block in std::mem::take(&mut self.waiting) {
            bytes += (block.lines.len()) as u64;
            for line in block.lines[block.done..].split_inclusive(|byte| *byte == b'\n') {
                let at = routes.target(route_slot(line.strip_suffix(b"\n").unwrap_or(line)));
                let open = &mut blocks[at];
                if open.lines.len() + line.len() > REROUTED_BYTES {
                    send(at, std::mem::take(open));
                }
                open.lines.extend_from_slice(line);
                open.messages += 1;
            }
            self.give_back(block);
        }
        for (at, block) in blocks
            .into_iter()
            .enumerate()
            .filter(|(_, block)| block.messages > 0)
        {
            send(at, block);
        }
        self.books(|books| {
            books.waiting -= moved + lost;
            books.queued_bytes = books.queued_bytes.saturating_sub(bytes);
            books.drop_messages(RelayLoss::Rerouted, moved);
            books.drop_messages(RelayLoss::QueueFull, lost);
        });
    }
}

/// Connects if necessary, probes the target after a doubt, and sends.
async fn try_once(
    connection: Option<Connection>,
    block: Option<Block>,
    address: String,
    settings: RelaySettings,
    failing: bool,
    look_up: bool,
) -> Attempt {
    let mut attempt = Attempt {
        connection: None,
        block,
        sent: SentCounts::default(),
        result: Ok(()),
    };
    let timeout = settings.timeout;
    let open = async {
        let parsed: Address = address.parse().map_err(io::Error::other)?;
        let connection = match connection {
            // A failed look-up of a name does not drop a target.
            Some(old) if look_up && old.is_silent() => {
                let new = tokio::time::timeout(LOOK_UP_WAIT, Connection::open(&parsed)).await;
                new.ok().and_then(Result::ok).unwrap_or(old)
            }
            Some(connection) => connection,
            None => Connection::open(&parsed).await?,
        };
        if failing {
            connection.check().await?;
        }
        Ok::<_, io::Error>(connection)
    };
    let mut connection = match tokio::time::timeout(timeout, open).await {
        Ok(Ok(connection)) => connection,
        Ok(Err(error)) => {
            attempt.result = Err(error);
            return attempt;
        }
        Err(_) => {
            attempt.result = Err(io::Error::new(io::ErrorKind::TimedOut, "no connection in time"));
            return attempt;
        }
    };
    if let Some(block) = &mut attempt.block {
        attempt.result = connection.send(block, &settings, &mut attempt.sent).await;
    }
    attempt.connection = Some(connection);
    attempt
}
