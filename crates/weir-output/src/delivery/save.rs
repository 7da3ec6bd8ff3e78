//! An output stops delivering while another process takes over its queue and state, and continues if that fails.

use std::io;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::books::Class;
use super::encoding::Wanted;
use super::{Delivery, DiskQueue, OutputState, Payload, Sending, lock};

/// Time limit for an encoder to return its state.
const ENCODER_MAX: Duration = Duration::from_secs(5);

/// Payloads that wait for one endpoint, only in memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedQueue {
    /// Identifies the endpoint, regardless of other settings.
    pub(super) place: String,
    pub(super) payloads: Vec<SavedPayload>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedPayload {
    route: u16,
    class: u8,
    count: u32,
    created: i64,
    body: Vec<u8>,
}

impl From<&Payload> for SavedPayload {
    fn from(payload: &Payload) -> Self {
        SavedPayload {
            route: payload.route,
            class: match payload.class {
                Class::Points => 0,
                Class::Events => 1,
                Class::Checks => 2,
            },
            count: payload.count,
            created: payload.created,
            body: payload.body.to_vec(),
        }
    }
}

impl From<SavedPayload> for Payload {
    fn from(saved: SavedPayload) -> Self {
        Payload {
            id: 0,
            route: saved.route,
            class: match saved.class {
                0 => Class::Points,
                1 => Class::Events,
                _ => Class::Checks,
            },
            count: saved.count,
            created: saved.created,
            body: saved.body.into(),
        }
    }
}

impl Delivery {
    /// Begins no further request, and waits until those under way have ended, but at most for `patience`.
    pub async fn pause(&self, patience: Duration) {
        self.shared.sending.send_replace(Sending::Paused);
        let all_ended = self.wait_for(|status| {
            let endpoints = status.endpoints.iter();
            endpoints
                .map(|of| of.pending.in_flight)
                .all(|items| items.is_zero())
        });
        self.shared.clock.within(patience, all_ended).await;
    }

    /// Resumes after a [`Delivery::pause`].
    pub fn resume(&self) {
        self.shared.sending.send_replace(Sending::InTime);
    }

    /// During a hold: encodes the batches that were handed over, and returns the cumulative state, if there is one, and payloads that are
    /// only in memory. The output can resume afterwards. Fails if the encoder is too slow: what it has would be in neither process.
    pub async fn save(&self) -> io::Result<(Option<OutputState>, Vec<SavedQueue>)> {
        let shared = &self.shared;
        if !self.save_encoder(Wanted::State).await {
            let name = &self.name;
            return Err(io::Error::new(
                io::ErrorKind::TimedOut,
                format!("the output {name} did not encode what it had in time"),
            ));
        }
        let mut queues = Vec::new();
        for (index, side) in shared.endpoints.iter().enumerate() {
            let payloads = shared
                .with_queue(index, |queue, _| {
                    queue.write_down();
                    queue.unsaved().map(SavedPayload::from).collect::<Vec<_>>()
                })
                .await;
            queues.push(SavedQueue {
                place: side.identity.directory.clone(),
                payloads,
            });
        }
        queues.retain(|queue| !queue.payloads.is_empty());
        Ok((self.take_state(), queues))
    }

    /// The output's current sums, if it has any, with the samples that are in them at least
    /// ([`weir_aggregate::Batch::samples_until`]). Open payloads end.
    pub async fn sums(&self) -> Option<(OutputState, u64)> {
        if !self.keeps_state() {
            return None;
        }
        let samples = self.shared.encoder.encoded_until.load(Ordering::Acquire);
        self.save_encoder(Wanted::State).await.then_some(())?;
        Some((self.kept_state()?, samples))
    }

    /// The sums of each partition of a fleet's log. `None`: the output has none, or did not give them in time.
    pub async fn sums_of_partitions(&self) -> Option<Vec<(u32, OutputState)>> {
        if !self.keeps_state() {
            return None;
        }
        self.save_encoder(Wanted::Partitions).await.then_some(())?;
        let partitions = lock(&self.shared.encoder.kept_partitions).take()?.into_iter();
        let state = |(partition, bytes)| (partition, OutputState::new(&self.lineage, bytes));
        Some(partitions.map(state).collect())
    }

    /// False: it did not do so in time.
    async fn save_encoder(&self, wanted: Wanted) -> bool {
        let shared = &self.shared;
        let mut left = shared.encoder.saved.subscribe();
        left.borrow_and_update();
        *lock(&shared.encoder.save_requested) = Some(wanted);
        shared.intake.arrived.notify_one();
        let is_saved = shared.clock.within(ENCODER_MAX, left.changed()).await.is_some();
        if !is_saved {
            tracing::warn!(output = self.name, "the encoder did not save its state in time");
        }
        is_saved
    }

    /// While it is held: closes what only one process can have open.
    pub async fn close_files(&self) {
        for index in 0..self.shared.endpoints.len() {
            self.shared
                .with_queue(index, |queue, _| drop(queue.take_disk()))
                .await;
        }
        for transport in self.transports.clone() {
            drop(self.shared.clock.blocking(move || transport.rest()).await);
        }
    }

    /// Opens it again.
    pub async fn open_files(&self) {
        let (settings, number) = (&self.shared.settings, self.shared.endpoints.len().max(1));
        let (disk_max, age_max) = (
            settings.disk_bytes_max / number as u64,
            settings.disk_age_max.as_secs() as i64,
        );
        for (index, side) in self.shared.endpoints.iter().enumerate() {
            let Some(path) = side.identity.disk.clone() else {
                continue;
            };
            let name = self.name.clone();
            let open = move |queue: &mut super::Queue, _: &mut super::EndpointBooks| {
                // It was never closed.
                if queue.has_disk() {
                    return;
                }
                match DiskQueue::open(&path, disk_max, age_max) {
                    Ok((disk, _)) => queue.put_disk(disk),
                    Err(error) => {
                        tracing::error!(output = name, "the disk queue cannot be opened again: {error}")
                    }
                }
            };
            self.shared.with_queue(index, open).await;
        }
    }
}
