//! The encoder's task: batches from the inbox become payloads in the queues.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::watch;
use weir_aggregate::Batch;

use super::{Encode, Encoded, Items, LINGER, PACE_MAX, Shared, Stage, lock};
use crate::prometheus::SavedPartitions;

/// Everything that an encoder may leave at its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Legacy {
    /// Nothing: it sends last markers.
    Nothing,
    /// Its state, which the next process continues.
    State,
    /// Itself: another output of this process continues with it.
    Encoder,
}

/// The form in which an encoder gives its state while it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    State,
    /// That of each partition of a fleet's log.
    Partitions,
}

/// Messages to the encoder's task, and what it leaves for others.
pub(super) struct EncoderSide {
    /// Its part of the memory for payloads.
    pub(super) reserved: u64,
    /// The size of its state.
    pub(super) state_bytes: AtomicU64,
    /// See [`weir_aggregate::Batch::samples_until`]: of the last bucket that is encoded as a whole.
    pub(super) encoded_until: AtomicU64,
    /// It is to end open payloads and to give its state; `saved` goes up each time it has.
    pub(super) save_requested: Mutex<Option<Wanted>>,
    pub(super) saved: watch::Sender<u64>,
    pub(super) legacy: Mutex<Legacy>,
    pub(super) kept_state: Mutex<Option<Vec<u8>>>,
    pub(super) kept_partitions: Mutex<Option<SavedPartitions>>,
    pub(super) retained: Mutex<Option<Box<dyn Encode>>>,
}

impl EncoderSide {
    pub(super) fn new(reserved: u64) -> Self {
        EncoderSide {
            reserved,
            state_bytes: AtomicU64::new(0),
            encoded_until: AtomicU64::new(0),
            save_requested: Mutex::default(),
            saved: watch::Sender::new(0),
            legacy: Mutex::new(Legacy::Nothing),
            kept_state: Mutex::default(),
            kept_partitions: Mutex::default(),
            retained: Mutex::default(),
        }
    }

    /// Asks for more than before; it never takes back a wish.
    pub(super) fn is_to_leave(&self, legacy: Legacy) {
        let mut wanted = lock(&self.legacy);
        *wanted = legacy.max(*wanted);
    }
}

/// Runs until the inbox is empty at the end, or the output is stopped.
pub async fn run(shared: Arc<Shared>, encoder: Box<dyn Encode>) {
    let mut stage = shared.stage.subscribe();
    let mut encoder = Some(encoder);
    let mut finish_at: Option<Duration> = None;
    let mut patience = PACE_MAX;
    while let Some(mut own) = encoder.take() {
        let arrived = shared.intake.arrived.notified();
        let now = *stage.borrow_and_update();
        let draining = now >= Stage::Draining;
        // At the end of the grace period batches are left where they are. The state is saved all the same.
        let batch = (now < Stage::Stopped)
            .then(|| lock(&shared.intake.inbox).pop())
            .flatten();
        let linger_over = finish_at.is_some_and(|at| shared.clock.now() >= at);
        let wanted = if batch.is_none() {
            lock(&shared.encoder.save_requested).take()
        } else {
            None
        };
        if batch.is_none() && !linger_over && !draining && wanted.is_none() {
            tokio::select! {
                biased;
                () = arrived => {}
                () = shared.clock.sleep_until(finish_at.unwrap_or_default()), if finish_at.is_some() => {}
                _ = stage.changed() => {}
            }
            encoder = Some(own);
            continue;
        }
        if let Some((batch, _)) = &batch {
            let waited = shared.pace(patience).await;
            patience = if batch.last {
                PACE_MAX
            } else {
                patience.saturating_sub(waited)
            };
        }
        let ended = batch.is_none() && draining;
        let work = {
            let shared = shared.clone();
            move || {
                let (open, finished) = shared.encode(&mut *own, batch, wanted, ended);
                (own, open, finished)
            }
        };
        match shared.clock.blocking(work).await {
            Ok((own, open, finished)) => {
                finish_at = match finish_at {
                    _ if open.is_zero() || finished => None,
                    Some(at) => Some(at),
                    None => Some(shared.clock.now() + LINGER),
                };
                if !ended {
                    encoder = Some(own);
                } else if *lock(&shared.encoder.legacy) == Legacy::Encoder {
                    *lock(&shared.encoder.retained) = Some(own);
                }
            }
            // The panic has been reported; the books show the batch as pending and the next ones as dropped.
            Err(error) => {
                lock(&shared.books).encoder_failed = true;
                tracing::error!(output = shared.name, %error, "the encoder failed; this output has stopped");
            }
        }
    }
    shared.advance(Stage::Encoded);
}

impl Shared {
    /// Encodes a batch, or ends open payloads. Returns what is open, and whether payloads were ended.
    fn encode(
        &self,
        own: &mut dyn Encode,
        batch: Option<(Arc<Batch>, Items)>,
        wanted: Option<Wanted>,
        ended: bool,
    ) -> (Items, bool) {
        let mut encoded = Encoded::default();
        let done = batch.as_ref().map(|(_, items)| *items);
        let finish = batch.as_ref().is_none_or(|(batch, _)| batch.last);
        if let Some(state) = own.state() {
            state.limit(self.limits.state.load(Ordering::Relaxed));
        }
        if let Some((batch, _)) = batch {
            own.encode(&batch, &mut encoded);
            if batch.last && !batch.partitions.is_empty() {
                let until = &self.encoder.encoded_until;
                until.store(batch.samples_until, Ordering::Release);
            }
            let bytes = batch.bytes() as u64;
            drop(batch);
            lock(&self.intake.inbox).encoded(bytes);
            self.intake.room.notify_all();
        }
        if let Some(state) = own.state() {
            let legacy = *lock(&self.encoder.legacy);
            if wanted == Some(Wanted::Partitions) {
                *lock(&self.encoder.kept_partitions) = Some(state.save_partitions());
            }
            let keeps = if ended {
                legacy == Legacy::State
            } else {
                wanted == Some(Wanted::State)
            };
            if keeps {
                *lock(&self.encoder.kept_state) = Some(state.save(&mut encoded));
            } else if ended && legacy == Legacy::Nothing {
                state.end(&mut encoded);
            }
        }
        if finish {
            own.finish(&mut encoded);
        }
        let open = own.open();
        if let Some(state) = own.state() {
            let bytes = &self.encoder.state_bytes;
            bytes.store(state.bytes(), Ordering::Relaxed);
        }
        self.commit(encoded, open, done, finish);
        if wanted.is_some() {
            self.encoder.saved.send_modify(|times| *times += 1);
        }
        (open, finish)
    }
}
