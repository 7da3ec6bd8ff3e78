//! Reports of a worker to the control plane.

use std::sync::Arc;

use weir_aggregate::{AggregateCounter, Batch};
use weir_context::{
    AliasCounter, ContextCounter, LimitReason, RuleCounts, RuleSet, TrialReport, UsageSummary,
};
use weir_counters::Counts;
use weir_listener::{ListenerCounter, ListenerCounters, ListenerId, LoopCounters, Monotonic};

use super::Worker;
use super::checkpoint::Checkpoints;
use crate::admission::RefusedSender;
use crate::counts::{IngestCounter, IngestCounts, NumberCounter, WorkerCounter};
use crate::ingest::BadInput;
use crate::origin::OriginStats;
use crate::origin_rates::LimitedOrigin;
use crate::saved::{Restored, SavedBucket};

/// A report of a worker to the control plane.
#[derive(Debug)]
pub enum Report {
    Batch(Box<Batch>),
    /// All counts at one moment between two packets.
    Snapshot(Box<WorkerSnapshot>),
    BadInput(BadInput),
    /// Usage until the last flush, and between it and the previous one.
    Usage(u16, Box<UsageSummary>),
    /// The content of the open bucket when the worker was stopped for another process, and the number of the stop:
    /// [`Freeze::number`](super::Freeze::number), or [`AT_THE_END`](super::AT_THE_END).
    Saved {
        worker: u16,
        number: u64,
        bucket: Box<SavedBucket>,
    },
    /// The worker begins with the bucket that starts at `open`, and has none before it.
    Begun {
        worker: u16,
        open: i64,
    },
    /// Nothing more will come from this worker, whether it was asked to end or has panicked.
    Done(u16),
}

/// The counts of a worker. Every received message is counted completely.
#[derive(Clone, Debug)]
pub struct WorkerSnapshot {
    pub worker: u16,
    /// Unix seconds.
    pub at: i64,
    /// On the monotonic clock.
    pub at_ns: u64,
    pub listeners: Vec<ListenerSnapshot>,
    pub event_loop: LoopCounters,
    pub counts: Counts<WorkerCounter>,
    pub numbers: Counts<NumberCounter>,
    pub aggregate: Counts<AggregateCounter>,
    pub contexts: ContextSnapshot,
    pub bytes: WorkerBytes,
    pub senders: SenderSnapshot,
    pub rules: RuleSnapshot,
    /// The state that it continued at its start.
    pub restored: Restored,
    /// Samples in the open bucket.
    pub open_samples: u64,
}

#[derive(Clone, Debug)]
pub struct ContextSnapshot {
    pub counts: Counts<ContextCounter>,
    pub aliases: Counts<AliasCounter>,
    /// Samples whose context was not made.
    pub limited_samples: Counts<LimitReason>,
}

/// The memory of a worker, by part.
#[derive(Clone, Copy, Debug)]
pub struct WorkerBytes {
    pub contexts: usize,
    pub state: usize,
    /// Beginnings of frames whose rest has not arrived.
    pub partial_frames: usize,
    /// Set aside for encrypted connections.
    pub tls: usize,
    /// The origin table.
    pub origins: usize,
    /// Batches that were handed over and not merged yet.
    pub batches: usize,
    /// The open bucket, on its way to the disk.
    pub checkpoint: usize,
}

#[derive(Clone, Debug)]
pub struct SenderSnapshot {
    pub origin: OriginStats,
    /// Origins that have sent more than they may.
    pub limited: Vec<LimitedOrigin>,
    /// Senders that may not send and lately tried.
    pub refused: Vec<RefusedSender>,
}

/// The effects of a worker's rules.
#[derive(Clone, Debug)]
pub struct RuleSnapshot {
    /// The set that the numbers below are about.
    pub set: Arc<RuleSet>,
    /// By rule number.
    pub counts: Vec<RuleCounts>,
    /// Nanoseconds spent on finding the rules that match.
    pub matching_ns: u64,
    /// Effects of rules in a dry run.
    pub trials: Vec<TrialReport>,
}

#[derive(Clone, Debug)]
pub struct ListenerSnapshot {
    pub listener: u16,
    pub socket: ListenerCounters,
    pub ingest: IngestCounts,
}

