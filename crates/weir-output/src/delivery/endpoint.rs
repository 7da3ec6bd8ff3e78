//! One endpoint's task: takes payloads from its queue, sends them, waits after failures, and records each result.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;

use super::divide::{self, RefusedSeries};
use super::queue::Queue;
use super::{
    Backoff, EndpointBooks, EndpointIdentity, LOG_INTERVAL, Landed, LastError, Outcome, Payload,
    RETRY_AFTER_MAX, Sending, Shared, Stage, Transport,
};
use crate::counters::OutputCounter;

/// Whether an endpoint's queue goes to another output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd)]
pub(super) enum Release {
    No,
    Requested,
    Done,
}

/// An endpoint's queue, and messages to its task.
pub(super) struct EndpointSide {
    pub(super) label: String,
    pub(super) identity: EndpointIdentity,
    pub(super) queue: Mutex<Queue>,
    pub(super) queued: Notify,
    /// An attempt may succeed now that would have failed before.
    pub(super) retry_requested: Notify,
    pub(super) released: watch::Sender<Release>,
}

impl EndpointSide {
    pub(super) fn new(label: String, identity: EndpointIdentity, queue: Queue) -> Self {
        EndpointSide {
            label,
            identity,
            queue: Mutex::new(queue),
            queued: Notify::new(),
            retry_requested: Notify::new(),
            released: watch::Sender::new(Release::No),
        }
    }
}

/// Runs until the output is stopped.
pub async fn run(shared: Arc<Shared>, index: usize, transport: Arc<dyn Transport>) {
    let mut stage = shared.stage.subscribe();
    let side = &shared.endpoints[index];
    let mut released = side.released.subscribe();
    let mut sending = shared.sending.subscribe();
    let mut endpoint = Endpoint {
        backoff: Backoff::new(&shared.settings, shared.clock.seed()),
        under_way: JoinSet::new(),
        refused: Arc::default(),
        blocked_until: None,
        probing: false,
        exhausted: false,
        logged_at: None,
        last_chance: false,
        shared: shared.clone(),
        index,
        transport,
    };
    loop {
        endpoint.unblock();
        if *released.borrow_and_update() >= Release::Requested {
            break;
        }
        if endpoint.may_send() {
            endpoint.send_next().await;
            continue;
        }
        let blocked_until = endpoint.blocked_until;
        let last_chance = endpoint.last_chance;
        tokio::select! {
            // Answers that have arrived count, whatever else has happened meanwhile.
            biased;
            Some(ended) = endpoint.under_way.join_next() => {
                // A finished request makes room, and in time order it lets the next one go.
                endpoint.exhausted = false;
                if let Ok((payload, outcome)) = ended {
                    endpoint.ended(payload, outcome).await;
                }
            }
            () = reached(&mut stage, if last_chance { Stage::Stopped } else { Stage::Encoded }) => {
                if last_chance {
                    break;
                }
            }
            () = side.queued.notified() => endpoint.exhausted = false,
            _ = released.changed() => {}
            _ = sending.changed() => {}
            () = side.retry_requested.notified() => endpoint.blocked_until = Some(Duration::ZERO),
            () = shared.clock.sleep_until(blocked_until.unwrap_or_default()), if blocked_until.is_some() => {}
        }
    }
    endpoint.under_way.abort_all();
    while let Some(ended) = endpoint.under_way.join_next().await {
        // Its answer came first.
        if let Ok((payload, outcome)) = ended {
            endpoint.ended(payload, outcome).await;
        }
    }
    if *released.borrow() == Release::Requested {
        side.released.send_replace(Release::Done);
    }
}

pub async fn reached(stage: &mut watch::Receiver<Stage>, wanted: Stage) {
    drop(stage.wait_for(|stage| *stage >= wanted).await);
}

impl Shared {
    /// Waits until a payload was created this long ago, or until nothing is to wait any more. The wall clock may have been ahead when it was
    /// created (`created`: Unix seconds), so it never waits for longer than the delay.
    async fn wait(&self, created: i64, delay: Duration) {
        let age = self.clock.unix_ms().saturating_sub(created.saturating_mul(1000));
        let rest = delay.saturating_sub(Duration::from_millis(age.max(0) as u64));
        if rest.is_zero() {
            return;
        }
        let at = self.clock.now() + rest;
        let mut sending = self.sending.subscribe();
        tokio::select! {
            biased;
            () = self.clock.sleep_until(at) => {}
            _ = sending.wait_for(|sending| *sending >= Sending::AtOnce) => {}
        }
    }
}

struct Endpoint {
    shared: Arc<Shared>,
    index: usize,
    transport: Arc<dyn Transport>,
    backoff: Backoff,
    under_way: JoinSet<(Payload, Outcome)>,
    refused: Arc<Mutex<RefusedSeries>>,
    blocked_until: Option<Duration>,
    /// After failures one request at a time, until one succeeds: a backend that comes back is not trampled.
    probing: bool,
    /// The queue had nothing more to give.
    exhausted: bool,
    logged_at: Option<Duration>,
    /// The process ends within the grace period, which a wait may well outlast.
    last_chance: bool,
}

