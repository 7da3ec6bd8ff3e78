//! The state of encoders on its way to the next process.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::Mutex;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::encoding::Legacy;
use super::{Delivery, EncoderState, Payload, SavedQueue, lock};
use crate::prometheus::{SavedAt, Seconds};

/// Why an output does not continue its sums.
const OTHER_SETTINGS: &str =
    "its settings changed, or this version of weir has other settings for it, so the old sums do not apply";

/// The cumulative state of an output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutputState {
    /// Digest of the lineage, which may contain secrets: an output with the same one can continue the state.
    lineage: Vec<u8>,
    bytes: Vec<u8>,
}

/// The sums of the previous process's outputs, by name, until those of this process take them.
#[derive(Debug, Default)]
pub struct SavedStates {
    waiting: Mutex<BTreeMap<String, Vec<(OutputState, SavedAt)>>>,
    errors: Mutex<Vec<RestoreError>>,
    queues: Mutex<BTreeMap<String, Vec<SavedQueue>>>,
}

/// An output that starts without the state of the previous process, or without a part of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestoreError {
    pub output: String,
    pub reason: String,
}

impl OutputState {
    pub fn new(lineage: &str, bytes: Vec<u8>) -> Self {
        OutputState {
            lineage: digest(lineage),
            bytes,
        }
    }

    /// Digest of the lineage, and the state.
    pub fn parts(&self) -> (&[u8], &[u8]) {
        (&self.lineage, &self.bytes)
    }
}

fn digest(lineage: &str) -> Vec<u8> {
    let digest = ring::digest::digest(&ring::digest::SHA256, lineage.as_bytes());
    digest.as_ref().to_vec()
}

impl SavedStates {
    /// `away`: since it was saved.
    pub fn new(saved: BTreeMap<String, OutputState>, away: Duration) -> Self {
        let of = SavedAt {
            away: Seconds::try_from(away.as_secs()).unwrap_or(Seconds::MAX),
            partition: 0,
        };
        let saved = saved.into_iter();
        SavedStates {
            waiting: Mutex::new(saved.map(|(name, state)| (name, vec![(state, of)])).collect()),
            ..SavedStates::default()
        }
    }

    /// The sums of one output by the partitions of a fleet's log.
    pub fn of_partitions(name: &str, partitions: Vec<(OutputState, SavedAt)>) -> Self {
        let saved = (!partitions.is_empty()).then(|| (name.to_owned(), partitions));
        SavedStates {
            waiting: Mutex::new(saved.into_iter().collect()),
            ..SavedStates::default()
        }
    }

    /// Payloads in memory for the endpoints of outputs, by name.
    pub fn with_queues(mut self, queues: BTreeMap<String, Vec<SavedQueue>>) -> Self {
        self.queues = Mutex::new(queues);
        self
    }

    /// The queued payloads of an endpoint.
    pub(super) fn take_queue(&self, name: &str, place: &str) -> impl Iterator<Item = Payload> + use<> {
        let mut queues = lock(&self.queues);
        let of_output = queues.get_mut(name);
        let found = of_output.and_then(|of| {
            let at = of.iter().position(|queue| queue.place == place)?;
            Some(of.swap_remove(at).payloads)
        });
        found.into_iter().flatten().map(Payload::from)
    }

    pub(super) fn restore(&self, name: &str, state: &mut dyn EncoderState) {
        let lineage = state.lineage();
        self.restore_with(name, &lineage, |saved, of| state.restore(saved, of));
    }

    /// Lets an output take the state saved under its name, if it is of the same lineage. `restore` returns how many series found no
    /// room.
    pub fn restore_with<E: Display>(
        &self,
        name: &str,
        lineage: &str,
        mut restore: impl FnMut(&[u8], SavedAt) -> Result<u64, E>,
    ) {
        let saved = lock(&self.waiting).remove(name).unwrap_or_default();
        let (lineage, mut refused) = (digest(lineage), 0);
        let restored = saved.iter().try_for_each(|(state, of)| {
            if state.lineage != lineage {
                return Err(OTHER_SETTINGS.to_owned());
            }
            refused += restore(&state.bytes, *of).map_err(|error| error.to_string())?;
            Ok(())
        });
        let reason = match (restored, refused) {
            (Ok(()), 0) => return,
            (Ok(()), refused) => format!("{refused} series do not fit into memory"),
            (Err(reason), _) => reason,
        };
        lock(&self.errors).push(RestoreError {
            output: name.to_owned(),
            reason,
        });
    }

    /// All outputs have started: state that none of them continues is dropped, and named.
    pub fn finish(&self) -> Vec<RestoreError> {
        let mut errors = std::mem::take(&mut *lock(&self.errors));
        let left = std::mem::take(&mut *lock(&self.waiting));
        let queues = std::mem::take(&mut *lock(&self.queues));
        let without_place = queues.into_iter().filter(|(_, queues)| !queues.is_empty());
        errors.extend(without_place.map(|(output, queues)| RestoreError {
            output,
            reason: format!("{} waiting payloads have no endpoint any more", payloads(&queues)),
        }));
        errors.extend(left.into_keys().map(|output| RestoreError {
            output,
            reason: "the output no longer exists".into(),
        }));
        errors
    }
}

fn payloads(queues: &[SavedQueue]) -> usize {
    queues.iter().map(|queue| queue.payloads.len()).sum()
}

impl Delivery {
    /// The next process continues the encoder's sums: it sends no last markers.
    pub fn keep_state(&self) {
        self.shared.encoder.is_to_leave(Legacy::State);
    }

    /// The last state from the encoder.
    pub(super) fn kept_state(&self) -> Option<OutputState> {
        let bytes = lock(&self.shared.encoder.kept_state).clone()?;
        Some(OutputState::new(&self.lineage, bytes))
    }

    /// After the end: the encoder's cumulative state, if it has one.
    pub fn take_state(&self) -> Option<OutputState> {
        let bytes = lock(&self.shared.encoder.kept_state).take()?;
        Some(OutputState::new(&self.lineage, bytes))
    }
}