impl Worker {
    fn rule_snapshot(&self) -> RuleSnapshot {
        let contexts = self.core.ingest.contexts();
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
        let (mut socket, mut ingest) = (self.event_loop.counters(id), self.core.ingest.counts()[listener]);
        // Packets that wait for their sender are counted, as received and otherwise, when they proceed.
        let waiting = self.core.ingest.packets_waiting(listener);
        socket[ListenerCounter::Packets] -= waiting;
        ingest[IngestCounter::PacketsWaiting] = waiting;
        ListenerSnapshot {
            listener: id.0,
            socket,
            ingest,
        }
    }

    /// A listener of columns has no socket here: what was handed over is what was received.
    fn column_listener_snapshot(&self, listener: usize) -> ListenerSnapshot {
        let ingest = self.core.ingest.counts()[listener];
        let mut socket = ListenerCounters::default();
        socket[ListenerCounter::Packets] = ingest[IngestCounter::Packets]
            + ingest[IngestCounter::PacketsRateLimited]
            + ingest.packets_refused.sum();
        ListenerSnapshot {
            listener: listener as u16,
            socket,
            ingest,
        }
    }

    fn listener_snapshots(&self) -> Vec<ListenerSnapshot> {
        let sockets = self.event_loop.listeners();
        let mut all: Vec<_> = sockets.map(|(id, _)| self.listener_snapshot(id)).collect();
        let has_columns = |counts: &IngestCounts| {
            counts.columns.sum() + counts[IngestCounter::PacketsRateLimited] + counts.packets_refused.sum()
                > 0
        };
        for (listener, counts) in self.core.ingest.counts().iter().enumerate() {
            let is_socket = all.iter().any(|known| usize::from(known.listener) == listener);
            if !is_socket && has_columns(counts) {
                all.push(self.column_listener_snapshot(listener));
            }
        }
        all
    }

    /// The counts of all parts of the worker.
    fn counts(&self) -> Counts<WorkerCounter> {
        let mut counts = Counts::default();
        counts[WorkerCounter::HandOverWaits] = self.core.outbox.waits();
        counts[WorkerCounter::CheckpointWaits] = self.core.checkpoints.as_ref().map_or(0, Checkpoints::waits);
        counts[WorkerCounter::DropDisagreements] = self.drops.disagreements();
        counts[WorkerCounter::ClockSetBack] = self.core.clock.times_set_back();
        counts[WorkerCounter::ClockAheadMs] = self.core.clock.ahead_ms().max(0) as u64;
        counts[WorkerCounter::LongestGapNs] = self.gaps.longest_ns();
        counts
    }

    fn context_counts(&self) -> Counts<ContextCounter> {
        let mut counts = self.core.ingest.contexts().counts();
        counts[ContextCounter::Expired] = self.core.ingest.contexts_expired();
        counts[ContextCounter::Created] = counts[ContextCounter::Live] + counts[ContextCounter::Expired];
        counts
    }

    pub(super) fn snapshot(&self) -> WorkerSnapshot {
        let contexts = self.core.ingest.contexts();
        WorkerSnapshot {
            worker: self.core.outbox.worker(),
            at: self.core.clock.seconds(),
            at_ns: Monotonic::now().0,
            listeners: self.listener_snapshots(),
            event_loop: *self.event_loop.loop_counters(),
            counts: self.counts(),
            numbers: self.core.ingest.numbers().counts(),
            aggregate: self.core.ingest.aggregator().counts(),
            contexts: ContextSnapshot {
                counts: self.context_counts(),
                aliases: contexts.alias_counts(),
                limited_samples: contexts.limited_samples(),
            },
            bytes: WorkerBytes {
                contexts: contexts.heap_bytes(),
                state: self.core.ingest.aggregator().heap_bytes(),
                partial_frames: self.event_loop.partial_bytes_held(),
                tls: self.event_loop.tls_bytes_held(),
                origins: contexts.origin_bytes(),
                batches: self.core.outbox.bytes(),
                checkpoint: self.core.checkpoints.as_ref().map_or(0, Checkpoints::bytes),
            },
            senders: SenderSnapshot {
                origin: self.core.ingest.origin_stats(),
                limited: self.core.ingest.limited_origins(),
                refused: self.core.ingest.refused_senders(),
            },
            rules: self.rule_snapshot(),
            restored: self.core.restored,
            open_samples: self.core.ingest.aggregator().open_samples(),
        }
    }
}
