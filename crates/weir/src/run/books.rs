//! The books: from what workers and pipeline have counted to the status that everybody is shown.

use std::collections::BTreeMap;
use std::sync::Arc;

use weir_context::{LimitReason, RuleCounts};
use weir_ingest::{ListenerSnapshot, Refusal, SampleDrop, WorkerSnapshot};
use weir_protocol::{ErrorClass, Kind};

use super::pipeline::State;
use crate::admin::status::{
    Books, ContextStatus, ListenerStatus, OriginReport, Reasons, RowBooks, RuleStatus, RulesStatus, Status,
    TrialStatus,
};

/// A listener as it was bound.
#[derive(Clone, Debug)]
pub struct BoundListener {
    pub address: String,
    pub receive_buffer: u64,
    pub receive_buffer_wanted: u64,
}

/// Fills in everything that workers and pipeline know.
pub fn fill(status: &mut Status, listeners: &[BoundListener], state: &State) {
    let workers: Vec<&WorkerSnapshot> = state.workers.iter().flatten().collect();
    status.listeners = listeners
        .iter()
        .map(|listener| ListenerStatus {
            address: listener.address.clone(),
            receive_buffer: listener.receive_buffer,
            receive_buffer_wanted: listener.receive_buffer_wanted,
            ..Default::default()
        })
        .collect();
    status.contexts = ContextStatus::default();
    status.rows = RowBooks {
        received: state.rows_received,
        lost: state.rows_lost,
        waiting: state.rows_pending,
        merged: state.rows_merged,
        samples: Reasons::new(),
    };
    for worker in &workers {
        status.as_of = status.as_of.max(worker.at.max(0) as u64);
        for listener in &worker.listeners {
            let entry = &mut status.listeners[usize::from(listener.listener)];
            entry.connections += listener.socket.connections_open;
            entry.connections_refused += listener.socket.connections_refused_source;
            entry.connections_failed_tls += listener.socket.connections_failed_tls;
            entry.connections_refused_limit +=
                listener.socket.connections_refused_limit + listener.socket.connections_refused_descriptors;
            entry.connections_closed_crowded += listener.socket.connections_closed_crowded;
            entry.connections_closed_idle += listener.socket.connections_closed_idle;
            entry.connections_cut += listener.socket.connections_cut_draining;
            add(&mut entry.books, listener);
            add(&mut status.total, listener);
        }
        status.drop_disagreements += worker.drop_disagreements;
        let ahead = worker.clock_ahead_ms as f64 / 1e3;
        status.clock.ahead_seconds = status.clock.ahead_seconds.max(ahead);
        status.clock.set_back = status.clock.set_back.max(worker.clock_set_back);
        status.contexts.live += worker.contexts as u64;
        status.contexts.created += worker.contexts as u64 + worker.contexts_expired;
        status.contexts.expired += worker.contexts_expired;
        for reason in LimitReason::ALL {
            let samples = worker.limited_samples[reason as usize];
            count(&mut status.limits.samples, reason.as_str(), samples);
        }
        status.contexts.overflow_series += worker.overflow_names as u64;
        status.contexts.aliases += worker.aliases as u64;
        status.contexts.alias_misses += worker.alias_misses;
        for kind in Kind::ALL {
            *status.rows.samples.entry(kind.as_str().into()).or_default() +=
                worker.aggregate.samples[kind as usize];
        }
        for (part, bytes) in [
            ("contexts", worker.context_bytes),
            ("state", worker.state_bytes),
            ("partial_frames", worker.partial_bytes),
            ("tls_sessions", worker.tls_bytes),
            ("origins", worker.origin_bytes),
            ("batches", worker.batch_bytes),
            ("awaiting_origin", worker.origin.parked_bytes as usize),
            ("rate_limits", worker.origin.rate_bytes as usize),
        ] {
            *status.memory.parts.entry(part.into()).or_default() += bytes as u64;
        }
        let gap = worker.longest_gap_ns as f64 / 1e9;
        status.flush.longest_gap_seconds = status.flush.longest_gap_seconds.max(gap);
        status.flush.count = status.flush.count.max(worker.aggregate.buckets);
    }
    rules(&mut status.rules, &workers);
    status.flush.seconds = state.flush_seconds;
    status.flush.at = state.flushed_at;
    status.memory.used = status.memory.parts.values().sum();
}

/// What workers and the resolver know about senders.
pub fn origin(resolver: weir_origin::OriginStatus, state: &State) -> OriginReport {
    let mut report = OriginReport {
        resolver,
        ..OriginReport::default()
    };
    for worker in state.workers.iter().flatten() {
        let origin = &worker.origin;
        report.packets_untracked += origin.processes.packets_untracked;
        report.processes += origin.processes_live;
        report.waited += origin.parking.parked;
        report.waiting += origin.parked_now;
        report.waited_in_vain += origin.parking.gave_up;
        report.no_room_to_wait += origin.parking.no_room;
        report.origins_refused += origin.origins.refused;
        for listener in &worker.listeners {
            report.packets_without_process += listener.socket.origin_errors;
        }
    }
    report
}

