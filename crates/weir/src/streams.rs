//! Streams of events: how many are open at a time.

use std::sync::Arc;

use thiserror::Error;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Of all kinds together.
const STREAMS_MAX: usize = 16;

/// Held for as long as a stream is open.
pub type Permit = OwnedSemaphorePermit;

/// There are as many as there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{STREAMS_MAX} streams are open; close one")]
pub struct TooManyStreams;

#[derive(Clone, Debug)]
pub struct Streams(Arc<Semaphore>);

impl Default for Streams {
    fn default() -> Self {
        Streams(Arc::new(Semaphore::new(STREAMS_MAX)))
    }
}

impl Streams {
    /// The right to one more, or why there is none.
    pub fn open(&self) -> Result<Permit, TooManyStreams> {
        let permit = self.0.clone().try_acquire_owned();
        permit.map_err(|_| TooManyStreams)
    }
}
