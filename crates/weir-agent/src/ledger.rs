//! The memory budget in the status: size and use of each share, and the events of its limit.

use std::collections::BTreeMap;

use weir_aggregate::AggregateCounter;
use weir_context::{AliasCounter, OriginCounter};
use weir_ingest::{
    IngestCounter, ListenerSnapshot, ParkingCounter, SampleDrop, WorkerCounter, WorkerSnapshot,
};
use weir_listener::ListenerCounter;

use crate::budget::{Budget, Share};
use crate::pipeline::PipelineState;
use weir_status::counters::{HistoryCounter, TapCounter};
use weir_status::status::{MemoryShare, OutputStatus, Status};

/// Adds the shares to an otherwise complete status. `fullest`: how full the fullest part of a divided share is.
pub fn fill(status: &mut Status, budget: &Budget, state: &PipelineState, fullest: &[(Share, f64)]) {
    let workers: Vec<&WorkerSnapshot> = state.workers.iter().flatten().collect();
    status.memory.budget = budget.bytes();
    status.memory.shares = budget
        .lines()
        .map(|line| {
            let parts = line.parts.iter();
            let used: u64 = parts.filter_map(|part| status.memory.parts.get(*part)).sum();
            let of_all = if line.bytes == 0 {
                0.0
            } else {
                used as f64 / line.bytes as f64
            };
            let of_parts = fullest.iter().filter(|(share, _)| *share == line.share);
            MemoryShare {
                name: line.name.into(),
                bytes: line.bytes,
                used,
                fullest: of_parts.map(|(_, fullest)| *fullest).fold(of_all, f64::max),
                when_full: line.when_full.into(),
                events: events(line.share, line.bytes, status, &workers),
            }
        })
        .collect();
}

/// Number of times the limit of a share was reached, by action.
fn events(share: Share, bytes: u64, status: &Status, workers: &[&WorkerSnapshot]) -> BTreeMap<String, u64> {
    let counted: Vec<(&str, u64)> = match share {
        Share::Contexts => contexts(status, workers),
        Share::Batches => vec![
            ("waits", status.of(WorkerCounter::HandOverWaits)),
            ("inbox_full", dropped(&status.outputs, "inbox_full")),
        ],
        Share::Frames => vec![(
            "connections_closed",
            of_listeners(workers, |listener| {
                listener.socket[ListenerCounter::ConnectionsClosedBudget]
            }),
        )],
        // Without encryption another limit refuses connections.
        Share::TlsSessions if bytes == 0 => Vec::new(),
        Share::TlsSessions => tls_sessions(status, workers),
        Share::Senders => senders(workers),
        Share::Queues => vec![("queue_full", dropped(&status.outputs, "queue_full"))],
        Share::Cumulative => vec![("points_refused", dropped(&status.outputs, "memory"))],
        Share::History => vec![("points_refused", status.of(HistoryCounter::Refused))],
        Share::Taps => vec![("packets_lost", status.of(TapCounter::PacketsLost))],
        Share::OpenBucket => vec![("waits", status.of(WorkerCounter::CheckpointWaits))],
    };
    counted
        .into_iter()
        .map(|(event, number)| (event.to_owned(), number))
        .collect()
}

fn contexts(status: &Status, workers: &[&WorkerSnapshot]) -> Vec<(&'static str, u64)> {
    vec![
        ("histograms_folded", status.of(AggregateCounter::HistogramsFolded)),
        ("sets_estimated", status.of(AggregateCounter::SetsEstimated)),
        ("bodies_squeezed", status.of(AggregateCounter::BodiesSqueezed)),
        (
            "aliases_evicted",
            status.of(AliasCounter::Evicted) + status.of(AliasCounter::Refused),
        ),
        (
            "samples_overflowed",
            of_listeners(workers, |listener| {
                listener.ingest[IngestCounter::SamplesOverflowed]
            }),
        ),
        (
            "samples_dropped",
            of_listeners(workers, |listener| {
                listener.ingest.samples_dropped[SampleDrop::NoMemory]
            }),
        ),
    ]
}

fn tls_sessions(status: &Status, workers: &[&WorkerSnapshot]) -> Vec<(&'static str, u64)> {
    let of_tcp = |counter: ListenerCounter| {
        of_listeners(workers, |listener| {
            let of = status.listeners.get(usize::from(listener.listener));
            let is_tcp = of.is_some_and(|of| of.address.starts_with("tcp://"));
            if is_tcp { listener.socket[counter] } else { 0 }
        })
    };
    vec![
        (
            "connections_refused",
            of_tcp(ListenerCounter::ConnectionsRefusedLimit),
        ),
        (
            "connections_closed",
            of_tcp(ListenerCounter::ConnectionsClosedCrowded),
        ),
    ]
}

fn senders(workers: &[&WorkerSnapshot]) -> Vec<(&'static str, u64)> {
    let sum = |count: fn(&WorkerSnapshot) -> u64| workers.iter().map(|worker| count(worker)).sum();
    vec![
        (
            "origins_refused",
            sum(|worker| worker.senders.origin.origins[OriginCounter::Refused]),
        ),
        (
            "no_room_to_wait",
            sum(|worker| worker.senders.origin.parking[ParkingCounter::NoRoom]),
        ),
    ]
}

fn of_listeners(workers: &[&WorkerSnapshot], count: impl Fn(&ListenerSnapshot) -> u64) -> u64 {
    let listeners = workers.iter().flat_map(|worker| &worker.listeners);
    listeners.map(count).sum()
}

/// Drops with this reason, over all outputs.
fn dropped(outputs: &[OutputStatus], reason: &str) -> u64 {
    let books = outputs
        .iter()
        .flat_map(|of| [&of.points, &of.events, &of.checks, &of.messages]);
    books.filter_map(|books| books.dropped.get(reason)).sum()
}
