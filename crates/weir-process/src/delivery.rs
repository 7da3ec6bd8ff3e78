//! Outputs with delivery, for the pipeline and the status.

use std::collections::BTreeMap;
use weir_output::delivery::{Delivery, EndpointStatus, Items, Pending};

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
    let disk_queue = delivery.disk_queue();
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
        if let Some((path, bytes_max)) = disk_queue {
            notes.push(disk_note(path, bytes_max, &endpoint.pending));
        }
        if let Some(error) = &endpoint.disk_error {
            let what = if endpoint.pending.unsaved.is_zero() {
                "the disk queue fails"
            } else {
                "payloads wait in memory only"
            };
            notes.push(format!(
                "{what}: {error}; weir tries again with the next payload and at each flush"
            ));
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
            disk_bytes: disk_queue.map(|_| endpoint.pending.disk_bytes),
            numbers,
            notes,
        }
    };
    status.endpoints.iter().map(entry).collect()
}

/// The size of the disk queue, and whether a restart keeps what waits. A payload on disk may be in memory too.
fn disk_note(path: &str, bytes_max: u64, pending: &Pending) -> String {
    let percent = (pending.disk_bytes as f64 / bytes_max.max(1) as f64 * 100.0).ceil();
    let (used, of) = (
        weir_units::grouped(pending.disk_bytes),
        weir_units::counted(bytes_max, "bytes"),
    );
    let waits = pending.memory + pending.in_flight + pending.disk;
    let kept = match (waits.is_zero(), pending.unsaved.is_zero()) {
        (true, _) => "nothing waits",
        (_, true) => "all that waits is in it and survives a restart",
        (_, false) => "a part of what waits is in memory alone",
    };
    format!("disk queue {path}: {used} of {of}, {percent} %; {kept}")
}

/// An error with the place that gave it. `several`: the output has several places, and the name says which this is. Errors of files name them.
pub(super) fn error_at(place: &str, error: &str, several: bool) -> String {
    if several || error.starts_with(place) {
        error.to_owned()
    } else {
        format!("{place}: {error}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_disk_queue_says_its_size_and_what_a_restart_keeps() {
        let points = |points| Items {
            points,
            ..Items::default()
        };
        let note = |pending: Pending| disk_note("/queue", 1 << 20, &pending);
        assert_eq!(
            note(Pending::default()),
            "disk queue /queue: 0 of 1,048,576 bytes, 0 %; nothing waits"
        );
        let waits = Pending {
            memory: points(3),
            disk: points(2),
            disk_bytes: 20_000,
            ..Pending::default()
        };
        assert_eq!(
            note(waits),
            "disk queue /queue: 20,000 of 1,048,576 bytes, 2 %; all that waits is in it and survives a restart"
        );
        let unsaved = Pending {
            unsaved: points(1),
            ..waits
        };
        assert!(note(unsaved).ends_with("; a part of what waits is in memory alone"));
    }
}
