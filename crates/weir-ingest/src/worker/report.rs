//! What a worker tells the control plane.

use std::sync::Arc;

use weir_aggregate::{AggregateCounts, Batch};
use weir_context::{LimitReason, RuleCounts, RuleSet, TrialReport, UsageSummary};
use weir_listener::{ListenerCounters, LoopCounters};

use super::Worker;
use crate::admission::RefusedSender;
use crate::counts::IngestCounts;
use crate::ingest::BadInput;
use crate::origin::OriginStats;
use crate::origin_rates::LimitedOrigin;

/// What a worker tells the control plane.
#[derive(Debug)]
pub enum Report {
    Batch(Box<Batch>),
    /// All counts at one moment between two packets.
    Snapshot(Box<WorkerSnapshot>),
    BadInput(BadInput),
    /// Who used how much until the last flush, and between it and the one before.
    Usage(u16, Box<UsageSummary>),
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
    pub aggregate: AggregateCounts,
    pub contexts: usize,
    /// Contexts that have expired since the start.
    pub contexts_expired: u64,
    pub overflow_names: usize,
    /// Messages that the raw-alias cache knows, and those it was asked for and did not.
    pub aliases: usize,
    pub alias_misses: u64,
    /// Samples whose context was not made, by [`LimitReason`].
    pub limited_samples: [u64; LimitReason::COUNT],
    pub strings: usize,
    pub tag_lists: usize,
    pub context_bytes: usize,
    pub state_bytes: usize,
    pub partial_bytes: usize,
    /// Set aside for encrypted connections.
    pub tls_bytes: usize,
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

impl Worker {
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

    fn listener_snapshots(&self) -> Vec<ListenerSnapshot> {
        let listeners = self.event_loop.listeners();
        listeners
            .map(|(id, _)| ListenerSnapshot {
                listener: id.0,
                socket: *self.event_loop.counters(id),
                ingest: self.ingest.counts()[usize::from(id.0)],
                packets_waiting: self.ingest.packets_waiting(usize::from(id.0)),
            })
            .collect()
    }

    pub(super) fn snapshot(&self) -> WorkerSnapshot {
        let contexts = self.ingest.contexts();
        let (strings, tag_lists) = contexts.table_sizes();
        WorkerSnapshot {
            worker: self.outbox.worker(),
            at: self.clock.seconds(),
            listeners: self.listener_snapshots(),
            event_loop: *self.event_loop.loop_counters(),
            aggregate: self.ingest.aggregator().counts(),
            contexts: contexts.len(),
            contexts_expired: self.ingest.contexts_expired(),
            overflow_names: contexts.overflow_names(),
            aliases: contexts.aliases(),
            alias_misses: contexts.alias_counts().misses,
            limited_samples: contexts.limited_samples(),
            strings,
            tag_lists,
            context_bytes: contexts.heap_bytes(),
            state_bytes: self.ingest.aggregator().heap_bytes(),
            partial_bytes: self.event_loop.partial_bytes_held(),
            tls_bytes: self.event_loop.tls_bytes_held(),
            hand_over_waits: self.outbox.waits(),
            drop_disagreements: self.drops.disagreements(),
            clock_set_back: self.clock.times_set_back(),
            clock_ahead_ms: self.clock.ahead_ms(),
            longest_gap_ns: self.gaps.longest_ns(),
            origin: self.ingest.origin_stats(),
            limited_origins: self.ingest.limited_origins(),
            refused_senders: self.ingest.refused_senders(),
            rules: self.rule_snapshot(),
        }
    }
}
