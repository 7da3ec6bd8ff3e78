//! The encoder's task: batches from the inbox become payloads in the queues.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::{Encode, Encoded, LINGER, PACE_MAX, Shared, Stage, lock};

/// Runs until the inbox is empty at the end, or the output is stopped.
pub async fn run(shared: Arc<Shared>, encoder: Box<dyn Encode>) {
    let mut stage = shared.stage.subscribe();
    let mut encoder = Some(encoder);
    let mut finish_at: Option<Duration> = None;
    let mut patience = PACE_MAX;
    while let Some(mut own) = encoder.take() {
        let arrived = shared.arrived.notified();
        let now = *stage.borrow_and_update();
        let draining = now >= Stage::Draining;
        // At the end of the grace period batches are left where they are. The state is saved all the same.
        let batch = (now < Stage::Stopped)
            .then(|| lock(&shared.inbox).pop())
            .flatten();
        let linger_over = finish_at.is_some_and(|at| shared.clock.now() >= at);
        let leaves = batch.is_none() && shared.save_requested.swap(false, Ordering::AcqRel);
        if batch.is_none() && !linger_over && !draining && !leaves {
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
                let mut encoded = Encoded::default();
                let done = batch.as_ref().map(|(_, items)| *items).unwrap_or_default();
                let finish = batch.as_ref().is_none_or(|(batch, _)| batch.last);
                own.limit_state(shared.limits.state.load(Ordering::Relaxed));
                if let Some((batch, _)) = batch {
                    own.encode(&batch, &mut encoded);
                    if batch.last && !batch.partitions.is_empty() {
                        shared.encoded_until.store(batch.samples_until, Ordering::Release);
                    }
                    let bytes = batch.bytes() as u64;
                    drop(batch);
                    lock(&shared.inbox).encoded(bytes);
                    shared.room.notify_all();
                }
                let keeps = if ended {
                    shared.keeps_state.load(Ordering::Acquire)
                } else {
                    leaves
                };
                if shared.wants_partitions.swap(false, Ordering::AcqRel) {
                    *lock(&shared.kept_partitions) = Some(own.save_partitions());
                } else if keeps && !own.lineage().is_empty() {
                    *lock(&shared.kept_state) = Some(own.save(&mut encoded));
                } else if ended && !shared.has_successor.load(Ordering::Acquire) {
                    own.end(&mut encoded);
                }
                if finish {
                    own.finish(&mut encoded);
                }
                let open = own.open();
                shared.state_bytes.store(own.state_bytes(), Ordering::Relaxed);
                shared.commit(encoded, open, done, finish);
                if leaves {
                    shared.saved.send_modify(|times| *times += 1);
                }
                (own, open, finish)
            }
        };
        match tokio::task::spawn_blocking(work).await {
            Ok((own, open, finished)) => {
                finish_at = match finish_at {
                    _ if open.is_zero() || finished => None,
                    Some(at) => Some(at),
                    None => Some(shared.clock.now() + LINGER),
                };
                if !ended {
                    encoder = Some(own);
                } else if shared.has_successor.load(Ordering::Acquire) {
                    *lock(&shared.retained_encoder) = Some(own);
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