/// Adds up what the workers' rules did. While a reload is on its way, workers that have other rules than the first are left
/// out: theirs have other numbers.
fn rules(status: &mut RulesStatus, workers: &[&WorkerSnapshot]) {
    let Some(first) = workers.first() else { return };
    let set = &first.rules.set;
    *status = RulesStatus {
        count: set.len() as u64,
        ..RulesStatus::default()
    };
    let same = workers
        .iter()
        .filter(|worker| Arc::ptr_eq(&worker.rules.set, set));
    let mut counts = vec![RuleCounts::default(); set.infos().len()];
    let mut trials: BTreeMap<usize, TrialStatus> = set
        .infos()
        .iter()
        .enumerate()
        .filter(|(_, info)| info.dry_run)
        .map(|(rule, _)| (rule, TrialStatus::default()))
        .collect();
    for worker in same {
        status.matching_seconds += worker.rules.matching_ns as f64 / 1e9;
        for (sum, count) in counts.iter_mut().zip(&worker.rules.counts) {
            sum.hits += count.hits;
            sum.nanoseconds += count.nanoseconds;
            sum.samples_dropped += count.samples_dropped;
        }
        for report in &worker.rules.trials {
            let trial = trials.entry(report.rule as usize).or_default();
            trial.contexts_now += report.contexts_now;
            trial.contexts_then += report.contexts_then;
            trial.samples_dropped += report.samples_dropped;
            trial.samples_changed += report.samples_changed;
            trial.incomplete |= report.incomplete;
            if trial.examples.is_empty() {
                trial.examples.clone_from(&report.examples);
            }
        }
    }
    for (rule, (info, counts)) in set.infos().iter().zip(counts).enumerate() {
        let trial = trials.remove(&rule);
        if counts.hits > 0 || trial.is_some() {
            status.active.push(RuleStatus {
                name: info.name.clone(),
                stage: info.stage.as_str().into(),
                hits: counts.hits,
                seconds: counts.nanoseconds as f64 / 1e9,
                samples_dropped: counts.samples_dropped,
                trial,
            });
        }
    }
}

/// What outputs held when the process ended, and could neither deliver nor keep, in words.
pub fn lost_at_the_end(status: &Status) -> Vec<String> {
    let mut lost = Vec::new();
    for output in &status.outputs {
        let kinds = [
            ("points", &output.points),
            ("events", &output.events),
            ("checks", &output.checks),
            ("messages", &output.messages),
        ];
        for (kind, books) in kinds {
            if let Some(number) = books.dropped.get("shutdown").filter(|number| **number > 0) {
                lost.push(format!("{number} {kind} of {}", output.name));
            }
        }
    }
    lost
}

fn count(reasons: &mut Reasons, reason: &str, number: u64) {
    if number > 0 {
        *reasons.entry(reason.into()).or_default() += number;
    }
}

fn add(books: &mut Books, listener: &ListenerSnapshot) {
    let ListenerSnapshot {
        socket,
        ingest,
        packets_waiting,
        ..
    } = listener;
    books.bytes += socket.bytes;
    let datagrams = &mut books.datagrams;
    let lost = [
        ("kernel", socket.kernel_dropped),
        ("source_not_allowed", socket.sources_refused),
        ("rate_limited", socket.rate_limited),
        ("refused_at_shutdown", socket.refused_draining),
        ("frame_too_long", socket.frames_too_long),
        ("frame_cut", socket.frames_cut),
    ];
    // What waits for its sender to be known is counted, received and otherwise, when it goes on.
    datagrams.received +=
        socket.packets - packets_waiting + lost.iter().map(|(_, number)| number).sum::<u64>();
    datagrams.parsed += ingest.packets;
    // Handed over by the listener, so received already.
    count(
        &mut datagrams.dropped,
        "origin_rate_limited",
        ingest.packets_rate_limited,
    );
    for why in Refusal::ALL {
        count(
            &mut datagrams.dropped,
            why.as_str(),
            ingest.packets_refused[why as usize],
        );
    }
    for (reason, number) in lost {
        count(&mut datagrams.dropped, reason, number);
    }
    let messages = &mut books.messages;
    messages.received += ingest.messages + socket.truncated_lines_max;
    messages.accepted += ingest.accepted();
    for class in ErrorClass::ALL {
        count(
            &mut messages.rejected,
            class.as_str(),
            ingest.rejected[class as usize],
        );
    }
    count(
        &mut messages.rejected,
        "truncated",
        ingest.rejected_truncated + socket.truncated_lines_max,
    );
    let samples = &mut books.samples;
    samples.received += ingest.samples;
    samples.aggregated += ingest.samples_aggregated;
    samples.overflowed += ingest.samples_overflowed;
    samples.timestamped += ingest.samples_timestamped;
    for reason in SampleDrop::ALL {
        count(
            &mut samples.dropped,
            reason.as_str(),
            ingest.samples_dropped[reason as usize],
        );
    }
}