impl Endpoint {
    /// Ends waits that are over, and at the end of the process all of them, once.
    fn unblock(&mut self) {
        let is_end = !self.last_chance && self.shared.stage() >= Stage::Encoded;
        self.last_chance |= is_end;
        let is_over = self.blocked_until.is_some_and(|at| self.shared.clock.now() >= at);
        if is_end || is_over {
            self.blocked_until = None;
            self.exhausted = false;
        }
    }

    fn may_send(&self) -> bool {
        let at_once = if self.probing {
            1
        } else {
            self.shared.settings.concurrency
        };
        *self.shared.sending.borrow() < Sending::Paused
            && self.blocked_until.is_none()
            && !self.exhausted
            && self.under_way.len() < at_once
    }

    async fn send_next(&mut self) {
        let now = self.shared.clock.unix();
        let next = self
            .shared
            .with_queue(self.index, move |queue, _| queue.next(now))
            .await;
        match next {
            Some(payload) => {
                let (shared, transport) = (self.shared.clone(), self.transport.clone());
                let refused = self.refused.clone();
                let landed = Landed::of(&shared, self.index, &payload);
                self.under_way.spawn(async move {
                    shared.wait(payload.created, transport.delay(&payload)).await;
                    divide::deliver(shared, transport, refused, payload, landed).await
                });
            }
            None => self.exhausted = true,
        }
    }

    async fn ended(&mut self, payload: Payload, outcome: Outcome) {
        match &outcome {
            Outcome::Delivered => self.answered(),
            Outcome::Partly { rejected, error } => {
                self.answered();
                if self.may_log() {
                    let (output, endpoint) = self.names();
                    tracing::warn!(output, endpoint, error, dropped = rejected, of = ?payload.items(), "a part of a payload was refused for good");
                }
            }
            // The backend answered; only this payload was wrong.
            Outcome::Rejected { error } | Outcome::Invalid { error } => {
                self.probing = false;
                if self.may_log() {
                    let (output, endpoint) = self.names();
                    tracing::warn!(output, endpoint, error, dropped = ?payload.items(), "payload refused for good");
                }
            }
            Outcome::Retry { after, .. } => self.failed(*after),
            Outcome::Denied { .. } => {
                self.backoff.at_its_longest();
                self.failed(None);
            }
        }
        self.settle(payload, outcome).await;
    }

    fn answered(&mut self) {
        self.backoff.succeeded();
        self.probing = false;
    }

    /// Requests that were under way together fail together, which is one failure and not ten.
    fn failed(&mut self, after: Option<Duration>) {
        let now = self.shared.clock.now();
        let until = match self.blocked_until {
            None => now + self.backoff.failed(after),
            Some(at) => at.max(now + after.unwrap_or_default().min(RETRY_AFTER_MAX)),
        };
        self.probing = true;
        self.blocked_until = Some(until);
    }

    fn names(&self) -> (&str, &str) {
        (&self.shared.name, &self.shared.endpoints[self.index].label)
    }

    fn may_log(&mut self) -> bool {
        let now = self.shared.clock.now();
        let may = self.logged_at.is_none_or(|at| now >= at + LOG_INTERVAL);
        if may {
            self.logged_at = Some(now);
        }
        may
    }

    /// Enters an attempt's outcome in queue and books.
    async fn settle(&mut self, payload: Payload, outcome: Outcome) {
        let now = self.shared.clock.unix();
        let (output, endpoint) = self.names();
        let (output, endpoint) = (output.to_owned(), endpoint.to_owned());
        let (retry_at, last_chance) = (self.blocked_until, self.last_chance);
        let refused_series = super::lock(&self.refused).count();
        let enter = move |queue: &mut Queue, books: &mut EndpointBooks| {
            books.retry_at = retry_at;
            books.counts[OutputCounter::RefusedSeries] = refused_series;
            let (error, is_refusal) = match outcome {
                Outcome::Delivered => {
                    books.delivered += queue.delivered(payload.id);
                    if books.failing {
                        tracing::info!(output, endpoint, seconds = now - books.since, "delivers again");
                    }
                    books.took(&payload, now);
                    return books.forget_error(now);
                }
                Outcome::Partly { rejected, error } => {
                    books.delivered += queue.delivered_partly(payload.id, rejected);
                    books.took(&payload, now);
                    (error, true)
                }
                Outcome::Rejected { error } | Outcome::Invalid { error } => {
                    queue.rejected(payload.id);
                    books.counts[OutputCounter::AttemptsFailed] += 1;
                    books.turn(true, now);
                    (error, true)
                }
                Outcome::Retry { error, .. } | Outcome::Denied { error } => {
                    queue.failed(payload.id);
                    if !books.failing {
                        tracing::warn!(output, endpoint, error, "cannot deliver; retrying");
                    }
                    books.counts[OutputCounter::AttemptsFailed] += 1;
                    books.counts[OutputCounter::Retries] += 1;
                    books.gave_up = last_chance;
                    books.turn(true, now);
                    (error, false)
                }
            };
            books.is_refusal = is_refusal;
            books.last_error = Some(LastError {
                at: now,
                message: error,
            });
        };
        self.shared.with_queue(self.index, enter).await;
        self.shared.progress.notify_waiters();
    }
}
