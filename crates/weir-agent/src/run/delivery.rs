//! Outputs with delivery, for the pipeline and the status.

use std::collections::BTreeMap;
use weir_output::delivery::{Delivery, EndpointStatus, Items};

use weir_status::status::{Numbers, OutputStatus, PointBooks};

/// Memory of the queued payloads. Endpoints share the bodies, so the fullest queue counts.
pub fn queued_bytes(delivery: &Delivery) -> u64 {
    let endpoints = delivery.status().endpoints;
    endpoints
        .iter()
        .map(|endpoint| endpoint.pending.memory_bytes)
        .max()
        .unwrap_or(0)
}

/// One entry per endpoint: each gets everything and fails independently.
pub fn status(output_type: &str, delivery: &Delivery) -> Vec<OutputStatus> {
    let status = delivery.status();
    let several = status.endpoints.len() > 1;
    let entry = |endpoint: &EndpointStatus| {
        let name = if several {
            format!("{} to {}", status.name, endpoint.endpoint)
        } else {
            status.name.clone()
        };
        let mut notes: Vec<String> = endpoint
            .details
            .iter()
            .filter(|(_, value)| value.as_str() != "0")
            .map(|(name, value)| format!("{name}: {value}"))
            .collect();
        if !several {
            notes.insert(0, endpoint.endpoint.clone());
        }
        if endpoint.pending.disk_bytes > 0 {
            notes.push(format!(
                "{} on disk",
                weir_units::counted(endpoint.pending.disk_bytes, "bytes")
            ));
        }
        if let Some(error) = &endpoint.disk_error {
            let what = if endpoint.pending.unsaved.is_zero() {
                "the disk queue fails"
            } else {
                "payloads wait in memory only"
            };
            notes.push(format!("{what}: {error}"));
        }
        if let Some(seconds) = endpoint.retry_in_seconds {
            notes.push(format!("next attempt in {seconds} s"));
        }
        let books = |class: fn(&Items) -> u64| {
            let mut dropped: BTreeMap<String, u64> = BTreeMap::new();
            for (reason, items) in &endpoint.dropped {
                *dropped.entry(reason.as_str().into()).or_default() += class(items);
            }
            let pending = &endpoint.pending;
            let places = [
                ("to_encode", class(&pending.inbox)),
                ("open_payloads", class(&pending.open_payloads)),
                ("memory", class(&pending.memory)),
                ("under_way", class(&pending.in_flight)),
                ("disk", class(&pending.disk)),
            ];
            PointBooks {
                produced: class(&endpoint.produced(status.received)),
                delivered: class(&endpoint.delivered),
                pending: class(&pending.total()),
                pending_where: places
                    .into_iter()
                    .filter(|(_, items)| *items > 0)
                    .map(|(place, items)| (place.to_owned(), items))
                    .collect(),
                dropped,
            }
        };
        let mut numbers = Numbers::default();
        numbers.add(&endpoint.counts);
        OutputStatus {
            name,
            output_type: output_type.into(),
            healthy: endpoint.healthy,
            since: endpoint.since.max(0) as u64,
            last_error: endpoint
                .last_error
                .as_ref()
                .map(|error| error_at(&endpoint.endpoint, &error.message, several)),
            lag_seconds: endpoint.lag_seconds as f64,
            points: books(|items| items.points),
            events: books(|items| items.events),
            checks: books(|items| items.checks),
            messages: PointBooks::default(),
            disk_bytes: delivery.has_disk_queue().then_some(endpoint.pending.disk_bytes),
            numbers,
            notes,
        }
    };
    status.endpoints.iter().map(entry).collect()
}

/// An error with the place that gave it. `several`: the output has several places, and the name says which this is.
pub(super) fn error_at(place: &str, error: &str, several: bool) -> String {
    if several {
        error.to_owned()
    } else {
        format!("{place}: {error}")
    }
}
