//! The memory ledger as the status shows it: what each share has, what is used of it, and what its limit has led to.

use std::collections::BTreeMap;

use weir_ingest::{SampleDrop, WorkerSnapshot};

use super::pipeline::State;
use crate::admin::status::{MemoryShare, OutputStatus, Status};
use crate::budget::{Budget, Share};

/// Adds the shares to a status that is otherwise complete.
pub fn fill(status: &mut Status, budget: &Budget, state: &State) {
    let workers: Vec<&WorkerSnapshot> = state.workers.iter().flatten().collect();
    status.memory.budget = budget.bytes();
    status.memory.shares = budget
        .lines()
        .map(|line| MemoryShare {
            name: line.name.into(),
            bytes: line.bytes,
            used: line
                .parts
                .iter()
                .filter_map(|part| status.memory.parts.get(*part))
                .sum(),
            when_full: line.when_full.into(),
            events: events(line.share, status, &workers),
        })
        .collect();
}

/// How often the limit of a share was met, by what was done about it.
fn events(share: Share, status: &Status, workers: &[&WorkerSnapshot]) -> BTreeMap<String, u64> {
    let sum = |count: fn(&WorkerSnapshot) -> u64| workers.iter().map(|worker| count(worker)).sum::<u64>();
    let counted: Vec<(&str, u64)> = match share {
        Share::Contexts => vec![
            (
                "histograms_folded",
                sum(|worker| worker.aggregate.histograms_folded),
            ),
            ("sets_estimated", sum(|worker| worker.aggregate.sets_estimated)),
            ("bodies_squeezed", sum(|worker| worker.aggregate.bodies_squeezed)),
            ("aliases_evicted", sum(|worker| worker.aliases_short)),
            ("samples_overflowed", status.total.samples.overflowed),
            (
                "samples_dropped",
                of_reason(&status.total.samples.dropped, SampleDrop::NoMemory.as_str()),
            ),
        ],
        Share::Batches => vec![
            ("waits", sum(|worker| worker.hand_over_waits)),
            ("inbox_full", dropped(&status.outputs, "inbox_full")),
        ],
        Share::Frames => vec![("connections_closed", sum(closed_for_frames))],
        Share::TlsSessions => vec![
            (
                "connections_refused",
                of_tcp(status, |of| of.connections_refused_limit),
            ),
            (
                "connections_closed",
                of_tcp(status, |of| of.connections_closed_crowded),
            ),
        ],
        Share::Senders => vec![
            ("origins_refused", sum(|worker| worker.origin.origins.refused)),
            ("no_room_to_wait", sum(|worker| worker.origin.parking.no_room)),
        ],
        Share::Queues => vec![("queue_full", dropped(&status.outputs, "queue_full"))],
        Share::Cumulative => vec![("points_refused", dropped(&status.outputs, "memory"))],
    };
    counted
        .into_iter()
        .map(|(event, number)| (event.to_owned(), number))
        .collect()
}

fn closed_for_frames(worker: &WorkerSnapshot) -> u64 {
    let listeners = worker.listeners.iter();
    listeners
        .map(|listener| listener.socket.connections_closed_budget)
        .sum()
}

fn of_tcp(status: &Status, count: fn(&crate::admin::status::ListenerStatus) -> u64) -> u64 {
    let listeners = status.listeners.iter();
    listeners
        .filter(|of| of.address.starts_with("tcp://"))
        .map(count)
        .sum()
}

fn of_reason(dropped: &BTreeMap<String, u64>, reason: &str) -> u64 {
    dropped.get(reason).copied().unwrap_or(0)
}

/// Of all that outputs deliver.
fn dropped(outputs: &[OutputStatus], reason: &str) -> u64 {
    let books = outputs
        .iter()
        .flat_map(|of| [&of.points, &of.events, &of.checks, &of.messages]);
    books.map(|books| of_reason(&books.dropped, reason)).sum()
}
