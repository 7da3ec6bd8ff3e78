//! Books and health of an output, for display.

use std::collections::BTreeMap;

use serde::Serialize;
use weir_counters::Counts;

use crate::counters::OutputCounter;

use super::books::{self, Dropped, Items};
use super::endpoint::Release;
use super::{Delivery, EndpointBooks, lock};

/// The newest failure of an endpoint.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LastError {
    /// Unix seconds.
    pub at: i64,
    pub message: String,
}

/// Books and health of an output. Per endpoint `received + earlier + restored = delivered + pending + dropped`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OutputStatus {
    pub name: String,
    /// Every endpoint is, and the encoder works.
    pub healthy: bool,
    /// Given to the output by flushes.
    pub received: Items,
    pub endpoints: Vec<EndpointStatus>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EndpointStatus {
    pub endpoint: String,
    /// The newest attempt did not fail.
    pub healthy: bool,
    /// Unix seconds of the last change of `healthy`, or of the start.
    pub since: i64,
    /// A failure until something is delivered in full again, a refusal for a minute at least.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_error: Option<LastError>,
    /// Age of the oldest payload that waits.
    pub lag_seconds: i64,
    /// Until the next attempt, while failing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_in_seconds: Option<u64>,
    pub delivered: Items,
    #[serde(skip)]
    pub counts: Counts<OutputCounter>,
    /// Found undelivered on disk at the start.
    pub restored: Items,
    /// Given to outputs that this one has replaced.
    pub earlier: Items,
    pub pending: Pending,
    pub dropped: Dropped,
    /// The current error of the disk queue; payloads that it refuses wait in memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk_error: Option<String>,
    #[serde(flatten)]
    pub details: BTreeMap<&'static str, String>,
}

/// Pending items, counted in their queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Pending {
    pub inbox: Items,
    pub open_payloads: Items,
    pub memory: Items,
    pub in_flight: Items,
    pub disk: Items,
    /// Items in memory or in flight that are not on disk.
    pub unsaved: Items,
    pub memory_bytes: u64,
    pub disk_bytes: u64,
}

impl Pending {
    /// Items that the end of the process would lose now.
    pub fn at_risk(&self) -> Items {
        self.inbox + self.open_payloads + self.unsaved
    }

    pub fn total(&self) -> Items {
        self.inbox + self.open_payloads + self.memory + self.in_flight + self.disk
    }
}

impl EndpointStatus {
    /// Everything this endpoint was given, `received` being what flushes gave to its output.
    pub fn produced(&self, received: Items) -> Items {
        received + self.earlier + self.restored
    }

    /// Whether everything this endpoint was given is delivered, pending or dropped for a reason.
    pub fn balances(&self, received: Items) -> bool {
        let dropped: Items = self.dropped.values().copied().sum();
        self.produced(received) == self.delivered + self.pending.total() + dropped
    }
}

impl OutputStatus {
    /// All received items are delivered, dropped for a reason, or on disk.
    pub fn is_safe(&self) -> bool {
        self.endpoints
            .iter()
            .all(|endpoint| endpoint.pending.at_risk().is_zero())
    }

    pub fn balances(&self) -> bool {
        self.endpoints
            .iter()
            .all(|endpoint| endpoint.balances(self.received))
    }
}

impl Delivery {
    /// A consistent snapshot.
    pub fn status(&self) -> OutputStatus {
        let shared = &self.shared;
        let (now, unix) = (shared.clock.now(), shared.clock.unix());
        let books = lock(&shared.books);
        let is_here = |(index, _): &(usize, _)| *shared.endpoints[*index].released.borrow() != Release::Done;
        let endpoint = |(index, of): (usize, &EndpointBooks)| {
            let mut dropped = books.dropped.clone();
            of.dropped
                .iter()
                .for_each(|(reason, items)| books::add_dropped(&mut dropped, *reason, *items));
            EndpointStatus {
                endpoint: shared.endpoints[index].label.clone(),
                healthy: !of.failing,
                since: of.since,
                last_error: of.last_error.clone(),
                lag_seconds: of.sizes.oldest.map_or(0, |oldest| (unix - oldest).max(0)),
                retry_in_seconds: of
                    .retry_at
                    .map(|at| at.saturating_sub(now).as_secs_f64().ceil() as u64),
                delivered: of.delivered,
                counts: of.counts,
                restored: of.restored,
                earlier: of.earlier,
                pending: Pending {
                    inbox: books.inbox,
                    open_payloads: books.open,
                    memory: of.sizes.memory,
                    in_flight: of.sizes.in_flight,
                    disk: of.sizes.disk,
                    unsaved: of.sizes.unsaved,
                    memory_bytes: of.sizes.memory_bytes,
                    disk_bytes: of.sizes.disk_bytes,
                },
                dropped,
                disk_error: of.disk_error.clone(),
                details: self.transports[index].details(),
            }
        };
        let of_endpoints = books.endpoints.iter().enumerate().filter(is_here);
        let endpoints: Vec<EndpointStatus> = of_endpoints.map(endpoint).collect();
        OutputStatus {
            name: self.name.clone(),
            healthy: !books.encoder_failed && endpoints.iter().all(|e| e.healthy),
            received: books.received,
            endpoints,
        }
    }

    /// The directory of the disk queue, and the bytes that each endpoint may use in it.
    pub fn disk_queue(&self) -> Option<(&str, u64)> {
        let (settings, sides) = (&self.shared.settings, &self.shared.endpoints);
        let is_used = sides.iter().any(|side| side.identity.disk.is_some());
        is_used.then_some((&settings.disk_path, settings.disk_bytes_max / sides.len() as u64))
    }
}
