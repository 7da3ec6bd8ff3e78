//! Relays for the workers, the pipeline and the status.

use std::sync::Arc;
use std::time::Duration;

use weir_ingest::{BLOCK_BYTES, RelayBlock, RelayQueue, RelaySettings, RelayTarget};
use weir_output::relay::{Block, Port, Relay, TargetStatus};

use crate::delivery::error_at;
use weir_status::status::{Numbers, OutputStatus, PointBooks};

/// Starts a relay on the current tokio runtime. `memory_bytes_max` limits the queued lines.
pub fn start(
    name: &str,
    settings: &weir_output::relay::RelaySettings,
    workers: usize,
    memory_bytes_max: u64,
) -> Arc<Relay> {
    Arc::new(Relay::start(
        name,
        settings,
        workers,
        BLOCK_BYTES,
        memory_bytes_max,
    ))
}

/// A worker's link to a relay; each takes it once.
pub fn link(relay: &Relay, worker: usize) -> RelaySettings {
    let settings = relay.settings();
    let ports = relay.ports(worker).into_iter().zip(&settings.targets);
    RelaySettings {
        prefixes: settings.prefixes.clone(),
        targets: ports
            .map(|(port, target)| RelayTarget {
                queue: Box::new(Queue(port)),
                line_bytes_max: settings.packet_bytes_max(target),
            })
            .collect(),
        routes: relay.routes(),
        linger_ns: settings.linger.as_nanos() as u64,
    }
}

struct Queue(Port);

impl RelayQueue for Queue {
    fn push(&mut self, block: RelayBlock) -> Result<(), RelayBlock> {
        let RelayBlock {
            lines,
            messages,
            no_buffer,
            too_long,
            unmatched,
        } = block;
        let pushed = self
            .0
            .push(Block::new(lines, messages, no_buffer, too_long, unmatched));
        pushed.map_err(|block| RelayBlock {
            lines: block.lines,
            messages: block.messages,
            no_buffer: block.no_buffer,
            too_long: block.too_long,
            unmatched: block.unmatched,
        })
    }

    fn buffer(&mut self) -> Option<Vec<u8>> {
        self.0.buffer()
    }
}

/// Time that a stop waits for a failing target.
const MOMENT: Duration = Duration::from_secs(1);

/// Waits until all lines queued at the call are sent, at most `patience`. Returns whether they are.
pub async fn settle(relay: &Relay, patience: Duration) -> bool {
    let before: Vec<u64> = relay.status().iter().map(|target| target.produced).collect();
    let have_gone = relay.wait_for(|targets| {
        let mut targets = targets.iter().zip(&before);
        targets.all(|(target, before)| target.waiting + target.in_flight <= target.produced - before)
    });
    tokio::time::timeout(patience, have_gone).await.is_ok()
}

/// Delivers the last lines, within `patience`; for a failing target only a moment.
pub async fn finish(relay: &Relay, patience: Duration) {
    let is_healthy = relay.status().iter().all(|target| target.healthy);
    let patience = if is_healthy {
        patience
    } else {
        patience.min(MOMENT)
    };
    relay.shutdown(patience).await;
}

/// Memory of the queued lines.
pub fn queued_bytes(relay: &Relay) -> u64 {
    relay.status().iter().map(|target| target.queued_bytes).sum()
}

/// One entry per target, with separate books.
pub fn status(relay: &Relay) -> Vec<OutputStatus> {
    let targets = relay.status();
    let several = targets.len() > 1;
    let entry = |target: TargetStatus| {
        let mut notes = Vec::new();
        if target.ejected {
            notes.push("ejected: other targets get its lines".to_owned());
        }
        let name = if several {
            format!("{} to {}", relay.name(), target.address)
        } else {
            notes.insert(0, target.address.clone());
            relay.name().to_owned()
        };
        let dropped = target.dropped.iter();
        let mut numbers = Numbers::default();
        numbers.add(&target.counts);
        OutputStatus {
            name,
            output_type: "relay".into(),
            healthy: target.healthy,
            since: target.since.max(0) as u64,
            last_error: target
                .last_error
                .map(|error| error_at(&target.address, &error, several)),
            messages: PointBooks {
                produced: target.produced,
                delivered: target.delivered,
                pending: target.waiting + target.in_flight,
                pending_where: [("memory", target.waiting), ("under_way", target.in_flight)]
                    .into_iter()
                    .filter(|(_, messages)| *messages > 0)
                    .map(|(place, messages)| (place.to_owned(), messages))
                    .collect(),
                dropped: dropped
                    .map(|(reason, messages)| (reason.as_str().to_owned(), *messages))
                    .collect(),
            },
            numbers,
            notes,
            ..Default::default()
        }
    };
    targets.into_iter().map(entry).collect()
}
