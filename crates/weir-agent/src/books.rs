//! The books: turns the counts of workers and pipeline into the status.

use std::collections::BTreeMap;
use std::sync::Arc;

use weir_context::RuleCounts;
use weir_counters::Counts;
use weir_ingest::{
    CLIENT_BYTES, ContextSnapshot, IngestCounts, ListenerSnapshot, NumberCounter, SenderSnapshot,
    WorkerBytes, WorkerSnapshot,
};

use crate::pipeline::PipelineState;
use weir_status::counters::SocketCounter;
use weir_status::status::{ListenerStatus, RuleStatus, RulesStatus, Status, TrialStatus};

/// A bound listener.
#[derive(Clone, Debug)]
pub struct BoundListener {
    pub address: String,
    pub receive_buffer: u64,
    pub receive_buffer_wanted: u64,
    /// Sockets opened by another process.
    pub kept: u64,
}

/// Adds all numbers of workers and pipeline.
pub fn fill(status: &mut Status, listeners: &[BoundListener], state: &PipelineState) {
    for (number, listener) in listeners.iter().enumerate() {
        status.listeners.push(ListenerStatus {
            address: listener.address.clone(),
            ..Default::default()
        });
        let mut socket = Counts::default();
        socket[SocketCounter::ReceiveBuffer] = listener.receive_buffer;
        socket[SocketCounter::ReceiveBufferWanted] = listener.receive_buffer_wanted;
        socket[SocketCounter::Passed] = listener.kept;
        status.add(Some(number), &socket);
        // Zeros, so that every field exists before the first worker has reported.
        let nothing = ListenerSnapshot {
            listener: number as u16,
            socket: Counts::default(),
            ingest: IngestCounts::default(),
        };
        of_listener(status, &nothing);
    }
    status.add(None, &state.counts);
    let workers: Vec<&WorkerSnapshot> = state.workers.iter().flatten().collect();
    for worker in &workers {
        of_worker(status, worker);
    }
    status.add_up();
    rules(&mut status.rules, &workers);
    status.memory.used = status.memory.parts.values().sum();
}

/// Adds all counts of one worker: a new part of the snapshot must be added here.
fn of_worker(status: &mut Status, worker: &WorkerSnapshot) {
    let WorkerSnapshot {
        worker: _,
        at,
        at_ns: _,
        listeners,
        event_loop,
        counts,
        numbers,
        aggregate,
        contexts,
        bytes,
        senders,
        rules: _,
        restored,
        open_samples,
    } = worker;
    status.process.as_of = status.process.as_of.max((*at).max(0) as u64);
    status.state.contexts_restored += restored.contexts;
    status.state.contexts_refused += restored.refused;
    status.state.samples_open += open_samples;
    status.add(None, event_loop);
    status.add(None, counts);
    status.add(None, numbers);
    status.add(None, aggregate);
    let ContextSnapshot {
        counts,
        aliases,
        limited_samples,
    } = contexts;
    status.add(None, counts);
    status.add(None, aliases);
    status.add(None, limited_samples);
    let SenderSnapshot {
        origin,
        limited: _,
        refused: _,
    } = senders;
    status.add(None, &origin.origins);
    status.add(None, &origin.processes);
    status.add(None, &origin.parking);
    for listener in listeners {
        of_listener(status, listener);
    }
    let WorkerBytes {
        contexts,
        state,
        partial_frames,
        tls,
        origins,
        batches,
        checkpoint,
    } = *bytes;
    for (part, bytes) in [
        ("contexts", contexts),
        ("state", state),
        ("partial_frames", partial_frames),
        ("tls_sessions", tls),
        ("origins", origins),
        ("batches", batches),
        ("open_bucket", checkpoint),
        (
            "columns_clients",
            numbers[NumberCounter::Clients] as usize * CLIENT_BYTES,
        ),
        ("awaiting_origin", origin.parked_bytes as usize),
        ("rate_limits", origin.rate_bytes as usize),
    ] {
        *status.memory.parts.entry(part.into()).or_default() += bytes as u64;
    }
}

fn of_listener(status: &mut Status, snapshot: &ListenerSnapshot) {
    let ListenerSnapshot {
        listener,
        socket,
        ingest,
    } = snapshot;
    let listener = Some(usize::from(*listener));
    status.add(listener, socket);
    status.add(listener, &ingest.counts);
    status.add(listener, &ingest.packets_refused);
    status.add(listener, &ingest.rejected);
    status.add(listener, &ingest.samples_dropped);
    status.add(listener, &ingest.lines_slow);
    status.add(listener, &ingest.series_rejected);
    status.add(listener, &ingest.columns);
}

/// Sums the workers' rule counts. During a reload it skips workers whose rules differ from the first one's, because their rule numbers
/// differ.
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

/// Data that outputs could neither deliver nor keep at the end of the process, in words.
pub fn lost_at_the_end(status: &Status) -> Vec<String> {
    let mut lost = Vec::new();
    for output in &status.outputs {
        for (kind, books) in output.books() {
            if let Some(number) = books.dropped.get("shutdown").filter(|number| **number > 0) {
                lost.push(format!("{number} {kind} of {}", output.name));
            }
        }
    }
    lost
}
