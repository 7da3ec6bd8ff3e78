//! The books: from what workers and pipeline have counted to the status that everybody is shown.

use weir_ingest::{IngestCounts, SampleDrop, WorkerSnapshot};
use weir_listener::ListenerCounters;
use weir_protocol::{ErrorClass, Kind};

use super::pipeline::State;
use crate::admin::status::{Books, ContextStatus, ListenerStatus, OriginReport, Reasons, RowBooks, Status};

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
            add(&mut entry.books, &listener.socket, &listener.ingest);
            add(&mut status.total, &listener.socket, &listener.ingest);
        }
        status.drop_disagreements += worker.drop_disagreements;
        status.contexts.live += worker.contexts as u64;
        status.contexts.created += worker.contexts as u64 + worker.aggregate.contexts_expired;
        status.contexts.expired += worker.aggregate.contexts_expired;
        status.contexts.overflow_series += worker.overflow_names as u64;
        for kind in Kind::ALL {
            *status.rows.samples.entry(kind.as_str().into()).or_default() +=
                worker.aggregate.samples[kind as usize];
        }
        for (part, bytes) in [
            ("contexts", worker.context_bytes),
            ("state", worker.state_bytes),
            ("partial_frames", worker.partial_bytes),
        ] {
            *status.memory.parts.entry(part.into()).or_default() += bytes as u64;
        }
        let gap = worker.longest_gap_ns as f64 / 1e9;
        status.flush.longest_gap_seconds = status.flush.longest_gap_seconds.max(gap);
        status.flush.count = status.flush.count.max(worker.aggregate.buckets);
    }
    status.flush.seconds = state.flush_seconds;
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

fn add(books: &mut Books, socket: &ListenerCounters, ingest: &IngestCounts) {
    fn count(reasons: &mut Reasons, reason: &str, number: u64) {
        if number > 0 {
            *reasons.entry(reason.into()).or_default() += number;
        }
    }
    books.bytes += socket.bytes;
    let datagrams = &mut books.datagrams;
    let lost = [
        ("kernel", socket.kernel_dropped),
        ("refused_at_shutdown", socket.refused_draining),
        ("frame_too_long", socket.frames_too_long),
        ("frame_cut", socket.frames_cut),
    ];
    datagrams.received += socket.packets + lost.iter().map(|(_, number)| number).sum::<u64>();
    datagrams.parsed += ingest.packets;
    for (reason, number) in lost {
        count(&mut datagrams.dropped, reason, number);
    }
    let messages = &mut books.messages;
    messages.received += ingest.messages;
    messages.accepted += ingest.accepted();
    for class in ErrorClass::ALL {
        count(
            &mut messages.rejected,
            class.as_str(),
            ingest.rejected[class as usize],
        );
    }
    count(&mut messages.rejected, "truncated", ingest.rejected_truncated);
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
