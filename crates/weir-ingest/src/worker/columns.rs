//! Payloads of columns, which the control plane has decoded: in sequence, in slices between receive turns.
//!
//! A payload is added as a whole to one bucket, and no checkpoint sees a part of it.

use std::collections::VecDeque;

use weir_listener::Monotonic;

use super::Worker;
use crate::columns::{ColumnFate, ColumnPayload};
use crate::counts::ColumnCounter;
use crate::ingest::{ColumnRun, ColumnStart};

/// Time for a slice: well below what a full queue of datagrams takes to fill.
const SLICE_NS: u64 = 1_000_000;

/// Longest wait of a payload for the look-up of its sender.
const WAIT_NS: u64 = 1_000_000_000;

#[derive(Default)]
pub(super) struct ColumnQueue {
    waiting: VecDeque<WaitingPayload>,
    running: Option<Box<ColumnRun>>,
    /// Every payload that waits does so for a look-up, as of the last time.
    is_stuck: bool,
}

struct WaitingPayload {
    payload: Box<ColumnPayload>,
    /// It was its turn before, and its sender was not known.
    has_waited: bool,
}

impl ColumnQueue {
    pub fn push(&mut self, payload: Box<ColumnPayload>) {
        self.waiting.push_back(WaitingPayload {
            payload,
            has_waited: false,
        });
        self.is_stuck = false;
    }

    /// An answer about a sender has arrived, or time has passed.
    pub fn look_again(&mut self) {
        self.is_stuck = false;
    }

    /// A part of a payload is in the open bucket, and the rest is to be too.
    pub fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// Whether a payload may be able to begin.
    fn has_work(&self) -> bool {
        !(self.waiting.is_empty() || self.is_stuck)
    }
}

impl Worker {
    /// The next slice.
    pub(super) fn columns(&mut self) {
        let until = Monotonic::now().0 + SLICE_NS;
        while !self.core.ingest.has_full_outbox() {
            let Some(mut run) = self.inbox.columns.running.take().or_else(|| self.next_payload()) else {
                return;
            };
            let mut is_whole = false;
            while !is_whole && Monotonic::now().0 < until && !self.core.ingest.has_full_outbox() {
                is_whole = !self.core.ingest.proceed_columns(&mut run);
            }
            if !is_whole {
                self.inbox.columns.running = Some(run);
                return;
            }
            self.core.ingest.end_columns(*run);
        }
    }

    /// The first payload whose sender is known.
    fn next_payload(&mut self) -> Option<Box<ColumnRun>> {
        if self.holds_payloads() {
            return None;
        }
        let now = Monotonic::now().0;
        for _ in 0..self.inbox.columns.waiting.len() {
            let WaitingPayload { payload, has_waited } = self.inbox.columns.waiting.pop_front()?;
            let is_late = now >= payload.received.saturating_add(WAIT_NS);
            let listener = payload.listener;
            match self.core.ingest.begin_columns(payload, is_late) {
                ColumnStart::Runs(run) => return Some(run),
                ColumnStart::Refused => {}
                ColumnStart::Waits(payload) => {
                    if !has_waited {
                        self.core
                            .ingest
                            .count_columns(listener, ColumnCounter::PayloadsWaited);
                    }
                    self.inbox.columns.waiting.push_back(WaitingPayload {
                        payload,
                        has_waited: true,
                    });
                }
            }
        }
        self.inbox.columns.is_stuck = true;
        None
    }

    /// Whether no payload may begin now: a checkpoint or another process would have a part of it.
    fn holds_payloads(&self) -> bool {
        self.freeze.is_some() || self.core.holds_payloads()
    }

    /// Whether a slice of a payload can be added now.
    pub(super) fn can_add_columns(&self) -> bool {
        let columns = &self.inbox.columns;
        columns.is_running() || (columns.has_work() && !self.holds_payloads())
    }

    /// Adds the rest of the payload that has begun, whatever that takes.
    pub(super) fn finish_payload(&mut self) {
        let Some(mut run) = self.inbox.columns.running.take() else {
            return;
        };
        while self.core.ingest.proceed_columns(&mut run) {
            if self.core.ingest.has_full_outbox() {
                self.core.outbox.wait_for_batch();
                self.core.pass_on();
            }
        }
        self.core.ingest.end_columns(*run);
    }

    /// Nothing more is added: clients send again what waits.
    pub(super) fn refuse_payloads(&mut self) {
        for waiting in self.inbox.columns.waiting.drain(..) {
            (waiting.payload.done)(ColumnFate::Ended);
        }
    }
}
